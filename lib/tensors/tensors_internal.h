/* SPDX-License-Identifier: MIT */
/* tensors_internal.h: declares the structures of weir_tensors (weir/tensors.h), which allocates the device memory
 * of a framework's tensors.
 *
 * Locks: the field `lock` guards all fields of struct weir_tensors that are not atomic.  weir holds this lock while
 * it calls hooks and callbacks of the program, queries streams, records and queries events, waits for the device, and
 * frees a block that another stream has used.  weir releases the lock before each request to the weir_allocator, and
 * while a private memory pool waits for the device to grow or to be trimmed. */
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

/* The name of a stream is a 64-bit number that identifies the stream.  A handle does not identify a stream, because
 * the driver may give the handle of a destroyed stream to a new stream.  The name is one of these values:
 *   handle + 1                     if the stream is never destroyed
 *   WEIR_TENSORS_ID | id           if the driver reports an id for the stream; the driver never uses an id twice
 *   WEIR_TENSORS_CAPTURED | handle if the stream was being captured when weir made the name, because a query of the
 *                                  id would have broken the capture
 *   0                              if weir cannot identify the stream */
#define WEIR_TENSORS_ID (UINT64_C(1) << 63)
#define WEIR_TENSORS_CAPTURED (UINT64_C(1) << 62)

/* A stream that uses a block.  `name` identifies the stream even after the driver has reused the handle. */
struct weir_tensor_use {
    weir_stream stream;
    uint64_t name;
};

/* A request for a block on the stream `home`.  `requested` is the size before rounding. */
struct weir_tensor_request {
    size_t bytes, requested;
    struct weir_tensor_use home;
    void *note;
    uint64_t address;
};

/* The record of a block that is live, or that other streams still use. */
struct weir_tensor {
    uint64_t address;
    size_t bytes, requested;
    struct weir_tensor_use home;   /* the stream for which the block was allocated */
    uint64_t capture; /* the id of the capture in which the block was allocated, or 0 */
    struct weir_tensor_pool *pool; /* the private memory pool that contains the block, or NULL */
    void *note;
    struct weir_tensor *next;
    /* The streams for whose work the free must wait.  A `home` that is never destroyed needs no wait. */
    struct weir_tensor_use *uses;
    size_t use_count;
    size_t wait_count; /* the number of events and captures that must end before the free */
    int is_freed;
};

struct weir_tensor_segment {
    uint64_t base;
    size_t bytes;
};

/* The parts of a pool.  If adjacent segments can join, small blocks are in part 1.  All other blocks are in part 0. */
enum { WEIR_TENSORS_PARTS = 2 };

struct weir_tensor_part {
    struct weir_placement *placement;     /* the chunks of the segments; NULL in a checkpoint */
    struct weir_tensor_segment *segments; /* the segments, sorted by address */
    size_t count, room, bytes;
};

/* A stream that has allocated memory from a private memory pool. */
struct weir_tensor_user {
    struct weir_placement_stream placed; /* `placed.id` is the stream's name */
    weir_stream stream;
    /* The value of `sequence` when weir found that the stream was destroyed.  0 as long as the stream may exist. */
    uint64_t ended;
    struct weir_tensor_user *next;
};

/* The reserved bytes of a pool, kept after its end: [0] all blocks, [1] small blocks, [2] large blocks. */
struct weir_tensor_reserved {
    weir_tensors_id id;
    weir_tensors_figure bytes[3];
    struct weir_tensor_reserved *next;
};

struct weir_tensor_pool {
    weir_tensors_id id;
    struct weir_tensor_pool *next;
    struct weir_tensor_reserved *reserved;
    /* The program's functions that allocate segments.  If `source.alloc` is NULL, the weir_allocator allocates them. */
    weir_tensors_source source;
    int users, is_lendable, is_whole;
    int pins; /* the number of running calls that use the pool without the lock */
    struct weir_tensor_part part[WEIR_TENSORS_PARTS];
    uint64_t closed; /* `sequence` at the last close; earlier frees have smaller numbers */
    struct weir_tensor_user *streams;
    /* One entry for all destroyed and unidentified streams.  Its memory is reused only after a wait for the device. */
    struct weir_placement_stream unknown_streams;
    /* The number of the newest free in `unknown_streams` that may have been part of a stream capture. */
    uint64_t last_capture_free;
    /* Set if a destroyed or unidentified stream may have freed memory since the last wait for the device. */
    int has_unordered_frees;
    size_t pending; /* the number of freed blocks that other streams still use */
    /* A callback that returns 1 if this pool allocates the stream's blocks; NULL if the pool receives no requests. */
    int (*accepts)(void *context, weir_stream stream);
    void *context;
    struct weir_tensor_pool *next_routed;
};

