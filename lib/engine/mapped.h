/* SPDX-License-Identifier: MIT */
/* mapped.h: the interface between mapped.c and mapped_plan.c, which together are the backing of the mapped engine.
 *
 * mapped_plan.c determines which memory is free, where a request goes, and which physical allocations should be mapped
 * there.  mapped.c carries out such plans, and does everything else.
 *
 * Locks.  The heap's lock guards everything here.  A thread takes `bringing` before the heap's lock.
 *
 * This file must not depend on other backings, on names of settings, or on how blocks are placed and ordered.
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
/* Requests of up to SMALL bytes have their own addresses, so that a small live block does not keep a large physical
 * allocation from moving. */
#define SMALL ((size_t)512 << 10)
#define NOWHERE UINT64_C(0) /* an address outside of the range */

/* The constants of growth and moves.  The driver takes about 35 us to create and map a physical allocation, and 50 us
 * to move one, whatever its size (H200, driver 580).  Small physical allocations leave less memory unused, but need
 * more calls.  So weir has a budget of time for both.  bench/results/packing-model-2026-11-30.txt shows what other
 * constants cost and save. */

/* The budget at the start, in ns.  With half of it, on a model as slow as the GPU, programs of several streams and
 * with varying lengths used it up.  They then reserved up to a third more memory than they requested. */
#define CREDIT_NS INT64_C(20000000)
/* The ns that each GiB of growth to a new peak adds to the budget, until the budget is CREDIT_NS.  The driver's own
 * pool takes 1 to 2.4 ms for a GiB of growth.  With half of EARNED_NS, weir created only large physical allocations in
 * first iterations. */
#define EARNED_NS INT64_C(2000000)
/* The budget grows by a hundredth of the time that passes.  So weir slows a program by a hundredth at most. */
enum { TIME_PART = 100 };
/* The largest budget, in ns, which eight seconds add.  It is also the longest time by which later requests can be
 * slowed at once. */
#define BUDGET_MOST_NS INT64_C(80000000)
/* The ns by which the budget falls for each chunk that a survey lists.  On the device model a survey takes no time by
 * the clock, so weir charges this price.  Without it, a program with 60,000 blocks took three times as long. */
#define SURVEYED_NS 10
/* While there is a budget, a physical allocation has a 32nd of the reserved memory, but at least FINE_LEAST and at
 * most FINE_MOST bytes.  With a 64th, and limits of 8 and 32 MiB, first iterations took up to 1.3 times as long as
 * with the driver's own pool. */
enum { FINE_PART = 32 };
#define FINE_MOST (64 * MIB)
/* The size of each physical allocation for small requests.  For 512 MiB of such allocations the driver takes 3 ms. */
#define FINE_LEAST (8 * MIB)
/* The largest size of a physical allocation for blocks that may last, above the release threshold.  With 16 MiB, first
 * iterations took longer than with the driver's own pool.  With 64 MiB, a fifth of the memory that stayed was idle. */
#define LASTING_MOST (32 * MIB)
/* The number of bits that record which sizes last.  If two sizes share a bit, weir makes some unneeded driver calls. */
enum { LASTING_BITS = 4096 };
/* If the budget is used up, new physical allocations are COARSE times as large.  Growth is then as fast as in the
 * driver's own pool. */
enum { COARSE = 4 };

/* a physical allocation can move if at most this many of its free chunks still have work that has not completed */
enum { TAGS = 8 };

struct weir_mapped_file;

/* A physical allocation, all of which is mapped at one address. */
struct weir_mapped_handle {
    uint64_t base; /* the address at which the physical allocation is mapped */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    /* The export with its file descriptor, or NULL if the memory was never exported. */
    struct weir_mapped_file *file;
    /* Results of weir__mapped_find_spares.  `spare` is 1 if the physical allocation is idle and may move.  `piece` is
     * the piece in which it starts, `what` is the least kind of its pieces, and `tags` is the number of its pieces
     * that are not CLEAN. */
    int spare, what;
    size_t piece, tags;
};

/* A sequence of a stream.  It stands for all frees of the stream up to this sequence. */
struct weir_mapped_tag {
    uint64_t stream, sequence;
};

/* An aliased mapping: addresses in an unmapped range where a physical allocation is still mapped.  Work on these
 * addresses has not completed, or the driver has failed to unmap them. */
struct weir_mapped_alias {
    uint64_t base; /* the address of the mapping, or NOWHERE after it was unmapped */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    /* Set if only aliased mappings of the physical allocation are left.  weir then releases the physical allocation to
     * the device together with its last aliased mapping. */
    int last;
    struct weir_mapped_file *file; /* the export with its descriptor if `last` is set, else NULL */
    size_t tags;
    /* For each stream with work on these addresses, its last free there. */
    struct weir_mapped_tag tag[TAGS];
};

/* The kinds of pieces of the range, from the view of one stream (see weir__mapped_survey).  A kind with a larger
 * number is better for the stream. */
enum {
    ALIAS, /* an aliased mapping, where no block may lie */
    /* Free memory that this stream may not use; work of other streams on it has not completed. */
    OTHERS,
    BEHIND, /* free memory that this stream may use after a wait for the work of other streams */
    /* Free memory that only this stream may use; its work on the memory has not completed. */
    OWN,
    CLEAN, /* free memory that all streams may use; all work on it has completed */
    UNMAPPED
};

struct weir_mapped_piece {
    uint64_t base;
    size_t bytes;
    int what;
    /* The last free in the piece; not used for CLEAN, ALIAS and UNMAPPED. */
    struct weir_mapped_tag tag;
};

