/* SPDX-License-Identifier: MIT */
/* conformance_work.c: makes random calls with data, and checks events and latencies. */
#include "conformance_allocator.h"

/* ---- random work with data ------------------------------------------------------------------- */

enum { MOST_BLOCKS = 200, STREAMS = 4 };

struct held {
    unsigned char *block;
    size_t bytes;
    CUstream stream;
    unsigned char pattern;
};

/* The state of one thread. */
struct work {
    weir_allocator *a;
    struct held held[MOST_BLOCKS];
    int count;
    CUstream stream[STREAMS];
    uint64_t random;
    size_t largest;
};

/* All live blocks of all threads, for the check that none overlap. */
static struct {
    pthread_mutex_t lock;
    struct held *all[8];
    int *counts[8];
    int parts;
} everybody = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void expect_apart(const struct held *h) {
    for (int p = 0; p < everybody.parts; p++)
        for (int i = 0; i < *everybody.counts[p]; i++) {
            const struct held *o = &everybody.all[p][i];

            if (h->block + h->bytes > o->block && o->block + o->bytes > h->block)
                ck_abort_msg("%p+%zu lies over the live block %p+%zu", (void *)h->block, h->bytes,
                             (void *)o->block, o->bytes);
        }
}

static void alloc_patterned(struct work *w) {
    struct held h = {.stream = w->stream[next_random(&w->random) % STREAMS],
                     .pattern = (unsigned char)(1 + next_random(&w->random) % 254)};
    void *block = NULL;

    h.bytes = random_size(&w->random, w->largest);
    OK(weir_alloc(w->a, h.bytes, h.stream, &block));
    h.block = block;
    MUST_EQ((uintptr_t)block % 256, 0);
    pthread_mutex_lock(&everybody.lock);
    expect_apart(&h);
    w->held[w->count++] = h;
    pthread_mutex_unlock(&everybody.lock);
    fill_with_pattern(h.block, h.bytes, h.pattern, h.stream);
}

/* Uses the block late, on its own stream or on others, and frees it while those uses may run. */
static void verify_and_free(struct work *w) {
    struct held h;
    int which = (int)(next_random(&w->random) % (uint64_t)w->count);
    uint64_t dice = next_random(&w->random);
    CUstream on;

    h = w->held[which];
    if (!on_cuda || dice % 4 == 0)
        expect_pattern(h.block, h.bytes, h.pattern, h.stream);
    if ((dice >> 8) % 8 == 0)
        submit_short_work(h.stream);
    fill_with_pattern(h.block, h.bytes, 0xff, h.stream);
    on = h.stream;
    for (int uses = (int)((dice >> 16) % 8); uses > 4; uses--) {
        CUstream t = w->stream[(dice >> (16 + 4 * uses)) % STREAMS];

        order_streams(t, h.stream);
        OK(weir_use(w->a, h.block, t));
        if ((dice >> 12) % 4 == 0)
            submit_short_work(t);
        fill_with_pattern(h.block, h.bytes, 0xff, t);
    }
    if ((dice >> 40) % 8 == 0) {
        on = w->stream[(dice >> 44) % STREAMS];
        order_streams(on, h.stream);
        fill_with_pattern(h.block, h.bytes, 0xff, on);
    }
    pthread_mutex_lock(&everybody.lock);
    w->held[which] = w->held[--w->count];
    pthread_mutex_unlock(&everybody.lock);
    OK(weir_free(w->a, h.block, on));
}

static void do_random_step(struct work *w) {
    uint64_t dice = next_random(&w->random) % 1000;

    if (w->count == 0 || (w->count < MOST_BLOCKS && dice < 500))
        alloc_patterned(w);
    else if (dice < 990)
        verify_and_free(w);
    else if (dice < 995)
        CU(driver->cuStreamSynchronize(w->stream[dice % STREAMS]));
    else if (dice < 998)
        OK(weir_trim(w->a, (size_t)next_random(&w->random) % (64 * MIB), NULL));
    else
        CU(driver->cuCtxSynchronize());
}

static void start_work(struct work *w, weir_allocator *a, uint64_t seed) {
    memset(w, 0, sizeof *w);
    w->a = a;
    w->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    w->largest = MIB;
    for (int i = 0; i < STREAMS; i++)
        w->stream[i] = make_stream();
    pthread_mutex_lock(&everybody.lock);
    everybody.all[everybody.parts] = w->held;
    everybody.counts[everybody.parts++] = &w->count;
    pthread_mutex_unlock(&everybody.lock);
}

static void end_work(struct work *w) {
    while (w->count > 0)
        verify_and_free(w);
    for (int i = 0; i < STREAMS; i++)
        drop_stream(w->stream[i]);
}

