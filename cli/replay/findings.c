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

/* Returns the row of a configuration on a trace.  If the replays had GPU work, returns the row with GPU work. */
static const struct row *find_result_row(const struct results *results, size_t trace,
                                         size_t configuration) {
    return result_at(results, trace, configuration, results->busy > 0);
}

/* Returns 1 if at least one configuration has this figure for the trace, else 0. */
static int is_figure_known(const struct results *results, size_t trace, enum result_figure figure) {
    for (size_t i = 0; i < results->configuration_count; i++)
        if (find_result_row(results, trace, i)->median.has[figure])
            return 1;
    return 0;
}

/* Sets one figure of a configuration: the geometric mean over the traces for which the figure is known. */
static void set_geometric_mean(const struct results *results, size_t configuration,
                               enum result_figure figure, struct summary *out) {
    double mean = 0, low = 0, high = 0;
    size_t count = 0;

    for (size_t t = 0; t < results->trace_count; t++) {
        const struct row *row = find_result_row(results, t, configuration);

        if (!is_figure_known(results, t, figure))
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

/* Returns the ratio of a figure in bytes to the peak requested memory, or a negative value if either is unknown. */
static double over_requested(const struct row *row, enum result_figure figure) {
    if (!row->median.has[figure] || row->median.value[FIGURE_REQUESTED] == 0)
        return -1;
    return (double)row->median.value[figure] / (double)row->median.value[FIGURE_REQUESTED];
}

static void set_summary(const struct results *results, size_t configuration, struct summary *out) {
    double logs = 0, kept = 0, iterations = 0;
    size_t with_peak = 0, with_steady = 0;

    *out = (struct summary){.name = result_name(find_result_row(results, 0, configuration)),
                            .configuration = results->configurations[configuration],
                            .is_complete = 1};
    for (size_t t = 0; t < results->trace_count; t++) {
        const struct row *row = find_result_row(results, t, configuration);
        double reserved = over_requested(row, FIGURE_RESERVED);

        out->is_complete &= result_is_comparable(row);
        out->is_warm_up_endless |= row->median.has[FIGURE_STEADY_MEAN] && !row->settled;
        if (row->median.value[FIGURE_REQUESTED] > 0) {
            with_peak++;
            logs += reserved > 0 ? log(reserved) : NAN;
            kept += over_requested(row, FIGURE_KEPT) < 0 ? NAN : over_requested(row, FIGURE_KEPT);
        }
        if (row->median.has[FIGURE_WARM_UP] && row->median.value[FIGURE_STEADY_MEAN] > 0) {
            with_steady++;
            iterations += log(fmax((double)row->median.value[FIGURE_WARM_UP], 1) /
                              (double)row->median.value[FIGURE_STEADY_MEAN]);
        }
    }
    out->reserved = out->kept = -1;
    if (!out->is_complete)
        return;
    if (with_peak && !isnan(logs))
        out->reserved = exp(logs / (double)with_peak);
    if (with_peak && !isnan(kept))
        out->kept = kept / (double)with_peak;
    if (with_steady)
        out->warm_up_iterations = exp(iterations / (double)with_steady);
    for (int figure = 0; figure < FIGURES; figure++)
        set_geometric_mean(results, configuration, (enum result_figure)figure, out);
}

/* Returns 1 if a program can use the configuration, and it ran on all traces without a failure; else 0. */
static int is_complete_and_usable(const struct summary *summary) {
    return summary->is_complete && !summary->configuration->unusable;
}

#define EACH_STANDING(s, findings)                                                                 \
    struct summary *s = (findings)->summaries;                                                     \
    s < (findings)->summaries + (findings)->count;                                                 \
    s++

/* Marks all usable configurations for which the figure is known, if there are at least two. */
static void mark_choices(struct findings *findings, enum mark mark, enum result_figure figure) {
    size_t count = 0;

    for (EACH_STANDING(s, findings))
        count += s->marks[mark] = is_complete_and_usable(s) && s->mean[figure] > 0;
    for (EACH_STANDING(s, findings))
        s->marks[mark] &= count > 1;
}

/* Returns the marked configuration with the smallest known value of the figure, or NULL if there is none. */
static struct summary *least_marked(const struct findings *findings, enum mark mark,
                                    enum result_figure figure) {
    struct summary *least = NULL;

    for (EACH_STANDING(s, findings))
        if (s->marks[mark] && s->mean[figure] > 0 &&
            (!least || s->mean[figure] < least->mean[figure]))
            least = s;
    return least;
}

/* Leaves the mark only on the configuration with the smallest value of the figure, and on those that tie with it. */
static void keep_least(struct findings *findings, enum mark mark, enum result_figure figure) {
    const struct summary *least = least_marked(findings, mark, figure);

    for (EACH_STANDING(s, findings))
        if (least)
            s->marks[mark] &= s->mean[figure] > 0 && s->low[figure] <= least->high[figure];
}

/* Marks the usable configurations whose peak of reserved memory is at most 1% above the smallest such peak. */
static void mark_smallest(struct findings *findings) {
    double least = INFINITY;

    mark_choices(findings, MARK_SMALLEST, FIGURE_RESERVED);
    for (EACH_STANDING(s, findings))
        if (s->marks[MARK_SMALLEST] && s->reserved >= 0)
            least = fmin(least, s->reserved);
    for (EACH_STANDING(s, findings))
        s->marks[MARK_SMALLEST] &= s->reserved >= 0 && s->reserved <= least + 0.01;
}

static void mark_all(struct findings *findings) {
    mark_choices(findings, MARK_FASTEST, FIGURE_STEADY_MEAN);
    keep_least(findings, MARK_FASTEST, FIGURE_STEADY_MAKESPAN);
    keep_least(findings, MARK_FASTEST, FIGURE_STEADY_MEAN);
    mark_choices(findings, MARK_WARM_UP, FIGURE_WARM_UP);
    keep_least(findings, MARK_WARM_UP, FIGURE_WARM_UP);
    mark_smallest(findings);
}

static const struct summary *find_summary(const struct findings *findings, const char *name) {
    for (size_t i = 0; i < findings->count; i++)
        if (strcmp(findings->summaries[i].name, name) == 0 && findings->summaries[i].is_complete)
            return &findings->summaries[i];
    return NULL;
}

static void find_references(struct findings *findings) {
    findings->weir_summary = find_summary(findings, "mapped");
    findings->driver = find_summary(findings, "driver-keep");
    if (!findings->driver)
        findings->driver = find_summary(findings, "driver");
    for (size_t i = 0; i < findings->count && !findings->weir_summary; i++)
        if (is_complete_and_usable(&findings->summaries[i]) &&
            !configuration_is_driver(findings->summaries[i].configuration))
            findings->weir_summary = &findings->summaries[i];
}

/* ---- sentences ---- */

/* Appends text to the current sentence, as much as fits. */
static void append_finding(struct findings *findings, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void append_finding(struct findings *findings, const char *format, ...) {
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

#define MS(ns) (spell_ms(ns).text)

/* Appends a ratio with three digits, such as "1.02 times" or "12.3 times". */
static void add_ratio(struct findings *findings, double ratio) {
    append_finding(findings, "%s%.*f times", ratio < 0.01 && ratio > 0 ? "under " : "",
                   ratio < 9.995   ? 2
                   : ratio < 99.95 ? 1
                                   : 0,
                   ratio > 0 ? fmax(ratio, 0.01) : 0);
}

/* Appends the names of all configurations with the mark, such as "mapped, pool and bfc (a tie)". */
static void add_marked(struct findings *findings, enum mark mark) {
    size_t count = 0, told = 0;

    for (EACH_STANDING(s, findings))
        count += s->marks[mark];
    for (EACH_STANDING(s, findings))
        if (s->marks[mark]) {
            told++;
            append_finding(findings, "%s%s",
                           told == 1       ? ""
                           : told == count ? " and "
                                           : ", ",
                           s->name);
        }
    append_finding(findings, "%s", count > 1 ? " (a tie)" : "");
}

/* Appends a text such as "8.1 ms with mapped, as long as 20 steady iterations". */
static void add_warm_up(struct findings *findings, const struct summary *summary) {
    append_finding(findings, "%s ms with %s", MS(summary->mean[FIGURE_WARM_UP]), summary->name);
    if (summary->warm_up_iterations > 0)
        append_finding(findings, ", as long as %.*f steady iterations",
                       summary->warm_up_iterations < 9.5 ? 1 : 0, summary->warm_up_iterations);
}

static void add_warm_up_sentence(struct findings *findings) {
    const struct summary *pool = find_summary(findings, "pool"),
                         *ready = find_summary(findings, "pool-prealloc");
    const struct summary *least = least_marked(findings, MARK_WARM_UP, FIGURE_WARM_UP);
    const struct summary *usual = findings->weir_summary, *driver = findings->driver;

    if (!least)
        return;
    append_finding(findings, "Warm-up (creation and the first iteration) takes ");
    if (driver)
        add_warm_up(findings, driver);
    if (usual && usual != driver) {
        append_finding(findings, driver ? "; " : "");
        add_warm_up(findings, usual);
    }
    if (least != usual && least != driver) {
        append_finding(
            findings, "%s%s ms with ",
            driver || usual ? "; the least is " : "the least: ", MS(least->mean[FIGURE_WARM_UP]));
        add_marked(findings, MARK_WARM_UP);
    }
    append_finding(findings, ".");
    if (pool && ready && ready->mean[FIGURE_FIRST] < pool->mean[FIGURE_FIRST]) {
        append_finding(
            findings,
            " Preallocating the peak shortens the first iteration of pool from %s ms to %s ms, and "
            "takes %s ms at creation.",
            MS(pool->mean[FIGURE_FIRST]), MS(ready->mean[FIGURE_FIRST]),
            MS(ready->mean[FIGURE_CREATION]));
    }
    end_sentence(findings);
}

/* Appends the ratio of the summary's figure to the driver's, unless the driver is among the fastest configurations. */
static void add_against_driver(struct findings *findings, const struct summary *summary,
                               enum result_figure figure) {
    const struct summary *driver = findings->driver;

    if (!driver || driver->marks[MARK_FASTEST] || driver->mean[figure] <= 0)
        return;
    append_finding(findings, ", ");
    add_ratio(findings, summary->mean[figure] / driver->mean[figure]);
    append_finding(findings, " that of %s%s", driver->name,
                   summary->is_warm_up_endless || driver->is_warm_up_endless ? " (not settled)"
                                                                             : "");
}

static void add_fastest_sentence(struct findings *findings) {
    const struct summary *fastest = least_marked(findings, MARK_FASTEST, FIGURE_STEADY_MEAN);
    int any_settled = 0;

    if (!fastest)
        return;
    for (EACH_STANDING(s, findings))
        any_settled |= s->mean[FIGURE_STEADY_MEAN] > 0 && !s->is_warm_up_endless;
    append_finding(findings, "Fastest %s: ", any_settled ? "in steady state" : "(none settled)");
    add_marked(findings, MARK_FASTEST);
    append_finding(findings, ", ");
    if (fastest->mean[FIGURE_STEADY_MAKESPAN] > 0) {
        append_finding(findings, "a makespan of %s ms an iteration",
                       MS(fastest->mean[FIGURE_STEADY_MAKESPAN]));
        add_against_driver(findings, fastest, FIGURE_STEADY_MAKESPAN);
        append_finding(findings, "; allocator time ");
    }
    append_finding(findings, "%s ms an iteration", MS(fastest->mean[FIGURE_STEADY_MEAN]));
    add_against_driver(findings, fastest, FIGURE_STEADY_MEAN);
    append_finding(findings, ".");
    end_sentence(findings);
}

static void add_smallest_sentence(struct findings *findings) {
    const struct summary *smallest = least_marked(findings, MARK_SMALLEST, FIGURE_RESERVED);

    if (!smallest)
        return;
    append_finding(findings, "Smallest: ");
    add_marked(findings, MARK_SMALLEST);
    append_finding(findings, ", ");
    add_ratio(findings, smallest->reserved);
    append_finding(findings, " the peak requested memory");
    if (findings->driver && findings->driver->reserved > 0 &&
        !findings->driver->marks[MARK_SMALLEST]) {
        append_finding(findings, "; %s ", findings->driver->name);
        add_ratio(findings, findings->driver->reserved);
    }
    append_finding(findings, ".");
    end_sentence(findings);
}

/* The figures in which weir's default configuration is compared with the driver's, and their names in sentences. */
static const struct {
    enum result_figure figure;
    const char *what;
} measures[] = {{FIGURE_STEADY_MAKESPAN, "makespan"},     {FIGURE_STEADY_MEAN, "steady time"},
                {FIGURE_STEADY_WORST, "worst iteration"}, {FIGURE_WARM_UP, "warm-up"},
                {FIGURE_RESERVED, "reserved memory"},     {FIGURE_KEPT, "kept memory"}};

/* Returns the row with the smallest value of the figure among the driver's configurations on a trace, or NULL if there
 * is none. */
static const struct row *best_driver(const struct results *results, size_t trace,
                                     enum result_figure figure) {
    const struct row *best = NULL;

    for (size_t i = 0; i < results->configuration_count; i++) {
        const struct row *row = find_result_row(results, trace, i);

        if (configuration_is_driver(row->configuration) && result_is_comparable(row) &&
            row->median.has[figure] &&
            (!best || row->median.value[figure] < best->median.value[figure]))
            best = row;
    }
    return best;
}

/* If weir's default configuration is worse than the driver on some trace, appends the figure and the largest ratio of
 * weir's value to the driver's value.  Returns 1 if so, else 0. */
static int add_worse(struct findings *findings, const struct results *results, size_t measure,
                     int is_first) {
    enum result_figure figure = measures[measure].figure;
    size_t usual = (size_t)(findings->weir_summary - findings->summaries), count = 0;
    const struct row *worst = NULL, *worst_driver = NULL;
    double most = 0;

    for (size_t t = 0; t < results->trace_count; t++) {
        const struct row *row = find_result_row(results, t, usual),
                         *driver = best_driver(results, t, figure);
        double ratio;

        if (!driver || !row->median.has[figure] || !result_is_larger(row, driver, figure))
            continue;
        ratio = driver->median.value[figure]
                    ? (double)row->median.value[figure] / (double)driver->median.value[figure]
                    : INFINITY;
        if (count++ == 0 || ratio > most) {
            most = ratio;
            worst = row;
            worst_driver = driver;
        }
    }
    if (count == 0)
        return 0;
    append_finding(findings, "%s%s", is_first ? "" : "; ", measures[measure].what);
    if (results->trace_count > 1)
        append_finding(findings, " on %zu of %zu traces", count, results->trace_count);
    append_finding(findings, " (");
    if (isinf(most)) {
        add_ratio(findings, over_requested(worst, figure));
        append_finding(findings, " the peak, where %s keeps nothing", result_name(worst_driver));
    } else {
        append_finding(findings, "%s", count > 1 ? "up to " : "");
        add_ratio(findings, most);
        append_finding(findings, " that of %s", result_name(worst_driver));
    }
    if (results->trace_count > 1)
        append_finding(findings, ", on %s", results->traces[worst->trace]);
    append_finding(findings, ")");
    return 1;
}

static void add_losses_sentence(struct findings *findings, const struct results *results) {
    int any = 0;

    if (!findings->weir_summary || !findings->driver ||
        configuration_is_driver(findings->weir_summary->configuration))
        return;
    append_finding(findings, "%s%s is worse than the driver in ", findings->weir_summary->name,
                   strcmp(findings->weir_summary->name, "mapped") == 0 ? ", weir's default," : "");
    for (size_t i = 0; i < sizeof measures / sizeof measures[0]; i++)
        any |= add_worse(findings, results, i, !any);
    append_finding(findings, any ? "." : "no figure.");
    end_sentence(findings);
}

/* Returns 1 if a replayed trace has no steady time, because it has fewer than two iterations; else 0. */
static int is_untimed(const struct results *results, size_t trace) {
    return is_figure_known(results, trace, FIGURE_CREATION) &&
           !is_figure_known(results, trace, FIGURE_STEADY_MEAN);
}

/* Adds warnings about traces with fewer than two iterations, and about configurations that ran only once. */
static void add_doubt_sentences(struct findings *findings, const struct results *results) {
    size_t untimed = 0;

    for (size_t t = 0; t < results->trace_count; t++)
        if (is_untimed(results, t))
            append_finding(findings, "%s%s", untimed++ ? ", " : "There is no steady time of ",
                           results->traces[t]);
    if (untimed)
        append_finding(findings, ": fewer than 2 iterations.");
    end_sentence(findings);
    if (results->repeat == 1)
        append_finding(findings, "Each configuration ran once. Times may differ by 10%% between "
                                 "runs: --repeat 5 shows by how much.");
    end_sentence(findings);
}

int findings_make(const struct results *results, struct findings *findings) {
    size_t made = result_runs(results, 0), planned = result_planned(results);

    *findings = (struct findings){
        .summaries = calloc(results->configuration_count, sizeof *findings->summaries)};
    if (!findings->summaries)
        return 0;
    if (made < planned) {
        append_finding(findings, "Interrupted: %zu of %zu runs were made, so nothing is compared.",
                       made, planned);
        end_sentence(findings);
        return 1;
    }
    findings->count = results->configuration_count;
    for (size_t i = 0; i < findings->count; i++)
        set_summary(results, i, &findings->summaries[i]);
    find_references(findings);
    mark_all(findings);
    if (findings->count > 1) {
        add_warm_up_sentence(findings);
        add_fastest_sentence(findings);
        add_smallest_sentence(findings);
        add_losses_sentence(findings, results);
    }
    add_doubt_sentences(findings, results);
    return 1;
}

void findings_free(struct findings *findings) {
    free(findings->summaries);
}

/* ---- JSON ---- */

static json_t *marked_json(const struct findings *findings, enum mark mark) {
    json_t *names = json_array();

    for (EACH_STANDING(s, findings))
        if (s->marks[mark])
            json_array_append_new(names, json_string(s->name));
    return names;
}

static json_t *known_or_null(double value, int known) {
    return known ? jsonfile_rounded(value, 10000.0) : json_null();
}

/* Returns the ratio of a figure to the same figure of the configuration `to', as JSON.  Returns JSON null if one of the
 * two figures is unknown. */
static json_t *ratio_json(const struct summary *summary, const double *of,
                          enum result_figure figure, const struct summary *to) {
    int known = to && to->mean[figure] > 0 && summary->mean[figure] > 0;

    return known_or_null(known ? of[figure] / to->mean[figure] : 0, known);
}

static json_t *summary_json(const struct summary *s, const struct summary *to) {
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
    const struct summary *to = findings->weir_summary ? findings->weir_summary : findings->driver;
    json_t *sentences = json_array(), *summaries = json_array();

    for (size_t i = 0; i < findings->sentence_count; i++)
        json_array_append_new(sentences, json_string(findings->sentences[i]));
    for (size_t i = 0; i < findings->count; i++)
        json_array_append_new(summaries, summary_json(&findings->summaries[i], to));
    return json_pack("{s:o,s:o,s:o,s:s?,s:o}", "sentences", sentences, "fastest",
                     marked_json(findings, MARK_FASTEST), "smallest",
                     marked_json(findings, MARK_SMALLEST), "reference", to ? to->name : NULL,
                     "standings", summaries);
}
