/* SPDX-License-Identifier: MIT */
/* reserve.h: an allocator's reserved memory: the engine, the limit, growth and release.
 *
 * A request that the caches cannot serve calls weir__reserve_alloc, or OOM recovery if the request is larger than
 * the device.
 *
 * This file must not depend on a particular engine, on caches, on the public API or on names of settings.
 */
#ifndef WEIR_RESERVE_H
#define WEIR_RESERVE_H

#include "engine/driver_blocks.h"
#include "reserve/goal.h"
#include "reserve/limit.h"

/* Makes other allocators of this process release idle memory until they have released `most' bytes.  Does nothing if
 * all of them together have fewer than `least' idle bytes.  Waits for the device only if `may_wait' is set.  Returns
 * the number of released bytes.  The caller holds no lock. */
typedef uint64_t weir__lend_device_fn(void *context, uint64_t least, uint64_t most, int may_wait);

/* Flushes the idle memory of all layers between the program and the engine to the engine, after a wait for the
 * device.  The caller holds no lock. */
typedef weir_status weir__flush_fn(void *context);

/* Frees memory that the layer above the allocator holds and no longer needs.  Such memory is in blocks whose work on
 * other streams has completed.  If `may_wait' is set, the function also frees memory that is idle after a wait for
 * the device.  Sets *pending to an upper bound of the bytes whose frees are still pending.  Returns 1 if memory was
 * freed, else 0.  The caller holds no lock. */
typedef int weir__reclaim_fn(void *context, int may_wait, uint64_t *pending);
/* Returns the number of bytes that a call of `reclaim' would free after a wait for the device.  The caller holds no
 * lock. */
typedef uint64_t weir__reclaimable_fn(void *context);

/* The parts of an allocator that decide about reserved memory.  The allocator sets all fields before the first
 * request.  Only atomic fields and fields with a lock change later. */
struct weir_reserve {
    struct weir_device *device;
    const weir_options *options;
    struct weir_engine *engine;
    struct weir_graph_table graphs;
    struct weir_event_sink events;
    struct weir_limit limit;
    struct weir_goal goal;
    weir__lend_device_fn *lend_device; /* calls the other allocators of this process, or is NULL */
    void *lend_context;
    weir__flush_fn *flush; /* flushes the caches and the guard, or is NULL */
    void *flush_context;
    /* Calls the layer above the allocator, or is NULL.  Set once at most. */
    weir__reclaim_fn *_Atomic reclaim;
    /* Returns the bytes that `reclaim' could free; set before `reclaim'. */
    weir__reclaimable_fn *reclaimable;
    /* The first argument of `reclaim' and `reclaimable'; set before `reclaim'. */
    void *reclaim_context;
};

/* Calls v->reclaim, which weir__reclaim_fn describes.  Returns 0 if no layer is above the allocator. */
int weir__reserve_reclaim(struct weir_reserve *v, int may_wait, uint64_t *pending);
/* Returns the number of bytes that the layer above would free after a wait for the device.  Frees nothing, since the
 * thread that publishes figures calls this function. */
uint64_t weir__reserve_reclaimable(struct weir_reserve *v);

/* Tries a request once, without OOM recovery.  If the engine fails, sets r->result to the driver's result. */
weir_status weir__reserve_try(struct weir_reserve *v, struct weir_request *r);
/* Serves a request from the engine's idle memory, by growth, or by OOM recovery.  After a success, adjusts
 * background growth, the limit, decay and memory pressure.  If OOM recovery fails, writes the figures to
 * *r->refused, unless r->refused is NULL.  Tries a request with r->at only once.  The request may be for a block of
 * a graph (WEIR_REQUEST_CAPTURED). */
weir_status weir__reserve_alloc(struct weir_reserve *v, struct weir_request *r);

#endif
