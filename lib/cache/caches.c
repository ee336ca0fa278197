/* SPDX-License-Identifier: MIT */
/* caches.c: opens and closes the caches of an allocator; finds and lists live blocks; makes the statistics.
 *
 * What: each cache counts its blocks under its own lock, and any thread may add the counts up.  Statistics add the
 * counts up, and so does a miss after the engine's blocks have grown; both raise the peaks of the sums.
 *
 * Locks: the caches' lock; the records' lock, for lists of blocks.
 */
#include "cache/caches_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "base/size.h"

/* The time after which a cache returns memory that its stream does not use. */
#define IDLE_NS UINT64_C(1000000000)

/* The sums are added up once the engine's blocks have grown by this part since the last time, and by GROWN_LEAST at
 * least. */
#define GROWN_LEAST ((uint64_t)16 << 20)

#define GROWN_PART 32

/* ---- all caches ---- */

void weir__caches_prepare(struct weir_caches *f, const struct weir_extent *extents, size_t count,
                          size_t most) {
    size_t left = most;

    for (size_t i = 0; i < count; i++) {
        size_t bytes = (size_t)weir__size_smaller(extents[i].bytes, left);

        weir__records_prepare(&f->records, extents[i].base, bytes, extents[i].large);
        left -= bytes;
    }
    weir__records_stock(&f->records, most - left);
}

