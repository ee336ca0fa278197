/* SPDX-License-Identifier: MIT */
/* tensors_internal.h: declares the structures of weir_tensors (weir/tensors.h).  A weir_tensors allocates the device
 * memory of a framework's tensors.
 *
 * Locks: the field `lock` guards all fields of struct weir_tensors that are not atomic.  weir holds this lock while
 * it calls functions of the program (the hooks and the callbacks `takes`, `show` and `end`), and while it queries
 * streams or records and queries events.  weir also holds the lock while it frees a block that another stream has
 * used, and while it waits for the device.  There are two exceptions: weir releases the lock when a private memory
 * pool waits for the device in order to grow or to be trimmed, and before each request to the weir_allocator.
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

/* The name of a stream is a 64-bit number that identifies the stream.  A stream handle is not enough: the driver may
 * give the handle of a destroyed stream to a new stream at once.  A name has one of these four values:
 *   handle + 1                     if the stream is never destroyed
 *   WEIR_TENSORS_ID | id           if the driver reports an id for the stream; the driver never uses an id twice
 *   WEIR_TENSORS_CAPTURED | handle if the stream was being captured when weir made the name; a query of the id would
 *                                  have broken the capture
 *   0                              if weir cannot identify the stream */
#define WEIR_TENSORS_ID (UINT64_C(1) << 63)
#define WEIR_TENSORS_CAPTURED (UINT64_C(1) << 62)

/* A stream that uses a block.  `name` is a number that identifies the stream even after its handle is reused. */
struct weir_tensor_use {
    weir_stream stream;
    uint64_t name;
};

/* A request of the program for a block of `bytes` bytes on the stream `home`.  `requested` is the size in bytes
 * before rounding.  When weir has allocated the block, weir stores the block's address in `address`. */
struct weir_tensor_request {
    size_t bytes, requested;
    struct weir_tensor_use home;
    void *note;
    uint64_t address;
};

/* The bookkeeping record of a block that is live, or that the program has freed while other streams still use the
 * block. */
struct weir_tensor {
    uint64_t address;
    size_t bytes, requested;
    struct weir_tensor_use home;   /* the stream for which the block was allocated */
    /* the id of the stream capture in which the block was allocated, or 0 */
    uint64_t capture;
    struct weir_tensor_pool *pool; /* the private memory pool that contains the block, or NULL */
    void *note;
    struct weir_tensor *next;
    /* The streams that use the block.  The stream for which the block was allocated is among them if that stream may
     * be destroyed before the free. */
    struct weir_tensor_use *uses;
    size_t use_count;
    /* the number of CUDA events and stream captures that must end before weir can free the block */
    size_t wait_count;
    int is_freed;
};

struct weir_tensor_segment {
    uint64_t base;
    size_t bytes;
};

/* A private memory pool has two parts.  In a pool whose adjacent segments join, part 0 contains the large blocks and
 * part 1 the small blocks.  In other pools, part 0 contains all blocks. */
enum { WEIR_TENSORS_PARTS = 2 };

struct weir_tensor_part {
    /* the free and used chunks inside the segments; NULL in a checkpoint, where nobody allocates */
    struct weir_placement *placement;
    struct weir_tensor_segment *segments; /* the device memory, sorted by address */
    size_t count, room, bytes;
};

/* A stream that has allocated memory from a private memory pool. */
struct weir_tensor_user {
    /* `placed.id` is the number by which weir identifies the stream */
    struct weir_placement_stream placed;
    weir_stream stream;
    /* The sequence number of the last free before weir found that the driver had given the stream's handle to another
     * stream.  0 as long as the stream may exist. */
    uint64_t ended;
    struct weir_tensor_user *next;
};

/* The reserved bytes of a private memory pool: [0] for all blocks, [1] for small blocks, [2] for large blocks.  When
 * the pool ends, weir keeps this record until the program calls weir_tensors_reset_sums, so that the sums stay
 * complete. */
struct weir_tensor_reserved {
    weir_tensors_id id;
    weir_tensors_figure bytes[3];
    struct weir_tensor_reserved *next;
};

