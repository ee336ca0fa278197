/* SPDX-License-Identifier: MIT */
/* test_engines.c: what only a modelled device can show of the engines.
 *
 * The engines alone, without the caches.  What a user relies on (who may have a block when, waiting,
 * faults, a lost device, captures) is asked a second time of the allocator as a user has it.
 *
 * The driver calls of a hit, counted.  Virtual time: who may have a block when, how long the
 * OOM recovery waits.  Growth, step by step, against figures worked out by hand.  Drivers
 * that lack what newer ones have.  Faults of single calls are test_faults.c's.
 *
 * The random run at the end knows no address map and no policy, only one rule: no two blocks overlap
 * unless a happens-before edge (same stream, event wait, the passing of time) lies between the free
 * of the first, with all its uses, and the allocation of the second.
 */
#include "config.h"

#include "tests/fixtures/model_device.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/allocator_internal.h"
#include "tests/fixtures/blocks.h"
#include "tests/fixtures/calls.h"
#include "api/drop_in.h"
#include "base/result.h"
#include "base/size.h"

static int front = WEIR_SWITCH_OFF; /* of the options that `plain` makes */

/* ---- the device ------------------------------------------------------------------------------ */

static void open_device(void) {
    start_model(4 * GIB);
}

static void open_device_for_users(void) {
    front = WEIR_SWITCH_ON;
    open_device();
}

static weir_allocator *make_on(const struct weir_driver *table, const weir_options *options) {
    weir_allocator *a = NULL;
    char message[320] = "";
    weir_status status = weir__allocator_create_on(table, options, &a, message, sizeof message);

    ck_assert_msg(status == WEIR_OK, "%s: %s", weir_status_name(status), message);
    return a;
}

static weir_allocator *make(const weir_options *options) {
    return make_on(driver, options);
}

/* No waiting, unless a test says so. */
static weir_options plain(int kind, size_t limit) {
    weir_options options = options_of(kind, "model", limit);

    if (limit)
        options.limit = bytes_amount(limit);
    options.recovery_timeout_ms = UINT32_MAX;
    options.front = front;
    return options;
}

static void destroy(weir_allocator *a) {
    OK(weir_allocator_destroy(a));
    check_model();
}

/* With its live blocks, as after the loss of the device. */
static void abandon(weir_allocator *a) {
    (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_LOST, 1);
    OK(weir_allocator_destroy(a));
}

/* ---- counting calls -------------------------------------------------------------------------- */

START_TEST(a_hit_of_the_pool_costs_one_call_and_one_question) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a = make(&options);
    void *block;

    give(a, take(a, 1000, A), A);
    count_from_here();
    block = take(a, 1000, A);
    EXPECT_CALLS({WEIR_ENTRY_cuMemAllocFromPoolAsync, 1}, {WEIR_ENTRY_cuMemPoolGetAttribute, 1},
                 {WEIR_ENTRY_cuThreadExchangeStreamCaptureMode, 2});
    count_from_here();
    give(a, block, A);
    EXPECT_CALLS({WEIR_ENTRY_cuMemFreeAsync, 1});
    destroy(a);
    /* With a finite threshold the reserved memory may fall unseen: it is asked for, twice. */
    options.release_threshold = bytes_amount(64 * MIB);
    a = make(&options);
    give(a, take(a, 1000, A), A);
    count_from_here();
    block = take(a, 1000, A);
    EXPECT_CALLS({WEIR_ENTRY_cuMemAllocFromPoolAsync, 1}, {WEIR_ENTRY_cuMemPoolGetAttribute, 2},
                 {WEIR_ENTRY_cuThreadExchangeStreamCaptureMode, 4});
    give(a, block, A);
    destroy(a);
}
END_TEST

START_TEST(a_hit_of_the_arena_costs_no_memory_call) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block;

    give(a, take(a, 1000, A), A);
    count_from_here();
    block = take(a, 1000, A);
    EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, 2}, {WEIR_ENTRY_cuStreamGetId, 1});
    count_from_here();
    give(a, block, A);
    EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, 1}, {WEIR_ENTRY_cuStreamGetId, 1});
    count_from_here();
    OK(weir_use(a, take(a, 1000, A), B));
    EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, 2}, {WEIR_ENTRY_cuStreamGetId, 1});
    abandon(a);
}
END_TEST

START_TEST(a_block_of_the_direct_engine_is_one_call) {
    weir_options options = plain(KIND_DIRECT, 0);
    weir_allocator *a = make(&options);
    void *block;

    count_from_here();
    block = take(a, 1000, A);
    EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, 1}, {WEIR_ENTRY_cuMemAlloc, 1},
                 {WEIR_ENTRY_cuCtxPushCurrent, 1}, {WEIR_ENTRY_cuCtxPopCurrent, 1},
                 {WEIR_ENTRY_cuThreadExchangeStreamCaptureMode, 2});
    count_from_here();
    give(a, block, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemFree), 1);
    destroy(a);
}
END_TEST

/* ---- the arena and its streams --------------------------------------------------------------- */

START_TEST(one_stream_never_records) {
    weir_options options = plain(_i, 256 * MIB);
    weir_allocator *a = make(&options);
    uint64_t random = 5;
    void *held[50] = {NULL};

    count_from_here();
    for (int i = 0; i < 2000; i++) {
        void **slot = &held[next_random(&random) % 50];

        give(a, *slot, A);
        *slot = NULL;
        busy(A, MS);
        if (next_random(&random) % 4 != 0)
            *slot = take(a, random_size(&random, 4 * MIB), A);
    }
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventCreate), 0);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 0);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventQuery), 0);
    for (int i = 0; i < 50; i++)
        give(a, held[i], A);
    destroy(a);
}
END_TEST

/* What A freed while busy is A's at once, and B's when A was observed past it: not before A's next
 * call has recorded, and not before the event has completed. */
START_TEST(freed_on_a_busy_stream) {
    weir_options options = plain(KIND_FIXED, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block, *none = &none, *other;

    block = take(a, 64 * MIB, A);
    busy(A, 5 * MS);
    give(a, block, A);
    ck_assert_ptr_eq(take(a, 64 * MIB, A), block); /* on its own stream at once */
    busy(A, 5 * MS);
    give(a, block, A);
    count_from_here();
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, MIB, B, &none));
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 0); /* nothing on A in a call of B */
    weir__model_advance(20 * MS);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, MIB, B, &none)); /* idle, but nobody knows */
    busy(A, 5 * MS);
    count_from_here();
    other = take(a, 1000, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 1);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, MIB, B, &none));
    weir__model_advance(4 * MS);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, MIB, B, &none));
    ck_assert_ptr_eq(none, &none);
    weir__model_advance(MS);
    give(a, take(a, MIB, B), B);
    give(a, other, A);
    destroy(a);
}
END_TEST

/* A takes of what it freed itself, though what B left fits better and is done: B finds its own there again while
 * A works.  Not where B might wait for A. */
START_TEST(what_another_left_stays_there_for_it) {
    weir_options options = plain(KIND_MAPPED, 0);
    void *large, *left, *pin, *block;
    weir_allocator *a;
    uint64_t before;

    options.internal_dependencies = _i ? WEIR_SWITCH_ON : WEIR_SWITCH_OFF;
    a = make(&options);
    large = take(a, 64 * MIB, A);
    left = take(a, 8 * MIB, B);
    pin = take(a, 8 * MIB, B);
    give(a, left, B);
    weir__model_advance(MS);
    give(a, take(a, 1000, B), B); /* B sees that it is done */
    busy(A, 50 * MS);
    give(a, large, A);
    before = reserve(a);
    block = take(a, 8 * MIB, A);
    MUST_EQ(block == left, _i == 1);
    give(a, block, A);
    block = take(a, 8 * MIB, B);
    MUST_EQ(block == left, _i == 0);
    MUST_EQ(reserve(a), before);
    give(a, block, B);
    give(a, pin, B);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

/* What A freed while busy serves B before the reserved memory grows, if B may wait for A on the device; else it grows,
 * or refuses where it cannot. */
static void behind_another(int kind, int dependencies) {
    weir_options options = plain(kind, 64 * MIB);
    int on = dependencies == WEIR_SWITCH_ON;
    void *block, *other = NULL;
    weir_allocator *a;
    uint64_t before;

    options.internal_dependencies = dependencies;
    a = make(&options);
    give(a, take(a, 1000, B), B);
    block = take(a, 28 * MIB, A);
    before = reserve(a);
    busy(A, 5 * MS);
    give(a, block, A);
    count_from_here();
    if (!on && kind == KIND_FIXED)
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 40 * MIB, B, &other));
    else
        other = take(a, (kind == KIND_FIXED ? 40 : 28) * MIB, B);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuStreamWaitEvent), (uint64_t)on);
    ck_assert_int_eq(reserve(a) == before, on || kind == KIND_FIXED);
    MUST_EQ(driver->cuStreamQuery(A), CUDA_ERROR_NOT_READY); /* the host waited for nothing */
    MUST_EQ(driver->cuStreamQuery(B), on ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
    busy(B, MS); /* writes its block: the model would complain */
    weir__model_advance(5 * MS);
    give(a, other, B);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}

START_TEST(a_stream_may_go_behind_another) {
    behind_another(_i, WEIR_SWITCH_ON);
    behind_another(_i, WEIR_SWITCH_OFF);
}
END_TEST

/* Small frees pile up without events; a stream that runs dry asks for them, and the owner's next call
 * records one for all. */
START_TEST(a_dry_stream_makes_the_owner_record_once) {
    weir_options options = plain(KIND_REGIONS, 0);
    weir_allocator *a;
    void *block[40];

    use_blocking_streams();
    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    for (int i = 0; i < 20; i++) /* past its youth, in which every free is recorded */
        give(a, take(a, 1000, A), A);
    for (int i = 0; i < 10; i++)
        block[i] = take(a, 1000, A);
    give(a, take(a, 1000, B), B);
    give(a, take(a, 1000, A), A); /* B was dry already: that is answered here */
    count_from_here();
    for (int i = 0; i < 10; i++)
        give(a, block[i], A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 0);
    take(a, 200 * MIB, B); /* dry: it grows */
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemAlloc), 1);
    count_from_here();
    block[0] = take(a, 1000, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 1);
    block[1] = take(a, 1000, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 1); /* one for the batch */
    give(a, block[0], A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 1);
    /* Without anybody dry, one when much of what it held is free and it holds as little as then, and one
     * for each 32nd of all memory. */
    for (int i = 0; i < 40; i++)
        block[i] = take(a, MIB, A);
    count_from_here();
    for (int i = 0; i < 40; i++)
        give(a, block[i], A);
    ck_assert_uint_ge(calls(WEIR_ENTRY_cuEventRecord), 1);
    ck_assert_uint_le(calls(WEIR_ENTRY_cuEventRecord), 3 + 40 / 8);
    ck_assert_uint_le(calls(WEIR_ENTRY_cuEventCreate), 3);
    abandon(a);
}
END_TEST

/* Events are used again: their number follows what is under way, not what was. */
START_TEST(events_are_recycled) {
    weir_options options = plain(KIND_REGIONS, 0);
    weir_allocator *a = make(&options);

    count_from_here();
    for (int i = 0; i < 5000; i++) {
        void *block = take(a, 100000, i % 2 ? A : B);

        if (i % 5 == 0)
            OK(weir_use(a, block, C));
        busy(i % 2 ? A : B, 10000);
        give(a, block, i % 2 ? A : B);
        weir__model_advance(20000);
    }
    ck_assert_uint_ge(calls(WEIR_ENTRY_cuEventRecord), 1000);
    ck_assert_uint_le(calls(WEIR_ENTRY_cuEventCreate), 100);
    ck_assert_uint_le(reserve(a), 64 * MIB);
    destroy(a);
}
END_TEST

/* A destroyed stream's handle is another stream's at once: its frees are not taken for the other's. */
START_TEST(a_recycled_handle_is_another_stream) {
    weir_options options = plain(KIND_FIXED, 64 * MIB);
    weir_allocator *a = make(&options);
    CUstream s, t;
    void *block, *none;

    give(a, take(a, 1000, A), A);
    CU(driver->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    block = take(a, 63 * MIB, s);
    busy(s, 50 * MS);
    give(a, block, s);
    CU(driver->cuStreamDestroy(s));
    CU(driver->cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    ck_assert_ptr_eq(s, t);
    for (int i = 0; i < 3; i++)
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 63 * MIB, t, &none));
    /* A trim waits for the device, and then knows. */
    OK(weir_trim(a, 0, NULL));
    ck_assert_uint_ge(weir__model_now_ns(), 50 * MS);
    give(a, take(a, 63 * MIB, t), t);
    destroy(a);
}
END_TEST

/* The space that nobody used is nobody's, though it touched what the first stream freed. */
START_TEST(a_second_stream_finds_the_unused_space) {
    weir_options options = plain(KIND_FIXED, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block, *other;

    give(a, take(a, 1, A), A);
    block = take(a, 5, A);
    other = take(a, 32 * MIB, B);
    give(a, other, B);
    give(a, block, A);
    destroy(a);
}
END_TEST

/* ---- noted uses ------------------------------------------------------------------------------ */

/* The block of A that B uses for 5 ms is freed on A: for those 5 ms nobody has it, A least of all is
 * made to wait, and then it is there for all.  Pool and arena alike. */
START_TEST(a_noted_use_holds_the_block) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block = take(a, 64 * MIB, A), *none = &none;
    uint64_t start;

    OK(weir_use(a, block, B));
    busy(B, 5 * MS);
    start = weir__model_now_ns();
    give(a, block, A);
    ck_assert_uint_lt(weir__model_now_ns() - start, MS);
    ck_assert_uint_eq(driver->cuStreamQuery(A), CUDA_SUCCESS);
    ck_assert_uint_eq(check_identities(a).in_use, 0);
    for (int i = 0; i < 4; i++) {
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 64 * MIB, i == 0 ? A : i == 1 ? B : C, &none));
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
        weir__model_advance(MS);
    }
    weir__model_advance(MS);
    block = take(a, 64 * MIB, C);
    give(a, block, C);
    destroy(a);
}
END_TEST

/* Work given to the noted stream after weir_use but before the free counts; later work does not. */
START_TEST(the_free_is_the_point_in_order) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block = take(a, 64 * MIB, A), *none;

    OK(weir_use(a, block, B));
    busy(B, 2 * MS);
    give(a, block, A);
    busy(B, 50 * MS);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 64 * MIB, A, &none));
    weir__model_advance(3 * MS);
    block = take(a, 64 * MIB, A);
    give(a, block, A);
    abandon(a);
}
END_TEST

/* The direct engine waits for the device itself. */
START_TEST(the_direct_engine_waits_for_uses) {
    weir_options options = plain(KIND_DIRECT, 0);
    weir_allocator *a = make(&options);
    void *block = take(a, MIB, A);

    OK(weir_use(a, block, B));
    busy(B, 5 * MS);
    give(a, block, A);
    ck_assert_uint_ge(weir__model_now_ns(), 5 * MS);
    destroy(a);
}
END_TEST

/* A pool's engine cannot tell what is live: a note about memory that is no live block is gone when the
 * address is handed out. */
START_TEST(stale_notes_are_dropped) {
    weir_options options = plain(KIND_POOL, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block = take(a, MIB, A);

    give(a, block, A);
    OK(weir_use(a, block, B));
    busy(B, 50 * MS);
    ck_assert_ptr_eq(take(a, MIB, A), block);
    count_from_here();
    give(a, block, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 0);
    ck_assert_ptr_eq(take(a, MIB, A), block);
    give(a, block, A);
    destroy(a);
}
END_TEST

/* A stream noted twice is waited for once. */
START_TEST(notes_do_not_pile_up) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block = take(a, MIB, A);

    for (int i = 0; i < 100; i++) {
        OK(weir_use(a, block, B));
        OK(weir_use(a, block, C));
    }
    count_from_here();
    give(a, block, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 3); /* A, B, C */
    destroy(a);
}
END_TEST

/* A free that failed has changed nothing: the next one still waits for the noted stream. */
START_TEST(notes_survive_a_failed_free) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block = take(a, 64 * MIB, A), *none;

    OK(weir_use(a, block, B));
    busy(B, 5 * MS);
    weir__model_fail(WEIR_ENTRY_cuEventRecord, 2, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_free(a, block, A));
    ck_assert_int_eq(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    ck_assert_uint_eq(check_identities(a).blocks, 1);
    give(a, block, A);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 64 * MIB, A, &none));
    weir__model_advance(5 * MS);
    give(a, take(a, 64 * MIB, A), A);
    destroy(a);
}
END_TEST

/* Another thread gets the address, and notes a use of its own, before the free that made way has
 * returned: played by a driver whose free does both. */
static struct weir_driver hasty;
static weir_allocator *shared;
static void *quick_block;

static CUresult free_and_be_overtaken(CUdeviceptr block, CUstream stream) {
    CUresult result = driver->cuMemFreeAsync(block, stream);

    hasty.cuMemFreeAsync = driver->cuMemFreeAsync; /* once */
    quick_block = take(shared, 64 * MIB, C);
    ck_assert_uint_eq((uintptr_t)quick_block, block);
    OK(weir_use(shared, quick_block, B));
    return result;
}

START_TEST(notes_of_the_next_owner_stay) {
    weir_options options = plain(KIND_POOL, 64 * MIB);
    void *block, *none;

    hasty = *driver;
    shared = make_on(&hasty, &options);
    block = take(shared, 64 * MIB, A);
    OK(weir_use(shared, block, C));
    hasty.cuMemFreeAsync = free_and_be_overtaken;
    give(shared, block, A);
    busy(B, 5 * MS);
    give(shared, quick_block, C);
    EXPECT(WEIR_E_LIMIT, weir_alloc(shared, 64 * MIB, C, &none));
    weir__model_advance(5 * MS);
    give(shared, take(shared, 64 * MIB, C), C);
    destroy(shared);
}
END_TEST

/* Likewise notes that are still there when the allocator goes, and are given up with it. */
START_TEST(notes_do_not_outlive_the_allocator) {
    weir_options options = plain(KIND_POOL, 64 * MIB);
    weir_allocator *a = make(&options);

    for (uintptr_t i = 1; i < 300; i++)
        for (int k = 0; k < 6; k++)
            OK(weir_use(a, (void *)(i * 4096), (CUstream)(uintptr_t)(100 + k)));
    destroy(a);
}
END_TEST

/* ---- growth ---------------------------------------------------------------------------------- */

enum { MOST_STEPS = 8 };

struct growth_case {
    const char *name, *growth;
    size_t limit, request;
    size_t reserve[MOST_STEPS]; /* MiB, after each of as many requests; 0: refused */
};

