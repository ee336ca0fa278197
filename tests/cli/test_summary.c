/* SPDX-License-Identifier: MIT */
/* test_summary.c: when a series of iterations counts as settled, and what steady is then. */
#include <check.h>
#include <string.h>

#include "cli/report/summary.h"
#include "tests/fixtures/suite.h"

enum { MOST = 16 };

static struct iteration series[MOST];

/* Iterations of 100, 101, ... ns; `growths` is a string of digits, one an iteration. */
static struct summary summary_of(const char *growths) {
    struct summary summary;
    size_t count = strlen(growths);

    memset(series, 0, sizeof series);
    for (size_t i = 0; i < count; i++) {
        series[i].alloc_ns = 100 + i;
        series[i].driver_ns = 10 + i;
        series[i].own_ns = 1000 + i;
        series[i].makespan_ns = 5000 + i;
        series[i].growths = (uint64_t)(growths[i] - '0');
    }
    ck_assert_int_eq(summarise(series, count, &summary), 1);
    return summary;
}

CASE("summary", 4, NULL, NULL);

TEST(test_median) {
    uint64_t odd[] = {9, 1, 5}, even[] = {8, 2, 4, 6};
    uint64_t large[] = {UINT64_MAX, UINT64_MAX - 2};

    ck_assert_uint_eq(median(odd, 3), 5);
    ck_assert_uint_eq(median(even, 4), 5);
    ck_assert_uint_eq(median(large, 2), UINT64_MAX - 1);
    ck_assert_uint_eq(median(odd, 1), 1);
    ck_assert_uint_eq(median(odd, 0), 0);
}

TEST(test_settled_after_three) {
    struct summary s = summary_of("2101000");

    ck_assert_int_eq(s.settled, 1);
    ck_assert_uint_eq(s.warm_up_iterations, 4);
    ck_assert_uint_eq(s.first_steady, 4);
    ck_assert_uint_eq(s.steady_alloc_ns, 105);
    ck_assert_uint_eq(s.steady_driver_ns, 15);
    ck_assert_uint_eq(s.steady_own_ns, 1005);
    ck_assert_uint_eq(s.steady_makespan_ns, 5005);
}

TEST(test_two_are_too_few) {
    struct summary s = summary_of("210100");

    ck_assert_int_eq(s.settled, 0);
    ck_assert_uint_eq(s.warm_up_iterations, 6);
    ck_assert_uint_eq(s.first_steady, 3);
    ck_assert_uint_eq(s.steady_alloc_ns, 104);
}

TEST(test_never_grew) {
    struct summary s = summary_of("000");

    ck_assert_int_eq(s.settled, 1);
    ck_assert_uint_eq(s.warm_up_iterations, 0);
    ck_assert_uint_eq(s.steady_alloc_ns, 101);
    s = summary_of("00");
    ck_assert_int_eq(s.settled, 0);
    s = summary_of("");
    ck_assert_int_eq(s.settled, 0);
    ck_assert_uint_eq(s.steady_alloc_ns, 0);
}

TEST(test_giving_back_counts_as_change) {
    struct summary s;

    summary_of("00000");
    series[3].given_back = 1;
    ck_assert_int_eq(summarise(series, 5, &s), 1);
    ck_assert_int_eq(s.settled, 0);
    ck_assert_uint_eq(s.warm_up_iterations, 5);
}

int main(void) {
    return run_tests("summary", CK_FORK_GETENV);
}
