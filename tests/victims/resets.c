/* SPDX-License-Identifier: MIT */
/* resets.c: a program that resets its device over and over, as test suites do, and asks a pool each time.  Its
 * argument is how often; a second one, before which of them a thread asks for memory in a call of cuMemAlloc that does
 * not end. */
#include "work.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *library;
static struct cuda cuda;

static void *find(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

static void *wait_for_memory(void *context) {
    CUdeviceptr block;

    CU(cuda.cuCtxSetCurrent(context));
    CU(cuda.cuMemAllocAsync(&block, (size_t)1 << 30, NULL));
    victim_fail("the call has ended");
}

static void hang(CUcontext context) {
    union {
        void *address;
        int (*stop)(const char *entry);
        int (*stopped)(void);
    } stop = {dlsym(library, "cuModelStop")}, stopped = {dlsym(library, "cuModelStopped")};
    pthread_t thread;

    HOLDS(stop.address && stopped.address && stop.stop("cuMemAlloc_v2"));
    HOLDS(pthread_create(&thread, NULL, wait_for_memory, context) == 0);
    for (int i = 0; i < 10000 && stopped.stopped() == 0; i++)
        (void)usleep(1000);
    HOLDS(stopped.stopped() == 1 &&
          stop.stop("cuMemPoolImportPointer")); /* no more of those that come */
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
    int hung = argc > 2 && argv[2][0] != '-' ? atoi(argv[2]) : 0;

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
        if (i + 1 == hung)
            hang(context);
        CU(reset.reset(0));
    }
    printf("%d resets\n", times);
    return victim_status(argc, argv);
}
