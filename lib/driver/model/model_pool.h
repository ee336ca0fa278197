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
    struct model_slot slot; /* the id in the slot is 0 once the pool has ended */
    struct model_device *device;
    struct model_range range;
    /* The largest size of the pool (maxSize) in units, rounded up, or UINT64_MAX. */
    uint64_t most_units;
    uint64_t threshold;
    /* The attributes REUSE_FOLLOW_EVENT_DEPENDENCIES, REUSE_ALLOW_OPPORTUNISTIC and
     * REUSE_ALLOW_INTERNAL_DEPENDENCIES, in this order. */
    int follow_events, opportunistic, internal;
    /* The access that each device has to the blocks of the pool. */
    CUmemAccess_flags access[MODEL_DEVICES];
    /* Set if the memory of the pool is in a file, so that the pool can be exported to other processes. */
    int is_shared;
    /* Identifies the pool among all exported objects of all processes. */
    struct model_identity identity;
    /* The memory of another process's pool, if this pool was imported; else NULL. */
    struct model_import *import;
    int destroyed;
    /* The properties with which the pool was created.  For managed memory, the model does not support access by the
     * host. */
    CUmemPoolProps properties;
    uint64_t live; /* the number of allocated blocks */
    /* The requested bytes of all allocated blocks (USED_MEM_CURRENT), and the maximum of this number
     * (USED_MEM_HIGH). */
    uint64_t used, used_high;
    /* The bytes of blocks that cuMemFree has freed.  They stay in `used`, as was measured on a real device. */
    uint64_t unused;
    uint64_t reserved_high;         /* the maximum of the reserved bytes (RESERVED_MEM_HIGH) */
    struct model_pool *prev, *next; /* links in the list of all pools */
    /* While the pool exists, 0.  Afterwards the number of physical allocations until the end of the pool, plus 1; the
     * model uses it to detect calls with the handle of an ended pool. */
    uint64_t gone_after;
};

_Static_assert(sizeof(struct model_pool) <= 1024, "a pool fits its slot");

static inline uint64_t weir__model_pool_reserved(const struct model_pool *pool) {
    return pool->range.units * pool->range.unit;
}

/* Returns 1 if the simulated driver version has the capability, else 0. */
static inline int weir__model_has_capability(unsigned capability) {
    return (weir__driver_capabilities((int)weir__model.profile.driver_version) & capability) != 0;
}

void weir__model_pool_drop(struct model_pool *pool);
/* Frees the pool if the program has destroyed the pool and all its blocks are freed. */
static inline void drop_if_done(struct model_pool *pool) {
    if (pool->destroyed && pool->live == 0)
        weir__model_pool_drop(pool);
}

/* Locks the model, and returns the pool with this handle.  If there is no such pool, unlocks the model and returns
 * NULL. */
struct model_pool *weir__model_pool_find(CUmemoryPool handle);
/* Returns the pool from which cuMemAllocAsync allocates on the device.  Returns NULL if this is the default pool and
 * there is no memory to make it. */
struct model_pool *weir__model_pool_current(struct model_device *device);

#endif
