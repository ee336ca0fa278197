/* SPDX-License-Identifier: MIT */
/* source.h: the bytes of a trace: plain text, gzip or zstd, which differ in their first bytes.
 *
 * Must not know: what the text means.
 */
#ifndef WEIR_CLI_SOURCE_H
#define WEIR_CLI_SOURCE_H

#include <stddef.h>

struct source;

/* Opens a file; "-" is standard input.  Returns NULL with a message if the file is missing, a directory, empty or cannot
 * be read. */
struct source *source_open(const char *path, char *message, size_t message_bytes);
/* Reads bytes as a weir_trace_source (weir/trace.h); `context` is the struct source. */
ptrdiff_t source_read(void *context, char *buffer, size_t bytes, char *message,
                      size_t message_bytes);
/* Is called after the last byte.  Returns 1 if the file ends inside a line, a gzip member or a zstd frame, 0 if not. */
int source_is_cut(const struct source *source);
/* Closes the file.  Does nothing if the source is NULL. */
void source_close(struct source *source);

#endif
