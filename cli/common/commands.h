/* SPDX-License-Identifier: MIT */
/* commands.h: the subcommands of the program, one file each.
 *
 * Each gets its own part of the command line, argv[0] being "weir info" and so on for messages, and
 * returns the exit code: 0 all went well, 1 a failure that was said on standard error, 2 usage.
 * `weir run' and `weir record' have those of env(1); run returns only when there was no command to run.
 */
#ifndef WEIR_CLI_COMMANDS_H
#define WEIR_CLI_COMMANDS_H

int weir_cmd_bench(int argc, char **argv);
int weir_cmd_info(int argc, char **argv);
int weir_cmd_park(int argc, char **argv);
int weir_cmd_record(int argc, char **argv);
int weir_cmd_replay(int argc, char **argv);
int weir_cmd_report(int argc, char **argv);
int weir_cmd_run(int argc, char **argv);
int weir_cmd_top(int argc, char **argv);
int weir_cmd_torch(int argc, char **argv);
int weir_cmd_tune(int argc, char **argv);
int weir_cmd_wake(int argc, char **argv);
int weir_cmd_replay_child(int argc, char **argv); /* internal: runner.h */

#endif