/* A window: adjacent free memory and unmapped ranges where weir makes room for a request. */
struct weir_mapped_window {
    uint64_t base, end;
    size_t missing;
    /* the least kind of the free memory in the window and next to it: CLEAN, OWN or BEHIND */
    int what;
};

/* One step of a plan, which maps one physical allocation at the address to.base.  The physical allocation is idle now,
 * or it is new. */
struct weir_mapped_move {
    struct weir_mapped_handle to;
    /* The present address of the idle physical allocation, or NOWHERE for a new one. */
    uint64_t from;
    size_t piece; /* the index of the piece that contains `from` */
    size_t least; /* the smallest size that suffices for a new physical allocation */
    int what;     /* the kind of the idle memory that moves, or CLEAN for new memory */
    int in_hand;  /* set once to.handle has the physical allocation */
    /* set once the physical allocation is mapped at `to`, perhaps without access for all devices */
    int is_mapped;
};

/* The ways to make room for a request, in the order in which weir tries them. */
enum {
    /* The request goes to the window that lacks the least memory, and only new memory is mapped there. */
    GROWN,
    /* The request goes to the window that lacks the least memory; idle memory moves there before the heap grows. */
    MOVED,
    SQUEEZED /* the request goes to the end of the range, and all idle memory moves there */
};

struct weir_mapped_range {
    CUmemAllocationProp kind;           /* the properties of every physical allocation */
    struct weir_mapped_handle *handles; /* the physical allocations, sorted by base */
    size_t handle_count, handle_capacity;
    /* The aliased mappings, sorted by base.  Mappings with base NOWHERE may be anywhere between the others. */
    struct weir_mapped_alias *aliases;
    size_t alias_count, alias_capacity;
    /* The pieces that the last survey has listed, sorted by base. */
    struct weir_mapped_piece *pieces;
    size_t piece_count, piece_capacity;
    /* the index of the first piece of each kind of addresses; the last entry is the number of all pieces */
    size_t first[WEIR_HEAP_KINDS + 1];
    /* The device's free memory at the time of the present request.  Valid if `knows_free` is set. */
    uint64_t device_free;
    int knows_free;
    struct weir_mapped_move *moves; /* the steps of the present plan, sorted by `to` */
    size_t move_count, move_capacity;
    /* A bit for each size of a block that lasts: the block was allocated between the last two trims above the release
     * threshold, and was live at the second of these trims. */
    uint64_t lasting[LASTING_BITS / 64];
    int was_trimmed; /* set by the first trim above the release threshold */
    /* The time in ns that moves and growth may take; negative after an operation that took longer. */
    int64_t budget;
    /* the time, in ticks, at which begin_work() last raised the budget */
    uint64_t earned;
    /* The devices with access to all memory of the range.  A thread that changes this field holds `bringing`. */
    struct weir_access access;
    pthread_mutex_t bringing; /* a thread takes this lock before the heap's lock */
    /* The bytes that background growth is mapping now.  They are a part of heap.kept. */
    size_t coming;
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

/* Returns the size of a small ("fine") physical allocation, within `least` and `most`, when `total` bytes are
 * reserved. */
static inline size_t fine_bytes(uint64_t total, size_t least, size_t most) {
    return weir__size_round_down(within(least, (size_t)(total / FINE_PART), most), PAGE);
}

/* Returns the index of the bit of this size in weir_mapped_range.lasting: a hash of the size. */
static inline unsigned lasting_bit(size_t bytes) {
    return (unsigned)((bytes + GRANULARITY - 1) / GRANULARITY * UINT64_C(0x9E3779B97F4A7C15) >>
                      32) %
           LASTING_BITS;
}

/* ---- where requests go: mapped_plan.c ---- */

/* Returns 1 if the budget allows moves and small physical allocations, else 0.  Returns 0 if background growth keeps
 * memory idle, since short waits then matter more than little reserved memory. */
int weir__mapped_has_budget(const struct weir_heap *h);

/* Lists in g->pieces the free and the unmapped pieces of the range, from the view of the stream `id`, or of no stream
 * if `id` is 0.  Each listed chunk costs some of the budget.  Returns 1 on success, 0 if there is no host memory. */
int weir__mapped_survey(struct weir_heap *h, uint64_t id);
/* Finds the idle physical allocations that may move, and sets their field `spare`.  They lie outside of the window,
 * and all their pieces have the kind `least` or a better kind.  If `least` is UNMAPPED, there is no such physical
 * allocation. */
void weir__mapped_find_spares(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                              int least);
/* Finds the window for a request of `bytes` bytes.  `way` is GROWN, MOVED or SQUEEZED.  Among windows that lack equal
 * memory, prefers clean memory to the stream's own memory, and the stream's own memory to memory of other streams.
 * Sets w->missing to SIZE_MAX if there is no window. */
void weir__mapped_find_place(const struct weir_heap *h, int kind, size_t bytes, int way,
                             struct weir_mapped_window *w);
/* Finds the window after the last memory of this kind of addresses.  If the memory before it is clean and free, the
 * window starts with this free memory.  Sets w->missing to SIZE_MAX if there is no window. */
void weir__mapped_find_tail(const struct weir_heap *h, int kind, size_t bytes,
                            struct weir_mapped_window *w);
/* Plans all memory that the window lacks.  Sets *planned to the bytes of new memory.  For a request that names an
 * address, new memory does not reach beyond the window.  But an idle physical allocation of up to FINE_MOST bytes may
 * reach beyond the window, since the owner's next request will use addresses there.  Returns 1 on success, 0 if there
 * is no host memory. */
int weir__mapped_plan(struct weir_heap *h, int kind, const struct weir_mapped_window *w, int way,
                      size_t *planned);

#endif
