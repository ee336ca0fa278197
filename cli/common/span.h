/* SPDX-License-Identifier: MIT */
/* span.h: the time that calls take.
 *
 * On a device a span is real time, without waits for a processor; a driver call that blocks counts.  On a modelled
 * device a span is the virtual time of its driver calls plus the real time outside the model.  The model has one
 * account for the process, so only one thread may make driver calls there during a span, all through the counted
 * table.
 *
 * A stopwatch reads the time stamp counter if its rate is constant, fenced on both sides, else CLOCK_MONOTONIC.  The
 * clock of the driver table (driver.h) is virtual on the model, and not fenced on a device.
 *
 * This file must not know the calls that are timed.
 */
#ifndef WEIR_CLI_SPAN_H
#define WEIR_CLI_SPAN_H

#include <stdint.h>
#include <time.h>

#include "base/thread.h"
#include "driver/driver.h"

struct stopwatch {
    int counter; /* set if ticks are of the time stamp counter; else they are nanoseconds */
    uint64_t ns_per_tick; /* 32.32 fixed point */
    uint64_t cost;        /* ticks between two reads in a row */
};

/* Measures the rate and the cost of the stopwatch, which takes about 20 ms. */
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

/* Returns the nanoseconds from one read to another, without the stopwatch's cost. */
static inline uint64_t stopwatch_span(const struct stopwatch *watch, uint64_t from, uint64_t to) {
    uint64_t ticks = to - from;

    return ticks > watch->cost ? stopwatch_ns(watch, ticks - watch->cost) : 0;
}

struct span {
    uint64_t ns;        /* the whole span */
    uint64_t driver_ns; /* the virtual time of the driver calls in the span */
    uint64_t own_ns;    /* the real time outside the model */
};

struct span_clock {
    struct stopwatch watch;
    const struct weir_driver *driver; /* the driver of a modelled device, else NULL */
    uint64_t call_cost_ps; /* the part of a driver call's real time that the model does not count */
};

/* The state of a thread between its spans. */
struct span_thread {
    struct weir_waits waits;
    uint64_t last_ticks; /* the end of the thread's last span */
};
extern _Thread_local struct span_thread span_thread;

struct span_start {
    struct weir_driver_charge charge;
    uint64_t calls;
    uint64_t ticks;
};

/* Makes a clock.  `counted' is the driver's counted table.  Returns CUDA_SUCCESS, or the error of a driver call. */
CUresult span_clock_make(struct span_clock *clock, const struct weir_driver *driver,
                         const struct weir_driver *counted);

/* Measures call_cost_ps again, which changes with the processor's speed.  Takes a few hundred microseconds on a
 * modelled device, and does nothing on others. */
CUresult span_clock_adjust(struct span_clock *clock, const struct weir_driver *counted);

/* Returns the number of all driver calls so far. */
uint64_t span_driver_calls(void);

static inline void span_begin(const struct span_clock *clock, struct span_start *start) {
    /* A wait since the last span does not belong to the new span. */
    (void)weir__thread_waits_in(
        &span_thread.waits,
        stopwatch_span(&clock->watch, span_thread.last_ticks, stopwatch_read(&clock->watch)));
    if (clock->driver) {
        start->calls = span_driver_calls();
        clock->driver->charge(&start->charge);
    }
    start->ticks = stopwatch_read(&clock->watch);
}

/* Divides the duration of a span into virtual and real time, on a modelled device. */
void span_split(const struct span_clock *clock, const struct span_start *start, struct span *span);

static inline void span_end(const struct span_clock *clock, const struct span_start *start,
                            struct span *span) {
    uint64_t ticks = stopwatch_read(&clock->watch);

    span->ns = stopwatch_span(&clock->watch, start->ticks, ticks);
    span->ns -= weir__thread_waits_in(&span_thread.waits, span->ns);
    span_thread.last_ticks = ticks;
    if (clock->driver)
        span_split(clock, start, span);
}

#endif
