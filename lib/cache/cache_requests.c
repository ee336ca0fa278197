/* SPDX-License-Identifier: MIT */
/* cache_requests.c: allocates and frees blocks where the inlined functions of stream_cache.h cannot. */
#include "cache/stream_cache.h"

#include <stdlib.h>

#include "base/bounds.h"
#include "base/result.h"
#include "base/size.h"

enum {
    SLAB_DOUBLINGS = 3,    /* a class's slabs double in size this many times, from SLAB_FIRST */
    IDLE_PART = 4,         /* has_many_idle()'s limit: in_use / IDLE_PART, at least IDLE_LEAST */
    SLABS_EXAMINED = 4096, /* has_many_idle() examines at most this number of slabs */
    RESULT_PART = 16       /* a result from n slabs is repeated in n / RESULT_PART calls */
};

#define SLAB_FIRST ((size_t)64 << 10)
#define SLAB_LEAST ((size_t)32 << 10)
#define IDLE_LEAST ((uint64_t)1 << 20)

#define NO_RESULT UINT64_MAX /* weir_freed.lacked before the engine has set it */

enum { REUSED_NEWEST = 8 }; /* a request examines this many of the inbox's newest blocks */

/* With several streams, the inbox (freed whole blocks) serves no request above this size, to limit fragmentation. */
#define REUSED_MOST ((size_t)2 << 20)

/* ---- a stream's cache ---- */

void weir__cache_collect(struct weir_cache *c) {
    struct weir_remote_queue *queue = &c->queue;
    uint64_t count;

    weir__lock_take(&queue->lock);
    for (struct weir_slab *s = queue->slabs; s; s = s->posted_next) {
        uint32_t before = s->idle;

        weir__slab_collect(s);
        weir__cache_relist_slab(c, s, before);
    }
    queue->slabs = NULL;
    weir__sum_sub(&c->requested, (int64_t)queue->requested);
    weir__sum_sub(&c->in_use, (int64_t)queue->in_use);
    /* Sets the queue's sums to 0 last, so that a thread that reads 0 also reads the new c->requested and c->in_use. */
    atomic_store_explicit(&queue->requested, 0, memory_order_release);
    atomic_store_explicit(&queue->in_use, 0, memory_order_release);
    count = atomic_load_explicit(&queue->count, memory_order_relaxed);
    atomic_store_explicit(&queue->count, 0, memory_order_release);
    weir__lock_give(&queue->lock);
    weir__cache_raise(&c->frees, count);
}

uint64_t weir__cache_alloc_next(struct weir_cache *c, size_t bytes) {
    unsigned size_class = weir__slab_class(bytes);
    struct weir_remote_slots *remotes = c->remotes[size_class];
    struct weir_remote_slot *remote;
    uint64_t block = weir__cache_alloc_first(c, bytes);

    if (block)
        return block;
    if (c->open[size_class])
        weir__cache_unlink(c, c->open[size_class]);
    if (c->open[size_class])
        return weir__cache_alloc_first(c, bytes);
    if (!remotes || remotes->count == 0)
        return 0;
    remote = &remotes->remote[--remotes->count];
    atomic_store_explicit(&remote->span->slot[remote->slot], (uint32_t)bytes, memory_order_relaxed);
    weir__sum_add(&c->requested, (int64_t)bytes);
    weir__sum_add(&c->in_use, (int64_t)remote->span->slot_units * WEIR_SLAB_UNIT);
    return weir__slab_address(remote->span, remote->slot);
}

/* Rounds up to whole pages of 16 KiB, the unit of the engine's blocks. */
static size_t in_pages(size_t bytes) {
    return (bytes + WEIR_PAGE - 1) & ~(WEIR_PAGE - 1);
}

uint64_t weir__cache_alloc_whole(struct weir_cache *c, size_t bytes) {
    size_t whole = in_pages(bytes);
    int most = c->room == UINT64_MAX || whole <= REUSED_MOST ? REUSED_NEWEST : 0;

    for (struct weir_slab **at = &c->inbox, *s; (s = *at) && most > 0; at = &s->next, most--) {
        if (weir__slab_bytes(s) != whole)
            continue;
        *at = s->next;
        c->inbox_count--;
        atomic_store_explicit(&c->inbox_bytes,
                              atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed) - whole,
                              memory_order_relaxed);
        atomic_store_explicit(&s->fetched_for, atomic_load_explicit(&c->id, memory_order_relaxed),
                              memory_order_relaxed);
        atomic_store_explicit(&s->asked, bytes, memory_order_relaxed);
        weir__sum_add(&c->requested, (int64_t)bytes);
        weir__sum_add(&c->in_use, (int64_t)whole);
        return weir__slab_base(s);
    }
    return 0;
}

