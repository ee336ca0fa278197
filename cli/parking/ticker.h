/* SPDX-License-Identifier: MIT */
/* ticker.h: how far a move of gigabytes is, on a terminal.
 *
 * Must not know: who moves what.
 */
#ifndef WEIR_CLI_PARKING_TICKER_H
#define WEIR_CLI_PARKING_TICKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes of the process that are in memory; 0: it cannot be told. */
uint64_t ticker_resident(pid_t pid);

struct ticker {
    const char *what; /* "parking" */
    pid_t pid;
    uint64_t resident, began_ns; /* when it began */
    pthread_t thread;
    atomic_int has_to_end;
    int runs;
};

/* Draws what has been moved and for how long, until the end takes it away; where standard error is no terminal,
 * nothing. */
void ticker_begin(struct ticker *ticker, const char *what, pid_t pid);
void ticker_end(struct ticker *ticker);

#endif
