/* SPDX-License-Identifier: MIT */
/* progress.c: see progress.h. */
#include "cli/common/progress.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

int terminal_can_draw(int descriptor) {
    const char *terminal = getenv("TERM");

    return isatty(descriptor) && terminal && *terminal && strcmp(terminal, "dumb") != 0;
}

void terminal_size(int descriptor, int *columns, int *lines) {
    struct winsize size;
    int is_known = ioctl(descriptor, TIOCGWINSZ, &size) == 0;

    *columns = is_known && size.ws_col > 0 ? size.ws_col : 80;
    *lines = is_known && size.ws_row > 0 ? size.ws_row : 24;
}

void progress_begin(struct progress *progress, size_t total) {
    *progress = (struct progress){.total = total,
                                  .is_terminal = terminal_can_draw(STDERR_FILENO),
                                  .began_ns = (long long)weir__clock_ns()};
}

void progress_clear(const struct progress *progress) {
    if (progress->is_terminal)
        fputs("\r\033[K", stderr);
}

/* Draws a bar such as "[####------] 12/35  4 s  what", which fits into one line of the terminal. */
static void draw_bar(const struct progress *progress, const char *what) {
    enum { MAX_CELLS = 40 };
    char line[512], bar[MAX_CELLS + 1];
    int width, lines, cells, full;

    terminal_size(STDERR_FILENO, &width, &lines);
    cells = width / 3 < MAX_CELLS ? width / 3 : MAX_CELLS;
    full = progress->total ? (int)((size_t)cells * progress->done / progress->total) : 0;
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
        draw_bar(progress, what);
}

void progress_done(struct progress *progress, const char *what, const char *outcome) {
    progress->done++;
    if (progress->is_terminal)
        draw_bar(progress, what);
    else
        fprintf(stderr, "weir: %zu/%zu %s: %s (%.1f s)\n", progress->done, progress->total, what,
                outcome, (double)((long long)weir__clock_ns() - progress->step_began_ns) / 1e9);
}

/* ---- signals ---- */

static volatile sig_atomic_t came;

static void store_arrived_signal(int number) {
    came = number;
}

void interrupt_watch(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

    for (unsigned i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction action = {.sa_handler = store_arrived_signal, .sa_flags = SA_RESTART};
        struct sigaction before;

        sigaction(numbers[i], NULL, &before);
        if (before.sa_handler != SIG_IGN) /* nohup(1) makes the process ignore SIGHUP */
            sigaction(numbers[i], &action, NULL);
    }
}

int interrupt_has_arrived(void) {
    return came != 0;
}

void interrupt_end(void) {
    if (came) {
        signal(came, SIG_DFL);
        raise(came);
    }
}
