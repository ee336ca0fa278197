/* SPDX-License-Identifier: MIT */
/* log.h: one line on standard error, when asked. Must not know: who logs. */
#ifndef WEIR_LOG_H
#define WEIR_LOG_H

#include <weir/options.h>

/* Writes "weir: <level>: <text>\n" in one write(2) to standard error if `level` is shown at
 * `threshold` (both WEIR_LOG_).  Keeps errno.  Thread-safe. */
void weir__log(int threshold, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
