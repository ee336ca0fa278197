/* SPDX-License-Identifier: MIT */
/* test_harden.c: options.harden, on every engine, with the caches and without.
 *
 * The model's memory is memory of the host, so that a test can play a kernel that writes out of bounds.  weir finds
 * each planted fault and reports it once.  Without a fault weir reports nothing, whatever the program does.  The
 * figures stay true, and in the end all memory is free. */
#include "api/allocator_internal.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/every_world.h"

#define POISON WEIR_HARDEN_POISON
#define GUARD WEIR_HARDEN_GUARD
#define ZERO_STREAM WEIR_HARDEN_ZERO_STREAM
#define ZERO_ALWAYS WEIR_HARDEN_ZERO_ALWAYS

static const size_t sizes[] = {1, 255, 512, 3000, 20001, 70000, 512 * KIB, 600001, 3 * MIB};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* All combinations with different effects. */
static const uint64_t combinations[] = {POISON,
                                        GUARD,
                                        ZERO_STREAM,
                                        ZERO_ALWAYS,
                                        POISON | GUARD,
                                        POISON | ZERO_STREAM,
                                        GUARD | ZERO_ALWAYS,
                                        POISON | GUARD | ZERO_STREAM | ZERO_ALWAYS};
enum { COMBINATIONS = sizeof combinations / sizeof combinations[0] };

static void open_on(const struct weir_driver *table, int world, uint64_t harden) {
    weir_options options = options_of_world(world, 512 * MIB);

    options.log = WEIR_LOG_WARNING;
    options.recovery_timeout_ms = 100;
    options.harden = harden;
    OK(weir__allocator_create_on(table, &options, &a, NULL, 0));
}

static void open_hardened(int world, uint64_t harden) {
    open_on(driver, world, harden);
}

/* Opens an allocator with a limit of 128 MiB.  A request that does not fit waits `timeout_ms` for frees, at most. */
static void open_limited(int world, uint64_t harden, uint32_t timeout_ms) {
    weir_options options = options_of_world(world, 128 * MIB);

    options.limit = bytes_amount(128 * MIB);
    options.harden = harden;
    options.recovery_timeout_ms = timeout_ms;
    OK(weir_allocator_create(&options, &a));
}

/* Checks that nothing is live and that weir found that many faults in all, and ends the allocator. */
static void end_hardened(uint64_t late_writes, uint64_t overruns) {
    weir_statistics s = check_identities(a);

    MUST_EQ(s.requested, 0);
    MUST_EQ(s.in_use, 0);
    MUST_EQ(s.late_writes, late_writes);
    MUST_EQ(s.overruns, overruns);
    destroy_empty();
}

static int is_all(const unsigned char *block, unsigned char value, size_t bytes) {
    return block[0] == value && memcmp(block, block + 1, bytes - 1) == 0;
}

/* ---- a program without faults ---------------------------------------------------------------- */

/* Ends the allocator that a test has left, which must have found no fault. */
static void end_hardened_if_there(void) {
    if (a)
        end_hardened(0, 0);
}

CASE("each world", 60, start_world_device, end_hardened_if_there);

