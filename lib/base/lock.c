/* SPDX-License-Identifier: MIT */
/* lock.c: waits for a lock (lock.h). */
#include "base/lock.h"

#include <sched.h>
#include <time.h>

enum { SPINS = 128, LONGEST_SPIN = 32, YIELDS = 20 };
#define FIRST_PAUSE_NS 20000L
#define LONGEST_PAUSE_NS 500000L

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int try_lock(struct weir_lock *lock) {
    /* Reads first, because an exchange would take the cache line from the thread that holds the lock. */
    return atomic_load_explicit(&lock->taken, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) == 0;
}

int weir__lock_try(struct weir_lock *lock) {
    /* Pauses grow, since otherwise all waiting threads would fetch the cache line at each release. */
    for (int spins = 0, pause = 1; spins < SPINS; spins += pause) {
        if (try_lock(lock))
            return 1;
        for (int i = 0; i < pause; i++)
            relax();
        pause = pause < LONGEST_SPIN ? 2 * pause : pause;
    }
    for (int i = 0; i < YIELDS; i++) {
        if (try_lock(lock))
            return 1;
        sched_yield();
    }
    return 0;
}

void weir__lock_wait(struct weir_lock *lock) {
    struct timespec pause = {0, FIRST_PAUSE_NS};

    if (weir__lock_try(lock))
        return;
    while (!try_lock(lock)) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < LONGEST_PAUSE_NS)
            pause.tv_nsec *= 2;
    }
}
