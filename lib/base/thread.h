/* SPDX-License-Identifier: MIT */
/* thread.h: starts weir's own threads, which end only when the code that started them ends them. */
#ifndef WEIR_THREAD_H
#define WEIR_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* Starts a thread in which all signals are blocked.  Returns 0 on success, else an errno value. */
int weir__thread_start(pthread_t *thread, void *(*run)(void *), void *context);
/* Marks the calling thread as one of weir's own threads.  Each of these threads calls this function first. */
void weir__thread_begin(void);
/* Returns 1 if the calling thread is one of weir's own threads, else 0. */
int weir__thread_is_own(void);
/* Tries for one second to take a lock, whose holder may hang in a driver call.  Returns 1 on success, else 0. */
int weir__thread_lock_at_end(pthread_mutex_t *lock);
/* Calls `work` in a new thread, and waits up to `seconds` seconds.  Returns 1 if `work` has returned, 0 if the thread
 * still runs and uses `context`.  If no thread can be started, calls `work` in the calling thread. */
int weir__thread_in_time(void (*work)(void *context), void *context, int seconds);
/* Sets a function that each of weir's threads calls at its start.  Must be called before weir starts a thread. */
void weir__thread_watch(void (*begins)(void));

/* The time that a thread waited for a processor, from its start to the last call of weir__thread_waits_in(). */
struct weir_waits {
    uint64_t seen_ns;
};

/* Returns how many of the last `took_ns` nanoseconds this thread waited for a processor, or 0 if not measured. */
uint64_t weir__thread_waits_in(struct weir_waits *waits, uint64_t took_ns);

#endif
