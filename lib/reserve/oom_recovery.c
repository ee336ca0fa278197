/* SPDX-License-Identifier: MIT */
/* oom_recovery.c: OOM recovery.
 *
 * Rungs, each followed by another try where it changed something:
 *   1. what the engine holds idle and has already seen completed; and what a layer above the allocator holds without need
 *      (weir__reclaim_fn), which the caches then give to the engine;
 *   2. frees that are still pending, in the engine or above: polled, with growing pauses, until the deadline (never an
 *      unbounded wait: the stream that holds the memory may wait for the caller);
 *   3. a trim of all idle memory, so that scattered room becomes the device's again, and one try.
 *      An engine's trim may wait for the device, however long that takes; it is left out where no
 *      waiting at all was asked for.
 *   4. what other allocators of the process hold idle on the device, if that can be enough: at first as
 *      much as the request is, and where that did not do, all.  Such a trim may wait likewise.
 *   5. other processes on the device (process_peers.h): a tenth of the deadline in all, of real time; all of it where
 *      one that was killed is not gone yet.
 *      Of what the limit of the process group (group.h) has too little of, only its members are asked, those first
 *      that have more than their share; all others keep theirs.
 *   6. where engines did not ask the driver since it says that it has too little (engine.h): one try that asks.
 * None of them is for a graph's request, on a stream that is being captured.
 * 4 and 5 are for what the device has too little of, or what is to be left on it.  What the driver took for a try that
 * it refused all the same goes back before them, and after each try from there on.  Before all of them a limit that
 * depends on other programs is set again.  A request that could not fit even if everything idle and pending came free
 * skips 2 and 3.  For one of more than the limit 3 waits, and gives nothing back.  Then the status stands, and the
 * caller gets the figures.
 *
 * No lock of this file; the engine guards itself.  Must not know: any single engine.
 */
#include "reserve/oom_recovery.h"

#include <time.h>

#include "base/size.h"
#include "ipc/group_process.h"
#include "ipc/registry.h"

#define FIRST_PAUSE_NS UINT64_C(20000)
#define LONGEST_PAUSE_NS UINT64_C(2000000)
/* Time for threads to record an event after frees without one.  Rung 3 waits for the device and needs no event. */
#define SILENT_NS UINT64_C(4000000)
/* Where one that is ending is waited for, which takes the driver a tenth of a second. */
#define ENDING_PAUSE_NS UINT64_C(10000000)
/* What engines may have to grow by for a small request. */
#define UNIT ((uint64_t)WEIR_POOL_UNIT)
/* Of the deadline, what others have; all of it where one of them is ending. */
#define PROCESS_PEERS_PART 10
/* How long those who have just left may take to be gone, once nobody is there. */
#define ALONE_NS UINT64_C(10000000)
/* Of the device, what they are asked for at least: each time costs them a trim. */
#define ASKED_PART 64

static uint64_t deadline_ns(const struct weir_reserve *v) {
    return v->options->recovery_timeout_ms == UINT32_MAX
               ? 0
               : (uint64_t)v->options->recovery_timeout_ms * 1000000;
}

/* What went with the failure. */
static weir_failure read_failure(struct weir_reserve *v, size_t bytes) {
    weir_statistics figures = {.size = sizeof figures};

    v->engine->ops->figures(v->engine, &figures);
    return (weir_failure){
        .size = sizeof(weir_failure),
        .asked = bytes,
        .reserved = figures.reserved,
        .in_use = figures.in_use,
        .limit = v->quota.limit,
        .device_free = weir__device_free(v->device),
        .device_total = v->device->total,
    };
}

/* Returns 1 if the request would fit, should all that is idle or pending inside come free in one piece, with the bytes that
 * are pending in the layer above. */
static int could_fit(const weir_failure *r, uint64_t above) {
    uint64_t idle = r->reserved - r->in_use + above;
    uint64_t device = r->device_free == UINT64_MAX ? r->device_total : r->device_free;

    return r->asked <= idle + weir__size_smaller(device, weir__size_less(r->limit, r->reserved));
}

/* Of what is free on the device, what may be taken; nothing, if that is not known: others are asked for all. */
static uint64_t usable(const struct weir_reserve *v, uint64_t device_free) {
    return device_free == UINT64_MAX ? 0 : weir__size_less(device_free, v->quota.keep_free);
}

