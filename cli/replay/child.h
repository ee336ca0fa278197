/* SPDX-License-Identifier: MIT */
/* child.h: the child that replays one tape on one configuration: what its files share.
 *
 * What: child.c prepares the device, plays the tape and sends the results; child_play.c plays operation by operation.
 */
#ifndef WEIR_CLI_CHILD_H
#define WEIR_CLI_CHILD_H

#include <jansson.h>
#include <stdio.h>

#include "api/timeline.h"
#include "cli/common/flags.h"
#include "cli/common/runner.h"
#include "cli/common/span.h"
#include "cli/replay/busy.h"
#include "cli/replay/configuration.h"
#include "cli/replay/result.h"
#include "cli/replay/tape.h"
#include "driver/model/model.h"

enum play { PLAY_BARE, PLAY_TIMED, PLAY_OBSERVED, PLAY_SHOWN };

/* The reserved memory in one of RESULT_POINTS equal parts of the trace. */
struct point {
    int any;
    uint64_t low, high;
};

struct replay {
    const struct job *job;
    struct session session;
    const struct configuration *configuration;
    const struct allocator_kind *kind; /* of the configuration, or one that does nothing */
    weir_options options;              /* what session.given points to */
    struct weir_cli_device device;
    struct tape tape;
    struct span_clock clock;
    CUcontext context;
    CUstream *streams;
    int modelled;
    int refused;       /* a request failed for lack of memory */
    struct busy *busy; /* NULL: no GPU work */

    enum play play;
    void *allocator;
    void **addresses; /* by block; NULL: not live */
    struct iteration *iterations;
    uint64_t *bare_ns; /* the time of the loop alone, by iteration */
    size_t iteration_count;
    struct iteration now; /* the one under way */
    int in_stretch;
    struct span_start stretch;
    uint64_t longest_ns; /* of all stretches */
    uint64_t allocs, frees, uses, failed;
    struct figures opened; /* before the first request */
    struct figures before; /* at the start of the iteration under way */
    struct figures last;   /* at the end */
    struct span creation;
    json_t *oom_report; /* of the first failure, or NULL */

    struct point *points;
    struct weir_timeline *timeline; /* NULL: none */
    uint64_t began_ticks, mark_ns;  /* of it; where the last iteration ended */
    uint64_t requested;             /* bytes that are live in it */

    struct weir_model_sequence sequence; /* of driver calls, if a test asks, */
    FILE *lines;                         /* and its lines, or NULL */
    char error[RUNNER_MESSAGE_BYTES];
};

/* Notes why the replay ends.  Returns 0. */
int child_fail(struct replay *replay, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Returns 1 if the driver's call succeeded; else notes the failure and returns 0. */
int child_check(struct replay *replay, const char *call, CUresult result);

/* Sets all counts to zero before a replay of that kind. */
void child_begin(struct replay *replay, enum play kind);
/* Does all operations of the tape.  Returns 1, or 0 with replay->error or because a trial was refused memory. */
int child_play(struct replay *replay);
/* Measures what the loop alone takes, with an allocator that does nothing.  Returns as child_play(). */
int child_play_bare(struct replay *replay);
/* Subtracts from the iterations what the loop alone takes.  Skips replays with GPU work or a pace, whose stretches differ from
 * the bare loop's. */
void child_subtract_bare(struct replay *replay);
/* Adds the current memory and the allocator's steps to the timeline. */
void child_show_now(struct replay *replay);
/* Returns this replay's part of the time line file; NULL if there is no host memory. */
json_t *child_timeline(const struct replay *replay, int number);

#endif
