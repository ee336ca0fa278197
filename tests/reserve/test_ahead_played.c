/* SPDX-License-Identifier: MIT */
/* test_ahead_played.c: background growth in virtual time.
 *
 * The device model runs the turns of background growth between the calls of a test, so each run has equal results. */
#include "tests/fixtures/ahead.h"

#include "tests/fixtures/calls.h"
#include "tests/fixtures/logged.h"

/* Makes 40 requests, and writes the time that they took to `in_requests`. Returns the time at the end. */
static uint64_t play_a_run(int way, uint64_t low, uint64_t *in_requests, weir_statistics *s) {
    void *block[40];
    open_ahead_device();
    /* The proof that cuMemFree waits for the device depends on real time, so it fails in each run. */
    weir__model_fail(WEIR_ENTRY_cuLaunchHostFunc, 1, CUDA_ERROR_NOT_SUPPORTED, 1);
    weir_allocator *a = make_ahead(driver, way, low);
    *in_requests = 0;
    for (int i = 0; i < 40; i++) {
        uint64_t from = driver->ticks();

        block[i] = alloc_block_from(a, 20 * MIB, A);
        if (i > 0) /* the first request makes the driver start its pools */
            *in_requests += driver->ticks() - from;
        weir__model_advance(2 * MS);
    }
    *s = check_identities(a);
    if (low > 0)
        check_steps(a);
    for (int i = 0; i < 40; i++)
        OK(weir_free(a, block[i], A));
    destroy_and_check(a);
    return driver->ticks();
}

CASE("played", 60, open_ahead_device, NULL);

TEST_EACH(WAYS, on_the_model_it_costs_requests_nothing) {
    weir_statistics plain, ahead, again;
    uint64_t plain_ns, ahead_ns, again_ns;
    (void)play_a_run(_i, 0, &plain_ns, &plain);
    uint64_t end = play_a_run(_i, 200 * MIB, &ahead_ns, &ahead);
    ck_assert_uint_gt(ahead.ahead_steps, 0);
    ck_assert_uint_gt(ahead.ahead_ns, 0);
    MUST_LE(ahead.growth_allocs, 4); /* requests grow until the first turn */
    MUST_LE(10, plain.growth_allocs);
    MUST_LE(ahead_ns, plain_ns / 2);
    ck_assert_uint_eq(play_a_run(_i, 200 * MIB, &again_ns, &again), end);
    ck_assert_uint_eq(again_ns, ahead_ns);
    ck_assert_mem_eq(&again, &ahead, sizeof ahead);
}

/* Returns the number of steps that background growth makes in `ms` milliseconds. */
static uint64_t steps_in(weir_allocator *a, uint64_t ms) {
    OK(weir_free(a, alloc_block_from(a, 65 * MIB, A),
                 A)); /* the first growth of the driver is slow */
    uint64_t steps = stats_of(a).ahead_steps;
    weir__model_advance(ms * MS);
    ck_assert_uint_eq(stats_of(a).ahead_steps, steps);
    OK(weir_free(a, alloc_block_from(a, 64 * MIB, A), A)); /* another size, which no inbox has */
    return stats_of(a).ahead_steps - steps;
}

/* Background growth makes a step each millisecond, even if no request came meanwhile. */
TEST_EACH(WAYS, turns_come_when_they_are_due) {
    weir_allocator *a = make_ahead(driver, _i, 2 * GIB);
    uint64_t steps = steps_in(a, 10);
    uint64_t all = (2 * GIB + 65 * MIB) / a->reserve.engine->step_bytes + 1; /* with the block */

    if (all < 8) {
        ck_assert_uint_eq(steps, all);
    } else {
        MUST_BE_WITHIN(8, steps, 10);
    }
    weir__model_advance(200 * MS);
    OK(weir_free(a, alloc_block_from(a, 65 * MIB, A), A));
    MUST_BE_WITHIN(4 * GIB, idle_of(a), 4 * GIB + 65 * MIB + a->reserve.engine->step_bytes);
    check_steps(a);
    destroy_and_check(a);
}

static int is_not_regions(int way) {
    return way != REGIONS;
}

static int is_no_pool(int way) {
    return way != POOL && way != POOL_ALONE;
}

TEST_WHERE(0, WAYS, is_not_regions, the_less_is_idle_the_sooner_they_come) {
    weir_allocator *a = make_ahead(driver, _i, 3 * GIB);
    void *block[30];
    for (int i = 0; i < 30; i++)
        block[i] = alloc_block_from(a, 100 * MIB, A);
    uint64_t steps = steps_in(a, a->reserve.engine->step_bytes > 64 * MIB ? 2 : 4);
    MUST_LE(a->reserve.engine->step_bytes > 64 * MIB ? 5 : 24, steps);
    check_steps(a);
    for (int i = 0; i < 30; i++)
        OK(weir_free(a, block[i], A));
    destroy_and_check(a);
}

