/* SPDX-License-Identifier: MIT */
/* outlives.c: a program that trims a pool when all work is done, and prints the memory that stays.  The memory was used
 * on streams that have ended, or on the thread's default stream.  With --fork the program does all this in a child. */
#include "opened.h"

#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 300, SLOTS = 2000, SLOT = 65536, SMALL = 4096 };

static void alloc_blocks(CUmemoryPool pool, CUdeviceptr *blocks, int count, size_t bytes,
                         CUstream stream) {
    for (int i = 0; i < count; i++)
        CU(cuda.cuMemAllocFromPoolAsync(&blocks[i], bytes, pool, stream));
}

static void free_blocks(const CUdeviceptr *blocks, int count, CUstream stream) {
    for (int i = 0; i < count; i++)
        CU(cuda.cuMemFreeAsync(blocks[i], stream));
}

static void show_stays(const char *what, CUmemoryPool pool) {
    uint64_t bytes = 0;

    CU(cuda.cuCtxSynchronize());
    for (int i = 0; i < 2; i++)
        CU(cuda.cuMemPoolTrimTo(pool, 0));
    CU(cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
    printf("%s: %u MiB\n", what, (unsigned)(bytes / MIB));
}

static void free_much_and_end(CUmemoryPool pool) {
    static CUdeviceptr blocks[MANY];
    CUstream stream = new_stream();

    for (int i = 0; i < 3; i++) {
        alloc_blocks(pool, blocks, MANY, MIB, stream);
        free_blocks(blocks, MANY, stream);
    }
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuStreamDestroy(stream));
    show_stays("of a stream that has ended", pool);
}

static void end_before_the_blocks(CUmemoryPool pool, CUstream other) {
    static CUdeviceptr blocks[SLOTS];
    CUstream stream = new_stream();

    for (int i = 0; i < MANY; i++) {
        alloc_and_free_in(pool, SLOT, stream);
        alloc_and_free_in(pool, SLOT, other);
    }
    alloc_blocks(pool, blocks, SLOTS, SLOT, stream);
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuStreamDestroy(stream));
    free_blocks(blocks, SLOTS, other);
    show_stays("of blocks that outlive their stream", pool);
}

static void use_own(CUmemoryPool pool, CUmemoryPool another, CUstream stream) {
    CUstream own = (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
    static CUdeviceptr blocks[MANY];

    for (int i = 0; i < 3; i++) {
        alloc_blocks(pool, blocks, MANY, i % 2 ? MIB : MIB / 4, own);
        free_blocks(blocks, MANY, own);
    }
    alloc_and_free_in(another, SMALL, stream);
    show_stays("of the thread's own stream", pool);
}

static void end_beside_a_capture(CUmemoryPool pool) {
    CUstream stream = new_stream(), captured = new_stream();
    CUdeviceptr plain;
    CUgraph graph;

    alloc_and_free_in(pool, 64 * MIB, stream);
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuMemAlloc(&plain, SMALL));
    CU(cuda.cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuda.cuStreamDestroy(stream));
    CU(cuda.cuMemsetD8Async(plain, 1, SMALL, captured));
    CU(cuda.cuStreamEndCapture(captured, &graph));
    CU(cuda.cuGraphDestroy(graph));
    CU(cuda.cuMemFree(plain));
    alloc_and_free_in(pool, 64 * MIB, captured);
    show_stays("of a stream that ended beside a capture", pool);
}

static void end_after_a_reset(void) {
    CUmemoryPool pool;
    CUstream stream;

    CU(more.cuDevicePrimaryCtxReset_v2(0));
    (void)enter_context(0);
    pool = victim_pool(&cuda);
    stream = new_stream();
    alloc_and_free_in(pool, 64 * MIB, stream);
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuStreamDestroy(stream));
    show_stays("of a stream that has ended after a reset", pool);
}

int main(int argc, char **argv) {
    int status = 0;
    CUmemoryPool pool, another;
    CUstream stream;
    pid_t child = is_told(argc, argv, "--fork") ? fork() : 0;

    if (child > 0) {
        HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status));
        return WEXITSTATUS(status);
    }
    open_cuda_library();
    NEED("cuDevicePrimaryCtxReset_v2");
    victim_start(&cuda);
    (void)new_stream(); /* this stream ends with the context */
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    (void)enter_context(0);
    pool = victim_pool(&cuda);
    another = victim_pool(&cuda);
    stream = new_stream();
    alloc_and_free_in(pool, SMALL, stream);
    free_much_and_end(pool);
    end_before_the_blocks(pool, stream);
    use_own(pool, another, stream);
    end_beside_a_capture(pool);
    end_after_a_reset();
    return victim_status(argc, argv);
}
