/* SPDX-License-Identifier: MIT */
/* test_model_graph.c: stream capture and graphs on the device model.
 *
 * A test is named after the rule that it holds the model to; where a rule comes from, and which are
 * assumed, is said in lib/driver/model/model_capture.c and lib/driver/model/model_graph.c.  A check of all
 * captures, graphs and accounts ends every test.
 */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/driver.h"
#include "driver/model/model.h"
#include "tests/fixtures/suite.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define MS ((uint64_t)1000000)
#define PAGE (2 * MIB)

#define EXPECT(wanted, call)                                                                       \
    do {                                                                                           \
        CUresult result_is = (call);                                                               \
        ck_assert_msg(result_is == (wanted), "%s: %u, not %s", #call, result_is, #wanted);         \
    } while (0)
#define OK(call) EXPECT(CUDA_SUCCESS, call)

static const struct weir_driver *d;
static CUcontext context;
static CUmemoryPool pool;
static CUstream s, t; /* non-blocking */
static CUevent event;

/* ------------------------------------------------------------------ what tests use ---- */

static void start_device(uint64_t capacity) {
    struct weir_model_setup setup = {.capacity = capacity};
    CUmemPoolProps props;

    ck_assert_int_eq(weir__model_reset(&setup), 0);
    OK(d->cuDevicePrimaryCtxRetain(&context, 0));
    OK(d->cuCtxPushCurrent(context));
    OK(d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d->cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    memset(&props, 0, sizeof props);
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(d->cuMemPoolCreate(&pool, &props));
}

static void set_up(void) {
    struct weir_driver_failure failure;

    unsetenv("WEIR_MODEL_DEVICES");
    unsetenv("WEIR_MODEL_PROFILE");
    d = weir__driver_open("model", &failure);
    ck_assert_msg(d != NULL, "%s", failure.text);
    start_device(4 * GIB);
}

static void check_model(void) {
    const char *wrong = weir__model_pool_check();

    ck_assert_msg(!wrong, "%s", wrong);
}

static uint64_t now(void) {
    return d->ticks_to_ns(d->ticks());
}

static size_t device_free(void) {
    size_t bytes, total;

    OK(d->cuMemGetInfo(&bytes, &total));
    return bytes;
}

static uint64_t figure(CUmemPool_attribute attribute) {
    uint64_t number = 0;

    OK(d->cuMemPoolGetAttribute(pool, attribute, &number));
    return number;
}

static CUdeviceptr alloc(size_t bytes, CUstream stream) {
    CUdeviceptr block = 1;

    OK(d->cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
    return block;
}

static void begin(CUstream stream) {
    OK(d->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static CUgraph end(CUstream stream) {
    CUgraph graph = NULL;

    OK(d->cuStreamEndCapture(stream, &graph));
    ck_assert_ptr_nonnull(graph);
    return graph;
}

/* The capture ends with that error and without a graph. */
static void end_with(CUresult error, CUstream stream) {
    CUgraph graph = (CUgraph)(void *)&error;

    EXPECT(error, d->cuStreamEndCapture(stream, &graph));
    ck_assert_ptr_null(graph);
}

static CUgraphExec instantiate(CUgraph graph, unsigned long long flags) {
    CUgraphExec exec = NULL;

    OK(d->cuGraphInstantiateWithFlags(&exec, graph, flags));
    return exec;
}

/* The graph that a capture ends with, as an executable; the graph itself goes. */
static CUgraphExec end_to_exec(CUstream stream, unsigned long long flags) {
    CUgraph graph = end(stream);
    CUgraphExec exec = instantiate(graph, flags);

    OK(d->cuGraphDestroy(graph));
    return exec;
}

static CUstreamCaptureStatus status_of(CUstream stream) {
    CUstreamCaptureStatus status = 9;

    OK(d->cuStreamIsCapturing(stream, &status));
    return status;
}

#define EXPECT_STATUS(word, stream)                                                                \
    ck_assert_uint_eq(status_of(stream), CU_STREAM_CAPTURE_STATUS_##word)

static void order(CUstream later, CUstream earlier) {
    OK(d->cuEventRecord(event, earlier));
    OK(d->cuStreamWaitEvent(later, event, 0));
}

static void set_mode(CUstreamCaptureMode mode) {
    OK(d->cuThreadExchangeStreamCaptureMode(&mode));
}

static int holds(CUdeviceptr block, size_t bytes, unsigned char pattern) {
    const unsigned char *byte = (const unsigned char *)(uintptr_t)block;

    for (size_t i = 0; i < bytes; i++)
        if (byte[i] != pattern)
            return 0;
    return 1;
}

static void in_thread(void *(*run)(void *), void *argument) {
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, run, argument), 0);
    pthread_join(thread, NULL);
}

/* ---------------------------------------------------------------- beginning and end ---- */

TEST(capture_has_a_beginning_and_an_end) {
    CUgraph graph;

    EXPECT_STATUS(NONE, s);
    begin(s);
    EXPECT_STATUS(ACTIVE, s);
    EXPECT_STATUS(NONE, t);
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, d->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuStreamEndCapture(s, NULL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, d->cuStreamEndCapture(t, &graph));
    EXPECT_STATUS(ACTIVE, s);
    graph = end(s);
    EXPECT_STATUS(NONE, s);
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, d->cuStreamEndCapture(s, &graph));
    OK(d->cuGraphDestroy(graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuStreamBeginCapture(s, 3));
}

TEST(legacy_stream_cannot_be_captured) {
    CUstream legacy = (CUstream)WEIR_STREAM_LEGACY_VALUE;
    CUstream own = (CUstream)WEIR_STREAM_PER_THREAD_VALUE;

    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, d->cuStreamBeginCapture(NULL, 0));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, d->cuStreamBeginCapture(legacy, 0));
    EXPECT_STATUS(NONE, NULL);
    begin(own);
    EXPECT_STATUS(ACTIVE, own);
    OK(d->cuGraphDestroy(end(own)));
}

TEST(handles_of_graphs_are_checked) {
    CUgraphExec exec, foreign = (CUgraphExec)(void *)&exec;
    CUgraph graph;

    begin(s);
    graph = end(s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphInstantiateWithFlags(NULL, graph, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphInstantiateWithFlags(&exec, graph, 4));
    exec = instantiate(graph, 0);
    OK(d->cuGraphDestroy(graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphDestroy(graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphInstantiateWithFlags(&foreign, graph, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphLaunch(foreign, s));
    OK(d->cuGraphLaunch(exec, s)); /* of nothing */
    OK(d->cuStreamQuery(s));
    OK(d->cuGraphExecDestroy(exec));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphExecDestroy(exec));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphLaunch(exec, s));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, d->cuDeviceGraphMemTrim(1));
}

/* ---------------------------------------------------------------------- captured work ---- */

TEST(captured_work_runs_at_launch_and_takes_its_time_there) {
    CUdeviceptr block = alloc(KIB, s);
    CUgraphExec exec;
    uint64_t start;

    OK(d->cuMemsetD8Async(block, 1, KIB, s));
    OK(d->cuStreamSynchronize(s));
    begin(s);
    OK(d->cuMemsetD8Async(block, 2, KIB, s));
    OK(weir__model_kernel(s, 3 * MS));
    OK(weir__model_kernel(s, 4 * MS));
    exec = end_to_exec(s, 0);
    OK(d->cuStreamQuery(s));
    ck_assert(holds(block, KIB, 1));
    for (int i = 0; i < 2; i++) {
        start = now();
        OK(d->cuGraphLaunch(exec, t));
        OK(d->cuStreamQuery(s));
        EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(t));
        OK(d->cuStreamSynchronize(t));
        ck_assert_uint_ge(now() - start, 7 * MS);
        ck_assert_uint_lt(now() - start, 7 * MS + MS / 10);
        ck_assert(holds(block, KIB, 2));
        OK(d->cuMemsetD8Async(block, 1, KIB, t));
    }
    OK(d->cuGraphExecDestroy(exec));
}

static CUresult launch_delay(uint64_t ns, CUstream stream) {
    void *parameters[] = {&ns};
    CUfunction delay;
    CUmodule module;

    OK(d->cuModuleLoadData(&module, "any image"));
    OK(d->cuModuleGetFunction(&delay, module, "weir_delay"));
    return d->cuLaunchKernel(delay, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

TEST(kernel_launched_through_the_table_is_captured) {
    CUgraphExec exec;
    uint64_t start;

    begin(s);
    OK(launch_delay(3 * MS, s));
    exec = end_to_exec(s, 0);
    OK(d->cuStreamQuery(s));
    start = now();
    OK(d->cuGraphLaunch(exec, t));
    OK(d->cuStreamSynchronize(t));
    ck_assert_uint_ge(now() - start, 3 * MS);
    ck_assert_uint_lt(now() - start, 3 * MS + MS / 10);
    OK(d->cuGraphExecDestroy(exec));
    begin(s);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, d->cuStreamQuery(s));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, launch_delay(MS, s));
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    OK(d->cuStreamQuery(s));
}

TEST(captured_copies_take_what_the_host_has_at_launch) {
    unsigned char there[64], back[64];
    CUdeviceptr block = alloc(64, s);
    CUgraphExec exec;

    begin(s);
    OK(d->cuMemcpyHtoDAsync(block, there, 64, s));
    OK(d->cuMemcpyDtoHAsync(back, block, 64, s));
    OK(d->cuMemsetD8Async(block, 0, 0, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block, 0, 65, s));
    EXPECT_STATUS(ACTIVE, s);
    exec = end_to_exec(s, 0);
    for (unsigned char i = 5; i < 7; i++) {
        memset(there, i, sizeof there);
        OK(d->cuGraphLaunch(exec, s));
        ck_assert_mem_eq(there, back, sizeof back);
    }
    OK(d->cuMemFree(block));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, d->cuGraphLaunch(exec, s));
}

TEST(launches_of_one_executable_run_one_after_the_other) {
    CUgraph graph;
    CUgraphExec exec, second;
    uint64_t start = now();

    begin(s);
    OK(weir__model_kernel(s, 5 * MS));
    graph = end(s);
    exec = instantiate(graph, 0);
    second = instantiate(graph, 0); /* without memory there may be several */
    OK(d->cuGraphLaunch(exec, s));
    OK(d->cuGraphLaunch(second, t));
    OK(d->cuStreamSynchronize(t));
    ck_assert_uint_lt(now() - start, 6 * MS);
    OK(d->cuGraphLaunch(second, s));
    OK(d->cuGraphLaunch(second, t));
    OK(d->cuStreamSynchronize(t));
    ck_assert_uint_ge(now() - start, 15 * MS);
    ck_assert_uint_lt(now() - start, 16 * MS);
}

TEST(captured_launch_adds_the_steps_of_the_graph) {
    CUdeviceptr block = alloc(KIB, s);
    CUgraphExec inner, outer;

    begin(s);
    OK(d->cuMemsetD8Async(block, 7, KIB, s));
    inner = end_to_exec(s, 0);
    begin(s);
    OK(d->cuGraphLaunch(inner, s));
    outer = end_to_exec(s, 0);
    OK(d->cuGraphExecDestroy(inner));
    ck_assert(!holds(block, KIB, 7));
    OK(d->cuGraphLaunch(outer, s));
    ck_assert(holds(block, KIB, 7));
    begin(s);
    alloc(KIB, s);
    inner = end_to_exec(s, 0);
    begin(s);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, d->cuGraphLaunch(inner, s));
    OK(d->cuGraphDestroy(end(s)));
}