/* Is it the device that is short, or what is to be left on it? */
static int is_short(const struct weir_reserve *v, weir_status why) {
    return why == WEIR_E_NO_MEMORY || (why == WEIR_E_LIMIT && v->quota.keep_free > 0);
}

/* A request in OOM recovery, with the number of retries so far. */
struct climb {
    struct weir_reserve *v;
    struct weir_request *r;
    const struct weir_lender *caches;
    int tries;
};

static weir_status try_again(struct climb *c) {
    c->tries++;
    return weir__oom_recovery_try(c->v, c->r);
}

/* What the last try of a rung came to; nothing is left of one that was refused, and of those before one that was served
 * what they took is the reserved memory's. */
static weir_status settled(struct climb *c, weir_status status) {
    struct weir_engine *e = c->v->engine;
    struct weir_trim trim = {.mode =
                                 weir__is_failure(status) ? WEIR_TRIM_REFUSED : WEIR_TRIM_SERVED};

    (void)e->ops->trim(e, &trim);
    return status;
}

/* Another try, after others have given. */
static weir_status try_with_more(struct climb *c) {
    (void)weir__quota_refresh(c->v);
    return settled(c, try_again(c));
}

/* Of rung 3: it waits for the device. */
static int trim_waits(const struct climb *c) {
    return (c->v->engine->traits & WEIR_ENGINE_TRIM_WAITS) != 0;
}

/* Returns 1 if rung 3 may be tried. */
static int may_give_back(const struct climb *c) {
    return !trim_waits(c) || deadline_ns(c->v) > 0;
}

/* Rung 3.  Returns 1 if there may be room that was not there before.  For a request of more than the limit the trim gives
 * nothing back: only what is idle where it lies serves that. */
static int give_back(struct climb *c) {
    uint64_t keep = c->r->bytes <= c->v->quota.limit ? 0 : weir__engine_reserve(c->v->engine);
    size_t released = 0;

    return may_give_back(c) &&
           weir__engine_trim(c->v->engine, (size_t)keep, WEIR_EVENT_RECOVERY, &released) ==
               WEIR_OK &&
           (released > 0 || trim_waits(c));
}

/* Returns how long rung 2 polls: until the deadline while a free is pending.  For streams that are silent it polls only a
 * moment if rung 3 will wait for the device. */
static uint64_t patience_ns(const struct climb *c, int is_pending, size_t silent) {
    if (is_pending || (c->v->engine->traits & WEIR_ENGINE_HIDES_PENDING))
        return deadline_ns(c->v);
    if (silent > 0)
        return trim_waits(c) && may_give_back(c) ? weir__size_smaller(SILENT_NS, deadline_ns(c->v))
                                                 : deadline_ns(c->v);
    return 0;
}

/* Has the layer above free what it does not need.  Its blocks then lie in caches, which give them to the engine.  *pending:
 * bytes of frees that still wait there.  Returns 1 if something came. */
static int reclaim_above(struct climb *c, int may_wait, uint64_t *pending) {
    if (!weir__reserve_reclaim(c->v, may_wait, pending))
        return 0;
    if (c->caches && deadline_ns(c->v) > 0)
        (void)c->caches->lend(c->caches->context, c->r, WEIR_LEND_ALL);
    return 1;
}

/* Rung 2.  `above`: bytes that are pending in the layer above.  Returns the status of the last try, or `why`. */
static weir_status wait_for_frees(struct climb *c, uint64_t above, weir_status why) {
    struct weir_engine *e = c->v->engine;
    uint64_t started = e->device->driver->ticks();
    uint64_t pause = FIRST_PAUSE_NS;
    size_t silent = 0, pending = weir__engine_reclaim(e, &silent);

    while (weir__is_failure(why)) {
        uint64_t waited = weir__device_since(e->device, started);

        if (waited >= patience_ns(c, pending > 0 || above > 0, silent))
            break;
        e->device->driver->sleep_ns(pause);
        pause = weir__size_smaller(pause * 2, LONGEST_PAUSE_NS);
        (void)reclaim_above(c, 0, &above);
        pending = weir__engine_reclaim(e, &silent);
        why = try_again(c);
    }
    return why;
}

