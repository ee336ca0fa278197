/* SPDX-License-Identifier: MIT */
/* input.h: reads the events of a trace, or of a file in another format (conversion.h).  The first line of the file shows the
 * format.
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

/* An open file of events.  The struct must not move while the file is open. */
struct input {
    struct lines lines;
    int converted; /* a temporary file with the trace that another format became, or -1 */
    weir_trace_reader *reader;
    struct input_device device;
};

/* Opens a file; the path "-" is standard input.  Returns 1, or 0 with a message. */
int input_open(struct input *input, const char *path, char *message, size_t message_bytes);
void input_close(struct input *input);

/* Returns 1 if the file is a trace, or can be converted into one. */
int input_is_trace(const char *path);

/* Writes the reason why the next event of a trace cannot be read.  `events' were read before.  If there were none, the file
 * may be no trace at all, so the message says what a trace is. */
void input_refuse(const weir_trace_reader *reader, weir_status status, uint64_t events,
                  char *message, size_t message_bytes);
/* Checks that an event is on the device of those before it, since a replay has one device, and other formats have no place
 * for a device.  Returns 1 if so, 0 with a message if not. */
int input_is_on_device(struct input_device *device, const weir_trace_reader *reader,
                       const weir_trace_event *event, char *message, size_t message_bytes);
/* Checks whether the reader failed since the file of the trace ends too early.  Returns 1 if so, after a warning. */
int input_is_cut(const char *name, const weir_trace_reader *reader, const struct source *source);

#endif
