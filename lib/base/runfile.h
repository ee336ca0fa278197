/* SPDX-License-Identifier: MIT */
/* runfile.h: the files by which the processes of one user find each other while they run.
 *
 * The folders of these files are /dev/shm and then /tmp.  If $WEIR_RUN_FOLDER is an absolute path, weir uses only that
 * folder.  Otherwise, if $WEIR_GROUP_DIR is an absolute path, weir uses only that folder, which containers may share.
 * No other variable counts, because a process of a login session and a process of a service must use one folder.
 *
 * A name begins with "weir-UID-", and callers choose the rest.  Every user may make files in these folders.  So weir
 * follows no link, waits for no pipe, and callers check the owner of each file that they open.
 *
 * This file must not know the contents of a file or the process that searches for the file.
 */
#ifndef WEIR_RUNFILE_H
#define WEIR_RUNFILE_H

#include <stddef.h>
#include <sys/stat.h>

/* Writes the path of a file.  The folder is the first folder that this user may write to and in which the name is free
 * or belongs to a plain file of this user.  If there is no such folder, the folder is the last one.  So all processes
 * of the user get one path, even if another user has made a file of that name.  Returns 0 on success, -1 with errno if
 * the path is too long. */
int weir__runfile_path(char *path, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* `path` is the path of a file.  `rest` is the part of the file's name after "weir-UID-" and `begins`. */
typedef void weir_runfile_visitor(const char *path, const char *rest, void *context);

/* Calls `visit` for each file, in all folders, whose name begins with "weir-UID-" and then `begins`.  The files include
 * links and other users' files. */
void weir__runfile_each(const char *begins, weir_runfile_visitor *visit, void *context);

/* Calls open(2) with these flags, but follows no link and waits for no pipe.  A new file has the mode 0600, less the
 * umask.  Returns a descriptor, or -1 with errno. */
int weir__runfile_open(const char *path, int flags);

/* Returns 1 and sets *is if the file is a plain file of this user, else 0. */
int weir__runfile_is_own(int file, struct stat *is);

/* Returns 1 if the file is a plain file of this user with `bytes` bytes, a head equal to `head` and one name, and no
 * other user may use the file; else 0. */
int weir__runfile_is_sound(int file, size_t bytes, const void *head, size_t head_bytes);

/* Makes a file of `bytes` bytes that begins with `head`.  The file gets its name only when it is complete.  Returns 0
 * if there is a file of the name now, which another process may have made, or -1 with errno. */
int weir__runfile_make(const char *path, size_t bytes, const void *head, size_t head_bytes);

/* Removes the name if the name still belongs to this file.  Another process may have given the name to another file,
 * which then stays.  If another process gives the name to another file between the check and the removal, the other
 * file loses its name.  Follows no link.  Returns 0 if the file does not have the name any more, -1 with errno on
 * failure. */
int weir__runfile_unname(int file, const char *path);

#endif
