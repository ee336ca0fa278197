/* SPDX-License-Identifier: MIT */
/* test_model_graph.c: stream capture and graphs on the device model.
 *
 * Each test is named after the rule that it checks; lib/driver/model/model_capture.c and lib/driver/model/model_graph.c
 * say where a rule comes from, and which rules are assumed.  A check of all captures, graphs and accounts ends every
 * test. */
#include "test_model_graph.h"

/* ---------------------------------------------------------------- beginning and end ---- */

CASE("work", 60, set_up_graphs, check_pools);

TEST(capture_has_a_beginning_and_an_end) {
    CUgraph graph;

    EXPECT_STATUS(NONE, s);
    begin_graph_capture(s);
    EXPECT_STATUS(ACTIVE, s);
    EXPECT_STATUS(NONE, t);
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, d->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuStreamEndCapture(s, NULL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, d->cuStreamEndCapture(t, &graph));
    EXPECT_STATUS(ACTIVE, s);
    graph = end_graph_capture(s);
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
    begin_graph_capture(own);
    EXPECT_STATUS(ACTIVE, own);
    OK(d->cuGraphDestroy(end_graph_capture(own)));
}

TEST(handles_of_graphs_are_checked) {
    CUgraphExec exec, foreign = (CUgraphExec)(void *)&exec;
    CUgraph graph;

    begin_graph_capture(s);
    graph = end_graph_capture(s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphInstantiateWithFlags(NULL, graph, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphInstantiateWithFlags(&exec, graph, 4));
    exec = instantiate_graph(graph, 0);
    OK(d->cuGraphDestroy(graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphDestroy(graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphInstantiateWithFlags(&foreign, graph, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphLaunch(foreign, s));
    OK(d->cuGraphLaunch(exec, s)); /* an empty graph */
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
    begin_graph_capture(s);
    OK(d->cuMemsetD8Async(block, 2, KIB, s));
    OK(weir__model_kernel(s, 3 * MS));
    OK(weir__model_kernel(s, 4 * MS));
    exec = end_to_exec(s, 0);
    OK(d->cuStreamQuery(s));
    ck_assert(holds(block, KIB, 1));
    for (int i = 0; i < 2; i++) {
        start = model_ticks();
        OK(d->cuGraphLaunch(exec, t));
        OK(d->cuStreamQuery(s));
        EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(t));
        OK(d->cuStreamSynchronize(t));
        ck_assert_uint_ge(model_ticks() - start, 7 * MS);
        ck_assert_uint_lt(model_ticks() - start, 7 * MS + MS / 10);
        ck_assert(holds(block, KIB, 2));
        OK(d->cuMemsetD8Async(block, 1, KIB, t));
    }
    OK(d->cuGraphExecDestroy(exec));
}

static CUresult launch_loaded_delay(uint64_t ns, CUstream stream) {
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

    begin_graph_capture(s);
    OK(launch_loaded_delay(3 * MS, s));
    exec = end_to_exec(s, 0);
    OK(d->cuStreamQuery(s));
    start = model_ticks();
    OK(d->cuGraphLaunch(exec, t));
    OK(d->cuStreamSynchronize(t));
    ck_assert_uint_ge(model_ticks() - start, 3 * MS);
    ck_assert_uint_lt(model_ticks() - start, 3 * MS + MS / 10);
    OK(d->cuGraphExecDestroy(exec));
    begin_graph_capture(s);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, d->cuStreamQuery(s));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, launch_loaded_delay(MS, s));
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    OK(d->cuStreamQuery(s));
}

TEST(captured_copies_take_what_the_host_has_at_launch) {
    unsigned char there[64], back[64];
    CUdeviceptr block = alloc(64, s);
    CUgraphExec exec;

    begin_graph_capture(s);
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
    uint64_t start = model_ticks();

    begin_graph_capture(s);
    OK(weir__model_kernel(s, 5 * MS));
    graph = end_graph_capture(s);
    exec = instantiate_graph(graph, 0);
    second = instantiate_graph(graph, 0); /* without memory there may be several */
    OK(d->cuGraphLaunch(exec, s));
    OK(d->cuGraphLaunch(second, t));
    OK(d->cuStreamSynchronize(t));
    ck_assert_uint_lt(model_ticks() - start, 6 * MS);
    OK(d->cuGraphLaunch(second, s));
    OK(d->cuGraphLaunch(second, t));
    OK(d->cuStreamSynchronize(t));
    ck_assert_uint_ge(model_ticks() - start, 15 * MS);
    ck_assert_uint_lt(model_ticks() - start, 16 * MS);
}

TEST(captured_launch_adds_the_steps_of_the_graph) {
    CUdeviceptr block = alloc(KIB, s);
    CUgraphExec inner, outer;

    begin_graph_capture(s);
    OK(d->cuMemsetD8Async(block, 7, KIB, s));
    inner = end_to_exec(s, 0);
    begin_graph_capture(s);
    OK(d->cuGraphLaunch(inner, s));
    outer = end_to_exec(s, 0);
    OK(d->cuGraphExecDestroy(inner));
    ck_assert(!holds(block, KIB, 7));
    OK(d->cuGraphLaunch(outer, s));
    ck_assert(holds(block, KIB, 7));
    begin_graph_capture(s);
    alloc(KIB, s);
    inner = end_to_exec(s, 0);
    begin_graph_capture(s);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, d->cuGraphLaunch(inner, s));
    OK(d->cuGraphDestroy(end_graph_capture(s)));
}

