/* SPDX-License-Identifier: MIT */
/* cache_alloc.c: requests that hit.h does not serve.
 *
 * What: the driver is queried for the stream's id if necessary, the cache does the work that was put off, and slabs and
 * whole blocks come from the engine, to which the request brings the blocks of the stream's inbox.
 *
 * Locks: each step takes and releases the cache's lock.  A cache that a call uses over several steps is pinned
 * meanwhile.
 */
#include "cache/caches_state.h"

#include "base/bounds.h"
#include "base/result.h"
#include "base/size.h"

enum {
    /* A slab is at most 2^SLAB_DOUBLINGS times SLAB_FIRST; it grows with the number of slabs of its class. */
    SLAB_DOUBLINGS = 3,
    /* Slabs may hold this part of the memory in use, but at least HELD_LEAST, in idle slots beside live ones. */
    HELD_PART = 4,
    LOOKED_AT = 4096, /* the most slabs that is_held() visits */
    LOOK_PART = 16 /* a result of is_held() holds for this part of the slabs that it has visited */
};

#define SLAB_FIRST ((size_t)64 << 10)
#define SLAB_LEAST ((size_t)32 << 10)
#define HELD_LEAST ((uint64_t)1 << 20)

/* The value of struct weir_freed's `lacked` before the engine has written its results. */
#define UNTOLD UINT64_MAX

/* Rounds up to whole pages, in which the engine's blocks are measured. */
static size_t in_pages(size_t bytes) {
    return (bytes + WEIR_PAGE - 1) & ~(WEIR_PAGE - 1);
}

size_t weir__caches_fit(size_t bytes) {
    size_t most = 0;

    bytes = weir__size_round_down(bytes, WEIR_PAGE);
    if (bytes > WEIR_SLAB_SMALL)
        return bytes;
    for (unsigned c = 0; c < WEIR_SLAB_CLASSES; c++)
        if (in_pages(weir__slab_slot_bytes(c)) <= bytes)
            most = weir__slab_slot_bytes(c);
    return most;
}

/* ---- blocks that go to the engine ---- */

/* Ends the records of spans, at most WEIR_CACHE_INBOX of them, and writes their addresses.  Returns the spans that are
 * left. */
static struct weir_slab *end_records(struct weir_caches *f, struct weir_slab *spans,
                                     CUdeviceptr block[], size_t *count) {
    for (*count = 0; spans && *count < WEIR_CACHE_INBOX; ++*count) {
        struct weir_slab *s = spans;

        spans = s->next;
        block[*count] = weir__slab_base(s);
        weir__records_end(&f->records, s);
    }
    return spans;
}

/* Updates the room of a cache's inbox with the results of a call to the engine, unless the engine has written none.  The
 * caller holds the cache's lock.
 *
 * No block waits in an inbox with a release threshold, since memory above it goes back as soon as it is free; nor with
 * decay or while memory is low, since each large request then looks whether memory can go back.  If two calls on the
 * stream had the same count, the room of the earlier one may be the last that is noted.  That room was true a moment ago,
 * so at worst an event comes later by as much as the inbox then holds. */
static void note_room(const struct weir_caches *f, struct weir_cache *c,
                      const struct weir_freed *freed) {
    const struct weir_goal *goal = &f->v->goal;

    if (freed->lacked == UNTOLD || freed->lacked < c->lacked)
        return;
    c->lacked = freed->lacked;
    c->room = has_threshold(f) || goal->half_life_ns > 0 ||
                      (goal->in_requests &&
                       atomic_load_explicit(&goal->pressure.wanted, memory_order_relaxed) > 0)
                  ? 0
                  : freed->room;
}

/* Lets blocks wait for a wait for the device.  The caller holds `lock`. */
static void strand_blocks(struct weir_caches *f, struct weir_slab *blocks) {
    while (blocks) {
        struct weir_slab *s = blocks;

        blocks = s->next;
        s->next = f->waiting;
        f->waiting = s;
        atomic_fetch_add_explicit(&f->stranded, weir__slab_bytes(s), memory_order_relaxed);
    }
}

