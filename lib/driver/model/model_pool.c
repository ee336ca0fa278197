/* SPDX-License-Identifier: MIT */
/* model_pool.c: the creation and destruction of memory pools, their access, attributes, trims, export and import. */
#include "driver/model/model_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- life ---- */

/* Decompression is a valid `usage` even on a device without such hardware (measured for pools). */
int weir__model_usage_is_known(unsigned usage) {
    _Static_assert(CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS == CU_MEM_CREATE_USAGE_HW_DECOMPRESS,
                   "one number");
    return usage == 0 || (usage == CU_MEM_CREATE_USAGE_HW_DECOMPRESS &&
                          weir__model.profile.driver_version >= 12080);
}

/* Returns 1 if the location is the only locality domain of a device, else 0.  In the model, devices with even numbers
 * have one domain, others two. */
static int is_whole(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN &&
           weir__model.profile.driver_version >= 13040 && location->id / 256 == 0 &&
           location->id % 2 == 0;
}

/* Returns the device whose memory the model uses for a location, or -1 on failure. */
static int device_at(const CUmemLocation *location, int is_managed) {
    uint64_t version = weir__model.profile.driver_version;
    int id = location->id;

    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        break;
    case 0: /* no location: CUDA allows it only for managed memory */
        id = is_managed ? 0 : -1;
        break;
    case CU_MEM_LOCATION_TYPE_HOST:
        id = version >= 12020 ? 0 : -1;
        break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: /* the model has one NUMA node */
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

static CUresult check_properties(const CUmemPoolProps *properties) {
    int is_managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    size_t i = weir__model.profile.driver_version >= 13040 && properties->reserved[0] == 1;

    if (is_managed && (weir__model.profile.driver_version < 13000 || properties->maxSize != 0 ||
                       properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE))
        return CUDA_ERROR_INVALID_VALUE;
    if ((properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED && !is_managed) ||
        !weir__model_usage_is_known(properties->usage))
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->maxSize != 0 && !weir__model_has_capability(WEIR_CAP_POOL_MAX_SIZE))
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

/* Makes a pool.  Returns NULL if there is no host memory, or if all pool handles are in use. */
static struct model_pool *make_pool(const CUmemPoolProps *properties) {
    const struct model_profile *profile = &weir__model.profile;
    struct model_pool *pool =
        weir__model_slab_alloc(&weir__model.pools, weir__model.next_object_id++);
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
        weir__model_slab_free(&weir__model.pools, pool);
        return NULL;
    }
    pool->most_units = properties->maxSize ? (properties->maxSize - 1) / unit + 1 : UINT64_MAX;
    pool->follow_events = pool->opportunistic = pool->internal = 1;
    pool->access[pool->device->context.device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    pool->is_shared = properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
    pool->identity = (struct model_identity){
        (uint64_t)getpid(), atomic_load_explicit(&pool->slot.id, memory_order_relaxed)};
    MODEL_LIST_ADD(weir__model.live_pools, pool);
    return pool;
}

void weir__model_pool_drop(struct model_pool *pool) {
    weir__model_physical_free(pool->device, weir__model_pool_reserved(pool));
    weir__model_range_close(&pool->range);
    if (pool->import)
        weir__model_import_close(pool->import);
    MODEL_LIST_REMOVE(weir__model.live_pools, pool);
    pool->ended_after_allocations = weir__model.handles_made + 1;
    weir__model_slab_free(&weir__model.pools, pool);
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
    pool = make_pool(properties);
    if (pool)
        *handle = (CUmemoryPool)(void *)pool;
    weir__model_unlock();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Ends the process where a real driver would crash: once the host memory of a destroyed pool is reused (measured).
 * Earlier calls return INVALID_VALUE.  In the model, the next physical allocation reuses the memory (assumed). */
static void crash_if_pool_destroyed(CUmemoryPool handle) {
    const struct model_slab *slab = &weir__model.pools;
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)slab->base;
    const struct model_pool *pool = (const void *)handle;

    if (offset >= slab->stride * slab->used || offset % slab->stride != 0 ||
        atomic_load_explicit(&pool->slot.id, memory_order_relaxed) != 0 ||
        pool->ended_after_allocations == 0 ||
        weir__model.handles_made < pool->ended_after_allocations)
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
    crash_if_pool_destroyed(handle);
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

CUmemoryPool weir__model_pool_handle(const struct model_pool *pool) {
    return (CUmemoryPool)(uintptr_t)pool;
}

/* ---- pools of devices ---- */

/* Returns the default pool of the device, made at the first call, or NULL if there is no host memory. */
static struct model_pool *default_pool(struct model_device *device) {
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->context.device}};

    if (!device->default_pool)
        device->default_pool = make_pool(&properties);
    return device->default_pool;
}

