/* SPDX-License-Identifier: MIT */
/* checkpoint.c: saves which blocks of a private memory pool are live (a checkpoint), and later makes them live again.
 *
 * PyTorch needs checkpoints for CUDA graphs that continue each other: before a graph runs, its pool must have the same
 * live blocks as at the end of the earlier graph, even if the program has freed some of these blocks since. */
#include <stdlib.h>

#include "api/allocator_internal.h"
#include "base/result.h"
#include "tensors/tensors_internal.h"

/* A saved live block.  request.note is NULL.  `chunk` is the size of the block's chunk in bytes. */
struct saved_block {
    size_t chunk;
    struct weir_tensor_request request;
};

struct weir_tensors_state {
    weir_tensors_id id;
    struct weir_tensor_part part[WEIR_TENSORS_PARTS];
    struct saved_block *blocks; /* sorted by part of the pool, then by address */
    size_t block_count, block_room;
};

/* Returns the owner of the free memory after a restore: the pool's stream if the pool has exactly one, else
 * `unknown_streams`.  All streams may use the memory, since the caller has waited for the device. */
static struct weir_placement_stream *restoring_stream(struct weir_tensor_pool *pool) {
    return pool->streams && !pool->streams->next ? &pool->streams->placed : &pool->unknown_streams;
}

void weir_tensors_state_destroy(weir_tensors_state *state) {
    if (!state)
        return;
    for (int i = 0; i < WEIR_TENSORS_PARTS; i++)
        free(state->part[i].segments);
    free(state->blocks);
    free(state);
}

/* ---- saving -------------------------------------------------------------------------------------- */

/* Saves a live block.  Returns 1 on success, 0 if there is no host memory. */
static int save_block(const weir_tensors *t, weir_tensors_state *s,
                      const struct weir_placement_span *span) {
    struct saved_block *moved =
        weir__hostmem_room(s->blocks, s->block_count, &s->block_room, sizeof *s->blocks);
    const struct weir_tensor *tensor;
    uintptr_t value = 0;

    if (!moved)
        return 0;
    s->blocks = moved;
    (void)weir__map_get(&t->map, span->address, &value);
    tensor = (const struct weir_tensor *)value;
    s->blocks[s->block_count++] = (struct saved_block){.chunk = span->size,
                                                       .request = {.bytes = tensor->bytes,
                                                                   .requested = tensor->requested,
                                                                   .home = tensor->home,
                                                                   .address = tensor->address}};
    return 1;
}

/* Waits for the device, then completes all delayed frees.  Returns OK, or E_CAPTURE if a capture delays a free. */
static weir_status complete_pending(weir_tensors *t, struct weir_tensor_pool *pool) {
    if (pool->pending > 0)
        weir__pending_complete(t, 1);
    return pool->pending > 0 ? WEIR_E_CAPTURE : WEIR_OK;
}

static weir_status save_pool(weir_tensors *t, struct weir_tensor_pool *pool,
                             weir_tensors_state *state) {
    state->id = pool->id;
    for (int i = 0; i < WEIR_TENSORS_PARTS; i++) {
        const struct weir_tensor_part *part = &pool->part[i];
        struct weir_tensor_part *saved = &state->part[i];
        struct weir_placement_span span = {0};

        saved->segments = calloc(part->count + 1, sizeof *saved->segments);
        if (!saved->segments)
            return WEIR_E_HOST_MEMORY;
        for (; saved->count < part->count; saved->count++)
            saved->segments[saved->count] = part->segments[saved->count];
        while (weir__placement_next(part->placement, &span))
            if (span.live && !save_block(t, state, &span))
                return WEIR_E_HOST_MEMORY;
    }
    return WEIR_OK;
}

weir_status weir_tensors_save(weir_tensors *t, weir_tensors_id id, weir_tensors_state **out) {
    weir_tensors_state *state = NULL;
    weir_status status;
    struct weir_tensor_pool *pool = weir__pool_enter(out ? t : NULL, id, &status);

    if (!pool)
        return status;
    status = complete_pending(t, pool);
    if (status == WEIR_OK && !(state = calloc(1, sizeof *state)))
        status = WEIR_E_HOST_MEMORY;
    if (status == WEIR_OK)
        status = save_pool(t, pool, state);
    weir__tensors_unlock(t);
    if (status == WEIR_OK) {
        *out = state;
        return WEIR_OK;
    }
    weir_tensors_state_destroy(state);
    return weir__without_driver(status);
}

