/* SPDX-License-Identifier: MIT */
/* reserve.h: an allocator's reserved memory: its engine, its limit, its growth, and its release.
 *
 * A request that the caches cannot serve calls weir__reserve_alloc, or OOM recovery if it is larger than the device.
 *
 * This file must not know any single engine, caches, the public API or settings' names.
 */
#ifndef WEIR_RESERVE_H
#define WEIR_RESERVE_H

#include "engine/driver_blocks.h"
#include "reserve/goal.h"
#include "reserve/limit.h"

/* Makes other allocators of the process release idle memory until they have released `most' bytes, if together they
 * have `least' bytes.  Waits only if `may_wait' is set.  Returns the released bytes.  The caller holds no lock. */
typedef uint64_t weir__lend_device_fn(void *context, uint64_t least, uint64_t most, int may_wait);

/* Flushes the idle memory of all layers between the engine and the program to the engine, behind a wait for the device.
 * The caller holds no lock. */
typedef weir_status weir__flush_fn(void *context);

/* Frees memory that the layer above the allocator holds and no longer needs: blocks whose uses on other streams have
 * completed, and with `may_wait' also memory that is idle after a wait for the device.  Sets *pending to an upper bound
 * of the bytes whose frees are still pending.  Returns 1 if memory was freed, else 0.  The caller holds no lock. */
typedef int weir__reclaim_fn(void *context, int may_wait, uint64_t *pending);
/* Returns the bytes that a call of `reclaim' would free after a wait for the device.  The caller holds no lock. */
typedef uint64_t weir__reclaimable_fn(void *context);

/* The allocator sets all fields before the first request, but for atomic fields and fields with locks. */
struct weir_reserve {
    struct weir_device *device;
    const weir_options *options;
    struct weir_engine *engine;
    struct weir_graph_table graphs;
    struct weir_event_sink events;
    struct weir_limit limit;
    struct weir_goal goal;
    weir__lend_device_fn *lend_device; /* calls other allocators, or NULL */
    void *lend_context;
    weir__flush_fn *flush; /* flushes the caches and the guard, or NULL */
    void *flush_context;
    weir__reclaim_fn *_Atomic reclaim; /* calls the layer above; set once, or NULL */
    weir__reclaimable_fn *reclaimable; /* set before `reclaim' */
    void *reclaim_context;             /* set before `reclaim' */
};

/* Calls `reclaim' (weir__reclaim_fn).  Returns 0 if there is no layer above. */
int weir__reserve_reclaim(struct weir_reserve *v, int may_wait, uint64_t *pending);
/* Returns the bytes that the layer above would free after a wait for the device.  Frees nothing, since the thread that
 * publishes figures calls this function. */
uint64_t weir__reserve_reclaimable(struct weir_reserve *v);

/* Tries a request once, without recovery.  If the engine fails, r->result is the result of the driver. */
weir_status weir__reserve_try(struct weir_reserve *v, struct weir_request *r);
/* Serves a request from idle memory of the engine, by growth, or by OOM recovery.  After a success, adjusts background
 * growth, the limit, decay and memory pressure.  If OOM recovery fails, writes the figures to *r->refused, unless
 * r->refused is NULL.  A request with r->at tries the engine once.  The request may be for a block of a graph
 * (WEIR_REQUEST_CAPTURED). */
weir_status weir__reserve_alloc(struct weir_reserve *v, struct weir_request *r);

#endif
