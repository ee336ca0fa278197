/* SPDX-License-Identifier: MIT */
/* kept.h: a file that stays open while the program runs.
 *
 * A program may close a descriptor of weir's, and then open another file that gets the number of that descriptor.  So
 * weir stores the device and the inode of the file, and compares both before each use of the number.  Another thread
 * could still close and open a file between the comparison and the use.
 *
 * A mapping of the file keeps its inode from being used again.  The mapping also keeps the locks of the open file
 * description that was mapped, even if the program closes the number.
 *
 * This file must not know the use of the file.
 */
#ifndef WEIR_KEPT_H
#define WEIR_KEPT_H

#include <sys/types.h>

struct weir_kept {
    int number; /* the descriptor, or -1 if there is no file */
    dev_t device, special;
    ino_t inode;
};

#define WEIR_KEPT_NONE                                                                             \
    { -1, 0, 0, 0 }

/* Stores the identity of an open file.  Returns 0 on success, -1 with errno on failure. */
int weir__kept_set(struct weir_kept *kept, int file);
/* Returns 1 if the descriptor kept->number still belongs to the stored file, else 0. */
int weir__kept_is(const struct weir_kept *kept);
/* Returns 1 if both structs identify one file, else 0.  The descriptors need not belong to the file any more. */
int weir__kept_are_same(const struct weir_kept *one, const struct weir_kept *other);
/* Closes the descriptor if the descriptor still belongs to the stored file, and sets kept->number to -1.  Does nothing
 * if fstat(2) fails. */
void weir__kept_close(struct weir_kept *kept);

#endif
