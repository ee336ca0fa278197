/* SPDX-License-Identifier: MIT */
/* test_ahead.c: background growth by a thread, on the device model.
 *
 * The driver table lacks `set_background`, as on a real device, so a thread grows the reserved memory. A test waits
 * for each step that must come, and waits 20 ms longer to see that no other step comes. */
#include "tests/fixtures/ahead.h"

#include <semaphore.h>

#include "tests/fixtures/logged.h"

/* Checks that background growth makes no step within 20 ms. */
static void expect_rest(weir_allocator *a) {
    uint64_t steps = stats_of(a).ahead_steps;

    sleep_for_ms(20);
    MUST_EQ(stats_of(a).ahead_steps, steps);
}

static void await_rest(weir_allocator *a) {
    uint64_t steps;

    do {
        steps = stats_of(a).ahead_steps;
        sleep_for_ms(20);
    } while (stats_of(a).ahead_steps > steps);
}

CASE("thread", 120, open_ahead_device, NULL);

TEST_EACH(WAYS, growth_ahead_is_off_by_default) {
    weir_allocator *a = make_ahead(&real, _i, 0);
    MUST_EQ(a->reserve.goal.ahead.is_on, 0);
    OK(weir_free(a, alloc_block_from(a, 100 * MIB, A), A));
    sleep_for_ms(5);
    weir_statistics s = stats_of(a);
    ck_assert_uint_eq(s.ahead_steps + s.ahead_bytes + s.ahead_ns + s.ahead_failures, 0);
    destroy_and_check(a);
}

TEST_EACH(WAYS, little_is_idle_and_then_enough) {
    weir_allocator *a = make_ahead(&real, _i, 256 * MIB);
    AWAIT(idle_of(a) >= 512 * MIB); /* growth begins with the allocator */
    await_rest(a);
    MUST_LE(idle_of(a), 512 * MIB + a->reserve.engine->step_bytes);
    void *small = alloc_block_from(a, 100 * MIB, A); /* more than 256 MiB stays idle */
    expect_rest(a);
    MUST_LE(idle_of(a), 512 * MIB);
    weir_statistics s = stats_of(a);
    ck_assert_uint_eq(s.growths, s.ahead_steps); /* no request has grown the reserved memory */
    ck_assert_uint_eq(s.growth_allocs, 0);
    void *large = alloc_block_from(a, 300 * MIB, A);
    /* Each region is too small for the request, which then grows itself and leaves the idle memory. */
    AWAIT(idle_of(a) >= (_i == REGIONS ? 256 : 512) * MIB);
    await_rest(a);
    OK(weir_free(a, small, A));
    OK(weir_free(a, large, A));
    expect_rest(a);
    check_steps(a);
    ck_assert_uint_eq(stats_of(a).ahead_failures, 0);
    destroy_and_check(a);
}

TEST_EACH(WAYS, another_stream_is_served_from_it) {
    weir_allocator *a = make_ahead(&real, _i, 256 * MIB);
    void *block[2];

    AWAIT(idle_of(a) >= 512 * MIB);
    await_rest(a);
    busy(A, 50 * MS);
    block[0] = alloc_block_from(a, 40 * MIB, A);
    block[1] = alloc_block_from(a, 40 * MIB, B);
    ck_assert_uint_eq(stats_of(a).growth_allocs, 0);
    OK(weir_free(a, block[0], A));
    OK(weir_free(a, block[1], B));
    CU(driver->cuCtxSynchronize());
    destroy_and_check(a);
}

/* Background growth stops at the limit. No request counts as failed. */
TEST_EACH(WAYS, the_limit_holds) {
    weir_options options = ahead_options(_i, 256 * MIB);
    options.limit = bytes_amount(320 * MIB);
    weir_allocator *a = create_on(&real, &options);
    AWAIT(stats_of(a).ahead_failures >= 2);
    ck_assert_uint_eq(stats_of(a).reserved, 320 * MIB);
    ck_assert_uint_eq(stats_of(a).failed_requests, 0);
    OK(weir_free(a, alloc_block_from(a, _i == REGIONS ? 64 * MIB : 320 * MIB, A), A));
    ck_assert_uint_eq(stats_of(a).reserved_peak, 320 * MIB);
    check_steps(a);
    destroy_and_check(a);
}

