/* SPDX-License-Identifier: MIT */
/* command.h: starts a command, and ends this process as the command ended.
 *
 * Must not know: why the command runs.
 */
#ifndef WEIR_CLI_COMMAND_H
#define WEIR_CLI_COMMAND_H

#include <stddef.h>
#include <sys/types.h>

/* Finds the file of a program as execvp(3) does.  Returns 1; or 0 with errno and `path` set to the name, if no such
 * file can be run. */
int command_find(const char *name, char *path, size_t bytes);
/* Starts the command with the signals as this process found them, and passes on signals that are sent to this process.
 * Returns 0 or an errno. */
int command_start(char **command, pid_t *started);
/* Raises this process's limit of descriptors as far as it may.  A command that runs already keeps its limit. */
void command_raise_descriptors(void);
/* Says why the command could not be started; `error' is an errno.  Returns the exit code, as env(1) has it. */
int command_refuse(const char *by, const char *name, int error);
/* Stops passing signals on.  Must be called after the command has ended and was waited for. */
void command_ended(void);
/* Returns 1 once a signal that ends programs was sent to this process alone, or came after the command had ended; else
 * 0. */
int command_is_told_to_end(void);
/* Returns the exit code of the command.  If a signal ended the command, the signal ends this process, too. */
int command_end_as(int status);
/* Sets a variable of the command's environment.  Returns 0, or -1 with errno. */
int command_put(void *unused, const char *name, const char *value);

#endif
