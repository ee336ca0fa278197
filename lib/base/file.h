/* SPDX-License-Identifier: MIT */
/* file.h: files that weir opens and writes in the process of a program.
 *
 * A program may run with the descriptors 0 to 2 closed.  If a file of weir's got one of these descriptors, the
 * program's printf() would write into that file.  So weir's own files get descriptors above 2.
 *
 * A write beyond RLIMIT_FSIZE sends SIGXFSZ, which ends the program by default.  weir's own writes fail with EFBIG
 * instead, even if the program handles this signal.
 *
 * This file must not know the contents of a file.
 */
#ifndef WEIR_FILE_H
#define WEIR_FILE_H

#include <signal.h>
#include <stdio.h>
#include <sys/types.h>

/* Opens a file as open(2) does, with a descriptor that exec(2) closes.  Returns a descriptor above 2, or -1 with
 * errno. */
int weir__file_open(const char *path, int flags, mode_t mode);

/* Replaces the descriptor `file`, which the caller has just opened, by a descriptor above 2 that exec(2) closes.
 * Returns this descriptor, which is `file` if `file` is above 2, or -1 with errno.  If `file` is -1, does not change
 * errno. */
int weir__file_above(int file);

/* Duplicates a descriptor.  Returns a new descriptor above 2 that exec(2) closes, or -1 with errno. */
int weir__file_copy(int file);

/* Opens a file for reading as fopen(3) does.  Returns NULL with errno if the file cannot be opened. */
FILE *weir__file_read(const char *path);

/* Reads until the end of the file or `most` bytes.  Returns the number of bytes, or -1 with errno. */
ssize_t weir__file_read_up_to(int file, char *text, size_t most);

/* The largest text that weir reads at once from a file that a user has named. */
enum { WEIR_FILE_TEXT_BYTES = 1 << 20 };

/* Reads a file of at most WEIR_FILE_TEXT_BYTES.  Returns the text, which the caller frees, or NULL with the reason in
 * `why`. */
char *weir__file_text(const char *path, char *why, size_t why_bytes);

/* The state of SIGXFSZ in this thread before weir__file_guard(). */
struct weir_file_guard {
    int is_on, was_pending;
    sigset_t before;
};

/* Makes writes of this thread fail with EFBIG, without a signal, until weir__file_unguard().  Both functions keep
 * errno. */
void weir__file_guard(struct weir_file_guard *guard);
void weir__file_unguard(const struct weir_file_guard *guard);

/* Call pwrite(2), ftruncate(2) and posix_fallocate(3) under the guard, and return the results of these calls. */
ssize_t weir__file_write_at(int file, const void *from, size_t bytes, off_t at);
int weir__file_resize(int file, off_t bytes);
int weir__file_reserve(int file, off_t bytes);

#endif
