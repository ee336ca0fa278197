/* SPDX-License-Identifier: MIT */
/* input.h: the events of a trace, or of a file in another format (conversion.h), told apart by the first line.
 *
 * Must not know: what the events are for.
 */
#ifndef WEIR_CLI_INPUT_H
#define WEIR_CLI_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include <weir/trace.h>

#include "cli/common/lines.h"
#include "cli/common/source.h"

/* The device of the requests that were read; "" if the trace does not say. */
struct input_device {
    char name[16];
};

/* Stays where it is while it is open. */
struct input {
    struct lines lines;
    int converted; /* a temporary file with the trace that another format became; -1: it is a trace */
    weir_trace_reader *reader;
    struct input_device device;
};

/* "-" is standard input.  1, or 0 with a message. */
int input_open(struct input *input, const char *path, char *message, size_t message_bytes);
void input_close(struct input *input);

/* 1: a trace can be read from the file, or made of it. */
int input_is_trace(const char *path);

/* Why the next event of a trace could not be read, behind so many that could: a file without any may be no trace at
 * all, and is told what one is. */
void input_refuse(const weir_trace_reader *reader, weir_status status, uint64_t events,
                  char *message, size_t message_bytes);
/* Checks that an event is on the device of those before it, since a replay has one device, and other formats have no place
 * for a device.  Returns 1 if so, 0 with a message if not. */
int input_is_on_device(struct input_device *device, const weir_trace_reader *reader,
                       const weir_trace_event *event, char *message, size_t message_bytes);
/* 1, and it is told: the reader, which refused it, has read all that there is of a trace that ends too early. */
int input_is_cut(const char *name, const weir_trace_reader *reader, const struct source *source);

#endif
