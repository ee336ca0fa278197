/* SPDX-License-Identifier: MIT */
/* findings.c: see findings.h. */
#include "cli/replay/findings.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/jsonfile.h"
#include "cli/common/spell.h"

/* ---- numbers ---- */

/* Returns the row of a pair that counts: the one with GPU work, if there is GPU work. */
static const struct row *row_of(const struct results *results, size_t trace, size_t configuration) {
    return result_at(results, trace, configuration, results->busy > 0);
}

/* Returns 1 if some configuration has that figure of the trace. */
static int is_known(const struct results *results, size_t trace, enum result_figure figure) {
    for (size_t i = 0; i < results->configuration_count; i++)
        if (row_of(results, trace, i)->median.has[figure])
            return 1;
    return 0;
}

/* Sets one figure: the geometric mean over the traces on which it is known. */
static void set_mean(const struct results *results, size_t configuration, enum result_figure figure,
                     struct standing *out) {
    double mean = 0, low = 0, high = 0;
    size_t count = 0;

    for (size_t t = 0; t < results->trace_count; t++) {
        const struct row *row = row_of(results, t, configuration);

        if (!is_known(results, t, figure))
            continue;
        if (!row->median.has[figure])
            return;
        mean += log(fmax((double)row->median.value[figure], 1));
        low += log(fmax((double)row->low.value[figure], 1));
        high += log(fmax((double)row->high.value[figure], 1));
        count++;
    }
    if (count == 0)
        return;
    out->mean[figure] = exp(mean / (double)count);
    out->low[figure] = exp(low / (double)count);
    out->high[figure] = exp(high / (double)count);
}

/* Returns a row's bytes over its peak requested memory; below 0 if either is not known. */
static double over_requested(const struct row *row, enum result_figure figure) {
    if (!row->median.has[figure] || row->median.value[FIGURE_REQUESTED] == 0)
        return -1;
    return (double)row->median.value[figure] / (double)row->median.value[FIGURE_REQUESTED];
}

static void set_standing(const struct results *results, size_t configuration,
                         struct standing *out) {
    double logs = 0, kept = 0;

    *out = (struct standing){.name = result_name(row_of(results, 0, configuration)),
                             .configuration = results->configurations[configuration],
                             .is_complete = 1};
    for (size_t t = 0; t < results->trace_count; t++) {
        const struct row *row = row_of(results, t, configuration);
        double reserved = over_requested(row, FIGURE_RESERVED);

        out->is_complete &= result_compares(row);
        out->is_unsettled |= row->median.has[FIGURE_STEADY_MEAN] && !row->settled;
        logs += reserved > 0 ? log(reserved) : NAN;
        kept += over_requested(row, FIGURE_KEPT) < 0 ? NAN : over_requested(row, FIGURE_KEPT);
    }
    out->reserved = isnan(logs) ? -1 : exp(logs / (double)results->trace_count);
    out->kept = isnan(kept) ? -1 : kept / (double)results->trace_count;
    for (int figure = 0; figure < FIGURES && out->is_complete; figure++)
        set_mean(results, configuration, (enum result_figure)figure, out);
}

/* Returns below 0 if the range of a lies below that of b, above 0 if the other way round, 0 if they overlap. */
static int compare_ranges(const struct standing *a, const struct standing *b,
                          enum result_figure figure) {
    if (a->mean[figure] <= 0 || b->mean[figure] <= 0)
        return 0;
    return a->high[figure] < b->low[figure] ? -1 : b->high[figure] < a->low[figure];
}

int standing_compare(const struct standing *a, const struct standing *b) {
    int by_makespan = compare_ranges(a, b, FIGURE_STEADY_MAKESPAN);

    return by_makespan ? by_makespan : compare_ranges(a, b, FIGURE_STEADY_MEAN);
}

static int is_choice(const struct standing *standing) {
    return standing->is_complete && !standing->configuration->unusable;
}

/* Returns the standing with the least of a known figure, among the marked, or among those that a program can choose if
 * `marked` is NULL; NULL if there is none. */
