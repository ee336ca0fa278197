/* SPDX-License-Identifier: MIT */
/* slow_path.h: one word with a bit for each reason why requests cannot go straight to the caches.  A request reads only
 * this word to know whether it takes the slow path.
 *
 * This file must not know the slow path.
 */
#ifndef WEIR_SLOW_PATH_H
#define WEIR_SLOW_PATH_H

#include <stdatomic.h>

enum {
    /* The caches are off, or weir measures latency, or hardening is on.  The bit does not change after the allocator's
     * creation. */
    WEIR_SLOW_PATH_ALWAYS = 1,
    WEIR_SLOW_PATH_LOST = 2,     /* a fault left the context unusable */
    WEIR_SLOW_PATH_PREALLOC = 4, /* the first request will preallocate */
    WEIR_SLOW_PATH_USES = 8,     /* weir_use has noted another stream for some live block */
    /* weir calls a callback when a request fails.  Frees ignore this bit.  The bit does not change after the
     * allocator's creation. */
    WEIR_SLOW_PATH_OOM = 16
};

typedef _Atomic unsigned weir_slow_paths;

/* Returns 1 if the bit `reason` is set, else 0.  The caller then sees all writes before the bit's change. */
static inline int weir__slow_path_is(const weir_slow_paths *paths, unsigned reason) {
    return (atomic_load_explicit(paths, memory_order_acquire) & reason) != 0;
}

/* Sets the bit `reason`, or clears the bit if `is_set` is 0.  Returns 1 if the call changed the bit, else 0. */
static inline int weir__slow_path_set(weir_slow_paths *paths, unsigned reason, int is_set) {
    unsigned before = is_set ? atomic_fetch_or_explicit(paths, reason, memory_order_acq_rel)
                             : atomic_fetch_and_explicit(paths, ~reason, memory_order_acq_rel);

    return ((before & reason) != 0) != (is_set != 0);
}

#endif