/* Checks that the sums of the events equal the statistics. */
static void check_all_events(weir_allocator *a) {
    enum { ROOM = 4096 };
    weir_event *events = calloc(ROOM, sizeof *events);
    weir_statistics stats = stats_of(a);
    uint64_t growths = 0, grown = 0, trims = 0, trimmed = 0, time_ns = 0;
    size_t count = 0;

    ck_assert_ptr_nonnull(events);
    OK(weir_events(a, 0, events, sizeof *events, ROOM, &count));
    ck_assert_uint_lt(count, ROOM);
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_eq(events[i].sequence, i + 1);
        ck_assert_uint_ge(events[i].time_ns, time_ns);
        time_ns = events[i].time_ns;
        ck_assert_uint_gt(events[i].got, 0);
        ck_assert_str_ne(weir_event_cause_word(events[i].cause), "unknown");
        ck_assert_int_eq(events[i].shrink, events[i].cause == WEIR_EVENT_TRIM ||
                                               events[i].cause == WEIR_EVENT_RECOVERY);
        if (!events[i].shrink) {
            growths++;
            grown += events[i].got;
        } else if (events[i].cause == WEIR_EVENT_TRIM) {
            trims++;
            trimmed += events[i].got;
        }
    }
    ck_assert_uint_eq(growths, stats.growths);
    ck_assert_uint_eq(grown, stats.growth_bytes);
    ck_assert_uint_eq(trims, stats.trims);
    ck_assert_uint_eq(trimmed, stats.trim_bytes);
    free(events);
}

CASE("work", 120, open_device_with_caches, close_tested_device);
CASE_TOO("work alone", 120, open_device_without_caches, close_tested_device);

TEST_EACH(KIND_COUNT, random_work_on_several_streams) {
    size_t before = device_free();
    weir_options options = tested_options(_i, 256 * MIB);
    int steps = !on_cuda ? 20000 : _i == KIND_DIRECT ? 1500 : 6000;
    struct work *w = malloc(sizeof *w);
    weir_allocator *a;

    options.latency = WEIR_SWITCH_ON;
    OK(weir_allocator_create(&options, &a));
    everybody.parts = 0;
    start_work(w, a, 1);
    for (int i = 0; i < steps; i++) {
        do_random_step(w);
        if (!on_cuda || i % 16 == 0) {
            weir_statistics stats = check_identities(a);
            uint64_t asked = 0;

            for (int k = 0; k < w->count; k++)
                asked += w->held[k].bytes;
            MUST_EQ(stats.requested, asked);
            MUST_EQ(stats.blocks, (uint64_t)w->count);
        }
    }
    end_work(w);
    free(w);
    check_all_events(a);
    MUST_EQ(check_identities(a).in_use, 0);
    OK(weir_allocator_destroy(a));
    expect_free_again(before);
}

static void *work_alone(void *arg) {
    struct work *w = arg;
    int steps = !on_cuda ? 3000 : 1500;

    CU(driver->cuCtxPushCurrent(primary));
    for (int i = 0; i < steps; i++)
        do_random_step(w);
    while (w->count > 0)
        verify_and_free(w);
    return NULL;
}

static _Atomic int watching;

/* Reads the statistics while other threads work, and checks the sums that hold at every moment. */
static void *read_events_until_told(void *arg) {
    weir_event events[16];
    uint64_t after = 0;
    size_t count;

    while (atomic_load(&watching)) {
        weir_statistics now = stats_of(arg);

        MUST_EQ(now.attempts, now.allocs + now.failed_requests);
        MUST_EQ(now.allocs, now.hits + now.growth_allocs);
        MUST_EQ(now.allocs - now.frees, now.blocks);
        MUST_LE(now.blocks,
                now.allocs); /* frees are read before allocs, so that blocks may be too large */
        OK(weir_events(arg, after, events, sizeof events[0], 16, &count));
        for (size_t i = 0; i < count; i++) {
            ck_assert_uint_gt(events[i].sequence, after);
            after = events[i].sequence;
        }
        usleep(200);
    }
    return NULL;
}

/* A failed assertion in a thread ends the test's process.  On a GPU, where Check does not fork, the suite crashes,
 * which is a failure, too. */
