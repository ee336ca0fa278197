/* SPDX-License-Identifier: MIT */
/* test_misuse.c: what a program must not do: always a status, a line in the log, and nothing harmed.
 *
 * Over every engine, with the front and without (`worlds`).  Each test holds witnesses: live blocks
 * of all sizes with a pattern.  After each misuse they still have it, blocks that are made then do
 * not lie in them, the figures stand where they stood, and in the end all of them are freed as ever.
 * Memory of the model is memory of the host, so that patterns are written and read without a call.
 *
 * What cannot be seen is not tested: the table in doc/design.md names it.  What only a real driver
 * shows of all this is in conformance.c, which runs there too.
 */
#include "tests/fixtures/model_device.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/allocator_internal.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/every_kind.h"
#include "tests/fixtures/logged.h"

#define CAPACITY (4 * GIB)

static int has_front(int world) {
    return worlds[world].front == WEIR_SWITCH_ON;
}

/* Every block is the driver's own, and the driver frees what it knows. */
static int is_bare_pool(int world) {
    return worlds[world].kind == KIND_POOL && !has_front(world);
}

/* ---- the log --------------------------------------------------------------------------------- */

/* The call answers this, and one line says so. */
#define MISUSE(status, call)                                                                       \
    do {                                                                                           \
        (void)lines();                                                                             \
        EXPECT(status, call);                                                                      \
        expect_lines(__LINE__, 1);                                                                 \
    } while (0)

/* What is wrong with an argument, by its name. */
#define WRONG(call, why)                                                                           \
    do {                                                                                           \
        MISUSE(WEIR_E_INVALID, call);                                                              \
        ck_assert_str_eq(logged, "weir: error: " why "\n");                                        \
    } while (0)

/* ---- witnesses ------------------------------------------------------------------------------- */

static const size_t sizes[] = {1, 512, 3000, 20000, 70000, 300000, 512 * KIB, 600000, MIB, 3 * MIB};
enum { SIZES = sizeof sizes / sizeof sizes[0], EACH = 2, WITNESSES = SIZES * EACH };

static weir_allocator *a;
static unsigned char *witness[WITNESSES];
static weir_statistics before;

static size_t size_of(int i) {
    return sizes[i % SIZES];
}

static weir_options options_of_world(int world) {
    weir_options options = options_of(worlds[world].kind, "model", 512 * MIB);

    options.front = worlds[world].front;
    options.log = WEIR_LOG_ERROR;
    options.recovery_timeout_ms = 100;
    return options;
}

static weir_allocator *make(int world) {
    weir_options options = options_of_world(world);
    weir_allocator *made = NULL;

    OK(weir_allocator_create(&options, &made));
    return made;
}

static unsigned char *take(size_t bytes, CUstream stream) {
    void *block = NULL;

    OK(weir_alloc(a, bytes, stream, &block));
    MUST(block != NULL);
    return block;
}

static void give(void *block, CUstream stream) {
    OK(weir_free(a, block, stream));
}

static int is_witness(const void *block) {
    for (int i = 0; i < WITNESSES; i++)
        if (witness[i] == block)
            return 1;
    return 0;
}

static void expect_patterns(void) {
    for (int i = 0; i < WITNESSES; i++) {
        size_t at = first_other(witness[i], (unsigned char)(i + 1), size_of(i));

        if (at < size_of(i))
            ck_abort_msg("witness %d of %zu bytes was written at %zu", i, size_of(i), at);
    }
}

static void begin(int world) {
    a = make(world);
    for (int round = 0; round < 30; round++) /* caches are there, and some of what they keep */
        for (int i = 0; i < SIZES; i++)
            give(take(sizes[i], round % 2 ? A : B), round % 2 ? A : B);
    for (int i = 0; i < WITNESSES; i++) {
        witness[i] = take(size_of(i), i % 2 ? A : B);
        memset(witness[i], i + 1, size_of(i));
    }
    before = check_identities(a);
    (void)lines();
}

/* As it was when the witnesses had been made. */
static void expect_unharmed(void) {
    unsigned char *more[WITNESSES];
    weir_statistics s = check_identities(a);

    MUST_EQ(s.blocks, before.blocks);
    MUST_EQ(s.requested, before.requested);
    MUST_EQ(s.in_use, before.in_use);
    for (int i = 0; i < WITNESSES; i++) {
        more[i] = take(size_of(i), i % 3 ? A : B);
        memset(more[i], 0xee, size_of(i));
    }
    expect_patterns();
    for (int i = 0; i < WITNESSES; i++) /* they do not lie in each other */
        MUST_EQ(first_other(more[i], 0xee, size_of(i)), size_of(i));
    for (int i = 0; i < WITNESSES; i++)
        give(more[i], i % 3 ? A : B);
    expect_patterns();
    s = check_identities(a);
    MUST_EQ(s.blocks, before.blocks);
    MUST_EQ(s.requested, before.requested);
    check_model();
}

