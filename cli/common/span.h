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
 * Must not know: what is timed.
 */
#ifndef WEIR_CLI_SPAN_H
#define WEIR_CLI_SPAN_H

#include "base/thread.h"
#include "cli/common/stopwatch.h"
#include "driver/driver.h"

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
