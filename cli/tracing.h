/* SPDX-License-Identifier: MIT */
/* tracing.h: from the events of a recorded process to the text of a trace (weir/trace.h).
 *
 * Events come in the order of their times, but for some that come late.  Blocks get ids, which are never used again, and streams numbers,
 * in the order in which they come.  What the reader would refuse is not written: a free of a block that is
 * not live is left out, and a block whose address is handed out again is freed first.
 *
 * Must not know: where events come from.
 */
#ifndef WEIR_CLI_TRACING_H
#define WEIR_CLI_TRACING_H

#include "adapters/record/record_ring.h"
#include "base/map.h"
#include "cli/common/sink.h"

/* Calls that are no events. */
struct counts {
    uint64_t count, bytes, now, most; /* bytes in all; at once */
};

struct tracing {
    struct sink *sink;
    /* The file whose code is at an address of the program's, or NULL. */
    const char *(*file_of)(void *context, uint64_t address);
    void *context;
    uint64_t limit;          /* of the text's bytes; 0: none */
    struct weir_map blocks;  /* address -> struct block */
    struct weir_map handles; /* of memory -> struct block */
    struct weir_map maps;    /* address -> struct mapping */
    struct weir_map streams; /* handle -> number + 1 */
    struct weir_map defaults;
    struct weir_map names; /* number -> text */
    uint64_t next_id, next_stream;
    struct counts reserved, mapped, host;
    uint64_t written;    /* bytes, */
    uint64_t events;     /* and what they tell */
    uint64_t left_out;   /* events that the limit left out */
    uint64_t lost;       /* events that the process could not record, at its end */
    uint64_t unknown;    /* frees of no live block */
    uint64_t gone;       /* blocks whose end was not seen */
    uint64_t since_mark; /* events */
    int has_marks;       /* of the program's own */
    int failed;          /* errno: it cannot be written, or no memory */
};

void tracing_begin(struct tracing *tracing, const char *command);
void tracing_add(struct tracing *tracing, const struct weir_record_event *event, uint64_t time_us);
/* Says what is missing, and frees all but the sink. */
void tracing_end(struct tracing *tracing);

#endif
