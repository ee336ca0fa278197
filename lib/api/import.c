/* SPDX-License-Identifier: MIT */
/* import.c: blocks of another process: the importer's side (weir/share.h).
 *
 * The driver imports pieces of the exporter's pool, in each of which blocks may lie; a piece is imported with its
 * first block and freed with its last.
 *
 * Locks: one over all of an import, under it driver calls.
 *
 * Must not know: allocators.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "api/allocator_internal.h"
#include "api/export.h"
#include "base/hostmem.h"
#include "base/map.h"
#include "base/result.h"
#include "ipc/lease.h"

struct piece {
    uint64_t region; /* the exporter's address */
    CUdeviceptr base;
    size_t blocks;
    int is_freed; /* but that could not be seen through: the last block is still to be given up */
};

struct imported {
    CUdeviceptr block;
    uint64_t region;
    uint32_t place;
};

struct weir_import {
    const struct weir_driver *driver;
    CUdevice device;
    CUcontext context;
    CUmemoryPool pool;
    pthread_mutex_t lock; /* guards what follows */
    struct weir_loans loans;
    struct piece *pieces;
    size_t piece_count, piece_capacity;
    struct imported *blocks;
    size_t block_count, block_capacity;
};

static weir_status refused(CUresult result) {
    if (result == CUDA_SUCCESS)
        return WEIR_OK;
    weir__set_driver_result((int)result);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? WEIR_E_NO_MEMORY : WEIR_E_DRIVER;
}

/* ---- an import ------------------------------------------------------------------------------- */

/* The device of that UUID. */
static weir_status find_device(struct weir_import *i, int *device) {
    int count = 0;
    CUresult result = i->driver->cuDeviceGetCount(&count);

    for (int at = 0; at < count && result == CUDA_SUCCESS; at++) {
        CUuuid uuid;

        result = i->driver->cuDeviceGet(&i->device, at);
        if (result == CUDA_SUCCESS)
            result = i->driver->cuDeviceGetUuid(&uuid, i->device);
        if (result == CUDA_SUCCESS &&
            memcmp(uuid.bytes, weir__loans_device(&i->loans), sizeof uuid.bytes) == 0) {
            *device = at;
            return WEIR_OK;
        }
    }
    return result == CUDA_SUCCESS ? weir__without_driver(WEIR_E_NO_DEVICE) : refused(result);
}

