/* SPDX-License-Identifier: MIT */
/* replace.h: a file that is written as a whole, or left as it was.
 *
 * It is written beside its place, under a name that nothing else has, and moved there.  A link at its place
 * stays, and the file that it leads to is replaced; but in a folder in which everybody may write only links of the
 * user's own, or root's, are followed.  What is no plain file (a pipe, a terminal), or is open as standard output or
 * standard error, is written to as it is.
 *
 * Must not know: what is written.
 */
#ifndef WEIR_REPLACE_H
#define WEIR_REPLACE_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

/* One that is being written.  `file' is its owner's to write to, and weir__replace_end's to close. */
struct weir_replacement {
    int file;
    char path[PATH_MAX]; /* where it goes in the end; "": it is written in place */
    char beside[PATH_MAX];
};

/* All of it: 0, or errno. */
int weir__write_all(int file, const char *at, size_t count);

/* 0, or errno. */
int weir__replace_begin(struct weir_replacement *r, const char *path, mode_t mode);
/* With `why' not 0 what was written beside goes, and what was there stays; 0, or errno. */
int weir__replace_end(struct weir_replacement *r, int why, int is_durable);

/* Both in one.  A new file has that mode, less the umask; one in place of another the other's, as far as that mode
 * goes.  `is_durable': it is on the disk when this returns.  0, or errno. */
int weir__replace_file(const char *path, mode_t mode, int is_durable, const void *bytes,
                       size_t count);

/* A new file in the place of what is there, which goes, a link too; for what is to be seen as it is written.  In a folder
 * of everybody's what is another's stays.  -1 and errno. */
int weir__replace_open(const char *path, mode_t mode);

#endif
