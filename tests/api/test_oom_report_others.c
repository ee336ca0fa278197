/* SPDX-License-Identifier: MIT */
/* test_oom_report_others.c: requests that exceed the device's memory: others, graphs or live blocks hold it. */
#include "test_oom_report.h"

#include <sys/resource.h>

CASE("others", 60, start_report_device, end_reporter_if_there);

TEST_WHERE(0, WORLDS, has_growth, others_have_the_device) {
    CUdeviceptr others;

    options = report_options(_i, 0);
    options.registry = _i % 2 ? WEIR_SWITCH_OFF : WEIR_SWITCH_ON; /* no other process exists */
    CU(driver->cuMemAlloc(&others, 3 * GIB));
    make_reporter();
    add_block(64 * MIB, A);
    REFUSED(OTHERS, GIB, A);
    MUST_LE(3 * GIB, v.others);
    MUST_LE(v.others, 3 * GIB + 512 * MIB);
    MUST_EQ(v.graphs + v.other_allocators, 0);
    expect_none(); /* others were first, so that prealloc would not help */
    end_reporter();
    CU(driver->cuMemFree(others));
    make_reporter();
    add_block(64 * MIB, A);
    CU(driver->cuMemAlloc(&others, 3 * GIB));
    REFUSED(OTHERS, GIB, A);
    if (is(_i, KIND_DIRECT)) {
        expect_none();
    } else {
        expect_setting(0, "prealloc", NULL);
        CU(driver->cuMemFree(others)); /* others come later */
        make_as_told();
        CU(driver->cuMemAlloc(&others, 2 * GIB + 512 * MIB));
        add_block(64 * MIB, A);
        add_block(GIB, A);
    }
    end_reporter();
    CU(driver->cuMemFree(others));
}

/* The advised prealloc is within the limit. */
TEST_EACH(WORLDS, others_have_what_a_limit_allows) {
    CUdeviceptr others;

    if (!is(_i, KIND_REGIONS) && !is(_i, KIND_MAPPED))
        return; /* the other worlds get all of the memory, or less, or none */
    make_for(_i, 72 * MIB, "");
    CU(driver->cuMemAlloc(&others, device_free() - 10 * MIB));
    REFUSED(OTHERS, 66 * MIB, A);
    expect_only("prealloc", "66MiB");
    CU(driver->cuMemFree(others));
    make_as_told();
    CU(driver->cuMemAlloc(&others, device_free() - 10 * MIB));
    add_block(66 * MIB, A);
    end_reporter();
    CU(driver->cuMemFree(others));
}

/* Others had taken the memory before it could be preallocated. */
TEST_EACH(WORLDS, others_had_what_was_preallocated) {
    CUdeviceptr others;

    options = report_options(_i, 0);
    if (is(_i, KIND_FIXED) || is(_i, KIND_DIRECT))
        return;
    options.prealloc = bytes_amount(2 * GIB);
    OK(weir__allocator_create_later(driver, &options, &a, NULL, 0));
    CU(driver->cuMemAlloc(&others, 3 * GIB + 512 * MIB));
    REFUSED(OTHERS, 2 * GIB, A);
    expect_none();
    REFUSED(OTHERS, 2 * GIB + 256, A);
    expect_setting(0, "prealloc", NULL); /* more than the setting had */
    REFUSED(OTHERS, 4 * GIB, A);
    expect_setting(0, "prealloc", "4GiB"); /* the whole device */
    expect_text(v.largest > v.largest_free_block
                    ? "MiB would fit now: weir can add or move memory\n"
                    : "MiB would fit now\n");
    end_reporter();
    CU(driver->cuMemFree(others));
}

/* The other allocator is in this process.  OOM recovery reclaims its idle memory; memory in use counts as a cause. */
TEST_WHERE(0, WORLDS, has_growth, another_allocator_has_the_device) {
    weir_allocator *other;
    void *held;

    options = report_options(_i, 0);
    OK(weir_allocator_create(&options, &other));
    OK(weir_alloc(other, 3 * GIB, A, &held));
    make_reporter();
    REFUSED(OTHERS, GIB + 256 * MIB, A);
    MUST_LE(3 * GIB, v.other_allocators);
    MUST_LE(v.other_allocators, 4 * GIB);
    MUST_LE(v.others, 512 * MIB);
    expect_text("others: other weir pools of this process have ");
    end_reporter();
    OK(weir_free(other, held, A));
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(other));
}

