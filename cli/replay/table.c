/* SPDX-License-Identifier: MIT */
/* table.c: see table.h.
 *
 * A block for each trace, a row for each configuration, under it one for the same with work on the
 * streams.  All figures come out of the JSON objects, so
 * that table and file cannot disagree.
 */
#include "cli/replay/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/flags.h"
#include "cli/common/spell.h"
#include "cli/report/figures.h"
#include "cli/report/summary.h"
#include "config/settings.h"
#include <weir/weir.h>

/* The outcomes of one (trace, configuration, with work or without). */
struct group {
    const struct outcome *first;
    size_t count;
};

static struct group group_of(const struct contest *contest, size_t trace, size_t row) {
    size_t rows = contest->configuration_count * contest_modes(contest);

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

/* A mark takes the place of the blank before the next cell. */
static int is_marked;

static void put_cell(FILE *file, int width, const char *text, int mark) {
    fprintf(file, "%s%*s%s", is_marked ? "" : " ", width, text, mark ? "*" : "");
    is_marked = mark;
}

static void print_whole(FILE *file, const struct group *group, int width, const char *key) {
    char text[32] = "-";
    uint64_t value;

    if (median_integer(group, key, NULL, &value))
        table_spell(value, text, sizeof text);
    put_cell(file, width, text, 0);
}

static void print_max(FILE *file, const struct group *group, int width) {
    char text[32] = "-";
    uint64_t value;

    if (median_integer(group, "alloc_op_ns", "max", &value))
        table_spell(value, text, sizeof text);
    put_cell(file, width, text, 0);
}

static void print_percentile(FILE *file, const struct group *group, int width, const char *key,
                             const char *inner, int mark) {
    char text[32] = "-";
    uint64_t value;

    if (median_integer(group, key, inner, &value))
        table_spell(table_percentile(value), text, sizeof text);
    put_cell(file, width, text, mark);
}

/* Nanoseconds as milliseconds, with four digits that count. */
static void print_ms(FILE *file, const struct group *group, int width, const char *key, int mark) {
    char text[32] = "-";
    uint64_t ns;

    if (median_integer(group, key, NULL, &ns))
        snprintf(text, sizeof text, "%.*f",
                 ns < 10000000    ? 3
                 : ns < 100000000 ? 2
                                  : 1,
                 (double)ns / 1e6);
    put_cell(file, width, text, mark);
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
                        int zero_is_none, int mark) {
    char text[32] = "-";
    uint64_t bytes, live;

    if (!any_failed(group) && median_integer(group, key, NULL, &bytes) &&
        !(zero_is_none && bytes == 0) &&
        median_integer(group, "requested_peak_bytes", NULL, &live) && live)
        table_ratio((double)bytes / (double)live, text, sizeof text);
    put_cell(file, width, text, mark);
}

/* 1, too, where there is no iteration. */
static int all_settled(const struct group *group) {
    for (size_t i = 0; i < group->count; i++)
        if (json_is_false(json_object_get(group->first[i].result, "settled")) &&
            json_is_integer(json_object_get(group->first[i].result, "steady_alloc_ns")))
            return 0;
    return 1;
}

/* What contest_run calls the configuration; a replay's is known by its engine. */
static const char *name_of(const struct contest *contest, const struct group *group) {
    for (size_t i = 0; i < group->count; i++) {
        const char *name =
            json_string_value(json_object_get(group->first[i].result, "configuration"));

        if (name)
            return name;
    }
    return contest->configurations[group->first->configuration];
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
    char text[32] = "-";
    uint64_t kept, live, growths;

    if (steady_median(group, "growths", &growths))
        fprintf(file, " %9" PRIu64, growths);
    else
        fprintf(file, " %9s", "-");
    print_ratio(file, group, 9, "reserved_peak_bytes", 0, 0);
    if (!any_failed(group) && steady_median(group, "reserved_end", &kept) &&
        median_integer(group, "requested_peak_bytes", NULL, &live) && live)
        table_ratio((double)kept / (double)live, text, sizeof text);
    fprintf(file, " %9s", text);
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
    print_whole(file, group, 8, "growths");
    print_steady(file, group);
    if (contest->busy_factor > 0)
        print_ms(file, group, 10, "makespan_ns", 0);
    if (failures)
        fprintf(file, "  %zu of %zu failed", failures, group->count);
    fputc('\n', file);
}

static void print_threshold_heads(FILE *file, const struct contest *contest) {
    fprintf(file, "  %-14s %9s %9s %9s  %8s %9s %9s %9s%s\n", "", "threshold", "first", "steady",
            "growths", "growths", "reserved", "kept",
            contest->busy_factor > 0 ? "   makespan" : "");
    fprintf(file, "  %-14s %9s %9s %9s  %8s %9s %9s %9s%s\n", "configuration", "of peak", "ms/iter",
            "ms/iter", "in all", "/iter", "/ peak", "/ peak",
            contest->busy_factor > 0 ? "     all ms" : "");
}

static void print_heads(FILE *file, const struct contest *contest) {
    fprintf(file, "  %-14s %7s %8s %8s %9s  %10s %6s %8s %8s%s%s\n", "", "create", "first",
            "create", "steady", "op", "", "reserved", "prealloc",
            contest->pace > 0 ? "    longest" : "", contest->busy_factor > 0 ? "   makespan" : "");
    fprintf(file, "  %-14s %7s %8s %8s %9s  %10s %7s %7s %8s%s%s\n", "configuration", "ms",
            "ms/iter", "+ first", "ms/iter", "p99.9 ns", "growths", "/ peak", "/ peak",
            contest->pace > 0 ? "   alloc ns" : "", contest->busy_factor > 0 ? "     all ms" : "");
}

/* Columns in which less is better: the least of each is marked. */
enum { FIRST, CREATE_FIRST, STEADY, PERCENTILE, RESERVE, COLUMNS };
static const struct {
    const char *key, *inner;
} columns[COLUMNS] = {[FIRST] = {"first_iteration_ns", NULL},
                      [CREATE_FIRST] = {"creation_and_first_iteration_ns", NULL},
                      [STEADY] = {"steady_alloc_ns", NULL},
                      [PERCENTILE] = {"op_ns", "p999"},
                      [RESERVE] = {"reserved_peak_bytes", NULL}};

/* Of one trace; UINT64_MAX: nothing is marked. */
struct best {
    uint64_t least[COLUMNS];
};

/* What compares: without work on the streams, and nothing failed. */
static int compares(const struct group *group, int column, uint64_t *value) {
    return group->first->busy_factor <= 0 && !any_failed(group) &&
           median_integer(group, columns[column].key, columns[column].inner, value);
}

static struct best find_best(const struct contest *contest, size_t trace) {
    struct best best;
    uint64_t value;

