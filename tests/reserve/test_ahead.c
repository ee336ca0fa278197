/* SPDX-License-Identifier: MIT */
/* test_ahead.c: growth in the background, ahead of demand.
 *
 * A modelled device has its turns played between the calls, in virtual time, so that those tests come
 * out the same each time.  The thread is tested on the same model, through a table that cannot play
 * anything aside, as a real device's cannot; there a test waits for what must come, and looks a while
 * longer for what must not.
 */
#include "tests/fixtures/model_device.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "reserve/background_growth.h"
#include "api/allocator_internal.h"
#include "tests/fixtures/blocks.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/logged.h"

enum way { POOL, POOL_ALONE, REGIONS, MAPPED, WAYS };

static struct weir_driver real; /* the model as a device that is none */

static void open_device(void) {
    start_model(8 * GIB);
    real = *driver;
    real.aside = NULL;
}

static weir_options options_for(int way, uint64_t low, uint64_t high) {
    weir_options options;

    weir_options_init(&options);
    options.device = "model";
    options.engine = way <= POOL_ALONE ? WEIR_ENGINE_POOL : WEIR_ENGINE_ARENA;
    options.arena = way == MAPPED ? WEIR_ARENA_MAPPED : WEIR_ARENA_DEFAULT;
    options.front = way == POOL_ALONE ? WEIR_SWITCH_OFF : WEIR_SWITCH_DEFAULT;
    options.growth = WEIR_GROWTH_EXACT;
    options.recovery_timeout_ms = UINT32_MAX;
    options.front_cache = bytes_amount(0);
    if (low > 0)
        options.headroom = bytes_amount(low);
    if (high > 0)
        options.headroom_high = bytes_amount(high);
    return options;
}

static weir_allocator *make_on(const struct weir_driver *table, const weir_options *options) {
    weir_allocator *a = NULL;
    char message[320] = "";
    weir_status status = weir__allocator_create_on(table, options, &a, message, sizeof message);

    ck_assert_msg(status == WEIR_OK, "%s: %s", weir_status_name(status), message);
    return a;
}

static weir_allocator *make(const struct weir_driver *table, int way, uint64_t low, uint64_t high) {
    weir_options options = options_for(way, low, high);

    return make_on(table, &options);
}

static uint64_t idle_of(weir_allocator *a) {
    weir_statistics s = stats_of(a);

    return s.reserve - s.in_use;
}

static void nap(long ms) {
    nanosleep(&(struct timespec){0, ms * 1000000}, NULL);
}

