/* SPDX-License-Identifier: MIT */
/* samples.h: what a replay looked like over its length, in a bounded number of figures.
 *
 * Noted after each operation of a replay whose times count for nothing.  Kept are
 *
 *   a time line   the operations in at most SAMPLES_POINTS equal parts, and of each the least and the most that
 *                 was requested, in use and reserved: no peak is lost
 *   steps         each operation in which the reserved memory grew or was given back, or somebody waited for
 *                 that; of more than SAMPLES_STEPS the largest
 *   a map         at SAMPLES_COLUMNS operations, one of them at the peak requested memory, which addresses blocks lie at, in
 *                 SAMPLES_ROWS cells; addresses that never held a block in any of them are left out
 *
 * Must not know: configurations, time, the device.
 */
#ifndef WEIR_CLI_SAMPLES_H
#define WEIR_CLI_SAMPLES_H

#include <jansson.h>

#include "cli/replay/configuration.h"
#include "cli/replay/tape.h"

enum {
    SAMPLES_POINTS = 512,
    SAMPLES_STEPS = 1000,
    SAMPLES_COLUMNS = 96,
    SAMPLES_ROWS = 96,
    SAMPLES_MARKS = 256 /* with more iterations than that, where they end is left out */
};

struct samples;

/* With the figures before the first operation.  NULL: out of memory.  The tape stays mapped. */
struct samples *samples_open(const struct tape *tape, const struct figures *before);
/* After operation i of the tape: where blocks are (by index; NULL: not live), and the figures then. */
void samples_note(struct samples *samples, uint64_t i, void *const *addresses,
                  const struct figures *figures);
/* "samples" as weir-json(7) tells them; NULL: out of memory, now or in between. */
json_t *samples_json(const struct samples *samples);
void samples_close(struct samples *samples);

#endif
