/* SPDX-License-Identifier: MIT */
/* cache_waiting.c: frees to an engine whose blocks the driver orders (the engines pool and direct).
 *
 * What: such an engine frees a block by a driver call on the stream of the free, so no cache keeps whole blocks.  That
 * call is not possible at once for slabs that leave the cache of a stream which the caller may not use, and for whole
 * blocks that are freed on a captured stream.  These blocks wait with the id of the stream that orders their last use.
 * The next call on that stream frees them there.  A wait for the device frees all of them; blocks of an unknown stream
 * need that wait.
 *
 * Locks: the caches' lock guards the list.  No block is freed under it, since the direct engine's free waits for the
 * device.
 */
#include "cache/caches_state.h"

#include "base/result.h"

/* Adds a block to the list. */
static void add_waiting(struct weir_caches *f, struct weir_slab *s, uint64_t id) {
    atomic_store_explicit(&s->fetched_for, id, memory_order_relaxed);
    s->next = f->waiting;
    f->waiting = s;
    if (id == WEIR_ENGINE_UNKNOWN)
        atomic_fetch_add_explicit(&f->stranded, weir__slab_bytes(s), memory_order_relaxed);
}

/* Frees one block: on `stream` if `id` is the stream's, or at once with OBSERVED.  Returns NULL, or the block's record if
 * the driver refuses the free. */
static struct weir_slab *end_block(struct weir_caches *f, struct weir_slab *s, uint64_t id,
                                   weir_stream stream) {
    CUdeviceptr base = weir__slab_base(s);
    struct weir_freed freed = {.block = &base, .count = 1};
    size_t bytes = weir__slab_bytes(s);
    weir_status status;

    weir__records_end(&f->records, s);
    status = id == WEIR_ENGINE_OBSERVED ? f->engine->ops->give(f->engine, &freed, id)
                                        : f->engine->ops->free(f->engine, base, stream, NULL);
    if (status == WEIR_OK) {
        count_given(f, bytes);
        return NULL;
    }
    /* NULL only without host memory for the record that has just been given up */
    return weir__records_whole(&f->records, base, bytes);
}

/* Frees blocks without the lock, which the caller holds.  A block whose free the driver refuses waits for the device. */
static void end_blocks(struct weir_caches *f, struct weir_slab *blocks, uint64_t id,
                       weir_stream stream) {
    struct weir_slab *refused = NULL;

    if (!blocks)
        return;
    pthread_mutex_unlock(&f->lock);
    while (blocks) {
        struct weir_slab *next = blocks->next, *s = end_block(f, blocks, id, stream);

        if (s) {
            s->next = refused;
            refused = s;
        }
        blocks = next;
    }
    pthread_mutex_lock(&f->lock);
    weir__caches_wait(f, refused, WEIR_ENGINE_UNKNOWN);
}

void weir__caches_wait(struct weir_caches *f, struct weir_slab *spans, uint64_t id) {
    if (id == WEIR_ENGINE_OBSERVED) {
        end_blocks(f, spans, id, NULL);
        return;
    }
    while (spans) {
        struct weir_slab *s = spans;

        spans = s->next;
        add_waiting(f, s, id);
    }
}

void weir__caches_free_waiting(struct weir_caches *f, weir_stream stream, uint64_t id) {
    struct weir_slab **at = &f->waiting, *own = NULL;

    while (*at) {
        struct weir_slab *s = *at;

        if (atomic_load_explicit(&s->fetched_for, memory_order_relaxed) == id) {
            *at = s->next;
            s->next = own;
            own = s;
        } else {
            at = &s->next;
        }
    }
    end_blocks(f, own, id, stream);
}

/* Adds the blocks of a list again that was taken off. */
static void wait_again(struct weir_caches *f, struct weir_slab *blocks) {
    while (blocks) {
        struct weir_slab *s = blocks;

        blocks = s->next;
        add_waiting(f, s, atomic_load_explicit(&s->fetched_for, memory_order_relaxed));
    }
}

/* Waits for the device without the lock, which the caller holds. */
CUresult weir__caches_empty_waiting(struct weir_caches *f) {
    struct weir_slab *blocks = f->waiting;
    CUresult result;

    if (!blocks)
        return CUDA_SUCCESS;
    f->waiting = NULL;
    for (const struct weir_slab *s = blocks; s; s = s->next)
        if (atomic_load_explicit(&s->fetched_for, memory_order_relaxed) == WEIR_ENGINE_UNKNOWN)
            atomic_fetch_sub_explicit(&f->stranded, weir__slab_bytes(s), memory_order_relaxed);
    pthread_mutex_unlock(&f->lock);
    result = weir__device_wait(f->hits.device);
    pthread_mutex_lock(&f->lock);
    if (result == CUDA_SUCCESS)
        weir__caches_wait(f, blocks, WEIR_ENGINE_OBSERVED);
    else
        wait_again(f, blocks);
    return result;
}

static void end_for_good(void *caches, struct weir_slab *s) {
    struct weir_caches *f = caches;
    CUdeviceptr base = weir__slab_base(s);
    struct weir_freed freed = {.block = &base, .count = 1};

    if (weir__slab_bytes(s) > 0)
        (void)f->engine->ops->give(f->engine, &freed, WEIR_ENGINE_OBSERVED);
}

void weir__caches_end_blocks(struct weir_caches *f) {
    if (f->is_straight)
        weir__records_walk(&f->records, end_for_good, f);
}
