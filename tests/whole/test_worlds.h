/* SPDX-License-Identifier: MIT */
/* test_worlds.h: what the suites of all short sequences share: how they are gone through, and told. */
#ifndef WEIR_TEST_WORLDS_H
#define WEIR_TEST_WORLDS_H

#include "tests/fixtures/model_device.h"

#include "placement/placement.h"

/* What is under way, for whoever has to read it. */
static void (*tell)(void);

#define FAULT(...) (tell(), ck_abort_msg(__VA_ARGS__))
#include "tests/fixtures/oracle.h"

enum { MOST_STEPS = 12 };

struct step {
    int kind;
    int what, stream; /* a size or a block, by the kind */
};

/* The one that is tried. */
static struct {
    struct step done[MOST_STEPS];
    int depth, steps; /* so many so far, and at most */
    uint64_t sequences;
} search;

static inline void begin_search(int steps, void (*teller)(void)) {
    memset(&search, 0, sizeof search);
    search.steps = steps;
    tell = teller;
    MUST(steps <= MOST_STEPS);
}

static inline void tell_steps(const char *const *words) {
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

/* As MUST and MUST_EQ, but each side is evaluated once, and the sequence is told. */
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
