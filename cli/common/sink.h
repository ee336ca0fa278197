/* SPDX-License-Identifier: MIT */
/* sink.h: writes a file, which is compressed if its name ends in .gz or .zst.
 *
 * This file must not know the contents of the file.
 */
#ifndef WEIR_CLI_SINK_H
#define WEIR_CLI_SINK_H

#include <stddef.h>

struct sink;

/* Returns 1 if this build can compress a file of that name, 0 if not. */
int sink_can(const char *like);
/* Makes a sink of an open file.  The name `like' says how the file is compressed.  The sink closes the file;
 * sink_on closes the file if it fails.  Returns NULL with errno on failure. */
struct sink *sink_on(int file, const char *like);
/* Writes the text.  Returns 1 on success, 0 with errno on failure.  After an error each call fails. */
int sink_write(struct sink *sink, const char *text, size_t bytes);
/* Flushes the file, so that others can read the text that was written.  Flushes a compressed file once a second at
 * most. */
int sink_flush(struct sink *sink);
/* Closes the file.  Returns 1 on success, 0 with errno if not all of the file was written. */
int sink_close(struct sink *sink);

#endif
