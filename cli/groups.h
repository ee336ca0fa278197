/* SPDX-License-Identifier: MIT */
/* groups.h: process groups: the flags --group and --group-limit of `weir run', and the table of `weir top --group'.
 *
 * This file must not depend on what the members of a group use memory for.
 */
#ifndef WEIR_CLI_GROUPS_H
#define WEIR_CLI_GROUPS_H

#include <jansson.h>
#include <stdio.h>

#include "cli/command.h"

/* The values of the flags --group and --group-limit.  NULL means the value of the environment variable. */
struct group_flags {
    const char *name, *limit;
};

/* Checks the flags and the environment.  A limit must be the limit that the group already has.  On failure, writes the
 * reason to `message' and returns -1. */
int group_flags_check(const struct group_flags *flags, char *message, size_t bytes);
/* Calls `put' for the environment variable of each flag that the user gave.  Returns 0 on success. */
int group_flags_put(const struct group_flags *flags, command_put_function *put, void *context);

/* Returns 1 if the group has members on any device, 0 if not. */
int group_exists(const char *name);
void group_print(FILE *file, const char *name);
json_t *group_json(const char *name);

#endif
