/* SPDX-License-Identifier: MIT */
/* caches.c: makes, finds, flushes and closes the caches of all streams; finds live blocks; makes the statistics.
 *
 * doc/design.md ("Per-stream caches") says when weir queries a stream's id and flushes a cache.  weir finds a default
 * stream's cache by the id, since the handle means another stream in another context or thread.
 */
#include "cache/stream_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/result.h"
#include "base/size.h"
#include "config/amount.h"

#define CACHE_LEAST ((uint64_t)1 << 20) /* the smallest default cap of a cache */

enum {
    EARLY_CALLS = 64, /* calls on a stream before it gets a cache, unless it is the first stream */
    DEFAULT_STREAMS = 256 /* the maximum number of caches of default streams that are not bound */
};

/* A reused stream handle gets no cache while more bytes than this need a wait for the device before their reuse. */
#define STRANDED_MOST ((uint64_t)64 << 20)

#define IDLE_NS UINT64_C(1000000000)    /* a cache flushes memory that was unused for this time */
#define MOVING_PAUSE_NS UINT64_C(20000) /* the pause between two reads of c->moving */

/* weir updates the statistics' peaks once the bytes in use have grown by 1 / GROWN_PART, and at least GROWN_LEAST. */
#define GROWN_LEAST ((uint64_t)16 << 20)
#define GROWN_PART 32

_Static_assert(offsetof(struct weir_cache, lock.lock) % 128 == 0,
               "threads that read the lock's owner share no cache line with the owner's hits");
_Static_assert(offsetof(struct weir_slab, next) == 64 &&
                   offsetof(struct weir_slab, posted_next) == 128,
               "a slab's record has a cache line for each group of writers");

/* ---- one stream's cache ---- */

static WEIR_ASSERT_ONLY int is_cache_valid(const struct weir_cache *c) {
    size_t idle = 0, inbox = 0;
    unsigned count = 0;

    for (unsigned i = 0; i < WEIR_SLAB_CLASSES; i++)
        for (const struct weir_slab *s = c->open[i], *before = NULL; s; before = s, s = s->next) {
            if (s->prev != before || s->size_class != i || s->idle > s->slots ||
                (before && s->idle == 0) ||
                atomic_load_explicit(&s->cache, memory_order_relaxed) != c)
                return 0;
            idle += s->idle == s->slots ? weir__slab_bytes(s) : 0;
        }
    for (const struct weir_slab *s = c->inbox; s; s = s->next, count++)
        inbox += weir__slab_bytes(s);
    return idle == atomic_load_explicit(&c->idle, memory_order_relaxed) &&
           count == c->inbox_count &&
           inbox == atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed);
}

/* Sets the id of the remote-free queue (0 if the cache serves no stream), and moves the queued slots to their slabs. */
static void update_queue_id(struct weir_cache *c) {
    weir__lock_take(&c->queue.lock);
    c->queue.id = c->serves ? atomic_load_explicit(&c->id, memory_order_relaxed) : 0;
    weir__lock_give(&c->queue.lock);
    weir__cache_collect(c);
}

static void add_span(struct weir_flushed *out, struct weir_slab *s) {
    s->next = out->spans;
    out->spans = s;
}

/* Moves to *out the inbox's blocks, empty slabs above `keep` bytes, and lists of at least `least` slots of other
 * caches' slabs.  If `unused` is set, also moves slabs that have stayed empty since the last such call. */
static void take_idle(struct weir_cache *c, size_t keep, int unused, uint32_t least,
                      struct weir_flushed *out) {
    struct weir_slab *next;

    if (atomic_load_explicit(&c->queue.count, memory_order_relaxed) > 0)
        weir__cache_collect(c);
    WEIR_ASSERT(is_cache_valid(c));
    for (struct weir_slab *s = weir__cache_empty_inbox(c); s; s = next) {
        next = s->next;
        add_span(out, s);
    }
    for (int i = WEIR_SLAB_CLASSES - 1; i >= 0; i--) {
        for (struct weir_slab *s = c->open[i]; s; s = next) {
            int is_excess = atomic_load_explicit(&c->idle, memory_order_relaxed) > keep;

            next = s->next;
            if (!is_excess && !unused)
                break;
            if (s->idle < s->slots || (!is_excess && s->epoch == c->epoch))
                continue;
            weir__cache_unlink(c, s);
            c->slabs[i]--;
            weir__cache_less_idle(c, weir__slab_bytes(s));
            add_span(out, s);
        }
        if (c->remotes[i] && c->remotes[i]->count >= least) {
            c->remotes[i]->more = out->remotes;
            out->remotes = c->remotes[i];
            c->remotes[i] = NULL;
        }
    }
    c->epoch += (uint32_t)unused;
}

