/* SPDX-License-Identifier: MIT */
/* page_findings.c: what a reader should know first: the best settings, doubts, and figures side by side. */
#include "cli/report/report_page.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "cli/report/report.h"
#include "config/settings.h"

/* "0.82": a mean of ratios is worth no more digits; "~": one of the two is not settled. */
static void put_times(FILE *file, double ratio, int is_unsettled) {
    int digits = ratio < 10.0 ? 2 : ratio < 100.0 ? 1 : 0;

    fprintf(file, "%s%s%.*f times", ratio < 0.01 ? "under " : "", is_unsettled ? "~" : "", digits,
            fmax(ratio, 0.01));
}

static void put_against(FILE *file, const struct choice *choice, const struct choice *usual,
                        const char *whose, int of_memory) {
    int is_unsettled = choice->mean.is_unsettled || usual->mean.is_unsettled;
    double time = choice->mean.time_ns / usual->mean.time_ns;
    double memory = choice->mean.memory / usual->mean.memory;

    fputs("</strong>: ", file);
    put_times(file, of_memory ? memory : time, !of_memory && is_unsettled);
    fputs(of_memory ? " the reserved memory of " : " the steady time of ", file);
    html_put(file, usual->label);
    html_put(file, whose);
    if (of_memory && usual->mean.time_ns <= 0.0)
        return;
    fputs(", ", file);
    put_times(file, of_memory ? time : memory, of_memory && is_unsettled);
    fputs(of_memory ? " the steady time" : " the reserved memory", file);
}

static void put_choice(FILE *file, const struct report *report, const char *what,
                       const struct choice *choice, int of_memory) {
    const char *whose;
    const struct choice *usual = choices_default(&report->choices, &whose);
    size_t count = 0;

    fprintf(file, "<p>%s: <strong>", what);
    html_put(file, choice->label);
    if (choice != usual) {
        put_against(file, choice, usual, whose, of_memory);
    } else {
        fputs("</strong>", file);
        html_put(file, whose);
    }
    for (size_t i = 0; i < report->choices.count && !of_memory; i++) {
        const struct choice *other = &report->choices.items[i];

        if (other == choice || !choice_within_noise(other, choice))
            continue;
        fputs(count++ ? ", " : "; equal within the noise: ", file);
        html_put(file, other->label);
    }
    fputs(".</p>\n", file);
}

/* The one sentence to act upon, with its rule. */
static void put_recommended(FILE *file, const struct report *report) {
    const char *whose;
    const struct choice *usual = choices_default(&report->choices, &whose);
    const struct choice *choice = choices_recommended(&report->choices);

    fputs("<p id=\"recommended\">Recommended: <strong>", file);
    html_put(file, choice->label);
    if (choice != usual) {
        put_against(file, choice, usual, whose,
                    choice->mean.memory <= usual->mean.memory * (100 - LESS_MEMORY) / 100);
        fputs(".</p>\n", file);
        return;
    }
    fputs("</strong>", file);
    html_put(file, whose);
    fprintf(file,
            ": no other configuration needs %d%% less memory for at most %d%% more time, or %d%% "
            "less time for at most %d%% more memory.</p>\n",
            LESS_MEMORY, MORE_TIME, LESS_TIME, MORE_MEMORY);
}

/* Of one alone there is nothing to choose. */
static void put_single(FILE *file, const struct choice *choice) {
    fputs("<p><strong>", file);
    html_put(file, choice->label);
    fprintf(file, "</strong> reserves at most %.2f times the peak requested memory",
            choice->mean.memory);
    if (choice->mean.time_ns > 0.0) {
        fputs(", and takes ", file);
        html_ms(file, choice->mean.time_ns);
        fprintf(file, "%s ms for the allocations and frees of a steady iteration",
                choice->mean.is_unsettled ? "~" : "");
    }
    fputs(".</p>\n", file);
}

static void put_failures(FILE *file, const struct report *report) {
    for (size_t i = 0; i < report->choices.count; i++) {
        const struct choice *choice = &report->choices.items[i];

        if (choice->mean.failed == 0)
            continue;
        fputs("<p class=\"warn\">", file);
        html_put(file, choice->label);
        fputs(": ", file);
        html_count(file, choice->mean.failed, "request",
                   " failed, so that its figures compare with none.</p>\n");
    }
}

/* What a process took at most, and how much of it was for nothing. */
static void put_process_oom_report(FILE *file, const json_t *line) {
    const json_t *served = json_object_get(line, "served");

    for (size_t i = 0; i < json_array_size(served); i++) {
        const json_t *one = json_array_get(served, i);
        uint64_t reserved = report_number(one, "reserved_peak", NULL);
        uint64_t requested = report_number(one, "requested_peak", NULL);
        uint64_t failed = report_number(one, "failed_requests", NULL);

        fprintf(file, "<p><strong>Process %" PRIu64 " on ", report_number(line, "pid", NULL));
        html_or(file, html_string_at(one, "device"), "a device");
        if (json_array_size(served) > 1)
            fprintf(file, ", %s %zu",
                    strcmp(html_string_at(one, "serves"), "pool") == 0 ? "pool" : "allocator",
                    i + 1);
        fputs(", reserved at most ", file);
        html_bytes(file, reserved);
        fputs("</strong>", file);
        if (requested > 0) {
            double ratio = (double)reserved / (double)requested;

            fprintf(file, ", %.*f times its peak requested memory of ", ratio < 100.0 ? 2 : 0,
                    ratio);
            html_bytes(file, requested);
        }
        fputs("; growth took ", file);
        html_ms(file, (double)report_number(one, "stall_ns", NULL));
        fputs(failed ? " ms, and " : " ms", file);
        if (failed)
            html_count(file, failed, "request", " failed");
        fputs(".</p>\n", file);
    }
}