static uint64_t real_ms(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* It comes to hold before half a minute is over. */
#define AWAIT(condition)                                                                           \
    do {                                                                                           \
        uint64_t await_from = real_ms();                                                           \
        while (!(condition)) {                                                                     \
            if (real_ms() - await_from > 30000)                                                    \
                ck_abort_msg("in vain: %s", #condition);                                           \
            nap(1);                                                                                \
        }                                                                                          \
    } while (0)

/* The reserved memory is the same for as long as some steps would take. */
static void expect_rest(weir_allocator *a) {
    uint64_t steps = stats_of(a).ahead_steps;

    nap(20);
    MUST_EQ(stats_of(a).ahead_steps, steps);
}

static void await_rest(weir_allocator *a) {
    uint64_t steps;

    do {
        steps = stats_of(a).ahead_steps;
        nap(20);
    } while (stats_of(a).ahead_steps > steps);
}

/* The books and the ring agree on what was done in the background, no step of which was too large. */
static void check_steps(weir_allocator *a) {
    weir_event events[512];
    weir_statistics s = check_identities(a);
    uint64_t steps = 0, bytes = 0, ns = 0, stall = 0;
    size_t count;

    OK(weir_events(a, 0, events, sizeof events[0], 512, &count));
    for (size_t i = 0; i < count; i++) {
        if (events[i].cause != WEIR_EVENT_HEADROOM) {
            stall += events[i].shrink ? 0 : events[i].stall_ns;
            continue;
        }
        MUST_EQ(events[i].shrink, 0);
        MUST_LE(1, events[i].got);
        MUST_LE(events[i].got, a->reserve.engine->step_bytes);
        steps++;
        bytes += events[i].got;
        ns += events[i].stall_ns;
    }
    MUST_EQ(s.ahead_steps, steps);
    MUST_EQ(s.ahead_bytes, bytes);
    MUST_EQ(s.ahead_ns, ns);
    MUST_LE(stall, s.stall_ns); /* OOM recovery's waits are in it too */
    MUST_EQ(s.stall_ns, stall);
}

static void destroy(weir_allocator *a) {
    OK(weir_allocator_destroy(a));
    check_model();
}

/* ---- the thread ------------------------------------------------------------------------------ */

START_TEST(off_by_default) {
    weir_allocator *a = make(&real, _i, 0, 0);
    weir_statistics s;

    ck_assert_ptr_null(a->reserve.ahead);
    OK(weir_free(a, take(a, 100 * MIB, A), A));
    nap(5);
    s = stats_of(a);
    ck_assert_uint_eq(s.ahead_steps + s.ahead_bytes + s.ahead_ns + s.ahead_refusals, 0);
    destroy(a);
}
END_TEST

START_TEST(little_is_idle_and_then_enough) {
    weir_allocator *a = make(&real, _i, 256 * MIB, 512 * MIB);
    void *small, *large;
    weir_statistics s;

    AWAIT(idle_of(a) >= 512 * MIB); /* from the beginning */
    await_rest(a);
    MUST_LE(idle_of(a), 512 * MIB + a->reserve.engine->step_bytes);
    small = take(a, 100 * MIB, A); /* enough is left */
    expect_rest(a);
    MUST_LE(idle_of(a), 512 * MIB);
    s = stats_of(a);
    ck_assert_uint_eq(s.growths, s.ahead_steps); /* the request met none */
    ck_assert_uint_eq(s.growth_allocs, 0);
    large = take(a, 300 * MIB, A);
    AWAIT(idle_of(a) >= 512 * MIB);
    await_rest(a);
    OK(weir_free(a, small, A));
    OK(weir_free(a, large, A));
    expect_rest(a);
    check_steps(a);
    ck_assert_uint_eq(stats_of(a).ahead_refusals, 0);
    destroy(a);
}
END_TEST

START_TEST(another_stream_is_served_from_it) {
    weir_allocator *a = make(&real, _i, 256 * MIB, 512 * MIB);
    void *block[2];

    AWAIT(idle_of(a) >= 512 * MIB);
    await_rest(a);
    busy(A, 50 * MS);
    block[0] = take(a, 40 * MIB, A);
    block[1] = take(a, 40 * MIB, B);
    ck_assert_uint_eq(stats_of(a).growth_allocs, 0);
    OK(weir_free(a, block[0], A));
    OK(weir_free(a, block[1], B));
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

/* It has what the limit leaves, and that it gets no more is nobody's error. */
START_TEST(the_limit_holds) {
    weir_options options = options_for(_i, 256 * MIB, 512 * MIB);
    weir_allocator *a;

    options.limit = bytes_amount(320 * MIB);
    a = make_on(&real, &options);
    AWAIT(stats_of(a).ahead_refusals >= 2);
    ck_assert_uint_eq(stats_of(a).reserve, 320 * MIB);
    ck_assert_uint_eq(stats_of(a).refusals, 0);
    OK(weir_free(a, take(a, _i == REGIONS ? 64 * MIB : 320 * MIB, A), A));
    ck_assert_uint_eq(stats_of(a).reserve_peak, 320 * MIB);
    check_steps(a);
    destroy(a);
}
END_TEST

/* A 64th of the device is left alone, and a request may have it. */
START_TEST(the_last_part_is_for_requests) {
    weir_allocator *a = make(&real, _i, 7 * GIB, 10 * GIB);
    size_t left;

    AWAIT(stats_of(a).ahead_refusals >= 2);
    left = device_free();
    MUST_LE(128 * MIB, left);
    MUST_LE(left, 128 * MIB + a->reserve.engine->step_bytes);
    ck_assert_int_eq(weir_last_driver_result(), 0);
    OK(weir_free(a, take(a, _i == REGIONS ? 100 * MIB : stats_of(a).reserve + 64 * MIB, A), A));
    check_steps(a);
    destroy(a);
}
END_TEST

static enum weir_driver_entry grows_by(int way) {
    return way <= POOL_ALONE ? WEIR_ENTRY_cuMemAllocFromPoolAsync
           : way == REGIONS  ? WEIR_ENTRY_cuMemAlloc
                             : WEIR_ENTRY_cuMemCreate;
}

START_TEST(a_failure_is_tried_again_ever_later) {
    weir_allocator *a;
    uint64_t refusals, from;

    /* after the n-th a pause of 10 ms, doubled n - 1 times */
    weir__model_fail(grows_by(_i), 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    from = real_ms();
    a = make(&real, _i, 256 * MIB, 512 * MIB);
    AWAIT(stats_of(a).ahead_refusals >= 4);
    for (int i = 0; i < 20; i++, nap(5)) {
        refusals = stats_of(a).ahead_refusals;
        MUST_LE(10 * ((UINT64_C(1) << (refusals - 1)) - 1), real_ms() - from + 1);
    }
    ck_assert_uint_eq(stats_of(a).reserve, 0);
    weir__model_faults_clear();
    AWAIT(idle_of(a) >= 512 * MIB);
    check_steps(a);
    destroy(a);
}
END_TEST

static void wait_for_child(pid_t child) {
    int state;

    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &state, 0), child);
    ck_assert_msg(WIFEXITED(state) && WEXITSTATUS(state) == 0, "the child's state is %d", state);
}

/* The child has an allocator whose thread there is not, in the middle of a step or not. */
START_TEST(a_child_of_fork_neither_grows_nor_hangs) {
    weir_allocator *a = make(&real, _i, 2 * GIB, 4 * GIB);
    void *block = NULL;

    for (int i = 0; i < 20; i++) {
        pid_t child = fork();

        if (child == 0) {
            alarm(20);
            exit(weir_alloc(a, MIB, A, &block) != WEIR_E_FORKED ||
                 weir_allocator_destroy(a) != WEIR_E_FORKED);
        }
        wait_for_child(child);
        nap(i % 3);
    }
    AWAIT(idle_of(a) >= 4 * GIB);
    destroy(a);
}
END_TEST

START_TEST(destroying_ends_it_promptly) {
    for (int i = 0; i < 30; i++) {
        weir_allocator *a = make(&real, _i, 4 * GIB, 6 * GIB);
        uint64_t from;

        OK(weir_free(a, take(a, 10 * MIB, A), A));
        CU(driver->cuStreamSynchronize(A));
        nap(i % 4);
        from = real_ms();
        destroy(a);
        MUST_LE(real_ms() - from, 1000); /* far less than its longest pause */
    }
    ck_assert_uint_eq(device_free(), 8 * GIB);
}
END_TEST

/* A pause of seconds does not keep anybody. */
START_TEST(destroying_ends_a_long_pause) {
    weir_allocator *a;
    uint64_t from;

    weir__model_fail(grows_by(_i), 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    a = make(&real, _i, 256 * MIB, 512 * MIB);
    AWAIT(stats_of(a).ahead_refusals >= 8); /* the next pause is of 1280 ms */
    weir__model_faults_clear();
    from = real_ms();
    destroy(a);
    MUST_LE(real_ms() - from, 800);
}
END_TEST

START_TEST(what_is_busy_goes_on) {
    weir_allocator *a = make(&real, _i, 256 * MIB, 512 * MIB);
    void *block = take(a, MIB, A);

    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    AWAIT(idle_of(a) >= 511 * MIB); /* the block is of it, or was before it */
    OK(weir_free(a, block, A));
    destroy(a);
}
END_TEST

START_TEST(two_allocators_have_one_each) {
    weir_allocator *a = make(&real, _i, 256 * MIB, 512 * MIB);
    weir_allocator *b = make(&real, (_i + 1) % WAYS, 256 * MIB, 768 * MIB);

    AWAIT(idle_of(a) >= 512 * MIB);
    AWAIT(idle_of(b) >= 768 * MIB);
    destroy(a);
    OK(weir_free(b, take(b, 600 * MIB, A), A));
    AWAIT(stats_of(b).reserve >= 768 * MIB);
    await_rest(b); /* the ring is read after the books */
    check_steps(b);
    destroy(b);
}
END_TEST

/* Growth in another thread harms no capture, whose mode is global here. */
START_TEST(a_capture_goes_on_beside_it) {
    weir_allocator *a;
    CUgraph graph = NULL;

    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    a = make(&real, _i, 256 * MIB, 512 * MIB);
    AWAIT(idle_of(a) >= 512 * MIB);
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphDestroy(graph));
    destroy(a);
}
END_TEST

/* The thread's calls are made by somebody who has no context and no stream of the program's. */
START_TEST(no_stream_of_the_program_is_touched) {
    weir_allocator *a = make(&real, _i, 256 * MIB, 512 * MIB);

    busy(A, 1000 * MS);
    busy(B, 1000 * MS);
    AWAIT(idle_of(a) >= 512 * MIB);
    ck_assert_uint_eq(driver->cuStreamQuery(A), CUDA_ERROR_NOT_READY);
    ck_assert_uint_eq(driver->cuStreamQuery(B), CUDA_ERROR_NOT_READY);
    CU(driver->cuCtxSynchronize());
    destroy(a);
}
END_TEST

struct worker {
    weir_allocator *a;
    uint64_t random;
    pthread_t thread;
};

static void *work(void *argument) {
    struct worker *w = argument;
    CUstream stream;
    void *block[8] = {NULL};
    size_t released;

    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2000; i++) {
        void **b = &block[next_random(&w->random) % 8];

        OK(weir_free(w->a, *b, stream));
        *b = take(w->a, random_size(&w->random, 64 * MIB), stream);
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

START_TEST(beside_threads_at_work) {
    weir_allocator *a = make(&real, _i, 256 * MIB, 512 * MIB);
    struct worker w[3];
    weir_statistics s;
    void *block;

    for (int i = 0; i < 3; i++) {
        w[i] = (struct worker){.a = a, .random = 77 + (uint64_t)i};
        ck_assert_int_eq(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_join(w[i].thread, NULL), 0);
    OK(weir_trim(a, 0, NULL)); /* however the threads were scheduled */
    block = take(a, 256 * MIB, A);
    AWAIT(idle_of(a) >= 256 * MIB);
    await_rest(a);
    OK(weir_free(a, block, A));
    s = check_identities(a);
    ck_assert_uint_gt(s.ahead_steps, 0);
    MUST_EQ(s.blocks, 0);
    MUST_LE(s.requested_peak, 3 * 8 * 64 * MIB + 256 * MIB); /* no probe block is in it */
    destroy(a);
}
END_TEST

/* Nobody destroys it, and the process ends all the same. */
START_TEST(a_process_may_exit_meanwhile) {
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();

        if (child == 0) {
            alarm(20);
            open_device();
            (void)make(&real, _i, 4 * GIB, 6 * GIB);
            nap(i % 4);
            exit(0);
        }
        wait_for_child(child);
    }
}
END_TEST

/* ---- played ---------------------------------------------------------------------------------- */

/* What requests take is theirs alone, and the same each time. */
static uint64_t play_a_run(int way, uint64_t low, uint64_t *in_requests, weir_statistics *s) {
    void *block[40];
    weir_allocator *a;

    open_device();
    a = make(driver, way, low, 0);
    *in_requests = 0;
    for (int i = 0; i < 40; i++) {
        uint64_t from = driver->ticks();

        block[i] = take(a, 20 * MIB, A);
        if (i > 0) /* in the first the driver starts its pools */
            *in_requests += driver->ticks() - from;
        weir__model_advance(2 * MS);
    }
    *s = check_identities(a);
    if (low > 0)
        check_steps(a);
    for (int i = 0; i < 40; i++)
        OK(weir_free(a, block[i], A));
    destroy(a);
    return driver->ticks();
}

START_TEST(on_the_model_it_costs_requests_nothing) {
    weir_statistics plain, ahead, again;
    uint64_t plain_ns, ahead_ns, again_ns, end;

    (void)play_a_run(_i, 0, &plain_ns, &plain);
    end = play_a_run(_i, 200 * MIB, &ahead_ns, &ahead);
    ck_assert_uint_gt(ahead.ahead_steps, 0);
    ck_assert_uint_gt(ahead.ahead_ns, 0);
    MUST_LE(ahead.growth_allocs, 4); /* until its first turns */
    MUST_LE(10, plain.growth_allocs);
    MUST_LE(ahead_ns, plain_ns / 2);
    ck_assert_uint_eq(play_a_run(_i, 200 * MIB, &again_ns, &again), end);
    ck_assert_uint_eq(again_ns, ahead_ns);
    ck_assert_mem_eq(&again, &ahead, sizeof ahead);
}
END_TEST

/* Steps that are made in so many ms, from the first on. */
static uint64_t steps_in(weir_allocator *a, uint64_t ms) {
    uint64_t steps;

    OK(weir_free(a, take(a, 65 * MIB, A), A)); /* the driver's first growth takes it a while */
    steps = stats_of(a).ahead_steps;
    weir__model_advance(ms * MS);
    ck_assert_uint_eq(stats_of(a).ahead_steps, steps);
    OK(weir_free(a, take(a, 65 * MIB, A), A));
    return stats_of(a).ahead_steps - steps;
}

/* A step a millisecond, whether or not anybody looked meanwhile. */
START_TEST(turns_come_when_they_are_due) {
    weir_allocator *a = make(driver, _i, 66 * MIB, 3 * GIB);
    uint64_t steps = steps_in(a, 10), all = 3 * GIB / a->reserve.engine->step_bytes;

    if (all < 8) {
        ck_assert_uint_eq(steps, all);
    } else {
        MUST_LE(8, steps);
        MUST_LE(steps, 10);
    }
    weir__model_advance(200 * MS);
    OK(weir_free(a, take(a, 65 * MIB, A), A));
    MUST_LE(3 * GIB, idle_of(a));
    MUST_LE(idle_of(a), 3 * GIB + 65 * MIB + a->reserve.engine->step_bytes);
    check_steps(a);
    destroy(a);
}
END_TEST

/* The next request would make the step itself. */
START_TEST(the_less_is_idle_the_sooner_they_come) {
    weir_allocator *a = make(driver, _i, 3 * GIB, 0);
    void *block[30];
    uint64_t steps;

    for (int i = 0; i < 30; i++)
        block[i] = take(a, 100 * MIB, A);
    steps = steps_in(a, a->reserve.engine->step_bytes > 64 * MIB ? 2 : 4);
    MUST_LE(a->reserve.engine->step_bytes > 64 * MIB ? 5 : 24, steps);
    check_steps(a);
    for (int i = 0; i < 30; i++)
        OK(weir_free(a, block[i], A));
    destroy(a);
}
END_TEST

/* Not the first request, either: what it asks for is there as the allocator is, and so are its tables. */
START_TEST(it_begins_with_the_allocator) {
    weir_allocator *a = make(driver, _i, 300 * MIB, 0);
    weir_statistics s = stats_of(a);

    MUST_LE(300 * MIB, s.reserve);
    MUST_LE(s.reserve, 300 * MIB + a->reserve.engine->step_bytes);
    MUST_LE(1, s.ahead_steps);
    MUST_LE(s.host_bytes, 64 * MIB);
    OK(weir_free(a, take(a, 100 * MIB, A), A));
    MUST_EQ(stats_of(a).growth_allocs, 0);
    MUST_EQ(stats_of(a).stall_ns, 0);
    check_steps(a);
    destroy(a);
}
END_TEST

/* A request for more than is idle waits for one handle, though several are idle elsewhere; where the arena fits
 * tightly, they move. */
START_TEST(what_is_larger_waits_for_one_handle) {
    weir_options options = options_for(MAPPED, 512 * MIB, 0);
    uint64_t made, moved;
    void *block[4], *large;
    weir_allocator *a;

    options.packing = _i;
    a = make_on(driver, &options);
    for (int i = 0; i < 4; i++)
        block[i] = take(a, 256 * MIB, A);
    weir__model_advance(50 * MS);
    OK(weir_free(a, take(a, 64 * MIB, A), A)); /* the thread goes on */
    for (int i = 0; i < 4; i += 2)
        OK(weir_free(a, block[i], A));
    made = weir__model_calls(WEIR_ENTRY_cuMemCreate);
    moved = weir__model_calls(WEIR_ENTRY_cuMemUnmap);
    large = take(a, 3 * GIB, A);
    made = weir__model_calls(WEIR_ENTRY_cuMemCreate) - made;
    moved = weir__model_calls(WEIR_ENTRY_cuMemUnmap) - moved;
    if (_i == WEIR_PACKING_COMPACT) {
        MUST_LE(1, moved);
    } else {
        MUST_EQ(moved, 0);
        MUST_EQ(made, 1);
    }
    OK(weir_free(a, large, A));
    for (int i = 1; i < 4; i += 2)
        OK(weir_free(a, block[i], A));
    destroy(a);
}
END_TEST

/* What a limit does not let it keep idle is told. */
START_TEST(more_than_can_be_had) {
    weir_options options = options_for(_i, 2 * GIB, 3 * GIB);
    weir_allocator *a;

    catch_log();
    options.limit = bytes_amount(GIB);
    options.log = WEIR_LOG_WARNING;
    a = make_on(driver, &options);
    (void)lines();
    ck_assert_msg(strstr(logged, "grow-ahead of 2GiB is above the 1GiB that can be reserved") !=
                      NULL,
                  "%s", logged);
    OK(weir_free(a, take(a, MIB, A), A));
    MUST_LE(stats_of(a).reserve, GIB);
    destroy(a);
}
END_TEST

/* Small requests of a mapped arena have memory of their own, of which some is kept idle as well. */
START_TEST(small_requests_have_some_of_it) {
    weir_allocator *a = make(driver, MAPPED, 512 * MIB, GIB);
    void *block[200];
    int count = 0;

    while (count < 200) { /* 80 MiB of small ones */
        block[count] = take(a, count % 5 == 0 ? 64 * MIB : MIB / 2, A);
        count++;
        weir__model_advance(2 * MS);
    }
    MUST_EQ(stats_of(a).growth_allocs, 0);
    MUST_LE(stats_of(a).reserve, stats_of(a).in_use + GIB + 32 * MIB);
    check_steps(a);
    while (count > 0)
        OK(weir_free(a, block[--count], A));
    destroy(a);
}
END_TEST

/* More is idle than the mark, but in no piece that holds a request as large as one before.  The last piece, if it lacks
 * little, gets that; no more than the high mark is idle then. */
START_TEST(what_lies_together_is_what_a_request_needs) {
    static const struct {
        size_t largest, piece, then; /* MiB; the piece that is left, before and after */
    } ways[] = {{600, 500, 600}, {600, 400, 400}, {1500, 850, 850}, {600, 700, 700}};
    size_t piece = ways[_i].piece * MIB, then = ways[_i].then * MIB;
    weir_options options = options_for(MAPPED, 256 * MIB, GIB);
    weir_allocator *a;
    uint64_t grown;
    void *block[4];

    options.front = WEIR_SWITCH_OFF; /* each request plays the turns that are due */
    a = make_on(driver, &options);
    OK(weir_preallocate(a, 2 * GIB, NULL)); /* 16 MiB of it for small requests */
    weir__model_advance(20 * MS);
    OK(weir_free(a, take(a, ways[_i].largest * MIB, A), A));
    for (int i = 0; i < 4; i++)
        block[i] = take(a, (2 * GIB - 16 * MIB - piece) / 4, A);
    weir__model_advance(20 * MS);
    OK(weir_free(a, take(a, MIB, A), A));
    MUST_LE(stats_of(a).reserve, 2 * GIB + then - piece + 4 * MIB);
    grown = stats_of(a).growth_allocs;
    OK(weir_free(a, take(a, then - 2 * MIB, A), A));
    MUST_EQ(stats_of(a).growth_allocs, grown);
    for (int i = 0; i < 4; i++)
        OK(weir_free(a, block[i], A));
    check_steps(a);
    destroy(a);
}
END_TEST

/* More is idle than the high mark, in pieces: what decay gives back does not come again. */
START_TEST(what_lies_together_is_no_more_than_may_be_idle) {
    enum { BLOCKS = 64, FREED = 40 };
    weir_options options = options_for(MAPPED, 256 * MIB, GIB);
    weir_allocator *a;
    void *block[BLOCKS], *last;
    uint64_t steps = 0;

    options.front = WEIR_SWITCH_OFF;
    options.decay_ms = 100;
    a = make_on(driver, &options);
    for (int i = 0; i < BLOCKS; i++) {
        block[i] = take(a, 32 * MIB, A);
        weir__model_advance(5 * MS);
    }
    last = take(a, 850 * MIB, A);
    OK(weir_free(a, take(a, 1000 * MIB, A), A));
    for (int i = 0; i < FREED; i += 2)
        OK(weir_free(a, block[i], A));
    OK(weir_free(a, last, A));
    for (int i = 0; i < 100; i++) {
        weir__model_advance(20 * MS);
        OK(weir_free(a, take(a, 3 * MIB, A), A));
        if (i == 20)
            steps = stats_of(a).ahead_steps;
    }
    MUST_EQ(stats_of(a).ahead_steps, steps);
    for (int i = 0; i < BLOCKS; i++)
        if (i >= FREED || i % 2)
            OK(weir_free(a, block[i], A));
    destroy(a);
}
END_TEST

/* A trim takes the rest of a piece for good; and where the limit leaves none, none is asked for. */
START_TEST(what_lies_together_may_be_had_no_more) {
    weir_options options = options_for(MAPPED, 256 * MIB, GIB);
    weir_allocator *a;
    uint64_t reserve;
    void *block[4];

    options.front = WEIR_SWITCH_OFF;
    if (_i)
        options.limit = bytes_amount(2 * GIB);
    a = make_on(driver, &options);
    OK(weir_preallocate(a, 2 * GIB, NULL));
    weir__model_advance(20 * MS);
    OK(weir_free(a, take(a, 600 * MIB, A), A));
    for (int i = 0; i < 4; i++)
        block[i] = take(a, (2 * GIB - 516 * MIB) / 4, A);
    for (int i = 0; i < 50; i++) {
        weir__model_advance(100 * MS);
        OK(weir_free(a, take(a, 3 * MIB, A), A));
    }
    MUST_EQ(stats_of(a).ahead_refusals, 0);
    OK(weir_trim(a, 2 * GIB - 128 * MIB, NULL));
    reserve = stats_of(a).reserve;
    MUST_LE(reserve, 2 * GIB);
    weir__model_advance(100 * MS);
    OK(weir_free(a, take(a, 3 * MIB, A), A));
    MUST_EQ(stats_of(a).reserve, reserve);
    for (int i = 0; i < 4; i++)
        OK(weir_free(a, block[i], A));
    destroy(a);
}
END_TEST

/* Takes 12 MiB each until no more than that is idle; how many. */
static int take_pieces(weir_allocator *a, uint64_t idle, void **piece) {
    int count = 0;

    while (idle_of(a) > idle && count < 100)
        piece[count++] = take(a, 12 * MIB, A);
    return count;
}

/* In regions of 32 MiB, 20 MiB leave 12 that are of no use to the next: that is found out now and then.  What others
 * had of them since is of use. */
START_TEST(idle_pieces_do_not_deceive_it) {
    weir_allocator *a = make(driver, POOL, 200 * MIB, 0);
    void *block[100], *piece[100];
    weir_statistics before;
    int count;

    for (int i = 0; i < 100; i++) {
        block[i] = take(a, 20 * MIB, A);
        weir__model_advance(2 * MS);
    }
    before = stats_of(a);
    MUST_LE(before.growth_allocs, 12);
    weir__ahead_hold(a->reserve.ahead);
    count = take_pieces(a, 60 * MIB, piece);
    for (int i = 0; i < count; i++)
        OK(weir_free(a, piece[i], A));
    weir__ahead_go_on(a->reserve.ahead);
    MUST_LE(500 * MIB, idle_of(a));
    count = take_pieces(a, 500 * MIB, piece);
    weir__model_advance(20 * MS);
    OK(weir_free(a, take(a, MIB, A), A));
    MUST_EQ(stats_of(a).ahead_steps, before.ahead_steps);
    MUST_EQ(stats_of(a).growth_allocs, before.growth_allocs);
    for (int i = 0; i < count; i++)
        OK(weir_free(a, piece[i], A));
    for (int i = 0; i < 100; i++)
        OK(weir_free(a, block[i], A));
    destroy(a);
}
END_TEST

/* A step of another thread is not waited for. */
START_TEST(whoever_finds_a_turn_goes_on) {
    weir_allocator *a = make(driver, _i, 200 * MIB, 2 * GIB);
    uint64_t steps = stats_of(a).ahead_steps;

    weir__ahead_hold(a->reserve.ahead);
    weir__model_advance(5 * MS);
    OK(weir_free(a, take(a, 100 * MIB, A), A));
    MUST_EQ(stats_of(a).ahead_steps, steps);
    weir__ahead_go_on(a->reserve.ahead);
    OK(weir_free(a, take(a, 101 * MIB, A), A));
    MUST_LE(steps + 1, stats_of(a).ahead_steps);
    destroy(a);
}
END_TEST

/* Nothing is begun on a device that is lost, and the end is as prompt. */
START_TEST(a_lost_device_is_left_alone) {
    weir_options options = options_for(_i % WAYS, _i < WAYS ? 0 : 6 * GIB, 0);
    weir_allocator *a;
    uint64_t steps;

    if (_i < WAYS)
        options.prealloc = bytes_amount(6 * GIB);
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    a = make_on(&real, &options);
    AWAIT(stats_of(a).ahead_steps > 0);
    weir__ahead_hold(a->reserve.ahead);
    weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_LOST, 1);
    steps = stats_of(a).ahead_steps;
    weir__ahead_go_on(a->reserve.ahead);
    nap(20);
    MUST_EQ(stats_of(a).ahead_steps, steps);
    OK(weir_allocator_destroy(a));
}
END_TEST

/* No thread is available from now on. */
static void refuse_threads(void) {
    pthread_attr_t huge;

    MUST(pthread_attr_init(&huge) == 0 && pthread_attr_setstacksize(&huge, (size_t)1 << 50) == 0);
    MUST(pthread_setattr_default_np(&huge) == 0);
    pthread_attr_destroy(&huge);
}

/* Then requests grow by themselves. */
START_TEST(without_a_thread_there_is_an_allocator) {
    weir_options options = options_for(_i, 64 * MIB, 0);
    weir_allocator *a;
    uint64_t steps;

    catch_log();
    refuse_threads();
    options.log = WEIR_LOG_WARNING;
    a = make_on(&real, &options);
    (void)lines();
    ck_assert(strstr(logged, "nothing is done in the background") != NULL);
    steps = stats_of(a).ahead_steps;
    OK(weir_free(a, take(a, 2 * GIB, A), A));
    MUST_EQ(stats_of(a).ahead_steps, steps);
    MUST_EQ(stats_of(a).growth_allocs, 1);
    destroy(a);
}
END_TEST

/* And nobody pays for idle memory, so that it moves to them. */
START_TEST(without_a_thread_memory_moves) {
    weir_options options = options_for(MAPPED, _i ? 512 * MIB : 0, 0);
    weir_allocator *a;
    void *block[4];
    uint64_t made;

    refuse_threads();
    a = make_on(&real, &options);
    for (int i = 0; i < 4; i++)
        block[i] = take(a, 256 * MIB, A);
    for (int i = 0; i < 4; i += 2)
        OK(weir_free(a, block[i], A));
    made = weir__model_calls(WEIR_ENTRY_cuMemCreate);
    OK(weir_free(a, take(a, 512 * MIB, A), A));
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuMemCreate), made);
    for (int i = 1; i < 4; i += 2)
        OK(weir_free(a, block[i], A));
    destroy(a);
}
END_TEST

