/* SPDX-License-Identifier: MIT */
/* oom_recovery.c: frees memory in several steps for a request that would otherwise fail.  This file has no lock. */
#include "reserve/reserve.h"

#include <time.h>

#include "base/result.h"
#include "base/size.h"
#include "ipc/group_process.h"
#include "ipc/registry.h"

#define FIRST_PAUSE_NS UINT64_C(20000)
#define LONGEST_PAUSE_NS UINT64_C(2000000)
/* The maximum time to poll freed blocks whose last use has no event.  A trim then waits for the device. */
#define SILENT_NS UINT64_C(4000000)
/* The pause between two retries while another process is ending.  The driver needs about 0.1 s to end a process. */
#define ENDING_PAUSE_NS UINT64_C(10000000)
/* The bytes by which an engine may have to grow for a small request. */
#define UNIT ((uint64_t)WEIR_POOL_UNIT)
/* OOM recovery waits for other processes for a tenth of its time, or for all its time while a process is ending. */
#define PROCESS_PEERS_PART 10
/* The time to wait for the driver to free the memory of ended processes. */
#define ALONE_NS UINT64_C(10000000)
/* weir asks other processes for at least 1 / ASKED_PART of the device at once, since each request makes them trim. */
#define ASKED_PART 64

/* Returns the memory figures of a failed request.  If `only_live' is set, counts only live blocks as memory in use,
 * since the engine's figure may contain internal blocks, and memory that another thread is releasing. */
static weir_failure read_failure(struct weir_reserve *v, size_t bytes, int only_live) {
    weir_statistics figures = {.size = sizeof figures};

    v->engine->ops->figures(v->engine, &figures);
    return (weir_failure){
        .size = sizeof(weir_failure),
        .asked = bytes,
        .reserved = figures.reserved,
        .in_use =
            only_live ? weir__size_smaller(figures.in_use, figures.requested) : figures.in_use,
        .limit = v->limit.bytes,
        .device_free = weir__device_free(v->device),
        .device_total = v->device->total,
    };
}

/* Returns the device's free memory above --keep-free, or 0 if the free memory is unknown. */
static uint64_t usable_free(const struct weir_reserve *v, uint64_t device_free) {
    return device_free == UINT64_MAX ? 0 : weir__size_subtract(device_free, v->limit.keep_free);
}

/* Returns the bytes that the request needs beyond idle memory and the device's free memory. */
static uint64_t missing_bytes(const struct weir_reserve *v, const weir_failure *now, size_t bytes) {
    return weir__size_subtract(bytes,
                               now->reserved - now->in_use + usable_free(v, now->device_free));
}

/* Returns 1 if memory of other processes can help a failed request.  With --keep-free, such memory raises the limit. */
static int is_short(const struct weir_reserve *v, weir_status why) {
    return why == WEIR_E_NO_MEMORY || (why == WEIR_E_LIMIT && v->limit.keep_free > 0);
}

/* ---- steps inside the allocator ---------------------------------------------------------------- */

struct recovery {
    struct weir_reserve *v;
    struct weir_request *r;
    struct weir_group *group; /* the processes that share this process's limit, or NULL */
    uint64_t deadline_ns;     /* the maximum time to wait for work on freed blocks, or 0 */
    uint64_t above; /* freed bytes with pending work in a layer above, such as a framework */
    int trim_waits; /* 1 if a trim by this engine waits for the device */
    int tries;
    weir_status status; /* the status of the last attempt to allocate the block */
};

static void retry_request(struct recovery *c) {
    c->tries++;
    c->status = weir__reserve_try(c->v, c->r);
}

/* Returns 1 if idle memory, freed blocks that work may still use, and growth suffice for the request, else 0. */
static int could_fit(const struct recovery *c) {
    weir_failure now = read_failure(c->v, c->r->bytes, 0);
    uint64_t idle = now.reserved - now.in_use + c->above;
    uint64_t device = now.device_free == UINT64_MAX ? now.device_total : now.device_free;

    return now.asked <=
           idle + weir__size_smaller(device, weir__size_subtract(now.limit, now.reserved));
}

/* Flushes the caches and the guard (guard.h), after a wait for the device.  Returns 1 on success, else 0. */
static int flush_above(struct recovery *c) {
    return c->v->flush && c->r->bytes <= c->v->device->total && c->deadline_ns > 0 &&
           c->v->flush(c->v->flush_context) == WEIR_OK;
}