/* One stream whose work must finish before a freed block can be reused. */
struct weir_tensor_wait {
    struct weir_tensor *tensor;
    CUevent event; /* the event to wait for; NULL in a capture, or if an earlier one suffices */
    struct weir_tensor_wait *next;
};

/* The freed blocks that wait for one stream, oldest first.  A queue is never empty. */
struct weir_tensor_queue {
    struct weir_tensor_use use;
    struct weir_tensor_wait *first, *last;
    struct weir_tensor_wait *first_unrecorded; /* the first entry that needs an event, or NULL */
    CUevent newest;                            /* the last recorded event */
    struct weir_tensor_queue *next;
};

struct weir_tensors {
    weir_allocator *allocator;
    struct weir_extent pool_range; /* where segments can join; 0 bytes if nowhere */
    weir_tensors_hooks hooks;
    struct weir_bias lock;
    int lock_taken;      /* the result of the lock call, which the unlock call needs */
    struct weir_map map; /* all live blocks, by address; the values are struct weir_tensor * */
    struct weir_tensor *free_records;
    struct weir_tensor_pool *pools;
    atomic_int unused_pools;               /* the number of pools without users */
    _Atomic uint64_t idle;                 /* the bytes that a trim would free, as last computed */
    struct weir_tensor_pool *routed;       /* pools that receive requests, newest first */
    struct weir_tensor_reserved *reserved; /* the records, newest pool first */
    /* The number of frees in private memory pools so far.  A device wait covers the frees that were counted before. */
    uint64_t sequence;
    struct weir_map permanent_streams; /* the streams that are never destroyed, by name */
    _Atomic uint64_t legacy_id;        /* of the legacy default stream; 0 before weir_bind */
    atomic_int is_watched;             /* set if weir calls the hook `event` */
    atomic_int route_count;            /* the number of pools that receive requests */
    struct weir_tensor_queue *queues;
    struct weir_tensor *failed_frees; /* blocks whose free failed; weir retries the free */
    struct weir_order events;         /* a cache of CUDA events */
    atomic_int has_pending;           /* set if `queues` or `failed_frees` is not empty */
    weir_tensors_figures figures;
    /* Freed blocks that other streams still use: [0] all blocks, [1] small blocks, [2] large blocks. */
    struct {
        int64_t blocks, bytes;
        int64_t peak_blocks, peak_bytes;         /* of live blocks plus these freed blocks */
        int64_t blocks_at_reset, bytes_at_reset; /* at the last weir_tensors_reset_sums */
    } pending[3];
    weir_statistics stats_at_reset; /* the statistics at the last weir_tensors_reset_sums */
    int64_t reserved_at_reset;      /* reserved bytes at the last weir_tensors_reset_sums */
    int64_t pool_bytes;             /* the allocator's memory in private memory pools */
    /* The reserved bytes outside private memory pools, as weir last reported them by an event. */
    int64_t reported_shared_bytes;
    uint64_t growth_address; /* the address in the last event that reported growth */
};

/* A stream that is never destroyed has one of these values in `permanent_streams`, BOUND after a call of weir_bind. */
enum { WEIR_TENSORS_PERMANENT = 1, WEIR_TENSORS_BOUND };

/* The largest number of devices, and the unit in bytes to which private memory pools round block sizes up. */
enum { WEIR_TENSORS_DEVICES = 64, WEIR_TENSORS_UNIT = 512 };
extern _Atomic(weir_tensors *) weir__tensors_of[WEIR_TENSORS_DEVICES];

