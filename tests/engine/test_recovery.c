/* SPDX-License-Identifier: MIT */
/* test_recovery.c: OOM recovery, how long it waits, what a trim gives back, and what a failed request leaves. */
#include "tests/fixtures/engines.h"

/* ---- OOM recovery ---------------------------------------------------------------- */

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

/* OOM recovery waits for frees that are pending on a busy stream, and no longer than they take. */
TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, oom_recovery_waits_for_frees) {
    make_engine(_i, 64 * MIB, "recovery-timeout=1000ms");
    void *block = alloc_live(64 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 50 * MS);
    free_live(block, A);
    uint64_t start = weir__model_now_ns();
    block = alloc_live(64 * MIB, A);
    uint64_t took = weir__model_now_ns() - start;
    MUST_BE_WITHIN(49 * MS, took, 53 * MS);
    ck_assert_uint_eq(check_identities(a).retries, 1);
    ck_assert_uint_ge(stats_of(a).stall_ns, 49 * MS);
    ck_assert_uint_eq(stats_of(a).failed_requests, 0);
}

/* No use is noted here, so the driver or an event must show when the free has completed. */
TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, oom_recovery_waits_for_another_stream) {
    make_engine(_i, 64 * MIB, "recovery-timeout=1000ms");
    void *block = alloc_live(64 * MIB, A);
    expect_alloc_status(WEIR_E_LIMIT, 64 * MIB, B); /* dry: A's next call records */
    busy(A, 50 * MS);
    free_live(block, A);
    uint64_t start = weir__model_now_ns();
    block = alloc_live(64 * MIB, B);
    MUST_BE_WITHIN(45 * MS, weir__model_now_ns() - start, 55 * MS);
}

TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, the_deadline_is_kept) {
    make_engine(_i, 64 * MIB, "recovery-timeout=100ms");
    void *block = alloc_live(64 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 5000 * MS);
    free_live(block, A);
    uint64_t start = weir__model_now_ns();
    expect_alloc_status(WEIR_E_LIMIT, MIB, A);
    uint64_t took = weir__model_now_ns() - start;
    MUST_BE_WITHIN(100 * MS, took, 110 * MS);
    weir_failure r = last_failure();
    MUST_BE_WITHIN(100 * MS, r.waited_ns, took);
    ck_assert_uint_eq(r.reserved, 64 * MIB);
    ck_assert_uint_eq(r.in_use, 0);
    ck_assert_uint_eq(r.asked, MIB);
    ck_assert_uint_eq(check_identities(a).failed_requests, 1);
    /* Destroy has no deadline: it waits for the pending free. */
    OK(weir_allocator_destroy(a));
    a = NULL;
    MUST_BE_WITHIN(5000 * MS, weir__model_now_ns() - start, 5010 * MS);
    ck_assert_ptr_null(weir__model_fault());
    ck_assert_uint_eq(device_free(), 4 * GIB);
}

TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, no_deadline_no_wait) {
    make_engine(_i, 64 * MIB, "");
    void *block = alloc_live(64 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 50 * MS);
    free_live(block, A);
    uint64_t start = weir__model_now_ns();
    expect_alloc_status(WEIR_E_LIMIT, MIB, A);
    ck_assert_uint_lt(weir__model_now_ns() - start, MS);
    ck_assert_uint_eq(check_identities(a).failed_requests, 1);
    ck_assert_uint_eq(stats_of(a).retries, 0); /* nothing can have changed */
    weir__model_advance(50 * MS);
}

static uint64_t deadline_clock;
static int sleeps;

static uint64_t read_deadline_clock(void) {
    return deadline_clock;
}

static void sleep_until_deadline(uint64_t ns) {
    (void)ns;
    deadline_clock += 10 * MS;
    sleeps++;
}

