/* SPDX-License-Identifier: MIT */
/* limit_sweep.h: `weir bench --limit-sweep': the smallest limit at which a configuration serves a trace.
 *
 * Must not know: what configurations do.
 */
#ifndef WEIR_CLI_LIMIT_SWEEP_H
#define WEIR_CLI_LIMIT_SWEEP_H

#include "cli/replay/contest.h"

/* Every configuration on every trace; with `earlier`, the JSON file of such a run, only at its answers and
 * one unit to either side.  Prints the table and writes the file.  The program's exit code. */
int limit_sweep_run(struct contest *contest, const char *earlier);
/* The smallest limit at which the first configuration serves that trace of a contest that is prepared; 0: none was found,
 * and why has been printed. */
uint64_t limit_sweep_least(struct contest *contest, size_t trace);

#endif
