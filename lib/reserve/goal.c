/* SPDX-License-Identifier: MIT */
/* goal.c: how much memory should be reserved, and how reserved memory is lowered and raised (goal.h).
 *
 * Background growth (grow-ahead) holds the driver's lock, so a step takes only 0.1 ms, and the pause after a step 1 ms.
 *
 * A request that leaves fewer than `mark' bytes idle sets `mark' to 0 and wakes the thread of background growth, so
 * that only one request wakes the thread.  The thread sets `mark' before it reads the idle bytes for the last time, so
 * that it misses no request (tests/spin/ahead.pml).
 *
 * On the device model (a simulated GPU), time is virtual, and a real thread would make figures depend on the scheduler.
 * So requests make the thread's steps there, in no virtual time.
 *
 * Locks, outermost first: `step_lock', `process_step_lock', the locks of a growth, `lock'.
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
#include "ipc/process_lock.h"
#include "reserve/reserve.h"

/* ---- lowering ---------------------------------------------------------------------------------- */

/* At the end of a half-life, decay releases half of the unneeded memory, or all if it is at most LEAST bytes. */
#define LEAST ((uint64_t)64 << 20)
/* One call halves the unneeded memory at most this many times, since 64 halvings leave nothing to release. */
enum { MOST_WINDOWS = 64 };

/* The pause between two checks for memory to release doubles from FIRST_PAUSE_NS to LONGEST_PAUSE_NS. */
#define FIRST_PAUSE_NS UINT64_C(1000000)
#define LONGEST_PAUSE_NS UINT64_C(1024000000)
/* With a release threshold, weir keeps idle memory after growth for 16 times the duration of the growth. */
#define GROWTH_PART 16

void weir__goal_open(struct weir_goal *g, uint64_t half_life_ns, uint64_t floor, int in_requests,
                     uint64_t idle) {
    g->half_life_ns = half_life_ns;
    g->in_requests = in_requests;
    g->idle = idle;
    atomic_store(&g->floor, floor);
    atomic_store(&g->decay.ends, half_life_ns);
    g->decay.target = UINT64_MAX;
}

uint64_t weir__goal_target(const struct weir_goal *g, uint64_t reserved, uint64_t in_use,
                           uint64_t wanted) {
    uint64_t target = weir__size_larger(weir__size_subtract(reserved, wanted), in_use + g->idle);

    return weir__size_larger(target, atomic_load_explicit(&g->floor, memory_order_relaxed));
}

weir_status weir__goal_lower(struct weir_reserve *v, size_t keep, int cause, size_t *released) {
    weir_status status, flushed = WEIR_OK;

    if (v->flush && weir__engine_reserve(v->engine) > keep)
        flushed = v->flush(v->flush_context);
    status = weir__engine_trim(v->engine, keep, cause, released);
    return status == WEIR_OK ? flushed : status;
}

/* ---- decay ------------------------------------------------------------------------------------- */

int weir__goal_record_use(struct weir_goal *g, uint64_t now, uint64_t in_use, uint64_t *pause) {
    uint64_t last = atomic_exchange_explicit(&g->decay.last, now, memory_order_relaxed);

    /* *pause must not be 0, since weir__goal_end_window treats a pause of 0 as a call of weir_decay. */
    *pause = now > last ? now - last : 1;
    weir__raise_to(&g->decay.peak, in_use);
    return now >= atomic_load_explicit(&g->decay.ends, memory_order_relaxed);
}

/* Updates reserved_per_used, which only growth can raise, since growth shows that the idle memory did not suffice. */
static void learn_need(struct weir_goal *g, uint64_t reserved, uint64_t peak, int grew) {
    uint64_t needed = reserved - weir__size_smaller(weir__size_subtract(reserved, peak), g->idle);
    double *ratio = &g->decay.reserved_per_used,
           now = peak > 0 ? (double)needed / (double)peak : *ratio;

    if (grew || *ratio == 0 || now < *ratio)
        *ratio = now;
}

