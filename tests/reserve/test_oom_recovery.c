/* SPDX-License-Identifier: MIT */
/* test_oom_recovery.c: the last part of OOM recovery, on the device model.
 *
 * A failed request states the largest request that would have been served. A request for that size succeeds on each
 * engine. If the engine knows its memory to the byte, 256 bytes more fail. The tests of the OOM callback check when
 * weir calls it, its arguments, and its actions. */
#include "tests/fixtures/under_test.h"

#include "tests/fixtures/calls.h"
#include "tests/fixtures/every_kind.h"

static void start_recovery_device(void) {
    start_model(4 * GIB);
}

/* Returns the options of a world. A `limit` of 0 means no limit, and a `wait_ms` of 0 means no wait. */
static weir_options recovery_options(int world, size_t limit, uint32_t wait_ms) {
    weir_options options = model_options(world, limit ? limit : 3 * GIB);

    if (limit)
        options.limit = bytes_amount(limit);
    options.recovery_timeout_ms = wait_ms ? wait_ms : UINT32_MAX;
    return options;
}

static void make_recovering(int world, size_t limit, uint32_t wait_ms, const char *settings) {
    weir_options options = recovery_options(world, limit, wait_ms);

    apply_settings(&options, settings);
    make_with(&options);
}

/* Returns 1 if the arena alone knows all its memory, so that the largest request is exact. */
static int is_exact(int world) {
    return worlds[world].cache == WEIR_SWITCH_OFF &&
           (worlds[world].kind == KIND_FIXED || worlds[world].kind == KIND_REGIONS);
}

/* Returns 1 if only the driver knows the free memory inside its pool. */
static int is_driver_pool(int world) {
    return worlds[world].kind == KIND_POOL;
}

/* Makes a request that must fail. Returns the largest request that would have been served. */
static size_t expect_oom(size_t bytes, CUstream stream) {
    void *none = NULL;

    MUST(is_out_of_memory(weir_alloc(a, bytes, stream, &none)));
    weir_failure r = last_failure();
    MUST_EQ(r.asked, bytes);
    MUST(r.largest < bytes);
    return (size_t)r.largest;
}

/* Checks, after a failure, that a request of `largest` bytes succeeds. If `exact`, checks that 256 bytes more fail. */
static void check_largest(size_t largest, CUstream stream, int exact) {
    if (exact)
        MUST_EQ(expect_oom(largest + 256, stream), largest);
    if (largest > 0)
        free_live(alloc_live(largest, stream), stream);
}

static void end_recovering(void) {
    free_all_live();
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    check_identities(a);
    destroy();
}

static void end_if_made(void) {
    if (a)
        end_recovering();
}

/* ---- the largest request --------------------------------------------------------------------- */

enum { BLOCKS = 64 };
static void *block[BLOCKS];
static int blocks;

/* Allocates blocks of about `bytes` bytes until a request fails. */
static void fill_up(size_t bytes, CUstream stream) {
    for (blocks = 0; blocks < BLOCKS; blocks++)
        if (weir_alloc(a, bytes + (size_t)blocks * 4 * KIB, stream, &block[blocks]) != WEIR_OK)
            return;
    ck_abort_msg("there is room for more than %d", BLOCKS);
}

/* Frees every `step`-th block, from block `first` on. */
static void give_back(int first, int step, CUstream stream) {
    for (int i = first; i < blocks; i += step) {
        free_live(block[i], stream);
        block[i] = NULL;
    }
}

static void give_rest_back(CUstream stream) {
    for (int i = 0; i < blocks; i++)
        if (block[i])
            free_live(block[i], stream);
}

/* Checks the largest request with no free block, with every other block free, and with three of four free. */
static void check_fragments(int world, size_t least) {
    fill_up(9 * MIB, A);
    check_largest(expect_oom(16 * MIB, A), A, is_exact(world));
    give_back(0, 2, A);
    check_largest(expect_oom(200 * MIB, A), A, is_exact(world));
    give_back(1, 4, A);
    MUST_LE(least, expect_oom(300 * MIB, A));
    check_largest(expect_oom(300 * MIB, A), A, is_exact(world));
    give_rest_back(A);
}

