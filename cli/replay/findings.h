/* SPDX-License-Identifier: MIT */
/* findings.h: compares configurations over all traces, in numbers and in sentences.  The functions depend only on the
 * rows of the results.
 *
 * A figure of a configuration is the geometric mean over the traces; the figures are those with GPU work, if there are
 * any.  A configuration is not compared if it did not run, or failed, on one of the traces.  Two configurations tie in
 * a figure if its ranges (result.h) overlap.
 *
 * This file must not depend on the device, or on how figures were measured.
 */
#ifndef WEIR_CLI_FINDINGS_H
#define WEIR_CLI_FINDINGS_H

#include <jansson.h>

#include "cli/replay/result.h"

/* The marks for the best configuration and those that tie with it.  Configurations that a program cannot use get no
 * mark. */
enum mark { MARK_FASTEST, MARK_SMALLEST, MARK_WARM_UP, MARKS };

/* The figures of one configuration over all traces.  A figure of 0 or less is not known. */
struct summary {
    const char *name;
    const struct configuration *configuration;
    int is_complete; /* set if the configuration has figures for all traces */
    /* Set if the warm-up of a run did not end, so the figures of steady iterations are less certain. */
    int is_warm_up_endless;
    double mean[FIGURES], low[FIGURES], high[FIGURES];
    /* Mean ratios to the peak requested memory.  The mean of `kept' is arithmetic, since ratios of `kept' may be 0. */
    double reserved, kept;
    double warm_up_iterations; /* the time of the warm-up, divided by that of a steady iteration */
    unsigned char marks[MARKS];
};

enum { FINDINGS_SENTENCES = 6, FINDINGS_SENTENCE_BYTES = 1024 };

struct findings {
    /* A summary for each configuration.  Empty after an interrupt, because results are then incomplete. */
    struct summary *summaries;
    size_t count;
    /* The summary of weir's default configuration or, if it did not run, of another configuration of weir.  May be
     * NULL. */
    const struct summary *weir_summary;
    /* The summary of a configuration that uses a memory pool of the driver, or NULL if there is none. */
    const struct summary *driver;
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
