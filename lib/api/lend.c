/* SPDX-License-Identifier: MIT */
/* lend.c: releases idle memory of an allocator for others, and asks other processes for their idle memory. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "api/create.h"
#include "base/bounds.h"
#include "base/log.h"
#include "base/size.h"
#include "cache/caches.h"
#include "config/settings.h"
#include "ipc/group_process.h"
#include "ipc/registry.h"

/* For a context (0.5 GiB on an H200), weir asks other processes for CONTEXT_BYTES, and waits up to CONTEXT_NS. */
#define CONTEXT_BYTES ((uint64_t)1 << 30)
#define CONTEXT_NS UINT64_C(1000000000)
#define CONTEXT_PAUSE_NS 10000000

/* ---- pinned memory ------------------------------------------------------------------------------ */

/* weir does not count pinned memory in a driver's pool that has more than this number of 32 MiB parts. */
enum { UNITS_MOST = 1 << 16 };

/* The pieces of an engine's memory, each of which a trim releases as a whole or not at all. */
struct pinned {
    struct weir_engine *engine;
    struct weir_extent *piece; /* sorted by address; a piece counted in `bytes` has the size 0 */
    size_t count;
    /* The size of all pieces that the trim keeps.  Too small if another thread adds memory at the same time. */
    uint64_t bytes;
};

/* Adds to h->bytes all pieces that overlap the live block or, in a driver's pool, the block's superblock. */
static void pin_pieces(void *context, uint64_t base, size_t bytes) {
    struct pinned *h = context;
    size_t above = h->count, at;
    struct weir_extent superblock;

    if (h->engine->driver_pool &&
        weir__engine_find(h->engine, WEIR_VISIT_REGION_AT, base, &superblock) == 1) {
        base = superblock.base;
        bytes = superblock.bytes;
    }
    WEIR_FIND_FIRST(above, at, h->piece[at].base > base);
    for (at = above > 0 ? above - 1 : 0; at < h->count && h->piece[at].base < base + bytes; at++)
        if (h->piece[at].base + h->piece[at].bytes > base) {
            h->bytes += h->piece[at].bytes;
            h->piece[at].bytes = 0;
        }
}

/* Adds the sizes of pieces larger than `most` to h->bytes, since a trim of `most` bytes cannot release these pieces. */
static void pin_larger(struct pinned *h, uint64_t most) {
    for (size_t i = 0; i < h->count; i++)
        if (h->piece[i].bytes > most) {
            h->bytes += h->piece[i].bytes;
            h->piece[i].bytes = 0;
        }
}

/* Lists the parts of the driver's pool that may have memory, and returns their number. */
static size_t list_units(const struct weir_engine *engine, struct weir_extent **out) {
    uint64_t low = atomic_load_explicit(&engine->seen.low, memory_order_relaxed);
    uint64_t high = atomic_load_explicit(&engine->seen.high, memory_order_relaxed);
    size_t count =
        engine->driver_pool ? (size_t)(high / WEIR_POOL_UNIT - low / WEIR_POOL_UNIT) + 1 : 0;

    *out = count > 0 && count <= UNITS_MOST ? calloc(count, sizeof **out) : NULL;
    for (size_t i = 0; *out && i < count; i++)
        (*out)[i] = (struct weir_extent){.base = (low / WEIR_POOL_UNIT + i) * WEIR_POOL_UNIT,
                                         .bytes = WEIR_POOL_UNIT};
    return count;
}

uint64_t weir__pinned_bytes(struct weir_engine *engine, weir__live_walk_fn *live, void *of,
                            uint64_t most) {
    struct pinned h = {.engine = engine};

    h.count = weir__engine_list_all(engine, WEIR_VISIT_UNITS, &h.piece);
    if (!h.piece)
        h.count = list_units(engine, &h.piece);
    if (!h.piece)
        return 0;
    if (of)
        live(of, pin_pieces, &h);
    pin_larger(&h, most);
    free(h.piece);
    return h.bytes;
}

/* ---- idle memory -------------------------------------------------------------------------------- */

/* Returns the idle bytes that the allocator could release.  *above gets the idle bytes of private tensor pools without
 * users.  Engine direct has idle bytes only in these pools. */
