/* SPDX-License-Identifier: MIT */
/* model_pool.c: memory pools: their life, the pools of a device, and who may reach their blocks.
 *
 * Documented: a pool destroyed with live blocks goes when the last of them goes; a device has a default pool, with
 * threshold 0, that cannot be destroyed and is current again when the current one is; blocks are their own device's until
 * the pool gives others access, which no pool takes from its own.
 *
 * Must not know: how spans are cut; callers.
 */
#include "driver/model/model_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver/model/model_ipc.h"
#include "driver/model/model_span.h"

/* ---- life ---- */

/* Hardware decompression, which drivers know from 12.8 on; that a device without it takes it, too, is measured of pools
 * and assumed of handles. */
int weir__model_usage_is_known(unsigned usage) {
    _Static_assert(CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS == CU_MEM_CREATE_USAGE_HW_DECOMPRESS,
                   "one number");
    return usage == 0 || (usage == CU_MEM_CREATE_USAGE_HW_DECOMPRESS &&
                          weir__model.profile.driver_version >= 12080);
}

/* 1 if the locality domain is a whole device.  Assumed here, so that there are devices of both kinds: a device with
 * an odd number has two domains, others have one.  The model has no separate memory for a domain. */
static int is_whole(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN &&
           weir__model.profile.driver_version >= 13040 && location->id / 256 == 0 &&
           location->id % 2 == 0;
}

/* The device that the memory belongs to.  Here host memory, and memory without a location, belong to the first device.
 * -1: no such memory. */
static int device_at(const CUmemLocation *location, int is_managed) {
    uint64_t version = weir__model.profile.driver_version;
    int id = location->id;

    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        break;
    case 0: /* no location, for managed memory only */
        id = is_managed ? 0 : -1;
        break;
    case CU_MEM_LOCATION_TYPE_HOST:
        id = version >= 12020 ? 0 : -1;
        break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: /* there is one node */
        id = version >= 12020 && id == 0 ? 0 : -1;
        break;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        id = version >= 13040 && !is_managed && id / 256 <= id % 2 ? id % 256 : -1;
        break;
    default:
        return -1;
    }
    return weir__model_device_check(id) == CUDA_SUCCESS ? id : -1;
}

