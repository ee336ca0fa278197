/* SPDX-License-Identifier: MIT */
/* checkpoint.c: saves which blocks of a pool live, and restores them later.
 *
 * PyTorch's graph trees run graphs that continue each other.  Such a graph needs a pool as it was when the earlier
 * graph ended, whatever the program has freed since.  A placement cannot allocate at a given address.  So weir fills a
 * new placement in the order of addresses, segment by segment (joined segments are one), and then frees the free
 * chunks.
 *
 * This file must not know graphs or captures.
 */
#include <stdlib.h>

#include "api/allocator_internal.h"
#include "base/result.h"
#include "tensors/tensors_internal.h"

/* A chunk of a segment. */
struct piece {
    uint64_t address;
    size_t bytes;
    size_t block_bytes, requested; /* these are 0 if the chunk is free */
    weir_stream stream;            /* the stream of the live block */
    uint64_t name;                 /* the name of that stream */
};

struct weir_tensors_state {
    weir_tensors_id id;
    struct weir_tensor_part part[WEIR_TENSORS_PARTS];
    struct piece *pieces; /* sorted by part, then by address */
    size_t piece_count, piece_room;
};

/* Returns the stream name for chunks that are free for all streams.  If the pool has had one stream only, that is the
 * stream's own name: the placement then knows no second stream, and all free chunks join.  The caller has waited for
 * the device, so any name is safe. */
static uint64_t everybody(const struct weir_tensor_pool *pool) {
    return pool->stream_count == 1 && pool->streams[0].name != 0 ? pool->streams[0].name
                                                                 : UINT64_MAX;
}

void weir_tensors_state_destroy(weir_tensors_state *state) {
    if (!state)
        return;
    for (int i = 0; i < WEIR_TENSORS_PARTS; i++)
        free(state->part[i].segments);
    free(state->pieces);
    free(state);
}

/* ---- saving -------------------------------------------------------------------------------------- */

/* Saves a chunk that has memory.  Returns 1 on success, 0 if there is no host memory. */
static int save_piece(const weir_tensors *t, weir_tensors_state *s,
                      const struct weir_placement_span *span) {
    struct piece piece = {.address = span->address, .bytes = span->size};
    struct piece *moved =
        weir__hostmem_room(s->pieces, s->piece_count, &s->piece_room, sizeof *s->pieces);
    uintptr_t value;

    if (!moved)
        return 0;
    s->pieces = moved;
    if (span->live && weir__map_get(&t->map, span->address, &value)) {
        const struct weir_tensor *tensor = (const struct weir_tensor *)value;

        piece.block_bytes = tensor->bytes;
        piece.requested = tensor->requested;
        piece.stream = tensor->stream;
        piece.name = tensor->name;
    }
    s->pieces[s->piece_count++] = piece;
    return 1;
}

/* Waits for the device until no freed block of the pool waits for other streams.  Returns E_CAPTURE if some still wait
 * for the end of a capture. */
static weir_status settle(weir_tensors *t, struct weir_tensor_pool *pool) {
    if (pool->pending > 0)
        weir__pending_settle(t, 1);
    return pool->pending > 0 ? WEIR_E_CAPTURE : WEIR_OK;
}

static weir_status note_pool(weir_tensors *t, struct weir_tensor_pool *pool,
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
            if (!span.unmapped && !save_piece(t, state, &span))
                return WEIR_E_HOST_MEMORY;
    }
    return WEIR_OK;
}

weir_status weir_tensors_save(weir_tensors *t, weir_tensors_id id, weir_tensors_state **out) {
    weir_tensors_state *state;
    struct weir_tensor_pool *pool;
    weir_status status = weir__call_check(t && out);

    if (status != WEIR_OK)
        return status;
    state = calloc(1, sizeof *state);
    if (!state)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    weir__tensors_lock(t);
    pool = weir__pool_find(t, id);
    status = pool ? settle(t, pool) : WEIR_E_NOT_OWNED;
    if (status == WEIR_OK)
        status = note_pool(t, pool, state);
    weir__tensors_unlock(t);
    if (status == WEIR_OK)
        *out = state;
    else
        weir_tensors_state_destroy(state);
    return status == WEIR_OK ? status : weir__without_driver(status);
}

/* ---- restoring ----------------------------------------------------------------------------------- */

static int has_segments(const struct weir_tensor_part *part, const struct weir_tensor_part *saved) {
    size_t found = 0;

    for (size_t i = 0; i < part->count; i++) {
        const struct weir_tensor_segment *s = weir__part_segment(saved, part->segments[i].base);

        found += s && s->base == part->segments[i].base && s->bytes == part->segments[i].bytes;
    }
    return found == saved->count;
}