/* The wait ends at the deadline itself: a clock that stands there after one pause is enough. */
TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, at_the_deadline_nobody_sleeps) {
    copy_driver();
    table.ticks = read_deadline_clock;
    table.sleep_ns = sleep_until_deadline;
    deadline_clock = 0;
    make_engine_on(&table, _i, 64 * MIB, "recovery-timeout=10ms");
    void *block = alloc_live(64 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 50 * MS);
    free_live(block, A);
    sleeps = 0;
    expect_alloc_status(WEIR_E_LIMIT, MIB, A);
    ck_assert_int_eq(sleeps, 1);
    weir__model_advance(50 * MS);
}

/* A live block keeps the trim from freeing the region.  But the trim has waited, so the request is retried. */
TEST_WHERE(KIND_FIXED, KIND_REGIONS + 1, NULL, the_last_rung_waits_for_the_device) {
    make_engine(_i, 64 * MIB, "recovery-timeout=10ms growth=remaining:1");
    void *block = alloc_live(24 * MIB, B); /* too little for a wait before OOM recovery */
    alloc_live(38 * MIB, A);
    busy(B, 50 * MS);
    CU(driver->cuStreamBeginCapture(B, CU_STREAM_CAPTURE_MODE_GLOBAL));
    free_live(block, B); /* no event covers it */
    drop_capture(B);
    block = alloc_live(24 * MIB, A);
    ck_assert_uint_ge(weir__model_now_ns(), 50 * MS);
    ck_assert_uint_eq(reserved_under_test(), 64 * MIB);
    ck_assert_uint_eq(stats_of(a).trims, 0);
}

/* Another program holds the memory, so no free of this program brings it back. */
TEST_WHERE(0, KIND_DIRECT, is_pool_or_regions, what_others_hold_is_not_waited_for) {
    CUdeviceptr others;
    make_engine(_i, 0, "recovery-timeout=1000ms");
    CU(driver->cuMemAlloc(&others, 3 * GIB));
    void *block = alloc_live(40 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 5000 * MS);
    free_live(block, A);
    uint64_t start = weir__model_now_ns();
    expect_alloc_status(WEIR_E_NO_MEMORY, 2 * GIB, A);
    ck_assert_uint_lt(weir__model_now_ns() - start, 100 * MS);
    ck_assert_uint_eq(check_identities(a).retries, 0);
    weir__model_advance(5000 * MS);
    CU(driver->cuMemFree(others));
}

/* A hopeless request fails at once: without a call of the driver if it is larger than the device, without waiting if it
 * is larger than the memory that could come free. */
TEST_EACH(KIND_COUNT, hopeless_requests_are_refused_at_once) {
    make_engine(_i, 64 * MIB, "recovery-timeout=1000ms");
    alloc_live(40 * MIB, A);
    count_from_here();
    uint64_t start = weir__model_now_ns();
    expect_alloc_status(WEIR_E_NO_MEMORY, 4 * GIB + 1, A);
    expect_alloc_status(WEIR_E_NO_MEMORY, SIZE_MAX, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemAlloc) + calls(WEIR_ENTRY_cuMemAllocFromPoolAsync), 0);
    expect_alloc_status(WEIR_E_LIMIT, 40 * MIB, A);
    ck_assert_uint_lt(weir__model_now_ns() - start, MS);
    ck_assert_uint_eq(check_identities(a).failed_requests, 3);
    ck_assert_uint_eq(stats_of(a).retries, 0);
}

