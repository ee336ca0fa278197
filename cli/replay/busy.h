/* SPDX-License-Identifier: MIT */
/* busy.h: work on the streams of a replay, as a program would have there.
 *
 * A replay without work finds every free complete at once, so that any allocator reuses any block at
 * once.  In a program the host runs ahead of the device, and a free takes effect when the work
 * before it is done.
 *
 * The model.  A trace tells when memory was asked for, not what ran.  The time from one event to the
 * next is taken as work that the program submitted on the stream of the first: what fills the block
 * after an allocation, what reads it after a use on another stream, what else ran before the free.
 * That time multiplied by FACTOR is submitted as a delay on that stream, behind the event.  A gap
 * counts for at most 10 ms (TAPE_MOST_GAP_US): longer ones are a program that loads data or code.
 * What follows a mark until the next event belongs to no stream.
 *
 * What comes of it.  A replay asks much faster than the program did, so with a factor of 1 the device
 * is behind: frees are pending until the delays before them are over, a request may find most of an
 * iteration pending, and the launch queue of the driver alone bounds how far the host runs ahead.
 * The delays of all streams add up to at most FACTOR times the recorded time: that, and the
 * launches' own time on the device (1.3 microseconds each on an H200), is the longest that they can
 * take together, whatever an allocator orders behind what.
 *
 * A launch costs the host 3 microseconds, so delays are gathered by stream until there are 10: a free
 * may look complete that much too early, never more.  What is gathered is submitted before a wait of
 * the trace and at a mark.
 *
 * The makespan is the time on the device, between events, from the start of an iteration to the
 * end of the work of all streams.  Waits that an allocator orders show in it.
 *
 * Must not know: allocators, traces, whether the device is a model.
 */
#ifndef WEIR_CLI_BUSY_H
#define WEIR_CLI_BUSY_H

#include "driver/driver.h"

/* Returns what the driver lacks for GPU work, as a part of a sentence, or NULL. */
const char *busy_lacks(const struct weir_driver *driver);

struct busy;

/* For these streams of the current context, which must outlive it; the driver can.  Waits for the
 * device.  NULL with the reason in `message`. */
struct busy *busy_open(const struct weir_driver *driver, double factor, const CUstream *streams,
                       size_t stream_count, char *message, size_t message_bytes);
void busy_close(struct busy *busy); /* NULL is fine */

/* Adds work of that much trace time to what is gathered for a stream, by its index.  Returns 1 if that is enough for a
 * launch, which busy_flush() does, 0 if not. */
int busy_gather(struct busy *busy, size_t stream, uint64_t gap_us);

/* The functions below but one return 1, or 0 with busy_message. */

/* Submits what is gathered for a stream. */
int busy_flush(struct busy *busy, size_t stream);
/* Begins an iteration.  The device is idle. */
int busy_begin(struct busy *busy);
/* Ends an iteration: submits gathered work, synchronises, sets the makespan. */
int busy_end(struct busy *busy, uint64_t *makespan_ns);

const char *busy_message(const struct busy *busy);

#endif
