/* SPDX-License-Identifier: MIT */
/* test_caches.c: the per-stream caches above the engines: the driver calls of a hit, the stream of a cache, and the
 * streams that have one.
 *
 * In each test a wrong cache would hand out memory that work still uses, which virtual time shows. */
#include "tests/fixtures/caches.h"

#include <semaphore.h>

/* ---- driver calls of a hit ------------------------------------------------------------------- */

enum stream_kind { EXPLICIT, DEFAULT_STREAM, BOUND, UNCHECKED, STREAM_KINDS };

static void expect_hits(CUstream stream, uint64_t capture, uint64_t id_at_alloc,
                        uint64_t id_at_free) {
    warm(stream);
    for (int i = 0; i < SMALL_SIZES; i++) {
        count_from_here();
        void *block = alloc_live(sizes[i], stream);
        EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, capture},
                     {WEIR_ENTRY_cuStreamGetId, id_at_alloc});
        count_from_here();
        free_live(block, stream);
        EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, id_at_free}, /* precedes the id query */
                     {WEIR_ENTRY_cuStreamGetId, id_at_free});
    }
}

CASE("streams", 300, start_device, end_cached_if_there);

TEST_EACH((ENGINES * STREAM_KINDS), what_a_hit_asks) {
    int kind = _i / STREAM_KINDS;

    make_cached(kind, _i % STREAM_KINDS == UNCHECKED ? "stream-checks=off" : "");
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
        expect_hits(NULL, 1, 1, 1); /* a stream that the program did not make */
    }
}

/* weir queries the stream of a miss once, in the steady state too.  If caches may keep nothing, no query is put off to
 * the next request. */
TEST_EACH(ENGINES, a_miss_queries_its_stream_once) {
    make_cached(_i, "cache-limit=0");
    free_live(alloc_live(MIB, A), A);
    for (int i = 0; i < 1500; i++) {
        count_from_here();
        void *block = alloc_live(MIB, A);
        expect_questions(1);
        free_live(block, A);
        expect_questions(1);
    }
}

/* A request that grew the reserved memory puts no query off to the next request either. */
TEST_WHERE(0, ENGINES, is_pool_or_regions, growth_puts_no_query_off) {
    make_cached(_i, "");
    warm(A);
    void *block = alloc_live(512, A);
    alloc_live(128 * MIB, A);
    MUST_LE(1, stats_of(a).growth_allocs);
    count_from_here();
    free_live(block, A);
    MUST(alloc_live(512, A) == block);
    expect_questions(1);
}

/* With one stream, a freed whole block waits for the stream's next request.  Once another stream has lacked memory, weir
 * queries the stream's id, unless the program vouches for the stream.  A release threshold above all memory changes
 * nothing. */
TEST_EACH(ENGINES, a_free_queries_only_after_another_stream_lacked_memory) {
    void *block;

    make_cached(_i, "cache-limit=0 release-threshold=4GiB");
    for (int i = 0; i < 3; i++) {
        block = alloc_live(MIB, A);
        count_from_here();
        free_live(block, A);
        MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 0);
    }
    free_live(alloc_live(64 * MIB, B), B); /* lacks memory */
    free_live(alloc_live(MIB, A), A);      /* answers that */
    block = alloc_live(MIB, A);
    count_from_here();
    free_live(block, A);
    /* With the pool the driver knows the stream.  With fixed memory B lacked none. */
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), _i != KIND_POOL && _i != KIND_FIXED);
    OK(weir_bind(a, A));
    block = alloc_live(MIB, A);
    count_from_here();
    free_live(block, A);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 0);
    OK(weir_unbind(a, A));
}

