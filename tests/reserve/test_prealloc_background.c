/* SPDX-License-Identifier: MIT */
/* test_prealloc_background.c: preallocation in the background, and what requests find meanwhile.
 */
#include "tests/fixtures/preallocated.h"

#include <string.h>

/* It stops where it is. */
TEST(in_the_background_a_deadline_passes_too) {
    make_slow(2000 * MS); /* as above */
    make_on(&slow, _i, 4 * GIB, "log=warning prealloc-mode=background prealloc-deadline=3000ms");
    for (int i = 0; i < 10; i++) {
        weir__model_advance(2000 * MS);
        give(take(1000 + (size_t)i % 2 * 8 * MIB, A), A);
    }
    expect_log("the deadline has passed");
    weir_statistics s = check_identities(a);
    MUST_LE(1, s.prealloc_got);
    MUST_LE(s.reserve, 4 * GIB - 1);
    ck_assert_uint_eq(s.prealloc_pending, 0);
}

TEST(in_the_background_nobody_waits) {
    make_slow(2 * MS);
    make_on(&slow, _i, 2 * GIB, "prealloc-mode=background prealloc-at=first");
    uint64_t started = driver->ticks();
    give(take(1000, A), A); /* grows by itself */
    MUST_LE(driver->ticks() - started, 30 * MS);
    for (int i = 0; i < 200; i++) {
        weir__model_advance(30 * MS);
        started = driver->ticks();
        give(take(1000 + (size_t)i % 2 * 8 * MIB, A), A);
        MUST_LE(driver->ticks() - started, MS);
    }
    weir_statistics s = check_identities(a);
    ck_assert_uint_eq(s.prealloc_asked, 2 * GIB);
    MUST_LE(2 * GIB, s.prealloc_kept);
    MUST_LE(s.prealloc_got, 2 * GIB);
    MUST_LE(2 * GIB, s.prealloc_got + 32 * MIB);
    ck_assert_uint_eq(s.prealloc_got, s.ahead_bytes);
    ck_assert_uint_eq(s.prealloc_pending, 0);
    MUST_LE(2 * MS, s.prealloc_ns);
}

static void play_turns(int count) {
    for (int i = 0; i < count; i++) {
        weir__model_advance(2 * MS);
        give(take(1000 + (size_t)i % 2 * 8 * MIB, A), A);
    }
}

enum end_of_it { ALL_IS_THERE, IT_IS_REFUSED, IT_IS_LATE, ENDS_OF_IT };

/* However that ends, grow-ahead comes after it, and the books tell them apart. */
TEST(grow_ahead_comes_after_what_is_preallocated) {
    int way = _i % WAYS;
    enum end_of_it ends = (enum end_of_it)(_i / WAYS);
    weir_options options = options_for(way, 6 * GIB);
    uint64_t got = 0, ns = 0, later = 0;
    weir_event events[512];
    size_t count, blocks = 0;
    void *block[128];
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    options.prealloc_deadline_ms = ends == IT_IS_LATE ? 200 : UINT32_MAX;
    options.headroom = bytes_amount(256 * MIB);
    options.headroom_high = bytes_amount(512 * MIB);
    make_with(&options);
    ck_assert_uint_eq(stats_of(a).ahead_steps, 0); /* it begins in a turn */
    play_turns(1);
    weir_statistics s = stats_of(a);
    MUST_LE(1, s.prealloc_got);
    MUST_LE(1, s.prealloc_pending);
    CUdeviceptr hoard = ends == IT_IS_REFUSED ? leave(2 * MIB) : 0;
    weir__model_advance(ends == IT_IS_LATE ? 200 * MS : 10 * MS);
    play_turns(ends == ALL_IS_THERE ? 300 : 2);
    s = stats_of(a);
    MUST((s.prealloc_got >= 6 * GIB - 32 * MIB) == (ends == ALL_IS_THERE));
    ck_assert_uint_eq(s.prealloc_pending, 0);
    ck_assert_int_eq(log_has("preallocation: requested 6GiB, got and kept "), ends != ALL_IS_THERE);
    if (ends == IT_IS_LATE)
        ck_assert(strstr(logged, "the deadline has passed") != NULL);
    MUST_LE(s.ahead_refusals, ends == IT_IS_REFUSED); /* of grow-ahead's, which was next */
    if (hoard)
        CU(driver->cuMemFree(hoard));
    for (s = stats_of(a); s.reserve - s.in_use > 128 * MIB; s = stats_of(a))
        block[blocks++] = take(64 * MIB, A);
    play_turns(100);
    OK(weir_events(a, 0, events, sizeof events[0], 512, &count));
    for (size_t i = 0; i < count; i++) {
        if (events[i].cause == WEIR_EVENT_HEADROOM)
            later += events[i].got;
        if (events[i].cause != WEIR_EVENT_BACKGROUND)
            continue;
        ck_assert_uint_eq(later, 0);
        MUST_LE(events[i].got, a->reserve.engine->step_bytes);
        got += events[i].got;
        ns += events[i].stall_ns;
    }
    s = check_identities(a);
    MUST_LE(1, later);
    ck_assert_uint_eq(s.prealloc_got, got);
    ck_assert_uint_eq(s.prealloc_ns, ns);
    ck_assert_uint_eq(s.ahead_bytes, got + later);
    MUST_LE(256 * MIB, s.reserve - s.in_use);
    while (blocks > 0)
        give(block[--blocks], A);
}

