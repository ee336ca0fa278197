/* SPDX-License-Identifier: MIT */
/* oom_reporting.h: OOM reports told without being asked for.  Must not know: how one is come to. */
#ifndef WEIR_OOM_REPORTING_H
#define WEIR_OOM_REPORTING_H

#include <weir/oom_report.h>

/* Whether options.oom_report wants a screen, and where: 1, or 0: "off". */
int weir__oom_report_is_wanted(const char *to);
/* What is to be told about this thread's last failure, in `out`: 1 if it is the allocator's first of its cause, of
 * the first few.  Keeps the thread's last driver result. */
int weir__oom_report_is_news(weir_allocator *a, weir_oom_report *out);
/* "limit", as the name of a setting: it stands for options.limit, which the program set and no flag or variable changes.
 * The writer knows it by its address, since callers read the same word as ever. */
extern const char weir__oom_report_own_limit[];
/* 0, or the errno by which no file of that name could be written now.  None is made. */
int weir__oom_report_problem(const char *to);
/* Writes it to standard error ("stderr") or adds it to a file, as JSON if its name ends with .json;
 * where that does not take all of it, to standard error, behind a line that says why. */
void weir__oom_report_tell(const weir_oom_report *oom_report, const char *to);

#endif
