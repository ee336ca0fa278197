/* SPDX-License-Identifier: MIT */
/* cache_streams.c: which stream a cache is of: caches are made, found, bound to a stream and taken from it.
 *
 * What: a handle identifies nothing by itself: the driver gives a destroyed stream's handle to the next one at once.  A
 * request asks for the stream's id and compares it with that of the cache.  A free does not: it goes into the cache of its
 * handle unseen.  If the next request finds the id that the last one found, the handle meant that stream all the while,
 * since ids are not used again, and everything that came in between was freed on it.  If it finds another id, nothing in
 * the cache can be ascribed to a stream any more, and all of it goes back to the engine as "unknown", to serve nobody
 * before the device was waited for.  Default streams go by their id, which is asked at each free too: their handles mean
 * another stream in another context or thread.
 *
 * Locks: the caches's; under it one cache's.
 *
 * Must not know: how requests and frees are served.
 */
#include "cache/caches_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "base/size.h"
#include "cache/slab_table.h"
#include "engine/stream_order.h"

enum {
    YOUNG = 64, /* calls on a stream before it gets a cache, unless it is the first */
    DEFAULT_STREAMS =
        256, /* caches of default streams that are not bound: threads come and go, and theirs with them */
};

/* Bytes that streams with a cache may leave to a device wait by ending unseen. */
#define STRANDED_MOST ((uint64_t)64 << 20)

void weir__caches_unwatch(struct weir_cache *c) {
    atomic_fetch_and_explicit(&c->trusted, ~WEIR_CACHE_WATCHED, memory_order_relaxed);
}

weir_status weir__caches_identify(struct weir_caches *f, weir_stream stream, uint64_t *id) {
    CUresult result = weir__device_stream_id(f->hits.device, stream, id);
    const struct weir_cache *c;

    if (result != CUDA_SUCCESS)
        return weir__device_status(f->hits.device, result);
    c = cache_of(f, key_of(stream, *id));
    if (c && atomic_load_explicit(&c->id, memory_order_relaxed) == *id)
        return WEIR_OK;
    return weir__device_check_stream(f->hits.device, stream);
}

/* ---- making caches ---- */

/* Returns 1 if a stream of this handle ended unseen, and much memory waits for a device wait, because streams with a cache
 * ended unseen.  Further streams with a cache could leave more of it, without bound.  A program that ends its streams gets
 * the same handles again and again, so the streams of other handles need not bear that. */
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

/* Users of a cache that was found without the lock look at its key under the cache's. */
static void rename_cache(struct weir_cache *c, uint64_t key) {
    int taken = weir__bias_take(&c->lock);

    atomic_store_explicit(&c->key, key, memory_order_relaxed);
    weir__bias_give(&c->lock, taken);
}

/* Takes a cache's key away, unless a call is at work with it: 1, or 0. */
static int take_name(struct weir_cache *c) {
    int taken = weir__bias_take(&c->lock), idle;

    idle = c->pins == 0;
    if (idle)
        atomic_store_explicit(&c->key, 0, memory_order_relaxed);
    weir__bias_give(&c->lock, taken);
    return idle;
}

