/* SPDX-License-Identifier: MIT */
/* test_engines.c: which stream may have a block when, and the driver calls of a hit.
 *
 * The tests run on the engines alone; tests of promises to users run again on the allocator as a user has it.  Virtual
 * time shows which stream waited for which. */
#include "tests/fixtures/engines.h"

/* ---- the arena and its streams --------------------------------------------------------------- */

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

/* A block that A freed while busy serves A at once.  B gets the block after A's next call has recorded an event and
 * that event has completed. */
TEST(a_block_freed_on_a_busy_stream_serves_others_after_its_event) {
    make_engine(KIND_FIXED, 64 * MIB, "");
    void *block = alloc_live(64 * MIB, A);
    busy(A, 5 * MS);
    free_live(block, A);
    ck_assert_ptr_eq(alloc_live(64 * MIB, A), block); /* on its own stream at once */
    busy(A, 5 * MS);
    free_live(block, A);
    count_from_here();
    expect_alloc_status(WEIR_E_LIMIT, MIB, B);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 0); /* nothing on A in a call of B */
    weir__model_advance(20 * MS);
    expect_alloc_status(WEIR_E_LIMIT, MIB, B); /* idle, but no event shows it */
    busy(A, 5 * MS);
    count_from_here();
    alloc_live(1000, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 1);
    expect_alloc_status(WEIR_E_LIMIT, MIB, B);
    weir__model_advance(4 * MS);
    expect_alloc_status(WEIR_E_LIMIT, MIB, B);
    weir__model_advance(MS);
    free_live(alloc_live(MIB, B), B);
}

/* A block serves the stream that freed it, not the stream of the call before. */
TEST(a_free_serves_its_own_stream) {
    make_engine(KIND_FIXED, 64 * MIB, "");
    void *of_a = alloc_live(32 * MIB, A), *of_b = alloc_live(32 * MIB, B);

    busy(A, 5 * MS);
    busy(B, 5 * MS);
    free_live(of_a, A);
    free_live(of_b, B);
    ck_assert_ptr_eq(alloc_live(32 * MIB, A), of_a);
    expect_alloc_status(WEIR_E_LIMIT, 32 * MIB, A);
    ck_assert_ptr_eq(alloc_live(32 * MIB, B), of_b);
}

/* Events are recycled: their number depends on the work under way, not on past work. */
TEST(events_are_recycled) {
    make_engine(KIND_REGIONS, 0, "");

    count_from_here();
    for (int i = 0; i < 5000; i++) {
        void *block = alloc_live(100000, i % 2 ? A : B);

        if (i % 5 == 0)
            OK(weir_use(a, block, C));
        busy(i % 2 ? A : B, 10000);
        free_live(block, i % 2 ? A : B);
        weir__model_advance(20000);
    }
    ck_assert_uint_ge(calls(WEIR_ENTRY_cuEventRecord), 1000);
    ck_assert_uint_le(calls(WEIR_ENTRY_cuEventCreate), 100);
    ck_assert_uint_le(reserved_under_test(), 64 * MIB);
}

/* The driver may give a destroyed stream's handle to a new stream at once.  weir does not mix up their frees. */
TEST(a_recycled_handle_is_another_stream) {
    make_engine(KIND_FIXED, 64 * MIB, "");
    CUstream s, t;
    free_live(alloc_live(1000, A), A);
    s = make_stream();
    void *block = alloc_live(63 * MIB, s);
    busy(s, 50 * MS);
    free_live(block, s);
    CU(driver->cuStreamDestroy(s));
    t = make_stream();
    ck_assert_ptr_eq(s, t);
    for (int i = 0; i < 3; i++)
        expect_alloc_status(WEIR_E_LIMIT, 63 * MIB, t);
    /* A trim waits for the device, and so observes the free. */
    OK(weir_trim(a, 0, NULL));
    ck_assert_uint_ge(weir__model_now_ns(), 50 * MS);
    free_live(alloc_live(63 * MIB, t), t);
}

/* Space that no stream has used serves every stream, even beside a block that the first stream freed. */
TEST(a_second_stream_finds_the_unused_space) {
    make_engine(KIND_FIXED, 64 * MIB, "");

    free_live(alloc_live(1, A), A);
    alloc_live(5, A);
    alloc_live(32 * MIB, B);
}

/* ---- noted uses ------------------------------------------------------------------------------ */

/* A frees a block that B uses for another 5 ms.  In that time A does not wait and no stream gets the block; later every
 * stream can have it.  This holds for the pool and for the arenas. */
TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, a_noted_use_holds_the_block) {
    make_engine(_i, 64 * MIB, "");
    void *block = alloc_live(64 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 5 * MS);
    uint64_t start = weir__model_now_ns();
    free_live(block, A);
    ck_assert_uint_lt(weir__model_now_ns() - start, MS);
    ck_assert_uint_eq(driver->cuStreamQuery(A), CUDA_SUCCESS);
    ck_assert_uint_eq(check_identities(a).in_use, 0);
    for (int i = 0; i < 4; i++) {
        expect_alloc_status(WEIR_E_LIMIT, 64 * MIB, i == 0 ? A : i == 1 ? B : C);
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
        weir__model_advance(MS);
    }
    weir__model_advance(MS);
    block = alloc_live(64 * MIB, C);
}

