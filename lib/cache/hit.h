/* SPDX-License-Identifier: MIT */
/* hit.h: a request that finds a block in its stream's cache, inlined into weir_alloc.
 *
 * So most hits call no function of cache_alloc.c.  After a miss the including file calls weir__caches_miss or
 * weir__caches_alloc, and passes on the status.
 *
 * This file must not know engines or the handling of misses.
 */
#ifndef WEIR_HIT_H
#define WEIR_HIT_H

#include "cache/caches.h"
#include "cache/stream_cache.h"

/* ---- the table of streams ---- */

/* Leads from a stream's key to its cache, without a lock for readers.  The table uses open addressing and is at most
 * half full.  Writers hold the caches' lock.  A table that has grown keeps the smaller one until the end, for threads
 * that still read it.  While a key is removed, a reader may miss any key, or find a cache that has another key by then.
 * So a reader checks the key under the cache's lock, and a reader that found nothing searches again under the caches'
 * lock. */
struct weir_cache_entry {
    _Atomic uint64_t key; /* 0 if the entry is free */
    _Atomic(struct weir_cache *) cache;
};

struct weir_cache_entries {
    size_t mask; /* the number of entries, which is a power of two, minus one */
    size_t keys;
    struct weir_cache_entries *older;
    struct weir_cache_entry entry[];
};

struct weir_cache_table {
    _Atomic(struct weir_cache_entries *) now;
};

static inline size_t weir__cache_table_slot(const struct weir_cache_entries *t, uint64_t key) {
    return (uint32_t)key * UINT32_C(0x9E3779B1) >> 10 & t->mask;
}

/* Finds the cache of a key that is not 0.  Returns 1 on success, else 0. */
static inline __attribute__((always_inline)) int
weir__cache_table_find(struct weir_cache_table *table, uint64_t key, struct weir_cache **cache) {
    const struct weir_cache_entries *t = atomic_load_explicit(&table->now, memory_order_acquire);
    size_t i = weir__cache_table_slot(t, key);
    uint64_t found;

    while (__builtin_expect(
        (found = atomic_load_explicit(&t->entry[i].key, memory_order_acquire)) != key, 0)) {
        if (found == 0)
            return 0;
        i = (i + 1) & t->mask;
    }
    *cache = atomic_load_explicit(&t->entry[i].cache, memory_order_acquire);
    return 1;
}

/* The fields that a hit reads beside the stream's cache.  `struct weir_caches` begins with them. */
struct weir_hits {
    struct weir_device *device;
    /* Finds caches of created streams by handle; their keys never change. */
    struct weir_cache_table by_handle;
    struct weir_cache_table by_id; /* finds caches of default streams by id */
    /* Rises when the engine cannot serve a request; read by every request. */
    _Atomic uint64_t reclaim_epoch;
    int checks; /* nonzero if options.stream_checks is on */
};

static inline struct weir_hits *weir__hits_of(struct weir_caches *caches) {
    return (struct weir_hits *)caches;
}

/* ---- the cache of a stream ------------------------------------------------------------------------ */

/* Returns a stream's key: an odd one by a default stream's id, an even one by a created stream's handle, or 0 for
 * none. */
static inline uint64_t key_of(weir_stream stream, uint64_t id) {
    uint64_t handle = (uintptr_t)stream;

    if (handle > WEIR_STREAM_PER_THREAD_VALUE)
        return handle & 1 ? 0 : handle; /* unreached: an odd handle, which no driver makes */
    return id << 1 | (id != 0);
}

