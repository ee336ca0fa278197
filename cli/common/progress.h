/* SPDX-License-Identifier: MIT */
/* progress.h: shows the progress of a long command on standard error: a bar on a terminal, plain lines elsewhere.
 *
 * Must not know: what the command does.
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
/* Begins the next step, which `what` names, or ends it. */
void progress_step(struct progress *progress, const char *what);
void progress_done(struct progress *progress, const char *what, const char *outcome);
/* Clears the bar, so that a line can be printed. */
void progress_clear(const struct progress *progress);

#endif
