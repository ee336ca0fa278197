/* SPDX-License-Identifier: MIT */
/* choices.c: what the configurations come to over all traces: the figures of the verdict, its picture and the summary.
 *
 * A configuration that failed on a trace, or did not run on it, compares with none.  Rows with work on the streams are
 * left out: their times have waits in them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/report.h"

static struct report_choice *find_choice(struct report *report, const char *label) {
    struct report_choice *choice;

    for (size_t i = 0; i < report->choice_count; i++)
        if (strcmp(report->choices[i].label, label) == 0)
            return &report->choices[i];
    choice = reallocarray(report->choices, report->choice_count + 1, sizeof *choice);
    if (!choice)
        return NULL;
    report->choices = choice;
    choice += report->choice_count++;
    *choice = (struct report_choice){.label = label};
    return choice;
}

static int is_busy(const struct report_row *row) {
    return json_object_get(row->results[0], "busy") != NULL;
}

static void add_row(struct report_choice *choice, const struct report_row *row) {
    uint64_t failed = 0, time, reserve, live;

    for (size_t i = 0; i < row->count; i++)
        failed += report_number(row->results[i], "failed", NULL);
    choice->failed += failed;
    if (failed > 0 || row->failures > 0)
        return;
    if (report_median(row, "steady_alloc_ns", NULL, &time) && time > 0) {
        choice->log_time += log((double)time);
        choice->timed++;
    }
    if (report_median(row, "reserved_peak_bytes", NULL, &reserve) &&
        report_median(row, "requested_peak_bytes", NULL, &live) && reserve > 0 && live > 0) {
        choice->log_memory += log((double)reserve) - log((double)live);
        choice->measured++;
    }
}

/* Geometric means, where every trace has its part. */
static void finish(struct report_choice *choice, size_t traces) {
    double count = (double)traces;

    if (choice->timed == traces)
        choice->time_ns = exp(choice->log_time / count);
    if (choice->measured == traces)
        choice->memory = exp(choice->log_memory / count);
}

int report_choose(struct report *report) {
    for (size_t t = 0; t < report->trace_count; t++)
        for (size_t i = 0; i < report->traces[t].count; i++) {
            const struct report_row *row = &report->traces[t].rows[i];
            struct report_choice *choice;

            if (is_busy(row))
                continue;
            choice = find_choice(report, row->label);
            if (!choice)
                return 0;
            add_row(choice, row);
        }
    for (size_t i = 0; i < report->choice_count; i++)
        finish(&report->choices[i], report->trace_count);
    return 1;
}

/* Memory and time are both known. */
int report_compares(const struct report_choice *choice) {
    return choice->time_ns > 0.0 && choice->memory > 0.0;
}

static const struct report_choice *named(const struct report *report, const char *label) {
    for (size_t i = 0; i < report->choice_count; i++)
        if (strcmp(report->choices[i].label, label) == 0 && report_compares(&report->choices[i]))
            return &report->choices[i];
    return NULL;
}

const struct report_choice *report_default(const struct report *report, const char **whose) {
    const struct report_choice *choice = named(report, "mapped");

    if (!choice)
        choice = named(report, "arena-mapped"); /* in files of earlier versions */

    *whose = "weir's default";
    if (choice)
        return choice;
    *whose = "the driver's default";
    return named(report, "driver");
}

const struct report_choice *report_least(const struct report *report, int of_memory) {
    const struct report_choice *least = NULL;

    for (size_t i = 0; i < report->choice_count; i++) {
        const struct report_choice *choice = &report->choices[i];

        if (report_compares(choice) && (!least || (of_memory ? choice->memory < least->memory
                                                             : choice->time_ns < least->time_ns)))
            least = choice;
    }
    return least;
}
