/* SPDX-License-Identifier: MIT */
/* cache_streams.c: finds, makes, binds and unbinds the cache of a stream.
 *
 * What: a handle identifies no stream, since the driver gives the handle of a destroyed stream to a new one.  doc/design.md
 * ("Per-stream caches") says when weir queries the id.  The caches of created streams are found by handle, those of
 * default streams by id: the handle of a default stream means another stream in another context or thread.
 *
 * Locks: the caches' lock; under it one cache's.
 *
 * This file must not know how requests and frees are served.
 */
#include "cache/caches_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "base/size.h"

enum {
    YOUNG = 64, /* calls on a stream before it gets a cache, unless it is the first stream */
    /* The most caches of unbound default streams: threads come and go, and their streams with them. */
    DEFAULT_STREAMS = 256
};

/* If streams that ended unseen leave more bytes than this to a device wait, new streams get no cache. */
#define STRANDED_MOST ((uint64_t)64 << 20)

/* ---- one stream ---- */

void weir__caches_unwatch(struct weir_cache *c) {
    atomic_fetch_and_explicit(&c->trusted, ~WEIR_CACHE_WATCHED, memory_order_relaxed);
}

weir_status weir__caches_identify(struct weir_caches *f, weir_stream stream, uint64_t *id) {
    CUresult result = weir__device_stream_id(f->hits.device, stream, id);
    const struct weir_cache *c;

    if (result != CUDA_SUCCESS)
        return weir__device_status(f->hits.device, result);
    c = weir__cache_find(&f->hits, key_of(stream, *id));
    if (c && atomic_load_explicit(&c->id, memory_order_relaxed) == *id)
        return WEIR_OK;
    return weir__device_check_stream(f->hits.device, stream);
}

/* Returns 1 if a stream of this handle ended unseen and much memory waits for a device wait for that reason, else 0.
 * More streams with a cache could leave memory without bound.  A program that ends its streams gets the old handles
 * again, so streams with other handles are not refused a cache. */
static int streams_end_unseen(const struct weir_caches *f, const struct weir_cache *c) {
    return c->is_left &&
           atomic_load_explicit(&f->stranded, memory_order_relaxed) +
                   atomic_load_explicit(&f->engine->seen.quarantined, memory_order_relaxed) >
               STRANDED_MOST;
}

struct weir_cache *weir__caches_make(struct weir_caches *f) {
    struct weir_cache *c = aligned_alloc(_Alignof(struct weir_cache), sizeof *c);

    if (!c)
        return NULL;
    memset(c, 0, sizeof *c);
    c->next = f->caches;
    f->caches = c;
    f->host_bytes += sizeof *c;
    return c;
}

/* Adds a cache to the bucket of its key. */
static void insert_cache(struct weir_caches *f, struct weir_cache *c) {
    _Atomic(struct weir_cache *) *bucket = weir__cache_bucket(&f->hits, c->key);

    atomic_store_explicit(&c->after, *bucket, memory_order_release);
    atomic_store_explicit(bucket, c, memory_order_release);
}

/* Removes a cache from the bucket of its former key. */
static void remove_cache(struct weir_caches *f, const struct weir_cache *c, uint64_t key) {
    _Atomic(struct weir_cache *) *at = weir__cache_bucket(&f->hits, key);

    while (*at != c)
        at = &(*at)->after;
    atomic_store_explicit(at, c->after, memory_order_release);
}

/* Writes the key of a cache, unless a call has pinned the cache.  Threads that found the cache without a lock check the
 * key under the cache's lock.  Returns 1 if the key was written, else 0. */
static int rename_cache(struct weir_cache *c, uint64_t key) {
    int taken = weir__bias_take(&c->lock), idle = c->pins == 0;

    if (idle)
        atomic_store_explicit(&c->key, key, memory_order_relaxed);
    weir__bias_give(&c->lock, taken);
    return idle;
}

static void pin_cache(struct weir_cache *c) {
    int taken = weir__bias_take(&c->lock);

    weir__cache_pin(c);
    weir__bias_give(&c->lock, taken);
}

void weir__caches_unpin(struct weir_cache *c) {
    int taken;

    if (!c)
        return;
    taken = weir__bias_take(&c->lock);
    c->pins--;
    weir__bias_give(&c->lock, taken);
}

/* Returns the number of calls on the cache's stream.  The caller holds `lock`. */
static uint64_t calls_of(struct weir_cache *c) {
    return atomic_load_explicit(&c->hits, memory_order_relaxed) +
           atomic_load_explicit(&c->calls, memory_order_relaxed) +
           atomic_load_explicit(&c->frees, memory_order_relaxed) + weir__cache_posted(c).count +
           c->young;
}

/* Finds the newest cache of a default stream whose call count has not changed since the last search, flushes it and
 * removes its key.  Returns NULL if there is none.  Stores the call counts of all caches for the next search. */
static struct weir_cache *take_silent(struct weir_caches *f) {
    struct weir_cache *silent = NULL;
    uint64_t key, calls;

