/* SPDX-License-Identifier: MIT */
/* sim.h: the interface between the two halves of the simulation.
 *
 *   world    an allocator with settings, streams, threads and a device, all drawn from one seed
 *   script   a world's seed and its words; any words in any number make a script
 *   word     one operation, whose effect depends on the state of the world alone
 *
 * sim_world.c plays a script; sim.c makes scripts, watches the processes that play them, and shortens
 * a script that fails. */
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
    int is_followed; /* the report's digest counts the driver calls */
    FILE *calls;     /* gets a line for each driver call, unless NULL */
};

/* The counters of a run: X(name, words in output). */
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

/* The report lies in memory that the child shares with its parent. */
struct sim_report {
    _Atomic uint64_t seed; /* played now */
    _Atomic uint64_t at;   /* the word that is played now */
    _Atomic uint64_t operations;
    _Atomic uint64_t worlds;
    _Atomic uint64_t counts[SIM_COUNT_COUNT];
    _Atomic uint64_t digest; /* the sum over the driver calls of all followed worlds */
    char failure[4096];      /* "": none */
};

/* Plays the script to its end, and cleans up.  A failure writes its text to the report and ends the process with 1.
 * `story' gets a line for each operation, unless it is NULL. */
void sim_play(const struct sim_script *script, struct sim_report *report, FILE *story);
/* Writes a line about the world of a seed. */
void sim_describe(uint64_t seed, FILE *out);

/* Mixes 64 bits, to derive words from a seed. */
static inline uint64_t sim_mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

#endif
