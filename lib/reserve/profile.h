/* SPDX-License-Identifier: MIT */
/* profile.h: how much memory earlier runs of a program needed, in a small text file.
 *
 *     weir profile 3
 *     device cuda NVIDIA H200 GPU-... 143771MiB
 *     settings engine=mapped packing=balanced growth=exact limit=max cache=on
 *     target 8GiB
 *     runs 3
 *     basis 8589934592 8000000000
 *     need 0123456789abcdef 8589934592
 *     checksum 89abcdef01234567
 *
 * The file has a line `need` for each of the last runs, the oldest first.  The checksum is FNV-1a of 64 bits, which finds
 * accidents, not attacks.  weir accepts a file only if it would write the same bytes for what it has read.
 *
 * The rule.  A run in which reserved memory grew needed all of its reserved memory.  Another run needed its memory in use,
 * times the reserved memory for each byte in use of the last run that grew (without such a run: an eighth more than in
 * use).  If that is less than the target by an eighth at most, the run needed the target.  The target is the largest need
 * of the last four runs, or half the need of the run before them, a quarter of the need of the run before that, and so on.
 * A larger load therefore raises the target at once, and a smaller load lowers it with its fourth run.
 *
 * Must not know: drivers, engines, settings, allocators.
 */
#ifndef WEIR_PROFILE_H
#define WEIR_PROFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

enum {
    WEIR_PROFILE_RUNS = 8,
    WEIR_PROFILE_FULL_RUNS = 4,     /* the newest runs, whose need counts in full */
    WEIR_PROFILE_MOST_BYTES = 2048, /* more than any profile has */
};

/* The device and the settings for which a profile is valid.  All bytes behind the texts are zero. */
struct weir_profile_key {
    char device[192];
    char settings[320];
};

/* One run, as weir__profile_add takes it in. */
struct weir_profile_run {
    uint64_t id;              /* differs from the ids of all other runs */
    uint64_t reserved, in_use; /* peaks in bytes; in_use is above 0 */
    int grew;                 /* set if the preallocation was not enough */
};

/* A profile without runs is all zero. */
struct weir_profile {
    uint64_t merged; /* the number of runs so far */
    uint64_t basis_reserve,
        basis_in_use; /* the peaks of the newest run that grew, or 0 if there was none */
    size_t runs;      /* the number of runs below, the oldest first */
    struct weir_profile_need {
        uint64_t id, bytes;
    } need[WEIR_PROFILE_RUNS];
};

/* Returns the FNV-1a hash of some bytes. */
uint64_t weir__profile_hash(const void *bytes, size_t count);
/* Adds a run, or replaces the earlier record of a run that has this id. */
void weir__profile_add(struct weir_profile *profile, const struct weir_profile_run *run);
/* Returns the bytes to preallocate, or 0 if the profile has no run. */
uint64_t weir__profile_target(const struct weir_profile *profile);

/* Writes a profile as text.  Returns the length of the text. */
size_t weir__profile_spell(const struct weir_profile *profile, const struct weir_profile_key *key,
                           char text[WEIR_PROFILE_MOST_BYTES]);

enum weir_profile_found {
    WEIR_PROFILE_READ,    /* *profile has the contents */
    WEIR_PROFILE_NONE,    /* there is no file */
    WEIR_PROFILE_USELESS, /* a profile that weir cannot use, or an empty file: weir may replace it */
    WEIR_PROFILE_FOREIGN, /* another file, or one that cannot be read: weir leaves it alone */
};

/* Reads a text of `bytes` characters, which a byte 0 follows.  Unless the result is READ, *profile is unchanged and
 * *problem has the reason. */
enum weir_profile_found weir__profile_parse(const char *text, size_t bytes,
                                            const struct weir_profile_key *key,
                                            struct weir_profile *profile,
                                            struct weir_problem *problem);
/* Reads a file as weir__profile_parse reads its text. */
enum weir_profile_found weir__profile_load(const char *path, const struct weir_profile_key *key,
                                           struct weir_profile *profile,
                                           struct weir_problem *problem);
/* Replaces the file as a whole; only its owner may read it.  Returns 1 on success, 0 with the reason in *problem. */
int weir__profile_store(const char *path, const struct weir_profile_key *key,
                        const struct weir_profile *profile, struct weir_problem *problem);

#endif
