/* SPDX-License-Identifier: MIT */
/* prealloc.c: preallocation: how much, by when, and who is next.
 *
 * Processes that start at once and each want nine tenths of what is free would fail each other: all see
 * the same free memory.  So those of one user go one after the other for each device, by a lock (turn_lock.h)
 * under which shares of what is free are taken again.  It is no more than manners: where it is not
 * available, or another holds it for too long, preallocation goes on without, says so in the log, and takes
 * what it gets.
 *
 * What it gets is what the reserved memory rose by, never what was asked; the rest is in the log and the books.
 * It is a failure only where less is there than is needed, and then what it took goes back.
 *
 * A deadline is kept by chunks: what is under way is finished.  Time is the device's, but for waits for
 * other processes.
 *
 * Must not know: any single engine, the caller for memory.
 */
#include "reserve/prealloc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"
#include "config/amount.h"
#include "config/settings.h"
#include "ipc/group_process.h"
#include "reserve/decay.h"

#define RECLAIM_PAUSE_NS UINT64_C(10000000)
/* For the lock, without a deadline. */
#define LONGEST_WAIT_NS UINT64_C(10000000000)
/* Chunks of a deadline's: few, since each must first fill what is idle, and of a millisecond or some. */
#define CHUNK ((uint64_t)1 << 30)
enum { CHUNKS = 32 };
/* Of memory by handles, and of cuMemAlloc's. */
#define PAGE ((uint64_t)2 << 20)
enum { CAUSE_BYTES = 80 };
/* How long others have to answer who wants its share, and how long nothing may come of that: a process that gives all
 * of an H200 takes 0.2 s for it. */
#define SHARE_NS UINT64_C(100000000)
#define STILL_NS UINT64_C(1000000000)
/* Of a deadline, what others have to give. */
enum { OTHERS_PART = 4 };

static uint64_t deadline_ns(const struct weir_preallocation *p) {
    uint32_t ms = p->v->options->prealloc_deadline_ms;

    return ms == UINT32_MAX ? UINT64_MAX : (uint64_t)ms * 1000000;
}

static uint64_t reserve_of(const struct weir_preallocation *p) {
    return weir__engine_reserve(p->v->engine);
}

/* ---- who is next ----------------------------------------------------------------------------- */

static void begin(struct weir_preallocation *p) {
    if (p->has_begun)
        return;
    p->has_begun = 1;
    p->reclaim = (struct weir_reclaim){0};
    p->begun_ticks = p->v->device->driver->ticks();
    p->begun_ns = weir__clock_ns();
}

/* Limits by what is free, and parts of it, taken now: others may have given meanwhile.  What is ours already is as good
 * as free. */
static void look_again(struct weir_preallocation *p) {
    const weir_amount *amount = &p->v->options->prealloc;
    struct weir_device_memory memory = {.total = p->v->device->total};
    uint64_t target;

    (void)weir__quota_refresh(p->v);
    if (amount->kind != WEIR_AMOUNT_OF_FREE && amount->kind != WEIR_AMOUNT_MAX)
        return;
    memory.free = weir__device_free(p->v->device);
    if (memory.free == UINT64_MAX)
        return;
    memory.free += reserve_of(p);
    target = weir__budget_bytes(amount, &memory, 0);
    if (target > memory.free)
        target = memory.free;
    p->target = weir__size_smaller(target, p->v->quota.limit);
}

/* As much of a reserve as leaves what a share does not take. */
static uint64_t beside_others(const struct weir_preallocation *p, uint64_t reserve) {
    uint64_t device_free;

    if (p->v->options->prealloc.kind != WEIR_AMOUNT_SHARE)
        return reserve;
    device_free = weir__device_free(p->v->device);
    if (device_free == UINT64_MAX)
        return reserve;
    device_free = reserve_of(p) + weir__size_less(device_free, p->v->quota.apart);
    return weir__size_smaller(reserve, weir__size_larger(device_free, p->least));
}

