/* SPDX-License-Identifier: MIT */
/* oom_recovery.h: OOM recovery, for a request that the engine cannot serve for lack of memory.
 *
 * This file must not depend on a particular engine or on names of settings.
 */
#ifndef WEIR_OOM_RECOVERY_H
#define WEIR_OOM_RECOVERY_H

#include "base/result.h"
#include "reserve/reserve.h"

/* Runs OOM recovery for a request that failed with the status `why' (E_NO_MEMORY or E_LIMIT), and retries the
 * request.  Polls for at most recovery_timeout_ms of the options.  Returns OK if the request has its block.
 * Otherwise returns the last status, with the figures in *r->refused. */
weir_status weir__oom_recovery_run(struct weir_reserve *v, struct weir_request *r, weir_status why);

/* Returns the size of the largest request to the engine that would certainly have succeeded in place of the failed
 * request.  Returns 0 if the stream was being captured. */
uint64_t weir__oom_recovery_largest(struct weir_reserve *v,
                                    const struct weir_failed_request *refused);

#endif
