/* SPDX-License-Identifier: MIT */
/* tensors_internal.h: declares the structures of weir_tensors (weir/tensors.h), which allocates the tensors of a
 * framework.
 *
 * Locks: `lock` guards all fields of struct weir_tensors that are not atomic.  weir holds this lock while it calls
 * the program's functions (the hooks, `takes`, `show` and `end`), queries streams, and records and queries events.
 * weir also holds the lock when it frees a block whose last use by another stream has completed, and when it waits
 * for the device.  But a pool that grows or is trimmed waits for the device without the lock.  weir also releases
 * the lock before it requests memory from the allocator.
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

/* The name of a stream: a number that identifies the stream.  A handle alone identifies no stream, since the driver
 * gives the handle of a destroyed stream to a new stream at once.  A name has one of these four values:
 *   handle + 1                     if the stream is never destroyed
 *   WEIR_TENSORS_ID | id           if weir knows the stream's id, which the driver never uses again
 *   WEIR_TENSORS_CAPTURED | handle if the stream was being captured when weir made the name; a query of the id would
 *                                  have broken the capture
 *   0                              if weir cannot identify the stream */
#define WEIR_TENSORS_ID (UINT64_C(1) << 63)
#define WEIR_TENSORS_CAPTURED (UINT64_C(1) << 62)

/* A stream that uses a block: the stream's handle, and its name (see WEIR_TENSORS_ID). */
struct weir_tensor_use {
    weir_stream stream;
    uint64_t name;
};

/* A request of the program for a block of `bytes`.  `requested` is the size that the program requested, before it
 * was rounded up to `bytes`.  Once the request is served, `address` is the address of the block. */
struct weir_tensor_request {
    size_t bytes, requested;
    struct weir_tensor_use home;
    void *note;
    uint64_t address;
};

/* The record of a live block, or of a freed block that still waits for the work of other streams. */
struct weir_tensor {
    uint64_t address;
    size_t bytes, requested;
    struct weir_tensor_use home;   /* the stream for which the block was allocated */
    uint64_t capture;              /* the id of the capture during which `home` was named, or 0 */
    struct weir_tensor_pool *pool; /* the pool of the block; NULL if the block belongs to no pool */
    void *note;
    struct weir_tensor *next; /* the next record in the list `held` or `spare` of weir_tensors */
    /* The streams that use the block.  The array includes `home` if the stream `home` can be destroyed before the
     * free. */
    struct weir_tensor_use *uses;
    size_t use_count;
    size_t waits_for; /* the number of waits (weir_tensor_wait) that must end before the free */
    int is_freed;
};

struct weir_tensor_segment {
    uint64_t base;
    size_t bytes;
};

/* The number of parts of a pool.  In a pool whose adjacent segments join, part 0 has the large blocks and part 1 the
 * small blocks.  In other pools, part 0 has all blocks. */
enum { WEIR_TENSORS_PARTS = 2 };

struct weir_tensor_part {
    struct weir_placement *placement;     /* the blocks in the segments; NULL in a checkpoint */
    struct weir_tensor_segment *segments; /* the segments of the part, sorted by address */
    size_t count, room, bytes;
};

/* A stream that has allocated memory from a pool. */
struct weir_tensor_user {
    /* The record of the stream in the pool's placements; `placed.id` is the stream's name. */
    struct weir_placement_stream placed;
    weir_stream stream;
    /* The value of `sequence` (weir_tensors) when weir found that the stream's handle now means another stream.  0
     * as long as weir has not found such a stream. */
    uint64_t ended;
    struct weir_tensor_user *next;
};

/* The reserved bytes of a pool: [0] for all blocks, [1] for small blocks, [2] for large blocks.  The record stays
 * when its pool ends, until the next weir_tensors_reset_sums. */
struct weir_tensor_reserved {
    weir_tensors_id id;
    weir_tensors_figure bytes[3];
    struct weir_tensor_reserved *next;
};

struct weir_tensor_pool {
    weir_tensors_id id;
    struct weir_tensor_pool *next;
    struct weir_tensor_reserved *reserved;
    /* The source of the pool's segments; if `source.alloc` is NULL, the allocator. */
    weir_tensors_source source;
    int users, lends, is_whole;
    int pins; /* the number of running calls that have released the lock but still use the pool */
    struct weir_tensor_part part[WEIR_TENSORS_PARTS];
    uint64_t closed; /* the value of `sequence` (weir_tensors) when the last user closed the pool */
    /* The streams that have allocated memory from the pool, newest first. */
    struct weir_tensor_user *streams;
    /* A placeholder in the placement for all streams that have ended or have no name. */
    struct weir_placement_stream unknown;
    /* The value of `sequence` at the last free that the placement recorded under `unknown` and that a captured
     * stream may have made. */
    uint64_t branch_freed;
    /* Set if streams that have ended, or have no name, may have freed memory of the pool. */
    int has_lost;
    size_t pending; /* the number of the pool's freed blocks that wait for other streams */
    /* The pool's route: a function that returns 1 if the pool serves requests of the stream.  NULL if the pool has
     * no route. */
    int (*takes)(void *context, weir_stream stream);
    void *context;
    struct weir_tensor_pool *next_routed;
};

