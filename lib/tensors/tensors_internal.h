/* SPDX-License-Identifier: MIT */
/* tensors_internal.h: the structures of a weir_tensors, for the files of this folder.
 *
 * Locks: `lock` guards all fields that are not atomic.  weir calls hooks, `takes`, `show` and `end`, frees memory to
 * the allocator, records and queries events, and queries streams with the lock held.  weir also waits for the device
 * with the lock held, except before a pool grows or is trimmed.  Requests to the allocator are made without the lock.
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
#include "engine/stream_order.h"
#include "placement/placement.h"

/* The name of a stream.  A handle alone names no stream, since the driver reuses the handle of a destroyed stream at
 * once.
 *   handle + 1                     a stream that is never destroyed
 *   WEIR_TENSORS_ID | id           a stream by its id, which the driver does not use again
 *   WEIR_TENSORS_CAPTURED | handle a stream that was being captured when weir named it: a query of the id would have
 *                                  broken the capture
 *   0                              a stream that weir does not know */
#define WEIR_TENSORS_ID (UINT64_C(1) << 63)
#define WEIR_TENSORS_CAPTURED (UINT64_C(1) << 62)

/* A stream that uses a block. */
struct weir_tensor_use {
    weir_stream stream;
    uint64_t name;
};

/* A request of the program, and the address of its block. */
struct weir_tensor_request {
    size_t bytes, requested;
    struct weir_tensor_use home;
    void *note;
    uint64_t address;
};

/* A live block, or a freed block that waits for other streams. */
struct weir_tensor {
    uint64_t address;
    size_t bytes, requested;
    struct weir_tensor_use home;   /* the stream for which the block was allocated */
    uint64_t capture;              /* the id of the capture in which `home` was named, else 0 */
    struct weir_tensor_pool *pool; /* NULL for a block of the memory that all pools share */
    void *note;
    struct weir_tensor *next; /* the next held or spare record */
    /* Streams that use the block; also `home`, if the stream `home` can end. */
    struct weir_tensor_use *uses;
    size_t use_count;
    size_t waits_for; /* the number of events that the free still waits for */
    int is_freed;
};

struct weir_tensor_segment {
    uint64_t base;
    size_t bytes;
};

/* A pool has one part for all blocks.  If the pool's segments join, part 0 is for large blocks and part 1 for small
 * blocks. */
enum { WEIR_TENSORS_PARTS = 2 };

struct weir_tensor_part {
    struct weir_placement *placement;     /* NULL in a checkpoint */
    struct weir_tensor_segment *segments; /* sorted by address */
    size_t count, room, bytes;
};

/* A stream that has allocated from a pool. */
struct weir_tensor_user {
    struct weir_placement_stream placed; /* the id is the stream's name */
    weir_stream stream;
    uint64_t ended; /* the sequence when weir found that the handle means another stream, else 0 */
    struct weir_tensor_user *next;
};

/* The reserved bytes of a pool: of all blocks, of small blocks, of large blocks.  weir_tensors_reset_sums removes the
 * entries of ended pools. */
struct weir_tensor_reserved {
    weir_tensors_id id;
    weir_tensors_figure bytes[3];
    struct weir_tensor_reserved *next;
};

struct weir_tensor_pool {
    weir_tensors_id id;
    struct weir_tensor_pool *next;
    struct weir_tensor_reserved *reserved;
    weir_tensors_source source; /* the source of segments; the allocator if `alloc` is NULL */
    int users, lends, is_whole;
    int pins; /* running calls that have released the lock and still use the pool */
    struct weir_tensor_part part[WEIR_TENSORS_PARTS];
    uint64_t closed; /* the sequence when the last user closed the pool */
    /* the streams that have allocated from the pool, newest first */
    struct weir_tensor_user *streams;
    struct weir_placement_stream unknown; /* stands for ended and unknown streams */
    uint64_t branch_freed; /* the sequence of the last captured free that went to `unknown` */
    int has_lost;   /* set if ended or unknown streams may have freed memory here */
    size_t pending; /* freed blocks that wait for other streams */
    /* The pool's route: returns 1 if the pool serves the stream; NULL without a route. */
    int (*takes)(void *context, weir_stream stream);
    void *context;
    struct weir_tensor_pool *next_routed;
};

/* A freed block that waits for an event on a stream that used it. */
struct weir_tensor_wait {
    struct weir_tensor *tensor;
    CUevent event; /* NULL if an earlier wait's event covers this wait, or none is recorded yet */
    struct weir_tensor_wait *next;
};

