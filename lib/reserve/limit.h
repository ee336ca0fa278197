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
    /* The largest number of bytes that may be reserved, or UINT64_MAX for no limit.  Engines read it before they grow.
     * */
    _Atomic uint64_t bytes;
    /* the bytes of the device that growth must leave free (--keep-free); constant */
    uint64_t keep_free;
    /* The bytes of the device that the processes' shares (--limit share) leave free for other programs; constant. */
    uint64_t share_margin;
    /* Constant.  1 if the limit depends on the memory of other processes; weir then computes the limit again from
     * time to time. */
    int is_dynamic;
    /* The limits before a share of the device or `keep_free' lowers them.  `by_settings' comes from the settings and is
     * constant.  `by_program' is the limit that the program has set, and is at most `by_settings'. */
    _Atomic uint64_t by_program;
    uint64_t by_settings;
    /* The limit before `keep_free' lowers it.  Used only if the limit depends on other processes. */
    _Atomic uint64_t before_keep_free;
    /* The preallocated bytes that the process keeps even if its share of the device (--limit share) becomes smaller.
     * */
    _Atomic uint64_t least_floor;
    /* set once the program has set a limit in bytes, which replaces the process's share of the device */
    atomic_int no_share;
    struct weir_lock limiting;
};

/* Returns the bytes of a process's share of the device.  The share is the device's memory without `share_margin' bytes, times
 * `weight' / `weights'.  Returns 0 if `weights' is 0. */
uint64_t weir__limit_part(const struct weir_device *device, uint64_t share_margin, uint64_t weight,
                          uint64_t weights);
/* Returns the weight that the settings give to this process's share of the device, in millionths. */
uint64_t weir__limit_weight(const weir_options *options);
/* Returns 1 if the settings define the limit or the preallocation as a share of the device among processes, else 0. */
int weir__limit_has_share(const weir_options *options);
/* Returns 1 if the current limit is a share of the device among processes, else 0. */
int weir__limit_is_share(const struct weir_reserve *v);
/* Returns the sum of the weights of all processes with a share of the device, including this process. */
uint64_t weir__limit_weights(const struct weir_reserve *v);
/* Returns the limit of the allocator before --keep-free, the memory to leave free on the device, lowers it. */
uint64_t weir__limit_own(const struct weir_limit *limit);

/* Sets the first limit of an allocator, after its engine was opened. */
void weir__limit_begin(struct weir_reserve *v, uint64_t bytes);
/* Computes the limit again if it depends on the memory of other processes.  The new limit is never below `in_use'.
 * Returns 1 if the limit has risen, else 0.  The caller holds no lock. */
int weir__limit_refresh_for(struct weir_reserve *v, uint64_t in_use);
/* Computes the limit again if it depends on the memory of other processes.  The new limit is never below the memory in
 * use, to which memory in per-stream caches belongs.  Returns 1 if the limit has risen, else 0.  The caller holds no
 * lock. */
int weir__limit_refresh(struct weir_reserve *v);
/* Sets the limit that the program wants.  If the limit was a share of the device, the bytes replace the share. */
void weir__limit_set(struct weir_reserve *v, uint64_t bytes);
/* Lowers the floor, below which weir releases no memory, to the process's share of the device, if the preallocation or
 * the limit is a share.  The floor does not fall below `least_floor'.  `weights' is the sum of the weights of all
 * processes. */
void weir__limit_lower_floor(struct weir_reserve *v, uint64_t weights);

#endif
