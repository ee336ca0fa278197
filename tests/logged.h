/* SPDX-License-Identifier: MIT */
/* logged.h: how many errors weir has written to standard error, and what they say.
 *
 * For one file of a suite: the file that standard error goes to is that file's own.
 */
#ifndef WEIR_TEST_LOGGED_H
#define WEIR_TEST_LOGGED_H

#include <string.h>
#include <unistd.h>

#include "support.h"

static int log_file;
static off_t log_read;       /* bytes of it */
static char logged[1 << 18]; /* what the last call of `lines` found */

static inline void catch_log(void) {
    char path[] = "/tmp/weir-log-XXXXXX";

    log_file = mkstemp(path);
    log_read = 0;
    MUST(log_file >= 0 && unlink(path) == 0);
    MUST(dup2(log_file, STDERR_FILENO) == STDERR_FILENO);
}

/* Errors since the last call.  A thread may be about to write one. */
static inline int lines(void) {
    ssize_t bytes = pread(log_file, logged, sizeof logged - 1, log_read);
    int count = 0;

    MUST(bytes >= 0 && (size_t)bytes < sizeof logged - 1);
    logged[bytes] = '\0';
    for (const char *at = logged; (at = strstr(at, "weir: error: ")); at++)
        count++;
    log_read += bytes;
    return count;
}

static inline void expect_lines(int at, int count) {
    int found = lines();

    if (found != count)
        ck_abort_msg("line %d: %d lines in the log, not %d: %s", at, found, count, logged);
}

#endif
