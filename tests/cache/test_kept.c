/* SPDX-License-Identifier: MIT */
/* test_kept.c: the memory that caches keep and return: caps, idle time, other streams' requests, trims, out of
 * memory. */
#include <errno.h>
#include <unistd.h>

#include "cache/stream_cache.h"
#include "tests/fixtures/caches.h"

CASE("amounts", 300, start_device, end_cached_if_there);

/* The second stream reuses what a stream has freed while it was alone, whatever the cap.  First the second stream has
 * to run out of memory, and the first stream has to make another call. */
TEST(a_second_stream_has_what_the_first_left) {
    void *block[12];

    make_cached(KIND_POOL, "cache-limit=4GiB");
    for (int i = 0; i < 12; i++)
        block[i] = alloc_live(64 * MIB, A);
    for (int i = 0; i < 12; i++)
        free_live(block[i], A);
    CU(driver->cuCtxSynchronize());
    pair(64 * MIB, B);
    pair(MIB, A);
    uint64_t reserve = stats_of(a).reserved;
    block[0] = alloc_live(512 * MIB, B);
    MUST_EQ(stats_of(a).reserved, reserve);
}

/* The second stream does not wait for the work of the first one.  At a limit OOM recovery waits, and reuses the first
 * stream's memory. */
TEST_EACH(4, what_the_first_left_is_waited_for_at_a_limit) {
    int is_limited = _i % 2;

    make_cached(_i / 2 ? KIND_REGIONS : KIND_POOL, is_limited ? "limit=256MiB" : "");
    void *block = alloc_live(160 * MIB, A);
    busy(A, 50 * MS);
    free_live(block, A);
    block = alloc_live(160 * MIB, B);
    MUST_EQ(weir__model_now_ns() >= 50 * MS, is_limited);
}

/* A trim flushes the caches.  A stream that is alone records no event afterwards either, and finds its blocks in its inbox. */
TEST_WHERE(0, ENGINES, has_inbox, a_trim_leaves_a_stream_alone) {
    make_cached(_i, _i == KIND_FIXED ? "" : "growth=exact");
    pair(4 * MIB, A);
    pair(100 * KIB, A);
    OK(weir_trim(a, 0, NULL));
    for (int i = 0; i < 64; i++)
        pair(4 * MIB, A);
    weir_statistics s = stats_of(a);
    MUST_EQ(s.event_records, 0);
    MUST_LE(60, s.cache_hits);
}

/* Whole blocks of a stream that is alone wait in its inbox: their frees ask the driver nothing, and the blocks count as
 * idle.  The next large request merges them with free memory beside them. */
TEST_WHERE(0, ENGINES, has_inbox, large_frees_wait_for_the_next_request) {
    void *block[4];

    make_cached(_i, _i == KIND_FIXED ? "" : "growth=exact");
    pair(4 * MIB, A);
    uint64_t reserve = stats_of(a).reserved;
    for (int i = 0; i < 4; i++)
        block[i] = alloc_live(MIB, A);
    count_from_here();
    for (int i = 0; i < 4; i++)
        free_live(block[i], A);
    EXPECT_CALLS({WEIR_ENTRY_cuStreamGetId, 0});
    weir_statistics s = check_identities(a);
    MUST_EQ(s.cache_idle, 4 * MIB);
    MUST_EQ(s.in_use, 0);
    free_live(alloc_live(4 * MIB, A), A);
    s = check_identities(a);
    MUST_EQ(s.reserved, reserve);
    MUST_EQ(s.cache_hits, 0);
    MUST_EQ(s.cache_idle, 4 * MIB);
}

/* Uses two streams until the engine records few events. */
static void calm_down(void) {
    warm(A);
    warm(B);
    for (int i = 0; i < 1200; i++) {
        pair(3 * MIB, A);
        pair(3 * MIB, B);
    }
}

