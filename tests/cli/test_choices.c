/* SPDX-License-Identifier: MIT */
/* test_choices.c: which configuration is the fastest, the leanest and the one to choose. */
#include <check.h>

#include "cli/report/choices.h"
#include "tests/fixtures/suite.h"

static struct choices choices;
static const char *whose;

static void setup(void) {
    ck_assert_int_eq(choices_init(&choices, 1), 1);
}

static void teardown(void) {
    choices_free(&choices);
}

/* On trace 0, with a range of so much to each side. */
static void add(const char *name, double ns, double spread, double memory) {
    struct choice_figures figures = {
        .time_ns = ns, .low_ns = ns - spread, .high_ns = ns + spread, .memory = memory};

    ck_assert_int_eq(choices_add(&choices, 0, name, name, &figures), 1);
}

static void expect_choice(const struct choice *(*of)(const struct choices *all),
                          const char *label) {
    choices_finish(&choices);
    ck_assert_str_eq(of(&choices)->label, label);
}

CASE("choices", 4, setup, teardown);

TEST(test_noise) {
    add("pool", 900, 60, 1.5);
    add("mapped", 1000, 60, 1.2);
    add("bfc", 1050, 60, 2.0);
    add("direct", 9000, 60, 1.2);
    add("driver", 3000, 2500, 1.0); /* its range is wide, and it is slow */
    choices_finish(&choices);
    ck_assert_str_eq(choices_default(&choices, &whose)->label, "mapped");
    ck_assert_str_eq(whose, " (weir's default)");
    ck_assert_str_eq(choices_fastest(&choices)->label, "mapped");
    ck_assert_int_eq(choice_within_noise(&choices.items[0], &choices.items[1]), 1);
    ck_assert_int_eq(choice_within_noise(&choices.items[2], &choices.items[1]), 1);
    ck_assert_int_eq(choice_within_noise(&choices.items[3], &choices.items[1]), 0);
    ck_assert_int_eq(choice_within_noise(&choices.items[4], &choices.items[1]), 0);
    ck_assert_int_eq(choice_within_noise(&choices.items[0], &choices.items[2]), 0);
}

TEST(test_faster_beyond_noise) {
    add("mapped", 1000, 20, 1.0);
    add("pool", 950, 20, 1.0);
    add("bfc", 940, 200, 1.0);
    add("direct", 900, 20, 1.0);
    expect_choice(choices_fastest, "direct");
}

TEST(test_leanest_of_equals) {
    add("direct", 9000, 10, 1.0001);
    add("mapped", 1000, 10, 1.0004);
    expect_choice(choices_leanest, "mapped");
    add("pool", 2000, 10, 0.9);
    add("bfc", 1500, 10, 0.9003);
    expect_choice(choices_leanest, "bfc");
}

TEST(test_recommended) {
    add("mapped", 1000, 10, 1.0);
    add("pool", 1200, 10, 0.9);
    add("bfc", 850, 10, 1.06);
    add("driver", 910, 10, 1.0);
    expect_choice(choices_recommended, "mapped");
    add("direct", 1090, 10, 0.94);
    expect_choice(choices_recommended, "direct");
    add("driver-keep", 890, 10, 1.04);
    choices_finish(&choices);
    ck_assert_str_eq(choices_recommended(&choices)->label, "driver-keep");
}

TEST(test_without_times) {
    add("direct", 0, 0, 0.9);
    add("mapped", 0, 0, 1.0);
    choices_finish(&choices);
    ck_assert_ptr_null(choices_fastest(&choices));
    ck_assert_ptr_null(choices_recommended(&choices));
    ck_assert_str_eq(choices_leanest(&choices)->label, "direct");
}

TEST(test_a_trace_without_iterations) {
    struct choice_figures bare = {.memory = 1.0};

    choices_free(&choices);
    ck_assert_int_eq(choices_init(&choices, 2), 1);
    add("mapped", 1000, 10, 4.0);
    ck_assert_int_eq(choices_add(&choices, 1, "mapped", "mapped", &bare), 1);
    choices_finish(&choices);
    ck_assert_uint_eq(choices.timed, 1);
    ck_assert_double_eq_tol(choices.items[0].mean.time_ns, 1000, 1e-6);
    ck_assert_double_eq_tol(choices.items[0].mean.memory, 2.0, 1e-6);
}

TEST(test_failures_compare_with_none) {
    struct choice_figures failed = {
        .time_ns = 1, .low_ns = 1, .high_ns = 1, .memory = 0.5, .has_failed = 1, .failed = 3};

    add("driver", 1000, 10, 1.0);
    ck_assert_int_eq(choices_add(&choices, 0, "mapped", "mapped", &failed), 1);
    choices_finish(&choices);
    ck_assert_str_eq(choices_default(&choices, &whose)->label, "driver");
    ck_assert_str_eq(choices_fastest(&choices)->label, "driver");
    ck_assert_uint_eq(choices.items[1].mean.failed, 3);
}

int main(void) {
    return run_tests("choices", CK_FORK_GETENV);
}
