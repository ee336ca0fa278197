/* SPDX-License-Identifier: MIT */
/* input.c: see input.h. */
#include "cli/formats/input.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/common/files.h"

/* Reads bytes of the converted trace, for weir_trace_reader_create(). */
static ptrdiff_t read_copy(void *context, char *buffer, size_t bytes, char *message,
                           size_t message_bytes) {
    struct input *input = context;
    size_t got = fread(buffer, 1, bytes, input->copy);

    if (got == 0 && ferror(input->copy)) {
        snprintf(message, message_bytes, "reading the temporary copy: %s", strerror(errno));
        return -1;
    }
    return (ptrdiff_t)got;
}

/* Converts the file to a trace in a temporary file.  Returns 1 on success.  On failure, writes the reason to
 * input->lines.message and returns 0. */
static int make_copy(struct input *input, const struct format *format) {
    struct lines *lines = &input->lines;

    input->copy = temporary_file();
    if (input->copy && !format->write_trace(lines, input->copy))
        return 0;
    if (input->copy && fflush(input->copy) == 0 && !ferror(input->copy) &&
        fseek(input->copy, 0, SEEK_SET) == 0)
        return 1;
    snprintf(lines->message, sizeof lines->message, "writing the temporary copy: %s",
             strerror(errno));
    return 0;
}

/* Sets input->reader; first converts the file to a trace if it has another format.  Returns 1 on success.  On failure,
 * writes the reason to input->lines.message and returns 0. */
static int make_reader(struct input *input) {
    const char *first = lines_peek(&input->lines);
    const struct format *format = !first                                ? NULL
                                  : format_rmm.has_format(first)        ? &format_rmm
                                  : format_minimalloc.has_format(first) ? &format_minimalloc
                                                                        : NULL;
    weir_status status;

    if (!first || (format && !make_copy(input, format)))
        return 0;
    status = format ? weir_trace_reader_create(read_copy, input, &input->reader)
                    : weir_trace_reader_create(lines_read, &input->lines, &input->reader);
    if (status != WEIR_OK)
        snprintf(input->lines.message, sizeof input->lines.message, "out of memory");
    return status == WEIR_OK;
}

int input_open(struct input *input, const char *path, char *message, size_t message_bytes) {
    int is_open;

    *input = (struct input){.copy = NULL};
    is_open = lines_open(&input->lines, path);
    if (is_open && make_reader(input))
        return 1;
    snprintf(message, message_bytes, "%s", input->lines.message);
    if (is_open)
        input_close(input);
    return 0;
}

void input_close(struct input *input) {
    weir_trace_reader_destroy(input->reader);
    if (input->copy)
        fclose(input->copy);
    lines_close(&input->lines);
}

int input_is_trace(const char *path) {
    struct input input;
    weir_trace_event event;
    char message[256];
    int is;

    if (!input_open(&input, path, message, sizeof message))
        return 0;
    is = weir_trace_next(input.reader, &event) == WEIR_OK;
    input_close(&input);
    return is;
}

int input_next(struct input *input, const char *name, weir_trace_event *event, char *message,
               size_t message_bytes) {
    weir_status status = weir_trace_next(input->reader, event);
    int is_bad = status == WEIR_E_PARSE;

    if (is_bad && input->events > 0 && lines_is_truncated(&input->lines)) {
        fprintf(stderr,
                "weir: %s: the file is incomplete: %s; weir uses the events before its end\n", name,
                weir_trace_message(input->reader));
        event->operation = 0;
        return 1;
    }
    if (status == WEIR_OK) {
        input->events++;
        return 1;
    }
    snprintf(
        message, message_bytes, "%s%s",
        is_bad ? weir_trace_message(input->reader) : weir_status_message(status),
        is_bad && input->events == 0
            ? "; expected a trace as `weir record' writes it, of lines such as \"12 a 1 4096 0\": "
              "see weir_trace(3); or a log of RMM, or a CSV file with the columns id, lower, "
              "upper and size: see weir-replay(1)"
            : "");
    return 0;
}

int input_is_on_device(struct input_device *device, const weir_trace_reader *reader,
                       const weir_trace_event *event, char *message, size_t message_bytes) {
    struct input_device event_device;

    if (event->operation != 'a' ||
        !weir_trace_field(reader, "dev", event_device.name, sizeof event_device.name) ||
        strcmp(event_device.name, device->name) == 0)
        return 1;
    if (!device->name[0]) {
        *device = event_device;
        return 1;
    }
    snprintf(message, message_bytes,
             "line %" PRIu64 ": the trace has requests on device %s and on device %s; expected one "
             "device.  Make a trace of each: awk '/^#/ || / m / || / dev=%s( |$)/' on the text of "
             "the trace leaves device %s",
             event->line, device->name, event_device.name, event_device.name, event_device.name);
    return 0;
}
