/* SPDX-License-Identifier: MIT */
/* trace_read.c: reads allocation traces, version 1 (weir/trace.h).
 *
 * The program's source function fills one buffer, in which the reader parses each line without a copy.  A line must fit
 * into the buffer, unless it is a comment.  A map of the live ids shows whether the trace is consistent. */
#include <weir/trace.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/result.h"
#include "base/text.h"

enum { BUFFER_BYTES = 1 << 17, MESSAGE_BYTES = 320, SHOWN_BYTES = 40 };

/* The largest id in a trace.  A key in the map of live blocks is an id plus 1, and must not overflow. */
#define MOST_ID (UINT64_MAX - 1)
#define MOST_BYTES (INT64_MAX < UINTPTR_MAX ? (uint64_t)INT64_MAX : (uint64_t)UINTPTR_MAX)

struct weir_trace_reader {
    weir_trace_source source;
    void *context;
    struct weir_map live; /* maps each live id, plus 1 since no key is 0, to its bytes */
    uint64_t line;        /* the number of the last line read */
    uint64_t events;
    uint64_t last_us;   /* the time of the last event in microseconds */
    weir_status status; /* the status of the first error, which later calls return, or WEIR_OK */
    int at_end;         /* set if the source of the trace has no more text */
    char *next;         /* the first character that is not parsed yet */
    char *filled;
    const char *fields; /* the key=value fields of the last event, up to fields_end */
    const char *fields_end;
    weir_trace_comment comment; /* the program's function for comments, or NULL */
    void *comment_context;
    char message[MESSAGE_BYTES];
    char buffer[BUFFER_BYTES];
};

/* The part of a line that is not parsed yet, from `at` to `end`, without the newline. */
struct cursor {
    weir_trace_reader *reader;
    const char *at;
    const char *end;
};

weir_status weir_trace_reader_create(weir_trace_source source, void *context,
                                     weir_trace_reader **reader) {
    weir_trace_reader *made;

    if (!source || !reader)
        return weir__without_driver(WEIR_E_INVALID);
    made = malloc(sizeof *made);
    if (!made)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    memset(made, 0, offsetof(weir_trace_reader, buffer));
    made->source = source;
    made->context = context;
    made->next = made->filled = made->buffer;
    *reader = made;
    return WEIR_OK;
}

void weir_trace_reader_destroy(weir_trace_reader *reader) {
    if (!reader)
        return;
    weir__map_clear(&reader->live);
    free(reader);
}

const char *weir_trace_message(const weir_trace_reader *reader) {
    return reader ? reader->message : "";
}

/* ---------------------------------------------------------------- errors ---- */

/* Sets the status E_PARSE and a message that begins with the number of the line.  Returns 0. */
static __attribute__((format(printf, 2, 3))) int parse_error(weir_trace_reader *reader,
                                                             const char *format, ...) {
    va_list arguments;
    int used =
        snprintf(reader->message, sizeof reader->message, "line %" PRIu64 ": ", reader->line);

    va_start(arguments, format);
    vsnprintf(reader->message + used, sizeof reader->message - (size_t)used, format, arguments);
    va_end(arguments);
    reader->status = WEIR_E_PARSE;
    return 0;
}

