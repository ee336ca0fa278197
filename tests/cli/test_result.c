/* SPDX-License-Identifier: MIT */
/* test_result.c: the end of warm-up, the iterations that count as steady, ties, and the text of the findings. */
#include "cli/replay/findings.h"
#include "cli/replay/result.h"
#include "tests/fixtures/suite.h"

enum { MOST = 4 };

/* configuration.c is not linked. */
const struct allocator_kind driver_pool_kind, weir_kind;

int configuration_is_driver(const struct configuration *configuration) {
    return configuration->kind == &driver_pool_kind;
}

static const struct configuration kinds[] = {
    {.name = "driver-keep", .kind = &driver_pool_kind},
    {.name = "mapped", .kind = &weir_kind},
    {.name = "pool", .kind = &weir_kind},
    {.name = "bfc-75", .kind = &weir_kind, .unusable = "it is large"}};

static const struct configuration *all[] = {&kinds[0], &kinds[1], &kinds[2], &kinds[3]};
static const char *names[] = {"first", "second"};
static struct row rows[2 * MOST * 2];
static struct results results;
static struct findings findings;

static void fill_results(void) {
    memset(rows, 0, sizeof rows);
    results = (struct results){.traces = names,
                               .trace_count = 1,
                               .configurations = all,
                               .configuration_count = MOST,
                               .repeat = 1,
                               .rows = rows};
}

static void release_results(void) {
    for (size_t i = 0; i < results.row_count; i++)
        json_decref(rows[i].runs);
    findings_free(&findings);
    memset(&findings, 0, sizeof findings);
}

/* Makes the rows, twice as many if `busy` is not 0. */
static void make_rows(double busy) {
    size_t modes = busy > 0 ? 2 : 1;

    results.busy = busy;
    results.row_count = results.trace_count * MOST * modes;
    for (size_t i = 0; i < results.row_count; i++)
        rows[i] = (struct row){.trace = i / modes / MOST,
                               .configuration = all[i / modes % MOST],
                               .busy = i % modes ? busy : 0,
                               .runs = json_array()};
}

/* Adds a run of eight iterations of `ns` each, with the reserved bytes, and with the makespan unless it is 0. */
static json_t *add_run(struct row *row, json_int_t ns, json_int_t makespan, json_int_t reserved) {
    json_t *times = json_array(), *spans = json_array(), *iterations, *run;

    for (int i = 0; i < 8; i++) {
        json_array_append_new(times, json_integer(ns));
        json_array_append_new(spans, json_integer(makespan));
    }
    iterations = json_pack("{s:o}", "alloc_ns", times);
    if (makespan)
        json_object_set(iterations, "makespan_ns", spans);
    json_decref(spans);
    run = json_pack("{s:o,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "iterations", iterations, "settled", 1,
                    "warm_up_iterations", (json_int_t)1, "creation_ns", ns, "first_ns", 10 * ns,
                    "warm_up_ns", 11 * ns, "requested_peak_bytes", (json_int_t)1000000,
                    "reserved_peak_bytes", reserved, "kept_bytes", reserved);
    json_array_append_new(row->runs, run);
    return run;
}

static void complete_results(void) {
    ck_assert_int_eq(result_align(&results), 1);
    for (size_t i = 0; i < results.row_count; i++)
        result_row(&rows[i]);
    result_mark(&results);
    ck_assert_int_eq(findings_make(&results, &findings), 1);
}

/* Returns the names of the configurations with that mark, for example "mapped pool". */
static const char *marked(enum mark mark) {
    static char text[128];

    text[0] = '\0';
    for (size_t i = 0; i < findings.count; i++)
        if (findings.summaries[i].marks[mark])
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? " " : "",
                     findings.summaries[i].name);
    return text;
}

static int has_sentence(const char *text) {
    for (size_t i = 0; i < findings.sentence_count; i++)
        if (strstr(findings.sentences[i], text))
            return 1;
    return 0;
}

CASE("result", 4, fill_results, release_results);

