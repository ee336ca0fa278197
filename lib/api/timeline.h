/* SPDX-License-Identifier: MIT */
/* timeline.h: what happened when, as a file in the JSON trace event format, which Perfetto and Chrome show.
 *
 * A timeline is one row of a picture: counters (requested, in use, reserve), slices (growths, what was given
 * back, iterations) and marks (failures).  It takes bounded memory: of counters that come too often neighbours are
 * put together, each with the largest values that it had, so that peaks stay; slices and marks stay as they
 * are up to a number, beyond which they are counted.
 *
 * Times are nanoseconds of one clock, the caller's.  Not thread-safe.
 *
 * Must not know: allocators, where a file goes.
 */
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

/* A value of one that is not known. */
#define WEIR_TIMELINE_UNKNOWN UINT64_MAX

enum { WEIR_TIMELINE_POINTS = 16384, WEIR_TIMELINE_SLICES = 131072 };

struct weir_timeline;

/* NULL: no host memory. */
struct weir_timeline *weir__timeline_open(void);
void weir__timeline_close(struct weir_timeline *t);

/* The values are so from then on.  Times do not fall. */
void weir__timeline_count(struct weir_timeline *t, uint64_t time_ns,
                          const uint64_t values[WEIR_TIMELINE_COUNTERS]);
/* From a time on, until the next one's: the least and the most of each counter. */
struct weir_timeline_extent {
    uint64_t time_ns;
    uint64_t low[WEIR_TIMELINE_COUNTERS], high[WEIR_TIMELINE_COUNTERS];
};

/* All that is kept of the counters, in no more than `most' parts: how many these are.  What was put together before is
 * known by its largest values. */
size_t weir__timeline_extents(const struct weir_timeline *t, struct weir_timeline_extent *out,
                              size_t most);
/* A growth, or reserve that was given back, of an allocator that was made at that time. */
void weir__timeline_event(struct weir_timeline *t, uint64_t made_ns, const weir_event *event);
/* Some that follow each other, behind the one of sequence `last', of which those that are missing are counted: the
 * sequence of the last one. */
uint64_t weir__timeline_events(struct weir_timeline *t, uint64_t made_ns, uint64_t last,
                               const weir_event *events, size_t count);
/* A request of so many bytes was refused. */
void weir__timeline_failure(struct weir_timeline *t, uint64_t time_ns, uint64_t bytes);
/* An iteration; the text lives until the timeline is written. */
void weir__timeline_iteration(struct weir_timeline *t, uint64_t from_ns, uint64_t to_ns,
                              const char *label);
/* So many slices or marks are known to have happened, and no more of them. */
void weir__timeline_lost(struct weir_timeline *t, uint64_t count);

/* How many slices and marks are missing. */
uint64_t weir__timeline_missing(const struct weir_timeline *t);

/* What stands in a process's file until it is written, itself a file of the format, and no other process's: its
 * length.  Of less than 300 bytes. */
int weir__timeline_unfinished(char *text, size_t bytes, long process);

/* The file: its begin, then each timeline, under the number and name of a process and its own name (of
 * one process others have other names and other numbers), then its end.  Errors are the file's. */
void weir__timeline_begin_file(FILE *file);
void weir__timeline_write(const struct weir_timeline *t, FILE *file, long process,
                          const char *process_name, int number, const char *name);
void weir__timeline_end_file(FILE *file, uint64_t missing);

#endif
