/* SPDX-License-Identifier: MIT */
/* report_page.h: the parts of the page, which report_html.c puts together.
 *
 * What: page_cells.c writes text and cells of tables; page_runs.c what runs there are, and pictures; page_traces.c a trace
 * with its rows; page_processes.c a process of weir run; page_findings.c what a reader should know first.
 *
 * Invariants: a figure that comes out of a result stands in its cell as it was, in data-value, beside the text that is
 * read.
 */
#ifndef WEIR_CLI_REPORT_PAGE_H
#define WEIR_CLI_REPORT_PAGE_H

#include "cli/report/report.h"

/* ---- text: page_cells.c ---- */

void html_put(FILE *file, const char *text);
const char *html_string_at(const json_t *object, const char *key);
void html_words(FILE *file, const json_t *words);
void html_number(FILE *file, uint64_t value);
/* "1 stream", "2 streams". */
void html_count(FILE *file, uint64_t count, const char *of, const char *behind);
void html_bytes(FILE *file, uint64_t bytes);
/* Three digits that count, in ms. */
void html_ms(FILE *file, double ns);

/* The text, or what stands for it if it is empty. */
void html_or(FILE *file, const char *text, const char *otherwise);

/* ---- cells: page_cells.c ---- */

/* Of a figure that there is not. */
void html_no_cell(FILE *file);
/* The cell's begin, with the figure as it was. */
void html_begin_cell(FILE *file, const char *key, const char *inner, uint64_t value);
/* The median at key (and inner) over the repeats of a row, as a whole number, a percentile, ms or MiB; and the peak of
 * reserved over requested memory. */
void html_whole_cell(FILE *file, const struct report_row *row, const char *key, const char *inner);
void html_percentile_cell(FILE *file, const struct report_row *row, const char *inner);
void html_ms_cell(FILE *file, const struct report_row *row, const char *key);
void html_mib_cell(FILE *file, const struct report_row *row, const char *key);
void html_ratio_cell(FILE *file, const struct report_row *row);

/* ---- runs and pictures: page_runs.c ---- */

void html_runs_table(FILE *file, const struct report *report);
/* What a reader must know before any figure. */
void html_warnings(FILE *file, const struct report *report);

/* How to read the page. */
extern const char html_reading[];

void html_pictures(FILE *file, const struct report *report, enum picture_kind from,
                   enum picture_kind to, size_t of);

/* ---- traces: page_traces.c ---- */

void html_options(FILE *file, json_t *options);
void html_trace(FILE *file, const struct report *report, size_t t);

/* ---- processes: page_processes.c ---- */

void html_process(FILE *file, const struct report *report, size_t p);
/* Of processes that have no line of their own, as who was killed. */
void html_other_failures(FILE *file, const struct report *report);

/* ---- findings: page_findings.c ---- */

void html_findings(FILE *file, const struct report *report);
/* All configurations over all traces. */
void html_summary(FILE *file, const struct report *report);

#endif
