/* SPDX-License-Identifier: MIT */
/* table.c: see table.h.
 *
 * A block for each trace, a row for each contestant, under it one for the same with work on the
 * streams.  All figures come out of the JSON objects, so
 * that table and file cannot disagree.
 */
#include "cli/replay/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/flags.h"
#include "cli/common/spell.h"
#include "cli/report/summary.h"
#include "config/settings.h"
#include <weir/weir.h>

/* The outcomes of one (trace, contestant, with work or without). */
struct group {
    const struct outcome *first;
    size_t count;
};

static struct group group_of(const struct contest *contest, size_t trace, size_t row) {
    size_t rows = contest->contestant_count * contest_modes(contest);

    return (struct group){&contest->outcomes[(trace * rows + row) * contest->repeat],
                          contest->repeat};
}

static const json_t *value_at(const json_t *result, const char *key, const char *inner) {
    const json_t *value = json_object_get(result, key);

    return inner ? json_object_get(value, inner) : value;
}

/* The median of a whole number over the repeats; 0: none of them has one. */
static int median_integer(const struct group *group, const char *key, const char *inner,
                          uint64_t *out) {
    uint64_t *values = calloc(group->count, sizeof *values);
    size_t count = 0;

    for (size_t i = 0; values && i < group->count; i++) {
        const json_t *value = value_at(group->first[i].result, key, inner);

        if (json_is_integer(value))
            values[count++] = (uint64_t)json_integer_value(value);
    }
    *out = median(values, count);
    free(values);
    return count > 0;
}

static void print_whole(FILE *file, const struct group *group, int width, const char *key,
                        const char *inner) {
    char text[32] = "-";
    uint64_t value;

    if (median_integer(group, key, inner, &value))
        table_spell(value, text, sizeof text);
    fprintf(file, " %*s", width, text);
}

/* Nanoseconds as milliseconds, with four digits that count. */
static void print_ms(FILE *file, const struct group *group, int width, const char *key,
                     int zero_is_none) {
    char text[32] = "-";
    uint64_t ns;

    if (median_integer(group, key, NULL, &ns) && !(zero_is_none && ns == 0))
        snprintf(text, sizeof text, "%.*f",
                 ns < 10000000    ? 3
                 : ns < 100000000 ? 2
                                  : 1,
                 (double)ns / 1e6);
    fprintf(file, " %*s", width, text);
}

/* Of a replay in which requests failed no figure of its memory compares: it had less to hold. */
static int any_failed(const struct group *group) {
    for (size_t i = 0; i < group->count; i++)
        if (json_integer_value(json_object_get(group->first[i].result, "failed")) > 0)
            return 1;
    return 0;
}

/* Bytes over the peak of requested memory. */
static void print_ratio(FILE *file, const struct group *group, int width, const char *key,
                        int zero_is_none) {
    char text[32] = "-";
    uint64_t bytes, live;

    if (!any_failed(group) && median_integer(group, key, NULL, &bytes) &&
        !(zero_is_none && bytes == 0) && median_integer(group, "live_peak_bytes", NULL, &live) &&
        live)
        snprintf(text, sizeof text, "%.3f", (double)bytes / (double)live);
    fprintf(file, " %*s", width, text);
}

/* 1, too, where there is no iteration. */
static int all_settled(const struct group *group) {
    for (size_t i = 0; i < group->count; i++)
        if (json_is_false(json_object_get(group->first[i].result, "settled")) &&
            json_is_integer(json_object_get(group->first[i].result, "steady_alloc_ns")))
            return 0;
    return 1;
}

/* What contest_run calls the contestant; a replay's is known by its engine. */
static const char *name_of(const struct contest *contest, const struct group *group) {
    for (size_t i = 0; i < group->count; i++) {
        const char *name = json_string_value(json_object_get(group->first[i].result, "contestant"));

        if (name)
            return name;
    }
    return contest->contestants[group->first->contestant];
}

/* "pool"; "  busy 1" for the row under it. */
static void print_name(FILE *file, const struct contest *contest, const struct group *group) {
    char factor[WEIR_SPELL_BYTES], text[WEIR_SPELL_BYTES + 16];

    if (group->first->busy_factor <= 0) {
        fprintf(file, "  %-14s", name_of(contest, group));
        return;
    }
    weir__factor_spell(group->first->busy_factor, factor, sizeof factor);
    snprintf(text, sizeof text, "  busy %s", factor);
    fprintf(file, "  %-14s", text);
}