/* Rung 4.  Likewise. */
static weir_status ask_allocators(struct climb *c, weir_status why) {
    struct weir_reserve *v = c->v;
    int may_wait = deadline_ns(v) > 0;
    weir_failure now;
    size_t bytes = c->r->bytes;
    uint64_t idle, least, most = weir__size_larger(bytes, UNIT);

    for (int i = 0; i < 2 && v->lend_device && is_short(v, why); i++, most = UINT64_MAX) {
        now = read_failure(v, bytes);
        idle = now.reserved - now.in_use;
        least = weir__size_less(bytes, idle + weir__size_less(now.device_free, v->quota.keep_free));
        if (now.device_free == UINT64_MAX ||
            bytes > idle + weir__size_less(weir__quota_own(&v->quota), now.reserved) ||
            v->lend_device(v->lend_context, least, most, may_wait) == 0)
            break;
        why = try_with_more(c);
    }
    return why;
}

/* Who was killed a moment ago may still hold memory, and others may need less by now. */
static void wait_for_process_peers(uint64_t pause_ns) {
    nanosleep(&(struct timespec){0, (long)pause_ns}, NULL);
}

/* What the device, and what is idle, do not have of a request. */
static uint64_t lack_of(const struct weir_reserve *v, const weir_failure *now, size_t bytes) {
    return weir__size_less(bytes, now->reserved - now->in_use + usable(v, now->device_free));
}

/* Nobody has given: is there nobody who may?  `room` is what others may keep, `lacks` what they must give; *alone:
 * until when those who have left unseen are waited for, 0 while somebody was there; a round that began later follows a
 * try that was late enough.  To find that out may have taken longer: who is not heard of is waited for, and may be
 * killed meanwhile. */
static int nobody_will(const struct weir_answers *answers, uint64_t room, uint64_t lacks,
                       uint64_t began, uint64_t now, uint64_t *alone) {
    if (answers->kept != UINT64_MAX) {
        *alone = 0;
        return room < answers->kept;
    }
    if (answers->ending > 0 && answers->ending >= lacks)
        return 0;
    if (*alone == 0)
        *alone = now + ALONE_NS;
    return began > *alone;
}

/* Likewise, with no more in use than the blocks have: while a thread gives, what it is giving counts as in use, and so
 * do probe blocks of the pool, if they come or go between two questions to the driver. */
static weir_failure read_live(struct weir_reserve *v, size_t bytes) {
    weir_failure now = read_failure(v, bytes);
    weir_statistics figures = {.size = sizeof figures};

    v->engine->ops->figures(v->engine, &figures);
    now.in_use = weir__size_smaller(now.in_use, figures.requested);
    return now;
}

/* It is more than all that the others have would leave room for. */
static int is_too_much(const struct weir_reserve *v, const weir_failure *now, size_t bytes) {
    return bytes > weir__size_less(v->device->total - v->quota.keep_free, now->in_use) ||
           bytes > now->reserved - now->in_use +
                       weir__size_less(weir__quota_own(&v->quota), now->reserved);
}

/* A round of asking in which nobody gave. */
struct round {
    const struct weir_answers *answers;
    uint64_t began, now;
    uint64_t *alone; /* the parameter of nobody_will() */
};

/* Nobody will give, and what the device lacked has not come free meanwhile. */
static int is_over(struct weir_reserve *v, size_t bytes, const weir_failure *figures,
                   const struct round *round) {
    uint64_t room = weir__size_less(v->device->total - v->quota.keep_free, figures->in_use + bytes);
    uint64_t lacks = lack_of(v, figures, bytes);
    weir_failure now;

    if (!nobody_will(round->answers, room, lacks, round->began, round->now, round->alone))
        return 0;
    now = read_live(v, bytes);
    return lacks == 0 || lack_of(v, &now, bytes) > 0;
}