size_t weir__caches_fit(size_t bytes) {
    size_t most;

    bytes = weir__size_round_down(bytes, WEIR_PAGE);
    if (bytes == 0 || bytes > WEIR_SLAB_SMALL)
        return bytes;
    most = weir__slab_slot_bytes(weir__slab_class(bytes));
    return most <= bytes ? most : weir__slab_slot_bytes(weir__slab_class(bytes) - 1);
}

/* ---- blocks to the engine ---- */

/* Sets how many bytes c->inbox may hold, or 0 if weir may soon release idle memory.  The caller holds c->lock. */
static void update_room(const struct weir_caches *f, struct weir_cache *c,
                        const struct weir_freed *freed) {
    const struct weir_goal *goal = &f->v->goal;

    if (freed->lacked == NO_RESULT || freed->lacked < c->lacked)
        return;
    c->lacked = freed->lacked;
    c->room = goal->has_threshold || goal->half_life_ns > 0 ||
                      (goal->in_requests &&
                       atomic_load_explicit(&goal->pressure.wanted, memory_order_relaxed) > 0)
                  ? 0
                  : freed->room;
}

/* If the driver orders reuse, the engine does not know the sizes of blocks, so this file counts the freed bytes. */
static void subtract_freed(struct weir_caches *f, size_t bytes) {
    atomic_fetch_sub_explicit(&f->engine->seen.in_use, bytes, memory_order_relaxed);
}

/* Ends a block's record, and frees the block on `stream`.  If `is_completed` is set, all work on the block has
 * completed, and weir frees the block for all streams.  If the engine cannot free the block, the block stays live, and
 * *s becomes its new record, or NULL if there is no host memory. */
static weir_status free_with_record_end(struct weir_caches *f, struct weir_slab **s,
                                        int is_completed, weir_stream stream,
                                        struct weir_use_list *uses) {
    size_t bytes = weir__slab_bytes(*s);
    CUdeviceptr base = weir__records_end(&f->records, *s);
    struct weir_freed freed = {.block = &base, .count = 1};
    weir_status status = is_completed
                             ? f->engine->ops->free_batch(f->engine, &freed, WEIR_ENGINE_OBSERVED)
                             : f->engine->ops->free(f->engine, base, stream, uses);

    if (status != WEIR_OK)
        *s = weir__records_whole(&f->records, base, bytes);
    else if (f->driver_orders)
        subtract_freed(f, bytes);
    return status;
}

/* Makes the driver free blocks in the order of `stream`, or at once if all work on the blocks has completed (`id` is
 * OBSERVED).  Unlocks f->lock meanwhile. */
static void free_driver_ordered(struct weir_caches *f, struct weir_slab *blocks, uint64_t id,
                                struct weir_cache *c, weir_stream stream) {
    struct weir_slab *refused = NULL, *next;
    _Atomic uint32_t *moving = &c->moving[c->turn];

    if (!blocks)
        return;
    atomic_fetch_add(moving, 1);
    pthread_mutex_unlock(&f->lock);
    for (struct weir_slab *s = blocks; s; s = next) {
        next = s->next;
        /* If there is no host memory for a new record, the block leaks. */
        if (free_with_record_end(f, &s, id == WEIR_ENGINE_OBSERVED, stream, NULL) != WEIR_OK && s) {
            s->next = refused;
            refused = s;
        }
    }
    pthread_mutex_lock(&f->lock);
    weir__caches_strand(f, refused, NULL);
    atomic_fetch_sub(moving, 1);
}

int weir__caches_give(struct weir_caches *f, struct weir_slab *spans, uint64_t id,
                      struct weir_cache *c, weir_stream stream) {
    CUdeviceptr block[WEIR_CACHE_INBOX];
    struct weir_freed freed = {.block = block};
    struct weir_slab *next;
    int due = 0, taken;

    if (f->driver_orders) {
        if (c || id == WEIR_ENGINE_OBSERVED)
            free_driver_ordered(f, spans, id, c ? c : f->uncached, stream);
        else
            weir__caches_strand(f, spans, NULL);
        return 0;
    }
    while (spans) {
        for (freed.count = 0; spans && freed.count < WEIR_CACHE_INBOX; spans = next) {
            next = spans->next;
            block[freed.count++] = weir__records_end(&f->records, spans);
        }
        due |= f->engine->ops->free_batch(f->engine, &freed, id) == WEIR_ENGINE_DUE;
        if (!c)
            continue;
        taken = weir__bias_take(&c->lock);
        update_room(f, c, &freed);
        weir__bias_give(&c->lock, taken);
    }
    return due;
}

