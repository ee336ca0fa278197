/* SPDX-License-Identifier: MIT */
/* model_pool.h: a memory pool of the model.
 *
 * A pool is a range of spans (model_span.h, rules R1 to R7) with the physical memory of one device behind it.
 * model_pool_alloc.c says which request gets which span, model_pool.c does all else.
 *
 * Locks: the caller holds the model's lock, unless a comment says otherwise.
 */
#ifndef WEIR_MODEL_POOL_H
#define WEIR_MODEL_POOL_H

#include "driver/model/model_ipc.h"
#include "driver/model/model_span.h"

struct model_pool {
    struct model_slot slot; /* its id is 0 once the pool was destroyed */
    struct model_device *device;
    struct model_range range;
    uint64_t most_units; /* maxSize; UINT64_MAX: none */
    uint64_t threshold;
    int follow_events, opportunistic, internal; /* the reuse attributes */
    CUmemAccess_flags access[MODEL_DEVICES];    /* of each device's work to the blocks */
    int is_shared;                              /* with other processes, by a file */
    struct model_identity identity;             /* then */
    struct model_import *import;                /* it is another process's; NULL: it is not */
    int destroyed;
    CUmemPoolProps properties;      /* at creation; the host cannot reach managed memory here */
    uint64_t live;                  /* blocks */
    uint64_t used, used_high;       /* bytes asked for */
    uint64_t unused;                /* of them, in blocks that cuMemFree took */
    uint64_t reserved_high;         /* bytes */
    struct model_pool *prev, *next; /* of weir__model.live_pools */
    uint64_t gone_after; /* handles of memory that were made before it went, and 1; 0: it lives */
};

_Static_assert(sizeof(struct model_pool) <= 1024, "a pool fits its slot");

static inline uint64_t weir__model_pool_reserved(const struct model_pool *pool) {
    return pool->range.units * pool->range.unit;
}

/* Can the driver that is played? */
static inline int weir__model_can(unsigned capability) {
    return (weir__driver_capabilities((int)weir__model.profile.driver_version) & capability) != 0;
}

void weir__model_pool_drop(struct model_pool *pool);
/* Of a pool that was destroyed, once no block of it lives. */
static inline void drop_if_done(struct model_pool *pool) {
    if (pool->destroyed && pool->live == 0)
        weir__model_pool_drop(pool);
}

/* The pool behind a handle, with the lock taken; else NULL, without. */
struct model_pool *weir__model_pool_find(CUmemoryPool handle);
/* The pool that cuMemAllocAsync uses; NULL: no memory for the default one. */
struct model_pool *weir__model_pool_current(struct model_device *device);

#endif
