/* SPDX-License-Identifier: MIT */
/* goal_raise.c: how reserved memory grows before requests need it (goal.h): preallocation and grow-ahead.
 *
 * Preallocation.  Processes that start together and each want nine tenths of the free memory would fail, since all read
 * one amount of free memory.  So the processes of one user preallocate on a device one after the other, by a lock
 * (turn_lock.h), and each computes its amount again once it has the lock.  If there is no lock, or another process holds
 * it for too long, preallocation goes on without the lock and says so in the log.  A preallocation fails only if less is
 * reserved than prealloc_min; then its memory goes back.
 *
 * What counts as idle.  The thread of grow-ahead looks at the reserved memory that is in no live block of the engine;
 * memory in per-stream caches is live to the engine.  Some of it may be of no use: pieces that are too small, or that
 * wait for other streams.  If a request had to grow although more than its size was idle, all that was idle then counts
 * as useless.  Where memory moves it does not count so, since it was only in the wrong places.  If the last piece at the
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
#include "reserve/goal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bounds.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"
#include "base/thread.h"
#include "config/amount.h"
#include "ipc/group_process.h"
#include "reserve/reserve.h"

/* The granularity of mapped memory and of cuMemAlloc. */
#define PAGE ((uint64_t)2 << 20)

/* ---- preallocation: one process after the other ------------------------------------------------ */

#define RECLAIM_PAUSE_NS UINT64_C(10000000)
/* The longest wait for the lock. */
#define LONGEST_WAIT_NS UINT64_C(10000000000)
/* The time for other processes to answer, and the time after which weir stops waiting for memory if no more comes free.
 * A process that releases all of an H200 takes 0.2 s. */
#define SHARE_NS UINT64_C(100000000)
#define STILL_NS UINT64_C(1000000000)

/* Returns the bytes that a preallocated share leaves to other processes, or 0 if the preallocation is no share. */
static uint64_t apart_of(const struct weir_reserve *v) {
    return v->options->prealloc.kind == WEIR_AMOUNT_SHARE ? v->limit.apart : 0;
}

/* Computes a target that depends on the free memory again, since other processes may have released memory.  Memory that
 * this allocator has reserved counts as free. */
static void refresh_target(struct weir_reserve *v) {
    const weir_amount *amount = &v->options->prealloc;
    struct weir_device_memory memory = {.total = v->device->total};
    uint64_t target;

    (void)weir__limit_refresh(v);
    if (amount->kind != WEIR_AMOUNT_OF_FREE && amount->kind != WEIR_AMOUNT_MAX)
        return;
    memory.free = weir__device_free(v->device);
    if (memory.free == UINT64_MAX)
        return;
    memory.free += weir__engine_reserve(v->engine);
    target = weir__size_smaller(weir__budget_bytes(amount, &memory, 0), memory.free);
    v->goal.preallocation.target = weir__size_smaller(target, v->limit.bytes);
}

/* Lowers a target that is a share, so that the memory that shares leave to others stays free. */
static void leave_to_others(struct weir_reserve *v) {
    struct weir_preallocation *p = &v->goal.preallocation;
    uint64_t device_free;

    if (v->options->prealloc.kind != WEIR_AMOUNT_SHARE)
        return;
    device_free = weir__device_free(v->device);
    if (device_free == UINT64_MAX)
        return;
    device_free = weir__engine_reserve(v->engine) + weir__size_less(device_free, v->limit.apart);
    p->target = weir__size_smaller(p->target, weir__size_larger(device_free, p->least));
}

/* Waits for the lock, but not without a bound. */
static void wait_for_turn(struct weir_reserve *v) {
    struct weir_process_lock *lock = &v->goal.preallocation.lock;
    uint64_t began = weir__clock_ns(), waited;
    struct timespec pause = {0, 1000000};
    char name[WEIR_UUID_BYTES] = "";
    int got;

    /* Each device has one file, since its number differs between processes. */
    if (!weir__kept_is(&lock->file))
        (void)weir__driver_uuid(v->device->driver, v->device->ordinal, name);
    while ((got = weir__process_lock_try(lock, name)) == 0 &&
           weir__clock_ns() - began < LONGEST_WAIT_NS) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 16000000)
            pause.tv_nsec *= 2;
    }
    waited = weir__clock_ns() - began;
    if (got < 0)
        weir__log(v->options->log, WEIR_LOG_WARNING,
                  "preallocation: no lock against other processes (%s): it goes on without",
                  strerror(errno));
    if (got == 0)
        weir__log(v->options->log, WEIR_LOG_WARNING,
                  "preallocation: another process has not ended its own: it goes on beside it");
    atomic_fetch_add(&v->events.counters->prealloc.waited_ns, waited);
    refresh_target(v);
}

