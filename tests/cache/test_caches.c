/* SPDX-License-Identifier: MIT */
/* test_front.c: the caches per stream above the engines: what a hit asks the driver, whose a cache is, and who has one.
 *
 * Each is set up so that a wrong cache would hand out memory that work still uses, and virtual time tells.
 */
#include "tests/fixtures/caches.h"

/* ---- what a hit asks ------------------------------------------------------------------------- */

enum stream_kind { EXPLICIT, DEFAULT_STREAM, BOUND, UNCHECKED, STREAM_KINDS };

static void expect_hits(CUstream stream, uint64_t capture, uint64_t id_at_alloc,
                        uint64_t id_at_free) {
    warm(stream);
    for (int i = 0; i < SIZES; i++) {
        count_from_here();
        void *block = take(sizes[i], stream);
        EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, capture},
                     {WEIR_ENTRY_cuStreamGetId, id_at_alloc});
        count_from_here();
        give(block, stream);
        EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, id_at_free}, /* before the id is asked */
                     {WEIR_ENTRY_cuStreamGetId, id_at_free});
    }
}

CASE("streams", 300, start_device, end_if_there);

TEST_EACH((ENGINES * STREAM_KINDS), what_a_hit_asks) {
    int kind = _i / STREAM_KINDS;

    make(kind, _i % STREAM_KINDS == UNCHECKED ? "stream-checks=off" : "");
    switch (_i % STREAM_KINDS) {
    case EXPLICIT:
        expect_hits(A, 1, 1, 0);
        break;
    case DEFAULT_STREAM:
        expect_hits(NULL, 1, 1, 1);
        expect_hits(LEGACY, 1, 1, 1);
        expect_hits(PER_THREAD, 1, 1, 1);
        break;
    case BOUND:
        OK(weir_bind(a, A));
        expect_hits(A, 0, 0, 0);
        OK(weir_unbind(a, A));
        expect_hits(A, 1, 1, 0);
        EXPECT(WEIR_E_INVALID, weir_unbind(a, A));
        break;
    default:
        expect_hits(A, 0, 0, 0);
        expect_hits(NULL, 1, 1, 1); /* no stream of the program's making */
    }
}

static void expect_questions(uint64_t count) {
    MUST_EQ(calls(WEIR_ENTRY_cuStreamIsCapturing), count);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), count);
}

/* What the caches do not have is asked about once, calm or not: nothing is put off to the next request
 * where nothing may be kept. */
TEST_EACH(ENGINES, what_a_miss_asks) {
    make(_i, "cache-limit=0");
    give(take(MIB, A), A);
    for (int i = 0; i < 1500; i++) {
        count_from_here();
        void *block = take(MIB, A);
        expect_questions(1);
        give(block, A);
        expect_questions(1);
    }
}

/* Nor does a request that made the reserved memory grow leave anything to the next one. */
TEST_WHERE(0, ENGINES, is_pool_or_regions, what_is_asked_after_growth) {
    make(_i, "");
    warm(A);
    void *block = take(512, A);
    take(128 * MIB, A);
    MUST_LE(1, stats_of(a).growth_allocs);
    count_from_here();
    give(block, A);
    MUST(take(512, A) == block);
    expect_questions(1);
}

/* Whole blocks that are not kept: while there is one stream they wait for its next request; with two the
 * driver is asked whose they are, unless the program vouches for that.  A threshold of all that there is
 * makes no difference. */
TEST_EACH(ENGINES, what_a_free_asks_that_is_not_kept) {
    void *block;

    make(_i, "cache-limit=0 release-threshold=4GiB");
    for (int i = 0; i < 3; i++) {
        block = take(MIB, A);
        count_from_here();
        give(block, A);
        MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 0);
    }
    give(take(MIB, B), B);
    give(take(MIB, A), A); /* the reserved memory has grown for B: that is answered */
    block = take(MIB, A);
    count_from_here();
    give(block, A);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 1);
    OK(weir_bind(a, A));
    block = take(MIB, A);
    count_from_here();
    give(block, A);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 0);
    OK(weir_unbind(a, A));
}

