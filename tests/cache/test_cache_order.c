/* SPDX-License-Identifier: MIT */
/* test_cache_order.c: the streams that may reuse cached memory: remote frees, noted uses, captures. */
#include "cache/stream_cache.h"
#include "tests/fixtures/caches.h"

/* ---- remote frees ---------------------------------------------------------------------------- */

CASE("streams", 300, start_device, end_cached_if_there);

TEST_EACH(ENGINES, a_remote_free_serves_where_it_was_freed) {
    make_cached(_i, "");
    void *held[500];
    int count = 0;
    warm(A);
    warm(B);
    void *block = alloc_live(3000, A);
    order_streams(B, A);
    busy(B, 50 * MS);
    free_live(block, B);
    for (held[0] = alloc_live(3000, B); held[count] != block; held[count] = alloc_live(3000, B))
        MUST(++count < 500); /* older slots come first */
    MUST_EQ(check_identities(a).blocks, (uint64_t)count + 1);
    while (count >= 0)
        free_live(held[count--], B);
    forbid(block, 3000);
    expect_none_of_it(A);
    expect_none_of_it(C);
    MUST(weir__model_now_ns() < 50 * MS);
}

/* The stream that freed a slot of A's cache has ended, and another stream has its handle. */
TEST_EACH(ENGINES, a_remote_free_by_a_handle_that_is_used_again_is_ordered) {
    void *block;
    CUstream s, renewed;

    make_cached(_i, "");
    s = make_stream();
    warm(A);
    warm(s);
    block = alloc_live(3000, A);
    order_streams(s, A);
    busy(s, 50 * MS);
    free_live(block, s);
    CU(driver->cuStreamDestroy(s));
    renewed = make_stream();
    MUST(renewed == s);
    forbid(block, 3000);
    for (int i = 0; i < 5; i++)
        expect_none_of_it(renewed);
    expect_none_of_it(A);
    MUST(weir__model_now_ns() < 50 * MS);
    CU(driver->cuStreamDestroy(renewed));
}

/* One slot alone makes a trim wait: a remote free, or a slot that another stream uses. */
TEST_EACH(ENGINES * 2, a_trim_waits_for_what_is_away) {
    make_cached(_i / 2, "");
    void *home = alloc_live(3000, A);
    void *away = alloc_live(3000, A);
    OK(weir_bind(a, B)); /* B has an empty cache */
    order_streams(B, A);
    if (_i % 2)
        OK(weir_use(a, away, B));
    busy(B, 50 * MS);
    free_live(away, _i % 2 ? A : B);
    MUST(weir__model_now_ns() < 50 * MS);
    OK(weir_trim(a, 0, NULL));
    MUST_LE(50 * MS, weir__model_now_ns());
    free_live(home, A);
    OK(weir_unbind(a, B));
}

/* Many remote frees return to their slabs behind an event.  Their stream then reuses the slots without growth. */
TEST_EACH(ENGINES, remote_frees_find_their_cache) {
    enum { COUNT = 3000 };
    make_cached(_i, "");
    void *block[COUNT];
    uint64_t reserve, events;
    int home = 0;

    warm(A);
    warm(B);
    for (int i = 0; i < COUNT; i++)
        block[i] = alloc_live(2000, A);
    order_streams(B, A);
    busy(B, 50 * MS);
    events = stats_of(a).event_records;
    count_from_here();
    for (int i = 0; i < COUNT; i++) {
        free_live(block[i], B);
        forbid(block[i], 2000);
    }
    expect_none_of_it(A);
    MUST_LE(1, calls(WEIR_ENTRY_cuEventRecord));
    MUST_EQ(stats_of(a).event_records - events, calls(WEIR_ENTRY_cuEventRecord));
    MUST(weir__model_now_ns() < 50 * MS);
    weir__model_advance(50 * MS);
    reserve = stats_of(a).reserved;
    for (int i = 0; i < COUNT; i++) {
        block[i] = alloc_live(2000, A);
        home += is_forbidden(block[i], 2000);
    }
    ck_assert_int_gt(home, COUNT / 2);
    MUST_EQ(stats_of(a).reserved, reserve);
}

