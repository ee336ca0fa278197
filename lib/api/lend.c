/* SPDX-License-Identifier: MIT */
/* lend.c: what other allocators of the process, and other processes, get of an allocator's idle memory, and
 * ask of it.
 *
 * Must not know: how an engine places blocks.
 */
#include "config.h"

#include <stdio.h>
#include <time.h>

#include "api/create.h"
#include "base/log.h"
#include "base/size.h"
#include "cache/pinned.h"
#include "config/settings.h"
#include "ipc/group_process.h"
#include "ipc/registry.h"

/* On an H200 a context takes 0.5 GiB, and kernels are loaded into it; and how long others have to make room for
 * one: a program that gets none ends. */
#define CONTEXT_BYTES ((uint64_t)1 << 30)
#define CONTEXT_NS UINT64_C(1000000000)
#define CONTEXT_PAUSE_NS 10000000

/* ---- allocators of the process -------------------------------------------------------------------- */

/* Returns the idle bytes above what stays.  *above: those of them that private pools without users hold.  Engine direct has
 * no others. */
static uint64_t could_lend(weir_allocator *a, int may_wait, uint64_t *above) {
    int is_direct = a->options.engine == WEIR_ENGINE_DIRECT;
    weir_statistics figures;
    uint64_t idle;

    *above = 0;
    if ((!weir__can_shrink(a) && !is_direct) ||
        weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST) ||
        (!may_wait &&
         (a->harden || a->caches || (a->reserve.engine->traits & WEIR_ENGINE_TRIM_WAITS))))
        return 0;
    if (may_wait)
        *above = weir__reserve_reclaimable(&a->reserve);
    weir__stats_read(a, &figures);
    idle =
        weir__size_less(figures.reserved,
                        weir__reserve_target(&a->reserve, figures.reserved,
                                             weir__size_less(figures.in_use, *above), UINT64_MAX));
    return is_direct ? weir__size_smaller(idle, *above) : idle;
}

/* Waits for the device.  Then the frees of all threads are complete, and private pools without users free their memory,
 * which engine direct gives to the device at once.  Returns the bytes that went. */
static uint64_t reclaim_after_wait(weir_allocator *a) {
    uint64_t pending, before = weir__engine_reserve(a->reserve.engine);

    if (!(a->reserve.engine->traits & WEIR_ENGINE_TRIM_WAITS))
        (void)weir__device_wait(&a->device);
    (void)weir__reserve_reclaim(&a->reserve, 1, &pending);
    return weir__size_less(before, weir__engine_reserve(a->reserve.engine));
}

/* Frees idle memory for another allocator of the process.  Returns the bytes that went. */
static uint64_t lend(weir_allocator *a, uint64_t wanted, int may_wait) {
    uint64_t went = 0, above;
    size_t released = 0;

    if (could_lend(a, may_wait, &above) == 0)
        return 0;
    if (may_wait)
        went = reclaim_after_wait(a);
    (void)weir__relieve(a, wanted, WEIR_EVENT_LOW_MEMORY, &released);
    return went + released;
}

uint64_t weir__borrow(void *allocator, uint64_t least, uint64_t most, int may_wait) {
    weir_allocator *a = allocator;
    struct weir_local_peer *s = NULL;
    uint64_t idle = 0, got = 0, above;

    while ((s = weir__local_peers_next(&a->local_peer, s)))
        idle += could_lend(s->owner, may_wait, &above);
    if (idle == 0 || idle < least)
        return 0;
    while (got < most && (s = weir__local_peers_next(&a->local_peer, s)))
        got += lend(s->owner, most - got, may_wait);
    if (s)
        weir__local_peers_let_go(s);
    return got;
}

/* ---- other processes ---------------------------------------------------------------------------- */

/* Returns the bytes that the allocator would give back: its idle bytes, less those beside live blocks or beside what
 * stays.  *above: as of could_lend. */
static uint64_t could_give(weir_allocator *a, uint64_t *above) {
    uint64_t idle = could_lend(a, 1, above), held;
    weir_statistics figures;

    if (idle == 0)
        return idle;
    /* Of an arena what is in one piece with what is to stay does not go; a region of the pool's becomes its units. */
    held = weir__held(a->reserve.engine, a->caches, a->harden,
                      weir__options_suballocate(&a->options) ? idle : UINT64_MAX);
    weir__stats_read(a, &figures);
    return weir__size_smaller(idle, weir__size_less(figures.reserved, held) + *above);
}

static void tell_holding(void *allocator, struct weir_holding *out) {
    weir_allocator *a = allocator;
    weir_statistics figures;
    uint64_t above, idle = could_give(a, &above);

    weir__stats_read(a, &figures);
    *out = (struct weir_holding){
        .reserved = figures.reserved,
        .in_use = weir__size_less(figures.in_use, above),
        .idle = idle,
        .limit = atomic_load_explicit(&a->reserve.quota.limit, memory_order_relaxed),
        .device_total = a->device.total,
        .device_free = weir__device_free(&a->device),
        .shown = &a->reserve.events.shown,
    };
}

