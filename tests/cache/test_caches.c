/* SPDX-License-Identifier: MIT */
/* test_caches.c: the caches per stream above the engines, through the public interface.
 *
 * What a hit asks the driver.  Who may have what lies in a cache: handles that mean another stream by
 * now, default streams, slots freed on a stream that is not their slab's, noted uses, captures; each
 * is set up so that a wrong cache would hand out memory that work still uses, and virtual time tells.
 * What the caches keep, and how it comes back: caps, idle time, demand of others, trims, out of
 * memory.  Threads and streams that come and go.  Host memory that runs out.  And what lies beside live blocks, as
 * pinned.h has it.
 *
 * The soak at the end knows one rule, as that of test_engines.c: no two blocks overlap unless a
 * happens-before edge lies between the free of the first and the allocation of the second.  Four
 * threads share its streams.  WEIR_TEST_SOAK=N makes it N times as long (0.1: a tenth), WEIR_TEST_SEED=N begins
 * elsewhere.
 */
#include "tests/fixtures/model_device.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "api/allocator_internal.h"
#include "tests/fixtures/blocks.h"
#include "tests/fixtures/calls.h"
#include "cache/pinned.h"
#include "tests/fixtures/refuse.h"

#define LEGACY ((CUstream)0x1)
#define PER_THREAD ((CUstream)0x2)

/* The engines that have a front unless told otherwise. */
enum { ENGINES = KIND_DIRECT };

/* ---- the device ------------------------------------------------------------------------------ */

static CUstream make_stream(void) {
    CUstream stream;

    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static void start_device(void) {
    start_model(4 * GIB);
}

static void order(CUstream later, CUstream earlier) {
    CUevent event;

    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventRecord(event, earlier));
    CU(driver->cuStreamWaitEvent(later, event, 0));
    CU(driver->cuEventDestroy(event));
}

/* A fixed arena of 256 MiB, other engines without a limit. */
static weir_options plain(int kind) {
    weir_options options = options_of(kind, "model", 256 * MIB);

    options.recovery_timeout_ms = 1000;
    return options;
}

static weir_allocator *make(const weir_options *options) {
    weir_allocator *a = NULL;

    OK(weir_allocator_create(options, &a));
    return a;
}

static weir_allocator *make_plain(int kind) {
    weir_options options = plain(kind);

    return make(&options);
}

/* Nothing is live: after the device has been waited for, a trim leaves nothing. */
static void expect_all_back(weir_allocator *a) {
    weir_statistics s;

    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    s = check_identities(a);
    MUST_EQ(s.blocks, 0);
    MUST_EQ(s.requested, 0);
    MUST_EQ(s.in_use, 0);
    MUST_EQ(s.front_idle, 0);
    MUST_EQ(s.reserve, 0);
}

/* Beside so many bytes of the program's own. */
static void end_beside(weir_allocator *a, size_t bytes) {
    expect_all_back(a);
    OK(weir_allocator_destroy(a));
    check_model();
    MUST_EQ(device_free(), 4 * GIB - bytes);
}

static void end(weir_allocator *a) {
    end_beside(a, 0);
}

/* Small ones and whole blocks. */
static const size_t sizes[] = {1,         512,           513,      3000,         4096,  5000,
                               20000,     40000,         64 * KIB, 64 * KIB + 1, 70000, 200000,
                               512 * KIB, 512 * KIB + 1, MIB - 1,  MIB};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static void one_of_each(weir_allocator *a, CUstream stream) {
    void *block[SIZES];

    for (int i = 0; i < SIZES; i++)
        block[i] = take(a, sizes[i], stream);
    for (int i = 0; i < SIZES; i++)
        give(a, block[i], stream);
}

/* Until a request of each size is a hit: the stream has a cache, and the engine is calm. */
static void warm(weir_allocator *a, CUstream stream) {
    uint64_t hits;
    int rounds = 0;

    do {
        hits = stats_of(a).front_hits;
        one_of_each(a, stream);
        MUST(++rounds < 10000);
    } while (stats_of(a).front_hits - hits < SIZES);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Memory that must not be handed out. */
enum { MOST_PLACES = 4096 };
static struct {
    uintptr_t at[MOST_PLACES];
    size_t bytes[MOST_PLACES];
    int count;
} forbidden;

static void forbid(const void *block, size_t bytes) {
    MUST(forbidden.count < MOST_PLACES);
    forbidden.at[forbidden.count] = (uintptr_t)block;
    forbidden.bytes[forbidden.count++] = bytes;
}

static int is_forbidden(const void *block, size_t bytes) {
    uintptr_t at = (uintptr_t)block;

    for (int i = 0; i < forbidden.count; i++)
        if (at < forbidden.at[i] + forbidden.bytes[i] && forbidden.at[i] < at + bytes)
            return 1;
    return 0;
}

/* Requests of every size on the stream get nothing of it. */
static void expect_none_of_it(weir_allocator *a, CUstream stream) {
    enum { EACH = 6 };
    void *block[SIZES * EACH];

    for (int i = 0; i < SIZES * EACH; i++) {
        block[i] = take(a, sizes[i % SIZES], stream);
        if (is_forbidden(block[i], sizes[i % SIZES]))
            ck_abort_msg("%zu bytes at %p are still used", sizes[i % SIZES], block[i]);
    }
    for (int i = 0; i < SIZES * EACH; i++)
        give(a, block[i], stream);
}

/* ---- what a hit asks ------------------------------------------------------------------------- */

enum stream_kind { EXPLICIT, DEFAULT_STREAM, BOUND, UNCHECKED, STREAM_KINDS };

static void expect_hits(weir_allocator *a, CUstream stream, uint64_t capture, uint64_t id_at_alloc,
                        uint64_t id_at_free) {
    warm(a, stream);
    for (int i = 0; i < SIZES; i++) {
        void *block;

        count_from_here();
        block = take(a, sizes[i], stream);
        EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, capture},
                     {WEIR_ENTRY_cuStreamGetId, id_at_alloc});
        count_from_here();
        give(a, block, stream);
        EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, id_at_free}, /* before the id is asked */
                     {WEIR_ENTRY_cuStreamGetId, id_at_free});
    }
}

START_TEST(what_a_hit_asks) {
    int kind = _i / STREAM_KINDS;
    weir_options options = plain(kind);
    weir_allocator *a;

    if (_i % STREAM_KINDS == UNCHECKED)
        options.stream_checks = WEIR_SWITCH_OFF;
    a = make(&options);
    switch (_i % STREAM_KINDS) {
    case EXPLICIT:
        expect_hits(a, A, 1, 1, 0);
        break;
    case DEFAULT_STREAM:
        expect_hits(a, NULL, 1, 1, 1);
        expect_hits(a, LEGACY, 1, 1, 1);
        expect_hits(a, PER_THREAD, 1, 1, 1);
        break;
    case BOUND:
        OK(weir_bind(a, A));
        expect_hits(a, A, 0, 0, 0);
        OK(weir_unbind(a, A));
        expect_hits(a, A, 1, 1, 0);
        EXPECT(WEIR_E_INVALID, weir_unbind(a, A));
        break;
    default:
        expect_hits(a, A, 0, 0, 0);
        expect_hits(a, NULL, 1, 1, 1); /* no stream of the program's making */
    }
    end(a);
}
END_TEST

static void expect_questions(uint64_t count) {
    MUST_EQ(calls(WEIR_ENTRY_cuStreamIsCapturing), count);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), count);
}

/* What the caches do not have is asked about once, calm or not: nothing is put off to the next request
 * where nothing may be kept. */
START_TEST(what_a_miss_asks) {
    weir_options options = plain(_i);
    weir_allocator *a;

    options.front_cache = bytes_amount(0);
    a = make(&options);
    give(a, take(a, MIB, A), A);
    for (int i = 0; i < 1500; i++) {
        void *block;

        count_from_here();
        block = take(a, MIB, A);
        expect_questions(1);
        give(a, block, A);
        expect_questions(1);
    }
    end(a);
}
END_TEST

/* Nor does a request that made the reserved memory grow leave anything to the next one. */
START_TEST(what_is_asked_after_growth) {
    weir_allocator *a = make_plain(_i);
    void *block, *large;

    warm(a, A);
    block = take(a, 512, A);
    large = take(a, 128 * MIB, A);
    MUST_LE(1, stats_of(a).growth_allocs);
    count_from_here();
    give(a, block, A);
    MUST(take(a, 512, A) == block);
    expect_questions(1);
    give(a, block, A);
    give(a, large, A);
    end(a);
}
END_TEST

/* Whole blocks that are not kept: while there is one stream they wait for its next request; with two the
 * driver is asked whose they are, unless the program vouches for that.  A threshold of all that there is
 * makes no difference. */
START_TEST(what_a_free_asks_that_is_not_kept) {
    weir_options options = plain(_i);
    weir_allocator *a;
    void *block;

    options.front_cache = bytes_amount(0);
    options.release_threshold = bytes_amount(4 * GIB);
    a = make(&options);
    for (int i = 0; i < 3; i++) {
        block = take(a, MIB, A);
        count_from_here();
        give(a, block, A);
        MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 0);
    }
    give(a, take(a, MIB, B), B);
    give(a, take(a, MIB, A), A); /* the reserved memory has grown for B: that is answered */
    block = take(a, MIB, A);
    count_from_here();
    give(a, block, A);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 1);
    OK(weir_bind(a, A));
    block = take(a, MIB, A);
    count_from_here();
    give(a, block, A);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 0);
    OK(weir_unbind(a, A));
    end(a);
}
END_TEST

/* Small and whole blocks of all sizes, few enough at a time for the caches: two streams. */
START_TEST(steady_state_makes_no_memory_call) {
    weir_allocator *a = make_plain(_i);
    CUstream stream[2] = {A, B};
    void *held[64] = {0};
    size_t bytes[64] = {0};
    uint64_t random = 7, reserve = 0, hits = 0;

    warm(a, A);
    warm(a, B);
    for (int i = 0; i < 120000; i++) {
        int k = (int)(next_random(&random) % 64);

        if (i == 60000) {
            reserve = stats_of(a).reserve;
            hits = stats_of(a).front_hits;
            count_from_here();
        }
        if (held[k]) {
            give(a, held[k], stream[k % 2]);
            held[k] = NULL;
        } else {
            bytes[k] = (size_t)1 << (next_random(&random) % 17); /* up to 64 KiB */
            held[k] = take(a, bytes[k], stream[k % 2]);
        }
    }
    for (int entry = 0; entry < WEIR_ENTRY_COUNT; entry++)
        if (entry != WEIR_ENTRY_cuStreamIsCapturing && entry != WEIR_ENTRY_cuStreamGetId)
            ck_assert_msg(calls((enum weir_driver_entry)entry) == 0, "%s was called %llu times",
                          weir__driver_entry_name((enum weir_driver_entry)entry),
                          (unsigned long long)calls((enum weir_driver_entry)entry));
    MUST_EQ(stats_of(a).reserve, reserve);
    MUST_LE(28000, stats_of(a).front_hits - hits);
    for (int k = 0; k < 64; k++)
        if (held[k])
            give(a, held[k], stream[k % 2]);
    end(a);
}
END_TEST

/* ---- streams --------------------------------------------------------------------------------- */

/* Leaves blocks of all sizes in the caches behind work that runs for that long; they are forbidden. */
static void leave_used(weir_allocator *a, CUstream stream, uint64_t ns) {
    void *block[SIZES * 4];

    for (int i = 0; i < SIZES * 4; i++)
        block[i] = take(a, sizes[i % SIZES], stream);
    busy(stream, ns);
    for (int i = 0; i < SIZES * 4; i++) {
        forbid(block[i], sizes[i % SIZES]);
        give(a, block[i], stream);
    }
}

/* A destroyed stream's handle means the next stream at once, and its work still runs.  `frees`: the
 * new stream frees before it asks. */
static void reuse_a_handle(int kind, int frees, int bound) {
    weir_allocator *a = make_plain(kind);
    CUstream s = make_stream(), t;
    void *block[SIZES];

    warm(a, s);
    if (bound)
        OK(weir_bind(a, s));
    leave_used(a, s, 100 * MS);
    if (bound)
        OK(weir_unbind(a, s));
    CU(driver->cuStreamDestroy(s));
    t = make_stream();
    MUST(s == t);
    for (int i = 0; frees && i < SIZES; i++) {
        block[i] = take(a, sizes[i], B);
        MUST(!is_forbidden(block[i], sizes[i]));
    }
    if (frees)
        order(t, B);
    for (int i = 0; frees && i < SIZES; i++)
        give(a, block[i], t);
    expect_none_of_it(a, t);
    for (int i = 0; i < 5; i++) {
        expect_none_of_it(a, B);
        expect_none_of_it(a, t);
    }
    MUST(weir__model_now_ns() < 100 * MS);
    weir__model_advance(100 * MS);
    warm(a, t);
    CU(driver->cuStreamDestroy(t));
    end(a);
}

START_TEST(a_handle_means_another_stream) {
    reuse_a_handle(_i / 4, _i & 1, _i >> 1 & 1);
}
END_TEST

/* The program vouches for the new stream at once: what the old one left is not served there either. */
START_TEST(a_handle_means_another_stream_that_is_bound) {
    weir_allocator *a = make_plain(_i);
    CUstream s = make_stream(), t;

    warm(a, s);
    leave_used(a, s, 100 * MS);
    CU(driver->cuStreamDestroy(s));
    t = make_stream();
    MUST(s == t);
    OK(weir_bind(a, t));
    expect_none_of_it(a, t);
    expect_none_of_it(a, B);
    MUST(weir__model_now_ns() < 100 * MS);
    OK(weir_unbind(a, t));
    CU(driver->cuStreamDestroy(t));
    end(a);
}
END_TEST

/* The same when the new stream never asks for anything: what it frees is lost in the old one's cache
 * and comes back with a trim. */
START_TEST(a_stream_that_only_frees) {
    weir_allocator *a = make_plain(_i);
    CUstream s = make_stream(), t;

    warm(a, s);
    leave_used(a, s, 50 * MS);
    CU(driver->cuStreamDestroy(s));
    t = make_stream();
    MUST(s == t);
    for (int i = 0; i < 300; i++) {
        void *block = take(a, sizes[i % SIZES], B);

        MUST(!is_forbidden(block, sizes[i % SIZES]));
        order(t, B);
        busy(t, MS / 10);
        give(a, block, t);
    }
    CU(driver->cuStreamDestroy(t));
    end(a);
}
END_TEST

struct errand {
    weir_allocator *a;
    void (*run)(weir_allocator *a);
};

static void *run_errand(void *arg) {
    struct errand *e = arg;

    CU(driver->cuCtxPushCurrent(primary));
    e->run(e->a);
    return NULL;
}

static void elsewhere(weir_allocator *a, void (*run)(weir_allocator *a)) {
    struct errand e = {a, run};
    pthread_t thread;

    MUST(pthread_create(&thread, NULL, run_errand, &e) == 0);
    MUST(pthread_join(thread, NULL) == 0);
}

