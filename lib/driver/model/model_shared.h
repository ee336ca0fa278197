/* SPDX-License-Identifier: MIT */
/* model_shared.h: the memory of modelled devices that several processes share, for tests.
 *
 * With WEIR_MODEL_SHARED=FILE all processes that name that file have the same devices' memory: each has its own
 * streams, pools and clock, and what all of them took together is never more than the capacity.  What a process
 * took is free again once it is dead, however it died.
 *
 * Must not know: what takes memory.
 */
#ifndef WEIR_MODEL_SHARED_H
#define WEIR_MODEL_SHARED_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

/* The calling process takes part, with nothing taken; again after it did: what it took is free.  0, or -1 and
 * errno, EEXIST for a file that has something else in it.  Nothing to do where the variable is not set. */
int weir__model_shared_join(void);
/* 1 if it takes part. */
int weir__model_shared_is(void);
/* Tells files apart; 0: it takes no part. */
uint64_t weir__model_shared_key(void);
/* Bytes that others have taken of that device. */
uint64_t weir__model_shared_others(int device);
/* Takes bytes of a device of that capacity: 0, or -1 if there are not so many. */
int weir__model_shared_take(int device, uint64_t capacity, uint64_t bytes);
void weir__model_shared_give(int device, uint64_t bytes);

/* What other processes do to one that takes part (model_checkpoint.c).  It lies in the file, and any process may write
 * to it. */
struct model_lock {
    _Atomic uint64_t state;  /* model_checkpoint.c */
    _Atomic uint64_t inside; /* calls of its own that are under way */
    _Atomic uint64_t thread; /* which restores it; 0: it has none */
};
/* This process's, which takes part. */
struct model_lock *weir__model_shared_own_lock(void);
/* Of a process that lives; NULL: that takes no part. */
struct model_lock *weir__model_shared_lock(pid_t pid);
/* All that the process of that lock has of devices is free for others; and is its own again, 0, or -1: there is not so
 * much left of a device. */
void weir__model_shared_leave(struct model_lock *lock);
int weir__model_shared_return(struct model_lock *lock, uint64_t capacity);

#endif
