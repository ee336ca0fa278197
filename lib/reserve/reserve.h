/* SPDX-License-Identifier: MIT */
/* reserve.h: an allocator's reserve: the engine that has it, how much it may be, when it grows and when it goes back.
 *
 * A request that the caches cannot serve goes through weir__reserve_alloc, or weir__reserve_alloc_alone.  Only a request for more than the device has
 * goes straight to OOM recovery.
 *
 * Must not know: any single engine, caches, the public API, settings' names.
 */
#ifndef WEIR_RESERVE_H
#define WEIR_RESERVE_H

#include "engine/graph_blocks.h"
#include "reserve/decay.h"
#include "reserve/pressure.h"
#include "reserve/quota.h"

struct weir_ahead;

/* What the caches are asked for, in this order, until the request is served. */
enum weir_lending {
    WEIR_LEND_OWN,   /* what the request's stream has, at once */
    WEIR_LEND_LATER, /* the reserved memory grows, or memory moves: other streams are to give at their next call */
    WEIR_LEND_ALL /* the request would fail: everything, behind a wait for the device */
};

/* The caches: what lies idle there is live to the engine.  `lend` gives some of it back.  1: memory may have come back,
 * so the request is tried again. */
struct weir_lender {
    int (*lend)(void *context, struct weir_request *r, enum weir_lending what);
    void *context;
};

/* Has other allocators of the process give idle memory of the device back until `most` bytes have gone, if all together
 * have `least`; bytes that went.  may_wait 0: only what takes no wait.  Called without a lock. */
typedef uint64_t weir__lend_device_fn(void *context, uint64_t least, uint64_t most, int may_wait);

/* Has a layer above the allocator free what it holds and no longer needs: blocks whose other uses are done, and with
 * `may_wait` also memory that is idle after a wait for the device.  *pending: bytes, at most, of frees that still wait for
 * events.  Returns 1 if it has freed something.  Called without a lock. */
typedef int weir__reclaim_fn(void *context, int may_wait, uint64_t *pending);
/* Returns the bytes of the allocator that a reclaim would free after a wait for the device.  Called without a lock. */
typedef uint64_t weir__reclaimable_fn(void *context);

/* Written by the allocator before the first request; what has locks or is atomic looks after itself. */
struct weir_reserve {
    struct weir_device *device;
    const weir_options *options;
    struct weir_engine *engine;
    struct weir_graph_table graphs;
    struct weir_event_sink events;
    struct weir_quota quota;
    struct weir_decay decay;
    struct weir_pressure pressure;
    struct weir_ahead *ahead;          /* grows ahead of demand; NULL: nobody does */
    weir__lend_device_fn *lend_device; /* other allocators; NULL: there are none */
    void *lend_context;
    weir__reclaim_fn *_Atomic reclaim; /* of the layer above, set once; NULL: there is none */
    weir__reclaimable_fn *reclaimable; /* is set before `reclaim` */
    void *reclaim_context;             /* is set before `reclaim` */
};

/* Has the layer above free what it does not need, as weir__reclaim_fn describes.  Returns 0 if there is no such layer. */
int weir__reserve_reclaim(struct weir_reserve *v, int may_wait, uint64_t *pending);
/* Returns the bytes that the layer above would free after a wait for the device.  Frees nothing, since the thread that
 * publishes figures calls it. */
uint64_t weir__reserve_reclaimable(struct weir_reserve *v);

/* Bytes of reserve that stay if `wanted` bytes are to go: at least what is in use plus what is kept idle, and at least
 * the floor (decay.h). */
uint64_t weir__reserve_target(const struct weir_reserve *v, uint64_t reserve, uint64_t in_use,
                              uint64_t wanted);
/* After a request: gives idle memory back until `target` is left, as far as that takes no wait. */
void weir__reserve_shed(struct weir_reserve *v, const struct weir_request *r, uint64_t target,
                        int cause);

/* Serves r for a stream that is not being captured: from the engine as it stands; with what `caches` give; with growth;
 * by OOM recovery.  After a success it looks after background growth, the limit, decay and memory pressure.
 * On a failure of OOM recovery *r->refused, if not NULL, has the figures.  With r->at: from the engine alone. */
weir_status weir__reserve_alloc(struct weir_reserve *v, struct weir_request *r,
                                const struct weir_lender *caches);
/* The same without caches, also for a graph's block (WEIR_REQUEST_CAPTURED), after which nothing is looked after. */
weir_status weir__reserve_alloc_alone(struct weir_reserve *v, struct weir_request *r);

#endif
