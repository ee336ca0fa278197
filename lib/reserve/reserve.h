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
 * the number of released bytes.  The caller must hold no lock. */
typedef uint64_t weir__lend_device_fn(void *context, uint64_t least, uint64_t most, int may_wait);

/* Flushes the idle memory of all layers above the engine (per-stream caches, guard) to the engine, after a wait for
 * the device.  The caller must hold no lock. */
typedef weir_status weir__flush_fn(void *context);

/* Frees memory that the layer above the allocator, such as a framework's pool, no longer needs.  All work on this
 * memory must have completed; if `may_wait' is set, the function waits for the device first.  Sets *pending to an
 * upper bound of the bytes of frees that are still pending.  Returns 1 if memory was freed, else 0.  The caller must
 * hold no lock. */
typedef int weir__reclaim_fn(void *context, int may_wait, uint64_t *pending);
/* Returns the number of bytes that the layer above the allocator could free after a wait for the device.  The caller
 * must hold no lock. */
typedef uint64_t weir__reclaimable_fn(void *context);

/* The parts of an allocator that decide how much memory is reserved.  All fields are set before the first request.
 * Later only atomic fields and fields with a lock change. */
struct weir_reserve {
    struct weir_device *device;
    const weir_options *options;
    struct weir_engine *engine;
    struct weir_graph_table graphs;
    struct weir_event_sink events;
    struct weir_limit limit;
    struct weir_goal goal;
    /* releases idle memory of the other allocators of this process, or is NULL */
    weir__lend_device_fn *lend_device;
    void *lend_context;
    /* flushes the per-stream caches and the guard to the engine, or is NULL */
    weir__flush_fn *flush;
    void *flush_context;
    /* Frees unused memory of the layer above the allocator, such as a framework's pool.  NULL without such a layer.
     * Set at most once. */
    weir__reclaim_fn *_Atomic reclaim;
    /* Returns the bytes that `reclaim' could free.  Set before `reclaim', so that a thread that sees `reclaim' also
     * sees this field. */
    weir__reclaimable_fn *reclaimable;
    /* The first argument of `reclaim' and `reclaimable'; set before `reclaim'. */
    void *reclaim_context;
};

/* Frees memory that the layer above the allocator no longer needs.  If `may_wait' is set, waits for the device first.
 * Sets *pending to an upper bound of the bytes of frees that are still pending.  Returns 1 if memory was freed, 0
 * otherwise or if there is no such layer. */
int weir__reserve_reclaim(struct weir_reserve *v, int may_wait, uint64_t *pending);
/* Returns the number of bytes that the layer above the allocator could free after a wait for the device, or 0 if there
 * is no such layer.  Frees nothing, so that the thread that publishes figures can call this function. */
uint64_t weir__reserve_reclaimable(struct weir_reserve *v);

/* Tries to allocate a block once, without OOM recovery.  If the engine fails, sets r->result to the driver's result.
 * */
weir_status weir__reserve_try(struct weir_reserve *v, struct weir_request *r);
/* Allocates a block from the engine's idle memory, by growth, or after OOM recovery.  After a success, also adjusts
 * grow-ahead, the limit, decay and memory pressure.  If OOM recovery fails, writes the figures of the failure to
 * *r->refused, unless r->refused is NULL.  A request at a fixed address (r->at) is tried only once.  If the stream is
 * captured, the block is a memory node of the graph (WEIR_REQUEST_CAPTURED). */
weir_status weir__reserve_alloc(struct weir_reserve *v, struct weir_request *r);

#endif
