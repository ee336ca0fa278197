/* SPDX-License-Identifier: MIT */
/* planned.h: a plan (placement/plan.h) as a program goes along it.
 *
 * The plan's places stand in the order of their requests.  A request of the size that is next has that place.  Else it is
 * looked for a little ahead, since a request may be left out, and else it is one more than planned and has none.  After
 * several of those in a row the last sizes are looked for in all of the plan.  A place is a wish: whether it is free for
 * the stream is the placement's to say, and without it a block goes where the pivot says.
 *
 * The caller has a lock.  Must not know: placements, streams, profiles.
 */
#ifndef WEIR_PLANNED_H
#define WEIR_PLANNED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "placement/plan.h"

enum { WEIR_PLANNED_LAST = 4 }; /* sizes by which a program finds back */

struct weir_planned {
    struct weir_plan plan;            /* it owns the places */
    size_t small;                     /* bytes of the reserved memory that small requests need */
    uint64_t base;                    /* where the places begin; set by the engine */
    size_t next;                      /* place */
    uint32_t last[WEIR_PLANNED_LAST]; /* sizes, the newest first */
    int is_kept;                      /* the run before went along it, too */
    _Atomic size_t found, missed;     /* requests so far */
    size_t misses;                    /* in a row */
    int departed;                     /* it was left once */
};

/* The address for the next request, of so many bytes; 0: it has none. */
uint64_t weir__planned_next(struct weir_planned *p, size_t bytes);
/* 1, once: the program has left the plan's places, so that it needs what the pivot does. */
int weir__planned_departs(struct weir_planned *p);
/* 1 if nearly all requests had places. */
int weir__planned_is_kept(const struct weir_planned *p);
/* NULL is well. */
void weir__planned_close(struct weir_planned *p);

#endif
