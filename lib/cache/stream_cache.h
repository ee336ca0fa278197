/* SPDX-License-Identifier: MIT */
/* stream_cache.h: the cache of one stream: slabs, whose free slots serve the stream's next requests, and an inbox.
 *
 * Requests and frees on the stream touch no memory that another stream's thread writes.  The cache's lock is biased to
 * the thread that uses the stream, and guards all fields that are not atomic.  A thread that holds the lock calls
 * nothing that may block, and takes no other lock than the lock of the remote-free queue.
 *
 * Glossary: slab.h; and
 *   idle       bytes in slabs of which every slot is free.  The cap (caches.c) limits these bytes.
 *   inbox      whole blocks that were freed on the stream, and that the engine still counts as live
 *   room       the bytes that the inbox may hold: so few that the engine would record no event for these frees anyway
 *   remote     a slot of another cache's slab that was freed on this stream, and may serve this stream's requests
 *   queue      the remote-free queue: slots of the cache's slabs that other threads freed on the stream.  These threads
 *              need not revoke the bias, and touch the owner's cache lines only once for many slots.
 *   flushed    removed from a cache to return to the engine
 *   deferred   work that hits leave to a slower call: `due` maintenance, and the check whether a capture has ended
 *
 * This file must not know engines, the driver or how a stream is identified.
 */
#ifndef WEIR_STREAM_CACHE_H
#define WEIR_STREAM_CACHE_H

#include <weir/allocator.h>

#include "cache/biased_lock.h"
#include "cache/slab.h"

/* A sum of bytes and its peak.  One thread at a time changes them, under a lock of the owner; any thread reads them
 * without a lock.  The struct holds the peak and the peak minus the sum, so that a change of the sum writes one word
 * unless the peak rises. */
struct weir_peak_sum {
    _Atomic int64_t room; /* the peak minus the sum, never below 0 */
    _Atomic int64_t peak;
};

static inline __attribute__((always_inline)) void weir__sum_add(struct weir_peak_sum *sum,
                                                                int64_t bytes) {
    int64_t room = atomic_load_explicit(&sum->room, memory_order_relaxed) - bytes;

    if (__builtin_expect(room < 0, 0)) {
        /* Writes the peak first, so that no reader sees a sum above the peak. */
        atomic_store_explicit(&sum->peak,
                              atomic_load_explicit(&sum->peak, memory_order_relaxed) - room,
                              memory_order_relaxed);
        room = 0;
    }
    atomic_store_explicit(&sum->room, room, memory_order_release);
}

static inline __attribute__((always_inline)) void weir__sum_sub(struct weir_peak_sum *sum,
                                                                int64_t bytes) {
    int64_t room = atomic_load_explicit(&sum->room, memory_order_relaxed) + bytes;

    atomic_store_explicit(&sum->room, room, memory_order_release);
}

/* Returns the present sum, or the sum of a moment ago. */
static inline int64_t weir__sum_now(const struct weir_peak_sum *sum) {
    int64_t peak, room;

    do {
        peak = atomic_load_explicit(&sum->peak, memory_order_acquire);
        room = atomic_load_explicit(&sum->room, memory_order_acquire);
    } while (peak != atomic_load_explicit(&sum->peak, memory_order_relaxed));
    return peak - room;
}

/* Restarts the peak at the present sum, or at 0 if the sum is negative.  No other thread reads meanwhile. */
static inline void weir__sum_renew_peak(struct weir_peak_sum *sum) {
    int64_t now = atomic_load_explicit(&sum->peak, memory_order_relaxed) -
                  atomic_load_explicit(&sum->room, memory_order_relaxed);

    atomic_store_explicit(&sum->peak, now < 0 ? 0 : now, memory_order_relaxed);
    atomic_store_explicit(&sum->room, now < 0 ? -now : 0, memory_order_release);
}

