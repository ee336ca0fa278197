/* SPDX-License-Identifier: MIT */
/* test_preallocation.c: the minimum of a preallocation, and the host memory that the first requests need. */
#include "tests/fixtures/preallocated.h"

#include "base/text.h"
#include "config/settings.h"

/* Returns the message for a device without more memory. With regions, the rest of the device is less than a region,
 * which the driver refuses. */
static const char *end_of_device(int way) {
    return way == REGIONS ? "iB; the driver refused more, with " : "iB; the device has no more";
}

CASE("amounts", 60, set_up_preallocation, tear_down_preallocation);

TEST_EACH(WAYS, partial_success_is_reported) {
    (void)leave_free(GIB);
    make_preallocated(_i, 4 * GIB, "");
    expect_prealloc_log("requested 4GiB, got and kept ");
    ck_assert_msg(strstr(logged, _i == REGIONS ? "MiB; the driver refused more, with 86MiB free"
                                               : "1GiB; the device has no more") != NULL,
                  "%s", logged);
    weir_statistics s = stats_of(a);
    ck_assert_uint_eq(s.prealloc_asked, 4 * GIB);
    MUST_BE_WITHIN(least_of(_i), s.prealloc_got, GIB);
    ck_assert_uint_eq(s.prealloc_kept, s.reserved);
}

/* The driver's pool releases whole units until it has at most its release threshold, so a threshold of 16 MiB would
 * not keep a unit. */
TEST_EACH(WAYS, parts_of_units_are_kept) {
    for (uint64_t bytes = 16 * MIB; bytes <= 100 * MIB; bytes += 84 * MIB) {
        weir_options options = prealloc_options(_i, bytes);
        options.release_threshold = bytes_amount(0);
        make_with(&options);
        MUST_LE(bytes, stats_of(a).prealloc_kept);
        free_live(alloc_live(4 * MIB, A), A);
        CU(driver->cuCtxSynchronize());
        MUST_LE(bytes, stats_of(a).reserved);
        destroy();
    }
}

/* The limit of a pool is a whole number of units. weir preallocates up to that limit, and reports the amount. */
TEST_WHERE(POOL, REGIONS, NULL, a_limit_is_rounded_down_to_units) {
    make_preallocated(_i, 100 * MIB, "limit=100MiB");
    expect_prealloc_log("requested 100MiB, got and kept 96MiB");
    MUST_EQ(stats_of(a).reserved, 96 * MIB);
}

/* weir computes a share of the free memory again when the process has its turn. If the driver does not answer, the
 * first value counts. */
TEST_EACH(WAYS, a_share_keeps_its_first_value_without_an_answer) {
    weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 2, CUDA_ERROR_UNKNOWN, 0);
    make_preallocated(_i, 0, "prealloc=50%free");
    MUST_EQ(stats_of(a).prealloc_asked, 4 * GIB);
    MUST_EQ(stats_of(a).prealloc_kept, 4 * GIB);
}

