/* SPDX-License-Identifier: MIT */
/* test_decay.c: decay of reserved memory. Each half-life releases half of the unneeded memory; a returning load keeps
 * its memory.
 *
 * Time is the model's, so a test decides when a half-life is over. The first tests check the rule alone, by numbers. */
#include "tests/fixtures/model_device.h"

#include "api/allocator_internal.h"
#include "base/bounds.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/logged.h"

#define CAPACITY (8 * GIB)
#define HALF_LIFE_MS 100
#define HALF_LIFE (HALF_LIFE_MS * MS)

static void start_decay_device(void) {
    start_model(CAPACITY);
    catch_log();
}

static struct weir_goal d;

static void open_rule(uint64_t floor) {
    memset(&d, 0, sizeof d);
    weir__goal_open(&d, 1000, floor, 1, 0);
}

/* Notes a request every 100 time units from `from` to the end of the window, with at most `peak` bytes in use. Returns
 * the amount of reserved memory to keep. */
static uint64_t window(uint64_t from, uint64_t peak, uint64_t reserve) {
    uint64_t pause;

    for (uint64_t now = from + 100; now < from + 1000; now += 100)
        MUST(!weir__goal_record_use(&d, now, now == from + 500 ? peak : peak / 2, &pause));
    MUST(weir__goal_record_use(&d, from + 1000, peak / 2, &pause));
    MUST_EQ(pause, 100);
    return weir__goal_end_window(&d, from + 1000, peak / 2, reserve, pause);
}

CASE("rule", 30, NULL, NULL);

TEST(half_of_what_is_not_needed_goes) {
    open_rule(0);
    atomic_store(&d.decay.grew, 1);
    ANSWERS(6 * GIB, window(0, 4 * GIB, 6 * GIB));    /* all of it was needed, since it grew */
    ANSWERS(6 * GIB, window(1000, 4 * GIB, 6 * GIB)); /* the peak is unchanged */
    /* half as much in use needs 3 GiB */
    ANSWERS(6 * GIB - 3 * GIB / 2, window(2000, 2 * GIB, 6 * GIB));
    ANSWERS(4 * GIB - GIB / 2, window(3000, 2 * GIB, 4 * GIB));
    ANSWERS(3 * GIB, window(4000, 2 * GIB, 3 * GIB + 64 * MIB)); /* a small rest goes at once */
    ANSWERS(3 * GIB, window(5000, 2 * GIB, 3 * GIB));
    ANSWERS(3 * GIB - 3 * GIB / 4, window(6000, 0, 3 * GIB)); /* 1 GiB was in use at first */
}

/* The reserved memory is later enough for a larger load, which shows that growth reserved more than was needed. */
TEST(what_was_enough_is_known_later_too) {
    open_rule(0);
    atomic_store(&d.decay.grew, 1);
    ANSWERS(8 * GIB, window(0, GIB, 8 * GIB)); /* growth reserves far more than is used */
    ANSWERS(8 * GIB, window(1000, 4 * GIB, 8 * GIB));
    ANSWERS(6 * GIB, window(2000, GIB, 8 * GIB)); /* 2 GiB in use at first need 4 GiB */
}

/* Nothing has been in use yet, so decay knows of no need. Two requests may come at one time. */
TEST(what_nobody_ever_used_goes) {
    uint64_t pause = 1;

    open_rule(0);
    MUST(!weir__goal_record_use(&d, 500, 0, &pause));
    MUST(!weir__goal_record_use(&d, 500, 0, &pause));
    MUST_EQ(pause, 1); /* 0 would mean that there was no request */
    MUST(weir__goal_record_use(&d, 1000, 0, &pause));
    ANSWERS(2 * GIB, weir__goal_end_window(&d, 1000, 0, 4 * GIB, pause));
}

TEST(the_floor_stays) {
    open_rule(3 * GIB);
    ANSWERS(5 * GIB, window(0, GIB, 5 * GIB));
    weir__raise_to(&d.floor, 2 * GIB); /* the floor is higher already */
    ANSWERS(4 * GIB, window(1000, MIB, 5 * GIB));
    weir__raise_to(&d.floor, 4 * GIB);
    ANSWERS(4 * GIB, window(2000, 0, 4 * GIB));
    ANSWERS(4 * GIB - 1, window(3000, 0, 4 * GIB - 1));
}

