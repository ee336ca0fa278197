/* SPDX-License-Identifier: MIT */
/* test_model_graph_capture.c: what a capture forbids, and how it ends. */
#include "test_model_graph.h"

/* --------------------------------------------------------------- forks and joins ---- */

CASE("joins", 60, set_up_graphs, check_pools);

TEST(waiting_stream_joins_the_capture) {
    CUdeviceptr block;
    CUgraphExec exec;

    begin_graph_capture(s);
    block = alloc(KIB, s);
    order_by_event(t, s);
    EXPECT_STATUS(ACTIVE, t);
    OK(d->cuMemsetD8Async(block, 5, KIB, t));
    OK(weir__model_kernel(t, 2 * MS));
    order_by_event(s, t);
    exec = end_to_exec(s, 0);
    EXPECT_STATUS(NONE, s);
    EXPECT_STATUS(NONE, t);
    OK(d->cuStreamQuery(t));
    OK(d->cuGraphLaunch(exec, s));
    ck_assert(holds(block, KIB, 5));
    EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(s));
}

/* A join covers work that was submitted before its record, through other streams, too. */
TEST(unjoined_stream_spoils_the_capture) {
    CUstream u;

    OK(d->cuStreamCreate(&u, CU_STREAM_NON_BLOCKING));
    begin_graph_capture(s);
    order_by_event(t, s);
    OK(weir__model_kernel(t, MS));
    end_with(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, s);
    EXPECT_STATUS(NONE, t);

    begin_graph_capture(s);
    order_by_event(t, s);
    OK(weir__model_kernel(t, MS));
    OK(d->cuEventRecord(event, t));
    OK(weir__model_kernel(t, MS)); /* behind the record */
    OK(d->cuStreamWaitEvent(s, event, 0));
    end_with(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, s);

    begin_graph_capture(s);
    order_by_event(t, s);
    order_by_event(u, t);
    OK(weir__model_kernel(t, MS));
    OK(weir__model_kernel(u, MS));
    order_by_event(t, u);
    order_by_event(s, t);
    OK(d->cuGraphDestroy(end_graph_capture(s)));

    begin_graph_capture(s);
    order_by_event(t, s); /* t adds no work */
    OK(d->cuGraphDestroy(end_graph_capture(s)));
    OK(d->cuStreamQuery(t));
}

TEST(captures_do_not_merge) {
    begin_graph_capture(s);
    begin_graph_capture(t);
    OK(d->cuEventRecord(event, s));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_MERGE, d->cuStreamWaitEvent(t, event, 0));
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, t);
}

/* ------------------------------------------------------------- what is forbidden ---- */

CASE("forbidden", 60, set_up_graphs, check_pools);

TEST(invalidated_capture_takes_nothing_and_leaves_nothing) {
    size_t before = free_bytes_now();
    CUdeviceptr block, captured;

    begin_graph_capture(s);
    captured = alloc(MIB, s);
    order_by_event(t, s);
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
    ck_assert_uint_eq(free_bytes_now(), before);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(captured));
    begin_graph_capture(s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(captured, s));
    OK(d->cuGraphDestroy(end_graph_capture(s)));
}

/* Query and synchronize of a stream, and synchronize of the context, fail in relaxed mode, too. */
TEST_EACH(3, host_may_not_ask_about_captured_streams) {
    CUresult result;

    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(d->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    order_by_event(t, s);
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
    begin_graph_capture(s);
    OK(d->cuStreamQuery(t));
    OK(d->cuStreamSynchronize(t));
    OK(d->cuStreamSynchronize(NULL));
    OK(d->cuGraphDestroy(end_graph_capture(s)));
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    OK(d->cuDevicePrimaryCtxRetain(&context, 0));
    OK(d->cuDevicePrimaryCtxRetain(&second, 1));
    OK(d->cuCtxPushCurrent(context));
    OK(d->cuStreamCreate(&s, CU_STREAM_DEFAULT));
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    begin_graph_capture(s);
    OK(d->cuCtxPushCurrent(second));
    OK(d->cuCtxSynchronize());
    OK(d->cuStreamSynchronize(NULL));
    OK(d->cuCtxPopCurrent(&popped));
    OK(d->cuGraphDestroy(end_graph_capture(s)));
}

TEST(captured_event_cannot_be_asked) {
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    begin_graph_capture(s);
    OK(d->cuEventRecord(event, s));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuEventQuery(event));
    EXPECT_STATUS(INVALIDATED, s);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, d->cuEventQuery(event));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, d->cuStreamWaitEvent(t, event, 0));
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuEventQuery(event));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuStreamWaitEvent(t, event, 0));
    begin_graph_capture(s);
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
    begin_graph_capture(s);
    OK(d->cuEventElapsedTime(&ms, first, first));
    ck_assert(ms == 0);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuEventElapsedTime(&ms, first, last));
    EXPECT_STATUS(ACTIVE, s);
    OK(d->cuEventRecord(last, s));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuEventElapsedTime(&ms, first, last));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, d->cuEventElapsedTime(&ms, last, first));
    EXPECT_STATUS(ACTIVE, s);
    OK(d->cuGraphDestroy(end_graph_capture(s)));
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

        begin_graph_capture(s);
        EXPECT_STATUS(NONE, NULL);
        order_by_event(blocking, s); /* a branch counts as much as an origin */
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
    begin_graph_capture(s);
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

static CUdeviceptr unsafe_block, unsafe_pooled; /* from cuMemAlloc, from the pool */
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

/* The loop goes over the call, the capture's mode, the thread's mode, and whether the thread is another. */
TEST_EACH(18 * UNSAFE_CALLS, unsafe_calls_are_for_who_may) {
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
        OK(d->cuGraphDestroy(end_graph_capture(s)));
    unsafe_which = 0;
    OK(unsafe_call());
}