static const struct standing *least_of(const struct findings *findings, enum result_figure figure,
                                       const unsigned char *marked) {
    const struct standing *least = NULL;

    for (size_t i = 0; i < findings->count; i++) {
        const struct standing *standing = &findings->standings[i];

        if ((marked ? marked[i] : is_choice(standing)) && standing->mean[figure] > 0 &&
            (!least || standing->mean[figure] < least->mean[figure]))
            least = standing;
    }
    return least;
}

/* Leaves of the marked those that tie with the least of them.  Changes nothing if the figure is not known. */
static void keep_least(const struct findings *findings, enum result_figure figure,
                       unsigned char *marked) {
    const struct standing *least = least_of(findings, figure, marked);

    for (size_t i = 0; i < findings->count && least; i++)
        marked[i] = marked[i] && findings->standings[i].mean[figure] > 0 &&
                    compare_ranges(&findings->standings[i], least, figure) == 0;
}

/* Marks who reserves least, to one percent of the peak requested memory. */
static void mark_smallest(struct findings *findings) {
    double least = INFINITY;

    for (size_t i = 0; i < findings->count; i++)
        if (is_choice(&findings->standings[i]) && findings->standings[i].reserved >= 0)
            least = fmin(least, findings->standings[i].reserved);
    for (size_t i = 0; i < findings->count; i++)
        findings->is_smallest[i] = is_choice(&findings->standings[i]) &&
                                   findings->standings[i].reserved >= 0 &&
                                   findings->standings[i].reserved <= least + 0.01;
}

static int has_time(const struct standing *standing) {
    return standing->mean[FIGURE_STEADY_MEAN] > 0;
}

static void mark_fastest(struct findings *findings) {
    for (size_t i = 0; i < findings->count; i++)
        findings->is_fastest[i] =
            is_choice(&findings->standings[i]) && has_time(&findings->standings[i]);
    keep_least(findings, FIGURE_STEADY_MAKESPAN, findings->is_fastest);
    keep_least(findings, FIGURE_STEADY_MEAN, findings->is_fastest);
}

static const struct standing *find(const struct findings *findings, const char *name) {
    for (size_t i = 0; i < findings->count; i++)
        if (strcmp(findings->standings[i].name, name) == 0 && findings->standings[i].is_complete)
            return &findings->standings[i];
    return NULL;
}

/* Returns 1 if the configuration is a pool of the driver's. */
static int is_driver(const struct standing *standing) {
    return configuration_is_driver(standing->configuration);
}

static void find_references(struct findings *findings) {
    findings->usual = find(findings, "mapped");
    findings->driver = find(findings, "driver-keep");
    if (!findings->driver)
        findings->driver = find(findings, "driver");
    for (size_t i = 0; i < findings->count && !findings->usual; i++)
        if (is_choice(&findings->standings[i]) && !is_driver(&findings->standings[i]))
            findings->usual = &findings->standings[i];
}

/* ---- sentences ---- */

