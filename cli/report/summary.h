/* SPDX-License-Identifier: MIT */
/* summary.h: warm-up and steady state of a series of iterations. Pure functions of numbers.
 *
 * Settled: at least 3 iterations follow the last one in which the reserved memory grew, was given back or
 * moved.  Steady is the median of those that follow; what comes before is warm-up.  A series that did
 * not settle is all warm-up, and the median of its second half stands in for steady.
 */
#ifndef WEIR_CLI_SUMMARY_H
#define WEIR_CLI_SUMMARY_H

#include <stddef.h>
#include <stdint.h>

struct iteration {
    uint64_t alloc_ns;  /* allocations and frees: their sum, or timed as a whole */
    uint64_t driver_ns; /* modelled devices */
    uint64_t own_ns;    /* modelled devices */
    uint64_t stall_ns;
    uint64_t growths;
    uint64_t growth_bytes;
    uint64_t given_back; /* times reserved memory was given back, or moved */
    uint64_t reserve_end;
    uint64_t makespan_ns; /* busy replays */
};

struct summary {
    int settled;
    uint64_t warm_up_iterations;
    size_t first_steady; /* iterations from here on count for steady; == count: there are none */
    uint64_t steady_alloc_ns;
    uint64_t steady_driver_ns;
    uint64_t steady_own_ns;
    uint64_t steady_makespan_ns;
};

/* 1, or 0: out of memory. */
int summarise(const struct iteration *iterations, size_t count, struct summary *out);

/* The median, of an even number the mean of the middle two; 0 of none.  Sorts `values`. */
uint64_t median(uint64_t *values, size_t count);

#endif
