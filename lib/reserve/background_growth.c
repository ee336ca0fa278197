/* SPDX-License-Identifier: MIT */
/* background_growth.c: growth ahead of demand, in the background.
 *
 * What tells whether the next request meets an empty reserve is what the engine has in no live block (what
 * the caches of streams hold is live to the engine), less what has proved to be of no use: pieces that are
 * too small, or wait for other streams.  That shows when a request has to grow the reserved memory though more
 * was idle than it asked for: then all that was idle is `useless`, for as long as there is so much.  Not where memory
 * moves: there it was in the wrong places.
 *
 * Where the reserved memory grows at an end, that sum deceives, too: a request as large as the largest so far may find
 * no piece as large.  If the last piece has most of it, it gets the rest.  The caller waits as long for the rest as
 * for all; where more is missing it would cost more memory than it saves waits.
 *
 * Below `low` of what is left the thread is woken, and takes turns until it is `high`: a growth, a
 * pause, and so on.  A growth holds the driver's lock
 * for its whole length, and pace decides the tail of everybody's latencies (H200: 32 MiB back to back
 * take the pairs of another thread from 0.7 to 12 us, every millisecond they do not show).  So a step is
 * what the engine takes in about a tenth of a millisecond, and a pause ten times as long.  Below `low` the
 * pause of grow-ahead is a quarter of that, and shorter by as much as is missing: a request that finds nothing idle
 * makes the step itself, and waits for it.
 *
 * A request says that little is idle by exchanging `mark`, below which it would be told, for 0, and by a
 * signal; so it does that once, until the thread has armed the mark again.  The thread arms it before it
 * looks for the last time, so that nothing is missed between.  Who finds that something is useless has the
 * thread look in any case: what it knows is old by then.  (tests/spin/ahead.pml goes through this;
 * the rest of the last piece is not in it: a request as large comes again, and looks again.)
 *
 * Grow-ahead leaves the last part of the device to requests, which need it more.  A step for it that is refused, or left
 * out, is tried again after a pause that doubles; only a counter tells of it.
 *
 * On a modelled device time is virtual and one clock for all threads, and a real thread would make
 * figures depend on the scheduler.  There turns are played aside, by the first request of the engine
 * after the time has come that they are due, before it if it would grow the reserved memory; what they take is not charged to
 * it.  So a turn comes at the end of the pause before it rather than at once, the first after a rest when a thread
 * would have woken and made its step, and nobody waits for the driver beside it.
 *
 * At the end of the process the driver goes while the thread may be about to call it.  So `stepping` is
 * held during each turn, of any allocator, and no turn begins after the process has begun
 * to exit, which waits for one under way for a second: it may be in a call that never ends.  A child of fork has no
 * thread, and every public call there ends before it could miss it.
 *
 * Locks: `turning`, under it `stepping`, under that whatever a growth takes; `lock` is innermost.
 *
 * Must not know: any single engine, settings' names, the caller for memory.
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
enum { HURRY = 4 }; /* times as often below `low` */
/* Played: what a thread takes to wake up, and for its first step. */
#define WAKE_NS UINT64_C(200000)
#define FIRST_BACK_OFF_NS UINT64_C(10000000)
#define LONGEST_BACK_OFF_NS UINT64_C(2560000000)
/* What a turn answers when there is nothing to do until it is told. */
#define REST UINT64_C(0)
/* Steps are multiples of it: what the driver maps by. */
#define PAGE ((size_t)2 << 20)
/* Of the device, what is left to requests. */
enum { LEFT_PART = 64 };
/* Of the largest request, the most that a piece is given to hold it. */
enum { REST_PART = 4 };

struct weir_ahead {
    struct weir_reserve *v;
    struct weir_engine *engine;
    int is_played; /* there is no thread */