/* --------------------------------------------------------------------- graph memory ---- */

TEST(captured_allocation_takes_nothing_from_the_pool) {
    CUdeviceptr block = alloc(KIB, s), captured, other;
    uint64_t reserved = figure(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    size_t before = device_free();
    CUgraphExec exec;

    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED); /* for the trim */
    begin(s);
    captured = alloc(3 * MIB, s);
    other = alloc(MIB, s);
    ck_assert_uint_eq(captured % 512, 0);
    ck_assert(other != captured && other != block);
    ck_assert_uint_eq(alloc(0, s), 0);
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(device_free(), before);
    OK(d->cuMemsetD8Async(captured, 1, 3 * MIB, s));
    OK(d->cuMemFreeAsync(other, s));
    exec = end_to_exec(s, 0);
    ck_assert_uint_eq(device_free(), before);
    OK(d->cuGraphLaunch(exec, s));
    ck_assert(holds(captured, 3 * MIB, 1));
    ck_assert_uint_eq(device_free(), before - 3 * PAGE);
    ck_assert_uint_eq(figure(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), reserved);
    ck_assert_uint_eq(figure(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), KIB);
    ck_assert_uint_eq(figure(CU_MEMPOOL_ATTR_USED_MEM_HIGH), KIB);
}

/* Free again only by cuDeviceGraphMemTrim, and not while the work runs. */
TEST(graph_memory_stays_with_the_device_until_it_is_trimmed) {
    size_t before = device_free();
    CUdeviceptr block;
    CUgraphExec exec;

    begin(s);
    block = alloc(16 * MIB, s);
    OK(weir__model_kernel(s, MS));
    OK(d->cuMemFreeAsync(block, s));
    block = alloc(8 * MIB, s); /* from what the first one left */
    OK(d->cuMemFreeAsync(block, s));
    exec = end_to_exec(s, 0);
    OK(d->cuGraphLaunch(exec, s));
    OK(d->cuGraphLaunch(exec, s));
    OK(d->cuGraphExecDestroy(exec));
    ck_assert_uint_eq(device_free(), before - 16 * MIB);
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(device_free(), before - 16 * MIB);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(device_free(), before - 16 * MIB);
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(device_free(), before);
}

