/* SPDX-License-Identifier: MIT */
/* oom_reporting.h: makes and writes OOM reports about failed requests. */
#ifndef WEIR_OOM_REPORTING_H
#define WEIR_OOM_REPORTING_H

#include <weir/oom_report.h>

/* Returns 0 if `to`, the value of options.oom_report, is "off", else 1. */
int weir__oom_report_is_wanted(const char *to);
/* Writes an OOM report about this thread's last failure, once for each cause.  Returns 1 if a report was written. */
int weir__oom_report_new(weir_allocator *a, weir_oom_report *out);
/* The name of the setting limit in advice that only the program's code can follow.  Compare addresses, not texts. */
extern const char weir__oom_report_own_limit[];
/* Returns 0 if weir could write a report to the file `to` now, else an errno value.  Creates no file. */
int weir__oom_report_problem(const char *to);
/* Appends a report to the file `to`, as JSON if the name ends with ".json", or writes it to standard error. */
void weir__oom_report_write(const weir_oom_report *oom_report, const char *to);

#endif
