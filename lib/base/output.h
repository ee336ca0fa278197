/* SPDX-License-Identifier: MIT */
/* output.h: writes text and JSON, into memory of a fixed size or to a file.
 *
 * The functions allocate no memory and take no lock of weir's, so that a report can be written while a process ends or
 * has no host memory.
 *
 * This file must not know the meaning of a text.
 */
#ifndef WEIR_OUTPUT_H
#define WEIR_OUTPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Initialise either `file`, or `text` and `bytes`; all other members are 0. */
struct weir_output {
    FILE *file;
    char *text;    /* ends with a NUL, unless `bytes` is 0 */
    size_t bytes;  /* the size of the memory */
    size_t length; /* the length of the whole text, even if the text does not fit */
    int is_open;   /* set if the text ends with an opening bracket */
};

/* Appends text as printf(3) does. */
void weir__put(struct weir_output *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Appends JSON.  The format is JSON with ' in place of ", and has three conversions.  %s writes a text with its quotes
 * and escapes, or null for NULL.  %ju writes a number, or null for UINT64_MAX.  %d writes false for 0, else true.  The
 * function does not write a comma after an opening bracket, so the format of each element of a list can begin with a
 * comma. */
void weir__put_json(struct weir_output *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
