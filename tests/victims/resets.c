/* SPDX-License-Identifier: MIT */
/* resets.c: a program that resets its device over and over, as test suites do, and asks a pool each time.  Its
 * argument is how often. */
#include "work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *library;
static struct cuda cuda;

static void *find(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

int main(int argc, char **argv) {
    union {
        void *address;
        CUresult (*reset)(CUdevice device);
    } reset;
    CUdeviceptr block;
    CUcontext context;
    CUstream stream;
    int times = argc > 1 && argv[1][0] != '-' ? atoi(argv[1]) : 3;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find, 0);
    reset.address = dlsym(library, "cuDevicePrimaryCtxReset_v2");
    victim_start(&cuda);
    for (int i = 0; i < times && reset.address; i++) {
        CU(cuda.cuDevicePrimaryCtxRetain(&context, 0));
        CU(cuda.cuCtxSetCurrent(context));
        CU(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CU(cuda.cuMemAllocAsync(&block, 4096, stream));
        CU(cuda.cuMemFreeAsync(block, stream));
        CU(cuda.cuStreamSynchronize(stream));
        CU(reset.reset(0));
    }
    printf("%d resets\n", times);
    return victim_status(argc, argv);
}
