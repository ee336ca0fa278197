/* SPDX-License-Identifier: MIT */
/* findings.h: comparisons of configurations over all traces, in numbers and in sentences, as pure functions of the
 * rows.
 *
 * A standing is one configuration: geometric means over the traces, of the rows with GPU work if there are any.  A
 * configuration that lacks a trace, or failed on one, is not compared.  Two figures tie if their ranges (result.h)
 * overlap.
 *
 * This file must not know the device or how figures were measured.
 */
#ifndef WEIR_CLI_FINDINGS_H
#define WEIR_CLI_FINDINGS_H

#include <jansson.h>

#include "cli/replay/result.h"

/* A mark is for configurations that a program can choose.  The best configuration has the mark, and so do the
 * configurations that tie with it. */
enum mark { MARK_FASTEST, MARK_SMALLEST, MARK_WARM_UP, MARKS };

/* One configuration in the comparison.  A figure of 0 or less is not known. */
struct standing {
    const char *name;
    const struct configuration *configuration;
    int is_complete; /* set if the figures are of all traces */
    /* Set if no warm-up ended on some trace, so that its second half counts as steady. */
    int is_unsettled;
    double mean[FIGURES], low[FIGURES], high[FIGURES];
    double reserved, kept; /* ratios to the peak requested memory; `kept' is an arithmetic mean */
    /* The warm-up as a number of steady iterations, of the traces that have both. */
    double warm_up_iterations;
    unsigned char marks[MARKS];
};

enum { FINDINGS_SENTENCES = 6, FINDINGS_SENTENCE_BYTES = 1024 };

struct findings {
    /* One standing for each configuration.  There are none after an interrupt, because then nothing is compared. */
    struct standing *standings;
    size_t count;
    /* The standing of weir's default, or of weir's first configuration, or NULL if there is no configuration of
     * weir. */
    const struct standing *usual;
    /* The standing of CUDA's pool: driver-keep, or else driver.  NULL if there is neither. */
    const struct standing *driver;
    char sentences[FINDINGS_SENTENCES][FINDINGS_SENTENCE_BYTES];
    size_t sentence_count;
};

/* Fills the findings, which findings_free() frees.  Returns 1 on success, 0 if there is no host memory. */
int findings_make(const struct results *results, struct findings *findings);
void findings_free(struct findings *findings);
/* Returns the findings as JSON, a new reference. */
json_t *findings_json(const struct findings *findings);

#endif
