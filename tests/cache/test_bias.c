/* SPDX-License-Identifier: MIT */
/* test_bias.c: the biased lock excludes threads, whichever thread owns its bias, and while the bias comes and goes. */
#include "tests/fixtures/support.h"

#include <sched.h>

#if defined(__linux__) && __has_include(<linux/membarrier.h>)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#endif

#include "cache/biased_lock.h"

enum { MOST_THREADS = 4 };

static struct weir_bias lock;
static uint64_t guarded[2]; /* equal outside the lock, which alone orders the writes */
static const void *inside;  /* identifies the thread inside */

static void pass_guarded(void) {
    int taken = weir__bias_take(&lock);

    MUST(!inside);
    inside = &weir__bias_mark;
    MUST_EQ(guarded[0], guarded[1]);
    guarded[0]++;
    MUST(inside == &weir__bias_mark);
    guarded[1]++;
    inside = NULL;
    weir__bias_give(&lock, taken);
}

static const void *bias_owner(void) {
    return atomic_load(&lock.owner);
}

static void *pass_many_times(void *times) {
    for (int i = 0; i < *(int *)times; i++)
        pass_guarded();
    return NULL;
}

static void run_elsewhere(int times) {
    run_in_thread(pass_many_times, &times);
}

/* Returns 1 if locks can be biased, which needs membarrier and a build without ThreadSanitizer. */
static int can_bias(void) {
    for (int i = 0; i < 1000; i++)
        pass_guarded();
    return bias_owner() != NULL;
}

CASE("bias", 120, NULL, NULL);

/* Registration takes milliseconds in a process with threads.  weir therefore registers before main, if the C library
 * says that there are no threads.  Linux 6.3 and later report registrations. */