    for (int column = 0; column < COLUMNS; column++) {
        best.least[column] = UINT64_MAX;
        for (size_t i = 0; i < contest->configuration_count * contest_modes(contest); i++) {
            struct group group = group_of(contest, trace, i);

            if (contest->configuration_count > 1 && compares(&group, column, &value) &&
                value < best.least[column])
                best.least[column] = value;
        }
    }
    return best;
}

static int is_best(const struct best *best, const struct group *group, int column) {
    uint64_t value;

    return best->least[column] != UINT64_MAX && compares(group, column, &value) &&
           value == best->least[column];
}

static void print_steady_time(FILE *file, const struct group *group, const struct best *best,
                              int *any_unsettled) {
    int mark = is_best(best, group, STEADY);

    print_ms(file, group, 9, "steady_alloc_ns", 0);
    *any_unsettled |= !all_settled(group);
    fputs(all_settled(group) ? (mark ? "*" : " ") : (mark ? "~*" : "~"), file);
    is_marked = mark && !all_settled(group);
}

static void print_row(FILE *file, const struct contest *contest, const struct group *group,
                      const struct best *best, int *any_unsettled) {
    size_t failures = 0;
    uint64_t failed;

    print_name(file, contest, group);
    if (!any_result(group, &failures)) {
        fprintf(file, failures ? " failed\n" : " not run\n");
        return;
    }
    print_ms(file, group, 7, "creation_ns", 0);
    print_ms(file, group, 8, "first_iteration_ns", is_best(best, group, FIRST));
    print_ms(file, group, 8, "creation_and_first_iteration_ns", is_best(best, group, CREATE_FIRST));
    print_steady_time(file, group, best, any_unsettled);
    print_percentile(file, group, 10, "op_ns", "p999", is_best(best, group, PERCENTILE));
    print_whole(file, group, 7, "growths");
    print_ratio(file, group, 7, "reserved_peak_bytes", 0, is_best(best, group, RESERVE));
    print_ratio(file, group, 8, "beforehand_bytes", 1, 0);
    if (contest->pace > 0)
        print_max(file, group, 10);
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
            "\n%s: %" PRIu64 " iteration%s, %s allocation%s, %" PRIu64
            " stream%s, peak requested memory %s\n",
            header->name, header->marks, weir__plural(header->marks), allocs,
            weir__plural(header->allocs), header->streams, weir__plural(header->streams), live);
}