/* A request gets a block of its own size from the inbox, whatever lies around the block, without the engine. */
TEST_WHERE(0, ENGINES, has_inbox, an_inbox_serves_a_request_of_the_same_size) {
    make_cached(_i, "");
    warm(A);
    void *larger = alloc_live(5 * MIB, A), *block = alloc_live(4 * MIB, A);
    free_live(larger, A);
    free_live(block, A);
    uint64_t hits = stats_of(a).cache_hits;
    count_from_here();
    MUST(alloc_live(4 * MIB - 1, A) == block);
    expect_questions(1);
    weir_statistics s = check_identities(a);
    MUST_EQ(s.cache_hits, hits + 1);
    MUST_EQ(s.requested, 4 * MIB - 1);
    MUST_EQ(s.cache_idle, stats_of(a).cache_idle);
    MUST(alloc_live(5 * MIB, A) == larger);
    MUST_EQ(stats_of(a).cache_hits, hits + 2);
    free_live(larger, A);
    free_live(block, A);
    MUST_EQ(stats_of(a).in_use, 0);
}

/* A block in an inbox serves only the stream that freed it: the next stream with that handle does not get it. */
TEST_WHERE(0, ENGINES, has_inbox, a_block_from_an_inbox_is_its_streams) {
    make_cached(_i, "");
    CUstream s = make_stream();
    warm(s);
    void *block = alloc_live(MIB, s);
    busy(s, 50 * MS);
    free_live(block, s);
    forbid(block, MIB);
    CU(driver->cuStreamDestroy(s));
    CUstream t = make_stream();
    MUST(s == t);
    block = alloc_live(MIB, t);
    MUST(!is_forbidden(block, MIB));
    MUST(weir__model_now_ns() < 50 * MS);
    free_live(block, t);
    CU(driver->cuStreamDestroy(t));
}

/* While there are several streams, a larger block goes to the engine, where it joins free memory beside it. */
TEST_WHERE(KIND_REGIONS, KIND_MAPPED + 1, NULL,
           a_large_block_of_one_of_several_streams_goes_to_the_engine) {
    make_cached(_i, "");
    OK(weir_preallocate(a, 256 * MIB, NULL));
    calm_down();
    for (size_t bytes = MIB; bytes <= 4 * MIB; bytes *= 4) {
        pair(bytes, A);
        uint64_t hits = stats_of(a).cache_hits;
        pair(bytes, A);
        MUST_EQ(stats_of(a).cache_hits - hits, bytes == MIB);
    }
}

/* Statistics do not move the blocks of an inbox, so the next request is served as it is without them. */
TEST_WHERE(0, ENGINES, has_inbox, statistics_leave_the_inbox_alone) {
    make_cached(_i, "");
    pair(2 * MIB, A);
    for (int i = 0; i < 3; i++)
        MUST_EQ(stats_of(a).cache_idle, 2 * MIB);
    count_from_here();
    pair(2 * MIB, A);
    expect_questions(1);
}

/* The blocks of an inbox go to the engine as frees of their stream: another stream gets none of them while the stream is
 * at work. */
TEST_WHERE(0, ENGINES, has_inbox, what_an_inbox_brings_is_its_streams) {
    make_cached(_i, "");
    void *block = alloc_live(4 * MIB, A);
    busy(A, 5 * MS);
    free_live(block, A);
    forbid(block, 4 * MIB);
    pair(MIB, A); /* brings it */
    block = alloc_live(4 * MIB, B);
    MUST(!is_forbidden(block, 4 * MIB));
    free_live(block, B);
}

/* Once a request has lacked memory, the next large free of each stream asks the driver, and records an event.  The other
 * stream then has the memory without growth. */
TEST_WHERE(KIND_REGIONS, KIND_MAPPED + 1, NULL, a_lack_of_memory_empties_an_inbox) {
    make_cached(_i, "");
    OK(weir_preallocate(a, 256 * MIB, NULL));
    calm_down();
    void *held = alloc_live(32 * MIB, A);
    void *block[2] = {alloc_live(MIB, A), alloc_live(MIB, A)};
    count_from_here();
    free_live(block[0], A);
    EXPECT_CALLS({WEIR_ENTRY_cuStreamGetId, 0});
    void *other = alloc_live(512 * MIB, B); /* lacks memory */
    busy(A, MS);
    count_from_here();
    free_live(block[1], A);
    MUST_EQ(calls(WEIR_ENTRY_cuEventRecord), 1);
    uint64_t reserve = stats_of(a).reserved;
    weir__model_advance(MS);
    block[0] = alloc_live(MIB, B);
    block[1] = alloc_live(MIB, B);
    MUST_EQ(stats_of(a).reserved, reserve);
    free_live(block[0], B);
    free_live(block[1], B);
    free_live(held, A);
    free_live(other, B);
}

