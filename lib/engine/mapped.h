/* SPDX-License-Identifier: MIT */
/* mapped.h: the types and constants that mapped.c and mapped_plan.c share.  mapped_plan.c chooses addresses and
 * physical allocations for a request; mapped.c does everything else.  The heap's lock guards all data.
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
#define GRANULARITY ((size_t)512)
/* Blocks of up to SMALL bytes lie apart from larger ones, since a small live block would keep large memory reserved. */
#define SMALL ((size_t)512 << 10)
#define NOWHERE UINT64_C(0) /* an address outside of the engine's address range */

/* The constants of growth and moves (bench/results/packing-model-2026-11-30.txt).  The driver takes about 35 us to
 * create and map a physical allocation, and 50 us to move one (H200, driver 580). */

/* The initial value of weir_mapped_range.budget, in ns.  Half of this value made programs reserve 1/3 more memory. */
#define CREDIT_NS INT64_C(20000000)
/* Each GiB of growth to a new peak adds this many ns to weir_mapped_range.budget, up to CREDIT_NS. */
#define EARNED_NS INT64_C(2000000)
/* weir_mapped_range.budget gains 1/TIME_PART of elapsed time, so moves of memory slow a program by at most 1 %. */
enum { TIME_PART = 100 };
/* The maximum of weir_mapped_range.budget, in ns.  Consecutive moves of memory delay requests by at most this time. */
#define BUDGET_MOST_NS INT64_C(80000000)
/* weir__mapped_survey() lowers weir_mapped_range.budget by this many ns for each chunk that it examines. */
#define SURVEYED_NS 10
/* While weir_mapped_range.budget is above 0, a new physical allocation has the size of reserved memory / FINE_PART. */
enum { FINE_PART = 32 };
#define FINE_MOST (64 * MIB)
#define FINE_LEAST (8 * MIB) /* the size of each physical allocation for small requests */
/* The largest physical allocation for small requests above the release threshold.  With 64 MiB, trims left 1/5 idle. */
#define LASTING_MOST (32 * MIB)
/* The number of bits in `lasting`, a set of block sizes.  Several sizes may share a bit. */
enum { LASTING_BITS = 4096 };
/* If weir_mapped_range.budget is used up, new physical allocations are COARSE times as large, for fast growth. */
enum { COARSE = 4 };

/* A physical allocation with more than TAGS free pieces that pending work may use does not move. */
enum { TAGS = 8 };

struct weir_mapped_file;

/* A physical allocation: the memory of one handle of cuMemCreate, all of which is mapped at one address. */
struct weir_mapped_handle {
    uint64_t base;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    /* The file descriptor by which other processes can map the memory, or NULL before its first export. */
    struct weir_mapped_file *file;
    /* `spare`: 1 if the memory may move.  `state`: the lowest state of its free pieces (ALIAS to CLEAN, see below). */
    int spare, state;
    size_t piece, tags; /* the first free piece; the number of pieces that work may still use */
};

/* All frees of one stream up to the free with the number `sequence`. */
struct weir_mapped_tag {
    uint64_t stream, sequence;
};

/* An aliased mapping: old addresses of moved memory, which stay mapped until all work on them has completed. */
struct weir_mapped_alias {
    uint64_t base; /* NOWHERE after weir has unmapped the addresses */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    /* Set if this is the physical allocation's last mapping, so that weir releases the memory after unmapping it. */
    int last;
    /* the physical allocation's file descriptor; NULL if it has none, or is also mapped at other addresses */
    struct weir_mapped_file *file;
    size_t tags;
    /* The last free of each stream at these old addresses.  weir unmaps them after all these frees have completed. */
    struct weir_mapped_tag tag[TAGS];
};

/* The states of a free or unmapped piece of the address range, for one stream, from worst to best. */
enum {
    ALIAS, /* old addresses of moved memory (an aliased mapping), where no block may lie */
    /* idle memory that this stream may not use, since work of other streams may still use the memory */
    OTHERS,
    BEHIND, /* idle memory that this stream may use after a wait for other streams */
    OWN,    /* idle memory that only this stream may use, whose work may still use it */
    CLEAN,  /* idle memory that all streams may use */
    UNMAPPED
};

struct weir_mapped_piece {
    uint64_t base;
    size_t bytes;
    int state;
    struct weir_mapped_tag tag; /* the last free in a piece whose state is OTHERS, BEHIND or OWN */
};

/* A window: adjacent free and unmapped pieces for a request, where weir maps the missing bytes of memory. */
struct weir_mapped_window {
    uint64_t base, end;
    size_t missing;
    /* the worst state, from BEHIND to CLEAN (best), that idle memory in the window may have */
    int state;
};

