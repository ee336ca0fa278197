/* SPDX-License-Identifier: MIT */
/* least.h: the smallest limit at which a configuration serves a trace, by trials.
 *
 * Must not know: what configurations do.
 */
#ifndef WEIR_CLI_LEAST_H
#define WEIR_CLI_LEAST_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/replay/contest.h"

/* Limits are tried in such steps, in which pools grow: 32 MiB. */
extern const uint64_t least_unit;

/* Replays a trace under a limit, 0 for none, up to the first request that fails.  `configuration` is a name for
 * configuration_find(); `options` are those of the job; `busy` is GPU work as a factor of the trace's time, 0 for none.
 * Returns a trial (served, requests, reserved_peak_bytes, device_bytes, device_taken_bytes), a new reference; NULL with
 * the reason in `message`, which has RUNNER_MESSAGE_BYTES. */
json_t *least_try(const struct contest *contest, size_t trace, const char *configuration,
                  const weir_options *options, double busy, uint64_t limit, char *message);

/* Finds a limit that serves the trace while one step less does not: first upwards from the peak requested memory in
 * growing steps, then by halves.  A larger limit may fail all the same, for how blocks lie.
 * Returns bytes, a multiple of least_unit; 0 if no limit up to the device's memory serves, or with the reason in
 * `message` if a trial could not be made. */
uint64_t least_limit(const struct contest *contest, size_t trace, const char *configuration,
                     const weir_options *options, double busy, char *message);

#endif
