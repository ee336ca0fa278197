/* SPDX-License-Identifier: MIT */
/* group_driver.c: a driver table that charges all device memory of this process to its group.
 *
 * The table charges memory before the driver allocates it, and subtracts memory after the driver has freed it, so the
 * driver never has more memory than the group counts.  A request above the limit fails as out of memory, and the table
 * never reports more free memory than the limit allows.  A pool's growth is not known before a request, so the table
 * charges multiples of POOL_UNIT, and afterwards corrects the charge.  A cuMemAllocAsync during a stream capture is not
 * charged, since the driver allocates the memory only when the graph is launched.
 *
 * Locks: `correcting_count`, then `lock`, which guards the maps, then the lock of the group. */
#include "ipc/group_process.h"

#include <pthread.h>

#include "base/map.h"
#include "base/size.h"

/* The driver enlarges a memory pool by a multiple of this size (H200, driver 580). */
#define POOL_UNIT ((uint64_t)32 << 20)
#define FIRST_PAUSE_NS UINT64_C(20000)
#define LONGEST_PAUSE_NS UINT64_C(2000000)
#define LONGEST_WAIT_NS UINT64_C(1000000000)

static const struct weir_driver *inner;
static struct weir_driver table;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* For each cuMemAlloc block, physical allocation and pool: its charged bytes and its device (pack_record()). */
static struct weir_map blocks, handles, pools;

enum { DEVICE_BITS = 6 };

static uintptr_t pack_record(uint64_t bytes, CUdevice device) {
    return (uintptr_t)(bytes << DEVICE_BITS | (unsigned)device);
}

static uint64_t counted_in(uintptr_t word) {
    return (uint64_t)word >> DEVICE_BITS;
}

static CUdevice counted_on(uintptr_t word) {
    return (CUdevice)(word & ((1U << DEVICE_BITS) - 1));
}

static struct weir_group *group_of(CUdevice device) {
    return weir__group_of(inner, device);
}

static struct weir_group *group_here(CUdevice *device) {
    return inner->cuCtxGetDevice(device) == CUDA_SUCCESS ? group_of(*device) : NULL;
}

static int store_record(struct weir_map *map, uint64_t key, uintptr_t value) {
    int is_put;

    pthread_mutex_lock(&lock);
    is_put = weir__map_put(map, key, value);
    pthread_mutex_unlock(&lock);
    return is_put;
}

static uintptr_t remove_record(struct weir_map *map, uint64_t key) {
    uintptr_t value = 0;

    pthread_mutex_lock(&lock);
    (void)weir__map_remove(map, key, &value);
    pthread_mutex_unlock(&lock);
    return value;
}

/* ---- contexts ------------------------------------------------------------------------------------ */

static CUresult count_retain(CUcontext *context, CUdevice device) {
    char why[WEIR_GROUP_WHY];
    struct weir_group *g = weir__group_enter(inner, device, why);
    CUresult result;

    if (!g)
        return why[0] ? CUDA_ERROR_OUT_OF_MEMORY : inner->cuDevicePrimaryCtxRetain(context, device);
    if (!weir__group_context_begins(g, 1))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = inner->cuDevicePrimaryCtxRetain(context, device);
    if (result != CUDA_SUCCESS)
        weir__group_context_ends(g, 1);
    return result;
}

static CUresult count_primary_release(CUdevice device) {
    CUresult result = inner->cuDevicePrimaryCtxRelease(device);

    if (result == CUDA_SUCCESS && group_of(device))
        weir__group_context_ends(group_of(device), 1);
    return result;
}

static CUresult cap_free_memory(size_t *free_bytes, size_t *total) {
    CUresult result = inner->cuMemGetInfo(free_bytes, total);
    CUdevice device;
    struct weir_group *g = result == CUDA_SUCCESS ? group_here(&device) : NULL;

    if (g)
        *free_bytes = (size_t)weir__size_smaller(*free_bytes, weir__group_room(g));
    return result;
}

/* ---- memory -------------------------------------------------------------------------------------- */

/* A driver call that frees a block or a physical allocation.  `key` is the address or the handle. */
typedef CUresult free_call(unsigned long long key);

