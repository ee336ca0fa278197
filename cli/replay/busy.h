/* SPDX-License-Identifier: MIT */
/* busy.h: GPU work on the streams of a replay, as a program would have it there.
 *
 * Without work each free is complete at once, so any allocator reuses any block at once.  In a program the host runs
 * ahead of the device, and a free is complete only after the earlier work on its stream.  A trace has the times of
 * calls, not the work.  So FACTOR times the time from one event to the next, at most TAPE_MOST_GAP_US, is submitted
 * behind the event on its stream, as a delay.  The time after a mark belongs to no stream.
 *
 * A launch costs the host 3 microseconds, so delays are gathered by stream until there are 10, or until the trace
 * waits or has a mark.  A free may therefore look complete up to 10 microseconds too early.  The makespan is the time
 * on the device from the start of an iteration to the end of the work on all streams; it includes the waits that an
 * allocator orders.
 *
 * This file must not know allocators, traces or whether the device is a model.
 */
#ifndef WEIR_CLI_BUSY_H
#define WEIR_CLI_BUSY_H

#include "driver/driver.h"

/* Returns the features for GPU work that the driver lacks, as a part of a sentence, or NULL. */
const char *busy_lacks(const struct weir_driver *driver);

struct busy;

/* Prepares GPU work on these streams of the current context, which must outlive the result.  Waits for the device.
 * Returns NULL with the reason in `message' on failure. */
struct busy *busy_open(const struct weir_driver *driver, double factor, const CUstream *streams,
                       size_t stream_count, char *message, size_t message_bytes);
void busy_close(struct busy *busy); /* Does nothing if `busy' is NULL. */

/* Adds gap_us of trace time to the gathered work of the stream with that index.  Returns 1 if the work is enough
 * for a launch by busy_flush(), 0 if not. */
int busy_gather(struct busy *busy, size_t stream, uint64_t gap_us);

/* The functions below return 1 on success, 0 on failure with the reason in busy_message(). */

/* Submits the gathered work of a stream. */
int busy_flush(struct busy *busy, size_t stream);
/* Begins an iteration, with the device idle. */
int busy_begin(struct busy *busy);
/* Ends an iteration: submits gathered work, waits for the device, and sets the makespan. */
int busy_end(struct busy *busy, uint64_t *makespan_ns);

const char *busy_message(const struct busy *busy);

#endif
