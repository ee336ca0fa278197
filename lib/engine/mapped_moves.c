/* SPDX-License-Identifier: MIT */
/* mapped_moves.c: a plan is carried out: what is new is made, what moves is lifted, and all is mapped.
 *
 * What: unmapping is immediate: it waits for no work that still uses the memory.  So a physical allocation leaves its
 * place only when it lies in free memory whose last uses the host has completed.  What is free for the stream but was
 * not completed is mapped at its new place, where that stream alone may use it, in its order; the old place stays mapped,
 * a shadow.  Under internal_dependencies what others freed moves like that, too, behind a wait of the stream.
 *
 * Moves use an allowance, which growth and requests raise.
 */
#include <stdlib.h>

#include "engine/mapped_plan.h"

/* A move takes as long for any physical allocation of up to PIECE, and hardly longer for a larger one: of what is beyond
 * that, such a part counts as moved. */
enum { MOVED_PART = 16 };

/* Raises the allowance of bytes that may move: by `patience` times what the arena grew, and by a part of what requests
 * got, up to `patience` times the arena.  A load that rarely needs moves need not grow.  A load that often needs them
 * spends much less time on moves than on writing the requested memory once; when the allowance is used up it grows. */
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

/* As how many bytes it counts that a physical allocation of so many moves. */
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

/* Lifts all that will move, from the highest address down; *lifted is set if there is anything. */
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

/* Handles that are mapped nowhere, or in shadows alone, go to the device, now or with those. */
static void release_leftovers(struct weir_block_engine *a) {
    struct weir_mapped_range *g = a->range;

    for (size_t i = 0; i < g->move_count; i++) {
        struct weir_mapped_move *m = &g->moves[i];

        if (m->in_hand)
            weir__mapped_release_handle(a, m->to);
        m->in_hand = 0;
    }
}

/* What the plan needs of the device at least. */
static uint64_t least_new(const struct weir_mapped_range *g) {
    uint64_t bytes = 0;

    for (size_t i = 0; i < g->move_count; i++)
        if (g->moves[i].from == NOWHERE)
            bytes += weir__size_smaller(g->moves[i].to.bytes, g->moves[i].least);
    return bytes;
}

/* Makes all handles that are new, before any of them is mapped: else those that the device had for a
 * request that it cannot serve would be held by what lies beside them. */
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

/* All of it, in the driver's scope. */
static weir_status carry_out(struct weir_block_engine *a, struct weir_request *r, int what,
                             int counts) {
    struct weir_mapped_range *g = a->range;
    uint64_t started = a->e.device->driver->ticks(), before = weir__blocks_reserve(a), moved = 0;
    uint64_t end = 0, unmapped;
    uint64_t id = what == OWN ? r->id : WEIR_ENGINE_OBSERVED;
    weir_status status;
    int lifted = 0, unseen = 0;

    /* So that all that is lifted can come back to a list, whatever happens. */
    if (!weir__mapped_make_place(g, g->move_count, 2 * g->move_count))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    status = make_new(a, r);
    if (status == WEIR_OK)
        status = lift_all(a, r, &lifted);
    /* Else the unmapped ranges are as they were. */
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

weir_status weir__mapped_carry_out(struct weir_block_engine *a, struct weir_request *r, int what,
                                   int counts) {
    return WEIR_STATUS_IN_SCOPE(a->e.device, carry_out(a, r, what, counts));
}
