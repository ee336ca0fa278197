/* SPDX-License-Identifier: MIT */
/* background_growth.c: grows reserved memory in the background, before requests need it.
 *
 * What counts as idle.  A thread looks at the reserved memory that is in no live block of the engine; memory in
 * per-stream caches is live to the engine.  Some of it may be of no use: pieces that are too small, or that wait for
 * other streams.  If a request had to grow although more than its size was idle, all that was idle then counts as
 * useless.  Where memory moves it does not count so, since it was only in the wrong places.  If the last piece at the
 * growing end nearly holds the largest request so far, the thread also adds the rest.
 *
 * Pace.  Growth holds the driver's lock, so the pace decides the slowest calls of other threads.  A step takes a tenth
 * of a millisecond, and the pause after it ten times as long; below `low' the pause is shorter.
 *
 * Waking.  A request that leaves less than `mark' idle sets `mark' to 0 and signals the thread, so it signals once.
 * The thread sets the mark before it looks for the last time, so it misses no request (tests/spin/ahead.pml).  A
 * request that finds useless memory always wakes the thread.
 *
 * On the device model time is virtual, and a real thread would make figures depend on the scheduler.  There the first
 * request after a turn was due plays the turn, free of charge, before the request itself grows reserved memory.
 *
 * At the end of the process the driver is unloaded, perhaps during a turn.  So a thread holds `stepping' in each turn,
 * and no turn begins after exit() has, which waits for the last turn for a second.
 *
 * Locks, outermost first: `turning', `stepping', those of a growth, `lock'.
 *
 * This file must not know any single engine, settings' names or the caller for memory.
 */
#include "reserve/background_growth.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/thread.h"

#define PAUSE_NS UINT64_C(1000000)
enum { HURRY = 4 }; /* below `low' pauses are shorter by this factor */
/* On the device model: the time in which a thread wakes up and makes its first step. */
#define WAKE_NS UINT64_C(200000)
#define FIRST_BACK_OFF_NS UINT64_C(10000000)
#define LONGEST_BACK_OFF_NS UINT64_C(2560000000)
/* The pause after a turn until a request wakes the thread. */
#define REST UINT64_C(0)
/* Steps are multiples of the driver's granularity of mapping. */
#define PAGE ((size_t)2 << 20)
enum {
    LEFT_PART = 64, /* background growth leaves this part of the device to requests */
    REST_PART = 4   /* the last piece grows by at most this part of the largest request */
};

struct weir_ahead {
    struct weir_reserve *v;
    struct weir_engine *engine;
    int is_played; /* set on the device model, which has no thread */

    _Atomic uint64_t mark; /* a request that leaves less idle wakes the thread; 0 if it need not */
    _Atomic uint64_t useless; /* idle bytes that cannot serve requests */
    _Atomic uint64_t seen;    /* bytes that were idle after the last request that looked */
    _Atomic uint64_t largest; /* bytes of the largest request so far, at most `most_idle' */
    uint64_t most_idle;       /* `high' at the beginning; fixed */

    pthread_mutex_t turning; /* held during a turn; guards the next fields */
    uint64_t low, high;      /* idle bytes; both 0 if no step can succeed */
    int raising;             /* set from less than `low' idle bytes on until `high' are idle */
    uint64_t back_off_ns;    /* the pause after the next failure */
    uint64_t due_ticks;      /* on the device model: the time of the next turn, or 0 */

    pthread_mutex_t lock; /* guards the next fields */
    pthread_cond_t woken; /* signalled when `told' or `stopped' is set */
    int told, stopped;

    pthread_t thread;
};

static pthread_mutex_t stepping = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int exiting; /* set at exit: no new turn begins */

/* ---- what is idle ----------------------------------------------------------------------------- */

/* Returns the idle bytes that can serve requests. */
static uint64_t usable(struct weir_ahead *a, uint64_t idle) {
    uint64_t useless = atomic_load(&a->useless), known = useless;

    if (useless > idle)
        (void)atomic_compare_exchange_strong(&a->useless, &known, idle);
    return weir__size_less(idle, useless);
}

