/* SPDX-License-Identifier: MIT */
/* lines.h: the lines of a text file, plain, gzip or zstd, which differ in their first bytes, and the fields of lines that are comma-separated.
 *
 * Must not know: what the lines mean.
 */
#ifndef WEIR_CLI_LINES_H
#define WEIR_CLI_LINES_H

#include <stddef.h>
#include <stdint.h>

enum { LINES_FIELDS = 16, LINES_MESSAGE_BYTES = 512 };

struct lines {
    struct source *source;
    char *
        buffer; /* bytes [at, filled) were read from the source, and no line of them was returned */
    size_t at, filled, room;
    int at_end;
    uint64_t number; /* of the line that was returned last */
    char *fields[LINES_FIELDS];
    size_t count; /* of the fields of that line */
    char message[LINES_MESSAGE_BYTES];
};

/* A column of a table, by the names that a header may give it, the newest first. */
struct lines_column {
    const char *names[4];
};

/* Opens a file; "-" is standard input.  Returns 1 on success, 0 with a message on failure. */
int lines_open(struct lines *lines, const char *path);
void lines_close(struct lines *lines);
/* Is called after the last byte.  Returns 1 if the file ends inside a line, a gzip member or a zstd frame, 0 if not. */
int lines_is_cut(const struct lines *lines);
/* Copies the beginning of the first line, and leaves the line in place.
 * Returns NULL with a message if the file cannot be read. */
const char *lines_peek(struct lines *lines);
/* Reads the next line that is not empty, and splits the line at its commas.
 * Returns 1 on success, 0 at the end of the file, 0 with a message on failure. */
int lines_cut(struct lines *lines);
/* Reads the bytes that no line was made of, as a weir_trace_source. */
ptrdiff_t lines_read(void *lines, char *buffer, size_t bytes, char *message, size_t message_bytes);

/* Returns 1 if the word is a name of the column, 0 if not. */
int lines_is_column(const struct lines_column *column, const char *word);
/* Reads the header, which is the next line, and writes the field of each column to `at'.
 * Returns 1 on success, 0 with a message if a column is missing. */
int lines_find_columns(struct lines *lines, const struct lines_column *columns, size_t count,
                       size_t *at);
/* Returns 1 if the line has a field for each column, 0 with a message if not. */
int lines_has_columns(struct lines *lines, const struct lines_column *columns, size_t count,
                      const size_t *at);

/* Writes "line 7: ..." as the message.  Returns 0. */
int lines_refuse(struct lines *lines, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Reads a field of the line as a whole number, of base 10, or of base 16 behind 0x.
 * Returns 1 on success, 0 with a message that calls the field `what'. */
int lines_number(struct lines *lines, size_t field, const char *what, uint64_t most, uint64_t *out);

#endif
