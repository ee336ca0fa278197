/* SPDX-License-Identifier: MIT */
/* busy.h: gives the streams of a replay GPU work, as a real program would have it.
 *
 * Without GPU work, every free has completed at once, so any allocator can reuse any block at once.  In a real
 * program the host runs ahead of the device, and a free completes only after all earlier work on its stream.  A
 * trace contains the times of calls, but not the GPU work.  Therefore the replay makes up work: after each event,
 * its stream gets a delay kernel.  The kernel runs as long as the program took until the next event (at most
 * MAX_GAP_US), times a factor.  No stream gets the time after a mark.
 *
 * A launch takes about 3 microseconds of host time.  So the delays of a stream are added up until they reach 10
 * microseconds.  They are launched earlier if the trace has a mark, or if one stream waits for another.  A free may
 * therefore seem to complete up to 10 microseconds too early.
 *
 * The makespan of an iteration is the time on the device from its start to the end of the work on all streams.  It
 * includes the time for which an allocator makes a stream wait.
 *
 * This file must not depend on allocators or traces.
 */
#ifndef WEIR_CLI_BUSY_H
#define WEIR_CLI_BUSY_H

#include "driver/driver.h"

/* Returns NULL if the driver has all features that GPU work needs, else the missing features, as text for a message. */
const char *busy_lacks(const struct weir_driver *driver);

struct busy;

/* Prepares GPU work that lasts `factor' times as long as the gaps in the trace.  `streams' must stay valid until
 * busy_close().  On failure, writes the reason to `message' and returns NULL. */
struct busy *busy_open(const struct weir_driver *driver, double factor, const CUstream *streams,
                       size_t stream_count, char *message, size_t message_bytes);
void busy_close(struct busy *busy); /* NULL is allowed */

/* Adds gap_us microseconds, times the factor, to the pending GPU work of a stream.  Returns 1 if busy_flush() should
 * launch the work now, 0 if not. */
int busy_add_delay(struct busy *busy, size_t stream, uint64_t gap_us);

/* The next functions return 1 on success.  On failure, they return 0, and busy_message() returns the reason. */

/* Launches the pending GPU work of a stream. */
int busy_flush(struct busy *busy, size_t stream);
/* Begins an iteration.  The device must be idle. */
int busy_begin(struct busy *busy);
/* Ends an iteration: launches all pending GPU work, waits for the device, and stores the time that the iteration took
 * on the device in *makespan_ns. */
int busy_end(struct busy *busy, uint64_t *makespan_ns);

const char *busy_message(const struct busy *busy);

#endif
