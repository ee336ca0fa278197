/* SPDX-License-Identifier: MIT */
/* runfile.h: the files through which running processes of one user find each other.
 *
 * weir puts such files into /dev/shm, or into /tmp if /dev/shm cannot be used.  If $WEIR_RUN_FOLDER is an absolute
 * path, weir uses only that folder.  Otherwise, if $WEIR_GROUP_DIR is an absolute path, weir uses only that
 * folder, which containers may share.  No other variable changes the folder, because a process of a login session
 * and a process of a service must use one folder.
 *
 * The name of a file begins with "weir-UID-".  Callers choose the rest of the name.  Every user may create files in
 * these folders.  So weir follows no link, waits for no pipe, and callers check the owner of each file that they
 * open.
 *
 * This file must not depend on the contents of a file or on the process that searches for the file. */
#ifndef WEIR_RUNFILE_H
#define WEIR_RUNFILE_H

#include <stddef.h>
#include <sys/stat.h>

/* Writes the path at which processes of this user shall put or find a file.  Uses the first folder that this user
 * may write to, and in which the name is unused or belongs to a plain file of this user.  If no folder is suitable,
 * uses the last one.  So all processes of the user get one path, even if another user has created a file of that name.
 * Returns 0 on success, -1 with errno if the path is too long. */
int weir__runfile_path(char *path, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A function that weir__runfile_each() calls for each file.  `path` is the path of a file.  `rest` is the part of the
 * file's name after "weir-UID-" and `begins`. */
typedef void weir_runfile_visitor(const char *path, const char *rest, void *context);

/* Calls `visit` for each file, in all folders for shared files, whose name begins with "weir-UID-" followed by
 * `begins`.  Another user may have created such a file, or it may be a link, so `visit` must check the file. */
void weir__runfile_each(const char *begins, weir_runfile_visitor *visit, void *context);

/* Opens a file with the given flags of open(2), but follows no link and waits for no pipe.  A new file gets the mode
 * 0600 without the bits of the umask.  Returns a descriptor, or -1 with errno. */
int weir__runfile_open(const char *path, int flags);

/* Returns 1 if the file is a plain file of this user, and writes the result of fstat(2) to *is.  Returns 0
 * otherwise. */
int weir__runfile_is_own(int file, struct stat *is);

/* Returns 1 if weir can trust the contents of the file, else 0.  The file must be a plain file of this user that no
 * other user may read or write.  It must have `bytes` bytes, begin with the bytes `head`, and have only one hard
 * link. */
int weir__runfile_is_sound(int file, size_t bytes, const void *head, size_t head_bytes);

/* Creates a file of `bytes` bytes that begins with the bytes `head`.  The file gets its name only when it is complete,
 * so no process opens an incomplete file.  Returns 0 if a file of this name exists now; another process may have
 * created it.  Returns -1 with errno on failure. */
int weir__runfile_make(const char *path, size_t bytes, const void *head, size_t head_bytes);

/* Removes the name `path` of a file, unless another process has put another file there.  If another process does this
 * between the check and the removal, the other file loses its name.  Follows no link.  Returns 0 if the file does not
 * have the name any more, -1 with errno on failure. */
int weir__runfile_unname(int file, const char *path);

#endif