/* Allocates all pieces of a segment, from *at on, in the order of their addresses.  Only this segment is free in the
 * placement, so each piece gets its address.  Returns 1 on success, else 0. */
static int fill_segment(struct weir_placement *p, uint64_t stream,
                        const struct weir_tensor_segment *segment, const weir_tensors_state *state,
                        size_t *at) {
    struct weir_placement_block place;

    for (; *at < state->piece_count; (*at)++) {
        const struct piece *piece = &state->pieces[*at];

        if (piece->address - segment->base >= segment->bytes)
            break;
        if (weir__placement_take(p, piece->bytes, stream, &place) != WEIR_PLACEMENT_OK ||
            place.address != piece->address)
            return 0;
    }
    return 1;
}

/* Creates a placement of the part in the saved state, whose pieces begin at *at.  Segments that the part got later are
 * free.  Free chunks are free for all streams, since the caller has waited for the device.  Returns NULL if there is no
 * host memory. */
static struct weir_placement *make_placement(const weir_tensors *t, uint64_t stream,
                                             const struct weir_tensor_part *part,
                                             const struct weir_tensor_part *saved,
                                             const weir_tensors_state *state, size_t *at) {
    struct weir_placement *p = weir__part_placement(t);
    size_t first = *at;
    int ok = 1;

    if (!p)
        return NULL;
    for (size_t i = 0; ok && i < saved->count;) {
        struct weir_tensor_segment run = weir__part_run(t, saved, saved->segments[i].base);

        ok = weir__part_place(t, p, saved, run) && fill_segment(p, stream, &run, state, at);
        while (i < saved->count && saved->segments[i].base - run.base < run.bytes)
            i++;
    }
    for (size_t i = first; ok && i < *at; i++)
        if (state->pieces[i].block_bytes == 0)
            ok = weir__placement_give(p, state->pieces[i].address, stream, 1, NULL) ==
                 WEIR_PLACEMENT_OK;
    weir__placement_observe(p, stream, 1);
    for (size_t i = 0; ok && i < part->count; i++)
        if (!weir__part_segment(saved, part->segments[i].base))
            ok = weir__part_place(t, p, part, part->segments[i]);
    if (ok)
        return p;
    weir__placement_destroy(p);
    return NULL;
}

/* Creates the placements of all parts.  Returns 1 on success, 0 if there is no host memory. */
static int make_placements(const weir_tensors *t, const struct weir_tensor_pool *pool,
                           const weir_tensors_state *state,
                           struct weir_placement *out[WEIR_TENSORS_PARTS]) {
    size_t at = 0;

    for (int i = 0; i < WEIR_TENSORS_PARTS; i++) {
        out[i] = make_placement(t, everybody(pool), &pool->part[i], &state->part[i], state, &at);
        if (out[i])
            continue;
        while (i-- > 0)
            weir__placement_destroy(out[i]);
        return 0;
    }
    return 1;
}

/* The addresses to report to the caller, and records for the blocks that will live again. */
struct change {
    void **freed, **made;
    size_t freed_count, freed_room, made_count;
    struct weir_tensor *records; /* a list by `next` with one record for each of these blocks */
};

static int add_freed(struct change *c, uint64_t address) {
    void **moved = weir__hostmem_room(c->freed, c->freed_count, &c->freed_room, sizeof *c->freed);

    if (!moved)
        return 0;
    c->freed = moved;
    c->freed[c->freed_count++] = (void *)(uintptr_t)address;
    return 1;
}

/* Allocates all that the restore needs in host memory.  Returns 1 on success, 0 if there is not enough. */
static int prepare(weir_tensors *t, const struct weir_tensor_pool *pool,
                   const weir_tensors_state *state, struct change *c) {
    size_t live = 0;

    for (size_t i = 0; i < t->map.capacity; i++) {
        const struct weir_tensor *tensor = (const struct weir_tensor *)t->map.slots[i].value;

        if (t->map.slots[i].key && tensor->pool == pool && !add_freed(c, tensor->address))
            return 0;
    }
    for (size_t i = 0; i < state->piece_count; i++)
        live += state->pieces[i].block_bytes > 0;
    c->made = calloc(live + 1, sizeof *c->made);
    for (size_t i = 0; c->made && i < live; i++) {
        struct weir_tensor *record = weir__tensor_new(t);

        if (!record)
            return 0;
        record->next = c->records;
        c->records = record;
    }
    return c->made != NULL && weir__map_reserve(&t->map, live);
}