/* The median over the steady iterations, of which there must be one; then over the repeats. */
static int steady_median(const struct group *group, const char *key, uint64_t *out) {
    uint64_t *medians = calloc(group->count, sizeof *medians);
    size_t medians_count = 0;

    for (size_t i = 0; medians && i < group->count; i++) {
        const json_t *result = group->first[i].result;
        const json_t *iterations = json_object_get(result, "iterations");
        size_t count = json_array_size(iterations), used = 0;
        int settled = json_is_true(json_object_get(result, "settled"));
        size_t from =
            settled ? (size_t)json_integer_value(json_object_get(result, "warm_up_iterations"))
                    : count / 2;
        uint64_t *values = calloc(count ? count : 1, sizeof *values);

        for (size_t k = from; values && k < count; k++) {
            const json_t *value = json_object_get(json_array_get(iterations, k), key);

            if (json_is_integer(value))
                values[used++] = (uint64_t)json_integer_value(value);
        }
        if (used)
            medians[medians_count++] = median(values, used);
        free(values);
    }
    *out = median(medians, medians_count);
    free(medians);
    return medians_count > 0;
}

/* Reserve at the ends of steady iterations, and growths in them. */
static void print_steady(FILE *file, const struct group *group) {
    uint64_t kept, live, growths;

    if (steady_median(group, "growths", &growths))
        fprintf(file, " %9" PRIu64, growths);
    else
        fprintf(file, " %9s", "-");
    print_ratio(file, group, 9, "reserve_peak_bytes", 0);
    if (!any_failed(group) && steady_median(group, "reserve_end", &kept) &&
        median_integer(group, "live_peak_bytes", NULL, &live) && live)
        fprintf(file, " %9.3f", (double)kept / (double)live);
    else
        fprintf(file, " %9s", "-");
}

/* 1 if a run has a result; and how many failed. */
static int any_result(const struct group *group, size_t *failures) {
    int any = 0;

    for (size_t i = 0; i < group->count; i++) {
        any |= group->first[i].result != NULL;
        *failures += group->first[i].error != NULL;
    }
    return any;
}

/* Of a table of release thresholds. */
static void print_threshold_row(FILE *file, const struct contest *contest,
                                const struct group *group, int *any_unsettled) {
    char threshold[16];
    size_t failures = 0;

    print_name(file, contest, group);
    contest_threshold_spell(group->first, threshold, sizeof threshold);
    fprintf(file, " %9s", threshold);
    if (!any_result(group, &failures)) {
        fprintf(file, failures ? " failed\n" : " not run\n");
        return;
    }
    print_ms(file, group, 9, "first_iteration_ns", 0);
    print_ms(file, group, 9, "steady_alloc_ns", 0);
    fputc(all_settled(group) ? ' ' : '~', file);
    *any_unsettled |= !all_settled(group);
    print_whole(file, group, 8, "growths", NULL);
    print_steady(file, group);
    if (contest->busy_factor > 0)
        print_ms(file, group, 10, "makespan_ns", 0);
    if (failures)
        fprintf(file, "  %zu of %zu failed", failures, group->count);
    fputc('\n', file);
}

static void print_threshold_heads(FILE *file, const struct contest *contest) {
    fprintf(file, "  %-14s %9s %9s %9s  %8s %9s %9s %9s%s\n", "", "threshold", "first", "steady",
            "growths", "growths", "reserve", "kept", contest->busy_factor > 0 ? "   makespan" : "");
    fprintf(file, "  %-14s %9s %9s %9s  %8s %9s %9s %9s%s\n", "contestant", "of live", "ms/iter",
            "ms/iter", "in all", "/iter", "/ live", "/ live",
            contest->busy_factor > 0 ? "     all ms" : "");
}

static void print_heads(FILE *file, const struct contest *contest) {
    fprintf(file, "  %-14s %7s %8s %8s %9s  %10s %7s %7s %8s%s%s\n", "", "create", "first",
            "create", "steady", "op", "", "reserve", "prealloc",
            contest->pace > 0 ? "    longest" : "", contest->busy_factor > 0 ? "   makespan" : "");
    fprintf(file, "  %-14s %7s %8s %8s %9s  %10s %7s %7s %8s%s%s\n", "contestant", "ms", "ms/iter",
            "+ first", "ms/iter", "p99.9 ns", "growths", "/ live", "/ live",
            contest->pace > 0 ? "   alloc ns" : "", contest->busy_factor > 0 ? "     all ms" : "");
}

static void print_row(FILE *file, const struct contest *contest, const struct group *group,
                      int *any_unsettled) {
    size_t failures = 0;
    uint64_t failed;

    print_name(file, contest, group);
    if (!any_result(group, &failures)) {
        fprintf(file, failures ? " failed\n" : " not run\n");
        return;
    }
    print_ms(file, group, 7, "creation_ns", 0);
    print_ms(file, group, 8, "first_iteration_ns", 0);
    print_ms(file, group, 8, "creation_and_first_iteration_ns", 0);
    print_ms(file, group, 9, "steady_alloc_ns", 0);
    fputc(all_settled(group) ? ' ' : '~', file);
    *any_unsettled |= !all_settled(group);
    print_whole(file, group, 10, "op_ns", "p999");
    print_whole(file, group, 7, "growths", NULL);
    print_ratio(file, group, 7, "reserve_peak_bytes", 0);
    print_ratio(file, group, 8, "beforehand_bytes", 1);
    if (contest->pace > 0)
        print_whole(file, group, 10, "alloc_op_ns", "max");
    if (contest->busy_factor > 0)
        print_ms(file, group, 10, "makespan_ns", 0);
    if (failures)
        fprintf(file, "  %zu of %zu failed", failures, group->count);
    if (median_integer(group, "failed", NULL, &failed) && failed)
        fprintf(file, "\n  %-14s %" PRIu64 " request%s failed", "", failed, weir__plural(failed));
    fputc('\n', file);
}

