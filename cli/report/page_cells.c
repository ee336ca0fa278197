/* SPDX-License-Identifier: MIT */
/* page_cells.c: text and cells of the page. */
#include "cli/report/report_page.h"

#include <inttypes.h>

#include "base/text.h"
#include "cli/common/spell.h"
#include "cli/report/report.h"
#include "config/settings.h"

void html_put(FILE *file, const char *text) {
    report_text(file, text);
}

const char *html_string_at(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

void html_words(FILE *file, const json_t *words) {
    for (size_t i = 0; i < json_array_size(words); i++) {
        if (i)
            fputc(' ', file);
        html_put(file, json_string_value(json_array_get(words, i)));
    }
}

void html_number(FILE *file, uint64_t value) {
    char text[32];

    table_spell(value, text, sizeof text);
    fputs(text, file);
}

void html_count(FILE *file, uint64_t count, const char *of, const char *behind) {
    html_number(file, count);
    fprintf(file, " %s%s%s", of, weir__plural(count), behind);
}

void html_bytes(FILE *file, uint64_t bytes) {
    char text[WEIR_SHOW_BYTES];

    weir__bytes_show(bytes, text, sizeof text);
    html_put(file, text);
}

void html_ms(FILE *file, double ns) {
    double ms = ns / 1e6;

    fprintf(file, "%.*f", ms < 1.0 ? 4 : ms < 10.0 ? 3 : ms < 100.0 ? 2 : 1, ms);
}

void html_or(FILE *file, const char *text, const char *otherwise) {
    html_put(file, *text ? text : otherwise);
}

/* ---- cells ---- */

void html_no_cell(FILE *file) {
    fputs("<td>–</td>", file);
}

void html_begin_cell(FILE *file, const char *key, const char *inner, uint64_t value) {
    fprintf(file, "<td data-key=\"%s%s%s\" data-value=\"%" PRIu64 "\">", key, inner ? "." : "",
            inner ? inner : "", value);
}

void html_whole_cell(FILE *file, const struct report_row *row, const char *key, const char *inner) {
    uint64_t value;

    if (!report_median(row, key, inner, &value)) {
        html_no_cell(file);
        return;
    }
    html_begin_cell(file, key, inner, value);
    html_number(file, value);
    fputs("</td>", file);
}

void html_percentile_cell(FILE *file, const struct report_row *row, const char *inner) {
    uint64_t value;

    if (!report_median(row, "op_ns", inner, &value)) {
        html_no_cell(file);
        return;
    }
    html_begin_cell(file, "op_ns", inner, value);
    html_number(file, table_percentile(value));
    fputs("</td>", file);
}

void html_ms_cell(FILE *file, const struct report_row *row, const char *key) {
    uint64_t value;

    if (!report_median(row, key, NULL, &value)) {
        html_no_cell(file);
        return;
    }
    html_begin_cell(file, key, NULL, value);
    html_ms(file, (double)value);
    fputs("</td>", file);
}

void html_mib_cell(FILE *file, const struct report_row *row, const char *key) {
    uint64_t value;

    if (!report_median(row, key, NULL, &value)) {
        html_no_cell(file);
        return;
    }
    html_begin_cell(file, key, NULL, value);
    fprintf(file, "%.1f</td>", (double)value / 1048576.0);
}

void html_ratio_cell(FILE *file, const struct report_row *row) {
    uint64_t reserve, live, failed;

    if (!(report_median(row, "failed", NULL, &failed) && failed) &&
        report_median(row, "reserved_peak_bytes", NULL, &reserve) &&
        report_median(row, "requested_peak_bytes", NULL, &live) && live)
        fprintf(file, "<td>%.3f</td>", (double)reserve / (double)live);
    else
        html_no_cell(file);
}
