/* SPDX-License-Identifier: MIT */
/* limit.h: the limit of reserved memory.
 *
 * The settings or the program set the limit.  The limit may be a share of the device among processes, or may leave
 * part of the device free.  Such a limit depends on the memory of other processes, so weir__limit_refresh computes
 * the limit again from time to time.  Reserved memory never grows above a limit that the program has set, even if
 * more is already in use.
 *
 * Locks: a thread holds `limiting' while it writes the limit, and calls nothing meanwhile.
 *
 * This file must not depend on a particular engine, on names of settings or on the public API.
 */
#ifndef WEIR_LIMIT_H
#define WEIR_LIMIT_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"
#include "driver/device.h"

struct weir_reserve;

struct weir_limit {
    /* The largest reserved memory, or UINT64_MAX for no limit; engines read it. */
    _Atomic uint64_t bytes;
    uint64_t keep_free; /* the bytes of the device that growth leaves free; constant */
    /* The bytes of the device that preallocated shares leave free; constant. */
    uint64_t apart;
    int follows; /* 1 if the limit depends on other processes; constant */
    /* Two limits before a share or `keep_free' lowers them.  `most' is the limit of the settings and is constant.
     * `asked' is the limit that the program has set, and is at most `most'. */
    _Atomic uint64_t asked;
    uint64_t most;
    /* The limit before `keep_free' lowers it.  Used only if `follows' is set. */
    _Atomic uint64_t own;
    /* The reserved bytes of the preallocation that stay even if the share becomes smaller. */
    _Atomic uint64_t promised;
    atomic_int no_share; /* set once the program has replaced the share by a limit in bytes */
    struct weir_lock limiting;
};

/* Returns the bytes of a share: the device's memory without `apart' bytes, times `weight' / `weights'.  Returns 0 if
 * `weights' is 0. */
uint64_t weir__limit_part(const struct weir_device *device, uint64_t apart, uint64_t weight,
                          uint64_t weights);
/* Returns the weight of an allocator's share with these options, in millionths. */
uint64_t weir__limit_weight(const weir_options *options);
/* Returns 1 if the limit or the preallocation is a share of the device, else 0. */
int weir__limit_has_share(const weir_options *options);
/* Returns 1 if the current limit is a share of the device, else 0. */
int weir__limit_is_share(const struct weir_reserve *v);
/* Returns the sum of the weights of all processes on the device, including this process. */
uint64_t weir__limit_weights(const struct weir_reserve *v);
/* Returns the limit of the allocator before `keep_free' lowers it. */
uint64_t weir__limit_own(const struct weir_limit *limit);

/* Sets the first limit, after weir has opened the engine. */
void weir__limit_begin(struct weir_reserve *v, uint64_t bytes);
/* Computes the limit again if it depends on other processes.  The new limit is at least `in_use'.  Returns 1 if the
 * limit has risen, else 0.  The caller holds no lock. */
int weir__limit_refresh_for(struct weir_reserve *v, uint64_t in_use);
/* Computes the limit again as weir__limit_refresh_for does, with the engine's current bytes in use.  Memory in
 * per-stream caches counts as in use. */
int weir__limit_refresh(struct weir_reserve *v);
/* Sets the limit that the program requests, and ends a share. */
void weir__limit_set(struct weir_reserve *v, uint64_t bytes);
/* Lowers the floor of the preallocated memory to the size of the share, if the preallocation or the limit is a
 * share.  The floor does not fall below `promised'.  `weights' is the sum of the weights of all processes. */
void weir__limit_lower_floor(struct weir_reserve *v, uint64_t weights);

#endif