/* Parts of different amounts: the higher one is never below the lower. */
START_TEST(a_high_mark_below_the_low_one) {
    weir_options options = options_for(_i, 96 * MIB, 0);
    weir_allocator *a;
    void *block;

    options.headroom_high =
        (weir_amount){.value = 1, .kind = WEIR_AMOUNT_OF_TOTAL}; /* a millionth */
    a = make_on(driver, &options);
    block = take(a, MIB, A);
    for (int i = 0; i < 100; i++) {
        weir__model_advance(10 * MS);
        OK(weir_free(a, take(a, 2 * MIB, A), A));
    }
    MUST_LE(96 * MIB, idle_of(a));
    OK(weir_free(a, block, A));
    OK(weir_allocator_destroy(a));
}
END_TEST

/* What a failure says could be had is not taken before the program can ask for it. */
START_TEST(a_failure_leaves_what_there_is) {
    weir_options options = options_for(_i, 0, 0);
    weir_refusal failure = {.size = sizeof failure};
    weir_allocator *a;
    void *block = NULL;
    CUdeviceptr hog;

    options.prealloc = bytes_amount(4 * GIB);
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    options.growth = WEIR_GROWTH_BFC; /* takes nine tenths of what was refused */
    a = make_on(driver, &options);
    CU(driver->cuMemAlloc(&hog, 8 * GIB - 128 * MIB));
    weir__model_advance(5 * MS);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 200 * MIB, A, &block));
    OK(weir_last_refusal(&failure));
    OK(weir_free(a, take(a, failure.largest, A), A));
    destroy(a);
    CU(driver->cuMemFree(hog));
}
END_TEST

