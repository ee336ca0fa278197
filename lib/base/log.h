/* SPDX-License-Identifier: MIT */
/* log.h: writes log lines to standard error, and reasons of failures.  This file must not know who logs. */
#ifndef WEIR_LOG_H
#define WEIR_LOG_H

#include <stddef.h>

#include <weir/options.h>
#include <weir/status.h>

/* Writes "weir: LEVEL: TEXT" and a newline in one write(2) to standard error if `threshold` allows `level` (both are
 * WEIR_LOG_ constants).  Keeps errno.  Thread-safe. */
void weir__log(int threshold, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The buffer for a text that says why a call failed.  If `bytes` is 0, the caller wants no text. */
struct weir_message {
    char *text;
    size_t bytes;
};

/* Writes into *message why a call failed, if no driver call failed.  Sets the thread's driver result to 0, and returns
 * `status`. */
weir_status weir__refuse(weir_status status, const struct weir_message *message, const char *format,
                         ...) __attribute__((format(printf, 3, 4)));

#endif