struct model_pool *weir__model_pool_current(struct model_device *device) {
    return device->current_pool ? device->current_pool : default_pool(device);
}

static CUresult get_device_pool(struct model_pool *(*which)(struct model_device *),
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
    return get_device_pool(default_pool, handle, device);
}

CUresult weir__model_cuDeviceGetMemPool(CUmemoryPool *handle, CUdevice device) {
    return get_device_pool(weir__model_pool_current, handle, device);
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
    return weir__model_unlocked(result);
}

static CUresult check_pool_location(const CUmemLocation *location, CUmemAllocationType type) {
    if (!location)
        return CUDA_ERROR_INVALID_VALUE;
    return (location->type == CU_MEM_LOCATION_TYPE_DEVICE || is_whole(location)) &&
                   type == CU_MEM_ALLOCATION_TYPE_PINNED
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_SUPPORTED;
}

static int device_id_of(const CUmemLocation *location) {
    return is_whole(location) ? location->id % 256 : location->id;
}

CUresult weir__model_cuMemGetDefaultMemPool(CUmemoryPool *handle, CUmemLocation *location,
                                            CUmemAllocationType type) {
    CUresult result = check_pool_location(location, type);

    return result == CUDA_SUCCESS ? get_device_pool(default_pool, handle, device_id_of(location))
                                  : result;
}

CUresult weir__model_cuMemGetMemPool(CUmemoryPool *handle, CUmemLocation *location,
                                     CUmemAllocationType type) {
    CUresult result = check_pool_location(location, type);

    return result == CUDA_SUCCESS
               ? get_device_pool(weir__model_pool_current, handle, device_id_of(location))
               : result;
}

CUresult weir__model_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                     CUmemoryPool handle) {
    CUresult result = check_pool_location(location, type);

    return result == CUDA_SUCCESS ? weir__model_cuDeviceSetMemPool(device_id_of(location), handle)
                                  : result;
}

/* ---- access ---- */

int weir__model_pool_allows(const struct model_pool *pool, int device, CUmemAccess_flags access) {
    return (pool->access[device] & access) == access;
}

static CUresult check_access(const struct model_pool *pool, const CUmemAccessDesc *access) {
    if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !weir__model_has_peer_access(access->location.id, pool->device->context.device))
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

/* Sets a device's access to the pool, and charges the time to map or unmap the pool's memory. */
static void set_access(struct model_pool *pool, int device, CUmemAccess_flags access) {
    if (pool->access[device] == access)
        return;
    pool->access[device] = access;
    weir__model_charge(pool->range.units * weir__model.profile.pool_peer_unit_ns);
}

/* If one of the descriptors is invalid, changes nothing. */
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
    return weir__model_unlocked(result);
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

/* ---- release to the device ---- */

void weir__model_pools_end_stream(uint64_t id) {
    struct model_pool *pool;

    for (pool = weir__model.live_pools; pool; pool = pool->next)
        weir__model_range_end_stream(&pool->range, id, weir__model_now());
}

void weir__model_pools_list_streams(struct model_orders *named) {
    const struct model_pool *pool;
    const struct model_queue *queue;

    for (pool = weir__model.live_pools; pool; pool = pool->next)
        for (queue = pool->range.queues; queue; queue = queue->next)
            weir__model_orders_add(named, queue->stream_id, 1);
}

void weir__model_pools_begin(uint64_t id, uint64_t seq, uint64_t begin_ns) {
    struct model_pool *pool;

    for (pool = weir__model.live_pools; pool; pool = pool->next)
        weir__model_range_begin(&pool->range, id, seq, begin_ns);
}

