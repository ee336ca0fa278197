/* SPDX-License-Identifier: MIT */
/* progress.c: see progress.h. */
#include "cli/common/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

static int terminal_width(void) {
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 80;
}

void progress_begin(struct progress *progress, size_t total) {
    const char *terminal = getenv("TERM");

    *progress = (struct progress){.total = total, .began_ns = (long long)weir__clock_ns()};
    progress->is_terminal =
        isatty(STDERR_FILENO) && terminal && *terminal && strcmp(terminal, "dumb") != 0;
}

void progress_clear(const struct progress *progress) {
    if (progress->is_terminal)
        fputs("\r\033[K", stderr);
}

/* "\r[####------] 12/35  4 s  what", never as wide as the terminal, where it would wrap. */
static void draw(const struct progress *progress, const char *what) {
    enum { MOST_CELLS = 40 };
    char line[512], bar[MOST_CELLS + 1];
    int width = terminal_width();
    int cells = width / 3 < MOST_CELLS ? width / 3 : MOST_CELLS;
    int full = progress->total ? (int)((size_t)cells * progress->done / progress->total) : 0;

    memset(bar, '-', sizeof bar);
    memset(bar, '#', (size_t)full);
    bar[cells] = '\0';
    snprintf(line, sizeof line, "[%s] %zu/%zu  %lld s  %s", bar, progress->done, progress->total,
             ((long long)weir__clock_ns() - progress->began_ns) / 1000000000, what);
    fprintf(stderr, "\r%.*s\033[K", width > 1 ? width - 1 : 1, line);
    fflush(stderr);
}

void progress_step(struct progress *progress, const char *what) {
    progress->step_began_ns = (long long)weir__clock_ns();
    if (progress->is_terminal)
        draw(progress, what);
}

void progress_done(struct progress *progress, const char *what, const char *outcome) {
    progress->done++;
    if (progress->is_terminal)
        draw(progress, what);
    else
        fprintf(stderr, "weir: %zu/%zu %s: %s (%.1f s)\n", progress->done, progress->total, what,
                outcome, (double)((long long)weir__clock_ns() - progress->step_began_ns) / 1e9);
}