static void expect_none_of_it_per_thread(weir_allocator *a) {
    expect_none_of_it(a, PER_THREAD);
}

static void use_per_thread(weir_allocator *a) {
    leave_used(a, PER_THREAD, 100 * MS);
}

/* 0x2 is another stream in each thread; its blocks come back there alone. */
START_TEST(per_thread_streams_are_apart) {
    weir_allocator *a = make_plain(_i);
    void *block;

    warm(a, PER_THREAD);
    leave_used(a, PER_THREAD, 100 * MS);
    block = take(a, 512, PER_THREAD);
    MUST(is_forbidden(block, 512));
    give(a, block, PER_THREAD);
    elsewhere(a, expect_none_of_it_per_thread);
    expect_none_of_it(a, LEGACY);
    expect_none_of_it(a, B);
    forbidden.count = 0;
    elsewhere(a, use_per_thread); /* on a stream whose thread has ended */
    expect_none_of_it(a, PER_THREAD);
    elsewhere(a, expect_none_of_it_per_thread);
    MUST(weir__model_now_ns() < 100 * MS);
    end(a);
}
END_TEST

/* NULL and 0x1 mean the same stream. */
START_TEST(the_legacy_stream_has_two_names) {
    weir_allocator *a = make_plain(_i);
    void *block;

    warm(a, NULL);
    for (int i = 0; i < SIZES; i++) {
        block = take(a, sizes[i], NULL);
        busy(NULL, MS);
        give(a, block, LEGACY);
        MUST(take(a, sizes[i], LEGACY) == block);
        give(a, block, NULL);
        MUST(take(a, sizes[i], NULL) == block);
        give(a, block, NULL);
    }
    end(a);
}
END_TEST

/* ---- who has a cache ------------------------------------------------------------------------- */

static void pair(weir_allocator *a, size_t bytes, CUstream stream) {
    give(a, take(a, bytes, stream), stream);
}

static void expect_a_hit(weir_allocator *a, CUstream stream) {
    uint64_t hits = stats_of(a).front_hits;

    pair(a, 512, stream);
    MUST_EQ(stats_of(a).front_hits, hits + 1);
}

/* The first stream at once, others by 64 calls, which are their own: not those of a stream that had the
 * handle before. */
START_TEST(a_cache_is_earned) {
    weir_allocator *a = make_plain(_i);
    CUstream s = make_stream(), first = s;

    pair(a, 512, A);
    MUST_EQ(stats_of(a).front_streams, 1);
    expect_a_hit(a, A);
    for (int life = 0; life < 2; life++) {
        for (int i = 0; i < 32; i++)
            pair(a, 512, s);
        MUST_EQ(stats_of(a).front_streams, 1);
        if (life == 0) {
            CU(driver->cuStreamDestroy(s));
            s = make_stream();
            MUST(s == first);
        }
    }
    pair(a, 512, s);
    MUST_EQ(stats_of(a).front_streams, 2);
    expect_a_hit(a, s);
    CU(driver->cuStreamDestroy(s));
    end(a);
}
END_TEST

/* What fits a slab of 64 KiB to 512 KiB is there again at once, what is larger not before the engine is calm. */
START_TEST(half_a_mebibyte_is_small) {
    weir_allocator *a = make_plain(_i / 2);
    uint64_t hits;

    OK(weir_preallocate(a, 64 * MIB, NULL));
    if (_i % 2)
        OK(weir_bind(a, A));
    pair(a, 512 * KIB, A);
    pair(a, 512 * KIB + 1, A);
    hits = stats_of(a).front_hits;
    pair(a, 512 * KIB, A);
    MUST_EQ(stats_of(a).front_hits, hits + 1);
    pair(a, 512 * KIB + 1, A);
    MUST_EQ(stats_of(a).front_hits, hits + 1);
    if (_i % 2)
        OK(weir_unbind(a, A));
    end(a);
}
END_TEST

/* A bound stream is not asked who it is, though its cache has nothing; what it holds goes back with the last
 * binding. */
START_TEST(bindings_are_counted) {
    weir_allocator *a = make_plain(_i);
    void *block[40];
    uint64_t idle, host_bytes = stats_of(a).host_bytes;

    OK(weir_preallocate(a, 64 * MIB, NULL));
    OK(weir_bind(a, A));
    MUST_EQ(stats_of(a).front_streams, 1);
    MUST_LE(host_bytes + 256, stats_of(a).host_bytes); /* a cell */
    OK(weir_bind(a, A));
    warm(a, A);
    idle = stats_of(a).front_idle;
    MUST_LE(1, idle);
    OK(weir_bind(a, A));
    OK(weir_unbind(a, A));
    OK(weir_unbind(a, A));
    MUST_EQ(stats_of(a).front_idle, idle);
    count_from_here();
    pair(a, 512, A);
    expect_questions(0);
    for (int i = 0; i < 40; i++)
        block[i] = take(a, i % 2 ? 200000 : 600000, A);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), 0);
    for (int i = 0; i < 40; i++)
        give(a, block[i], A);
    OK(weir_unbind(a, A));
    MUST_EQ(stats_of(a).front_idle, 0);
    EXPECT(WEIR_E_INVALID, weir_unbind(a, A));
    end(a);
}
END_TEST

static void *strayed; /* a block of A's */

/* Its cache is that of a silent stream, if all are given away. */
static void earn(weir_allocator *a, CUstream stream) {
    for (int i = 0; i < 80; i++)
        pair(a, 512, stream);
    expect_a_hit(a, stream);
}

static void earn_per_thread(weir_allocator *a) {
    earn(a, PER_THREAD);
    give(a, strayed, PER_THREAD);
}

static void send_threads(weir_allocator *a, int count) {
    for (int i = 0; i < count; i++) {
        strayed = take(a, 512, A);
        elsewhere(a, earn_per_thread);
    }
}

/* 256 default streams keep caches, and those that are bound.  For another one the cache of one that was
 * silent goes; that of one that was not stays, as do those of the program's own streams. */
START_TEST(silent_default_streams_make_room) {
    enum { KEPT = 256, OTHERS = 3 }; /* A, B, and the bound one */
    weir_allocator *a = make_plain(_i);
    void *block[4 * KEPT];

    OK(weir_preallocate(a, 256 * MIB, NULL));
    pair(a, 512, B);
    for (int i = 0; i < 4 * KEPT; i++) /* memory for all slabs, so that nothing grows later */
        block[i] = take(a, 100 * KIB, A);
    for (int i = 0; i < 4 * KEPT; i++)
        give(a, block[i], A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, GIB, NULL)); /* so that all streams may have all of it */
    warm(a, A);
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
    warm(a, B);
    warm(a, A); /* and all of it may be had by others */
    OK(weir_bind(a, PER_THREAD));
    warm(a, PER_THREAD);
    earn(a, NULL);
    for (int i = 2; i < 2 * KEPT; i++) {
        send_threads(a, 1);
        expect_a_hit(a, NULL);
        MUST_EQ(stats_of(a).front_streams, (uint64_t)OTHERS + (uint64_t)(i < KEPT ? i : KEPT));
    }
    send_threads(a, 2); /* of silent ones the newest goes */
    expect_a_hit(a, NULL);
    expect_a_hit(a, PER_THREAD);
    expect_a_hit(a, B);
    OK(weir_unbind(a, PER_THREAD));
    end(a);
}
END_TEST

static void pair_per_thread(weir_allocator *a) {
    pair(a, 512, PER_THREAD);
}

/* Those that were too young for a cache leave no more behind. */
START_TEST(young_default_streams_make_room) {
    enum { KEPT = 256, MORE = 64 };
    weir_allocator *a = make_plain(_i);
    uint64_t host_bytes;

    earn(a, A);
    for (int i = 0; i < KEPT; i++)
        elsewhere(a, pair_per_thread);
    host_bytes = stats_of(a).host_bytes;
    for (int i = 0; i < MORE; i++)
        elsewhere(a, pair_per_thread);
    MUST_LE(stats_of(a).host_bytes, host_bytes + (size_t)MORE * 64);
    MUST_EQ(stats_of(a).front_streams, 1);
    end(a);
}
END_TEST

static void *more_strayed;

static void give_both_per_thread(weir_allocator *a) {
    give(a, strayed, PER_THREAD);
    give(a, more_strayed, PER_THREAD);
    strayed = NULL;
}

static size_t while_others_call(const weir_growth_state *state, void *allocator) {
    if (strayed && more_strayed)
        elsewhere(*(weir_allocator **)allocator, give_both_per_thread);
    return state->request;
}

/* A default stream keeps its cache while a call on it takes long, in which it is silent. */
START_TEST(a_call_under_way_is_not_silence) {
    static const int kinds[] = {KIND_POOL, KIND_REGIONS};
    enum { KEPT = 256 };
    weir_options options = plain(kinds[_i]);
    weir_allocator *a;

    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = while_others_call;
    options.growth_context = &a;
    options.prealloc = bytes_amount(64 * MIB);
    a = make(&options);
    earn(a, A);
    send_threads(a, KEPT - 1);
    earn(a, NULL);
    strayed = take(a, 512, A);
    more_strayed = take(a, 512, A);
    give(a, take(a, 100 * MIB, NULL), A);
    MUST(!strayed);
    pair(a, 512, NULL); /* what it kept went back before growth */
    expect_a_hit(a, NULL);
    end(a);
}
END_TEST

static void give_strayed(weir_allocator *a) {
    give(a, strayed, NULL);
}

/* A stream is not silent on which nothing but misses were asked for, and freed on another, or on which only another
 * thread freed: the next default stream does not have its cache. */
START_TEST(neither_misses_nor_letters_are_silence) {
    enum { KEPT = 256 };
    weir_allocator *a = make_plain(_i / 2);
    void *whole, *young;

    OK(weir_preallocate(a, 256 * MIB, NULL));
    earn(a, A);
    send_threads(a, KEPT - 1);
    earn(a, NULL);
    strayed = take(a, 512, NULL);
    young = take(a, 512, PER_THREAD); /* from here on it counts who is silent */
    if (_i % 2) {
        elsewhere(a, give_strayed);
    } else {
        whole = take(a, MIB, NULL);
        give(a, whole, A);
    }
    give(a, young, PER_THREAD);
    expect_a_hit(a, NULL);
    if (_i % 2 == 0)
        give(a, strayed, NULL);
    end(a);
}
END_TEST

/* ---- slots away from home -------------------------------------------------------------------- */

START_TEST(a_remote_free_serves_where_it_was_freed) {
    weir_allocator *a = make_plain(_i);
    void *block, *held[500];
    int count = 0;

    warm(a, A);
    warm(a, B);
    block = take(a, 3000, A);
    order(B, A);
    busy(B, 50 * MS);
    give(a, block, B);
    for (held[0] = take(a, 3000, B); held[count] != block; held[count] = take(a, 3000, B))
        MUST(++count < 500); /* as soon as what lay there before is taken */
    MUST_EQ(check_identities(a).blocks, (uint64_t)count + 1);
    while (count >= 0)
        give(a, held[count--], B);
    forbid(block, 3000);
    expect_none_of_it(a, A);
    expect_none_of_it(a, C);
    MUST(weir__model_now_ns() < 50 * MS);
    end(a);
}
END_TEST

/* A slot that is away, and nothing else, makes a trim wait: a remote free, or one that other streams use. */
START_TEST(a_trim_waits_for_what_is_away) {
    weir_allocator *a = make_plain(_i / 2);
    void *home, *away;

    home = take(a, 3000, A);
    away = take(a, 3000, A);
    OK(weir_bind(a, B)); /* so it has a cache, with nothing in it */
    order(B, A);
    if (_i % 2)
        OK(weir_use(a, away, B));
    busy(B, 50 * MS);
    give(a, away, _i % 2 ? A : B);
    MUST(weir__model_now_ns() < 50 * MS);
    OK(weir_trim(a, 0, NULL));
    MUST_LE(50 * MS, weir__model_now_ns());
    give(a, home, A);
    OK(weir_unbind(a, B));
    end(a);
}
END_TEST

/* Many of them are sent home behind an event, and then serve there without growth. */
START_TEST(remote_frees_find_their_cache) {
    enum { COUNT = 3000 };
    weir_allocator *a = make_plain(_i);
    void *block[COUNT];
    uint64_t reserve, events;
    int home = 0;

    warm(a, A);
    warm(a, B);
    for (int i = 0; i < COUNT; i++)
        block[i] = take(a, 2000, A);
    order(B, A);
    busy(B, 50 * MS);
    events = stats_of(a).event_records;
    count_from_here();
    for (int i = 0; i < COUNT; i++) {
        give(a, block[i], B);
        forbid(block[i], 2000);
    }
    expect_none_of_it(a, A);
    MUST_LE(1, calls(WEIR_ENTRY_cuEventRecord));
    MUST_EQ(stats_of(a).event_records - events, calls(WEIR_ENTRY_cuEventRecord));
    MUST(weir__model_now_ns() < 50 * MS);
    weir__model_advance(50 * MS);
    reserve = stats_of(a).reserve;
    for (int i = 0; i < COUNT; i++) {
        block[i] = take(a, 2000, A);
        home += is_forbidden(block[i], 2000);
    }
    ck_assert_int_gt(home, COUNT / 2);
    MUST_EQ(stats_of(a).reserve, reserve);
    for (int i = 0; i < COUNT; i++)
        give(a, block[i], A);
    end(a);
}
END_TEST

/* Strays of a stream that ended come home after a wait for the device.  For much of it a growing request
 * waits, for little it does not; and never where no waiting at all was asked for.  `fails`: so does the wait. */
static void strand(int kind, int much, int patient, int fails) {
    static const size_t of_a_class[] = {512 * KIB, 448 * KIB, 384 * KIB, 320 * KIB, 256 * KIB};
    int count = much ? 300 : 60; /* no class has enough to be sent home behind an event */
    weir_options options = plain(kind);
    CUstream s = make_stream(), first = s;
    uint64_t reserve;
    weir_allocator *a;
    void *block[300], *large;

    if (!patient)
        options.recovery_timeout_ms = UINT32_MAX;
    a = make(&options);
    warm(a, A);
    warm(a, s);
    for (int i = 0; i < count; i++)
        block[i] = take(a, of_a_class[i / 60], A);
    order(s, A);
    busy(s, 50 * MS);
    for (int i = 0; i < count; i++)
        give(a, block[i], s);
    CU(driver->cuStreamDestroy(s));
    s = make_stream();
    MUST(s == first);
    pair(a, 512, s); /* nobody knows any more whose they are */
    reserve = stats_of(a).reserve;
    if (fails)
        weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_INVALID_VALUE, 0);
    large = take(a, 300 * MIB, A);
    MUST_LE(reserve + MIB, stats_of(a).reserve);
    if (fails)
        MUST_EQ(weir__model_faults_met(NULL), 1);
    else
        MUST_EQ(weir__model_now_ns() >= 50 * MS, much && patient);
    give(a, large, A);
    CU(driver->cuStreamDestroy(s));
    end(a);
}