static uint64_t graph_memory(CUgraphMem_attribute attribute) {
    uint64_t bytes = UINT64_MAX;

    OK(d->cuDeviceGetGraphMemAttribute(0, attribute, &bytes));
    return bytes;
}

TEST(the_device_tells_what_graphs_have) {
    CUdeviceptr block;
    CUgraphExec exec;

    EXPECT(CUDA_ERROR_INVALID_DEVICE,
           d->cuDeviceGetGraphMemAttribute(1, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &block));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           d->cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuDeviceGetGraphMemAttribute(0, 9, &block));
    begin(s);
    block = alloc(16 * MIB, s);
    exec = end_to_exec(s, 0);
    ck_assert_uint_eq(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
    OK(d->cuGraphLaunch(exec, s));
    ck_assert_uint_eq(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 16 * MIB);
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    ck_assert_uint_eq(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 16 * MIB);
    OK(d->cuGraphExecDestroy(exec));
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
}

TEST(graph_memory_counts_against_the_device) {
    CUdeviceptr block, large;
    CUgraphExec exec;

    start_device(64 * MIB);
    begin(s);
    block = alloc(40 * MIB, s);
    OK(d->cuMemsetD8Async(block, 3, 40 * MIB, s));
    OK(d->cuMemFreeAsync(block, s));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&large, GIB, pool, s));
    EXPECT_STATUS(ACTIVE, s);
    exec = end_to_exec(s, 0);
    OK(d->cuMemAlloc(&large, 32 * MIB));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuGraphLaunch(exec, s));
    ck_assert_uint_eq(device_free(), 32 * MIB);
    OK(d->cuMemFree(large));
    OK(d->cuGraphLaunch(exec, s));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAlloc(&large, 32 * MIB));
    OK(d->cuStreamSynchronize(s));
    OK(d->cuDeviceGraphMemTrim(0));
    OK(d->cuMemAlloc(&large, 32 * MIB));
}

