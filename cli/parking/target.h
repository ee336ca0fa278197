/* SPDX-License-Identifier: MIT */
/* target.h: which process is meant, and whether it may be parked.
 *
 * Must not know: how a process is parked; drivers.
 */
#ifndef WEIR_CLI_PARKING_TARGET_H
#define WEIR_CLI_PARKING_TARGET_H

#include <stdint.h>
#include <sys/types.h>

#include "base/who.h"

enum { TARGET_WHY = 1024 };

struct target {
    pid_t pid;
    uint64_t start;
    char command[WEIR_COMMAND_BYTES];
};

/* 1: it may be the number of a process, or a name, which begins with no digit. */
int target_is_name(const char *name);
/* The process of that number; else the one with CUDA whose command has that name: all of it, one of its words, or a
 * word's last part behind a slash.  With `parked', among those that are parked.  1; 0, and why not. */
int target_find(const char *name, int parked, struct target *out, char why[TARGET_WHY]);
/* 1: it has loaded CUDA's driver, or it is another user's, of which that cannot be seen. */
int target_has_cuda(const struct target *target);
/* Whether it may be parked: 1; 0, and why not.  `is_unshared': nobody need look for processes that may share its
 * memory. */
int target_may_park(const struct target *target, int is_unshared, char why[TARGET_WHY]);

#endif