/* Waits for memory that other processes have above their shares, as long as they answer and more memory comes free. */
static void wait_for_others(struct weir_reserve *v) {
    uint64_t target = v->goal.preallocation.target, device_free, most_free = 0;
    uint64_t lacks = weir__size_less(target, weir__engine_reserve(v->engine)) + v->limit.apart;
    uint64_t began = weir__clock_ns(), now = began, moved = began;
    struct weir_answers answers;

    if (v->options->prealloc.kind != WEIR_AMOUNT_SHARE || !v->events.peers)
        return;
    while ((device_free = weir__device_free(v->device)) < lacks && now - moved <= STILL_NS) {
        answers = weir__group_ask_whom_it_concerns(v->events.peers, lacks - device_free, began,
                                                   now + SHARE_NS);
        if (!answers.awaited)
            break;
        nanosleep(&(struct timespec){0, RECLAIM_PAUSE_NS}, NULL);
        now = weir__clock_ns();
        if (device_free > most_free) {
            most_free = device_free;
            moved = now;
        }
    }
    atomic_fetch_add(&v->events.counters->prealloc.waited_ns, weir__clock_ns() - began);
    (void)weir__limit_refresh(v);
}

/* ---- preallocation: messages ------------------------------------------------------------------- */

enum { CAUSE_BYTES = 80 };

/* Writes why no more than `reserved' bytes are reserved.  A share leaves `apart' bytes of the device to others. */
static void write_cause(const struct weir_reserve *v, uint64_t reserved, uint64_t apart,
                        char text[CAUSE_BYTES]) {
    size_t least = v->engine->least_limit;
    uint64_t limit = v->limit.bytes, unit = least ? least : PAGE, device_free;
    int is_left = limit < weir__limit_own(&v->limit);

    snprintf(text, CAUSE_BYTES, "the device has no more");
    if (limit != UINT64_MAX && weir__size_less(limit, reserved) < unit) {
        snprintf(text, CAUSE_BYTES, "%s %s",
                 is_left                   ? "keep-free keeps for others"
                 : weir__limit_is_share(v) ? "the limit, a share, is"
                                           : "the limit is",
                 WEIR_SHOWN(is_left ? v->limit.keep_free : limit));
        return;
    }
    device_free = weir__device_free(v->device);
    if (device_free == UINT64_MAX || device_free < unit)
        return;
    if (weir__size_less(device_free, apart) < unit)
        snprintf(text, CAUSE_BYTES, "a share leaves %s of the device", WEIR_SHOWN(apart));
    else /* The driver allocates a region as a whole or not at all. */
        snprintf(text, CAUSE_BYTES, "the driver refused more, with %s free",
                 WEIR_SHOWN(device_free));
}

void weir__goal_log_preallocation(const struct weir_reserve *v, uint64_t asked, uint64_t reserved,
                                  uint64_t apart) {
    char cause[CAUSE_BYTES];

    write_cause(v, reserved, apart, cause);
    weir__log(v->options->log, WEIR_LOG_WARNING, "preallocation: requested %s, got and kept %s; %s",
              WEIR_SHOWN(asked), WEIR_SHOWN(reserved), cause);
}

/* Frees what a preallocation got if that is less than `least', and writes the reason.  `figures' are the engine's:
 * those before the call on entry, those after it on return. */
static weir_status fail_below_least(struct weir_reserve *v, weir_status status, uint64_t keep,
                                    weir_statistics *figures, char *text, size_t text_bytes) {
    struct weir_preallocation *p = &v->goal.preallocation;
    char cause[CAUSE_BYTES] = "no more was asked"; /* the target itself is below prealloc_min */
    size_t released;

    if (weir__is_failure(status))
        write_cause(v, figures->reserved, apart_of(v), cause);
    if (status == WEIR_OK || weir__is_failure(status))
        snprintf(text, text_bytes,
                 "preallocation: requested %s, at least %s, got only %s; %s: set prealloc-min to "
                 "that or less",
                 WEIR_SHOWN(p->target), WEIR_SHOWN(p->least), WEIR_SHOWN(figures->reserved), cause);
    if (status == WEIR_OK)
        status = weir__without_driver(WEIR_E_NO_MEMORY);
    (void)weir__engine_trim(v->engine, (size_t)keep, WEIR_EVENT_TRIM, &released);
    v->engine->ops->figures(v->engine, figures);
    return status;
}