TEST(captured_free_names_an_allocation_of_a_graph_once) {
    CUdeviceptr block = alloc(KIB, s), direct, captured;
    CUgraphExec exec;

    OK(d->cuMemAlloc(&direct, KIB));
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED); /* for the free on t */
    begin(s);
    captured = alloc(KIB, s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(block, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(direct, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(captured + 256, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(captured, t)); /* not there yet */
    OK(d->cuMemFreeAsync(0, s));
    OK(d->cuMemFreeAsync(captured, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(captured, s));
    EXPECT_STATUS(ACTIVE, s);
    exec = end_to_exec(s, 0);
    ck_assert_uint_eq(figure(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), KIB);
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuMemFreeAsync(direct, s));
    OK(d->cuGraphLaunch(exec, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(captured, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(captured));
}

/* Freed by cuMemFreeAsync, cuMemFree, or the next launch itself. */
TEST(relaunch_wants_all_allocations_freed) {
    CUdeviceptr block;
    CUgraphExec exec;
    size_t used;

    begin(s);
    block = alloc(MIB, s);
    OK(d->cuMemsetD8Async(block, 9, MIB, s));
    exec = end_to_exec(s, _i == 2 ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(block, s));
    OK(d->cuGraphLaunch(exec, s));
    used = device_free();
    for (int i = 0; i < 3; i++) {
        ck_assert(holds(block, MIB, 9));
        OK(d->cuMemsetD8Async(block, 8, MIB, t));
        if (_i < 2)
            EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphLaunch(exec, s));
        ck_assert(holds(block, MIB, 8));
        if (_i == 0)
            OK(d->cuMemFreeAsync(block, t));
        else if (_i == 1)
            OK(d->cuMemFree(block));
        OK(d->cuGraphLaunch(exec, s));
        ck_assert_uint_eq(device_free(), used);
    }
    OK(d->cuMemFree(block));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(block));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block, 8, MIB, t));
}

TEST(another_graph_may_free_an_allocation) {
    CUgraphExec makes, frees;
    CUdeviceptr block;

    begin(s);
    block = alloc(MIB, s);
    makes = end_to_exec(s, 0);
    begin(s);
    OK(d->cuMemFreeAsync(block, s));
    frees = end_to_exec(s, 0);
    begin(s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(block, s)); /* a third may not */
    OK(d->cuGraphDestroy(end(s)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphLaunch(frees, s));
    for (int i = 0; i < 2; i++) {
        OK(d->cuGraphLaunch(makes, s));
        OK(d->cuGraphLaunch(frees, s));
        EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(block));
    }
    OK(d->cuGraphLaunch(makes, s));
    OK(d->cuGraphExecDestroy(makes));
    OK(d->cuGraphLaunch(frees, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphLaunch(frees, s));
}

/* A graph that is gone, or never was, frees nothing any more. */
TEST(free_goes_with_its_graph) {
    CUgraphExec makes;
    CUdeviceptr block;

    begin(s);
    block = alloc(MIB, s);
    makes = end_to_exec(s, 0);
    begin(s);
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuGraphDestroy(end(s)));
    begin(s);
    OK(d->cuMemFreeAsync(block, s));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, d->cuStreamQuery(s));
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    begin(s);
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuGraphLaunch(makes, t));
    OK(d->cuGraphLaunch(end_to_exec(s, 0), t));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(block));
}

/* A use that comes too early or too late faults, as on a device. */
TEST(graph_memory_is_there_from_the_launch_to_the_free) {
    CUdeviceptr block;
    CUgraphExec exec;

    begin(s);
    block = alloc(MIB, s);
    exec = end_to_exec(s, 0);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        int status;

        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            signal(SIGBUS, SIG_DFL);
            *(volatile char *)(uintptr_t)block = 1;
            _exit(0);
        }
        ck_assert(waitpid(child, &status, 0) == child);
        ck_assert_int_eq(WIFEXITED(status) && WEXITSTATUS(status) == 0, i == 1);
        if (i == 0) {
            OK(d->cuGraphLaunch(exec, s));
            memset((void *)(uintptr_t)block, 1, MIB);
        } else if (i == 1) {
            OK(d->cuMemFree(block));
        }
    }
    OK(d->cuGraphLaunch(exec, s));
    ck_assert(holds(block, MIB, 0));
}

TEST(allocation_outlives_its_graph_and_the_rest_goes) {
    size_t before = device_free();
    CUdeviceptr kept, freed;
    CUgraphExec exec;
    CUgraph graph;

    begin(s);
    kept = alloc(MIB, s);
    freed = alloc(MIB, s);
    OK(d->cuMemsetD8Async(kept, 4, MIB, s));
    OK(d->cuMemFreeAsync(freed, s));
    graph = end(s);
    exec = instantiate(graph, 0);
    OK(d->cuGraphLaunch(exec, s));
    OK(d->cuGraphExecDestroy(exec));
    OK(d->cuGraphDestroy(graph));
    OK(d->cuStreamSynchronize(s));
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(device_free(), before - PAGE);
    ck_assert(holds(kept, MIB, 4));
    begin(s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(freed, 4, MIB, s)); /* nobody's now */
    OK(d->cuGraphDestroy(end(s)));
    OK(d->cuMemFreeAsync(kept, s));
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(device_free(), before);
}

TEST(graph_with_memory_has_one_executable_at_a_time) {
    CUgraphExec exec, second;
    CUgraph graph;

    begin(s);
    alloc(KIB, s);
    graph = end(s);
    exec = instantiate(graph, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphInstantiateWithFlags(&second, graph, 0));
    OK(d->cuGraphExecDestroy(exec));
    OK(d->cuGraphExecDestroy(instantiate(graph, 0)));
    OK(d->cuGraphDestroy(graph));
}

/* --------------------------------------------------------------- forks and joins ---- */

