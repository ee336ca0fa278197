/* SPDX-License-Identifier: MIT */
/* result.h: the results of replays.  One struct feeds the table, the JSON and the findings.
 *
 * A run is one child process, and comes as a JSON object (child.c).  A row is one configuration on one trace, without
 * or with GPU work: medians over its runs.  The name of a figure is its key in the JSON and in the manual.
 *
 * This file must not know how a figure is measured or shown.
 */
#ifndef WEIR_CLI_RESULT_H
#define WEIR_CLI_RESULT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/replay/configuration.h"

/* The name in C, the key, and the kind of a figure, which decides by how much two runs may differ. */
#define RESULT_FIGURES(X)                                                                          \
    X(CREATION, "creation_ns", TIME)                                                               \
    X(FIRST, "first_ns", TIME)                                                                     \
    X(WARM_UP, "warm_up_ns", TIME)                                                                 \
    X(WARM_UP_ITERATIONS, "warm_up_iterations", COUNT)                                             \
    X(STEADY_FROM, "steady_from", COUNT)                                                           \
    X(STEADY_MEAN, "steady_mean_ns", TIME)                                                         \
    X(STEADY_MEDIAN, "steady_median_ns", TIME)                                                     \
    X(STEADY_WORST, "steady_worst_ns", TIME)                                                       \
    X(MAKESPAN, "makespan_ns", MAKESPAN)                                                           \
    X(STEADY_MAKESPAN, "steady_makespan_ns", MAKESPAN)                                             \
    X(REQUESTED, "requested_peak_bytes", BYTES)                                                    \
    X(RESERVED, "reserved_peak_bytes", BYTES)                                                      \
    X(KEPT, "kept_bytes", BYTES)                                                                   \
    X(BEFOREHAND, "beforehand_bytes", BYTES)                                                       \
    X(GROWTHS, "growths", COUNT)                                                                   \
    X(TRIMS, "trims", COUNT)                                                                       \
    X(STALL, "stall_ns", TIME)                                                                     \
    X(AHEAD_GROWTHS, "ahead_growths", COUNT)                                                       \
    X(AHEAD_BYTES, "ahead_bytes", BYTES)                                                           \
    X(LONGEST, "longest_ns", TIME)                                                                 \
    X(ALLOCS, "allocs", COUNT)                                                                     \
    X(FREES, "frees", COUNT)                                                                       \
    X(USES, "uses", COUNT)                                                                         \
    X(FAILED, "failed", COUNT)                                                                     \
    X(CREATION_DRIVER, "creation_driver_ns", TIME)                                                 \
    X(FIRST_DRIVER, "first_driver_ns", TIME)                                                       \
    X(STEADY_DRIVER, "steady_driver_ns", TIME)                                                     \
    X(RSS, "peak_rss_bytes", BYTES)

/* The number of parts of a trace for memory over time. */
enum { RESULT_POINTS = 200 };

enum result_figure {
#define RESULT_FIGURE(name, key, kind) FIGURE_##name,
    RESULT_FIGURES(RESULT_FIGURE)
#undef RESULT_FIGURE
        FIGURES
};

struct result_figures {
    uint64_t value[FIGURES];
    unsigned char has[FIGURES];
};

struct iteration {
    uint64_t alloc_ns;      /* time in allocations, frees and uses */
    uint64_t driver_ns;     /* the virtual part of that time, on a modelled device */
    uint64_t makespan_ns;   /* the makespan, with GPU work */
    uint64_t growths;       /* rises of the reserved memory */
    uint64_t trims;         /* times that reserved memory was given back or moved */
    uint64_t reserved_high; /* the peak reserved memory in the iteration, or 0 if it is not known */
    uint64_t reserved_end;  /* the reserved memory at the end of the iteration */
};

struct row {
    size_t trace; /* the trace's index in the list of traces */
    const struct configuration *configuration;
    double busy;        /* GPU work as a factor of the trace's time, or 0 */
    uint64_t limit;     /* the smallest limit, or 0 if the configuration has no such limit */
    json_t *runs;       /* an array of the runs that have figures */
    json_t *timeline;   /* the time line, or NULL */
    size_t failed_runs; /* the number of runs without figures */
    char *error;        /* the reason why the first run without figures failed, or NULL */
    /* Over the runs; the range of a single run is estimated. */
    struct result_figures median, low, high;
    int settled;                 /* set if every run has settled */
    unsigned char best[FIGURES]; /* set if no usable row of the trace is better */
};

struct results {
    const char **traces; /* names */
    size_t trace_count;
    const struct configuration **configurations;
    size_t configuration_count;
    uint64_t repeat; /* runs of each row, in fresh processes */
    double busy;     /* the factor of GPU work, with which every pair runs once more, or 0 */
    /* The rows, sorted by trace and configuration.  A row with GPU work follows the row without GPU work. */
    struct row *rows;
    size_t row_count;
};

extern const char *const result_keys[FIGURES];

void result_set(struct result_figures *figures, enum result_figure figure, uint64_t value);

/* Returns the median, which is the mean of the middle two values of an even number, or 0 without values.  Sorts
 * `values'. */
uint64_t result_median(uint64_t *values, size_t count);

/* Returns the number of iterations in the warm-up.  `reserved' is the reserved memory before the first iteration.
 * The warm-up ends with the last iteration that raises the peak of reserved memory, or that takes over 1.25 times
 * as long as every iteration of the second half.  On a model the virtual time counts, so that the result is equal
 * in every run.  Growth up to an earlier peak, trims and moves repeat in steady iterations of any engine. */
size_t result_warm_up(const struct iteration *iterations, size_t count, uint64_t reserved,
                      int modelled);
/* Returns 1 if enough iterations follow the warm-up, else 0.  Enough iterations are at least 3, and a quarter of all
 * iterations. */
int result_settles(size_t warm_up, size_t count);
/* Sets the figures of the steady iterations of a run, from number `from' on.  Returns 1 on success, 0 if there is no
 * host memory. */
int result_set_steady(json_t *run, size_t from);
/* Sets the figures of the steady iterations of all runs.  For all rows of a trace, with and without GPU work, equal
 * iterations count as steady.  These are the iterations after the longest warm-up of a run that settled, or the second
 * half if no run settled.  Returns 1 on success, 0 if there is no host memory. */
int result_align(struct results *results);

/* Computes medians, ranges and `settled` from the runs. */
void result_row(struct row *row);
/* Marks the best of each trace: every usable row whose range reaches the least of a column that two usable rows
 * have.  Marks none if an interrupt came. */
void result_mark(struct results *results);
/* Returns the name of the row's configuration, or the engine of a replay. */
const char *result_name(const struct row *row);
/* Returns 1 if the figures of the row can be compared with others, else 0.  The row needs at least one run, and no
 * request or run may have failed. */
int result_compares(const struct row *row);
/* Returns the number of runs that were made, or only of those with figures. */
size_t result_runs(const struct results *results, int with_figures);
/* Returns the number of runs without an interrupt. */
size_t result_planned(const struct results *results);
/* Returns the row of a trace and a configuration, with GPU work if `busy`; NULL if there is none. */
struct row *result_at(const struct results *results, size_t trace, size_t configuration, int busy);
/* Returns the row as JSON, a new reference; NULL if there is no host memory. */
json_t *result_row_json(const struct results *results, const struct row *row);

#endif