/* ----------------------------------------------------------------- the end ---- */

/* Of every pair, with GPU work where it ran with some: that is what the program does.  0: out of memory. */
static int choose(const struct contest *contest, struct choices *choices) {
    const json_t **results = calloc(contest->repeat, sizeof *results);
    size_t modes = contest_modes(contest);
    int good = results && choices_init(choices, contest->trace_count);

    for (size_t i = 0; good && i < contest->trace_count * contest->configuration_count; i++) {
        size_t trace = i / contest->configuration_count;
        struct group group =
            group_of(contest, trace, i % contest->configuration_count * modes + modes - 1);
        const char *name = name_of(contest, &group);
        struct choice_figures figures;
        size_t count = 0, failures = 0;

        any_result(&group, &failures);
        for (size_t k = 0; k < group.count; k++)
            if (group.first[k].result)
                results[count++] = group.first[k].result;
        good = figures_of(results, count, &figures);
        figures.has_failed |= failures > 0;
        good = good && choices_add(choices, trace, name, name, &figures);
    }
    free(results);
    if (good)
        choices_finish(choices);
    return good;
}

/* 1.23, 12.3, 123: what it is worth knowing of a mean; "~": one of the two is not settled. */
static void put_times(FILE *file, double ratio, int is_unsettled, const char *behind) {
    int digits = ratio < 10.0 ? 2 : ratio < 100.0 ? 1 : 0;

    fprintf(file, "%s%s%.*fx %s", ratio < 0.01 ? "under " : "", is_unsettled ? "~" : "", digits,
            fmax(ratio, 0.01), behind);
}

static void print_choice(FILE *file, const char *what, const struct choice *choice,
                         const struct choice *usual, const char *whose, int of_memory) {
    int is_unsettled = choice->mean.is_unsettled || usual->mean.is_unsettled;
    double memory = choice->mean.memory / usual->mean.memory;
    double time = choice->mean.time_ns / usual->mean.time_ns; /* or no number */

    fprintf(file, "%s: %s", what, choice->label);
    if (choice == usual) {
        fputs(whose, file);
        return;
    }
    fputs(": ", file);
    if (of_memory)
        put_times(file, memory, 0, "the reserved memory of ");
    else
        put_times(file, time, is_unsettled, "the steady time of ");
    fprintf(file, "%s%s", usual->label, whose);
    if (of_memory && usual->mean.time_ns > 0.0) {
        fputs(", ", file);
        put_times(file, time, is_unsettled, "the steady time");
    } else if (!of_memory) {
        fputs(", ", file);
        put_times(file, memory, 0, "the reserved memory");
    }
}

/* "; equal within the noise: pool, bfc": how many. */
static size_t print_noise(FILE *file, const struct choices *choices, const struct choice *of) {
    size_t count = 0;

    for (size_t i = 0; i < choices->count; i++)
        if (&choices->items[i] != of && choice_within_noise(&choices->items[i], of))
            fprintf(file, "%s%s",
                    count++ ? ", " : "; equal within the noise: ", choices->items[i].label);
    return count;
}

static void print_untimed(FILE *file, const struct contest *contest,
                          const struct choices *choices) {
    if (choices->timed == choices->traces)
        return;
    fputs(choices->timed ? "times are without those of"
                         : "fastest: unknown: fewer than 2 iterations in",
          file);
    for (size_t t = 0, any = 0; t < choices->traces; t++)
        if (!choices->is_timed[t])
            fprintf(file, "%s%s", any++ ? ", " : " ", contest->traces[t].header.name);
    fputs(choices->timed ? ": fewer than 2 iterations\n" : "\n", file);
}

static int has_configuration(const struct contest *contest, const char *name) {
    for (size_t i = 0; i < contest->configuration_count; i++)
        if (strcmp(contest->configurations[i], name) == 0)
            return 1;
    return 0;
}