/* ---- blocks from the engine ---- */

static weir_status return_fetched(struct weir_caches *f, const struct weir_request *r) {
    struct weir_freed freed = {.block = &r->block, .count = 1};

    if (f->driver_orders) {
        subtract_freed(f, r->bytes);
        (void)f->engine->ops->free(f->engine, r->block, r->stream, NULL);
    } else {
        (void)f->engine->ops->free_batch(f->engine, &freed, r->id);
    }
    return weir__without_driver(WEIR_E_HOST_MEMORY);
}

/* Returns 1 if partly used slabs have many idle slots, else 0.  The caller holds the cache's lock. */
static int has_many_idle(struct weir_cache *c) {
    int64_t in_use = weir__sum_now(&c->in_use);
    size_t most =
        (size_t)weir__size_larger(in_use < 0 ? 0 : (uint64_t)in_use / IDLE_PART, IDLE_LEAST);
    unsigned examined = 0;
    size_t idle = 0;

    if (c->results_to_reuse > 0) {
        c->results_to_reuse--;
        return c->had_many_idle;
    }
    for (int i = 0; i < WEIR_SLAB_CLASSES; i++)
        for (const struct weir_slab *s = c->open[i]; s && idle < most && examined < SLABS_EXAMINED;
             s = s->next, examined++)
            if (s->idle < s->slots)
                idle += (size_t)s->idle * s->slot_units * WEIR_SLAB_UNIT;
    c->results_to_reuse = examined / RESULT_PART;
    c->had_many_idle = idle >= most;
    return c->had_many_idle;
}

static size_t slab_slots(struct weir_cache *c, unsigned size_class) {
    size_t slot = weir__slab_slot_bytes(size_class), bytes;
    int taken = weir__bias_take(&c->lock);

    bytes = SLAB_FIRST << weir__size_smaller(c->slabs[size_class], SLAB_DOUBLINGS);
    if (c->slabs[size_class] > 0 && bytes / slot > 1 && has_many_idle(c))
        bytes = SLAB_LEAST;
    weir__bias_give(&c->lock, taken);
    return weir__size_smaller(weir__size_larger(bytes / slot, 1), WEIR_RECORDS_SLOTS);
}

/* Serves a request from a new slab, with fewer slots if the engine lacks memory. */
static weir_status add_slab(struct weir_caches *f, struct weir_cache *c, struct weir_request *r) {
    unsigned size_class = weir__slab_class(r->asked);
    size_t slot = weir__slab_slot_bytes(size_class);
    struct weir_slab *s;
    weir_status status;
    int taken;

    r->flags = WEIR_REQUEST_SLAB; /* clears flags of an earlier try of this request */
    r->grew = 0;
    r->bytes = in_pages(slab_slots(c, size_class) * slot);
    r->least = in_pages(slot);
    status = weir__reserve_alloc(f->v, r);
    if (status != WEIR_OK)
        return status;
    s = weir__records_begin(&f->records, r->block, r->bytes, size_class,
                            (uint32_t)(r->bytes / slot));
    if (!s)
        return return_fetched(f, r);
    taken = weir__bias_take(&c->lock);
    if (c->serves && is_its(c, r->id)) { /* otherwise no cache owns the slab */
        atomic_store_explicit(&s->cache, c, memory_order_relaxed);
        c->slabs[size_class]++;
        weir__cache_link(c, s);
    }
    weir__cache_more_idle(c, weir__slab_bytes(s));
    r->block = weir__cache_alloc_slot(c, s, r->asked);
    weir__bias_give(&c->lock, taken);
    return WEIR_OK;
}

/* Returns some completed remote frees to their slabs, and serves a small request from the cache or a new slab. */
static weir_status add_slot(struct weir_caches *f, struct weir_cache *c, struct weir_request *r) {
    int taken;

    if (atomic_load_explicit(&f->order.deferred, memory_order_relaxed) > 0) {
        pthread_mutex_lock(&f->lock);
        complete_some(f);
        pthread_mutex_unlock(&f->lock);
    }
    taken = weir__bias_take(&c->lock);
    /* unreached: no test covers a change of the cache's stream during this call */
    r->block = c->serves && is_its(c, r->id) ? weir__cache_alloc_next(c, r->asked) : 0;
    weir__bias_give(&c->lock, taken);
    return r->block ? WEIR_OK : add_slab(f, c, r);
}