/* Background growth leaves a 64th of the device free. A request may use that part. */
TEST_EACH(WAYS, the_last_part_is_for_requests) {
    weir_allocator *a = make_ahead(&real, _i, 7 * GIB);
    AWAIT(stats_of(a).ahead_failures >= 2);
    size_t left = device_free();
    MUST_BE_WITHIN(128 * MIB, left, 128 * MIB + a->reserve.engine->step_bytes);
    ck_assert_int_eq(weir_last_driver_result(), 0);
    OK(weir_free(
        a, alloc_block_from(a, _i == REGIONS ? 100 * MIB : stats_of(a).reserved + 64 * MIB, A), A));
    check_steps(a);
    destroy_and_check(a);
}

TEST_EACH(WAYS, a_failure_is_tried_again_ever_later) {
    uint64_t failed_requests;
    /* The pause after the n-th failure is 10 ms, doubled n - 1 times. */
    weir__model_fail(grows_by(_i), 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    uint64_t from = real_ms();
    weir_allocator *a = make_ahead(&real, _i, 256 * MIB);
    AWAIT(stats_of(a).ahead_failures >= 4);
    for (int i = 0; i < 20; i++, sleep_for_ms(5)) {
        failed_requests = stats_of(a).ahead_failures;
        MUST_LE(10 * ((UINT64_C(1) << (failed_requests - 1)) - 1), real_ms() - from + 1);
    }
    ck_assert_uint_eq(stats_of(a).reserved, 0);
    weir__model_faults_clear();
    AWAIT(idle_of(a) >= 512 * MIB);
    check_steps(a);
    destroy_and_check(a);
}

static void wait_for_child(pid_t child) {
    int state;

    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &state, 0), child);
    ck_assert_msg(WIFEXITED(state) && WEXITSTATUS(state) == 0, "the child's state is %d", state);
}

/* The child of fork has an allocator without a thread. The fork may come in the middle of a growth step. */
TEST_EACH(WAYS, a_child_of_fork_neither_grows_nor_hangs) {
    weir_allocator *a = make_ahead(&real, _i, 2 * GIB);
    void *block = NULL;

    for (int i = 0; i < 20; i++) {
        pid_t child = fork();

        if (child == 0) {
            alarm(20);
            exit(weir_alloc(a, MIB, A, &block) != WEIR_E_FORKED ||
                 weir_allocator_destroy(a) != WEIR_E_FORKED);
        }
        wait_for_child(child);
        sleep_for_ms(i % 3);
    }
    AWAIT(idle_of(a) >= 4 * GIB);
    destroy_and_check(a);
}

TEST_EACH(WAYS, destroying_ends_it_promptly) {
    for (int i = 0; i < 30; i++) {
        weir_allocator *a = make_ahead(&real, _i, 4 * GIB);
        OK(weir_free(a, alloc_block_from(a, 10 * MIB, A), A));
        CU(driver->cuStreamSynchronize(A));
        sleep_for_ms(i % 4);
        uint64_t from = real_ms();
        destroy_and_check(a);
        MUST_LE(real_ms() - from, 1000); /* the longest pause takes 2560 ms */
    }
    ck_assert_uint_eq(device_free(), 8 * GIB);
}

