/* SPDX-License-Identifier: MIT */
/* striped_counter.h: counters that every call raises, without a locked instruction.
 *
 * Each of the first WEIR_STRIPED_STRIPES threads that count anything owns one stripe of every counter.  Only that
 * thread writes the stripe, so it counts by a load and a store.  All later threads share one more stripe, by atomic
 * addition.  (A locked addition costs 5 to 12 ns; a request that the driver serves from its pool costs about 60.)
 * Stripes are not used again, so the counts of a thread stay when it ends.
 *
 * This file must not know the meaning of the counters.
 */
#ifndef WEIR_STRIPED_COUNTER_H
#define WEIR_STRIPED_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/tls.h"

enum {
    WEIR_STRIPED_ALLOCS, /* counted without caches only */
    WEIR_STRIPED_FREES,  /* frees that no cache counts itself */
    WEIR_STRIPED_CACHES_YOUNG,
    WEIR_STRIPED_CACHES_EMPTY,
    WEIR_STRIPED_CACHES_CAPTURE,
    WEIR_STRIPED_CACHES_DEFERRED,
    WEIR_STRIPED_COUNTERS
};
enum { WEIR_STRIPED_STRIPES = 64 };

/* The counters of one stripe fill a cache line.  The last stripe is the shared one. */
struct weir_striped {
    struct {
        _Alignas(64) _Atomic uint64_t counter[WEIR_STRIPED_COUNTERS];
    } stripe[WEIR_STRIPED_STRIPES + 1];
};

/* The number of this thread's stripe plus one, or 0 before its first count.  It is read by one instruction
 * (initial-exec), and needs four bytes of the space that the C library reserves for libraries that are loaded late. */
extern _Thread_local unsigned weir__striped_thread WEIR_FAST_TLS;
unsigned weir__striped_enlist(void); /* gives this thread a stripe; returns its number plus one */

/* Raises a counter by one.  A thread that sums the counter up then sees all earlier writes of this thread. */
static inline void weir__striped_add(struct weir_striped *striped, int counter) {
    unsigned number = weir__striped_thread ? weir__striped_thread : weir__striped_enlist();
    _Atomic uint64_t *mine = &striped->stripe[number - 1].counter[counter];

    if (number <= WEIR_STRIPED_STRIPES)
        atomic_store_explicit(mine, atomic_load_explicit(mine, memory_order_relaxed) + 1,
                              memory_order_release);
    else
        atomic_fetch_add_explicit(mine, 1, memory_order_release);
}

/* Returns the counter's value, which is exact if no call is under way. */
uint64_t weir__striped_sum(const struct weir_striped *striped, int counter);

#endif
