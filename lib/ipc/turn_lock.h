/* SPDX-License-Identifier: MIT */
/* turn_lock.h: a lock that the processes of one user take in turn.
 *
 * Must not know: what it guards.
 */
#ifndef WEIR_TURN_LOCK_H
#define WEIR_TURN_LOCK_H

#include "base/kept.h"

enum { WEIR_PROCESS_LOCK_PATH = 256 };

/* Nobody else's while it is used. */
struct weir_process_lock {
    struct weir_kept file;
    int held;
    char path[WEIR_PROCESS_LOCK_PATH]; /* of the file */
};

#define WEIR_PROCESS_LOCK_NONE                                                                     \
    { WEIR_KEPT_NONE, 0, "" }

/* Tries to take the lock of that name, which is a part of a file's name.  1: it is held; 0: another process
 * has it, or another lock of this one; -1: there can be none, and errno says why.  Never blocks. */
int weir__process_lock_try(struct weir_process_lock *lock, const char *name);
/* Gives it back if it is held. */
void weir__process_lock_give(struct weir_process_lock *lock);

#endif