TEST_WHERE(POOL, POOL + 1, NULL, destroying_ends_a_long_pause) {
    weir__model_fail(grows_by(_i), 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    weir_allocator *a = make_ahead(&real, _i, 256 * MIB);
    AWAIT(stats_of(a).ahead_failures >= 8); /* the next pause takes 1280 ms */
    weir__model_faults_clear();
    uint64_t from = real_ms();
    destroy_and_check(a);
    MUST_LE(real_ms() - from, 800);
}

TEST_EACH(WAYS, what_is_busy_goes_on) {
    weir_allocator *a = make_ahead(&real, _i, 256 * MIB);
    void *block = alloc_block_from(a, MIB, A);

    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    AWAIT(idle_of(a) >= 511 * MIB); /* the block may use 1 MiB of the idle memory */
    OK(weir_free(a, block, A));
    destroy_and_check(a);
}

TEST_EACH(WAYS, two_allocators_have_one_each) {
    weir_allocator *a = make_ahead(&real, _i, 256 * MIB);
    weir_allocator *b = make_ahead(&real, (_i + 1) % WAYS, 384 * MIB);

    AWAIT(idle_of(a) >= 512 * MIB);
    AWAIT(idle_of(b) >= 768 * MIB);
    destroy_and_check(a);
    OK(weir_free(b, alloc_block_from(b, 600 * MIB, A), A));
    AWAIT(stats_of(b).reserved >= 768 * MIB);
    await_rest(b); /* check_steps reads the statistics first, and the events later */
    check_steps(b);
    destroy_and_check(b);
}

/* A capture in global mode stays valid while another thread grows the reserved memory. */
TEST_EACH(WAYS, a_capture_goes_on_beside_it) {
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    weir_allocator *a = make_ahead(&real, _i, 256 * MIB);
    AWAIT(idle_of(a) >= 512 * MIB);
    drop_capture(A);
    destroy_and_check(a);
}

TEST_EACH(WAYS, no_stream_of_the_program_is_touched) {
    weir_allocator *a = make_ahead(&real, _i, 256 * MIB);

    busy(A, 1000 * MS);
    busy(B, 1000 * MS);
    AWAIT(idle_of(a) >= 512 * MIB);
    ck_assert_uint_eq(driver->cuStreamQuery(A), CUDA_ERROR_NOT_READY);
    ck_assert_uint_eq(driver->cuStreamQuery(B), CUDA_ERROR_NOT_READY);
    CU(driver->cuCtxSynchronize());
    destroy_and_check(a);
}

struct worker {
    weir_allocator *a;
    uint64_t random;
    pthread_t thread;
};

static void *churn_and_trim(void *argument) {
    struct worker *w = argument;
    CUstream stream;
    void *block[8] = {NULL};
    size_t released;

    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2000; i++) {
        void **b = &block[next_random(&w->random) % 8];

        OK(weir_free(w->a, *b, stream));
        *b = alloc_block_from(w->a, random_size(&w->random, 64 * MIB), stream);
        if (i % 100 == 0)
            (void)stats_of(w->a);
        if (i % 500 == 0)
            OK(weir_trim(w->a, 0, &released));
    }
    for (int i = 0; i < 8; i++)
        OK(weir_free(w->a, block[i], stream));
    CU(driver->cuStreamSynchronize(stream));
    CU(driver->cuStreamDestroy(stream));
    return NULL;
}

