/* SPDX-License-Identifier: MIT */
/* biased_lock.h: a lock that costs its usual thread no atomic instruction.
 *
 * It guards data that one thread uses for a long time before another thread does, such as a stream's cache.  The lock
 * is biased to a thread, which enters and leaves by two plain stores and two loads.  (Two locked instructions cost as
 * much as the rest of a hit.)  Another thread first revokes the bias: it writes owner = 0, makes every running thread
 * of the process pass a memory barrier (membarrier(2)), and waits until the owner is outside.  So the store of `inside`
 * and the second load of `owner` on the owner's side are ordered exactly when another thread needs that order (Dice,
 * Huang, Yang: "Asymmetric Dekker synchronization", 2001).
 *
 * Each thread has one word, its mark, that says whether it is inside any lock of a level.  If the word belonged to the
 * lock, a thread that was delayed before its store could clear the word of the lock's next owner.  Since all locks of a
 * level share the mark, a revoker also waits while the owner is inside another one.  So where holds are long, only one
 * lock of a level may be biased.
 *
 * After a revocation the lock is an ordinary one, until one thread has taken it `patience` times in a row.  A bias that
 * is revoked within a millisecond or two multiplies patience, since a revocation costs microseconds; a bias that lasted
 * longer resets patience.  The lock is never biased where membarrier is missing (Linux before 4.14), nor under
 * ThreadSanitizer, which does not see a membarrier.  The lock is neither fair nor recursive.  A thread that holds a
 * lock of the outer level may take one lock of the inner level, and no other.
 *
 * This file must not know which data it guards.
 */
#ifndef WEIR_BIASED_LOCK_H
#define WEIR_BIASED_LOCK_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/tls.h"

/* A zeroed lock belongs to the inner level. */
enum { WEIR_BIAS_INNER, WEIR_BIAS_OUTER, WEIR_BIAS_LEVELS };

struct weir_bias {
    uint32_t since;         /* the time of the last bias in milliseconds, approximately */
    _Atomic uint32_t owner; /* the thread that the lock is biased to, or 0 */
    struct weir_lock lock;  /* used by all other threads; guards the fields below and `since` */
    uint32_t last;          /* the thread that took `lock` last */
    uint32_t run;           /* the number of times in a row that this thread took it */
    uint32_t patience;      /* a larger `run` biases the lock; 0 before the first take */
    struct weir_bias_mark *mark; /* the mark of the thread that the lock was last biased to */
    int level;
};

/* A thread's mark, on cache lines that hold nothing else.  When the thread ends, the mark goes to a list of spares. */
struct weir_bias_mark {
    /* Nonzero while the thread is inside a lock of that level, or checks whether it still owns one. */
    _Alignas(128) _Atomic uint32_t inside[WEIR_BIAS_LEVELS];
    struct weir_bias_mark *next; /* links marks that no thread uses */
};

/* The number of this thread, which no other thread ever gets.  Before the thread's first slow take it is NOBODY, to
 * which no lock is biased. */
#define WEIR_BIAS_NOBODY UINT32_MAX
extern _Thread_local uint32_t weir__bias_thread WEIR_FAST_TLS;
/* The mark of this thread, or NULL before a lock was first biased to the thread. */
extern _Thread_local struct weir_bias_mark *weir__bias_mark WEIR_FAST_TLS;

/* Registers the process for membarrier(2) before the first bias.  The kernel needs milliseconds for that in a process
 * that has threads, so a library that is loaded before there are threads registers as it is loaded. */
void weir__bias_prepare(void);

/* The ways in which a thread takes a lock that is biased to another thread. */
enum weir_bias_manner {
    WEIR_BIAS_USER,
    WEIR_BIAS_GUEST,  /* does not count for a bias, nor against another thread's */
    WEIR_BIAS_POLITE, /* a guest that does not revoke a bias: it does not get the lock then */
};

/* Takes a lock that is not biased to this thread.  Returns 1, or 0 if a POLITE caller finds it biased to another. */
int weir__bias_take_slow(struct weir_bias *bias, enum weir_bias_manner manner);

/* Functions with a name in _at, and weir__bias_take_soon(), take the level of the lock as an argument.  All others are
 * for locks of the inner level. */

/* Releases a lock that weir__bias_try_at() took. */
static inline void weir__bias_leave_at(int level) {
    atomic_store_explicit(&weir__bias_mark->inside[level], 0, memory_order_release);
}

/* Takes the lock if it is biased to this thread.  Returns 1 on success, else 0; never waits. */
static inline __attribute__((always_inline)) int weir__bias_try_at(struct weir_bias *bias,
                                                                   int level) {
    uint32_t me = weir__bias_thread;

    if (atomic_load_explicit(&bias->owner, memory_order_relaxed) != me)
        return 0;
    atomic_store_explicit(&weir__bias_mark->inside[level], 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* pairs with the revoker's membarrier */
    if (atomic_load_explicit(&bias->owner, memory_order_acquire) == me)
        return 1;
    weir__bias_leave_at(level);
    return 0;
}

/* Takes the lock.  Returns the value that weir__bias_give_at() needs, or -1 if a polite caller finds the lock biased to
 * another thread, and does not get it. */
static inline int weir__bias_take_at(struct weir_bias *bias, int level,
                                     enum weir_bias_manner manner) {
    if (weir__bias_try_at(bias, level))
        return 1;
    return weir__bias_take_slow(bias, manner) ? 0 : -1;
}

/* Takes the lock as a guest if that takes some microseconds at most.  Returns the value for weir__bias_give_at(), or -1
 * if it would take longer; the lock is unchanged then. */
int weir__bias_take_soon(struct weir_bias *bias, int level);

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

#endif
