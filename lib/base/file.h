/* SPDX-License-Identifier: MIT */
/* file.h: opens and writes weir's own files in the process of a program.
 *
 * weir's files get descriptors above 2.  If the program has closed its standard output, open(2) may return descriptor
 * 1, and printf() would write into weir's file.
 *
 * A write beyond RLIMIT_FSIZE causes the signal SIGXFSZ, which ends the program by default.  weir blocks this signal
 * during its own writes, which then fail with EFBIG. */
#ifndef WEIR_FILE_H
#define WEIR_FILE_H

#include <signal.h>
#include <stdio.h>
#include <sys/types.h>

/* Opens a file as open(2) does.  Returns a descriptor above 2 that exec(2) closes, or -1 with errno. */
int weir__file_open(const char *path, int flags, mode_t mode);

/* Moves `file`, which may be -1, to a descriptor above 2 that exec(2) closes.  Returns it, or -1 with errno. */
int weir__file_above(int file);

/* Duplicates a descriptor.  Returns a new descriptor above 2 that exec(2) closes, or -1 with errno. */
int weir__file_copy(int file);

FILE *weir__file_read(const char *path);

/* Reads a file to its end, but at most `most` bytes.  Returns the number of bytes, or -1 with errno. */
ssize_t weir__file_read_up_to(int file, char *text, size_t most);

enum { WEIR_FILE_TEXT_BYTES = 1 << 20 };

/* Reads a whole file of at most WEIR_FILE_TEXT_BYTES bytes.  Returns the text, which the caller frees, or NULL with the
 * reason in `why`. */
char *weir__file_text(const char *path, char *why, size_t why_bytes);

/* The state of the signal SIGXFSZ in this thread before weir__file_guard() blocked it. */
struct weir_file_guard {
    int is_on, was_pending;
    sigset_t before;
};

/* Block the signal SIGXFSZ in this thread, and restore the signal's earlier state.  Both functions keep errno. */
void weir__file_guard(struct weir_file_guard *guard);
void weir__file_unguard(const struct weir_file_guard *guard);

/* Call pwrite(2), ftruncate(2) and posix_fallocate(3) with the signal SIGXFSZ blocked, and return their results. */
ssize_t weir__file_write_at(int file, const void *from, size_t bytes, off_t at);
int weir__file_resize(int file, off_t bytes);
int weir__file_reserve(int file, off_t bytes);

#endif