/* Two streams write blocks from end to end and free them, with and without noted uses. */
TEST_EACH((WORLDS * COMBINATIONS), nothing_is_said_without_a_fault) {
    enum { MOST = 60, STEPS = 600 };
    uint64_t harden = combinations[_i % COMBINATIONS], random = 5, requested = 0;
    unsigned char *block[MOST] = {0};
    size_t bytes[MOST] = {0};

    open_hardened(_i / COMBINATIONS, harden);
    for (int step = 0; step < STEPS; step++) {
        int k = (int)(next_random(&random) % MOST);
        CUstream s = next_random(&random) % 2 ? A : B;

        if (block[k]) {
            MUST(block[k][0] == k + 1 && block[k][bytes[k] - 1] == k + 1);
            if (step % 5 == 0)
                OK(weir_use(a, block[k], C));
            free_in_world(block[k], s);
            requested -= bytes[k];
            block[k] = NULL;
        } else {
            bytes[k] = step % 40 == 0 ? 2 * MIB : random_size(&random, 30000);
            block[k] = alloc_in_world(bytes[k], s);
            requested += bytes[k];
            if (harden & ZERO_ALWAYS)
                MUST(is_all(block[k], 0, bytes[k]));
            memset(block[k], k + 1, bytes[k]);
        }
        if (step % 100 == 0) {
            weir_statistics now = check_identities(a);

            MUST_EQ(now.requested, requested);
            busy(step % 200 ? A : C, MS);
        }
        if (step % 200 == 150)
            OK(weir_trim(a, 0, NULL));
    }
    for (int k = 0; k < MOST; k++)
        if (block[k])
            free_in_world(block[k], A);
    end_hardened(0, 0);
    expect_lines(__LINE__, 0);
}

enum { THREADS = 4 };

/* Each thread uses a private stream and one that all threads share. */
static void *run_thread(void *argument) {
    enum { HELD = 16, STEPS = 300 };
    uintptr_t number = *(const uintptr_t *)argument;
    uint64_t random = 77 + number;
    unsigned char *block[HELD] = {0};
    size_t bytes[HELD] = {0};
    CUstream own;

    CU(driver->cuCtxPushCurrent(primary));
    own = make_stream();
    for (int step = 0; step < STEPS; step++) {
        int k = (int)(next_random(&random) % HELD), mark = k + 16 * (int)number;
        CUstream s = next_random(&random) % 2 ? own : A;

        if (block[k]) {
            MUST(is_all(block[k], (unsigned char)mark, bytes[k]));
            free_in_world(block[k], s);
            MUST(weir_free(a, block[k] + 1, s) == WEIR_E_NOT_OWNED);
            block[k] = NULL;
        } else {
            bytes[k] = random_size(&random, 60000);
            block[k] = alloc_in_world(bytes[k], s);
            memset(block[k], mark, bytes[k]);
        }
        if (step % 100 == 99)
            OK(weir_trim(a, 0, NULL));
    }
    for (int k = 0; k < HELD; k++)
        if (block[k])
            free_in_world(block[k], own);
    CU(driver->cuStreamDestroy(own));
    return NULL;
}

TEST_EACH(WORLDS * 2, threads_share_it) {
    uintptr_t numbers[THREADS];

    open_hardened(_i / 2, _i % 2 ? POISON | GUARD : POISON | GUARD | ZERO_STREAM);
    for (uintptr_t i = 0; i < THREADS; i++)
        numbers[i] = i;
    run_threads(THREADS, run_thread, numbers, sizeof *numbers);
}

/* ---- poison ---------------------------------------------------------------------------------- */

enum found_by { NEXT_REQUEST, FULL_SHELF, A_TRIM, WANT_OF_MEMORY, FOUND_BY };

static void find_damage(enum found_by how, size_t bytes) {
    unsigned char *more[70];
    void *none;

    switch (how) {
    case NEXT_REQUEST:
        free_in_world(alloc_in_world(bytes, A), A);
        break;
    case FULL_SHELF:
        for (int i = 0; i < 70; i++)
            more[i] = alloc_in_world(100, A);
        for (int i = 0; i < 70; i++)
            free_in_world(more[i], A);
        break;
    case A_TRIM:
        OK(weir_trim(a, 0, NULL));
        break;
    default:
        MUST(weir_alloc(a, CAPACITY, B, &none) != WEIR_OK);
    }
}

