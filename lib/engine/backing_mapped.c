/* SPDX-License-Identifier: MIT */
/* backing_mapped.c: an arena in one range of addresses, with physical memory mapped where it is needed.
 *
 * Memory comes in handles (cuMemCreate) of whole 2 MiB pages.  Addresses cost nothing: the range is many
 * times as large as the device, and what has no memory behind it is a hole.
 *
 * Room for a request.  Free memory and holes that lie side by side make a gap.  The request goes where
 * the least memory is missing: for that the holes there are filled, first with handles that are idle
 * elsewhere, which move, then with new ones.  Behind the end of all memory there is always a hole.
 * A large request does not begin in what others have left: it gets handles of its own, so that they can move when it
 * was freed.
 *
 * What moves.  Unmapping is immediate: it waits for no work that still uses the memory.  So a handle
 * leaves its place only when it lies in free memory whose last uses the host has seen done.  To see that of
 * the caller's own stream, an event is recorded there if it is idle, and asked about.
 * What is free for the stream but was not seen done moves all the same, since a handle may be mapped at two
 * places ("Virtual aliasing" in the CUDA programming guide): it is mapped at its new one, where that stream alone may
 * use it, in its order, and its old one stays mapped, a shadow in which nothing is placed, until its uses were
 * seen done.  Under internal_dependencies what others freed moves like that, too, behind a wait of the stream.
 *
 * Requests that name an address (weir_request.at) have a part of the addresses to themselves, so their owner's memory
 * grows in one piece.  Only physical allocations whose last uses have completed move there.
 *
 * Costs (H200, driver 580): 35 us to make and map a handle of up to 64 MiB, 45 us up to 256 MiB, 90 us for
 * a GiB; 38 us to move one of up to 64 MiB.
 *
 * Must not know: how blocks are placed and ordered, other backings, settings' names.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hostmem.h"
#include "base/result.h"
#include "base/size.h"
#include "driver/nvtx.h"
#include "engine/block_engine.h"
#include "engine/mapped_files.h"

#define GRANULARITY ((size_t)512)
#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)
/* Requests that are kept apart, so that small blocks that stay do not hold large handles. */
#define SMALL ((size_t)512 << 10)
#define NOWHERE UINT64_C(0) /* no address of the range */
/* Times the device's memory; fewer where the driver has no more.  A block that stays leaves a gap on either
 * side, so these are for programs that ask for ever larger blocks beside blocks that stay. */
enum { ADDRESSES = 64, LEAST_ADDRESSES = 4 };
enum { ADDRESSES_SMALL = 16, ADDRESSES_APART = 8 }; /* parts of them */
#define PIECE (64 * MIB)
/* The least that is added for small requests, unless all steps may be smaller. */
#define STEP_SMALL (8 * MIB)
/* The most of a handle that moves to small requests, and of what they get of what is taken beforehand. */
#define SPARE_SMALL (16 * MIB)
enum { PREALLOC_SMALL = 16 }; /* a part of it, unless they have so much idle */

/* Of the device, what its programs are taken to need at least; host tables are made for it at once. */
enum { FORESEEN_PART = 8 };
#define FORESEEN_MOST ((size_t)8 << 30)

/* Of what a place of its own would lack: who lacks no more joins what there is. */
enum { LITTLE_PART = 8 };

/* A move takes as long for any physical allocation of up to PIECE, and hardly longer for a larger one: of what is beyond
 * that, such a part counts as moved. */
enum { MOVED_PART = 16 };

/* The most of a handle that is made while the memory is fragmented: so much, or such a part of it. */
#define FRAGMENT (16 * MIB)
enum { FRAGMENT_PART = 64, WASTE_PART = 8 };

/* The most of a handle that is taken ahead for a plan.  Until a second run has gone along its places handles are small:
 * what is idle moves to where a request lacks memory.  Then they are large, which costs the driver less for each byte. */
#define PLANNED_MOST (64 * MIB)
#define KEPT_MOST ((size_t)1 << 30)

enum { TAGS = 8 }; /* the most pieces, not seen done, of what moves */

/* Physical memory, mapped whole. */
struct handle {
    uint64_t base; /* where it is mapped */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
};

/* What a stream freed up to a sequence. */
struct tag {
    uint64_t stream, sequence;
};

/* Addresses, in a hole, that are still mapped: their users were not seen done, or the driver did not unmap
 * them. */
struct shadow {
    uint64_t base; /* NOWHERE: not mapped any more */
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    int last; /* the handle is nowhere else but in other shadows, and goes with it if they went before */
    size_t tags;
    struct tag tag[TAGS]; /* of its users */
};

/* What a piece of the range is, as the caller's stream sees it. */
enum {
    BORDER, /* of no bytes: where the addresses of large or of small requests begin, or end */
    TAKEN,
    SHADOW, /* in a hole, but not to be used */
    OTHERS, /* free, but not for this stream; its last uses were not seen done */
    BEHIND, /* the same, but they could be waited for */
    OWN,    /* free for this stream; its last uses were not seen done */
    CLEAN,  /* free for everybody, and done */
    HOLE
};

struct piece {
    uint64_t base;
    size_t bytes;
    int what;
    uint64_t chunk; /* where the placement's chunk begins that it is of: a hole may be in pieces */
    struct tag tag; /* BEHIND and OWN */
};

/* An idle handle: the piece that it begins in, and where it is mapped. */
struct spare {
    size_t piece;
    uint64_t base;
    size_t bytes;
    int what; /* CLEAN, or the least of its pieces: OWN or BEHIND */
};

/* What is to be mapped where: a handle that is idle now, or a new one. */
struct move {
    struct handle to;
    uint64_t from; /* where it is mapped; NOWHERE: it is new, */
    size_t least;  /* and of so many bytes at least */
    int what;      /* as of a spare; CLEAN: it is new */
    int in_hand;   /* `to` has it, */
    int is_mapped; /* and it is mapped there, if not for all who have access */
};

/* Sizes follow what the arena has: handles are no larger than a `unit_part` of it, within bounds, and a
 * step is a `step_part` of it at least; a policy that wants a larger one has it as one handle.  A request of a
 * `large_part` of it, and of `large_least`, has handles of its own, so that all of them are idle when it was freed:
 * of one size, about PIECE or more: `pieces` at most, unless they were larger than `unit_most`.  Where several streams have memory handles are smaller: what
 * one of them freed last holds the whole handle for the others.  While work is pending, which keeps what each of them
 * freed to itself, they are smaller still, and no step adds more than is wanted. */
