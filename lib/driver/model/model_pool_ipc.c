/* SPDX-License-Identifier: MIT */
/* model_pool_ipc.c: pools that programs share with other processes.  weir itself shares none.
 *
 * Documented: a pool that other processes may import gives nothing back, and only blocks of such a pool can be exported.
 */
#include "driver/model/model_pool.h"

#include <string.h>

#include "driver/model/model_ipc.h"
#include "driver/model/model_span.h"

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
    weir__model_unlock();
    return result;
}

/* Makes a pool for the memory of the file. */
static CUresult import_pool(CUmemoryPool *handle, int file) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                 .maxSize = 1};
    struct model_import *import = weir__model_import_open(file, &properties.location.id);
    struct model_pool *pool = NULL;

    if (!import)
        return CUDA_ERROR_INVALID_VALUE;
    if (weir__model_device_check(properties.location.id) == CUDA_SUCCESS)
        pool = weir__model_pool_make(&properties);
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
    weir__model_unlock();
    return result;
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
    weir__model_unlock();
    return result;
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
        weir__model_block_enter(block, pool->device->context.device);
        pool->live++;
        *address = block->node.key + before;
    }
    weir__model_unlock();
    return block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
