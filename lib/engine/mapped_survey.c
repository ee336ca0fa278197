/* SPDX-License-Identifier: MIT */
/* mapped_survey.c: which parts of the range a request's stream may use, and where a request goes.
 *
 * A survey divides the range into pieces: taken, free in one of several ways, or unmapped.  Spares are the idle
 * physical allocations.
 *
 * Adjacent free memory and unmapped ranges make a gap.  A request goes where the least memory is missing.  Behind the
 * end of all memory there is always an unmapped range.  A large request does not begin in memory that other requests
 * have left: it gets its own physical allocations, so that they can move once it is freed.
 */
#include <stdlib.h>

#include "base/hostmem.h"
#include "engine/mapped_state.h"

struct survey {
    struct weir_block_engine *arena;
    struct weir_mapped_range *range;
    uint64_t id;
    int failed;
};

static void add_piece(struct survey *v, const struct weir_mapped_piece *p) {
    struct weir_mapped_range *g = v->range;
    struct weir_mapped_piece *pieces =
        weir__hostmem_room(g->pieces, g->piece_count, &g->piece_capacity, sizeof *pieces);

    if (!pieces) {
        v->failed = 1;
        return;
    }
    g->pieces = pieces;
    pieces[g->piece_count++] = *p;
}

static void add_border(struct survey *v, uint64_t at) {
    add_piece(v, &(struct weir_mapped_piece){at, 0, BORDER, at, {0}});
}

/* Adds an unmapped range to the survey's list of pieces.  Aliased mappings in the range become pieces of kind ALIAS. */
static void visit_unmapped(struct survey *v, uint64_t base, size_t bytes) {
    const struct weir_mapped_range *g = v->range;
    uint64_t at = base, end = base + bytes;

    for (size_t i = 0; i < g->alias_count && g->shadows[i].base < end; i++) {
        const struct weir_mapped_alias *s = &g->shadows[i];

        if (s->base < base)
            continue;
        if (s->base > at)
            add_piece(v,
                      &(struct weir_mapped_piece){at, (size_t)(s->base - at), UNMAPPED, base, {0}});
        add_piece(v, &(struct weir_mapped_piece){s->base, s->bytes, ALIAS, base, {0}});
        at = s->base + s->bytes;
    }
    if (at < end)
        add_piece(v, &(struct weir_mapped_piece){at, (size_t)(end - at), UNMAPPED, base, {0}});
}

static int what_is(const struct survey *v, const struct weir_placement_span *span) {
    if (span->live)
        return TAKEN;
    if (span->sequence == 0)
        return CLEAN;
    if (span->stream == v->id && v->id != 0)
        return OWN;
    return weir__suballoc_may_follow(&v->arena->blocks, span->stream, span->sequence) ? BEHIND
                                                                                      : OTHERS;
}

static void visit_free(void *context, const struct weir_placement_span *span) {
    struct survey *v = context;

    add_piece(v, &(struct weir_mapped_piece){span->address,
                                             span->size,
                                             what_is(v, span),
                                             span->address,
                                             {span->stream, span->sequence}});
}

/* Adds the unmapped ranges, which lie between the physical allocations. */
static void add_unmapped_ranges(struct survey *v, uint64_t base, uint64_t end) {
    const struct weir_mapped_range *g = v->range;
    uint64_t at = base;

    for (size_t i = handle_above(g, base); i < g->handle_count && g->handles[i].base < end; i++) {
        const struct weir_mapped_handle *h = &g->handles[i];

        if (h->base > at)
            visit_unmapped(v, at, (size_t)(h->base - at));
        at = h->base + h->bytes;
    }
    if (end > at)
        visit_unmapped(v, at, (size_t)(end - at));
}

static int by_base(const void *one, const void *other) {
    const struct weir_mapped_piece *a = one, *b = other;

    return (a->base > b->base) - (a->base < b->base);
}

/* Adds a TAKEN piece for each gap between the pieces from `first` on, which are sorted by base.  Fills the array from
 * its end, so that one pass is enough. */
static void add_taken(struct survey *v, size_t first, uint64_t base, uint64_t end) {
    struct weir_mapped_range *g = v->range;
    size_t count = g->piece_count, gaps = 0;
    struct weir_mapped_piece *pieces;
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
            pieces[--to] = (struct weir_mapped_piece){from, (size_t)(at - from), TAKEN, from, {0}};
        if (count > first) {
            pieces[--to] = pieces[--count];
            at = pieces[to].base;
        }
    }
}