/* ---- preallocation ----------------------------------------------------------------------------- */

weir_status weir__goal_preallocate(struct weir_reserve *v, char *text, size_t text_bytes) {
    weir_statistics before = {.size = sizeof before}, after = {.size = sizeof after};
    struct weir_counters *counters = v->events.counters;
    struct weir_preallocation *p = &v->goal.preallocation;
    struct weir_engine *e = v->engine;
    uint64_t started;
    weir_status status;
    int lacks;

    text[0] = '\0';
    wait_for_turn(v);
    wait_for_others(v);
    leave_to_others(v);
    started = v->device->driver->ticks();
    weir__counters_read(counters, &before);
    e->ops->figures(e, &before);
    status = e->ops->grow(e, p->target, p->target, WEIR_EVENT_PREALLOC);
    weir__counters_read(counters, &after);
    e->ops->figures(e, &after);
    atomic_fetch_add(&counters->prealloc.got, after.growth_bytes - before.growth_bytes);
    lacks = after.reserved < p->least;
    if (lacks)
        status = fail_below_least(v, status, before.reserved, &after, text, text_bytes);
    atomic_fetch_add(&counters->prealloc.ns, weir__device_since(v->device, started));
    atomic_store(&counters->prealloc.asked, p->target);
    atomic_store(&counters->prealloc.kept, after.reserved);
    weir__raise_to(&v->goal.floor, weir__size_smaller(after.reserved, p->target));
    weir__process_lock_give(&p->lock);
    if (lacks || !weir__is_failure(status))
        return status;
    weir__goal_log_preallocation(v, p->target, after.reserved, apart_of(v));
    return after.reserved == 0 ? status : WEIR_OK; /* partial success is success */
}

/* ---- grow-ahead: what is idle ------------------------------------------------------------------ */

/* The last piece grows by at most this part of the largest request. */
enum { REST_PART = 4 };

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
    atomic_store(&a->useless, weir__size_smaller(seen, idle));
    return 1;
}

/* Returns the bytes that the last piece lacks to hold the largest request so far, or 0 if that is much, or more than
 * may be idle. */
static uint64_t rest_of_largest(struct weir_reserve *v, uint64_t idle) {
    struct weir_ahead *a = &v->goal.ahead;
    uint64_t wanted = atomic_load_explicit(&a->largest, memory_order_relaxed), lacks;
    struct weir_survey survey = {.what = WEIR_SURVEY_PIECES};

    v->engine->ops->survey(v->engine, &survey);
    lacks = wanted - survey.piece.last;
    return survey.piece.largest >= wanted || lacks > wanted / REST_PART ||
                   idle + lacks > a->most_idle
               ? 0
               : lacks;
}

/* Returns the idle bytes that can serve requests, and the reserved memory in *reserved. */
static uint64_t read_idle(struct weir_reserve *v, uint64_t *reserved) {
    weir_statistics figures = {.size = sizeof figures};

    v->engine->ops->figures(v->engine, &figures);
    *reserved = figures.reserved;
    return usable(&v->goal.ahead, weir__size_less(figures.reserved, figures.in_use));
}

/* ---- grow-ahead: a turn ------------------------------------------------------------------------ */

#define PAUSE_NS UINT64_C(1000000)
#define FIRST_BACK_OFF_NS UINT64_C(10000000)
#define LONGEST_BACK_OFF_NS UINT64_C(2560000000)
/* The pause after a turn until a request wakes the thread. */
#define REST UINT64_C(0)
enum {
    HURRY = 4,     /* below `low' pauses are shorter by this factor */
    LEFT_PART = 64 /* grow-ahead leaves this part of the device to requests */
};

/* Ends grow-ahead, since no step can succeed. */
static uint64_t give_up(struct weir_ahead *a) {
    a->low = a->high = 0;
    atomic_store(&a->mark, 0);
    return REST;
}

/* Returns the pause after a step that failed.  Forgets the largest request if the step was for the last piece. */
static uint64_t back_off(struct weir_reserve *v) {
    struct weir_ahead *a = &v->goal.ahead;
    uint64_t pause = a->back_off_ns;

    if (!a->raising) {
        atomic_store_explicit(&a->largest, 0, memory_order_relaxed);
        atomic_store(&a->mark, a->low);
        return REST;
    }
    atomic_fetch_add_explicit(&v->events.counters->ahead_failures, 1, memory_order_relaxed);
    a->back_off_ns = weir__size_smaller(pause * 2, LONGEST_BACK_OFF_NS);
    return pause;
}