/* Rung 5, in real time.  Likewise. */
static weir_status ask_process_peers(struct climb *c, weir_status why) {
    struct weir_reserve *v = c->v;
    struct weir_process_peers *peers = v->events.peers;
    size_t bytes = c->r->bytes;
    uint64_t began = weir__registry_now(), until = began + deadline_ns(v) / PROCESS_PEERS_PART;
    uint64_t total = v->device->total, most = weir__size_larger(total / ASKED_PART, UNIT);
    uint64_t now, missing, first = began, alone = 0;
    uint64_t pause = LONGEST_PAUSE_NS, least = 0;
    int has_asked = 0, was_ending = 0, has_ended;
    struct weir_answers answers;
    weir_failure figures;

    for (; peers && is_short(v, why) && began < until; began = now) {
        figures = read_live(v, bytes);
        if (is_too_much(v, &figures, bytes))
            break;
        missing = weir__size_less(bytes, usable(v, figures.device_free)) + UNIT;
        most = weir__size_larger(most, weir__size_smaller(missing, total));
        answers = weir__process_peers_ask(peers, most, first, until, NULL);
        now = weir__registry_now();
        if (answers.kept != UINT64_MAX && (answers.given > 0 || !has_asked))
            weir__engine_note(v->engine, WEIR_EVENT_RECLAIM, 0, most, answers.given, now - began,
                              figures.reserved);
        /* Its memory has come free since the last try; or it was not seen, or not looked for, just now. */
        has_ended = was_ending && answers.ending == 0;
        if (answers.given == 0 && !has_ended &&
            is_over(v, bytes, &figures, &(struct round){&answers, began, now, &alone}))
            break;
        if (has_ended)
            least = now + 2 * ENDING_PAUSE_NS;
        until = first + deadline_ns(v) / (answers.ending > 0 ? 1 : PROCESS_PEERS_PART);
        until = weir__size_larger(until, least);
        was_ending = answers.ending > 0;
        pause = was_ending ? weir__size_smaller(pause * 2, ENDING_PAUSE_NS) : LONGEST_PAUSE_NS;
        if (answers.given > 0) /* it was in parts of units, or others were first */
            most = weir__size_smaller(most * 2, total);
        else if (!has_ended)
            wait_for_process_peers(pause);
        has_asked = 1;
        why = try_with_more(c);
    }
    return why;
}

/* What the limit of the process group lacks for the request. */
static uint64_t group_lacks(struct weir_group *g, size_t bytes) {
    return weir__size_less(bytes + UNIT, weir__group_room(g));
}

/* One round: 1 if another try may be of use. */
static int ask_members(struct climb *c, struct weir_group *g, uint64_t bytes, uint64_t first,
                       uint64_t until) {
    struct weir_answers answers = {0};
    struct weir_reserve *v = c->v;
    uint64_t now, used = weir__group_used(g), ending = weir__group_recover(g);

    if (weir__group_used(g) < used)
        return 1;
    now = weir__registry_now();
    if (v->events.peers)
        answers = weir__process_peers_ask(v->events.peers, bytes, first, until, g);
    if (v->events.peers && answers.given > 0)
        weir__engine_note(v->engine, WEIR_EVENT_RECLAIM, 0, bytes, answers.given,
                          weir__registry_now() - now, weir__engine_reserve(v->engine));
    if (answers.given == 0 && (answers.awaited || ending > 0))
        wait_for_process_peers(ENDING_PAUSE_NS);
    return answers.given > 0 || answers.awaited || ending > 0;
}

/* Rung 5 for what the group lacks, in real time.  Likewise. */
static weir_status ask_group(struct climb *c, struct weir_group *g, weir_status why) {
    uint64_t first = weir__registry_now(), until = first + deadline_ns(c->v) / PROCESS_PEERS_PART;
    uint64_t most = weir__size_larger(weir__group_limit(g) / ASKED_PART, UNIT), lacks;

    if (c->r->bytes > weir__group_limit(g))
        return why;
    while (why == WEIR_E_NO_MEMORY && (lacks = group_lacks(g, c->r->bytes)) > 0) {
        most = weir__size_larger(most, lacks);
        if (!ask_members(c, g, most, first, until))
            break;
        why = try_with_more(c);
        most = weir__size_smaller(most * 2, weir__group_limit(g));
        if (weir__registry_now() >= until)
            break;
    }
    return why;
}

uint64_t weir__oom_recovery_largest(struct weir_reserve *v,
                                    const struct weir_failed_request *refused) {
    struct weir_survey survey = {.what = WEIR_SURVEY_LARGEST, .id = refused->stream};

    if (refused->is_captured)
        return 0;
    v->engine->ops->survey(v->engine, &survey);
    return survey.largest;
}

