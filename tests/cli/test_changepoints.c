/* SPDX-License-Identifier: MIT */
/* test_changepoints.c: levels, changepoints and classes of series that are known. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/changepoints.h"
#include "tests/fixtures/suite.h"

enum { MOST = 400 };

static uint64_t series[MOST];
static size_t length;
static uint64_t state;

/* About normal, of variance 1: the sum of twelve uniform ones, less 6. */
static double noise(void) {
    double sum = -6.0;

    for (int i = 0; i < 12; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (double)(state >> 11) / 9007199254740992.0;
    }
    return sum;
}

static void begin(uint64_t seed) {
    length = 0;
    state = seed;
}

/* `count` iterations around `ns`, with noise of that part of it. */
static void add(size_t count, double ns, double part) {
    ck_assert_uint_le(length + count, MOST);
    for (size_t i = 0; i < count; i++)
        series[length++] = (uint64_t)(ns * exp(part * noise()) + 0.5);
}

static struct changepoints found;

static void find(void) {
    changepoints_free(&found);
    ck_assert_int_eq(changepoints_find(series, length, &found), 1);
    for (size_t i = 0, at = 0; i < found.level_count; i++) {
        const struct level *level = &found.levels[i];

        ck_assert_uint_eq(level->from, at);
        ck_assert_uint_ge(level->count, i ? 2 : 1);
        ck_assert(level->low_ns <= level->ns && level->ns <= level->high_ns);
        ck_assert(level->from_low <= level->from && level->from <= level->from_high);
        at += level->count;
    }
}

static void find_kind(int kind) {
    find();
    ck_assert_int_eq(found.kind, kind);
}

static void forget(void) {
    changepoints_free(&found);
}

CASE("changepoints", 4, NULL, forget);

TEST(test_noise_is_flat) {
    for (uint64_t seed = 1; seed <= 50; seed++) {
        begin(seed);
        add(seed % 2 ? 20 : 200, 250000, 0.05);
        find_kind(SERIES_FLAT);
        ck_assert_uint_eq(found.level_count, 1);
        ck_assert_uint_eq(found.steady_from, 0);
        ck_assert(fabs(found.levels[0].ns / 250000 - 1.0) < 0.05);
    }
}

TEST(test_a_slow_first_iteration_is_warm_up) {
    for (uint64_t seed = 1; seed <= 50; seed++) {
        begin(seed);
        add(1, 9000000, 0.05);
        add(19, 250000, 0.05);
        find_kind(SERIES_WARM_UP);
        ck_assert_uint_eq(found.level_count, 2);
        ck_assert_uint_eq(found.steady_from, 1);
        ck_assert_uint_eq(found.levels[1].from_low, 1);
        ck_assert_uint_eq(found.levels[1].from_high, 1);
        ck_assert(!found.is_outlier[0]);
    }
}

TEST(test_levels_are_found_where_they_begin) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        begin(seed);
        add(40, 800000, 0.03);
        add(60, 400000, 0.03);
        add(100, 200000, 0.03);
        find_kind(SERIES_WARM_UP);
        ck_assert_uint_eq(found.level_count, 3);
        ck_assert_uint_eq(found.levels[1].from, 40);
        ck_assert_uint_eq(found.levels[2].from, 100);
        ck_assert_uint_eq(found.steady_from, 100);
        ck_assert(found.levels[2].low_ns < 202000 && found.levels[2].high_ns > 198000);
    }
}

/* A place that noise hides has a wide interval, and the true one lies in it nearly always. */
TEST(test_intervals_of_places) {
    int inside = 0, wide = 0;

    for (uint64_t seed = 1; seed <= 50; seed++) {
        begin(seed);
        add(100, 300000, 0.20);
        add(100, 200000, 0.20);
        find();
        ck_assert_uint_eq(found.level_count, 2);
        inside += found.levels[1].from_low <= 100 && 100 <= found.levels[1].from_high;
        wide += found.levels[1].from_high > found.levels[1].from_low;
    }
    ck_assert_int_ge(inside, 45);
    ck_assert_int_ge(wide, 30);
}

