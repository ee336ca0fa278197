/* SPDX-License-Identifier: MIT */
/* tensors_internal.h: what a weir_tensors is made of, for the files of this folder.
 *
 * Locks: `lock` guards all but what is atomic.  Under it run hooks, `takes`, `show` and `end`, frees to the allocator,
 * calls for events, questions about streams, and waits for the device.  Requests to the allocator run without it.
 */
#ifndef WEIR_TENSORS_INTERNAL_H
#define WEIR_TENSORS_INTERNAL_H

#include <stdatomic.h>

#include <weir/tensors.h>

#include "base/hostmem.h"
#include "base/map.h"
#include "cache/biased_lock.h"
#include "driver/cuda_abi.h"
#include "driver/driver.h"
#include "engine/engine.h"
#include "placement/placement.h"

/* The name of a stream.  A handle alone names no stream, since the driver gives the handle of a destroyed stream to the
 * next one at once.
 *   handle + 1                     a stream that is never destroyed
 *   WEIR_TENSORS_ID | id           a stream by its id, which the driver does not use again
 *   WEIR_TENSORS_CAPTURED | handle a stream that was being captured when weir named it: a question for the id would
 *                                  break the capture
 *   0                              a stream that weir does not know */
#define WEIR_TENSORS_ID (UINT64_C(1) << 63)
#define WEIR_TENSORS_CAPTURED (UINT64_C(1) << 62)

/* Another stream that uses a block. */
struct weir_tensor_use {
    weir_stream stream;
    uint64_t name;
};

/* A live block, or one that was freed and waits for other streams. */
struct weir_tensor {
    uint64_t address;
    size_t bytes, requested;
    weir_stream stream;
    uint64_t name;                 /* of the stream */
    struct weir_tensor_pool *pool; /* NULL: memory that all share */
    void *note;
    struct weir_tensor *next;     /* of what waits, or of spare records */
    struct weir_tensor_use *uses; /* other streams that use it, and its own one if that can end */
    size_t use_count;
    size_t waits_for; /* events that were not seen yet */
    int is_freed;
};

struct weir_tensor_segment {
    uint64_t base;
    size_t bytes;
};

/* What of a pool has memory of its own: 0, all blocks, or if segments join 0, the large ones, and 1, the small ones. */
enum { WEIR_TENSORS_PARTS = 2 };

struct weir_tensor_part {
    struct weir_placement *placement;     /* NULL: of a checkpoint */
    struct weir_tensor_segment *segments; /* by address */
    size_t count, room, bytes;
};

/* A stream that has had blocks of a pool. */
struct weir_tensor_user {
    weir_stream stream;
    uint64_t name;
    uint64_t ended; /* the sequence as its handle was found to mean another stream; 0: it was not */
};

struct weir_tensor_pool {
    weir_tensors_id id;
    struct weir_tensor_pool *next;
    weir_tensors_source source; /* alloc NULL: weir */
    int users, lends, is_whole;
    int pins; /* requests that wait for the device or for a segment without the lock */
    struct weir_tensor_part part[WEIR_TENSORS_PARTS];
    uint64_t closed;                  /* the sequence as the last user went */
    struct weir_tensor_user *streams; /* that have had blocks here */
    size_t stream_count, stream_room;
    int has_lost;   /* free memory here may be of streams that have ended, or that are not known */
    size_t pending; /* blocks that wait for other streams */
    /* The route. */
    int (*takes)(void *context, weir_stream stream); /* NULL: none */
    void *context;
    struct weir_tensor_pool *next_routed;
};

/* A freed block waits for an event on a stream that used it. */
struct weir_tensor_wait {
    struct weir_tensor *tensor;
    CUevent event; /* NULL: the event of the wait before covers this one, too */
    struct weir_tensor_wait *next;
};

/* The waits for one stream, oldest first: at least one.  Their events complete in this order. */
struct weir_tensor_queue {
    struct weir_tensor_use use;
    struct weir_tensor_wait *first, *last;
    struct weir_tensor_wait *open; /* the first wait that no event covers; NULL: none */
    CUevent newest;                /* the event that was recorded last */
    uint64_t batch;                /* of the last wait */
    struct weir_tensor_queue *next;
};

