/* SPDX-License-Identifier: MIT */
/* caches_state.h: the caches of all streams of one allocator, for the files that implement caches.h, and for request.c,
 * which inlines hit.h.
 *
 * Locks: `flushing` is held for one flush of all caches, and comes before all other locks.  `lock` guards writes of the
 * buckets of caches, and the order of deferred batches.  Under it the engine's lock may be taken, or the records', or a
 * cache's, one at a time; under a cache's lock that of its remote-free queue.  Hits take the cache's lock only.
 *
 * This file must not know the public API, settings' names or how an engine places blocks.
 */
#ifndef WEIR_CACHES_STATE_H
#define WEIR_CACHES_STATE_H

#include "cache/hit.h"

#include <pthread.h>

#include "base/bounds.h"
#include "base/counters.h"
#include "engine/stream_order.h"

struct weir_caches {
    struct weir_hits hits;
    struct weir_reserve *v;
    struct weir_engine *engine; /* the engine of `v` */
    /* Set if the driver orders the reuse of the engine's blocks.  Caches then keep slabs, but no whole blocks. */
    int is_straight;
    /* The time after which a cache returns unused memory, or UINT64_MAX for never. */
    uint64_t idle_ns;

    _Alignas(64) struct weir_records records;
    _Atomic uint64_t largest; /* the bytes of the largest whole block so far */
    _Atomic uint64_t taken;   /* with is_straight: the bytes of all blocks from the engine */

    pthread_mutex_t flushing;  /* see weir__caches_empty */
    pthread_mutex_t lock;      /* guards the fields below */
    struct weir_cache *caches; /* all caches */
    struct weir_cache *loose;  /* the cache that counts the blocks that no other cache counts */
    size_t default_streams;    /* caches that are found by id, without bound ones */
    size_t cached;             /* caches that have served a stream */
    struct weir_order order;   /* defers the return of batches of remote frees */
    struct weir_remote_slots *unfenced; /* a batch that only a wait for the device completes */
    /* During a flush of all caches: gets the slabs that become empty, which leave their caches.  Else NULL. */
    struct weir_flushed *emptied;
    /* With is_straight: freed blocks that only a wait for the device completes.  The driver still counts them as live. */
    struct weir_slab *waiting;
    /* The bytes of slots, and of waiting blocks, that only a wait for the device completes. */
    _Atomic size_t stranded;
    size_t host_bytes;
    uint64_t requested_peak, in_use_peak;
    uint64_t requested_lately; /* the peak of weir__caches_peak_lately */
    /* The peak of the engine's blocks in this span of idle_ns, and in the span before. */
    uint64_t lately[2];
    uint64_t span_ticks; /* the time at which this span began */
    /* A miss adds up the sums if the engine's blocks have more bytes than this. */
    _Atomic uint64_t add_up_above;
};

/* Returns 1 if there is a release threshold, else 0. */
static inline int has_threshold(const struct weir_caches *f) {
    return f->engine->threshold < f->hits.device->total;
}

/* Returns the bytes of the engine's blocks. */
static inline uint64_t weir__caches_in_blocks(const struct weir_caches *f) {
    return atomic_load_explicit(f->is_straight ? &f->taken : &f->engine->seen.in_use,
                                memory_order_relaxed);
}

/* Counts a block that an engine with is_straight has freed. */
static inline void count_given(struct weir_caches *f, size_t bytes) {
    atomic_fetch_sub_explicit(&f->taken, bytes, memory_order_relaxed);
}

static inline void count(struct weir_caches *f, int counter) {
    weir__striped_add(&f->v->events.counters->striped, counter);
}

/* ---- streams: cache_streams.c ---- */

/* Makes a cache that has no key yet.  Returns NULL if there is no host memory.  The caller holds `lock`. */
struct weir_cache *weir__caches_make(struct weir_caches *f);
/* Records that the adapter no longer sees the stream's captures and end. */
void weir__caches_unwatch(struct weir_cache *c);
/* Ends a use of the cache over several holds of its lock.  `c` may be NULL. */
void weir__caches_unpin(struct weir_cache *c);
/* Queries a stream's id.  Checks that the stream belongs to this device, unless its cache has that id already. */
weir_status weir__caches_identify(struct weir_caches *f, weir_stream stream, uint64_t *id);
/* Pins and returns the cache of a stream that is not captured and has that id, in a call on the stream, or NULL if no
 * cache serves it.  Counts the calls of streams that have no cache yet. */
struct weir_cache *weir__caches_visit(struct weir_caches *f, weir_stream stream, uint64_t id);
/* Returns the cache of a stream that is being captured, in a call on the stream.  Returns NULL for a default stream, whose
 * id cannot be queried now. */
struct weir_cache *weir__caches_visit_captured(struct weir_caches *f, weir_stream stream);

/* ---- blocks that go to the engine: cache_alloc.c ---- */

/* Gives spans to the engine as freed on the stream `id`, and updates the room of that stream's cache, unless the cache is
 * NULL.  The caller holds no lock of a cache.  Returns 1 if an event is due on that stream, else 0. */
int weir__caches_give(struct weir_caches *f, struct weir_slab *spans, uint64_t id,
                      struct weir_cache *c);

/* Frees blocks of an engine with is_straight on `stream`, which has that id, or at once with OBSERVED.  Blocks whose free
 * the driver refuses wait for a wait for the device.  The caller holds `lock`, which the function releases meanwhile. */
void weir__caches_end(struct weir_caches *f, struct weir_slab *blocks, uint64_t id,
                      weir_stream stream);

/* ---- flushing: cache_flush.c ---- */

/* Flushes all idle memory of the cache, in a call on its stream. */
void weir__caches_give_all(struct weir_caches *f, struct weir_cache *c, weir_stream stream);
/* Does the work that hits on the cache's stream put off, in a call on that stream. */
void weir__caches_catch_up(struct weir_caches *f, struct weir_cache *c, weir_stream stream);
/* Flushes the cache and detaches it from its stream.  `id` is UNKNOWN if the stream of its idle blocks is no longer
 * known, else the stream's id.  The caller holds `lock`. */
void weir__caches_retire(struct weir_caches *f, struct weir_cache *c, uint64_t id);

/* Returns a slot to its slab after its last use on every stream.  If the slab has become empty, removes it from its
 * cache, unless `emptied` is NULL.  The caller holds `lock`. */
void weir__caches_bring_home(struct weir_caches *f, const struct weir_remote_slot *remote,
                             struct weir_flushed *emptied);
/* Returns the slots of a batch to their slabs, after their last use on every stream.  The caller holds `lock`. */
void weir__caches_return(void *caches, uintptr_t remotes);
/* Keeps a batch until the next wait for the device, since no event covers the batch.  The caller holds `lock`. */
void weir__caches_strand(struct weir_caches *f, struct weir_remote_slots *remotes);
/* Queries the next few deferred batches, so that no call queries all of them.  The caller holds `lock`. */
static inline void complete_some(struct weir_caches *f) {
    (void)weir__order_complete(&f->order, 8);
}

/* Lowers the cap of each cache to its part, since one more cache keeps memory now.  The caller holds `lock`. */
void weir__caches_lower_caps(struct weir_caches *f);
/* Sets the cache's cap.  The caller holds `lock`. */
void weir__caches_set_cap(struct weir_caches *f, struct weir_cache *c);

/* ---- statistics: caches.c ---- */

/* Adds up the caches' sums after a miss, since the engine's blocks have grown above add_up_above. */
void weir__caches_note_peak(struct weir_caches *f);

#endif