struct packing {
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

static const struct packing packings[] = {
    [WEIR_PACKING_COMPACT] = {1, 8 * MIB, 8 * MIB, 8 * MIB, 8 * MIB, 4, 2 * MIB, 8 * MIB, 1,
                              SIZE_MAX, 0, 0, 8, 64, 0, 64 * MIB, 1},
    [WEIR_PACKING_BALANCED] = {16, 40 * MIB, 256 * MIB, 80 * MIB, 32 * MIB, 16, 40 * MIB, 256 * MIB,
                               12, 32 * MIB, 8, 16, 4, 32, 32 * MIB, 256 * MIB, 64},
    [WEIR_PACKING_FAST] = {1, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, 1, 2 * MIB, SIZE_MAX, 1,
                           SIZE_MAX, 0, 0, 0, 64, 0, 4096 * MIB, 1},
};

struct range {
    uint64_t base;
    size_t bytes;
    size_t apart;             /* of these, at the end: for requests that name an address; 0: none */
    CUmemAllocationProp kind; /* of all handles, which may come to serve any block */
    struct handle *handles;   /* by base */
    size_t handle_count, handle_capacity;
    struct shadow *shadows; /* by base, among which those that are not mapped stand anywhere */
    size_t shadow_count, shadow_capacity;
    struct piece *pieces;               /* by base, as last surveyed */
    size_t piece_count, piece_capacity; /* without the border behind the last */
    size_t small_pieces;                /* from here on, a border, they are of the small kind, */
    size_t apart_pieces;  /* and from here on, a border, of requests that name an address */
    struct spare *spares; /* by base; there is room for all handles */
    size_t spare_count, spare_capacity;
    uint64_t
        device_free; /* as of the request for which room is made, if a growth policy wanted to know */
    int knows_free;
    struct move *moves; /* by where they go */
    size_t move_count, move_capacity;
    size_t
        piece; /* of the request for which room was made last, if it may have handles of its own; else 0 */
    size_t most_new;           /* largest new handle for this request */
    int64_t may_move;          /* bytes that may still move; negative after one large move */
    uint64_t total, taken;     /* blocks.total and blocks.taken when `may_move` was last updated */
    struct weir_access access; /* to all of it; changes under `bringing` */
    pthread_mutex_t bringing;  /* before the arena's lock */
    size_t coming;             /* bytes, part of what is kept: see "bringing" */
    const struct packing *packing;
    struct weir_mapped_files files; /* of handles that other processes may have */
};

/* Where a request goes. */
struct window {
    uint64_t base, end;
    size_t missing;
    int what; /* the free memory around is that, or better: CLEAN, OWN or BEHIND */
};

/* ---- handles --------------------------------------------------------------------------------- */

/* The first handle that ends above the address. */
static size_t handle_above(const struct range *g, uint64_t address) {
    size_t low = 0, high = g->handle_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (g->handles[middle].base + g->handles[middle].bytes > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* There is room for one more. */
static void link_handle(struct range *g, const struct handle *h) {
    size_t at = handle_above(g, h->base);

    memmove(&g->handles[at + 1], &g->handles[at], (g->handle_count - at) * sizeof g->handles[0]);
    g->handles[at] = *h;
    g->handle_count++;
}

static void unlink_handle(struct range *g, size_t at) {
    g->handle_count--;
    memmove(&g->handles[at], &g->handles[at + 1], (g->handle_count - at) * sizeof g->handles[0]);
}

/* Room for so many more handles, with as many spares, and shadows, and for one more of each, which is what is coming.
 * 1, or 0: no host memory. */
static int make_place(struct range *g, size_t handles, size_t shadows) {
    struct handle *more = weir__hostmem_room(g->handles, g->handle_count + handles,
                                             &g->handle_capacity, sizeof *more);
    struct spare *spares;
    struct shadow *dark;

    if (!more)
        return 0;
    g->handles = more;
    spares = weir__hostmem_room(g->spares, g->handle_count + handles, &g->spare_capacity,
                                sizeof *spares);
    if (!spares)
        return 0;
    g->spares = spares;
    dark = weir__hostmem_room(g->shadows, g->shadow_count + shadows, &g->shadow_capacity,
                              sizeof *dark);
    if (!dark)
        return 0;
    g->shadows = dark;
    return 1;
}

/* There is room for one more. */
static struct shadow *add_shadow(struct weir_block_engine *a, const struct handle *h, int last) {
    struct range *g = a->range;
    size_t at = 0;

    a->kept += last ? h->bytes : 0;
    while (at < g->shadow_count && g->shadows[at].base <= h->base)
        at++;
    memmove(&g->shadows[at + 1], &g->shadows[at], (g->shadow_count - at) * sizeof g->shadows[0]);
    g->shadow_count++;
    g->shadows[at] =
        (struct shadow){.base = h->base, .bytes = h->bytes, .handle = h->handle, .last = last};
    return &g->shadows[at];
}

/* A shadow in which the handle is mapped; NULL: there is none. */
static struct shadow *shadow_of(const struct range *g, CUmemGenericAllocationHandle handle) {
    for (size_t i = 0; i < g->shadow_count; i++)
        if (g->shadows[i].base != NOWHERE && g->shadows[i].handle == handle)
            return &g->shadows[i];
    return NULL;
}

/* The device has it back, if other processes have nothing of it. */
static CUresult release(const struct weir_block_engine *a, CUmemGenericAllocationHandle handle) {
    struct range *g = a->range;

    weir__mapped_files_close(&g->files, handle);
    return a->e.device->driver->cuMemRelease(handle);
}

/* It is mapped nowhere but in shadows: with the last of them the device has its memory back.  What the driver
 * does not take back is tried again later; there is room for a shadow. */
static void release_handle(struct weir_block_engine *a, struct handle h) {
    struct shadow *s = shadow_of(a->range, h.handle);

    h.base = NOWHERE;
    if (s) {
        s->last = 1;
        a->kept += h.bytes;
    } else if (release(a, h.handle) != CUDA_SUCCESS) {
        add_shadow(a, &h, 1);
    }
}

static void unmap_or_keep(struct weir_block_engine *a, struct move *m) {
    if (a->e.device->driver->cuMemUnmap(m->to.base, m->to.bytes) == CUDA_SUCCESS)
        return;
    add_shadow(a, &m->to, 1);
    m->in_hand = 0;
}

static int is_seen(const struct weir_block_engine *a, const struct shadow *s) {
    for (size_t i = s->tags; i-- > 0;)
        if (!weir__order_is_observed(&a->blocks.order, s->tag[i].stream, s->tag[i].sequence))
            return 0;
    return 1;
}

/* Unmaps a shadow whose users were seen done, and gives its handle back if it was the last: nothing is left of
 * it then, NOWHERE and not last. */
static void lift_shadow(struct weir_block_engine *a, struct shadow *s) {
    const struct weir_driver *driver = a->e.device->driver;
    struct shadow *other;

    if (s->base != NOWHERE) {
        if (!is_seen(a, s) || driver->cuMemUnmap(s->base, s->bytes) != CUDA_SUCCESS)
            return;
        s->base = NOWHERE;
        other = s->last ? shadow_of(a->range, s->handle) : NULL;
        if (other) {
            other->last = 1;
            s->last = 0;
        }
    }
    if (s->last && release(a, s->handle) == CUDA_SUCCESS) {
        a->kept -= s->bytes;
        s->last = 0;
    }
}

/* Lifts all that can be.  `notes`: what goes is an event; else it is part of what the caller notes. */
static void lift_shadows(struct weir_block_engine *a, int notes) {
    const struct weir_driver *driver = a->e.device->driver;
    struct range *g = a->range;
    uint64_t started = driver->ticks(), before = a->kept;
    struct weir_driver_scope scope;
    size_t kept = 0;

    if (g->shadow_count == 0 ||
        weir__driver_enter(driver, a->e.device->context, &scope) != CUDA_SUCCESS)
        return;
    for (size_t i = 0; i < g->shadow_count; i++)
        lift_shadow(a, &g->shadows[i]);
    for (size_t i = 0; i < g->shadow_count; i++)
        if (g->shadows[i].base != NOWHERE || g->shadows[i].last)
            g->shadows[kept++] = g->shadows[i];
    g->shadow_count = kept;
    weir__driver_leave(driver, &scope);
    if (notes && a->kept < before)
        weir__engine_note(&a->e, WEIR_EVENT_RECOVERY, 1, before, before - a->kept,
                          weir__device_since(a->e.device, started), weir__blocks_reserve(a));
}

/* Maps a handle where its base says, for all who have access. */
static CUresult map_handle(const struct weir_block_engine *a, struct move *m) {
    const struct weir_driver *driver = a->e.device->driver;
    const struct weir_access *access = &((const struct range *)a->range)->access;
    CUresult result = driver->cuMemMap(m->to.base, m->to.bytes, 0, m->to.handle, 0);

    if (result != CUDA_SUCCESS)
        return result;
    m->is_mapped = 1;
    return driver->cuMemSetAccess(m->to.base, m->to.bytes, access->list, access->count);
}

static CUresult make_handle(const struct weir_block_engine *a, struct handle *h) {
    const struct range *g = a->range;

    return a->e.device->driver->cuMemCreate(&h->handle, h->bytes, &g->kind, 0);
}

/* What the placement is asked for the survey has seen there: host memory alone may be short. */
static weir_status placed_or(int placed) {
    return placed == WEIR_PLACEMENT_OK ? WEIR_OK : weir__without_driver(WEIR_E_HOST_MEMORY);
}

/* ---- what there is --------------------------------------------------------------------------- */

struct survey {
    struct weir_block_engine *arena;
    struct range *range;
    uint64_t id;
    int failed;
};

/* Of the range, behind the common part. */
static size_t small_part(const struct range *g) {
    return weir__size_round_down(g->bytes / ADDRESSES_SMALL, PAGE);
}

/* Behind that. */
static uint64_t apart_base(const struct range *g) {
    return g->base + g->bytes - g->apart;
}

static uint64_t small_base(const struct range *g) {
    return apart_base(g) - small_part(g);
}

static void add_piece(struct survey *v, const struct piece *p) {
    struct range *g = v->range;
    struct piece *pieces =
        weir__hostmem_room(g->pieces, g->piece_count, &g->piece_capacity, sizeof *pieces);

    if (!pieces) {
        v->failed = 1;
        return;
    }
    g->pieces = pieces;
    pieces[g->piece_count++] = *p;
}

static void add_border(struct survey *v, uint64_t at) {
    add_piece(v, &(struct piece){at, 0, BORDER, at, {0}});
}

/* A hole, without the shadows in it. */
static void visit_hole(struct survey *v, uint64_t base, size_t bytes) {
    const struct range *g = v->range;
    uint64_t at = base, end = base + bytes;

    for (size_t i = 0; i < g->shadow_count && g->shadows[i].base < end; i++) {
        const struct shadow *s = &g->shadows[i];

        if (s->base < base)
            continue;
        if (s->base > at)
            add_piece(v, &(struct piece){at, (size_t)(s->base - at), HOLE, base, {0}});
        add_piece(v, &(struct piece){s->base, s->bytes, SHADOW, base, {0}});
        at = s->base + s->bytes;
    }
    if (at < end)
        add_piece(v, &(struct piece){at, (size_t)(end - at), HOLE, base, {0}});
}

static int what_is(const struct survey *v, const struct weir_placement_span *span) {
    if (span->live)
        return TAKEN;
    if (span->sequence == 0)
        return CLEAN;
    if (span->stream == v->id && v->id != 0)
        return OWN;
    return weir__suballoc_may_follow(&v->arena->blocks, v->id, span->stream, span->sequence)
               ? BEHIND
               : OTHERS;
}

static void visit_free(void *context, const struct weir_placement_span *span) {
    struct survey *v = context;

    add_piece(v, &(struct piece){span->address,
                                 span->size,
                                 what_is(v, span),
                                 span->address,
                                 {span->stream, span->sequence}});
}

/* What has no memory lies between the handles. */
static void add_holes(struct survey *v, const struct weir_placement *p, uint64_t base,
                      uint64_t end) {
    const struct range *g = v->range;
    uint64_t at = base;
    size_t bytes;

    if (weir__placement_holes(p) == 1 && weir__placement_last_hole(p, &at, &bytes)) {
        visit_hole(v, at, bytes);
        return;
    }
    for (size_t i = handle_above(g, base); i < g->handle_count && g->handles[i].base < end; i++) {
        const struct handle *h = &g->handles[i];

        if (h->base > at)
            visit_hole(v, at, (size_t)(h->base - at));
        at = h->base + h->bytes;
    }
    if (at < end)
        visit_hole(v, at, (size_t)(end - at));
}

static int by_base(const void *one, const void *other) {
    const struct piece *a = one, *b = other;

    return (a->base > b->base) - (a->base < b->base);
}

/* Adds a TAKEN piece for each gap between the pieces from `first` on, which stand by base.  Fills the array from its end,
 * so that one pass is enough. */
static void add_taken(struct survey *v, size_t first, uint64_t base, uint64_t end) {
    struct range *g = v->range;
    size_t count = g->piece_count, gaps = 0;
    struct piece *pieces;
    uint64_t at = base;

    for (size_t i = first; i < count; i++) {
        gaps += g->pieces[i].base > at;
        at = g->pieces[i].base + g->pieces[i].bytes;
    }
    gaps += end > at;
    pieces = weir__hostmem_room(g->pieces, count + gaps, &g->piece_capacity, sizeof *pieces);
    if (!pieces) {
        v->failed = 1;
        return;
    }
    g->pieces = pieces;
    g->piece_count += gaps;
    at = end;
    for (size_t to = g->piece_count; to > count;) {
        uint64_t from = count > first ? pieces[count - 1].base + pieces[count - 1].bytes : base;

        if (from < at)
            pieces[--to] = (struct piece){from, (size_t)(at - from), TAKEN, from, {0}};
        if (count > first) {
            pieces[--to] = pieces[--count];
            at = pieces[to].base;
        }
    }
}

/* The pieces of one kind, by base; what is neither free nor a hole is taken. */
static void survey_kind(struct survey *v, int kind, uint64_t base, uint64_t end) {
    struct range *g = v->range;
    struct weir_placement *p = v->arena->blocks.placement[kind];
    size_t first;

    add_border(v, base);
    first = g->piece_count;
    weir__placement_walk_free(p, visit_free, v);
    add_holes(v, p, base, end);
    if (v->failed)
        return;
    qsort(g->pieces + first, g->piece_count - first, sizeof *g->pieces, by_base);
    add_taken(v, first, base, end);
}

/* 1, or 0: no host memory. */
static int survey(struct weir_block_engine *a, uint64_t id) {
    struct range *g = a->range;
    struct survey v = {.arena = a, .range = g, .id = id};
    const uint64_t end = g->base + g->bytes;

    g->piece_count = 0;
    if (!weir__placement_settle(a->blocks.placement[WEIR_SUBALLOC_COMMON]) ||
        !weir__placement_settle(a->blocks.placement[WEIR_SUBALLOC_SMALL]) ||
        !weir__placement_settle(a->blocks.placement[WEIR_SUBALLOC_APART]))
        return 0;
    survey_kind(&v, WEIR_SUBALLOC_COMMON, g->base, small_base(g));
    g->small_pieces = g->piece_count;
    survey_kind(&v, WEIR_SUBALLOC_SMALL, small_base(g), apart_base(g));
    g->apart_pieces = g->piece_count;
    survey_kind(&v, WEIR_SUBALLOC_APART, apart_base(g), end);
    add_border(&v, end);
    g->piece_count--;
    return !v.failed;
}

/* What a handle in pieces from `first` on is, the least of them, and how many were not seen done. */
static int what_holds(const struct range *g, size_t first, const struct handle *h, size_t *unseen) {
    int what = CLEAN;

    *unseen = 0;
    for (size_t i = first; g->pieces[i].base < h->base + h->bytes; i++) {
        *unseen += g->pieces[i].what != CLEAN;
        if (g->pieces[i].what < what)
            what = g->pieces[i].what;
    }
    return what;
}

/* The idle handles in pieces [first, end), side by side, and outside the window, but for those of too many
 * tags. */
static void find_spares_in(struct range *g, const struct window *w, size_t first, size_t end) {
    uint64_t begins = g->pieces[first].base,
             ends = g->pieces[end - 1].base + g->pieces[end - 1].bytes;

    for (size_t at = handle_above(g, begins); at < g->handle_count; at++) {
        const struct handle *h = &g->handles[at];
        size_t tags;
        int what;

        if (h->base + h->bytes > ends)
            break;
        if (h->base < begins || (h->base < w->end && h->base + h->bytes > w->base))
            continue;
        while (g->pieces[first].base + g->pieces[first].bytes <= h->base)
            first++;
        what = what_holds(g, first, h, &tags);
        if (tags <= TAGS)
            g->spares[g->spare_count++] = (struct spare){first, h->base, h->bytes, what};
    }
}

/* The idle handles outside the window, in what is `least` or better. */
static void find_spares(struct range *g, const struct window *w, int least) {
    size_t end;

    g->spare_count = 0;
    for (size_t i = 0; i < g->piece_count; i = end) {
        for (end = i; g->pieces[end].what >= least && g->pieces[end].what != HOLE; end++)
            ;
        if (end > i)
            find_spares_in(g, w, i, end);
        end += end == i;
    }
}

/* ---- where a request goes -------------------------------------------------------------------- */

/* The part of a hole that the window covers, in whole pages.  0: none. */
static int covers(const struct window *w, const struct piece *p, uint64_t *from, uint64_t *to) {
    *from = weir__size_larger(p->base, w->base);
    *to = weir__size_smaller(p->base + p->bytes, w->end);
    if (p->what != HOLE || *from >= *to)
        return 0;
    *from -= (*from - p->base) % PAGE;
    *to += (PAGE - (*to - p->base) % PAGE) % PAGE;
    return 1;
}

/* Sees what the window from `base` on lacks, in the gap of pieces [first, last). */
static void try_window(const struct range *g, size_t first, size_t last, uint64_t base,
                       size_t bytes, int what, struct window *best) {
    struct window w = {.base = base, .end = base + bytes, .what = what};

    for (size_t i = first; i < last && w.missing < best->missing; i++) {
        uint64_t from, to;

        if (covers(&w, &g->pieces[i], &from, &to))
            w.missing += (size_t)(to - from);
    }
    if (w.missing < best->missing)
        *best = w;
}

static void try_gap(const struct range *g, size_t first, size_t last, size_t bytes, int what,
                    struct window *best) {
    uint64_t begin = g->pieces[first].base;
    uint64_t end = g->pieces[last - 1].base + g->pieces[last - 1].bytes;

    if (end - begin < bytes)
        return;
    try_window(g, first, last, begin, bytes, what, best);
    for (size_t i = first; i < last; i++) {
        const struct piece *p = &g->pieces[i];

        if (p->what == HOLE)
            continue;
        if (end - p->base >= bytes)
            try_window(g, first, last, p->base, bytes, what, best);
        if (p->base + p->bytes - begin >= bytes)
            try_window(g, first, last, p->base + p->bytes - bytes, bytes, what, best);
    }
}

/* The window that lacks least, and of these the lowest. */
static void find_window(const struct range *g, int small, size_t bytes, int what,
                        struct window *best) {
    size_t first = small ? g->small_pieces : 0;
    size_t end = small ? g->apart_pieces : g->small_pieces;

    for (size_t i = first; i <= end; i++) {
        if (g->pieces[i].what >= what)
            continue;
        if (i > first)
            try_gap(g, first, i, bytes, what, best);
        first = i + 1;
    }
}

/* A free chunk for `what`, no hole, that begins where a handle does: 1, or 0. */
static int begins_whole(const struct range *g, size_t i, int what) {
    const struct piece *p = &g->pieces[i];

    /* What is free has a handle. */
    return p->what >= what && g->handles[handle_above(g, p->base)].base == p->base;
}

/* The window at the beginning of that chunk, if what comes behind it lets it. */
static void try_whole(const struct range *g, size_t i, size_t bytes, int what,
                      struct window *best) {
    uint64_t base = g->pieces[i].base;
    size_t last = i;

    while (g->pieces[last].what >= what)
        last++;
    if (g->pieces[last - 1].base + g->pieces[last - 1].bytes >= base + bytes)
        try_window(g, i, last, base, bytes, what, best);
}

/* The window in a hole, away from what lies before it by as much as it has itself: so far that may grow in its place,
 * and neither joins the other. */
static void try_hole(const struct range *g, size_t i, size_t bytes, struct window *best) {
    const struct piece *p = &g->pieces[i];
    size_t before = p->base > g->base ? weir__size_round_down(bytes, PAGE) + PAGE : 0;

    if (bytes < best->missing && p->bytes >= before + bytes + 2 * PAGE)
        *best = (struct window){
            .base = p->base + before, .end = p->base + before + bytes, bytes, CLEAN};
}

/* For a request with handles of its own: the window that lacks least of those that begin with a handle, or in a
 * hole. */
static void find_own(const struct range *g, size_t bytes, int what, struct window *best) {
    for (size_t i = 0; i < g->small_pieces; i++)
        if (g->pieces[i].what == HOLE)
            try_hole(g, i, bytes, best);
        else if (begins_whole(g, i, what))
            try_whole(g, i, bytes, what, best);
}

/* Behind the last memory of its range; what is free there counts in. */
static void find_tail(const struct range *g, int small, size_t bytes, struct window *w) {
    size_t i = (small ? g->apart_pieces : g->small_pieces) - 1;
    uint64_t end = g->pieces[i].base + g->pieces[i].bytes;

    *w = (struct window){.missing = SIZE_MAX}; /* there are no addresses for it */
    if (g->pieces[i].what != HOLE)
        return;
    while (g->pieces[i - 1].what == CLEAN)
        i--;
    if (end - g->pieces[i].base >= bytes)
        *w = (struct window){
            .base = g->pieces[i].base, .end = g->pieces[i].base + bytes, .what = CLEAN};
}

/* ---- what is to be done ------------------------------------------------------------------------- */

/* The spare for `want` bytes where no more than `most` fit: a clean one before the stream's own, that before
 * what must be waited for; of these the largest that is not larger, else the smallest.  1 and its place, or
 * 0. */
static int choose_spare(const struct range *g, size_t want, uint64_t most, size_t *at) {
    const struct spare *best = NULL;

    for (size_t i = 0; i < g->spare_count; i++) {
        const struct spare *s = &g->spares[i];

        if (s->bytes == 0 || s->bytes > most || (best && s->what < best->what))
            continue;
        if (!best || s->what > best->what ||
            (s->bytes <= want ? best->bytes > want || s->bytes > best->bytes
                              : best->bytes > want && s->bytes < best->bytes)) {
            best = s;
            *at = i;
        }
    }
    return best != NULL;
}

/* Memory that the request's stream may have. */
static int is_free_for(const struct piece *p) {
    return p->what == CLEAN || p->what == OWN || p->what == BEHIND;
}

/* Memory of the large or of the small requests. */
static size_t held(const struct range *g, int small) {
    size_t bytes = 0, end = small ? g->apart_pieces : g->small_pieces;

    for (size_t i = small ? g->small_pieces : 0; i < end; i++)
        bytes += g->pieces[i].what == HOLE || g->pieces[i].what == SHADOW ? 0 : g->pieces[i].bytes;
    return bytes;
}

/* Of the memory of small requests, in whole pages, what could serve any of them once its uses are seen done. */
static size_t idle_small(const struct range *g) {
    size_t bytes = 0;

    for (size_t i = g->small_pieces; i < g->apart_pieces; i++) {
        const struct piece *p = &g->pieces[i];

        bytes += p->what == TAKEN || p->what == HOLE || p->what == SHADOW || p->bytes < SMALL
                     ? 0
                     : p->bytes;
    }
    return weir__size_round_down(bytes, PAGE);
}

static size_t within(size_t least, size_t value, size_t most) {
    return weir__size_larger(least, weir__size_smaller(value, most));
}

/* The largest handle of a request beside pending work. */
static size_t unit_pending(const struct weir_block_engine *a) {
    const struct weir_order *o = &a->blocks.order;

    return o->several && o->waiting_marks > 0
               ? ((const struct range *)a->range)->packing->unit_most_pending
               : SIZE_MAX;
}

/* A plan foresees the reserve: what it lacks is little, and more of it would lie idle. */
static int is_planned(const struct weir_block_engine *a) {
    return a->e.planned != NULL;
}

/* How much to add where `want` bytes are missing and `most` fit; `planned` will have been added by then.
 * No more than a handle should have, unless a policy wants more. */
static size_t step_for(struct weir_block_engine *a, int small, size_t want, size_t most,
                       size_t planned) {
    struct range *g = a->range;
    const struct packing *p = g->packing;
    size_t room = weir__blocks_room(a), step, least, unit, wanted = 0;
    size_t total = held(g, small) + planned;
    weir_growth_state state = {.size = sizeof state,
                               .reserve = (size_t)a->blocks.total + planned,
                               .in_use = (size_t)a->blocks.in_use,
                               .request = want,
                               .limit = weir__blocks_growth_limit(a),
                               .device_free = SIZE_MAX};

    if (a->e.options->growth != WEIR_GROWTH_EXACT && !g->knows_free) {
        g->device_free = weir__device_free(a->e.device);
        g->knows_free = 1;
    }
    if (g->knows_free && g->device_free != UINT64_MAX)
        state.device_free = (size_t)weir__size_less(g->device_free, planned);
    step = weir__growth_step(a->e.options, &state, PAGE, &a->cursor);
    if (a->e.options->growth != WEIR_GROWTH_EXACT && step > want)
        wanted = step;
    least = small ? weir__size_smaller(p->step_least, STEP_SMALL) : p->step_least;
    least =
        g->piece || is_planned(a) || unit_pending(a) < p->step_least
            ? 0
            : weir__size_smaller(within(least, total / p->step_part, p->step_most), g->most_new);
    step = weir__size_smaller(weir__size_larger(step, least), most);
    /* What is beyond the request stays below the limit. */
    step = within(want, step, weir__size_less(room, planned));
    unit = a->blocks.order.several ? p->unit_most_several : p->unit_most;
    unit =
        weir__size_smaller(within(p->unit_least, (total + want) / p->unit_part, unit), g->most_new);
    unit = weir__size_smaller(unit, unit_pending(a));
    unit = g->piece ? g->piece : unit;
    return weir__size_round_down(weir__size_smaller(step, weir__size_larger(unit, wanted)), PAGE);
}

/* 1, or 0: no host memory. */
static int plan_move(struct range *g, const struct move *m) {
    struct move *moves =
        weir__hostmem_room(g->moves, g->move_count, &g->move_capacity, sizeof *moves);

    if (!moves)
        return 0;
    g->moves = moves;
    moves[g->move_count++] = *m;
    return 1;
}

/* Plans memory for [at, to) of a hole, or more, up to `most`.  1, or 0: no host memory. */
static int plan_hole(struct weir_block_engine *a, int squeeze, int small, uint64_t at, uint64_t to,
                     uint64_t most, size_t *planned) {
    struct range *g = a->range;

    while (at < to) {
        size_t want = (size_t)(to - at), spare = 0, bytes;
        uint64_t from = NOWHERE;
        int what = CLEAN;

        /* A large handle would be held by the first small block that stays. */
        if (choose_spare(g, want,
                         small && !squeeze ? weir__size_smaller(SPARE_SMALL, most - at) : most - at,
                         &spare)) {
            bytes = g->spares[spare].bytes;
            from = g->spares[spare].base;
            what = g->spares[spare].what;
            g->spares[spare].bytes = 0;
        } else {
            bytes = squeeze ? want : step_for(a, small, want, (size_t)(most - at), *planned);
            *planned += bytes;
        }
        if (!plan_move(g, &(struct move){.to = {.base = at, .bytes = bytes},
                                         .from = from,
                                         .least = weir__size_smaller(want, bytes),
                                         .what = what}))
            return 0;
        at += bytes;
    }
    return 1;
}

/* Plans all that the window lacks: bytes that are new in *planned.  1, or 0: no host memory. */
static int plan(struct weir_block_engine *a, const struct window *w, int squeeze, size_t *planned) {
    struct range *g = a->range;
    uint64_t from, to;

    g->move_count = 0;
    *planned = 0;
    for (size_t i = 0; i < g->piece_count; i++) {
        const struct piece *p = &g->pieces[i];

        if (covers(w, p, &from, &to) &&
            !plan_hole(a, squeeze, i >= g->small_pieces, from, to, p->base + p->bytes, planned))
            return 0;
    }
    return 1;
}

/* ---- doing it -------------------------------------------------------------------------------- */

/* Takes an idle handle from where it is mapped, in the free chunk that starts at `chunk`.  There is room for a
 * shadow. */
static weir_status lift(struct weir_block_engine *a, uint64_t chunk, uint64_t base,
                        struct handle *h) {
    struct range *g = a->range;
    size_t i = handle_above(g, base);
    weir_status status =
        placed_or(weir__suballoc_punch(&a->blocks, chunk, base, g->handles[i].bytes));
    CUresult result;

    if (status != WEIR_OK)
        return status;
    *h = g->handles[i];
    unlink_handle(g, i);
    result = a->e.device->driver->cuMemUnmap(base, h->bytes);
    if (result != CUDA_SUCCESS)
        add_shadow(a, h, 1);
    return weir__device_status(a->e.device, result);
}

/* The piece that has the address, by the last survey. */
static size_t piece_of(const struct range *g, uint64_t address) {
    size_t low = 0, high = g->piece_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (g->pieces[middle].base > address)
            high = middle;
        else
            low = middle;
    }
    return low;
}

/* The same of one whose users were not seen done: the request's stream waits for those that are not itself, and
 * a shadow stays. */
static weir_status lift_unseen(struct weir_block_engine *a, struct weir_request *r, size_t piece,
                               uint64_t base, struct handle *h) {
    struct range *g = a->range;
    size_t i = handle_above(g, base), last = piece_of(g, base + g->handles[i].bytes - 1);
    struct shadow *s;
    weir_status status;
    CUresult result = CUDA_SUCCESS;

    for (size_t p = piece; p <= last && result == CUDA_SUCCESS; p++)
        if (g->pieces[p].what == BEHIND)
            result = weir__order_follow(&a->blocks.order, r->stream, g->pieces[p].tag.stream,
                                        g->pieces[p].tag.sequence);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    status = placed_or(
        weir__suballoc_hollow(&a->blocks, g->pieces[piece].base, base, g->handles[i].bytes));
    if (status != WEIR_OK)
        return status;
    *h = g->handles[i];
    unlink_handle(g, i);
    s = add_shadow(a, h, 0);
    for (size_t p = piece; p <= last; p++)
        if (g->pieces[p].what != CLEAN)
            s->tag[s->tags++] = g->pieces[p].tag;
    return WEIR_OK;
}

static int compare(uint64_t x, uint64_t y) {
    return (x > y) - (x < y);
}

static int is_from_higher(const void *a, const void *b) {
    return compare(((const struct move *)b)->from, ((const struct move *)a)->from);
}

static int is_to_higher(const void *a, const void *b) {
    return compare(((const struct move *)a)->to.base, ((const struct move *)b)->to.base);
}

/* Lifts all that will move, from the highest address down; *lifted is set if there is anything. */
static weir_status lift_all(struct weir_block_engine *a, struct weir_request *r, int *lifted) {
    struct range *g = a->range;
    weir_status status = WEIR_OK;

    qsort(g->moves, g->move_count, sizeof g->moves[0], is_from_higher);
    for (size_t i = 0; i < g->move_count && status == WEIR_OK && g->moves[i].from != NOWHERE; i++) {
        struct move *m = &g->moves[i];
        uint64_t to = m->to.base;
        size_t piece = piece_of(g, m->from);

        *lifted = 1;
        status = m->what == CLEAN ? lift(a, g->pieces[piece].base, m->from, &m->to)
                                  : lift_unseen(a, r, piece, m->from, &m->to);
        m->in_hand = status == WEIR_OK;
        m->to.base = to;
    }
    qsort(g->moves, g->move_count, sizeof g->moves[0], is_to_higher);
    return status;
}

/* Makes a handle, unless there is one, and maps it: an error may leave it in hand, and mapped. */
static weir_status make_and_map(const struct weir_block_engine *a, struct move *m) {
    CUresult result = m->in_hand ? CUDA_SUCCESS : make_handle(a, &m->to);

    if (result == CUDA_SUCCESS) {
        m->in_hand = 1;
        result = map_handle(a, m);
    }
    return weir__device_status(a->e.device, result);
}

/* Has the placement know of a handle that is mapped, if all went well so far, in the hole that starts at `hole`; an
 * error: it is not mapped any more.  There is room for it, and for a shadow. */
static weir_status enter(struct weir_block_engine *a, weir_status status, uint64_t hole,
                         struct move *m, uint64_t id) {
    if (status == WEIR_OK)
        status = placed_or(weir__suballoc_fill(&a->blocks, hole, m->to.base, m->to.bytes, id));
    if (status == WEIR_OK) {
        link_handle(a->range, &m->to);
        m->in_hand = 0;
    } else if (m->is_mapped) {
        unmap_or_keep(a, m);
    }
    m->is_mapped = 0;
    return status;
}

/* All of it. */
static weir_status put(struct weir_block_engine *a, uint64_t hole, struct move *m, uint64_t id) {
    return enter(a, make_and_map(a, m), hole, m, id);
}

/* Handles that are mapped nowhere, or in shadows alone, go to the device, now or with those. */
static void release_leftovers(struct weir_block_engine *a) {
    struct range *g = a->range;

    for (size_t i = 0; i < g->move_count; i++) {
        struct move *m = &g->moves[i];

        if (m->in_hand)
            release_handle(a, m->to);
        m->in_hand = 0;
    }
}

/* What the plan needs of the device at least. */
static uint64_t least_new(const struct range *g) {
    uint64_t bytes = 0;

    for (size_t i = 0; i < g->move_count; i++)
        if (g->moves[i].from == NOWHERE)
            bytes += weir__size_smaller(g->moves[i].to.bytes, g->moves[i].least);
    return bytes;
}

/* Makes all handles that are new, before any of them is mapped: else those that the device had for a
 * request that it cannot serve would be held by what lies beside them. */
static weir_status make_new(struct weir_block_engine *a, struct weir_request *r) {
    struct range *g = a->range;
    CUresult result = CUDA_SUCCESS;
    uint64_t least = least_new(g);

    if (least >= WEIR_ENGINE_LARGE && weir__engine_would_refuse(&a->e, r, least, 0))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < g->move_count && result == CUDA_SUCCESS; i++) {
        struct move *m = &g->moves[i];

        if (m->from != NOWHERE)
            continue;
        result = make_handle(a, &m->to);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && m->to.bytes > m->least) {
            m->to.bytes = m->least;
            result = make_handle(a, &m->to);
        }
        m->in_hand = result == CUDA_SUCCESS;
    }
    return result == CUDA_SUCCESS ? WEIR_OK : weir__device_status(a->e.device, result);
}

