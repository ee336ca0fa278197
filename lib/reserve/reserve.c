/* SPDX-License-Identifier: MIT */
/* reserve.c: serves a request that the caches could not serve, and looks after reserved memory afterwards.
 *
 * A request first takes idle memory of the engine.  If that fails, weir takes the next steps in order, and retries
 * after each step that changed something; the last one is OOM recovery.  Before reserved memory grows or memory moves,
 * caches return idle memory to the engine: that of the request's stream at once, others at their next request.
 */
#include "reserve/reserve.h"

#include "base/result.h"
#include "reserve/oom_recovery.h"

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

static int lend(const struct weir_lender *caches, struct weir_request *r, enum weir_lending what) {
    return caches && caches->lend(caches->context, r, what);
}

static weir_status serve(struct weir_reserve *v, struct weir_request *r,
                         const struct weir_lender *caches) {
    weir_status status = weir__oom_recovery_try(v, r);

    if (status == WEIR_OK || r->at)
        return status;
    r->flags |= WEIR_REQUEST_WAS_DRY;
    if (status == WEIR_ENGINE_DRY && weir__goal_catch_up(v))
        status = weir__oom_recovery_try(v, r);
    if (status == WEIR_ENGINE_DRY && lend(caches, r, WEIR_LEND_OWN))
        status = weir__oom_recovery_try(v, r);
    if (status == WEIR_ENGINE_DRY)
        (void)lend(caches, r, WEIR_LEND_LATER);
    r->flags |= WEIR_REQUEST_MAY_GROW;
    if (status == WEIR_ENGINE_DRY)
        status = weir__oom_recovery_try(v, r);
    if (weir__is_failure(status) && r->least > 0 && r->least < r->bytes) {
        r->bytes = r->least;
        r->dry_at = 0;
        status = weir__oom_recovery_try(v, r);
    }
    if (weir__is_failure(status) && v->options->recovery_timeout_ms != UINT32_MAX &&
        lend(caches, r, WEIR_LEND_ALL))
        status = weir__oom_recovery_try(v, r);
    return weir__is_failure(status) ? weir__oom_recovery_run(v, r, caches, status) : status;
}

/* Records a graph's block, so that weir recognises its free.  Without host memory, gives the block back to the driver,
 * which owns the memory of graphs, and returns E_HOST_MEMORY. */
static weir_status note_node(struct weir_reserve *v, const struct weir_request *r) {
    if (weir__graphs_note(&v->graphs, r->block))
        return WEIR_OK;
    (void)weir__async_give(v->device, r->block, r->stream);
    return weir__without_driver(WEIR_E_HOST_MEMORY);
}

weir_status weir__reserve_alloc(struct weir_reserve *v, struct weir_request *r,
                                const struct weir_lender *caches) {
    weir_status status = serve(v, r, caches);

    if (status == WEIR_OK && weir__goal_look(v, r))
        r->flags |= WEIR_REQUEST_PRESSURE;
    return status;
}

weir_status weir__reserve_alloc_alone(struct weir_reserve *v, struct weir_request *r) {
    /* If only the engine finds that the stream is being captured, weir still looks after reserved memory. */
    const int is_graphs = (r->flags & WEIR_REQUEST_CAPTURED) != 0;
    weir_status status;

    r->flags |= WEIR_REQUEST_MAY_GROW; /* there are no caches to try first */
    if (!is_graphs)
        (void)weir__goal_catch_up(v);
    status = serve(v, r, NULL);
    if (status == WEIR_OK && (r->flags & WEIR_REQUEST_CAPTURED))
        status = note_node(v, r);
    if (status == WEIR_OK && !is_graphs)
        (void)weir__goal_look(v, r);
    return status;
}