/* ---- restoring ----------------------------------------------------------------------------------- */

static int has_same_segments(const struct weir_tensor_part *part,
                             const struct weir_tensor_part *saved) {
    size_t found = 0;

    for (size_t i = 0; i < part->count; i++) {
        const struct weir_tensor_segment *s = weir__part_segment(saved, part->segments[i].base);

        found += s && s->base == part->segments[i].base && s->bytes == part->segments[i].bytes;
    }
    return found == saved->count;
}

/* Creates the placement of part `number`, in which all memory is free.  Returns NULL without host memory. */
static struct weir_placement *make_placement(const weir_tensors *t,
                                             const struct weir_tensor_pool *pool, int number) {
    const struct weir_tensor_part *part = &pool->part[number];
    struct weir_placement *p = weir__part_placement(t, number);
    int ok = p != NULL;

    for (size_t i = 0; ok && i < part->count; i++)
        ok = weir__part_place(t, p, part, part->segments[i]);
    if (ok)
        return p;
    weir__placement_destroy(p);
    return NULL;
}

/* Allocates a saved block at its old address.  Meanwhile also allocates the memory from `from` up to the block, since a
 * placement allocates only at the beginning of free memory. */
static int place_saved_block(struct weir_placement *p, struct weir_placement_stream *stream,
                             uint64_t from, const struct saved_block *block) {
    struct weir_placement_block place;
    uint64_t at = block->request.address;

    return (at == from ||
            weir__placement_alloc_at(p, from, at - from, stream, &place) == WEIR_PLACEMENT_OK) &&
           weir__placement_alloc_at(p, at, block->chunk, stream, &place) == WEIR_PLACEMENT_OK &&
           (at == from || weir__placement_free(p, from, stream, 0, NULL) == WEIR_PLACEMENT_OK);
}

/* Creates placements in which only blocks of the checkpoint are live.  Any stream may use the free memory, since the
 * caller has waited for the device.  Returns 1 on success, else 0. */
static int make_placements(const weir_tensors *t, struct weir_tensor_pool *pool,
                           const weir_tensors_state *state,
                           struct weir_placement *out[WEIR_TENSORS_PARTS]) {
    struct weir_placement_stream *stream = restoring_stream(pool);
    uint64_t from = 0; /* the end of the previous block */
    int ok = 1;

    for (int i = 0; i < WEIR_TENSORS_PARTS; i++) {
        out[i] = make_placement(t, pool, i);
        ok &= out[i] != NULL;
    }
    for (size_t i = 0; ok && i < state->block_count; i++) {
        const struct saved_block *block = &state->blocks[i];
        const struct weir_tensor_part *part = weir__pool_part(pool, block->request.address);
        uint64_t base = weir__part_run(t, part, block->request.address).base;

        if (from < base || from > block->request.address)
            from = base;
        ok = place_saved_block(out[part - pool->part], stream, from, block);
        from = block->request.address + block->chunk;
    }
    for (int i = 0; !ok && i < WEIR_TENSORS_PARTS; i++)
        weir__placement_destroy(out[i]);
    return ok;
}

/* The blocks that are live before a restore.  The restore frees these blocks. */
struct freed_blocks {
    void **block;
    size_t count;
};

/* Lists the pool's live blocks, and allocates all host memory, so that later steps cannot fail. */
static int prepare_restore(weir_tensors *t, const struct weir_tensor_pool *pool,
                           const weir_tensors_state *state, struct freed_blocks *freed) {
    freed->block = calloc(t->map.count + 1, sizeof *freed->block);
    for (size_t i = 0; freed->block && i < t->map.capacity; i++) {
        const struct weir_tensor *tensor = (const struct weir_tensor *)t->map.slots[i].value;

        if (t->map.slots[i].key && tensor->pool == pool)
            freed->block[freed->count++] = (void *)(uintptr_t)tensor->address;
    }
    return freed->block && weir__tensors_reserve_records(t, state->block_count) &&
           weir__map_reserve(&t->map, state->block_count);
}

