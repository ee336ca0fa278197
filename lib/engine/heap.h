/* SPDX-License-Identifier: MIT */
/* heap.h: the heap, the part of an engine that cuts blocks from its own memory and keeps stream order.
 *
 * placement.h chooses the addresses of blocks.  stream_order.h finds out which frees of each stream have completed.  A
 * backing takes memory from the device and releases it.  There are two backings: mapped.c uses one range of addresses,
 * and bfc.c uses regions at any address, as TensorFlow's and XLA's BFC allocators do.
 *
 * Stream order.  A freed block has the id of a stream and a sequence number.  This stream may reuse the memory at
 * once.  Other streams may reuse it, and it may coalesce with their memory, only after all frees of the stream up to
 * this number have completed.  If other streams use a block, too (weir_use), its free is deferred: the block keeps its
 * address until events on all these streams have completed.  If a free can have no event, or there is no host memory
 * for its record, the memory is quarantined: no stream may reuse it before a wait for the device.
 *
 * A trim waits for the device in two cases: if no event covers some of the frees, or if the last use of the backing's
 * idle memory has not completed.  The trim releases the lock during the wait.  Only bfc.c waits under the lock, in
 * cuMemFree.
 *
 * Locks.  One lock guards the whole heap, and each operation takes this lock once.  A thread that holds the lock makes
 * the driver calls for events, queries, growth and moves.  It may also take the locks of the counters, of the nodes
 * and of the graph table.  A backing that grows while other requests run releases the lock meanwhile.
 *
 * This file must not depend on names of settings or on the layers above.
 */
#ifndef WEIR_HEAP_H
#define WEIR_HEAP_H

#include "base/lock.h"
#include "base/size.h"
#include "config/growth_policy.h"
#include "engine/engine.h"
#include "engine/driver_blocks.h"
#include "engine/stream_order.h"
#include "placement/placement.h"

struct weir_backing;
struct weir_mapped_range;

/* The parts of the engine's address range, in the order of addresses.  Each part, called a kind of addresses, is for
 * one kind of requests, so that small blocks do not lie between large blocks. */
enum {
    /* For all requests that have no other kind. */
    WEIR_HEAP_COMMON,
    /* For small requests; above the release threshold, also for blocks that may last. */
    WEIR_HEAP_SMALL,
    WEIR_HEAP_AT_ADDRESS, /* for requests that name an address */
    WEIR_HEAP_KINDS
};

/* An engine that cuts blocks from its own memory.  The fields that each request writes lie between `lock` and the
 * first fields of `order`, so that they share few cache lines. */
struct weir_heap {
    struct weir_engine e;
    const struct weir_backing *backing;
    /* The range of addresses of the mapped engine, or NULL in the bfc engine. */
    struct weir_mapped_range *range;
    struct weir_nodes nodes; /* creates memory nodes of graphs, for requests on captured streams */
    /* The number of parts into which the address range is divided by the size of requests: WEIR_HEAP_KINDS in the
     * mapped engine, 1 in the bfc engine. */
    int kinds;
    struct weir_lock lock; /* guards all fields below and the fields of the backing */
    uint64_t requested, in_use;
    uint64_t requested_peak, in_use_peak;
    uint64_t total; /* the bytes of mapped memory that blocks can be placed in */
    /* Bytes of reserved memory where no block can be placed, because the driver refused to free the memory or a thread
     * is mapping it. */
    uint64_t unusable;
    struct weir_order order;
    uint64_t reserved_peak;
    struct weir_placement *placement[WEIR_HEAP_KINDS];
    /* The first address of each kind of addresses, and the end of the range.  Used only in the mapped engine. */
    uint64_t starts[WEIR_HEAP_KINDS + 1];
    struct weir_growth_cursor cursor;
    /* The sum of the bytes that were ever quarantined, that is, freed without an event.  The sum plus 1 is the
     * sequence number of the next quarantined free. */
    uint64_t quarantined;
    /* A stream record that stands for all quarantined frees.  No real stream has this record, so no stream may reuse
     * their memory before a wait for the device. */
    struct weir_placement_stream quarantine;
    uint64_t steals; /* the number of requests that reused memory which another stream had freed */
};

