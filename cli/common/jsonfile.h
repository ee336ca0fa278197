/* SPDX-License-Identifier: MIT */
/* jsonfile.h: results as a JSON file: checked before anything runs, written as a whole.
 *
 * Must not know: what the results are.
 */
#ifndef WEIR_CLI_JSONFILE_H
#define WEIR_CLI_JSONFILE_H

#include <jansson.h>
#include <stdint.h>

/* What can be known before anything runs: that a flag's file can be replaced, which takes a folder that can be
 * written, that of a link's target; or that it can be added to.  NULL and "-" are fine.  1, or 0 with a message
 * printed. */
int jsonfile_check(const char *flag, const char *path);
int jsonfile_check_to_add(const char *flag, const char *path);
/* 1 if a file can be made there, or 0 and errno: one is made beside it and goes again, since there are file systems
 * (/proc) in whose folders one may write and cannot. */
int jsonfile_can_make(const char *path);
/* Writes an array, one value a line; or an object, one key a line and each of its arrays of objects one object a line.
 * "-" is standard output.  A file is replaced at the end, as a whole (replace.h).  Returns 1, or 0 with a message
 * printed. */
int jsonfile_write(const char *path, const json_t *value);
/* What is the same for all objects of a run: schema, version, date, host, command.  A new
 * reference. */
json_t *jsonfile_common(int argc, char **argv);
/* A number as JSON has it; above INT64_MAX it is that. */
json_t *jsonfile_integer(uint64_t value);
/* Returns text as JSON has it; of text that is no UTF-8 the first characters, with ? for those that are not ASCII. */
json_t *jsonfile_text(const char *text);
/* To so many parts of one: 10.0 leaves one digit behind the point. */
json_t *jsonfile_rounded(double value, double per);

#endif