/* A stream that only frees records an event once it has freed its share, so it hides no more from other streams. */
TEST_WHERE(KIND_REGIONS, KIND_MAPPED + 1, NULL, an_inbox_hides_a_share_at_most) {
    enum { BLOCKS = 16 };
    void *block[BLOCKS];

    make_cached(_i, "growth=exact");
    calm_down();
    for (int i = 0; i < BLOCKS; i++)
        block[i] = alloc_live(4 * MIB, A);
    for (int i = 0; i < 3000; i++) /* the request above lacked memory: until that is over */
        pair(MIB, B);
    pair(MIB, A);
    busy(A, 50 * MS);
    count_from_here();
    for (int i = 0; i < BLOCKS; i++)
        free_live(block[i], A);
    MUST_LE(1, calls(WEIR_ENTRY_cuEventRecord));
}

/* The cap of 4 MiB may be reached by slabs. */
TEST_EACH(ENGINES, the_cap_may_be_reached) {
    enum { COUNT = 1024 };
    void *block[COUNT];

    make_cached(_i, "cache-limit=4MiB");
    a->caches->idle_ns = UINT64_MAX;
    OK(weir_preallocate(a, 64 * MIB, NULL));
    for (int i = 0; i < COUNT; i++)
        block[i] = alloc_live(4096, A);
    for (int i = 0; i < COUNT - 1; i++)
        free_live(block[i], A);
    for (int i = 0; i < 2 * 4096; i++)
        pair(4096, A);
    MUST_LE(3 * MIB, stats_of(a).cache_idle);
    MUST_LE(stats_of(a).cache_idle, 4 * MIB);
    free_live(block[COUNT - 1], A);
}

static uint64_t idle_clock;

static uint64_t read_idle_clock(void) {
    return idle_clock;
}

/* A cache returns blocks that were idle for idle_ns, to the nanosecond. */
TEST_EACH(ENGINES, idle_blocks_go_at_the_moment) {
    copy_driver();
    weir_options options = plain(_i);

    table.ticks = read_idle_clock;
    make_with_on(&table, &options);
    a->caches->idle_ns = 10 * MS;
    warm(A);
    MUST_LE(MIB / 2, stats_of(a).cache_idle);
    for (int i = 0; i < 3 * 4096 - 1; i++) { /* two checks, or three */
        pair(3000, A);
        idle_clock += i % 4096 == 0 ? 10 * MS : 0;
    }
    MUST_LE(stats_of(a).cache_idle, 64 * KIB);
}

/* Uses 4 MiB at a time until the next check, so that no block stays idle for long. */
static void use_until_looked_at(void) {
    enum { COUNT = 64 };
    void *block[COUNT];

    for (int round = 0; round < 4096 / COUNT; round++) {
        for (int i = 0; i < COUNT; i++)
            block[i] = alloc_live(64 * KIB, A);
        for (int i = 0; i < COUNT; i++)
            free_live(block[i], A);
    }
    idle_clock += 10 * MS;
}

/* Opens an allocator whose caches keep a tenth of the bytes in use, and whose clock is idle_clock.  A new span of
 * idle_ns begins after 100 MiB were freed. */
static void come_down(int engine) {
    weir_options options = plain(engine);

    idle_clock = 1000 * MS;
    copy_driver();
    table.ticks = read_idle_clock;
    options.cache_limit = (weir_amount){.kind = WEIR_AMOUNT_OF_IN_USE, .value = 100000};
    make_with_on(&table, &options);
    a->caches->idle_ns = 10 * MS;
    OK(weir_preallocate(a, 256 * MIB, NULL));
    void *held = alloc_live(100 * MIB, A);
    for (int i = 0; i < 3; i++)
        use_until_looked_at();
    free_live(held, A);
    use_until_looked_at();
}