TEST(waiting_stream_joins_the_capture) {
    CUdeviceptr block;
    CUgraphExec exec;

    begin(s);
    block = alloc(KIB, s);
    order(t, s);
    EXPECT_STATUS(ACTIVE, t);
    OK(d->cuMemsetD8Async(block, 5, KIB, t));
    OK(weir__model_kernel(t, 2 * MS));
    order(s, t);
    exec = end_to_exec(s, 0);
    EXPECT_STATUS(NONE, s);
    EXPECT_STATUS(NONE, t);
    OK(d->cuStreamQuery(t));
    OK(d->cuGraphLaunch(exec, s));
    ck_assert(holds(block, KIB, 5));
    EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(s));
}

/* A join covers what was submitted by its record, through other streams too. */
TEST(unjoined_stream_spoils_the_capture) {
    CUstream u;

    OK(d->cuStreamCreate(&u, CU_STREAM_NON_BLOCKING));
    begin(s);
    order(t, s);
    OK(weir__model_kernel(t, MS));
    end_with(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, s);
    EXPECT_STATUS(NONE, t);

    begin(s);
    order(t, s);
    OK(weir__model_kernel(t, MS));
    OK(d->cuEventRecord(event, t));
    OK(weir__model_kernel(t, MS)); /* behind the record */
    OK(d->cuStreamWaitEvent(s, event, 0));
    end_with(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, s);

    begin(s);
    order(t, s);
    order(u, t);
    OK(weir__model_kernel(t, MS));
    OK(weir__model_kernel(u, MS));
    order(t, u);
    order(s, t);
    OK(d->cuGraphDestroy(end(s)));

    begin(s);
    order(t, s); /* without work of its own */
    OK(d->cuGraphDestroy(end(s)));
    OK(d->cuStreamQuery(t));
}

TEST(capture_depends_on_nothing_outside) {
    CUevent never;

    OK(d->cuEventCreate(&never, 0));
    OK(d->cuEventRecord(event, t));
    begin(s);
    OK(d->cuStreamWaitEvent(s, never, 0));
    EXPECT_STATUS(ACTIVE, s);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, d->cuStreamWaitEvent(s, event, 0));
    EXPECT_STATUS(INVALIDATED, s);
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
}

TEST(captures_do_not_merge) {
    begin(s);
    begin(t);
    OK(d->cuEventRecord(event, s));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_MERGE, d->cuStreamWaitEvent(t, event, 0));
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, t);
}

/* ------------------------------------------------------------- what is forbidden ---- */

TEST(invalidated_capture_takes_nothing_and_leaves_nothing) {
    size_t before = device_free();
    CUdeviceptr block, captured;

    begin(s);
    captured = alloc(MIB, s);
    order(t, s);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, d->cuStreamSynchronize(s));
    EXPECT_STATUS(INVALIDATED, s);
    EXPECT_STATUS(INVALIDATED, t);
    for (int i = 0; i < 2; i++) {
        CUstream stream = i ? t : s;

        EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
               d->cuMemAllocFromPoolAsync(&block, KIB, pool, stream));
        EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, d->cuMemFreeAsync(captured, stream));
        EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, weir__model_kernel(stream, MS));
        EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, d->cuMemsetD8Async(captured, 1, MIB, stream));
        EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, d->cuEventRecord(event, stream));
        EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, d->cuStreamWaitEvent(stream, event, 0));
        EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, d->cuStreamQuery(stream));
    }
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    EXPECT_STATUS(NONE, t);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(device_free(), before);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(captured));
    begin(s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(captured, s));
    OK(d->cuGraphDestroy(end(s)));
}

/* Query, synchronise, and the context's synchronise; relaxed, too. */
TEST(host_may_not_ask_about_captured_streams) {
    CUresult result;

    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(d->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    order(t, s);
    result = _i == 0   ? d->cuStreamQuery(t)
             : _i == 1 ? d->cuStreamSynchronize(s)
                       : d->cuCtxSynchronize();
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, result);
    EXPECT_STATUS(INVALIDATED, s);
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    OK(d->cuStreamQuery(t));
    OK(d->cuStreamSynchronize(s));
    OK(d->cuCtxSynchronize());
}

TEST(relaxed_thread_may_ask_about_other_streams_and_devices) {
    struct weir_model_setup setup = {.devices = 2, .capacity = GIB};
    CUcontext second;
    CUcontext popped;

    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    begin(s);
    OK(d->cuStreamQuery(t));
    OK(d->cuStreamSynchronize(t));
    OK(d->cuStreamSynchronize(NULL));
    OK(d->cuGraphDestroy(end(s)));
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    OK(d->cuDevicePrimaryCtxRetain(&context, 0));
    OK(d->cuDevicePrimaryCtxRetain(&second, 1));
    OK(d->cuCtxPushCurrent(context));
    OK(d->cuStreamCreate(&s, CU_STREAM_DEFAULT));
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    begin(s);
    OK(d->cuCtxPushCurrent(second));
    OK(d->cuCtxSynchronize());
    OK(d->cuStreamSynchronize(NULL));
    OK(d->cuCtxPopCurrent(&popped));
    OK(d->cuGraphDestroy(end(s)));
}

TEST(captured_event_cannot_be_asked) {
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    begin(s);
    OK(d->cuEventRecord(event, s));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuEventQuery(event));
    EXPECT_STATUS(INVALIDATED, s);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, d->cuEventQuery(event));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, d->cuStreamWaitEvent(t, event, 0));
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuEventQuery(event));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuStreamWaitEvent(t, event, 0));
    begin(s);
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuStreamWaitEvent(s, event, 0));
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    OK(d->cuEventRecord(event, s));
    OK(d->cuEventQuery(event));
    OK(d->cuStreamWaitEvent(t, event, 0));
}