/* The waits for one stream.  A queue has at least one wait, and the oldest wait is first.  The events of the waits
 * complete in this order. */
struct weir_tensor_queue {
    struct weir_tensor_use use;
    struct weir_tensor_wait *first, *last;
    struct weir_tensor_wait *open; /* the first wait that no event covers, or NULL */
    CUevent newest;                /* the event that was recorded last */
    struct weir_tensor_queue *next;
};

struct weir_tensors {
    weir_allocator *allocator;
    struct weir_extent apart; /* addresses where segments of pools join; empty if there are none */
    weir_tensors_hooks hooks;
    struct weir_bias lock; /* taken by weir__tensors_lock */
    int lock_taken;        /* the result of taking the lock */
    struct weir_map map;   /* address -> struct weir_tensor * */
    struct weir_tensor *spare;
    struct weir_tensor_pool *pools;
    atomic_int unused;                     /* the number of pools without users */
    _Atomic uint64_t idle;                 /* the bytes that weir__pools_idle has returned last */
    struct weir_tensor_pool *routed;       /* the pools with a route, newest first */
    struct weir_tensor_reserved *reserved; /* the records of pools, newest first */
    uint64_t sequence;                     /* the number of the last free in a pool */
    struct weir_map lasting;               /* streams that are never destroyed, by name */
    _Atomic uint64_t legacy_id;            /* the id of the bound legacy default stream, or 0 */
    atomic_int is_watched;                 /* set if the program wants events */
    atomic_int routes;                     /* the number of pools with a route */
    struct weir_tensor_queue *queues;
    struct weir_tensor *held;     /* freed blocks whose free failed and is repeated */
    struct weir_order events;     /* records and keeps events, and has no frees */
    atomic_int unsettled;         /* set unless `queues` and `held` are empty */
    weir_tensors_figures figures; /* all figures except those of figures.c */
    struct {
        int64_t blocks, bytes;
        int64_t peak_blocks, peak_bytes;     /* including live blocks */
        int64_t blocks_before, bytes_before; /* the values at the last weir_tensors_reset_sums */
    } pending[3];                            /* freed blocks that wait for other streams */
    weir_statistics before; /* the allocator's statistics at the last weir_tensors_reset_sums */
    int64_t current_before; /* the reserved bytes then, with the segments of other sources */
    int64_t pool_bytes;   /* reserved bytes that segments of pools hold */
    int64_t shared_told;  /* the reserved bytes outside pools, as the last event reported them */
    uint64_t last_growth; /* the address in the last event of a growth */
};

/* The states of a stream that is never destroyed: weir knows the stream, or has also bound the stream. */
enum { WEIR_TENSORS_LASTING = 1, WEIR_TENSORS_BOUND };

/* WEIR_TENSORS_DEVICES is the largest number of devices.  WEIR_TENSORS_UNIT is the unit of block sizes in pools, in
 * bytes. */
enum { WEIR_TENSORS_DEVICES = 64, WEIR_TENSORS_UNIT = 512 };
extern _Atomic(weir_tensors *) weir__tensors_of[WEIR_TENSORS_DEVICES];

/* Returns the id of a legacy default stream if the stream is bound, else 0. */
static inline uint64_t weir__tensors_legacy_id(const weir_tensors *t, weir_stream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_LEGACY_VALUE
               ? atomic_load_explicit(&t->legacy_id, memory_order_relaxed)
               : 0;
}

/* Returns 1 if the stream of that name is never destroyed, so that the stream's handle identifies the stream; else
 * 0. */
static inline int weir__name_lasts(uint64_t name) {
    return name != 0 && (name & (WEIR_TENSORS_ID | WEIR_TENSORS_CAPTURED)) == 0;
}

static inline int weir__use_is(struct weir_tensor_use a, struct weir_tensor_use b) {
    return a.stream == b.stream && a.name == b.name;
}

static inline int weir__tensors_is_shared(weir_tensors_id id) {
    return id.first == 0 && id.second == 0;
}
static inline int weir__tensors_same(weir_tensors_id a, weir_tensors_id b) {
    return a.first == b.first && a.second == b.second;
}

/* ---- functions of tensor_blocks.c; callers hold the lock ---- */

void weir__tensors_report(weir_tensors *t, int action, uint64_t address, size_t bytes,
                          weir_stream stream, const struct weir_tensor_pool *pool, void *note);
