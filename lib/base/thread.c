/* SPDX-License-Identifier: MIT */
/* thread.c: starts weir's own threads, and measures how long a thread waits for a processor. */
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/tls.h"

/* The function that each of weir's threads calls at its start, or NULL. */
static void (*watcher)(void);
static _Thread_local int is_own WEIR_FAST_TLS;

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
    is_own = 1;
    if (watcher)
        watcher();
}

int weir__thread_is_own(void) {
    return is_own;
}

int weir__thread_lock_at_end(pthread_mutex_t *lock) {
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    return pthread_mutex_timedlock(lock, &until) == 0;
}

struct job {
    void (*work)(void *context);
    void *context;
    sem_t done;
    /* The number of threads that use this struct, the worker and the caller.  The last one frees it. */
    atomic_int holders;
};

static void release_job(struct job *job) {
    if (atomic_fetch_sub(&job->holders, 1) > 1)
        return;
    sem_destroy(&job->done);
    free(job);
}

static void *do_job(void *of) {
    struct job *job = of;

    weir__thread_begin();
    job->work(job->context);
    (void)sem_post(&job->done);
    release_job(job);
    return NULL;
}

int weir__thread_in_time(void (*work)(void *context), void *context, int seconds) {
    struct job *job = malloc(sizeof *job);
    struct timespec until;
    pthread_t thread;
    int failed;

    if (job) {
        *job = (struct job){.work = work, .context = context};
        atomic_init(&job->holders, 2);
    }
    /* unreached: sem_init cannot fail, since a semaphore without a name needs no resource of the system */
    if (!job || sem_init(&job->done, 0, 0) != 0 || weir__thread_start(&thread, do_job, job) != 0) {
        free(job);
        work(context);
        return 1;
    }
    (void)pthread_detach(thread);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    do
        failed = sem_timedwait(&job->done, &until);
    while (failed && errno == EINTR);
    release_job(job);
    return !failed;
}

void weir__thread_watch(void (*begins)(void)) {
    watcher = begins;
}

/* Returns how many nanoseconds this thread has waited for a processor, or 0 if the kernel does not measure them. */
static uint64_t read_run_delay(void) {
    char text[64];
    uint64_t delay = 0;
    int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, text, sizeof text - 1) : -1;

    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = '\0';
    return sscanf(text, "%*s %" SCNu64, &delay) == 1 ? delay : 0;
}

uint64_t weir__thread_waits_in(struct weir_waits *waits, uint64_t took_ns) {
    enum { SHORTEST_NS = 50000 };
    uint64_t now, waited;

    if (took_ns < SHORTEST_NS)
        return 0;
    now = read_run_delay();
    waited = now > waits->seen_ns ? now - waits->seen_ns : 0;
    waits->seen_ns = now;
    return waited < took_ns ? waited : took_ns;
}