/* 11 * (15 / 11) is below 15 in floating point. */
TEST(a_need_is_rounded_to_bytes) {
    open_rule(0);
    atomic_store(&d.decay.grew, 1);
    ANSWERS(15 * MIB, window(0, 11 * MIB, 15 * MIB));
    ANSWERS(15 * MIB, window(1000, 11 * MIB, 15 * MIB));
}

/* Decay keeps the memory of grow-ahead on top of the memory that the load needs. */
TEST(what_grow_ahead_keeps_idle_stays) {
    memset(&d, 0, sizeof d);
    weir__goal_open(&d, 1000, 0, 1, GIB);
    atomic_store(&d.decay.grew, 1);
    ANSWERS(7 * GIB, window(0, 4 * GIB, 7 * GIB)); /* 3 bytes for each 2 in use, and 1 GiB */
    ANSWERS(7 * GIB, window(1000, 4 * GIB, 7 * GIB));
    ANSWERS(7 * GIB - 3 * GIB / 2, window(2000, 2 * GIB, 7 * GIB)); /* 4 GiB are needed */
    ANSWERS(4 * GIB, window(3000, 2 * GIB, 4 * GIB + 64 * MIB));
    ANSWERS(4 * GIB, window(4000, 2 * GIB, 4 * GIB));
}

/* A request after a long pause begins a new window. weir_decay counts the pause, because its caller states that time
 * has passed. */
TEST(a_pause_is_not_counted) {
    uint64_t pause;

    open_rule(0);
    atomic_store(&d.decay.grew, 1);
    window(0, 4 * GIB, 4 * GIB);
    MUST(weir__goal_record_use(&d, 9000, MIB, &pause));
    ANSWERS(4 * GIB, weir__goal_end_window(&d, 9000, MIB, 4 * GIB, pause));
    ANSWERS(4 * GIB, weir__goal_end_window(&d, 9999, MIB, 4 * GIB, 0)); /* the window is not over */
    ANSWERS(4 * GIB - (4 * GIB - MIB) / 2, weir__goal_end_window(&d, 10000, 0, 4 * GIB, 0));
    ANSWERS((2 * GIB + 512 * KIB) / 8,
            weir__goal_end_window(&d, 13999, 0, 4 * GIB, 0)); /* 3 windows */
    ANSWERS(0, weir__goal_end_window(&d, UINT64_MAX, 0, 4 * GIB, 0));
}

enum { POOL, POOL_WITHOUT_CACHES, MAPPED, IN_REQUESTS, REGIONS = IN_REQUESTS, WAYS };

static weir_allocator *a;

static weir_options decay_options(int way) {
    weir_options options;

    weir_options_init(&options);
    options.device = "model";
    options.decay_ms = HALF_LIFE_MS;
    options.log = WEIR_LOG_WARNING;
    options.engine = way == REGIONS  ? WEIR_ENGINE_BFC
                     : way == MAPPED ? WEIR_ENGINE_MAPPED
                                     : WEIR_ENGINE_POOL;
    if (way == POOL_WITHOUT_CACHES)
        options.cache = WEIR_SWITCH_OFF;
    return options;
}

static void open_decaying_with(const weir_options *options) {
    OK(weir_allocator_create(options, &a));
}

static void open_decaying(int way) {
    weir_options options = decay_options(way);

    open_decaying_with(&options);
}

static void close_decaying(void) {
    check_identities(a);
    check_model();
    OK(weir_allocator_destroy(a));
}

/* Allocates and frees `blocks` blocks of about 31 MiB and as many small ones, spread over `ns`. Sizes vary, so that
 * requests miss the caches and reach the engine. */
