/* SPDX-License-Identifier: MIT */
/* preload_pool_calls.c: replaces the driver's functions that create, change, query and destroy memory pools, and that
 * set the current pool of a device.  The driver also executes all these calls. */
#include "adapters/preload/preload.h"

/* Makes the driver's call, or returns CUDA_ERROR_INVALID_VALUE for a destroyed pool, since the driver could crash. */
#define UNLESS_ENDED(pool, call) (has_pool_ended(pool) ? CUDA_ERROR_INVALID_VALUE : (call))

/* Returns the reason why only the driver can allocate such memory, or WEIR_FALLBACK_NOT. */
static enum weir_fallback reason_of_location(CUmemAllocationType type, CUmemLocationType location) {
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return WEIR_FALLBACK_MANAGED;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return WEIR_FALLBACK_UNKNOWN;
    switch (location) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return WEIR_FALLBACK_NOT;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return WEIR_FALLBACK_HOST;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        return WEIR_FALLBACK_PART;
    default:
        return WEIR_FALLBACK_UNKNOWN;
    }
}

/* Returns a pool's location.  If a locality domain (a part of a device) is the whole device, returns the device. */
static CUmemLocation location_of(CUmemoryPool pool, const CUmemLocation *given) {
    CUmemLocation whole = {CU_MEM_LOCATION_TYPE_DEVICE, given->id & 255};
    CUmemLocationType type;

    return given->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN &&
                   REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &type) ==
                       CUDA_SUCCESS &&
                   type == CU_MEM_LOCATION_TYPE_DEVICE
               ? whole
               : *given;
}

/* Returns 1 if weir supports all properties of a new pool, else 0. */
static int are_properties_known(const CUmemPoolProps *properties) {
    for (size_t i = 0; i < sizeof properties->reserved; i++)
        if (properties->reserved[i])
            return 0;
    return !(properties->usage & ~CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS);
}

/* Returns the reason why weir cannot allocate the pool's memory, or WEIR_FALLBACK_NOT. */
static enum weir_fallback fallback_reason_of_pool(const CUmemPoolProps *properties,
                                                  CUmemLocationType location) {
    enum weir_fallback why = reason_of_location(properties->allocType, location);

    if (why != WEIR_FALLBACK_NOT)
        return why;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return WEIR_FALLBACK_SHARED;
    return are_properties_known(properties) ? WEIR_FALLBACK_NOT : WEIR_FALLBACK_UNKNOWN;
}

/* Records a new pool.  Ends an old pool with the same handle, which the program has destroyed without weir's notice. */
static void add_created_pool(CUmemoryPool pool, int device, struct weir_pool_kind kind,
                             enum weir_fallback why) {
    struct weir_pool *p = weir__pool_of(pool);

    if (p)
        weir__pool_end(p, atomic_load_explicit(&p->generation, memory_order_relaxed));
    (void)weir__pool_add(pool, device, kind, why);
    if (why != WEIR_FALLBACK_NOT)
        weir__run_log("a memory pool is left to the driver: %s", weir__fallback_text(why));
}

CUresult weir__serve_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    struct weir_pool_kind kind;
    CUmemLocation location;

    if (result != CUDA_SUCCESS || !begin_serving())
        return result;
    location = location_of(*pool, &properties->location);
    kind.max_bytes = properties->maxSize;
    kind.decompresses = (properties->usage & CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS) != 0;
    add_created_pool(*pool, location.id, kind, fallback_reason_of_pool(properties, location.type));
    end_serving();
    return result;
}

/* The driver allocates the memory of a pool of another process.  The device of such a pool is unknown. */
CUresult weir__serve_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shared,
                                                        CUmemAllocationHandleType type,
                                                        unsigned long long flags) {
    CUresult result = REAL(cuMemPoolImportFromShareableHandle)(pool, shared, type, flags);

    if (result != CUDA_SUCCESS || !begin_serving())
        return result;
    add_created_pool(*pool, -1, (struct weir_pool_kind){0}, WEIR_FALLBACK_SHARED);
    end_serving();
    return result;
}

/* Reads `generation` before the driver's call.  After the call, another thread may get a pool with this handle. */
CUresult weir__serve_cuMemPoolDestroy(CUmemoryPool pool) {
    struct weir_pool *p = weir__is_serving ? NULL : weir__pool_of(pool);
    unsigned generation = p ? atomic_load_explicit(&p->generation, memory_order_relaxed) : 0;
    CUresult result = UNLESS_ENDED(pool, REAL(cuMemPoolDestroy)(pool));

    if (result != CUDA_SUCCESS || !p || !begin_serving())
        return result;
    weir__pool_end(p, generation);
    end_serving();
    return result;
}

static struct weir_served *allocator_of_pool(CUmemoryPool pool) {
    struct weir_pool *p = weir__pool_of(pool);

    return p ? atomic_load_explicit(&p->served, memory_order_acquire) : NULL;
}

CUresult weir__serve_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = UNLESS_ENDED(pool, REAL(cuMemPoolTrimTo)(pool, keep));
    struct weir_served *s;

    if (result != CUDA_SUCCESS || !begin_serving())
        return result;
    s = allocator_of_pool(pool);
    if (s)
        weir__served_trim(s, keep);
    end_serving();
    return result;
}

/* weir ignores a release threshold, because the user's settings decide.  Of the attributes for reuse, weir obeys only
 * the opportunistic one, because the others depend on events of the program, which weir does not see. */
