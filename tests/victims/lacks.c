/* SPDX-License-Identifier: MIT */
/* lacks.c: a program whose thread has no current context.  Then a default stream means nothing, and calls on it return
 * CUDA_ERROR_INVALID_CONTEXT, as the CUDA runtime expects.  A created stream still works. */
#include "opened.h"

enum { BYTES = 1000 };

/* Prints the results of calls on default streams.  The block is never freed here, so each free fails. */
static void try_all(const char *when, CUmemoryPool pool, CUdeviceptr block) {
    for (uintptr_t value = 0; value < 3; value++) {
        CUstream stream = (CUstream)value; /* NOLINT: CUDA's own numbers */
        CUdeviceptr other = 0;

        printf("%s, stream %d: ", when, (int)value);
        printf("%u ", cuda.cuMemAllocAsync(&other, BYTES, stream));
        printf("%u ", cuda.cuMemAllocFromPoolAsync(&other, BYTES, pool, stream));
        printf("%u\n", cuda.cuMemFreeAsync(block, stream));
    }
}

int main(int argc, char **argv) {
    CUcontext context;
    CUstream created;
    CUmemoryPool pool;
    CUdeviceptr block;
    CUgraph graph;

    start_driver();
    CU(cuda.cuDeviceGetDefaultMemPool(&pool, 0));
    CU(cuda.cuStreamCreate(&created, 1)); /* CU_STREAM_NON_BLOCKING */
    CU(cuda.cuMemAllocAsync(&block, BYTES, NULL));
    CU(cuda.cuDevicePrimaryCtxRetain(&context, 0));

    CU(cuda.cuCtxSetCurrent(NULL));
    try_all("no context", pool, block);
    alloc_and_free_in(pool, BYTES, created);
    CU(cuda.cuStreamBeginCapture(created, CU_STREAM_CAPTURE_MODE_GLOBAL));
    try_all("beside a capture", pool, block);
    CU(cuda.cuStreamEndCapture(created, &graph));

    CU(cuda.cuCtxSetCurrent(context));
    CU(cuda.cuMemFreeAsync(block, NULL));
    for (int i = 0; i < 100; i++)
        alloc_and_free_in(pool, BYTES, NULL);
    CU(cuda.cuStreamSynchronize(created));
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
