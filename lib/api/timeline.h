/* SPDX-License-Identifier: MIT */
/* timeline.h: records events and counters, and writes them as JSON trace events, which Perfetto and Chrome show.
 *
 * A timeline is one row of the picture that Perfetto shows.  It has counters (requested, in use, reserved), slices
 * (growths, released memory, iterations) and marks (failures).  Its memory is bounded.  If the counters have too many
 * points, weir merges adjacent points, and keeps the largest values, so that peaks stay.  If there are too many slices
 * and marks, weir only counts the further slices and marks.
 *
 * Times are nanoseconds of the caller's clock.  The functions are not thread-safe.
 *
 * This file must not know allocators or the place of a file. */
#ifndef WEIR_TIMELINE_H
#define WEIR_TIMELINE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <weir/stats.h>

enum weir_timeline_counter {
    WEIR_TIMELINE_REQUESTED,
    WEIR_TIMELINE_IN_USE,
    WEIR_TIMELINE_RESERVED,
    WEIR_TIMELINE_COUNTERS
};

/* Stands for the value of a counter that is not known. */
#define WEIR_TIMELINE_UNKNOWN UINT64_MAX

enum { WEIR_TIMELINE_POINTS = 16384, WEIR_TIMELINE_SLICES = 131072 };

struct weir_timeline;

/* Returns a new timeline, or NULL if there is no host memory. */
struct weir_timeline *weir__timeline_open(void);
void weir__timeline_close(struct weir_timeline *t);

/* Records the values that the counters have from `time_ns` on.  `time_ns` must not be before the time of an earlier
 * call. */
void weir__timeline_count(struct weir_timeline *t, uint64_t time_ns,
                          const uint64_t values[WEIR_TIMELINE_COUNTERS]);
/* The least and the largest value of each counter, from `time_ns` until the time of the next extent. */
struct weir_timeline_extent {
    uint64_t time_ns;
    uint64_t low[WEIR_TIMELINE_COUNTERS], high[WEIR_TIMELINE_COUNTERS];
};

/* Summarises the recorded counters in at most `most` extents.  Returns the number of extents.  A merged point counts
 * with its largest values. */
size_t weir__timeline_extents(const struct weir_timeline *t, struct weir_timeline_extent *out,
                              size_t most);
/* Records growths and releases of an allocator that was created at `made_ns`.  `last` is the sequence number of the
 * last event that was recorded before.  The function also counts the events after `last` that the allocator no longer
 * has.  Returns the sequence number of the last event. */
uint64_t weir__timeline_events(struct weir_timeline *t, uint64_t made_ns, uint64_t last,
                               const weir_event *events, size_t count);
/* Records a failed request of `bytes` bytes. */
void weir__timeline_failure(struct weir_timeline *t, uint64_t time_ns, uint64_t bytes);
/* Records an iteration.  `label` must live until the timeline is written. */
void weir__timeline_iteration(struct weir_timeline *t, uint64_t from_ns, uint64_t to_ns,
                              const char *label);

/* Returns how many slices and marks were not recorded, because there were too many. */
uint64_t weir__timeline_missing(const struct weir_timeline *t);

/* Writes to `text` a valid file of the format with no events, which names the process.  The file of a process has these
 * contents until the timeline is written.  The text has less than 300 bytes.  Returns the length of the text. */
int weir__timeline_unfinished(char *text, size_t bytes, long process);

/* Write a file: the first function writes the beginning of the file, the second writes a timeline, and the third writes
 * the end.  `process` and `process_name` are the id and the name of the timeline's process.  `number` and `name`
 * identify the timeline and are unique in the process.  Use ferror(3) to find errors. */
void weir__timeline_begin_file(FILE *file);
void weir__timeline_write(const struct weir_timeline *t, FILE *file, long process,
                          const char *process_name, int number, const char *name);
void weir__timeline_end_file(FILE *file, uint64_t missing);

#endif