TEST_EACH((WORLDS * FOUND_BY), writes_after_the_free_are_found) {
    int world = _i / FOUND_BY, found = 0;
    unsigned char *bad[SIZES];
    size_t kept = 0;

    open_hardened(world, POISON);
    for (int i = 0; i < SIZES; i++) {
        size_t at = i % 3 == 0 ? 0 : i % 3 == 1 ? sizes[i] - 1 : sizes[i] / 2;
        char offset[64];

        bad[i] = alloc_in_world(sizes[i], A);
        free_in_world(bad[i], A);
        MUST(is_all(bad[i], 0xdd, sizes[i]));
        bad[i][at] = 0x11;
        (void)lines();
        find_damage((enum found_by)(_i % FOUND_BY), sizes[i]);
        found++;
        kept += sizes[i];
        MUST_EQ(stats_of(a).late_writes, (uint64_t)found);
        MUST_EQ(stats_of(a).kept_out, kept);
        MUST(lines() >= 1);
        snprintf(offset, sizeof offset, "0x%llx of %zu byte%s was written",
                 (unsigned long long)(uintptr_t)bad[i], sizes[i], sizes[i] == 1 ? "" : "s");
        ck_assert_msg(strstr(logged, offset) != NULL, "%s", logged);
        snprintf(offset, sizeof offset, "first at offset %zu:", at);
        ck_assert_msg(strstr(logged, offset) != NULL, "%s", logged);
    }
    /* No stream gets a block that is kept out. */
    for (int i = 0; i < 200; i++) {
        unsigned char *block = alloc_in_world(sizes[i % SIZES], i % 2 ? A : B);

        for (int k = 0; k < SIZES; k++)
            MUST(block + sizes[i % SIZES] <= bad[k] || bad[k] + sizes[k] <= block);
        free_in_world(block, i % 2 ? A : B);
    }
    for (int i = 0; i < SIZES; i++)
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, bad[i], A));
    end_hardened((uint64_t)found, 0);
}

/* The damaged block is still on a shelf when the allocator is destroyed. */
TEST_EACH(WORLDS, a_late_write_is_found_at_the_end) {
    open_hardened(_i, POISON);
    unsigned char *block = alloc_in_world(70000, A);
    free_in_world(block, A);
    block[777] = 0;
    (void)lines();
    OK(weir_allocator_destroy(a));
    a = NULL;
    expect_lines(__LINE__, 1);
    MUST(strstr(logged, "first at offset 777:") != NULL);
    MUST_EQ(device_free(), CAPACITY);
}

/* A free needs the address of a live block of this allocator, with and without the caches. */
TEST_EACH(WORLDS, what_lies_on_a_shelf_is_freed) {
    open_hardened(_i, POISON | GUARD);
    unsigned char *block = alloc_in_world(3000, A);
    weir_allocator *first = a;
    open_hardened(_i, WEIR_HARDEN_OFF);
    unsigned char *theirs = alloc_in_world(3000, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(first, theirs, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_use(first, theirs, B));
    free_in_world(theirs, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    a = first;
    (void)lines();
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block - 256, A)); /* the engine's block begins there */
    expect_lines(__LINE__, 1);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block + 256, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_use(a, block - 256, B));
    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    free_in_world(block, A);
    for (int i = 0; i < 3; i++) {
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, B));
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block - 256, A));
        EXPECT(WEIR_E_NOT_OWNED, weir_use(a, block, B));
    }
}

/* At the limit, another stream reuses the memory of a shelf. */
TEST_EACH(4, shelves_give_way_at_the_limit) {
    unsigned char *block;

    MUST(_i < 2 || worlds[_i].kind == KIND_FIXED);
    open_limited(_i, POISON | GUARD, 100);
    for (int i = 0; i < 4; i++) {
        block = alloc_in_world(90 * MIB, i % 2 ? A : B);
        memset(block, i, 90 * MIB);
        busy(i % 2 ? A : B, MS);
        free_in_world(block, i % 2 ? A : B);
        free_in_world(alloc_in_world(80 * MIB, C), C);
    }
}

