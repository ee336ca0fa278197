/* SPDX-License-Identifier: MIT */
/* resets.c: a program that resets its device over and over, as test suites do, and asks a pool each time.  Its
 * argument is how often; a second one, before which of them a thread asks for memory in a call of cuMemAlloc that does
 * not end, or, if they are over by then, of the name that is a third one, while the program asks another pool. */
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

static void hang(CUcontext context, const char *entry) {
    union {
        void *address;
        int (*stop)(const char *entry);
        int (*stopped)(void);
    } stop = {dlsym(library, "cuModelStop")}, stopped = {dlsym(library, "cuModelStopped")};
    pthread_t thread;

    HOLDS(stop.address && stopped.address && stop.stop(entry));
    HOLDS(pthread_create(&thread, NULL, wait_for_memory, context) == 0);
    for (int i = 0; i < 10000 && stopped.stopped() == 0; i++)
        (void)usleep(1000);
    HOLDS(stopped.stopped() == 1 &&
          stop.stop("cuMemPoolImportPointer")); /* no more of those that come */
}

/* While the first request of the device's pool hangs. */
static void ask_another_pool(const char *entry) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool;
    CUcontext context;
    CUstream stream;
    CUdeviceptr block;

    CU(cuda.cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuda.cuCtxSetCurrent(context));
    CU(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuda.cuMemPoolCreate(&pool, &properties));
    hang(context, entry);
    CU(cuda.cuMemAllocFromPoolAsync(&block, 4096, pool, stream));
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
            hang(context, "cuMemAlloc_v2");
        CU(reset.reset(0));
    }
    if (hung > times && argc > 3)
        ask_another_pool(argv[3]);
    printf("%d resets\n", times);
    return victim_status(argc, argv);
}