/* Each idle region is too small.  The last step of OOM recovery frees them and makes one that fits. */
TEST(oom_recovery_trims_what_is_scattered) {
    weir_event events[8];
    size_t count;

    make_engine(KIND_REGIONS, 256 * MIB, "growth=exact recovery-timeout=10ms");
    OK(weir_preallocate(a, 128 * MIB, NULL));
    OK(weir_preallocate(a, 256 * MIB, NULL));
    alloc_live(200 * MIB, A);
    ck_assert_uint_eq(reserved_under_test(), 200 * MIB);
    OK(weir_events(a, 2, events, sizeof events[0], 8, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(events[0].cause, WEIR_EVENT_RECOVERY);
    ck_assert_int_eq(events[0].shrink, 1);
    ck_assert_uint_eq(events[0].got, 256 * MIB);
    ck_assert_uint_eq(events[0].reserved_after, 0);
    ck_assert_int_eq(events[1].cause, WEIR_EVENT_REQUEST);
    ck_assert_uint_eq(stats_of(a).trims, 0); /* the program asked for none */
    ck_assert_uint_eq(stats_of(a).retries, 1);
}

/* The driver is out of memory, but OOM recovery succeeds, so the thread's driver result does not change. */
TEST_WHERE(0, KIND_DIRECT, is_pool_or_regions, a_recovered_request_leaves_the_driver_result) {
    make_engine(_i, 0, "recovery-timeout=1000ms");
    EXPECT(WEIR_E_INVALID, weir_alloc(a, 1, A, NULL));
    void *block = alloc_live(3 * GIB, A);
    OK(weir_use(a, block, B));
    busy(B, 20 * MS);
    free_live(block, A);
    block = alloc_live(2 * GIB, A);
    ck_assert_uint_eq(stats_of(a).retries, 1);
    ck_assert_int_eq(weir_last_driver_result(), 0);
}

/* ---- trim ------------------------------------------------------------------------------------ */

CASE("alone", 120, open_engine_device, end_test);

/* The frees are behind work: the pool keeps the memory, and the arena's cuMemFree waits. */
TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, trim_and_what_was_not_observed) {
    make_engine(_i, 256 * MIB, "");
    void *x = alloc_live(64 * MIB, A), *y = alloc_live(64 * MIB, B);
    size_t released = 1;

    busy(A, 25 * MS);
    busy(B, 27 * MS);
    free_live(x, A);
    free_live(y, B);
    OK(weir_trim(a, 0, &released));
    if (_i == KIND_POOL) {
        ck_assert_uint_eq(released, 0);
        ck_assert_uint_lt(weir__model_now_ns(), 25 * MS);
        CU(driver->cuCtxSynchronize());
        OK(weir_trim(a, 0, &released));
    }
    ck_assert_uint_ge(weir__model_now_ns(), 27 * MS);
    ck_assert_uint_ge(released, 128 * MIB);
    ck_assert_uint_eq(reserved_under_test(), 0);
}

/* A trim frees the completed memory of a pool, although the program has waited for no stream, and keeps the rest.  The
 * blocks outnumber the probe blocks and are freed in any order.  The trim waits for no work. */
TEST_EACH(2, a_trim_gives_back_what_is_done) {
    enum { PIECES = 12 };
    void *block[PIECES], *live, *late;
    size_t released, before;

    if (!is_roomy())
        return;
    start_model(64 * GIB);
    before = device_free();
    make_engine(KIND_POOL, 0,
                _i ? "cache=on release-threshold=max" : "cache=off release-threshold=max");
    for (int i = 0; i < PIECES; i++)
        block[i] = alloc_live((size_t)(i % 3 + 1) * GIB, i % 2 ? A : B);
    live = alloc_live(20 * MIB, A);
    late = alloc_live(GIB, C);
    for (int i = 0; i < PIECES; i++)
        busy(i % 2 ? A : B, MS);
    for (int i = PIECES - 1; i >= 0; i--)
        free_live(block[i], i % 2 ? A : B);
    busy(C, 1000 * MS);
    free_live(late, C);
    driver->sleep_ns(100 * MS);
    OK(weir_trim(a, 3 * GIB, &released));
    ck_assert_uint_lt(weir__model_now_ns(), 500 * MS);
    ck_assert_uint_eq(reserved_under_test(), 3 * GIB);
    OK(weir_trim(a, 0, &released));
    ck_assert_uint_eq(released, 2 * GIB - 32 * MIB);
    ck_assert_uint_lt(weir__model_now_ns(), 500 * MS);
    ck_assert_uint_eq(reserved_under_test(), GIB + 32 * MIB);
    driver->sleep_ns(1000 * MS);
    OK(weir_trim(a, 0, NULL));
    ck_assert_uint_eq(reserved_under_test(), 32 * MIB);
    free_live(live, A);
    destroy();
    ck_assert_uint_eq(device_free(), before);
}

/* A pool keeps no memory that the driver took for a failed request, at a limit or on a full device. */
TEST_EACH(4, nothing_is_left_of_what_was_refused) {
    static const char *const settings[] = {
        "cache=off", "cache=on", "cache=off recovery-timeout=5ms", "cache=on recovery-timeout=5ms"};
    CUdeviceptr others, all;
    void *block = NULL;
    make_engine(KIND_POOL, GIB, settings[_i]);
    void *kept = alloc_live(600 * MIB, A);
    size_t idle = reserved_under_test();
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 600 * MIB, A, &block));
    ck_assert_uint_eq(reserved_under_test(), idle);
    CU(driver->cuMemAlloc(&others, device_free() - 300 * MIB));
    size_t before = device_free();
    for (size_t bytes = 200 * MIB; bytes <= 400 * MIB; bytes += 200 * MIB) {
        size_t taken = bytes == 200 * MIB ? 150 * MIB : 0;

        CU(driver->cuMemAlloc(&all, taken + MIB));
        EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, bytes, A, &block));
        ck_assert_uint_eq(reserved_under_test(), idle);
        CU(driver->cuMemFree(all));
        ck_assert_uint_eq(device_free(), before);
    }
    ck_assert_ptr_eq(block, NULL);
    free_live(kept, A);
    CU(driver->cuMemFree(others));
}

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