    for (struct weir_cache *c = f->caches; c; c = c->next) {
        if (!(c->key & WEIR_CACHE_BY_ID) || atomic_load_explicit(&c->trusted, memory_order_relaxed))
            continue;
        calls = calls_of(c);
        if (calls == c->swept && !silent)
            silent = c;
        c->swept = calls;
    }
    key = silent ? atomic_load_explicit(&silent->key, memory_order_relaxed) : 0;
    if (!silent || !rename_cache(silent, 0))
        return NULL;
    remove_cache(f, silent, key);
    weir__caches_retire(f, silent, atomic_load_explicit(&silent->id, memory_order_relaxed));
    return silent;
}

/* Returns the cache of a stream whose id was just queried, and makes it if there is none.  Returns NULL if there is no
 * host memory, or if too many default streams that weir_bind has not bound have caches.  The caller holds `lock`. */
static struct weir_cache *cache_at(struct weir_caches *f, weir_stream stream, uint64_t id,
                                   int to_bind) {
    uint64_t key = key_of(stream, id);
    struct weir_cache *c = weir__cache_find(&f->hits, key);
    int by_id = is_default(stream), full = by_id && f->default_streams >= DEFAULT_STREAMS;

    if (c && !c->serves && c->young_id != id) { /* frees under captures of another stream */
        struct weir_flushed h = {0};
        int taken = weir__bias_take(&c->lock);

        weir__cache_drop_inbox(c, &h);
        weir__bias_give(&c->lock, taken);
        weir__caches_give(f, h.spans, WEIR_ENGINE_UNKNOWN, NULL);
    }
    if (c || !key) /* unreached: no key, since the id is known */
        return c;
    if (full)
        c = take_silent(f);
    if (!c && (!full || to_bind)) {
        c = weir__caches_make(f);
        f->default_streams += c && by_id;
    }
    if (c) {
        (void)rename_cache(c, key); /* the cache has no key now, so no call has pinned it */
        insert_cache(f, c);
    }
    return c;
}

/* Makes the cache serve the stream, in a call on that stream.  The caller holds `lock`. */
static void mature(struct weir_caches *f, struct weir_cache *c, uint64_t id) {
    int is_first = atomic_load_explicit(&c->id, memory_order_relaxed) == 0;
    int taken = weir__bias_take(&c->lock);

    atomic_store_explicit(&c->id, id, memory_order_relaxed);
    c->room = 0;
    c->serves = 1;
    weir__cache_readdress(c);
    weir__cache_pass(c);
    weir__bias_give(&c->lock, taken);
    c->looked_ticks = f->hits.device->driver->ticks();
    if (is_first) {
        f->cached++;
        weir__caches_lower_caps(f);
    }
    weir__caches_set_cap(f, c);
}

static int is_watched(const struct weir_caches *f, weir_stream stream) {
    int (*watches)(weir_stream) =
        atomic_load_explicit(&f->hits.device->watches, memory_order_relaxed);

    return watches && !is_default(stream) && watches(stream);
}

/* Frees on the stream the blocks that an engine with is_straight could not free under the stream's capture.  The caller
 * holds `lock`, which the function releases meanwhile. */
static void end_inbox(struct weir_caches *f, struct weir_cache *c, weir_stream stream,
                      uint64_t id) {
    struct weir_flushed h = {0};
    int taken = weir__bias_take(&c->lock);

    weir__cache_drop_inbox(c, &h);
    weir__bias_give(&c->lock, taken);
    weir__caches_end(f, h.spans, id, stream);
}

struct weir_cache *weir__caches_visit(struct weir_caches *f, weir_stream stream, uint64_t id) {
    struct weir_cache *c;
    int vouched, serves = 0;

    pthread_mutex_lock(&f->lock);
    c = cache_at(f, stream, id, 0);
    if (c) {
        atomic_store_explicit(&c->capturing, 0, memory_order_relaxed);
        vouched = is_vouched_for(&f->hits, c, stream);
        if (c->serves && atomic_load_explicit(&c->id, memory_order_relaxed) != id)
            weir__caches_retire(f, c, WEIR_ENGINE_UNKNOWN);
        if (c->young_id != id) {
            c->young_id = id;
            c->young = 0;
        }
        if (!c->serves &&
            (vouched || f->cached == 0 || (++c->young > YOUNG && !streams_end_unseen(f, c))))
            mature(f, c, id);
        if (c->serves && is_watched(f, stream))
            atomic_fetch_or_explicit(&c->trusted, WEIR_CACHE_WATCHED, memory_order_relaxed);
        serves = c->serves;
        if (serves)
            pin_cache(c);
        if (f->is_straight && atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed) > 0)
            end_inbox(f, c, stream, id);
    }
    pthread_mutex_unlock(&f->lock);
    return serves ? c : NULL;
}

struct weir_cache *weir__caches_visit_captured(struct weir_caches *f, weir_stream stream) {
    struct weir_cache *c = weir__cache_find(&f->hits, key_of(stream, 0));
    int taken;