/* No block is freed under `lock`, since a free of the direct engine waits for the device. */
void weir__caches_end(struct weir_caches *f, struct weir_slab *blocks, uint64_t id,
                      weir_stream stream) {
    struct weir_slab *refused = NULL, *next;

    if (!blocks)
        return;
    pthread_mutex_unlock(&f->lock);
    for (struct weir_slab *s = blocks; s; s = next) {
        CUdeviceptr base = weir__slab_base(s);
        struct weir_freed freed = {.block = &base, .count = 1};
        size_t bytes = weir__slab_bytes(s);
        weir_status status;

        next = s->next;
        weir__records_end(&f->records, s);
        status = id == WEIR_ENGINE_OBSERVED ? f->engine->ops->give(f->engine, &freed, id)
                                            : f->engine->ops->free(f->engine, base, stream, NULL);
        if (status == WEIR_OK) {
            count_given(f, bytes);
            continue;
        }
        /* NULL only without host memory for the record that has just been given up */
        s = weir__records_whole(&f->records, base, bytes);
        if (s) {
            s->next = refused;
            refused = s;
        }
    }
    pthread_mutex_lock(&f->lock);
    strand_blocks(f, refused);
}

int weir__caches_give(struct weir_caches *f, struct weir_slab *spans, uint64_t id,
                      struct weir_cache *c) {
    CUdeviceptr block[WEIR_CACHE_INBOX];
    struct weir_freed freed = {.block = block};
    int due = 0, taken;

    if (f->is_straight) {
        if (id == WEIR_ENGINE_OBSERVED)
            weir__caches_end(f, spans, id, NULL);
        else
            strand_blocks(f, spans);
        return 0;
    }
    while (spans) {
        spans = end_records(f, spans, block, &freed.count);
        due |= f->engine->ops->give(f->engine, &freed, id) == WEIR_ENGINE_DUE;
        if (!c)
            continue;
        taken = weir__bias_take(&c->lock);
        note_room(f, c, &freed);
        weir__bias_give(&c->lock, taken);
    }
    return due;
}

/* ---- blocks from the engine ---- */

/* Gets a block of r->bytes, or of r->least if there is no memory for more.  The stream is not being captured. */
static weir_status ask_engine_for(struct weir_caches *f, struct weir_request *r) {
    weir_status status = weir__reserve_alloc(f->v, r);
    uint64_t taken;

    if (status != WEIR_OK || !f->is_straight)
        return status;
    weir__engine_widen(f->engine, r->block, r->bytes);
    taken = atomic_fetch_add_explicit(&f->taken, r->bytes, memory_order_relaxed) + r->bytes;
    weir__raise_to(&f->engine->seen.most_in_use, taken);
    return WEIR_OK;
}

/* Gives a block back to the engine for which there is no record. */
static weir_status undo_fetch(struct weir_caches *f, const struct weir_request *r) {
    struct weir_freed freed = {.block = &r->block, .count = 1};

    if (f->is_straight) {
        count_given(f, r->bytes);
        (void)f->engine->ops->free(f->engine, r->block, r->stream, NULL);
    } else {
        (void)f->engine->ops->give(f->engine, &freed, r->id);
    }
    return weir__without_driver(WEIR_E_HOST_MEMORY);
}

/* Returns 1 if many idle slots lie in partly used slabs, where other classes cannot use them; else 0.  The caller holds
 * the cache's lock. */
static int is_held(struct weir_cache *c) {
    int64_t in_use = weir__sum_now(&c->in_use);
    size_t most =
        (size_t)weir__size_larger(in_use < 0 ? 0 : (uint64_t)in_use / HELD_PART, HELD_LEAST);
    unsigned looked_at = 0;
    size_t held = 0;

    if (c->held_for > 0) {
        c->held_for--;
        return c->is_held;
    }
    for (int i = 0; i < WEIR_SLAB_CLASSES; i++)
        for (const struct weir_slab *s = c->open[i]; s && held < most && looked_at < LOOKED_AT;
             s = s->next, looked_at++)
            if (s->idle < s->slots)
                held += (size_t)s->idle * s->slot_units * WEIR_SLAB_UNIT;
    c->held_for = looked_at / LOOK_PART;
    c->is_held = held >= most;
    return c->is_held;
}

/* Returns the number of slots of a class's next slab.  The number grows with the slabs of the class as long as slabs
 * still empty completely.  If it is more than one, the rest of the slab's pages has no room for another slot. */