/* If the device has memory left, the message names the setting that stops preallocation. */
TEST_EACH(6 * WAYS, what_stands_against_more_is_named) {
    static const char *const causes[] = {"; keep-free keeps for others 3GiB",
                                         "; a share leaves 128MiB of the device",
                                         "; the limit is 2GiB"};
    weir_options options = prealloc_options(_i % WAYS, 5 * GIB);
    int way = _i / WAYS % 3, is_little = _i / WAYS / 3;
    if (is_little && way != 1)
        return; /* only a share is tested on a device that is nearly full */
    (void)leave_free(is_little ? 100 * MIB : 6 * GIB);
    if (way == 0)
        options.keep_free = bytes_amount(3 * GIB);
    if (way == 1) {
        options.prealloc = (weir_amount){.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
        options.registry = WEIR_SWITCH_OFF;
    }
    if (way == 2)
        OK(weir__allocator_create_later(driver, &options, &a, NULL, 0));
    else
        make_with(&options);
    if (way == 2)
        OK(weir_set_limit(a, bytes_amount(2 * GIB)));
    free_live(alloc_live(1000, A), A);
    weir__model_advance(1000 * MS);
    free_live(alloc_live(3 * MIB, A), A);
    if (way != 1) /* a share depends on what others leave */
        expect_prealloc_log(causes[way]);
    destroy();
    options.prealloc_min = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    if (way > 0)
        return;
    EXPECT(WEIR_E_LIMIT, try_on(driver, &options));
    expect_message(causes[way]);
}

/* weir reports what weir_preallocate got. A preallocated share leaves memory to others, but this call does not. */
TEST_EACH(3 * WAYS, what_a_call_gets_is_told) {
    int way = _i % WAYS, cause = _i / WAYS;
    const char *const causes[] = {"; keep-free keeps for others 3GiB", "; the limit is 1GiB",
                                  strchr(end_of_device(way), ';')};
    static const char *const settings[] = {"keep-free=3GiB", "",
                                           "prealloc=share registry=off"};
    char expected[128], kept[32];
    size_t reserve = 0;
    (void)leave_free(4 * GIB);
    make_later(way, 0, settings[cause]);
    OK(weir_preallocate(a, 512 * MIB, NULL));
    if (cause == 1)
        OK(weir_set_limit(a, bytes_amount(GIB)));
    ck_assert(!log_has("preallocation"));
    EXPECT(cause == 2 ? WEIR_E_NO_MEMORY : WEIR_E_LIMIT, weir_preallocate(a, 8 * GIB, &reserve));
    weir__bytes_show(reserve, kept, sizeof kept);
    snprintf(expected, sizeof expected,
             "weir: warning: preallocation: requested 8GiB, got and kept %s%s", kept,
             causes[cause]);
    ck_assert_msg(log_has(expected), "not %s: %s", expected, logged);
}

TEST(why_a_call_gets_nothing_is_told) {
    weir_options options = prealloc_options(POOL_ALONE, 0);
    copy_driver();
    table.capabilities &= ~(unsigned)WEIR_CAP_POOL_FIGURES;
    make_with_on(&table, &options);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_preallocate(a, MIB, NULL));
    expect_prealloc_log("weir: error: weir_preallocate: the driver (before 11.3) does not report");
    destroy();
    options.engine = WEIR_ENGINE_DIRECT;
    make_with(&options);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_preallocate(a, MIB, NULL));
    expect_prealloc_log("weir: error: weir_preallocate: engine direct reserves no memory");
    destroy();
    options = prealloc_options(MAPPED, 0);
    make_with(&options);
    weir__model_fail(WEIR_ENTRY_cuMemCreate, 1, CUDA_ERROR_NOT_SUPPORTED, 1);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_preallocate(a, 64 * MIB, NULL));
    weir__model_faults_clear();
    expect_prealloc_log("weir_preallocate: not supported by this driver or engine: the driver "
                        "answered CUDA_ERROR_NOT_SUPPORTED");
    weir__model_fail(WEIR_ENTRY_cuMemCreate, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(WEIR_E_DRIVER, weir_preallocate(a, 64 * MIB, NULL));
    weir__model_faults_clear();
    MUST(lines() == 1); /* the message contains the driver's answer */
}

/* If several settings limit the preallocation, the message names the one that applied. A share is such a setting,
 * too. */
TEST_EACH(WAYS, which_limit_it_was_is_named) {
    make_later(_i, 5 * GIB, "keep-free=1GiB");
    OK(weir_set_limit(a, bytes_amount(2 * GIB)));
    free_live(alloc_live(1000, A), A);
    expect_prealloc_log("; the limit is 2GiB");
    destroy();
    start_model(8 * GIB + 8 * MIB);
    make_preallocated(_i, 8 * GIB + 8 * MIB, "limit=share");
    expect_prealloc_log("; the limit, a share, is 8GiB");
    destroy();
    make_later(_i, 8 * GIB + 8 * MIB, "limit=share");
    OK(weir_set_limit(a, bytes_amount(2 * GIB)));
    free_live(alloc_live(1000, A), A);
    expect_prealloc_log("; the limit is 2GiB");
}

