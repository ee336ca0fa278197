/* SPDX-License-Identifier: MIT */
/* span.h: measures the time that calls take.
 *
 * A span is the part of a thread's work between span_begin() and span_end().  On a real device, its length is real
 * time, without the time in which the thread waited for a processor.  On the device model, its length is the virtual
 * time of the driver calls plus the real time that the thread spent outside the model.  The model sums virtual time
 * over the whole process.  Therefore only one thread may call the driver during a span, and only through a driver table
 * that counts the calls.
 *
 * A stopwatch reads the processor's time stamp counter, fenced on both sides, if the counter has a constant rate.
 * Otherwise it reads CLOCK_MONOTONIC.  The clock of the driver table (driver.h) is no alternative: it is virtual on the
 * model, and not fenced on a device.
 */
#ifndef WEIR_CLI_SPAN_H
#define WEIR_CLI_SPAN_H

#include <stdint.h>
#include <time.h>

#include "base/thread.h"
#include "driver/driver.h"

struct stopwatch {
    int counter;          /* set if ticks are those of the time stamp counter, 0 if nanoseconds */
    uint64_t ns_per_tick; /* a 32.32 fixed-point number */
    uint64_t cost;        /* the ticks between two reads without work between the reads */
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
    uint64_t driver_ns; /* on the model: the virtual time of the driver calls in the span */
    uint64_t own_ns;    /* on the model: the real time that the thread spent outside the model */
};

struct span_clock {
    struct stopwatch watch;
    /* The driver table of the device model, or NULL on a real device. */
    const struct weir_driver *driver;
    /* The real time, in picoseconds, that the device model needs to count one driver call. */
    uint64_t call_cost_ps;
};

/* The state of a thread between two spans (pieces of measured time). */
struct span_thread {
    struct weir_waits waits;
    uint64_t last_ticks; /* when the last span of the thread ended */
};
extern _Thread_local struct span_thread span_thread;

struct span_start {
    struct weir_driver_charge charge;
    uint64_t calls;
    uint64_t ticks;
};

/* Initialises the clock.  `counted' is a driver table that counts the calls of `driver'.  Returns CUDA_SUCCESS, or the
 * error of a driver call. */
CUresult span_clock_make(struct span_clock *clock, const struct weir_driver *driver,
                         const struct weir_driver *counted);

/* Measures clock->call_cost_ps again, because the cost changes with the speed of the processor.  Takes a few hundred
 * microseconds on the device model.  Does nothing on a real device. */
CUresult span_clock_adjust(struct span_clock *clock, const struct weir_driver *counted);

/* Returns the number of counted driver calls that this process has made. */
uint64_t span_driver_calls(void);

static inline void span_begin(const struct span_clock *clock, struct span_start *start) {
    /* Discards the time that this thread spent waiting for a processor before the span. */
    (void)weir__thread_waits_in(
        &span_thread.waits,
        stopwatch_span(&clock->watch, span_thread.last_ticks, stopwatch_read(&clock->watch)));
    if (clock->driver) {
        start->calls = span_driver_calls();
        clock->driver->charge(&start->charge);
    }
    start->ticks = stopwatch_read(&clock->watch);
}

/* Splits a span on the device model into the virtual time of driver calls and the real time of other code. */
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