/* Lowers decay.target after a half-life in which at most `peak' bytes were in use.  The caller holds decay.lock. */
static void lower_decay_target(struct weir_goal *g, uint64_t reserved, uint64_t peak) {
    double needed =
        (double)peak * (g->decay.reserved_per_used > 0 ? g->decay.reserved_per_used : 1);
    uint64_t target = weir__size_smaller(g->decay.target, reserved), need = reserved, more;

    if (needed < (double)reserved)
        need = weir__size_smaller(weir__goal_target(g, 0, (uint64_t)(needed + 0.5), 0), reserved);
    more = weir__size_subtract(target, need);
    g->decay.target = more > LEAST ? target - more / 2 : need;
}

uint64_t weir__goal_end_window(struct weir_goal *g, uint64_t now, uint64_t in_use,
                               uint64_t reserved, uint64_t pause) {
    struct weir_decay *d = &g->decay;
    uint64_t keep = reserved, ends, peak, windows;
    int grew;

    weir__lock_take(&d->lock);
    ends = atomic_load_explicit(&d->ends, memory_order_relaxed);
    if (now >= ends) {
        windows = pause > 0 ? 1 : 1 + (now - ends) / g->half_life_ns;
        peak = atomic_exchange_explicit(&d->peak, in_use, memory_order_relaxed);
        peak = weir__size_larger(peak, in_use);
        grew = atomic_exchange_explicit(&d->grew, 0, memory_order_relaxed);
        learn_need(g, reserved, peak, grew);
        if (grew || pause > g->half_life_ns)
            d->target = reserved;
        else
            lower_decay_target(g, reserved, peak);
        for (uint64_t i = 1; i < windows && i < MOST_WINDOWS; i++)
            lower_decay_target(g, reserved, in_use); /* a window without requests */
        keep = d->target;
        atomic_store_explicit(&d->ends, now + g->half_life_ns, memory_order_relaxed);
    }
    weir__lock_give(&d->lock);
    return keep;
}

/* ---- pressure and threshold -------------------------------------------------------------------- */

void weir__goal_signal(struct weir_goal *g, uint64_t bytes) {
    weir__raise_to(&g->pressure.wanted, bytes);
    atomic_store(&g->pressure.due, 0);
}

void weir__goal_lower_signal(struct weir_goal *g, uint64_t wanted, uint64_t rest) {
    (void)atomic_compare_exchange_strong_explicit(&g->pressure.wanted, &wanted, rest,
                                                  memory_order_relaxed, memory_order_relaxed);
}

static uint64_t growth_ns(const struct weir_reserve *v) {
    return atomic_load_explicit(&v->events.counters->stall_ns, memory_order_relaxed);
}

size_t weir__goal_release_surplus(struct weir_reserve *v) {
    struct weir_trim trim = {.mode = WEIR_TRIM_COMPLETED, .cause = WEIR_EVENT_DECAY};
    weir_statistics figures = {.size = sizeof figures};

    v->engine->ops->figures(v->engine, &figures);
    trim.keep = (size_t)weir__goal_target(&v->goal, figures.reserved, figures.in_use, UINT64_MAX);
    /* Above the limit, releases nothing, since weir could not reserve the memory again. */
    if (figures.reserved > v->limit.bytes)
        return 0;
    if (figures.reserved > trim.keep)
        (void)v->engine->ops->trim(v->engine, &trim);
    atomic_store_explicit(&v->goal.pressure.old_growth, growth_ns(v), memory_order_relaxed);
    return trim.released;
}

/* Returns the bytes that requests should release because of weir_low_memory, or 0. */
static uint64_t bytes_wanted(const struct weir_goal *g) {
    return g->in_requests ? atomic_load_explicit(&g->pressure.wanted, memory_order_acquire) : 0;
}

