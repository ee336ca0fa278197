/* SPDX-License-Identifier: MIT */
/* jsonfile.h: writes results as JSON.
 *
 * This file must not know the meaning of the results.
 */
#ifndef WEIR_CLI_JSONFILE_H
#define WEIR_CLI_JSONFILE_H

#include <jansson.h>
#include <stdint.h>

/* Writes an array with one value on each line, or an object with one key on each line.  Writes an array of objects in
 * the object with one object on each line.  "-" is standard output.  Replaces a file as a whole.  Returns 1 on success,
 * 0 with a message. */
int jsonfile_write(const char *path, const json_t *value);
/* Returns a new object with the keys that all objects of a run have: schema, version, date, host, command. */
json_t *jsonfile_common(int argc, char **argv);
/* Returns the number for JSON, or INT64_MAX if the number is larger. */
json_t *jsonfile_integer(uint64_t value);
/* Replaces each byte that is not printable ASCII by a question mark.  Returns the text. */
char *jsonfile_plain(char *text);
/* Returns the text for JSON.  If the text is not UTF-8, a question mark stands for each byte that is not printable
 * ASCII. */
json_t *jsonfile_text(const char *text);
/* Returns the value for JSON, rounded to 1 / `per': 10.0 leaves one digit behind the point. */
json_t *jsonfile_rounded(double value, double per);

#endif
