/* SPDX-License-Identifier: MIT */
/* input.h: opens a trace, or a file of another program from which weir makes a trace.  The first line of a file shows
 * its format.
 *
 * This file must not know the use of the events.
 */
#ifndef WEIR_CLI_INPUT_H
#define WEIR_CLI_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <weir/trace.h>

/* ---- lines.c: reads a text file (plain, gzip or zstd) as lines, and lines as fields between commas ---- */

enum { LINES_FIELDS = 16, LINES_MESSAGE_BYTES = 512 };

struct lines {
    struct source *source;
    /* The bytes [at, filled) were read from the file, and are not returned as lines yet. */
    char *buffer;
    size_t at, filled, room;
    int at_end;
    uint64_t number; /* the number of the last line that was returned */
    char *fields[LINES_FIELDS];
    size_t count; /* the number of fields of the last line */
    char message[LINES_MESSAGE_BYTES];
};

/* A column of a table, by the names that a header may give it, the newest first. */
struct lines_column {
    const char *names[4];
};

/* Opens a file; "-" is standard input.  Returns 1 on success, 0 with a message on failure. */
int lines_open(struct lines *lines, const char *path);
void lines_close(struct lines *lines);
/* Must be called after the last byte was read.  Returns 1 if the file ends inside a line, a gzip member or a zstd
 * frame, 0 if not. */
int lines_is_cut(const struct lines *lines);
/* Copies the beginning of the first line, and leaves the line in place.
 * Returns NULL with a message if the file cannot be read. */
const char *lines_peek(struct lines *lines);
/* Reads the next line that is not empty, and splits the line at its commas.
 * Returns 1 on success, 0 at the end of the file, 0 with a message on failure. */
int lines_cut(struct lines *lines);
/* Reads the bytes that lines_cut() has not returned, as a weir_trace_source. */
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

/* ---- traces ---- */

/* The format of another program. */
struct format {
    /* Returns 1 if the first line of a file shows that the file has this format, 0 if not. */
    int (*has_format)(const char *first_line);
    /* Reads the lines and writes their events to `trace' as the text of a trace.
     * Returns 1 on success, 0 with a message in `lines' on failure.  Errors of `trace' are left to the caller. */
    int (*write_trace)(struct lines *lines, FILE *trace);
};

extern const struct format format_rmm, format_minimalloc;

/* The device of the requests that were read, or "" if the trace does not say. */
struct input_device {
    char name[16];
};

/* An open file.  The reader has a pointer to the struct, so the struct must not move. */
struct input {
    struct lines lines;
    FILE *copy; /* the temporary file with the trace made from another format, or NULL */
    weir_trace_reader *reader;
    uint64_t events; /* the number of events that were read */
    struct input_device device;
};

/* Opens the file; "-" is standard input.  Returns 1 on success, 0 with a message on failure. */
int input_open(struct input *input, const char *path, char *message, size_t message_bytes);
void input_close(struct input *input);

/* Returns 1 if a trace can be read from the file or made from the file, 0 if not. */
int input_is_trace(const char *path);

/* Reads the next event of the trace of that name.  The operation is 0 at the end.  It is also 0 where the file is cut,
 * which a message on standard error reports.  Returns 1 on success, 0 with a message, which also says what weir expects
 * if the first event cannot be read. */
int input_next(struct input *input, const char *name, weir_trace_event *event, char *message,
               size_t message_bytes);
/* Checks that an event is on the device of the earlier events, since a replay has one device.  Returns 1 if so, else 0
 * with a message. */
int input_is_on_device(struct input_device *device, const weir_trace_reader *reader,
                       const weir_trace_event *event, char *message, size_t message_bytes);

#endif
