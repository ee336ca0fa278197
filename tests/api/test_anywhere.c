/* SPDX-License-Identifier: MIT */
/* test_anywhere.c: blocks that are allocated without a stream, on every engine.  The device model reports each use that
 * is not ordered after the earlier uses of its bytes. */
#include "api/allocator_internal.h"
#include "tests/fixtures/every_kind.h"
#include "tests/fixtures/model_device.h"

enum { THREADS = 6 };

static weir_allocator *a;
static uint64_t owners;

/* The limit leaves room for one large block, so that freed memory must be reused. */
#define ROOM (64 * MIB)
#define LARGE (40 * MIB)

static void begin_anywhere_with(int kind, int cache, int dependencies) {
    weir_options options = options_of(kind, "model", ROOM);

    start_model(8 * GIB);
    options.limit = bytes_amount(ROOM);
    options.cache = cache;
    options.internal_dependencies = dependencies;
    OK(weir_allocator_create(&options, &a));
    owners = 0;
}

static void begin_anywhere(int world) {
    begin_anywhere_with(worlds[world].kind, worlds[world].cache, WEIR_SWITCH_DEFAULT);
}

static void end_anywhere(void) {
    CU(driver->cuCtxSynchronize());
    MUST_EQ(check_identities(a).blocks, 0);
    OK(weir_allocator_destroy(a));
    check_model();
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
}

static void *take_any(size_t bytes) {
    void *block = NULL;

    OK(weir_alloc_any(a, bytes, &block));
    MUST(block != NULL && (uintptr_t)block % 256 == 0);
    return block;
}

CASE("anywhere", 30, NULL, end_anywhere);

TEST_EACH(WORLDS, what_a_stream_freed_is_over_before_any_has_it) {
    void *block;

    begin_anywhere(_i);
    OK(weir_alloc(a, LARGE, A, &block));
    use_and_check(A, block, LARGE, 1, 20 * MS);
    OK(weir_free(a, block, A));
    block = take_any(LARGE);
    MUST_LE(20 * MS, weir__model_now_ns()); /* there is memory for one block only */
    use_and_check(B, block, LARGE, 2, MS);
    use_and_check(C, block, LARGE, 2, MS);
    OK(weir_free_any(a, block));
}

/* The allocator's own stream waits on the device for A.  The host waits for that stream, since the block may be used on
 * any stream. */
TEST_EACH(2, what_the_own_stream_waits_for_is_over_before_any_has_it) {
    void *block;

    begin_anywhere_with(_i ? KIND_MAPPED : KIND_FIXED, WEIR_SWITCH_OFF, WEIR_SWITCH_ON);
    OK(weir_alloc(a, 1000, B, &block));
    OK(weir_free(a, block, B));
    OK(weir_alloc(a, LARGE, A, &block));
    use_and_check(A, block, LARGE, 1, 20 * MS);
    OK(weir_free(a, block, A));
    block = take_any(LARGE);
    MUST_LE(20 * MS, weir__model_now_ns());
    use_and_check(B, block, LARGE, 2, MS);
    OK(weir_free_any(a, block));
}

TEST_EACH(WORLDS, what_any_used_is_over_before_a_stream_has_it) {
    uint64_t now;
    void *block;

    begin_anywhere(_i);
    block = take_any(LARGE);
    now = weir__model_now_ns();
    use_and_check(A, block, LARGE, 1, 20 * MS);
    use_and_check(B, block, LARGE, 1, 30 * MS);
    OK(weir_free_any(a, block));
    MUST_LE(now + 30 * MS, weir__model_now_ns());
    OK(weir_alloc(a, LARGE, C, &block));
    use_and_check(C, block, LARGE, 2, 10 * MS);
    OK(weir_free_any(a, block)); /* frees a stream's block without a stream */
    block = take_any(LARGE);
    use_and_check(B, block, LARGE, 3, 10 * MS);
    CU(driver->cuStreamSynchronize(B));
    OK(weir_free(a, block, B)); /* frees a block without a stream on B */
}

/* A request waits for nothing if it reuses no stream's memory. */
TEST_EACH(WORLDS, others_are_not_waited_for) {
    void *blocks[20];
    uint64_t now;

    begin_anywhere(_i);
    blocks[0] = take_any(MIB);
    busy(A, 1000 * MS);
    now = weir__model_now_ns();
    for (int i = 1; i < 20; i++)
        blocks[i] = take_any(MIB / 2);
    MUST_LE(weir__model_now_ns(), now + 500 * MS);
    for (int i = 0; i < 20; i++)
        OK(weir_free_any(a, blocks[i]));
}

TEST_EACH(WORLDS, misuse_is_reported) {
    void *block = &block;

    begin_anywhere(_i);
    EXPECT(WEIR_E_INVALID, weir_alloc_any(NULL, 1, &block));
    EXPECT(WEIR_E_INVALID, weir_alloc_any(a, 1, NULL));
    EXPECT(WEIR_E_INVALID, weir_free_any(NULL, &block));
    EXPECT(WEIR_E_LIMIT, weir_alloc_any(a, ROOM + 1, &block));
    MUST(block == &block);
    OK(weir_free_any(a, NULL));
    OK(weir_alloc_any(a, 0, &block));
    MUST(block == NULL);
    if (worlds[_i].kind != KIND_POOL || worlds[_i].cache == WEIR_SWITCH_ON) {
        block = take_any(MIB);
        EXPECT(WEIR_E_NOT_OWNED, weir_free_any(a, (char *)block + 256));
        OK(weir_free_any(a, block));
        EXPECT(WEIR_E_NOT_OWNED, weir_free_any(a, block));
    }
}