/* Zero in what a newer driver might give a meaning, or the one that is played none yet. */
static CUresult check_properties(const CUmemPoolProps *properties) {
    int is_managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    size_t i = weir__model.profile.driver_version >= 13040 && properties->reserved[0] == 1;

    if (is_managed && (weir__model.profile.driver_version < 13000 || properties->maxSize != 0 ||
                       properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE))
        return CUDA_ERROR_INVALID_VALUE;
    if ((properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED && !is_managed) ||
        !weir__model_usage_is_known(properties->usage))
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->maxSize != 0 && !weir__model_can(WEIR_CAP_POOL_MAX_SIZE))
        return CUDA_ERROR_INVALID_VALUE;
    for (; i < sizeof properties->reserved; i++)
        if (properties->reserved[i])
            return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
        properties->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return weir__model_device_check(properties->location.id);
    return device_at(&properties->location, is_managed) < 0 ||
                   (properties->location.type == CU_MEM_LOCATION_TYPE_HOST &&
                    properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

struct model_pool *weir__model_pool_make(const CUmemPoolProps *properties) {
    const struct model_profile *profile = &weir__model.profile;
    struct model_pool *pool =
        weir__model_slab_take(&weir__model.pools, weir__model.next_object_id++);
    uint64_t unit = profile->unit_bytes, room;

    if (!pool)
        return NULL;
    pool->properties = *properties;
    if (is_whole(&properties->location))
        pool->properties.location =
            (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, properties->location.id % 256};
    pool->device = &weir__model.devices[device_at(
        &properties->location, properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)];
    room = (pool->device->capacity / unit + 1) * unit * profile->room_factor;
    if (weir__model_range_open(&pool->range, room, unit,
                               properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) != 0) {
        weir__model_slab_give(&weir__model.pools, pool);
        return NULL;
    }
    pool->most_units = properties->maxSize ? (properties->maxSize - 1) / unit + 1 : UINT64_MAX;
    pool->follow_events = pool->opportunistic = pool->internal = 1;
    pool->access[pool->device->context.device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    pool->is_shared = properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
    pool->identity = (struct model_identity){
        (uint64_t)getpid(), atomic_load_explicit(&pool->slot.id, memory_order_relaxed)};
    pool->next = weir__model.live_pools;
    if (pool->next)
        pool->next->prev = pool;
    weir__model.live_pools = pool;
    return pool;
}

void weir__model_pool_drop(struct model_pool *pool) {
    weir__model_give(pool->device, weir__model_pool_reserved(pool));
    weir__model_range_close(&pool->range);
    if (pool->import)
        weir__model_import_close(pool->import);
    if (pool->prev)
        pool->prev->next = pool->next;
    else
        weir__model.live_pools = pool->next;
    if (pool->next)
        pool->next->prev = pool->prev;
    pool->gone_after = weir__model.handles_made + 1;
    weir__model_slab_give(&weir__model.pools, pool);
}

void weir__model_pools_drop(void) {
    while (weir__model.live_pools)
        weir__model_pool_drop(weir__model.live_pools);
}

CUresult weir__model_cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties) {
    struct model_pool *pool;
    CUresult result;

    if (!handle || !properties)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_properties(properties);
    if (result != CUDA_SUCCESS)
        return result;
    weir__model_lock();
    weir__model_charge(weir__model.profile.pool_create_ns);
    pool = weir__model_pool_make(properties);
    if (pool)
        *handle = (CUmemoryPool)(void *)pool;
    weir__model_unlock();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Measured: a pool that was destroyed is an invalid value until something is in its place in the driver's memory; with
 * what is there then the driver crashes.  Here that is a handle of memory that was made since, or another pool, which is
 * found.  The caller holds the lock. */
static void crash_if_gone(CUmemoryPool handle) {
    const struct model_slab *slab = &weir__model.pools;
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)slab->base;
    const struct model_pool *pool = (const void *)handle;

    if (offset >= slab->stride * slab->used || offset % slab->stride != 0 ||
        atomic_load_explicit(&pool->slot.id, memory_order_relaxed) != 0 || pool->gone_after == 0 ||
        weir__model.handles_made < pool->gone_after)
        return;
    fputs("the device model: a call names a memory pool that is gone, where a driver crashes\n",
          stderr);
    abort();
}

struct model_pool *weir__model_pool_find(CUmemoryPool handle) {
    struct model_pool *pool;

    weir__model_lock();
    pool = weir__model_slab_find(&weir__model.pools, handle);
    if (pool && !pool->destroyed)
        return pool;
    crash_if_gone(handle);
    weir__model_unlock();
    return NULL;
}

CUresult weir__model_cuMemPoolDestroy(CUmemoryPool handle) {
    struct model_pool *pool = weir__model_pool_find(handle);

    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool == pool->device->default_pool) {
        weir__model_unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pool == pool->device->current_pool)
        pool->device->current_pool = NULL;
    weir__model_charge(weir__model.profile.pool_destroy_ns +
                       weir__model_curve(&weir__model.profile.pool_trim_ns, pool->range.units));
    pool->destroyed = 1;
    if (pool->live == 0)
        weir__model_pool_drop(pool);
    weir__model_unlock();
    return CUDA_SUCCESS;
}

int weir__model_pool_is_managed(const struct model_pool *pool) {
    return pool->properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

int weir__model_pool_decompresses(const struct model_pool *pool) {
    return pool->properties.usage != 0;
}

CUmemoryPool weir__model_pool_handle(const struct model_pool *pool) {
    return (CUmemoryPool)(uintptr_t)pool;
}

/* ---- the pools of a device ---- */

/* Made when it is first wanted; NULL without memory for it.  The caller holds the lock. */
static struct model_pool *default_pool(struct model_device *device) {
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->context.device}};

    if (!device->default_pool)
        device->default_pool = weir__model_pool_make(&properties);
    return device->default_pool;
}

struct model_pool *weir__model_pool_current(struct model_device *device) {
    return device->current_pool ? device->current_pool : default_pool(device);
}

