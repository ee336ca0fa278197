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

/* The constants of growth and moves.  The driver takes about 35 us to make and map a physical allocation, and 50 us to
 * move one, whatever its size (H200, driver 580).  Small ones leave less memory unused.  So weir has a budget of time for
 * both.  bench/results/packing-model-2026-11-30.txt shows what other constants cost and save. */

/* The budget at first, in ns.  The first growth of the driver's own pool takes 7.6 ms longer than a later one.  With half
 * of the credit loads of several streams reserved up to a fifth more. */
#define CREDIT_NS INT64_C(10000000)
/* The ns that growth by a GiB to a new peak adds to the budget, up to the credit.  The driver's own pool takes 1 to 2.4 ms
 * for that growth.  With half of it, physical allocations became coarse in first iterations. */
#define EARNED_NS INT64_C(2000000)
/* The part of the time that passes by which the budget grows.  So weir slows a program by a hundredth at most. */
enum { TIME_PART = 100 };
/* The largest budget, in ns: what eight seconds add.  Later requests can be slowed by as much at once. */
#define BUDGET_MOST_NS INT64_C(80000000)
/* The ns by which each chunk that a survey lists reduces the budget, since the device model's clock stands still
 * meanwhile.  Without this cost 60,000 blocks took three times as long. */
#define SURVEYED_NS 10
/* While the budget lasts, a physical allocation has this part of reserved memory, within FINE_LEAST and FINE_MOST bytes.
 * With a 64th within 8 and 32 MiB first iterations took up to 1.3 times as long as with the driver's own pool. */
enum { FINE_PART = 32 };
#define FINE_MOST (64 * MIB)
/* A physical allocation of small requests always has FINE_LEAST bytes: the driver's time for 512 MiB of them is 3 ms.
 * While a budget lasts, so has each one above the release threshold, since blocks that last keep whole ones. */
#define FINE_LEAST (8 * MIB)
/* Without a budget, a physical allocation is COARSE times as large, so that growth is as quick as the driver's own. */
enum { COARSE = 4 };

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

/* The ways to make room, in the order in which a request tries them. */
enum {
    GROWN, /* the request goes to the window that lacks least memory, and only new memory is mapped there */
    MOVED, /* the request goes to that window, and idle memory moves there before the heap grows */
    SQUEEZED /* the request goes to the end of the range, and all idle memory moves there */
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
    int64_t budget;            /* the time in ns for moves and growth; negative after a long one */
    uint64_t earned;           /* the clock when the budget last grew by the time that had passed */
    struct weir_access access; /* the devices with access to all memory; changes under `bringing` */
    pthread_mutex_t bringing;  /* taken before the heap's lock */
    size_t coming; /* the bytes that background growth is mapping, which are part of `kept` */
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

/* Returns the bytes of a fine physical allocation when `total` bytes are reserved. */
static inline size_t fine_bytes(uint64_t total) {
    return weir__size_round_down(within(FINE_LEAST, (size_t)(total / FINE_PART), FINE_MOST), PAGE);
}

/* ---- where requests go: mapped_plan.c ---- */

/* Returns 1 if the budget allows moves and small physical allocations.  Returns 0 otherwise, or if background growth
 * keeps memory idle, so that short waits count more than little reserved memory. */
int weir__mapped_has_budget(const struct weir_heap *h);

/* Lists the free and unmapped pieces of the range, for the stream with that id, or for no stream if it is 0, at the cost
 * of the budget.  Returns 1 on success, 0 if there is no host memory. */
int weir__mapped_survey(struct weir_heap *h, uint64_t id);
/* Marks the idle physical allocations outside of the window whose pieces are all of kind `least` or better.  With
 * UNMAPPED there is none. */
void weir__mapped_find_spares(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                              int least);
/* Finds the window for a request on that way.  Clean memory is better than the stream's own, and the
 * stream's own is better than the memory of other streams.  Sets w->missing to SIZE_MAX if there is no window. */
void weir__mapped_find_place(const struct weir_heap *h, int kind, size_t bytes, int way,
                             struct weir_mapped_window *w);
/* Finds the window behind the last memory of its kind, with the free memory at its end. */
void weir__mapped_find_tail(const struct weir_heap *h, int kind, size_t bytes,
                            struct weir_mapped_window *w);
/* Plans all memory that the window lacks; *planned gets the new bytes.  A window of a request that names an address gets
 * no surplus, except that an idle physical allocation of up to FINE_MOST may reach beyond the window, where the next request
 * of this owner will grow.  Returns 1 on success, 0 if there is no host memory. */
int weir__mapped_plan(struct weir_heap *h, int kind, const struct weir_mapped_window *w, int way,
                      size_t *planned);

#endif
