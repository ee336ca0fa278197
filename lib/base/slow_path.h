/* SPDX-License-Identifier: MIT */
/* slow_path.h: one word that each request reads to find out whether the fast path is allowed.
 *
 * On the fast path, a per-stream cache alone handles a request.  Each bit is a reason to take the slow path. */
#ifndef WEIR_SLOW_PATH_H
#define WEIR_SLOW_PATH_H

#include <stdatomic.h>

enum {
    /* The per-stream caches are off, weir measures latencies, or hardening is on.  Constant. */
    WEIR_SLOW_PATH_ALWAYS = 1,
    WEIR_SLOW_PATH_LOST = 2,     /* a fault has made the device's context unusable */
    WEIR_SLOW_PATH_PREALLOC = 4, /* the first request has not preallocated memory yet */
    /* weir_use has recorded, for at least one live block, that another stream uses the block. */
    WEIR_SLOW_PATH_USES = 8,
    /* The program has an OOM callback for requests that fail.  Frees ignore this bit, which never changes. */
    WEIR_SLOW_PATH_OOM = 16
};

typedef _Atomic unsigned weir_slow_paths;

/* Returns 1 if the bit `reason` is set, else 0.  The caller then sees all writes made before the bit was changed. */
static inline int weir__slow_path_is(const weir_slow_paths *paths, unsigned reason) {
    return (atomic_load_explicit(paths, memory_order_acquire) & reason) != 0;
}

/* Sets the bit `reason`, or clears it if `is_set` is 0.  Returns 1 if the bit has changed, else 0. */
static inline int weir__slow_path_set(weir_slow_paths *paths, unsigned reason, int is_set) {
    unsigned before = is_set ? atomic_fetch_or_explicit(paths, reason, memory_order_acq_rel)
                             : atomic_fetch_and_explicit(paths, ~reason, memory_order_acq_rel);

    return ((before & reason) != 0) != (is_set != 0);
}

#endif
