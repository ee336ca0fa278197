/* SPDX-License-Identifier: MIT */
/* source.h: the bytes of a trace, whatever they are packed in.
 *
 * Plain text, gzip or zstd, told apart by their first bytes, from a file or from standard input
 * ("-").  Must not know: what the text means.
 */
#ifndef WEIR_CLI_SOURCE_H
#define WEIR_CLI_SOURCE_H

#include <stddef.h>

struct source;

/* Opens a file.  NULL with the reason in `message`: missing, a directory, empty, unreadable. */
struct source *source_open(const char *path, char *message, size_t message_bytes);
/* A weir_trace_source (weir/trace.h); `context` is the struct source. */
ptrdiff_t source_read(void *context, char *buffer, size_t bytes, char *message,
                      size_t message_bytes);
/* After its last byte: it ends inside a line, or inside of what packs it. */
int source_is_cut(const struct source *source);
void source_close(struct source *source); /* NULL is fine */

#endif