/* Requests of one size, none freed.  The pool takes units of 32 MiB. */
static const struct growth_case pool_cases[] = {
    {"exact", "exact", 0, 40, {64, 96, 128, 160, 224, 256, 288, 320}},
    {"step", "step:64MiB", 0, 40, {64, 128, 128, 192, 256, 256, 320, 320}},
    {"large step", "step:256MiB", 0, 40, {256, 256, 256, 256, 256, 256, 512, 512}},
    {"step under a limit", "step:128MiB", 200, 40, {128, 128, 128, 192, 0, 0, 0, 0}},
    {"geometric", "geometric:2", 0, 40, {64, 128, 128, 256, 256, 256, 512, 512}},
    {"geometric, capped", "geometric:2:64MiB", 0, 40, {64, 128, 128, 192, 256, 256, 320, 320}},
    {"one and a half", "geometric:1.5", 0, 40, {64, 96, 128, 192, 288, 288, 288, 416}},
    {"remaining", "remaining:0.5", 1024, 200, {512, 512, 768, 896, 1024, 0, 0, 0}},
    {"bfc", "bfc", 0, 40, {64, 128, 128, 256, 256, 256, 512, 512}},
};

static const struct growth_case arena_cases[] = {
    {"exact", "exact", 0, 40, {40, 80, 120, 160, 200, 240, 280, 320}},
    {"step", "step:64MiB", 0, 40, {64, 128, 192, 256, 320, 384, 448, 512}},
    {"large step", "step:256MiB", 0, 40, {256, 256, 256, 256, 256, 256, 512, 512}},
    {"step under a limit", "step:128MiB", 200, 40, {128, 128, 128, 200, 0, 0, 0, 0}},
    {"geometric", "geometric:2", 0, 40, {40, 80, 160, 160, 320, 320, 320, 320}},
    {"geometric, capped", "geometric:2:64MiB", 0, 40, {40, 80, 144, 208, 272, 336, 400, 464}},
    {"remaining", "remaining:0.5", 1024, 200, {512, 512, 768, 968, 0, 0, 0, 0}},
    {"bfc", "bfc", 0, 40, {64, 128, 256, 256, 256, 512, 512, 512}},
};

/* The events add up to the reserved memory, and causes are what they should be. */
static void check_growth_events(weir_allocator *a, int is_pool) {
    weir_event events[32];
    uint64_t total = 0, grown = 0;
    size_t count;

    OK(weir_events(a, 0, events, sizeof events[0], 32, &count));
    for (size_t i = 0; i < count; i++) {
        total += events[i].shrink ? -events[i].got : events[i].got;
        ck_assert_uint_eq(events[i].reserve_after, total);
        ck_assert_int_eq(events[i].shrink, events[i].cause == WEIR_EVENT_RECOVERY);
        if (events[i].shrink)
            continue;
        grown += events[i].got;
        if (events[i].cause == WEIR_EVENT_POLICY) {
            ck_assert_int_eq(is_pool, 1);
            ck_assert_int_eq(events[i - 1].cause, WEIR_EVENT_REQUEST); /* it tops one up */
        } else {
            ck_assert_int_eq(events[i].cause, WEIR_EVENT_REQUEST);
        }
        ck_assert_uint_gt(events[i].stall_ns, 0);
    }
    ck_assert_uint_eq(total, reserve(a));
    ck_assert_uint_eq(stats_of(a).growth_bytes, grown);
}

static void run_growth_case(const struct growth_case *c, int kind) {
    weir_options options = plain(kind, c->limit * MIB);
    weir_allocator *a;
    uint64_t before = 0;

    OK(weir_options_set(&options, "growth", c->growth, NULL, 0));
    a = make(&options);
    for (int i = 0; i < MOST_STEPS; i++) {
        void *block;
        weir_status status = weir_alloc(a, c->request * MIB, A, &block);
        weir_statistics s = check_identities(a);

        if (c->reserve[i] == 0) {
            EXPECT(WEIR_E_LIMIT, status);
            ck_assert_uint_le(s.reserve, before); /* OOM recovery gave idle units back */
            continue;
        }
        OK(status);
        ck_assert_msg(s.reserve == c->reserve[i] * MIB, "%s, request %d: %zu MiB, not %zu", c->name,
                      i + 1, (size_t)(s.reserve / MIB), c->reserve[i]);
        ck_assert_uint_eq(s.hits, (uint64_t)(i + 1) - s.growth_allocs);
        before = s.reserve;
    }
    check_growth_events(a, kind == KIND_POOL);
    abandon(a);
}

START_TEST(pool_grows_by_its_policy) {
    run_growth_case(&pool_cases[_i], KIND_POOL);
}
END_TEST

START_TEST(arena_grows_by_its_policy) {
    run_growth_case(&arena_cases[_i], KIND_REGIONS);
}
END_TEST

/* TensorFlow's own sequence for small requests: 2, 4, 8 MiB, ... */
START_TEST(bfc_regions_double) {
    weir_options options = plain(KIND_REGIONS, 0);
    weir_allocator *a = make(&options);
    static const size_t mib[] = {2, 2, 6, 6, 6, 6, 14, 14, 14, 14, 14, 14, 14, 14, 30};

    for (size_t i = 0; i < sizeof mib / sizeof mib[0]; i++) {
        take(a, MIB, A);
        ck_assert_uint_eq(reserve(a), mib[i] * MIB);
    }
    abandon(a);
}
END_TEST

/* What goes back does not leave the size of the next region behind. */
START_TEST(bfc_regions_double_from_what_is_left) {
    weir_options options = plain(_i, 0);
    weir_allocator *a;
    void *pin, *block[64];
    uint64_t first = 0;

    options.growth = WEIR_GROWTH_BFC;
    a = make(&options);
    pin = take(a, MIB, A);
    first = reserve(a);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 64; i++)
            block[i] = take(a, 4 * MIB, A);
        ck_assert_uint_le(reserve(a), GIB);
        for (int i = 0; i < 64; i++)
            give(a, block[i], A);
        CU(driver->cuCtxSynchronize());
        OK(weir_trim(a, 0, NULL));
        ck_assert_uint_le(reserve(a), first);
    }
    give(a, pin, A);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

static weir_growth_state told[4];
static int times_told;

static size_t hundred(const weir_growth_state *state, void *context) {
    ck_assert_ptr_eq(context, &times_told);
    told[times_told++] = *state;
    return 100 * MIB;
}

START_TEST(a_callback_is_told_the_figures) {
    weir_options options = plain(_i, 1000 * MIB);
    weir_allocator *a;

    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = hundred;
    options.growth_context = &times_told;
    times_told = 0;
    a = make(&options);
    take(a, 40 * MIB, A);
    ck_assert_int_eq(times_told, 1);
    ck_assert_uint_eq(told[0].size, sizeof told[0]);
    ck_assert_uint_eq(told[0].request, 40 * MIB);
    ck_assert_uint_eq(told[0].reserve, 0);
    ck_assert_uint_eq(told[0].limit, (_i == KIND_POOL ? 992 : 1000) * MIB);
    ck_assert_uint_eq(told[0].device_free, 4 * GIB);
    ck_assert_uint_eq(told[0].steps, 0);
    ck_assert_uint_eq(told[0].last_step, 0);
    ck_assert_uint_eq(reserve(a), (_i == KIND_POOL ? 96 : 100) * MIB);
    take(a, 40 * MIB, A);
    take(a, 40 * MIB, A);
    ck_assert_int_eq(times_told, 2);
    ck_assert_uint_eq(told[1].steps, 1);
    ck_assert_uint_eq(told[1].last_step, (_i == KIND_POOL ? 96 : 100) * MIB);
    ck_assert_uint_eq(told[1].reserve, (_i == KIND_POOL ? 96 : 100) * MIB);
    ck_assert_uint_ge(told[1].in_use, 80 * MIB);
    abandon(a);
}
END_TEST

/* Another program holds most of the device: a step is cut to what is there, the request served. */
START_TEST(a_nearly_full_device_cuts_the_step) {
    static const char *const policies[] = {"step:512MiB", "remaining:1", "geometric:8", "bfc"};
    weir_options options = plain(_i % 2 ? KIND_POOL : KIND_REGIONS, 0);
    weir_allocator *a;
    CUdeviceptr others;
    void *none;

    CU(driver->cuMemAlloc(&others, 4 * GIB - 200 * MIB));
    OK(weir_options_set(&options, "growth", policies[_i / 2], NULL, 0));
    a = make(&options);
    take(a, 40 * MIB, A);
    take(a, 40 * MIB, A);
    take(a, 40 * MIB, A);
    ck_assert_uint_le(reserve(a), 200 * MIB);
    check_growth_events(a, _i % 2);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 150 * MIB, A, &none));
    CU(driver->cuMemFree(others));
    take(a, 150 * MIB, A); /* the next call works */
    check_identities(a);
    abandon(a);
}
END_TEST

/* A step that the device refuses for long does not make the next one larger. */
START_TEST(refused_steps_do_not_double) {
    weir_options options = plain(KIND_REGIONS, 0);
    weir_allocator *a;
    CUdeviceptr others;
    void *none;

    options.recovery_timeout_ms = 500;
    a = make(&options);
    take(a, MIB, A);
    give(a, take(a, MIB, B), B); /* a silent stream, so that OOM recovery asks many times */
    CU(driver->cuMemAlloc(&others, 4 * GIB - 2 * MIB));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 2 * MIB, A, &none));
    CU(driver->cuMemFree(others));
    take(a, 2 * MIB, A);
    ck_assert_uint_eq(reserve(a), 6 * MIB);
    abandon(a);
}
END_TEST

/* BFC's steps go down by tenths: 16, 14.4, 13, 11.7 and 10.5 MiB, which take 12 of the device. */
START_TEST(what_just_fits_is_served) {
    weir_options options = plain(KIND_REGIONS, 0);
    weir_allocator *a = make(&options);
    CUdeviceptr others;

    CU(driver->cuMemAlloc(&others, 4 * GIB - 10 * MIB));
    take(a, 10 * MIB, A);
    ck_assert_uint_eq(reserve(a), 10 * MIB);
    CU(driver->cuMemFree(others));
    abandon(a);
}
END_TEST

/* Runs `what` with standard error in a file, whose text is returned. */
static const char *logged(void (*what)(void)) {
    static char text[4096];
    char name[] = "/tmp/weir-test-XXXXXX";
    int file = mkstemp(name), saved = dup(STDERR_FILENO);
    ssize_t bytes;

    ck_assert_int_ge(file, 0);
    unlink(name);
    dup2(file, STDERR_FILENO);
    what();
    dup2(saved, STDERR_FILENO);
    close(saved);
    bytes = pread(file, text, sizeof text - 1, 0);
    text[bytes < 0 ? 0 : bytes] = '\0';
    close(file);
    return text;
}

static weir_options logging;

static void create_and_destroy(void) {
    destroy(make(&logging));
}

/* What is made is of that kind, and writes warnings. */
static void log_warnings(int kind, size_t limit) {
    logging = plain(kind, limit);
    logging.log = WEIR_LOG_WARNING;
}

/* It writes those words; "": nothing. */
static void expect_logged(void (*what)(void), const char *words) {
    const char *text = logged(what);

    ck_assert_msg(*words ? strstr(text, words) != NULL : !*text, "not \"%s\": %s", words, text);
}

static void expect_words(const char *words) {
    expect_logged(create_and_destroy, words);
}

START_TEST(a_threshold_that_throws_steps_away_draws_a_warning) {
    log_warnings(KIND_POOL, 0);
    logging.growth = WEIR_GROWTH_STEP;
    expect_words("");
    logging.release_threshold = bytes_amount(0);
    expect_words("warning: the release threshold");
    logging.prealloc = bytes_amount(64 * MIB); /* raises the threshold */
    expect_words("");
    logging.prealloc = (weir_amount){.kind = WEIR_AMOUNT_DEFAULT};
    logging.growth = WEIR_GROWTH_EXACT;
    expect_words("");
    logging.growth = WEIR_GROWTH_STEP;
    logging.log = WEIR_LOG_ERROR;
    expect_words("");
    logging.log = WEIR_LOG_WARNING;
    logging.engine = WEIR_ENGINE_ARENA;
    ck_assert_ptr_null(strstr(logged(create_and_destroy), "makes each synchronisation release"));
}
END_TEST

static void ask_for_too_much(void) {
    weir_allocator *a = make(&logging);
    void *none;

    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 65 * MIB, A, &none));
    destroy(a);
}

static void ask_where_the_driver_does_not_tell(void) {
    weir_allocator *a = make(&logging);
    void *none;

    weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 65 * MIB, A, &none));
    weir__model_faults_clear();
    destroy(a);
}

START_TEST(a_failure_is_logged) {
    log_warnings(KIND_FIXED, 64 * MIB);
    expect_logged(ask_for_too_much,
                  "limit is reached: could not allocate 65MiB; limit 64MiB, reserved 64MiB, in use "
                  "0B, free on the device 3.94GiB; at least 64MiB would fit now");
    expect_logged(ask_where_the_driver_does_not_tell, ", free on the device not known; at least ");
    logging.log = WEIR_LOG_ERROR;
    expect_logged(ask_for_too_much, "");
}
END_TEST

START_TEST(growth_is_logged) {
    logging = plain(KIND_REGIONS, 0);
    logging.log = WEIR_LOG_INFO;
    logging.prealloc = bytes_amount(64 * MIB);
    expect_words("reserved memory grew by 64MiB (prealloc), now 64MiB, ");
    logging.log = WEIR_LOG_WARNING;
    expect_words("");
}
END_TEST

START_TEST(shares_that_do_not_fall_draw_a_warning) {
    static const weir_amount share = {.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
    const weir_amount much[] = {share, {.kind = WEIR_AMOUNT_MAX}, bytes_amount(2049 * MIB)};

    log_warnings(KIND_FIXED, 0);
    logging.limit = share;
    expect_words("a fixed arena keeps the share that it has now");
    log_warnings(KIND_REGIONS, 0);
    logging.limit = share;
    expect_words("");
    logging.prealloc = bytes_amount(64 * MIB); /* which no share falls to */
    expect_words("");
    for (size_t i = 0; i < sizeof much / sizeof much[0]; i++) {
        logging.prealloc = much[i];
        expect_words("goes whole or not at all");
    }
    logging.arena = WEIR_ARENA_MAPPED;
    expect_words("");
    log_warnings(KIND_POOL, 0);
    logging.limit = logging.prealloc = share;
    expect_words("");
}
END_TEST

START_TEST(settings_without_effect_draw_a_warning) {
    log_warnings(KIND_REGIONS, 0);
    expect_words("");
    logging.release_threshold = bytes_amount(MIB);
    expect_words("release-threshold has no effect");
    expect_words("no effect with engine bfc\n");
    logging.packing = WEIR_PACKING_COMPACT;
    expect_words("packing has no effect with engine bfc\n");
    log_warnings(KIND_POOL, 0);
    logging.arena = WEIR_ARENA_MAPPED;
    expect_words("arena has no effect with engine pool\n");
    log_warnings(KIND_MAPPED, 0);
    logging.engine = WEIR_ENGINE_MAPPED;
    expect_words("");
    logging.arena = WEIR_ARENA_FIXED;
    expect_words("arena has no effect with engine mapped\n");
    log_warnings(KIND_DIRECT, 0);
    expect_words("");
    logging.prealloc = bytes_amount(MIB);
    logging.growth = WEIR_GROWTH_STEP;
    expect_words("prealloc has no effect");
    expect_words("growth has no effect");
    log_warnings(KIND_FIXED, GIB);
    expect_words("");
    logging.leave = bytes_amount(MIB);
    expect_words("keep-free has no effect with a fixed arena: its size is the limit\n");
}
END_TEST

static CUresult in_small_pieces(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                                CUstream stream) {
    return bytes > 32 * MIB ? CUDA_ERROR_OUT_OF_MEMORY
                            : driver->cuMemAllocFromPoolAsync(block, bytes, pool, stream);
}

/* A device that has nothing but small pieces: as many as there is room to hold at once. */
START_TEST(a_preallocation_of_many_pieces) {
    weir_options options = plain(KIND_POOL, 0);
    struct weir_driver table;
    weir_allocator *a;

    start_model(40 * GIB);
    table = *driver;
    table.cuMemAllocFromPoolAsync = in_small_pieces;
    options.prealloc = bytes_amount(20 * GIB);
    a = make_on(&table, &options);
    MUST_EQ(stats_of(a).reserve, 16 * GIB);
    MUST_EQ(stats_of(a).prealloc_got, 16 * GIB);
    destroy(a);
}
END_TEST

/* Bytes that are not known are not told. */
START_TEST(a_preallocation_that_fails_tells_nothing) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a = make(&options);
    size_t reserve = 4711;

    weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_preallocate(a, 64 * MIB, &reserve));
    MUST_EQ(reserve, 4711);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, 8 * GIB, &reserve));
    MUST_EQ(reserve, stats_of(a).reserve);
    OK(weir_trim(a, 0, NULL));
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    EXPECT(WEIR_E_LIMIT, weir_preallocate(a, 256 * MIB, &reserve));
    MUST_EQ(reserve, 128 * MIB);
    MUST_EQ(stats_of(a).reserve, 128 * MIB);
    destroy(a);
}
END_TEST

/* No options are the defaults. */
START_TEST(without_options) {
    weir_allocator *a = make(NULL);

    ck_assert_str_eq(weir_version(), PACKAGE_VERSION);
    OK(weir_free(a, take(a, MIB, A), A));
    MUST_EQ(stats_of(a).prealloc_asked, 0);
    destroy(a);
}
END_TEST

/* An arena of less than the least block would serve nothing. */
START_TEST(a_fixed_arena_of_nothing) {
    weir_options options = plain(KIND_FIXED, 255);
    weir_allocator *a = NULL;

    EXPECT(WEIR_E_LIMIT, weir__allocator_create_on(driver, &options, &a, NULL, 0));
    MUST(a == NULL);
    options.limit = bytes_amount(256);
    a = make(&options);
    OK(weir_free(a, take(a, 1, A), A));
    destroy(a);
}
END_TEST

/* ---- preallocation --------------------------------------------------------------------------- */

START_TEST(preallocation_takes_what_is_there) {
    weir_options options = plain(_i, 0);
    weir_allocator *a = NULL;
    weir_statistics s;
    CUdeviceptr others;

    CU(driver->cuMemAlloc(&others, 4 * GIB - 300 * MIB));
    options.prealloc = bytes_amount(GIB);
    if (_i == KIND_FIXED)
        options.limit = bytes_amount(GIB);
    a = make(&options);
    s = check_identities(a);
    ck_assert_uint_eq(s.prealloc_asked, GIB);
    ck_assert_uint_le(s.prealloc_got, 300 * MIB);
    ck_assert_uint_ge(s.prealloc_got, 224 * MIB);
    ck_assert_uint_eq(s.prealloc_kept, s.prealloc_got);
    ck_assert_uint_eq(s.reserve, s.prealloc_got);
    ck_assert_int_eq(weir_last_driver_result(), 0);
    give(a, take(a, 200 * MIB, A), A);
    destroy(a);
    /* All of the device: nothing available. */
    CU(driver->cuMemFree(others));
    CU(driver->cuMemAlloc(&others, 4 * GIB));
    a = NULL;
    EXPECT(WEIR_E_NO_MEMORY, weir__allocator_create_on(driver, &options, &a, NULL, 0));
    ck_assert_ptr_null(a);
    CU(driver->cuMemFree(others));
    ck_assert_uint_eq(device_free(), 4 * GIB);
}
END_TEST

