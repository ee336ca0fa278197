/* SPDX-License-Identifier: MIT */
/* caches.h: the caches of all streams of one allocator: what the files of front.h share.
 *
 * What: front.c begins and ends them; cache_streams.c finds and makes the cell of a stream; cache_alloc.c serves what
 * hit.h did not; cache_free.c takes blocks back; cache_remote.c brings slots home that were freed on other streams;
 * cache_flush.c gives idle memory back to the engine; cache_share.c says how much each cell may keep; cache_blocks.c
 * finds live blocks; cache_stats.c makes the figures.
 *
 * Locks: `lock` guards the table's writers and the batches.  Under it the engine's own may be taken, the records', or a
 * cell's.  None of those is taken under another, but a letter box's under its cell's.  Hits take the cell's alone.
 *
 * Must not know: the public API, settings' names, how an engine places blocks.
 */
#ifndef WEIR_CACHES_H
#define WEIR_CACHES_H

#include "cache/hit.h"

#include <pthread.h>

#include "base/counters.h"
#include "base/striped_counter.h"
#include "cache/span_table.h"
#include "engine/stream_order.h"

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

/* ---- whose cell ---- */

static inline struct weir_cell_table *table_of(struct weir_front *f, uint64_t key) {
    return key & 1 ? &f->hits.by_id : &f->hits.by_handle;
}

/* The cell of a key, or NULL; 0 is nobody's.  That of an id may belong to another by now, which its user checks under
 * the cell's lock. */
