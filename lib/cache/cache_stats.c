/* SPDX-License-Identifier: MIT */
/* cache_stats.c: the caches' part of weir_statistics, and their idle memory by stream. */
#include "cache/caches_state.h"

#include "base/size.h"
#include "cache/slab_table.h"
#include "engine/stream_order.h"

int weir__caches_has_blocks(struct weir_caches *f) {
    int live;

    pthread_mutex_lock(&f->lock);
    for (struct weir_cache *c = f->caches; c; c = c->next)
        weir__caches_tell(f, c);
    live = f->requested > 0;
    pthread_mutex_unlock(&f->lock);
    return live;
}

static void raise_peak(uint64_t *peak, const struct weir_peak_sum *sum) {
    *peak =
        weir__size_larger(*peak, (uint64_t)atomic_load_explicit(&sum->peak, memory_order_relaxed));
}

/* Reads sums and peaks.  Peaks are exact if only one cache has allocated or freed anything, except for slots in its
 * remote-free queue. */
static void read_peaks(struct weir_caches *f, weir_statistics *out) {
    const struct weir_cache *only = NULL;
    int several = 0;

    for (struct weir_cache *c = f->caches; c; c = c->next) {
        weir__caches_tell(f, c);
        if (atomic_load_explicit(&c->in_use.peak, memory_order_relaxed) > 0 ||
            atomic_load_explicit(&c->frees, memory_order_relaxed) > 0 ||
            (c == f->loose && atomic_load_explicit(&f->past, memory_order_relaxed))) {
            several |= only != NULL;
            only = c;
        }
    }
    out->requested = at_least_none(f->requested);
    out->in_use = at_least_none(f->in_use);
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
    f->requested_lately = at_least_none(f->requested);
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
        out->cache_idle += atomic_load_explicit(&c->idle, memory_order_relaxed);
    }
    read_peaks(f, out);
    out->cache_streams = f->cached;
    out->event_records += f->order.event_records;
    out->host_bytes += f->host_bytes + weir__records_host_bytes(&f->records);
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
        size_t idle = atomic_load_explicit(&c->idle, memory_order_relaxed);
        uint64_t of = atomic_load_explicit(&c->id, memory_order_relaxed);

        if (idle > 0 && of != id)
            weir__engine_pends(out, of, idle);
    }
    pthread_mutex_unlock(&f->lock);
}
