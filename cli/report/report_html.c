/* SPDX-License-Identifier: MIT */
/* report_html.c: the page: one file that needs no other, well-formed as XML too.
 *
 * Black and greys of pictures follow the page's colours.  A figure that comes out of a result stands in
 * its cell as it was, in data-value, beside the text that is read.
 */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/spell.h"
#include "cli/report/report.h"
#include "config/settings.h"
#include <weir/weir.h>

static const char style[] =
    ":root{color-scheme:light "
    "dark;--paper:#fff;--ink:#111;--faint:#555;--line:#bbb;--band:#f2f2f2;--warn:#7a2e00}\n@media "
    "(prefers-color-scheme:dark){:root{--paper:#16181b;--ink:#e8e8e8;--faint:#a8a8a8;--line:#555;--"
    "band:#212429;--warn:#ffb38a}}\nbody{background:var(--paper);color:var(--ink);font:15px/1.45 "
    "sans-serif;margin:0 auto;max-width:1240px;padding:1em}\nh1{font-size:1.6em}h2{border-top:3px "
    "double "
    "var(--line);padding-top:.7em;margin-top:2em}\ntable{border-collapse:collapse;margin:.7em "
    "0;font-variant-numeric:tabular-nums}\ntable{font-size:14px}th,td{padding:.15em "
    ".45em;text-align:right;border-bottom:1px solid "
    "var(--line);vertical-align:top;white-space:nowrap}td.text{white-space:normal;min-width:4.5em}"
    "\ntd small{display:block}td code{display:block;min-width:14em}\nth{font-weight:600}thead "
    "th{border-bottom:2px solid "
    "var(--ink);vertical-align:bottom}\nth[scope=row],.text{text-align:left}tbody "
    "tr:nth-child(even){background:var(--band)}\n.wide{overflow-x:auto;max-width:100%}.wide "
    "th:first-child{position:sticky;left:0;background:var(--paper)}.wide tr:nth-child(even) "
    "th:first-child{background:var(--band)}figure{"
    "margin:1.2em 0;overflow-x:auto}\nfigure "
    "svg{min-width:760px;width:100%;height:auto;display:block}\nfigcaption,.note,small{color:var(--"
    "faint);font-size:.9em}\n.warn{color:var(--warn);border-left:4px solid "
    "var(--warn);padding-left:.7em}\nsummary{cursor:pointer}code{font-size:.95em;overflow-wrap:"
    "anywhere}\nsvg [stroke=black],svg [stroke='rgb( 0, 0, 0)']{stroke:var(--ink)}\nsvg "
    "[fill=black],svg [fill='rgb( 0, 0, 0)'],svg "
    "[fill='rgb(0,0,0)']{fill:var(--ink)}\nsvg[color=black],svg [color=black],svg [color='rgb( 0, "
    "0, 0)']{color:var(--ink)}\n@media (prefers-color-scheme:dark){figure svg "
    "image{filter:invert(1)}\nsvg [fill='rgb(115, 115, 115)']{fill:#8c8c8c}svg [fill='rgb(204, "
    "204, 204)']{fill:#333}\nsvg [fill='rgb(254, 254, 254)']{fill:#010101}\nsvg [stroke='rgb( 0, "
    "114, 178)']{stroke:#4aa8e0}svg [color='rgb( 0, 114, 178)']{color:#4aa8e0}}\nsvg "
    "image{image-rendering:pixelated}\ndetails>summary "
    "h2{display:inline-block;border:0;margin:.3em 0;padding:0}\nsection>details{border-top:3px "
    "double var(--line);margin-top:1em}\n#findings p{font-size:1.1em;margin:.4em "
    "0}#overview{max-width:900px}\nsvg text{stroke:none;fill:var(--ink);text-anchor:middle}svg "
    ".e{text-anchor:end}svg .s{text-anchor:start}@media print{body{max-width:none}}\n";

/* ---------------------------------------------------------------------- text ---- */

static void put(FILE *file, const char *text) {
    report_text(file, text);
}