enum {
    WEIR_CACHE_INBOX = 64,   /* the most whole blocks in an inbox */
    WEIR_CACHE_REMOTES = 64, /* the remote frees of a class that are sent to their slabs together */
    WEIR_CACHE_QUEUEFUL = 16, /* this many slots are worth a collection */
    WEIR_CACHE_LOOK = 4096    /* hits between two searches for unused memory: a power of two */
};

/* A remote-free queue may grow by this many bytes before weir checks whether its owner still allocates. */
#define WEIR_CACHE_QUEUE_LOOK ((uint64_t)32 << 20)

struct weir_remote_slot {
    struct weir_slab *span;
    uint32_t slot;
};

/* Remote frees in one piece of host memory.  A flush moves the piece out of the cache, so a flush cannot fail. */
struct weir_remote_slots {
    struct weir_remote_slots *more; /* the next piece of the batch */
    uint32_t count, room;
    struct weir_remote_slot remote[]; /* in the order of the frees */
};

/* Slots that other threads freed.  `lock` guards all fields, alone or under the cache's lock; reads of `count` need
 * none. */
struct weir_remote_queue {
    _Alignas(128) struct weir_lock lock;
    uint64_t id; /* the id of the stream that the cache serves, or 0 if it serves none */
    struct weir_slab *slabs;    /* slabs with slots in the queue, linked by posted_next */
    _Atomic uint32_t count;     /* the number of these slots */
    uint64_t requested, in_use; /* the bytes of these slots, as requested and as in use */
    uint64_t look; /* if in_use exceeds this, weir checks whether the owner allocates */
    int64_t seen;  /* `requested` of the cache at the last check */
};

/* This bit of `trusted` is set while the preload library reports the stream's captures and its end, and each new stream
 * with its handle.  Requests then need not query the driver. */
#define WEIR_CACHE_WATCHED (UINT32_C(1) << 31)

struct weir_cache {
    /* The caches' lock guards these fields.  Hits do not write to the cache line of these fields, nor beside it. */
    _Alignas(128) uint64_t young_id; /* the id of the stream whose calls `young` counts */
    uint32_t young;                  /* calls on a stream that has no cache yet */
    int is_left;                     /* set if weir missed the end of a stream */
    uint64_t swept;                  /* the number of calls at the last search for unused caches */
    struct weir_cache *next;         /* links all caches */
    uint64_t looked_ticks;           /* the time of the last search for unused memory */

    /* Fields that calls on the stream read, and that change seldom. */
    _Atomic int capturing;    /* set if the stream was being captured at its last call */
    _Atomic uint64_t key;     /* the key by which the cache is found, or 0 */
    _Atomic uint64_t id;      /* the stream's id, or 0 before the cache has served a stream */
    _Atomic size_t most;      /* the cap of idle memory */
    _Atomic uint32_t trusted; /* bindings, and WATCHED; above 0 weir does not query the driver */
    _Atomic(struct weir_cache *) after; /* the next cache in its bucket */

    /* The lock's `owner` lies on the cache line above, and its state on the cache line below. */
    uint64_t filler[4];
    struct weir_bias lock;

    /* Fields that hits write under the lock.  Other threads read the atomic ones without the lock.  `is_ready` is 1 if
     * hits may use the cache, 0 if the cache has deferred work. */
    int is_ready;
    _Atomic uint64_t hits, frees;
    _Atomic size_t idle;
    struct weir_peak_sum requested, in_use; /* allocations minus frees here; may be negative */
    /* Lists of slabs with free slots.  The first slab of a list serves requests, and may be full. */
    struct weir_slab *open[WEIR_SLAB_CLASSES];

    /* The inbox, linked by next.  `room` is valid while the engine's `lacked` is equal to this `lacked`. */
    struct weir_slab *inbox;
    unsigned inbox_count;
    _Atomic size_t inbox_bytes;
    uint64_t room, lacked;

