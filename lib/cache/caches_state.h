/* SPDX-License-Identifier: MIT */
/* caches_state.h: the caches of all streams of one allocator, for the files that implement caches.h, and for request.c,
 * which inlines hits: requests that find a block in their stream's cache, and frees that put a block there.  For all
 * other calls request.c calls weir__caches_miss or weir__caches_free.
 *
 * Locks: `flushing` is held during a flush of all caches, and is taken before all other locks.  `lock` guards writes of
 * the buckets of caches, and the order of deferred batches.  A thread that holds `lock` may take one more lock: the
 * engine's, the records', or a cache's.  A thread that holds a cache's lock may take the lock of its remote-free queue.
 * A hit takes only the cache's lock.
 *
 * This file must not know the public API, settings' names or how an engine places blocks.
 */
#ifndef WEIR_CACHES_STATE_H
#define WEIR_CACHES_STATE_H

#include "cache/caches.h"
#include "cache/page_map.h"
#include "cache/stream_cache.h"

#include <pthread.h>

#include "base/bounds.h"
#include "base/counters.h"
#include "engine/stream_order.h"

enum { WEIR_CACHE_BUCKETS = 512 };

struct weir_caches {
    /* A hit reads the fields up to `bucket`, and the stream's cache. */
    struct weir_device *device;
    int checks;                /* nonzero if options.stream_checks is on */
    struct weir_pagemap pages; /* finds the records of blocks */
    /* Lists of caches by the hash of their key, linked by `after`: the caches of created streams, then the caches of
     * default streams.  Writers hold the caches' lock; readers hold no lock.  The key of a created stream's cache
     * never changes.  If another thread removes a key of a default stream, a reader may go on in the wrong list.  So a
     * reader that found no cache of a default stream searches again under the caches' lock. */
    _Atomic(struct weir_cache *) bucket[2 * WEIR_CACHE_BUCKETS];

    struct weir_reserve *v;
    struct weir_engine *engine; /* the engine of `v` */
    /* Set if the driver orders the reuse of the engine's blocks.  Caches then keep slabs, but no whole blocks. */
    int is_straight;
    /* The time after which a cache returns unused memory, or UINT64_MAX for never. */
    uint64_t idle_ns;

    _Alignas(64) struct weir_records records;
    _Atomic uint64_t largest; /* the bytes of the largest whole block so far */
    _Atomic uint64_t taken;   /* the bytes of all blocks from the engine, if is_straight is set */

    pthread_mutex_t flushing;  /* held during a flush of all caches */
    pthread_mutex_t lock;      /* guards the fields below */
    struct weir_cache *caches; /* all caches */
    struct weir_cache *loose;  /* counts the blocks that no stream's cache counts */
    size_t default_streams;    /* the number of caches of default streams that are not bound */
    size_t cached;             /* the number of caches that have served a stream */
    struct weir_order order;   /* defers the return of batches of remote frees */
    /* Memory that only a wait for the device completes: remote frees, and with is_straight freed blocks.  Its bytes. */
    struct weir_flushed stranded;
    _Atomic size_t stranded_bytes;
    size_t host_bytes;
    uint64_t requested_peak, in_use_peak;
    uint64_t requested_lately; /* the peak that weir__caches_peak_lately returns */
    /* The peak of the bytes in the engine's blocks: in the present period of idle_ns, and in the period before. */
    uint64_t lately[2];
    uint64_t span_ticks; /* the time at which the present period began */
    /* If the engine's blocks have more bytes than this, a miss adds up the counts of all caches. */
    _Atomic uint64_t add_up_above;
};

/* ---- the caches of streams ---- */

/* Set in keys that are made from the id of a default stream.  No handle of a stream has this bit. */
#define WEIR_CACHE_BY_ID ((uint64_t)1 << 63)

static inline _Atomic(struct weir_cache *) *weir__cache_bucket(struct weir_caches *f,
                                                               uint64_t key) {
    uint32_t hash = (uint32_t)key * UINT32_C(0x9E3779B1) / (UINT32_MAX / WEIR_CACHE_BUCKETS + 1);

    return &f->bucket[hash + (key & WEIR_CACHE_BY_ID ? WEIR_CACHE_BUCKETS : 0)];
}

/* Returns the cache with this key, or NULL if there is none or the key is 0.  Another thread may have changed the key
 * of a default stream's cache by now, which is_its() checks under the cache's lock. */
