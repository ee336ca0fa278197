/* SPDX-License-Identifier: MIT */
/* reuses.c: a program that sets policies for reuse in pools, and prints whether a stream got a block of another. */
#include "opened.h"

#define LARGE ((size_t)32 << 20)

enum { LAUNCHES = 20, SMALL = 4096 };

static void set_reuse_policies(CUmemoryPool pool, int value) {
    for (CUmemPool_attribute policy = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
         policy <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; policy++)
        CU(cuda.cuMemPoolSetAttribute(pool, policy, &value));
}

static CUdeviceptr alloc_and_fill(CUmemoryPool pool, size_t bytes, CUstream stream) {
    CUdeviceptr block;

    CU(cuda.cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
    CU(cuda.cuMemsetD8Async(block, 1, SMALL, stream));
    return block;
}

/* One stream frees a block, and its work completes, but the host does not wait for it.  Prints whether the next request
 * on `to` gets that block, unless `what` is NULL.  If `policies` is negative, the policies are left unchanged. */
static void reuse(const char *what, CUmemoryPool pool, CUstream from, CUstream to, int policies) {
    CUdeviceptr small = alloc_and_fill(pool, SMALL, from),
                first = alloc_and_fill(pool, LARGE, from), second;

    if (policies >= 0)
        set_reuse_policies(pool, policies);
    for (int i = 0; i < LAUNCHES; i++)
        CU(more.cuLaunchHostFunc(from, victim_take_time, NULL));
    CU(cuda.cuMemFreeAsync(first, from));
    while (more.cuStreamQuery(from) == CUDA_ERROR_NOT_READY)
        continue;
    second = alloc_and_fill(pool, LARGE, to);
    if (what)
        printf("%s: %s\n", what, first == second ? "the same" : "another");
    CU(cuda.cuMemFreeAsync(second, to));
    CU(cuda.cuMemFreeAsync(small, from));
    CU(cuda.cuCtxSynchronize());
}

/* The first pool only makes several streams known; the later pools are tested. */
static void late(CUstream from, CUstream to) {
    CUmemoryPool pool = victim_pool(&cuda);

    reuse(NULL, pool, from, to, 1);
    CU(cuda.cuMemPoolDestroy(pool));
    pool = victim_pool(&cuda);
    reuse("none is allowed, another stream", pool, from, to, 0);
    CU(cuda.cuMemPoolDestroy(pool));
    pool = victim_pool(&cuda);
    reuse("none is allowed, the same stream", pool, from, from, 0);
    reuse("all are allowed again", pool, from, to, 1);
    CU(cuda.cuMemPoolDestroy(pool));
}

static void early(CUstream from, CUstream to) {
    CUmemoryPool pool = victim_pool(&cuda);

    set_reuse_policies(pool, 0);
    reuse("none is allowed from the beginning", pool, from, to, 0);
    CU(cuda.cuMemPoolDestroy(pool));
    pool = victim_pool(&cuda);
    set_reuse_policies(pool, 0);
    set_reuse_policies(pool, 1);
    reuse("all are allowed before the first request", pool, from, to, 1);
    CU(cuda.cuMemPoolDestroy(pool));
}

/* Allocates after a trim that frees nothing, and after the end of the stream if `ends` is set. */
static void trimmed(CUstream to, int ends) {
    CUmemoryPool pool = victim_pool(&cuda);
    CUdeviceptr small, first, second;
    CUstream from;

    from = new_stream();
    small = alloc_and_fill(pool, SMALL, to);
    set_reuse_policies(pool, 0);
    first = alloc_and_fill(pool, LARGE, from);
    CU(cuda.cuMemFreeAsync(first, from));
    while (more.cuStreamQuery(from) == CUDA_ERROR_NOT_READY)
        continue;
    CU(cuda.cuMemPoolTrimTo(pool, (size_t)1 << 40));
    if (ends)
        CU(cuda.cuStreamDestroy(from));
    second = alloc_and_fill(pool, LARGE, to);
    printf("none is allowed, after %s: %s\n", ends ? "the end of the stream" : "a trim",
           first == second ? "the same" : "another");
    CU(cuda.cuMemFreeAsync(second, to));
    CU(cuda.cuMemFreeAsync(small, to));
    CU(cuda.cuMemPoolDestroy(pool));
}

/* Uses the device's pool before and after a reset. */
static void after_reset(CUstream from, CUstream to) {
    CUmemoryPool pool;

    CU(more.cuDeviceGetMemPool(&pool, 0));
    reuse(NULL, pool, from, to, 0);
    CU(more.cuDevicePrimaryCtxReset_v2(0));
    (void)enter_context(0);
    from = new_stream();
    to = new_stream();
    CU(more.cuDeviceGetMemPool(&pool, 0));
    reuse("after a reset, another stream", pool, from, to, -1);
}

int main(int argc, char **argv) {
    CUstream from, to;

    open_cuda_library();
    NEED("cuStreamQuery", "cuLaunchHostFunc", "cuDevicePrimaryCtxReset_v2", "cuDeviceGetMemPool");
    victim_start(&cuda);
    from = new_stream();
    to = new_stream();
    late(from, to);
    early(from, to);
    trimmed(to, 0);
    trimmed(to, 1);
    after_reset(from, to);
    return victim_status(argc, argv);
}