/* Above what there can be: refused at creation, and said so; later as far as there is. */
START_TEST(more_than_can_be_is_not_preallocated) {
    weir_options options = plain(KIND_REGIONS, 64 * MIB);
    weir_allocator *a = NULL;
    char message[320] = "";
    size_t reserved = 0;

    options.prealloc = (weir_amount){.value = 500000, .kind = WEIR_AMOUNT_OF_TOTAL};
    EXPECT(WEIR_E_LIMIT, weir__allocator_create_on(driver, &options, &a, message, sizeof message));
    ck_assert_ptr_nonnull(strstr(message, "preallocation of 2GiB is above the limit of 64MiB"));
    options.limit = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    options.prealloc = bytes_amount(4 * GIB + 1);
    EXPECT(WEIR_E_NO_MEMORY,
           weir__allocator_create_on(driver, &options, &a, message, sizeof message));
    ck_assert_ptr_nonnull(strstr(message, "is above the device's 4GiB"));
    options.engine = 99;
    weir__set_driver_result(CUDA_ERROR_UNKNOWN);
    EXPECT(WEIR_E_INVALID,
           weir__allocator_create_on(driver, &options, &a, message, sizeof message));
    ck_assert_int_eq(weir_last_driver_result(), 0);
    ck_assert_ptr_nonnull(strstr(message, "engine"));
    ck_assert_ptr_null(a);
    options = plain(KIND_REGIONS, 0);
    a = make(&options);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, SIZE_MAX, &reserved));
    ck_assert_uint_ge(reserved, 3 * GIB);
    destroy(a);
    ck_assert_uint_eq(device_free(), 4 * GIB);
}
END_TEST

/* "max" and parts of the device are what they say. */
START_TEST(amounts_are_of_the_device) {
    weir_options options = plain(KIND_REGIONS, 0);
    CUdeviceptr others;
    weir_allocator *a;

    CU(driver->cuMemAlloc(&others, GIB));
    options.prealloc = (weir_amount){.value = 250000, .kind = WEIR_AMOUNT_OF_TOTAL};
    a = make(&options);
    ck_assert_uint_eq(reserve(a), GIB);
    destroy(a);
    options.prealloc = (weir_amount){.value = 500000, .kind = WEIR_AMOUNT_OF_FREE};
    a = make(&options);
    ck_assert_uint_eq(reserve(a), GIB + 512 * MIB);
    destroy(a);
    options.prealloc = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    a = make(&options);
    ck_assert_uint_eq(reserve(a), 3 * GIB);
    destroy(a);
    options.limit = (weir_amount){.value = 500000, .kind = WEIR_AMOUNT_OF_TOTAL};
    a = make(&options);
    ck_assert_uint_eq(reserve(a), 2 * GIB);
    destroy(a);
    options = plain(KIND_FIXED, 0);
    options.limit = (weir_amount){.kind = WEIR_AMOUNT_DEFAULT};
    a = make(&options);
    ck_assert_uint_eq(reserve(a), 3 * GIB); /* 75% of the device */
    destroy(a);
}
END_TEST

/* ---- OOM recovery ---------------------------------------------------------------- */

/* Frees pending on a busy stream are waited for, and no longer than they take. */
START_TEST(oom_recovery_waits_for_frees) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a;
    uint64_t start, took;
    void *block;

    options.recovery_timeout_ms = 1000;
    a = make(&options);
    block = take(a, 64 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 50 * MS);
    give(a, block, A);
    start = weir__model_now_ns();
    block = take(a, 64 * MIB, A);
    took = weir__model_now_ns() - start;
    ck_assert_uint_ge(took, 49 * MS);
    ck_assert_uint_le(took, 53 * MS);
    ck_assert_uint_eq(check_identities(a).retries, 1);
    ck_assert_uint_ge(stats_of(a).stall_ns, 49 * MS);
    ck_assert_uint_eq(stats_of(a).refusals, 0);
    give(a, block, A);
    destroy(a);
}
END_TEST

/* The same without a noted use, where the driver or an event has to tell. */
START_TEST(oom_recovery_waits_for_another_stream) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a;
    uint64_t start;
    void *block, *none;

    options.recovery_timeout_ms = 1000;
    a = make(&options);
    block = take(a, 64 * MIB, A);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 64 * MIB, B, &none)); /* dry: A's next call records */
    busy(A, 50 * MS);
    give(a, block, A);
    start = weir__model_now_ns();
    block = take(a, 64 * MIB, B);
    ck_assert_uint_ge(weir__model_now_ns() - start, 45 * MS);
    ck_assert_uint_le(weir__model_now_ns() - start, 55 * MS);
    give(a, block, B);
    destroy(a);
}
END_TEST

START_TEST(the_deadline_is_kept) {
    weir_options options = plain(_i, 64 * MIB);
    weir_refusal r = {.size = sizeof r};
    uint64_t start, took;
    weir_allocator *a;
    void *block, *none = &none;

    options.recovery_timeout_ms = 100;
    a = make(&options);
    block = take(a, 64 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 5000 * MS);
    give(a, block, A);
    start = weir__model_now_ns();
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, MIB, A, &none));
    took = weir__model_now_ns() - start;
    ck_assert_uint_ge(took, 100 * MS);
    ck_assert_uint_le(took, 110 * MS);
    OK(weir_last_refusal(&r));
    ck_assert_uint_ge(r.waited_ns, 100 * MS);
    ck_assert_uint_le(r.waited_ns, took);
    ck_assert_uint_eq(r.reserve, 64 * MIB);
    ck_assert_uint_eq(r.in_use, 0);
    ck_assert_uint_eq(r.asked, MIB);
    ck_assert_uint_eq(check_identities(a).refusals, 1);
    /* Destroy has the same deadline, and what it leaves is whole. */
    start = weir__model_now_ns();
    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    took = weir__model_now_ns() - start;
    ck_assert_uint_ge(took, 100 * MS);
    ck_assert_uint_le(took, 110 * MS);
    weir__model_advance(5000 * MS);
    give(a, take(a, 64 * MIB, A), A);
    destroy(a);
    ck_assert_uint_eq(device_free(), 4 * GIB);
}
END_TEST

START_TEST(no_deadline_no_wait) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block = take(a, 64 * MIB, A), *none;
    uint64_t start;

    OK(weir_use(a, block, B));
    busy(B, 50 * MS);
    give(a, block, A);
    start = weir__model_now_ns();
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, MIB, A, &none));
    ck_assert_uint_lt(weir__model_now_ns() - start, MS);
    ck_assert_uint_eq(check_identities(a).refusals, 1);
    ck_assert_uint_eq(stats_of(a).retries, 0); /* nothing can have changed */
    weir__model_advance(50 * MS);
    destroy(a);
}
END_TEST

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

/* The deadline itself is the end: a clock that stands at it after one pause is enough. */
START_TEST(at_the_deadline_nobody_sleeps) {
    weir_options options = plain(_i, 64 * MIB);
    struct weir_driver other = *driver;
    weir_allocator *a;
    void *block, *none;

    other.ticks = read_deadline_clock;
    other.sleep_ns = sleep_until_deadline;
    deadline_clock = 0;
    options.recovery_timeout_ms = 10;
    a = make_on(&other, &options);
    block = take(a, 64 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 50 * MS);
    give(a, block, A);
    sleeps = 0;
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, MIB, A, &none));
    ck_assert_int_eq(sleeps, 1);
    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    ck_assert_int_eq(sleeps, 2);
    weir__model_advance(50 * MS);
    destroy(a);
}
END_TEST

/* Where a block lives in the region the trim gives nothing back, but has waited: that is asked for too. */
START_TEST(the_last_rung_waits_for_the_device) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a;
    void *pin, *block;
    CUgraph graph;

    options.recovery_timeout_ms = 10;
    options.growth = WEIR_GROWTH_REMAINING;
    options.growth_factor = 1;
    a = make(&options);
    block = take(a, 24 * MIB, B); /* too little for a wait before OOM recovery */
    pin = take(a, 38 * MIB, A);
    busy(B, 50 * MS);
    CU(driver->cuStreamBeginCapture(B, CU_STREAM_CAPTURE_MODE_GLOBAL));
    give(a, block, B); /* no event covers it */
    CU(driver->cuStreamEndCapture(B, &graph));
    CU(driver->cuGraphDestroy(graph));
    block = take(a, 24 * MIB, A);
    ck_assert_uint_ge(weir__model_now_ns(), 50 * MS);
    ck_assert_uint_eq(reserve(a), 64 * MIB);
    ck_assert_uint_eq(stats_of(a).trims, 0);
    give(a, block, A);
    give(a, pin, A);
    destroy(a);
}
END_TEST

/* The memory is another program's, and no free of ours brings it back. */
START_TEST(what_others_hold_is_not_waited_for) {
    weir_options options = plain(_i, 0);
    uint64_t start;
    weir_allocator *a;
    CUdeviceptr others;
    void *block, *none;

    options.recovery_timeout_ms = 1000;
    a = make(&options);
    CU(driver->cuMemAlloc(&others, 3 * GIB));
    block = take(a, 40 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 5000 * MS);
    give(a, block, A);
    start = weir__model_now_ns();
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 2 * GIB, A, &none));
    ck_assert_uint_lt(weir__model_now_ns() - start, 100 * MS);
    ck_assert_uint_eq(check_identities(a).retries, 0);
    weir__model_advance(5000 * MS);
    CU(driver->cuMemFree(others));
    destroy(a);
}
END_TEST

/* What cannot be is refused at once: more than the device has without asking the driver, more than
 * could come free without waiting. */
START_TEST(hopeless_requests_are_refused_at_once) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a;
    void *block, *none;
    uint64_t start;

    options.recovery_timeout_ms = 1000;
    a = make(&options);
    block = take(a, 40 * MIB, A);
    count_from_here();
    start = weir__model_now_ns();
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 4 * GIB + 1, A, &none));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, SIZE_MAX, A, &none));
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemAlloc) + calls(WEIR_ENTRY_cuMemAllocFromPoolAsync), 0);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 40 * MIB, A, &none));
    ck_assert_uint_lt(weir__model_now_ns() - start, MS);
    ck_assert_uint_eq(check_identities(a).refusals, 3);
    ck_assert_uint_eq(stats_of(a).retries, 0);
    give(a, block, A);
    destroy(a);
}
END_TEST

/* Idle regions are too small one by one: the last rung gives them back and takes one that fits. */
START_TEST(oom_recovery_trims_what_is_scattered) {
    weir_options options = plain(KIND_REGIONS, 256 * MIB);
    weir_event events[8];
    weir_allocator *a;
    size_t count;
    void *block;

    options.growth = WEIR_GROWTH_EXACT;
    options.recovery_timeout_ms = 10;
    a = make(&options);
    OK(weir_preallocate(a, 128 * MIB, NULL));
    OK(weir_preallocate(a, 256 * MIB, NULL));
    block = take(a, 200 * MIB, A);
    ck_assert_uint_eq(reserve(a), 200 * MIB);
    OK(weir_events(a, 2, events, sizeof events[0], 8, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(events[0].cause, WEIR_EVENT_RECOVERY);
    ck_assert_int_eq(events[0].shrink, 1);
    ck_assert_uint_eq(events[0].got, 256 * MIB);
    ck_assert_uint_eq(events[0].reserve_after, 0);
    ck_assert_int_eq(events[1].cause, WEIR_EVENT_REQUEST);
    ck_assert_uint_eq(stats_of(a).trims, 0); /* nobody asked for it */
    ck_assert_uint_eq(stats_of(a).retries, 1);
    give(a, block, A);
    destroy(a);
}
END_TEST

/* The driver refuses for want of memory, OOM recovery succeeds: the thread's driver result stays. */
START_TEST(a_recovered_request_leaves_the_driver_result) {
    weir_options options = plain(_i, 0);
    weir_allocator *a;
    void *block;

    options.recovery_timeout_ms = 1000;
    a = make(&options);
    EXPECT(WEIR_E_INVALID, weir_alloc(a, 1, A, NULL));
    block = take(a, 3 * GIB, A);
    OK(weir_use(a, block, B));
    busy(B, 20 * MS);
    give(a, block, A);
    block = take(a, 2 * GIB, A);
    ck_assert_uint_eq(stats_of(a).retries, 1);
    ck_assert_int_eq(weir_last_driver_result(), 0);
    give(a, block, A);
    destroy(a);
}
END_TEST

/* ---- trim ------------------------------------------------------------------------------------ */

/* Frees behind work: the pool keeps them, the arena's cuMemFree waits. */
START_TEST(trim_and_what_was_not_observed) {
    weir_options options = plain(_i, 256 * MIB);
    weir_allocator *a = make(&options);
    void *x = take(a, 64 * MIB, A), *y = take(a, 64 * MIB, B);
    size_t released = 1;

    busy(A, 25 * MS);
    busy(B, 27 * MS);
    give(a, x, A);
    give(a, y, B);
    OK(weir_trim(a, 0, &released));
    if (_i == KIND_POOL) {
        ck_assert_uint_eq(released, 0);
        ck_assert_uint_lt(weir__model_now_ns(), 25 * MS);
        CU(driver->cuCtxSynchronize());
        OK(weir_trim(a, 0, &released));
    }
    ck_assert_uint_ge(weir__model_now_ns(), 27 * MS);
    ck_assert_uint_ge(released, 128 * MIB);
    ck_assert_uint_eq(reserve(a), 0);
    destroy(a);
}
END_TEST

/* What is done goes from a pool though nobody has waited for the streams that it was freed on, what is not stays; in
 * any order, more than there are probe blocks for at once, and down to what is to be kept.  No work is waited for. */
START_TEST(a_trim_gives_back_what_is_done) {
    enum { PIECES = 12 };
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a;
    void *block[PIECES], *live, *late;
    size_t released, before;

    if (!is_roomy())
        return;
    start_model(64 * GIB);
    before = device_free();
    options.front = _i ? WEIR_SWITCH_ON : WEIR_SWITCH_OFF;
    options.release_threshold = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    a = make(&options);
    for (int i = 0; i < PIECES; i++)
        block[i] = take(a, (size_t)(i % 3 + 1) * GIB, i % 2 ? A : B);
    live = take(a, 20 * MIB, A);
    late = take(a, GIB, C);
    for (int i = 0; i < PIECES; i++)
        busy(i % 2 ? A : B, MS);
    for (int i = PIECES - 1; i >= 0; i--)
        give(a, block[i], i % 2 ? A : B);
    busy(C, 1000 * MS);
    give(a, late, C);
    driver->sleep_ns(100 * MS);
    OK(weir_trim(a, 3 * GIB, &released));
    if (_i == 0) { /* the caches of streams, under which a trim does wait, have no use for less */
        ck_assert_uint_lt(weir__model_now_ns(), 500 * MS);
        ck_assert_uint_eq(reserve(a), 3 * GIB);
        OK(weir_trim(a, 0, &released));
        ck_assert_uint_eq(released, 2 * GIB - 32 * MIB);
        ck_assert_uint_lt(weir__model_now_ns(), 500 * MS);
        ck_assert_uint_eq(reserve(a), GIB + 32 * MIB);
        driver->sleep_ns(1000 * MS);
    }
    OK(weir_trim(a, 0, NULL));
    ck_assert_uint_eq(reserve(a), 32 * MIB);
    give(a, live, A);
    destroy(a);
    ck_assert_uint_eq(device_free(), before);
}
END_TEST

/* Nor does a pool keep what its driver took for a request that it refused, at a limit or on a full device. */
START_TEST(nothing_is_left_of_what_was_refused) {
    weir_options options = plain(KIND_POOL, GIB);
    CUdeviceptr others, all;
    size_t before, idle;
    weir_allocator *a;
    void *block = NULL, *kept;

    options.front = _i & 1 ? WEIR_SWITCH_ON : WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = _i & 2 ? 5 : UINT32_MAX;
    a = make(&options);
    kept = take(a, 600 * MIB, A);
    idle = reserve(a);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 600 * MIB, A, &block));
    ck_assert_uint_eq(reserve(a), idle);
    CU(driver->cuMemAlloc(&others, device_free() - 300 * MIB));
    before = device_free();
    for (size_t bytes = 200 * MIB; bytes <= 400 * MIB; bytes += 200 * MIB) {
        size_t taken = bytes == 200 * MIB ? 150 * MIB : 0;

        CU(driver->cuMemAlloc(&all, taken + MIB));
        EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, bytes, A, &block));
        ck_assert_uint_eq(reserve(a), idle);
        CU(driver->cuMemFree(all));
        ck_assert_uint_eq(device_free(), before);
    }
    ck_assert_ptr_eq(block, NULL);
    give(a, kept, A);
    CU(driver->cuMemFree(others));
    destroy(a);
}
END_TEST

/* The regions that go are those that fit what is to go, the largest first. */
START_TEST(trim_chooses_regions) {
    weir_options options = plain(KIND_REGIONS, 0);
    size_t released;
    weir_allocator *a;

    options.growth = WEIR_GROWTH_EXACT;
    a = make(&options);
    for (size_t i = 1, sum = 0; i <= 16; i *= 2) {
        sum += i;
        OK(weir_preallocate(a, sum * MIB, NULL)); /* 1, 2, 4, 8, 16 */
    }
    ck_assert_uint_eq(reserve(a), 31 * MIB);
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
    destroy(a);
}
END_TEST

/* Of equal regions the one that lies lowest. */
START_TEST(trim_chooses_the_lowest) {
    weir_options options = plain(KIND_REGIONS, 0);
    weir_allocator *a;
    char *x, *y, *z;

    options.growth = WEIR_GROWTH_EXACT;
    a = make(&options);
    x = take(a, 8 * MIB, A);
    y = take(a, 8 * MIB, A);
    give(a, x, A);
    give(a, y, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 8 * MIB, NULL));
    ck_assert_uint_eq(reserve(a), 8 * MIB);
    z = take(a, 8 * MIB, A);
    ck_assert_ptr_eq(z, x > y ? x : y);
    give(a, z, A);
    destroy(a);
}
END_TEST

/* All of a fixed arena went back, and all of it is taken again. */
START_TEST(a_fixed_arena_comes_back_whole) {
    weir_options options = plain(KIND_FIXED, 64 * MIB);
    weir_allocator *a = make(&options);

    OK(weir_trim(a, 0, NULL));
    ck_assert_uint_eq(reserve(a), 0);
    give(a, take(a, 64 * MIB, A), A);
    ck_assert_uint_eq(reserve(a), 64 * MIB);
    destroy(a);
}
END_TEST