/* A backing: the part of a heap that takes memory from the device and releases it.  All its functions except `close`
 * are called under the heap's lock.  `grow` and `shrink` may release the lock for a while. */
struct weir_backing {
    struct weir_placement_rule rule;
    size_t small;      /* the largest size of a small request */
    size_t unit; /* the backing's memory grows and shrinks in multiples of this number of bytes */
    /* the bytes of one step of background growth, or 0 if there is no background growth */
    size_t step_bytes;
    unsigned traits; /* the traits WEIR_ENGINE_... of an engine with this backing */
    void (*close)(struct weir_heap *h);
    /* Takes memory from the device for a request that does not fit into free memory. */
    weir_status (*make_room)(struct weir_heap *h, struct weir_request *r);
    /* Grows the reserved memory to `reserve` bytes, as one step towards `goal` bytes.  Adds the bytes of the growth to
     * *got.  Returns OK if all bytes were added, even if another thread has released memory since.  `cause` is the
     * reason for the growth (WEIR_EVENT_...), for the allocator's list of events. */
    weir_status (*grow)(struct weir_heap *h, uint64_t reserve, uint64_t goal, int cause,
                        size_t *got);
    /* Releases idle memory until at most trim->keep bytes are reserved.  In mode FULLY the backing waits for the
     * device if necessary.  In other modes it releases only memory whose frees are known to have completed. */
    weir_status (*shrink)(struct weir_heap *h, const struct weir_trim *trim);
    /* Returns the size of the largest request that would certainly succeed with new memory, now or after OOM recovery.
     * */
    size_t (*largest)(struct weir_heap *h, const struct weir_survey *asked);
};

/* ---- for backings: heap.c ---- */

/* Opens a heap without memory and without addresses.  The backing must add addresses before the first request. */
weir_status weir__heap_open(const struct weir_engine *setup, const struct weir_backing *backing,
                            struct weir_heap **out);
/* Frees all host memory of a heap, including the records of live blocks.  The caller has closed the backing, which has
 * released the device memory. */
void weir__heap_drop(struct weir_heap *h);
/* Allocates host memory for the records of many blocks in advance, so that later requests need not allocate it. */
void weir__heap_reserve_records(struct weir_heap *h);

/* Sets the heap's memory for blocks to `total` bytes, and publishes the new reserved memory to other threads. */
void weir__heap_set_total(struct weir_heap *h, uint64_t total);
/* Adds the address range of the mapped engine to the heap, as unmapped ranges.  h->starts has the bounds of the parts.
 * Returns a result of placement.h. */
int weir__heap_add_ranges(struct weir_heap *h);

/* Records that a request found no free memory for its stream.  Each stream then records an event for its frees in its
 * next call, so that other streams can reuse the memory earlier. */
void weir__heap_count_lack(struct weir_heap *h);
/* Queries up to `most` events of streams, and the events of up to `most` deferred frees (frees that wait for several
 * streams), without a wait.  Returns 1 if a free has completed, else 0. */
int weir__heap_query_events(struct weir_heap *h, size_t most);
/* Makes all freed memory available to all streams.  The caller has waited until the device has finished all work. */
void weir__heap_observe_all(struct weir_heap *h);
/* Waits for the device if `must` is set, or if some frees have no event.  Releases the heap's lock, which the caller
 * holds, during the wait, so that other threads can use the heap.  After the wait, all frees from before the wait are
 * available to all streams. */
weir_status weir__heap_wait(struct weir_heap *h, int must);
/* Returns 1 if weir may make another stream wait for the free of the stream `id` with this sequence number, else 0.
 * The setting internal_dependencies must be on, and an event must cover the free. */
int weir__heap_may_wait(const struct weir_heap *h, uint64_t id, uint64_t sequence);

static inline uint64_t weir__heap_reserve(const struct weir_heap *h) {
    return h->total + h->unusable;
}

