/* SPDX-License-Identifier: MIT */
/* oom_ladder.c: the out-of-memory ladder.
 *
 * Rungs, each followed by another try where it changed something:
 *   1. what the engine holds idle and has already seen completed;
 *   2. frees that are still pending: polled, with growing pauses, until the deadline (never an
 *      unbounded wait: the stream that holds the memory may wait for the caller);
 *   3. a trim of all idle reserve, so that scattered room becomes the device's again, and one try.
 *      An engine's trim may wait for the device, however long that takes; it is left out where no
 *      waiting at all was asked for.
 *   4. what other allocators of the process hold idle on the device, if that can be enough: at first as
 *      much as the request is, and where that did not do, all.  Such a trim may wait likewise.
 *   5. other processes on the device (process_peers.h): a tenth of the deadline in all, of real time; all of it where
 *      one that was killed is not gone yet.
 *   6. where engines did not ask the driver since it says that it has too little (engine.h): one try that asks.
 * None of them is for a graph's request, on a stream that is being captured.
 * 4 and 5 are for what the device has too little of, or what is to be left on it.  What the driver took for a try that
 * it refused all the same goes back before them, and after each try from there on.  Before all of them a limit that
 * depends on other programs is set anew.  A request that could not fit even if everything idle and pending came free
 * skips 1 to 3, and one for more than the limit 3.  Then the status stands, and the figures of the refusal are kept for
 * the thread.
 *
 * No lock of this file; the engine guards itself.  Must not know: any single engine.
 */
#include "reserve/oom_ladder.h"

#include <stdio.h>
#include <time.h>

#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"
#include "config/settings.h"
#include "ipc/ledger.h"

#define FIRST_PAUSE_NS UINT64_C(20000)
#define LONGEST_PAUSE_NS UINT64_C(2000000)
/* Where one that is ending is waited for, which takes the driver a tenth of a second. */
#define ENDING_PAUSE_NS UINT64_C(10000000)
/* What engines may have to grow by for a small request. */
#define UNIT ((uint64_t)32 << 20)
/* Of the deadline, what others have; all of it where one of them is ending. */
#define NEIGHBOURS_PART 10
/* How long those who have just left may take to be gone, once nobody is there. */
#define ALONE_NS UINT64_C(10000000)
/* Of the device, what they are asked for at least: each time costs them a trim. */
#define ASKED_PART 64

static uint64_t deadline_ns(const struct weir_host *host) {
    return host->options.recovery_timeout_ms == UINT32_MAX
               ? 0
               : (uint64_t)host->options.recovery_timeout_ms * 1000000;
}

static int is_refusal(weir_status status) {
    return status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
}

/* What went with the refusal. */
static void read_refusal(const struct weir_engine *ops, void *engine, struct weir_host *host,
                         size_t bytes, weir_refusal *out) {
    weir_statistics figures = {.size = sizeof figures};

    ops->figures(engine, &figures);
    *out = (weir_refusal){
        .size = sizeof *out,
        .asked = bytes,
        .reserve = figures.reserve,
        .in_use = figures.in_use,
        .limit = host->limit,
        .device_free = weir__device_free(&host->device),
        .device_total = host->device.total,
    };
}

/* Could it fit if all that is idle or pending inside came free, in one piece? */
static int could_fit(const weir_refusal *r) {
    uint64_t idle = r->reserve - r->in_use;
    uint64_t device = r->device_free == UINT64_MAX ? r->device_total : r->device_free;

    return r->asked <= idle + weir__size_smaller(device, weir__size_less(r->limit, r->reserve));
}

/* The limit, but for what it is lowered by so that something is left on the device. */
static uint64_t own_limit(const struct weir_host *host) {
    return host->relimit ? atomic_load_explicit(&host->own_limit, memory_order_relaxed)
                         : host->limit;
}

/* Of what is free on the device, what may be taken; nothing, if that is not known: others are asked for all. */
static uint64_t usable(const struct weir_host *host, uint64_t device_free) {
    return device_free == UINT64_MAX ? 0 : weir__size_less(device_free, host->leave);
}

/* Is it the device that is short, or what is to be left on it? */
static int is_short(const struct weir_host *host, weir_status why) {
    return why == WEIR_E_NO_MEMORY || (why == WEIR_E_LIMIT && host->leave > 0);
}

/* What the last try of a rung came to; nothing is left of one that was refused, and of those before one that was served
 * what they took is the reserve's. */