/* A limit of all that the device has is none: the device refuses. */
START_TEST(a_limit_of_the_whole_device) {
    weir_options options = plain(KIND_REGIONS, 4 * GIB);
    weir_allocator *a;
    void *most, *none;

    options.growth = WEIR_GROWTH_EXACT;
    a = make(&options);
    most = take(a, 4 * GIB - MIB, A);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 2 * MIB, A, &none)); /* more than is left of the limit */
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 512 * KIB, A, &none)); /* no more */
    give(a, most, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    destroy(a);
}
END_TEST

/* What the device has no more of is no matter of the limit, which has room for one page of the driver's. */
START_TEST(a_full_device_below_the_limit) {
    weir_options options = plain(KIND_REGIONS, 4 * MIB);
    weir_allocator *a;
    CUdeviceptr rest;
    size_t bytes, total;
    void *block, *none;

    options.growth = WEIR_GROWTH_EXACT;
    a = make(&options);
    block = take(a, 2 * MIB, A);
    CU(driver->cuMemGetInfo(&bytes, &total));
    CU(driver->cuMemAlloc(&rest, bytes));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 2 * MIB, A, &none));
    CU(driver->cuMemFree(rest));
    give(a, block, A);
    destroy(a);
}
END_TEST

/* Up to the limit was asked, and the device had less: that is no matter of the limit either. */
START_TEST(a_preallocation_that_the_device_cuts) {
    weir_options options = plain(KIND_REGIONS, GIB);
    size_t got, bytes, total;
    weir_statistics before;
    weir_allocator *a;
    CUdeviceptr others, rest;

    options.growth = WEIR_GROWTH_EXACT;
    a = make(&options);
    CU(driver->cuMemAlloc(&others, 4 * GIB - 300 * MIB));
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, GIB, &got));
    ck_assert_uint_ge(got, 64 * MIB);
    ck_assert_uint_le(got, 300 * MIB);
    CU(driver->cuMemGetInfo(&bytes, &total));
    CU(driver->cuMemAlloc(&rest, bytes));
    before = stats_of(a);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, GIB, &got));
    ck_assert_uint_eq(stats_of(a).growths, before.growths); /* nothing came, and none was noted */
    CU(driver->cuMemFree(rest));
    CU(driver->cuMemFree(others));
    destroy(a);
}
END_TEST

/* ---- contexts -------------------------------------------------------------------------------- */

START_TEST(the_primary_context_is_held_as_often_as_given_up) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a, *b;

    count_from_here();
    a = make(&options);
    b = make(&options);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuDevicePrimaryCtxRetain), 2);
    give(a, take(a, MIB, A), A);
    destroy(a);
    options.prealloc = bytes_amount(100 * GIB);
    options.limit = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    EXPECT(WEIR_E_NO_MEMORY, weir__allocator_create_on(driver, &options, &a, NULL, 0));
    destroy(b);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuDevicePrimaryCtxRetain), 3);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuDevicePrimaryCtxRelease), 3);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuCtxPushCurrent), calls(WEIR_ENTRY_cuCtxPopCurrent));
}
END_TEST

/* ---- faults ---------------------------------------------------------------------------------- */

/* What a growth took to raise the reserved memory goes back, if not at once, then by the next step or trim. */
START_TEST(probe_blocks_that_stay_are_given_back_later) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a;
    void *block;

    options.growth = WEIR_GROWTH_STEP;
    options.growth_step = 256 * MIB;
    a = make(&options);
    weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_INVALID_VALUE, 1);
    block = take(a, MIB, A);
    weir__model_faults_clear();
    MUST_EQ(reserve(a), 256 * MIB);
    give(a, block, A);
    OK(weir_trim(a, 0, NULL)); /* frees them; the driver takes them for pending until it is asked */
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(reserve(a), 0);
    destroy(a);
    MUST_EQ(device_free(), 4 * GIB);
}
END_TEST

/* A small step above so much idle memory that probe blocks of its size would not do to fill it. */
START_TEST(a_small_step_above_much_idle_reserve) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a;
    size_t bytes = 0;

    if (!is_roomy())
        return;
    MUST_EQ(weir__model_reset(&(struct weir_model_setup){.capacity = 64 * GIB}), 0);
    options.prealloc = bytes_amount(40 * GIB);
    a = make(&options);
    OK(weir_preallocate(a, 40 * GIB + 32 * MIB, &bytes));
    MUST_LE(40 * GIB + 32 * MIB, bytes);
    MUST_LE(bytes, 40 * GIB + 256 * MIB);
    destroy(a);
}
END_TEST

START_TEST(probe_blocks_that_stay_go_with_the_allocator) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a = make(&options);

    weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_INVALID_VALUE, 1);
    OK(weir_preallocate(a, 256 * MIB, NULL));
    weir__model_faults_clear();
    destroy(a);
    MUST_EQ(device_free(), 4 * GIB);
}
END_TEST

/* More than there can be: what there is is had, and kept at a synchronisation. */
START_TEST(everything_can_be_preallocated) {
    weir_options options = plain(_i, 0);
    weir_allocator *a;
    uint64_t reserve;

    options.release_threshold = bytes_amount(0);
    a = make(&options);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, SIZE_MAX, NULL));
    reserve = stats_of(a).reserve;
    MUST_LE(_i == KIND_REGIONS ? 3 * GIB : 4 * GIB, reserve); /* BFC goes down by tenths */
    give(a, take(a, 20 * MIB, A), A);
    CU(driver->cuCtxSynchronize());
    MUST_EQ(stats_of(a).reserve, reserve);
    destroy(a);
}
END_TEST

/* What cuMemAlloc packs beside others begins anywhere, and blocks under the caches at whole pages alone; 1: the
 * driver takes it back when it is asked again. */
START_TEST(a_region_that_begins_inside_a_page_is_exchanged) {
    weir_options options = plain(KIND_REGIONS, 0);
    CUdeviceptr other;
    weir_allocator *a;
    void *block;

    options.growth = WEIR_GROWTH_EXACT;
    a = make(&options);
    CU(driver->cuMemAlloc(&other, 512));
    if (_i)
        weir__model_fail(WEIR_ENTRY_cuMemFree, 1, CUDA_ERROR_UNKNOWN, 0);
    block = take(a, 20 * KIB, A);
    weir__model_faults_clear();
    if (front == WEIR_SWITCH_ON)
        MUST_EQ((uintptr_t)block % (16 * KIB), 0);
    give(a, block, A);
    CU(driver->cuMemFree(other));
    destroy(a);
    MUST_EQ(device_free(), 4 * GIB);
}
END_TEST

/* Nor is there memory for the exchange: a failure like others. */
START_TEST(a_region_that_begins_inside_a_page_of_a_full_device) {
    weir_options options = plain(KIND_REGIONS, 0);
    weir_allocator *a;
    CUdeviceptr other, rest;
    size_t bytes, total;
    void *block = NULL;
    weir_status status;

    options.growth = WEIR_GROWTH_EXACT;
    a = make(&options);
    CU(driver->cuMemAlloc(&other, 512));
    CU(driver->cuMemGetInfo(&bytes, &total));
    CU(driver->cuMemAlloc(&rest, bytes));
    status = weir_alloc(a, 20 * KIB, A, &block);
    MUST_EQ(status, front == WEIR_SWITCH_ON ? WEIR_E_NO_MEMORY : WEIR_OK);
    give(a, block, A);
    CU(driver->cuMemFree(rest));
    CU(driver->cuMemFree(other));
    give(a, take(a, 20 * KIB, A), A);
    destroy(a);
}
END_TEST

/* Or the limit has no room for it: a page of the driver's is 2 MiB. */
START_TEST(a_region_that_begins_inside_a_page_under_a_low_limit) {
    int room = _i;
    weir_options options = plain(KIND_REGIONS, room ? 2 * MIB : MIB);
    weir_allocator *a;
    CUdeviceptr other;
    void *block = NULL;
    weir_status status;

    options.growth = WEIR_GROWTH_EXACT;
    a = make(&options);
    CU(driver->cuMemAlloc(&other, 512));
    status = weir_alloc(a, 100, A, &block);
    MUST_EQ(status, front == WEIR_SWITCH_ON && !room ? WEIR_E_LIMIT : WEIR_OK);
    give(a, block, A);
    CU(driver->cuMemFree(other));
    destroy(a);
}
END_TEST

static CUresult alloc_askew(CUdeviceptr *block, size_t bytes) {
    CUresult result = driver->cuMemAlloc(block, bytes + 512);

    *block += 512;
    return result;
}

static CUresult free_askew(CUdeviceptr block) {
    return driver->cuMemFree(block - 512);
}

/* A driver that has no others: a larger region is not exchanged for one page. */
START_TEST(regions_that_all_begin_inside_a_page) {
    weir_options options = plain(KIND_REGIONS, 0);
    struct weir_driver other = *driver;
    weir_allocator *a;
    void *none;

    other.cuMemAlloc = alloc_askew;
    other.cuMemFree = free_askew;
    options.growth = WEIR_GROWTH_EXACT;
    options.front = WEIR_SWITCH_ON;
    a = make_on(&other, &options);
    for (size_t mib = 2; mib <= 4; mib++) {
        count_from_here();
        EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, mib * MIB, A, &none));
        MUST_EQ(calls(WEIR_ENTRY_cuMemAlloc), calls(WEIR_ENTRY_cuMemFree));
        MUST_LE(calls(WEIR_ENTRY_cuMemAlloc), 2); /* the request, and once more after a trim */
    }
    destroy(a);
    MUST_EQ(device_free(), 4 * GIB);
}
END_TEST

/* From one fatal result on nothing works but the figures, as last seen, and the end. */
START_TEST(a_lost_device) {
    static const CUresult fatal[] = {CUDA_ERROR_ILLEGAL_ADDRESS,
                                     CUDA_ERROR_LAUNCH_FAILED,
                                     CUDA_ERROR_ECC_UNCORRECTABLE,
                                     CUDA_ERROR_CONTEXT_IS_DESTROYED,
                                     710,
                                     702,
                                     716};
    enum { COUNT = sizeof fatal / sizeof fatal[0] };
    weir_options options = plain(_i / COUNT, 64 * MIB);
    CUresult result = fatal[_i % COUNT];
    weir_allocator *a = make(&options);
    weir_statistics before, after;
    void *block = take(a, 10 * MIB, A), *none = &none;
    size_t bytes = 77;

    before = stats_of(a);
    for (int entry = 0; entry < WEIR_ENTRY_COUNT; entry++)
        if (entry != WEIR_ENTRY_cuGetErrorName)
            weir__model_fail((enum weir_driver_entry)entry, 1, result, 1);
    EXPECT(WEIR_E_DEVICE_LOST, weir_alloc(a, 60 * MIB, A, &none));
    ck_assert_int_eq(weir_last_driver_result(), (int)result);
    EXPECT(WEIR_E_DEVICE_LOST, weir_alloc(a, 10, A, &none));
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(a, block, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_use(a, block, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_preallocate(a, MIB, &bytes));
    EXPECT(WEIR_E_DEVICE_LOST, weir_trim(a, 0, &bytes));
    ck_assert_ptr_eq(none, &none);
    ck_assert_uint_eq(bytes, 77);
    after = stats_of(a);
    ck_assert_mem_eq(&before, &after, sizeof before);
    OK(weir_allocator_destroy(a));
    weir__model_faults_clear();
}
END_TEST

/* ---- drivers that lack something ------------------------------------------------------------- */

static struct weir_driver older;
static int has_pools;

static CUresult no_figures(CUmemoryPool pool, CUmemPool_attribute which, void *value) {
    return which >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
               ? CUDA_ERROR_INVALID_VALUE
               : driver->cuMemPoolGetAttribute(pool, which, value);
}

static CUresult no_maximum(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUmemPoolProps ignored = *properties;

    MUST_EQ(properties->maxSize, 0); /* those bytes were reserved, and had to be zero */
    ignored.maxSize = 0;
    return driver->cuMemPoolCreate(pool, &ignored);
}

static CUresult pools_or_not(int *value, CUdevice_attribute attribute, CUdevice device) {
    CUresult result = driver->cuDeviceGetAttribute(value, attribute, device);

    if (attribute == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
        *value = has_pools;
    return result;
}

/* As a driver without these capabilities. */
static const struct weir_driver *older_driver(unsigned without) {
    older = *driver;
    older.capabilities &= ~without;
    has_pools = 1;
    older.cuDeviceGetAttribute = pools_or_not;
    if (without & WEIR_CAP_STREAM_ID)
        older.cuStreamGetId = NULL;
    if (without & WEIR_CAP_VIRTUAL)
        older.cuMemAddressReserve = NULL;
    if (without & WEIR_CAP_POOL_FIGURES)
        older.cuMemPoolGetAttribute = no_figures;
    if (without & WEIR_CAP_POOL_MAX_SIZE)
        older.cuMemPoolCreate = no_maximum;
    return &older;
}

START_TEST(a_device_without_pools) {
    const struct weir_driver *table = older_driver(0);
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = NULL;

    has_pools = 0;
    if (_i == KIND_POOL) {
        EXPECT(WEIR_E_NO_DEVICE, weir__allocator_create_on(table, &options, &a, NULL, 0));
        ck_assert_ptr_null(a);
        return;
    }
    a = make_on(table, &options);
    give(a, take(a, MIB, A), A);
    destroy(a);
}
END_TEST

static CUresult maps_nothing(int *value, CUdevice_attribute attribute, CUdevice device) {
    CUresult result = driver->cuDeviceGetAttribute(value, attribute, device);

    if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
        *value = 0;
    return result;
}

static void expect_around(weir_allocator *a, const char *address, const void *block, size_t bytes) {
    void *found = NULL;
    size_t found_bytes = 0;

    OK(weir_block_range(a, address, &found, &found_bytes));
    MUST(found == block);
    MUST_EQ(found_bytes, bytes);
}

static void expect_nothing_else(weir_allocator *a, const char *address) {
    void *found;
    size_t bytes;

    if (weir_block_range(a, address, &found, &bytes) == WEIR_OK)
        MUST((const char *)found <= address && address < (const char *)found + bytes);
}

/* Every byte of a live block leads to it, and no other byte to any. */
START_TEST(the_block_around_an_address) {
    weir_options options = plain(_i / 2, _i / 2 == KIND_FIXED ? 256 * MIB : 0);
    weir_allocator *a;
    char *first, *small, *large, *gone, *last, *young, host;

    options.harden = _i % 2 ? WEIR_HARDEN_GUARD : WEIR_HARDEN_OFF;
    a = make(&options);
    first = take(a, 3 * MIB, A);
    small = take(a, 1000, A);
    large = take(a, 3 * MIB, A);
    gone = take(a, 3 * MIB, A);
    last = take(a, 5 * MIB, A);
    young = take(a, 1000, B); /* a stream without a cache */
    if (front == WEIR_SWITCH_OFF && _i / 2 == KIND_POOL) {
        EXPECT(WEIR_E_NOT_SUPPORTED, weir_block_range(a, large, NULL, NULL));
        abandon(a);
        return;
    }
    EXPECT(WEIR_E_INVALID, weir_block_range(a, NULL, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, &host, NULL, NULL));
    OK(weir_block_range(a, small, NULL, NULL));
    expect_around(a, small, small, 1000);
    expect_around(a, small + 999, small, 1000);
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, small + 1000, NULL, NULL));
    expect_around(a, large, large, 3 * MIB);
    expect_around(a, large + 3 * MIB - 1, large, 3 * MIB);
    expect_around(a, last + 2 * MIB, last, 5 * MIB);
    expect_around(a, young + 999, young, 1000);
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, young + 1000, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, young + 512, B));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, large + 512, A));
    give(a, young, B);
    give(a, gone, A);
    give(a, first, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, gone, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, gone + 2 * MIB, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, young, NULL, NULL));
    OK(weir_trim(a, 0, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, gone, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, gone + 2 * MIB, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, first + 2 * MIB, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, last + 5 * MIB + 100 * KIB, NULL, NULL));
    expect_nothing_else(a, small + 200 * KIB);
    give(a, small, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, small, NULL, NULL));
    give(a, large, A);
    give(a, last, A);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

/* The driver lacks the entries, or the device the ability: addresses is available there all the same. */
START_TEST(a_device_that_maps_nothing) {
    struct weir_driver table = *older_driver(_i ? WEIR_CAP_VIRTUAL : 0);
    weir_options options = plain(KIND_REGIONS, 0);
    weir_allocator *a = NULL;

    options.arena = WEIR_ARENA_MAPPED;
    if (!_i)
        table.cuDeviceGetAttribute = maps_nothing;
    EXPECT(WEIR_E_NOT_SUPPORTED, weir__allocator_create_on(&table, &options, &a, NULL, 0));
    ck_assert_ptr_null(a);
}
END_TEST

/* Sizes and double frees are weir's to know then; the reserved memory is an estimate in units. */
/* That a blocking stream is idle does not say that it is not behind work of NULL: a handle in what was freed on
 * it stays where it is until that is done, and moves then. */
