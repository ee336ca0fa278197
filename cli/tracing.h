/* SPDX-License-Identifier: MIT */
/* tracing.h: converts the recorded events of a process to the text of a trace (weir/trace.h).
 *
 * Most events come in the order of their times, but some come late.  Each block gets an id, which is never used
 * again.  Streams are numbered in the order of their first events.  Readers of traces refuse a free of a block that
 * is not live, so the text leaves such a free out.  They also refuse a second allocation of a live block.
 * Therefore, if an address is allocated twice without a free, the text frees the first block before the second
 * allocation.
 *
 * This file must not know the source of the events.
 */
#ifndef WEIR_CLI_TRACING_H
#define WEIR_CLI_TRACING_H

#include "adapters/record/record_ring.h"
#include "base/map.h"
#include "cli/common/sink.h"

/* The library that weir record preloads.  Its code comes between the program and the driver, but it requests no
 * memory itself, so a trace does not name it as a caller. */
#define TRACING_LIBRARY "libweir-record.so"

/* The sums of calls that are not events of the trace. */
struct counts {
    /* The number of calls, the sum of their bytes, the bytes that are live now, and the peak of the live bytes. */
    uint64_t count, bytes, now, most;
};

/* A file whose code the process has mapped, and the range of its addresses. */
struct module {
    uint64_t begin, end;
    char *name; /* the name of the file, without its folder */
};

struct modules {
    int process;
    struct module *modules; /* the mapped files, sorted by address */
    size_t count, room;
    struct weir_map nowhere; /* the pages that belong to no file, as page number + 1 */
    size_t last;             /* the index of the module that was found last */
};

struct tracing {
    struct sink *sink;
    struct modules modules;  /* the mapped files of the process that contain code */
    uint64_t limit;          /* the largest number of bytes of text to write, or 0 for no limit */
    struct weir_map blocks;  /* a map from addresses to their struct block */
    struct weir_map handles; /* a map from memory handles of cuMemCreate to their struct block */
    struct weir_map maps;    /* a map from addresses of cuMemMap to their struct mapping */
    struct weir_map streams; /* a map from stream handles to the number of the stream + 1 */
    struct weir_map defaults;
    struct weir_map names; /* a map from the numbers of callers and NVTX ranges to their names */
    uint64_t next_id, next_stream;
    struct counts reserved, mapped, host;
    uint64_t written;  /* the number of bytes of text that were written */
    uint64_t events;   /* the number of events that were written */
    uint64_t left_out; /* the number of events that were not written because of the limit */
    uint64_t lost;     /* the number of events that the process could not record */
    /* The number of frees that were left out, since their block was not live. */
    uint64_t left_out_frees;
    /* The number of frees that were added, since an address was allocated again. */
    uint64_t added_frees;
    uint64_t since_mark; /* the number of events since the last mark */
    int has_marks;       /* set if the program itself has set a mark */
    /* An errno after the text could not be written or host memory ran out, else 0. */
    int failed;
};

/* Begins the trace of a command with the head of the text.  `process' is the id of the process whose mapped files
 * name callers, or 0 if the trace has no such names. */
void tracing_begin(struct tracing *tracing, const char *command, int process);
void tracing_add(struct tracing *tracing, const struct weir_record_event *event, uint64_t time_us);
/* Ends the text with the number of missing events and the sums of calls.  Frees everything except the sink. */
void tracing_end(struct tracing *tracing);

#endif