struct weir_tensor_pool {
    weir_tensors_id id;
    struct weir_tensor_pool *next;
    struct weir_tensor_reserved *reserved;
    /* The program's functions that allocate the pool's memory.  If `source.alloc` is NULL, the memory comes from the
     * weir_allocator. */
    weir_tensors_source source;
    int users, is_lendable, is_whole;
    int pins; /* the number of running calls that have released the lock but still use the pool */
    struct weir_tensor_part part[WEIR_TENSORS_PARTS];
    /* the sequence number of the last free before the last user closed the pool */
    uint64_t closed;
    struct weir_tensor_user *streams;
    /* All streams that have been destroyed or that weir cannot identify.  weir gives the memory that they freed to
     * other streams only after a wait for the device. */
    struct weir_placement_stream unknown_streams;
    /* The sequence number of the last free that may have happened inside a stream capture and that weir could not
     * record for its stream. */
    uint64_t last_capture_free;
    /* Set if a stream that has been destroyed or that weir cannot identify may have freed memory of the pool. */
    int has_unordered_frees;
    size_t pending; /* the number of freed blocks of the pool that other streams still use */
    /* A callback of the program that returns 1 if this pool allocates the blocks of the stream.  NULL if the pool
     * receives no requests. */
    int (*accepts)(void *context, weir_stream stream);
    void *context;
    struct weir_tensor_pool *next_routed;
};

/* A freed block cannot be reused before one stream that used the block has finished its work.  This struct links the
 * block to that stream's event. */
struct weir_tensor_wait {
    struct weir_tensor *tensor;
    /* The event that must complete before the free.  NULL if a later event of the stream shows this, too, or if no
     * event is recorded yet because the stream is being captured. */
    CUevent event;
    struct weir_tensor_wait *next;
};

/* The freed blocks that wait for the work of one stream, oldest first.  A queue is never empty.  Its events complete
 * in the order of the list. */
struct weir_tensor_queue {
    struct weir_tensor_use use;
    struct weir_tensor_wait *first, *last;
    /* the first block for which no event has been recorded yet, or NULL */
    struct weir_tensor_wait *first_unrecorded;
    /* the last event that weir recorded on the stream for this queue */
    CUevent newest;
    struct weir_tensor_queue *next;
};

struct weir_tensors {
    weir_allocator *allocator;
    /* The range of addresses in which segments of private memory pools can join.  `pool_range.bytes` is 0 if the engine
     * has no such range. */
    struct weir_extent pool_range;
    weir_tensors_hooks hooks;
    struct weir_bias lock;
    int lock_taken;        /* the value that weir__tensors_unlock() needs to release the lock */
    /* All live blocks: the key is the block's address, the value is a struct weir_tensor *. */
    struct weir_map map;
    struct weir_tensor *free_records;
    struct weir_tensor_pool *pools;
    atomic_int unused_pools; /* the number of private memory pools without users */
    /* the bytes that a trim of unused pools would free, as weir last computed them */
    _Atomic uint64_t idle;
    /* The private memory pools that receive the requests of some streams, newest first. */
    struct weir_tensor_pool *routed;
    /* the reserved bytes of each private memory pool, newest pool first */
    struct weir_tensor_reserved *reserved;
    /* The sequence number of frees: each free of a block in a private memory pool increases the number.  By this
     * number weir decides whether a free happened before a wait for the device. */
    uint64_t sequence;
    /* The streams that are never destroyed; the key is the stream's name, a 64-bit number. */
    struct weir_map permanent_streams;
    /* The driver's id of the legacy default stream.  0 if weir has not called weir_bind for this stream yet. */
    _Atomic uint64_t legacy_id;
    /* Set if weir calls the program's hook `event` for each allocation and free. */
    atomic_int is_watched;
    /* the number of private memory pools that receive the requests of some streams */
    atomic_int route_count;
    struct weir_tensor_queue *queues;
    /* the freed blocks whose free failed; weir repeats the free later */
    struct weir_tensor *failed_frees;
    /* a cache of CUDA events, so that weir need not create an event for each wait */
    struct weir_order events;
    /* set if the program has freed blocks that weir has not freed yet */
    atomic_int has_pending;
    weir_tensors_figures figures; /* the statistics that each request and each free updates */
    /* Freed blocks that other streams still use: [0] all blocks, [1] small blocks, [2] large blocks. */
    struct {
        int64_t blocks, bytes;
        /* the peaks of live blocks, together with freed blocks that other streams still use */
        int64_t peak_blocks, peak_bytes;
        /* the values of `blocks` and `bytes` at the last weir_tensors_reset_sums */
        int64_t blocks_at_reset, bytes_at_reset;
    } pending[3];
    weir_statistics
        stats_at_reset; /* the allocator's statistics at the last weir_tensors_reset_sums */
    /* The reserved bytes at the last weir_tensors_reset_sums, with the memory that private memory pools allocated by
     * the program's functions. */
    int64_t reserved_at_reset;
    int64_t pool_bytes; /* the bytes that private memory pools have reserved from the allocator */
    /* The allocator's reserved bytes outside private memory pools, as weir last reported them to the program by an
     * event. */
    int64_t reported_shared_bytes;
    /* The address in the last event that reported growth of the memory outside private memory pools. */
    uint64_t last_growth_address;
};

