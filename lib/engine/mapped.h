/* SPDX-License-Identifier: MIT */
/* mapped.h: the interface between mapped.c and mapped_plan.c, which together are the backing of the mapped engine.
 *
 * mapped_plan.c finds the free memory, and plans at which addresses to make room for a request and which physical
 * allocations to map there.  mapped.c carries out such plans, and does everything else.
 *
 * Locks.  The heap's lock guards everything here.  A thread takes `growth_lock` before the heap's lock.
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

/* The initial budget, in ns of driver time for moves and small physical allocations.  With half of it, on a device
 * model as slow as the GPU, programs of several streams and with varying lengths used up the budget.  They then
 * reserved up to a third more memory than they requested. */
#define CREDIT_NS INT64_C(20000000)
/* The ns by which each GiB of growth to a new peak raises the budget, up to CREDIT_NS.  The driver's own pool takes 1
 * to 2.4 ms for a GiB of growth.  With half of EARNED_NS, weir created only large physical allocations in the first
 * iterations of programs. */
#define EARNED_NS INT64_C(2000000)
/* The budget grows by a hundredth of the time that passes.  So moves and small physical allocations slow a program by
 * 1 % at most. */
enum { TIME_PART = 100 };
/* The largest budget, in ns.  Eight seconds raise the budget from 0 to this value.  It is also the longest time that
 * later requests may lose to moves at once. */
#define BUDGET_MOST_NS INT64_C(80000000)
/* The ns by which the budget falls for each chunk of addresses that a request examines when it plans moves.  On the
 * device model, such work takes no time by the clock, so weir subtracts a fixed price.  Without it, a program with
 * 60,000 blocks took three times as long. */
#define SURVEYED_NS 10
/* While the budget is above 0, a new physical allocation has a 32nd of the reserved memory, but at least FINE_LEAST
 * and at most FINE_MOST bytes.  With a 64th, and limits of 8 and 32 MiB, first iterations took up to 1.3 times as long
 * as with the driver's own pool. */
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

/* A physical allocation may move only if at most TAGS of its free chunks still have work that has not completed. */
enum { TAGS = 8 };

struct weir_mapped_file;

/* A physical allocation (VMM handle).  All of it is mapped at one address. */
struct weir_mapped_handle {
    uint64_t base; /* the address at which the physical allocation is mapped */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    /* The file descriptor by which other processes can map the memory, or NULL if the memory was never exported. */
    struct weir_mapped_file *file;
    /* Results of weir__mapped_find_spares.  `spare` is 1 if the physical allocation is idle and may move.  `piece` is
     * the index of the free piece in which it starts, `state` is the least kind of its free pieces, and `tags` is the
     * number of its pieces with work that has not completed. */
    int spare, state;
    size_t piece, tags;
};

/* The sequence number of a free on a stream.  It stands for all frees of the stream up to this number. */
struct weir_mapped_tag {
    uint64_t stream, sequence;
};

/* An aliased mapping: old addresses at which a physical allocation is still mapped after it has moved.  Either work on
 * these addresses has not completed, or the driver has failed to unmap them. */
struct weir_mapped_alias {
    uint64_t base; /* the address of the mapping, or NOWHERE after weir has unmapped it */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    /* Set if the physical allocation has no mapping except aliased mappings.  weir then releases the physical
     * allocation to the device together with its last aliased mapping. */
    int last;
    /* the file descriptor by which other processes map the memory, if `last` is set; else NULL */
    struct weir_mapped_file *file;
    size_t tags;
    /* For each stream with work on these addresses, the last free of the stream there.  weir unmaps the addresses when
     * all these frees have completed. */
    struct weir_mapped_tag tag[TAGS];
};

/* The kinds of free and unmapped pieces of the address range, as one stream sees them.  A kind with a larger number is
 * better for the stream. */
enum {
    ALIAS, /* an aliased mapping, where no block may lie */
    /* Free memory that this stream may not use, since work of other streams on it has not completed. */
    OTHERS,
    BEHIND, /* Free memory that this stream may use after it waits for the work of other streams. */
    /* Free memory that only this stream may use, since its own work on the memory has not completed. */
    OWN,
    CLEAN, /* free memory that all streams may use; all work on it has completed */
    UNMAPPED
};

struct weir_mapped_piece {
    uint64_t base;
    size_t bytes;
    int state;
    /* The last free in the piece.  Unused for the kinds CLEAN, ALIAS and UNMAPPED, which need no wait. */
    struct weir_mapped_tag tag;
};

/* A window: adjacent free memory and unmapped ranges, where weir makes room for a request by mapping memory. */
struct weir_mapped_window {
    uint64_t base, end;
    size_t missing;
    /* the worst kind (CLEAN, OWN or BEHIND) of the free memory in the window and next to it */
    int state;
};

/* One step of a plan that makes room for a request.  The step maps one physical allocation at the address to.base.
 * The physical allocation is either idle and moves, or new. */
