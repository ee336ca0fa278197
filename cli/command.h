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

/* Finds the file of a program, as execvp(3) does, and writes its path to `path'.  Returns 1 on success.  If there is
 * no such file or it cannot be run, sets errno, writes the name to `path' and returns 0. */
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

/* Finds weir's library `name', in the build tree or in an installation, and writes its path to `path'.  Returns 0 on
 * success.  On failure, sets *why to the reason, sets `path' to the missing file, and returns EXIT_WEIR_FAILED. */
int preloading_find(const char *name, char *path, size_t bytes, const char **why);

/* Calls `put' for each environment variable that makes a program load the library at its start.  Appends the library to
 * the user's LD_PRELOAD, unless LD_PRELOAD contains it.  Returns 0 on success, 1 if there is no host memory. */
int preloading_set_variables(const char *library, command_put_function *put, void *context);

/* Returns the reason why the dynamic linker does not preload libraries into the program, such as "it is linked
 * statically".  Returns NULL if weir knows no such reason. */
const char *preloading_why_not(const char *program);

/* Reports a usage error: the arguments contain no command.  If the last word is the value of a flag, the message says
 * so, because the user may have meant this word as the command. */
void preloading_no_command(struct argp_state *state);

#endif
