/* SPDX-License-Identifier: MIT */
/* mapped_plan.h: what is to be mapped where in a mapped arena, in which sizes, and doing it.
 */
#ifndef WEIR_MAPPED_PLAN_H
#define WEIR_MAPPED_PLAN_H

#include "engine/mapped_survey.h"

/* What is to be mapped where: a handle that is idle now, or a new one. */
struct weir_mapped_move {
    struct weir_mapped_handle to;
    uint64_t from; /* where it is mapped; NOWHERE: it is new, */
    size_t least;  /* and of so many bytes at least */
    int what;      /* as of a spare; CLEAN: it is new */
    int in_hand;   /* `to` has it, */
    int is_mapped; /* and it is mapped there, if not for all who have access */
};

/* Sizes follow what the arena has: handles are no larger than a `unit_part` of it, within bounds, and a
 * step is a `step_part` of it at least; a policy that wants a larger one has it as one handle.  A request of a
 * `large_part` of it, and of `large_least`, has handles of its own, so that all of them are idle when it was freed:
 * of one size, about PIECE or more: `pieces` at most, unless they were larger than `unit_most`.  Where several streams
 * have memory handles are smaller: what one of them freed last holds the whole handle for the others.  While work is
 * pending, which keeps what each of them freed to itself, they are smaller still, and no step adds more than is
 * wanted. */
struct weir_mapped_packing {
    size_t unit_part, unit_least, unit_most, unit_most_several, unit_most_pending;
    size_t step_part, step_least, step_most;
    size_t large_part, large_least; /* SIZE_MAX: no request is large */
    size_t pieces, pieces_several;
    size_t patience;    /* bytes that may move for each that the arena grows by */
    size_t moves_part;  /* of what requests get: so much may move for it */
    size_t moved_least; /* as which a physical allocation that moves counts at least */
    /* A handle that is taken ahead of requests is no larger than this, and one that is preallocated, but in the
     * background, no larger than such a part of all that there will be, or than the least of others: what lies
     * in large ones cannot move. */
    size_t ahead_most, prealloc_part;
};

/* How room is made, each for where the one before it finds too little. */
enum {
    OF_ITS_OWN, /* a large request has handles of its own */
    LEAST,      /* where least is missing */
    SQUEEZED    /* at the end, with all that is idle */
};

static inline size_t within(size_t least, size_t value, size_t most) {
    return weir__size_larger(least, weir__size_smaller(value, most));
}

/* Who keeps memory idle would have requests wait little rather than reserve little: a handle takes as long to move as
 * to make, and one is made where several would move. */
static inline int hurries(const struct weir_block_engine *a) {
    return (a->e.traits & WEIR_ENGINE_GROWS_AHEAD) && range_of(a)->packing->pieces > 0;
}

/* ---- mapped_sizes.c ---- */

extern const struct weir_mapped_packing weir__mapped_packings[]; /* by WEIR_PACKING_... */

/* Memory of the large or of the small requests. */
size_t weir__mapped_held(const struct weir_mapped_range *g, int small);
/* How much to add where `want` bytes are missing and `most` fit; `planned` will have been added by then.
 * No more than a handle should have, unless a policy wants more. */
size_t weir__mapped_step_for(struct weir_block_engine *a, int small, size_t want, size_t most,
                             size_t planned);
/* The bytes of each handle of a request that has some of its own; 0: it has not.  A policy that was chosen decides how
 * much is added. */
size_t weir__mapped_piece_for(const struct weir_block_engine *a, size_t bytes);
/* The largest handle that is made for a request.  If the free memory of its stream exceeds it by an eighth of the arena,
 * the arena is fragmented: handles are small then, so that they can move later. */
size_t weir__mapped_most_new_for(const struct weir_block_engine *a, int small, size_t bytes);
/* The most of a handle that is taken ahead of requests, towards a reserve of so much. */
size_t weir__mapped_most_ahead(const struct weir_block_engine *a, uint64_t goal, int cause);

/* ---- mapped_plan.c ---- */

/* Plans memory for [at, to) of an unmapped range, or more, up to `most`.  1, or 0: no host memory. */
int weir__mapped_plan_unmapped(struct weir_block_engine *a, int squeeze, int small, uint64_t at,
                               uint64_t to, uint64_t most, size_t *planned);
/* Plans all that the window lacks: bytes that are new in *planned.  1, or 0: no host memory. */
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