/* Adds the pieces of one kind, sorted by base.  Addresses that are neither free nor unmapped are taken. */
static void survey_kind(struct survey *v, int kind, uint64_t base, uint64_t end) {
    struct weir_mapped_range *g = v->range;
    struct weir_placement *p = v->arena->blocks.placement[kind];
    size_t first;

    add_border(v, base);
    first = g->piece_count;
    weir__placement_walk_free(p, visit_free, v);
    add_unmapped_ranges(v, base, end);
    if (v->failed)
        return;
    qsort(g->pieces + first, g->piece_count - first, sizeof *g->pieces, by_base);
    add_taken(v, first, base, end);
}

int weir__mapped_survey(struct weir_block_engine *a, uint64_t id) {
    struct weir_mapped_range *g = a->range;
    struct survey v = {.arena = a, .range = g, .id = id};
    const uint64_t end = g->base + g->bytes;

    g->piece_count = 0;
    survey_kind(&v, WEIR_SUBALLOC_COMMON, g->base, small_base(g));
    g->small_pieces = g->piece_count;
    survey_kind(&v, WEIR_SUBALLOC_SMALL, small_base(g), apart_base(g));
    g->apart_pieces = g->piece_count;
    survey_kind(&v, WEIR_SUBALLOC_APART, apart_base(g), end);
    add_border(&v, end);
    g->piece_count--;
    return !v.failed;
}

size_t weir__mapped_piece_of(const struct weir_mapped_range *g, uint64_t address) {
    size_t above = g->piece_count, at;

    WEIR_FIND_FIRST(above, at, g->pieces[at].base > address);
    return above > 0 ? above - 1 : 0;
}

int weir__mapped_what_holds(const struct weir_mapped_range *g, size_t first,
                            const struct weir_mapped_handle *h, size_t *unseen) {
    int what = CLEAN;

    *unseen = 0;
    for (size_t i = first; g->pieces[i].base < h->base + h->bytes; i++) {
        *unseen += g->pieces[i].what != CLEAN;
        if (g->pieces[i].what < what)
            what = g->pieces[i].what;
    }
    return what;
}

/* Adds the idle physical allocations in the adjacent pieces [first, end) and outside the window to the spares, but not
 * those with more than TAGS uncompleted pieces. */
static void find_spares_in(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                           size_t first, size_t end) {
    uint64_t begins = g->pieces[first].base,
             ends = g->pieces[end - 1].base + g->pieces[end - 1].bytes;

    for (size_t at = handle_above(g, begins); at < g->handle_count; at++) {
        const struct weir_mapped_handle *h = &g->handles[at];
        size_t tags;
        int what;

        if (h->base + h->bytes > ends)
            break;
        if (h->base < begins || (h->base < w->end && h->base + h->bytes > w->base))
            continue;
        while (g->pieces[first].base + g->pieces[first].bytes <= h->base)
            first++;
        what = weir__mapped_what_holds(g, first, h, &tags);
        if (tags <= TAGS)
            g->spares[g->spare_count++] =
                (struct weir_mapped_spare){first, h->base, h->bytes, what};
    }
}

void weir__mapped_find_spares(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                              int least) {
    size_t end;

    g->spare_count = 0;
    for (size_t i = 0; i < g->piece_count; i = end) {
        for (end = i; g->pieces[end].what >= least && g->pieces[end].what != UNMAPPED; end++)
            ;
        if (end > i)
            find_spares_in(g, w, i, end);
        end += end == i;
    }
}

/* ---- windows ---- */

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

/* Computes the memory that the window from `base` on lacks, in the gap of pieces [first, last).  Keeps the better
 * window in *best. */
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

/* Returns 1 if a free piece of kind `what` or better begins where a physical allocation begins, else 0. */
static int begins_whole(const struct weir_mapped_range *g, size_t i, int what) {
    const struct weir_mapped_piece *p = &g->pieces[i];

    /* Free memory always has a physical allocation. */
    return p->what >= what && g->handles[handle_above(g, p->base)].base == p->base;
}

/* Tries the window at the beginning of that piece, if the gap is long enough. */
static void try_whole(const struct weir_mapped_range *g, size_t i, size_t bytes, int what,
                      struct weir_mapped_window *best) {
    uint64_t base = g->pieces[i].base;
    size_t last = i;

    while (g->pieces[last].what >= what)
        last++;
    if (g->pieces[last - 1].base + g->pieces[last - 1].bytes >= base + bytes)
        try_window(g, i, last, base, bytes, what, best);
}

/* Tries a window in an unmapped range, as far behind the memory before it as the window is long: that memory may grow
 * so far, and neither joins the other. */
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

    *w = (struct weir_mapped_window){.missing = SIZE_MAX}; /* unless the addresses suffice */
    if (g->pieces[i].what != UNMAPPED)
        return;
    while (g->pieces[i - 1].what == CLEAN)
        i--;
    if (end - g->pieces[i].base >= bytes)
        *w = (struct weir_mapped_window){
            .base = g->pieces[i].base, .end = g->pieces[i].base + bytes, .what = CLEAN};
}
