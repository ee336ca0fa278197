/* SPDX-License-Identifier: MIT */
/* kept.h: checks that a descriptor still belongs to a file that weir keeps open while the program runs.
 *
 * A program may close one of weir's descriptors by mistake.  Another file that the program opens may then get the
 * number of this descriptor.  So weir stores the device and the inode of its file, and compares both before each use of
 * the descriptor.  Another thread could still close the descriptor and open a file between the comparison and the use.
 *
 * If weir has mapped the file, the kernel gives its inode to no other file.  The mapping also keeps the file locks of
 * the open file description that was mapped, even if the program closes the descriptor.
 *
 * This file must not depend on the use of the file. */
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

/* Stores a descriptor, and the device and the inode of its file, in *kept.  Returns 0 on success, -1 with errno on
 * failure. */
int weir__kept_set(struct weir_kept *kept, int file);
/* Returns 1 if the descriptor kept->number still belongs to the file whose device and inode are stored, else 0. */
int weir__kept_is(const struct weir_kept *kept);
/* Returns 1 if both structs contain the device and the inode of one file, else 0.  The descriptors may be closed. */
int weir__kept_are_same(const struct weir_kept *one, const struct weir_kept *other);
/* Closes the descriptor and sets kept->number to -1, if the descriptor still belongs to weir's file and not to a file
 * of the program.  If fstat(2) cannot find this out, does nothing. */
void weir__kept_close(struct weir_kept *kept);

#endif