/* The wait of one freed block for the work of one stream that used the block. */
struct weir_tensor_wait {
    struct weir_tensor *tensor;
    /* The event to wait for; NULL if the event of another wait of the queue covers this wait, or if no event is
     * recorded yet. */
    CUevent event;
    struct weir_tensor_wait *next;
};

/* The waits of freed blocks for one stream, oldest first.  A queue has at least one wait.  The events complete in
 * the order of the waits. */
struct weir_tensor_queue {
    struct weir_tensor_use use;
    struct weir_tensor_wait *first, *last;
    struct weir_tensor_wait *open; /* the first wait that no recorded event covers, or NULL */
    /* The last event that was recorded on the stream for this queue. */
    CUevent newest;
    struct weir_tensor_queue *next;
};

struct weir_tensors {
    weir_allocator *allocator;
    /* The addresses at which segments of pools join; empty if the engine has no such addresses. */
    struct weir_extent apart;
    weir_tensors_hooks hooks;
    struct weir_bias lock; /* the lock of this struct; weir__tensors_lock() takes the lock */
    int lock_taken;        /* the value that weir__tensors_unlock() needs to release the lock */
    /* All live blocks: the key is the address, the value is a struct weir_tensor *. */
    struct weir_map map;
    struct weir_tensor *spare;
    struct weir_tensor_pool *pools;
    atomic_int unused;     /* the number of pools without users */
    _Atomic uint64_t idle; /* the last result of weir__pools_idle() */
    /* The pools with a route; the pool with the newest route is first. */
    struct weir_tensor_pool *routed;
    struct weir_tensor_reserved *reserved; /* the reserved bytes of each pool, newest pool first */
    /* A counter that each free of a block in a pool increases. */
    uint64_t sequence;
    /* The streams that are never destroyed; the key is the stream's name. */
    struct weir_map lasting;
    /* The driver's id of the legacy default stream, or 0 if weir has not bound this stream. */
    _Atomic uint64_t legacy_id;
    /* Set if the program wants to receive events (hooks.event). */
    atomic_int is_watched;
    atomic_int routes; /* the number of pools with a route */
    struct weir_tensor_queue *queues;
    struct weir_tensor *held;     /* the freed blocks whose free failed, which weir repeats later */
    struct weir_order events;     /* records and keeps CUDA events; its list of frees stays empty */
    atomic_int unsettled;         /* set if `queues` or `held` is not empty */
    weir_tensors_figures figures; /* all figures except the ones that figures.c computes */
    /* Pending blocks, which are freed blocks that wait for other streams: [0] all, [1] small and [2] large blocks. */
    struct {
        int64_t blocks, bytes;
        int64_t peak_blocks, peak_bytes; /* the peaks of live and pending blocks together */
        /* The values of `blocks` and `bytes` at the last weir_tensors_reset_sums. */
        int64_t blocks_before, bytes_before;
    } pending[3];
    weir_statistics before; /* the allocator's statistics at the last weir_tensors_reset_sums */
    /* The reserved bytes at the last weir_tensors_reset_sums, including segments from the pools' own sources. */
    int64_t current_before;
    int64_t pool_bytes; /* the allocator's reserved bytes that are segments of pools */
    /* The allocator's reserved bytes outside pools, as the last event reported them. */
    int64_t shared_told;
    /* The address in the last event that reported growth of the memory outside pools. */
    uint64_t last_growth;
};

/* The values of the map `lasting`.  WEIR_TENSORS_LASTING: weir knows that the stream is never destroyed.
 * WEIR_TENSORS_BOUND: weir has also bound the stream (weir_bind). */
enum { WEIR_TENSORS_LASTING = 1, WEIR_TENSORS_BOUND };

/* WEIR_TENSORS_DEVICES is the largest number of devices.  WEIR_TENSORS_UNIT is the unit, in bytes, to which block
 * sizes in pools are rounded up. */
enum { WEIR_TENSORS_DEVICES = 64, WEIR_TENSORS_UNIT = 512 };
extern _Atomic(weir_tensors *) weir__tensors_of[WEIR_TENSORS_DEVICES];

/* If the stream is the legacy default stream and is bound (weir_bind), returns the driver's id of the stream, else
 * 0. */
static inline uint64_t weir__tensors_legacy_id(const weir_tensors *t, weir_stream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_LEGACY_VALUE
               ? atomic_load_explicit(&t->legacy_id, memory_order_relaxed)
               : 0;
}

