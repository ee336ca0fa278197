/* SPDX-License-Identifier: MIT */
/* part.h: some iterations of a tape, as a tape of its own: what a program would request that begins there.
 *
 * Blocks that are live where the part begins are requested first, in their order.
 *
 * Must not know: why a part is wanted.
 */
#ifndef WEIR_CLI_PART_H
#define WEIR_CLI_PART_H

#include <stddef.h>
#include <stdint.h>

#include "cli/replay/tape.h"

/* The iterations behind mark number `from' (0: from the beginning) up to and with mark `to' (0: to the end of the
 * tape).  A part without a mark gets one at its end.  A file descriptor for tape_map, or -1 with the reason in
 * `message'. */
int part_make(const struct tape *tape, uint64_t from, uint64_t to, struct tape_header *header,
              char *message, size_t message_bytes);

#endif