START_TEST(what_is_stranded_is_waited_for_if_it_is_much) {
    strand(_i / 3, _i % 3 != 0, _i % 3 != 2, 0);
}
END_TEST

START_TEST(what_is_stranded_stays_if_it_cannot_be_waited_for) {
    strand(_i, 1, 1, 1);
}
END_TEST

/* ---- noted uses ------------------------------------------------------------------------------ */

START_TEST(noted_uses_hold_small_and_whole_blocks) {
    weir_allocator *a = make_plain(_i);
    void *block[SIZES];

    warm(a, A);
    warm(a, B);
    for (int i = 0; i < SIZES; i++) {
        block[i] = take(a, sizes[i], A);
        order(B, A);
        OK(weir_use(a, block[i], B));
        forbid(block[i], sizes[i]);
    }
    busy(B, 50 * MS);
    for (int i = 0; i < SIZES; i++)
        give(a, block[i], A);
    check_identities(a);
    MUST_EQ(stats_of(a).blocks, 0);
    for (int i = 0; i < SIZES; i++)
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block[i], A));
    expect_none_of_it(a, A);
    expect_none_of_it(a, B);
    expect_none_of_it(a, C);
    MUST(weir__model_now_ns() < 50 * MS);
    weir__model_advance(50 * MS);
    end(a);
}
END_TEST

/* However many slots wait for their users, a call asks about eight of them. */
START_TEST(few_are_asked_about_at_a_time) {
    enum { COUNT = 20, PEEK = 8 };
    weir_allocator *a = make_plain(_i);
    void *block[COUNT];

    warm(a, A);
    for (int i = 0; i < COUNT; i++) {
        block[i] = take(a, 512, A);
        order(B, A);
        OK(weir_use(a, block[i], B));
    }
    busy(A, 50 * MS);
    busy(B, 50 * MS);
    for (int i = 0; i < COUNT; i++) {
        count_from_here();
        give(a, block[i], A);
        MUST_EQ(calls(WEIR_ENTRY_cuEventQuery), (uint64_t)(i < PEEK ? i + 1 : PEEK));
    }
    end(a);
}
END_TEST

/* E_STREAM: the note is dropped, the block stays live, and the next free is taken. */
START_TEST(a_use_of_a_destroyed_stream) {
    weir_allocator *a = make_plain(_i);
    CUstream dead;

    warm(a, A);
    for (int i = 0; i < SIZES; i++) {
        void *block = take(a, sizes[i], A);

        dead = make_stream();
        OK(weir_use(a, block, dead));
        CU(driver->cuStreamDestroy(dead));
        EXPECT(WEIR_E_STREAM, weir_free(a, block, A));
        MUST_EQ(check_identities(a).blocks, 1);
        give(a, block, A);
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    }
    end(a);
}
END_TEST

/* Where streams are vouched for it has its cache at once. */
START_TEST(freed_twice_on_a_new_stream) {
    weir_options options = plain(_i);
    weir_allocator *a;
    void *block;

    options.stream_checks = WEIR_SWITCH_OFF;
    a = make(&options);
    warm(a, A);
    block = take(a, 3000, A);
    give(a, block, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, B));
    end(a);
}
END_TEST

/* ---- capture --------------------------------------------------------------------------------- */

static void begin_capture(CUstream stream) {
    CU(driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

/* Ends it, or has it aborted by what it forbids. */
static void end_capture(CUstream stream, int aborted) {
    CUgraph graph = NULL;
    CUresult result;

    if (aborted)
        MUST(driver->cuStreamQuery(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    result = driver->cuStreamEndCapture(stream, &graph);
    MUST(result == (aborted ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS));
    if (graph)
        CU(driver->cuGraphDestroy(graph));
}

static void expect_capturing(CUstream stream) {
    CUstreamCaptureStatus status;

    CU(driver->cuStreamIsCapturing(stream, &status));
    MUST_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

/* A stream that the driver does not know, or that is being captured, is not bound, and nothing changes. */
START_TEST(what_cannot_be_bound) {
    weir_allocator *a = make_plain(_i);
    CUstream s = make_stream();

    CU(driver->cuStreamDestroy(s));
    EXPECT(WEIR_E_STREAM, weir_bind(a, s));
    begin_capture(A);
    EXPECT(WEIR_E_CAPTURE, weir_bind(a, A));
    EXPECT(WEIR_E_CAPTURE, weir_unbind(a, A));
    expect_capturing(A);
    end_capture(A, 0);
    EXPECT(WEIR_E_INVALID, weir_unbind(a, A));
    end(a);
}
END_TEST

static void expect_no_questions(void) {
    static const enum weir_driver_entry entries[] = {
        WEIR_ENTRY_cuEventRecord, WEIR_ENTRY_cuEventQuery, WEIR_ENTRY_cuStreamSynchronize,
        WEIR_ENTRY_cuCtxSynchronize, WEIR_ENTRY_cuStreamWaitEvent};

    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        ck_assert_msg(calls(entries[i]) == 0, "%s was called", weir__driver_entry_name(entries[i]));
}

/* `cached`: the captured stream has a cache; `aborted`: so ends the capture. */
static void free_under_capture(int kind, CUstream stream, int cached, int aborted) {
    weir_allocator *a = make_plain(kind);
    void *block[SIZES], *none = &none;
    weir_statistics before, after;

    warm(a, B);
    if (cached)
        warm(a, stream);
    for (int i = 0; i < SIZES; i++) {
        block[i] = take(a, sizes[i], stream);
        forbid(block[i], sizes[i]);
    }
    before = stats_of(a);
    begin_capture(stream);
    count_from_here();
    busy(stream, MS); /* a step of the graph */
    if (kind != KIND_DIRECT) {
        none = take(a, 512, stream);
        give(a, none, stream);
        MUST_EQ(stats_of(a).front_misses_capture, before.front_misses_capture + 1);
    } else {
        EXPECT(WEIR_E_CAPTURE, weir_alloc(a, 512, stream, &none));
    }
    for (int i = 0; i < SIZES; i++)
        give(a, block[i], stream);
    MUST_EQ(stats_of(a).deferred_frees, before.deferred_frees + SIZES);
    for (int i = 0; i < SIZES; i++)
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block[i], stream));
    after = check_identities(a);
    MUST_EQ(after.deferred_frees, before.deferred_frees + SIZES);
    MUST_EQ(after.blocks, before.blocks - SIZES);
    MUST_EQ(after.front_hits, before.front_hits);
    expect_no_questions();
    expect_none_of_it(a, B);
    expect_none_of_it(a, C);
    end_capture(stream, aborted);
    if (cached) { /* its own again, sooner or later: the engine may have something that fits better */
        void *more[SIZES * 6];
        int again = 0;

        for (int i = 0; i < SIZES * 6; i++) {
            more[i] = take(a, sizes[i % SIZES], stream);
            again += is_forbidden(more[i], sizes[i % SIZES]);
        }
        MUST(again > 0);
        for (int i = 0; i < SIZES * 6; i++)
            give(a, more[i], stream);
    }
    end(a);
}

START_TEST(frees_under_capture) {
    free_under_capture(_i / 4, A, _i & 1, _i >> 1 & 1);
}
END_TEST

/* The driver does not say which one it is then. */
START_TEST(frees_under_capture_of_a_default_stream) {
    free_under_capture(_i, PER_THREAD, 0, 0);
}
END_TEST

/* Of a stream without a cache, with a cell or none, and of one that has no room yet for such slots. */
START_TEST(slots_of_others_are_freed_under_capture) {
    weir_allocator *a = make_plain(_i);
    CUstream stream[] = {make_stream(), B, C};
    void *block[3];

    warm(a, A);
    warm(a, C);
    give(a, take(a, 3000, B), B);
    for (int i = 0; i < 3; i++)
        block[i] = take(a, 3000, A);
    for (int i = 0; i < 3; i++) {
        uint64_t before = stats_of(a).deferred_frees;

        begin_capture(stream[i]);
        give(a, block[i], stream[i]);
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block[i], stream[i]));
        MUST_EQ(check_identities(a).deferred_frees, before + 1);
        expect_capturing(stream[i]);
        end_capture(stream[i], 0);
    }
    CU(driver->cuStreamDestroy(stream[0]));
    end(a);
}
END_TEST

START_TEST(a_wrong_free_beside_a_capture_harms_it_not) {
    weir_allocator *a = make_plain(_i);
    CUdeviceptr foreign;
    char *block;

    warm(a, A);
    block = take(a, 64 * KIB, A);
    CU(driver->cuMemAlloc(&foreign, KIB));
    begin_capture(B);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block + 512, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, (void *)(uintptr_t)(foreign + 512), A));
    expect_capturing(B);
    end_capture(B, 0);
    CU(driver->cuMemFree(foreign));
    give(a, block, A);
    end(a);
}
END_TEST

/* What lies in a cache is covered by no event, so that a trim waits for the device. */
START_TEST(a_wait_on_a_full_device_harms_no_capture) {
    weir_allocator *a = make_plain(_i);
    CUdeviceptr rest, last;
    size_t bytes, total;

    warm(a, A);
    CU(driver->cuMemGetInfo(&bytes, &total));
    CU(driver->cuMemAlloc(&rest, bytes / (2 * MIB) * (2 * MIB)));
    MUST(driver->cuMemAlloc(&last, 2 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    begin_capture(C);
    busy(A, 5 * MS);
    OK(weir_trim(a, 0, NULL));
    MUST_LE(5 * MS, weir__model_now_ns());
    expect_capturing(C);
    end_capture(C, 0);
    MUST_EQ(stats_of(a).reserve, 0);
    CU(driver->cuMemFree(rest));
    end(a);
}
END_TEST

/* A block with notes cannot be freed while its stream or a noted one is captured. */
START_TEST(used_blocks_wait_for_the_end_of_a_capture) {
    weir_allocator *a = make_plain(_i);
    void *block[SIZES];

    warm(a, A);
    for (int i = 0; i < SIZES; i++) {
        block[i] = take(a, sizes[i], A);
        OK(weir_use(a, block[i], B));
    }
    begin_capture(A);
    for (int i = 0; i < SIZES; i++)
        EXPECT(WEIR_E_CAPTURE, weir_free(a, block[i], A));
    end_capture(A, 0);
    begin_capture(B);
    for (int i = 0; i < SIZES; i++)
        EXPECT(WEIR_E_CAPTURE, weir_free(a, block[i], A));
    end_capture(B, 0);
    MUST_EQ(check_identities(a).blocks, SIZES);
    for (int i = 0; i < SIZES; i++)
        give(a, block[i], A);
    end(a);
}
END_TEST

/* A graph's block that outlives a launch is freed outside; nothing of it comes into a cache. */
START_TEST(a_graphs_block_is_freed_outside) {
    weir_allocator *a = make_plain(_i);
    weir_statistics before;
    CUgraphExec exec;
    CUgraph graph;
    void *left;

    warm(a, A);
    before = stats_of(a);
    begin_capture(A);
    left = take(a, 3000, A);
    CU(driver->cuStreamEndCapture(A, &graph));
    MUST_EQ(stats_of(a).front_hits, before.front_hits);
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph,
                                           CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    CU(driver->cuGraphLaunch(exec, A));
    give(a, left, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, left, A));
    forbid(left, 3000);
    expect_none_of_it(a, A);
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuDeviceGraphMemTrim(0));
    end(a);
}
END_TEST

static uint64_t memory_of_graphs(void) {
    uint64_t bytes = UINT64_MAX;

    CU(driver->cuCtxSynchronize());
    CU(driver->cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &bytes));
    return bytes;
}

/* A program has bound a stream and captures it all the same.  Once the driver was asked, a request is the graph's: no
 * later request on another stream may have its memory. */
START_TEST(a_bound_stream_is_captured) {
    weir_allocator *a = make_plain(_i);
    CUgraphExec exec;
    CUgraph graph;
    void *block, *node;

    warm(a, A);
    OK(weir_bind(a, A));
    block = take(a, MIB, A);
    OK(weir_use(a, block, B));
    begin_capture(A);
    EXPECT(WEIR_E_CAPTURE, weir_free(a, block, A)); /* asks the driver */
    node = take(a, 2 * MIB, A);
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(driver->cuGraphLaunch(exec, A));
    MUST_EQ(memory_of_graphs(), 2 * MIB);
    give(a, node, A);
    MUST_EQ(memory_of_graphs(), 0);
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuDeviceGraphMemTrim(0));
    give(a, block, A);
    OK(weir_unbind(a, A));
    end(a);
}
END_TEST

/* Where a block of the pool lay once, the driver may put a graph's: this one does. */
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

START_TEST(a_graphs_block_where_there_was_another) {
    struct weir_driver other = *driver;
    weir_options options = plain(KIND_POOL);
    size_t bytes = _i == 0 ? 32 * MIB : 70000;
    weir_allocator *a;
    void *block;

    other.cuMemAllocFromPoolAsync = alloc_for_graph;
    other.cuMemFreeAsync = free_for_graph;
    OK(weir__allocator_create_on(&other, &options, &a, NULL, 0));
    give(a, take(a, bytes, A), A); /* the first stream has a cache, and B has none yet */
    block = take(a, bytes, B);
    give(a, block, B);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    begin_capture(A);
    place_of_graphs = (uintptr_t)block;
    MUST(take(a, bytes, A) == block);
    MUST(weir__caches_is_live(a->caches, place_of_graphs));
    give(a, block, A);
    MUST_EQ(freed_by_driver, place_of_graphs);
    place_of_graphs = 0;
    end_capture(A, 0);
    end(a);
}
END_TEST

/* ---- how much is kept ------------------------------------------------------------------------ */

/* What a stream that was alone has freed is there for the second one, however much may be kept. */
START_TEST(a_second_stream_has_what_the_first_left) {
    weir_options options = plain(KIND_POOL);
    weir_allocator *a;
    void *block[12];

    options.front_cache = (weir_amount){4 * GIB, WEIR_AMOUNT_BYTES, 0};
    a = make(&options);
    for (int i = 0; i < 12; i++)
        block[i] = take(a, 64 * MIB, A);
    for (int i = 0; i < 12; i++)
        give(a, block[i], A);
    CU(driver->cuCtxSynchronize());
    block[0] = take(a, 512 * MIB, B);
    MUST_EQ(stats_of(a).reserve, 768 * MIB);
    give(a, block[0], B);
    end(a);
}
END_TEST

