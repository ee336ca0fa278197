/* SPDX-License-Identifier: MIT */
/* replace.h: replaces a file as a whole, or leaves it unchanged.
 *
 * The new file is written beside the old one under an unused name, and renamed.  A symbolic link stays, and weir
 * replaces the file that the link names.  In a folder to which all users may write, weir follows only links of the
 * user or of root.  weir writes in place to a pipe, to a terminal, and to a file that is open as standard output or
 * standard error.
 *
 * This file must not know the contents of the file.
 */
#ifndef WEIR_REPLACE_H
#define WEIR_REPLACE_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

/* A file that is being written.  The owner writes to `file`, and weir__replace_end closes `file`. */
struct weir_replacement {
    int file;
    char path[PATH_MAX]; /* the final path, or "" if the file is written in place */
    char beside[PATH_MAX];
};

/* Writes all bytes.  Returns 0 or an errno. */
int weir__write_all(int file, const char *at, size_t count);
/* Appends a text to a file, and creates the file if there is none.  Returns 0 or an errno. */
int weir__append_all(const char *path, const char *text, size_t length);

/* Opens a new file that will replace the file at `path`.  Returns 0 or an errno. */
int weir__replace_begin(struct weir_replacement *r, const char *path, mode_t mode);
/* Closes and renames the new file.  If `why`, an errno, is not 0, removes the new file instead.  Returns 0, `why`, or
 * the errno of a failure. */
int weir__replace_end(struct weir_replacement *r, int why, int is_durable);

/* Replaces a file by these bytes.  A new file has the mode `mode` less the umask.  A replaced file keeps the bits of
 * its mode that are also in `mode`.  If `is_durable` is set, the file is on the disk when the function returns.
 * Returns 0 or an errno. */
int weir__replace_file(const char *path, mode_t mode, int is_durable, const void *bytes,
                       size_t count);

/* Removes a file or a link, and opens a new file in its place.  Readers see the new file while it is written.  In a
 * folder that all users share, the kernel does not let weir remove another user's file.  Returns -1 with errno on
 * failure. */
int weir__replace_open(const char *path, mode_t mode);

#endif
