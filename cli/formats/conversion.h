/* SPDX-License-Identifier: MIT */
/* conversion.h: traces from and to the formats of others.
 *
 * Each format has a file of its own.  Reading one makes the text of a trace; writing one takes the events
 * of a trace, and says what it has no place for.
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
    const char *name;          /* of the file that it comes from */
    struct lines lines;        /* of that */
    weir_trace_reader *reader; /* if that is a trace */
    struct input_device device;
    struct sink *sink; /* where it goes */
    uint64_t left_out; /* events for which there is no place */
    uint64_t events;   /* of the trace that were read */
    char message[LINES_MESSAGE_BYTES];
    int failed; /* errno: it cannot be written, or no memory */
};

/* A line, or several; what fails is seen at the end. */
void convert_say(struct conversion *conversion, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The next event of the trace: 1; 0: the end, or a message. */
int convert_next(struct conversion *conversion, weir_trace_event *event);
/* Where columns are, by their names in the header, the line that comes next; the names before `needed' must
 * be there.  Those that are not are SIZE_MAX.  1, or 0 with a message. */
int convert_columns(struct lines *lines, const char *const *names, size_t count, size_t needed,
                    size_t *columns);

struct conversion_format {
    const char *name;
    int (*is)(const char *first_line); /* NULL: whatever is no other */
    /* 1, or 0: `failed', or a message in lines (reading) or in the conversion (writing). */
    int (*read)(struct conversion *conversion);
    int (*write)(struct conversion *conversion);
    const char *lacks; /* what it has no place for */
};

enum { CONVERSION_FORMATS = 3, CONVERSION_OWN = 2 };
extern const struct conversion_format conversion_formats[CONVERSION_FORMATS];
/* By the first line, which stays where it is.  NULL: it cannot be read, which a message tells. */
const struct conversion_format *conversion_format_of(struct lines *lines);

int rmm_is(const char *first_line);
int rmm_read(struct conversion *conversion);
int rmm_write(struct conversion *conversion);
int minimalloc_is(const char *first_line);
int minimalloc_read(struct conversion *conversion);
int minimalloc_write(struct conversion *conversion);

#endif
