/* SPDX-License-Identifier: MIT */
/* caches_state.h: the caches of all streams of one allocator, for the files of caches.h.
 *
 * caches.c begins and ends the caches; cache_streams.c finds and makes the cache of a stream; cache_alloc.c serves the
 * requests that hit.h does not serve; cache_free.c frees blocks; cache_remote.c brings slots home that were freed on other streams;
 * cache_flush.c gives idle memory back to the engine; cache_share.c says how much each cache may keep; cache_blocks.c
 * finds live blocks; cache_stats.c makes the figures.
 *
 * Locks: `lock` guards the table's writers and the batches.  Under it the engine's own may be taken, the records', or a
 * cache's.  None of those is taken under another, but a remote-free queue's under its cache's.  Hits take the cache's alone.
 *
 * Must not know: the public API, settings' names, how an engine places blocks.
 */
#ifndef WEIR_CACHES_STATE_H
#define WEIR_CACHES_STATE_H

#include "cache/hit.h"

#include <pthread.h>

#include "base/counters.h"
#include "base/striped_counter.h"
#include "cache/slab_table.h"
#include "engine/stream_order.h"

struct weir_caches {
    struct weir_hits hits; /* first: see weir__hits_of */
    struct weir_reserve *v;
    struct weir_engine *engine; /* v's */
    struct weir_pagemap pages;
    int sheds; /* there is a release threshold: what goes back is seen to at once */
    /* Set if no other stream could use a free before the stream's next request, and no caller waits for reserved
     * memory to fall. */
    _Atomic int alone;
    _Atomic int
        past; /* a block went past the caches, and the loose cache counts the block as handed out no more */
    /* The time after which a cache returns memory that its stream does not use; UINT64_MAX: never. */
    uint64_t idle_ns;

    /* Requests that the engine served since one did not fit. */
    _Alignas(64) _Atomic uint64_t steady;
    struct weir_records records;

    pthread_mutex_t lock;      /* guards what follows */
    struct weir_cache *caches; /* all of them */
    struct weir_cache *loose;  /* the cache that counts the blocks that no other cache counts */
    size_t streams;            /* caches that have or had a key */
    size_t default_streams;    /* caches that are found by id, without bound ones */
    size_t cached;             /* caches that have a store */
    struct weir_order order;   /* for fences alone */
    struct weir_remote_slots *batches; /* batches behind fences; the last ones were queried last */
    struct weir_remote_slots **batches_end;
    struct weir_remote_slots *unfenced; /* batches that only a wait for the device brings home */
    _Atomic size_t stranded;            /* the bytes of their slots */
    _Atomic size_t sent; /* the number of batches behind fences; read without the lock */
    size_t host_bytes;
    int64_t requested, in_use; /* sums of the caches' reports */
    uint64_t requested_peak, in_use_peak;
    uint64_t requested_lately; /* the former since weir__caches_renew_peak */
    /* The peak of the engine's blocks when all caches reported last. */
    _Atomic uint64_t told_out;
    uint64_t lately[2];  /* the most in use in this span of idle_ns, and in the one before */
    uint64_t span_ticks; /* when this one began */
};

/* ---- whose cache ---- */

static inline struct weir_cache_table *table_of(struct weir_caches *f, uint64_t key) {
    return key & 1 ? &f->hits.by_id : &f->hits.by_handle;
}

/* The cache of a key, or NULL; 0 is nobody's.  That of an id may belong to another by now, which its user checks under
 * the cache's lock. */
static inline struct weir_cache *cache_of(struct weir_caches *f, uint64_t key) {
    struct weir_cache *c;

    return key && weir__cache_table_find(table_of(f, key), key, &c) ? c : NULL;
}

/* The cache by which a call on the stream goes, if there is one; a default stream's id is asked. */
static inline struct weir_cache *find(struct weir_caches *f, weir_stream stream, uint64_t *key,
                                      unsigned long long *id) {
    *id = 0;
    if (is_default(stream) && !weir__device_default_id(f->hits.device, stream, id)) {
        if (!ask(&f->hits, stream, id))
            return NULL;
        weir__device_note_default_id(f->hits.device, stream, *id);
    }
    *key = key_of(stream, *id);
    return cache_of(f, *key);
}

/* A default stream, on a thread that was seen without a context. */
static inline int may_lack_context(weir_stream stream) {
    return is_default(stream) && weir__device_lacks_context;
}

/* ---- what all read ---- */

static inline int is_alone(const struct weir_caches *f) {
    return atomic_load_explicit(&f->alone, memory_order_relaxed);
}

/* Requests that the engine served without growing or moving anything: from then on whole blocks are kept. */
enum { WEIR_CACHES_STEADY = 1024 };

static inline int is_steady(const struct weir_caches *f) {
    return atomic_load_explicit(&f->steady, memory_order_relaxed) >= WEIR_CACHES_STEADY;
}

/* Returns a sum, or 0 for a negative one.  A sum is negative if a cache has not reported a block whose free another
 * cache has reported. */
static inline uint64_t at_least_none(int64_t sum) {
    return sum < 0 ? 0 : (uint64_t)sum;
}

static inline void count(struct weir_caches *f, int counter) {
    weir__striped_add(&f->v->events.counters->striped, counter);
}

void weir__caches_unwatch(struct weir_cache *c);

