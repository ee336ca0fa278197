/* SPDX-License-Identifier: MIT */
/* progress.h: how far a long command is, on standard error: a bar on a terminal, plain lines
 * elsewhere. Must not know: what is being done.
 */
#ifndef WEIR_CLI_PROGRESS_H
#define WEIR_CLI_PROGRESS_H

#include <stddef.h>

struct progress {
    size_t done, total;
    int is_terminal;
    long long began_ns, step_began_ns;
};

void progress_begin(struct progress *progress, size_t total);
/* The next step is under way, or has ended; `what` names it. */
void progress_step(struct progress *progress, const char *what);
void progress_done(struct progress *progress, const char *what, const char *outcome);
/* Takes the bar away, so that a line can be printed. */
void progress_clear(const struct progress *progress);

#endif
