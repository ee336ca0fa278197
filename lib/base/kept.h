/* SPDX-License-Identifier: MIT */
/* kept.h: checks that a descriptor still belongs to a file that weir keeps open while the program runs.
 *
 * A program may close one of weir's descriptors by mistake, and then open another file with its number.  So weir stores
 * the device and the inode of its file, and compares both before each use.  A mapping of the file keeps its inode, and
 * its file locks, even if the program closes the descriptor. */
#ifndef WEIR_KEPT_H
#define WEIR_KEPT_H

#include <sys/types.h>

struct weir_kept {
    int number; /* the file descriptor, or -1 if there is no file */
    dev_t device, special;
    ino_t inode;
};

#define WEIR_KEPT_NONE                                                                             \
    { -1, 0, 0, 0 }

/* Stores a descriptor and the identity of its file in *kept.  Returns 0 on success, -1 with errno on failure. */
int weir__kept_set(struct weir_kept *kept, int file);
/* Returns 1 if the descriptor still belongs to the file that weir__kept_set() has stored, else 0. */
int weir__kept_is(const struct weir_kept *kept);
/* Returns 1 if both structs name one file, else 0.  The descriptors may be closed. */
int weir__kept_are_same(const struct weir_kept *one, const struct weir_kept *other);
/* Closes the descriptor and sets kept->number to -1, but only if the descriptor certainly belongs to weir's file. */
void weir__kept_close(struct weir_kept *kept);

#endif