static void run_iteration(int blocks, uint64_t ns) {
    static unsigned turn;
    void *block[100], *small;

    for (int i = 0; i < blocks; i++) {
        turn++;
        OK(weir_alloc(a, 31 * MIB + (turn % 7) * 64 * KIB, A, &block[i]));
        weir__model_advance(ns / (uint64_t)(2 * blocks));
    }
    for (int i = 0; i < blocks; i++) {
        OK(weir_alloc(a, 700 * KIB + (turn + (unsigned)i) % 5 * 64 * KIB, A, &small));
        OK(weir_free(a, block[i], A));
        OK(weir_free(a, small, A));
        weir__model_advance(ns / (uint64_t)(2 * blocks));
    }
    CU(driver->cuStreamSynchronize(A));
}

static uint64_t decays(void) {
    weir_event events[256];
    uint64_t found = 0;
    size_t count;

    OK(weir_events(a, 0, events, sizeof events[0], 256, &count));
    for (size_t i = 0; i < count; i++) {
        found += events[i].cause == WEIR_EVENT_DECAY;
        MUST_EQ(events[i].cause == WEIR_EVENT_DECAY, events[i].shrink);
    }
    return found;
}

CASE("loads", 60, start_decay_device, NULL);

/* The load has its peak once a half-life, and falls to a tenth in between. */
TEST_EACH(WAYS, a_load_that_comes_back_keeps_its_reserve) {
    open_decaying(_i);
    for (int i = 0; i < 6; i++) {
        run_iteration(40, HALF_LIFE / 5);
        run_iteration(4, HALF_LIFE * 3 / 10);
    }
    weir_statistics warm = stats_of(a);
    for (int i = 0; i < 60; i++) {
        run_iteration(40, HALF_LIFE / 5);
        run_iteration(4, HALF_LIFE * 3 / 10);
    }
    weir_statistics s = stats_of(a);
    MUST_EQ(s.growths, warm.growths);
    MUST_EQ(s.reserved, warm.reserved);
    close_decaying();
}

/* A small load follows a large one. The reserved memory falls to the need of the small load, which then does not grow.
 * Decay waits for no work. */
TEST_EACH(IN_REQUESTS, what_a_smaller_load_does_not_need_goes) {
    weir_statistics s;
    uint64_t growths = 0;
    open_decaying(_i);
    for (int i = 0; i < 4; i++)
        run_iteration(60, HALF_LIFE / 2);
    weir_statistics large = stats_of(a);
    MUST_LE(60 * 31 * MIB, large.reserved);
    uint64_t last = large.reserved;
    count_from_here();
    for (int i = 0; i < 30; i++) {
        run_iteration(6, HALF_LIFE / 2);
        s = stats_of(a);
        if (s.growths == large.growths)
            MUST_LE(s.reserved, last);
        last = s.reserved;
        if (i == 2) /* only one window had the small load alone */
            MUST_LE(large.reserved / 3, s.reserved);
        if (i == 20)
            growths = s.growths;
    }
    /* decay releases whole regions and whole physical allocations */
    MUST_LE(s.reserved, large.reserved / 4 * (_i == POOL ? 3 : 1));
    MUST_LE(2, decays());
    MUST_EQ(s.growths, growths);
    MUST_EQ(s.trims, 0);
    MUST_EQ(calls(WEIR_ENTRY_cuCtxSynchronize), 0);
    MUST_EQ(calls(WEIR_ENTRY_cuMemFree), 0);
    MUST_EQ(calls(WEIR_ENTRY_cuMemFreeHost), 0);
    close_decaying();
}

/* Growth for a request shows that a load needs more memory than before, although as much is in use. */
TEST_EACH(WAYS, what_has_just_grown_stays) {
    void *first, *second;
    size_t released;

    open_decaying(_i);
    OK(weir_alloc(a, GIB, A, &first));
    weir__model_advance(HALF_LIFE);
    OK(weir_decay(a, NULL));
    CU(weir__model_use(A, (uintptr_t)first, GIB, 1, MS));
    OK(weir_free(a, first, A));
    OK(weir_alloc(a, GIB, B, &second));
    CU(driver->cuCtxSynchronize());
    for (int i = 0; i < 3; i++) {
        weir__model_advance(HALF_LIFE);
        OK(weir_decay(a, &released));
        MUST_EQ(released, 0);
    }
    OK(weir_free(a, second, B));
    close_decaying();
}