struct weir_tensors {
    weir_allocator *allocator;
    int device;
    struct weir_extent apart; /* addresses where segments of pools join; 0 bytes: there are none */
    weir_tensors_hooks hooks;
    struct weir_bias lock; /* by weir__tensors_lock */
    int lock_taken;        /* what taking it returned */
    struct weir_map map;   /* address -> struct weir_tensor * */
    struct weir_tensor *spare;
    struct weir_tensor_pool *pools;
    struct weir_tensor_pool *routed; /* those with a route, the newest first */
    uint64_t sequence;               /* of the last free in a pool */
    struct weir_map lasting;         /* streams that are never destroyed, by name */
    _Atomic uint64_t
        legacy_id;         /* the id of the legacy default stream, which is bound; 0: not yet */
    atomic_int is_watched; /* somebody wants events */
    atomic_int routes;     /* pools that have one: a request looks at them */
    struct weir_tensor_queue *queues;
    uint64_t batch;           /* number of the frees that are being covered: they share events */
    struct weir_tensor *held; /* freed blocks whose free failed and is tried again */
    CUevent *events;          /* spare ones */
    size_t event_count, event_room;
    atomic_int unsettled; /* there is something in queues or held */
    weir_tensors_figures
        figures; /* but those that figures.c makes: of active blocks, and of reserved memory */
    struct {
        int64_t blocks, bytes;
        int64_t peak_blocks, peak_bytes;     /* with live ones */
        int64_t blocks_before, bytes_before; /* as of weir_tensors_reset_sums */
    } pending[3];                            /* freed blocks that wait for other streams */
    struct {
        uint64_t retries, growths, trims, growth_bytes;
        int64_t current;  /* reserved */
    } before;             /* as of weir_tensors_reset_sums */
    int64_t pool_bytes;   /* of what the allocator has reserved: segments of pools */
    int64_t shared_told;  /* the rest, as events have told it */
    uint64_t last_growth; /* the address that was told */
};

/* What is known of a stream that is never destroyed. */
enum { WEIR_TENSORS_LASTING = 1, WEIR_TENSORS_BOUND };

/* Every one there is, by device; and what blocks of pools are multiples of. */
enum { WEIR_TENSORS_DEVICES = 64, WEIR_TENSORS_UNIT = 512 };
extern _Atomic(weir_tensors *) weir__tensors_of[WEIR_TENSORS_DEVICES];

/* The id of a legacy default stream, if that is known and bound; else 0. */
static inline uint64_t weir__tensors_legacy_id(const weir_tensors *t, weir_stream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_LEGACY_VALUE
               ? atomic_load_explicit(&t->legacy_id, memory_order_relaxed)
               : 0;
}

/* Returns 1 if the name is that of a stream that is never destroyed, whose handle tells enough. */
static inline int weir__name_lasts(uint64_t name) {
    return name != 0 && (name & (WEIR_TENSORS_ID | WEIR_TENSORS_CAPTURED)) == 0;
}

static inline int weir__tensors_is_shared(weir_tensors_id id) {
    return id.first == 0 && id.second == 0;
}
static inline int weir__tensors_same(weir_tensors_id a, weir_tensors_id b) {
    return a.first == b.first && a.second == b.second;
}

/* ---- tensor_blocks.c: all under the lock ---- */

void weir__tensors_tell(weir_tensors *t, int action, uint64_t address, size_t bytes,
                        weir_stream stream, const struct weir_tensor_pool *pool, void *note);
/* Tells how the memory that all share has grown for a request, or shrunk, if somebody watches. */
void weir__tensors_tell_shared(weir_tensors *t, uint64_t address, weir_stream stream, void *note);
/* A record, or NULL without host memory. */
struct weir_tensor *weir__tensor_new(weir_tensors *t);
/* The block is gone: the record, and its note. */
void weir__tensor_drop(weir_tensors *t, struct weir_tensor *tensor);
/* A block lives from here on, or does not: the figures. */
void weir__tensors_add(weir_tensors *t, const struct weir_tensor *tensor);
void weir__tensors_subtract(weir_tensors *t, const struct weir_tensor *tensor);
/* Notes that the free of the block waits for its own stream, too, if that stream can end and the block is of no pool.
 * Returns 1 on success, 0 if there is no host memory. */
int weir__tensor_use_home(struct weir_tensor *tensor);
/* Pend: it was freed, but other streams still use it; `sign' -1: no more.  Completed: others may have it now. */
void weir__tensors_pend(weir_tensors *t, const struct weir_tensor *tensor, int64_t sign);
void weir__tensors_completed(weir_tensors *t, const struct weir_tensor *tensor);
/* Returns the name of a stream that the caller has just passed.  `lasts` as for weir_tensors_alloc.  Asks the driver
 * about the stream unless it is never destroyed. */
uint64_t weir__tensors_name(weir_tensors *t, weir_stream stream, int lasts);
void weir__figure_add(weir_tensors_figure *figure, int64_t amount);
void weir__figure_subtract(weir_tensors_figure *figure, int64_t amount);

/* ---- the lock ---- */

/* More than one device was opened: no lock gets a bias any more.  It is held while its device is waited for, which must
 * not keep others from another device's. */
extern atomic_int weir__tensors_several;