static uint64_t reclaimable_bytes(weir_allocator *a, int may_wait, uint64_t *above) {
    int is_direct = a->options.engine == WEIR_ENGINE_DIRECT;
    uint64_t idle, stays, held;
    weir_statistics figures;

    *above = 0;
    if ((weir__no_release_reason(a) && !is_direct) ||
        weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return 0;
    if (may_wait)
        *above = weir__reserve_reclaimable(&a->reserve);
    weir__stats_read(a, &figures);
    stays = weir__goal_target(&a->reserve.goal, figures.reserved,
                              weir__size_subtract(figures.in_use, *above), UINT64_MAX);
    idle = weir__size_subtract(figures.reserved, stays);
    if (is_direct || idle == 0)
        return weir__size_smaller(idle, *above);
    /* Engine bfc can release only whole regions, so a region larger than `idle` must stay. */
    held = weir__pinned_bytes(a->reserve.engine, a->harden ? weir__harden_live : weir__caches_live,
                              a->harden ? (void *)a->harden : (void *)a->caches,
                              weir__options_suballocate(&a->options) ? idle : UINT64_MAX);
    return weir__size_smaller(idle, weir__size_subtract(figures.reserved, held) + *above);
}

/* Releases idle memory for other allocators or processes.  Returns the number of released bytes, which may be more than
 * `wanted`.  If `may_wait` is set, also frees private tensor pools without users. */
static uint64_t release_idle(weir_allocator *a, uint64_t wanted, int cause, int may_wait) {
    int trim_waits = (a->reserve.engine->traits & WEIR_ENGINE_SUBALLOCATES) != 0;
    int has_waited = !may_wait;
    uint64_t given = 0, more = wanted, pending = 0, idle, above;
    size_t released = 0;

    /* First frees the tensors whose GPU work has ended.  This step does not wait for the device. */
    if (may_wait)
        given = weir__reclaim_bytes(a, 0, &pending);
    while (given < wanted && (idle = reclaimable_bytes(a, may_wait, &above)) > 0) {
        if (weir__release_idle(a, more, cause, &released) != WEIR_OK)
            break;
        given += released;
        if (released > 0) {
            more = weir__size_subtract(wanted, given);
            continue;
        }
        has_waited |= trim_waits && above == 0 && pending == 0;
        if (!has_waited) {
            if (!trim_waits)
                (void)weir__device_wait(&a->device);
            given += weir__reclaim_bytes(a, 1, &pending);
            has_waited = 1;
        } else if (more < idle) {
            more *= 2;
        } else {
            break;
        }
    }
    return given;
}

/* ---- allocators of the process -------------------------------------------------------------------- */

/* Returns the bytes that `a` could release for another allocator, without a wait if `may_wait` is 0. */
static uint64_t lendable_bytes(weir_allocator *a, int may_wait) {
    uint64_t above;

    if (!may_wait &&
        (a->harden || a->caches || (a->reserve.engine->traits & WEIR_ENGINE_SUBALLOCATES)))
        return 0;
    return reclaimable_bytes(a, may_wait, &above);
}

uint64_t weir__release_local_peers(void *allocator, uint64_t least, uint64_t most, int may_wait) {
    weir_allocator *a = allocator;
    struct weir_local_peer *s = NULL;
    uint64_t idle = 0, got = 0;

    while ((s = weir__local_peers_next(&a->local_peer, s)))
        idle += lendable_bytes(s->owner, may_wait);
    if (idle == 0 || idle < least)
        return 0;
    while (got < most && (s = weir__local_peers_next(&a->local_peer, s)))
        if (lendable_bytes(s->owner, may_wait) > 0)
            got += release_idle(s->owner, most - got, WEIR_EVENT_LOW_MEMORY, may_wait);
    if (s)
        weir__local_peers_release(s);
    return got;
}

/* ---- other processes ---------------------------------------------------------------------------- */

static void read_holding(void *allocator, struct weir_allocator_memory *out) {
    weir_allocator *a = allocator;
    weir_statistics figures;
    uint64_t above, idle = reclaimable_bytes(a, 1, &above);

    weir__stats_read(a, &figures);
    *out = (struct weir_allocator_memory){
        .reserved = figures.reserved,
        .in_use = weir__size_subtract(figures.in_use, above),
        .idle = idle,
        .limit = atomic_load_explicit(&a->reserve.limit.bytes, memory_order_relaxed),
        .device_total = a->device.total,
        .device_free = weir__device_free(&a->device),
        .published = &a->reserve.events.shown,
    };
}

static uint64_t release_for_process(void *allocator, uint64_t wanted) {
    return release_idle(allocator, wanted, WEIR_EVENT_RELEASE, 1);
}

/* Releases idle memory above the limit.  Retries an incomplete release only after another allocation or free. */
static void release_above_limit(weir_allocator *a) {
    weir_statistics figures;
    uint64_t above, calls;

    weir__stats_read(a, &figures);
    above = weir__size_subtract(figures.reserved, a->reserve.limit.bytes);
    calls = figures.allocs + figures.frees;
    if (above == 0 || ((a->reserve.engine->traits & WEIR_ENGINE_SUBALLOCATES) &&
                       above == a->not_released && calls == a->retry_release_after))
        return;
    a->not_released = weir__size_subtract(above, release_idle(a, above, WEIR_EVENT_RELEASE, 0));
    a->retry_release_after = calls;
}

/* Adapts the limit to the other processes on the device.  The thread that watches processes calls this function. */
static void adapt_limit(void *allocator, uint64_t weights) {
    weir_allocator *a = allocator;
    weir_statistics figures;

    if (!a->reserve.limit.is_dynamic ||
        weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return;
    weir__stats_read(a, &figures);
    (void)weir__limit_refresh_for(&a->reserve, figures.in_use);
    weir__limit_lower_floor(&a->reserve, weights);
    release_above_limit(a);
}

int weir__allocator_ask_for_context(struct weir_process_peers *n,
                                    struct weir_admission *admission) {
    uint64_t now = weir__registry_now();
    struct weir_answers answers;

    if (admission->began_ns == 0)
        admission->began_ns = now;
    if (!n || admission->is_over || now - admission->began_ns >= CONTEXT_NS)
        return 0;
    answers = weir__group_request_memory(
        n, (struct weir_memory_request){CONTEXT_BYTES, .began_ns = admission->began_ns,
                                        .deadline_ns = admission->began_ns + CONTEXT_NS});
    admission->is_over = answers.freed < CONTEXT_BYTES && !answers.is_incomplete;
    /* Pauses, because a process that has not answered may still free memory, and weir cannot ask it again. */
    if (answers.freed == 0 && answers.is_incomplete)
        nanosleep(&(struct timespec){0, CONTEXT_PAUSE_NS}, NULL);
    return answers.has_answer || answers.is_incomplete;
}

void weir__allocator_write_context_users(struct weir_process_peers *n, char *text, size_t bytes) {
    char holders[WEIR_PROCESS_PEERS_SHOWN];

    weir__process_peers_describe(n, holders);
    if (holders[0])
        snprintf(text, bytes,
                 "start these with keep-free 1GiB (--keep-free) to keep room for it: %s", holders);
    else
        snprintf(text, bytes, "weir knows of no other process that has memory there");
}

struct weir_process_peers *weir__allocator_enter_registry(const struct weir_driver *driver,
                                                          CUdevice device, struct weir_claim *claim,
                                                          int log) {
    static const struct weir_process_peers_calls calls = {read_holding, release_for_process,
                                                          adapt_limit};
    char why[WEIR_SLOT_PATH + 96];
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
                               .weight = weir__limit_weight(o),
                               .shares = weir__limit_has_share(o) || o->keep_free.value > 0};
}

void weir__join_process_peers(weir_allocator *a) {
    const weir_options *o = &a->options;

    a->claim = weir__allocator_claim(o);
    if (o->registry == WEIR_SWITCH_ON)
        a->reserve.events.peers =
            weir__allocator_enter_registry(a->device.driver, a->device.ordinal, &a->claim, o->log);
}

void weir__leave_peers(weir_allocator *a) {
    if (a->reserve.events.peers)
        weir__process_peers_leave(a->reserve.events.peers, &a->claim, &a->reserve.events.shown);
}
