/* SPDX-License-Identifier: MIT */
/* jsonfile.h: writes results as JSON.
 *
 * This file must not depend on the meaning of the results.
 */
#ifndef WEIR_CLI_JSONFILE_H
#define WEIR_CLI_JSONFILE_H

#include <jansson.h>
#include <stdint.h>

/* Writes a JSON value to a file, or to standard output if the path is "-".  On failure, prints a message and returns
 * 0. */
int jsonfile_write(const char *path, const json_t *value);
/* Returns a new JSON object with the keys that every output has: schema, weir (the version), date, host and command. */
json_t *jsonfile_common(int argc, char **argv);
/* Returns a JSON integer.  A value above INT64_MAX becomes INT64_MAX. */
json_t *jsonfile_integer(uint64_t value);
/* Replaces each byte of the text that is not printable ASCII by a question mark.  Returns the text. */
char *jsonfile_plain(char *text);
/* Returns a JSON string.  If the text is not valid UTF-8, replaces each byte that is not printable ASCII by a
 * question mark. */
json_t *jsonfile_text(const char *text);
/* Returns a JSON number, rounded to a multiple of 1 / `per'.  A `per' of 10.0 rounds to one digit after the point. */
json_t *jsonfile_rounded(double value, double per);

#endif
