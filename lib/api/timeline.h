/* SPDX-License-Identifier: MIT */
/* timeline.h: records growths and memory sizes over time, and writes them as JSON trace events (Perfetto, Chrome).
 *
 * A timeline has counters (requested, in use and reserved bytes), slices with a start and an end (growths, releases of
 * memory, iterations) and marks (failures).  A full timeline merges points of counters, and drops slices and marks.
 * Times are nanoseconds of the caller's clock.  The functions are not thread-safe. */
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

#define WEIR_TIMELINE_UNKNOWN UINT64_MAX /* the value of a counter that is not known */

enum { WEIR_TIMELINE_POINTS = 16384, WEIR_TIMELINE_SLICES = 131072 };

struct weir_timeline;

/* Returns a new timeline, or NULL if there is no host memory. */
struct weir_timeline *weir__timeline_open(void);
void weir__timeline_close(struct weir_timeline *t);

/* Records the values of the counters at `time_ns`.  The times of successive calls must not decrease. */
void weir__timeline_count(struct weir_timeline *t, uint64_t time_ns,
                          const uint64_t values[WEIR_TIMELINE_COUNTERS]);
/* The least and the largest value of each counter from `time_ns` until the next extent. */
struct weir_timeline_extent {
    uint64_t time_ns;
    uint64_t low[WEIR_TIMELINE_COUNTERS], high[WEIR_TIMELINE_COUNTERS];
};

/* Writes the recorded counters for at most `most` periods, and returns the number of periods.  `low` may be too large,
 * since weir merges records to save memory, and keeps only the largest values. */
size_t weir__timeline_extents(const struct weir_timeline *t, struct weir_timeline_extent *out,
                              size_t most);
/* Records growths and releases of reserved memory.  `made_ns` is the creation time of the allocator.  `last` is the
 * number of the last recorded event.  Returns the new number. */
uint64_t weir__timeline_events(struct weir_timeline *t, uint64_t made_ns, uint64_t last,
                               const weir_event *events, size_t count);
void weir__timeline_failure(struct weir_timeline *t, uint64_t time_ns, uint64_t bytes);
/* Records an iteration of the program.  The text `label` must exist until the timeline is written. */
void weir__timeline_iteration(struct weir_timeline *t, uint64_t from_ns, uint64_t to_ns,
                              const char *label);

/* Returns the number of slices and marks that were not recorded, because there were too many. */
uint64_t weir__timeline_missing(const struct weir_timeline *t);

/* Writes a trace without events in less than 300 bytes, and returns its length.  The file has these contents until the
 * timeline is written. */
int weir__timeline_unfinished(char *text, size_t bytes, long process);

/* Write a trace file: call begin once, write for each timeline, and end once.  Then check ferror(3). */
void weir__timeline_begin_file(FILE *file);
void weir__timeline_write(const struct weir_timeline *t, FILE *file, long process,
                          const char *process_name, int number, const char *name);
void weir__timeline_end_file(FILE *file, uint64_t missing);

#endif
