/* SPDX-License-Identifier: MIT */
/* measure.h: what a process of bench/measure measures and sends to its parent.
 *
 * A figure is a line of text: a name and a value, in nanoseconds or as the profile has it.  A point of a curve has its
 * place behind a colon: "pool_grow_ns:8".
 */
#ifndef WEIR_BENCH_MEASURE_H
#define WEIR_BENCH_MEASURE_H

#include <stdio.h>

enum measure_part { MEASURE_POOLS, MEASURE_HANDLES };
enum {
    MEASURE_EARLY = 8 /* the first growths and handles of a process, which are noted one by one */
};

/* Measures one part on the device, and writes the figures to `to`.  Ends the process if a driver call fails. */
void measure_child(const char *device, enum measure_part part, FILE *to);

#endif
