/* SPDX-License-Identifier: MIT */
/* span.h: what calls took: real time on a device; on a modelled one, virtual and own time apart.
 *
 * What the thread waited for a processor is no part of a span: a preemption is not the allocator's.  A driver call that
 * blocks counts.
 *
 * On a modelled device a span is the virtual time that its driver calls were charged (driver_ns) and
 * the real time spent outside the model (own_ns), without what the model's measuring of itself costs;
 * `ns` is the sum.  The driver's account is one for the process, so a span on the model means
 * something while one thread alone makes driver calls, and only calls through the counted table.
 *
 * Below a span is a stopwatch: real time around single calls, with its own cost known.
 * The time stamp counter where the processor says that its rate is constant, fenced on both sides so
 * that no instruction of the timed call moves out of the span; else CLOCK_MONOTONIC.  Two reads in a
 * row differ by `cost` ticks; the code that reports a span takes that off.
 *
 * The driver table's clock (driver.h) is no substitute: on the device model it is virtual, and on a
 * device it is not fenced.
 *
 * Must not know: what is timed.
 */
#ifndef WEIR_CLI_SPAN_H
#define WEIR_CLI_SPAN_H

#include <stdint.h>
#include <time.h>

#include "base/thread.h"
#include "driver/driver.h"

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

struct span {
    uint64_t ns; /* all of it */
    uint64_t driver_ns;
    uint64_t own_ns;
};

struct span_clock {
    struct stopwatch watch;
    const struct weir_driver *driver; /* a modelled one, else NULL */
    uint64_t call_cost_ps;            /* real time of a driver call that the model misses */
};

/* What a thread notes between its spans. */
struct span_thread {
    struct weir_waits waits;
    uint64_t last_ticks; /* the end of its last span */
};
extern _Thread_local struct span_thread span_thread;

struct span_start {
    struct weir_driver_charge charge;
    uint64_t calls;
    uint64_t ticks;
};

/* `counted` is the driver's counted table.  CUDA_SUCCESS, or what a driver call answered. */
CUresult span_clock_make(struct span_clock *clock, const struct weir_driver *driver,
                         const struct weir_driver *counted);

/* Measures again what the model misses of a call: it follows the processor's speed.  A few hundred
 * microseconds on a modelled device, nothing elsewhere. */
CUresult span_clock_adjust(struct span_clock *clock, const struct weir_driver *counted);

/* Calls of all entries so far. */
uint64_t span_driver_calls(void);

static inline void span_begin(const struct span_clock *clock, struct span_start *start) {
    /* Waits since the last span are not part of this one. */
    (void)weir__thread_waits_in(
        &span_thread.waits,
        stopwatch_span(&clock->watch, span_thread.last_ticks, stopwatch_read(&clock->watch)));
    if (clock->driver) {
        start->calls = span_driver_calls();
        clock->driver->charge(&start->charge);
    }
    start->ticks = stopwatch_read(&clock->watch);
}

void span_split(const struct span_clock *clock, const struct span_start *start, struct span *span);

static inline void span_end(const struct span_clock *clock, const struct span_start *start,
                            struct span *span) {
    uint64_t ticks = stopwatch_read(&clock->watch);

    span->ns = stopwatch_span(&clock->watch, start->ticks, ticks);
    span->ns -= weir__thread_waits_in(&span_thread.waits, span->ns);
    span_thread.last_ticks = ticks;
    if (clock->driver)
        span_split(clock, start, span); /* on the model */
}

#endif
