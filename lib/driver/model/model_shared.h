/* SPDX-License-Identifier: MIT */
/* model_shared.h: lets several processes share the memory of the modelled devices, for tests.  Their variables
 * WEIR_MODEL_SHARED name one file.  When a process ends, in any way, its memory becomes free. */
#ifndef WEIR_MODEL_SHARED_H
#define WEIR_MODEL_SHARED_H

#include <stdint.h>

/* Joins the processes that share the devices by the file WEIR_MODEL_SHARED, if set.  A second call sets this process's
 * allocated bytes to 0.  Returns 0 on success, else -1 and errno: EEXIST if the file lacks the model's mark. */
int weir__model_shared_join(void);
/* Returns 1 if this process shares the memory of the modelled devices, else 0. */
int weir__model_shared_is(void);
/* Returns a number for devices' UUIDs that is equal in all sharing processes, or 0 if no devices are shared. */
uint64_t weir__model_shared_key(void);
/* Returns the bytes of the modelled device that other processes have allocated. */
uint64_t weir__model_shared_others(int device);
/* Allocates bytes for this process.  Returns 0 on success, -1 if all processes together would exceed `capacity`. */
int weir__model_shared_alloc(int device, uint64_t capacity, uint64_t bytes);
void weir__model_shared_free(int device, uint64_t bytes);

#endif