/* The values of a map of streams.  WEIR_TENSORS_PERMANENT: the program has promised never to destroy the stream.
 * WEIR_TENSORS_BOUND: weir has also called weir_bind for the stream. */
enum { WEIR_TENSORS_PERMANENT = 1, WEIR_TENSORS_BOUND };

/* WEIR_TENSORS_DEVICES is the largest number of devices.  In private memory pools, block sizes are rounded up to a
 * multiple of WEIR_TENSORS_UNIT bytes. */
enum { WEIR_TENSORS_DEVICES = 64, WEIR_TENSORS_UNIT = 512 };
extern _Atomic(weir_tensors *) weir__tensors_of[WEIR_TENSORS_DEVICES];

/* If the stream is the legacy default stream and weir has called weir_bind for this stream, returns the driver's id
 * of the stream.  Otherwise returns 0. */
static inline uint64_t weir__tensors_legacy_id(const weir_tensors *t, weir_stream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_LEGACY_VALUE
               ? atomic_load_explicit(&t->legacy_id, memory_order_relaxed)
               : 0;
}

/* Returns 1 if `name`, a number that identifies a stream, belongs to a stream that is never destroyed.  Otherwise
 * returns 0. */
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

/* ---- functions of tensor_blocks.c; callers hold the lock ---- */

void weir__tensors_report(weir_tensors *t, int action, uint64_t address, size_t bytes,
                          weir_stream stream, const struct weir_tensor_pool *pool, void *note);
/* If the program has asked for events, reports by an event how many bytes the memory outside private memory pools
 * has grown or shrunk since the last such event. */
void weir__tensors_report_shared(weir_tensors *t, uint64_t address, weir_stream stream, void *note);
/* Allocates at least `count` empty block records in advance, so that a later step cannot fail.  Returns 1 on
 * success, 0 if there is no host memory. */
int weir__tensors_reserve_records(weir_tensors *t, size_t count);
/* Returns an empty block record.  Returns NULL if there is no host memory. */
struct weir_tensor *weir__tensor_new(weir_tensors *t);
/* Makes the record of a freed block free for reuse.  If the program attached a note to the block, first calls the
 * program's hook `drop` for the note. */
void weir__tensor_drop(weir_tensors *t, struct weir_tensor *tensor);
/* Makes the record of a new live block, and adds the block to the map of live blocks and to the statistics.
 * `capture` is the id of the stream capture in which the block was allocated, or 0.  Returns 1 on success, 0 if
 * there is no host memory. */
int weir__tensor_record(weir_tensors *t, const struct weir_tensor_request *request,
                        struct weir_tensor_pool *pool, uint64_t capture);
/* weir__tensors_add() adds a live block to the statistics.  weir__tensors_subtract() subtracts the block when the
 * program frees the block.  Both report an event to the program. */
void weir__tensors_add(weir_tensors *t, const struct weir_tensor *tensor);
void weir__tensors_subtract(weir_tensors *t, const struct weir_tensor *tensor);
/* Adds the stream for which the block was allocated to the streams that use the block.  Does nothing if this stream
 * is never destroyed, or if the block belongs to a private memory pool.  Returns 1 on success, 0 if there is no host
 * memory. */