/* Detaches the partly used slabs from the cache, whose stream has changed. */
static void detach_slabs(struct weir_cache *c) {
    for (int i = 0; i < WEIR_SLAB_CLASSES; i++) {
        while (c->open[i]) {
            struct weir_slab *s = c->open[i];

            weir__cache_unlink(c, s);
            if (s->idle == 0)
                continue;
            c->slabs[i]--;
            atomic_store_explicit(&s->cache, NULL, memory_order_relaxed);
        }
    }
}

/* Returns 1 if at least idle_ns nanoseconds lie between `then` and `now`, else 0.  `then` may be later than `now`. */
static int has_elapsed(const struct weir_caches *f, uint64_t then, uint64_t now) {
    return now > then && now - then >= f->idle_ns;
}

/* Sets the cap of a cache's idle bytes to an equal share of the bytes that all caches may keep, and lowers the caps of
 * other caches to this share.  All caps together never exceed the user's limit.  The caller holds f->lock. */
static void set_cap(struct weir_caches *f, struct weir_cache *c) {
    const weir_amount *limit = &f->v->options->cache_limit;
    uint64_t peak = atomic_load_explicit(&f->engine->seen.most_in_use, memory_order_relaxed);
    uint64_t in_use = atomic_load_explicit(&f->engine->seen.in_use, memory_order_relaxed);
    uint64_t left, part;

    f->recent_peak[0] = weir__size_larger(f->recent_peak[0], in_use);
    left = weir__budget_of_in_use(limit, weir__size_larger(f->recent_peak[0], f->recent_peak[1]),
                                  peak);
    part = left / f->cached;
    if (limit->kind == WEIR_AMOUNT_DEFAULT)
        part = weir__size_larger(part, CACHE_LEAST);
    part = weir__size_smaller(part, f->engine->threshold);
    for (struct weir_cache *other = f->caches; other; other = other->next) {
        if (other == c)
            continue;
        if (atomic_load_explicit(&other->most, memory_order_relaxed) > part)
            atomic_store_explicit(&other->most, (size_t)part, memory_order_relaxed);
        left = weir__size_subtract(
            left, weir__size_larger(atomic_load_explicit(&other->idle, memory_order_relaxed),
                                    atomic_load_explicit(&other->most, memory_order_relaxed)));
    }
    if (limit->kind != WEIR_AMOUNT_DEFAULT)
        part = weir__size_smaller(part, left);
    atomic_store_explicit(&c->most, (size_t)part, memory_order_relaxed);
}

/* ---- remote frees ---- */

void weir__caches_return_slot(struct weir_caches *f, const struct weir_remote_slot *remote) {
    struct weir_slab *s = remote->span;
    struct weir_cache *owner = atomic_load_explicit(&s->cache, memory_order_relaxed);
    int taken = owner ? weir__bias_take(&owner->lock) : 0;
    uint32_t before = s->idle;

    weir__slab_put(s, remote->slot);
    if (owner) {
        weir__cache_relist_slab(owner, s, before);
        weir__bias_give(&owner->lock, taken);
    } else if (s->idle == s->slots) {
        s->next = NULL;
        weir__caches_give(f, s, WEIR_ENGINE_UNKNOWN, NULL, NULL);
    }
}

/* Returns freed slots to their slabs, after all work on the slots has completed.  The caller holds f->lock. */
static void return_batch(void *caches, uintptr_t remotes) {
    struct weir_caches *f = caches;
    struct weir_remote_slots *batch = (struct weir_remote_slots *)remotes;

    while (batch) {
        struct weir_remote_slots *more = batch->more;

        for (uint32_t i = 0; i < batch->count; i++)
            weir__caches_return_slot(f, &batch->remote[i]);
        free(batch);
        batch = more;
    }
}

void weir__caches_strand(struct weir_caches *f, struct weir_slab *spans,
                         struct weir_remote_slots *remotes) {
    while (spans) {
        struct weir_slab *s = spans;

        spans = s->next;
        add_span(&f->stranded, s);
        f->stranded_bytes += weir__slab_bytes(s);
    }
    while (remotes) {
        struct weir_remote_slots *piece = remotes;

        remotes = piece->more;
        piece->more = f->stranded.remotes;
        f->stranded.remotes = piece;
        for (uint32_t i = 0; i < piece->count; i++)
            f->stranded_bytes += weir__slab_in_use(piece->remote[i].span);
    }
}

int weir__caches_complete_remotes(struct weir_caches *f) {
    int has_moved;

    pthread_mutex_lock(&f->lock);
    has_moved = weir__order_complete(&f->order, SIZE_MAX);
    pthread_mutex_unlock(&f->lock);
    return has_moved;
}

