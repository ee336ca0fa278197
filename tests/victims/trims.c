/* SPDX-License-Identifier: MIT */
/* trims.c: a program that trims pools while its streams are at work, and again when they are idle, and prints the freed
 * memory and whether a trim or the end of a pool has waited for the work. */
#include "opened.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LAUNCHES = 100, TURNS = 300, SMALL = 4096 };

static void keep_busy(CUstream stream) {
    for (int i = 0; i < LAUNCHES; i++)
        CU(more.cuLaunchHostFunc(stream, victim_take_time, NULL));
}

static void show_yes_or_no(const char *what, int is) {
    printf("%s: %s\n", what, is ? "yes" : "no");
}

static void show_work(const char *what, CUstream stream) {
    CUresult result = more.cuStreamQuery(stream);

    HOLDS(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    show_yes_or_no(what, result == CUDA_ERROR_NOT_READY);
}

static uint64_t reserved_in(CUmemoryPool pool) {
    uint64_t bytes = 0;

    CU(cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
    return bytes;
}

/* Trims the pool.  Returns the freed bytes. */
static uint64_t trimmed_bytes(CUmemoryPool pool, size_t keep) {
    uint64_t before = reserved_in(pool);

    CU(cuda.cuMemPoolTrimTo(pool, keep));
    return before - reserved_in(pool);
}

static CUstream make_stream_with(unsigned flags) {
    CUstream stream;

    CU(cuda.cuStreamCreate(&stream, flags));
    return stream;
}

/* ---- Memory of a stream at work ---- */

static void at_work(const char *who, CUstream stream) {
    CUmemoryPool pool = victim_pool(&cuda);
    CUdeviceptr large, small;

    printf("%s\n", who);
    CU(cuda.cuMemAllocFromPoolAsync(&large, 64 * MIB, pool, stream));
    CU(cuda.cuMemAllocFromPoolAsync(&small, SMALL, pool, stream));
    (void)trimmed_bytes(pool, 0); /* memory that was preallocated */
    keep_busy(stream);
    CU(cuda.cuMemFreeAsync(large, stream));
    show_yes_or_no("a trim gives back what is at work", trimmed_bytes(pool, SMALL) > 0);
    show_work("the work goes on", stream);
    CU(cuda.cuStreamSynchronize(stream));
    show_yes_or_no("a trim gives back what is done", trimmed_bytes(pool, 0) >= 64 * MIB);
    keep_busy(stream);
    CU(cuda.cuMemPoolDestroy(pool));
    show_work("the work goes on as the pool ends", stream);
    CU(cuda.cuMemFreeAsync(small, stream));
    show_work("the work goes on as its last block does", stream);
    CU(cuda.cuStreamSynchronize(stream));
}

/* ---- Memory of streams that end, and of other threads' streams ---- */

static void show_ended_stream(const char *who, unsigned flags) {
    CUstream stream = make_stream_with(flags);
    CUmemoryPool pool = victim_pool(&cuda);
    CUdeviceptr block;

    printf("%s\n", who);
    CU(cuda.cuMemAllocFromPoolAsync(&block, 64 * MIB, pool, stream));
    (void)trimmed_bytes(pool, 0);
    keep_busy(stream);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuStreamDestroy(stream));
    show_yes_or_no("a trim gives back what is at work", trimmed_bytes(pool, 0) > 0);
    CU(cuda.cuCtxSynchronize());
    show_yes_or_no("a trim gives back what is done", trimmed_bytes(pool, 0) >= 64 * MIB);
    CU(cuda.cuMemPoolDestroy(pool));
}

struct use {
    CUcontext context;
    CUmemoryPool pool;
    CUstream streams[3];
};

static void *use_streams(void *argument) {
    struct use *u = argument;
    CUdeviceptr block;

    CU(cuda.cuCtxSetCurrent(u->context));
    for (int i = 0; i < 3; i++) {
        u->streams[i] = make_stream_with(i == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
        for (int turn = 0; turn < 100; turn++) { /* so that the stream has a cache */
            CU(cuda.cuMemAllocFromPoolAsync(&block, 24 * MIB, u->pool, u->streams[i]));
            CU(cuda.cuMemFreeAsync(block, u->streams[i]));
            CU(cuda.cuMemAllocFromPoolAsync(&block, SMALL, u->pool, u->streams[i]));
            CU(cuda.cuMemFreeAsync(block, u->streams[i == 0 ? 0 : i - 1]));
        }
    }
    return NULL;
}

static void others(CUcontext context) {
    struct use u = {.context = context, .pool = victim_pool(&cuda)};
    pthread_t thread;

    printf("another thread's streams\n");
    HOLDS(pthread_create(&thread, NULL, use_streams, &u) == 0);
    HOLDS(pthread_join(thread, NULL) == 0);
    CU(cuda.cuCtxSynchronize());
    (void)trimmed_bytes(u.pool, 0);
    (void)trimmed_bytes(u.pool, 0); /* small blocks that were freed on another stream */
    show_yes_or_no("trims give all back", reserved_in(u.pool) == 0);
    for (int i = 0; i < 3; i++)
        CU(cuda.cuStreamDestroy(u.streams[i]));
    CU(cuda.cuMemPoolDestroy(u.pool));
}

/* ---- Beside a capture ---- */

static void captured(CUstream stream) {
    CUstream other = make_stream_with(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = victim_pool(&cuda);
    CUdeviceptr plain;
    CUgraph graph = NULL;

    printf("beside a capture\n");
    for (int i = 0; i < 100; i++)
        alloc_and_free_in(pool, SMALL, other);
    alloc_and_free_in(pool, 64 * MIB, stream);
    CU(cuda.cuMemAlloc(&plain, SMALL));
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
    (void)trimmed_bytes(pool, 0);
    CU(cuda.cuMemsetD8Async(plain, 1, SMALL, other));
    show_yes_or_no("the capture ends well",
                   cuda.cuStreamEndCapture(other, &graph) == CUDA_SUCCESS && graph != NULL);
    (void)trimmed_bytes(pool, 0);
    show_yes_or_no("then a trim has given all back", reserved_in(pool) == 0);
    CU(cuda.cuGraphDestroy(graph));
    CU(cuda.cuMemFree(plain));
    CU(cuda.cuStreamDestroy(other));
    CU(cuda.cuMemPoolDestroy(pool));
}

/* Uses small blocks on a stream until the stream has a cache, and waits for the stream. */
static void earn_cache(CUmemoryPool pool, CUstream stream) {
    CUdeviceptr block;

    for (int turn = 0; turn < 100; turn++) {
        CU(cuda.cuMemAllocFromPoolAsync(&block, SMALL, pool, stream));
        CU(cuda.cuMemsetD8Async(block, 1, SMALL, stream));
        CU(cuda.cuMemFreeAsync(block, stream));
    }
    CU(cuda.cuStreamSynchronize(stream));
}

static void captured_to_its_end(CUstream stream) {
    CUstream other = make_stream_with(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = victim_pool(&cuda);
    CUgraph graph;

    printf("after a stream that ended while it was captured\n");
    earn_cache(pool, stream);
    CU(cuda.cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (cuda.cuStreamDestroy(other) != CUDA_SUCCESS) {
        (void)cuda.cuStreamEndCapture(other, &graph);
        printf("it does not end before its capture\n");
    }
    (void)trimmed_bytes(pool, 0);
    show_yes_or_no("a trim has given all back", reserved_in(pool) == 0);
    CU(cuda.cuMemPoolDestroy(pool));
}

/* A trim frees memory of an idle stream while another stream is at work. */
static void beside(CUstream busy) {
    CUstream other = make_stream_with(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = victim_pool(&cuda);
    CUdeviceptr block;

    printf("beside a stream at work\n");
    CU(cuda.cuMemAllocFromPoolAsync(&block, 64 * MIB, pool, other));
    CU(cuda.cuMemsetD8Async(block, 1, SMALL, other));
    CU(cuda.cuMemFreeAsync(block, other));
    CU(cuda.cuStreamSynchronize(other));
    keep_busy(busy);
    show_yes_or_no("a trim gives back what is done", trimmed_bytes(pool, 0) >= 64 * MIB);
    show_work("the work goes on", busy);
    CU(cuda.cuMemPoolDestroy(pool));
    show_work("the work goes on as the pool ends", busy);
    CU(cuda.cuStreamDestroy(other));
    CU(cuda.cuStreamSynchronize(busy));
}

/* A trim queues nothing on the legacy stream, since blocking streams would wait for it. */
static void beside_legacy(void) {
    CUstream busy = make_stream_with(CU_STREAM_DEFAULT),
             other = make_stream_with(CU_STREAM_DEFAULT);
    CUmemoryPool pool = victim_pool(&cuda);

    printf("of the legacy stream, beside a blocking one at work\n");
    earn_cache(pool, NULL);
    keep_busy(busy);
    CU(cuda.cuMemPoolTrimTo(pool, 0));
    CU(more.cuLaunchHostFunc(other, victim_take_time, NULL));
    while (more.cuStreamQuery(other) == CUDA_ERROR_NOT_READY)
        continue;
    show_work("that work goes on as another's ends", busy);
    CU(cuda.cuStreamSynchronize(busy));
    CU(cuda.cuMemPoolTrimTo(pool, 0));
    show_yes_or_no("then a trim has given all back", reserved_in(pool) == 0);
    CU(cuda.cuMemPoolDestroy(pool));
    CU(cuda.cuStreamDestroy(other));
    CU(cuda.cuStreamDestroy(busy));
}

/* ---- While other threads make, capture and destroy streams ---- */

static atomic_int turning;

static void *turn_streams(void *argument) {
    struct use *u = argument;
    CUdeviceptr block, plain;
    CUgraph graph;

    CU(cuda.cuCtxSetCurrent(u->context));
    CU(cuda.cuMemAlloc(&plain, SMALL));
    for (int turn = 0; turn < TURNS; turn++) {
        CUstream stream = make_stream_with(turn % 2 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);

        for (int i = 0; i < 4; i++) {
            CU(cuda.cuMemAllocFromPoolAsync(&block, i % 2 ? SMALL : MIB, u->pool, stream));
            CU(cuda.cuMemsetD8Async(block, 1, SMALL, stream));
            CU(cuda.cuMemFreeAsync(block, stream));
        }
        CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        CU(cuda.cuMemsetD8Async(plain, 1, SMALL, stream));
        CU(cuda.cuStreamEndCapture(stream, &graph));
        CU(cuda.cuGraphDestroy(graph));
        alloc_and_free_in(u->pool, MIB, stream);
        CU(cuda.cuStreamDestroy(stream));
    }
    CU(cuda.cuMemFree(plain));
    atomic_fetch_sub(&turning, 1);
    return NULL;
}

static void at_once(CUcontext context) {
    struct use u = {.context = context, .pool = victim_pool(&cuda)};
    pthread_t threads[3];

    printf("beside threads whose streams are captured and end\n");
    atomic_store(&turning, 3);
    for (int i = 0; i < 3; i++)
        HOLDS(pthread_create(&threads[i], NULL, turn_streams, &u) == 0);
    while (atomic_load(&turning) > 0)
        CU(cuda.cuMemPoolTrimTo(u.pool, 0));
    for (int i = 0; i < 3; i++)
        HOLDS(pthread_join(threads[i], NULL) == 0);
    CU(cuda.cuCtxSynchronize());
    CU(cuda.cuMemPoolTrimTo(u.pool, 0));
    show_yes_or_no("then a trim has given all back", reserved_in(u.pool) == 0);
    CU(cuda.cuMemPoolDestroy(u.pool));
}

int main(int argc, char **argv) {
    CUcontext context;
    CUstream stream;

    open_cuda_library();
    NEED("cuStreamQuery", "cuLaunchHostFunc");
    victim_start(&cuda);
    CU(cuda.cuDevicePrimaryCtxRetain(&context, 0));
    stream = make_stream_with(CU_STREAM_NON_BLOCKING);
    CU(cuda.cuDevicePrimaryCtxRetain(&context, 0)); /* the release below is not the last one */
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    at_work("a stream", stream);
    at_work("the same once more", stream);
    at_work("a blocking stream", make_stream_with(CU_STREAM_DEFAULT));
    at_work("the legacy stream", NULL);
    at_work("the thread's own", (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE);
    beside(stream);
    beside_legacy();
    show_ended_stream("a stream that has ended", CU_STREAM_NON_BLOCKING);
    show_ended_stream("a blocking one", CU_STREAM_DEFAULT);
    others(context);
    captured(stream);
    captured_to_its_end(stream);
    at_once(context);
    CU(cuda.cuCtxSynchronize());
    return victim_status(argc, argv);
}
