/* SPDX-License-Identifier: MIT */
/* lines.c: see lines.h. */
#include "cli/common/lines.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/help.h"
#include "cli/common/source.h"

enum { FIRST_BYTES = 1 << 16, MOST_BYTES = 1 << 20 };

int lines_refuse(struct lines *lines, const char *format, ...) {
    int used = snprintf(lines->message, sizeof lines->message, "line %" PRIu64 ": ", lines->number);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(lines->message + used, sizeof lines->message - (size_t)used, format, arguments);
    va_end(arguments);
    return 0;
}

int lines_open(struct lines *lines, const char *path) {
    *lines = (struct lines){.source = NULL};
    lines->source = source_open(path, lines->message, sizeof lines->message);
    return lines->source != NULL;
}

void lines_close(struct lines *lines) {
    source_close(lines->source);
    free(lines->buffer);
}

/* Reads more bytes behind those in the buffer.  Returns 1 on success, 0 with a message on failure. */
static int fill_buffer(struct lines *lines) {
    ptrdiff_t got;

    if (lines->at) {
        memmove(lines->buffer, lines->buffer + lines->at, lines->filled - lines->at);
        lines->filled -= lines->at;
        lines->at = 0;
    }
    if (lines->filled + 1 >= lines->room) {
        size_t room = lines->room ? 2 * lines->room : FIRST_BYTES;
        char *buffer = room <= MOST_BYTES ? realloc(lines->buffer, room) : NULL;

        if (!buffer) {
            lines->number++;
            return lines_refuse(lines, "is too long");
        }
        lines->buffer = buffer;
        lines->room = room;
    }
    got = source_read(lines->source, lines->buffer + lines->filled, lines->room - 1 - lines->filled,
                      lines->message, sizeof lines->message);
    if (got < 0)
        return 0;
    lines->at_end = got == 0;
    lines->filled += (size_t)got;
    return 1;
}

/* Returns the end of the next line, or NULL if there is no more line.  The end of the file ends the last line. */
static char *find_line_end(struct lines *lines) {
    for (;;) {
        size_t there = lines->filled - lines->at;
        char *end = there ? memchr(lines->buffer + lines->at, '\n', there) : NULL;

        if (end)
            return end;
        if (lines->at_end)
            return there ? lines->buffer + lines->filled : NULL;
        if (!fill_buffer(lines))
            return NULL;
    }
}

const char *lines_peek(struct lines *lines) {
    static char first[256];
    size_t bytes;

    while (!lines->at_end && lines->filled - lines->at < sizeof first && fill_buffer(lines))
        ;
    if (lines->message[0] && lines->filled == lines->at)
        return NULL;
    lines->message[0] = '\0'; /* the next read has the same error */
    bytes = lines->filled - lines->at;
    bytes = bytes < sizeof first ? bytes : sizeof first - 1;
    memcpy(first, lines->buffer + lines->at, bytes);
    first[bytes] = '\0';
    first[strcspn(first, "\r\n")] = '\0';
    return first;
}

/* Returns the next line without its end, or NULL: there is no more line, or a message says why not. */
static char *next_line(struct lines *lines) {
    char *end = find_line_end(lines), *line;

    if (!end)
        return NULL;
    line = lines->buffer + lines->at;
    lines->at = (size_t)(end - lines->buffer) + (end < lines->buffer + lines->filled);
    lines->number++;
    if (memchr(line, '\0', (size_t)(end - line))) {
        (void)lines_refuse(lines, "a NUL byte: this is no text");
        return NULL;
    }
    *end = '\0';
    if (end > line && end[-1] == '\r')
        end[-1] = '\0';
    return line;
}

int lines_cut(struct lines *lines) {
    char *line;

    do
        line = next_line(lines);
    while (line && !*line);
    lines->count = 0;
    if (!line)
        return 0;
    for (char *comma = line; comma; line = comma + 1) {
        if (lines->count == LINES_FIELDS)
            return lines_refuse(lines, "more than %d fields", LINES_FIELDS);
        lines->fields[lines->count++] = line;
        comma = strchr(line, ',');
        if (!comma)
            break;
        *comma = '\0';
    }
    return 1;
}

ptrdiff_t lines_read(void *context, char *buffer, size_t bytes, char *message,
                     size_t message_bytes) {
    struct lines *lines = context;
    size_t there = lines->filled - lines->at;

    if (!there)
        return source_read(lines->source, buffer, bytes, message, message_bytes);
    bytes = bytes < there ? bytes : there;
    memcpy(buffer, lines->buffer + lines->at, bytes);
    lines->at += bytes;
    return (ptrdiff_t)bytes;
}

int lines_is_column(const struct lines_column *column, const char *word) {
    enum { NAMES = sizeof column->names / sizeof column->names[0] };

    for (size_t i = 0; i < NAMES && column->names[i]; i++)
        if (strcmp(word, column->names[i]) == 0)
            return 1;
    return 0;
}

int lines_find_columns(struct lines *lines, const struct lines_column *columns, size_t count,
                       size_t *at) {
    char expected[128] = "";

    if (!lines_cut(lines))
        return lines->message[0] ? 0 : lines_refuse(lines, "there is no header");
    for (size_t i = 0; i < count; i++)
        help_join(expected, sizeof expected, columns[i].names[0]);
    for (size_t i = 0; i < count; i++) {
        size_t field = 0;

        while (field < lines->count && !lines_is_column(&columns[i], lines->fields[field]))
            field++;
        if (field == lines->count)
            return lines_refuse(lines, "column \"%s\" is missing; expected %s", columns[i].names[0],
                                expected);
        at[i] = field;
    }
    return 1;
}

int lines_has_columns(struct lines *lines, const struct lines_column *columns, size_t count,
                      const size_t *at) {
    for (size_t i = 0; i < count; i++)
        if (at[i] >= lines->count)
            return lines_refuse(lines, "%s is missing; expected a field for each column of line 1",
                                columns[i].names[0]);
    return 1;
}

int lines_number(struct lines *lines, size_t field, const char *what, uint64_t most,
                 uint64_t *out) {
    const char *text = lines->fields[field];
    int base = strncmp(text, "0x", 2) == 0 ? 16 : 10;
    const char *at = base == 16 ? text + 2 : text;
    uint64_t value = 0;
    char quoted[80];

    for (; *at; at++) {
        int digit = *at >= '0' && *at <= '9'                 ? *at - '0'
                    : base == 16 && *at >= 'a' && *at <= 'f' ? *at - 'a' + 10
                    : base == 16 && *at >= 'A' && *at <= 'F' ? *at - 'A' + 10
                                                             : -1;

        if (digit < 0 || __builtin_mul_overflow(value, (uint64_t)base, &value) ||
            __builtin_add_overflow(value, (uint64_t)digit, &value))
            break;
    }
    if (*at || at == text || at[-1] == 'x' || value > most) {
        weir__quote(text, quoted, sizeof quoted);
        return lines_refuse(lines, "%s %s is no whole number from 0 to %" PRIu64, what, quoted,
                            most);
    }
    *out = value;
    return 1;
}
