/* SPDX-License-Identifier: MIT */
/* test_growth.c: the rule of each growth policy, and its results at the ends of size_t.
 *
 * The series of BFC are computed by hand from TensorFlow's Extend (bfc_allocator.cc). Regions start at 2 MiB and double
 * until they cover the request. The next region is twice as large only if this one did not double. If the device
 * refuses a region, the size of the region shrinks by single-precision 0.9, rounded up to 256. */
#include "config/growth_policy.h"

#include "config/settings.h"
#include "base/size.h"
#include "tests/fixtures/suite.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define UNIT (32 * MIB) /* the growth unit of the pool engine */

static weir_options options;
static struct weir_growth_cursor cursor;

static void reset_growth(void) {
    memset(&cursor, 0, sizeof cursor);
    ck_assert_int_eq(weir__options_complete(NULL, &options, NULL, 0), WEIR_OK);
}

/* Sets the policy from `text`, as --growth does, and completes the options. */
static void use_policy(const char *text) {
    weir_options raw;
    char message[256];

    memset(&cursor, 0, sizeof cursor);
    ck_assert_int_eq(weir_options_init(&raw), WEIR_OK);
    ck_assert_msg(weir_options_set(&raw, "growth", text, message, sizeof message) == WEIR_OK, "%s",
                  message);
    ck_assert_int_eq(weir__options_complete(&raw, &options, NULL, 0), WEIR_OK);
}

static size_t computed_step(size_t request, size_t reserve, size_t limit, size_t device_free,
                            size_t unit) {
    weir_growth_state state = {.size = sizeof state,
                               .request = request,
                               .reserved = reserve,
                               .in_use = reserve / 2,
                               .limit = limit,
                               .device_free = device_free};

    return weir__growth_step(&options, &state, unit, &cursor);
}

