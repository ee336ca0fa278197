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
 * The file has a line `run` for each of the last four runs.  weir accepts a file only if weir itself would write the
 * file's numbers as exactly the same bytes.  The checksum, FNV-1a of 64 bits, detects accidents, not attacks.
 *
 * The target is the largest need of the last four runs.  The need of a run is computed as follows.
 *
 * With growth.  A run in which reserved memory grew needed all of its reserved memory.
 *
 * Without growth.  weir expects that each byte in use needs as much reserved memory as in the run with the largest
 * need.  If there is no such run, weir expects a need of an eighth more than the memory in use.  An expected need that
 * is at most an eighth below the target counts as the target.
 *
 * Little growth.  Blocks have other addresses in preallocated memory, so each run of a program may grow a little above
 * the target.  The target must not rise each time.  So a run with growth counts as a run without growth if its peaks
 * are within a 16th of the peaks of the run with the largest need.
 *
 * This file must not depend on drivers, engines, settings or allocators.
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

/* The peaks of one run of a program, in bytes.  In a profile, `reserved' is the reserved memory that the run needed,
 * and `in_use' is the memory in use for which it was needed. */
struct weir_profile_run {
    uint64_t id; /* the run's id, which differs from the ids of all other runs and is never 0 */
    uint64_t reserved, in_use;
};

/* The contents of a profile.  A profile without runs has only zeros. */
struct weir_profile {
    uint64_t runs; /* the number of runs that were ever added */
    /* The last runs.  Run number N is at the index N % WEIR_PROFILE_RUNS. */
    struct weir_profile_run last[WEIR_PROFILE_RUNS];
};

/* Returns the FNV-1a hash of `count' bytes, which is the checksum of a profile. */
uint64_t weir__profile_hash(const void *bytes, size_t count);
/* Adds a run to the profile.  If the profile already has a run with this id, replaces it.  `grew' is 1 if the run
 * needed more reserved memory than was preallocated. */
void weir__profile_add(struct weir_profile *profile, struct weir_profile_run run, int grew);
/* Returns the number of bytes to preallocate in the next run, or 0 if the profile has no run. */
uint64_t weir__profile_target(const struct weir_profile *profile);

/* Writes a profile as text.  `key' is the text of the two lines that name the device and the settings.  Returns the
 * length of the text. */
size_t weir__profile_spell(const struct weir_profile *profile, const char *key,
                           char text[WEIR_PROFILE_MOST_BYTES]);

enum weir_profile_found {
    WEIR_PROFILE_READ, /* the file is a valid profile */
    WEIR_PROFILE_NONE, /* the file does not exist */
    /* The file is empty, or a profile that weir cannot use, for example of another device.  weir may replace it. */
    WEIR_PROFILE_USELESS,
    /* The file is no profile, or cannot be read.  weir must not change it. */
    WEIR_PROFILE_FOREIGN,
};

/* Reads a profile from a text of `bytes` characters, which is followed by a byte 0.  `key' is the text of the two
 * lines that must name the device and the settings.  On WEIR_PROFILE_READ fills *profile.  Otherwise leaves *profile
 * unchanged and writes the reason to *problem. */
enum weir_profile_found weir__profile_parse(const char *text, size_t bytes, const char *key,
                                            struct weir_profile *profile,
                                            struct weir_problem *problem);
/* Reads a profile from the file `path'.  `key' is the text of the two lines that must name the device and the
 * settings.  On WEIR_PROFILE_READ fills *profile.  Otherwise leaves *profile unchanged and writes the reason to
 * *problem. */
enum weir_profile_found weir__profile_load(const char *path, const char *key,
                                           struct weir_profile *profile,
                                           struct weir_problem *problem);
/* Writes a profile to the file `path' and replaces an earlier file.  Only the owner can read the file.  Returns 1 on
 * success.  On failure returns 0 and writes the reason to *problem. */
int weir__profile_store(const char *path, const char *key, const struct weir_profile *profile,
                        struct weir_problem *problem);

#endif
