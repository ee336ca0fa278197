/* SPDX-License-Identifier: MIT */
/* candidate.h: the settings that `weir tune' chooses from.
 *
 * A candidate has a value on each axis; value 0 is weir's default, but for AXIS_BASE, whose values are
 * configurations of `weir bench'.
 *
 * Must not know: how a candidate is measured, and which is better.
 */
#ifndef WEIR_CLI_CANDIDATE_H
#define WEIR_CLI_CANDIDATE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/text.h"
#include "config/settings.h"

enum axis { AXIS_BASE, AXIS_PREALLOC, AXIS_GROWTH, AXIS_CACHE, AXIS_THRESHOLD, AXES };
enum { BASES = 5 };

/* Engine and packing, by the names of `weir bench'. */
extern const char *const base_names[BASES];

struct candidate {
    int value[AXES];
};

/* What values depend on. */
struct space {
    int has_base[BASES];           /* the device can */
    uint64_t live_peak;            /* the largest of what is searched */
    uint64_t reserved_peak[BASES]; /* of the base without other settings; 0: not known */
    uint64_t limit;                /* the most that may be reserved; 0: none */
};

struct candidate_setting {
    enum weir_setting setting;
    char text[WEIR_SPELL_BYTES];
};

/* Values of that axis, at this candidate's base. */
int candidate_values(const struct candidate *candidate, enum axis axis);
int candidate_is(const struct candidate *a, const struct candidate *b);
/* The settings that it consists of, AXES + 1 at most. */
size_t candidate_settings(const struct candidate *candidate, const struct space *space,
                          struct candidate_setting settings[AXES + 1]);
/* Everything else stays. */
void candidate_apply(const struct candidate *candidate, const struct space *space,
                     weir_options *options);
/* " --engine pool --prealloc 8GiB" */
void candidate_print(FILE *file, const struct candidate *candidate, const struct space *space);

#endif
