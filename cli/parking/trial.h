/* SPDX-License-Identifier: MIT */
/* trial.h: whether parking works with this driver, tried on a small process that is made for it.
 *
 * A restore that fails cannot be undone, so nothing else is parked before.  A driver that passed is remembered until
 * the machine starts again.
 *
 * Must not know: the caller.
 */
#ifndef WEIR_CLI_PARKING_TRIAL_H
#define WEIR_CLI_PARKING_TRIAL_H

#include <sys/types.h>

#include "cli/parking/moves.h"

struct trial {
    const char *driver;
    pid_t pid; /* 0: the driver has passed */
    int to, from;
    int is_full; /* device 0 has no memory for the process, so nothing was tried */
};

/* Before this process opens that driver.  With `again', also if it has passed.  0; -1 and errno. */
int trial_begin(struct trial *trial, const char *driver, int again);
/* Parks and wakes it; 1: it works, 0 and why not. */
int trial_end(struct trial *trial, const struct weir_driver *driver, char why[MOVES_WHY]);
/* Without a result. */
void trial_give_up(struct trial *trial);

#endif
