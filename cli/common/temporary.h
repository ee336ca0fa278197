/* SPDX-License-Identifier: MIT */
/* temporary.h: files and folders that exist no longer than the command. */
#ifndef WEIR_CLI_TEMPORARY_H
#define WEIR_CLI_TEMPORARY_H

#include <stdio.h>

/* Opens an empty file without a name in TMPDIR, or in /tmp, for reading and writing.  Returns NULL with errno on
 * failure. */
FILE *temporary_file(void);
/* Returns TMPDIR, or /tmp if that is not set. */
const char *temporary_folder(void);
/* Makes an empty file weir-WHAT-... there, and writes its path.  Returns 1, or 0 with errno and the path that failed. */
int temporary_named(const char *what, char *path, size_t bytes);
/* Removes a folder with its files and its empty folders.  Does nothing if the path is "" or a link. */
void temporary_remove(const char *path);

#endif
