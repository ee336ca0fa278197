/* SPDX-License-Identifier: MIT */
/* command.h: starts a command with a library of weir, and ends this process as the command ended.
 *
 * This file must not know why the command runs or the purpose of the library.
 */
#ifndef WEIR_CLI_COMMAND_H
#define WEIR_CLI_COMMAND_H

#include <argp.h>
#include <stddef.h>
#include <sys/types.h>

/* The exit codes of env(1): EXIT_OWN if weir itself failed, EXIT_NOT_RUN if the command cannot be run, EXIT_NOT_FOUND
 * if there is no such command.  EXIT_USAGE is for usage errors. */
enum { EXIT_USAGE = 2, EXIT_OWN = 125, EXIT_NOT_RUN = 126, EXIT_NOT_FOUND = 127 };

/* Finds the file of a program as execvp(3) does.  Returns 1 on success, 0 with errno and the name in `path' if no such
 * file can be run. */
int command_find(const char *name, char *path, size_t bytes);
/* Starts the command with the signals as this process found them, and passes on signals that are sent to this process.
 * Returns 0 on success, else an errno. */
int command_start(char **command, pid_t *started);
/* Prints why the command could not be started; `error' is an errno.  Returns the exit code that env(1) would have. */
int command_refuse(const char *by, const char *name, int error);
/* Stops passing signals on.  Must be called after the command has ended and was waited for. */
void command_ended(void);
/* Returns 1 if a signal that ends programs was sent to this process alone, or came after the command had ended; else
 * 0. */
int command_is_told_to_end(void);
/* Returns the exit code of the command.  If a signal ended the command, the signal ends this process, too. */
int command_end_as(int status);
/* Sets a variable of the command's environment.  Returns 0 on success. */
typedef int command_put_function(void *to, const char *name, const char *value);
command_put_function command_put; /* does not use `to' */

/* ---- the library ---- */

/* Finds the library in a build tree, next to this program, or in an installation.  Returns 0, or EXIT_OWN with
 * `path' and *why set for a message. */
int preloading_find(const char *name, char *path, size_t bytes, const char **why);

/* Calls `put' with each variable that a program needs to start with the library.  The library comes after libraries
 * that the user preloads, and is not added twice.  Returns 0 on success, 1 if there is no host memory. */
int preloading_tell(const char *library, command_put_function *put, void *to);

/* Returns the reason why the dynamic linker preloads nothing into that program, such as "it is linked statically", or
 * NULL if weir finds no reason. */
const char *preloading_why_not(const char *program);

/* Reports that there is no command.  If a flag took a word that may be meant as the command, the report names the
 * flag. */
void preloading_no_command(struct argp_state *state);

#endif
