/* SPDX-License-Identifier: MIT */
/* striped_counter.c: stripes of threads, and sums over them. */
#include "base/striped_counter.h"

_Thread_local unsigned weir__striped_thread WEIR_FAST_TLS;

unsigned weir__striped_enlist(void) {
    static _Atomic unsigned threads; /* the number of threads that have a stripe so far */
    unsigned before = atomic_load_explicit(&threads, memory_order_relaxed);

    /* Stops at the shared stripe, so that the number cannot wrap round. */
    while (before < WEIR_STRIPED_STRIPES &&
           /* unreached: another thread gets a stripe at that moment */
           !atomic_compare_exchange_weak_explicit(&threads, &before, before + 1,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
    weir__striped_thread = before + 1;
    return weir__striped_thread;
}

uint64_t weir__striped_sum(const struct weir_striped *striped, int counter) {
    uint64_t sum = 0;

    for (int i = 0; i <= WEIR_STRIPED_STRIPES; i++)
        sum += atomic_load_explicit(&striped->stripe[i].counter[counter], memory_order_acquire);
    return sum;
}
