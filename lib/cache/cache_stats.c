/* SPDX-License-Identifier: MIT */
/* cache_stats.c: sums over all caches, how much idle memory each cache may keep, and statistics.
 *
 * What: each cache counts its blocks under its own lock, and any thread may add the counts up.  Statistics add the
 * counts up, and so does a miss after the engine's blocks have grown; both raise the peaks of the sums.  Caps follow
 * from the sum of the engine's blocks, which the engine publishes.
 *
 * Locks: the caller holds the caches' lock, unless a function takes it.
 */
#include "cache/caches_state.h"

#include "base/size.h"
#include "config/amount.h"

/* The least default cap of a cache, however many caches there are. */
#define CACHE_LEAST ((uint64_t)1 << 20)

/* The sums are added up once the engine's blocks have grown by this part since the last time, and by GROWN_LEAST at
 * least. */
#define GROWN_LEAST ((uint64_t)16 << 20)

#define GROWN_PART 32

/* ---- sums ---- */

/* The bytes in blocks of all caches. */
struct sums {
    uint64_t requested, in_use;
};

/* Adds up the counts of all caches, and raises the peaks.  The caller holds `lock`. */
static struct sums add_up(struct weir_caches *f) {
    int64_t requested = 0, in_use = 0;
    struct sums now;

    for (struct weir_cache *c = f->caches; c; c = c->next) {
        uint64_t posted, posted_in_use;

        /* The queue is read first: a slot that is collected meanwhile is subtracted twice, so no peak is too high. */
        (void)weir__cache_posted(c, &posted, &posted_in_use);
        requested += weir__sum_now(&c->requested) - (int64_t)posted;
        in_use += weir__sum_now(&c->in_use) - (int64_t)posted_in_use;
    }
    now = (struct sums){at_least_none(requested), at_least_none(in_use)};
    f->requested_peak = weir__size_larger(f->requested_peak, now.requested);
    f->requested_lately = weir__size_larger(f->requested_lately, now.requested);
    f->in_use_peak = weir__size_larger(f->in_use_peak, now.in_use);
    return now;
}

static uint64_t in_blocks(const struct weir_caches *f) {
    return atomic_load_explicit(f->is_straight ? &f->taken : &f->engine->seen.in_use,
                                memory_order_relaxed);
}

void weir__caches_note_peak(struct weir_caches *f) {
    uint64_t then = atomic_load_explicit(&f->added_up, memory_order_relaxed), now = in_blocks(f);
    uint64_t more = f->hits.device->drop_in ? 0 : weir__size_larger(then / GROWN_PART, GROWN_LEAST);

    if (now <= then + more)
        return;
    pthread_mutex_lock(&f->lock);
    atomic_store_explicit(&f->added_up, now, memory_order_relaxed);
    (void)add_up(f);
    pthread_mutex_unlock(&f->lock);
}

/* ---- caps ---- */

static uint64_t most_in_blocks(const struct weir_caches *f) {
    return atomic_load_explicit(&f->engine->seen.most_in_use, memory_order_relaxed);
}

/* Returns the cap of each cache's idle memory while `in_use` bytes are in use.  The caller holds `lock`. */
static size_t share(const struct weir_caches *f, uint64_t in_use) {
    uint64_t bytes =
        weir__budget_of_in_use(&f->v->options->cache_limit, in_use, most_in_blocks(f)) /
        (f->cached ? f->cached : 1);

    if (f->v->options->cache_limit.kind == WEIR_AMOUNT_DEFAULT)
        bytes = weir__size_larger(bytes, CACHE_LEAST);
    /* A release threshold cannot free cached memory at a synchronisation, so it caps the caches, too. */
    return (size_t)weir__size_smaller(bytes, f->engine->threshold);
}

/* Returns the idle memory of a cache or its cap, whichever is larger. */
static size_t most_kept(const struct weir_cache *c) {
    return (size_t)weir__size_larger(atomic_load_explicit(&c->idle, memory_order_relaxed),
                                     atomic_load_explicit(&c->most, memory_order_relaxed));
}

/* Returns the bytes that are idle in a cache and in its inbox. */
static size_t idle_in(const struct weir_cache *c) {
    return atomic_load_explicit(&c->idle, memory_order_relaxed) +
           atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed);
}

/* Returns the cap of one cache.  A limit that the user set covers all caches together: the cache gets less than its
 * part if others still hold the memory, since a stream without calls cannot flush.  The caller holds `lock`. */
static size_t share_left(const struct weir_caches *f, const struct weir_cache *c, uint64_t in_use) {
    uint64_t left = weir__budget_of_in_use(&f->v->options->cache_limit, in_use, most_in_blocks(f));
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
            atomic_store_explicit(&c->most, most, memory_order_relaxed);
}

void weir__caches_set_cap(struct weir_caches *f, struct weir_cache *c) {
    f->lately[0] = weir__size_larger(f->lately[0], in_blocks(f));
    if (c->store)
        atomic_store_explicit(&c->most,
                              share_left(f, c, weir__size_larger(f->lately[0], f->lately[1])),
                              memory_order_relaxed);
}

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

/* ---- statistics ---- */