START_TEST(pauses_after_failures_double_to_a_bound) {
    weir_allocator *a = make(driver, _i, 256 * MIB, 512 * MIB);
    uint64_t pause = 0, before = 0, refusals;

    OK(weir_free(a, take(a, 3 * MIB, A), A));
    weir__model_fail(grows_by(_i), 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    for (uint64_t waited = 0; before < 11; waited++) {
        weir__model_advance(MS);
        OK(weir_free(a, take(a, 3 * MIB, A), A)); /* from the engine, which has it */
        refusals = stats_of(a).ahead_refusals;
        if (refusals == before)
            continue;
        MUST_EQ(refusals, before + 1);
        if (pause > 0) {
            MUST_LE(pause, waited + 1);
            MUST_LE(waited, pause + 1);
        }
        pause = pause == 0 ? 10 : pause < 2560 ? 2 * pause : 2560;
        before = refusals;
        waited = 0;
    }
    ck_assert_uint_eq(pause, 2560);
    weir__model_faults_clear();
    destroy(a);
}
END_TEST

/* With it or without, a hit makes the same calls. */
START_TEST(a_hit_costs_what_it_did) {
    uint64_t made[2][WEIR_ENTRY_COUNT];

    for (int on = 0; on < 2; on++) {
        weir_allocator *a;

        open_device();
        a = make(driver, _i, on ? GIB : 0, 0);
        for (int i = 0; i < 10; i++)
            OK(weir_free(a, take(a, 1000, A), A));
        count_from_here();
        OK(weir_free(a, take(a, 1000, A), A));
        for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
            made[on][i] = calls((enum weir_driver_entry)i);
        destroy(a);
    }
    ck_assert_mem_eq(made[0], made[1], sizeof made[0]);
}
END_TEST

/* ---- what has no use for it ------------------------------------------------------------------ */

static void expect_log(const weir_options *options, const char *text) {
    weir_options loud = *options;
    weir_allocator *a;

    loud.log = WEIR_LOG_WARNING;
    a = make_on(&real, &loud);
    (void)lines();
    ck_assert_msg(strstr(logged, text) != NULL, "not \"%s\" but \"%s\"", text, logged);
    destroy(a);
}

START_TEST(what_has_no_use_for_it_says_so) {
    weir_options options = options_for(POOL, 64 * MIB, 0);

    catch_log();
    options.engine = WEIR_ENGINE_PLATFORM;
    options.growth = WEIR_GROWTH_DEFAULT;
    expect_log(&options, "grow-ahead has no effect with engine direct");
    options.engine = WEIR_ENGINE_ARENA;
    options.arena = WEIR_ARENA_FIXED;
    expect_log(&options, "grow-ahead has no effect with a fixed arena");
    options.engine = WEIR_ENGINE_POOL;
    options.arena = WEIR_ARENA_DEFAULT;
    options.release_threshold = bytes_amount(32 * MIB);
    expect_log(&options, "makes each synchronisation release what grow-ahead reserved");
}
END_TEST

/* Driver 11.2 does not tell what a pool has. */
START_TEST(what_cannot_be_told_is_left_alone) {
    weir_options options = options_for(_i, 64 * MIB, 0);
    weir_allocator *a;

    real.capabilities &= ~(unsigned)WEIR_CAP_POOL_FIGURES;
    catch_log();
    options.log = WEIR_LOG_WARNING;
    a = make_on(&real, &options);
    AWAIT((lines(), strstr(logged, "grow-ahead has no effect: this driver")) != NULL);
    OK(weir_free(a, take(a, 100 * MIB, A), A));
    ck_assert_uint_eq(stats_of(a).ahead_steps + stats_of(a).ahead_refusals, 0);
    destroy(a);
}
END_TEST

/* The thread, which has given grow-ahead up, still does what it is told. */
START_TEST(what_cannot_be_told_is_preallocated_as_far_as_can_be) {
    weir_options options = options_for(_i, 64 * MIB, 0);
    weir_allocator *a;

    real.capabilities &= ~(unsigned)WEIR_CAP_POOL_FIGURES;
    catch_log();
    options.log = WEIR_LOG_WARNING;
    options.prealloc = bytes_amount(256 * MIB);
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
    a = make_on(&real, &options);
    AWAIT((lines(), strstr(logged, "grow-ahead has no effect: this driver")) != NULL);
    OK(weir_free(a, take(a, 100 * MIB, A), A));
    AWAIT(stats_of(a).prealloc_asked == 256 * MIB);
    AWAIT(stats_of(a).prealloc_pending == 0); /* the thread says one before the other */
    destroy(a);
}
END_TEST

/* A step that the test holds in the driver's call which ends it, for ten seconds at most. */
static sem_t inside, go_on;
static int holds; /* at so many calls from now */
static int held_call = 1, gave_up;
static CUresult answer; /* of the call; CUDA_SUCCESS: what the driver says */

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

static void *grow_meanwhile(void *grower) {
    struct grower *g = grower;

    g->status = weir_preallocate(g->a, g->bytes, NULL);
    return NULL;
}

static void *ask_meanwhile(void *grower) {
    struct grower *g = grower;

    g->status = weir_alloc(g->a, g->bytes, A, &g->block);
    return NULL;
}

/* A mapped arena of 64 MiB that grows to so many bytes, held where the first new handle is about available, or
 * another. */
static weir_allocator *make_held(struct grower *g, size_t bytes) {
    static struct weir_driver holding;
    weir_options options = options_for(MAPPED, 0, 0);

    sem_init(&inside, 0, 0);
    sem_init(&go_on, 0, 0);
    holding = real;
    holding.cuMemSetAccess = held_access;
    options.front = WEIR_SWITCH_OFF;
    options.prealloc = bytes_amount(64 * MIB);
    *g = (struct grower){.a = make_on(&holding, &options), .bytes = bytes};
    holds = held_call;
    ck_assert_int_eq(pthread_create(&g->thread, NULL, grow_meanwhile, g), 0);
    while (sem_wait(&inside) != 0)
        ;
    return g->a;
}

static void let_go(struct grower *g) {
    sem_post(&go_on);
    ck_assert_int_eq(pthread_join(g->thread, NULL), 0);
    ck_assert_msg(!gave_up, "what had room waited for a step of growth");
}

/* Who finds room meanwhile does not wait, and sees the step in the reserved memory. */
START_TEST(what_has_room_does_not_wait_for_a_step) {
    struct grower g;
    weir_allocator *a = make_held(&g, 256 * MIB);
    void *block = take(a, 20 * MIB, A);
    uint64_t before = stats_of(a).reserve;

    MUST_LE(64 * MIB + 2 * MIB, before);
    OK(weir_free(a, block, A));
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_LE(stats_of(a).reserve, before - 48 * MIB);
    before = stats_of(a).reserve;
    let_go(&g);
    OK(g.status);
    MUST_LE(before, stats_of(a).reserve);
    OK(weir_trim(a, 0, NULL));
    ck_assert_uint_eq(stats_of(a).reserve, 0);
    destroy(a);
}
END_TEST

/* Who has to grow has what comes, and brings no more if that is enough. */
START_TEST(who_has_to_grow_waits_for_what_comes) {
    struct grower g, asks;
    weir_allocator *a = make_held(&g, 256 * MIB);
    uint64_t asked = weir__model_calls(WEIR_ENTRY_cuStreamQuery);

    asks = (struct grower){.a = a, .bytes = (_i ? 400 : 160) * MIB};
    ck_assert_int_eq(pthread_create(&asks.thread, NULL, ask_meanwhile, &asks), 0);
    nap(20);
    let_go(&g);
    OK(g.status);
    ck_assert_int_eq(pthread_join(asks.thread, NULL), 0);
    OK(asks.status);
    MUST_LE(stats_of(a).reserve, (_i ? 400 + 2 * 256 : 256 + 2) * MIB);
    ck_assert_uint_eq(stats_of(a).growth_allocs, _i ? 1 : 0);
    if (!_i) /* nothing was looked for beside it */
        MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamQuery), asked);
    OK(weir_free(a, asks.block, A));
    destroy(a);
}
END_TEST