/* A use on the stream that frees precedes the free in stream order, so a request on that stream gets the block at once.
 * A free on another stream waits for that use. */
TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, a_use_on_the_stream_that_frees_needs_no_event) {
    make_engine(_i, 64 * MIB, "");
    void *block = alloc_live(64 * MIB, A);
    OK(weir_use(a, block, A));
    busy(A, 5 * MS);
    free_live(block, A);
    block = alloc_live(64 * MIB, A);
    OK(weir_use(a, block, A));
    free_live(block, B);
    expect_alloc_status(WEIR_E_LIMIT, 64 * MIB, B);
    weir__model_advance(5 * MS);
    free_live(alloc_live(64 * MIB, B), B);
}

/* Work given to the noted stream after weir_use but before the free counts; later work does not. */
TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, the_free_is_the_point_in_order) {
    make_engine(_i, 64 * MIB, "");
    void *block = alloc_live(64 * MIB, A);

    OK(weir_use(a, block, B));
    busy(B, 2 * MS);
    free_live(block, A);
    busy(B, 50 * MS);
    expect_alloc_status(WEIR_E_LIMIT, 64 * MIB, A);
    weir__model_advance(3 * MS);
    block = alloc_live(64 * MIB, A);
}

/* A stream noted twice is waited for once. */
TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, notes_do_not_pile_up) {
    make_engine(_i, 64 * MIB, "");
    void *block = alloc_live(MIB, A);

    for (int i = 0; i < 100; i++) {
        OK(weir_use(a, block, B));
        OK(weir_use(a, block, C));
    }
    count_from_here();
    free_live(block, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 3); /* A, B, C */
}

/* A failed free changes nothing: the next free still waits for the noted stream. */
TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, notes_survive_a_failed_free) {
    make_engine(_i, 64 * MIB, "");
    void *block = alloc_live(64 * MIB, A);

    OK(weir_use(a, block, B));
    busy(B, 5 * MS);
    weir__model_fail(WEIR_ENTRY_cuEventRecord, 2, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_free(a, block, A));
    ck_assert_int_eq(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    ck_assert_uint_eq(check_identities(a).blocks, 1);
    free_live(block, A);
    expect_alloc_status(WEIR_E_LIMIT, 64 * MIB, A);
    weir__model_advance(5 * MS);
    free_live(alloc_live(64 * MIB, A), A);
}

/* ---- blocks found by their addresses --------------------------------------------------------- */

static void expect_around(const char *address, const void *block, size_t bytes) {
    void *found = NULL;
    size_t found_bytes = 0;

    OK(weir_block_range(a, address, &found, &found_bytes));
    MUST(found == block);
    MUST_EQ(found_bytes, bytes);
}

static void expect_nothing_else(const char *address) {
    void *found;
    size_t bytes;

    if (weir_block_range(a, address, &found, &bytes) == WEIR_OK)
        MUST((const char *)found <= address && address < (const char *)found + bytes);
}

/* A live block is found from each of its bytes, and from no other address. */
TEST_EACH(2 * KIND_COUNT, a_block_is_found_from_each_of_its_bytes) {
    char host;
    make_engine(_i / 2, _i / 2 == KIND_FIXED ? 256 * MIB : 0, _i % 2 ? "harden=guard" : "");
    char *first = alloc_live(3 * MIB, A);
    char *small = alloc_live(1000, A);
    char *large = alloc_live(3 * MIB, A);
    char *gone = alloc_live(3 * MIB, A);
    char *last = alloc_live(5 * MIB, A);
    char *young = alloc_live(1000, B); /* a stream without a cache */
    if (cache == WEIR_SWITCH_OFF && _i / 2 == KIND_POOL) {
        EXPECT(WEIR_E_NOT_SUPPORTED, weir_block_range(a, large, NULL, NULL));
        abandon();
        return;
    }
    EXPECT(WEIR_E_INVALID, weir_block_range(a, NULL, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, &host, NULL, NULL));
    OK(weir_block_range(a, small, NULL, NULL));
    expect_around(small, small, 1000);
    expect_around(small + 999, small, 1000);
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, small + 1000, NULL, NULL));
    expect_around(large, large, 3 * MIB);
    expect_around(large + 3 * MIB - 1, large, 3 * MIB);
    expect_around(last + 2 * MIB, last, 5 * MIB);
    expect_around(young + 999, young, 1000);
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, young + 1000, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, young + 512, B));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, large + 512, A));
    free_live(young, B);
    free_live(gone, A);
    free_live(first, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, gone, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, gone + 2 * MIB, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, young, NULL, NULL));
    OK(weir_trim(a, 0, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, gone, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, gone + 2 * MIB, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, first + 2 * MIB, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, last + 5 * MIB + 100 * KIB, NULL, NULL));
    expect_nothing_else(small + 200 * KIB);
    free_live(small, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, small, NULL, NULL));
}

