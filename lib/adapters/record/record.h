/* SPDX-License-Identifier: MIT */
/* record.h: the functions that libweir-record.so exports in addition to the driver's functions, and the functions that
 * its files share. */
#ifndef WEIR_RECORD_H
#define WEIR_RECORD_H

#include <stdint.h>

#include "adapters/record/nvtx_abi.h"
#include "adapters/record/record_ring.h"

#define WEIR_RECORD_EXPORT __attribute__((visibility("default")))

/* Records the end of an iteration.  Programs find this function by dlsym or as a weak symbol. */
WEIR_RECORD_EXPORT void weir_mark(const char *label);

/* NVTX calls this function (record_nvtx.c).  NVTX finds the function in the library that NVTX_INJECTION64_PATH
 * names. */
WEIR_RECORD_EXPORT weir_nvtx_initialize InitializeInjectionNvtx2;

/* weir__record_callers is 1 if requests are recorded with the names of their callers (`weir record --callers`), else 0.
 * weir__record_who writes the numbers of two names for this thread's request: the place in the program, and the
 * innermost NVTX range.  The number 0 means that a name is missing. */
extern int weir__record_callers;
void weir__record_who(uint64_t *place, uint64_t *range);
/* Returns the name of this thread's innermost open NVTX range that has a name, or NULL if there is none
 * (record_nvtx.c). */
const char *weir__record_range(void);
/* Sends a name with its number to the recorder (record.c). */
void weir__record_name(uint64_t number, const char *name);

/* ---- the files of a recorded process: record_files.c ---- */

/* Creates this process's file, or claims a spare file of the board.  Returns NULL if neither is possible.  In that case
 * the function has informed the recorder, or the user if the recorder has ended.  Sets *lost to the counter of lost
 * events, or to NULL if there is none.  Called once. */
struct weir_record_file *weir__record_file_make(int has_counter, _Atomic uint64_t **lost);

/* Creates ring number `index' of this process's file.  Returns NULL if no folder has room for the ring. */
struct weir_record_ring *weir__record_ring_make(uint32_t index);

/* Returns 0 if the recorder has ended.  Returns 1 if the recorder lives or this process cannot tell. */
int weir__record_recorder_lives(void);

#endif