/* Returns 1 if any growth would make the reserved memory exceed the release threshold, else 0. */
static inline int weir__heap_is_above(const struct weir_heap *h) {
    return weir__heap_reserve(h) >= h->e.threshold;
}

/* For the mapped engine.  Returns 1 if a block of this size may still be live at the next trim above the release
 * threshold, else 0.  Before the first such trim, weir assumes that every block may be live then. */
int weir__mapped_may_last(const struct weir_heap *h, size_t bytes);
/* For the mapped engine.  Returns 1 if a large request may add memory to the SMALL addresses.  Returns 0 if the budget
 * is used up before the first trim above the release threshold. */
int weir__mapped_grows_small(const struct weir_heap *h);

/* Returns the kind of addresses for a request of this size. */
static inline int weir__heap_kind(const struct weir_heap *h, size_t bytes) {
    return bytes <= h->backing->small ||
                   (h->range && weir__heap_is_above(h) && weir__mapped_may_last(h, bytes))
               ? WEIR_HEAP_SMALL
               : WEIR_HEAP_COMMON;
}

/* Returns the placement, the record of used and free addresses, for the part of the range that contains the address.
 * */
static inline struct weir_placement *weir__heap_placement(const struct weir_heap *h,
                                                          uint64_t address) {
    int kind = h->kinds - 1;

    while (kind > 0 && address < h->starts[kind])
        kind--;
    return h->placement[kind];
}

/* Returns the number of bytes by which the limit and the device still allow reserved memory to grow. */
static inline size_t weir__heap_room(const struct weir_heap *h) {
    return (size_t)weir__size_subtract(
        weir__size_smaller(weir__engine_limit(&h->e), h->e.device->total), weir__heap_reserve(h));
}

/* Returns the limit of reserved memory for a growth policy.  If there is no limit, a growth callback of the program
 * gets SIZE_MAX. */
static inline size_t weir__heap_growth_limit(const struct weir_heap *h) {
    return weir__engine_limit(&h->e) == UINT64_MAX && h->e.options->growth == WEIR_GROWTH_CALLBACK
               ? SIZE_MAX
               : (size_t)h->total + weir__heap_room(h);
}

/* Returns the status for a request that found no memory: E_LIMIT if the limit is below the device's memory, else
 * E_NO_MEMORY. */
static inline weir_status weir__heap_full_status(const struct weir_heap *h) {
    return weir__without_driver(weir__engine_limit(&h->e) < h->e.device->total ? WEIR_E_LIMIT
                                                                               : WEIR_E_NO_MEMORY);
}

/* Converts a result of placement.h into a status. */
static inline weir_status weir__heap_status(int placed) {
    if (placed == WEIR_PLACEMENT_OK)
        return WEIR_OK;
    return weir__without_driver(placed == WEIR_PLACEMENT_NO_MEMORY ? WEIR_E_HOST_MEMORY
                                                                   : WEIR_E_NO_MEMORY);
}

/* Updates the peak of reserved memory after growth. */
static inline void weir__heap_update_peak(struct weir_heap *h) {
    h->reserved_peak = weir__size_larger(h->reserved_peak, weir__heap_reserve(h));
}

/* ---- for heaps with a range: mapped.c ---- */

/* Waits for memory that another thread is mapping in the background, after a request did not fit.  May release the
 * lock for a while.  Returns 1 if the request may fit now, else 0. */
int weir__mapped_await(struct weir_heap *h);
/* Places a block at the address that the request names, and maps memory there.  The request's size is a multiple of a
 * page. */
weir_status weir__mapped_place_at(struct weir_heap *h, struct weir_request *r,
                                  struct weir_placement_stream *on,
                                  struct weir_placement_block *out);
/* Changes a device's access to all present and future memory of the heap.  May release the lock for a while. */
weir_status weir__mapped_allow(struct weir_heap *h, const CUmemAccessDesc *access);
/* Calls visit->show for each physical allocation, since the engine can only release one as a whole.  Returns the
 * number of physical allocations. */
int weir__mapped_units(const struct weir_heap *h, const struct weir_visit *visit);

#endif
