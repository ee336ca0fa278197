/* SPDX-License-Identifier: MIT */
/* input.h: opens a trace, or a file of another program that weir converts to a trace.  weir recognises the format of a
 * file by its first line.
 *
 * This file must not depend on the code that uses the trace.
 */
#ifndef WEIR_CLI_INPUT_H
#define WEIR_CLI_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <weir/trace.h>

/* ---- lines.c: text files ---- */

enum { LINES_FIELDS = 16, LINES_MESSAGE_BYTES = 512 };

struct lines {
    struct source *source;
    /* Text of the file.  The bytes from buffer[at] to buffer[filled - 1] have not been returned as lines yet. */
    char *buffer;
    size_t at, filled, room;
    int at_end;
    uint64_t number;            /* the number of the current line, from 1 on */
    char *fields[LINES_FIELDS]; /* the fields of the current line */
    size_t count;
    char message[LINES_MESSAGE_BYTES];
};

/* The names of a column in the header of a table: the name in newer files, then the names in older files. */
struct lines_column {
    const char *names[4];
};

/* Opens a file; a path of "-" means standard input.  Returns 1 on success.  On failure, writes the reason to
 * lines->message and returns 0. */
int lines_open(struct lines *lines, const char *path);
void lines_close(struct lines *lines);
/* Returns 1 if the file ended inside a line, a gzip member or a zstd frame, 0 if not.  For use at the end of the
 * file. */
int lines_is_truncated(const struct lines *lines);
/* Returns a copy of the beginning of the first line, without consuming the line.  On failure, writes the reason to
 * lines->message and returns NULL. */
const char *lines_peek(struct lines *lines);
/* Reads the next line that is not empty, and splits it at its commas.  Returns 1 on success, 0 at the end of the file.
 * On failure, writes the reason to lines->message and returns 0. */
int lines_next(struct lines *lines);
/* Reads bytes of the file after the current line, for weir_trace_reader_create(). */
ptrdiff_t lines_read(void *lines, char *buffer, size_t bytes, char *message, size_t message_bytes);

/* Returns 1 if the word is one of the names of the column, 0 if not. */
int lines_is_column(const struct lines_column *column, const char *word);
/* Reads the next line as the header of a table, and stores the position of columns[i] in at[i].  Returns 1 on success.
 * If a column is missing, writes the reason to lines->message and returns 0. */
int lines_find_columns(struct lines *lines, const struct lines_column *columns, size_t count,
                       size_t *at);
/* Returns 1 if the current line has a field for each column.  If a field is missing, writes the reason to
 * lines->message and returns 0. */
int lines_has_columns(struct lines *lines, const struct lines_column *columns, size_t count,
                      const size_t *at);

/* Writes a message such as "line 7: ..." to lines->message.  Returns 0. */
int lines_fail(struct lines *lines, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Reads a field as a whole number from 0 to `most', decimal or hexadecimal.  On failure, sets lines->message and
 * returns 0. */
int lines_number(struct lines *lines, size_t field, const char *what, uint64_t most, uint64_t *out);

/* ---- traces ---- */

/* A file format of another program that weir converts to a trace. */
struct format {
    /* Returns 1 if a file with this first line has the format, 0 if not. */
    int (*has_format)(const char *first_line);
    /* Converts the lines to the text of a trace.  Returns 1 on success.  On failure, writes the reason to
     * lines->message and returns 0.  The caller checks `trace' for write errors. */
    int (*write_trace)(struct lines *lines, FILE *trace);
};

extern const struct format format_rmm, format_minimalloc;

/* The device of all requests so far, or "" if the trace names no device. */
struct input_device {
    char name[16];
};

/* An open trace, or a file that was converted to a trace.  Must not be moved, because `reader' stores its address. */
struct input {
    struct lines lines;
    FILE *copy; /* the converted trace, in a temporary file, or NULL if the file is a trace */
    weir_trace_reader *reader;
    uint64_t events; /* the number of events so far */
    struct input_device device;
};

/* Opens a trace, or a file that can be converted to a trace; "-" means standard input.  Returns 1 on success.  On
 * failure, writes the reason to `message' and returns 0. */
int input_open(struct input *input, const char *path, char *message, size_t message_bytes);
void input_close(struct input *input);

/* Returns 1 if the file is a trace or can be converted to a trace, 0 if not. */
int input_is_trace(const char *path);

/* Reads the next event.  Sets event->operation to 0 at the end of the trace.  On failure, writes the reason to
 * `message' and returns 0. */
int input_next(struct input *input, const char *name, weir_trace_event *event, char *message,
               size_t message_bytes);
/* Checks that an event is on the same device as the earlier events.  Otherwise writes the reason to `message' and
 * returns 0. */
int input_is_on_device(struct input_device *device, const weir_trace_reader *reader,
                       const weir_trace_event *event, char *message, size_t message_bytes);

#endif
