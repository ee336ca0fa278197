/* SPDX-License-Identifier: MIT */
/* page_runs.c: what runs the page is of, how to read it, and its pictures. */
#include "cli/report/report_page.h"

#include <inttypes.h>
#include <math.h>

#include "base/text.h"
#include "cli/report/report.h"
#include "config/settings.h"

static void put_driver(FILE *file, const json_t *result) {
    uint64_t version = report_number(result, "driver_version", NULL);

    if (version)
        fprintf(file, "%" PRIu64 ".%" PRIu64, version / 1000, version % 1000 / 10);
    else
        fputs("not told", file);
}

void html_runs_table(FILE *file, const struct report *report) {
    const struct report_run *first = report->run_count ? &report->runs[0] : NULL;

    fprintf(file, "<details><summary>%zu run%s", report->run_count,
            weir__plural(report->run_count));
    if (first && first->device && first->device[0]) {
        fputs(report->devices_differ ? ", the first on " : " on ", file);
        html_put(file, first->device);
    }
    fputs(": devices, versions and commands</summary>\n<div class=\"wide\"><table><thead><tr><th "
          "class=\"text\" "
          "scope=\"col\">run</th><th class=\"text\" scope=\"col\">device</th><th "
          "class=\"text\" scope=\"col\">driver</th><th class=\"text\" "
          "scope=\"col\">date</th><th class=\"text\" scope=\"col\">host</th><th "
          "class=\"text\" scope=\"col\">weir</th><th class=\"text\" "
          "scope=\"col\">command</th><th class=\"text\" "
          "scope=\"col\">file</th></tr></thead><tbody>\n",
          file);
    for (size_t i = 0; i < report->run_count; i++) {
        const struct report_run *run = &report->runs[i];
        const json_t *command = json_object_get(run->first, "command");

        fprintf(file, "<tr><th scope=\"row\">%s</th><td class=\"text\">", run->letter);
        html_or(file, run->device, "none used");
        fputs("</td><td class=\"text\">", file);
        put_driver(file, run->first);
        fputs("</td><td class=\"text\">", file);
        html_or(file, html_string_at(run->first, "date"), "not told");
        fputs("</td><td class=\"text\">", file);
        html_or(file, html_string_at(run->first, "host"), "not told");
        fputs("</td><td class=\"text\">", file);
        html_or(file, html_string_at(run->first, "weir"), "not told");
        fputs("</td><td class=\"text\"><code>", file);
        html_words(file, command);
        if (!command)
            fputs("not told", file);
        fputs("</code></td><td class=\"text\"><code>", file);
        html_put(file, run->file);
        fputs("</code></td></tr>\n", file);
    }
    fputs("</tbody></table></div></details>\n", file);
}

void html_warnings(FILE *file, const struct report *report) {
    if (report->devices_differ)
        fputs("<p class=\"warn\" id=\"devices-differ\">These runs are of different devices: their "
              "times do not compare, their reserves only where the trace is the same.</p>\n",
              file);
    for (size_t i = 0; i < report->run_count; i++)
        if (json_is_true(json_object_get(report->runs[i].first, "modelled"))) {
            fputs(
                "<p class=\"note\">On the device model times are virtual driver time and real time "
                "spent in weir; no GPU was used.</p>\n",
                file);
            break;
        }
}

const char html_reading[] =
    "<details><summary>How warm-up, changepoints and the figures are to be "
    "read</summary>\n<p><strong>The exact rule.</strong> An iteration is warm-up if in it, or in "
    "one after it, reserved memory grew, was given back or moved. A run is settled if at least 3 "
    "iterations follow the last such one; steady is the median of those. One that is not settled "
    "is all warm-up, and the median of its second half stands in for steady, marked "
    "~.</p>\n<p><strong>Changepoints.</strong> Beside it, from the times alone: PELT on the "
    "logarithms of the iteration times (squared distance from the mean over the variance of the "
    "noise, penalty 15 ln n, stretches of 2 iterations or more, the first of 1). The noise is "
    "taken from neighbours, and is 1% at least. An iteration, not the first, that stands out alone "
    "by six times the noise is an outlier and counts for no level. A level is the geometric mean "
    "of its iterations. Intervals are of 95%, by a bootstrap of 1,000 with a fixed seed. Two "
    "levels are the same if they differ by less than 5% or their intervals overlap; the steady "
    "stretch is the last level and those before it that are the "
    "same.</p>\n<p><strong>Classes</strong> (after Barrett et al., Virtual machine warmup blows "
    "hot and cold, 2017): <em>flat</em>, one level; <em>warm-up</em>, what comes before the steady "
    "stretch is slower; <em>slowdown</em>, a level of 3 iterations or more before it was faster; "
    "<em>never steady</em>, the steady stretch is shorter than 3 iterations or a quarter of all; "
    "<em>not settled</em>, the times look steady and reserved memory still changes; <em>too "
    "short</em>, fewer than 6 iterations. Repeats that differ are "
    "<em>inconsistent</em>.</p>\n<p>Times of iterations are of all their allocations and frees. "
    "Figures are medians over repeats; pictures show the first repeat. Peak requested memory: the "
    "largest sum of requested bytes, below which reserved memory cannot be. Single calls are timed "
    "in a process of their own, where short calls take longer.</p></details>\n";

/* ---- pictures ---- */

static const char *const captions[] = {
    "Memory over the replay. Light grey: requested (darker: between its least and its most where "
    "the picture is too coarse); dashed: in use, as handed out; thick line: reserved; dotted: peak "
    "requested memory, which is the floor. Triangles: growth, inverted: given back. Bars below the "
    "axis, with their scale at the right: waits for growth. Ticks above: ends of iterations.",
    "Time of allocations and frees by iteration. Hatched: warm-up by the exact rule; dashed "
    "upright "
    "lines: changepoints, with the interval of their place at the bottom; thick lines: levels, "
    "with their intervals as bands; crosses: outliers; plus signs: other repeats.",
    "Latencies of single calls by percentile, which is drawn by 1/(1-p): each further nine takes "
    "the same space.",
    "Where blocks lay, from the lowest address up, over the replay. Ink: in blocks, paler if in "
    "part; faint: held a block before and holds none now; paper: never held one. Pages of 2 MiB "
    "that no "
    "block ever touched are left out, so neighbours may lie far apart. Where a configuration ran "
    "with GPU work, that is shown.",
    "Memory of the process over time, as it was looked at a hundred times a second. Light grey: "
    "requested (darker: between its least and its most where the picture is too coarse); dashed: "
    "in use, as handed out; thick line: reserved, as it grew; dotted: peak requested memory.  It "
    "ends when the program ended.",
    "Time against reserved memory, one dot a configuration: lower and further left is better. Both "
    "axes are "
    "logarithmic; over several traces these are geometric means.",
};

void html_pictures(FILE *file, const struct report *report, enum picture_kind from,
                   enum picture_kind to, size_t of) {
    for (size_t i = 0; i < report->picture_count; i++) {
        const struct picture *picture = &report->pictures[i];
        char stem[24];

        if (picture->kind < from || picture->kind > to || picture->of != of || !picture->svg)
            continue;
        fprintf(file, "<figure id=\"%s\">", picture->stem);
        snprintf(stem, sizeof stem, "%zu", i + 1);
        report_svg(file, picture->svg, stem, captions[picture->kind]);
        fprintf(file, "<figcaption>%s</figcaption></figure>\n", captions[picture->kind]);
    }
}