    /* Fields that seldom change, under the lock. */
    int serves;             /* set if the cache serves the stream `id` */
    int due;                /* set if the stream's next request shall maintain the cache */
    uint32_t epoch;         /* the number of searches for unused memory so far */
    int is_held;            /* the last result of is_held() in cache_requests.c */
    unsigned held_for;      /* the number of new slabs for which that result still holds */
    uint32_t slabs[WEIR_SLAB_CLASSES]; /* the number of all slabs of each class */
    struct weir_remote_slots *remotes[WEIR_SLAB_CLASSES]; /* NULL for a class without any */

    struct weir_remote_queue queue;
};

/* The memory that a flush takes out of a cache. */
struct weir_flushed {
    struct weir_slab *spans;           /* empty slabs and whole blocks, linked by next */
    struct weir_remote_slots *remotes; /* linked by more */
};

/* Adds 1 to a counter.  A thread that reads the new value also sees what this thread has written before. */
static inline __attribute__((always_inline)) void weir__cache_raise(_Atomic uint64_t *counter) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
                          memory_order_release);
}

/* Computes `is_ready` again, after a change of `serves`, `capturing` or `due`. */
static inline void weir__cache_pass(struct weir_cache *c) {
    int captured = atomic_load_explicit(&c->capturing, memory_order_relaxed);

    c->is_ready = c->serves && !captured && !c->due;
}

static inline void weir__cache_due(struct weir_cache *c) {
    c->due = 1;
    c->is_ready = 0;
}

static inline __attribute__((always_inline)) void weir__cache_more_idle(struct weir_cache *c,
                                                                        size_t bytes) {
    size_t idle = atomic_load_explicit(&c->idle, memory_order_relaxed) + bytes;

    atomic_store_explicit(&c->idle, idle, memory_order_relaxed);
    if (__builtin_expect(idle > atomic_load_explicit(&c->most, memory_order_relaxed), 0))
        weir__cache_due(c);
}

static inline __attribute__((always_inline)) void weir__cache_less_idle(struct weir_cache *c,
                                                                        size_t bytes) {
    atomic_store_explicit(&c->idle, atomic_load_explicit(&c->idle, memory_order_relaxed) - bytes,
                          memory_order_relaxed);
}

/* Removes a slab from the list of slabs with free slots. */
static inline void weir__cache_unlink(struct weir_cache *c, struct weir_slab *s) {
    if (s->prev)
        s->prev->next = s->next;
    else
        c->open[s->size_class] = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

static inline void weir__cache_link(struct weir_cache *c, struct weir_slab *s) {
    struct weir_slab **open = &c->open[s->size_class];

    if (*open && (*open)->idle == 0)
        weir__cache_unlink(c, *open);
    s->prev = NULL;
    s->next = *open;
    if (*open)
        (*open)->prev = s;
    *open = s;
}

/* Returns 1 if the remote-free queue has slots enough for a collection during a request of `bytes`, else 0.  A
 * collection moves a few cache lines, however many slots it returns. */
static inline int weir__cache_has_post(const struct weir_cache *c, size_t bytes) {
    uint32_t count = atomic_load_explicit(&c->queue.count, memory_order_relaxed);

    return count >= WEIR_CACHE_QUEUEFUL || (count > 0 && count * bytes >= WEIR_SLAB_SMALL);
}

/* Moves the slots of the remote-free queue to their slabs. */
void weir__cache_collect(struct weir_cache *c);

/* The slots of the remote-free queue, and their bytes as requested and as in use.  The cache's counts do not include
 * the frees of these slots yet. */
struct weir_posted {
    uint32_t count;
    uint64_t requested, in_use;
};

/* Needs no lock of the cache. */
static inline struct weir_posted weir__cache_posted(struct weir_cache *c) {
    struct weir_remote_queue *queue = &c->queue;
    struct weir_posted posted = {0};

    if (atomic_load_explicit(&queue->count, memory_order_acquire) == 0)
        return posted;
    weir__lock_take(&queue->lock);
    posted.count = atomic_load_explicit(&queue->count, memory_order_relaxed);
    posted.requested = queue->requested;
    posted.in_use = queue->in_use;
    weir__lock_give(&queue->lock);
    return posted;
}

/* Allocates a small block: from the first slab of its class, from the next slab, or from the class's remote frees. */
uint64_t weir__cache_take_further(struct weir_cache *c, size_t bytes);

static inline void weir__cache_put_whole(struct weir_cache *c, struct weir_slab *s) {
    s->next = c->inbox;
    c->inbox = s;
    c->inbox_count++;
    atomic_store_explicit(&c->inbox_bytes,
                          atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed) +
                              weir__slab_bytes(s),
                          memory_order_relaxed);
}

