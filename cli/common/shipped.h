/* SPDX-License-Identifier: MIT */
/* shipped.h: finds the files that come with the program: traces, libraries, and source files that weir compiles. */
#ifndef WEIR_CLI_SHIPPED_H
#define WEIR_CLI_SHIPPED_H

#include <stddef.h>

/* Finds a file that comes with the program, in a build or an installation.  Returns 1 on success.  Otherwise sets
 * `path' to `standard', and returns 1 if that file exists, 0 if not. */
int shipped_find(char *path, size_t bytes, const char *in_tree, const char *installed,
                 const char *standard);

/* Returns the folder of the traces that come with the program (bench/traces of the source tree), in a static buffer.
 * Returns NULL if it does not exist. */
const char *shipped_folder(void);

/* Returns the paths of all traces that come with the program, in alphabetical order, and their number in *count.
 * Returns NULL if there is no trace or no host memory. */
char **shipped_list(size_t *count);
void shipped_free(char **paths, size_t count);

/* Returns the path of a trace.  `argument' is a path, or the name of a trace that comes with the program, without
 * ".trace.zst".  The caller frees the path.  Returns NULL if there is no host memory. */
char *shipped_resolve(const char *argument);

/* Prints the names of the traces that come with the program to standard error, after a trace was not found.  Prints
 * nothing if `path' contains a folder or exists. */
void shipped_print_names(const char *path);

#endif
