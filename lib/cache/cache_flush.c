/* SPDX-License-Identifier: MIT */
/* cache_flush.c: how much idle memory caches keep, and how memory goes back: to the engine, and slots that were freed on
 * other streams to their slabs.
 *
 * What: a cache flushes in calls on its own stream whose id is known: if it holds more idle memory than its cap, or if
 * memory was unused for long.  Only weir__caches_empty flushes all caches at once, behind a wait for the device: for
 * trims and in OOM recovery.
 *
 * A block that is freed during a capture serves nobody until a request on the stream has found that the capture is over.
 * Only such requests allocate from the cache or maintain it, so a free need not query the capture.
 *
 * Remote frees that pile up return to their slabs as a batch, behind one event, or behind a wait for the device.
 *
 * Locks: the caches' lock and a cache's are taken here.  Under the caches' lock a cache's is taken to retire or flush
 * it, and to return slots.
 */
#include "cache/caches_state.h"

#include <stdlib.h>

#include "base/size.h"
#include "config/amount.h"

/* The least default cap of a cache, however many caches there are. */
#define CACHE_LEAST ((uint64_t)1 << 20)

/* ---- caps ---- */

/* Returns 1 if idle_ns has passed from `then`, which another thread may have set later than `now`, to `now`; else 0. */
static int is_over(const struct weir_caches *f, uint64_t then, uint64_t now) {
    return now > then && f->hits.device->driver->ticks_to_ns(now - then) >= f->idle_ns;
}

/* Returns the most idle memory of all caches together, and sets *part to that of each cache if their parts are equal.  A
 * release threshold cannot free cached memory at a synchronisation, so the threshold limits the part, too. */
static uint64_t keep_together(const struct weir_caches *f, uint64_t *part) {
    const weir_amount *limit = &f->v->options->cache_limit;
    uint64_t peak = atomic_load_explicit(&f->engine->seen.most_in_use, memory_order_relaxed);
    uint64_t bytes =
        weir__budget_of_in_use(limit, weir__size_larger(f->lately[0], f->lately[1]), peak);

    *part = bytes / f->cached;
    if (limit->kind == WEIR_AMOUNT_DEFAULT)
        *part = weir__size_larger(*part, CACHE_LEAST);
    *part = weir__size_smaller(*part, f->engine->threshold);
    return bytes;
}

void weir__caches_lower_caps(struct weir_caches *f) {
    uint64_t part;

    (void)keep_together(f, &part);
    for (struct weir_cache *c = f->caches; c; c = c->next)
        if (atomic_load_explicit(&c->most, memory_order_relaxed) > part)
            atomic_store_explicit(&c->most, (size_t)part, memory_order_relaxed);
}

/* A limit that the user set covers all caches together: a cache gets less than its part if others still hold the memory,
 * since a stream without calls cannot flush. */
void weir__caches_set_cap(struct weir_caches *f, struct weir_cache *c) {
    uint64_t left, part;

    f->lately[0] = weir__size_larger(f->lately[0], weir__caches_in_blocks(f));
    left = keep_together(f, &part);
    for (const struct weir_cache *other = f->caches; other; other = other->next)
        if (other != c)
            left = weir__size_less(
                left, weir__size_larger(atomic_load_explicit(&other->idle, memory_order_relaxed),
                                        atomic_load_explicit(&other->most, memory_order_relaxed)));
    if (f->v->options->cache_limit.kind != WEIR_AMOUNT_DEFAULT)
        part = weir__size_smaller(part, left);
    atomic_store_explicit(&c->most, (size_t)part, memory_order_relaxed);
}

/* ---- slots that were freed on other streams ---- */

void weir__caches_bring_home(struct weir_caches *f, const struct weir_remote_slot *remote,
                             struct weir_flushed *emptied) {
    struct weir_slab *s = remote->span;
    struct weir_cache *owner = atomic_load_explicit(&s->cache, memory_order_relaxed);

    if (owner) {
        int taken = weir__bias_take(&owner->lock);
        uint32_t before = s->idle;

        weir__slab_put(s, remote->slot);
        weir__cache_welcome(owner, s, before);
        if (emptied && s->idle == s->slots)
            weir__cache_drop_slab(owner, s, emptied);
        weir__bias_give(&owner->lock, taken);
        return;
    }
    weir__slab_put(s, remote->slot);
    if (s->idle == s->slots) {
        s->next = NULL;
        weir__caches_give(f, s, WEIR_ENGINE_UNKNOWN, NULL);
    }
}

