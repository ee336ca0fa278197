/* SPDX-License-Identifier: MIT */
/* keeper.c: see keeper.h.
 *
 * A thread finds the gates of processes that name this one, and starts a thread for each, since moves take seconds.
 * The keeper that parks a process has the user's turn for that, so two keepers never decide by the same memory; and it has the
 * lock of the gate, so that `weir wake' does not move it at the same time.
 *
 * A process whose calls, threads that are inside, or GPU work would not end in time goes on, and is left alone for a
 * while.  A process that cannot be woken now stays parked, and is tried again as long as it lives.
 *
 * Locks: none; the list is the finder's.
 */
#include "cli/parking/keeper.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/runfile.h"
#include "base/size.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/who.h"
#include "cli/parking/asking.h"
#include "cli/parking/others.h"
#include "cli/parking/record.h"
#include "cli/parking/room.h"
#include "cli/parking/trial.h"

#define DRIVER "cuda"
#define SECOND UINT64_C(1000000000)
#define MS UINT64_C(1000000)

enum {
    FIND_MS = 200,
    LOOK_MS = 100,    /* at a process that runs */
    AWAY_MS = 1000,   /* at one that is parked: it rings */
    FULL_MS = 100,    /* at one that waits for room on the device */
    CLOSE_MS = 2000,  /* for calls that are under way as a process steps aside */
    OWN_MS = 50,      /* for those of weir's own threads in an idle one */
    LOCK_MS = 2000,   /* for the work of an idle process */
    ASIDE_MS = 20000, /* and of one that steps aside */
    TURN_MS = 1000,   /* after a process was parked, until the process that lacked memory has it */
};
/* How long a process waits for memory before it steps aside: for what others have idle. */
#define PATIENCE_NS (SECOND / 2)
/* How long it stays aside: so many times what its move took, so that moves take a small part of all time. */
#define ASIDE_MOVES 8
/* How long one that the driver could not park is left alone, and one that had just begun to call it. */
#define LEFT_ALONE_NS (5 * SECOND)
#define AGAIN_NS (SECOND / 4)

/* A process. */
struct kept {
    struct kept *next;
    pid_t pid;
    uint64_t start;
    struct weir_gate gate;
    pthread_t thread;
    atomic_int is_over;
    uint64_t uses, used_ns; /* calls so far, and since when there was none */
    uint64_t lacks_ns;      /* since when it waits for memory; 0: it does not */
    uint64_t not_before;    /* it is left alone until then */
    uint64_t aside_ns;      /* until when it stays aside */
    uint64_t bytes;         /* of its memory that is away */
    int has_told;           /* why it is not parked, or not woken */
    int failures;           /* to park it, one after the other */
    int is_stuck;           /* parking failed halfway: it has to be woken */
    int was_away;           /* at the last look */
    int was_full;           /* the device, since it was to be woken */
    struct asking asking;   /* while it waits for room */
};

static struct keeper_options options;
static pthread_t finder;
static atomic_int ends;
static struct kept *first; /* the finder's */

/* ---- What is told ---- */

static void tell(struct kept *k, int always, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void tell(struct kept *k, int always, const char *format, ...) {
    char words[WEIR_COMMAND_BYTES], text[MOVES_WHY + 64];
    va_list arguments;

    if (!options.verbose && !always)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    weir__process_command_of(k->pid, words, sizeof words);
    fprintf(stderr, "weir run: process %ld (%.60s): %s\n", (long)k->pid, words, text);
}

static void tell_once(struct kept *k, const char *what, const char *why) {
    if (!k->has_told && weir__process_lives(k->pid, k->start))
        tell(k, 1, "%s: %s", what, why);
    k->has_told = 1;
}

/* ---- The driver ---- */

static const struct weir_driver *driver; /* NULL: not opened, or there is none that can */
static char driver_why[MOVES_WHY];

static void open_driver(void) {
    struct weir_driver_failure failure;

    driver = weir__driver_open(DRIVER, &failure);
    if (!driver)
        snprintf(driver_why, sizeof driver_why, "no driver: %.200s", failure.text);
    else if (!(driver->capabilities & WEIR_CAP_CHECKPOINT))
        snprintf(driver_why, sizeof driver_why,
                 "the driver is for CUDA %d.%d; CUDA 12.8 (driver 570) is the first that can park "
                 "a process",
                 driver->version / 1000, driver->version % 1000 / 10);
    if (driver_why[0])
        driver = NULL;
}

static const struct weir_driver *the_driver(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, open_driver);
    return driver;
}