static inline int is_default(weir_stream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* Returns 1 if the program or the adapter vouches for the stream, so that weir need not query the driver; else 0.  The
 * id of a default stream is queried even then. */
static inline int is_vouched_for(const struct weir_hits *h, const struct weir_cache *c,
                                 weir_stream stream) {
    return atomic_load_explicit(&c->trusted, memory_order_relaxed) > 0 ||
           (!h->checks && !is_default(stream));
}

/* Queries the driver.  Returns 1 with the id if the stream is not being captured, else 0. */
static inline int ask(struct weir_hits *h, weir_stream stream, unsigned long long *id) {
    const struct weir_driver *driver = h->device->driver;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;

    return driver->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
           capture == CU_STREAM_CAPTURE_STATUS_NONE &&
           driver->cuStreamGetId(stream, id) == CUDA_SUCCESS;
}

/* Finds the cache of a created stream.  Returns 1 on success, else 0.  NULL is a default stream, and 0 is no key; the
 * keys of other default streams are not in this table. */
static inline __attribute__((always_inline)) int
find_by_handle(struct weir_hits *h, weir_stream stream, struct weir_cache **cache) {
    return stream && weir__cache_table_find(&h->by_handle, (uintptr_t)stream, cache);
}

/* Finds the cache and the key of a default stream if its id is known without a query.  Returns 1 on success, else 0.
 * The cache may have got another key by now, which is_its() checks under the cache's lock. */
static inline int find_by_default(struct weir_hits *h, weir_stream stream,
                                  struct weir_cache **cache, uint64_t *key) {
    unsigned long long id;

    if (!is_default(stream) || !weir__device_default_id(h->device, stream, &id))
        return 0;
    *key = key_of(stream, id);
    return weir__cache_table_find(&h->by_id, *key, cache);
}

/* Returns 1 if the cache still has this key and this stream id, else 0.  The id is 0 if the driver was not queried: the
 * program vouches for the stream, or a free uses the handle alone.  The caller holds the cache's lock. */
static inline int is_its(const struct weir_cache *c, uint64_t key, uint64_t id) {
    /* unreached: another key, which another thread must write between the look-up and the lock */
    return atomic_load_explicit(&c->key, memory_order_relaxed) == key &&
           (id == 0 || atomic_load_explicit(&c->id, memory_order_relaxed) == id);
}

static inline __attribute__((always_inline)) CUdeviceptr take_any(struct weir_cache *c,
                                                                  size_t bytes) {
    CUdeviceptr block;

    /* unreached: whole blocks in copies of this function that serve small requests, */
    if (bytes > WEIR_SLAB_SMALL)
        return weir__cache_take_whole(c, bytes);
    block = weir__cache_take_home(c, bytes);
    /* unreached: and the remote-free queue in copies that serve whole blocks */
    return block ? block : weir__cache_take_further(c, bytes);
}

/* Returns 1 if the cache has no work that was put off, else 0.  The caller holds the cache's lock. */
static inline int is_ready(const struct weir_hits *h, const struct weir_cache *c) {
    return c->pass == atomic_load_explicit(&h->reclaim_epoch, memory_order_relaxed);
}

static inline void count_hit(struct weir_cache *c) {
    uint64_t hits = atomic_load_explicit(&c->hits, memory_order_relaxed) + 1;

    atomic_store_explicit(&c->hits, hits, memory_order_relaxed);
    if (hits % WEIR_CACHE_LOOK == 0)
        weir__cache_due(c);
}

/* Serves a request from the cache.  Returns the block, or 0 if there is none, if work was put off, or if the cache is
 * no longer the stream's.  The caller holds the cache's lock. */
static inline __attribute__((always_inline)) CUdeviceptr
hit(const struct weir_hits *h, struct weir_cache *c, uint64_t key, uint64_t id, size_t bytes) {
    /* unreached: the stream has lost the cache, or work was put off, in copies that search twice */
    CUdeviceptr block = is_ready(h, c) && is_its(c, key, id) ? take_any(c, bytes) : 0;

    /* unreached: no block, or a block, in copies that search again after collecting the remote-free queue */
    if (block)
        count_hit(c);
    return block;
}

/* Serves a request as hit() does, and collects the remote-free queue if the cache has no block. */
static inline __attribute__((always_inline)) CUdeviceptr take_cached(const struct weir_hits *h,
                                                                     struct weir_cache *c,
                                                                     uint64_t key, uint64_t id,
                                                                     size_t bytes) {
    CUdeviceptr block = hit(h, c, key, id, bytes);

    /* unreached: `serves` is 0, in a copy for caches that were just found */
    if (!block && c->serves && weir__cache_has_post(c, bytes)) {
        weir__cache_collect(c);
        block = hit(h, c, key, id, bytes);
    }
    return block;
}

/* Takes the lock of a cache if the lock is biased to this thread and the cache has no work that was put off.  Returns 1
 * on success, else 0; never waits. */
static inline __attribute__((always_inline)) int enter_at_once(const struct weir_hits *h,
                                                               struct weir_cache *c) {
    if (__builtin_expect(!weir__bias_try_at(&c->lock, WEIR_BIAS_INNER), 0))
        return 0;
    if (__builtin_expect(is_ready(h, c), 1))
        return 1;
    weir__bias_leave_at(WEIR_BIAS_INNER);
    return 0;
}

/* Releases the lock that enter_at_once() took, and counts a hit if a block was found.  Returns the block, or 0. */
static inline __attribute__((always_inline)) CUdeviceptr leave_with(struct weir_cache *c,
                                                                    CUdeviceptr found) {
    if (__builtin_expect(found != 0, 1)) /* unreached: no block, in the copy that has found one */
        count_hit(c);
    weir__bias_leave_at(WEIR_BIAS_INNER);
    return found;
}

/* Serves a request that missed in the stream's cache.  r->id is the stream's id, or 0 if the program vouches for the
 * stream.  The caller holds the cache's lock (`taken`), which this function releases. */
weir_status weir__caches_miss(struct weir_caches *f, struct weir_cache *c, int taken, uint64_t key,
                              struct weir_request *r);

#endif