/* Reports by an event how many bytes the shared memory has grown or shrunk, if the program wants events. */
void weir__tensors_report_shared(weir_tensors *t, uint64_t address, weir_stream stream, void *note);
/* Makes `count` empty records.  Returns 1 on success, 0 if there is no host memory. */
int weir__tensors_stock(weir_tensors *t, size_t count);
/* Returns an empty record, or NULL if there is no host memory. */
struct weir_tensor *weir__tensor_new(weir_tensors *t);
/* Calls the hook `drop` for the block's note, and frees the record. */
void weir__tensor_drop(weir_tensors *t, struct weir_tensor *tensor);
/* Makes the record of a new live block, and adds the block to the map and the figures.  `capture` becomes the field of
 * that name in the record.  Returns 1 on success, 0 if there is no host memory. */
int weir__tensor_record(weir_tensors *t, const struct weir_tensor_request *made,
                        struct weir_tensor_pool *pool, uint64_t capture);
/* Add a live block to the figures, and subtract a live block. */
void weir__tensors_add(weir_tensors *t, const struct weir_tensor *tensor);
void weir__tensors_subtract(weir_tensors *t, const struct weir_tensor *tensor);
/* Makes the free of the block wait for the stream `home`, too, if `home` can end and the block belongs to no pool.
 * Returns 1 on success, 0 if there is no host memory. */
int weir__tensor_use_home(struct weir_tensor *tensor);
/* weir__tensors_pend counts a freed block that other streams still use if `sign` is 1, or the end of the block's wait
 * if `sign` is -1.  weir__tensors_completed counts a free that has completed. */
void weir__tensors_pend(weir_tensors *t, const struct weir_tensor *tensor, int64_t sign);
void weir__tensors_completed(weir_tensors *t, const struct weir_tensor *tensor);
/* Returns the description of a live block for the program. */
weir_tensors_block weir__tensor_block(const struct weir_tensor *tensor,
                                      struct weir_tensor_segment segment);
/* Returns the name of a stream that the program has just passed.  `lasts` has the meaning of the parameter of
 * weir_tensors_alloc.  Calls the driver unless the stream is never destroyed. */
uint64_t weir__tensors_name(weir_tensors *t, weir_stream stream, int lasts);
/* Adds `amount`, which is not negative, to a figure, or subtracts `amount` if `sign` is negative. */
static inline __attribute__((always_inline)) void weir__figure_add(weir_tensors_figure *figure,
                                                                   int64_t amount, int sign) {
    if (sign < 0) {
        figure->current -= amount;
        figure->freed += amount;
        return;
    }
    figure->current += amount;
    figure->allocated += amount;
    if (figure->current > figure->peak)
        figure->peak = figure->current;
}

/* ---- the lock ---- */

/* The tensors of the only device, or NULL if there are several devices or none yet.  With several devices no lock has a
 * bias, because a thread may hold a lock while it waits for a device, and must not delay threads that use another
 * device. */
extern _Atomic(weir_tensors *) weir__tensors_only;

/* Takes the lock, which is the outer of two nested biased locks: frees to the allocator take the locks of its caches
 * while this lock is held. */
static inline __attribute__((always_inline)) void weir__tensors_lock(weir_tensors *t) {
    int is_only = atomic_load_explicit(&weir__tensors_only, memory_order_relaxed) != NULL;
    int taken =
        weir__bias_take_at(&t->lock, WEIR_BIAS_OUTER, is_only ? WEIR_BIAS_USER : WEIR_BIAS_GUEST);

    t->lock_taken = taken;
}
/* Takes the lock unless another thread keeps the lock for long.  Returns 1 on success, else 0. */
static inline int weir__tensors_lock_soon(weir_tensors *t) {
    int taken = weir__bias_take_at(&t->lock, WEIR_BIAS_OUTER, WEIR_BIAS_HASTY);

    if (taken >= 0)
        t->lock_taken = taken;
    return taken >= 0;
}
static inline __attribute__((always_inline)) void weir__tensors_unlock(weir_tensors *t) {
    weir__bias_give_at(&t->lock, t->lock_taken, WEIR_BIAS_OUTER);
}

/* ---- pools.c ---- */

/* Returns the pool whose route accepts requests of this stream, or NULL.  The caller holds the lock. */
struct weir_tensor_pool *weir__pool_for(weir_tensors *t, weir_stream stream);
struct weir_tensor_pool *weir__pool_find(weir_tensors *t, weir_tensors_id id);
/* Finds the pool and takes the lock, which the caller releases.  On failure returns NULL with the reason in *status,
 * and does not hold the lock.  `t` may be NULL. */