TEST_WHERE(0, WORLDS, has_growth, graphs_have_the_device) {
    CUgraphExec exec;

    options = report_options(_i, 0);
    exec = run_graph(3 * GIB);
    make_reporter();
    REFUSED(GRAPHS, 2 * GIB, A);
    expect_none(); /* the graph had the memory before */
    end_reporter();
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuDeviceGraphMemTrim(0));
    make_reporter();
    exec = run_graph(3 * GIB);
    REFUSED(GRAPHS, 2 * GIB, A);
    MUST_EQ(v.graphs, 3 * GIB);
    MUST_EQ(v.graphs_idle, 3 * GIB);
    MUST_LE(v.others, 512 * MIB);
    if (!is(_i, KIND_DIRECT))
        expect_setting(0, "prealloc", "2GiB");
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuDeviceGraphMemTrim(0));
    oom_report_now();
    MUST_EQ(v.cause, WEIR_OOM_REPORT_NONE);
    add_block(2 * GIB, A);
}

TEST_WHERE(0, WORLDS, has_growth, all_of_it_is_in_use) {
    make_for(_i, 0, "");
    for (int i = 0; i < 14; i++)
        add_block(256 * MIB, A);
    REFUSED(IN_USE, GIB, A);
    expect_none();
    expect_text("in-use: only 512MiB is idle or free; live blocks have 3.5GiB\n");
}

TEST_EACH(WORLDS, more_than_there_is) {
    make_for(_i, 0, "");
    REFUSED(TOO_LARGE, 5 * GIB, A);
    expect_none();
    REFUSED(TOO_LARGE, SIZE_MAX - 5, A); /* an overflow if anything is added */
    expect_none();
    REFUSED(TOO_LARGE, SIZE_MAX, A); /* not taken for an unknown value */
    expect_text("could not allocate 16777216TiB on model:0\n");
    expect_json(",\"asked\":18446744073709551615,");
}

/* A driver may refuse memory that it reports as free. */
TEST_WHERE(0, WORLDS, has_growth, what_is_free_is_refused) {
    static const enum weir_driver_entry entries[] = {
        WEIR_ENTRY_cuMemAlloc, WEIR_ENTRY_cuMemAllocFromPoolAsync, WEIR_ENTRY_cuMemCreate};
    void *none = NULL;

    options = report_options(_i, 0);
    options.registry = _i % 2 ? WEIR_SWITCH_OFF : WEIR_SWITCH_ON;
    make_reporter();
    for (int i = 0; i < 3; i++)
        weir__model_fail(entries[i], 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, GIB, A, &none));
    OK(weir_last_oom_report(a, &v));
    MUST_EQ(v.cause, WEIR_OOM_REPORT_DRIVER);
    MUST_EQ(v.driver_result, CUDA_ERROR_OUT_OF_MEMORY);
    MUST_EQ(v.no_descriptors, 0);
    MUST(v.largest < GIB); /* free memory is no promise then */
    expect_none();
    expect_text("cause       driver: the driver answers CUDA_ERROR_OUT_OF_MEMORY with ");
    expect_text("what the driver lacks");
    expect_json(",\"driver_result\":2,\"no_descriptors\":false,");
    weir__model_faults_clear();
}

/* The model, like a driver, needs a file descriptor to create memory that can be mapped. */
TEST_WHERE(0, WORLDS, world_is_mapped, no_file_descriptor_is_left) {
    struct rlimit before, none_left;
    void *none = NULL;

    make_for(_i, 0, "");
    MUST_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none_left = before;
    none_left.rlim_cur = 0;
    MUST_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, GIB, A, &none));
    OK(weir_last_oom_report(a, &v));
    MUST_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_DRIVER);
    MUST_EQ(v.no_descriptors, 1);
    expect_text("free: no file descriptor is left\n");
    expect_text("\n  Raise the limit of open files (ulimit -n): no setting makes room.\n");
    add_block(GIB, A); /* the advice was right */
}

