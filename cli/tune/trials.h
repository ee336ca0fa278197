/* SPDX-License-Identifier: MIT */
/* trials.h: the traces of a program, replayed with GPU work, each time with other settings.
 *
 * Trial 0 has weir's defaults, and the others are compared with it.  Rows are those of `weir bench` (result.h), with trials
 * in place of configurations; their FIGURE_MAKESPAN has the creation of the allocator, too.
 *
 * Must not know: which settings are worth it, how anything is shown.
 */
#ifndef WEIR_CLI_TRIALS_H
#define WEIR_CLI_TRIALS_H

#include "base/text.h"
#include "cli/common/progress.h"
#include "cli/replay/contest.h"

enum { CHOICE_PREALLOC, CHOICE_DECAY, CHOICE_LIMIT, CHOICES };
enum { TRIALS = 7 };

/* Values as they are typed; "": weir's default. */
struct choice {
    char text[CHOICES][WEIR_SPELL_BYTES];
};

/* Writes each setting that has a value: `before` its name, `between` the name and the value, `after` the value. */
void choice_write(FILE *file, const struct choice *choice, const char *before, const char *between,
                  const char *after);

struct trials {
    struct contest *contest;
    struct choice choices[TRIALS]; /* by trial */
    int count;
    enum result_figure
        creation;           /* the driver's time on the device model, where that does not vary */
    struct results results; /* rows of trials that are not made yet have no runs */
    struct progress progress;
};

/* Opens the trials of traces that are read, `most` of them.  Returns 1, or 0 if there is no host memory. */
int trials_open(struct trials *trials, struct contest *contest, size_t most);
/* Finds the smallest limit that serves all traces; 0: no memory of the device does.  Returns 1, or 0 with a message printed. */
int trials_least(struct trials *trials, uint64_t *least);
/* Replays all traces with a choice, unless a trial has that choice.  Returns the number of the trial, or -1 with a message
 * printed. */
int trials_run(struct trials *trials, const struct choice *choice);
/* Returns a figure of a trial on a trace over that of trial 0; INFINITY if the figure is not known, or a request failed. */
double trials_ratio(const struct trials *trials, size_t trace, int trial,
                    enum result_figure figure);
void trials_free(struct trials *trials);

#endif
