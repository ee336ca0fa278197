/* SPDX-License-Identifier: MIT */
/* decay.h: releases idle memory to the device by halves, one each half-life.
 *
 * Time has windows of one half-life.  The need of a window is its peak of memory in use, times the reserved memory for
 * each byte in use that was enough before.  A window in which reserved memory grew needed all of it.  A window without
 * growth had enough.  At the end of a window half of the memory above the need and the floor goes back, or all if that
 * is at most 64 MiB.  So a load that reaches its peak once in a half-life keeps its memory.
 *
 * Only whole regions or handles go back.  If each is larger than the amount, the amount grows with the next windows.
 *
 * The floor is the preallocated memory and a finite release threshold.  The idle memory of grow-ahead
 * (background_growth.h) is needed too; otherwise grow-ahead would grow the released memory again.
 *
 * A window ends in a request that the engine serves, or in weir_decay.  A request after a pause of more than a
 * half-life begins a new window and releases nothing, since the load is about to come back.
 *
 * This file must not know any single engine or settings' names.
 */
#ifndef WEIR_DECAY_H
#define WEIR_DECAY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <weir/allocator.h>

#include "base/lock.h"

struct weir_request;
struct weir_reserve;

struct weir_decay {
    uint64_t
        half_life_ns; /* 0 if decay is off; this and the next two fields are fixed after weir__decay_open */
    int in_requests;        /* set if the engine can release memory without waiting */
    uint64_t idle;          /* bytes that grow-ahead keeps idle */
    _Atomic uint64_t floor; /* all threads see changes of the floor in one order */
    _Atomic uint64_t ends;  /* the end of the window; all times begin with the allocator */
    _Atomic uint64_t last;  /* the time of the last request that the engine served */
    _Atomic uint64_t peak;  /* the most bytes in use in this window */
    _Atomic int grew;      /* set by engines if reserved memory grew for a request in this window */
    struct weir_lock lock; /* guards the next fields; nothing is called under it */
    uint64_t basis_reserved,
        basis_in_use; /* bytes that were enough, for bytes in use; 0 at first */
    uint64_t aim;     /* the reserved memory that should remain */
};

void weir__decay_open(struct weir_decay *d, uint64_t half_life_ns, uint64_t floor, int in_requests,
                      uint64_t idle);
/* Records the bytes in use after a request at the time `now', and writes the time since the last request.  Returns 1 if
 * the window is over, else 0. */
int weir__decay_note(struct weir_decay *d, uint64_t now, uint64_t in_use, uint64_t *pause);
/* Ends the windows that are over.  Returns the reserved memory to keep.  `pause' is the time since the last request, or
 * 0 in weir_decay, for which pauses do not count. */
uint64_t weir__decay_end(struct weir_decay *d, uint64_t now, uint64_t in_use, uint64_t reserved,
                         uint64_t pause);

/* Releases the memory that is due, without waiting, after a request that the engine has served. */
void weir__decay_look(struct weir_reserve *v, const struct weir_request *r);

#endif