/* Remote frees of a stream that has ended are reclaimed only after a wait for the device.  OOM recovery waits; a
 * request that can grow does not.  `is_limited`: the request cannot grow. */
static void strand(int kind, int is_limited) {
    static const size_t of_a_class[] = {512 * KIB, 448 * KIB, 384 * KIB, 320 * KIB, 256 * KIB};
    CUstream s = make_stream(), first = s;
    void *block[300]; /* too few of each class to return behind an event */
    make_cached(kind, is_limited ? "limit=512MiB" : "");
    warm(A);
    warm(s);
    for (int i = 0; i < 300; i++)
        block[i] = alloc_live(of_a_class[i / 60], A);
    order_streams(s, A);
    busy(s, 50 * MS);
    for (int i = 0; i < 300; i++)
        free_live(block[i], s);
    CU(driver->cuStreamDestroy(s));
    s = make_stream();
    MUST(s == first);
    pair(512, s); /* the owner of the remote frees is now unknown */
    void *large = alloc_live(450 * MIB, A);
    MUST_EQ(weir__model_now_ns() >= 50 * MS, is_limited);
    free_live(large, A);
    CU(driver->cuStreamDestroy(s));
}

static int can_strand(int row) {
    return row / 2 != KIND_FIXED;
}

TEST_WHERE(0, 2 * ENGINES, can_strand, what_is_stranded_is_waited_for_at_a_limit) {
    strand(_i / 2, _i % 2);
}

/* Returns the number of hits in the second half of 200 requests and frees. */
static uint64_t hits_of(CUstream stream) {
    uint64_t hits;

    for (int i = 0; i < 100; i++)
        pair(2000, stream);
    hits = stats_of(a).cache_hits;
    for (int i = 0; i < 100; i++)
        pair(2000, stream);
    return stats_of(a).cache_hits - hits;
}

/* Returns the hits of a new stream.  The stream ends unseen, and leaves slabs of 4 MiB in its cache, if it has one. */
static uint64_t hits_of_a_short_life(void) {
    CUstream s = make_stream();
    uint64_t hits = hits_of(s);
    void *block[8];

    for (int i = 0; i < 8; i++)
        block[i] = alloc_live(512 * KIB, s);
    for (int i = 0; i < 8; i++)
        free_live(block[i], s);
    CU(driver->cuStreamDestroy(s));
    return hits;
}

static void *freed_late;

/* Frees a block during a capture of the thread's own stream, which weir does not know.  free_beside runs this function
 * in another thread, beside the first cuMemFree, which waits for the device. */
static void free_late(void) {
    void *block = freed_late;

    freed_late = NULL;
    begin_cache_capture(PER_THREAD);
    free_live(block, PER_THREAD);
    end_cache_capture(PER_THREAD, 0);
}

static CUresult free_with_late(CUdeviceptr block) {
    CUresult result = driver->cuMemFree(block);

    if (freed_late)
        elsewhere(free_late);
    return result;
}

/* Streams that ended unseen have left 64 MiB that only a device wait can reclaim.  A further stream with their handle
 * then gets no cache, but a stream with another handle does.  A trim waits, and afterwards streams get caches again,
 * also if a free was quarantined during that wait. */
TEST_WHERE(KIND_REGIONS, KIND_MAPPED + 1, NULL, streams_that_end_unseen_get_no_caches) {
    weir_options options = plain(_i);
    CUstream same, other;
    uint64_t before;

    copy_driver();
    table.cuMemFree = free_with_late;
    make_with_on(&table, &options);
    warm(A);
    before = stats_of(a).reserved;
    MUST_LE(90, hits_of_a_short_life());
    for (int i = 0; i < 100; i++)
        (void)hits_of_a_short_life();
    MUST_EQ(hits_of_a_short_life(), 0);
    MUST_LE(stats_of(a).reserved, before + 160 * MIB);
    same = make_stream();
    other = make_stream();
    MUST_LE(90, hits_of(other));
    MUST_EQ(hits_of(same), 0);
    CU(driver->cuStreamDestroy(same));
    CU(driver->cuStreamDestroy(other));
    freed_late = alloc_live(4 * MIB, A);
    OK(weir_trim(a, GIB, NULL));
    MUST_EQ((uintptr_t)freed_late, 0);
    (void)hits_of_a_short_life();
    MUST_LE(90, hits_of_a_short_life());
}