TEST(test_the_median_is_the_middle_or_the_mean_of_two) {
    uint64_t odd[] = {5, 1, 9}, even[] = {4, 2, 8, 6};

    ck_assert_uint_eq(result_median(odd, 3), 5);
    ck_assert_uint_eq(result_median(even, 4), 5);
    ck_assert_uint_eq(result_median(even, 0), 0);
}

/* Returns the warm-up of iterations whose reserved memory and virtual time, in units of 100 us, are digits. */
static size_t warm_up(const char *reserved, const char *times) {
    struct iteration series[32] = {0};
    size_t count = strlen(times);

    for (size_t i = 0; i < count; i++) {
        series[i].reserved_high = (uint64_t)(reserved[i] - '0');
        series[i].driver_ns = (uint64_t)(times[i] - '0') * 100000;
        series[i].alloc_ns = 9000000; /* the virtual time decides */
    }
    return result_warm_up(series, count, 0, 1);
}

TEST(test_warm_up_ends_with_the_last_peak) {
    ck_assert_uint_eq(warm_up("12333333", "00000000"), 3);
    ck_assert_uint_eq(warm_up("00000000", "00000000"), 0);
    ck_assert_uint_eq(warm_up("33330303", "00000000"), 1); /* a trim, and growth to the old peak */
    ck_assert_uint_eq(warm_up("33333334", "00000000"), 8);
}

TEST(test_warm_up_ends_with_the_last_long_iteration) {
    ck_assert_uint_eq(warm_up("11111111", "93311111"), 3);
    ck_assert_uint_eq(warm_up("11111111", "11911191"), 1); /* recurring: steady */
    ck_assert_uint_eq(warm_up("11111111", "11111119"), 1);
}

TEST(test_a_run_settles_in_its_first_three_quarters) {
    ck_assert_int_eq(result_has_steady_end(5, 8), 1);
    ck_assert_int_eq(result_has_steady_end(6, 8), 0);
    ck_assert_int_eq(result_has_steady_end(60, 80), 1);
    ck_assert_int_eq(result_has_steady_end(61, 80), 0);
    ck_assert_int_eq(result_has_steady_end(0, 2), 0);
}

TEST(test_rows_have_the_same_iterations) {
    make_rows(0);
    for (size_t i = 0; i < MOST; i++)
        add_run(&rows[i], 1000000, 0, 1000000);
    json_object_set_new(json_array_get(rows[1].runs, 0), "warm_up_iterations", json_integer(4));
    json_object_set_new(json_array_get(rows[2].runs, 0), "warm_up_iterations", json_integer(7));
    json_object_set_new(json_array_get(rows[2].runs, 0), "settled", json_false());
    complete_results();
    for (size_t i = 0; i < MOST; i++)
        ck_assert_uint_eq(rows[i].median.value[FIGURE_STEADY_FROM], 4);
    ck_assert_int_eq(rows[2].settled, 0);
}

TEST(test_a_cost_that_comes_again_is_in_the_mean) {
    json_t *run;

    make_rows(0);
    for (size_t i = 0; i < MOST; i++)
        run = add_run(&rows[i], 1000000, 0, 1000000);
    run = json_array_get(rows[0].runs, 0);
    json_array_set_new(json_object_get(json_object_get(run, "iterations"), "alloc_ns"), 7,
                       json_integer(8000000));
    complete_results();
    ck_assert_uint_eq(rows[0].median.value[FIGURE_STEADY_MEDIAN], 1000000);
    ck_assert_uint_eq(rows[0].median.value[FIGURE_STEADY_MEAN], 2000000);
    ck_assert_uint_eq(rows[0].median.value[FIGURE_STEADY_WORST], 8000000);
    ck_assert_str_eq(marked(MARK_FASTEST), "mapped pool");
}

