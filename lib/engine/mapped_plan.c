/* SPDX-License-Identifier: MIT */
/* mapped_plan.c: what is to be mapped in the unmapped ranges where a request goes.
 *
 * What: first idle physical allocations, which move there, then new ones.
 */
#include "base/hostmem.h"
#include "engine/mapped_plan.h"

/* The spare for `want` bytes where no more than `most` fit: a clean one before the stream's own, that before
 * what must be waited for; of these the largest that is not larger, else the smallest.  1 and its place, or
 * 0. */
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

/* 1, or 0: no host memory. */
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

        /* A large handle would be held by the first small block that stays. */
        if (choose_spare(g, want,
                         small && !squeeze ? weir__size_smaller(SPARE_SMALL, most - at) : most - at,
                         &spare)) {
            bytes = g->spares[spare].bytes;
            from = g->spares[spare].base;
            what = g->spares[spare].what;
            g->spares[spare].bytes = 0;
        } else {
            bytes = squeeze ? want
                            : weir__mapped_step_for(a, small, want, (size_t)(most - at), *planned);
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
