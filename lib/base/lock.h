/* SPDX-License-Identifier: MIT */
/* lock.h: a lock for short holds that costs half as much as a mutex.
 *
 * Taking the lock costs one locked instruction, and releasing the lock costs a plain store.  (A pthread mutex needs two
 * locked instructions: 11 ns instead of 5 ns.)  A thread that waits for the lock spins, then yields, then sleeps for
 * growing pauses, since the holder may be in a driver call that grows the reserved memory.  A release wakes no thread,
 * so a waiter may sleep up to one pause longer than needed.  The lock is neither fair nor recursive.
 *
 * This file must not know which data a lock guards.
 */
#ifndef WEIR_LOCK_H
#define WEIR_LOCK_H

#include <stdatomic.h>

#include "base/assert.h"

struct weir_lock {
    atomic_int taken; /* 0 if the lock is free */
};

/* Waits until the caller has the lock. */
void weir__lock_wait(struct weir_lock *lock);
/* Tries for some microseconds to take the lock.  Returns 1 on success, else 0. */
int weir__lock_try(struct weir_lock *lock);

static inline void weir__lock_take(struct weir_lock *lock) {
    if (atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) != 0)
        weir__lock_wait(lock);
}

static inline void weir__lock_give(struct weir_lock *lock) {
    WEIR_ASSERT(atomic_load_explicit(&lock->taken, memory_order_relaxed) == 1);
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}

#endif