/* What was asked for is there by then, of which requests made most. */
TEST(in_the_background_requests_may_be_first) {
    make(_i, GIB, "prealloc-mode=background");
    give(take(2 * GIB, A), A);
    weir__model_advance(30 * MS);
    give(take(3 * GIB, A), A); /* more than is idle, so that a turn comes before it */
    weir_statistics s = check_identities(a);
    MUST_LE(2 * GIB, s.prealloc_kept);
    MUST_LE(s.prealloc_got, GIB - 1);
    MUST_EQ(s.prealloc_pending, 0);
    ck_assert(!log_has("preallocation"));
}

TEST(a_thread_preallocates) {
    weir_event events[512];
    size_t count;
    real = *driver;
    real.aside = NULL;
    make_on(&real, _i, 2 * GIB, "prealloc-mode=background");
    await_reserve(2 * GIB);
    give(take(500 * MIB, A), A);
    OK(weir_events(a, 0, events, sizeof events[0], 512, &count));
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(events[i].cause, WEIR_EVENT_BACKGROUND);
        MUST_LE(events[i].got, a->reserve.engine->step_bytes);
    }
    ck_assert_uint_eq(stats_of(a).prealloc_got, 2 * GIB);
    ck_assert_uint_eq(stats_of(a).stall_ns, 0);
    destroy();
    /* With grow-ahead beside it, and a part that must be there at once. */
    make_on(&real, _i, 2 * GIB, "prealloc-mode=background prealloc-min=1GiB grow-ahead=256MiB");
    MUST_LE(GIB, stats_of(a).reserve);
    take(100 * MIB, A);
    await_reserve(2 * GIB);
    ck_assert_uint_eq(stats_of(a).prealloc_got, 2 * GIB);
    abandon(); /* with its block */
}

TEST(it_ends_with_the_allocator) {
    real = *driver;
    real.aside = NULL;
    for (int i = 0; i < 10; i++) {
        weir_options options = options_for(_i, 6 * GIB);

        options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
        make_with_on(&real, &options);
    }
    ck_assert_uint_eq(device_free(), 8 * GIB);
}

TEST(what_the_device_lacks_is_told) {
    (void)leave(GIB);
    make(_i, 4 * GIB, "prealloc-mode=background");
    weir__model_advance(1000 * MS);
    give(take(1000, A), A);
    expect_log("requested 4GiB, got and kept");
    ck_assert(strstr(logged, "the device has no more") != NULL);
    ck_assert_uint_eq(stats_of(a).prealloc_pending, 0);
    MUST_LE(least_of(_i), stats_of(a).prealloc_kept);
}

/* A share leaves a 64th of the device, which is all that programs without weir have left of it. */
TEST(in_the_background_a_share_may_be_nothing) {
    (void)leave(100 * MIB);
    make(_i, 0, "prealloc=share prealloc-mode=background");
    uint64_t before = stats_of(a).reserve;
    weir__model_advance(1000 * MS);
    give(take(1000, A), A);
    expect_log("got and kept");
    ck_assert_uint_eq(stats_of(a).prealloc_pending, 0);
    MUST_LE(stats_of(a).reserve, before + 32 * MIB); /* by the request */
}

/* Of what is free when the driver does not say how much, a step is taken. */
TEST(in_the_background_a_share_of_what_is_not_told) {
    (void)leave(GIB);
    make(_i, 0, "prealloc=share prealloc-mode=background");
    weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 1);
    weir__model_advance(1000 * MS);
    give(take(1000, A), A);
    weir__model_faults_clear();
    MUST_LE(32 * MIB, stats_of(a).reserve);
}

int main(void) {
    Suite *suite = suite_create("preallocation in the background");
    TCase *tests = suite_add_case(suite, "amounts", 60, set_up, tear_down);

    ADD_FOR_EACH(tests, WAYS, in_the_background_nobody_waits,
                 in_the_background_requests_may_be_first, in_the_background_a_deadline_passes_too,
                 in_the_background_a_share_may_be_nothing,
                 in_the_background_a_share_of_what_is_not_told, a_thread_preallocates,
                 it_ends_with_the_allocator, what_the_device_lacks_is_told);
    ADD_FOR_EACH(tests, ENDS_OF_IT * WAYS, grow_ahead_comes_after_what_is_preallocated);
    return run_suite(suite, CK_FORK);
}