static const char *string_at(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

static void put_words(FILE *file, const json_t *words) {
    for (size_t i = 0; i < json_array_size(words); i++) {
        if (i)
            fputc(' ', file);
        put(file, json_string_value(json_array_get(words, i)));
    }
}

static void put_number(FILE *file, uint64_t value) {
    char text[32];

    table_spell(value, text, sizeof text);
    fputs(text, file);
}

/* "1 stream", "2 streams". */
static void put_count(FILE *file, uint64_t count, const char *of, const char *behind) {
    put_number(file, count);
    fprintf(file, " %s%s%s", of, weir__plural(count), behind);
}

static void put_bytes(FILE *file, uint64_t bytes) {
    char text[WEIR_SHOW_BYTES];

    weir__bytes_show(bytes, text, sizeof text);
    put(file, text);
}

/* Three digits that count, in ms. */
static void put_ms(FILE *file, double ns) {
    double ms = ns / 1e6;

    fprintf(file, "%.*f", ms < 1.0 ? 4 : ms < 10.0 ? 3 : ms < 100.0 ? 2 : 1, ms);
}

/* --------------------------------------------------------------------- cells ---- */

static void no_cell(FILE *file) {
    fputs("<td>–</td>", file);
}

static void begin_cell(FILE *file, const char *key, const char *inner, uint64_t value) {
    fprintf(file, "<td data-key=\"%s%s%s\" data-value=\"%" PRIu64 "\">", key, inner ? "." : "",
            inner ? inner : "", value);
}

static void whole_cell(FILE *file, const struct report_row *row, const char *key,
                       const char *inner) {
    uint64_t value;

    if (!report_median(row, key, inner, &value)) {
        no_cell(file);
        return;
    }
    begin_cell(file, key, inner, value);
    put_number(file, value);
    fputs("</td>", file);
}

static void percentile_cell(FILE *file, const struct report_row *row, const char *inner) {
    uint64_t value;

    if (!report_median(row, "op_ns", inner, &value)) {
        no_cell(file);
        return;
    }
    begin_cell(file, "op_ns", inner, value);
    put_number(file, table_percentile(value));
    fputs("</td>", file);
}

static void ms_cell(FILE *file, const struct report_row *row, const char *key) {
    uint64_t value;

    if (!report_median(row, key, NULL, &value)) {
        no_cell(file);
        return;
    }
    begin_cell(file, key, NULL, value);
    put_ms(file, (double)value);
    fputs("</td>", file);
}

static void mib_cell(FILE *file, const struct report_row *row, const char *key) {
    uint64_t value;

    if (!report_median(row, key, NULL, &value)) {
        no_cell(file);
        return;
    }
    begin_cell(file, key, NULL, value);
    fprintf(file, "%.1f</td>", (double)value / 1048576.0);
}

static void ratio_cell(FILE *file, const struct report_row *row) {
    uint64_t reserve, live, failed;

    if (!(report_median(row, "failed", NULL, &failed) && failed) &&
        report_median(row, "reserved_peak_bytes", NULL, &reserve) &&
        report_median(row, "requested_peak_bytes", NULL, &live) && live)
        fprintf(file, "<td>%.3f</td>", (double)reserve / (double)live);
    else
        no_cell(file);
}

/* ---------------------------------------------------------------------- runs ---- */

static void put_driver(FILE *file, const json_t *result) {
    uint64_t version = report_number(result, "driver_version", NULL);

    if (version)
        fprintf(file, "%" PRIu64 ".%" PRIu64, version / 1000, version % 1000 / 10);
    else
        fputs("not told", file);
}

static void put_or(FILE *file, const char *text, const char *otherwise) {
    put(file, *text ? text : otherwise);
}

static void runs_table(FILE *file, const struct report *report) {
    const struct report_run *first = report->run_count ? &report->runs[0] : NULL;

    fprintf(file, "<details><summary>%zu run%s", report->run_count,
            weir__plural(report->run_count));
    if (first && first->device && first->device[0]) {
        fputs(report->devices_differ ? ", the first on " : " on ", file);
        put(file, first->device);
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
        put_or(file, run->device, "none used");
        fputs("</td><td class=\"text\">", file);
        put_driver(file, run->first);
        fputs("</td><td class=\"text\">", file);
        put_or(file, string_at(run->first, "date"), "not told");
        fputs("</td><td class=\"text\">", file);
        put_or(file, string_at(run->first, "host"), "not told");
        fputs("</td><td class=\"text\">", file);
        put_or(file, string_at(run->first, "weir"), "not told");
        fputs("</td><td class=\"text\"><code>", file);
        put_words(file, command);
        if (!command)
            fputs("not told", file);
        fputs("</code></td><td class=\"text\"><code>", file);
        put(file, run->file);
        fputs("</code></td></tr>\n", file);
    }
    fputs("</tbody></table></div></details>\n", file);
}

/* What a reader must know before any figure. */
static void warnings(FILE *file, const struct report *report) {
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

static const char reading[] =
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

/* ------------------------------------------------------------------ pictures ---- */

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

static void put_pictures(FILE *file, const struct report *report, enum picture_kind from,
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

/* -------------------------------------------------------------------- traces ---- */

static void trace_facts(FILE *file, const struct report_trace *trace) {
    const json_t *result = NULL;

    for (size_t i = 0; i < trace->count && !result; i++)
        result = trace->rows[i].shown;
    if (!result) {
        fputs("<p class=\"warn\">No configuration came to its end.</p>\n", file);
        return;
    }
    fputs("<p>", file);
    put_count(file, json_array_size(json_object_get(result, "iterations")), "iteration", ", ");
    put_count(file, report_number(result, "allocs", NULL), "allocation", ", ");
    put_count(file, report_number(result, "streams", NULL), "stream", ", peak requested memory ");
    put_bytes(file, report_number(result, "requested_peak_bytes", NULL));
    fputs(".</p>\n", file);
}

static int all_settled(const struct report_row *row) {
    for (size_t i = 0; i < row->count; i++)
        if (json_is_false(json_object_get(row->results[i], "settled")))
            return 0;
    return 1;
}

static void steady_cell(FILE *file, const struct report_row *row) {
    uint64_t value;

    if (!report_median(row, "steady_alloc_ns", NULL, &value)) {
        no_cell(file);
        return;
    }
    begin_cell(file, "steady_alloc_ns", NULL, value);
    put_ms(file, (double)value);
    fprintf(file, "%s</td>", all_settled(row) ? "" : "~");
}

/* Of the repeat that is shown: where the steady stretch begins, and its last level. */
static void level_cells(FILE *file, const struct report_row *row) {
    const struct changepoints *points = NULL;
    const struct level *last, *steady;

    for (size_t i = 0; i < row->count; i++)
        if (row->results[i] == row->shown)
            points = &row->points[i];
    if (!points || points->level_count == 0) {
        no_cell(file);
        no_cell(file);
        return;
    }
    last = steady = &points->levels[points->level_count - 1];
    while (steady->from > points->steady_from)
        steady--;
    fprintf(file, "<td>%zu", steady->from + 1);
    if (steady->from > 0)
        fprintf(file, " <small>%zu–%zu</small>", steady->from_low + 1, steady->from_high + 1);
    fputs("</td><td>", file);
    put_ms(file, last->ns);
    fputs(" <small>", file);
    put_ms(file, last->low_ns);
    fputs("–", file);
    put_ms(file, last->high_ns);
    fputs("</small></td>", file);
}

static int is_text(const json_t *object, const char *key, const char *text) {
    return strcmp(string_at(object, key), text) == 0;
}

/* In the words of `weir run --json': "mapped fit"; the driver's own pools are of none.  Earlier results have earlier
 * words: engine arena, of any kind, and platform. */
static void engine_cell(FILE *file, const json_t *options) {
    int was_arena = is_text(options, "engine", "arena");
    int is_mapped = is_text(options, was_arena ? "arena" : "engine", "mapped");
    const char *engine = is_mapped                                ? "mapped"
                         : was_arena                              ? "bfc"
                         : is_text(options, "engine", "platform") ? "direct"
                                                                  : string_at(options, "engine");

    fputs("<td class=\"text\">", file);
    put_or(file, engine, "–");
    if (is_mapped && !is_text(options, "packing", "balanced")) {
        fputc(' ', file);
        put(file, string_at(options, "packing"));
    }
    if (strcmp(engine, "bfc") == 0 && is_text(options, "arena", "fixed"))
        fputs(" fixed", file);
    fputs("</td>", file);
}

static int has_makespan(const struct report_trace *trace) {
    for (size_t i = 0; i < trace->count; i++)
        if (json_is_integer(json_object_get(trace->rows[i].shown, "makespan_ns")))
            return 1;
    return 0;
}

/* Earlier results have what came nearest. */
static const char *create_key(const struct report_row *row) {
    uint64_t known;

    return report_median(row, "creation_ns", NULL, &known)     ? "creation_ns"
           : report_median(row, "beforehand_ns", NULL, &known) ? "beforehand_ns"
                                                               : "prealloc_ns";
}

static void row_cells(FILE *file, const struct report_row *row, int with_makespan) {
    engine_cell(file, json_object_get(row->shown, "options"));
    ms_cell(file, row, "first_iteration_ns");
    steady_cell(file, row);
    fprintf(file, "<td class=\"text\">%s</td>", *row->kind ? row->kind : "–");
    whole_cell(file, row, "warm_up_iterations", NULL);
    level_cells(file, row);
    percentile_cell(file, row, "p50");
    percentile_cell(file, row, "p99");
    percentile_cell(file, row, "p999");
    whole_cell(file, row, "op_ns", "max");
    whole_cell(file, row, "growths", NULL);
    ms_cell(file, row, "stall_ns");
    mib_cell(file, row, "reserved_peak_bytes");
    ratio_cell(file, row);
    ms_cell(file, row, create_key(row));
    if (with_makespan)
        ms_cell(file, row, "makespan_ns");
    whole_cell(file, row, "failed", NULL);
}

static void failed_cells(FILE *file, const struct report_row *row, int with_makespan) {
    fprintf(file, "<td class=\"text\" colspan=\"%d\">failed: ", 17 + with_makespan);
    put_or(file, string_at(row->results[0], "error"), "no reason was reported");
    fputs("</td>", file);
}

static void trace_table(FILE *file, const struct report_trace *trace) {
    fputs(
        "<div class=\"wide\"><table><thead><tr><th class=\"text\" scope=\"col\">configuration</th>"
        "<th class=\"text\" scope=\"col\">engine</th><th scope=\"col\">first<br/>ms/iter</th><th "
        "scope=\"col\">steady<br/>ms/iter</th>"
        "<th class=\"text\" scope=\"col\">class</th><th scope=\"col\">warm-up<br/>iterations</th>"
        "<th scope=\"col\">last level<br/>from iter</th><th scope=\"col\">last "
        "level<br/>ms/iter</th>"
        "<th scope=\"col\">op p50<br/>ns</th><th scope=\"col\">op p99<br/>ns</th><th "
        "scope=\"col\">op p99.9<br/>ns</th>"
        "<th scope=\"col\">op max<br/>ns</th><th scope=\"col\">growths</th><th "
        "scope=\"col\">waits<br/>ms</th>"
        "<th scope=\"col\">reserved<br/>MiB</th><th scope=\"col\">reserved<br/>/ peak</th>"
        "<th scope=\"col\">create<br/>ms</th>",
        file);
    if (has_makespan(trace))
        fputs("<th scope=\"col\">makespan<br/>all ms</th>", file);
    fputs("<th scope=\"col\">failed<br/>requests</th></tr></thead><tbody>\n", file);
    for (size_t i = 0; i < trace->count; i++) {
        const struct report_row *row = &trace->rows[i];

        fputs("<tr data-configuration=\"", file);
        put(file, row->label);
        fputs("\"><th scope=\"row\">", file);
        put(file, row->label);
        if (row->shown && row->failures)
            fprintf(file, " <small>(%zu of %zu failed)</small>", row->failures, row->count);
        fputs("</th>", file);
        if (row->shown)
            row_cells(file, row, has_makespan(trace));
        else
            failed_cells(file, row, has_makespan(trace));
        fputs("</tr>\n", file);
    }
    fputs("</tbody></table></div>\n", file);
}

/* What there could be and is not, and how to come by it. */
static void tell_missing(FILE *file, const struct report_trace *trace) {
    size_t shown = 0, sampled = 0, iterations = 0;

    for (size_t i = 0; i < trace->count; i++) {
        shown += trace->rows[i].shown != NULL;
        sampled += trace->rows[i].samples != NULL;
        iterations += json_array_size(json_object_get(trace->rows[i].shown, "iterations")) > 0;
    }
    if (sampled < shown)
        fprintf(
            file,
            "<p class=\"note missing\">%s: no time line, address map or latency curve, since "
            "the results have no samples. They are there with <code>--samples</code> "
            "(<code>weir bench --samples --json FILE</code>), or with <code>--report</code>.</p>\n",
            sampled ? "Some configurations" : "All configurations");
    if (shown && iterations < shown)
        fputs("<p class=\"note missing\">The trace has no marks, so there is neither warm-up nor "
              "steady state. The program did not wait often enough for <code>weir record "
              "--mark-at-sync</code>, or it was recorded without. Use <code>--mark-at-nvtx "
              "NAME</code>, or <code>weir_mark()</code> in the program.</p>\n",
              file);
}

static void put_levels(FILE *file, const struct report_row *row) {
    for (size_t k = 0; k < row->count; k++) {
        const struct changepoints *points = &row->points[k];

        for (size_t i = 0; i < points->level_count; i++) {
            const struct level *level = &points->levels[i];

            fputs("<tr><th scope=\"row\">", file);
            put(file, row->label);
            fprintf(file, "</th><td>%" PRIu64 "</td><td>%zu–%zu</td><td>",
                    report_number(row->results[k], "repeat", NULL), level->from + 1,
                    level->from + level->count);
            if (i > 0)
                fprintf(file, "%zu–%zu", level->from_low + 1, level->from_high + 1);
            fputs("</td><td>", file);
            put_ms(file, level->ns);
            fputs("</td><td>", file);
            put_ms(file, level->low_ns);
            fputs("–", file);
            put_ms(file, level->high_ns);
            fprintf(file, "</td><td class=\"text\">%s</td></tr>\n",
                    i + 1 == points->level_count ? report_class(row->results[k], points) : "");
        }
    }
}

static void levels_table(FILE *file, const struct report_trace *trace) {
    fputs("<details><summary>Levels of iteration times</summary><div "
          "class=\"wide\"><table><thead><tr><th class=\"text\" scope=\"col\">configuration</th><th "
          "scope=\"col\">repeat</th><th scope=\"col\">iterations</th><th scope=\"col\">begins "
          "(95%)</th><th scope=\"col\">level ms</th><th scope=\"col\">95%</th><th "
          "scope=\"col\">class</th></tr></thead><tbody>\n",
          file);
    for (size_t i = 0; i < trace->count; i++)
        put_levels(file, &trace->rows[i]);
    fputs("<tr><td colspan=\"7\" class=\"text\"><small>A level of one iteration has no interval of "
          "its "
          "own.</small></td></tr></tbody></table></div></details>\n",
          file);
}

static void put_options(FILE *file, json_t *options) {
    json_t *value;
    const char *key;
    int any = 0;

    fputs("<code>", file);
    json_object_foreach(options, key, value) {
        char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);

        fputs(any++ ? " " : "", file);
        put(file, key);
        fputc('=', file);
        put(file, text ? text : json_string_value(value));
        free(text);
    }
    fputs(any ? "</code>" : "not told</code>", file);
}

/* The row that has the same settings and configuration already: with GPU work they are the same. */
static int has_same_before(const struct report_trace *trace, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (trace->rows[k].run == trace->rows[i].run &&
            is_text(trace->rows[k].shown, "configuration",
                    string_at(trace->rows[i].shown, "configuration")) &&
            json_equal(json_object_get(trace->rows[k].shown, "options"),
                       json_object_get(trace->rows[i].shown, "options")))
            return 1;
    return 0;
}

static void settings_table(FILE *file, const struct report_trace *trace) {
    fputs("<details><summary>Effective settings</summary><div class=\"wide\"><table><thead><tr><th "
          "class=\"text\" scope=\"col\">configuration</th><th class=\"text\" "
          "scope=\"col\">settings</th></tr></thead><tbody>\n",
          file);
    for (size_t i = 0; i < trace->count; i++) {
        if (has_same_before(trace, i))
            continue;
        fputs("<tr><th scope=\"row\">", file);
        put(file, trace->rows[i].label);
        fputs("</th><td class=\"text\">", file);
        put_options(file, json_object_get(trace->rows[i].shown, "options"));
        fputs("</td></tr>\n", file);
    }
    fputs("</tbody></table></div></details>\n", file);
}

static void put_trace(FILE *file, const struct report *report, size_t t) {
    const struct report_trace *trace = &report->traces[t];

    fprintf(file, "<section id=\"trace-%zu\"><details><summary><h2>", t + 1);
    put(file, trace->name);
    fputs("</h2></summary>\n", file);
    trace_facts(file, trace);
    trace_table(file, trace);
    tell_missing(file, trace);
    put_pictures(file, report, PICTURE_MEMORY, PICTURE_MAP, t);
    levels_table(file, trace);
    settings_table(file, trace);
    fputs("</details></section>\n", file);
}

/* ----------------------------------------------------------------- processes ---- */

static void process_row(FILE *file, const json_t *served) {
    static const char *const keys[] = {"allocs",          "frees",       "cache_hits",
                                       "failed_requests", "growths",     "stall_ns",
                                       "requested_peak",  "in_use_peak", "reserved_peak"};

    fputs("<tr><th scope=\"row\">", file);
    put_or(file, string_at(served, "device"), "a device");
    fputs("</th><td class=\"text\">", file);
    put(file, string_at(served, "serves"));
    fputs("</td><td class=\"text\">", file);
    put_or(file, string_at(served, "engine"), "not told");
    fputs("</td>", file);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint64_t value = report_number(served, keys[i], NULL);

        begin_cell(file, keys[i], NULL, value);
        if (i == 5)
            put_ms(file, (double)value);
        else if (i > 5)
            fprintf(file, "%.1f", (double)value / 1048576.0);
        else
            put_number(file, value);
        fputs("</td>", file);
    }
    fputs("</tr>\n", file);
}

static void put_refusal(FILE *file, const json_t *line) {
    const json_t *verdict = json_object_get(line, "oom_report");

    fputs("<p class=\"warn\">A request failed on ", file);
    put_or(file, string_at(line, "device"), "a device");
    fprintf(file, ": %.1f MiB (", (double)report_number(verdict, "asked", NULL) / 1048576.0);
    put_or(file, string_at(verdict, "cause"), "no cause was reported");
    fputs("): ", file);
    put_or(file, string_at(verdict, "sentence"), "nothing more was reported");
    fputs(".</p>\n", file);
}

static int is_of(const struct report *report, const struct report_refusal *refusal, size_t p) {
    const struct report_process *process = &report->processes[p];

    return refusal->file == report->runs[process->run].file &&
           json_equal(json_object_get(refusal->line, "pid"), json_object_get(process->line, "pid"));
}

/* Of processes that have no line of their own, as who was killed. */
static void put_stray_refusals(FILE *file, const struct report *report) {
    for (size_t i = 0; i < report->refusal_count; i++) {
        const struct report_refusal *refusal = &report->refusals[i];
        int is_known = 0;

        for (size_t p = 0; p < report->process_count; p++)
            is_known |= is_of(report, refusal, p);
        if (is_known)
            continue;
        fprintf(file, "<section><h2>process %" PRIu64 "</h2>\n",
                report_number(refusal->line, "pid", NULL));
        put_refusal(file, refusal->line);
        fputs("<p class=\"note missing\">It reported nothing at its end.</p>\n</section>\n", file);
    }
}

static void put_process(FILE *file, const struct report *report, size_t p) {
    const json_t *line = report->processes[p].line, *served = json_object_get(line, "served");
    const json_t *left = json_object_get(line, "left");
    json_t *value;
    const char *key;
    int events = 0, timelines = 0, any = 0;

    fprintf(file,
            "<section id=\"process-%zu\"><h2>process %" PRIu64 " <small>run %s</small></h2>\n",
            p + 1, report_number(line, "pid", NULL), report->runs[report->processes[p].run].letter);
    if (json_is_true(json_object_get(line, "incomplete")))
        fputs(
            "<p class=\"note missing\">What weir served it is not known in full: figures could not "
            "be read at its end.</p>\n",
            file);
    else if (json_array_size(served) == 0)
        fputs("<p>Weir served it nothing.</p>\n", file);
    if (json_array_size(served) > 0)
        fputs("<div class=\"wide\"><table><thead><tr><th class=\"text\" "
              "scope=\"col\">device</th><th class=\"text\" scope=\"col\">serves</th><th "
              "class=\"text\" scope=\"col\">engine</th><th "
              "scope=\"col\">requests</th><th "
              "scope=\"col\">frees</th><th "
              "scope=\"col\">from caches</th><th scope=\"col\">failed requests</th><th "
              "scope=\"col\">growths</th><th scope=\"col\">waits ms</th><th scope=\"col\">peak "
              "requested MiB</th><th scope=\"col\">peak in use MiB</th><th scope=\"col\">peak "
              "reserved MiB</th></tr></thead><tbody>\n",
              file);
    for (size_t i = 0; i < json_array_size(served); i++) {
        process_row(file, json_array_get(served, i));
        events |= json_object_get(json_array_get(served, i), "events") != NULL;
        timelines |= json_object_get(json_array_get(served, i), "timeline") != NULL;
    }
    if (json_array_size(served))
        fputs("</tbody></table></div>\n", file);
    for (size_t i = 0; i < report->refusal_count; i++)
        if (is_of(report, &report->refusals[i], p))
            put_refusal(file, report->refusals[i].line);
    fputs("<p>Left to the driver:", file);
    json_object_foreach((json_t *)(uintptr_t)left, key, value) if (json_integer_value(value) > 0) {
        fputs(any++ ? ", " : " ", file);
        put_number(file, (uint64_t)json_integer_value(value));
        fputc(' ', file);
        put(file, key);
    }
    fputs(any ? ".</p>\n" : " nothing.</p>\n", file);
    put_pictures(file, report, PICTURE_PROCESS, PICTURE_PROCESS, p);
    if (json_object_get(line, "options")) {
        fputs("<details><summary>Settings, as they were given</summary><p>", file);
        put_options(file, json_object_get(line, "options"));
        fputs("</p></details>\n", file);
    }
    if (json_array_size(served) && !(events && timelines))
        fprintf(file,
                "<p class=\"note missing\">No time line of %s: it is there with <code>weir run "
                "--report FILE</code>.</p>\n",
                events ? "what was requested" : "its memory");
    fputs("<p class=\"note missing\">The address map and latencies come "
          "from a trace: <code>weir record</code> the program, then <code>weir replay "
          "--report FILE</code> the trace.</p>\n</section>\n",
          file);
}

/* ---------------------------------------------------------------------- page ---- */

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
    put(file, usual->label);
    put(file, whose);
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
    put(file, choice->label);
    if (choice != usual) {
        put_against(file, choice, usual, whose, of_memory);
    } else {
        fputs("</strong>", file);
        put(file, whose);
    }
    for (size_t i = 0; i < report->choices.count && !of_memory; i++) {
        const struct choice *other = &report->choices.items[i];

        if (other == choice || !choice_within_noise(other, choice))
            continue;
        fputs(count++ ? ", " : "; equal within the noise: ", file);
        put(file, other->label);
    }
    fputs(".</p>\n", file);
}