    if (c && !atomic_load_explicit(&c->capturing, memory_order_relaxed)) {
        taken = weir__bias_take(&c->lock);
        atomic_store_explicit(&c->capturing, 1, memory_order_relaxed);
        weir__cache_pass(c);
        weir__bias_give(&c->lock, taken);
    }
    return c;
}

/* ---- streams that are bound, end or begin ---- */

weir_status weir__caches_bind(struct weir_caches *f, weir_stream stream, int more) {
    struct weir_cache *c;
    uint32_t bindings;
    uint64_t id = 0;
    weir_status status = weir__caches_identify(f, stream, &id);
    int last = 0;

    if (status != WEIR_OK)
        return status;
    pthread_mutex_lock(&f->lock);
    c = cache_at(f, stream, id, more);
    bindings =
        c ? atomic_load_explicit(&c->trusted, memory_order_relaxed) & ~WEIR_CACHE_WATCHED : 0;
    if (more && c) {
        if (c->serves && atomic_load_explicit(&c->id, memory_order_relaxed) != id)
            weir__caches_retire(f, c, WEIR_ENGINE_UNKNOWN);
        if (!c->serves)
            mature(f, c, id);
        atomic_fetch_add_explicit(&c->trusted, 1, memory_order_relaxed);
        f->default_streams -= bindings == 0 && is_default(stream);
    } else if (more) {
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
    } else if (bindings == 0) {
        status = weir__without_driver(WEIR_E_INVALID);
    } else {
        atomic_fetch_sub_explicit(&c->trusted, 1, memory_order_relaxed);
        f->default_streams += bindings == 1 && is_default(stream);
        last = bindings == 1 && c->serves;
        if (last)
            pin_cache(c);
    }
    pthread_mutex_unlock(&f->lock);
    if (last) { /* the stream may end now: an event covers the memory that it leaves */
        weir__caches_give_all(f, c, stream);
        weir__engine_maintain(f->engine, stream,
                              atomic_load_explicit(&c->id, memory_order_relaxed));
        weir__caches_unpin(c);
    }
    return status;
}

/* Pins and returns the cache of a stream whose id was just queried.  Returns NULL if no cache serves the stream. */
static struct weir_cache *pin_of(struct weir_caches *f, weir_stream stream, uint64_t id) {
    struct weir_cache *c;

    pthread_mutex_lock(&f->lock);
    c = weir__cache_find(&f->hits, key_of(stream, id));
    if (c && (!c->serves || atomic_load_explicit(&c->id, memory_order_relaxed) != id))
        c = NULL;
    if (c)
        pin_cache(c);
    pthread_mutex_unlock(&f->lock);
    return c;
}

void weir__caches_ask(struct weir_caches *f, weir_stream stream) {
    struct weir_cache *c;
    uint64_t id = 0;

    if (!is_default(stream) && !weir__cache_find(&f->hits, key_of(stream, 0)))
        return;
    if (weir__device_stream_id(f->hits.device, stream, &id) != CUDA_SUCCESS ||
        (is_default(stream) && !weir__device_is_idle(f->hits.device, stream)))
        return;
    c = pin_of(f, stream, id);
    if (c)
        weir__caches_give_all(f, c, stream);
    weir__caches_unpin(c);
    (void)weir__engine_ask(f->engine, stream, id);
}

void weir__caches_leave(struct weir_caches *f, weir_stream stream) {
    struct weir_cache *c;
    uint64_t id = 0;

    if (!is_default(stream)) {
        c = weir__cache_find(&f->hits, key_of(stream, 0));
        if (!c)
            return;
        weir__caches_unwatch(c);
    }
    if (weir__device_stream_id(f->hits.device, stream, &id) != CUDA_SUCCESS)
        return;
    c = pin_of(f, stream, id);
    if (c) {
        weir__caches_give_all(f, c, stream);
        weir__engine_maintain(f->engine, stream, id);
    }
    (void)weir__engine_ask(f->engine, stream, id); /* later the stream cannot be queried */
    if (!c)
        return;
    pthread_mutex_lock(&f->lock);
    /* The next stream with this handle is queried for its id even if streams are watched. */
    weir__caches_retire(f, c, id);
    pthread_mutex_unlock(&f->lock);
    weir__caches_unpin(c);
}

void weir__caches_meet(struct weir_caches *f, weir_stream stream) {
    struct weir_cache *c = weir__cache_find(&f->hits, key_of(stream, 0));

    if (!c)
        return;
    pthread_mutex_lock(&f->lock);
    if (c->serves)
        weir__caches_retire(f, c, WEIR_ENGINE_UNKNOWN);
    pthread_mutex_unlock(&f->lock);
}

void weir__caches_distrust(struct weir_caches *f) {
    pthread_mutex_lock(&f->lock);
    for (struct weir_cache *c = f->caches; c; c = c->next)
        weir__caches_unwatch(c);
    pthread_mutex_unlock(&f->lock);
}