/* Makes the layer above the allocator free memory, and flushes the caches.  Returns 1 if it freed memory, else 0. */
static int reclaim_above(struct recovery *c, int may_wait) {
    if (!weir__reserve_reclaim(c->v, may_wait, &c->above))
        return 0;
    (void)flush_above(c);
    return 1;
}

/* Returns the nanoseconds for which weir should poll freed blocks that work may still use. */
static uint64_t patience_ns(const struct recovery *c, int is_pending, size_t silent) {
    if (is_pending || c->v->engine->driver_pool)
        return c->deadline_ns;
    if (silent == 0)
        return 0;
    return c->trim_waits ? weir__size_smaller(SILENT_NS, c->deadline_ns) : c->deadline_ns;
}

/* Polls freed blocks that work may still use.  Waits for the device only when the layer above frees memory. */
static void poll_frees(struct recovery *c) {
    struct weir_engine *e = c->v->engine;
    uint64_t started, pause = FIRST_PAUSE_NS;
    size_t silent = 0, pending;

    if (reclaim_above(c, c->deadline_ns > 0))
        retry_request(c);
    if (!weir__is_failure(c->status) || !could_fit(c))
        return;
    started = e->device->driver->ticks();
    pending = weir__engine_reclaim(e, &silent);
    while (weir__is_failure(c->status)) {
        uint64_t waited = weir__device_elapsed_ns(e->device, started);

        if (waited >= patience_ns(c, pending > 0 || c->above > 0, silent))
            return;
        e->device->driver->sleep_ns(pause);
        pause = weir__size_smaller(pause * 2, LONGEST_PAUSE_NS);
        (void)reclaim_above(c, 0);
        pending = weir__engine_reclaim(e, &silent);
        retry_request(c);
    }
}

/* Flushes the caches and the guard (guard.h), and releases all idle memory.  If the request exceeds the limit, releases
 * nothing, and only waits for stream work on freed blocks. */
static void flush_and_trim(struct recovery *c) {
    struct weir_engine *e = c->v->engine;
    size_t released = 0;
    uint64_t keep;

    /* The statistics do not count this attempt as a retry. */
    if (flush_above(c))
        c->status = weir__reserve_try(c->v, c->r);
    if (!weir__is_failure(c->status) || !could_fit(c) || (c->trim_waits && c->deadline_ns == 0))
        return;
    keep = c->r->bytes <= c->v->limit.bytes ? 0 : weir__engine_reserve(e);
    if (weir__engine_trim(e, (size_t)keep, WEIR_EVENT_RECOVERY, &released) != WEIR_OK)
        return;
    /* Retries even if this trim released nothing, since another thread's trim may have released the memory. */
    c->status = weir__reserve_try(c->v, c->r);
    c->tries += released > 0 || c->trim_waits || !weir__is_failure(c->status);
}

/* ---- steps outside the allocator ---------------------------------------------------------------- */

/* Retries the request after other allocators or processes have released memory. */
static void try_with_more(struct recovery *c) {
    (void)weir__limit_refresh(c->v);
    retry_request(c);
}

/* Makes other allocators of this process release idle memory, first as much as the request needs, then all. */
static void ask_allocators(struct recovery *c) {
    struct weir_reserve *v = c->v;
    weir_failure now;
    size_t bytes = c->r->bytes;
    uint64_t idle, least, most = weir__size_larger(bytes, UNIT);

    for (int i = 0; i < 2 && v->lend_device && is_short(v, c->status); i++, most = UINT64_MAX) {
        now = read_failure(v, bytes, 0);
        idle = now.reserved - now.in_use;
        least = weir__size_subtract(
            bytes, idle + weir__size_subtract(now.device_free, v->limit.keep_free));
        if (now.device_free == UINT64_MAX ||
            bytes > idle + weir__size_subtract(weir__limit_own(&v->limit), now.reserved) ||
            v->lend_device(v->lend_context, least, most, c->deadline_ns > 0) == 0)
            return;
        try_with_more(c);
    }
}

static void sleep_between_rounds(uint64_t pause_ns) {
    nanosleep(&(struct timespec){0, (long)pause_ns}, NULL);
}

/* Returns 1 if the request would fail even if all other processes released all their memory, else 0. */
static int is_too_much(const struct weir_reserve *v, const weir_failure *now, size_t bytes) {
    return bytes > weir__size_subtract(v->device->total - v->limit.keep_free, now->in_use) ||
           bytes > now->reserved - now->in_use +
                       weir__size_subtract(weir__limit_own(&v->limit), now->reserved);
}

