/* SPDX-License-Identifier: MIT */
/* profile.h: what runs needed, as a small text file; and what the next one should take beforehand.
 *
 *     weir profile 1
 *     key 6c62272e07bb0142
 *     device cuda NVIDIA H200 GPU-... 143771MiB
 *     settings engine=arena arena=mapped packing=fit growth=exact limit=max front=on
 *     target 8GiB
 *     basis 8GiB 8000000000
 *     runs 3
 *     run 0123456789abcdef need 8GiB reserve 8GiB in-use 8000000000 grew
 *     step 2MiB request
 *     plan pivot 848MiB bytes 8GiB small 16MiB exact 7900MiB round 1 kept
 *     places 3f2c:0 18:3f2c
 *     checksum 89abcdef01234567
 *
 * The plan is the newest run's (placement/plan.h), and what requests of up to 512 KiB need beside (small).  It is kept if that run went along the plan before, else new.  Each line of
 * places has up to WEIR_PROFILE_LINE_PLACES of them, size and offset in granules; a place without offset ends with the
 * colon.  A file with a plan begins with "weir profile 2", one without is of version 1.
 *
 * There are up to WEIR_PROFILE_RUNS lines of runs, oldest first, and up to WEIR_PROFILE_STEPS of the steps
 * by which the newest run grew.  `key` is a hash of the two lines below it, the checksum one of all that
 * stands before its line (FNV-1a of 64 bits, which keeps out accidents, not enemies).  A file that is not
 * byte for byte what would be written for what was read of it is refused.
 *
 * The rule.  A run whose lifetimes were all recorded needed what its plan needs.  Another that grew needed all the reserved memory
 * that it had.  One that did not needed what it had in
 * use, times what the last run that grew had to reserve for each byte in use (no such run: an eighth more
 * than in use); if that is less than the target by no more than an eighth, the target was right.  The
 * target is the largest need of the last four runs, or half of that of the run before them, a quarter of
 * the one before that, and so on.  So a larger load raises it at once, and a smaller one lowers it with
 * its fourth run.
 *
 * Must not know: drivers, engines, settings, allocators.
 */
#ifndef WEIR_PROFILE_H
#define WEIR_PROFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "placement/plan.h"

enum {
    WEIR_PROFILE_RUNS = 8,
    WEIR_PROFILE_FULL_RUNS = 4, /* of these the newest count in full */
    WEIR_PROFILE_STEPS = 16,
    WEIR_PROFILE_LINE_PLACES = 16,
    WEIR_PROFILE_HEAD_BYTES = 8192, /* no profile without its places is as large, */
    WEIR_PROFILE_MOST_BYTES =
        WEIR_PROFILE_HEAD_BYTES + 20 * WEIR_PLAN_MOST_PLACES /* and none with them */
};

/* What a profile is valid for: two lines, printable. */
struct weir_profile_key {
    char device[192];
    char settings[320];
};

struct weir_profile_run {
    uint64_t id;      /* tells a run's later account from another run */
    uint64_t need;    /* bytes that it should have been given beforehand */
    uint64_t reserve; /* peaks */
    uint64_t in_use;
    int grew; /* 0: what it was given beforehand was enough */
    uint64_t
        planned; /* what its plan needs; 0: not known.  Only as it is added: its need says it from then on */
};

struct weir_profile_step {
    uint64_t bytes;
    int cause; /* WEIR_EVENT_ */
};

/* All zero: nothing is planned. */
struct weir_profile_plan {
    struct weir_plan plan; /* whose places the profile owns */
    uint64_t small;
    int is_kept; /* a run before went along the places, too */
};

/* All zero: nothing is known. */
struct weir_profile {
    uint64_t merged;                      /* runs so far, those that are not kept included */
    uint64_t basis_reserve, basis_in_use; /* of the newest run that grew; 0: there was none */
    size_t runs;
    struct weir_profile_run run[WEIR_PROFILE_RUNS]; /* oldest first */
    size_t steps;
    struct weir_profile_step step[WEIR_PROFILE_STEPS];
    struct weir_profile_plan planned;
};

/* Frees what it owns. */
void weir__profile_drop(struct weir_profile *profile);
/* FNV-1a. */
uint64_t weir__profile_hash(const void *bytes, size_t count);
uint64_t weir__profile_key_hash(const struct weir_profile_key *key);

/* Takes a run in, whose need is still to be found out, or a later account of one that is in.  in_use is
 * above 0. */
void weir__profile_add(struct weir_profile *profile, const struct weir_profile_run *run,
                       const struct weir_profile_step *step, size_t steps);
/* Bytes to take beforehand; 0: nothing is known. */
uint64_t weir__profile_target(const struct weir_profile *profile);

/* Writes the text, and returns its length; there is at least one run. */
size_t weir__profile_spell(const struct weir_profile *profile, const struct weir_profile_key *key,
                           char text[WEIR_PROFILE_MOST_BYTES]);
/* 1, and the caller drops *profile later, of which nothing is looked at that was there before; or 0 with the reason and
 * *profile as it was. */
int weir__profile_parse(const char *text, size_t bytes, const struct weir_profile_key *key,
                        struct weir_profile *profile, struct weir_problem *problem);

/* As weir__profile_parse; or 0 and *profile as it was: with a reason the file was refused, without there is none. */
int weir__profile_load(const char *path, const struct weir_profile_key *key,
                       struct weir_profile *profile, struct weir_problem *problem);
/* 1 if nothing of worth is lost with what is there, if anything is: a profile, whatever it says, or nothing.  0 with
 * the reason. */
int weir__profile_may_replace(const char *path, struct weir_problem *problem);
/* Replaces the file as a whole, or leaves it: 1, or 0 with the reason.  A file that is no profile is not
 * replaced.  Readable by its owner alone. */
int weir__profile_store(const char *path, const struct weir_profile_key *key,
                        const struct weir_profile *profile, struct weir_problem *problem);

#endif