/* Adds to the sentence under way; what does not fit is cut off. */
static void add(struct findings *findings, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add(struct findings *findings, const char *format, ...) {
    char *sentence = findings->sentences[findings->sentence_count];
    size_t length = strlen(sentence);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(sentence + length, FINDINGS_SENTENCE_BYTES - length, format, arguments);
    va_end(arguments);
}

static void end_sentence(struct findings *findings) {
    findings->sentence_count += findings->sentences[findings->sentence_count][0] != '\0';
}

static void add_ms(struct findings *findings, double ns) {
    add(findings, "%s ms", spell_ms(ns).text);
}

/* Adds "1.02 times", "12.3 times": as much of a ratio as it is worth knowing. */
static void add_ratio(struct findings *findings, double ratio) {
    add(findings, "%s%.*f times", ratio < 0.01 && ratio > 0 ? "under " : "",
        ratio < 9.995   ? 2
        : ratio < 99.95 ? 1
                        : 0,
        ratio > 0 ? fmax(ratio, 0.01) : 0);
}

/* Adds "mapped, pool and bfc". */
static size_t add_marked(struct findings *findings, const unsigned char *marked) {
    size_t count = 0, told = 0;

    for (size_t i = 0; i < findings->count; i++)
        count += marked[i];
    for (size_t i = 0; i < findings->count; i++)
        if (marked[i]) {
            told++;
            add(findings, "%s%s",
                told == 1       ? ""
                : told == count ? " and "
                                : ", ",
                findings->standings[i].name);
        }
    return count;
}

/* Adds "mapped 8.1 ms, as much as 20 steady iterations". */
static void add_warm_up(struct findings *findings, const struct standing *standing) {
    add(findings, "%s ", standing->name);
    add_ms(findings, standing->mean[FIGURE_WARM_UP]);
    if (has_time(standing))
        add(findings, ", as much as %.*f of its steady iterations",
            standing->mean[FIGURE_WARM_UP] < 9.5 * standing->mean[FIGURE_STEADY_MEAN] ? 1 : 0,
            standing->mean[FIGURE_WARM_UP] / standing->mean[FIGURE_STEADY_MEAN]);
}

static void tell_warm_up(struct findings *findings) {
    const struct standing *pool = find(findings, "pool"), *ready = find(findings, "pool-prealloc");
    const struct standing *least = least_of(findings, FIGURE_WARM_UP, NULL),
                          *usual = findings->usual;

    if (!least)
        return;
    add(findings, "Warm-up (creation and the first iteration) costs ");
    if (findings->driver && findings->driver->mean[FIGURE_WARM_UP] > 0) {
        add_warm_up(findings, findings->driver);
        add(findings, "%s", usual ? "; " : "");
    }
    if (usual)
        add_warm_up(findings, usual);
    if (least != usual && least != findings->driver) {
        add(findings, "; the least is that of %s, ", least->name);
        add_ms(findings, least->mean[FIGURE_WARM_UP]);
    }
    add(findings, ".");
    if (pool && ready && ready->mean[FIGURE_FIRST] > 0) {
        add(findings, " Preallocating the peak takes the first iteration of pool from ");
        add_ms(findings, pool->mean[FIGURE_FIRST]);
        add(findings, " to ");
        add_ms(findings, ready->mean[FIGURE_FIRST]);
        add(findings, ", for ");
        add_ms(findings, ready->mean[FIGURE_CREATION]);
        add(findings, " at creation.");
    }
    end_sentence(findings);
}

/* Returns the marked standing with the least time, or the first one if no time is known; NULL if none is marked. */
static const struct standing *best_marked(const struct findings *findings,
                                          const unsigned char *marked) {
    const struct standing *best = NULL;

    for (size_t i = 0; i < findings->count; i++)
        if (marked[i] && (!best || findings->standings[i].mean[FIGURE_STEADY_MEAN] <
                                       best->mean[FIGURE_STEADY_MEAN]))
            best = &findings->standings[i];
    return best;
}

/* Adds how a figure compares with the driver's. */
static void add_against_driver(struct findings *findings, const struct standing *standing,
                               enum result_figure figure) {
    const struct standing *driver = findings->driver;

    if (!driver || standing == driver || driver->mean[figure] <= 0)
        return;
    if (fabs(standing->mean[figure] / driver->mean[figure] - 1) < 0.005) {
        add(findings, ", as %s", driver->name);
        return;
    }
    add(findings, ", %s", standing->is_unsettled || driver->is_unsettled ? "~" : "");
    add_ratio(findings, standing->mean[figure] / driver->mean[figure]);
    add(findings, " that of %s", driver->name);
}

static void tell_fastest(struct findings *findings) {
    const struct standing *fastest = best_marked(findings, findings->is_fastest);
    int by_makespan = fastest && fastest->mean[FIGURE_STEADY_MAKESPAN] > 0;

    if (!fastest)
        return;
    add(findings, "Fastest in steady state, of what a program can choose: ");
    if (add_marked(findings, findings->is_fastest) > 1)
        add(findings, " (a tie)");
    add(findings, ", ");
    if (by_makespan) {
        add(findings, "a makespan of ");
        add_ms(findings, fastest->mean[FIGURE_STEADY_MAKESPAN]);
        add(findings, " an iteration");
        add_against_driver(findings, fastest, FIGURE_STEADY_MAKESPAN);
        add(findings, "; allocator time ");
    }
    add_ms(findings, fastest->mean[FIGURE_STEADY_MEAN]);
    add(findings, " an iteration");
    add_against_driver(findings, fastest, FIGURE_STEADY_MEAN);
    add(findings, ".");
}

static void tell_smallest(struct findings *findings) {
    const struct standing *smallest = best_marked(findings, findings->is_smallest);

    if (!smallest)
        return;
    add(findings, "%sSmallest: ", findings->sentences[findings->sentence_count][0] ? " " : "");
    add_marked(findings, findings->is_smallest);
    add(findings, ", ");
    add_ratio(findings, smallest->reserved);
    add(findings, " the peak requested memory");
    if (findings->driver && findings->driver->reserved > 0 &&
        !findings->is_smallest[findings->driver - findings->standings]) {
        add(findings, "; %s ", findings->driver->name);
        add_ratio(findings, findings->driver->reserved);
    }
    add(findings, ".");
}

/* What weir's default and the driver are compared by, and the words for that. */
static const struct {
    enum result_figure figure;
    const char *what;
} measures[] = {{FIGURE_STEADY_MAKESPAN, "makespan"},     {FIGURE_STEADY_MEAN, "steady time"},
                {FIGURE_STEADY_WORST, "worst iteration"}, {FIGURE_WARM_UP, "warm-up"},
                {FIGURE_RESERVED, "reserved memory"},     {FIGURE_KEPT, "kept memory"}};

/* Returns the driver's row with the least of a figure on a trace; NULL if none has it. */
static const struct row *best_driver(const struct results *results, size_t trace,
                                     enum result_figure figure) {
    const struct row *best = NULL;

    for (size_t i = 0; i < results->configuration_count; i++) {
        const struct row *row = row_of(results, trace, i);

        if (configuration_is_driver(row->configuration) && result_compares(row) &&
            row->median.has[figure] &&
            (!best || row->median.value[figure] < best->median.value[figure]))
            best = row;
    }
    return best;
}

/* Returns 1 if a's figure is above b's, beyond their ranges, and by a percent of what was requested if it is memory. */
static int is_worse(const struct row *a, const struct row *b, enum result_figure figure) {
    uint64_t slack = figure == FIGURE_RESERVED || figure == FIGURE_KEPT
                         ? a->median.value[FIGURE_REQUESTED] / 100
                         : 0;

    return a->low.value[figure] > b->high.value[figure] + slack;
}

/* Adds in what the default is worse than the driver, on how many traces and by how much at most.  Returns 1 if it is. */
static int add_worse(struct findings *findings, const struct results *results, size_t measure,
                     int is_first) {
    enum result_figure figure = measures[measure].figure;
    size_t usual = (size_t)(findings->usual - findings->standings), count = 0, worst_trace = 0;
    const struct row *worst = NULL;
    double most = 0;

    for (size_t t = 0; t < results->trace_count; t++) {
        const struct row *row = row_of(results, t, usual),
                         *driver = best_driver(results, t, figure);
        double ratio;

        if (!driver || !row->median.has[figure] || !is_worse(row, driver, figure))
            continue;
        ratio = driver->median.value[figure]
                    ? (double)row->median.value[figure] / (double)driver->median.value[figure]
                    : INFINITY;
        if (count++ == 0 || ratio > most) {
            most = ratio;
            worst = driver;
            worst_trace = t;
        }
    }
    if (count == 0)
        return 0;
    add(findings, "%s%s", is_first ? "" : "; ", measures[measure].what);
    if (results->trace_count > 1)
        add(findings, " on %zu of %zu traces", count, results->trace_count);
    add(findings, " (");
    if (isinf(most)) {
        add_ratio(findings, findings->usual->kept);
        add(findings, " the peak, where %s keeps nothing", result_name(worst));
    } else {
        add(findings, "%s", results->trace_count > 1 ? "up to " : "");
        add_ratio(findings, most);
        add(findings, " %s's", result_name(worst));
        if (results->trace_count > 1)
            add(findings, ", %s", results->traces[worst_trace]);
    }
    add(findings, ")");
    return 1;
}

static void tell_losses(struct findings *findings, const struct results *results) {
    int any = 0;

    if (!findings->usual || !findings->driver || is_driver(findings->usual))
        return;
    add(findings, "%s%s is worse than the driver in ", findings->usual->name,
        strcmp(findings->usual->name, "mapped") == 0 ? ", weir's default," : "");
    for (size_t i = 0; i < sizeof measures / sizeof measures[0]; i++)
        any |= add_worse(findings, results, i, !any);
    add(findings, any ? "." : "none of these figures.");
    end_sentence(findings);
}

/* Tells what figures are missing, and that one run of each is little. */
static void tell_doubts(struct findings *findings, const struct results *results) {
    size_t untimed = 0;

    for (size_t t = 0; t < results->trace_count; t++)
        if (!is_known(results, t, FIGURE_STEADY_MEAN))
            add(findings, "%s%s", untimed++ ? ", " : "There is no steady time of ",
                results->traces[t]);
    if (untimed)
        add(findings, ": fewer than 2 iterations.");
    end_sentence(findings);
    if (results->repeat == 1)
        add(findings, "One run of each: a time may be 10%% off, and --repeat 5 shows by how much.");
    end_sentence(findings);
}

int findings_make(const struct results *results, struct findings *findings) {
    size_t count = results->configuration_count;

    *findings = (struct findings){.count = count};
    findings->standings = calloc(count, sizeof *findings->standings);
    findings->is_fastest = calloc(count, 1);
    findings->is_smallest = calloc(count, 1);
    if (!findings->standings || !findings->is_fastest || !findings->is_smallest)
        return 0;
    for (size_t i = 0; i < count; i++)
        set_standing(results, i, &findings->standings[i]);
    find_references(findings);
    mark_fastest(findings);
    mark_smallest(findings);
    if (count < 2)
        return 1;
    tell_warm_up(findings);
    tell_fastest(findings);
    tell_smallest(findings);
    end_sentence(findings);
    tell_losses(findings, results);
    tell_doubts(findings, results);
    return 1;
}

void findings_free(struct findings *findings) {
    free(findings->standings);
    free(findings->is_fastest);
    free(findings->is_smallest);
}

/* ---- JSON ---- */

static json_t *marked_json(const struct findings *findings, const unsigned char *marked) {
    json_t *names = json_array();

    for (size_t i = 0; i < findings->count; i++)
        if (marked[i])
            json_array_append_new(names, json_string(findings->standings[i].name));
    return names;
}

static json_t *known_or_null(double value, int known) {
    return known ? jsonfile_rounded(value, 10000.0) : json_null();
}

/* Returns the ratio of a figure to that of `to`, or null. */
static json_t *ratio_json(const struct standing *standing, const double *of,
                          enum result_figure figure, const struct standing *to) {
    int known = to && to->mean[figure] > 0 && standing->mean[figure] > 0;

    return known_or_null(known ? of[figure] / to->mean[figure] : 0, known);
}

static json_t *standing_json(const struct standing *s, const struct standing *to) {
    return json_pack("{s:s,s:b,s:b,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "configuration", s->name,
                     "usable", !s->configuration->unusable, "complete", s->is_complete, "time",
                     ratio_json(s, s->mean, FIGURE_STEADY_MEAN, to), "time_low",
                     ratio_json(s, s->low, FIGURE_STEADY_MEAN, to), "time_high",
                     ratio_json(s, s->high, FIGURE_STEADY_MEAN, to), "makespan",
                     ratio_json(s, s->mean, FIGURE_STEADY_MAKESPAN, to), "first",
                     ratio_json(s, s->mean, FIGURE_FIRST, to), "warm_up",
                     ratio_json(s, s->mean, FIGURE_WARM_UP, to), "creation",
                     ratio_json(s, s->mean, FIGURE_CREATION, to), "reserved",
                     known_or_null(s->reserved, s->reserved >= 0), "kept",
                     known_or_null(s->kept, s->kept >= 0));
}

json_t *findings_json(const struct findings *findings) {
    const struct standing *to = findings->usual ? findings->usual : findings->driver;
    json_t *sentences = json_array(), *standings = json_array();

    for (size_t i = 0; i < findings->sentence_count; i++)
        json_array_append_new(sentences, json_string(findings->sentences[i]));
    for (size_t i = 0; i < findings->count; i++)
        json_array_append_new(standings, standing_json(&findings->standings[i], to));
    return json_pack("{s:o,s:o,s:o,s:s?,s:o}", "sentences", sentences, "fastest",
                     marked_json(findings, findings->is_fastest), "smallest",
                     marked_json(findings, findings->is_smallest), "default", to ? to->name : NULL,
                     "standings", standings);
}
