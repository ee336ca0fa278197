/* SPDX-License-Identifier: MIT */
/* oom_reporting.h: OOM reports that weir writes by itself when a request fails.
 *
 * This file must not know how a report is made.
 */
#ifndef WEIR_OOM_REPORTING_H
#define WEIR_OOM_REPORTING_H

#include <weir/oom_report.h>

/* Returns 0 if options.oom_report is "off", else 1. */
int weir__oom_report_is_wanted(const char *to);
/* Writes a report of this thread's last failure to the place that options.oom_report names: only for the first few
 * failures of an allocator, and only once for each cause.  Returns 1 with the report in *out, else 0.  Leaves the
 * thread's last driver result unchanged. */
int weir__oom_report_new(weir_allocator *a, weir_oom_report *out);
/* The name of an advised setting if the program has set options.limit, so that no flag or variable would change the
 * limit.  Its text is "limit", and the writer recognises the name by its address. */
extern const char weir__oom_report_own_limit[];
/* Returns 0 if a report could be written to the file `to` now, else the errno.  Creates no file. */
int weir__oom_report_problem(const char *to);
/* Writes a report to standard error ("stderr"), or appends it to a file, as JSON if the file's name ends with ".json".
 * If the file cannot be written, logs the reason and writes the report to standard error. */
void weir__oom_report_write(const weir_oom_report *oom_report, const char *to);

#endif