/* A trim frees the regions that fit into the bytes to free, the largest first. */
TEST(trim_chooses_regions) {
    size_t released;

    make_engine(KIND_REGIONS, 0, "growth=exact");
    for (size_t i = 1, sum = 0; i <= 16; i *= 2) {
        sum += i;
        OK(weir_preallocate(a, sum * MIB, NULL)); /* 1, 2, 4, 8, 16 */
    }
    ck_assert_uint_eq(reserved_under_test(), 31 * MIB);
    OK(weir_trim(a, 31 * MIB, &released));
    ck_assert_uint_eq(released, 0);
    ck_assert_uint_eq(stats_of(a).trims, 0);
    count_from_here();
    OK(weir_trim(a, 25 * MIB, &released));
    ck_assert_uint_eq(released, 6 * MIB); /* 4 and 2 */
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemFree), 2);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuCtxPushCurrent), calls(WEIR_ENTRY_cuCtxPopCurrent));
    OK(weir_trim(a, 23 * MIB, &released));
    ck_assert_uint_eq(released, 1 * MIB); /* 16 or 8 would be too much */
    OK(weir_trim(a, 0, &released));
    ck_assert_uint_eq(released, 24 * MIB);
}

/* Two regions are equal: the one at the lower address goes. */
TEST(trim_chooses_the_lowest) {
    make_engine(KIND_REGIONS, 0, "growth=exact");
    char *x = alloc_live(8 * MIB, A);
    char *y = alloc_live(8 * MIB, A);
    free_live(x, A);
    free_live(y, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 8 * MIB, NULL));
    ck_assert_uint_eq(reserved_under_test(), 8 * MIB);
    char *z = alloc_live(8 * MIB, A);
    ck_assert_ptr_eq(z, x > y ? x : y);
}

TEST(a_fixed_arena_comes_back_whole) {
    make_engine(KIND_FIXED, 64 * MIB, "");

    OK(weir_trim(a, 0, NULL));
    ck_assert_uint_eq(reserved_under_test(), 0);
    free_live(alloc_live(64 * MIB, A), A);
    ck_assert_uint_eq(reserved_under_test(), 64 * MIB);
}

