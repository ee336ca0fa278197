/* SPDX-License-Identifier: MIT */
/* front.c: per-stream caches above any engine: how a request finds its stream's cell, what the driver
 * must be asked on the way, and how memory comes from the engine and goes back to it.
 *
 * Which stream.  A handle identifies nothing by itself: the driver gives a destroyed stream's handle
 * to the next one at once.  A request asks for the stream's id and compares it with that of the cell.
 * A free does not: it goes into the cell of its handle unseen.  If the next request finds the id that
 * the last one found, the handle meant that stream all the while, since ids are not used again, and
 * everything that came in between was freed on it.  If it finds another id, nothing in the cell can be
 * ascribed to a stream any more, and all of it goes back to the engine as "unknown", to serve nobody
 * before the device was waited for.  Default streams go by their id, which is asked at each free too:
 * their handles mean another stream in another context or thread.
 *
 * Which request.  A stream that is being captured is served by the engine alone, and what it frees is
 * served to nobody before a request on it has found the capture over, since only such requests take
 * from its cell, look after it, or answer a demand.  A free need not ask.
 *
 * Ways back to the engine, all of them inside calls on the cell's own stream that have just asked the
 * driver who it is, or need not: more lies idle than the cap allows; it lay unused for long; somebody's
 * request did not fit (`demand` rises, and every cell gives what it has at its next request); its own
 * request does not fit; or the stream is alone and misses.  The one exception waits for the device:
 * weir__front_empty, for trims, out of memory, the end, and growth while much is held back.
 *
 * Strays.  A slot that is freed on another stream than its slab's waits in that stream's cell, where it
 * serves at once.  Strays that pile up are sent home as a batch behind one event.
 *
 * Locks: `lock` guards the table's writers and the batches; under it the engine's own may be taken,
 * the records', or a cell's.  None of those is taken under another, but a letter box's under its
 * cell's.  Hits take the cell's alone.
 *
 * Must not know: the public API, settings' names, how an engine places blocks.
 */
#include "cache/hit.h"

#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "base/size.h"
#include "config/amount.h"
#include "cache/span_table.h"
#include "engine/stream_order.h"

enum {
    YOUNG = 64,  /* calls on a stream before it gets a cache, unless it is the first */
    CALM = 1024, /* requests that the engine served without growing or moving anything: from
                            * then on whole blocks are kept */
    DEFAULT_STREAMS = 256, /* cells of default streams that are not bound: threads come and go, and
                            * theirs with them */
    SLAB_DOUBLINGS = 3,    /* how far a slab grows beyond its first size as a class takes more */
    HELD_PART = 4,         /* of what is in use, or HELD_LEAST, that live slots may hold in slabs */
    GLANCE = 8             /* batches that are asked about at a time */
};
#define SLAB_FIRST ((size_t)64 << 10)
#define SLAB_LEAST ((size_t)32 << 10)
#define HELD_LEAST ((uint64_t)1 << 20)
#define STRANDED_MOST ((size_t)64 << 20) /* in strays of streams that ended, before growth waits */
/* By how much the engine's blocks have more than when all cells were asked, and by what part of that. */
#define TELL_LEAST ((uint64_t)16 << 20)
#define TELL_PART 32
#define CELL_LEAST ((uint64_t)1 << 20) /* that a cell may keep however many there are */

struct weir_front {
    struct weir_hits hits; /* first: see weir__hits_of */
    struct weir_reserve *v;
    struct weir_engine *engine; /* v's */
    struct weir_pagemap pages;
    int sheds;         /* there is a release threshold: what goes back is seen to at once */
    _Atomic int alone; /* no other stream is there that could have what the one frees before it asks
                        * for more, and nobody waits for the reserve to fall */
    _Atomic int
        past; /* a block went past the caches, and was taken off what the loose cell holds */
    uint64_t idle_ns; /* options.front_idle_ms; UINT64_MAX: for ever */

    _Alignas(64) _Atomic uint64_t calm; /* requests that the engine served since one did not fit */
    struct weir_records records;

    pthread_mutex_t lock;             /* guards what follows */
    struct weir_cell *cells;          /* all of them */
    struct weir_cell *loose;          /* of these, the one that counts what no other cell does */
    size_t streams;                   /* cells that have or had a key */
    size_t default_streams;           /* cells that go by id, but for bound ones */
    size_t cached;                    /* cells that have a store */
    struct weir_order order;          /* for fences alone */
    struct weir_strays *batches;      /* on their way home, those asked about last at the end; */
    struct weir_strays **batches_end; /* without a fence until a wait for the device */
    _Atomic size_t stranded; /* bytes of the slots that only a wait for the device brings home */
    _Atomic size_t sent;     /* of them; read without the lock */
    size_t host_bytes;
    int64_t requested, in_use; /* as the cells have told */
    uint64_t requested_peak, in_use_peak;
    uint64_t requested_lately; /* the former since weir__front_renew_peak */
    _Atomic uint64_t
        told_out; /* what the engine's blocks had at their most as all cells were asked last */
    uint64_t lately[2];  /* the most in use in this span of idle_ns, and in the one before */
    uint64_t span_ticks; /* when this one began */
};

/* ---- whose cell -------------------------------------------------------------------------------- */

static struct weir_cell_table *table_of(struct weir_front *f, uint64_t key) {
    return key & 1 ? &f->hits.by_id : &f->hits.by_handle;
}

/* The cell of a key, or NULL; 0 is nobody's.  That of an id may belong to another by now, which its user checks under
 * the cell's lock. */
static inline struct weir_cell *cell_of(struct weir_front *f, uint64_t key) {
    struct weir_cell *c;

    return key && weir__cell_table_find(table_of(f, key), key, &c) ? c : NULL;
}

/* ---- spans ------------------------------------------------------------------------------------- */

/* Gives idle spans back under a stream's id, or what else `give` takes.  1 if `tend` has to do. */
static int give_spans(struct weir_front *f, struct weir_span *spans, uint64_t id) {
    int due = 0;

    while (spans) {
        struct weir_span *s = spans;
        CUdeviceptr base = weir__span_base(s);

        spans = s->next;
        weir__records_end(&f->records, s);
        /* A live block of the engine: it cannot refuse. */
        due |= f->engine->ops->give(f->engine, base, id) == WEIR_ENGINE_DUE;
    }
    return due;
}

/* ---- strays and batches ------------------------------------------------------------------------ */

/* A slot whose last use is over everywhere comes home; the caller holds `lock`. */
static void bring_home(struct weir_front *f, const struct weir_stray *stray) {
    struct weir_span *s = stray->span;
    struct weir_cell *owner = atomic_load_explicit(&s->cell, memory_order_relaxed);

    if (owner) {
        int taken = weir__bias_take(&owner->lock);

        weir__cell_home(owner, s, stray->slot);
        weir__bias_give(&owner->lock, taken);
        return;
    }
    weir__span_put(s, stray->slot);
    if (s->idle == s->slots) {
        s->next = NULL;
        give_spans(f, s, WEIR_ENGINE_UNKNOWN);
    }
}

/* Slots that are free for all; the caller holds `lock`. */
static void bring_all_home(struct weir_front *f, struct weir_strays *strays) {
    while (strays) {
        struct weir_strays *more = strays->more;

        for (uint32_t i = 0; i < strays->count; i++)
            bring_home(f, &strays->stray[i]);
        free(strays);
        strays = more;
    }
}

static size_t bytes_of(const struct weir_strays *strays) {
    size_t bytes = 0;

    for (; strays; strays = strays->more)
        for (uint32_t i = 0; i < strays->count; i++)
            bytes += (size_t)strays->stray[i].span->slot_units * WEIR_SPAN_UNIT;
    return bytes;
}

/* A batch has arrived; the caller holds `lock`. */
static void settle(struct weir_front *f, struct weir_strays *batch) {
    if (batch->fence)
        weir__order_fence_drop(&f->order, batch->fence);
    else
        atomic_fetch_sub_explicit(&f->stranded, bytes_of(batch), memory_order_relaxed);
    bring_all_home(f, batch);
    atomic_fetch_sub_explicit(&f->sent, 1, memory_order_relaxed);
}

/* At the end of the list; the caller holds `lock`. */
static void queue(struct weir_front *f, struct weir_strays *batch) {
    batch->next = NULL;
    *f->batches_end = batch;
    f->batches_end = &batch->next;
}

/* Brings home what has completed of the next few batches, so that no call asks about all of them, nor about
 * one twice; the caller holds `lock`. */
static void settle_batches(struct weir_front *f) {
    const struct weir_strays *asked = NULL; /* the first that stays */

    for (int i = 0; i < GLANCE && f->batches != asked; i++) {
        struct weir_strays *batch = f->batches;

        f->batches = batch->next;
        if (!f->batches)
            f->batches_end = &f->batches;
        if (batch->fence && weir__order_fence_done(&f->order, batch->fence)) {
            settle(f, batch);
        } else {
            queue(f, batch);
            asked = asked ? asked : batch;
        }
    }
}

/* Sends slots home, behind `fence` (NULL: a wait for the device); the caller holds `lock`. */
static void send_home(struct weir_front *f, struct weir_strays *strays, struct weir_fence *fence) {
    if (!strays)
        return;
    strays->fence = fence;
    queue(f, strays);
    atomic_fetch_add_explicit(&f->sent, 1, memory_order_relaxed);
    if (!fence)
        atomic_fetch_add_explicit(&f->stranded, bytes_of(strays), memory_order_relaxed);
}

/* ---- what comes out of a cell ------------------------------------------------------------------ */

/* In a call on the cell's stream that the driver has vouched for: the engine sees to what was given
 * back. */
static void tend(struct weir_front *f, uint64_t id, weir_stream stream) {
    weir__engine_tend(f->engine, stream, id);
}

/* A harvest of `c` in a call on its stream that the driver has vouched for: spans go back as freed on
 * it, strays behind an event there. */