/* Grow-ahead reserves memory while weir creates the allocator, so the first request neither grows nor waits. */
TEST_EACH(WAYS, it_begins_with_the_allocator) {
    weir_allocator *a = make_ahead(driver, _i, 300 * MIB);
    weir_statistics s = stats_of(a);

    MUST_BE_WITHIN(300 * MIB, s.reserved, 300 * MIB + a->reserve.engine->step_bytes);
    MUST_LE(1, s.ahead_steps);
    MUST_LE(s.host_bytes, 64 * MIB);
    OK(weir_free(a, alloc_block_from(a, 100 * MIB, A), A));
    MUST_EQ(stats_of(a).growth_allocs, 0);
    MUST_EQ(stats_of(a).stall_ns, 0);
    check_steps(a);
    destroy_and_check(a);
}

/* A request larger than each idle piece waits for new physical allocations. Nothing moves, since moves take
 * longer. */
TEST(what_is_larger_waits_for_growth_alone) {
    weir_options options = ahead_options(MAPPED, 512 * MIB);
    void *block[4];
    weir_allocator *a = create_on(driver, &options);
    for (int i = 0; i < 4; i++)
        block[i] = alloc_block_from(a, 256 * MIB, A);
    weir__model_advance(50 * MS);
    OK(weir_free(a, alloc_block_from(a, 64 * MIB, A), A)); /* plays the turns that are due */
    for (int i = 0; i < 4; i += 2)
        OK(weir_free(a, block[i], A));
    uint64_t made = weir__model_calls(WEIR_ENTRY_cuMemCreate);
    uint64_t moved = weir__model_calls(WEIR_ENTRY_cuMemUnmap);
    void *large = alloc_block_from(a, 3 * GIB, A);
    made = weir__model_calls(WEIR_ENTRY_cuMemCreate) - made;
    moved = weir__model_calls(WEIR_ENTRY_cuMemUnmap) - moved;
    MUST_EQ(moved, 0);
    MUST_LE(made, 3 * GIB / (128 * MIB));
    OK(weir_free(a, large, A));
    for (int i = 1; i < 4; i += 2)
        OK(weir_free(a, block[i], A));
    destroy_and_check(a);
}

/* weir warns if the limit is below the amount of grow-ahead. */
TEST_EACH(WAYS, more_than_can_be_had) {
    weir_options options = ahead_options(_i, 2 * GIB);
    catch_log();
    options.limit = bytes_amount(GIB);
    options.log = WEIR_LOG_WARNING;
    weir_allocator *a = create_on(driver, &options);
    (void)lines();
    ck_assert_msg(strstr(logged, "grow-ahead of 2GiB is above the 1GiB that can be reserved") !=
                      NULL,
                  "%s", logged);
    OK(weir_free(a, alloc_block_from(a, MIB, A), A));
    MUST_LE(stats_of(a).reserved, GIB);
    destroy_and_check(a);
}

/* The mapped engine has separate memory for small requests.  Background growth keeps some of it idle, too. */
TEST(small_requests_have_some_of_it) {
    weir_allocator *a = make_ahead(driver, MAPPED, 512 * MIB);
    void *block[200];
    int count = 0;

    while (count < 200) { /* 80 MiB of small blocks */
        block[count] = alloc_block_from(a, count % 5 == 0 ? 64 * MIB : MIB / 2, A);
        count++;
        weir__model_advance(2 * MS);
    }
    MUST_EQ(stats_of(a).growth_allocs, 0);
    MUST_LE(stats_of(a).reserved, stats_of(a).in_use + GIB + 32 * MIB);
    check_steps(a);
    while (count > 0)
        OK(weir_free(a, block[--count], A));
    destroy_and_check(a);
}

/* A request does not wait for a step of another thread. */
TEST_EACH(WAYS, whoever_finds_a_turn_goes_on) {
    weir_allocator *a = make_ahead(driver, _i, GIB);
    uint64_t steps = stats_of(a).ahead_steps;

    weir__goal_pause_ahead(&a->reserve);
    weir__model_advance(5 * MS);
    OK(weir_free(a, alloc_block_from(a, 100 * MIB, A), A));
    MUST_EQ(stats_of(a).ahead_steps, steps);
    weir__goal_resume_ahead(&a->reserve);
    OK(weir_free(a, alloc_block_from(a, 101 * MIB, A), A));
    MUST_LE(steps + 1, stats_of(a).ahead_steps);
    destroy_and_check(a);
}

TEST_EACH(WAYS, a_lost_device_is_left_alone) {
    weir_options options = ahead_options(_i, 6 * GIB);
    weir_allocator *a = create_on(&real, &options);
    AWAIT(stats_of(a).ahead_steps > 0);
    weir__goal_pause_ahead(&a->reserve);
    weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_LOST, 1);
    uint64_t steps = stats_of(a).ahead_steps;
    weir__goal_resume_ahead(&a->reserve);
    sleep_for_ms(20);
    MUST_EQ(stats_of(a).ahead_steps, steps);
    OK(weir_allocator_destroy(a));
}

