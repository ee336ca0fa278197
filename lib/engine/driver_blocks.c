/* SPDX-License-Identifier: MIT */
/* driver_blocks.c: implements driver_blocks.h. */
#include "engine/driver_blocks.h"

#include <string.h>

#include "base/result.h"
#include "base/size.h"

void weir__async_close(struct weir_async *async) {
    const struct weir_driver *driver = async->device->driver;

    if (async->joined)
        (void)WEIR_IN_SCOPE(driver, async->device->context, driver->cuStreamDestroy(async->joined));
}

CUresult weir__async_make_pool(const struct weir_device *device, const struct weir_access *access,
                               size_t most, unsigned short usage, CUmemoryPool *pool) {
    const struct weir_driver *driver = device->driver;
    CUmemPoolProps properties;
    CUresult result;

    memset(&properties, 0, sizeof properties); /* the driver requires zeros in unused fields */
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device->ordinal;
    properties.maxSize = most;
    properties.usage = usage;
    result = driver->cuMemPoolCreate(pool, &properties);
    if (result == CUDA_SUCCESS && access->count > 1) {
        result = driver->cuMemPoolSetAccess(*pool, access->list + 1, access->count - 1);
        if (result != CUDA_SUCCESS)
            driver->cuMemPoolDestroy(*pool);
    }
    if (result != CUDA_SUCCESS)
        *pool = NULL;
    return result;
}

CUresult weir__async_free_on(struct weir_device *device, CUdeviceptr block, weir_stream stream) {
    return WEIR_ON_STREAM(device, device->driver->cuMemFreeAsync(block, stream));
}

/* Makes the stream `joined` wait for all work so far on `stream`. */
static CUresult join_stream(struct weir_async *async, weir_stream stream, uint64_t id) {
    const struct weir_driver *driver = async->device->driver;
    CUresult result = CUDA_SUCCESS;

    if (!async->joined)
        result = WEIR_IN_SCOPE(driver, async->device->context,
                               driver->cuStreamCreate(&async->joined, CU_STREAM_NON_BLOCKING));
    return result == CUDA_SUCCESS
               ? weir__device_order_after(async->device, async->joined, stream, id)
               : result;
}

weir_status weir__uses_check(struct weir_device *device, weir_stream stream,
                             struct weir_use_list *uses) {
    weir_status status = weir__device_capture(device, stream);

    for (size_t i = 0; uses && i < uses->count && status == WEIR_OK; i++) {
        status = weir__device_capture(device, uses->use[i].stream);
        uses->use[i].refused = status == WEIR_E_STREAM;
    }
    return status;
}

/* Frees a block that several streams use, on weir's stream `joined`.  Makes `joined` wait for these streams first. */
static CUresult free_with_uses(struct weir_async *async, CUdeviceptr block, weir_stream stream,
                               struct weir_use_list *uses) {
    CUresult result;

    weir__lock_take(&async->joining);
    result = join_stream(async, stream, 0);
    for (size_t i = 0; i < uses->count && result == CUDA_SUCCESS; i++) {
        result = join_stream(async, uses->use[i].stream, uses->use[i].id);
        uses->use[i].refused = result == CUDA_ERROR_INVALID_HANDLE;
    }
    if (result == CUDA_SUCCESS)
        result = async->device->driver->cuMemFreeAsync(block, async->joined);
    weir__lock_give(&async->joining);
    return result;
}

weir_status weir__async_free(struct weir_async *async, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses) {
    const struct weir_driver *driver = async->device->driver;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_relax(driver, &scope);
    weir_status status;

    if (result != CUDA_SUCCESS)
        return weir__device_status(async->device, result);
    status = uses ? weir__uses_check(async->device, stream, uses) : WEIR_OK;
    if (status == WEIR_OK) {
        result = uses ? free_with_uses(async, block, stream, uses)
                      : weir__async_free_on(async->device, block, stream);
        if (result != CUDA_ERROR_INVALID_VALUE)
            status = weir__device_status(async->device, result);
    }
    if (result == CUDA_ERROR_INVALID_VALUE) {
        status = weir__device_capture(async->device, stream);
        weir__set_driver_result((int)result);
        if (status == WEIR_OK)
            status = WEIR_E_NOT_OWNED;
    }
    weir__driver_unrelax(driver, &scope);
    return status;
}

int weir__async_is_pending(struct weir_async *async) {
    const struct weir_driver *driver = async->device->driver;
    CUresult result = CUDA_SUCCESS;

    weir__lock_take(&async->joining);
    if (async->joined)
        result =
            WEIR_IN_SCOPE(driver, async->device->context, driver->cuStreamQuery(async->joined));
    weir__lock_give(&async->joining);
    return result != CUDA_SUCCESS; /* after a failed query, frees may be pending */
}

/* ---- sizes of live blocks ---- */

int weir__sizes_count(struct weir_sizes *sizes, size_t bytes, uint64_t limit) {
    int fits;

    weir__lock_take(&sizes->lock);
    fits = bytes <= limit && sizes->in_use <= limit - bytes;
    if (fits)
        sizes->in_use += bytes;
    weir__lock_give(&sizes->lock);
    return fits;
}