static weir_status add_whole(struct weir_caches *f, struct weir_request *r) {
    struct weir_slab *s;
    weir_status status;

    r->bytes = in_pages(r->asked);
    status = weir__reserve_alloc(f->v, r);
    if (status != WEIR_OK)
        return status;
    s = weir__records_whole(&f->records, r->block, r->bytes);
    if (!s)
        return return_fetched(f, r);
    if (r->bytes > atomic_load_explicit(&f->largest, memory_order_relaxed))
        weir__raise_to(&f->largest, r->bytes);
    atomic_store_explicit(&s->fetched_for, r->id, memory_order_relaxed);
    atomic_store_explicit(&s->asked, r->asked, memory_order_relaxed);
    return WEIR_OK;
}

/* ---- requests ---- */

/* Serves a request on a stream that is being captured.  The engine adds an allocation to the CUDA graph, or fails. */
static weir_status alloc_captured(struct weir_caches *f, struct weir_request *r) {
    weir_status status;

    if (f->device->drop_in)
        return weir__without_driver(WEIR_E_CAPTURE);
    r->bytes = r->asked;
    r->id = 0; /* a nonzero id would mean to the engine that the stream is not being captured */
    r->flags |= WEIR_REQUEST_CAPTURED;
    status = weir__reserve_alloc(f->v, r);
    if (status == WEIR_OK)
        atomic_fetch_add_explicit(&f->captured_allocs, 1, memory_order_relaxed);
    return status;
}

/* Serves a request from the engine.  Frees the blocks of c->inbox unless driver_orders is set.  `c` may be NULL. */
static weir_status alloc_fresh(struct weir_caches *f, struct weir_cache *c,
                               struct weir_request *r) {
    struct weir_cache *counts = c ? c : f->uncached;
    int is_slot = c && r->asked <= WEIR_SLAB_SMALL, taken;
    CUdeviceptr block[WEIR_CACHE_INBOX];
    struct weir_freed freed = {.block = block, .lacked = NO_RESULT};
    struct weir_slab *inbox = NULL, *next;
    weir_status status;

    if (c && !f->driver_orders) {
        taken = weir__bias_take(&c->lock);
        /* unreached: no test covers a change of the cache's stream during this call */
        if (c->serves && is_its(c, r->id) && c->inbox) {
            freed.moving = &c->moving[c->turn];
            atomic_fetch_add(freed.moving, 1);
            inbox = weir__cache_empty_inbox(c);
        }
        weir__bias_give(&c->lock, taken);
    }
    for (; inbox; inbox = next) {
        next = inbox->next;
        block[freed.count++] = weir__records_end(&f->records, inbox);
    }
    r->freed = c ? &freed : NULL;
    status = is_slot ? add_slot(f, c, r) : add_whole(f, r);
    r->freed = NULL;
    if (freed.count > 0) /* add_slot() found a slot without a call to the engine */
        (void)f->engine->ops->free_batch(f->engine, &freed, r->id);
    taken = weir__bias_take(&counts->lock);
    if (status == WEIR_OK)
        weir__cache_raise(&counts->misses, 1);
    if (status == WEIR_OK && !is_slot) {
        weir__sum_add(&counts->requested, (int64_t)r->asked);
        weir__sum_add(&counts->in_use, (int64_t)r->bytes);
    }
    update_room(f, counts, &freed);
    weir__bias_give(&counts->lock, taken);
    if (status == WEIR_OK && atomic_load_explicit(&f->engine->seen.in_use, memory_order_relaxed) >
                                 atomic_load_explicit(&f->add_up_above, memory_order_relaxed))
        (void)weir__caches_peak_lately(f, 0); /* raises the peaks */
    return status;
}

/* Does the work that the fast path leaves to slower calls, and serves the request. */
static __attribute__((noinline)) weir_status alloc_slow(struct weir_caches *f,
                                                        struct weir_request *r) {
    struct weir_cache *c;
    weir_status status = weir__caches_query_stream(f, r->stream, &r->id, &c);
    int taken;

    if (status == WEIR_E_CAPTURE)
        return alloc_captured(f, r);
    if (status != WEIR_OK) {
        weir__device_log_alloc(f->device, r->asked, status);
        return status;
    }
    if (!c)
        return alloc_fresh(f, NULL, r);
    weir__caches_do_deferred(f, c, r->stream, r->id);
    taken = weir__bias_take(&c->lock);
    r->block = take_cached(c, r->id, r->asked);
    weir__bias_give(&c->lock, taken);
    return r->block ? WEIR_OK : alloc_fresh(f, c, r);
}