/* Returns 1 if weir_low_memory or the release threshold requires a release at the time `now', else 0. */
static int is_release_due(const struct weir_reserve *v, uint64_t now) {
    const struct weir_goal *g = &v->goal;
    uint64_t reserved = atomic_load_explicit(&v->engine->seen.reserved, memory_order_relaxed);
    uint64_t in_use = atomic_load_explicit(&v->engine->seen.in_use, memory_order_relaxed);

    if (bytes_wanted(g) == 0 &&
        (!g->has_threshold || reserved <= weir__goal_target(g, reserved, in_use, UINT64_MAX)))
        return 0;
    return now >= atomic_load_explicit(&g->pressure.due, memory_order_acquire);
}

/* Schedules the next check for memory to release.  The last one was due at `due', ran at `now' and released `got' of
 * `wanted' bytes.  With a finite release threshold, one check releases all idle memory, so nothing remains. */
static void schedule_check(struct weir_reserve *v, uint64_t now, uint64_t due, uint64_t wanted,
                           uint64_t got) {
    struct weir_goal *g = &v->goal;
    struct weir_pressure *p = &g->pressure;
    uint64_t rest = wanted == UINT64_MAX ? wanted : weir__size_subtract(wanted, got);

    if (due == 0 || (g->has_threshold && atomic_load(&p->old_growth) != growth_ns(v)))
        p->pause = FIRST_PAUSE_NS;
    atomic_store_explicit(&p->old_growth, growth_ns(v), memory_order_relaxed);
    /* Does not change p->due if the program has called weir_low_memory meanwhile. */
    (void)atomic_compare_exchange_strong(&p->due, &due, now + p->pause);
    p->pause = g->has_threshold && got > 0 ? FIRST_PAUSE_NS : 2 * p->pause;
    if (g->has_threshold || p->pause > LONGEST_PAUSE_NS)
        rest = 0;
    weir__goal_lower_signal(g, wanted, rest);
    p->pause = weir__size_smaller(p->pause, LONGEST_PAUSE_NS);
}

/* Lowers reserved memory without a wait.  Not inlined, since clearing a struct weir_statistics is slow. */
static __attribute__((noinline)) void lower_now(struct weir_reserve *v,
                                                const struct weir_request *r, uint64_t now,
                                                int is_over, uint64_t pause) {
    struct weir_goal *g = &v->goal;
    uint64_t wanted = bytes_wanted(g), due = atomic_load(&g->pressure.due);
    struct weir_trim trim = {.mode = WEIR_TRIM_COMPLETED,
                             .stream = r->stream,
                             .id = r->id,
                             .cause = wanted > 0 ? WEIR_EVENT_LOW_MEMORY : WEIR_EVENT_DECAY};
    weir_statistics figures = {.size = sizeof figures};
    uint64_t keep, target;
    int is_due = is_release_due(v, now);

    v->engine->ops->figures(v->engine, &figures);
    keep = figures.reserved;
    if (is_over)
        keep = weir__goal_end_window(g, now, figures.in_use, figures.reserved, pause);
    if (is_due) {
        target = weir__goal_target(g, figures.reserved, figures.in_use,
                                   g->has_threshold ? UINT64_MAX : wanted);
        keep = weir__size_smaller(keep, target);
    }
    trim.keep = (size_t)keep;
    if (keep < figures.reserved)
        (void)v->engine->ops->trim(v->engine, &trim);
    if (is_due)
        schedule_check(v, now, due, wanted, trim.released);
}

void weir__goal_lower_in_request(struct weir_reserve *v, const struct weir_request *r) {
    struct weir_goal *g = &v->goal;
    struct weir_pressure *p = &g->pressure;
    uint64_t due = atomic_load(&p->due), now, pause = 0;
    uint64_t in_use = atomic_load_explicit(&v->engine->seen.in_use, memory_order_relaxed);
    int is_over = 0;

    now = weir__device_elapsed_ns(v->device, v->device->created_ticks);
    if (g->half_life_ns > 0)
        is_over = weir__goal_record_use(g, now, in_use, &pause) && g->in_requests;
    if (g->has_threshold && r->grew && bytes_wanted(g) == 0)
        (void)atomic_compare_exchange_strong(
            &p->due, &due,
            now + GROWTH_PART * weir__size_subtract(growth_ns(v), atomic_load(&p->old_growth)));
    if ((!is_over && !is_release_due(v, now)) ||
        atomic_exchange_explicit(&p->is_release_running, 1, memory_order_acquire))
        return;
    lower_now(v, r, now, is_over, pause);
    atomic_store_explicit(&p->is_release_running, 0, memory_order_release);
}

