/* SPDX-License-Identifier: MIT */
/* result.h: the results of replays.  The table, the JSON and the findings are all made from one struct.
 *
 * A run is one child process; its result is a JSON object (child.c).  A row belongs to one configuration on one
 * trace, either with or without GPU work.  The figures of a row are medians over its runs.  The name of a figure is
 * its key in the JSON, and its name in the manual.
 *
 * This file must not depend on how a figure is measured or shown.
 */
#ifndef WEIR_CLI_RESULT_H
#define WEIR_CLI_RESULT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/replay/configuration.h"

/* The figures: the name in C, the key in the JSON, and the kind.  The kind decides how much the figure may differ
 * between two runs. */
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

/* The number of equal parts into which a trace is divided, for memory over time. */
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
    uint64_t alloc_ns;    /* the time that the allocations, frees and uses took */
    uint64_t driver_ns;   /* the part of alloc_ns that is virtual time, on the device model */
    uint64_t makespan_ns; /* the makespan in a replay with GPU work (busy.h) */
    uint64_t growths;     /* the number of times that the reserved memory rose */
    /* The number of times that reserved memory was returned to the device, or moved. */
    uint64_t trims;
    uint64_t reserved_high; /* the peak reserved memory in the iteration, or 0 if it is not known */
    uint64_t reserved_end;  /* the reserved memory at the end of the iteration */
};

struct row {
    size_t trace; /* the index of the trace in the list of traces */
    const struct configuration *configuration;
    /* The duration of GPU work as a factor of the times in the trace, or 0 without GPU work. */
    double busy;
    /* The smallest limit that is enough for the trace, or 0 if the configuration does not need one. */
    uint64_t limit;
    json_t *runs;       /* a JSON array of the runs that have figures */
    json_t *timeline;   /* the part of the time line that belongs to this row, or NULL */
    size_t failed_runs; /* the number of runs that failed and have no figures */
    char *error;        /* the reason why the first of these runs failed, or NULL */
    /* The median, the minimum and the maximum of each figure over the runs.  If there is only one run, `low' and
     * `high' are estimates. */
    struct result_figures median, low, high;
    int settled; /* set if the warm-up ended in every run */
    /* Set for each figure in which no usable row of the trace is better. */
    unsigned char best[FIGURES];
};

struct results {
    const char **traces; /* the names of all traces */
    size_t trace_count;
    const struct configuration **configurations;
    size_t configuration_count;
    uint64_t repeat; /* the number of runs of each row */
    /* The factor of GPU work, or 0; if it is not 0, each trace and configuration has a second row with GPU work. */
    double busy;
    /* The rows, sorted by trace and then by configuration.  A row with GPU work follows the row without GPU work. */
    struct row *rows;
    size_t row_count;
};

extern const char *const result_keys[FIGURES];

void result_set(struct result_figures *figures, enum result_figure figure, uint64_t value);

/* Returns the median of the values.  If their number is even, returns the mean of the middle two.  Returns 0 if
 * there are no values.  Sorts `values'. */
uint64_t result_median(uint64_t *values, size_t count);

/* Returns the number of iterations that belong to the warm-up.  `reserved' is the reserved memory before the first
 * iteration.  The warm-up ends with the last iteration that sets a new peak of reserved memory, or that is slow.
 * Slow means over 1.25 times as long as every iteration in the second half.  On the device model, only virtual time
 * counts, so that the result is equal in every run.  Trims, moves and growths below the peak do not count, because
 * steady iterations of any engine repeat them. */
size_t result_warm_up(const struct iteration *iterations, size_t count, uint64_t reserved,
                      int modelled);
/* Returns 1 if enough iterations follow the warm-up, else 0.  Enough means at least 3 iterations, and at least a
 * quarter of all iterations. */
int result_has_steady_end(size_t warm_up, size_t count);
/* Sets the figures of a run's steady iterations, which begin with iteration `from'.  Returns 1 on success, 0 if
 * there is no host memory. */
int result_set_steady(json_t *run, size_t from);
/* Sets the figures of the steady iterations of all runs.  All rows of a trace, with and without GPU work, use the
 * iterations after one common number as their steady iterations.  This number is the longest warm-up of all runs
 * whose warm-up ended.  If no warm-up ended, the second half of the iterations is steady.  Returns 1 on success, 0
 * if there is no host memory. */
int result_align(struct results *results);

/* Computes the medians and ranges of a row, and `settled', from its runs. */
void result_row(struct row *row);
/* Marks the best rows of each trace, for each column that at least two usable rows have.  A row is marked if its
 * range reaches down to the smallest value of the column.  Marks nothing after an interrupt. */
void result_mark(struct results *results);
/* Returns the name of the row's configuration.  For `weir replay', returns the name of the engine. */
const char *result_name(const struct row *row);
/* Returns 1 if the figures of the row can be compared with other rows, else 0.  The row must have at least one run,
 * and no run and no request may have failed. */
int result_is_comparable(const struct row *row);
/* Returns the number of runs that were made.  If `with_figures' is set, does not count the runs that failed. */
size_t result_runs(const struct results *results, int with_figures);
/* Returns the number of runs that the user asked for.  After an interrupt, fewer runs were made. */
size_t result_planned(const struct results *results);
/* Returns the row of a configuration on a trace, with GPU work if `busy' is set.  Returns NULL if there is no such
 * row. */
struct row *result_at(const struct results *results, size_t trace, size_t configuration, int busy);
/* Returns the row as a new JSON object, or NULL if there is no host memory. */
json_t *result_row_json(const struct results *results, const struct row *row);

#endif
