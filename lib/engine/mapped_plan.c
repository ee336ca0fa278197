/* SPDX-License-Identifier: MIT */
/* mapped_plan.c: chooses addresses and physical allocations for requests that fit nowhere (doc/design.md, "Mapped"). */
#include "base/hostmem.h"
#include "engine/mapped.h"

/* ---- the list of free and unmapped pieces ---- */

static int add_piece(struct weir_mapped_range *g, const struct weir_mapped_piece *p) {
    struct weir_mapped_piece *pieces =
        weir__hostmem_room(g->pieces, g->piece_count, &g->piece_capacity, sizeof *pieces);

    if (!pieces)
        return 0;
    g->pieces = pieces;
    pieces[g->piece_count++] = *p;
    return 1;
}

static int add_free(struct weir_heap *h, uint64_t id, const struct weir_placement_span *span) {
    int state = OTHERS;

    if (span->sequence == 0)
        state = CLEAN;
    else if (span->stream == id && id != 0)
        state = OWN;
    else if (weir__heap_may_wait(h, span->stream, span->sequence))
        state = BEHIND;
    return add_piece(h->range,
                     &(struct weir_mapped_piece){
                         span->address, span->size, state, {span->stream, span->sequence}});
}

/* Adds an unmapped range to g->pieces.  Old addresses of moved memory in the range become pieces of the state ALIAS. */
static int add_unmapped(struct weir_mapped_range *g, uint64_t at, uint64_t end) {
    for (size_t i = 0; i < g->alias_count && g->aliases[i].base < end; i++) {
        const struct weir_mapped_alias *s = &g->aliases[i];

        if (s->base < at)
            continue;
        if (s->base > at &&
            !add_piece(g, &(struct weir_mapped_piece){at, (size_t)(s->base - at), UNMAPPED, {0}}))
            return 0;
        if (!add_piece(g, &(struct weir_mapped_piece){s->base, s->bytes, ALIAS, {0}}))
            return 0;
        at = s->base + s->bytes;
    }
    return at == end ||
           add_piece(g, &(struct weir_mapped_piece){at, (size_t)(end - at), UNMAPPED, {0}});
}

int weir__mapped_survey(struct weir_heap *h, uint64_t id) {
    struct weir_mapped_range *g = h->range;

    g->piece_count = 0;
    for (int kind = 0; kind < WEIR_HEAP_KINDS; kind++) {
        struct weir_placement_span span = {0};

        g->first[kind] = g->piece_count;
        while (weir__placement_next(h->placement[kind], &span)) {
            g->budget -= SURVEYED_NS;
            if (span.live || span.deferred)
                continue;
            if (!(span.unmapped ? add_unmapped(g, span.address, span.address + span.size)
                                : add_free(h, id, &span)))
                return 0;
        }
    }
    g->first[WEIR_HEAP_KINDS] = g->piece_count;
    return 1;
}

static uint64_t piece_end(const struct weir_mapped_piece *p) {
    return p->base + p->bytes;
}

/* Returns the end of the run of adjacent pieces from index `i`, in which each piece has a state >= `state`. */
static size_t gap_end(const struct weir_mapped_range *g, size_t i, size_t end, int state) {
    size_t at = i;

    while (at < end && g->pieces[at].state >= state &&
           (at == i || g->pieces[at].base == piece_end(&g->pieces[at - 1])))
        at++;
    return at;
}

/* Sets `spare` to 1 for each physical allocation that lies in the pieces `i` to `end` - 1, and outside of *w. */
static void find_spares_in(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                           size_t i, size_t end) {
    uint64_t begins = g->pieces[i].base, ends = piece_end(&g->pieces[end - 1]);

    for (size_t at = handle_above(g, begins); at < g->handle_count; at++) {
        struct weir_mapped_handle *unit = &g->handles[at];

        if (unit->base + unit->bytes > ends)
            break;
        if (unit->base < begins || (unit->base < w->end && unit->base + unit->bytes > w->base))
            continue;
        while (piece_end(&g->pieces[i]) <= unit->base)
            i++;
        unit->spare = 1;
        unit->piece = i;
        unit->state = CLEAN;
        unit->tags = 0;
        for (size_t p = i; p < end && g->pieces[p].base < unit->base + unit->bytes; p++) {
            unit->tags += g->pieces[p].state != CLEAN;
            if (g->pieces[p].state < unit->state)
                unit->state = g->pieces[p].state;
        }
    }
}

void weir__mapped_find_spares(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                              int least) {
    size_t end;

    for (size_t i = 0; i < g->handle_count; i++)
        g->handles[i].spare = 0;
    for (size_t i = 0; i<g->piece_count; i = end> i ? end : i + 1) {
        end = gap_end(g, i, g->piece_count, least);
        if (end > i)
            find_spares_in(g, w, i, end);
    }
}

/* ---- choosing addresses for a request ---- */