TEST_EACH(WORLDS, a_driver_that_refuses_leaves_nothing) {
    void *block = NULL;

    begin_anywhere(_i);
    weir__model_fail(WEIR_ENTRY_cuStreamCreate, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_alloc_any(a, MIB, &block));
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    block = take_any(MIB);
    OK(weir_free_any(a, block));
    block = NULL;
    weir__model_fail(WEIR_ENTRY_cuStreamSynchronize, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_alloc_any(a, MIB, &block));
    MUST(block == NULL);
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    MUST_EQ(check_identities(a).blocks, 0);
    block = take_any(MIB);
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_OUT_OF_MEMORY, 0); /* for the wait */
    weir__model_fail(WEIR_ENTRY_cuMemAllocHost, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    EXPECT(WEIR_E_NO_MEMORY, weir_free_any(a, block));
    MUST_EQ(check_identities(a).blocks, 1);
    weir__model_faults_clear();
    OK(weir_free_any(a, block));
}

TEST_EACH(WORLDS, a_capture_elsewhere_goes_on) {
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    int breaks = worlds[_i].kind == KIND_POOL && worlds[_i].cache == WEIR_SWITCH_OFF;

    begin_anywhere(_i);
    for (int i = breaks ? 2 : 0; i < 3; i++) { /* see weir_alloc for the modes */
        CUgraph graph;
        void *block;

        CU(driver->cuStreamBeginCapture(A, modes[i]));
        block = take_any(LARGE);
        use_and_check(B, block, LARGE, (uint64_t)i + 1, MS);
        OK(weir_free_any(a, block));
        CU(driver->cuStreamEndCapture(A, &graph));
        CU(driver->cuGraphDestroy(graph));
    }
}

static void *alloc_and_free_any(void *failed) {
    for (int i = 0; i < 50 && !*(int *)failed; i++) {
        void *block = NULL;

        *(int *)failed =
            weir_alloc_any(a, 100 * KIB, &block) != WEIR_OK || weir_free_any(a, block) != WEIR_OK;
    }
    return NULL;
}

TEST_EACH(WORLDS, threads_share_the_stream) {
    int failed[THREADS] = {0};

    begin_anywhere(_i);
    run_threads(THREADS, alloc_and_free_any, failed, sizeof *failed);
    for (int t = 0; t < THREADS; t++)
        MUST(!failed[t]);
    MUST_EQ(stats_of(a).frees, THREADS * 50);
}

/* Another thread makes the stream while this one does.  The allocator uses the other thread's stream. */
static struct weir_driver table;
static int made;

static CUresult create_late(CUstream *stream, unsigned flags) {
    if (made++ == 0) {
        void *block = take_any(MIB);

        OK(weir_free_any(a, block));
    }
    return driver->cuStreamCreate(stream, flags);
}

TEST(who_is_slower_has_the_others_stream) {
    weir_options options = options_of(KIND_REGIONS, "model", 0);

    start_model(GIB);
    table = *driver;
    OK(weir__allocator_create_on(&table, &options, &a, NULL, 0));
    table.cuStreamCreate = create_late;
    weir__model_fail(WEIR_ENTRY_cuLaunchHostFunc, 1, CUDA_ERROR_NOT_SUPPORTED, 1);
    OK(weir_free_any(a, take_any(MIB)));
    MUST_EQ(made, 4); /* each free makes a stream, on which the proof of its wait fails */
}

CASE("anywhere", 30, NULL, NULL);

TEST_EACH(WORLDS, a_failed_driver_call_fails_the_request) {
    void *block = NULL, *taken;

    begin_anywhere(_i);
    weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_alloc_any(a, MIB, &block));
    taken = take_any(MIB);
    for (uint64_t k = 1, met = 1; met > 0; k++) { /* one of these calls is for the wait */
        weir_status status;

        weir__model_fail(WEIR_ENTRY_cuThreadExchangeStreamCaptureMode, k, CUDA_ERROR_UNKNOWN, 0);
        status = weir_alloc_any(a, MIB, &block);
        met = weir__model_faults_injected(NULL);
        weir__model_faults_clear();
        if (status == WEIR_OK)
            OK(weir_free_any(a, block));
        MUST_EQ(check_identities(a).blocks, 1);
    }
    if (is_forked_child())
        _exit(weir_alloc_any(a, MIB, &block) != WEIR_E_FORKED);
    OK(weir_free_any(a, taken));
    weir__model_fail_any(1, 0, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    (void)weir_trim(a, 0, NULL);
    EXPECT(WEIR_E_DEVICE_LOST, weir_alloc_any(a, MIB, &block));
    (void)weir_allocator_destroy(a); /* its stream goes with the context */
    weir__model_faults_clear();
}

TEST_EACH(WORLDS, a_result_is_an_address_or_a_status) {
    intptr_t block;

    begin_anywhere(_i);
    block = weir_alloc_address(a, LARGE, A);
    MUST(block > 0);
    use_and_check(A, (void *)block, LARGE, 1, MS);
    MUST_EQ(weir_alloc_address(a, 0, A), 0);
    MUST_EQ(weir_alloc_address(a, 2 * ROOM, A), WEIR_E_LIMIT);
    MUST_EQ(weir_alloc_address(NULL, MIB, A), WEIR_E_INVALID);
    MUST_EQ(check_identities(a).blocks, 1);
    OK(weir_free(a, (void *)block, A));
    end_anywhere();
}

SUITE("anywhere", CK_FORK_GETENV);
