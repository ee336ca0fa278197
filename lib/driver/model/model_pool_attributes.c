/* SPDX-License-Identifier: MIT */
/* model_pool_attributes.c: the attributes of pools, as the driver that is played knows them.
 *
 * Facts played here (measured on the device of the profile): a high-water mark takes 0 and falls to the current value.
 */
#include "driver/model/model_pool.h"

#include <string.h>

#include "driver/model/model_span.h"

static int *policy_of(struct model_pool *pool, CUmemPool_attribute attribute) {
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        return &pool->follow_events;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        return &pool->opportunistic;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        return &pool->internal;
    default:
        return NULL;
    }
}

/* The caller holds the lock. */
static CUresult set_attribute(struct model_pool *pool, CUmemPool_attribute attribute,
                              const void *value) {
    int *policy = policy_of(pool, attribute), on;
    uint64_t number;

    if (policy) {
        memcpy(&on, value, sizeof on);
        *policy = on != 0;
        return CUDA_SUCCESS;
    }
    memcpy(&number, value, sizeof number);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = number;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        if (number == 0)
            pool->reserved_high = weir__model_pool_reserved(pool);
        return number == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (number == 0)
            pool->used_high = pool->used;
        return number == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Later drivers added attributes: four with the figures, the rest by version. */
static int is_attribute(CUmemPool_attribute attribute) {
    uint64_t version = weir__model.profile.driver_version;
    CUmemPool_attribute last = version >= 13040   ? CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID
                               : version >= 13020 ? CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED
                               : weir__model_can(WEIR_CAP_POOL_FIGURES)
                                   ? CU_MEMPOOL_ATTR_USED_MEM_HIGH
                                   : CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;

    return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute <= last;
}

CUresult weir__model_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                           void *value) {
    struct model_pool *pool;
    CUresult result;

    if (!value || !is_attribute(attribute))
        return CUDA_ERROR_INVALID_VALUE;
    pool = weir__model_pool_find(handle);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    result = set_attribute(pool, attribute, value);
    weir__model_unlock();
    return result;
}

static uint64_t get_number(const struct model_pool *pool, CUmemPool_attribute attribute) {
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return weir__model_pool_reserved(pool);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return pool->used;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
        return pool->properties.maxSize ? pool->most_units * pool->range.unit : 0;
    default:
        return pool->used_high;
    }
}

/* Attributes of 4 bytes that nobody can set after creation: 1; 0: it is no such attribute. */
static int get_property(const struct model_pool *pool, CUmemPool_attribute attribute, int *value) {
    const CUmemPoolProps *made = &pool->properties;
    int is_part = made->location.type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;

    switch (attribute) {
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
        *value = (int)made->allocType;
        return 1;
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
        *value = (int)made->handleTypes;
        return 1;
    case CU_MEMPOOL_ATTR_LOCATION_ID:
        *value = is_part ? made->location.id % 256 : made->location.id;
        return 1;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
        *value = (int)made->location.type;
        return 1;
    case CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED:
        *value = made->usage != 0;
        return 1;
    case CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID:
        *value = is_part ? made->location.id / 256 : -1;
        return 1;
    default:
        return 0;
    }
}

static void get_attribute(struct model_pool *pool, CUmemPool_attribute attribute, void *value) {
    const int *policy = policy_of(pool, attribute);
    uint64_t number;
    int property;

    if (get_property(pool, attribute, &property))
        policy = &property;
    if (policy) {
        memcpy(value, policy, sizeof *policy);
        return;
    }
    number = get_number(pool, attribute);
    memcpy(value, &number, sizeof number);
}

CUresult weir__model_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                           void *value) {
    struct model_pool *pool;
    CUresult result;

    if (!value || !is_attribute(attribute))
        return CUDA_ERROR_INVALID_VALUE;
    pool = weir__model_pool_find(handle);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    result = weir__model_capture_unsafe();
    if (result == CUDA_SUCCESS)
        get_attribute(pool, attribute, value);
    weir__model_unlock();
    return result;
}