/* An idle blocking stream may still be behind work of the NULL stream.  So a handle of memory that was freed on it does
 * not move before that work has completed. */
TEST(an_idle_stream_is_no_proof) {
    CUstream blocking;
    void *large[2];
    make_engine(KIND_MAPPED, 0, "cache=off");
    CU(driver->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    void *block = alloc_live(64 * MIB, blocking);
    void *pin = alloc_live(4 * MIB, blocking);
    busy(NULL, 50 * MS);
    free_live(block, blocking);
    MUST_EQ(driver->cuStreamQuery(blocking), CUDA_SUCCESS); /* an H200 answers so, too */
    count_from_here();
    large[0] = alloc_live(96 * MIB, blocking);
    MUST_EQ(calls(WEIR_ENTRY_cuMemUnmap), 0);
    CU(driver->cuCtxSynchronize());
    large[1] = alloc_live(96 * MIB, blocking);
    MUST_LE(1, calls(WEIR_ENTRY_cuMemUnmap));
    free_live(pin, blocking);
    free_live(large[0], blocking);
    free_live(large[1], blocking);
    CU(driver->cuStreamSynchronize(blocking));
    CU(driver->cuStreamDestroy(blocking));
}

/* If weir cannot wait for the device, destroy fails: it unmaps no memory and destroys no pool that may be in use. */
TEST_EACH(2, an_end_that_cannot_wait_is_no_end) {
    static const int kinds[] = {KIND_MAPPED, KIND_POOL};
    make_engine(kinds[_i], 0, kinds[_i] == KIND_MAPPED ? "cache=off" : "cache=on");
    void *block = alloc_live(20 * MIB, A);
    busy(A, 50 * MS);
    MUST_EQ(weir__model_use(A, (uintptr_t)block, 20 * MIB, 1, 50 * MS), CUDA_SUCCESS);
    free_live(block, A);
    refuse_waits();
    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    ck_assert_ptr_null(weir__model_fault());
    weir__model_faults_clear();
    free_live(alloc_live(20 * MIB, A), A);
    destroy();
    ck_assert_ptr_null(weir__model_fault());
}

/* Unused preallocated memory serves every stream, although the first stream is busy and calls no more. */
TEST(a_second_stream_has_what_nobody_used) {
    make_engine(KIND_MAPPED, 0, "cache=off prealloc=512MiB");
    void *block = alloc_live(100 * MIB, A);
    busy(A, 50 * MS);
    free_live(block, A);
    count_from_here();
    alloc_live(300 * MIB, B);
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 0);
    MUST_EQ(stats_of(a).reserved, 512 * MIB);
}

static struct {
    weir_allocator *a;
    void *block;
    weir_stream stream;
    weir_status status;
} elsewhere;

static void *free_other_block(void *unused) {
    elsewhere.status = weir_free(a, elsewhere.block, elsewhere.stream);
    return unused;
}

static weir_status freed_on_another_thread(void *block, weir_stream stream) {
    elsewhere.block = block;
    elsewhere.stream = stream;
    run_in_thread(free_other_block, NULL);
    return elsewhere.status;
}

/* The per-thread default stream is another stream on the thread that frees.  An event recorded there would order the
 * reuse behind the wrong stream. */
TEST_WHERE(KIND_POOL, KIND_REGIONS, NULL, a_noted_default_stream_is_the_one_it_was) {
    weir_stream per_thread = (weir_stream)WEIR_STREAM_PER_THREAD_VALUE;
    make_engine(_i, 64 * MIB, "");
    void *block = alloc_live(MIB, A);
    OK(weir_use(a, block, per_thread));
    busy((CUstream)per_thread, 1000000000);
    ck_assert_int_eq(freed_on_another_thread(block, per_thread), WEIR_E_STREAM);
    OK(weir_use(a, block, per_thread));
    ck_assert_int_eq(freed_on_another_thread(block, A), WEIR_E_STREAM);
    /* The failed free dropped the note.  Here the stream is noted again, and this thread frees the block. */
    OK(weir_use(a, block, per_thread));
    free_live(block, A);
    void *other = alloc_live(MIB, B);
    ck_assert_ptr_ne(other, block);
}

/* A failed free drops the note of a stream that the driver does not know, so that the block can be freed later. */
TEST_WHERE(KIND_POOL, KIND_REGIONS, NULL, a_refused_note_does_not_hold_the_block_for_ever) {
    make_engine(_i, 64 * MIB, "");
    void *block = alloc_live(MIB, A);
    CUstream gone = make_stream();

    OK(weir_use(a, block, gone));
    CU(driver->cuStreamDestroy(gone));
    EXPECT(WEIR_E_STREAM, weir_free(a, block, A));
}

