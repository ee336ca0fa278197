/* SPDX-License-Identifier: MIT */
/* test_misuse.c: a program's mistakes, in every world: each has a status and a line in the log, and harms nothing.
 *
 * Each test holds witnesses: live blocks of all sizes with a pattern.  After each mistake they still have the pattern,
 * new blocks do not lie in them, the figures are unchanged, and in the end all witnesses can be freed.
 *
 * A mistake that weir cannot see is not tested: doc/design.md names those. */
#include "test_misuse.h"

/* ---- freed twice ----------------------------------------------------------------------------- */

enum way {
    AT_ONCE,
    ON_ANOTHER_STREAM, /* on a remote-free queue of its slab */
    BY_ANOTHER_THREAD, /* in the remote-free queue */
    BEHIND_USES,       /* pending until a stream's work is complete */
    BOUND,
    AFTER_A_TRIM,
    WAYS
};

static void free_first(enum way way, void *block) {
    switch (way) {
    case ON_ANOTHER_STREAM:
        free_in_world(block, B);
        break;
    case BY_ANOTHER_THREAD:
        free_in_world(alloc_in_world(512, A), A);
        OK(free_in_thread(block, A));
        break;
    case BEHIND_USES:
        OK(weir_use(a, block, B));
        OK(weir_use(a, block, C));
        busy(B, 5 * MS);
        free_in_world(block, A);
        break;
    default:
        free_in_world(block, A);
    }
    if (way == AFTER_A_TRIM)
        OK(weir_trim(a, 0, NULL));
}

CASE("each world", 60, start_world_device, NULL);

TEST_EACH((WORLDS * WAYS), freed_twice) {
    int world = _i / WAYS, bound = _i % WAYS == BOUND;

    begin_misuse(world);
    if (bound)
        OK(weir_bind(a, A));
    for (int i = 0; i < SIZES; i++) {
        void *block = alloc_in_world(sizes[i], A);

        free_first((enum way)(_i % WAYS), block);
        expect_freed(block);
    }
    expect_unharmed();
    weir__model_advance(5 * MS);
    if (bound)
        OK(weir_unbind(a, A));
    end_misuse();
}

/* All old blocks are freed, and merged or released.  Then larger and smaller blocks use the memory.  A free fails at
 * each address where no block begins. */
TEST_EACH(WORLDS, freed_after_it_was_handed_out_again) {
    enum { OLD = 60, NEW = 200 };
    void *old[OLD], *block[NEW];
    int inside = 0;

    begin_misuse(_i);
    for (int trimmed = 0; trimmed < 2; trimmed++) {
        for (int i = 0; i < OLD; i++)
            old[i] = alloc_in_world(sizes[i % SIZES], A);
        for (int i = 0; i < OLD; i++)
            free_in_world(old[i], A);
        if (trimmed)
            OK(weir_trim(a, 0, NULL));
        for (int i = 0; i < NEW; i++)
            block[i] = alloc_in_world(i % 20 ? 100000 + (size_t)i * 777 : 5 * MIB, A);
        for (int i = 0; i < OLD; i++) {
            int live = is_witness(old[i]);

            for (int k = 0; k < NEW; k++)
                live |= block[k] == old[i];
            if (live)
                continue;
            inside++;
            MISUSE(WEIR_E_NOT_OWNED, weir_free(a, old[i], A));
            MISUSE(WEIR_E_NOT_OWNED, weir_free(a, old[i], B));
        }
        for (int i = 0; i < NEW; i++)
            free_in_world(block[i], A);
        for (int i = 0; i < NEW; i++)
            MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block[i], A));
    }
    MUST(inside > 0);
    end_misuse();
}

/* Two threads free all of these blocks in turn.  One of the two frees of a block fails. */
static pthread_barrier_t both;
static void *disputed[SIZES * 20];
static int accepted;

