/* SPDX-License-Identifier: MIT */
/* profile.h: a profile, which is a small text file with the memory that earlier runs of a program needed.
 *
 *     weir profile 4
 *     device cuda NVIDIA H200 GPU-... 143771MiB
 *     settings engine=mapped growth=exact limit=max cache=on
 *     target 8GiB
 *     runs 3
 *     run 1764422723123456789 8589934592 8000000000
 *     checksum 89abcdef01234567
 *
 * The file has a line `run` for each of the last four runs: id, needed bytes, bytes in use.  The checksum, FNV-1a of 64
 * bits, detects accidents, not attacks.  The target, the memory to preallocate, is the largest need of these runs.
 *
 * A run in which reserved memory grew needed all of its reserved memory.  For a run without growth weir expects that
 * each byte in use needs as much reserved memory as in the run with the largest need, or an eighth more than the memory
 * in use if there is no such run.  An expected need that is at most an eighth below the target becomes the target.
 *
 * Blocks have other addresses in preallocated memory, so each run may grow a little above the target, and the target
 * would rise each time.  So weir ignores growth if the run's peaks are within a 16th of those of the largest run.
 */
#ifndef WEIR_PROFILE_H
#define WEIR_PROFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

enum {
    WEIR_PROFILE_RUNS = 4,
    WEIR_PROFILE_KEY_BYTES = 1024,
    WEIR_PROFILE_MOST_BYTES = 2048, /* larger than the text of any profile, with its final byte 0 */
};

/* One run of a program: its id, which is never 0, the reserved bytes that it needed, and its peak of bytes in use. */
struct weir_profile_run {
    uint64_t id;
    uint64_t reserved, in_use;
};

/* The contents of a profile.  A profile without runs has only zeros. */
struct weir_profile {
    uint64_t runs; /* the number of runs that were ever added */
    /* The last runs: run number N is at the index N % WEIR_PROFILE_RUNS. */
    struct weir_profile_run last[WEIR_PROFILE_RUNS];
};

/* Returns the FNV-1a hash of `count' bytes. */
uint64_t weir__profile_hash(const void *bytes, size_t count);
/* Adds a run, or replaces the entry with the run's id.  `grew' is 1 if the run needed more than was preallocated. */
void weir__profile_add(struct weir_profile *profile, struct weir_profile_run run, int grew);
/* Returns the number of bytes to preallocate in the next run, or 0 if the profile has no run. */
uint64_t weir__profile_target(const struct weir_profile *profile);

/* Writes a profile as text.  `key' has the text of its lines `device' and `settings'.  Returns the text's length. */
size_t weir__profile_spell(const struct weir_profile *profile, const char *key,
                           char text[WEIR_PROFILE_MOST_BYTES]);

enum weir_profile_found {
    WEIR_PROFILE_READ,    /* the file is a valid profile */
    WEIR_PROFILE_NONE,    /* the file does not exist */
    WEIR_PROFILE_USELESS, /* the file is empty, or a profile that weir cannot use and may replace */
    WEIR_PROFILE_FOREIGN, /* the file is no profile, or cannot be read, so weir must not change it */
};

/* These functions read a profile from a text that ends in a byte 0, or from a file.  `key' has the lines `device' and
 * `settings' that the profile must contain.  On failure, *profile is unchanged, and *problem has the reason unless the
 * result is WEIR_PROFILE_NONE. */
enum weir_profile_found weir__profile_parse(const char *text, size_t bytes, const char *key,
                                            struct weir_profile *profile,
                                            struct weir_problem *problem);
enum weir_profile_found weir__profile_load(const char *path, const char *key,
                                           struct weir_profile *profile,
                                           struct weir_problem *problem);
/* Writes a profile to a file that only its owner can read.  On failure returns 0 and writes the reason to *problem. */
int weir__profile_store(const char *path, const char *key, const struct weir_profile *profile,
                        struct weir_problem *problem);

#endif