/* A block that was freed, but that another stream still uses, cannot be noted, found or freed. */
TEST_WHERE(KIND_FIXED, KIND_DIRECT, NULL, what_is_pending_is_no_block) {
    make_engine(_i, 256 * MIB, "");
    char *block = alloc_live(3 * MIB, A);
    OK(weir_use(a, block, B));
    busy(B, 5 * MS);
    free_live(block, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_use(a, block, C));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, block + MIB, NULL, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block + MIB, A));
    CU(driver->cuStreamEndCapture(A, &(CUgraph){NULL}));
    CU(driver->cuCtxSynchronize());
    free_live(alloc_live(3 * MIB, A), A);
}

/* Each request has a stream, as in a server.  Memory that a stream frees before it ends serves the next streams. */
TEST(streams_that_end_strand_nothing) {
    make_engine(KIND_FIXED, 64 * MIB, "");
    alloc_live(MIB, A);

    for (int i = 0; i < 300; i++) {
        CUstream stream;

        stream = make_stream();
        free_live(alloc_live(4 * MIB, stream), stream);
        CU(driver->cuStreamSynchronize(stream));
        CU(driver->cuStreamDestroy(stream));
    }
}

/* Frees with noted uses are completed by later frees, not only by a request that does not fit. */
TEST(pending_frees_do_not_pile_up) {
    make_engine(KIND_FIXED, 256 * MIB, "");

    for (int i = 0; i < 2000; i++) {
        void *block = alloc_live(MIB / 2, A);

        OK(weir_use(a, block, B));
        free_live(block, A);
    }
    ck_assert_uint_lt(stats_of(a).extent, 8 * MIB);
}

/* ---- without the caches alone ---------------------------------------------------------------- */

CASE("alone", 120, open_engine_device, end_test);

/* The program allocates from weir's pool, too, so that the driver places blocks of the caches between pages of theirs. */
TEST(blocks_of_others_do_not_shift_those_of_caches) {
    CUdeviceptr others[4];
    CUmemoryPool pool;
    void *block[8];

    make_engine(KIND_POOL, 0, "cache=on");
    OK(weir_pool(a, &pool));
    for (size_t i = 0; i < 4; i++) {
        CU(driver->cuMemAllocFromPoolAsync(&others[i], 512 * (i + 1), pool, A));
        block[2 * i] = alloc_live(64 * KIB * (i + 1), A);
        block[2 * i + 1] = alloc_live(MIB * (i + 1), A);
        MUST_EQ((uintptr_t)block[2 * i + 1] % WEIR_PAGE, 0);
        CU(weir__model_use(A, (uintptr_t)block[2 * i + 1], MIB * (i + 1), 1, MS));
    }
    for (int i = 0; i < 8; i++) {
        free_live(block[i], A);
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block[i], A));
    }
    for (int i = 0; i < 4; i++)
        CU(driver->cuMemFreeAsync(others[i], A));
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(stats_of(a).reserved, 0);
    ck_assert_ptr_null(weir__model_fault());
}

/* weir asks for the reserved bytes and, without caches, for the bytes in blocks, of which it keeps the peak. */
TEST(a_hit_of_the_pool_costs_one_call_and_two_questions) {
    make_engine(KIND_POOL, 0, "");
    free_live(alloc_live(1000, A), A);
    count_from_here();
    void *block = alloc_live(1000, A);
    EXPECT_CALLS({WEIR_ENTRY_cuMemAllocFromPoolAsync, 1}, {WEIR_ENTRY_cuMemPoolGetAttribute, 2},
                 {WEIR_ENTRY_cuThreadExchangeStreamCaptureMode, 4});
    count_from_here();
    free_live(block, A);
    EXPECT_CALLS({WEIR_ENTRY_cuMemFreeAsync, 1}, {WEIR_ENTRY_cuThreadExchangeStreamCaptureMode, 2});
    /* With a finite threshold the driver may release memory by itself, so weir queries the reserved bytes, twice. */
    make_engine(KIND_POOL, 0, "release-threshold=64MiB");
    free_live(alloc_live(1000, A), A);
    count_from_here();
    block = alloc_live(1000, A);
    EXPECT_CALLS({WEIR_ENTRY_cuMemAllocFromPoolAsync, 1}, {WEIR_ENTRY_cuMemPoolGetAttribute, 3},
                 {WEIR_ENTRY_cuThreadExchangeStreamCaptureMode, 6});
}

TEST_WHERE(KIND_FIXED, KIND_MAPPED + 1, NULL, a_hit_of_the_arena_costs_no_memory_call) {
    make_engine(_i, 64 * MIB, "");
    free_live(alloc_live(1000, A), A);
    count_from_here();
    void *block = alloc_live(1000, A);
    EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, 2}, {WEIR_ENTRY_cuStreamGetId, 1});
    count_from_here();
    free_live(block, A);
    EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, 1}, {WEIR_ENTRY_cuStreamGetId, 1});
    count_from_here();
    OK(weir_use(a, alloc_live(1000, A), B));
    EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, 2}, {WEIR_ENTRY_cuStreamGetId, 1});
}

