/* SPDX-License-Identifier: MIT */
/* mapped_state.h: a mapped arena, as its files see it.
 *
 * What: backing_mapped.c opens the arena and makes room for requests.  mapped_survey.c sees what there is, and
 * mapped_window.c where a request goes (mapped_survey.h).  mapped_plan.c plans what is mapped there, mapped_sizes.c in
 * which sizes, and mapped_moves.c carries the plan out (mapped_plan.h).  mapped_memory.c makes and maps physical
 * allocations ("handles"); mapped_shadows.c keeps those that are mapped at two places.  mapped_place.c serves requests
 * that name an address; mapped_grow.c grows ahead of requests; mapped_trim.c gives back; mapped_share.c opens memory to
 * devices and processes; mapped_figures.c tells what there is.
 *
 * Locks: the arena's guards all of it.  `bringing` comes before it: see mapped_grow.c.
 *
 * Must not know: how blocks are placed and ordered, other backings, settings' names.
 */
#ifndef WEIR_MAPPED_STATE_H
#define WEIR_MAPPED_STATE_H

#include <pthread.h>

#include "base/bounds.h"
#include "base/result.h"
#include "base/size.h"
#include "engine/block_engine.h"
#include "engine/mapped_files.h"

#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)
/* Requests that are kept apart, so that small blocks that stay do not hold large handles. */
#define SMALL ((size_t)512 << 10)
#define NOWHERE UINT64_C(0) /* no address of the range */
#define PIECE (64 * MIB)    /* a handle of up to this is made, mapped or moved in the same time */

/* The most of a handle that moves to small requests, and of what they get of what is taken beforehand. */
#define SPARE_SMALL (16 * MIB)

enum { ADDRESSES_SMALL = 16 }; /* a part of the addresses */

enum { TAGS = 8 }; /* the most pieces, not completed, of what moves */

/* Physical memory, mapped whole. */
struct weir_mapped_handle {
    uint64_t base; /* where it is mapped */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
};

/* What a stream freed up to a sequence. */
struct weir_mapped_tag {
    uint64_t stream, sequence;
};

/* Addresses, in an unmapped range, that are still mapped: their users were not completed, or the driver did not unmap
 * them. */
struct weir_mapped_alias {
    uint64_t base; /* NOWHERE: not mapped any more */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    int last; /* the handle is nowhere else but in other shadows, and goes with it if they went before */
    size_t tags;
    struct weir_mapped_tag tag[TAGS]; /* of its users */
};

struct weir_mapped_range {
    uint64_t base;
    size_t bytes;
    size_t apart;             /* of these, at the end: for requests that name an address; 0: none */
    CUmemAllocationProp kind; /* of all handles, which may come to serve any block */
    struct weir_mapped_handle *handles; /* by base */
    size_t handle_count, handle_capacity;
    struct weir_mapped_alias
        *shadows; /* by base, among which those that are not mapped stand anywhere */
    size_t alias_count, alias_capacity;
    struct weir_mapped_piece *pieces;   /* by base, as last surveyed */
    size_t piece_count, piece_capacity; /* without the border behind the last */
    size_t small_pieces;                /* from here on, a border, they are of the small kind, */
    size_t apart_pieces; /* and from here on, a border, of requests that name an address */
    struct weir_mapped_spare *spares; /* by base; there is room for all handles */
    size_t spare_count, spare_capacity;
    uint64_t
        device_free; /* as of the request for which room is made, if a growth policy wanted to know */
    int knows_free;
    struct weir_mapped_move *moves; /* by where they go */
    size_t move_count, move_capacity;
    size_t
        piece; /* of the request for which room was made last, if it may have handles of its own; else 0 */
    size_t most_new;           /* largest new handle for this request */
    int64_t may_move;          /* bytes that may still move; negative after one large move */
    uint64_t total, taken;     /* blocks.total and blocks.taken when `may_move` was last updated */
    struct weir_access access; /* to all of it; changes under `bringing` */
    pthread_mutex_t bringing;  /* before the arena's lock */
    size_t coming;             /* bytes, part of what is kept: see mapped_grow.c */
    const struct weir_mapped_packing *packing;
    struct weir_mapped_files files; /* of handles that other processes may have */
};

static inline struct weir_mapped_range *range_of(const struct weir_block_engine *a) {
    return a->range;
}

/* Of the range, behind the common part. */
static inline size_t small_part(const struct weir_mapped_range *g) {
    return weir__size_round_down(g->bytes / ADDRESSES_SMALL, PAGE);
}

/* Behind that. */
static inline uint64_t apart_base(const struct weir_mapped_range *g) {
    return g->base + g->bytes - g->apart;
}

