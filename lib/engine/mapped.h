/* SPDX-License-Identifier: MIT */
/* mapped.h: the private interface of the files of a mapped heap.
 *
 * mapped_plan.c finds out which memory is free, where a request goes, and which physical allocations are mapped there.
 * mapped.c carries out such plans, and does all else.
 *
 * Locks: the heap's lock guards all of it.  `bringing` is taken before the heap's lock.
 *
 * This file must not know other backings, settings' names, or how blocks are placed and ordered.
 */
#ifndef WEIR_MAPPED_H
#define WEIR_MAPPED_H

#include <pthread.h>

#include "base/bounds.h"
#include "base/result.h"
#include "base/size.h"
#include "engine/heap.h"

#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)
/* Requests of up to SMALL bytes have their own addresses, so that a small block pins no large physical allocation. */
#define SMALL ((size_t)512 << 10)
#define NOWHERE UINT64_C(0) /* an address outside of the range */
#define PIECE (64 * MIB)    /* making, mapping or moving up to this size takes a constant time */

/* The most bytes of a physical allocation that moves to small requests, or that preallocation adds for them. */
#define SPARE_SMALL (16 * MIB)

/* the most free chunks with uncompleted uses in one physical allocation that moves */
enum { TAGS = 8 };

struct weir_mapped_file;

/* A physical allocation, which is mapped as a whole. */
struct weir_mapped_handle {
    uint64_t base; /* the address of the mapping */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    struct weir_mapped_file *file; /* the descriptor, or NULL if it was never exported */
    /* Set by weir__mapped_find_spares.  If `spare`: the piece in which the allocation begins, the least kind of its pieces,
     * and the number of its pieces that are not CLEAN. */
    int spare, what;
    size_t piece, tags;
};

/* The frees of a stream up to a sequence. */
struct weir_mapped_tag {
    uint64_t stream, sequence;
};

/* An aliased mapping: addresses in an unmapped range where a physical allocation is still mapped.  The uses there are
 * not completed, or the driver did not unmap them. */
struct weir_mapped_alias {
    uint64_t base; /* NOWHERE if it was unmapped */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    /* Set if only aliased mappings have the physical allocation, which goes back to the device with the last of
     * them. */
    int last;
    struct weir_mapped_file *file; /* the descriptor if `last` is set, else NULL */
    size_t tags;
    struct weir_mapped_tag tag[TAGS]; /* the last frees there */
};

/* The kinds of pieces of the range, for the stream that a survey is made for. */
enum {
    ALIAS,  /* an aliased mapping; nothing may be placed there */
    OTHERS, /* free, but not for this stream; its last uses are not completed */
    BEHIND, /* like OTHERS, but this stream could wait for the last uses */
    OWN,    /* free for this stream; its last uses are not completed */
    CLEAN,  /* free for all streams; its last uses are completed */
    UNMAPPED
};

struct weir_mapped_piece {
    uint64_t base;
    size_t bytes;
    int what;
    struct weir_mapped_tag tag; /* the last free, for OTHERS, BEHIND and OWN */
};

/* The place for a request: free memory and unmapped ranges side by side. */
struct weir_mapped_window {
    uint64_t base, end;
    size_t missing;
    int what; /* the least kind of the free memory in and around the window: CLEAN, OWN or BEHIND */
};

/* One physical allocation that will be mapped at `to`: one that is idle now, or a new one. */
struct weir_mapped_move {
    struct weir_mapped_handle to;
    uint64_t from; /* the present address, or NOWHERE for a new physical allocation */
    size_t piece;  /* the piece around `from` */
    size_t least;  /* the least size of a new physical allocation */
    int what;      /* the kind of the idle memory, or CLEAN for new memory */
    int in_hand;   /* `to` has the physical allocation */
    /* the physical allocation is mapped at `to`, perhaps without access for all devices */
    int is_mapped;
};

/* The rules that give new physical allocations their size.
 *
 * A physical allocation has at most a part of the heap's bytes, within its bounds, and a growth adds at least a
 * `step_part`.  A growth policy that wants a larger growth gets it as one physical allocation.
 *
 * A request of at least `large_least` bytes has its own physical allocations if it is a large part of the heap or as
 * large as `unit_most`.  All of them are idle once it is freed, so a trim gives them back.  They have one size, about
 * PIECE or more, and there are at most `pieces` of them, unless each would be larger than `unit_most`.
 *
 * With several streams physical allocations are smaller, and `pieces` counts twice, since the last free of one stream
 * pins a whole one.  While work is pending, they are smaller still, and a growth adds only what the request lacks.
 */
struct weir_mapped_packing {
    size_t unit_least, unit_most, unit_most_several, unit_most_pending;
    size_t step_part, step_least, step_most;
    size_t large_least; /* SIZE_MAX: no request is large */
    size_t pieces;
    size_t patience;    /* the bytes that may move for each byte of growth */
    size_t moves_part;  /* the divisor: a request of N bytes allows moves of N / moves_part bytes */
    size_t moved_least; /* the least bytes that one move counts */
    /* A physical allocation of background growth has at most `ahead_most`.  One of preallocation has at most a
     * `prealloc_part` of the goal, or the least size, since memory inside a large one cannot move. */
    size_t ahead_most, prealloc_part;
};

