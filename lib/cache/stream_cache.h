/* SPDX-License-Identifier: MIT */
/* stream_cache.h: the caches of all streams of one allocator, and the hits that request.c inlines: requests that find a
 * block in their stream's cache, and calls that free a block into the cache.
 *
 * Hits touch no memory that another stream's thread writes.  A cache's lock is biased to the thread that uses the
 * stream, and guards all fields that are not atomic.  Locks: a thread takes `flushing` before any other lock.  A thread
 * that holds `lock` may take one more: the lock of the engine, the page map or a cache.  A thread that holds a
 * cache's lock calls nothing that may block, and takes only the lock of the cache's remote-free queue.
 *
 * Glossary: page_map.h; and
 *   idle       bytes in slabs of which every slot is free.  The cap (caches.c) limits these bytes.
 *   inbox      whole blocks that were freed on the stream, and that the engine still counts as live
 *   room       the bytes that the inbox may hold: so few that the engine would record no event after their frees anyway
 *   remote     a slot of another cache's slab that was freed on this stream, and may serve this stream's requests
 *   queue      the remote-free queue: slots of the cache's slabs that other threads freed on the stream
 *   flushed    removed from a cache to return to the engine
 *   stranded   flushed, but without an event: only a wait for the device allows its reuse
 *   deferred   work that hits leave to a slower call: `due` maintenance, and the check whether a capture has ended
 */
#ifndef WEIR_STREAM_CACHE_H
#define WEIR_STREAM_CACHE_H

#include <weir/allocator.h>

#include <pthread.h>

#include "base/bounds.h"
#include "base/counters.h"
#include "cache/biased_lock.h"
#include "cache/caches.h"
#include "cache/page_map.h"
#include "engine/stream_order.h"

/* Marks functions of the fast path, which compilers would otherwise not inline everywhere. */
#define WEIR_INLINE static inline __attribute__((always_inline))

/* A sum of bytes and its peak.  One thread at a time changes the two; any thread reads them without a lock. */
struct weir_peak_sum {
    _Atomic int64_t now, peak;
};

WEIR_INLINE void weir__sum_add(struct weir_peak_sum *sum, int64_t bytes) {
    int64_t now = atomic_load_explicit(&sum->now, memory_order_relaxed) + bytes;

    if (__builtin_expect(now > atomic_load_explicit(&sum->peak, memory_order_relaxed), 0))
        atomic_store_explicit(&sum->peak, now, memory_order_relaxed);
    atomic_store_explicit(&sum->now, now, memory_order_release);
}

WEIR_INLINE void weir__sum_sub(struct weir_peak_sum *sum, int64_t bytes) {
    atomic_store_explicit(&sum->now, atomic_load_explicit(&sum->now, memory_order_relaxed) - bytes,
                          memory_order_release);
}

static inline int64_t weir__sum_now(const struct weir_peak_sum *sum) {
    return atomic_load_explicit(&sum->now, memory_order_acquire);
}

enum {
    WEIR_CACHE_INBOX = 64,        /* the maximum number of whole blocks in an inbox */
    WEIR_CACHE_REMOTES = 64,      /* maintenance flushes a list of this many slots of other slabs */
    WEIR_CACHE_QUEUEFUL = 16,     /* a request empties a remote-free queue with this many slots */
    WEIR_CACHE_SEARCH_HITS = 4096 /* a power of 2: hits between two searches for unused memory */
};

#define WEIR_CACHE_QUEUE_MOST ((uint64_t)32 << 20) /* the most bytes in a remote-free queue */

struct weir_remote_slot {
    struct weir_slab *span;
    uint32_t slot;
};

/* Freed slots of other caches' slabs, in one piece of host memory.  To empty a cache, weir only moves whole pieces. */
struct weir_remote_slots {
    struct weir_remote_slots *more; /* the next piece in the list */
    uint32_t count, room;
    struct weir_remote_slot remote[]; /* in the order in which the slots were freed */
};

