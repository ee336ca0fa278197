/* SPDX-License-Identifier: MIT */
/* pending.h: the least memory with which a busy replay could do without a wait that the trace has not.
 *
 * That is the floor: the bytes that are requested, and those that are pending.  A block that was freed on a stream is
 * pending until the work queued on the stream by then has ended.  Meanwhile only that stream may take its bytes again;
 * it takes those first that it freed last.  A block that other streams used is pending until their work has ended, too,
 * and nobody takes its bytes before.  Sizes are as requested: no rounding, no fragments.
 *
 * The streams' work is that of busy.h, and begins when it is submitted or when what is before it on the stream has
 * ended.  What an allocator adds, waits or time, ends nothing later here, but for the host's clock.
 *
 * Must not know: drivers, configurations.
 */
#ifndef WEIR_CLI_PENDING_H
#define WEIR_CLI_PENDING_H

#include "cli/replay/tape.h"

struct pending;

/* For a tape with so many streams and blocks.  NULL: out of memory. */
struct pending *pending_open(const struct tape_header *header);
void pending_close(struct pending *p); /* NULL is fine */

/* What the replay did at that time of the host.  1, or 0: out of memory. */
int pending_note(struct pending *p, const struct tape_op *op, uint64_t now_ns);
/* Work of that length was submitted to a stream. */
void pending_work(struct pending *p, size_t stream, uint64_t ns, uint64_t now_ns);
/* The most that was requested and pending so far. */
uint64_t pending_floor(const struct pending *p);

#endif
