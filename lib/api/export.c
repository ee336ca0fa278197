/* SPDX-License-Identifier: MIT */
/* export.c: blocks for other processes, on the exporter's side (weir/share.h).
 *
 * The driver shares a piece of its pool, from which blocks are cut.  A handle says which piece that is and where in it
 * the block lies.  A table maps each shared block to its place in the list of loans (lease.h).
 *
 * Locks: one lock guards table and list; the driver is not called under it.
 *
 * Must not know: how an engine cuts blocks; which process imports.
 */
#include "api/export.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/create.h"
#include "base/file.h"
#include "base/log.h"
#include "base/map.h"
#include "base/result.h"
#include "ipc/lease.h"

struct weir_exports {
    pthread_mutex_t lock; /* guards the fields below */
    struct weir_loans loans;
    struct weir_map places; /* maps a shared block's address to its place + 1 */
    size_t count;
};

weir_status weir__exports_open(const struct weir_device *device, struct weir_exports **exports) {
    struct weir_exports *e = calloc(1, sizeof *e);
    weir_status status = WEIR_E_HOST_MEMORY;
    CUuuid uuid;

    if (!e)
        return weir__without_driver(status);
    memset(&uuid, 0, sizeof uuid);
    (void)device->driver->cuDeviceGetUuid(&uuid, device->ordinal);
    status = weir__loans_make(&e->loans, uuid.bytes);
    if (status != WEIR_OK) {
        free(e);
        return weir__without_driver(status);
    }
    pthread_mutex_init(&e->lock, NULL);
    *exports = e;
    return WEIR_OK;
}

void weir__exports_close(struct weir_exports *e) {
    if (!e)
        return;
    weir__loans_close(&e->loans);
    weir__map_clear(&e->places);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

/* Withdraws a shared block from the list of loans.  The caller holds the lock. */
static weir_status withdraw(weir_allocator *a, CUdeviceptr block) {
    struct weir_exports *e = a->exports;
    uintptr_t place = 0;
    weir_status status;

    if (!weir__map_get(&e->places, block, &place))
        return WEIR_OK;
    status = weir__loans_withdraw(&e->loans, (uint32_t)place - 1);
    if (status != WEIR_OK)
        return status;
    (void)weir__map_take(&e->places, block, &place);
    if (--e->count == 0)
        (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_SHARED, 0);
    return WEIR_OK;
}

weir_status weir__exports_withdraw(weir_allocator *a, CUdeviceptr block) {
    weir_status status;

    pthread_mutex_lock(&a->exports->lock);
    status = withdraw(a, block);
    pthread_mutex_unlock(&a->exports->lock);
    return status == WEIR_OK ? status : weir__without_driver(status);
}

/* Checks the allocator as each call here does first. */
static weir_status gate(const weir_allocator *a) {
    weir_status status = weir__gate(a);

    return status != WEIR_OK || a->exports ? status : weir__without_driver(WEIR_E_NOT_SUPPORTED);
}

static CUresult export_pool(weir_allocator *a, int *file) {
    return WEIR_IN_SCOPE(
        a->device.driver, a->device.context,
        a->device.driver->cuMemPoolExportToShareableHandle(
            file, a->reserve.engine->driver_pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

weir_status weir_export(weir_allocator *a, int files[2]) {
    weir_status status = gate(a);
    int pool = -1, loans;
    CUresult result;

    if (status != WEIR_OK)
        return status;
    if (!files)
        return weir__allocator_misuse(a, WEIR_E_INVALID, "weir_export", "files is NULL");
    loans = weir__kept_is(&a->exports->loans.given)
                ? weir__file_copy(a->exports->loans.given.number)
                : -1;
    if (loans < 0)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    result = export_pool(a, &pool);
    if (result != CUDA_SUCCESS) {
        close(loans);
        return weir__device_status(&a->device, result);
    }
    (void)fcntl(pool, F_SETFD, FD_CLOEXEC);
    files[0] = pool;
    files[1] = loans;
    return WEIR_OK;
}

/* Describes the piece that contains the block, as the driver knows it. */
static weir_status describe(weir_allocator *a, CUdeviceptr block, struct weir_handle *h) {
    struct weir_extent piece;
    CUdeviceptr region = block;
    CUresult result;

    if (weir__engine_find(a->reserve.engine, WEIR_VISIT_PIECE_AT, block, &piece) == 1)
        region = piece.base;
    result = WEIR_IN_SCOPE(a->device.driver, a->device.context,
                           a->device.driver->cuMemPoolExportPointer(&h->data, region));
    h->version = WEIR_HANDLE_VERSION;
    h->loans = weir__loans_name(&a->exports->loans);
    h->region = region;
    h->offset = block - region;
    if (result == CUDA_ERROR_INVALID_VALUE) { /* no block of the pool begins there */
        weir__set_driver_result((int)result);
        return WEIR_E_NOT_OWNED;
    }
    return weir__device_status(&a->device, result);
}

/* Returns OK if the stream has no work left, E_BUSY if it has. */
static weir_status is_done(weir_allocator *a, weir_stream stream) {
    weir_status status = weir__device_capture(&a->device, stream);
    CUresult result;

    if (status != WEIR_OK)
        return status;
    result = a->device.driver->cuStreamQuery(stream);
    if (result == CUDA_ERROR_NOT_READY)
        return weir__without_driver(WEIR_E_BUSY);
    return result == CUDA_ERROR_INVALID_HANDLE ? WEIR_E_STREAM
                                               : weir__device_status(&a->device, result);
}

/* Offers the block in the list of loans.  The caller holds the lock. */
static weir_status offer(weir_allocator *a, CUdeviceptr block, struct weir_handle *h) {
    struct weir_exports *e = a->exports;
    uintptr_t place;
    weir_status status = WEIR_OK;

    if (weir__map_get(&e->places, block, &place))
        status =
            weir__loans_is_over(&e->loans, (uint32_t)place - 1) ? withdraw(a, block) : WEIR_E_BUSY;
    if (status == WEIR_OK)
        status = weir__loans_offer(&e->loans, &h->place, &h->life);
    if (status != WEIR_OK)
        return status;
    if (!weir__map_put(&e->places, block, (uintptr_t)h->place + 1)) {
        (void)weir__loans_withdraw(&e->loans, h->place);
        return WEIR_E_HOST_MEMORY;
    }
    if (e->count++ == 0)
        (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_SHARED, 1);
    return WEIR_OK;
}

weir_status weir_share(weir_allocator *a, void *block, weir_stream stream, weir_shared *handle) {
    CUdeviceptr at = (uintptr_t)block;
    weir_status status = gate(a);
    struct weir_handle h;

    if (status != WEIR_OK)
        return status;
    if (!block || !handle)
        return weir__allocator_misuse(a, WEIR_E_INVALID, "weir_share",
                                      block ? "handle is NULL" : "block is NULL");
    if (!weir__allocator_is_live(a, at))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    memset(&h, 0, sizeof h);
    status = is_done(a, stream);
    if (status == WEIR_OK)
        status = describe(a, at, &h);
    if (status != WEIR_OK)
        return status;
    pthread_mutex_lock(&a->exports->lock);
    status = offer(a, at, &h);
    pthread_mutex_unlock(&a->exports->lock);
    if (status != WEIR_OK)
        return weir__without_driver(status);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &h, sizeof h);
    return WEIR_OK;
}
