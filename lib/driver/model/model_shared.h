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

#include <stdint.h>

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

#endif
