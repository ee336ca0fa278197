/* SPDX-License-Identifier: MIT */
/* cache_requests.c: requests and frees that the functions of caches_state.h do not complete.
 *
 * What: a request queries the driver for the stream's id if necessary, does the work that was put off in the cache, and
 * gets slabs and whole blocks from the engine, to which the request brings the blocks of the stream's inbox.  A free may
 * query the driver, or put the slot into a remote-free queue.
 *
 * Locks: each step takes and releases the cache's lock.  A cache that a call uses over several steps is pinned
 * meanwhile.  Where no cache takes a block, the caches' lock is taken.
 *
 * Invariants: a block's record says that the block is live until one call has ended its use.
 */
#include "cache/caches_state.h"

#include <stdlib.h>

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

/* The newest blocks of an inbox that may serve a request. */
enum { REUSED_NEWEST = 8 };

/* The largest block that an inbox serves while several streams are in use.  Without a bound five streams with GPU work
 * reserve a twentieth more, and with this one no more. */
#define REUSED_MOST ((size_t)2 << 20)

/* ---- a stream's cache ---- */

void weir__cache_collect(struct weir_cache *c) {
    struct weir_remote_queue *queue = &c->queue;
    uint32_t count;

    weir__lock_take(&queue->lock);
    for (struct weir_slab *s = queue->slabs; s; s = s->posted_next) {
        uint32_t before = s->idle;

        weir__slab_collect(s);
        weir__cache_welcome(c, s, before);
    }
    queue->slabs = NULL;
    weir__sum_sub(&c->requested, (int64_t)queue->requested);
    weir__sum_sub(&c->in_use, (int64_t)queue->in_use);
    queue->requested = queue->in_use = 0;
    queue->look = WEIR_CACHE_QUEUE_LOOK;
    count = atomic_load_explicit(&queue->count, memory_order_relaxed);
    atomic_store_explicit(&queue->count, 0,
                          memory_order_release); /* pairs with the load in weir__cache_posted */
    weir__lock_give(&queue->lock);
    atomic_store_explicit(&c->frees, atomic_load_explicit(&c->frees, memory_order_relaxed) + count,
                          memory_order_relaxed);
}

uint64_t weir__cache_take_further(struct weir_cache *c, size_t bytes) {
    unsigned size_class = weir__slab_class(bytes);
    struct weir_remote_slots *remotes = c->remotes[size_class];
    struct weir_remote_slot *remote;
    uint64_t block = weir__cache_take_home(c, bytes);

    if (block)
        return block;
    if (c->open[size_class])
        weir__cache_unlink(c, c->open[size_class]);
    if (c->open[size_class])
        return weir__cache_take_home(c, bytes);
    if (!remotes || remotes->count == 0)
        return 0;
    remote = &remotes->remote[--remotes->count];
    atomic_store_explicit(&remote->span->slot[remote->slot], (uint32_t)bytes, memory_order_relaxed);
    weir__sum_add(&c->requested, (int64_t)bytes);
    weir__sum_add(&c->in_use, (int64_t)remote->span->slot_units * WEIR_SLAB_UNIT);
    return weir__slab_address(remote->span, remote->slot);
}

