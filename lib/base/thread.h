/* SPDX-License-Identifier: MIT */
/* thread.h: starts weir's own threads.
 *
 * A thread of weir that waits for work ends only when the code that started it ends it.  So it does not end when all
 * threads of the program have ended.  This is no loss, because the driver's own threads keep the process alive in any
 * case. */
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
/* Tries to take a lock for one second.  For the end of the process or of a context, when another thread may hold the
 * lock forever, because it hangs in a driver call.  Returns 1 if the caller holds the lock now, else 0. */
int weir__thread_lock_at_end(pthread_mutex_t *lock);
/* Calls `work` in a new thread, because `work` may call a driver function that never returns.  Waits up to `seconds`
 * seconds.  Returns 1 if `work` has returned.  Returns 0 if `work` still runs; the new thread then still uses
 * `context`.  If no thread can be started, calls `work` in the calling thread. */
int weir__thread_in_time(void (*work)(void *context), void *context, int seconds);
/* Sets a function that each of weir's threads calls at its start.  A library that intercepts driver calls uses it to
 * recognise weir's threads.  The caller sets the function before weir starts a thread. */
void weir__thread_watch(void (*begins)(void));

/* The time during which a thread waited for a processor. */
struct weir_waits {
    /* The waiting time of the thread from its start to the last call of weir__thread_waits_in(). */
    uint64_t seen_ns;
};

/* Returns for how many of the last `took_ns` nanoseconds the calling thread was ready to run, but had no processor.
 * Returns 0 if `took_ns` is below 50 microseconds, to avoid a system call for a short period.  Also returns 0 if the
 * kernel does not measure such times (/proc/thread-self/schedstat). */
uint64_t weir__thread_waits_in(struct weir_waits *waits, uint64_t took_ns);

#endif
