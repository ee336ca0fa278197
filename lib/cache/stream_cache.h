/* SPDX-License-Identifier: MIT */
/* stream_cache.h: the idle blocks of one stream, which serve its next requests at once.
 *
 * A cache holds slabs for small requests, with their idle slots, and remote frees, slots of other caches' slabs that
 * were freed on this stream.  Requests and frees on the stream touch no memory that another stream's thread writes.
 * cache_stats.c says how much idle memory a cache may keep.  Whole blocks that were freed on the stream wait in its
 * inbox for the stream's next call to the engine, and serve no request there.
 *
 * The lock is biased to the thread that uses the stream.  It guards everything but the atomic fields.  Under it weir
 * calls nothing that may block, and takes no lock but the remote-free queue's.
 *
 * Glossary: slab.h; and
 *   store      the idle blocks themselves; a cache has none until its stream has made enough calls
 *   idle       bytes in slabs of which every slot is free
 *   inbox      whole blocks that were freed on the stream and that the engine does not know to be free.  They go to the
 *              engine together, in the call of the stream's next miss.  If the inbox has no room for a freed block, all
 *              its blocks go to the engine at once.
 *   room       the bytes that the inbox may hold: as long as the engine would record no event for these frees, it need
 *              not know of them
 *   flushed    taken out of a cache to go back to the engine
 *   remote     a slot of another cache's slab that was freed on this stream
 *   queue      the remote-free queue: other threads than the lock's put slots there that they free on the stream, so
 *              that they need not revoke the bias; a producer and a consumer on one stream touch each other's cache
 *              lines only once for many slots
 *
 * This file must not know engines, the driver or how a stream is identified.
 */
#ifndef WEIR_STREAM_CACHE_H
#define WEIR_STREAM_CACHE_H

#include <weir/allocator.h>

#include "cache/biased_lock.h"
#include "cache/page_map.h"
#include "cache/slab.h"

/* A sum of bytes with its peak, which one thread at a time changes, under a lock of its owner, and any thread reads
 * without a lock.  It is stored as the peak and the peak minus the sum, so that additions and subtractions write
 * one word unless the peak rises. */
struct weir_peak_sum {
    _Atomic int64_t room; /* the peak minus the sum, never below 0 */
    _Atomic int64_t peak;
};

