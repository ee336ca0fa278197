/* SPDX-License-Identifier: MIT */
/* remote_post.h: a slot is left in the remote-free queue of the cache that it is of, by another thread than the cache's.
 *
 * Locks: the remote-free queue's alone; the cache's own is left to its thread.
 */
#ifndef WEIR_REMOTE_POST_H
#define WEIR_REMOTE_POST_H

#include "cache/stream_cache.h"

/* There is room in the remote-free queue, whose lock is held: without end, as long as its owner allocates. */
static inline int weir__cache_has_room(struct weir_cache *c) {
    struct weir_remote_queue *queue = &c->queue;
    int64_t sum;

    if (queue->in_use < queue->look)
        return 1;
    sum = weir__sum_now(&c->requested);
    if (sum == queue->seen)
        return 0;
    queue->seen = sum;
    queue->look = queue->in_use + WEIR_CACHE_QUEUE_LOOK;
    return 1;
}

/* Leaves a live slot of the cache's own slabs in its remote-free queue, without the cache's lock; `id` 0: not
 * asked.  FULL: the cache's lock must be taken after all. */
static inline int weir__cache_post(struct weir_cache *c, uint64_t key, uint64_t id,
                                   struct weir_slab *s, uint64_t address) {
    struct weir_remote_queue *queue = &c->queue;
    uint32_t slot = weir__slab_slot(s, address), asked;
    int result = WEIR_CACHE_FULL;

    if (slot == WEIR_SLOT_NONE)
        return WEIR_CACHE_NO_BLOCK;
    weir__lock_take(&queue->lock);
    asked = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    if (asked & WEIR_SLOT_IDLE) {
        result = WEIR_CACHE_NO_BLOCK;
    } else if (queue->open && queue->key == key && (id == 0 || queue->id == id) &&
               weir__cache_has_room(c) &&
               atomic_load_explicit(&s->cache, memory_order_relaxed) == c) {
        if (weir__slab_post(s, slot)) {
            s->posted_next = queue->slabs;
            queue->slabs = s;
        }
        queue->requested += asked;
        queue->in_use += (uint64_t)s->slot_units * WEIR_SLAB_UNIT;
        atomic_store_explicit(&queue->count,
                              atomic_load_explicit(&queue->count, memory_order_relaxed) + 1,
                              memory_order_relaxed);
        result = WEIR_CACHE_TAKEN;
    }
    weir__lock_give(&queue->lock);
    return result;
}

/* The lock is biased to another thread, for which the remote-free queue is there. */
static inline int weir__cache_is_anothers(const struct weir_cache *c) {
    uint32_t owner = atomic_load_explicit(&c->lock.owner, memory_order_relaxed);

    return owner != 0 && owner != weir__bias_thread;
}

#endif
