/* SPDX-License-Identifier: MIT */
/* unname.h: how the name of an open file goes, which others put files at as well.
 *
 * Must not know: what is in the file; why its name goes, or who must have it then.
 */
#ifndef WEIR_UNNAME_H
#define WEIR_UNNAME_H

/* Takes the name away if it is that file's still; what another has put there since stays, unless it comes between the
 * look and the removal.  A link is not followed.  0: the file does not have the name (any more); -1 and errno. */
int weir__unname(int file, const char *path);

#endif
