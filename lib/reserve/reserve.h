/* SPDX-License-Identifier: MIT */
/* reserve.h: an allocator's reserved memory: the engine, the limit, growth and release.
 *
 * This file must not depend on a particular engine, on caches, on the public API or on names of settings.
 */
#ifndef WEIR_RESERVE_H
#define WEIR_RESERVE_H

#include "engine/driver_blocks.h"
#include "reserve/goal.h"
#include "reserve/limit.h"

/* Makes other allocators of this process release idle memory until they have released `most' bytes.  Does nothing if
 * they have fewer than `least' idle bytes together.  Waits for the device only if `may_wait' is set.  Returns the
 * number of released bytes.  The caller must hold no lock. */
typedef uint64_t weir__lend_device_fn(void *context, uint64_t least, uint64_t most, int may_wait);

/* Flushes the idle memory of all layers above the engine (per-stream caches, guard) to the engine, after a wait for
 * the device.  The caller must hold no lock. */
typedef weir_status weir__flush_fn(void *context);

/* Frees memory that the layer above the allocator, such as a framework's pool, no longer needs, if all work on the
 * memory has completed.  If `may_wait' is set, waits for the device first.  Sets *pending to an upper bound of the
 * bytes of frees that are still pending.  Returns 1 if memory was freed, else 0.  The caller must hold no lock. */
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
    /* Functions of other layers, which are NULL if the allocator has no such layer. */
    weir__lend_device_fn *lend_device;
    void *lend_context;
    weir__flush_fn *flush;
    void *flush_context;
    /* Set at most once, after the next two fields, so that a thread that reads `reclaim' also sees them. */
    weir__reclaim_fn *_Atomic reclaim;
    weir__reclaimable_fn *reclaimable;
    void *reclaim_context;
};

/* Makes the layer above the allocator free memory (weir__reclaim_fn).  Returns 0 if there is no such layer. */
int weir__reserve_reclaim(struct weir_reserve *v, int may_wait, uint64_t *pending);
/* Returns the bytes that the layer above the allocator could free after a wait for the device, or 0 if there is no such
 * layer.  Frees nothing, so that the thread that publishes figures can call this function. */
uint64_t weir__reserve_reclaimable(struct weir_reserve *v);

/* Tries to allocate a block once, without OOM recovery.  On failure sets r->result to the driver's result. */
weir_status weir__reserve_try(struct weir_reserve *v, struct weir_request *r);
/* Allocates a block from the engine's idle memory, by growth, or by OOM recovery, and then adjusts the reserved memory.
 * If OOM recovery fails, writes the figures of the failure to *r->refused, unless r->refused is NULL.  A request at a
 * fixed address (r->at) is tried only once.  On a captured stream the block is a memory node of the graph. */
weir_status weir__reserve_alloc(struct weir_reserve *v, struct weir_request *r);

/* Runs OOM recovery for a request that failed with the status `why' (E_NO_MEMORY or E_LIMIT): tries to free memory,
 * and retries the request.  Polls pending frees for at most options.recovery_timeout_ms.  Returns OK if the request
 * has its block.  Otherwise returns the last status, and writes the figures of the failure to *r->refused. */
weir_status weir__oom_recovery_run(struct weir_reserve *v, struct weir_request *r, weir_status why);
/* Returns the size of the largest request that would certainly have succeeded in place of the failed request
 * `refused'.  Returns 0 if the stream was captured. */
uint64_t weir__oom_recovery_largest(struct weir_reserve *v,
                                    const struct weir_failed_request *refused);

#endif
