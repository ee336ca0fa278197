/* SPDX-License-Identifier: MIT */
/* histogram.h: a log-linear histogram of nanoseconds, in the manner of HdrHistogram.
 *
 * 32 linear buckets per power of two, so a quantile is within 1/32 of the true value; maximum, sum
 * and count are exact.  Fixed size, no allocation.  Adds are relaxed atomics: any thread may add.
 * Must not know: what the values mean.
 */
#ifndef WEIR_HISTOGRAM_H
#define WEIR_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

enum { WEIR_HISTOGRAM_SUB = 32, WEIR_HISTOGRAM_BUCKETS = 60 * WEIR_HISTOGRAM_SUB };

/* Zeroed, it is empty. */
struct weir_histogram {
    _Atomic uint64_t count[WEIR_HISTOGRAM_BUCKETS];
    _Atomic uint64_t total;
    _Atomic uint64_t max;
    _Atomic uint64_t sum;
};

void weir__histogram_add(struct weir_histogram *h, uint64_t value);
/* The smallest bucket bound that at least `fraction` (0 to 1) of the values do not exceed, cut to the
 * exact maximum; 0 when empty. */
uint64_t weir__histogram_quantile(const struct weir_histogram *h, double fraction);

#endif
