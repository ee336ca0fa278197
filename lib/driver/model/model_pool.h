/* SPDX-License-Identifier: MIT */
/* model_pool.h: the struct of a memory pool on the device model.
 *
 * A pool has a range of spans (model_span.h, rules R1 to R7), with physical memory of one device.  model_pool_alloc.c
 * selects a span for each request.  model_pool.c has all other functions of pools.
 *
 * Locks: the caller holds the model's lock, unless a comment says otherwise.
 */
#ifndef WEIR_MODEL_POOL_H
#define WEIR_MODEL_POOL_H

#include "driver/model/model_span.h"

struct model_pool {
    struct model_slot slot; /* the id in the slot is 0 after the end of the pool */
    struct model_device *device;
    struct model_range range;
    uint64_t most_units; /* maxSize in units, rounded up, or UINT64_MAX if there is no limit */
    uint64_t threshold;
    /* The attributes REUSE_FOLLOW_EVENT_DEPENDENCIES, REUSE_ALLOW_OPPORTUNISTIC and
     * REUSE_ALLOW_INTERNAL_DEPENDENCIES. */
    int follow_events, opportunistic, internal;
    /* The access of each device to the blocks of the pool. */
    CUmemAccess_flags access[MODEL_DEVICES];
    /* Set if the memory of the pool is a file, which other processes can open. */
    int is_shared;
    struct model_identity identity; /* the identity under which the pool can be exported */
    /* The imported memory, or NULL if this process has made the pool. */
    struct model_import *import;
    int destroyed;
    /* The properties with which the pool was created.  In the model the host cannot access managed memory. */
    CUmemPoolProps properties;
    uint64_t live;                  /* the number of live blocks */
    /* The requested bytes of all used blocks, and the maximum of this number. */
    uint64_t used, used_high;
    /* The bytes of blocks that cuMemFree has freed, which still count as used. */
    uint64_t unused;
    uint64_t reserved_high;         /* the maximum of the pool's reserved bytes */
    struct model_pool *prev, *next; /* links in the list weir__model.live_pools */
    /* The value of handles_made (model_inside.h) at the end of the pool, plus 1; or 0 while the pool lives. */
    uint64_t gone_after;
};

_Static_assert(sizeof(struct model_pool) <= 1024, "a pool fits its slot");

static inline uint64_t weir__model_pool_reserved(const struct model_pool *pool) {
    return pool->range.units * pool->range.unit;
}

/* Returns 1 if the driver version of the profile has the capability, else 0. */
static inline int weir__model_can(unsigned capability) {
    return (weir__driver_capabilities((int)weir__model.profile.driver_version) & capability) != 0;
}

void weir__model_pool_drop(struct model_pool *pool);
/* Frees the pool if a program has destroyed the pool and the pool has no live block. */
static inline void drop_if_done(struct model_pool *pool) {
    if (pool->destroyed && pool->live == 0)
        weir__model_pool_drop(pool);
}

/* Takes the lock of the model and returns the pool that the handle names.  If there is no such pool, returns NULL
 * without the lock. */
struct model_pool *weir__model_pool_find(CUmemoryPool handle);
/* Returns the pool that cuMemAllocAsync uses on the device.  Returns NULL if the default pool is needed and cannot
 * be made for lack of memory. */
struct model_pool *weir__model_pool_current(struct model_device *device);

#endif