/* Records that reserved memory grew for a request of `bytes', after which `idle' bytes are idle.  Returns 1 if the
 * memory that was idle before counts as useless from now on, else 0. */
static int learn_useless(struct weir_ahead *a, size_t bytes, uint64_t idle) {
    uint64_t seen = atomic_load_explicit(&a->seen, memory_order_relaxed);

    if (usable(a, seen) < bytes)
        return 0;
    atomic_store(&a->useless, seen < idle ? seen : idle);
    return 1;
}

/* Returns the bytes that the last piece lacks to hold the largest request so far, or 0 if that is much, or more than
 * may be idle. */
static uint64_t rest_of_largest(struct weir_ahead *a, uint64_t idle) {
    uint64_t wanted = atomic_load_explicit(&a->largest, memory_order_relaxed), piece, last;
    struct weir_survey survey = {.what = WEIR_SURVEY_PIECES};

    a->engine->ops->survey(a->engine, &survey);
    piece = survey.piece.largest;
    last = survey.piece.last;
    if (piece >= wanted || wanted - last > wanted / REST_PART ||
        idle + wanted - last > a->most_idle)
        return 0;
    return wanted - last;
}

/* ---- a turn ---------------------------------------------------------------------------------- */

/* Returns the pause after a step that failed.  Forgets the largest request if the step was for the last piece. */
static uint64_t back_off(struct weir_ahead *a) {
    uint64_t pause = a->back_off_ns;

    if (!a->raising) {
        atomic_store_explicit(&a->largest, 0, memory_order_relaxed);
        atomic_store(&a->mark, a->low);
        return REST;
    }
    atomic_fetch_add_explicit(&a->v->events.counters->ahead_failures, 1, memory_order_relaxed);
    a->back_off_ns = pause * 2 < LONGEST_BACK_OFF_NS ? pause * 2 : LONGEST_BACK_OFF_NS;
    return pause;
}

/* Ends background growth, since no step can succeed. */
static uint64_t give_up(struct weir_ahead *a) {
    a->low = a->high = 0;
    atomic_store(&a->mark, 0);
    return REST;
}

/* Returns the idle bytes that can serve requests, and the reserved memory in *reserved. */
static uint64_t idle_of(struct weir_ahead *a, uint64_t *reserved) {
    weir_statistics figures = {.size = sizeof figures};

    a->engine->ops->figures(a->engine, &figures);
    *reserved = figures.reserved;
    return usable(a, weir__size_less(figures.reserved, figures.in_use));
}

/* Returns the bytes that a step should add, or 0 if the device has none to spare. */
static uint64_t step_of(const struct weir_ahead *a, uint64_t reserved, uint64_t lacks) {
    uint64_t room = weir__size_less(a->v->quota.limit, reserved), step = a->engine->step_bytes;
    uint64_t device;

    if (lacks < step)
        step = (lacks + PAGE - 1) / PAGE * PAGE;
    if (room < step)
        step = weir__size_round_down((size_t)room, PAGE);
    device = weir__device_free(a->v->device);
    if (device != UINT64_MAX && device < step + a->v->device->total / LEFT_PART)
        return 0;
    return step;
}

/* Makes one step, and lowers *lacks by the step. */
static weir_status grow(struct weir_ahead *a, uint64_t reserved, uint64_t *lacks) {
    uint64_t step = step_of(a, reserved, *lacks), target = reserved + step;

    if (step == 0)
        return WEIR_E_NO_MEMORY;
    *lacks = weir__size_less(*lacks, step);
    return a->engine->ops->grow(a->engine, target, target, WEIR_EVENT_GROW_AHEAD);
}