static void deliver(struct weir_front *f, struct weir_cell *c, weir_stream stream,
                    struct weir_harvest *h) {
    struct weir_use_list none = {0};
    struct weir_fence *fence = NULL;

    if (!h->spans && !h->strays)
        return;
    pthread_mutex_lock(&f->lock);
    settle_batches(f);
    give_spans(f, h->spans, atomic_load_explicit(&c->id, memory_order_relaxed));
    if (h->strays && weir__order_fence(&f->order, stream, &none, &fence) != WEIR_OK)
        fence = NULL; /* a wait for the device will do */
    send_home(f, h->strays, fence);
    pthread_mutex_unlock(&f->lock);
}

static inline int is_alone(const struct weir_front *f) {
    return atomic_load_explicit(&f->alone, memory_order_relaxed);
}

/* Whole blocks may stay in the cells.  A plan places every block, so the engine has to see every request for one. */
static int is_calm(const struct weir_front *f) {
    return !f->engine->planned && !weir__lifetimes_watch(f->engine->lifetimes) &&
           atomic_load_explicit(&f->calm, memory_order_relaxed) >= CALM;
}

/* What a cell may keep if so much is in use; the caller holds `lock`. */
static size_t share(const struct weir_front *f, uint64_t in_use) {
    uint64_t bytes = weir__budget_of_in_use(&f->v->options->front_cache, in_use, f->in_use_peak) /
                     (f->cached ? f->cached : 1);

    if (f->v->options->front_cache.kind == WEIR_AMOUNT_DEFAULT)
        bytes = weir__size_larger(bytes, CELL_LEAST);
    /* What is kept here cannot go at a synchronisation. */
    return (size_t)weir__size_smaller(bytes, f->engine->threshold);
}

static void set_most(struct weir_cell *c, size_t most) {
    size_t most_whole = atomic_load_explicit(&c->most_whole, memory_order_relaxed);

    atomic_store_explicit(&c->most, most, memory_order_relaxed);
    if (most_whole > most - most / 4)
        atomic_store_explicit(&c->most_whole, most - most / 4, memory_order_relaxed);
}

/* What a cell keeps or may keep; what is leaving goes at the next miss. */
static size_t most_kept(const struct weir_cell *c) {
    size_t idle = atomic_load_explicit(&c->idle, memory_order_relaxed);
    size_t leaving = atomic_load_explicit(&c->leaving, memory_order_relaxed);

    return (size_t)weir__size_larger(weir__size_less(idle, leaving),
                                     atomic_load_explicit(&c->most, memory_order_relaxed));
}

/* What the user set is a limit: a cell gets less than its share if others still hold the memory, since a stream that
 * makes no calls cannot release its own.  The caller holds `lock`. */
static size_t share_left(const struct weir_front *f, const struct weir_cell *c, uint64_t in_use) {
    uint64_t left = weir__budget_of_in_use(&f->v->options->front_cache, in_use, f->in_use_peak);
    size_t most = share(f, in_use);

    if (f->v->options->front_cache.kind == WEIR_AMOUNT_DEFAULT)
        return most;
    for (const struct weir_cell *other = f->cells; other && left > 0; other = other->next)
        if (other != c && other->store)
            left = weir__size_less(left, most_kept(other));
    return (size_t)weir__size_smaller(most, left);
}

/* One cell more has a cache: what the others may keep is less.  The caller holds `lock`. */
static void lower_shares(struct weir_front *f) {
    size_t most = share(f, weir__size_larger(f->lately[0], f->lately[1]));

    for (struct weir_cell *c = f->cells; c; c = c->next)
        if (c->store && atomic_load_explicit(&c->most, memory_order_relaxed) > most)
            set_most(c, most);
}

/* What a cell has handed out, for the sums; the caller holds `lock`. */
static void tell_sums(struct weir_front *f, struct weir_cell *c) {
    uint64_t posted, posted_in_use;
    int64_t requested, in_use;

    /* The letter box first: what is fetched meanwhile is taken off twice, and no peak is too high. */
    (void)weir__cell_posted(c, &posted, &posted_in_use);
    requested = weir__cell_now(&c->requested) - (int64_t)posted;
    in_use = weir__cell_now(&c->in_use) - (int64_t)posted_in_use;
    f->requested += requested - atomic_load_explicit(&c->told_requested, memory_order_relaxed);
    f->in_use += in_use - atomic_load_explicit(&c->told_in_use, memory_order_relaxed);
    atomic_store_explicit(&c->told_requested, requested, memory_order_relaxed);
    atomic_store_explicit(&c->told_in_use, in_use, memory_order_relaxed);
}

/* Below 0 while a cell has not told what it has handed out, and another has told of its free. */
static uint64_t at_least_none(int64_t sum) {
    return sum < 0 ? 0 : (uint64_t)sum;
}

static int is_above_peak(const struct weir_front *f) {
    return at_least_none(f->requested) > f->requested_lately ||
           at_least_none(f->in_use) > f->in_use_peak;
}

/* Adds what a cell has handed out to the sums, and returns what all cells have handed out; the caller holds `lock`.
 * Before a peak rises, all cells are asked: a block taken on one and freed on another counts until the other has
 * told. */
static uint64_t tell_peaks(struct weir_front *f, struct weir_cell *c) {
    struct weir_cell *other;
    uint64_t now;

    tell_sums(f, c);
    for (other = is_above_peak(f) ? f->cells : NULL; other; other = other->next)
        tell_sums(f, other);
    now = at_least_none(f->in_use);
    f->requested_peak = weir__size_larger(f->requested_peak, at_least_none(f->requested));
    f->requested_lately = weir__size_larger(f->requested_lately, at_least_none(f->requested));
    f->in_use_peak = weir__size_larger(f->in_use_peak, now);
    f->lately[0] = weir__size_larger(f->lately[0], now);
    return now;
}

/* The same, and sets how much the cell may keep. */
static void tell(struct weir_front *f, struct weir_cell *c) {
    uint64_t now = tell_peaks(f, c), lately;

    if (!c->store)
        return;
    lately = weir__size_larger(f->lately[0], f->lately[1]);
    atomic_store_explicit(&c->most, share_left(f, c, lately), memory_order_relaxed);
    /* Less of what should join its neighbours. */
    now = weir__size_smaller(share(f, now), atomic_load_explicit(&c->most, memory_order_relaxed));
    atomic_store_explicit(&c->most_whole, is_calm(f) ? now - now / 4 : 0, memory_order_relaxed);
}

/* `front_idle' has gone by since then.  Another thread may have written `then' after this one read its `now'. */
static int is_over(const struct weir_front *f, uint64_t then, uint64_t now) {
    return now > then && f->hits.device->driver->ticks_to_ns(now - then) >= f->idle_ns;
}

/* What was in use before the last span of time counts no more; the caller holds `lock`. */
static void age(struct weir_front *f, uint64_t now) {
    if (!is_over(f, f->span_ticks, now))
        return;
    f->span_ticks = now;
    f->lately[1] = f->lately[0];
    f->lately[0] = 0;
}

/* Looks after a cell whose turn it is, in a call on its stream that the driver has vouched for. */
static void look_after(struct weir_front *f, struct weir_cell *c, weir_stream stream) {
    struct weir_harvest h = {0};
    uint64_t now = f->hits.device->driver->ticks();
    int taken, expired;
    size_t most;

    pthread_mutex_lock(&f->lock);
    age(f, now);
    tell(f, c);
    expired = is_over(f, c->looked_ticks, now);
    if (expired)
        c->looked_ticks = now;
    pthread_mutex_unlock(&f->lock);
    taken = weir__bias_take(&c->lock);
    c->due = 0;
    weir__cell_pass(c);
    most = atomic_load_explicit(&c->most, memory_order_relaxed);
    weir__cell_drop_excess(c, &h);
    if (atomic_load_explicit(&c->idle, memory_order_relaxed) > most)
        weir__cell_shrink(c, most - most / 4, &h); /* so that not every request finds it too full */
    if (expired)
        weir__cell_expire(c, &h);
    weir__cell_strays(c, WEIR_CELL_STRAYS, &h);
    weir__bias_give(&c->lock, taken);
    deliver(f, c, stream, &h);
}

/* Gives the engine all that the cell has, likewise.  1 if there was something. */
static int give_all(struct weir_front *f, struct weir_cell *c, weir_stream stream) {
    struct weir_harvest h = {0};
    int taken = weir__bias_take(&c->lock), some;

    weir__cell_shrink(c, 0, &h);
    weir__cell_strays(c, 1, &h);
    c->demand = atomic_load_explicit(&f->hits.demand, memory_order_relaxed);
    if (!is_calm(f))
        atomic_store_explicit(&c->most_whole, 0, memory_order_relaxed);
    weir__cell_pass(c);
    weir__bias_give(&c->lock, taken);
    some = h.spans != NULL;
    deliver(f, c, stream, &h);
    return some;
}

static void unwatch(struct weir_cell *c) {
    atomic_fetch_and_explicit(&c->trusted, ~WEIR_CELL_WATCHED, memory_order_relaxed);
}

/* Nobody knows any more on which stream the idle blocks of the cell were freed (`id` UNKNOWN), or it is
 * to make room (its id).  The caller holds `lock`. */
static void retire(struct weir_front *f, struct weir_cell *c, uint64_t id) {
    struct weir_harvest h = {0};
    int taken = weir__bias_take(&c->lock);

    if (c->serves) {
        c->serves = 0;
        weir__cell_readdress(c); /* nothing comes in any more */
        weir__cell_shrink(c, 0, &h);
        weir__cell_strays(c, 1, &h);
        weir__cell_disown(c);
    }
    weir__cell_pass(c);
    weir__bias_give(&c->lock, taken);
    unwatch(c);
    give_spans(f, h.spans, id);
    send_home(f, h.strays, NULL);
    c->young = 0;
}

/* ---- making cells ------------------------------------------------------------------------------ */

static struct weir_cell *cell_make(struct weir_front *f) {
    struct weir_cell *c = aligned_alloc(_Alignof(struct weir_cell), sizeof *c);