static const struct {
    const char *policy;
    size_t request, reserved, limit, device_free, unit, expected;
} cases[] = {
    /* exact: the request in whole units */
    {"exact", 1, 0, SIZE_MAX, SIZE_MAX, UNIT, UNIT},
    {"exact", UNIT, 0, SIZE_MAX, SIZE_MAX, UNIT, UNIT},
    {"exact", UNIT + 1, 0, SIZE_MAX, SIZE_MAX, UNIT, 2 * UNIT},
    {"exact", 1000, 0, SIZE_MAX, SIZE_MAX, 256, 1024},
    /* step: whole steps, of any size */
    {"step:64MiB", 1, 0, SIZE_MAX, SIZE_MAX, UNIT, 64 * MIB},
    {"step:64MiB", 64 * MIB, 0, SIZE_MAX, SIZE_MAX, UNIT, 64 * MIB},
    {"step:64MiB", 64 * MIB + 1, 0, SIZE_MAX, SIZE_MAX, UNIT, 128 * MIB},
    {"step:50MiB", 60 * MIB, 0, SIZE_MAX, SIZE_MAX, UNIT, 128 * MIB}, /* 100 MiB in units */
    {"step:50MiB", 60 * MIB, 0, SIZE_MAX, SIZE_MAX, 256, 100 * MIB},
    {"step:1B", 1000, 0, SIZE_MAX, SIZE_MAX, 256, 1024},
    {"step", 1, 0, SIZE_MAX, SIZE_MAX, 256, 64 * MIB},
    /* geometric: (factor - 1) x reserve, never less than the request */
    {"geometric:2", 1, 0, SIZE_MAX, SIZE_MAX, UNIT, UNIT},
    {"geometric:2", 1, GIB, SIZE_MAX, SIZE_MAX, UNIT, GIB},
    {"geometric:1.5", 1, GIB, SIZE_MAX, SIZE_MAX, UNIT, GIB / 2},
    {"geometric:2", 2 * GIB, GIB, SIZE_MAX, SIZE_MAX, UNIT, 2 * GIB},
    {"geometric:2:256MiB", 1, GIB, SIZE_MAX, SIZE_MAX, UNIT, 256 * MIB},
    {"geometric:2:256MiB", 300 * MIB, GIB, SIZE_MAX, SIZE_MAX, UNIT, 320 * MIB},
    {"geometric:2:1B", 1, GIB, SIZE_MAX, SIZE_MAX, UNIT, UNIT},
    {"geometric:1.0000001", 1, GIB, SIZE_MAX, SIZE_MAX, UNIT, UNIT},
    {"geometric:1.0000001", 1, 100 * GIB, SIZE_MAX, SIZE_MAX, 256, 10496}, /* 10737.4 */
    {"geometric:1000000", 1, GIB, 10 * GIB, SIZE_MAX, UNIT, 9 * GIB},
    /* remaining: a share of the room below the limit, or of the device's free memory */
    {"remaining:0.5", 1, 0, 8 * GIB, SIZE_MAX, UNIT, 4 * GIB},
    {"remaining:0.5", 1, 4 * GIB, 8 * GIB, SIZE_MAX, UNIT, 2 * GIB},
    {"remaining:0.5", 3 * GIB, 4 * GIB, 8 * GIB, SIZE_MAX, UNIT, 3 * GIB},
    {"remaining:1", 1, 0, 8 * GIB, SIZE_MAX, UNIT, 8 * GIB},
    {"remaining:0.5", 1, GIB, SIZE_MAX, 6 * GIB, UNIT, 3 * GIB},
    {"remaining:0.5", 1, GIB, SIZE_MAX, SIZE_MAX, UNIT, UNIT}, /* the bounds are unknown */
    {"remaining:0.5", 1, 0, 8 * GIB, 2 * GIB, UNIT, GIB},
    {"remaining:0.000001", 1, 0, 8 * GIB, SIZE_MAX, UNIT, UNIT},
    /* the device's free memory bounds what exceeds the request, in whole units */
    {"step:1GiB", 1, 0, SIZE_MAX, 200 * MIB, UNIT, 192 * MIB},
    {"geometric:2", 1, GIB, SIZE_MAX, 100 * MIB, UNIT, 96 * MIB},
    {"step:1GiB", 300 * MIB, 0, SIZE_MAX, 200 * MIB, UNIT, 320 * MIB}, /* the driver decides */
    {"exact", UNIT, 0, SIZE_MAX, 0, UNIT, UNIT},
    /* the limit bounds everything */
    {"step:1GiB", 1, 0, 200 * MIB, SIZE_MAX, UNIT, 192 * MIB},
    {"exact", 1, 0, UNIT, SIZE_MAX, UNIT, UNIT},
    {"exact", 1, 0, UNIT - 1, SIZE_MAX, UNIT, 0},
    {"exact", UNIT + 1, 0, 2 * UNIT - 1, SIZE_MAX, UNIT, 0},
    {"exact", 1, UNIT, UNIT, SIZE_MAX, UNIT, 0},     /* the reserved memory is the limit */
    {"exact", 1, 2 * UNIT, UNIT, SIZE_MAX, UNIT, 0}, /* the reserved memory is above it */
    {"step", 1, UNIT, 2 * UNIT, SIZE_MAX, UNIT, UNIT},
    {"geometric:2", 1, 0, 0, SIZE_MAX, UNIT, 0},
    {"remaining:0.5", 3 * UNIT, 0, 2 * UNIT, SIZE_MAX, UNIT, 0},
    {"bfc", 3 * UNIT, 0, 2 * UNIT, SIZE_MAX, 256, 0},
    {"bfc", 1, UNIT, UNIT, SIZE_MAX, 256, 0},
    /* nothing to add */
    {"exact", 0, 0, SIZE_MAX, SIZE_MAX, UNIT, 0},
    {"step", 0, 0, SIZE_MAX, SIZE_MAX, UNIT, 0},
    {"geometric:2", 0, GIB, SIZE_MAX, SIZE_MAX, UNIT, 0},
    {"remaining:1", 0, 0, GIB, SIZE_MAX, UNIT, 0},
    {"bfc", 0, 0, SIZE_MAX, SIZE_MAX, 256, 0},
    /* the ends of size_t */
    {"exact", SIZE_MAX, 0, SIZE_MAX, SIZE_MAX, UNIT, 0}, /* no whole units hold it */
    {"exact", SIZE_MAX - UNIT + 1, 0, SIZE_MAX, SIZE_MAX, UNIT, SIZE_MAX - UNIT + 1},
    {"exact", SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, UNIT, 0},
    {"exact", SIZE_MAX - UNIT + 1, UNIT, SIZE_MAX, SIZE_MAX, UNIT, 0},
    {"step:1GiB", SIZE_MAX / 2 + 2, 0, SIZE_MAX, SIZE_MAX, UNIT, SIZE_MAX / 2 + 1 + GIB},
    {"step:3GiB", SIZE_MAX - UNIT + 1, 0, SIZE_MAX, SIZE_MAX, UNIT, SIZE_MAX - UNIT + 1},
    {"step:18446744073709551615", 1, 0, SIZE_MAX, SIZE_MAX, UNIT, SIZE_MAX - UNIT + 1},
    {"geometric:1000000", 1, SIZE_MAX / 2, SIZE_MAX, SIZE_MAX, UNIT, SIZE_MAX / 2 + 1},
    {"remaining:1", 1, 0, SIZE_MAX - 1, SIZE_MAX, UNIT, SIZE_MAX - UNIT + 1},
    {"bfc", SIZE_MAX, 0, SIZE_MAX, SIZE_MAX, 256, 0},
    {"bfc", SIZE_MAX - 255, 0, SIZE_MAX, SIZE_MAX, 256, SIZE_MAX - 255},
    {"bfc", SIZE_MAX / 2 + 2, 0, SIZE_MAX, SIZE_MAX, 256, SIZE_MAX - 255},
    {"bfc", SIZE_MAX - 255, 0, SIZE_MAX, SIZE_MAX, UNIT, SIZE_MAX - 255},
};

