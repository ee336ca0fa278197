/* SPDX-License-Identifier: MIT */
/* mapped_place.c: requests that name an address (weir_request.at).
 *
 * What: they have a part of the addresses to themselves, so that their owner's memory grows in one piece.  Only physical
 * allocations whose last uses have completed move there.
 */
#include "engine/mapped_plan.h"

/* Far from all that lies there: what lies before may grow in its place.  NOWHERE: there are too few addresses. */
static uint64_t find_far(const struct weir_mapped_range *g, size_t bytes) {
    uint64_t at = NOWHERE;
    size_t most = 2 * bytes;

    for (size_t i = g->apart_pieces; i < g->piece_count; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        if (p->what != UNMAPPED || p->bytes <= most)
            continue;
        most = p->bytes;
        at = p->base == apart_base(g) ? p->base
                                      : p->base + weir__size_round_down(p->bytes / 2, PAGE);
    }
    return at;
}

/* How far an idle physical allocation may reach that fills [from, to) of an unmapped range. */
static uint64_t most_there(const struct weir_mapped_piece *p, uint64_t from, uint64_t to) {
    uint64_t end = p->base + weir__size_round_down(p->bytes, PAGE);

    return weir__size_larger(to, weir__size_smaller(from + PIECE, end));
}

/* Plans what the window lacks, in which only unmapped ranges and free memory may lie: exactly, but for what is idle elsewhere, of
 * which a physical allocation of up to PIECE may reach beyond it.  That serves who grows there next.  A status. */
static weir_status plan_there(struct weir_block_engine *a, const struct weir_mapped_window *w,
                              size_t *planned) {
    struct weir_mapped_range *g = a->range;

    g->move_count = 0;
    *planned = 0;
    for (size_t i = weir__mapped_piece_of(g, w->base); g->pieces[i].base < w->end; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];
        uint64_t from, to;

        if (p->what != UNMAPPED && p->what != CLEAN)
            return weir__without_driver(WEIR_E_NO_MEMORY);
        if (weir__mapped_covers(w, p, &from, &to) &&
            !weir__mapped_plan_unmapped(a, 1, 0, from, to, most_there(p, from, to), planned))
            return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    return *planned > weir__blocks_room(a) ? weir__blocks_are_full(a) : WEIR_OK;
}

weir_status weir__mapped_place(struct weir_block_engine *a, struct weir_request *r,
                               struct weir_placement_block *out) {
    struct weir_mapped_range *g = a->range;
    struct weir_mapped_window w = {.what = CLEAN};
    weir_status status;
    size_t planned;
    int may, placed;

    (void)weir__mapped_await(a, r);
    weir__suballoc_ask(&a->blocks, r->id, r->stream);
    weir__suballoc_look_around(&a->blocks);
    weir__mapped_lift_shadows(a, 1);
    if (!weir__mapped_survey(a, r->id))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    w.base = r->at == WEIR_ENGINE_FAR ? find_far(g, r->bytes) : r->at;
    w.end = w.base + r->bytes;
    if (w.base == NOWHERE || w.end > g->base + g->bytes)
        return weir__without_driver(WEIR_E_NO_MEMORY);
    g->spare_count = 0;
    may = weir__mapped_may_move(a, LEAST);
    if (may)
        weir__mapped_find_spares(g, &w, CLEAN);
    status = plan_there(a, &w, &planned);
    if (weir__is_failure(status) && !may) { /* it cannot grow instead */
        weir__mapped_find_spares(g, &w, CLEAN);
        status = plan_there(a, &w, &planned);
    }
    if (status != WEIR_OK)
        return status;
    if (planned > 0)
        weir__order_dry(&a->blocks.order); /* streams record what they free, to be seen next time */
    status = weir__mapped_carry_out(a, r, CLEAN, may);
    if (status != WEIR_OK)
        return status;
    placed = weir__suballoc_take_at(&a->blocks, w.base, r->bytes, r->id, out);
    /* What lay before it was given back meanwhile, and both are one now. */
    return placed == WEIR_PLACEMENT_NO_FIT ? weir__without_driver(WEIR_E_NO_MEMORY)
                                           : placed_or(placed);
}