/* 1: it is our turn, with the lock or without; 0: not yet. */
static int is_our_turn(struct weir_preallocation *p) {
    uint64_t deadline = deadline_ns(p), waited = weir__clock_ns() - p->begun_ns;
    int log = p->v->options->log, got;
    char name[WEIR_UUID_BYTES] = "";

    /* One file for each device, whatever number each process knows it by.  Is it open, how often one waits is nothing
     * to the driver. */
    if (!weir__kept_is(&p->lock.file))
        (void)weir__driver_uuid(p->v->device->driver, p->v->device->ordinal, name);
    got = weir__process_lock_try(&p->lock, name);
    if (got == 0 && waited < (deadline == UINT64_MAX ? LONGEST_WAIT_NS : deadline / 2))
        return 0;
    if (got < 0)
        weir__log(log, WEIR_LOG_WARNING,
                  "preallocation: no lock against other processes (%s): it goes on without",
                  strerror(errno));
    if (got == 0)
        weir__log(log, WEIR_LOG_WARNING,
                  "preallocation: another process has not ended its own: it goes on beside it");
    atomic_fetch_add(&p->v->events.counters->prealloc.waited_ns, weir__clock_ns() - p->begun_ns);
    p->has_turn = 1;
    look_again(p);
    return 1;
}

int weir__reclaim_look(const struct weir_reserve *v, struct weir_reclaim *s, uint64_t enough,
                       uint64_t wanted) {
    uint64_t now = weir__clock_ns(), device_free = weir__device_free(v->device);

    if (device_free >= enough + v->quota.apart) { /* as is what the driver does not tell */
        *s = (struct weir_reclaim){0};
        return 1;
    }
    if (s->is_answered) { /* that is all for now */
        s->is_answered = 0;
        return 1;
    }
    if (s->began_ns == 0)
        s->began_ns = now;
    if (s->moved_ns == 0 || device_free > s->most_free) {
        s->moved_ns = now;
        s->most_free = device_free;
    }
    if (now - s->moved_ns > STILL_NS)
        return 1;
    s->lacks = wanted + v->quota.apart - device_free;
    return 0;
}

void weir__reclaim_ask(const struct weir_reserve *v, struct weir_reclaim *s) {
    struct weir_answers answers = weir__group_ask_whom_it_concerns(
        v->events.peers, s->lacks, s->began_ns, weir__clock_ns() + SHARE_NS);

    s->lacks = 0;
    s->is_answered = !answers.awaited;
}

/* 0: others may still give what there is no room for.  They have a quarter of the deadline: what is free is to be taken
 * before it has passed. */
static int have_given(struct weir_preallocation *p, uint64_t enough, uint64_t wanted) {
    const struct weir_reclaim *s = &p->reclaim;

    return (s->began_ns > 0 && weir__clock_ns() - s->began_ns >= deadline_ns(p) / OTHERS_PART) ||
           p->look(p->v, &p->reclaim, enough, wanted);
}

int weir__preallocation_ask(struct weir_preallocation *p) {
    if (p->reclaim.lacks == 0)
        return 0;
    p->ask(p->v, &p->reclaim);
    return p->reclaim.is_answered;
}

static void wait_for_others(struct weir_preallocation *p, uint64_t goal) {
    uint64_t lacks = weir__size_less(goal, reserve_of(p)), began = weir__clock_ns();

    if (!p->look)
        return;
    while (!have_given(p, lacks, lacks))
        if (!weir__preallocation_ask(p))
            nanosleep(&(struct timespec){0, RECLAIM_PAUSE_NS}, NULL);
    atomic_fetch_add(&p->v->events.counters->prealloc.waited_ns, weir__clock_ns() - began);
    (void)weir__quota_refresh(p->v); /* who has a share has a limit that moves */
}

static void wait_for_turn(struct weir_preallocation *p) {
    struct timespec pause = {0, 1000000};

    while (!is_our_turn(p)) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 16000000)
            pause.tv_nsec *= 2;
    }
}

/* Of the device's time, and of what was waited for others. */
static int is_late(const struct weir_preallocation *p) {
    uint64_t deadline = deadline_ns(p);
    uint64_t waited = p->v->device->driver->charge
                          ? atomic_load(&p->v->events.counters->prealloc.waited_ns)
                          : 0; /* the device's clock is the host's */

    return deadline != UINT64_MAX &&
           weir__device_since(p->v->device, p->begun_ticks) + waited >= deadline;
}

void weir__preallocation_close(struct weir_preallocation *p) {
    weir__process_lock_give(&p->lock);
    p->has_begun = p->has_turn = 0;
}

/* ---- what came of it ------------------------------------------------------------------------- */

static void note(struct weir_preallocation *p, uint64_t reserve, int is_over) {
    struct weir_counters *counters = p->v->events.counters;

    atomic_store(&counters->prealloc.asked, p->target);
    atomic_store(&counters->prealloc.kept, reserve);
    weir__decay_raise_floor(&p->v->decay, weir__size_smaller(reserve, p->target));
    atomic_store(&counters->prealloc.pending, is_over ? 0 : weir__size_less(p->target, reserve));
}