/* Records the charged bytes of a new allocation.  On failure uncharges them, and frees the allocation by `undo`. */
static CUresult record_bytes(struct weir_group *g, struct weir_map *map,
                             const unsigned long long *key, uintptr_t word, CUresult result,
                             free_call *undo) {
    if (result == CUDA_SUCCESS && store_record(map, *key, word))
        return result;
    if (result == CUDA_SUCCESS) {
        (void)undo(*key);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    weir__group_uncharge(g, WEIR_GROUP_RESERVE, counted_in(word));
    return result;
}

/* Removes the record before the free, because the driver may reuse the address or handle at once. */
static CUresult free_recorded(struct weir_map *map, unsigned long long key, free_call *call) {
    uintptr_t word = remove_record(map, key);
    struct weir_group *g = word ? group_of(counted_on(word)) : NULL;
    CUresult result = call(key);

    if (g && result == CUDA_SUCCESS)
        weir__group_uncharge(g, WEIR_GROUP_RESERVE, counted_in(word));
    else if (word && result != CUDA_SUCCESS) /* cannot fail: the removed record has left room */
        (void)store_record(map, key, word);
    return result;
}

static CUresult count_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                             const CUmemAllocationProp *properties, unsigned long long flags) {
    CUdevice device = properties->location.id;
    struct weir_group *g = group_of(device);
    CUresult result;

    if (!g)
        return inner->cuMemCreate(handle, bytes, properties, flags);
    if (!weir__group_charge(g, WEIR_GROUP_RESERVE, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = inner->cuMemCreate(handle, bytes, properties, flags);
    return record_bytes(g, &handles, handle, pack_record(bytes, device), result,
                        inner->cuMemRelease);
}

static CUresult count_release(CUmemGenericAllocationHandle handle) {
    return free_recorded(&handles, handle, inner->cuMemRelease);
}

static CUresult count_alloc(CUdeviceptr *block, size_t bytes) {
    CUdevice device;
    struct weir_group *g = group_here(&device);
    CUresult result;

    if (!g)
        return inner->cuMemAlloc(block, bytes);
    if (!weir__group_charge(g, WEIR_GROUP_RESERVE, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = inner->cuMemAlloc(block, bytes);
    return record_bytes(g, &blocks, block, pack_record(bytes, device), result, inner->cuMemFree);
}

static CUresult count_block_free(CUdeviceptr block) {
    return free_recorded(&blocks, block, inner->cuMemFree);
}

/* ---- pools --------------------------------------------------------------------------------------- */

static CUresult count_pool_create(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = inner->cuMemPoolCreate(pool, properties);

    if (result == CUDA_SUCCESS && group_of(properties->location.id))
        (void)store_record(&pools, (uintptr_t)*pool, pack_record(0, properties->location.id));
    return result;
}

/* Returns the group that counts the pool, and the pool's charged bytes in *counted.  Returns NULL without a record. */
static struct weir_group *group_of_pool(CUmemoryPool pool, uint64_t *counted) {
    uintptr_t word = 0;
    int is_known;

    pthread_mutex_lock(&lock);
    is_known = weir__map_get(&pools, (uintptr_t)pool, &word);
    pthread_mutex_unlock(&lock);
    *counted = counted_in(word);
    return is_known ? group_of(counted_on(word)) : NULL;
}

/* Returns CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT of the pool, or UINT64_MAX if the driver fails to report it. */
static uint64_t read_pool_reserved(CUmemoryPool pool) {
    struct weir_driver_scope scope;
    uint64_t bytes = UINT64_MAX;

    if (weir__driver_relax(inner, &scope) != CUDA_SUCCESS)
        return UINT64_MAX;
    if (inner->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) !=
        CUDA_SUCCESS)
        bytes = UINT64_MAX;
    weir__driver_unrelax(inner, &scope);
    return bytes;
}

/* Makes the group count the pool's reserved bytes, of which `before` bytes are charged already.  If the driver does
 * not report the reserved bytes, assumes a growth of `took` bytes. */
static void correct_pool_count(struct weir_group *g, CUmemoryPool pool, uint64_t before,
                               uint64_t took) {
    /* Held from the query of the reserved bytes to the update, so that no older number replaces a newer one. */
    static pthread_mutex_t correcting_count = PTHREAD_MUTEX_INITIALIZER;
    uintptr_t word = 0;
    uint64_t has, counted;

    pthread_mutex_lock(&correcting_count);
    has = read_pool_reserved(pool);
    pthread_mutex_lock(&lock);
    (void)weir__map_get(&pools, (uintptr_t)pool, &word);
    counted = counted_in(word);
    if (has == UINT64_MAX)
        has = counted + took;
    if (!weir__map_put(&pools, (uintptr_t)pool, pack_record(has, counted_on(word))))
        has = counted; /* unreached: weir__map_put() replaces a value, which cannot fail */
    if (has > counted + before)
        weir__group_charge_unlimited(g, WEIR_GROUP_RESERVE, has - counted - before);
    else
        weir__group_uncharge(g, WEIR_GROUP_RESERVE, counted + before - has);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&correcting_count);
}

/* Polls the stream for at most a second.  Returns 1 if its work is completed and synchronised with the host, else 0.
 * No capture of the stream may be active. */
static int poll_stream(CUstream stream) {
    uint64_t began = inner->ticks(), pause = FIRST_PAUSE_NS;
    struct weir_driver_scope scope;
    CUresult result;

    if (weir__driver_relax(inner, &scope) != CUDA_SUCCESS)
        return 0;
    while ((result = inner->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY &&
           inner->ticks() - began < LONGEST_WAIT_NS) {
        inner->sleep_ns(pause);
        pause = weir__size_smaller(2 * pause, LONGEST_PAUSE_NS);
    }
    if (result == CUDA_SUCCESS)
        result = inner->cuStreamSynchronize(stream);
    weir__driver_unrelax(inner, &scope);
    return result == CUDA_SUCCESS;
}

/* Charges `units` bytes, the most by which the driver may enlarge the pool, even if the pool has enough idle memory.
 * If the limit forbids the growth, trims the pool and tries again.  Returns 1 on success, else 0. */
static int count_units(struct weir_group *g, CUmemoryPool pool, CUstream stream, uint64_t units,
                       uint64_t counted) {
    CUstreamCaptureStatus status;

    if (weir__group_charge(g, WEIR_GROUP_RESERVE, units))
        return 1;
    if (counted < units || inner->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_NONE || !poll_stream(stream))
        return 0;
    (void)inner->cuMemPoolTrimTo(pool, 0);
    correct_pool_count(g, pool, 0, 0);
    return weir__group_charge(g, WEIR_GROUP_RESERVE, units);
}

static CUresult count_pool_alloc(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
    uint64_t counted, units = (bytes + POOL_UNIT - 1) / POOL_UNIT * POOL_UNIT;
    struct weir_group *g = group_of_pool(pool, &counted);
    CUresult result;

    if (!g)
        return inner->cuMemAllocFromPoolAsync(block, bytes, pool, stream);
    if (units < bytes || !count_units(g, pool, stream, units, counted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = inner->cuMemAllocFromPoolAsync(block, bytes, pool, stream);
    correct_pool_count(g, pool, units, result == CUDA_SUCCESS ? units : 0);
    return result;
}

static CUresult count_pool_trim(CUmemoryPool pool, size_t keep) {
    CUresult result = inner->cuMemPoolTrimTo(pool, keep);
    uint64_t counted;
    struct weir_group *g = group_of_pool(pool, &counted);

    if (g)
        correct_pool_count(g, pool, 0, 0);
    return result;
}

/* Subtracts the pool's bytes from the group's counter at once, since all blocks of the pool are freed before. */
static CUresult count_pool_destroy(CUmemoryPool pool) {
    uint64_t counted;
    struct weir_group *g = group_of_pool(pool, &counted);
    CUresult result = inner->cuMemPoolDestroy(pool);

    if (g && result == CUDA_SUCCESS)
        weir__group_uncharge(g, WEIR_GROUP_RESERVE,
                             counted_in(remove_record(&pools, (uintptr_t)pool)));
    return result;
}

const struct weir_driver *weir__group_driver(const struct weir_driver *driver) {
    struct weir_group_settings settings;
    char message[WEIR_GROUP_WHY];

    if (!driver || weir__group_settings(&settings, message, sizeof message) == 0)
        return driver;
    pthread_mutex_lock(&making);
    if (!inner) {
        table = *driver;
        table.cuDevicePrimaryCtxRetain = count_retain;
        table.cuDevicePrimaryCtxRelease = count_primary_release;
        table.cuMemGetInfo = cap_free_memory;
        table.cuMemAlloc = count_alloc;
        table.cuMemFree = count_block_free;
        table.cuMemPoolCreate = count_pool_create;
        table.cuMemAllocFromPoolAsync = count_pool_alloc;
        table.cuMemPoolTrimTo = count_pool_trim;
        table.cuMemPoolDestroy = count_pool_destroy;
        if (driver->cuMemCreate) {
            table.cuMemCreate = count_create;
            table.cuMemRelease = count_release;
        }
        inner = driver;
    }
    pthread_mutex_unlock(&making);
    return driver == inner ? &table : driver;
}
