/* SPDX-License-Identifier: MIT */
/* test_revocation.c: the barriers that the biased lock requests from the kernel when its bias is revoked.
 *
 * A revocation without its barrier goes wrong by chance alone.  In this suite the program is its own kernel: it defines
 * `syscall`, which the linker prefers to the C library's.  That function counts barriers, makes none, and fails if a
 * test wants so.  No test needs a barrier, because an owner does nothing during a revocation. */
#include "tests/fixtures/support.h"

#include <sched.h>
#include <stdarg.h>

#if defined(__linux__) && __has_include(<linux/membarrier.h>)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#endif

#include "cache/biased_lock.h"

enum { ENOUGH = 1 << 17 }; /* more takes in a row than the longest patience */

static struct weir_bias lock;

static struct {
    atomic_int asked;    /* queries for barriers */
    atomic_int barriers; /* barriers that succeeded */
    atomic_int failures; /* barriers that failed */
    atomic_int to_fail;  /* barriers still to fail */
    atomic_int reveals;  /* the next barrier shows that `hidden` is inside */
    struct weir_bias_mark *hidden;
    atomic_int was_late; /* a barrier came before the lock had lost its owner */
} kernel;

static struct weir_bias_mark *owner(void) {
    return atomic_load(&lock.owner);
}

#ifdef SYS_membarrier
static long pass_barrier(void) {
    if (atomic_load(&kernel.to_fail) > 0) {
        atomic_fetch_sub(&kernel.to_fail, 1);
        atomic_fetch_add(&kernel.failures, 1);
        errno = ENOMEM;
        return -1;
    }
    if (owner())
        atomic_store(&kernel.was_late, 1);
    if (atomic_exchange(&kernel.reveals, 0))
        atomic_store(&kernel.hidden->inside[lock.level], 1);
    atomic_fetch_add(&kernel.barriers, 1);
    return 0;
}