/* If no call may wait, another stream's request fails, and the shelf still serves its own stream. */
TEST_EACH(2, shelves_stay_where_nobody_may_wait) {
    void *none = NULL;

    open_limited(_i, ZERO_STREAM, UINT32_MAX);
    free_in_world(alloc_in_world(90 * MIB, A), A);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 80 * MIB, B, &none));
    MUST(none == NULL);
    free_in_world(alloc_in_world(90 * MIB, A), A);
}

/* A shelf holds 64 MiB at most, not counting its last block. */
TEST_EACH(WORLDS, a_full_shelf_gives_its_oldest) {
    unsigned char *block[3];

    open_hardened(_i, ZERO_STREAM);
    for (int i = 0; i < 3; i++)
        block[i] = alloc_in_world(40 * MIB, A);
    for (int i = 0; i < 3; i++)
        free_in_world(block[i], A);
    MUST_LE(stats_of(a).reserved, 512 * MIB);
    MUST(alloc_in_world(40 * MIB, A) == block[2]); /* the shelf has dropped the older blocks */
    free_in_world(block[2], A);
}

static void count_live_range(void *count, uint64_t base, size_t bytes) {
    (void)base;
    (void)bytes;
    ++*(int *)count;
}

/* Returns the number of blocks that the engine may not have back for now. */
static int live_ranges(void) {
    int count = 0;

    weir__harden_live(a->harden, count_live_range, &count);
    return count;
}

/* Blocks that are kept out are freed at the end.  If the driver refuses the free, a second destroy frees them. */
TEST_EACH(WORLDS, what_is_kept_out_goes_in_the_end) {
    open_hardened(_i, POISON);
    unsigned char *block = alloc_in_world(70000, A);
    free_in_world(block, A);
    block[777] = 0;
    ANSWERS(0, live_ranges());
    OK(weir_free(a, alloc_in_world(70000, A), A)); /* finds the fault, and returns another block */
    MUST_EQ(stats_of(a).kept_out, 70000);
    ANSWERS(1, live_ranges()); /* the other block, which is on a shelf */
    CU(driver->cuCtxSynchronize());
    if (worlds[_i].kind == KIND_POOL && worlds[_i].cache == WEIR_SWITCH_OFF) {
        weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 2, CUDA_ERROR_UNKNOWN, 0);
        EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
        MUST_EQ(stats_of(a).kept_out, 70000);
    }
    end_hardened(1, 0);
}

/* In the other worlds a free makes no driver call that could fail. */
static int is_pool_alone(int row) {
    return worlds[row].kind == KIND_POOL && worlds[row].cache == WEIR_SWITCH_OFF;
}

/* A block that the driver did not free is not damaged.  The next trim frees it. */
TEST_WHERE(0, WORLDS, is_pool_alone, what_was_not_taken_back_goes_later) {
    open_hardened(_i, POISON);
    free_in_world(alloc_in_world(70000, A), A);
    CU(driver->cuCtxSynchronize());
    weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_UNKNOWN, 0);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(weir__model_faults_injected(NULL), 1);
    MUST_EQ(stats_of(a).kept_out, 70000);
    ANSWERS(0, live_ranges());
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(stats_of(a).kept_out, 0);
    CU(driver->cuCtxSynchronize()); /* lets the driver see that the work is complete */
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(stats_of(a).reserved, 0);
}

/* The block's stream may still use its memory, so that a trim waits for that work. */
TEST_WHERE(0, WORLDS, is_pool_alone, what_was_not_taken_back_is_waited_for) {
    void *none = NULL;
    unsigned char *block, *next;

    open_limited(_i, ZERO_STREAM | ZERO_ALWAYS, 100);
    block = alloc_in_world(90 * MIB, A);
    CU(weir__model_use(A, (uintptr_t)block, 90 * MIB, 1, 50 * MS));
    free_in_world(block, A);
    weir__model_fail(WEIR_ENTRY_cuMemsetD8Async, 1, CUDA_ERROR_UNKNOWN, 0);
    weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_alloc(a, 90 * MIB, A, &none));
    MUST_EQ(weir__model_faults_injected(NULL), 2);
    weir__model_faults_clear();
    MUST_EQ(stats_of(a).kept_out, 90 * MIB);
    next = alloc_in_world(80 * MIB, B);
    CU(weir__model_use(B, (uintptr_t)next, 80 * MIB, 2, MS));
    MUST_EQ(stats_of(a).kept_out, 0);
    ck_assert_msg(!weir__model_fault(), "%s", weir__model_fault());
    free_in_world(next, B);
}

