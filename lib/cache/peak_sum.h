/* SPDX-License-Identifier: MIT */
/* peak_sum.h: a sum of bytes that knows the most it ever was.
 *
 * Locks: one thread at a time changes it, under a lock of its owner; any thread reads it without.
 */
#ifndef WEIR_PEAK_SUM_H
#define WEIR_PEAK_SUM_H

#include <stdatomic.h>
#include <stdint.h>

/* A sum with its peak.  It is stored as the peak and the peak minus the sum, so that additions and subtractions write
 * one word unless the peak rises. */
struct weir_peak_sum {
    _Atomic int64_t room; /* the peak minus the sum, never below 0 */
    _Atomic int64_t peak;
};

static inline __attribute__((always_inline)) void weir__sum_add(struct weir_peak_sum *sum,
                                                                int64_t bytes) {
    int64_t room = atomic_load_explicit(&sum->room, memory_order_relaxed) - bytes;

    if (__builtin_expect(room < 0, 0)) {
        /* The peak is written first, so that a reader sees no sum above it. */
        atomic_store_explicit(&sum->peak,
                              atomic_load_explicit(&sum->peak, memory_order_relaxed) - room,
                              memory_order_relaxed);
        room = 0;
    }
    atomic_store_explicit(&sum->room, room, memory_order_release);
}

static inline __attribute__((always_inline)) void weir__sum_sub(struct weir_peak_sum *sum,
                                                                int64_t bytes) {
    int64_t room = atomic_load_explicit(&sum->room, memory_order_relaxed) + bytes;

    atomic_store_explicit(&sum->room, room, memory_order_release);
}

/* Returns the sum as it is, or was a moment ago. */
static inline int64_t weir__sum_now(const struct weir_peak_sum *sum) {
    int64_t peak, room;

    do {
        peak = atomic_load_explicit(&sum->peak, memory_order_acquire);
        room = atomic_load_explicit(&sum->room, memory_order_acquire);
    } while (peak != atomic_load_explicit(&sum->peak, memory_order_relaxed));
    return peak - room;
}

/* Restarts the peak at the present sum, or at 0.  No other thread reads meanwhile. */
static inline void weir__sum_renew_peak(struct weir_peak_sum *sum) {
    int64_t now = atomic_load_explicit(&sum->peak, memory_order_relaxed) -
                  atomic_load_explicit(&sum->room, memory_order_relaxed);

    atomic_store_explicit(&sum->peak, now < 0 ? 0 : now, memory_order_relaxed);
    atomic_store_explicit(&sum->room, now < 0 ? -now : 0, memory_order_release);
}

#endif