    if (!c)
        return NULL;
    memset(c, 0, sizeof *c);
    c->next = f->cells;
    f->cells = c;
    f->host_bytes += sizeof *c;
    return c;
}

/* Users of a cell that was found without the lock look at its key under the cell's. */
static void rename_cell(struct weir_cell *c, uint64_t key) {
    int taken = weir__bias_take(&c->lock);

    atomic_store_explicit(&c->key, key, memory_order_relaxed);
    weir__bias_give(&c->lock, taken);
}

/* Takes a cell's key away, unless a call is at work with it: 1, or 0. */
static int take_name(struct weir_cell *c) {
    int taken = weir__bias_take(&c->lock), idle;

    idle = c->pins == 0;
    if (idle)
        atomic_store_explicit(&c->key, 0, memory_order_relaxed);
    weir__bias_give(&c->lock, taken);
    return idle;
}

/* A call that works with a cell beyond one hold of its lock keeps it from being given to another
 * stream. */
static void pin(struct weir_cell *c) {
    int taken = weir__bias_take(&c->lock);

    c->pins++;
    weir__bias_give(&c->lock, taken);
}

static void unpin(struct weir_cell *c) {
    int taken;

    if (!c)
        return;
    taken = weir__bias_take(&c->lock);
    c->pins--;
    weir__bias_give(&c->lock, taken);
}

/* Calls on the cell's stream so far; the caller holds `lock`. */
static uint64_t calls_of(struct weir_cell *c) {
    uint64_t posted, posted_in_use;

    return atomic_load_explicit(&c->hits, memory_order_relaxed) +
           atomic_load_explicit(&c->misses, memory_order_relaxed) +
           atomic_load_explicit(&c->frees, memory_order_relaxed) +
           weir__cell_posted(c, &posted, &posted_in_use) + c->visits;
}

/* A default stream's cell that was silent since it was asked last, the newest such, emptied and without a
 * key; the others are asked anew. */
static struct weir_cell *take_silent(struct weir_front *f) {
    struct weir_cell *silent = NULL;
    uint64_t key, calls;

    for (struct weir_cell *c = f->cells; c; c = c->next) {
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
    weir__cell_table_remove(&f->hits.by_id, key);
    retire(f, silent, atomic_load_explicit(&silent->id, memory_order_relaxed));
    return silent;
}

/* The cell of a stream that was just asked for its id, made if there is none; NULL: no host memory, or
 * more default streams than are kept, unless it is to be bound.  The caller holds `lock`. */
static struct weir_cell *cell_at(struct weir_front *f, weir_stream stream, uint64_t id,
                                 int to_bind) {
    uint64_t key = key_of(stream, id);
    struct weir_cell *c = cell_of(f, key);
    int by_id = (int)(key & 1), full = by_id && f->default_streams >= DEFAULT_STREAMS;

    if (c || !key) /* unreached: no key, since no driver's handle is odd, and the id is known */
        return c;
    if (full)
        c = take_silent(f);
    if (!c && (!full || to_bind) && weir__cell_table_reserve(table_of(f, key))) {
        c = cell_make(f);
        if (c && ++f->streams > 1)
            atomic_store_explicit(&f->alone, 0, memory_order_relaxed);
        f->default_streams += c && by_id;
    }
    if (c) {
        rename_cell(c, key);
        weir__cell_table_add(table_of(f, key), key, c);
    }
    return c;
}

/* Gives a stream its cache, in a call on it; the caller holds `lock`. */
static void mature(struct weir_front *f, struct weir_cell *c, uint64_t id) {
    int taken = weir__bias_take(&c->lock), had = c->store != NULL;

    if (weir__cell_open(c)) {
        atomic_store_explicit(&c->id, id, memory_order_relaxed);
        c->demand = atomic_load_explicit(&f->hits.demand, memory_order_relaxed);
        c->serves = 1;
        weir__cell_readdress(c);
        weir__cell_pass(c);
    }
    weir__bias_give(&c->lock, taken);
    c->looked_ticks = f->hits.device->driver->ticks();
    if (!had && c->store) {
        f->cached++;
        lower_shares(f);
    }
    tell(f, c);
}

static int is_watched(const struct weir_front *f, weir_stream stream) {
    int (*watches)(weir_stream) =
        atomic_load_explicit(&f->hits.device->watches, memory_order_relaxed);

    return watches && !is_default(stream) && watches(stream);
}

/* In a call on a stream that is not being captured and has that id: its cell, if it has a cache.
 * Counts the calls of young streams.  pins 1: the cell is pinned; 0: the call does not need it, and gets NULL. */
static struct weir_cell *visit(struct weir_front *f, weir_stream stream, uint64_t id, int pins) {
    struct weir_cell *c;
    int vouched;

    pthread_mutex_lock(&f->lock);
    c = cell_at(f, stream, id, 0);
    if (c) {
        c->visits++;
        atomic_store_explicit(&c->capturing, 0, memory_order_relaxed);
        vouched = is_vouched_for(&f->hits, c, stream);
        if (c->serves && atomic_load_explicit(&c->id, memory_order_relaxed) != id)
            retire(f, c, WEIR_ENGINE_UNKNOWN);
        if (c->young_id != id) {
            c->young_id = id;
            c->young = 0;
        }
        if (!c->serves && (++c->young > YOUNG || vouched || f->cached == 0))
            mature(f, c, id);
        if (c->serves && is_watched(f, stream))
            atomic_fetch_or_explicit(&c->trusted, WEIR_CELL_WATCHED, memory_order_relaxed);
        if (c->serves && pins)
            pin(c);
        else
            c = NULL;
    }
    pthread_mutex_unlock(&f->lock);
    return c;
}

/* In a call on a stream that is being captured (`id`: a default stream's): its cell, if it has one. */
static struct weir_cell *visit_captured(struct weir_front *f, weir_stream stream, uint64_t id) {
    struct weir_cell *c = cell_of(f, key_of(stream, id));
    int taken;

