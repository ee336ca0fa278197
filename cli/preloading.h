/* SPDX-License-Identifier: MIT */
/* preloading.h: a library of weir with which a program is started.
 *
 * Must not know: the library's purpose.
 */
#ifndef WEIR_CLI_PRELOADING_H
#define WEIR_CLI_PRELOADING_H

#include <argp.h>
#include <stddef.h>

/* Exit codes as env(1) has them: weir itself failed, the command cannot be run, there is no such command. */
enum { EXIT_USAGE = 2, EXIT_OWN = 125, EXIT_NOT_RUN = 126, EXIT_NOT_FOUND = 127 };

/* Finds the library: in a build tree, next to this program, or where it is installed.  Returns 0; or EXIT_OWN with
 * `path` and *why set for a message. */
int preloading_find(const char *name, char *path, size_t bytes, const char **why);

/* Calls `put` with each variable that a program needs to start with the library.  The library comes after those that
 * the user preloads, and is not added twice.  Returns 0, or 1 if there is no memory. */
int preloading_tell(const char *library, int (*put)(void *to, const char *name, const char *value),
                    void *to);

/* Returns the reason why the dynamic linker preloads nothing into that program ("it is linked statically"), or NULL if
 * there is none, as far as weir can tell. */
const char *preloading_why_not(const char *program);

/* Reports that there is no command, and which flag took a word that may be meant as the command. */
void preloading_no_command(struct argp_state *state);

#endif
