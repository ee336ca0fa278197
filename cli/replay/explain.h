/* SPDX-License-Identifier: MIT */
/* explain.h: where the memory of a trace went: `weir replay --explain'.
 *
 * What was asked is summed by kind of call, and gathered into groups of requests that are alike: same bytes,
 * call, caller, NVTX range, stream and device.
 *
 * Must not know: allocators, devices.
 */
#ifndef WEIR_CLI_EXPLAIN_H
#define WEIR_CLI_EXPLAIN_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <weir/trace.h>

#include "cli/replay/tape.h"

enum { EXPLAIN_KINDS = 32, EXPLAIN_DEVICES = 64, EXPLAIN_WORD_BYTES = 64, EXPLAIN_CALLS = 8 };

/* Requests of one kind of call. */
struct explain_kind {
    char word[EXPLAIN_WORD_BYTES]; /* as in the trace: "plain"; "": it does not tell */
    uint64_t requests, refused;
    uint64_t bytes, refused_bytes;
    uint64_t live, peak;   /* its own most */
    uint64_t at_live_peak; /* when all kinds together had most */
    uint64_t first_us;     /* request */
};

struct explain_group {
    struct explain_group *next; /* of the same hash */
    uint64_t bytes, stream;
    uint32_t kind, device;
    const char *by, *at, *range; /* "": the trace does not tell */
    uint64_t times, live, most_live;
    uint64_t first_us, last_us; /* requests */
    uint64_t longest_us;        /* life, of those that ended */
    uint64_t first_mark;        /* marks before the first request */
    uint64_t unfreed;           /* at the end of the trace */
};

struct explain_device {
    uint64_t bytes; /* 0: the trace does not tell */
    char name[EXPLAIN_WORD_BYTES];
};

/* "# calls" of the trace: no memory. */
struct explain_call {
    char name[EXPLAIN_WORD_BYTES];
    uint64_t count, bytes, most;
};

struct explain {
    char name[TAPE_NAME_BYTES];
    uint64_t left_out;                     /* events, by `weir record' */
    char recorded[EXPLAIN_WORD_BYTES * 2]; /* "weir 0.1.0 recorded python", or "" */
    struct explain_kind kinds[EXPLAIN_KINDS];
    size_t kind_count;
    struct explain_device devices[EXPLAIN_DEVICES];
    struct explain_call calls[EXPLAIN_CALLS];
    size_t call_count;
    struct explain_group **groups; /* largest first */
    size_t group_count;
    char (*labels)[WEIR_TRACE_LABEL_BYTES];
    size_t mark_count;
    uint64_t requests, refused, frees, streams;
    int has_callers; /* recorded with --callers */
    uint64_t first_us, last_us; /* events */
    uint64_t live_peak, live_peak_us;
    /* The group that looks like a program's own preallocation, or NULL. */
    const struct explain_group *preallocation;
    struct explain_state *state; /* while it is read */
};

/* Reads the trace up to its end or to mark `most_marks` (0: all).  1, or 0 with the reason in `message`.
 * explain_end takes what it made. */
int explain_read(struct explain *explain, const char *path, uint64_t most_marks, char *message,
                 size_t message_bytes);
void explain_end(struct explain *explain);

/* It was freed, into a pool of the driver's: which has the memory from then on. */
int explain_primes(const struct explain *explain, const struct explain_group *group);

/* The driver's name for a kind: "cuMemAlloc"; a word that is none of weir's as it is. */
const char *explain_call_name(const char *word);

/* explain_show.c: for a person, and as JSON; so many groups. */
void explain_print(FILE *file, const struct explain *explain, size_t most);
json_t *explain_json(const struct explain *explain, size_t most);

/* The whole command.  The program's exit code. */
struct contest;
int explain_run(struct contest *contest, size_t most);

#endif
