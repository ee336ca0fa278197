/* SPDX-License-Identifier: MIT */
/* progress.h: shows the progress of a long command, and lets a signal end the command early: a bar on a terminal, plain
 * lines elsewhere.
 *
 * This file must not know the command's work.
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
/* Begins the next step, which `what' names. */
void progress_step(struct progress *progress, const char *what);
/* Ends the step, and shows the outcome. */
void progress_done(struct progress *progress, const char *what, const char *outcome);
/* Clears the bar, so that a line can be printed. */
void progress_clear(const struct progress *progress);

/* Returns 1 if the descriptor is a terminal that can be drawn on, else 0. */
int terminal_can_draw(int descriptor);
/* Writes the size of the terminal, or 80 columns and 24 lines if it is not known. */
void terminal_size(int descriptor, int *columns, int *lines);

/* Makes SIGINT, SIGTERM and SIGHUP set interrupt_came() in place of ending the process. */
void interrupt_watch(void);
/* Returns 1 if one of these signals has come, else 0.  The command begins no more work after such a signal. */
int interrupt_came(void);
/* If a signal has come, ends the process by this signal, so that the parent process learns of the signal. */
void interrupt_end(void);

#endif