TEST(test_ties_are_ties) {
    make_rows(0);
    add_run(&rows[0], 1050000, 0, 1005000);
    add_run(&rows[1], 1000000, 0, 1000000);
    add_run(&rows[2], 1300000, 0, 1030000);
    add_run(&rows[3], 500000, 0, 900000);
    complete_results();
    ck_assert_str_eq(marked(MARK_FASTEST), "driver-keep mapped");
    ck_assert_str_eq(marked(MARK_SMALLEST), "driver-keep mapped");
    ck_assert_int_eq(rows[0].best[FIGURE_STEADY_MEAN], 1); /* marked figures are the best */
    ck_assert_int_eq(rows[1].best[FIGURE_STEADY_MEAN], 1);
    ck_assert_int_eq(rows[0].best[FIGURE_RESERVED] && rows[1].best[FIGURE_RESERVED], 1);
    ck_assert_int_eq(rows[2].best[FIGURE_STEADY_MEAN], 0);
    ck_assert_int_eq(rows[3].best[FIGURE_STEADY_MEAN], 0); /* unusable, only compared */
    ck_assert(has_sentence("driver-keep and mapped (a tie), 1.000 ms an iteration."));
    ck_assert(has_sentence("Each configuration ran once"));
    ck_assert(has_sentence("mapped, weir's default, is worse than the driver in no figure."));
}

TEST(test_several_runs_have_their_own_range) {
    make_rows(0);
    results.repeat = 2;
    for (size_t i = 0; i < MOST; i++) {
        add_run(&rows[i], 1000000 + (json_int_t)i * 20000, 0, 1000000);
        add_run(&rows[i], 1010000 + (json_int_t)i * 20000, 0, 1000000);
    }
    complete_results();
    ck_assert_str_eq(marked(MARK_FASTEST), "driver-keep");
    ck_assert(!has_sentence("Each configuration ran once"));
    ck_assert(has_sentence("mapped, weir's default, is worse than the driver in steady time"));
}

TEST(test_makespan_decides_before_time) {
    make_rows(1);
    for (size_t i = 0; i < MOST; i++)
        add_run(result_at(&results, 0, i, 0), 1000000, 0, 1000000);
    add_run(result_at(&results, 0, 0, 1), 900000, 50000000, 1000000);
    add_run(result_at(&results, 0, 1, 1), 100000, 60000000, 1000000);
    add_run(result_at(&results, 0, 2, 1), 400000, 50100000, 1000000);
    add_run(result_at(&results, 0, 3, 1), 100000, 40000000, 1000000);
    complete_results();
    ck_assert_str_eq(marked(MARK_FASTEST), "pool"); /* the faster one of two makespans that tie */
    ck_assert(
        has_sentence("mapped, weir's default, is worse than the driver in makespan (1.20 times "));
}

TEST(test_a_failed_run_is_not_compared) {
    results.trace_count = 2;
    make_rows(0);
    for (size_t i = 0; i < results.row_count; i++)
        add_run(&rows[i], 1000000, 0, 1000000);
    json_object_set_new(json_array_get(rows[MOST + 1].runs, 0), "failed", json_integer(1));
    complete_results();
    ck_assert_int_eq(findings.summaries[1].is_complete, 0);
    ck_assert_str_eq(marked(MARK_FASTEST), "driver-keep pool");
    ck_assert_str_eq(findings.weir_summary->name, "pool");
}

/* Sets a figure of the row's only run.  Deletes the figure if the value is below 0. */
static void set_run_key(struct row *row, const char *key, json_int_t value) {
    json_t *run = json_array_get(row->runs, 0);

    if (value < 0)
        json_object_del(run, key);
    else
        json_object_set_new(run, key, json_integer(value));
}

TEST(test_nothing_is_compared_after_an_interrupt) {
    make_rows(0);
    for (size_t i = 0; i < MOST - 1; i++)
        add_run(&rows[i], 1000000, 0, 1000000);
    complete_results();
    ck_assert_uint_eq(findings.sentence_count, 1);
    ck_assert(has_sentence("Interrupted: 3 of 4 runs were made, so nothing is compared."));
    ck_assert_int_eq(rows[0].best[FIGURE_STEADY_MEAN], 0);
}

