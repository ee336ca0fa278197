/* SPDX-License-Identifier: MIT */
/* thread.h: threads of weir's own.
 *
 * Those that wait for work are there until who began them ends them.  They do not look whether they are the last of the
 * process: the driver's own threads, which wait likewise, are seen to keep it all the same.
 *
 * Must not know: what they do.
 */
#ifndef WEIR_THREAD_H
#define WEIR_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* Starts one, with all signals blocked: those of the program are for its own threads.  0, or errno. */
int weir__thread_start(pthread_t *thread, void *(*run)(void *), void *context);
/* What each of them calls first. */
void weir__thread_begin(void);
/* Returns 1 if the calling thread is one of weir's own, else 0. */
int weir__thread_is_own(void);
/* As the process ends, or a context: a thread that is in a call of the driver's may never come back, with the lock.  1,
 * or 0: it was not available within a second. */
int weir__thread_lock_at_end(pthread_mutex_t *lock);
/* Has another thread do that, which may come to a call of the driver's that never ends, and waits so many seconds for
 * it.  1, or 0: it is still at it, and `context' is its own.  Where there can be no thread this one does it. */
int weir__thread_in_time(void (*work)(void *context), void *context, int seconds);
/* Who stands between the program and the driver is told so of each, before anything else: `begins` is called in it.
 * Set before the first is started. */
void weir__thread_watch(void (*begins)(void));

/* What the calling thread has waited for a processor: preemptions, and the way back onto a processor after a wait. */
struct weir_waits {
    uint64_t
        seen_ns; /* the sum since the thread began, when weir__thread_waits_in() last read the sum */
};

/* Returns how many of the last took_ns nanoseconds the calling thread was ready to run and had no processor.  A span of
 * less than 50 microseconds counts as free of waits, so that short spans cost no system call.
 * Returns 0 where the kernel does not keep the sum (/proc/thread-self/schedstat). */
uint64_t weir__thread_waits_in(struct weir_waits *waits, uint64_t took_ns);

#endif