/* What does not come is nowhere, and the next step has its place; what the driver does not take back stays mapped,
 * part of the reserved memory, and the next step comes behind it, also if it is for small requests. */
START_TEST(what_does_not_come_leaves_nothing) {
    uint64_t all = device_free();
    struct grower g;
    weir_allocator *a;

    answer = CUDA_ERROR_INVALID_VALUE;
    held_call = _i == 2 ? 2 : 1;
    a = make_held(&g, 256 * MIB);
    OK(weir_free(a, take(a, 20 * MIB, A), A));
    if (_i)
        weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    let_go(&g);
    EXPECT(WEIR_E_DRIVER, g.status);
    MUST((stats_of(a).reserve == 64 * MIB) == !_i);
    MUST_EQ(stats_of(a).reserve_peak, stats_of(a).reserve);
    MUST_EQ(all - device_free(), stats_of(a).reserve);
    if (_i) {
        OK(weir_preallocate(a, 320 * MIB, NULL));
        ck_assert_uint_eq(stats_of(a).reserve, 320 * MIB);
        weir__model_faults_clear();
        OK(weir_trim(a, 0, NULL));
    }
    OK(weir_preallocate(a, 256 * MIB, NULL));
    ck_assert_uint_eq(stats_of(a).reserve, 256 * MIB);
    destroy(a);
    MUST_EQ(device_free(), all);
}
END_TEST

