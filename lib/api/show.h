/* SPDX-License-Identifier: MIT */
/* show.h: what a process shows of its allocators, as the body of a segment (segment.h).
 *
 * Made of 64-bit words and of texts, so that it has no unmapped ranges.  Another layout is another version.  Who reads one
 * that some process wrote lets weir__show_check look at it first: from then on texts end, counts are of what is
 * there, and a number is no more than a number.
 *
 * Must not know: where a segment is.
 */
#ifndef WEIR_SHOW_H
#define WEIR_SHOW_H

#include <weir/stats.h>

#include "base/who.h"
#include "ipc/segment.h"

enum {
    WEIR_SHOW_VERSION = 2,
    WEIR_SHOW_MOST = 16,  /* allocators of a process */
    WEIR_SHOW_EVENTS = 8, /* of each, the last */
    WEIR_SHOW_COMMAND = WEIR_COMMAND_BYTES,
    WEIR_SHOW_WORD = 24,
    WEIR_SHOW_KINDS = 8,   /* of memory that a program takes by itself */
    WEIR_SHOW_CALLERS = 8, /* the libraries that have most of it */
    WEIR_SHOW_OBJECT = 32
};

struct weir_show_event {
    uint64_t ago_ns; /* before the figures were taken */
    uint64_t asked, got, stall_ns, reserved_after;
    uint64_t cause, shrink;
};

struct weir_show_latency {
    uint64_t count, p50_ns, p90_ns, p99_ns, p999_ns, max_ns; /* count 0: none are kept */
};

struct weir_show_allocator {
    char device[WEIR_SHOW_WORD]; /* "cuda:0" */
    char engine[WEIR_SHOW_WORD]; /* "mapped" */
    char serves[WEIR_SHOW_WORD]; /* "pool", "cuMemAlloc" */
    uint64_t limit;              /* UINT64_MAX: none */
    uint64_t allocs, frees, hits, cache_hits, failed_requests, growths, growth_bytes, stall_ns,
        trims, trim_bytes;
    uint64_t blocks, requested, requested_peak, in_use, in_use_peak, reserved, reserved_peak,
        cache_idle;
    struct weir_show_latency latency[2]; /* of alloc, of free */
    uint64_t events;                     /* that follow, oldest first */
    struct weir_show_event event[WEIR_SHOW_EVENTS];
};

struct weir_show_kind {
    char call[WEIR_SHOW_WORD]; /* "cuMemAlloc"; "": no more */
    uint64_t bytes;
};

struct weir_show_caller {
    char object[WEIR_SHOW_OBJECT]; /* "libnccl.so.2"; "": no more */
    uint64_t bytes;
};

struct weir_show {
    uint64_t time_ns; /* CLOCK_MONOTONIC, when the figures were taken */
    char command[WEIR_SHOW_COMMAND];
    uint64_t left;                                     /* requests that weir did not serve */
    struct weir_show_kind kind[WEIR_SHOW_KINDS];       /* what the program has taken by itself, */
    struct weir_show_caller caller[WEIR_SHOW_CALLERS]; /* and who called */
    uint64_t all; /* allocators that there are; those that follow are the first */
    uint64_t allocators;
    struct weir_show_allocator allocator[WEIR_SHOW_MOST];
};

extern const struct weir_segment_kind weir__show_kind;

/* Of which engine it is, and of which packing or arena, if that is not the usual one: "mapped", "mapped fit", "bfc fixed";
 * as it was made, and does not change. */
void weir__show_engine(const struct weir_allocator *allocator, char *text, size_t bytes);

/* Fills one, but for device and serves, which are the caller's to say.  1, or 0: it does not tell. */
int weir__show_fill(struct weir_allocator *allocator, struct weir_show_allocator *out);

/* How long ago it was made, by its own clock, in nanoseconds. */
uint64_t weir__show_age(struct weir_allocator *allocator);

/* Makes what was read safe to show: see above.  `now' is CLOCK_MONOTONIC. */
void weir__show_check(struct weir_show *show, uint64_t now);

#endif
