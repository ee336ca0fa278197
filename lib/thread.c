/* SPDX-License-Identifier: MIT */
/* thread.c: see thread.h. */
#include "thread.h"

#include <signal.h>
#include <time.h>

static void (*watcher)(void); /* fixed before there is a thread */

int weir__thread_start(pthread_t *thread, void *(*run)(void *), void *context) {
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void weir__thread_begin(void) {
    if (watcher)
        watcher();
}

int weir__thread_lock_at_exit(pthread_mutex_t *lock) {
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    return pthread_mutex_timedlock(lock, &until) == 0;
}

void weir__thread_watch(void (*begins)(void)) {
    watcher = begins;
}
