/* SPDX-License-Identifier: MIT */
/* groups.h: process groups in the program: the flags of `weir run', and the table of `weir top --group'.
 *
 * Must not know: what the memory of a member is used for.
 */
#ifndef WEIR_CLI_GROUPS_H
#define WEIR_CLI_GROUPS_H

#include <jansson.h>
#include <stdio.h>

/* What flags say; NULL: not given.  The environment stands for what is not. */
struct group_flags {
    const char *name, *limit, *share, *folder;
};

/* Checks flags and environment, also against a group that has members.  0, or -1 and a message.  A group that has no limit
 * yet may have one when the program begins, so that is only told. */
int group_flags_check(const struct group_flags *flags, char *message, size_t bytes);
/* Hands the flags on to the program.  0. */
int group_flags_put(const struct group_flags *flags,
                    int (*put)(void *to, const char *name, const char *value), void *to);

/* 1 if the group has members on a device; else what would be right is told. */
int group_exists(const char *name);
void group_print(FILE *file, const char *name);
json_t *group_json(const char *name);

#endif