START_TEST(an_idle_stream_is_no_proof) {
    weir_options options = plain(KIND_MAPPED, 0);
    CUstream blocking;
    weir_allocator *a;
    void *block, *pin, *large[2];

    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    CU(driver->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    block = take(a, 64 * MIB, blocking);
    pin = take(a, 4 * MIB, blocking);
    busy(NULL, 50 * MS);
    give(a, block, blocking);
    MUST_EQ(driver->cuStreamQuery(blocking), CUDA_SUCCESS); /* as an H200's answers */
    count_from_here();
    large[0] = take(a, 96 * MIB, blocking);
    MUST_EQ(calls(WEIR_ENTRY_cuMemUnmap), 0);
    CU(driver->cuCtxSynchronize());
    large[1] = take(a, 96 * MIB, blocking);
    MUST_LE(1, calls(WEIR_ENTRY_cuMemUnmap));
    give(a, pin, blocking);
    give(a, large[0], blocking);
    give(a, large[1], blocking);
    CU(driver->cuStreamSynchronize(blocking));
    CU(driver->cuStreamDestroy(blocking));
    destroy(a);
}
END_TEST

/* Each pin leaves a gap that is too small for what comes next.  When there are no addresses any more (the
 * driver gave half of them) that is a failure; nothing is mapped among the small blocks' addresses. */
START_TEST(addresses_last_long_and_end_well) {
    enum { PINS = 80, FEW = 40 };
    weir_options options = plain(KIND_MAPPED, 0);
    size_t bytes = 2 * GIB + 2 * MIB; /* the pin has the rest of its last handle */
    void *pin[PINS], *large = NULL, *small[2];
    weir_status status = WEIR_OK;
    weir_allocator *a;
    int pins = 0;

    if (!is_roomy())
        return;
    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = UINT32_MAX;
    if (_i)
        weir__model_fail(WEIR_ENTRY_cuMemAddressReserve, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    a = make(&options);
    small[0] = take(a, 1000, A);
    for (; pins < PINS; pins++, bytes += 8 * MIB) {
        status = weir_alloc(a, bytes, A, &large);
        if (status != WEIR_OK)
            break;
        pin[pins] = take(a, 6 * MIB, A);
        give(a, large, A);
        CU(driver->cuCtxSynchronize());
        OK(weir_trim(a, 0, NULL));
    }
    MUST_LE(FEW, pins);
    ck_assert_int_eq(status, _i ? WEIR_E_NO_MEMORY : WEIR_OK);
    small[1] = take(a, 100 * KIB, A);
    give(a, small[0], A);
    give(a, small[1], A);
    while (pins > 0)
        give(a, pin[--pins], A);
    destroy(a);
}
END_TEST

/* What the driver does not unmap stays part of the reserved memory and counts against the limit, nothing else is
 * mapped there, and it goes when the driver takes it. */
START_TEST(what_cannot_be_unmapped_is_gone_round) {
    weir_options options = plain(KIND_MAPPED, 64 * MIB);
    uint64_t all = device_free();
    weir_allocator *a;
    void *first, *block, *none = NULL;

    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = UINT32_MAX;
    a = make(&options);
    first = take(a, 16 * MIB, A);
    give(a, take(a, 8 * MIB, A), A);
    CU(driver->cuCtxSynchronize());
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(WEIR_E_DRIVER, weir_trim(a, 0, NULL));
    MUST_EQ(stats_of(a).reserve, 24 * MIB);
    block = take(a, 40 * MIB, A);
    MUST_EQ(stats_of(a).reserve, 64 * MIB);
    MUST_EQ(all - device_free(), 64 * MIB);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 20 * MIB, A, &none));
    MUST_EQ(all - device_free(), 64 * MIB);
    weir__model_faults_clear();
    give(a, take(a, 8 * MIB, A), A);
    give(a, block, A);
    give(a, first, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserve, 0);
    MUST_EQ(device_free(), all);
    destroy(a);
}
END_TEST

static CUresult few_addresses(CUdeviceptr *base, size_t bytes, size_t alignment, CUdeviceptr at,
                              unsigned long long flags) {
    return bytes > 16 * GIB ? CUDA_ERROR_OUT_OF_MEMORY
                            : driver->cuMemAddressReserve(base, bytes, alignment, at, flags);
}

/* The last handle of all addresses, in the midst of which many pieces were once. */
START_TEST(the_last_addresses_move_too) {
    enum { SMALL = 2048, LAST = 64 }; /* of 512 KiB: a GiB, and a few handles */
    static void *block[SMALL];
    struct weir_driver table = *driver;
    weir_options options = plain(KIND_MAPPED, 0);
    weir_allocator *a;
    void *large;

    table.cuMemAddressReserve = few_addresses;
    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    options.limit = bytes_amount(GIB + 8 * MIB);
    a = make_on(&table, &options);
    for (int i = 0; i < SMALL; i++)
        block[i] = take(a, 512 * KIB, A);
    busy(A, 50 * MS);
    for (int i = 0; i < SMALL; i += 2)
        give(a, block[i], A);
    give(a, take(a, 8 * MIB, A), A);
    for (int i = 0; i < SMALL; i += 2)
        block[i] = take(a, 512 * KIB, A);
    for (int i = SMALL - LAST; i < SMALL; i++)
        give(a, block[i], A);
    large = take(a, 16 * MIB, A);
    MUST_EQ(check_identities(a).reserve, GIB + 8 * MIB);
    MUST_EQ(driver->cuStreamQuery(A), CUDA_ERROR_NOT_READY);
    give(a, large, A);
    for (int i = 0; i < SMALL - LAST; i++)
        give(a, block[i], A);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

/* Where memory lies at the very end of the addresses there is no more room behind it, though the device has some:
 * that is out of memory, in preallocation too, and what is refused is told what could be had. */
START_TEST(the_end_of_the_addresses_is_out_of_memory) {
    enum { UNMAPPED_RANGES = 3 };
    struct weir_driver table = *driver;
    weir_options options = plain(KIND_MAPPED, 0);
    size_t bytes = 3754 * MIB, end = 15 * GIB; /* small requests have the rest */
    weir_refusal failure = {.size = sizeof failure};
    void *pin[UNMAPPED_RANGES], *large, *none = NULL;
    weir_allocator *a;

    table.cuMemAddressReserve = few_addresses;
    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    a = make_on(&table, &options);
    for (int i = 0; i < UNMAPPED_RANGES; i++, bytes += 8 * MIB) {
        large = take(a, bytes, A);
        pin[i] = take(a, 6 * MIB, A); /* the rest of its last handle */
        give(a, large, A);
        OK(weir_trim(a, 0, NULL));
        end -= bytes + 6 * MIB;
    }
    large = take(a, end, A);
    MUST_EQ(check_identities(a).reserve, end + (size_t)UNMAPPED_RANGES * 8 * MIB);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, (size_t)stats_of(a).reserve + 8 * MIB, NULL));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, bytes, A, &none));
    OK(weir_last_refusal(&failure));
    MUST_EQ(failure.largest, 2 * MIB); /* beside a pin */
    give(a, take(a, (size_t)failure.largest, A), A);
    for (int i = 0; i < UNMAPPED_RANGES; i++)
        give(a, pin[i], A);
    give(a, large, A);
    destroy(a);
}
END_TEST

/* Small requests that have no addresses of their own any more are served among the large ones. */
START_TEST(small_blocks_find_room_elsewhere) {
    enum { SMALL = 2048 }; /* of 512 KiB: all addresses that small requests have */
    static void *block[SMALL];
    struct weir_driver table = *driver;
    weir_options options = plain(KIND_MAPPED, 0);
    weir_allocator *a;
    void *other, *none = NULL;

    table.cuMemAddressReserve = few_addresses;
    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    a = make_on(&table, &options);
    for (int i = 0; i < SMALL; i++)
        block[i] = take(a, 512 * KIB, A);
    MUST_EQ(check_identities(a).reserve, GIB);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 512 * KIB, A, &none));
    give(a, take(a, 8 * MIB, A), A);
    other = take(a, 512 * KIB, A);
    MUST_EQ(check_identities(a).reserve, GIB + 8 * MIB);
    OK(weir_preallocate(a, GIB + 128 * MIB, NULL)); /* large ones get all of it */
    MUST_EQ(check_identities(a).reserve, GIB + 128 * MIB);
    give(a, other, A);
    for (int i = 0; i < SMALL; i++)
        give(a, block[i], A);
    destroy(a);
}
END_TEST

/* The same where of one handle the addresses went, but not the memory. */
START_TEST(what_cannot_be_unmapped_is_gone_round_still) {
    weir_options options = plain(KIND_MAPPED, 64 * MIB);
    uint64_t all = device_free();
    void *block[5];
    weir_allocator *a;

    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    for (int i = 0; i < 5; i++)
        block[i] = take(a, 8 * MIB, A);
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    for (int i = 4; i > 0; i -= 2) {
        give(a, block[i], A);
        EXPECT(WEIR_E_DRIVER, weir_trim(a, 0, NULL));
    }
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 0);
    weir__model_fail(WEIR_ENTRY_cuMemRelease, 1, CUDA_ERROR_UNKNOWN, 1);
    OK(weir_trim(a, 0, NULL));
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    give(a, block[1], A);
    EXPECT(WEIR_E_DRIVER, weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserve, 40 * MIB);
    block[1] = take(a, 8 * MIB, A);
    MUST_EQ(check_identities(a).reserve, 48 * MIB);
    weir__model_faults_clear();
    for (int i = 0; i < 4; i++)
        if (i != 2)
            give(a, block[i], A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(device_free(), all);
    destroy(a);
}
END_TEST

/* A handle that was on its way and could not be mapped goes with its old place, once that was completed. */
START_TEST(what_cannot_be_put_goes_later) {
    weir_options options = plain(KIND_MAPPED, 64 * MIB);
    uint64_t all = device_free();
    void *block, *pin, *none = NULL;
    weir_allocator *a;

    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    block = take(a, 8 * MIB, A);
    pin = take(a, 8 * MIB, A);
    busy(A, 5 * MS);
    give(a, block, A);
    weir__model_fail(WEIR_ENTRY_cuMemMap, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_alloc(a, 16 * MIB, A, &none));
    MUST_EQ(check_identities(a).reserve, 16 * MIB);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserve, 8 * MIB);
    MUST_EQ(all - device_free(), 8 * MIB);
    give(a, pin, A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(device_free(), all);
    destroy(a);
}
END_TEST

/* The same where the driver took it neither at its new place nor back from there: it is the device's again only
 * when it has left both. */
START_TEST(what_stays_in_two_places_goes_with_the_last) {
    weir_options options = plain(KIND_MAPPED, 64 * MIB);
    uint64_t all = device_free();
    void *block, *pin, *none = NULL;
    weir_allocator *a;

    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    block = take(a, 8 * MIB, A);
    pin = take(a, 8 * MIB, A);
    busy(A, 5 * MS);
    give(a, block, A);
    weir__model_fail(WEIR_ENTRY_cuMemSetAccess, 1, CUDA_ERROR_UNKNOWN, 0);
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_alloc(a, 16 * MIB, A, &none));
    MUST_EQ(check_identities(a).reserve, 16 * MIB);
    block = take(a, 8 * MIB, A); /* while A is at work in the old place */
    MUST_EQ(check_identities(a).reserve, 24 * MIB);
    MUST_EQ(all - device_free(), 24 * MIB);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserve, 16 * MIB);
    MUST_EQ(all - device_free(), 16 * MIB);
    give(a, block, A);
    give(a, pin, A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(device_free(), all);
    destroy(a);
}
END_TEST

static CUdeviceptr never_unmapped;

static CUresult unmap_elsewhere(CUdeviceptr at, size_t bytes) {
    return at == never_unmapped ? CUDA_ERROR_UNKNOWN : driver->cuMemUnmap(at, bytes);
}

/* What goes back while it is still mapped where it was before is the device's no sooner than that ends. */
START_TEST(what_was_moved_goes_with_its_alias) {
    struct weir_driver table = *driver;
    weir_options options = plain(KIND_MAPPED, 64 * MIB);
    uint64_t all = device_free();
    void *block, *pin;
    weir_allocator *a;

    table.cuMemUnmap = unmap_elsewhere;
    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    a = make_on(&table, &options);
    block = take(a, 8 * MIB, A);
    pin = take(a, 8 * MIB, A);
    never_unmapped = (uintptr_t)block;
    busy(A, 5 * MS);
    give(a, block, A);
    block = take(a, 16 * MIB, A);
    MUST_EQ(check_identities(a).reserve, 24 * MIB);
    give(a, block, A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserve, 16 * MIB);
    MUST_EQ(all - device_free(), 16 * MIB);
    never_unmapped = 0;
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserve, 8 * MIB);
    MUST_EQ(all - device_free(), 8 * MIB);
    give(a, pin, A);
    destroy(a);
}
END_TEST

/* However many handles move at once that were not completed: each leaves its shadow. */
START_TEST(many_move_unseen) {
    enum { HANDLES = 64 };
    weir_options options = plain(KIND_MAPPED, 0);
    uint64_t all = device_free();
    void *block, *pin;
    weir_allocator *a;

    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    block = take(a, HANDLES * 8 * MIB, A);
    pin = take(a, 8 * MIB, A);
    busy(A, 5 * MS);
    give(a, block, A);
    block = take(a, (HANDLES + 1) * 8 * MIB, A);
    MUST_EQ(check_identities(a).reserve, (HANDLES + 2) * 8 * MIB);
    give(a, block, A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(all - device_free(), 8 * MIB);
    give(a, pin, A);
    destroy(a);
}
END_TEST

/* Of the idle handles those move that are completed, and of these the largest that the request needs whole, then
 * the smallest that it needs a part of: one stays. */
START_TEST(the_best_of_the_idle_moves) {
    static const struct {
        size_t mib[3], wanted;
        int at_work; /* -1: none */
        int stays;
    } cases[] = {{{20, 10, 30}, 34, -1, 0}, {{10, 20, 30}, 34, -1, 1}, {{20, 10, 30}, 40, -1, 0},
                 {{10, 20, 30}, 40, -1, 1}, {{20, 10, 30}, 40, 0, 0},  {{10, 20, 30}, 40, 1, 1},
                 {{30, 20, 10}, 50, -1, 2}, {{30, 10, 20}, 50, -1, 1}};
    weir_options options = plain(KIND_MAPPED, 0);
    weir_allocator *a;
    void *block[3], *pin[4], *large;
    uint64_t before;

    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    give(a, take(a, 1000, B), B);
    OK(weir_preallocate(a, (size_t)reserve(a) + 2 * MIB, NULL));
    pin[3] = take(a, 2 * MIB, A);
    for (int i = 0; i < 3; i++) {
        OK(weir_preallocate(a, (size_t)reserve(a) + cases[_i].mib[i] * MIB, NULL));
        block[i] = take(a, cases[_i].mib[i] * MIB, A);
        OK(weir_preallocate(a, (size_t)reserve(a) + 2 * MIB, NULL));
        pin[i] = take(a, 2 * MIB, A);
    }
    for (int i = 0; i < 3; i++)
        if (i != cases[_i].at_work)
            give(a, block[i], A);
    CU(driver->cuCtxSynchronize());
    if (cases[_i].at_work >= 0) {
        busy(A, 5 * MS);
        give(a, block[cases[_i].at_work], A);
    }
    before = reserve(a);
    large = take(a, cases[_i].wanted * MIB, A);
    MUST_EQ(reserve(a), before);
    MUST(take(a, cases[_i].mib[cases[_i].stays] * MIB, A) == block[cases[_i].stays]);
    give(a, block[cases[_i].stays], A);
    give(a, large, A);
    for (int i = 0; i < 4; i++)
        give(a, pin[i], A);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

/* A handle in which few pieces were not completed moves, behind a wait for those of others; one of many pieces
 * stays. */
START_TEST(a_handle_in_many_pieces_stays) {
    enum { MOST = 8 };
    int pieces = _i ? MOST + 2 : MOST;
    size_t bytes = weir__size_round_down(8 * MIB / (size_t)pieces, 512);
    weir_options options = plain(KIND_MAPPED, 0);
    weir_allocator *a;
    void *block[MOST + 2], *pin, *large;

    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    OK(weir_preallocate(a, 10 * MIB, NULL)); /* 2 MiB of it, of small requests, move to the pin */
    for (int i = 0; i < pieces; i++)
        block[i] = take(a, i > 0 ? bytes : 8 * MIB - (size_t)(pieces - 1) * bytes, A);
    pin = take(a, 8 * MIB, B);
    MUST_EQ(reserve(a), 16 * MIB);
    busy(A, 5 * MS);
    busy(B, 5 * MS);
    for (int i = 0; i < pieces; i++)
        give(a, block[i], i % 2 ? A : B);
    large = take(a, 16 * MIB, A);
    MUST_EQ(reserve(a), _i ? 32 * MIB : 24 * MIB);
    give(a, large, A);
    give(a, pin, B);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

/* What may be in use is not unmapped, nor its pool destroyed, because the device cannot be waited for. */
START_TEST(an_end_that_cannot_wait_is_no_end) {
    static const int kinds[] = {KIND_MAPPED, KIND_POOL, KIND_DIRECT};
    weir_options options = plain(kinds[_i], 0);
    weir_allocator *a;
    void *block;

    options.front = kinds[_i] == KIND_MAPPED ? WEIR_SWITCH_OFF : WEIR_SWITCH_ON;
    a = make(&options);
    block = take(a, 20 * MIB, A);
    busy(A, 50 * MS);
    MUST_EQ(weir__model_use(A, (uintptr_t)block, 20 * MIB, 1, 50 * MS), CUDA_SUCCESS);
    give(a, block, A);
    refuse_waits();
    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    ck_assert_ptr_null(weir__model_fault());
    weir__model_faults_clear();
    give(a, take(a, 20 * MIB, A), A);
    destroy(a);
    ck_assert_ptr_null(weir__model_fault());
}
END_TEST

/* All that the device has left is available, though steps are larger, and what is refused leaves nothing behind
 * in a place where it cannot move. */
START_TEST(the_last_of_the_device_is_enough) {
    weir_options options = plain(KIND_MAPPED, 0);
    weir_allocator *a;
    void *block[3], *none = NULL;
    CUdeviceptr hog;

    options.packing = WEIR_PACKING_COMPACT;
    options.front = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = UINT32_MAX;
    a = make(&options);
    block[0] = take(a, 8 * MIB, A);
    block[1] = take(a, 24 * MIB, A);
    block[2] = take(a, 8 * MIB, A);
    give(a, block[1], A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(stats_of(a).reserve, 16 * MIB);
    busy(A, 50 * MS);
    give(a, block[0], A);
    CU(driver->cuMemAlloc(&hog, device_free() - 14 * MIB));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 30 * MIB, A, &none));
    MUST_EQ(device_free(), 14 * MIB);
    block[1] = take(a, 22 * MIB, A);
    MUST_EQ(device_free(), 0);
    give(a, block[1], A);
    give(a, block[2], A);
    CU(driver->cuMemFree(hog));
    destroy(a);
}
END_TEST

/* A large request's handles hold nothing else, whatever the last one before it has left; so when it was freed, all
 * of them serve the next one, in their place if there is room behind them, else elsewhere. */
START_TEST(large_requests_have_handles_of_their_own) {
    weir_options options = plain(KIND_MAPPED, 0);
    void *pin, *large, *other;
    weir_allocator *a;

    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    pin = take(a, 8 * MIB, A);
    ck_assert_uint_eq(reserve(a), 40 * MIB);
    count_from_here();
    large = take(a, 200 * MIB, A);
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 3);
    ck_assert_uint_eq(reserve(a), 240 * MIB);
    give(a, large, A);
    count_from_here();
    large = take(a, 260 * MIB, A);
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 1);
    MUST_EQ(calls(WEIR_ENTRY_cuMemUnmap), 0);
    ck_assert_uint_eq(reserve(a), 300 * MIB);
    count_from_here();
    other = take(a, 24 * MIB, A); /* the first handle has room */
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 0);
    give(a, large, A);
    large = take(a, 1 * GIB, A);
    MUST_LE(calls(WEIR_ENTRY_cuMemUnmap), 4);
    ck_assert_uint_eq(reserve(a), 40 * MIB + 1 * GIB);
    give(a, large, A);
    give(a, other, A);
    give(a, pin, A);
    destroy(a);
}
END_TEST

