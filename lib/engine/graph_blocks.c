/* SPDX-License-Identifier: MIT */
/* graph_blocks.c: see graph_blocks.h. */
#include "engine/graph_blocks.h"

#include <string.h>

#include "base/result.h"

void weir__nodes_open(struct weir_nodes *n, struct weir_device *device) {
    weir__async_open(&n->async, device);
    pthread_mutex_init(&n->lock, NULL);
    n->access = device->access;
}

static CUresult make_pool(struct weir_nodes *n) {
    const struct weir_device *device = n->async.device;
    const struct weir_driver *driver = device->driver;
    struct weir_driver_scope scope;
    CUmemPoolProps properties;
    CUresult result = weir__driver_enter(driver, device->context, &scope);

    if (result != CUDA_SUCCESS)
        return result;
    memset(&properties, 0, sizeof properties); /* reserved bytes must be zero */
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device->ordinal;
    result = driver->cuMemPoolCreate(&n->pool, &properties);
    if (result == CUDA_SUCCESS && n->access.count > 1) {
        result = driver->cuMemPoolSetAccess(n->pool, n->access.list + 1, n->access.count - 1);
        if (result != CUDA_SUCCESS)
            driver->cuMemPoolDestroy(n->pool);
    }
    if (result != CUDA_SUCCESS)
        n->pool = NULL;
    weir__driver_leave(driver, &scope);
    return result;
}

/* Graphs do not need it any more.  Not CUDA_SUCCESS: it stays.  The caller holds the lock, or nobody else has the
 * nodes. */
static CUresult drop_pool(struct weir_nodes *n) {
    const struct weir_device *device = n->async.device;
    struct weir_driver_scope scope;
    CUresult result = CUDA_SUCCESS;

    if (n->pool)
        result = weir__driver_enter(device->driver, device->context, &scope);
    if (!n->pool || result != CUDA_SUCCESS)
        return result;
    device->driver->cuMemPoolDestroy(n->pool);
    n->pool = NULL;
    weir__driver_leave(device->driver, &scope);
    return CUDA_SUCCESS;
}

void weir__nodes_close(struct weir_nodes *n) {
    (void)drop_pool(n);
    weir__map_clear(&n->places);
    pthread_mutex_destroy(&n->lock);
    weir__async_close(&n->async);
}

/* The caller holds the lock. */
static weir_status take(struct weir_nodes *n, size_t bytes, weir_stream stream,
                        CUdeviceptr *block) {
    struct weir_device *device = n->async.device;
    CUresult result = n->outdated ? drop_pool(n) : CUDA_SUCCESS;
    CUdeviceptr node = 0;

    if (result == CUDA_SUCCESS)
        n->outdated = 0;
    if (result == CUDA_SUCCESS && !n->pool)
        result = make_pool(n);
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        return weir__without_driver(WEIR_E_CAPTURE);
    if (result == CUDA_SUCCESS)
        result = weir__async_take(device, n->pool, bytes, stream, &node);
    if (result != CUDA_SUCCESS)
        return weir__device_status(device, result);
    if (!weir__map_put(&n->places, node, 1)) {
        (void)weir__async_give(device, node, stream);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    atomic_store_explicit(&n->any, 1, memory_order_release);
    *block = node;
    return WEIR_OK;
}

weir_status weir__nodes_alloc(struct weir_nodes *n, size_t bytes, weir_stream stream,
                              CUdeviceptr *block) {
    const struct weir_device *device = n->async.device;
    weir_status status;

    if (device->drop_in || !(device->driver->capabilities & WEIR_CAP_GRAPH))
        return weir__without_driver(WEIR_E_CAPTURE);
    pthread_mutex_lock(&n->lock);
    status = take(n, bytes, stream, block);
    pthread_mutex_unlock(&n->lock);
    return status;
}

int weir__nodes_has(struct weir_nodes *n, CUdeviceptr block) {
    int has;

    if (!atomic_load_explicit(&n->any, memory_order_acquire))
        return 0;
    pthread_mutex_lock(&n->lock);
    has = weir__map_get(&n->places, block, NULL);
    pthread_mutex_unlock(&n->lock);
    return has;
}

weir_status weir__nodes_free(struct weir_nodes *n, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses) {
    struct weir_device *device = n->async.device;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_relax(device->driver, &scope);
    weir_status status;

    if (result != CUDA_SUCCESS)
        return weir__device_status(device, result);
    status = weir__async_free(&n->async, block, stream, uses);
    weir__driver_unrelax(device->driver, &scope);
    return status;
}

void weir__nodes_allow(struct weir_nodes *n, const CUmemAccessDesc *access) {
    pthread_mutex_lock(&n->lock);
    weir__peers_note(&n->access, access);
    n->outdated = drop_pool(n) != CUDA_SUCCESS;
    pthread_mutex_unlock(&n->lock);
}

size_t weir__nodes_host_bytes(struct weir_nodes *n) {
    size_t bytes;

    pthread_mutex_lock(&n->lock);
    bytes = n->places.capacity * sizeof *n->places.slots;
    pthread_mutex_unlock(&n->lock);
    return bytes;
}