TEST_EACH(WAYS, growth_ahead_runs_beside_working_threads) {
    weir_allocator *a = make_ahead(&real, _i, 256 * MIB);
    struct worker w[3];
    for (int i = 0; i < 3; i++) {
        w[i] = (struct worker){.a = a, .random = 77 + (uint64_t)i};
        ck_assert_int_eq(pthread_create(&w[i].thread, NULL, churn_and_trim, &w[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_join(w[i].thread, NULL), 0);
    OK(weir_trim(a, 0, NULL)); /* makes the reserved memory independent of the scheduling */
    void *block = alloc_block_from(a, 256 * MIB, A);
    AWAIT(idle_of(a) >= 256 * MIB);
    await_rest(a);
    OK(weir_free(a, block, A));
    weir_statistics s = check_identities(a);
    ck_assert_uint_gt(s.ahead_steps, 0);
    MUST_EQ(s.blocks, 0);
    MUST_LE(s.requested_peak, 3 * 8 * 64 * MIB + 256 * MIB); /* the peak contains no probe block */
    destroy_and_check(a);
}

CASE("exit", 120, NULL, NULL);

/* The process exits without destroying the allocator, while its thread grows. */
TEST_EACH(WAYS, a_process_may_exit_meanwhile) {
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();

        if (child == 0) {
            alarm(20);
            open_ahead_device();
            (void)make_ahead(&real, _i, 4 * GIB);
            sleep_for_ms(i % 4);
            exit(0);
        }
        wait_for_child(child);
    }
}

static void expect_log_of(const weir_options *options, const char *text) {
    weir_options loud = *options;
    loud.log = WEIR_LOG_WARNING;
    weir_allocator *a = create_on(&real, &loud);
    (void)lines();
    ck_assert_msg(strstr(logged, text) != NULL, "not \"%s\" but \"%s\"", text, logged);
    destroy_and_check(a);
}

CASE("thread", 120, open_ahead_device, NULL);

TEST(what_has_no_use_for_it_says_so) {
    weir_options options = ahead_options(POOL, 64 * MIB);

    catch_log();
    options.engine = WEIR_ENGINE_DIRECT;
    options.growth = WEIR_GROWTH_DEFAULT;
    expect_log_of(&options, "grow-ahead has no effect with engine direct");
    options.engine = WEIR_ENGINE_BFC_FIXED;
    expect_log_of(&options, "grow-ahead has no effect with engine bfc-fixed");
    options.engine = WEIR_ENGINE_POOL;
    options.release_threshold = bytes_amount(32 * MIB);
    expect_log_of(&options, "makes each synchronisation release what grow-ahead reserved");
}

/* Driver 11.2 does not report the size of a pool, so weir cannot grow the pool in the background. */
TEST_WHERE(POOL, REGIONS, NULL, what_cannot_be_told_is_left_alone) {
    weir_options options = ahead_options(_i, 64 * MIB);
    real.capabilities &= ~(unsigned)WEIR_CAP_POOL_FIGURES;
    catch_log();
    options.log = WEIR_LOG_WARNING;
    weir_allocator *a = create_on(&real, &options);
    AWAIT((lines(), strstr(logged, "grow-ahead has no effect: this driver")) != NULL);
    OK(weir_free(a, alloc_block_from(a, 100 * MIB, A), A));
    ck_assert_uint_eq(stats_of(a).ahead_steps + stats_of(a).ahead_failures, 0);
    destroy_and_check(a);
}

/* The test holds a growth step in cuMemSetAccess, the last driver call of the step, for ten seconds at most. */
static sem_t inside, go_on;
static int holds; /* the number of calls until one is held, or 0 */
static int held_call = 1, gave_up;
static CUresult answer; /* the result of the held call, or CUDA_SUCCESS to call the driver */

static CUresult held_access(CUdeviceptr base, size_t bytes, const CUmemAccessDesc *list,
                            size_t count) {
    struct timespec until;

    if (holds == 0 || --holds > 0)
        return driver->cuMemSetAccess(base, bytes, list, count);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    sem_post(&inside);
    gave_up = sem_timedwait(&go_on, &until) != 0;
    return answer != CUDA_SUCCESS ? answer : driver->cuMemSetAccess(base, bytes, list, count);
}

struct grower {
    weir_allocator *a;
    pthread_t thread;
    weir_status status;
    size_t bytes;
    void *block;
};

static void *preallocate_in_thread(void *grower) {
    struct grower *g = grower;

    g->status = weir_preallocate(g->a, g->bytes, NULL);
    return NULL;
}

static void *ask_meanwhile(void *grower) {
    struct grower *g = grower;

    g->status = weir_alloc(g->a, g->bytes, A, &g->block);
    return NULL;
}

/* Makes a mapped arena of 64 MiB, and grows the arena to `bytes` in another thread. Returns when the growth is held in
 * its cuMemSetAccess number `held_call`. */
static weir_allocator *make_held(struct grower *g, size_t bytes) {
    static struct weir_driver holding;
    weir_options options = ahead_options(MAPPED, 0);

    sem_init(&inside, 0, 0);
    sem_init(&go_on, 0, 0);
    holding = real;
    holding.cuMemSetAccess = held_access;
    options.cache = WEIR_SWITCH_OFF;
    options.prealloc = bytes_amount(64 * MIB);
    *g = (struct grower){.a = create_on(&holding, &options), .bytes = bytes};
    holds = held_call;
    ck_assert_int_eq(pthread_create(&g->thread, NULL, preallocate_in_thread, g), 0);
    while (sem_wait(&inside) != 0)
        ;
    return g->a;
}

static void resume_grower(struct grower *g) {
    sem_post(&go_on);
    ck_assert_int_eq(pthread_join(g->thread, NULL), 0);
    ck_assert_msg(!gave_up, "what had room waited for a step of growth");
}

/* A request that finds room does not wait for the held step. The reserved memory counts the step from its beginning. */
TEST(what_has_room_does_not_wait_for_a_step) {
    struct grower g;
    weir_allocator *a = make_held(&g, 256 * MIB);
    void *block = alloc_block_from(a, 20 * MIB, A);
    uint64_t before = stats_of(a).reserved;

    MUST_LE(64 * MIB + 2 * MIB, before);
    OK(weir_free(a, block, A));
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_LE(stats_of(a).reserved, before - 48 * MIB);
    before = stats_of(a).reserved;
    resume_grower(&g);
    OK(g.status);
    MUST_LE(before, stats_of(a).reserved);
    OK(weir_trim(a, 0, NULL));
    ck_assert_uint_eq(stats_of(a).reserved, 0);
    destroy_and_check(a);
}

/* A request without room waits for the held step, and grows only if that step is not enough. */
TEST_EACH(2, who_has_to_grow_waits_for_what_comes) {
    struct grower g;
    weir_allocator *a = make_held(&g, 256 * MIB);
    uint64_t asked = weir__model_calls(WEIR_ENTRY_cuStreamQuery);
    struct grower asks = (struct grower){.a = a, .bytes = (_i ? 400 : 160) * MIB};
    ck_assert_int_eq(pthread_create(&asks.thread, NULL, ask_meanwhile, &asks), 0);
    sleep_for_ms(20);
    resume_grower(&g);
    OK(g.status);
    ck_assert_int_eq(pthread_join(asks.thread, NULL), 0);
    OK(asks.status);
    MUST_LE(stats_of(a).reserved, (_i ? 400 + 2 * 256 : 256 + 2) * MIB);
    ck_assert_uint_eq(stats_of(a).growth_allocs, _i ? 1 : 0);
    if (!_i) /* the request has queried no stream */
        MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamQuery), asked);
    OK(weir_free(a, asks.block, A));
    destroy_and_check(a);
}