/* ---- noted uses ------------------------------------------------------------------------------ */

TEST_EACH(ENGINES, noted_uses_hold_small_and_whole_blocks) {
    make_cached(_i, "");
    void *block[SIZES];

    warm(A);
    warm(B);
    for (int i = 0; i < SIZES; i++) {
        block[i] = alloc_live(sizes[i], A);
        order_streams(B, A);
        OK(weir_use(a, block[i], B));
        forbid(block[i], sizes[i]);
    }
    busy(B, 50 * MS);
    for (int i = 0; i < SIZES; i++)
        free_live(block[i], A);
    check_identities(a);
    MUST_EQ(stats_of(a).blocks, 0);
    for (int i = 0; i < SIZES; i++)
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block[i], A));
    expect_none_of_it(A);
    expect_none_of_it(B);
    expect_none_of_it(C);
    MUST(weir__model_now_ns() < 50 * MS);
    weir__model_advance(50 * MS);
}

/* However many slots wait for noted uses, a call queries eight of them at most. */
TEST_EACH(ENGINES, few_are_asked_about_at_a_time) {
    enum { COUNT = 20, PEEK = 8 };
    make_cached(_i, "");
    void *block[COUNT];

    warm(A);
    for (int i = 0; i < COUNT; i++) {
        block[i] = alloc_live(512, A);
        order_streams(B, A);
        OK(weir_use(a, block[i], B));
    }
    busy(A, 50 * MS);
    busy(B, 50 * MS);
    for (int i = 0; i < COUNT; i++) {
        count_from_here();
        free_live(block[i], A);
        MUST_EQ(calls(WEIR_ENTRY_cuEventQuery), (uint64_t)(i < PEEK ? i + 1 : PEEK));
    }
}

/* The free returns WEIR_E_STREAM and drops the note.  The block stays live, and the next free succeeds. */
TEST_EACH(ENGINES, a_use_of_a_destroyed_stream) {
    make_cached(_i, "");
    CUstream dead;

    warm(A);
    for (int i = 0; i < SIZES; i++) {
        void *block = alloc_live(sizes[i], A);

        dead = make_stream();
        OK(weir_use(a, block, dead));
        CU(driver->cuStreamDestroy(dead));
        EXPECT(WEIR_E_STREAM, weir_free(a, block, A));
        MUST_EQ(check_identities(a).blocks, 1);
        free_live(block, A);
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    }
}

/* With stream-checks=off, a stream has its cache from its first call. */
TEST_EACH(ENGINES, a_second_free_on_a_new_stream_is_refused) {
    make_cached(_i, "stream-checks=off");
    warm(A);
    void *block = alloc_live(3000, A);
    free_live(block, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, B));
}

/* ---- capture --------------------------------------------------------------------------------- */