/* The report names graphs or others, whichever hold more. */
TEST_WHERE(0, WORLDS, has_growth, the_larger_part_is_told) {
    CUdeviceptr others;
    CUgraphExec exec;

    options = report_options(_i, 0);
    exec = run_graph(GIB);
    CU(driver->cuMemAlloc(&others, 2 * GIB));
    make_reporter();
    REFUSED(OTHERS, GIB + 256 * MIB, A);
    CU(driver->cuMemFree(others));
    CU(driver->cuMemAlloc(&others, 512 * MIB));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuDeviceGraphMemTrim(0));
    exec = run_graph(2 * GIB + 512 * MIB);
    REFUSED(GRAPHS, GIB + 512 * MIB, A);
    CU(driver->cuGraphExecDestroy(exec));
    end_reporter();
    CU(driver->cuMemFree(others));
}

/* The MiB that graphs and others hold, and the MiB that the request exceeds the free memory by. */
static const struct {
    size_t graphs, others, lacks;
    int cause;
} parts[] = {
    {128, 192, 64, WEIR_OOM_REPORT_GRAPHS}, /* others hold no more than a context */
    {0, 192, 64, WEIR_OOM_REPORT_IN_USE},
    {1024, 1536, 2048, WEIR_OOM_REPORT_OTHERS}, /* alone, each part is too small */
    {1536, 1024, 2048, WEIR_OOM_REPORT_GRAPHS},
    {1024, 192, 1152, WEIR_OOM_REPORT_GRAPHS},
    {0, 1024, 2048, WEIR_OOM_REPORT_IN_USE}, /* both together are too small */
    {0, 256, 64,
     WEIR_OOM_REPORT_IN_USE}, /* equal to a context's share, to the lack, or to the other part */
    {256, 192, 320, WEIR_OOM_REPORT_IN_USE},
    {128, 64, 128, WEIR_OOM_REPORT_GRAPHS},
    {512, 512, 256, WEIR_OOM_REPORT_GRAPHS},
    {1024, 1024, 1536, WEIR_OOM_REPORT_OTHERS},
    {512, 1024, 1024, WEIR_OOM_REPORT_OTHERS},
    {1024, 1536, 2560, WEIR_OOM_REPORT_OTHERS}, /* the whole device */
};
enum { PARTS = sizeof parts / sizeof parts[0] };

TEST_EACH((WORLDS * PARTS), parts_of_the_device) {
    int world = _i / PARTS, at = _i % PARTS;
    size_t free_bytes, total;
    CUdeviceptr others = 0;
    CUgraphExec exec = NULL;

    options = report_options(world, 0);
    if (is(world, KIND_FIXED))
        return;
    if (parts[at].graphs)
        exec = run_graph(parts[at].graphs * MIB);
    CU(driver->cuMemAlloc(&others, parts[at].others * MIB));
    if (at % 2 == 0)
        options.limit = bytes_amount(4 * GIB); /* too high to matter */
    make_reporter();
    if (parts[at].lacks > parts[at].graphs + parts[at].others)
        add_block(GIB + 512 * MIB, A);
    CU(driver->cuMemGetInfo(&free_bytes, &total));
    refused_for(__LINE__, parts[at].cause, free_bytes + parts[at].lacks * MIB, A);
    end_reporter();
    CU(driver->cuMemFree(others));
    if (exec) {
        CU(driver->cuGraphExecDestroy(exec));
        CU(driver->cuDeviceGraphMemTrim(0));
    }
}

/* If the driver reports neither memory of graphs nor free memory, the report has the rest. */
TEST_EACH(WORLDS, the_report_has_the_rest_if_the_driver_knows_less) {
    struct weir_driver table = *driver;
    CUdeviceptr others;
    CUgraphExec exec;
    void *none = NULL;

    options = report_options(_i, 0);
    if (is(_i, KIND_FIXED))
        return;
    table.capabilities &= ~(unsigned)WEIR_CAP_GRAPH;
    exec = run_graph(GIB);
    OK(weir__allocator_create_on(&table, &options, &a, NULL, 0));
    CU(driver->cuMemAlloc(&others, 2 * GIB));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, GIB + 256 * MIB, A, &none));
    OK(weir_last_oom_report(a, &v));
    MUST_EQ(v.graphs, 0);
    MUST_LE(3 * GIB, v.others); /* graphs count as others */
    MUST_EQ(v.cause, WEIR_OOM_REPORT_OTHERS);
    oom_report_without(WEIR_ENTRY_cuMemGetInfo);
    MUST_EQ(v.others, UINT64_MAX);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_OTHERS); /* the only cause left */
    CU(driver->cuMemFree(others));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuDeviceGraphMemTrim(0));
    OK(weir_allocator_destroy(a));
    a = NULL;
}