static inline __attribute__((always_inline)) void weir__sum_add(struct weir_peak_sum *sum,
                                                                int64_t bytes) {
    int64_t room = atomic_load_explicit(&sum->room, memory_order_relaxed) - bytes;

    if (__builtin_expect(room < 0, 0)) {
        /* The peak is written first, so that a reader sees no sum above it. */
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

/* Returns the sum as it is, or was a moment ago. */
static inline int64_t weir__sum_now(const struct weir_peak_sum *sum) {
    int64_t peak, room;

    do {
        peak = atomic_load_explicit(&sum->peak, memory_order_acquire);
        room = atomic_load_explicit(&sum->room, memory_order_acquire);
    } while (peak != atomic_load_explicit(&sum->peak, memory_order_relaxed));
    return peak - room;
}

/* Restarts the peak at the present sum, or at 0.  No other thread reads meanwhile. */
static inline void weir__sum_renew_peak(struct weir_peak_sum *sum) {
    int64_t now = atomic_load_explicit(&sum->peak, memory_order_relaxed) -
                  atomic_load_explicit(&sum->room, memory_order_relaxed);

    atomic_store_explicit(&sum->peak, now < 0 ? 0 : now, memory_order_relaxed);
    atomic_store_explicit(&sum->room, now < 0 ? -now : 0, memory_order_release);
}

enum {
    WEIR_CACHE_INBOX = 64,   /* the most whole blocks in an inbox */
    WEIR_CACHE_REMOTES = 64, /* the remote frees of a class that are sent to their slabs together */
    WEIR_CACHE_QUEUEFUL = 16, /* slots that are worth a collection of the remote-free queue */
    WEIR_CACHE_LOOK = 4096    /* hits between two searches for unused memory: a power of two */
};

/* The remote-free queue may grow by this number of bytes before weir checks that its owner still allocates. */
#define WEIR_CACHE_QUEUE_LOOK ((uint64_t)32 << 20)

struct weir_remote_slot {
    struct weir_slab *span;
    uint32_t slot;
};

/* Remote frees in one piece of host memory, which is handed on when they leave the cache, so leaving cannot fail. */
struct weir_remote_slots {
    struct weir_remote_slots *next, *more; /* the next batch; the next piece of this batch */
    struct weir_fence *fence; /* the fence of a batch, for the code that returns remote frees */
    uint32_t count, room;
    struct weir_remote_slot remote[]; /* the last one was freed last */
};

struct weir_cache_class {
    _Atomic uint32_t slabs; /* all slabs of the class, full ones too; read without the lock */
    struct weir_remote_slots *remotes; /* NULL: none */
};

struct weir_cache_store {
    /* Lists of slabs with free slots.  The first slab of a list serves requests, and may be full. */
    struct weir_slab *open[WEIR_SLAB_CLASSES];
    struct weir_cache_class small[WEIR_SLAB_CLASSES];
    struct weir_slab *inbox; /* linked by next */
    unsigned inbox_count;
    int is_held;       /* the last result of weir__cache_is_held */
    unsigned held_for; /* the number of new slabs for which that result still holds */
};

/* Slots that other threads freed.  Its lock guards it, alone or under the cache's; `count` is read without it. */
struct weir_remote_queue {
    _Alignas(128) struct weir_lock lock;
    int open; /* set while the cache serves; `key` and `id` are the cache's then */
    uint64_t key, id;
    struct weir_slab *slabs;    /* slabs with slots in the queue, linked by posted_next */
    _Atomic uint32_t count;     /* the number of these slots */
    uint64_t requested, in_use; /* their bytes, as requested and as in use */
    uint64_t look; /* if in_use exceeds this, weir checks whether the owner allocates */
    int64_t seen;  /* `requested` of the cache at the last check */
};

/* The bit of `trusted` that is set while the preload library sees each capture of the stream, its end, and a new stream
 * with its handle.  Requests then need not query the stream. */
#define WEIR_CACHE_WATCHED (UINT32_C(1) << 31)

struct weir_cache {
    /* Guarded by the caches' lock.  (Processors fetch cache lines in pairs.  So these fields, which other threads read,
     * do not lie beside those that hits write.) */
    _Alignas(128) uint64_t young_id; /* the id of the stream whose calls `young` counts */
    uint32_t young;                  /* the number of calls on a stream without a cache */
    int is_left;                     /* set if a stream with this handle ended unseen */
    uint64_t visits;                 /* the number of calls that took the caches' lock */
    uint64_t swept;                  /* the number of calls at the last search for unused caches */
    struct weir_cache *next;         /* links all caches */
    uint64_t looked_ticks;           /* the time of the last search for unused memory */

    /* Fields that calls on the stream read, and that change seldom. */
    struct weir_cache_store *store; /* NULL until the stream has a cache */
    _Atomic uint64_t key;           /* the key by which the cache is found, or 0 */
    _Atomic uint64_t id;            /* the stream's id */
    _Atomic size_t most;            /* the cap of idle memory */
    /* The room of the inbox.  It holds while the engine's count of requests that lacked memory is `lacked`. */
    _Atomic uint64_t room, lacked;
    _Atomic uint32_t trusted; /* bindings, and WATCHED; above 0 the driver is not queried */
    _Atomic int capturing;    /* set if the stream was being captured at its last call */

    /* The lock's owner is in the cache line above, its taken state in the one below. */
    uint64_t filler[2];
    struct weir_bias lock;

    /* Fields that hits write under the lock.  Other threads read the atomic ones without it.  `is_ready` is 1 if hits
     * need no other work, or 0 if work was put off. */
    int is_ready;
    _Atomic uint64_t hits, frees;
    _Atomic size_t idle;
    _Atomic size_t inbox_bytes;
    struct weir_peak_sum requested, in_use; /* allocated here less freed here; may be negative */

    /* Fields that seldom change, under the lock. */
    int serves; /* set if the cache has a store in which everything was freed on the stream `id` */
    int due;    /* set if the stream's next request shall maintain the cache */
    uint32_t epoch; /* the number of searches for unused memory so far */
    uint32_t pins;  /* calls that use the cache but do not hold its lock now */
    _Atomic uint64_t deferred;
    _Atomic uint64_t misses; /* requests that found nothing and took no caches' lock */

    struct weir_remote_queue queue;
};

/* The memory that a flush takes out of a cache. */
struct weir_flushed {
    struct weir_slab *spans;           /* empty slabs and whole blocks, linked by next */
    struct weir_remote_slots *remotes; /* linked by more */
};

/* Raises a counter by one.  A thread that reads the new value sees all counts before it. */
static inline __attribute__((always_inline)) void weir__cache_raise(_Atomic uint64_t *counter) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
                          memory_order_release);
}

/* Computes `is_ready` again, after a change of serves, capturing or due. */
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
        c->store->open[s->size_class] = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

static inline void weir__cache_link(struct weir_cache *c, struct weir_slab *s) {
    struct weir_slab **open = &c->store->open[s->size_class];

    if (*open && (*open)->idle == 0)
        weir__cache_unlink(c, *open);
    s->prev = NULL;
    s->next = *open;
    if (*open)
        (*open)->prev = s;
    *open = s;
}

/* Returns 1 if the remote-free queue is worth a collection for a request of `bytes`, else 0.  A collection moves a few
 * cache lines, however many slots it returns.  If there are few, a new slab serves, and the next one is larger. */
static inline int weir__cache_has_post(const struct weir_cache *c, size_t bytes) {
    uint32_t count = atomic_load_explicit(&c->queue.count, memory_order_relaxed);

    return count >= WEIR_CACHE_QUEUEFUL || (count > 0 && count * bytes >= WEIR_SLAB_SMALL);
}

/* Moves the slots of the remote-free queue to their slabs. */
void weir__cache_collect(struct weir_cache *c);

