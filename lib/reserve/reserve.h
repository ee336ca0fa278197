/* SPDX-License-Identifier: MIT */
/* reserve.h: an allocator's reserved memory: its engine, its limit, its growth, and how memory goes back.
 *
 * A request that the caches cannot serve goes through weir__reserve_alloc, unless it is for more memory than the device
 * has; then it goes straight to OOM recovery.
 *
 * This file must not know any single engine, caches, the public API or settings' names.
 */
#ifndef WEIR_RESERVE_H
#define WEIR_RESERVE_H

#include "engine/driver_blocks.h"
#include "reserve/goal.h"
#include "reserve/limit.h"

/* Releases idle memory of the process's other allocators until `most' bytes have gone, if together they have `least'.
 * Waits for nothing unless `may_wait' is set.  Returns the bytes that went.  The caller holds no lock. */
typedef uint64_t weir__lend_device_fn(void *context, uint64_t least, uint64_t most, int may_wait);

/* Flushes all idle memory of the layers between the engine and the program to the engine, behind a wait for the device.
 * The caller holds no lock. */
typedef weir_status weir__flush_fn(void *context);

/* Frees memory that the layer above the allocator holds and no longer needs: blocks whose other uses have completed,
 * and with `may_wait' also memory that is idle after a wait for the device.  Writes an upper bound of the bytes of
 * frees that are still pending.  Returns 1 if it has freed something, else 0.  The caller holds no lock. */
typedef int weir__reclaim_fn(void *context, int may_wait, uint64_t *pending);
/* Returns the bytes that a reclaim would free after a wait for the device.  The caller holds no lock. */
typedef uint64_t weir__reclaimable_fn(void *context);

/* The allocator sets all fields before the first request, unless they are atomic or have locks. */
struct weir_reserve {
    struct weir_device *device;
    const weir_options *options;
    struct weir_engine *engine;
    struct weir_graph_table graphs;
    struct weir_event_sink events;
    struct weir_limit limit;
    struct weir_goal goal;
    weir__flush_fn *flush_caches; /* for idle memory of the caches, or NULL */
    void *caches;
    weir__lend_device_fn *lend_device; /* for other allocators, or NULL */
    void *lend_context;
    weir__flush_fn *flush; /* for the caches and the guard, or NULL */
    void *flush_context;
    weir__reclaim_fn *_Atomic reclaim; /* for the layer above, set once, or NULL */
    weir__reclaimable_fn *reclaimable; /* set before `reclaim' */
    void *reclaim_context;             /* set before `reclaim' */
};

/* Calls `reclaim' (weir__reclaim_fn), or returns 0 if there is no layer above. */
int weir__reserve_reclaim(struct weir_reserve *v, int may_wait, uint64_t *pending);
/* Returns the bytes that the layer above would free after a wait for the device.  Frees nothing, since the thread that
 * publishes figures calls it. */
uint64_t weir__reserve_reclaimable(struct weir_reserve *v);

/* Serves a request: from idle memory of the engine, by growth, or by OOM recovery.  After a success it also looks after
 * background growth, the limit, decay and memory pressure.  If OOM recovery fails, *r->refused, if not NULL, has the
 * figures.  A request with r->at tries the engine once.  The request may be for a block of a graph
 * (WEIR_REQUEST_CAPTURED). */
weir_status weir__reserve_alloc(struct weir_reserve *v, struct weir_request *r);

#endif