/* Returns the nanoseconds until the turn after a step, or REST.  `lacks' bytes are missing now. */
static uint64_t pause_after(struct weir_ahead *a, weir_status status, uint64_t lacks) {
    double idle = (double)weir__size_less(a->high, lacks), low = (double)a->low;

    if (status == WEIR_E_NOT_SUPPORTED)
        weir__log(
            a->v->options->log, WEIR_LOG_WARNING,
            "grow-ahead has no effect: this driver does not report what its pool has reserved");
    if (status == WEIR_E_NOT_SUPPORTED || status == WEIR_E_DEVICE_LOST)
        return give_up(a);
    if (status != WEIR_OK)
        return back_off(a);
    a->back_off_ns = FIRST_BACK_OFF_NS;
    return a->raising && idle < low ? 1 + (uint64_t)((double)PAUSE_NS / HURRY * idle / low)
                                    : PAUSE_NS;
}

/* Makes one step if too little is idle.  Returns the nanoseconds until the next turn, or REST.  The caller holds
 * `turning'. */
static uint64_t take_turn(struct weir_ahead *a) {
    uint64_t reserved, idle, lacks;
    weir_status status;

    atomic_store(&a->mark, 0);
    if (weir__slow_path_is(&a->v->device->slow_path, WEIR_SLOW_PATH_LOST))
        return give_up(a);
    atomic_store(&a->mark, a->low);
    idle = idle_of(a, &reserved);
    a->raising = idle < (a->raising ? a->high : a->low);
    lacks = a->raising ? a->high - idle : rest_of_largest(a, idle);
    if (lacks == 0)
        return REST;
    atomic_store(&a->mark, a->is_played ? a->high : 0);
    status = grow(a, reserved, &lacks);
    return pause_after(a, status, lacks);
}