static void free_listed(weir_tensors *t, const struct freed_blocks *freed) {
    for (size_t i = 0; i < freed->count; i++) {
        uintptr_t value;
        struct weir_tensor *tensor;

        (void)weir__map_remove(&t->map, (uintptr_t)freed->block[i], &value);
        tensor = (struct weir_tensor *)value;
        weir__tensors_subtract(t, tensor);
        tensor->use_count = 0; /* the program guarantees that no stream still uses the block */
        weir__pool_free(t, tensor);
    }
}

static weir_status restore_pool(weir_tensors *t, struct weir_tensor_pool *pool,
                                const weir_tensors_state *state, struct freed_blocks *freed) {
    weir_status status = complete_pending(t, pool);
    struct weir_placement *placements[WEIR_TENSORS_PARTS];
    CUresult result;

    if (status != WEIR_OK)
        return status;
    for (int i = 0; i < WEIR_TENSORS_PARTS; i++)
        if (!has_same_segments(&pool->part[i], &state->part[i]))
            return WEIR_E_NOT_OWNED;
    if (!prepare_restore(t, pool, state, freed))
        return WEIR_E_HOST_MEMORY;
    /* Streams may still use memory that the restore makes free. */
    result = weir__device_wait(&t->allocator->device);
    if (result != CUDA_SUCCESS)
        return weir__device_status(&t->allocator->device, result);
    if (!make_placements(t, pool, state, placements))
        return WEIR_E_HOST_MEMORY;
    free_listed(t, freed);
    for (int i = 0; i < WEIR_TENSORS_PARTS; i++) {
        weir__pool_drop_placement(pool, i);
        pool->part[i].placement = placements[i];
    }
    for (size_t i = 0; i < state->block_count; i++)
        /* cannot fail: prepare_restore() has allocated the host memory */
        (void)weir__tensor_record(t, &state->blocks[i].request, pool, 0);
    return WEIR_OK;
}

weir_status weir_tensors_restore(weir_tensors *t, const weir_tensors_state *state,
                                 void (*freed)(void *context, void *block),
                                 void (*made)(void *context, void *block), void *context) {
    struct freed_blocks freed_list = {0};
    weir_status status;
    struct weir_tensor_pool *pool =
        weir__pool_enter(state ? t : NULL, state ? state->id : (weir_tensors_id){0, 0}, &status);

    if (!pool)
        return status;
    status = restore_pool(t, pool, state, &freed_list);
    weir__tensors_unlock(t);
    for (size_t i = 0; status == WEIR_OK && freed && i < freed_list.count; i++)
        freed(context, freed_list.block[i]);
    for (size_t i = 0; status == WEIR_OK && made && i < state->block_count; i++)
        made(context, (void *)(uintptr_t)state->blocks[i].request.address);
    free(freed_list.block);
    return status == WEIR_OK ? status : weir__without_driver(status);
}

/* ---- comparing ---------------------------------------------------------------------------------- */

weir_status weir_tensors_pool_is(weir_tensors *t, weir_tensors_id id, void *const *blocks,
                                 size_t count, int *same) {
    struct weir_placement_figures figures;
    size_t found = 0, live = 0;
    uintptr_t value;
    weir_status status;
    const struct weir_tensor_pool *pool =
        weir__pool_enter(same && (count == 0 || blocks) ? t : NULL, id, &status);

    if (!pool)
        return status;
    for (int i = 0; i < WEIR_TENSORS_PARTS; i++) {
        weir__placement_figures(pool->part[i].placement, &figures);
        live += figures.blocks;
    }
    for (size_t i = 0; i < count; i++)
        found += weir__map_get(&t->map, (uintptr_t)blocks[i], &value) &&
                 ((const struct weir_tensor *)value)->pool == pool;
    *same = found == count && live - pool->pending == count;
    weir__tensors_unlock(t);
    return WEIR_OK;
}
