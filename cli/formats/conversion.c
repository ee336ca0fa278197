/* SPDX-License-Identifier: MIT */
/* conversion.c: see conversion.h. */
#include "cli/formats/conversion.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct conversion_format conversion_formats[CONVERSION_FORMATS] = {
    {"rmm", rmm_is, rmm_read, rmm_write, "marks, uses and waits"},
    {"minimalloc", minimalloc_is, minimalloc_read, minimalloc_write,
     "streams, marks, uses, waits and failed requests"},
    [CONVERSION_OWN] = {"weir", NULL, NULL, NULL, NULL},
};

const struct conversion_format *conversion_format_of(struct lines *lines) {
    const char *first = lines_peek(lines);

    for (size_t i = 0; first && i < CONVERSION_FORMATS; i++)
        if (!conversion_formats[i].is || conversion_formats[i].is(first))
            return &conversion_formats[i];
    return NULL;
}

void convert_say(struct conversion *conversion, const char *format, ...) {
    char text[512];
    va_list arguments;
    int bytes;

    va_start(arguments, format);
    bytes = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!conversion->failed && !sink_write(conversion->sink, text, (size_t)bytes))
        conversion->failed = errno ? errno : EIO;
}

int convert_next(struct conversion *conversion, weir_trace_event *event) {
    weir_status status = weir_trace_next(conversion->reader, event);

    if (status == WEIR_OK) {
        conversion->events++;
        return event->operation != 0 &&
               input_is_on_device(&conversion->device, conversion->reader, event,
                                  conversion->message, sizeof conversion->message);
    }
    if (status == WEIR_E_PARSE && conversion->events > 0 &&
        input_is_cut(conversion->name, conversion->reader, conversion->lines.source))
        return 0;
    snprintf(conversion->message, sizeof conversion->message, "%s",
             status == WEIR_E_PARSE ? weir_trace_message(conversion->reader)
                                    : weir_status_message(status));
    return 0;
}

int convert_columns(struct lines *lines, const char *const *names, size_t count, size_t needed,
                    size_t *columns) {
    if (!lines_cut(lines))
        return lines->message[0] ? 0 : lines_refuse(lines, "there is no header");
    for (size_t i = 0; i < count; i++) {
        columns[i] = SIZE_MAX;
        for (size_t k = 0; k < lines->count; k++)
            if (strcmp(lines->fields[k], names[i]) == 0)
                columns[i] = k;
        if (columns[i] == SIZE_MAX && i < needed)
            return lines_refuse(lines, "column \"%s\" is missing", names[i]);
    }
    return 1;
}
