/* SPDX-License-Identifier: MIT */
/* input.h: opens a trace, or a file of another format (format.h).  The first line of the file shows its format.
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
#include "cli/common/source.h"

/* The device of the requests that were read; "" if the trace does not say. */
struct input_device {
    char name[16];
};

/* An open file.  The reader has a pointer to the struct, so the struct must not move. */
struct input {
    struct lines lines;
    FILE *copy; /* the temporary file with the trace made from another format, or NULL */
    weir_trace_reader *reader;
    struct input_device device;
};

/* Opens the file; "-" is standard input.  Returns 1 on success, 0 with a message on failure. */
int input_open(struct input *input, const char *path, char *message, size_t message_bytes);
void input_close(struct input *input);

/* Returns 1 if a trace can be read from the file or made from the file, 0 if not. */
int input_is_trace(const char *path);

/* Writes why the reader could not read an event, after `events' others.  If there were no others, the file may be no
 * trace, and the message also says what weir expects. */
void input_refuse(const weir_trace_reader *reader, weir_status status, uint64_t events,
                  char *message, size_t message_bytes);
/* Checks that an event is on the device of those before it, since a replay has one device.  Returns 1 if so, 0 with a
 * message if not. */
int input_is_on_device(struct input_device *device, const weir_trace_reader *reader,
                       const weir_trace_event *event, char *message, size_t message_bytes);
/* Returns 1, with a message on standard error, if the reader failed because the trace ends too early; 0 otherwise. */
int input_is_cut(const char *name, const weir_trace_reader *reader, const struct source *source);

#endif
