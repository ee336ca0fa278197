/* SPDX-License-Identifier: MIT */
/* sink.h: writes a file, and compresses it if its name ends in .gz or .zst.
 *
 * sink.c must not depend on the contents of the written file.
 */
#ifndef WEIR_CLI_SINK_H
#define WEIR_CLI_SINK_H

#include <stddef.h>

struct sink;

/* Returns 1 if this build of weir supports the compression that `name' selects, 0 if not. */
int sink_can_write(const char *name);
/* Makes a writer for the open descriptor `file'.  The writer owns the descriptor.  The end of `name' selects the
 * compression.  On failure, closes the descriptor and returns NULL with errno. */
struct sink *sink_open(int file, const char *name);
/* Writes text to the file.  Returns 1 on success, 0 with errno if this call or an earlier call has failed. */
int sink_write(struct sink *sink, const char *text, size_t bytes);
/* Flushes the file, so that other processes can read all text.  Flushes a compressed file at most once a second.
 * Returns 1 on success, 0 with errno on failure. */
int sink_flush(struct sink *sink);
/* Closes the file and frees the writer.  Returns 1 on success, 0 with errno if some text could not be written. */
int sink_close(struct sink *sink);

#endif