/* Computes the part of the unmapped piece `p` that lies in *w, in whole pages.  Returns 0 if there is none, else 1. */
static int clip_piece(const struct weir_mapped_window *w, const struct weir_mapped_piece *p,
                      uint64_t *from, uint64_t *to) {
    *from = weir__size_larger(p->base, w->base);
    *to = weir__size_smaller(piece_end(p), w->end);
    if (p->state != UNMAPPED || *from >= *to)
        return 0;
    *from -= (*from - p->base) % PAGE;
    *to += (PAGE - (*to - p->base) % PAGE) % PAGE;
    return 1;
}

/* Replaces *best by the window of `bytes` bytes at `base` if less memory is missing in this window. */
static void try_window(const struct weir_mapped_range *g, size_t first, size_t last, uint64_t base,
                       size_t bytes, int state, struct weir_mapped_window *best) {
    struct weir_mapped_window w = {.base = base, .end = base + bytes, .state = state};

    for (size_t i = first; i < last && w.missing < best->missing; i++) {
        uint64_t from, to;

        if (clip_piece(&w, &g->pieces[i], &from, &to))
            w.missing += (size_t)(to - from);
    }
    if (w.missing < best->missing)
        *best = w;
}

/* Replaces *best by the window of `bytes` bytes that needs the least new memory, if *best needs more. */
static void find_window(const struct weir_mapped_range *g, int kind, size_t bytes, int state,
                        struct weir_mapped_window *best) {
    size_t end = g->first[kind + 1], last;

    for (size_t first = g->first[kind]; first<end; first = last> first ? last : first + 1) {
        uint64_t begin = g->pieces[first].base, behind;

        last = gap_end(g, first, end, state);
        behind = last > first ? piece_end(&g->pieces[last - 1]) : begin;
        if (behind - begin < bytes)
            continue;
        try_window(g, first, last, begin, bytes, state, best);
        for (size_t i = first; i < last; i++) {
            const struct weir_mapped_piece *p = &g->pieces[i];

            if (p->state == UNMAPPED)
                continue;
            if (behind - p->base >= bytes)
                try_window(g, first, last, p->base, bytes, state, best);
            if (piece_end(p) - begin >= bytes)
                try_window(g, first, last, piece_end(p) - bytes, bytes, state, best);
        }
    }
}

void weir__mapped_find_tail(const struct weir_heap *h, int kind, size_t bytes,
                            struct weir_mapped_window *w) {
    const struct weir_mapped_range *g = h->range;
    size_t first = g->first[kind], i = g->first[kind + 1];
    uint64_t end = h->starts[kind + 1];

    *w = (struct weir_mapped_window){.missing = SIZE_MAX};
    if (i == first || g->pieces[i - 1].state != UNMAPPED || piece_end(&g->pieces[i - 1]) != end)
        return;
    for (i--; i > first && g->pieces[i - 1].state == CLEAN &&
              piece_end(&g->pieces[i - 1]) == g->pieces[i].base;)
        i--;
    if (end - g->pieces[i].base >= bytes)
        *w = (struct weir_mapped_window){
            .base = g->pieces[i].base, .end = g->pieces[i].base + bytes, .state = CLEAN};
}

/* ---- limits of moves, and sizes of long-lived blocks ---- */

int weir__mapped_has_budget(const struct weir_heap *h) {
    return h->range->budget > 0 && !(h->e.traits & WEIR_ENGINE_GROWS_AHEAD);
}

int weir__mapped_may_last(const struct weir_heap *h, size_t bytes) {
    unsigned bit = lasting_bit(bytes);

    return !h->range->was_trimmed || (h->range->lasting[bit / 64] >> bit % 64 & 1) != 0;
}

int weir__mapped_grows_small(const struct weir_heap *h) {
    return h->range->was_trimmed || weir__mapped_has_budget(h);
}

/* ---- sizes of new physical allocations ---- */

/* Returns the largest size of a new physical allocation for `want` bytes when `total` bytes will be reserved.  Small
 * allocations can move or be released while blocks or pending work keep other memory in place. */
static size_t unit_bytes(const struct weir_heap *h, int kind, size_t want, uint64_t total) {
    int is_pending = h->order.several && h->order.pending_marks > 0;
    int is_above = total > h->e.threshold;
    size_t most = is_above && h->range->was_trimmed ? 2 * FINE_MOST : FINE_MOST;
    size_t fine =
        fine_bytes(h->order.several ? total / 2 : total, is_above ? PAGE : FINE_LEAST, most);

    if (kind == WEIR_HEAP_SMALL && !is_above)
        return FINE_LEAST;
    /* Before the first trim, each block may live long and keep its physical allocation reserved, so none is shared. */
    if (kind == WEIR_HEAP_SMALL)
        return within(PAGE, h->range->was_trimmed ? SIZE_MAX : want,
                      fine_bytes(total - want, PAGE, LASTING_MOST));
    if (!weir__mapped_has_budget(h))
        return (is_pending ? 1 : COARSE) * fine;
    if (h->range->budget > CREDIT_NS)
        fine = weir__size_larger(FINE_LEAST, fine / (size_t)(h->range->budget / CREDIT_NS));
    return weir__size_round_down(fine, PAGE);
}

