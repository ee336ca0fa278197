/* SPDX-License-Identifier: MIT */
/* oom_ladder.h: what happens when an engine has no memory for a request.
 *
 * Must not know: any single engine, settings' names.
 */
#ifndef WEIR_OOM_LADDER_H
#define WEIR_OOM_LADDER_H

#include "engine/engine.h"

/* After the engine answered `why` (E_NO_MEMORY or E_LIMIT) to a request for `bytes`, of which a program
 * asked `asked`: climbs the out-of-memory ladder and asks again.  OK with the block, or the last status,
 * noted in the books and with the thread's refusal figures set.  Waits at most
 * host->options.recovery_timeout_ms. */
weir_status weir__recovery_alloc(const struct weir_engine *ops, void *engine,
                                 struct weir_host *host, weir_status why, size_t bytes,
                                 size_t asked, weir_stream stream, CUdeviceptr *block, int *grew);

/* Bytes of the largest request that would surely be served where that one was refused; 0 of a stream that was
 * being captured. */
uint64_t weir__recovery_largest(const struct weir_engine *ops, void *engine, struct weir_host *host,
                                const struct weir_refused *refused);

/* Polls until no free is pending; 1, or 0 when the deadline passed first. */
int weir__recovery_drain(const struct weir_engine *ops, void *engine, struct weir_host *host);

#endif
