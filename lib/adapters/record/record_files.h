/* SPDX-License-Identifier: MIT */
/* record_files.h: the files of record_ring.h, as a recorded process makes them.
 *
 * Must not know: what an event is.
 */
#ifndef WEIR_RECORD_FILES_H
#define WEIR_RECORD_FILES_H

#include "adapters/record/record_ring.h"

/* Makes this process's file, or takes a spare one.  Returns NULL if there is neither, after telling the recorder, or
 * the user if there is no recorder.  *lost is the counter of lost events, or NULL.  Called once. */
struct weir_record_file *weir__record_file_make(int has_counter, _Atomic uint64_t **lost);

/* Makes ring `index' of this process's file.  Returns NULL if there is no room. */
struct weir_record_ring *weir__record_ring_make(uint32_t index);

/* Returns 0 if the recorder has ended, 1 if it lives or this process cannot tell. */
int weir__record_recorder_lives(void);

#endif
