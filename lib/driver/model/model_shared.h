/* SPDX-License-Identifier: MIT */
/* model_shared.h: lets several processes share the memory of the modelled devices, for tests.
 *
 * Processes share the memory of the devices if the variable WEIR_MODEL_SHARED of each process names one common file.
 * Each process has its own streams, pools and clock.  Together the processes never allocate more than the capacity of a
 * device.  When a process ends, in any way, its memory becomes free.
 *
 * This file must not depend on what the memory is used for.
 */
#ifndef WEIR_MODEL_SHARED_H
#define WEIR_MODEL_SHARED_H

#include <stdint.h>

/* Makes this process share the memory of the modelled devices with other processes.  At first the process has no
 * memory.  If it called the function before, its memory is freed.  Does nothing if the variable WEIR_MODEL_SHARED is
 * not set.  Returns 0 on success.  On failure returns -1 with errno; EEXIST means that the file of this name has
 * other contents. */
int weir__model_shared_join(void);
/* Returns 1 if this process shares the memory of the modelled devices, else 0. */
int weir__model_shared_is(void);
/* Returns a number that is equal in all processes that share the devices.  It becomes a part of the devices' UUIDs.
 * Returns 0 if this process does not share memory. */
uint64_t weir__model_shared_key(void);
/* Returns the bytes of the modelled device that other processes have allocated. */
uint64_t weir__model_shared_others(int device);
/* Allocates bytes of a device with this capacity for this process.  Returns 0 on success, -1 if all processes
 * together would have more than the capacity. */
int weir__model_shared_alloc(int device, uint64_t capacity, uint64_t bytes);
void weir__model_shared_free(int device, uint64_t bytes);

#endif