/* As how many bytes it counts that a physical allocation of so many moves. */
static size_t counted(const struct range *g, size_t bytes) {
    if (bytes > PIECE)
        return PIECE + (bytes - PIECE) / MOVED_PART;
    return weir__size_larger(bytes, g->packing->moved_least);
}

/* Carries the plan out.  `counts`: what moves is taken off the allowance. */
static weir_status carry_out(struct weir_block_engine *a, struct weir_request *r, int what,
                             int counts) {
    struct range *g = a->range;
    uint64_t started = a->e.device->driver->ticks(), before = weir__blocks_reserve(a), moved = 0;
    uint64_t end = 0, hole;
    uint64_t id = what == OWN ? r->id : WEIR_ENGINE_OBSERVED;
    weir_status status;
    int lifted = 0, unseen = 0;

    /* So that all that is lifted can come back to a list, whatever happens. */
    if (!make_place(g, g->move_count, 2 * g->move_count))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    status = make_new(a, r);
    if (status == WEIR_OK)
        status = lift_all(a, r, &lifted);
    /* Else the holes are as they were. */
    if (lifted && status == WEIR_OK && !survey(a, r->id))
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
    for (size_t i = 0; i < g->move_count; i++)
        unseen |= g->moves[i].what != CLEAN;
    for (size_t i = 0; i < g->move_count && status == WEIR_OK; i++) {
        struct move *m = &g->moves[i];

        hole = g->pieces[piece_of(g, m->to.base)].chunk;
        status = put(a, weir__size_larger(hole, end), m, m->what == CLEAN ? id : r->id);
        end = m->to.base + m->to.bytes;
        moved += m->from != NOWHERE ? counted(g, m->to.bytes) : 0;
    }
    release_leftovers(a);
    if (unseen) /* else nobody may ever see them done */
        weir__suballoc_mark(&a->blocks, r->id, r->stream);
    g->may_move -= counts ? (int64_t)moved : 0;
    if (weir__blocks_reserve(a) > before) {
        r->grew = 1;
        weir__blocks_grown(a);
        weir__engine_note(&a->e, WEIR_EVENT_REQUEST, 0, r->bytes, weir__blocks_reserve(a) - before,
                          weir__device_since(a->e.device, started), weir__blocks_reserve(a));
    } else if (weir__blocks_reserve(a) < before) { /* lifted, and not put anywhere */
        weir__engine_note(&a->e, WEIR_EVENT_RECOVERY, 1, 0, before - weir__blocks_reserve(a),
                          weir__device_since(a->e.device, started), weir__blocks_reserve(a));
    }
    return status;
}

