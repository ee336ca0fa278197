/* SPDX-License-Identifier: MIT */
/* show.h: figures of allocators.  A process publishes them in shared memory, and the command `weir top` reads them. */
#ifndef WEIR_SHOW_H
#define WEIR_SHOW_H

#include <weir/stats.h>

#include "base/who.h"
#include "ipc/segment.h"

enum {
    WEIR_SHOW_VERSION = 2,
    WEIR_SHOW_MOST = 16,  /* the maximum number of allocators that a process publishes */
    WEIR_SHOW_EVENTS = 8, /* the maximum number of latest growths of an allocator */
    WEIR_SHOW_COMMAND = WEIR_COMMAND_BYTES,
    WEIR_SHOW_WORD = 24,
    WEIR_SHOW_KINDS = 8,   /* the maximum number of driver calls in the list `kind` */
    WEIR_SHOW_CALLERS = 8, /* the maximum number of libraries in the list `caller` */
    WEIR_SHOW_OBJECT = 32
};

struct weir_show_event {
    uint64_t ago_ns; /* the time since the event, in nanoseconds */
    uint64_t asked, got, stall_ns, reserved_after;
    uint64_t cause, shrink;
};

struct weir_show_latency {
    /* Percentiles of the time that calls took.  All fields are 0 if weir does not measure this time. */
    uint64_t count, p50_ns, p90_ns, p99_ns, p999_ns, max_ns;
};

/* clang-format off */
/* The published figures of an allocator.  Each entry X(name) is the name of a field of weir_statistics. */
#define WEIR_SHOW_FIGURES(X) \
    X(allocs) X(frees) X(hits) X(cache_hits) X(failed_requests) X(growths) X(growth_bytes) X(stall_ns) X(trims) \
    X(trim_bytes) X(blocks) X(requested) X(requested_peak) X(in_use) X(in_use_peak) X(reserved) X(reserved_peak) \
    X(cache_idle)
/* clang-format on */

struct weir_show_allocator {
    char device[WEIR_SHOW_WORD]; /* the name of the device, such as "cuda:0" */
    char engine[WEIR_SHOW_WORD]; /* the name of the engine, such as "mapped" */
    char serves[WEIR_SHOW_WORD]; /* the program's calls, such as "pool" for cudaMallocAsync */
    uint64_t limit;              /* the limit in bytes, or UINT64_MAX for no limit */
#define WEIR_SHOW_FIELD(name) uint64_t name;
    WEIR_SHOW_FIGURES(WEIR_SHOW_FIELD)
#undef WEIR_SHOW_FIELD
    struct weir_show_latency latency[2]; /* the latencies of allocations and of frees */
    uint64_t events;                     /* the number of used entries of `event`, oldest first */
    struct weir_show_event event[WEIR_SHOW_EVENTS];
};

struct weir_show_kind {
    char call[WEIR_SHOW_WORD]; /* the driver call, such as "cuMemAlloc"; "" ends the list */
    uint64_t bytes;
};

struct weir_show_caller {
    char object[WEIR_SHOW_OBJECT]; /* a library's name, such as "libnccl.so.2"; "" ends the list */
    uint64_t bytes;
};

/* The figures of a process, as 64-bit words and texts, without padding.  A change must increase WEIR_SHOW_VERSION. */
struct weir_show {
    uint64_t time_ns; /* when the figures were read (CLOCK_MONOTONIC) */
    char command[WEIR_SHOW_COMMAND];
    uint64_t left; /* the number of requests that weir passed to the driver */
    /* Memory that the driver allocated without weir, by kind of driver call and by library that made the calls. */
    struct weir_show_kind kind[WEIR_SHOW_KINDS];
    struct weir_show_caller caller[WEIR_SHOW_CALLERS];
    uint64_t all;        /* the number of the process's allocators */
    uint64_t allocators; /* the number of entries of `allocator` */
    struct weir_show_allocator allocator[WEIR_SHOW_MOST];
};

extern const struct weir_segment_kind weir__show_kind;

/* Writes the name of the allocator's engine, such as "mapped" or "bfc-fixed".  The name never changes. */
void weir__show_engine(const struct weir_allocator *allocator, char *text, size_t bytes);

/* Fills *out with an allocator's figures, except `device` and `serves`.  Returns 0 if weir_stats fails, else 1. */
int weir__show_fill(struct weir_allocator *allocator, struct weir_show_allocator *out);

/* Returns the nanoseconds since the allocator's creation, by the clock of its driver table. */
uint64_t weir__show_age(struct weir_allocator *allocator);

/* Corrects figures that another process has written.  `now` is the present time of CLOCK_MONOTONIC. */
void weir__show_check(struct weir_show *show, uint64_t now);

#endif