static inline uint64_t small_base(const struct weir_mapped_range *g) {
    return apart_base(g) - small_part(g);
}

/* The first handle that ends above the address. */
static inline size_t handle_above(const struct weir_mapped_range *g, uint64_t address) {
    size_t first = g->handle_count, at;

    WEIR_FIND_FIRST(first, at, g->handles[at].base + g->handles[at].bytes > address);
    return first;
}

/* What the placement is asked for the survey has seen there: host memory alone may be short. */
static inline weir_status placed_or(int placed) {
    return placed == WEIR_PLACEMENT_OK ? WEIR_OK : weir__without_driver(WEIR_E_HOST_MEMORY);
}

/* ---- physical allocations: mapped_memory.c ---- */

/* Room for so many more handles, with as many spares, and shadows, and for one more of each, which is what is coming.
 * 1, or 0: no host memory. */
int weir__mapped_make_place(struct weir_mapped_range *g, size_t handles, size_t shadows);
/* The device has the memory back, if other processes have nothing of it. */
CUresult weir__mapped_release(const struct weir_block_engine *a,
                              CUmemGenericAllocationHandle handle);

struct weir_mapped_move;

CUresult weir__mapped_make_handle(const struct weir_block_engine *a, struct weir_mapped_handle *h);
/* Makes a handle, unless there is one, and maps it: an error may leave it in hand, and mapped. */
weir_status weir__mapped_make_and_map(const struct weir_block_engine *a,
                                      struct weir_mapped_move *m);
/* Has the placement know of a handle that is mapped, if all went well so far, in the unmapped range that starts at `hole`; an
 * error: it is not mapped any more.  There is room for it, and for a shadow. */
weir_status weir__mapped_enter(struct weir_block_engine *a, weir_status status, uint64_t unmapped,
                               struct weir_mapped_move *m, uint64_t id);
/* Takes an idle handle from where it is mapped, in the free chunk that starts at `chunk`.  There is room for a
 * shadow. */
weir_status weir__mapped_lift(struct weir_block_engine *a, uint64_t chunk, uint64_t base,
                              struct weir_mapped_handle *h);
/* The same of one whose users were not completed: the request's stream waits for those that are not itself, and
 * a shadow stays. */
weir_status weir__mapped_lift_unseen(struct weir_block_engine *a, struct weir_request *r,
                                     size_t piece, uint64_t base, struct weir_mapped_handle *h);

/* ---- those that are mapped at two places: mapped_shadows.c ---- */

/* There is room for one more. */
struct weir_mapped_alias *weir__mapped_add_alias(struct weir_block_engine *a,
                                                 const struct weir_mapped_handle *h, int last);
/* The users of its place were completed. */
int weir__mapped_is_seen(const struct weir_block_engine *a, const struct weir_mapped_alias *s);
/* Lifts all that can be.  `notes`: what goes is an event; else it is part of what the caller notes. */
void weir__mapped_lift_shadows(struct weir_block_engine *a, int notes);
/* The handle is mapped nowhere but in shadows: with the last of them the device has its memory back.  What the driver
 * does not take back is tried again later; there is room for a shadow. */
void weir__mapped_release_handle(struct weir_block_engine *a, struct weir_mapped_handle h);

/* ---- growth: mapped_grow.c ---- */

/* Takes `bringing`; the arena's lock is given meanwhile. */
void weir__mapped_begin_bringing(struct weir_block_engine *a);
void weir__mapped_end_bringing(struct weir_block_engine *a);

/* ---- of struct weir_backing ---- */

int weir__mapped_await(struct weir_block_engine *a, const struct weir_request *r);
weir_status weir__mapped_grow(struct weir_block_engine *a, uint64_t reserve, uint64_t goal,
                              int cause, size_t *got);
weir_status weir__mapped_place(struct weir_block_engine *a, struct weir_request *r,
                               struct weir_placement_block *out);
weir_status weir__mapped_shrink(struct weir_block_engine *a, struct weir_trim *trim);
weir_status weir__mapped_shed(struct weir_block_engine *a, struct weir_trim *trim);
weir_status weir__mapped_allow(struct weir_block_engine *a, const CUmemAccessDesc *access);
size_t weir__mapped_foresee(const struct weir_block_engine *a, struct weir_extent *out);
int weir__mapped_wholes(struct weir_block_engine *a, const struct weir_visit *visit);
size_t weir__mapped_largest(struct weir_block_engine *a, const struct weir_survey *asked);
void weir__mapped_survey_pieces(struct weir_block_engine *a, struct weir_survey *out);

#endif
