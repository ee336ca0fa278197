/* SPDX-License-Identifier: MIT */
/* shipped.h: the files that come with the program: traces, libraries, and sources to compile. */
#ifndef WEIR_CLI_SHIPPED_H
#define WEIR_CLI_SHIPPED_H

#include <stddef.h>

/* Finds a file that comes with the program, by the name `in_tree' below the folder of a build, or by the name
 * `installed' below the folder of an installation, which may have been moved.  If neither exists, the path is
 * `standard'.  Returns 1 if the file exists, 0 if not. */
int shipped_find(char *path, size_t bytes, const char *in_tree, const char *installed,
                 const char *standard);

/* Returns the folder of the traces, in a static buffer: bench/traces of the source tree in which the program was built,
 * or the folder of the installation.  Returns NULL if neither exists. */
const char *shipped_folder(void);

/* Returns the sorted paths of all traces that come with the program; *count is their number.  Returns NULL if there
 * is no trace or no host memory. */
char **shipped_list(size_t *count);
void shipped_free(char **paths, size_t count);

/* Returns the path that an argument means: the file of that name, or the shipped trace "NAME.trace.zst".  The
 * caller frees the path.  Returns NULL if there is no host memory. */
char *shipped_resolve(const char *argument);

/* Prints the names of the shipped traces to standard error if the path has no folder and no such file exists. */
void shipped_advise(const char *path);

#endif
