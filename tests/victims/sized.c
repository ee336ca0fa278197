/* SPDX-License-Identifier: MIT */
/* sized.c: a program with one pool, of a size of its own, as XLA makes it.  With --abort it ends so where a request of
 * it is out of memory, as one does that does not catch what it is thrown then; with --no-files its first request comes
 * while it may open no file, without which the driver makes no memory. */
#include "work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MIB ((size_t)1 << 20)

static void *library;

static void *find(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

static CUresult without_files(const struct cuda *cuda, CUmemoryPool pool, CUstream stream) {
    struct rlimit before, none;
    CUdeviceptr block = 0;
    CUresult result;

    HOLDS(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    HOLDS(setrlimit(RLIMIT_NOFILE, &none) == 0);
    result = cuda->cuMemAllocFromPoolAsync(&block, 100 * MIB, pool, stream);
    HOLDS(setrlimit(RLIMIT_NOFILE, &before) == 0);
    if (result == CUDA_SUCCESS)
        CU(cuda->cuMemFreeAsync(block, stream));
    return result;
}

int main(int argc, char **argv) {
    CUmemPoolProps properties;
    CUdeviceptr block, other;
    struct cuda cuda;
    CUmemoryPool pool;
    CUstream stream;
    CUresult result;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find, 0);
    victim_start(&cuda);
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.maxSize = 257 * MIB;
    CU(cuda.cuMemPoolCreate(&pool, &properties));
    CU(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (argc > 1 && strcmp(argv[1], "--no-files") == 0)
        printf("without files: %u\n", without_files(&cuda, pool, stream));
    CU(cuda.cuMemAllocFromPoolAsync(&block, 200 * MIB, pool, stream));
    other = block;
    result = cuda.cuMemAllocFromPoolAsync(&other, 100 * MIB, pool, stream);
    HOLDS(result == CUDA_SUCCESS || other == 0);
    if (result != CUDA_SUCCESS && argc > 1 && strcmp(argv[1], "--abort") == 0)
        abort();
    printf("too much: %u\n", result);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuMemPoolDestroy(pool));
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
