/* SPDX-License-Identifier: MIT */
/* preallocates.c: makes the calls of TensorFlow on memory pools with TF_GPU_ALLOCATOR=cuda_malloc_async, where
 * TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC is a number of bytes, -1 (all that TensorFlow may have) or 0.
 *
 * The calls are those of GpuCudaMallocAsyncAllocator, one for each device
 * (xla/stream_executor/gpu/gpu_cudamallocasync_allocator.cc, 2025): the device's default pool with a release threshold,
 * access between all devices, and the preallocation as one block that is freed at once, before the first tensor.  Here
 * TensorFlow may have 15/16 of the free memory; its own rule depends on the device. */
#include "opened.h"

#include <stdlib.h>

enum { MOST_DEVICES = 8, POOLS_SUPPORTED = 115, TENSORS = 24 };

static struct device {
    CUcontext context;
    CUmemoryPool pool;
    CUstream stream;
} devices[MOST_DEVICES];

static void let_at(CUmemoryPool pool, CUdevice of, CUdevice peer) {
    CUmemAccessDesc map;
    int can = 0;

    memset(&map, 0, sizeof map);
    map.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    map.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    map.location.id = peer;
    CU(more.cuDeviceCanAccessPeer(&can, of, peer));
    if (can == 1)
        CU(more.cuMemPoolSetAccess(pool, &map, 1));
}

/* Makes the calls of the allocator's constructor. */
static void make_pool_on_device(int device, uint64_t threshold) {
    struct device *d = &devices[device];
    int version = 0, has_pools = 0;

    CU(more.cuDriverGetVersion(&version));
    HOLDS(version >= 11020);
    CU(more.cuDeviceGetAttribute(&has_pools, POOLS_SUPPORTED, device));
    HOLDS(has_pools);
    CU(cuda.cuDeviceGetDefaultMemPool(&d->pool, device));
    CU(cuda.cuMemPoolSetAttribute(d->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    for (int i = 0; i < device; i++) {
        let_at(d->pool, device, i);
        let_at(devices[i].pool, i, device);
    }
}

/* Makes the calls of AllocateRaw.  Returns 0 if there is no memory. */
static CUdeviceptr alloc_from_device_pool(const struct device *d, size_t bytes) {
    CUdeviceptr block = 0;
    CUresult result = cuda.cuMemAllocFromPoolAsync(&block, bytes, d->pool, d->stream);

    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        CU(cuda.cuStreamSynchronize(d->stream));
        result = cuda.cuMemAllocFromPoolAsync(&block, bytes, d->pool, d->stream);
    }
    return result == CUDA_SUCCESS ? block : 0;
}

/* Makes the calls of SetStreamAndPreallocateMemory.  Returns the preallocated bytes. */
static uint64_t preallocate_device_pool(const struct device *d) {
    const char *value = getenv("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC");
    long long wanted = value ? strtoll(value, NULL, 10) : 0;
    uint64_t pool_bytes = 0, bytes;
    CUdeviceptr block;

    CU(cuda.cuMemPoolGetAttribute(d->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &pool_bytes));
    bytes = wanted == -1 ? pool_bytes : (uint64_t)wanted;
    if (bytes == 0)
        return 0;
    block = alloc_from_device_pool(d, bytes);
    HOLDS(block);
    CU(cuda.cuMemFreeAsync(block, d->stream));
    return bytes;
}

/* Allocates and frees tensors on one stream, as the steps of a training do. */
static unsigned train(const struct device *d) {
    CUdeviceptr tensor[TENSORS];
    unsigned char got;
    unsigned sum = 0;

    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < TENSORS; i++) {
            size_t bytes = ((size_t)1 << (8 + i % 17)) + (size_t)step * 512;

            tensor[i] = alloc_from_device_pool(d, bytes);
            HOLDS(tensor[i]);
            CU(cuda.cuMemsetD8Async(tensor[i], (unsigned char)(i + step), bytes, d->stream));
        }
        for (int i = 0; i < TENSORS; i++) {
            CU(cuda.cuMemcpyDtoHAsync(&got, tensor[i], 1, d->stream));
            CU(cuda.cuStreamSynchronize(d->stream));
            HOLDS(got == (unsigned char)(i + step));
            sum += got;
            CU(cuda.cuMemFreeAsync(tensor[i], d->stream));
        }
    }
    return sum;
}

int main(int argc, char **argv) {
    uint64_t reserved = 0, used = 1, bytes;
    size_t unused = 0, total = 0;
    int count = 0;

    open_cuda_library();
    NEED("cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDeviceCanAccessPeer",
         "cuMemPoolSetAccess", "cuMemGetInfo_v2");
    CU(cuda.cuInit(0));
    CU(more.cuDeviceGetCount(&count));
    count = count < MOST_DEVICES ? count : MOST_DEVICES;
    for (int i = 0; i < count; i++) {
        CU(cuda.cuDevicePrimaryCtxRetain(&devices[i].context, i));
        CU(cuda.cuCtxSetCurrent(devices[i].context));
        CU(more.cuMemGetInfo_v2(&unused, &total));
        make_pool_on_device(i, unused / 16 * 15);
    }
    for (int i = 0; i < count; i++) {
        struct device *d = &devices[i];

        CU(cuda.cuCtxSetCurrent(d->context));
        CU(cuda.cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING));
        bytes = preallocate_device_pool(d);
        CU(cuda.cuMemPoolGetAttribute(d->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
        CU(cuda.cuMemPoolGetAttribute(d->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
        HOLDS(reserved >= bytes && used == 0);
        printf("device %d: preallocated: %d, trained: %u\n", i, bytes > 0, train(d));
        CU(cuda.cuStreamSynchronize(d->stream));
        CU(cuda.cuStreamDestroy(d->stream));
    }
    for (int i = 0; i < count; i++)
        CU(cuda.cuDevicePrimaryCtxRelease(i));
    return victim_status(argc, argv);
}
