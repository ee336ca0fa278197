/* SPDX-License-Identifier: MIT */
/* lines.h: the lines of a text file, packed or not, and the fields of those that are comma-separated.
 *
 * Must not know: what they mean.
 */
#ifndef WEIR_CLI_LINES_H
#define WEIR_CLI_LINES_H

#include <stddef.h>
#include <stdint.h>

enum { LINES_FIELDS = 16, LINES_MESSAGE_BYTES = 512 };

struct lines {
    struct source *source;
    char *buffer; /* [at, filled) is not taken yet */
    size_t at, filled, room;
    int at_end;
    uint64_t number; /* of the line taken last */
    char *fields[LINES_FIELDS];
    size_t count; /* of its fields */
    char message[LINES_MESSAGE_BYTES];
};

/* "-" is standard input.  1, or 0 with a message. */
int lines_open(struct lines *lines, const char *path);
void lines_close(struct lines *lines);
/* The next line, without its end.  NULL: there is none, or it cannot be read, which a message tells. */
char *lines_next(struct lines *lines);
/* How the first line begins, which stays where it is.  NULL: it cannot be read, which a message tells. */
const char *lines_peek(struct lines *lines);
/* The next line that is not empty, cut at its commas.  1, or 0 as above. */
int lines_cut(struct lines *lines);
/* What is left, as a weir_trace_source. */
ptrdiff_t lines_read(void *lines, char *buffer, size_t bytes, char *message, size_t message_bytes);

/* "line 7: ..." as the message; 0. */
int lines_refuse(struct lines *lines, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A field of the line as a whole number, base 10, or 16 behind 0x.  1, or 0 with a message that calls it `what'. */
int lines_number(struct lines *lines, size_t field, const char *what, uint64_t most, uint64_t *out);

#endif
