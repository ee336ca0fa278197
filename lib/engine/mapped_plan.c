/* SPDX-License-Identifier: MIT */
/* mapped_plan.c: which physical allocations a request gets, in which sizes, and how they are mapped.
 *
 * Sizes follow the arena's total memory, by the rules of its packing.  A plan fills the unmapped ranges where a request
 * goes, first with idle physical allocations, which move there, then with new ones.
 *
 * cuMemUnmap does not wait for work that still uses the memory.  So a physical allocation leaves its address only if
 * the host has observed that its last uses have completed.  Memory that is free for the stream, but whose uses have not
 * completed, is mapped at its new address, which that stream alone may use; the old address stays mapped, as an aliased
 * mapping.  With internal_dependencies, other streams' free memory moves so, too, after the stream was made to wait for
 * it.
 *
 * Moves use up an allowance of bytes, which growth and requests raise.
 */
#include <stdlib.h>

#include "base/hostmem.h"
#include "engine/mapped_state.h"

/* ---- sizes ---- */

/* the least bytes of a growth for small requests, unless packing allows less */
#define STEP_SMALL (8 * MIB)

/* While memory is fragmented, a new physical allocation has at most FRAGMENT bytes, or a FRAGMENT_PART of the arena. */
#define FRAGMENT (16 * MIB)
enum { FRAGMENT_PART = 64, WASTE_PART = 8 };

const struct weir_mapped_packing weir__mapped_packings[] = {
    [WEIR_PACKING_COMPACT] = {1, 8 * MIB, 8 * MIB, 8 * MIB, 8 * MIB, 4, 2 * MIB, 8 * MIB, 1,
                              SIZE_MAX, 0, 0, 8, 64, 0, 64 * MIB, 1},
    [WEIR_PACKING_BALANCED] = {16, 40 * MIB, 256 * MIB, 80 * MIB, 32 * MIB, 16, 40 * MIB, 256 * MIB,
                               12, 32 * MIB, 8, 16, 4, 32, 32 * MIB, 256 * MIB, 64},
    [WEIR_PACKING_FAST] = {1, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, 1, 2 * MIB, SIZE_MAX, 1,
                           SIZE_MAX, 0, 0, 0, 64, 0, 4096 * MIB, 1},
};

/* Returns the bytes of the memory of large or of small requests. */
static size_t mapped_held(const struct weir_mapped_range *g, int small) {
    size_t bytes = 0, end = small ? g->apart_pieces : g->small_pieces;

    for (size_t i = small ? g->small_pieces : 0; i < end; i++)
        bytes +=
            g->pieces[i].what == UNMAPPED || g->pieces[i].what == ALIAS ? 0 : g->pieces[i].bytes;
    return bytes;
}

/* Returns 1 if the request's stream may use the piece, else 0. */
static int is_free_for(const struct weir_mapped_piece *p) {
    return p->what == CLEAN || p->what == OWN || p->what == BEHIND;
}

/* Returns the most bytes of a new physical allocation while work is pending. */
static size_t unit_pending(const struct weir_block_engine *a) {
    const struct weir_order *o = &a->blocks.order;

    return o->several && o->waiting_marks > 0 ? range_of(a)->packing->unit_most_pending : SIZE_MAX;
}