weir_status weir__caches_open(struct weir_reserve *v, struct weir_caches **out) {
    struct weir_caches *f = aligned_alloc(_Alignof(struct weir_caches), sizeof *f);

    if (!f)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    memset(f, 0, sizeof *f);
    f->v = v;
    f->engine = v->engine;
    f->hits.device = v->device;
    f->hits.checks = v->options->stream_checks != WEIR_SWITCH_OFF;
    f->is_straight = !(v->engine->traits & WEIR_ENGINE_CUTS);
    f->idle_ns = IDLE_NS;
    f->span_ticks = v->device->driver->ticks();
    pthread_mutex_init(&f->flushing, NULL);
    pthread_mutex_init(&f->lock, NULL);
    weir__order_open(&f->order, v->device, NULL, weir__caches_return, f);
    weir__bias_prepare();
    f->loose = weir__caches_make(f);
    if (!f->loose || !weir__records_open(&f->records, &f->hits.pages)) {
        weir__caches_close(f);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    v->flush_caches = weir__caches_empty;
    v->caches = f;
    *out = f;
    return WEIR_OK;
}

static void end_for_good(void *caches, struct weir_slab *s) {
    struct weir_caches *f = caches;
    CUdeviceptr base = weir__slab_base(s);
    struct weir_freed freed = {.block = &base, .count = 1};

    if (weir__slab_bytes(s) > 0)
        (void)f->engine->ops->give(f->engine, &freed, WEIR_ENGINE_OBSERVED);
}

void weir__caches_close(struct weir_caches *f) {
    if (!f)
        return;
    weir__order_close(&f->order);
    weir__caches_return(f, (uintptr_t)f->unfenced);
    if (f->is_straight)
        weir__records_walk(&f->records, end_for_good, f);
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
    const struct weir_slab *s = weir__records_find(&f->hits.pages, block);

    return s && weir__slab_bytes(s) > 0 ? weir__slab_asked(s, block) > 0
                                        : weir__graphs_has(&f->v->graphs, block);
}

/* Returns the record of the span that contains the address, or NULL.  A whole block has its record at its first page
 * only.  So the search for another address walks back page by page, past records of blocks that are gone, as far as the
 * largest block reaches.  While the block is live, nothing on that way changes. */
static const struct weir_slab *span_around(struct weir_caches *f, CUdeviceptr address) {
    uint64_t largest = atomic_load_explicit(&f->largest, memory_order_relaxed);
    CUdeviceptr page = address & ~(CUdeviceptr)(WEIR_PAGE - 1);

    if (!weir__engine_may_have(f->engine, address))
        return NULL;
    for (;; page -= WEIR_PAGE) {
        const struct weir_slab *s = weir__records_find(&f->hits.pages, page);

        if (s && weir__slab_bytes(s) > 0)
            return address - weir__slab_base(s) < weir__slab_bytes(s) ? s : NULL;
        if (page < WEIR_PAGE || address - page >= largest)
            return NULL;
    }
}

int weir__caches_find(struct weir_caches *f, CUdeviceptr address, CUdeviceptr *block,
                      size_t *bytes) {
    const struct weir_slab *s = span_around(f, address);

    if (!s)
        return 0;
    *block = weir__slab_base(s);
    if (s->slot_units)
        *block = weir__slab_address(s, (uint32_t)((address - *block) / weir__slab_in_use(s)));
    *bytes = weir__slab_asked(s, *block);
    return address - *block < *bytes;
}

int weir__caches_hold(struct weir_caches *f, CUdeviceptr address) {
    return span_around(f, address) != NULL;
}

struct seeing {
    weir__live_fn *see;
    void *context;
};

static void see_span(void *context, struct weir_slab *s) {
    const struct seeing *v = context;
    int is_live = atomic_load_explicit(&s->asked, memory_order_relaxed) > 0;

    for (uint32_t i = 0; i < s->slots; i++) /* a whole block has no slots */
        is_live |= !(atomic_load_explicit(&s->slot[i], memory_order_relaxed) & WEIR_SLOT_IDLE);
    if (is_live)
        v->see(v->context, weir__slab_base(s), weir__slab_bytes(s));
}

void weir__caches_live(void *caches, weir__live_fn *see, void *context) {
    struct weir_caches *f = caches;
    struct seeing v = {see, context};

    weir__records_walk(&f->records, see_span, &v);
}

struct visiting {
    weir__engine_visit_fn *show;
    void *context;
};

static void show_block(const struct visiting *v, uint64_t bytes, uint64_t stream) {
    v->show(v->context, &(struct weir_extent){.bytes = bytes, .stream = stream});
}

static void visit_span(void *context, struct weir_slab *s) {
    const struct visiting *v = context;
    const struct weir_cache *owner = NULL;
    uint64_t asked, id = 0;

    if (s->slot_units == 0) {
        asked = atomic_load_explicit(&s->asked, memory_order_relaxed);
        if (asked > 0)
            show_block(v, asked, atomic_load_explicit(&s->fetched_for, memory_order_relaxed));
        return;
    }
    owner = atomic_load_explicit(&s->cache, memory_order_relaxed);
    if (owner)
        id = atomic_load_explicit(&owner->id, memory_order_relaxed);
    for (uint32_t i = 0; i < s->slots; i++) {
        asked = atomic_load_explicit(&s->slot[i], memory_order_relaxed);
        if (!(asked & WEIR_SLOT_IDLE))
            show_block(v, asked, id);
    }
}

void weir__caches_blocks(struct weir_caches *f, weir__engine_visit_fn *show, void *context) {
    struct visiting v = {show, context};

    weir__records_walk(&f->records, visit_span, &v);
}

/* ---- statistics ---- */

static void raise_peak(uint64_t *peak, int64_t bytes) {
    if (bytes > 0 && (uint64_t)bytes > *peak)
        *peak = (uint64_t)bytes;
}

/* Adds up the bytes in blocks of all caches, and raises the peaks.  A peak is exact if one cache alone was used, except
 * for slots in its remote-free queue.  The caller holds `lock`. */
static void add_up(struct weir_caches *f, weir_statistics *out) {
    const struct weir_cache *only = NULL;
    int64_t requested = 0, in_use = 0;
    int used = 0;

    for (struct weir_cache *c = f->caches; c; c = c->next) {
        /* The queue is read first: a slot that is collected meanwhile is subtracted twice, so no peak is too high. */
        struct weir_posted posted = weir__cache_posted(c);

        requested += weir__sum_now(&c->requested) - (int64_t)posted.requested;
        in_use += weir__sum_now(&c->in_use) - (int64_t)posted.in_use;
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
    /* A sum may be negative for a moment: a thread has counted a free, but the allocation is not yet counted. */
    out->requested = requested > 0 ? (uint64_t)requested : 0;
    out->in_use = in_use > 0 ? (uint64_t)in_use : 0;
    out->requested_peak = f->requested_peak;
    out->in_use_peak = f->in_use_peak;
}

/* Sets the bytes of the engine's blocks above which a miss adds up.  Programs read and reset the peak of the driver's
 * pools, so any growth counts where weir stands in for such a pool. */
static void expect_growth(struct weir_caches *f) {
    uint64_t now = weir__caches_in_blocks(f);
    uint64_t more = f->hits.device->drop_in ? 0 : weir__size_larger(now / GROWN_PART, GROWN_LEAST);

    atomic_store_explicit(&f->add_up_above, now + more, memory_order_relaxed);
}

void weir__caches_note_peak(struct weir_caches *f) {
    weir_statistics figures;

    pthread_mutex_lock(&f->lock);
    expect_growth(f);
    add_up(f, &figures);
    pthread_mutex_unlock(&f->lock);
}

int weir__caches_has_blocks(struct weir_caches *f) {
    weir_statistics figures;

    pthread_mutex_lock(&f->lock);
    add_up(f, &figures);
    pthread_mutex_unlock(&f->lock);
    return figures.requested > 0;
}

uint64_t weir__caches_peak_lately(struct weir_caches *f, int renew) {
    weir_statistics figures;
    uint64_t peak;

    pthread_mutex_lock(&f->lock);
    add_up(f, &figures); /* updates the lifetime peaks */
    peak = f->requested_lately;
    for (struct weir_cache *c = renew ? f->caches : NULL; c; c = c->next) {
        int taken = weir__bias_take(&c->lock);

        weir__sum_renew_peak(&c->requested);
        weir__bias_give(&c->lock, taken);
    }
    if (renew) {
        f->requested_lately = figures.requested;
        expect_growth(f);
    }
    pthread_mutex_unlock(&f->lock);
    return peak;
}

/* Returns the bytes that are idle in a cache and in its inbox. */
static size_t idle_in(const struct weir_cache *c) {
    return atomic_load_explicit(&c->idle, memory_order_relaxed) +
           atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed);
}

/* Reads frees before allocations, so that frees never exceed allocations. */
void weir__caches_figures(struct weir_caches *f, weir_statistics *out) {
    const struct weir_striped *striped = &f->v->events.counters->striped;

    out->deferred_frees = weir__striped_sum(striped, WEIR_STRIPED_CACHES_DEFERRED);
    pthread_mutex_lock(&f->lock);
    for (struct weir_cache *c = f->caches; c; c = c->next) {
        out->frees += atomic_load_explicit(&c->frees, memory_order_acquire);
        /* Read second, since slots move from the queue to `frees`. */
        out->frees += weir__cache_posted(c).count;
    }
    for (struct weir_cache *c = f->caches; c; c = c->next) {
        out->cache_hits += atomic_load_explicit(&c->hits, memory_order_relaxed);
        out->cache_idle += idle_in(c);
    }
    add_up(f, out);
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
    out->blocks = out->allocs - out->frees;
}

void weir__caches_survey(struct weir_caches *f, uint64_t id, struct weir_survey *out) {
    pthread_mutex_lock(&f->lock);
    for (const struct weir_cache *c = f->caches; c; c = c->next) {
        uint64_t of = atomic_load_explicit(&c->id, memory_order_relaxed);

        if (idle_in(c) > 0 && of != id)
            weir__engine_pends(out, of, idle_in(c));
    }
    for (const struct weir_slab *s = f->waiting; s; s = s->next)
        weir__engine_pends(out, WEIR_ENGINE_UNKNOWN, weir__slab_bytes(s));
    pthread_mutex_unlock(&f->lock);
}