/* Makes each later creation of a thread fail. */
static void refuse_threads(void) {
    pthread_attr_t huge;

    MUST(pthread_attr_init(&huge) == 0 && pthread_attr_setstacksize(&huge, (size_t)1 << 50) == 0);
    MUST(pthread_setattr_default_np(&huge) == 0);
    pthread_attr_destroy(&huge);
}

/* Requests grow the reserved memory themselves if weir cannot start a thread. */
TEST_EACH(WAYS, without_a_thread_there_is_an_allocator) {
    weir_options options = ahead_options(_i, 64 * MIB);
    catch_log();
    refuse_threads();
    options.log = WEIR_LOG_WARNING;
    weir_allocator *a = create_on(&real, &options);
    (void)lines();
    ck_assert(strstr(logged, "nothing is done in the background") != NULL);
    uint64_t steps = stats_of(a).ahead_steps;
    OK(weir_free(a, alloc_block_from(a, 2 * GIB, A), A));
    MUST_EQ(stats_of(a).ahead_steps, steps);
    MUST_EQ(stats_of(a).growth_allocs, 1);
    destroy_and_check(a);
}

/* A request moves idle memory rather than grow, whether or not grow-ahead is set. */
TEST_EACH(2, without_a_thread_memory_moves) {
    weir_options options = ahead_options(MAPPED, _i ? 512 * MIB : 0);
    void *block[4];
    refuse_threads();
    weir_allocator *a = create_on(&real, &options);
    for (int i = 0; i < 4; i++)
        block[i] = alloc_block_from(a, 256 * MIB, A);
    for (int i = 0; i < 4; i += 2)
        OK(weir_free(a, block[i], A));
    uint64_t made = weir__model_calls(WEIR_ENTRY_cuMemCreate);
    OK(weir_free(a, alloc_block_from(a, 480 * MIB, A), A));
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuMemCreate), made);
    for (int i = 1; i < 4; i += 2)
        OK(weir_free(a, block[i], A));
    destroy_and_check(a);
}

/* Growth stops when twice the amount is idle; twice a share is at most 100%. */
TEST_EACH(WAYS, growth_stops_at_twice_the_amount) {
    static const struct {
        weir_amount low;
        uint64_t high;
    } cases[] = {{{96 * MIB, WEIR_AMOUNT_BYTES}, 192 * MIB},
                 {{UINT64_MAX, WEIR_AMOUNT_BYTES}, UINT64_MAX},
                 {{250000, WEIR_AMOUNT_OF_TOTAL}, 4 * GIB},
                 {{750000, WEIR_AMOUNT_OF_TOTAL}, 8 * GIB},
                 {{250000, WEIR_AMOUNT_OF_FREE}, 4 * GIB},
                 {{750000, WEIR_AMOUNT_OF_FREE}, 8 * GIB}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weir_options options = ahead_options(_i, 0);
        options.grow_ahead = cases[i].low;
        weir_allocator *a = create_on(driver, &options);
        MUST_EQ(a->high, cases[i].high);
        destroy_and_check(a);
    }
}

TEST_WHERE(0, WAYS, is_no_pool, pauses_after_failures_double_to_a_bound) {
    weir_allocator *a = make_ahead(driver, _i, 256 * MIB);
    uint64_t pause = 0, before = 0, failed_requests;

    OK(weir_free(a, alloc_block_from(a, 3 * MIB, A), A));
    weir__model_fail(grows_by(_i), 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    for (uint64_t waited = 0; before < 11; waited++) {
        weir__model_advance(MS);
        /* The engine has room for this request, and no inbox has a block of its size. */
        OK(weir_free(a, alloc_block_from(a, (2 + waited % 2) * MIB, A), A));
        failed_requests = stats_of(a).ahead_failures;
        if (failed_requests == before)
            continue;
        MUST_EQ(failed_requests, before + 1);
        if (pause > 0) {
            MUST_LE(pause, waited + 1);
            MUST_LE(waited, pause + 1);
        }
        pause = pause == 0 ? 10 : pause < 2560 ? 2 * pause : 2560;
        before = failed_requests;
        waited = 0;
    }
    ck_assert_uint_eq(pause, 2560);
    weir__model_faults_clear();
    destroy_and_check(a);
}

/* A cache hit makes equal driver calls with and without grow-ahead. */
TEST_WHERE(0, WAYS, is_no_pool, a_hit_costs_no_more_with_growth_ahead) {
    uint64_t made[2][WEIR_ENTRY_COUNT];

    for (int on = 0; on < 2; on++) {
        open_ahead_device();
        weir_allocator *a = make_ahead(driver, _i, on ? GIB : 0);
        for (int i = 0; i < 10; i++)
            OK(weir_free(a, alloc_block_from(a, 1000, A), A));
        count_from_here();
        OK(weir_free(a, alloc_block_from(a, 1000, A), A));
        for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
            made[on][i] = calls((enum weir_driver_entry)i);
        destroy_and_check(a);
    }
    ck_assert_mem_eq(made[0], made[1], sizeof made[0]);
}

SUITE("ahead, played", CK_FORK);
