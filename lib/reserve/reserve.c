/* SPDX-License-Identifier: MIT */
/* reserve.c: serves a request that the caches could not serve, and adjusts reserved memory afterwards. */
#include "reserve/reserve.h"

#include "base/result.h"

int weir__reserve_reclaim(struct weir_reserve *v, int may_wait, uint64_t *pending) {
    weir__reclaim_fn *reclaim = atomic_load_explicit(&v->reclaim, memory_order_acquire);

    *pending = 0;
    return reclaim && reclaim(v->reclaim_context, may_wait, pending);
}

uint64_t weir__reserve_reclaimable(struct weir_reserve *v) {
    return atomic_load_explicit(&v->reclaim, memory_order_acquire)
               ? v->reclaimable(v->reclaim_context)
               : 0;
}

weir_status weir__reserve_try(struct weir_reserve *v, struct weir_request *r) {
    weir_status status;

    r->is_predicted = 0;
    /* No engine can serve a request that is larger than the device's memory. */
    if (r->bytes > v->device->total)
        return weir__without_driver(WEIR_E_NO_MEMORY);
    status = v->engine->ops->alloc(v->engine, r);
    if (status < 0)
        r->result = weir__driver_result;
    return status;
}

/* Retries a failed request with r->least bytes if allowed, then by OOM recovery.  Never retries at a fixed address. */
static weir_status serve_after_failure(struct weir_reserve *v, struct weir_request *r,
                                       weir_status status) {
    r->result = weir__driver_result;
    if (r->at)
        return status;
    if (weir__is_failure(status) && r->least > 0 && r->least < r->bytes) {
        r->bytes = r->least;
        status = weir__reserve_try(v, r);
    }
    return weir__is_failure(status) ? weir__oom_recovery_run(v, r, status) : status;
}

/* Records an allocation inside a CUDA graph, so that weir can free it later.  Without host memory, frees it at once. */
static weir_status record_node(struct weir_reserve *v, const struct weir_request *r) {
    if (weir__addresses_add(&v->graphs, r->block, 1))
        return WEIR_OK;
    (void)weir__async_free_on(v->device, r->block, r->stream);
    return weir__without_driver(WEIR_E_HOST_MEMORY);
}

weir_status weir__reserve_alloc(struct weir_reserve *v, struct weir_request *r) {
    /* Reads the flag before the request, since the engine sets the flag if the stream is being captured. */
    const int is_graphs = (r->flags & WEIR_REQUEST_CAPTURED) != 0;
    weir_status status;

    if (!is_graphs && v->goal.ahead.is_on)
        weir__goal_run_due_steps(v, 0);
    status = v->engine->ops->alloc(v->engine, r);
    if (status != WEIR_OK)
        status = serve_after_failure(v, r, status);
    if (status == WEIR_OK && (r->flags & WEIR_REQUEST_CAPTURED))
        status = record_node(v, r);
    if (status != WEIR_OK || is_graphs)
        return status;
    if (v->goal.ahead.is_on)
        weir__goal_wake_ahead(v);
    if (r->grew) {
        (void)weir__limit_refresh(v);
        atomic_fetch_add_explicit(&v->events.counters->growth_allocs, 1, memory_order_release);
    }
    if (v->goal.half_life_ns > 0 || v->goal.has_threshold ||
        atomic_load_explicit(&v->goal.pressure.wanted, memory_order_acquire) > 0)
        weir__goal_lower_in_request(v, r);
    return WEIR_OK;
}
