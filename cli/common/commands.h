/* SPDX-License-Identifier: MIT */
/* commands.h: the subcommands of the program, one file each.
 *
 * Each gets its own part of the command line, argv[0] being "weir info" and so on for messages, and
 * returns the exit code: 0 all went well, 1 a failure that was said on standard error, 2 usage.
 * `weir run' and `weir record' have those of env(1); run returns only when there was no command to run.
 */
#ifndef WEIR_CLI_COMMANDS_H
#define WEIR_CLI_COMMANDS_H

#include <stdio.h>

int weir_cmd_bench(int argc, char **argv);
int weir_cmd_info(int argc, char **argv);
int weir_cmd_record(int argc, char **argv);
int weir_cmd_replay(int argc, char **argv);
int weir_cmd_report(int argc, char **argv);
int weir_cmd_run(int argc, char **argv);
int weir_cmd_top(int argc, char **argv);
int weir_cmd_torch(int argc, char **argv);
int weir_cmd_tune(int argc, char **argv);
int weir_cmd_replay_child(int argc, char **argv); /* internal: runner.h */

/* variables.c: prints what `weir help' says of a variable that is no setting: of a part of weir, or of another program.
 * WEIR_GROUP_LIMIT is also --group-limit and group-limit.  Returns 1, or 0 if it is none of them. */
int variables_tell(const char *name, FILE *file);
/* Returns the name of each variable, by its number from 0 on; NULL: there are no more. */
const char *variables_name(int number);

#endif
