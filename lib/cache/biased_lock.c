/* SPDX-License-Identifier: MIT */
/* biased_lock.c: the functions of biased_lock.h that are not inlined. */
#include "cache/biased_lock.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__) && __has_include(<linux/membarrier.h>)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#define BIASED 1
/* With a glibc before 2.32, <sys/single_threaded.h> may exist, but does not compile. */
#if __has_include(<sys/single_threaded.h>) && \
    (!defined(__GLIBC__) || __GLIBC__ > 2 || __GLIBC_MINOR__ >= 32)
#include <sys/single_threaded.h>
#define KNOWS_THREADS 1
#endif
#endif

/* ThreadSanitizer does not know the order that membarrier(2) makes, and would report false data races. */
#if defined(__SANITIZE_THREAD__)
#undef BIASED
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#undef BIASED
#endif
#endif

enum { FIRST_PATIENCE = 64, LONGEST_PATIENCE = 1 << 16 };
enum { LASTING = 2 }; /* a bias of this length, in units of clock_now(), resets `patience` */
enum { SPINS = 100, YIELDS = 20 };
#define FIRST_PAUSE_NS 20000L
#define LONGEST_PAUSE_NS 500000L

static struct weir_bias_mark nobody; /* identifies all threads that have never owned a lock */
_Thread_local struct weir_bias_mark *weir__bias_mark WEIR_FAST_TLS = &nobody;

/* The marks of ended threads, for reuse.  A mark is a struct that identifies a thread as the owner of biased locks. */
static struct {
    struct weir_lock lock;
    struct weir_bias_mark *spare;
    pthread_key_t key;
    int has_key;
} marks;

#ifdef BIASED
static int membarrier(int command) {
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

/* Returns 1 if the kernel can make all threads of this process pass a memory barrier, else 0. */
static int can_revoke(void) {
    static atomic_int known; /* 0 before the query, 1 for yes, 2 for no */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);

    if (answer == 0) {
        answer = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 ? 1 : 2;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 1;
}

static void barrier_everywhere(void) {
    /* In a registered process, membarrier(2) fails only while the kernel has no memory. */
    while (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0)
        sched_yield();
}
#else
static int can_revoke(void) {
    return 0;
}

static void barrier_everywhere(void) {
}
#endif

void weir__bias_prepare(void) {
    (void)can_revoke();
}

#if defined(BIASED) && defined(KNOWS_THREADS)
/* Registers the process for membarrier(2) before CUDA makes threads, since a later registration takes 5 to 25 ms. */
static __attribute__((constructor)) void prepare_before_threads(void) {
    if (__libc_single_threaded)
        weir__bias_prepare();
}
#endif

static void release_mark(void *of_thread) {
    struct weir_bias_mark *mark = of_thread;

    weir__bias_mark = &nobody;
    weir__lock_take(&marks.lock);
    mark->next = marks.spare;
    marks.spare = mark;
    weir__lock_give(&marks.lock);
}

/* Deletes the key, so that no thread that ends after the library was unloaded calls release_mark(). */
static __attribute__((destructor)) void delete_key(void) {
    weir__lock_take(&marks.lock);
    if (marks.has_key)
        pthread_key_delete(marks.key);
    marks.has_key = 0;
    weir__lock_give(&marks.lock);
}

/* Ensures that this thread's mark is not shared.  Returns 0 without host memory or a pthread key, else 1. */
static int ensure_mark(void) {
    struct weir_bias_mark *mark;

    if (weir__bias_mark != &nobody)
        return 1;
    weir__lock_take(&marks.lock);
    marks.has_key = marks.has_key || pthread_key_create(&marks.key, release_mark) == 0;
    mark = marks.has_key ? marks.spare : NULL;
    if (mark)
        marks.spare = mark->next;
    weir__lock_give(&marks.lock);
    if (!mark && marks.has_key) {
        mark = aligned_alloc(_Alignof(struct weir_bias_mark), sizeof *mark);
        if (mark)
            memset(mark, 0, sizeof *mark);
    }
    if (!mark)
        return 0;
    if (pthread_setspecific(marks.key, mark) != 0) {
        release_mark(mark);
        return 0;
    }
    weir__bias_mark = mark;
    return 1;
}

/* Returns the time in units of about a millisecond, modulo 2^32. */
static uint32_t clock_now(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)((uint64_t)now.tv_sec * 1000 + ((uint64_t)now.tv_nsec >> 20));
}

/* Waits briefly until `owner` has released its biased locks of this level.  Returns 1 on success, else 0. */
static int leaves_soon(const struct weir_bias_mark *owner, int level) {
    const _Atomic uint32_t *inside = &owner->inside[level];

    for (int tries = 0; atomic_load_explicit(inside, memory_order_acquire); tries++) {
        if (tries == SPINS + YIELDS)
            return 0;
        if (tries >= SPINS)
            sched_yield();
    }
    return 1;
}

/* Ends the ownership, and waits until `owner` releases the lock.  Returns 0 if `manner` forbids the wait, else 1. */
static int revoke_bias(struct weir_bias *bias, struct weir_bias_mark *owner,
                       enum weir_bias_manner manner) {
    struct timespec pause = {0, FIRST_PAUSE_NS};

    atomic_store_explicit(&bias->owner, NULL, memory_order_relaxed);
    barrier_everywhere();
    while (!leaves_soon(owner, bias->level)) {
        if (manner == WEIR_BIAS_HASTY) { /* this thread holds `lock`, so it can restore the bias */
            atomic_store_explicit(&bias->owner, owner, memory_order_relaxed);
            return 0;
        }
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < LONGEST_PAUSE_NS)
            pause.tv_nsec *= 2;
    }
    bias->last = NULL;
    if (clock_now() - bias->since >= LASTING)
        bias->patience = FIRST_PATIENCE;
    else if (bias->patience < LONGEST_PATIENCE)
        bias->patience *= 4;
    return 1;
}

int weir__bias_take_slow(struct weir_bias *bias, enum weir_bias_manner manner) {
    const void *me = &weir__bias_mark; /* differs for all running threads, unlike the mark */
    struct weir_bias_mark *owner;

    if (manner != WEIR_BIAS_HASTY)
        weir__lock_take(&bias->lock);
    else if (!weir__lock_try(&bias->lock))
        return 0;
    if (bias->patience == 0)
        bias->patience = FIRST_PATIENCE;
    owner = atomic_load_explicit(&bias->owner, memory_order_relaxed);
    if (owner && owner != weir__bias_mark && !revoke_bias(bias, owner, manner)) {
        weir__lock_give(&bias->lock);
        return 0;
    }
    if (bias->last != me) {
        bias->last = me;
        bias->run = 0;
    }
    if (manner != WEIR_BIAS_USER)
        return 1;
    /* The new owner takes the lock without an atomic instruction from the owner's next call on. */
    if (++bias->run >= bias->patience && can_revoke() && ensure_mark()) {
        bias->since = clock_now();
        atomic_store_explicit(&bias->owner, weir__bias_mark, memory_order_relaxed);
    }
    return 1;
}
