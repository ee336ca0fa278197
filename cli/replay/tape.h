/* SPDX-License-Identifier: MIT */
/* tape.h: a trace made ready for replay.
 *
 * The parent reads and checks a trace once and writes it, as an array of fixed-size operations, to an
 * unlinked temporary file; each child maps that file.  Ids of blocks become dense indices (an index
 * is used again after the free), ids of streams become indices from 0, and stand beside them.  Times become gaps, apart
 * from the operations, so that a replay which does not need them does not read them.
 *
 * Must not know: drivers, configurations, what a gap stands for.
 */
#ifndef WEIR_CLI_TAPE_H
#define WEIR_CLI_TAPE_H

#include <stddef.h>
#include <stdint.h>

#include <weir/trace.h>

enum { TAPE_NAME_BYTES = 128 };

struct tape_op {
    uint64_t bytes;  /* a f */
    uint32_t block;  /* a f u: index of the block; w: index of on_stream; m: index of the label */
    uint16_t stream; /* a f u w: index */
    uint8_t code;    /* 'a' 'f' 'u' 'w' 'm' */
    uint8_t unused;
};

struct tape_header {
    char magic[8];
    char name
        [TAPE_NAME_BYTES]; /* "gpt2-train": the file's name without its folder and ".trace.zst" */
    uint64_t ops;
    uint64_t allocs;
    uint64_t frees;
    uint64_t uses;
    uint64_t waits;
    uint64_t recorded_failures; /* x events, which are not replayed */
    uint64_t marks;
    uint64_t streams;
    uint64_t blocks;          /* the most that are live at once, so indices are below it */
    uint64_t live_peak_bytes; /* the largest sum of requested bytes */
    uint64_t left_out;        /* events behind the last one that `weir record' did not write */
    uint64_t is_converted;    /* of another format, which has no marks */
};

/* The longest gap that is told apart, in microseconds. */
enum { TAPE_MOST_GAP_US = 10000 };

/* "path/gpt2-train.trace.zst" -> "gpt2-train"; "-" -> "stdin". */
void tape_name(const char *path, char name[TAPE_NAME_BYTES]);

/* Header, operations, ids of streams, labels and gaps of an open tape. */
struct tape {
    const struct tape_header *header;
    const struct tape_op *ops;
    const uint64_t *stream_ids; /* by index */
    const char (*labels)[WEIR_TRACE_LABEL_BYTES];
    const uint16_t *gaps_us; /* by operation: trace time until the next event, at most the above */
    size_t mapped;
};

/* Adds to *count the events that `weir record' left out, by --limit or since they were lost, if a comment of a trace
 * tells them.  Returns 1 if the comment does. */
int tape_read_left_out(const char *comment, uint64_t *count);
/* Prints how many events `weir record` left out of the trace. */
void tape_tell_left_out(const char *name, uint64_t count);

/* Reads the trace, or what becomes one, at `path` ("-": standard input) up to its end, or to mark `most_marks` (0: all).
 * Returns a descriptor for tape_map(), which the caller closes, or -1 with the reason in `message`. */
int tape_make(const char *path, uint64_t most_marks, struct tape_header *header, char *message,
              size_t message_bytes);

/* 1, or 0: not a tape, or out of memory. */
int tape_map(int fd, struct tape *tape);
void tape_unmap(struct tape *tape);

#endif