/* Returns 1 if weir should stop asking other processes for memory, else 0.  `began' and `before' are the time and the
 * figures of the last question.  Until *alone, weir waits for memory of ended processes. */
static int is_last_round(struct recovery *c, const weir_failure *before,
                         const struct weir_answers *answers, uint64_t began, uint64_t *alone) {
    struct weir_reserve *v = c->v;
    size_t bytes = c->r->bytes;
    uint64_t most = v->device->total - v->limit.keep_free, lacks = missing_bytes(v, before, bytes);
    weir_failure now;

    if (answers->unavailable != UINT64_MAX) {
        *alone = 0;
        /* If the request fits beside the bytes that other processes cannot release, weir asks these processes again. */
        if (weir__size_subtract(most, before->in_use + bytes) >= answers->unavailable)
            return 0;
    } else if (answers->ending > 0 && answers->ending >= lacks) {
        return 0;
    } else {
        if (*alone == 0)
            *alone = weir__registry_now() + ALONE_NS;
        if (began <= *alone)
            return 0;
    }
    now = read_failure(v, bytes, 1);
    return lacks == 0 || missing_bytes(v, &now, bytes) > 0;
}

/* Returns the bytes that processes with a common limit (a group) must release before the limit allows the request. */
static uint64_t group_lacks(struct weir_group *g, size_t bytes) {
    return weir__size_subtract(bytes + UNIT, weir__group_room(g));
}

/* Asks the processes that share this process's limit (the group) for memory, until the limit allows the request. */
static void ask_group(struct recovery *c, struct weir_group *g) {
    struct weir_reserve *v = c->v;
    uint64_t first = weir__registry_now(), until = first + c->deadline_ns / PROCESS_PEERS_PART;
    uint64_t limit = weir__group_limit(g), most = weir__size_larger(limit / ASKED_PART, UNIT);
    uint64_t lacks, used, ending, began;

    while (c->r->bytes <= limit && c->status == WEIR_E_NO_MEMORY &&
           (lacks = group_lacks(g, c->r->bytes)) > 0) {
        struct weir_answers answers = {0};

        used = weir__group_used(g);
        ending = weir__group_recover(g);
        most = weir__size_larger(most, lacks);
        if (weir__group_used(g) >= used) {
            began = weir__registry_now();
            if (v->events.peers)
                answers = weir__process_peers_request(
                    v->events.peers,
                    (struct weir_memory_request){most, .began_ns = first, .deadline_ns = until}, g);
            if (answers.freed > 0)
                weir__engine_record(v->engine, WEIR_EVENT_RECLAIM, 0, most, answers.freed,
                                    weir__registry_now() - began, weir__engine_reserve(v->engine));
            else if (answers.is_incomplete || ending > 0)
                sleep_between_rounds(ENDING_PAUSE_NS);
            else
                return;
        }
        try_with_more(c);
        most = weir__size_smaller(most * 2, limit);
        if (weir__registry_now() >= until)
            return;
    }
}

/* Asks other processes for memory, first the processes that share this process's limit (the group). */
static void ask_processes(struct recovery *c) {
    struct weir_reserve *v = c->v;
    struct weir_process_peers *peers = v->events.peers;
    size_t bytes = c->r->bytes;
    uint64_t total = v->device->total, most = weir__size_larger(total / ASKED_PART, UNIT);
    uint64_t began, first, until, now, missing, alone = 0;
    uint64_t pause = LONGEST_PAUSE_NS, least = 0;
    int has_asked = 0, was_ending = 0, has_ended;
    struct weir_answers answers;
    weir_failure figures;

    if (c->group)
        ask_group(c, c->group);
    if (c->group && group_lacks(c->group, bytes) > 0)
        return;
    began = weir__registry_now();
    first = began;
    until = began + c->deadline_ns / PROCESS_PEERS_PART;
    for (; peers && is_short(v, c->status) && began < until; began = now) {
        figures = read_failure(v, bytes, 1);
        if (is_too_much(v, &figures, bytes))
            break;
        missing = weir__size_subtract(bytes, usable_free(v, figures.device_free)) + UNIT;
        most = weir__size_larger(most, weir__size_smaller(missing, total));
        answers = weir__process_peers_request(
            peers, (struct weir_memory_request){most, .began_ns = first, .deadline_ns = until},
            NULL);
        now = weir__registry_now();
        if (answers.unavailable != UINT64_MAX && (answers.freed > 0 || !has_asked))
            weir__engine_record(v->engine, WEIR_EVENT_RECLAIM, 0, most, answers.freed, now - began,
                                figures.reserved);
        /* Retries after a process has ended, since the driver may have freed the memory only after the last attempt. */
        has_ended = was_ending && answers.ending == 0;
        if (answers.freed == 0 && !has_ended && is_last_round(c, &figures, &answers, began, &alone))
            break;
        if (has_ended)
            least = now + 2 * ENDING_PAUSE_NS;
        until = first + c->deadline_ns / (answers.ending > 0 ? 1 : PROCESS_PEERS_PART);
        until = weir__size_larger(until, least);
        was_ending = answers.ending > 0;
        pause = was_ending ? weir__size_smaller(pause * 2, ENDING_PAUSE_NS) : LONGEST_PAUSE_NS;
        /* The released memory did not suffice, so the next request to other processes is for twice as much. */
        if (answers.freed > 0)
            most = weir__size_smaller(most * 2, total);
        else if (!has_ended)
            sleep_between_rounds(pause);
        has_asked = 1;
        try_with_more(c);
    }
}

