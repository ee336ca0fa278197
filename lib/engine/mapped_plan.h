/* SPDX-License-Identifier: MIT */
/* mapped_plan.h: decides which physical allocations a mapped arena maps where, in which sizes, and maps them.
 */
#ifndef WEIR_MAPPED_PLAN_H
#define WEIR_MAPPED_PLAN_H

#include "engine/mapped_survey.h"

/* One physical allocation that will be mapped at `to`: one that is idle now, or a new one. */
struct weir_mapped_move {
    struct weir_mapped_handle to;
    uint64_t from; /* its address now, or NOWHERE for a new one */
    size_t least;  /* the least size of a new one */
    int what;      /* the kind of the idle memory; CLEAN for a new one */
    int in_hand;   /* `to` holds the physical allocation */
    int is_mapped; /* it is mapped at `to`, perhaps without access for all devices */
};

/* How large new physical allocations are.
 *
 * A physical allocation has at most a `unit_part` of the arena's bytes, within its bounds, and a growth adds at
 * least a `step_part`.  A growth policy that wants a larger growth gets it as one physical allocation.
 *
 * A request of `large_least` gets its own physical allocations if it is a `large_part` of the arena or as large as
 * `unit_most`.  All of them are idle once it is freed, so a trim gives them back.  They have one size, about PIECE
 * or more, and there are at most `pieces` of them, unless each would be larger than `unit_most`.
 *
 * With several streams physical allocations are smaller, since the last free of one stream pins a whole one.  While
 * work is pending, physical allocations are smaller still, and a growth adds only what the request lacks.
 */
struct weir_mapped_packing {
    size_t unit_part, unit_least, unit_most, unit_most_several, unit_most_pending;
    size_t step_part, step_least, step_most;
    size_t large_part, large_least; /* SIZE_MAX: no request is large */
    size_t pieces, pieces_several;
    size_t patience;    /* bytes that may move for each that the arena grows by */
    size_t moves_part;  /* a request may move such a part of its bytes */
    size_t moved_least; /* the bytes that one move counts at least */
    /* A physical allocation of background growth has at most `ahead_most`.  One of preallocation has at most a
     * `prealloc_part` of the goal, or the least size, since memory inside a large one cannot move. */
    size_t ahead_most, prealloc_part;
};

/* The ways to make room.  Each is for a request for which the way before finds too little. */
enum {
    OF_ITS_OWN, /* a large request gets its own physical allocations */
    LEAST,      /* the place that lacks least memory */
    SQUEEZED    /* the end of the range, with all idle memory */
};

static inline size_t within(size_t least, size_t value, size_t most) {
    return weir__size_larger(least, weir__size_smaller(value, most));
}

/* Returns 1 if short waits count more than little reserved memory, because background growth keeps memory idle.  The
 * engine then makes one physical allocation where it would move several, since a move takes as long. */
static inline int hurries(const struct weir_block_engine *a) {
    return (a->e.traits & WEIR_ENGINE_GROWS_AHEAD) && range_of(a)->packing->pieces > 0;
}

/* ---- mapped_sizes.c ---- */

extern const struct weir_mapped_packing weir__mapped_packings[]; /* by WEIR_PACKING_... */

/* Returns the bytes in memory of large or of small requests. */
size_t weir__mapped_held(const struct weir_mapped_range *g, int small);
/* Returns how much to add if `want` bytes are missing, `most` fit, and `planned` new bytes come before.  The result
 * is at most one physical allocation's size, unless a growth policy wants more. */
size_t weir__mapped_step_for(struct weir_block_engine *a, int small, size_t want, size_t most,
                             size_t planned);
/* Returns the size of each of a request's own physical allocations, or 0 if the request gets none.  With a growth
 * policy other than exact the policy decides. */
size_t weir__mapped_piece_for(const struct weir_block_engine *a, size_t bytes);
/* The largest handle that is made for a request.  If the free memory of its stream exceeds it by an eighth of the arena,
 * the arena is fragmented: handles are small then, so that they can move later. */
size_t weir__mapped_most_new_for(const struct weir_block_engine *a, int small, size_t bytes);
/* The most of a handle that is taken ahead of requests, towards a reserve of so much. */
size_t weir__mapped_most_ahead(const struct weir_block_engine *a, uint64_t goal, int cause);

/* ---- mapped_plan.c ---- */

/* Plans memory for [at, to) of an unmapped range, or for more, up to `most`.  Returns 1 on success, 0 if there is no
 * host memory. */
int weir__mapped_plan_unmapped(struct weir_block_engine *a, int squeeze, int small, uint64_t at,
                               uint64_t to, uint64_t most, size_t *planned);
/* Plans all memory that the window lacks; *planned gets the new bytes.  Returns 1 on success, 0 if there is no host
 * memory. */
int weir__mapped_plan(struct weir_block_engine *a, const struct weir_mapped_window *w, int squeeze,
                      size_t *planned);

/* ---- mapped_moves.c ---- */

/* Updates the allowance of bytes that may move.  Handles may move for a request that gets room in that way: there have
 * not been too many moves, or nothing else is left. */
int weir__mapped_may_move(const struct weir_block_engine *a, int way);

/* Carries the plan out for a request whose window is `what`.  `counts`: what moves is taken off the allowance. */
weir_status weir__mapped_carry_out(struct weir_block_engine *a, struct weir_request *r, int what,
                                   int counts);

#endif
