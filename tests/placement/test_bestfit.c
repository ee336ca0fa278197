/* SPDX-License-Identifier: MIT */
/* test_bestfit.c: the choice among many free chunks, against a sorted array of (size, address) pairs.
 *
 * Free chunks lie between live blocks of one granule, so that they never join.  A slot of address space holds one of
 * them, and is larger than any chunk. */
#include "tests/fixtures/placements.h"

enum { SLOTS = 6000, SLOT = 1 << 20 /* granules */, LIMIT = SLOT / 4 };

/* The sizes drawn are all equal, in one class, or over all powers of two up to 2^18. */
enum { ALIKE, CLOSE, FAR, SPREADS };

struct pair {
    uint64_t size, address; /* in granules, from BASE */
};

static const struct weir_placement_rule rule = {.granularity = 256, .split_waste = GIB};
static struct pair slot[SLOTS], model[SLOTS]; /* the chunk of each slot; the free ones, ascending */
static int is_free[SLOTS];
static size_t count;

static uint64_t random_chunks(int spread) {
    if (spread == CLOSE)
        return 123456 + random_below(300);
    return spread == FAR ? 1 + random_next() % ((uint64_t)1 << random_below(18)) : 123456;
}

/* Returns the index of the first free chunk that is not before `c`. */
static size_t index_in_model(struct pair c) {
    size_t at = 0;

    while (at < count &&
           (model[at].size < c.size || (model[at].size == c.size && model[at].address < c.address)))
        at++;
    return at;
}

static void free_model_slot(size_t i) {
    size_t at = index_in_model(slot[i]);

    MUST_EQUAL(give_at(BASE + slot[i].address * G, A, ++clock_of_frees, NULL), WEIR_PLACEMENT_OK);
    memmove(&model[at + 1], &model[at], (count++ - at) * sizeof model[0]);
    model[at] = slot[i];
    is_free[i] = 1;
}

static void forget_free(size_t at) {
    is_free[model[at].address / SLOT] = 0;
    memmove(&model[at], &model[at + 1], (--count - at) * sizeof model[0]);
}

/* Requests `size` granules, unless the best fit would be cut. */
static void take_best(uint64_t size) {
    struct weir_placement_block block;
    size_t at = index_in_model((struct pair){size, 0});

    if (at < count && model[at].size < 2 * size) {
        MUST_EQUAL(weir__placement_alloc(p, size * G, record_of(A), &block), WEIR_PLACEMENT_OK);
        MUST_EQUAL(block.address, BASE + model[at].address * G);
        MUST_EQUAL(block.size, model[at].size * G);
        forget_free(at);
    }
}

static void take_there(size_t at) {
    struct weir_placement_block block;

    observe_frees_until(A, clock_of_frees);
    MUST_EQUAL(weir__placement_alloc_at(p, BASE + model[at].address * G, model[at].size * G,
                                        record_of(A), &block),
               WEIR_PLACEMENT_OK);
    forget_free(at);
}

/* Makes a placement of `slots` live blocks, each between others.  No memory beside them is free. */
static void fill_slots(size_t slots, int spread) {
    struct weir_placement_block block;

    random_state = test_seed(1);
    begin_placement(&rule, slots * SLOT * G);
    count = 0;
    for (size_t i = 0; i < slots; i++) {
        slot[i] = (struct pair){random_chunks(spread), i * SLOT};
        is_free[i] = 0;
        MUST_EQUAL(weir__placement_alloc_at(p, BASE + i * SLOT * G, slot[i].size * G, record_of(A),
                                            &block),
                   WEIR_PLACEMENT_OK);
        MUST_EQUAL(weir__placement_alloc_at(p, BASE + (i * SLOT + slot[i].size) * G,
                                            (SLOT - slot[i].size) * G, record_of(A), &block),
                   WEIR_PLACEMENT_OK);
    }
}

CASE("best fit", 120, NULL, end_placement_if_there);

/* The free chunks grow to nearly `slots` and shrink to none, several times. */
TEST_EACH(18, best_fit_agrees_with_a_sorted_array) {
    static const size_t slots[] = {2, 3, 14, 40, 400, 3000};
    size_t most = slots[_i / SPREADS];
    int growing = 1;

    fill_slots(most, _i % SPREADS);
    for (int i = 0; i < 30000; i++) {
        size_t at = random_below(most);

        growing = count == 0 ? 1 : count == most ? 0 : growing;
        if ((random_below(10) < 3) != growing && !is_free[at])
            free_model_slot(at);
        else if (count > 0 && random_below(2) == 0)
            take_best(random_chunks(_i % SPREADS));
        else if (count > 0 && growing == 0)
            take_there(random_below(count));
        if (i % 1024 == 0)
            healthy();
    }
}

/* Chunks of one size are freed in order or backwards, and allocated from either end or from the middle. */
TEST_EACH(6, taken_in_any_order) {
    fill_slots(SLOTS, ALIKE);
    for (size_t i = 0; i < SLOTS; i++)
        free_model_slot(_i % 2 == 0 ? i : SLOTS - 1 - i);
    healthy();
    while (count > 0) {
        if (_i / 2 == 0)
            take_best(123456);
        else
            take_there(_i / 2 == 1 ? count - 1 : count / 2);
        if (count % 1000 == 0)
            healthy();
    }
}

SUITE("bestfit", CK_FORK_GETENV);
