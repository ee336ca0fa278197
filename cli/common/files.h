/* SPDX-License-Identifier: MIT */
/* files.h: the files of a command: checks of outputs before the command runs, files that are replaced as a whole, and
 * files that exist no longer than the command.
 *
 * This file must not know the contents of the files.
 */
#ifndef WEIR_CLI_FILES_H
#define WEIR_CLI_FILES_H

#include <stddef.h>
#include <stdio.h>

struct output {
    const char *flag, *path; /* `path` is NULL if there is no output, "-" for standard output */
};

/* Returns 1 if no output is the file `input', which the command reads; 0 with a message, which calls the input `what'.
 * "-" is standard input. */
int outputs_spare(const struct output *outputs, size_t count, const char *what, const char *input);
/* Returns 1 if all outputs are different files, 0 with a message if not.  Several outputs may be standard output or
 * standard error. */
int outputs_differ(const struct output *outputs, size_t count);

/* Checks that the file of a flag can be replaced, which needs the right to write to its folder, or to the folder of a
 * link's target.  A path of NULL or "-" needs no check.  Returns 1 on success, 0 with a message. */
int output_check(const char *flag, const char *path);
/* Checks that text can be added to the file of a flag.  A path of NULL or "-" needs no check.  Returns 1 on success, 0
 * with a message. */
int output_check_to_add(const char *flag, const char *path);
/* Returns 1 if a file can be made at the path, else 0 with errno.  Makes a file beside the path and removes it: in
 * folders of some file systems, such as /proc, access(2) allows a file that cannot be made. */
int output_can_make(const char *path);
/* Calls `write' to write a new file, which then replaces the old file as a whole (replace.h).  `write' returns 0 if it
 * fails.  Returns 1 on success, 0 with a message. */
int output_replace(const char *path, int (*write)(FILE *file, const void *context),
                   const void *context);

/* Returns TMPDIR, or /tmp if TMPDIR is not set. */
const char *temporary_folder(void);
/* Opens an empty file without a name in the temporary folder, for reading and writing.  Returns NULL with errno on
 * failure. */
FILE *temporary_file(void);
/* Makes an empty file weir-WHAT-... in the temporary folder, and writes its path.  Returns 1 on success, 0 with errno
 * and the path that failed. */
int temporary_named(const char *what, char *path, size_t bytes);
/* Removes a folder with its files and its empty folders.  Does nothing if the path is "" or a link. */
void temporary_remove(const char *path);

#endif
