/* SPDX-License-Identifier: MIT */
/* format.h: files of other programs from which weir makes a trace.
 *
 * Must not know: what the trace is for.
 */
#ifndef WEIR_CLI_FORMAT_H
#define WEIR_CLI_FORMAT_H

#include <stdio.h>

#include "cli/common/lines.h"

struct format {
    /* Returns 1 if the first line of a file shows that the file has this format, 0 if not. */
    int (*has_format)(const char *first_line);
    /* Reads the lines and writes their events to `trace' as the text of a trace.
     * Returns 1 on success, 0 with a message in `lines' on failure.  Errors of `trace' are left to the caller. */
    int (*write_trace)(struct lines *lines, FILE *trace);
};

extern const struct format format_rmm, format_minimalloc;

#endif
