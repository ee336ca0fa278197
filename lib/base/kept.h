/* SPDX-License-Identifier: MIT */
/* kept.h: a file that stays open while the program runs.
 *
 * The program may close a descriptor that is not its own, and open a file that gets the same number.  So the file is
 * known by device and inode, and each use of the number first looks whether it is still that file's.  Between look and
 * use another thread may still close and open: as short a time as there can be.
 *
 * A mapping of the file keeps its inode from being used again, and also the locks of the open file that was mapped:
 * they outlive its number.
 *
 * Must not know: what the file is for.
 */
#ifndef WEIR_KEPT_H
#define WEIR_KEPT_H

#include <sys/types.h>

struct weir_kept {
    int number; /* -1: none */
    dev_t device, special;
    ino_t inode;
};

#define WEIR_KEPT_NONE                                                                             \
    { -1, 0, 0, 0 }

/* Keeps an open file.  0; -1 and errno: nothing is known of it, and it is not kept. */
int weir__kept_set(struct weir_kept *kept, int file);
/* 1: the number is that file's. */
int weir__kept_is(const struct weir_kept *kept);
/* 1: they are one file, whether or not the numbers are still its. */
int weir__kept_are_same(const struct weir_kept *one, const struct weir_kept *other);
/* Closes it, if the number is its, and keeps nothing.  Where that cannot be told everything stays. */
void weir__kept_close(struct weir_kept *kept);

#endif