/* ---- flushes ---- */

/* Returns a cache's idle memory to the engine.  The caller holds f->lock, for which a flush of all caches in another
 * thread (OOM recovery) waits.  If the driver frees the blocks, f->lock is released meanwhile, and such a flush waits
 * for c->moving instead. */
static void flush_cache(struct weir_caches *f, struct weir_cache *c, weir_stream stream,
                        uint64_t id, size_t keep, int unused, uint32_t least) {
    struct weir_flushed h = {0};
    int taken = weir__bias_take(&c->lock);

    if (c->serves && is_its(c, id))
        take_idle(c, keep, unused, least, &h);
    weir__bias_give(&c->lock, taken);
    if (!h.spans && !h.remotes)
        return;
    complete_some(f);
    if (h.remotes && weir__order_defer(&f->order, stream, NULL, (uintptr_t)h.remotes) != WEIR_OK)
        weir__caches_strand(f, NULL, h.remotes);
    weir__caches_give(f, h.spans, id, c, stream);
}

/* Flushes the cache's idle bytes above its cap.  The caller is allocating or freeing a block on the cache's stream. */
static void maintain_cache(struct weir_caches *f, struct weir_cache *c, weir_stream stream,
                           uint64_t id) {
    uint64_t now = f->device->driver->ticks();
    size_t most, keep = SIZE_MAX;
    int expired;

    pthread_mutex_lock(&f->lock);
    if (has_elapsed(f, f->span_ticks, now)) {
        f->span_ticks = now;
        f->recent_peak[1] = f->recent_peak[0];
        f->recent_peak[0] = 0;
    }
    set_cap(f, c);
    expired = has_elapsed(f, c->idle_search_ticks, now);
    if (expired)
        c->idle_search_ticks = now;
    most = atomic_load_explicit(&c->most, memory_order_relaxed);
    /* Keeps a quarter less than the cap, so that the next freed block does not exceed the cap again. */
    if (atomic_load_explicit(&c->idle, memory_order_relaxed) > most)
        keep = most - most / 4;
    flush_cache(f, c, stream, id, keep, expired, WEIR_CACHE_REMOTES);
    pthread_mutex_unlock(&f->lock);
}

void weir__caches_do_deferred(struct weir_caches *f, struct weir_cache *c, weir_stream stream,
                              uint64_t id) {
    int taken = weir__bias_take(&c->lock), due;

    /* unreached: no test covers a change of the cache's stream during this call */
    due = c->due && c->serves && is_its(c, id);
    c->due &= !due;
    weir__cache_update_ready(c); /* a capture may have ended */
    weir__bias_give(&c->lock, taken);
    if (due)
        maintain_cache(f, c, stream, id);
    weir__engine_maintain(f->engine, stream, id);
}

static void unwatch_cache(struct weir_cache *c) {
    atomic_fetch_and_explicit(&c->trusted, ~WEIR_CACHE_WATCHED, memory_order_relaxed);
}

/* Flushes a cache and detaches its stream.  `id` is UNKNOWN if the stream may have ended.  The caller holds f->lock. */
static void retire_cache(struct weir_caches *f, struct weir_cache *c, uint64_t id) {
    struct weir_flushed h = {0};
    int taken = weir__bias_take(&c->lock);

    if (c->serves) {
        c->serves = 0;
        update_queue_id(c); /* from now on, other threads free no slots into the cache */
        take_idle(c, 0, 0, 1, &h);
        detach_slabs(c);
    }
    weir__cache_update_ready(c);
    weir__bias_give(&c->lock, taken);
    unwatch_cache(c);
    c->missed_end |= id == WEIR_ENGINE_UNKNOWN;
    weir__caches_give(f, h.spans, id, NULL, NULL);
    weir__caches_strand(f, NULL, h.remotes);
    c->early_calls = 0;
}

/* Returns the id of the only stream, which may reuse memory after a wait for the device.  With several streams,
 * returns OBSERVED, since each stream may then reuse the memory. */
static uint64_t flushed_id(const struct weir_caches *f) {
    const struct weir_cache *only = NULL;

    for (const struct weir_cache *c = f->caches; c; c = c->next) {
        if (c == f->uncached)
            continue;
        if (only || f->driver_orders)
            return WEIR_ENGINE_OBSERVED;
        only = c;
    }
    return only && only->serves ? atomic_load_explicit(&only->id, memory_order_relaxed)
                                : WEIR_ENGINE_OBSERVED;
}

/* Takes the idle memory of all caches, waits for calls that move memory to the engine and for the device, and then
 * returns the memory.  Sets *more if a second flush may help.  The waits release f->lock, which the caller holds. */