static void *free_all(void *unused) {
    (void)unused;
    CU(driver->cuCtxPushCurrent(primary));
    for (int i = 0; i < SIZES * 20; i++) {
        pthread_barrier_wait(&both);
        accepted += weir_free(a, disputed[i], B) == WEIR_OK;
        pthread_barrier_wait(&both);
    }
    return NULL;
}

TEST_EACH(WORLDS, one_of_two_frees_by_two_threads_succeeds) {
    pthread_t thread;
    int mine = 0;

    begin_misuse(_i);
    for (int i = 0; i < SIZES * 20; i++)
        disputed[i] = alloc_in_world(size_of(i), A);
    accepted = 0;
    pthread_barrier_init(&both, NULL, 2);
    MUST(pthread_create(&thread, NULL, free_all, NULL) == 0);
    for (int i = 0; i < SIZES * 20; i++) {
        if (i % 2)
            mine += weir_free(a, disputed[i], A) == WEIR_OK;
        pthread_barrier_wait(&both);
        pthread_barrier_wait(&both);
        if (i % 2 == 0)
            mine += weir_free(a, disputed[i], A) == WEIR_OK;
    }
    MUST(pthread_join(thread, NULL) == 0);
    MUST_EQ(mine, SIZES * 10);
    MUST_EQ(accepted, SIZES * 10);
    end_misuse();
}

/* ---- pointers that are no block's ---------------------------------------------------------- */

static void expect_no_block(void *pointer) {
    MISUSE(WEIR_E_NOT_OWNED, weir_free(a, pointer, A));
    MISUSE(WEIR_E_NOT_OWNED, weir_free(a, pointer, B));
}

TEST_EACH(WORLDS, addresses_inside_blocks_are_refused) {
    static const size_t steps[] = {1,        2,        8,        255,       256,  257,
                                   511,      512,      513,      1024,      4096, 16 * KIB - 256,
                                   16 * KIB, 32 * KIB, 64 * KIB, 512 * KIB, MIB,  2 * MIB};

    begin_misuse(_i);
    for (int i = 0; i < WITNESSES; i++) {
        for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++)
            if (steps[k] < size_of(i) || (size_of(i) == 1 && steps[k] < 256))
                expect_no_block(witness[i] + steps[k]);
        /* The addresses are the last byte, the byte after the end, and the byte before the beginning. */
        if (size_of(i) > 1)
            expect_no_block(witness[i] + size_of(i) - 1);
        if (!is_witness(witness[i] + size_of(i)))
            expect_no_block(witness[i] + size_of(i));
        expect_no_block(witness[i] - 1);
    }
    OK(weir_bind(a, A));
    for (int i = 0; i < WITNESSES; i++)
        MISUSE(WEIR_E_NOT_OWNED, weir_free(a, witness[i] + 256 - 128, A));
    OK(weir_unbind(a, A));
    end_misuse();
}

/* Tests blocks of another allocator in any world.  The first block of an allocator has the address of all the memory
 * that the allocator took from the driver. */
static void other_allocators(void) {
    weir_allocator *others[WORLDS];
    void *block[WORLDS][SIZES];

    for (int w = 0; w < WORLDS; w++) {
        others[w] = make_misused(w);
        for (int i = 0; i < SIZES; i++) {
            OK(weir_alloc(others[w], sizes[SIZES - 1 - i], A, &block[w][i]));
            memset(block[w][i], 0x77, sizes[SIZES - 1 - i]);
            expect_no_block(block[w][i]);
            MISUSE(WEIR_E_NOT_OWNED, weir_use(a, block[w][i], B));
        }
    }
    expect_unharmed();
    for (int w = 0; w < WORLDS; w++) {
        MUST_EQ(check_identities(others[w]).blocks, SIZES);
        for (int i = 0; i < SIZES; i++) {
            const unsigned char *bytes = block[w][i];

            MUST(bytes[0] == 0x77 && bytes[sizes[SIZES - 1 - i] - 1] == 0x77);
            OK(weir_free(others[w], block[w][i], A));
            if (worlds[w].kind != KIND_DIRECT)
                expect_no_block(block[w][i]);
        }
        CU(driver->cuCtxSynchronize());
        OK(weir_allocator_destroy(others[w]));
    }
}