int keeper_try(char why[MOVES_WHY]) {
    struct trial trial;

    if (trial_begin(&trial, DRIVER, 0) != 0) {
        snprintf(why, MOVES_WHY, "the driver cannot be tried: %m");
        return 0;
    }
    if (trial.pid == 0)
        return 1;
    if (the_driver())
        return trial_end(&trial, driver, why);
    trial_give_up(&trial);
    snprintf(why, MOVES_WHY, "%s", driver_why);
    return 0;
}

/* ---- Out ---- */

static int refused(struct kept *k) {
    const struct weir_gate_page *page = k->gate.page;
    const char *why;

    switch (atomic_load(&page->reason)) {
    case WEIR_GATE_MAY_PARK:
        return 0;
    case WEIR_GATE_SHARES:
        why = "it has shared memory with other processes, or has managed memory: it called a "
              "function that begins with";
        break;
    case WEIR_GATE_BYPASSED:
        why = "this weir does not know a function of the driver that it is linked to:";
        break;
    default:
        why = "it has looked up more functions of the driver than weir can track; the last was";
        break;
    }
    if (!k->has_told)
        tell(k, 1, "it is not parked while it is idle: %s %.63s", why, page->refused_by);
    k->has_told = 1;
    return 1;
}

/* 1: the gate is closed, the process has made no call since it was found idle, and it may still be parked. */
static int close_gate(struct kept *k, int steps_aside) {
    int inside;

    if (!weir__gate_close(&k->gate, steps_aside ? CLOSE_MS : OWN_MS))
        return 0;
    if ((steps_aside || weir__gate_uses(&k->gate, &inside) == k->uses) && !refused(k))
        return 1;
    weir__gate_open(&k->gate);
    return 0;
}

/* The gate is closed. */
static int move_away(struct kept *k, int steps_aside) {
    struct move move = {.driver = driver,
                        .pid = k->pid,
                        .start = k->start,
                        .timeout_ms = steps_aside ? ASIDE_MS : LOCK_MS,
                        .gate = &k->gate};
    char bytes[32];

    if (move_out(&move) != MOVED) {
        k->is_stuck = move.is_stuck;
        if (k->is_stuck)
            weir__gate_set_away(&k->gate, 1);
        else
            weir__gate_open(&k->gate);
        k->not_before = weir__clock_ns() + LEFT_ALONE_NS;
        if (++k->failures > 1) /* it may be about to begin, or to end */
            tell_once(k, "it is not parked", move.why);
        return 0;
    }
    weir__gate_set_away(&k->gate, 1);
    k->bytes = move.bytes;
    k->aside_ns = weir__clock_ns() + ASIDE_MOVES * move.ns;
    k->failures = 0;
    weir__bytes_show(move.bytes, bytes, sizeof bytes);
    tell(k, 0, "%s, %s, %.1f s", steps_aside ? "it waits for memory, and steps aside" : "parked",
         bytes, (double)move.ns / 1e9);
    return 1;
}

/* Has the turn, and the lock of the gate. */
static int park_in_turn(struct kept *k, int steps_aside) {
    struct others others = others_look(k->pid, k->start);
    char why[ROOM_WHY];
    struct record record;

    if (!(steps_aside ? others.lacks_first : others.lacks > 0) || record_find(k->pid, &record) ||
        weir__process_is_stopped(k->pid))
        return 0;
    if (!the_driver()) {
        tell_once(k, "it is not parked", driver_why);
        return 0;
    }
    if (!room_for(driver, k->pid, 0, why)) {
        tell_once(k, "it is not parked", why);
        return 0;
    }
    return close_gate(k, steps_aside) && move_away(k, steps_aside);
}