/* For as much as 64 MiB the second stream does not wait, for more it does, and is served by it. */
START_TEST(what_the_first_left_is_waited_for_if_it_is_much) {
    int waits = _i % 2;
    weir_allocator *a = make_plain(_i / 2 ? KIND_REGIONS : KIND_POOL);
    size_t bytes = 64 * MIB + (waits ? 16 * KIB : 0);
    void *block = take(a, bytes, A);
    uint64_t reserve = stats_of(a).reserve;

    busy(A, 50 * MS);
    give(a, block, A);
    block = take(a, 64 * MIB, B);
    MUST_EQ(weir__model_now_ns() >= 50 * MS, waits);
    MUST_EQ(stats_of(a).reserve == reserve, waits);
    count_from_here();
    pair(a, 512, A); /* answers growth, if there was any */
    MUST_EQ(calls(WEIR_ENTRY_cuStreamGetId), waits ? 1 : 2);
    give(a, block, B);
    end(a);
}
END_TEST

/* Whole blocks are kept as soon as the engine has served 1,024 requests in a row without growing. */
START_TEST(whole_blocks_are_kept_in_calm) {
    weir_allocator *a = make_plain(_i);
    int requests = 0;

    pair(a, MIB, A); /* the reserved memory grows */
    while (stats_of(a).front_hits == 0) {
        pair(a, MIB, A);
        MUST(++requests < 2000);
    }
    /* One more sees it, and the next finds what that left.  A fixed arena has not grown for the first. */
    MUST_EQ(requests, 1024 + 2 - (_i == KIND_FIXED));
    end(a);
}
END_TEST

/* And no more from the next growth on, though it is another stream's, and whether or not the driver is asked
 * about this one: at its next call it gives what it has, and then lets them pass. */
START_TEST(whole_blocks_pass_after_growth) {
    int kind = _i / 3, bound = _i % 3 == 1, whole = _i % 3 == 2;
    weir_allocator *a = make_plain(kind);
    void *block, *next, *large = NULL;

    warm(a, A);
    warm(a, B);
    if (bound)
        OK(weir_bind(a, A));
    block = take(a, MIB, A);
    EXPECT(kind == KIND_FIXED ? WEIR_E_LIMIT : WEIR_OK, weir_alloc(a, 300 * MIB, B, &large));
    if (whole) { /* one that would have been there */
        next = take(a, 512 * KIB + 1, A);
        MUST_LE(stats_of(a).front_idle, 256 * KIB);
        give(a, next, A);
    }
    pair(a, 512, A);
    give(a, block, A);
    MUST_LE(stats_of(a).front_idle, 256 * KIB);
    give(a, large, B);
    if (bound)
        OK(weir_unbind(a, A));
    end(a);
}
END_TEST

/* 4 MiB may be kept, and lie there: 3 MiB in whole blocks, 1 MiB in slabs. */
START_TEST(the_cap_may_be_reached) {
    weir_options options = plain(_i);
    weir_allocator *a;
    void *block[272];

    options.front_cache = bytes_amount(4 * MIB);
    options.front_idle_ms = UINT32_MAX;
    a = make(&options);
    OK(weir_preallocate(a, 64 * MIB, NULL));
    for (int i = 0; i < 1100; i++)
        pair(a, MIB, A);
    for (int i = 0; i < 272; i++) /* slabs of 64, 128, 256 and 512 KiB, and one of 64 */
        block[i] = take(a, i < 240 ? 4096 : 2048, A);
    for (int i = 0; i < 272; i++)
        give(a, block[i], A);
    for (int i = 0; i < 3; i++)
        block[i] = take(a, MIB, A);
    for (int i = 0; i < 3; i++)
        give(a, block[i], A);
    MUST_EQ(stats_of(a).front_idle, 4 * MIB);
    for (int i = 0; i < 2 * 4096; i++)
        pair(a, 4096, A);
    MUST_EQ(stats_of(a).front_idle, 4 * MIB);
    end(a);
}
END_TEST

static uint64_t idle_clock;

static uint64_t read_idle_clock(void) {
    return idle_clock;
}

/* front_idle is enough, to the nanosecond. */
START_TEST(idle_blocks_go_at_the_moment) {
    struct weir_driver other = *driver;
    weir_options options = plain(_i);
    weir_allocator *a;

    other.ticks = read_idle_clock;
    options.front_idle_ms = 10;
    OK(weir__allocator_create_on(&other, &options, &a, NULL, 0));
    warm(a, A);
    MUST_LE(2 * MIB, stats_of(a).front_idle);
    for (int i = 0; i < 3 * 4096 - 1; i++) { /* two looks, or three */
        pair(a, 3000, A);
        idle_clock += i % 4096 == 0 ? 10 * MS : 0;
    }
    MUST_LE(stats_of(a).front_idle, 64 * KIB);
    end(a);
}
END_TEST

/* Uses 4 MiB at a time, so that none of it lies idle for long, until it was looked at once more. */
static void use_until_looked_at(weir_allocator *a) {
    enum { COUNT = 64 };
    void *block[COUNT];

    for (int round = 0; round < 4096 / COUNT; round++) {
        for (int i = 0; i < COUNT; i++)
            block[i] = take(a, 64 * KIB, A);
        for (int i = 0; i < COUNT; i++)
            give(a, block[i], A);
    }
    idle_clock += 10 * MS;
}

/* An allocator whose caches keep a tenth of what is in use, by that driver's clock.  A span began after 100 MiB were given
 * back. */
static weir_allocator *come_down(struct weir_driver *other, int engine) {
    weir_options options = plain(engine);
    weir_allocator *a;
    void *held;

    idle_clock = 1000 * MS;
    other->ticks = read_idle_clock;
    options.front_idle_ms = 10;
    options.front_cache = (weir_amount){.kind = WEIR_AMOUNT_OF_IN_USE, .value = 100000};
    OK(weir__allocator_create_on(other, &options, &a, NULL, 0));
    OK(weir_preallocate(a, 256 * MIB, NULL));
    held = take(a, 100 * MIB, A);
    for (int i = 0; i < 3; i++)
        use_until_looked_at(a);
    give(a, held, A);
    use_until_looked_at(a);
    return a;
}

/* A share of what is in use is one of the most that was in this span of front_idle and in the last. */
START_TEST(what_was_in_use_counts_for_two_spans) {
    struct weir_driver other = *driver;
    weir_allocator *a = come_down(&other, _i);

    MUST_LE(4 * MIB, stats_of(a).front_idle);
    use_until_looked_at(a);
    use_until_looked_at(a);
    MUST_LE(stats_of(a).front_idle, 2 * MIB);
    end(a);
}
END_TEST

/* A thread reads the clock, and another one begins the next span before it: its time is that span's, and no other. */
START_TEST(a_thread_that_is_late_ends_no_span) {
    struct weir_driver other = *driver;
    weir_allocator *a = come_down(&other, _i);

    for (int i = 0; i < 3; i++) {
        idle_clock -= 10 * MS + 1; /* before that span began */
        use_until_looked_at(a);
    }
    MUST_LE(4 * MIB, stats_of(a).front_idle);
    end(a);
}
END_TEST

static uint64_t idle_after_much(const weir_options *options) {
    weir_allocator *a = make(options);
    void *held = take(a, 100 * MIB, C);
    uint64_t idle = 0;

    for (int i = 0; i < 6000; i++) {
        void *block[3] = {take(a, MIB, A), take(a, 60000, A), take(a, 2 * MIB, A)};

        for (int k = 0; k < 3; k++)
            give(a, block[k], A);
        give(a, take(a, 512, A), A);
        if (i > 5000 && idle < stats_of(a).front_idle)
            idle = stats_of(a).front_idle;
    }
    for (size_t mib = 1; mib < 8; mib++) {
        void *block = take(a, mib * MIB, A);

        give(a, block, A);
        give(a, take(a, 512, A), A);
        if (idle < stats_of(a).front_idle)
            idle = stats_of(a).front_idle;
    }
    give(a, held, C);
    end(a);
    return idle;
}

/* As the option says: nothing, so many bytes, a share of what is in use, all. */
START_TEST(the_cap_is_kept) {
    weir_options options = plain(_i);
    uint64_t idle;

    options.front_cache = bytes_amount(0);
    MUST_EQ(idle_after_much(&options), 0);
    options.front_cache = bytes_amount(4 * MIB);
    idle = idle_after_much(&options);
    MUST_LE(idle, 4 * MIB);
    MUST_LE(1, idle);
    options.front_cache = (weir_amount){.kind = WEIR_AMOUNT_OF_IN_USE, .value = 50000};
    idle = idle_after_much(&options);
    MUST_LE(idle, 6 * MIB);
    MUST_LE(1, idle);
    options.front_cache = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    /* Each growth empties the caches, and a mapped arena grows by less at a time. */
    MUST_LE(_i == KIND_MAPPED ? 12 * MIB : 28 * MIB, idle_after_much(&options));
}
END_TEST

/* What a stream does not use goes back, while what it uses stays. */
START_TEST(idle_blocks_go_in_time) {
    weir_options options = plain(_i);
    weir_allocator *a;
    uint64_t idle;

    options.front_idle_ms = 10;
    a = make(&options);
    warm(a, A);
    idle = stats_of(a).front_idle;
    MUST_LE(2 * MIB, idle);
    for (int i = 0; i < 5 * 4096; i++) {
        give(a, take(a, 3000, A), A);
        if (i % 4096 == 0)
            weir__model_advance(11 * MS);
    }
    MUST_LE(stats_of(a).front_idle, 64 * KIB);
    count_from_here();
    give(a, take(a, 3000, A), A);
    EXPECT_CALLS({WEIR_ENTRY_cuStreamIsCapturing, 1}, {WEIR_ENTRY_cuStreamGetId, 1});
    end(a);
}
END_TEST

START_TEST(idle_blocks_stay_for_ever) {
    weir_options options = plain(_i);
    weir_allocator *a;

    options.front_idle_ms = UINT32_MAX;
    a = make(&options);
    warm(a, A);
    for (int i = 0; i < 5 * 4096; i++) {
        give(a, take(a, 3000, A), A);
        if (i % 4096 == 0)
            weir__model_advance(100000 * MS);
    }
    MUST_LE(2 * MIB, stats_of(a).front_idle);
    end(a);
}
END_TEST

/* What another stream's cache holds serves a request that does not fit, after that stream's next call
 * (`frees`: a free, else a hit), once its work is done; and the reserved memory does not grow for it. */
static void demand(int kind, int frees) {
    weir_options options = plain(kind);
    uint64_t reserve, steals;
    weir_allocator *a;
    void *held[512], *block, *last;
    int count = 0;

    options.limit = bytes_amount(64 * MIB);
    options.recovery_timeout_ms = UINT32_MAX; /* no OOM recovery */
    options.front_cache = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    a = make(&options);
    warm(a, A);
    block = take(a, 3 * MIB, A);
    last = take(a, 512, A);
    busy(A, 5 * MS);
    give(a, block, A);
    forbid(block, 3 * MIB);
    while (weir_alloc(a, 3 * MIB, B, &held[count]) == WEIR_OK) {
        MUST(!is_forbidden(held[count], 3 * MIB));
        MUST(++count < 512);
    }
    reserve = stats_of(a).reserve;
    if (!frees)
        give(a, take(a, 512, A), A);
    give(a, last, A);                                              /* A's next call */
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 3 * MIB, B, &held[count])); /* its work is not done */
    weir__model_advance(5 * MS);
    steals = stats_of(a).steals;
    held[count++] = take(a, 3 * MIB, B);
    MUST_LE(steals + 1, stats_of(a).steals);
    MUST_EQ(stats_of(a).reserve, reserve);
    while (count > 0)
        give(a, held[--count], B);
    end(a);
}

START_TEST(demand_reaches_other_streams) {
    demand(_i / 2, _i % 2);
}
END_TEST

/* A's, by blocks that are freed at once: over and over, it keeps many. */
static void fill_own_cache(weir_allocator *a) {
    void *block[64];

    for (int i = 0; i < 64; i++)
        block[i] = take(a, MIB, A);
    for (int i = 0; i < 64; i++)
        give(a, block[i], A);
}

/* The stream's own cache is given up before the reserved memory grows, and before anybody waits. */
START_TEST(own_cache_before_growth) {
    weir_options options = plain(_i);
    weir_allocator *a;
    void *block;
    uint64_t reserve;

    options.front_cache = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    if (_i == KIND_FIXED)
        options.limit = bytes_amount(64 * MIB);
    a = make(&options);
    give(a, take(a, 64 * MIB, A), A);
    for (int round = 0; round < 60; round++)
        fill_own_cache(a);
    MUST_LE(8 * MIB, stats_of(a).front_idle);
    reserve = stats_of(a).reserve;
    count_from_here();
    block = take(a, 64 * MIB, A);
    MUST_EQ(stats_of(a).reserve, reserve);
    MUST_EQ(calls(WEIR_ENTRY_cuCtxSynchronize) + calls(WEIR_ENTRY_cuMemFree), 0);
    give(a, block, A);
    end(a);
}
END_TEST

/* And nobody else's is: who has enough is no concern of others. */
START_TEST(own_cache_before_others) {
    weir_options options = plain(_i);
    weir_allocator *a;
    uint64_t hits, reserve;

    options.front_cache = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    options.growth = WEIR_GROWTH_EXACT;
    if (_i == KIND_POOL)
        return; /* which may be dry all the same */
    if (_i == KIND_FIXED)
        options.limit = bytes_amount(80 * MIB);
    a = make(&options);
    for (int i = 0; i < 60; i++)
        give(a, take(a, 3000, i % 2 ? A : B), i % 2 ? A : B);
    give(a, take(a, 72 * MIB, A), A);
    for (int round = 0; round < 60; round++) {
        give(a, take(a, 3000, B), B); /* B has given what it had for that */
        fill_own_cache(a);
    }
    MUST_LE(8 * MIB, stats_of(a).front_idle);
    reserve = stats_of(a).reserve;
    give(a, take(a, 64 * MIB, A), A);
    MUST_EQ(stats_of(a).reserve, reserve);
    hits = stats_of(a).front_hits;
    give(a, take(a, 3000, B), B);
    MUST_EQ(stats_of(a).front_hits, hits + 1);
    end(a);
}
END_TEST

/* The caches has no tries of its own at what the driver refuses. */
START_TEST(a_failure_is_asked_for_once) {
    uint64_t tries[2];
    CUdeviceptr others;
    void *none = NULL;

    CU(driver->cuMemAlloc(&others, 3 * GIB));
    for (int front = 0; front < 2; front++) {
        weir_options options = plain(_i);
        weir_allocator *a;

        options.front = front ? WEIR_SWITCH_ON : WEIR_SWITCH_OFF;
        options.recovery_timeout_ms = UINT32_MAX;
        a = make(&options);
        count_from_here();
        MUST_EQ(weir_alloc(a, 2 * GIB, A, &none),
                _i == KIND_FIXED ? WEIR_E_LIMIT : WEIR_E_NO_MEMORY);
        tries[front] = calls(WEIR_ENTRY_cuMemAllocFromPoolAsync) + calls(WEIR_ENTRY_cuMemCreate) +
                       calls(WEIR_ENTRY_cuMemAlloc);
        end_beside(a, 3 * GIB);
    }
    MUST_LE(tries[1], tries[0]);
    CU(driver->cuMemFree(others));
}
END_TEST