static size_t slab_slots(struct weir_cache *c, unsigned size_class) {
    size_t slot = weir__slab_slot_bytes(size_class), bytes;
    int taken = weir__bias_take(&c->lock);

    bytes = SLAB_FIRST << weir__size_smaller(c->slabs[size_class], SLAB_DOUBLINGS);
    if (c->slabs[size_class] > 0 && bytes / slot > 1 && is_held(c))
        bytes = SLAB_LEAST;
    weir__bias_give(&c->lock, taken);
    return weir__size_smaller(weir__size_larger(bytes / slot, 1), WEIR_RECORDS_SLOTS);
}

/* Adds a slab for the request's class to the cache.  Without memory for more, the slab has the pages of one slot. */
static weir_status add_slab(struct weir_caches *f, struct weir_cache *c, struct weir_request *r) {
    unsigned size_class = weir__slab_class(r->asked);
    size_t slot = weir__slab_slot_bytes(size_class);
    struct weir_slab *s;
    weir_status status;
    int taken;

    r->flags = WEIR_REQUEST_SLAB; /* without what an earlier try of this request may have set */
    r->grew = 0;
    r->bytes = in_pages(slab_slots(c, size_class) * slot);
    r->least = in_pages(slot);
    status = ask_engine_for(f, r);
    if (status != WEIR_OK)
        return status;
    s = weir__records_slab(&f->records, r->block, r->bytes, size_class,
                           (uint32_t)(r->bytes / slot));
    if (!s)
        return undo_fetch(f, r);
    taken = weir__bias_take(&c->lock);
    weir__cache_add_slab(c, s);
    weir__bias_give(&c->lock, taken);
    return WEIR_OK;
}

/* Gets a slot for a cache that has none: from completed remote frees, or from a new slab. */
static weir_status add_slot(struct weir_caches *f, struct weir_cache *c, struct weir_request *r) {
    uint64_t key = key_of(r->stream, r->id);
    weir_status status = WEIR_OK;
    int taken;

    if (atomic_load_explicit(&f->order.deferred, memory_order_relaxed) > 0) {
        pthread_mutex_lock(&f->lock);
        complete_some(f);
        pthread_mutex_unlock(&f->lock);
    }
    for (; status == WEIR_OK; status = add_slab(f, c, r)) {
        taken = weir__bias_take(&c->lock);
        /* unreached: the stream has lost the cache, for which the stream must end during this call */
        r->block = c->serves && is_its(c, key, r->id) ? weir__cache_take_further(c, r->asked) : 0;
        weir__bias_give(&c->lock, taken);
        if (r->block)
            break;
        /* No slot came back, or other threads on the stream have taken all of them. */
    }
    return status;
}

/* Gets a whole block from the engine.  The blocks of a stream without a cache may have any size. */
static weir_status add_whole(struct weir_caches *f, struct weir_request *r) {
    struct weir_slab *s;
    weir_status status;

    r->bytes = in_pages(r->asked);
    status = ask_engine_for(f, r);
    if (status != WEIR_OK)
        return status;
    s = weir__records_whole(&f->records, r->block, r->bytes);
    if (!s)
        return undo_fetch(f, r);
    weir__raise_to(&f->largest, r->bytes);
    atomic_store_explicit(&s->fetched_for, r->id, memory_order_relaxed);
    atomic_store_explicit(&s->asked, r->asked, memory_order_relaxed);
    return WEIR_OK;
}

/* ---- requests ---- */

/* Serves a request on a captured stream: the engine creates a graph node, or refuses.  The caches flush nothing then,
 * since a graph's memory does not come from idle memory (oom_recovery.c). */
static weir_status alloc_captured(struct weir_caches *f, struct weir_request *r) {
    weir_status status;

    (void)weir__caches_visit_captured(f, r->stream);
    if (f->hits.device->drop_in)
        return weir__without_driver(WEIR_E_CAPTURE);
    r->bytes = r->asked;
    r->id = 0; /* a nonzero id would tell the engine that the stream is not being captured */
    r->flags |= WEIR_REQUEST_CAPTURED;
    status = weir__reserve_alloc(f->v, r);
    if (status == WEIR_OK)
        count(f, WEIR_STRIPED_CACHES_CAPTURE);
    return status;
}