CASE("largest", 60, start_recovery_device, end_if_made);

TEST_EACH(WORLDS, the_largest_block_is_right_within_a_limit) {
    for (uint32_t wait_ms = 0; wait_ms < 2; wait_ms++) {
        make_recovering(_i, 256 * MIB, wait_ms, "");
        check_fragments(_i, is_driver_pool(_i) ? 0 : 18 * MIB);
        check_largest(expect_oom(257 * MIB, A), A, is_exact(_i));
        if (wait_ms && !is_driver_pool(_i)) /* all of it is idle */
            MUST_EQ(expect_oom(257 * MIB, A), 256 * MIB);
        end_recovering();
    }
}

/* All frees are known to have completed, so a wait cannot help. */
TEST_EACH(WORLDS, a_request_fails_at_once_if_a_wait_cannot_help) {
    weir_failure r = {.size = sizeof r};

    if (worlds[_i].kind != KIND_FIXED)
        return; /* only a try shows the result, or whole regions become free and serve */
    make_recovering(_i, 256 * MIB, 1000, "");
    fill_up(9 * MIB, A);
    give_back(0, 4, A);
    give_back(2, 4, B); /* several streams have freed blocks */
    CU(driver->cuCtxSynchronize());
    for (int i = 0; i < 2; i++) { /* the first failure may still release regions */
        (void)expect_oom(16 * MIB, A);
        OK(weir_last_failure(&r));
        MUST_LE(r.waited_ns, UINT64_C(100000000));
    }
    give_rest_back(A);
}

/* The driver takes long to refuse a large request or to serve a part of it. weir therefore asks the driver only at the
 * end, by two requests to the pool or by physical allocations of at most 32 MiB. */
TEST_EACH(WORLDS, the_driver_is_asked_only_at_the_end) {
    CUdeviceptr others;
    void *none;

    if (worlds[_i].kind != KIND_POOL && worlds[_i].kind != KIND_MAPPED)
        return;
    CU(driver->cuMemAlloc(&others, 3 * GIB));
    make_recovering(_i, 0, 1000, "");
    free_live(alloc_live(MIB, A), A);
    count_from_here();
    MUST_EQ(weir_alloc(a, 2 * GIB, A, &none), WEIR_E_NO_MEMORY);
    MUST_LE(calls(WEIR_ENTRY_cuMemAllocFromPoolAsync), 2);
    MUST_LE(calls(WEIR_ENTRY_cuMemCreate), 66);
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_OUT_OF_MEMORY);
    end_recovering();
    CU(driver->cuMemFree(others));
}

TEST_EACH(WORLDS, the_largest_block_is_right_on_a_full_device) {
    CUdeviceptr others;

    CU(driver->cuMemAlloc(&others, 4 * GIB - 257 * MIB));
    for (uint32_t wait_ms = 0; wait_ms < 2; wait_ms++) {
        weir_options options = recovery_options(_i, 0, wait_ms);

        if (worlds[_i].kind == KIND_FIXED)
            options.limit = bytes_amount(250 * MIB);
        make_with(&options);
        check_fragments(_i, 0);
        check_largest(expect_oom(2 * GIB, A), A, is_exact(_i));
        end_recovering();
    }
    CU(driver->cuMemFree(others));
}

/* A cannot use blocks that B freed while B is at work, nor blocks that several streams use. */
TEST_EACH(WORLDS, pending_frees_do_not_count_as_free) {
    if (worlds[_i].kind == KIND_DIRECT)
        return; /* a free of engine direct waits */
    make_recovering(_i, 256 * MIB, 0, "");
    fill_up(9 * MIB, B);
    busy(B, 100 * MS);
    give_back(0, 2, B);
    size_t largest = expect_oom(128 * MIB, A);
    check_largest(largest, A, is_exact(_i));
    OK(weir_use(a, block[1], A));
    give_back(1, 2, B);
    MUST_EQ(expect_oom(200 * MIB, A), largest);
    CU(driver->cuCtxSynchronize());
    alloc_live(1, B); /* makes weir observe the completion */
    largest = expect_oom(256 * MIB, A);
    if (is_exact(_i))
        MUST_LE(128 * MIB, largest);
    check_largest(largest, A, is_exact(_i));
    abandon();
}