/* One step of a plan, which maps a physical allocation at to.base.  A new physical allocation has the state CLEAN. */
struct weir_mapped_move {
    struct weir_mapped_handle to;
    uint64_t from;  /* the address from which idle memory moves, or NOWHERE for new memory */
    size_t least;   /* the smallest size that suffices for a new physical allocation */
    int is_created; /* set once the handle in `to` exists */
    int is_mapped;  /* set once cuMemMap has succeeded; some devices may still lack access */
};

/* The methods to make room for a request, in the order in which weir tries them. */
enum {
    GROWN,   /* maps only new memory */
    MOVED,   /* maps idle memory at the request's addresses first, and then new memory */
    SQUEEZED /* moves idle memory to the end of the address range, and places the block there */
};

struct weir_mapped_range {
    CUmemAllocationProp kind;           /* the properties of every physical allocation */
    struct weir_mapped_handle *handles; /* sorted by base */
    size_t handle_count, handle_capacity;
    /* Sorted by base, except entries with base NOWHERE, which may be anywhere. */
    struct weir_mapped_alias *aliases;
    size_t alias_count, alias_capacity;
    /* The free and unmapped pieces that weir__mapped_survey() has listed last, sorted by base. */
    struct weir_mapped_piece *pieces;
    size_t piece_count, piece_capacity;
    /* The index of the first piece in each part of the address range.  The last entry is the number of all pieces. */
    size_t first[WEIR_HEAP_KINDS + 1];
    /* The device's free memory, queried once in a request.  Valid if `knows_free` is set. */
    uint64_t device_free;
    int knows_free;
    /* The steps of the present request's plan, sorted by to.base. */
    struct weir_mapped_move *moves;
    size_t move_count, move_capacity;
    /* The sizes of blocks that were still live after the last trim above the release threshold (see lasting_bit()). */
    uint64_t lasting[LASTING_BITS / 64];
    int was_trimmed; /* set by the first trim above the release threshold */
    /* The time in ns that moves and growth may still take; negative after an operation that took longer. */
    int64_t budget;
    uint64_t earned; /* the time of the last raise_budget(), in ticks of the driver's clock */
    /* The devices that can access all memory of the range.  Changed under `growth_lock`. */
    struct weir_access access;
    /* Held during background growth and changes of access.  A thread locks `growth_lock` before the heap's lock. */
    pthread_mutex_t growth_lock;
    /* The bytes that background growth is mapping now.  They are also in the heap's `unusable`. */
    size_t bytes_being_mapped;
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

/* Returns the size of a small physical allocation, within `least` and `most`, when `total` bytes are reserved. */
static inline size_t fine_bytes(uint64_t total, size_t least, size_t most) {
    return weir__size_round_down(within(least, (size_t)(total / FINE_PART), most), PAGE);
}

/* Returns the index of the bit that stands for blocks of this size in the bit set weir_mapped_range.lasting. */
static inline unsigned lasting_bit(size_t bytes) {
    return (unsigned)((bytes + GRANULARITY - 1) / GRANULARITY * UINT64_C(0x9E3779B97F4A7C15) >>
                      32) %
           LASTING_BITS;
}

/* ---- functions of mapped_plan.c ---- */

/* Returns 1 if g->budget allows moves of memory and small physical allocations, else 0. */
int weir__mapped_has_budget(const struct weir_heap *h);

/* Lists the free and unmapped pieces of the address range in g->pieces, each with its state (ALIAS to UNMAPPED) for the
 * stream `id`, or for an unknown stream if `id` is 0.  Returns 1 on success, 0 if there is no host memory. */
int weir__mapped_survey(struct weir_heap *h, uint64_t id);
/* Sets `spare` to 1 (may move) for each physical allocation outside of *w whose pieces all have a state >= `least`. */
void weir__mapped_find_spares(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                              int least);
/* Finds the window of `bytes` bytes that needs the least new memory.  Sets w->missing to SIZE_MAX on failure. */
void weir__mapped_find_place(const struct weir_heap *h, int kind, size_t bytes, int method,
                             struct weir_mapped_window *w);
/* Finds `bytes` bytes at the end of the part `kind` of the address range.  Sets w->missing to SIZE_MAX on failure. */
void weir__mapped_find_tail(const struct weir_heap *h, int kind, size_t bytes,
                            struct weir_mapped_window *w);
/* Plans in g->moves how to fill the window *w.  Sets *planned to the new bytes.  Returns 0 without host memory. */
int weir__mapped_plan(struct weir_heap *h, int kind, const struct weir_mapped_window *w, int method,
                      size_t *planned);

#endif