/* The one sentence to act upon, with its rule. */
static void put_recommended(FILE *file, const struct report *report) {
    const char *whose;
    const struct choice *usual = choices_default(&report->choices, &whose);
    const struct choice *choice = choices_recommended(&report->choices);

    fputs("<p id=\"recommended\">Recommended: <strong>", file);
    put(file, choice->label);
    if (choice != usual) {
        put_against(file, choice, usual, whose,
                    choice->mean.memory <= usual->mean.memory * (100 - LESS_MEMORY) / 100);
        fputs(".</p>\n", file);
        return;
    }
    fputs("</strong>", file);
    put(file, whose);
    fprintf(file,
            ": no other configuration needs %d%% less memory for at most %d%% more time, or %d%% "
            "less time for at most %d%% more memory.</p>\n",
            LESS_MEMORY, MORE_TIME, LESS_TIME, MORE_MEMORY);
}

/* Of one alone there is nothing to choose. */
static void put_single(FILE *file, const struct choice *choice) {
    fputs("<p><strong>", file);
    put(file, choice->label);
    fprintf(file, "</strong> reserves at most %.2f times the peak requested memory",
            choice->mean.memory);
    if (choice->mean.time_ns > 0.0) {
        fputs(", and takes ", file);
        put_ms(file, choice->mean.time_ns);
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
        put(file, choice->label);
        fputs(": ", file);
        put_count(file, choice->mean.failed, "request",
                  " failed, so that its figures compare with none.</p>\n");
    }
}