/* The share leaves room, but the driver refuses the memory. */
TEST_EACH(WAYS, a_share_may_be_refused_by_the_driver) {
    static const enum weir_driver_entry entries[] = {WEIR_ENTRY_cuMemAllocFromPoolAsync,
                                                     WEIR_ENTRY_cuMemAllocFromPoolAsync,
                                                     WEIR_ENTRY_cuMemAlloc, WEIR_ENTRY_cuMemCreate};

    weir__model_fail(entries[_i], 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    fail_to_make_on(driver, WEIR_E_NO_MEMORY, _i, 0, "prealloc=share");
    weir__model_faults_clear();
    expect_prealloc_log("got and kept 0B; the driver refused more, with 8GiB free");
}

/* The variable of another program ignores weir's limit, so weir lowers its amount to the limit, in whole units if
 * possible. A preallocation that weir's own setting requests must not exceed the limit. */
TEST_EACH(2, what_a_variable_asks_is_held_to_the_limit) {
    static const struct {
        uint64_t limit, asked;
        const char *shown;
    } ways[] = {{GIB + 5 * MIB, GIB, "of 1GiB: "}, {20 * MIB, 20 * MIB, "of 20MiB: "}};
    weir_options options = prealloc_options(REGIONS, 0);

    MUST(setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5", 1) == 0);
    OK(weir_options_from_env(&options, NULL, 0));
    options.limit = bytes_amount(ways[_i].limit);
    make_with(&options);
    expect_prealloc_log(
        "XLA_PYTHON_CLIENT_MEM_FRACTION requests a preallocation of 4GiB, above the limit");
    ck_assert_msg(strstr(logged, ways[_i].shown) != NULL, "%s", logged);
    free_live(alloc_live(1000, A), A);
    MUST_EQ(stats_of(a).prealloc_asked, ways[_i].asked);
    destroy();
    options.prealloc = (weir_amount){.value = 500001, .kind = WEIR_AMOUNT_OF_TOTAL};
    EXPECT(WEIR_E_LIMIT, try_on(driver, &options));
}

TEST_EACH(WAYS, less_than_the_least_is_a_failure) {
    weir_options options = prealloc_options(_i, 4 * GIB);
    CUdeviceptr hoard = leave_free(GIB);

    options.prealloc_min = bytes_amount(2 * GIB);
    EXPECT(WEIR_E_NO_MEMORY, try_on(driver, &options));
    expect_message("requested 4GiB, at least 2GiB, got only ");
    expect_message(end_of_device(_i));
    ck_assert_uint_eq(device_free(), GIB); /* weir keeps no memory */
    options.prealloc_min = bytes_amount(512 * MIB);
    make_with(&options);
    options.prealloc_min = (weir_amount){.kind = WEIR_AMOUNT_MAX}; /* all of it is the minimum */
    EXPECT(WEIR_E_NO_MEMORY, try_on(driver, &options));
    expect_message("requested 4GiB, at least 4GiB, got only ");
    CU(driver->cuMemFree(hoard));
    make_with(&options);
    options.prealloc_min = bytes_amount(4 * GIB);
    make_with(&options);
}

/* weir can compare amounts of different kinds only if it knows the device. */
TEST_EACH(WAYS, the_least_is_no_more_than_the_whole) {
    weir_options options = prealloc_options(_i, 0);

    options.prealloc = (weir_amount){.value = 100000, .kind = WEIR_AMOUNT_OF_TOTAL};
    options.prealloc_min = bytes_amount(device_free());
    EXPECT(WEIR_E_INVALID, try_on(driver, &options));
    expect_message("prealloc-min '");
    expect_message("' is more than prealloc '10%', which is ");
    expect_message("; expected at most that");
    options.prealloc_min = bytes_amount(MIB);
    make_with(&options);
    options.prealloc = bytes_amount(GIB);
    options.prealloc_min = (weir_amount){.value = 900000, .kind = WEIR_AMOUNT_OF_TOTAL};
    EXPECT(WEIR_E_INVALID, try_on(driver, &options));
    ck_assert_msg(strstr(message, "prealloc-min '90%' is more than prealloc '1GiB', which is 1GiB"),
                  "%s", message);
    options.prealloc = (weir_amount){.value = 100000, .kind = WEIR_AMOUNT_OF_FREE};
    EXPECT(WEIR_E_NO_MEMORY, try_on(driver, &options));
    expect_message("; no more was asked: set prealloc-min to that or less");
    setenv("XLA_CLIENT_MEM_FRACTION", "0.1", 1);
    options.prealloc = (weir_amount){0};
    OK(weir_options_from_env(&options, NULL, 0));
    options.prealloc_min = bytes_amount(device_free());
    EXPECT(WEIR_E_INVALID, try_on(driver, &options));
    expect_message("XLA_CLIENT_MEM_FRACTION");
}

TEST_EACH(WAYS, requests_fail_until_the_least_is_there) {
    CUdeviceptr hoard = leave_free(GIB);
    void *block = NULL;
    make_later(_i, 4 * GIB, "prealloc-min=2GiB");
    ck_assert_uint_eq(stats_of(a).reserved, 0);
    for (int i = 0; i < 2; i++) {
        EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 1000, A, &block));
        expect_prealloc_log("error: preallocation: requested 4GiB, at least 2GiB, got only ");
        ck_assert(strstr(logged, "set prealloc-min to that or less") != NULL);
        ck_assert_uint_eq(device_free(), GIB); /* weir keeps no memory */
        ck_assert_uint_eq(stats_of(a).prealloc_kept, 0);
    }
    CU(driver->cuMemFree(hoard));
    weir__model_fail(_i <= POOL_ALONE ? WEIR_ENTRY_cuMemAllocFromPoolAsync
                     : _i == MAPPED   ? WEIR_ENTRY_cuMemCreate
                                      : WEIR_ENTRY_cuMemAlloc,
                     1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_alloc(a, 1000, A, &block));
    MUST(log_has(weir_status_message(WEIR_E_DRIVER)));
    free_live(alloc_live(1000, A), A);
    MUST_LE(2 * GIB, stats_of(a).reserved);
    ck_assert_uint_eq(stats_of(a).prealloc_got, stats_of(a).growth_bytes);
}