CUresult weir__serve_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           void *value) {
    CUresult result = UNLESS_ENDED(pool, REAL(cuMemPoolSetAttribute)(pool, attribute, value));
    struct weir_pool *p;
    struct weir_served *s;

    if (result != CUDA_SUCCESS || !begin_serving())
        return result;
    p = weir__pool_of(pool);
    if (p && attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC)
        weir__pool_allow_reuse(p, *(const int *)value != 0);
    s = allocator_of_pool(pool);
    if (s && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        weir__served_restart_peak(s);
    if (s && attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        weir__served_restart_reserve(s);
    end_serving();
    return result;
}

/* Returns the attribute's value for weir's part of the pool's memory.  The caller adds the driver's part. */
static uint64_t read_pool_figure(struct weir_served *s, CUmemPool_attribute attribute) {
    weir_statistics figures = {.size = sizeof figures};

    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        return weir__served_peak(s);
    if (weir_stats(s->allocator, &figures) != WEIR_OK)
        return 0;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return figures.reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return weir__served_reserve_peak(s, &figures);
    default:
        return figures.requested;
    }
}

CUresult weir__serve_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           void *value) {
    CUresult result = UNLESS_ENDED(pool, REAL(cuMemPoolGetAttribute)(pool, attribute, value));
    struct weir_served *s;

    if (result != CUDA_SUCCESS || attribute < CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ||
        attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH || !begin_serving())
        return result;
    s = allocator_of_pool(pool);
    if (s)
        *(uint64_t *)value += read_pool_figure(s, attribute);
    end_serving();
    return result;
}

/* Restores the earlier access rights of the driver's pool.  Called if weir's memory cannot get the new rights. */
static void restore_pool_access(const struct weir_pool *p, CUmemoryPool pool,
                                const CUmemAccessDesc *access, size_t count) {
    for (size_t i = 0; i < count; i++) {
        CUmemAccessDesc before = access[i];
        int id = before.location.id,
            is_device = before.location.type == CU_MEM_LOCATION_TYPE_DEVICE;

        if (is_device && (id == p->device || id < 0 || id >= WEIR_MOST_DEVICES))
            continue;
        before.flags = is_device ? atomic_load_explicit(&p->access[id], memory_order_relaxed)
                                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
        (void)REAL(cuMemPoolSetAccess)(pool, &before, 1);
    }
}

CUresult weir__serve_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access,
                                        size_t count) {
    CUresult result = UNLESS_ENDED(pool, REAL(cuMemPoolSetAccess)(pool, access, count));
    struct weir_pool *p;

    if (result != CUDA_SUCCESS || !begin_serving())
        return result;
    p = weir__pool_of(pool);
    if (p)
        result = weir__pool_set_access(p, access, count);
    if (result != CUDA_SUCCESS)
        restore_pool_access(p, pool, access, count);
    end_serving();
    return result;
}

CUresult weir__serve_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool,
                                        CUmemLocation *location) {
    return UNLESS_ENDED(pool, REAL(cuMemPoolGetAccess)(flags, pool, location));
}

CUresult weir__serve_cuMemPoolExportToShareableHandle(void *shared, CUmemoryPool pool,
                                                      CUmemAllocationHandleType type,
                                                      unsigned long long flags) {
    return UNLESS_ENDED(pool, REAL(cuMemPoolExportToShareableHandle)(shared, pool, type, flags));
}

CUresult weir__serve_cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool,
                                            CUmemPoolPtrExportData *data) {
    return UNLESS_ENDED(pool, REAL(cuMemPoolImportPointer)(address, pool, data));
}

/* ---- current pools ---- */

/* Records a pool that the program has set as current, or that the driver has returned. */
static CUresult record_pool_at(CUresult result, const CUmemoryPool *pool,
                               const CUmemLocation *given, CUmemAllocationType type,
                               int is_current) {
    CUmemLocation location;
    struct weir_pool *p;
    enum weir_fallback why;

    if (result != CUDA_SUCCESS || !*pool || !begin_serving())
        return result;
    location = location_of(*pool, given);
    why = reason_of_location(type, location.type);
    p = weir__pool_add(*pool, why == WEIR_FALLBACK_NOT ? location.id : -1,
                       (struct weir_pool_kind){0}, why);
    /* For a locality domain (a part of a device), stores NULL, so that the next request queries the driver. */
    if (is_current && why == WEIR_FALLBACK_NOT)
        weir__pool_set_current(location.id, location.type == given->type ? p : NULL);
    end_serving();
    return result;
}

static CUresult record_default_pool(CUresult result, const CUmemoryPool *pool, int device,
                                    int is_current) {
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};

    return record_pool_at(result, pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, is_current);
}

CUresult weir__serve_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    return UNLESS_ENDED(
        pool, record_default_pool(REAL(cuDeviceSetMemPool)(device, pool), &pool, device, 1));
}

CUresult weir__serve_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return record_default_pool(REAL(cuDeviceGetMemPool)(pool, device), pool, device, 0);
}

CUresult weir__serve_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    return record_default_pool(REAL(cuDeviceGetDefaultMemPool)(pool, device), pool, device, 0);
}

CUresult weir__serve_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                     CUmemoryPool pool) {
    CUresult result = UNLESS_ENDED(pool, REAL(cuMemSetMemPool)(location, type, pool));

    return record_pool_at(result, &pool, location, type, 1);
}

CUresult weir__serve_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                     CUmemAllocationType type) {
    return record_pool_at(REAL(cuMemGetMemPool)(pool, location, type), pool, location, type, 0);
}

CUresult weir__serve_cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                            CUmemAllocationType type) {
    return record_pool_at(REAL(cuMemGetDefaultMemPool)(pool, location, type), pool, location, type,
                          0);
}