static void expect_capturing(CUstream stream) {
    CUstreamCaptureStatus status;

    CU(driver->cuStreamIsCapturing(stream, &status));
    MUST_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

/* weir_bind refuses a stream that the driver does not know, or that is being captured, and changes nothing. */
TEST_EACH(ENGINES, unknown_and_captured_streams_are_not_bound) {
    make_cached(_i, "");
    CUstream s = make_stream();

    CU(driver->cuStreamDestroy(s));
    EXPECT(WEIR_E_STREAM, weir_bind(a, s));
    begin_cache_capture(A);
    EXPECT(WEIR_E_CAPTURE, weir_bind(a, A));
    EXPECT(WEIR_E_CAPTURE, weir_unbind(a, A));
    expect_capturing(A);
    end_cache_capture(A, 0);
    EXPECT(WEIR_E_INVALID, weir_unbind(a, A));
}

static void expect_no_questions(void) {
    static const enum weir_driver_entry entries[] = {
        WEIR_ENTRY_cuEventRecord, WEIR_ENTRY_cuEventQuery, WEIR_ENTRY_cuStreamSynchronize,
        WEIR_ENTRY_cuCtxSynchronize, WEIR_ENTRY_cuStreamWaitEvent};

    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        ck_assert_msg(calls(entries[i]) == 0, "%s was called", weir__driver_entry_name(entries[i]));
}

/* `cached`: the captured stream has a cache.  `aborted`: the capture is aborted. */
static void free_under_capture(int kind, CUstream stream, int cached, int aborted) {
    make_cached(kind, "");
    void *block[SIZES], *none = &none;
    warm(B);
    if (cached)
        warm(stream);
    for (int i = 0; i < SIZES; i++) {
        block[i] = alloc_live(sizes[i], stream);
        forbid(block[i], sizes[i]);
    }
    weir_statistics before = stats_of(a);
    begin_cache_capture(stream);
    count_from_here();
    busy(stream, MS); /* a node of the graph */
    if (kind != KIND_DIRECT) {
        none = alloc_live(512, stream);
        free_live(none, stream);
        MUST_EQ(stats_of(a).cache_misses_capture, before.cache_misses_capture + 1);
    } else {
        EXPECT(WEIR_E_CAPTURE, weir_alloc(a, 512, stream, &none));
    }
    for (int i = 0; i < SIZES; i++)
        free_live(block[i], stream);
    MUST_EQ(stats_of(a).deferred_frees, before.deferred_frees + SIZES);
    for (int i = 0; i < SIZES; i++)
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block[i], stream));
    weir_statistics after = check_identities(a);
    MUST_EQ(after.deferred_frees, before.deferred_frees + SIZES);
    MUST_EQ(after.blocks, before.blocks - SIZES);
    MUST_EQ(after.cache_hits, before.cache_hits);
    expect_no_questions();
    expect_none_of_it(B);
    expect_none_of_it(C);
    end_cache_capture(stream, aborted);
    if (cached) { /* the engine may prefer other memory, but the stream gets its own back in time */
        void *more[SIZES * 6];
        int again = 0;

        for (int i = 0; i < SIZES * 6; i++) {
            more[i] = alloc_live(sizes[i % SIZES], stream);
            again += is_forbidden(more[i], sizes[i % SIZES]);
        }
        MUST(again > 0);
        for (int i = 0; i < SIZES * 6; i++)
            free_live(more[i], stream);
    }
}

CASE("capture", 300, start_device, end_cached_if_there);

TEST_EACH(ENGINES * 4, frees_under_capture) {
    free_under_capture(_i / 4, A, _i & 1, _i >> 1 & 1);
}

static const char *const cache_settings[] = {"", "cache=off"};

static int has_caches_or_an_arena(int row) {
    return row / 2 != KIND_POOL || row % 2 == 0;
}

/* Each round frees a large block during a capture.  The stream reuses the blocks after the capture. */
TEST_WHERE(0, 2 * ENGINES, has_caches_or_an_arena, frees_under_captures_do_not_add_up) {
    make_cached(_i / 2, cache_settings[_i % 2]);
    uint64_t before = 0;

    for (int i = 0; i < 40; i++) {
        void *block = alloc_live(8 * MIB, A);

        busy(A, MS);
        begin_cache_capture(A);
        free_live(block, A);
        end_cache_capture(A, i % 2);
        pair(MIB, B);
        weir__model_advance(MS);
        if (i == 10)
            before = stats_of(a).reserved;
    }
    MUST_EQ(stats_of(a).reserved, before);
}

static const int by_driver[] = {KIND_POOL, KIND_DIRECT};

