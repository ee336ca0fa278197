/* SPDX-License-Identifier: MIT */
/* span.h: measures the time that calls take.
 *
 * A span is a stretch of a thread's work that is measured.  On a real device, the length of a span is real time,
 * without the time in which the thread waited for a processor.  A driver call that blocks counts in full.  On the
 * device model, the length is the virtual time of the driver calls plus the real time that the thread spent outside
 * the model.  The model sums virtual time over the whole process.  So during a span only one thread may call the
 * driver, and only through the table whose calls are counted.
 *
 * A stopwatch reads the processor's time stamp counter if the counter has a constant rate.  Each read is fenced on
 * both sides.  Otherwise the stopwatch reads CLOCK_MONOTONIC.  The clock of the driver table (driver.h) would not
 * do: it is virtual on the model, and not fenced on a device.
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
    /* Set if the ticks are those of the time stamp counter; otherwise a tick is a nanosecond. */
    int counter;
    /* The length of a tick in nanoseconds, as a 32.32 fixed-point number. */
    uint64_t ns_per_tick;
    /* The number of ticks between two reads without work between them. */
    uint64_t cost;
};

/* Initialises the stopwatch: measures the rate of its ticks and the cost of a read.  Takes about 20 ms. */
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

/* Returns the time between two reads in nanoseconds, without the cost of a read. */
static inline uint64_t stopwatch_span(const struct stopwatch *watch, uint64_t from, uint64_t to) {
    uint64_t ticks = to - from;

    return ticks > watch->cost ? stopwatch_ns(watch, ticks - watch->cost) : 0;
}

struct span {
    uint64_t ns;        /* the length of the span */
    uint64_t driver_ns; /* the virtual time of the driver calls in the span */
    uint64_t own_ns;    /* the real time that the thread spent outside the model */
};

struct span_clock {
    struct stopwatch watch;
    /* The driver table of the device model, or NULL on a real device. */
    const struct weir_driver *driver;
    /* The real time that a driver call spends on counting itself, in picoseconds. */
    uint64_t call_cost_ps;
};

/* A thread's state between two spans. */
struct span_thread {
    struct weir_waits waits;
    uint64_t last_ticks; /* the time at which the last span of the thread ended */
};
extern _Thread_local struct span_thread span_thread;

struct span_start {
    struct weir_driver_charge charge;
    uint64_t calls;
    uint64_t ticks;
};

/* Initialises the clock.  `counted' is the driver's table whose calls are counted.  Returns CUDA_SUCCESS, or the
 * error of a driver call. */
CUresult span_clock_make(struct span_clock *clock, const struct weir_driver *driver,
                         const struct weir_driver *counted);

/* Measures call_cost_ps again, because the cost changes with the speed of the processor.  Takes a few hundred
 * microseconds on the device model.  Does nothing on a real device. */
CUresult span_clock_adjust(struct span_clock *clock, const struct weir_driver *counted);

/* Returns the number of counted driver calls that this process has made. */
uint64_t span_driver_calls(void);

static inline void span_begin(const struct span_clock *clock, struct span_start *start) {
    /* Discards the waits for a processor since the last span, because they are not part of the new span. */
    (void)weir__thread_waits_in(
        &span_thread.waits,
        stopwatch_span(&clock->watch, span_thread.last_ticks, stopwatch_read(&clock->watch)));
    if (clock->driver) {
        start->calls = span_driver_calls();
        clock->driver->charge(&start->charge);
    }
    start->ticks = stopwatch_read(&clock->watch);
}

/* Splits the length of a span into virtual time and real time.  Must be called only on the device model. */
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