/* Memory that becomes free first reduces the excess above a lowered limit. */
TEST_EACH(WORLDS, freed_memory_first_reduces_the_excess_above_a_limit) {
    if (worlds[_i].kind == KIND_FIXED)
        return; /* the limit of a fixed arena is its region */
    make_recovering(_i, 256 * MIB, 1, "growth=exact");
    fill_up(9 * MIB, A);
    OK(weir_set_limit(a, bytes_amount(160 * MIB)));
    for (int i = 0; i < 3; i++) {
        give_back(2 * i, BLOCKS, A);
        check_largest(expect_oom(100 * MIB, A), A, 0);
    }
    give_rest_back(A);
}

/* The largest request fits into an idle region of another kind. Above the limit, weir could not replace a released
 * region. */
TEST_EACH(WORLDS, the_largest_block_is_right_above_a_lowered_limit) {
    if (worlds[_i].kind == KIND_FIXED)
        return; /* the limit of a fixed arena is its region */
    make_recovering(_i, 256 * MIB, 1, "growth=exact");
    void *small = alloc_live(256 * KIB, A);
    alloc_live(20 * MIB, B);
    free_live(small, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_set_limit(a, bytes_amount(32 * MIB)));
    check_largest(expect_oom(60 * MIB, A), A, 0);
}

/* Small requests on a stream with a cache can use a slab of one slot. */
TEST_EACH(WORLDS, the_largest_block_is_right_below_a_slab) {
    void *most[40];
    int count = 0;

    make_recovering(_i, 64 * MIB, 1, "");
    for (int i = 0; i < 200; i++)
        free_live(alloc_live(20 * KIB, A), A);
    while (weir_alloc(a, 2 * MIB - 48 * KIB, A, &most[count]) == WEIR_OK)
        count++;
    for (int i = 0; i < 3; i++) {
        size_t largest = expect_oom(2 * MIB, A);

        check_largest(largest, A, 0);
        if (largest > 0)
            alloc_live(largest, A);
    }
    CU(driver->cuCtxSynchronize());
    abandon();
}

