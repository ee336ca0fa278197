/* SPDX-License-Identifier: MIT */
/* conformance_capture.c: checks weir under stream capture, and the calls that a driver forbids there. */
#include "conformance_allocator.h"

/* ---- stream capture --------------------------------------------------------------------------- */

/* Makes an executable graph whose launch first frees the blocks that the previous launch left. */
static CUgraphExec instantiate_auto_free(CUgraph graph) {
    CUgraphExec exec;

    CU(driver->cuGraphInstantiateWithFlags(&exec, graph,
                                           CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    return exec;
}

/* Frees a block from outside the capture on the captured stream (weir/allocator.h).  The driver's pool refuses the
 * free, the arenas and the caches defer it to the end of the capture, and the direct engine ignores the stream.
 * Returns 1 if the block is freed, else 0. */
static int free_uncaptured(int kind, weir_allocator *a, void *block, CUstream captured) {
    int is_freed = kind != KIND_POOL || cache == WEIR_SWITCH_ON;

    EXPECT(is_freed ? WEIR_OK : WEIR_E_CAPTURE, weir_free(a, block, captured));
    return is_freed;
}

static uint64_t graph_memory_figure(CUgraphMem_attribute attribute) {
    uint64_t bytes = UINT64_MAX;

    CU(driver->cuDeviceGetGraphMemAttribute(device, attribute, &bytes));
    return bytes;
}

CASE("captures", 120, open_device_with_caches, close_tested_device);
CASE_TOO("captures alone", 120, open_device_without_caches, close_tested_device);

/* The graph frees one of its blocks, and each launch leaves another one.  The graph also writes to a block from
 * outside. */
TEST_EACH((KIND_DIRECT * CAPTURE_MODES), captured_blocks_are_the_graph_s) {
    size_t before = device_free();
    weir_allocator *a = make_tested(_i / CAPTURE_MODES);
    void *outside, *passing, *left;
    weir_statistics first, last;
    CUgraphExec exec;
    CUgraph graph;

    if (!has_graphs())
        goto end;
    outside = alloc_tested(a, MIB, s);
    first = stats_of(a);
    begin_capture_in_mode(s, _i % CAPTURE_MODES);
    passing = alloc_tested(a, 3 * MIB, s);
    left = alloc_tested(a, MIB, s);
    fill_with_pattern(passing, 3 * MIB, 0x11, s);
    fill_with_pattern(left, MIB, 0x22, s);
    submit_short_work(s);
    fill_with_pattern(outside, MIB, 0x33, s);
    OK(weir_free(a, passing, s));
    expect_capturing(s);
    graph = end_tested_capture(s);
    last = stats_of(a);
    ck_assert_uint_eq(last.requested, first.requested);
    ck_assert_uint_eq(last.reserved, first.reserved);
    exec = instantiate_auto_free(graph);
    for (int i = 0; i < 2; i++) {
        fill_with_pattern(outside, MIB, 0, s);
        CU(driver->cuGraphLaunch(exec, s));
        expect_pattern(left, MIB, 0x22, s);
        expect_pattern(outside, MIB, 0x33, s);
        fill_with_pattern(left, MIB, 0x44, s);
    }
    ck_assert_uint_ge(graph_memory_figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), MIB);
    OK(weir_free(a, left, s));
    OK(weir_free(a, outside, s));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuStreamSynchronize(s));
    ck_assert_uint_ge(graph_memory_figure(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), MIB);
    CU(driver->cuDeviceGraphMemTrim(device)); /* the driver keeps the memory of graphs */
    ck_assert_uint_eq(graph_memory_figure(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
    ck_assert_uint_eq(check_identities(a).blocks, 0);
end:
    OK(weir_allocator_destroy(a));
    expect_free_again(before);
}

/* The direct engine has no memory that a graph could own; the capture goes on. */
TEST(captured_requests_are_refused) {
    weir_allocator *a = make_tested(KIND_DIRECT);
    weir_statistics first, last;
    void *none = &none;

    if (!has_graphs())
        goto end;
    OK(weir_free(a, alloc_tested(a, 1000, s), s));
    first = stats_of(a);
    for (int mode = 0; mode < CAPTURE_MODES; mode++) {
        begin_capture_in_mode(s, mode);
        EXPECT(WEIR_E_CAPTURE, weir_alloc(a, 1000, s, &none));
        EXPECT(WEIR_E_CAPTURE, weir_alloc(a, 64 * MIB, s, &none));
        ck_assert_ptr_eq(none, &none);
        expect_capturing(s);
        CU(driver->cuGraphDestroy(end_tested_capture(s)));
    }
    last = check_identities(a);
    ck_assert_uint_eq(last.allocs, first.allocs);
    ck_assert_uint_eq(last.in_use, first.in_use);
    ck_assert_uint_eq(last.reserved, first.reserved);
    OK(weir_free(a, alloc_tested(a, 1000, s), s));
end:
    OK(weir_allocator_destroy(a));
}

TEST_EACH(KIND_COUNT, streams_beside_a_capture_are_served) {
    CUstream other = make_stream();
    weir_allocator *a = make_tested(_i);
    void *block;

    /* Driver calls of the pool without caches break captures in the other modes. */
    for (int mode = _i == KIND_POOL && cache == WEIR_SWITCH_OFF ? CU_STREAM_CAPTURE_MODE_RELAXED
                                                                : 0;
         mode < CAPTURE_MODES && has_graphs(); mode++) {
        begin_capture_in_mode(s, mode);
        for (int i = 0; i < 20; i++) {
            block = alloc_tested(a, (size_t)(i + 1) * MIB, other);
            fill_with_pattern(block, MIB, (unsigned char)i, other);
            OK(weir_free(a, block, other));
        }
        OK(weir_trim(a, 0, NULL));
        check_identities(a);
        expect_capturing(s);
        CU(driver->cuGraphDestroy(end_tested_capture(s)));
    }
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    drop_stream(other);
}

/* The direct engine without caches frees no used block under capture here, since its free waits for the device. */
TEST_EACH(KIND_COUNT, blocks_from_outside_may_be_freed_in_a_capture) {
    CUstream other = make_stream();
    size_t before = device_free();
    weir_allocator *a = make_tested(_i);

    for (int mode = 0; mode < CAPTURE_MODES && has_graphs(); mode++) {
        void *block = alloc_tested(a, MIB, s), *kept = alloc_tested(a, MIB, s),
             *used = alloc_tested(a, MIB, other);
        int is_freed;

        fill_with_pattern(kept, MIB, 0x5a, s);
        OK(weir_use(a, used, s));
        begin_capture_in_mode(s, mode);
        is_freed = free_uncaptured(_i, a, block, s);
        expect_capturing(s);
        if (_i != KIND_DIRECT) /* whose free waits for every stream */
            EXPECT(WEIR_E_CAPTURE, weir_free(a, used, other));
        expect_capturing(s);
        CU(driver->cuGraphDestroy(end_tested_capture(s)));
        ck_assert_uint_eq(check_identities(a).blocks, is_freed ? 2 : 3);
        if (!is_freed)
            OK(weir_free(a, block, s));
        OK(weir_free(a, used, other));
        block = alloc_tested(a, MIB, s);
        fill_with_pattern(block, MIB, 0xa5, s);
        expect_pattern(kept, MIB, 0x5a, s);
        OK(weir_free(a, block, s));
        OK(weir_free(a, kept, s));
        ck_assert_uint_eq(check_identities(a).blocks, 0);
    }
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    expect_free_again(before);
    drop_stream(other);
}

/* A query of the captured stream, which CUDA forbids, breaks the capture. */
TEST_EACH(KIND_COUNT, aborted_capture_leaks_nothing) {
    size_t before = device_free();
    weir_allocator *a = make_tested(_i);
    void *outside = alloc_tested(a, MIB, s), *block = NULL, *none = &none;
    weir_statistics first = stats_of(a), last;

    for (int mode = 0; mode < CAPTURE_MODES && has_graphs(); mode++) {
        CUgraph graph = NULL;

        begin_capture_in_mode(s, mode);
        if (_i != KIND_DIRECT) {
            block = alloc_tested(a, MIB, s);
            fill_with_pattern(alloc_tested(a, MIB, s), MIB, 1,
                              s); /* the capture never frees this block */
            OK(weir_free(a, block, s));
        }
        ck_assert_uint_eq(driver->cuStreamQuery(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT(WEIR_E_CAPTURE, weir_alloc(a, MIB, s, &none));
        ck_assert_ptr_eq(none, &none);
        ck_assert_uint_eq(driver->cuStreamEndCapture(s, &graph),
                          CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        ck_assert_ptr_null(graph);
        last = check_identities(a);
        ck_assert_uint_eq(last.requested, first.requested);
        ck_assert_uint_eq(last.in_use, first.in_use);
        ck_assert_uint_eq(last.reserved, first.reserved);
        OK(weir_free(a, alloc_tested(a, MIB, s), s));
    }
    OK(weir_free(a, outside, s));
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    expect_free_again(before);
}

/* ---- calls that a driver forbids under capture ------------------------------------------------ */

/* The model's rules of capture are partly assumed.  On a GPU the calls below show all wrong rules in one message.  Each
 * call is made beside a fresh capture of `s', in each mode. */
static struct {
    CUstream s, other;
    CUevent recorded, never, inside; /* on `other' outside, never, on `s' in the capture */
    CUdeviceptr direct, pooled, captured;
    CUmemoryPool pool;
} under;

static CUresult relaxed(CUresult (*call)(void)) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result;

    CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
    result = call();
    CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
    return result;
}

static CUresult call_alloc(void) {
    CUdeviceptr block;
    CUresult result = driver->cuMemAlloc(&block, 4 * MIB);

    return result == CUDA_SUCCESS ? driver->cuMemFree(block) : result;
}
static CUresult call_alloc_relaxed(void) {
    return relaxed(call_alloc);
}
static CUresult call_free(void) {
    return driver->cuMemFree(under.direct);
}
static CUresult call_host(void) {
    void *host;
    CUresult result = driver->cuMemAllocHost(&host, 64 << 10);

    return result == CUDA_SUCCESS ? driver->cuMemFreeHost(host) : result;
}
static CUresult call_host_relaxed(void) {
    return relaxed(call_host);
}
static CUresult call_query_event(void) {
    return driver->cuEventQuery(under.recorded);
}
static CUresult call_query_event_relaxed(void) {
    return relaxed(call_query_event);
}
static CUresult call_query_inside(void) {
    return driver->cuEventQuery(under.inside);
}
static CUresult call_query_inside_relaxed(void) {
    return relaxed(call_query_inside);
}
static CUresult call_elapsed(void) {
    float milliseconds;

    return driver->cuEventElapsedTime(&milliseconds, under.recorded, under.recorded);
}
static CUresult call_elapsed_inside(void) {
    float milliseconds;

    return driver->cuEventElapsedTime(&milliseconds, under.recorded, under.inside);
}
static CUresult call_query(void) {
    return driver->cuStreamQuery(under.s);
}
static CUresult call_synchronize(void) {
    return driver->cuStreamSynchronize(under.s);
}
static CUresult call_query_other(void) {
    return driver->cuStreamQuery(under.other);
}
static CUresult call_synchronize_other(void) {
    return driver->cuStreamSynchronize(under.other);
}
static CUresult call_query_other_relaxed(void) {
    return relaxed(call_query_other);
}
static CUresult call_synchronize_other_relaxed(void) {
    return relaxed(call_synchronize_other);
}
static CUresult call_synchronize_context(void) {
    return driver->cuCtxSynchronize();
}
static CUresult call_synchronize_context_relaxed(void) {
    return relaxed(call_synchronize_context);
}
static CUresult call_begin_again(void) {
    return driver->cuStreamBeginCapture(under.s, CU_STREAM_CAPTURE_MODE_RELAXED);
}
static CUresult call_begin_legacy(void) {
    return driver->cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED);
}
static CUresult call_end_other(void) {
    CUgraph graph;

    return driver->cuStreamEndCapture(under.other, &graph);
}
static CUresult call_end_branch(void) {
    CUgraph graph;

    CU(driver->cuStreamWaitEvent(under.other, under.inside, 0));
    return driver->cuStreamEndCapture(under.other, &graph);
}
static CUresult call_wait_recorded(void) {
    return driver->cuStreamWaitEvent(under.s, under.recorded, 0);
}
static CUresult call_wait_never(void) {
    return driver->cuStreamWaitEvent(under.s, under.never, 0);
}
static CUresult call_free_uncaptured(void) {
    return driver->cuMemFreeAsync(under.direct, under.s);
}
static CUresult call_free_twice(void) {
    CU(driver->cuMemFreeAsync(under.captured, under.s));
    return driver->cuMemFreeAsync(under.captured, under.s);
}
static CUresult call_free_outside(void) {
    return driver->cuMemFreeAsync(under.captured, under.other);
}
static CUresult call_free_outside_relaxed(void) {
    return relaxed(call_free_outside);
}
static CUresult call_pool_alloc(void) {
    CUdeviceptr block;
    CUresult result = driver->cuMemAllocFromPoolAsync(&block, MIB, under.pool, under.other);

    return result == CUDA_SUCCESS ? driver->cuMemFreeAsync(block, under.other) : result;
}
static CUresult call_pool_alloc_relaxed(void) {
    return relaxed(call_pool_alloc);
}
static CUresult call_pool_free(void) {
    CUresult result = driver->cuMemFreeAsync(under.pooled, under.other);

    if (result == CUDA_SUCCESS)
        under.pooled = 0;
    return result;
}
static CUresult call_pool_free_relaxed(void) {
    return relaxed(call_pool_free);
}
static CUresult call_pool_figure(void) {
    uint64_t bytes;

    return driver->cuMemPoolGetAttribute(under.pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
}
static CUresult call_pool_figure_relaxed(void) {
    return relaxed(call_pool_figure);
}
static CUresult call_trim(void) {
    return driver->cuMemPoolTrimTo(under.pool, 0);
}
static CUresult call_trim_relaxed(void) {
    return relaxed(call_trim);
}
static CUresult call_captured_id(void) {
    unsigned long long id;

    return driver->cuStreamGetId(under.s, &id);
}
static CUresult call_captured_id_relaxed(void) {
    return relaxed(call_captured_id);
}
static CUresult call_captured_alloc(void) {
    CUdeviceptr block;
    CUresult result = driver->cuMemAllocFromPoolAsync(&block, MIB, under.pool, under.s);

    return result == CUDA_SUCCESS ? driver->cuMemFreeAsync(block, under.s) : result;
}
static CUresult call_captured_alloc_relaxed(void) {
    return relaxed(call_captured_alloc);
}
static CUresult call_make_event(void) {
    CUevent event;

    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return driver->cuEventDestroy(event);
}
static CUresult call_use_legacy(void) {
    return driver->cuMemsetD8Async(under.direct, 0, 1,
                                   NULL); /* the captured stream is not blocking */
}

enum { STAYS = CU_STREAM_CAPTURE_STATUS_ACTIVE, BREAKS = CU_STREAM_CAPTURE_STATUS_INVALIDATED };

/* An UNSAFE call returns 900, and breaks a capture in global or thread-local mode.  Beside a relaxed capture it returns
 * `result' and breaks nothing. */
enum { UNSAFE = 9 };

static const struct rule {
    const char *what;
    CUresult (*call)(void);
    CUresult result;
    unsigned does; /* the effect on the capture */
} rules[] = {
    {"cuMemAlloc", call_alloc, CUDA_SUCCESS, UNSAFE},
    {"cuMemAlloc and cuMemFree, relaxed", call_alloc_relaxed, CUDA_SUCCESS, STAYS},
    {"cuMemFree", call_free, CUDA_SUCCESS, UNSAFE},
    {"cuMemAllocHost", call_host, CUDA_SUCCESS, UNSAFE},
    {"cuMemAllocHost and cuMemFreeHost, relaxed", call_host_relaxed, CUDA_SUCCESS, STAYS},
    {"query of an event", call_query_event, CUDA_SUCCESS, UNSAFE},
    {"query of an event, relaxed", call_query_event_relaxed, CUDA_SUCCESS, STAYS},
    {"query of a captured event", call_query_inside, CUDA_ERROR_CAPTURED_EVENT, BREAKS},
    {"the same, relaxed", call_query_inside_relaxed, CUDA_ERROR_CAPTURED_EVENT, BREAKS},
    {"time between events", call_elapsed, CUDA_SUCCESS, STAYS},
    {"time up to a captured event", call_elapsed_inside, CUDA_ERROR_CAPTURED_EVENT, STAYS},
    {"query of the stream", call_query, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, BREAKS},
    {"wait for the stream", call_synchronize, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, BREAKS},
    {"id of the stream", call_captured_id, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, BREAKS},
    {"the same, relaxed", call_captured_id_relaxed, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, BREAKS},
    {"query of another stream", call_query_other, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_query_other_relaxed, CUDA_SUCCESS, STAYS},
    {"wait for another stream", call_synchronize_other, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_synchronize_other_relaxed, CUDA_SUCCESS, STAYS},
    {"wait for the context", call_synchronize_context, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     BREAKS},
    {"the same, relaxed", call_synchronize_context_relaxed, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     BREAKS},
    {"second beginning", call_begin_again, CUDA_ERROR_ILLEGAL_STATE, STAYS},
    {"beginning on the legacy stream", call_begin_legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     STAYS},
    {"end on another stream", call_end_other, CUDA_ERROR_ILLEGAL_STATE, STAYS},
    {"end on a branch", call_end_branch, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, BREAKS},
    {"wait for an event outside", call_wait_recorded, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, BREAKS},
    {"wait for an event never recorded", call_wait_never, CUDA_SUCCESS, STAYS},
    {"captured allocation and free", call_captured_alloc, CUDA_SUCCESS, STAYS},
    {"the same, relaxed", call_captured_alloc_relaxed, CUDA_SUCCESS, STAYS},
    {"captured free of a block from outside", call_free_uncaptured, CUDA_ERROR_INVALID_VALUE,
     STAYS},
    {"second captured free", call_free_twice, CUDA_ERROR_INVALID_VALUE, STAYS},
    {"free outside of a captured block", call_free_outside, CUDA_ERROR_INVALID_VALUE, UNSAFE},
    {"the same, relaxed", call_free_outside_relaxed, CUDA_ERROR_INVALID_VALUE, STAYS},
    {"allocation from a pool", call_pool_alloc, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_pool_alloc_relaxed, CUDA_SUCCESS, STAYS},
    {"free on another stream", call_pool_free, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_pool_free_relaxed, CUDA_SUCCESS, STAYS},
    {"figure of a pool", call_pool_figure, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_pool_figure_relaxed, CUDA_SUCCESS, STAYS},
    {"trim of a pool", call_trim, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_trim_relaxed, CUDA_SUCCESS, STAYS},
    {"making of an event", call_make_event, CUDA_SUCCESS, STAYS},
    {"work on the legacy stream", call_use_legacy, CUDA_SUCCESS, STAYS},
};

static void set_up_capture(int mode) {
    CU(driver->cuMemAlloc(&under.direct, 4 * MIB));
    CU(driver->cuMemAllocFromPoolAsync(&under.pooled, MIB, under.pool, under.other));
    CU(driver->cuEventRecord(under.recorded, under.other));
    CU(driver->cuStreamSynchronize(under.other));
    begin_capture_in_mode(under.s, mode);
    CU(driver->cuMemAllocFromPoolAsync(&under.captured, MIB, under.pool, under.s));
    CU(driver->cuEventRecord(under.inside, under.s));
}

/* Ends the capture, if the call has left it.  The last free may fail, since a wrong rule has freed the block. */
static void tear_down_capture(void) {
    CUgraph graph = NULL;

    if (driver->cuStreamEndCapture(under.s, &graph) == CUDA_SUCCESS)
        CU(driver->cuGraphDestroy(graph));
    CU(driver->cuMemFreeAsync(under.pooled, under.other));
    CU(driver->cuCtxSynchronize());
    (void)driver->cuMemFree(under.direct);
}

static size_t try_rule(const struct rule *rule, int mode, char *text, size_t room) {
    int forbidden = rule->does == UNSAFE && mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult wanted = forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : rule->result, result;
    unsigned does = forbidden ? BREAKS : rule->does == UNSAFE ? STAYS : rule->does;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    int wrote = 0;

    set_up_capture(mode);
    result = rule->call();
    CU(driver->cuStreamIsCapturing(under.s, &status));
    tear_down_capture();
    if (result != wanted || status != does)
        wrote = snprintf(text, room, "%s: %u and status %u, not %u and %u; ", rule->what, result,
                         status, wanted, does);
    return wrote < 0 || (size_t)wrote >= room ? 0 : (size_t)wrote;
}

CASE("the rest", 120, open_device_with_caches, close_tested_device);

TEST_EACH(CAPTURE_MODES, a_driver_forbids_what_the_model_does) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    char text[4096] = "";
    size_t length = 0;

    if (!has_graphs() || !driver->cuEventElapsedTime || !driver->cuStreamGetId)
        return;
    under.s = make_stream();
    under.other = make_stream();
    CU(driver->cuEventCreate(&under.recorded, CU_EVENT_DEFAULT));
    CU(driver->cuEventCreate(&under.never, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventCreate(&under.inside, CU_EVENT_DEFAULT));
    CU(driver->cuMemPoolCreate(&under.pool, &props));
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        length += try_rule(&rules[i], _i, text + length, sizeof text - length);
    ck_assert_msg(length == 0, "%s", text);
    CU(driver->cuMemPoolDestroy(under.pool));
    CU(driver->cuEventDestroy(under.recorded));
    CU(driver->cuEventDestroy(under.never));
    CU(driver->cuEventDestroy(under.inside));
    drop_stream(under.other);
    drop_stream(under.s);
}