void weir__model_pools_observe(uint64_t id, uint64_t seq, const struct model_orders *after) {
    struct model_pool *pool;

    for (pool = weir__model.live_pools; pool; pool = pool->next) {
        struct model_queue *queue = pool->range.queues, *next;

        for (; queue; queue = next) {
            next = queue->next;
            weir__model_range_free_up_to(
                &pool->range, queue,
                queue->stream_id == id ? seq : weir__model_order(after, queue->stream_id));
        }
    }
}

void weir__model_pools_observe_device(int device) {
    struct model_pool *pool;

    for (pool = weir__model.live_pools; pool; pool = pool->next) {
        struct model_queue *queue = pool->range.queues, *next;

        for (; queue; queue = next) {
            next = queue->next;
            if (queue->device == device)
                weir__model_range_free_completed(&pool->range, queue, UINT64_MAX);
        }
    }
}

/* Returns free memory of the pool to the device until the pool has at most `keep` units. */
static void shrink_to(struct model_pool *pool, uint64_t keep) {
    uint64_t released;

    if (pool->range.units <= keep)
        return;
    released = weir__model_range_shrink(&pool->range, pool->range.units - keep);
    weir__model_physical_free(pool->device, released * pool->range.unit);
    weir__model_charge(weir__model_curve(&weir__model.profile.pool_trim_ns, released));
}

void weir__model_pools_synchronised(int device) {
    struct model_pool *pool;

    for (pool = weir__model.live_pools; pool; pool = pool->next)
        if (pool->device == &weir__model.devices[device] && !pool->is_shared)
            shrink_to(pool, pool->threshold / pool->range.unit);
}

CUresult weir__model_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    struct model_pool *pool = weir__model_pool_find(handle);
    CUresult result;

    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    result = weir__model_capture_check_unsafe();
    if (result == CUDA_SUCCESS && !pool->is_shared)
        shrink_to(pool, keep ? (keep - 1) / pool->range.unit + 1 : 0);
    return weir__model_unlocked(result);
}

/* ---- attributes ---- */

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

/* Returns 1 if the simulated driver version has this attribute of pools, else 0. */
static int is_attribute(CUmemPool_attribute attribute) {
    uint64_t version = weir__model.profile.driver_version;
    CUmemPool_attribute last = version >= 13040   ? CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID
                               : version >= 13020 ? CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED
                               : weir__model_has_capability(WEIR_CAP_POOL_FIGURES)
                                   ? CU_MEMPOOL_ATTR_USED_MEM_HIGH
                                   : CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;

    return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute <= last;
}

CUresult weir__model_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                           void *value) {
    struct model_pool *pool =
        value && is_attribute(attribute) ? weir__model_pool_find(handle) : NULL;

    return pool ? weir__model_unlocked(set_attribute(pool, attribute, value))
                : CUDA_ERROR_INVALID_VALUE;
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

/* Reads an attribute that never changes and has 4 bytes.  Returns 1 on success, 0 for any other attribute. */
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
    struct model_pool *pool =
        value && is_attribute(attribute) ? weir__model_pool_find(handle) : NULL;
    CUresult result;

    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    result = weir__model_capture_check_unsafe();
    if (result == CUDA_SUCCESS)
        get_attribute(pool, attribute, value);
    return weir__model_unlocked(result);
}

/* ---- shared pools ---- */

CUresult weir__model_cuMemPoolExportToShareableHandle(void *shared, CUmemoryPool handle,
                                                      CUmemAllocationHandleType type,
                                                      unsigned long long flags) {
    struct model_pool *pool = shared && flags == 0 ? weir__model_pool_find(handle) : NULL;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    int file;

    if (!pool)
        return result;
    if (pool->is_shared && !pool->import && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        file = weir__model_ipc_export(pool->range.file, MODEL_FILE_POOL, pool->range.mapping_bytes,
                                      pool->device->context.device, &pool->identity);
        result = file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        if (file >= 0)
            memcpy(shared, &file, sizeof file);
    }
    return weir__model_unlocked(result);
}

