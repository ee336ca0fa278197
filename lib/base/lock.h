/* SPDX-License-Identifier: MIT */
/* lock.h: a lock for short holds, at half the price of a mutex.
 *
 * Taking it is one locked instruction, giving it back a plain store (a pthread mutex takes a locked
 * instruction for each: 11 against 5 ns a pair).  Who finds it taken spins for a while, then yields,
 * then sleeps for growing pauses: a holder may be in a driver call that grows the reserved memory.  Nobody
 * is woken; the longest oversleep is the longest pause.  Not fair, not recursive.
 *
 * Must not know: what it guards.
 */
#ifndef WEIR_LOCK_H
#define WEIR_LOCK_H

#include <stdatomic.h>

struct weir_lock {
    atomic_int taken; /* zeroed: free */
};

void weir__lock_wait(struct weir_lock *lock); /* takes a lock that was found taken */
/* Takes the lock and returns 1; or 0 if it was held for longer than a short hold takes, some microseconds. */
int weir__lock_try(struct weir_lock *lock);

static inline void weir__lock_take(struct weir_lock *lock) {
    if (atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) != 0)
        weir__lock_wait(lock);
}

static inline void weir__lock_give(struct weir_lock *lock) {
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}

#endif