TEST(a_block_of_the_direct_engine_is_one_call) {
    make_engine(KIND_DIRECT, 0, "");
    count_from_here();
    void *block = alloc_live(1000, A);
    EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, 1}, {WEIR_ENTRY_cuMemAlloc, 1},
                 {WEIR_ENTRY_cuCtxPushCurrent, 1}, {WEIR_ENTRY_cuCtxPopCurrent, 1},
                 {WEIR_ENTRY_cuThreadExchangeStreamCaptureMode, 2});
    count_from_here();
    free_live(block, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemFree), 1);
}

TEST_WHERE(KIND_FIXED, KIND_MAPPED + 1, NULL, an_engine_with_one_stream_records_no_event) {
    make_engine(_i, 256 * MIB, "");
    uint64_t random = 5;
    void *held[50] = {NULL};

    count_from_here();
    for (int i = 0; i < 2000; i++) {
        void **slot = &held[next_random(&random) % 50];

        free_live(*slot, A);
        *slot = NULL;
        busy(A, MS);
        if (next_random(&random) % 4 != 0)
            *slot = alloc_live(random_size(&random, 4 * MIB), A);
    }
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventCreate), 0);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 0);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventQuery), 0);
    for (int i = 0; i < 50; i++)
        free_live(held[i], A);
}

/* Without internal dependencies A reuses memory that A freed, although B's completed block fits better, so that B finds
 * that block again.  With internal dependencies A takes the best fit, since B can wait for A. */
TEST_EACH(2, what_another_left_stays_there_for_it) {
    make_engine(KIND_MAPPED, 0, _i ? "internal-dependencies=on" : "internal-dependencies=off");
    void *large = alloc_live(64 * MIB, A);
    void *left = alloc_live(6 * MIB, B);
    alloc_live(6 * MIB, B);
    free_live(left, B);
    weir__model_advance(MS);
    free_live(alloc_live(1000, B), B); /* the host observes B's free */
    busy(A, 50 * MS);
    free_live(large, A);
    uint64_t before = reserved_under_test();
    void *block = alloc_live(6 * MIB, A);
    MUST_EQ(block == left, _i == 1);
    free_live(block, A);
    block = alloc_live(6 * MIB, B);
    MUST_EQ(block == left, _i == 0);
    MUST_EQ(reserved_under_test(), before);
}

/* Memory that A freed while busy serves B before the reserved memory grows, if B may wait for A on the device.
 * Otherwise the reserved memory grows, or the request fails where it cannot grow. */
static void behind_another(int kind, int dependencies) {
    weir_options options = default_options(kind, 64 * MIB);
    int on = dependencies == WEIR_SWITCH_ON;
    void *other = NULL;
    options.internal_dependencies = dependencies;
    make_with(&options);
    free_live(alloc_live(1000, B), B);
    void *block = alloc_live(28 * MIB, A);
    uint64_t before = reserved_under_test();
    busy(A, 5 * MS);
    free_live(block, A);
    count_from_here();
    if (!on && kind == KIND_FIXED)
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 40 * MIB, B, &other));
    else
        other = alloc_live((kind == KIND_FIXED ? 40 : 28) * MIB, B);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuStreamWaitEvent), (uint64_t)on);
    ck_assert_int_eq(reserved_under_test() == before, on || kind == KIND_FIXED);
    MUST_EQ(driver->cuStreamQuery(A), CUDA_ERROR_NOT_READY); /* the host waited for nothing */
    MUST_EQ(driver->cuStreamQuery(B), on ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
    busy(B, MS); /* writes its block: the model would complain */
    weir__model_advance(5 * MS);
}

TEST_WHERE(KIND_FIXED, KIND_MAPPED + 1, NULL, a_stream_may_go_behind_another) {
    behind_another(_i, WEIR_SWITCH_ON);
    behind_another(_i, WEIR_SWITCH_OFF);
}

/* Small frees have no events.  A request that runs out of memory on another stream makes the owner's next call record
 * one event for all of them. */
TEST(a_dry_stream_makes_the_owner_record_once) {
    void *block[40];

    use_blocking_streams();
    make_engine(KIND_REGIONS, 0, "cache=off");
    for (int i = 0; i < 20; i++) /* each of its first frees is recorded */
        free_live(alloc_live(1000, A), A);
    for (int i = 0; i < 10; i++)
        block[i] = alloc_live(1000, A);
    free_live(alloc_live(1000, B), B);
    free_live(alloc_live(1000, A), A); /* records, since B has run dry */
    count_from_here();
    for (int i = 0; i < 10; i++)
        free_live(block[i], A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 0);
    alloc_live(200 * MIB, B); /* dry: it grows */
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemAlloc), 1);
    count_from_here();
    block[0] = alloc_live(1000, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 1);
    block[1] = alloc_live(1000, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 1); /* one for the batch */
    free_live(block[0], A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 1);
    /* Without a dry stream, A records one event when it holds as little memory as at its last event, and one for each
     * 32nd of all memory. */
    for (int i = 0; i < 40; i++)
        block[i] = alloc_live(MIB, A);
    count_from_here();
    for (int i = 0; i < 40; i++)
        free_live(block[i], A);
    MUST_BE_WITHIN(1, calls(WEIR_ENTRY_cuEventRecord), 3 + 40 / 8);
    ck_assert_uint_le(calls(WEIR_ENTRY_cuEventCreate), 3);
}

