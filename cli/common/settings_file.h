/* SPDX-License-Identifier: MIT */
/* settings_file.h: reads settings from a file with lines "NAME=VALUE".  A line that begins with "#" is a comment.
 *
 * Must not know: who wrote the file.
 */
#ifndef WEIR_CLI_SETTINGS_FILE_H
#define WEIR_CLI_SETTINGS_FILE_H

#include "cli/common/flags.h"

/* Sets the settings that no flag has set, as if the flag `flag' set them.  Is called after weir_cli_parse and before
 * weir_cli_settings_finish.
 * Returns 0 on success, 1 with a message if the file cannot be read, 2 with a message if a line is wrong. */
int settings_file_read(struct weir_cli_settings *settings, const char *flag, const char *path);

#endif