int weir__sizes_record(struct weir_sizes *sizes, CUdeviceptr block, size_t bytes, int is_live) {
    weir__lock_take(&sizes->lock);
    is_live = is_live && weir__map_put(&sizes->map, block, bytes);
    if (!is_live)
        sizes->in_use -= bytes;
    sizes->in_use_peak = weir__size_larger(sizes->in_use_peak, sizes->in_use);
    weir__lock_give(&sizes->lock);
    return is_live;
}

int weir__sizes_remove(struct weir_sizes *sizes, CUdeviceptr block, size_t *bytes) {
    uintptr_t known = 0;
    int is_live;

    weir__lock_take(&sizes->lock);
    is_live = weir__map_remove(&sizes->map, block, &known);
    weir__lock_give(&sizes->lock);
    *bytes = known;
    return is_live;
}

void weir__sizes_figures(struct weir_sizes *sizes, weir_statistics *out) {
    weir__lock_take(&sizes->lock);
    out->requested = out->in_use = sizes->in_use;
    out->requested_peak = out->in_use_peak = sizes->in_use_peak;
    out->host_bytes = sizes->map.capacity * sizeof *sizes->map.slots;
    weir__lock_give(&sizes->lock);
}

/* ---- addresses of blocks, and blocks inside CUDA graphs ---- */

int weir__addresses_add(struct weir_address_table *t, CUdeviceptr block, uintptr_t value) {
    int is_added;

    weir__lock_take(&t->lock);
    is_added = weir__map_put(&t->map, block, value);
    atomic_store_explicit(&t->host_bytes, t->map.capacity * sizeof *t->map.slots,
                          memory_order_relaxed);
    weir__lock_give(&t->lock);
    if (is_added)
        atomic_store_explicit(&t->any, 1, memory_order_release);
    return is_added;
}

int weir__addresses_has(struct weir_address_table *t, CUdeviceptr block) {
    int has;

    if (!atomic_load_explicit(&t->any, memory_order_acquire))
        return 0;
    weir__lock_take(&t->lock);
    has = weir__map_get(&t->map, block, NULL);
    weir__lock_give(&t->lock);
    return has;
}

uintptr_t weir__addresses_remove(struct weir_address_table *t, CUdeviceptr block) {
    uintptr_t value = 0;

    if (!atomic_load_explicit(&t->any, memory_order_acquire))
        return 0;
    weir__lock_take(&t->lock);
    (void)weir__map_remove(&t->map, block, &value);
    weir__lock_give(&t->lock);
    return value;
}

/* Destroys the pool of `n`, which existing CUDA graphs do not need.  The caller holds n->lock or closes `n`. */
static CUresult destroy_node_pool(struct weir_nodes *n) {
    const struct weir_device *device = n->async.device;
    CUresult result = CUDA_SUCCESS;

    /* Ignores an error of cuMemPoolDestroy, since the pool must not be used after this call in any case. */
    if (n->pool)
        result = WEIR_IN_SCOPE(device->driver, device->context,
                               (device->driver->cuMemPoolDestroy(n->pool), CUDA_SUCCESS));
    if (result == CUDA_SUCCESS)
        n->pool = NULL;
    return result;
}

void weir__nodes_close(struct weir_nodes *n) {
    (void)destroy_node_pool(n);
    weir__async_close(&n->async);
}

/* The caller holds n->lock. */
static weir_status allocate_node(struct weir_nodes *n, struct weir_request *r) {
    struct weir_device *device = n->async.device;
    CUresult result = n->outdated ? destroy_node_pool(n) : CUDA_SUCCESS;

    if (result == CUDA_SUCCESS)
        n->outdated = 0;
    if (result == CUDA_SUCCESS && !n->pool)
        result = WEIR_IN_SCOPE(device->driver, device->context,
                               weir__async_make_pool(device, &n->access, 0, 0, &n->pool));
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        return weir__without_driver(WEIR_E_CAPTURE);
    if (result == CUDA_SUCCESS)
        result = WEIR_ON_STREAM(device, device->driver->cuMemAllocFromPoolAsync(
                                            &r->block, r->bytes, n->pool, r->stream));
    if (result == CUDA_SUCCESS)
        r->flags |= WEIR_REQUEST_CAPTURED;
    return weir__device_status(device, result);
}

weir_status weir__nodes_alloc(struct weir_nodes *n, struct weir_request *r) {
    const struct weir_device *device = n->async.device;
    weir_status status;

    if (device->drop_in || !(device->driver->capabilities & WEIR_CAP_GRAPH))
        return weir__without_driver(WEIR_E_CAPTURE);
    weir__lock_take(&n->lock);
    status = allocate_node(n, r);
    weir__lock_give(&n->lock);
    return status;
}

void weir__nodes_allow(struct weir_nodes *n, const CUmemAccessDesc *access) {
    weir__lock_take(&n->lock);
    weir__peers_change(&n->access, access);
    n->outdated = destroy_node_pool(n) != CUDA_SUCCESS;
    weir__lock_give(&n->lock);
}