/* Small and whole blocks of all sizes, few enough at a time for the caches: two streams. */
TEST_EACH(ENGINES, steady_state_makes_no_memory_call) {
    make(_i, "");
    CUstream stream[2] = {A, B};
    void *held[64] = {0};
    size_t bytes[64] = {0};
    uint64_t random = 7, reserve = 0, hits = 0;

    warm(A);
    warm(B);
    for (int i = 0; i < 120000; i++) {
        int k = (int)(next_random(&random) % 64);

        if (i == 60000) {
            reserve = stats_of(a).reserved;
            hits = stats_of(a).cache_hits;
            count_from_here();
        }
        if (held[k]) {
            give(held[k], stream[k % 2]);
            held[k] = NULL;
        } else {
            bytes[k] = (size_t)1 << (next_random(&random) % 17); /* up to 64 KiB */
            held[k] = take(bytes[k], stream[k % 2]);
        }
    }
    for (int entry = 0; entry < WEIR_ENTRY_COUNT; entry++)
        if (entry != WEIR_ENTRY_cuStreamIsCapturing && entry != WEIR_ENTRY_cuStreamGetId)
            ck_assert_msg(calls((enum weir_driver_entry)entry) == 0, "%s was called %llu times",
                          weir__driver_entry_name((enum weir_driver_entry)entry),
                          (unsigned long long)calls((enum weir_driver_entry)entry));
    MUST_EQ(stats_of(a).reserved, reserve);
    MUST_LE(28000, stats_of(a).cache_hits - hits);
    for (int k = 0; k < 64; k++)
        if (held[k])
            give(held[k], stream[k % 2]);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* A destroyed stream's handle means the next stream at once, and its work still runs.  `frees`: the
 * new stream frees before it asks. */
static void reuse_a_handle(int kind, int frees, int bound) {
    make(kind, "");
    CUstream s = make_stream();
    void *block[SIZES];
    warm(s);
    if (bound)
        OK(weir_bind(a, s));
    leave_used(s, 100 * MS);
    if (bound)
        OK(weir_unbind(a, s));
    CU(driver->cuStreamDestroy(s));
    CUstream t = make_stream();
    MUST(s == t);
    for (int i = 0; frees && i < SIZES; i++) {
        block[i] = take(sizes[i], B);
        MUST(!is_forbidden(block[i], sizes[i]));
    }
    if (frees)
        order_streams(t, B);
    for (int i = 0; frees && i < SIZES; i++)
        give(block[i], t);
    expect_none_of_it(t);
    for (int i = 0; i < 5; i++) {
        expect_none_of_it(B);
        expect_none_of_it(t);
    }
    MUST(weir__model_now_ns() < 100 * MS);
    weir__model_advance(100 * MS);
    warm(t);
    CU(driver->cuStreamDestroy(t));
}

TEST_EACH(ENGINES * 4, a_handle_means_another_stream) {
    reuse_a_handle(_i / 4, _i & 1, _i >> 1 & 1);
}

/* The program vouches for the new stream at once: what the old one left is not served there either. */
TEST_EACH(ENGINES, a_handle_means_another_stream_that_is_bound) {
    make(_i, "");
    CUstream s = make_stream();
    warm(s);
    leave_used(s, 100 * MS);
    CU(driver->cuStreamDestroy(s));
    CUstream t = make_stream();
    MUST(s == t);
    OK(weir_bind(a, t));
    expect_none_of_it(t);
    expect_none_of_it(B);
    MUST(weir__model_now_ns() < 100 * MS);
    OK(weir_unbind(a, t));
    CU(driver->cuStreamDestroy(t));
}

/* The same when the new stream never asks for anything: what it frees is lost in the old one's cache
 * and comes back with a trim. */
TEST_EACH(ENGINES, a_stream_that_only_frees) {
    make(_i, "");
    CUstream s = make_stream();
    warm(s);
    leave_used(s, 50 * MS);
    CU(driver->cuStreamDestroy(s));
    CUstream t = make_stream();
    MUST(s == t);
    for (int i = 0; i < 300; i++) {
        void *block = take(sizes[i % SIZES], B);

        MUST(!is_forbidden(block, sizes[i % SIZES]));
        order_streams(t, B);
        busy(t, MS / 10);
        give(block, t);
    }
    CU(driver->cuStreamDestroy(t));
}

static void expect_none_of_it_per_thread(void) {
    expect_none_of_it(PER_THREAD);
}

static void use_per_thread(void) {
    leave_used(PER_THREAD, 100 * MS);
}

/* 0x2 is another stream in each thread; its blocks come back there alone. */
TEST_EACH(ENGINES, per_thread_streams_are_apart) {
    make(_i, "");
    warm(PER_THREAD);
    leave_used(PER_THREAD, 100 * MS);
    void *block = take(512, PER_THREAD);
    MUST(is_forbidden(block, 512));
    give(block, PER_THREAD);
    elsewhere(expect_none_of_it_per_thread);
    expect_none_of_it(LEGACY);
    expect_none_of_it(B);
    forbidden.count = 0;
    elsewhere(use_per_thread); /* on a stream whose thread has ended */
    expect_none_of_it(PER_THREAD);
    elsewhere(expect_none_of_it_per_thread);
    MUST(weir__model_now_ns() < 100 * MS);
}

/* NULL and 0x1 mean the same stream. */
TEST_EACH(ENGINES, the_legacy_stream_has_two_names) {
    make(_i, "");
    void *block;

    warm(NULL);
    for (int i = 0; i < SIZES; i++) {
        block = take(sizes[i], NULL);
        busy(NULL, MS);
        give(block, LEGACY);
        MUST(take(sizes[i], LEGACY) == block);
        give(block, NULL);
        MUST(take(sizes[i], NULL) == block);
        give(block, NULL);
    }
}

/* ---- who has a cache ------------------------------------------------------------------------- */

static void expect_a_hit(CUstream stream) {
    uint64_t hits = stats_of(a).cache_hits;

    pair(512, stream);
    MUST_EQ(stats_of(a).cache_hits, hits + 1);
}

/* The first stream at once, others by 64 calls, which are their own: not those of a stream that had the
 * handle before. */
TEST_EACH(ENGINES, a_cache_is_earned) {
    make(_i, "");
    CUstream s = make_stream(), first = s;

    pair(512, A);
    MUST_EQ(stats_of(a).cache_streams, 1);
    expect_a_hit(A);
    for (int life = 0; life < 2; life++) {
        for (int i = 0; i < 32; i++)
            pair(512, s);
        MUST_EQ(stats_of(a).cache_streams, 1);
        if (life == 0) {
            CU(driver->cuStreamDestroy(s));
            s = make_stream();
            MUST(s == first);
        }
    }
    pair(512, s);
    MUST_EQ(stats_of(a).cache_streams, 2);
    expect_a_hit(s);
    CU(driver->cuStreamDestroy(s));
}

/* What fits a slab of 64 KiB to 512 KiB is there again at once, what is larger not before the engine is calm. */
TEST_EACH(ENGINES * 2, half_a_mebibyte_is_small) {
    make(_i / 2, "");
    OK(weir_preallocate(a, 64 * MIB, NULL));
    if (_i % 2)
        OK(weir_bind(a, A));
    pair(512 * KIB, A);
    pair(512 * KIB + 1, A);
    uint64_t hits = stats_of(a).cache_hits;
    pair(512 * KIB, A);
    MUST_EQ(stats_of(a).cache_hits, hits + 1);
    pair(512 * KIB + 1, A);
    MUST_EQ(stats_of(a).cache_hits, hits + 1);
    if (_i % 2)
        OK(weir_unbind(a, A));
}

/* A bound stream is not asked who it is, though its cache has nothing; what it holds goes back with the last
 * binding. */
TEST_EACH(ENGINES, bindings_are_counted) {
    make(_i, "");
    void *block[40];
    uint64_t host_bytes = stats_of(a).host_bytes;
    OK(weir_preallocate(a, 64 * MIB, NULL));
    OK(weir_bind(a, A));
    MUST_EQ(stats_of(a).cache_streams, 1);
    MUST_LE(host_bytes + 256, stats_of(a).host_bytes); /* a cache */
    OK(weir_bind(a, A));
    warm(A);
    uint64_t idle = stats_of(a).cache_idle;
    MUST_LE(1, idle);
    OK(weir_bind(a, A));
    OK(weir_unbind(a, A));
    OK(weir_unbind(a, A));
    MUST_EQ(stats_of(a).cache_idle, idle);
    count_from_here();
    pair(512, A);
    expect_questions(0);
    for (int i = 0; i < 40; i++)
        block[i] = take(i % 2 ? 200000 : 600000, A);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 0);
    for (int i = 0; i < 40; i++)
        give(block[i], A);
    OK(weir_unbind(a, A));
    MUST_EQ(stats_of(a).cache_idle, 0);
    EXPECT(WEIR_E_INVALID, weir_unbind(a, A));
}

