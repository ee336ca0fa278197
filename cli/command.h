/* SPDX-License-Identifier: MIT */
/* command.h: starts the command of `weir run', `weir record' or `weir tune' with a library of weir.  Ends this process
 * with the exit code or the signal of the command.
 *
 * This file must not contain code for a certain command or library.
 */
#ifndef WEIR_CLI_COMMAND_H
#define WEIR_CLI_COMMAND_H

#include <argp.h>
#include <stddef.h>
#include <sys/types.h>

/* The exit codes of `weir run' and `weir record' if they do not run the command; env(1) has the same codes. */
enum { EXIT_USAGE = 2, EXIT_WEIR_FAILED = 125, EXIT_NOT_EXECUTABLE = 126, EXIT_NOT_FOUND = 127 };

/* Finds the file of a program, as execvp(3) does.  Returns 1 on success, 0 with errno on failure; `path' is then the
 * name. */
int command_find(const char *name, char *path, size_t bytes);
/* Starts the command.  The command gets the signal settings that this process had at its start.  From then on, this
 * process passes signals on to the command.  Returns 0 on success, an errno on failure. */
int command_start(char **command, pid_t *started);
/* Prints the reason why the command could not be started.  `by' is the subcommand of weir, `error' is an errno.
 * Returns the exit code that env(1) would return. */
int command_report_failure(const char *by, const char *name, int error);
/* Stops passing signals on to the command.  Must be called after waitpid(2) has returned the command's status. */
void command_stop_forwarding(void);
/* Returns 1 if a signal has told this process to end, else 0.  While the command runs, signals from the terminal (^C)
 * are ignored, because the terminal sends them to the command, too. */
int command_should_end(void);
/* Returns the exit code of the command, whose status waitpid(2) has returned.  If a signal ended the command, ends
 * this process by that signal, too. */
int command_end_as(int status);
/* Sets an environment variable for a command.  `context' is the caller's data.  Returns 0 on success. */
typedef int command_put_function(void *context, const char *name, const char *value);
command_put_function command_put; /* sets the variable in this process; `context' is unused */

/* ---- the library ---- */

/* Writes the path of weir's library `name' to `path'.  On failure, sets *why to the reason and returns
 * EXIT_WEIR_FAILED. */
int preloading_find(const char *name, char *path, size_t bytes, const char **why);

/* Calls `put' for each environment variable that makes a program load the library at its start.  Returns 0 on
 * success. */
int preloading_set_variables(const char *library, command_put_function *put, void *context);

/* Returns the reason why the dynamic linker does not preload libraries into the program, such as "it is linked
 * statically".  Returns NULL if weir knows no such reason. */
const char *preloading_why_not(const char *program);

/* Reports a usage error: the arguments contain no command. */
void preloading_no_command(struct argp_state *state);

#endif
