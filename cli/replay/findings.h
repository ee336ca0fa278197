/* SPDX-License-Identifier: MIT */
/* findings.h: compares configurations over all traces, in numbers and in sentences.  The functions depend only on
 * the rows of the results.
 *
 * A standing summarises one configuration.  Each of its figures is a geometric mean over the traces, of the rows
 * with GPU work if there are such rows.  A configuration is not compared if it did not run, or failed, on one of the
 * traces.  Two configurations tie in a figure if the ranges of the figure (result.h) overlap.
 *
 * This file must not depend on the device or how figures were measured.
 */
#ifndef WEIR_CLI_FINDINGS_H
#define WEIR_CLI_FINDINGS_H

#include <jansson.h>

#include "cli/replay/result.h"

/* The marks for the best configurations.  Only configurations that a program can use get a mark.  The best of them
 * has the mark, and so do all configurations that tie with it. */
enum mark { MARK_FASTEST, MARK_SMALLEST, MARK_WARM_UP, MARKS };

/* The figures of one configuration.  A figure of 0 or less is not known. */
struct standing {
    const char *name;
    const struct configuration *configuration;
    int is_complete; /* set if the configuration has figures for all traces */
    /* Set if the warm-up did not end on some trace.  The second half of its iterations then counts as steady. */
    int is_warm_up_endless;
    double mean[FIGURES], low[FIGURES], high[FIGURES];
    /* Ratios to the peak requested memory; `kept' is the arithmetic mean over the traces. */
    double reserved, kept;
    /* The length of the warm-up in steady iterations, over the traces where both are known. */
    double warm_up_iterations;
    unsigned char marks[MARKS];
};

enum { FINDINGS_SENTENCES = 6, FINDINGS_SENTENCE_BYTES = 1024 };

struct findings {
    /* An array with one standing for each configuration.  It is empty after an interrupt, because results are then
     * incomplete. */
    struct standing *standings;
    size_t count;
    /* The standing of weir's default.  If the default did not run, the standing of weir's first configuration; NULL
     * if no configuration of weir ran. */
    const struct standing *weir_standing;
    /* The standing of CUDA's pool: driver-keep if it ran, else driver.  NULL if neither ran. */
    const struct standing *driver;
    char sentences[FINDINGS_SENTENCES][FINDINGS_SENTENCE_BYTES];
    size_t sentence_count;
};

/* Computes the findings.  The caller frees them with findings_free().  Returns 1 on success, 0 if there is no host
 * memory. */
int findings_make(const struct results *results, struct findings *findings);
void findings_free(struct findings *findings);
/* Returns the findings as a new JSON object. */
json_t *findings_json(const struct findings *findings);

#endif