/* A block that is freed during a capture of A waits for A's next call, not for another stream's. */
TEST_EACH(2, frees_under_captures_wait_for_their_stream) {
    make_cached(by_driver[_i], "cache=on");
    pair(3000, A); /* so that B has no cache, and each of its calls looks for what waits */
    void *block = alloc_live(8 * MIB, A);
    busy(A, 100 * MS);
    begin_cache_capture(A);
    free_live(block, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, B));
    end_cache_capture(A, 0);
    MUST_EQ(check_identities(a).deferred_frees, 1);
    forbid(block, 8 * MIB);
    for (int i = 0; i < 3; i++) {
        void *other = alloc_live(8 * MIB, B);

        MUST(!is_forbidden(other, 8 * MIB));
        free_live(other, B);
        pair(3000, B);
    }
    MUST(_i == 1 || weir__model_now_ns() < 100 * MS); /* a free of engine direct waits */
    uint64_t live = weir__engine_reserve(a->reserve.engine);
    pair(3000, A); /* frees the block on A */
    void *others[] = {alloc_live(8 * MIB, B), alloc_live(8 * MIB, B)};
    for (int i = 0; i < 2; i++) {
        MUST(_i == 1 || !is_forbidden(others[i], 8 * MIB));
        free_live(others[i], B);
    }
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_LE(weir__engine_reserve(a->reserve.engine) + 8 * MIB, live);
}

/* The next call of a stream without a cache frees the block, too. */
TEST_EACH(2, frees_under_captures_of_a_young_stream_do_not_add_up) {
    uint64_t before = 0;

    make_cached(by_driver[_i], "cache=on");
    pair(3000, B);
    for (int i = 0; i < 4; i++) {
        void *block = alloc_live(64 * MIB, A);

        if (i == 0)
            before = weir__engine_reserve(a->reserve.engine);
        begin_cache_capture(A);
        free_live(block, A);
        end_cache_capture(A, 0);
    }
    free_live(alloc_live(64 * MIB, A), A);
    MUST_LE(weir__engine_reserve(a->reserve.engine), before);
}

/* The handle means another stream at the next call, a request or a binding, which is not behind the work on the block. */
TEST_EACH(2, a_young_stream_that_ended_has_its_block_wait) {
    CUstream s = make_stream(), renewed;
    void *block;

    make_cached(KIND_POOL, "cache=on");
    pair(3000, B);
    block = alloc_live(8 * MIB, s);
    busy(s, 50 * MS);
    begin_cache_capture(s);
    free_live(block, s);
    end_cache_capture(s, 0);
    CU(driver->cuStreamDestroy(s));
    renewed = make_stream();
    MUST(renewed == s);
    forbid(block, 8 * MIB);
    if (_i)
        OK(weir_bind(a, renewed));
    pair(3000, renewed);
    MUST(!is_forbidden(alloc_live(8 * MIB, renewed), 8 * MIB));
    MUST(weir__model_now_ns() < 50 * MS);
    OK(weir_trim(a, 0, NULL));
    MUST_LE(50 * MS, weir__model_now_ns());
}

static CUresult free_without_the_lock(CUdeviceptr block) {
    if (a) {
        int is_taken = pthread_mutex_trylock(&a->caches->lock);

        MUST_EQ(is_taken, 0);
        pthread_mutex_unlock(&a->caches->lock);
    }
    return driver->cuMemFree(block);
}

/* A free of engine direct waits for the device, which must not keep other calls from the caches. */
TEST(blocks_that_waited_are_freed_without_the_lock) {
    weir_options options = plain(KIND_DIRECT);

    copy_driver();
    table.cuMemFree = free_without_the_lock;
    options.cache = WEIR_SWITCH_ON;
    make_with_on(&table, &options);
    pair(3000, A);
    for (int i = 0; i < 2; i++) {
        void *block = alloc_live(8 * MIB, A);

        begin_cache_capture(A);
        free_live(block, A);
        end_cache_capture(A, 0);
        count_from_here();
        if (i)
            OK(weir_trim(a, 0, NULL));
        else
            pair(3000, A);
        MUST_LE(1, calls(WEIR_ENTRY_cuMemFree));
    }
}

