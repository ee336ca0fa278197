/* SPDX-License-Identifier: MIT */
/* changepoints.h: where a series of iteration times changes its level, and what kind of series it is.
 *
 * After Barrett, Bolz-Tereick, Killick, Mount, Tratt, "Virtual machine warmup blows hot and cold" (2017):
 * changepoints by PELT, then a class from the levels between them.  What differs here, since a trace has
 * tens of iterations and not thousands:
 *
 *   the series    logarithms, so that levels are compared by their ratio
 *   the cost      squared distance from the mean of a stretch, over the variance of the noise, which is taken
 *                 from the differences of neighbours (their median); at least 1%
 *   the penalty   15 ln n for each changepoint, as there
 *   stretches     of 2 iterations or more, but for the first, which may be one
 *   outliers      an iteration, not the first, that stands out alone from both its neighbours to the
 *                 same side, by six times the noise: left out of cost and levels
 *   levels        the geometric mean of a stretch
 *   intervals     95%, by a bootstrap of 1000 with a fixed seed: of a level, from values drawn from its
 *                 stretch; of a changepoint, the place found again in stretches made of residuals
 *
 * Pure functions of numbers: the same series has the same answer.
 */
#ifndef WEIR_CLI_CHANGEPOINTS_H
#define WEIR_CLI_CHANGEPOINTS_H

#include <stddef.h>
#include <stdint.h>

/* One level, from one changepoint to the next. */
struct level {
    size_t from, count;         /* iterations, from 0 */
    size_t from_low, from_high; /* where it may begin as well; both 0 for the first */
    double ns, low_ns, high_ns; /* the geometric mean, and its interval */
};

/* Two levels are the same if they differ by less than 5% or their intervals overlap.  The steady
 * stretch is the last level and those right before it that are the same. */
enum series_class {
    SERIES_SHORT,       /* fewer than 6 iterations: no class */
    SERIES_FLAT,        /* one level */
    SERIES_WARM_UP,     /* some level before the steady stretch was slower */
    SERIES_SLOWDOWN,    /* a level before it, of 3 iterations or more, was faster */
    SERIES_NEVER_STEADY /* it is shorter than 3 iterations, or than a quarter of all */
};

struct changepoints {
    struct level *levels; /* one at least, if there are iterations */
    size_t level_count;
    unsigned char *is_outlier; /* by iteration */
    size_t outliers;
    size_t steady_from; /* the first iteration of the steady stretch */
    double noise;       /* of the logarithms */
    enum series_class kind;
};

/* 1, or 0: out of memory. */
int changepoints_find(const uint64_t *ns, size_t count, struct changepoints *out);
void changepoints_free(struct changepoints *points);
/* "flat", "warm-up", "slowdown", "never steady", "too short". */
const char *changepoints_word(enum series_class kind);

/* The segmentation alone, for who has values and noise: the first iterations of all stretches but the
 * first, in order, to `at` (room for `count`).  How many, or SIZE_MAX: out of memory. */
size_t changepoints_pelt(const double *values, size_t count, double noise, size_t *at);

#endif
