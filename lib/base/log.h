/* SPDX-License-Identifier: MIT */
/* log.h: writes lines of the log to standard error, and writes reasons of failures into buffers of callers. */
#ifndef WEIR_LOG_H
#define WEIR_LOG_H

#include <stddef.h>

#include <weir/options.h>
#include <weir/status.h>

/* Writes "weir: LEVEL: TEXT" and a newline to standard error, by one write(2), unless `level` is above `threshold`.
 * Both are WEIR_LOG_ constants.  Keeps errno.  Thread-safe. */
void weir__log(int threshold, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A buffer into which weir writes the reason of a failure.  If `bytes` is 0, the caller wants no reason. */
struct weir_message {
    char *text;
    size_t bytes;
};

/* Writes the reason of a failure to `message`.  Sets the thread's last driver result to 0.  Returns `status`. */
weir_status weir__refuse(weir_status status, const struct weir_message *message, const char *format,
                         ...) __attribute__((format(printf, 3, 4)));

#endif
