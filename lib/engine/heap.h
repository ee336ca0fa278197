/* SPDX-License-Identifier: MIT */
/* heap.h: the heap, the part of the mapped and bfc engines that cuts blocks from their memory and orders its reuse.
 *
 * A backing takes memory from the device and releases it: mapped.c in one range of addresses, or bfc.c in regions.
 *
 * Locks.  Each operation takes the heap's lock once, and makes driver calls under this lock.  A thread with this lock
 * may take those of the counters, weir_nodes and weir_address_table.  The heap releases its lock during a wait for the
 * device, and while mapped.c grows in the background.  Only bfc.c waits under the lock, in cuMemFree.
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

/* The parts of the address range, from low to high addresses.  They keep small blocks apart from large ones. */
enum {
    WEIR_HEAP_COMMON, /* for all other requests */
    /* for small requests, and for blocks that will probably still be live at the next trim (see weir__heap_kind()) */
    WEIR_HEAP_SMALL,
    WEIR_HEAP_AT_ADDRESS, /* for requests that name an address */
    WEIR_HEAP_KINDS
};

/* The fields that each request writes lie together, from `lock` to the first fields of `order`. */
struct weir_heap {
    struct weir_engine e;
    const struct weir_backing *backing;
    struct weir_mapped_range *range; /* the address range of the mapped engine, or NULL */
    struct weir_nodes nodes;         /* allocates blocks inside CUDA graphs */
    int kinds;                       /* WEIR_HEAP_KINDS, or 1 in the bfc engine */
    struct weir_lock lock;           /* guards all fields below and those of the backing */
    uint64_t requested, in_use;
    uint64_t requested_peak; /* the peak of `in_use` is e.seen.most_in_use */
    uint64_t total;          /* the bytes of memory that blocks can be placed in */
    /* Reserved bytes where no block can be placed: the driver did not free them, or a thread is mapping them. */
    uint64_t unusable;
    struct weir_order order;
    uint64_t reserved_peak;
    struct weir_placement *placement[WEIR_HEAP_KINDS];
    /* The start of each part of the address range, and the end of the last part.  Only in the mapped engine. */
    uint64_t starts[WEIR_HEAP_KINDS + 1];
    struct weir_growth_cursor cursor;
    /* The bytes of all blocks so far that were quarantined; also the number of the last such free. */
    uint64_t quarantined;
    /* An invented stream.  weir quarantines a block, by a free on this stream, if weir cannot record the free or an
     * event after the free on the real stream. */
    struct weir_placement_stream quarantine;
    uint64_t steals; /* the number of requests that reused memory freed by another stream */
};

/* A heap's source of memory.  The heap holds its lock in all calls but `close`; `grow` and `shrink` may unlock it. */
struct weir_backing {
    struct weir_placement_rule rule;
    size_t small;      /* the largest size of a small request */
    size_t unit;       /* memory grows and shrinks in multiples of this size */
    size_t step_bytes; /* the bytes of one step of background growth, or 0 for none */
    unsigned traits;   /* the traits WEIR_ENGINE_... of its engine */
    void (*close)(struct weir_heap *h);
    /* Takes memory from the device, or moves idle memory, for a request that found no free memory for its stream. */
    weir_status (*make_room)(struct weir_heap *h, struct weir_request *r);
    /* Grows reserved memory to `reserve` bytes, a step towards `goal`, and adds the growth to *got. */
    weir_status (*grow)(struct weir_heap *h, uint64_t reserve, uint64_t goal, int cause,
                        size_t *got);
    /* Releases idle memory until at most trim->keep bytes are reserved.  Waits only in the mode WEIR_TRIM_WAIT. */
    weir_status (*shrink)(struct weir_heap *h, const struct weir_trim *trim);
    /* Returns the largest request that would certainly succeed with new memory, now or after OOM recovery. */
    size_t (*largest)(struct weir_heap *h, const struct weir_survey *asked);
};

/* ---- functions of heap.c that backings call ---- */

/* Opens a heap without memory and addresses.  Its source of memory, `backing`, adds addresses before any request. */
weir_status weir__heap_open(const struct weir_engine *setup, const struct weir_backing *backing,
                            struct weir_heap **out);
/* Frees all host memory of a heap, after backing->close has released all device memory. */
void weir__heap_drop(struct weir_heap *h);

void weir__heap_set_total(struct weir_heap *h, uint64_t total);

