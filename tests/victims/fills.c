/* SPDX-License-Identifier: MIT */
/* fills.c: a program that fills the device by turns from the device's pool, a pool of its own, and without a
 * pool; each time what the others have freed is there for it.  At last from a pool that other processes may
 * open, where the driver has such. */
#include "work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { HANDLE_FD = 1 };

static void *library;
static struct cuda cuda;
static CUstream stream;

static void *find(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

static size_t most_of_the_device(void) {
    CUresult (*ask)(size_t * free_bytes, size_t * total);
    void *address = dlsym(library, "cuMemGetInfo_v2");
    size_t free_bytes, total;

    HOLDS(address);
    memcpy(&ask, &address, sizeof address);
    CU(ask(&free_bytes, &total));
    return total / 4 * 3;
}

/* In one block, and freed again. */
static void fill(const char *how, CUmemoryPool pool, int is_plain, size_t bytes) {
    CUdeviceptr block;

    if (is_plain)
        CU(cuda.cuMemAlloc(&block, bytes));
    else if (pool)
        CU(cuda.cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
    else
        CU(cuda.cuMemAllocAsync(&block, bytes, stream));
    CU(cuda.cuMemsetD8Async(block + bytes - 4096, 1, 4096, stream));
    if (is_plain)
        CU(cuda.cuMemFree(block));
    else
        CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuStreamSynchronize(stream));
    printf("%s\n", how);
}

int main(int argc, char **argv) {
    CUmemPoolProps properties;
    CUmemoryPool pool;
    size_t bytes;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find, 0);
    victim_start(&cuda);
    bytes = most_of_the_device();
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(cuda.cuMemPoolCreate(&pool, &properties));
    CU(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2; i++) {
        fill("the device's pool", NULL, 0, bytes);
        fill("a pool", pool, 0, bytes);
        fill("no pool", NULL, 1, bytes);
    }
    CU(cuda.cuMemPoolDestroy(pool));
    properties.handleTypes = HANDLE_FD;
    fill("the device's pool", NULL, 0, bytes);
    if (cuda.cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS) {
        fill("a shared pool", pool, 0, bytes);
        CU(cuda.cuMemPoolDestroy(pool));
    }
    CU(cuda.cuStreamDestroy(stream));
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
