/* SPDX-License-Identifier: MIT */
/* result.h: what replays measured.  One struct feeds the table, the JSON and the findings.
 *
 * A run is one child process, and comes as a JSON object (child.c).  A row is one configuration on one trace, without or
 * with GPU work: medians over its runs.  Each figure has one name, which is its key in the JSON and in the manual.
 *
 * Must not know: how a figure is measured, and how it is shown.
 */
#ifndef WEIR_CLI_RESULT_H
#define WEIR_CLI_RESULT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/replay/configuration.h"

/* The name in C, the key, and what the figure is: the kind decides how far two runs differ. */
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

/* The parts of a trace for which memory over time is told. */
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
    uint64_t driver_ns;     /* modelled devices: the virtual part of that time */
    uint64_t makespan_ns;   /* with GPU work */
    uint64_t growths;       /* rises of the reserved memory */
    uint64_t trims;         /* times that reserved memory was given back or moved */
    uint64_t reserved_high; /* the most in the iteration; 0: not known */
    uint64_t reserved_end;  /* at its end */
};

struct row {
    size_t trace; /* index into the traces */
    const struct configuration *configuration;
    double busy;        /* GPU work as a factor of the trace's time; 0: none */
    uint64_t limit;     /* the smallest limit, if the configuration has that; else 0 */
    json_t *runs;       /* an array: the runs that have figures */
    json_t *timeline;   /* of what happened when; NULL: none */
    size_t failed_runs; /* runs without figures, */
    char *error;        /* and why the first of them failed; NULL: there is none */
    struct result_figures median, low, high; /* over the runs; the range of one run is a guess */
    int settled;                             /* every run did */
    unsigned char best[FIGURES];             /* no usable row of the trace is better */
};

struct results {
    const char **traces; /* names */
    size_t trace_count;
    const struct configuration **configurations;
    size_t configuration_count;
    uint64_t repeat;  /* runs of each row, in fresh processes */
    double busy;      /* every pair also with this much GPU work; 0: no row has GPU work */
    struct row *rows; /* by trace, configuration, and without and with GPU work */
    size_t row_count;
};

extern const char *const result_keys[FIGURES];

void result_set(struct result_figures *figures, enum result_figure figure, uint64_t value);

/* Returns the median; of an even number of values the mean of the middle two; 0 of none.  Sorts `values`. */
uint64_t result_median(uint64_t *values, size_t count);

/* Returns how many iterations belong to the warm-up.  `reserved` is what was reserved before the first one.
 * Warm-up ends with the last iteration that raises the peak of reserved memory, or that takes over 1.25 times as long as
 * every iteration of the second half; on a model the virtual time decides, so that the outcome is the same in every run.
 * Growth up to an earlier peak, trims and moves repeat, for any engine: they unsettle nothing, and their cost is in the
 * mean and in the worst. */
size_t result_warm_up(const struct iteration *iterations, size_t count, uint64_t reserved,
                      int modelled);
/* Returns 1 if enough iterations follow the warm-up: at least 3, and a quarter of all. */
int result_settles(size_t warm_up, size_t count);
/* Sets the figures of the steady iterations of a run, from number `from` on.  Returns 1, or 0 if there is no host memory. */
int result_set_steady(json_t *run, size_t from);
/* Sets the figures of the steady iterations of all runs.  All rows of a trace, with GPU work or without, get the same
 * iterations, since iterations differ: those behind the longest warm-up of a run that settled, or the second half if none
 * did.  Returns 1, or 0 if there is no host memory. */
int result_align(struct results *results);

/* Computes medians, ranges and `settled` from the runs. */
void result_row(struct row *row);
/* Marks the best of each trace, unless an interrupt came: every usable row whose range reaches the least of a column that two
 * usable rows have. */
void result_mark(struct results *results);
/* Returns the name of the row's configuration; a replay is known by its engine. */
const char *result_name(const struct row *row);
/* Returns 1 if the figures of the row compare with others: at least one run, and no request or run failed. */
int result_compares(const struct row *row);
/* Returns how many runs were made, or how many of these have figures. */
size_t result_runs(const struct results *results, int with_figures);
/* Returns how many runs there are unless an interrupt comes. */
size_t result_planned(const struct results *results);
/* Returns the row of a trace and a configuration, with GPU work if `busy`; NULL if there is none. */
struct row *result_at(const struct results *results, size_t trace, size_t configuration, int busy);
/* Returns the row as JSON, a new reference; NULL if there is no host memory. */
json_t *result_row_json(const struct results *results, const struct row *row);

#endif
