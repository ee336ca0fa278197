/* SPDX-License-Identifier: MIT */
/* figures.c: see figures.h. */
#include "cli/report/figures.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "cli/report/summary.h"

static uint64_t number(const json_t *object, const char *key) {
    json_int_t value = json_integer_value(json_object_get(object, key));

    return value > 0 ? (uint64_t)value : 0;
}

/* The numbers of the results that have one; room for all. */
static size_t gather(const json_t *const results[], size_t count, const char *key, uint64_t *out) {
    size_t found = 0;

    for (size_t i = 0; i < count; i++)
        if (json_is_integer(json_object_get(results[i], key)))
            out[found++] = number(results[i], key);
    return found;
}

/* What has no second iteration has no steady time. */
static int has_iterations(const json_t *result) {
    return json_array_size(json_object_get(result, "iterations")) > 1;
}

static double median_of(const json_t *const results[], size_t count, const char *key,
                        uint64_t *room) {
    size_t found = gather(results, count, key, room);

    return (double)median(room, found);
}

/* The middle half of the steady iterations of one process.  0: out of memory. */
static int range_of_one(const json_t *result, struct choice_figures *out) {
    const json_t *iterations = json_object_get(result, "iterations");
    size_t count = json_array_size(iterations);
    size_t from = json_is_true(json_object_get(result, "settled"))
                      ? (size_t)number(result, "warm_up_iterations")
                      : count / 2;
    size_t steady = from < count ? count - from : 0;
    uint64_t *times = calloc(steady ? steady : 1, sizeof *times);

    if (!times)
        return 0;
    out->low_ns = out->time_ns * 0.8;
    out->high_ns = out->time_ns * 1.2;
    for (size_t i = 0; i < steady; i++)
        times[i] = number(json_array_get(iterations, from + i), "alloc_ns");
    if (steady > 0) {
        median(times, steady); /* sorts */
        out->low_ns = fmin(out->low_ns, (double)times[steady / 4]);
        out->high_ns = fmax(out->high_ns, (double)times[steady - 1 - steady / 4]);
    }
    free(times);
    return 1;
}

static void look_for_failures(const json_t *const results[], size_t count,
                              struct choice_figures *out) {
    for (size_t i = 0; i < count; i++) {
        out->failed += number(results[i], "failed");
        out->has_failed |= json_object_get(results[i], "error") != NULL;
        out->is_unsettled |= json_is_false(json_object_get(results[i], "settled"));
    }
    out->has_failed |= out->failed > 0;
}

int figures_of(const json_t *const results[], size_t count, struct choice_figures *out) {
    uint64_t *room = calloc(count ? count : 1, sizeof *room);
    double live;
    size_t runs;
    int good = 1;

    *out = (struct choice_figures){0};
    if (!room)
        return 0;
    look_for_failures(results, count, out);
    live = median_of(results, count, "requested_peak_bytes", room);
    if (live > 0.0)
        out->memory = median_of(results, count, "reserved_peak_bytes", room) / live;
    out->makespan_ns = median_of(results, count, "makespan_ns", room);
    if (count > 0 && has_iterations(results[0]))
        out->time_ns = median_of(results, count, "steady_alloc_ns", room);
    runs = out->time_ns > 0.0 ? gather(results, count, "steady_alloc_ns", room) : 0;
    if (runs > 1) {
        median(room, runs); /* sorts */
        out->low_ns = (double)room[0];
        out->high_ns = (double)room[runs - 1];
    } else if (runs == 1) {
        out->is_single = 1;
        for (size_t i = 0; i < count && good; i++)
            if (json_is_integer(json_object_get(results[i], "steady_alloc_ns")))
                good = range_of_one(results[i], out);
    }
    out->is_unsettled &= runs > 0;
    free(room);
    return good;
}