TEST_EACH(WORLDS, addresses_of_others_are_refused) {
    static unsigned char host[4096];
    void *heap = malloc(4096);
    CUdeviceptr direct;

    begin_misuse(_i);
    expect_no_block(host);
    expect_no_block(heap);
    expect_no_block(&direct);
    expect_no_block((void *)1);
    expect_no_block((void *)(uintptr_t)256);
    expect_no_block((void *)(UINTPTR_MAX - 255));
    expect_no_block((void *)(UINTPTR_MAX >> 1));
    expect_no_block((void *)((uintptr_t)1 << 57));
    if (!is_bare_pool(_i)) { /* a pool alone frees these, like the driver */
        CU(driver->cuMemAlloc(&direct, MIB));
        expect_no_block((void *)(uintptr_t)direct);
        CU(driver->cuMemFree(direct));
        expect_no_block((void *)(uintptr_t)direct);
        if (is_roomy())
            other_allocators();
    }
    free(heap);
    end_misuse();
}

/* A graph's block is freed outside of the graph, once for each launch. */
TEST_EACH(2, a_graphs_block_is_freed_twice) {
    CUgraphExec exec;
    CUgraph graph;
    unsigned char *block;

    begin_misuse(_i);
    CU(driver->cuStreamBeginCapture(C, CU_STREAM_CAPTURE_MODE_GLOBAL));
    block = alloc_in_world(3000, C);
    CU(driver->cuStreamEndCapture(C, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, C)); /* the graph has not run yet */
    CU(driver->cuGraphLaunch(exec, C));
    MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block + 256, C));
    free_in_world(block, C);
    MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, C));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuStreamSynchronize(C));
    CU(driver->cuDeviceGraphMemTrim(0));
    end_misuse();
}

/* ---- notes of use ---------------------------------------------------------------------------- */

TEST_EACH(WORLDS, uses_of_what_is_no_block) {
    unsigned char *block;

    begin_misuse(_i);
    block = alloc_in_world(70000, A);
    free_in_world(block, A);
    if (!is_bare_pool(_i)) {
        MISUSE(WEIR_E_NOT_OWNED, weir_use(a, block, B));
        MISUSE(WEIR_E_NOT_OWNED, weir_use(a, &block, B));
        for (int i = 0; i < WITNESSES; i++) {
            MISUSE(WEIR_E_NOT_OWNED, weir_use(a, witness[i] + 1, B));
            MISUSE(WEIR_E_NOT_OWNED, weir_use(a, witness[i] + 256 - 128, B));
        }
        block = alloc_in_world(70000, C); /* C has no cache, so this is no slab */
        MISUSE(WEIR_E_NOT_OWNED, weir_use(a, block + 1, B));
        free_in_world(block, C);
        MISUSE(WEIR_E_NOT_OWNED, weir_use(a, block, B));
        block = alloc_in_world(70000, A);
        OK(weir_use(a, block, B));
        busy(B, MS);
        free_in_world(block, A); /* waits for the work of B */
        MISUSE(WEIR_E_NOT_OWNED, weir_use(a, block, B));
    } else { /* the notes are dropped with the block's next owner */
        OK(weir_use(a, block, B));
    }
    MISUSE(WEIR_E_INVALID, weir_use(a, NULL, B));
    MISUSE(WEIR_E_INVALID, weir_block_range(a, NULL, NULL, NULL));
    weir__model_advance(MS);
    (void)check_identities(a);
    count_from_here();
    for (int i = 0; i < SIZES; i++)
        free_in_world(alloc_in_world(sizes[i], A), A);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamWaitEvent), 0); /* no note has stayed */
    end_misuse();
}