static _Thread_local int is_other_thread;

static void *request_once(void *unused) {
    void *block;

    is_other_thread = 1;
    OK(weir_alloc(a, 4 * MIB, A, &block));
    OK(weir_free(a, block, A));
    return unused;
}

static CUresult trim_beside_a_request(CUmemoryPool pool, size_t keep) {
    CUresult result = driver->cuMemPoolTrimTo(pool, keep);

    if (!is_other_thread)
        run_in_thread(request_once, NULL);
    return result;
}

/* A request during a trim cannot see whether the pool grew. Decay counts only growth that was noted. */
TEST(a_request_during_a_trim_is_no_growth) {
    weir_options options = decay_options(POOL_WITHOUT_CACHES);
    struct weir_driver table = *driver;

    table.cuMemPoolTrimTo = trim_beside_a_request;
    OK(weir__allocator_create_on(&table, &options, &a, NULL, 0));
    for (int i = 0; i < 4; i++)
        run_iteration(60, HALF_LIFE / 2);
    uint64_t large = stats_of(a).reserved;
    for (int i = 0; i < 30; i++)
        run_iteration(6, HALF_LIFE / 2);
    MUST_LE(stats_of(a).reserved, large / 4);
    close_decaying();
}

/* With decay each large request looks at the time, also one that needs no other memory than its stream has just freed. */
TEST_EACH(IN_REQUESTS, what_a_load_of_hits_does_not_need_goes) {
    void *block;

    open_decaying(_i);
    for (int i = 0; i < 4; i++)
        run_iteration(60, HALF_LIFE / 2);
    weir_statistics large = stats_of(a);
    for (int i = 0; i < 1024; i++) {
        OK(weir_alloc(a, MIB, A, &block));
        OK(weir_free(a, block, A));
        weir__model_advance(HALF_LIFE / 64);
    }
    MUST_LE(stats_of(a).reserved, large.reserved / 4 * (_i == POOL ? 3 : 1));
    close_decaying();
}

TEST_EACH(IN_REQUESTS, what_has_gone_is_not_grown_again_by_grow_ahead) {
    weir_options options = decay_options(_i);
    options.grow_ahead = (weir_amount){.value = 256 * MIB, .kind = WEIR_AMOUNT_BYTES};
    open_decaying_with(&options);
    for (int i = 0; i < 4; i++)
        run_iteration(60, HALF_LIFE / 2);
    weir_statistics large = stats_of(a);
    for (int i = 0; i < 40; i++)
        run_iteration(6, HALF_LIFE / 2);
    weir_statistics small = stats_of(a);
    MUST_LE(small.reserved, large.reserved * 2 / 3);
    MUST_LE(6 * 31 * MIB + 512 * MIB, small.reserved);
    for (int i = 0; i < 40; i++)
        run_iteration(6, HALF_LIFE / 2);
    weir_statistics s = stats_of(a);
    MUST_EQ(s.ahead_steps, large.ahead_steps);
    MUST_EQ(s.growths, small.growths);
    MUST_EQ(s.reserved, small.reserved);
    close_decaying();
}

/* Decay releases memory only after all work that used it has completed. */
TEST_EACH(IN_REQUESTS, nothing_goes_that_work_still_uses) {
    void *block[40], *one;

    open_decaying(_i);
    for (int i = 0; i < 40; i++)
        OK(weir_alloc(a, 40 * MIB, B, &block[i]));
    for (int i = 0; i < 40; i++) {
        CU(weir__model_use(B, (uintptr_t)block[i], 40 * MIB, (uint64_t)i + 1, 30 * HALF_LIFE));
        OK(weir_free(a, block[i], B));
    }
    for (int i = 0; i < 200; i++) {
        OK(weir_alloc(a, 2 * MIB + (size_t)(i % 50) * 64 * KIB, i % 2 ? A : B, &one));
        CU(weir__model_use(i % 2 ? A : B, (uintptr_t)one, 2 * MIB, (uint64_t)i + 100, 1000));
        OK(weir_free(a, one, i % 2 ? A : B));
        weir__model_advance(HALF_LIFE / 4);
    }
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
    CU(driver->cuCtxSynchronize());
    close_decaying();
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
}