CASE("growth", 60, reset_growth, NULL);

TEST_EACH(ROWS(cases), test_step) {
    use_policy(cases[_i].policy);
    size_t step = computed_step(cases[_i].request, cases[_i].reserved, cases[_i].limit,
                                cases[_i].device_free, cases[_i].unit);
    ck_assert_uint_eq(step, cases[_i].expected);
    ck_assert_uint_eq(cursor.steps, step > 0 ? 1 : 0);
    ck_assert_uint_eq(cursor.last_step, step);
}

/* The promise of growth_policy.h holds for each combination of these numbers. */
TEST(test_steps_keep_the_promises) {
    static const char *const policies[] = {
        "exact",         "step:1B", "step:50MiB", "geometric:1.1", "geometric:3:1GiB",
        "remaining:0.3", "bfc"};
    static const size_t sizes[] = {1,
                                   255,
                                   256,
                                   257,
                                   MIB,
                                   UNIT - 1,
                                   UNIT,
                                   UNIT + 1,
                                   3 * GIB + 7,
                                   SIZE_MAX / 2,
                                   SIZE_MAX / 2 + 1,
                                   SIZE_MAX - UNIT,
                                   SIZE_MAX - 255,
                                   SIZE_MAX - 1,
                                   SIZE_MAX};
    static const size_t units[] = {256, 2 * MIB, UNIT};

    for (size_t p = 0; p < COUNT(policies); p++)
        for (size_t i = 0; i < COUNT(sizes) * COUNT(sizes) * COUNT(sizes) * COUNT(units); i++) {
            size_t request = sizes[i % COUNT(sizes)];
            size_t reserve = sizes[i / COUNT(sizes) % COUNT(sizes)] - 1;
            size_t limit = sizes[i / COUNT(sizes) / COUNT(sizes) % COUNT(sizes)];
            size_t unit = units[i / COUNT(sizes) / COUNT(sizes) / COUNT(sizes)];
            int is_bfc = strcmp(policies[p], "bfc") == 0;
            size_t need, grain = is_bfc ? 256 : unit;
            size_t room = reserve < limit ? limit - reserve : 0;
            use_policy(policies[p]);
            size_t step = computed_step(request, reserve, limit, SIZE_MAX, unit);
            if (!weir__size_round_up(request, grain, &need) ||
                need > weir__size_round_down(room, grain)) {
                ck_assert_uint_eq(step, 0);
                continue;
            }
            MUST_BE_WITHIN(need, step, room);
            ck_assert_uint_eq(step % grain, 0);
        }
}

static weir_growth_state told;
static void *told_context;
static size_t answer;

static size_t record_growth(const weir_growth_state *state, void *context) {
    told = *state;
    told_context = context;
    return answer;
}

