/* SPDX-License-Identifier: MIT */
/* test_worlds.h: helpers of the suites that try all short sequences: the search and its messages. */
#ifndef WEIR_TEST_WORLDS_H
#define WEIR_TEST_WORLDS_H

#include "tests/fixtures/model_device.h"

#include "placement/placement.h"

/* Writes the present sequence for the reader of a failure. */
static void (*tell)(void);

#define FAULT(...) (tell(), ck_abort_msg(__VA_ARGS__))
#include "tests/fixtures/oracle.h"

enum { MOST_STEPS = 12 };

struct step {
    int kind;
    int what, stream; /* a size or a block, by the kind */
};

/* The sequence that is tried. */
static struct {
    struct step done[MOST_STEPS];
    int depth, steps; /* its length, and the greatest length */
    uint64_t sequences;
} search;

static inline void begin_search(int steps, void (*teller)(void)) {
    memset(&search, 0, sizeof search);
    search.steps = steps;
    tell = teller;
    MUST(steps <= MOST_STEPS);
}

static inline void print_steps(const char *const *words) {
    for (int i = 0; i < search.depth; i++)
        fprintf(stderr, "%s%s %d on %d", i > 0 ? ", " : "", words[search.done[i].kind],
                search.done[i].what, search.done[i].stream);
    fprintf(stderr, "\n");
}

static inline void show_bounds(const char *what, const char *name) {
    printf("# %s, %s: all %llu sequences of up to %d operations\n", what, name,
           (unsigned long long)search.sequences, search.steps);
    fflush(stdout);
}

static inline int depth_of(int standard) {
    const char *text = getenv("WEIR_TEST_DEPTH");

    return standard + (text ? (int)strtol(text, NULL, 0) : 0);
}

/* These macros are like MUST and MUST_EQ, but evaluate each side once, and write the sequence. */
#define HOLDS(condition) same(!!(condition), 1, #condition, __LINE__)
#define SAME(a, b) same((uint64_t)(a), (uint64_t)(b), #a " == " #b, __LINE__)

static inline void same(uint64_t a, uint64_t b, const char *what, int line) {
    if (a == b)
        return;
    tell();
    must_compare(0, what, a, b, line);
}

#define G ((size_t)256)

#endif