static CUresult import_pool(struct weir_import *i, int file) {
    CUresult result = i->driver->cuDevicePrimaryCtxRetain(&i->context, i->device);

    if (result != CUDA_SUCCESS)
        return result;
    result = WEIR_IN_SCOPE(
        i->driver, i->context,
        i->driver->cuMemPoolImportFromShareableHandle(&i->pool, (void *)(intptr_t)file,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    if (result != CUDA_SUCCESS)
        i->driver->cuDevicePrimaryCtxRelease(i->device);
    return result;
}

static weir_status open_import(struct weir_import *i, const int files[2], int *device) {
    weir_status status;
    CUresult result;

    /* unreached: it has none of these calls, which a driver that is complete has */
    if (!(i->driver->capabilities & WEIR_CAP_IPC))
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    status = weir__loans_open(&i->loans, files[1]);
    if (status != WEIR_OK)
        return weir__without_driver(status);
    status = find_device(i, device);
    if (status == WEIR_OK) {
        result = import_pool(i, files[0]);
        status = result == CUDA_ERROR_INVALID_VALUE ? WEIR_E_INVALID : refused(result);
        if (status == WEIR_E_INVALID)
            weir__set_driver_result((int)result);
    }
    if (status != WEIR_OK)
        weir__loans_close(&i->loans);
    return status;
}

weir_status weir_import_create(const char *driver, const int files[2], int *device,
                               weir_import **import) {
    struct weir_driver_failure failure;
    struct weir_import *i;
    weir_status status = weir__call_check(files && import);
    int found = 0;

    if (status != WEIR_OK)
        return status;
    i = calloc(1, sizeof *i);
    if (!i)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    i->driver = weir__driver_open(driver ? driver : "cuda", &failure);
    status = i->driver ? open_import(i, files, &found) : weir__without_driver(WEIR_E_NO_DEVICE);
    if (status != WEIR_OK) {
        free(i);
        return status;
    }
    pthread_mutex_init(&i->lock, NULL);
    if (device)
        *device = found;
    *import = i;
    return WEIR_OK;
}

weir_status weir_import_destroy(weir_import *i) {

    if (!i)
        return WEIR_OK;
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    if (i->block_count > 0)
        return weir__without_driver(WEIR_E_BUSY);
    (void)WEIR_IN_SCOPE(i->driver, i->context, i->driver->cuMemPoolDestroy(i->pool));
    i->driver->cuDevicePrimaryCtxRelease(i->device);
    weir__loans_close(&i->loans);
    free(i->pieces);
    free(i->blocks);
    pthread_mutex_destroy(&i->lock);
    free(i);
    return WEIR_OK;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static struct piece *piece_of(struct weir_import *i, uint64_t region) {
    for (size_t at = 0; at < i->piece_count; at++)
        if (i->pieces[at].region == region)
            return &i->pieces[at];
    return NULL;
}

/* Room for one more of each.  1 or 0. */
static int make_room(struct weir_import *i) {
    struct piece *pieces =
        weir__hostmem_room(i->pieces, i->piece_count, &i->piece_capacity, sizeof *pieces);
    struct imported *blocks;

    if (!pieces)
        return 0;
    i->pieces = pieces;
    blocks = weir__hostmem_room(i->blocks, i->block_count, &i->block_capacity, sizeof *blocks);
    if (!blocks)
        return 0;
    i->blocks = blocks;
    return 1;
}

/* The piece that the handle names, imported if it is not yet; there is room. */
static CUresult enter_piece(struct weir_import *i, struct weir_handle *h, struct piece **out) {
    struct piece *p = piece_of(i, h->region);
    CUresult result;

    *out = p;
    if (p && !p->is_freed)
        return CUDA_SUCCESS;
    if (!p) {
        p = &i->pieces[i->piece_count];
        *p = (struct piece){.region = h->region};
    }
    result = WEIR_IN_SCOPE(i->driver, i->context,
                           i->driver->cuMemPoolImportPointer(&p->base, i->pool, &h->data));
    if (result == CUDA_SUCCESS && p == &i->pieces[i->piece_count])
        i->piece_count++;
    if (result == CUDA_SUCCESS)
        p->is_freed = 0;
    *out = p;
    return result;
}

/* The caller holds the lock. */
static weir_status import_block(struct weir_import *i, struct weir_handle *h, void **block) {
    struct piece *p;
    weir_status status;
    CUresult result;

    if (!make_room(i))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    status = weir__loans_take(&i->loans, h->place, h->life);
    if (status != WEIR_OK)
        return weir__without_driver(status);
    result = enter_piece(i, h, &p);
    if (result != CUDA_SUCCESS) {
        weir__loans_give(&i->loans, h->place, 0);
        return refused(result);
    }
    p->blocks++;
    i->blocks[i->block_count++] =
        (struct imported){.block = p->base + h->offset, .region = h->region, .place = h->place};
    *block = (void *)(uintptr_t)(p->base + h->offset);
    return WEIR_OK;
}

weir_status weir_import_block(weir_import *i, const weir_shared *handle, void **block) {
    struct weir_handle h;
    weir_status status = weir__call_check(i && handle && block);

    if (status != WEIR_OK)
        return status;
    memcpy(&h, handle, sizeof h);
    if (h.version != WEIR_HANDLE_VERSION || h.loans != weir__loans_name(&i->loans))
        return weir__without_driver(WEIR_E_INVALID);
    pthread_mutex_lock(&i->lock);
    status = import_block(i, &h, block);
    pthread_mutex_unlock(&i->lock);
    return status;
}

/* Waits for the stream, and frees the piece if this was its last block.  What the driver refuses is as before. */
static CUresult leave_piece(struct weir_import *i, struct piece *p, weir_stream stream) {
    CUresult result = i->driver->cuStreamSynchronize(stream);

    if (result == CUDA_SUCCESS && p->blocks == 1 && !p->is_freed) {
        result = i->driver->cuMemFreeAsync(p->base, stream);
        p->is_freed = result == CUDA_SUCCESS;
        if (result == CUDA_SUCCESS) /* nobody else may be told that it is over before it is */
            result = i->driver->cuStreamSynchronize(stream);
    }
    if (result != CUDA_SUCCESS)
        return result;
    if (--p->blocks == 0)
        *p = i->pieces[--i->piece_count];
    return CUDA_SUCCESS;
}

/* The caller holds the lock. */
static weir_status free_block(struct weir_import *i, CUdeviceptr block, weir_stream stream) {
    CUstreamCaptureStatus captured = CU_STREAM_CAPTURE_STATUS_NONE;
    size_t at = 0;
    CUresult result;

    while (at < i->block_count && i->blocks[at].block != block)
        at++;
    if (at == i->block_count)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    result = i->driver->cuStreamIsCapturing(stream, &captured);
    if (result == CUDA_SUCCESS && captured != CU_STREAM_CAPTURE_STATUS_NONE)
        return weir__without_driver(WEIR_E_CAPTURE);
    if (result == CUDA_SUCCESS)
        result = leave_piece(i, piece_of(i, i->blocks[at].region), stream);
    if (result == CUDA_ERROR_INVALID_HANDLE) {
        weir__set_driver_result((int)result);
        return WEIR_E_STREAM;
    }
    if (result != CUDA_SUCCESS)
        return refused(result);
    weir__loans_give(&i->loans, i->blocks[at].place, 1);
    i->blocks[at] = i->blocks[--i->block_count];
    return WEIR_OK;
}

weir_status weir_import_free(weir_import *i, void *block, weir_stream stream) {
    weir_status status = weir__call_check(i != NULL);

    if (status != WEIR_OK)
        return status;
    if (!block)
        return WEIR_OK;
    pthread_mutex_lock(&i->lock);
    status = free_block(i, (uintptr_t)block, stream);
    pthread_mutex_unlock(&i->lock);
    return status;
}