static size_t mapped_step_for(struct weir_block_engine *a, int small, size_t want, size_t most,
                              size_t planned) {
    struct weir_mapped_range *g = a->range;
    const struct weir_mapped_packing *p = g->packing;
    size_t room = weir__blocks_room(a), step, least, unit, wanted = 0;
    size_t total = mapped_held(g, small) + planned;
    weir_growth_state state = {.size = sizeof state,
                               .reserved = (size_t)a->blocks.total + planned,
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
        g->piece || unit_pending(a) < p->step_least
            ? 0
            : weir__size_smaller(within(least, total / p->step_part, p->step_most), g->most_new);
    step = weir__size_smaller(weir__size_larger(step, least), most);
    /* The growth beyond the request must stay below the limit. */
    step = within(want, step, weir__size_less(room, planned));
    unit = a->blocks.order.several ? p->unit_most_several : p->unit_most;
    unit =
        weir__size_smaller(within(p->unit_least, (total + want) / p->unit_part, unit), g->most_new);
    unit = weir__size_smaller(unit, unit_pending(a));
    unit = g->piece ? g->piece : unit;
    return weir__size_round_down(weir__size_smaller(step, weir__size_larger(unit, wanted)), PAGE);
}

size_t weir__mapped_piece_for(const struct weir_block_engine *a, size_t bytes) {
    const struct weir_mapped_range *g = a->range;
    const struct weir_mapped_packing *p = g->packing;
    size_t pieces;

    if (bytes < p->large_least || a->e.options->growth != WEIR_GROWTH_EXACT ||
        bytes < weir__size_smaller(mapped_held(g, 0) / p->large_part, p->unit_most))
        return 0;
    pieces = a->blocks.order.several ? p->pieces_several : p->pieces;
    pieces = within((bytes + p->unit_most - 1) / p->unit_most, (bytes + PIECE / 2) / PIECE, pieces);
    pieces = weir__size_larger(pieces, bytes / unit_pending(a));
    pieces = hurries(a) ? 1 : pieces;
    return weir__size_round_down((bytes + pieces - 1) / pieces + PAGE - 1, PAGE);
}

size_t weir__mapped_most_new_for(const struct weir_block_engine *a, int small, size_t bytes) {
    const struct weir_mapped_range *g = a->range;
    size_t free_bytes = 0, total = mapped_held(g, 0);

    if (small || hurries(a) || g->packing->patience == 0)
        return SIZE_MAX;
    for (size_t i = 0; i < g->small_pieces; i++)
        free_bytes += is_free_for(&g->pieces[i]) ? g->pieces[i].bytes : 0;
    if (free_bytes < bytes + total / WASTE_PART)
        return SIZE_MAX;
    return weir__size_larger(FRAGMENT, total / FRAGMENT_PART);
}

size_t weir__mapped_most_ahead(const struct weir_block_engine *a, uint64_t goal, int cause) {
    const struct weir_mapped_packing *p = range_of(a)->packing;
    size_t part = weir__size_round_down((size_t)goal / p->prealloc_part, PAGE);

    return cause == WEIR_EVENT_PREALLOC
               ? weir__size_smaller(weir__size_larger(p->unit_least, part), p->ahead_most)
               : p->ahead_most;
}

/* ---- the plan ---- */

/* Chooses the idle physical allocation to move for `want` bytes where `most` fit.  One that is free for all streams is
 * better than one of the stream, which is better than one that needs a wait.  Among equals the largest of at most
 * `want` bytes is best, else the smallest.  Returns 1 and its index, or 0. */
static int choose_spare(const struct weir_mapped_range *g, size_t want, uint64_t most, size_t *at) {
    const struct weir_mapped_spare *best = NULL;

    for (size_t i = 0; i < g->spare_count; i++) {
        const struct weir_mapped_spare *s = &g->spares[i];

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

/* Adds a move to the plan.  Returns 1 on success, 0 if there is no host memory. */
static int plan_move(struct weir_mapped_range *g, const struct weir_mapped_move *m) {
    struct weir_mapped_move *moves =
        weir__hostmem_room(g->moves, g->move_count, &g->move_capacity, sizeof *moves);

    if (!moves)
        return 0;
    g->moves = moves;
    moves[g->move_count++] = *m;
    return 1;
}

int weir__mapped_plan_unmapped(struct weir_block_engine *a, int squeeze, int small, uint64_t at,
                               uint64_t to, uint64_t most, size_t *planned) {
    struct weir_mapped_range *g = a->range;

    while (at < to) {
        size_t want = (size_t)(to - at), spare = 0, bytes;
        uint64_t from = NOWHERE;
        int what = CLEAN;

        /* A small block that stays would pin a large physical allocation. */
        if (choose_spare(g, want,
                         small && !squeeze ? weir__size_smaller(SPARE_SMALL, most - at) : most - at,
                         &spare)) {
            bytes = g->spares[spare].bytes;
            from = g->spares[spare].base;
            what = g->spares[spare].what;
            g->spares[spare].bytes = 0;
        } else {
            bytes = squeeze ? want : mapped_step_for(a, small, want, (size_t)(most - at), *planned);
            *planned += bytes;
        }
        if (!plan_move(g, &(struct weir_mapped_move){.to = {.base = at, .bytes = bytes},
                                                     .from = from,
                                                     .least = weir__size_smaller(want, bytes),
                                                     .what = what}))
            return 0;
        at += bytes;
    }
    return 1;
}

int weir__mapped_plan(struct weir_block_engine *a, const struct weir_mapped_window *w, int squeeze,
                      size_t *planned) {
    struct weir_mapped_range *g = a->range;
    uint64_t from, to;

    g->move_count = 0;
    *planned = 0;
    for (size_t i = 0; i < g->piece_count; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        if (weir__mapped_covers(w, p, &from, &to) &&
            !weir__mapped_plan_unmapped(a, squeeze, i >= g->small_pieces, from, to,
                                        p->base + p->bytes, planned))
            return 0;
    }
    return 1;
}

/* ---- moves ---- */

/* A move takes a constant time for a physical allocation of up to PIECE, and hardly longer for a larger one, of whose
 * other bytes this part counts. */
enum { MOVED_PART = 16 };

/* Raises the allowance of bytes that may move: by `patience` times the growth of the arena, and by a part of the bytes
 * that requests got, up to `patience` times the arena.  A load that rarely needs moves need not grow.  A load that
 * often needs them spends less time on moves than on writing its memory once, and grows when the allowance is used
 * up. */
static void earn_moves(const struct weir_block_engine *a) {
    struct weir_mapped_range *g = a->range;
    uint64_t grown = weir__size_less(a->blocks.total, g->total);
    int64_t most = (int64_t)(g->packing->patience * a->blocks.total);

    g->may_move += (int64_t)(g->packing->patience * grown +
                             (a->blocks.taken - g->taken) / g->packing->moves_part);
    if (g->may_move > most)
        g->may_move = most;
    g->total = a->blocks.total;
    g->taken = a->blocks.taken;
}

int weir__mapped_may_move(const struct weir_block_engine *a, int way) {
    earn_moves(a);
    return way == SQUEEZED || (!hurries(a) && range_of(a)->may_move > 0);
}

/* Returns the bytes by which the move of a physical allocation reduces the allowance. */
static size_t counted(const struct weir_mapped_range *g, size_t bytes) {
    if (bytes > PIECE)
        return PIECE + (bytes - PIECE) / MOVED_PART;
    return weir__size_larger(bytes, g->packing->moved_least);
}

static int compare(uint64_t x, uint64_t y) {
    return (x > y) - (x < y);
}

static int is_from_higher(const void *a, const void *b) {
    return compare(((const struct weir_mapped_move *)b)->from,
                   ((const struct weir_mapped_move *)a)->from);
}

static int is_to_higher(const void *a, const void *b) {
    return compare(((const struct weir_mapped_move *)a)->to.base,
                   ((const struct weir_mapped_move *)b)->to.base);
}

/* Lifts all physical allocations that will move, the highest address first.  Sets *lifted if there is one. */
static weir_status lift_all(struct weir_block_engine *a, struct weir_request *r, int *lifted) {
    struct weir_mapped_range *g = a->range;
    weir_status status = WEIR_OK;

    qsort(g->moves, g->move_count, sizeof g->moves[0], is_from_higher);
    for (size_t i = 0; i < g->move_count && status == WEIR_OK && g->moves[i].from != NOWHERE; i++) {
        struct weir_mapped_move *m = &g->moves[i];
        uint64_t to = m->to.base;
        size_t piece = weir__mapped_piece_of(g, m->from);

        *lifted = 1;
        status = m->what == CLEAN ? weir__mapped_lift(a, g->pieces[piece].base, m->from, &m->to)
                                  : weir__mapped_lift_unseen(a, r, piece, m->from, &m->to);
        m->in_hand = status == WEIR_OK;
        m->to.base = to;
    }
    qsort(g->moves, g->move_count, sizeof g->moves[0], is_to_higher);
    return status;
}

/* Releases physical allocations that are mapped nowhere, or in aliased mappings alone. */
static void release_leftovers(struct weir_block_engine *a) {
    struct weir_mapped_range *g = a->range;

    for (size_t i = 0; i < g->move_count; i++) {
        struct weir_mapped_move *m = &g->moves[i];

        if (m->in_hand)
            weir__mapped_release_handle(a, m->to);
        m->in_hand = 0;
    }
}

/* Returns the least bytes of new memory that the plan needs. */
static uint64_t least_new(const struct weir_mapped_range *g) {
    uint64_t bytes = 0;

    for (size_t i = 0; i < g->move_count; i++)
        if (g->moves[i].from == NOWHERE)
            bytes += weir__size_smaller(g->moves[i].to.bytes, g->moves[i].least);
    return bytes;
}

/* Creates all new physical allocations before one is mapped.  Otherwise, if the device lacks memory for all, the
 * neighbours of those already mapped would pin them. */
static weir_status make_new(struct weir_block_engine *a, struct weir_request *r) {
    struct weir_mapped_range *g = a->range;
    CUresult result = CUDA_SUCCESS;
    uint64_t least = least_new(g);

    if (least >= WEIR_ENGINE_LARGE && weir__engine_would_refuse(&a->e, r, least, 0))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < g->move_count && result == CUDA_SUCCESS; i++) {
        struct weir_mapped_move *m = &g->moves[i];

        if (m->from != NOWHERE)
            continue;
        result = weir__mapped_make_handle(a, &m->to);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && m->to.bytes > m->least) {
            m->to.bytes = m->least;
            result = weir__mapped_make_handle(a, &m->to);
        }
        m->in_hand = result == CUDA_SUCCESS;
    }
    return result == CUDA_SUCCESS ? WEIR_OK : weir__device_status(a->e.device, result);
}

/* Carries out the whole plan.  The caller is in the driver's scope. */
static weir_status carry_out(struct weir_block_engine *a, struct weir_request *r, int what,
                             int counts) {
    struct weir_mapped_range *g = a->range;
    uint64_t started = a->e.device->driver->ticks(), before = weir__blocks_reserve(a), moved = 0;
    uint64_t end = 0, unmapped;
    uint64_t id = what == OWN ? r->id : WEIR_ENGINE_OBSERVED;
    weir_status status;
    int lifted = 0, unseen = 0;

    /* Every lifted physical allocation must have a place in an array, whatever fails. */
    if (!weir__mapped_make_place(g, g->move_count, 2 * g->move_count))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    status = make_new(a, r);
    if (status == WEIR_OK)
        status = lift_all(a, r, &lifted);
    /* Lifting has changed the unmapped ranges. */
    if (lifted && status == WEIR_OK && !weir__mapped_survey(a, r->id))
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
    for (size_t i = 0; i < g->move_count; i++)
        unseen |= g->moves[i].what != CLEAN;
    for (size_t i = 0; i < g->move_count && status == WEIR_OK; i++) {
        struct weir_mapped_move *m = &g->moves[i];

        unmapped = g->pieces[weir__mapped_piece_of(g, m->to.base)].chunk;
        status =
            weir__mapped_enter(a, weir__mapped_make_and_map(a, m), weir__size_larger(unmapped, end),
                               m, m->what == CLEAN ? id : r->id);
        end = m->to.base + m->to.bytes;
        moved += m->from != NOWHERE ? counted(g, m->to.bytes) : 0;
    }
    release_leftovers(a);
    if (unseen) /* else no event might ever cover the moved memory */
        weir__suballoc_mark(&a->blocks, r->id, r->stream);
    g->may_move -= counts ? (int64_t)moved : 0;
    if (weir__blocks_reserve(a) > before) {
        r->grew = 1;
        weir__blocks_grown(a);
        weir__engine_note(&a->e, WEIR_EVENT_REQUEST, 0, r->bytes, weir__blocks_reserve(a) - before,
                          weir__device_since(a->e.device, started), weir__blocks_reserve(a));
    } else if (weir__blocks_reserve(a) < before) { /* lifted memory was not mapped again */
        weir__engine_note(&a->e, WEIR_EVENT_RECOVERY, 1, 0, before - weir__blocks_reserve(a),
                          weir__device_since(a->e.device, started), weir__blocks_reserve(a));
    }
    return status;
}

weir_status weir__mapped_carry_out(struct weir_block_engine *a, struct weir_request *r, int what,
                                   int counts) {
    return WEIR_STATUS_IN_SCOPE(a->e.device, carry_out(a, r, what, counts));
}