void weir__caches_return(void *caches, uintptr_t remotes) {
    struct weir_caches *f = caches;
    struct weir_remote_slots *batch = (struct weir_remote_slots *)remotes;

    while (batch) {
        struct weir_remote_slots *more = batch->more;

        for (uint32_t i = 0; i < batch->count; i++)
            weir__caches_bring_home(f, &batch->remote[i], f->emptied);
        free(batch);
        batch = more;
    }
}

static size_t bytes_of(const struct weir_remote_slots *remotes) {
    size_t bytes = 0;

    for (; remotes; remotes = remotes->more)
        for (uint32_t i = 0; i < remotes->count; i++)
            bytes += (size_t)remotes->remote[i].span->slot_units * WEIR_SLAB_UNIT;
    return bytes;
}

void weir__caches_strand(struct weir_caches *f, struct weir_remote_slots *remotes) {
    struct weir_remote_slots **end = &remotes;

    atomic_fetch_add_explicit(&f->stranded, bytes_of(remotes), memory_order_relaxed);
    while (*end)
        end = &(*end)->more;
    *end = f->unfenced;
    f->unfenced = remotes;
}

int weir__caches_settle(struct weir_caches *f) {
    int settled;

    pthread_mutex_lock(&f->lock);
    settled = weir__order_complete(&f->order, SIZE_MAX);
    pthread_mutex_unlock(&f->lock);
    return settled;
}

/* ---- flushing one cache ---- */

/* Gives flushed memory of `c` to the engine, in a call on its stream, whose id was just found to be the cache's: spans
 * as freed on that stream, remote frees behind an event there. */
static void deliver(struct weir_caches *f, struct weir_cache *c, weir_stream stream,
                    struct weir_flushed *h) {
    uint64_t id = atomic_load_explicit(&c->id, memory_order_relaxed);

    if (!h->spans && !h->remotes)
        return;
    pthread_mutex_lock(&f->lock);
    complete_some(f);
    if (f->is_straight)
        weir__caches_end(f, h->spans, id, stream);
    else
        weir__caches_give(f, h->spans, id, c);
    if (h->remotes && weir__order_defer(&f->order, stream, NULL, (uintptr_t)h->remotes) != WEIR_OK)
        weir__caches_strand(f, h->remotes);
    pthread_mutex_unlock(&f->lock);
}

/* Maintains a cache, in a call on its stream whose id was just found to be the cache's: adapts its cap, and flushes what
 * exceeds the cap or was unused for long. */
static void maintain_cache(struct weir_caches *f, struct weir_cache *c, weir_stream stream) {
    struct weir_flushed h = {0};
    uint64_t now = f->hits.device->driver->ticks();
    int taken, expired;
    size_t most;

    pthread_mutex_lock(&f->lock);
    if (is_over(f, f->span_ticks, now)) { /* a new span begins */
        f->span_ticks = now;
        f->lately[1] = f->lately[0];
        f->lately[0] = 0;
    }
    weir__caches_set_cap(f, c);
    expired = is_over(f, c->looked_ticks, now);
    if (expired)
        c->looked_ticks = now;
    pthread_mutex_unlock(&f->lock);
    taken = weir__bias_take(&c->lock);
    c->due = 0;
    weir__cache_pass(c);
    most = atomic_load_explicit(&c->most, memory_order_relaxed);
    weir__cache_drop_inbox(c, &h);
    if (atomic_load_explicit(&c->idle, memory_order_relaxed) > most) {
        weir__cache_collect(c);
        /* A quarter less than allowed, so that the next request does not find the cache full again. */
        weir__cache_drop_slabs(c, most - most / 4, 0, &h);
    }
    if (expired)
        weir__cache_drop_slabs(c, 0, 1, &h);
    weir__cache_remotes(c, WEIR_CACHE_REMOTES, &h);
    weir__bias_give(&c->lock, taken);
    deliver(f, c, stream, &h);
}

void weir__caches_give_all(struct weir_caches *f, struct weir_cache *c, weir_stream stream) {
    struct weir_flushed h = {0};
    int taken = weir__bias_take(&c->lock);

    weir__cache_empty(c, &h);
    weir__bias_give(&c->lock, taken);
    deliver(f, c, stream, &h);
}

void weir__caches_catch_up(struct weir_caches *f, struct weir_cache *c, weir_stream stream) {
    int taken = weir__bias_take(&c->lock), due = c->due;

    weir__cache_pass(c); /* a capture may have ended */
    weir__bias_give(&c->lock, taken);
    if (due)
        maintain_cache(f, c, stream);
    weir__engine_maintain(f->engine, stream, atomic_load_explicit(&c->id, memory_order_relaxed));
}