void weir__caches_pin(struct weir_cache *c) {
    int taken = weir__bias_take(&c->lock);

    c->pins++;
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

/* Calls on the cache's stream so far; the caller holds `lock`. */
static uint64_t calls_of(struct weir_cache *c) {
    uint64_t posted, posted_in_use;

    return atomic_load_explicit(&c->hits, memory_order_relaxed) +
           atomic_load_explicit(&c->misses, memory_order_relaxed) +
           atomic_load_explicit(&c->frees, memory_order_relaxed) +
           weir__cache_posted(c, &posted, &posted_in_use) + c->visits;
}

/* A default stream's cache that was silent since it was asked last, the newest such, emptied and without a
 * key; the others are asked again. */
static struct weir_cache *take_silent(struct weir_caches *f) {
    struct weir_cache *silent = NULL;
    uint64_t key, calls;

    for (struct weir_cache *c = f->caches; c; c = c->next) {
        if (!(c->key & 1) || atomic_load_explicit(&c->trusted, memory_order_relaxed))
            continue;
        calls = calls_of(c);
        if (calls == c->swept && !silent)
            silent = c;
        c->swept = calls;
    }
    key = silent ? atomic_load_explicit(&silent->key, memory_order_relaxed) : 0;
    if (!silent || !take_name(silent))
        return NULL;
    weir__cache_table_remove(&f->hits.by_id, key);
    weir__caches_retire(f, silent, atomic_load_explicit(&silent->id, memory_order_relaxed));
    return silent;
}

/* The cache of a stream that was just asked for its id, made if there is none; NULL: no host memory, or
 * more default streams than are kept, unless it is to be bound.  The caller holds `lock`. */
static struct weir_cache *cache_at(struct weir_caches *f, weir_stream stream, uint64_t id,
                                   int to_bind) {
    uint64_t key = key_of(stream, id);
    struct weir_cache *c = cache_of(f, key);
    int by_id = (int)(key & 1), full = by_id && f->default_streams >= DEFAULT_STREAMS;

    if (c || !key) /* unreached: no key, since no driver's handle is odd, and the id is known */
        return c;
    if (full)
        c = take_silent(f);
    if (!c && (!full || to_bind) && weir__cache_table_reserve(table_of(f, key))) {
        c = weir__caches_make(f);
        if (c && ++f->streams > 1)
            atomic_store_explicit(&f->alone, 0, memory_order_relaxed);
        f->default_streams += c && by_id;
    }
    if (c) {
        rename_cache(c, key);
        weir__cache_table_add(table_of(f, key), key, c);
    }
    return c;
}

/* Gives a stream its cache, in a call on it; the caller holds `lock`. */
static void mature(struct weir_caches *f, struct weir_cache *c, uint64_t id) {
    int taken = weir__bias_take(&c->lock), had = c->store != NULL;

    if (weir__cache_open(c)) {
        atomic_store_explicit(&c->id, id, memory_order_relaxed);
        c->reclaim_epoch = atomic_load_explicit(&f->hits.reclaim_epoch, memory_order_relaxed);
        c->serves = 1;
        weir__cache_readdress(c);
        weir__cache_pass(c);
    }
    weir__bias_give(&c->lock, taken);
    c->looked_ticks = f->hits.device->driver->ticks();
    if (!had && c->store) {
        f->cached++;
        weir__caches_lower_shares(f);
    }
    weir__caches_tell(f, c);
}

static int is_watched(const struct weir_caches *f, weir_stream stream) {
    int (*watches)(weir_stream) =
        atomic_load_explicit(&f->hits.device->watches, memory_order_relaxed);

    return watches && !is_default(stream) && watches(stream);
}

struct weir_cache *weir__caches_visit(struct weir_caches *f, weir_stream stream, uint64_t id,
                                      int pins) {
    struct weir_cache *c;
    int vouched;

    pthread_mutex_lock(&f->lock);
    c = cache_at(f, stream, id, 0);
    if (c) {
        c->visits++;
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
        if (c->serves && pins)
            weir__caches_pin(c);
        else
            c = NULL;
    }
    pthread_mutex_unlock(&f->lock);
    return c;
}

struct weir_cache *weir__caches_visit_captured(struct weir_caches *f, weir_stream stream,
                                               uint64_t id) {
    struct weir_cache *c = cache_of(f, key_of(stream, id));
    int taken;

    if (c && !atomic_load_explicit(&c->capturing, memory_order_relaxed)) {
        taken = weir__bias_take(&c->lock);
        atomic_store_explicit(&c->capturing, 1, memory_order_relaxed);
        weir__cache_pass(c);
        weir__bias_give(&c->lock, taken);
    }
    return c;
}

/* ---- the program tells of its streams ---- */

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
            weir__caches_pin(c);
    }
    pthread_mutex_unlock(&f->lock);
    if (last) { /* the stream may end now: an event covers what it leaves */
        (void)weir__caches_give_all(f, c, stream);
        weir__engine_maintain(f->engine, stream,
                              atomic_load_explicit(&c->id, memory_order_relaxed));
        weir__caches_unpin(c);
    }
    return status;
}

struct weir_cache *weir__caches_pin_of(struct weir_caches *f, weir_stream stream, uint64_t id) {
    struct weir_cache *c;

    pthread_mutex_lock(&f->lock);
    c = cache_of(f, key_of(stream, id));
    if (c && (!c->serves || atomic_load_explicit(&c->id, memory_order_relaxed) != id))
        c = NULL;
    if (c)
        weir__caches_pin(c);
    pthread_mutex_unlock(&f->lock);
    return c;
}

void weir__caches_leave(struct weir_caches *f, weir_stream stream) {
    struct weir_cache *c = NULL;
    uint64_t id = 0;

    if (!is_default(stream)) {
        c = cache_of(f, key_of(stream, 0));
        if (!c)
            return;
        weir__caches_unwatch(c);
    }
    if (weir__device_stream_id(f->hits.device, stream, &id) != CUDA_SUCCESS)
        return;
    c = weir__caches_pin_of(f, stream, id);
    if (c) {
        (void)weir__caches_give_all(f, c, stream);
        weir__engine_maintain(f->engine, stream, id);
    }
    (void)weir__engine_ask(f->engine, stream, id); /* nobody can later */
    if (!c)
        return;
    pthread_mutex_lock(&f->lock);
    /* The stream that has the handle next is asked who it is, though streams be vouched for. */
    weir__caches_retire(f, c, id);
    pthread_mutex_unlock(&f->lock);
    weir__caches_unpin(c);
}

void weir__caches_meet(struct weir_caches *f, weir_stream stream) {
    struct weir_cache *c = cache_of(f, key_of(stream, 0));

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