void table_trace(FILE *file, const struct tape_header *header) {
    char allocs[32], live[32];

    table_spell(header->allocs, allocs, sizeof allocs);
    weir__bytes_show(header->live_peak_bytes, live, sizeof live);
    fprintf(file,
            "\n%s: %" PRIu64 " iteration%s, %s allocation%s, %" PRIu64 " stream%s, live peak %s\n",
            header->name, header->marks, weir__plural(header->marks), allocs,
            weir__plural(header->allocs), header->streams, weir__plural(header->streams), live);
}

/* Of the contestants that were refused nothing, without work on the streams, the one that has least of what `key'
 * names; NULL: none has any. */
static const char *name_of_least(const struct contest *contest, size_t trace, const char *key) {
    uint64_t value, failed, least = UINT64_MAX;
    const char *name = NULL;

    for (size_t i = 0; i < contest->contestant_count * contest_modes(contest); i++) {
        struct group group = group_of(contest, trace, i);

        if (group.first->busy_factor > 0 ||
            (median_integer(&group, "failed", NULL, &failed) && failed > 0) ||
            !median_integer(&group, key, NULL, &value) || value >= least)
            continue;
        least = value;
        name = name_of(contest, &group);
    }
    return name;
}

/* Which contestant is best in each column that is a choice. */
static void print_best(FILE *file, const struct contest *contest, size_t trace) {
    static const struct {
        const char *column, *key;
    } columns[] = {{"create + first", "creation_and_first_iteration_ns"},
                   {"steady", "steady_alloc_ns"},
                   {"reserve", "reserve_peak_bytes"}};
    const char *between = "  best:";

    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        const char *name = name_of_least(contest, trace, columns[i].key);

        if (!name)
            continue;
        fprintf(file, "%s %s %s", between, columns[i].column, name);
        between = ",";
    }
    if (*between == ',')
        fputc('\n', file);
}

static void print_block(FILE *file, const struct contest *contest, size_t trace,
                        int *any_unsettled) {
    table_trace(file, &contest->traces[trace].header);
    (contest->thresholds ? print_threshold_heads : print_heads)(file, contest);
    for (size_t i = 0; i < contest->contestant_count * contest_modes(contest); i++) {
        struct group group = group_of(contest, trace, i);

        (contest->thresholds ? print_threshold_row : print_row)(file, contest, &group,
                                                                any_unsettled);
    }
    if (contest->contestant_count > 1 && !contest->thresholds)
        print_best(file, contest, trace);
}

static uint64_t timer_cost(const struct contest *contest) {
    struct group all = {contest->outcomes, contest->outcome_count};
    uint64_t cost;

    median_integer(&all, "timer_ns", NULL, &cost);
    return cost;
}

void table_head(FILE *file, const struct contest *contest) {
    fprintf(file, "weir %s on %s, driver %d.%d\n", weir_version(), contest->device,
            contest->driver_version / 1000, contest->driver_version % 1000 / 10);
    if (contest->modelled)
        fprintf(file, "profile of the model: %s\n", weir_cli_model_profile());
}

void table_print(FILE *file, const struct contest *contest) {
    int any_unsettled = 0;

    table_head(file, contest);
    if (contest->modelled)
        fprintf(file, "device model: times are virtual driver time and real time spent in weir; no "
                      "GPU was used\n");
    fprintf(file, "the timer's own cost, %" PRIu64 " ns a call, is taken off", timer_cost(contest));
    if (contest->repeat > 1)
        fprintf(file, "; medians of %" PRIu64 " runs each, in fresh processes", contest->repeat);
    fputc('\n', file);
    if (contest->busy_factor > 0)
        fprintf(file,
                "busy rows: with work on the streams; makespan: all iterations on the device, "
                "waits included\n");
    if (contest->pace > 0) {
        char factor[WEIR_SPELL_BYTES];

        weir__factor_spell(contest->pace, factor, sizeof factor);
        fprintf(file, "paced: %s times the trace's time passes between calls\n", factor);
    }
    if (contest->thresholds)
        fputs("threshold: release threshold in parts of the live peak; growths /iter and kept: the "
              "median of the\nsteady iterations, what is kept at their ends\n",
              file);
    for (size_t i = 0; i < contest->trace_count; i++)
        print_block(file, contest, i, &any_unsettled);
    if (any_unsettled)
        fprintf(file, "\n~ not settled: fewer than 3 iterations without a change of the reserve at "
                      "the end;\n  shown is the median of the second half\n");
}
