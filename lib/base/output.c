/* SPDX-License-Identifier: MIT */
/* output.c: writes text and JSON to memory or to a file (output.h). */
#include "base/output.h"

#include <stdarg.h>
#include <string.h>

void weir__put(struct weir_output *out, const char *format, ...) {
    size_t room = out->length < out->bytes ? out->bytes - out->length : 0;
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = out->file ? vfprintf(out->file, format, arguments)
                       : vsnprintf(room ? out->text + out->length : NULL, room, format, arguments);
    va_end(arguments);
    out->length += length > 0 ? (size_t)length : 0;
    out->is_open = 0;
}

/* Returns the number of bytes of the UTF-8 character at `at`, or 0 if the bytes are not valid UTF-8. */
static int utf8_bytes(const unsigned char *at) {
    int bytes = at[0] < 0x80   ? 1
                : at[0] < 0xc2 ? 0
                : at[0] < 0xe0 ? 2
                : at[0] < 0xf0 ? 3
                : at[0] < 0xf5 ? 4
                               : 0;

    for (int i = 1; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] >= 0xa0) ||
                   (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] >= 0x90)
               ? 0
               : bytes;
}

/* Writes a text as a JSON string.  Writes a byte that is not valid UTF-8 as \u and its value, for example \u00ff. */
static void put_string(struct weir_output *out, const char *text) {
    const unsigned char *at = (const unsigned char *)text;

    weir__put(out, "\"");
    while (*at) {
        const unsigned char *plain = at;
        int bytes;

        while (*at >= ' ' && *at != '"' && *at != '\\' && *at != 0x7f &&
               (bytes = utf8_bytes(at)) > 0)
            at += bytes;
        weir__put(out, "%.*s", (int)(at - plain), (const char *)plain);
        if (*at == '"' || *at == '\\')
            weir__put(out, "\\%c", *at++);
        else if (*at)
            weir__put(out, "\\u%04x", *at++);
    }
    weir__put(out, "\"");
}

void weir__put_json(struct weir_output *out, const char *format, ...) {
    va_list arguments;
    const char *text;
    uintmax_t number;

    va_start(arguments, format);
    while (*format) {
        size_t literal = strcspn(format, "'%,");

        if (literal > 0) {
            weir__put(out, "%.*s", (int)literal, format);
            format += literal;
            out->is_open = format[-1] == '[' || format[-1] == '{';
        } else if (*format == '\'') {
            weir__put(out, "\"");
            format++;
        } else if (*format == ',') {
            if (!out->is_open)
                weir__put(out, ",");
            format++;
        } else if (format[1] == 's') {
            text = va_arg(arguments, const char *);
            if (text)
                put_string(out, text);
            else
                weir__put(out, "null");
            format += 2;
        } else if (format[1] == 'd') {
            weir__put(out, va_arg(arguments, int) ? "true" : "false");
            format += 2;
        } else { /* the conversion %ju (a number) */
            number = va_arg(arguments, uintmax_t);
            weir__put(out, number == UINT64_MAX ? "null" : "%ju", number);
            format += 3;
        }
    }
    va_end(arguments);
}
