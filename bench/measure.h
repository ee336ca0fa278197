/* SPDX-License-Identifier: MIT */
/* measure.h: the figures that a child process of bench/measure measures and sends to its parent.
 *
 * Each figure is a line of text with a name and a value.  The value is in nanoseconds, or in the unit of the
 * profile.  If a figure is a point of a curve, its name ends with a colon and the point's x, as in "pool_grow_ns:8".
 */
#ifndef WEIR_BENCH_MEASURE_H
#define WEIR_BENCH_MEASURE_H

#include <stdio.h>

enum measure_part { MEASURE_POOLS, MEASURE_HANDLES };
enum {
    MEASURE_EARLY =
        8 /* how many of the first growths, and of the first handles, have figures of their own */
};

/* Measures one part on the device, and writes the figures to `to'.  Ends the process if a driver call fails. */
void measure_child(const char *device, enum measure_part part, FILE *to);

#endif