static void end(void) {
    expect_unharmed();
    for (int i = 0; i < WITNESSES; i++)
        give(witness[i], i % 2 ? A : B);
    MUST_EQ(check_identities(a).blocks, 0);
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    check_model();
    MUST_EQ(device_free(), CAPACITY);
}

static void start(void) {
    start_model(CAPACITY);
    catch_log();
}

/* A thread of its own does that with a block. */
static struct errand {
    void *block;
    CUstream stream;
    weir_status status;
} errand;

static void *run_errand(void *unused) {
    (void)unused;
    CU(driver->cuCtxPushCurrent(primary));
    errand.status = weir_free(a, errand.block, errand.stream);
    return NULL;
}

static weir_status free_elsewhere(void *block, CUstream stream) {
    pthread_t thread;

    errand = (struct errand){.block = block, .stream = stream};
    MUST(pthread_create(&thread, NULL, run_errand, NULL) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    return errand.status;
}

/* Freed, in whatever way: every further free is one too many. */
static void expect_freed(void *block) {
    for (int i = 0; i < 2; i++) {
        MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, A));
        MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, B));
        MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, C));
        MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, NULL));
        MISUSE(WEIR_E_NOT_OWNED, free_elsewhere(block, A));
    }
}

/* ---- freed twice ----------------------------------------------------------------------------- */

enum way {
    AT_ONCE,
    ON_ANOTHER_STREAM, /* a stray, of a slab */
    BY_ANOTHER_THREAD, /* in the letter box */
    BEHIND_USES,       /* on its way home, or pending, as long as a stream is at work */
    BOUND,
    AFTER_A_TRIM,
    WAYS
};

static void free_first(enum way way, void *block) {
    switch (way) {
    case ON_ANOTHER_STREAM:
        give(block, B);
        break;
    case BY_ANOTHER_THREAD:
        give(take(512, A), A);
        OK(free_elsewhere(block, A));
        break;
    case BEHIND_USES:
        OK(weir_use(a, block, B));
        OK(weir_use(a, block, C));
        busy(B, 5 * MS);
        give(block, A);
        break;
    default:
        give(block, A);
    }
    if (way == AFTER_A_TRIM)
        OK(weir_trim(a, 0, NULL));
}

TEST(freed_twice) {
    int world = _i / WAYS, bound = _i % WAYS == BOUND;

    begin(world);
    if (bound)
        OK(weir_bind(a, A));
    for (int i = 0; i < SIZES; i++) {
        void *block = take(sizes[i], A);

        free_first((enum way)(_i % WAYS), block);
        expect_freed(block);
    }
    expect_unharmed();
    weir__model_advance(5 * MS);
    if (bound)
        OK(weir_unbind(a, A));
    end();
}

/* Everything lies freed, merged or given back; then larger and smaller blocks lie there, and where none
 * of them begins, nothing can be freed. */
TEST(freed_after_it_was_handed_out_again) {
    enum { OLD = 60, NEW = 200 };
    void *old[OLD], *block[NEW];
    int inside = 0;

    begin(_i);
    for (int trimmed = 0; trimmed < 2; trimmed++) {
        for (int i = 0; i < OLD; i++)
            old[i] = take(sizes[i % SIZES], A);
        for (int i = 0; i < OLD; i++)
            give(old[i], A);
        if (trimmed)
            OK(weir_trim(a, 0, NULL));
        for (int i = 0; i < NEW; i++)
            block[i] = take(i % 20 ? 100000 + (size_t)i * 777 : 5 * MIB, A);
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
            give(block[i], A);
        for (int i = 0; i < NEW; i++)
            MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block[i], A));
    }
    MUST(inside > 0);
    end();
}

/* Two threads free the same blocks, each all of them, in turn: one of each two is told. */
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

TEST(freed_by_two_threads_in_turn) {
    pthread_t thread;
    int mine = 0;

    begin(_i);
    for (int i = 0; i < SIZES * 20; i++)
        disputed[i] = take(size_of(i), A);
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
    end();
}

/* ---- pointers that are no block's ---------------------------------------------------------- */

static void expect_no_block(void *pointer) {
    MISUSE(WEIR_E_NOT_OWNED, weir_free(a, pointer, A));
    MISUSE(WEIR_E_NOT_OWNED, weir_free(a, pointer, B));
}

