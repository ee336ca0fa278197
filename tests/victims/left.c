/* SPDX-License-Identifier: MIT */
/* left.c: a program that runs the words of its command line.  "managed", "shared" and "other" make a pool of such
 * memory, and one request more than from the pool before.  "device" is a request on a stream of a second device,
 * "wrong" one that no driver serves, "unused" a pool without requests, and "fork" a child that ends at once. */
#include "opened.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HANDLE_FD = 1 }; /* a handle type: the pool can be shared by a file descriptor */

static CUstream stream;
static unsigned pools;

static CUmemoryPool make_left_pool(unsigned type, unsigned handle_types) {
    CUmemPoolProps properties = pool_properties();

    properties.allocType = type;
    properties.handleTypes = handle_types;
    return new_pool(&properties);
}

static void use_left_pool(CUmemoryPool pool) {
    CUdeviceptr block;

    pools++;
    for (unsigned i = 0; i < pools; i++) {
        CU(cuda.cuMemAllocFromPoolAsync(&block, 1000, pool, stream));
        CU(cuda.cuMemsetD8Async(block, 1, 1000, stream));
        CU(cuda.cuMemFreeAsync(block, stream));
    }
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuMemPoolDestroy(pool));
}

static void use_second_device(void) {
    CUmemoryPool pool = make_left_pool(CU_MEM_ALLOCATION_TYPE_PINNED, 0);
    CUcontext peer;
    CUstream far;

    CU(cuda.cuDevicePrimaryCtxRetain(&peer, 1));
    CU(cuda.cuCtxSetCurrent(peer));
    far = new_stream();
    alloc_and_free_in(pool, 1000, far);
    CU(cuda.cuStreamSynchronize(far));
}

static void bear(void) {
    pid_t child = fork();
    int status;

    if (child == 0)
        exit(0); /* runs all functions of atexit */
    HOLDS(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    CUdeviceptr block;

    start_driver();
    stream = new_stream();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "managed") == 0)
            use_left_pool(make_left_pool(CU_MEM_ALLOCATION_TYPE_MANAGED, 0));
        else if (strcmp(argv[i], "shared") == 0)
            use_left_pool(make_left_pool(CU_MEM_ALLOCATION_TYPE_PINNED, HANDLE_FD));
        else if (strcmp(argv[i], "other") == 0)
            use_left_pool(make_left_pool(CU_MEM_ALLOCATION_TYPE_PINNED, 0));
        else if (strcmp(argv[i], "unused") == 0)
            (void)make_left_pool(CU_MEM_ALLOCATION_TYPE_MANAGED, 0);
        else if (strcmp(argv[i], "device") == 0)
            use_second_device();
        else if (strcmp(argv[i], "fork") == 0)
            bear();
        else if (strcmp(argv[i], "wrong") == 0)
            HOLDS(cuda.cuMemAllocFromPoolAsync(&block, (size_t)1 << 50,
                                               make_left_pool(CU_MEM_ALLOCATION_TYPE_MANAGED, 0),
                                               stream) == CUDA_ERROR_OUT_OF_MEMORY);
    }
    printf("done\n");
    return victim_status(argc, argv);
}
