/* SPDX-License-Identifier: MIT */
/* outputs.h: whether files that are to be written are files of their own.
 *
 * Must not know: what is written.
 */
#ifndef WEIR_CLI_OUTPUTS_H
#define WEIR_CLI_OUTPUTS_H

#include <stddef.h>

struct output {
    const char *flag, *path; /* path NULL: there is none; "-": standard output */
};

/* Whether both names are of one plain file, by links too, or would be: of one that neither is there of.  As an input "-"
 * is standard input. */
int outputs_are_one(const char *input, const char *other);
/* No output is `input', the `what' that is read; none is another's.  Standard output and standard error may be written
 * by several.  1, or 0 with a message printed. */
int outputs_spare(const struct output *outputs, size_t count, const char *what, const char *input);
int outputs_differ(const struct output *outputs, size_t count);

#endif
