/* SPDX-License-Identifier: MIT */
/* keeper.h: parks the processes of a command while they are idle and another process lacks memory, and wakes each at its
 * next call of the driver.
 *
 * The processes have libweir-gate.so (adapters/gate) and name this process as their keeper.  If a process that waits in a
 * request for memory has some that another process lacks, it is parked too, until there is room: it steps aside.  Of two
 * that wait the one that began later does.  Never do all.
 *
 * Must not know: how a command is started.
 */
#ifndef WEIR_CLI_PARKING_KEEPER_H
#define WEIR_CLI_PARKING_KEEPER_H

#include <stdint.h>

#include "cli/parking/moves.h"

struct keeper_options {
    uint64_t idle_ns; /* without a call, until it may be parked */
    int verbose;      /* what is done is told on standard error */
};

/* Before the command starts: tries the driver, unless it has passed.  1; 0 and why nothing would be parked. */
int keeper_try(char why[MOVES_WHY]);
/* The name of this process for its children: WEIR_RUN_PARK. */
void keeper_name(char name[48]);
/* Starts to keep.  0, or an errno. */
int keeper_begin(const struct keeper_options *options);
/* Wakes what is parked, however long that takes, and ends. */
void keeper_end(void);

#endif