    if (c && !atomic_load_explicit(&c->capturing, memory_order_relaxed)) {
        taken = weir__bias_take(&c->lock);
        atomic_store_explicit(&c->capturing, 1, memory_order_relaxed);
        weir__cell_pass(c);
        weir__bias_give(&c->lock, taken);
    }
    return c;
}

/* ---- requests ---------------------------------------------------------------------------------- */

static void count(struct weir_front *f, int counter) {
    weir__tally_add(&f->v->events.books->tally, counter);
}

/* The engine cannot serve a request as it stands: every other cell gives what it has at its stream's
 * next call, and whole blocks go past the cells until the engine has been calm for a while.  A block
 * that lies in a cell cannot join its neighbours, and where blocks come to lie is decided now. */
static void raise_demand(struct weir_front *f, struct weir_cell *c) {
    uint64_t before = atomic_fetch_add_explicit(&f->hits.demand, 1, memory_order_relaxed);
    int taken;

    atomic_store_explicit(&f->calm, 0, memory_order_relaxed);
    if (!c)
        return;
    taken = weir__bias_take(&c->lock);
    atomic_store_explicit(&c->most_whole, 0, memory_order_relaxed);
    if (c->demand == before) { /* it has just given all */
        c->demand = before + 1;
        weir__cell_pass(c);
    }
    weir__bias_give(&c->lock, taken);
}

/* Bytes that a request cannot have, though nobody uses them: strays of streams that ended, and what a
 * stream that was alone has freed since it asked last. */
static size_t held_back(struct weir_front *f) {
    size_t bytes = atomic_load_explicit(&f->stranded, memory_order_relaxed);

    pthread_mutex_lock(&f->lock);
    for (struct weir_cell *c = f->cells; c; c = c->next)
        bytes += atomic_load_explicit(&c->leaving, memory_order_relaxed);
    pthread_mutex_unlock(&f->lock);
    return bytes;
}

/* The engine served a request without growing or moving anything. */
static void note_calm(struct weir_front *f) {
    if (!is_calm(f))
        atomic_fetch_add_explicit(&f->calm, 1, memory_order_relaxed);
}

/* Whose request is under way: a cell's, or that of a stream without a cache (NULL). */
struct borrower {
    struct weir_front *f;
    struct weir_cell *c;
};

static int lend(void *context, struct weir_request *r, enum weir_lending what) {
    const struct borrower *b = context;

    switch (what) {
    case WEIR_LEND_OWN:
        return b->c && give_all(b->f, b->c, r->stream);
    case WEIR_LEND_STUCK:
        return held_back(b->f) > STRANDED_MOST && weir__front_empty(b->f) == WEIR_OK;
    case WEIR_LEND_LATER:
        raise_demand(b->f, b->c);
        return 0;
    default:
        return weir__front_empty(b->f) == WEIR_OK;
    }
}

/* A block from the engine for a request on a stream that is not being captured; of r->bytes, or of r->least where there
 * is no memory for more. */
static inline __attribute__((always_inline)) weir_status
fetch(struct weir_front *f, struct weir_cell *c, struct weir_request *r) {
    struct borrower borrower = {f, c};
    const struct weir_lender caches = {lend, &borrower};
    weir_status status = weir__reserve_alloc(f->v, r, &caches);

    if (status == WEIR_OK && !(r->flags & WEIR_REQUEST_WAS_DRY))
        note_calm(f);
    if (r->flags & WEIR_REQUEST_PRESSURE)
        raise_demand(f, c);
    return status;
}

/* What a block takes of the engine. */
static size_t in_pages(size_t bytes) {
    return (bytes + WEIR_PAGE - 1) & ~(WEIR_PAGE - 1);
}

size_t weir__front_fit(size_t bytes) {
    size_t most = 0;

    bytes = weir__size_round_down(bytes, WEIR_PAGE);
    if (bytes > WEIR_SPAN_SMALL)
        return bytes;
    for (unsigned c = 0; c <= weir__span_class(WEIR_SPAN_SMALL); c++) {
        size_t slot = (size_t)weir__span_units(c) * WEIR_SPAN_UNIT;

        if (in_pages(slot) <= bytes)
            most = slot;
    }
    return most;
}

/* Partly used slabs hold many idle slots, which other classes cannot use. */
static int has_held_slabs(struct weir_cell *c) {
    uint64_t in_use = at_least_none(weir__cell_now(&c->in_use));

    return weir__cell_is_held(c, (size_t)weir__size_larger(in_use / HELD_PART, HELD_LEAST));
}

/* Slots of the next slab of a class: more as the class takes more, while slabs still empty completely.  Where it is
 * more than one, no other fits in what is left of their pages. */
static size_t slab_slots(struct weir_cell *c, unsigned size_class) {
    size_t slot = (size_t)weir__span_units(size_class) * WEIR_SPAN_UNIT;
    uint32_t slabs = atomic_load_explicit(&c->store->small[size_class].slabs, memory_order_relaxed);
    size_t bytes = SLAB_FIRST << weir__size_smaller(slabs, SLAB_DOUBLINGS);

    if (slabs > 0 && bytes / slot > 1 && has_held_slabs(c))
        bytes = SLAB_LEAST;
    return weir__size_smaller(weir__size_larger(bytes / slot, 1), WEIR_RECORDS_SLOTS);
}

/* A slab for the request's class in the cell; of as many slots as a page holds, or one, if there is no
 * memory for more. */
static weir_status add_slab(struct weir_front *f, struct weir_cell *c, struct weir_request *r) {
    unsigned size_class = weir__span_class(r->asked);
    size_t slot = (size_t)weir__span_units(size_class) * WEIR_SPAN_UNIT;
    struct weir_span *s;
    weir_status status;
    int taken;

    r->flags = 0; /* what another try of the request has left */
    r->grew = 0;
    r->dry_at = 0;
    r->bytes = in_pages(slab_slots(c, size_class) * slot);
    r->least = in_pages(slot);
    status = fetch(f, c, r);
    if (status != WEIR_OK)
        return status;
    s = weir__records_slab(&f->records, r->block, r->bytes, size_class,
                           (uint32_t)(r->bytes / slot));
    if (!s) {
        (void)f->engine->ops->give(f->engine, r->block, r->id);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    taken = weir__bias_take(&c->lock);
    weir__cell_add_slab(c, s);
    weir__bias_give(&c->lock, taken);
    return WEIR_OK;
}

/* A whole block, for a cell (NULL: a stream without a cache, and of any size). */
static inline __attribute__((always_inline)) weir_status
add_whole(struct weir_front *f, struct weir_cell *c, struct weir_request *r) {
    struct weir_span *s;
    weir_status status;

    r->bytes = in_pages(r->asked);
    status = fetch(f, c, r);
    if (status != WEIR_OK)
        return status;
    s = weir__records_whole(&f->records, r->block, r->bytes);
    if (!s) {
        (void)f->engine->ops->give(f->engine, r->block, r->id);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    atomic_store_explicit(&s->fetched_for, r->id, memory_order_relaxed);
    atomic_store_explicit(&s->asked, r->asked, memory_order_relaxed);
    return WEIR_OK;
}

/* What was brought into the cell for this very request, or 0. */
static CUdeviceptr take_brought(struct weir_cell *c, uint64_t key, uint64_t id, size_t bytes) {
    int taken = weir__bias_take(&c->lock);
    /* unreached: it is not the stream's any more, which must end while this call is at work on it */
    CUdeviceptr block = c->serves && is_its(c, key, id) ? take_any(c, bytes) : 0;

    weir__bias_give(&c->lock, taken);
    return block;
}

/* The stream is being captured: the engine makes a node of the graph, or refuses.  Then the caches give nothing back:
 * what is idle is not what a graph's memory comes of (oom_ladder.c). */
static weir_status alloc_captured(struct weir_front *f, struct weir_request *r) {
    weir_status status;

    (void)visit_captured(f, r->stream, 0);
    if (f->hits.device->drop_in)
        return weir__without_driver(WEIR_E_CAPTURE);
    r->bytes = r->asked;
    r->id = 0; /* an engine takes a stream whose id it is told for one that is not being captured */
    r->flags |= WEIR_REQUEST_CAPTURED;
    status = weir__reserve_alloc_alone(f->v, r);
    if (status == WEIR_OK)
        count(f, WEIR_TALLY_FRONT_CAPTURE);
    return status;
}

/* The id of a stream, which is this device's: a cell that knows it has seen that. */
static weir_status identify(struct weir_front *f, weir_stream stream, uint64_t *id) {
    CUresult result = weir__device_stream_id(f->hits.device, stream, id);
    const struct weir_cell *c;

    if (result != CUDA_SUCCESS)
        return weir__device_status(f->hits.device, result);
    c = cell_of(f, key_of(stream, *id));
    if (c && atomic_load_explicit(&c->id, memory_order_relaxed) == *id)
        return WEIR_OK;
    return weir__device_check_stream(f->hits.device, stream);
}

/* What was put off while the cell's stream only hit, now that the driver has vouched for it. */
static void catch_up(struct weir_front *f, struct weir_cell *c, weir_stream stream) {
    int taken = weir__bias_take(&c->lock);
    int wanted = c->demand != atomic_load_explicit(&f->hits.demand, memory_order_relaxed);
    int due = c->due;

    weir__cell_pass(c); /* a capture may be over */
    weir__bias_give(&c->lock, taken);
    if (due)
        look_after(f, c, stream);
    if (wanted)
        (void)give_all(f, c, stream);
    tend(f, atomic_load_explicit(&c->id, memory_order_relaxed), stream);
}

/* A slot, of which the cell has none: of what is on its way home, or of a slab from the engine. */
static __attribute__((noinline)) weir_status add_slot(struct weir_front *f, struct weir_cell *c,
                                                      struct weir_request *r) {
    if (atomic_load_explicit(&f->sent, memory_order_relaxed) > 0) {
        pthread_mutex_lock(&f->lock);
        settle_batches(f);
        pthread_mutex_unlock(&f->lock);
    }
    for (;;) {
        weir_status status;

        r->block = take_brought(c, key_of(r->stream, r->id), r->id, r->asked);
        if (r->block)
            return WEIR_OK;
        /* Nothing came home, or other threads on the stream have used the slab up. */
        status = add_slab(f, c, r);
        if (status != WEIR_OK)
            return status;
    }
}

/* Callers cannot have more than the engine's blocks hold.  Those hold more than ever now, so the callers' peak may
 * rise: all cells are asked. */
static __attribute__((noinline)) void tell_all(struct weir_front *f, struct weir_cell *c,
                                               uint64_t out) {
    pthread_mutex_lock(&f->lock);
    atomic_store_explicit(&f->told_out, out, memory_order_relaxed);
    for (struct weir_cell *other = f->cells; other; other = other->next)
        tell_sums(f, other);
    tell(f, c ? c : f->loose);
    pthread_mutex_unlock(&f->lock);
}

/* Programs read and reset the peak of the driver's pools.  Where weir stands in for such a pool, the peak is updated
 * more often. */
static __attribute__((noinline)) void tell_own(struct weir_front *f, struct weir_cell *c) {
    pthread_mutex_lock(&f->lock);
    (void)tell_peaks(f, c ? c : f->loose);
    pthread_mutex_unlock(&f->lock);
}

/* The cell has handed out more than the sums say.  It need not tell of less: before a peak rises, all cells are
 * asked. */
static inline int has_risen(const struct weir_cell *c) {
    return weir__cell_now(&c->requested) >
               atomic_load_explicit(&c->told_requested, memory_order_relaxed) ||
           weir__cell_now(&c->in_use) > atomic_load_explicit(&c->told_in_use, memory_order_relaxed);
}

static inline void tell_miss(struct weir_front *f, struct weir_cell *c) {
    uint64_t told = atomic_load_explicit(&f->told_out, memory_order_relaxed);
    uint64_t out = atomic_load_explicit(&f->engine->seen.most_in_use, memory_order_relaxed);

    if (out > told + weir__size_larger(told / TELL_PART, TELL_LEAST))
        tell_all(f, c, out);
    else if (f->hits.device->drop_in && has_risen(c ? c : f->loose))
        tell_own(f, c);
}

/* From the engine, for a stream that is r->id.  Its cell was pinned, and is no more. */
static inline __attribute__((always_inline)) weir_status
alloc_fresh(struct weir_front *f, struct weir_cell *c, struct weir_request *r) {
    int is_slot = c && r->asked <= WEIR_SPAN_SMALL, taken;
    weir_status status = is_slot ? add_slot(f, c, r) : add_whole(f, c, r);
    struct weir_cell *counts = c ? c : f->loose;

    taken = weir__bias_take(&counts->lock);
    if (status == WEIR_OK && !is_slot)
        weir__cell_account(counts, (int64_t)r->asked, (int64_t)r->bytes);
    if (c)
        c->pins--;
    weir__bias_give(&counts->lock, taken);
    if (status != WEIR_OK)
        return status;
    count(f, c ? WEIR_TALLY_FRONT_EMPTY : WEIR_TALLY_FRONT_YOUNG);
    tell_miss(f, c);
    return WEIR_OK;
}

/* The driver is asked who the stream is, and the cell catches up. */
static __attribute__((noinline)) weir_status alloc_slow(struct weir_front *f,
                                                        struct weir_request *r) {
    weir_status status = weir__device_capture(f->hits.device, r->stream);
    struct weir_cell *c;
    int taken;

    if (status == WEIR_E_CAPTURE)
        return alloc_captured(f, r);
    if (status == WEIR_OK)
        status = identify(f, r->stream, &r->id);
    if (status != WEIR_OK) {
        weir__device_log_alloc(f->hits.device, r->asked, status);
        return status;
    }
    c = visit(f, r->stream, r->id, 1);
    if (c) {
        catch_up(f, c, r->stream);
        taken = weir__bias_take(&c->lock);
        r->block = take(&f->hits, c, key_of(r->stream, r->id), r->id, r->asked);
        c->pins -= r->block != 0;
        weir__bias_give(&c->lock, taken);
    }
    return r->block ? WEIR_OK : alloc_fresh(f, c, r);
}

/* The cell has nothing for a request, and nothing to catch up with.  What is leaving goes, since the
 * engine is asked next.  The caller holds the cell's lock. */
static void note_miss(struct weir_front *f, struct weir_cell *c, struct weir_harvest *leaving) {
    weir__cell_raise(&c->misses);
    weir__cell_drop_leaving(c, leaving);
    if (atomic_load_explicit(&c->most_whole, memory_order_relaxed) == 0 && is_calm(f) &&
        atomic_load_explicit(&c->most, memory_order_relaxed) > 0)
        weir__cell_due(c); /* whole blocks may stay again */
}

/* If there is nothing to catch up with the driver need not be asked again. */
weir_status weir__front_miss(struct weir_front *f, struct weir_cell *c, int taken, uint64_t key,
                             struct weir_request *r) {
    struct weir_harvest leaving = {0};
    int plain = is_ready(&f->hits, c) && is_its(c, key, r->id);

    if (r->id == 0) /* vouched for */
        r->id = atomic_load_explicit(&c->id, memory_order_relaxed);
    if (plain) {
        note_miss(f, c, &leaving);
        c->pins++;
    }
    weir__bias_give(&c->lock, taken);
    if (!plain)
        return alloc_slow(f, r);
    /* A whole block is the engine's to find: it is called next, and sees to it. */
    if (leaving.spans && give_spans(f, leaving.spans, r->id) && r->asked <= WEIR_SPAN_SMALL)
        tend(f, r->id, r->stream);
    return alloc_fresh(f, c, r);
}

/* The cell by which a call on the stream goes, if there is one; a default stream's id is asked. */
static inline struct weir_cell *find(struct weir_front *f, weir_stream stream, uint64_t *key,
                                     unsigned long long *id) {
    *id = 0;
    if (is_default(stream) && !weir__device_default_id(f->hits.device, stream, id)) {
        if (!ask(&f->hits, stream, id))
            return NULL;
        weir__device_note_default_id(f->hits.device, stream, *id);
    }
    *key = key_of(stream, *id);
    return cell_of(f, *key);
}

static weir_status alloc_as_asked(struct weir_front *f, struct weir_request *r) {
    unsigned long long id;
    uint64_t key;
    struct weir_cell *c = find(f, r->stream, &key, &id);
    int taken;

    /* unreached: not vouched for, as that is asked elsewhere, unless it was until a moment ago */
    if (!c || (id == 0 && !is_vouched_for(&f->hits, c, r->stream)))
        return alloc_slow(f, r);
    r->id = id;
    taken = weir__bias_take(&c->lock);
    r->block = take(&f->hits, c, key, id, r->asked);
    if (!r->block)
        return weir__front_miss(f, c, taken, key, r);
    weir__bias_give(&c->lock, taken);
    return WEIR_OK;
}

/* A default stream, on a thread that was seen without a context. */
static inline int may_lack_context(weir_stream stream) {
    return is_default(stream) && weir__device_lacks_context;
}

weir_status weir__front_alloc(struct weir_front *f, struct weir_request *r) {
    int lent = may_lack_context(r->stream) && weir__device_lend_context(f->hits.device);
    weir_status status = alloc_as_asked(f, r);

    weir__device_end_context(f->hits.device, lent);
    return status;
}

weir_status weir__front_alloc_at(struct weir_front *f, struct weir_request *r) {
    weir_status status = identify(f, r->stream, &r->id);

    return status == WEIR_OK ? alloc_fresh(f, NULL, r) : status;
}

/* ---- frees ------------------------------------------------------------------------------------- */

/* A live block starts at `address`; its bytes as asked and as handed out. */
static int is_live(const struct weir_span *s, uint64_t address, int64_t *requested,
                   int64_t *in_use) {
    uint32_t slot, state;

    if (!s->slot_units) {
        *requested = (int64_t)atomic_load_explicit(&s->asked, memory_order_relaxed);
        *in_use = (int64_t)weir__span_bytes(s);
        return *requested != 0 && address == weir__span_base(s);
    }
    slot = weir__span_slot(s, address);
    if (slot == WEIR_SLOT_NONE)
        return 0;
    state = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    *requested = state;
    *in_use = (int64_t)s->slot_units * WEIR_SPAN_UNIT;
    return !(state & WEIR_SLOT_IDLE);
}

/* In the books of the loose cell: a live block less. */
static void count_loose_free(struct weir_front *f, int64_t requested, int64_t in_use) {
    int taken = weir__bias_take(&f->loose->lock);

    weir__cell_account(f->loose, -requested, -in_use);
    weir__bias_give(&f->loose->lock, taken);
}

/* A live slot is on its way home from now on: 1, or 0 if it is not live. */
static int take_state(_Atomic uint32_t *state) {
    uint32_t asked = atomic_load_explicit(state, memory_order_relaxed);

    /* unreached: it is not, since it was a moment ago, unless another thread frees it, too */
    return !(asked & WEIR_SLOT_IDLE) &&
           /* unreached: likewise */
           atomic_compare_exchange_strong_explicit(state, &asked, WEIR_SLOT_AWAY,
                                                   memory_order_relaxed, memory_order_relaxed);
}

/* Sends a slot home behind all streams that use it; from a captured one, behind a wait for the
 * device. */
static weir_status free_slot(struct weir_front *f, struct weir_span *s, uint64_t address,
                             weir_stream stream, struct weir_use_list *uses, int captured) {
    struct weir_strays *stray = malloc(sizeof *stray + sizeof stray->stray[0]);
    uint32_t slot = weir__span_slot(s, address);
    struct weir_use_list none = {0};
    struct weir_fence *fence = NULL;
    weir_status status = WEIR_OK;

    if (!stray)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    *stray = (struct weir_strays){.count = 1, .room = 1};
    stray->stray[0] = (struct weir_stray){s, slot};
    pthread_mutex_lock(&f->lock);
    if (!captured)
        status = weir__order_fence(&f->order, stream, uses ? uses : &none, &fence);
    /* unreached: freed meanwhile, for which two threads must free it at once */
    if (status == WEIR_OK && !take_state(&s->slot[slot])) {
        if (fence)
            weir__order_fence_drop(&f->order, fence);
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    }
    if (status == WEIR_OK)
        send_home(f, stray, fence);
    else
        free(stray);
    settle_batches(f);
    pthread_mutex_unlock(&f->lock);
    return status;
}

/* Gives a whole block to the engine, which orders its reuse. */
static weir_status free_whole(struct weir_front *f, struct weir_span *s, CUdeviceptr base,
                              weir_stream stream, struct weir_use_list *uses) {
    size_t bytes = weir__span_bytes(s);
    uint64_t asked = atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed);
    weir_status status;

    /* unreached: freed meanwhile, for which two threads must free it at once, and the record another block's */
    if (asked == 0 || weir__span_base(s) != base) {
        if (asked > 0) /* unreached: likewise */
            atomic_store_explicit(&s->asked, asked, memory_order_relaxed);
        return weir__without_driver(WEIR_E_NOT_OWNED);
    }
    weir__records_end(&f->records, s);
    status = f->engine->ops->free(f->engine, base, stream, uses);
    if (status == WEIR_OK)
        return WEIR_OK;
    /* This one, or, where records do not stay, the one that was just given up. */
    s = weir__records_whole(&f->records, base, bytes);
    if (s) /* unreached: none, for which another thread must have taken that one */
        atomic_store_explicit(&s->asked, asked, memory_order_relaxed);
    return status;
}

/* Past the caches: the block has other users, or its stream has no cache. */
static weir_status free_past(struct weir_front *f, struct weir_span *s, uint64_t address,
                             weir_stream stream, struct weir_use_list *uses, int captured) {
    int64_t requested, in_use;
    weir_status status;

    if (!is_live(s, address, &requested, &in_use))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (uses && captured)
        return weir__without_driver(WEIR_E_CAPTURE);
    status = s->slot_units ? free_slot(f, s, address, stream, uses, captured)
                           : free_whole(f, s, address, stream, uses);
    if (status != WEIR_OK)
        return status;
    count_loose_free(f, requested, in_use);
    atomic_store_explicit(&f->past, 1, memory_order_relaxed);
    count(f, WEIR_TALLY_FREES);
    if (captured)
        count(f, WEIR_TALLY_FRONT_DEFERRED);
    return WEIR_OK;
}

/* Puts a block into the cell, or politely leaves the lock to another thread (ANOTHERS); FULL also when it
 * is not this stream's any more.  `id`: 0 where the driver was not asked; *known: of the stream that what
 * was in the cell was freed on. */
static int put(const struct weir_front *f, struct weir_cell *c, uint64_t key, uint64_t id,
               struct weir_span *s, uint64_t address, int politely, struct weir_span **out,
               uint64_t *known, int *wanted) {
    int taken = weir__bias_take_as_guest(&c->lock, politely), result = WEIR_CELL_FULL;

    if (taken < 0)
        return WEIR_CELL_ANOTHERS;
    /* unreached: not this stream's, unless another thread has made it another's since it was found */
    if (c->serves && is_its(c, key, id)) {
        if (weir__cell_has_post(c, WEIR_SPAN_SMALL)) /* its owner may not come any more */
            weir__cell_collect(c);
        result = weir__cell_put(c, s, address, is_alone(f), out);
        if (result == WEIR_CELL_TAKEN && atomic_load_explicit(&c->capturing, memory_order_relaxed))
            weir__cell_raise(&c->deferred);
        *known = atomic_load_explicit(&c->id, memory_order_relaxed);
        *wanted = c->due ||
                  c->demand != atomic_load_explicit(&f->hits.demand, memory_order_relaxed) ||
                  (*out && f->sheds);
    }
    weir__bias_give(&c->lock, taken);
    return result;
}

/* Whole blocks that the cell gave up go to the engine: as freed on the stream `known`, if the handle
 * still means that one (`id` 0: the driver was not asked yet). */
static __attribute__((noinline)) void give_up(struct weir_front *f, const struct weir_cell *c,
                                              weir_stream stream, unsigned long long id,
                                              uint64_t known, struct weir_span *spans) {
    int same;

    if (id == 0 && is_vouched_for(&f->hits, c, stream))
        id = known;
    same = (id != 0 || ask(&f->hits, stream, &id)) && id == known;
    if (give_spans(f, spans, same ? known : WEIR_ENGINE_UNKNOWN))
        tend(f, known, stream);
}

/* Room for a stray in a cell that has no more. */
static int make_room(struct weir_cell *c, const struct weir_span *s) {
    int taken = weir__bias_take(&c->lock);
    int made = c->serves && weir__cell_stray_room(c, s->size_class);

    weir__bias_give(&c->lock, taken);
    return made;
}

/* Into a cell that may need room for it; FULL: it does not go there. */
static int put_with_room(struct weir_front *f, struct weir_cell *c, weir_stream stream, uint64_t id,
                         struct weir_span *s, CUdeviceptr block) {
    struct weir_span *out = NULL;
    uint64_t known = 0;
    int wanted, result = put(f, c, key_of(stream, id), id, s, block, 0, &out, &known, &wanted);

    if (result == WEIR_CELL_FULL && s->slot_units && make_room(c, s))
        result = put(f, c, key_of(stream, id), id, s, block, 0, &out, &known, &wanted);
    if (out)
        give_up(f, c, stream, id, known, out);
    return result;
}

static __attribute__((noinline)) weir_status free_slow(struct weir_front *f, struct weir_span *s,
                                                       CUdeviceptr block, weir_stream stream,
                                                       struct weir_use_list *uses) {
    weir_status status = weir__device_capture(f->hits.device, stream);
    int captured = status == WEIR_E_CAPTURE, result = WEIR_CELL_FULL;
    struct weir_cell *c;
    uint64_t id = 0; /* a captured stream must not be asked for it */

    if (status == WEIR_OK)
        status = identify(f, stream, &id);
    if (status != WEIR_OK && !captured)
        return status;
    c = captured ? visit_captured(f, stream, id) : visit(f, stream, id, !uses);
    if (c && !uses)
        result = put_with_room(f, c, stream, id, s, block);
    status = WEIR_OK;
    if (result == WEIR_CELL_NO_BLOCK)
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    else if (result == WEIR_CELL_FULL)
        status = free_past(f, s, block, stream, uses, captured);
    else if (!captured) {
        look_after(f, c, stream);
        catch_up(f, c, stream);
    }
    if (!captured)
        unpin(c);
    return status;
}

/* What a stream has to catch up with that only frees. */
static __attribute__((noinline)) void answer(struct weir_front *f, weir_stream stream) {
    struct weir_cell *c;
    uint64_t id;

    if (weir__device_capture(f->hits.device, stream) == WEIR_OK &&
        weir__device_stream_id(f->hits.device, stream, &id) == CUDA_SUCCESS) {
        c = visit(f, stream, id, 1);
        if (c)
            catch_up(f, c, stream);
        unpin(c);
    }
}

/* Not one of ours: a graph's, or nobody's, which a pool of the driver would free if the driver knows it. */
static weir_status free_other(struct weir_front *f, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    weir_status status;

    if (!weir__graphs_has(&f->v->graphs, block))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = f->engine->ops->free(f->engine, block, stream, uses);
    if (status == WEIR_OK)
        count(f, WEIR_TALLY_FREES);
    return status;
}

int weir__front_is_live(struct weir_front *f, CUdeviceptr block) {
    const struct weir_span *s = weir__records_find(&f->pages, block);
    int64_t requested, in_use;

    return s && weir__span_bytes(s) > 0 ? is_live(s, block, &requested, &in_use)
                                        : weir__graphs_has(&f->v->graphs, block);
}

/* The live block of that record around an address: 1, or 0. */
static int is_around(const struct weir_span *s, CUdeviceptr address, CUdeviceptr *block,
                     size_t *bytes) {
    CUdeviceptr start = weir__span_base(s);
    int64_t requested, in_use;

    if (s->slot_units)
        start += (address - start) / ((uint64_t)s->slot_units * WEIR_SPAN_UNIT) * s->slot_units *
                 WEIR_SPAN_UNIT;
    if (!is_live(s, start, &requested, &in_use))
        return 0;
    *block = start;
    *bytes = (size_t)requested;
    return address - start < *bytes;
}

/* A whole block has its record at its first page alone, so from another the way leads back to it, past
 * records of blocks that are gone.  While the block is live nothing on that way changes. */
int weir__front_find(struct weir_front *f, CUdeviceptr address, CUdeviceptr *block, size_t *bytes) {
    CUdeviceptr page = address & ~(CUdeviceptr)(WEIR_PAGE - 1);
    struct weir_extent piece;
    const struct weir_span *s;

    if (!weir__engine_may_have(f->engine, address))
        return 0;
    s = weir__records_find(&f->pages, page);
    if (s && weir__span_bytes(s) > 0)
        return is_around(s, address, block, bytes);
    if (weir__engine_find(f->engine, WEIR_VISIT_PIECE_AT, address, &piece) != 1)
        return 0;
    while (page > piece.base) {
        page -= WEIR_PAGE;
        s = weir__records_find(&f->pages, page);
        if (s && weir__span_bytes(s) > 0)
            return s->slot_units == 0 && is_around(s, address, block, bytes);
    }
    return 0;
}

static weir_status free_by_cell(struct weir_front *f, struct weir_span *s, CUdeviceptr block,
                                weir_stream stream, struct weir_use_list *uses) {
    unsigned long long id;
    uint64_t key, known = 0;
    struct weir_span *out = NULL;
    struct weir_cell *c;
    int result = WEIR_CELL_FULL, wanted = 0, own;

    c = uses ? NULL : find(f, stream, &key, &id);
    own = c && atomic_load_explicit(&s->cell, memory_order_relaxed) == c;
    for (int politely = own; c; politely = 0) {
        result = own && weir__cell_is_anothers(c) ? weir__cell_post(c, key, id, s, block)
                                                  : WEIR_CELL_FULL;
        if (result == WEIR_CELL_FULL)
            result = put(f, c, key, id, s, block, politely, &out, &known, &wanted);
        if (result != WEIR_CELL_ANOTHERS)
            break;
    }
    if (out)
        give_up(f, c, stream, id, known, out);
    if (result == WEIR_CELL_NO_BLOCK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (result == WEIR_CELL_FULL)
        return free_slow(f, s, block, stream, uses);
    if (wanted)
        answer(f, stream);
    return WEIR_OK;
}

/* Takes a block that was live a moment ago out of use: 1, or 0 if it is not any more; the caller holds `lock`. */
static int end_use(struct weir_front *f, struct weir_span *s, CUdeviceptr block) {
    uint32_t slot;

    if (s->slot_units) {
        slot = weir__span_slot(s, block);
        if (!take_state(&s->slot[slot])) /* unreached: as there */
            return 0;
        bring_home(f, &(struct weir_stray){s, slot});
        return 1;
    }
    /* unreached: freed meanwhile, for which two threads must free it at once */
    if (atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed) == 0)
        return 0;
    s->next = NULL;
    give_spans(f, s, WEIR_ENGINE_OBSERVED);
    return 1;
}

weir_status weir__front_free_done(struct weir_front *f, CUdeviceptr block) {
    struct weir_span *s = weir__records_find(&f->pages, block);
    int64_t requested, in_use;
    int done;

    if (!s || weir__span_bytes(s) == 0 || !is_live(s, block, &requested, &in_use))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    pthread_mutex_lock(&f->lock);
    done = end_use(f, s, block);
    pthread_mutex_unlock(&f->lock);
    if (!done) /* unreached: freed meanwhile */
        return weir__without_driver(WEIR_E_NOT_OWNED);
    count_loose_free(f, requested, in_use);
    atomic_store_explicit(&f->past, 1, memory_order_relaxed);
    count(f, WEIR_TALLY_FREES);
    return WEIR_OK;
}

/* Into a cell that is biased to this thread and has nothing to catch up with: 1, or 0 and nothing was
 * done. */
static inline __attribute__((always_inline)) int
bring_back(const struct weir_front *f, struct weir_cell *c, struct weir_span *s, uint64_t address) {
    int done;

    if (!enter_at_once(&f->hits, c))
        return 0;
    done = weir__cell_put_plain(c, s, address);
    weir__bias_leave();
    return done;
}

static weir_status free_as_asked(struct weir_front *f, CUdeviceptr block, weir_stream stream,
                                 struct weir_use_list *uses) {
    struct weir_span *s = weir__records_find(&f->pages, block);
    weir_status status = s && weir__span_bytes(s) > 0 ? free_by_cell(f, s, block, stream, uses)
                                                      : free_other(f, block, stream, uses);

    if (status != WEIR_OK)
        weir__device_log_free(f->hits.device, block, status);
    return status;
}

/* The public boundary of weir_free, which hands over to it: see weir__ended. */
weir_status weir__front_free_used(struct weir_front *f, CUdeviceptr block, weir_stream stream,
                                  struct weir_use_list *uses) {
    int result_before = weir__driver_result;
    int lent = may_lack_context(stream) && weir__device_lend_context(f->hits.device);
    weir_status status = free_as_asked(f, block, stream, uses);

    weir__device_end_context(f->hits.device, lent);
    if (status == WEIR_OK)
        weir__set_driver_result(result_before);
    return status;
}

/* Frees a whole block for which others leave the cache, or which leaves at once.  If there are other streams, what
 * leaves goes to the engine, where they can use it.  `id': of a default stream, else 0. */
static __attribute__((noinline)) weir_status free_leaving(struct weir_front *f, struct weir_cell *c,
                                                          struct weir_span *s, CUdeviceptr block,
                                                          weir_stream stream, uint64_t id) {
    int result_before = weir__driver_result, done = 0;
    struct weir_span *out = NULL;
    uint64_t known = 0;

    if (enter_at_once(&f->hits, c)) {
        if (is_its(c, key_of(stream, id), id)) {
            known = atomic_load_explicit(&c->id, memory_order_relaxed);
            done = is_alone(f) ? weir__cell_leave(c, s, block)
                               : weir__cell_put(c, s, block, 0, &out) == WEIR_CELL_TAKEN;
        }
        weir__bias_leave();
    }
    if (out)
        give_up(f, c, stream, id, known, out);
    if (!done)
        return weir__front_free_used(f, block, stream, NULL);
    weir__set_driver_result(result_before);
    return WEIR_OK;
}

/* By a thread beside the one that the cell's lock is biased to, or with something to catch up with. */
static __attribute__((noinline)) weir_status free_beside(struct weir_front *f, struct weir_cell *c,
                                                         struct weir_span *s, CUdeviceptr block,
                                                         weir_stream stream) {
    if (weir__cell_is_anothers(c) && atomic_load_explicit(&s->cell, memory_order_relaxed) == c &&
        weir__cell_post(c, (uintptr_t)stream, 0, s, block) == WEIR_CELL_TAKEN)
        return WEIR_OK;
    return weir__front_free_used(f, block, stream, NULL);
}

/* On a stream that does not go by its handle, with its cache and key. */
static inline __attribute__((always_inline)) weir_status
free_keyed(struct weir_front *f, struct weir_cell *c, uint64_t key, struct weir_span *s,
           CUdeviceptr block, weir_stream stream) {
    int done;

    if (s->slot_units == 0 && !f->sheds)
        return free_leaving(f, c, s, block, stream, key >> 1);
    if (enter_at_once(&f->hits, c)) {
        done = is_its(c, key, 0) && weir__cell_put_plain(c, s, block);
        weir__bias_leave();
        if (done)
            return WEIR_OK;
    }
    return weir__front_free_used(f, block, stream, NULL);
}

static __attribute__((noinline)) weir_status free_default(struct weir_front *f, struct weir_span *s,
                                                          CUdeviceptr block, weir_stream stream) {
    struct weir_cell *c;
    uint64_t key;

    if (!find_by_default(&f->hits, stream, &c, &key))
        return weir__front_free_used(f, block, stream, NULL);
    return free_keyed(f, c, key, s, block, stream);
}

weir_status weir__front_free_default(struct weir_front *f, CUdeviceptr block, weir_stream stream,
                                     uint64_t id) {
    struct weir_span *s = weir__records_find(&f->pages, block);
    uint64_t key = key_of(stream, id);
    struct weir_cell *c;

    if (!s || !weir__cell_table_find(&f->hits.by_id, key, &c))
        return weir__front_free_used(f, block, stream, NULL);
    return free_keyed(f, c, key, s, block, stream);
}

/* Nothing is called but at the end, as in weir_alloc. */
static inline __attribute__((always_inline)) weir_status
free_recorded(struct weir_front *f, struct weir_span *s, CUdeviceptr block, weir_stream stream) {
    struct weir_cell *c;

    if (!find_by_handle(&f->hits, stream, &c))
        return free_default(f, s, block, stream);
    if (__builtin_expect(bring_back(f, c, s, block), 1))
        return WEIR_OK;
    if (s->slot_units == 0 && !f->sheds)
        return free_leaving(f, c, s, block, stream, 0);
    return free_beside(f, c, s, block, stream);
}

weir_status weir__front_free(struct weir_front *f, CUdeviceptr block, weir_stream stream) {
    struct weir_span *s = weir__records_find(&f->pages, block);

    return __builtin_expect(s != NULL, 1) ? free_recorded(f, s, block, stream)
                                          : weir__front_free_used(f, block, stream, NULL);
}

int weir__front_free_own(struct weir_front *f, CUdeviceptr block, weir_stream stream) {
    struct weir_span *s = weir__records_find(&f->pages, block);

    return s && free_recorded(f, s, block, stream) == WEIR_OK;
}

/* ---- binding ----------------------------------------------------------------------------------- */

weir_status weir__front_bind(struct weir_front *f, weir_stream stream, int more) {
    struct weir_cell *c;
    uint32_t bindings;
    uint64_t id = 0;
    weir_status status = identify(f, stream, &id);
    int last = 0;

    if (status != WEIR_OK)
        return status;
    pthread_mutex_lock(&f->lock);
    c = cell_at(f, stream, id, more);
    bindings = c ? atomic_load_explicit(&c->trusted, memory_order_relaxed) & ~WEIR_CELL_WATCHED : 0;
    if (more && c) {
        if (c->serves && atomic_load_explicit(&c->id, memory_order_relaxed) != id)
            retire(f, c, WEIR_ENGINE_UNKNOWN);
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
            pin(c);
    }
    pthread_mutex_unlock(&f->lock);
    if (last) { /* the stream may end now: an event covers what it leaves */
        (void)give_all(f, c, stream);
        tend(f, atomic_load_explicit(&c->id, memory_order_relaxed), stream);
        unpin(c);
    }
    return status;
}

/* Pins and returns the cell of a stream whose id was just asked.  NULL: no cell serves the stream. */
static struct weir_cell *pin_of(struct weir_front *f, weir_stream stream, uint64_t id) {
    struct weir_cell *c;

    pthread_mutex_lock(&f->lock);
    c = cell_of(f, key_of(stream, id));
    if (c && (!c->serves || atomic_load_explicit(&c->id, memory_order_relaxed) != id))
        c = NULL;
    if (c)
        pin(c);
    pthread_mutex_unlock(&f->lock);
    return c;
}

void weir__front_ask(struct weir_front *f, weir_stream stream) {
    struct weir_cell *c;
    uint64_t id = 0;

    if (!is_default(stream) && !cell_of(f, key_of(stream, 0)))
        return;
    if (weir__device_stream_id(f->hits.device, stream, &id) != CUDA_SUCCESS ||
        (is_default(stream) && !weir__device_is_idle(f->hits.device, stream)))
        return;
    c = pin_of(f, stream, id);
    if (c)
        (void)give_all(f, c, stream);
    unpin(c);
    (void)weir__engine_ask(f->engine, stream, id);
}

void weir__front_leave(struct weir_front *f, weir_stream stream) {
    struct weir_cell *c = NULL;
    uint64_t id = 0;

    if (!is_default(stream)) {
        c = cell_of(f, key_of(stream, 0));
        if (!c)
            return;
        unwatch(c);
    }
    if (weir__device_stream_id(f->hits.device, stream, &id) != CUDA_SUCCESS)
        return;
    c = pin_of(f, stream, id);
    if (c) {
        (void)give_all(f, c, stream);
        tend(f, id, stream);
    }
    (void)weir__engine_ask(f->engine, stream, id); /* nobody can later */
    if (!c)
        return;
    pthread_mutex_lock(&f->lock);
    retire(f, c,
           id); /* whoever has the handle next is asked who it is, though streams be vouched for */
    pthread_mutex_unlock(&f->lock);
    unpin(c);
}

void weir__front_meet(struct weir_front *f, weir_stream stream) {
    struct weir_cell *c = cell_of(f, key_of(stream, 0));

    if (!c)
        return;
    pthread_mutex_lock(&f->lock);
    if (c->serves)
        retire(f, c, WEIR_ENGINE_UNKNOWN);
    pthread_mutex_unlock(&f->lock);
}

void weir__front_distrust(struct weir_front *f) {
    pthread_mutex_lock(&f->lock);
    for (struct weir_cell *c = f->cells; c; c = c->next)
        unwatch(c);
    pthread_mutex_unlock(&f->lock);
}

int weir__front_settle(struct weir_front *f) {
    struct weir_strays *batch;
    int settled = 0;

    pthread_mutex_lock(&f->lock);
    batch = f->batches;
    f->batches = NULL;
    f->batches_end = &f->batches;
    while (batch) {
        struct weir_strays *next = batch->next;

        if (batch->fence && weir__order_fence_done(&f->order, batch->fence)) {
            settle(f, batch);
            settled = 1;
        } else {
            queue(f, batch);
        }
        batch = next;
    }
    pthread_mutex_unlock(&f->lock);
    return settled;
}

void weir__front_demand(struct weir_front *f) {
    size_t idle = 0;

    pthread_mutex_lock(&f->lock);
    for (struct weir_cell *c = f->cells; c; c = c->next)
        idle += atomic_load_explicit(&c->idle, memory_order_relaxed);
    pthread_mutex_unlock(&f->lock);
    if (idle > 0)
        atomic_fetch_add_explicit(&f->hits.demand, 1, memory_order_relaxed);
}

/* ---- everything back --------------------------------------------------------------------------- */

/* Takes all that lies idle out of every cell; the caller holds `lock`. */
static void harvest(struct weir_front *f, struct weir_harvest *h) {
    for (struct weir_cell *c = f->cells; c; c = c->next) {
        int taken;

        if (!c->store)
            continue;
        taken = weir__bias_take(&c->lock);
        weir__cell_shrink(c, 0, h);
        weir__cell_strays(c, 1, h);
        weir__bias_give(&c->lock, taken);
    }
}

/* Whose what `harvest` brought is, after a wait for the device: one stream's as long as there is only
 * one, so that the engine goes on with nothing to order. */
static uint64_t whose(const struct weir_front *f) {
    const struct weir_cell *only = NULL;

    for (const struct weir_cell *c = f->cells; c; c = c->next) {
        if (c == f->loose)
            continue;
        if (only)
            return WEIR_ENGINE_OBSERVED;
        only = c;
    }
    return only && only->serves ? atomic_load_explicit(&only->id, memory_order_relaxed)
                                : WEIR_ENGINE_OBSERVED;
}

weir_status weir__front_empty(struct weir_front *f) {
    struct weir_harvest h = {0}, slabs = {0};
    struct weir_strays *batches;
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&f->lock);
    harvest(f, &h);
    batches = f->batches;
    f->batches = NULL;
    f->batches_end = &f->batches;
    pthread_mutex_unlock(&f->lock);
    if (h.spans || h.strays || batches)
        result = weir__device_wait(f->hits.device);
    pthread_mutex_lock(&f->lock);
    if (result == CUDA_SUCCESS) {
        give_spans(f, h.spans, whose(f));
        bring_all_home(f, h.strays);
        while (batches) {
            struct weir_strays *next = batches->next;

            settle(f, batches);
            batches = next;
        }
        /* Slabs that are whole again.  Some of their slots may have been freed after the wait. */
        harvest(f, &slabs);
    } else {
        give_spans(f, h.spans, WEIR_ENGINE_UNKNOWN);
        while (batches) {
            struct weir_strays *next = batches->next;

            queue(f, batches);
            batches = next;
        }
        send_home(f, h.strays, NULL);
    }
    give_spans(f, slabs.spans, WEIR_ENGINE_UNKNOWN);
    send_home(f, slabs.strays, NULL);
    pthread_mutex_unlock(&f->lock);
    return weir__device_status(f->hits.device, result);
}

void weir__front_prepare(struct weir_front *f, const struct weir_extent *extents, size_t count,
                         size_t most) {
    size_t left = most;

    for (size_t i = 0; i < count; i++) {
        size_t bytes = (size_t)weir__size_smaller(extents[i].bytes, left);

        weir__records_prepare(&f->records, extents[i].base, bytes, extents[i].large);
        left -= bytes;
    }
    weir__records_stock(&f->records, most - left);
}

/* ---- beginning and end ------------------------------------------------------------------------- */

weir_status weir__front_open(struct weir_reserve *v, struct weir_front **out) {
    struct weir_front *f = aligned_alloc(_Alignof(struct weir_front), sizeof *f);
    uint32_t idle_ms = v->options->front_idle_ms;

    if (f)
        memset(f, 0, sizeof *f);
    if (!f || !weir__cell_table_open(&f->hits.by_handle) ||
        !weir__cell_table_open(&f->hits.by_id) || !weir__records_open(&f->records, &f->pages) ||
        !(f->loose = cell_make(f))) {
        if (f) {
            weir__records_close(&f->records);
            weir__cell_table_close(&f->hits.by_id);
            weir__cell_table_close(&f->hits.by_handle);
        }
        free(f);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    weir__bias_prepare();
    f->v = v;
    f->engine = v->engine;
    f->hits.device = v->device;
    f->batches_end = &f->batches;
    f->hits.demand = 1; /* above a cell's pass that is none */
    f->hits.checks = v->options->stream_checks != WEIR_SWITCH_OFF;
    f->sheds = v->engine->threshold < v->device->total;
    f->alone = !f->sheds;
    f->span_ticks = v->device->driver->ticks();
    f->idle_ns = idle_ms == UINT32_MAX ? UINT64_MAX : (uint64_t)idle_ms * 1000000;
    pthread_mutex_init(&f->lock, NULL);
    weir__order_open(&f->order, v->device, NULL, NULL); /* no frees, so nothing to be told of */
    *out = f;
    return WEIR_OK;
}

void weir__front_close(struct weir_front *f) {
    struct weir_driver_scope scope;
    int entered;

    if (!f)
        return;
    while (f->batches) {
        struct weir_strays *batch = f->batches;

        f->batches = batch->next;
        if (batch->fence)
            weir__order_fence_drop(&f->order, batch->fence);
        while (batch) {
            struct weir_strays *more = batch->more;

            free(batch);
            batch = more;
        }
    }
    entered =
        weir__driver_enter(f->hits.device->driver, f->hits.device->context, &scope) == CUDA_SUCCESS;
    weir__order_close(&f->order);
    if (entered)
        weir__driver_leave(f->hits.device->driver, &scope);
    while (f->cells) {
        struct weir_cell *c = f->cells;

        f->cells = c->next;
        weir__cell_close(c);
        free(c);
    }
    weir__cell_table_close(&f->hits.by_handle);
    weir__cell_table_close(&f->hits.by_id);
    weir__records_close(&f->records);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* ---- figures ----------------------------------------------------------------------------------- */

int weir__front_has_blocks(struct weir_front *f) {
    int live;

    pthread_mutex_lock(&f->lock);
    for (struct weir_cell *c = f->cells; c; c = c->next)
        tell(f, c);
    live = f->requested > 0;
    pthread_mutex_unlock(&f->lock);
    return live;
}

static void raise_peak(uint64_t *peak, const struct weir_cell_sum *sum) {
    *peak =
        weir__size_larger(*peak, (uint64_t)atomic_load_explicit(&sum->peak, memory_order_relaxed));
}

/* Peaks are exact while one cell alone has handed out or taken in anything, but for what lay in its letter
 * box. */
static void read_peaks(struct weir_front *f, weir_statistics *out) {
    const struct weir_cell *only = NULL;
    int several = 0;

    for (struct weir_cell *c = f->cells; c; c = c->next) {
        tell(f, c);
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

uint64_t weir__front_peak_lately(struct weir_front *f) {
    weir_statistics figures = {.size = sizeof figures};
    uint64_t peak;

    pthread_mutex_lock(&f->lock);
    read_peaks(f, &figures);
    peak = f->requested_lately;
    pthread_mutex_unlock(&f->lock);
    return peak;
}

void weir__front_renew_peak(struct weir_front *f) {
    weir_statistics figures = {.size = sizeof figures};

    pthread_mutex_lock(&f->lock);
    read_peaks(f, &figures); /* what was the most is kept there */
    for (struct weir_cell *c = f->cells; c; c = c->next) {
        int taken = weir__bias_take(&c->lock);

        weir__cell_renew_peak(&c->requested);
        weir__bias_give(&c->lock, taken);
    }
    f->requested_lately = at_least_none(f->requested);
    pthread_mutex_unlock(&f->lock);
}

/* Frees are read before allocations, so that never more blocks were freed than handed out. */
void weir__front_figures(struct weir_front *f, weir_statistics *out) {
    const struct weir_tally *tally = &f->v->events.books->tally;
    uint64_t frees = 0, posted, posted_in_use;

    out->deferred_frees = weir__tally_sum(tally, WEIR_TALLY_FRONT_DEFERRED);
    pthread_mutex_lock(&f->lock);
    for (struct weir_cell *c = f->cells; c; c = c->next) {
        frees += atomic_load_explicit(&c->frees, memory_order_acquire);
        frees += weir__cell_posted(c, &posted, &posted_in_use); /* later: it moves to the former */
    }
    for (struct weir_cell *c = f->cells; c; c = c->next) {
        out->front_hits += atomic_load_explicit(&c->hits, memory_order_relaxed);
        out->deferred_frees += atomic_load_explicit(&c->deferred, memory_order_relaxed);
        out->front_idle += atomic_load_explicit(&c->idle, memory_order_relaxed);
    }
    read_peaks(f, out);
    out->front_streams = f->cached;
    out->event_records += weir__order_records(&f->order);
    out->host_bytes += f->host_bytes + weir__records_host_bytes(&f->records);
    pthread_mutex_unlock(&f->lock);
    out->front_misses_young = weir__tally_sum(tally, WEIR_TALLY_FRONT_YOUNG);
    out->front_misses_empty = weir__tally_sum(tally, WEIR_TALLY_FRONT_EMPTY);
    out->front_misses_capture = weir__tally_sum(tally, WEIR_TALLY_FRONT_CAPTURE);
    out->allocs = out->front_hits + out->front_misses_young + out->front_misses_empty +
                  out->front_misses_capture;
    out->hits = out->allocs - out->growth_allocs;
    out->attempts = out->allocs + out->refusals;
    out->frees += frees;
    out->blocks = out->allocs - out->frees;
}

/* ---- what there is ----------------------------------------------------------------------------- */

void weir__front_survey(struct weir_front *f, uint64_t id, struct weir_survey *out) {
    pthread_mutex_lock(&f->lock);
    for (struct weir_cell *c = f->cells; c; c = c->next) {
        size_t idle = atomic_load_explicit(&c->idle, memory_order_relaxed);
        uint64_t of = atomic_load_explicit(&c->id, memory_order_relaxed);

        if (idle > 0 && of != id)
            weir__engine_pends(out, of, idle);
    }
    pthread_mutex_unlock(&f->lock);
}

struct seeing {
    weir__front_live_fn *see;
    void *context;
};

static void see_span(void *context, struct weir_span *s) {
    const struct seeing *v = context;
    int is_live = atomic_load_explicit(&s->asked, memory_order_relaxed) > 0;

    for (uint32_t i = 0; i < s->slots; i++) /* whole: 0 */
        is_live |= !(atomic_load_explicit(&s->slot[i], memory_order_relaxed) & WEIR_SLOT_IDLE);
    if (is_live)
        v->see(v->context, weir__span_base(s), weir__span_bytes(s));
}

void weir__front_live(struct weir_front *f, weir__front_live_fn *see, void *context) {
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

static void visit_span(void *context, struct weir_span *s) {
    const struct visiting *v = context;
    const struct weir_cell *owner = NULL;
    uint64_t asked, id = 0;

    if (s->slot_units == 0) {
        asked = atomic_load_explicit(&s->asked, memory_order_relaxed);
        if (asked > 0)
            show_block(v, asked, atomic_load_explicit(&s->fetched_for, memory_order_relaxed));
        return;
    }
    owner = atomic_load_explicit(&s->cell, memory_order_relaxed);
    if (owner)
        id = atomic_load_explicit(&owner->id, memory_order_relaxed);
    for (uint32_t i = 0; i < s->slots; i++) {
        asked = atomic_load_explicit(&s->slot[i], memory_order_relaxed);
        if (!(asked & WEIR_SLOT_IDLE))
            show_block(v, asked, id);
    }
}

void weir__front_blocks(struct weir_front *f, weir__engine_visit_fn *show, void *context) {
    struct visiting v = {show, context};

    weir__records_walk(&f->records, visit_span, &v);
}