/* A thread needs no context. */
TEST_EACH(WORLDS, a_thread_needs_no_context) {
    CUcontext was;
    open_hardened(_i, POISON | GUARD | ZERO_STREAM);
    CU(driver->cuCtxPopCurrent(&was));
    unsigned char *block = alloc_in_world(3000, A);
    OK(weir_use(a, block, B));
    free_in_world(block, A);
    free_in_world(alloc_in_world(3000, A), A);
    CU(driver->cuCtxPushCurrent(was));
    MUST_EQ(lines(), 0);
}

/* The block's stream waits on the device for the noted uses, before it writes the poison. */
TEST_EACH(WORLDS, uses_come_before_the_poison) {
    open_hardened(_i, POISON);
    unsigned char *block = alloc_in_world(3000, A);
    free_in_world(alloc_in_world(3000, B), B);
    CU(driver->cuCtxSynchronize());
    OK(weir_use(a, block, B));
    busy(B, 50 * MS);
    MUST(driver->cuStreamQuery(A) == CUDA_SUCCESS);
    free_in_world(block, A);
    MUST(driver->cuStreamQuery(A) == CUDA_ERROR_NOT_READY);
    weir__model_advance(60 * MS);
    MUST(driver->cuStreamQuery(A) == CUDA_SUCCESS);
}

/* Streams come and go, and the memory on their shelves is reused. */
TEST_EACH(WORLDS, shelves_of_past_streams_are_reused) {
    uint64_t reserve = 0;

    open_hardened(_i, POISON);
    for (int i = 0; i < 300; i++) {
        CUstream s;

        s = make_stream();
        free_in_world(alloc_in_world(MIB, s), s);
        busy(s, MS / 100);
        CU(driver->cuStreamDestroy(s));
        if (i == 150)
            reserve = check_identities(a).reserved;
    }
    MUST_LE(check_identities(a).reserved, reserve + 64 * MIB);
}

TEST_EACH(WORLDS / 2, without_ids_there_is_no_poison) {
    struct weir_driver old = *driver;
    unsigned char *block;

    old.capabilities &= ~(unsigned)WEIR_CAP_STREAM_ID;
    old.cuStreamGetId = NULL;
    open_on(&old, 1 + 2 * _i, POISON | ZERO_STREAM); /* worlds without caches */
    (void)lines();
    MUST(strstr(logged, "harden poison is off") != NULL);
    for (int i = 0; i < 50; i++) {
        block = alloc_in_world(3000, A);
        MUST(is_all(block, 0, 3000));
        memset(block, 0x33, 3000);
        free_in_world(block, A);
    }
    end_hardened(0, 0); /* needs the driver's table */
}

/* ---- guards ---------------------------------------------------------------------------------- */