/* A call on a stream that is itself captured is captured, and is no unsafe call on another stream. */
TEST(unsafe_calls_on_a_captured_stream_are_captured) {
    CUdeviceptr block;

    begin_graph_capture(s);
    begin_graph_capture(t);
    block = alloc(KIB, t);
    OK(d->cuMemFreeAsync(block, t));
    EXPECT_STATUS(ACTIVE, s);
    OK(d->cuGraphDestroy(end_graph_capture(t)));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, d->cuMemFreeAsync(block, t));
    EXPECT_STATUS(INVALIDATED, s);
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
}

static void *end_elsewhere(void *result) {
    CUgraph graph = NULL;

    *(CUresult *)result = d->cuStreamEndCapture(s, &graph);
    return NULL;
}

TEST(only_a_relaxed_capture_ends_in_another_thread) {
    CUresult result;

    begin_graph_capture(s);
    in_thread(end_elsewhere, &result);
    ck_assert_uint_eq(result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    OK(d->cuGraphDestroy(end_graph_capture(s)));
    OK(d->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    in_thread(end_elsewhere, &result);
    ck_assert_uint_eq(result, CUDA_SUCCESS);
    EXPECT_STATUS(NONE, s);
}

/* ------------------------------------------------------------ streams that go ---- */

CASE("ends", 60, set_up_graphs, check_pools);

TEST(destroyed_origin_ends_the_capture) {
    size_t before = free_bytes_now();
    CUdeviceptr block;

    begin_graph_capture(s);
    block = alloc(MIB, s);
    order_by_event(t, s);
    OK(d->cuStreamDestroy(s));
    EXPECT_STATUS(NONE, t);
    OK(d->cuStreamSynchronize(t));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(block, t));
    OK(d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING)); /* the same handle */
    EXPECT_STATUS(NONE, s);
    OK(d->cuMemAlloc(&block, KIB));
    OK(d->cuMemFree(block));
    ck_assert_uint_eq(free_bytes_now(), before);
}

TEST(destroyed_branch_invalidates_the_capture) {
    begin_graph_capture(s);
    order_by_event(t, s);
    OK(d->cuStreamDestroy(t));
    EXPECT_STATUS(INVALIDATED, s);
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
}

static void *capture_and_go(void *argument) {
    (void)argument;
    OK(d->cuCtxPushCurrent(context));
    begin_graph_capture((CUstream)WEIR_STREAM_PER_THREAD_VALUE);
    OK(d->cuStreamBeginCapture(t, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    return NULL;
}

/* A thread's end also ends the capture of its per-thread stream.  Its captures of other streams belong to no thread any
 * more, not even to one whose state lies at its address. */
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

    begin_graph_capture(s);
    alloc(MIB, s);
    exec = end_to_exec(s, 0);
    OK(d->cuGraphLaunch(exec, s));
    begin_graph_capture(s);
    alloc(MIB, s);
    begin_graph_capture(t);
    OK(d->cuDevicePrimaryCtxRelease(0));
    start_graph_device(GIB);
    ck_assert_uint_eq(free_bytes_now(), GIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphLaunch(exec, s));
    begin_graph_capture(s);
    alloc(MIB, s);
    start_graph_device(GIB);
    EXPECT_STATUS(NONE, s);
    OK(d->cuCtxSynchronize());
}

/* -------------------------------------------------------------------- faults, costs ---- */

/* A call that is planned to fail does nothing, so that the call can succeed afterwards. */
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
    ck_assert_uint_eq(free_bytes_now(), 4 * GIB - PAGE);
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(free_bytes_now(), 4 * GIB);
    TWICE(cuGraphExecDestroy, exec);
    TWICE(cuGraphDestroy, graph);
}

TEST(each_capture_has_its_id) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    uint64_t first = 0, again = 0, second = 0;

    OK(d->cuStreamGetCaptureInfo(s, &status, &first));
    ck_assert_uint_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    ck_assert_uint_eq(first, 0);
    begin_graph_capture(s);
    OK(d->cuStreamGetCaptureInfo(s, &status, &first));
    OK(d->cuStreamGetCaptureInfo(s, &status, &again));
    ck_assert_uint_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(d->cuGraphExecDestroy(end_to_exec(s, 0)));
    begin_graph_capture(s);
    OK(d->cuStreamGetCaptureInfo(s, &status, &second));
    OK(d->cuGraphExecDestroy(end_to_exec(s, 0)));
    MUST(first != 0 && first == again && second != 0 && second != first);
}

TEST(capture_costs_the_host_what_the_profile_says) {
    CUstreamCaptureStatus status;
    CUgraphExec exec;
    uint64_t start;

    begin_graph_capture(s);
    start = model_ticks();
    OK(weir__model_kernel(s, MS));
    ck_assert_uint_eq(model_ticks() - start, 3209 + 500);
    OK(d->cuStreamIsCapturing(s, &status));
    ck_assert_uint_eq(model_ticks() - start, 3209 + 500 + 16);
    for (int i = 0; i < 99; i++)
        OK(weir__model_kernel(s, 0));
    exec = end_to_exec(s, 0);
    start = model_ticks();
    OK(d->cuGraphLaunch(exec, s));
    ck_assert_uint_eq(model_ticks() - start, 3500 + 100 * 50);
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
        ck_assert_uint_eq(capture_status_of(side), CU_STREAM_CAPTURE_STATUS_NONE);
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
    ck_assert_uint_eq(free_bytes_now(), 4 * GIB);
}

SUITE("model-graph capture", CK_FORK_GETENV);