/* --------------------------------------------------------------------- graph memory ---- */

CASE("memory", 60, set_up_graphs, check_pools);

TEST(captured_allocation_takes_nothing_from_the_pool) {
    CUdeviceptr block = alloc(KIB, s), captured, other;
    uint64_t reserved = get_pool_attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    size_t before = free_bytes_now();
    CUgraphExec exec;

    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED); /* for the trim */
    begin_graph_capture(s);
    captured = alloc(3 * MIB, s);
    other = alloc(MIB, s);
    ck_assert_uint_eq(captured % 512, 0);
    ck_assert(other != captured && other != block);
    ck_assert_uint_eq(alloc(0, s), 0);
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(free_bytes_now(), before);
    OK(d->cuMemsetD8Async(captured, 1, 3 * MIB, s));
    OK(d->cuMemFreeAsync(other, s));
    exec = end_to_exec(s, 0);
    ck_assert_uint_eq(free_bytes_now(), before);
    OK(d->cuGraphLaunch(exec, s));
    ck_assert(holds(captured, 3 * MIB, 1));
    ck_assert_uint_eq(free_bytes_now(), before - 3 * PAGE);
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), reserved);
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), KIB);
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH), KIB);
}

/* Graph memory is freed only by cuDeviceGraphMemTrim, and not while its work runs. */
TEST(graph_memory_stays_with_the_device_until_it_is_trimmed) {
    size_t before = free_bytes_now();
    CUdeviceptr block;
    CUgraphExec exec;

    begin_graph_capture(s);
    block = alloc(16 * MIB, s);
    OK(weir__model_kernel(s, MS));
    OK(d->cuMemFreeAsync(block, s));
    block = alloc(8 * MIB, s); /* from the first one's memory */
    OK(d->cuMemFreeAsync(block, s));
    exec = end_to_exec(s, 0);
    OK(d->cuGraphLaunch(exec, s));
    OK(d->cuGraphLaunch(exec, s));
    OK(d->cuGraphExecDestroy(exec));
    ck_assert_uint_eq(free_bytes_now(), before - 16 * MIB);
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(free_bytes_now(), before - 16 * MIB);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(free_bytes_now(), before - 16 * MIB);
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(free_bytes_now(), before);
}