TEST_EACH(WORLDS * 2, overruns_are_found) {
    static const struct {
        int before;
        size_t bytes;
        const char *text;
    } faults[] = {{0, 1, "the gap behind it was written to, 0 bytes past its end"},
                  {0, 256, "the gap behind it was written to, 255 bytes past its end"},
                  {1, 1, "the gap before it was written to, 1 byte before its beginning"},
                  {1, 256, "the gap before it was written to, 256 bytes before its beginning"}};
    enum { FAULTS = sizeof faults / sizeof faults[0] };
    uint64_t found = 0, harden = _i % 2 ? GUARD : GUARD | POISON;

    open_hardened(_i / 2, harden);
    for (int i = 0; i < SIZES * FAULTS; i++) {
        size_t bytes = sizes[i % SIZES];
        unsigned char *block = alloc_in_world(bytes, A);
        char where[64];

        memset(block, 0xfd + i, bytes);
        if (faults[i / SIZES].before)
            block[-(ptrdiff_t)faults[i / SIZES].bytes] ^= 1;
        else
            block[bytes + faults[i / SIZES].bytes - 1] ^= 0x80;
        (void)lines();
        free_in_world(block, A);
        found++;
        MUST_EQ(stats_of(a).overruns, found);
        expect_lines(__LINE__, 1);
        snprintf(where, sizeof where, "block 0x%llx of %zu byte%s,",
                 (unsigned long long)(uintptr_t)block, bytes, bytes == 1 ? "" : "s");
        ck_assert_msg(strstr(logged, where) && strstr(logged, faults[i / SIZES].text), "%s",
                      logged);
        block = alloc_in_world(bytes, A); /* the guard is whole again */
        free_in_world(block, A);
    }
    expect_lines(__LINE__, 0);
    end_hardened(0, found);
}

/* ---- zero ------------------------------------------------------------------------------------ */

static int is_either(const unsigned char *block, unsigned char value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (block[i] != 0 && block[i] != value)
            return 0;
    return 1;
}

/* Memory that one stream wrote goes to the engine and to another stream.  Each stream finds its own data or zeroes. */
TEST_EACH(WORLDS * 2, other_streams_memory_is_zeroed) {
    enum { COUNT = 40 };
    unsigned char *block[COUNT], *small[70];
    uint64_t harden = _i % 2 ? ZERO_STREAM : ZERO_ALWAYS;
    int own = 0, zeroed = 0;

    open_hardened(_i / 2, harden);
    for (int round = 0; round < 8; round++) {
        CUstream s = round % 2 ? A : B;
        unsigned char pattern = round % 2 ? 0x5a : 0xa5;

        for (int i = 0; i < COUNT; i++) {
            size_t bytes = sizes[i % SIZES];

            block[i] = alloc_in_world(bytes, s);
            MUST(is_either(block[i], pattern, bytes < 100000 ? bytes : 100000));
            own += is_all(block[i], pattern, bytes);
            zeroed += is_all(block[i], 0, bytes);
            memset(block[i], pattern, bytes);
        }
        for (int i = 0; i < COUNT; i++)
            free_in_world(block[i], s);
        if (round % 4 == 3)
            OK(weir_trim(a, 0, NULL));
        for (int i = 0; i < 70; i++) /* replaces the blocks on the shelf */
            small[i] = alloc_in_world(100, s);
        for (int i = 0; i < 70 && round % 3; i++)
            free_in_world(small[i], s);
        for (int i = 0; i < 70 && round % 3 == 0; i++)
            free_in_world(small[69 - i], C);
    }
    MUST(harden == ZERO_STREAM ? own > 0 && zeroed > own : own == 0);
}

/* ---- capture --------------------------------------------------------------------------------- */

static CUgraphExec launch_captured_on_c(CUgraph *graph) {
    CUgraphExec exec;

    CU(driver->cuStreamEndCapture(C, graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, *graph, 0));
    CU(driver->cuGraphLaunch(exec, C));
    return exec;
}

/* weir zeroes a graph's block at each launch.  weir neither poisons nor verifies a block that is freed in a capture.
 * The direct engine has no memory of graphs. */