weir_status weir__caches_miss(struct weir_caches *f, struct weir_cache *c, int taken,
                              struct weir_request *r) {
    int plain;

    if (!c)
        return alloc_slow(f, r);
    plain = c->is_ready && is_its(c, r->id);
    if (r->id == 0) /* not queried, since weir trusts the handle */
        r->id = atomic_load_explicit(&c->id, memory_order_relaxed);
    weir__bias_give(&c->lock, taken);
    return plain ? alloc_fresh(f, c, r) : alloc_slow(f, r);
}

weir_status weir__caches_alloc_at(struct weir_caches *f, struct weir_request *r) {
    weir_status status = weir__caches_identify(f, r->stream, &r->id);

    return status == WEIR_OK ? alloc_fresh(f, NULL, r) : status;
}

/* ---- frees without a cache ---- */

/* The state of one call that frees a block with a record. */
struct freeing {
    struct weir_cache *c;  /* the cache of the stream, or NULL */
    unsigned long long id; /* the id of the stream, or 0 if the driver was not queried */
    struct weir_slab *s;
    CUdeviceptr block;
    weir_stream stream;
    _Atomic uint32_t *moving; /* the cache's count that put_whole() has raised */
    int wanted;               /* result: 1 if the cache has work for a slower call, else 0 */
};

static void count_free(struct weir_cache *c, uint64_t requested, size_t in_use) {
    weir__sum_sub(&c->requested, (int64_t)requested);
    weir__sum_sub(&c->in_use, (int64_t)in_use);
    weir__cache_raise(&c->frees, 1);
}

/* Counts a freed block, but not in a cache whose lock another thread owns.  Returns 1 if work is deferred, else 0. */
static int count_uncached_free(struct weir_caches *f, struct weir_cache *c, uint64_t requested,
                               size_t in_use) {
    int taken, has_work;

    if (weir__bias_is_anothers(&c->lock))
        c = f->uncached;
    taken = weir__bias_take_at(&c->lock, WEIR_BIAS_INNER, WEIR_BIAS_GUEST);
    count_free(c, requested, in_use);
    has_work = c->serves && !c->is_ready;
    weir__bias_give(&c->lock, taken);
    return has_work;
}

static void do_deferred_in_free(struct weir_caches *f, weir_stream stream) {
    struct weir_cache *c;
    uint64_t id;

    if (weir__caches_query_stream(f, stream, &id, &c) == WEIR_OK && c)
        weir__caches_do_deferred(f, c, stream, id);
}

/* Marks a live block as freed.  Returns its requested bytes, or 0 if no live block starts at the address. */
static uint64_t mark_freed(struct weir_slab *s, CUdeviceptr block) {
    uint32_t asked = (uint32_t)weir__slab_asked(s, block);

    if (s->slot_units == 0)
        return weir__slab_base(s) == block
                   ? atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed)
                   : 0;
    /* unreached: no test makes another thread free the slot at this moment */
    return asked > 0 && atomic_compare_exchange_strong_explicit(
                            &s->slot[weir__slab_slot(s, block)], &asked, WEIR_SLOT_AWAY,
                            memory_order_relaxed, memory_order_relaxed)
               ? asked
               : 0;
}

/* Returns a freed slot to its slab after all work on it, or after a wait for the device if `captured` is set. */
static weir_status free_slot(struct weir_caches *f, const struct freeing *p, uint32_t slot,
                             struct weir_use_list *uses, int captured) {
    struct weir_remote_slots *remote = malloc(sizeof *remote + sizeof remote->remote[0]);
    weir_status status = WEIR_OK;

    if (!remote)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    *remote = (struct weir_remote_slots){.count = 1, .room = 1};
    remote->remote[0] = (struct weir_remote_slot){p->s, slot};
    pthread_mutex_lock(&f->lock);
    if (captured)
        weir__caches_strand(f, NULL, remote);
    else
        status = weir__order_defer(&f->order, p->stream, uses, (uintptr_t)remote);
    complete_some(f);
    pthread_mutex_unlock(&f->lock);
    if (status != WEIR_OK)
        free(remote);
    return status;
}