/* The outer of two levels: frees to the allocator take the locks of its caches inside. */
static inline __attribute__((always_inline)) void weir__tensors_lock(weir_tensors *t) {
    int several = atomic_load_explicit(&weir__tensors_several, memory_order_relaxed);
    int taken =
        weir__bias_take_at(&t->lock, WEIR_BIAS_OUTER, several ? WEIR_BIAS_GUEST : WEIR_BIAS_USER);

    t->lock_taken = taken;
}
/* 1; or 0, and it is not taken: it would take long. */
static inline int weir__tensors_lock_soon(weir_tensors *t) {
    int taken = weir__bias_take_soon(&t->lock, WEIR_BIAS_OUTER);

    if (taken >= 0)
        t->lock_taken = taken;
    return taken >= 0;
}
static inline __attribute__((always_inline)) void weir__tensors_unlock(weir_tensors *t) {
    weir__bias_give_at(&t->lock, t->lock_taken, WEIR_BIAS_OUTER);
}

/* ---- pools.c ---- */

/* Under the lock: the pool that a request of this stream goes to, or NULL. */
struct weir_tensor_pool *weir__pool_for(weir_tensors *t, weir_stream stream);
struct weir_tensor_pool *weir__pool_find(weir_tensors *t, weir_tensors_id id);
/* Serves the request from the pool, with `lends` only from what is free there.  Releases the lock while it waits for the
 * device or for a new segment, and takes it again. */
weir_status weir__pool_alloc(weir_tensors *t, struct weir_tensor_pool *pool, size_t bytes,
                             size_t requested, struct weir_tensor_use user, int lends, void *note,
                             void **block);
/* Serves the request from free memory of pools that lend.  Releases the lock and takes it again. */
weir_status weir__pool_borrow(weir_tensors *t, size_t bytes, size_t requested,
                              struct weir_tensor_use user, void *note, void **block);
/* Under the lock: the block is free, and nothing has to be waited for. */
void weir__pool_give(weir_tensors *t, struct weir_tensor *tensor);
/* Without the lock: free segments of the pool, or with {0, 0} of all without users, go back.  1: something did. */
int weir__pools_trim(weir_tensors *t, weir_tensors_id id);
/* ---- segments.c: all under the lock ---- */

/* The segment around the address; NULL: there is none. */
const struct weir_tensor_segment *weir__part_segment(const struct weir_tensor_part *part,
                                                     uint64_t address);
/* The segments around the address of a segment's that are one. */
struct weir_tensor_segment weir__part_run(const weir_tensors *t,
                                          const struct weir_tensor_part *part, uint64_t address);
/* A placement without memory; NULL without host memory. */
struct weir_placement *weir__part_placement(const weir_tensors *t);
/* Adds a free segment to a placement that has those of the part's that lie below it.  1, or 0. */
int weir__part_place(const weir_tensors *t, struct weir_placement *p,
                     const struct weir_tensor_part *part, struct weir_tensor_segment segment);
/* The part has the segment, which is free, from here on.  1, or 0. */
int weir__part_add(const weir_tensors *t, struct weir_tensor_part *part,
                   struct weir_tensor_segment segment);
/* Once the device has done all work: takes the first free segment behind *out away.  1, or 0: there is none. */
int weir__part_take_free(const weir_tensors *t, struct weir_tensor_part *part,
                         struct weir_tensor_segment *out);
/* By how many there are more with the segment than without it, where those that join count as one: 1, 0 or -1. */
int weir__part_weight(const weir_tensors *t, const struct weir_tensor_part *part,
                      struct weir_tensor_segment segment);
/* Where the next segment would join the last one; 0: nowhere. */
uint64_t weir__part_end(const weir_tensors *t, const struct weir_tensor_part *part);
/* Returns the bytes before that end that are free for the stream of that name. */
size_t weir__part_tail(const struct weir_tensor_part *part, uint64_t name, uint64_t end);

/* Of a pool that has the address. */
static inline struct weir_tensor_part *weir__pool_part(struct weir_tensor_pool *pool,
                                                       uint64_t address) {
    return &pool->part[weir__part_segment(&pool->part[1], address) != NULL];
}

/* ---- pending.c ---- */

/* Frees a block that other streams use, under the lock. */
void weir__pending_add(weir_tensors *t, struct weir_tensor *tensor);
/* Frees the blocks whose uses are done, under the lock, and records the events that can be recorded now.  With `waits` it
 * waits for the device before. */
void weir__pending_settle(weir_tensors *t, int waits);
/* Returns 1 if a freed block waits for an event, so that a wait can free the block, else 0.  Under the lock. */
int weir__pending_is_recorded(const weir_tensors *t);
/* Frees shared memory that has no record any more, without the lock.  A free that fails for now is tried again later: until
 * then the bytes count as pending. */
weir_status weir__pending_free(weir_tensors *t, uint64_t address, size_t bytes,
                               struct weir_tensor_use user);

#endif
