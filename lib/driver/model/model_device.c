/* SPDX-License-Identifier: MIT */
/* model_device.c: the devices of the device model and their primary contexts.
 *
 * A device has one primary context, which exists while any caller retains it.  Each thread has its own stack of current
 * contexts, so queries, pushes and pops take no lock.  A destroyed context stays on the stacks of threads, and every
 * use of it fails.  The context's cuMemAlloc blocks, streams and events are destroyed, but not its pools (documented).
 */
#include "driver/model/model_inside.h"

#include <stdio.h>
#include <string.h>

enum { ATTRIBUTE_SM_COUNT = 16, ATTRIBUTE_MAJOR = 75 };

CUresult weir__model_device_check(CUdevice device) {
    return device >= 0 && device < weir__model.device_count ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_DEVICE;
}

CUresult weir__model_cuInit(unsigned int flags) {
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    atomic_fetch_or(&weir__model.state, MODEL_INITIALISED);
    return CUDA_SUCCESS;
}

CUresult weir__model_cuDriverGetVersion(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = (int)weir__model.profile.driver_version;
    return CUDA_SUCCESS;
}

CUresult weir__model_cuDeviceGetCount(int *count) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = weir__model.device_count;
    return CUDA_SUCCESS;
}

CUresult weir__model_cuDeviceGet(CUdevice *device, int ordinal) {
    CUresult result = weir__model_device_check(ordinal);

    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return result;
}

CUresult weir__model_cuDeviceGetName(char *name, int bytes, CUdevice device) {
    CUresult result = weir__model_device_check(device);

    if (!name || bytes < 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)bytes, "%s (device model)", weir__model.profile.name);
    return result;
}

CUresult weir__model_cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    CUresult result = weir__model_device_check(device);
    uint64_t key = weir__model_shared_key();

    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        memcpy(uuid->bytes, "weir-model-gpu-", 15);
        if (key != 0) /* processes that share the modelled devices get equal UUIDs */
            memcpy(uuid->bytes + 5, &key, sizeof key);
        uuid->bytes[15] = (char)device;
    }
    return result;
}

CUresult weir__model_cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    CUresult result = weir__model_device_check(device);

    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *bytes = weir__model.devices[device].capacity;
    return result;
}

CUresult weir__model_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
                                          CUdevice device) {
    CUresult result = weir__model_device_check(device);

    if (!value || attribute == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        *value = 1;
        break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *value = weir__model.profile.virtual_memory != 0;
        break;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
        *value = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        break;
    case ATTRIBUTE_SM_COUNT:
        *value = 132;
        break;
    case ATTRIBUTE_MAJOR:
        *value = 9;
        break;
    default: /* 0 also means that the model lacks a feature */
        *value = 0;
        break;
    }
    return CUDA_SUCCESS;
}

/* ---- Contexts ---- */

static int is_alive(const struct model_context *context) {
    return atomic_load_explicit(&context->retained, memory_order_acquire) > 0;
}

/* Returns the context with this handle, even if it was destroyed, or NULL if no context has the handle. */
static struct model_context *find_context(CUcontext handle) {
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)weir__model.devices;
    size_t device = offset / sizeof weir__model.devices[0];
    struct model_context *context = (struct model_context *)(void *)handle;

    if (device >= (size_t)weir__model.device_count ||
        (context != &weir__model.devices[device].context &&
         context != &weir__model.devices[device].green))
        return NULL;
    return context;
}

struct model_context *weir__model_current(CUresult *why) {
    const struct model_thread *self = weir__model_thread();
    struct model_context *context = self->depth ? self->stack[self->depth - 1] : NULL;

    if (!context)
        *why = CUDA_ERROR_INVALID_CONTEXT;
    else if (!is_alive(context))
        *why = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    else
        return context;
    return NULL;
}

