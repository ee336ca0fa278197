/* SPDX-License-Identifier: MIT */
/* input.h: opens a trace, or a file of another program from which weir makes a trace.  The first line of the file shows its
 * format.
 *
 * Must not know: what the events are for.
 */
#ifndef WEIR_CLI_INPUT_H
#define WEIR_CLI_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <weir/trace.h>

#include "cli/common/lines.h"

/* The format of another program. */
struct format {
    /* Returns 1 if the first line of a file shows that the file has this format, 0 if not. */
    int (*has_format)(const char *first_line);
    /* Reads the lines and writes their events to `trace' as the text of a trace.
     * Returns 1 on success, 0 with a message in `lines' on failure.  Errors of `trace' are left to the caller. */
    int (*write_trace)(struct lines *lines, FILE *trace);
};

extern const struct format format_rmm, format_minimalloc;

/* The device of the requests that were read; "" if the trace does not say. */
struct input_device {
    char name[16];
};

/* An open file.  The reader has a pointer to the struct, so the struct must not move. */
struct input {
    struct lines lines;
    FILE *copy; /* the temporary file with the trace made from another format, or NULL */
    weir_trace_reader *reader;
    uint64_t events; /* read so far */
    struct input_device device;
};

/* Opens the file; "-" is standard input.  Returns 1 on success, 0 with a message on failure. */
int input_open(struct input *input, const char *path, char *message, size_t message_bytes);
void input_close(struct input *input);

/* Returns 1 if a trace can be read from the file or made from the file, 0 if not. */
int input_is_trace(const char *path);

/* Reads the next event of the trace of that name.  The operation of the event is 0 at the end, or where the file is cut, which
 * a message on standard error tells.  Returns 1, or 0 with a message; if the first event cannot be read, the file may be no
 * trace, and the message also says what weir expects. */
int input_next(struct input *input, const char *name, weir_trace_event *event, char *message,
               size_t message_bytes);
/* Checks that an event is on the device of those before it, since a replay has one device.  Returns 1 if so, 0 with a
 * message if not. */
int input_is_on_device(struct input_device *device, const weir_trace_reader *reader,
                       const weir_trace_event *event, char *message, size_t message_bytes);

#endif