uint64_t weir__cache_take_whole(struct weir_cache *c, size_t bytes) {
    size_t whole = (bytes + WEIR_PAGE - 1) & ~(WEIR_PAGE - 1);
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
    atomic_store_explicit(&s->cache, c, memory_order_relaxed);
    s->epoch = c->epoch;
    c->slabs[size_class]++;
    weir__cache_link(c, s);
    weir__cache_more_idle(c, weir__slab_bytes(s));
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
    if (f->device->drop_in)
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
    weir_status status = weir__device_capture(f->device, r->stream);
    struct weir_slab *inbox = NULL;
    struct weir_cache *c;
    uint64_t key;
    int taken;

    if (status == WEIR_E_CAPTURE)
        return alloc_captured(f, r);
    if (status == WEIR_OK)
        status = weir__caches_identify(f, r->stream, &r->id);
    if (status != WEIR_OK) {
        weir__device_log_alloc(f->device, r->asked, status);
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

/* ---- blocks that no cache takes ---- */

/* Counts the free of a block in a cache.  The caller holds the cache's lock. */
static void count_free(struct weir_cache *c, uint64_t requested, size_t in_use) {
    weir__sum_sub(&c->requested, (int64_t)requested);
    weir__sum_sub(&c->in_use, (int64_t)in_use);
    weir__cache_raise(&c->frees);
}

/* Counts the free of a block that no cache keeps, in the cache `loose`, which counts such blocks. */
static void count_loose_free(struct weir_caches *f, uint64_t requested, size_t in_use) {
    int taken = weir__bias_take(&f->loose->lock);

    count_free(f->loose, requested, in_use);
    weir__bias_give(&f->loose->lock, taken);
}

/* Marks a live slot as freed but not in its slab's free list.  Returns 1 on success, 0 if the slot is not live. */
static int take_state(_Atomic uint32_t *state) {
    uint32_t asked = atomic_load_explicit(state, memory_order_relaxed);

    /* unreached: not live, unless another thread frees the slot, too, since it was live a moment ago */
    return !(asked & WEIR_SLOT_IDLE) &&
           /* unreached: not live, as before */
           atomic_compare_exchange_strong_explicit(state, &asked, WEIR_SLOT_AWAY,
                                                   memory_order_relaxed, memory_order_relaxed);
}

/* Returns a slot to its slab behind all streams that use it, or for a captured stream behind a wait for the device. */
static weir_status free_slot(struct weir_caches *f, struct weir_slab *s, uint64_t address,
                             weir_stream stream, struct weir_use_list *uses, int captured) {
    struct weir_remote_slots *remote = malloc(sizeof *remote + sizeof remote->remote[0]);
    uint32_t slot = weir__slab_slot(s, address);
    weir_status status = WEIR_OK;

    if (!remote)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    *remote = (struct weir_remote_slots){.count = 1, .room = 1};
    remote->remote[0] = (struct weir_remote_slot){s, slot};
    pthread_mutex_lock(&f->lock);
    if (!captured)
        status = weir__order_defer(&f->order, stream, uses, (uintptr_t)remote);
    if (status != WEIR_OK) {
        free(remote);
    } else if (!take_state(&s->slot[slot])) {
        /* unreached: freed meanwhile, which needs two threads that free one block at once */
        remote->count = 0;
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    }
    if (captured)
        weir__caches_strand(f, remote);
    complete_some(f);
    pthread_mutex_unlock(&f->lock);
    return status;
}

/* Frees a whole block to the engine, which orders its reuse. */
static weir_status free_whole(struct weir_caches *f, struct weir_slab *s, CUdeviceptr base,
                              weir_stream stream, struct weir_use_list *uses) {
    size_t bytes = weir__slab_bytes(s);
    uint64_t asked = atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed);
    weir_status status;

    /* unreached: freed meanwhile by another thread, whose block the record may be by now */
    if (asked == 0 || weir__slab_base(s) != base) {
        if (asked > 0) /* unreached: the record of another block, as before */
            atomic_store_explicit(&s->asked, asked, memory_order_relaxed);
        return weir__without_driver(WEIR_E_NOT_OWNED);
    }
    weir__records_end(&f->records, s);
    status = f->engine->ops->free(f->engine, base, stream, uses);
    if (status == WEIR_OK) {
        if (f->is_straight)
            count_given(f, bytes);
        return WEIR_OK;
    }
    /* Finds the record again, or makes a new one if records do not stay. */
    s = weir__records_whole(&f->records, base, bytes);
    if (s) /* unreached: no record, for which another thread must have taken the last one */
        atomic_store_explicit(&s->asked, asked, memory_order_relaxed);
    return status;
}

/* Frees a block that has other users or whose stream has no cache. */
static weir_status free_past(struct weir_caches *f, struct weir_slab *s, uint64_t address,
                             weir_stream stream, struct weir_use_list *uses, int captured) {
    uint64_t requested = weir__slab_asked(s, address);
    size_t in_use = weir__slab_in_use(s);
    weir_status status;

    if (requested == 0)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (uses && captured)
        return weir__without_driver(WEIR_E_CAPTURE);
    status = s->slot_units ? free_slot(f, s, address, stream, uses, captured)
                           : free_whole(f, s, address, stream, uses);
    if (status != WEIR_OK)
        return status;
    count_loose_free(f, requested, in_use);
    if (captured)
        count(f, WEIR_STRIPED_CACHES_DEFERRED);
    return WEIR_OK;
}

/* Frees a block that the caches have no record of.  It may be a graph's.  Any other is refused here, since a pool of
 * the driver would free a block that is not weir's. */
static weir_status free_other(struct weir_caches *f, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    weir_status status;

    if (!weir__graphs_has(&f->v->graphs, block))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = f->engine->ops->free(f->engine, block, stream, uses);
    if (status == WEIR_OK)
        count(f, WEIR_STRIPED_FREES);
    return status;
}

/* ---- blocks that a cache takes ---- */

/* The results of a free into a cache. */
enum {
    KEPT,
    FULL,     /* the cache cannot take the block, or there is no room for a remote free */
    NO_BLOCK, /* no live block starts there */
    ANOTHERS  /* the lock is biased to another thread, and was not taken */
};

/* A free into a stream's cache. */
struct put {
    struct weir_cache *c;
    uint64_t key, id; /* the stream's; `id` is 0 if the driver was not queried */
    struct weir_slab *s;
    CUdeviceptr block;
    /* Results: whole blocks for which the inbox has no room, or NULL; the id of the stream whose frees the cache holds;
     * whether work was put off. */
    struct weir_slab *out;
    uint64_t known;
    int wanted;
};

/* Returns 1 if the remote-free queue has room, else 0.  There is always room as long as the queue's owner allocates.
 * The caller holds the queue's lock. */
static int has_queue_room(struct weir_cache *c) {
    struct weir_remote_queue *queue = &c->queue;
    int64_t sum;

    if (queue->in_use < queue->look)
        return 1;
    sum = weir__sum_now(&c->requested);
    if (sum == queue->seen)
        return 0;
    queue->seen = sum;
    queue->look = queue->in_use + WEIR_CACHE_QUEUE_LOOK;
    return 1;
}

/* Puts a live slot of the cache's slabs into its remote-free queue, without the cache's lock.  Returns FULL if the
 * caller must take the cache's lock instead. */
static int post_remote(const struct put *p) {
    struct weir_remote_queue *queue = &p->c->queue;
    struct weir_slab *s = p->s;
    uint32_t slot = weir__slab_slot(s, p->block), asked;
    int result = FULL;

    if (slot == WEIR_SLOT_NONE)
        return NO_BLOCK;
    weir__lock_take(&queue->lock);
    asked = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    if (asked & WEIR_SLOT_IDLE) {
        result = NO_BLOCK;
    } else if (queue->open && queue->key == p->key && (p->id == 0 || queue->id == p->id) &&
               has_queue_room(p->c) &&
               atomic_load_explicit(&s->cache, memory_order_relaxed) == p->c) {
        if (weir__slab_post(s, slot)) {
            s->posted_next = queue->slabs;
            queue->slabs = s;
        }
        queue->requested += asked;
        queue->in_use += weir__slab_in_use(s);
        atomic_store_explicit(&queue->count,
                              atomic_load_explicit(&queue->count, memory_order_relaxed) + 1,
                              memory_order_relaxed);
        result = KEPT;
    }
    weir__lock_give(&queue->lock);
    return result;
}

/* Frees a whole block to the inbox.  If the inbox has no room, takes all blocks out of it. */
static int put_whole(const struct weir_caches *f, struct put *p) {
    struct weir_cache *c = p->c;
    struct weir_slab *s = p->s;
    uint64_t asked = atomic_load_explicit(&s->asked, memory_order_relaxed);
    size_t bytes = weir__slab_bytes(s);
    size_t more = atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed) + bytes;

    if (asked == 0 || p->block != weir__slab_base(s))
        return NO_BLOCK;
    atomic_store_explicit(&s->asked, 0, memory_order_relaxed);
    count_free(c, asked, bytes);
    if (c->inbox_count < WEIR_CACHE_INBOX && more < c->room &&
        c->lacked == atomic_load_explicit(&f->engine->lacked, memory_order_relaxed)) {
        weir__cache_put_whole(c, s);
    } else {
        s->next = weir__cache_empty_inbox(c);
        p->out = s;
    }
    return KEPT;
}

