/* SPDX-License-Identifier: MIT */
/* plan.h: from the lifetimes of one run, where the blocks of the next one should go.
 *
 * Best fit wastes most where small blocks lie in the midst of what a large one needs later.  So a plan has a pivot:
 * blocks below it are cut from the high end of the free chunk that fits best, all others from the low end.  Both kinds
 * then grow towards each other, and what is free between them stays one piece.  This needs no marks, no order of
 * requests and no exact sizes: another run of the program with other lengths has the same kinds of blocks.
 *
 * The pivot is found by trying: the run is replayed on a placement of its own, with a pivot between each two sizes that
 * lie apart, and the one that needs the least memory is kept.
 *
 * A program that repeats itself exactly can do better: such a plan has places, one for each block in the order of their
 * requests, up to the end of the first round of those that recur.  They are found by an offline placement: the largest
 * block first, each at the lowest address that is free for all its lifetime.
 *
 * Must not know: streams, engines, files, how long ago the run was.
 */
#ifndef WEIR_PLAN_H
#define WEIR_PLAN_H

#include <stddef.h>
#include <stdint.h>

/* A block was taken, or given back. */
struct weir_plan_event {
    uint64_t address; /* not 0 */
    size_t bytes;     /* above 0: it was taken; 0: it was given back */
};

enum {
    WEIR_PLAN_GRANULE = 512,     /* bytes: sizes and offsets are counted in it */
    WEIR_PLAN_MOST_PLACES = 8192 /* no plan has more */
};
/* Of a block that has no place: one that is live again before it is given back. */
#define WEIR_PLAN_NOWHERE UINT32_MAX

struct weir_plan_place {
    uint32_t size, offset; /* in granules; the offset counts from where the plan begins */
};

/* All zero: nothing is planned. */
struct weir_plan {
    size_t pivot; /* bytes; 0: all blocks lie low */
    size_t bytes; /* in which all blocks of the run fit, placed by the pivot, */
    size_t exact; /* and by the places; 0: there are none */
    struct weir_plan_place *place;
    size_t places;
    size_t round; /* where the first round of those that recur begins; `places`: none recur */
};

/* Plans for these events in their order.  A block that is given back unseen was there before all events; 0 bytes are
 * planned then, since nobody knows how large it was.  1, or 0: no host memory.  The caller frees the places. */
int weir__plan_make(const struct weir_plan_event *events, size_t count, struct weir_plan *out);
/* The part of it that finds places. */
int weir__plan_make_places(const struct weir_plan_event *events, size_t count,
                           struct weir_plan *out);

#endif