/* Slabs of a stream that ended unseen go back after a wait for the device, in a trim. */
TEST_EACH(2, what_waits_for_an_ended_stream_waits_for_the_device) {
    make_cached(by_driver[_i], "cache=on");
    CUstream s = make_stream();
    void *block[4];

    pair(512, s);
    for (int i = 0; i < 4; i++)
        block[i] = alloc_live(512 * KIB, s);
    busy(s, 100 * MS);
    for (int i = 0; i < 4; i++) {
        forbid(block[i], 512 * KIB);
        free_live(block[i], s);
    }
    CU(driver->cuStreamDestroy(s));
    CUstream t = make_stream();
    MUST(s == t);
    void *next[] = {alloc_live(3000, t), alloc_live(512 * KIB, t), alloc_live(MIB, t),
                    alloc_live(MIB, B)};
    for (int i = 0; i < 4; i++)
        MUST(!is_forbidden(next[i], i == 0 ? 3000 : 512 * KIB));
    MUST(weir__model_now_ns() < 100 * MS);
    OK(weir_trim(a, 0, NULL));
    MUST_LE(100 * MS, weir__model_now_ns());
    free_all_live();
    CU(driver->cuStreamDestroy(t));
}

static const size_t consumed[] = {64 * KIB, 2000000};
enum { CONSUMED = sizeof consumed / sizeof *consumed };

/* A produces blocks, which B frees during its captures.  Between captures B's requests are hits of its cache.  A reuses
 * the blocks, also if B is bound (_i % 2). */
TEST_EACH(2 * CONSUMED, frees_under_captures_of_a_consumer_do_not_add_up) {
    make_cached(KIND_MAPPED, "");
    size_t bytes = consumed[_i / 2];
    void *blocks[16];

    for (int i = 0; i < 100; i++) /* B gets a cache */
        pair(4 * KIB, B);
    if (_i % 2)
        OK(weir_bind(a, B));
    for (int i = 0; i < 600; i++) {
        for (int k = 0; k < 16; k++)
            blocks[k] = alloc_live(bytes, A);
        order_streams(B, A);
        pair(4 * KIB, B);
        begin_cache_capture(B);
        for (int k = 0; k < 16; k++)
            free_live(blocks[k], B);
        end_cache_capture(B, 0);
    }
    MUST_LE(stats_of(a).reserved, 6 * 16 * bytes + 32 * MIB);
}

/* C has no cache and frees small blocks during a capture, so that those frees wait for the device.  B frees blocks of
 * A, and A reuses them as soon as B's events have completed. */
TEST(frees_that_wait_for_the_device_hold_no_others_up) {
    make_cached(KIND_MAPPED, "");
    void *blocks[512];

    for (int k = 0; k < 512; k++)
        blocks[k] = alloc_live(4 * KIB, A);
    order_streams(C, A);
    begin_cache_capture(C);
    for (int k = 0; k < 512; k++)
        free_live(blocks[k], C);
    end_cache_capture(C, 0);
    for (int i = 0; i < 100; i++) /* B gets a cache */
        pair(4 * KIB, B);
    for (int i = 0; i < 600; i++) {
        for (int k = 0; k < 16; k++)
            blocks[k] = alloc_live(64 * KIB, A);
        order_streams(B, A);
        for (int k = 0; k < 16; k++)
            free_live(blocks[k], B);
    }
    MUST_LE(stats_of(a).reserved, 16 * MIB);
}

/* A block is freed during a capture of a stream that weir does not know, and whose handle meant another stream before.
 * Nobody gets the block before a trim has waited for the device. */
TEST_WHERE(KIND_FIXED, KIND_MAPPED + 1, NULL, a_captured_free_by_a_reused_handle_waits) {
    make_cached(_i, "cache=off");
    CUstream s = make_stream();
    void *block = alloc_live(8 * MIB, B);

    pair(MIB, s);
    CU(driver->cuStreamDestroy(s));
    CUstream t = make_stream();
    MUST(s == t);
    order_streams(t, B);
    busy(t, 100 * MS);
    begin_cache_capture(t);
    free_live(block, t);
    forbid(block, 8 * MIB);
    end_cache_capture(t, 0);
    for (int i = 0; i < 3; i++) {
        void *other[] = {alloc_live(8 * MIB, B), alloc_live(8 * MIB, t)};

        MUST(!is_forbidden(other[0], 8 * MIB));
        MUST(!is_forbidden(other[1], 8 * MIB));
        free_live(other[1], t);
        free_live(other[0], B);
    }
    MUST(weir__model_now_ns() < 100 * MS);
    OK(weir_trim(a, GIB, NULL));
    MUST_LE(100 * MS, weir__model_now_ns());
    CU(driver->cuStreamDestroy(t));
}

