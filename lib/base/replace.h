/* SPDX-License-Identifier: MIT */
/* replace.h: replaces a file as a whole, or leaves it unchanged.
 *
 * The new file is written beside the old one under an unused name, and renamed.  A symbolic link stays, and the file
 * that it leads to is replaced.  In a folder to which all users may write, only links of the user or of root are
 * followed.  A pipe or a terminal, and a file that is open as standard output or standard error, is written to in
 * place.
 *
 * This file must not know the contents of the file.
 */
#ifndef WEIR_REPLACE_H
#define WEIR_REPLACE_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

/* A file that is being written.  The owner writes to `file`, and weir__replace_end closes it. */
struct weir_replacement {
    int file;
    char path[PATH_MAX]; /* the final path, or "" if the file is written in place */
    char beside[PATH_MAX];
};

/* Writes all bytes.  Returns 0 or an errno. */
int weir__write_all(int file, const char *at, size_t count);
/* Appends a text to a file, which it creates if there is none.  Returns 0 on success, or an errno. */
int weir__append_all(const char *path, const char *text, size_t length);

/* Opens a file to replace the one at `path`.  Returns 0 or an errno. */
int weir__replace_begin(struct weir_replacement *r, const char *path, mode_t mode);
/* Closes the file and renames it.  If `why` is not 0, removes it instead.  Returns 0 or an errno. */
int weir__replace_end(struct weir_replacement *r, int why, int is_durable);

/* Replaces a file by these bytes.  A new file has that mode, less the umask; a replaced one keeps the bits of its mode
 * that `mode` has, too.  With `is_durable` the file is then on the disk.  Returns 0 or an errno. */
int weir__replace_file(const char *path, mode_t mode, int is_durable, const void *bytes,
                       size_t count);

/* Removes a file or a link, and opens a new file in its place.  Readers see the new file while it is written.  In a
 * folder that all users share, another user's file stays.  Returns -1 with errno on failure. */
int weir__replace_open(const char *path, mode_t mode);

#endif
