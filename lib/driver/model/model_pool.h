/* SPDX-License-Identifier: MIT */
/* model_pool.h: a memory pool of the model.
 *
 * A pool is a range of spans (model_span.h, rules R1 to R7) with physical memory of one device. model_pool_alloc.c says
 * which request gets which span; model_pool.c has the rest.
 *
 * Locks: the caller holds the model's lock, unless a comment says otherwise.
 */
#ifndef WEIR_MODEL_POOL_H
#define WEIR_MODEL_POOL_H

#include "driver/model/model_span.h"

struct model_pool {
    struct model_slot slot; /* the id in the slot is 0 once the pool was destroyed */
    struct model_device *device;
    struct model_range range;
    uint64_t most_units; /* maxSize, or UINT64_MAX without a limit */
    uint64_t threshold;
    int follow_events, opportunistic, internal; /* the reuse attributes */
    CUmemAccess_flags access[MODEL_DEVICES];    /* the access of each device's work to the blocks */
    int is_shared;                  /* set if the pool's memory is a file, for other processes */
    struct model_identity identity; /* the identity of a shared pool */
    struct model_import *import;    /* the imported memory of another process's pool, or NULL */
    int destroyed;
    /* The properties at creation.  On the model the host cannot access managed memory. */
    CUmemPoolProps properties;
    uint64_t live;                  /* the number of live blocks */
    uint64_t used, used_high;       /* requested bytes */
    uint64_t unused;                /* the used bytes of blocks that cuMemFree has freed */
    uint64_t reserved_high;         /* bytes */
    struct model_pool *prev, *next; /* links in weir__model.live_pools */
    /* The number of handles that were made before the pool's end, plus 1; or 0 while the pool lives. */
    uint64_t gone_after;
};

_Static_assert(sizeof(struct model_pool) <= 1024, "a pool fits its slot");

static inline uint64_t weir__model_pool_reserved(const struct model_pool *pool) {
    return pool->range.units * pool->range.unit;
}

/* Returns 1 if the modelled driver has the capability, else 0. */
static inline int weir__model_can(unsigned capability) {
    return (weir__driver_capabilities((int)weir__model.profile.driver_version) & capability) != 0;
}

void weir__model_pool_drop(struct model_pool *pool);
/* Drops a pool that was destroyed, if it has no live block. */
static inline void drop_if_done(struct model_pool *pool) {
    if (pool->destroyed && pool->live == 0)
        weir__model_pool_drop(pool);
}

/* Takes the lock and returns the pool of a handle; or returns NULL without the lock if there is no such pool. */
struct model_pool *weir__model_pool_find(CUmemoryPool handle);
/* Returns the pool that cuMemAllocAsync uses, or NULL if there is no memory for the default pool. */
struct model_pool *weir__model_pool_current(struct model_device *device);

#endif