static CUresult flush_all(struct weir_caches *f, int *more) {
    struct weir_flushed h = f->stranded;
    struct weir_cache *first = f->caches;
    CUresult result = CUDA_SUCCESS;
    int moving = 0;

    f->stranded = (struct weir_flushed){0};
    f->stranded_bytes = 0;
    for (struct weir_cache *c = first; c; c = c->next) {
        int taken = weir__bias_take(&c->lock);

        take_idle(c, 0, 0, 1, &h);
        moving |= atomic_load(&c->moving[c->turn]) > 0;
        c->turn ^= 1;
        weir__bias_give(&c->lock, taken);
    }
    *more = h.remotes || f->order.deferred > 0 || moving;
    if (!h.spans && !*more && !moving)
        return CUDA_SUCCESS;
    pthread_mutex_unlock(&f->lock);
    for (struct weir_cache *c = moving ? first : NULL; c; c = c->next)
        while (atomic_load(&c->moving[c->turn ^ 1]) > 0)
            f->device->driver->sleep_ns(MOVING_PAUSE_NS);
    result = weir__device_wait(f->device);
    pthread_mutex_lock(&f->lock);
    if (result != CUDA_SUCCESS) {
        weir__caches_give(f, h.spans, WEIR_ENGINE_UNKNOWN, NULL, NULL);
        weir__caches_strand(f, NULL, h.remotes);
        *more = 0;
        return result;
    }
    weir__caches_give(f, h.spans, flushed_id(f), NULL, NULL);
    return_batch(f, (uintptr_t)h.remotes);
    weir__order_complete(&f->order, SIZE_MAX);
    return CUDA_SUCCESS;
}

/* Only one thread flushes at a time, since a second thread would find nothing to flush.  Slabs that become empty after
 * the first wait need a second wait, since any stream's work may still use their freed slots. */
weir_status weir__caches_empty(void *caches) {
    struct weir_caches *f = caches;
    CUresult result;
    int more;

    pthread_mutex_lock(&f->flushing);
    pthread_mutex_lock(&f->lock);
    result = flush_all(f, &more);
    if (more)
        result = flush_all(f, &more);
    pthread_mutex_unlock(&f->lock);
    pthread_mutex_unlock(&f->flushing);
    return weir__device_status(f->device, result);
}

/* ---- one stream ---- */

weir_status weir__caches_identify(struct weir_caches *f, weir_stream stream, uint64_t *id) {
    CUresult result = weir__device_stream_id(f->device, stream, id);
    const struct weir_cache *c;

    if (result != CUDA_SUCCESS)
        return weir__device_status(f->device, result);
    c = weir__cache_find(f, key_of(stream, *id));
    if (c && atomic_load_explicit(&c->id, memory_order_relaxed) == *id)
        return WEIR_OK;
    return weir__device_check_stream(f->device, stream);
}

static int strands_too_much(const struct weir_caches *f, const struct weir_cache *c) {
    size_t quarantined = atomic_load_explicit(&f->engine->seen.quarantined, memory_order_relaxed);

    return c->missed_end && f->stranded_bytes + quarantined > STRANDED_MOST;
}

/* Makes a cache that is not in the hash table.  Returns NULL if there is no host memory.  The caller holds f->lock. */
static struct weir_cache *make_cache(struct weir_caches *f) {
    struct weir_cache *c = aligned_alloc(_Alignof(struct weir_cache), sizeof *c);

    if (!c)
        return NULL;
    memset(c, 0, sizeof *c);
    c->next = f->caches;
    f->caches = c;
    return c;
}

/* Returns a number that changes with each call on the cache's stream.  The caller holds f->lock. */
static uint64_t calls_of(struct weir_cache *c) {
    return atomic_load_explicit(&c->hits, memory_order_relaxed) +
           (uint64_t)weir__sum_now(&c->requested) +
           atomic_load_explicit(&c->frees, memory_order_relaxed) +
           atomic_load_explicit(&c->queue.count, memory_order_relaxed) + c->early_calls;
}

/* Evicts an unbound default stream's cache that had no calls since the last search.  Returns the cache, or NULL. */
static struct weir_cache *evict_unused(struct weir_caches *f) {
    struct weir_cache *silent = NULL;
    _Atomic(struct weir_cache *) *at;
    uint64_t calls;

    for (struct weir_cache *c = f->caches; c; c = c->next) {
        if (!(c->key & WEIR_CACHE_BY_ID) || atomic_load_explicit(&c->trusted, memory_order_relaxed))
            continue;
        calls = calls_of(c);
        if (calls == c->last_calls && !silent)
            silent = c;
        c->last_calls = calls;
    }
    if (silent) {
        at = weir__cache_bucket(f, silent->key);
        while (*at != silent)
            at = &(*at)->after;
        atomic_store_explicit(at, silent->after, memory_order_release);
        retire_cache(f, silent, atomic_load_explicit(&silent->id, memory_order_relaxed));
    }
    return silent;
}