/* Keeps a freed slot of another cache's slab in this cache, as a remote free. */
static int put_remote(const struct put *p) {
    struct weir_remote_slots *remotes = p->c->remotes[p->s->size_class];
    uint32_t slot = weir__slab_slot(p->s, p->block), asked;

    if (slot == WEIR_SLOT_NONE)
        return NO_BLOCK;
    asked = atomic_load_explicit(&p->s->slot[slot], memory_order_relaxed);
    if (asked & WEIR_SLOT_IDLE)
        return NO_BLOCK;
    if (!remotes || remotes->count == remotes->room)
        return FULL;
    atomic_store_explicit(&p->s->slot[slot], WEIR_SLOT_AWAY, memory_order_relaxed);
    remotes->remote[remotes->count++] = (struct weir_remote_slot){p->s, slot};
    count_free(p->c, asked, weir__slab_in_use(p->s));
    return KEPT;
}

/* Puts a block into the cache.  Returns KEPT, NO_BLOCK or FULL.  Also returns FULL if the cache is no longer the stream's.
 * If `politely` is set and the lock is biased to another thread, changes nothing and returns ANOTHERS. */
static int put(struct weir_caches *f, struct put *p, int politely) {
    struct weir_cache *c = p->c;
    int taken = weir__bias_take_at(&c->lock, WEIR_BIAS_INNER,
                                   politely ? WEIR_BIAS_POLITE : WEIR_BIAS_GUEST),
        result = FULL;

    if (taken < 0)
        return ANOTHERS;
    /* unreached: not this stream's, unless another thread has changed that since the cache was found */
    if (c->serves && is_its(c, p->key, p->id)) {
        if (weir__cache_has_post(c, WEIR_SLAB_SMALL)) /* its owner may make no more calls */
            weir__cache_collect(c);
        if (!p->s->slot_units)
            result = put_whole(f, p);
        else if (weir__cache_put_plain(c, p->s, p->block))
            result = KEPT;
        else if (atomic_load_explicit(&p->s->cache, memory_order_relaxed) == c)
            result = NO_BLOCK;
        else
            result = put_remote(p);
        if (result == KEPT && atomic_load_explicit(&c->capturing, memory_order_relaxed))
            count(f, WEIR_STRIPED_CACHES_DEFERRED);
        p->known = atomic_load_explicit(&c->id, memory_order_relaxed);
        p->wanted = c->due;
    }
    weir__bias_give(&c->lock, taken);
    return result;
}

