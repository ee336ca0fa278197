/* SPDX-License-Identifier: MIT */
/* summary.c: see summary.h. */
#include "cli/report/summary.h"

#include <stdlib.h>

enum { QUIET_ITERATIONS = 3 };

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

uint64_t median(uint64_t *values, size_t count) {
    uint64_t low, high;

    if (count == 0)
        return 0;
    qsort(values, count, sizeof *values, compare);
    low = values[(count - 1) / 2];
    high = values[count / 2];
    return low + (high - low) / 2;
}

static uint64_t median_of(const struct iteration *iterations, size_t from, size_t count,
                          size_t field, uint64_t *room) {
    for (size_t i = from; i < count; i++)
        room[i - from] = *(const uint64_t *)(const void *)((const char *)&iterations[i] + field);
    return median(room, count - from);
}

int summarise(const struct iteration *iterations, size_t count, struct summary *out) {
    uint64_t *room = malloc((count ? count : 1) * sizeof *room);
    size_t active = 0; /* iterations up to and with the last one in which something changed */

    if (!room)
        return 0;
    for (size_t i = 0; i < count; i++)
        if (iterations[i].growths || iterations[i].given_back)
            active = i + 1;
    out->settled = count - active >= QUIET_ITERATIONS;
    out->warm_up_iterations = out->settled ? active : count;
    out->first_steady = out->settled ? active : count / 2;
    out->steady_alloc_ns =
        median_of(iterations, out->first_steady, count, offsetof(struct iteration, alloc_ns), room);
    out->steady_driver_ns = median_of(iterations, out->first_steady, count,
                                      offsetof(struct iteration, driver_ns), room);
    out->steady_own_ns =
        median_of(iterations, out->first_steady, count, offsetof(struct iteration, own_ns), room);
    out->steady_makespan_ns = median_of(iterations, out->first_steady, count,
                                        offsetof(struct iteration, makespan_ns), room);
    free(room);
    return 1;
}
