/* SPDX-License-Identifier: MIT */
/* show.h: the figures of a process's allocators.  The process publishes these figures for `weir top`, as the body of a
 * segment (segment.h).
 *
 * struct weir_show contains only 64-bit words and texts, so it has no padding.  A change of its layout needs a new
 * version.  A reader calls weir__show_check() before it uses figures that another process has written.  After this
 * call, all texts end with a NUL, and all counts are in range.
 *
 * This file must not know the place of a segment. */
#ifndef WEIR_SHOW_H
#define WEIR_SHOW_H

#include <weir/stats.h>

#include "base/who.h"
#include "ipc/segment.h"

enum {
    WEIR_SHOW_VERSION = 2,
    WEIR_SHOW_MOST = 16,  /* the maximum number of allocators in the figures */
    WEIR_SHOW_EVENTS = 8, /* the maximum number of events of each allocator */
    WEIR_SHOW_COMMAND = WEIR_COMMAND_BYTES,
    WEIR_SHOW_WORD = 24,
    WEIR_SHOW_KINDS = 8, /* the maximum number of kinds of memory that weir does not serve */
    /* The maximum number of libraries with memory that weir does not serve. */
    WEIR_SHOW_CALLERS = 8,
    WEIR_SHOW_OBJECT = 32
};

struct weir_show_event {
    uint64_t ago_ns; /* the time from the event to weir_show.time_ns, in nanoseconds */
    uint64_t asked, got, stall_ns, reserved_after;
    uint64_t cause, shrink;
};

struct weir_show_latency {
    /* All fields are 0 if weir does not measure latencies. */
    uint64_t count, p50_ns, p90_ns, p99_ns, p999_ns, max_ns;
};

/* clang-format off */
/* The figures of an allocator that `weir top` shows.  Each entry X(name) is the name of a field of weir_statistics. */
#define WEIR_SHOW_FIGURES(X) \
    X(allocs) X(frees) X(hits) X(cache_hits) X(failed_requests) X(growths) X(growth_bytes) X(stall_ns) X(trims) \
    X(trim_bytes) X(blocks) X(requested) X(requested_peak) X(in_use) X(in_use_peak) X(reserved) X(reserved_peak) \
    X(cache_idle)
/* clang-format on */

struct weir_show_allocator {
    char device[WEIR_SHOW_WORD]; /* the device, such as "cuda:0" */
    char engine[WEIR_SHOW_WORD]; /* the engine, such as "mapped" */
    char serves[WEIR_SHOW_WORD]; /* the calls that the allocator serves, such as "pool" */
    uint64_t limit;              /* the limit in bytes, or UINT64_MAX if there is no limit */
#define WEIR_SHOW_FIELD(name) uint64_t name;
    WEIR_SHOW_FIGURES(WEIR_SHOW_FIELD)
#undef WEIR_SHOW_FIELD
    struct weir_show_latency latency[2]; /* the latencies of weir_alloc and of weir_free */
    /* The number of entries in `event`; the oldest event is first. */
    uint64_t events;
    struct weir_show_event event[WEIR_SHOW_EVENTS];
};

struct weir_show_kind {
    char call[WEIR_SHOW_WORD]; /* the driver's call, such as "cuMemAlloc"; "" ends the list */
    uint64_t bytes;
};

struct weir_show_caller {
    char object[WEIR_SHOW_OBJECT]; /* the library, such as "libnccl.so.2"; "" ends the list */
    uint64_t bytes;
};

struct weir_show {
    uint64_t time_ns; /* the time of all figures, from CLOCK_MONOTONIC */
    char command[WEIR_SHOW_COMMAND];
    /* The number of requests that weir did not serve. */
    uint64_t left;
    /* Memory that weir does not serve, for each call of the driver. */
    struct weir_show_kind kind[WEIR_SHOW_KINDS];
    /* Memory that weir does not serve, for each library that called the driver. */
    struct weir_show_caller caller[WEIR_SHOW_CALLERS];
    /* The number of the process's allocators; the figures contain `allocators` of them. */
    uint64_t all;
    uint64_t allocators;
    struct weir_show_allocator allocator[WEIR_SHOW_MOST];
};

extern const struct weir_segment_kind weir__show_kind;

/* Writes the name of an allocator's engine, such as "mapped" or "bfc-fixed".  The name does not change while the
 * allocator lives. */
void weir__show_engine(const struct weir_allocator *allocator, char *text, size_t bytes);

/* Fills *out with the figures of an allocator, except the fields `device` and `serves`.  Returns 1 on success, 0 if
 * weir_stats fails. */
int weir__show_fill(struct weir_allocator *allocator, struct weir_show_allocator *out);

/* Returns the time since the allocator's creation in nanoseconds, by the clock of its device. */
uint64_t weir__show_age(struct weir_allocator *allocator);

/* Corrects figures that another process has written, so that the caller can use them safely.  `now` is the present time
 * of CLOCK_MONOTONIC. */
void weir__show_check(struct weir_show *show, uint64_t now);

#endif
