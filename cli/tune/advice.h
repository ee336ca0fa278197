/* SPDX-License-Identifier: MIT */
/* advice.h: what to preallocate, whether to keep or return idle memory, in what limit to run.
 *
 * A trial answers each question, and a last trial has all answers.  An answer that does harm, or gains next to nothing, is
 * weir's default.
 *
 * Must not know: how a trial is made, how an answer is shown.
 */
#ifndef WEIR_CLI_ADVICE_H
#define WEIR_CLI_ADVICE_H

#include "cli/tune/trials.h"

enum goal { GOAL_BALANCED, GOAL_MEMORY, GOAL_SPEED };

struct advice {
    enum goal goal;
    uint64_t limit;              /* the user's; 0: none */
    uint64_t least;              /* the smallest limit that serves the traces; 0: none does */
    int fits;                    /* 0: the traces are not served, so that no trial tells anything */
    int has_times;               /* 0: no trial but that of weir's defaults is made */
    const char *against[TRIALS]; /* why a trial is not followed; NULL: it is */
    int best;                    /* the trial to follow */
};

/* Makes the trials, and fills the advice, whose goal and limit are set.  Returns 1, or 0 with a message printed. */
int advise(struct trials *trials, struct advice *advice);

#endif
