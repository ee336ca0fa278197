/* SPDX-License-Identifier: MIT */
/* hit.h: what a request does that finds a block in its stream's cache, inlined into weir_alloc.
 *
 * So most hits call nothing in cache_alloc.c.  After a miss the including file calls weir__caches_miss or weir__caches_alloc,
 * and gets the status.
 *
 * Must not know: engines, what a miss leads to.
 */
#ifndef WEIR_HIT_H
#define WEIR_HIT_H

#include "cache/caches.h"
#include "cache/stream_cache_hit.h"
#include "cache/stream_table.h"

/* What a hit reads beside the stream's cache.  The caches begin with it. */
struct weir_hits {
    struct weir_device *device;
    struct weir_cache_table by_handle; /* caches of created streams, which keep their keys, */
    struct weir_cache_table by_id;     /* and of default streams */
    _Atomic uint64_t reclaim_epoch;    /* rises when a request did not fit; read by every request */
    int checks;                        /* options.stream_checks */
};

static inline struct weir_hits *weir__hits_of(struct weir_caches *caches) {
    return (struct weir_hits *)caches;
}

/* ---- whose cache -------------------------------------------------------------------------------- */

/* Odd: a stream by its id; even: by its handle, an address; 0: neither will do. */
static inline uint64_t key_of(weir_stream stream, uint64_t id) {
    uint64_t handle = (uintptr_t)stream;

    if (handle > WEIR_STREAM_PER_THREAD_VALUE)
        return handle & 1 ? 0 : handle; /* unreached: odd, which no driver's are */
    return id << 1 | (id != 0);
}

static inline int is_default(weir_stream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* The driver need not be asked about the stream, but for a default stream's id. */
static inline int is_vouched_for(const struct weir_hits *h, const struct weir_cache *c,
                                 weir_stream stream) {
    return atomic_load_explicit(&c->trusted, memory_order_relaxed) > 0 ||
           (!h->checks && !is_default(stream));
}

/* Asks the driver: 1 if the stream is not being captured, and its id. */
static inline int ask(struct weir_hits *h, weir_stream stream, unsigned long long *id) {
    const struct weir_driver *driver = h->device->driver;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;

    return driver->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
           capture == CU_STREAM_CAPTURE_STATUS_NONE &&
           driver->cuStreamGetId(stream, id) == CUDA_SUCCESS;
}

/* 1 and the cache of a created stream, or 0: NULL stands for no key, and other default streams have
 * none. */
static inline __attribute__((always_inline)) int
find_by_handle(struct weir_hits *h, weir_stream stream, struct weir_cache **cache) {
    return stream && weir__cache_table_find(&h->by_handle, (uintptr_t)stream, cache);
}

/* Likewise of a default stream, with its key, where the driver need not be asked about it.  The cache may be another's by
 * now: `is_its' tells, under its lock. */
static inline int find_by_default(struct weir_hits *h, weir_stream stream,
                                  struct weir_cache **cache, uint64_t *key) {
    unsigned long long id;

    if (!is_default(stream) || !weir__device_default_id(h->device, stream, &id))
        return 0;
    *key = key_of(stream, id);
    return weir__cache_table_find(&h->by_id, *key, cache);
}

/* ---- hits -------------------------------------------------------------------------------------- */

/* The cache is still the one of this key, and of this id; 0: the driver was not asked, as the program
 * vouches for the stream, or a free goes by its handle.  The caller holds the cache's lock. */
static inline int is_its(const struct weir_cache *c, uint64_t key, uint64_t id) {
    /* unreached: another key, which another thread must give it between the look-up and the lock */
    return atomic_load_explicit(&c->key, memory_order_relaxed) == key &&
           (id == 0 || atomic_load_explicit(&c->id, memory_order_relaxed) == id);
}

static inline __attribute__((always_inline)) CUdeviceptr take_any(struct weir_cache *c,
                                                                  size_t bytes) {
    CUdeviceptr block;

    if (bytes > WEIR_SLAB_SMALL) /* unreached: whole ones in copies that serve small requests, */
        return weir__cache_take_whole(c, bytes);
    block = weir__cache_take_home(c, bytes);
    /* unreached: and what these ask the remote-free queue for in one that serves whole ones */
    return block ? block : weir__cache_take_further(c, bytes);
}

/* There is nothing to catch up with.  The caller holds the cache's lock. */
static inline int is_ready(const struct weir_hits *h, const struct weir_cache *c) {
    return c->pass == atomic_load_explicit(&h->reclaim_epoch, memory_order_relaxed);
}

static inline void count_hit(struct weir_cache *c) {
    uint64_t hits = atomic_load_explicit(&c->hits, memory_order_relaxed) + 1;

    atomic_store_explicit(&c->hits, hits, memory_order_relaxed);
    if (hits % WEIR_CACHE_LOOK == 0)
        weir__cache_due(c);
}

/* A hit, or 0: there is nothing, or something to catch up with.  Likewise. */
static inline __attribute__((always_inline)) CUdeviceptr
hit(const struct weir_hits *h, struct weir_cache *c, uint64_t key, uint64_t id, size_t bytes) {
    /* unreached: it is not the stream's, or not ready, in copies that look again under the same lock */
    CUdeviceptr block = is_ready(h, c) && is_its(c, key, id) ? take_any(c, bytes) : 0;

    if (block) /* unreached: none, or one, in copies that look again: the remote-free queue had it, or not */
        count_hit(c);
    return block;
}

/* The same, of what lies in the remote-free queue too. */
static inline __attribute__((always_inline)) CUdeviceptr take_cached(const struct weir_hits *h,
                                                                     struct weir_cache *c,
                                                                     uint64_t key, uint64_t id,
                                                                     size_t bytes) {
    CUdeviceptr block = hit(h, c, key, id, bytes);

    /* unreached: it serves nobody, in a copy for caches that were just visited */
    if (!block && c->serves && weir__cache_has_post(c, bytes)) {
        weir__cache_collect(c);
        block = hit(h, c, key, id, bytes);
    }
    return block;
}

/* Takes the lock of a cache that is biased to this thread and has nothing to catch up with: 1, or 0 at once. */
static inline __attribute__((always_inline)) int enter_at_once(const struct weir_hits *h,
                                                               struct weir_cache *c) {
    if (__builtin_expect(!weir__bias_try(&c->lock), 0))
        return 0;
    if (__builtin_expect(is_ready(h, c), 1))
        return 1;
    weir__bias_leave();
    return 0;
}

/* Gives it back, with the block that was found there: that, or 0: none was. */
static inline __attribute__((always_inline)) CUdeviceptr leave_with(struct weir_cache *c,
                                                                    CUdeviceptr found) {
    if (__builtin_expect(found != 0, 1)) /* unreached: none in the copy that has found one */
        count_hit(c);
    weir__bias_leave();
    return found;
}

/* ---- misses: cache_alloc.c --------------------------------------------------------------------------- */

/* For a stream that has a cache, which the driver has named (r->id) or the program vouches for (0), where `take` found
 * nothing; as weir__caches_alloc.  The caller has taken the cache's lock (`taken`), which is given back. */
weir_status weir__caches_miss(struct weir_caches *f, struct weir_cache *c, int taken, uint64_t key,
                              struct weir_request *r);

#endif
