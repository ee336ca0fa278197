/* SPDX-License-Identifier: MIT */
/* reserve.h: an allocator's reserved memory: the engine, the limit, growth and release. */
#ifndef WEIR_RESERVE_H
#define WEIR_RESERVE_H

#include "engine/driver_blocks.h"
#include "reserve/goal.h"
#include "reserve/limit.h"

/* Makes this process's other allocators release up to `most' idle bytes, or none if they have fewer than `least'.
 * Waits for the device only if `may_wait' is set.  Returns the released bytes.  The caller holds no lock. */
typedef uint64_t weir__lend_device_fn(void *context, uint64_t least, uint64_t most, int may_wait);

/* Flushes idle memory to the engine, after a wait for the device.  The caller must hold no lock. */
typedef weir_status weir__flush_fn(void *context);

/* Makes the layer above the allocator, such as a framework's pool, free unneeded memory whose work has completed.  If
 * `may_wait' is set, first waits for the device.  Sets *pending to at least the freed bytes that work may still use.
 * Returns 1 if memory was freed, else 0.  The caller must hold no lock. */
typedef int weir__reclaim_fn(void *context, int may_wait, uint64_t *pending);
/* Returns the bytes that weir__reclaim_fn could free after a wait for the device.  The caller must hold no lock. */
typedef uint64_t weir__reclaimable_fn(void *context);

/* The parts of an allocator that decide how much memory is reserved.  After the first request, only atomic fields and
 * fields with a lock change. */
struct weir_reserve {
    struct weir_device *device;
    const weir_options *options;
    struct weir_engine *engine;
    struct weir_address_table graphs;
    struct weir_event_sink events;
    struct weir_limit limit;
    struct weir_goal goal;
    /* Functions of other layers, which are NULL if the allocator has no such layer. */
    weir__lend_device_fn *lend_device;
    void *lend_context;
    weir__flush_fn *flush;
    void *flush_context;
    /* Set at most once, after the next two fields, so that a thread that reads `reclaim' also sees both fields. */
    weir__reclaim_fn *_Atomic reclaim;
    weir__reclaimable_fn *reclaimable;
    void *reclaim_context;
};

/* Makes the layer above free memory by v->reclaim.  Returns v->reclaim's result, or 0 if v->reclaim is NULL. */
int weir__reserve_reclaim(struct weir_reserve *v, int may_wait, uint64_t *pending);
/* Returns the bytes that the layer above the allocator could free after a wait for the device, or 0 without a layer. */
uint64_t weir__reserve_reclaimable(struct weir_reserve *v);

/* Tries to allocate a block once, without OOM recovery.  On failure sets r->result to the driver's result. */
weir_status weir__reserve_try(struct weir_reserve *v, struct weir_request *r);
/* Allocates a block, by OOM recovery if necessary, and then adjusts the reserved memory. */
weir_status weir__reserve_alloc(struct weir_reserve *v, struct weir_request *r);

/* Runs OOM recovery for a request that failed with `why' (E_NO_MEMORY or E_LIMIT).  Returns OK if the request has its
 * block.  Otherwise returns the last status, and writes the figures to *r->refused unless r->refused is NULL. */
weir_status weir__oom_recovery_run(struct weir_reserve *v, struct weir_request *r, weir_status why);
/* Returns the size of the largest request that would have succeeded instead, or 0 if the stream is being captured. */
uint64_t weir__oom_recovery_largest(struct weir_reserve *v,
                                    const struct weir_failed_request *refused);

#endif
