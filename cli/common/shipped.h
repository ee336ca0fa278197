/* SPDX-License-Identifier: MIT */
/* shipped.h: what comes with the program: traces, and sources to compile. */
#ifndef WEIR_CLI_SHIPPED_H
#define WEIR_CLI_SHIPPED_H

#include <stddef.h>

/* The path of what comes with the program: by one name below the folder of the tree or the build that the running program
 * is of, by another below that of an installation, wherever it was moved to; `standard': else.  1: it is there. */
int shipped_find(char *path, size_t bytes, const char *in_tree, const char *installed,
                 const char *standard);

/* The folder: bench/traces of the source tree that the running program was built in, else that of
 * the installation.  NULL: neither is there.  A static buffer. */
const char *shipped_folder(void);

/* The paths of all of them, sorted; *count of them.  NULL: none, or out of memory. */
char **shipped_list(size_t *count);
void shipped_free(char **paths, size_t count);

/* The path that an argument means: the file of that name, or the shipped trace "NAME.trace.gz".  To
 * be freed; NULL: out of memory. */
char *shipped_resolve(const char *argument);

/* If the path that came of it is a word alone, and no file: which words would have done, as a line of
 * standard error. */
void shipped_advise(const char *path);

#endif