TEST(captured_event_has_no_time) {
    CUevent first, last;
    float ms = -1;

    OK(d->cuEventCreate(&first, CU_EVENT_DEFAULT));
    OK(d->cuEventCreate(&last, CU_EVENT_DEFAULT));
    OK(d->cuEventRecord(first, s));
    begin(s);
    OK(d->cuEventElapsedTime(&ms, first, first));
    ck_assert(ms == 0);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuEventElapsedTime(&ms, first, last));
    EXPECT_STATUS(ACTIVE, s);
    OK(d->cuEventRecord(last, s));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuEventElapsedTime(&ms, first, last));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuEventElapsedTime(&ms, last, first));
    EXPECT_STATUS(ACTIVE, s);
    OK(d->cuGraphDestroy(end(s)));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuEventElapsedTime(&ms, last, first));
    OK(weir__model_kernel(s, MS));
    OK(d->cuEventRecord(last, s));
    EXPECT(CUDA_ERROR_NOT_READY, d->cuEventElapsedTime(&ms, first, last));
    OK(d->cuStreamSynchronize(s));
    OK(d->cuEventElapsedTime(&ms, first, last));
    ck_assert(ms >= 1.0F && ms < 1.1F);
}

TEST(legacy_stream_is_unusable_beside_a_captured_blocking_stream) {
    CUstreamCaptureStatus status;
    CUdeviceptr block, one = 0;
    CUstream blocking;

    OK(d->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(d->cuMemAlloc(&block, KIB));
    for (int i = 0; i < 5; i++) {
        CUresult result;

        begin(s);
        EXPECT_STATUS(NONE, NULL);
        order(blocking, s); /* a branch counts as much as an origin */
        EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, d->cuStreamIsCapturing(NULL, &status));
        EXPECT_STATUS(ACTIVE, s);
        result = i == 0   ? weir__model_kernel(NULL, MS)
                 : i == 1 ? d->cuStreamSynchronize(NULL)
                 : i == 2 ? d->cuMemsetD8Async(block, 0, KIB, NULL)
                 : i == 3 ? d->cuEventRecord(event, NULL)
                          : d->cuMemAllocFromPoolAsync(&one, KIB, pool, NULL);
        EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, result);
        EXPECT_STATUS(INVALIDATED, s);
        end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
        EXPECT_STATUS(NONE, NULL);
    }
    begin(s);
    OK(d->cuEventRecord(event, s));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, d->cuStreamWaitEvent(NULL, event, 0));
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    OK(weir__model_kernel(NULL, MS));
    ck_assert_uint_eq(one, 0);
}

/* ---- unsafe calls, by the capture's mode and the thread's ---- */

struct caller {
    CUstreamCaptureMode mode;
    CUresult result;
};

static CUdeviceptr unsafe_block, unsafe_pooled; /* of cuMemAlloc, of the pool */
static int unsafe_which;

static CUresult unsafe_call(void) {
    CUdeviceptr block;
    uint64_t value;

    switch (unsafe_which) {
    case 0:
        return d->cuMemAlloc(&block, KIB);
    case 1:
        return d->cuMemFree(unsafe_block);
    case 2:
        return d->cuEventQuery(event);
    case 3:
        return d->cuStreamQuery(t);
    case 4:
        return d->cuStreamSynchronize(t);
    case 5:
        return d->cuMemAllocFromPoolAsync(&block, KIB, pool, t);
    case 6:
        return d->cuMemFreeAsync(unsafe_pooled, t);
    case 7:
        return d->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
    default:
        return d->cuMemPoolTrimTo(pool, 0);
    }
}
enum { UNSAFE_CALLS = 9 };

static void *call_unsafe(void *argument) {
    struct caller *caller = argument;

    OK(d->cuCtxPushCurrent(context));
    set_mode(caller->mode);
    caller->result = unsafe_call();
    return NULL;
}

/* Loop: the call, the capture's mode, the thread's mode, and whether the thread is another. */
TEST(unsafe_calls_are_for_who_may) {
    CUstreamCaptureMode capture = (CUstreamCaptureMode)(_i / UNSAFE_CALLS % 3);
    CUstreamCaptureMode thread = (CUstreamCaptureMode)(_i / UNSAFE_CALLS / 3 % 3);
    int other = _i / UNSAFE_CALLS / 9;
    int forbidden =
        thread != CU_STREAM_CAPTURE_MODE_RELAXED &&
        (other ? capture == CU_STREAM_CAPTURE_MODE_GLOBAL && thread == CU_STREAM_CAPTURE_MODE_GLOBAL
               : capture != CU_STREAM_CAPTURE_MODE_RELAXED);
    struct caller caller = {thread, CUDA_SUCCESS};

    unsafe_which = _i % UNSAFE_CALLS;
    OK(d->cuMemAlloc(&unsafe_block, KIB));
    unsafe_pooled = alloc(KIB, t);
    OK(d->cuEventRecord(event, t));
    OK(d->cuStreamBeginCapture(s, capture));
    if (other)
        in_thread(call_unsafe, &caller);
    else
        call_unsafe(&caller);
    EXPECT(forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS, caller.result);
    if (forbidden)
        end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    else
        OK(d->cuGraphDestroy(end(s)));
    unsafe_which = 0;
    OK(unsafe_call());
}