static CUresult answer_pool(struct model_pool *(*which)(struct model_device *),
                            CUmemoryPool *handle, CUdevice device) {
    CUresult result = weir__model_device_check(device);
    struct model_pool *pool;

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    weir__model_lock();
    pool = which(&weir__model.devices[device]);
    *handle = weir__model_pool_handle(pool);
    weir__model_unlock();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult weir__model_cuDeviceGetDefaultMemPool(CUmemoryPool *handle, CUdevice device) {
    return answer_pool(default_pool, handle, device);
}

CUresult weir__model_cuDeviceGetMemPool(CUmemoryPool *handle, CUdevice device) {
    return answer_pool(weir__model_pool_current, handle, device);
}

CUresult weir__model_cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
    CUresult result = weir__model_device_check(device);
    struct model_pool *pool;

    if (result != CUDA_SUCCESS)
        return result;
    pool = weir__model_pool_find(handle);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool->device == &weir__model.devices[device])
        pool->device->current_pool = pool;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    weir__model_unlock();
    return result;
}

/* The same by location.  Here only whole devices have default and current pools. */
static CUresult check_place(const CUmemLocation *location, CUmemAllocationType type) {
    if (!location)
        return CUDA_ERROR_INVALID_VALUE;
    return (location->type == CU_MEM_LOCATION_TYPE_DEVICE || is_whole(location)) &&
                   type == CU_MEM_ALLOCATION_TYPE_PINNED
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_SUPPORTED;
}

static int id_at(const CUmemLocation *location) {
    return is_whole(location) ? location->id % 256 : location->id;
}

CUresult weir__model_cuMemGetDefaultMemPool(CUmemoryPool *handle, CUmemLocation *location,
                                            CUmemAllocationType type) {
    CUresult result = check_place(location, type);

    return result == CUDA_SUCCESS ? answer_pool(default_pool, handle, id_at(location)) : result;
}

CUresult weir__model_cuMemGetMemPool(CUmemoryPool *handle, CUmemLocation *location,
                                     CUmemAllocationType type) {
    CUresult result = check_place(location, type);

    return result == CUDA_SUCCESS ? answer_pool(weir__model_pool_current, handle, id_at(location))
                                  : result;
}

CUresult weir__model_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                     CUmemoryPool handle) {
    CUresult result = check_place(location, type);

    return result == CUDA_SUCCESS ? weir__model_cuDeviceSetMemPool(id_at(location), handle)
                                  : result;
}

/* ---- who may reach the blocks ---- */

int weir__model_pool_allows(const struct model_pool *pool, int device, CUmemAccess_flags access) {
    return (pool->access[device] & access) == access;
}

static CUresult check_access(const struct model_pool *pool, const CUmemAccessDesc *access) {
    if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !weir__model_reaches(access->location.id, pool->device->context.device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    return access->location.id == pool->device->context.device &&
                   access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE
               ? CUDA_ERROR_INVALID_DEVICE
               : CUDA_SUCCESS;
}

/* What the pool has now is mapped for the device, or no more; what it grows by later costs no more for it
 * (assumed). */
static void set_access(struct model_pool *pool, int device, CUmemAccess_flags access) {
    if (pool->access[device] == access)
        return;
    pool->access[device] = access;
    weir__model_charge(pool->range.units * weir__model.profile.pool_peer_unit_ns);
}

/* All or nothing. */
CUresult weir__model_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access,
                                        size_t count) {
    struct model_pool *pool;
    CUresult result = CUDA_SUCCESS;
    size_t i;

    if (!access)
        return CUDA_ERROR_INVALID_VALUE;
    pool = weir__model_pool_find(handle);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    for (i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = check_access(pool, &access[i]);
    for (i = 0; i < count && result == CUDA_SUCCESS; i++)
        set_access(pool, access[i].location.id, access[i].flags);
    weir__model_unlock();
    return result;
}

CUresult weir__model_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle,
                                        CUmemLocation *location) {
    struct model_pool *pool;

    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        weir__model_device_check(location->id) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    pool = weir__model_pool_find(handle);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = pool->access[location->id];
    weir__model_unlock();
    return CUDA_SUCCESS;
}