/* Half a MiB is the most that a slab serves, and is told where that is what is left. */
START_TEST(the_last_half_mebibyte_is_told) {
    weir_refusal r = {.size = sizeof r};
    weir_allocator *a = make_plain(KIND_FIXED);
    void *block[256], *none = NULL;

    for (int i = 0; i < 256; i++)
        block[i] = take(a, i < 255 ? MIB : 512 * KIB, A);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, MIB, A, &none));
    OK(weir_last_refusal(&r));
    MUST_EQ(r.largest, 512 * KIB);
    give(a, take(a, 512 * KIB, A), A);
    for (int i = 0; i < 256; i++)
        give(a, block[i], A);
    end(a);
}
END_TEST

/* Of a list that is told as much as is to be, from the first on. */
START_TEST(tables_are_made_as_far_as_they_are_wanted) {
    const struct weir_extent list[] = {
        {.base = UINT64_C(1) << 40, .bytes = GIB, .large = 0},
        {.base = UINT64_C(3) << 40, .bytes = GIB, .large = 0},
    };
    uint64_t one, both, now;
    weir_allocator *a = make_plain(KIND_POOL);

    now = stats_of(a).host_bytes;
    weir__caches_prepare(a->caches, list, 0, 64 * MIB);
    MUST_EQ(stats_of(a).host_bytes, now);
    weir__caches_prepare(a->caches, list, 2, GIB);
    one = stats_of(a).host_bytes;
    MUST_LE(now + 4 * KIB, one);
    weir__caches_prepare(a->caches, list, 2, GIB);
    MUST_EQ(stats_of(a).host_bytes, one);
    weir__caches_prepare(a->caches, list, 2, 2 * GIB);
    both = stats_of(a).host_bytes;
    MUST_LE(one + 4 * KIB, both);
    end(a);
}
END_TEST

/* Whoever has no context has none behind it either. */
START_TEST(an_end_leaves_the_context_as_it_was) {
    weir_allocator *a = make_plain(_i);
    CUcontext current;

    give(a, take(a, MIB, A), A);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuCtxPopCurrent(&current));
    OK(weir_allocator_destroy(a));
    CU(driver->cuCtxGetCurrent(&current));
    MUST(current == NULL);
}
END_TEST

/* A table that passes everything on and counts what fails.  What is not ready yet has not failed. */
static const struct weir_driver *passed_on_to;
static unsigned failed_calls;

static CUresult note_failure(CUresult result) {
    failed_calls += result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
    return result;
}

#define WEIR_ENTRY(group, name, symbol, version, params, args)                                     \
    static CUresult noted_##name params {                                                          \
        return note_failure(passed_on_to->name args);                                              \
    }
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

static struct weir_driver noting_failures(void) {
    struct weir_driver table = *driver;

    passed_on_to = driver;
#define WEIR_ENTRY(group, name, symbol, version, params, args)                                     \
    if (table.name)                                                                                \
        table.name = noted_##name;
    WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
    return table;
}

/* Requests that hit, that miss, that grow the reserved memory, and blocks that another stream used. */
static void use_default_stream(weir_allocator *a, CUstream stream, int round) {
    void *block[SIZES], *large;

    for (int i = 0; i < SIZES; i++)
        block[i] = take(a, sizes[i], stream);
    OK(weir_use(a, block[0], A));
    OK(weir_use(a, block[1], stream));
    for (int i = 0; i < SIZES; i++)
        give(a, block[i], i == 1 ? A : stream);
    large = take(a, (size_t)(round + 1) * 8 * MIB, stream);
    give(a, large, stream);
}

/* The first call on a default stream tells that the thread has no context.  From then on no call of the driver fails,
 * and the thread still has none. */
START_TEST(a_thread_without_a_context_makes_no_failing_calls) {
    static const CUstream of[] = {NULL, LEGACY, PER_THREAD};
    weir_options options = plain(_i);
    struct weir_driver table = noting_failures();
    CUcontext own, current;
    weir_allocator *a;

    OK(weir__allocator_create_on(&table, &options, &a, NULL, 0));
    CU(driver->cuCtxPopCurrent(&own));
    for (int s = 0; s < 3; s++) {
        give(a, take(a, KIB, of[s]), of[s]);
        failed_calls = 0;
        for (int round = 0; round < 4; round++)
            use_default_stream(a, of[s], round);
        MUST_EQ(failed_calls, 0);
        CU(driver->cuCtxGetCurrent(&current));
        MUST(current == NULL);
    }
    CU(driver->cuCtxPushCurrent(own));
    end(a);
}
END_TEST

/* A slab of four pages does not fit into the two that there are: it has as few as it needs. */
START_TEST(a_small_request_needs_no_whole_slab) {
    weir_options options = options_of(KIND_FIXED, "model", 32 * KIB);
    weir_allocator *a = make(&options);
    void *small[32], *other, *none = NULL;

    for (int i = 0; i < 32; i++) /* as many as a page holds */
        small[i] = take(a, 512, A);
    other = take(a, 9 * KIB, A);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 512, A, &none));
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 9 * KIB, A, &none));
    MUST_EQ(check_identities(a).in_use, 32 * 512 + 9 * KIB);
    for (int i = 0; i < 32; i++)
        give(a, small[i], A);
    give(a, other, A);
    end(a);
}
END_TEST

/* Out of memory: what other caches hold is given back and serves. */
START_TEST(at_the_limit_other_caches_give) {
    enum { CACHED = 6 };
    weir_options options = plain(_i);
    CUstream s[CACHED];
    weir_allocator *a;
    void *block;

    options.limit = bytes_amount(128 * MIB);
    options.front_cache = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    a = make(&options);
    for (int i = 0; i < CACHED; i++) {
        s[i] = make_stream();
        warm(a, s[i]);
        busy(s[i], 20 * MS);
        one_of_each(a, s[i]);
    }
    MUST_LE(MIB, stats_of(a).front_idle);
    block = take(a, 128 * MIB, C);
    MUST_LE(weir__model_now_ns(), 60 * MS + 1000 * MS);
    MUST_EQ(check_identities(a).retries,
            _i == KIND_REGIONS); /* OOM recovery's: each is too small */
    give(a, block, C);
    for (int i = 0; i < CACHED; i++)
        CU(driver->cuStreamDestroy(s[i]));
    end(a);
}
END_TEST

/* One stream has nothing to order, and after a trim it has not either. */
START_TEST(one_stream_never_records) {
    weir_allocator *a = make_plain(_i);
    void *pin;

    warm(a, A);
    pin = take(a, MIB, A);
    for (int i = 0; i < 3; i++) {
        uint64_t random = 9;
        void *block[40];

        OK(weir_trim(a, 0, NULL));
        count_from_here();
        for (int k = 0; k < 2000; k++) {
            if (k >= 40)
                give(a, block[k % 40], A);
            block[k % 40] = take(a, random_size(&random, 4 * MIB), A);
        }
        for (int k = 0; k < 40; k++)
            give(a, block[k], A);
        MUST_LE(calls(WEIR_ENTRY_cuEventRecord), _i == KIND_MAPPED ? 4 : 0); /* one a growth */
    }
    give(a, pin, A);
    end(a);
}
END_TEST

/* What the caches hold is not available then; what is refused is refused all the same, and nothing is lost. */
START_TEST(a_failure_where_the_device_cannot_be_waited_for) {
    weir_options options = plain(_i);
    weir_allocator *a;
    void *block, *none = NULL;
    weir_status status;

    options.limit = bytes_amount(128 * MIB);
    options.recovery_timeout_ms = 20;
    a = make(&options);
    block = take(a, 30 * MIB, A);
    warm(a, B);
    warm(a, A);
    refuse_waits();
    status = weir_alloc(a, 110 * MIB, A, &none);
    MUST(status == WEIR_E_LIMIT || status == WEIR_E_NO_MEMORY);
    weir__model_faults_clear();
    give(a, block, A);
    give(a, take(a, 40 * MIB, A), A);
    end(a);
}
END_TEST

/* Nothing is live: a trim leaves nothing, whatever there was. */
START_TEST(a_trim_leaves_nothing) {
    enum { COUNT = 2000 };
    weir_allocator *a = make_plain(_i);
    CUstream s[8];
    void *block[COUNT];
    uint64_t random = 5;

    for (int i = 0; i < 8; i++) {
        s[i] = make_stream();
        warm(a, s[i]);
    }
    for (int i = 0; i < COUNT; i++)
        block[i] = take(a, random_size(&random, 100000), s[i % 8]);
    for (int i = 0; i < COUNT; i++) {
        if (i % 500 == 250) { /* whatever it has is nobody's now */
            CU(driver->cuStreamDestroy(s[1]));
            s[1] = make_stream();
            give(a, take(a, 512, s[1]), s[1]);
        }
        if (i % 100 == 0)
            busy(s[i % 7], MS / 10);
        if (i % 9 == 0)
            OK(weir_use(a, block[i], s[(i + 3) % 8]));
        give(a, block[i], s[i * 5 % 8]);
    }
    expect_all_back(a);
    warm(a, s[0]);
    for (int i = 0; i < 8; i++)
        CU(driver->cuStreamDestroy(s[i]));
    end(a);
}
END_TEST

/* ---- threads and streams that come and go ---------------------------------------------------- */

enum { RELAY = 256, RELAYED = 40000 };
static struct relay {
    weir_allocator *a;
    CUstream from, to;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    void *block[RELAY];
    int count, done;
    uint64_t reserve;
} relay;

static void *free_relayed(void *unused) {
    (void)unused;
    CU(driver->cuCtxPushCurrent(primary));
    pthread_mutex_lock(&relay.lock);
    for (;;) {
        void *block;

        while (relay.count == 0 && !relay.done)
            pthread_cond_wait(&relay.moved, &relay.lock);
        if (relay.count == 0)
            break;
        block = relay.block[--relay.count];
        pthread_cond_signal(&relay.moved);
        pthread_mutex_unlock(&relay.lock);
        give(relay.a, block, relay.to);
        pthread_mutex_lock(&relay.lock);
    }
    pthread_mutex_unlock(&relay.lock);
    return NULL;
}

/* Allocated on one thread, freed on another, on the same stream or on another. */
START_TEST(freed_by_another_thread) {
    uint64_t random = 3;
    pthread_t thread;

    relay = (struct relay){.a = make_plain(_i / 2),
                           .from = A,
                           .to = _i % 2 ? B : A,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .moved = PTHREAD_COND_INITIALIZER};
    MUST(pthread_create(&thread, NULL, free_relayed, NULL) == 0);
    for (int i = 0; i < RELAYED; i++) {
        void *block = take(relay.a, random_size(&random, 100000), relay.from);

        pthread_mutex_lock(&relay.lock);
        while (relay.count == RELAY)
            pthread_cond_wait(&relay.moved, &relay.lock);
        relay.block[relay.count++] = block;
        pthread_cond_signal(&relay.moved);
        pthread_mutex_unlock(&relay.lock);
        if (i % 1000 == 0)
            weir__model_advance(MS);
    }
    pthread_mutex_lock(&relay.lock);
    relay.done = 1;
    pthread_cond_signal(&relay.moved);
    pthread_mutex_unlock(&relay.lock);
    MUST(pthread_join(thread, NULL) == 0);
    /* 256 and a few blocks of 100 kB at most lie between the two. */
    MUST_LE(check_identities(relay.a).reserve_peak, 256 * MIB);
    end(relay.a);
}
END_TEST

enum { BESIDE = 5000, BESIDE_BYTES = 16384 };
static void *beside[BESIDE];

static void free_beside(weir_allocator *a) {
    for (int i = 0; i < BESIDE; i++) {
        give(a, beside[i], A);
        if (i % 100 == 0)
            MUST_EQ(weir_free(a, beside[i], A), WEIR_E_NOT_OWNED);
    }
}

/* Many more than a remote-free queue holds, while the thread that has the stream's cache does nothing: each
 * is counted at once, none is lost, and none is handed out twice. */
START_TEST(freed_beside_an_idle_thread) {
    weir_allocator *a = make_plain(_i);
    uint64_t reserve = 0, frees;

    for (int i = 0; i < 1000; i++)
        give(a, take(a, BESIDE_BYTES, A), A);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BESIDE; i++) {
            beside[i] = take(a, BESIDE_BYTES, A);
            memset(beside[i], 0, 1);
        }
        for (int i = 0; i < BESIDE; i++) {
            unsigned char *first = beside[i];

            MUST_EQ(*first, 0);
            *first = 1;
        }
        if (round == 0)
            reserve = check_identities(a).reserve;
        MUST_EQ(check_identities(a).reserve, reserve);
        frees = check_identities(a).frees;
        elsewhere(a, free_beside);
        MUST_EQ(check_identities(a).frees, frees + BESIDE);
        MUST_EQ(check_identities(a).blocks, 0);
        MUST_EQ(check_identities(a).requested, 0);
        MUST_EQ(check_identities(a).in_use, 0);
    }
    end(a);
}
END_TEST

static weir_allocator *make_limited(int kind) {
    weir_options options = plain(kind);

    options.limit = bytes_amount(256 * MIB);
    return make(&options);
}

static void visit_briefly(weir_allocator *a) {
    for (int i = 0; i < 4; i++)
        one_of_each(a, PER_THREAD);
}

/* 10,000 threads with a default stream each.  What they leave in caches is found again at the limit. */
START_TEST(threads_come_and_go) {
    weir_allocator *a = make_limited(_i);
    weir_statistics first = {.size = 0}, last;

    for (int i = 0; i < 10000; i++) {
        elsewhere(a, visit_briefly);
        if (i == 1000)
            first = stats_of(a);
    }
    last = check_identities(a);
    MUST_LE(last.host_bytes, first.host_bytes + 4 * MIB);
    MUST_EQ(last.refusals, 0);
    end(a);
}
END_TEST

/* More than the default streams that keep a cache without being bound. */
enum { BOUND_THREADS = 300, UNBOUND_KEPT = 256 };

static pthread_barrier_t all_bound;

static void *bind_own(void *allocator) {
    weir_allocator *a = allocator;

    CU(driver->cuCtxPushCurrent(primary));
    OK(weir_bind(a, PER_THREAD));
    pthread_barrier_wait(&all_bound);
    give(a, take(a, 512, PER_THREAD), PER_THREAD);
    OK(weir_unbind(a, PER_THREAD));
    return NULL;
}

/* However many threads bind their default streams at once, each has a cache; what they leave when they
 * have unbound them serves later threads. */
