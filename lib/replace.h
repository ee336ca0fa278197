/* SPDX-License-Identifier: MIT */
/* replace.h: a file that is written as a whole, or left as it was.
 *
 * It is written beside its place, under a name that nothing else has, and moved there.  A link at its place
 * stays, and the file that it leads to is replaced; but in a folder in which everybody may write only links of the
 * user's own, or root's, are followed.  What is no plain file (a pipe, a terminal), or is open as standard output or
 * standard error, is written to as it is.
 *
 * Must not know: what is written.
 */
#ifndef WEIR_REPLACE_H
#define WEIR_REPLACE_H

#include <stddef.h>
#include <sys/types.h>

/* A new file has that mode, less the umask; one in place of another the other's, as far as that mode goes.
 * `is_durable': it is on the disk when this returns.  0, or errno. */
int weir__replace_file(const char *path, mode_t mode, int is_durable, const void *bytes,
                       size_t count);

#endif
