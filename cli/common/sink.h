/* SPDX-License-Identifier: MIT */
/* sink.h: writes a file, and compresses it if its name ends in .gz or .zst.
 *
 * This file must not know the contents of the file.
 */
#ifndef WEIR_CLI_SINK_H
#define WEIR_CLI_SINK_H

#include <stddef.h>

struct sink;

/* Returns 1 if this build of weir can write a file with such a name, 0 if it cannot compress the file. */
int sink_can_write(const char *name);
/* Makes a sink that writes to an open descriptor.  The end of `name' selects the compression.  The sink
 * owns the descriptor: sink_close() closes it, and so does this function if it fails.  Returns NULL with errno on
 * failure. */
struct sink *sink_open(int file, const char *name);
/* Writes text to the file.  Returns 1 on success, 0 with errno on failure.  After a failure, all later calls fail,
 * too. */
int sink_write(struct sink *sink, const char *text, size_t bytes);
/* Flushes the file, so that other processes can read all text that was written.  Flushes a compressed file at most
 * once a second.  Returns 1 on success, 0 with errno on failure. */
int sink_flush(struct sink *sink);
/* Closes the file and frees the sink.  Returns 1 on success, 0 with errno if a part of the file could not be
 * written. */
int sink_close(struct sink *sink);

#endif