/* Serves a request with memory from the engine, to which the request brings the blocks of the stream's inbox.  r->id is
 * the stream's id.  The caller has pinned the cache, which this function unpins.  `c` is NULL if the stream has none. */
static weir_status alloc_fresh(struct weir_caches *f, struct weir_cache *c, struct weir_request *r,
                               struct weir_slab *inbox) {
    struct weir_cache *counts = c ? c : f->loose;
    int is_slot = c && r->asked <= WEIR_SLAB_SMALL, taken;
    CUdeviceptr block[WEIR_CACHE_INBOX];
    struct weir_freed freed = {.block = block, .lacked = UNTOLD};
    weir_status status;

    (void)end_records(f, inbox, block, &freed.count);
    r->freed = c ? &freed : NULL;
    status = is_slot ? add_slot(f, c, r) : add_whole(f, r);
    r->freed = NULL;
    if (freed.count > 0) /* a slot came back, so the engine was not called */
        (void)f->engine->ops->give(f->engine, &freed, r->id);
    taken = weir__bias_take(&counts->lock);
    if (status == WEIR_OK && !is_slot) {
        weir__sum_add(&counts->requested, (int64_t)r->asked);
        weir__sum_add(&counts->in_use, (int64_t)r->bytes);
    }
    note_room(f, counts, &freed);
    counts->pins -= c != NULL;
    weir__bias_give(&counts->lock, taken);
    if (status != WEIR_OK)
        return status;
    count(f, c ? WEIR_STRIPED_CACHES_EMPTY : WEIR_STRIPED_CACHES_YOUNG);
    if (weir__caches_in_blocks(f) > atomic_load_explicit(&f->add_up_above, memory_order_relaxed))
        weir__caches_note_peak(f);
    return WEIR_OK;
}

/* Serves a request after querying the driver for the stream's id and doing the work that was put off. */
static __attribute__((noinline)) weir_status alloc_slow(struct weir_caches *f,
                                                        struct weir_request *r) {
    weir_status status = weir__device_capture(f->hits.device, r->stream);
    struct weir_slab *inbox = NULL;
    struct weir_cache *c;
    uint64_t key;
    int taken;

    if (status == WEIR_E_CAPTURE)
        return alloc_captured(f, r);
    if (status == WEIR_OK)
        status = weir__caches_identify(f, r->stream, &r->id);
    if (status != WEIR_OK) {
        weir__device_log_alloc(f->hits.device, r->asked, status);
        return status;
    }
    c = weir__caches_visit(f, r->stream, r->id);
    if (!c)
        return alloc_fresh(f, NULL, r, NULL);
    weir__caches_catch_up(f, c, r->stream);
    key = key_of(r->stream, r->id);
    taken = weir__bias_take(&c->lock);
    r->block = take_cached(c, key, r->id, r->asked);
    c->pins -= r->block != 0;
    /* unreached: the stream has lost the cache, for which the stream must end during this call */
    if (!r->block && !f->is_straight && c->serves && is_its(c, key, r->id))
        inbox = weir__cache_empty_inbox(c);
    weir__bias_give(&c->lock, taken);
    return r->block ? WEIR_OK : alloc_fresh(f, c, r, inbox);
}

/* If no work was put off, the driver need not be queried again. */
weir_status weir__caches_miss(struct weir_caches *f, struct weir_cache *c, int taken,
                              struct weir_request *r) {
    struct weir_slab *inbox = NULL;
    int plain;

    if (!c)
        return alloc_slow(f, r);
    plain = c->is_ready && is_its(c, key_of(r->stream, r->id), r->id);
    if (r->id == 0) /* the program vouches for the stream */
        r->id = atomic_load_explicit(&c->id, memory_order_relaxed);
    if (plain) {
        weir__cache_pin(c);
        /* The blocks of an engine with is_straight go back by driver calls on the stream (weir__caches_visit). */
        inbox = f->is_straight ? NULL : weir__cache_empty_inbox(c);
    }
    weir__bias_give(&c->lock, taken);
    return plain ? alloc_fresh(f, c, r, inbox) : alloc_slow(f, r);
}

weir_status weir__caches_alloc_at(struct weir_caches *f, struct weir_request *r) {
    weir_status status = weir__caches_identify(f, r->stream, &r->id);

    return status == WEIR_OK ? alloc_fresh(f, NULL, r, NULL) : status;
}