/* Small requests have separate regions while weir can grow. At the limit, any region serves them. */
TEST_EACH(WORLDS, a_region_of_another_kind_will_do) {
    void *none = NULL;
    if (worlds[_i].kind == KIND_FIXED || worlds[_i].kind == KIND_REGIONS)
        return; /* all requests share the regions */
    make_recovering(_i, 64 * MIB, 1, "cache=on");
    void *most = alloc_live(40 * MIB, A); /* uses a region of 64 MiB */
    void *small = alloc_live(4 * KIB, A);
    MUST(is_out_of_memory(weir_alloc(a, 30 * MIB, A, &none)));
    free_live(most, A);
    free_live(small, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    small = alloc_live(4 * KIB, A);
    most = alloc_live(30 * MIB, A);
    alloc_live(20 * MIB, A); /* uses the region of the small block */
    check_largest(expect_oom(20 * MIB, A), A, 0);
}

/* The largest request allows for guard gaps and for rounding. */
TEST_EACH(WORLDS, the_largest_block_allows_for_guard_gaps) {
    make_recovering(_i, 256 * MIB, 1, "harden=guard log=none");
    check_fragments(_i, 0);
}

/* The failures come amid work on three streams, allocations and frees of all sizes, and trims. */
TEST_EACH(WORLDS, the_largest_block_is_right_whatever_came_before) {
    static const uint32_t waits[] = {0, 1, 50};
    uint64_t seed = 88172645463325252u + (uint64_t)_i;
    CUstream stream[] = {A, B, C};
    size_t told = 0, most = 0;

    for (int round = 0; round < 12; round++) {
        make_recovering(_i, (96 + 32 * (size_t)(round % 4)) * MIB, waits[round % 3], "");
        blocks = BLOCKS;
        memset(block, 0, sizeof block);
        for (int step = 0; step < 600; step++) {
            CUstream on = stream[next_random(&seed) % 3];
            int at = (int)(next_random(&seed) % BLOCKS);
            size_t bytes = (size_t)1 << (8 + next_random(&seed) % 18);

            bytes += next_random(&seed) % bytes;
            if (next_random(&seed) % 8 == 0)
                busy(on, next_random(&seed) % (2 * MS));
            if (next_random(&seed) % 64 == 0)
                OK(weir_trim(a, 0, NULL));
            if (block[at]) {
                free_live(block[at], on);
                block[at] = NULL;
            } else if (is_out_of_memory(weir_alloc(a, bytes, on, &block[at]))) {

                weir_failure r = last_failure();
                MUST_EQ(r.asked, bytes);
                most += r.largest > 0;
                told++;
                if (r.largest > 0)
                    block[at] = alloc_live((size_t)r.largest, on);
            }
        }
        give_rest_back(A);
        end_recovering();
    }
    printf("# world %d: %zu failed requests, %zu told of something\n", _i, told, most);
    MUST(told > 10);
}

/* ---- the callback ---------------------------------------------------------------------------- */

/* The actions of the callback, and the arguments of its last call. */
static struct asked {
    unsigned calls, again; /* the calls so far, and the retries to request */
    weir_oom oom;          /* the argument of the last call */
    CUstream stream;
    void *gives[4]; /* the block that each call frees, or NULL */
    int fails;      /* 1 if the callback makes a request that fails */
} asked;

static int answer_oom(const weir_oom *oom, void *data) {
    struct asked *to = data;
    weir_statistics s = {.size = sizeof s};
    void *served = NULL;

    MUST(to == &asked);
    MUST_EQ(oom->size, sizeof *oom);
    MUST(oom->allocator == a);
    to->calls++;
    MUST_EQ(oom->attempt, to->calls);
    to->oom = *oom;
    OK(weir_stats(a, &s));
    MUST_LE(1, s.failed_requests); /* includes this request */
    if (to->calls <= 4 && to->gives[to->calls - 1])
        free_live(to->gives[to->calls - 1], to->stream);
    if (to->fails) {
        MUST(is_out_of_memory(weir_alloc(a, 3 * GIB, to->stream, &served)));
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, to, to->stream));
        OK(weir_trim(a, 0, NULL));
    }
    return to->calls <= to->again;
}

static void make_answered(weir_options options, int (*callback)(const weir_oom *oom, void *data)) {
    memset(&asked, 0, sizeof asked);
    asked.stream = A;
    options.oom_callback = callback;
    options.oom_callback_data = &asked;
    make_with(&options);
}

static void make_asking(int world) {
    make_answered(recovery_options(world, 256 * MIB, 1), answer_oom);
}

CASE("callback", 60, start_recovery_device, end_if_made);

/* weir does not call the callback as long as OOM recovery finds memory. */
TEST_EACH(WORLDS, it_is_asked_last) {
    make_asking(_i);
    void *most = alloc_live(200 * MIB, B);
    busy(B, MS / 2);
    free_live(most, B); /* the free completes in time, or the trim releases the block */
    void *more = alloc_live(160 * MIB, A);
    MUST_EQ(asked.calls, 0);
    free_live(more, A);
    MUST_EQ(check_identities(a).failed_requests, 0);
}

TEST_EACH(WORLDS, it_is_told_the_request) {
    void *none = NULL;
    make_asking(_i);
    alloc_live(200 * MIB, A);
    MUST(weir_alloc(a, 150 * MIB + 1, B, &none) == asked.oom.status);
    MUST(none == NULL);
    MUST_EQ(asked.calls, 1);
    MUST(is_out_of_memory(asked.oom.status));
    MUST(asked.oom.stream == B);
    MUST_EQ(asked.oom.bytes, 150 * MIB + 1);
    weir_failure r = last_failure();
    MUST_EQ(r.asked, 150 * MIB + 1);
    MUST_EQ(asked.oom.largest, r.largest);
    MUST_EQ(check_identities(a).failed_requests, 1);
    MUST_EQ(stats_of(a).attempts, 2);
}