/* Slots that other threads have freed.  `lock` guards all fields; reads of the atomic fields need no lock. */
struct weir_remote_queue {
    _Alignas(128) struct weir_lock lock;
    uint64_t id;             /* the id of the stream that the cache serves, or 0 */
    struct weir_slab *slabs; /* linked by posted_next */
    /* The number, requested bytes and sizes of the queue's slots.  The cache's own sums still include the slots. */
    _Atomic uint64_t count, requested, in_use;
};

/* A bit of `trusted`: the preload library reports captures and the stream's end, so weir does not query the stream. */
#define WEIR_CACHE_WATCHED (UINT32_C(1) << 31)

struct weir_cache {
    /* The lock in struct weir_caches guards these fields. */
    _Alignas(128) uint64_t early_id; /* the id of the stream whose calls `early_calls` counts */
    uint32_t early_calls;            /* the calls on a stream that has no cache yet */
    int missed_end;                  /* set if weir missed the end of a stream of this cache */
    uint64_t last_calls;             /* calls_of() at the last search for unused caches */
    struct weir_cache *next;         /* links all caches */
    uint64_t idle_search_ticks;      /* the time of the last search for unused memory */

    /* These fields change seldom.  Each call that allocates or frees on the stream reads the fields. */
    _Atomic int capturing; /* set if the stream was in a capture at its last call */
    _Atomic uint64_t key;  /* the cache's key in the hash table, or 0 */
    _Atomic uint64_t id;   /* the stream's id, or 0 before the cache has served a stream */
    _Atomic size_t most;   /* the maximum of `idle` */
    /* The number of weir_bind bindings plus WEIR_CACHE_WATCHED.  While this sum is above 0, weir trusts the handle. */
    _Atomic uint32_t trusted;
    _Atomic(struct weir_cache *) after; /* the next cache in its bucket */

    /* Keeps lock.owner and lock.lock on different cache lines. */
    uint64_t filler[4];
    struct weir_bias lock;

    /* Calls that allocate or free change these fields under `lock`.  Other threads may read the atomic fields. */
    int is_ready;            /* if 0, the fast path must not use the cache */
    _Atomic uint64_t hits;   /* the requests that the cache served */
    _Atomic uint64_t misses; /* the requests on the stream that succeeded, but are not hits */
    _Atomic uint64_t frees;
    _Atomic size_t idle; /* the bytes in slabs of which every slot is free */
    /* The bytes that were allocated on the stream minus the bytes that were freed on it, which may be negative. */
    struct weir_peak_sum requested, in_use;
    /* For each size class, a list of slabs.  Every slab but the first has free slots. */
    struct weir_slab *open[WEIR_SLAB_CLASSES];

    /* `room` limits inbox_bytes while `lacked` equals the engine's count of requests that found no free memory. */
    struct weir_slab *inbox;
    unsigned inbox_count;
    _Atomic size_t inbox_bytes;
    uint64_t room, lacked;
    /* Two counts of calls that have removed memory from the cache, but have not yet returned it to the engine. */
    _Atomic uint32_t moving[2];
    /* The index in `moving` of the count that calls now increase.  A flush of all caches waits for the other count. */
    unsigned turn;

    /* These fields change seldom, under the cache's lock. */
    int serves;                /* set if the cache serves the stream `id` */
    int due;                   /* set if the stream's next request shall call maintain_cache() */
    uint32_t epoch;            /* the number of searches for unused memory so far */
    int had_many_idle;         /* the last result of has_many_idle() */
    unsigned results_to_reuse; /* the calls for which has_many_idle() repeats its result */
    uint32_t slabs[WEIR_SLAB_CLASSES]; /* the number of all slabs of each class */
    /* For each class, a list of freed slots of other streams' slabs, or NULL before the list is needed. */
    struct weir_remote_slots *remotes[WEIR_SLAB_CLASSES];

