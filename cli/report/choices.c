/* SPDX-License-Identifier: MIT */
/* choices.c: see choices.h. */
#include "cli/report/choices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int choices_init(struct choices *choices, size_t traces) {
    *choices = (struct choices){.traces = traces, .is_timed = calloc(traces ? traces : 1, 1)};
    return choices->is_timed != NULL;
}

void choices_free(struct choices *choices) {
    free(choices->items);
    free(choices->is_timed);
    *choices = (struct choices){0};
}

static struct choice *find_label(struct choices *choices, const char *label) {
    struct choice *choice;

    for (size_t i = 0; i < choices->count; i++)
        if (strcmp(choices->items[i].label, label) == 0)
            return &choices->items[i];
    choice = reallocarray(choices->items, choices->count + 1, sizeof *choice);
    if (!choice)
        return NULL;
    choices->items = choice;
    choice += choices->count++;
    *choice = (struct choice){0};
    snprintf(choice->label, sizeof choice->label, "%s", label);
    return choice;
}

int choices_add(struct choices *choices, size_t trace, const char *label, const char *configuration,
                const struct choice_figures *figures) {
    struct choice *choice = find_label(choices, label);

    if (!choice)
        return 0;
    choice->configuration = configuration;
    choice->mean.failed += figures->failed;
    choice->mean.has_failed |= figures->has_failed;
    choice->mean.is_unsettled |= figures->is_unsettled;
    choice->mean.is_single |= figures->is_single;
    if (figures->has_failed)
        return 1;
    if (figures->time_ns > 0.0) {
        choice->logs.time_ns += log(figures->time_ns);
        choice->logs.low_ns += log(fmax(figures->low_ns, 1.0));
        choice->logs.high_ns += log(fmax(figures->high_ns, 1.0));
        choice->timed++;
        choices->is_timed[trace] = 1;
    }
    if (figures->makespan_ns > 0.0) {
        choice->logs.makespan_ns += log(figures->makespan_ns);
        choice->spanned++;
    }
    if (figures->memory > 0.0) {
        choice->logs.memory += log(figures->memory);
        choice->measured++;
    }
    return 1;
}

void choices_finish(struct choices *choices) {
    choices->timed = 0;
    for (size_t t = 0; t < choices->traces; t++)
        choices->timed += choices->is_timed[t];
    for (size_t i = 0; i < choices->count; i++) {
        struct choice *choice = &choices->items[i];
        double timed = (double)choices->timed;

        if (choice->timed == choices->timed && choices->timed) {
            choice->mean.time_ns = exp(choice->logs.time_ns / timed);
            choice->mean.low_ns = exp(choice->logs.low_ns / timed);
            choice->mean.high_ns = exp(choice->logs.high_ns / timed);
        }
        if (choice->spanned == choices->timed && choices->timed)
            choice->mean.makespan_ns = exp(choice->logs.makespan_ns / timed);
        if (choice->measured == choices->traces && choices->traces)
            choice->mean.memory = exp(choice->logs.memory / (double)choices->traces);
    }
}

static int has_time(const struct choice *choice) {
    return choice && choice->mean.time_ns > 0.0;
}

/* Where there are times, those that have both compare. */
static int compares(const struct choices *choices, const struct choice *choice) {
    return choice->mean.memory > 0.0 && (choices->timed == 0 || has_time(choice));
}

int choice_is_faster(const struct choice *a, const struct choice *b) {
    return has_time(a) && has_time(b) && a->mean.high_ns < b->mean.low_ns;
}

int choice_within_noise(const struct choice *a, const struct choice *b) {
    return has_time(a) && has_time(b) && !choice_is_faster(a, b) && !choice_is_faster(b, a) &&
           a->mean.time_ns <= b->mean.high_ns;
}

const struct choice *choices_default(const struct choices *choices, const char **whose) {
    static const char *const names[][2] = {{"mapped", " (weir's default)"},
                                           {"arena-mapped", " (weir's default)"}, /* earlier */
                                           {"driver", " (the driver's default)"},
                                           {NULL, ""}}; /* the first */

    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        for (size_t i = 0; i < choices->count; i++) {
            const struct choice *choice = &choices->items[i];

            *whose = names[k][1];
            if (compares(choices, choice) &&
                (!names[k][0] || strcmp(choice->configuration, names[k][0]) == 0))
                return choice;
        }
    *whose = "";
    return NULL;
}

const struct choice *choices_fastest(const struct choices *choices) {
    const char *whose;
    const struct choice *usual = choices_default(choices, &whose), *fastest = usual;

    if (!has_time(usual))
        return NULL;
    for (size_t i = 0; i < choices->count; i++) {
        const struct choice *choice = &choices->items[i];

        if (compares(choices, choice) && choice_is_faster(choice, usual) &&
            (fastest == usual || choice->mean.time_ns < fastest->mean.time_ns))
            fastest = choice;
    }
    return fastest;
}

/* Its memory in hundredths of the default's. */
static long hundredths(const struct choice *choice, const struct choice *usual) {
    return lround(choice->mean.memory / usual->mean.memory * 100.0);
}

const struct choice *choices_leanest(const struct choices *choices) {
    const char *whose;
    const struct choice *usual = choices_default(choices, &whose), *leanest = usual;

    for (size_t i = 0; i < choices->count && usual; i++) {
        const struct choice *choice = &choices->items[i];
        long less;

        if (!compares(choices, choice) || choice == leanest)
            continue;
        less = hundredths(leanest, usual) - hundredths(choice, usual);
        if (less > 0 ||
            (less == 0 && leanest != usual && choice->mean.time_ns < leanest->mean.time_ns))
            leanest = choice;
    }
    return leanest;
}

static int is_better(const struct choice *choice, const struct choice *usual) {
    double memory = 100.0 * choice->mean.memory / usual->mean.memory;
    double time = 100.0 * choice->mean.time_ns / usual->mean.time_ns;

    return (memory <= 100 - LESS_MEMORY && time <= 100 + MORE_TIME) ||
           (choice_is_faster(choice, usual) && time <= 100 - LESS_TIME &&
            memory <= 100 + MORE_MEMORY);
}

const struct choice *choices_recommended(const struct choices *choices) {
    const char *whose;
    const struct choice *usual = choices_default(choices, &whose), *best = usual;

    if (!has_time(usual))
        return NULL;
    for (size_t i = 0; i < choices->count; i++) {
        const struct choice *choice = &choices->items[i];

        if (compares(choices, choice) && is_better(choice, usual) &&
            (best == usual ||
             choice->mean.time_ns * choice->mean.memory < best->mean.time_ns * best->mean.memory))
            best = choice;
    }
    return best;
}
