/* SPDX-License-Identifier: MIT */
/* file.h: opens and writes weir's own files in the process of a program.
 *
 * A program may run with the descriptors 0 to 2 closed.  If one of weir's files got such a descriptor, the program's
 * printf() would write into weir's file.  So weir's own files get descriptors above 2.
 *
 * A write beyond RLIMIT_FSIZE causes the signal SIGXFSZ, which ends the program by default.  weir blocks this signal
 * during its own writes, so such a write fails with EFBIG instead.
 *
 * This file must not depend on the contents of a file. */
#ifndef WEIR_FILE_H
#define WEIR_FILE_H

#include <signal.h>
#include <stdio.h>
#include <sys/types.h>

/* Opens a file as open(2) does, with a descriptor that exec(2) closes.  Returns a descriptor above 2, or -1 with
 * errno. */
int weir__file_open(const char *path, int flags, mode_t mode);

/* Moves a file that the caller has just opened to a descriptor above 2 that exec(2) closes.  Returns the new
 * descriptor, or `file` if `file` is above 2 already.  Returns -1 with errno on failure.  If `file` is -1, returns -1
 * and does not change errno, so that a caller can pass the result of a failed open(2). */
int weir__file_above(int file);

/* Duplicates a descriptor.  Returns a new descriptor above 2 that exec(2) closes, or -1 with errno. */
int weir__file_copy(int file);

/* Opens a file for reading as fopen(3) does.  Returns NULL with errno if the file cannot be opened. */
FILE *weir__file_read(const char *path);

/* Reads from a file until the end of the file, but not more than `most` bytes.  Returns the number of bytes that were
 * read, or -1 with errno. */
ssize_t weir__file_read_up_to(int file, char *text, size_t most);

/* The maximum size, in bytes, of a text file that a user names and that weir reads as a whole. */
enum { WEIR_FILE_TEXT_BYTES = 1 << 20 };

/* Reads a whole file of at most WEIR_FILE_TEXT_BYTES bytes.  Returns the text, which the caller frees.  On failure
 * returns NULL, and writes the reason to `why`. */
char *weir__file_text(const char *path, char *why, size_t why_bytes);

/* The state of the signal SIGXFSZ in this thread before weir__file_guard() blocked it, so that weir__file_unguard() can
 * restore it. */
struct weir_file_guard {
    int is_on, was_pending;
    sigset_t before;
};

/* Block the signal SIGXFSZ in this thread, and restore its state.  Between both calls, a write beyond the limit on file
 * sizes fails with EFBIG and causes no signal.  Both functions keep errno. */
void weir__file_guard(struct weir_file_guard *guard);
void weir__file_unguard(const struct weir_file_guard *guard);

/* Call pwrite(2), ftruncate(2) and posix_fallocate(3) with the signal SIGXFSZ blocked, so that the limit on file sizes
 * only causes an error.  Return the results of these calls. */
ssize_t weir__file_write_at(int file, const void *from, size_t bytes, off_t at);
int weir__file_resize(int file, off_t bytes);
int weir__file_reserve(int file, off_t bytes);

#endif