/* Makes the stream's next request maintain the cache. */
static void put_off(struct weir_cache *c) {
    int taken = weir__bias_take(&c->lock);

    weir__cache_due(c);
    weir__bias_give(&c->lock, taken);
}

/* Frees whole blocks to the engine for which the inbox has no room, as freed on the stream `known`.  If the handle means
 * another stream, `known` has ended, and only a wait for the device completes its frees.  Records an event if one is due
 * and the handle still means `known`. */
static void give_up(struct weir_caches *f, const struct put *p, weir_stream stream) {
    unsigned long long id = p->id;

    if (!weir__caches_give(f, p->out, p->known, p->c) && !has_threshold(f))
        return;
    if (id == 0 && is_vouched_for(f, p->c, stream))
        id = weir__device_capture(f->device, stream) == WEIR_OK ? p->known : 0;
    else if (id == 0)
        (void)ask(f, stream, &id);
    if (id == p->known)
        weir__engine_maintain(f->engine, stream, p->known);
    else
        put_off(p->c); /* no event can be recorded on a captured stream */
}

/* Makes room in a cache for one more remote free of a class, which are then many enough to return to their slabs in this
 * call.  Returns 1 on success, 0 without host memory, or if the cache is no longer the stream's. */
static int make_room(struct weir_cache *c, unsigned size_class) {
    struct weir_remote_slots *remotes;
    uint32_t room;
    int taken = weir__bias_take(&c->lock), made = 0;

    if (c->serves) {
        remotes = c->remotes[size_class];
        room = remotes ? remotes->room * 2 : WEIR_CACHE_REMOTES;
        remotes = realloc(remotes, sizeof *remotes + room * sizeof remotes->remote[0]);
        made = remotes != NULL;
    }
    if (made) {
        if (room == WEIR_CACHE_REMOTES)
            *remotes = (struct weir_remote_slots){0};
        else
            weir__cache_due(c);
        remotes->room = room;
        c->remotes[size_class] = remotes;
    }
    weir__bias_give(&c->lock, taken);
    return made;
}

