/* SPDX-License-Identifier: MIT */
/* measure.h: the figures that a process of bench/measure measures and sends to its parent.
 *
 * A figure is a line of text: a name and a value, in nanoseconds or in the profile's unit.  The name of a point of a
 * curve ends with a colon and the point's x, as in "pool_grow_ns:8".
 */
#ifndef WEIR_BENCH_MEASURE_H
#define WEIR_BENCH_MEASURE_H

#include <stdio.h>

enum measure_part { MEASURE_POOLS, MEASURE_HANDLES };
enum {
    MEASURE_EARLY = 8 /* first growths and handles of a process, measured one by one */
};

/* Measures one part on the device, and writes the figures to `to`.  Ends the process if a driver call fails. */
void measure_child(const char *device, enum measure_part part, FILE *to);

#endif
