/* SPDX-License-Identifier: MIT */
/* biased_lock.h: a lock that costs its usual thread no atomic instruction.
 *
 * The lock is biased to one thread, the owner, which takes and releases the lock by two plain stores and two loads.
 * Another thread first revokes the bias: it sets `owner` to NULL, makes every running thread of the process pass a
 * memory barrier (membarrier(2)), and waits until the owner has released the lock.  The barrier orders the owner's
 * store of `inside` before its second load of `owner` (Dice, Huang, Yang: "Asymmetric Dekker synchronization", 2001).
 *
 * Each thread has one word `inside` for inner locks and one for outer locks (levels).  If the word were in the lock, a
 * delayed store of one owner could clear the word of the next owner.  So a revocation also waits while the owner holds
 * another lock of the level.  If locks of a level are held for long, only one of these locks may be biased.
 *
 * After a revocation the lock is an ordinary lock, until one thread has taken it `patience` times in a row.  The lock
 * is never biased where membarrier is missing (Linux before 4.14).  The lock is neither fair nor recursive.
 */
#ifndef WEIR_BIASED_LOCK_H
#define WEIR_BIASED_LOCK_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/tls.h"

/* A thread that holds an outer lock may take one inner lock, and no other lock.  A lock of zeros is an inner lock. */
enum { WEIR_BIAS_INNER, WEIR_BIAS_OUTER, WEIR_BIAS_LEVELS };

struct weir_bias {
    _Atomic(struct weir_bias_mark *) owner; /* the thread to which the lock is biased, or NULL */
    struct weir_lock lock; /* taken by all other threads; guards the fields below */
    uint32_t since;        /* when the last bias began, in units of about a millisecond */
    const void *last;      /* identifies the thread that took `lock` last */
    uint32_t run;          /* the number of times in a row that `last` took `lock` */
    uint32_t patience;     /* `run` must reach this number for a bias; 0 before the first use */
    int level;
};

/* A mark, which identifies a thread as the owner of biased locks.  A new thread can reuse an ended thread's mark. */
struct weir_bias_mark {
    /* inside[level] is nonzero while the thread holds, or tries to take, a biased lock of this level. */
    _Alignas(128) _Atomic uint32_t inside[WEIR_BIAS_LEVELS];
    struct weir_bias_mark *next; /* links the marks of ended threads */
};

/* The mark that identifies the calling thread.  All threads that have never owned a biased lock share one mark. */
extern _Thread_local struct weir_bias_mark *weir__bias_mark WEIR_FAST_TLS;

/* Registers the process for membarrier(2).  The registration takes milliseconds if the process has several threads. */
void weir__bias_prepare(void);

/* The ways in which a thread takes a lock that is not biased to the thread. */
enum weir_bias_manner {
    WEIR_BIAS_USER,
    WEIR_BIAS_GUEST, /* ends another thread's bias, but never gets the bias */
    WEIR_BIAS_HASTY, /* like WEIR_BIAS_GUEST, but fails rather than wait for more than some microseconds */
};

/* Takes the lock after weir__bias_try_at() failed.  Returns 1 on success, 0 if WEIR_BIAS_HASTY forbids a wait. */
int weir__bias_take_slow(struct weir_bias *bias, enum weir_bias_manner manner);

/* The functions below whose names do not end in _at are only for locks of the level WEIR_BIAS_INNER. */

/* Releases a lock that weir__bias_try_at() took. */
static inline void weir__bias_leave_at(int level) {
    atomic_store_explicit(&weir__bias_mark->inside[level], 0, memory_order_release);
}

/* Takes the lock without a wait, if this thread is the lock's owner.  Returns 1 on success, else 0. */
static inline __attribute__((always_inline)) int weir__bias_try_at(struct weir_bias *bias,
                                                                   int level) {
    struct weir_bias_mark *me = weir__bias_mark;

    if (atomic_load_explicit(&bias->owner, memory_order_relaxed) != me)
        return 0;
    atomic_store_explicit(&me->inside[level], 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* pairs with membarrier(2) in revoke_bias() */
    if (atomic_load_explicit(&bias->owner, memory_order_acquire) == me)
        return 1;
    weir__bias_leave_at(level);
    return 0;
}

/* Takes the lock.  Returns the parameter `taken` for weir__bias_give_at(), or -1 if WEIR_BIAS_HASTY forbids a wait. */
static inline int weir__bias_take_at(struct weir_bias *bias, int level,
                                     enum weir_bias_manner manner) {
    if (weir__bias_try_at(bias, level))
        return 1;
    return weir__bias_take_slow(bias, manner) ? 0 : -1;
}

static inline void weir__bias_give_at(struct weir_bias *bias, int taken, int level) {
    if (taken)
        weir__bias_leave_at(level);
    else
        weir__lock_give(&bias->lock);
}

static inline int weir__bias_take(struct weir_bias *bias) {
    if (weir__bias_try_at(bias, WEIR_BIAS_INNER))
        return 1;
    (void)weir__bias_take_slow(bias, WEIR_BIAS_USER);
    return 0;
}

static inline void weir__bias_give(struct weir_bias *bias, int taken) {
    if (taken)
        atomic_store_explicit(&weir__bias_mark->inside[WEIR_BIAS_INNER], 0, memory_order_release);
    else
        weir__lock_give(&bias->lock);
}

/* Returns 1 if the lock is biased to another thread at this moment, else 0. */
static inline int weir__bias_is_anothers(const struct weir_bias *bias) {
    const struct weir_bias_mark *owner = atomic_load_explicit(&bias->owner, memory_order_relaxed);

    return owner && owner != weir__bias_mark;
}

#endif
