/* SPDX-License-Identifier: MIT */
/* stopwatch.h: real time around single calls, with its own cost known.
 *
 * The time stamp counter where the processor says that its rate is constant, fenced on both sides so
 * that no instruction of the timed call moves out of the span; else CLOCK_MONOTONIC.  Two reads in a
 * row differ by `cost` ticks; the code that reports a span takes that off.
 *
 * The driver table's clock (driver.h) is no substitute: on the device model it is virtual, and on a
 * device it is not fenced.
 */
#ifndef WEIR_CLI_STOPWATCH_H
#define WEIR_CLI_STOPWATCH_H

#include <stdint.h>
#include <time.h>

struct stopwatch {
    int counter;          /* ticks are of the time stamp counter, else nanoseconds */
    uint64_t ns_per_tick; /* 32.32 fixed point */
    uint64_t cost;        /* ticks between two reads in a row */
};

/* Takes about 20 ms. */
void stopwatch_make(struct stopwatch *watch);

static inline uint64_t stopwatch_read(const struct stopwatch *watch) {
    struct timespec now;

#if defined(__x86_64__)
    if (watch->counter) {
        uint64_t ticks;

        __builtin_ia32_lfence();
        ticks = __builtin_ia32_rdtsc();
        __builtin_ia32_lfence();
        return ticks;
    }
#endif
    (void)watch;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t stopwatch_ns(const struct stopwatch *watch, uint64_t ticks) {
    uint64_t whole = watch->ns_per_tick >> 32, part = watch->ns_per_tick & 0xffffffffu;

    return ticks * whole + (ticks >> 32) * part + (((ticks & 0xffffffffu) * part) >> 32);
}

/* The span from one read to another without the stopwatch's cost. */
static inline uint64_t stopwatch_span(const struct stopwatch *watch, uint64_t from, uint64_t to) {
    uint64_t ticks = to - from;

    return ticks > watch->cost ? stopwatch_ns(watch, ticks - watch->cost) : 0;
}

#endif