/* ---- streams: cache_streams.c ---- */

struct weir_cache *weir__caches_make(struct weir_caches *f);
/* A call that works with a cache beyond one hold of its lock keeps it from being given to another
 * stream. */
void weir__caches_pin(struct weir_cache *c);
void weir__caches_unpin(struct weir_cache *c);
/* Pins and returns the cache of a stream whose id was just asked.  NULL: no cache serves the stream. */
struct weir_cache *weir__caches_pin_of(struct weir_caches *f, weir_stream stream, uint64_t id);
/* The id of a stream, which is this device's: a cache that knows it has seen that. */
weir_status weir__caches_identify(struct weir_caches *f, weir_stream stream, uint64_t *id);
/* Returns the cache of a stream that is not captured and has that id, in a call on the stream, or NULL if no cache
 * serves it.  Counts the calls of young streams.  With `pins` the cache is pinned; without `pins` the result is NULL.
 */
struct weir_cache *weir__caches_visit(struct weir_caches *f, weir_stream stream, uint64_t id,
                                      int pins);
/* In a call on a stream that is being captured (`id`: a default stream's): its cache, if it has one. */
struct weir_cache *weir__caches_visit_captured(struct weir_caches *f, weir_stream stream,
                                               uint64_t id);

/* ---- back to the engine: cache_flush.c ---- */

/* A flush of `c` in a call on its stream that the driver has vouched for: spans go back as freed on
 * it, remote frees behind an event there. */
void weir__caches_deliver(struct weir_caches *f, struct weir_cache *c, weir_stream stream,
                          struct weir_flushed *h);
/* Looks after a cache whose turn it is, in a call on its stream that the driver has vouched for. */
void weir__caches_look_after(struct weir_caches *f, struct weir_cache *c, weir_stream stream);
/* Gives all memory of the cache to the engine, in such a call.  Returns 1 if there was any. */
int weir__caches_give_all(struct weir_caches *f, struct weir_cache *c, weir_stream stream);
/* Does the work that was put off while the cache's stream only hit, in a call that the driver has vouched for. */
void weir__caches_catch_up(struct weir_caches *f, struct weir_cache *c, weir_stream stream);
/* Nobody knows any more on which stream the idle blocks of the cache were freed (`id` UNKNOWN), or it is
 * to make room (its id).  The caller holds `lock`. */
void weir__caches_retire(struct weir_caches *f, struct weir_cache *c, uint64_t id);

/* ---- remote frees: cache_remote.c ---- */

/* Gives idle spans back under a stream's id, or what else `give` takes.  1 if `tend` has to do. */
int weir__caches_give(struct weir_caches *f, struct weir_slab *spans, uint64_t id);
/* A slot whose last use is over everywhere comes home; the caller holds `lock`. */
void weir__caches_bring_home(struct weir_caches *f, const struct weir_remote_slot *remote);
/* Slots that are free for all; the caller holds `lock`. */
void weir__caches_bring_all_home(struct weir_caches *f, struct weir_remote_slots *remotes);
/* Brings home what has completed of the next few batches, so that no call asks about all of them, nor about
 * one twice; the caller holds `lock`. */
void weir__caches_settle_some(struct weir_caches *f);
/* Sends slots home, behind `fence` (NULL: a wait for the device); the caller holds `lock`. */
void weir__caches_send_home(struct weir_caches *f, struct weir_remote_slots *remotes,
                            struct weir_fence *fence);
/* Takes all batches out of their lists; the caller holds `lock`. */
struct weir_remote_slots *weir__caches_take_batches(struct weir_caches *f);
/* And back: they have all arrived, since the device was waited for, or are queued again; the caller holds `lock`. */
void weir__caches_return_batches(struct weir_caches *f, struct weir_remote_slots *batches,
                                 int arrived);

/* ---- sums and shares: cache_share.c ---- */

/* Adds a cache's blocks to the sums; the caller holds `lock`. */
void weir__caches_tell_sums(struct weir_caches *f, struct weir_cache *c);
/* Adds a cache's blocks to the sums, and sets how much the cache may keep. */
void weir__caches_tell(struct weir_caches *f, struct weir_cache *c);
/* Callers cannot have more than the engine's blocks hold.  Those hold more than ever now, so the callers' peak may
 * rise: all caches are asked. */
void weir__caches_tell_all(struct weir_caches *f, struct weir_cache *c, uint64_t out);
/* Programs read and reset the peak of the driver's pools.  Where weir stands in for such a pool, the peak is updated
 * more often. */
void weir__caches_tell_own(struct weir_caches *f, struct weir_cache *c);
/* Lowers how much each cache may keep, since one more cache has a store.  The caller holds `lock`. */
void weir__caches_lower_shares(struct weir_caches *f);
/* `cache_idle' has gone by since then.  Another thread may have written `then' after this one read its `now'. */
int weir__caches_is_over(const struct weir_caches *f, uint64_t then, uint64_t now);
/* Forgets the peak before the last span of time; the caller holds `lock`. */
void weir__caches_age(struct weir_caches *f, uint64_t now);

/* ---- live blocks: cache_blocks.c ---- */

/* A live block starts at `address`; its bytes as asked and as handed out. */
int weir__slab_has_live(const struct weir_slab *s, uint64_t address, int64_t *requested,
                        int64_t *in_use);

#endif
