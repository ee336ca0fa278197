/* SPDX-License-Identifier: MIT */
/* tracing.h: converts the events of a recorded process to the text of a trace (weir/trace.h).
 *
 * Most events come in the order of their times, some come late.  Blocks get ids, which are never used again, and
 * streams get numbers, in the order of their first events.  A free of a block that is not live is left out, and a
 * block whose address is allocated again is freed first, since readers refuse other traces.
 *
 * This file must not know the source of the events.
 */
#ifndef WEIR_CLI_TRACING_H
#define WEIR_CLI_TRACING_H

#include "adapters/record/record_ring.h"
#include "base/map.h"
#include "cli/common/sink.h"

/* The library that weir preloads.  The library stands between the program and the driver, and requests no memory
 * itself. */
#define TRACING_LIBRARY "libweir-record.so"

/* Sums of calls that are not written as events. */
struct counts {
    /* The sum of all bytes, the bytes that are live, and their peak. */
    uint64_t count, bytes, now, most;
};

/* A file of the process that contains code, and the range of its addresses. */
struct module {
    uint64_t begin, end;
    char *name; /* without the folder */
};

struct modules {
    int process;
    struct module *modules; /* sorted by address */
    size_t count, room;
    struct weir_map nowhere; /* page + 1 of each page that belongs to no file */
    size_t last;             /* the module that was found last */
};

struct tracing {
    struct sink *sink;
    struct modules modules;  /* the files of the process that contain code */
    uint64_t limit;          /* the most bytes of text, or 0 for no limit */
    struct weir_map blocks;  /* address -> struct block */
    struct weir_map handles; /* handle -> struct block */
    struct weir_map maps;    /* address -> struct mapping */
    struct weir_map streams; /* handle -> number + 1 */
    struct weir_map defaults;
    struct weir_map names; /* number -> text */
    uint64_t next_id, next_stream;
    struct counts reserved, mapped, host;
    uint64_t written;    /* bytes of text */
    uint64_t events;     /* the number of events in the text */
    uint64_t left_out;   /* the number of events that the limit left out */
    uint64_t lost;       /* the events that the process could not record */
    uint64_t unknown;    /* the frees of no live block */
    uint64_t gone;       /* the frees that were added, since an address was allocated again */
    uint64_t since_mark; /* the number of events since the last mark */
    int has_marks;       /* set if the program has set a mark */
    int failed;          /* an errno if the text cannot be written or there is no memory */
};

/* Begins the trace of a command.  The trace names the files of the process as callers, unless `process' is 0. */
void tracing_begin(struct tracing *tracing, const char *command, int process);
void tracing_add(struct tracing *tracing, const struct weir_record_event *event, uint64_t time_us);
/* Writes which events are missing, and frees all but the sink. */
void tracing_end(struct tracing *tracing);

#endif
