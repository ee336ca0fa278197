/* SPDX-License-Identifier: MIT */
/* result.c: see result.h. */
#include "cli/replay/result.h"

#include <stdlib.h>
#include <string.h>

#include "cli/common/jsonfile.h"

enum kind { KIND_TIME, KIND_MAKESPAN, KIND_BYTES, KIND_COUNT };

const char *const result_keys[FIGURES] = {
#define RESULT_FIGURE(name, key, kind) key,
    RESULT_FIGURES(RESULT_FIGURE)
#undef RESULT_FIGURE
};

static const enum kind kinds[FIGURES] = {
#define RESULT_FIGURE(name, key, kind) KIND_##kind,
    RESULT_FIGURES(RESULT_FIGURE)
#undef RESULT_FIGURE
};

/* For each kind of figure, the assumed difference between two runs.  Used if only one run was made. */
static const struct {
    unsigned percent, ns;
} doubts[] = {[KIND_TIME] = {10, 2000},
              [KIND_MAKESPAN] = {1, 0},
              [KIND_BYTES] = {0, 0},
              [KIND_COUNT] = {0, 0}};

void result_set(struct result_figures *figures, enum result_figure figure, uint64_t value) {
    figures->value[figure] = value;
    figures->has[figure] = 1;
}

static int compare_values(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

uint64_t result_median(uint64_t *values, size_t count) {
    uint64_t low, high;

    if (count == 0)
        return 0;
    qsort(values, count, sizeof *values, compare_values);
    low = values[(count - 1) / 2];
    high = values[count / 2];
    return low + (high - low) / 2;
}

/* ---- steady state ---- */

enum { MIN_STEADY = 3, MIN_STEADY_PART = 4, SLACK_NS = 10000 };

size_t result_warm_up(const struct iteration *iterations, size_t count, uint64_t reserved,
                      int modelled) {
    uint64_t longest = 0;
    size_t warm_up = 0;

#define TIME(i) (modelled ? iterations[i].driver_ns : iterations[i].alloc_ns)
    for (size_t i = count / 2; i < count; i++)
        if (TIME(i) > longest)
            longest = TIME(i);
    for (size_t i = 0; i < count; i++) {
        if (iterations[i].reserved_high > reserved || TIME(i) > longest + longest / 4 + SLACK_NS)
            warm_up = i + 1;
        if (iterations[i].reserved_high > reserved)
            reserved = iterations[i].reserved_high;
    }
#undef TIME
    return warm_up;
}

int result_has_steady_end(size_t warm_up, size_t count) {
    size_t follow = count - warm_up;

    return follow >= MIN_STEADY && follow >= count / MIN_STEADY_PART;
}

static uint64_t number_at(const json_t *array, size_t i) {
    return (uint64_t)json_integer_value(json_array_get(array, i));
}

static void set_in(json_t *run, enum result_figure figure, uint64_t value) {
    json_object_set_new(run, result_keys[figure], jsonfile_integer(value));
}

/* Sets a figure of a run to the mean of the values `key' of its iterations, without the first `from' iterations. */
static void set_column_mean(json_t *run, const char *key, size_t from, enum result_figure figure) {
    const json_t *column = json_object_get(json_object_get(run, "iterations"), key);
    size_t count = json_array_size(column);
    uint64_t sum = 0;

    for (size_t i = from; i < count; i++)
        sum += number_at(column, i);
    if (from < count)
        set_in(run, figure, sum / (count - from));
}

int result_set_steady(json_t *run, size_t from) {
    const json_t *times = json_object_get(json_object_get(run, "iterations"), "alloc_ns");
    size_t count = json_array_size(times);
    uint64_t *values, worst = 0;

    set_in(run, FIGURE_STEADY_FROM, from);
    /* The first iteration is never steady. */
    if (count < 2 || from >= count)
        return 1;
    values = calloc(count - from, sizeof *values);
    if (!values)
        return 0;
    for (size_t i = from; i < count; i++) {
        values[i - from] = number_at(times, i);
        worst = number_at(times, i) > worst ? number_at(times, i) : worst;
    }
    set_in(run, FIGURE_STEADY_MEDIAN, result_median(values, count - from));
    set_in(run, FIGURE_STEADY_WORST, worst);
    set_column_mean(run, "alloc_ns", from, FIGURE_STEADY_MEAN);
    set_column_mean(run, "driver_ns", from, FIGURE_STEADY_DRIVER);
    set_column_mean(run, "makespan_ns", from, FIGURE_STEADY_MAKESPAN);
    free(values);
    return 1;
}

/* Returns the number of the first steady iteration of a trace, for the rows with or without GPU work. */
static size_t first_steady(const struct results *results, size_t trace, int busy) {
    size_t from = 0, count = 0, settled = 0;

    for (size_t c = 0; c < results->configuration_count; c++) {
        const json_t *runs = result_at(results, trace, c, busy)->runs, *run;
        size_t i, warm_up;

        json_array_foreach(runs, i, run) {
            warm_up = (size_t)json_integer_value(
                json_object_get(run, result_keys[FIGURE_WARM_UP_ITERATIONS]));
            count =
                json_array_size(json_object_get(json_object_get(run, "iterations"), "alloc_ns"));
            if (!json_is_true(json_object_get(run, "settled")))
                continue;
            settled++;
            from = warm_up > from ? warm_up : from;
        }
    }
    return settled == 0 ? count / 2 : from ? from : 1; /* the first iteration is never steady */
}

int result_align(struct results *results) {
    int good = 1;

    for (size_t t = 0; t < results->trace_count; t++)
        for (int busy = 0; busy <= (results->busy > 0); busy++) {
            size_t from = first_steady(results, t, busy);

            for (size_t c = 0; c < results->configuration_count; c++) {
                json_t *runs = result_at(results, t, c, busy)->runs, *run;
                size_t i;

                json_array_foreach(runs, i, run) good = good && result_set_steady(run, from);
            }
        }
    return good;
}

/* ---- rows ---- */

/* Sets the median and the range of one figure of a row.  `values' is a buffer for one value of each run. */
static void set_figure(struct row *row, enum result_figure figure, uint64_t *values) {
    size_t count = 0, i;
    const json_t *run;
    uint64_t median;

    json_array_foreach(row->runs, i, run) {
        const json_t *value = json_object_get(run, result_keys[figure]);

        if (json_is_integer(value))
            values[count++] = (uint64_t)json_integer_value(value);
    }
    row->median.has[figure] = row->low.has[figure] = row->high.has[figure] = count > 0;
    if (count == 0)
        return;
    median = result_median(values, count); /* also sorts the values */
    row->median.value[figure] = median;
    row->low.value[figure] = values[0];
    row->high.value[figure] = values[count - 1];
    if (count == 1) {
        uint64_t doubt = median / 100 * doubts[kinds[figure]].percent + doubts[kinds[figure]].ns;

        row->low.value[figure] -= doubt < median ? doubt : median;
        row->high.value[figure] += doubt;
    }
}

void result_row(struct row *row) {
    size_t count = json_array_size(row->runs), i;
    uint64_t *values = calloc(count ? count : 1, sizeof *values);
    const json_t *run;

    for (int figure = 0; values && figure < FIGURES; figure++)
        set_figure(row, (enum result_figure)figure, values);
    free(values);
    row->settled = count > 0;
    json_array_foreach(row->runs, i, run) row->settled &=
        json_is_true(json_object_get(run, "settled"));
}

const char *result_name(const struct row *row) {
    const json_t *name = json_object_get(json_array_get(row->runs, 0), "configuration");

    return name ? json_string_value(name) : row->configuration->name;
}

int result_is_comparable(const struct row *row) {
    const json_t *run;
    size_t i;

    json_array_foreach(row->runs, i,
                       run) if (json_integer_value(json_object_get(run, "failed"))) return 0;
    return json_array_size(row->runs) > 0 && row->failed_runs == 0;
}

size_t result_runs(const struct results *results, int with_figures) {
    size_t count = 0;

    for (size_t i = 0; i < results->row_count; i++)
        count += json_array_size(results->rows[i].runs) +
                 (with_figures ? 0 : results->rows[i].failed_runs);
    return count;
}

size_t result_planned(const struct results *results) {
    return results->row_count * (size_t)results->repeat;
}

static size_t row_mode_count(const struct results *results) {
    return results->busy > 0 ? 2 : 1;
}

struct row *result_at(const struct results *results, size_t trace, size_t configuration, int busy) {
    size_t modes = row_mode_count(results);

    if (busy && modes == 1)
        return NULL;
    return &results->rows[(trace * results->configuration_count + configuration) * modes +
                          (busy != 0)];
}

/* The columns of the table in which the rows with the smallest values are marked. */
static const enum result_figure marked[] = {FIGURE_FIRST, FIGURE_WARM_UP, FIGURE_STEADY_MEAN,
                                            FIGURE_RESERVED, FIGURE_STEADY_MAKESPAN};

static int is_row_compared(const struct row *row, enum result_figure figure) {
    return result_is_comparable(row) && !row->configuration->unusable && row->median.has[figure] &&
           (figure != FIGURE_RESERVED || row->median.value[FIGURE_REQUESTED] > 0);
}

static void mark_column(struct results *results, size_t trace, int busy,
                        enum result_figure figure) {
    const struct row *best = NULL;
    /* Two amounts of memory tie if they differ by at most 1% of the peak requested memory. */
    uint64_t slack = 0;
    size_t count = 0;

    for (size_t i = 0; i < results->configuration_count; i++) {
        const struct row *row = result_at(results, trace, i, busy);

        if (!is_row_compared(row, figure))
            continue;
        count++;
        if (!best || row->median.value[figure] < best->median.value[figure])
            best = row;
        if (figure == FIGURE_RESERVED)
            slack = row->median.value[FIGURE_REQUESTED] / 100;
    }
    for (size_t i = 0; i < results->configuration_count && count > 1; i++) {
        struct row *row = result_at(results, trace, i, busy);

        row->best[figure] = is_row_compared(row, figure) &&
                            row->low.value[figure] <= best->high.value[figure] + slack;
    }
}

void result_mark(struct results *results) {
    if (result_runs(results, 0) < result_planned(results))
        return;
    for (size_t trace = 0; trace < results->trace_count; trace++)
        for (size_t mode = 0; mode < row_mode_count(results); mode++)
            for (size_t i = 0; i < sizeof marked / sizeof marked[0]; i++)
                mark_column(results, trace, mode == 1, marked[i]);
}

/* ---- JSON ---- */

static json_t *value_json(const struct result_figures *figures, enum result_figure figure) {
    return figures->has[figure] ? jsonfile_integer(figures->value[figure]) : json_null();
}

/* Returns a JSON array with the figures of every run of the row. */
static json_t *runs_json(const struct row *row) {
    json_t *each = json_array();
    const json_t *run;
    size_t i;

    json_array_foreach(row->runs, i, run) {
        json_t *figures = json_object();

        for (int figure = 0; figure < FIGURES; figure++) {
            json_t *value = json_object_get(run, result_keys[figure]);

            if (value)
                json_object_set(figures, result_keys[figure], value);
        }
        json_array_append_new(each, figures);
    }
    return each;
}

json_t *result_row_json(const struct results *results, const struct row *row) {
    const json_t *run = json_array_get(row->runs, 0);
    json_t *out, *best = json_array(), *value;
    const char *key;

    for (int figure = 0; figure < FIGURES; figure++)
        if (row->best[figure])
            json_array_append_new(best, json_string(result_keys[figure]));
    out = json_pack("{s:o,s:s,s:o,s:I,s:I,s:o,s:b,s:o}", "trace",
                    jsonfile_text(results->traces[row->trace]), "configuration", result_name(row),
                    "busy", row->busy > 0 ? json_real(row->busy) : json_null(), "runs",
                    (json_int_t)json_array_size(row->runs), "failed_runs",
                    (json_int_t)row->failed_runs, "error",
                    row->error ? jsonfile_text(row->error) : json_null(), "usable",
                    !row->configuration->unusable, "best", best);
    if (!run)
        return out;
    json_object_set_new(out, "settled", json_boolean(row->settled));
    for (int figure = 0; figure < FIGURES; figure++)
        json_object_set_new(out, result_keys[figure],
                            value_json(&row->median, (enum result_figure)figure));
    json_object_set_new(out, "steady_low_ns", value_json(&row->low, FIGURE_STEADY_MEAN));
    json_object_set_new(out, "steady_high_ns", value_json(&row->high, FIGURE_STEADY_MEAN));
    value = value_json(&row->low, FIGURE_STEADY_MAKESPAN);
    json_object_set_new(out, "steady_makespan_low_ns", value);
    value = value_json(&row->high, FIGURE_STEADY_MAKESPAN);
    json_object_set_new(out, "steady_makespan_high_ns", value);
    json_object_foreach((json_t *)(uintptr_t)run, key,
                        value) if (!json_object_get(out, key) && strcmp(key, "timer_ns") != 0)
        json_object_set(out, key, value);
    json_object_set_new(out, "each", runs_json(row));
    return out;
}