/* Returns 1 if `name` names a stream that is never destroyed, else 0.  The handle of such a stream always means this
 * stream. */
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
/* If the program wants events, reports by an event how many bytes the memory outside pools has grown or shrunk since
 * the last report. */
void weir__tensors_report_shared(weir_tensors *t, uint64_t address, weir_stream stream, void *note);
/* Adds at least `count` empty records to the list `spare`.  Returns 1 on success, 0 if there is no host memory. */
int weir__tensors_stock(weir_tensors *t, size_t count);
/* Removes an empty record from the list `spare` and returns the record.  Returns NULL if there is no host memory. */
struct weir_tensor *weir__tensor_new(weir_tensors *t);
/* If the block has a note, calls the program's hook `drop` for the note.  Then moves the record to the list `spare`. */
void weir__tensor_drop(weir_tensors *t, struct weir_tensor *tensor);
/* Makes the record of a new live block, and adds the block to the map and to the figures.  Stores `capture` in the
 * record.  Returns 1 on success, 0 if there is no host memory. */
int weir__tensor_record(weir_tensors *t, const struct weir_tensor_request *made,
                        struct weir_tensor_pool *pool, uint64_t capture);
/* weir__tensors_add() adds a live block to the figures, and weir__tensors_subtract() subtracts the block at its
 * free.  Both report an event. */
void weir__tensors_add(weir_tensors *t, const struct weir_tensor *tensor);
void weir__tensors_subtract(weir_tensors *t, const struct weir_tensor *tensor);
/* Adds the stream `home` to the block's uses if this stream can be destroyed and the block belongs to no pool.
 * Returns 1 on success, 0 if there is no host memory. */
int weir__tensor_use_home(struct weir_tensor *tensor);
/* weir__tensors_pend() counts a freed block as pending if `sign` is 1, and no longer as pending if `sign` is -1.  A
 * pending block waits for the work of other streams.  weir__tensors_completed() reports that a free has completed
 * and, if the block was pending, calls weir__tensors_pend() with -1. */
void weir__tensors_pend(weir_tensors *t, const struct weir_tensor *tensor, int64_t sign);
void weir__tensors_completed(weir_tensors *t, const struct weir_tensor *tensor);
/* Describes a live block in the form that weir_tensors_find and weir_tensors_visit give to the program.  `segment`
 * is the block's segment. */
weir_tensors_block weir__tensor_block(const struct weir_tensor *tensor,
                                      struct weir_tensor_segment segment);
/* Returns the name (see WEIR_TENSORS_ID) of a stream whose handle the program has just passed.  `lasts` is the
 * parameter of weir_tensors_alloc.  Calls the driver unless the stream is never destroyed. */
uint64_t weir__tensors_name(weir_tensors *t, weir_stream stream, int lasts);
/* Adds `amount` to a figure, or subtracts `amount` from the figure if `sign` is negative.  `amount` is never
 * negative. */
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

/* The weir_tensors of the only device.  NULL if several devices are in use, or none yet.  With several devices, no
 * lock has a bias towards one thread.  A thread may hold the lock of one device while it waits for this device, and
 * this must not delay threads that use another device. */
extern _Atomic(weir_tensors *) weir__tensors_only;

/* Takes the lock of the weir_tensors.  This lock is the outer of two nested biased locks: a free to the allocator
 * takes a lock of the allocator's caches while this lock is held. */
static inline __attribute__((always_inline)) void weir__tensors_lock(weir_tensors *t) {
    int is_only = atomic_load_explicit(&weir__tensors_only, memory_order_relaxed) != NULL;
    int taken =
        weir__bias_take_at(&t->lock, WEIR_BIAS_OUTER, is_only ? WEIR_BIAS_USER : WEIR_BIAS_GUEST);

    t->lock_taken = taken;
}
/* Takes the lock, but does not wait for long.  Returns 1 on success, 0 if another thread holds the lock for long. */
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

/* Returns the pool whose route accepts requests of the stream, or NULL if no route does.  The caller holds the lock. */
struct weir_tensor_pool *weir__pool_for(weir_tensors *t, weir_stream stream);
struct weir_tensor_pool *weir__pool_find(weir_tensors *t, weir_tensors_id id);
/* Takes the lock and returns the pool with that id.  The caller must release the lock.  On failure, returns NULL
 * without the lock and stores the reason in *status.  `t` may be NULL, which is a failure. */
struct weir_tensor_pool *weir__pool_enter(weir_tensors *t, weir_tensors_id id, weir_status *status);
/* Allocates a block in the pool for the request `made`, and sets `made->address`.  If `lends` is set, the pool does
 * not grow.  The function releases the lock while it waits for the device or allocates a segment, and then takes the
 * lock again. */
