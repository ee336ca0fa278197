/* SPDX-License-Identifier: MIT */
/* test_histogram.c: quantiles within their documented error, exact maximum, sum and count. */
#include "base/histogram.h"
#include "tests/fixtures/support.h"

static struct weir_histogram h;

static void clear_histogram(void) {
    memset(&h, 0, sizeof h);
}

CASE("histogram", 4, clear_histogram, NULL);

TEST(test_an_empty_histogram_has_zero_quantiles) {
    ck_assert_uint_eq(weir__histogram_quantile(&h, 0.5), 0);
    ck_assert_uint_eq(h.total, 0);
}

TEST(test_small_values_are_exact) {
    for (uint64_t v = 0; v < 32; v++)
        weir__histogram_add(&h, v);
    for (uint64_t v = 0; v < 32; v++)
        ck_assert_uint_eq(weir__histogram_quantile(&h, (double)(v + 1) / 32.0), v);
    ck_assert_uint_eq(weir__histogram_quantile(&h, 0.0), 0);
    ck_assert_uint_eq(h.sum, 31 * 32 / 2);
    ck_assert_uint_eq(h.total, 32);
}

/* With one value alone every quantile is that value, because the bound is cut to the maximum. */
TEST(test_the_quantiles_of_one_value_are_that_value) {
    for (int bit = 0; bit < 64; bit++)
        for (int step = -1; step <= 1; step++) {
            uint64_t value = (UINT64_C(1) << bit) + (uint64_t)step;

            clear_histogram();
            weir__histogram_add(&h, value);
            ck_assert_uint_eq(weir__histogram_quantile(&h, 0.5), value);
            ck_assert_uint_eq(weir__histogram_quantile(&h, 1.0), value);
        }
    clear_histogram();
    weir__histogram_add(&h, UINT64_MAX);
    ck_assert_uint_eq(weir__histogram_quantile(&h, 0.999), UINT64_MAX);
}

/* A bound is at least the value and at most 1/32 above it, at every place of every power. */
TEST(test_bounds_are_within_one_thirtysecond) {
    uint64_t state = 88172645463325252u;

    for (int round = 0; round < 20000; round++) {
        uint64_t value = next_random(&state) >> (next_random(&state) % 63 + 1), bound;

        clear_histogram();
        weir__histogram_add(&h, value);
        weir__histogram_add(&h, UINT64_MAX);
        bound = weir__histogram_quantile(&h, 0.5);
        ck_assert_uint_ge(bound, value);
        ck_assert_uint_le(bound - value, value / 32);
    }
}

static int compare_samples(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

TEST(test_quantiles_agree_with_sorting) {
    static const double fractions[] = {0.001, 0.07, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0};
    enum { N = 10000 };
    static uint64_t values[N];
    uint64_t state = 123456789, sum = 0;

    for (int i = 0; i < N; i++) {
        values[i] = next_random(&state) % 1000000 >> (next_random(&state) % 12);
        sum += values[i];
        weir__histogram_add(&h, values[i]);
    }
    qsort(values, N, sizeof values[0], compare_samples);
    for (size_t i = 0; i < sizeof fractions / sizeof fractions[0]; i++) {
        uint64_t exact = values[(size_t)(fractions[i] * N + 0.5) - 1];
        uint64_t bound = weir__histogram_quantile(&h, fractions[i]);

        ck_assert_uint_ge(bound, exact);
        ck_assert_uint_le(bound, exact + exact / 32);
    }
    ck_assert_uint_eq(weir__histogram_quantile(&h, 1.0), values[N - 1]);
    ck_assert_uint_eq(h.sum, sum);
    ck_assert_uint_eq(h.total, N);
}

/* fraction * count must not round up to one value too many. */
TEST(test_rank_is_not_one_too_high) {
    for (uint64_t v = 1; v <= 100; v++)
        weir__histogram_add(&h, v <= 7 ? 1 : 1000);
    ck_assert_uint_eq(weir__histogram_quantile(&h, 0.07), 1);
    ck_assert_uint_gt(weir__histogram_quantile(&h, 0.08), 1);
}

enum { THREADS = 4, ADDS = 50000 };

static void *add_many(void *unused) {
    (void)unused;
    for (uint64_t i = 0; i < ADDS; i++)
        weir__histogram_add(&h, i);
    return NULL;
}

TEST(test_threads_lose_nothing) {
    run_threads(THREADS, add_many, NULL, 0);
    ck_assert_uint_eq(h.total, (uint64_t)THREADS * ADDS);
    ck_assert_uint_eq(h.sum, (uint64_t)THREADS * (ADDS - 1) * ADDS / 2);
    ck_assert_uint_eq(h.max, ADDS - 1);
}

/* A thread counts a value before it counts the value's bucket.  If a reader misses the bucket, the quantile is the
 * maximum.  A total of 2^60, which is too large for a double to add 0.5, still gives correct ranks. */
TEST(test_quantiles_survive_sums_that_do_not_agree) {
    atomic_store(&h.total, 5);
    atomic_store(&h.max, 9);
    ck_assert_uint_eq(weir__histogram_quantile(&h, 0.5), 9);
    atomic_store(&h.total, UINT64_C(1) << 60);
    atomic_store(&h.count[3], UINT64_C(1) << 59);
    ck_assert_uint_eq(weir__histogram_quantile(&h, 0.25), 3);
    ck_assert_uint_eq(weir__histogram_quantile(&h, 0.75), 9);
}

SUITE("histogram", CK_FORK_GETENV);