/* ---- the backing ----------------------------------------------------------------------------- */

/* Who keeps memory idle would have requests wait little rather than reserve little: a handle takes as long to move as
 * to make, and one is made where several would move. */
static int hurries(const struct weir_block_engine *a) {
    return (a->e.traits & WEIR_ENGINE_GROWS_AHEAD) &&
           ((struct range *)a->range)->packing->pieces > 0;
}

/* How room is made, each for where the one before it finds too little. */
enum {
    OF_ITS_OWN, /* a large request has handles of its own */
    LEAST,      /* where least is missing */
    SQUEEZED    /* at the end, with all that is idle */
};

/* Raises the allowance of bytes that may move: by `patience` times what the arena grew, and by a part of what requests got,
 * up to `patience` times the arena.  A load that rarely needs moves need not grow.  A load that often needs them spends
 * much less time on moves than on writing the requested memory once; when the allowance is used up it grows. */
static void earn_moves(const struct weir_block_engine *a) {
    struct range *g = a->range;
    uint64_t grown = weir__size_less(a->blocks.total, g->total);
    int64_t most = (int64_t)(g->packing->patience * a->blocks.total);

    g->may_move += (int64_t)(g->packing->patience * grown +
                             (a->blocks.taken - g->taken) / g->packing->moves_part);
    if (g->may_move > most)
        g->may_move = most;
    g->total = a->blocks.total;
    g->taken = a->blocks.taken;
}