/* Once a second stream has memory: what it freed last would hold as much as lies in one handle with it. */
START_TEST(handles_are_smaller_where_several_streams_are) {
    weir_options options = plain(KIND_MAPPED, 0);
    void *large, *block;
    weir_allocator *a;
    uint64_t before;

    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    give(a, take(a, 1000, _i ? B : A), _i ? B : A);
    give(a, take(a, 1000, A), A);
    count_from_here();
    large = take(a, 1536 * MIB, A);
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), _i ? 16 : 8);
    before = reserve(a);
    block = take(a, 20 * MIB, A);
    MUST_EQ(reserve(a), before + (uint64_t)(_i ? 80 : 96) * MIB);
    give(a, block, A);
    give(a, large, A);
    destroy(a);
}
END_TEST

/* Where the limit has no room for handles of its own, it joins what there is. */
START_TEST(near_the_limit_large_requests_join_what_there_is) {
    weir_options options = plain(KIND_MAPPED, 320 * MIB);
    void *pin[3], *large;
    weir_allocator *a;

    options.front = WEIR_SWITCH_OFF;
    a = make(&options);
    for (int i = 0; i < 3; i++)
        pin[i] = take(a, (size_t)(i == 1 ? 100 : 20) * MIB, A);
    MUST_LE(reserve(a), 200 * MIB);
    give(a, pin[1], A);
    large = take(a, 280 * MIB, A);
    MUST_LE(reserve(a), 320 * MIB);
    give(a, large, A);
    give(a, pin[0], A);
    give(a, pin[2], A);
    destroy(a);
}
END_TEST

/* What was preallocated and never used is everybody's, though its first stream is at work and calls no more. */
START_TEST(a_second_stream_has_what_nobody_used) {
    weir_options options = plain(KIND_MAPPED, 0);
    weir_allocator *a;
    void *block, *other;

    options.packing = _i;
    options.front = WEIR_SWITCH_OFF;
    options.prealloc = bytes_amount(512 * MIB);
    a = make(&options);
    block = take(a, 100 * MIB, A);
    busy(A, 50 * MS);
    give(a, block, A);
    count_from_here();
    other = take(a, 300 * MIB, B);
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 0);
    MUST_EQ(stats_of(a).reserve, 512 * MIB);
    give(a, other, B);
    destroy(a);
}
END_TEST

START_TEST(a_pool_without_figures) {
    const struct weir_driver *table = older_driver(WEIR_CAP_POOL_FIGURES | WEIR_CAP_POOL_MAX_SIZE);
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a = make_on(table, &options);
    void *block[10];

    for (int i = 0; i < 10; i++) {
        block[i] = take(a, 5 * MIB, A);
        ck_assert_uint_eq(check_identities(a).requested, (uint64_t)(i + 1) * 5 * MIB);
    }
    ck_assert_uint_eq(reserve(a), 64 * MIB);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, (char *)block[0] + 256, A));
    OK(weir_use(a, block[0], B));
    for (int i = 0; i < 10; i++) {
        give(a, block[i], A);
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block[i], A));
    }
    ck_assert_uint_eq(check_identities(a).requested, 0);
    ck_assert_uint_eq(stats_of(a).requested_peak, 50 * MIB);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_preallocate(a, MIB, NULL));
    OK(weir_trim(a, 0, NULL));
    destroy(a);
}
END_TEST

/* A limit that the driver does not keep is kept by undoing what passed it. */
START_TEST(a_pool_without_maximum) {
    weir_options options = plain(KIND_POOL, 100 * MIB);
    weir_allocator *a = make_on(older_driver(WEIR_CAP_POOL_MAX_SIZE), &options);
    void *block[10], *none = &none;
    int count = 0;

    while (count < 10 && weir_alloc(a, 16 * MIB, A, &block[count]) == WEIR_OK)
        count++;
    ck_assert_int_eq(count, 6);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 16 * MIB, A, &none));
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 97 * MIB, A, &none));
    ck_assert_ptr_eq(none, &none);
    CU(driver->cuStreamSynchronize(A));
    OK(weir_trim(a, 96 * MIB, NULL));
    ck_assert_uint_eq(check_identities(a).reserve, 96 * MIB);
    ck_assert_uint_eq(stats_of(a).requested, 96 * MIB);
    while (count > 0)
        give(a, block[--count], A);
    destroy(a);
    ck_assert_uint_eq(device_free(), 4 * GIB);
}
END_TEST

/* What was undone nobody had, nor has it while the driver does not take it back. */
START_TEST(what_was_undone_is_nobodys) {
    weir_options options = plain(KIND_POOL, 128 * MIB);
    weir_allocator *a = make_on(older_driver(WEIR_CAP_POOL_MAX_SIZE), &options);
    void *block = take(a, 80 * MIB, A), *none = &none;

    give(a, block, A);
    CU(driver->cuCtxSynchronize());
    block = take(a, 60 * MIB, A);
    if (_i)
        weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_INVALID_VALUE, 1);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 80 * MIB, A, &none));
    MUST_EQ(stats_of(a).requested, 60 * MIB);
    MUST_EQ(stats_of(a).requested_peak, 80 * MIB);
    weir__model_faults_clear();
    if (_i) { /* nor can it be waited for */
        refuse_waits();
        MUST_EQ(stats_of(a).requested, 60 * MIB);
        weir__model_faults_clear();
    }
    MUST_EQ(stats_of(a).requested, 60 * MIB);
    MUST_EQ(stats_of(a).requested_peak, 80 * MIB);
    give(a, block, A);
    destroy(a);
}
END_TEST

/* Without ids free memory of several streams may be one piece: a request waits for all of them. */
START_TEST(a_stream_may_go_behind_several) {
    weir_options options = plain(_i ? KIND_MAPPED : KIND_FIXED, 64 * MIB);
    void *first, *second, *other;
    weir_allocator *a;

    options.internal_dependencies = WEIR_SWITCH_ON;
    a = make_on(older_driver(WEIR_CAP_STREAM_ID), &options);
    first = take(a, 24 * MIB, A);
    second = take(a, 24 * MIB, B);
    busy(A, 50 * MS);
    busy(B, 5 * MS);
    give(a, first, A);
    give(a, second, B);
    other = take(a, 48 * MIB, C);
    weir__model_advance(10 * MS);
    MUST_EQ(driver->cuStreamQuery(B), CUDA_SUCCESS);
    MUST_EQ(driver->cuStreamQuery(C), CUDA_ERROR_NOT_READY);
    busy(C, MS); /* writes its block */
    weir__model_advance(45 * MS);
    give(a, other, C);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

/* Without ids nothing moves that was not completed: what it would be, whose stream is not known, could be had
 * by nobody. */
START_TEST(without_ids_nothing_moves_unseen) {
    weir_options options = plain(KIND_MAPPED, 64 * MIB);
    void *block[4], *other;
    weir_allocator *a;

    options.packing = WEIR_PACKING_COMPACT;
    a = make_on(older_driver(WEIR_CAP_STREAM_ID), &options);
    for (int i = 0; i < 4; i++)
        block[i] = take(a, 8 * MIB, A);
    busy(A, 5 * MS);
    give(a, block[0], A);
    give(a, block[2], A);
    other = take(a, 32 * MIB, B);
    MUST_EQ(driver->cuStreamQuery(B), CUDA_SUCCESS);
    MUST_EQ(check_identities(a).reserve, 64 * MIB);
    give(a, other, B);
    give(a, block[1], A);
    give(a, block[3], A);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

/* An event that cannot be recorded at a free without ids must not be made good by one on another
 * stream later. */
START_TEST(without_ids_a_lost_event_is_not_replaced) {
    weir_options options = plain(KIND_FIXED, 256 * MIB);
    weir_allocator *a = make_on(older_driver(WEIR_CAP_STREAM_ID), &options);
    void *block = take(a, 120 * MIB, A), *other = take(a, 1000, B), *none;

    busy(A, 50 * MS);
    weir__model_fail(WEIR_ENTRY_cuEventRecord, 1, CUDA_ERROR_UNKNOWN, 0);
    give(a, block, A);
    ck_assert_uint_eq(check_identities(a).in_use, 1024);
    give(a, other, B);
    for (int i = 0; i < 3; i++) {
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 140 * MIB, B, &none));
        give(a, take(a, 1000, B), B);
    }
    weir__model_advance(50 * MS);
    OK(weir_trim(a, 0, NULL));
    give(a, take(a, 140 * MIB, B), B);
    destroy(a);
}
END_TEST

/* ---- captures -------------------------------------------------------------------------------- */

static weir_stream captured;
static CUresult capture_result;

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
    CUresult result = driver->cuStreamIsCapturing(stream, status);

    if (result == CUDA_SUCCESS && captured == stream) {
        *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        result = capture_result;
    }
    return result;
}

static CUresult record_elsewhere(CUevent event, CUstream stream) {
    MUST(!captured || stream != captured);
    return driver->cuEventRecord(event, stream);
}

/* As a driver says it while a stream is captured, and as it says it of the legacy stream meanwhile:
 * no request is served there, nothing is recorded there or asked, and the capture stays whole. */
START_TEST(a_captured_stream) {
    static const CUresult results[] = {CUDA_SUCCESS, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT};
    int kind = _i / 2;
    weir_options options = plain(kind, 256 * MIB);
    void *block, *used, *none = &none;
    weir_allocator *a;

    hasty = *driver;
    hasty.cuStreamIsCapturing = is_capturing;
    hasty.cuEventRecord = record_elsewhere;
    capture_result = results[_i % 2];
    captured = NULL;
    a = make_on(&hasty, &options);
    give(a, take(a, 1000, B), B);
    block = take(a, MIB, A);
    used = take(a, MIB, B);
    OK(weir_use(a, used, A));
    captured = A;
    count_from_here();
    /* A driver makes a node of it, but on the legacy stream. */
    if (kind == KIND_DIRECT || (kind != KIND_POOL && capture_result != CUDA_SUCCESS)) {
        EXPECT(WEIR_E_CAPTURE, weir_alloc(a, 1000, A, &none));
        ck_assert_ptr_eq(none, &none);
    }
    if (kind != KIND_DIRECT) {
        EXPECT(WEIR_E_CAPTURE, weir_free(a, used, B));
        OK(weir_use(a, block, B));
        EXPECT(WEIR_E_CAPTURE, weir_free(a, block, A));
        ck_assert_uint_eq(check_identities(a).blocks, 2);
    }
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuStreamWaitEvent), 0);
    /* Frees without uses are taken, and make no event, however many there are. */
    for (int i = 0; i < 40 && kind != KIND_POOL; i++) {
        captured = NULL;
        none = take(a, 1000, A);
        captured = A;
        give(a, none, A);
    }
    captured = NULL;
    give(a, block, A);
    give(a, used, B);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

static CUgraphExec launch_captured(CUstream stream, CUgraph *graph) {
    CUgraphExec exec;

    CU(driver->cuStreamEndCapture(stream, graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, *graph,
                                           CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    CU(driver->cuGraphLaunch(exec, stream));
    return exec;
}

static void drop_graph(CUgraphExec exec, CUgraph graph) {
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuCtxSynchronize());
    CU(driver->cuDeviceGraphMemTrim(0));
}

/* The driver is asked about what a graph was given, and about nothing else. */
static void expect_foreign(weir_allocator *a, CUdeviceptr other, void *freed) {
    int host;

    count_from_here();
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, (void *)(uintptr_t)other, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, &host, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, freed, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_use(a, (void *)(uintptr_t)other, B));
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemFreeAsync), 0);
}

/* An arena's memory no graph could own, so that the driver has the node. */
START_TEST(a_graph_has_memory_of_its_own) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *freed = take(a, MIB, A), *live = take(a, MIB, A), *passing, *left, *used;
    weir_statistics before;
    CUdeviceptr other;
    CUgraphExec exec;
    CUgraph graph;

    CU(driver->cuMemAlloc(&other, MIB));
    give(a, freed, A);
    expect_foreign(a, other, freed);
    before = stats_of(a);
    weir__set_driver_result(CUDA_ERROR_UNKNOWN);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    passing = take(a, 3 * MIB, A);
    left = take(a, 100 * MIB, A); /* under no limit of the arena's */
    used = take(a, MIB, A);
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    CU(driver->cuMemsetD8Async((uintptr_t)passing, 1, 3 * MIB, A));
    give(a, passing, A);
    exec = launch_captured(A, &graph);
    MUST_EQ(stats_of(a).in_use, before.in_use);
    MUST_EQ(stats_of(a).reserve, before.reserve);
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, left, NULL, NULL));
    expect_foreign(a, other, freed);
    CU(driver->cuGraphLaunch(exec, A));
    give(a, left, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, left, A));
    /* Behind all that use it, none of which waits for another. */
    OK(weir_use(a, used, B));
    CU(weir__model_use(B, (uintptr_t)used, MIB, 1, 5 * MS));
    give(a, used, A);
    CU(driver->cuStreamSynchronize(A));
    MUST_LE(weir__model_now_ns(), 5 * MS);
    give(a, live, A);
    MUST_EQ(check_identities(a).blocks, 0);
    drop_graph(exec, graph);
    CU(driver->cuMemFree(other));
    destroy(a);
    ck_assert_msg(!weir__model_fault(), "%s", weir__model_fault());
}
END_TEST

/* What an aborted capture was given never was there. */
START_TEST(a_graph_that_never_was) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block, *none = NULL;
    CUgraph graph = NULL;

    give(a, take(a, MIB, A), A);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    block = take(a, MIB, A);
    MUST(driver->cuStreamQuery(A) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT(WEIR_E_CAPTURE, weir_alloc(a, MIB, A, &none));
    MUST(driver->cuStreamEndCapture(A, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    give(a, take(a, MIB, A), A);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

static CUresult no_pools(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    (void)pool, (void)properties;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Without pools, and before 11.4: the request is refused, and harms no capture.  So it is where the driver is to serve
 * it, in the place of whose pools the arena stands. */
START_TEST(where_graphs_have_no_memory) {
    weir_options options = plain(_i / 3, 64 * MIB);
    struct weir_driver table = *older_driver(_i % 3 == 1 ? WEIR_CAP_GRAPH : 0);
    CUstreamCaptureStatus status;
    weir_allocator *a;
    void *none = NULL;
    CUgraph graph;

    if (_i % 3 == 0)
        table.cuMemPoolCreate = no_pools;
    a = make_on(&table, &options);
    if (_i % 3 == 2)
        weir__drop_in_begin(a, NULL);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(WEIR_E_CAPTURE, weir_alloc(a, MIB, A, &none));
    MUST(!none);
    CU(driver->cuStreamIsCapturing(A, &status));
    MUST_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphDestroy(graph));
    destroy(a);
}
END_TEST

static CUdeviceptr place_of_nodes;

static CUresult node_at(CUdeviceptr *block, size_t bytes, CUmemoryPool pool, CUstream stream) {
    (void)bytes, (void)pool, (void)stream;
    *block = place_of_nodes;
    return CUDA_SUCCESS;
}

/* A region may come to lie where a graph's memory was: then it is the arena's alone. */
START_TEST(where_a_graph_had_memory_once) {
    weir_options options = plain(_i, 64 * MIB);
    void *block, *none = NULL;
    weir_allocator *a;

    hasty = *driver;
    hasty.cuStreamIsCapturing = is_capturing;
    hasty.cuMemAllocFromPoolAsync = node_at;
    capture_result = CUDA_SUCCESS;
    a = make_on(&hasty, &options);
    block = take(a, MIB, A);
    place_of_nodes = (uintptr_t)block;
    captured = B;
    MUST(take(a, MIB, B) == block);
    captured = NULL;
    count_from_here();
    give(a, block, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_use(a, block, B));
    /* The driver has none of all that was counted, nor of what it refuses. */
    hasty.cuMemAllocFromPoolAsync = driver->cuMemAllocFromPoolAsync;
    weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_NOT_PERMITTED, 0);
    captured = B;
    EXPECT(WEIR_E_DRIVER, weir_alloc(a, MIB, B, &none));
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_NOT_PERMITTED);
    captured = NULL;
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemFreeAsync), 0);
    abandon(a);
}
END_TEST

/* ---- the rule, under random work ------------------------------------------------------------- */

enum { STREAMS = 5, MOST = 120, MOST_FREED = 4000 };

/* A point on a stream: its place in the stream's order, and a time before which it is not over. */
struct point {
    int stream;
    uint64_t sequence, end_ns;
};

struct freed {
    uintptr_t from, to;
    int count;
    struct point point[STREAMS]; /* the free and the uses: all must lie behind the next owner */
};

struct world {
    weir_allocator *a;
    CUstream stream[STREAMS];
    uint64_t sequence[STREAMS], end_ns[STREAMS];
    uint64_t knows[STREAMS][STREAMS]; /* [s][t]: s is ordered behind t up to here */
    struct {
        uintptr_t at;
        size_t bytes;
        int stream;
    } held[MOST];
    int count;
    struct freed freed[MOST_FREED];
    int freed_count;
    uint64_t random;
};

static uint64_t dice(struct world *w, uint64_t sides) {
    return next_random(&w->random) % sides;
}

static void work(struct world *w, int s) {
    uint64_t ns = dice(w, 20) == 0 ? 3 * MS : dice(w, 200000), now = weir__model_now_ns();

    busy(w->stream[s], ns);
    w->sequence[s]++;
    w->end_ns[s] = (w->end_ns[s] > now ? w->end_ns[s] : now) + ns;
}

/* s waits for all of t so far. */
static void follow(struct world *w, int s, int t) {
    CUevent event;

    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventRecord(event, w->stream[t]));
    CU(driver->cuStreamWaitEvent(w->stream[s], event, 0));
    CU(driver->cuEventDestroy(event));
    w->knows[t][t] = w->sequence[t];
    for (int i = 0; i < STREAMS; i++)
        if (w->knows[s][i] < w->knows[t][i])
            w->knows[s][i] = w->knows[t][i];
    if (w->end_ns[s] < w->end_ns[t])
        w->end_ns[s] = w->end_ns[t];
    w->sequence[s]++;
}

static int is_behind(const struct world *w, int s, const struct point *p) {
    return p->stream == s || w->knows[s][p->stream] >= p->sequence ||
           p->end_ns <= weir__model_now_ns();
}

static void expect_nobody_there(struct world *w, uintptr_t from, uintptr_t to, int s) {
    for (int i = 0; i < w->count; i++)
        if (from < w->held[i].at + w->held[i].bytes && w->held[i].at < to)
            ck_abort_msg("a live block is handed out again");
    for (int i = 0; i < w->freed_count; i++) {
        struct freed *f = &w->freed[i];
        uint64_t last = 0;

        for (int k = 0; k < f->count; k++) {
            if (from < f->to && f->from < to && !is_behind(w, s, &f->point[k]))
                ck_abort_msg("stream %d gets memory that stream %d still uses", s,
                             f->point[k].stream);
            if (last < f->point[k].end_ns)
                last = f->point[k].end_ns;
        }
        if (last <= weir__model_now_ns())
            *f = w->freed[--w->freed_count], i--;
    }
}

