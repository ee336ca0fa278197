/* SPDX-License-Identifier: MIT */
/* plan_places.c: a place for each block of a program that repeats itself (plan.h).
 *
 * Rounds.  The requests' sizes are a text; its longest end that repeats itself, at least twice, is the rounds, and what
 * comes before is the beginning.  Blocks of all rounds share the places of the first.  Which blocks are live beside each
 * other is read off the events up to the end of the second round: so a place is free again when the next round comes
 * back to it.  A program without rounds has places if it is short.
 *
 * Places.  One after another the blocks get the lowest offset that no block has which is ever live beside them, the
 * largest first; then the same with those first that are live when most is.  The better one is kept.
 */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/size.h"
#include "placement/plan.h"

#define NONE UINT32_MAX

struct solver {
    const struct weir_plan_event *events;
    size_t count; /* of those that are looked at */
    struct weir_plan_place *place;
    size_t places, round, rounds_end; /* in requests */
    uint64_t *most_beside;            /* by place: the most bytes that are live while it is */
    uint64_t *beside; /* a bit for each two places that are live at once; `words` for each place */
    size_t words;
    uint32_t *order, *by_offset;
};

static uint32_t granules(size_t bytes) {
    return (uint32_t)((bytes + WEIR_PLAN_GRANULE - 1) / WEIR_PLAN_GRANULE);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* The longest end of the sizes that repeats itself: where it begins, and the length of a round.  By the lengths of the
 * borders of all beginnings of the reversed text (Knuth, Morris, Pratt).  1, or 0: no host memory. */
static int find_rounds(const uint32_t *size, size_t count, size_t *begins, size_t *length) {
    uint32_t *border = malloc(count * sizeof *border);
    size_t k = 0;

    *begins = count;
    *length = 0;
    if (!border)
        return 0;
    border[0] = 0;
    for (size_t i = 1; i < count; i++) {
        while (k > 0 && size[count - 1 - i] != size[count - 1 - k])
            k = border[k - 1];
        k += size[count - 1 - i] == size[count - 1 - k];
        border[i] = (uint32_t)k;
        if (i + 1 - k <= (i + 1) / 2) {
            *begins = count - 1 - i;
            *length = i + 1 - k;
        }
    }
    free(border);
    return 1;
}

/* The most requests that come while a block of the rounds is live, its own included; 0: no host memory. */
static size_t longest_life(const struct solver *v, size_t begins) {
    struct weir_map born = {0};
    size_t requests = 0, longest = 1;
    uintptr_t birth;

    for (size_t i = 0; i < v->count && longest > 0; i++) {
        const struct weir_plan_event *e = &v->events[i];

        if (e->bytes > 0)
            longest = weir__map_put(&born, e->address, requests++) ? longest : 0;
        else if (weir__map_take(&born, e->address, &birth) && birth >= begins)
            longest = weir__size_larger(longest, requests - birth);
    }
    weir__map_clear(&born);
    return longest;
}

/* A round as long as that of the sizes, or several of those, so that no block is live when its place comes again. */
static void choose_round(struct solver *v, size_t requests, size_t begins, size_t length) {
    size_t longest = length > 0 && begins <= requests / 2 ? longest_life(v, begins) : 0;

    /* Rounds that make up little are no rounds of the program's. */
    v->round = v->places = v->rounds_end = requests;
    if (longest == 0)
        return;
    length *= (longest + length - 1) / length;
    if (begins + 2 * length > requests)
        return;
    v->round = begins;
    v->places = begins + length;
    v->rounds_end = begins + 2 * length;
}

/* Which requests have places, and where rounds begin.  1; 0: none have, or there is no host memory. */
static int choose_requests(struct solver *v) {
    uint32_t *size = malloc(v->count * sizeof *size);
    size_t requests = 0, begins, length;
    int found;

    if (!size)
        return 0;
    for (size_t i = 0; i < v->count; i++)
        if (v->events[i].bytes > 0)
            size[requests++] = granules(v->events[i].bytes);
    found = requests > 0 && find_rounds(size, requests, &begins, &length);
    free(size);
    if (!found)
        return 0;
    choose_round(v, requests, begins, length);
    return v->places <= WEIR_PLAN_MOST_PLACES;
}

/* ---- which blocks are live at once ----------------------------------------------------------- */

static uint32_t place_of(const struct solver *v, size_t request) {
    return (uint32_t)(request < v->places ? request : request - (v->places - v->round));
}

static void set_beside(struct solver *v, uint32_t one, uint32_t other) {
    v->beside[one * v->words + other / 64] |= UINT64_C(1) << other % 64;
    v->beside[other * v->words + one / 64] |= UINT64_C(1) << one % 64;
}

static int is_beside(const struct solver *v, uint32_t one, uint32_t other) {
    return v->beside[one * v->words + other / 64] >> other % 64 & 1;
}

/* The places that are live, in no order. */
struct live {
    uint32_t *place;
    uint32_t *at; /* by place: where it stands there; NONE: it is not live */
    size_t count;
    uint64_t bytes; /* in granules */
};

static void begin_life(struct solver *v, struct live *l, uint32_t place, uint32_t size) {
    if (l->at[place] != NONE) { /* that of the round before is still live */
        v->place[place].offset = WEIR_PLAN_NOWHERE;
        return;
    }
    v->place[place].size = size;
    l->bytes += size;
    for (size_t i = 0; i < l->count; i++) {
        set_beside(v, place, l->place[i]);
        v->most_beside[l->place[i]] = weir__size_larger(v->most_beside[l->place[i]], l->bytes);
    }
    v->most_beside[place] = weir__size_larger(v->most_beside[place], l->bytes);
    l->at[place] = (uint32_t)l->count;
    l->place[l->count++] = place;
}

static void end_life(const struct solver *v, struct live *l, uint32_t place) {
    uint32_t at = l->at[place];

    if (at == NONE)
        return;
    l->bytes -= v->place[place].size;
    l->place[at] = l->place[--l->count];
    l->at[l->place[at]] = at;
    l->at[place] = NONE;
}

/* 1, or 0: no host memory. */
static int see_lives(struct solver *v, struct live *l) {
    struct weir_map places = {0};
    size_t request = 0;
    int result = 1;

    memset(l->at, 0xff, v->places * sizeof *l->at);
    for (size_t i = 0; i < v->count && result; i++) {
        const struct weir_plan_event *e = &v->events[i];
        uintptr_t place;

        if (e->bytes == 0) {
            if (weir__map_take(&places, e->address, &place))
                end_life(v, l, (uint32_t)place);
            continue;
        }
        if (request == v->rounds_end)
            break;
        place = place_of(v, request++);
        result = weir__map_put(&places, e->address, place);
        begin_life(v, l, (uint32_t)place, granules(e->bytes));
    }
    weir__map_clear(&places);
    return result;
}

/* ---- places ---------------------------------------------------------------------------------- */

static int by_key(const void *one, const void *other, void *key) {
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    const uint64_t *keys = key;

    if (keys[a] != keys[b])
        return keys[a] < keys[b] ? 1 : -1;
    return a < b ? -1 : 1;
}

/* The lowest offset for the block, among `placed` others by offset. */
static uint64_t lowest(const struct solver *v, const uint32_t *offset, uint32_t block,
                       size_t placed) {
    uint64_t at = 0;

    for (size_t i = 0; i < placed; i++) {
        uint32_t other = v->by_offset[i];

        if (offset[other] >= at + v->place[block].size)
            break;
        if (is_beside(v, block, other))
            at = weir__size_larger(at, (uint64_t)offset[other] + v->place[other].size);
    }
    return at;
}

/* Where among `placed` others a block of that offset belongs. */
static size_t rank_of(const struct solver *v, const uint32_t *offset, uint64_t at, size_t placed) {
    size_t low = 0, high = placed;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (offset[v->by_offset[middle]] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Places all in the order of `key`, the largest first: the granules that they take. */
static uint64_t place_all(struct solver *v, uint64_t *key, uint32_t *offset) {
    uint64_t most = 0;
    size_t placed = 0;

    for (size_t i = 0; i < v->places; i++)
        v->order[i] = (uint32_t)i;
    qsort_r(v->order, v->places, sizeof *v->order, by_key, key);
    for (size_t i = 0; i < v->places; i++) {
        uint32_t block = v->order[i];
        uint64_t at;
        size_t rank;

        offset[block] = WEIR_PLAN_NOWHERE;
        if (v->place[block].offset == WEIR_PLAN_NOWHERE)
            continue;
        at = lowest(v, offset, block, placed);
        if (at + v->place[block].size >= WEIR_PLAN_NOWHERE)
            return UINT64_MAX;
        rank = rank_of(v, offset, at, placed);
        memmove(&v->by_offset[rank + 1], &v->by_offset[rank],
                (placed - rank) * sizeof *v->by_offset);
        v->by_offset[rank] = block;
        placed++;
        offset[block] = (uint32_t)at;
        most = weir__size_larger(most, at + v->place[block].size);
    }
    return most;
}

/* The better of two orders: the granules that it takes. */
static uint64_t find_places(struct solver *v, uint64_t *key, uint32_t *one, uint32_t *other) {
    uint64_t most_live = 0, first, second;

    for (size_t i = 0; i < v->places; i++) {
        key[i] = v->place[i].size;
        most_live = weir__size_larger(most_live, v->most_beside[i]);
    }
    first = place_all(v, key, one);
    if (first > most_live) {
        for (size_t i = 0; i < v->places; i++)
            key[i] = v->most_beside[i] << 32 | v->place[i].size;
        second = place_all(v, key, other);
        if (second < first) {
            first = second;
            one = other;
        }
    }
    for (size_t i = 0; i < v->places; i++)
        v->place[i].offset = one[i];
    return first;
}

static int solve(struct solver *v, struct weir_plan *out) {
    size_t n = v->places;
    uint32_t *live = malloc(4 * n * sizeof *live);
    uint64_t *key = malloc(n * sizeof *key), taken = UINT64_MAX;
    struct live l = {.place = live, .at = live ? live + n : NULL};

    v->words = (n + 63) / 64;
    v->beside = calloc(n * v->words, sizeof *v->beside);
    v->most_beside = calloc(n, sizeof *v->most_beside);
    v->order = malloc(2 * n * sizeof *v->order);
    v->by_offset = v->order ? v->order + n : NULL;
    v->place = calloc(n, sizeof *v->place);
    if (live && key && v->beside && v->most_beside && v->order && v->place && see_lives(v, &l))
        taken = find_places(v, key, live + 2 * n, live + 3 * n);
    free(live);
    free(key);
    free(v->beside);
    free(v->most_beside);
    free(v->order);
    if (taken == UINT64_MAX || taken == 0) {
        free(v->place);
        return 0;
    }
    out->exact = (size_t)taken * WEIR_PLAN_GRANULE;
    out->place = v->place;
    out->places = n;
    out->round = v->round;
    return 1;
}

int weir__plan_make_places(const struct weir_plan_event *events, size_t count,
                           struct weir_plan *out) {
    struct solver v = {.events = events, .count = count};

    return count > 0 && choose_requests(&v) && solve(&v, out);
}