struct weir_mapped_move {
    struct weir_mapped_handle to;
    /* The present address of an idle physical allocation, or NOWHERE for a new one. */
    uint64_t from;
    size_t piece; /* the index of the free piece that contains `from` */
    /* the smallest size that suffices for a new physical allocation, if the device lacks memory */
    size_t least;
    int state;      /* the kind of the idle memory that moves, or CLEAN for new memory */
    int is_created; /* set once the physical allocation exists, with its handle in `to` */
    /* Set once the physical allocation is mapped at the address to.base.  Some devices may still lack access to it. */
    int is_mapped;
};

/* The ways to make room for a request, in the order in which weir tries them. */
enum {
    /* Only new memory is mapped, in the window that lacks the least memory. */
    GROWN,
    /* Idle memory moves to the window that lacks the least memory, and the heap grows only if this does not suffice.
     * */
    MOVED,
    /* all idle memory moves to the end of the address range, and the block is placed there */
    SQUEEZED
};

struct weir_mapped_range {
    CUmemAllocationProp kind;           /* the properties of every physical allocation */
    struct weir_mapped_handle *handles; /* the physical allocations, sorted by base */
    size_t handle_count, handle_capacity;
    /* The aliased mappings, sorted by base.  Mappings with base NOWHERE, which are unmapped, may be anywhere in the
     * array. */
    struct weir_mapped_alias *aliases;
    size_t alias_count, alias_capacity;
    /* The free and unmapped pieces that weir__mapped_survey has listed last, sorted by base. */
    struct weir_mapped_piece *pieces;
    size_t piece_count, piece_capacity;
    /* The index of the first piece of each kind of addresses (WEIR_HEAP_COMMON and so on).  The last entry is the
     * number of all pieces. */
    size_t first[WEIR_HEAP_KINDS + 1];
    /* The device's free memory, queried once in the present request.  Valid if `knows_free` is set. */
    uint64_t device_free;
    int knows_free;
    /* the steps of the plan for the present request, sorted by their target address */
    struct weir_mapped_move *moves;
    size_t move_count, move_capacity;
    /* A bit for each size of a block that lasts: the block was allocated between the last two trims above the release
     * threshold, and was live at the second of these trims. */
    uint64_t lasting[LASTING_BITS / 64];
    int was_trimmed; /* set by the first trim above the release threshold */
    /* The time in ns that moves and growth may take; negative after an operation that took longer. */
    int64_t budget;
    /* The time, in ticks of the driver's clock, at which the budget was last raised for passed time. */
    uint64_t earned;
    /* The devices that can access all memory of the range.  A thread holds `growth_lock` while it changes this field. */
    struct weir_access access;
    /* Held by a thread that grows in the background or changes access.  Taken before the heap's lock. */
    pthread_mutex_t growth_lock;
    /* The bytes that a thread is mapping in the background.  The field `kept` of the heap includes these bytes. */
    size_t bytes_being_mapped;
};

/* Returns the index of the first physical allocation that ends above the address.  The array is sorted, so the search
 * takes O(log n). */
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

/* Returns 1 if the time budget allows moves and small physical allocations, else 0.  Also returns 0 if background
 * growth keeps memory idle, since the program then prefers short waits to little reserved memory. */
int weir__mapped_has_budget(const struct weir_heap *h);

/* Lists in g->pieces the free and the unmapped pieces of the range, as the stream `id` sees them, or no stream if `id`
 * is 0.  Lowers the time budget for each chunk of addresses that it examines.  Returns 1 on success, 0 if there is no
 * host memory. */
int weir__mapped_survey(struct weir_heap *h, uint64_t id);
/* Finds the idle physical allocations that may move into the window, and sets their field `spare`.  They lie outside
 * of the window, and each of their free pieces has the kind `least` or a kind that is better for the stream.  If
 * `least` is UNMAPPED, the function finds none. */
void weir__mapped_find_spares(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                              int least);
/* Finds the window where a request of `bytes` bytes needs the least additional memory.  `method` is GROWN, MOVED or
 * SQUEEZED.  Among windows that lack equal memory, prefers memory that all streams may use, then memory of the
 * request's stream, then memory of other streams.  Sets w->missing to SIZE_MAX if there is no window. */
void weir__mapped_find_place(const struct weir_heap *h, int kind, size_t bytes, int method,
                             struct weir_mapped_window *w);
/* Finds the window after the last memory of this kind of addresses, for growth without a request.  If the last memory
 * is free for all streams, the window starts with it.  Sets w->missing to SIZE_MAX if there is no window. */
void weir__mapped_find_tail(const struct weir_heap *h, int kind, size_t bytes,
                            struct weir_mapped_window *w);
/* Plans which physical allocations to move to the window or to create there, until the window lacks no memory.  Sets
 * *planned to the bytes of new memory.  For a request that names its address, new memory does not reach beyond the
 * window, but an idle physical allocation of up to FINE_MOST bytes may, since the program will probably extend its
 * block there.  Returns 1 on success, 0 if there is no host memory. */
int weir__mapped_plan(struct weir_heap *h, int kind, const struct weir_mapped_window *w, int method,
                      size_t *planned);

#endif