/* Memory that the callback frees serves the request at the third retry. The earlier failures leave no record. */
TEST_EACH(WORLDS, what_it_frees_serves) {
    weir_failure before = {.size = sizeof before}, after = {.size = sizeof after};
    void *most[4];
    make_asking(_i);
    for (int i = 0; i < 4; i++)
        most[i] = alloc_live(60 * MIB, A);
    asked.gives[1] = most[0];
    asked.gives[2] = most[1];
    asked.again = 9;
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, &asked, A));
    /* without caches only the driver of a pool knows the blocks */
    int foreign = is_driver_pool(_i) && worlds[_i].cache == WEIR_SWITCH_OFF
                      ? (int)CUDA_ERROR_INVALID_VALUE
                      : 0;
    MUST_EQ(weir_last_driver_result(), foreign);
    OK(weir_last_failure(&before));
    void *served = alloc_live(110 * MIB, A);
    MUST_EQ(asked.calls, 3);
    MUST_EQ(weir_last_driver_result(), foreign);
    MUST_EQ(check_identities(a).failed_requests, 0);
    MUST_EQ(stats_of(a).attempts, 5);
    free_live(served, A);
    free_live(most[2], A);
    free_live(most[3], A);
}

TEST_EACH(WORLDS, it_is_asked_as_often_as_it_wants) {
    void *none = NULL;
    make_asking(_i);
    alloc_live(200 * MIB, A);
    asked.again = 12;
    MUST(is_out_of_memory(weir_alloc(a, 100 * MIB, A, &none)));
    MUST_EQ(asked.calls, 13);
    MUST_EQ(check_identities(a).failed_requests, 1);
}

/* The largest request counts preallocated memory and possible growth, even before the first block. */
TEST_EACH(WORLDS, what_is_preallocated_can_be_had) {
    weir_options options = recovery_options(_i, 256 * MIB, 100);
    if (worlds[_i].kind != KIND_DIRECT && worlds[_i].kind != KIND_FIXED)
        options.prealloc = bytes_amount(192 * MIB);
    make_with(&options);
    size_t largest = expect_oom(300 * MIB, A);
    MUST_BE_WITHIN(250 * MIB, largest, 256 * MIB);
    free_live(alloc_live(largest, A), A);
    CU(driver->cuStreamSynchronize(A));
    OK(weir_trim(a, 0, NULL)); /* prepares a second check, after blocks have been live */
    if (options.prealloc.value > 0)
        OK(weir_preallocate(a, 192 * MIB, NULL));
    check_largest(expect_oom(300 * MIB, A), A, 0);
}

/* A request that the callback makes may fail. Its failure does not change the record of the outer failure. */
TEST_EACH(WORLDS, it_may_fail_itself) {
    void *none = NULL;
    make_asking(_i);
    alloc_live(200 * MIB, A);
    asked.fails = 1;
    MUST(is_out_of_memory(weir_alloc(a, 100 * MIB, A, &none)));
    MUST_EQ(asked.calls, 1);
    weir_failure r = last_failure();
    MUST_EQ(r.asked, 100 * MIB);
    MUST_EQ(r.largest, asked.oom.largest);
    MUST_EQ(weir_last_driver_result(), 0); /* the limit refused the request, not the driver */
    MUST_EQ(check_identities(a).failed_requests, 2);
    asked.calls = 0; /* the next request calls the callback again */
}

/* weir does not call the callback for a captured request, because the callback could break the capture. */
TEST_EACH(WORLDS, it_is_not_asked_under_capture) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    make_asking(_i);
    asked.again = 5;
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    expect_alloc_status(WEIR_E_NO_MEMORY, 8 * GIB, A);
    MUST_EQ(asked.calls, 0);
    CU(driver->cuStreamIsCapturing(A, &status));
    MUST(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    drop_capture(A);
    asked.again = 0;
    expect_alloc_status(WEIR_E_NO_MEMORY, 8 * GIB, A); /* now weir calls the callback */
    MUST_EQ(asked.calls, 1);
}

