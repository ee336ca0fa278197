/* SPDX-License-Identifier: MIT */
/* histogram.h: a log-linear histogram of nanoseconds, like HdrHistogram.
 *
 * A quantile differs from the true value by at most 1/32.  The maximum, the sum and the number of values are exact.  A
 * histogram has a fixed size and allocates no memory.  Any thread may add values, by relaxed atomics. */
#ifndef WEIR_HISTOGRAM_H
#define WEIR_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

enum { WEIR_HISTOGRAM_SUB = 32, WEIR_HISTOGRAM_BUCKETS = 60 * WEIR_HISTOGRAM_SUB };

/* A histogram, which is empty if all its bytes are 0. */
struct weir_histogram {
    _Atomic uint64_t count[WEIR_HISTOGRAM_BUCKETS];
    _Atomic uint64_t total;
    _Atomic uint64_t max;
    _Atomic uint64_t sum;
};

void weir__histogram_add(struct weir_histogram *h, uint64_t value);
/* Returns the quantile for a fraction from 0 to 1, or 0 for an empty histogram. */
uint64_t weir__histogram_quantile(const struct weir_histogram *h, double fraction);

#endif
