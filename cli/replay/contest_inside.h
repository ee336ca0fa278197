/* SPDX-License-Identifier: MIT */
/* contest_inside.h: what the files of contest.h share.
 *
 * What: contest.c runs all pairs and writes what came of them; contest_flags.c reads flags and traces; contest_pair.c runs
 * one pair in its children; contest_shortage.c says why requests failed, and what would help.
 */
#ifndef WEIR_CLI_CONTEST_INSIDE_H
#define WEIR_CLI_CONTEST_INSIDE_H

#include "cli/replay/contest.h"

static inline uint64_t integer_at(const json_t *object, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* Reads all; a bad one is told, and the others are still checked. */
int contest_make_tapes(struct contest *contest);
/* One pair, in as many fresh processes as it takes.  As runner_run. */
json_t *contest_run_pair(const struct contest *contest, const struct outcome *outcome,
                         char *message, size_t message_bytes);
/* What went wrong, on standard error, and why, unless that is off; 1 if all went well. */
int contest_tell_failure(const struct contest *contest, const struct outcome *outcome,
                         const char *what);

#endif
