/* SPDX-License-Identifier: MIT */
/* preloading.h: a library of weir's that a program is to be started with.
 *
 * Must not know: what the library does.
 */
#ifndef WEIR_CLI_PRELOADING_H
#define WEIR_CLI_PRELOADING_H

#include <argp.h>
#include <stddef.h>

/* As env(1): it failed itself, the command cannot be run, there is no such command. */
enum { EXIT_USAGE = 2, EXIT_OWN = 125, EXIT_NOT_RUN = 126, EXIT_NOT_FOUND = 127 };

/* Where that library is: in a build tree, beside this program, or where it is installed.  0, or EXIT_OWN, what
 * is wrong with `path', and *why. */
int preloading_find(const char *name, char *path, size_t bytes, const char **why);

/* Calls `put` with each variable that is to be set so that a program starts with the library: behind what the user
 * preloads, and not twice.  0, or 1 when memory is short. */
int preloading_tell(const char *library, int (*put)(void *to, const char *name, const char *value),
                    void *to);

/* Returns why the dynamic linker loads nothing into that program ("it is linked statically"), or NULL if it loads what
 * is preloaded, as far as this can be told. */
const char *preloading_why_not(const char *program);

/* There is no command: usage, and which flag took what may be meant as one. */
void preloading_no_command(struct argp_state *state);

#endif
