/* SPDX-License-Identifier: MIT */
/* progress.h: shows the progress of a long command, and lets a signal end the command early.
 *
 * On a terminal the progress is a bar; otherwise each finished step is a line of text.
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
/* Begins the next step of the command.  `what' describes the step. */
void progress_step(struct progress *progress, const char *what);
/* Ends the current step, and shows its `outcome'. */
void progress_done(struct progress *progress, const char *what, const char *outcome);
/* Erases the bar on the terminal before the command prints a line. */
void progress_clear(const struct progress *progress);

/* Returns 1 if the descriptor is a terminal that can move its cursor, else 0. */
int terminal_can_draw(int descriptor);
/* Stores the size of the terminal.  If the size is unknown, stores 80 columns and 24 lines. */
void terminal_size(int descriptor, int *columns, int *lines);

/* Catches SIGINT, SIGTERM and SIGHUP.  After the call, these signals do not end the process; they make
 * interrupt_has_arrived() return 1. */
void interrupt_watch(void);
/* Returns 1 if the command should end, because a signal of interrupt_watch() has arrived; else 0. */
int interrupt_has_arrived(void);
/* Ends the process by the signal that interrupt_watch() has caught, so that the parent process learns of the signal.
 * Does nothing if no signal has arrived. */
void interrupt_end(void);

#endif
