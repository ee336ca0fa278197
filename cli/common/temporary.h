/* SPDX-License-Identifier: MIT */
/* temporary.h: files and folders in TMPDIR, or in /tmp. */
#ifndef WEIR_CLI_TEMPORARY_H
#define WEIR_CLI_TEMPORARY_H

#include <stdio.h>

/* Opens an empty file without a name, for reading and writing.  Returns NULL with errno on failure. */
FILE *temporary_file(void);
/* Removes a folder with the files and the empty folders in the folder.  Does nothing if the path is "". */
void temporary_remove(const char *path);

#endif