/* Copies text of the trace for a message, cut if it is long, with "?" for characters that are not printable. */
static const char *printable(char text[SHOWN_BYTES + 4], const char *from, size_t bytes) {
    size_t i;

    for (i = 0; i < bytes && i < SHOWN_BYTES; i++)
        text[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
    memcpy(text + i, bytes > SHOWN_BYTES ? "..." : "", bytes > SHOWN_BYTES ? 4 : 1);
    return text;
}

/* ----------------------------------------------------------------- lines ---- */

/* Moves the unparsed text to the start of the buffer, and reads more text behind it.  Returns 1 on success, else 0. */
static int refill(weir_trace_reader *reader) {
    size_t kept = (size_t)(reader->filled - reader->next);
    char text[192] = "", behind[40] = "";
    ptrdiff_t got;

    memmove(reader->buffer, reader->next, kept);
    reader->next = reader->buffer;
    reader->filled = reader->buffer + kept;
    got = reader->source(reader->context, reader->filled, BUFFER_BYTES - kept, text, sizeof text);
    if (got < 0) {
        text[sizeof text - 1] = '\0';
        if (reader->line > 0)
            snprintf(behind, sizeof behind, "behind line %" PRIu64 ": ", reader->line);
        snprintf(reader->message, sizeof reader->message, "%s%s", behind,
                 text[0] ? text : "the source of the trace failed");
        reader->status = WEIR_E_PARSE;
        return 0;
    }
    reader->at_end = got == 0;
    reader->filled += got;
    return 1;
}

/* Skips the rest of a comment that does not fit into the buffer.  Returns 1 on success, 0 on an error. */
static int skip_long_comment(weir_trace_reader *reader) {
    for (;;) {
        char *newline = memchr(reader->next, '\n', (size_t)(reader->filled - reader->next));

        if (newline) {
            reader->next = newline; /* the rest of the comment is then an empty line */
            return 1;
        }
        /* Keeps one character, so that read_line() reports a last line without a newline if the trace ends here. */
        reader->next = reader->filled - 1;
        if (reader->at_end)
            return 1;
        if (!refill(reader))
            return 0;
    }
}

/* Reads the next line.  Returns 1 and writes it to *line, or returns 0 at the end of the trace or on an error. */
static int read_line(weir_trace_reader *reader, struct cursor *line) {
    size_t searched = 0;

    for (;;) {
        size_t there = (size_t)(reader->filled - reader->next);
        char *newline = memchr(reader->next + searched, '\n', there - searched);

        if (newline) {
            reader->line++;
            *line = (struct cursor){reader, reader->next, newline};
            reader->next = newline + 1;
            if (line->end > line->at && line->end[-1] == '\r')
                line->end--;
            return 1;
        }
        searched = there;
        if (reader->at_end) {
            if (there == 0)
                return 0;
            reader->line++;
            return parse_error(reader, "the last line has no newline: the trace is truncated");
        }
        if (there == BUFFER_BYTES) {
            if (*reader->next != '#') {
                reader->line++;
                return parse_error(reader, "longer than %d bytes", BUFFER_BYTES);
            }
            if (!skip_long_comment(reader))
                return 0;
            searched = 0;
        } else if (!refill(reader)) {
            return 0;
        }
    }
}

/* ---------------------------------------------------------------- fields ---- */

static int is_blank(char c) {
    return c == ' ' || c == '\t';
}

static void skip_blanks(struct cursor *line) {
    while (line->at < line->end && is_blank(*line->at))
        line->at++;
}

/* Returns the end of the field at the cursor.  At the end of the line the field is empty. */
static const char *field_end(const struct cursor *line) {
    const char *end = line->at;

    while (end < line->end && !is_blank(*end))
        end++;
    return end;
}

/* Reports that the field `what` at the cursor, such as "bytes", is not a valid number.  Returns 0. */
static int number_error(const struct cursor *line, const char *what, const char *why) {
    char text[SHOWN_BYTES + 4];

    if (line->at == line->end)
        return parse_error(line->reader, "%s is missing", what);
    return parse_error(line->reader, "%s \"%s\" %s", what,
                       printable(text, line->at, (size_t)(field_end(line) - line->at)), why);
}

/* Reads a whole number up to `most`, and skips the blanks after it.  Returns 1 on success, 0 on an error. */
static int read_field_number(struct cursor *line, const char *what, uint64_t most, uint64_t *out) {
    const char *at = line->at;
    int found = weir__digits_read(&at, most, out);

    if (found < 0)
        return number_error(line, what, "is too large");
    if (found == 0 && *at == '-')
        return number_error(line, what, "is negative");
    if (found == 0 || (at < line->end && !is_blank(*at)))
        return number_error(line, what, "is not a whole number");
    line->at = at;
    skip_blanks(line);
    return 1;
}

/* Reads a label, which is one word.  Cuts a long label after a UTF-8 character.  Returns 1 on success, else 0. */
static int read_label(struct cursor *line, char label[WEIR_TRACE_LABEL_BYTES]) {
    const char *end = field_end(line);
    size_t bytes = (size_t)(end - line->at);

    if (bytes == 0)
        return parse_error(line->reader, "label is missing");
    if (bytes > WEIR_TRACE_LABEL_BYTES - 1) {
        bytes = WEIR_TRACE_LABEL_BYTES - 1;
        while (bytes > 1 && ((unsigned char)line->at[bytes] & 0xc0u) == 0x80u)
            bytes--;
    }
    memcpy(label, line->at, bytes);
    label[bytes] = '\0';
    line->at = end;
    skip_blanks(line);
    return 1;
}

/* Checks that each remaining field of the line has the form key=value.  Returns 1 on success, 0 on an error. */
static int check_rest(struct cursor *line) {
    line->reader->fields = line->at;
    line->reader->fields_end = line->end;
    while (line->at < line->end) {
        const char *end = field_end(line);
        const char *equals = memchr(line->at, '=', (size_t)(end - line->at));
        char text[SHOWN_BYTES + 4];

        if (!equals || equals == line->at)
            return parse_error(line->reader, "\"%s\" is one field too many, and not key=value",
                               printable(text, line->at, (size_t)(end - line->at)));
        line->at = end;
        skip_blanks(line);
    }
    return 1;
}

/* ---------------------------------------------------------------- events ---- */

/* Reads the fields of the operation, such as id and bytes of an allocation.  Returns 1 on success, 0 on an error. */
static int read_operation(struct cursor *line, weir_trace_event *event) {
    switch (event->operation) {
    case 'a':
    case 'f':
    case 'x':
        return read_field_number(line, "id", MOST_ID, &event->id) &&
               read_field_number(line, "bytes", MOST_BYTES, &event->bytes) &&
               read_field_number(line, "stream", MOST_ID, &event->stream);
    case 'u':
        return read_field_number(line, "id", MOST_ID, &event->id) &&
               read_field_number(line, "stream", MOST_ID, &event->stream);
    case 'w':
        return read_field_number(line, "stream", MOST_ID, &event->stream) &&
               read_field_number(line, "on_stream", MOST_ID, &event->on_stream);
    default:
        return read_label(line, event->label);
    }
}

static int read_event(struct cursor *line, weir_trace_event *event) {
    const char *end;

    event->line = line->reader->line;
    if (!read_field_number(line, "time", UINT64_MAX, &event->time_us))
        return 0;
    end = field_end(line);
    if (end - line->at != 1 || !memchr("afuwxm", *line->at, 6)) {
        char text[SHOWN_BYTES + 4];

        if (end == line->at)
            return parse_error(line->reader, "operation is missing");
        return parse_error(line->reader, "unknown operation \"%s\": a, f, u, w, x and m are known",
                           printable(text, line->at, (size_t)(end - line->at)));
    }
    event->operation = *line->at;
    line->at = end;
    skip_blanks(line);
    return read_operation(line, event) && check_rest(line);
}

/* Checks an event against earlier ones, for example that a freed block is live.  Returns 1 on success, else 0. */
static int check_order(weir_trace_reader *reader, const weir_trace_event *event) {
    uint64_t key = event->id + 1;
    uintptr_t bytes;

    if (event->time_us < reader->last_us)
        return parse_error(reader,
                           "time %" PRIu64 " is before %" PRIu64
                           ", that of the event before; expected "
                           "events in the order of their times",
                           event->time_us, reader->last_us);
    reader->last_us = event->time_us;
    switch (event->operation) {
    case 'a':
        if (weir__map_get(&reader->live, key, NULL))
            return parse_error(reader, "id %" PRIu64 " is allocated again while it is live",
                               event->id);
        if (!weir__map_put(&reader->live, key, (uintptr_t)event->bytes)) {
            reader->status = WEIR_E_HOST_MEMORY;
            return 0;
        }
        return 1;
    case 'f':
        if (!weir__map_remove(&reader->live, key, &bytes))
            return parse_error(reader, "free of id %" PRIu64 ", which is not live", event->id);
        if (bytes != event->bytes)
            return parse_error(
                reader, "free of id %" PRIu64 " with %" PRIu64 " byte%s, allocated with %" PRIu64,
                event->id, event->bytes, weir__plural(event->bytes), (uint64_t)bytes);
        return 1;
    case 'u':
        if (!weir__map_get(&reader->live, key, NULL))
            return parse_error(reader, "use of id %" PRIu64 ", which is not live", event->id);
        return 1;
    default:
        return 1;
    }
}

/* Checks the version in a first line "# weir-trace N".  Returns 1 on success, 0 on an error. */
static int check_version(const struct cursor *line) {
    static const char words[] = "weir-trace";
    struct cursor rest = {line->reader, line->at + 1, line->end};
    char text[SHOWN_BYTES + 4];
    const char *end;

    skip_blanks(&rest);
    end = field_end(&rest);
    if ((size_t)(end - rest.at) != sizeof words - 1 ||
        memcmp(rest.at, words, sizeof words - 1) != 0)
        return 1;
    rest.at = end;
    skip_blanks(&rest);
    end = field_end(&rest);
    if (end - rest.at == 1 && *rest.at == '1')
        return 1;
    return parse_error(line->reader, "trace version \"%s\"; this program reads version 1",
                       printable(text, rest.at, (size_t)(end - rest.at)));
}

/* Passes a comment to the program's function.  Writes a NUL behind the comment during the call. */
static void pass_comment(const struct cursor *line) {
    struct cursor rest = {line->reader, line->at + 1, line->end};
    char *end = (char *)(uintptr_t)line->end, behind = *end;

    if (!line->reader->comment)
        return;
    skip_blanks(&rest);
    *end = '\0';
    line->reader->comment(line->reader->comment_context, rest.at);
    *end = behind;
}

/* Reads the next line with an event, and passes comments before it to the program.  Returns 1 on success, else 0. */
static int read_event_line(weir_trace_reader *reader, struct cursor *line) {
    while (read_line(reader, line)) {
        if (line->at < line->end && *line->at == '#') {
            if (reader->line == 1 && !check_version(line))
                return 0;
            pass_comment(line);
            continue;
        }
        skip_blanks(line);
        if (line->at == line->end)
            continue;
        if (memchr(line->at, '\0', (size_t)(line->end - line->at)))
            return parse_error(reader, "a NUL byte: this is not a trace, or a damaged one");
        return 1;
    }
    return 0;
}

weir_status weir_trace_next(weir_trace_reader *reader, weir_trace_event *event) {
    weir_trace_event found;
    struct cursor line;

    if (!reader || !event)
        return weir__without_driver(WEIR_E_INVALID);
    if (reader->status != WEIR_OK)
        return weir__without_driver(reader->status);
    memset(&found, 0, offsetof(weir_trace_event, label) + 1);
    reader->fields = reader->fields_end = NULL;
    if (read_event_line(reader, &line)) {
        if (read_event(&line, &found) && check_order(reader, &found))
            reader->events++;
    } else if (reader->status == WEIR_OK && reader->events == 0) {
        parse_error(reader, "the trace ends without any event");
    }
    if (reader->status == WEIR_OK)
        *event = found;
    return weir__without_driver(reader->status);
}

int weir_trace_field(const weir_trace_reader *reader, const char *key, char *value,
                     size_t value_bytes) {
    size_t length = key ? strlen(key) : 0;
    const char *at = reader ? reader->fields : NULL;

    if (value && value_bytes)
        value[0] = '\0';
    if (!at || !length || reader->status != WEIR_OK)
        return 0;
    while (at < reader->fields_end) {
        struct cursor field = {NULL, at, reader->fields_end};
        size_t bytes = (size_t)(field_end(&field) - at);

        if (bytes > length && at[length] == '=' && memcmp(at, key, length) == 0) {
            bytes -= length + 1;
            if (value && value_bytes) {
                bytes = bytes < value_bytes ? bytes : value_bytes - 1;
                memcpy(value, at + length + 1, bytes);
                value[bytes] = '\0';
            }
            return 1;
        }
        field.at += bytes;
        skip_blanks(&field);
        at = field.at;
    }
    return 0;
}

void weir_trace_comments(weir_trace_reader *reader, weir_trace_comment comment, void *context) {
    if (!reader)
        return;
    reader->comment = comment;
    reader->comment_context = context;
}