TEST(inside_of_blocks) {
    static const size_t steps[] = {1,        2,        8,        255,       256,  257,
                                   511,      512,      513,      1024,      4096, 16 * KIB - 256,
                                   16 * KIB, 32 * KIB, 64 * KIB, 512 * KIB, MIB,  2 * MIB};

    begin(_i);
    for (int i = 0; i < WITNESSES; i++) {
        for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++)
            if (steps[k] < size_of(i) || (size_of(i) == 1 && steps[k] < 256))
                expect_no_block(witness[i] + steps[k]);
        /* The last byte, one past the end, and one before the beginning. */
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
    end();
}

/* A block of another allocator of any world: the first has the address of all the memory that the
 * allocator took from the driver. */
static void other_allocators(void) {
    weir_allocator *others[WORLDS];
    void *block[WORLDS][SIZES];

    for (int w = 0; w < WORLDS; w++) {
        others[w] = make(w);
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
            if (worlds[w].kind != KIND_PLATFORM)
                expect_no_block(block[w][i]);
        }
        CU(driver->cuCtxSynchronize());
        OK(weir_allocator_destroy(others[w]));
    }
}

TEST(of_others) {
    static unsigned char host[4096];
    void *heap = malloc(4096);
    CUdeviceptr direct;

    begin(_i);
    expect_no_block(host);
    expect_no_block(heap);
    expect_no_block(&direct);
    expect_no_block((void *)1);
    expect_no_block((void *)(uintptr_t)256);
    expect_no_block((void *)(UINTPTR_MAX - 255));
    expect_no_block((void *)(UINTPTR_MAX >> 1));
    expect_no_block((void *)((uintptr_t)1 << 57));
    if (!is_bare_pool(_i)) { /* that frees them, as the driver does */
        CU(driver->cuMemAlloc(&direct, MIB));
        expect_no_block((void *)(uintptr_t)direct);
        CU(driver->cuMemFree(direct));
        expect_no_block((void *)(uintptr_t)direct);
        if (is_roomy())
            other_allocators();
    }
    free(heap);
    end();
}

/* A graph's block is freed outside of it, once after a launch. */
TEST(a_graphs_block_is_freed_twice) {
    CUgraphExec exec;
    CUgraph graph;
    unsigned char *block;

    begin(_i);
    CU(driver->cuStreamBeginCapture(C, CU_STREAM_CAPTURE_MODE_GLOBAL));
    block = take(3000, C);
    CU(driver->cuStreamEndCapture(C, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, C)); /* not launched yet */
    CU(driver->cuGraphLaunch(exec, C));
    MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block + 256, C));
    give(block, C);
    MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, C));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuStreamSynchronize(C));
    CU(driver->cuDeviceGraphMemTrim(0));
    end();
}

/* ---- notes of use ---------------------------------------------------------------------------- */

TEST(uses_of_what_is_no_block) {
    unsigned char *block;

    begin(_i);
    block = take(70000, A);
    give(block, A);
    if (!is_bare_pool(_i)) {
        MISUSE(WEIR_E_NOT_OWNED, weir_use(a, block, B));
        MISUSE(WEIR_E_NOT_OWNED, weir_use(a, &block, B));
        for (int i = 0; i < WITNESSES; i++) {
            MISUSE(WEIR_E_NOT_OWNED, weir_use(a, witness[i] + 1, B));
            MISUSE(WEIR_E_NOT_OWNED, weir_use(a, witness[i] + 256 - 128, B));
        }
        block = take(70000, C); /* of a stream without a cache, where it is no slab's */
        MISUSE(WEIR_E_NOT_OWNED, weir_use(a, block + 1, B));
        give(block, C);
        MISUSE(WEIR_E_NOT_OWNED, weir_use(a, block, B));
        block = take(70000, A);
        OK(weir_use(a, block, B));
        busy(B, MS);
        give(block, A); /* pending, or on its way home */
        MISUSE(WEIR_E_NOT_OWNED, weir_use(a, block, B));
    } else { /* unseen: the notes are forgotten when the addresses are handed out */
        OK(weir_use(a, block, B));
    }
    MISUSE(WEIR_E_INVALID, weir_use(a, NULL, B));
    MISUSE(WEIR_E_INVALID, weir_block_range(a, NULL, NULL, NULL));
    weir__model_advance(MS);
    (void)check_identities(a);
    count_from_here();
    for (int i = 0; i < SIZES; i++)
        give(take(sizes[i], A), A);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamWaitEvent), 0); /* nothing was noted */
    end();
}

/* ---- streams --------------------------------------------------------------------------------- */

