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

struct standing {
    const char *name;
    const struct configuration *configuration;
    int is_complete;  /* the figures are of all traces */
    int is_unsettled; /* on some trace a second half stands for the steady state */
    double mean[FIGURES], low[FIGURES], high[FIGURES]; /* 0: not known */
    double reserved,
        kept; /* over the peak requested memory; kept is an arithmetic mean; below 0: not known */
};

enum { FINDINGS_SENTENCES = 5, FINDINGS_SENTENCE_BYTES = 1024 };

struct findings {
    struct standing *standings; /* by configuration */
    size_t count;
    const struct standing *usual; /* weir's default, or the first of weir's; NULL: there is none */
    const struct standing
        *driver; /* CUDA's pool as programs use it: driver-keep, or driver; NULL: likewise */
    unsigned char *is_fastest, *is_smallest; /* by configuration: the best, and what ties with it */
    char sentences[FINDINGS_SENTENCES][FINDINGS_SENTENCE_BYTES];
    size_t sentence_count;
};

/* Compares a and b by makespan; if these tie or are not known, by the mean time of steady iterations.
 * Returns a number below 0 if a is faster, above 0 if b is, and 0 if they tie. */
int standing_compare(const struct standing *a, const struct standing *b);

/* Fills the findings, which findings_free() frees.  Returns 1 on success, 0 if there is no host memory. */
int findings_make(const struct results *results, struct findings *findings);
void findings_free(struct findings *findings);
/* Returns the findings as JSON, a new reference. */
json_t *findings_json(const struct findings *findings);

#endif