static void take_random(struct world *w) {
    size_t bytes = random_size(&w->random, 4 * MIB);
    int s = (int)dice(w, STREAMS);
    void *block;

    if (weir_alloc(w->a, bytes, w->stream[s], &block) != WEIR_OK)
        return; /* a small fixed arena, and others busy */
    expect_nobody_there(w, (uintptr_t)block, (uintptr_t)block + bytes, s);
    w->held[w->count].at = (uintptr_t)block;
    w->held[w->count].bytes = bytes;
    w->held[w->count++].stream = s;
    work(w, s);
}

static void give_random(struct world *w) {
    int which = (int)dice(w, (uint64_t)w->count), s = w->held[which].stream;
    struct freed *f = &w->freed[w->freed_count];
    void *block = (void *)w->held[which].at;
    int used[STREAMS] = {0}, on = s;

    MUST(w->freed_count < MOST_FREED);
    for (uint64_t uses = dice(w, 6); uses > 3; uses--) {
        int t = (int)dice(w, STREAMS);

        follow(w, t, s);
        OK(weir_use(w->a, block, w->stream[t]));
        used[t] = 1;
        work(w, t);
    }
    if (dice(w, 6) == 0) {
        on = (int)dice(w, STREAMS);
        follow(w, on, s);
    }
    if (dice(w, 2))
        work(w, on);
    *f = (struct freed){.from = (uintptr_t)block, .to = (uintptr_t)block + w->held[which].bytes};
    used[on] = 1;
    for (int t = 0; t < STREAMS; t++)
        if (used[t])
            f->point[f->count++] = (struct point){t, w->sequence[t], w->end_ns[t]};
    w->freed_count++;
    w->held[which] = w->held[--w->count];
    give(w->a, block, w->stream[on]);
}

static void live_in(struct world *w, int steps) {
    for (int i = 0; i < steps; i++) {
        uint64_t what = dice(w, 1000);

        if (w->count == 0 || (w->count < MOST && what < 550))
            take_random(w);
        else if (what < 970)
            give_random(w);
        else if (what < 980)
            weir__model_advance(dice(w, 20 * MS));
        else if (what < 990)
            CU(driver->cuStreamSynchronize(w->stream[dice(w, STREAMS)]));
        else if (what < 996)
            OK(weir_trim(w->a, dice(w, 32) * MIB, NULL));
        else {
            int s = (int)dice(w, STREAMS), t = (int)dice(w, STREAMS);

            follow(w, s, t);
        }
        check_identities(w->a);
    }
}

static const struct {
    int kind;
    size_t limit;
    unsigned without;
} worlds[] = {
    {KIND_POOL, 0, 0},
    {KIND_POOL, 64 * MIB, 0},
    {KIND_POOL, 0, WEIR_CAP_POOL_FIGURES | WEIR_CAP_POOL_MAX_SIZE | WEIR_CAP_STREAM_ID},
    {KIND_POOL, 64 * MIB, WEIR_CAP_POOL_MAX_SIZE},
    {KIND_FIXED, 32 * MIB, 0},
    {KIND_FIXED, 512 * MIB, 0},
    {KIND_FIXED, 64 * MIB, WEIR_CAP_STREAM_ID},
    {KIND_REGIONS, 0, 0},
    {KIND_REGIONS, 64 * MIB, 0},
    {KIND_REGIONS, 0, WEIR_CAP_STREAM_ID},
    {KIND_DIRECT, 0, 0},
};
enum { WORLDS = sizeof worlds / sizeof worlds[0], SEEDS = 3 };

START_TEST(no_two_owners_without_an_order) {
    struct world *w = calloc(1, sizeof *w);
    weir_options options = plain(worlds[_i % WORLDS].kind, worlds[_i % WORLDS].limit);

    w->random = (uint64_t)(_i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    options.recovery_timeout_ms = 5;
    w->a = make_on(older_driver(worlds[_i % WORLDS].without), &options);
    for (int s = 0; s < STREAMS; s++)
        CU(driver->cuStreamCreate(&w->stream[s], CU_STREAM_NON_BLOCKING));
    live_in(w, 20000);
    while (w->count > 0)
        give_random(w);
    CU(driver->cuCtxSynchronize());
    MUST_EQ(check_identities(w->a).in_use, 0);
    destroy(w->a);
    MUST_EQ(device_free(), 4 * GIB);
    free(w);
}
END_TEST

/* ---- the suite ------------------------------------------------------------------------------- */

#define ARENAS KIND_FIXED, KIND_MAPPED + 1
#define POOL_AND_ARENAS KIND_POOL, KIND_MAPPED + 1
#define EVERY_KIND 0, KIND_COUNT
#define COUNT_OF(array) (int)(sizeof(array) / sizeof((array)[0]))
#define LOOP(tests, test, ...) tcase_add_loop_test(tests, test, __VA_ARGS__)

/* ---- what a review found --------------------------------------------------------------------- */

static struct {
    weir_allocator *a;
    void *block;
    weir_stream stream;
    weir_status status;
} elsewhere;

static void *free_elsewhere(void *unused) {
    elsewhere.status = weir_free(elsewhere.a, elsewhere.block, elsewhere.stream);
    return unused;
}

static weir_status freed_on_another_thread(weir_allocator *a, void *block, weir_stream stream) {
    pthread_t thread;

    elsewhere.a = a;
    elsewhere.block = block;
    elsewhere.stream = stream;
    ck_assert_int_eq(pthread_create(&thread, NULL, free_elsewhere, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    return elsewhere.status;
}

/* A per-thread default stream noted here means another stream to the thread that frees: recording
 * there would order the reuse behind the wrong one. */
START_TEST(a_noted_default_stream_is_the_one_it_was) {
    weir_stream per_thread = (weir_stream)WEIR_STREAM_PER_THREAD_VALUE;
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block = take(a, MIB, A), *other;

    OK(weir_use(a, block, per_thread));
    busy((CUstream)per_thread, 1000000000);
    ck_assert_int_eq(freed_on_another_thread(a, block, A), WEIR_E_STREAM);
    /* That answer dropped the note; it is noted again, and freed where it means the same. */
    OK(weir_use(a, block, per_thread));
    give(a, block, A);
    other = take(a, MIB, B);
    ck_assert_ptr_ne(other, block);
    give(a, other, B);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

static void *use_elsewhere(void *unused) {
    (void)unused;
    elsewhere.status = weir_use(elsewhere.a, elsewhere.block, elsewhere.stream);
    return NULL;
}

/* Two threads note a stream of the same handle: each its own. */
START_TEST(default_streams_of_two_threads_are_two) {
    weir_stream per_thread = (weir_stream)WEIR_STREAM_PER_THREAD_VALUE;
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block = take(a, MIB, A);
    pthread_t thread;

    OK(weir_use(a, block, per_thread));
    elsewhere.a = a;
    elsewhere.block = block;
    elsewhere.stream = per_thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, use_elsewhere, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    OK(elsewhere.status);
    EXPECT(WEIR_E_STREAM, weir_free(a, block, A)); /* of the other nothing is known here */
    give(a, block, A);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

/* The note of a stream that the driver does not know is dropped with the answer, so that the block
 * can be freed after all. */
START_TEST(a_refused_note_does_not_hold_the_block_for_ever) {
    weir_options options = plain(_i, 64 * MIB);
    weir_allocator *a = make(&options);
    void *block = take(a, MIB, A);
    CUstream gone;

    CU(driver->cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    OK(weir_use(a, block, gone));
    CU(driver->cuStreamDestroy(gone));
    EXPECT(WEIR_E_STREAM, weir_free(a, block, A));
    give(a, block, A);
    destroy(a);
}
END_TEST

/* Before 12.2 the driver knows no limit: frees that pend must not let the next request keep what the
 * last one was refused. */
START_TEST(an_old_driver_is_held_to_the_limit) {
    const struct weir_driver *table =
        older_driver(_i ? WEIR_CAP_POOL_FIGURES | WEIR_CAP_POOL_MAX_SIZE : WEIR_CAP_POOL_MAX_SIZE);
    weir_options options = plain(KIND_POOL, 128 * MIB);
    weir_allocator *a = make_on(table, &options);
    void *block[32], *refused = NULL;
    size_t count = 0;

    busy(A, 1000000000);
    for (int i = 0; i < 32; i++)
        if (weir_alloc(a, 20 * MIB, A, &refused) == WEIR_OK)
            block[count++] = refused;
    ck_assert_uint_le(count, 6);
    ck_assert_uint_le(stats_of(a).in_use, 128 * MIB);
    while (count > 0)
        give(a, block[--count], A);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

/* Threads may free a pool's block by the driver's own call; destroy asks the pool, not the books. */
START_TEST(a_block_freed_by_the_driver_is_no_live_block) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a;
    void *block;

    for (int in_order = 0; in_order < 2; in_order++) {
        a = make(&options);
        block = take(a, MIB, A);
        EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
        if (in_order) {
            CU(driver->cuMemFreeAsync((CUdeviceptr)(uintptr_t)block, A));
        } else { /* it goes on counting as used: a trim has to tell */
            CU(driver->cuMemFree((CUdeviceptr)(uintptr_t)block));
            weir__model_fail(WEIR_ENTRY_cuMemPoolTrimTo, 1, CUDA_ERROR_UNKNOWN, 0);
            EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
        }
        destroy(a);
    }
}
END_TEST

START_TEST(what_is_preallocated_later_is_kept_too) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a;
    size_t got = 0;

    options.release_threshold = bytes_amount(0);
    a = make(&options);
    OK(weir_preallocate(a, 256 * MIB, &got));
    ck_assert_uint_ge(got, 256 * MIB);
    CU(driver->cuCtxSynchronize());
    ck_assert_uint_ge(reserve(a), 256 * MIB);
    weir__model_fail(WEIR_ENTRY_cuMemPoolSetAttribute, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, 512 * MIB, NULL)); /* it is not kept */
    weir__model_faults_clear();
    OK(weir_preallocate(a, 512 * MIB, NULL));
    CU(driver->cuCtxSynchronize());
    MUST_LE(512 * MIB, reserve(a));
    destroy(a);
}
END_TEST

/* Of a block that others still use nothing is there to be noted, or found. */
START_TEST(what_is_pending_is_no_block) {
    weir_options options = plain(_i, 256 * MIB);
    weir_allocator *a;
    char *block;

    a = make(&options);
    block = take(a, 3 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 5 * MS);
    give(a, block, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_use(a, block, C));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, block + MIB, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block + MIB, A));
    CU(driver->cuStreamEndCapture(A, &(CUgraph){NULL}));
    CU(driver->cuCtxSynchronize());
    give(a, take(a, 3 * MIB, A), A);
    destroy(a);
}
END_TEST

START_TEST(what_a_policy_added_goes_at_a_trim) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a;

    options.growth = WEIR_GROWTH_STEP;
    options.growth_step = 512 * MIB;
    a = make(&options);
    give(a, take(a, MIB, A), A);
    MUST_EQ(reserve(a), 512 * MIB);
    CU(driver->cuStreamSynchronize(A)); /* and for nothing else */
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(reserve(a), 0);
    destroy(a);
}
END_TEST

START_TEST(probe_blocks_are_nobodys) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a;

    options.prealloc = bytes_amount(256 * MIB);
    options.growth = WEIR_GROWTH_STEP;
    options.growth_step = 512 * MIB;
    a = make(&options);
    ck_assert_uint_eq(stats_of(a).requested_peak, 0);
    give(a, take(a, 300 * MIB, A), A);
    ck_assert_uint_eq(stats_of(a).requested_peak, 300 * MIB);
    destroy(a);
}
END_TEST

/* Also where the driver does not begin its peak again after a step, or takes no probe block back: the next
 * step must not take them for anybody's either. */
START_TEST(probe_blocks_that_stay_in_the_drivers_peak) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a = make(&options);

    give(a, take(a, 20 * MIB, A), A);
    CU(driver->cuCtxSynchronize());
    weir__model_fail(_i ? WEIR_ENTRY_cuMemFreeAsync : WEIR_ENTRY_cuMemPoolSetAttribute, 1,
                     CUDA_ERROR_INVALID_VALUE, 1);
    OK(weir_preallocate(a, 256 * MIB, NULL));
    MUST_EQ(stats_of(a).requested_peak, 20 * MIB);
    OK(weir_preallocate(a, 512 * MIB, NULL));
    MUST_EQ(stats_of(a).requested_peak, 20 * MIB);
    weir__model_faults_clear();
    MUST_EQ(stats_of(a).requested_peak, 20 * MIB);
    CU(driver->cuCtxSynchronize());
    give(a, take(a, 30 * MIB, A), A); /* and the driver is heard again */
    MUST_EQ(stats_of(a).requested_peak, 30 * MIB);
    destroy(a);
}
END_TEST

/* A stream that has settled ends with much freed, and the driver has refused it an event: that is waited for before
 * the reserved memory grows, unless nothing may be waited for, or cannot. */
static void strand(int kind, int patient, int fails) {
    weir_options options = plain(kind, 0);
    void *pin, *block[2], *again;
    weir_allocator *a;
    CUstream stream;
    uint64_t before;

    options.growth = WEIR_GROWTH_EXACT;
    options.recovery_timeout_ms = patient ? 20 : UINT32_MAX;
    a = make(&options);
    CU(driver->cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    pin = take(a, 1000, A);
    block[0] = take(a, 40 * MIB, stream);
    block[1] = take(a, 40 * MIB, stream);
    for (int i = 0; i < 1500; i++) {
        give(a, take(a, 1000, stream), stream);
        give(a, take(a, 1000, A), A);
    }
    weir__model_fail(WEIR_ENTRY_cuEventRecord, 1, CUDA_ERROR_INVALID_VALUE, 1);
    give(a, block[0], stream);
    give(a, block[1], stream);
    weir__model_faults_clear();
    CU(driver->cuStreamDestroy(stream));
    for (int i = 0; i < 600; i++)
        give(a, take(a, 1000, A), A);
    before = reserve(a);
    if (fails)
        weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_INVALID_VALUE, 0);
    again = take(a, 40 * MIB, A);
    MUST_EQ(reserve(a) == before, patient && !fails);
    MUST_EQ(weir__model_faults_met(NULL), (uint64_t)fails);
    give(a, again, A);
    give(a, pin, A);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}

START_TEST(what_is_stranded_is_waited_for_before_growth) {
    strand(_i, 1, 0);
}
END_TEST

START_TEST(what_is_stranded_stays_where_nothing_waits) {
    strand(_i, 0, 0);
    strand(_i, 1, 1);
}
END_TEST

/* A stream per request, as servers do: what it frees before it ends comes back to the others. */
START_TEST(streams_that_end_strand_nothing) {
    weir_options options = plain(KIND_FIXED, 64 * MIB);
    weir_allocator *a = make(&options);
    void *pin = take(a, MIB, A);

    for (int i = 0; i < 300; i++) {
        CUstream stream;

        CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        give(a, take(a, 4 * MIB, stream), stream);
        CU(driver->cuStreamSynchronize(stream));
        CU(driver->cuStreamDestroy(stream));
    }
    give(a, pin, A);
    destroy(a);
}
END_TEST

/* Also what a stream freed past its youth, and whatever else no event covers: the trim waits. */
START_TEST(a_trim_frees_what_no_event_covers) {
    weir_options options = plain(KIND_FIXED, 64 * MIB);
    weir_allocator *a = make(&options);
    void *pin = take(a, MIB, A), *block[20];
    CUstream stream;

    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 40; i++)
        give(a, take(a, 1000, stream), stream);
    for (int i = 0; i < 12; i++)
        block[i] = take(a, 5 * MIB, stream);
    for (int i = 0; i < 12; i++)
        give(a, block[i], stream);
    CU(driver->cuStreamDestroy(stream));
    OK(weir_trim(a, 0, NULL));
    give(a, take(a, 60 * MIB, B), B);
    give(a, pin, A);
    destroy(a);
}
END_TEST

/* The clock is not read any more then; the step is seen all the same, and charged at the rate of the
 * last one that was timed. */
START_TEST(growth_after_a_long_quiet_time) {
    weir_options options = plain(KIND_POOL, 0);
    weir_allocator *a = make(&options);
    weir_statistics first, later;
    void *block;

    give(a, take(a, 64 * MIB, A), A);
    first = stats_of(a);
    for (int i = 0; i < 5000; i++)
        give(a, take(a, MIB, A), A);
    ck_assert_uint_eq(stats_of(a).stall_ns, first.stall_ns);
    block = take(a, 192 * MIB, A);
    later = stats_of(a);
    ck_assert_uint_eq(later.growths, first.growths + 1);
    ck_assert_uint_eq(later.growth_allocs, first.growth_allocs + 1);
    ck_assert_uint_eq(later.growth_bytes, 192 * MIB);
    ck_assert_uint_eq(later.stall_ns - first.stall_ns, 4 * (first.stall_ns / 2));
    give(a, block, A);
    destroy(a);
}
END_TEST

/* Frees with uses are settled as they go, not only when a request does not fit. */
START_TEST(pending_frees_do_not_pile_up) {
    weir_options options = plain(KIND_FIXED, 256 * MIB);
    weir_allocator *a = make(&options);

    for (int i = 0; i < 2000; i++) {
        void *block = take(a, MIB / 2, A);

        OK(weir_use(a, block, B));
        give(a, block, A);
    }
    ck_assert_uint_lt(stats_of(a).extent, 8 * MIB);
    destroy(a);
}
END_TEST

