/* SPDX-License-Identifier: MIT */
/* mapped_sizes.c: how large new physical allocations are, and by how much the arena grows.
 *
 * Sizes follow the arena's total memory, by the rules of its packing.
 */
#include "engine/mapped_plan.h"

/* The least that is added for small requests, unless all steps may be smaller. */
#define STEP_SMALL (8 * MIB)

/* The most of a handle that is made while the memory is fragmented: so much, or such a part of it. */
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

size_t weir__mapped_held(const struct weir_mapped_range *g, int small) {
    size_t bytes = 0, end = small ? g->apart_pieces : g->small_pieces;

    for (size_t i = small ? g->small_pieces : 0; i < end; i++)
        bytes +=
            g->pieces[i].what == UNMAPPED || g->pieces[i].what == ALIAS ? 0 : g->pieces[i].bytes;
    return bytes;
}

/* Memory that the request's stream may have. */
static int is_free_for(const struct weir_mapped_piece *p) {
    return p->what == CLEAN || p->what == OWN || p->what == BEHIND;
}

/* The largest handle of a request beside pending work. */
static size_t unit_pending(const struct weir_block_engine *a) {
    const struct weir_order *o = &a->blocks.order;

    return o->several && o->waiting_marks > 0 ? range_of(a)->packing->unit_most_pending : SIZE_MAX;
}

size_t weir__mapped_step_for(struct weir_block_engine *a, int small, size_t want, size_t most,
                             size_t planned) {
    struct weir_mapped_range *g = a->range;
    const struct weir_mapped_packing *p = g->packing;
    size_t room = weir__blocks_room(a), step, least, unit, wanted = 0;
    size_t total = weir__mapped_held(g, small) + planned;
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
    /* The part beyond the request stays below the limit. */
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
        bytes < weir__size_smaller(weir__mapped_held(g, 0) / p->large_part, p->unit_most))
        return 0;
    pieces = a->blocks.order.several ? p->pieces_several : p->pieces;
    pieces = within((bytes + p->unit_most - 1) / p->unit_most, (bytes + PIECE / 2) / PIECE, pieces);
    pieces = weir__size_larger(pieces, bytes / unit_pending(a));
    pieces = hurries(a) ? 1 : pieces;
    return weir__size_round_down((bytes + pieces - 1) / pieces + PAGE - 1, PAGE);
}

size_t weir__mapped_most_new_for(const struct weir_block_engine *a, int small, size_t bytes) {
    const struct weir_mapped_range *g = a->range;
    size_t free_bytes = 0, total = weir__mapped_held(g, 0);

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