int weir__caches_has_blocks(struct weir_caches *f) {
    int live;

    pthread_mutex_lock(&f->lock);
    live = add_up(f).requested > 0;
    pthread_mutex_unlock(&f->lock);
    return live;
}

static void raise_peak(uint64_t *peak, const struct weir_peak_sum *sum) {
    *peak =
        weir__size_larger(*peak, (uint64_t)atomic_load_explicit(&sum->peak, memory_order_relaxed));
}

/* Reads sums and peaks.  Peaks are exact if one cache alone was used, except for slots in its remote-free queue. */
static void read_peaks(struct weir_caches *f, weir_statistics *out) {
    const struct weir_cache *only = NULL;
    struct sums now = add_up(f);
    int several = 0;

    for (struct weir_cache *c = f->caches; c; c = c->next) {
        if (atomic_load_explicit(&c->in_use.peak, memory_order_relaxed) > 0 ||
            atomic_load_explicit(&c->frees, memory_order_relaxed) > 0 ||
            (c == f->loose && atomic_load_explicit(&f->past, memory_order_relaxed))) {
            several |= only != NULL;
            only = c;
        }
    }
    out->requested = now.requested;
    out->in_use = now.in_use;
    if (only && !several) {
        raise_peak(&f->requested_peak, &only->requested);
        raise_peak(&f->requested_lately, &only->requested);
        raise_peak(&f->in_use_peak, &only->in_use);
    }
    out->requested_peak = f->requested_peak;
    out->in_use_peak = f->in_use_peak;
}

uint64_t weir__caches_peak_lately(struct weir_caches *f) {
    weir_statistics figures = {.size = sizeof figures};
    uint64_t peak;

    pthread_mutex_lock(&f->lock);
    read_peaks(f, &figures);
    peak = f->requested_lately;
    pthread_mutex_unlock(&f->lock);
    return peak;
}

void weir__caches_renew_peak(struct weir_caches *f) {
    weir_statistics figures = {.size = sizeof figures};

    pthread_mutex_lock(&f->lock);
    read_peaks(f, &figures); /* updates the lifetime peaks */
    for (struct weir_cache *c = f->caches; c; c = c->next) {
        int taken = weir__bias_take(&c->lock);

        weir__sum_renew_peak(&c->requested);
        weir__bias_give(&c->lock, taken);
    }
    f->requested_lately = figures.requested;
    atomic_store_explicit(&f->added_up, in_blocks(f), memory_order_relaxed);
    pthread_mutex_unlock(&f->lock);
}

/* Reads frees before allocations, so that frees never exceed allocations. */
void weir__caches_figures(struct weir_caches *f, weir_statistics *out) {
    const struct weir_striped *striped = &f->v->events.counters->striped;
    uint64_t frees = 0, posted, posted_in_use;

    out->deferred_frees = weir__striped_sum(striped, WEIR_STRIPED_CACHES_DEFERRED);
    pthread_mutex_lock(&f->lock);
    for (struct weir_cache *c = f->caches; c; c = c->next) {
        frees += atomic_load_explicit(&c->frees, memory_order_acquire);
        /* Read second, since slots move from the queue to `frees`. */
        frees += weir__cache_posted(c, &posted, &posted_in_use);
    }
    for (struct weir_cache *c = f->caches; c; c = c->next) {
        out->cache_hits += atomic_load_explicit(&c->hits, memory_order_relaxed);
        out->deferred_frees += atomic_load_explicit(&c->deferred, memory_order_relaxed);
        out->cache_idle += idle_in(c);
    }
    read_peaks(f, out);
    out->cache_streams = f->cached;
    out->event_records += f->order.event_records;
    out->host_bytes += f->host_bytes + f->records.host_bytes + f->hits.pages.host_bytes;
    pthread_mutex_unlock(&f->lock);
    out->cache_misses_young = weir__striped_sum(striped, WEIR_STRIPED_CACHES_YOUNG);
    out->cache_misses_empty = weir__striped_sum(striped, WEIR_STRIPED_CACHES_EMPTY);
    out->cache_misses_capture = weir__striped_sum(striped, WEIR_STRIPED_CACHES_CAPTURE);
    out->allocs = out->cache_hits + out->cache_misses_young + out->cache_misses_empty +
                  out->cache_misses_capture;
    out->hits = out->allocs - out->growth_allocs;
    out->attempts = out->allocs + out->failed_requests;
    out->frees += frees;
    out->blocks = out->allocs - out->frees;
}

void weir__caches_survey(struct weir_caches *f, uint64_t id, struct weir_survey *out) {
    pthread_mutex_lock(&f->lock);
    for (struct weir_cache *c = f->caches; c; c = c->next) {
        size_t idle = idle_in(c);
        uint64_t of = atomic_load_explicit(&c->id, memory_order_relaxed);

        if (idle > 0 && of != id)
            weir__engine_pends(out, of, idle);
    }
    for (const struct weir_slab *s = f->waiting; s; s = s->next)
        weir__engine_pends(out, atomic_load_explicit(&s->fetched_for, memory_order_relaxed),
                           weir__slab_bytes(s));
    for (const struct weir_slab *s = f->waiting_longer; s; s = s->next)
        weir__engine_pends(out, 0, weir__slab_bytes(s));
    pthread_mutex_unlock(&f->lock);
}