/* Handles may move: there have not been too many moves, or nothing else is left. */
static int may_move(const struct weir_block_engine *a, int way) {
    return way == SQUEEZED || (!hurries(a) && ((const struct range *)a->range)->may_move > 0);
}

/* The bytes of each handle of a request that has some of its own; 0: it has not.  A policy that was chosen decides how
 * much is added. */
static size_t piece_for(const struct weir_block_engine *a, size_t bytes) {
    const struct range *g = a->range;
    const struct packing *p = g->packing;
    size_t pieces;

    if (bytes < p->large_least || bytes < held(g, 0) / p->large_part ||
        a->e.options->growth != WEIR_GROWTH_EXACT)
        return 0;
    pieces = a->blocks.order.several ? p->pieces_several : p->pieces;
    pieces = within((bytes + p->unit_most - 1) / p->unit_most, (bytes + PIECE / 2) / PIECE, pieces);
    pieces = weir__size_larger(pieces, bytes / unit_pending(a));
    pieces = hurries(a) ? 1 : pieces;
    return weir__size_round_down((bytes + pieces - 1) / pieces + PAGE - 1, PAGE);
}

/* The largest handle that is made for a request.  If the free memory of its stream exceeds it by an eighth of the arena,
 * the arena is fragmented: handles are small then, so that they can move later. */
