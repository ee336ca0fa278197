/* SPDX-License-Identifier: MIT */
/* record.h: declares functions that libweir-record.so exports, and functions that the files of this folder share. */
#ifndef WEIR_RECORD_H
#define WEIR_RECORD_H

#include <stdint.h>

#include "adapters/record/nvtx_abi.h"
#include "adapters/record/record_ring.h"

#define WEIR_RECORD_EXPORT __attribute__((visibility("default")))

/* Records the end of an iteration.  Programs find this function by dlsym or as a weak symbol. */
WEIR_RECORD_EXPORT void weir_mark(const char *label);

/* NVTX calls this function, which it finds in the library that NVTX_INJECTION64_PATH names. */
WEIR_RECORD_EXPORT weir_nvtx_initialize InitializeInjectionNvtx2;

/* weir__record_callers is 1 for `weir record --callers`.  weir__record_caller_names() stores the numbers of two names:
 * the requesting code and the innermost NVTX range.  0 means no name. */
extern int weir__record_callers;
void weir__record_caller_names(uint64_t *place, uint64_t *range);
/* Returns the innermost open NVTX range of this thread that has a name, or NULL. */
const char *weir__record_range(void);
/* Sends a name and its number to the process `weir record`. */
void weir__record_name(uint64_t number, const char *name);

/* ---- record_files.c ---- */

/* Creates the shared file for this process's events.  On failure, reports the reason and returns NULL.  Sets *lost to
 * the counter of lost events, or to NULL.  Called once. */
struct weir_record_file *weir__record_file_create(int has_counter, _Atomic uint64_t **lost);

/* Creates ring buffer number `index' of this process.  Returns NULL on failure. */
struct weir_record_ring *weir__record_ring_create(uint32_t index);

/* Returns 0 if the process `weir record` has ended, else 1. */
int weir__record_recorder_lives(void);

#endif
