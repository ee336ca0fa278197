/* SPDX-License-Identifier: MIT */
/* quota.h: how much of the device an allocator's reserve may be, and what of it stays.
 *
 * The limit is that of the settings or of the program, a share of the device among processes, or what leaves some of
 * the device to others.  The last two move with the other processes: weir__quota_refresh sets the limit again.  One that
 * the program has set is never exceeded, whatever is in use.
 *
 * Locks: `limiting` is held by the thread that writes the limit; nothing is called under it.
 *
 * Must not know: any single engine, settings' names, the caller for memory.
 */
#ifndef WEIR_QUOTA_H
#define WEIR_QUOTA_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"
#include "driver/device.h"

struct weir_reserve;

struct weir_quota {
    _Atomic uint64_t
        limit;      /* the most the reserved memory may be; UINT64_MAX: none.  Engines read it */
    uint64_t
        keep_free;  /* bytes on the device that are others': the limit is lowered for them; fixed */
    uint64_t apart; /* bytes on the device that preallocated shares do not take; fixed */
    int follows;    /* the limit moves with other processes; fixed */
    /* The limit before shares and `keep_free` lower it.  `most`: that of the settings, fixed.  `asked` is less only if
     * the program has set a lower one. */
    _Atomic uint64_t asked;
    uint64_t most;
    _Atomic uint64_t
        own; /* the limit, but for what it is lowered by for others; kept where it follows */
    _Atomic uint64_t share;    /* preallocated at most, since others came; UINT64_MAX: none have */
    _Atomic uint64_t promised; /* bytes of reserve that stay however small a share becomes */
    atomic_int no_share; /* the program has set a limit in the place of a share, whatever to */
    struct weir_lock limiting;
};

/* Bytes of a share: of the device less `apart`, the part `weight` / `weights`; 0 if `weights` is 0. */
uint64_t weir__quota_part(const struct weir_device *device, uint64_t apart, uint64_t weight,
                          uint64_t weights);
/* The weight of an allocator with these options, in millionths; and whether anything is a share. */
uint64_t weir__quota_weight(const weir_options *options);
int weir__quota_has_share(const weir_options *options);
/* The sum of the weights of all processes on the device; this process counts even before it takes part. */
uint64_t weir__quota_weights(const struct weir_reserve *v);

/* The engine is open: from here on the limit is `limit', and lowered as it must be. */
void weir__quota_begin(struct weir_reserve *v, uint64_t limit);
/* Sets the limit again, where it follows others: 1 if it is higher than before.  Without a lock.  `in_use' bytes stay,
 * whatever the limit comes to. */
int weir__quota_refresh_for(struct weir_reserve *v, uint64_t in_use);
/* The same in a request: what caches hold counts as in use. */
int weir__quota_refresh(struct weir_reserve *v);
/* The program sets another. */
void weir__quota_set(struct weir_reserve *v, uint64_t bytes);
/* A limit, rounded down to whole units of the engine. */
uint64_t weir__quota_units(const struct weir_reserve *v, uint64_t limit);
/* The limit before it is lowered so that `keep_free` bytes stay free on the device. */
uint64_t weir__quota_own(const struct weir_quota *q);
/* What was preallocated is kept no further than a share that it is, or that is the limit, unless the program has
 * promised more.  `weights': of all processes. */
void weir__quota_lower_floor(struct weir_reserve *v, uint64_t weights);

#endif
