/* SPDX-License-Identifier: MIT */
/* test_drop_in.c: the duties of an allocator that replaces the driver's pools (drop_in.h).
 *
 * tests/adapters/check-drop-in tests that programs notice no difference. */
#include "api/drop_in.h"
#include "driver/model/model_inside.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/every_world.h"

static void make_drop_in(int world) {
    weir_options options = options_of_world(world, 512 * MIB);

    OK(weir_allocator_create(&options, &a));
    weir__drop_in_begin(a, NULL);
}

/* ---- capture --------------------------------------------------------------------------------- */

static int shares_what_is_idle(int world) {
    return worlds[world].kind != KIND_POOL || world_has_caches(world);
}

static int has_trims(int world) {
    return worlds[world].kind != KIND_FIXED && worlds[world].kind != KIND_DIRECT;
}

static void destroy_if_left(void) {
    if (a)
        destroy_empty();
}

CASE("each world", 60, start_world_device, destroy_if_left);

/* weir refuses the requests without a line in the log.  The capture goes on, and all else works during and after it. */
TEST_WHERE(0, WORLDS, shares_what_is_idle, captured_requests_are_the_drivers) {
    CUstreamCaptureStatus status;
    void *none = NULL, *block;

    make_drop_in(_i);
    block = alloc_in_world(3000, A);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(WEIR_E_CAPTURE, weir_alloc(a, 1000, A, &none));
    EXPECT(WEIR_E_CAPTURE, weir_alloc(a, 3 * MIB, A, &none));
    MUST(none == NULL);
    MUST_EQ(lines(), 0);
    free_in_world(alloc_in_world(1000, B), B);
    CU(driver->cuStreamIsCapturing(A, &status));
    MUST_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    drop_capture(A);
    free_in_world(block, A);
    free_in_world(alloc_in_world(1000, A), A);
    MUST_EQ(stats_of(a).cache_misses_capture, 0);
}

/* ---- frees on streams of other contexts --------------------------------------------------------- */

/* The block's stream reuses the memory only after the work of the other context's stream. */
TEST_EACH(WORLDS, a_free_from_another_context_is_behind_its_work) {
    static const size_t sizes[] = {1000, 600000, 9 * MIB};
    struct model_context *green = &weir__model.devices[0].green;
    struct model_stream *far;
    uint64_t owner = 0;

    make_drop_in(_i);
    atomic_store(&green->retained, 1);
    weir__model_lock();
    far = weir__model_stream_make(green, CU_STREAM_NON_BLOCKING);
    weir__model_unlock();
    for (int round = 0; round < 40; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            unsigned char *block = alloc_in_world(sizes[i], A);

            CU(weir__model_use(A, (uintptr_t)block, sizes[i], ++owner, MS));
            CU(driver->cuStreamSynchronize(A));
            CU(weir__model_use((CUstream)(void *)far, (uintptr_t)block, sizes[i], owner, 5 * MS));
            OK(weir__drop_in_free_after(a, block, (CUstream)(void *)far, B));
            for (int j = 0; j < 2; j++) {
                CUstream stream = j ? B : A;

                block = alloc_in_world(sizes[i], stream);
                CU(weir__model_use(stream, (uintptr_t)block, sizes[i], ++owner, MS));
                free_in_world(block, stream);
            }
            ck_assert_msg(!weir__model_fault(), "%s", weir__model_fault());
        }
}

/* ---- frees of blocks whose uses are complete --------------------------------------------------- */

/* Another stream gets the blocks at once, although the blocks' own stream is at work. */
TEST_WHERE(0, WORLDS, shares_what_is_idle, blocks_that_are_done_serve_everybody) {
    static const size_t sizes[] = {1000, 70000, 600000, 9 * MIB};
    unsigned char *block[4], *again;
    uint64_t reserve;

    make_drop_in(_i);
    for (int i = 0; i < 200; i++) /* gives both streams caches */
        free_in_world(alloc_in_world(1000, i % 2 ? A : B), i % 2 ? A : B);
    for (int i = 0; i < 4; i++) {
        block[i] = alloc_in_world(sizes[i], A);
        memset(block[i], i + 1, sizes[i]);
    }
    busy(A, 50 * MS);
    reserve = stats_of(a).reserved;
    for (int i = 0; i < 4; i++)
        OK(weir__drop_in_free_completed(a, block[i]));
    MUST_EQ(stats_of(a).blocks, 0);
    for (int i = 0; i < 4; i++) {
        EXPECT(WEIR_E_NOT_OWNED, weir__drop_in_free_completed(a, block[i]));
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block[i], A));
    }
    again = alloc_in_world(9 * MIB, B);
    if (worlds[_i].kind != KIND_DIRECT || world_has_caches(_i))
        MUST_LE(stats_of(a).reserved, reserve);
    free_in_world(again, B);
}

