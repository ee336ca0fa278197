/* SPDX-License-Identifier: MIT */
/* conversion.h: converts traces from and to the formats of other programs.
 *
 * Each format has its own file of code.  Reading a format makes the text of a trace.  Writing a format consumes the events
 * of a trace, and counts those for which the format has no place.
 */
#ifndef WEIR_CLI_CONVERSION_H
#define WEIR_CLI_CONVERSION_H

#include <stdint.h>

#include <weir/trace.h>

#include "base/map.h"
#include "cli/common/lines.h"
#include "cli/common/sink.h"
#include "cli/formats/input.h"

struct conversion {
    const char *name;          /* the name of the source */
    struct lines lines;        /* the lines of the source */
    weir_trace_reader *reader; /* the reader of the source, if the source is a trace */
    struct input_device device;
    struct sink *sink; /* the target */
    uint64_t left_out; /* events for which the format has no place */
    uint64_t events;   /* events of the trace that were read */
    char message[LINES_MESSAGE_BYTES];
    int failed; /* errno of the target, or ENOMEM */
};

/* Writes text to the target.  An error is in `failed'. */
void convert_say(struct conversion *conversion, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Reads the next event of the trace.  Returns 1, or 0 at the end and on a failure, which sets the message. */
int convert_next(struct conversion *conversion, weir_trace_event *event);
/* Finds the columns by their names in the header, which is the next line.  The first `needed' names must be in the header.
 * The place of a name that is missing is SIZE_MAX.  Returns 1, or 0 with a message. */
int convert_columns(struct lines *lines, const char *const *names, size_t count, size_t needed,
                    size_t *columns);

struct conversion_format {
    const char *name;
    int (*is)(const char *first_line); /* NULL: each file that has no other format */
    /* Return 1 on success.  On failure they return 0, and set `failed', or a message: of the lines if the source is read, of
     * the conversion if the target is written. */
    int (*read)(struct conversion *conversion);
    int (*write)(struct conversion *conversion);
    const char *lacks; /* the events for which the format has no place */
};

enum { CONVERSION_FORMATS = 3, CONVERSION_OWN = 2 };
extern const struct conversion_format conversion_formats[CONVERSION_FORMATS];
/* Returns the format that the first line shows, and does not consume the line.  Returns NULL with a message if the line
 * cannot be read. */
const struct conversion_format *conversion_format_of(struct lines *lines);

int rmm_is(const char *first_line);
int rmm_read(struct conversion *conversion);
int rmm_write(struct conversion *conversion);
int minimalloc_is(const char *first_line);
int minimalloc_read(struct conversion *conversion);
int minimalloc_write(struct conversion *conversion);

#endif
