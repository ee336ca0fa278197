/* SPDX-License-Identifier: MIT */
/* findings.h: what the rows come to over all traces, in numbers and in sentences.  Pure functions of numbers.
 *
 * A standing is one configuration: geometric means over the traces.  With GPU work the rows with work count, since those
 * are what the program does.  A configuration that lacks a trace, or failed on one, compares with none.
 *
 * Each figure has a range (result.h).  Two figures differ if their ranges do not overlap; else they tie.
 *
 * Must not know: the device, how figures were measured.
 */
#ifndef WEIR_CLI_FINDINGS_H
#define WEIR_CLI_FINDINGS_H

#include <jansson.h>

#include "cli/replay/result.h"

/* Each mark is for those that a program can choose: the best, and what ties with it. */
enum mark { MARK_FASTEST, MARK_SMALLEST, MARK_WARM_UP, MARKS };

/* In doubles, 0 or less is a figure that is not known. */
struct standing {
    const char *name;
    const struct configuration *configuration;
    int is_complete;  /* the figures are of all traces */
    int is_unsettled; /* on some trace a second half stands for the steady state */
    double mean[FIGURES], low[FIGURES], high[FIGURES];
    double reserved,
        kept; /* over the peak requested memory; `kept` is an arithmetic mean and may be 0 */
    double
        warm_up_iterations; /* the warm-up as a number of steady iterations, of traces that have both */
    unsigned char marks[MARKS];
};

enum { FINDINGS_SENTENCES = 6, FINDINGS_SENTENCE_BYTES = 1024 };

struct findings {
    struct standing
        *standings; /* by configuration; none if an interrupt came, since then nothing compares */
    size_t count;
    const struct standing *usual;  /* weir's default, or the first of weir's; NULL: there is none */
    const struct standing *driver; /* CUDA's pool: driver-keep, or driver; NULL: there is none */
    char sentences[FINDINGS_SENTENCES][FINDINGS_SENTENCE_BYTES];
    size_t sentence_count;
};

/* Fills the findings, which findings_free() frees.  Returns 1 on success, 0 if there is no host memory. */
int findings_make(const struct results *results, struct findings *findings);
void findings_free(struct findings *findings);
/* Returns the findings as JSON, a new reference. */
json_t *findings_json(const struct findings *findings);

#endif