START_TEST(many_default_streams_are_bound_at_once) {
    weir_allocator *a = make_limited(_i);
    pthread_t thread[BOUND_THREADS];
    weir_statistics s;

    for (int round = 0; round < 5; round++) {
        MUST(pthread_barrier_init(&all_bound, NULL, BOUND_THREADS) == 0);
        for (int i = 0; i < BOUND_THREADS; i++)
            MUST(pthread_create(&thread[i], NULL, bind_own, a) == 0);
        for (int i = 0; i < BOUND_THREADS; i++)
            MUST(pthread_join(thread[i], NULL) == 0);
        pthread_barrier_destroy(&all_bound);
        s = check_identities(a);
        MUST_LE(BOUND_THREADS, s.front_streams);
        MUST_LE(s.front_streams, BOUND_THREADS + UNBOUND_KEPT);
    }
    end(a);
}
END_TEST

/* 10,000 streams with so many pairs each: with few they leave nothing, with many a cache each. */
static void come_and_go(int kind, int pairs) {
    weir_allocator *a = make_limited(kind);
    weir_statistics first = {.size = 0}, last;
    CUstream alive[4] = {make_stream(), make_stream(), make_stream(), make_stream()};

    for (int i = 0; i < 10000; i++) {
        CUstream *s = &alive[i % 4];

        CU(driver->cuStreamDestroy(*s));
        *s = make_stream();
        for (int k = 0; k < pairs; k++)
            give(a, take(a, sizes[k % SIZES], *s), *s);
        busy(*s, 10000);
        if (i == 1000)
            first = stats_of(a);
    }
    last = check_identities(a);
    MUST_EQ(last.refusals, 0);
    if (pairs < 64)
        MUST_LE(last.reserve_peak, 64 * MIB + (kind == KIND_FIXED ? 192 * MIB : 0));
    MUST_LE(last.host_bytes, first.host_bytes + 4 * MIB);
    end(a);
}

START_TEST(streams_come_and_go) {
    come_and_go(_i / 2, _i % 2 ? 200 : 4);
}
END_TEST

/* ---- figures --------------------------------------------------------------------------------- */

/* What a stream without a cache frees of another's is missing where it is counted: 131,072 bytes less, and
 * as many again, hide what is live there. */
START_TEST(no_peak_is_below_the_water) {
    weir_allocator *a = make_plain(_i);
    void *block = take(a, 128181, A);

    CU(driver->cuStreamSynchronize(A));
    give(a, block, B);
    block = take(a, 130120, C);
    MUST_LE(130120, check_identities(a).requested_peak);
    give(a, block, C);
    end(a);
}
END_TEST

/* On one stream everything is exact, peaks too. */
START_TEST(figures_are_exact) {
    enum { MOST = 300 };
    weir_allocator *a = make_plain(_i);
    struct {
        void *block;
        size_t bytes;
    } held[MOST];
    uint64_t random = 11, requested = 0, peak, allocs, frees;
    int count = 0;

    warm(a, A);
    peak = stats_of(a).requested_peak;
    allocs = stats_of(a).allocs;
    frees = stats_of(a).frees;
    for (int i = 0; i < 20000; i++) {
        weir_statistics s;

        if (count < MOST && (count == 0 || next_random(&random) % 100 < 52)) {
            held[count].bytes = random_size(&random, 300000);
            held[count].block = take(a, held[count].bytes, A);
            requested += held[count++].bytes;
            allocs++;
        } else {
            int k = (int)(next_random(&random) % (uint64_t)count);

            give(a, held[k].block, A);
            requested -= held[k].bytes;
            held[k] = held[--count];
            frees++;
        }
        if (peak < requested)
            peak = requested;
        s = check_identities(a);
        MUST_EQ(s.requested, requested);
        MUST_EQ(s.requested_peak, peak);
        MUST_EQ(s.blocks, (uint64_t)count);
        MUST_EQ(s.allocs, allocs);
        MUST_EQ(s.frees, frees);
        MUST_LE(s.in_use, s.requested + s.requested / 8 + (uint64_t)count * 16 * KIB);
        MUST_EQ(s.front_streams, 1);
        MUST_EQ(s.deferred_frees, 0);
    }
    MUST_LE(10000, stats_of(a).front_hits);
    while (count > 0)
        give(a, held[--count].block, A);
    end(a);
}
END_TEST

/* What B has freed of A's, and not told of yet, is no part of C's peak. */
START_TEST(peaks_are_never_too_high) {
    weir_allocator *a = make_plain(_i);
    weir_statistics s;
    void *block;

    warm(a, A);
    warm(a, B);
    warm(a, C);
    block = take(a, 20 * MIB, A);
    for (int i = 0; i < 5000; i++) /* until A has told */
        give(a, take(a, 4096, A), A);
    give(a, block, B);
    block = take(a, 30 * MIB, C);
    for (int i = 0; i < 5000; i++)
        give(a, take(a, 4096, C), C);
    s = check_identities(a);
    MUST_EQ(s.requested, 30 * MIB);
    MUST_LE(s.requested_peak, 31 * MIB);
    MUST_LE(s.in_use_peak, 31 * MIB);
    give(a, block, C);
    end(a);
}
END_TEST

/* What several streams have at once is known to a 32nd, whether the driver is asked about them or not, and on memory
 * that was there before, too. */
START_TEST(a_peak_of_several_streams) {
    enum { COUNT = 60, BYTES = 4 * MIB };
    weir_allocator *a = make_plain(_i / 4);
    weir_stream streams[] = {A, B, C};
    void *block[COUNT];
    weir_statistics s;

    if (_i & 1)
        OK(weir_preallocate(a, COUNT * BYTES, NULL));
    for (int i = 0; i < 3 && _i & 2; i++)
        OK(weir_bind(a, streams[i]));
    for (int i = 0; i < COUNT; i++)
        block[i] = take(a, BYTES, streams[i % 3]);
    for (int i = 0; i < COUNT; i++)
        give(a, block[i], streams[i % 3]);
    s = check_identities(a);
    MUST_LE(COUNT * BYTES - COUNT * BYTES / 32 - BYTES - 16 * MIB, s.in_use_peak);
    MUST_LE(s.in_use_peak, COUNT * BYTES);
    MUST_LE(s.requested_peak, COUNT * BYTES);
    for (int i = 0; i < 3 && _i & 2; i++)
        OK(weir_unbind(a, streams[i]));
    end(a);
}
END_TEST

/* The same where one figure rises above its peak, and the other does not: 1 byte has 512 or more. */
START_TEST(a_peak_of_one_figure) {
    enum { COUNT = 40000 };
    weir_allocator *a = make_plain(_i);
    static void *block[COUNT];

    warm(a, A);
    warm(a, B);
    warm(a, C);
    for (int i = 0; i < COUNT; i++)
        block[i] = take(a, 1, A);
    MUST_LE(COUNT * 512, check_identities(a).in_use_peak);
    for (int i = 0; i < COUNT; i++)
        give(a, block[i], A);
    block[0] = take(a, 8 * MIB, A);
    for (int i = 0; i < 5000; i++) /* until A has told */
        pair(a, 4096, A);
    give(a, block[0], B);
    block[0] = take(a, 8 * MIB, C);
    for (int i = 0; i < 5000; i++)
        pair(a, 4096, C);
    MUST_LE(check_identities(a).requested_peak, 9 * MIB);
    give(a, block[0], C);
    end(a);
}
END_TEST

/* On one stream a peak is seen that nobody looked at; what went past the caches is no part of the next. */
START_TEST(peaks_that_nobody_looked_at) {
    weir_allocator *a = make_plain(_i);
    void *block;

    pair(a, 10 * MIB, A);
    MUST_EQ(check_identities(a).requested_peak, 10 * MIB);
    block = take(a, 20 * MIB, A);
    OK(weir_use(a, block, B));
    give(a, block, A);
    CU(driver->cuCtxSynchronize());
    block = take(a, 30 * MIB, A);
    MUST_EQ(check_identities(a).requested_peak, 30 * MIB);
    give(a, block, A);
    end(a);
}
END_TEST

/* B only frees: A is not alone for that either. */
START_TEST(a_peak_knows_of_frees_elsewhere) {
    weir_allocator *a = make_plain(_i);
    void *block = take(a, 20 * MIB, A);

    OK(weir_bind(a, B));
    order(B, A);
    give(a, block, B);
    pair(a, 512, A);
    block = take(a, 30 * MIB, A);
    MUST_LE(check_identities(a).requested_peak, 31 * MIB);
    give(a, block, A);
    OK(weir_unbind(a, B));
    end(a);
}
END_TEST

/* B has what it took in, and in sum nothing: A is not alone for that. */
START_TEST(a_peak_is_not_of_one_stream_of_two) {
    weir_allocator *a = make_plain(_i);
    void *first = take(a, 64 * KIB, A), *second;

    give(a, first, B);
    first = take(a, 20 * MIB, A);
    second = take(a, 57345, B); /* has 64 KiB */
    MUST_LE(check_identities(a).requested_peak, 20 * MIB + 57345);
    give(a, first, A);
    give(a, second, B);
    end(a);
}
END_TEST

/* ---- host memory ----------------------------------------------------------------------------- */

#ifdef CAN_REFUSE_HOST_MEMORY
enum chore {
    CHORE_FIRST,        /* the first request of a stream */
    CHORE_SLAB,         /* more small blocks than there are slots */
    CHORE_WHOLE,        /* more whole blocks than there are */
    CHORE_REMOTE_FREES, /* small blocks freed on another stream */
    CHORE_USED,         /* blocks with notes */
    CHORE_CAPTURED,     /* frees under capture */
    CHORE_NEW_STREAM,   /* a handle that means another stream */
    CHORE_TRIM,
    CHORE_BIND,
    CHORES
};

enum { ITEMS = 150 };
static struct {
    void *block[ITEMS];
    CUstream stream;
} chores;

/* 1 if the status is no surprise when host memory runs out. */
static int is_in_order(weir_status status) {
    return status == WEIR_OK || status == WEIR_E_HOST_MEMORY || status == WEIR_E_NO_MEMORY ||
           status == WEIR_E_DRIVER; /* the model's own bookkeeping is refused too */
}

static void prepare_chore(weir_allocator *a, enum chore chore) {
    memset(&chores, 0, sizeof chores);
    chores.stream = make_stream();
    if (chore == CHORE_FIRST)
        return;
    warm(a, A);
    if (chore == CHORE_REMOTE_FREES || chore == CHORE_USED || chore == CHORE_CAPTURED)
        for (int i = 0; i < ITEMS; i++)
            chores.block[i] = take(a, i % 10 ? 3000 : 100000, A);
    if (chore == CHORE_REMOTE_FREES)
        warm(a, B);
    if (chore == CHORE_USED)
        for (int i = 0; i < ITEMS; i++)
            OK(weir_use(a, chores.block[i], B));
    if (chore == CHORE_CAPTURED)
        begin_capture(A);
    if (chore == CHORE_NEW_STREAM || chore == CHORE_TRIM) {
        warm(a, chores.stream);
        for (int i = 0; i < 40; i++)
            chores.block[i] = take(a, 3000, A);
        for (int i = 0; i < 40; i++) { /* remote frees, too */
            give(a, chores.block[i], chores.stream);
            chores.block[i] = NULL;
        }
        leave_used(a, chores.stream, 5 * MS);
    }
    if (chore == CHORE_NEW_STREAM) {
        CU(driver->cuStreamDestroy(chores.stream));
        chores.stream = make_stream();
    }
}

static void take_some(weir_allocator *a, size_t bytes, CUstream stream) {
    for (int i = 0; i < ITEMS; i++)
        if (!chores.block[i])
            MUST(is_in_order(weir_alloc(a, bytes, stream, &chores.block[i])));
}

static void give_some(weir_allocator *a, CUstream stream) {
    for (int i = 0; i < ITEMS; i++) {
        weir_status status = weir_free(a, chores.block[i], stream);

        MUST(is_in_order(status));
        if (status == WEIR_OK)
            chores.block[i] = NULL;
    }
}

static void run_chore(weir_allocator *a, enum chore chore) {
    switch (chore) {
    case CHORE_FIRST:
        take_some(a, 3000, chores.stream);
        break;
    case CHORE_SLAB:
        take_some(a, 40000, A);
        break;
    case CHORE_WHOLE:
        take_some(a, 100000, A);
        break;
    case CHORE_REMOTE_FREES:
        give_some(a, B);
        break;
    case CHORE_USED:
    case CHORE_CAPTURED:
        give_some(a, A);
        break;
    case CHORE_NEW_STREAM:
        take_some(a, 3000, chores.stream);
        for (int i = 0; i < ITEMS; i++)
            MUST(!chores.block[i] || !is_forbidden(chores.block[i], 3000));
        break;
    case CHORE_TRIM:
        MUST(is_in_order(weir_trim(a, 0, NULL)));
        break;
    default:
        if (weir_bind(a, chores.stream) == WEIR_OK)
            OK(weir_unbind(a, chores.stream));
    }
}

/* The k-th request for host memory within the chore fails; 0: there are fewer. */
static int run_refused(int kind, enum chore chore, uint64_t k) {
    weir_allocator *a;

    start_device();
    forbidden.count = 0;
    a = make_plain(kind);
    prepare_chore(a, chore);
    was_refused = 0;
    refuse_in = k;
    run_chore(a, chore);
    refuse_in = 0;
    if (chore == CHORE_CAPTURED)
        end_capture(A, 0);
    check_identities(a);
    for (int i = 0; i < ITEMS; i++)
        OK(weir_free(a, chores.block[i], A));
    MUST_EQ(check_identities(a).blocks, 0);
    expect_all_back(a);
    end(a);
    return was_refused;
}

START_TEST(each_request_for_host_memory_fails_once) {
    int more = 1;

    for (uint64_t k = 1; k < 2000 && more; k++)
        more = run_refused(_i / CHORES, (enum chore)(_i % CHORES), k);
    MUST(!more);
}
END_TEST

/* Without caches, with them, and with the guard above either: where the host has no memory for a note of a graph's
 * block, the graph has no such block, and nobody frees what was never handed out.  One that is noted is freed outside,
 * after each launch, and noted once. */
START_TEST(a_graphs_block_that_cannot_be_noted) {
    enum { NOTES = 32, MANY = 1000, BYTES = 2 * MIB }; /* as many as there is room for at first */
    weir_options options = plain(_i / 4);
    void *block = NULL, *passing[NOTES];
    weir_statistics before;
    uint64_t requests = 0;
    weir_allocator *a;
    weir_status status;
    CUgraphExec exec;
    CUgraph graph;

    options.front = _i & 1 ? WEIR_SWITCH_ON : WEIR_SWITCH_OFF;
    options.harden = _i & 2 ? WEIR_HARDEN_POISON : WEIR_HARDEN_OFF;
    a = make(&options);
    begin_capture(A);
    for (int i = 0; i < 4; i++) /* the model's list of steps does not grow at the same request */
        busy(A, MS);
    before = stats_of(a);
    for (int i = 0; i < NOTES; i++) {
        refuse_in = MANY;
        passing[i] = take(a, BYTES, A);
        requests = MANY - refuse_in;
    }
    refuse_in = requests + 1; /* behind those of the model */
    status = weir_alloc(a, BYTES, A, &block);
    MUST_EQ(refuse_in, 0);
    EXPECT(WEIR_E_HOST_MEMORY, status);
    MUST(!block);
    MUST_EQ(stats_of(a).host_bytes, before.host_bytes + 2 * NOTES * sizeof(struct weir_map_slot));
    block = take(a, BYTES, A);
    MUST_EQ(stats_of(a).host_bytes, before.host_bytes + 4 * NOTES * sizeof(struct weir_map_slot));
    for (int i = 0; i < NOTES; i++)
        give(a, passing[i], A);
    MUST_EQ(check_identities(a).blocks, 1);
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        CU(driver->cuGraphLaunch(exec, A));
        MUST_EQ(memory_of_graphs(), BYTES);
        EXPECT(WEIR_OK, weir_free(a, block, i == 0 ? A : B));
        MUST_EQ(memory_of_graphs(), 0);
    }
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuDeviceGraphMemTrim(0));
    OK(weir_allocator_destroy(a));
    check_model();
    MUST_EQ(device_free(), 4 * GIB);
}
END_TEST