/* A failed request under capture leaves an OOM report and counts as failed, but starts no OOM recovery. */
TEST_EACH(WORLDS, a_graphs_request_that_is_refused_is_noted) {
    weir_oom_report v = {.size = sizeof v};
    void *node = NULL;
    CUgraph graph;
    CUgraphExec exec;
    if (worlds[_i].kind == KIND_DIRECT)
        return; /* engine direct serves no request of a graph */
    make_recovering(_i, 256 * MIB, 1, "");
    alloc_live(100 * MIB, B);
    void *most = alloc_live(60 * MIB, B);
    free_live(most, B);
    for (int i = 0; i < 200; i++) /* fills the stream's cache */
        free_live(alloc_live(i % 2 ? 1000 : 4 * MIB, A), A);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    MUST(is_out_of_memory(weir_alloc(a, 48 * MIB, A, &node)));
    MUST(node == NULL);
    weir_failure r = last_failure();
    MUST_EQ(r.asked, 48 * MIB);
    MUST_EQ(r.largest, 0);
    MUST_EQ(check_identities(a).failed_requests, 1);
    MUST_LE(160 * MIB, stats_of(a).reserved); /* a graph cannot use the idle memory */
    OK(weir_last_oom_report(a, &v));
    /* The cause is the reserved memory if it leaves too little of the limit. Otherwise, it is the driver. */
    MUST_EQ(v.cause, v.status == WEIR_E_LIMIT && v.limit - v.reserved < v.asked
                         ? WEIR_OOM_REPORT_RESERVE
                         : WEIR_OOM_REPORT_DRIVER);
    MUST(v.settings[0].name == NULL);
    weir__model_faults_clear();
    MUST(is_out_of_memory(weir_alloc(a, 1024 * GIB, A, &node)));
    OK(weir_last_oom_report(a, &v));
    MUST_EQ(v.cause, WEIR_OOM_REPORT_TOO_LARGE);
    if (worlds[_i].kind == KIND_POOL) {
        OK(weir_set_limit(a, bytes_amount(220 * MIB)));
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 150 * MIB, A, &node));
        OK(weir_last_oom_report(a, &v));
        MUST_EQ(v.cause, WEIR_OOM_REPORT_LIMIT);
    }
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 2; i++) /* a launch releases no memory of the failed request */
        CU(driver->cuGraphLaunch(exec, A));
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
}

/* weir does not call the callback for a preallocation that fails at the first request. */
TEST_EACH(WORLDS, it_is_not_asked_about_a_preallocation) {
    weir_options options = recovery_options(_i, 0, 1);
    size_t free_bytes, total;
    CUdeviceptr hoard;
    void *none = NULL;

    if (worlds[_i].kind == KIND_DIRECT || worlds[_i].kind == KIND_FIXED) /* no preallocation */
        return;
    options.prealloc_min = bytes_amount(GIB);
    preallocate_at_first(&options, GIB);
    make_answered(options, answer_oom);
    asked.again = 5;
    CU(driver->cuMemGetInfo(&free_bytes, &total));
    CU(driver->cuMemAlloc(&hoard, free_bytes - 512 * MIB));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, MIB, A, &none));
    MUST(none == NULL);
    MUST_EQ(asked.calls, 0);
    CU(driver->cuMemFree(hoard));
    free_live(alloc_live(MIB, A), A);
}

static int loses_the_device(const weir_oom *oom, void *data) {
    void *none = NULL;

    (void)data;
    while (driver->cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS)
        ;
    EXPECT(WEIR_E_DEVICE_LOST, weir_alloc(oom->allocator, MIB, A, &none));
    return 1;
}

/* The callback destroys the context, so weir does not retry. */
TEST_EACH(WORLDS, it_may_lose_the_device) {
    make_answered(recovery_options(_i, 256 * MIB, 1), loses_the_device);
    expect_alloc_status(WEIR_E_DEVICE_LOST, 257 * MIB, A);
    destroy_as_it_is();
}

static pid_t child;

static int fork_away(const weir_oom *oom, void *data) {
    (void)data;
    MUST_EQ(oom->attempt, 1);
    child = fork();
    return child == 0;
}

