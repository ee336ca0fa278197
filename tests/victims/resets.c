/* SPDX-License-Identifier: MIT */
/* resets.c: a program that resets its device N times (first argument), as test suites do, and uses a pool each time.
 * Before the reset whose number is the second argument, a thread hangs in cuMemAlloc.  If that number is above N, a
 * thread hangs at the end in the call of the third argument, while the program uses another pool. */
#include "opened.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void *wait_in_alloc(void *context) {
    CUdeviceptr block;

    CU(cuda.cuCtxSetCurrent(context));
    CU(cuda.cuMemAllocAsync(&block, (size_t)1 << 30, NULL));
    victim_fail("the call has ended");
}

static void hang(CUcontext context, const char *entry) {
    int (*stop)(const char *entry), (*stopped)(void);
    pthread_t thread;

    find_call(&stop, "cuModelStop");
    find_call(&stopped, "cuModelStopped");
    HOLDS(stop && stopped && stop(entry));
    HOLDS(pthread_create(&thread, NULL, wait_in_alloc, context) == 0);
    for (int i = 0; i < 10000 && stopped() == 0; i++)
        (void)usleep(1000);
    HOLDS(stopped() == 1 && stop("cuMemImportFromShareableHandle")); /* later calls do not hang */
}

/* Uses another pool while the first request of the device's pool hangs. */
static void ask_another_pool(const char *entry) {
    CUcontext context = enter_context(0);
    CUmemoryPool pool = new_pool(NULL);
    CUstream stream = new_stream();
    CUdeviceptr block;

    hang(context, entry);
    CU(cuda.cuMemAllocFromPoolAsync(&block, 4096, pool, stream));
}

int main(int argc, char **argv) {
    CUcontext context;
    CUstream stream;
    int times = argc > 1 && argv[1][0] != '-' ? atoi(argv[1]) : 3;
    int hung = argc > 2 && argv[2][0] != '-' ? atoi(argv[2]) : 0;

    open_cuda_library();
    FIND("cuDevicePrimaryCtxReset_v2");
    victim_start(&cuda);
    for (int i = 0; i < times && more.cuDevicePrimaryCtxReset_v2; i++) {
        context = enter_context(0);
        stream = new_stream();
        alloc_and_free_in(NULL, 4096, stream);
        CU(cuda.cuStreamSynchronize(stream));
        if (i + 1 == hung)
            hang(context, "cuMemAlloc_v2");
        CU(more.cuDevicePrimaryCtxReset_v2(0));
    }
    if (hung > times && argc > 3)
        ask_another_pool(argv[3]);
    printf("%d resets\n", times);
    return victim_status(argc, argv);
}