/* Removes all blocks from the inbox, and returns them, linked by next. */
static inline struct weir_slab *weir__cache_empty_inbox(struct weir_cache *c) {
    struct weir_slab *blocks = c->inbox;

    c->inbox = NULL;
    c->inbox_count = 0;
    atomic_store_explicit(&c->inbox_bytes, 0, memory_order_relaxed);
    return blocks;
}

/* Allocates a whole block of the request's size from the newest blocks of the inbox, or returns 0.  While several
 * streams are in use, an inbox serves no large request: a block that always returns to its stream stays apart from the
 * free memory beside it, which other streams need in one piece. */
uint64_t weir__cache_take_whole(struct weir_cache *c, size_t bytes);

/* ---- inlined hits ----------------------------------------------- */

/* Callers hold the cache's lock. */

/* Allocates a slot for `bytes` from a slab with free slots. */
static inline __attribute__((always_inline)) uint64_t
weir__cache_take_slot(struct weir_cache *c, struct weir_slab *s, size_t bytes) {
    uint64_t slot_bytes, slot;

    if (s->idle == s->slots)
        weir__cache_less_idle(c, weir__slab_bytes(s));
    slot = weir__slab_take(s, (uint32_t)bytes);
    slot_bytes = (uint64_t)s->slot_units * WEIR_SLAB_UNIT;
    weir__sum_add(&c->requested, (int64_t)bytes);
    weir__sum_add(&c->in_use, (int64_t)slot_bytes);
    return weir__slab_base(s) + slot * slot_bytes;
}

/* Allocates a slot for `bytes` (1 to WEIR_SLAB_SMALL) from the first slab of its class, or returns 0. */
static inline __attribute__((always_inline)) uint64_t weir__cache_take_home(struct weir_cache *c,
                                                                            size_t bytes) {
    struct weir_slab *s = c->open[weir__slab_class(bytes)];

    if (__builtin_expect(!s || s->idle == 0, 0))
        return 0;
    return weir__cache_take_slot(c, s, bytes);
}

/* Updates the cache after slots returned to one of its slabs, which had `before` free slots. */
static inline __attribute__((always_inline)) void
weir__cache_welcome(struct weir_cache *c, struct weir_slab *slab, uint32_t before) {
    if (before == 0 && c->open[slab->size_class] != slab)
        weir__cache_link(c, slab);
    if (slab->idle == slab->slots) {
        slab->epoch = c->epoch;
        weir__cache_more_idle(c, weir__slab_bytes(slab));
    }
}

/* Frees a live slot of the cache's own slabs on its stream.  Returns 1 on success, 0 if nothing has changed. */
static inline __attribute__((always_inline)) int
weir__cache_put_plain(struct weir_cache *c, struct weir_slab *s, uint64_t address) {
    uint64_t slot;
    uint32_t asked, before;

    if (atomic_load_explicit(&s->cache, memory_order_relaxed) != c)
        return 0;
    slot = weir__slab_quotient(s, address);
    if (slot >= s->slots)
        return 0;
    asked = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    if (asked & WEIR_SLOT_IDLE)
        return 0;
    before = s->idle;
    weir__slab_put(s, (uint32_t)slot);
    weir__cache_welcome(c, s, before);
    weir__sum_sub(&c->requested, (int64_t)asked);
    weir__sum_sub(&c->in_use, (int64_t)s->slot_units * WEIR_SLAB_UNIT);
    weir__cache_raise(&c->frees);
    return 1;
}

#endif
