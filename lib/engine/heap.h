/* SPDX-License-Identifier: MIT */
/* heap.h: an engine that cuts blocks from its own memory and keeps stream order.
 *
 * placement.h decides where a block goes, and stream_order.h knows which frees of each stream the host has observed.
 * A backing gets memory from the device and releases it: mapped.c (one range of addresses) or bfc.c (regions at any
 * address, as in TensorFlow's and XLA's BFC allocator).
 *
 * Stream order.  A freed block keeps (stream id, sequence).  It serves its own stream at once.  It serves other
 * streams, and coalesces with their memory, only once the host has observed its stream past the sequence.  A block that
 * other streams use too (weir_use) is deferred at its free: it stays placed until events on all these streams have
 * completed.  A free that has no event, or no host memory for its record, is quarantined: its memory serves no stream
 * before a wait for the device.
 *
 * A trim waits for the device if no event covers some of the frees, or if the backing has idle memory whose last use
 * has not completed.  The trim releases the lock during the wait.  Only bfc.c waits under the lock, in cuMemFree.
 *
 * Locks: one lock guards everything here, and is taken once for each operation.  Driver calls for events, queries,
 * growth and moves run under it, and the locks of the counters, of the nodes and of the graph table are taken under it.
 * A backing that grows beside requests releases the lock meanwhile.
 *
 * This file must not know settings' names or the layers above.
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

/* The kinds of addresses.  Each kind serves some requests.  The order of the kinds is the order of their addresses. */
enum {
    WEIR_HEAP_COMMON, /* requests that are not small; all requests if there is one kind */
    WEIR_HEAP_SMALL,  /* small requests */
    WEIR_HEAP_APART,  /* requests that name an address */
    WEIR_HEAP_KINDS
};

/* A heap engine.  The fields that each request writes lie between `lock` and the first fields of `order`, so that they
 * share few cache lines. */
struct weir_heap {
    struct weir_engine e;
    const struct weir_backing *backing;
    struct weir_mapped_range *range; /* the range of mapped.c, or NULL */
    struct weir_nodes nodes;         /* the memory nodes of graphs */
    int kinds;                       /* WEIR_HEAP_KINDS with a range, else 1 */
    struct weir_lock lock;           /* guards all fields below, and the backing's own fields */
    uint64_t requested, in_use;
    uint64_t requested_peak, in_use_peak;
    uint64_t total; /* bytes of memory in all placements */
    /* Bytes of reserved memory that lies in no placement: the driver refused to free it, or it is being mapped. */
    uint64_t kept;
    struct weir_order order;
    uint64_t reserved_peak;
    struct weir_placement *placement[WEIR_HEAP_KINDS];
    /* With a range: the first address of each kind, and the end of the range. */
    uint64_t starts[WEIR_HEAP_KINDS + 1];
    struct weir_growth_cursor cursor;
    /* Bytes quarantined so far.  The sequence of the next quarantined free is this number plus 1. */
    uint64_t quarantined;
    struct weir_placement_stream quarantine; /* the stream record that quarantined frees have */
    uint64_t steals; /* requests served by memory that other streams freed */
};

/* The functions and constants of a backing.  All functions but close are called under the heap's lock; `grow` and
 * `shrink` may release it for a while. */
struct weir_backing {
    struct weir_placement_rule rule;
    size_t small;      /* Requests of up to `small` bytes have their own addresses. */
    size_t unit;       /* the unit of the memory that the backing takes */
    size_t step_bytes; /* the engine's step_bytes */
    unsigned traits;   /* the engine's traits */
    void (*close)(struct weir_heap *h);
    /* Makes room for a request that does not fit. */
    weir_status (*make_room)(struct weir_heap *h, struct weir_request *r);
    /* Grows until `reserve` bytes are reserved.  Adds the bytes of the growth to *got.  Returns OK if all were added,
     * even if another thread has released some since.  `goal` and `cause` are those of an engine's `grow`. */
    weir_status (*grow)(struct weir_heap *h, uint64_t reserve, uint64_t goal, int cause,
                        size_t *got);
    /* Releases idle memory until at most `keep` bytes stay reserved.  In mode FULLY the backing waits for the device if
     * necessary.  In other modes it releases only memory whose frees are observed to be complete. */
    weir_status (*shrink)(struct weir_heap *h, const struct weir_trim *trim);
    /* Returns the bytes of the largest request that `make_room` would surely serve, now or after OOM recovery. */
    size_t (*largest)(struct weir_heap *h, const struct weir_survey *asked);
};

/* ---- for backings: heap.c ---- */

/* Opens a heap without memory.  The heap can serve requests once the backing has prepared its addresses. */
weir_status weir__heap_open(const struct weir_engine *setup, const struct weir_backing *backing,
                            struct weir_heap **out);
