/* SPDX-License-Identifier: MIT */
/* turn_lock.h: a lock that the processes of one user take in turn.
 *
 * This file must not know the use of the lock.
 */
#ifndef WEIR_TURN_LOCK_H
#define WEIR_TURN_LOCK_H

#include "base/kept.h"

enum { WEIR_PROCESS_LOCK_PATH = 256 };

/* A process's access to such a lock.  Only one thread at a time uses the struct. */
struct weir_process_lock {
    struct weir_kept file;
    int held;
    char path[WEIR_PROCESS_LOCK_PATH]; /* the path of the file */
};

#define WEIR_PROCESS_LOCK_NONE                                                                     \
    { WEIR_KEPT_NONE, 0, "" }

/* Tries to take the lock that `name` names, without waiting.  `name` becomes a part of a file's name.  Returns 1 on
 * success, 0 if another process or another struct of this process holds the lock, -1 with errno on failure. */
int weir__process_lock_try(struct weir_process_lock *lock, const char *name);
/* Releases the lock if this struct holds the lock. */
void weir__process_lock_give(struct weir_process_lock *lock);

#endif
