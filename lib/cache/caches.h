/* SPDX-License-Identifier: MIT */
/* caches.h: the per-stream caches, above any engine.
 *
 * This file must not know the public API, settings' names or how an engine places blocks.
 */
#ifndef WEIR_CACHES_H
#define WEIR_CACHES_H

#include "reserve/reserve.h"

struct weir_caches;

/* Opens the caches above an open engine.  `v` outlives them.  Returns OK or E_HOST_MEMORY. */
weir_status weir__caches_open(struct weir_reserve *v, struct weir_caches **out);
/* Frees the caches' host memory, and their blocks if the driver orders the engine's.  No block is live, and the device
 * has finished all work.  The caller closes the engine next.  `f` may be NULL. */
void weir__caches_close(struct weir_caches *f);

/* Serves a request at the address r->at from the engine, without OOM recovery. */
weir_status weir__caches_alloc_at(struct weir_caches *f, struct weir_request *r);
/* Frees a block as weir_free does, without its checks.  Other streams may have used the block: `uses` lists them, or is
 * NULL.  For frees without such uses see hit.h. */
weir_status weir__caches_free_used(struct weir_caches *f, CUdeviceptr block, weir_stream stream,
                                   struct weir_use_list *uses);

/* Frees a block whose last use has completed on every stream. */
weir_status weir__caches_free_done(struct weir_caches *f, CUdeviceptr block);
/* Makes the host tables for the first `most` bytes of these extents, which were preallocated or will be, so that the
 * first blocks there need not make them. */
void weir__caches_prepare(struct weir_caches *f, const struct weir_extent *extents, size_t count,
                          size_t most);

/* Returns the largest request for which the caches request at most `bytes` from the engine. */
size_t weir__caches_fit(size_t bytes);

/* Returns 1 if a live block starts at the address, else 0. */
int weir__caches_is_live(struct weir_caches *f, CUdeviceptr block);

/* Finds the live block that contains the address, if it is no graph's, and its request.  Returns 1 on success, else
 * 0. */
int weir__caches_find(struct weir_caches *f, CUdeviceptr address, CUdeviceptr *block,
                      size_t *bytes);

/* Returns 1 if the address lies in a slab or in a whole block that the engine counts as live, else 0. */
int weir__caches_hold(struct weir_caches *f, CUdeviceptr address);

/* Binds the stream once more if `more`, else once less.  A bound stream is one that the program vouches for. */
weir_status weir__caches_bind(struct weir_caches *f, weir_stream stream, int more);

/* Flushes the cache of a stream that is about to end, and detaches the cache from it. */
void weir__caches_leave(struct weir_caches *f, weir_stream stream);
/* Flushes the cache of a stream that exists and is not being captured.  Any thread may call this; a default stream is
 * the caller's.  If the stream is idle, its frees count as completed; otherwise an event covers them.  Does nothing for
 * a default stream that is not idle. */
void weir__caches_ask(struct weir_caches *f, weir_stream stream);
/* Returns remote frees whose events have completed to their slabs.  Returns 1 if there were any, else 0. */
int weir__caches_settle(struct weir_caches *f);
/* Records that a new stream has this handle.  Cached memory of an earlier one, whose end weir missed, is
 * quarantined. */
void weir__caches_meet(struct weir_caches *f, weir_stream stream);
/* Records that the adapter no longer sees the streams' captures and ends. */
void weir__caches_distrust(struct weir_caches *f);

/* Flushes all idle memory to the engine, behind a wait for the device if there is any: no event covers cached memory.
 * If the wait fails, the memory serves nobody until a later wait.  The argument is a struct weir_caches. */
weir_status weir__caches_empty(void *caches);

/* Returns 1 if a block of the caches is live, else 0. */
int weir__caches_has_blocks(struct weir_caches *f);

/* Returns the peak requested memory since the last call with `renew`, which restarts that peak at the memory that is live
 * then.  The lifetime peak of weir__caches_figures is not restarted. */
uint64_t weir__caches_peak_lately(struct weir_caches *f, int renew);

/* Add the caches' idle memory to a survey of the engine's, and visit the live blocks of the caches. */
void weir__caches_survey(struct weir_caches *f, uint64_t id, struct weir_survey *out);
void weir__caches_blocks(struct weir_caches *f, weir__engine_visit_fn *show, void *context);

/* Visits each block of the engine that contains a live block of the caches, under the records' lock. */
typedef void weir__live_fn(void *context, uint64_t base, size_t bytes);
void weir__caches_live(void *caches, weir__live_fn *see, void *context);

/* Adds the caches' figures to *out, which already has those of the counters and of the engine. */
void weir__caches_figures(struct weir_caches *f, weir_statistics *out);

#endif
