/* SPDX-License-Identifier: MIT */
/* sink.h: a file that is written, packed as its name ends: .gz, .zst, else plain.
 *
 * Must not know: what is written.
 */
#ifndef WEIR_CLI_SINK_H
#define WEIR_CLI_SINK_H

#include <stddef.h>

struct sink;

/* Whether a file of that name can be packed by what this was built with. */
int sink_can(const char *like);
/* On an open file, which it closes, here where it cannot be.  How the file is packed says `like', the name that it is one
 * of and can be packed.  NULL: errno tells why. */
struct sink *sink_on(int file, const char *like);
/* 1, or 0 and errno.  An error is for good. */
int sink_write(struct sink *sink, const char *text, size_t bytes);
/* What was written so far can be read; in a packed file that is so once a second, if this is called as often. */
int sink_flush(struct sink *sink);
/* Ends the file: 1, or 0 if not all of it was written. */
int sink_close(struct sink *sink);

#endif
