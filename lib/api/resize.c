/* SPDX-License-Identifier: MIT */
/* resize.c: the public functions that change the size of the reserved memory: preallocation, limit, trim and decay. */
#include "config.h"

#include <weir/weir.h>

#include "api/create.h"
#include "base/bounds.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "config/amount.h"
#include "config/settings.h"

/* Logs why a preallocation failed, unless weir has already logged an error of the driver.  Returns `status`. */
static weir_status cannot_preallocate(const weir_allocator *a, weir_status status) {
    const char *reason = weir__unknown_reserve_reason(a);
    char why[160];

    if (status != WEIR_E_DRIVER && status != WEIR_E_DEVICE_LOST)
        weir__log(a->options.log, WEIR_LOG_ERROR, "weir_preallocate: %s",
                  reason ? reason : weir__create_failure_reason(a, status, why, sizeof why));
    return status;
}

weir_status weir_preallocate(weir_allocator *a, size_t bytes, size_t *reserved) {
    weir_statistics figures = {.size = sizeof figures};
    weir_status status = weir__check_live_allocator(a);
    int result_before = weir__driver_result;

    if (status != WEIR_OK)
        return status;
    (void)weir__limit_refresh(&a->reserve);
    status = a->reserve.engine->ops->grow(a->reserve.engine, bytes, bytes, WEIR_EVENT_PREALLOC);
    if (status != WEIR_OK && !weir__is_failure(status))
        return cannot_preallocate(a, status);
    if (status != WEIR_OK || reserved)
        a->reserve.engine->ops->figures(a->reserve.engine, &figures);
    if (status == WEIR_OK) {
        weir__raise_to(&a->reserve.limit.least_floor, bytes);
        weir__raise_to(&a->reserve.goal.floor, bytes);
    } else {
        if (a->reserve.goal.has_threshold)
            weir__raise_to(&a->reserve.goal.floor, figures.reserved);
        weir__goal_log_preallocation(&a->reserve, bytes, figures.reserved, 0);
    }
    if (reserved)
        *reserved = (size_t)figures.reserved;
    return weir__end_call(result_before, status);
}

weir_status weir_set_limit(weir_allocator *a, weir_amount limit) {
    struct weir_device_memory memory;
    weir_status status = weir__check_live_allocator(a);
    int result_before = weir__driver_result;
    char why[160];

    if (status != WEIR_OK)
        return status;
    if (weir__limit_check(&limit, why, sizeof why) != WEIR_OK)
        return weir__allocator_misuse(a, WEIR_E_INVALID, "weir_set_limit", why);
    if (a->options.engine == WEIR_ENGINE_BFC_FIXED)
        return weir__allocator_misuse(a, WEIR_E_NOT_SUPPORTED, "weir_set_limit",
                                      "the limit of engine bfc-fixed is its size");
    status = weir__read_memory(a, &memory);
    if (status != WEIR_OK)
        return status;
    weir__limit_set(&a->reserve, weir__budget_bytes(&limit, &memory, UINT64_MAX));
    return weir__end_call(result_before, WEIR_OK);
}

weir_status weir__flush(void *allocator) {
    weir_allocator *a = allocator;
    weir_status status = a->harden ? weir__harden_empty(a->harden, 0) : WEIR_OK;

    return status == WEIR_OK && a->caches ? weir__caches_empty(a->caches) : status;
}

uint64_t weir__reclaim_bytes(weir_allocator *a, int may_wait, uint64_t *pending) {
    uint64_t before;

    *pending = 0;
    if (!atomic_load_explicit(&a->reserve.reclaim, memory_order_acquire))
        return 0;
    before = weir__engine_reserve(a->reserve.engine);
    (void)weir__reserve_reclaim(&a->reserve, may_wait, pending);
    return weir__size_subtract(before, weir__engine_reserve(a->reserve.engine));
}

weir_status weir_trim(weir_allocator *a, size_t keep, size_t *released) {
    int result_before = weir__driver_result;
    weir_status status = weir__check_live_allocator(a);
    uint64_t reclaimed = 0, pending;
    size_t trimmed;

    if (status == WEIR_OK) {
        if (weir__engine_reserve(a->reserve.engine) > keep)
            reclaimed = weir__reclaim_bytes(a, 1, &pending);
        status = weir__goal_lower(&a->reserve, keep, WEIR_EVENT_TRIM, &trimmed);
        if (released)
            *released = (size_t)reclaimed + trimmed;
    }
    return weir__end_call(result_before, status);
}