TEST_EACH(KIND_COUNT, random_work_in_four_threads) {
    enum { THREADS = 4 };
    size_t before = device_free();
    struct work *w = malloc(THREADS * sizeof *w);
    weir_options options = tested_options(_i, 512 * MIB);
    pthread_t watcher;
    weir_allocator *a;

    OK(weir_allocator_create(&options, &a));
    everybody.parts = 0;
    for (int i = 0; i < THREADS; i++)
        start_work(&w[i], a, (uint64_t)i + 7);
    atomic_store(&watching, 1);
    ck_assert_int_eq(pthread_create(&watcher, NULL, read_events_until_told, a), 0);
    run_threads(THREADS, work_alone, w, sizeof *w);
    atomic_store(&watching, 0);
    ck_assert_int_eq(pthread_join(watcher, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        end_work(&w[i]);
    free(w);
    check_all_events(a);
    ck_assert_uint_eq(check_identities(a).blocks, 0);
    ck_assert_uint_eq(stats_of(a).requested, 0);
    OK(weir_allocator_destroy(a));
    expect_free_again(before);
}

/* ---- events and latencies -------------------------------------------------------------------- */

TEST_WHERE(0, KIND_COUNT, is_pool_or_regions, the_ring_keeps_the_latest_events) {
    weir_options options = tested_options(_i, 0);
    weir_allocator *a;
    weir_event events[12];
    size_t count = 99;

    options.growth = WEIR_GROWTH_EXACT;
    OK(weir_allocator_create(&options, &a));
    OK(weir_events(a, 0, events, sizeof events[0], 12, &count));
    ck_assert_uint_eq(count, 0);
    for (size_t i = 0; i < 515; i++) { /* 1030 events, of which 1024 are kept */
        OK(weir_preallocate(a, 32 * MIB, NULL));
        OK(weir_trim(a, 0, NULL));
    }
    OK(weir_events(a, 0, events, sizeof events[0], 12, &count));
    ck_assert_uint_eq(count, 12);
    for (size_t i = 0; i < 12; i++) {
        ck_assert_uint_eq(events[i].sequence, 7 + i);
        ck_assert_uint_eq(events[i].got, 32 * MIB);
        ck_assert_uint_eq(events[i].reserved_after, i % 2 == 0 ? 32 * MIB : 0);
        ck_assert_int_eq(events[i].cause, i % 2 == 0 ? WEIR_EVENT_PREALLOC : WEIR_EVENT_TRIM);
        ck_assert_int_eq(events[i].shrink, i % 2 != 0);
    }
    OK(weir_events(a, 1028, events, sizeof events[0], 12, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(events[0].sequence, 1029);
    OK(weir_events(a, 0, events, sizeof events[0], 2, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(events[0].sequence, 7);
    OK(weir_events(a, 1030, events, sizeof events[0], 12, &count));
    ck_assert_uint_eq(count, 0);
    OK(weir_events(a, UINT64_MAX, events, sizeof events[0], 12, &count));
    ck_assert_uint_eq(count, 0);
    OK(weir_events(a, 0, NULL, sizeof events[0], 0, &count));
    ck_assert_uint_eq(count, 0);
    ck_assert_uint_eq(stats_of(a).growths, 515);
    ck_assert_uint_eq(stats_of(a).growth_bytes, 515 * 32 * MIB);
    OK(weir_allocator_destroy(a));
}

/* Callers may be compiled with a shorter or a longer weir_event. */
TEST(events_fit_every_size_of_struct) {
    struct {
        uint64_t sequence, time_ns;
    } shorter[3];
    struct {
        weir_event event;
        uint64_t later;
    } longer[3];
    weir_options options = tested_options(KIND_REGIONS, 0);
    weir_allocator *a;
    size_t count;

    OK(weir_allocator_create(&options, &a));
    for (size_t i = 1; i <= 3; i++)
        OK(weir_preallocate(a, i * MIB, NULL));
    OK(weir_events(a, 0, (weir_event *)(void *)shorter, sizeof shorter[0], 3, &count));
    ck_assert_uint_eq(count, 3);
    memset(longer, 0xff, sizeof longer);
    OK(weir_events(a, 0, &longer[0].event, sizeof longer[0], 3, &count));
    ck_assert_uint_eq(count, 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(shorter[i].sequence, i + 1);
        ck_assert_uint_eq(longer[i].event.sequence, i + 1);
        ck_assert_uint_eq(longer[i].event.time_ns, shorter[i].time_ns);
        ck_assert_uint_eq(longer[i].event.got, MIB);
        ck_assert_uint_eq(longer[i].later, 0);
    }
    OK(weir_allocator_destroy(a));
}

TEST_EACH(KIND_COUNT, latencies_are_kept_on_demand) {
    weir_options options = tested_options(_i, ARENA_BYTES);
    weir_latency l = {.size = sizeof l};
    weir_allocator *a = make_tested(_i);

    EXPECT(WEIR_E_NOT_SUPPORTED, weir_latencies(a, 0, &l));
    OK(weir_allocator_destroy(a));
    options.latency = WEIR_SWITCH_ON;
    OK(weir_allocator_create(&options, &a));
    OK(weir_latencies(a, 0, &l));
    ck_assert_uint_eq(l.count + l.max_ns + l.total_ns + l.p999_ns, 0);
    for (int i = 0; i < 100; i++)
        OK(weir_free(a, alloc_tested(a, 1000, s), s));
    for (int operation = 0; operation <= 1; operation++) {
        OK(weir_latencies(a, operation, &l));
        ck_assert_uint_eq(l.size, sizeof l);
        ck_assert_uint_eq(l.count, 100);
        ck_assert_uint_le(l.p50_ns, l.p90_ns);
        ck_assert_uint_le(l.p90_ns, l.p99_ns);
        ck_assert_uint_le(l.p99_ns, l.p999_ns);
        ck_assert_uint_le(l.p999_ns, l.max_ns);
        ck_assert_uint_ge(l.total_ns, l.max_ns);
        ck_assert_uint_le(l.total_ns, 100 * l.max_ns);
    }
    OK(weir_allocator_destroy(a));
}
