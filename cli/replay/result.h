/* SPDX-License-Identifier: MIT */
/* result.h: the results of replays.  The table, the JSON and the findings are all made from one struct.
 *
 * A run is one child process; its result is a JSON object (child.c).  A row belongs to one configuration on one
 * trace, either with or without GPU work.  The figures of a row are medians over its runs.  weir-json(7) describes each
 * figure under its key.
 *
 * This file must not depend on how a figure is measured or shown.
 */
#ifndef WEIR_CLI_RESULT_H
#define WEIR_CLI_RESULT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/replay/configuration.h"

/* The figures: the name in C, the key in the JSON, and the kind, which decides how much two runs may differ. */
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

/* The number of points of the curve of memory over time. */
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
    uint64_t alloc_ns;    /* the host time of all allocations, frees and uses */
    uint64_t driver_ns;   /* the part of alloc_ns that is virtual time, on the device model */
    /* In a replay with GPU work: the time until the device has completed all work (busy.h). */
    uint64_t makespan_ns;
    uint64_t growths;       /* how often the reserved memory rose */
    uint64_t trims;         /* how often reserved memory was returned to the device or moved */
    uint64_t reserved_high; /* the peak reserved memory in the iteration, or 0 if it is not known */
    uint64_t reserved_end;  /* the reserved memory at the end of the iteration */
};

/* The results of one configuration on one trace, with or without GPU work. */
struct row {
    size_t trace; /* an index of results.traces */
    const struct configuration *configuration;
    double busy; /* GPU work as a factor of the times in the trace, or 0 without GPU work */
    /* The smallest limit for the trace.  0 if the configuration does not run with this limit. */
    uint64_t limit;
    json_t *runs;       /* a JSON array of the runs that have figures */
    json_t *timeline;   /* events for the file of --trace-events, or NULL */
    size_t failed_runs; /* the number of runs without figures */
    char *error;        /* the reason why the first run failed, or NULL */
    /* The median, the minimum and the maximum over the runs.  With only one run, `low' and `high' are estimates. */
    struct result_figures median, low, high;
    int settled; /* set if the warm-up ended in every run */
    unsigned char best[FIGURES]; /* for each figure: set if no row of this trace is better */
};

struct results {
    const char **traces; /* the names of the traces */
    size_t trace_count;
    const struct configuration **configurations;
    size_t configuration_count;
    uint64_t repeat; /* the number of runs of each row */
    double busy;     /* GPU work as a factor of the times in the trace, or 0 without GPU work */
    /* Sorted by trace, then by configuration.  If `busy' is not 0, a second row with GPU work follows each row. */
    struct row *rows;
    size_t row_count;
};

extern const char *const result_keys[FIGURES];

void result_set(struct result_figures *figures, enum result_figure figure, uint64_t value);

/* Sorts the values and returns their median: the mean of the middle two if `count' is even, 0 if there are none. */
uint64_t result_median(uint64_t *values, size_t count);

/* Returns the number of iterations of the warm-up.  It ends with the last iteration in which the reserved memory rises
 * above its peak, or which takes over 1.25 times as long as every iteration in the second half.  `reserved' is the
 * reserved memory before the first iteration.  `modelled' is set on the device model; the function then compares
 * virtual times, so the result is equal in every run. */
size_t result_warm_up(const struct iteration *iterations, size_t count, uint64_t reserved,
                      int modelled);
/* Returns 1 if at least 3 iterations, and at least a quarter of all iterations, follow the warm-up; else 0. */
int result_has_steady_end(size_t warm_up, size_t count);
/* Sets the figures of a run that describe its steady iterations.  The first steady iteration has the number `from'.
 * Returns 1 on success, 0 if there is no host memory. */
int result_set_steady(json_t *run, size_t from);
/* Sets the figures that describe steady iterations, which are the same iterations in all runs of a trace.  Returns 0 if
 * there is no host memory. */
int result_align(struct results *results);

/* Computes the figures of a row from its runs. */
void result_row(struct row *row);
/* Returns 1 if the figure is larger for `a', else 0.  Two figures tie if the ranges of their runs overlap, or if the
 * gap between the ranges is at most 1% of the peak requested memory, or 0.5% of a time. */
int result_is_larger(const struct row *a, const struct row *b, enum result_figure figure);
/* Sets row.best for the best rows of a trace in each column of the table. */
void result_mark(struct results *results);
/* Returns the name of the row's configuration.  For `weir replay', returns the name of the engine. */
const char *result_name(const struct row *row);
/* Returns 1 if the row can be compared with other rows, else 0: it has runs, and no run and no request has failed. */
int result_is_comparable(const struct row *row);
/* Returns the number of runs so far.  If `with_figures' is set, does not count runs that failed. */
size_t result_runs(const struct results *results, int with_figures);
/* Returns the number of runs that the command would make without an interrupt. */
size_t result_planned(const struct results *results);
/* Returns the row of a configuration on a trace, with GPU work if `busy' is set.  Returns NULL if there is no such
 * row. */
struct row *result_at(const struct results *results, size_t trace, size_t configuration, int busy);
/* Returns the row as a new JSON object, or NULL if there is no host memory. */
json_t *result_row_json(const struct results *results, const struct row *row);

#endif
