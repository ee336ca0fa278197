/* SPDX-License-Identifier: MIT */
/* runfile.h: the files through which running processes of one user find each other.
 *
 * weir puts such files into the folder $WEIR_RUN_FOLDER, else into $WEIR_GROUP_DIR, which containers may share.  If no
 * variable contains an absolute path, weir uses /dev/shm, or /tmp if it cannot use /dev/shm.  weir reads no other
 * variable, because a login session and a service must use one folder.
 *
 * The name of a file begins with "weir-UID-".  Every user may create files in these folders.  So weir follows no link,
 * waits for no pipe, and callers check the owner of each file that they open. */
#ifndef WEIR_RUNFILE_H
#define WEIR_RUNFILE_H

#include <stddef.h>
#include <sys/stat.h>

/* Writes a path, which is equal in all processes of this user.  Returns 0, or -1 with errno if the path is too long. */
int weir__runfile_path(char *path, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Receives the path of a file.  `rest` is the file's name without "weir-UID-" and the text `begins`. */
typedef void weir_runfile_visitor(const char *path, const char *rest, void *context);

/* Calls `visit` for each file whose name begins with "weir-UID-" and `begins`, even for another user's file or link. */
void weir__runfile_each(const char *begins, weir_runfile_visitor *visit, void *context);

/* Opens a file with the flags of open(2), but follows no link and waits for no pipe.  A new file gets the mode 0600.
 * Returns a descriptor, or -1 with errno. */
int weir__runfile_open(const char *path, int flags);

/* Returns 1 and writes the result of fstat(2) to *is if the file is a plain file of this user, else returns 0. */
int weir__runfile_is_own(int file, struct stat *is);

/* Returns 1 if the file belongs to this user alone, has `bytes` bytes and begins with `head`, else 0. */
int weir__runfile_is_sound(int file, size_t bytes, const void *head, size_t head_bytes);

/* Creates a file of `bytes` bytes that begins with `head`, and names the file when it is complete.  Returns 0, also if
 * the file exists already, or -1 with errno. */
int weir__runfile_make(const char *path, size_t bytes, const void *head, size_t head_bytes);

/* Removes the name `path` if it belongs to the open file `file`.  The check and the removal are not atomic.  Returns
 * 0 if `file` does not have the name any more, -1 with errno on failure. */
int weir__runfile_unname(int file, const char *path);

#endif