weir_status weir__pool_alloc(weir_tensors *t, struct weir_tensor_pool *pool,
                             struct weir_tensor_request *made, int lends);
/* Allocates a block for the request in free memory of any pool that lends its memory (weir_tensors_pool_lend).  The
 * caller has found no memory in the allocator before, and does not hold the lock.  Returns 1 on success, else 0. */
int weir__pool_borrow(weir_tensors *t, struct weir_tensor_request *made);
/* Frees a block of a pool.  The block waits for no other stream any more.  The caller holds the lock. */
void weir__pool_free(weir_tensors *t, struct weir_tensor *tensor);
/* Gives the free segments of the pool `id` back to their source.  If `id` is {0, 0}, gives back the free segments of
 * all pools without users.  Returns 1 if at least one segment was given back, else 0.  The caller does not hold the
 * lock. */
int weir__pools_trim(weir_tensors *t, weir_tensors_id id);
/* Destroys the placement of part number `part` of the pool, if there is a placement. */
void weir__pool_drop_placement(struct weir_tensor_pool *pool, int part);
/* Returns the bytes that a call of weir__pools_trim() for all pools would give back to the allocator.  The caller
 * holds the lock. */
uint64_t weir__pools_idle(const weir_tensors *t);
/* ---- functions of segments.c; callers hold the lock ---- */

/* Returns the part's segment that contains the address, or NULL if no segment contains the address. */
const struct weir_tensor_segment *weir__part_segment(const struct weir_tensor_part *part,
                                                     uint64_t address);
/* Returns the range of the segment that contains the address, together with all segments that are joined to this
 * segment.  A segment must contain the address. */
struct weir_tensor_segment weir__part_run(const weir_tensors *t,
                                          const struct weir_tensor_part *part, uint64_t address);
/* Creates an empty placement for part number `part` of a pool.  Returns NULL if there is no host memory. */
struct weir_placement *weir__part_placement(const weir_tensors *t, int part);
/* Adds a free segment to the placement `p` of the part.  The caller has added the part's segments at lower addresses
 * before.  Returns 1 on success, else 0. */
int weir__part_place(const weir_tensors *t, struct weir_placement *p,
                     const struct weir_tensor_part *part, struct weir_tensor_segment segment);
/* Adds a free segment to the part and to the part's placement.  Returns 1 on success, 0 if there is no host memory. */
int weir__part_add(const weir_tensors *t, struct weir_tensor_part *part,
                   struct weir_tensor_segment segment);
/* Removes the first segment that is free and lies above the segment *out, and stores the removed segment in *out.
 * The caller has waited for the device.  Returns 1 on success, 0 if no such segment exists. */
int weir__part_take_free(const weir_tensors *t, struct weir_tensor_part *part,
                         struct weir_tensor_segment *out);
/* Returns by how much the number of contiguous ranges grows (1, 0 or -1) when the segment is added.  The joined
 * segments of one range count as one segment. */
int weir__part_weight(const weir_tensors *t, const struct weir_tensor_part *part,
                      struct weir_tensor_segment segment);
/* Returns the address at which a new segment would join the part's last segment.  Returns 0 if no segment can join
 * the last segment. */
uint64_t weir__part_end(const weir_tensors *t, const struct weir_tensor_part *part);
/* Returns the number of free bytes that lie directly before the address `end` and that the stream of that name may
 * use. */
size_t weir__part_tail(const struct weir_tensor_part *part, uint64_t name, uint64_t end);

/* Returns the part of the pool in which the address lies.  A segment of the pool must contain the address. */
static inline struct weir_tensor_part *weir__pool_part(struct weir_tensor_pool *pool,
                                                       uint64_t address) {
    return &pool->part[weir__part_segment(&pool->part[1], address) != NULL];
}

/* ---- pending.c ---- */

/* Frees a block once the work of all other streams that use the block has completed.  The caller holds the lock. */
void weir__pending_add(weir_tensors *t, struct weir_tensor *tensor);
/* Frees the pending blocks on which the work of all other streams has completed.  Also records the events that weir
 * could not record during a capture.  If `waits` is set, waits for the device before the frees.  The caller holds
 * the lock. */
void weir__pending_complete(weir_tensors *t, int waits);
/* Returns 1 if at least one freed block waits for an event that weir has recorded already, else 0.  The caller holds
 * the lock. */
int weir__pending_is_recorded(const weir_tensors *t);
/* Frees a block that belongs to no pool and has no record any more.  The caller does not hold the lock.  If the free
 * fails and may succeed later, weir repeats the free later and counts the block as pending until then. */
weir_status weir__pending_free(weir_tensors *t, uint64_t address, size_t bytes,
                               struct weir_tensor_use home);

#endif
