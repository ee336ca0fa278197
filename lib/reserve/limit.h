/* SPDX-License-Identifier: MIT */
/* limit.h: the limit of reserved memory, which the settings or the program set.
 *
 * A limit may be a share of the device among processes, or may leave part of the device free (--keep-free).  Such a
 * limit depends on the memory of other processes, so weir__limit_refresh computes it again from time to time.
 */
#ifndef WEIR_LIMIT_H
#define WEIR_LIMIT_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"
#include "driver/device.h"

struct weir_reserve;

struct weir_limit {
    /* The largest number of bytes that engines may reserve, or UINT64_MAX for no limit. */
    _Atomic uint64_t bytes;
    uint64_t keep_free; /* the bytes of the device that growth must leave free; constant */
    uint64_t share_margin; /* the bytes of the device that belong to no share; constant */
    int is_dynamic; /* 1 if the limit depends on the memory of other processes; constant */
    _Atomic uint64_t by_program; /* the limit that the program has set, at most `by_settings' */
    uint64_t by_settings;        /* the limit from the settings; constant */
    /* The limit as it would be if `keep_free' were 0.  Unused if is_dynamic is 0. */
    _Atomic uint64_t before_keep_free;
    /* The preallocated bytes that the process keeps even if its share of the device becomes smaller. */
    _Atomic uint64_t least_floor;
    atomic_int no_share;       /* set once the program has replaced a share by a limit in bytes */
    struct weir_lock limiting; /* guards changes of `bytes'; its holder calls no other function */
};

/* Returns the bytes of a process's share (weight / weights) of the device, or 0 if `weights' is 0. */
uint64_t weir__limit_part(const struct weir_device *device, uint64_t share_margin, uint64_t weight,
                          uint64_t weights);
/* Returns the weight that the settings give to this process's share of the device, in millionths. */
uint64_t weir__limit_weight(const weir_options *options);
/* Returns 1 if the settings define the limit or the preallocation as a share of the device, else 0. */
int weir__limit_has_share(const weir_options *options);
/* Returns 1 if the current limit is a share of the device, else 0. */
int weir__limit_is_share(const struct weir_reserve *v);
/* Returns the sum of the weights of all processes with a share of the device. */
uint64_t weir__limit_weights(const struct weir_reserve *v);
/* Returns the limit of the allocator before --keep-free lowers the limit. */
uint64_t weir__limit_own(const struct weir_limit *limit);

/* Sets the first limit of an allocator, after its engine was opened. */
void weir__limit_begin(struct weir_reserve *v, uint64_t bytes);
/* Computes the limit again, but at least `in_use'.  Returns 1 if the limit rose, else 0.  The caller holds no lock. */
int weir__limit_refresh_for(struct weir_reserve *v, uint64_t in_use);
/* Computes the limit again.  Returns 1 if the limit has risen, else 0.  The caller holds no lock. */
int weir__limit_refresh(struct weir_reserve *v);
/* Sets the program's limit to `bytes'.  This limit replaces a limit that was a share of the device. */
void weir__limit_set(struct weir_reserve *v, uint64_t bytes);
/* Lowers goal.floor, the reserved bytes that weir keeps, to the process's share, but not below limit.least_floor. */
void weir__limit_lower_floor(struct weir_reserve *v, uint64_t weights);

#endif
