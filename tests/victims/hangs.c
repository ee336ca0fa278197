/* SPDX-License-Identifier: MIT */
/* hangs.c: a program that ends while one of its threads waits for memory in a driver call that hangs.  The first
 * argument names the call.  The second one may be "beside": the program requests memory, of which there is enough, and
 * growth in the background hangs; "reset": it resets the device; "trimmed": another thread trims the pool, then there
 * is a capture, the end of a stream and a reset; or "interrupted": a signal handler exits from the call.  It needs the
 * device model, whose calls can hang on command. */
#include "opened.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static void *hang_in_alloc(void *context) {
    CUdeviceptr block;

    CU(cuda.cuCtxSetCurrent(context));
    CU(cuda.cuMemAllocAsync(&block, 512 * MIB, NULL));
    victim_fail("the call has ended");
}

static void *hang_in_trim(void *context) {
    CUmemoryPool pool;

    CU(cuda.cuCtxSetCurrent(context));
    CU(cuda.cuDeviceGetDefaultMemPool(&pool, 0));
    CU(cuda.cuMemPoolTrimTo(pool, 0));
    return NULL;
}

static void trim_beside(CUcontext context, CUstream stream) {
    pthread_t thread;
    CUgraph graph;

    HOLDS(pthread_create(&thread, NULL, hang_in_trim, context) == 0);
    (void)usleep(100000);
    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuda.cuStreamEndCapture(stream, &graph));
    CU(cuda.cuStreamDestroy(stream));
}

static void end_at_once(int number) {
    (void)number;
    puts("it hangs");
    fflush(stdout);
    _exit(7);
}

int main(int argc, char **argv) {
    int (*stop)(const char *entry), (*stopped)(void);
    CUdeviceptr block;
    CUcontext context;
    CUstream stream;
    pthread_t thread;

    open_cuda_library();
    find_call(&stop, "cuModelStop");
    find_call(&stopped, "cuModelStopped");
    FIND("cuDevicePrimaryCtxReset_v2");
    victim_start(&cuda);
    CU(cuda.cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuda.cuMemAllocAsync(&block, MIB, NULL));
    stream = new_stream();
    if (argc < 2 || argv[1][0] == '-' || !stop || !stopped)
        return victim_status(argc, argv);
    (void)usleep(100000); /* so that observers can look */
    HOLDS(stop(argv[1]));
    if (is_told(argc, argv, "beside"))
        CU(cuda.cuMemAllocAsync(&block, 200 * MIB, NULL));
    else
        HOLDS(pthread_create(&thread, NULL, hang_in_alloc, context) == 0);
    for (int i = 0; i < 10000 && stopped() == 0; i++)
        (void)usleep(1000);
    HOLDS(stopped() > 0);
    (void)usleep(50000); /* so that observers can look */
    if (is_told(argc, argv, "trimmed"))
        trim_beside(context, stream);
    if (argc > 2 && (strcmp(argv[2], "reset") == 0 || strcmp(argv[2], "trimmed") == 0))
        CU(more.cuDevicePrimaryCtxReset_v2(0));
    if (is_told(argc, argv, "interrupted")) {
        HOLDS(signal(SIGUSR1, end_at_once) != SIG_ERR && pthread_kill(thread, SIGUSR1) == 0);
        (void)pause();
    }
    puts("it hangs");
    return victim_status(argc, argv);
}