/* ---- streams --------------------------------------------------------------------------------- */

static void expect_no_stream(CUstream stream, int is_direct) {
    void *none = &none;

    MISUSE(WEIR_E_STREAM, weir_alloc(a, 512, stream, &none));
    MISUSE(WEIR_E_STREAM, weir_alloc(a, 3 * MIB, stream, &none));
    MUST(none == &none);
    if (is_direct) /* its free waits for the device, on any stream */
        return;
    for (int i = 0; i < SIZES; i++)
        MISUSE(WEIR_E_STREAM, weir_free(a, witness[i], stream));
}

/* The model reports the error, while a driver may crash. */
TEST_EACH(WORLDS, unknown_streams_are_refused) {
    int bare_direct = worlds[_i].kind == KIND_DIRECT && !world_has_caches(_i);
    CUstream gone;

    begin_misuse(_i);
    gone = make_stream();
    CU(driver->cuStreamDestroy(gone));
    if (!bare_direct) {
        expect_no_stream(gone, 0);
        expect_no_stream((CUstream)(uintptr_t)0x12345677, 0);
        expect_no_stream((CUstream)(uintptr_t)0x12345670, 0);
        expect_no_stream((CUstream)(void *)witness, 0);
    }
    if (world_has_caches(_i)) {
        MISUSE(WEIR_E_STREAM, weir_bind(a, gone));
        MISUSE(WEIR_E_STREAM, weir_bind(a, (CUstream)(void *)witness));
        MISUSE(WEIR_E_STREAM, weir_unbind(a, gone));
    }
    end_misuse();
}

/* The stream's cache has blocks.  The free cannot detect the end of the stream, but nobody gets its block before a wait
 * for the device. */
TEST_EACH(WORLDS, blocks_of_a_past_stream_wait_for_the_device) {
    unsigned char *block;
    CUstream gone;

    begin_misuse(_i);
    gone = make_stream();
    for (int i = 0; i < 200; i++)
        free_in_world(alloc_in_world(3000, gone), gone);
    block = alloc_in_world(3000, gone);
    busy(gone, 50 * MS);
    CU(driver->cuStreamDestroy(gone));
    MUST(weir_free(a, block, gone) == (world_has_caches(_i) ? WEIR_OK : WEIR_E_STREAM) ||
         worlds[_i].kind == KIND_DIRECT);
    for (int i = 0; i < 50 && world_has_caches(_i); i++)
        MUST(alloc_in_world(3000, A) != block);
    for (int i = 0; i < SIZES && world_has_caches(_i); i++)
        MISUSE(WEIR_E_STREAM, weir_alloc(a, sizes[i], gone, &(void *){NULL}));
    (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_LOST,
                              1); /* blocks are still live */
    OK(weir_allocator_destroy(a));
}

/* A wait for this device does not cover work of the other device. */
TEST_WHERE(0, WORLDS, world_has_caches, a_stream_of_another_device_is_refused) {
    CUcontext other, popped;
    CUstream theirs;

    MUST_EQ(weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY, .devices = 2}), 0);
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuDevicePrimaryCtxRetain(&other, 1));
    CU(driver->cuCtxPushCurrent(other));
    theirs = make_stream();
    CU(driver->cuCtxPushCurrent(primary));
    A = make_stream();
    B = make_stream();
    begin_misuse(_i);
    expect_no_stream(theirs, 0);
    MISUSE(WEIR_E_STREAM, weir_bind(a, theirs));
    MISUSE(WEIR_E_STREAM, weir_unbind(a, theirs));
    CU(driver->cuCtxPushCurrent(other)); /* the default stream is theirs, too */
    expect_no_stream(NULL, 0);
    CU(driver->cuCtxPopCurrent(&popped));
    /* A handle of this device now means a stream of the other one. */
    CU(driver->cuStreamDestroy(A));
    CU(driver->cuCtxPushCurrent(other));
    theirs = make_stream();
    CU(driver->cuCtxPopCurrent(&popped));
    MUST(theirs == A);
    MISUSE(WEIR_E_STREAM, weir_alloc(a, 3000, theirs, &(void *){NULL}));
    CU(driver->cuStreamDestroy(theirs));
    A = make_stream();
    end_misuse();
}

