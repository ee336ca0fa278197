/* SPDX-License-Identifier: MIT */
/* binary_trace.h: traces in a binary form that a replay can read fast.
 *
 * The parent process reads and checks a trace once, and writes the binary trace to an unlinked temporary file.  Each
 * child process maps this file.  Each event becomes an operation of a fixed size.  Each block id becomes a small index,
 * which is used again after the free.  Each stream id becomes an index from 0 on.  Times become gaps between
 * operations.  The gaps are in a separate array, because not every replay reads them.
 *
 * This file must not depend on drivers or configurations.
 */
#ifndef WEIR_CLI_BINARY_TRACE_H
#define WEIR_CLI_BINARY_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include <weir/trace.h>

enum { TRACE_NAME_BYTES = 128 };

struct trace_operation {
    uint64_t bytes; /* the size of the block, if `code' is `a' or `f' */
    /* The index of the block, or of the stream to wait for (`w'), or of the label (`m'). */
    uint32_t block;
    uint16_t stream; /* the index of the stream; unused if `code' is `m' */
    /* `a' allocates, `f' frees, `u' uses a block on another stream, `w' makes a stream wait, `m' ends an iteration. */
    uint8_t code;
    uint8_t unused;
};

struct trace_header {
    char magic[8];
    char name[TRACE_NAME_BYTES]; /* the file's name without its folder and ".trace.zst" */
    uint64_t ops;
    uint64_t allocs;
    uint64_t frees;
    uint64_t uses;
    uint64_t waits;
    /* The number of requests that failed in the recorded program.  A replay leaves them out. */
    uint64_t recorded_failures;
    uint64_t marks;
    uint64_t streams;
    uint64_t blocks; /* the largest number of live blocks; each index of a block is smaller */
    uint64_t live_peak_bytes; /* the peak requested memory */
    uint64_t left_out;        /* the number of events that `weir record' left out */
    /* Set if the trace is from another program's format, which has no marks. */
    uint64_t is_converted;
};

/* The longest gap in microseconds.  In a longer gap, the program was probably loading data or code, so weir cuts the
 * gap to this length. */
enum { MAX_GAP_US = 10000 };

/* Writes the name of a trace for a path: "gpt2-train" for "path/gpt2-train.trace.zst", "stdin" for "-". */
void name_of_trace(const char *path, char name[TRACE_NAME_BYTES]);

/* Pointers into a binary trace that this process has mapped. */
struct binary_trace {
    const struct trace_header *header;
    const struct trace_operation *ops;
    const uint64_t *stream_ids; /* the ids in the trace, by index */
    const char (*labels)[WEIR_TRACE_LABEL_BYTES];
    const uint16_t *gaps_us; /* the time from each operation to the next event */
    size_t mapped;           /* the size of the mapping in bytes */
};

/* If the comment of a trace counts events that `weir record' left out, adds them to *count and returns 1.  Otherwise
 * returns 0. */
int trace_read_left_out(const char *comment, uint64_t *count);
/* Prints a warning that `weir record' left `count' events out of the trace. */
void trace_report_left_out(const char *name, uint64_t count);

/* Makes a binary trace from a file, or from standard input if the path is "-".  A `most_marks' of 0 means all
 * iterations.  Returns a descriptor that the caller closes, or -1 with the reason in `message'. */
int binary_trace_make(const char *path, uint64_t most_marks, struct trace_header *header,
                      char *message, size_t message_bytes);

/* Maps the file into memory.  Returns 1 on success, 0 if it is not a binary trace or there is no memory. */
int binary_trace_map(int fd, struct binary_trace *trace);
void binary_trace_unmap(struct binary_trace *trace);

#endif
