/* SPDX-License-Identifier: MIT */
/* log.c: writes lines of the log to standard error.
 *
 * weir__log() formats a line on the stack and writes it by one write(2), without stdio or a lock.  So lines do not mix,
 * and a caller may hold any lock.  A line that is too long is cut. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/result.h"

enum { LINE_BYTES = 1024 };

void weir__log(int threshold, int level, const char *format, ...) {
    static const char *const words[] = {
#define LEVEL_WORD(name, word, value) [WEIR_LOG_##name] = word,
        WEIR_LOG_LEVELS(LEVEL_WORD)
#undef LEVEL_WORD
    };
    char line[LINE_BYTES];
    int saved_errno = errno, head, body;
    struct weir_file_guard guard;
    size_t length;
    va_list arguments;

    if (level > threshold || level <= WEIR_LOG_NONE)
        return;
    head = snprintf(line, sizeof line, "weir: %s: ",
                    (size_t)level < sizeof words / sizeof words[0] ? words[level] : "log");
    length = head > 0 ? (size_t)head : 0;
    va_start(arguments, format);
    body = vsnprintf(line + length, sizeof line - length, format, arguments);
    va_end(arguments);
    if (body > 0)
        length += (size_t)body;
    if (length > sizeof line - 1)
        length = sizeof line - 1; /* the newline overwrites the NUL */
    line[length++] = '\n';
    weir__file_guard(&guard);
    while (write(STDERR_FILENO, line, length) < 0 && errno == EINTR)
        ;
    weir__file_unguard(&guard);
    errno = saved_errno;
}

weir_status weir__refuse(weir_status status, const struct weir_message *message, const char *format,
                         ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(message->text, message->bytes, format, arguments);
    va_end(arguments);
    return weir__without_driver(status);
}

int weir__assert_failed(const char *condition, const char *file, int line) {
    weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR, "%s:%d: a mistake in weir: this does not hold: %s",
              file, line, condition);
    abort();
}