/* A limit that is lowered meanwhile is what it is answered with, and holds for all that has not begun to come. */
START_TEST(a_limit_that_is_lowered_meanwhile_is_the_cause) {
    struct grower g;
    weir_allocator *a = make_held(&g, GIB);

    OK(weir_set_limit(a, bytes_amount((_i ? 80 : 400) * MIB)));
    let_go(&g);
    EXPECT(WEIR_E_LIMIT, g.status);
    MUST_EQ(stats_of(a).reserve, (_i ? 64 + 40 : 400) * MIB);
    EXPECT(WEIR_E_LIMIT, weir_preallocate(a, GIB, NULL));
    OK(weir_preallocate(a, stats_of(a).reserve, NULL));
    OK(weir_set_limit(a, bytes_amount(GIB)));
    OK(weir_preallocate(a, GIB, NULL));
    destroy(a);
}
END_TEST

/* ---- while others are asked ------------------------------------------------------------------ */

static weir_allocator *_Atomic beside;
static _Atomic int asked, went_on;

static int lacks_some(const struct weir_reserve *v, struct weir_reclaim *s, uint64_t enough,
                      uint64_t wanted) {
    (void)v, (void)enough;
    s->lacks = s->is_answered ? 0 : wanted;
    return s->is_answered;
}

