/* SPDX-License-Identifier: MIT */
/* commands.h: the subcommands of the program, one file each.
 *
 * A subcommand gets its part of the command line, with "weir info" and so on in argv[0] for messages.  It returns the
 * exit code: 0 on success, 1 after a failure with a message on standard error, 2 after a usage error.  `weir run' and
 * `weir record' have the exit codes of env(1); `weir run' returns only if it does not become the command.
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
int weir_cmd_replay_child(int argc, char **argv); /* an internal subcommand (runner.h) */

#endif