static weir_status settled(const struct weir_engine *ops, void *engine, weir_status status) {
    if (ops->unwind)
        ops->unwind(engine, is_refusal(status));
    return status;
}

/* Another try, after others have given. */
static weir_status try_again(const struct weir_engine *ops, void *engine, struct weir_host *host,
                             size_t bytes, weir_stream stream, CUdeviceptr *block, int *grew) {
    if (host->relimit)
        (void)host->relimit(host);
    return settled(ops, engine, ops->alloc(engine, bytes, stream, 0, 1, block, grew));
}

/* Rung 3: 1 if there may be room that was not there before.  For more than the limit there never is: only what is idle
 * where it lies serves that. */
static int give_back(const struct weir_engine *ops, void *engine, const struct weir_host *host,
                     size_t bytes) {
    size_t released = 0;

    if (bytes > host->limit || (ops->trim_waits && deadline_ns(host) == 0))
        return 0;
    return ops->trim(engine, 0, WEIR_EVENT_RECOVERY, &released) == WEIR_OK &&
           (released > 0 || ops->trim_waits);
}

/* Rung 1 and 2.  The status of the last try; *asked is set to 1 if there was one. */
static weir_status wait_for_frees(const struct weir_engine *ops, void *engine,
                                  struct weir_host *host, weir_status why, size_t bytes,
                                  weir_stream stream, CUdeviceptr *block, int *grew, int *asked) {
    uint64_t started = host->device.driver->ticks();
    uint64_t pause = FIRST_PAUSE_NS;
    size_t silent = 0, pending = ops->reclaim(engine, &silent);

    for (;;) {
        uint64_t waited = weir__device_since(&host->device, started);

        if ((pending + silent == 0 && !ops->hides_pending) || waited >= deadline_ns(host))
            return why;
        host->device.driver->sleep_ns(pause);
        pause = weir__size_smaller(pause * 2, LONGEST_PAUSE_NS);
        pending = ops->reclaim(engine, &silent);
        *asked = 1;
        why = ops->alloc(engine, bytes, stream, 0, 1, block, grew);
        if (!is_refusal(why))
            return why;
    }
}

/* Rung 4.  The status of the last try, or `why`; *asked likewise. */
static weir_status ask_others(const struct weir_engine *ops, void *engine, struct weir_host *host,
                              weir_status why, size_t bytes, weir_stream stream, CUdeviceptr *block,
                              int *grew, int *asked) {
    int may_wait = deadline_ns(host) > 0, result_before = weir__driver_result;
    weir_refusal now;
    uint64_t idle, most = weir__size_larger(bytes, UNIT);

    for (int i = 0; i < 2 && is_short(host, why); i++, most = UINT64_MAX) {
        read_refusal(ops, engine, host, bytes, &now);
        idle = now.reserve - now.in_use;
        if (now.device_free == UINT64_MAX ||
            bytes > idle + weir__size_less(own_limit(host), now.reserve) ||
            host->borrow(
                host, weir__size_less(bytes, idle + weir__size_less(now.device_free, host->leave)),
                most, may_wait) == 0)
            break;
        *asked = 1;
        why = try_again(ops, engine, host, bytes, stream, block, grew);
        result_before = weir__driver_result;
    }
    weir__set_driver_result(result_before);
    return why;
}

/* Who was killed a moment ago may still hold memory, and others may need less by now. */
static void wait_for_neighbours(uint64_t pause_ns) {
    nanosleep(&(struct timespec){0, (long)pause_ns}, NULL);
}

/* What the device, and what is idle, do not have of a request. */
static uint64_t lack_of(const weir_refusal *now, const struct weir_host *host, size_t bytes) {
    return weir__size_less(bytes, now->reserve - now->in_use + usable(host, now->device_free));
}

/* Nobody has given: is there nobody who may?  `room` is what others may keep, `lacks` what they must give; *alone:
 * until when those who have left unseen are waited for, 0 while somebody was there.  To find that out may have taken
 * longer: who is not heard of is waited for, and may be killed meanwhile. */
static int nobody_will(const struct weir_answers *answers, uint64_t room, uint64_t lacks,
                       uint64_t now, uint64_t *alone) {
    if (answers->kept != UINT64_MAX) {
        *alone = 0;
        return room < answers->kept;
    }
    if (answers->ending > 0 && answers->ending >= lacks)
        return 0;
    if (*alone == 0)
        *alone = now + ALONE_NS;
    return now > *alone;
}

