/* SPDX-License-Identifier: MIT */
/* commands.h: the functions that run the subcommands of the program weir.
 *
 * A function gets the arguments of its subcommand.  argv[0] is a name for messages, such as "weir info".  The
 * function returns the exit code of the program: 0 on success, 1 after a failure (with a message on standard error),
 * 2 after a usage error.  `weir run' and `weir record' have the exit codes of env(1).  If `weir run' replaces its
 * process by the command, its function does not return.
 */
#ifndef WEIR_CLI_COMMANDS_H
#define WEIR_CLI_COMMANDS_H

int weir_cmd_bench(int argc, char **argv);
int weir_cmd_info(int argc, char **argv);
int weir_cmd_record(int argc, char **argv);
int weir_cmd_replay(int argc, char **argv);
int weir_cmd_report(int argc, char **argv);
int weir_cmd_run(int argc, char **argv);
int weir_cmd_top(int argc, char **argv);
int weir_cmd_torch(int argc, char **argv);
int weir_cmd_tune(int argc, char **argv);
/* Runs the child process of a replay; an internal subcommand (runner.h). */
int weir_cmd_replay_child(int argc, char **argv);

#endif