static void expect_no_stream(CUstream stream, int is_platform) {
    void *none = &none;

    MISUSE(WEIR_E_STREAM, weir_alloc(a, 512, stream, &none));
    MISUSE(WEIR_E_STREAM, weir_alloc(a, 3 * MIB, stream, &none));
    MUST(none == &none);
    if (is_platform) /* its free waits for the device, whatever the stream is */
        return;
    for (int i = 0; i < SIZES; i++)
        MISUSE(WEIR_E_STREAM, weir_free(a, witness[i], stream));
}

/* The model answers; a driver may crash. */
TEST(unknown_streams) {
    int bare_platform = worlds[_i].kind == KIND_PLATFORM && !has_front(_i);
    CUstream gone;

    begin(_i);
    CU(driver->cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamDestroy(gone));
    if (!bare_platform) {
        expect_no_stream(gone, 0);
        expect_no_stream((CUstream)(uintptr_t)0x12345677, 0);
        expect_no_stream((CUstream)(uintptr_t)0x12345670, 0);
        expect_no_stream((CUstream)(void *)witness, 0);
    }
    if (has_front(_i)) {
        MISUSE(WEIR_E_STREAM, weir_bind(a, gone));
        MISUSE(WEIR_E_STREAM, weir_bind(a, (CUstream)(void *)witness));
        MISUSE(WEIR_E_STREAM, weir_unbind(a, gone));
    }
    end();
}

/* With something in its cache.  The free is not seen: what was freed there serves nobody before the
 * device was waited for. */
TEST(a_stream_that_is_gone) {
    unsigned char *block;
    CUstream gone;

    begin(_i);
    CU(driver->cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 200; i++)
        give(take(3000, gone), gone);
    block = take(3000, gone);
    busy(gone, 50 * MS);
    CU(driver->cuStreamDestroy(gone));
    MUST(weir_free(a, block, gone) == (has_front(_i) ? WEIR_OK : WEIR_E_STREAM) ||
         worlds[_i].kind == KIND_PLATFORM);
    for (int i = 0; i < 50 && has_front(_i); i++)
        MUST(take(3000, A) != block);
    for (int i = 0; i < SIZES && has_front(_i); i++)
        MISUSE(WEIR_E_STREAM, weir_alloc(a, sizes[i], gone, &(void *){NULL}));
    (void)weir__detour_set(&a->device.slow_path, WEIR_DETOUR_LOST, 1); /* live blocks are left */
    OK(weir_allocator_destroy(a));
}

/* Nothing that waits for this device covers what runs there. */
TEST(a_stream_of_another_device) {
    CUcontext other, popped;
    CUstream theirs;

    MUST_EQ(weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY, .devices = 2}), 0);
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuDevicePrimaryCtxRetain(&other, 1));
    CU(driver->cuCtxPushCurrent(other));
    CU(driver->cuStreamCreate(&theirs, CU_STREAM_NON_BLOCKING));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamCreate(&B, CU_STREAM_NON_BLOCKING));
    begin(_i);
    expect_no_stream(theirs, 0);
    MISUSE(WEIR_E_STREAM, weir_bind(a, theirs));
    MISUSE(WEIR_E_STREAM, weir_unbind(a, theirs));
    CU(driver->cuCtxPushCurrent(other)); /* and the default stream is theirs */
    expect_no_stream(NULL, 0);
    CU(driver->cuCtxPopCurrent(&popped));
    /* A handle of this device that means a stream of the other one by now. */
    CU(driver->cuStreamDestroy(A));
    CU(driver->cuCtxPushCurrent(other));
    CU(driver->cuStreamCreate(&theirs, CU_STREAM_NON_BLOCKING));
    CU(driver->cuCtxPopCurrent(&popped));
    MUST(theirs == A);
    MISUSE(WEIR_E_STREAM, weir_alloc(a, 3000, theirs, &(void *){NULL}));
    CU(driver->cuStreamDestroy(theirs));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    end();
}

TEST(bindings) {
    begin(_i);
    if (has_front(_i))
        MISUSE(WEIR_E_INVALID, weir_unbind(a, A));
    else
        OK(weir_unbind(a, A));
    OK(weir_bind(a, A));
    OK(weir_bind(a, A));
    expect_unharmed();
    OK(weir_unbind(a, A));
    OK(weir_unbind(a, A));
    for (int i = 0; i < 3 && has_front(_i); i++) {
        MISUSE(WEIR_E_INVALID, weir_unbind(a, A));
        MISUSE(WEIR_E_INVALID, weir_unbind(a, C)); /* never heard of */
        MISUSE(WEIR_E_INVALID, weir_unbind(a, NULL));
    }
    OK(weir_bind(a, A)); /* what is bound at the end is nobody's concern */
    end();
}