static void put_busy(FILE *file, const struct report *report) {
    if (report->busy > 0.0)
        fprintf(file, "<p class=\"note\">With GPU work (busy %g), as the program does it.</p>\n",
                report->busy);
    else if (report->busy < 0.0)
        fputs("<p class=\"note\">With GPU work, as the program does it.</p>\n", file);
}

/* What the times leave out, and whether they are to be trusted. */
static void put_doubts(FILE *file, const struct report *report) {
    const struct choices *choices = &report->choices;
    const struct choice *fastest = choices_fastest(choices), *usual;
    const char *whose;
    int alike = 0;

    if (choices->timed < choices->traces) {
        fputs(choices->timed ? "<p class=\"note\">Times are without those of"
                             : "<p class=\"note\">There is no steady time, so none is "
                               "recommended: fewer than 2 iterations in",
              file);
        for (size_t t = 0, any = 0; t < choices->traces; t++)
            if (!choices->is_timed[t]) {
                fputs(any++ ? ", " : " ", file);
                html_put(file, report->traces[t].name);
            }
        fputs(choices->timed ? ": fewer than 2 iterations.</p>\n" : ".</p>\n", file);
    }
    usual = choices_default(choices, &whose);
    for (size_t i = 0; i < choices->count && fastest; i++)
        alike |= &choices->items[i] != fastest && choice_within_noise(&choices->items[i], fastest);
    if (fastest && fastest->mean.is_single && (alike || fastest != usual))
        fputs("<p class=\"note\">One run of each: use <code>--repeat 5</code> to be sure.</p>\n",
              file);
}

void html_findings(FILE *file, const struct report *report) {
    const struct choice *fastest = choices_fastest(&report->choices);
    const struct choice *leanest = choices_leanest(&report->choices);

    fputs("<section id=\"findings\">\n", file);
    if (report->choices.count > 1) {
        if (fastest) {
            put_recommended(file, report);
            put_choice(file, report, "Fastest", fastest, 0);
        }
        if (leanest)
            put_choice(file, report, "Leanest", leanest, 1);
    } else if (leanest) {
        put_single(file, leanest);
    }
    if (leanest)
        put_busy(file, report);
    if (leanest && report->choices.count > 1)
        put_doubts(file, report);
    if (!leanest && report->trace_count > 0)
        fputs("<p>No configuration served every trace to its end, so none is "
              "recommended.</p>\n",
              file);
    for (size_t p = 0; p < report->process_count; p++)
        put_process_oom_report(file, report->processes[p].line);
    put_failures(file, report);
    html_pictures(file, report, PICTURE_OVERVIEW, PICTURE_OVERVIEW, 0);
    fputs("</section>\n", file);
}

/* ---- a summary ---- */

static void ratio_or_none(FILE *file, double ratio, int is_unsettled) {
    if (ratio > 0.0)
        fprintf(file, "<td>%.*f%s</td>",
                ratio < 10.0    ? 3
                : ratio < 100.0 ? 2
                                : 1,
                ratio, is_unsettled ? "~" : "");
    else
        html_no_cell(file);
}

static void against_head(FILE *file, const char *what, const struct choice *usual) {
    fprintf(file, "<th scope=\"col\">%s</th><th scope=\"col\">/ ", what);
    html_put(file, usual->label);
    fputs("</th>", file);
}

void html_summary(FILE *file, const struct report *report) {
    const char *whose;
    const struct choice *usual = choices_default(&report->choices, &whose);
    int any_unsettled = 0;

    if (report->choices.count < 2 || !usual)
        return;
    fprintf(file, "<section id=\"summary\"><h2>Summary of %zu trace%s</h2>\n", report->trace_count,
            weir__plural(report->trace_count));
    put_busy(file, report);
    fputs("<div class=\"wide\"><table><thead><tr><th class=\"text\" "
          "scope=\"col\">configuration</th>",
          file);
    against_head(file, "steady<br/>ms/iter", usual);
    if (report->busy != 0.0)
        against_head(file, "makespan<br/>all ms", usual);
    fputs("<th scope=\"col\">reserved<br/>/ peak</th><th "
          "scope=\"col\">failed<br/>requests</th></tr></thead><tbody>\n",
          file);
    for (size_t i = 0; i < report->choices.count; i++) {
        const struct choice *choice = &report->choices.items[i];
        const struct choice_figures *mean = &choice->mean;

        fputs("<tr><th scope=\"row\">", file);
        html_put(file, choice->label);
        fputs("</th>", file);
        ratio_or_none(file, mean->time_ns / 1e6, mean->is_unsettled);
        ratio_or_none(file, mean->time_ns / usual->mean.time_ns,
                      mean->is_unsettled || usual->mean.is_unsettled);
        any_unsettled |= mean->is_unsettled;
        if (report->busy != 0.0) {
            ratio_or_none(file, mean->makespan_ns / 1e6, 0);
            ratio_or_none(file, mean->makespan_ns / usual->mean.makespan_ns, 0);
        }
        ratio_or_none(file, mean->memory, 0);
        fputs("<td>", file);
        html_number(file, mean->failed);
        fputs("</td></tr>\n", file);
    }
    fputs("</tbody></table></div>\n", file);
    if (report->trace_count > 1)
        fputs("<p class=\"note\">Geometric means over the traces.</p>\n", file);
    if (any_unsettled)
        fputs("<p class=\"note\">~ not settled on some trace.</p>\n", file);
    fputs("</section>\n", file);
}