    _Atomic uint64_t mark;    /* with less than that idle, a request says so; 0: it need not */
    _Atomic uint64_t useless; /* bytes; see above */
    _Atomic uint64_t seen;    /* bytes that were idle after the last request that looked */
    _Atomic uint64_t largest; /* bytes of a request so far, no more than */
    uint64_t most_idle;       /* this, which is `high`; fixed */

    pthread_mutex_t turning; /* held during a turn; guards what follows */
    uint64_t low, high;      /* bytes idle; 0: no step can be made */
    int raising;             /* little was idle, and not yet enough is */
    uint64_t back_off_ns;    /* after the next failure */
    uint64_t due_ticks;      /* played: when the next turn comes; 0: when little is idle */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t woken; /* one of these was set */
    int told, stopped;

    pthread_t thread;
};

static pthread_mutex_t stepping = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int exiting; /* a turn that has begun goes on */

/* ---- what is idle ----------------------------------------------------------------------------- */

/* What is idle and of use, as far as is known. */
static uint64_t usable(struct weir_ahead *a, uint64_t idle) {
    uint64_t useless = atomic_load(&a->useless), known = useless;

    if (useless > idle)
        (void)atomic_compare_exchange_strong(&a->useless, &known, idle);
    return weir__size_less(idle, useless);
}

/* The reserved memory has grown for a request of so many bytes, and `idle` are now.  1: less is of use than was
 * thought. */
static int learn(struct weir_ahead *a, size_t bytes, uint64_t idle) {
    uint64_t seen = atomic_load_explicit(&a->seen, memory_order_relaxed);

    if (usable(a, seen) < bytes)
        return 0;
    atomic_store(&a->useless, seen < idle ? seen : idle);
    return 1;
}

/* What the last piece lacks for a request as large as the largest so far, if that is not much, nor more than may
 * be idle: what gives memory back leaves that. */
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

static uint64_t refused(struct weir_ahead *a) {
    uint64_t pause = a->back_off_ns;

    if (!a->raising) { /* a rest, which nobody lacks before the next request as large */
        atomic_store_explicit(&a->largest, 0, memory_order_relaxed);
        atomic_store(&a->mark, a->low);
        return REST;
    }
    atomic_fetch_add_explicit(&a->v->events.counters->ahead_failures, 1, memory_order_relaxed);
    a->back_off_ns = pause * 2 < LONGEST_BACK_OFF_NS ? pause * 2 : LONGEST_BACK_OFF_NS;
    return pause;
}

/* No step can be made, now or ever. */
static uint64_t give_up(struct weir_ahead *a) {
    a->low = a->high = 0;
    atomic_store(&a->mark, 0);
    return REST;
}

/* What is idle of the reserved memory, and of use. */
static uint64_t idle_of(struct weir_ahead *a, uint64_t *reserve) {
    weir_statistics figures = {.size = sizeof figures};

    a->engine->ops->figures(a->engine, &figures);
    *reserve = figures.reserved;
    return usable(a, weir__size_less(figures.reserved, figures.in_use));
}

