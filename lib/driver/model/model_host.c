/* SPDX-License-Identifier: MIT */
/* model_host.c: cuMemAllocHost and cuMemFreeHost: page-locked memory of the host.
 *
 * Plain memory here.  Fact played (measured on the device of the profile): cuMemFreeHost waits for all
 * work of the device, and in a relaxed thread it harms no capture.  Assumed: pools take no notice of that
 * wait, as of cuMemFree's; in any other thread both are unsafe beside a capture, as cuMemAlloc and cuMemFree
 * are; a block goes with its context.
 *
 * Must not know: memory of the device; what a capture does.
 */
#include "driver/model/model_inside.h"

#include <stdlib.h>

struct model_host_block {
    void *base;
    size_t bytes;
    struct model_host_block *next; /* of the device */
};

/* The caller holds the lock. */
static CUresult alloc_host(struct model_device *device, size_t bytes, void **host) {
    struct model_host_block *block = malloc(sizeof *block);

    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->base = malloc(bytes);
    if (!block->base) {
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->bytes = bytes;
    block->next = device->host_blocks;
    device->host_blocks = block;
    *host = block->base;
    return CUDA_SUCCESS;
}

static void release_host(struct model_host_block **link) {
    struct model_host_block *block = *link;

    *link = block->next;
    free(block->base);
    free(block);
}

void weir__model_host_drop(struct model_device *device) {
    while (device->host_blocks)
        release_host(&device->host_blocks);
}

int weir__model_host_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device) {
    const struct model_host_block *block;

    for (*device = 0; *device < weir__model.device_count; ++*device)
        for (block = weir__model.devices[*device].host_blocks; block; block = block->next)
            if (address - (uintptr_t)block->base < block->bytes) {
                *base = (uintptr_t)block->base;
                *bytes = block->bytes;
                return 1;
            }
    return 0;
}

/* The caller holds the lock. */
static CUresult free_host(struct model_device *device, const void *host) {
    struct model_host_block **link = &device->host_blocks;

    while (*link && (*link)->base != host)
        link = &(*link)->next;
    if (!*link)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_wait_until(device->work_end_ns);
    weir__model_oracle_seen_device(device->context.device);
    release_host(link);
    return CUDA_SUCCESS;
}

CUresult weir__model_cuMemAllocHost(void **host, size_t bytes) {
    CUresult result = CUDA_SUCCESS;
    struct model_context *context;

    if (!host || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    context = weir__model_current(&result);
    if (!context)
        return result;
    weir__model_lock();
    result = weir__model_capture_unsafe();
    if (result == CUDA_SUCCESS)
        result = alloc_host(&weir__model.devices[context->device], bytes, host);
    weir__model_unlock();
    return result;
}

CUresult weir__model_cuMemFreeHost(void *host) {
    CUresult result = CUDA_SUCCESS;
    struct model_context *context = weir__model_current(&result);

    if (!context)
        return result;
    weir__model_lock();
    result = weir__model_capture_unsafe();
    if (result == CUDA_SUCCESS)
        result = free_host(&weir__model.devices[context->device], host);
    weir__model_unlock();
    return result;
}