TEST_EACH(WORLDS, only_bound_streams_can_be_unbound) {
    begin_misuse(_i);
    if (world_has_caches(_i))
        MISUSE(WEIR_E_INVALID, weir_unbind(a, A));
    else
        OK(weir_unbind(a, A));
    OK(weir_bind(a, A));
    OK(weir_bind(a, A));
    expect_unharmed();
    OK(weir_unbind(a, A));
    OK(weir_unbind(a, A));
    for (int i = 0; i < 3 && world_has_caches(_i); i++) {
        MISUSE(WEIR_E_INVALID, weir_unbind(a, A));
        MISUSE(WEIR_E_INVALID, weir_unbind(a, C)); /* an unknown stream */
        MISUSE(WEIR_E_INVALID, weir_unbind(a, NULL));
    }
    OK(weir_bind(a, A)); /* a stream may stay bound */
    end_misuse();
}

/* ---- arguments ------------------------------------------------------------------------------- */

TEST_EACH(WORLDS, null_arguments_are_refused) {
    weir_statistics stats = {.size = 0};
    weir_oom_report oom_report = {.size = 0};
    weir_latency latency = {.size = sizeof latency};
    weir_event event;
    size_t bytes = 77;
    void *block = &bytes;

    begin_misuse(_i);
    EXPECT(WEIR_E_INVALID, weir_alloc(NULL, 1, A, &block));
    EXPECT(WEIR_E_INVALID, weir_alloc(NULL, 0, A, &block));
    MISUSE(WEIR_E_INVALID, weir_alloc(a, 1, A, NULL));
    MISUSE(WEIR_E_INVALID, weir_alloc(a, 0, A, NULL));
    MISUSE(WEIR_E_INVALID, weir_alloc(a, SIZE_MAX, A, NULL));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, SIZE_MAX, A, &block));
    ck_assert_ptr_eq(block, &bytes);
    OK(weir_alloc(a, 0, A, &block)); /* a request of 0 bytes gets NULL */
    ck_assert_ptr_null(block);
    OK(weir_free(a, block, A));
    block = &bytes;
    EXPECT(WEIR_E_INVALID, weir_free(NULL, block, A));
    EXPECT(WEIR_E_INVALID, weir_free(NULL, NULL, A));
    EXPECT(WEIR_E_INVALID, weir_use(NULL, block, A));
    MISUSE(WEIR_E_INVALID, weir_use(a, NULL, A));
    EXPECT(WEIR_E_INVALID, weir_bind(NULL, A));
    EXPECT(WEIR_E_INVALID, weir_unbind(NULL, A));
    EXPECT(WEIR_E_INVALID, weir_preallocate(NULL, 1, &bytes));
    EXPECT(WEIR_E_INVALID, weir_trim(NULL, 0, &bytes));
    EXPECT(WEIR_E_INVALID, weir_decay(NULL, &bytes));
    EXPECT(WEIR_E_INVALID, weir_set_access(NULL, 0, WEIR_ACCESS_READ_WRITE));
    EXPECT(WEIR_E_INVALID, weir_profile_save(NULL, "/nonexistent/profile"));
    EXPECT(WEIR_E_INVALID, weir_stats(NULL, &stats));
    WRONG(weir_stats(a, NULL), "weir_stats: out is NULL");
    WRONG(weir_stats(a, &stats), "weir_stats: out->size is not set; expected sizeof(*out)");
    EXPECT(WEIR_E_INVALID, weir_latencies(NULL, 0, &latency));
    WRONG(weir_latencies(a, 0, NULL), "weir_latencies: out is NULL");
    WRONG(weir_latencies(a, 2, &latency),
          "weir_latencies: operation: expected 0 for alloc, 1 for free");
    WRONG(weir_latencies(a, -1, &latency),
          "weir_latencies: operation: expected 0 for alloc, 1 for free");
    EXPECT(WEIR_E_INVALID, weir_events(NULL, 0, &event, sizeof event, 1, &bytes));
    WRONG(weir_events(a, 0, NULL, sizeof event, 1, &bytes), "weir_events: events is NULL");
    WRONG(weir_events(a, 0, &event, 0, 1, &bytes),
          "weir_events: event_bytes is 0; expected sizeof(weir_event)");
    WRONG(weir_events(a, 0, &event, sizeof event, 1, NULL), "weir_events: count is NULL");
    WRONG(weir_last_oom_report(a, NULL), "weir_last_oom_report: out is NULL");
    WRONG(weir_last_oom_report(a, &oom_report),
          "weir_last_oom_report: out->size is not set; expected sizeof(*out)");
    EXPECT(WEIR_E_INVALID, weir_last_failure(NULL));
    EXPECT(WEIR_E_INVALID, weir_allocator_create(NULL, NULL));
    EXPECT(WEIR_E_INVALID, weir_default_allocator(NULL));
    OK(weir_allocator_destroy(NULL));
    ck_assert_uint_eq(bytes, 77);
    end_misuse();
}