void weir__caches_retire(struct weir_caches *f, struct weir_cache *c, uint64_t id) {
    struct weir_flushed h = {0};
    int taken = weir__bias_take(&c->lock);

    if (c->serves) {
        c->serves = 0;
        weir__cache_readdress(c); /* from now on nothing enters the remote-free queue */
        weir__cache_empty(c, &h);
        weir__cache_disown(c);
    }
    weir__cache_pass(c);
    weir__bias_give(&c->lock, taken);
    weir__caches_unwatch(c);
    c->is_left |= id == WEIR_ENGINE_UNKNOWN;
    weir__caches_give(f, h.spans, id, NULL);
    weir__caches_strand(f, h.remotes);
    c->young = 0;
}

/* ---- flushing all caches ---- */

/* Returns the stream id under which flushed memory goes to the engine after a wait for the device: that of the only
 * stream, so that the engine need not order anything, or OBSERVED if there are several or the driver orders reuse. */
static uint64_t whose(const struct weir_caches *f) {
    const struct weir_cache *only = NULL;

    for (const struct weir_cache *c = f->caches; c; c = c->next) {
        if (c == f->loose)
            continue;
        if (only || f->is_straight)
            return WEIR_ENGINE_OBSERVED;
        only = c;
    }
    return only && only->serves ? atomic_load_explicit(&only->id, memory_order_relaxed)
                                : WEIR_ENGINE_OBSERVED;
}

/* Frees the blocks of an engine with is_straight that wait for a wait for the device, after such a wait.  The caller
 * holds `lock`, which the function releases meanwhile. */
static CUresult end_waiting(struct weir_caches *f) {
    struct weir_slab *blocks = f->waiting;
    CUresult result;

    if (!blocks)
        return CUDA_SUCCESS;
    f->waiting = NULL;
    for (const struct weir_slab *s = blocks; s; s = s->next)
        atomic_fetch_sub_explicit(&f->stranded, weir__slab_bytes(s), memory_order_relaxed);
    pthread_mutex_unlock(&f->lock);
    result = weir__device_wait(f->hits.device);
    pthread_mutex_lock(&f->lock);
    weir__caches_give(f, blocks,
                      result == CUDA_SUCCESS ? WEIR_ENGINE_OBSERVED : WEIR_ENGINE_UNKNOWN, NULL);
    return result;
}

/* One thread flushes at a time, so the next thread finds what the first one freed.  Otherwise the next thread's request
 * could fail while the first thread holds the memory and waits for the device.
 *
 * A slab that becomes empty after the wait may have slots that were freed after it, on any stream that the handle means.
 * So the slab is quarantined. */
weir_status weir__caches_empty(void *caches) {
    struct weir_caches *f = caches;
    struct weir_flushed h = {0}, emptied = {0};
    CUresult result = CUDA_SUCCESS;
    int arrived;

    pthread_mutex_lock(&f->flushing);
    pthread_mutex_lock(&f->lock);
    h.remotes = f->unfenced;
    f->unfenced = NULL;
    atomic_fetch_sub_explicit(&f->stranded, bytes_of(h.remotes), memory_order_relaxed);
    for (struct weir_cache *c = f->caches; c; c = c->next) {
        int taken = weir__bias_take(&c->lock);

        weir__cache_empty(c, &h);
        weir__bias_give(&c->lock, taken);
    }
    pthread_mutex_unlock(&f->lock);
    if (h.spans || h.remotes || f->order.deferred > 0)
        result = weir__device_wait(f->hits.device);
    arrived = result == CUDA_SUCCESS;
    pthread_mutex_lock(&f->lock);
    weir__caches_give(f, h.spans, arrived ? whose(f) : WEIR_ENGINE_UNKNOWN, NULL);
    if (arrived) {
        f->emptied = &emptied;
        weir__caches_return(f, (uintptr_t)h.remotes);
        weir__order_complete(&f->order, SIZE_MAX);
        f->emptied = NULL;
    } else {
        weir__caches_strand(f, h.remotes);
    }
    weir__caches_give(f, emptied.spans, WEIR_ENGINE_UNKNOWN, NULL);
    if (arrived)
        result = end_waiting(f);
    pthread_mutex_unlock(&f->lock);
    pthread_mutex_unlock(&f->flushing);
    return weir__device_status(f->hits.device, result);
}