    struct weir_remote_queue queue;
};

struct weir_flushed {
    struct weir_slab *spans;           /* empty slabs and whole blocks, linked by next */
    struct weir_remote_slots *remotes; /* linked by more */
};

/* Adds to a sum, which one thread at a time changes.  Readers of the new sum also see this thread's earlier writes. */
WEIR_INLINE void weir__cache_raise(_Atomic uint64_t *sum, uint64_t more) {
    atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + more,
                          memory_order_release);
}

/* ---- one cache, whose lock the caller holds ---- */

static inline void weir__cache_update_ready(struct weir_cache *c) {
    c->is_ready =
        c->serves && !c->due && !atomic_load_explicit(&c->capturing, memory_order_relaxed);
}

static inline void weir__cache_set_due(struct weir_cache *c) {
    c->due = 1;
    c->is_ready = 0;
}

WEIR_INLINE void weir__cache_more_idle(struct weir_cache *c, size_t bytes) {
    size_t idle = atomic_load_explicit(&c->idle, memory_order_relaxed) + bytes;

    atomic_store_explicit(&c->idle, idle, memory_order_relaxed);
    if (__builtin_expect(idle > atomic_load_explicit(&c->most, memory_order_relaxed), 0))
        weir__cache_set_due(c);
}

WEIR_INLINE void weir__cache_less_idle(struct weir_cache *c, size_t bytes) {
    atomic_store_explicit(&c->idle, atomic_load_explicit(&c->idle, memory_order_relaxed) - bytes,
                          memory_order_relaxed);
}

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

/* Returns 1 if a request of `bytes` should first collect the slots that other threads have freed, else 0. */
static inline int weir__cache_should_collect(const struct weir_cache *c, size_t bytes) {
    uint64_t count = atomic_load_explicit(&c->queue.count, memory_order_relaxed);

    return count >= WEIR_CACHE_QUEUEFUL || (count > 0 && count * bytes >= WEIR_SLAB_SMALL);
}

/* Moves the slots that other threads have freed from their queue to the free lists of their slabs. */
void weir__cache_collect(struct weir_cache *c);

/* Allocates a slot from the cache's slabs, or from the freed slots of other slabs.  Returns 0 if there is none. */
uint64_t weir__cache_alloc_next(struct weir_cache *c, size_t bytes);

/* Removes all freed blocks from the inbox.  Returns the list of these blocks, linked by next. */
static inline struct weir_slab *weir__cache_empty_inbox(struct weir_cache *c) {
    struct weir_slab *blocks = c->inbox;

    c->inbox = NULL;
    c->inbox_count = 0;
    atomic_store_explicit(&c->inbox_bytes, 0, memory_order_relaxed);
    return blocks;
}

/* Allocates one of the newest freed blocks in the inbox.  Returns 0 if no such block has the right size. */
uint64_t weir__cache_alloc_whole(struct weir_cache *c, size_t bytes);

/* Allocates a slot for `bytes` from a slab with free slots. */
WEIR_INLINE uint64_t weir__cache_alloc_slot(struct weir_cache *c, struct weir_slab *s,
                                            size_t bytes) {
    uint64_t slot_bytes, slot;

    if (s->idle == s->slots)
        weir__cache_less_idle(c, weir__slab_bytes(s));
    slot = weir__slab_take(s, (uint32_t)bytes);
    slot_bytes = (uint64_t)s->slot_units * WEIR_SLAB_UNIT;
    weir__sum_add(&c->requested, (int64_t)bytes);
    weir__sum_add(&c->in_use, (int64_t)slot_bytes);
    return weir__slab_base(s) + slot * slot_bytes;
}

/* Allocates a slot for `bytes` (1 to WEIR_SLAB_SMALL) from the first slab of its size class, or returns 0. */
WEIR_INLINE uint64_t weir__cache_alloc_first(struct weir_cache *c, size_t bytes) {
    struct weir_slab *s = c->open[weir__slab_class(bytes)];

    if (__builtin_expect(!s || s->idle == 0, 0))
        return 0;
    return weir__cache_alloc_slot(c, s, bytes);
}