/* What the reserved memory grows by at least. */
static uint64_t unit_of(const struct weir_preallocation *p) {
    size_t unit = p->v->engine->least_limit;

    return unit ? unit : PAGE;
}

/* Why there is no more than that, as a person reads it.  `apart': what was to stay of the device, of a share. */
static void show_cause(const struct weir_preallocation *p, uint64_t reserve, uint64_t apart,
                       int late, char *text, size_t text_bytes) {
    const struct weir_quota *q = &p->v->quota;
    int is_share = p->v->options->limit.kind == WEIR_AMOUNT_SHARE && !atomic_load(&q->no_share);
    uint64_t limit = q->limit, device_free;

    snprintf(text, text_bytes, "%s", late ? "the deadline has passed" : "the device has no more");
    if (late)
        return;
    if (limit != UINT64_MAX && weir__size_less(limit, reserve) < unit_of(p)) {
        int is_left = limit < weir__quota_own(q);
        snprintf(text, text_bytes, "%s %s",
                 is_left    ? "keep-free keeps for others"
                 : is_share ? "the limit, a share, is"
                            : "the limit is",
                 WEIR_SHOWN(is_left ? q->leave : limit));
        return;
    }
    device_free = weir__device_free(p->v->device);
    if (device_free == UINT64_MAX || device_free < unit_of(p))
        return;
    if (weir__size_less(device_free, apart) < unit_of(p)) {
        snprintf(text, text_bytes, "a share leaves %s of the device", WEIR_SHOWN(apart));
        return;
    }
    /* Regions are had whole or not at all. */
    snprintf(text, text_bytes, "the driver refused more, with %s free", WEIR_SHOWN(device_free));
}

static uint64_t apart_of(const struct weir_preallocation *p) {
    return p->v->options->prealloc.kind == WEIR_AMOUNT_SHARE ? p->v->quota.apart : 0;
}

/* Less is there than was asked. */
static void tell(const struct weir_preallocation *p, uint64_t target, uint64_t reserve,
                 uint64_t apart, int late) {
    char cause[CAUSE_BYTES];
    show_cause(p, reserve, apart, late, cause, sizeof cause);
    weir__log(p->v->options->log, WEIR_LOG_WARNING,
              "preallocation: requested %s, got and kept %s; %s", WEIR_SHOWN(target),
              WEIR_SHOWN(reserve), cause);
}

void weir__preallocation_tell(const struct weir_preallocation *p, uint64_t asked,
                              uint64_t reserve) {
    tell(p, asked, reserve, 0, 0);
}

static int is_too_little(weir_status status) {
    return status == WEIR_OK || weir__is_failure(status);
}

/* Less is there than must be: nothing of it stays.  `figures` are the engine's, before and after. */
static weir_status too_little(struct weir_preallocation *p, weir_status status, uint64_t keep,
                              int late, weir_statistics *figures, char *text, size_t text_bytes) {
    char cause[CAUSE_BYTES];
    size_t released;

    if (is_too_little(status)) {
        if (status == WEIR_OK && !late) /* what is free now, of which prealloc is a part */
            snprintf(cause, sizeof cause, "no more was asked");
        else
            show_cause(p, figures->reserve, apart_of(p), late, cause, sizeof cause);
        snprintf(text, text_bytes,
                 "preallocation: requested %s, at least %s, got only %s; %s: set prealloc-min to "
                 "that or less",
                 WEIR_SHOWN(p->target), WEIR_SHOWN(p->least), WEIR_SHOWN(figures->reserve), cause);
    }
    if (status == WEIR_OK)
        status = weir__without_driver(WEIR_E_NO_MEMORY);
    (void)weir__engine_trim(p->v->engine, (size_t)keep, WEIR_EVENT_TRIM, &released);
    p->v->engine->ops->figures(p->v->engine, figures);
    return status;
}

/* ---- in the foreground ----------------------------------------------------------------------- */

static weir_status grow(struct weir_preallocation *p, uint64_t to) {
    struct weir_engine *e = p->v->engine;

    return e->ops->grow(e, to, weir__size_larger(to, p->target), WEIR_EVENT_PREALLOC);
}

