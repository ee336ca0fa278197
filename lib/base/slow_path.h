/* SPDX-License-Identifier: MIT */
/* slow_path.h: why requests cannot go straight to the caches: one word that every request reads, in place
 * of one for each reason.
 *
 * Must not know: what is done on the way round.
 */
#ifndef WEIR_SLOW_PATH_H
#define WEIR_SLOW_PATH_H

#include <stdatomic.h>

enum {
    WEIR_SLOW_PATH_ALWAYS =
        1,                   /* there is no front, or latency is measured, or hardening is on; fixed
                               * after create */
    WEIR_SLOW_PATH_LOST = 2, /* a fault left the context unusable */
    WEIR_SLOW_PATH_PREALLOC = 4, /* preallocation is still to be done, at the first request */
    WEIR_SLOW_PATH_USES = 8,     /* some block has noted streams */
    WEIR_SLOW_PATH_SHARED = 32,  /* some block is shared with another process */
    WEIR_SLOW_PATH_OOM =
        16 /* a callback is asked when a request fails: no concern of frees; fixed */
};

typedef _Atomic unsigned weir_slow_paths;

/* 1 if there is that reason; what was written before it came or went is seen. */
static inline int weir__slow_path_is(const weir_slow_paths *paths, unsigned reason) {
    return (atomic_load_explicit(paths, memory_order_acquire) & reason) != 0;
}

/* A reason comes, or goes.  1 if it did not stand as it does now. */
static inline int weir__slow_path_set(weir_slow_paths *paths, unsigned reason, int stands) {
    unsigned before = stands ? atomic_fetch_or_explicit(paths, reason, memory_order_acq_rel)
                             : atomic_fetch_and_explicit(paths, ~reason, memory_order_acq_rel);

    return ((before & reason) != 0) != (stands != 0);
}

#endif
