/* SPDX-License-Identifier: MIT */
/* plan_search.c: see plan_search.h.
 *
 * Blocks get offsets one after another, from the lowest address up.  Next is the block that may lie lowest, which is
 * above all that have an offset and live beside it; of several, the first in some order.  Several orders are tried: the
 * largest first, those first that live while most is live, those of the largest product of size and life, and the
 * longest lives first.  No order needs less than the most that is live at once: there the search ends.
 *
 * Else the best order is changed step by step.  A block that ends above the most that is live at once comes earlier in
 * the order: to a place drawn at random.  A change is kept if the outcome is no worse than the one before it or the one
 * that was kept some changes ago ("late acceptance"): so the search leaves orders that no single change makes better.
 *
 * Numbers.  A step looks at one block, a nanosecond or two.
 */
#include "placement/plan_search.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

/* Steps of a search at the most. */
#define MOST_STEPS ((uint64_t)256 << 20)
enum { LATE = 64 };     /* changes ago */
enum { HIGH_PART = 4 }; /* of so many changes, one is of any block */
/* Changes without a better outcome, after which the search begins at the best order again, and how often it does. */
enum { STALE = 4096, RETURNS = 16 };

struct search {
    const struct weir_plan_blocks *b;
    uint32_t *order, *left, *offset, *best_order, *best_offset;
    uint64_t *key;
    size_t count; /* blocks with a size */
    uint64_t limit, most_live, best, steps;
    uint64_t random;
};

/* What came of an order. */
struct outcome {
    uint64_t height;
    uint64_t above; /* bytes that lie above the most that is live at once, of all blocks */
};

static int is_worse(const struct outcome *a, const struct outcome *than) {
    return a->height != than->height ? a->height > than->height : a->above > than->above;
}

/* Marsaglia's xorshift. */
static size_t draw(struct search *s, size_t below) {
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (size_t)(s->random >> 16) % below;
}

/* ---- an order's offsets ---------------------------------------------------------------------- */

/* Of `left` blocks that have no place yet, the first of those that may lie lowest. */
static size_t choose_lowest(const struct search *s, size_t left) {
    size_t lowest = 0;

    for (size_t i = 1; i < left; i++)
        if (s->offset[s->left[i]] < s->offset[s->left[lowest]])
            lowest = i;
    return lowest;
}

/* The block has its place: what lives beside it lies above its end. */
static void raise_others(struct search *s, size_t chosen, size_t left, uint32_t end) {
    const uint32_t block = s->left[chosen];
    const uint64_t *beside = s->b->beside + block * s->b->words;
    size_t kept = 0;

    for (size_t i = 0; i < left; i++) {
        uint32_t other = s->left[i];

        if (i == chosen)
            continue;
        if ((beside[other / 64] >> other % 64 & 1) && s->offset[other] < end)
            s->offset[other] = end;
        s->left[kept++] = other;
    }
}

/* Gives all blocks offsets by their order.  1; 0: a block would end above `most`. */
static int place_all(struct search *s, uint64_t most, struct outcome *out) {
    *out = (struct outcome){0};
    memcpy(s->left, s->order, s->count * sizeof *s->order);
    memset(s->offset, 0, s->b->count * sizeof *s->offset);
    for (size_t left = s->count; left > 0; left--) {
        size_t chosen = choose_lowest(s, left);
        uint32_t block = s->left[chosen];
        uint64_t end = (uint64_t)s->offset[block] + s->b->size[block];

        s->steps += 2 * left;
        if (end > most)
            return 0;
        out->height = weir__size_larger(out->height, end);
        out->above += weir__size_less(end, s->most_live);
        raise_others(s, chosen, left, (uint32_t)end);
    }
    return 1;
}

/* The present order, if it is the best so far. */
static void keep_best(struct search *s, const struct outcome *o) {
    if (s->best != 0 && o->height >= s->best)
        return;
    s->best = o->height;
    memcpy(s->best_order, s->order, s->count * sizeof *s->order);
    memcpy(s->best_offset, s->offset, s->b->count * sizeof *s->offset);
}

/* ---- orders to begin with -------------------------------------------------------------------- */

static uint64_t by_size(const struct weir_plan_blocks *b, size_t i) {
    return b->size[i];
}

static uint64_t by_crowd(const struct weir_plan_blocks *b, size_t i) {
    return b->most_beside[i] << 32 | b->size[i];
}