static inline __attribute__((always_inline)) struct weir_cache *
weir__cache_find(struct weir_caches *f, uint64_t key) {
    struct weir_cache *c = NULL;

    if (__builtin_expect(key != 0, 1))
        c = atomic_load_explicit(weir__cache_bucket(f, key), memory_order_acquire);
    while (__builtin_expect(c && atomic_load_explicit(&c->key, memory_order_relaxed) != key, 0))
        c = atomic_load_explicit(&c->after, memory_order_acquire);
    return c;
}

/* ---- the cache of a stream ------------------------------------------------------------------------ */

/* Returns the key of a stream: the handle of a created stream, or the id of a default stream with the bit BY_ID.
 * Returns 0 for a default stream without an id. */
static inline uint64_t key_of(weir_stream stream, uint64_t id) {
    uint64_t handle = (uintptr_t)stream;

    if (handle > WEIR_STREAM_PER_THREAD_VALUE)
        return handle;
    return id ? id | WEIR_CACHE_BY_ID : 0;
}

static inline int is_default(weir_stream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* Returns 1 if the program or the adapter vouches for the stream, so that weir need not query the driver; else 0.
 * weir queries the id of a default stream in both cases. */
static inline int is_vouched_for(const struct weir_caches *f, const struct weir_cache *c,
                                 weir_stream stream) {
    return atomic_load_explicit(&c->trusted, memory_order_relaxed) > 0 ||
           (!f->checks && !is_default(stream));
}

/* Queries the driver for the stream's id.  Returns 1 on success, 0 if the stream is being captured or a query fails. */
static inline int ask(struct weir_caches *f, weir_stream stream, unsigned long long *id) {
    const struct weir_driver *driver = f->device->driver;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;

    return driver->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
           capture == CU_STREAM_CAPTURE_STATUS_NONE &&
           driver->cuStreamGetId(stream, id) == CUDA_SUCCESS;
}

/* Returns the cache of a stream, or NULL.  For a default stream, sets *id, and queries the driver if weir does not
 * know the id.  If the thread has no context, makes the device's context current for the query and sets *lent, which
 * the caller passes to weir__device_end_context().  For other streams *id and *lent are unchanged. */
static inline __attribute__((always_inline)) struct weir_cache *
find_cache(struct weir_caches *f, weir_stream stream, unsigned long long *id, int *lent) {
    uint64_t key = key_of(stream, 0); /* a default stream has no key before its id is known */

    if (key)
        return weir__cache_find(f, key);
    *lent = weir__device_lacks_context && weir__device_lend_context(f->device);
    if (!weir__device_default_id(f->device, stream, id)) {
        if (!ask(f, stream, id))
            return NULL;
        if (atomic_load_explicit(&f->device->watches, memory_order_relaxed))
            weir__device_note_default_id(f->device, stream, *id);
    }
    return weir__cache_find(f, key_of(stream, *id));
}

/* Returns 1 if a cache that serves a stream serves the stream with this id, else 0.  `id` is 0 for a created stream
 * whose id was not queried, because the program vouches for the stream or a free needs only the handle.  The caller
 * holds the cache's lock.  A call that takes the lock again checks this again, since another thread may have given the
 * cache to another stream meanwhile. */
static inline int is_its(const struct weir_cache *c, uint64_t id) {
    return (id == 0 || atomic_load_explicit(&c->id, memory_order_relaxed) == id);
}

static inline void count_hit(struct weir_cache *c) {
    uint64_t hits = atomic_load_explicit(&c->hits, memory_order_relaxed) + 1;

    atomic_store_explicit(&c->hits, hits, memory_order_relaxed);
    if (hits % WEIR_CACHE_LOOK == 0)
        weir__cache_due(c);
}

/* Allocates a block from the cache, its remote-free queue or its inbox.  Returns 0 if there is no block, if the cache
 * has deferred work, or if the cache now serves another stream.  The caller holds the cache's lock. */
static inline __attribute__((always_inline)) CUdeviceptr take_cached(struct weir_cache *c,
                                                                     uint64_t id, size_t bytes) {
    CUdeviceptr block = 0;

    if (bytes > WEIR_SLAB_SMALL) {
        if (c->inbox && c->is_ready && is_its(c, id))
            block = weir__cache_take_whole(c, bytes);
        if (block)
            count_hit(c);
        return block;
    }
    for (int collected = 0;; collected = 1) {
        if (c->is_ready && is_its(c, id)) {
            block = weir__cache_take_home(c, bytes);
            if (!block)
                block = weir__cache_take_further(c, bytes);
        }
        if (__builtin_expect(block != 0, 1)) {
            count_hit(c);
            return block;
        }
        if (collected || !c->serves || !weir__cache_has_post(c, bytes))
            return 0;
        weir__cache_collect(c);
    }
}

/* Frees a slot into the cache if the lock is biased to this thread, the cache has no deferred work, and the cache still
 * serves the stream `id`.  Returns 1 on success, 0 if nothing has changed. */
static inline __attribute__((always_inline)) int
free_cached(struct weir_cache *c, uint64_t id, struct weir_slab *s, CUdeviceptr block) {
    int done;

    if (__builtin_expect(!weir__bias_try_at(&c->lock, WEIR_BIAS_INNER), 0))
        return 0;
    done = c->is_ready && is_its(c, id) && weir__cache_put_plain(c, s, block);
    weir__bias_give(&c->lock, 1);
    return done;
}

/* ---- all caches ---- */

/* Returns 1 if there is a release threshold, else 0. */
static inline int has_threshold(const struct weir_caches *f) {
    return f->engine->threshold < f->device->total;
}

/* Returns the bytes of all live blocks of the engine. */
static inline uint64_t weir__caches_in_blocks(const struct weir_caches *f) {
    return atomic_load_explicit(f->is_straight ? &f->taken : &f->engine->seen.in_use,
                                memory_order_relaxed);
}

/* Subtracts a freed block from `taken`, for an engine with is_straight. */
static inline void count_given(struct weir_caches *f, size_t bytes) {
    atomic_fetch_sub_explicit(&f->taken, bytes, memory_order_relaxed);
}

static inline void count(struct weir_caches *f, int counter) {
    weir__striped_add(&f->v->events.counters->striped, counter);
}

/* ---- cache_requests.c ---- */

/* Serves a request that missed in the stream's cache.  r->id is the stream's id, or 0 if the program vouches for the
 * stream.  `taken` is the state of the cache's lock, which the caller holds and this function releases.  `c` is NULL
 * if the stream has no cache, or if its id could not be queried. */
weir_status weir__caches_miss(struct weir_caches *f, struct weir_cache *c, int taken,
                              struct weir_request *r);

/* Frees a block as weir_free does, without checks of the call.  `s` is the block's record or NULL, and `uses` lists the
 * uses on other streams or is NULL.  Restores the thread's last driver result on success, since weir_free ends with
 * this function. */
weir_status weir__caches_free(struct weir_caches *f, struct weir_slab *s, CUdeviceptr block,
                              weir_stream stream, struct weir_use_list *uses);
/* Returns slabs and whole blocks to the engine as freed on the stream `id`, and updates the room of the cache `c` of
 * that stream, or NULL.  The caller holds no lock of a cache.  Returns 1 if an event is due on that stream, else 0. */
int weir__caches_give(struct weir_caches *f, struct weir_slab *spans, uint64_t id,
                      struct weir_cache *c);
/* Frees blocks of an engine with is_straight on `stream`, whose id is `id`, or at once if `id` is OBSERVED.  Strands
 * the blocks that the driver refuses to free.  The caller holds `lock`, which is released meanwhile. */
void weir__caches_end(struct weir_caches *f, struct weir_slab *blocks, uint64_t id,
                      weir_stream stream);

/* ---- caches.c ---- */

/* Queries a stream's id.  Checks that the stream belongs to this device, unless its cache has that id already. */
weir_status weir__caches_identify(struct weir_caches *f, weir_stream stream, uint64_t *id);
/* Queries the capture status and the id of a stream, in a call on the stream, and finds its cache.  Sets *c to NULL if
 * no cache serves the stream, and counts the call: a stream gets a cache after some calls.  Returns E_CAPTURE if the
 * stream is being captured.  Then *id is unchanged, and *c is the cache with that handle, or NULL. */
weir_status weir__caches_visit(struct weir_caches *f, weir_stream stream, uint64_t *id,
                               struct weir_cache **c);
/* Does the deferred work of the cache in a call on the stream, whose id is `id`. */
void weir__caches_catch_up(struct weir_caches *f, struct weir_cache *c, weir_stream stream,
                           uint64_t id);
/* Puts a slot into the free list of its slab, after the last use of the slot on every stream.  The caller holds `lock`.
 */
void weir__caches_bring_home(struct weir_caches *f, const struct weir_remote_slot *remote);
/* Keeps memory until the next wait for the device, since no event covers it.  The caller holds `lock`. */
void weir__caches_strand(struct weir_caches *f, struct weir_slab *spans,
                         struct weir_remote_slots *remotes);
/* Queries the next few deferred batches, so that no call queries all of them.  The caller holds `lock`. */
static inline void complete_some(struct weir_caches *f) {
    (void)weir__order_complete(&f->order, 8);
}
/* Adds up the counts of all caches and raises the peaks, since the engine's blocks have grown above add_up_above. */
void weir__caches_note_peak(struct weir_caches *f);

#endif