/* Of the engine's; the caller knows more of it. */
static void fill_failure(struct weir_reserve *v, const struct weir_request *r, weir_status status,
                         uint64_t waited_ns) {
    atomic_fetch_add_explicit(&v->events.counters->failed_requests, 1, memory_order_relaxed);
    if (!r->refused)
        return;
    *r->refused =
        (struct weir_failed_request){.figures = read_failure(v, r->asked),
                                     .stream = r->id,
                                     .is_captured = (r->flags & WEIR_REQUEST_CAPTURED) != 0,
                                     .status = status};
    r->refused->figures.waited_ns = waited_ns;
}

/* Runs the rungs in order.  Returns the status of the last try. */
static weir_status climb(struct climb *c, weir_status status) {
    struct weir_group *group = weir__group_of(c->v->device->driver, c->v->device->ordinal);
    weir_failure failure;
    uint64_t above = 0;

    if (reclaim_above(c, deadline_ns(c->v) > 0, &above))
        status = try_again(c);
    failure = read_failure(c->v, c->r->bytes);
    if (weir__is_failure(status) && could_fit(&failure, above)) {
        status = wait_for_frees(c, above, status);
        if (weir__is_failure(status) && give_back(c))
            status = try_again(c);
    }
    status = settled(c, status);
    status = ask_allocators(c, status);
    if (group)
        status = ask_group(c, group, status);
    if (!group || group_lacks(group, c->r->bytes) == 0)
        status = ask_process_peers(c, status);
    if (c->r->foretold && weir__is_failure(status)) { /* the driver may have more than it says */
        c->r->flags |= WEIR_REQUEST_INSISTS;
        status = settled(c, weir__oom_recovery_try(c->v, c->r));
    }
    return status;
}

/* A graph's memory is none of an engine's: nothing that is idle or pending would serve it, and what went back now, on
 * that stream, would go back at each launch. */
static int is_captured(const struct weir_reserve *v, struct weir_request *r) {
    if (r->id == 0 && !(r->flags & WEIR_REQUEST_CAPTURED) &&
        weir__device_capture(v->device, r->stream) == WEIR_E_CAPTURE)
        r->flags |= WEIR_REQUEST_CAPTURED;
    return (r->flags & WEIR_REQUEST_CAPTURED) != 0;
}

weir_status weir__oom_recovery_run(struct weir_reserve *v, struct weir_request *r,
                                   const struct weir_lender *caches, weir_status why) {
    struct weir_counters *counters = v->events.counters;
    uint64_t started = v->device->driver->ticks(), waited;
    uint64_t counted = atomic_load_explicit(&counters->stall_ns, memory_order_relaxed);
    struct climb c = {v, r, caches, 0};
    weir_status status = why;

    r->flags |= WEIR_REQUEST_MAY_GROW;
    if (why == WEIR_E_LIMIT && weir__quota_refresh(v))
        status = try_again(&c);
    if (weir__is_failure(status) && !is_captured(v, r))
        status = climb(&c, status);
    if (c.tries > 0)
        atomic_fetch_add_explicit(&counters->retries, 1, memory_order_relaxed);
    waited = weir__device_since(v->device, started);
    /* Growth on the way has noted its own part. */
    counted = atomic_load_explicit(&counters->stall_ns, memory_order_relaxed) - counted;
    atomic_fetch_add_explicit(&counters->stall_ns, weir__size_less(waited, counted),
                              memory_order_relaxed);
    if (weir__is_failure(status))
        fill_failure(v, r, status, waited);
    return status;
}

int weir__oom_recovery_drain(struct weir_reserve *v) {
    const struct weir_driver *driver = v->device->driver;
    uint64_t started = driver->ticks();
    uint64_t pause = FIRST_PAUSE_NS;

    while (weir__engine_reclaim(v->engine, NULL) > 0) {
        if (weir__device_since(v->device, started) >= deadline_ns(v))
            return 0;
        driver->sleep_ns(pause);
        pause = weir__size_smaller(pause * 2, LONGEST_PAUSE_NS);
    }
    return 1;
}