/* A limit of the whole device is no limit: the device itself refuses. */
TEST(a_limit_of_the_whole_device_is_never_the_cause) {
    make_engine(KIND_REGIONS, 4 * GIB, "growth=exact");
    void *most = alloc_live(4 * GIB - MIB, A);
    expect_alloc_status(WEIR_E_NO_MEMORY, 2 * MIB, A);   /* more than is left of the limit */
    expect_alloc_status(WEIR_E_NO_MEMORY, 512 * KIB, A); /* no more */
    free_live(most, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
}

/* A full device is out of memory, not at the limit, which has room for one driver page. */
TEST(a_full_device_is_the_cause_below_the_limit) {
    CUdeviceptr rest;
    size_t bytes, total;

    make_engine(KIND_REGIONS, 4 * MIB, "growth=exact");
    alloc_live(2 * MIB, A);
    CU(driver->cuMemGetInfo(&bytes, &total));
    CU(driver->cuMemAlloc(&rest, bytes));
    expect_alloc_status(WEIR_E_NO_MEMORY, 2 * MIB, A);
    CU(driver->cuMemFree(rest));
}

/* A preallocation up to the limit fails because the device has less memory, not because of the limit. */
TEST(a_preallocation_cut_by_the_device_is_no_limit_failure) {
    size_t got, bytes, total;
    CUdeviceptr others, rest;
    make_engine(KIND_REGIONS, GIB, "growth=exact");
    CU(driver->cuMemAlloc(&others, 4 * GIB - 300 * MIB));
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, GIB, &got));
    MUST_BE_WITHIN(64 * MIB, got, 300 * MIB);
    CU(driver->cuMemGetInfo(&bytes, &total));
    CU(driver->cuMemAlloc(&rest, bytes));
    weir_statistics before = stats_of(a);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, GIB, &got));
    ck_assert_uint_eq(stats_of(a).growths, before.growths); /* nothing was added or noted */
    CU(driver->cuMemFree(rest));
    CU(driver->cuMemFree(others));
}

/* ---- contexts -------------------------------------------------------------------------------- */

TEST_EACH(KIND_COUNT, the_primary_context_is_held_as_often_as_given_up) {
    weir_options options = default_options(_i, 64 * MIB);
    count_from_here();
    make_with(&options);
    weir_allocator *b = create_on(driver, &options);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuDevicePrimaryCtxRetain), 2);
    free_live(alloc_live(MIB, A), A);
    destroy();
    options.prealloc = bytes_amount(100 * GIB);
    options.limit = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    fail_to_make(WEIR_E_NO_MEMORY, driver, &options);
    OK(weir_allocator_destroy(b));
    check_model();
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuDevicePrimaryCtxRetain), 3);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuDevicePrimaryCtxRelease), 3);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuCtxPushCurrent), calls(WEIR_ENTRY_cuCtxPopCurrent));
}

/* A settled stream ends with 80 MiB freed, and the driver has refused it an event.  A request that grows does not wait
 * for the device, where stream B works for 10 s.  At a limit OOM recovery waits, and finds the memory. */