/* Names that tell nothing of what they are; the others begin with weir's engine. */
static void print_drivers(FILE *file, const struct contest *contest) {
    static const char *const drivers[][2] = {
        {"driver", "gives idle memory back at each synchronisation"},
        {"driver-keep", "keeps idle memory"}};
    int any = 0;

    for (size_t i = 0; i < sizeof drivers / sizeof drivers[0]; i++)
        if (has_configuration(contest, drivers[i][0]))
            fprintf(file, "%s%s: CUDA's own pool (cudaMallocAsync), which %s\n", any++ ? "" : "\n",
                    drivers[i][0], drivers[i][1]);
    if (any)
        fputs("all others: weir; weir bench --help says what each is\n", file);
}

/* What to choose, and what it costs. */
static void print_choices(FILE *file, const struct contest *contest) {
    struct choices choices = {0};
    const struct choice *usual, *fastest;
    const char *whose;
    size_t alike = 0;

    if (contest->configuration_count < 2 || contest->thresholds)
        return;
    fputs("\n* the least of its column", file);
    if (contest->busy_factor > 0)
        fputs("; below: with GPU work", file);
    if (contest->trace_count > 1)
        fprintf(file, "%s the geometric mean of %zu traces",
                contest->busy_factor > 0 ? "," : "; below:", contest->trace_count);
    fputc('\n', file);
    usual = choose(contest, &choices) ? choices_default(&choices, &whose) : NULL;
    fastest = usual ? choices_fastest(&choices) : NULL;
    if (fastest) {
        print_choice(file, "fastest", fastest, usual, whose, 0);
        alike = print_noise(file, &choices, fastest);
        fputs(contest->repeat == 1 && (alike > 0 || fastest != usual)
                  ? "\n  one run of each: use --repeat 5 to be sure\n"
                  : "\n",
              file);
    }
    if (usual) {
        print_untimed(file, contest, &choices);
        print_choice(file, "leanest", choices_leanest(&choices), usual, whose, 1);
        fputc('\n', file);
    }
    choices_free(&choices);
}

/* ----------------------------------------------------------------- the table ---- */

/* What no allocator can do without unless it adds waits; it depends a little on how fast the requests come. */
static void print_floor(FILE *file, const struct contest *contest, size_t trace) {
    char factor[WEIR_SPELL_BYTES], bytes[32], ratio[32];
    uint64_t least, live;

    for (size_t i = 0; i < contest->configuration_count * contest_modes(contest); i++) {
        struct group group = group_of(contest, trace, i);

        if (!median_integer(&group, "floor_bytes", NULL, &least) ||
            !median_integer(&group, "requested_peak_bytes", NULL, &live) || !live)
            continue;
        weir__factor_spell(group.first->busy_factor, factor, sizeof factor);
        weir__bytes_show(least, bytes, sizeof bytes);
        table_ratio((double)least / (double)live, ratio, sizeof ratio);
        fprintf(file, "  busy %s: requested and pending memory together at most %s (%s / peak)\n",
                factor, bytes, ratio);
        return;
    }
}

static void print_block(FILE *file, const struct contest *contest, size_t trace,
                        int *any_unsettled) {
    struct best best = find_best(contest, trace);

    table_trace(file, &contest->traces[trace].header);
    if (contest->busy_factor > 0)
        print_floor(file, contest, trace);
    (contest->thresholds ? print_threshold_heads : print_heads)(file, contest);
    for (size_t i = 0; i < contest->configuration_count * contest_modes(contest); i++) {
        struct group group = group_of(contest, trace, i);

        is_marked = 0;
        if (contest->thresholds)
            print_threshold_row(file, contest, &group, any_unsettled);
        else
            print_row(file, contest, &group, &best, any_unsettled);
    }
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
        fprintf(
            file,
            "busy rows: with work on the streams; makespan: time on the device from the start of "
            "an\niteration to the end of its work, waits included, summed over all iterations\n");
    if (contest->pace > 0) {
        char factor[WEIR_SPELL_BYTES];

        weir__factor_spell(contest->pace, factor, sizeof factor);
        fprintf(file, "paced: %s times the trace's time passes between calls\n", factor);
    }
    if (contest->thresholds)
        fputs("threshold: release threshold in parts of the peak requested memory (live); growths "
              "/iter and kept:\nthe median of the steady iterations, what is kept at their ends\n",
              file);
    for (size_t i = 0; i < contest->trace_count; i++)
        print_block(file, contest, i, &any_unsettled);
    if (any_unsettled)
        fprintf(file, "\n~ not settled: fewer than 3 iterations without a change of reserved "
                      "memory at the end;\n  shown is the median of the second half\n");
    print_drivers(file, contest);
    print_choices(file, contest);
}
