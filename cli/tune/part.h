/* SPDX-License-Identifier: MIT */
/* part.h: the beginning of a tape, as a tape of its own.
 *
 * Must not know: why it is wanted.
 */
#ifndef WEIR_CLI_PART_H
#define WEIR_CLI_PART_H

#include <stddef.h>
#include <stdint.h>

#include "cli/replay/tape.h"

/* Up to and with mark number `marks'; 0: all of it.  What has no mark gets one at its end.  A file descriptor for
 * tape_map, or -1 with the reason in `message'. */
int part_make(const struct tape *tape, uint64_t marks, char *message, size_t message_bytes);

#endif