/* Returns the bytes that a step should add, or 0 if the device has none to spare. */
static uint64_t step_of(const struct weir_reserve *v, uint64_t reserved, uint64_t lacks) {
    uint64_t room = weir__size_less(v->limit.bytes, reserved), step = v->engine->step_bytes;
    uint64_t device;

    if (lacks < step)
        step = (lacks + PAGE - 1) / PAGE * PAGE;
    if (room < step)
        step = weir__size_round_down((size_t)room, PAGE);
    device = weir__device_free(v->device);
    if (device != UINT64_MAX && device < step + v->device->total / LEFT_PART)
        return 0;
    return step;
}

/* Makes one step, and lowers *lacks by the step. */
static weir_status grow(struct weir_reserve *v, uint64_t reserved, uint64_t *lacks) {
    uint64_t step = step_of(v, reserved, *lacks), target = reserved + step;

    if (step == 0)
        return WEIR_E_NO_MEMORY;
    *lacks = weir__size_less(*lacks, step);
    return v->engine->ops->grow(v->engine, target, target, WEIR_EVENT_GROW_AHEAD);
}

/* Returns the nanoseconds until the turn after a step, or REST.  `lacks' bytes are missing now. */
static uint64_t pause_after(struct weir_reserve *v, weir_status status, uint64_t lacks) {
    struct weir_ahead *a = &v->goal.ahead;
    double idle = (double)weir__size_less(a->high, lacks), low = (double)a->low;

    if (status == WEIR_E_NOT_SUPPORTED)
        weir__log(
            v->options->log, WEIR_LOG_WARNING,
            "grow-ahead has no effect: this driver does not report what its pool has reserved");
    if (status == WEIR_E_NOT_SUPPORTED || status == WEIR_E_DEVICE_LOST)
        return give_up(a);
    if (status != WEIR_OK)
        return back_off(v);
    a->back_off_ns = FIRST_BACK_OFF_NS;
    return a->raising && idle < low ? 1 + (uint64_t)((double)PAUSE_NS / HURRY * idle / low)
                                    : PAUSE_NS;
}

/* Makes one step if too little is idle.  Returns the nanoseconds until the next turn, or REST.  The caller holds
 * `turning'. */
static uint64_t take_turn(struct weir_reserve *v) {
    struct weir_ahead *a = &v->goal.ahead;
    uint64_t reserved, idle, lacks;
    weir_status status;

    atomic_store(&a->mark, 0);
    if (weir__slow_path_is(&v->device->slow_path, WEIR_SLOW_PATH_LOST))
        return give_up(a);
    atomic_store(&a->mark, a->low);
    idle = read_idle(v, &reserved);
    a->raising = idle < (a->raising ? a->high : a->low);
    lacks = a->raising ? a->high - idle : rest_of_largest(v, idle);
    if (lacks == 0)
        return REST;
    atomic_store(&a->mark, a->is_played ? a->high : 0);
    status = grow(v, reserved, &lacks);
    return pause_after(v, status, lacks);
}

/* ---- grow-ahead: the thread -------------------------------------------------------------------- */

static pthread_mutex_t stepping = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int exiting; /* set at exit: no new turn begins */

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

