/* SPDX-License-Identifier: MIT */
/* span.c: see span.h. */
#include "cli/common/span.h"

#include <stdlib.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static int compare_spans(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Returns the time of a read of the stopwatch, as the mean of the middle half of many measurements.  A median would be
 * too coarse, because under a hypervisor the counter may advance in steps of ten nanoseconds. */
static uint64_t measure_cost(const struct stopwatch *watch) {
    enum { READS = 8000 };
    static uint64_t spans[READS];
    uint64_t sum = 0;

    for (int i = 0; i < READS; i++) {
        uint64_t from = stopwatch_read(watch);

        spans[i] = stopwatch_read(watch) - from;
    }
    qsort(spans, READS, sizeof spans[0], compare_spans);
    for (int i = READS / 4; i < READS - READS / 4; i++)
        sum += spans[i];
    return sum / (READS / 2);
}

#if defined(__x86_64__)
/* Returns 1 if the time stamp counter has the same rate in every power state (CPUID 0x80000007, EDX bit 8), else 0. */
static int rate_is_constant(void) {
    unsigned a, b, c, d;

    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d & (1u << 8));
}

/* Measures the rate of the time stamp counter against CLOCK_MONOTONIC, over 20 ms. */
static void measure_rate(struct stopwatch *watch) {
    const struct timespec pause = {0, 20000000};
    const struct stopwatch clock = {0, UINT64_C(1) << 32, 0};
    uint64_t ns = stopwatch_read(&clock), ticks = stopwatch_read(watch);

    nanosleep(&pause, NULL);
    ns = stopwatch_read(&clock) - ns;
    ticks = stopwatch_read(watch) - ticks;
    /* A counter with a rate below 100 MHz or above 100 GHz is emulated by a hypervisor, and must not be used. */
    if (ticks < ns / 10 || ticks / 100 > ns)
        watch->counter = 0;
    else
        watch->ns_per_tick = (uint64_t)((double)ns / (double)ticks * 4294967296.0);
}
#endif

void stopwatch_make(struct stopwatch *watch) {
    *watch = (struct stopwatch){0, UINT64_C(1) << 32, 0};
#if defined(__x86_64__)
    watch->counter = rate_is_constant();
    if (watch->counter)
        measure_rate(watch);
#endif
    watch->cost = measure_cost(watch);
}

_Thread_local struct span_thread span_thread;

uint64_t span_driver_calls(void) {
    uint64_t counts[WEIR_ENTRY_COUNT], sum = 0;

    weir__driver_counts(counts);
    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        sum += counts[i];
    return sum;
}

void span_split(const struct span_clock *clock, const struct span_start *start, struct span *span) {
    struct weir_driver_charge charge;
    uint64_t inside;

    clock->driver->charge(&charge);
    inside = charge.host_ns - start->charge.host_ns +
             (span_driver_calls() - start->calls) * clock->call_cost_ps / 1000;
    span->driver_ns = charge.driver_ns - start->charge.driver_ns;
    span->own_ns = span->ns > inside ? span->ns - inside : 0;
    span->ns = span->driver_ns + span->own_ns;
}

CUresult span_clock_adjust(struct span_clock *clock, const struct weir_driver *counted) {
    enum { CALLS = 200, ROUNDS = 20 };
    struct span span = {0, 0, 0};
    uint64_t least = UINT64_MAX;
    struct span_start start;
    CUcontext context;
    CUresult result = CUDA_SUCCESS;

    if (!clock->driver)
        return CUDA_SUCCESS;
    clock->call_cost_ps = 0;
    /* Uses the shortest round, because other programs can only make a round longer. */
    for (int round = 0; round < ROUNDS && result == CUDA_SUCCESS; round++) {
        span_begin(clock, &start);
        for (int i = 0; i < CALLS && result == CUDA_SUCCESS; i++)
            result = counted->cuCtxGetCurrent(&context);
        span_end(clock, &start, &span);
        if (span.own_ns < least)
            least = span.own_ns;
    }
    clock->call_cost_ps = least * 1000 / CALLS;
    return result;
}

CUresult span_clock_make(struct span_clock *clock, const struct weir_driver *driver,
                         const struct weir_driver *counted) {
    stopwatch_make(&clock->watch);
    clock->driver = driver->charge ? driver : NULL;
    clock->call_cost_ps = 0;
    return span_clock_adjust(clock, counted);
}