static void *block_of_b;

static void free_per_thread_under_capture(void) {
    order_streams(PER_THREAD, B);
    busy(PER_THREAD, 100 * MS);
    begin_cache_capture(PER_THREAD);
    free_live(block_of_b, PER_THREAD);
    end_cache_capture(PER_THREAD, 0);
}

/* The handle of the per-thread default stream means another stream in each thread. */
TEST_WHERE(KIND_FIXED, KIND_MAPPED + 1, NULL, a_free_under_capture_of_a_threads_own_stream) {
    make_cached(_i, "cache=off");

    block_of_b = alloc_live(8 * MIB, B);
    forbid(block_of_b, 8 * MIB);
    pair(MIB, PER_THREAD);
    elsewhere(free_per_thread_under_capture);
    MUST(!is_forbidden(alloc_live(8 * MIB, PER_THREAD), 8 * MIB));
    MUST(!is_forbidden(alloc_live(8 * MIB, B), 8 * MIB));
    MUST(weir__model_now_ns() < 100 * MS);
}

/* During its capture the driver does not report the id of a default stream. */
TEST_EACH(ENGINES, frees_under_capture_of_a_default_stream) {
    free_under_capture(_i, PER_THREAD, 0, 0);
}

/* The captured stream has never been used, or has made a single call, or has a cache.  A free into a cache does not query
 * the capture, and is not counted. */
TEST_EACH(ENGINES, slots_of_others_are_freed_under_capture) {
    make_cached(_i, "");
    CUstream stream[] = {make_stream(), B, C};
    void *block[3];

    warm(A);
    warm(C);
    free_live(alloc_live(3000, B), B);
    for (int i = 0; i < 3; i++)
        block[i] = alloc_live(3000, A);
    for (int i = 0; i < 3; i++) {
        uint64_t before = stats_of(a).deferred_frees;

        begin_cache_capture(stream[i]);
        free_live(block[i], stream[i]);
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block[i], stream[i]));
        MUST_EQ(check_identities(a).deferred_frees, before + (i < 2));
        expect_capturing(stream[i]);
        end_cache_capture(stream[i], 0);
    }
    CU(driver->cuStreamDestroy(stream[0]));
}

TEST_EACH(ENGINES, a_wrong_free_beside_a_capture_harms_it_not) {
    make_cached(_i, "");
    CUdeviceptr foreign;
    warm(A);
    char *block = alloc_live(64 * KIB, A);
    CU(driver->cuMemAlloc(&foreign, KIB));
    begin_cache_capture(B);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block + 512, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, (void *)(uintptr_t)(foreign + 512), A));
    expect_capturing(B);
    end_cache_capture(B, 0);
    CU(driver->cuMemFree(foreign));
}