/* Makes a pool that uses the memory of another process's pool.  `file` is the exported descriptor. */
static CUresult import_pool(CUmemoryPool *handle, int file) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                 .maxSize = 1};
    struct model_import *import = weir__model_import_open(file, &properties.location.id);
    struct model_pool *pool = NULL;

    if (!import)
        return CUDA_ERROR_INVALID_VALUE;
    if (weir__model_device_check(properties.location.id) == CUDA_SUCCESS)
        pool = make_pool(&properties);
    if (!pool) {
        weir__model_import_close(import);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->import = import;
    *handle = weir__model_pool_handle(pool);
    return CUDA_SUCCESS;
}

CUresult weir__model_cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *shared,
                                                        CUmemAllocationHandleType type,
                                                        unsigned long long flags) {
    CUresult result;

    if (!handle || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    result = import_pool(handle, (int)(intptr_t)shared);
    return weir__model_unlocked(result);
}

CUresult weir__model_cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address) {
    const struct model_block *block;
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    if (!data)
        return result;
    weir__model_lock();
    block = weir__model_block_around(address, 1);
    if (block && block->pool && block->pool->is_shared && !block->pool->import) {
        weir__model_ipc_describe(&block->pool->identity,
                                 block->node.key - (uintptr_t)block->pool->range.mapping,
                                 block->bytes, address - block->node.key, data);
        result = CUDA_SUCCESS;
    }
    return weir__model_unlocked(result);
}

CUresult weir__model_cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool handle,
                                            CUmemPoolPtrExportData *data) {
    struct model_pool *pool = address && data ? weir__model_pool_find(handle) : NULL;
    struct model_block *block = NULL;
    uint64_t before = 0;

    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool->import)
        block = weir__model_import_add(pool->import, data, &before);
    if (block) {
        block->pool = pool;
        weir__model_block_insert(block, pool->device->context.device);
        pool->live++;
        *address = block->node.key + before;
    }
    weir__model_unlock();
    return block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- checking ---- */

static const char *check_pool(const struct model_pool *pool) {
    const struct model_span *span;
    uint64_t live = 0, used = 0;

    if (pool->import)
        return NULL;
    for (span = pool->range.first; span; span = span->next)
        if (span->kind == SPAN_USED) {
            live++;
            used += span->block.bytes;
            if (span->block.bytes > span->size || span->block.pool != pool ||
                span->block.node.key != (uintptr_t)pool->range.base + span->offset)
                return "a live block is not where it says";
            if (weir__model_tree_floor(weir__model.blocks, span->block.node.key, 0) !=
                &span->block.node)
                return "a live block cannot be found by its address";
        }
    if (live != pool->live || used != pool->used - pool->unused)
        return "live blocks miscounted";
    if (pool->used > pool->used_high || weir__model_pool_reserved(pool) > pool->reserved_high)
        return "a high-water mark below the water";
    if (pool->range.units > pool->most_units)
        return "a pool is larger than its maxSize";
    return weir__model_range_check(&pool->range);
}

const char *weir__model_pool_check(void) {
    uint64_t physical[MODEL_DEVICES] = {0};
    const struct model_pool *pool;
    const char *wrong = NULL;
    int i;

    weir__model_lock();
    for (pool = weir__model.live_pools; pool && !wrong; pool = pool->next) {
        wrong = check_pool(pool);
        physical[pool->device->context.device] += weir__model_pool_reserved(pool);
    }
    for (i = 0; i < weir__model.device_count && !wrong; i++) {
        const struct model_device *device = &weir__model.devices[i];

        if (atomic_load(&device->context.retained) > 0)
            physical[i] += device->context_bytes;
        wrong = weir__model_direct_check(device, &physical[i]);
        if (!wrong)
            wrong = weir__model_graph_check(i, &physical[i]);
        if (!wrong)
            wrong = weir__model_virtual_check(i, &physical[i]);
        if (!wrong)
            wrong = weir__model_capture_check(&device->context);
        if (!wrong && (physical[i] != device->physical || physical[i] > device->capacity))
            wrong = "a device's memory is miscounted";
    }
    weir__model_unlock();
    return wrong;
}
