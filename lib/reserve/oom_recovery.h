/* SPDX-License-Identifier: MIT */
/* oom_recovery.h: what happens when an engine has no memory for a request.
 *
 * Must not know: any single engine, settings' names.
 */
#ifndef WEIR_OOM_RECOVERY_H
#define WEIR_OOM_RECOVERY_H

#include "base/result.h"
#include "reserve/reserve.h"

/* One try, after which r->result is the driver's part in a failure. */
static inline weir_status weir__oom_recovery_try(struct weir_reserve *v, struct weir_request *r) {
    weir_status status;

    r->foretold = 0;
    status = v->engine->ops->alloc(v->engine, r);
    if (status < 0)
        r->result = weir__driver_result;
    return status;
}

/* Runs OOM recovery for a request that failed with `why` (E_NO_MEMORY or E_LIMIT), and retries the request.  `caches` may
 * be NULL.  Returns OK with the block; or the last status, counted in the figures, and with them in *r->refused.  Polls for
 * recovery_timeout_ms of the options at most. */
weir_status weir__oom_recovery_run(struct weir_reserve *v, struct weir_request *r,
                                   const struct weir_lender *caches, weir_status why);

/* Bytes of the largest request to the engine that would surely be served where that one was refused; 0 of a stream that
 * was being captured. */
uint64_t weir__oom_recovery_largest(struct weir_reserve *v,
                                    const struct weir_failed_request *refused);

/* Polls until no free is pending; 1, or 0 when the deadline passed first. */
int weir__oom_recovery_drain(struct weir_reserve *v);

#endif