TEST_EACH(WORLDS - 2, blocks_of_graphs_are_zeroed_at_each_launch) {
    int is_kept = worlds[_i].kind == KIND_POOL && worlds[_i].cache != WEIR_SWITCH_ON;
    CUgraph graph;
    open_hardened(_i, POISON | GUARD | ZERO_STREAM);
    unsigned char *outside = alloc_in_world(3000, C);
    memset(outside, 0x44, 3000);
    outside[3000] = 0;
    CU(driver->cuStreamBeginCapture(C, CU_STREAM_CAPTURE_MODE_GLOBAL));
    unsigned char *block = alloc_in_world(3000, C);
    OK(weir_use(a, block, C));
    EXPECT(WEIR_E_NOT_OWNED, weir_use(a, &a, C));
    if (!is_kept) /* the driver refuses such a free */
        free_in_world(outside, C);
    CUgraphExec exec = launch_captured_on_c(&graph);
    CU(driver->cuStreamSynchronize(C));
    MUST(is_all(block, 0, 3000));
    memset(block, 0x66, 3000);
    free_in_world(block, C);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, C));
    MUST(outside[0] == 0x44 && outside[2999] == 0x44);
    MUST_EQ(stats_of(a).overruns, 0);
    if (is_kept) {
        free_in_world(outside, C);
        MUST_EQ(stats_of(a).overruns, 1);
    }
    CU(driver->cuStreamSynchronize(C));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuDeviceGraphMemTrim(0));
    end_hardened(0, is_kept ? 1 : 0);
}

/* If nothing is zeroed, weir leaves a graph's block unchanged. */
TEST_EACH(WORLDS - 2, a_graphs_block_is_unchanged_if_nothing_is_zeroed) {
    CUgraph graph;
    open_hardened(_i, POISON | GUARD);
    CU(driver->cuStreamBeginCapture(C, CU_STREAM_CAPTURE_MODE_GLOBAL));
    count_from_here();
    free_in_world(alloc_in_world(3000, C), C);
    MUST_EQ(calls(WEIR_ENTRY_cuMemsetD8Async), 0);
    CUgraphExec exec = launch_captured_on_c(&graph);
    CU(driver->cuStreamSynchronize(C));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuDeviceGraphMemTrim(0));
}

static CUdeviceptr place_of_graphs; /* the next graph's, unless 0 */

static CUresult take_for_graph(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                               CUstream stream) {
    CUresult result = driver->cuMemAllocFromPoolAsync(block, bytes, pool, stream);

    if (result == CUDA_SUCCESS && place_of_graphs != 0)
        *block = place_of_graphs;
    return result;
}

/* The block has the address of an earlier graph's block.  On its shelf it counts as freed, not as the graph's. */
TEST_EACH(WORLDS - 2, a_block_at_a_past_graphs_address_counts_as_freed) {
    struct weir_driver table = *driver;
    if (worlds[_i].kind != KIND_MAPPED) /* only mapped addresses come again */
        return;
    table.cuMemAllocFromPoolAsync = take_for_graph;
    open_on(&table, _i, POISON);
    unsigned char *block = alloc_in_world(900000, A);
    place_of_graphs = (uintptr_t)block;
    free_in_world(block, A);
    OK(weir_trim(a, 0, NULL));
    CU(driver->cuStreamBeginCapture(C, CU_STREAM_CAPTURE_MODE_RELAXED));
    void *node = alloc_in_world(1000, C);
    drop_capture(C);
    place_of_graphs = 0;
    block = alloc_in_world(900000, A);
    MUST(block == node);
    free_in_world(block, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, node, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, node, B));
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(stats_of(a).late_writes, 0);
    a = NULL; /* cannot be destroyed after the graph and its table */
}