int weir__tensor_use_alloc_stream(struct weir_tensor *tensor);
/* weir__tensors_count_pending() adds a freed block that other streams still use to the statistics of such blocks if
 * `sign` is 1, and subtracts the block if `sign` is -1.  weir__tensors_report_completed() subtracts the block if
 * needed, and reports to the program that the free has completed. */
void weir__tensors_count_pending(weir_tensors *t, const struct weir_tensor *tensor, int64_t sign);
void weir__tensors_report_completed(weir_tensors *t, const struct weir_tensor *tensor);
/* Describes a live block in the form that weir_tensors_find and weir_tensors_visit return to the program.  `segment`
 * is the contiguous device memory that contains the block. */
weir_tensors_block weir__tensor_block(const struct weir_tensor *tensor,
                                      struct weir_tensor_segment segment);
/* Returns the name of a stream, a number that identifies the stream.  The program has just passed the stream's
 * handle, so the stream exists.  `lasts` is 1 if the program promises never to destroy the stream; then the function
 * does not call the driver. */
uint64_t weir__tensors_name(weir_tensors *t, weir_stream stream, int lasts);
/* Adds `amount` to a statistic and updates its peak.  If `sign` is negative, subtracts `amount`.  `amount` is never
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

/* The weir_tensors of the only device in use.  NULL if no device or several devices are in use.  With several
 * devices, no lock is biased towards one thread: a thread may hold the lock of one device while it waits for this
 * device, and threads of other devices must not wait for that thread. */
extern _Atomic(weir_tensors *) weir__tensors_only;

/* Takes the lock of the weir_tensors.  While a thread holds this lock, the thread may take a lock of the allocator's
 * caches, but not in the other order. */
static inline __attribute__((always_inline)) void weir__tensors_lock(weir_tensors *t) {
    int is_only = atomic_load_explicit(&weir__tensors_only, memory_order_relaxed) != NULL;
    int taken =
        weir__bias_take_at(&t->lock, WEIR_BIAS_OUTER, is_only ? WEIR_BIAS_USER : WEIR_BIAS_GUEST);

    t->lock_taken = taken;
}
/* Tries to take the lock, for a short time only.  Returns 1 on success, 0 if another thread holds the lock for
 * longer. */
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

/* Returns the private memory pool that the program has chosen for the stream's requests, or NULL if there is no such
 * pool.  The caller holds the lock. */
struct weir_tensor_pool *weir__pool_with_route(weir_tensors *t, weir_stream stream);
struct weir_tensor_pool *weir__pool_find(weir_tensors *t, weir_tensors_id id);
/* Takes the lock and returns the private memory pool `id`.  The caller must release the lock.  On failure, returns
 * NULL without the lock and stores the error in *status.  It is a failure if `t` is NULL. */
struct weir_tensor_pool *weir__pool_enter(weir_tensors *t, weir_tensors_id id, weir_status *status);
/* Allocates a block in the pool for the request `request`, and stores the block's address in `request->address`.  If
 * `no_growth` is set, uses only memory that the pool already has.  Releases the lock while it waits for the device or
 * allocates a segment, and then takes the lock again. */
weir_status weir__pool_alloc(weir_tensors *t, struct weir_tensor_pool *pool,
                             struct weir_tensor_request *request, int no_growth);
/* Allocates a block in free memory of any private memory pool for which the program has called
 * weir_tensors_pool_lend.  weir calls this function when the allocator is out of memory.  The caller does not hold
 * the lock.  Returns 1 on success, else 0. */
int weir__pool_borrow(weir_tensors *t, struct weir_tensor_request *request);
/* Frees a block of a private memory pool.  No other stream may still use the block.  The caller holds the lock. */
void weir__pool_free(weir_tensors *t, struct weir_tensor *tensor);
/* Frees the unused segments of the private memory pool `id`.  If `id` is {0, 0}, frees the unused segments of all
 * pools without users.  Returns 1 if at least one segment was freed, else 0.  The caller does not hold the lock. */
