/* SPDX-License-Identifier: MIT */
/* test_plan.c: the plan of one run places the blocks of the next one, and does no harm to another program.
 *
 * The program has small blocks that stay, taken between large ones that go, so that best fit leaves unmapped ranges which the
 * largest block does not fit in.
 */
#include "tests/fixtures/model_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CAPACITY ((size_t)8 << 30)
enum { ROUNDS = 4, PAIRS = 12 };

static char folder[200], file[256];

static void set_up(void) {
    snprintf(folder, sizeof folder, "/tmp/weir-plan-XXXXXX");
    MUST(mkdtemp(folder) != NULL);
    MUST(setenv("WEIR_RUN_FOLDER", folder, 1) == 0);
    snprintf(file, sizeof file, "%s/profile", folder);
    start_model(CAPACITY);
}

static void tear_down(void) {
    char command[280];

    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    MUST(system(command) == 0);
}

/* Per mille of the usual sizes, and a block more in each round from the second on. */
struct program {
    int scale, departs, streams;
};

static size_t scaled(const struct program *p, size_t mib) {
    return mib * MIB / 1000 * (size_t)p->scale;
}

static void run_round(weir_allocator *a, const struct program *p, int round) {
    void *small[PAIRS], *large[PAIRS], *last, *more = NULL;
    weir_stream s = p->streams > 1 && round % 2 ? B : A;

    for (int i = 0; i < PAIRS; i++) {
        OK(weir_alloc(a, scaled(p, 40 + 4 * (size_t)i), s, &large[i]));
        OK(weir_alloc(a, scaled(p, 2 + (size_t)i % 3), s, &small[i]));
        if (p->departs && round > 0 && i == 3)
            OK(weir_alloc(a, 7 * MIB, s, &more));
    }
    for (int i = 0; i < PAIRS; i++)
        OK(weir_free(a, large[i], s));
    OK(weir_alloc(a, scaled(p, 700), s, &last));
    OK(weir_free(a, last, s));
    for (int i = 0; i < PAIRS; i++)
        OK(weir_free(a, small[i], s));
    OK(weir_free(a, more, s));
    CU(driver->cuStreamSynchronize(s));
}

static weir_statistics run(const struct program *p, int learns) {
    weir_options options;
    weir_allocator *a;
    weir_statistics s = {.size = sizeof s};

    weir_options_init(&options);
    options.device = "model";
    options.engine = WEIR_ENGINE_MAPPED;
    options.log = WEIR_LOG_WARNING;
    options.profile = learns ? file : NULL;
    OK(weir_allocator_create(&options, &a));
    for (int round = 0; round < ROUNDS; round++)
        run_round(a, p, round);
    OK(weir_stats(a, &s));
    OK(weir_allocator_destroy(a));
    return s;
}

static const struct program usual = {1000, 0, 1};

/* The same program needs no more than it has live, but for pages. */
TEST(another_run_of_the_program_reserves_what_is_live) {
    weir_statistics unplanned = run(&usual, 0), learning = run(&usual, 1), planned;

    for (int i = 0; i < 2; i++) { /* once as a new plan, once as one that was kept */
        planned = run(&usual, 1);
        MUST_LE(planned.reserve_peak, unplanned.reserve_peak);
        MUST_LE(planned.reserve_peak, learning.reserve_peak);
        MUST_LE(planned.reserve_peak, planned.requested_peak + 4 * MIB);
        MUST_EQ(planned.growth_allocs, 0);
    }
}

/* Other lengths: no block is as large as planned. */
TEST(other_lengths_need_no_more_than_without_a_plan) {
    static const int scales[] = {980, 990, 1010, 1030};
    struct program other = {scales[_i], 0, 1};
    weir_statistics unplanned = run(&other, 0), first = run(&usual, 1), planned;

    planned = run(&other, 1);
    MUST_LE(planned.reserve_peak, unplanned.reserve_peak > first.reserve_peak
                                      ? unplanned.reserve_peak
                                      : first.reserve_peak);
}

/* A block that is not planned has another place, and those behind it have theirs. */
TEST(a_block_more_departs_alone) {
    struct program departs = {1000, 1, 1};
    weir_statistics unplanned = run(&departs, 0), planned;

    (void)run(&usual, 1);
    planned = run(&departs, 1);
    MUST_LE(planned.reserve_peak, unplanned.reserve_peak);
}

/* What small blocks need by the plan is there already: a little more memory is a little. */
TEST(a_preallocation_adds_what_it_says) {
    weir_options options;
    weir_allocator *a;
    void *small[400], *large;
    size_t before, after;

    weir_options_init(&options);
    options.device = "model";
    options.engine = WEIR_ENGINE_MAPPED;
    options.front = WEIR_SWITCH_OFF;
    options.profile = file;
    for (int run = 0; run < 2; run++) {
        OK(weir_allocator_create(&options, &a));
        OK(weir_alloc(a, 4 * MIB, A, &large));
        for (int i = 0; i < 400; i++)
            OK(weir_alloc(a, 60000, A, &small[i]));
        if (run == 1) {
            OK(weir_preallocate(a, 0, &before));
            OK(weir_preallocate(a, before + 4 * MIB, &after));
            MUST_LE(after, before + 8 * MIB);
        }
        for (int i = 0; i < 400; i++)
            OK(weir_free(a, small[i], A));
        OK(weir_free(a, large, A));
        CU(driver->cuStreamSynchronize(A));
        OK(weir_allocator_destroy(a));
    }
}

/* A program with two streams that has another's plan. */
TEST(several_streams_keep_their_order) {
    struct program streams = {1000, 0, 2};
    weir_statistics unplanned = run(&streams, 0), planned;

    (void)run(&usual, 1);
    for (int i = 0; i < 2; i++) {
        planned = run(&streams, 1);
        MUST_LE(planned.reserve_peak, unplanned.reserve_peak + 64 * MIB);
    }
}

int main(void) {
    Suite *suite = suite_create("plan");
    TCase *runs = suite_add_case(suite, "runs", 60, set_up, tear_down);

    ADD_TESTS(runs, another_run_of_the_program_reserves_what_is_live, a_block_more_departs_alone,
              a_preallocation_adds_what_it_says, several_streams_keep_their_order);
    ADD_FOR_EACH(runs, 4, other_lengths_need_no_more_than_without_a_plan);
    return run_suite(suite, CK_FORK);
}
