/* SPDX-License-Identifier: MIT */
/* files.h: the input files, output files and temporary files of a command.
 *
 * The functions check output files before the command runs, replace a file as a whole, and make temporary files.
 *
 * This file must not know the contents of the files.
 */
#ifndef WEIR_CLI_FILES_H
#define WEIR_CLI_FILES_H

#include <stddef.h>
#include <stdio.h>

struct output {
    /* `flag' is the flag that names the output file.  `path' is the file: NULL if the user did not name one, "-" for
     * standard output. */
    const char *flag, *path;
};

/* Checks that no output is the file `input', which the command reads.  An input of "-" is standard input.  Returns 1
 * if no output is this file.  Otherwise prints a message, in which `what' describes the input, and returns 0. */
int outputs_differ_from_input(const struct output *outputs, size_t count, const char *what,
                              const char *input);
/* Checks that all outputs are different files.  Several outputs may be standard output or standard error.  Returns 1
 * if the files differ.  Otherwise prints a message and returns 0. */
int outputs_differ(const struct output *outputs, size_t count);

/* Checks that weir can replace the file that a flag names.  weir therefore needs the right to write to the folder of
 * the file, or of the file that a link points to.  Returns 1 if so, or if the path is NULL or "-".  Otherwise prints
 * a message and returns 0. */
int output_check(const char *flag, const char *path);
/* Checks that weir can append text to the file that a flag names.  Returns 1 if so, or if the path is NULL or "-".
 * Otherwise prints a message and returns 0. */
int output_check_append(const char *flag, const char *path);
/* Checks that a file can be created at the path: creates a file with a similar name in the same folder, and removes
 * it.  access(2) is not enough, because it allows files in /proc that cannot be created.  Returns 1 on success, 0
 * with errno on failure. */
int output_can_create(const char *path);
/* Replaces a file as a whole (replace.h).  The function `write' writes the new contents, and returns 0 if it fails.
 * Returns 1 on success.  On failure, prints a message, keeps the old file and returns 0. */
int output_replace(const char *path, int (*write)(FILE *file, const void *context),
                   const void *context);

/* Returns the folder for temporary files: the value of TMPDIR, or /tmp if TMPDIR is not set. */
const char *temporary_folder(void);
/* Creates an empty temporary file and opens it for reading and writing.  The file has no name, so it disappears when
 * it is closed.  Returns NULL with errno on failure. */
FILE *temporary_file(void);
/* Creates an empty file with a name such as weir-WHAT-XXXXXX in the temporary folder, and writes the file's path to
 * `path'.  Returns 1 on success, 0 with errno on failure.  After a failure `path' is the path that could not be
 * created. */
int temporary_named(const char *what, char *path, size_t bytes);
/* Removes a folder, with all files and empty folders in it.  Does nothing if the path is "" or a symbolic link. */
void temporary_remove(const char *path);

#endif
