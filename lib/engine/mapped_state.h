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
#include "base/map.h"
#include "base/result.h"
#include "base/size.h"
#include "engine/block_engine.h"

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

/* What a piece of the range is, as the caller's stream sees it. */
enum {
    BORDER, /* of no bytes: where the addresses of large or of small requests begin, or end */
    TAKEN,
    ALIAS,  /* in an unmapped range, but not to be used */
    OTHERS, /* free, but not for this stream; its last uses were not completed */
    BEHIND, /* the same, but they could be waited for */
    OWN,    /* free for this stream; its last uses were not completed */
    CLEAN,  /* free for everybody, and done */
    UNMAPPED
};

struct weir_mapped_piece {
    uint64_t base;
    size_t bytes;
    int what;
    uint64_t
        chunk; /* where the placement's chunk begins that it is of: an unmapped range may be in pieces */
    struct weir_mapped_tag tag; /* BEHIND and OWN */
};

/* An idle handle: the piece that it begins in, and where it is mapped. */
struct weir_mapped_spare {
    size_t piece;
    uint64_t base;
    size_t bytes;
    int what; /* CLEAN, or the least of its pieces: OWN or BEHIND */
};

/* Where a request goes. */
struct weir_mapped_window {
    uint64_t base, end;
    size_t missing;
    int what; /* the free memory around is that, or better: CLEAN, OWN or BEHIND */
};

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

/* All descriptors of an engine.  A struct of zero bytes has none. */
struct weir_mapped_files {
    struct weir_map exported; /* the key is the physical allocation's handle */
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

static inline size_t within(size_t least, size_t value, size_t most) {
    return weir__size_larger(least, weir__size_smaller(value, most));
}

/* Returns 1 if short waits count more than little reserved memory, because background growth keeps memory idle.  The
 * engine then makes one physical allocation where it would move several, since a move takes as long. */
static inline int hurries(const struct weir_block_engine *a) {
    return (a->e.traits & WEIR_ENGINE_GROWS_AHEAD) && range_of(a)->packing->pieces > 0;
}

/* ---- physical allocations: mapped_memory.c ---- */

/* Room for so many more handles, with as many spares, and shadows, and for one more of each, which is what is coming.
 * 1, or 0: no host memory. */
int weir__mapped_make_place(struct weir_mapped_range *g, size_t handles, size_t shadows);
/* The device has the memory back, if other processes have nothing of it. */
CUresult weir__mapped_release(const struct weir_block_engine *a,
                              CUmemGenericAllocationHandle handle);

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

/* ---- aliased mappings: mapped_memory.c ---- */

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

/* ---- file descriptors of physical allocations: mapped_files.c ---- */

/* Appends a physical allocation to the list `out`, with its descriptor.  Exports the physical allocation if it has no
 * descriptor.  Returns E_HOST_MEMORY if no host memory or no descriptor is left, else the status of the driver's call. */
weir_status weir__mapped_files_add(struct weir_mapped_files *f, struct weir_device *device,
                                   CUmemGenericAllocationHandle handle,
                                   const struct weir_memory_file *piece,
                                   struct weir_memory_files *out);
/* Returns a mark for weir__mapped_files_undo. */
uint64_t weir__mapped_files_mark(void);
/* Closes the descriptors made since the mark, after a list could not be completed. */
void weir__mapped_files_undo(struct weir_mapped_files *f, uint64_t mark);
/* Closes the descriptor of a physical allocation that is about to be released, if it has one. */
void weir__mapped_files_close(struct weir_mapped_files *f, CUmemGenericAllocationHandle handle);
/* Closes all descriptors, and frees the host memory. */
void weir__mapped_files_end(struct weir_mapped_files *f);

/* ---- pieces and windows: mapped_survey.c ---- */

/* Sees the pieces as the stream of that id does; 0: as nobody's. 1, or 0: no host memory. */
int weir__mapped_survey(struct weir_block_engine *a, uint64_t id);
/* The piece that has the address, by the last survey. */
size_t weir__mapped_piece_of(const struct weir_mapped_range *g, uint64_t address);
/* What a handle in pieces from `first` on is, the least of them, and how many were not completed. */
int weir__mapped_what_holds(const struct weir_mapped_range *g, size_t first,
                            const struct weir_mapped_handle *h, size_t *unseen);
/* Finds the idle handles outside the window, in what is `least` or better. */
void weir__mapped_find_spares(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                              int least);

/* The part of an unmapped range that the window covers, in whole pages.  0: none. */
int weir__mapped_covers(const struct weir_mapped_window *w, const struct weir_mapped_piece *p,
                        uint64_t *from, uint64_t *to);
/* The window that lacks least, and of these the lowest. */
void weir__mapped_find_window(const struct weir_mapped_range *g, int small, size_t bytes, int what,
                              struct weir_mapped_window *best);
/* For a request with handles of its own: the window that lacks least of those that begin with a handle, or in a
 * unmapped range. */
void weir__mapped_find_own(const struct weir_mapped_range *g, size_t bytes, int what,
                           struct weir_mapped_window *best);
/* Behind the last memory of its range; what is free there counts in. */
void weir__mapped_find_tail(const struct weir_mapped_range *g, int small, size_t bytes,
                            struct weir_mapped_window *w);

/* ---- plans: mapped_plan.c ---- */

extern const struct weir_mapped_packing weir__mapped_packings[]; /* by WEIR_PACKING_... */

/* Returns the size of each of a request's own physical allocations, or 0 if the request gets none.  With a growth
 * policy other than exact the policy decides. */
size_t weir__mapped_piece_for(const struct weir_block_engine *a, size_t bytes);
/* The largest handle that is made for a request.  If the free memory of its stream exceeds it by an eighth of the arena,
 * the arena is fragmented: handles are small then, so that they can move later. */
size_t weir__mapped_most_new_for(const struct weir_block_engine *a, int small, size_t bytes);
/* The most of a handle that is taken ahead of requests, towards a reserve of so much. */
size_t weir__mapped_most_ahead(const struct weir_block_engine *a, uint64_t goal, int cause);

/* Plans memory for [at, to) of an unmapped range, or for more, up to `most`.  Returns 1 on success, 0 if there is no
 * host memory. */
int weir__mapped_plan_unmapped(struct weir_block_engine *a, int squeeze, int small, uint64_t at,
                               uint64_t to, uint64_t most, size_t *planned);
/* Plans all memory that the window lacks; *planned gets the new bytes.  Returns 1 on success, 0 if there is no host
 * memory. */
int weir__mapped_plan(struct weir_block_engine *a, const struct weir_mapped_window *w, int squeeze,
                      size_t *planned);

/* Updates the allowance of bytes that may move.  Handles may move for a request that gets room in that way: there have
 * not been too many moves, or nothing else is left. */
int weir__mapped_may_move(const struct weir_block_engine *a, int way);

/* Carries the plan out for a request whose window is `what`.  `counts`: what moves is taken off the allowance. */
weir_status weir__mapped_carry_out(struct weir_block_engine *a, struct weir_request *r, int what,
                                   int counts);

/* ---- of struct weir_backing: mapped_grow.c ---- */

int weir__mapped_await(struct weir_block_engine *a, const struct weir_request *r);
weir_status weir__mapped_grow(struct weir_block_engine *a, uint64_t reserve, uint64_t goal,
                              int cause, size_t *got);

#endif