/* Rung 5, in real time.  Likewise. */
static weir_status ask_neighbours(const struct weir_engine *ops, void *engine,
                                  struct weir_host *host, weir_status why, size_t bytes,
                                  weir_stream stream, CUdeviceptr *block, int *grew, int *asked) {
    uint64_t began = weir__ledger_now(), until = began + deadline_ns(host) / NEIGHBOURS_PART;
    uint64_t most = weir__size_larger(host->device.total / ASKED_PART, UNIT);
    uint64_t now, missing, first = began, alone = 0, all = host->device.total - host->leave;
    uint64_t pause = LONGEST_PAUSE_NS, least = 0;
    int result_before = weir__driver_result, has_asked = 0, was_ending = 0, has_ended;
    struct weir_answers answers;
    weir_refusal figures;

    for (; host->neighbours && is_short(host, why) && began < until; began = now) {
        read_refusal(ops, engine, host, bytes, &figures);
        if (bytes > weir__size_less(all, figures.in_use) ||
            bytes > figures.reserve - figures.in_use +
                        weir__size_less(own_limit(host), figures.reserve))
            break;
        missing = weir__size_less(bytes, usable(host, figures.device_free)) + UNIT;
        most = weir__size_larger(most, weir__size_smaller(missing, host->device.total));
        answers = weir__neighbours_ask(host->neighbours, most, first, until);
        now = weir__ledger_now();
        if (answers.kept != UINT64_MAX && (answers.given > 0 || !has_asked))
            weir__engine_note(host, WEIR_EVENT_APPEAL, 0, most, answers.given, now - began,
                              figures.reserve);
        /* Its memory has come free since the last try; or it was not seen, or not looked for, just now. */
        has_ended = was_ending && answers.ending == 0;
        if (answers.given == 0 && !has_ended &&
            nobody_will(&answers, weir__size_less(all, figures.in_use + bytes),
                        lack_of(&figures, host, bytes), now, &alone))
            break;
        if (has_ended)
            least = now + 2 * ENDING_PAUSE_NS;
        until = first + deadline_ns(host) / (answers.ending > 0 ? 1 : NEIGHBOURS_PART);
        until = weir__size_larger(until, least);
        was_ending = answers.ending > 0;
        pause = was_ending ? weir__size_smaller(pause * 2, ENDING_PAUSE_NS) : LONGEST_PAUSE_NS;
        if (answers.given > 0) /* it was in parts of units, or others were first */
            most = weir__size_smaller(most * 2, host->device.total);
        else if (!has_ended)
            wait_for_neighbours(pause);
        *asked = has_asked = 1;
        why = try_again(ops, engine, host, bytes, stream, block, grew);
        result_before = weir__driver_result;
    }
    weir__set_driver_result(result_before);
    return why;
}

static void log_refusal(const struct weir_host *host, weir_status status, const weir_refusal *r) {
    char asked[32], reserve[32], in_use[32], device_free[32] = "not known", largest[32];
    char bytes[32], limit[48] = "";

    if (host->hushed)
        return;
    weir__bytes_show(r->asked, asked, sizeof asked);
    weir__bytes_show(r->reserve, reserve, sizeof reserve);
    weir__bytes_show(r->in_use, in_use, sizeof in_use);
    if (r->device_free != UINT64_MAX)
        weir__bytes_show(r->device_free, device_free, sizeof device_free);
    weir__bytes_show(r->largest, largest, sizeof largest);
    if (status == WEIR_E_LIMIT) {
        weir__bytes_show(r->limit, bytes, sizeof bytes);
        snprintf(limit, sizeof limit, "limit %s, ", bytes);
    }
    weir__log(host->options.log, WEIR_LOG_WARNING,
              "%s: asked %s, %sreserve %s, in use %s, free on the device %s; at least %s can be "
              "had at once",
              weir_status_message(status), asked, limit, reserve, in_use, device_free, largest);
}

/* Who was refused, and what the stream could have had. */
static void note_refusal(const struct weir_engine *ops, void *engine, struct weir_host *host,
                         weir_status status, weir_stream stream, weir_refusal *figures) {
    int result_before = weir__driver_result;
    struct weir_refused refused = {.by = host->number, .status = status};

    refused.is_captured =
        weir__device_stream_id(&host->device, stream, &refused.stream) != CUDA_SUCCESS;
    weir__set_driver_result(result_before);
    figures->largest = weir__recovery_largest(ops, engine, host, &refused);
    refused.figures = *figures;
    weir__refusal_set(&refused);
}

