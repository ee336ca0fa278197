/* SPDX-License-Identifier: MIT */
/* report.h: what weir bench, replay and run found out, as one page with pictures.
 *
 * report.c reads and arranges, report_plot.c has gnuplot draw, report_html.c writes the page, report_svg.c the pictures
 * in it.  The JSON
 * is the same whether it comes out of a file or straight from a run.
 *
 * Must not know: how anything was measured.
 */
#ifndef WEIR_CLI_REPORT_H
#define WEIR_CLI_REPORT_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "cli/report/changepoints.h"
#include "cli/report/choices.h"

enum { REPORT_LABEL_BYTES = CHOICE_LABEL_BYTES, REPORT_BARE = 3 };

/* One command: what all its results have in common. */
struct report_run {
    char letter[24]; /* "A", "B", ... */
    const char *file;
    const json_t *first; /* one of its results */
    const char *device;
};

/* One configuration on one trace in one run: a row of the table, a panel of each picture. */
struct report_row {
    char label[REPORT_LABEL_BYTES];
    size_t run;
    const json_t **results; /* its repeats */
    size_t count, failures;
    const json_t *shown;         /* the first that did not fail; NULL: none */
    const json_t *samples;       /* of any; NULL: none */
    struct changepoints *points; /* by repeat; of failed ones without levels */
    char kind[REPORT_LABEL_BYTES];
};

struct report_trace {
    const char *name;
    struct report_row *rows;
    size_t count;
};

/* One line of weir run's: a process, with what served it on each device. */
struct report_process {
    size_t run;
    const json_t *line;
};

/* A line of weir run's that comes before that: why a request of a process was refused. */
struct report_failure {
    const char *file;
    const json_t *line;
};

enum picture_kind {
    PICTURE_MEMORY,
    PICTURE_TIMES,
    PICTURE_LATENCIES,
    PICTURE_MAP,
    PICTURE_PROCESS,
    PICTURE_OVERVIEW
};

struct picture {
    enum picture_kind kind;
    size_t of; /* trace, or process; of the overview 0 */
    char stem[32];
    char *svg; /* for a page; NULL: it was not drawn */
};

struct report {
    json_t *objects; /* all, which the rest refers to */
    struct report_run *runs;
    struct report_trace *traces;
    struct report_process *processes;
    struct report_failure *refusals;
    struct choices choices; /* of the rows with GPU work, if there are any */
    double busy;            /* their factor; 0: none, below 0: several */
    struct picture *pictures;
    size_t run_count, trace_count, process_count, failure_count, picture_count;
    int devices_differ;
    char no_pictures[256]; /* why there are none; "" */
};

/* Where it goes is fit: a name that ends in .html or .htm is a file, another a folder, which report_of makes.
 * Before anything is measured.  1, or 0 with a message printed; `flag` names what asked. */
int report_check(const char *flag, const char *out);
/* Makes a report of one array of results as jsonfile_write has it, or of lines of weir run, and tells where it
 * is.  The exit code: 0, 1 with a message printed, REPORT_BARE: made without pictures, and why was
 * printed. */
int report_of(json_t *objects, const char *from, const char *out);
/* Reads all values of a file: arrays are taken apart.  A new reference, NULL with a message printed. */
json_t *report_read(const char *path);

/* ---- between the parts ------------------------------------------------------------------------ */

/* What is at key and, if it is not NULL, at inner there. */
const json_t *report_at(const json_t *object, const char *key, const char *inner);
/* A whole number there, or 0. */
uint64_t report_number(const json_t *object, const char *key, const char *inner);
/* Its median over the repeats that have it; 0: none has. */
int report_median(const struct report_row *row, const char *key, const char *inner, uint64_t *out);
/* The times of a result's iterations; a new array of *count, NULL: none, or out of memory. */
uint64_t *report_times(const json_t *result, size_t *count);
/* The first steady iteration by the exact rule; the number of all if it is not settled. */
size_t report_warm_up(const json_t *result);

/* What the series of a result is: a word for its class, "not settled" if only its times look steady. */
const char *report_class(const json_t *result, const struct changepoints *points);

/* Text of a page: what it cannot have, control characters and bytes that are no characters, as question marks. */
void report_text(FILE *file, const char *text);
/* A picture of gnuplot's for a page: `stem` makes its names unique, `what` says what it shows. */
void report_svg(FILE *file, const char *svg, const char *stem, const char *what);

/* Draws every picture there is something for; into the folder as SVG and PNG, or if it is NULL only for the
 * page.  1, or 0 with a message printed: report->no_pictures says why. */
int report_plot(struct report *report, const char *folder);

/* The whole page.  1, or 0: out of memory. */
int report_html(FILE *file, const struct report *report);

#endif
