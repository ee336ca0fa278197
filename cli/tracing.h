/* SPDX-License-Identifier: MIT */
/* tracing.h: converts the recorded events of a process to the text of a trace (weir/trace.h).
 *
 * Most events come in the order of their times, but some come late.  Each block gets an id, which is never used
 * again.  Streams are numbered in the order of their first events.  Readers of traces refuse a free of a block that
 * is not live, so the text leaves such a free out.  Readers also refuse a second allocation of a live block.
 * Therefore, if an address is allocated twice without a free, the text frees the first block before the second
 * allocation.
 *
 * This file must not depend on how the events were recorded.
 */
#ifndef WEIR_CLI_TRACING_H
#define WEIR_CLI_TRACING_H

#include "adapters/record/record_ring.h"
#include "base/map.h"
#include "cli/common/sink.h"

/* The library that `weir record' preloads.  A trace does not name this library as the caller of a driver function,
 * because the library only passes on the calls of the program. */
#define TRACING_LIBRARY "libweir-record.so"

/* The totals of all calls of one kind, such as requests for host memory.  A trace lists only the totals. */
struct counts {
    uint64_t calls, bytes, live, live_peak;
};

/* The code of a program or library in the memory of the process. */
struct module {
    uint64_t begin, end;
    char *name; /* the name of the file, without its folder */
};

struct modules {
    int process;
    struct module *modules; /* sorted by address */
    size_t count, room;
    struct weir_map nowhere; /* a set of pages (number + 1) without code of a module */
    size_t last;             /* the index of the module that the last search found */
};

struct tracing {
    struct sink *sink;
    struct modules modules;  /* the program and the libraries of the process */
    uint64_t limit;          /* the largest size of the trace in bytes, or 0 for no limit */
    struct weir_map blocks;  /* a map from addresses to their struct block */
    struct weir_map handles; /* a map from memory handles of cuMemCreate to their struct block */
    struct weir_map maps;    /* a map from addresses of cuMemMap to their struct mapping */
    struct weir_map streams; /* a map from stream handles to the number of the stream + 1 */
    struct weir_map defaults;
    /* A map from the numbers of Python callers and NVTX ranges to their names. */
    struct weir_map names;
    uint64_t next_id, next_stream;
    struct counts reserved, mapped, host;
    uint64_t written;        /* bytes of text */
    uint64_t events;         /* events in the text */
    uint64_t left_out;       /* events that are not in the text because of `limit' */
    uint64_t lost;           /* events that the process could not record */
    uint64_t left_out_frees; /* frees of blocks that were not live, which are not in the text */
    uint64_t added_frees;    /* frees in the text that the program did not make */
    uint64_t since_mark;     /* events since the last mark, which ends an iteration */
    int has_marks;           /* set if the program itself has set a mark */
    int failed;              /* an errno if the text could not be written, else 0 */
};

/* Begins the trace of a command.  If `process' is not 0, the trace names the libraries of this process as callers. */
void tracing_begin(struct tracing *tracing, const char *command, int process);
void tracing_add(struct tracing *tracing, const struct weir_record_event *event, uint64_t time_us);
/* Writes the end of the trace: the number of missing events, and how often each call was made.  Frees everything
 * except the sink. */
void tracing_end(struct tracing *tracing);

#endif
