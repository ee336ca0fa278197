/* SPDX-License-Identifier: MIT */
/* span.c: see span.h. */
#include "cli/common/span.h"

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

/* A modelled call costs a little real time that the model does not see: what it takes to measure
 * itself, and to count the call.  That belongs to nobody who calls. */
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
    /* The least of all rounds: nothing but an interruption makes one longer. */
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