/* Until the process that lacked memory has it, or it cannot be this process's. */
static void wait_for_use(const struct kept *k) {
    uint64_t until = weir__clock_ns() + TURN_MS * MS;

    others_ring();
    while (weir__clock_ns() < until && others_look(k->pid, k->start).lacks > 0)
        nanosleep(&(struct timespec){0, 20000000}, NULL);
}

static void park(struct kept *k, int steps_aside) {
    int turn = weir__runfile_lock("parking"), is_parked = 0;

    if (turn < 0)
        return;
    if (weir__gate_lock(&k->gate)) {
        is_parked = park_in_turn(k, steps_aside);
        weir__gate_unlock(&k->gate);
    }
    if (is_parked)
        wait_for_use(k);
    else
        k->not_before = weir__size_larger(k->not_before, weir__clock_ns() + AGAIN_NS);
    close(turn);
}

/* ---- Back ---- */

/* One that stepped aside comes back when there is room for all that it has and lacks, or when nobody has memory who may
 * be parked. */
static int may_come_back(struct kept *k, uint64_t lacks) {
    struct others others = others_look(k->pid, k->start);
    uint64_t needs = k->bytes + lacks + MOVES_BESIDE;

    if (others.any_lacks)
        return 0;
    if (!others.any)
        return 1;
    if (weir__clock_ns() < k->aside_ns)
        return 0;
    others_ring();
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    others = others_look(k->pid, k->start);
    if (others.room < needs)
        return 0;
    asking_ask(&k->asking, driver, needs, 0);
    return 1;
}

/* The process has the device again, and what it waited for.  0: not yet. */
static int wake(struct kept *k, int stepped_aside) {
    struct move move = {.driver = driver, .pid = k->pid, .start = k->start, .gate = &k->gate};
    enum moved moved;

    if (!the_driver() || !weir__gate_lock(&k->gate))
        return 0;
    if (atomic_load(&k->gate.page->gate) == WEIR_GATE_OPEN) {
        moved = MOVED; /* by `weir wake' */
    } else {
        weir__gate_set_away(&k->gate, 0); /* others count on what it has again */
        others_ring();
        moved = move_back(&move);
        if (moved != MOVED)
            weir__gate_set_away(&k->gate, 1);
        others_ring();
    }
    weir__gate_unlock(&k->gate);
    if (moved == MOVED) {
        tell(k, 0, "awake, %.1f s", (double)move.ns / 1e9);
        return 1;
    }
    if (!move.is_full) {
        tell_once(k, "it is not woken yet", move.why);
        return 0;
    }
    if (!k->was_full)
        tell(k, 0, "it is not woken yet: %s", move.why);
    k->was_full = 1;
    asking_ask(&k->asking, driver, k->bytes + MOVES_BESIDE, !stepped_aside);
    return 0;
}

/* 1: the process became another program while it was parked: the threads and the memory of the first have gone. */
static int is_another(const struct kept *k, struct record *record) {
    char path[64];

    if (!record_find(k->pid, record))
        return 0;
    snprintf(path, sizeof path, "/proc/%ld/task/%ld", (long)k->pid, (long)record->thread);
    return !weir__gate_is_current(&k->gate) || access(path, F_OK) != 0;
}

static void forget(struct kept *k) {
    int is_current = weir__gate_is_current(&k->gate);
    struct record record;

    if (is_another(k, &record))
        record_remove(&record);
    else if (weir__process_lives(k->pid, k->start))
        return;
    if (is_current || !weir__process_lives(k->pid, k->start))
        (void)unlink(k->gate.path);
}

/* ---- One process ---- */

static unsigned maintain_parked(struct kept *k) {
    uint64_t lacks = atomic_load(&k->gate.page->aside);

    if (k->is_stuck)
        return wake(k, 0) ? LOOK_MS : AWAY_MS;
    if (lacks > 0 && !atomic_load(&ends)) {
        if (may_come_back(k, lacks))
            (void)wake(k, 1);
        return 4 * FULL_MS;
    }
    if (atomic_load(&k->gate.page->waiting) == 0 && !atomic_load(&ends))
        return AWAY_MS;
    return wake(k, lacks > 0) ? LOOK_MS : FULL_MS;
}