static void free_all(weir_tensors *t, const struct change *c) {
    for (size_t i = 0; i < c->freed_count; i++) {
        uintptr_t value;
        struct weir_tensor *tensor;

        (void)weir__map_take(&t->map, (uintptr_t)c->freed[i], &value);
        tensor = (struct weir_tensor *)value;
        weir__tensors_subtract(t, tensor);
        tensor->use_count = 0; /* the program must make sure that no stream still uses the block */
        weir__pool_give(t, tensor);
    }
}

static void make_all(weir_tensors *t, struct weir_tensor_pool *pool,
                     const weir_tensors_state *state, struct change *c) {
    for (size_t i = 0; i < state->piece_count; i++) {
        const struct piece *piece = &state->pieces[i];
        struct weir_tensor *tensor = c->records;

        if (piece->block_bytes == 0)
            continue;
        c->records = tensor->next;
        *tensor = (struct weir_tensor){.address = piece->address,
                                       .bytes = piece->block_bytes,
                                       .requested = piece->requested,
                                       .stream = piece->stream,
                                       .name = piece->name,
                                       .pool = pool};
        (void)weir__map_put(&t->map, piece->address, (uintptr_t)tensor);
        weir__tensors_add(t, tensor);
        c->made[c->made_count++] = (void *)(uintptr_t)piece->address;
    }
}

static weir_status restore(weir_tensors *t, struct weir_tensor_pool *pool,
                           const weir_tensors_state *state, struct change *c) {
    weir_status status = settle(t, pool);
    struct weir_placement *placements[WEIR_TENSORS_PARTS];
    CUresult result;

    if (status != WEIR_OK)
        return status;
    for (int i = 0; i < WEIR_TENSORS_PARTS; i++)
        if (!has_segments(&pool->part[i], &state->part[i]))
            return WEIR_E_NOT_OWNED;
    if (!prepare(t, pool, state, c))
        return WEIR_E_HOST_MEMORY;
    /* Streams may still use the chunks that become free. */
    result = weir__device_wait(&t->allocator->device);
    if (result != CUDA_SUCCESS)
        return weir__device_status(&t->allocator->device, result);
    if (!make_placements(t, pool, state, placements))
        return WEIR_E_HOST_MEMORY;
    free_all(t, c);
    for (int i = 0; i < WEIR_TENSORS_PARTS; i++) {
        weir__placement_destroy(pool->part[i].placement);
        pool->part[i].placement = placements[i];
    }
    make_all(t, pool, state, c);
    return WEIR_OK;
}

weir_status weir_tensors_restore(weir_tensors *t, const weir_tensors_state *state,
                                 void (*freed)(void *context, void *block),
                                 void (*made)(void *context, void *block), void *context) {
    struct change change = {0};
    struct weir_tensor_pool *pool;
    weir_status status = weir__call_check(t && state);

    if (status != WEIR_OK)
        return status;
    weir__tensors_lock(t);
    pool = weir__pool_find(t, state->id);
    status = pool ? restore(t, pool, state, &change) : WEIR_E_NOT_OWNED;
    while (change.records) {
        struct weir_tensor *record = change.records;

        change.records = record->next;
        weir__tensor_drop(t, record);
    }
    weir__tensors_unlock(t);
    for (size_t i = 0; status == WEIR_OK && freed && i < change.freed_count; i++)
        freed(context, change.freed[i]);
    for (size_t i = 0; status == WEIR_OK && made && i < change.made_count; i++)
        made(context, change.made[i]);
    free(change.freed);
    free(change.made);
    return status == WEIR_OK ? status : weir__without_driver(status);
}

/* ---- comparing ---------------------------------------------------------------------------------- */

weir_status weir_tensors_pool_is(weir_tensors *t, weir_tensors_id id, void *const *blocks,
                                 size_t count, int *same) {
    const struct weir_tensor_pool *pool;
    struct weir_placement_figures figures;
    size_t found = 0, live = 0;
    uintptr_t value;
    weir_status status = weir__call_check(t && same && (count == 0 || blocks));

    if (status != WEIR_OK)
        return status;
    weir__tensors_lock(t);
    pool = weir__pool_find(t, id);
    if (pool) {
        for (int i = 0; i < WEIR_TENSORS_PARTS; i++) {
            weir__placement_figures(pool->part[i].placement, &figures);
            live += figures.blocks;
        }
        for (size_t i = 0; i < count; i++)
            found += weir__map_get(&t->map, (uintptr_t)blocks[i], &value) &&
                     ((const struct weir_tensor *)value)->pool == pool;
        *same = found == count && live - pool->pending == count;
    }
    weir__tensors_unlock(t);
    return pool ? WEIR_OK : weir__without_driver(WEIR_E_NOT_OWNED);
}