/* In one step if there is all the time in the world. */
static weir_status grow_to(struct weir_preallocation *p, uint64_t goal, int *late) {
    uint64_t chunk = goal / CHUNKS > CHUNK ? goal / CHUNKS : CHUNK, reserve, next;
    weir_status status = WEIR_OK;

    if (deadline_ns(p) == UINT64_MAX)
        return grow(p, goal);
    for (reserve = reserve_of(p); status == WEIR_OK && reserve < goal; reserve = reserve_of(p)) {
        *late = is_late(p);
        if (*late)
            break;
        next = goal - reserve < chunk ? goal : reserve + chunk;
        status = grow(p, next);
    }
    return status;
}

weir_status weir__preallocation_run(struct weir_preallocation *p, int all, char *text,
                                    size_t text_bytes) {
    weir_statistics before = {.size = sizeof before}, after = {.size = sizeof after};
    struct weir_counters *counters = p->v->events.counters;
    int late = 0, lacks;
    uint64_t started, goal;
    weir_status status;

    text[0] = '\0';
    begin(p);
    wait_for_turn(p);
    wait_for_others(p, all ? p->target : p->least);
    if (all)
        p->target = beside_others(p, p->target);
    goal = all ? p->target : p->least;
    started = p->v->device->driver->ticks();
    weir__counters_read(counters, &before);
    p->v->engine->ops->figures(p->v->engine, &before);
    status = grow_to(p, goal, &late);
    weir__counters_read(counters, &after);
    p->v->engine->ops->figures(p->v->engine, &after);
    atomic_fetch_add(&counters->prealloc.got, after.growth_bytes - before.growth_bytes);
    lacks = after.reserve < p->least;
    if (lacks)
        status = too_little(p, status, before.reserve, late, &after, text, text_bytes);
    else
        p->prepare(p->context);
    atomic_fetch_add(&counters->prealloc.ns, weir__device_since(p->v->device, started));
    note(p, after.reserve, all);
    weir__preallocation_close(p);
    if (lacks || !is_too_little(status))
        return status;
    if (status == WEIR_OK && !late)
        return WEIR_OK;
    tell(p, p->target, after.reserve, apart_of(p), late);
    if (after.reserve == 0 && !late)
        return status;
    return WEIR_OK; /* partial success is success */
}

/* ---- in the background ----------------------------------------------------------------------- */

static uint64_t over(struct weir_preallocation *p, uint64_t reserve, int late) {
    p->prepare(p->context);
    note(p, reserve, 1);
    if (reserve < p->target)
        tell(p, p->target, reserve, apart_of(p), late);
    weir__preallocation_close(p);
    return 0;
}

uint64_t weir__preallocation_lacks(struct weir_preallocation *p, uint64_t step, uint64_t *reserve) {
    uint64_t lacks;
    int waits;

    begin(p);
    waits = !p->has_turn && !is_our_turn(p);
    if (!waits)
        p->target = weir__size_smaller(
            p->target, weir__size_larger(atomic_load(&p->v->quota.share), p->least));
    *reserve = reserve_of(p);
    lacks = weir__size_less(p->target, *reserve);
    if (!waits && (lacks == 0 || is_late(p)))
        return over(p, *reserve, lacks > 0);
    if (waits || (p->look && !have_given(p, weir__size_smaller(lacks, step), lacks))) {
        note(p, *reserve, 0);
        return 0;
    }
    (void)weir__quota_refresh(p->v);
    lacks = weir__size_less(beside_others(p, p->target), *reserve);
    return lacks > 0 ? lacks : over(p, *reserve, 0);
}

void weir__preallocation_note(struct weir_preallocation *p, weir_status status) {
    uint64_t reserve = reserve_of(p);

    if (status != WEIR_OK || reserve >= p->target)
        (void)over(p, reserve, 0);
    else
        note(p, reserve, 0);
}

/* ---- life ------------------------------------------------------------------------------------ */

void weir__preallocation_open(struct weir_preallocation *p, struct weir_reserve *v, uint64_t target,
                              uint64_t least, weir__prepare_fn *prepare, void *context) {
    *p = (struct weir_preallocation){.v = v,
                                     .prepare = prepare,
                                     .context = context,
                                     .target = target,
                                     .least = least,
                                     .lock = WEIR_PROCESS_LOCK_NONE};
    if (v->events.peers && v->options->prealloc.kind == WEIR_AMOUNT_SHARE) {
        p->look = weir__reclaim_look;
        p->ask = weir__reclaim_ask;
    }
}