/* The cap is a share of the most bytes in use during this span of idle_ns and the last one. */
TEST_EACH(ENGINES, what_was_in_use_counts_for_two_spans) {
    come_down(_i);

    MUST_LE(4 * MIB, stats_of(a).cache_idle);
    use_until_looked_at();
    use_until_looked_at();
    MUST_LE(stats_of(a).cache_idle, 2 * MIB);
}

/* A thread reads the clock, and another one begins the next span first.  The first thread must not end that span. */
TEST_EACH(ENGINES, a_thread_that_is_late_ends_no_span) {
    come_down(_i);

    for (int i = 0; i < 3; i++) {
        idle_clock -= 10 * MS + 1; /* a time in the last span */
        use_until_looked_at();
    }
    MUST_LE(4 * MIB, stats_of(a).cache_idle);
}

/* Returns the most memory that lies idle in slabs while blocks come and go beside 100 MiB. */
static uint64_t idle_after_much(const weir_options *options) {
    enum { COUNT = 64 };
    void *block[COUNT];
    uint64_t idle = 0;

    make_with(options);
    void *held = alloc_live(100 * MIB, C);
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < COUNT; i++)
            block[i] = alloc_live(i % 2 ? 500 * KIB : 60000, A);
        for (int i = 0; i < COUNT; i++)
            free_live(block[i], A);
        free_live(alloc_live(512, A), A);
        if (round > 200 && idle < stats_of(a).cache_idle)
            idle = stats_of(a).cache_idle;
    }
    free_live(held, C);
    end_cached();
    return idle;
}

/* The option keeps nothing, a number of bytes, a share of the bytes in use, or all. */
TEST_EACH(ENGINES, the_cap_is_kept) {
    weir_options options = plain(_i);
    options.cache_limit = bytes_amount(0);
    MUST_EQ(idle_after_much(&options), 0);
    options.cache_limit = bytes_amount(4 * MIB);
    uint64_t idle = idle_after_much(&options);
    MUST_LE(idle, 4 * MIB);
    MUST_LE(1, idle);
    options.cache_limit = (weir_amount){.kind = WEIR_AMOUNT_OF_IN_USE, .value = 50000};
    idle = idle_after_much(&options);
    MUST_LE(idle, 6 * MIB);
    MUST_LE(1, idle);
    options.cache_limit = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    MUST_LE(16 * MIB, idle_after_much(&options));
}

/* A stream returns blocks that it does not use, and keeps blocks that it uses. */
TEST_EACH(ENGINES, idle_blocks_go_in_time) {
    make_cached(_i, "");
    a->caches->idle_ns = 10 * MS;
    warm(A);
    MUST_LE(MIB / 2, stats_of(a).cache_idle);
    for (int i = 0; i < 5 * 4096; i++) {
        free_live(alloc_live(3000, A), A);
        if (i % 4096 == 0)
            weir__model_advance(11 * MS);
    }
    MUST_LE(stats_of(a).cache_idle, 64 * KIB);
    count_from_here();
    free_live(alloc_live(3000, A), A);
    EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, 1}, {WEIR_ENTRY_cuStreamGetId, 1});
}

TEST_EACH(ENGINES, idle_blocks_stay_for_ever) {
    make_cached(_i, "");
    a->caches->idle_ns = UINT64_MAX;
    warm(A);
    for (int i = 0; i < 5 * 4096; i++) {
        free_live(alloc_live(3000, A), A);
        if (i % 4096 == 0)
            weir__model_advance(100000 * MS);
    }
    MUST_LE(MIB / 2, stats_of(a).cache_idle);
}

/* A stream's freed memory serves another stream's request that does not fit, after the stream's next large call
 * (`frees`: a free, else a request) and once its work is complete.  The reserved memory does not grow. */