/* The ways to make room, in the order in which a request tries them. */
enum {
    OF_ITS_OWN, /* a large request gets its own physical allocations */
    LEAST,      /* the request goes to the window that lacks least memory */
    SQUEEZED    /* the request goes to the end of the range, and all idle memory moves there */
};

struct weir_mapped_range {
    CUmemAllocationProp kind;           /* the properties of every physical allocation */
    struct weir_mapped_handle *handles; /* sorted by base */
    size_t handle_count, handle_capacity;
    /* Sorted by base, except that those with base NOWHERE may stand anywhere. */
    struct weir_mapped_alias *aliases;
    size_t alias_count, alias_capacity;
    struct weir_mapped_piece *pieces; /* the pieces of the last survey, sorted by base */
    size_t piece_count, piece_capacity;
    size_t first[WEIR_HEAP_KINDS +
                 1]; /* the first piece of each kind of addresses, and the last end */
    /* The device's free memory when the present request came, if knows_free is set. */
    uint64_t device_free;
    int knows_free;
    struct weir_mapped_move *moves; /* the plan, sorted by `to` */
    size_t move_count, move_capacity;
    /* The size of the present request's own physical allocations, or 0 if it has none. */
    size_t piece;
    size_t most_new;           /* the largest new physical allocation for the present request */
    int64_t may_move;          /* bytes that may still move; negative after one large move */
    uint64_t total, taken;     /* h->total and h->taken when `may_move` was last updated */
    struct weir_access access; /* the devices with access to all memory; changes under `bringing` */
    pthread_mutex_t bringing;  /* taken before the heap's lock */
    int has_shed;              /* set once memory has gone back to the device */
    size_t coming; /* the bytes that background growth is mapping, which are part of `kept` */
    const struct weir_mapped_packing *packing;
};

/* Returns the index of the first physical allocation that ends above the address. */
static inline size_t handle_above(const struct weir_mapped_range *g, uint64_t address) {
    size_t first = g->handle_count, at;

    WEIR_FIND_FIRST(first, at, g->handles[at].base + g->handles[at].bytes > address);
    return first;
}

static inline size_t within(size_t least, size_t value, size_t most) {
    return weir__size_larger(least, weir__size_smaller(value, most));
}

/* Returns 1 if short waits count more than little reserved memory, because background growth keeps memory idle.  The
 * engine then makes one physical allocation where it would move several, since a move takes as long. */
static inline int hurries(const struct weir_heap *h) {
    return (h->e.traits & WEIR_ENGINE_GROWS_AHEAD) && h->range->packing->pieces > 0;
}

/* ---- where requests go: mapped_plan.c ---- */

extern const struct weir_mapped_packing weir__mapped_packings[]; /* indexed by WEIR_PACKING_... */

/* Lists the free and unmapped pieces of the range, for the stream with that id, or for no stream if it is 0.  Returns 1
 * on success, 0 if there is no host memory. */
int weir__mapped_survey(struct weir_heap *h, uint64_t id);
/* Marks the idle physical allocations outside of the window whose pieces are all of kind `least` or better.  With
 * UNMAPPED there is none. */
void weir__mapped_find_spares(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                              int least);
/* Finds the window for a request in one of the three ways.  Clean memory is better than the stream's own, and the
 * stream's own is better than the memory of other streams.  Sets w->missing to SIZE_MAX if there is no window. */
void weir__mapped_find_place(const struct weir_heap *h, int kind, size_t bytes, int way,
                             struct weir_mapped_window *w);
/* Finds the window behind the last memory of its kind, with the free memory at its end. */
void weir__mapped_find_tail(const struct weir_heap *h, int kind, size_t bytes,
                            struct weir_mapped_window *w);
/* Plans all memory that the window lacks; *planned gets the new bytes.  A window of a request that names an address gets
 * no surplus, except that an idle physical allocation of up to PIECE may reach beyond the window, where the next request
 * of this owner will grow.  Returns 1 on success, 0 if there is no host memory. */
int weir__mapped_plan(struct weir_heap *h, int kind, const struct weir_mapped_window *w, int way,
                      size_t *planned);
/* Raises the allowance of bytes that may move: by `patience` times the growth of the heap, and by a part of the bytes
 * that requests got, up to `patience` times the heap.  A load that rarely needs moves need not grow.  A load that
 * often needs them spends less time on moves than on writing its memory once, and grows when the allowance is used up.
 * Returns 1 if memory may move for a request on that way: the allowance is not used up, or no other way is left.
 * Returns 0 otherwise. */
int weir__mapped_may_move(const struct weir_heap *h, int way);

#endif