struct weir_tensor_pool *weir__pool_enter(weir_tensors *t, weir_tensors_id id, weir_status *status);
/* Serves the request `made` from the pool, and sets `made->address`.  If `lends` is set, the pool does not grow.
 * Releases the lock while it waits for the device or allocates a segment, and takes the lock again. */
weir_status weir__pool_alloc(weir_tensors *t, struct weir_tensor_pool *pool,
                             struct weir_tensor_request *made, int lends);
/* Serves the request from free memory of pools that may lend memory (weir_tensors_pool_lend), after the allocator had
 * no memory for the request.  Returns 1 on success, else 0.  The caller does not hold the lock. */
int weir__pool_borrow(weir_tensors *t, struct weir_tensor_request *made);
/* Frees a block that waits for no stream.  The caller holds the lock. */
void weir__pool_free(weir_tensors *t, struct weir_tensor *tensor);
/* Frees the free segments of the pool `id`, or of all pools without users if `id` is {0, 0}.  Returns 1 if a segment
 * was freed, else 0.  The caller does not hold the lock. */
int weir__pools_trim(weir_tensors *t, weir_tensors_id id);
/* Destroys the placement of a part.  Does nothing if there is none. */
void weir__pool_drop_placement(struct weir_tensor_pool *pool, int part);
/* Returns the bytes that weir__pools_trim would return to the allocator from all pools.  The caller holds the lock. */
uint64_t weir__pools_idle(const weir_tensors *t);
/* ---- functions of segments.c; callers hold the lock ---- */

/* Returns the segment that contains the address, or NULL. */
const struct weir_tensor_segment *weir__part_segment(const struct weir_tensor_part *part,
                                                     uint64_t address);
/* Returns the range of all joined segments around an address, which a segment must contain. */
struct weir_tensor_segment weir__part_run(const weir_tensors *t,
                                          const struct weir_tensor_part *part, uint64_t address);
/* Creates an empty placement for the part with that number.  Returns NULL if there is no host memory. */
struct weir_placement *weir__part_placement(const weir_tensors *t, int part);
/* Adds a free segment to a placement.  The caller has added the part's segments at lower addresses before.  Returns 1
 * on success, else 0. */
int weir__part_place(const weir_tensors *t, struct weir_placement *p,
                     const struct weir_tensor_part *part, struct weir_tensor_segment segment);
/* Adds a free segment to the part.  Returns 1 on success, 0 if there is no host memory. */
int weir__part_add(const weir_tensors *t, struct weir_tensor_part *part,
                   struct weir_tensor_segment segment);
/* Removes the part's first free segment above the segment *out, and stores the removed segment in *out.  The caller has
 * waited for the device.  Returns 1 on success, 0 if there is no such segment. */
int weir__part_take_free(const weir_tensors *t, struct weir_tensor_part *part,
                         struct weir_tensor_segment *out);
/* Returns the change (1, 0 or -1) of the number of segments when the segment is added.  Joined segments count as one
 * segment. */
int weir__part_weight(const weir_tensors *t, const struct weir_tensor_part *part,
                      struct weir_tensor_segment segment);
/* Returns the address at which the next segment would join the last segment, or 0 if no segment can join the last
 * segment. */
uint64_t weir__part_end(const weir_tensors *t, const struct weir_tensor_part *part);
/* Returns the free bytes directly before `end` that the stream of that name may use. */
size_t weir__part_tail(const struct weir_tensor_part *part, uint64_t name, uint64_t end);

/* Returns the part of the pool that contains the address. */
static inline struct weir_tensor_part *weir__pool_part(struct weir_tensor_pool *pool,
                                                       uint64_t address) {
    return &pool->part[weir__part_segment(&pool->part[1], address) != NULL];
}

/* ---- pending.c ---- */

/* Frees a block that other streams use, after the work of these streams on the block has completed.  The caller holds
 * the lock. */
void weir__pending_add(weir_tensors *t, struct weir_tensor *tensor);
/* Frees the blocks whose uses have completed, and records the events that can be recorded now.  If `waits` is set,
 * waits for the device before the frees.  The caller holds the lock. */
void weir__pending_complete(weir_tensors *t, int waits);
/* Returns 1 if a freed block waits for a recorded event, else 0.  The caller holds the lock. */
int weir__pending_is_recorded(const weir_tensors *t);
/* Frees shared memory that has no record.  The caller does not hold the lock.  If the free fails and may succeed later,
 * weir repeats the free, and the bytes count as pending until then. */
weir_status weir__pending_free(weir_tensors *t, uint64_t address, size_t bytes,
                               struct weir_tensor_use home);

#endif
