/* SPDX-License-Identifier: MIT */
/* replace.h: replaces the whole contents of a file, or leaves the file unchanged.
 *
 * weir writes a new file with a temporary name in the folder of the old file, and renames it.  If the path is a
 * symbolic link, weir replaces its target; if all users may write to the folder, this user or root must own the link.
 * weir writes in place to a pipe, to a terminal, and to a file that is open as standard output or standard error. */
#ifndef WEIR_REPLACE_H
#define WEIR_REPLACE_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

/* A file whose contents are being replaced.  The caller writes the new contents to `file`. */
struct weir_replacement {
    int file;
    char path[PATH_MAX]; /* of the file that will be replaced, or "" if weir writes in place */
    char beside[PATH_MAX];
};

/* Writes all `count` bytes to a file.  Returns 0 on success, else an errno value. */
int weir__write_all(int file, const char *at, size_t count);
/* Appends a text to a file, and creates the file if it does not exist.  Returns 0 on success, else an errno value. */
int weir__append_all(const char *path, const char *text, size_t length);

/* Opens a new file that will replace the file at `path`.  Returns 0 on success, else an errno value. */
int weir__replace_begin(struct weir_replacement *r, const char *path, mode_t mode);
/* Closes the new file.  Renames it if `why` is 0, or removes it if the caller's writes failed with the errno value
 * `why`.  Returns 0, or an errno value. */
int weir__replace_end(struct weir_replacement *r, int why, int is_durable);

/* Replaces the contents of a file.  The new file has at most the permissions in `mode`.  If `is_durable` is set, waits
 * until the contents are on the disk.  Returns 0, or an errno value. */
int weir__replace_file(const char *path, mode_t mode, int is_durable, const void *bytes,
                       size_t count);

/* Removes the file or link at `path`, and creates a new file.  Readers see the file while weir writes it.  Returns a
 * descriptor, or -1 with errno. */
int weir__replace_open(const char *path, mode_t mode);

#endif
