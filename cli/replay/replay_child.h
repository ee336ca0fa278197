/* SPDX-License-Identifier: MIT */
/* replay_child.h: the child that replays one tape on one configuration: what its files share.
 *
 * What: replay_child.c prepares the device and says which kind of child this is; child_play.c replays operation by
 * operation; child_stretches.c replays with iterations timed as a whole; child_timeline.c notes what happened when;
 * child_result.c makes the results.
 *
 * Invariants: nothing that is counted, and no decision, rests on own_ns.
 */
#ifndef WEIR_CLI_REPLAY_CHILD_H
#define WEIR_CLI_REPLAY_CHILD_H

#include "api/timeline.h"

#include <stdio.h>

#include "base/histogram.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/common/runner.h"
#include "cli/common/span.h"
#include "cli/replay/busy.h"
#include "cli/replay/configuration.h"
#include "cli/replay/samples.h"
#include "cli/replay/tape.h"
#include "cli/report/summary.h"
#include "driver/model/model.h"

struct replay {
    struct session session;
    const struct configuration *configuration;
    void *allocator;
    struct weir_cli_device device;
    struct tape tape;
    struct span_clock clock;
    CUcontext context;
    CUstream *streams;
    int stretches;           /* iterations are timed, not operations */
    int buckets;             /* histograms are told whole */
    int sampled;             /* memory is noted after each operation */
    struct samples *samples; /* NULL until the first operation */
    int trial;               /* the first failure ends it */
    int refused;             /* and has */
    double busy_factor;      /* 0: no work on the streams */
    struct busy *busy;       /* NULL: likewise, */
    struct pending *pending; /* and where it is not told how much is */
    double pace;             /* of the trace's time, what passes between operations; 0: none */
    void **addresses;        /* by block; NULL: not live */
    struct iteration *iterations;
    size_t iteration_count;
    uint64_t *bare_ns;     /* stretches: by iteration, what the loop alone takes */
    struct iteration now;  /* the one under way */
    struct figures opened; /* before the first request */
    struct figures before; /* at the start of the iteration under way */
    struct figures last;   /* at the end */
    struct weir_histogram alloc_times, free_times, all_times, driver_times, own_times;
    uint64_t allocs, frees, uses, failed;
    json_t *verdict; /* on the first failure, or NULL */
    struct span open, first_request, use_time;
    struct weir_timeline *timeline;    /* NULL: none */
    int timeline_number;               /* the process in it; 0: none */
    uint64_t began_ticks, mark_ns;     /* of it; where the last iteration ended */
    uint64_t requested;                /* bytes that are live in it */
    uint64_t counts[WEIR_ENTRY_COUNT]; /* driver calls until open */
    uint64_t peak_rss;
    struct weir_model_sequence sequence; /* of driver calls, if a test asks, */
    FILE *lines;                         /* and its lines, or NULL */
    char error[RUNNER_MESSAGE_BYTES];
};

/* Says why the replay ends: 0. */
int child_fail(struct replay *replay, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* 1 if the driver's call succeeded; else fails. */
int child_check(struct replay *replay, const char *call, CUresult result);
/* What a call of busy.h said. */
int child_check_busy(struct replay *replay, int good);

/* ---- operation by operation: child_play.c ---- */

/* An operation of the tape: 1, or 0 and the replay ends. */
typedef int child_step(struct replay *replay, const struct tape_op *op);

/* An operation, timed as a span of its own; the same with a note of the memory that there is behind it. */
child_step child_do_operation, child_do_and_sample;
/* Does all operations of the tape, with the work and the time between them. */
int child_play(struct replay *replay, child_step *step);
/* Requests may be refused for lack of memory. */
int child_check_failure(struct replay *replay, const struct tape_op *op, weir_status status);
/* Likewise; a free that is refused always ends the replay. */
int child_check_free(struct replay *replay, weir_status status);

/* ---- iterations as a whole: child_stretches.c ---- */

/* Marks, waits and uses end a stretch and go to `other`; the next request or free begins one. */
int child_play_stretches(struct replay *replay,
                         int (*other)(struct replay *replay, const struct tape_op *op));
/* Sets bare_ns, and leaves no other trace.  The first round warms up. */
int child_play_bare(struct replay *replay);
/* What the loop alone takes is no time of the configuration's. */
void child_take_bare_off(struct replay *replay);

/* ---- what happened when: child_timeline.c ---- */

/* What is there now, and how it came to be. */
void child_look(struct replay *replay);
/* An operation, with a look behind it. */
child_step child_do_and_look;
/* The part of a file that is this process's. */
json_t *child_timeline(const struct replay *replay);

/* ---- results: child_result.c ---- */

/* The most memory this process had, in bytes.  VmHWM, since ru_maxrss counts what the process was
 * before exec. */
uint64_t child_peak_rss(void);
json_t *child_integer_or_null(int there, uint64_t value);
/* Bytes of the device that were taken before the replay. */
json_t *child_taken(const struct session *session);
json_t *child_iterations(const struct replay *replay);
/* All that the replay tells; `calls`: driver calls until now.  NULL: no host memory. */
json_t *child_result(const struct replay *replay, const uint64_t calls[]);

#endif