/* Makes the driver free blocks that the program freed during captures.  If the stream's handle was reused since, keeps
 * the blocks until a wait for the device.  The caller holds f->lock, which is released meanwhile. */
static void free_early_inbox(struct weir_caches *f, struct weir_cache *c, weir_stream stream,
                             uint64_t id) {
    int taken = weir__bias_take(&c->lock);
    struct weir_slab *blocks = weir__cache_empty_inbox(c);

    weir__bias_give(&c->lock, taken);
    weir__caches_give(f, blocks, id, c->early_id == id ? c : NULL, stream);
}

/* Finds or makes the cache of a stream.  Returns NULL if there is no host memory, or if too many unbound default
 * streams have caches.  The caller holds f->lock, which may be released meanwhile. */
static struct weir_cache *cache_at(struct weir_caches *f, weir_stream stream, uint64_t id,
                                   int to_bind) {
    uint64_t key = key_of(stream, id);
    _Atomic(struct weir_cache *) *bucket = weir__cache_bucket(f, key);
    struct weir_cache *c = weir__cache_find(f, key);
    int by_id = is_default(stream), full = by_id && f->default_streams >= DEFAULT_STREAMS;

    if (c && c->serves && !is_its(c, id))
        retire_cache(f, c, WEIR_ENGINE_UNKNOWN);
    if (c && !c->serves && atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed) > 0)
        free_early_inbox(f, c, stream, id);
    if (c || !key) /* unreached: a stream with a known id has a key */
        return c;
    if (full)
        c = evict_unused(f);
    if (!c && (!full || to_bind)) {
        c = make_cache(f);
        f->default_streams += c && by_id;
    }
    if (c) {
        atomic_store_explicit(&c->key, key, memory_order_relaxed);
        atomic_store_explicit(&c->after, *bucket, memory_order_release);
        atomic_store_explicit(bucket, c, memory_order_release);
    }
    return c;
}

/* Makes the cache serve the stream `id`.  The caller holds f->lock. */
static void attach_stream(struct weir_caches *f, struct weir_cache *c, uint64_t id) {
    int is_first = atomic_load_explicit(&c->id, memory_order_relaxed) == 0;
    int taken = weir__bias_take(&c->lock);

    atomic_store_explicit(&c->id, id, memory_order_relaxed);
    c->room = 0;
    c->serves = 1;
    update_queue_id(c);
    weir__cache_update_ready(c);
    weir__bias_give(&c->lock, taken);
    c->idle_search_ticks = f->device->driver->ticks();
    f->cached += is_first ? 1 : 0;
    set_cap(f, c);
}

static int is_watched(const struct weir_caches *f, weir_stream stream) {
    int (*watches)(weir_stream) = atomic_load_explicit(&f->device->watches, memory_order_relaxed);

    return watches && !is_default(stream) && watches(stream);
}

static void mark_capturing(struct weir_cache *c) {
    int taken = weir__bias_take(&c->lock);

    atomic_store_explicit(&c->capturing, 1, memory_order_relaxed);
    weir__cache_update_ready(c);
    weir__bias_give(&c->lock, taken);
}

weir_status weir__caches_query_stream(struct weir_caches *f, weir_stream stream, uint64_t *id,
                                      struct weir_cache **out) {
    weir_status status = weir__device_capture(f->device, stream);
    struct weir_cache *c;

    *out = status == WEIR_E_CAPTURE ? weir__cache_find(f, key_of(stream, 0)) : NULL;
    if (*out && !atomic_load_explicit(&(*out)->capturing, memory_order_relaxed))
        mark_capturing(*out);
    if (status == WEIR_OK) /* a query of a captured stream's id would break its capture */
        status = weir__caches_identify(f, stream, id);
    if (status != WEIR_OK)
        return status;
    pthread_mutex_lock(&f->lock);
    c = cache_at(f, stream, *id, 0);
    if (c) {
        atomic_store_explicit(&c->capturing, 0, memory_order_relaxed);
        if (c->early_id != *id) {
            c->early_id = *id;
            c->early_calls = 0;
        }
        if (!c->serves && (is_vouched_for(f, c, stream) || f->cached == 0 ||
                           (++c->early_calls > EARLY_CALLS && !strands_too_much(f, c))))
            attach_stream(f, c, *id);
        if (c->serves && is_watched(f, stream))
            atomic_fetch_or_explicit(&c->trusted, WEIR_CACHE_WATCHED, memory_order_relaxed);
        *out = c->serves ? c : NULL;
    }
    pthread_mutex_unlock(&f->lock);
    return WEIR_OK;
}