static void *strayed; /* a block of A's */

/* Its cache is that of a silent stream, if all are given away. */
static void earn(CUstream stream) {
    for (int i = 0; i < 80; i++)
        pair(512, stream);
    expect_a_hit(stream);
}

static void earn_per_thread(void) {
    earn(PER_THREAD);
    give(strayed, PER_THREAD);
}

static void send_threads(int count) {
    for (int i = 0; i < count; i++) {
        strayed = take(512, A);
        elsewhere(earn_per_thread);
    }
}

CASE("crowds", 300, start_device, end_if_there);

/* 256 default streams keep caches, and those that are bound.  For another one the cache of one that was
 * silent goes; that of one that was not stays, as do those of the program's own streams. */
TEST_EACH(ENGINES, silent_default_streams_make_room) {
    enum { KEPT = 256, OTHERS = 3 }; /* A, B, and the bound one */
    make(_i, "");
    void *block[4 * KEPT];

    OK(weir_preallocate(a, 256 * MIB, NULL));
    pair(512, B);
    for (int i = 0; i < 4 * KEPT; i++) /* memory for all slabs, so that nothing grows later */
        block[i] = take(100 * KIB, A);
    for (int i = 0; i < 4 * KEPT; i++)
        give(block[i], A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, GIB, NULL)); /* so that all streams may have all of it */
    warm(A);
    for (int i = 0; i < 2 * KEPT; i++) { /* leaves no trace in the count */
        OK(weir_bind(a, PER_THREAD));
        OK(weir_bind(a, B));
        if (i % 2)
            OK(weir_bind(a, PER_THREAD));
        if (i % 2)
            OK(weir_unbind(a, PER_THREAD));
        OK(weir_unbind(a, B));
        OK(weir_unbind(a, PER_THREAD));
    }
    warm(B);
    warm(A); /* and all of it may be had by others */
    OK(weir_bind(a, PER_THREAD));
    warm(PER_THREAD);
    earn(NULL);
    for (int i = 2; i < 2 * KEPT; i++) {
        send_threads(1);
        expect_a_hit(NULL);
        MUST_EQ(stats_of(a).cache_streams, (uint64_t)OTHERS + (uint64_t)(i < KEPT ? i : KEPT));
    }
    send_threads(2); /* of silent ones the newest goes */
    expect_a_hit(NULL);
    expect_a_hit(PER_THREAD);
    expect_a_hit(B);
    OK(weir_unbind(a, PER_THREAD));
}