/* Returns the bytes by which the growth policy wants to grow, if they exceed `want`; else 0. */
static size_t policy_step(struct weir_heap *h, size_t want, size_t planned) {
    struct weir_mapped_range *g = h->range;
    weir_growth_state state = {.size = sizeof state,
                               .reserved = (size_t)h->total + planned,
                               .in_use = (size_t)h->in_use,
                               .request = want,
                               .limit = weir__heap_growth_limit(h),
                               .device_free = SIZE_MAX};
    size_t step;

    if (!g->knows_free)
        g->device_free = weir__device_free(h->e.device);
    g->knows_free = 1;
    if (g->device_free != UINT64_MAX)
        state.device_free = (size_t)weir__size_subtract(g->device_free, planned);
    step = weir__growth_step(h->e.options, &state, PAGE, &h->cursor);
    return step > want ? step : 0;
}

/* Returns the size of the next physical allocation, for a gap of `want` to `most` bytes, after `planned` new bytes. */
static size_t new_bytes(struct weir_heap *h, int kind, size_t want, size_t most, size_t planned) {
    size_t unit = unit_bytes(h, kind, want, h->total + planned + want), wanted = 0, step;

    if (h->range->move_count > 0)
        unit = weir__size_smaller(unit, weir__size_larger(FINE_LEAST, want));
    if (h->e.options->growth != WEIR_GROWTH_EXACT)
        wanted = policy_step(h, want, planned);
    /* More than the `want` missing bytes must not raise reserved memory above the limit. */
    step = within(want, weir__size_smaller(weir__size_larger(unit, wanted), most),
                  weir__size_subtract(weir__heap_room(h), planned));
    return weir__size_round_down(weir__size_smaller(step, weir__size_larger(unit, wanted)), PAGE);
}

/* ---- the plan: which memory to map where ---- */

void weir__mapped_find_place(const struct weir_heap *h, int kind, size_t bytes, int method,
                             struct weir_mapped_window *w) {
    if (method == SQUEEZED) {
        weir__mapped_find_tail(h, kind, bytes, w);
        return;
    }
    *w = (struct weir_mapped_window){.missing = SIZE_MAX};
    for (int state = CLEAN; state >= BEHIND; state--)
        find_window(h->range, kind, bytes, state, w);
}

/* Chooses an idle physical allocation of at most `most` bytes for a gap of `want` bytes.  Returns NULL if none fits. */
static struct weir_mapped_handle *choose_spare(struct weir_mapped_range *g, size_t want,
                                               uint64_t most) {
    struct weir_mapped_handle *best = NULL;

    for (size_t i = 0; i < g->handle_count; i++) {
        struct weir_mapped_handle *s = &g->handles[i];

        if (!s->spare || s->bytes > most || s->tags > TAGS || (best && s->state < best->state))
            continue;
        if (!best || s->state > best->state ||
            (s->bytes <= want ? best->bytes > want || s->bytes > best->bytes
                              : best->bytes > want && s->bytes < best->bytes))
            best = s;
    }
    return best;
}

/* Plans memory from `at` to an end between `to` and `most`.  If `exact` is 1, new memory must end at `to`. */
static int plan_unmapped(struct weir_heap *h, int kind, int exact, uint64_t at, uint64_t to,
                         uint64_t most, size_t *planned) {
    struct weir_mapped_range *g = h->range;

    while (at < to) {
        size_t want = (size_t)(to - at);
        /* A small block that lives long would keep a large physical allocation from moving. */
        uint64_t fits = kind == WEIR_HEAP_SMALL && !exact
                            ? weir__size_smaller(FINE_LEAST, most - at)
                            : most - at;
        struct weir_mapped_handle *spare = choose_spare(g, want, fits);
        struct weir_mapped_move m = {.to.state = CLEAN, .from = NOWHERE};
        struct weir_mapped_move *moves =
            weir__hostmem_room(g->moves, g->move_count, &g->move_capacity, sizeof *moves);

        if (!moves)
            return 0;
        g->moves = moves;
        if (spare) {
            spare->spare = 0;
            m.to = *spare;
            m.from = spare->base;
        } else {
            m.to.bytes = exact ? want : new_bytes(h, kind, want, (size_t)(most - at), *planned);
            *planned += m.to.bytes;
        }
        m.to.base = at;
        m.least = weir__size_smaller(want, m.to.bytes);
        moves[g->move_count++] = m;
        at += m.to.bytes;
    }
    return 1;
}

int weir__mapped_plan(struct weir_heap *h, int kind, const struct weir_mapped_window *w, int method,
                      size_t *planned) {
    struct weir_mapped_range *g = h->range;
    int exact = method == SQUEEZED || kind == WEIR_HEAP_AT_ADDRESS;
    uint64_t from, to, most;

    g->move_count = 0;
    *planned = 0;
    for (size_t i = g->first[kind]; i < g->first[kind + 1]; i++) {
        if (!clip_piece(w, &g->pieces[i], &from, &to))
            continue;
        most = piece_end(&g->pieces[i]);
        if (kind == WEIR_HEAP_AT_ADDRESS)
            most = weir__size_larger(to, weir__size_smaller(from + FINE_MOST, most));
        if (!plan_unmapped(h, kind, exact, from, to, most, planned))
            return 0;
    }
    return 1;
}
