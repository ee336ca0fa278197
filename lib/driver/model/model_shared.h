/* SPDX-License-Identifier: MIT */
/* model_shared.h: the memory of modelled devices that several processes share, for tests.
 *
 * All processes for which WEIR_MODEL_SHARED names one file share the memory of the devices: each process has its own
 * streams, pools and clock, and together they never take more than the capacity.  The memory of a dead process is free
 * again, however the process ended.
 *
 * This file must not know the purpose of the memory.
 */
#ifndef WEIR_MODEL_SHARED_H
#define WEIR_MODEL_SHARED_H

#include <stdint.h>

/* Makes the calling process take part, without any memory.  If the process took part already, its memory is freed.
 * Does nothing if the variable is not set.  Returns 0 on success, or -1 with errno, which is EEXIST for a file with
 * other contents. */
int weir__model_shared_join(void);
/* Returns 1 if this process takes part, else 0. */
int weir__model_shared_is(void);
/* Returns a number that differs between files, or 0 if this process takes no part. */
uint64_t weir__model_shared_key(void);
/* Returns the bytes of that device that other processes have taken. */
uint64_t weir__model_shared_others(int device);
/* Takes bytes of a device of that capacity.  Returns 0, or -1 if fewer bytes are free. */
int weir__model_shared_take(int device, uint64_t capacity, uint64_t bytes);
void weir__model_shared_give(int device, uint64_t bytes);

#endif
