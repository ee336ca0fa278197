/* SPDX-License-Identifier: MIT */
/* sim.h: what the two halves of the simulation share.
 *
 *   world    an allocator with settings, streams, threads and a device, all drawn from one seed
 *   script   a world's seed and the words that it lives through; any words will do, in any number
 *   word     one operation: what a word does depends on the world as it finds it, and on nothing else
 *
 * sim_world.c plays a script; sim.c makes scripts, looks after the processes they run in, and shortens
 * one that fails.
 */
#ifndef WEIR_TEST_SIM_H
#define WEIR_TEST_SIM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct sim_script {
    uint64_t seed;
    uint64_t *words;
    size_t count;
    int is_followed; /* its driver calls go into the report's digest, */
    FILE *calls;     /* and a line for each goes here, if it is not NULL */
};

/* What is worth counting: X(name, words in output). */
#define SIM_COUNTS(X)                                                                              \
    X(ALLOCS, "allocations")                                                                       \
    X(FAILURES, "failed requests")                                                                 \
    X(LARGEST, "requests for what a failure said")                                                 \
    X(ASKED, "calls of the program's callback")                                                    \
    X(USES, "uses checked")                                                                        \
    X(ANY, "blocks for any stream")                                                                \
    X(LIMITS, "limits that changed")                                                               \
    X(CAPTURES, "captures")                                                                        \
    X(FAULTS, "faults met")                                                                        \
    X(HITS, "hits")                                                                                \
    X(STEALS, "steals")                                                                            \
    X(RECORDS, "event records")                                                                    \
    X(DEFERRED, "deferred frees")                                                                  \
    X(GROWTHS, "growth steps")                                                                     \
    X(RETRIES, "recoveries")                                                                       \
    X(AHEAD, "growth steps in the background")                                                     \
    X(DECAYS, "times that idle reserve decayed")                                                   \
    X(LEARNT, "allocators that began with a profile")

enum sim_count {
#define SIM_COUNT(name, words) SIM_##name,
    SIM_COUNTS(SIM_COUNT)
#undef SIM_COUNT
        SIM_COUNT_COUNT
};

/* Lies in memory that the process that looks on shares. */
struct sim_report {
    _Atomic uint64_t seed; /* played now */
    _Atomic uint64_t at;   /* the word that is played now */
    _Atomic uint64_t operations;
    _Atomic uint64_t worlds;
    _Atomic uint64_t counts[SIM_COUNT_COUNT];
    _Atomic uint64_t digest; /* of the driver calls of worlds that were followed: the sum */
    char failure[4096];      /* "": none */
};

/* Plays it to the end, with a clean-up after it.  Does not return from a failure: its text goes to the
 * report, and the process ends with 1.  `story` (NULL: none): a line for each operation. */
void sim_play(const struct sim_script *script, struct sim_report *report, FILE *story);
/* One line about the world of a seed. */
void sim_describe(uint64_t seed, FILE *out);

/* Goes from seed to word: a finalizer of 64 bits. */
static inline uint64_t sim_mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

#endif