TEST_EACH(IN_REQUESTS, decay_keeps_preallocated_memory) {
    weir_options options = decay_options(_i);

    options.prealloc = bytes_amount(512 * MIB);
    open_decaying_with(&options);
    for (int i = 0; i < 4; i++)
        run_iteration(60, HALF_LIFE / 2);
    for (int i = 0; i < 40; i++)
        run_iteration(2, HALF_LIFE / 2);
    MUST_LE(512 * MIB, stats_of(a).reserved);
    /* Blocks in caches keep a whole physical allocation. */
    MUST_LE(stats_of(a).reserved, 700 * MIB);
    for (int i = 0; i < 20; i++) {
        weir__model_advance(HALF_LIFE);
        OK(weir_decay(a, NULL));
    }
    MUST_LE(512 * MIB, stats_of(a).reserved);
    /* Decay releases a physical allocation of 512 MiB only if all of it is unneeded. */
    MUST_LE(stats_of(a).reserved, 560 * MIB);
    close_decaying();
}

TEST_EACH(2, a_release_threshold_that_is_set_stays) {
    weir_options options = decay_options(_i);

    options.release_threshold = bytes_amount(256 * MIB);
    open_decaying_with(&options);
    for (int i = 0; i < 3; i++)
        run_iteration(60, HALF_LIFE / 2);
    for (int i = 0; i < 20; i++) {
        weir__model_advance(HALF_LIFE);
        OK(weir_decay(a, NULL));
    }
    MUST_BE_WITHIN(256 * MIB, stats_of(a).reserved, 320 * MIB);
    close_decaying();
}

TEST_EACH(WAYS, an_idle_program_says_that_time_passes) {
    size_t released, sum = 0;
    open_decaying(_i);
    for (int i = 0; i < 3; i++)
        run_iteration(60, HALF_LIFE / 2);
    uint64_t before = stats_of(a).reserved;
    OK(weir_decay(a, &released)); /* the window had the load, or is not over */
    MUST_EQ(released, 0);
    for (int i = 0; i < 12; i++) {
        weir__model_advance(HALF_LIFE);
        OK(weir_decay(a, &released));
        MUST_LE(released, before);
        sum += released;
        OK(weir_decay(a, &released));
        MUST_EQ(released, 0);
    }
    weir_statistics s = stats_of(a);
    MUST_EQ(before - sum, s.reserved);
    MUST_LE(s.reserved, 64 * MIB);
    MUST_LE(3, decays());
    run_iteration(10, HALF_LIFE);
    close_decaying();
}

/* One call of weir_decay stands for twenty half-lives. */
TEST_EACH(WAYS, windows_that_were_missed_count) {
    open_decaying(_i);
    for (int i = 0; i < 3; i++)
        run_iteration(60, HALF_LIFE / 2);
    weir__model_advance(20 * HALF_LIFE);
    OK(weir_decay(a, NULL));
    MUST_LE(stats_of(a).reserved, 64 * MIB);
    close_decaying();
}

/* The load pauses for a long time and comes back. Its first request releases no memory. */
TEST_EACH(WAYS, nothing_goes_as_a_load_comes_back) {
    open_decaying(_i);
    for (int i = 0; i < 4; i++)
        run_iteration(60, HALF_LIFE / 2);
    weir_statistics before = stats_of(a);
    for (int i = 0; i < 5; i++) {
        weir__model_advance(20 * HALF_LIFE);
        run_iteration(60, HALF_LIFE / 2);
    }
    weir_statistics s = stats_of(a);
    MUST_EQ(s.growths, before.growths);
    MUST_EQ(s.reserved, before.reserved);
    close_decaying();
}

/* A cache hit does not read the time. */
TEST(a_hit_costs_no_more_with_decay) {
    void *block;

    open_decaying(POOL);
    OK(weir_bind(a, A));
    for (int i = 0; i < 100; i++) {
        OK(weir_alloc(a, 64 * KIB, A, &block));
        OK(weir_free(a, block, A));
    }
    count_from_here();
    for (int i = 0; i < 1000; i++) {
        OK(weir_alloc(a, 64 * KIB, A, &block));
        OK(weir_free(a, block, A));
        weir__model_advance(HALF_LIFE);
    }
    EXPECT_CALLS({WEIR_ENTRY_COUNT, 0});
    OK(weir_unbind(a, A));
    close_decaying();
}

