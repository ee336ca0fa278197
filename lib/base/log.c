/* SPDX-License-Identifier: MIT */
/* log.c: writes log lines to standard error, up to the level that the caller has set.
 *
 * A line is put together on the stack and written by one write(2), so lines of several threads and processes do not
 * mix. No lock is held and stdio is not used, so logging works under any lock of the caller.  A line that is too long
 * is cut; its newline stays.
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"

enum { LINE_BYTES = 1024 };

static const char *level_word(int level) {
    switch (level) { /* unreached: default and none, which are no levels of a line */
#define LEVEL_WORD(name, word, value)                                                              \
    case WEIR_LOG_##name:                                                                          \
        return word;
        WEIR_LOG_LEVELS(LEVEL_WORD)
#undef LEVEL_WORD
    default:
        return "log";
    }
}

void weir__log(int threshold, int level, const char *format, ...) {
    char line[LINE_BYTES];
    int saved_errno = errno, head, body;
    struct weir_file_guard guard;
    size_t length;
    va_list arguments;

    if (level > threshold || level <= WEIR_LOG_NONE)
        return;
    head = snprintf(line, sizeof line, "weir: %s: ", level_word(level));
    length = head > 0 ? (size_t)head : 0;
    va_start(arguments, format);
    body = vsnprintf(line + length, sizeof line - length, format, arguments);
    va_end(arguments);
    if (body > 0)
        length += (size_t)body;
    if (length > sizeof line - 1)
        length = sizeof line - 1; /* the newline replaces the NUL */
    line[length++] = '\n';
    weir__file_guard(&guard);
    while (write(STDERR_FILENO, line, length) < 0 && errno == EINTR)
        ;
    weir__file_unguard(&guard);
    errno = saved_errno;
}
