/* SPDX-License-Identifier: MIT */
/* limit.h: the limit of reserved memory.
 *
 * The limit comes from the settings or the program.  It may be a share of the device among processes, or leave part of
 * the device free; then it changes with other processes, and weir__limit_refresh computes it again.  A limit that the
 * program has set is never exceeded, whatever is in use.
 *
 * Locks: `limiting' is held by the thread that writes the limit; nothing is called under it.
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
    uint64_t keep_free;     /* bytes of the device that growth leaves free; fixed */
    uint64_t apart;         /* bytes of the device that preallocated shares leave free; fixed */
    int follows;            /* set if the limit changes with other processes; fixed */
    /* The limit before shares and `keep_free' lower it: `most' is that of the settings, fixed, and `asked' that of the
     * program, at most `most'. */
    _Atomic uint64_t asked;
    uint64_t most;
    _Atomic uint64_t own; /* the limit before `keep_free' lowers it; used if `follows' is set */
    _Atomic uint64_t promised; /* reserved bytes that stay although a share becomes smaller */
    atomic_int no_share;       /* set once the program has set a limit instead of a share */
    struct weir_lock limiting;
};

/* Returns the bytes of a share: the part `weight' / `weights' of the device less `apart', or 0 if `weights' is 0. */
uint64_t weir__limit_part(const struct weir_device *device, uint64_t apart, uint64_t weight,
                          uint64_t weights);
/* Returns the weight of an allocator with these options, in millionths. */
uint64_t weir__limit_weight(const weir_options *options);
/* Returns 1 if the limit or the preallocation is a share, else 0. */
int weir__limit_has_share(const weir_options *options);
/* Returns 1 if the limit is a share now, else 0. */
int weir__limit_is_share(const struct weir_reserve *v);
/* Returns the sum of the weights of all processes on the device, with this process. */
uint64_t weir__limit_weights(const struct weir_reserve *v);
/* Returns the limit before `keep_free' lowers it. */
uint64_t weir__limit_own(const struct weir_limit *limit);

/* Sets the first limit, once the engine is open. */
void weir__limit_begin(struct weir_reserve *v, uint64_t bytes);
/* Computes a limit that follows other processes again, at least `in_use'.  Returns 1 if the limit has risen, else 0.
 * The caller holds no lock. */
int weir__limit_refresh_for(struct weir_reserve *v, uint64_t in_use);
/* Computes the limit again for a request, for which memory in caches counts as in use. */
int weir__limit_refresh(struct weir_reserve *v);
/* Sets the limit of the program. */
void weir__limit_set(struct weir_reserve *v, uint64_t bytes);
/* Lowers the floor of preallocated memory to a share that the preallocation or the limit is, but not below `promised'.
 * `weights' is the sum of the weights of all processes. */
void weir__limit_lower_floor(struct weir_reserve *v, uint64_t weights);

#endif
