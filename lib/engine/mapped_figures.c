/* SPDX-License-Identifier: MIT */
/* mapped_figures.c: what a mapped arena has, could have, and will have.
 */
#include "engine/mapped_survey.h"

/* Of the device, what its programs are taken to need at least; host tables are made for it at once. */
enum { FORESEEN_PART = 8 };
#define FORESEEN_MOST ((size_t)8 << 30)

int weir__mapped_wholes(struct weir_block_engine *a, const struct weir_visit *visit) {
    const struct weir_mapped_range *g = a->range;
    int count = 0;

    for (size_t i = 0; i < g->handle_count; i++)
        count += weir__engine_show(
            visit, &(struct weir_extent){.base = g->handles[i].base, .bytes = g->handles[i].bytes},
            1);
    return count;
}

/* Behind the last of the memory: what is free there, what is idle elsewhere, and what is new. */
size_t weir__mapped_largest(struct weir_block_engine *a, const struct weir_survey *asked) {
    struct weir_mapped_range *g = a->range;
    struct weir_mapped_window tail;
    size_t bytes;

    if (!weir__mapped_survey(a, asked->id))
        return 0;
    weir__mapped_find_tail(g, 0, 0, &tail);
    tail.end = g->pieces[g->small_pieces - 1].base;
    if (tail.missing > 0)
        return 0;
    weir__mapped_find_spares(g, &tail, CLEAN);
    bytes = weir__size_round_down(weir__device_room(a->e.device, weir__blocks_room(a), 0), PAGE);
    bytes += (size_t)(tail.end - tail.base);
    for (size_t i = 0; i < g->spare_count; i++)
        bytes += g->spares[i].bytes;
    bytes = (size_t)weir__size_smaller(bytes,
                                       tail.end + g->pieces[g->small_pieces - 1].bytes - tail.base);
    return weir__suballoc_is_small(&a->blocks, bytes) ? 0 : bytes;
}

/* The beginnings of both parts. */
size_t weir__mapped_foresee(const struct weir_block_engine *a, struct weir_extent *out) {
    const struct weir_mapped_range *g = a->range;
    size_t bytes = weir__size_smaller(a->e.device->total / FORESEEN_PART, FORESEEN_MOST), n;

    n = weir__engine_extend(out, 0, WEIR_BLOCKS_FORESEEN,
                            (struct weir_extent){.base = small_base(g), .bytes = SPARE_SMALL});
    return weir__engine_extend(out, n, WEIR_BLOCKS_FORESEEN,
                               (struct weir_extent){.base = g->base,
                                                    .bytes = weir__size_round_down(bytes, PAGE),
                                                    .large = 1});
}

void weir__mapped_survey_pieces(struct weir_block_engine *a, struct weir_survey *out) {
    struct weir_placement *p = a->blocks.placement[WEIR_SUBALLOC_COMMON];

    if (!(out->what & WEIR_SURVEY_PIECES))
        return;
    out->piece.largest = weir__placement_largest(p, 0);
    out->piece.last = weir__placement_tail(p);
}
