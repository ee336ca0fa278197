/* SPDX-License-Identifier: MIT */
/* striped_counter.h: counters that every call raises, without a locked instruction.
 *
 * Each of the first WEIR_STRIPED_STRIPES threads of the process that counts anything owns one stripe of
 * every tally: it alone writes there, so that raising a counter is a load and a store.  Threads after
 * those share one more stripe, by atomic addition.  (A locked addition costs 5 to 12 ns; a request
 * that the driver serves from its pool has some 60 to spare.)  Numbers are not reused: what a thread
 * counted stays when it ends.
 *
 * Must not know: what is counted.
 */
#ifndef WEIR_STRIPED_COUNTER_H
#define WEIR_STRIPED_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/tls.h"

enum {
    WEIR_STRIPED_ALLOCS, /* without caches */
    WEIR_STRIPED_FREES,  /* those that a caches' cell counts left out */
    WEIR_STRIPED_CACHES_YOUNG,
    WEIR_STRIPED_CACHES_EMPTY,
    WEIR_STRIPED_CACHES_CAPTURE,
    WEIR_STRIPED_CACHES_DEFERRED,
    WEIR_STRIPED_COUNTERS
};
enum { WEIR_STRIPED_STRIPES = 64 };

/* A cache line; the last stripe is the shared one. */
struct weir_striped {
    struct {
        _Alignas(64) _Atomic uint64_t counter[WEIR_STRIPED_COUNTERS];
    } stripe[WEIR_STRIPED_STRIPES + 1];
};

/* This thread's stripe plus one; 0 before its first count.  Initial-exec: one instruction to read,
 * four bytes of the space that the C library keeps for libraries loaded late. */
extern _Thread_local unsigned weir__striped_thread WEIR_FAST_TLS;
unsigned weir__striped_enlist(void); /* gives this thread its stripe; the same value plus one */

/* Raises a counter by one; what the thread did before is visible to the thread that sums it up. */
static inline void weir__striped_add(struct weir_striped *striped, int counter) {
    unsigned number = weir__striped_thread ? weir__striped_thread : weir__striped_enlist();
    _Atomic uint64_t *mine = &striped->stripe[number - 1].counter[counter];

    if (number <= WEIR_STRIPED_STRIPES)
        atomic_store_explicit(mine, atomic_load_explicit(mine, memory_order_relaxed) + 1,
                              memory_order_release);
    else
        atomic_fetch_add_explicit(mine, 1, memory_order_release);
}

/* The counter's value; exact when no call is under way. */
uint64_t weir__striped_sum(const struct weir_striped *striped, int counter);

#endif
