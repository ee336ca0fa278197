/* SPDX-License-Identifier: MIT */
/* search.h: which candidate does best on the traces, by replays.
 *
 * The search tries one pair of axes after another, and sees the first half of the iterations of each trace alone.  Of its
 * best ones the one is chosen that does best with a quarter more, and all iterations show what that is worth.  On the device model time is that of driver calls, the same in each replay; on a GPU it is all
 * time of the calls of weir.
 *
 * Must not know: what a value of a candidate means, and how results are shown.
 */
#ifndef WEIR_CLI_SEARCH_H
#define WEIR_CLI_SEARCH_H

#include "cli/common/progress.h"
#include "cli/replay/contest.h"
#include "cli/tune/candidate.h"

enum goal { GOAL_BALANCED, GOAL_MEMORY, GOAL_SPEED };
/* Each contains the one before it. */
enum part { PART_SEARCHED, PART_CHOSEN, PART_ALL, PARTS };

/* Of one candidate on one part of one trace. */
struct measured {
    uint64_t reserved, requested; /* peaks */
    double first_ns;              /* iteration, with creation of the allocator */
    double steady_ns; /* iteration: the median of those that the part before does not have */
    double run_ns;    /* of RUN_ITERATIONS, or of a trace without marks */
};

enum { RUN_ITERATIONS = 1000 };

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
        uint64_t marks[PARTS]; /* 0: the trace has none, and each part is all of it */
    } * traces;
    struct evaluation *evaluations; /* on the part that is searched, in their order */
    size_t count;
    struct progress progress;
    char error[512]; /* the first of a replay that failed itself */
};

/* Divides the traces.  1, or 0 with a message printed. */
int search_begin(struct tuning *tuning);
/* 1, or 0: there is tuning->error, or an interrupt came. */
int search_measure(struct tuning *tuning, enum part part, struct evaluation *evaluations,
                   size_t count);
/* Fills tuning->evaluations and the space.  Likewise. */
int search_run(struct tuning *tuning);
/* The best ones and the default, the best first; *count of them, to be dropped.  NULL: likewise. */
struct evaluation *search_finalists(struct tuning *tuning, size_t *count);
/* Every candidate that there is, to be measured; and all of them in the search, as if it had been one. */
struct evaluation *search_grid(const struct tuning *tuning, size_t *count);
int search_run_grid(struct tuning *tuning);
void search_drop(struct evaluation *evaluations, size_t count);
void search_end(struct tuning *tuning);

#endif