/* ---- bound and ended streams ---- */

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
        if (!c->serves)
            attach_stream(f, c, id);
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
    }
    if (last) /* an event must follow the memory's last use, since the stream may end now */
        flush_cache(f, c, stream, id, 0, 0, 1);
    pthread_mutex_unlock(&f->lock);
    if (last)
        weir__engine_maintain(f->engine, stream, id);
    return status;
}

void weir__caches_flush_stream(struct weir_caches *f, weir_stream stream, int ends) {
    struct weir_cache *c = weir__cache_find(f, key_of(stream, 0));
    uint64_t id = 0;

    if (!is_default(stream) && !c)
        return;
    if (c && ends)
        unwatch_cache(c);
    if (weir__device_stream_id(f->device, stream, &id) != CUDA_SUCCESS ||
        (is_default(stream) && !ends && !weir__device_is_idle(f->device, stream)))
        return;
    pthread_mutex_lock(&f->lock);
    c = weir__cache_find(f, key_of(stream, id));
    if (c)
        flush_cache(f, c, stream, id, 0, 0, 1);
    pthread_mutex_unlock(&f->lock);
    if (c && ends)
        weir__engine_maintain(f->engine, stream, id);
    /* lets other streams reuse what this stream freed last, since weir cannot query the stream after its end */
    (void)weir__engine_publish(f->engine, stream, id);
    if (!c || !ends)
        return;
    pthread_mutex_lock(&f->lock);
    /* A new stream may get this handle, so the cache must not serve the handle any longer. */
    if (c->serves && is_its(c, id)) /* unreached: no test changes the cache's stream meanwhile */
        retire_cache(f, c, id);
    pthread_mutex_unlock(&f->lock);
}

void weir__caches_stream_created(struct weir_caches *f, weir_stream stream) {
    struct weir_cache *c = weir__cache_find(f, key_of(stream, 0));

    if (!c)
        return;
    pthread_mutex_lock(&f->lock);
    if (c->serves)
        retire_cache(f, c, WEIR_ENGINE_UNKNOWN);
    pthread_mutex_unlock(&f->lock);
}

void weir__caches_unwatch(struct weir_caches *f) {
    pthread_mutex_lock(&f->lock);
    for (struct weir_cache *c = f->caches; c; c = c->next)
        unwatch_cache(c);
    pthread_mutex_unlock(&f->lock);
}

/* ---- all caches ---- */

weir_status weir__caches_open(struct weir_reserve *v, struct weir_caches **out) {
    struct weir_caches *f = aligned_alloc(_Alignof(struct weir_caches), sizeof *f);

    if (!f)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    memset(f, 0, sizeof *f);
    f->v = v;
    f->engine = v->engine;
    f->device = v->device;
    f->checks = v->options->stream_checks != WEIR_SWITCH_OFF;
    f->driver_orders = !(v->engine->traits & WEIR_ENGINE_SUBALLOCATES);
    f->idle_ns = IDLE_NS;
    f->span_ticks = v->device->driver->ticks();
    pthread_mutex_init(&f->flushing, NULL);
    pthread_mutex_init(&f->lock, NULL);
    weir__order_open(&f->order, v->device, NULL, return_batch, f);
    weir__bias_prepare();
    f->uncached = make_cache(f);
    if (!f->uncached || !weir__records_open(&f->records)) {
        weir__caches_close(f);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    *out = f;
    return WEIR_OK;
}

static void free_idle_block(void *caches, struct weir_slab *s) {
    struct weir_caches *f = caches;
    CUdeviceptr base = weir__slab_base(s);
    struct weir_freed freed = {.block = &base, .count = 1};

    if (weir__slab_bytes(s) > 0)
        (void)f->engine->ops->free_batch(f->engine, &freed, WEIR_ENGINE_OBSERVED);
}

void weir__caches_close(struct weir_caches *f) {
    if (!f)
        return;
    weir__order_close(&f->order);
    return_batch(f, (uintptr_t)f->stranded.remotes);
    if (f->driver_orders)
        weir__records_walk(&f->records, free_idle_block, f);
    while (f->caches) {
        struct weir_cache *c = f->caches;

        f->caches = c->next;
        for (int i = 0; i < WEIR_SLAB_CLASSES; i++)
            free(c->remotes[i]);
        free(c);
    }
    weir__records_close(&f->records);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->flushing);
    free(f);
}

/* ---- live blocks ---- */

