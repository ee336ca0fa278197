/* SPDX-License-Identifier: MIT */
/* groups.h: process groups in the program: the flags of `weir run', and the table of `weir top --group'.
 *
 * This file must not know the use of a member's memory.
 */
#ifndef WEIR_CLI_GROUPS_H
#define WEIR_CLI_GROUPS_H

#include <jansson.h>
#include <stdio.h>

#include "cli/command.h"

/* The values of the flags.  A value is NULL if the flag was not given; then the value in the environment counts. */
struct group_flags {
    const char *name, *limit;
};

/* Checks the flags and the environment.  If the group has members, also checks that the flags agree with the group's
 * limit.  Returns 0 on success, -1 with a message.  Only warns of a group without a limit, because the group may
 * have a limit when the program begins. */
int group_flags_check(const struct group_flags *flags, char *message, size_t bytes);
/* Passes the flags to the program.  Returns 0 on success. */
int group_flags_put(const struct group_flags *flags, command_put_function *put, void *to);

/* Returns 1 if the group has members on a device, 0 if not. */
int group_exists(const char *name);
void group_print(FILE *file, const char *name);
json_t *group_json(const char *name);

#endif