TEST(the_direct_engine_waits_for_uses) {
    make_engine(KIND_DIRECT, 0, "");
    void *block = alloc_live(MIB, A);

    OK(weir_use(a, block, B));
    busy(B, 5 * MS);
    free_live(block, A);
    ck_assert_uint_ge(weir__model_now_ns(), 5 * MS);
}

/* The pool's engine does not know which blocks are live.  A note about a freed block is dropped when the address is
 * allocated again. */
TEST(stale_notes_are_dropped) {
    make_engine(KIND_POOL, 64 * MIB, "");
    void *block = alloc_live(MIB, A);

    free_live(block, A);
    OK(weir_use(a, block, B));
    busy(B, 50 * MS);
    ck_assert_ptr_eq(alloc_live(MIB, A), block);
    count_from_here();
    free_live(block, A);
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuEventRecord), 0);
    ck_assert_ptr_eq(alloc_live(MIB, A), block);
}

/* The block that another thread allocates, with a noted use, before the free of its address has returned.
 * free_and_be_overtaken() plays that thread. */
static void *quick_block;

static CUresult free_and_be_overtaken(CUdeviceptr block, CUstream stream) {
    CUresult result = driver->cuMemFreeAsync(block, stream);

    table.cuMemFreeAsync = driver->cuMemFreeAsync; /* once */
    quick_block = alloc_live(64 * MIB, C);
    ck_assert_uint_eq((uintptr_t)quick_block, block);
    OK(weir_use(a, quick_block, B));
    return result;
}

TEST(notes_of_the_next_owner_stay) {
    copy_driver();
    make_engine_on(&table, KIND_POOL, 64 * MIB, "");
    void *block = alloc_live(64 * MIB, A);
    OK(weir_use(a, block, C));
    table.cuMemFreeAsync = free_and_be_overtaken;
    free_live(block, A);
    busy(B, 5 * MS);
    free_live(quick_block, C);
    expect_alloc_status(WEIR_E_LIMIT, 64 * MIB, C);
    weir__model_advance(5 * MS);
    free_live(alloc_live(64 * MIB, C), C);
}

/* The end of an allocator frees the notes that are left. */
TEST(notes_do_not_outlive_the_allocator) {
    make_engine(KIND_POOL, 64 * MIB, "");

    for (uintptr_t i = 1; i < 300; i++)
        for (int k = 0; k < 6; k++)
            OK(weir_use(a, (void *)(i * 4096), (CUstream)(uintptr_t)(100 + k)));
}

/* Without stream ids free memory of several streams may be one chunk, so a request waits for all of them. */
TEST_EACH(2, a_stream_may_go_behind_several) {
    make_engine_on(older_driver(WEIR_CAP_STREAM_ID), _i ? KIND_MAPPED : KIND_FIXED, 64 * MIB,
                   "internal-dependencies=on");
    void *first = alloc_live(24 * MIB, A);
    void *second = alloc_live(24 * MIB, B);
    busy(A, 50 * MS);
    busy(B, 5 * MS);
    free_live(first, A);
    free_live(second, B);
    alloc_live(48 * MIB, C);
    weir__model_advance(10 * MS);
    MUST_EQ(driver->cuStreamQuery(B), CUDA_SUCCESS);
    MUST_EQ(driver->cuStreamQuery(C), CUDA_ERROR_NOT_READY);
    busy(C, MS); /* writes its block */
    weir__model_advance(45 * MS);
}

/* A block that lies over memory of several streams waits for each of them. */
TEST_EACH(2, a_block_over_several_chunks_waits_for_each) {
    make_engine(_i ? KIND_MAPPED : KIND_FIXED, 64 * MIB, "internal-dependencies=on");
    void *first = alloc_live(24 * MIB, A);
    void *second = alloc_live(24 * MIB, B);
    busy(A, 5 * MS);
    busy(B, 50 * MS);
    free_live(first, A);
    free_live(second, B);
    alloc_live(48 * MIB, C);
    weir__model_advance(10 * MS);
    MUST_EQ(driver->cuStreamQuery(A), CUDA_SUCCESS);
    MUST_EQ(driver->cuStreamQuery(C), CUDA_ERROR_NOT_READY);
    busy(C, MS); /* writes its block */
    weir__model_advance(45 * MS);
}

/* Without stream ids an event that cannot be recorded at a free must not be replaced later by an event on another
 * stream. */
TEST(without_ids_a_lost_event_is_not_replaced) {
    make_engine_on(older_driver(WEIR_CAP_STREAM_ID), KIND_FIXED, 256 * MIB, "");
    void *block = alloc_live(120 * MIB, A), *other = alloc_live(1000, B);

    busy(A, 50 * MS);
    weir__model_fail(WEIR_ENTRY_cuEventRecord, 1, CUDA_ERROR_UNKNOWN, 0);
    free_live(block, A);
    ck_assert_uint_eq(check_identities(a).in_use, 1024);
    free_live(other, B);
    for (int i = 0; i < 3; i++) {
        expect_alloc_status(WEIR_E_LIMIT, 140 * MIB, B);
        free_live(alloc_live(1000, B), B);
    }
    weir__model_advance(50 * MS);
    OK(weir_trim(a, 0, NULL));
    free_live(alloc_live(140 * MIB, B), B);
}