/* Two streams allocate small and whole blocks of all sizes, few enough at a time for the caches. */
TEST_EACH(ENGINES, steady_state_makes_no_memory_call) {
    make_cached(_i, "");
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
            free_live(held[k], stream[k % 2]);
            held[k] = NULL;
        } else {
            bytes[k] = (size_t)1 << (next_random(&random) % 17); /* up to 64 KiB */
            held[k] = alloc_live(bytes[k], stream[k % 2]);
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
            free_live(held[k], stream[k % 2]);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* A new stream gets the handle of a destroyed stream, whose work still runs.  `frees`: the new stream frees before it
 * allocates. */
static void reuse_a_handle(int kind, int frees, int bound) {
    make_cached(kind, "");
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
        block[i] = alloc_live(sizes[i], B);
        MUST(!is_forbidden(block[i], sizes[i]));
    }
    if (frees)
        order_streams(t, B);
    for (int i = 0; frees && i < SIZES; i++)
        free_live(block[i], t);
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

/* The program binds the new stream at once.  The new stream still gets none of the old stream's memory. */
TEST_EACH(ENGINES, a_handle_means_another_stream_that_is_bound) {
    make_cached(_i, "");
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

/* The new stream never allocates.  Blocks that it frees are lost in the old stream's cache, until a trim. */
TEST_EACH(ENGINES, a_stream_that_only_frees_needs_a_trim) {
    make_cached(_i, "");
    CUstream s = make_stream();
    warm(s);
    leave_used(s, 50 * MS);
    CU(driver->cuStreamDestroy(s));
    CUstream t = make_stream();
    MUST(s == t);
    for (int i = 0; i < 300; i++) {
        void *block = alloc_live(sizes[i % SIZES], B);

        MUST(!is_forbidden(block, sizes[i % SIZES]));
        order_streams(t, B);
        busy(t, MS / 10);
        free_live(block, t);
    }
    CU(driver->cuStreamDestroy(t));
}

static void expect_none_of_it_per_thread(void) {
    expect_none_of_it(PER_THREAD);
}

static void use_per_thread(void) {
    leave_used(PER_THREAD, 100 * MS);
}

/* 0x2 is another stream in each thread, and only that stream reuses its blocks. */
TEST_EACH(ENGINES, per_thread_streams_are_apart) {
    make_cached(_i, "");
    warm(PER_THREAD);
    leave_used(PER_THREAD, 100 * MS);
    void *block = alloc_live(512, PER_THREAD);
    MUST(is_forbidden(block, 512));
    free_live(block, PER_THREAD);
    elsewhere(expect_none_of_it_per_thread);
    if (_i != KIND_POOL) /* the driver knows that the legacy stream is behind the thread's own */
        expect_none_of_it(LEGACY);
    expect_none_of_it(B);
    forbidden.count = 0;
    elsewhere(use_per_thread); /* the stream's thread has ended */
    expect_none_of_it(PER_THREAD);
    elsewhere(expect_none_of_it_per_thread);
    MUST(weir__model_now_ns() < 100 * MS);
}

/* NULL and 0x1 name one stream. */
TEST_EACH(ENGINES, the_legacy_stream_has_two_names) {
    make_cached(_i, "");
    void *block;

    warm(NULL);
    for (int i = 0; i < SIZES; i++) {
        block = alloc_live(sizes[i], NULL);
        busy(NULL, MS);
        free_live(block, LEGACY);
        MUST(alloc_live(sizes[i], LEGACY) == block);
        free_live(block, NULL);
        MUST(alloc_live(sizes[i], NULL) == block);
        free_live(block, NULL);
    }
}

/* ---- streams that have a cache --------------------------------------------------------------- */

static void expect_a_hit(CUstream stream) {
    uint64_t hits = stats_of(a).cache_hits;

    pair(512, stream);
    MUST_EQ(stats_of(a).cache_hits, hits + 1);
}

/* The first stream has a cache at once, and other streams after 64 calls.  Calls of another stream that had the handle
 * before do not count. */
TEST_EACH(ENGINES, a_cache_is_earned) {
    make_cached(_i, "");
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

/* A block of up to 512 KiB comes from a slab.  A larger one is a hit if a block of its size waits in the inbox. */
TEST_EACH(ENGINES * 2, half_a_mebibyte_is_small) {
    make_cached(_i / 2, "");
    OK(weir_preallocate(a, 64 * MIB, NULL));
    if (_i % 2)
        OK(weir_bind(a, A));
    pair(512 * KIB, A);
    pair(512 * KIB + 1, A);
    uint64_t hits = stats_of(a).cache_hits;
    pair(512 * KIB, A);
    MUST_EQ(stats_of(a).cache_hits, hits + 1);
    pair(512 * KIB + 1, A);
    hits += has_inbox(_i / 2) ? 2 : 1;
    MUST_EQ(stats_of(a).cache_hits, hits);
    if (_i % 2)
        OK(weir_unbind(a, A));
}

/* weir does not query a bound stream, even if its cache is empty.  The last unbind returns the cache's memory. */
TEST_EACH(ENGINES, bindings_are_counted) {
    make_cached(_i, "");
    void *block[40];
    uint64_t host_bytes = stats_of(a).host_bytes;
    OK(weir_preallocate(a, 64 * MIB, NULL));
    OK(weir_bind(a, A));
    MUST_EQ(stats_of(a).cache_streams, 1);
    MUST_LE(host_bytes + 256, stats_of(a).host_bytes); /* the cache itself */
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
        block[i] = alloc_live(i % 2 ? 200000 : 600000, A);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 0);
    for (int i = 0; i < 40; i++)
        free_live(block[i], A);
    OK(weir_unbind(a, A));
    MUST_EQ(stats_of(a).cache_idle, 0);
    EXPECT(WEIR_E_INVALID, weir_unbind(a, A));
}

static void *strayed; /* a block of A */

/* Gives the stream a cache, perhaps that of a silent stream. */
static void earn(CUstream stream) {
    for (int i = 0; i < 80; i++)
        pair(512, stream);
    expect_a_hit(stream);
}

static void earn_per_thread(void) {
    earn(PER_THREAD);
    free_live(strayed, PER_THREAD);
}

static void send_threads(int count) {
    for (int i = 0; i < count; i++) {
        strayed = alloc_live(512, A);
        elsewhere(earn_per_thread);
    }
}

CASE("crowds", 300, start_device, end_cached_if_there);

/* 256 default streams keep caches, besides bound ones.  Another default stream gets the cache of a silent one.  Streams
 * that were not silent keep their caches, and so do the program's own streams. */
TEST_EACH(ENGINES, silent_default_streams_make_room) {
    enum { KEPT = 256, OTHERS = 3 }; /* A, B, and the bound stream */
    make_cached(_i, "");
    void *block[4 * KEPT];

    OK(weir_preallocate(a, 256 * MIB, NULL));
    pair(512, B);
    for (int i = 0; i < 4 * KEPT; i++) /* maps all slabs, so that nothing grows later */
        block[i] = alloc_live(100 * KIB, A);
    for (int i = 0; i < 4 * KEPT; i++)
        free_live(block[i], A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, GIB, NULL)); /* all streams may now use all memory */
    warm(A);
    for (int i = 0; i < 2 * KEPT; i++) { /* must not change the count */
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
    warm(A); /* other streams may reuse all of it */
    OK(weir_bind(a, PER_THREAD));
    warm(PER_THREAD);
    earn(NULL);
    for (int i = 2; i < 2 * KEPT; i++) {
        send_threads(1);
        expect_a_hit(NULL);
        MUST_EQ(stats_of(a).cache_streams, (uint64_t)OTHERS + (uint64_t)(i < KEPT ? i : KEPT));
    }
    send_threads(2); /* evicts the newest silent stream */
    expect_a_hit(NULL);
    expect_a_hit(PER_THREAD);
    expect_a_hit(B);
    OK(weir_unbind(a, PER_THREAD));
}

static void pair_per_thread(void) {
    pair(512, PER_THREAD);
}

/* Streams that were too young for a cache leave no more host memory behind. */
TEST_EACH(ENGINES, young_default_streams_make_room) {
    enum { KEPT = 256, MORE = 64 };
    make_cached(_i, "");
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

static struct {
    void *freed[70]; /* enough frees for a cache */
    void *block;     /* what the other stream gets after its frees */
    sem_t called, go_on;
    int is_armed;
} other;

static void free_and_take(void) {
    for (int i = 0; i < 70; i++)
        free_live(other.freed[i], PER_THREAD);
    sem_post(&other.called);
    sem_wait(&other.go_on);
    other.block = alloc_live(16 * KIB, PER_THREAD);
    free_live(other.block, PER_THREAD);
}

static size_t while_others_call(const weir_growth_state *state, void *thread) {
    if (other.is_armed) {
        other.is_armed = 0;
        errand = free_and_take;
        MUST(pthread_create(thread, NULL, run_errand, NULL) == 0);
        sem_wait(&other.called);
    }
    return state->request;
}

/* A default stream that makes no other call during a long call may lose its cache to another stream meanwhile.  The
 * other stream does not get what the long call then brings from the engine. */
TEST(a_call_under_way_may_lose_its_cache) {
    enum { KEPT = 256, MOST = 4096 };
    weir_options options = plain(KIND_POOL);
    pthread_t thread;
    void *block = NULL;

    sem_init(&other.called, 0, 0);
    sem_init(&other.go_on, 0, 0);
    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = while_others_call;
    options.growth_context = &thread;
    options.prealloc = bytes_amount(64 * MIB);
    make_with(&options);
    earn(A);
    send_threads(KEPT - 1);
    earn(NULL);
    for (int i = 0; i < 70; i++)
        other.freed[i] = alloc_live(512, A);
    other.is_armed = 1;
    for (int count = 0; other.is_armed && count < MOST; count++)
        block = alloc_live(16 * KIB, NULL);
    MUST(!other.is_armed);
    sem_post(&other.go_on);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(other.block != (char *)block + 16 * KIB); /* the next slot of the slab */
}

static void give_strayed(void) {
    free_live(strayed, NULL);
}

/* A stream is not silent if its requests are all misses and another stream frees its blocks, or if only another thread
 * frees its blocks.  The next default stream does not get its cache. */
TEST_EACH(2 * ENGINES, neither_misses_nor_letters_are_silence) {
    enum { KEPT = 256 };
    make_cached(_i / 2, "");
    void *whole, *young;

    OK(weir_preallocate(a, 256 * MIB, NULL));
    earn(A);
    send_threads(KEPT - 1);
    earn(NULL);
    strayed = alloc_live(512, NULL);
    young = alloc_live(512, PER_THREAD); /* starts to look for silent streams */
    if (_i % 2) {
        elsewhere(give_strayed);
    } else {
        whole = alloc_live(MIB, NULL);
        free_live(whole, A);
    }
    free_live(young, PER_THREAD);
    expect_a_hit(NULL);
    if (_i % 2 == 0)
        free_live(strayed, NULL);
}

SUITE("cache", CK_FORK_GETENV);
