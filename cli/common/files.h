/* SPDX-License-Identifier: MIT */
/* files.h: the input files, output files and temporary files of a command.
 *
 * files.c must not depend on the contents of the files.
 */
#ifndef WEIR_CLI_FILES_H
#define WEIR_CLI_FILES_H

#include <stddef.h>
#include <stdio.h>

/* An output file, and the flag that names it.  The path "-" means standard output, and the path NULL means no file. */
struct output {
    const char *flag, *path;
};

/* Returns 1 if no output is the file `input', else prints a message and returns 0.  An `input' of "-" means standard
 * input. */
int outputs_differ_from_input(const struct output *outputs, size_t count, const char *what,
                              const char *input);
/* Returns 1 if all outputs are different files.  Otherwise prints a message and returns 0.  More than one output may be
 * standard output or standard error. */
int outputs_differ(const struct output *outputs, size_t count);

/* Checks that the file of a flag can be replaced.  On failure, prints a message and returns 0.  The path may be NULL or
 * "-". */
int output_check(const char *flag, const char *path);
/* Checks that text can be appended to the file of a flag.  On failure, prints a message and returns 0.  The path may be
 * NULL or "-". */
int output_check_append(const char *flag, const char *path);
/* Checks that a file can be created at the path.  Creates a file with a similar name and removes it, because access(2)
 * wrongly allows files in /proc.  Returns 1 on success, 0 with errno on failure. */
int output_can_create(const char *path);
/* Replaces a file in one step (replace.h).  `write' writes the new contents, and returns 0 on failure.  Returns 1 on
 * success.  On failure, prints a message, keeps the old file and returns 0. */
int output_replace(const char *path, int (*write)(FILE *file, const void *context),
                   const void *context);

/* Returns the value of TMPDIR, or /tmp if TMPDIR is not set. */
const char *temporary_folder(void);
/* Opens an empty temporary file without a name for reading and writing.  The file disappears when it is closed.
 * Returns NULL with errno on failure. */
FILE *temporary_file(void);
/* Creates an empty file with a name such as weir-WHAT-XXXXXX in the temporary folder, and writes its path to `path'.
 * Returns 1 on success, 0 with errno on failure. */
int temporary_named(const char *what, char *path, size_t bytes);
/* Removes a folder, with all files and empty folders in it.  Does nothing if the path is "" or a symbolic link. */
void temporary_remove(const char *path);

#endif