/* Updates the cache after slots returned to the free list of one of its slabs, which had `before` free slots. */
WEIR_INLINE void weir__cache_relist_slab(struct weir_cache *c, struct weir_slab *slab,
                                         uint32_t before) {
    if (before == 0 && c->open[slab->size_class] != slab)
        weir__cache_link(c, slab);
    if (slab->idle == slab->slots) {
        slab->epoch = c->epoch;
        weir__cache_more_idle(c, weir__slab_bytes(slab));
    }
}

/* Frees the live slot at the address if its slab belongs to this cache.  Returns 1 on success, else 0. */
WEIR_INLINE int weir__cache_put_plain(struct weir_cache *c, struct weir_slab *s, uint64_t address) {
    uint32_t slot, asked, before;

    if (atomic_load_explicit(&s->cache, memory_order_relaxed) != c)
        return 0;
    slot = weir__slab_slot(s, address);
    if (slot == WEIR_SLOT_NONE)
        return 0;
    asked = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    if (asked & WEIR_SLOT_IDLE)
        return 0;
    before = s->idle;
    weir__slab_put(s, slot);
    weir__cache_relist_slab(c, s, before);
    weir__sum_sub(&c->requested, (int64_t)asked);
    weir__sum_sub(&c->in_use, (int64_t)s->slot_units * WEIR_SLAB_UNIT);
    weir__cache_raise(&c->frees, 1);
    return 1;
}

/* ---- all caches ---- */

enum { WEIR_CACHE_BUCKETS = 512 };

struct weir_caches {
    /* Each request reads the fields up to `bucket`, so these fields must seldom change. */
    struct weir_device *device;
    int checks;                  /* nonzero if options.stream_checks is on */
    struct weir_records records; /* cache hits read only the first field */
    /* A hash table of caches by key.  Only changes need `lock`.  A reader that finds no cache for a default stream
     * searches again under `lock`, since a cache that the reader passed may have moved to another bucket. */
    _Atomic(struct weir_cache *) bucket[2 * WEIR_CACHE_BUCKETS];

    struct weir_reserve *v;
    struct weir_engine *engine;
    /* Set if the driver decides when streams may reuse freed blocks.  Caches then keep slabs, but no whole blocks. */
    int driver_orders;
    uint64_t idle_ns; /* the time after which a cache returns unused memory */

    _Atomic uint64_t largest; /* the bytes of the largest whole block so far */
    _Atomic uint64_t captured_allocs, captured_frees; /* count calls on captured streams */

    pthread_mutex_t flushing; /* held during a flush of all caches */
    pthread_mutex_t lock;     /* guards the fields below */
    struct weir_cache *caches;
    struct weir_cache *uncached; /* counts the blocks that no stream's cache counts */
    size_t default_streams;      /* the number of caches of default streams that are not bound */
    size_t cached;               /* the number of caches that have served a stream */
    struct weir_order order;     /* keeps freed slots until their stream work has completed */
    struct weir_flushed stranded; /* reusable only after a wait for the device */
    size_t stranded_bytes;
    uint64_t requested_peak, in_use_peak;
    uint64_t requested_lately; /* the peak that weir__caches_peak_lately() returns */
    uint64_t recent_peak[2];   /* the engine's peaks of bytes in use, in this period and the last */
    uint64_t span_ticks;       /* the time at which the present period began */
    /* If the bytes in use exceed this number, the next cache miss updates the statistics' peaks. */
    _Atomic uint64_t add_up_above;
};

/* Set in a cache's key that is made from a default stream's id.  A key that is a stream's handle never has this bit. */
#define WEIR_CACHE_BY_ID ((uint64_t)1 << 63)

