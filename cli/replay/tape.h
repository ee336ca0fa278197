/* SPDX-License-Identifier: MIT */
/* tape.h: a trace made ready for replay.
 *
 * The parent reads and checks a trace once, and writes it as an array of fixed-size operations to an unlinked
 * temporary file, which each child maps.  Ids of blocks become small indices, which are used again after the free; ids
 * of streams become indices from 0.  Times become gaps, which lie apart from the operations, since not every replay
 * reads them.
 *
 * This file must not know drivers, configurations or the use of gaps.
 */
#ifndef WEIR_CLI_TAPE_H
#define WEIR_CLI_TAPE_H

#include <stddef.h>
#include <stdint.h>

#include <weir/trace.h>

enum { TAPE_NAME_BYTES = 128 };

struct tape_op {
    uint64_t bytes; /* bytes of the operations a and f */
    /* Operations a, f and u: index of the block; of w: index of on_stream; of m: index of the label. */
    uint32_t block;
    uint16_t stream; /* operations a, f, u and w: index */
    uint8_t code;    /* 'a' 'f' 'u' 'w' 'm' */
    uint8_t unused;
};

struct tape_header {
    char magic[8];
    char name[TAPE_NAME_BYTES]; /* the file's name without its folder and ".trace.zst" */
    uint64_t ops;
    uint64_t allocs;
    uint64_t frees;
    uint64_t uses;
    uint64_t waits;
    uint64_t recorded_failures; /* x events, which are not replayed */
    uint64_t marks;
    uint64_t streams;
    uint64_t blocks;          /* the most live blocks, above all indices of blocks */
    uint64_t live_peak_bytes; /* the largest sum of requested bytes */
    uint64_t left_out;        /* the number of events that `weir record' did not write at the end */
    uint64_t is_converted;    /* set if the trace is made of another format, which has no marks */
};

/* The longest gap in microseconds.  weir cuts longer gaps, because the program then loads data or code. */
enum { TAPE_MOST_GAP_US = 10000 };

/* Writes the name of a trace: "gpt2-train" for "path/gpt2-train.trace.zst", "stdin" for "-". */
void tape_name(const char *path, char name[TAPE_NAME_BYTES]);

/* The header, operations, ids of streams, labels and gaps of an open tape. */
struct tape {
    const struct tape_header *header;
    const struct tape_op *ops;
    const uint64_t *stream_ids; /* the id of each index */
    const char (*labels)[WEIR_TRACE_LABEL_BYTES];
    const uint16_t *gaps_us; /* the trace time from each operation to the next event */
    size_t mapped;
};

/* Adds to *count the events that `weir record' left out, by --limit or because they were lost, if a comment of a trace
 * has that number.  Returns 1 if the comment has that number, else 0. */
int tape_read_left_out(const char *comment, uint64_t *count);
/* Prints how many events `weir record` left out of the trace. */
void tape_tell_left_out(const char *name, uint64_t count);

/* Reads a trace, or a file of another format, up to its end, or to mark `most_marks' if that is not 0.  A path of
 * "-" is standard input.  Returns a descriptor for tape_map(), which the caller closes, or -1 with the reason in
 * `message'. */
int tape_make(const char *path, uint64_t most_marks, struct tape_header *header, char *message,
              size_t message_bytes);

/* Maps a tape.  Returns 1 on success, 0 if the file is no tape or there is no memory. */
int tape_map(int fd, struct tape *tape);
void tape_unmap(struct tape *tape);

#endif
