/* SPDX-License-Identifier: MIT */
/* prealloc.c: see prealloc.h.
 *
 * Processes that start together and each want nine tenths of the free memory would fail, since all read one amount of
 * free memory.  So the processes of one user preallocate on a device one after the other, by a lock (turn_lock.h), and
 * each computes its amount again once it has the lock.  If there is no lock, or another process holds it for too long,
 * preallocation goes on without the lock and says so in the log.
 *
 * A preallocation fails only if less is reserved than prealloc_min; then its memory goes back.
 */
#include "reserve/prealloc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/bounds.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"
#include "config/amount.h"
#include "ipc/group_process.h"
#include "reserve/decay.h"

#define RECLAIM_PAUSE_NS UINT64_C(10000000)
/* The longest wait for the lock. */
#define LONGEST_WAIT_NS UINT64_C(10000000000)
/* The granularity of mapped memory and of cuMemAlloc. */
#define PAGE ((uint64_t)2 << 20)
enum { CAUSE_BYTES = 80 };
/* The time for other processes to answer, and the time after which weir stops waiting for memory if no more comes free.
 * A process that releases all of an H200 takes 0.2 s. */
#define SHARE_NS UINT64_C(100000000)
#define STILL_NS UINT64_C(1000000000)

static uint64_t reserved_by(const struct weir_preallocation *p) {
    return weir__engine_reserve(p->v->engine);
}

/* ---- one process after the other --------------------------------------------------------------- */

/* Computes a target that depends on the free memory again, since other processes may have released memory.  Memory that
 * this allocator has reserved counts as free. */
static void refresh_target(struct weir_preallocation *p) {
    const weir_amount *amount = &p->v->options->prealloc;
    struct weir_device_memory memory = {.total = p->v->device->total};
    uint64_t target;

    (void)weir__quota_refresh(p->v);
    if (amount->kind != WEIR_AMOUNT_OF_FREE && amount->kind != WEIR_AMOUNT_MAX)
        return;
    memory.free = weir__device_free(p->v->device);
    if (memory.free == UINT64_MAX)
        return;
    memory.free += reserved_by(p);
    target = weir__budget_bytes(amount, &memory, 0);
    if (target > memory.free)
        target = memory.free;
    p->target = weir__size_smaller(target, p->v->quota.limit);
}

/* Lowers a target that is a share, so that the memory that shares leave to others stays free. */
static uint64_t beside_others(const struct weir_preallocation *p, uint64_t target) {
    uint64_t device_free;

    if (p->v->options->prealloc.kind != WEIR_AMOUNT_SHARE)
        return target;
    device_free = weir__device_free(p->v->device);
    if (device_free == UINT64_MAX)
        return target;
    device_free = reserved_by(p) + weir__size_less(device_free, p->v->quota.apart);
    return weir__size_smaller(target, weir__size_larger(device_free, p->least));
}

/* Waits for the lock, but not without a bound. */
static void wait_for_turn(struct weir_preallocation *p) {
    uint64_t began = weir__clock_ns(), waited;
    struct timespec pause = {0, 1000000};
    int log = p->v->options->log, got;
    char name[WEIR_UUID_BYTES] = "";

    /* Each device has one file, since its number differs between processes. */
    if (!weir__kept_is(&p->lock.file))
        (void)weir__driver_uuid(p->v->device->driver, p->v->device->ordinal, name);
    while ((got = weir__process_lock_try(&p->lock, name)) == 0 &&
           weir__clock_ns() - began < LONGEST_WAIT_NS) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 16000000)
            pause.tv_nsec *= 2;
    }
    waited = weir__clock_ns() - began;
    if (got < 0)
        weir__log(log, WEIR_LOG_WARNING,
                  "preallocation: no lock against other processes (%s): it goes on without",
                  strerror(errno));
    if (got == 0)
        weir__log(log, WEIR_LOG_WARNING,
                  "preallocation: another process has not ended its own: it goes on beside it");
    atomic_fetch_add(&p->v->events.counters->prealloc.waited_ns, waited);
    refresh_target(p);
}