static size_t most_new_for(const struct weir_block_engine *a, int small, size_t bytes) {
    const struct range *g = a->range;
    size_t free_bytes = 0, total = held(g, 0);

    if (small || hurries(a) || g->packing->patience == 0)
        return SIZE_MAX;
    for (size_t i = 0; i < g->small_pieces; i++)
        free_bytes += is_free_for(&g->pieces[i]) ? g->pieces[i].bytes : 0;
    if (free_bytes < bytes + total / WASTE_PART)
        return SIZE_MAX;
    return weir__size_larger(FRAGMENT, total / FRAGMENT_PART);
}

static void find_place(const struct weir_block_engine *a, int small, size_t bytes, int way,
                       struct window *w) {
    struct range *g = a->range;
    struct window own = {.missing = SIZE_MAX};

    g->piece = 0;
    if (way == SQUEEZED) {
        find_tail(g, small, bytes, w);
        return;
    }
    find_window(g, small, bytes, CLEAN, w);
    find_window(g, small, bytes, OWN, w);
    find_window(g, small, bytes, BEHIND, w);
    g->piece = way == LEAST ? 0 : piece_for(a, bytes);
    if (g->piece == 0)
        return;
    find_own(g, bytes, CLEAN, &own);
    find_own(g, bytes, OWN, &own);
    find_own(g, bytes, BEHIND, &own);
    /* Else it lacks little, or there are no addresses for it. */
    if (w->missing > own.missing / LITTLE_PART)
        *w = own;
}

