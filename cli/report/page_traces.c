/* SPDX-License-Identifier: MIT */
/* page_traces.c: a trace with a row for each configuration, and the settings of these. */
#include "cli/report/report_page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/report/report.h"
#include "config/settings.h"

static void trace_facts(FILE *file, const struct report_trace *trace) {
    const json_t *result = NULL;

    for (size_t i = 0; i < trace->count && !result; i++)
        result = trace->rows[i].shown;
    if (!result) {
        fputs("<p class=\"warn\">No configuration came to its end.</p>\n", file);
        return;
    }
    fputs("<p>", file);
    html_count(file, json_array_size(json_object_get(result, "iterations")), "iteration", ", ");
    html_count(file, report_number(result, "allocs", NULL), "allocation", ", ");
    html_count(file, report_number(result, "streams", NULL), "stream", ", peak requested memory ");
    html_bytes(file, report_number(result, "requested_peak_bytes", NULL));
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
        html_no_cell(file);
        return;
    }
    html_begin_cell(file, "steady_alloc_ns", NULL, value);
    html_ms(file, (double)value);
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
        html_no_cell(file);
        html_no_cell(file);
        return;
    }
    last = steady = &points->levels[points->level_count - 1];
    while (steady->from > points->steady_from)
        steady--;
    fprintf(file, "<td>%zu", steady->from + 1);
    if (steady->from > 0)
        fprintf(file, " <small>%zu–%zu</small>", steady->from_low + 1, steady->from_high + 1);
    fputs("</td><td>", file);
    html_ms(file, last->ns);
    fputs(" <small>", file);
    html_ms(file, last->low_ns);
    fputs("–", file);
    html_ms(file, last->high_ns);
    fputs("</small></td>", file);
}

static int is_text(const json_t *object, const char *key, const char *text) {
    return strcmp(html_string_at(object, key), text) == 0;
}

/* In the words of `weir run --json': "mapped fit"; the driver's own pools are of none.  Earlier results have earlier
 * words: engine arena, of any kind, and platform. */
static void engine_cell(FILE *file, const json_t *options) {
    int was_arena = is_text(options, "engine", "arena");
    int is_mapped = is_text(options, was_arena ? "arena" : "engine", "mapped");
    const char *engine = is_mapped   ? "mapped"
                         : was_arena ? "bfc"
                         : is_text(options, "engine", "platform")
                             ? "direct"
                             : html_string_at(options, "engine");

    fputs("<td class=\"text\">", file);
    html_or(file, engine, "–");
    if (is_mapped && !is_text(options, "packing", "balanced")) {
        fputc(' ', file);
        html_put(file, html_string_at(options, "packing"));
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
    html_ms_cell(file, row, "first_iteration_ns");
    steady_cell(file, row);
    fprintf(file, "<td class=\"text\">%s</td>", *row->kind ? row->kind : "–");
    html_whole_cell(file, row, "warm_up_iterations", NULL);
    level_cells(file, row);
    html_percentile_cell(file, row, "p50");
    html_percentile_cell(file, row, "p99");
    html_percentile_cell(file, row, "p999");
    html_whole_cell(file, row, "op_ns", "max");
    html_whole_cell(file, row, "growths", NULL);
    html_ms_cell(file, row, "stall_ns");
    html_mib_cell(file, row, "reserved_peak_bytes");
    html_ratio_cell(file, row);
    html_ms_cell(file, row, create_key(row));
    if (with_makespan)
        html_ms_cell(file, row, "makespan_ns");
    html_whole_cell(file, row, "failed", NULL);
}

static void failed_cells(FILE *file, const struct report_row *row, int with_makespan) {
    fprintf(file, "<td class=\"text\" colspan=\"%d\">failed: ", 17 + with_makespan);
    html_or(file, html_string_at(row->results[0], "error"), "no reason was reported");
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
        html_put(file, row->label);
        fputs("\"><th scope=\"row\">", file);
        html_put(file, row->label);
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
            html_put(file, row->label);
            fprintf(file, "</th><td>%" PRIu64 "</td><td>%zu–%zu</td><td>",
                    report_number(row->results[k], "repeat", NULL), level->from + 1,
                    level->from + level->count);
            if (i > 0)
                fprintf(file, "%zu–%zu", level->from_low + 1, level->from_high + 1);
            fputs("</td><td>", file);
            html_ms(file, level->ns);
            fputs("</td><td>", file);
            html_ms(file, level->low_ns);
            fputs("–", file);
            html_ms(file, level->high_ns);
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

void html_options(FILE *file, json_t *options) {
    json_t *value;
    const char *key;
    int any = 0;

    fputs("<code>", file);
    json_object_foreach(options, key, value) {
        char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);

        fputs(any++ ? " " : "", file);
        html_put(file, key);
        fputc('=', file);
        html_put(file, text ? text : json_string_value(value));
        free(text);
    }
    fputs(any ? "</code>" : "not told</code>", file);
}

/* The row that has the same settings and configuration already: with GPU work they are the same. */
static int has_same_before(const struct report_trace *trace, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (trace->rows[k].run == trace->rows[i].run &&
            is_text(trace->rows[k].shown, "configuration",
                    html_string_at(trace->rows[i].shown, "configuration")) &&
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
        html_put(file, trace->rows[i].label);
        fputs("</th><td class=\"text\">", file);
        html_options(file, json_object_get(trace->rows[i].shown, "options"));
        fputs("</td></tr>\n", file);
    }
    fputs("</tbody></table></div></details>\n", file);
}

void html_trace(FILE *file, const struct report *report, size_t t) {
    const struct report_trace *trace = &report->traces[t];

    fprintf(file, "<section id=\"trace-%zu\"><details><summary><h2>", t + 1);
    html_put(file, trace->name);
    fputs("</h2></summary>\n", file);
    trace_facts(file, trace);
    trace_table(file, trace);
    tell_missing(file, trace);
    html_pictures(file, report, PICTURE_MEMORY, PICTURE_MAP, t);
    levels_table(file, trace);
    settings_table(file, trace);
    fputs("</details></section>\n", file);
}
