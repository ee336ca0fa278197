/* SPDX-License-Identifier: MIT */
/* report_html.c: the page: one file that needs no other, well-formed as XML too.
 *
 * Black and greys of pictures follow the page's colours.
 */
#include "cli/report/report_page.h"

#include <weir/allocator.h>

#include "base/text.h"
#include "cli/report/report.h"
#include "config/settings.h"

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

static void put_contents(FILE *file, const struct report *report) {
    if (report->trace_count < 2)
        return;
    fputs("<nav><p>", file);
    for (size_t t = 0; t < report->trace_count; t++) {
        fprintf(file, "%s<a href=\"#trace-%zu\">", t ? " · " : "", t + 1);
        html_put(file, report->traces[t].name);
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
        html_put(file, report->traces[t].name);
    }
    fprintf(file, "</title><style>\n%s</style></head><body>\n<h1>weir report</h1>\n", style);
    html_warnings(file, report);
    if (report->no_pictures[0]) {
        fputs("<p class=\"warn\" id=\"no-pictures\">This page was made without pictures: ", file);
        html_put(file, report->no_pictures);
        fputs("</p>\n", file);
    }
    html_findings(file, report);
    html_summary(file, report);
    html_runs_table(file, report);
    if (report->trace_count)
        fputs(html_reading, file);
    put_contents(file, report);
    for (size_t t = 0; t < report->trace_count; t++)
        html_trace(file, report, t);
    for (size_t p = 0; p < report->process_count; p++)
        html_process(file, report, p);
    html_other_failures(file, report);
    fprintf(file, "<p class=\"note\">Made by weir %s.</p>\n</body></html>\n", weir_version());
    return !ferror(file);
}