static void demand(int kind, int frees) {
    void *held[512];
    int count = 0;
    make_cached(kind, "limit=64MiB recovery-timeout=0 cache-limit=max");
    warm(A);
    void *block = alloc_live(3 * MIB, A);
    void *last = alloc_live(MIB, A);
    busy(A, 5 * MS);
    free_live(block, A);
    forbid(block, 3 * MIB);
    while (weir_alloc(a, 3 * MIB, B, &held[count]) == WEIR_OK) {
        MUST(!is_forbidden(held[count], 3 * MIB));
        MUST(++count < 512);
    }
    uint64_t reserve = stats_of(a).reserved;
    if (frees) { /* A's next call */
        free_live(last, A);
    } else {
        pair(MIB, A);
        free_live(last, A);
    }
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 3 * MIB, B, &held[count])); /* A is still at work */
    weir__model_advance(5 * MS);
    uint64_t steals = stats_of(a).steals;
    held[count++] = alloc_live(3 * MIB, B);
    MUST_LE(steals + (kind != KIND_POOL), stats_of(a).steals); /* the driver's pool counts none */
    MUST_EQ(stats_of(a).reserved, reserve);
    while (count > 0)
        free_live(held[--count], B);
}

TEST_EACH(ENGINES * 2, demand_reaches_other_streams) {
    demand(_i / 2, _i % 2);
}

/* Fills the inbox of A. */
static void fill_own_cache(void) {
    void *block[64];

    for (int i = 0; i < 64; i++)
        block[i] = alloc_live(MIB, A);
    for (int i = 0; i < 64; i++)
        free_live(block[i], A);
}

/* A request empties its own stream's inbox before the reserved memory grows, and before any wait. */
TEST_WHERE(0, ENGINES, has_inbox, own_inbox_before_growth) {
    make_cached(_i, _i == KIND_FIXED ? "cache-limit=max limit=64MiB" : "cache-limit=max");
    free_live(alloc_live(64 * MIB, A), A);
    for (int round = 0; round < 60; round++)
        fill_own_cache();
    MUST_LE(8 * MIB, stats_of(a).cache_idle);
    uint64_t reserve = stats_of(a).reserved;
    count_from_here();
    alloc_live(64 * MIB, A);
    MUST_EQ(stats_of(a).reserved, reserve);
    MUST_EQ(calls(WEIR_ENTRY_cuCtxSynchronize) + calls(WEIR_ENTRY_cuMemFree), 0);
}

/* A stream whose own cache is enough does not empty the caches of other streams. */
TEST_EACH(ENGINES, own_cache_before_others) {
    if (_i == KIND_POOL)
        return; /* pools may need more */
    make_cached(_i, _i == KIND_FIXED ? "cache-limit=max growth=exact limit=80MiB"
                                     : "cache-limit=max growth=exact");
    for (int i = 0; i < 60; i++)
        free_live(alloc_live(3000, i % 2 ? A : B), i % 2 ? A : B);
    free_live(alloc_live(72 * MIB, A), A);
    for (int round = 0; round < 60; round++) {
        free_live(alloc_live(3000, B), B); /* B has returned its other memory */
        fill_own_cache();
    }
    uint64_t reserve = stats_of(a).reserved;
    free_live(alloc_live(64 * MIB, A), A);
    MUST_EQ(stats_of(a).reserved, reserve);
    uint64_t hits = stats_of(a).cache_hits;
    free_live(alloc_live(3000, B), B);
    MUST_EQ(stats_of(a).cache_hits, hits + 1);
}

/* A block that was freed under capture goes back with the next large free on its stream, though the stream makes no more
 * requests. */