TEST(test_a_callback_decides_the_step) {
    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = record_growth;
    options.growth_context = &answer;
    answer = 100 * MIB;
    ck_assert_uint_eq(computed_step(5, 64 * MIB, GIB, 300 * MIB, UNIT), 96 * MIB);
    ck_assert_ptr_eq(told_context, &answer);
    ck_assert_uint_eq(told.size, sizeof told);
    ck_assert_uint_eq(told.request, 5);
    ck_assert_uint_eq(told.reserved, 64 * MIB);
    ck_assert_uint_eq(told.in_use, 32 * MIB);
    ck_assert_uint_eq(told.limit, GIB);
    ck_assert_uint_eq(told.device_free, 300 * MIB);
    ck_assert_uint_eq(told.steps, 0);
    ck_assert_uint_eq(told.last_step, 0);
    answer = 0; /* less than the request counts as the request */
    ck_assert_uint_eq(computed_step(5, 64 * MIB, GIB, SIZE_MAX, UNIT), UNIT);
    ck_assert_uint_eq(told.steps, 1);
    ck_assert_uint_eq(told.last_step, 96 * MIB);
    answer = SIZE_MAX; /* weir cuts a larger answer */
    ck_assert_uint_eq(computed_step(5, 64 * MIB, GIB, SIZE_MAX, UNIT), GIB - 64 * MIB);
    ck_assert_uint_eq(computed_step(5, 64 * MIB, GIB, 300 * MIB, UNIT), 288 * MIB);
    ck_assert_uint_eq(cursor.steps, 4);
}

TEST(test_bfc_doubles_its_regions) {
    static const struct {
        size_t request, expected;
    } series[] = {
        {MIB, 2 * MIB},       /* the first region; no doubling, so 4 next */
        {MIB, 4 * MIB},       /* 8 next */
        {256, 8 * MIB},       /* 16 next */
        {20 * MIB, 32 * MIB}, /* 16 doubled once: stays 32 */
        {MIB, 32 * MIB},      /* 64 next */
        {64 * MIB, 64 * MIB}, /* exactly fits; 128 next */
        {64 * MIB + 1, 128 * MIB},
        {300 * MIB, 512 * MIB},  /* 256 doubled once: stays 512 */
        {600 * MIB, 1024 * MIB}, /* 512 doubled once: stays 1024 */
        {1, 1024 * MIB},         /* 2048 next */
        {1, 2048 * MIB},
    };
    size_t reserve = 0;

    use_policy("bfc");
    for (size_t i = 0; i < COUNT(series); i++) {
        size_t step = computed_step(series[i].request, reserve, SIZE_MAX, SIZE_MAX, 256);

        ck_assert_msg(step == series[i].expected, "step %zu is %zu, not %zu", i, step,
                      series[i].expected);
        reserve += step;
    }
    ck_assert_uint_eq(cursor.steps, COUNT(series));
}

/* A step is the smaller of the doubled region and the room below the limit, rounded down to 256. */
TEST(test_bfc_steps_fit_below_a_limit) {
    use_policy("bfc");
    ck_assert_uint_eq(computed_step(MIB, 0, 100 * MIB + 1000, SIZE_MAX, 256), 2 * MIB);
    ck_assert_uint_eq(computed_step(60 * MIB, 2 * MIB, 100 * MIB + 1000, SIZE_MAX, 256), 64 * MIB);
    ck_assert_uint_eq(computed_step(MIB, 66 * MIB, 100 * MIB + 1000, SIZE_MAX, 256),
                      34 * MIB + 768);
    ck_assert_uint_eq(computed_step(256, 100 * MIB + 768, 100 * MIB + 1000, SIZE_MAX, 256), 0);
    use_policy("bfc"); /* the first region is no larger than the limit, rounded up to 256 */
    ck_assert_uint_eq(computed_step(256, 0, 1000, SIZE_MAX, 256), 768);
    ck_assert_uint_eq(cursor.next_region, 2048);
    use_policy("bfc");
    ck_assert_uint_eq(computed_step(700, 0, 1000, SIZE_MAX, 256), 768);
    use_policy("bfc");
    ck_assert_uint_eq(computed_step(769, 0, 1000, SIZE_MAX, 256), 0);
}

/* TensorFlow tries a region and learns from a failure. It does not query the free memory. */
TEST(test_bfc_ignores_what_is_free) {
    use_policy("bfc");
    ck_assert_uint_eq(computed_step(20 * MIB, 0, SIZE_MAX, 21 * MIB, 256), 32 * MIB);
}