int weir__caches_is_live(struct weir_caches *f, CUdeviceptr block) {
    const struct weir_slab *s = weir__records_find(&f->records, block);

    return s && weir__slab_bytes(s) > 0 ? weir__slab_asked(s, block) > 0
                                        : weir__addresses_has(&f->v->graphs, block);
}

/* Returns the record of the block around the address, or NULL.  Of a whole block, only the first page has an entry. */
static const struct weir_slab *find_span(struct weir_caches *f, CUdeviceptr address) {
    uint64_t largest = atomic_load_explicit(&f->largest, memory_order_relaxed);
    CUdeviceptr page = address & ~(CUdeviceptr)(WEIR_PAGE - 1);

    if (!weir__engine_may_contain(f->engine, address))
        return NULL;
    for (;; page -= WEIR_PAGE) {
        const struct weir_slab *s = weir__records_find(&f->records, page);

        if (s && weir__slab_bytes(s) > 0)
            return address - weir__slab_base(s) < weir__slab_bytes(s) ? s : NULL;
        if (page < WEIR_PAGE || address - page >= largest)
            return NULL;
    }
}

int weir__caches_find(struct weir_caches *f, CUdeviceptr address, CUdeviceptr *block,
                      size_t *bytes) {
    const struct weir_slab *s = find_span(f, address);

    if (!s)
        return 0;
    *block = weir__slab_base(s);
    if (s->slot_units)
        *block = weir__slab_address(s, (uint32_t)((address - *block) / weir__slab_in_use(s)));
    *bytes = weir__slab_asked(s, *block);
    return address - *block < *bytes;
}

int weir__caches_has_address(struct weir_caches *f, CUdeviceptr address) {
    return find_span(f, address) != NULL;
}

/* The functions that a walk over all records calls.  One of the two is NULL. */
struct walk {
    weir__live_fn *visit_span; /* called for each block of the engine that has a live part */
    weir__engine_visit_fn *visit_block; /* called for each live block */
    void *context;
};

static void walk_span(void *context, struct weir_slab *s) {
    const struct walk *w = context;
    const struct weir_cache *owner = atomic_load_explicit(&s->cache, memory_order_relaxed);
    struct weir_extent extent = {0};
    int is_live = 0;

    if (s->slot_units == 0)
        extent.stream = atomic_load_explicit(&s->fetched_for, memory_order_relaxed);
    else if (owner)
        extent.stream = atomic_load_explicit(&owner->id, memory_order_relaxed);
    for (uint32_t i = 0; i < (s->slot_units ? s->slots : 1); i++) {
        extent.bytes = s->slot_units ? weir__slab_slot_asked(s, i)
                                     : atomic_load_explicit(&s->asked, memory_order_relaxed);
        is_live |= extent.bytes > 0;
        if (extent.bytes > 0 && w->visit_block)
            w->visit_block(w->context, &extent);
    }
    if (is_live && w->visit_span)
        w->visit_span(w->context, weir__slab_base(s), weir__slab_bytes(s));
}

void weir__caches_live(void *caches, weir__live_fn *visit_span, void *context) {
    struct weir_caches *f = caches;

    weir__records_walk(&f->records, walk_span,
                       &(struct walk){.visit_span = visit_span, .context = context});
}

void weir__caches_blocks(struct weir_caches *f, weir__engine_visit_fn *visit_block, void *context) {
    weir__records_walk(&f->records, walk_span,
                       &(struct walk){.visit_block = visit_block, .context = context});
}

/* ---- statistics ---- */

static void raise_peak(uint64_t *peak, int64_t bytes) {
    if (bytes > 0 && (uint64_t)bytes > *peak)
        *peak = (uint64_t)bytes;
}

/* Adds up the caches' sums, and updates the peaks, which are exact only for one cache.  The caller holds f->lock. */
static void sum_counts(struct weir_caches *f, weir_statistics *out) {
    const struct weir_cache *only = NULL;
    int64_t requested = 0, in_use = 0;
    int used = 0;

    for (struct weir_cache *c = f->caches; c; c = c->next) {
        /* Reads the queue first.  If its slots leave the queue meanwhile, the sum is too small, and raises no peak. */
        requested -= (int64_t)atomic_load_explicit(&c->queue.requested, memory_order_acquire);
        in_use -= (int64_t)atomic_load_explicit(&c->queue.in_use, memory_order_acquire);
        requested += weir__sum_now(&c->requested);
        in_use += weir__sum_now(&c->in_use);
        if (atomic_load_explicit(&c->in_use.peak, memory_order_relaxed) > 0 ||
            atomic_load_explicit(&c->frees, memory_order_relaxed) > 0) {
            used++;
            only = c;
        }
    }
    raise_peak(&f->requested_peak, requested);
    raise_peak(&f->requested_lately, requested);
    raise_peak(&f->in_use_peak, in_use);
    if (used == 1) {
        int64_t peak = atomic_load_explicit(&only->requested.peak, memory_order_relaxed);

        raise_peak(&f->requested_peak, peak);
        raise_peak(&f->requested_lately, peak);
        raise_peak(&f->in_use_peak, atomic_load_explicit(&only->in_use.peak, memory_order_relaxed));
    }
    /* A sum is negative for a moment if one thread subtracts a freed block before another thread adds the block. */
    out->requested = requested > 0 ? (uint64_t)requested : 0;
    out->in_use = in_use > 0 ? (uint64_t)in_use : 0;
    out->requested_peak = f->requested_peak;
    out->in_use_peak = f->in_use_peak;
}