static unsigned maintain_running(struct kept *k) {
    uint64_t lacks = atomic_load(&k->gate.page->aside), now, uses;
    int inside;

    uses = weir__gate_uses(&k->gate, &inside);
    now = weir__clock_ns();
    if (uses != k->uses || inside)
        k->used_ns = now;
    k->uses = uses;
    if (lacks == 0)
        k->lacks_ns = 0;
    else if (k->lacks_ns == 0)
        k->lacks_ns = now;
    if (now < k->not_before || atomic_load(&ends))
        return LOOK_MS;
    if (lacks > 0 && now - k->lacks_ns >= PATIENCE_NS) {
        if (others_look(k->pid, k->start).lacks_first && !refused(k))
            park(k, 1);
    } else if (lacks == 0 && now - k->used_ns >= options.idle_ns) {
        if (!refused(k) && others_look(k->pid, k->start).lacks > 0)
            park(k, 0);
    }
    return LOOK_MS;
}

/* It is awake, by this keeper or by `weir wake'. */
static void begin_again(struct kept *k) {
    asking_end(&k->asking);
    k->used_ns = weir__clock_ns();
    k->lacks_ns = 0;
    k->has_told = k->is_stuck = k->was_full = 0;
}

static void *keep(void *process) {
    struct kept *k = process;
    struct record record;

    weir__thread_begin();
    while (weir__gate_is_current(&k->gate)) {
        uint32_t bell = atomic_load(&k->gate.page->bell);
        int is_away = atomic_load(&k->gate.page->gate) == WEIR_GATE_AWAY;

        if (is_away ? is_another(k, &record) : atomic_load(&ends))
            break;
        if (k->was_away && !is_away)
            begin_again(k);
        k->was_away = is_away;
        weir__gate_wait(&k->gate, bell, is_away ? maintain_parked(k) : maintain_running(k));
    }
    asking_end(&k->asking);
    forget(k);
    atomic_store(&k->is_over, 1);
    return NULL;
}

/* ---- Finding them ---- */

static void find_one(pid_t pid, uint64_t start, void *unused) {
    struct kept *k = first;

    (void)unused;
    while (k && (k->pid != pid || k->start != start || atomic_load(&k->is_over)))
        k = k->next;
    if (k)
        return;
    k = calloc(1, sizeof *k);
    if (!k || weir__gate_find(&k->gate, pid, start) != 0) {
        free(k);
        return;
    }
    k->pid = pid;
    k->start = start;
    k->used_ns = weir__clock_ns();
    if (k->gate.page->keeper_pid != (uint64_t)getpid() ||
        k->gate.page->keeper_start != weir__process_start(getpid()) ||
        weir__thread_start(&k->thread, keep, k) != 0) {
        weir__gate_unmap(&k->gate);
        free(k);
        return;
    }
    k->next = first;
    first = k;
}

/* Takes away those that are over; with `waits' all. */
static void clear(int waits) {
    struct kept **at = &first, *k;

    while ((k = *at)) {
        if (!waits && !atomic_load(&k->is_over)) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        pthread_join(k->thread, NULL);
        weir__gate_unmap(&k->gate);
        free(k);
    }
}

static void *find(void *unused) {
    weir__thread_begin();
    while (!atomic_load(&ends)) {
        weir__gate_each(find_one, NULL);
        clear(0);
        nanosleep(&(struct timespec){0, FIND_MS * (long)MS}, NULL);
    }
    clear(1);
    return unused;
}

void keeper_name(char name[48]) {
    snprintf(name, 48, "%ld %" PRIu64, (long)getpid(), weir__process_start(getpid()));
}

int keeper_begin(const struct keeper_options *of) {
    options = *of;
    return weir__thread_start(&finder, find, NULL);
}

void keeper_end(void) {
    atomic_store(&ends, 1);
    pthread_join(finder, NULL);
}