/* The size of a page, the smallest unit of device memory that the driver maps.  cuMemAlloc uses whole pages, too. */
#define PAGE ((uint64_t)2 << 20)

/* ---- preallocation ---------------------------------------------------------------------------- */

#define RECLAIM_PAUSE_NS UINT64_C(10000000)
/* The maximum time to wait while other processes preallocate. */
#define LONGEST_WAIT_NS UINT64_C(10000000000)
/* The time to wait for other processes' replies to a request for memory. */
#define SHARE_NS UINT64_C(100000000)
/* weir stops waiting if free device memory has not grown for this time.  A process releases all of an H200 in 0.2 s. */
#define STILL_NS UINT64_C(1000000000)

/* Returns the bytes of the device that must stay free if the preallocation is a share of the device, else 0. */
static uint64_t share_margin_of(const struct weir_reserve *v) {
    return v->options->prealloc.kind == WEIR_AMOUNT_SHARE ? v->limit.share_margin : 0;
}

/* Computes the preallocation's target again, with this allocator's reserved memory counted as free.  If the target is a
 * share of the device, lowers the target to the device's free memory, but not below `prealloc_least'. */
static void refresh_target(struct weir_reserve *v) {
    struct weir_goal *g = &v->goal;
    const weir_amount *amount = &v->options->prealloc;
    struct weir_device_memory memory = {.total = v->device->total};
    int is_share = amount->kind == WEIR_AMOUNT_SHARE;
    uint64_t target;

    (void)weir__limit_refresh(v);
    if (!is_share && amount->kind != WEIR_AMOUNT_OF_FREE && amount->kind != WEIR_AMOUNT_MAX)
        return;
    memory.free = weir__device_free(v->device);
    if (memory.free == UINT64_MAX)
        return;
    memory.free =
        weir__size_subtract(memory.free, share_margin_of(v)) + weir__engine_reserve(v->engine);
    if (is_share) {
        g->prealloc_target = weir__size_smaller(g->prealloc_target,
                                                weir__size_larger(memory.free, g->prealloc_least));
        return;
    }
    target = weir__size_smaller(weir__budget_bytes(amount, &memory, 0), memory.free);
    g->prealloc_target = weir__size_smaller(target, v->limit.bytes);
}

/* Makes the processes of a user preallocate one after another, so that no two count on one amount of free memory.
 * After LONGEST_WAIT_NS, or if the lock cannot be made, the preallocation continues without the lock. */
static void lock_preallocation(struct weir_reserve *v, struct weir_process_lock *lock) {
    uint64_t began = weir__clock_ns();
    struct timespec pause = {0, 1000000};
    char name[WEIR_UUID_BYTES] = "";
    int got;

    /* The lock is a file with the device's UUID in its name, since a device's number differs between processes. */
    (void)weir__driver_uuid(v->device->driver, v->device->ordinal, name);
    while ((got = weir__process_lock_try(lock, name)) == 0 &&
           weir__clock_ns() - began < LONGEST_WAIT_NS) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 16000000)
            pause.tv_nsec *= 2;
    }
    atomic_fetch_add(&v->events.counters->prealloc.waited_ns, weir__clock_ns() - began);
    if (got < 0)
        weir__log(v->options->log, WEIR_LOG_WARNING,
                  "preallocation: no lock against other processes (%s): it goes on without",
                  strerror(errno));
    if (got == 0)
        weir__log(v->options->log, WEIR_LOG_WARNING,
                  "preallocation: another process has not ended its own: it goes on beside it");
}