TEST(a_large_free_returns_what_a_capture_deferred) {
    make_cached(KIND_POOL, "");
    for (int i = 0; i < 10; i++) {
        CUstream stream = make_stream();
        CUgraph graph;

        for (int k = 0; k < 200; k++)
            free_live(alloc_live(4096, stream), stream);
        void *captured = alloc_live(300 * MIB, stream), *large = alloc_live(2 * MIB, stream);
        CU(driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        free_live(captured, stream);
        CU(driver->cuStreamEndCapture(stream, &graph));
        free_live(large, stream);
        CU(driver->cuStreamSynchronize(stream));
        CU(driver->cuStreamDestroy(stream));
    }
    MUST_LE(stats_of(a).reserved, 600 * MIB);
}

/* The caches do not repeat a request that the driver refuses. */
TEST_EACH(ENGINES, a_failure_is_asked_for_once) {
    uint64_t tries[2];
    CUdeviceptr others;
    void *none = NULL;

    CU(driver->cuMemAlloc(&others, 3 * GIB));
    for (int cache = 0; cache < 2; cache++) {
        make_cached(_i, cache ? "cache=on recovery-timeout=0" : "cache=off recovery-timeout=0");
        count_from_here();
        MUST_EQ(weir_alloc(a, 2 * GIB, A, &none),
                _i == KIND_FIXED ? WEIR_E_LIMIT : WEIR_E_NO_MEMORY);
        tries[cache] = calls(WEIR_ENTRY_cuMemAllocFromPoolAsync) + calls(WEIR_ENTRY_cuMemCreate) +
                       calls(WEIR_ENTRY_cuMemAlloc);
        end_beside(3 * GIB);
    }
    MUST_LE(tries[1], tries[0]);
    CU(driver->cuMemFree(others));
}

/* What another thread does during the next wait for the device, which is the next cuMemFree; or NULL. */
static void *(*beside_a_wait)(void *unused);
static pthread_t beside;

/* Starts the other thread, and waits for its end for a fifth of a second at most: it may wait for this flush. */
static CUresult free_while_another_calls(CUdeviceptr block) {
    void *(*run)(void *) = beside_a_wait;

    beside_a_wait = NULL;
    if (run) {
        int joined = EBUSY;

        MUST(pthread_create(&beside, NULL, run, NULL) == 0);
        for (int i = 0; i < 20 && joined == EBUSY; i++) {
            joined = pthread_tryjoin_np(beside, NULL);
            usleep(joined == EBUSY ? 10000 : 0);
        }
        MUST(joined == 0 || pthread_detach(beside) == 0);
    }
    return driver->cuMemFree(block);
}

static void make_beside_waits(int kind, const char *settings) {
    weir_options options = plain(kind);

    apply_settings(&options, settings);
    copy_driver();
    table.cuMemFree = free_while_another_calls;
    make_with_on(&table, &options);
}

static atomic_int served_beside; /* 1 plus the status of request_beside() */

static void *request_beside(void *unused) {
    void *block = NULL;
    weir_status status;

    CU(driver->cuCtxPushCurrent(primary));
    status = weir_alloc(a, 24 * MIB, C, &block);
    if (status == WEIR_OK)
        free_live(block, C);
    atomic_store(&served_beside, 1 + (int)status);
    return unused;
}

/* Two requests lack memory at once.  The second one flushes while the first one waits for the device with what it has
 * flushed, which is enough for both.  Both are served. */
TEST_WHERE(0, ENGINES, has_inbox, two_flushes_at_once_serve_both) {
    make_beside_waits(_i, _i == KIND_FIXED ? "limit=64MiB" : "growth=exact limit=64MiB");
    void *block = alloc_live(48 * MIB, A);
    busy(A, 5 * MS);
    free_live(block, A);
    beside_a_wait = request_beside;
    block = alloc_live(24 * MIB, B);
    MUST(!beside_a_wait);
    while (atomic_load(&served_beside) == 0)
        usleep(1000);
    MUST_EQ(atomic_load(&served_beside), 1 + WEIR_OK);
    free_live(block, B);
}

static void *freed_beside[2];

static void *give_beside(void *unused) {
    CU(driver->cuCtxPushCurrent(primary));
    for (int i = 0; i < 2; i++)
        free_live(freed_beside[i], A);
    return unused;
}

/* Blocks that are freed on their living stream during the wait of a flush stay that stream's: they serve its next
 * requests, without growth. */
TEST_WHERE(0, ENGINES, has_inbox, what_is_freed_during_a_flush_stays_its_streams) {
    make_beside_waits(_i, "");
    warm(A);
    freed_beside[0] = alloc_live(8 * MIB, A);
    freed_beside[1] = alloc_live(512 * KIB, A);
    beside_a_wait = give_beside;
    OK(weir_trim(a, 0, NULL));
    MUST(!beside_a_wait);
    uint64_t reserve = stats_of(a).reserved, hits = stats_of(a).cache_hits;
    MUST_EQ(stats_of(a).cache_idle, 8 * MIB + 512 * KIB);
    MUST(alloc_live(512 * KIB, A) == freed_beside[1]);
    MUST_EQ(stats_of(a).cache_hits, hits + 1);
    free_live(alloc_live(8 * MIB, A), A);
    MUST_EQ(stats_of(a).reserved, reserve);
}

/* A slab serves half a MiB at most.  The failure reports that size if nothing larger is left. */
TEST(the_last_half_mebibyte_is_told) {
    make_cached(KIND_FIXED, "");
    for (int i = 0; i < 256; i++)
        alloc_live(i < 255 ? MIB : 512 * KIB, A);
    expect_alloc_status(WEIR_E_LIMIT, MIB, A);
    weir_failure r = last_failure();
    MUST_EQ(r.largest, 512 * KIB);
    free_live(alloc_live(512 * KIB, A), A);
}

/* A thread without a context has none after the end either. */
TEST_EACH(ENGINES, an_end_leaves_the_context_as_it_was) {
    make_cached(_i, "");
    CUcontext current;

    free_live(alloc_live(MIB, A), A);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuCtxPopCurrent(&current));
    destroy_as_it_is();
    CU(driver->cuCtxGetCurrent(&current));
    MUST(current == NULL);
}