/* A freed slot returns to a stream that reuses it while all other slots of its slab are live. */
TEST_EACH(WORLDS, a_slot_that_is_done_comes_home) {
    unsigned char *block[64];
    int found = 0;

    make_drop_in(_i);
    for (int i = 0; i < 64; i++)
        block[i] = alloc_in_world(2000, A);
    OK(weir__drop_in_free_completed(a, block[20]));
    for (int i = 0; i < 64 && !found; i++) {
        unsigned char *more = alloc_in_world(2000, A);

        found = more == block[20];
        if (!found)
            free_in_world(more, B);
        else
            free_in_world(more, A);
    }
    MUST(found || !world_has_caches(_i));
    for (int i = 0; i < 64; i++)
        if (i != 20)
            free_in_world(block[i], A);
}

/* ---- streams that end ------------------------------------------------------------------------- */

/* Other streams reuse the memory of the stream's cache once its work is complete, without a wait for the device.  The
 * next stream with the handle starts without a cache. */
TEST_EACH(WORLDS, a_stream_ends) {
    unsigned char *block[40];
    CUstream stream, next;
    uint64_t reserve;

    make_drop_in(_i);
    stream = make_stream();
    for (int i = 0; i < 40; i++)
        block[i] = alloc_in_world(300000 + (size_t)i * 20000, stream);
    for (int i = 0; i < 40; i++)
        free_in_world(block[i], stream);
    free_in_world(alloc_in_world(1000, A), A);
    reserve = stats_of(a).reserved;
    weir__drop_in_stream_ends(a, stream);
    MUST_EQ(stats_of(a).cache_idle, 0);
    CU(driver->cuStreamSynchronize(stream));
    CU(driver->cuStreamDestroy(stream));
    weir__drop_in_stream_ends(a, A); /* also for a stream that lives on */
    for (int i = 0; i < 40; i++)
        block[i] = alloc_in_world(300000 + (size_t)i * 20000, A);
    if (world_has_caches(_i) && worlds[_i].kind != KIND_DIRECT) /* engine direct reserves nothing */
        MUST_LE(stats_of(a).reserved, reserve);
    for (int i = 0; i < 40; i++)
        free_in_world(block[i], A);
    next = make_stream();
    for (int i = 0; i < 300; i++)
        free_in_world(alloc_in_world(1000, next), next);
    weir__drop_in_stream_ends(a, next);
    weir__drop_in_stream_ends(a, next);
    CU(driver->cuStreamDestroy(next));
    MUST_EQ(lines(), 0);
}