/* Answers when the other one's thread has made a step, or a long time is over. */
static void wait_for_a_step(const struct weir_reserve *v, struct weir_reclaim *s) {
    uint64_t before = stats_of(atomic_load(&beside)).ahead_steps;

    (void)v;
    atomic_store(&asked, 1);
    for (int i = 0; i < 5000 && stats_of(atomic_load(&beside)).ahead_steps == before; i++)
        nap(1);
    atomic_store(&went_on, stats_of(atomic_load(&beside)).ahead_steps > before);
    s->lacks = 0;
    s->is_answered = 1;
}

/* A process that does not answer is no reason for other allocators to wait for memory. */
START_TEST(others_are_asked_beside_the_steps_of_all) {
    weir_allocator *b = make(&real, _i, 64 * MIB, 64 * MIB), *a;
    weir_options options = options_for(_i, 0, 0);
    void *block;

    options.prealloc = bytes_amount(GIB);
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
    a = make_on(&real, &options);
    a->preallocation.look = lacks_some;
    a->preallocation.ask = wait_for_a_step;
    atomic_store(&beside, b);
    OK(weir_free(a, take(a, MIB, A), A));
    while (!atomic_load(&asked))
        nap(1);
    block = take(b, 60 * MIB, A);
    AWAIT(stats_of(a).reserve >= GIB);
    ck_assert(atomic_load(&went_on));
    OK(weir_free(b, block, A));
    destroy(a);
    destroy(b);
}
END_TEST