/* Counts a request that found no free memory for its stream.  Each stream's next call then records an event. */
void weir__heap_count_lack(struct weir_heap *h);
/* Queries up to `most` events, without a wait.  Returns 1 if freed memory has become usable on all streams, else 0. */
int weir__heap_query_events(struct weir_heap *h, size_t most);
/* Makes all freed memory available to all streams, after a wait for the device. */
void weir__heap_observe_all(struct weir_heap *h);
/* Waits for the device if `must` is set or memory was freed without an event.  Releases the heap's lock during
 * the wait.  Afterwards, all memory that was freed before the wait is available to all streams. */
weir_status weir__heap_wait(struct weir_heap *h, int must);
/* Returns 1 if other streams may wait (cuStreamWaitEvent) for the free number `sequence` on the stream `id`, else 0. */
int weir__heap_may_wait(const struct weir_heap *h, uint64_t id, uint64_t sequence);

static inline uint64_t weir__heap_reserve(const struct weir_heap *h) {
    return h->total + h->unusable;
}

/* Returns 1 if any growth would exceed the release threshold, else 0. */
static inline int weir__heap_is_above(const struct weir_heap *h) {
    return weir__heap_reserve(h) >= h->e.threshold;
}

/* Returns 1 if a block of this size will probably stay live until the next trim, else 0.  Mapped engine only. */
int weir__mapped_may_last(const struct weir_heap *h, size_t bytes);
/* Returns 1 if weir may map memory for a large request in the part WEIR_HEAP_SMALL, else 0.  Mapped engine only. */
int weir__mapped_grows_small(const struct weir_heap *h);

/* Returns the part of the address range (WEIR_HEAP_...) for a request of this size. */
static inline int weir__heap_kind(const struct weir_heap *h, size_t bytes) {
    return bytes <= h->backing->small ||
                   (h->range && weir__heap_is_above(h) && weir__mapped_may_last(h, bytes))
               ? WEIR_HEAP_SMALL
               : WEIR_HEAP_COMMON;
}

static inline struct weir_placement *weir__heap_placement(const struct weir_heap *h,
                                                          uint64_t address) {
    int kind = h->kinds - 1;

    while (kind > 0 && address < h->starts[kind])
        kind--;
    return h->placement[kind];
}

/* Returns the bytes by which reserved memory may still grow, within the limit and the device's memory. */
static inline size_t weir__heap_room(const struct weir_heap *h) {
    return (size_t)weir__size_subtract(
        weir__size_smaller(weir__engine_limit(&h->e), h->e.device->total), weir__heap_reserve(h));
}

/* Returns the limit for a growth policy.  A growth callback of the program gets SIZE_MAX if there is no limit. */
static inline size_t weir__heap_growth_limit(const struct weir_heap *h) {
    return weir__engine_limit(&h->e) == UINT64_MAX && h->e.options->growth == WEIR_GROWTH_CALLBACK
               ? SIZE_MAX
               : (size_t)h->total + weir__heap_room(h);
}

static inline weir_status weir__heap_full_status(const struct weir_heap *h) {
    return weir__without_driver(weir__engine_limit(&h->e) < h->e.device->total ? WEIR_E_LIMIT
                                                                               : WEIR_E_NO_MEMORY);
}

static inline weir_status weir__heap_status(int placed) {
    if (placed == WEIR_PLACEMENT_OK)
        return WEIR_OK;
    return weir__without_driver(placed == WEIR_PLACEMENT_NO_MEMORY ? WEIR_E_HOST_MEMORY
                                                                   : WEIR_E_NO_MEMORY);
}

static inline void weir__heap_update_peak(struct weir_heap *h) {
    h->reserved_peak = weir__size_larger(h->reserved_peak, weir__heap_reserve(h));
}

/* ---- functions of mapped.c that the heap calls ---- */

/* If another thread is mapping memory, waits for that thread without the heap's lock, and returns 1; else returns 0. */
int weir__mapped_await(struct weir_heap *h);
/* Places a block at the address that the request names, and maps memory there.  The size is a multiple of 2 MiB. */
weir_status weir__mapped_place_at(struct weir_heap *h, struct weir_request *r,
                                  struct weir_placement_stream *on,
                                  struct weir_placement_block *out);
/* Changes a device's access to all memory, except at old addresses of moved memory.  Unlocks the heap for a while. */
weir_status weir__mapped_allow(struct weir_heap *h, const CUmemAccessDesc *access);
/* Calls visit->show for each physical allocation, and returns their number. */
int weir__mapped_units(const struct weir_heap *h, const struct weir_visit *visit);

#endif
