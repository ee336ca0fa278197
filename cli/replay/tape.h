/* SPDX-License-Identifier: MIT */
/* tape.h: tapes.  A tape is a trace in a binary form that a replay can read fast.
 *
 * The parent process reads and checks a trace once, and writes the tape to an unlinked temporary file.  Each child
 * process maps this file.  Each event becomes an operation of a fixed size.  Each block id becomes a small index,
 * which is used again after the free.  Each stream id becomes an index from 0 on.  Times become gaps between
 * operations.  The gaps are in a separate array, because not every replay reads them.
 *
 * This file must not depend on drivers, configurations or the use of gaps.
 */
#ifndef WEIR_CLI_TAPE_H
#define WEIR_CLI_TAPE_H

#include <stddef.h>
#include <stdint.h>

#include <weir/trace.h>

enum { TAPE_NAME_BYTES = 128 };

struct tape_op {
    uint64_t bytes; /* the size of the block, for `a' and `f' */
    /* For `a', `f' and `u': the index of the block.  For `w': the index of the stream that is waited for.  For `m':
     * the index of the label. */
    uint32_t block;
    uint16_t stream; /* the index of the stream, for `a', `f', `u' and `w' */
    /* `a' allocates, `f' frees, `u' uses, `w' makes a stream wait, `m' is a mark */
    uint8_t code;
    uint8_t unused;
};

struct tape_header {
    char magic[8];
    /* The name of the trace: the file's name without its folder and ".trace.zst". */
    char name[TAPE_NAME_BYTES];
    uint64_t ops;
    uint64_t allocs;
    uint64_t frees;
    uint64_t uses;
    uint64_t waits;
    /* The number of requests that failed in the recorded program (events `x'), which are not replayed. */
    uint64_t recorded_failures;
    uint64_t marks;
    uint64_t streams;
    /* The largest number of live blocks; all indices of blocks are below it. */
    uint64_t blocks;
    uint64_t live_peak_bytes; /* the peak requested memory in bytes */
    uint64_t left_out;        /* the number of events that `weir record' left out */
    /* Set if the trace was converted from another format, which has no marks. */
    uint64_t is_converted;
};

/* The longest gap in microseconds.  A longer gap is cut to this length, because the program was then probably
 * loading data or code. */
enum { TAPE_MOST_GAP_US = 10000 };

/* Writes the name of a trace for a path: "gpt2-train" for "path/gpt2-train.trace.zst", "stdin" for "-". */
void tape_name(const char *path, char name[TAPE_NAME_BYTES]);

/* The parts of a mapped tape. */
struct tape {
    const struct tape_header *header;
    const struct tape_op *ops;
    const uint64_t *stream_ids; /* the stream id for each index */
    const char (*labels)[WEIR_TRACE_LABEL_BYTES];
    /* The gap after each operation: the time until the next event, in microseconds. */
    const uint16_t *gaps_us;
    size_t mapped;
};

/* If a comment of a trace says how many events `weir record' left out, adds this number to *count.  Events are left
 * out because of --limit, or because they were lost.  Returns 1 if the comment has such a number, else 0. */
int tape_read_left_out(const char *comment, uint64_t *count);
/* Prints a warning that `weir record' left `count' events out of the trace. */
void tape_report_left_out(const char *name, uint64_t count);

/* Makes a tape from a trace, or from a file of another format.  A path of "-" is standard input.  If `most_marks' is
 * not 0, stops at the mark with this number.  Returns a descriptor for tape_map(), which the caller closes.  On
 * failure, writes the reason to `message' and returns -1. */
int tape_make(const char *path, uint64_t most_marks, struct tape_header *header, char *message,
              size_t message_bytes);

/* Maps a tape into memory.  Returns 1 on success, 0 if the file is not a tape or there is no memory. */
int tape_map(int fd, struct tape *tape);
void tape_unmap(struct tape *tape);

#endif
