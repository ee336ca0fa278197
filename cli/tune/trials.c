/* SPDX-License-Identifier: MIT */
/* trials.c: see trials.h.  Each replay is a process.
 *
 * On the device model there is one replay of each trace, since its makespan is the same each time; on a GPU there are three.
 */
#include "cli/tune/trials.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "cli/common/interrupt.h"
#include "cli/common/runner.h"
#include "cli/replay/least.h"

enum { RUNS_ON_GPU = 3 };

static const enum weir_setting settings_of[CHOICES] = {WEIR_SETTING_PREALLOC, WEIR_SETTING_DECAY,
                                                       WEIR_SETTING_LIMIT};

void choice_write(FILE *file, const struct choice *choice, const char *before, const char *between,
                  const char *after) {
    for (int i = 0; i < CHOICES; i++)
        if (choice->text[i][0])
            fprintf(file, "%s%s%s%s%s", before, weir__setting_row(settings_of[i])->name, between,
                    choice->text[i], after);
}

/* Prints why a replay failed, unless the child has printed it. */
static void tell_broken(const struct trials *trials, size_t trace, const char *message) {
    progress_clear(&trials->progress);
    if (interrupt_came())
        fputs("weir: interrupted: nothing is recommended\n", stderr);
    else if (message[0])
        fprintf(stderr, "weir: %s: a replay failed: %s\n",
                trials->contest->traces[trace].header.name, message);
}

int trials_open(struct trials *trials, struct contest *contest, size_t most) {
    size_t rows = contest->trace_count * TRIALS;

    trials->contest = contest;
    trials->creation = contest->modelled ? FIGURE_CREATION_DRIVER : FIGURE_CREATION;
    trials->results = (struct results){.trace_count = contest->trace_count,
                                       .configuration_count = TRIALS,
                                       .rows = calloc(rows, sizeof(struct row))};
    for (size_t i = 0; trials->results.rows && i < rows; i++)
        trials->results.rows[trials->results.row_count++].trace = i / TRIALS;
    progress_begin(&trials->progress, 1 + most);
    return trials->results.rows != NULL;
}

int trials_least(struct trials *trials, uint64_t *least) {
    const struct contest *contest = trials->contest;
    char message[RUNNER_MESSAGE_BYTES] = "";
    uint64_t found = 1;

    *least = 0;
    progress_step(&trials->progress, "the smallest limit");
    for (size_t i = 0; i < contest->trace_count && found; i++) {
        found =
            least_limit(contest, i, "replay", &contest->options, contest->results.busy, message);
        if (!found && (message[0] || interrupt_came())) {
            tell_broken(trials, i, message);
            return 0;
        }
        *least = found ? weir__size_larger(*least, found) : 0;
    }
    progress_done(&trials->progress, "the smallest limit", WEIR_SHOWN(*least));
    return 1;
}

/* Adds the runs of a trace.  Returns 1, or 0 with a message. */
static int run_trace(const struct contest *contest, const struct choice *choice, struct row *row,
                     char *message) {
    weir_options options = contest->options;
    struct job job;

    for (int i = 0; i < CHOICES; i++)
        if (choice->text[i][0])
            (void)weir__option_set(&options, settings_of[i], NULL, choice->text[i], NULL, 0);
    options.log = WEIR_LOG_NONE; /* a request that fails is a result */
    job_make(&job, "replay", contest->results.busy, &options, contest->device_source);
    job.forgets = 1;
    row->runs = json_array();
    for (int i = 0; i < (contest->modelled ? 1 : RUNS_ON_GPU); i++) {
        json_t *run =
            runner_run(&job, contest->traces[row->trace].tape_fd, message, RUNNER_MESSAGE_BYTES);

        if (!run)
            return 0;
        json_array_append_new(row->runs, run);
    }
    return 1;
}

int trials_run(struct trials *trials, const struct choice *choice) {
    const struct contest *contest = trials->contest;
    struct results *results = &trials->results;
    char message[RUNNER_MESSAGE_BYTES] = "out of host memory";
    int trial = trials->count;

    for (int i = 0; i < trial; i++)
        if (memcmp(&trials->choices[i], choice, sizeof *choice) == 0)
            return i;
    progress_step(&trials->progress, "a replay of each trace");
    trials->choices[trials->count++] = *choice;
    for (size_t i = 0; i < contest->trace_count; i++)
        if (!run_trace(contest, choice, &results->rows[i * TRIALS + (size_t)trial], message) ||
            !result_align(results)) {
            tell_broken(trials, i, message);
            return -1;
        }
    for (struct row *row = results->rows; row < results->rows + results->row_count; row++) {
        result_row(row);
        row->median.value[FIGURE_MAKESPAN] += row->median.value[trials->creation];
    }
    progress_done(&trials->progress, "a replay of each trace", "done");
    return trial;
}

double trials_ratio(const struct trials *trials, size_t trace, int trial,
                    enum result_figure figure) {
    const struct row *row = &trials->results.rows[trace * TRIALS + (size_t)trial];
    const struct row *usual = &trials->results.rows[trace * TRIALS];

    return result_compares(row) && row->median.has[figure]
               ? fmax((double)row->median.value[figure], 1) /
                     fmax((double)usual->median.value[figure], 1)
               : INFINITY;
}

void trials_free(struct trials *trials) {
    for (size_t i = 0; i < trials->results.row_count; i++)
        json_decref(trials->results.rows[i].runs);
    free(trials->results.rows);
}