static weir_status make_room(struct weir_block_engine *a, struct weir_request *r, size_t bytes,
                             int way) {
    struct range *g = a->range;
    struct window w = {.missing = SIZE_MAX};
    int small = weir__suballoc_is_small(&a->blocks, r->bytes);
    struct weir_driver_scope scope;
    weir_status status;
    CUresult result;
    size_t planned;
    int may;

    if (!survey(a, r->id))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    find_place(a, small, bytes, way, &w);
    if (w.missing == SIZE_MAX)
        return weir__without_driver(WEIR_E_NO_MEMORY);
    g->most_new = most_new_for(a, small, bytes);
    g->spare_count = 0;
    earn_moves(a);
    may = may_move(a, way);
    /* What moves unseen becomes the stream's own, which is nobody's where it is not known. */
    if (may)
        find_spares(g, &w, r->id != 0 ? BEHIND : CLEAN);
    if (!plan(a, &w, way == SQUEEZED, &planned))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    if (planned > weir__blocks_room(a) && !may &&
        g->packing->patience > 0) { /* it cannot grow instead */
        find_spares(g, &w, r->id != 0 ? BEHIND : CLEAN);
        if (!plan(a, &w, 0, &planned))
            return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    if (planned > weir__blocks_room(a))
        return weir__blocks_are_full(a);
    result = weir__driver_enter(a->e.device->driver, a->e.device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    status = carry_out(a, r, w.what, may && way != SQUEEZED);
    weir__driver_leave(a->e.device->driver, &scope);
    return status;
}

static weir_status mapped_make_room(struct weir_block_engine *a, struct weir_request *r,
                                    uint64_t reserve) {
    weir_status status;
    size_t bytes;

    (void)reserve; /* what moves changes it */
    ((struct range *)a->range)->knows_free = 0;
    /* unreached: an overflow, since no request is above the device's memory */
    if (!weir__size_round_up(r->bytes, GRANULARITY, &bytes))
        return weir__without_driver(WEIR_E_NO_MEMORY);
    weir__suballoc_ask(&a->blocks, r->id, r->stream);
    lift_shadows(a, 1);
    status = make_room(a, r, bytes, OF_ITS_OWN);
    if (weir__is_refusal(status) && ((struct range *)a->range)->piece > 0)
        status = make_room(a, r, bytes, LEAST);
    if (weir__is_refusal(status))
        status = make_room(a, r, bytes, SQUEEZED);
    return status;
}

/* ---- bringing ---------------------------------------------------------------------------------- */

/* Growth that no request waits for makes and maps its handles without the arena's lock, so that requests which find
 * room meanwhile do not wait for the driver.  What comes is part of the reserve.  `bringing` is held for all of it, by
 * one at a time; who has to grow waits for it first, since what comes may be enough, and then keeps the arena's lock:
 * so nothing else is placed in the hole where it comes. */

static void begin_bringing(struct weir_block_engine *a) {
    struct range *g = a->range;

    weir__lock_give(&a->lock);
    pthread_mutex_lock(&g->bringing);
    weir__lock_take(&a->lock);
}

static void end_bringing(struct weir_block_engine *a) {
    pthread_mutex_unlock(&((struct range *)a->range)->bringing);
}

static int mapped_await(struct weir_block_engine *a, const struct weir_request *r) {
    (void)r;
    if (((const struct range *)a->range)->coming == 0)
        return 0;
    begin_bringing(a);
    end_bringing(a);
    return 1;
}

/* The hole behind all memory of the large or of the small requests: 1, or 0: there is none. */
static int last_hole(const struct weir_block_engine *a, int small, uint64_t *base, size_t *bytes) {
    return weir__placement_last_hole(
        a->blocks.placement[small ? WEIR_SUBALLOC_SMALL : WEIR_SUBALLOC_COMMON], base, bytes);
}

/* The same behind the shadows in it. */
static int find_end(const struct weir_block_engine *a, int small, uint64_t *at, size_t *bytes) {
    const struct range *g = a->range;
    uint64_t end;

    if (!last_hole(a, small, at, bytes))
        return 0;
    end = *at + *bytes;
    for (size_t i = 0; i < g->shadow_count; i++)
        if (g->shadows[i].base >= *at && g->shadows[i].base < end)
            *at = g->shadows[i].base + g->shadows[i].bytes;
    *bytes = (size_t)(end - *at);
    return *bytes > 0;
}

static void mapped_survey(struct weir_block_engine *a, struct weir_survey *out) {
    struct weir_placement *p = a->blocks.placement[WEIR_SUBALLOC_COMMON];

    if (!(out->what & WEIR_SURVEY_PIECES))
        return;
    out->piece.largest = weir__placement_largest(p, 0);
    out->piece.last = weir__placement_tail(p);
}

/* Brings a handle of so many bytes to the last hole: *added. */
static weir_status bring(struct weir_block_engine *a, int small, uint64_t at, size_t bytes,
                         size_t *added) {
    struct range *g = a->range;
    struct move m = {.to = {.base = at, .bytes = bytes}};
    weir_status status;
    uint64_t before, peak = a->reserve_peak, hole = at;
    size_t rest;

    if (!make_place(g, 1, 1))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    g->coming = bytes;
    a->kept += bytes;
    weir__blocks_grown(a);
    weir__lock_give(&a->lock);
    status = make_and_map(a, &m);
    weir__lock_take(&a->lock);
    g->coming = 0;
    a->kept -= bytes;
    before = weir__blocks_reserve(a);
    (void)last_hole(a, small, &hole, &rest);
    status = enter(a, status, hole, &m, WEIR_ENGINE_OBSERVED);
    if (m.in_hand)
        release_handle(a, m.to);
    if (status != WEIR_OK) { /* nobody else grows meanwhile */
        a->reserve_peak = peak;
        weir__blocks_grown(a);
    }
    *added =
        (size_t)(weir__blocks_reserve(a) - before); /* what the driver does not take back, too */
    return status;
}

/* The most of a handle that is taken ahead of requests, towards a reserve of so much. */
static size_t most_ahead(const struct weir_block_engine *a, uint64_t goal, int cause) {
    const struct packing *p = ((const struct range *)a->range)->packing;
    size_t part = weir__size_round_down((size_t)goal / p->prealloc_part, PAGE);

    if (is_planned(a))
        return a->e.planned->is_kept && !a->e.planned->departed ? KEPT_MOST : PLANNED_MOST;
    return cause == WEIR_EVENT_PREALLOC
               ? weir__size_smaller(weir__size_larger(p->unit_least, part), p->ahead_most)
               : p->ahead_most;
}

/* Takes so many bytes for large or for small requests, in handles of up to `most`, behind the last of their memory. */
static weir_status grow_kind(struct weir_block_engine *a, int small, size_t bytes, size_t most,
                             size_t *got) {
    weir_status status = WEIR_OK;

    while (status == WEIR_OK) {
        size_t added = 0, room, step;
        uint64_t at;

        /* The limit may have been lowered since. */
        bytes = weir__size_smaller(bytes, weir__size_round_down(weir__blocks_room(a), PAGE));
        if (bytes == 0)
            break;
        if (!find_end(a, small, &at, &room))
            return weir__without_driver(WEIR_E_NO_MEMORY);
        step = weir__size_smaller(weir__size_smaller(bytes, room), most);
        status = bring(a, small, at, step, &added);
        *got += added;
        bytes -= weir__size_smaller(added, bytes);
        if (status == WEIR_E_NO_MEMORY && step > PAGE) {
            most = weir__size_round_down(step / 2, PAGE);
            status = WEIR_OK;
        }
    }
    return status;
}

static weir_status mapped_grow(struct weir_block_engine *a, uint64_t reserve, uint64_t goal,
                               int cause, size_t *got) {
    struct weir_driver_scope scope;
    weir_status status = WEIR_OK;
    size_t lacks, bytes, small, most, room;
    uint64_t at;
    CUresult result;

    begin_bringing(a);
    lift_shadows(a, 1);
    most = most_ahead(a, weir__size_larger(reserve, goal), cause);
    lacks = (size_t)weir__size_less(reserve, weir__blocks_reserve(a));
    bytes = weir__size_round_down(weir__size_smaller(lacks, weir__blocks_room(a)), PAGE);
    if (!survey(a, 0)) {
        end_bringing(a);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    small = weir__size_round_down(within(PAGE, bytes / PREALLOC_SMALL, SPARE_SMALL), PAGE);
    if (is_planned(a))
        small = weir__size_round_down(a->e.planned->small + PAGE - 1, PAGE);
    small = bytes > PAGE ? (size_t)weir__size_less(small, idle_small(a->range)) : 0;
    small = weir__size_smaller(small, bytes);
    result = weir__driver_enter(a->e.device->driver, a->e.device->context, &scope);
    if (!find_end(a, 1, &at, &room)) /* all their addresses are in use */
        small = 0;
    if (result == CUDA_SUCCESS) {
        status = grow_kind(a, 0, bytes - small, most, got);
        if (status == WEIR_OK)
            status = grow_kind(a, 1, small, most, got);
        weir__driver_leave(a->e.device->driver, &scope);
    } else {
        status = weir__device_status(a->e.device, result);
    }
    end_bringing(a);
    weir__blocks_grown(a);
    if (status == WEIR_OK && *got < lacks)
        return weir__blocks_are_full(a);
    return status;
}

/* ---- requests that name an address ---------------------------------------------------------------- */

/* Far from all that lies there: what lies before may grow in its place.  NOWHERE: there are too few addresses. */
static uint64_t find_far(const struct range *g, size_t bytes) {
    uint64_t at = NOWHERE;
    size_t most = 2 * bytes;

    for (size_t i = g->apart_pieces; i < g->piece_count; i++) {
        const struct piece *p = &g->pieces[i];

        if (p->what != HOLE || p->bytes <= most)
            continue;
        most = p->bytes;
        at = p->base == apart_base(g) ? p->base
                                      : p->base + weir__size_round_down(p->bytes / 2, PAGE);
    }
    return at;
}

/* How far an idle physical allocation may reach that fills [from, to) of a hole. */
static uint64_t most_there(const struct piece *p, uint64_t from, uint64_t to) {
    uint64_t end = p->base + weir__size_round_down(p->bytes, PAGE);

    return weir__size_larger(to, weir__size_smaller(from + PIECE, end));
}

/* Plans what the window lacks, in which only holes and free memory may lie: exactly, but for what is idle elsewhere, of
 * which a physical allocation of up to PIECE may reach beyond it.  That serves who grows there next.  A status. */
static weir_status plan_there(struct weir_block_engine *a, const struct window *w,
                              size_t *planned) {
    struct range *g = a->range;

    g->move_count = 0;
    *planned = 0;
    for (size_t i = piece_of(g, w->base); g->pieces[i].base < w->end; i++) {
        const struct piece *p = &g->pieces[i];
        uint64_t from, to;

        if (p->what != HOLE && p->what != CLEAN)
            return weir__without_driver(WEIR_E_NO_MEMORY);
        if (covers(w, p, &from, &to) &&
            !plan_hole(a, 1, 0, from, to, most_there(p, from, to), planned))
            return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    return *planned > weir__blocks_room(a) ? weir__blocks_are_full(a) : WEIR_OK;
}

static weir_status mapped_place(struct weir_block_engine *a, struct weir_request *r,
                                struct weir_placement_block *out) {
    struct range *g = a->range;
    struct window w = {.what = CLEAN};
    struct weir_driver_scope scope;
    weir_status status;
    CUresult result;
    size_t planned;
    int may, placed;

    (void)mapped_await(a, r);
    weir__suballoc_ask(&a->blocks, r->id, r->stream);
    weir__suballoc_look_around(&a->blocks);
    lift_shadows(a, 1);
    if (!survey(a, r->id))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    w.base = r->at == WEIR_ENGINE_FAR ? find_far(g, r->bytes) : r->at;
    w.end = w.base + r->bytes;
    if (w.base == NOWHERE || w.end > g->base + g->bytes)
        return weir__without_driver(WEIR_E_NO_MEMORY);
    g->spare_count = 0;
    earn_moves(a);
    may = may_move(a, LEAST);
    if (may)
        find_spares(g, &w, CLEAN);
    status = plan_there(a, &w, &planned);
    if (weir__is_refusal(status) && !may) { /* it cannot grow instead */
        find_spares(g, &w, CLEAN);
        status = plan_there(a, &w, &planned);
    }
    if (status != WEIR_OK)
        return status;
    if (planned > 0)
        weir__order_dry(&a->blocks.order); /* streams record what they free, to be seen next time */
    result = weir__driver_enter(a->e.device->driver, a->e.device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    status = carry_out(a, r, CLEAN, may);
    weir__driver_leave(a->e.device->driver, &scope);
    if (status != WEIR_OK)
        return status;
    placed = weir__suballoc_take_at(&a->blocks, w.base, r->bytes, r->id, out);
    /* What lay before it was given back meanwhile, and both are one now. */
    return placed == WEIR_PLACEMENT_NO_FIT ? weir__without_driver(WEIR_E_NO_MEMORY)
                                           : placed_or(placed);
}

/* 1 if a handle is idle that was not seen done.  The survey is of now. */
static int has_unseen(const struct range *g) {
    size_t i = 0;

    for (size_t at = 0; at < g->handle_count; at++) {
        const struct handle *h = &g->handles[at];
        size_t unseen;

        while (g->pieces[i].base + g->pieces[i].bytes <= h->base)
            i++;
        if (what_holds(g, i, h, &unseen) != TAKEN && unseen > 0)
            return 1;
    }
    return 0;
}

/* 1 if a handle went with its old place, but that was not seen done. */
static int has_unseen_shadow(const struct weir_block_engine *a) {
    const struct range *g = a->range;

    for (size_t at = 0; at < g->shadow_count; at++)
        if (g->shadows[at].last && !is_seen(a, &g->shadows[at]))
            return 1;
    return 0;
}

/* Gives idle handles back, the highest first, until at most `keep` bytes are left.  *unseen: 1 if more would be idle
 * once it was seen done, else as it was. */
static weir_status give_idle(struct weir_block_engine *a, size_t keep, int *unseen) {
    struct range *g = a->range;
    const struct window none = {0};
    struct weir_driver_scope scope;
    weir_status status = WEIR_OK;
    struct handle h;
    CUresult result;

    lift_shadows(a, 0);
    if (!survey(a, 0))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    *unseen |= has_unseen(g);
    find_spares(g, &none, CLEAN);
    if (!make_place(g, 0, g->spare_count))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    result = weir__driver_enter(a->e.device->driver, a->e.device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    for (size_t i = g->spare_count; i-- > 0 && status == WEIR_OK;) {
        const struct spare *s = &g->spares[i];

        if (weir__blocks_reserve(a) < keep + s->bytes)
            continue;
        status = lift(a, g->pieces[s->piece].base, s->base, &h);
        if (status == WEIR_OK)
            release_handle(a, h);
    }
    *unseen |= has_unseen_shadow(a);
    weir__driver_leave(a->e.device->driver, &scope);
    return status;
}

static weir_status mapped_shrink(struct weir_block_engine *a, struct weir_trim *trim) {
    int unseen = 0;
    weir_status status = give_idle(a, trim->keep, &unseen);

    if (status != WEIR_OK || weir__blocks_reserve(a) <= trim->keep || !unseen)
        return status;
    status = weir__device_status(a->e.device, weir__suballoc_wait(&a->blocks, 1));
    return status == WEIR_OK ? give_idle(a, trim->keep, &unseen) : status;
}

static int mapped_wholes(struct weir_block_engine *a, const struct weir_visit *visit) {
    const struct range *g = a->range;
    int count = 0;

    for (size_t i = 0; i < g->handle_count; i++)
        count += weir__engine_show(
            visit, &(struct weir_extent){.base = g->handles[i].base, .bytes = g->handles[i].bytes},
            1);
    return count;
}

static weir_status mapped_shed(struct weir_block_engine *a, struct weir_trim *trim) {
    int unseen = 0;

    (void)give_idle(a, trim->keep, &unseen);
    return WEIR_OK;
}

/* Behind the last of the memory: what is free there, what is idle elsewhere, and what is new. */
static size_t mapped_largest(struct weir_block_engine *a, const struct weir_survey *asked) {
    struct range *g = a->range;
    struct window tail;
    size_t bytes;

    if (!survey(a, asked->id))
        return 0;
    find_tail(g, 0, 0, &tail);
    tail.end = g->pieces[g->small_pieces - 1].base;
    if (tail.missing > 0)
        return 0;
    find_spares(g, &tail, CLEAN);
    bytes = weir__size_round_down(weir__device_room(a->e.device, weir__blocks_room(a), 0), PAGE);
    bytes += (size_t)(tail.end - tail.base);
    for (size_t i = 0; i < g->spare_count; i++)
        bytes += g->spares[i].bytes;
    bytes = (size_t)weir__size_smaller(bytes,
                                       tail.end + g->pieces[g->small_pieces - 1].bytes - tail.base);
    return weir__suballoc_is_small(&a->blocks, bytes) ? 0 : bytes;
}

/* The beginnings of both parts. */
static size_t mapped_foresee(const struct weir_block_engine *a, struct weir_extent *out) {
    const struct range *g = a->range;
    size_t bytes = weir__size_smaller(a->e.device->total / FORESEEN_PART, FORESEEN_MOST), n;

    n = weir__engine_extend(out, 0, WEIR_BLOCKS_FORESEEN,
                            (struct weir_extent){.base = small_base(g), .bytes = SPARE_SMALL});
    return weir__engine_extend(out, n, WEIR_BLOCKS_FORESEEN,
                               (struct weir_extent){.base = g->base,
                                                    .bytes = weir__size_round_down(bytes, PAGE),
                                                    .large = 1});
}

/* What a device may do now. */
static CUmemAccess_flags flags_of(const struct weir_access *access, CUdevice device) {
    for (size_t i = 0; i < access->count; i++)
        if (access->list[i].location.id == device)
            return access->list[i].flags;
    return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

/* Shadows are left out: no work is to come that uses them. */
static weir_status mapped_allow(struct weir_block_engine *a, const CUmemAccessDesc *access) {
    const struct weir_driver *driver = a->e.device->driver;
    struct range *g = a->range;
    CUmemAccessDesc before = *access;
    struct weir_driver_scope scope;
    CUresult result;
    size_t i;

    begin_bringing(a);
    result = weir__driver_enter(driver, a->e.device->context, &scope);
    if (result != CUDA_SUCCESS) {
        end_bringing(a);
        return weir__device_status(a->e.device, result);
    }
    before.flags = flags_of(&g->access, access->location.id);
    for (i = 0; i < g->handle_count && result == CUDA_SUCCESS; i++)
        result = driver->cuMemSetAccess(g->handles[i].base, g->handles[i].bytes, access, 1);
    if (result == CUDA_SUCCESS)
        weir__peers_note(&g->access, access);
    else
        while (i-- > 0)
            (void)driver->cuMemSetAccess(g->handles[i].base, g->handles[i].bytes, &before, 1);
    weir__driver_leave(driver, &scope);
    end_bringing(a);
    return weir__device_status(a->e.device, result);
}

/* The driver and the device know memory by handles. */
static weir_status check_device(struct weir_device *device) {
    int can = 0;
    CUresult result;

    if (!(device->driver->capabilities & WEIR_CAP_VIRTUAL))
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    result = device->driver->cuDeviceGetAttribute(
        &can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device->ordinal);
    if (result != CUDA_SUCCESS)
        return weir__device_status(device, result);
    return can ? WEIR_OK : weir__without_driver(WEIR_E_NOT_SUPPORTED);
}

/* Handles are mapped whole, each at one place besides its shadows; where a live block lies none is missing. */
static weir_status mapped_files(struct weir_block_engine *a, uint64_t base, size_t bytes,
                                struct weir_memory_files *out) {
    struct range *g = a->range;
    struct weir_driver_scope scope;
    uint64_t at = base, mark = weir__mapped_files_mark();
    CUresult result;
    weir_status status = WEIR_OK;

    if (g->kind.requestedHandleTypes == 0)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    result = weir__driver_enter(a->e.device->driver, a->e.device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    for (size_t i = handle_above(g, base); at < base + bytes && status == WEIR_OK; i++) {
        const struct handle *h = &g->handles[i];

        if (i == g->handle_count || h->base > at) {
            status = weir__without_driver(WEIR_E_NOT_OWNED);
        } else {
            status =
                weir__mapped_files_add(&g->files, a->e.device, h->handle,
                                       &(struct weir_memory_file){h->base, h->bytes, -1, 0}, out);
            at = h->base + h->bytes;
        }
    }
    if (status != WEIR_OK)
        weir__mapped_files_undo(&g->files, mark);
    weir__driver_leave(a->e.device->driver, &scope);
    return status;
}

static void mapped_close(struct weir_block_engine *a) {
    struct range *g = a->range;
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_driver_scope scope;

    weir__nvtx_unname(g->base);
    if (weir__driver_enter(driver, a->e.device->context, &scope) == CUDA_SUCCESS) {
        for (size_t i = 0; i < g->handle_count; i++) {
            (void)driver->cuMemUnmap(g->handles[i].base, g->handles[i].bytes);
            (void)release(a, g->handles[i].handle);
        }
        for (size_t i = 0; i < g->shadow_count; i++) {
            if (g->shadows[i].base != NOWHERE)
                (void)driver->cuMemUnmap(g->shadows[i].base, g->shadows[i].bytes);
            if (g->shadows[i].last)
                (void)release(a, g->shadows[i].handle);
        }
        (void)driver->cuMemAddressFree(g->base, g->bytes);
        weir__driver_leave(driver, &scope);
    }
    weir__mapped_files_end(&g->files);
    pthread_mutex_destroy(&g->bringing);
    free(g->handles);
    free(g->shadows);
    free(g->pieces);
    free(g->spares);
    free(g->moves);
    free(g);
}

static weir_status mapped_open(struct weir_block_engine *a, const struct weir_engine *setup) {
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_driver_scope scope;
    struct range *g;
    CUdeviceptr base = 0;
    weir_status status = check_device(a->e.device);
    size_t device = weir__size_round_down(a->e.device->total, PAGE);
    CUresult result;
    int placed;

    (void)setup;
    if (status != WEIR_OK)
        return status;
    g = calloc(1, sizeof *g);
    if (!g)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    g->packing = &packings[a->e.options->packing];
    g->bytes = device * ADDRESSES;
    result =
        weir__device_mapped_kind(driver, a->e.device->ordinal, a->e.device->decompresses, &g->kind);
    if (result == CUDA_SUCCESS)
        result = weir__driver_enter(driver, a->e.device->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = driver->cuMemAddressReserve(&base, g->bytes, 0, 0, 0);
        while (result == CUDA_ERROR_OUT_OF_MEMORY && g->bytes > device * LEAST_ADDRESSES) {
            g->bytes /= 2;
            result = driver->cuMemAddressReserve(&base, g->bytes, 0, 0, 0);
        }
        weir__driver_leave(driver, &scope);
    }
    if (result != CUDA_SUCCESS) {
        free(g);
        return weir__device_status(a->e.device, result);
    }
    g->base = base;
    if (g->bytes == device * ADDRESSES)
        g->apart = weir__size_round_down(g->bytes / ADDRESSES_APART, PAGE);
    g->access = a->e.device->access;
    a->e.step_bytes = weir__size_smaller(a->e.step_bytes, 2 * g->packing->ahead_most);
    placed = weir__suballoc_add_range(&a->blocks, base, small_base(g) - base, WEIR_SUBALLOC_COMMON);
    if (placed == WEIR_PLACEMENT_OK)
        placed =
            weir__suballoc_add_range(&a->blocks, small_base(g), small_part(g), WEIR_SUBALLOC_SMALL);
    if (placed == WEIR_PLACEMENT_OK && g->apart > 0)
        placed = weir__suballoc_add_range(&a->blocks, apart_base(g), g->apart, WEIR_SUBALLOC_APART);
    if (placed != WEIR_PLACEMENT_OK) {
        (void)driver->cuMemAddressFree(base, g->bytes);
        free(g);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    pthread_mutex_init(&g->bringing, NULL);
    weir__nvtx_name("the addresses of a mapped arena", a->e.device->ordinal, base, g->bytes);
    a->range = g;
    if (a->e.planned)
        a->e.planned->base = base;
    return WEIR_OK;
}

const struct weir_backing weir__backing_mapped = {
    .rule = {.placement = {.granularity = GRANULARITY, .split_waste = GRANULARITY, .own_first = 1},
             .small = SMALL},
    .granularity = PAGE,
    .step_bytes = 512 * MIB,
    .traits = WEIR_ENGINE_SETTLES | WEIR_ENGINE_MOVES | WEIR_ENGINE_SHEDS | WEIR_ENGINE_TAKES,
    .open = mapped_open,
    .close = mapped_close,
    .make_room = mapped_make_room,
    .await = mapped_await,
    .place = mapped_place,
    .grow = mapped_grow,
    .shrink = mapped_shrink,
    .foresee = mapped_foresee,
    .wholes = mapped_wholes,
    .files = mapped_files,
    .largest = mapped_largest,
    .survey = mapped_survey,
    .allow = mapped_allow,
    .shed = mapped_shed,
};
