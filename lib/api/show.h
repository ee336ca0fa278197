/* SPDX-License-Identifier: MIT */
/* show.h: the figures of a process's allocators, which the process publishes for `weir top` as the body of a segment
 * (segment.h).
 *
 * struct weir_show has 64-bit words and texts only, so that it has no padding.  A change of the layout needs a new
 * version.  A reader calls weir__show_check before it uses figures that another process wrote.  After this call all
 * texts end with a NUL, and all counts are in range.
 *
 * This file must not know the place of a segment.
 */
#ifndef WEIR_SHOW_H
#define WEIR_SHOW_H

#include <weir/stats.h>

#include "base/who.h"
#include "ipc/segment.h"

enum {
    WEIR_SHOW_VERSION = 2,
    WEIR_SHOW_MOST = 16,  /* the most allocators of a process */
    WEIR_SHOW_EVENTS = 8, /* the most events of an allocator */
    WEIR_SHOW_COMMAND = WEIR_COMMAND_BYTES,
    WEIR_SHOW_WORD = 24,
    WEIR_SHOW_KINDS = 8,   /* the most kinds of memory that weir does not serve */
    WEIR_SHOW_CALLERS = 8, /* the most libraries that have such memory */
    WEIR_SHOW_OBJECT = 32
};

struct weir_show_event {
    uint64_t ago_ns; /* nanoseconds from the event to `time_ns` */
    uint64_t asked, got, stall_ns, reserved_after;
    uint64_t cause, shrink;
};

struct weir_show_latency {
    uint64_t count, p50_ns, p90_ns, p99_ns, p999_ns, max_ns; /* `count` is 0 if not measured */
};

/* clang-format off */
/* The figures of an allocator that `weir top` shows.  A row is X(name), with a name of weir_statistics. */
#define WEIR_SHOW_FIGURES(X) \
    X(allocs) X(frees) X(hits) X(cache_hits) X(failed_requests) X(growths) X(growth_bytes) X(stall_ns) X(trims) \
    X(trim_bytes) X(blocks) X(requested) X(requested_peak) X(in_use) X(in_use_peak) X(reserved) X(reserved_peak) \
    X(cache_idle)
/* clang-format on */

struct weir_show_allocator {
    char device[WEIR_SHOW_WORD]; /* "cuda:0" */
    char engine[WEIR_SHOW_WORD]; /* "mapped" */
    char serves[WEIR_SHOW_WORD]; /* "pool", "cuMemAlloc" */
    uint64_t limit;              /* UINT64_MAX if there is no limit */
#define WEIR_SHOW_FIELD(name) uint64_t name;
    WEIR_SHOW_FIGURES(WEIR_SHOW_FIELD)
#undef WEIR_SHOW_FIELD
    struct weir_show_latency latency[2]; /* the latencies of weir_alloc and of weir_free */
    uint64_t events;                     /* the number of entries in `event`, oldest first */
    struct weir_show_event event[WEIR_SHOW_EVENTS];
};

struct weir_show_kind {
    char call[WEIR_SHOW_WORD]; /* "cuMemAlloc"; "" ends the list */
    uint64_t bytes;
};

struct weir_show_caller {
    char object[WEIR_SHOW_OBJECT]; /* "libnccl.so.2"; "" ends the list */
    uint64_t bytes;
};

struct weir_show {
    uint64_t time_ns; /* the time of the figures by CLOCK_MONOTONIC */
    char command[WEIR_SHOW_COMMAND];
    uint64_t left;                               /* requests that weir did not serve */
    struct weir_show_kind kind[WEIR_SHOW_KINDS]; /* memory that weir does not serve, by call */
    /* Memory that weir does not serve, by the library that called. */
    struct weir_show_caller caller[WEIR_SHOW_CALLERS];
    uint64_t all; /* the number of all allocators; `allocators` of them follow */
    uint64_t allocators;
    struct weir_show_allocator allocator[WEIR_SHOW_MOST];
};

extern const struct weir_segment_kind weir__show_kind;

/* Writes the name of an allocator's engine, such as "mapped" or "bfc-fixed".  The text never changes while the allocator
 * lives. */
void weir__show_engine(const struct weir_allocator *allocator, char *text, size_t bytes);

/* Fills in the figures of an allocator except `device` and `serves`.  Returns 1 on success, 0 if weir_stats fails. */
int weir__show_fill(struct weir_allocator *allocator, struct weir_show_allocator *out);

/* Returns the nanoseconds since the allocator's creation, by its device's clock. */
uint64_t weir__show_age(struct weir_allocator *allocator);

/* Corrects figures that another process wrote, so that they are safe to use.  `now` is the time of CLOCK_MONOTONIC. */
void weir__show_check(struct weir_show *show, uint64_t now);

#endif