/* Asks other processes to release memory above their shares, and waits until the device has enough free memory. */
static void wait_for_other_shares(struct weir_reserve *v) {
    uint64_t target = v->goal.prealloc_target, device_free, most_free = 0;
    uint64_t lacks =
        weir__size_subtract(target, weir__engine_reserve(v->engine)) + v->limit.share_margin;
    uint64_t began = weir__clock_ns(), now = began, moved = began;
    struct weir_answers answers;

    if (v->options->prealloc.kind != WEIR_AMOUNT_SHARE || !v->events.peers)
        return;
    while ((device_free = weir__device_free(v->device)) < lacks && now - moved <= STILL_NS) {
        answers = weir__group_request_memory(
            v->events.peers, (struct weir_memory_request){lacks - device_free, .began_ns = began,
                                                          .deadline_ns = now + SHARE_NS});
        if (!answers.is_incomplete)
            break;
        nanosleep(&(struct timespec){0, RECLAIM_PAUSE_NS}, NULL);
        now = weir__clock_ns();
        if (device_free > most_free) {
            most_free = device_free;
            moved = now;
        }
    }
    atomic_fetch_add(&v->events.counters->prealloc.waited_ns, weir__clock_ns() - began);
}

enum { CAUSE_BYTES = 80 };

/* Writes the reason why a preallocation has reserved only `reserved' bytes. */
static void write_cause(const struct weir_reserve *v, uint64_t reserved, uint64_t share_margin,
                        char text[CAUSE_BYTES]) {
    size_t least = v->engine->least_limit;
    uint64_t limit = v->limit.bytes, unit = least ? least : PAGE, device_free;
    int is_left = limit < weir__limit_own(&v->limit);

    snprintf(text, CAUSE_BYTES, "the device has no more");
    if (limit != UINT64_MAX && weir__size_subtract(limit, reserved) < unit) {
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
    if (weir__size_subtract(device_free, share_margin) < unit)
        snprintf(text, CAUSE_BYTES, "a share leaves %s of the device", WEIR_SHOWN(share_margin));
    else /* enough memory is free, but the driver could not allocate one region of this size */
        snprintf(text, CAUSE_BYTES, "the driver refused more, with %s free",
                 WEIR_SHOWN(device_free));
}

void weir__goal_log_preallocation(const struct weir_reserve *v, uint64_t asked, uint64_t reserved,
                                  uint64_t share_margin) {
    char cause[CAUSE_BYTES];

    write_cause(v, reserved, share_margin, cause);
    weir__log(v->options->log, WEIR_LOG_WARNING, "preallocation: requested %s, got and kept %s; %s",
              WEIR_SHOWN(asked), WEIR_SHOWN(reserved), cause);
}

/* Handles a preallocation of fewer than prealloc_min bytes: releases the memory and writes the reason to `text'. */
static weir_status fail_below_least(struct weir_reserve *v, weir_status status, uint64_t keep,
                                    weir_statistics *figures, char *text, size_t text_bytes) {
    char cause[CAUSE_BYTES] = "no more was asked";
    size_t released;

    if (weir__is_failure(status))
        write_cause(v, figures->reserved, share_margin_of(v), cause);
    if (status == WEIR_OK || weir__is_failure(status))
        snprintf(text, text_bytes,
                 "preallocation: requested %s, at least %s, got only %s; %s: set prealloc-min to "
                 "that or less",
                 WEIR_SHOWN(v->goal.prealloc_target), WEIR_SHOWN(v->goal.prealloc_least),
                 WEIR_SHOWN(figures->reserved), cause);
    if (status == WEIR_OK)
        status = weir__without_driver(WEIR_E_NO_MEMORY);
    (void)weir__engine_trim(v->engine, (size_t)keep, WEIR_EVENT_TRIM, &released);
    v->engine->ops->figures(v->engine, figures);
    return status;
}

weir_status weir__goal_preallocate(struct weir_reserve *v, char *text, size_t text_bytes) {
    weir_statistics before = {.size = sizeof before}, after = {.size = sizeof after};
    struct weir_counters *counters = v->events.counters;
    struct weir_goal *g = &v->goal;
    struct weir_process_lock lock = WEIR_PROCESS_LOCK_NONE;
    struct weir_engine *e = v->engine;
    uint64_t started;
    weir_status status;
    int lacks;

    text[0] = '\0';
    lock_preallocation(v, &lock);
    wait_for_other_shares(v);
    refresh_target(v);
    started = v->device->driver->ticks();
    weir__counters_read(counters, &before);
    e->ops->figures(e, &before);
    status = e->ops->grow(e, g->prealloc_target, g->prealloc_target, WEIR_EVENT_PREALLOC);
    weir__counters_read(counters, &after);
    e->ops->figures(e, &after);
    atomic_fetch_add(&counters->prealloc.got, after.growth_bytes - before.growth_bytes);
    lacks = after.reserved < g->prealloc_least;
    if (lacks)
        status = fail_below_least(v, status, before.reserved, &after, text, text_bytes);
    atomic_fetch_add(&counters->prealloc.ns, weir__device_elapsed_ns(v->device, started));
    atomic_store(&counters->prealloc.asked, g->prealloc_target);
    atomic_store(&counters->prealloc.kept, after.reserved);
    weir__raise_to(&g->floor, weir__size_smaller(after.reserved, g->prealloc_target));
    weir__process_lock_release(&lock);
    if (lacks || !weir__is_failure(status))
        return status;
    weir__goal_log_preallocation(v, g->prealloc_target, after.reserved, share_margin_of(v));
    return after.reserved == 0 ? status : WEIR_OK;
}

/* ---- grow-ahead: steps ------------------------------------------------------------------------- */

static int is_device_model(const struct weir_reserve *v) {
    return v->device->driver->set_background != NULL;
}

static uint64_t read_idle(const struct weir_reserve *v, uint64_t *reserved) {
    weir_statistics figures = {.size = sizeof figures};

    v->engine->ops->figures(v->engine, &figures);
    *reserved = figures.reserved;
    return weir__size_subtract(figures.reserved, figures.in_use);
}

#define PAUSE_NS UINT64_C(1000000)
#define FIRST_BACK_OFF_NS UINT64_C(10000000)
#define LONGEST_BACK_OFF_NS UINT64_C(2560000000)
/* A pause without an end.  The thread of background growth sleeps until a request wakes the thread. */
#define UNTIL_WOKEN UINT64_C(0)
/* While fewer than `low' bytes are idle, the pause between steps of growth is at most PAUSE_NS / LOW_PAUSE_PART. */
enum { LOW_PAUSE_PART = 4 };
/* Background growth leaves 1 / FREE_PART of the device free for requests. */
enum { FREE_PART = 64 };

/* Stops background growth for good, since no later step can succeed. */
static uint64_t stop_ahead(struct weir_ahead *a) {
    a->low = 0;
    a->raising = 0;
    atomic_store(&a->mark, 0);
    return UNTIL_WOKEN;
}

/* Grows by a step, and subtracts the step from *lacks.  Returns E_NO_MEMORY if the limit or the device has no room. */
static weir_status grow_by_step(struct weir_reserve *v, uint64_t reserved, uint64_t *lacks) {
    uint64_t room = weir__size_subtract(v->limit.bytes, reserved), step = v->engine->step_bytes;
    uint64_t device_free;

    if (*lacks < step)
        step = (*lacks + PAGE - 1) / PAGE * PAGE;
    if (room < step)
        step = weir__size_round_down((size_t)room, PAGE);
    device_free = weir__device_free(v->device);
    if (step == 0 ||
        (device_free != UINT64_MAX && device_free < step + v->device->total / FREE_PART))
        return WEIR_E_NO_MEMORY;
    *lacks = weir__size_subtract(*lacks, step);
    return v->engine->ops->grow(v->engine, reserved + step, reserved + step, WEIR_EVENT_GROW_AHEAD);
}

/* Returns the nanoseconds to wait after a step of background growth, or UNTIL_WOKEN if no later step can succeed. */
static uint64_t pause_after(struct weir_reserve *v, weir_status status, uint64_t lacks) {
    struct weir_ahead *a = &v->goal.ahead;
    double idle = (double)weir__size_subtract(v->goal.idle, lacks), low = (double)a->low;
    uint64_t pause = a->back_off_ns;

    if (status == WEIR_OK) {
        a->back_off_ns = FIRST_BACK_OFF_NS;
        return idle < low ? 1 + (uint64_t)((double)PAUSE_NS / LOW_PAUSE_PART * idle / low)
                          : PAUSE_NS;
    }
    if (status == WEIR_E_NOT_SUPPORTED)
        weir__log(
            v->options->log, WEIR_LOG_WARNING,
            "grow-ahead has no effect: this driver does not report what its pool has reserved");
    if (status == WEIR_E_NOT_SUPPORTED || status == WEIR_E_DEVICE_LOST)
        return stop_ahead(a);
    atomic_fetch_add_explicit(&v->events.counters->ahead_failures, 1, memory_order_relaxed);
    a->back_off_ns = weir__size_smaller(pause * 2, LONGEST_BACK_OFF_NS);
    return pause;
}

/* Reserves memory if too few bytes are idle.  Returns the pause until the next step.  The caller holds `step_lock'. */
static uint64_t grow_if_low(struct weir_reserve *v) {
    struct weir_ahead *a = &v->goal.ahead;
    uint64_t reserved, idle, lacks;
    weir_status status;

    atomic_store(&a->mark, 0);
    if (weir__slow_path_is(&v->device->slow_path, WEIR_SLOW_PATH_LOST))
        return stop_ahead(a);
    atomic_store(&a->mark, a->low);
    idle = read_idle(v, &reserved);
    a->raising = idle < (a->raising ? v->goal.idle : a->low);
    if (!a->raising)
        return UNTIL_WOKEN;
    lacks = v->goal.idle - idle;
    atomic_store(&a->mark, is_device_model(v) ? v->goal.idle : 0);
    status = grow_by_step(v, reserved, &lacks);
    return pause_after(v, status, lacks);
}

/* ---- grow-ahead: the thread, and its start and end --------------------------------------------- */

/* Held during each step of background growth.  exit() waits at most a second for this lock, then unloads the driver. */
static pthread_mutex_t process_step_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int exiting; /* set when the process exits; no step begins afterwards */

static void stop_steps_at_exit(void) {
    if (weir__driver_forked())
        return;
    atomic_store(&exiting, 1);
    /* unreached: another thread keeps the lock only if the driver hangs */
    if (weir__thread_lock_at_end(&process_step_lock))
        pthread_mutex_unlock(&process_step_lock);
}

static void register_ahead_exit(void) {
    (void)atexit(stop_steps_at_exit);
}

/* Makes the growth thread wait for `pause' nanoseconds, or until a request wakes it.  The caller holds `lock'. */
static void wait_for_wake(struct weir_ahead *a, uint64_t pause) {
    uint64_t ns = weir__clock_ns() + pause;
    struct timespec until = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

    if (pause == UNTIL_WOKEN)
        while (!a->stopped && !a->wake_requested)
            pthread_cond_wait(&a->woken, &a->lock);
    else
        while (!a->stopped && pthread_cond_timedwait(&a->woken, &a->lock, &until) != ETIMEDOUT)
            ;
}

static void *run_ahead(void *reserve) {
    struct weir_reserve *v = reserve;
    struct weir_ahead *a = &v->goal.ahead;
    uint64_t pause;

    weir__thread_begin();
    pthread_mutex_lock(&a->lock);
    while (!a->stopped) {
        a->wake_requested = 0;
        pthread_mutex_unlock(&a->lock);
        pthread_mutex_lock(&a->step_lock);
        pthread_mutex_lock(&process_step_lock);
        pause = atomic_load(&exiting) ? UNTIL_WOKEN : grow_if_low(v);
        pthread_mutex_unlock(&process_step_lock);
        pthread_mutex_unlock(&a->step_lock);
        pthread_mutex_lock(&a->lock);
        wait_for_wake(a, pause);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* On the simulated GPU, the virtual time from the request that wakes background growth to the first step. */
#define WAKE_NS UINT64_C(200000)

void weir__goal_run_due_steps(struct weir_reserve *v, int begins) {
    struct weir_ahead *a = &v->goal.ahead;
    const struct weir_driver *driver = v->device->driver;
    uint64_t now, pause;

    if (!is_device_model(v) || pthread_mutex_trylock(&a->step_lock) != 0)
        return;
    now = driver->ticks();
    if (a->due_ticks == 0 && begins)
        a->due_ticks = now + WAKE_NS;
    while (a->due_ticks != 0 && a->due_ticks <= now) {
        driver->set_background(1);
        pause = grow_if_low(v);
        a->due_ticks += driver->set_background(0) + pause;
        if (pause == UNTIL_WOKEN)
            a->due_ticks = 0;
    }
    pthread_mutex_unlock(&a->step_lock);
}

/* Wakes background growth.  Waits for no step of growth, and calls no driver function, except on the simulated GPU. */
void weir__goal_wake_ahead(struct weir_reserve *v) {
    struct weir_ahead *a = &v->goal.ahead;
    uint64_t mark = atomic_load_explicit(&a->mark, memory_order_relaxed);
    uint64_t reserved = atomic_load_explicit(&v->engine->seen.reserved, memory_order_relaxed);
    uint64_t in_use = atomic_load_explicit(&v->engine->seen.in_use, memory_order_relaxed);

    if (weir__size_subtract(reserved, in_use) >= mark)
        return;
    if (is_device_model(v)) {
        weir__goal_run_due_steps(v, 1);
    } else if (atomic_exchange(&a->mark, 0) != 0) {
        pthread_mutex_lock(&a->lock);
        a->wake_requested = 1;
        pthread_cond_signal(&a->woken);
        pthread_mutex_unlock(&a->lock);
    }
}

void weir__goal_pause_ahead(struct weir_reserve *v) {
    if (v->goal.ahead.is_on)
        pthread_mutex_lock(&v->goal.ahead.step_lock);
}

void weir__goal_resume_ahead(struct weir_reserve *v) {
    if (v->goal.ahead.is_on)
        pthread_mutex_unlock(&v->goal.ahead.step_lock);
}

static void end_ahead(struct weir_ahead *a) {
    a->is_on = 0;
    pthread_cond_destroy(&a->woken);
    pthread_mutex_destroy(&a->lock);
    pthread_mutex_destroy(&a->step_lock);
}

weir_status weir__goal_start_ahead(struct weir_reserve *v, uint64_t low) {
    struct weir_ahead *a = &v->goal.ahead;
    pthread_condattr_t monotonic;
    uint64_t reserved, idle, lacks;
    weir_status status = WEIR_OK;

    a->low = low;
    a->back_off_ns = FIRST_BACK_OFF_NS;
    atomic_init(&a->mark, low);
    pthread_mutex_init(&a->step_lock, NULL);
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->woken, &monotonic);
    pthread_condattr_destroy(&monotonic);
    while (status == WEIR_OK && (idle = read_idle(v, &reserved)) < low) {
        a->raising = 1;
        lacks = low - idle;
        status = grow_by_step(v, reserved, &lacks);
    }
    a->is_on = 1;
    if (is_device_model(v)) {
        a->due_ticks = v->device->driver->ticks() + PAUSE_NS;
        return WEIR_OK;
    }
    pthread_once(&once, register_ahead_exit);
    if (weir__thread_start(&a->thread, run_ahead, v) == 0)
        return WEIR_OK;
    end_ahead(a);
    return weir__without_driver(WEIR_E_HOST_MEMORY);
}

void weir__goal_close(struct weir_reserve *v) {
    struct weir_ahead *a = &v->goal.ahead;

    if (!a->is_on)
        return;
    if (!is_device_model(v)) {
        pthread_mutex_lock(&a->lock);
        a->stopped = 1;
        pthread_cond_signal(&a->woken);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    end_ahead(a);
}
