/* SPDX-License-Identifier: MIT */
/* commands.h: the functions that run the subcommands of the program weir.
 *
 * argv[0] is a name for messages, such as "weir info".  A function returns the exit code of the program: 0 on success,
 * 1 after a failure (with a message on standard error), 2 after a usage error.  `weir run' and `weir record' have the
 * exit codes of env(1).  weir_cmd_run() does not return if the user's command has replaced the process.
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
/* Runs the internal subcommand of the child processes that replay traces (runner.h). */
int weir_cmd_replay_child(int argc, char **argv);

#endif
