/* SPDX-License-Identifier: MIT */
/* runfile.h: the files by which the processes of one user find each other while they run.
 *
 * Their folders are /dev/shm and then /tmp; or $WEIR_RUN_FOLDER alone, if that is an absolute path; else
 * $WEIR_GROUP_DIR alone, likewise: a folder that containers share.  No other
 * variable counts: a process of a login session and one of a service must look in the same place.
 *
 * A name begins with "weir-UID-"; callers say how it goes on.  Everybody may put something into these folders.
 * So a link is not followed, a pipe is not waited for, and callers ask of each file that they open whose it is.
 *
 * Must not know: what is in a file, and who looks for it.
 */
#ifndef WEIR_RUNFILE_H
#define WEIR_RUNFILE_H

#include <stddef.h>
#include <sys/stat.h>

/* Writes the path of a file: in the first folder that this user may write to and where the name is free or is that of a
 * plain file of this user; else in the last folder.  So all processes of the user get the same path, even if another
 * user has taken the name in a folder.  0; -1 and errno: the path is too long. */
int weir__runfile_path(char *path, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* `rest': how the name goes on behind the request. */
typedef void weir_runfile_visitor(const char *path, const char *rest, void *context);

/* Visits what has a name that begins so, in all folders, whatever it is. */
void weir__runfile_each(const char *begins, weir_runfile_visitor *visit, void *context);

/* open(2) with these flags and without surprises; a new file has the mode 0600, less the umask.  -1 and errno. */
int weir__runfile_open(const char *path, int flags);

/* 1, and what it is: it is a plain file of this user. */
int weir__runfile_is_own(int file, struct stat *is);

/* Gives a new file all its room, so that a full file system is an error here and no signal later; its mode, whatever
 * the umask is; and its head.  0; -1 and errno. */
int weir__runfile_fill(int file, size_t bytes, const void *head, size_t head_bytes);

/* Makes a file of that content for the path, which gets its name only when it is whole.  Returns 0 if there is a file of
 * that name now, which another process may have made first, or -1 with errno. */
int weir__runfile_make(const char *path, size_t bytes, const void *head, size_t head_bytes);

/* Takes the name away if it is that file's still; what another has put there since stays, unless it comes between the
 * look and the removal.  A link is not followed.  0: the file does not have the name (any more); -1 and errno. */
int weir__runfile_unname(int file, const char *path);

/* The user's lock of that name: a number for close(2); -1 with EWOULDBLOCK: another process has it, or another errno.  It
 * ends with the process. */
int weir__runfile_lock(const char *name);

#endif
