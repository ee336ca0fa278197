/* SPDX-License-Identifier: MIT */
/* search.h: which candidate does best on the traces, by replays.
 *
 * The search goes along one axis after another, and sees the first part of each trace alone; what came of it is
 * measured on the rest.  On the device model time is that of driver calls, the same in each replay; on a GPU it is all
 * time of the calls of weir.
 *
 * Must not know: what a value of a candidate means, and how results are shown.
 */
#ifndef WEIR_CLI_SEARCH_H
#define WEIR_CLI_SEARCH_H

#include "cli/replay/contest.h"
#include "cli/tune/candidate.h"

enum goal { GOAL_BALANCED, GOAL_MEMORY, GOAL_SPEED };
enum part { PART_SEARCHED, PART_REST, PARTS };

/* Of one candidate on one part of one trace. */
struct measured {
    uint64_t reserved, requested; /* peaks */
    double creation_ns, first_ns, steady_ns;
    double run_ns; /* an iteration of a run of RUN_ITERATIONS, with creation; without marks: all of it */
};

enum { RUN_ITERATIONS = 100 };

struct evaluation {
    struct candidate candidate;
    struct measured *measured; /* by trace */
    int served;                /* no request failed, on any trace */
    double score;              /* a logarithm; less is better */
};

struct tuning {
    struct contest *contest;
    enum goal goal;
    struct space space;
    struct tuned_trace {
        int fd[PARTS];
        struct tape_header header[PARTS];
        uint64_t searched; /* iterations; 0: the trace has no marks, and both parts are all of it */
    } *traces;
    struct evaluation *evaluations; /* on the part that is searched, in their order */
    size_t count;
    char error[512]; /* the first of a replay that failed itself */
};

/* Divides the traces.  1, or 0 with a message printed. */
int search_begin(struct tuning *tuning);
/* 1, or 0: there is tuning->error, or an interrupt came. */
int search_measure(struct tuning *tuning, enum part part, struct evaluation *evaluations,
                   size_t count);
/* Fills tuning->evaluations and the space.  Likewise. */
int search_run(struct tuning *tuning);
/* Every candidate that there is. */
struct evaluation *search_grid(const struct tuning *tuning, size_t *count);
void search_drop(struct evaluation *evaluations, size_t count);
void search_end(struct tuning *tuning);

#endif
