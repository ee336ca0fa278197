/* SPDX-License-Identifier: MIT */
/* gate_threads.c: who is inside, and who waits at the closed gate.
 *
 * The page is made at the first call of the driver.  A child of fork has its parent's memory, but not its threads: it
 * leaves the page alone, and makes its own at its first call.
 *
 * A process that ends while it is parked would have the driver take down what is not there.  So before the driver's
 * own functions for the end the thread passes the gate, which wakes the process, and stays inside.
 *
 * Threads of weir's own wake nobody, and do not count as uses.
 *
 * Locks: `joining' guards the making of the page.
 */
#include "adapters/gate/gate.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/futex.h"
#include "base/variable.h"
#include "base/who.h"
#include "ipc/gate_page.h"

/* Of this thread. */
struct self {
    struct weir_gate_slot *slot; /* NULL: none yet, or there are too many */
    const struct weir_gate_page *slot_of;
    int is_inside, is_own;
};

static _Thread_local struct self self __attribute__((tls_model("initial-exec")));
static struct weir_gate_page nobodys;         /* where there is no keeper */
static _Atomic(struct weir_gate_page *) page; /* NULL: not made yet */
static struct weir_gate gate = {.file = -1};  /* under `joining' */
static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t slot_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- The page ---- */

/* Of a thread that ends. */
static void free_slot(void *slot) {
    if (self.slot != slot || self.slot_of != atomic_load(&page))
        return;
    atomic_store(&self.slot->inside, 0);
    atomic_store(&self.slot->thread, 0);
    self.slot = NULL;
    self.slot_of = NULL;
}

static void become_child(void) {
    struct weir_gate_page *parents = atomic_load(&page);

    pthread_mutex_init(&joining, NULL);
    atomic_store(&page, NULL);
    self.slot = NULL;
    self.slot_of = NULL;
    if (parents && parents != &nobodys)
        munmap(parents, sizeof *parents);
}

static void come_to_end(void) {
    if (atomic_load(&page))
        (void)weir__gate_enter();
}

static void prepare(void) {
    (void)pthread_key_create(&slot_key, free_slot);
    (void)pthread_atfork(NULL, NULL, become_child);
}

static int read_keeper(uint64_t *pid, uint64_t *start) {
    const char *keeper = weir__variable("WEIR_RUN_PARK");

    return keeper && sscanf(keeper, "%" SCNu64 " %" SCNu64, pid, start) == 2 &&
           weir__process_lives((pid_t)*pid, *start);
}

static struct weir_gate_page *join(void) {
    struct weir_gate_page *made;
    uint64_t pid, start;
    int before = errno;

    pthread_once(&once, prepare);
    pthread_mutex_lock(&joining);
    made = atomic_load(&page);
    if (!made) {
        made = &nobodys;
        if (read_keeper(&pid, &start)) {
            if (weir__gate_make(&gate, pid, start) == 0)
                made = gate.page;
            else
                fprintf(stderr, "weir: process %ld is not parked while it is idle: %s: %s\n",
                        (long)getpid(), gate.path, strerror(errno));
        }
        atomic_store(&page, made);
        if (made != &nobodys)
            (void)atexit(come_to_end);
    }
    pthread_mutex_unlock(&joining);
    weir__gate_look_at_links();
    errno = before;
    return made;
}

static struct weir_gate_page *page_now(void) {
    struct weir_gate_page *p = atomic_load_explicit(&page, memory_order_acquire);

    return __builtin_expect(p != NULL, 1) ? p : join();
}