/* A stream that is captured too is none of the others. */
TEST(unsafe_calls_on_a_captured_stream_are_captured) {
    CUdeviceptr block;

    begin(s);
    begin(t);
    block = alloc(KIB, t);
    OK(d->cuMemFreeAsync(block, t));
    EXPECT_STATUS(ACTIVE, s);
    OK(d->cuGraphDestroy(end(t)));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, d->cuMemFreeAsync(block, t));
    EXPECT_STATUS(INVALIDATED, s);
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
}

TEST(end_on_a_branch_spoils_the_capture) {
    CUgraph graph;

    begin(s);
    order(t, s);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, d->cuStreamEndCapture(t, &graph));
    EXPECT_STATUS(INVALIDATED, t);
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    EXPECT_STATUS(NONE, t);
}

static void *end_elsewhere(void *result) {
    CUgraph graph = NULL;

    *(CUresult *)result = d->cuStreamEndCapture(s, &graph);
    return NULL;
}

TEST(only_a_relaxed_capture_ends_in_another_thread) {
    CUresult result;

    begin(s);
    in_thread(end_elsewhere, &result);
    ck_assert_uint_eq(result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    OK(d->cuGraphDestroy(end(s)));
    OK(d->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    in_thread(end_elsewhere, &result);
    ck_assert_uint_eq(result, CUDA_SUCCESS);
    EXPECT_STATUS(NONE, s);
}

/* ------------------------------------------------------------ streams that go ---- */

TEST(destroyed_origin_ends_the_capture) {
    size_t before = device_free();
    CUdeviceptr block;

    begin(s);
    block = alloc(MIB, s);
    order(t, s);
    OK(d->cuStreamDestroy(s));
    EXPECT_STATUS(NONE, t);
    OK(d->cuStreamSynchronize(t));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(block, t));
    OK(d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING)); /* the same handle */
    EXPECT_STATUS(NONE, s);
    OK(d->cuMemAlloc(&block, KIB));
    OK(d->cuMemFree(block));
    ck_assert_uint_eq(device_free(), before);
}

TEST(destroyed_branch_invalidates_the_capture) {
    begin(s);
    order(t, s);
    OK(d->cuStreamDestroy(t));
    EXPECT_STATUS(INVALIDATED, s);
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
}

