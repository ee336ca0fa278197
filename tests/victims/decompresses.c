/* SPDX-License-Identifier: MIT */
/* decompresses.c: a program with memory pools for hardware decompression, as RMM makes them, and with other pools.  It
 * queries for each block whether hardware can decompress it.  With --refuse the device model refuses the next physical
 * allocation, as a device does that cannot map such memory. */
#include "opened.h"

enum { IS_CAPABLE = 21 };

static CUstream stream;

static void show_decompression(size_t bytes, CUmemoryPool pool) {
    unsigned is_capable = 0; /* the driver writes only a part */
    CUdeviceptr block;

    CU(cuda.cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
    CU(cuda.cuMemsetD8Async(block, 1, bytes, stream));
    if (cuda.cuPointerGetAttribute(&is_capable, IS_CAPABLE, block + bytes / 2) != CUDA_SUCCESS)
        is_capable = 9; /* an older driver */
    printf(" %u", is_capable);
    CU(cuda.cuMemFreeAsync(block, stream));
}

static void try_usage(unsigned usage) {
    uint64_t kept = 3 * MIB;
    CUmemPoolProps properties = pool_properties();
    CUmemoryPool pool;
    CUresult result;

    properties.usage = (unsigned short)usage;
    result = cuda.cuMemPoolCreate(&pool, &properties);
    printf("for %u: %u", usage, result);
    if (result == CUDA_SUCCESS) {
        show_decompression(1000, pool);
        show_decompression(3 * MIB, pool);
        for (int i = 0; i < 100; i++)
            show_decompression(64 * MIB, pool);
        CU(cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept));
        kept = 0;
        CU(cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept));
        printf(", keeps %llu", (unsigned long long)kept);
        CU(cuda.cuStreamSynchronize(stream));
        CU(cuda.cuMemPoolDestroy(pool));
    }
    printf("\n");
}

int main(int argc, char **argv) {
    int (*fail)(const char *entry, uint64_t k, CUresult result);

    start_driver();
    stream = new_stream();
    find_call(&fail, "cuModelFail");
    if (is_told(argc, argv, "--refuse") && fail)
        HOLDS(fail("cuMemCreate", 1, CUDA_ERROR_INVALID_VALUE));
    try_usage(2);
    try_usage(0);
    try_usage(2);
    try_usage(1);
    return victim_status(argc, argv);
}