/* Calls the driver although the device reports too little free memory, since the device may have more. */
static void insist(struct recovery *c) {
    if (!c->r->is_predicted)
        return;
    c->r->flags |= WEIR_REQUEST_FORCED;
    /* The statistics do not count this attempt as a retry. */
    c->status = weir__reserve_try(c->v, c->r);
}

/* ---- all steps ---- */

static void (*const steps[])(struct recovery *c) = {
    poll_frees, flush_and_trim, ask_allocators, ask_processes, insist,
};

uint64_t weir__oom_recovery_largest(struct weir_reserve *v,
                                    const struct weir_failed_request *refused) {
    struct weir_survey survey = {.what = WEIR_SURVEY_LARGEST, .id = refused->stream};

    if (refused->is_captured)
        return 0;
    v->engine->ops->survey(v->engine, &survey);
    return survey.largest;
}

weir_status weir__oom_recovery_run(struct weir_reserve *v, struct weir_request *r,
                                   weir_status why) {
    struct weir_counters *counters = v->events.counters;
    uint64_t started = v->device->driver->ticks(), waited;
    uint64_t timeout_ms = v->options->recovery_timeout_ms;
    uint64_t counted = atomic_load_explicit(&counters->stall_ns, memory_order_relaxed);
    struct recovery c = {.v = v,
                         .r = r,
                         .group = weir__group_of(v->device->driver, v->device->ordinal),
                         .deadline_ns = timeout_ms == UINT32_MAX ? 0 : timeout_ms * 1000000,
                         .trim_waits = (v->engine->traits & WEIR_ENGINE_SUBALLOCATES) != 0,
                         .status = why};

    if (why == WEIR_E_LIMIT && weir__limit_refresh(v))
        retry_request(&c);
    if (weir__is_failure(c.status) && r->id == 0 && !(r->flags & WEIR_REQUEST_CAPTURED) &&
        weir__device_capture(v->device, r->stream) == WEIR_E_CAPTURE)
        r->flags |= WEIR_REQUEST_CAPTURED;
    /* While the stream is being captured, no step helps, since a block inside a CUDA graph cannot use idle memory. */
    for (size_t i = 0; i < sizeof steps / sizeof *steps && weir__is_failure(c.status) &&
                       !(r->flags & WEIR_REQUEST_CAPTURED);
         i++)
        steps[i](&c);
    if (c.tries > 0)
        atomic_fetch_add_explicit(&counters->retries, 1, memory_order_relaxed);
    waited = weir__device_elapsed_ns(v->device, started);
    /* Growth has already added its own waits to stall_ns. */
    counted = atomic_load_explicit(&counters->stall_ns, memory_order_relaxed) - counted;
    atomic_fetch_add_explicit(&counters->stall_ns, weir__size_subtract(waited, counted),
                              memory_order_relaxed);
    if (!weir__is_failure(c.status))
        return c.status;
    atomic_fetch_add_explicit(&counters->failed_requests, 1, memory_order_relaxed);
    if (r->refused) {
        *r->refused =
            (struct weir_failed_request){.figures = read_failure(v, r->asked, 0),
                                         .stream = r->id,
                                         .is_captured = (r->flags & WEIR_REQUEST_CAPTURED) != 0,
                                         .status = c.status};
        r->refused->figures.waited_ns = waited;
    }
    return c.status;
}