/* ---- arguments ------------------------------------------------------------------------------- */

TEST(null_arguments) {
    weir_statistics stats = {.size = 0};
    weir_verdict verdict = {.size = 0};
    weir_latency latency = {.size = sizeof latency};
    weir_event event;
    size_t bytes = 77;
    void *block = &bytes;

    begin(_i);
    EXPECT(WEIR_E_INVALID, weir_alloc(NULL, 1, A, &block));
    EXPECT(WEIR_E_INVALID, weir_alloc(NULL, 0, A, &block));
    MISUSE(WEIR_E_INVALID, weir_alloc(a, 1, A, NULL));
    MISUSE(WEIR_E_INVALID, weir_alloc(a, 0, A, NULL));
    MISUSE(WEIR_E_INVALID, weir_alloc(a, SIZE_MAX, A, NULL));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, SIZE_MAX, A, &block));
    ck_assert_ptr_eq(block, &bytes);
    OK(weir_alloc(a, 0, A, &block)); /* nothing is asked for, and nothing is had */
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
    WRONG(weir_last_verdict(a, NULL), "weir_last_verdict: out is NULL");
    WRONG(weir_last_verdict(a, &verdict),
          "weir_last_verdict: out->size is not set; expected sizeof(*out)");
    EXPECT(WEIR_E_INVALID, weir_last_refusal(NULL));
    EXPECT(WEIR_E_INVALID, weir_allocator_create(NULL, NULL));
    EXPECT(WEIR_E_INVALID, weir_default_allocator(NULL));
    OK(weir_allocator_destroy(NULL));
    ck_assert_uint_eq(bytes, 77);
    end();
}

/* A program that was built against an older version, or against none, is told of its mistakes as far as it
 * has a log; one that is not to be trusted with its log is not. */
TEST(options_that_cannot_be) {
    weir_options options = options_of_world(0);
    weir_allocator *made = NULL;

    WRONG(weir_allocator_create(&options, NULL), "weir_allocator_create: allocator is NULL");
    options.device = "moddel";
    MISUSE(WEIR_E_INVALID, weir_allocator_create(&options, &made));
    options.device =
        "cuda:63"; /* without a driver there is none, and with one there are not so many */
    MISUSE(WEIR_E_NO_DEVICE, weir_allocator_create(&options, &made));
    options.device = "moddel";
    options.size = offsetof(weir_options, harden); /* as before hardening */
    MISUSE(WEIR_E_INVALID, weir_allocator_create(&options, &made));
    options.log = WEIR_LOG_DEBUG + 1;
    EXPECT(WEIR_E_INVALID, weir_allocator_create(&options, &made));
    options.log = WEIR_LOG_ERROR;
    options.size = 1;
    EXPECT(WEIR_E_INVALID, weir_allocator_create(&options, &made));
    expect_lines(__LINE__, 0);
    MUST(made == NULL);
}

/* One line says what the driver has against it, whichever call it is. */
TEST(a_creation_that_the_driver_refuses) {
    static const CUresult results[] = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_ILLEGAL_ADDRESS,
                                       CUDA_ERROR_OUT_OF_MEMORY};
    weir_options options = options_of_world(_i / 3);
    CUresult result = results[_i % 3];
    uint64_t met = 1;

    options.prealloc = bytes_amount(64 * MIB);
    for (uint64_t call = 1; met > 0; call++) {
        weir_allocator *made = NULL;
        weir_status status;
        int said;

        weir__model_fail_any(call, 0, result, 1);
        status = weir_allocator_create(&options, &made);
        met = weir__model_faults_met(NULL);
        weir__model_faults_clear();
        said = lines();
        if (status == WEIR_OK) /* it did without, or with less */
            (void)!weir_allocator_destroy(made);
        else if (said != 1 || (weir_last_driver_result() == (int)result &&
                               result != CUDA_ERROR_OUT_OF_MEMORY && !strstr(logged, " answered ")))
            ck_abort_msg("call %d: %s: %d lines: %s", (int)call, weir_status_name(status), said,
                         logged);
    }
}

/* ---- the end of the allocator, the context, the process ------------------------------------- */

TEST(destroyed_with_live_blocks) {
    begin(_i);
    for (int i = 0; i < 3; i++) {
        MISUSE(WEIR_E_BUSY, weir_allocator_destroy(a));
        expect_unharmed();
    }
    for (int i = 1; i < WITNESSES; i++)
        give(witness[i], i % 2 ? A : B);
    MISUSE(WEIR_E_BUSY, weir_allocator_destroy(a));
    MUST_EQ(check_identities(a).blocks, 1);
    give(witness[0], B);
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    MUST_EQ(device_free(), CAPACITY);
}

