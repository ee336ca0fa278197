/* SPDX-License-Identifier: MIT */
/* log.h: writes log lines to standard error.  This file must not know who logs. */
#ifndef WEIR_LOG_H
#define WEIR_LOG_H

#include <weir/options.h>

/* Writes "weir: LEVEL: TEXT" and a newline in one write(2) to standard error if `threshold` allows `level` (both are
 * WEIR_LOG_ constants).  Keeps errno.  Thread-safe. */
void weir__log(int threshold, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