static void *capture_and_go(void *argument) {
    (void)argument;
    OK(d->cuCtxPushCurrent(context));
    begin((CUstream)WEIR_STREAM_PER_THREAD_VALUE);
    OK(d->cuStreamBeginCapture(t, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    return NULL;
}

/* Its own stream's capture ends with it; of another stream's capture nobody is the thread any more,
 * not even one whose state lies at the same place. */
TEST(thread_that_ends_leaves_its_captures) {
    CUdeviceptr block;

    in_thread(capture_and_go, NULL);
    EXPECT_STATUS(NONE, NULL);
    EXPECT_STATUS(ACTIVE, t);
    OK(d->cuMemAlloc(&block, KIB));
    for (int i = 0; i < 8; i++) {
        struct caller caller = {CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_ERROR_UNKNOWN};

        unsafe_which = 0;
        in_thread(call_unsafe, &caller);
        OK(caller.result);
    }
    OK(d->cuStreamDestroy(t));
}

TEST(reset_and_the_end_of_the_context_drop_captures) {
    CUgraphExec exec;

    begin(s);
    alloc(MIB, s);
    exec = end_to_exec(s, 0);
    OK(d->cuGraphLaunch(exec, s));
    begin(s);
    alloc(MIB, s);
    begin(t);
    OK(d->cuDevicePrimaryCtxRelease(0));
    start_device(GIB);
    ck_assert_uint_eq(device_free(), GIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphLaunch(exec, s));
    begin(s);
    alloc(MIB, s);
    start_device(GIB);
    EXPECT_STATUS(NONE, s);
    OK(d->cuCtxSynchronize());
}

/* -------------------------------------------------------------------- faults, costs ---- */

/* A planned call does nothing: what it would have done can be done afterwards. */
TEST(planned_fault_does_nothing) {
    CUgraphExec exec = NULL;
    CUdeviceptr block = 0;
    CUgraph graph = NULL;

#define FAULT(entry) weir__model_fail(WEIR_ENTRY_##entry, 1, CUDA_ERROR_UNKNOWN, 0)
#define TWICE(entry, ...)                                                                          \
    do {                                                                                           \
        FAULT(entry);                                                                              \
        EXPECT(CUDA_ERROR_UNKNOWN, d->entry(__VA_ARGS__));                                         \
        OK(d->entry(__VA_ARGS__));                                                                 \
        ck_assert_uint_ge(weir__model_calls(WEIR_ENTRY_##entry), 2);                               \
    } while (0)

    TWICE(cuStreamBeginCapture, s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    FAULT(cuMemAlloc);
    EXPECT(CUDA_ERROR_UNKNOWN, d->cuMemAlloc(&block, KIB)); /* not seen by the capture */
    TWICE(cuMemAllocFromPoolAsync, &block, KIB, pool, s);
    TWICE(cuMemFreeAsync, block, s);
    TWICE(cuStreamEndCapture, s, &graph);
    TWICE(cuGraphInstantiateWithFlags, &exec, graph, 0);
    TWICE(cuGraphLaunch, exec, s);
    OK(d->cuStreamSynchronize(s));
    FAULT(cuDeviceGraphMemTrim);
    EXPECT(CUDA_ERROR_UNKNOWN, d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(device_free(), 4 * GIB - PAGE);
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(device_free(), 4 * GIB);
    TWICE(cuGraphExecDestroy, exec);
    TWICE(cuGraphDestroy, graph);
}

TEST(capture_costs_the_host_what_the_profile_says) {
    CUstreamCaptureStatus status;
    CUgraphExec exec;
    uint64_t start;

    begin(s);
    start = now();
    OK(weir__model_kernel(s, MS));
    ck_assert_uint_eq(now() - start, 3209 + 500);
    OK(d->cuStreamIsCapturing(s, &status));
    ck_assert_uint_eq(now() - start, 3209 + 500 + 16);
    for (int i = 0; i < 99; i++)
        OK(weir__model_kernel(s, 0));
    exec = end_to_exec(s, 0);
    start = now();
    OK(d->cuGraphLaunch(exec, s));
    ck_assert_uint_eq(now() - start, 3500 + 100 * 50);
}

/* -------------------------------------------------------------------------- threads ---- */

static void *capture_often(void *argument) {
    CUstream own, side;
    CUevent mark;

    (void)argument;
    OK(d->cuCtxPushCurrent(context));
    OK(d->cuStreamCreate(&own, CU_STREAM_DEFAULT));
    OK(d->cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(d->cuEventCreate(&mark, 0));
    for (int i = 0; i < 300; i++) {
        unsigned char pattern = (unsigned char)i;
        CUdeviceptr block, kept;
        CUgraphExec exec;

        OK(d->cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        block = alloc(KIB, own);
        kept = alloc(KIB, own);
        OK(d->cuEventRecord(mark, own));
        OK(d->cuStreamWaitEvent(side, mark, 0));
        OK(d->cuMemsetD8Async(kept, pattern, KIB, side));
        OK(d->cuEventRecord(mark, side));
        OK(d->cuStreamWaitEvent(own, mark, 0));
        OK(d->cuMemFreeAsync(block, own));
        exec = end_to_exec(own, 0);
        OK(d->cuGraphLaunch(exec, own));
        OK(d->cuGraphExecDestroy(exec));
        ck_assert(holds(kept, KIB, pattern));
        OK(d->cuMemFreeAsync(kept, own));
        ck_assert_uint_eq(status_of(side), CU_STREAM_CAPTURE_STATUS_NONE);
    }
    return NULL;
}

TEST(threads_capture_beside_each_other) {
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, capture_often, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    OK(d->cuCtxSynchronize());
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(device_free(), 4 * GIB);
}

/* ------------------------------------------------------------------ the suite ---- */

static TCase *add_case(Suite *suite, const char *name) {
    return suite_add_case(suite, name, 60, set_up, check_model);
}

static void add_graphs(Suite *suite) {
    TCase *work = add_case(suite, "work"), *memory = add_case(suite, "memory");

    ADD_TESTS(work, capture_has_a_beginning_and_an_end, legacy_stream_cannot_be_captured,
              handles_of_graphs_are_checked, captured_work_runs_at_launch_and_takes_its_time_there,
              kernel_launched_through_the_table_is_captured,
              captured_copies_take_what_the_host_has_at_launch,
              launches_of_one_executable_run_one_after_the_other,
              captured_launch_adds_the_steps_of_the_graph);

    ADD_TESTS(memory, captured_allocation_takes_nothing_from_the_pool,
              graph_memory_stays_with_the_device_until_it_is_trimmed,
              the_device_tells_what_graphs_have, graph_memory_counts_against_the_device,
              captured_free_names_an_allocation_of_a_graph_once,
              another_graph_may_free_an_allocation, free_goes_with_its_graph,
              graph_memory_is_there_from_the_launch_to_the_free,
              allocation_outlives_its_graph_and_the_rest_goes,
              graph_with_memory_has_one_executable_at_a_time);
    tcase_add_loop_test(memory, relaunch_wants_all_allocations_freed, 0, 3);
}

static void add_captures(Suite *suite) {
    TCase *joins = add_case(suite, "joins"), *forbidden = add_case(suite, "forbidden"),
          *ends = add_case(suite, "ends");

    ADD_TESTS(joins, waiting_stream_joins_the_capture, unjoined_stream_spoils_the_capture,
              capture_depends_on_nothing_outside, captures_do_not_merge);

    ADD_TESTS(forbidden, invalidated_capture_takes_nothing_and_leaves_nothing,
              relaxed_thread_may_ask_about_other_streams_and_devices,
              captured_event_cannot_be_asked, captured_event_has_no_time,
              legacy_stream_is_unusable_beside_a_captured_blocking_stream,
              unsafe_calls_on_a_captured_stream_are_captured, end_on_a_branch_spoils_the_capture,
              only_a_relaxed_capture_ends_in_another_thread);
    tcase_add_loop_test(forbidden, host_may_not_ask_about_captured_streams, 0, 3);
    tcase_add_loop_test(forbidden, unsafe_calls_are_for_who_may, 0, 18 * UNSAFE_CALLS);

    ADD_TESTS(ends, destroyed_origin_ends_the_capture, destroyed_branch_invalidates_the_capture,
              thread_that_ends_leaves_its_captures, reset_and_the_end_of_the_context_drop_captures,
              planned_fault_does_nothing, capture_costs_the_host_what_the_profile_says,
              threads_capture_beside_each_other);
}

int main(void) {
    Suite *suite = suite_create("model-graph");

    add_graphs(suite);
    add_captures(suite);
    return run_suite(suite, CK_FORK_GETENV);
}