static void strand_memory(int kind, int is_limited) {
    void *block[2];
    CUstream stream;
    make_engine(kind, is_limited ? 128 * MIB : 0, "growth=exact recovery-timeout=20ms");
    CU(driver->cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    alloc_live(1000, A);
    block[0] = alloc_live(40 * MIB, stream);
    block[1] = alloc_live(40 * MIB, stream);
    for (int i = 0; i < 1500; i++) {
        free_live(alloc_live(1000, stream), stream);
        free_live(alloc_live(1000, A), A);
    }
    weir__model_fail(WEIR_ENTRY_cuEventRecord, 1, CUDA_ERROR_INVALID_VALUE, 1);
    free_live(block[0], stream);
    free_live(block[1], stream);
    weir__model_faults_clear();
    CU(driver->cuStreamDestroy(stream));
    for (int i = 0; i < 5000; i++)
        free_live(alloc_live(1000, A), A);
    busy(B, is_limited ? 10 * MS : 10000 * MS);
    uint64_t before = reserved_under_test(), began = weir__model_now_ns();
    alloc_live(60 * MIB, A);
    MUST_EQ(weir__model_now_ns() - began >= 10 * MS, (uint64_t)is_limited);
    MUST_EQ(reserved_under_test() > before, !is_limited);
}

CASE("alone", 120, open_engine_device, end_test);

TEST_WHERE(KIND_REGIONS, KIND_MAPPED + 1, NULL, what_is_stranded_makes_no_request_wait) {
    strand_memory(_i, 0);
}

TEST_WHERE(KIND_REGIONS, KIND_MAPPED + 1, NULL, what_is_stranded_is_found_at_the_limit) {
    strand_memory(_i, 1);
}

static void *freed_late;

/* Calls the driver's cuMemFree.  During the first call, which is a trim's wait, another thread's calls free a block
 * behind new work of B. */
static CUresult free_with_late_block(CUdeviceptr block) {
    CUresult result = driver->cuMemFree(block);
    void *late = freed_late;

    freed_late = NULL;
    if (late) {
        free_live(alloc_live(1000, A), A);
        busy(B, 50 * MS);
        free_live(late, B);
    }
    return result;
}

/* A trim lets other calls run while it waits for the device.  It does not count their frees as completed. */
TEST_WHERE(KIND_REGIONS, KIND_MAPPED + 1, NULL, other_calls_go_on_while_a_trim_waits) {
    CUstream stream;
    void *late;

    copy_driver();
    table.cuMemFree = free_with_late_block;
    make_engine_on(&table, _i, 0, "recovery-timeout=1s");
    CU(driver->cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    alloc_live(1000, A);
    late = alloc_live(40 * MIB, B);
    void *left = alloc_live(40 * MIB, stream);
    weir__model_fail(WEIR_ENTRY_cuEventRecord, 1, CUDA_ERROR_INVALID_VALUE, 1);
    free_live(left, stream);
    weir__model_faults_clear();
    freed_late = late;
    OK(weir_trim(a, 3 * GIB, NULL));
    MUST_EQ((uintptr_t)freed_late, 0);
    uint64_t before = reserved_under_test();
    alloc_live(40 * MIB, A); /* what `stream` left */
    MUST_EQ(reserved_under_test(), before);
    MUST(alloc_live(40 * MIB, A) != late);
    MUST(weir__model_now_ns() < 50 * MS);
}

/* A trim to nothing waits for work that events cover, too, and lets other calls run. */
TEST(other_calls_go_on_while_a_trim_waits_for_events) {
    void *late, *left;

    copy_driver();
    table.cuMemFree = free_with_late_block;
    make_engine_on(&table, KIND_MAPPED, 0, "cache=off");
    alloc_live(1000, A);
    late = alloc_live(40 * MIB, B);
    alloc_live(8 * MIB, B); /* keeps both frees apart */
    left = alloc_live(40 * MIB, B);
    busy(B, 10 * MS);
    free_live(left, B);
    freed_late = late;
    uint64_t before = reserved_under_test();
    OK(weir_trim(a, 0, NULL));
    MUST_EQ((uintptr_t)freed_late, 0);
    MUST_LE(10 * MS, weir__model_now_ns());
    MUST(weir__model_now_ns() < 50 * MS);
    MUST_LE(40 * MIB, reserved_under_test()); /* `late` is still in use */
    MUST_LE(reserved_under_test() + 40 * MIB, before);
}

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

/* A trim waits for frees that no event covers, such as those of a stream past its first frees. */
TEST(a_trim_frees_what_no_event_covers) {
    make_engine(KIND_FIXED, 64 * MIB, "");
    void *block[20];
    CUstream stream;

    alloc_live(MIB, A);
    stream = make_stream();
    for (int i = 0; i < 40; i++)
        free_live(alloc_live(1000, stream), stream);
    for (int i = 0; i < 12; i++)
        block[i] = alloc_live(5 * MIB, stream);
    for (int i = 0; i < 12; i++)
        free_live(block[i], stream);
    CU(driver->cuStreamDestroy(stream));
    OK(weir_trim(a, 0, NULL));
    free_live(alloc_live(60 * MIB, B), B);
}

CASE("alone", 120, open_engine_device, end_test);

TEST(waiting_is_counted_once) {
    make_engine(KIND_FIXED, 64 * MIB, "recovery-timeout=1000ms");
    free_live(alloc_live(1000, B), B);
    void *block = alloc_live(60 * MIB, A);
    busy(A, 50000000);
    free_live(block, A);
    uint64_t stall = stats_of(a).stall_ns;
    uint64_t before = weir__model_now_ns();
    block = alloc_live(60 * MIB, B);
    MUST_BE_WITHIN(40000000, stats_of(a).stall_ns - stall, weir__model_now_ns() - before);
}

static void *take_beside(void *block) {
    *(void **)block = alloc_live(MIB, B);
    return NULL;
}

static void *taken_beside;

/* Plays a request of another thread after the driver has refused one and before the caller knows. */
static CUresult refuse_beside(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                              CUstream stream) {
    CUresult result = driver->cuMemAllocFromPoolAsync(block, bytes, pool, stream);

    if (result == CUDA_ERROR_OUT_OF_MEMORY && stream == A && !taken_beside) {
        run_in_thread(take_beside, &taken_beside);
    }
    return result;
}

/* Memory that the driver took for a failed request goes back, although another request has seen it. */
TEST(what_was_refused_is_nobodys_growth) {
    void *block = NULL;
    copy_driver();
    table.cuMemAllocFromPoolAsync = refuse_beside;
    make_engine_on(&table, KIND_POOL, GIB, "cache=off");
    void *kept = alloc_live(600 * MIB, A);
    uint64_t idle = reserved_under_test();
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 600 * MIB, A, &block));
    MUST(taken_beside != NULL);
    MUST_LE(reserved_under_test(), idle + 32 * MIB);
    free_live(taken_beside, B);
    free_live(kept, A);
    destroy();
}