static inline struct weir_cell *cell_of(struct weir_front *f, uint64_t key) {
    struct weir_cell *c;

    return key && weir__cell_table_find(table_of(f, key), key, &c) ? c : NULL;
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

/* A default stream, on a thread that was seen without a context. */
static inline int may_lack_context(weir_stream stream) {
    return is_default(stream) && weir__device_lacks_context;
}

/* ---- what all read ---- */

static inline int is_alone(const struct weir_front *f) {
    return atomic_load_explicit(&f->alone, memory_order_relaxed);
}

/* Requests that the engine served without growing or moving anything: from then on whole blocks are kept. */
enum { WEIR_CACHES_CALM = 1024 };

static inline int is_calm(const struct weir_front *f) {
    return atomic_load_explicit(&f->calm, memory_order_relaxed) >= WEIR_CACHES_CALM;
}

/* Below 0 while a cell has not told what it has handed out, and another has told of its free. */
static inline uint64_t at_least_none(int64_t sum) {
    return sum < 0 ? 0 : (uint64_t)sum;
}

static inline void count(struct weir_front *f, int counter) {
    weir__tally_add(&f->v->events.books->tally, counter);
}

void weir__caches_unwatch(struct weir_cell *c);

/* ---- streams: cache_streams.c ---- */

struct weir_cell *weir__caches_make_cell(struct weir_front *f);
/* A call that works with a cell beyond one hold of its lock keeps it from being given to another
 * stream. */
void weir__caches_pin(struct weir_cell *c);
void weir__caches_unpin(struct weir_cell *c);
/* Pins and returns the cell of a stream whose id was just asked.  NULL: no cell serves the stream. */
struct weir_cell *weir__caches_pin_of(struct weir_front *f, weir_stream stream, uint64_t id);
/* The id of a stream, which is this device's: a cell that knows it has seen that. */
weir_status weir__caches_identify(struct weir_front *f, weir_stream stream, uint64_t *id);
/* In a call on a stream that is not being captured and has that id: its cell, if it has a cache.
 * Counts the calls of young streams.  pins 1: the cell is pinned; 0: the call does not need it, and gets NULL. */
struct weir_cell *weir__caches_visit(struct weir_front *f, weir_stream stream, uint64_t id,
                                     int pins);
/* In a call on a stream that is being captured (`id`: a default stream's): its cell, if it has one. */
struct weir_cell *weir__caches_visit_captured(struct weir_front *f, weir_stream stream,
                                              uint64_t id);

/* ---- back to the engine: cache_flush.c ---- */

/* A harvest of `c` in a call on its stream that the driver has vouched for: spans go back as freed on
 * it, strays behind an event there. */
void weir__caches_deliver(struct weir_front *f, struct weir_cell *c, weir_stream stream,
                          struct weir_harvest *h);
/* Looks after a cell whose turn it is, in a call on its stream that the driver has vouched for. */
void weir__caches_look_after(struct weir_front *f, struct weir_cell *c, weir_stream stream);
/* Gives the engine all that the cell has, likewise.  1 if there was something. */
int weir__caches_give_all(struct weir_front *f, struct weir_cell *c, weir_stream stream);
/* What was put off while the cell's stream only hit, now that the driver has vouched for it. */
void weir__caches_catch_up(struct weir_front *f, struct weir_cell *c, weir_stream stream);
/* Nobody knows any more on which stream the idle blocks of the cell were freed (`id` UNKNOWN), or it is
 * to make room (its id).  The caller holds `lock`. */
void weir__caches_retire(struct weir_front *f, struct weir_cell *c, uint64_t id);

/* ---- remote frees: cache_remote.c ---- */

/* Gives idle spans back under a stream's id, or what else `give` takes.  1 if `tend` has to do. */
int weir__caches_give(struct weir_front *f, struct weir_span *spans, uint64_t id);
/* A slot whose last use is over everywhere comes home; the caller holds `lock`. */
void weir__caches_bring_home(struct weir_front *f, const struct weir_stray *stray);
/* Slots that are free for all; the caller holds `lock`. */
void weir__caches_bring_all_home(struct weir_front *f, struct weir_strays *strays);
/* Brings home what has completed of the next few batches, so that no call asks about all of them, nor about
 * one twice; the caller holds `lock`. */
void weir__caches_settle_some(struct weir_front *f);
/* Sends slots home, behind `fence` (NULL: a wait for the device); the caller holds `lock`. */
void weir__caches_send_home(struct weir_front *f, struct weir_strays *strays,
                            struct weir_fence *fence);
/* All batches, which no list has any more; the caller holds `lock`. */
struct weir_strays *weir__caches_take_batches(struct weir_front *f);
/* And back: they have all arrived, since the device was waited for, or are queued again; the caller holds `lock`. */
void weir__caches_return_batches(struct weir_front *f, struct weir_strays *batches, int arrived);

/* ---- sums and shares: cache_share.c ---- */

/* What a cell has handed out, for the sums; the caller holds `lock`. */
void weir__caches_tell_sums(struct weir_front *f, struct weir_cell *c);
/* The same, and sets how much the cell may keep. */
void weir__caches_tell(struct weir_front *f, struct weir_cell *c);
/* Callers cannot have more than the engine's blocks hold.  Those hold more than ever now, so the callers' peak may
 * rise: all cells are asked. */
void weir__caches_tell_all(struct weir_front *f, struct weir_cell *c, uint64_t out);
/* Programs read and reset the peak of the driver's pools.  Where weir stands in for such a pool, the peak is updated
 * more often. */
void weir__caches_tell_own(struct weir_front *f, struct weir_cell *c);
/* One cell more has a cache: what the others may keep is less.  The caller holds `lock`. */
void weir__caches_lower_shares(struct weir_front *f);
/* `front_idle' has gone by since then.  Another thread may have written `then' after this one read its `now'. */
int weir__caches_is_over(const struct weir_front *f, uint64_t then, uint64_t now);
/* What was in use before the last span of time counts no more; the caller holds `lock`. */
void weir__caches_age(struct weir_front *f, uint64_t now);

/* ---- live blocks: cache_blocks.c ---- */

/* A live block starts at `address`; its bytes as asked and as handed out. */
int weir__caches_is_live(const struct weir_span *s, uint64_t address, int64_t *requested,
                         int64_t *in_use);

#endif