TEST(the_kernel_was_asked_before_main) {
#if defined(SYS_membarrier) && __has_include(<sys/single_threaded.h>)
    enum { GET_REGISTRATIONS = 1 << 9 }; /* newer than some headers */
    long registered = syscall(SYS_membarrier, GET_REGISTRATIONS, 0, 0);

    if (registered >= 0 && can_bias())
        MUST(registered & MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
#endif
}

TEST(one_thread_gets_the_bias) {
    int times = 1000;

    pass_guarded();
    MUST(!bias_owner());
    if (!can_bias())
        return;
    MUST(bias_owner() == weir__bias_mark);
    run_elsewhere(1);
    MUST(!bias_owner());
    MUST_EQ(guarded[0], 1002);
    pass_many_times(&times);
    MUST(bias_owner() == weir__bias_mark);
    run_elsewhere(2000); /* the bias goes to the thread that uses the lock */
    MUST(bias_owner() && bias_owner() != weir__bias_mark);
    pass_guarded(); /* the owner has ended, so that nobody need wait */
    MUST(!bias_owner());
}

/* Biases the lock to this thread, and lets another thread revoke the bias.  Returns the patience after that. */
static uint32_t patience_after(unsigned pause_us) {
    int times = (int)lock.patience * 8;

    pass_many_times(&times);
    MUST(bias_owner() == weir__bias_mark);
    usleep(pause_us);
    run_elsewhere(1);
    MUST(!bias_owner());
    return lock.patience;
}

/* A bias that is revoked soon makes the next one harder to get, and one that lasted makes it easy again.  The test
 * cannot fully control how soon a revocation comes. */
TEST(patience_grows_and_goes) {
    uint32_t least, last;
    int grown = 0;

    if (!can_bias())
        return;
    least = last = patience_after(10000);
    for (int round = 0; round < 1000 && grown < 3; round++) {
        uint32_t now = patience_after(0);

        grown += now > last;
        last = now;
    }
    MUST_EQ(grown, 3);
    MUST_EQ(patience_after(10000), least);
}

/* A signal holds the owner up anywhere on its way into the lock, until another thread owns the bias and is inside.
 * When the first thread goes on, it must not undo the other thread's mark. */
static struct { atomic_int end, held_up, go_on; } late;

/* Waits 200 ms at most, because the other thread may wait for a lock that this thread holds. */
static void hold_up(int number) {
    struct timespec pause = {0, 10000};

    (void)number;
    atomic_store(&late.held_up, 1);
    for (int i = 0; i < 20 && !atomic_load(&late.go_on); i++)
        nanosleep(&pause, NULL);
}

static void *pass_until_end(void *unused) {
    (void)unused;
    while (!atomic_load(&late.end)) {
        if (weir__bias_try_at(&lock, WEIR_BIAS_INNER))
            weir__bias_give(&lock, 1);
        else
            pass_guarded();
    }
    return NULL;
}

/* Returns 1 if this thread got the bias while the other one was held up, 0 if not. */
static int overtake(pthread_t other) {
    for (int i = 0; i < 100000 && (!bias_owner() || bias_owner() == weir__bias_mark); i++)
        sched_yield();
    atomic_store(&late.go_on, 0);
    atomic_store(&late.held_up, 0);
    MUST(pthread_kill(other, SIGUSR1) == 0);
    while (!atomic_load(&late.held_up))
        sched_yield();
    for (int i = 0; i < 1000 && bias_owner() != weir__bias_mark; i++)
        pass_guarded();
    int taken = weir__bias_take(&lock);
    lock.patience = 0; /* the initial value */
    int overtaken = bias_owner() == weir__bias_mark;
    MUST(!inside);
    inside = &weir__bias_mark;
    atomic_store(&late.go_on, 1);
    usleep(300); /* the other thread waits until this one is outside */
    MUST(inside == &weir__bias_mark);
    inside = NULL;
    weir__bias_give(&lock, taken);
    return overtaken;
}

TEST(one_that_was_held_up_undoes_nothing) {
    struct sigaction action = {.sa_handler = hold_up};
    int overtaken = 0;
    pthread_t other;

    if (!can_bias())
        return;
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    MUST(pthread_create(&other, NULL, pass_until_end, NULL) == 0);
    for (int round = 0; round < 1500; round++)
        overtaken += overtake(other);
    atomic_store(&late.end, 1);
    MUST(pthread_join(other, NULL) == 0);
    MUST_LE(10, overtaken);
}

static pthread_barrier_t start;

struct part {
    int times;
    int bursts; /* passes between two yields, or 0 to never yield */
};

static void *hammer(void *arg) {
    const struct part *p = arg;

    pthread_barrier_wait(&start);
    for (int i = 0; i < p->times; i++) {
        pass_guarded();
        if (p->bursts && i % p->bursts == 0)
            sched_yield();
    }
    return NULL;
}

static struct weir_bias outer = {.level = WEIR_BIAS_OUTER};
static atomic_int has_come;

static void *come_in(void *arg) {
    int taken = weir__bias_take_at(&outer, WEIR_BIAS_OUTER, WEIR_BIAS_USER);

    (void)arg;
    atomic_store(&has_come, 1);
    weir__bias_give_at(&outer, taken, WEIR_BIAS_OUTER);
    return NULL;
}

/* A thread that releases the inner lock still holds the outer one. */
TEST(an_inner_lock_leaves_the_outer_one_taken) {
    pthread_t thread;
    int taken = 0;

    for (int i = 0; i < 1000; i++) {
        taken = weir__bias_take_at(&outer, WEIR_BIAS_OUTER, WEIR_BIAS_USER);
        pass_guarded();
        if (i < 999)
            weir__bias_give_at(&outer, taken, WEIR_BIAS_OUTER);
    }
    MUST_EQ(taken, can_bias());
    MUST(pthread_create(&thread, NULL, come_in, NULL) == 0);
    usleep(50000);
    MUST_EQ(atomic_load(&has_come), 0);
    weir__bias_give_at(&outer, taken, WEIR_BIAS_OUTER);
    MUST(pthread_join(thread, NULL) == 0);
    MUST_EQ(atomic_load(&has_come), 1);
}

static void *visit(void *arg) {
    int taken = weir__bias_take_at(&outer, WEIR_BIAS_OUTER, WEIR_BIAS_HASTY);

    MUST_EQ(taken, *(const int *)arg);
    if (taken >= 0)
        weir__bias_give_at(&outer, taken, WEIR_BIAS_OUTER);
    return NULL;
}

static void expect_visit(int taken) {
    run_in_thread(visit, &taken);
}

/* Takes and releases the outer lock until it is biased to this thread, if it can be. */
static void become_owner(void) {
    for (int i = 0; i < 1000; i++)
        weir__bias_give_at(&outer, weir__bias_take_at(&outer, WEIR_BIAS_OUTER, WEIR_BIAS_USER),
                           WEIR_BIAS_OUTER);
}

/* A guest takes a free lock away from its owner.  A lock that is held keeps its owner. */
TEST(a_hasty_guest_gets_only_a_free_lock) {
    int taken;

    for (int i = 0; i < 1000; i++) {
        taken = weir__bias_take_at(&outer, WEIR_BIAS_OUTER, WEIR_BIAS_HASTY);
        MUST_EQ(taken, 0); /* a guest gets no bias */
        weir__bias_give_at(&outer, taken, WEIR_BIAS_OUTER);
    }
    become_owner();
    taken = weir__bias_take_at(&outer, WEIR_BIAS_OUTER, WEIR_BIAS_USER);
    MUST_EQ(taken, can_bias());
    expect_visit(-1);
    weir__bias_give_at(&outer, taken, WEIR_BIAS_OUTER);
    taken = weir__bias_take_at(&outer, WEIR_BIAS_OUTER, WEIR_BIAS_USER);
    MUST_EQ(taken, can_bias()); /* this thread still has the bias */
    weir__bias_give_at(&outer, taken, WEIR_BIAS_OUTER);
    expect_visit(0);
}

static struct weir_bias visited;

static void visit_as(enum weir_bias_manner manner) {
    weir__bias_give_at(&visited, weir__bias_take_at(&visited, WEIR_BIAS_INNER, manner),
                       WEIR_BIAS_INNER);
}

static void *visit_as_guest(void *unused) {
    visit_as(WEIR_BIAS_GUEST);
    return unused;
}

/* A guest interrupts the run of another thread, so that this thread gets no bias. */
TEST(a_guest_interrupts_only_the_runs_of_other_threads) {
    for (int i = 0; i < 1000; i++) {
        if (i % 10 == 0)
            run_in_thread(visit_as_guest, NULL);
        visit_as(WEIR_BIAS_USER);
        MUST(!atomic_load(&visited.owner));
    }
    for (int i = 0; i < 1000; i++) {
        visit_as(WEIR_BIAS_GUEST);
        visit_as(WEIR_BIAS_USER);
    }
    MUST(!can_bias() || atomic_load(&visited.owner) == weir__bias_mark);
}

/* Threads work alike, or in bursts between which a bias comes and goes, or one works and three come rarely. */
TEST_EACH(3, threads_exclude_each_other) {
    static const struct part parts[][MOST_THREADS] = {
        {{100000, 0}, {100000, 0}, {100000, 0}, {100000, 0}},
        {{200000, 100}, {200000, 100}, {200000, 100}, {200000, 100}},
        {{1000000, 0}, {300, 1}, {300, 1}, {300, 1}},
    };
    pthread_t thread[MOST_THREADS];
    struct part part[MOST_THREADS];
    uint64_t sum = 0;

    MUST(pthread_barrier_init(&start, NULL, MOST_THREADS) == 0);
    for (int i = 0; i < MOST_THREADS; i++) {
        part[i] = parts[_i][i];
        sum += (uint64_t)part[i].times;
        MUST(pthread_create(&thread[i], NULL, hammer, &part[i]) == 0);
    }
    for (int i = 0; i < MOST_THREADS; i++)
        MUST(pthread_join(thread[i], NULL) == 0);
    MUST_EQ(guarded[0], sum);
    MUST_EQ(guarded[1], sum);
    pthread_barrier_destroy(&start);
}

SUITE("bias", CK_FORK_GETENV);
