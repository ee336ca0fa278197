/* SPDX-License-Identifier: MIT */
/* oom_recovery.h: OOM recovery, for a request for which the engine has no memory.
 *
 * This file must not know any single engine or settings' names.
 */
#ifndef WEIR_OOM_RECOVERY_H
#define WEIR_OOM_RECOVERY_H

#include "base/result.h"
#include "reserve/reserve.h"

/* Runs OOM recovery for a request that failed with `why' (E_NO_MEMORY or E_LIMIT), and retries the request.  Polls for
 * at most recovery_timeout_ms of the options.  Returns OK with the block, or the last status with figures in
 * *r->refused. */
weir_status weir__oom_recovery_run(struct weir_reserve *v, struct weir_request *r, weir_status why);

/* Returns the bytes of the largest request to the engine that would surely succeed instead of the failed one, or 0 if
 * the stream was being captured. */
uint64_t weir__oom_recovery_largest(struct weir_reserve *v,
                                    const struct weir_failed_request *refused);

#endif
