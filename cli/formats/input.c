/* SPDX-License-Identifier: MIT */
/* input.c: see input.h. */
#include "cli/formats/input.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/common/temporary.h"
#include "cli/formats/conversion.h"

/* Reads the trace that another format became, as a weir_trace_source does. */
static ptrdiff_t read_converted(void *context, char *buffer, size_t bytes, char *message,
                                size_t message_bytes) {
    struct input *input = context;
    ssize_t got;

    do
        got = read(input->converted, buffer, bytes);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        snprintf(message, message_bytes, "reading the temporary copy: %s", strerror(errno));
    return got;
}

static int convert(struct input *input, const char *path, const struct conversion_format *format,
                   char *message, size_t message_bytes) {
    struct conversion conversion = {.name = path, .lines = input->lines};
    int good = 0, copy;

    input->converted = temporary_file();
    copy = input->converted >= 0 ? fcntl(input->converted, F_DUPFD_CLOEXEC, 3) : -1;
    conversion.sink = copy >= 0 ? sink_on(copy, "") : NULL;
    if (conversion.sink) {
        good = format->read(&conversion);
        input->lines = conversion.lines;
        good &= sink_close(conversion.sink);
    }
    if (good && !conversion.failed && lseek(input->converted, 0, SEEK_SET) == 0)
        return 1;
    if (input->lines.message[0])
        snprintf(message, message_bytes, "%s", input->lines.message);
    else
        snprintf(message, message_bytes, "writing the temporary copy: %s",
                 strerror(conversion.failed ? conversion.failed : errno));
    return 0;
}

int input_open(struct input *input, const char *path, char *message, size_t message_bytes) {
    const struct conversion_format *format;
    int good;

    *input = (struct input){.converted = -1};
    if (!lines_open(&input->lines, path)) {
        snprintf(message, message_bytes, "%s", input->lines.message);
        return 0;
    }
    format = conversion_format_of(&input->lines);
    if (!format)
        snprintf(message, message_bytes, "%s", input->lines.message);
    good = format && (!format->read || convert(input, path, format, message, message_bytes));
    if (good) {
        good = (format->read ? weir_trace_reader_create(read_converted, input, &input->reader)
                             : weir_trace_reader_create(lines_read, &input->lines,
                                                        &input->reader)) == WEIR_OK;
        if (!good)
            snprintf(message, message_bytes, "out of memory");
    }
    if (!good)
        input_close(input);
    return good;
}

void input_close(struct input *input) {
    weir_trace_reader_destroy(input->reader);
    if (input->converted >= 0)
        close(input->converted);
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

void input_refuse(const weir_trace_reader *reader, weir_status status, uint64_t events,
                  char *message, size_t message_bytes) {
    int is_bad = status == WEIR_E_PARSE;

    snprintf(
        message, message_bytes, "%s%s",
        is_bad ? weir_trace_message(reader) : weir_status_message(status),
        is_bad && events == 0
            ? "; expected a trace as `weir record' writes it, of lines such as \"12 a 1 4096 0\": "
              "see weir_trace(3); or a log of RMM, or a CSV file with the columns id, lower, "
              "upper and size: see weir-convert(1)"
            : "");
}

int input_is_cut(const char *name, const weir_trace_reader *reader, const struct source *source) {
    if (!source_is_cut(source))
        return 0;
    fprintf(stderr, "weir: %s: the file is cut: %s; weir uses what is before\n", name,
            weir_trace_message(reader));
    return 1;
}

int input_is_on_device(struct input_device *device, const weir_trace_reader *reader,
                       const weir_trace_event *event, char *message, size_t message_bytes) {
    struct input_device its;

    if (event->operation != 'a' || !weir_trace_field(reader, "dev", its.name, sizeof its.name) ||
        strcmp(its.name, device->name) == 0)
        return 1;
    if (!device->name[0]) {
        *device = its;
        return 1;
    }
    snprintf(message, message_bytes,
             "line %" PRIu64 ": the trace has requests on device %s and on device %s; expected one "
             "device.  Make a trace of each: awk '/^#/ || / m / || / dev=%s( |$)/' on the text of "
             "the trace leaves device %s",
             event->line, device->name, its.name, its.name, its.name);
    return 0;
}
