/* SPDX-License-Identifier: MIT */
/* ticker.c: see ticker.h.  A process that is parked has its device memory in its own, so its resident memory tells how
 * far that is. */
#include "cli/parking/ticker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/size.h"
#include "base/text.h"

#define TICK_NS 200000000L

uint64_t ticker_resident(pid_t pid) {
    char path[64], line[256];
    uint64_t kib = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    file = fopen(path, "re");
    while (file && kib == 0 && fgets(line, sizeof line, file))
        (void)sscanf(line, "VmRSS: %" SCNu64, &kib);
    if (file)
        fclose(file);
    return kib << 10;
}

static void draw(const struct ticker *ticker) {
    uint64_t now = ticker_resident(ticker->pid), seconds = weir__clock_ns() - ticker->began_ns;
    char moved[32];

    weir__bytes_show(now > ticker->resident ? weir__size_less(now, ticker->resident)
                                            : weir__size_less(ticker->resident, now),
                     moved, sizeof moved);
    fprintf(stderr, "\r%s %ld: %s, %" PRIu64 " s\033[K", ticker->what, (long)ticker->pid, moved,
            seconds / 1000000000);
    fflush(stderr);
}

static void *tick(void *argument) {
    struct ticker *ticker = argument;

    while (!atomic_load(&ticker->has_to_end)) {
        draw(ticker);
        nanosleep(&(struct timespec){0, TICK_NS}, NULL);
    }
    fputs("\r\033[K", stderr);
    return NULL;
}

void ticker_begin(struct ticker *ticker, const char *what, pid_t pid) {
    const char *terminal = getenv("TERM");

    *ticker = (struct ticker){
        .what = what, .pid = pid, .resident = ticker_resident(pid), .began_ns = weir__clock_ns()};
    if (what && isatty(STDERR_FILENO) && terminal && *terminal && strcmp(terminal, "dumb") != 0)
        ticker->runs = pthread_create(&ticker->thread, NULL, tick, ticker) == 0;
}

void ticker_end(struct ticker *ticker) {
    if (!ticker->runs)
        return;
    atomic_store(&ticker->has_to_end, 1);
    pthread_join(ticker->thread, NULL);
}
