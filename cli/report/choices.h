/* SPDX-License-Identifier: MIT */
/* choices.h: what the configurations come to over all traces, and which of them to choose.  Pure functions of numbers.
 *
 * Means are geometric, over all traces that have iterations for times, over all traces for memory.  A configuration
 * that lacks a trace, or failed on one, compares with none.
 *
 * A steady time has a range (figures.h).  Two times differ if their ranges do not overlap; otherwise they are within
 * the noise of each other.
 */
#ifndef WEIR_CLI_CHOICES_H
#define WEIR_CLI_CHOICES_H

#include <stddef.h>
#include <stdint.h>

enum { CHOICE_LABEL_BYTES = 96 };

/* One configuration on one trace; or its means over all. 0: not known. */
struct choice_figures {
    double time_ns, low_ns, high_ns; /* of a steady iteration, and its range */
    double makespan_ns;              /* with GPU work: of all iterations */
    double memory;                   /* peak reserved over peak requested memory */
    int is_unsettled;                /* its steady time is that of a second half, on some trace */
    int is_single;                   /* the range is that of the iterations of one process */
    int has_failed;                  /* a process, or a request */
    uint64_t failed;                 /* requests */
};

struct choice {
    char label[CHOICE_LABEL_BYTES];
    const char *configuration;
    struct choice_figures mean;
    struct choice_figures logs;      /* sums */
    size_t timed, spanned, measured; /* traces */
};

struct choices {
    struct choice *items;
    size_t count, traces;
    size_t timed;            /* traces on which a configuration has a steady time */
    unsigned char *is_timed; /* by trace */
};

/* 1, or 0: out of memory. */
int choices_init(struct choices *choices, size_t traces);
void choices_free(struct choices *choices);
/* One more trace of the configuration with that label.  1, or 0: out of memory. */
int choices_add(struct choices *choices, size_t trace, const char *label, const char *configuration,
                const struct choice_figures *figures);
/* After the last one: the means. */
void choices_finish(struct choices *choices);

/* Both have a time and their ranges do not overlap, a's is the lower. */
int choice_is_faster(const struct choice *a, const struct choice *b);
/* Their ranges overlap, and a's time is not above b's range. */
int choice_within_noise(const struct choice *a, const struct choice *b);

/* What is had without a choice, with " (weir's default)", or the like, or "".  NULL: none compares. */
const struct choice *choices_default(const struct choices *choices, const char **whose);
/* The default, unless another is faster; of these the one of least mean.  NULL: there are no times. */
const struct choice *choices_fastest(const struct choices *choices);
/* Of least memory, in hundredths of the default's.  Of equals the default, or else the fastest.  NULL: none compares. */
const struct choice *choices_leanest(const struct choices *choices);
/* The default, unless another needs LESS_MEMORY for at most MORE_TIME, or takes LESS_TIME, which is more than noise,
 * for at most MORE_MEMORY.  NULL: there are no times. */
enum { LESS_MEMORY = 5, MORE_TIME = 10, LESS_TIME = 10, MORE_MEMORY = 5 }; /* percent */
const struct choice *choices_recommended(const struct choices *choices);

#endif