int weir__pools_trim(weir_tensors *t, weir_tensors_id id);
/* Destroys the placement (the records of free and used chunks) of one part of the pool, if there is a placement. */
void weir__pool_drop_placement(struct weir_tensor_pool *pool, int part);
/* Returns the bytes that weir__pools_trim() for all pools would free.  The caller holds the lock. */
uint64_t weir__pools_idle(const weir_tensors *t);
/* ---- functions of segments.c; callers hold the lock ---- */

/* Returns the segment of a private memory pool that contains the address, or NULL if no segment of this part of the
 * pool contains the address. */
const struct weir_tensor_segment *weir__part_segment(const struct weir_tensor_part *part,
                                                     uint64_t address);
/* Returns the contiguous device memory around the address: its segment and all segments that are joined to this
 * segment.  A segment of this part of the pool must contain the address. */
struct weir_tensor_segment weir__part_run(const weir_tensors *t,
                                          const struct weir_tensor_part *part, uint64_t address);
/* Creates a placement (the records of free and used chunks) for one part of a private memory pool, without memory.
 * Returns NULL if there is no host memory. */
struct weir_placement *weir__part_placement(const weir_tensors *t, int part);
/* Adds the memory of a segment to the placement `p` (the records of free and used chunks) as free memory.  The
 * caller adds segments in the order of their addresses.  Returns 1 on success, else 0. */
int weir__part_place(const weir_tensors *t, struct weir_placement *p,
                     const struct weir_tensor_part *part, struct weir_tensor_segment segment);
/* Adds a new segment of free memory to one part of a private memory pool.  Returns 1 on success, 0 if there is no
 * host memory. */
int weir__part_add(const weir_tensors *t, struct weir_tensor_part *part,
                   struct weir_tensor_segment segment);
/* Removes an unused segment from one part of a private memory pool and stores the segment in *out, so that the
 * caller can free the segment.  Begins the search above the old value of *out.  The caller has waited for the
 * device.  Returns 1 on success, 0 if there is no unused segment. */
int weir__part_remove_free(const weir_tensors *t, struct weir_tensor_part *part,
                           struct weir_tensor_segment *out);
/* Returns by how much the number of contiguous ranges grows (1, 0 or -1) when the segment is added.  The statistics
 * show joined segments as one segment. */
int weir__part_weight(const weir_tensors *t, const struct weir_tensor_part *part,
                      struct weir_tensor_segment segment);
/* Returns the address at which a new segment would join the last segment of this part of the pool.  Returns 0 if no
 * segment can join the last segment. */
uint64_t weir__part_end(const weir_tensors *t, const struct weir_tensor_part *part);
/* Returns the number of free bytes directly before the address `end` that the stream may use.  `name` identifies the
 * stream. */
size_t weir__part_free_tail(const struct weir_tensor_part *part, uint64_t name, uint64_t end);

/* Returns the part of the pool (small or large blocks) that contains the address.  A segment of the pool must
 * contain the address. */
static inline struct weir_tensor_part *weir__pool_part(struct weir_tensor_pool *pool,
                                                       uint64_t address) {
    return &pool->part[weir__part_segment(&pool->part[1], address) != NULL];
}

/* ---- pending.c ---- */

/* Frees a block as soon as all other streams that use the block have finished.  The caller holds the lock. */
void weir__pending_add(weir_tensors *t, struct weir_tensor *tensor);
/* Frees the blocks that the program freed earlier and that no other stream uses any more.  Also records events that
 * weir could not record while a stream was being captured.  If `waits` is set, first waits for the device.  The
 * caller holds the lock. */
void weir__pending_complete(weir_tensors *t, int waits);
/* Returns 1 if at least one freed block waits for an event that weir has already recorded, else 0.  The caller holds
 * the lock. */
int weir__pending_is_recorded(const weir_tensors *t);
/* Frees a block that belongs to no private memory pool.  The caller has removed the block's record, and does not
 * hold the lock.  If the free fails but may succeed later, weir repeats the free later.  Until then the statistics
 * show the block as freed but still in use. */
weir_status weir__pending_free(weir_tensors *t, uint64_t address, size_t bytes,
                               struct weir_tensor_use home);

#endif