/* Frees a block after querying the stream, or because no cache has taken it. */
static __attribute__((noinline)) weir_status free_slow(struct weir_caches *f, struct weir_slab *s,
                                                       CUdeviceptr block, weir_stream stream,
                                                       struct weir_use_list *uses) {
    weir_status status = weir__device_capture(f->device, stream);
    int captured = status == WEIR_E_CAPTURE, result = FULL;
    struct put p = {.s = s,
                    .block = block}; /* the query of an id would break the stream's capture */

    if (status == WEIR_OK)
        status = weir__caches_identify(f, stream, &p.id);
    if (status != WEIR_OK && !captured)
        return status;
    p.key = key_of(stream, p.id);
    p.c = captured ? weir__caches_visit_captured(f, stream) : weir__caches_visit(f, stream, p.id);
    if (p.c && !uses) {
        result = put(f, &p, 0);
        if (result == FULL && s->slot_units && make_room(p.c, s->size_class))
            result = put(f, &p, 0);
        if (p.out)
            give_up(f, &p, stream);
    }
    status = WEIR_OK;
    if (result == NO_BLOCK)
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    else if (result == FULL)
        status = free_past(f, s, block, stream, uses, captured);
    else if (captured)
        put_off(p.c); /* no event can be recorded on a captured stream */
    else
        weir__caches_catch_up(f, p.c, stream);
    if (!captured)
        weir__caches_unpin(p.c);
    return status;
}

void weir__caches_answer(struct weir_caches *f, weir_stream stream) {
    int result_before = weir__driver_result;
    struct weir_cache *c;
    uint64_t id;

    if (weir__device_capture(f->device, stream) == WEIR_OK &&
        weir__device_stream_id(f->device, stream, &id) == CUDA_SUCCESS) {
        c = weir__caches_visit(f, stream, id);
        if (c)
            weir__caches_catch_up(f, c, stream);
        weir__caches_unpin(c);
    }
    weir__driver_result = result_before;
}

/* Puts the block into its stream's cache, or a slot into the remote-free queue of that cache if another thread has the
 * bias, for which the queue exists. */
static weir_status free_by_cache(struct weir_caches *f, struct put *p, weir_stream stream) {
    int own = atomic_load_explicit(&p->s->cache, memory_order_relaxed) == p->c;
    int result = ANOTHERS;
    uint32_t owner;

    for (int politely = own; result == ANOTHERS; politely = 0) {
        owner = atomic_load_explicit(&p->c->lock.owner, memory_order_relaxed);
        result = own && owner != 0 && owner != weir__bias_thread ? post_remote(p) : FULL;
        if (result == FULL)
            result = put(f, p, politely);
    }
    if (p->out)
        give_up(f, p, stream);
    if (result == NO_BLOCK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (result == FULL)
        return free_slow(f, p->s, p->block, stream, NULL);
    if (p->wanted)
        weir__caches_answer(f, stream);
    return WEIR_OK;
}

/* ---- whole blocks that the driver frees ---- */

/* Counts the free of a whole block by the driver in the cache `c`, unless `c` is NULL or another thread uses it.
 * Returns 1 if work was put off in the cache, else 0. */
static int count_driver_free(struct weir_caches *f, struct weir_cache *c, uint64_t requested,
                             size_t in_use) {
    int taken = c ? weir__bias_take_at(&c->lock, WEIR_BIAS_INNER, WEIR_BIAS_POLITE) : -1, wanted;

    if (taken < 0) {
        count_loose_free(f, requested, in_use);
        return 0;
    }
    count_free(c, requested, in_use);
    wanted = c->serves && !c->is_ready;
    weir__bias_give(&c->lock, taken);
    return wanted;
}

/* Checks a stream that no cache serves: it exists, and belongs to this device.  The driver checks captured streams. */
static weir_status check_unserved(struct weir_caches *f, weir_stream stream) {
    weir_status status = weir__device_capture(f->device, stream);
    uint64_t id;

    if (status == WEIR_E_CAPTURE)
        return WEIR_OK;
    return status == WEIR_OK ? weir__caches_identify(f, stream, &id) : status;
}

/* Frees a live whole block on a captured stream, where the driver frees none.  The block waits in the inbox of the cache
 * with the stream's handle for the next call of the stream that the handle meant last, or for a wait for the device. */
static weir_status free_after_capture(struct weir_caches *f, struct weir_slab *s,
                                      weir_stream stream) {
    struct weir_cache *c = weir__caches_visit_captured(f, stream);
    int taken;

    /* unreached: freed meanwhile, which needs two threads that free one block at once */
    if (atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed) == 0)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    s->next = NULL;
    pthread_mutex_lock(&f->lock);
    if (c) {
        taken = weir__bias_take(&c->lock);
        weir__cache_put_whole(c, s);
        /* A request that found the capture over meanwhile has not seen the block, so the next one has to look. */
        atomic_store_explicit(&c->capturing, 1, memory_order_relaxed);
        weir__cache_pass(c);
        weir__bias_give(&c->lock, taken);
    } else {
        weir__caches_give(f, s, WEIR_ENGINE_UNKNOWN, NULL);
    }
    pthread_mutex_unlock(&f->lock);
    count(f, WEIR_STRIPED_CACHES_DEFERRED);
    return WEIR_OK;
}