/* Waits for memory that other processes have above their shares, as long as they answer and more memory comes free. */
static void wait_for_others(struct weir_preallocation *p, uint64_t goal) {
    uint64_t lacks = weir__size_less(goal, reserved_by(p)) + p->v->quota.apart, device_free;
    uint64_t began = weir__clock_ns(), now = began, moved = began, most_free = 0;
    struct weir_answers answers;

    if (p->v->options->prealloc.kind != WEIR_AMOUNT_SHARE || !p->v->events.peers)
        return;
    while ((device_free = weir__device_free(p->v->device)) < lacks && now - moved <= STILL_NS) {
        answers = weir__group_ask_whom_it_concerns(p->v->events.peers, lacks - device_free, began,
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
    atomic_fetch_add(&p->v->events.counters->prealloc.waited_ns, weir__clock_ns() - began);
    (void)weir__quota_refresh(p->v);
}

void weir__preallocation_close(struct weir_preallocation *p) {
    weir__process_lock_give(&p->lock);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Returns the least growth of reserved memory. */
static uint64_t unit_of(const struct weir_preallocation *p) {
    size_t unit = p->v->engine->least_limit;

    return unit ? unit : PAGE;
}

/* Writes why no more than `reserved' bytes are reserved.  A share leaves `apart' bytes of the device to others. */
static void show_cause(const struct weir_preallocation *p, uint64_t reserved, uint64_t apart,
                       char *text, size_t text_bytes) {
    const struct weir_quota *q = &p->v->quota;
    int is_share = p->v->options->limit.kind == WEIR_AMOUNT_SHARE && !atomic_load(&q->no_share);
    uint64_t limit = q->limit, device_free;

    snprintf(text, text_bytes, "the device has no more");
    if (limit != UINT64_MAX && weir__size_less(limit, reserved) < unit_of(p)) {
        int is_left = limit < weir__quota_own(q);
        snprintf(text, text_bytes, "%s %s",
                 is_left    ? "keep-free keeps for others"
                 : is_share ? "the limit, a share, is"
                            : "the limit is",
                 WEIR_SHOWN(is_left ? q->keep_free : limit));
        return;
    }
    device_free = weir__device_free(p->v->device);
    if (device_free == UINT64_MAX || device_free < unit_of(p))
        return;
    if (weir__size_less(device_free, apart) < unit_of(p)) {
        snprintf(text, text_bytes, "a share leaves %s of the device", WEIR_SHOWN(apart));
        return;
    }
    /* The driver allocates a region as a whole or not at all. */
    snprintf(text, text_bytes, "the driver refused more, with %s free", WEIR_SHOWN(device_free));
}

static uint64_t apart_of(const struct weir_preallocation *p) {
    return p->v->options->prealloc.kind == WEIR_AMOUNT_SHARE ? p->v->quota.apart : 0;
}

void weir__preallocation_tell(const struct weir_preallocation *p, uint64_t asked, uint64_t reserved,
                              uint64_t apart) {
    char cause[CAUSE_BYTES];

    show_cause(p, reserved, apart, cause, sizeof cause);
    weir__log(p->v->options->log, WEIR_LOG_WARNING,
              "preallocation: requested %s, got and kept %s; %s", WEIR_SHOWN(asked),
              WEIR_SHOWN(reserved), cause);
}

static int is_too_little(weir_status status) {
    return status == WEIR_OK || weir__is_failure(status);
}

/* Frees what a preallocation got if that is less than `least', and writes the reason.  `figures' are the engine's:
 * those before the call on entry, those after it on return. */
static weir_status too_little(struct weir_preallocation *p, weir_status status, uint64_t keep,
                              weir_statistics *figures, char *text, size_t text_bytes) {
    char cause[CAUSE_BYTES];
    size_t released;

    if (is_too_little(status)) {
        if (status == WEIR_OK) /* the target itself is below prealloc_min */
            snprintf(cause, sizeof cause, "no more was asked");
        else
            show_cause(p, figures->reserved, apart_of(p), cause, sizeof cause);
        snprintf(text, text_bytes,
                 "preallocation: requested %s, at least %s, got only %s; %s: set prealloc-min to "
                 "that or less",
                 WEIR_SHOWN(p->target), WEIR_SHOWN(p->least), WEIR_SHOWN(figures->reserved), cause);
    }
    if (status == WEIR_OK)
        status = weir__without_driver(WEIR_E_NO_MEMORY);
    (void)weir__engine_trim(p->v->engine, (size_t)keep, WEIR_EVENT_TRIM, &released);
    p->v->engine->ops->figures(p->v->engine, figures);
    return status;
}

/* ---- preallocation --------------------------------------------------------------------------- */

weir_status weir__preallocation_run(struct weir_preallocation *p, char *text, size_t text_bytes) {
    weir_statistics before = {.size = sizeof before}, after = {.size = sizeof after};
    struct weir_counters *counters = p->v->events.counters;
    struct weir_engine *e = p->v->engine;
    uint64_t started;
    weir_status status;
    int lacks;

    text[0] = '\0';
    wait_for_turn(p);
    wait_for_others(p, p->target);
    p->target = beside_others(p, p->target);
    started = p->v->device->driver->ticks();
    weir__counters_read(counters, &before);
    e->ops->figures(e, &before);
    status = e->ops->grow(e, p->target, p->target, WEIR_EVENT_PREALLOC);
    weir__counters_read(counters, &after);
    e->ops->figures(e, &after);
    atomic_fetch_add(&counters->prealloc.got, after.growth_bytes - before.growth_bytes);
    lacks = after.reserved < p->least;
    if (lacks)
        status = too_little(p, status, before.reserved, &after, text, text_bytes);
    atomic_fetch_add(&counters->prealloc.ns, weir__device_since(p->v->device, started));
    atomic_store(&counters->prealloc.asked, p->target);
    atomic_store(&counters->prealloc.kept, after.reserved);
    weir__raise_to(&p->v->decay.floor, weir__size_smaller(after.reserved, p->target));
    weir__preallocation_close(p);
    if (lacks || !is_too_little(status))
        return status;
    if (status == WEIR_OK)
        return WEIR_OK;
    weir__preallocation_tell(p, p->target, after.reserved, apart_of(p));
    return after.reserved == 0 ? status : WEIR_OK; /* partial success is success */
}