/* A request that succeeded after a retry must not count when a later one fails: preallocated memory stays. */
TEST(a_later_failure_keeps_what_was_preallocated) {
    make_engine(KIND_POOL, GIB, "cache=off recovery-timeout=1000ms");
    void *block = alloc_live(400 * MIB, A);
    busy(A, 5 * MS);
    free_live(block, A);
    free_live(alloc_live(800 * MIB, B), B);
    CU(driver->cuCtxSynchronize());
    MUST_LE(1, stats_of(a).retries);
    OK(weir_preallocate(a, GIB, NULL));
    alloc_live(300 * MIB, A);
    expect_alloc_status(WEIR_E_LIMIT, 900 * MIB, A);
    ck_assert_uint_eq(reserved_under_test(), GIB);
}

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

/* The device has no room for growth, so handles move instead.  That finding holds for one request only: the attempts of
 * two later requests are equal in number. */
TEST(a_finding_holds_for_one_request_only) {
    void *block[3];
    CUdeviceptr ballast;
    uint64_t tries[2];
    make_engine(KIND_MAPPED, 0, "growth=exact recovery-timeout=20ms");
    for (int i = 0; i < 3; i++)
        block[i] = alloc_live(256 * MIB, A);
    free_live(block[0], A);
    free_live(block[2], A);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemAlloc(&ballast, device_free() - 64 * MIB));
    uint64_t before = reserved_under_test();
    MUST_EQ(before, 768 * MIB);
    block[0] = alloc_live(512 * MIB, A);
    MUST_EQ(reserved_under_test(), before);
    for (int i = 0; i < 2; i++) {
        weir__model_fail(WEIR_ENTRY_cuMemCreate, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
        expect_alloc_status(WEIR_E_NO_MEMORY, 128 * MIB, A);
        tries[i] = weir__model_faults_injected(NULL);
        weir__model_faults_clear();
    }
    MUST(tries[0] > 0);
    MUST_EQ(tries[0], tries[1]);
    free_live(block[0], A);
    free_live(block[1], A);
    CU(driver->cuMemFree(ballast));
}

SUITE("recovery", CK_FORK_GETENV);