void weir__gate_refuse(int reason, const char *name) {
    struct weir_gate_page *p = page_now();
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    if (atomic_load_explicit(&p->reason, memory_order_relaxed) != WEIR_GATE_MAY_PARK)
        return;
    pthread_mutex_lock(&lock);
    if (atomic_load(&p->reason) == WEIR_GATE_MAY_PARK) {
        strncpy(p->refused_by, name, sizeof p->refused_by - 1);
        atomic_store(&p->reason, (uint32_t)reason);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- In and out ---- */

static void claim_slot(struct weir_gate_page *p) {
    uint32_t thread = (uint32_t)syscall(SYS_gettid), used, nobody;

    for (uint32_t i = 0; i < WEIR_GATE_SLOTS; i++) {
        nobody = 0;
        if (atomic_load_explicit(&p->slot[i].thread, memory_order_relaxed) != 0 ||
            !atomic_compare_exchange_strong(&p->slot[i].thread, &nobody, thread))
            continue;
        used = atomic_load(&p->used_slots);
        while (used <= i && !atomic_compare_exchange_weak(&p->used_slots, &used, i + 1))
            ;
        self.slot = &p->slot[i];
        (void)pthread_setspecific(slot_key, self.slot);
        break;
    }
    self.slot_of = p;
}

static void go_inside(struct weir_gate_page *p) {
    if (__builtin_expect(self.slot_of != p, 0))
        claim_slot(p);
    if (self.slot)
        atomic_store(&self.slot->inside, 1);
    else
        atomic_fetch_add(&p->other_inside, 1);
}

static void go_outside(struct weir_gate_page *p) {
    if (self.slot)
        atomic_store_explicit(&self.slot->inside, 0, memory_order_release);
    else
        atomic_fetch_sub(&p->other_inside, 1);
}

static void count_use(struct weir_gate_page *p) {
    if (self.is_own)
        return;
    if (self.slot)
        atomic_store_explicit(&self.slot->uses,
                              atomic_load_explicit(&self.slot->uses, memory_order_relaxed) + 1,
                              memory_order_relaxed);
    else
        atomic_fetch_add(&p->other_uses, 1);
}

static int is_closed(struct weir_gate_page *p) {
    return atomic_load(&p->gate) != WEIR_GATE_OPEN;
}

static void ring(struct weir_gate_page *p) {
    atomic_fetch_add(&p->bell, 1);
    (void)syscall(SYS_futex, &p->bell, WEIR_FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void tell_if_alone(const struct weir_gate_page *p) {
    static atomic_int told;

    if (weir__process_lives((pid_t)p->keeper_pid, p->keeper_start) || atomic_exchange(&told, 1))
        return;
    fprintf(stderr,
            "weir: process %ld is parked, and the `weir run' that would wake it has ended; `weir "
            "wake %ld' wakes it\n",
            (long)getpid(), (long)getpid());
}

/* Whether a thread that waits at the gate has the process woken. */
enum asks {
    NEVER, /* it is weir's own */
    UNLESS_LACKS, /* it waits for memory: only if another thread has said meanwhile that the process does not */
    ALWAYS
};

/* The thread is outside. */
static void wait_until_open(struct weir_gate_page *p, enum asks asks) {
    int before = errno, has_asked = 0;
    uint32_t word;

    while ((word = atomic_load(&p->gate)) != WEIR_GATE_OPEN) {
        if (!has_asked &&
            (asks == ALWAYS || (asks == UNLESS_LACKS && atomic_load(&p->aside) == 0))) {
            atomic_fetch_add(&p->waiting, 1);
            ring(p);
            has_asked = 1;
        }
        (void)syscall(SYS_futex, &p->gate, WEIR_FUTEX_WAIT, word, &(struct timespec){1, 0}, NULL,
                      0);
        if (is_closed(p))
            tell_if_alone(p);
    }
    if (has_asked)
        atomic_fetch_sub(&p->waiting, 1);
    errno = before;
}

static void pass(struct weir_gate_page *p, enum asks asks) {
    go_inside(p);
    while (__builtin_expect(is_closed(p), 0)) {
        go_outside(p);
        wait_until_open(p, asks);
        go_inside(p);
    }
}

int weir__gate_enter(void) {
    struct weir_gate_page *p;

    if (self.is_inside)
        return 0;
    p = page_now();
    self.is_inside = 1;
    pass(p, self.is_own ? NEVER : ALWAYS);
    return 1;
}

void weir__gate_leave(void) {
    struct weir_gate_page *p = page_now();

    if (__builtin_expect(self.slot_of != p, 0)) /* a child of fork, by a function that forked */
        go_inside(p);
    count_use(p);
    go_outside(p);
    self.is_inside = 0;
}

/* ---- What weir itself says ---- */

/* The thread is one of weir's own. */
WEIR_GATE_EXPORT void weir__gate_own(void);
void weir__gate_own(void) {
    self.is_own = 1;
}

/* One of weir's own threads begins work for which the device's memory must be there: 1; 0: it is not. */
WEIR_GATE_EXPORT int weir__gate_try(void);
int weir__gate_try(void) {
    struct weir_gate_page *p = atomic_load(&page);

    if (self.is_inside || !p)
        return 1;
    go_inside(p);
    if (is_closed(p)) {
        go_outside(p);
        return 0;
    }
    self.is_inside = 2;
    return 1;
}

WEIR_GATE_EXPORT void weir__gate_end(void);
void weir__gate_end(void) {
    struct weir_gate_page *p = atomic_load(&page);

    if (self.is_inside != 2)
        return;
    go_outside(p);
    self.is_inside = 0;
}

WEIR_GATE_EXPORT int weir__gate_is_away(void);
int weir__gate_is_away(void) {
    struct weir_gate_page *p = atomic_load(&page);

    return p && atomic_load(&p->gate) == WEIR_GATE_AWAY;
}

/* 1: the process may be parked. */
WEIR_GATE_EXPORT int weir__gate_may_park(void);
int weir__gate_may_park(void) {
    struct weir_gate_page *p = atomic_load(&page);

    return p && p != &nobodys && atomic_load(&p->reason) == WEIR_GATE_MAY_PARK &&
           weir__process_lives((pid_t)p->keeper_pid, p->keeper_start);
}

/* A thread in a call lacks so many bytes, holds no lock, and waits so long; the process may be parked meanwhile, and is
 * back when this returns.  0 bytes: it lacks nothing any more, and wakes the process. */
WEIR_GATE_EXPORT void weir__gate_pause(uint64_t lacks, unsigned ms);
void weir__gate_pause(uint64_t lacks, unsigned ms) {
    struct weir_gate_page *p = atomic_load(&page);
    enum asks asks = self.is_own ? NEVER : lacks > 0 ? UNLESS_LACKS : ALWAYS;
    int before = errno, was_inside = self.is_inside;

    if (p && atomic_exchange(&p->aside, lacks) == 0 && lacks > 0)
        ring(p);
    if (ms == 0)
        return;
    if (was_inside)
        go_outside(p);
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
    if (was_inside)
        pass(p, asks);
    else if (p && is_closed(p))
        wait_until_open(p, asks);
    errno = before;
}