/* No event covers cached memory, so that a trim waits for the device. */
TEST_EACH(ENGINES, a_wait_on_a_full_device_harms_no_capture) {
    make_cached(_i, "");
    CUdeviceptr rest, last;
    size_t bytes, total;

    warm(A);
    CU(driver->cuMemGetInfo(&bytes, &total));
    CU(driver->cuMemAlloc(&rest, bytes / (2 * MIB) * (2 * MIB)));
    MUST(driver->cuMemAlloc(&last, 2 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    begin_cache_capture(C);
    busy(A, 5 * MS);
    OK(weir_trim(a, 0, NULL));
    MUST_LE(5 * MS, weir__model_now_ns());
    expect_capturing(C);
    end_cache_capture(C, 0);
    MUST_EQ(stats_of(a).reserved, 0);
    CU(driver->cuMemFree(rest));
}

/* A block with notes cannot be freed while its stream or a noted one is captured. */
TEST_EACH(ENGINES, used_blocks_wait_for_the_end_of_a_capture) {
    make_cached(_i, "");
    void *block[SIZES];

    warm(A);
    for (int i = 0; i < SIZES; i++) {
        block[i] = alloc_live(sizes[i], A);
        OK(weir_use(a, block[i], B));
    }
    begin_cache_capture(A);
    for (int i = 0; i < SIZES; i++)
        EXPECT(WEIR_E_CAPTURE, weir_free(a, block[i], A));
    end_cache_capture(A, 0);
    begin_cache_capture(B);
    for (int i = 0; i < SIZES; i++)
        EXPECT(WEIR_E_CAPTURE, weir_free(a, block[i], A));
    end_cache_capture(B, 0);
    MUST_EQ(check_identities(a).blocks, SIZES);
}

/* A graph's block that outlives a launch is freed outside of the graph.  No cache keeps memory of that block. */
TEST_EACH(KIND_DIRECT, a_graphs_block_is_freed_outside) {
    make_cached(_i, "");
    CUgraphExec exec;
    CUgraph graph;
    warm(A);
    weir_statistics before = stats_of(a);
    begin_cache_capture(A);
    void *left = alloc_live(3000, A);
    CU(driver->cuStreamEndCapture(A, &graph));
    MUST_EQ(stats_of(a).cache_hits, before.cache_hits);
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph,
                                           CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    CU(driver->cuGraphLaunch(exec, A));
    free_live(left, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, left, A));
    forbid(left, 3000);
    expect_none_of_it(A);
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuDeviceGraphMemTrim(0));
}

/* A program captures a stream that it has bound.  Once weir has queried the driver, a request belongs to the graph, and
 * no later request on another stream may get its memory. */
TEST_EACH(KIND_DIRECT, a_bound_stream_is_captured) {
    make_cached(_i, "");
    CUgraphExec exec;
    CUgraph graph;
    warm(A);
    OK(weir_bind(a, A));
    void *block = alloc_live(MIB, A);
    OK(weir_use(a, block, B));
    begin_cache_capture(A);
    EXPECT(WEIR_E_CAPTURE, weir_free(a, block, A)); /* queries the driver */
    void *node = alloc_live(2 * MIB, A);
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(driver->cuGraphLaunch(exec, A));
    MUST_EQ(memory_of_graphs(), 2 * MIB);
    free_live(node, A);
    MUST_EQ(memory_of_graphs(), 0);
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuDeviceGraphMemTrim(0));
    free_live(block, A);
    OK(weir_unbind(a, A));
}

/* The driver may place a graph's block where a block of the pool was before.  This table does so. */
static CUdeviceptr place_of_graphs, freed_by_driver;

static CUresult alloc_for_graph(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                                CUstream stream) {
    if (place_of_graphs == 0)
        return driver->cuMemAllocFromPoolAsync(block, bytes, pool, stream);
    *block = place_of_graphs;
    return CUDA_SUCCESS;
}

static CUresult free_for_graph(CUdeviceptr block, CUstream stream) {
    if (place_of_graphs == 0)
        return driver->cuMemFreeAsync(block, stream);
    freed_by_driver = block;
    return CUDA_SUCCESS;
}

TEST_EACH(2, a_graphs_block_where_there_was_another) {
    copy_driver();
    weir_options options = plain(KIND_POOL);
    size_t bytes = _i == 0 ? 32 * MIB : 70000;
    table.cuMemAllocFromPoolAsync = alloc_for_graph;
    table.cuMemFreeAsync = free_for_graph;
    make_with_on(&table, &options);
    free_live(alloc_live(bytes, A), A); /* the first stream has a cache, and B has none yet */
    void *block = alloc_live(bytes, B);
    free_live(block, B);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    begin_cache_capture(A);
    place_of_graphs = (uintptr_t)block;
    MUST(alloc_live(bytes, A) == block);
    MUST(weir__caches_is_live(a->caches, place_of_graphs));
    free_live(block, A);
    MUST_EQ(freed_by_driver, place_of_graphs);
    place_of_graphs = 0;
    end_cache_capture(A, 0);
}

SUITE("cache order", CK_FORK_GETENV);
