/* SPDX-License-Identifier: MIT */
/* fills.c: a program that fills the device from the default pool, a created pool, and cuMemAlloc in turn.  Memory that
 * was freed in one way must be available in another.  At last it uses a shared pool, if the driver has such pools. */
#include "opened.h"

enum { HANDLE_FD = 1 };

static CUstream stream;

static size_t most_of_the_device(void) {
    size_t free_bytes, total;

    NEED("cuMemGetInfo_v2");
    CU(more.cuMemGetInfo_v2(&free_bytes, &total));
    return total / 4 * 3;
}

/* Fills the device with one block, and frees it. */
static void fill_device_by(const char *how, CUmemoryPool pool, int is_plain, size_t bytes) {
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
    CUmemPoolProps properties = pool_properties();
    CUmemoryPool pool;
    size_t bytes;

    start_driver();
    bytes = most_of_the_device();
    pool = new_pool(NULL);
    stream = new_stream();
    for (int i = 0; i < 2; i++) {
        fill_device_by("the device's pool", NULL, 0, bytes);
        fill_device_by("a pool", pool, 0, bytes);
        fill_device_by("no pool", NULL, 1, bytes);
    }
    CU(cuda.cuMemPoolDestroy(pool));
    properties.handleTypes = HANDLE_FD;
    fill_device_by("the device's pool", NULL, 0, bytes);
    if (cuda.cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS) {
        fill_device_by("a shared pool", pool, 0, bytes);
        CU(cuda.cuMemPoolDestroy(pool));
    }
    CU(cuda.cuStreamDestroy(stream));
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
