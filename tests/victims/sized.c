/* SPDX-License-Identifier: MIT */
/* sized.c: a program with one pool of a maximum size, as XLA makes it.  With --abort it aborts if it is out of memory,
 * as after an uncaught exception.  With --no-files the driver can open no file for the first request, and so fails. */
#include "opened.h"

#include <stdlib.h>
#include <sys/resource.h>

static CUresult without_files(CUmemoryPool pool, CUstream stream) {
    struct rlimit before, none;
    CUdeviceptr block = 0;
    CUresult result;

    HOLDS(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    HOLDS(setrlimit(RLIMIT_NOFILE, &none) == 0);
    result = cuda.cuMemAllocFromPoolAsync(&block, 100 * MIB, pool, stream);
    HOLDS(setrlimit(RLIMIT_NOFILE, &before) == 0);
    if (result == CUDA_SUCCESS)
        CU(cuda.cuMemFreeAsync(block, stream));
    return result;
}

int main(int argc, char **argv) {
    CUmemPoolProps properties = pool_properties();
    CUdeviceptr block, other;
    CUmemoryPool pool;
    CUstream stream;
    CUresult result;

    start_driver();
    properties.maxSize = 257 * MIB;
    pool = new_pool(&properties);
    stream = new_stream();
    if (is_told(argc, argv, "--no-files"))
        printf("without files: %u\n", without_files(pool, stream));
    CU(cuda.cuMemAllocFromPoolAsync(&block, 200 * MIB, pool, stream));
    other = block;
    result = cuda.cuMemAllocFromPoolAsync(&other, 100 * MIB, pool, stream);
    HOLDS(result == CUDA_SUCCESS || other == 0);
    if (result != CUDA_SUCCESS && is_told(argc, argv, "--abort"))
        abort();
    printf("too much: %u\n", result);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuMemPoolDestroy(pool));
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
