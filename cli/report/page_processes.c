/* SPDX-License-Identifier: MIT */
/* page_processes.c: a process of weir run: what served it on each device, and requests that failed. */
#include "cli/report/report_page.h"

#include <inttypes.h>

#include "base/text.h"
#include "cli/report/report.h"
#include "config/settings.h"

static void process_row(FILE *file, const json_t *served) {
    static const char *const keys[] = {"allocs",          "frees",       "cache_hits",
                                       "failed_requests", "growths",     "stall_ns",
                                       "requested_peak",  "in_use_peak", "reserved_peak"};

    fputs("<tr><th scope=\"row\">", file);
    html_or(file, html_string_at(served, "device"), "a device");
    fputs("</th><td class=\"text\">", file);
    html_put(file, html_string_at(served, "serves"));
    fputs("</td><td class=\"text\">", file);
    html_or(file, html_string_at(served, "engine"), "not told");
    fputs("</td>", file);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint64_t value = report_number(served, keys[i], NULL);

        html_begin_cell(file, keys[i], NULL, value);
        if (i == 5)
            html_ms(file, (double)value);
        else if (i > 5)
            fprintf(file, "%.1f", (double)value / 1048576.0);
        else
            html_number(file, value);
        fputs("</td>", file);
    }
    fputs("</tr>\n", file);
}

static void put_failure(FILE *file, const json_t *line) {
    const json_t *verdict = json_object_get(line, "oom_report");

    fputs("<p class=\"warn\">A request failed on ", file);
    html_or(file, html_string_at(line, "device"), "a device");
    fprintf(file, ": %.1f MiB (", (double)report_number(verdict, "asked", NULL) / 1048576.0);
    html_or(file, html_string_at(verdict, "cause"), "no cause was reported");
    fputs("): ", file);
    html_or(file, html_string_at(verdict, "sentence"), "nothing more was reported");
    fputs(".</p>\n", file);
}

static int is_of(const struct report *report, const struct report_failure *failure, size_t p) {
    const struct report_process *process = &report->processes[p];

    return failure->file == report->runs[process->run].file &&
           json_equal(json_object_get(failure->line, "pid"), json_object_get(process->line, "pid"));
}

void html_other_failures(FILE *file, const struct report *report) {
    for (size_t i = 0; i < report->failure_count; i++) {
        const struct report_failure *failure = &report->refusals[i];
        int is_known = 0;

        for (size_t p = 0; p < report->process_count; p++)
            is_known |= is_of(report, failure, p);
        if (is_known)
            continue;
        fprintf(file, "<section><h2>process %" PRIu64 "</h2>\n",
                report_number(failure->line, "pid", NULL));
        put_failure(file, failure->line);
        fputs("<p class=\"note missing\">It reported nothing at its end.</p>\n</section>\n", file);
    }
}

void html_process(FILE *file, const struct report *report, size_t p) {
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
    for (size_t i = 0; i < report->failure_count; i++)
        if (is_of(report, &report->refusals[i], p))
            put_failure(file, report->refusals[i].line);
    fputs("<p>Left to the driver:", file);
    json_object_foreach((json_t *)(uintptr_t)left, key, value) if (json_integer_value(value) > 0) {
        fputs(any++ ? ", " : " ", file);
        html_number(file, (uint64_t)json_integer_value(value));
        fputc(' ', file);
        html_put(file, key);
    }
    fputs(any ? ".</p>\n" : " nothing.</p>\n", file);
    html_pictures(file, report, PICTURE_PROCESS, PICTURE_PROCESS, p);
    if (json_object_get(line, "options")) {
        fputs("<details><summary>Settings, as they were given</summary><p>", file);
        html_options(file, json_object_get(line, "options"));
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
