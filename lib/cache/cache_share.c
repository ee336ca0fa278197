/* SPDX-License-Identifier: MIT */
/* cache_share.c: what the caches have handed out, all together, and how much idle memory each may keep.
 *
 * What: each cache counts for itself, under its own lock.  The sums of all are brought up to date by the cache that tells of
 * its own, at its misses and when it is looked after.  Peaks come of these sums, and shares of what is in use.
 *
 * Locks: the caller holds the caches's, where a function does not take it.
 */
#include "cache/caches_state.h"

#include "base/size.h"
#include "cache/slab_table.h"
#include "config/amount.h"
#include "engine/stream_order.h"

#define CACHE_LEAST ((uint64_t)1 << 20) /* that a cache may keep however many there are */

/* ---- sums ---- */

void weir__caches_tell_sums(struct weir_caches *f, struct weir_cache *c) {
    uint64_t posted, posted_in_use;
    int64_t requested, in_use;

    /* The remote-free queue first: what is fetched meanwhile is taken off twice, and no peak is too high. */
    (void)weir__cache_posted(c, &posted, &posted_in_use);
    requested = weir__sum_now(&c->requested) - (int64_t)posted;
    in_use = weir__sum_now(&c->in_use) - (int64_t)posted_in_use;
    f->requested += requested - atomic_load_explicit(&c->told_requested, memory_order_relaxed);
    f->in_use += in_use - atomic_load_explicit(&c->told_in_use, memory_order_relaxed);
    atomic_store_explicit(&c->told_requested, requested, memory_order_relaxed);
    atomic_store_explicit(&c->told_in_use, in_use, memory_order_relaxed);
}

static int is_above_peak(const struct weir_caches *f) {
    return at_least_none(f->requested) > f->requested_lately ||
           at_least_none(f->in_use) > f->in_use_peak;
}

/* Adds what a cache has handed out to the sums, and returns what all caches have handed out; the caller holds `lock`.
 * Before a peak rises, all caches are asked: a block taken on one and freed on another counts until the other has
 * told. */
static uint64_t tell_peaks(struct weir_caches *f, struct weir_cache *c) {
    struct weir_cache *other;
    uint64_t now;

    weir__caches_tell_sums(f, c);
    for (other = is_above_peak(f) ? f->caches : NULL; other; other = other->next)
        weir__caches_tell_sums(f, other);
    now = at_least_none(f->in_use);
    f->requested_peak = weir__size_larger(f->requested_peak, at_least_none(f->requested));
    f->requested_lately = weir__size_larger(f->requested_lately, at_least_none(f->requested));
    f->in_use_peak = weir__size_larger(f->in_use_peak, now);
    f->lately[0] = weir__size_larger(f->lately[0], now);
    return now;
}

/* ---- shares ---- */

/* What a cache may keep if so much is in use; the caller holds `lock`. */
static size_t share(const struct weir_caches *f, uint64_t in_use) {
    uint64_t bytes = weir__budget_of_in_use(&f->v->options->cache_limit, in_use, f->in_use_peak) /
                     (f->cached ? f->cached : 1);

    if (f->v->options->cache_limit.kind == WEIR_AMOUNT_DEFAULT)
        bytes = weir__size_larger(bytes, CACHE_LEAST);
    /* What is kept here cannot go at a synchronisation. */
    return (size_t)weir__size_smaller(bytes, f->engine->threshold);
}

static void set_most(struct weir_cache *c, size_t most) {
    size_t most_whole = atomic_load_explicit(&c->most_whole, memory_order_relaxed);

    atomic_store_explicit(&c->most, most, memory_order_relaxed);
    if (most_whole > most - most / 4)
        atomic_store_explicit(&c->most_whole, most - most / 4, memory_order_relaxed);
}

/* What a cache keeps or may keep; what is leaving goes at the next miss. */
static size_t most_kept(const struct weir_cache *c) {
    size_t idle = atomic_load_explicit(&c->idle, memory_order_relaxed);
    size_t leaving = atomic_load_explicit(&c->leaving, memory_order_relaxed);

    return (size_t)weir__size_larger(weir__size_less(idle, leaving),
                                     atomic_load_explicit(&c->most, memory_order_relaxed));
}

/* What the user set is a limit: a cache gets less than its share if others still hold the memory, since a stream that
 * makes no calls cannot release its own.  The caller holds `lock`. */
static size_t share_left(const struct weir_caches *f, const struct weir_cache *c, uint64_t in_use) {
    uint64_t left = weir__budget_of_in_use(&f->v->options->cache_limit, in_use, f->in_use_peak);
    size_t most = share(f, in_use);

    if (f->v->options->cache_limit.kind == WEIR_AMOUNT_DEFAULT)
        return most;
    for (const struct weir_cache *other = f->caches; other && left > 0; other = other->next)
        if (other != c && other->store)
            left = weir__size_less(left, most_kept(other));
    return (size_t)weir__size_smaller(most, left);
}

void weir__caches_lower_shares(struct weir_caches *f) {
    size_t most = share(f, weir__size_larger(f->lately[0], f->lately[1]));

    for (struct weir_cache *c = f->caches; c; c = c->next)
        if (c->store && atomic_load_explicit(&c->most, memory_order_relaxed) > most)
            set_most(c, most);
}

void weir__caches_tell(struct weir_caches *f, struct weir_cache *c) {
    uint64_t now = tell_peaks(f, c), lately;

    if (!c->store)
        return;
    lately = weir__size_larger(f->lately[0], f->lately[1]);
    atomic_store_explicit(&c->most, share_left(f, c, lately), memory_order_relaxed);
    /* Less of what should join its neighbours. */
    now = weir__size_smaller(share(f, now), atomic_load_explicit(&c->most, memory_order_relaxed));
    atomic_store_explicit(&c->most_whole, is_steady(f) ? now - now / 4 : 0, memory_order_relaxed);
}

void weir__caches_tell_all(struct weir_caches *f, struct weir_cache *c, uint64_t out) {
    pthread_mutex_lock(&f->lock);
    atomic_store_explicit(&f->told_out, out, memory_order_relaxed);
    for (struct weir_cache *other = f->caches; other; other = other->next)
        weir__caches_tell_sums(f, other);
    weir__caches_tell(f, c ? c : f->loose);
    pthread_mutex_unlock(&f->lock);
}

void weir__caches_tell_own(struct weir_caches *f, struct weir_cache *c) {
    pthread_mutex_lock(&f->lock);
    (void)tell_peaks(f, c ? c : f->loose);
    pthread_mutex_unlock(&f->lock);
}

/* ---- what was in use lately ---- */

int weir__caches_is_over(const struct weir_caches *f, uint64_t then, uint64_t now) {
    return now > then && f->hits.device->driver->ticks_to_ns(now - then) >= f->idle_ns;
}

void weir__caches_age(struct weir_caches *f, uint64_t now) {
    if (!weir__caches_is_over(f, f->span_ticks, now))
        return;
    f->span_ticks = now;
    f->lately[1] = f->lately[0];
    f->lately[0] = 0;
}