/* Passes all calls on to the driver, and counts failures.  Work that is not ready yet is no failure. */
static const struct weir_driver *passed_on_to;
static unsigned failed_calls;

static CUresult keep_failure(CUresult result) {
    failed_calls += result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
    return result;
}

#define WEIR_ENTRY(group, name, symbol, version, params, args)                                     \
    static CUresult noted_##name params {                                                          \
        return keep_failure(passed_on_to->name args);                                              \
    }
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

static void note_failures(void) {
    copy_driver();
    passed_on_to = driver;
#define WEIR_ENTRY(group, name, symbol, version, params, args)                                     \
    if (table.name)                                                                                \
        table.name = noted_##name;
    WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
}

/* Makes requests that hit, miss, and grow the reserved memory, and blocks that another stream uses. */
static void use_default_stream(CUstream stream, int round) {
    void *block[SIZES];
    for (int i = 0; i < SIZES; i++)
        block[i] = alloc_live(sizes[i], stream);
    OK(weir_use(a, block[0], A));
    OK(weir_use(a, block[1], stream));
    for (int i = 0; i < SIZES; i++)
        free_live(block[i], i == 1 ? A : stream);
    void *large = alloc_live((size_t)(round + 1) * 8 * MIB, stream);
    free_live(large, stream);
}

/* In the first call on a default stream, weir learns that the thread has no context.  From then on no driver call
 * fails, and the thread still has none. */
TEST_EACH(KIND_DIRECT + 1, a_thread_without_a_context_makes_no_failing_calls) {
    static const CUstream of[] = {NULL, LEGACY, PER_THREAD};
    weir_options options = plain(_i);
    CUcontext own, current;

    note_failures();
    make_with_on(&table, &options);
    CU(driver->cuCtxPopCurrent(&own));
    for (int s = 0; s < 3; s++) {
        free_live(alloc_live(KIB, of[s]), of[s]);
        failed_calls = 0;
        for (int round = 0; round < 4; round++)
            use_default_stream(of[s], round);
        MUST_EQ(failed_calls, 0);
        CU(driver->cuCtxGetCurrent(&current));
        MUST(current == NULL);
    }
    CU(driver->cuCtxPushCurrent(own));
}

