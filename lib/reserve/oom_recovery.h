/* SPDX-License-Identifier: MIT */
/* oom_recovery.h: OOM recovery, for a request that the engine cannot serve for lack of memory.
 *
 * This file must not depend on a particular engine or on names of settings.
 */
#ifndef WEIR_OOM_RECOVERY_H
#define WEIR_OOM_RECOVERY_H

#include "base/result.h"
#include "reserve/reserve.h"

/* Runs OOM recovery for a request that failed with the status `why' (E_NO_MEMORY or E_LIMIT): tries to free memory,
 * and retries the request.  Polls pending frees for at most options.recovery_timeout_ms.  Returns OK if the request
 * has its block.  Otherwise returns the last status, and writes the figures of the failure to *r->refused. */
weir_status weir__oom_recovery_run(struct weir_reserve *v, struct weir_request *r, weir_status why);

/* Returns the size of the largest request that would certainly have succeeded in place of the failed request
 * `refused'.  Returns 0 if the stream was captured. */
uint64_t weir__oom_recovery_largest(struct weir_reserve *v,
                                    const struct weir_failed_request *refused);

#endif
