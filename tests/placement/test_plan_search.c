/* SPDX-License-Identifier: MIT */
/* test_plan_search.c: places of blocks that fit together without a gap.
 *
 * The blocks are parts of a rectangle of time and memory, which random cuts have made: so the most that is live at once
 * is enough for all.
 */
#include "placement/plan.h"
#include "tests/fixtures/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 60, WIDTH = 4000, HEIGHT = 4000 }; /* times; granules */

struct part {
    unsigned begin, end, low, high;
};

static struct part part[BLOCKS];
static struct weir_plan_event event[2 * BLOCKS];
static size_t block_of[2 * BLOCKS];
static uint64_t state;

static unsigned draw(unsigned below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 20) % below;
}

/* Cuts a part in two, in time or in memory. */
static void cut(size_t at, size_t fresh) {
    struct part *p = &part[at], *q = &part[fresh];

    *q = *p;
    if (draw(2) == 0)
        p->end = q->begin = p->begin + 1 + draw(p->end - p->begin - 1);
    else
        p->high = q->low = p->low + 1 + draw(p->high - p->low - 1);
}

static int can_cut(const struct part *p) {
    return p->end - p->begin > 40 && p->high - p->low > 40;
}

static void make_parts(uint64_t seed) {
    state = UINT64_C(88172645463325252) + seed * UINT64_C(7919);
    part[0] = (struct part){0, WIDTH, 0, HEIGHT};
    for (size_t count = 1; count < BLOCKS;) {
        size_t at = draw((unsigned)count);

        if (can_cut(&part[at]))
            cut(at, count++);
    }
}

static void add_event(size_t *count, size_t block, size_t bytes) {
    block_of[*count] = block;
    event[(*count)++] = (struct weir_plan_event){(block + 1) * 4096, bytes};
}

/* What ends at a time ends before what begins then. */
static void make_events(void) {
    size_t count = 0;

    for (unsigned now = 0; now <= WIDTH; now++) {
        for (size_t i = 0; i < BLOCKS; i++)
            if (part[i].end == now)
                add_event(&count, i, 0);
        for (size_t i = 0; i < BLOCKS; i++)
            if (part[i].begin == now)
                add_event(&count, i, (size_t)(part[i].high - part[i].low) * WEIR_PLAN_GRANULE);
    }
}

static int at_once(const struct part *a, const struct part *b) {
    return a->begin < b->end && b->begin < a->end;
}

/* The places of all blocks that live at once lie apart, and below the end of the plan. */
static void check_places(const struct weir_plan *plan) {
    size_t block[BLOCKS], n = 0;

    for (size_t i = 0; i < sizeof event / sizeof event[0]; i++)
        if (event[i].bytes > 0)
            block[n++] = block_of[i];
    ck_assert_uint_eq(plan->places, BLOCKS);
    for (size_t i = 0; i < BLOCKS; i++) {
        const struct weir_plan_place *p = &plan->place[i];

        ck_assert_uint_le(((size_t)p->offset + p->size) * WEIR_PLAN_GRANULE, plan->exact);
        for (size_t k = 0; k < i; k++) {
            const struct weir_plan_place *q = &plan->place[k];

            ck_assert(!at_once(&part[block[i]], &part[block[k]]) ||
                      p->offset + p->size <= q->offset || q->offset + q->size <= p->offset);
        }
    }
}

/* Within a hundredth of what is live; the largest block first at its lowest offset needs more. */
TEST(blocks_that_fit_together_have_places_without_gaps) {
    struct weir_plan plan;

    make_parts((uint64_t)_i);
    make_events();
    ck_assert_int_eq(weir__plan_make(event, 2 * BLOCKS, &plan), 1);
    check_places(&plan);
    ck_assert_uint_le(plan.exact, (size_t)HEIGHT * WEIR_PLAN_GRANULE / 100 * 101);
    free(plan.place);
}

/* By steps, not by the clock. */
TEST(the_same_blocks_have_the_same_places) {
    struct weir_plan one, other;

    make_parts(1);
    make_events();
    ck_assert_int_eq(weir__plan_make(event, 2 * BLOCKS, &one), 1);
    ck_assert_int_eq(weir__plan_make(event, 2 * BLOCKS, &other), 1);
    ck_assert_uint_eq(one.exact, other.exact);
    ck_assert(memcmp(one.place, other.place, one.places * sizeof *one.place) == 0);
    free(one.place);
    free(other.place);
}

int main(void) {
    Suite *suite = suite_create("plan_search");
    TCase *places = tcase_create("places");

    tcase_set_timeout(places, 120);
    ADD_FOR_EACH(places, 4, blocks_that_fit_together_have_places_without_gaps);
    ADD_TESTS(places, the_same_blocks_have_the_same_places);
    suite_add_tcase(suite, places);
    return run_suite(suite, CK_FORK_GETENV);
}