TEST(test_bfc_rounds_to_larger_units) {
    use_policy("bfc");
    ck_assert_uint_eq(computed_step(MIB, 0, SIZE_MAX, SIZE_MAX, UNIT), UNIT);
    ck_assert_uint_eq(cursor.next_region, 4 * MIB);
    ck_assert_uint_eq(computed_step(40 * MIB, UNIT, SIZE_MAX, SIZE_MAX, UNIT), 64 * MIB);
    use_policy("bfc"); /* the end of the limit need not be a whole unit */
    ck_assert_uint_eq(computed_step(MIB, 0, 5 * MIB, SIZE_MAX, UNIT), 5 * MIB);
}

/* Only a region that was made doubles the next one. */
TEST(test_bfc_doubles_only_after_success) {
    use_policy("bfc");
    ck_assert_uint_eq(computed_step(MIB, 0, SIZE_MAX, SIZE_MAX, 256), 2 * MIB);
    weir__growth_refused(&cursor);
    ck_assert_uint_eq(cursor.steps, 0);
    ck_assert_uint_eq(computed_step(MIB, 0, SIZE_MAX, SIZE_MAX, 256), 2 * MIB);
    ck_assert_uint_eq(computed_step(MIB, 0, SIZE_MAX, SIZE_MAX, 256), 4 * MIB);
    /* If the request forced a doubling, the doubled size stays after a failure, as in TensorFlow. */
    ck_assert_uint_eq(computed_step(100 * MIB, 0, SIZE_MAX, SIZE_MAX, 256), 128 * MIB);
    weir__growth_refused(&cursor);
    ck_assert_uint_eq(computed_step(MIB, 0, SIZE_MAX, SIZE_MAX, 256), 128 * MIB);
    weir__growth_refused(&cursor);
    weir__growth_refused(&cursor); /* a second refusal changes nothing */
    ck_assert_uint_eq(computed_step(MIB, 0, SIZE_MAX, SIZE_MAX, 256), 128 * MIB);
    ck_assert_uint_eq(computed_step(MIB, 0, SIZE_MAX, SIZE_MAX, 256), 256 * MIB);
}

/* A shrink sets the next region as if growth had ended at the remaining memory. */
TEST(test_bfc_continues_from_a_shrink) {
    size_t reserve = 0;

    use_policy("bfc");
    weir__growth_shrunk(&cursor, 0); /* a shrink before the first step */
    for (int i = 0; i < 10; i++)
        reserve += computed_step(MIB, reserve, SIZE_MAX, SIZE_MAX, 256);
    ck_assert_uint_eq(reserve, 2046 * MIB);
    weir__growth_shrunk(&cursor, 2046 * MIB);
    ck_assert_uint_eq(cursor.next_region, 2048 * MIB);
    weir__growth_shrunk(&cursor, 1500 * MIB);
    ck_assert_uint_eq(computed_step(MIB, 1500 * MIB, SIZE_MAX, SIZE_MAX, 256), 1024 * MIB);
    weir__growth_shrunk(&cursor, 30 * MIB);
    ck_assert_uint_eq(computed_step(MIB, 30 * MIB, SIZE_MAX, SIZE_MAX, 256), 32 * MIB);
    weir__growth_shrunk(&cursor, 0);
    ck_assert_uint_eq(computed_step(MIB, 0, SIZE_MAX, SIZE_MAX, 256), 2 * MIB);
    ck_assert_uint_eq(computed_step(MIB, 2 * MIB, SIZE_MAX, SIZE_MAX, 256), 4 * MIB);
    use_policy("bfc"); /* a first region that is no power of two */
    ck_assert_uint_eq(computed_step(256, 0, 1000, SIZE_MAX, 256), 768);
    weir__growth_shrunk(&cursor, 0);
    ck_assert_uint_eq(cursor.next_region, 2048);
}