long syscall(long number, ...) {
    va_list arguments;
    va_start(arguments, number);
    int command = va_arg(arguments, int);
    va_end(arguments);
    if (number == SYS_membarrier && command == MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        return pass_barrier();
    if (number == SYS_membarrier && command == MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        atomic_fetch_add(&kernel.asked, 1);
        if (!getenv("WEIR_TEST_NO_MEMBARRIER"))
            return 0;
    }
    errno = ENOSYS;
    return -1;
}
#endif

static void clear_lock(void) {
    memset(&lock, 0, sizeof lock);
    atomic_store(&kernel.barriers, 0);
}

static void pass_through(void) {
    weir__bias_give(&lock, weir__bias_take(&lock));
}

/* Returns 1 if the lock is now biased to this thread, 0 if this build biases no lock and does not query the kernel, as
 * under ThreadSanitizer. */
static int get_bias(void) {
    for (int i = 0; i < ENOUGH && owner() != weir__bias_mark; i++)
        pass_through();
    if (atomic_load(&kernel.asked) > 0)
        MUST(owner() == weir__bias_mark);
    else
        MUST(!owner());
    return owner() != NULL;
}

enum manner { AS_USER, AS_GUEST, ONLY_ASKS };

static void *come(void *arg) {
    int *manner = arg;
    const enum weir_bias_manner manners[] = {WEIR_BIAS_USER, WEIR_BIAS_GUEST};
    int result;

    if (*manner == ONLY_ASKS) {
        result = weir__bias_is_anothers(&lock);
    } else {
        result = weir__bias_take_at(&lock, WEIR_BIAS_INNER, manners[*manner]);
        weir__bias_give(&lock, result);
    }
    *manner = result;
    return NULL;
}

/* Takes and releases the lock in another thread, or asks whether it is biased to this one.  Returns the result. */
static int come_elsewhere(enum manner manner) {
    int how = (int)manner;

    run_in_thread(come, &how);
    return how;
}

CASE("revocation", 60, clear_lock, NULL);

TEST(each_revocation_makes_one_barrier) {
    static const enum manner revokers[] = {AS_USER, AS_GUEST};

    for (int round = 0; round < 10; round++) {
        int is_biased = get_bias();
        const void *biased_to = owner();

        for (int i = 0; i < 1000; i++)
            pass_through();
        MUST_EQ(atomic_load(&kernel.barriers), is_biased * round); /* none for the owner */
        MUST_EQ(come_elsewhere(ONLY_ASKS), is_biased);
        MUST(!weir__bias_is_anothers(&lock));
        MUST(owner() == biased_to);
        MUST_EQ(atomic_load(&kernel.barriers), is_biased * round);
        MUST_EQ(come_elsewhere(revokers[round % 2]), 0);
        MUST(!owner());
        MUST_EQ(atomic_load(&kernel.barriers), is_biased * (round + 1));
        pass_through(); /* the lock is not biased */
        MUST_EQ(come_elsewhere(AS_USER), 0);
        MUST_EQ(come_elsewhere(ONLY_ASKS), 0);
        MUST_EQ(atomic_load(&kernel.barriers), is_biased * (round + 1));
    }
    MUST_EQ(atomic_load(&kernel.was_late), 0);
    MUST_LE(atomic_load(&kernel.asked), 1);
}

/* Only the barrier shows that the owner is inside.  The revoking thread looks after the barrier, and waits. */
static atomic_int has_come;

static void *take_bias_away(void *unused) {
    int taken = weir__bias_take(&lock);

    (void)unused;
    atomic_store(&has_come, 1);
    weir__bias_give(&lock, taken);
    return NULL;
}

TEST(the_owner_is_looked_for_behind_the_barrier) {
    pthread_t thread;

    if (!get_bias())
        return;
    atomic_store(&has_come, 0);
    kernel.hidden = weir__bias_mark;
    atomic_store(&kernel.reveals, 1);
    MUST(pthread_create(&thread, NULL, take_bias_away, NULL) == 0);
    while (atomic_load(&kernel.barriers) == 0 && !atomic_load(&has_come))
        sched_yield();
    usleep(20000); /* long enough for a thread that does not wait */
    MUST_EQ(atomic_load(&kernel.barriers), 1);
    MUST(!atomic_load(&has_come));
    weir__bias_leave_at(WEIR_BIAS_INNER);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(atomic_load(&has_come));
    MUST_EQ(atomic_load(&kernel.was_late), 0);
}

TEST(a_barrier_that_fails_is_repeated) {
    if (!get_bias())
        return;
    atomic_store(&kernel.failures, 0);
    atomic_store(&kernel.to_fail, 3);
    MUST_EQ(come_elsewhere(AS_USER), 0);
    MUST_EQ(atomic_load(&kernel.failures), 3);
    MUST_EQ(atomic_load(&kernel.barriers), 1);
}

/* Checks a process whose kernel has no barriers.  Returns 0, or the line of the check that failed. */
static int go_without(void) {
    for (int i = 0; i < ENOUGH; i++) {
        pass_through();
        if (owner())
            return __LINE__;
    }
    if (come_elsewhere(AS_USER) != 0 || come_elsewhere(AS_GUEST) != 0 ||
        come_elsewhere(ONLY_ASKS) != 0)
        return __LINE__;
    if (atomic_load(&kernel.asked) > 1)
        return __LINE__;
    if (atomic_load(&kernel.barriers) != 0 || atomic_load(&kernel.failures) != 0)
        return __LINE__;
    return 0;
}

/* weir queries the kernel once, before main where possible, so that only another process finds no barriers. */
TEST(without_barriers_no_lock_is_biased) {
    int status;
    pid_t child = fork();

    if (child == 0) {
        setenv("WEIR_TEST_NO_MEMBARRIER", "1", 1);
        exec_itself((char *[]){(char *)(uintptr_t) "test_revocation", NULL});
        _exit(99);
    }
    MUST(child > 0);
    MUST(waitpid(child, &status, 0) == child);
    MUST_EQ(status, 0);
}

int main(void) {
    if (getenv("WEIR_TEST_NO_MEMBARRIER")) {
        int line = go_without();

        if (line != 0)
            fprintf(stderr, "line %d: not so\n", line);
        return line != 0;
    }
    return run_tests("revocation", CK_FORK_GETENV);
}