/* ---- slabs of the pool, which the caches request and free in calls on their stream -------------- */

#define SUPERBLOCK (28 * MIB)

static CUdeviceptr slab(size_t bytes, CUstream stream) {
    struct weir_engine *e = a->reserve.engine;
    struct weir_request r = {
        .bytes = bytes, .asked = bytes, .stream = stream, .flags = WEIR_REQUEST_SLAB};
    unsigned long long id;

    CU(driver->cuStreamGetId(stream, &id));
    r.id = id;
    OK(e->ops->alloc(e, &r));
    MUST_EQ(r.bytes, bytes);
    return r.block;
}

static void give_slab(CUdeviceptr block, CUstream stream) {
    OK(a->reserve.engine->ops->free(a->reserve.engine, block, stream, NULL));
}

static void give_done_slab(CUdeviceptr block) {
    struct weir_freed freed = {.block = &block, .count = 1};

    OK(a->reserve.engine->ops->free_batch(a->reserve.engine, &freed, WEIR_ENGINE_OBSERVED));
}

/* Slabs of a stream lie together.  A slab that a busy stream has freed serves that stream alone, and so does the memory
 * of its empty superblock. */
TEST(a_slab_serves_its_own_stream) {
    make_engine(KIND_POOL, 0, "");
    CUdeviceptr first = slab(64 * KIB, A), second = slab(512 * KIB, A), third = slab(16 * KIB, A);

    MUST_EQ(second, first + 64 * KIB);
    MUST_EQ(third, second + 512 * KIB);
    MUST_EQ(check_identities(a).requested, 592 * KIB);
    busy(A, 50 * MS);
    give_slab(second, A);
    CUdeviceptr of_b = slab(512 * KIB, B);
    MUST(of_b - first >= SUPERBLOCK);
    CUdeviceptr fourth = slab(256 * KIB, A), fifth = slab(256 * KIB, A);
    MUST_EQ(fourth, second);
    MUST_EQ(fifth, second + 256 * KIB);
    give_slab(fourth, A);
    give_slab(fifth, A);
    give_slab(third, A);
    give_slab(first, A);
    void *block = alloc_live(SUPERBLOCK, B);
    MUST((uintptr_t)block != first);
    block = alloc_live(SUPERBLOCK, A);
    MUST_EQ((uintptr_t)block, first);
    give_slab(of_b, B);
    MUST(weir__model_now_ns() < 50 * MS);
}

/* The last slab of a superblock is done, but a slab that A freed before may still be in use: the host waited earlier. */
TEST(an_empty_superblock_is_behind_its_stream) {
    make_engine(KIND_POOL, 0, "");
    CUdeviceptr first = slab(64 * KIB, A), second = slab(64 * KIB, A);

    CU(weir__device_wait(&a->device));
    busy(A, 50 * MS);
    give_slab(second, A);
    give_done_slab(first);
    OK(weir_trim(a, 0, NULL));
    MUST_LE(SUPERBLOCK, reserved_under_test());
    MUST(weir__model_now_ns() < 50 * MS);
    void *of_b = alloc_live(SUPERBLOCK, B);
    MUST((uintptr_t)of_b != first);
    CUdeviceptr again = slab(64 * KIB, A); /* its stream may use it at once */
    MUST_EQ(again, first);
    give_slab(first, A);
    void *of_a = alloc_live(SUPERBLOCK, A);
    MUST_EQ((uintptr_t)of_a, first);
}

/* A stream that has the handle, or the cache, of an ended one may free a slab of the ended one.  No stream may use the
 * memory of the superblock then, before a wait for the device. */
TEST_EACH(2, a_superblock_in_which_another_stream_has_freed_waits_for_the_device) {
    make_engine(KIND_POOL, 0, "");
    CUdeviceptr first = slab(64 * KIB, A), second = slab(64 * KIB, A), third;

    busy(A, 50 * MS);
    give_slab(second, A);
    busy(B, 50 * MS);
    if (_i) /* the driver does not tell which stream B is */
        weir__model_fail(WEIR_ENTRY_cuStreamGetId, 1, CUDA_ERROR_INVALID_HANDLE, 1);
    give_slab(first, B);
    weir__model_faults_clear();
    third = slab(64 * KIB, A);
    MUST(third - first >= SUPERBLOCK);
    MUST((uintptr_t)alloc_live(SUPERBLOCK, B) != first);
    MUST((uintptr_t)alloc_live(SUPERBLOCK, A) != first);
    MUST(weir__model_now_ns() < 50 * MS);
    CU(weir__device_wait(&a->device));
    OK(weir_trim(a, 0, NULL));
    MUST((uintptr_t)alloc_live(SUPERBLOCK, B) == first);
    give_slab(third, A);
}

