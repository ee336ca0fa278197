/* SPDX-License-Identifier: MIT */
/* settings_file.h: settings out of a file, a line "NAME=VALUE" each; "#" begins a comment at the start of a line.
 *
 * Must not know: who wrote it.
 */
#ifndef WEIR_CLI_SETTINGS_FILE_H
#define WEIR_CLI_SETTINGS_FILE_H

#include "cli/common/flags.h"

/* After weir_cli_parse and before weir_cli_settings_finish: settings that no flag has set, as if flag `flag' set them.
 * 0, or the exit code with a message printed. */
int settings_file_read(struct weir_cli_settings *settings, const char *flag, const char *path);

#endif
