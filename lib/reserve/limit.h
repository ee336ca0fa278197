/* SPDX-License-Identifier: MIT */
/* limit.h: the limit of reserved memory.
 *
 * The settings or the program set the limit.  The limit may be a share of the device among processes, or leave part of
 * the device free.  Such a limit changes with other processes, and weir__limit_refresh computes it again.  Reserved
 * memory never grows above a limit that the program has set, even if more is in use already.
 *
 * Locks: a thread holds `limiting' while it writes the limit, and calls nothing meanwhile.
 *
 * This file must not know any single engine, settings' names or the caller for memory.
 */
#ifndef WEIR_LIMIT_H
#define WEIR_LIMIT_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"
#include "driver/device.h"

struct weir_reserve;

struct weir_limit {
    _Atomic uint64_t bytes; /* the most reserved memory, or UINT64_MAX; engines read it */
    uint64_t keep_free;     /* the bytes of the device that growth leaves free; fixed */
    uint64_t apart;         /* the bytes that preallocated shares leave free; fixed */
    int follows;            /* set if the limit changes with other processes; fixed */
    /* Two limits before shares and `keep_free' lower them: `most' is the limit of the settings and is fixed; `asked' is
     * the limit of the program and is at most `most'. */
    _Atomic uint64_t asked;
    uint64_t most;
    _Atomic uint64_t own; /* the limit before `keep_free' lowers it; used if `follows' is set */
    _Atomic uint64_t promised; /* the reserved bytes that stay if a share becomes smaller */
    atomic_int no_share;       /* set once the program has set a limit instead of a share */
    struct weir_lock limiting;
};

/* Returns the bytes of a share: `weight' / `weights' of the device without `apart' bytes, or 0 if `weights' is 0. */
uint64_t weir__limit_part(const struct weir_device *device, uint64_t apart, uint64_t weight,
                          uint64_t weights);
/* Returns the weight of an allocator with these options, in millionths. */
uint64_t weir__limit_weight(const weir_options *options);
/* Returns 1 if the limit or the preallocation is a share, else 0. */
int weir__limit_has_share(const weir_options *options);
/* Returns 1 if the limit is a share now, else 0. */
int weir__limit_is_share(const struct weir_reserve *v);
/* Returns the sum of the weights of all processes on the device, including this process. */
uint64_t weir__limit_weights(const struct weir_reserve *v);
/* Returns the limit before `keep_free' lowers it. */
uint64_t weir__limit_own(const struct weir_limit *limit);

/* Sets the first limit, after the engine was opened. */
void weir__limit_begin(struct weir_reserve *v, uint64_t bytes);
/* Computes the limit again if the limit changes with other processes, but not below `in_use'.  Returns 1 if the limit
 * has risen, else 0.  The caller holds no lock. */
int weir__limit_refresh_for(struct weir_reserve *v, uint64_t in_use);
/* Computes the limit again for a request.  Memory in caches counts as in use. */
int weir__limit_refresh(struct weir_reserve *v);
/* Sets the limit of the program. */
void weir__limit_set(struct weir_reserve *v, uint64_t bytes);
/* Lowers the floor of preallocated memory if the preallocation or the limit is a share, to the size of the share, but
 * not below `promised'.  `weights' is the sum of the weights of all processes. */
void weir__limit_lower_floor(struct weir_reserve *v, uint64_t weights);

#endif
