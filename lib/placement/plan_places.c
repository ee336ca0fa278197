/* SPDX-License-Identifier: MIT */
/* plan_places.c: a place for each block of a program that repeats itself (plan.h).
 *
 * Rounds.  The requests' sizes are a text; its longest end that repeats itself, at least twice, is the rounds, and what
 * comes before is the beginning.  Blocks of all rounds share the places of the first.  Which blocks are live beside each
 * other is read off the events up to the end of the second round: so a place is free again when the next round comes
 * back to it.  A program without rounds has places if it is short.
 *
 * Places.  plan_search.c finds them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/size.h"
#include "placement/plan.h"
#include "placement/plan_search.h"

#define NONE UINT32_MAX

struct solver {
    const struct weir_plan_event *events;
    size_t count; /* of those that are looked at */
    struct weir_plan_place *place;
    size_t places, round, rounds_end; /* in requests */
    uint64_t *most_beside;            /* by place: the most bytes that are live while it is */
    uint64_t *beside; /* a bit for each two places that are live at once; `words` for each place */
    size_t words;
    uint32_t *life; /* by place: events that it lives for */
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

/* The places that are live, in no order. */
struct live {
    uint32_t *place;
    uint32_t *at;   /* by place: where it stands there; NONE: it is not live, */
    uint32_t *born; /* and by which event it began to live last */
    size_t count;
    uint64_t bytes; /* in granules */
};

static void begin_life(struct solver *v, struct live *l, uint32_t place, uint32_t size,
                       size_t now) {
    if (l->at[place] != NONE) { /* that of the round before is still live */
        v->place[place].offset = WEIR_PLAN_NOWHERE;
        return;
    }
    v->place[place].size = size;
    l->born[place] = (uint32_t)now;
    l->bytes += size;
    for (size_t i = 0; i < l->count; i++) {
        set_beside(v, place, l->place[i]);
        v->most_beside[l->place[i]] = weir__size_larger(v->most_beside[l->place[i]], l->bytes);
    }
    v->most_beside[place] = weir__size_larger(v->most_beside[place], l->bytes);
    l->at[place] = (uint32_t)l->count;
    l->place[l->count++] = place;
}

static void end_life(struct solver *v, struct live *l, uint32_t place, size_t now) {
    uint32_t at = l->at[place];

    if (at == NONE)
        return;
    l->bytes -= v->place[place].size;
    v->life[place] = (uint32_t)now - l->born[place];
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
                end_life(v, l, (uint32_t)place, i);
            continue;
        }
        if (request == v->rounds_end)
            break;
        place = place_of(v, request++);
        result = weir__map_put(&places, e->address, place);
        begin_life(v, l, (uint32_t)place, granules(e->bytes), i);
    }
    weir__map_clear(&places);
    for (size_t i = 0; i < l->count; i++)
        v->life[l->place[i]] = (uint32_t)(v->count - l->born[l->place[i]]);
    return result;
}

/* ---- places ---------------------------------------------------------------------------------- */

static uint64_t find_places(struct solver *v, uint32_t *size, uint32_t *offset) {
    const struct weir_plan_blocks blocks = {.count = v->places,
                                            .size = size,
                                            .life = v->life,
                                            .most_beside = v->most_beside,
                                            .beside = v->beside,
                                            .words = v->words};
    uint64_t taken;

    for (size_t i = 0; i < v->places; i++)
        size[i] = v->place[i].offset == WEIR_PLAN_NOWHERE ? 0 : v->place[i].size;
    taken = weir__plan_search(&blocks, WEIR_PLAN_NOWHERE - 1, offset);
    for (size_t i = 0; i < v->places; i++)
        if (size[i] > 0)
            v->place[i].offset = offset[i];
    return taken;
}

static int solve(struct solver *v, struct weir_plan *out) {
    size_t n = v->places;
    uint32_t *room = malloc(5 * n * sizeof *room);
    uint64_t taken = 0;
    struct live l = {
        .place = room, .at = room ? room + n : NULL, .born = room ? room + 2 * n : NULL};

    v->words = (n + 63) / 64;
    v->beside = calloc(n * v->words, sizeof *v->beside);
    v->most_beside = calloc(n, sizeof *v->most_beside);
    v->life = calloc(n, sizeof *v->life);
    v->place = calloc(n, sizeof *v->place);
    if (room && v->beside && v->most_beside && v->life && v->place && see_lives(v, &l))
        taken = find_places(v, room + 3 * n, room + 4 * n);
    free(room);
    free(v->beside);
    free(v->most_beside);
    free(v->life);
    if (taken == 0) {
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