static void pair_per_thread(void) {
    pair(512, PER_THREAD);
}

/* Those that were too young for a cache leave no more behind. */
TEST_EACH(ENGINES, young_default_streams_make_room) {
    enum { KEPT = 256, MORE = 64 };
    make(_i, "");
    uint64_t host_bytes;

    earn(A);
    for (int i = 0; i < KEPT; i++)
        elsewhere(pair_per_thread);
    host_bytes = stats_of(a).host_bytes;
    for (int i = 0; i < MORE; i++)
        elsewhere(pair_per_thread);
    MUST_LE(stats_of(a).host_bytes, host_bytes + (size_t)MORE * 64);
    MUST_EQ(stats_of(a).cache_streams, 1);
}

static void *more_strayed;

static void give_both_per_thread(void) {
    give(strayed, PER_THREAD);
    give(more_strayed, PER_THREAD);
    strayed = NULL;
}

static size_t while_others_call(const weir_growth_state *state, void *unused) {
    (void)unused;
    if (strayed && more_strayed)
        elsewhere(give_both_per_thread);
    return state->request;
}

/* A default stream keeps its cache while a call on it takes long, in which it is silent. */
TEST_EACH(2, a_call_under_way_is_not_silence) {
    static const int kinds[] = {KIND_POOL, KIND_REGIONS};
    enum { KEPT = 256 };
    weir_options options = plain(kinds[_i]);

    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = while_others_call;
    options.growth_context = &a;
    options.prealloc = bytes_amount(64 * MIB);
    make_with(&options);
    earn(A);
    send_threads(KEPT - 1);
    earn(NULL);
    strayed = take(512, A);
    more_strayed = take(512, A);
    give(take(100 * MIB, NULL), A);
    MUST(!strayed);
    pair(512, NULL); /* what it kept went back before growth */
    expect_a_hit(NULL);
}

static void give_strayed(void) {
    give(strayed, NULL);
}

/* A stream is not silent on which nothing but misses were asked for, and freed on another, or on which only another
 * thread freed: the next default stream does not have its cache. */
TEST_EACH(2 * ENGINES, neither_misses_nor_letters_are_silence) {
    enum { KEPT = 256 };
    make(_i / 2, "");
    void *whole, *young;

    OK(weir_preallocate(a, 256 * MIB, NULL));
    earn(A);
    send_threads(KEPT - 1);
    earn(NULL);
    strayed = take(512, NULL);
    young = take(512, PER_THREAD); /* from here on it counts who is silent */
    if (_i % 2) {
        elsewhere(give_strayed);
    } else {
        whole = take(MIB, NULL);
        give(whole, A);
    }
    give(young, PER_THREAD);
    expect_a_hit(NULL);
    if (_i % 2 == 0)
        give(strayed, NULL);
}

SUITE("cache", CK_FORK_GETENV);