START_TEST(waiting_is_counted_once) {
    weir_options options = plain(KIND_FIXED, 64 * MIB);
    weir_allocator *a;
    uint64_t before, stall;
    void *block;

    options.recovery_timeout_ms = 1000;
    a = make(&options);
    give(a, take(a, 1000, B), B);
    block = take(a, 60 * MIB, A);
    busy(A, 50000000);
    give(a, block, A);
    stall = stats_of(a).stall_ns;
    before = weir__model_now_ns();
    block = take(a, 60 * MIB, B);
    ck_assert_uint_ge(stats_of(a).stall_ns - stall, 40000000);
    ck_assert_uint_le(stats_of(a).stall_ns - stall, weir__model_now_ns() - before);
    give(a, block, B);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

START_TEST(events_and_latencies_know_a_fork) {
    weir_options options = plain(KIND_POOL, 0);
    weir_latency latency = {.size = sizeof latency};
    weir_allocator *a;
    size_t count;
    int status;
    pid_t child;

    options.latency = WEIR_SWITCH_ON;
    a = make(&options);
    child = fork();
    if (child == 0)
        _exit(weir_events(a, 0, NULL, sizeof(weir_event), 0, &count) != WEIR_E_FORKED ||
              weir_latencies(a, 0, &latency) != WEIR_E_FORKED);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    destroy(a);
}
END_TEST

static void *grow_beside(void *unused) {
    void *block = take(elsewhere.a, 40 * MIB, B);

    give(elsewhere.a, block, B);
    return unused;
}

/* A probe block, while which another thread's request grows the pool. */
static CUresult probe_beside(CUdeviceptr *block, size_t bytes, CUmemoryPool pool, CUstream stream) {
    CUresult result = driver->cuMemAllocFromPoolAsync(block, bytes, pool, stream);
    pthread_t thread;

    if (stream != A && stream != B) {
        hasty.cuMemAllocFromPoolAsync = driver->cuMemAllocFromPoolAsync; /* once */
        ck_assert_int_eq(pthread_create(&thread, NULL, grow_beside, NULL), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
    }
    return result;
}

static void *take_beside(void *block) {
    *(void **)block = take(elsewhere.a, MIB, B);
    return NULL;
}

static void *taken_beside;

/* A request that is refused, and before that is known, a request of another thread. */
static CUresult refuse_beside(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                              CUstream stream) {
    CUresult result = driver->cuMemAllocFromPoolAsync(block, bytes, pool, stream);
    pthread_t thread;

    if (result == CUDA_ERROR_OUT_OF_MEMORY && stream == A && !taken_beside) {
        ck_assert_int_eq(pthread_create(&thread, NULL, take_beside, &taken_beside), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
    }
    return result;
}

/* What the driver took for a request that it refused goes back though another one has seen it. */
START_TEST(what_was_refused_is_nobodys_growth) {
    weir_options options = plain(KIND_POOL, GIB);
    void *kept, *block = NULL;
    uint64_t idle;

    options.front = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = UINT32_MAX;
    hasty = *driver;
    hasty.cuMemAllocFromPoolAsync = refuse_beside;
    elsewhere.a = make_on(&hasty, &options);
    kept = take(elsewhere.a, 600 * MIB, A);
    idle = reserve(elsewhere.a);
    EXPECT(WEIR_E_LIMIT, weir_alloc(elsewhere.a, 600 * MIB, A, &block));
    MUST(taken_beside != NULL);
    MUST_LE(reserve(elsewhere.a), idle + 32 * MIB);
    give(elsewhere.a, taken_beside, B);
    give(elsewhere.a, kept, A);
    destroy(elsewhere.a);
}
END_TEST

/* Nor does one that was served at last, after a try that the driver refused, count for one that is refused later. */
START_TEST(a_later_failure_keeps_what_was_preallocated) {
    weir_options options = plain(KIND_POOL, GIB);
    void *block, *kept, *none = NULL;
    weir_allocator *a;

    options.front = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = 1000;
    a = make(&options);
    block = take(a, 400 * MIB, A);
    busy(A, 5 * MS);
    give(a, block, A);
    give(a, take(a, 800 * MIB, B), B);
    CU(driver->cuCtxSynchronize());
    MUST_LE(1, stats_of(a).retries);
    OK(weir_preallocate(a, GIB, NULL));
    kept = take(a, 300 * MIB, A);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 900 * MIB, A, &none));
    ck_assert_uint_eq(reserve(a), GIB);
    give(a, kept, A);
    destroy(a);
}
END_TEST

/* The one that finds the other growing does not wait for it, and its growth is in the other's account;
 * with a finite release threshold, too. */
START_TEST(two_threads_grow_at_once) {
    weir_options options = plain(KIND_POOL, 0);
    weir_statistics s;
    void *block;

    options.growth = WEIR_GROWTH_STEP;
    options.growth_step = 96 * MIB;
    if (_i)
        options.release_threshold = bytes_amount(GIB);
    hasty = *driver;
    hasty.cuMemAllocFromPoolAsync = probe_beside;
    elsewhere.a = make_on(&hasty, &options);
    block = take(elsewhere.a, MIB, A);
    s = check_identities(elsewhere.a);
    ck_assert_uint_eq(s.growth_allocs, 2);
    ck_assert_uint_eq(s.growth_bytes, s.reserve);
    ck_assert_uint_ge(s.reserve, 96 * MIB);
    give(elsewhere.a, block, A);
    destroy(elsewhere.a);
}
END_TEST

static TCase *add_case(Suite *suite, const char *name, void (*fixture)(void)) {
    return suite_add_case(suite, name, 120, fixture, NULL);
}

static void add_order(TCase *tests) {
    tcase_add_test(tests, a_hit_of_the_pool_costs_one_call_and_one_question);
    LOOP(tests, a_hit_of_the_arena_costs_no_memory_call, ARENAS);
    tcase_add_test(tests, a_block_of_the_direct_engine_is_one_call);
    LOOP(tests, one_stream_never_records, ARENAS);
    tcase_add_test(tests, freed_on_a_busy_stream);
    LOOP(tests, a_stream_may_go_behind_another, KIND_FIXED, KIND_MAPPED + 1);
    tcase_add_loop_test(tests, what_another_left_stays_there_for_it, 0, 2);
    tcase_add_test(tests, a_dry_stream_makes_the_owner_record_once);
    tcase_add_test(tests, events_are_recycled);
    tcase_add_test(tests, a_recycled_handle_is_another_stream);
    tcase_add_test(tests, a_second_stream_finds_the_unused_space);
    LOOP(tests, a_noted_use_holds_the_block, POOL_AND_ARENAS);
    LOOP(tests, the_free_is_the_point_in_order, POOL_AND_ARENAS);
    tcase_add_test(tests, the_direct_engine_waits_for_uses);
    tcase_add_test(tests, stale_notes_are_dropped);
    LOOP(tests, notes_do_not_pile_up, POOL_AND_ARENAS);
    LOOP(tests, notes_survive_a_failed_free, POOL_AND_ARENAS);
    tcase_add_test(tests, notes_of_the_next_owner_stay);
    tcase_add_test(tests, notes_do_not_outlive_the_allocator);
}

static void add_growth(TCase *tests) {
    LOOP(tests, pool_grows_by_its_policy, 0, COUNT_OF(pool_cases));
    LOOP(tests, arena_grows_by_its_policy, 0, COUNT_OF(arena_cases));
    tcase_add_test(tests, bfc_regions_double);
    LOOP(tests, bfc_regions_double_from_what_is_left, KIND_POOL, KIND_POOL + 1);
    LOOP(tests, bfc_regions_double_from_what_is_left, KIND_REGIONS, KIND_MAPPED + 1);
    LOOP(tests, a_callback_is_told_the_figures, KIND_POOL, KIND_POOL + 1);
    LOOP(tests, a_callback_is_told_the_figures, KIND_REGIONS, KIND_REGIONS + 1);
    LOOP(tests, a_nearly_full_device_cuts_the_step, 0, 8);
    tcase_add_test(tests, refused_steps_do_not_double);
    tcase_add_test(tests, what_just_fits_is_served);
    tcase_add_test(tests, a_threshold_that_throws_steps_away_draws_a_warning);
    tcase_add_test(tests, settings_without_effect_draw_a_warning);
    tcase_add_test(tests, shares_that_do_not_fall_draw_a_warning);
    tcase_add_test(tests, a_preallocation_of_many_pieces);
    tcase_add_test(tests, a_preallocation_that_fails_tells_nothing);
    tcase_add_test(tests, without_options);
    tcase_add_test(tests, a_fixed_arena_of_nothing);
    tcase_add_loop_test(tests, a_noted_default_stream_is_the_one_it_was, KIND_POOL, KIND_POOL + 1);
    tcase_add_loop_test(tests, default_streams_of_two_threads_are_two, KIND_POOL, KIND_POOL + 1);
    tcase_add_loop_test(tests, a_noted_default_stream_is_the_one_it_was, KIND_FIXED,
                        KIND_FIXED + 1);
    tcase_add_loop_test(tests, a_refused_note_does_not_hold_the_block_for_ever, KIND_POOL,
                        KIND_POOL + 1);
    tcase_add_loop_test(tests, a_refused_note_does_not_hold_the_block_for_ever, KIND_FIXED,
                        KIND_FIXED + 1);
    tcase_add_loop_test(tests, an_old_driver_is_held_to_the_limit, 0, 2);
    tcase_add_test(tests, a_block_freed_by_the_driver_is_no_live_block);
    tcase_add_test(tests, what_is_preallocated_later_is_kept_too);
    tcase_add_test(tests, what_a_policy_added_goes_at_a_trim);
    tcase_add_test(tests, probe_blocks_are_nobodys);
    tcase_add_loop_test(tests, probe_blocks_that_stay_in_the_drivers_peak, 0, 2);
    LOOP(tests, what_is_stranded_is_waited_for_before_growth, KIND_REGIONS, KIND_MAPPED + 1);
    LOOP(tests, what_is_stranded_stays_where_nothing_waits, KIND_REGIONS, KIND_MAPPED + 1);
    tcase_add_test(tests, streams_that_end_strand_nothing);
    tcase_add_test(tests, a_trim_frees_what_no_event_covers);
    tcase_add_test(tests, pending_frees_do_not_pile_up);
    tcase_add_test(tests, growth_after_a_long_quiet_time);
    tcase_add_test(tests, waiting_is_counted_once);
    tcase_add_test(tests, events_and_latencies_know_a_fork);
    LOOP(tests, preallocation_takes_what_is_there, POOL_AND_ARENAS);
    tcase_add_test(tests, amounts_are_of_the_device);
    tcase_add_test(tests, more_than_can_be_is_not_preallocated);
    tcase_add_test(tests, a_failure_is_logged);
    tcase_add_test(tests, growth_is_logged);
    LOOP(tests, two_threads_grow_at_once, 0, 2);
    LOOP(tests, trim_and_what_was_not_observed, POOL_AND_ARENAS);
    LOOP(tests, a_trim_gives_back_what_is_done, 0, 2);
    LOOP(tests, nothing_is_left_of_what_was_refused, 0, 4);
    tcase_add_test(tests, what_was_refused_is_nobodys_growth);
    tcase_add_test(tests, a_later_failure_keeps_what_was_preallocated);
    tcase_add_test(tests, without_ids_a_lost_event_is_not_replaced);
    LOOP(tests, a_stream_may_go_behind_several, 0, 2);
    tcase_add_test(tests, without_ids_nothing_moves_unseen);
    tcase_add_test(tests, large_requests_have_handles_of_their_own);
    tcase_add_loop_test(tests, handles_are_smaller_where_several_streams_are, 0, 2);
    tcase_add_test(tests, near_the_limit_large_requests_join_what_there_is);
}

/* Growth that the device has no room for is not tried, and handles move instead: what was foretold of that request says
 * nothing of the next one, for which the driver is not asked once more. */
START_TEST(what_was_foretold_of_another_request) {
    weir_options options = plain(KIND_MAPPED, 0);
    void *block[3], *none = NULL;
    CUdeviceptr ballast;
    weir_allocator *a;
    uint64_t before, tries[2];

    options.packing = WEIR_PACKING_FAST; /* which hardly moves anything */
    options.growth = WEIR_GROWTH_EXACT;
    options.recovery_timeout_ms = 20;
    a = make(&options);
    for (int i = 0; i < 3; i++)
        block[i] = take(a, 256 * MIB, A);
    give(a, block[0], A);
    give(a, block[2], A);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemAlloc(&ballast, device_free() - 64 * MIB));
    before = reserve(a);
    MUST_EQ(before, 1024 * MIB);
    block[0] = take(a, 768 * MIB, A);
    MUST_EQ(reserve(a), before);
    for (int i = 0; i < 2; i++) {
        weir__model_fail(WEIR_ENTRY_cuMemCreate, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
        EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 128 * MIB, A, &none));
        tries[i] = weir__model_faults_met(NULL);
        weir__model_faults_clear();
    }
    MUST(tries[0] > 0);
    MUST_EQ(tries[0], tries[1]);
    give(a, block[0], A);
    give(a, block[1], A);
    CU(driver->cuMemFree(ballast));
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

static void add_recovery(TCase *tests) {
    LOOP(tests, oom_recovery_waits_for_frees, POOL_AND_ARENAS);
    LOOP(tests, oom_recovery_waits_for_another_stream, POOL_AND_ARENAS);
    LOOP(tests, the_deadline_is_kept, POOL_AND_ARENAS);
    LOOP(tests, no_deadline_no_wait, POOL_AND_ARENAS);
    LOOP(tests, at_the_deadline_nobody_sleeps, POOL_AND_ARENAS);
    LOOP(tests, the_last_rung_waits_for_the_device, KIND_FIXED, KIND_REGIONS + 1);
    LOOP(tests, what_others_hold_is_not_waited_for, KIND_POOL, KIND_POOL + 1);
    LOOP(tests, what_others_hold_is_not_waited_for, KIND_REGIONS, KIND_REGIONS + 1);
    LOOP(tests, hopeless_requests_are_refused_at_once, EVERY_KIND);
    tcase_add_test(tests, what_was_foretold_of_another_request);
    tcase_add_test(tests, oom_recovery_trims_what_is_scattered);
    LOOP(tests, a_recovered_request_leaves_the_driver_result, KIND_POOL, KIND_POOL + 1);
    LOOP(tests, a_recovered_request_leaves_the_driver_result, KIND_REGIONS, KIND_REGIONS + 1);
    tcase_add_test(tests, trim_chooses_regions);
    tcase_add_test(tests, trim_chooses_the_lowest);
    tcase_add_test(tests, a_fixed_arena_comes_back_whole);
    tcase_add_test(tests, a_limit_of_the_whole_device);
    tcase_add_test(tests, a_full_device_below_the_limit);
    tcase_add_test(tests, a_preallocation_that_the_device_cuts);
    LOOP(tests, the_primary_context_is_held_as_often_as_given_up, EVERY_KIND);
}

static void add_faults(TCase *tests) {
    tcase_add_test(tests, probe_blocks_that_stay_are_given_back_later);
    tcase_add_loop_test(tests, everything_can_be_preallocated, KIND_POOL, KIND_POOL + 1);
    tcase_add_loop_test(tests, everything_can_be_preallocated, KIND_REGIONS, KIND_MAPPED + 1);
    tcase_add_loop_test(tests, a_region_that_begins_inside_a_page_is_exchanged, 0, 2);
    tcase_add_test(tests, a_small_step_above_much_idle_reserve);
    tcase_add_test(tests, probe_blocks_that_stay_go_with_the_allocator);
    tcase_add_test(tests, a_region_that_begins_inside_a_page_of_a_full_device);
    LOOP(tests, a_region_that_begins_inside_a_page_under_a_low_limit, 0, 2);
    tcase_add_test(tests, regions_that_all_begin_inside_a_page);
    LOOP(tests, a_lost_device, 0, KIND_COUNT * 7);
    LOOP(tests, a_captured_stream, 0, 2 * KIND_COUNT);
    LOOP(tests, a_graph_has_memory_of_its_own, KIND_FIXED, KIND_DIRECT);
    LOOP(tests, a_graph_that_never_was, KIND_FIXED, KIND_DIRECT);
    LOOP(tests, where_graphs_have_no_memory, 3 * KIND_FIXED, 3 * KIND_DIRECT);
    LOOP(tests, a_device_without_pools, EVERY_KIND);
    LOOP(tests, a_device_that_maps_nothing, 0, 2);
    tcase_add_test(tests, an_idle_stream_is_no_proof);
    tcase_add_loop_test(tests, addresses_last_long_and_end_well, 0, 2);
    tcase_add_test(tests, what_cannot_be_unmapped_is_gone_round);
    tcase_add_test(tests, what_cannot_be_unmapped_is_gone_round_still);
    tcase_add_test(tests, what_cannot_be_put_goes_later);
    tcase_add_test(tests, what_stays_in_two_places_goes_with_the_last);
    tcase_add_test(tests, what_was_moved_goes_with_its_alias);
    tcase_add_loop_test(tests, what_is_pending_is_no_block, KIND_FIXED, KIND_DIRECT);
    tcase_add_loop_test(tests, the_block_around_an_address, 0, 2 * KIND_COUNT);
    tcase_add_test(tests, many_move_unseen);
    tcase_add_loop_test(tests, the_best_of_the_idle_moves, 0, 8);
    tcase_add_loop_test(tests, a_handle_in_many_pieces_stays, 0, 2);
    tcase_add_test(tests, the_last_addresses_move_too);
    tcase_add_test(tests, the_end_of_the_addresses_is_out_of_memory);
    tcase_add_test(tests, small_blocks_find_room_elsewhere);
    tcase_add_loop_test(tests, an_end_that_cannot_wait_is_no_end, 0, 3);
    tcase_add_test(tests, the_last_of_the_device_is_enough);
    tcase_add_loop_test(tests, a_second_stream_has_what_nobody_used, WEIR_PACKING_COMPACT,
                        WEIR_PACKING_FAST + 1);
    tcase_add_test(tests, a_pool_without_figures);
    tcase_add_test(tests, a_pool_without_maximum);
    tcase_add_loop_test(tests, what_was_undone_is_nobodys, 0, 2);
}

/* With the caches. */
static void add_for_users(TCase *tests) {
    tcase_add_test(tests, freed_on_a_busy_stream);
    tcase_add_test(tests, events_are_recycled);
    tcase_add_test(tests, a_recycled_handle_is_another_stream);
    tcase_add_test(tests, a_second_stream_finds_the_unused_space);
    LOOP(tests, a_noted_use_holds_the_block, POOL_AND_ARENAS);
    LOOP(tests, the_free_is_the_point_in_order, POOL_AND_ARENAS);
    LOOP(tests, notes_do_not_pile_up, POOL_AND_ARENAS);
    LOOP(tests, notes_survive_a_failed_free, POOL_AND_ARENAS);
    LOOP(tests, a_noted_default_stream_is_the_one_it_was, KIND_POOL, KIND_REGIONS);
    LOOP(tests, a_refused_note_does_not_hold_the_block_for_ever, KIND_POOL, KIND_REGIONS);
    tcase_add_test(tests, streams_that_end_strand_nothing);
    tcase_add_test(tests, a_trim_frees_what_no_event_covers);
    tcase_add_test(tests, pending_frees_do_not_pile_up);
    LOOP(tests, preallocation_takes_what_is_there, POOL_AND_ARENAS);
    tcase_add_test(tests, amounts_are_of_the_device);
    add_recovery(tests);
    add_faults(tests);
    LOOP(tests, no_two_owners_without_an_order, 0, WORLDS * SEEDS);
}

int main(void) {
    Suite *suite = suite_create("engines");

    add_order(add_case(suite, "order", open_device));
    add_growth(add_case(suite, "growth", open_device));
    add_recovery(add_case(suite, "recovery", open_device));
    add_faults(add_case(suite, "faults", open_device));
    LOOP(add_case(suite, "places", open_device), where_a_graph_had_memory_once, KIND_FIXED,
         KIND_DIRECT);
    LOOP(add_case(suite, "random", open_device), no_two_owners_without_an_order, 0, WORLDS * SEEDS);
    add_for_users(add_case(suite, "for users", open_device_for_users));
    return run_suite(suite, CK_FORK_GETENV);
}