/* A program that was built against an older version gets a line about each mistake if its log setting can be read, and
 * otherwise none. */
TEST(wrong_options_are_refused) {
    weir_options options = options_of_world(0, 512 * MIB);
    weir_allocator *made = NULL;

    WRONG(weir_allocator_create(&options, NULL), "weir_allocator_create: allocator is NULL");
    options.device = "moddel";
    MISUSE(WEIR_E_INVALID, weir_allocator_create(&options, &made));
    options.device = "cuda:63"; /* no driver has that many devices */
    MISUSE(WEIR_E_NO_DEVICE, weir_allocator_create(&options, &made));
    options.device = "moddel";
    options.size = offsetof(weir_options, harden); /* the size before hardening */
    MISUSE(WEIR_E_INVALID, weir_allocator_create(&options, &made));
    options.log = WEIR_LOG_DEBUG + 1;
    EXPECT(WEIR_E_INVALID, weir_allocator_create(&options, &made));
    options.log = WEIR_LOG_ERROR;
    options.size = 1;
    EXPECT(WEIR_E_INVALID, weir_allocator_create(&options, &made));
    expect_lines(__LINE__, 0);
    MUST(made == NULL);
}

/* One line reports the driver's failure, whichever call fails. */
TEST_EACH(3 * WORLDS, one_line_reports_a_failed_creation) {
    static const CUresult results[] = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_ILLEGAL_ADDRESS,
                                       CUDA_ERROR_OUT_OF_MEMORY};
    weir_options options = options_of_world(_i / 3, 512 * MIB);
    CUresult result = results[_i % 3];
    uint64_t met = 1;

    options.prealloc = bytes_amount(64 * MIB);
    for (uint64_t call = 1; met > 0; call++) {
        weir_allocator *made = NULL;
        weir_status status;
        int said;

        weir__model_fail_any(call, 0, result, 1);
        status = weir_allocator_create(&options, &made);
        met = weir__model_faults_injected(NULL);
        weir__model_faults_clear();
        said = lines();
        if (status == WEIR_OK) /* succeeds without the call, or with less */
            (void)!weir_allocator_destroy(made);
        else if (said != 1 || (weir_last_driver_result() == (int)result &&
                               result != CUDA_ERROR_OUT_OF_MEMORY && !strstr(logged, " answered ")))
            ck_abort_msg("call %d: %s: %d lines: %s", (int)call, weir_status_name(status), said,
                         logged);
    }
}

SUITE("misuse", CK_FORK_GETENV);