TEST_EACH(WAYS, the_least_alone_is_the_whole) {
    weir_options options = prealloc_options(_i, 0);
    options.prealloc_min = bytes_amount(GIB);
    make_with(&options);
    ck_assert_uint_eq(stats_of(a).prealloc_got, GIB);
    destroy();
    options.prealloc = bytes_amount(GIB - 1);
    EXPECT(WEIR_E_INVALID, try_on(driver, &options));
    expect_message("prealloc-min '1GiB' is more than prealloc");
}

/* ---- host memory ----------------------------------------------------------------------------- */

enum { FIRST = 96 };

/* The creation makes no host tables.  The first blocks make the tables of their addresses. */
TEST(a_mapped_arena_makes_tables_where_blocks_lie) {
    make_preallocated(MAPPED, 0, "");
    void *small[FIRST], *large[FIRST];
    uint64_t before = stats_of(a).host_bytes;

    MUST_LE(before, 160 * KIB);
    for (int i = 0; i < FIRST; i++) {
        small[i] = alloc_live(1000 + (size_t)i * KIB, A);
        large[i] = alloc_live(2 * MIB, A);
    }
    MUST_LE(stats_of(a).host_bytes, before + 384 * KIB); /* the addresses may lie across two tables */
    for (int i = 0; i < FIRST; i++) {
        free_live(small[i], A);
        free_live(large[i], A);
    }
}

/* ---- amounts from variables of other programs ----------------------------------------------------- */

/* Only the options that weir_options_from_env filled are treated as another program's. */
TEST_EACH(WAYS, an_equal_amount_of_the_program_is_its_own) {
    weir_options first = prealloc_options(_i, 0), second = first, own = prealloc_options(_i, GIB);

    preallocate_at_first(&first, GIB);
    preallocate_at_first(&second, 2 * GIB);
    preallocate_at_first(&(weir_options){.size = sizeof own}, 0);
    make_with(&own);
    MUST_LE(GIB, stats_of(a).reserved);
    first.limit = second.limit = own.limit = bytes_amount(512 * MIB);
    EXPECT(WEIR_E_LIMIT, try_on(driver, &own));
    make_with(&first);
    expect_prealloc_log("above the limit of 512MiB");
    MUST_EQ(stats_of(a).reserved, 0);
    make_with(&second);
    MUST_EQ(stats_of(a).reserved, 0);
}

SUITE("preallocation", CK_FORK);
