/* SPDX-License-Identifier: MIT */
/* remote_post.h: puts a slot into the remote-free queue of the slot's cache, from another thread than the cache's.
 *
 * Locks: the remote-free queue's only.  The cache's lock stays with its thread.
 */
#ifndef WEIR_REMOTE_POST_H
#define WEIR_REMOTE_POST_H

#include "cache/stream_cache.h"

/* Returns 1 if the remote-free queue has room, else 0.  There is always room as long as the queue's owner allocates.
 * The caller holds the queue's lock. */
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

/* Puts a live slot of the cache's slabs into its remote-free queue, without the cache's lock.  `id` is 0 if the driver
 * was not queried.  Returns FULL if the caller must take the cache's lock instead. */
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

/* Returns 1 if the cache's lock is biased to another thread, for whom the remote-free queue exists; else 0. */
static inline int weir__cache_is_anothers(const struct weir_cache *c) {
    uint32_t owner = atomic_load_explicit(&c->lock.owner, memory_order_relaxed);

    return owner != 0 && owner != weir__bias_thread;
}

#endif