/* Frees idle memory for other processes.  First goes what needs no wait.  With `may_wait` the device is waited for next,
 * and private pools without users free their memory.  If idle memory lies in larger pieces, more goes than is wanted.
 * Returns the bytes that went. */
static uint64_t give(weir_allocator *a, uint64_t wanted, int may_wait) {
    int has_waited = !may_wait;
    uint64_t given = 0, more = wanted, idle, above;
    size_t released = 0;

    while (given < wanted) {
        idle = could_give(a, &above);
        if (!may_wait) /* private pools free their memory only after a wait */
            idle = weir__size_less(idle, above);
        if (idle == 0)
            break;
        if (weir__relieve(a, more, WEIR_EVENT_RELEASE, &released) != WEIR_OK)
            break;
        given += released;
        if (released > 0) {
            more = weir__size_less(wanted, given);
            continue;
        }
        if (has_waited && more >= idle)
            break;
        if (!has_waited)
            given += reclaim_after_wait(a);
        else
            more *= 2;
        has_waited = 1;
    }
    return given;
}

static uint64_t give_way(void *allocator, uint64_t wanted) {
    return give(allocator, wanted, 1);
}

/* What is above the limit goes, as far as it is idle.  What stayed although it was waited for, as what lies beside
 * blocks does, is left alone until the program has called. */
static void give_above(weir_allocator *a) {
    weir_statistics figures;
    uint64_t above, calls;

    weir__stats_read(a, &figures);
    above = weir__size_less(figures.reserved, a->reserve.quota.limit);
    calls = figures.allocs + figures.frees;
    if (above == 0 || ((a->reserve.engine->traits & WEIR_ENGINE_TRIM_WAITS) && above == a->stayed &&
                       calls == a->stayed_after))
        return;
    a->stayed = weir__size_less(above, give(a, above, 0));
    a->stayed_after = calls;
}

/* Other processes have come or gone, or some time has. */
static void resize(void *allocator, uint64_t weights) {
    weir_allocator *a = allocator;
    weir_statistics figures;

    if (!a->reserve.quota.follows || weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return;
    weir__stats_read(a, &figures);
    (void)weir__quota_refresh_for(&a->reserve, figures.in_use);
    weir__quota_lower_floor(&a->reserve, weights);
    give_above(a);
}

int weir__allocator_admit(struct weir_process_peers *n, struct weir_admission *admission) {
    uint64_t now = weir__registry_now();
    struct weir_answers answers;

    if (admission->began_ns == 0)
        admission->began_ns = now;
    if (!n || admission->is_over || now - admission->began_ns >= CONTEXT_NS)
        return 0;
    answers = weir__group_ask_whom_it_concerns(n, CONTEXT_BYTES, admission->began_ns,
                                               admission->began_ns + CONTEXT_NS);
    admission->is_over = answers.given < CONTEXT_BYTES && !answers.awaited;
    if (answers.given == 0 && answers.awaited) /* nor is it asked again */
        nanosleep(&(struct timespec){0, CONTEXT_PAUSE_NS}, NULL);
    return answers.heard || answers.awaited; /* shares may have fallen for it, and left room */
}

void weir__allocator_not_admitted(struct weir_process_peers *n, char *text, size_t bytes) {
    char holders[WEIR_PROCESS_PEERS_SHOWN];

    weir__process_peers_show(n, holders);
    if (holders[0])
        snprintf(text, bytes,
                 "start these with keep-free 1GiB (--keep-free) to keep room for it: %s", holders);
    else
        snprintf(text, bytes, "weir knows of no other process that has memory there");
}

struct weir_process_peers *weir__allocator_join(const struct weir_driver *driver, CUdevice device,
                                                struct weir_claim *claim, int log) {
    static const struct weir_process_peers_calls calls = {tell_holding, give_way, resize};
    char why[WEIR_REGISTRY_PATH + 96];
    struct weir_process_peers *n =
        weir__process_peers_join(driver, device, &calls, claim, why, sizeof why);

    if (!n && why[0])
        weir__log(
            log, WEIR_LOG_WARNING,
            "no shared registry of the device's processes (%s): weir cannot ask them for memory",
            why);
    return n;
}

struct weir_claim weir__allocator_claim(const weir_options *o) {
    return (struct weir_claim){.priority = o->priority,
                               .weight = weir__quota_weight(o),
                               .shares = weir__quota_has_share(o) || o->keep_free.value > 0};
}

void weir__join_process_peers(weir_allocator *a) {
    const weir_options *o = &a->options;

    a->claim = weir__allocator_claim(o);
    if (o->registry == WEIR_SWITCH_ON)
        a->reserve.events.peers =
            weir__allocator_join(a->device.driver, a->device.ordinal, &a->claim, o->log);
}

void weir__leave_peers(weir_allocator *a) {
    if (a->reserve.events.peers)
        weir__process_peers_leave(a->reserve.events.peers, &a->claim, &a->reserve.events.shown);
}