/* A child of fork neither calls the callback nor retries the request. */
TEST_EACH(WORLDS, it_is_not_asked_after_a_fork) {
    void *none = NULL;
    int code;
    make_answered(recovery_options(_i, 256 * MIB, 1), fork_away);
    weir_status status = weir_alloc(a, 257 * MIB, A, &none);
    if (child == 0)
        _exit(status == WEIR_E_FORKED && weir_alloc(a, 257 * MIB, A, &none) == WEIR_E_FORKED ? 0
                                                                                             : 1);
    MUST(is_out_of_memory(status));
    MUST(waitpid(child, &code, 0) == child);
    MUST(WIFEXITED(code) && WEXITSTATUS(code) == 0);
}

/* Each thread waits in its callback until the other thread has used the allocator. */

static pthread_barrier_t both;

static int meet(const weir_oom *oom, void *data) {
    void *served = NULL;

    (void)data;
    pthread_barrier_wait(&both);
    OK(weir_alloc(a, MIB, oom->stream, &served));
    OK(weir_free(a, served, oom->stream));
    OK(weir_trim(a, 0, NULL));
    (void)stats_of(a);
    pthread_barrier_wait(&both);
    return 0;
}

static void *fail_on(void *stream) {
    void *none = NULL;

    MUST(is_out_of_memory(weir_alloc(a, 257 * MIB, stream, &none)));
    return NULL;
}

TEST_EACH(WORLDS, it_holds_no_lock) {
    pthread_t thread;

    make_answered(recovery_options(_i, 256 * MIB, 1), meet);
    MUST(pthread_barrier_init(&both, NULL, 2) == 0);
    MUST(pthread_create(&thread, NULL, fail_on, B) == 0);
    fail_on(A);
    MUST(pthread_join(thread, NULL) == 0);
    MUST_EQ(check_identities(a).failed_requests, 2);
}

/* weir empties the shelves of hardening before it calls the callback. */
TEST_EACH(WORLDS, it_is_asked_behind_shelves) {
    weir_options options = recovery_options(_i, 256 * MIB, 1);
    options.harden = WEIR_HARDEN_GUARD | WEIR_HARDEN_POISON;
    make_answered(options, answer_oom);
    free_live(alloc_live(60 * MIB, A), A);
    void *served = alloc_live(224 * MIB - 4 * KIB, A); /* needs the memory on the shelf */
    MUST_EQ(asked.calls, 0);
    MUST_EQ(check_identities(a).failed_requests, 0);
    MUST_EQ(stats_of(a).attempts, 2);
    free_live(served, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    destroy();
}

/* ---- beside a trim --------------------------------------------------------------------------- */

static int pool_failures;

/* Fails for a block for which the pool's idle memory would have to go back to the device first. */
static CUresult alloc_beside_idle(CUdeviceptr *at, size_t bytes, CUmemoryPool pool,
                                  CUstream stream) {
    uint64_t reserved = 0;

    CU(driver->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    if (reserved + bytes <= 4 * GIB)
        return driver->cuMemAllocFromPoolAsync(at, bytes, pool, stream);
    pool_failures++;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void *trim_in_other_thread(void *unused) {
    CU(driver->cuCtxPushCurrent(primary));
    OK(weir_trim(a, 0, NULL));
    return unused;
}

static CUresult trim_before_query(size_t *free_bytes, size_t *total) {
    if (pool_failures == 1) {
        pool_failures = 2;
        run_in_thread(trim_in_other_thread, NULL);
    }
    return driver->cuMemGetInfo(free_bytes, total);
}

CASE("beside a trim", 60, start_recovery_device, end_if_made);

/* Another thread's trim releases all idle memory first, so that the trim of OOM recovery releases nothing. */
TEST(a_request_is_retried_after_another_threads_trim) {
    weir_options options = options_of(KIND_POOL, "model", 0);

    options.recovery_timeout_ms = UINT32_MAX;
    copy_driver();
    table.cuMemAllocFromPoolAsync = alloc_beside_idle;
    table.cuMemGetInfo = trim_before_query;
    make_with_on(&table, &options);
    free_live(alloc_live(GIB, A), A);
    CU(driver->cuCtxSynchronize());
    free_live(alloc_live(3 * GIB + 512 * MIB, A), A);
    MUST_EQ(pool_failures, 2);
}

SUITE("OOM recovery", CK_FORK_GETENV);