static CUresult make_context(struct model_context *context) {
    struct model_device *device = &weir__model.devices[context->device];

    if (weir__model_physical_alloc(device, device->context_bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->legacy = weir__model_stream_make(context, CU_STREAM_DEFAULT);
    if (context->legacy)
        return CUDA_SUCCESS;
    weir__model_physical_free(device, device->context_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult weir__model_cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device) {
    CUresult result = weir__model_device_check(device);
    struct model_context *context;

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    context = &weir__model.devices[device].context;
    weir__model_lock();
    if (!is_alive(context))
        result = make_context(context);
    if (result == CUDA_SUCCESS) {
        atomic_fetch_add_explicit(&context->retained, 1, memory_order_release);
        *handle = (CUcontext)(void *)context;
    }
    return weir__model_unlocked(result);
}

CUresult weir__model_cuDevicePrimaryCtxRelease(CUdevice device) {
    CUresult result = weir__model_device_check(device);
    struct model_context *context;

    if (result != CUDA_SUCCESS)
        return result;
    context = &weir__model.devices[device].context;
    weir__model_lock();
    if (!is_alive(context)) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (atomic_fetch_sub_explicit(&context->retained, 1, memory_order_release) == 1) {
        weir__model_direct_drop_device(&weir__model.devices[device]);
        weir__model_host_drop(&weir__model.devices[device]);
        weir__model_streams_drop(context);
        context->legacy = NULL;
        weir__model_physical_free(&weir__model.devices[device],
                                  weir__model.devices[device].context_bytes);
    }
    return weir__model_unlocked(result);
}

CUresult weir__model_cuCtxGetCurrent(CUcontext *handle) {
    const struct model_thread *self = weir__model_thread();

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = self->depth ? (CUcontext)(void *)self->stack[self->depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult weir__model_cuCtxGetDevice(CUdevice *device) {
    CUresult why = CUDA_SUCCESS;
    const struct model_context *context = weir__model_current(&why);

    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (context)
        *device = context->device;
    return why;
}

CUresult weir__model_cuCtxPushCurrent(CUcontext handle) {
    struct model_thread *self = weir__model_thread();
    struct model_context *context = find_context(handle);

    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!is_alive(context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (self->depth == MODEL_CONTEXT_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    self->stack[self->depth++] = context;
    return CUDA_SUCCESS;
}

/* Replaces the current context, or pushes the context if none is current.  A NULL handle pops the current context. */
CUresult weir__model_cuCtxSetCurrent(CUcontext handle) {
    struct model_thread *self = weir__model_thread();
    int depth = self->depth;
    CUresult result;

    self->depth = depth > 0 ? depth - 1 : 0;
    result = handle ? weir__model_cuCtxPushCurrent(handle) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        self->depth = depth;
    return result;
}

CUresult weir__model_cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    CUresult result = weir__model_device_check(device);

    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        *flags = 0;
        *active = is_alive(&weir__model.devices[device].context);
    }
    return result;
}

int weir__model_has_peer_access(int device, int other) {
    uint64_t together = weir__model.profile.peers;

    if (weir__model_device_check(device) != CUDA_SUCCESS ||
        weir__model_device_check(other) != CUDA_SUCCESS)
        return 0;
    return device == other ||
           (together && (uint64_t)device / together == (uint64_t)other / together);
}

CUresult weir__model_cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    CUresult result = weir__model_device_check(device);

    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = weir__model_device_check(peer);
    if (result == CUDA_SUCCESS)
        *can = device != peer && weir__model_has_peer_access(device, peer);
    return result;
}

CUresult weir__model_cuCtxPopCurrent(CUcontext *handle) {
    struct model_thread *self = weir__model_thread();

    if (self->depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    self->depth--;
    if (handle)
        *handle = (CUcontext)(void *)self->stack[self->depth];
    return CUDA_SUCCESS;
}

/* ---- Results ---- */

/* Ignores constants in the list that are no results, such as attributes. */
CUresult weir__model_cuGetErrorName(CUresult result, const char **name) {
    static const struct {
        const char *name;
        unsigned int value;
    } constants[] = {
#define CONSTANT(constant, value) {#constant, value},
        WEIR_CUDA_CONSTANTS(CONSTANT)
#undef CONSTANT
    };
    size_t i;

    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = NULL;
    for (i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (constants[i].value == result && (strncmp(constants[i].name, "CUDA_ERROR_", 11) == 0 ||
                                             strcmp(constants[i].name, "CUDA_SUCCESS") == 0))
            *name = constants[i].name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