/* Frees all host memory of a heap whose backing is closed.  Live and deferred blocks are forgotten. */
void weir__heap_drop(struct weir_heap *h);
/* Allocates host memory for the records of blocks beforehand. */
void weir__heap_stock(struct weir_heap *h);

/* Records that the placements have `total` bytes of memory now. */
void weir__heap_count(struct weir_heap *h, uint64_t total);
/* Adds the unmapped ranges between the addresses h->starts.  Returns a placement's result. */
int weir__heap_add_ranges(struct weir_heap *h);

/* Records that a request lacked memory: every stream then records an event for its frees at its next call. */
void weir__heap_dry(struct weir_heap *h);
/* Queries up to `most` events and fences, without a wait.  Returns 1 if one has completed, else 0. */
int weir__heap_look_around(struct weir_heap *h, size_t most);
/* Makes all freed memory available to all streams, since the device has finished all work. */
void weir__heap_observe_all(struct weir_heap *h);
/* Waits for the device if `must` is set, if there are frees that no event covers, or if memory is quarantined.  The
 * caller holds the heap's lock, which this function releases during the wait, so that other calls go on.  Afterwards
 * observes all frees that came before the wait. */
weir_status weir__heap_wait(struct weir_heap *h, int must);
/* Returns 1 if another stream may wait for the free of the stream `id` with `sequence`, that is, if the setting
 * internal_dependencies is on and an event covers that free.  Returns 0 otherwise. */
int weir__heap_may_follow(const struct weir_heap *h, uint64_t id, uint64_t sequence);

static inline uint64_t weir__heap_reserve(const struct weir_heap *h) {
    return h->total + h->kept;
}

/* Returns the kind of addresses that a request of this size gets. */
static inline int weir__heap_kind(const struct weir_heap *h, size_t bytes) {
    return bytes <= h->backing->small ? WEIR_HEAP_SMALL : WEIR_HEAP_COMMON;
}

/* Returns the placement whose addresses begin at or below the address. */
static inline struct weir_placement *weir__heap_placement(const struct weir_heap *h,
                                                          uint64_t address) {
    int kind = h->kinds - 1;

    while (kind > 0 && address < h->starts[kind])
        kind--;
    return h->placement[kind];
}

/* Returns the bytes by which reserved memory may still grow. */
static inline size_t weir__heap_room(const struct weir_heap *h) {
    return (size_t)weir__size_less(
        weir__size_smaller(weir__engine_limit(&h->e), h->e.device->total), weir__heap_reserve(h));
}

/* Returns the limit that a growth policy gets.  A callback of the program gets SIZE_MAX if there is no limit. */
static inline size_t weir__heap_growth_limit(const struct weir_heap *h) {
    return weir__engine_limit(&h->e) == UINT64_MAX && h->e.options->growth == WEIR_GROWTH_CALLBACK
               ? SIZE_MAX
               : (size_t)h->total + weir__heap_room(h);
}

/* Returns the status of a request for which the limit or the device has no memory. */
static inline weir_status weir__heap_is_full(const struct weir_heap *h) {
    return weir__without_driver(weir__engine_limit(&h->e) < h->e.device->total ? WEIR_E_LIMIT
                                                                               : WEIR_E_NO_MEMORY);
}

/* Returns the status of a placement's result. */
static inline weir_status weir__heap_status(int placed) {
    if (placed == WEIR_PLACEMENT_OK)
        return WEIR_OK;
    return weir__without_driver(placed == WEIR_PLACEMENT_NO_MEMORY ? WEIR_E_HOST_MEMORY
                                                                   : WEIR_E_NO_MEMORY);
}

/* Updates the peak of reserved memory after growth. */
static inline void weir__heap_grown(struct weir_heap *h) {
    h->reserved_peak = weir__size_larger(h->reserved_peak, weir__heap_reserve(h));
}

/* ---- for heaps with a range: mapped.c ---- */

/* Waits for memory that another thread is adding, after a request did not fit; may release the lock for a while.
 * Returns 1 if the request may fit now, else 0. */
int weir__mapped_await(struct weir_heap *h);
/* Places a request that names an address; its size is a multiple of a page. */
weir_status weir__mapped_place_at(struct weir_heap *h, struct weir_request *r,
                                  struct weir_placement_stream *on,
                                  struct weir_placement_block *out);
/* Changes a device's access, with the results of an engine's `allow`; may release the lock for a while. */
weir_status weir__mapped_allow(struct weir_heap *h, const CUmemAccessDesc *access);
/* Shows each physical allocation to `visit`, for WEIR_VISIT_WHOLES (engine.h).  Returns their number. */
int weir__mapped_wholes(const struct weir_heap *h, const struct weir_visit *visit);

#endif