/* What a process took at most, and how much of it was for nothing. */
static void put_process_verdict(FILE *file, const json_t *line) {
    const json_t *served = json_object_get(line, "served");

    for (size_t i = 0; i < json_array_size(served); i++) {
        const json_t *one = json_array_get(served, i);
        uint64_t reserved = report_number(one, "reserved_peak", NULL);
        uint64_t requested = report_number(one, "requested_peak", NULL);
        uint64_t failed = report_number(one, "failed_requests", NULL);

        fprintf(file, "<p><strong>Process %" PRIu64 " on ", report_number(line, "pid", NULL));
        put_or(file, string_at(one, "device"), "a device");
        if (json_array_size(served) > 1)
            fprintf(file, ", %s %zu",
                    strcmp(string_at(one, "serves"), "pool") == 0 ? "pool" : "allocator", i + 1);
        fputs(", reserved at most ", file);
        put_bytes(file, reserved);
        fputs("</strong>", file);
        if (requested > 0) {
            double ratio = (double)reserved / (double)requested;

            fprintf(file, ", %.*f times its peak requested memory of ", ratio < 100.0 ? 2 : 0,
                    ratio);
            put_bytes(file, requested);
        }
        fputs("; growth took ", file);
        put_ms(file, (double)report_number(one, "stall_ns", NULL));
        fputs(failed ? " ms, and " : " ms", file);
        if (failed)
            put_count(file, failed, "request", " failed");
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
                put(file, report->traces[t].name);
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

static void put_findings(FILE *file, const struct report *report) {
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
        put_process_verdict(file, report->processes[p].line);
    put_failures(file, report);
    put_pictures(file, report, PICTURE_OVERVIEW, PICTURE_OVERVIEW, 0);
    fputs("</section>\n", file);
}

static void ratio_or_none(FILE *file, double ratio, int is_unsettled) {
    if (ratio > 0.0)
        fprintf(file, "<td>%.*f%s</td>",
                ratio < 10.0    ? 3
                : ratio < 100.0 ? 2
                                : 1,
                ratio, is_unsettled ? "~" : "");
    else
        no_cell(file);
}

static void against_head(FILE *file, const char *what, const struct choice *usual) {
    fprintf(file, "<th scope=\"col\">%s</th><th scope=\"col\">/ ", what);
    put(file, usual->label);
    fputs("</th>", file);
}

/* All configurations over all traces. */
static void put_summary(FILE *file, const struct report *report) {
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
        put(file, choice->label);
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
        put_number(file, mean->failed);
        fputs("</td></tr>\n", file);
    }
    fputs("</tbody></table></div>\n", file);
    if (report->trace_count > 1)
        fputs("<p class=\"note\">Geometric means over the traces.</p>\n", file);
    if (any_unsettled)
        fputs("<p class=\"note\">~ not settled on some trace.</p>\n", file);
    fputs("</section>\n", file);
}

static void put_contents(FILE *file, const struct report *report) {
    if (report->trace_count < 2)
        return;
    fputs("<nav><p>", file);
    for (size_t t = 0; t < report->trace_count; t++) {
        fprintf(file, "%s<a href=\"#trace-%zu\">", t ? " · " : "", t + 1);
        put(file, report->traces[t].name);
        fputs("</a>", file);
    }
    fputs("</p></nav>\n", file);
}

int report_html(FILE *file, const struct report *report) {
    fputs("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta "
          "charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width, "
          "initial-scale=1\"/><title>weir report",
          file);
    for (size_t t = 0; t < report->trace_count; t++) {
        fputs(t ? ", " : ": ", file);
        put(file, report->traces[t].name);
    }
    fprintf(file, "</title><style>\n%s</style></head><body>\n<h1>weir report</h1>\n", style);
    warnings(file, report);
    if (report->no_pictures[0]) {
        fputs("<p class=\"warn\" id=\"no-pictures\">This page was made without pictures: ", file);
        put(file, report->no_pictures);
        fputs("</p>\n", file);
    }
    put_findings(file, report);
    put_summary(file, report);
    runs_table(file, report);
    if (report->trace_count)
        fputs(reading, file);
    put_contents(file, report);
    for (size_t t = 0; t < report->trace_count; t++)
        put_trace(file, report, t);
    for (size_t p = 0; p < report->process_count; p++)
        put_process(file, report, p);
    put_stray_refusals(file, report);
    fprintf(file, "<p class=\"note\">Made by weir %s.</p>\n</body></html>\n", weir_version());
    return !ferror(file);
}