/* Returns the bytes that a step should add, or 0 if the device has none to spare. */
static uint64_t step_of(const struct weir_ahead *a, uint64_t reserve, uint64_t lacks) {
    uint64_t room = weir__size_less(a->v->quota.limit, reserve), step = a->engine->step_bytes;
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

/* A step towards the goal, which lacks less by that. */
static weir_status grow(struct weir_ahead *a, uint64_t reserve, uint64_t *lacks) {
    uint64_t step = step_of(a, reserve, *lacks), target = reserve + step;

    if (step == 0)
        return WEIR_E_NO_MEMORY;
    *lacks = weir__size_less(*lacks, step);
    return a->engine->ops->grow(a->engine, target, target, WEIR_EVENT_GROW_AHEAD);
}

/* What came of a step for grow-ahead, which lacks so much now.  Nanoseconds until the next turn, or REST. */
static uint64_t came_of(struct weir_ahead *a, weir_status status, uint64_t lacks) {
    double idle = (double)weir__size_less(a->high, lacks), low = (double)a->low;

    if (status == WEIR_E_NOT_SUPPORTED)
        weir__log(
            a->v->options->log, WEIR_LOG_WARNING,
            "grow-ahead has no effect: this driver does not report what its pool has reserved");
    if (status == WEIR_E_NOT_SUPPORTED || status == WEIR_E_DEVICE_LOST)
        return give_up(a);
    if (status != WEIR_OK)
        return refused(a);
    a->back_off_ns = FIRST_BACK_OFF_NS;
    return a->raising && idle < low ? 1 + (uint64_t)((double)PAUSE_NS / HURRY * idle / low)
                                    : PAUSE_NS;
}

/* Makes one step if too little is idle.  Returns the nanoseconds until the next turn, or REST.  The caller holds
 * `turning'. */
static uint64_t take_turn(struct weir_ahead *a) {
    uint64_t reserve, idle, lacks;
    weir_status status;

    atomic_store(&a->mark, 0);
    if (weir__slow_path_is(&a->v->device->slow_path, WEIR_SLOW_PATH_LOST))
        return give_up(a);
    atomic_store(&a->mark, a->low);
    idle = idle_of(a, &reserve);
    a->raising = idle < (a->raising ? a->high : a->low);
    lacks = a->raising ? a->high - idle : rest_of_largest(a, idle);
    if (lacks == 0)
        return REST;
    atomic_store(&a->mark, a->is_played ? a->high : 0);
    status = grow(a, reserve, &lacks);
    return came_of(a, status, lacks);
}

/* Before there is a thread, and before anybody waits for a request: until `low` is idle.  The thread goes on
 * from there. */
static void begin(struct weir_ahead *a) {
    uint64_t reserve, idle, lacks;
    weir_status status = WEIR_OK;

    while (status == WEIR_OK && (idle = idle_of(a, &reserve)) < a->low) {
        a->raising = 1;
        lacks = a->low - idle;
        status = grow(a, reserve, &lacks);
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

/* Until the time is over or, with REST, until it is told.  The caller holds `lock`. */
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

static int start(struct weir_ahead *a) {
    pthread_once(&once, prepare_exit);
    return weir__thread_start(&a->thread, run, a) == 0;
}

static void tell(struct weir_ahead *a) {
    pthread_mutex_lock(&a->lock);
    a->told = 1;
    pthread_cond_signal(&a->woken);
    pthread_mutex_unlock(&a->lock);
}

static void wake(struct weir_ahead *a) {
    if (atomic_exchange(&a->mark, 0) != 0) /* else somebody has */
        tell(a);
}

/* ---- a modelled device ----------------------------------------------------------------------- */

/* All turns that have become due: how many.  They are nothing that the caller did, or waited for. */
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

static void note_size(struct weir_ahead *a, uint64_t bytes) {
    bytes = weir__size_smaller(bytes, a->most_idle);
    if (bytes >
        atomic_load_explicit(&a->largest, memory_order_relaxed)) /* of two at once either counts */
        atomic_store_explicit(&a->largest, bytes, memory_order_relaxed);
}

void weir__ahead_look(struct weir_ahead *a, size_t bytes, int grew) {
    uint64_t mark, reserve, in_use, idle;

    note_size(a, bytes);
    mark = atomic_load_explicit(&a->mark, memory_order_relaxed);
    if (mark == 0 && !grew)
        return;
    reserve = atomic_load_explicit(&a->engine->seen.reserved, memory_order_relaxed);
    in_use = atomic_load_explicit(&a->engine->seen.in_use, memory_order_relaxed);
    idle = weir__size_less(reserve, in_use);
    if (grew && !(a->engine->traits & WEIR_ENGINE_MOVES) && learn(a, bytes, idle) && !a->is_played)
        wake(a); /* others may have taken some since */
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
    if (!a->is_played && !start(a)) {
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
