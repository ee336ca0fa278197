/* SPDX-License-Identifier: MIT */
/* thread.h: weir's own threads.
 *
 * A thread that waits for work exists until its starter ends it.  Such a thread does not check whether it is the last
 * thread of the process, because the driver's own waiting threads keep a process alive in any case.
 *
 * This file must not know the work of a thread.
 */
#ifndef WEIR_THREAD_H
#define WEIR_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* Starts a thread with all signals blocked, since a program expects signals in the program's threads.  Returns 0 or an
 * errno. */
int weir__thread_start(pthread_t *thread, void *(*run)(void *), void *context);
/* Marks the calling thread as one of weir's own.  Each of weir's threads calls this function first. */
void weir__thread_begin(void);
/* Returns 1 if the calling thread is one of weir's own, else 0. */
int weir__thread_is_own(void);
/* Takes a lock at the end of the process or of a context, when another thread that hangs in a driver call may keep the
 * lock for ever.  Returns 1 on success, 0 if the lock was not free within a second. */
int weir__thread_lock_at_end(pthread_mutex_t *lock);
/* Calls `work` in another thread, because `work` may call a driver function that never returns, and waits up to
 * `seconds`.  Returns 1 if `work` has returned.  Returns 0 if `work` still runs; the thread then still uses `context`.
 * If no thread can be started, calls `work` in the calling thread. */
int weir__thread_in_time(void (*work)(void *context), void *context, int seconds);
/* Sets a function that each of weir's threads calls first.  By this function, code between the program and the driver
 * recognises weir's threads.  The function must be set before the first thread starts. */
void weir__thread_watch(void (*begins)(void));

/* The time that the calling thread has waited for a processor, after preemptions and after sleeps. */
struct weir_waits {
    uint64_t seen_ns; /* the sum since the thread's start at the last weir__thread_waits_in() */
};

/* Returns the part of the last took_ns nanoseconds in which the calling thread was ready to run but had no processor.
 * A span of less than 50 microseconds counts as free of waits, so that short spans cost no system call.  Returns 0
 * where the kernel does not keep the sum (/proc/thread-self/schedstat). */
uint64_t weir__thread_waits_in(struct weir_waits *waits, uint64_t took_ns);

#endif
