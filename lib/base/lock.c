/* SPDX-License-Identifier: MIT */
/* lock.c: waits for a lock (lock.h). */
#include "base/lock.h"

#include <sched.h>
#include <time.h>

enum { SPINS = 128, LONGEST_SPIN = 32, YIELDS = 20, TRIES = 16 };
/* Each sleep is twice as long as the sleep before, up to round LONGEST_ROUND: 640 us. */
enum { LONGEST_ROUND = 5 };
#define FIRST_PAUSE_NS 20000L

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int weir__lock_is_zero_soon(const atomic_int *word) {
    /* Waits longer after each read.  Otherwise all waiting threads would fetch the cache line at each release. */
    for (int spins = 0, pause = 1; spins < SPINS; spins += pause) {
        if (atomic_load_explicit(word, memory_order_acquire) == 0)
            return 1;
        for (int i = 0; i < pause; i++)
            relax();
        pause = pause < LONGEST_SPIN ? 2 * pause : pause;
    }
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) == 0)
            return 1;
        sched_yield();
    }
    return 0;
}

void weir__lock_sleep(unsigned round) {
    long ns = round < LONGEST_ROUND ? FIRST_PAUSE_NS << round : FIRST_PAUSE_NS << LONGEST_ROUND;

    nanosleep(&(struct timespec){0, ns}, NULL);
}

int weir__lock_try(struct weir_lock *lock) {
    for (int tries = 0; tries < TRIES && weir__lock_is_zero_soon(&lock->taken); tries++)
        if (atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) == 0)
            return 1;
    return 0;
}

void weir__lock_wait(struct weir_lock *lock) {
    for (unsigned round = 0; !weir__lock_try(lock); round++)
        weir__lock_sleep(round);
}