/* Sets the bytes in use above which weir updates the peaks.  With drop_in, weir updates the peaks after any growth. */
static void set_sum_trigger(struct weir_caches *f) {
    uint64_t now = atomic_load_explicit(&f->engine->seen.in_use, memory_order_relaxed);
    uint64_t more = f->device->drop_in ? 0 : weir__size_larger(now / GROWN_PART, GROWN_LEAST);

    atomic_store_explicit(&f->add_up_above, now + more, memory_order_relaxed);
}

uint64_t weir__caches_peak_lately(struct weir_caches *f, int renew) {
    weir_statistics figures;
    uint64_t peak;

    pthread_mutex_lock(&f->lock);
    set_sum_trigger(f);
    sum_counts(f, &figures); /* also updates the lifetime peaks */
    peak = f->requested_lately;
    for (struct weir_cache *c = renew ? f->caches : NULL; c; c = c->next) {
        int taken = weir__bias_take(&c->lock);
        int64_t now = weir__sum_now(&c->requested);

        atomic_store_explicit(&c->requested.peak, now < 0 ? 0 : now, memory_order_relaxed);
        weir__bias_give(&c->lock, taken);
    }
    if (renew)
        f->requested_lately = figures.requested;
    pthread_mutex_unlock(&f->lock);
    return peak;
}

static size_t idle_in(const struct weir_cache *c) {
    return atomic_load_explicit(&c->idle, memory_order_relaxed) +
           atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed);
}

/* Reads the counts of freed blocks before those of allocated blocks, so that the statistics never have more frees. */
void weir__caches_figures(struct weir_caches *f, weir_statistics *out) {
    out->deferred_frees = atomic_load_explicit(&f->captured_frees, memory_order_relaxed);
    pthread_mutex_lock(&f->lock);
    for (struct weir_cache *c = f->caches; c; c = c->next) {
        out->frees += atomic_load_explicit(&c->frees, memory_order_acquire);
        /* Reads the queue after `frees`, so that a slot that moves from the queue to `frees` is not counted twice. */
        out->frees += atomic_load_explicit(&c->queue.count, memory_order_acquire);
    }
    for (struct weir_cache *c = f->caches; c; c = c->next) {
        uint64_t misses = atomic_load_explicit(&c->misses, memory_order_acquire);

        if (c == f->uncached)
            out->cache_misses_young = misses;
        else
            out->cache_misses_empty += misses;
        out->cache_hits += atomic_load_explicit(&c->hits, memory_order_relaxed);
        out->cache_idle += idle_in(c);
        out->host_bytes += sizeof *c;
    }
    sum_counts(f, out);
    out->cache_streams = f->cached;
    out->event_records += f->order.event_records;
    out->host_bytes += f->records.host_bytes;
    pthread_mutex_unlock(&f->lock);
    out->cache_misses_capture = atomic_load_explicit(&f->captured_allocs, memory_order_acquire);
    out->allocs = out->cache_hits + out->cache_misses_young + out->cache_misses_empty +
                  out->cache_misses_capture;
    out->hits = out->allocs - out->growth_allocs;
    out->attempts = out->allocs + out->failed_requests;
    out->blocks = out->allocs - out->frees;
}

void weir__caches_survey(struct weir_caches *f, uint64_t id, struct weir_survey *out) {
    pthread_mutex_lock(&f->lock);
    for (const struct weir_cache *c = f->caches; c; c = c->next) {
        uint64_t of = atomic_load_explicit(&c->id, memory_order_relaxed);

        if (idle_in(c) > 0 && of != id)
            weir__survey_add_pending(out, of, idle_in(c));
    }
    for (const struct weir_slab *s = f->stranded.spans; s; s = s->next)
        weir__survey_add_pending(out, WEIR_ENGINE_UNKNOWN, weir__slab_bytes(s));
    pthread_mutex_unlock(&f->lock);
}
