/* SPDX-License-Identifier: MIT */
/* preloading.h: starts a program with a library of weir preloaded.
 *
 * Must not know: what the library does.
 */
#ifndef WEIR_CLI_PRELOADING_H
#define WEIR_CLI_PRELOADING_H

#include <argp.h>
#include <stddef.h>

/* The exit codes of env(1): weir itself failed, the command cannot be run, the command does not exist. */
enum { EXIT_USAGE = 2, EXIT_OWN = 125, EXIT_NOT_RUN = 126, EXIT_NOT_FOUND = 127 };

/* Finds the library: in a build tree, beside this program, or in an installation.
 * Returns 0, or EXIT_OWN with the reason in *why, which is about `path'. */
int preloading_find(const char *name, char *path, size_t bytes, const char **why);

/* Calls `put' with each variable that makes a program start with the library.  The library comes behind the user's
 * preloaded libraries, and only once.  Returns 0, or 1 if there is no host memory. */
int preloading_tell(const char *library, int (*put)(void *to, const char *name, const char *value),
                    void *to);

/* Returns why the dynamic linker does not preload libraries into the program, such as "it is linked statically", or NULL if
 * no reason is known. */
const char *preloading_why_not(const char *program);

/* Ends the program with a usage error: there is no command.  Names the flag whose value may be meant as the command. */
void preloading_no_command(struct argp_state *state);

#endif
