/* SPDX-License-Identifier: MIT */
/* model_pool.h: the struct of a memory pool on the device model.  model_pool_alloc.c selects the memory for each
 * request; model_pool.c has all other functions of pools. */
#ifndef WEIR_MODEL_POOL_H
#define WEIR_MODEL_POOL_H

#include "driver/model/model_span.h"

struct model_pool {
    struct model_slot slot; /* the id in the slot is 0 once the pool has ended */
    struct model_device *device;
    struct model_range range;
    uint64_t most_units; /* maxSize in units, rounded up, or UINT64_MAX */
    uint64_t threshold;
    int follow_events, opportunistic, internal; /* the attributes CU_MEMPOOL_ATTR_REUSE_... */
    CUmemAccess_flags access[MODEL_DEVICES];    /* the access of each device to the pool's blocks */
    int is_shared; /* set if other processes can import the pool; its memory is then in a file */
    struct model_identity identity;
    struct model_import *import; /* another process's memory if this pool was imported, else NULL */
    int destroyed;
    CUmemPoolProps properties;
    uint64_t live; /* the number of allocated blocks */
    /* The requested bytes of all allocated blocks (USED_MEM_CURRENT), and their maximum (USED_MEM_HIGH). */
    uint64_t used, used_high;
    uint64_t unused; /* the bytes that cuMemFree has freed; `used` still includes them (measured) */
    uint64_t reserved_high;         /* RESERVED_MEM_HIGH */
    struct model_pool *prev, *next; /* links in the list of all pools */
    /* After this many physical allocations, a call with the freed pool's handle crashes.  0 while the pool exists. */
    uint64_t ended_after_allocations;
};

_Static_assert(sizeof(struct model_pool) <= 1024, "a pool fits its slot");

static inline uint64_t weir__model_pool_reserved(const struct model_pool *pool) {
    return pool->range.units * pool->range.unit;
}

/* Returns 1 if the simulated driver has the capability, else 0. */
static inline int weir__model_has_capability(unsigned capability) {
    return (weir__driver_capabilities((int)weir__model.profile.driver_version) & capability) != 0;
}

void weir__model_pool_drop(struct model_pool *pool);
/* Frees the pool if the program has destroyed it and freed all its blocks. */
static inline void drop_if_done(struct model_pool *pool) {
    if (pool->destroyed && pool->live == 0)
        weir__model_pool_drop(pool);
}

/* Locks the model, and returns the pool with this handle.  If there is none, unlocks the model and returns NULL. */
struct model_pool *weir__model_pool_find(CUmemoryPool handle);
/* Returns the device's pool for cuMemAllocAsync, or NULL if there is no memory to make the default pool. */
struct model_pool *weir__model_pool_current(struct model_device *device);

#endif