static uint64_t graph_memory_bytes(CUgraphMem_attribute attribute) {
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
    begin_graph_capture(s);
    block = alloc(16 * MIB, s);
    exec = end_to_exec(s, 0);
    ck_assert_uint_eq(graph_memory_bytes(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
    OK(d->cuGraphLaunch(exec, s));
    ck_assert_uint_eq(graph_memory_bytes(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 16 * MIB);
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(graph_memory_bytes(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    ck_assert_uint_eq(graph_memory_bytes(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 16 * MIB);
    OK(d->cuGraphExecDestroy(exec));
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(graph_memory_bytes(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
}

TEST(graph_memory_counts_against_the_device) {
    CUdeviceptr block, large;
    CUgraphExec exec;

    start_graph_device(64 * MIB);
    begin_graph_capture(s);
    block = alloc(40 * MIB, s);
    OK(d->cuMemsetD8Async(block, 3, 40 * MIB, s));
    OK(d->cuMemFreeAsync(block, s));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&large, GIB, pool, s));
    EXPECT_STATUS(ACTIVE, s);
    exec = end_to_exec(s, 0);
    OK(d->cuMemAlloc(&large, 32 * MIB));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuGraphLaunch(exec, s));
    ck_assert_uint_eq(free_bytes_now(), 32 * MIB);
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
    begin_graph_capture(s);
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
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), KIB);
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuMemFreeAsync(direct, s));
    OK(d->cuGraphLaunch(exec, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(captured, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(captured));
}

/* cuMemFreeAsync, cuMemFree or the next launch itself frees the allocation. */
TEST_EACH(3, relaunch_wants_all_allocations_freed) {
    CUdeviceptr block;
    CUgraphExec exec;
    size_t used;

    begin_graph_capture(s);
    block = alloc(MIB, s);
    OK(d->cuMemsetD8Async(block, 9, MIB, s));
    exec = end_to_exec(s, _i == 2 ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(block, s));
    OK(d->cuGraphLaunch(exec, s));
    used = free_bytes_now();
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
        ck_assert_uint_eq(free_bytes_now(), used);
    }
    OK(d->cuMemFree(block));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(block));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block, 8, MIB, t));
}

TEST(another_graph_may_free_an_allocation) {
    CUgraphExec makes, frees;
    CUdeviceptr block;

    begin_graph_capture(s);
    block = alloc(MIB, s);
    makes = end_to_exec(s, 0);
    begin_graph_capture(s);
    OK(d->cuMemFreeAsync(block, s));
    frees = end_to_exec(s, 0);
    begin_graph_capture(s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(block, s)); /* a third may not */
    OK(d->cuGraphDestroy(end_graph_capture(s)));
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

/* A graph that was destroyed or never made frees nothing. */
TEST(free_goes_with_its_graph) {
    CUgraphExec makes;
    CUdeviceptr block;

    begin_graph_capture(s);
    block = alloc(MIB, s);
    makes = end_to_exec(s, 0);
    begin_graph_capture(s);
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuGraphDestroy(end_graph_capture(s)));
    begin_graph_capture(s);
    OK(d->cuMemFreeAsync(block, s));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, d->cuStreamQuery(s));
    end_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s);
    begin_graph_capture(s);
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuGraphLaunch(makes, t));
    OK(d->cuGraphLaunch(end_to_exec(s, 0), t));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(block));
}

/* A use that comes too early or too late faults, as on a device. */
TEST(graph_memory_is_there_from_the_launch_to_the_free) {
    CUdeviceptr block;
    CUgraphExec exec;

    begin_graph_capture(s);
    block = alloc(MIB, s);
    exec = end_to_exec(s, 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(host_faults(block, 1), i != 1);
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
    size_t before = free_bytes_now();
    CUdeviceptr kept, freed;
    CUgraphExec exec;
    CUgraph graph;

    begin_graph_capture(s);
    kept = alloc(MIB, s);
    freed = alloc(MIB, s);
    OK(d->cuMemsetD8Async(kept, 4, MIB, s));
    OK(d->cuMemFreeAsync(freed, s));
    graph = end_graph_capture(s);
    exec = instantiate_graph(graph, 0);
    OK(d->cuGraphLaunch(exec, s));
    OK(d->cuGraphExecDestroy(exec));
    OK(d->cuGraphDestroy(graph));
    OK(d->cuStreamSynchronize(s));
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(free_bytes_now(), before - PAGE);
    ck_assert(holds(kept, MIB, 4));
    begin_graph_capture(s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(freed, 4, MIB, s)); /* nobody's now */
    OK(d->cuGraphDestroy(end_graph_capture(s)));
    OK(d->cuMemFreeAsync(kept, s));
    OK(d->cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(free_bytes_now(), before);
}

TEST(graph_with_memory_has_one_executable_at_a_time) {
    CUgraphExec exec, second;
    CUgraph graph;

    begin_graph_capture(s);
    alloc(KIB, s);
    graph = end_graph_capture(s);
    exec = instantiate_graph(graph, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGraphInstantiateWithFlags(&second, graph, 0));
    OK(d->cuGraphExecDestroy(exec));
    OK(d->cuGraphExecDestroy(instantiate_graph(graph, 0)));
    OK(d->cuGraphDestroy(graph));
}

/* ------------------------------------------------------------------ the suite ---- */

SUITE("model-graph", CK_FORK_GETENV);