TEST(test_slowdown) {
    begin(7);
    add(1, 900000, 0.02);
    add(20, 200000, 0.02);
    add(30, 260000, 0.02);
    find_kind(SERIES_SLOWDOWN);
    ck_assert_uint_eq(found.level_count, 3);
    ck_assert_uint_eq(found.steady_from, 21);
}

TEST(test_never_steady) {
    begin(8);
    add(30, 200000, 0.02);
    add(7, 100000, 0.02);
    find_kind(SERIES_NEVER_STEADY);
    ck_assert_uint_eq(found.steady_from, 30);
    add(3, 100000, 0.02); /* now a quarter of all */
    find_kind(SERIES_WARM_UP);
}

TEST(test_one_alone_is_an_outlier) {
    begin(9);
    add(30, 200000, 0.02);
    series[7] = 2000000;
    series[9] = 3000000;
    series[29] = 1000000;
    find_kind(SERIES_FLAT);
    ck_assert_uint_eq(found.outliers, 3);
    ck_assert(found.is_outlier[7] && found.is_outlier[9] && found.is_outlier[29]);
    ck_assert(!found.is_outlier[8]);
    ck_assert(found.levels[0].high_ns < 210000);
}

/* A difference below 5% is none, however sure. */
TEST(test_a_small_step_is_the_same_level) {
    begin(10);
    add(150, 204000, 0.001);
    add(20, 200000, 0.001);
    find_kind(SERIES_FLAT);
    ck_assert_uint_eq(found.steady_from, 0);
}

TEST(test_few_iterations) {
    static const size_t lengths[] = {0, 1, 2, 3, 5};

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        begin(11);
        add(lengths[i], 200000, 0.02);
        find_kind(SERIES_SHORT);
        ck_assert_uint_eq(found.level_count, lengths[i] > 0);
    }
    begin(11);
    add(6, 200000, 0.0);
    series[2] = 0; /* no logarithm */
    find_kind(SERIES_FLAT);
}

TEST(test_the_same_answer_each_time) {
    struct changepoints first;

    begin(12);
    add(20, 300000, 0.1);
    add(40, 200000, 0.1);
    find();
    first = found;
    found = (struct changepoints){0};
    find();
    ck_assert_uint_eq(found.level_count, first.level_count);
    ck_assert_mem_eq(found.levels, first.levels, first.level_count * sizeof *first.levels);
    changepoints_free(&first);
}

/* ------------------------------------------------ against all segmentations ---- */

static double cost_of(const double *values, size_t from, size_t to) {
    double mean = 0.0, sum = 0.0;

    for (size_t i = from; i < to; i++)
        mean += values[i] / (double)(to - from);
    for (size_t i = from; i < to; i++)
        sum += (values[i] - mean) * (values[i] - mean);
    return sum;
}

/* The least cost, penalties in it, without leaving anything out. */
static double least_cost(const double *values, size_t count, double variance, double penalty) {
    double best[MOST + 1];

    best[0] = -penalty;
    for (size_t end = 1; end <= count; end++) {
        best[end] = INFINITY;
        for (size_t start = 0; start < end; start++)
            if (start == 0 || end - start >= 2)
                best[end] =
                    fmin(best[end], best[start] + cost_of(values, start, end) / variance + penalty);
    }
    return best[count];
}

TEST(test_none_is_better) {
    size_t any = 0;

    for (uint64_t seed = 1; seed <= 200; seed++) {
        size_t count = 3 + seed % 60, at[MOST], changes;
        double values[MOST], level = 0.0, total = 0.0, penalty = 15.0 * log((double)count);

        state = seed;
        for (size_t i = 0; i < count; i++) {
            if (fabs(noise()) > 1.5)
                level += 4.0 * noise();
            values[i] = level + noise();
        }
        changes = changepoints_pelt(values, count, 1.0, at);
        ck_assert_uint_lt(changes, count);
        for (size_t i = 0; i <= changes; i++)
            total += cost_of(values, i ? at[i - 1] : 0, i < changes ? at[i] : count) +
                     (i ? penalty : 0.0);
        ck_assert_double_eq_tol(total, least_cost(values, count, 1.0, penalty), 1e-6);
        any += changes;
    }
    ck_assert_uint_gt(any, 200);
}

int main(void) {
    return run_tests("changepoints", CK_FORK_GETENV);
}