/* Nothing changes if the stream has no cache, is not queried, or is not the stream that had the cache. */
TEST_EACH(WORLDS, a_stream_ends_that_left_nothing) {
    CUstream per_thread = (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE, fresh, next;
    void *kept;
    uint64_t idle, of_both;

    make_drop_in(_i);
    free_in_world(alloc_in_world(1000, A), A);
    idle = stats_of(a).cache_idle;
    weir__drop_in_stream_ends(a, per_thread);
    free_in_world(alloc_in_world(1000, per_thread), per_thread);
    weir__drop_in_stream_ends(a, per_thread);
    fresh = make_stream();
    count_from_here();
    weir__drop_in_stream_ends(a, fresh);
    if (world_has_caches(_i)) /* without caches only the engine could know */
        EXPECT_CALLS({0, 0});
    kept = alloc_in_world(1000, fresh);
    weir__drop_in_stream_ends(a, fresh); /* too young to have a cache */
    for (int i = 0; i < 300; i++)
        free_in_world(alloc_in_world(1000, fresh), fresh);
    CU(driver->cuStreamDestroy(fresh));
    next = make_stream();
    MUST(next == fresh);
    of_both = stats_of(a).cache_idle;
    weir__drop_in_stream_ends(a, next);
    MUST_EQ(stats_of(a).cache_idle, of_both);
    weir__model_fail(WEIR_ENTRY_cuStreamGetId, 1, CUDA_ERROR_UNKNOWN, 1);
    weir__drop_in_stream_ends(a, A);
    weir__model_faults_clear();
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    weir__drop_in_stream_ends(a, A);
    drop_capture(A);
    MUST_LE(idle, stats_of(a).cache_idle);
    free_in_world(kept, A);
    CU(driver->cuStreamDestroy(next));
    MUST_EQ(lines(), 0);
}

/* The new stream with the handle does not order blocks that were freed on the old stream. */
TEST_EACH(WORLDS, a_stream_ends_after_another_of_its_handle) {
    unsigned char *block, *other[200];
    CUstream first, second;

    make_drop_in(_i);
    if (!world_has_caches(_i)) { /* the engine orders such frees */
        destroy_empty();
        return;
    }
    for (int i = 0; i < 200; i++)
        free_in_world(alloc_in_world(1000, A), A);
    first = make_stream();
    for (int i = 0; i < 300; i++)
        free_in_world(alloc_in_world(1000, first), first);
    block = alloc_in_world(1000, A);
    free_in_world(block, first);
    busy(first, 50 * MS);
    CU(driver->cuStreamDestroy(first)); /* its work is still running */
    second = make_stream();
    MUST(second == first);
    weir__drop_in_stream_ends(a, second);
    for (int i = 0; i < 200; i++) {
        other[i] = alloc_in_world(1000, A);
        MUST(other[i] != block);
    }
    for (int i = 0; i < 200; i++)
        free_in_world(other[i], A);
    CU(driver->cuStreamDestroy(second));
}

/* A default stream ends like any other, also a thread's own. */
TEST_EACH(WORLDS, a_default_stream_ends) {
    CUstream per_thread = (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
    uint64_t idle;

    make_drop_in(_i);
    free_in_world(alloc_in_world(1000, A), A);
    idle = stats_of(a).cache_idle;
    for (int i = 0; i < 300; i++)
        free_in_world(alloc_in_world(70000, per_thread), per_thread);
    MUST(!world_has_caches(_i) || stats_of(a).cache_idle > idle);
    weir__drop_in_stream_ends(a, per_thread);
    MUST_LE(stats_of(a).cache_idle, idle);
}

/* ---- trims ------------------------------------------------------------------------------------ */

/* Trims as for a program that has these streams.  Returns the bytes that are still reserved. */
static uint64_t trim_for_streams(CUstream first, CUstream second) {
    const weir_stream streams[] = {first, second};

    weir__drop_in_trim(a, 0, weir__drop_in_are_idle(a, streams, second ? 2 : 1));
    return stats_of(a).reserved;
}

/* A trim does not wait: it keeps memory that work still uses, and frees memory whose work is complete. */
TEST_WHERE(0, WORLDS, has_trims, a_trim_waits_for_nothing) {
    CUstream stream[2];
    unsigned char *block;
    uint64_t before;

    make_drop_in(_i);
    CU(driver->cuStreamCreate(&stream[0], CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamCreate(&stream[1], CU_STREAM_DEFAULT));
    for (int i = 0; i < 2; i++) {
        block = alloc_in_world(100 * MIB, stream[i]);
        CU(weir__model_use(stream[i], (uintptr_t)block, 100 * MIB, 1, 50 * MS));
        free_in_world(block, stream[i]);
        before = stats_of(a).reserved;
        MUST_EQ(trim_for_streams(stream[0], stream[1]), before);
        ANSWERS(CUDA_ERROR_NOT_READY, driver->cuStreamQuery(stream[i]));
        CU(driver->cuStreamSynchronize(stream[i]));
        MUST_LE(trim_for_streams(stream[0], stream[1]) + 64 * MIB, before);
    }
    for (int i = 0; i < 2; i++)
        CU(driver->cuStreamDestroy(stream[i]));
    MUST(weir__model_fault() == NULL);
}

/* A blocking stream waits for the legacy stream, although cuStreamQuery says that it is idle. */
TEST_WHERE(0, WORLDS, has_trims, a_trim_sees_what_the_legacy_stream_does) {
    unsigned char *block;
    CUstream stream;
    uint64_t before;

    make_drop_in(_i);
    CU(driver->cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    block = alloc_in_world(100 * MIB, stream);
    CU(weir__model_use(NULL, (uintptr_t)block, 100 * MIB, 1, 50 * MS));
    free_in_world(block, stream);
    before = stats_of(a).reserved;
    MUST_EQ(trim_for_streams(stream, NULL), before);
    CU(driver->cuStreamSynchronize(NULL));
    MUST_LE(trim_for_streams(stream, NULL) + 64 * MIB, before);
    CU(driver->cuStreamDestroy(stream));
    MUST(weir__model_fault() == NULL);
}

/* A free of an unknown address, or of an address inside a block, fails, whether or not uses are complete. */
TEST_EACH(WORLDS, what_is_no_block_is_not_done) {
    int host;
    unsigned char *small, *large, *young;

    make_drop_in(_i);
    small = alloc_in_world(3000, A);
    large = alloc_in_world(3 * MIB, A);
    young = alloc_in_world(3000, B); /* B has no cache */
    free_in_world(young, B);
    if (world_has_caches(_i)) {
        EXPECT(WEIR_E_NOT_OWNED, weir__drop_in_free_completed(a, young));
        EXPECT(WEIR_E_NOT_OWNED, weir__drop_in_free_completed(a, &host));
        EXPECT(WEIR_E_NOT_OWNED, weir__drop_in_free_completed(a, small + 512));
        EXPECT(WEIR_E_NOT_OWNED, weir__drop_in_free_completed(a, large + 512));
    }
    OK(weir__drop_in_free_completed(a, small));
    OK(weir__drop_in_free_completed(a, large));
}

/* weir queries no stream, so that only the call about the stream's end tells the handle's next stream apart. */
TEST_WHERE(0, WORLDS, world_has_caches, a_handle_that_comes_again_means_another_stream) {
    weir_options options = options_of_world(_i, 512 * MIB);
    CUstream first, second;
    unsigned char *block;
    uint64_t before;

    options.stream_checks = WEIR_SWITCH_OFF;
    OK(weir_allocator_create(&options, &a));
    weir__drop_in_begin(a, NULL);
    first = make_stream();
    block = alloc_in_world(1000, first);
    before = id_of(first);
    free_in_world(block, first);
    busy(first, 50 * MS);
    weir__drop_in_stream_ends(a, first);
    CU(driver->cuStreamDestroy(first)); /* its work is still running */
    second = make_stream();
    MUST(second == first && id_of(second) != before);
    for (int i = 0; i < 100; i++) {
        unsigned char *other = alloc_in_world(1000, second);

        /* The first stream still uses the block; the direct engine has waited for it. */
        MUST(other != block || worlds[_i].kind == KIND_DIRECT);
        free_in_world(other, second);
    }
    CU(driver->cuStreamDestroy(second));
}

/* ---- streams that the adapter watches --------------------------------------------------------- */

static CUstream watched;

static int watches(weir_stream stream) {
    return stream == watched;
}

static void make_watched(int world) {
    make_drop_in(world);
    weir__drop_in_begin(a, watches);
    watched = make_stream();
    weir__drop_in_stream_begins(a, watched);
}

/* Makes pairs of 1000 bytes once the stream has a cache.  Returns the number of queries about the stream. */
static uint64_t driver_calls_of_pairs(CUstream stream) {
    for (int i = 0; i < 50; i++)
        free_in_world(alloc_in_world(1000, stream), stream);
    count_from_here();
    for (int i = 0; i < 50; i++)
        free_in_world(alloc_in_world(1000, stream), stream);
    return calls(WEIR_ENTRY_cuStreamIsCapturing) + calls(WEIR_ENTRY_cuStreamGetId);
}

TEST_WHERE(0, WORLDS, world_has_caches, who_is_watched_is_not_asked_about) {
    make_watched(_i);
    MUST_EQ(driver_calls_of_pairs(watched), 0);
    MUST_EQ(driver_calls_of_pairs(NULL), 0);
    MUST_EQ(driver_calls_of_pairs((CUstream)(uintptr_t)WEIR_STREAM_LEGACY_VALUE), 0);
    MUST_EQ(driver_calls_of_pairs((CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE), 0);
    MUST_LE(1, driver_calls_of_pairs(A));
    weir__drop_in_stream_ends(a, watched);
    CU(driver->cuStreamDestroy(watched));
}

/* weir does not see the end of the stream, but that another stream has the handle. */
TEST_WHERE(0, WORLDS, world_has_caches, who_was_watched_is_not_who_has_the_handle_next) {
    unsigned char *block;
    CUstream first;
    uint64_t before;

    make_watched(_i);
    (void)driver_calls_of_pairs(watched);
    block = alloc_in_world(1000, watched);
    first = watched;
    before = id_of(first);
    free_in_world(block, first);
    busy(first, 50 * MS);
    CU(driver->cuStreamDestroy(first)); /* its work is still running */
    watched = make_stream();
    MUST(watched == first && id_of(watched) != before);
    weir__drop_in_stream_begins(a, watched);
    for (int i = 0; i < 100; i++) {
        unsigned char *other = alloc_in_world(1000, watched);

        MUST(other != block); /* the first stream still uses the block */
        free_in_world(other, watched);
    }
    weir__drop_in_stream_ends(a, watched);
    CU(driver->cuStreamDestroy(watched));
}

/* A watched stream may end, and another stream begin, by calls that weir does not see. */
TEST_WHERE(0, WORLDS, world_has_caches, who_is_watched_no_more_is_asked_about) {
    make_watched(_i);
    (void)driver_calls_of_pairs(watched);
    watched = NULL;
    weir__drop_in_stream_ends(a, A); /* A was never used */
    MUST_LE(driver_calls_of_pairs(B), 100);
    weir__drop_in_stream_ends(a, B);
    MUST_LE(1, driver_calls_of_pairs(B));
}

static void *give_on_own(void *block) {
    CUstream own = (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
    CUcontext popped;

    CU(driver->cuCtxPushCurrent(primary));
    (void)driver_calls_of_pairs(own);
    busy(own, 50 * MS);
    free_in_world(block, own);
    CU(driver->cuCtxPopCurrent(&popped));
    return NULL;
}

/* Each thread and each context has another default stream. */
TEST_WHERE(0, WORLDS, world_has_caches, default_streams_that_are_known_are_told_apart) {
    CUstream own = (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
    CUcontext second, popped;
    unsigned char *block, *other;
    void *refused;

    ANSWERS(0, weir__model_reset(&(struct weir_model_setup){.devices = 2, .capacity = CAPACITY}));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    A = make_stream();
    make_watched(_i);
    (void)driver_calls_of_pairs(own);
    (void)driver_calls_of_pairs(NULL);
    block = alloc_in_world(1000, own);
    run_in_thread(give_on_own, block);
    for (int i = 0; i < 100; i++) {
        other = alloc_in_world(1000, own);
        MUST(other != block); /* the other thread's stream is at work */
        free_in_world(other, own);
    }
    CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
    CU(driver->cuCtxPushCurrent(second));
    EXPECT(WEIR_E_STREAM, weir_alloc(a, 1000, NULL, &refused));
    EXPECT(WEIR_E_STREAM, weir_alloc(a, 1000, own, &refused));
    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuDevicePrimaryCtxRelease(1));
    free_in_world(alloc_in_world(1000, NULL), NULL);
    weir__drop_in_stream_ends(a, watched);
    CU(driver->cuStreamDestroy(watched));
}

/* ---- peaks ------------------------------------------------------------------------------------ */

TEST_EACH(WORLDS, a_peak_begins_anew) {
    void *small, *large;

    make_drop_in(_i);
    MUST_EQ(weir__drop_in_knows_peak(a), world_has_caches(_i));
    if (!world_has_caches(_i)) {
        destroy_empty();
        return;
    }
    for (int stream = 0; stream < 2; stream++) { /* blocks on one stream, then on two */
        CUstream other = stream ? B : A;

        (void)weir__drop_in_peak(a, 1);
        MUST_EQ(weir__drop_in_peak(a, 0), 0);
        small = alloc_in_world(1000, A);
        large = alloc_in_world(5 * MIB, other);
        MUST_EQ(weir__drop_in_peak(a, 0), 5 * MIB + 1000);
        free_in_world(large, other);
        MUST_EQ(weir__drop_in_peak(a, 0), 5 * MIB + 1000);
        (void)weir__drop_in_peak(a, 1);
        MUST_EQ(weir__drop_in_peak(a, 0), 1000);
        large = alloc_in_world(MIB, A);
        MUST_EQ(weir__drop_in_peak(a, 0), MIB + 1000);
        free_in_world(small, other);
        free_in_world(large, A);
        MUST_EQ(weir__drop_in_peak(a, 0), MIB + 1000);
        MUST_EQ(stats_of(a).requested_peak, 5 * MIB + 1000); /* this peak is not reset */
    }
}

/* ---- a context that goes ----------------------------------------------------------------------- */

/* The driver may be gone, so that weir makes no driver call any more. */
TEST_EACH(WORLDS, a_context_goes) {
    void *block, *none = NULL;

    make_drop_in(_i);
    block = alloc_in_world(5000, A);
    weir__drop_in_mark_lost(a);
    count_from_here();
    EXPECT(WEIR_E_DEVICE_LOST, weir_alloc(a, 1000, A, &none));
    EXPECT(WEIR_E_DEVICE_LOST, weir_alloc(a, 9 * MIB, NULL, &none));
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(a, block, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir__drop_in_free_completed(a, block));
    EXPECT(WEIR_E_DEVICE_LOST, weir_block_range(a, block, NULL, NULL));
    weir__drop_in_stream_ends(a, A);
    (void)weir__drop_in_contains(a, (uintptr_t)block);
    EXPECT_CALLS({WEIR_ENTRY_cuMemFree, 0});
    MUST(none == NULL);
    MUST_EQ(lines(), 0);
    a = NULL; /* cannot be destroyed any more */
}

/* ---- memory without blocks --------------------------------------------------------------------- */

TEST_EACH(WORLDS, addresses_of_its_memory_are_recognised) {
    int host = 0, cuts = worlds[_i].kind == KIND_FIXED || worlds[_i].kind == KIND_REGIONS ||
                         worlds[_i].kind == KIND_MAPPED || world_has_caches(_i);
    unsigned char *block;

    make_drop_in(_i);
    block = alloc_in_world(5000, A);
    MUST_EQ(weir__drop_in_contains(a, (uintptr_t)block), cuts || worlds[_i].kind == KIND_DIRECT);
    free_in_world(block, A);
    MUST_EQ(weir__drop_in_contains(a, (uintptr_t)block), cuts);
    MUST(!weir__drop_in_contains(a, (uintptr_t)&host));
    MUST_EQ(weir__drop_in_keeps_addresses(a), worlds[_i].kind == KIND_MAPPED);
}

/* ---- the log --------------------------------------------------------------------------------- */

/* The log lacks failures that are reported elsewhere, and has all other lines. */
TEST_EACH(WORLDS, failures_are_not_said_twice) {
    weir_options options = options_of_world(_i, 512 * MIB);
    void *none = NULL;

    options.limit = bytes_amount(512 * MIB);
    options.log = WEIR_LOG_WARNING;
    for (int hushed = 0; hushed < 2; hushed++) {
        OK(weir_allocator_create(&options, &a));
        if (hushed)
            weir__drop_in_stop_logs(a);
        ANSWERS(0, lines());
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, GIB, A, &none));
        ANSWERS(0, lines());
        MUST((strstr(logged, "weir: warning: the allocator's limit is reached") == NULL) == hushed);
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, &none, A));
        ANSWERS(1, lines());
        destroy_empty();
    }
}

SUITE("drop-in", CK_FORK_GETENV);