static Suite *suite(void) {
    Suite *all = suite_create("ahead");
    TCase *tests = suite_add_case(all, "thread", 120, open_device, NULL);

    tcase_add_loop_test(tests, off_by_default, 0, WAYS);
    tcase_add_loop_test(tests, little_is_idle_and_then_enough, 0, WAYS);
    tcase_add_loop_test(tests, another_stream_is_served_from_it, 0, WAYS);
    tcase_add_loop_test(tests, the_limit_holds, 0, WAYS);
    tcase_add_loop_test(tests, the_last_part_is_for_requests, 0, WAYS);
    tcase_add_loop_test(tests, a_failure_is_tried_again_ever_later, 0, WAYS);
    tcase_add_loop_test(tests, a_child_of_fork_neither_grows_nor_hangs, 0, WAYS);
    tcase_add_loop_test(tests, destroying_ends_it_promptly, 0, WAYS);
    tcase_add_loop_test(tests, destroying_ends_a_long_pause, POOL, POOL + 1);
    tcase_add_loop_test(tests, what_is_busy_goes_on, 0, WAYS);
    tcase_add_loop_test(tests, two_allocators_have_one_each, 0, WAYS);
    tcase_add_loop_test(tests, a_capture_goes_on_beside_it, 0, WAYS);
    tcase_add_loop_test(tests, no_stream_of_the_program_is_touched, 0, WAYS);
    tcase_add_loop_test(tests, beside_threads_at_work, 0, WAYS);
    tcase_add_test(tests, what_has_room_does_not_wait_for_a_step);
    tcase_add_loop_test(tests, who_has_to_grow_waits_for_what_comes, 0, 2);
    tcase_add_loop_test(tests, what_does_not_come_leaves_nothing, 0, 3);
    tcase_add_loop_test(tests, a_limit_that_is_lowered_meanwhile_is_the_cause, 0, 2);
    tcase_add_loop_test(tests, others_are_asked_beside_the_steps_of_all, 0, WAYS);
    tcase_add_test(tests, what_has_no_use_for_it_says_so);
    tcase_add_loop_test(tests, what_cannot_be_told_is_left_alone, POOL, REGIONS);
    tcase_add_loop_test(tests, what_cannot_be_told_is_preallocated_as_far_as_can_be, POOL, REGIONS);

    tests = suite_add_case(all, "exit", 120, NULL, NULL);
    tcase_add_loop_test(tests, a_process_may_exit_meanwhile, 0, WAYS);

    tests = suite_add_case(all, "played", 60, open_device, NULL);
    tcase_add_loop_test(tests, on_the_model_it_costs_requests_nothing, 0, WAYS);
    tcase_add_loop_test(tests, turns_come_when_they_are_due, 0, WAYS);
    tcase_add_loop_test(tests, it_begins_with_the_allocator, 0, WAYS);
    tcase_add_loop_test(tests, the_less_is_idle_the_sooner_they_come, POOL, POOL_ALONE + 1);
    tcase_add_loop_test(tests, the_less_is_idle_the_sooner_they_come, MAPPED, WAYS);
    tcase_add_loop_test(tests, what_is_larger_waits_for_one_handle, WEIR_PACKING_COMPACT,
                        WEIR_PACKING_BALANCED + 1);
    tcase_add_loop_test(tests, more_than_can_be_had, 0, WAYS);
    tcase_add_test(tests, small_requests_have_some_of_it);
    tcase_add_loop_test(tests, what_lies_together_is_what_a_request_needs, 0, 4);
    tcase_add_test(tests, what_lies_together_is_no_more_than_may_be_idle);
    tcase_add_loop_test(tests, what_lies_together_may_be_had_no_more, 0, 2);
    tcase_add_test(tests, idle_pieces_do_not_deceive_it);
    tcase_add_loop_test(tests, whoever_finds_a_turn_goes_on, 0, WAYS);
    tcase_add_loop_test(tests, a_lost_device_is_left_alone, 0, 2 * WAYS);
    tcase_add_loop_test(tests, without_a_thread_there_is_an_allocator, 0, WAYS);
    tcase_add_loop_test(tests, without_a_thread_memory_moves, 0, 2);
    tcase_add_loop_test(tests, a_high_mark_below_the_low_one, 0, WAYS);
    tcase_add_loop_test(tests, a_failure_leaves_what_there_is, 0, WAYS);
    tcase_add_loop_test(tests, pauses_after_failures_double_to_a_bound, 0, 1);
    tcase_add_loop_test(tests, pauses_after_failures_double_to_a_bound, REGIONS, WAYS);
    tcase_add_loop_test(tests, a_hit_costs_what_it_did, 0, POOL_ALONE);
    tcase_add_loop_test(tests, a_hit_costs_what_it_did, REGIONS, WAYS);
    return all;
}

int main(void) {
    return run_suite(suite(), CK_FORK);
}