/* The driver refuses to free one of several probe blocks.  Live blocks are still counted, and keep the allocator. */
TEST(a_probe_block_that_stays_hides_no_live_block) {
    make_engine(KIND_POOL, 0, "cache=off");
    void *block = alloc_live(MIB, A);
    size_t reserved;

    OK(weir_preallocate(a, 512 * MIB, &reserved));
    weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_INVALID_VALUE, 0);
    OK(weir_preallocate(a, 640 * MIB, &reserved)); /* its first probe blocks use up the idle memory */
    weir__model_faults_clear();
    MUST_EQ(stats_of(a).requested, MIB);
    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    free_live(block, A);
}

/* A trim waits for the device if an empty superblock has no stream any more. */
TEST(a_trim_waits_for_a_superblock_without_a_stream) {
    make_engine(KIND_POOL, 0, "");
    CUdeviceptr first = slab(64 * KIB, A);

    busy(A, 50 * MS);
    weir__model_fail(WEIR_ENTRY_cuStreamGetId, 1, CUDA_ERROR_INVALID_HANDLE, 1);
    give_slab(first, A);
    weir__model_faults_clear();
    OK(weir_trim(a, 0, NULL));
    MUST(weir__model_now_ns() >= 50 * MS);
    MUST_EQ(reserved_under_test(), 0);
}

/* A wait for the device after all frees in a superblock gives its memory back, even if the driver refuses the free at
 * first. */
TEST_EACH(2, an_empty_superblock_goes_back_after_a_wait) {
    make_engine(KIND_POOL, 0, "");
    CUdeviceptr first = slab(64 * KIB, A), second = slab(64 * KIB, A);

    give_slab(second, A);
    CU(weir__device_wait(&a->device));
    if (_i)
        weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_INVALID_VALUE, 1);
    give_done_slab(first);
    weir__model_faults_clear();
    MUST_EQ(check_identities(a).requested, 0);
    if (_i)
        MUST_LE(SUPERBLOCK, reserved_under_test());
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(reserved_under_test(), 0);
}

/* Slabs are served as long as the limit has room for them, although not for a superblock. */
TEST(slabs_are_served_beside_a_limit) {
    make_engine(KIND_POOL, 64 * MIB, "");
    void *block = alloc_live(63 * MIB, A);
    CUdeviceptr first = slab(512 * KIB, A), second = slab(512 * KIB, A);
    struct weir_request r = {.bytes = 16 * KIB, .stream = A, .id = 1, .flags = WEIR_REQUEST_SLAB};

    EXPECT(WEIR_E_LIMIT, a->reserve.engine->ops->alloc(a->reserve.engine, &r));
    MUST_EQ(r.bytes, 16 * KIB);
    MUST_EQ(reserved_under_test(), 64 * MIB);
    give_slab(first, A);
    give_slab(second, A);
    free_live(block, A);
}

static void *use_other_block(void *unused) {
    (void)unused;
    elsewhere.status = weir_use(a, elsewhere.block, elsewhere.stream);
    return NULL;
}

/* The per-thread default streams of two threads have one handle, but are two streams. */
TEST_WHERE(KIND_POOL, KIND_POOL + 1, NULL, default_streams_of_two_threads_are_two) {
    weir_stream per_thread = (weir_stream)WEIR_STREAM_PER_THREAD_VALUE;
    make_engine(_i, 64 * MIB, "");
    void *block = alloc_live(MIB, A);

    OK(weir_use(a, block, per_thread));
    elsewhere.block = block;
    elsewhere.stream = per_thread;
    run_in_thread(use_other_block, NULL);
    OK(elsewhere.status);
    EXPECT(WEIR_E_STREAM, weir_free(a, block, A)); /* not this thread's stream */
}

/* A program may free a pool's block by the driver's own call.  Destroy asks the pool whether blocks are live. */
TEST(a_block_freed_by_the_driver_is_no_live_block) {
    void *block;

    for (int in_order = 0; in_order < 2; in_order++) {
        make_engine(KIND_POOL, 0, "");
        block = alloc_live(MIB, A);
        drop_live(block);
        EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
        if (in_order) {
            CU(driver->cuMemFreeAsync((CUdeviceptr)(uintptr_t)block, A));
        } else { /* cuMemFree leaves it counted as used: only a trim can tell */
            CU(driver->cuMemFree((CUdeviceptr)(uintptr_t)block));
            weir__model_fail(WEIR_ENTRY_cuMemPoolTrimTo, 1, CUDA_ERROR_UNKNOWN, 0);
            EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
        }
        destroy();
    }
}

TEST(events_and_latencies_know_a_fork) {
    weir_latency latency = {.size = sizeof latency};
    size_t count;
    int status;
    make_engine(KIND_POOL, 0, "latency=on");
    pid_t child = fork();
    if (child == 0)
        _exit(weir_events(a, 0, NULL, sizeof(weir_event), 0, &count) != WEIR_E_FORKED ||
              weir_latencies(a, 0, &latency) != WEIR_E_FORKED);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

SUITE("engines", CK_FORK_GETENV);
