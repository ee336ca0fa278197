/* SPDX-License-Identifier: MIT */
/* model_program.c: the driver calls by which programs query pointers.  The model cannot open legacy IPC handles. */
#include "driver/model/model_pool.h"

#include <string.h>
#include <unistd.h>

struct pointer {
    uint64_t base, bytes, id;
    int device;
    int is_host, is_direct; /* `is_direct` is set if cuMemAlloc has allocated the memory */
    CUmemoryPool pool;
    int is_managed;
    int decompresses; /* set if the memory can be used for hardware decompression */
};

/* Finds the memory at an address, and describes it in *out.  Returns 1 on success, 0 if nothing is allocated there. */
static int find_pointer(uint64_t address, struct pointer *out) {
    const struct model_block *block = weir__model_block_around(address, 1);

    memset(out, 0, sizeof *out);
    if (block) {
        out->base = block->node.key;
        out->bytes = block->bytes;
        out->id = block->id;
        out->device = block->device;
        out->pool = block->pool ? weir__model_pool_handle(block->pool) : NULL;
        out->is_direct = !block->pool && !block->of_graph;
        out->is_managed =
            block->pool && block->pool->properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
        out->decompresses = block->pool ? block->pool->properties.usage != 0 : out->is_direct;
        return 1;
    }
    if (weir__model_virtual_find(address, &out->base, &out->bytes, &out->device,
                                 &out->decompresses))
        return 1;
    out->is_host = weir__model_host_find(address, &out->base, &out->bytes, &out->device);
    return out->is_host;
}

/* The value of an attribute of a pointer, in the C type of the attribute. */
union value {
    int ordinal;
    unsigned int word;
    unsigned long long number;
    size_t bytes;
    void *pointer;
    unsigned char flag;
};

static size_t answer(CUpointer_attribute attribute, uint64_t address, const struct pointer *p,
                     union value *v) {
    memset(v, 0, sizeof *v);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        if (p->is_direct || p->is_host)
            v->pointer = &weir__model.devices[p->device].context;
        return sizeof v->pointer;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        if (p->bytes > 0)
            v->word = p->is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return sizeof v->word;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        v->number = p->bytes > 0 ? address : 0;
        return sizeof v->number;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        v->pointer = p->is_host ? (void *)(uintptr_t)address : NULL;
        return sizeof v->pointer;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        v->number = p->id;
        return sizeof v->number;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        v->word = (unsigned)p->is_managed;
        return sizeof v->word;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        v->ordinal = p->bytes > 0 ? p->device : -2; /* CUDA's number of an invalid device */
        return sizeof v->ordinal;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        v->word = (unsigned)p->is_direct;
        return sizeof v->word;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        v->number = p->base;
        return sizeof v->number;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        v->bytes = p->bytes;
        return sizeof v->bytes;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        v->word = p->bytes > 0;
        return sizeof v->word;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return sizeof v->number;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        v->flag = (unsigned char)p->decompresses;
        return weir__model.profile.driver_version >= 12080 ? sizeof v->flag : 0;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        v->pointer = (void *)p->pool;
        return sizeof v->pointer;
    default:
        return 0;
    }
}

/* Reads one attribute of a pointer.  If nothing is allocated at the address, returns CUDA_ERROR_INVALID_VALUE. */
CUresult weir__model_cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
    struct pointer p;
    union value v;
    size_t bytes;
    int known;

    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    known = find_pointer(address, &p);
    weir__model_unlock();
    bytes = answer(attribute, address, &p, &v);
    if (bytes == 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!known)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(value, &v, bytes);
    return CUDA_SUCCESS;
}

CUresult weir__model_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                            void **values, CUdeviceptr address) {
    struct pointer p;
    union value v;
    unsigned i;

    if (count == 0 || !attributes || !values)
        return CUDA_ERROR_INVALID_VALUE;
    for (i = 0; i < count; i++)
        if (!values[i])
            return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    find_pointer(address, &p);
    weir__model_unlock();
    for (i = 0; i < count; i++)
        if (answer(attributes[i], address, &p, &v) == 0)
            return CUDA_ERROR_NOT_SUPPORTED;
    for (i = 0; i < count; i++)
        memcpy(values[i], &v, answer(attributes[i], address, &p, &v));
    return CUDA_SUCCESS;
}

CUresult weir__model_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    struct pointer p;
    pid_t process = getpid();

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    find_pointer(address, &p);
    weir__model_unlock();
    if (!p.is_direct)
        return CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &process, sizeof process);
    memcpy(handle->reserved + 8, &p.id, sizeof p.id);
    memcpy(handle->reserved + 16, &p.base, sizeof p.base);
    return CUDA_SUCCESS;
}