weir_status weir_process_trim(weir_process_memory *out) {
    weir_status first = weir__call_check(out && out->size >= sizeof out->size);
    weir_process_memory sum = {.size = sizeof sum};
    struct weir_local_peer *peer = NULL;

    if (first != WEIR_OK)
        return first;
    while ((peer = weir__local_peers_next(NULL, peer))) {
        weir_statistics figures;
        size_t released = 0;
        weir_status status = weir_trim(peer->owner, 0, &released);

        if (status == WEIR_E_DEVICE_LOST)
            continue;
        first = first == WEIR_OK ? status : first;
        weir__stats_read(peer->owner, &figures);
        sum.released += released;
        sum.reserved += figures.reserved;
        sum.in_use += figures.in_use;
    }
    weir__copy_out(out, &sum, sizeof sum);
    return first;
}

weir_status weir__release_idle(weir_allocator *a, uint64_t wanted, int cause, size_t *released) {
    weir_statistics figures;
    uint64_t keep;

    *released = 0;
    /* figures.in_use does not contain idle memory of the caches */
    weir__stats_read(a, &figures);
    keep = weir__goal_target(&a->reserve.goal, figures.reserved, figures.in_use, wanted);
    if (keep >= figures.reserved)
        return WEIR_OK;
    return weir__goal_lower(&a->reserve, (size_t)keep, cause, released);
}

weir_status weir_low_memory(weir_allocator *a, size_t bytes) {
    weir_status status = weir__check_live_allocator(a);
    const char *reason;

    if (status != WEIR_OK)
        return status;
    reason = weir__no_release_reason(a);
    if (reason)
        return weir__allocator_misuse(a, WEIR_E_NOT_SUPPORTED, "weir_low_memory", reason);
    weir__goal_signal(&a->reserve.goal, bytes ? bytes : UINT64_MAX);
    /* Makes each stream's cache move its large blocks to the engine, which can release memory. */
    atomic_fetch_add_explicit(&a->reserve.engine->lacked, 1, memory_order_relaxed);
    return WEIR_OK;
}

/* Releases the memory that weir_low_memory has requested.  May wait for the device. */
static weir_status answer_signal(weir_allocator *a, size_t *released) {
    uint64_t wanted = atomic_load_explicit(&a->reserve.goal.pressure.wanted, memory_order_acquire);
    uint64_t reclaimed, pending;
    weir_status status;

    *released = 0;
    if (wanted == 0)
        return WEIR_OK;
    reclaimed = weir__reclaim_bytes(a, 1, &pending);
    status = weir__release_idle(a, weir__size_subtract(wanted, reclaimed), WEIR_EVENT_LOW_MEMORY,
                                released);
    *released += (size_t)reclaimed;
    if (status == WEIR_OK)
        weir__goal_lower_signal(&a->reserve.goal, wanted, 0);
    return status;
}

weir_status weir_decay(weir_allocator *a, size_t *released) {
    weir_statistics figures = {.size = sizeof figures};
    weir_status status = weir__check_live_allocator(a);
    int result_before = weir__driver_result;
    size_t answered = 0, decayed = 0, surplus = 0;
    const char *reason;
    uint64_t keep;
    int wanted;

    if (status != WEIR_OK)
        return status;
    wanted = atomic_load_explicit(&a->reserve.goal.pressure.wanted, memory_order_relaxed) != 0;
    if (a->reserve.goal.half_life_ns == 0 && !a->reserve.goal.has_threshold && !wanted) {
        reason = weir__no_release_reason(a);
        /* logs only once, since a program may call weir_decay often */
        if (atomic_exchange(&a->decay_logged, 1))
            return weir__without_driver(WEIR_E_NOT_SUPPORTED);
        return weir__allocator_misuse(a, WEIR_E_NOT_SUPPORTED, "weir_decay",
                                      reason ? reason : "decay is off, and no memory is wanted");
    }
    status = answer_signal(a, &answered);
    if (status == WEIR_OK && a->reserve.goal.half_life_ns > 0) {
        a->reserve.engine->ops->figures(a->reserve.engine, &figures);
        keep = weir__goal_end_window(&a->reserve.goal,
                                     weir__device_elapsed_ns(&a->device, a->device.created_ticks),
                                     figures.in_use, figures.reserved, 0);
        if (keep < figures.reserved)
            status = weir__goal_lower(&a->reserve, (size_t)keep, WEIR_EVENT_DECAY, &decayed);
    }
    if (status == WEIR_OK && a->reserve.goal.has_threshold)
        surplus = weir__goal_release_surplus(&a->reserve);
    if (released)
        *released = answered + decayed + surplus;
    return weir__end_call(result_before, status);
}

weir_status weir_profile_save(weir_allocator *a, const char *path) {
    weir_status status = weir__check_live_allocator(a);

    if (status != WEIR_OK)
        return status;
    if (path ? !*path : !a->run_profile)
        return weir__misuse(a, WEIR_E_INVALID, "weir_profile_save: no profile is named");
    if (!weir__run_profile_is_possible(&a->options))
        return weir__allocator_misuse(a, WEIR_E_NOT_SUPPORTED, "weir_profile_save",
                                      "engines direct and bfc-fixed have nothing to learn");
    return weir__run_profile_save(a, path);
}
