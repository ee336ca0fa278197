/* SPDX-License-Identifier: MIT */
/* variables.h: what `weir help' says of variables that are no settings: of parts of weir, and of other programs. */
#ifndef WEIR_CLI_VARIABLES_H
#define WEIR_CLI_VARIABLES_H

#include <stdio.h>

/* Prints what the variable means to weir: 1, or 0 if it is none of them.  WEIR_GROUP_LIMIT is also --group-limit
 * and group-limit. */
int variables_tell(const char *name, FILE *file);

/* The name of each, by its number from 0 on; NULL: there are no more. */
const char *variables_name(int number);

#endif