/* Each stream finds no host memory at first; one of them, for a larger table of streams. */
START_TEST(streams_without_a_place) {
    enum { STREAMS_MADE = 70 };
    weir_allocator *a = make_plain(_i);
    CUstream stream[STREAMS_MADE];
    int refusals = 0;

    for (int i = 0; i < STREAMS_MADE; i++) {
        void *block = NULL;

        stream[i] = make_stream();
        was_refused = 0;
        refuse_in = 1;
        MUST(is_in_order(weir_alloc(a, 512, stream[i], &block)));
        refuse_in = 0;
        refusals += was_refused;
        give(a, block, stream[i]);
        pair(a, 512, stream[i]);
    }
    MUST_EQ(refusals, STREAMS_MADE);
    for (int i = 0; i < STREAMS_MADE; i++)
        CU(driver->cuStreamDestroy(stream[i]));
    end(a);
}
END_TEST

/* Whole blocks without number, each first without any host memory, if it wants some: a block that has no record is not
 * handed out.  Above the direct engine there is no stock of records. */
START_TEST(whole_blocks_without_a_record) {
    enum { COUNT = 800 };
    weir_options options = plain(_i);
    static void *block[COUNT];
    int refusals = 0, failures = 0;
    weir_allocator *a;

    options.front = WEIR_SWITCH_ON;
    a = make(&options);
    if (_i != KIND_DIRECT)
        OK(weir_preallocate(a, 600 * MIB, NULL));
    pair(a, 512, A);
    refuse_for_good = 1;
    for (int i = 0; i < COUNT; i++) {
        weir_status status;

        was_refused = 0;
        refuse_in = 1;
        block[i] = NULL;
        status = weir_alloc(a, 600000, A, &block[i]);
        refuse_in = 0;
        MUST(is_in_order(status));
        MUST_EQ(status == WEIR_OK, block[i] != NULL);
        refusals += was_refused;
        failures += status != WEIR_OK;
        if (!block[i])
            block[i] = take(a, 600000, A);
    }
    refuse_for_good = 0;
    MUST_LE(1, _i == KIND_DIRECT ? failures : refusals);
    check_identities(a);
    for (int i = 0; i < COUNT; i++)
        give(a, block[i], A);
    end(a);
}
END_TEST
#endif

/* ---- the rule, under random work of several threads ------------------------------------------ */

enum { THREADS = 4, SHARED = 6, STREAMS = SHARED + THREADS, MOST = 100, MOST_FREED = 60000 };

/* A point on a stream: its place in the stream's order, and a time before which it is not over (as
 * other threads let time pass, it may be later). */
struct point {
    int stream;
    uint64_t life, sequence, end_ns;
};

struct freed {
    uintptr_t from, to;
    int count;
    struct point point[STREAMS]; /* the free and the uses: all must lie behind the next owner */
};

struct held {
    uintptr_t at;
    size_t bytes;
    int stream;
};

/* The streams behind SHARED are one thread's each, which ends and makes them again. */
static struct world {
    weir_allocator *a;
    pthread_mutex_t lock; /* guards what follows, and the submission of work */
    CUstream stream[STREAMS];
    uint64_t life[STREAMS], sequence[STREAMS], end_ns[STREAMS];
    uint64_t knows[STREAMS][STREAMS]; /* [s][t]: s is ordered behind t up to here */
    struct held held[THREADS][MOST];
    int count[THREADS];
    struct freed freed[MOST_FREED];
    int freed_count;
    uint64_t seed;
    int steps;
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct worker {
    int number;
    uint64_t random;
};

static uint64_t dice(struct worker *w, uint64_t sides) {
    return next_random(&w->random) % sides;
}

static int a_stream(struct worker *w) {
    int s = (int)dice(w, SHARED + 1);

    return s < SHARED ? s : SHARED + w->number;
}

static void work(struct worker *w, int s) {
    uint64_t ns = dice(w, 20) == 0 ? 3 * MS : dice(w, 200000), now = weir__model_now_ns();

    busy(world.stream[s], ns);
    world.sequence[s]++;
    world.end_ns[s] = (world.end_ns[s] > now ? world.end_ns[s] : now) + ns;
}

/* s waits for all of t so far. */
static void follow(int s, int t) {
    if (s == t)
        return;
    order(world.stream[s], world.stream[t]);
    world.knows[t][t] = world.sequence[t];
    for (int i = 0; i < STREAMS; i++)
        if (world.knows[s][i] < world.knows[t][i])
            world.knows[s][i] = world.knows[t][i];
    if (world.end_ns[s] < world.end_ns[t])
        world.end_ns[s] = world.end_ns[t];
    world.sequence[s]++;
}

static int is_behind(int s, const struct point *p, uint64_t now) {
    return (p->stream == s && p->life == world.life[s]) ||
           world.knows[s][p->stream] >= p->sequence || p->end_ns <= now;
}

static void expect_nobody_there(uintptr_t from, uintptr_t to, int s) {
    uint64_t now = weir__model_now_ns();

    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < world.count[t]; i++)
            if (from < world.held[t][i].at + world.held[t][i].bytes && world.held[t][i].at < to)
                ck_abort_msg("seed %llu: a live block is handed out again",
                             (unsigned long long)world.seed);
    for (int i = 0; i < world.freed_count; i++) {
        struct freed *f = &world.freed[i];
        uint64_t last = 0;

        for (int k = 0; k < f->count; k++) {
            if (from < f->to && f->from < to && !is_behind(s, &f->point[k], now))
                ck_abort_msg("seed %llu: stream %d gets memory that stream %d still uses",
                             (unsigned long long)world.seed, s, f->point[k].stream);
            if (last < f->point[k].end_ns)
                last = f->point[k].end_ns;
        }
        if (last <= now)
            *f = world.freed[--world.freed_count], i--;
    }
}

/* The pattern of a block, on its edges. */
enum { EDGE = 256 };

static void fill(const struct held *h) {
    size_t edge = h->bytes < EDGE ? h->bytes : EDGE;

    CU(driver->cuMemsetD8Async(h->at, (unsigned char)(h->at >> 9), edge, world.stream[h->stream]));
    CU(driver->cuMemsetD8Async(h->at + h->bytes - edge, (unsigned char)(h->at >> 9), edge,
                               world.stream[h->stream]));
}

static void expect_filled(const struct held *h) {
    size_t edge = h->bytes < EDGE ? h->bytes : EDGE;
    unsigned char copy[2 * EDGE];

    CU(driver->cuMemcpyDtoHAsync(copy, h->at, edge, world.stream[h->stream]));
    CU(driver->cuMemcpyDtoHAsync(copy + edge, h->at + h->bytes - edge, edge,
                                 world.stream[h->stream]));
    for (size_t i = 0; i < 2 * edge; i++)
        if (copy[i] != (unsigned char)(h->at >> 9))
            ck_abort_msg("seed %llu: a block was written to by another",
                         (unsigned long long)world.seed);
}

static void take_random(struct worker *w) {
    struct held h = {.bytes = random_size(&w->random, 4 * MIB), .stream = a_stream(w)};
    void *block;

    if (weir_alloc(world.a, h.bytes, world.stream[h.stream], &block) != WEIR_OK)
        return; /* a limit, and others busy */
    h.at = (uintptr_t)block;
    pthread_mutex_lock(&world.lock);
    expect_nobody_there(h.at, h.at + h.bytes, h.stream);
    world.held[w->number][world.count[w->number]++] = h;
    fill(&h);
    if (dice(w, 2))
        work(w, h.stream);
    pthread_mutex_unlock(&world.lock);
}

static void give_one(struct worker *w, int which) {
    struct held *mine = world.held[w->number], h;
    int used[STREAMS] = {0}, on;
    struct freed *f;

    pthread_mutex_lock(&world.lock);
    h = mine[which];
    expect_filled(&h);
    on = h.stream;
    for (uint64_t uses = dice(w, 8); uses > 5; uses--) {
        int t = (int)dice(w, SHARED);

        follow(t, h.stream);
        OK(weir_use(world.a, (void *)h.at, world.stream[t]));
        used[t] = 1;
        work(w, t);
    }
    if (dice(w, 5) == 0) {
        on = a_stream(w);
        follow(on, h.stream);
    }
    if (dice(w, 2))
        work(w, on);
    world.sequence[on]++;
    used[on] = 1;
    MUST(world.freed_count < MOST_FREED);
    f = &world.freed[world.freed_count++];
    *f = (struct freed){.from = h.at, .to = h.at + h.bytes};
    for (int t = 0; t < STREAMS; t++)
        if (used[t])
            f->point[f->count++] =
                (struct point){t, world.life[t], world.sequence[t], world.end_ns[t]};
    mine[which] = mine[--world.count[w->number]];
    pthread_mutex_unlock(&world.lock);
    give(world.a, (void *)h.at, world.stream[on]);
}

/* The thread's own stream ends, with its work still running, and another begins. */
static void renew_stream(struct worker *w) {
    int s = SHARED + w->number;

    for (int i = world.count[w->number]; i-- > 0;)
        if (world.held[w->number][i].stream == s)
            give_one(w, i);
    pthread_mutex_lock(&world.lock);
    CU(driver->cuStreamDestroy(world.stream[s]));
    world.stream[s] = make_stream();
    world.life[s]++;
    world.sequence[s]++;
    world.end_ns[s] = 0;
    memset(world.knows[s], 0, sizeof world.knows[s]);
    pthread_mutex_unlock(&world.lock);
}

static void *live(void *arg) {
    struct worker *w = arg;

    CU(driver->cuCtxPushCurrent(primary));
    for (int i = 0; i < world.steps; i++) {
        uint64_t what = dice(w, 1000);
        int count = world.count[w->number];

        if (count == 0 || (count < MOST && what < 520))
            take_random(w);
        else if (what < 980)
            give_one(w, (int)dice(w, (uint64_t)count));
        else if (what < 986)
            weir__model_advance(dice(w, 5 * MS));
        else if (what < 990)
            renew_stream(w);
        else if (what < 992)
            OK(weir_trim(world.a, dice(w, 64) * MIB, NULL));
        else if (what < 996)
            CU(driver->cuStreamSynchronize(world.stream[dice(w, SHARED)]));
    }
    while (world.count[w->number] > 0)
        give_one(w, 0);
    return NULL;
}

static double number_from(const char *variable) {
    const char *text = getenv(variable);

    return text ? strtod(text, NULL) : 1;
}

static const struct {
    int kind;
    size_t limit;
    int caches_off, bound;
} worlds[] = {
    {KIND_POOL, 0, 0, 0},    {KIND_POOL, 640 * MIB, 0, 0}, {KIND_FIXED, 256 * MIB, 0, 0},
    {KIND_REGIONS, 0, 0, 0}, {KIND_POOL, 0, 0, 1},         {KIND_REGIONS, 0, 1, 0},
};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

START_TEST(no_two_owners_without_an_order) {
    weir_options options = options_of(worlds[_i].kind, "model", worlds[_i].limit);
    struct worker worker[THREADS];
    pthread_t thread[THREADS];

    if (worlds[_i].limit)
        options.limit = bytes_amount(worlds[_i].limit);
    if (worlds[_i].caches_off)
        options.front = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = 5;
    world.seed = (uint64_t)number_from("WEIR_TEST_SEED") + (uint64_t)_i;
    world.steps = (int)(5000 * number_from("WEIR_TEST_SOAK"));
    world.a = make(&options);
    for (int s = 0; s < STREAMS; s++)
        world.stream[s] = make_stream();
    for (int s = 0; worlds[_i].bound && s < SHARED; s++)
        OK(weir_bind(world.a, world.stream[s]));
    for (int t = 0; t < THREADS; t++) {
        worker[t] = (struct worker){t, (world.seed * THREADS + (uint64_t)t + 1) *
                                           UINT64_C(0x9e3779b97f4a7c15)};
        MUST(pthread_create(&thread[t], NULL, live, &worker[t]) == 0);
    }
    for (int t = 0; t < THREADS; t++)
        MUST(pthread_join(thread[t], NULL) == 0);
    for (int s = 0; worlds[_i].bound && s < SHARED; s++)
        OK(weir_unbind(world.a, world.stream[s]));
    for (int s = 0; s < STREAMS; s++)
        CU(driver->cuStreamDestroy(world.stream[s]));
    end(world.a);
}
END_TEST

/* ---- beside live blocks ---------------------------------------------------------------------- */

/* A slab is live as long as one of its slots is, a whole block while its caller has it, not while it is kept. */
struct pieces {
    struct weir_extent piece[8];
    size_t count;
};

static void note_piece(void *context, uint64_t base, size_t bytes) {
    struct pieces *live = context;

    MUST(live->count < 8);
    live->piece[live->count++] = (struct weir_extent){.base = base, .bytes = bytes};
}

/* So many pieces are live, and of these blocks each lies in one. */
static void expect_live(weir_allocator *a, size_t pieces, void *const *block, int blocks) {
    struct pieces live = {.count = 0};

    weir__caches_live(a->caches, note_piece, &live);
    MUST_EQ(live.count, pieces);
    for (int i = 0; i < blocks; i++) {
        size_t at = 0;

        while (at < live.count && (uintptr_t)block[i] - live.piece[at].base >= live.piece[at].bytes)
            at++;
        MUST(at < live.count);
    }
}

START_TEST(pieces_are_live_with_their_blocks) {
    weir_allocator *a = make_plain(_i);
    void *block[3];

    expect_live(a, 0, NULL, 0);
    warm(a, A);
    expect_live(a, 0, NULL, 0);
    block[0] = take(a, MIB, A);
    block[1] = take(a, 3000, A);
    block[2] = take(a, 3000, A); /* of the same slab */
    expect_live(a, 2, block, 3);
    give(a, block[1], A);
    expect_live(a, 2, block, 1);
    expect_live(a, 2, block + 2, 1);
    give(a, block[0], A);
    expect_live(a, 1, block + 2, 1);
    give(a, block[2], A);
    expect_live(a, 0, NULL, 0);
    end(a);
}
END_TEST

