/* SPDX-License-Identifier: MIT */
/* mapped_window.c: where a request goes.
 *
 * What: free memory and unmapped ranges that lie side by side make a gap.  A request goes where the least memory is missing.
 * Behind the end of all memory there is always an unmapped range.  A large request does not begin in what others have left: it
 * gets physical allocations of its own, so that they can move when it was freed.
 */
#include "engine/mapped_survey.h"

int weir__mapped_covers(const struct weir_mapped_window *w, const struct weir_mapped_piece *p,
                        uint64_t *from, uint64_t *to) {
    *from = weir__size_larger(p->base, w->base);
    *to = weir__size_smaller(p->base + p->bytes, w->end);
    if (p->what != UNMAPPED || *from >= *to)
        return 0;
    *from -= (*from - p->base) % PAGE;
    *to += (PAGE - (*to - p->base) % PAGE) % PAGE;
    return 1;
}

/* Sees what the window from `base` on lacks, in the gap of pieces [first, last). */
static void try_window(const struct weir_mapped_range *g, size_t first, size_t last, uint64_t base,
                       size_t bytes, int what, struct weir_mapped_window *best) {
    struct weir_mapped_window w = {.base = base, .end = base + bytes, .what = what};

    for (size_t i = first; i < last && w.missing < best->missing; i++) {
        uint64_t from, to;

        if (weir__mapped_covers(&w, &g->pieces[i], &from, &to))
            w.missing += (size_t)(to - from);
    }
    if (w.missing < best->missing)
        *best = w;
}

static void try_gap(const struct weir_mapped_range *g, size_t first, size_t last, size_t bytes,
                    int what, struct weir_mapped_window *best) {
    uint64_t begin = g->pieces[first].base;
    uint64_t end = g->pieces[last - 1].base + g->pieces[last - 1].bytes;

    if (end - begin < bytes)
        return;
    try_window(g, first, last, begin, bytes, what, best);
    for (size_t i = first; i < last; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        if (p->what == UNMAPPED)
            continue;
        if (end - p->base >= bytes)
            try_window(g, first, last, p->base, bytes, what, best);
        if (p->base + p->bytes - begin >= bytes)
            try_window(g, first, last, p->base + p->bytes - bytes, bytes, what, best);
    }
}

void weir__mapped_find_window(const struct weir_mapped_range *g, int small, size_t bytes, int what,
                              struct weir_mapped_window *best) {
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

/* A free chunk for `what`, no unmapped range, that begins where a handle does: 1, or 0. */
static int begins_whole(const struct weir_mapped_range *g, size_t i, int what) {
    const struct weir_mapped_piece *p = &g->pieces[i];

    /* What is free has a handle. */
    return p->what >= what && g->handles[handle_above(g, p->base)].base == p->base;
}

/* The window at the beginning of that chunk, if what comes behind it lets it. */
static void try_whole(const struct weir_mapped_range *g, size_t i, size_t bytes, int what,
                      struct weir_mapped_window *best) {
    uint64_t base = g->pieces[i].base;
    size_t last = i;

    while (g->pieces[last].what >= what)
        last++;
    if (g->pieces[last - 1].base + g->pieces[last - 1].bytes >= base + bytes)
        try_window(g, i, last, base, bytes, what, best);
}

/* The window in an unmapped range, away from what lies before it by as much as it has itself: so far that may grow in its place,
 * and neither joins the other. */
static void try_unmapped(const struct weir_mapped_range *g, size_t i, size_t bytes,
                         struct weir_mapped_window *best) {
    const struct weir_mapped_piece *p = &g->pieces[i];
    size_t before = p->base > g->base ? weir__size_round_down(bytes, PAGE) + PAGE : 0;

    if (bytes < best->missing && p->bytes >= before + bytes + 2 * PAGE)
        *best = (struct weir_mapped_window){
            .base = p->base + before, .end = p->base + before + bytes, bytes, CLEAN};
}

void weir__mapped_find_own(const struct weir_mapped_range *g, size_t bytes, int what,
                           struct weir_mapped_window *best) {
    for (size_t i = 0; i < g->small_pieces; i++)
        if (g->pieces[i].what == UNMAPPED)
            try_unmapped(g, i, bytes, best);
        else if (begins_whole(g, i, what))
            try_whole(g, i, bytes, what, best);
}

void weir__mapped_find_tail(const struct weir_mapped_range *g, int small, size_t bytes,
                            struct weir_mapped_window *w) {
    size_t i = (small ? g->apart_pieces : g->small_pieces) - 1;
    uint64_t end = g->pieces[i].base + g->pieces[i].bytes;

    *w = (struct weir_mapped_window){.missing = SIZE_MAX}; /* there are no addresses for it */
    if (g->pieces[i].what != UNMAPPED)
        return;
    while (g->pieces[i - 1].what == CLEAN)
        i--;
    if (end - g->pieces[i].base >= bytes)
        *w = (struct weir_mapped_window){
            .base = g->pieces[i].base, .end = g->pieces[i].base + bytes, .what = CLEAN};
}