/* A failed step leaves no memory, and the next step uses its addresses. If the driver refuses to unmap the memory of a
 * failed step, that memory stays part of the reserved memory, and the next step is placed behind it. Steps for small
 * requests follow these rules, too. */
TEST_EACH(3, what_does_not_come_leaves_nothing) {
    uint64_t all = device_free();
    struct grower g;
    answer = CUDA_ERROR_INVALID_VALUE;
    held_call = _i == 2 ? 2 : 1;
    weir_allocator *a = make_held(&g, 256 * MIB);
    OK(weir_free(a, alloc_block_from(a, 20 * MIB, A), A));
    if (_i)
        weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    resume_grower(&g);
    EXPECT(WEIR_E_DRIVER, g.status);
    MUST((stats_of(a).reserved == 64 * MIB) == !_i);
    MUST_EQ(stats_of(a).reserved_peak, stats_of(a).reserved);
    MUST_EQ(all - device_free(), stats_of(a).reserved);
    if (_i) {
        OK(weir_preallocate(a, 320 * MIB, NULL));
        ck_assert_uint_eq(stats_of(a).reserved, 320 * MIB);
        weir__model_faults_clear();
        OK(weir_trim(a, 0, NULL));
    }
    OK(weir_preallocate(a, 256 * MIB, NULL));
    ck_assert_uint_eq(stats_of(a).reserved, 256 * MIB);
    destroy_and_check(a);
    MUST_EQ(device_free(), all);
}

/* A limit lowered during growth applies to all memory that the driver has not begun to map. The growth reports that
 * limit as the cause of its failure. */
TEST_EACH(2, a_limit_that_is_lowered_meanwhile_is_the_cause) {
    struct grower g;
    weir_allocator *a = make_held(&g, GIB);

    OK(weir_set_limit(a, bytes_amount((_i ? 96 : 400) * MIB)));
    resume_grower(&g);
    EXPECT(WEIR_E_LIMIT, g.status);
    MUST_EQ(stats_of(a).reserved, (_i ? 96 : 400) * MIB);
    EXPECT(WEIR_E_LIMIT, weir_preallocate(a, GIB, NULL));
    OK(weir_preallocate(a, stats_of(a).reserved, NULL));
    OK(weir_set_limit(a, bytes_amount(GIB)));
    OK(weir_preallocate(a, GIB, NULL));
    destroy_and_check(a);
}

SUITE("ahead", CK_FORK);