/* What an engine tells of its reserved memory, here. */
struct teller {
    struct weir_engine e;
    const struct pieces *wholes;
};

static int tell_wholes(struct weir_engine *e, const struct weir_visit *visit) {
    const struct pieces *wholes = ((struct teller *)e)->wholes;

    return weir__engine_show(visit, wholes->piece, wholes->count);
}

/* There are more than there were, and than there is room for: all of 1 MiB, from the first on. */
static int tell_more(struct weir_engine *e, const struct weir_visit *visit) {
    const struct pieces *wholes = ((struct teller *)e)->wholes;
    static int asked;
    int count = asked++ == 0 ? 1 : 100;

    for (int i = 0; i < count; i++)
        (void)weir__engine_show(
            visit,
            &(struct weir_extent){.base = wholes->piece[0].base + (uint64_t)i * MIB, .bytes = MIB},
            1);
    return count;
}

static int tell_nothing(struct weir_engine *e, const struct weir_visit *visit) {
    (void)e, (void)visit;
    return -1;
}

static uint64_t held_beside(struct weir_caches *front,
                            int (*tell)(struct weir_engine *, const struct weir_visit *),
                            const struct pieces *wholes, uint64_t most) {
    const struct weir_engine_ops ops = {.visit = tell};
    struct teller teller = {.e = {.ops = &ops}, .wholes = wholes};

    return weir__held(&teller.e, front, NULL, most);
}

static struct weir_extent piece_at(uint64_t base, size_t bytes) {
    return (struct weir_extent){.base = base, .bytes = bytes};
}

static uint64_t held_of(weir_allocator *a, const struct weir_extent *piece, size_t count) {
    struct pieces wholes = {.count = count};

    memcpy(wholes.piece, piece, count * sizeof *piece);
    return held_beside(a->caches, tell_wholes, &wholes, UINT64_MAX);
}

START_TEST(pieces_are_held_by_the_blocks_in_them) {
    weir_allocator *a = make_plain(KIND_POOL);
    void *block = take(a, 4 * MIB, A), *other;
    const uint64_t from = (uintptr_t)block, to = from + 4 * MIB;
    const struct weir_extent piece[] = {
        piece_at(from - 3 * MIB, 2 * MIB),  piece_at(from - MIB, MIB), /* ends where it begins */
        piece_at(from, 64 * KIB),           piece_at(from + 64 * KIB, MIB),
        piece_at(to - 64 * KIB, 512 * KIB), piece_at(to + 448 * KIB, MIB),
    };
    const struct weir_extent around[] = {piece_at(from - MIB, MIB), piece_at(to, MIB)};
    const struct weir_extent across = piece_at(from - 64 * KIB, 8 * MIB);
    const struct weir_extent all = piece_at(4096, SIZE_MAX / 2);
    struct pieces first = {.piece = {piece_at(from - 2 * MIB, MIB)}, .count = 1};
    uint64_t held;

    MUST_EQ(held_of(a, piece, 6), 64 * KIB + MIB + 512 * KIB);
    MUST_EQ(held_of(a, piece, 0), 0);
    MUST_EQ(held_beside(a->caches, tell_nothing, NULL, UINT64_MAX), 0);
    MUST_EQ(held_of(a, around, 2), 0);
    MUST_EQ(held_of(a, around, 1), 0);
    MUST_EQ(held_of(a, around + 1, 1), 0);
    MUST_EQ(held_of(a, &across, 1), 8 * MIB);
    held = held_beside(a->caches, tell_more, &first, UINT64_MAX);
    MUST_EQ(held, 4 * MIB);
    other = take(a, 4 * MIB, A);
    MUST_EQ(held_of(a, &all, 1), all.bytes); /* once */
    give(a, block, A);
    MUST_EQ(held_of(a, &all, 1), all.bytes);
    give(a, other, A);
    MUST_EQ(held_of(a, &all, 1), 0);
    first = (struct pieces){.piece = {piece_at(MIB, MIB), piece_at(4 * MIB, 2 * MIB)}, .count = 2};
    MUST_EQ(held_beside(a->caches, tell_wholes, &first, 2 * MIB), 0);
    MUST_EQ(held_beside(a->caches, tell_wholes, &first, 2 * MIB - 1),
            2 * MIB); /* too large to go */
    MUST_EQ(held_beside(NULL, tell_wholes, &first, MIB - 1), 3 * MIB);
#ifdef CAN_REFUSE_HOST_MEMORY
    block = take(a, 4 * MIB, A);
    refuse_in = 1;
    held = held_of(a, &all, 1);
    MUST_EQ(refuse_in, 0);
    MUST_EQ(held, 0);
    give(a, block, A);
#endif
    end(a);
}
END_TEST

/* What stays once all that is idle has gone. */
START_TEST(what_is_held_stays) {
    weir_allocator *a = make_plain(_i);
    void *block[8];
    uint64_t held;

    warm(a, A);
    for (int i = 0; i < 8; i++)
        block[i] = take(a, i % 2 ? 20 * MIB : 3000, A);
    for (int i = 0; i < 6; i++)
        give(a, block[i], A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    held = weir__held(a->reserve.engine, a->caches, NULL, UINT64_MAX);
    MUST_EQ(held, stats_of(a).reserve);
    MUST_EQ(weir__held(a->reserve.engine, NULL, NULL, UINT64_MAX),
            0); /* nobody knows of the blocks */
    give(a, block[6], A);
    give(a, block[7], A);
    end(a);
}
END_TEST

/* A large block that the reserved memory must grow for: the driver is asked once who the stream is, and an engine that looks
 * whether the stream is at work, before it cuts what is idle, looks once.  A mapped arena asks for a capture again before
 * that: the program may have vouched for the stream. */
START_TEST(growth_is_looked_for_once) {
    weir_allocator *a = make_plain(_i);
    uint64_t ids, captures, queries;
    void *block[4];

    if (_i == KIND_FIXED) { /* it does not grow */
        end(a);
        return;
    }
    warm(a, A);
    for (int i = 0; i < 3; i++)
        block[i] = take(a, (size_t)(100 + i) * MIB, A);
    ids = weir__model_calls(WEIR_ENTRY_cuStreamGetId);
    captures = weir__model_calls(WEIR_ENTRY_cuStreamIsCapturing);
    queries = weir__model_calls(WEIR_ENTRY_cuStreamQuery);
    block[3] = take(a, 300 * MIB, A);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamGetId), ids + 1);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamIsCapturing), captures + 1 + (_i == KIND_MAPPED));
    MUST_LE(weir__model_calls(WEIR_ENTRY_cuStreamQuery), queries + 1);
    for (int i = 0; i < 4; i++)
        give(a, block[i], A);
    end(a);
}
END_TEST

/* ---- the suite ------------------------------------------------------------------------------- */

#define LOOP(tests, test, times) tcase_add_loop_test(tests, test, 0, times)

static TCase *add_case(Suite *suite, const char *name) {
    return suite_add_case(suite, name, 300, start_device, NULL);
}

static void add_streams(TCase *tests) {
    LOOP(tests, what_a_hit_asks, ENGINES * STREAM_KINDS);
    LOOP(tests, what_a_miss_asks, ENGINES);
    tcase_add_loop_test(tests, what_is_asked_after_growth, KIND_POOL, KIND_POOL + 1);
    tcase_add_loop_test(tests, what_is_asked_after_growth, KIND_REGIONS, KIND_REGIONS + 1);
    LOOP(tests, what_a_free_asks_that_is_not_kept, ENGINES);
    LOOP(tests, steady_state_makes_no_memory_call, ENGINES);
    LOOP(tests, a_cache_is_earned, ENGINES);
    LOOP(tests, half_a_mebibyte_is_small, ENGINES * 2);
    LOOP(tests, bindings_are_counted, ENGINES);
    LOOP(tests, a_handle_means_another_stream, ENGINES * 4);
    LOOP(tests, a_handle_means_another_stream_that_is_bound, ENGINES);
    LOOP(tests, what_cannot_be_bound, ENGINES);
    LOOP(tests, a_stream_that_only_frees, ENGINES);
    LOOP(tests, per_thread_streams_are_apart, ENGINES);
    LOOP(tests, the_legacy_stream_has_two_names, ENGINES);
    LOOP(tests, a_remote_free_serves_where_it_was_freed, ENGINES);
    LOOP(tests, a_trim_waits_for_what_is_away, ENGINES * 2);
    LOOP(tests, remote_frees_find_their_cache, ENGINES);
    tcase_add_loop_test(tests, what_is_stranded_is_waited_for_if_it_is_much, 0, 3);
    tcase_add_loop_test(tests, what_is_stranded_is_waited_for_if_it_is_much, 6, 9);
    tcase_add_loop_test(tests, what_is_stranded_stays_if_it_cannot_be_waited_for, KIND_POOL,
                        KIND_POOL + 1);
    LOOP(tests, freed_twice_on_a_new_stream, ENGINES);
    LOOP(tests, noted_uses_hold_small_and_whole_blocks, ENGINES);
    LOOP(tests, few_are_asked_about_at_a_time, ENGINES);
    LOOP(tests, a_use_of_a_destroyed_stream, ENGINES);
}

static void add_capture(TCase *tests) {
    LOOP(tests, a_wrong_free_beside_a_capture_harms_it_not, ENGINES);
    LOOP(tests, a_wait_on_a_full_device_harms_no_capture, ENGINES);
    LOOP(tests, a_graphs_block_where_there_was_another, 2);
    LOOP(tests, frees_under_capture, ENGINES * 4);
    LOOP(tests, frees_under_capture_of_a_default_stream, ENGINES);
    LOOP(tests, slots_of_others_are_freed_under_capture, ENGINES);
    LOOP(tests, used_blocks_wait_for_the_end_of_a_capture, ENGINES);
    LOOP(tests, a_graphs_block_is_freed_outside, KIND_DIRECT);
    LOOP(tests, a_bound_stream_is_captured, KIND_DIRECT);
}

static void add_amounts(TCase *tests) {
    LOOP(tests, the_cap_is_kept, ENGINES);
    tcase_add_test(tests, a_second_stream_has_what_the_first_left);
    LOOP(tests, what_the_first_left_is_waited_for_if_it_is_much, 4);
    LOOP(tests, whole_blocks_are_kept_in_calm, ENGINES);
    LOOP(tests, whole_blocks_pass_after_growth, ENGINES * 3);
    LOOP(tests, the_cap_may_be_reached, ENGINES);
    LOOP(tests, idle_blocks_go_at_the_moment, ENGINES);
    LOOP(tests, what_was_in_use_counts_for_two_spans, ENGINES);
    LOOP(tests, a_thread_that_is_late_ends_no_span, ENGINES);
    LOOP(tests, idle_blocks_go_in_time, ENGINES);
    LOOP(tests, idle_blocks_stay_for_ever, ENGINES);
    LOOP(tests, demand_reaches_other_streams, ENGINES * 2);
    LOOP(tests, own_cache_before_growth, ENGINES);
    LOOP(tests, own_cache_before_others, ENGINES);
    LOOP(tests, a_failure_is_asked_for_once, ENGINES);
    LOOP(tests, an_end_leaves_the_context_as_it_was, ENGINES);
    LOOP(tests, a_thread_without_a_context_makes_no_failing_calls, KIND_DIRECT + 1);
    tcase_add_test(tests, the_last_half_mebibyte_is_told);
    tcase_add_test(tests, tables_are_made_as_far_as_they_are_wanted);
    LOOP(tests, at_the_limit_other_caches_give, ENGINES);
    tcase_add_test(tests, a_small_request_needs_no_whole_slab);
    LOOP(tests, one_stream_never_records, ENGINES);
    LOOP(tests, a_failure_where_the_device_cannot_be_waited_for, ENGINES);
    LOOP(tests, a_trim_leaves_nothing, ENGINES);
    LOOP(tests, figures_are_exact, ENGINES);
    LOOP(tests, no_peak_is_below_the_water, ENGINES);
    LOOP(tests, peaks_are_never_too_high, ENGINES);
    LOOP(tests, a_peak_of_one_figure, ENGINES);
    LOOP(tests, a_peak_of_several_streams, 4 * ENGINES);
    LOOP(tests, peaks_that_nobody_looked_at, ENGINES);
    LOOP(tests, a_peak_knows_of_frees_elsewhere, ENGINES);
    LOOP(tests, a_peak_is_not_of_one_stream_of_two, ENGINES);
}

static void add_crowds(TCase *tests) {
    LOOP(tests, freed_by_another_thread, ENGINES * 2);
    LOOP(tests, freed_beside_an_idle_thread, ENGINES);
    LOOP(tests, threads_come_and_go, ENGINES);
    LOOP(tests, many_default_streams_are_bound_at_once, ENGINES);
    LOOP(tests, silent_default_streams_make_room, ENGINES);
    LOOP(tests, neither_misses_nor_letters_are_silence, 2 * ENGINES);
    LOOP(tests, young_default_streams_make_room, ENGINES);
    LOOP(tests, a_call_under_way_is_not_silence, 2);
    LOOP(tests, streams_come_and_go, ENGINES * 2);
}

static void add_held(TCase *tests) {
    LOOP(tests, pieces_are_live_with_their_blocks, ENGINES);
    tcase_add_test(tests, pieces_are_held_by_the_blocks_in_them);
    LOOP(tests, what_is_held_stays, ENGINES);
    LOOP(tests, growth_is_looked_for_once, ENGINES);
}

#ifdef CAN_REFUSE_HOST_MEMORY
static void add_host_memory(TCase *tests) {
    LOOP(tests, each_request_for_host_memory_fails_once, ENGINES * CHORES);
    /* A pool without caches and guard notes nothing. */
    tcase_add_loop_test(tests, a_graphs_block_that_cannot_be_noted, 1, 4 * KIND_DIRECT);
    LOOP(tests, streams_without_a_place, ENGINES);
    tcase_add_loop_test(tests, whole_blocks_without_a_record, KIND_POOL, KIND_POOL + 1);
    tcase_add_loop_test(tests, whole_blocks_without_a_record, KIND_REGIONS, KIND_REGIONS + 1);
    tcase_add_loop_test(tests, whole_blocks_without_a_record, KIND_DIRECT, KIND_DIRECT + 1);
}
#endif

int main(void) {
    Suite *suite = suite_create("front");

    add_streams(add_case(suite, "streams"));
    add_capture(add_case(suite, "capture"));
    add_amounts(add_case(suite, "amounts"));
    add_crowds(add_case(suite, "crowds"));
    add_held(add_case(suite, "held"));
#ifdef CAN_REFUSE_HOST_MEMORY
    add_host_memory(add_case(suite, "host memory"));
#endif
    LOOP(add_case(suite, "soak"), no_two_owners_without_an_order, WORLDS);
    return run_suite(suite, CK_FORK_GETENV);
}