/* Frees a block that no cache can keep. */
static weir_status free_uncached(struct weir_caches *f, const struct freeing *p,
                                 struct weir_cache *counts, struct weir_use_list *uses,
                                 int captured) {
    struct weir_slab *s = p->s;
    size_t in_use = weir__slab_in_use(s);
    weir_status status = WEIR_OK;
    uint64_t asked;
    uint32_t slot;

    if (uses && captured)
        return weir__without_driver(WEIR_E_CAPTURE);
    asked = mark_freed(s, p->block);
    if (asked == 0)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (s->slot_units) {
        slot = weir__slab_slot(s, p->block);
        status = free_slot(f, p, slot, uses, captured);
        if (status != WEIR_OK)
            atomic_store_explicit(&s->slot[slot], (uint32_t)asked, memory_order_relaxed);
    } else if (captured && f->driver_orders) { /* the driver frees nothing on a captured stream */
        s->next = NULL;
        pthread_mutex_lock(&f->lock);
        weir__caches_strand(f, s, NULL);
        pthread_mutex_unlock(&f->lock);
    } else {
        status = free_with_record_end(f, &s, 0, p->stream, uses);
        if (status != WEIR_OK) {
            /* unreached: `s` is NULL only if another thread uses the last host memory, which no test does */
            if (s)
                atomic_store_explicit(&s->asked, asked, memory_order_relaxed);
        }
    }
    if (status != WEIR_OK)
        return status;
    if (count_uncached_free(f, counts, asked, in_use))
        do_deferred_in_free(f, p->stream);
    if (captured)
        atomic_fetch_add_explicit(&f->captured_frees, 1, memory_order_relaxed);
    return WEIR_OK;
}

/* Frees a block of a CUDA graph.  Checks the address first, since the driver would also free other blocks of weir. */
static weir_status free_graph_block(struct weir_caches *f, CUdeviceptr block, weir_stream stream,
                                    struct weir_use_list *uses) {
    weir_status status;

    if (!weir__addresses_has(&f->v->graphs, block))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = f->engine->ops->free(f->engine, block, stream, uses);
    if (status == WEIR_OK)
        weir__striped_add(&f->v->events.counters->striped, WEIR_STRIPED_FREES);
    return status;
}

/* ---- frees ---- */

enum {
    KEPT,
    FULL,    /* the cache cannot keep the block */
    NO_BLOCK /* no live block starts at the address */
};

/* Makes the next request on the stream flush the cache's unneeded memory. */
static void defer_maintenance(struct weir_cache *c) {
    int taken = weir__bias_take(&c->lock);

    weir__cache_set_due(c);
    weir__bias_give(&c->lock, taken);
}

/* Returns whole blocks to the engine, as freed on the stream `freed_on`.  If the handle now means another stream, weir
 * reuses the blocks only after a wait for the device. */
static void release_whole_blocks(struct weir_caches *f, const struct freeing *p,
                                 struct weir_slab *blocks, uint64_t freed_on) {
    int due = weir__caches_give(f, blocks, freed_on, p->c, p->stream);
    unsigned long long id = p->id;

    atomic_fetch_sub(p->moving, 1);
    if (!due && !f->v->goal.has_threshold)
        return;
    if (id == 0 && is_vouched_for(f, p->c, p->stream))
        id = weir__device_capture(f->device, p->stream) == WEIR_OK ? freed_on : 0;
    else if (id == 0)
        (void)query_id(f, p->stream, &id);
    if (id == freed_on)
        weir__engine_maintain(f->engine, p->stream, freed_on);
    else
        defer_maintenance(p->c); /* no event can be recorded on a stream that is being captured */
}

/* Puts a slot into the queue of slots that other threads have freed.  Returns FULL if the queue does not accept it. */
static int post_remote(const struct freeing *p) {
    struct weir_remote_queue *queue = &p->c->queue;
    struct weir_slab *s = p->s;
    uint64_t asked;
    int result = FULL;

    weir__lock_take(&queue->lock);
    asked = weir__slab_asked(s, p->block);
    if (asked == 0) {
        result = NO_BLOCK;
    } else if (queue->id != 0 && (p->id == 0 || queue->id == p->id) &&
               queue->in_use < WEIR_CACHE_QUEUE_MOST &&
               atomic_load_explicit(&s->cache, memory_order_relaxed) == p->c) {
        if (weir__slab_post(s, weir__slab_slot(s, p->block))) {
            s->posted_next = queue->slabs;
            queue->slabs = s;
        }
        weir__cache_raise(&queue->requested, asked);
        weir__cache_raise(&queue->in_use, weir__slab_in_use(s));
        weir__cache_raise(&queue->count, 1);
        result = KEPT;
    }
    weir__lock_give(&queue->lock);
    return result;
}