/* A bound stream's hits ask the driver for nothing, and know that they are in a child all the same. */
static int child_is_refused(void) {
    const weir_amount limit = {.value = MIB, .kind = WEIR_AMOUNT_BYTES};
    weir_allocator *made = NULL;
    CUmemoryPool pool = NULL;
    void *none = NULL;
    char message[1];

    (void)lines();
    return weir_alloc(a, 512, A, &none) == WEIR_E_FORKED &&
           weir_free(a, witness[0], A) == WEIR_E_FORKED &&
           weir_free(a, witness[0], B) == WEIR_E_FORKED &&
           weir_use(a, witness[0], B) == WEIR_E_FORKED && weir_bind(a, A) == WEIR_E_FORKED &&
           weir_unbind(a, A) == WEIR_E_FORKED && weir_trim(a, 0, NULL) == WEIR_E_FORKED &&
           weir_preallocate(a, MIB, NULL) == WEIR_E_FORKED &&
           weir_pool(a, &pool) == WEIR_E_FORKED &&
           weir_set_access(a, 0, WEIR_ACCESS_READ_WRITE) == WEIR_E_FORKED &&
           weir_set_limit(a, limit) == WEIR_E_FORKED && weir_decay(a, NULL) == WEIR_E_FORKED &&
           weir_low_memory(a, 0) == WEIR_E_FORKED &&
           weir_block_range(a, witness[0], NULL, NULL) == WEIR_E_FORKED &&
           weir_profile_save(a, "/nonexistent/profile") == WEIR_E_FORKED &&
           weir_allocator_destroy(a) == WEIR_E_FORKED && lines() == 16 && none == NULL &&
           weir_allocator_create(NULL, &made) == WEIR_E_FORKED &&
           weir__allocator_create_on(driver, NULL, &made, message, 1) == WEIR_E_FORKED &&
           made == NULL && pool == NULL;
}

TEST(used_in_a_child) {
    int status = -1;
    pid_t child;

    begin(_i);
    OK(weir_bind(a, A));
    give(take(512, A), A);
    child = fork();
    MUST(child >= 0);
    if (child == 0)
        _exit(child_is_refused() ? 0 : 1);
    MUST(waitpid(child, &status, 0) == child);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(weir_unbind(a, A));
    end();
}