/* Frees a whole block to an engine whose blocks the driver orders.  The driver knows which stream the handle means, so
 * weir queries nothing if a stream with that handle has a cache `c`. */
static weir_status free_by_driver(struct weir_caches *f, struct weir_cache *c, struct weir_slab *s,
                                  CUdeviceptr block, weir_stream stream) {
    uint64_t requested = weir__slab_asked(s, block);
    size_t in_use = weir__slab_in_use(s);
    weir_status status;

    if (c && atomic_load_explicit(&c->id, memory_order_relaxed) == 0)
        c = NULL; /* no stream with that handle has had the cache yet */
    if (requested == 0)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = c ? WEIR_OK : check_unserved(f, stream);
    if (status == WEIR_OK)
        status = free_whole(f, s, block, stream, NULL);
    if (status == WEIR_E_CAPTURE) {
        /* The block may have another record by now: free_whole() gave up its record and made one again. */
        s = weir__records_find(&f->pages, block);
        status = s ? free_after_capture(f, s, stream) : weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    if (status == WEIR_OK && count_driver_free(f, c, requested, in_use))
        weir__caches_answer(f, stream);
    return status;
}

/* ---- frees ---- */

weir_status weir__caches_free_done(struct weir_caches *f, CUdeviceptr block) {
    struct weir_slab *s = weir__records_find(&f->pages, block);
    uint64_t requested = s && weir__slab_bytes(s) > 0 ? weir__slab_asked(s, block) : 0;
    struct weir_remote_slot remote = {.span = s};
    size_t in_use;
    int done;

    if (requested == 0)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    in_use = weir__slab_in_use(s);
    pthread_mutex_lock(&f->lock);
    if (s->slot_units) {
        remote.slot = weir__slab_slot(s, block);
        done = take_state(&s->slot[remote.slot]);
        if (done)
            weir__caches_bring_home(f, &remote, NULL);
    } else {
        done = atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed) > 0;
        s->next = NULL;
        if (done)
            weir__caches_give(f, s, WEIR_ENGINE_OBSERVED, NULL);
    }
    pthread_mutex_unlock(&f->lock);
    if (!done) /* unreached: freed meanwhile, which needs two threads that free one block at once */
        return weir__without_driver(WEIR_E_NOT_OWNED);
    count_loose_free(f, requested, in_use);
    return WEIR_OK;
}

weir_status weir__caches_free_found(struct weir_caches *f, struct weir_cache *c,
                                    unsigned long long id, struct weir_slab *s, CUdeviceptr block,
                                    weir_stream stream, struct weir_use_list *uses) {
    struct put p = {.c = c, .key = key_of(stream, id), .id = id, .s = s, .block = block};
    int result_before = weir__driver_result;
    weir_status status;

    if (!s || weir__slab_bytes(s) == 0)
        status = free_other(f, block, stream, uses);
    else if (f->is_straight && s->slot_units == 0 && !uses)
        status = free_by_driver(f, c, s, block, stream);
    else
        status = c ? free_by_cache(f, &p, stream) : free_slow(f, s, block, stream, uses);
    if (status == WEIR_OK)
        weir__driver_result = result_before;
    else
        weir__device_log_free(f->device, block, status);
    return status;
}

weir_status weir__caches_free_used(struct weir_caches *f, CUdeviceptr block, weir_stream stream,
                                   struct weir_use_list *uses) {
    struct weir_slab *s = weir__records_find(&f->pages, block);
    struct weir_cache *c = NULL;
    unsigned long long id = 0;
    weir_status status;
    int lent = 0;

    if (s && weir__slab_bytes(s) > 0 && !uses)
        c = find_cache(f, stream, &id, &lent);
    else
        lent = is_default(stream) && weir__device_lacks_context &&
               weir__device_lend_context(f->device);
    status = weir__caches_free_found(f, c, id, s, block, stream, uses);
    weir__device_end_context(f->device, lent);
    return status;
}