/* Puts a freed whole block into c->inbox.  If there is no room, moves the block and all of c->inbox to *out.  If the
 * driver orders reuse, accepts blocks only during captures, when the driver cannot free them. */
static int put_whole(const struct weir_caches *f, struct freeing *p, struct weir_slab **out) {
    struct weir_cache *c = p->c;
    struct weir_slab *s = p->s;
    uint64_t asked = atomic_load_explicit(&s->asked, memory_order_relaxed);
    size_t bytes = weir__slab_bytes(s);
    size_t more = atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed) + bytes;

    if (asked == 0 || p->block != weir__slab_base(s))
        return NO_BLOCK;
    if (f->driver_orders && !atomic_load_explicit(&c->capturing, memory_order_relaxed))
        return FULL;
    atomic_store_explicit(&s->asked, 0, memory_order_relaxed);
    count_free(c, asked, bytes);
    if (f->driver_orders ||
        (c->inbox_count < WEIR_CACHE_INBOX && more < c->room &&
         c->lacked == atomic_load_explicit(&f->engine->lacked, memory_order_relaxed))) {
        s->next = c->inbox;
        c->inbox = s;
        c->inbox_count++;
        atomic_store_explicit(&c->inbox_bytes, more, memory_order_relaxed);
    } else {
        p->moving = &c->moving[c->turn];
        atomic_fetch_add(p->moving, 1);
        s->next = weir__cache_empty_inbox(c);
        *out = s;
    }
    return KEPT;
}

/* Creates or enlarges a list of freed slots of other caches' slabs.  Returns NULL if there is no host memory. */
static struct weir_remote_slots *grow_remotes(struct weir_cache *c, unsigned size_class) {
    struct weir_remote_slots *remotes = c->remotes[size_class];
    uint32_t room = remotes ? remotes->room * 2 : WEIR_CACHE_REMOTES;

    remotes = realloc(remotes, sizeof *remotes + room * sizeof remotes->remote[0]);
    if (!remotes)
        return NULL;
    if (room == WEIR_CACHE_REMOTES)
        *remotes = (struct weir_remote_slots){0};
    else
        weir__cache_set_due(c);
    remotes->room = room;
    c->remotes[size_class] = remotes;
    return remotes;
}

/* Frees a slot of another cache's slab into this cache, which may reuse the slot for its own stream. */
static int put_remote(const struct freeing *p) {
    struct weir_remote_slots *remotes = p->c->remotes[p->s->size_class];
    uint32_t slot = weir__slab_slot(p->s, p->block);
    uint64_t asked = weir__slab_asked(p->s, p->block);

    if (asked == 0)
        return NO_BLOCK;
    if (!remotes || remotes->count == remotes->room)
        remotes = grow_remotes(p->c, p->s->size_class);
    if (!remotes)
        return FULL;
    atomic_store_explicit(&p->s->slot[slot], WEIR_SLOT_AWAY, memory_order_relaxed);
    remotes->remote[remotes->count++] = (struct weir_remote_slot){p->s, slot};
    count_free(p->c, asked, weir__slab_in_use(p->s));
    return KEPT;
}

/* Frees a block into the cache.  Returns FULL if the cache does not accept the block. */
static int free_into_cache(struct weir_caches *f, struct freeing *p) {
    struct weir_cache *c = p->c;
    int taken = weir__bias_take_at(&c->lock, WEIR_BIAS_INNER, WEIR_BIAS_GUEST), result = FULL;
    struct weir_slab *out = NULL;
    uint64_t id;

    if (!c->serves && f->driver_orders && !p->s->slot_units)
        result = put_whole(f, p, &out);
    /* unreached: no test makes another thread change the cache's stream after the search */
    if (c->serves && is_its(c, p->id)) {
        if (weir__cache_should_collect(c, WEIR_SLAB_SMALL)) /* the stream may request no more */
            weir__cache_collect(c);
        if (!p->s->slot_units)
            result = put_whole(f, p, &out);
        else if (weir__cache_put_plain(c, p->s, p->block))
            result = KEPT;
        else if (atomic_load_explicit(&p->s->cache, memory_order_relaxed) == c)
            result = NO_BLOCK;
        else
            result = put_remote(p);
        p->wanted = c->due;
    }
    id = atomic_load_explicit(&c->id, memory_order_relaxed);
    if (result == KEPT && atomic_load_explicit(&c->capturing, memory_order_relaxed))
        atomic_fetch_add_explicit(&f->captured_frees, 1, memory_order_relaxed);
    weir__bias_give(&c->lock, taken);
    if (out)
        release_whole_blocks(f, p, out, id);
    return result;
}

