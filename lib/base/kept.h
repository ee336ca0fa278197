/* SPDX-License-Identifier: MIT */
/* kept.h: a file that stays open while the program runs.
 *
 * The program may close a descriptor that is not its own, and open another file that gets the number.  So weir stores
 * device and inode, and compares them before each use of the number.  Between comparison and use another thread could
 * still close and open a file.
 *
 * A mapping of the file keeps its inode from being used again.  It also keeps the locks of the open file description
 * that was mapped, even if the program closes the number.
 *
 * This file must not know the use of the file.
 */
#ifndef WEIR_KEPT_H
#define WEIR_KEPT_H

#include <sys/types.h>

struct weir_kept {
    int number; /* -1 if there is none */
    dev_t device, special;
    ino_t inode;
};

#define WEIR_KEPT_NONE                                                                             \
    { -1, 0, 0, 0 }

/* Stores the identity of an open file.  Returns 0 on success, -1 with errno on failure. */
int weir__kept_set(struct weir_kept *kept, int file);
/* Returns 1 if the number still belongs to that file, else 0. */
int weir__kept_is(const struct weir_kept *kept);
/* Returns 1 if both are one file, whether or not the numbers still belong to it; else 0. */
int weir__kept_are_same(const struct weir_kept *one, const struct weir_kept *other);
/* Closes the file if the number still belongs to it, and sets the number to -1.  If that is unknown, does nothing. */
void weir__kept_close(struct weir_kept *kept);

#endif