/* weir breaks no capture of another stream. */
TEST_EACH(WORLDS, checks_break_no_capture_of_another_stream) {
    CUstreamCaptureStatus status;
    CUgraph graph;

    open_hardened(_i, POISON | GUARD | ZERO_ALWAYS);
    free_in_world(alloc_in_world(40 * MIB, A),
                  A); /* a pool without caches cannot grow during a capture */
    CU(driver->cuStreamBeginCapture(C, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < SIZES; i++)
        free_in_world(alloc_in_world(sizes[i], i % 2 ? A : B), A);
    OK(weir_trim(a, 0, NULL));
    CU(driver->cuStreamIsCapturing(C, &status));
    MUST_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CU(driver->cuStreamEndCapture(C, &graph));
    if (graph)
        CU(driver->cuGraphDestroy(graph));
}

/* ---- drivers that refuse --------------------------------------------------------------------- */

/* The k-th call of an entry fails.  The request or free then fails and changes nothing, or it succeeds. */
TEST_EACH(WORLDS, each_driver_call_fails_once) {
    static const enum weir_driver_entry entries[] = {
        WEIR_ENTRY_cuMemsetD8Async, WEIR_ENTRY_cuMemcpyDtoHAsync, WEIR_ENTRY_cuStreamSynchronize,
        WEIR_ENTRY_cuStreamWaitEvent, WEIR_ENTRY_cuEventCreate};

    for (size_t e = 0; e < sizeof entries / sizeof entries[0]; e++)
        for (uint64_t k = 1, more = 1; more; k++) {
            void *block[4] = {0};
            weir_status status;

            start_model(CAPACITY);
            open_hardened(_i, POISON | GUARD | ZERO_STREAM);
            count_from_here();
            weir__model_fail(entries[e], k, CUDA_ERROR_UNKNOWN, 0);
            for (int i = 0; i < 4; i++) {
                status = weir_alloc(a, sizes[i + 3], i % 2 ? A : B, &block[i]);
                MUST(status == WEIR_OK || (status == WEIR_E_DRIVER && !block[i]));
                if (block[i] && i == 1)
                    OK(weir_use(a, block[i], C));
            }
            for (int i = 0; i < 4; i++) {
                status = weir_free(a, block[i], A);
                MUST(status == WEIR_OK || status == WEIR_E_DRIVER);
                if (status != WEIR_OK)
                    OK(weir_free(a, block[i], A));
            }
            more = calls(entries[e]) >= k;
            weir__model_faults_clear();
            free_in_world(alloc_in_world(sizes[3], A), A);
            MUST(k < 100);
            end_hardened(0, 0);
            (void)lines();
        }
}

/* A free fails while it verifies the guards.  The next owner of the memory is not affected.  While weir cannot wait for
 * the device, the free fails again, in a capture too. */
TEST_EACH(WORLDS * 2, a_free_that_fails_to_verify_leaves_its_memory_intact) {
    CUgraph graph;
    open_hardened(_i / 2, GUARD);
    void *block = alloc_in_world(20001, A);
    free_in_world(alloc_in_world(20001, C), C); /* weir now queries the work of each stream */
    CU(weir__model_kernel(B, 50 * MS));
    weir__model_fail(WEIR_ENTRY_cuStreamSynchronize, 1, CUDA_ERROR_UNKNOWN, 0);
    if (_i % 2 == 0) {
        ck_assert_int_eq(weir_free(a, block, B), WEIR_E_DRIVER);
        MUST_LE(50 * MS, weir__model_now_ns()); /* the free waited for the device */
    } else {
        weir__model_fail(WEIR_ENTRY_cuMemFree, 1, CUDA_ERROR_UNKNOWN, 1);
        weir__model_fail(WEIR_ENTRY_cuMemFreeHost, 1, CUDA_ERROR_UNKNOWN, 1);
        ck_assert_int_eq(weir_free(a, block, B), WEIR_E_DRIVER);
        ck_assert_int_eq(weir_free(a, block, A), WEIR_E_DRIVER);
        CU(driver->cuStreamBeginCapture(C, CU_STREAM_CAPTURE_MODE_RELAXED));
        ck_assert_int_eq(weir_free(a, block, C), WEIR_E_CAPTURE);
        CU(driver->cuStreamEndCapture(C, &graph));
        if (graph)
            CU(driver->cuGraphDestroy(graph));
        weir__model_faults_clear();
    }
    free_in_world(block, A);
    OK(weir_trim(a, 0, NULL));
    OK(weir_allocator_destroy(a));
    a = NULL;
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
    check_model();
    MUST_EQ(device_free(), CAPACITY);
    (void)lines();
}

SUITE("harden", CK_FORK_GETENV);