/* Queries the stream's id, and frees a block into the stream's cache if possible. */
static __attribute__((noinline)) weir_status free_slow(struct weir_caches *f, struct freeing *p,
                                                       struct weir_use_list *uses) {
    uint64_t id = 0;
    weir_status status = weir__caches_query_stream(f, p->stream, &id, &p->c);
    int captured = status == WEIR_E_CAPTURE, result = FULL;

    if (status != WEIR_OK && !captured)
        return status;
    p->id = id;
    if (p->c && !uses)
        result = free_into_cache(f, p);
    if (result == NO_BLOCK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (result == FULL)
        return free_uncached(f, p, f->uncached, uses, captured);
    if (captured)
        defer_maintenance(p->c); /* no event can be recorded on a stream that is being captured */
    else
        weir__caches_do_deferred(f, p->c, p->stream, id);
    return WEIR_OK;
}

/* Frees a block into its stream's cache, or into the queue of slots that other threads have freed. */
static weir_status free_by_cache(struct weir_caches *f, struct freeing *p) {
    int own = atomic_load_explicit(&p->s->cache, memory_order_relaxed) == p->c;
    int result = own && weir__bias_is_anothers(&p->c->lock) ? post_remote(p) : FULL;

    if (result == FULL)
        result = free_into_cache(f, p);
    if (result == NO_BLOCK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (result == FULL)
        return free_slow(f, p, NULL);
    if (p->wanted)
        do_deferred_in_free(f, p->stream);
    return WEIR_OK;
}

static weir_status free_by_driver(struct weir_caches *f, struct freeing *p) {
    weir_status status = WEIR_E_CAPTURE;

    if (p->c && atomic_load_explicit(&p->c->id, memory_order_relaxed) != 0)
        status = free_uncached(f, p, p->c, NULL, 0);
    if (status != WEIR_E_CAPTURE)
        return status;
    /* Finds the record again, since free_uncached() may have replaced the record. */
    p->s = weir__records_find(&f->records, p->block);
    return p->s ? free_slow(f, p, NULL) : weir__without_driver(WEIR_E_HOST_MEMORY);
}

weir_status weir__caches_free_done(struct weir_caches *f, CUdeviceptr block) {
    struct weir_slab *s = weir__records_find(&f->records, block);
    uint64_t asked = s && weir__slab_bytes(s) > 0 ? mark_freed(s, block) : 0;
    size_t in_use;

    if (asked == 0)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    in_use = weir__slab_in_use(s);
    pthread_mutex_lock(&f->lock);
    if (s->slot_units) {
        weir__caches_return_slot(f, &(struct weir_remote_slot){s, weir__slab_slot(s, block)});
    } else {
        s->next = NULL;
        weir__caches_give(f, s, WEIR_ENGINE_OBSERVED, NULL, NULL);
    }
    pthread_mutex_unlock(&f->lock);
    (void)count_uncached_free(f, f->uncached, asked, in_use);
    return WEIR_OK;
}

weir_status weir__caches_free(struct weir_caches *f, struct weir_cache *c, struct weir_slab *s,
                              CUdeviceptr block, weir_stream stream, struct weir_use_list *uses) {
    struct freeing p = {.c = c, .s = s, .block = block, .stream = stream};
    int is_cached = s && weir__slab_bytes(s) > 0, lent = 0;
    int result_before = weir__driver_result;
    weir_status status;

    if (is_cached && !uses && !c)
        p.c = find_cache(f, stream, &p.id, &lent);
    else if (!c)
        lent = is_default(stream) && weir__device_lacks_context &&
               weir__device_make_context_current(f->device);
    if (!is_cached)
        status = free_graph_block(f, block, stream, uses);
    else if (p.id != 0 && p.c && s->slot_units && free_cached(p.c, p.id, s, block))
        status = WEIR_OK; /* a default stream, whose id was not known to request.c */
    else if (f->driver_orders && s->slot_units == 0 && !uses)
        status = free_by_driver(f, &p);
    else
        status = p.c ? free_by_cache(f, &p) : free_slow(f, &p, uses);
    if (status == WEIR_OK)
        weir__driver_result = result_before;
    else
        weir__device_log_free(f->device, block, status);
    if (__builtin_expect(lent, 0))
        weir__device_restore_context(f->device, lent);
    return status;
}