static uint64_t by_area(const struct weir_plan_blocks *b, size_t i) {
    return (uint64_t)b->size[i] * b->life[i];
}

static uint64_t by_life(const struct weir_plan_blocks *b, size_t i) {
    return (uint64_t)b->life[i] << 32 | b->size[i];
}

static int by_key(const void *one, const void *other, void *key) {
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    const uint64_t *keys = key;

    if (keys[a] != keys[b])
        return keys[a] < keys[b] ? 1 : -1;
    return a < b ? -1 : 1;
}

static void try_orders(struct search *s) {
    static uint64_t (*const keys[])(const struct weir_plan_blocks *, size_t) = {by_size, by_crowd,
                                                                                by_area, by_life};
    struct outcome o;

    for (size_t k = 0; k < sizeof keys / sizeof keys[0] && s->best != s->most_live; k++) {
        for (size_t i = 0; i < s->b->count; i++)
            s->key[i] = keys[k](s->b, i);
        qsort_r(s->order, s->count, sizeof *s->order, by_key, s->key);
        if (place_all(s, s->best != 0 ? s->best - 1 : s->limit, &o))
            keep_best(s, &o);
    }
}

/* ---- better ones ----------------------------------------------------------------------------- */

/* Where in the order a block stands that ended above the most that is live at once when it was last placed; one of
 * those, drawn. */
static size_t draw_high(struct search *s) {
    size_t at = draw(s, s->count);

    for (size_t i = 0; i < s->count; i++, at = at + 1 < s->count ? at + 1 : 0)
        if ((uint64_t)s->offset[s->order[at]] + s->b->size[s->order[at]] > s->most_live)
            break;
    return at;
}

/* The block at `from` goes to `to`; those between them move by one. */
static void move_block(struct search *s, size_t from, size_t to) {
    uint32_t block = s->order[from];

    if (from > to)
        memmove(&s->order[to + 1], &s->order[to], (from - to) * sizeof *s->order);
    else
        memmove(&s->order[from], &s->order[from + 1], (to - from) * sizeof *s->order);
    s->order[to] = block;
}

static void begin_at_best(struct search *s, struct outcome *now, struct outcome late[LATE]) {
    memcpy(s->order, s->best_order, s->count * sizeof *s->order);
    (void)place_all(s, s->limit, now);
    for (size_t i = 0; i < LATE; i++)
        late[i] = *now;
}

/* Changes the order once; it is as before if the outcome is worse than both.  1: it was changed. */
static int change(struct search *s, struct outcome *now, const struct outcome *late) {
    size_t from = draw(s, HIGH_PART) > 0 ? draw_high(s) : draw(s, s->count);
    size_t to = draw(s, from + 1);
    struct outcome o;

    move_block(s, from, to);
    if (!place_all(s, weir__size_larger(now->height, late->height), &o) ||
        (is_worse(&o, now) && is_worse(&o, late))) {
        move_block(s, to, from);
        return 0;
    }
    *now = o;
    return 1;
}

static void improve(struct search *s) {
    struct outcome now, late[LATE];
    size_t stale = STALE, returns = 0;

    for (size_t n = 0; s->steps < MOST_STEPS && s->best > s->most_live; n = (n + 1) % LATE) {
        if (stale == STALE) {
            if (returns++ == RETURNS)
                return;
            begin_at_best(s, &now, late);
            stale = 0;
        }
        stale++;
        if (change(s, &now, &late[n]) && now.height < s->best) {
            keep_best(s, &now);
            stale = returns = 0;
        }
        late[n] = now;
    }
}

uint64_t weir__plan_search(const struct weir_plan_blocks *blocks, uint64_t limit,
                           uint32_t *offset) {
    const size_t n = blocks->count;
    uint32_t *room = malloc(4 * n * sizeof *room);
    struct search s = {.b = blocks,
                       .key = malloc(n * sizeof *s.key),
                       .best_offset = offset,
                       .limit = limit,
                       .random = UINT64_C(88172645463325252)};

    if (room && s.key) {
        s.order = room;
        s.left = room + n;
        s.offset = room + 2 * n;
        s.best_order = room + 3 * n;
        for (size_t i = 0; i < n; i++) {
            if (blocks->size[i] > 0)
                s.order[s.count++] = (uint32_t)i;
            s.most_live = weir__size_larger(s.most_live, blocks->most_beside[i]);
        }
        try_orders(&s);
        if (s.best > s.most_live)
            improve(&s);
    }
    free(room);
    free(s.key);
    return s.best;
}