static inline _Atomic(struct weir_cache *) *weir__cache_bucket(struct weir_caches *f,
                                                               uint64_t key) {
    uint32_t hash = (uint32_t)key * UINT32_C(0x9E3779B1) / (UINT32_MAX / WEIR_CACHE_BUCKETS + 1);

    return &f->bucket[hash + (key & WEIR_CACHE_BY_ID ? WEIR_CACHE_BUCKETS : 0)];
}

/* Returns the cache with this key, or NULL.  Callers also check is_its(), since another thread may change the key. */
WEIR_INLINE struct weir_cache *weir__cache_find(struct weir_caches *f, uint64_t key) {
    struct weir_cache *c = NULL;

    if (__builtin_expect(key != 0, 1))
        c = atomic_load_explicit(weir__cache_bucket(f, key), memory_order_acquire);
    while (__builtin_expect(c && atomic_load_explicit(&c->key, memory_order_relaxed) != key, 0))
        c = atomic_load_explicit(&c->after, memory_order_acquire);
    return c;
}

static inline int is_default(weir_stream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* Returns the key of a stream's cache, or 0 for a default stream whose `id` is 0. */
static inline uint64_t key_of(weir_stream stream, uint64_t id) {
    if (!is_default(stream))
        return (uintptr_t)stream;
    return id ? id | WEIR_CACHE_BY_ID : 0;
}

/* Returns 1 if weir trusts the stream's handle, so that it need not query the stream's id, else 0. */
static inline int is_vouched_for(const struct weir_caches *f, const struct weir_cache *c,
                                 weir_stream stream) {
    return atomic_load_explicit(&c->trusted, memory_order_relaxed) > 0 ||
           (!f->checks && !is_default(stream));
}

/* Queries the stream's id.  Returns 0 if a query fails or the stream is being captured into a CUDA graph, else 1. */
static inline int query_id(struct weir_caches *f, weir_stream stream, unsigned long long *id) {
    const struct weir_driver *driver = f->device->driver;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;

    return driver->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
           capture == CU_STREAM_CAPTURE_STATUS_NONE &&
           driver->cuStreamGetId(stream, id) == CUDA_SUCCESS;
}

/* Returns a stream's cache, or NULL.  Sets *id for a default stream.  *lent is for weir__device_restore_context(). */
WEIR_INLINE struct weir_cache *find_cache(struct weir_caches *f, weir_stream stream,
                                          unsigned long long *id, int *lent) {
    uint64_t handle = (uintptr_t)stream;

    if (handle > WEIR_STREAM_PER_THREAD_VALUE)
        return weir__cache_find(f, handle);
    *lent = weir__device_lacks_context && weir__device_make_context_current(f->device);
    if (!weir__device_default_id(f->device, stream, id)) {
        if (!query_id(f, stream, id))
            return NULL;
        if (atomic_load_explicit(&f->device->watches, memory_order_relaxed))
            weir__device_store_default_id(f->device, stream, *id);
    }
    return weir__cache_find(f, *id | WEIR_CACHE_BY_ID);
}

/* Returns 1 if the cache's stream has this id, or if `id` is 0 (not queried).  Callers check again under the cache's
 * lock, since another thread may give the cache to another stream. */
static inline int is_its(const struct weir_cache *c, uint64_t id) {
    return (id == 0 || atomic_load_explicit(&c->id, memory_order_relaxed) == id);
}

static inline void count_hit(struct weir_cache *c) {
    uint64_t hits = atomic_load_explicit(&c->hits, memory_order_relaxed) + 1;

    atomic_store_explicit(&c->hits, hits, memory_order_relaxed);
    if (hits % WEIR_CACHE_SEARCH_HITS == 0)
        weir__cache_set_due(c);
}

/* Allocates a block from the cache, or returns 0.  The caller holds the cache's lock. */
WEIR_INLINE CUdeviceptr take_cached(struct weir_cache *c, uint64_t id, size_t bytes) {
    CUdeviceptr block = 0;

    if (bytes > WEIR_SLAB_SMALL) {
        if (c->inbox && c->is_ready && is_its(c, id))
            block = weir__cache_alloc_whole(c, bytes);
        if (block)
            count_hit(c);
        return block;
    }
    for (int collected = 0;; collected = 1) {
        if (c->is_ready && is_its(c, id)) {
            block = weir__cache_alloc_first(c, bytes);
            if (!block)
                block = weir__cache_alloc_next(c, bytes);
        }
        if (__builtin_expect(block != 0, 1)) {
            count_hit(c);
            return block;
        }
        if (collected || !c->serves || !weir__cache_should_collect(c, bytes))
            return 0;
        weir__cache_collect(c);
    }
}

/* Frees a slot into the cache of the stream `id`.  Returns 1 on success, 0 if the slow path must free the slot. */
WEIR_INLINE int free_cached(struct weir_cache *c, uint64_t id, struct weir_slab *s,
                            CUdeviceptr block) {
    int done;

    if (__builtin_expect(!weir__bias_try_at(&c->lock, WEIR_BIAS_INNER), 0))
        return 0;
    done = c->is_ready && is_its(c, id) && weir__cache_put_plain(c, s, block);
    weir__bias_give(&c->lock, 1);
    return done;
}

/* ---- cache_requests.c ---- */

/* Allocates a block that the cache `c` could not serve.  `c` may be NULL.  Releases the cache's lock, whose state is
 * `taken`.  r->id is 0 if the stream's id was not queried. */
weir_status weir__caches_miss(struct weir_caches *f, struct weir_cache *c, int taken,
                              struct weir_request *r);

/* Frees a block as weir_free does, without checks of the arguments.  `c`, `s` and `uses` may be NULL.  A success leaves
 * the thread's last driver result unchanged. */
weir_status weir__caches_free(struct weir_caches *f, struct weir_cache *c, struct weir_slab *s,
                              CUdeviceptr block, weir_stream stream, struct weir_use_list *uses);
/* Returns blocks to the engine, as freed on the stream `id`.  Returns 1 if weir should record an event on the stream,
 * else 0.  The caller holds no cache's lock.  If the driver orders reuse, the caller holds f->lock, which is released
 * meanwhile.  A block that the driver cannot free in stream order is kept until a wait for the device. */
int weir__caches_give(struct weir_caches *f, struct weir_slab *spans, uint64_t id,
                      struct weir_cache *c, weir_stream stream);

/* ---- caches.c ---- */

/* Queries a stream's id.  Checks that the stream belongs to this device, unless a cache has this id already. */
weir_status weir__caches_identify(struct weir_caches *f, weir_stream stream, uint64_t *id);
/* Queries the id of a stream on which memory is allocated or freed.  Sets *c to the stream's cache, or to NULL if the
 * stream has none.  If the stream is being captured, finds the cache by the handle and returns E_CAPTURE. */
weir_status weir__caches_query_stream(struct weir_caches *f, weir_stream stream, uint64_t *id,
                                      struct weir_cache **c);
/* Does the work that the fast path leaves to slower calls on the stream, for example a flush of idle memory. */
void weir__caches_do_deferred(struct weir_caches *f, struct weir_cache *c, weir_stream stream,
                              uint64_t id);
/* Puts a slot into the free list of its slab, after all work on the slot has completed.  The caller holds f->lock. */
void weir__caches_return_slot(struct weir_caches *f, const struct weir_remote_slot *remote);
/* Keeps flushed memory from reuse until the next wait for the device.  The caller holds f->lock. */
void weir__caches_strand(struct weir_caches *f, struct weir_slab *spans,
                         struct weir_remote_slots *remotes);
/* Queries up to 8 batches of freed slots, to save time, and returns the completed slots.  The caller holds f->lock. */
static inline void complete_some(struct weir_caches *f) {
    (void)weir__order_complete(&f->order, 8);
}

#endif
