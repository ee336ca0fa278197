/* SPDX-License-Identifier: MIT */
/* plan.c: see plan.h.
 *
 * What a pivot needs is found by halves: whether all blocks fit in so many bytes is one replay, which ends at the first
 * that does not.  A pivot that does not save a little beside the best one so far costs one replay.
 */
#include "placement/plan.h"

#include <stdlib.h>

#include "base/map.h"
#include "base/size.h"
#include "placement/placement.h"

/* As the mapped engine's. */
#define PAGE ((size_t)2 << 20)
#define BASE ((uint64_t)PAGE)
/* Of the memory: a pivot has to save so much. */
enum { LITTLE_PART = 1024 };
/* The sizes on either side of a pivot differ by such a part at least: lengths that vary by less change no side. */
enum { APART = 16 };
/* Events that are replayed at the most, of all replays: some 50 ns each. */
#define MOST_WORK ((size_t)1 << 20)

/* A block, by the number of its event. */
struct step {
    uint32_t block;
    size_t bytes; /* 0: it is given back */
};

struct planner {
    struct step *steps;
    size_t count;
    uint64_t *at; /* by block: where it lies in the present replay */
    size_t *sizes;
    size_t size_count; /* different ones, ascending */
    size_t work;
};

/* Names each block by its first event.  1; 0: no host memory; -1: a block was there before. */
static int name_blocks(struct planner *w, const struct weir_plan_event *events, size_t count) {
    struct weir_map live = {0};
    int result = 1;

    for (size_t i = 0; i < count && result == 1; i++) {
        uintptr_t block = i;

        if (events[i].bytes > 0) {
            result = weir__map_put(&live, events[i].address, block);
            w->sizes[w->size_count++] = events[i].bytes;
        } else if (!weir__map_take(&live, events[i].address, &block)) {
            result = -1;
        }
        w->steps[i] = (struct step){(uint32_t)block, events[i].bytes};
    }
    weir__map_clear(&live);
    return result;
}

static int by_size(const void *one, const void *other) {
    size_t a = *(const size_t *)one, b = *(const size_t *)other;

    return (a > b) - (a < b);
}

static void sort_sizes(struct planner *w) {
    size_t kept = 0;

    qsort(w->sizes, w->size_count, sizeof *w->sizes, by_size);
    for (size_t i = 0; i < w->size_count; i++)
        if (kept == 0 || w->sizes[i] != w->sizes[kept - 1])
            w->sizes[kept++] = w->sizes[i];
    w->size_count = kept;
}

/* The most that was live at once. */
static size_t most_live(const struct planner *w) {
    size_t live = 0, most = 0;

    for (size_t i = 0; i < w->count; i++) {
        const struct step *s = &w->steps[i];

        live += s->bytes > 0
                    ? weir__size_round_down(s->bytes + WEIR_PLAN_GRANULE - 1, WEIR_PLAN_GRANULE)
                    : 0;
        live -= s->bytes > 0
                    ? 0
                    : weir__size_round_down(w->steps[s->block].bytes + WEIR_PLAN_GRANULE - 1,
                                            WEIR_PLAN_GRANULE);
        most = live > most ? live : most;
    }
    return most;
}

/* 1, or 0: a block does not fit. */
static int replay(struct planner *w, struct weir_placement *p, size_t pivot) {
    struct weir_placement_block block;

    for (size_t i = 0; i < w->count; i++) {
        const struct step *s = &w->steps[i];

        w->work++;
        if (s->bytes == 0)
            (void)weir__placement_give(p, w->at[s->block], 1, 1, NULL);
        else if ((s->bytes < pivot ? weir__placement_take_high : weir__placement_take)(
                     p, s->bytes, 1, &block) == WEIR_PLACEMENT_OK)
            w->at[i] = block.address;
        else
            return 0;
    }
    return 1;
}

/* 1 if all blocks fit in so many bytes, as far as there is host memory to find out. */
static int fits(struct planner *w, size_t bytes, size_t pivot) {
    const struct weir_placement_rule rule = {.granularity = WEIR_PLAN_GRANULE,
                                             .split_waste = WEIR_PLAN_GRANULE};
    struct weir_placement *p;
    int result;

    if (weir__placement_create(&rule, &p) != WEIR_PLACEMENT_OK)
        return 0;
    result = weir__placement_add(p, BASE, bytes) == WEIR_PLACEMENT_OK && replay(w, p, pivot);
    weir__placement_destroy(p);
    return result;
}

/* The fewest bytes, in pages, above `least` that hold all, where `enough` do. */
static size_t fewest(struct planner *w, size_t least, size_t enough, size_t pivot) {
    const size_t close = enough / (4 * (size_t)LITTLE_PART) + PAGE;

    while (enough - least > close) {
        size_t middle = least + weir__size_round_down((enough - least) / 2, PAGE);

        if (middle == least)
            break;
        if (fits(w, middle, pivot))
            enough = middle;
        else
            least = middle;
    }
    return enough;
}

static void try_pivot(struct planner *w, size_t least, size_t pivot, struct weir_plan *best) {
    size_t wanted = weir__size_round_down(best->bytes - best->bytes / LITTLE_PART, PAGE);

    if (wanted == best->bytes)
        wanted -= PAGE;
    if (wanted < least || !fits(w, wanted, pivot))
        return;
    best->bytes = fits(w, least, pivot) ? least : fewest(w, least, wanted, pivot);
    best->pivot = pivot;
}

static void find_best(struct planner *w, struct weir_plan *best) {
    size_t least = weir__size_round_down(most_live(w) + PAGE - 1, PAGE), enough = least;

    best->pivot = 0;
    while (!fits(w, enough, 0) && enough < 4 * least)
        enough += least / 4 + PAGE;
    best->bytes = enough > least ? fewest(w, least, enough, 0) : least;
    for (size_t i = w->size_count; i-- > 1 && w->work < MOST_WORK;)
        if (w->sizes[i] - w->sizes[i - 1] >= w->sizes[i] / APART)
            try_pivot(w, least, w->sizes[i - 1] + (w->sizes[i] - w->sizes[i - 1]) / 2, best);
}

int weir__plan_make(const struct weir_plan_event *events, size_t count, struct weir_plan *out) {
    struct planner w = {.count = count};
    int named = 0;

    *out = (struct weir_plan){0};
    if (count == 0)
        return 1;
    w.steps = malloc(count * sizeof *w.steps);
    w.at = malloc(count * sizeof *w.at);
    w.sizes = malloc(count * sizeof *w.sizes);
    if (w.steps && w.at && w.sizes)
        named = name_blocks(&w, events, count);
    if (named == 1) {
        sort_sizes(&w);
        find_best(&w, out);
        (void)weir__plan_make_places(events, count, out); /* else there are none */
    }
    free(w.steps);
    free(w.at);
    free(w.sizes);
    return named != 0;
}
