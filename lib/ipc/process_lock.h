/* SPDX-License-Identifier: MIT */
/* process_lock.h: a lock that at most one process of a user holds at a time. */
#ifndef WEIR_PROCESS_LOCK_H
#define WEIR_PROCESS_LOCK_H

#include "base/kept.h"

enum { WEIR_PROCESS_LOCK_PATH = 256 };

/* The state of the lock in one process.  Only one thread at a time may use the struct. */
struct weir_process_lock {
    struct weir_kept file;
    int is_locked;
    char path[WEIR_PROCESS_LOCK_PATH];
};

#define WEIR_PROCESS_LOCK_NONE                                                                     \
    { WEIR_KEPT_NONE, 0, "" }

/* Tries to lock, without waiting.  `name` is a part of the file name.  Returns 1, 0 if it is held, or -1 with errno. */
int weir__process_lock_try(struct weir_process_lock *lock, const char *name);
/* Unlocks if this struct holds the lock. */
void weir__process_lock_release(struct weir_process_lock *lock);

#endif