/* Returns the id of the legacy default stream, or 0 for another stream or before weir_bind. */
static inline uint64_t weir__tensors_legacy_id(const weir_tensors *t, weir_stream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_LEGACY_VALUE
               ? atomic_load_explicit(&t->legacy_id, memory_order_relaxed)
               : 0;
}

/* Returns 1 if the name belongs to a stream that is never destroyed, else 0. */
static inline int weir__name_is_permanent(uint64_t name) {
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

/* ---- tensor_blocks.c ---- */

void weir__tensors_report(weir_tensors *t, int action, uint64_t address, size_t bytes,
                          weir_stream stream, const struct weir_tensor_pool *pool, void *note);
/* Reports, by an event, the change of reserved memory outside private memory pools since the last event. */
void weir__tensors_report_shared(weir_tensors *t, uint64_t address, weir_stream stream, void *note);
/* Allocates `count` or more empty block records in advance.  Returns 1 on success, 0 if there is no host memory. */
int weir__tensors_reserve_records(weir_tensors *t, size_t count);
/* Returns an empty block record, or NULL if there is no host memory. */
struct weir_tensor *weir__tensor_new(weir_tensors *t);
/* Frees a block's record.  First passes the block's note to the program's hook `drop`. */
void weir__tensor_drop(weir_tensors *t, struct weir_tensor *tensor);
/* Records a new live block.  `capture` is the id of its stream capture, or 0.  Returns 1, or 0 without host memory. */
int weir__tensor_record(weir_tensors *t, const struct weir_tensor_request *request,
                        struct weir_tensor_pool *pool, uint64_t capture);
/* Add a block to the statistics, or subtract it, and report the change by an event. */
void weir__tensors_add(weir_tensors *t, const struct weir_tensor *tensor);
void weir__tensors_subtract(weir_tensors *t, const struct weir_tensor *tensor);
/* Adds the stream of the allocation to the block's streams.  Does nothing if this stream is never destroyed, or if the
 * block belongs to a private memory pool.  Returns 1, or 0 without host memory. */
int weir__tensor_use_alloc_stream(struct weir_tensor *tensor);
/* Adds a freed block to the statistics of blocks that other streams still use.  Subtracts the block if `sign` is -1. */
void weir__tensors_count_pending(weir_tensors *t, const struct weir_tensor *tensor, int64_t sign);
/* Reports to the program that a free has completed, and reverses weir__tensors_count_pending() for the block. */
void weir__tensors_report_completed(weir_tensors *t, const struct weir_tensor *tensor);
/* Describes a live block for the program.  `segment` is the contiguous device memory that contains the block. */
weir_tensors_block weir__tensor_block(const struct weir_tensor *tensor,
                                      struct weir_tensor_segment segment);
/* Returns the number that identifies a stream.  If `lasts` is 1 (never destroyed), does not call the driver. */
uint64_t weir__tensors_name(weir_tensors *t, weir_stream stream, int lasts);
/* Adds `amount` to a statistic and updates the peak.  If `sign` is negative, subtracts `amount`. */
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

/* The tensor allocator of the only device in use; NULL if no device or several are in use.  With several devices, weir
 * biases no lock to a thread (biased_lock.h), since a wait for one device could delay threads of others. */
extern _Atomic(weir_tensors *) weir__tensors_only;

/* Locks the weir_tensors.  Lock order: this lock, then the locks of the allocator's caches. */
static inline __attribute__((always_inline)) void weir__tensors_lock(weir_tensors *t) {
    int is_only = atomic_load_explicit(&weir__tensors_only, memory_order_relaxed) != NULL;
    int taken =
        weir__bias_take_at(&t->lock, WEIR_BIAS_OUTER, is_only ? WEIR_BIAS_USER : WEIR_BIAS_GUEST);

    t->lock_taken = taken;
}
/* Tries for some microseconds to lock `t`.  Returns 1 on success, 0 if another thread still holds the lock. */
static inline int weir__tensors_try_lock(weir_tensors *t) {
    int taken = weir__bias_take_at(&t->lock, WEIR_BIAS_OUTER, WEIR_BIAS_HASTY);

    if (taken >= 0)
        t->lock_taken = taken;
    return taken >= 0;
}
static inline __attribute__((always_inline)) void weir__tensors_unlock(weir_tensors *t) {
    weir__bias_give_at(&t->lock, t->lock_taken, WEIR_BIAS_OUTER);
}

/* ---- pools.c ---- */

/* Returns the private memory pool that allocates the stream's blocks, or NULL.  The caller holds the lock. */
struct weir_tensor_pool *weir__pool_with_route(weir_tensors *t, weir_stream stream);
struct weir_tensor_pool *weir__pool_find(weir_tensors *t, weir_tensors_id id);
/* Locks `t` and returns the pool `id`; the caller unlocks `t`.  If `t` is NULL or there is no such pool, returns NULL
 * without the lock, and sets *status. */
struct weir_tensor_pool *weir__pool_enter(weir_tensors *t, weir_tensors_id id, weir_status *status);
/* Allocates a block in the pool.  If `no_growth` is set, uses only memory that the pool already has.  Unlocks `t` while
 * it waits for the device or allocates a segment. */
weir_status weir__pool_alloc(weir_tensors *t, struct weir_tensor_pool *pool,
                             struct weir_tensor_request *request, int no_growth);
/* Allocates a block in a pool that lends memory.  Returns 1 on success, else 0.  The caller does not hold the lock. */
int weir__pool_borrow(weir_tensors *t, struct weir_tensor_request *request);
/* Frees a block of a private memory pool.  No other stream may still use the block.  The caller holds the lock. */
void weir__pool_free(weir_tensors *t, struct weir_tensor *tensor);
/* Frees unused segments of the pool `id`, or of all unused pools for {0, 0}.  The caller does not hold the lock. */
int weir__pools_trim(weir_tensors *t, weir_tensors_id id);
/* Destroys the placement of one part of the pool, if there is one. */
void weir__pool_drop_placement(struct weir_tensor_pool *pool, int part);
/* Returns the bytes that a trim of all pools without users would free.  The caller holds the lock. */
uint64_t weir__pools_idle(const weir_tensors *t);

/* Returns the segment of this part of a pool that contains the address, or NULL if there is none. */
const struct weir_tensor_segment *weir__part_segment(const struct weir_tensor_part *part,
                                                     uint64_t address);
/* Returns the segment that contains the address, together with all segments that are joined to this segment. */
struct weir_tensor_segment weir__part_run(const weir_tensors *t,
                                          const struct weir_tensor_part *part, uint64_t address);
/* Creates the empty record of the chunks in part 0 or 1 of a pool.  Returns NULL if there is no host memory. */
struct weir_placement *weir__part_placement(const weir_tensors *t, int part);
/* Adds a segment to `p` as free memory, in the order of addresses.  Returns 1 on success, else 0. */
int weir__part_place(const weir_tensors *t, struct weir_placement *p,
                     const struct weir_tensor_part *part, struct weir_tensor_segment segment);

/* Returns the part of the pool (small or large blocks) that contains the address. */
static inline struct weir_tensor_part *weir__pool_part(struct weir_tensor_pool *pool,
                                                       uint64_t address) {
    return &pool->part[weir__part_segment(&pool->part[1], address) != NULL];
}

/* ---- pending.c ---- */

/* Frees a block as soon as all other streams that use the block have finished.  The caller holds the lock. */
void weir__pending_add(weir_tensors *t, struct weir_tensor *tensor);
/* Completes the frees of blocks that no stream uses any more.  If `waits` is set, first waits for the device.  The
 * caller holds the lock. */
void weir__pending_complete(weir_tensors *t, int waits);
/* Returns 1 if a freed block waits for a recorded event, else 0.  The caller holds the lock. */
int weir__pending_is_recorded(const weir_tensors *t);
/* Frees a block outside private memory pools.  The caller has removed the block's struct weir_tensor, and does not hold
 * the lock.  If a failed free may succeed later, weir retries it, and counts the block as pending until then. */
weir_status weir__pending_free(weir_tensors *t, uint64_t address, size_t bytes,
                               struct weir_tensor_use home);

#endif
