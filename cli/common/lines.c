/* SPDX-License-Identifier: MIT */
/* lines.c: see lines.h. */
#include "cli/common/lines.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
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

/* More bytes behind those that are there.  0: no memory, or they cannot be read. */
static int fill(struct lines *lines) {
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

/* Where the next line ends, the last one's end being the file's; NULL: there is none. */
static char *find_end(struct lines *lines) {
    for (;;) {
        size_t there = lines->filled - lines->at;
        char *end = there ? memchr(lines->buffer + lines->at, '\n', there) : NULL;

        if (end)
            return end;
        if (lines->at_end)
            return there ? lines->buffer + lines->filled : NULL;
        if (!fill(lines))
            return NULL;
    }
}

const char *lines_peek(struct lines *lines) {
    static char first[256];
    size_t bytes;

    while (!lines->at_end && lines->filled - lines->at < sizeof first && fill(lines))
        ;
    if (lines->message[0] && lines->filled == lines->at)
        return NULL;
    lines->message[0] = '\0'; /* it comes again behind what was read */
    bytes = lines->filled - lines->at;
    bytes = bytes < sizeof first ? bytes : sizeof first - 1;
    memcpy(first, lines->buffer + lines->at, bytes);
    first[bytes] = '\0';
    first[strcspn(first, "\r\n")] = '\0';
    return first;
}

char *lines_next(struct lines *lines) {
    char *end = find_end(lines), *line;

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
        line = lines_next(lines);
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