TEST(an_arena_of_regions_decays_by_calls_alone) {
    weir_options options = decay_options(REGIONS);
    options.growth = WEIR_GROWTH_EXACT;
    open_decaying_with(&options);
    for (int i = 0; i < 3; i++)
        run_iteration(60, HALF_LIFE / 2);
    uint64_t before = stats_of(a).reserved;
    for (int i = 0; i < 20; i++)
        run_iteration(6, HALF_LIFE / 2);
    MUST_EQ(stats_of(a).reserved, before);
    MUST_EQ(decays(), 0);
    for (int i = 0; i < 20; i++) { /* weir_decay works between requests, too */
        run_iteration(6, HALF_LIFE / 2);
        OK(weir_decay(a, NULL));
    }
    MUST_LE(stats_of(a).reserved, before / 2);
    close_decaying();
}

/* A window may end with a request under capture. weir then makes no call on its stream, and the capture stays valid. */
TEST_EACH(2 * WAYS, a_window_ends_in_a_capture) {
    int way = _i % WAYS;
    weir_options options = decay_options(way);
    struct weir_driver table = *driver;
    void *block;

    if (_i >= WAYS)
        table.capabilities &= ~(unsigned)WEIR_CAP_STREAM_ID;
    options.cache = WEIR_SWITCH_OFF;
    OK(weir__allocator_create_on(&table, &options, &a, NULL, 0));
    for (int i = 0; i < 4; i++)
        run_iteration(60, HALF_LIFE / 2);
    run_iteration(4, HALF_LIFE / 2);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 20; i++) {
        weir__model_advance(HALF_LIFE / 4);
        OK(weir_alloc(a, MIB, A, &block));
        OK(weir_free(a, block, A));
    }
    if (_i >= WAYS && way == MAPPED) /* weir has no id of the stream */
        MUST_LE(2, decays());
    drop_capture(A);
    close_decaying();
}

TEST_EACH(WAYS, off_is_off) {
    weir_options options = decay_options(_i);
    options.decay_ms = _i % 2 ? 0 : UINT64_MAX;
    open_decaying_with(&options);
    run_iteration(60, HALF_LIFE / 2);
    uint64_t before = stats_of(a).reserved;
    for (int i = 0; i < 20; i++)
        run_iteration(6, HALF_LIFE / 2);
    MUST_EQ(stats_of(a).reserved, before);
    (void)lines();
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_decay(a, NULL));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_decay(a, NULL));
    expect_lines(__LINE__, 1); /* weir logs the error only once */
    MUST(strstr(logged, "weir: error: weir_decay: decay is off, and no memory is wanted\n"));
    EXPECT(WEIR_E_INVALID, weir_decay(NULL, NULL));
    close_decaying();
}

TEST_EACH(2, decay_is_refused_without_idle_memory) {
    weir_options options = decay_options(REGIONS);

    options.engine = _i == 0 ? WEIR_ENGINE_DIRECT : WEIR_ENGINE_BFC_FIXED;
    open_decaying_with(&options);
    (void)lines();
    MUST(strstr(logged, "weir: warning: decay has no effect with"));
    run_iteration(6, HALF_LIFE);
    (void)lines();
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_decay(a, NULL));
    expect_lines(__LINE__, 1);
    MUST(strstr(logged, _i == 0 ? "weir: error: weir_decay: engine direct reserves no memory\n"
                                : "weir: error: weir_decay: engine bfc-fixed keeps its size\n"));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_low_memory(a, 0));
    expect_lines(__LINE__, 1);
    MUST(strstr(logged, _i == 0
                            ? "weir: error: weir_low_memory: engine direct reserves no memory\n"
                            : "weir: error: weir_low_memory: engine bfc-fixed keeps its size\n"));
    close_decaying();
}

SUITE("decay", CK_FORK_GETENV);
