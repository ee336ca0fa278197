/* SPDX-License-Identifier: MIT */
/* profile.h: a small text file with the memory that earlier runs of a program needed.
 *
 *     weir profile 4
 *     device cuda NVIDIA H200 GPU-... 143771MiB
 *     settings engine=mapped growth=exact limit=max cache=on
 *     target 8GiB
 *     runs 3
 *     run 1764422723123456789 8589934592 8000000000
 *     checksum 89abcdef01234567
 *
 * The file has a line `run` for each of the last four runs.  weir accepts a file only if weir would write the same
 * bytes for the numbers in the file.  The checksum, FNV-1a of 64 bits, detects accidents, not attacks.
 *
 * The rule.  The target is the largest need of the last four runs.  A run in which reserved memory grew needed all of
 * its reserved memory.  For any other run weir expects the need per byte in use of the run with the largest need, or an
 * eighth more than the memory in use if there is no such run.  An expected need that is at most an eighth below the
 * target counts as the target.  Blocks lie differently in preallocated memory, so each run of a program may grow a
 * little above the target.  To keep the target from rising each time, a run counts as a run without growth if its peaks
 * are within a 16th of those of the run with the largest need.
 *
 * This file must not know drivers, engines, settings or allocators.
 */
#ifndef WEIR_PROFILE_H
#define WEIR_PROFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

enum {
    WEIR_PROFILE_RUNS = 4,
    WEIR_PROFILE_KEY_BYTES = 1024,
    WEIR_PROFILE_MOST_BYTES = 2048, /* larger than any profile */
};

/* The peaks of one run, in bytes.  In a profile `reserved' is the need of the run, and `in_use' is the memory in use
 * for which the need is known or expected. */
struct weir_profile_run {
    uint64_t id; /* differs from the ids of all other runs; never 0 */
    uint64_t reserved, in_use;
};

/* A profile without runs is all zero. */
struct weir_profile {
    uint64_t runs;                                   /* the number of runs so far */
    struct weir_profile_run last[WEIR_PROFILE_RUNS]; /* run N is at N % WEIR_PROFILE_RUNS */
};

/* Returns the FNV-1a hash of some bytes. */
uint64_t weir__profile_hash(const void *bytes, size_t count);
/* Adds a run, or replaces the record of the run with this id.  `grew' is set if the preallocation was too small. */
void weir__profile_add(struct weir_profile *profile, struct weir_profile_run run, int grew);
/* Returns the bytes to preallocate, or 0 if the profile has no run. */
uint64_t weir__profile_target(const struct weir_profile *profile);

/* Writes a profile as text.  `key' is the two lines that name the device and the settings.  Returns the length. */
size_t weir__profile_spell(const struct weir_profile *profile, const char *key,
                           char text[WEIR_PROFILE_MOST_BYTES]);

enum weir_profile_found {
    WEIR_PROFILE_READ,    /* *profile has the contents */
    WEIR_PROFILE_NONE,    /* there is no file */
    WEIR_PROFILE_USELESS, /* a profile that weir cannot use, or an empty file: weir may replace it */
    WEIR_PROFILE_FOREIGN, /* another file, or an unreadable one: weir does not change it */
};

/* Reads a text of `bytes` characters and a byte 0 after them.  Unless the result is READ, *profile is unchanged and
 * *problem has the reason. */
enum weir_profile_found weir__profile_parse(const char *text, size_t bytes, const char *key,
                                            struct weir_profile *profile,
                                            struct weir_problem *problem);
/* Reads the text of a file by weir__profile_parse. */
enum weir_profile_found weir__profile_load(const char *path, const char *key,
                                           struct weir_profile *profile,
                                           struct weir_problem *problem);
/* Replaces the file as a whole; only its owner may read it.  Returns 1 on success, 0 with the reason in *problem. */
int weir__profile_store(const char *path, const char *key, const struct weir_profile *profile,
                        struct weir_problem *problem);

#endif