/* Allocates a small block from the first slab of its class, from the next one, or from the class's remote frees. */
uint64_t weir__cache_take_further(struct weir_cache *c, size_t bytes);

enum weir_cache_put {
    WEIR_CACHE_TAKEN = 0,
    WEIR_CACHE_FULL,     /* there is no room for a remote free */
    WEIR_CACHE_NO_BLOCK, /* no live block starts there */
    WEIR_CACHE_ANOTHERS  /* the lock is biased to another thread, and was not taken */
};

/* Frees a live block on the stream.  The cache has a store.  If the inbox has no room for a whole block, sets *out, which
 * is NULL before, to that block and all blocks of the inbox, linked by next.  `lacked` is the engine's count of requests
 * that lacked memory. */
int weir__cache_put(struct weir_cache *c, struct weir_slab *s, uint64_t address, uint64_t lacked,
                    struct weir_slab **out);

/* Frees a live whole block to the inbox.  Returns 1 on success, 0 if there is no room or no live block; nothing has
 * changed then. */
int weir__cache_post(struct weir_cache *c, struct weir_slab *s, uint64_t address, uint64_t lacked);
/* Removes all blocks from the inbox, and returns them, linked by next. */
struct weir_slab *weir__cache_empty_inbox(struct weir_cache *c);

/* Returns the number of slots in the remote-free queue and their bytes, of which the cache's counts do not know yet. */
uint32_t weir__cache_posted(struct weir_cache *c, uint64_t *requested, uint64_t *in_use);
/* Makes the remote-free queue accept slots for the cache's present key and id, or none if the cache does not serve. */
void weir__cache_readdress(struct weir_cache *c);

/* Open and close the store, which is empty at its close.  weir__cache_open returns 0 without host memory, else 1. */
int weir__cache_open(struct weir_cache *c);
void weir__cache_close(struct weir_cache *c);

/* Adds a slab in which all slots are free. */
void weir__cache_add_slab(struct weir_cache *c, struct weir_slab *slab);
/* Makes room for one more remote free of a class.  Returns 1 on success, 0 if there is no host memory. */
int weir__cache_remote_room(struct weir_cache *c, unsigned size_class);

/* Returns 1 if the free slots of partly used slabs have `most` bytes or more, else 0.  Visits a few thousand slabs at
 * most, and not at each call. */
int weir__cache_is_held(struct weir_cache *c, size_t most);
/* Removes a slab, all of whose slots are free. */
void weir__cache_drop_slab(struct weir_cache *c, struct weir_slab *s, struct weir_flushed *out);
/* Removes the blocks of the inbox. */
void weir__cache_drop_inbox(struct weir_cache *c, struct weir_flushed *out);
/* Removes the blocks of the inbox, and empty slabs until at most `keep` bytes are idle. */
void weir__cache_shrink(struct weir_cache *c, size_t keep, struct weir_flushed *out);
/* Removes slabs that were not used since the last search for unused memory, and begins the next search. */
void weir__cache_expire(struct weir_cache *c, struct weir_flushed *out);
/* Removes the remote frees of classes that have at least `least` of them, which is above 0. */
void weir__cache_remotes(struct weir_cache *c, uint32_t least, struct weir_flushed *out);
/* Gives up the slabs that still have live slots, after a shrink to 0 and the removal of remote frees: the stream on
 * which their free slots were freed is no longer known. */
void weir__cache_disown(struct weir_cache *c);

/* ---- the short ways of requests and frees, which are inlined ---- */

/* Callers hold the cache's lock. */

/* Allocates a slot for `bytes` (1 to WEIR_SLAB_SMALL) from the first slab of its class, or returns 0. */
static inline __attribute__((always_inline)) uint64_t weir__cache_take_home(struct weir_cache *c,
                                                                            size_t bytes) {
    struct weir_slab *s = c->store->open[weir__slab_class(bytes)];
    uint64_t slot_bytes, slot;

    if (__builtin_expect(!s || s->idle == 0, 0))
        return 0;
    if (s->idle == s->slots)
        weir__cache_less_idle(c, weir__slab_bytes(s));
    slot = weir__slab_take(s, (uint32_t)bytes);
    slot_bytes = (uint64_t)s->slot_units * WEIR_SLAB_UNIT;
    weir__sum_add(&c->requested, (int64_t)bytes);
    weir__sum_add(&c->in_use, (int64_t)slot_bytes);
    return weir__slab_base(s) + slot * slot_bytes;
}

/* Updates the cache after slots were returned to one of its slabs, which had `before` free slots. */
static inline __attribute__((always_inline)) void
weir__cache_welcome(struct weir_cache *c, struct weir_slab *slab, uint32_t before) {
    if (before == 0 && c->store->open[slab->size_class] != slab)
        weir__cache_link(c, slab);
    if (slab->idle == slab->slots) {
        slab->epoch = c->epoch;
        weir__cache_more_idle(c, weir__slab_bytes(slab));
    }
}

/* Keeps a live slot of the cache's own slabs that is freed on the stream.  Returns 1 on success; else 0, and changes
 * nothing.  The cache has a store. */
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
