/* SPDX-License-Identifier: MIT */
/* outputs.h: checks that no two outputs, and no input and output, are the same file.
 *
 * Must not know: what is written.
 */
#ifndef WEIR_CLI_OUTPUTS_H
#define WEIR_CLI_OUTPUTS_H

#include <stddef.h>

struct output {
    const char *flag, *path; /* path NULL: there is none; "-": standard output */
};

/* Returns 1 if both names mean one plain file, through links or not, or would mean one file that does not exist yet.
 * As an input "-" is standard input. */
int outputs_are_one(const char *input, const char *other);
/* Returns 1 if no output is the file `input', which the command reads; 0 with a message, which calls the input `what'. */
int outputs_spare(const struct output *outputs, size_t count, const char *what, const char *input);
/* Returns 1 if all outputs are different files, 0 with a message if not.  Several outputs may be standard output or
 * standard error. */
int outputs_differ(const struct output *outputs, size_t count);

#endif