/* The context goes under the allocator's feet, as cudaDeviceReset does it. */
TEST(used_after_a_reset) {
    const weir_amount limit = {.value = MIB, .kind = WEIR_AMOUNT_BYTES};
    CUmemoryPool pool = NULL;
    void *none = &none;
    int refused = 0;

    begin(_i);
    while (driver->cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS)
        ;
    (void)lines();
    for (int i = 0; i < SIZES; i++) {
        weir_status status = weir_alloc(a, sizes[i], A, &none);

        MUST(status == WEIR_E_DEVICE_LOST);
        refused++;
    }
    MUST(none == &none && refused == SIZES);
    expect_lines(__LINE__, 1); /* said once */
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(a, witness[0], A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(a, witness[1], B));
    EXPECT(WEIR_E_DEVICE_LOST, weir_use(a, witness[1], B));
    EXPECT(WEIR_E_DEVICE_LOST, weir_bind(a, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_trim(a, 0, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_preallocate(a, MIB, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_pool(a, &pool));
    EXPECT(WEIR_E_DEVICE_LOST, weir_set_access(a, 0, WEIR_ACCESS_READ_WRITE));
    EXPECT(WEIR_E_DEVICE_LOST, weir_set_limit(a, limit));
    EXPECT(WEIR_E_DEVICE_LOST, weir_decay(a, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_low_memory(a, 0));
    EXPECT(WEIR_E_DEVICE_LOST, weir_block_range(a, witness[0], NULL, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_profile_save(a, "/nonexistent/profile"));
    MUST(pool == NULL);
    MUST_EQ(stats_of(a).blocks, before.blocks);
    OK(weir_allocator_destroy(a)); /* blocks are gone with the context */
}

/* As the process ends, the driver goes before those who free their last blocks.  That is no error. */
TEST(used_after_the_driver_has_gone) {
    void *block = NULL;
    weir_status status = WEIR_OK;

    begin(_i);
    (void)lines();
    for (int entry = 0; entry < WEIR_ENTRY_COUNT; entry++)
        weir__model_fail((enum weir_driver_entry)entry, 1, CUDA_ERROR_DEINITIALIZED, 1);
    for (int i = 0; i < SIZES && status == WEIR_OK; i++)
        status = weir_alloc(a, sizes[i], B, &block);
    if (status == WEIR_OK) /* of what weir had */
        status = weir_preallocate(a, 64 * MIB, NULL);
    EXPECT(WEIR_E_DEVICE_LOST, status);
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(a, witness[0], A));
    expect_lines(__LINE__, 0);
    (void)weir_allocator_destroy(a);
}

/* Exit handlers and destructors run after the handlers that were registered last; libraries free their
 * blocks there.  `late`: the driver goes down first. */
static int at_exit, late;
static void *kept[SIZES];

static void use_at_exit(void) {
    void *block = NULL;
    int wrong = 0;
    size_t bytes;

    for (int i = 0; i < SIZES; i++) {
        weir_status taken = weir_alloc(a, sizes[i], A, &block);

        if (taken == WEIR_OK)
            wrong |= weir_free(a, block, A) != WEIR_OK;
        else
            wrong |= !late || taken != WEIR_E_DEVICE_LOST;
        if (kept[i]) {
            weir_status freed = weir_free(a, kept[i], A);

            wrong |= freed != WEIR_OK && (!late || freed != WEIR_E_DEVICE_LOST);
            if (freed == WEIR_OK)
                wrong |= weir_free(a, kept[i], A) == WEIR_OK;
        }
        kept[i] = NULL;
    }
    wrong |= weir_trim(a, 0, &bytes) != (late ? WEIR_E_DEVICE_LOST : WEIR_OK) && !late;
    if (wrong)
        _exit(1);
    at_exit++;
}

__attribute__((destructor)) static void in_a_destructor(void) {
    if (at_exit == 0)
        return;
    use_at_exit();
    if (at_exit != 2)
        _exit(2);
}

static void go_down(void) {
    for (int entry = 0; late && entry < WEIR_ENTRY_COUNT; entry++)
        weir__model_fail((enum weir_driver_entry)entry, 1, CUDA_ERROR_DEINITIALIZED, 1);
    use_at_exit();
}

static void leave(int world) {
    static const char *const engines[KIND_COUNT] = {"pool", "arena", "arena", "arena", "platform"};
    static const char *const arenas[KIND_COUNT] = {
        [KIND_FIXED] = "fixed", [KIND_REGIONS] = "regions", [KIND_MAPPED] = "mapped"};
    const char *arena = arenas[worlds[world].kind];

    setenv("WEIR_DEVICE", "model", 1);
    setenv("WEIR_ENGINE", engines[worlds[world].kind], 1);
    if (arena)
        setenv("WEIR_ARENA", arena, 1);
    setenv("WEIR_FRONT", has_front(world) ? "on" : "off", 1);
    start_model(CAPACITY);
    if (weir_default_allocator(&a) != WEIR_OK)
        _exit(3);
    for (int i = 0; i < SIZES; i++)
        kept[i] = take(sizes[i], A);
    atexit(go_down);
    exit(0);
}

TEST(used_at_exit) {
    int status = -1;
    pid_t child = fork();

    MUST(child >= 0);
    late = _i % 2;
    if (child == 0) {
        MUST(freopen("/dev/null", "w", stdout) != NULL);
        leave(_i / 2);
    }
    MUST(waitpid(child, &status, 0) == child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
}

/* ---- questions about addresses --------------------------------------------------------------- */

static void expect_range(const void *address, void *block, size_t bytes) {
    void *start = NULL;
    size_t asked = 0;

    OK(weir_block_range(a, address, &start, &asked));
    MUST(start == block);
    MUST_EQ(asked, bytes);
    OK(weir_block_range(a, address, NULL, NULL));
}

static void expect_no_range(const void *address) {
    void *start = a;
    size_t asked = 77;

    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, address, &start, &asked));
    MUST(start == a && asked == 77);
}

static void expect_whole_range(unsigned char *block, size_t bytes) {
    expect_range(block, block, bytes);
    expect_range(block + bytes / 2, block, bytes);
    expect_range(block + bytes - 1, block, bytes);
}

/* Where blocks of other sizes were, so that what they left is on the way to the beginning. */
static void large_blocks(void) {
    unsigned char *small[64], *large;

    for (int i = 0; i < 64; i++)
        small[i] = take(MIB + (size_t)i, A);
    for (int i = 0; i < 64; i++)
        expect_whole_range(small[i], MIB + (size_t)i);
    for (int i = 0; i < 64; i++)
        give(small[i], A);
    large = take(100 * MIB + 1, A);
    for (size_t at = 0; at <= 100 * MIB; at += 300 * KIB + 1)
        expect_range(large + at, large, 100 * MIB + 1);
    expect_whole_range(large, 100 * MIB + 1);
    give(large, A);
    for (size_t at = 0; at <= 100 * MIB; at += 7 * MIB)
        expect_no_range(large + at);
}

TEST(which_block_an_address_is_in) {
    unsigned char host = 0, *block;
    CUdeviceptr foreign;

    begin(_i);
    EXPECT(WEIR_E_INVALID, weir_block_range(NULL, witness[0], NULL, NULL));
    EXPECT(WEIR_E_INVALID, weir_block_range(a, NULL, NULL, NULL));
    if (is_bare_pool(_i)) {
        EXPECT(WEIR_E_NOT_SUPPORTED, weir_block_range(a, witness[0], NULL, NULL));
        end();
        return;
    }
    CU(driver->cuMemAlloc(&foreign, MIB));
    expect_no_range((void *)(uintptr_t)foreign);
    expect_no_range((void *)(uintptr_t)(foreign + MIB - 1));
    expect_no_range(&host);
    CU(driver->cuMemFree(foreign));
    for (int i = 0; i < WITNESSES; i++)
        expect_whole_range(witness[i], size_of(i));
    for (size_t bytes = 1; bytes <= 3 * MIB; bytes *= 3) {
        block = take(bytes, A);
        expect_whole_range(block, bytes);
        if (worlds[_i].kind != KIND_PLATFORM && bytes % 256 != 0)
            expect_no_range(block + bytes); /* the rest of what it was rounded up to */
        give(block, A);
        expect_no_range(block);
        expect_no_range(block + bytes / 2);
    }
    large_blocks();
    MUST_EQ(lines(), 0);
    end();
}

/* Gaps are nobody's. */
TEST(which_hardened_block_an_address_is_in) {
    weir_options options = options_of_world(_i);
    unsigned char *block;

    options.harden = WEIR_HARDEN_GUARD | WEIR_HARDEN_POISON;
    OK(weir_allocator_create(&options, &a));
    for (size_t bytes = 1; bytes <= 3 * MIB; bytes *= 5) {
        block = take(bytes, A);
        if (is_bare_pool(_i)) {
            EXPECT(WEIR_E_NOT_SUPPORTED, weir_block_range(a, block, NULL, NULL));
        } else {
            expect_whole_range(block, bytes);
            expect_no_range(block - 1);
            expect_no_range(block + bytes);
            give(block, A);
            expect_no_range(block); /* on its shelf */
            block = NULL;
        }
        give(block, A);
    }
    MUST_EQ(lines(), 0);
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
}

/* ---- the suite ------------------------------------------------------------------------------- */

#define LOOP(tests, test, times) tcase_add_loop_test(tests, test, 0, times)

int main(void) {
    Suite *suite = suite_create("misuse");
    TCase *tests = suite_add_case(suite, "each world", 60, start, NULL), *last;

    LOOP(tests, freed_twice, WORLDS * WAYS);
    LOOP(tests, freed_after_it_was_handed_out_again, WORLDS);
    LOOP(tests, freed_by_two_threads_in_turn, WORLDS);
    LOOP(tests, inside_of_blocks, WORLDS);
    LOOP(tests, of_others, WORLDS);
    tcase_add_loop_test(tests, a_graphs_block_is_freed_twice, 0, 2); /* the pool's alone */
    LOOP(tests, uses_of_what_is_no_block, WORLDS);
    LOOP(tests, unknown_streams, WORLDS);
    LOOP(tests, a_stream_that_is_gone, WORLDS);
    for (int world = 0; world < WORLDS; world++)
        if (has_front(world))
            tcase_add_loop_test(tests, a_stream_of_another_device, world, world + 1);
    LOOP(tests, bindings, WORLDS);
    LOOP(tests, null_arguments, WORLDS);
    tcase_add_test(tests, options_that_cannot_be);
    LOOP(tests, a_creation_that_the_driver_refuses, 3 * WORLDS);
    LOOP(tests, destroyed_with_live_blocks, WORLDS);
    LOOP(tests, used_in_a_child, WORLDS);
    LOOP(tests, used_after_a_reset, WORLDS);
    LOOP(tests, used_after_the_driver_has_gone, WORLDS);
    LOOP(tests, which_block_an_address_is_in, WORLDS);
    LOOP(tests, which_hardened_block_an_address_is_in, WORLDS);
    last = suite_add_case(suite, "exit", 60, NULL, NULL);
    LOOP(last, used_at_exit, 2 * WORLDS);
    return run_suite(suite, CK_FORK_GETENV);
}
