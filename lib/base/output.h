/* SPDX-License-Identifier: MIT */
/* output.h: writes text and JSON to memory of a fixed size, or to a file.
 *
 * The functions allocate no memory and take no lock of weir, so that weir can write a report while a process ends, or
 * when the host has no memory left. */
#ifndef WEIR_OUTPUT_H
#define WEIR_OUTPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The destination of a text.  The caller sets `file`, or `text` and `bytes`, and all other members to 0. */
struct weir_output {
    FILE *file;
    char *text;    /* the memory for the text, which ends with a NUL unless `bytes` is 0 */
    size_t bytes;  /* the size of the memory at `text` */
    size_t length; /* the length of the text, of which `text` may contain only the first part */
    int is_open;   /* set after an opening bracket or brace, where JSON allows no comma */
};

/* Appends text to the output as printf(3) does. */
void weir__put(struct weir_output *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Appends JSON.  The format is JSON with ' instead of ", and may contain three conversions:
 *     %s     writes a text with quotes and escapes, or null for NULL
 *     %ju    writes a number, or null for UINT64_MAX
 *     %d     writes false for 0, else true
 * A comma that follows an opening bracket is left out, so each element of a list may begin with a comma. */
void weir__put_json(struct weir_output *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
