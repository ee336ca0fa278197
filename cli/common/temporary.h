/* SPDX-License-Identifier: MIT */
/* temporary.h: files and folders that go with the command. */
#ifndef WEIR_CLI_TEMPORARY_H
#define WEIR_CLI_TEMPORARY_H

/* An unlinked file in TMPDIR, or /tmp, for as long as it is open.  -1: errno tells why there is none. */
int temporary_file(void);

/* Removes a folder with its files and its empty folders.  Does nothing if the path is "". */
void temporary_remove(const char *path);

#endif
