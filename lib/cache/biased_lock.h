/* SPDX-License-Identifier: MIT */
/* biased_lock.h: a lock that costs its usual taker nothing.
 *
 * For data that one thread uses for a long time before another does, as a stream's cache.  The lock is
 * biased to a thread: that thread goes in and out by two plain stores and two loads, without a locked
 * instruction (two of which cost as much as everything else that a hit does).  Any other thread first takes the
 * bias away: it writes owner = 0, lets every running thread of the process pass a memory barrier
 * (membarrier(2)), and waits until the owner is outside.  The order that the owner's side leaves to
 * chance (its store of `inside` before its second load of `owner`) is thereby forced just when somebody
 * needs it (Dice, Huang, Yang: "Asymmetric Dekker synchronization", 2001).
 *
 * Each thread says that it is inside in a word of its own, for all locks: one that was held up before
 * that store finds out too late that the lock is another's by now, and would undo the mark of that one.
 *
 * From then on the lock is an ordinary one.  It is biased again to a thread that has taken it
 * `patience` times in a row.  A bias that was taken away within a millisecond or two makes patience
 * longer, so that a lock that two threads really share does not change hands by system calls, which take
 * microseconds; one that lasted makes it short again, as where threads come and go.
 *
 * Where membarrier is missing (Linux before 4.14), and under ThreadSanitizer, which cannot see it,
 * the lock is never biased.  Not fair, not recursive.  Inside a lock of the outer level a thread may take one of the
 * inner level, and no other.
 *
 * A thread has one mark for all locks of a level.  So who takes the bias of one away waits for its owner also while that
 * is inside another.  Where holds are long, only one lock of a level may be biased.
 *
 * Must not know: what it guards.
 */
#ifndef WEIR_BIASED_LOCK_H
#define WEIR_BIASED_LOCK_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/tls.h"

/* Zeroed, a lock is of the inner level. */
enum { WEIR_BIAS_INNER, WEIR_BIAS_OUTER, WEIR_BIAS_LEVELS };

struct weir_bias {
    uint32_t since;         /* when it was biased last, milliseconds or about */
    _Atomic uint32_t owner; /* the thread that it is biased to; 0: none */
    struct weir_lock lock;  /* for all others; guards what follows, and `since` */
    uint32_t last;          /* the thread that took `lock` last, */
    uint32_t run;           /* how often in a row, */
    uint32_t patience; /* and how often it must before the lock is biased to it; 0: not set yet */
    struct weir_bias_mark *mark; /* of the thread that it was biased to last */
    int level;
};

/* A thread's, on cache lines of its own.  It stays when the thread ends, for the next one. */
struct weir_bias_mark {
    /* Of a lock of that level, or about to find that it is no longer the owner. */
    _Alignas(128) _Atomic uint32_t inside[WEIR_BIAS_LEVELS];
    struct weir_bias_mark *next; /* of those that no thread has */
};

/* This thread's number, never used again by another; NOBODY, to whom no lock is biased, before its
 * first slow take. */
#define WEIR_BIAS_NOBODY UINT32_MAX
extern _Thread_local uint32_t weir__bias_thread WEIR_FAST_TLS;
/* Its mark; NULL before the first lock was biased to it. */
extern _Thread_local struct weir_bias_mark *weir__bias_mark WEIR_FAST_TLS;

/* Asks the kernel before the first bias.  That takes milliseconds in a process that has threads, so it was done as the
 * library was loaded if there were none. */
void weir__bias_prepare(void);

/* As whom a thread comes that the lock is not biased to. */
enum weir_bias_manner {
    WEIR_BIAS_USER,
    WEIR_BIAS_GUEST,  /* not to be given the bias for it, nor to spoil another's run */
    WEIR_BIAS_POLITE, /* a guest that takes no bias away: it goes another way instead */
};

/* 1, or 0 and the lock is not taken: it is biased to another thread, and this one came politely. */
int weir__bias_take_slow(struct weir_bias *bias, enum weir_bias_manner manner);

/* The functions with a level are for locks of that level, which the caller's source says; those without, for the inner. */

/* Gives back what weir__bias_try took. */
static inline void weir__bias_leave_at(int level) {
    atomic_store_explicit(&weir__bias_mark->inside[level], 0, memory_order_release);
}

/* Takes the lock if it is biased to this thread: 1, or 0 at once. */
static inline __attribute__((always_inline)) int weir__bias_try_at(struct weir_bias *bias,
                                                                   int level) {
    uint32_t me = weir__bias_thread;

    if (atomic_load_explicit(&bias->owner, memory_order_relaxed) != me)
        return 0;
    atomic_store_explicit(&weir__bias_mark->inside[level], 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the other half is the revoker's membarrier */
    if (atomic_load_explicit(&bias->owner, memory_order_acquire) == me)
        return 1;
    weir__bias_leave_at(level);
    return 0;
}

/* Takes the lock; what it returns is for the give. */
static inline int weir__bias_take_at(struct weir_bias *bias, int level,
                                     enum weir_bias_manner manner) {
    if (weir__bias_try_at(bias, level))
        return 1;
    (void)weir__bias_take_slow(bias, manner);
    return 0;
}

/* The same as a guest, if that is a matter of some microseconds; -1: it is not, and nothing has changed. */
int weir__bias_take_soon(struct weir_bias *bias, int level);

static inline void weir__bias_give_at(struct weir_bias *bias, int taken, int level) {
    if (taken)
        weir__bias_leave_at(level);
    else
        weir__lock_give(&bias->lock);
}

static inline void weir__bias_leave(void) {
    weir__bias_leave_at(WEIR_BIAS_INNER);
}

static inline __attribute__((always_inline)) int weir__bias_try(struct weir_bias *bias) {
    return weir__bias_try_at(bias, WEIR_BIAS_INNER);
}

static inline int weir__bias_take(struct weir_bias *bias) {
    return weir__bias_take_at(bias, WEIR_BIAS_INNER, WEIR_BIAS_USER);
}

/* The same for a guest, polite or not: -1: it is biased to another thread, and not taken. */
static inline int weir__bias_take_as_guest(struct weir_bias *bias, int politely) {
    if (weir__bias_try(bias))
        return 1;
    return weir__bias_take_slow(bias, politely ? WEIR_BIAS_POLITE : WEIR_BIAS_GUEST) ? 0 : -1;
}

static inline void weir__bias_give(struct weir_bias *bias, int taken) {
    weir__bias_give_at(bias, taken, WEIR_BIAS_INNER);
}

#endif