/* Two pages are left, and a slab of four does not fit.  weir then makes the smallest slab that is enough. */
TEST(a_small_request_needs_no_whole_slab) {
    weir_options options = options_of(KIND_FIXED, "model", 32 * KIB);
    make_with(&options);
    for (int i = 0; i < 32; i++) /* fills a page */
        alloc_live(512, A);
    alloc_live(9 * KIB, A);
    expect_alloc_status(WEIR_E_LIMIT, 512, A);
    expect_alloc_status(WEIR_E_LIMIT, 9 * KIB, A);
    MUST_EQ(check_identities(a).in_use, 32 * 512 + 9 * KIB);
}

/* Out of memory, weir reclaims and reuses the memory of other caches. */
TEST_EACH(ENGINES, at_the_limit_other_caches_give) {
    enum { CACHED = 6 };
    CUstream s[CACHED];
    void *block;

    make_cached(_i, "limit=128MiB cache-limit=max");
    for (int i = 0; i < CACHED; i++) {
        s[i] = make_stream();
        warm(s[i]);
        busy(s[i], 20 * MS);
        one_of_each(s[i]);
    }
    MUST_LE(MIB, stats_of(a).cache_idle);
    block = alloc_live(128 * MIB, C);
    MUST_LE(weir__model_now_ns(), 60 * MS + 1000 * MS);
    /* OOM recovery retries if each region is too small. */
    MUST_EQ(check_identities(a).retries, _i == KIND_REGIONS);
    free_live(block, C);
    for (int i = 0; i < CACHED; i++)
        CU(driver->cuStreamDestroy(s[i]));
}

/* One stream needs no order of its frees, after a trim neither. */
TEST_EACH(ENGINES, one_stream_never_records) {
    make_cached(_i, "");

    warm(A);
    alloc_live(MIB, A);
    for (int i = 0; i < 3; i++) {
        uint64_t random = 9;
        void *block[40];

        OK(weir_trim(a, 0, NULL));
        count_from_here();
        for (int k = 0; k < 2000; k++) {
            if (k >= 40)
                free_live(block[k % 40], A);
            block[k % 40] = alloc_live(random_size(&random, 4 * MIB), A);
        }
        for (int k = 0; k < 40; k++)
            free_live(block[k], A);
        MUST_LE(calls(WEIR_ENTRY_cuEventRecord), _i == KIND_MAPPED ? 4 : 0); /* one per growth */
    }
}

/* The memory of the caches is not available then.  The request fails, and no memory is lost. */
TEST_EACH(ENGINES, a_failure_where_the_device_cannot_be_waited_for) {
    void *none = NULL;
    make_cached(_i, "limit=128MiB recovery-timeout=20ms");
    void *block = alloc_live(30 * MIB, A);
    warm(B);
    warm(A);
    refuse_waits();
    weir_status status = weir_alloc(a, 110 * MIB, A, &none);
    MUST(status == WEIR_E_LIMIT || status == WEIR_E_NO_MEMORY);
    weir__model_faults_clear();
    free_live(block, A);
    free_live(alloc_live(40 * MIB, A), A);
}

/* If no block is live, a trim frees all memory. */
TEST_EACH(ENGINES, a_trim_leaves_nothing) {
    enum { COUNT = 2000 };
    make_cached(_i, "");
    CUstream s[8];
    void *block[COUNT];
    uint64_t random = 5;

    for (int i = 0; i < 8; i++) {
        s[i] = make_stream();
        warm(s[i]);
    }
    for (int i = 0; i < COUNT; i++)
        block[i] = alloc_live(random_size(&random, 100000), s[i % 8]);
    for (int i = 0; i < COUNT; i++) {
        if (i % 500 == 250) { /* orphans the stream's cache */
            CU(driver->cuStreamDestroy(s[1]));
            s[1] = make_stream();
            free_live(alloc_live(512, s[1]), s[1]);
        }
        if (i % 100 == 0)
            busy(s[i % 7], MS / 10);
        if (i % 9 == 0)
            OK(weir_use(a, block[i], s[(i + 3) % 8]));
        free_live(block[i], s[i * 5 % 8]);
    }
    expect_all_back();
    warm(s[0]);
    for (int i = 0; i < 8; i++)
        CU(driver->cuStreamDestroy(s[i]));
}

SUITE("kept", CK_FORK_GETENV);