TEST(test_one_choice_is_no_choice) {
    make_rows(0);
    for (size_t i = 0; i < MOST; i++)
        add_run(&rows[i], 1000000, 0, 1000000);
    set_run_key(&rows[0], "failed", 1);
    set_run_key(&rows[2], "failed", 1);
    complete_results();
    ck_assert_str_eq(marked(MARK_FASTEST), "");
    ck_assert_str_eq(marked(MARK_SMALLEST), "");
    ck_assert_int_eq(rows[1].best[FIGURE_STEADY_MEAN], 0);
}

TEST(test_equal_warm_ups_share_the_mark) {
    make_rows(0);
    for (size_t i = 0; i < MOST; i++)
        add_run(&rows[i], 1000000, 0, 1000000);
    set_run_key(&rows[1], "warm_up_ns", 20000000);
    complete_results();
    ck_assert_str_eq(marked(MARK_WARM_UP), "driver-keep pool");
    ck_assert(has_sentence(
        "takes 11.00 ms with driver-keep, as long as 11 steady iterations; 20.00 ms with "
        "mapped, as long as 20 steady iterations."));
}

TEST(test_warm_up_counts_iterations_of_traces_that_have_both) {
    results.trace_count = 2;
    make_rows(0);
    for (size_t i = 0; i < results.row_count; i++)
        add_run(&rows[i], 1000000, 0, 1000000);
    for (size_t i = MOST; i < results.row_count; i++) {
        json_object_set_new(json_array_get(rows[i].runs, 0), "iterations",
                            json_pack("{s:[i]}", "alloc_ns", 1));
        set_run_key(&rows[i], "warm_up_ns", 11000000000);
    }
    complete_results();
    ck_assert(has_sentence("with mapped, as long as 11 steady iterations"));
    ck_assert(has_sentence("There is no steady time of second: fewer than 2 iterations."));
}

TEST(test_no_time_of_what_did_not_run_is_missing) {
    results.trace_count = 2;
    make_rows(0);
    for (size_t i = 0; i < MOST; i++) {
        add_run(&rows[i], 1000000, 0, 1000000);
        rows[MOST + i].failed_runs = 1;
    }
    complete_results();
    ck_assert(!has_sentence("There is no steady time"));
}

TEST(test_no_memory_is_compared_without_a_peak) {
    make_rows(0);
    for (size_t i = 0; i < MOST; i++) {
        add_run(&rows[i], 1000000, 0, 0);
        set_run_key(&rows[i], "requested_peak_bytes", 0);
    }
    set_run_key(&rows[1], "kept_bytes", 1000);
    complete_results();
    ck_assert_int_eq(rows[1].best[FIGURE_RESERVED], 0);
    ck_assert(!has_sentence("Smallest"));
    ck_assert(has_sentence("mapped, weir's default, is worse than the driver in no figure."));
}

TEST(test_kept_is_of_the_worst_trace) {
    results.trace_count = 2;
    make_rows(0);
    for (size_t i = 0; i < results.row_count; i++)
        add_run(&rows[i], 1000000, 0, i < MOST ? 0 : 1000000);
    for (size_t i = 0; i < MOST; i++)
        set_run_key(&rows[i], "requested_peak_bytes", 0);
    set_run_key(&rows[MOST], "kept_bytes", 0);
    complete_results();
    ck_assert(has_sentence(
        "kept memory on 1 of 2 traces (1.00 times the peak, where driver-keep keeps nothing, "
        "on second)"));
}

TEST(test_unsettled_is_said) {
    make_rows(0);
    for (size_t i = 0; i < MOST; i++) {
        add_run(&rows[i], 1000000, 0, 1000000);
        json_object_set_new(json_array_get(rows[i].runs, 0), "settled", json_false());
    }
    complete_results();
    ck_assert(has_sentence("Fastest (none settled): "));
}

SUITE("result", CK_FORK_GETENV);