TEST(test_bfc_retries_a_tenth_smaller) {
    static const size_t small[] = {67108864, 60398080, 54358272, 48922624, 44030464};
    static const size_t large[] = {112742891520, 101468602368, 91321737216, 82189557760,
                                   73970597888,  66573537280,  59916181504};

    use_policy("bfc");
    for (size_t i = 1; i < COUNT(small); i++)
        ck_assert_uint_eq(weir__growth_smaller(&options, small[i - 1], 40 * MIB, 256), small[i]);
    ck_assert_uint_eq(weir__growth_smaller(&options, 44030464, 40 * MIB, 256), 0);
    for (size_t i = 1; i < COUNT(large); i++)
        ck_assert_uint_eq(weir__growth_smaller(&options, large[i - 1], 1, 256), large[i]);
    ck_assert_uint_eq(weir__growth_smaller(&options, 54358272, 48922624, 256), 48922624);
    ck_assert_uint_eq(weir__growth_smaller(&options, 54358272, 48922625, 256), 0);
}

/* TensorFlow's rule would not end, because nine tenths of 2304 round up to 2304. */
TEST(test_bfc_back_off_ends) {
    size_t step = 4096, steps = 0;

    use_policy("bfc");
    while (step > 0 && steps < 100) {
        size_t smaller = weir__growth_smaller(&options, step, 1, 256);

        ck_assert_uint_lt(smaller, step);
        ck_assert_uint_eq(smaller % 256, 0);
        step = smaller;
        steps++;
    }
    ck_assert_uint_eq(steps, 16);
    step = SIZE_MAX;
    for (steps = 0; step > 0 && steps < 1000; steps++) {
        size_t smaller = weir__growth_smaller(&options, step, 1, UNIT);

        ck_assert_uint_lt(smaller, step);
        step = smaller;
    }
    ck_assert_uint_lt(steps, 400);
}

TEST(test_other_policies_retry_half_way) {
    static const char *const policies[] = {"exact", "step:1GiB", "geometric:2", "remaining:0.5"};

    for (size_t i = 0; i < COUNT(policies); i++) {
        use_policy(policies[i]);
        ck_assert_uint_eq(weir__growth_smaller(&options, 10 * UNIT, 2 * UNIT, UNIT), 6 * UNIT);
        ck_assert_uint_eq(weir__growth_smaller(&options, 6 * UNIT, 2 * UNIT - 5, UNIT), 4 * UNIT);
        ck_assert_uint_eq(weir__growth_smaller(&options, 5 * UNIT, 2 * UNIT, UNIT), 3 * UNIT);
        ck_assert_uint_eq(weir__growth_smaller(&options, 3 * UNIT, 2 * UNIT, UNIT), 2 * UNIT);
        ck_assert_uint_eq(weir__growth_smaller(&options, 2 * UNIT, 2 * UNIT, UNIT), 0);
        ck_assert_uint_eq(weir__growth_smaller(&options, UNIT, 2 * UNIT, UNIT), 0);
        ck_assert_uint_eq(weir__growth_smaller(&options, SIZE_MAX, SIZE_MAX, UNIT), 0);
        ck_assert_uint_eq(weir__growth_smaller(&options, UNIT, 0, UNIT), 0);
    }
}

/* Tests a refusal before the first step, and a region that cannot double. */
TEST(test_ends_of_a_cursor) {
    use_policy("bfc");
    weir__growth_refused(&cursor);
    ck_assert_uint_eq(cursor.steps, 0);
    cursor.next_region = SIZE_MAX / 2 + 1;
    ck_assert_uint_eq(computed_step(MIB, 0, SIZE_MAX, SIZE_MAX, 256), SIZE_MAX / 2 + 1);
    ck_assert_uint_eq(cursor.next_region, SIZE_MAX / 2 + 1);
    weir__growth_refused(&cursor);
    ck_assert_uint_eq(cursor.next_region, SIZE_MAX / 2 + 1);
}

TEST(test_size_arithmetic_reports_overflow) {
    size_t out = 7;

    ck_assert_int_eq(weir__size_add(SIZE_MAX, 1, &out), 0);
    ck_assert_int_eq(weir__size_mul(SIZE_MAX, 2, &out), 0);
    ck_assert_int_eq(weir__size_round_up(SIZE_MAX, 256, &out), 0);
    ck_assert_uint_eq(out, 7);
    ck_assert_int_eq(weir__size_round_up(SIZE_MAX - 255, 256, &out), 1);
    ck_assert_uint_eq(out, SIZE_MAX - 255);
}

SUITE("growth", CK_FORK_GETENV);
