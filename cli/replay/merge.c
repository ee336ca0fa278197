/* SPDX-License-Identifier: MIT */
/* merge.c: see merge.h. */
#include "cli/replay/merge.h"

#include <stdio.h>
#include <stdlib.h>

#include "cli/common/jsonfile.h"
#include "cli/report/summary.h"

static uint64_t integer_at(const json_t *object, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* A key that is not there is a part that modelled devices alone have; null stays null. */
static void replace(json_t *object, const char *key, const char *single_key, uint64_t ns) {
    json_t *single = json_object_get(object, key);

    if (!single)
        return;
    json_object_set(object, single_key, single);
    if (!json_is_null(single))
        json_object_set_new(object, key, jsonfile_integer(ns));
}

/* "STEM_ns" and its two parts. */
static void replace_parts(json_t *object, const char *stem, const char *single_stem, uint64_t ns,
                          uint64_t driver_ns, uint64_t own_ns) {
    static const char *const parts[] = {"ns", "driver_ns", "own_ns"};
    const uint64_t values[] = {ns, driver_ns, own_ns};
    char key[64], single_key[64];

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(key, sizeof key, "%s_%s", stem, parts[i]);
        snprintf(single_key, sizeof single_key, "%s_%s", single_stem, parts[i]);
        replace(object, key, single_key, values[i]);
    }
}

/* "STEM_and_first_iteration_ns", the sum of these two. */
static void replace_first(json_t *result, const char *stem, const struct iteration *first) {
    char before[32], key[64];

    snprintf(before, sizeof before, "%s_ns", stem);
    snprintf(key, sizeof key, "%s_and_first_iteration_ns", stem);
    if (json_is_integer(json_object_get(result, key)))
        json_object_set_new(result, key,
                            jsonfile_integer(integer_at(result, before) + first->alloc_ns));
}

static void replace_sums(json_t *result, const struct iteration *first,
                         const struct summary *summary) {
    replace_parts(result, "steady_alloc", "steady_single", summary->steady_alloc_ns,
                  summary->steady_driver_ns, summary->steady_own_ns);
    replace_parts(result, "first_iteration", "first_iteration_single", first->alloc_ns,
                  first->driver_ns, first->own_ns);
    replace_first(result, "prealloc", first);
    replace_first(result, "creation", first);
}

/* What either was refused spoils its times, which others may not have met: of memory that other processes have. */
static void take_failures(json_t *result, const json_t *stretches) {
    json_t *verdict = json_object_get(stretches, "oom_report");

    if (integer_at(stretches, "failed") <= integer_at(result, "failed"))
        return;
    json_object_set(result, "failed", json_object_get(stretches, "failed"));
    if (verdict)
        json_object_set(result, "oom_report", verdict);
}

const char *merge_stretches(json_t *result, const json_t *stretches) {
    const json_t *singles = json_object_get(result, "iterations");
    const json_t *wholes = json_object_get(stretches, "iterations");
    size_t count = json_array_size(singles);
    struct iteration *merged;
    struct summary summary;

    if (json_array_size(wholes) != count)
        return "two replays of the trace differ in their number of iterations";
    merged = calloc(count ? count : 1, sizeof *merged);
    if (!merged)
        return "out of memory";
    for (size_t i = 0; i < count; i++) {
        const json_t *single = json_array_get(singles, i), *whole = json_array_get(wholes, i);

        merged[i].alloc_ns = integer_at(whole, "alloc_ns");
        merged[i].driver_ns = integer_at(whole, "driver_ns");
        merged[i].own_ns = integer_at(whole, "own_ns");
        merged[i].growths = integer_at(single, "growths");
        merged[i].given_back = integer_at(single, "given_back");
    }
    if (!summarise(merged, count, &summary)) {
        free(merged);
        return "out of memory";
    }
    for (size_t i = 0; i < count; i++) {
        json_t *single = json_array_get(singles, i);

        replace(single, "alloc_ns", "single_ns", merged[i].alloc_ns);
        replace(single, "driver_ns", "single_driver_ns", merged[i].driver_ns);
        replace(single, "own_ns", "single_own_ns", merged[i].own_ns);
    }
    replace_sums(result, &merged[0], &summary);
    take_failures(result, stretches);
    free(merged);
    return NULL;
}