uint64_t weir__recovery_largest(const struct weir_engine *ops, void *engine, struct weir_host *host,
                                const struct weir_refused *refused) {
    return refused->is_captured ? 0 : host->fit(host, ops->largest(engine, refused->stream, 0));
}

/* In the books, for the thread, and to whoever wants to know. */
static void refuse(const struct weir_engine *ops, void *engine, struct weir_host *host,
                   weir_status status, size_t asked, weir_stream stream, uint64_t waited_ns) {
    weir_statistics figures;
    weir_refusal refusal;

    atomic_fetch_add_explicit(&host->books->refusals, 1, memory_order_relaxed);
    read_refusal(ops, engine, host, asked, &refusal);
    host->figures(host, &figures);
    refusal.in_use = figures.in_use; /* to the engine what lies in caches is, too */
    refusal.waited_ns = waited_ns;
    note_refusal(ops, engine, host, status, stream, &refusal);
    log_refusal(host, status, &refusal);
    host->refused(host);
}

/* The rungs. */
static weir_status climb(const struct weir_engine *ops, void *engine, struct weir_host *host,
                         weir_status status, size_t bytes, weir_stream stream, CUdeviceptr *block,
                         int *grew, int *again) {
    weir_refusal refusal;

    read_refusal(ops, engine, host, bytes, &refusal);
    if (is_refusal(status) && could_fit(&refusal)) {
        status = wait_for_frees(ops, engine, host, status, bytes, stream, block, grew, again);
        if (is_refusal(status) && give_back(ops, engine, host, bytes)) {
            *again = 1;
            status = ops->alloc(engine, bytes, stream, 0, 1, block, grew);
        }
    }
    status = settled(ops, engine, status);
    status = ask_others(ops, engine, host, status, bytes, stream, block, grew, again);
    status = ask_neighbours(ops, engine, host, status, bytes, stream, block, grew, again);
    if (weir__engine_insist(1) && is_refusal(status)) /* the driver may have more than it says */
        status = settled(ops, engine, ops->alloc(engine, bytes, stream, 0, 1, block, grew));
    (void)weir__engine_insist(0);
    return status;
}

/* A graph's memory is none of an engine's: nothing that is idle or pending would serve it, and what went back now, on
 * that stream, would go back at each launch. */
static int is_captured(struct weir_host *host, weir_stream stream) {
    int result_before = weir__driver_result;
    int is = weir__device_capture(&host->device, stream) == WEIR_E_CAPTURE;

    weir__set_driver_result(result_before);
    return is;
}

weir_status weir__recovery_alloc(const struct weir_engine *ops, void *engine,
                                 struct weir_host *host, weir_status why, size_t bytes,
                                 size_t asked, weir_stream stream, CUdeviceptr *block, int *grew) {
    uint64_t started = host->device.driver->ticks(), waited;
    uint64_t counted = atomic_load_explicit(&host->books->stall_ns, memory_order_relaxed);
    weir_status status = why;
    int again = 0;

    if (why == WEIR_E_LIMIT && host->relimit && host->relimit(host)) {
        again = 1;
        status = ops->alloc(engine, bytes, stream, 0, 1, block, grew);
    }
    if (!is_captured(host, stream))
        status = climb(ops, engine, host, status, bytes, stream, block, grew, &again);
    if (again)
        atomic_fetch_add_explicit(&host->books->retries, 1, memory_order_relaxed);
    waited = weir__device_since(&host->device, started);
    /* Growth on the way has noted its own part. */
    counted = atomic_load_explicit(&host->books->stall_ns, memory_order_relaxed) - counted;
    atomic_fetch_add_explicit(&host->books->stall_ns, weir__size_less(waited, counted),
                              memory_order_relaxed);
    if (is_refusal(status))
        refuse(ops, engine, host, status, asked, stream, waited);
    return status;
}

int weir__recovery_drain(const struct weir_engine *ops, void *engine, struct weir_host *host) {
    uint64_t started = host->device.driver->ticks();
    uint64_t pause = FIRST_PAUSE_NS;

    while (ops->reclaim(engine, NULL) > 0) {
        if (weir__device_since(&host->device, started) >= deadline_ns(host))
            return 0;
        host->device.driver->sleep_ns(pause);
        pause = weir__size_smaller(pause * 2, LONGEST_PAUSE_NS);
    }
    return 1;
}
