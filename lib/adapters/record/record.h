/* SPDX-License-Identifier: MIT */
/* record.h: the functions that libweir-record.so exports beside the driver's, and those that its files share. */
#ifndef WEIR_RECORD_H
#define WEIR_RECORD_H

#include <stdint.h>

#include "adapters/record/nvtx_abi.h"
#include "adapters/record/record_ring.h"

#define WEIR_RECORD_EXPORT __attribute__((visibility("default")))

/* Records the end of an iteration.  Programs find this function by dlsym or as a weak symbol. */
WEIR_RECORD_EXPORT void weir_mark(const char *label);

/* For NVTX (record_nvtx.c), which finds it in the library that NVTX_INJECTION64_PATH names. */
WEIR_RECORD_EXPORT weir_nvtx_initialize InitializeInjectionNvtx2;

/* The flag says whether names of callers are wanted.  The function reads this thread's two names as numbers, or 0. */
extern int weir__record_callers;
void weir__record_who(uint64_t *place, uint64_t *range);
/* Returns the innermost range of this thread that has a name, or NULL (record_nvtx.c). */
const char *weir__record_range(void);
/* Sends a name with its number to the recorder (record.c). */
void weir__record_name(uint64_t number, const char *name);

/* ---- record_files.c: the files of record_ring.h, as a recorded process makes them ---- */

/* Makes this process's file, or takes a spare one.  Returns NULL if there is neither, after telling the recorder, or
 * the user if there is no recorder.  *lost is the counter of lost events, or NULL.  Called once. */
struct weir_record_file *weir__record_file_make(int has_counter, _Atomic uint64_t **lost);

/* Makes ring `index' of this process's file.  Returns NULL if there is no room. */
struct weir_record_ring *weir__record_ring_make(uint32_t index);

/* Returns 0 if the recorder has ended, 1 if it lives or this process cannot tell. */
int weir__record_recorder_lives(void);

#endif