static void *run(void *reserve) {
    struct weir_reserve *v = reserve;
    struct weir_ahead *a = &v->goal.ahead;
    uint64_t pause;

    weir__thread_begin();
    pthread_mutex_lock(&a->lock);
    while (!a->stopped) {
        a->told = 0;
        pthread_mutex_unlock(&a->lock);
        pthread_mutex_lock(&a->turning);
        pthread_mutex_lock(&stepping);
        pause = atomic_load(&exiting) ? REST : take_turn(v);
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

/* ---- grow-ahead: a modelled device ------------------------------------------------------------- */

/* The time in which a thread wakes up and makes its first step. */
#define WAKE_NS UINT64_C(200000)

/* Plays all turns that are due, at no cost to the caller.  Returns their number.  If the thread rests, `begins' wakes
 * it. */
static int play(struct weir_reserve *v, int begins) {
    struct weir_ahead *a = &v->goal.ahead;
    const struct weir_driver *driver = v->device->driver;
    uint64_t now = driver->ticks(), pause;
    int turns = 0;

    if (pthread_mutex_trylock(&a->turning) != 0)
        return 0;
    if (a->due_ticks == 0 && begins)
        a->due_ticks = now + WAKE_NS;
    for (; a->due_ticks != 0 && a->due_ticks <= now; turns++) {
        driver->aside(1);
        pause = take_turn(v);
        a->due_ticks += driver->aside(0) + pause;
        if (pause == REST)
            a->due_ticks = 0;
    }
    pthread_mutex_unlock(&a->turning);
    return turns;
}

void weir__goal_catch_up(struct weir_reserve *v) {
    if (v->goal.ahead.is_played)
        (void)play(v, 0);
}

/* ---- grow-ahead: for others -------------------------------------------------------------------- */

void weir__goal_wake(struct weir_reserve *v, size_t bytes, int grew) {
    struct weir_ahead *a = &v->goal.ahead;
    uint64_t mark, reserved, in_use, idle, size = weir__size_smaller(bytes, a->most_idle);

    if (size > atomic_load_explicit(&a->largest, memory_order_relaxed))
        atomic_store_explicit(&a->largest, size, memory_order_relaxed);
    mark = atomic_load_explicit(&a->mark, memory_order_relaxed);
    if (mark == 0 && !grew)
        return;
    reserved = atomic_load_explicit(&v->engine->seen.reserved, memory_order_relaxed);
    in_use = atomic_load_explicit(&v->engine->seen.in_use, memory_order_relaxed);
    idle = weir__size_less(reserved, in_use);
    if (grew && !(v->engine->traits & WEIR_ENGINE_MOVES) && learn_useless(a, bytes, idle) &&
        !a->is_played)
        wake(a);
    atomic_store_explicit(&a->seen, idle, memory_order_relaxed);
    idle = usable(a, idle);
    if (mark == 0 || (idle >= mark && rest_of_largest(v, idle) == 0))
        return;
    if (a->is_played)
        (void)play(v, 1);
    else
        wake(a);
}

void weir__goal_forget(struct weir_ahead *a) {
    atomic_store_explicit(&a->useless, 0, memory_order_relaxed);
    atomic_store_explicit(&a->seen, 0, memory_order_relaxed);
    atomic_store_explicit(&a->largest, 0, memory_order_relaxed);
}

void weir__goal_hold(struct weir_reserve *v) {
    if (v->goal.ahead.is_on)
        pthread_mutex_lock(&v->goal.ahead.turning);
}

void weir__goal_go_on(struct weir_reserve *v) {
    if (v->goal.ahead.is_on)
        pthread_mutex_unlock(&v->goal.ahead.turning);
}

static void begin_ahead(struct weir_ahead *a, uint64_t low, uint64_t high, int is_played) {
    pthread_condattr_t monotonic;

    a->low = low;
    a->high = a->most_idle = high;
    a->back_off_ns = FIRST_BACK_OFF_NS;
    a->is_played = is_played;
    atomic_init(&a->mark, low);
    pthread_mutex_init(&a->turning, NULL);
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->woken, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void end_ahead(struct weir_ahead *a) {
    a->is_on = a->is_played = 0;
    pthread_cond_destroy(&a->woken);
    pthread_mutex_destroy(&a->lock);
    pthread_mutex_destroy(&a->turning);
}

weir_status weir__goal_start(struct weir_reserve *v, uint64_t low, uint64_t high) {
    struct weir_ahead *a = &v->goal.ahead;
    uint64_t reserved, idle, lacks;
    weir_status status = WEIR_OK;

    begin_ahead(a, low, high, v->device->driver->aside != NULL);
    while (status == WEIR_OK && (idle = read_idle(v, &reserved)) < low) {
        a->raising = 1;
        lacks = low - idle;
        status = grow(v, reserved, &lacks);
    }
    a->is_on = 1;
    if (a->is_played) {
        a->due_ticks = v->device->driver->ticks() + PAUSE_NS;
        return WEIR_OK;
    }
    pthread_once(&once, prepare_exit);
    if (weir__thread_start(&a->thread, run, v) == 0)
        return WEIR_OK;
    end_ahead(a);
    return weir__without_driver(WEIR_E_HOST_MEMORY);
}

void weir__goal_close(struct weir_reserve *v) {
    struct weir_ahead *a = &v->goal.ahead;

    weir__process_lock_give(&v->goal.preallocation.lock);
    if (!a->is_on)
        return;
    if (!a->is_played) {
        pthread_mutex_lock(&a->lock);
        a->stopped = 1;
        pthread_cond_signal(&a->woken);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    end_ahead(a);
}
