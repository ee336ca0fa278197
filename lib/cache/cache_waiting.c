/* SPDX-License-Identifier: MIT */
/* cache_waiting.c: frees to an engine whose blocks the driver orders (the engines pool and direct).
 *
 * What: such an engine frees a block by a driver call on the stream of the free, so no cache keeps whole blocks.  That
 * call is not possible at once for slabs that leave the cache of a stream which the caller may not use, and for whole
 * blocks that are freed on a captured stream.  These blocks wait with the id of the stream that orders their last use.
 * The next call on that stream frees them there.  A wait for the device frees all of them; blocks of an unknown stream
 * need that wait.
 *
 * Locks: the caches' lock guards the lists.  Under it the driver is called to free blocks.
 */
#include "cache/caches_state.h"

#include "base/result.h"

/* Adds a block to its list. */
static void add_waiting(struct weir_caches *f, struct weir_slab *s, uint64_t id) {
    struct weir_slab **list = id == WEIR_ENGINE_UNKNOWN ? &f->waiting_longer : &f->waiting;

    atomic_store_explicit(&s->fetched_for, id, memory_order_relaxed);
    s->next = *list;
    *list = s;
    if (id == WEIR_ENGINE_UNKNOWN)
        atomic_fetch_add_explicit(&f->stranded, weir__slab_bytes(s), memory_order_relaxed);
}

/* Frees one block: on `stream` if `id` is the stream's, or at once with OBSERVED.  If the driver refuses the free, only a
 * wait for the device can free the block. */
static void end_block(struct weir_caches *f, struct weir_slab *s, uint64_t id, weir_stream stream) {
    CUdeviceptr base = weir__slab_base(s);
    struct weir_freed freed = {.block = &base, .count = 1};
    size_t bytes = weir__slab_bytes(s);
    weir_status status;

    weir__records_end(&f->records, s);
    status = id == WEIR_ENGINE_OBSERVED ? f->engine->ops->give(f->engine, &freed, id)
                                        : f->engine->ops->free(f->engine, base, stream, NULL);
    if (status == WEIR_OK) {
        count_given(f, bytes);
        return;
    }
    s = weir__records_whole(&f->records, base, bytes);
    if (s) /* unreached: no host memory for the record that has just been given up */
        add_waiting(f, s, WEIR_ENGINE_UNKNOWN);
}

void weir__caches_wait(struct weir_caches *f, struct weir_slab *spans, uint64_t id) {
    while (spans) {
        struct weir_slab *s = spans;

        spans = s->next;
        if (id == WEIR_ENGINE_OBSERVED)
            end_block(f, s, id, NULL);
        else
            add_waiting(f, s, id);
    }
}

void weir__caches_free_waiting(struct weir_caches *f, weir_stream stream, uint64_t id) {
    struct weir_slab *waiting = f->waiting;

    f->waiting = NULL;
    while (waiting) {
        struct weir_slab *s = waiting;

        waiting = s->next;
        if (atomic_load_explicit(&s->fetched_for, memory_order_relaxed) == id) {
            end_block(f, s, id, stream);
        } else {
            s->next = f->waiting;
            f->waiting = s;
        }
    }
}

/* Puts a list before another one. */
static void join_lists(struct weir_slab **list, struct weir_slab *before) {
    while (before) {
        struct weir_slab *s = before;

        before = s->next;
        s->next = *list;
        *list = s;
    }
}

/* Waits for the device without the lock, which the caller holds. */
CUresult weir__caches_empty_waiting(struct weir_caches *f) {
    struct weir_slab *longer = f->waiting_longer, *own = f->waiting;
    CUresult result;

    if (!longer && !own)
        return CUDA_SUCCESS;
    f->waiting = f->waiting_longer = NULL;
    pthread_mutex_unlock(&f->lock);
    result = weir__device_wait(f->hits.device);
    pthread_mutex_lock(&f->lock);
    if (result != CUDA_SUCCESS) {
        join_lists(&f->waiting, own);
        join_lists(&f->waiting_longer, longer);
        return result;
    }
    for (const struct weir_slab *s = longer; s; s = s->next)
        atomic_fetch_sub_explicit(&f->stranded, weir__slab_bytes(s), memory_order_relaxed);
    weir__caches_wait(f, own, WEIR_ENGINE_OBSERVED);
    weir__caches_wait(f, longer, WEIR_ENGINE_OBSERVED);
    return CUDA_SUCCESS;
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
