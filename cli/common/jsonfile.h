/* SPDX-License-Identifier: MIT */
/* jsonfile.h: checks a JSON file before the command runs, and writes results to it as a whole.
 *
 * Must not know: what the results mean.
 */
#ifndef WEIR_CLI_JSONFILE_H
#define WEIR_CLI_JSONFILE_H

#include <jansson.h>
#include <stdint.h>

/* Checks that the file of a flag can be replaced; a folder that can be written is needed for this, the folder of a link's
 * target.  A path of NULL or "-" is good.  Returns 1, or 0 with a message. */
int jsonfile_check(const char *flag, const char *path);
/* Checks that text can be added to the file of a flag.  A path of NULL or "-" is good.  Returns 1, or 0 with a message. */
int jsonfile_check_to_add(const char *flag, const char *path);
/* Returns 1 if a file can be made there, 0 with errno if not.  Makes a file beside the path and removes it: in folders of
 * some file systems, such as /proc, access(2) allows a file that cannot be made. */
int jsonfile_can_make(const char *path);
/* Writes an array, one value a line; or an object, one key a line and each of its arrays of objects one object a line.
 * "-" is standard output.  Replaces a file as a whole (replace.h).  Returns 1, or 0 with a message. */
int jsonfile_write(const char *path, const json_t *value);
/* Returns a new object with the keys that all objects of a run have: schema, version, date, host, command. */
json_t *jsonfile_common(int argc, char **argv);
/* Returns the number for JSON, or INT64_MAX if the number is larger. */
json_t *jsonfile_integer(uint64_t value);
/* Returns the text for JSON.  If the text is not UTF-8, a question mark stands for each byte that is not printable ASCII. */
json_t *jsonfile_text(const char *text);
/* Rounds to 1 / `per': 10.0 leaves one digit behind the point. */
json_t *jsonfile_rounded(double value, double per);

#endif