/* Grows until `low' bytes are idle, before the thread starts. */
static void begin(struct weir_ahead *a) {
    uint64_t reserved, idle, lacks;
    weir_status status = WEIR_OK;

    while (status == WEIR_OK && (idle = idle_of(a, &reserved)) < a->low) {
        a->raising = 1;
        lacks = a->low - idle;
        status = grow(a, reserved, &lacks);
    }
    if (a->is_played)
        a->due_ticks = a->v->device->driver->ticks() + PAUSE_NS;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void stop_for_good(void) {
    if (weir__driver_forked())
        return;
    atomic_store(&exiting, 1);
    /* unreached: not available, for which the driver must hang */
    if (weir__thread_lock_at_end(&stepping))
        pthread_mutex_unlock(&stepping);
}

static void prepare_exit(void) {
    (void)atexit(stop_for_good);
}

/* Waits for a pause or, with REST, until a request wakes the thread.  The caller holds `lock'. */
static void wait(struct weir_ahead *a, uint64_t pause) {
    uint64_t ns = weir__clock_ns() + pause;
    struct timespec until = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

    if (pause == REST)
        while (!a->stopped && !a->told)
            pthread_cond_wait(&a->woken, &a->lock);
    else
        while (!a->stopped && pthread_cond_timedwait(&a->woken, &a->lock, &until) != ETIMEDOUT)
            ;
}

static void *run(void *ahead) {
    struct weir_ahead *a = ahead;
    uint64_t pause;

    weir__thread_begin();
    pthread_mutex_lock(&a->lock);
    while (!a->stopped) {
        a->told = 0;
        pthread_mutex_unlock(&a->lock);
        pthread_mutex_lock(&a->turning);
        pthread_mutex_lock(&stepping);
        pause = atomic_load(&exiting) ? REST : take_turn(a);
        pthread_mutex_unlock(&stepping);
        pthread_mutex_unlock(&a->turning);
        pthread_mutex_lock(&a->lock);
        wait(a, pause);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* Wakes the thread, unless another request has. */
static void wake(struct weir_ahead *a) {
    if (atomic_exchange(&a->mark, 0) == 0)
        return;
    pthread_mutex_lock(&a->lock);
    a->told = 1;
    pthread_cond_signal(&a->woken);
    pthread_mutex_unlock(&a->lock);
}

/* ---- a modelled device ----------------------------------------------------------------------- */

/* Plays all turns that are due, at no cost to the caller.  Returns their number.  If the thread rests, `begins' wakes
 * it. */
static int play(struct weir_ahead *a, int begins) {
    const struct weir_driver *driver = a->v->device->driver;
    uint64_t now = driver->ticks(), pause;
    int turns = 0;

    if (pthread_mutex_trylock(&a->turning) != 0)
        return 0;
    if (a->due_ticks == 0 && begins)
        a->due_ticks = now + WAKE_NS;
    for (; a->due_ticks != 0 && a->due_ticks <= now; turns++) {
        driver->aside(1);
        pause = take_turn(a);
        a->due_ticks += driver->aside(0) + pause;
        if (pause == REST)
            a->due_ticks = 0;
    }
    pthread_mutex_unlock(&a->turning);
    return turns;
}

int weir__ahead_catch_up(struct weir_ahead *a) {
    return a && a->is_played && play(a, 0) > 0;
}

/* ---- for others ------------------------------------------------------------------------------ */

void weir__ahead_look(struct weir_ahead *a, size_t bytes, int grew) {
    uint64_t mark, reserved, in_use, idle, size = weir__size_smaller(bytes, a->most_idle);

    if (size > atomic_load_explicit(&a->largest, memory_order_relaxed))
        atomic_store_explicit(&a->largest, size, memory_order_relaxed);
    mark = atomic_load_explicit(&a->mark, memory_order_relaxed);
    if (mark == 0 && !grew)
        return;
    reserved = atomic_load_explicit(&a->engine->seen.reserved, memory_order_relaxed);
    in_use = atomic_load_explicit(&a->engine->seen.in_use, memory_order_relaxed);
    idle = weir__size_less(reserved, in_use);
    if (grew && !(a->engine->traits & WEIR_ENGINE_MOVES) && learn_useless(a, bytes, idle) &&
        !a->is_played)
        wake(a);
    atomic_store_explicit(&a->seen, idle, memory_order_relaxed);
    idle = usable(a, idle);
    if (mark == 0 || (idle >= mark && rest_of_largest(a, idle) == 0))
        return;
    if (a->is_played)
        (void)play(a, 1);
    else
        wake(a);
}

void weir__ahead_forget(struct weir_ahead *a) {
    if (!a)
        return;
    atomic_store_explicit(&a->useless, 0, memory_order_relaxed);
    atomic_store_explicit(&a->seen, 0, memory_order_relaxed);
    atomic_store_explicit(&a->largest, 0, memory_order_relaxed);
}

void weir__ahead_hold(struct weir_ahead *a) {
    if (a)
        pthread_mutex_lock(&a->turning);
}

void weir__ahead_go_on(struct weir_ahead *a) {
    if (a)
        pthread_mutex_unlock(&a->turning);
}

static void discard(struct weir_ahead *a) {
    pthread_cond_destroy(&a->woken);
    pthread_mutex_destroy(&a->lock);
    pthread_mutex_destroy(&a->turning);
    free(a);
}

weir_status weir__ahead_open(struct weir_reserve *v, uint64_t low, uint64_t high,
                             struct weir_ahead **out) {
    struct weir_ahead *a = calloc(1, sizeof *a);
    pthread_condattr_t monotonic;

    if (!a)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    a->v = v;
    a->engine = v->engine;
    a->low = low;
    a->high = a->most_idle = high;
    a->back_off_ns = FIRST_BACK_OFF_NS;
    a->is_played = v->device->driver->aside != NULL;
    atomic_init(&a->mark, low);
    pthread_mutex_init(&a->turning, NULL);
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->woken, &monotonic);
    pthread_condattr_destroy(&monotonic);
    begin(a);
    if (!a->is_played)
        pthread_once(&once, prepare_exit);
    if (!a->is_played && weir__thread_start(&a->thread, run, a) != 0) {
        discard(a);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    *out = a;
    return WEIR_OK;
}

void weir__ahead_close(struct weir_ahead *a) {
    if (!a)
        return;
    if (!a->is_played) {
        pthread_mutex_lock(&a->lock);
        a->stopped = 1;
        pthread_cond_signal(&a->woken);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    discard(a);
}
