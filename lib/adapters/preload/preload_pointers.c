/* SPDX-License-Identifier: MIT */
/* preload_pointers.c: replaces the driver's functions that query pointers.  For the driver, a block of weir is a part
 * of a larger allocation.  This file changes the driver's answers as if each block were an allocation by itself. */
#include "adapters/preload/preload.h"

enum {
    POINTER_CONTEXT = 1,
    POINTER_BUFFER_ID = 7,
    POINTER_IS_LEGACY_IPC_CAPABLE = 10,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12
};

/* Finds the block of weir that contains the address.  Returns 1 on success, else 0.  Called before begin_serving(). */
static int find_served_block(CUdeviceptr address, struct weir_found *found) {
    int is;

    if (!address || weir__served_known() == 0 || !begin_serving())
        return 0;
    is = weir__block_find(address, found);
    end_serving();
    return is;
}

CUresult weir__serve_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes,
                                             CUdeviceptr address) {
    struct weir_found found;

    if (!find_served_block(address, &found))
        return REAL(cuMemGetAddressRange_v2)(base, bytes, address);
    if (base)
        *base = found.base;
    if (bytes)
        *bytes = found.bytes;
    return CUDA_SUCCESS;
}

static void correct_attribute(const struct weir_found *found, CUpointer_attribute attribute,
                              void *value) {
    uint64_t number;

    switch (attribute) {
    case POINTER_CONTEXT:
        *(CUcontext *)value = found->by->is_plain ? found->by->context : NULL;
        break;
    case POINTER_BUFFER_ID:
        number = weir__block_id(found);
        if (number > 0)
            *(unsigned long long *)value = number;
        break;
    case POINTER_IS_LEGACY_IPC_CAPABLE:
        *(unsigned int *)value = 0;
        break;
    case POINTER_RANGE_START:
        *(CUdeviceptr *)value = found->base;
        break;
    case POINTER_RANGE_SIZE:
        *(size_t *)value = found->bytes;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)value = atomic_load_explicit(&found->by->pool, memory_order_relaxed);
        break;
    default:
        break;
    }
}

CUresult weir__serve_cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
    CUresult result = REAL(cuPointerGetAttribute)(value, attribute, address);
    struct weir_found found;

    if (result == CUDA_SUCCESS && find_served_block(address, &found))
        correct_attribute(&found, attribute, value);
    return result;
}

CUresult weir__serve_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                            void **values, CUdeviceptr address) {
    CUresult result = REAL(cuPointerGetAttributes)(count, attributes, values, address);
    struct weir_found found;

    if (result == CUDA_SUCCESS && find_served_block(address, &found))
        for (unsigned int i = 0; i < count; i++)
            correct_attribute(&found, attributes[i], values[i]);
    return result;
}

/* For a block of weir, returns the driver's error for a pool that cannot be shared. */
CUresult weir__serve_cuIpcGetMemHandle(void *handle, CUdeviceptr address) {
    struct weir_found found;

    return find_served_block(address, &found) ? CUDA_ERROR_INVALID_VALUE
                                              : REAL(cuIpcGetMemHandle)(handle, address);
}

CUresult weir__serve_cuMemPoolExportPointer(void *data, CUdeviceptr address) {
    struct weir_found found;

    return find_served_block(address, &found) ? CUDA_ERROR_INVALID_VALUE
                                              : REAL(cuMemPoolExportPointer)(data, address);
}
