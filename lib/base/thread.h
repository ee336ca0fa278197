/* SPDX-License-Identifier: MIT */
/* thread.h: starts weir's own threads.
 *
 * A thread that waits for work lives until the code that started the thread ends it.  Such a thread does not end when
 * it is the last thread of the process.  The driver's own threads keep the process alive in any case.
 *
 * This file must not know the work of a thread. */
#ifndef WEIR_THREAD_H
#define WEIR_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* Starts a thread in which all signals are blocked, so that signals reach the program's own threads.  Returns 0 on
 * success, else an errno. */
int weir__thread_start(pthread_t *thread, void *(*run)(void *), void *context);
/* Marks the calling thread as one of weir's own threads.  Each of weir's threads calls this function first. */
void weir__thread_begin(void);
/* Returns 1 if the calling thread is one of weir's own threads, else 0. */
int weir__thread_is_own(void);
/* Takes a lock when the process or a context ends.  Another thread may hold the lock for ever, because it hangs in a
 * driver call.  So the function waits one second at most.  Returns 1 if the caller holds the lock now, else 0. */
int weir__thread_lock_at_end(pthread_mutex_t *lock);
/* Calls `work` in a new thread, because `work` may call a driver function that never returns.  Waits for `work` up to
 * `seconds` seconds.  Returns 1 if `work` has returned.  Returns 0 if `work` still runs; the new thread then still uses
 * `context`.  If no thread can be started, calls `work` in the calling thread. */
int weir__thread_in_time(void (*work)(void *context), void *context, int seconds);
/* Sets a function that each of weir's threads calls at its start.  With this function, a library between the program
 * and the driver recognises weir's threads.  The caller sets the function before weir starts a thread. */
void weir__thread_watch(void (*begins)(void));

/* The time that the calling thread has spent waiting for a processor. */
struct weir_waits {
    /* The waiting time from the thread's start to the last weir__thread_waits_in(). */
    uint64_t seen_ns;
};

/* Returns how many of the last `took_ns` nanoseconds the calling thread was ready to run, but had no processor.
 * Returns 0 if `took_ns` is below 50 microseconds, so that a short period costs no system call.  Also returns 0 if the
 * kernel does not measure the waits (/proc/thread-self/schedstat). */
uint64_t weir__thread_waits_in(struct weir_waits *waits, uint64_t took_ns);

#endif
