/* SPDX-License-Identifier: MIT */
/* pools.c: a program whose threads make and destroy pools all the time, free each other's blocks, and query them. */
#include "opened.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 60, BLOCKS = 8, RANGE_SIZE = 12 };

static CUcontext context;

/* A block that one thread passes to another, which frees it, and the block's size. */
static struct parcel {
    _Atomic CUdeviceptr block; /* 0 in an unused parcel */
    size_t bytes;
} parcels[THREADS][BLOCKS];

static void check_base(CUdeviceptr block, size_t bytes) {
    CUdeviceptr base = 0;
    size_t is = 0;

    CU(cuda.cuMemGetAddressRange(&base, &is, block + bytes - 1));
    HOLDS(base == block && is == bytes);
    CU(cuda.cuPointerGetAttribute(&is, RANGE_SIZE, block));
    HOLDS(is == bytes);
}

/* Waits until the parcel has a block, or has none if `is_there` is 0. */
static CUdeviceptr wait_for_parcel(const struct parcel *p, int is_there) {
    CUdeviceptr block;

    while ((block = atomic_load_explicit(&p->block, memory_order_acquire)) ? !is_there : is_there)
        sched_yield();
    return block;
}

static void receive_parcel(struct parcel *p, CUstream stream) {
    CUdeviceptr block = wait_for_parcel(p, 1);

    check_base(block, p->bytes);
    CU(cuda.cuMemFreeAsync(block, stream));
    atomic_store_explicit(&p->block, 0, memory_order_release);
}

static void round_of(unsigned self, unsigned round, CUstream stream) {
    struct parcel *out = parcels[self], *in = parcels[(self + 1) % THREADS];
    CUmemoryPool pool;
    CUdeviceptr block;

    pool = new_pool(NULL);
    for (unsigned i = 0; i < BLOCKS; i++) {
        size_t bytes = 100 + (self * 37 + round * 11 + i * 5000) % 900000;

        (void)wait_for_parcel(&out[i], 0);
        CU(cuda.cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
        check_base(block, bytes);
        CU(cuda.cuMemsetD8Async(block, (unsigned char)self, bytes, stream));
        CU(cuda.cuStreamSynchronize(stream));
        out[i].bytes = bytes;
        atomic_store_explicit(&out[i].block, block, memory_order_release);
    }
    CU(cuda.cuMemPoolDestroy(pool)); /* while some of its blocks live */
    for (unsigned i = 0; i < BLOCKS; i++)
        receive_parcel(&in[i], stream);
}

static void *pass_parcels(void *pointer) {
    unsigned self = (unsigned)(uintptr_t)pointer;

    CU(cuda.cuCtxSetCurrent(context));
    for (unsigned round = 0; round < ROUNDS; round++) {
        CUstream stream;

        stream = new_stream();
        round_of(self, round, stream);
        CU(cuda.cuStreamSynchronize(stream));
        CU(cuda.cuStreamDestroy(stream));
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];

    start_driver();
    CU(cuda.cuDevicePrimaryCtxRetain(&context, 0));
    for (unsigned i = 0; i < THREADS; i++)
        HOLDS(pthread_create(&threads[i], NULL, pass_parcels, (void *)(uintptr_t)i) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("pools came and went\n");
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
