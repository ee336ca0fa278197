/* SPDX-License-Identifier: MIT */
/* caches.h: the per-stream caches, which serve requests with memory from an engine. */
#ifndef WEIR_CACHES_H
#define WEIR_CACHES_H

#include "reserve/reserve.h"

struct weir_caches;

/* Creates caches for the open engine of `v`.  The engine must outlive the caches.  Returns OK or E_HOST_MEMORY. */
weir_status weir__caches_open(struct weir_reserve *v, struct weir_caches **out);
/* Frees the caches, after the last live block was freed and all work on the device has completed.  `f` may be NULL. */
void weir__caches_close(struct weir_caches *f);

/* Serves a request at the address r->at from the engine, without OOM recovery. */
weir_status weir__caches_alloc_at(struct weir_caches *f, struct weir_request *r);
/* Frees a block on which all work of all streams has completed.  Returns OK or E_NOT_OWNED. */
weir_status weir__caches_free_done(struct weir_caches *f, CUdeviceptr block);
/* Returns the size of the largest request for which the caches need at most `bytes` bytes from the engine. */
size_t weir__caches_fit(size_t bytes);

/* Returns 1 if a live block starts at the address, else 0. */
int weir__caches_is_live(struct weir_caches *f, CUdeviceptr block);

/* Finds the live block that contains the address, unless a CUDA graph allocated it.  Returns 1 on success, else 0. */
int weir__caches_find(struct weir_caches *f, CUdeviceptr address, CUdeviceptr *block,
                      size_t *bytes);

/* Returns 1 if the address lies in a block that the caches got from the engine, else 0. */
int weir__caches_has_address(struct weir_caches *f, CUdeviceptr address);

/* Binds a stream (weir_bind) if `more` is 1, else unbinds it.  weir still queries the id of a bound default stream. */
weir_status weir__caches_bind(struct weir_caches *f, weir_stream stream, int more);

/* Flushes the cache of a stream.  Unless `stream` is a default stream, it must exist, and must not be in a capture.  If
 * `ends` is set, detaches the stream from its cache, else skips a default stream that has work. */
void weir__caches_flush_stream(struct weir_caches *f, weir_stream stream, int ends);
/* Moves freed slots to their slabs if all work on the slots has completed.  Returns 1 if any slot was moved, else 0. */
int weir__caches_complete_remotes(struct weir_caches *f);
/* Keeps the cached memory of an ended stream with this handle from reuse until a wait for the device. */
void weir__caches_stream_created(struct weir_caches *f, weir_stream stream);
/* Makes later calls query all streams, since the preload library no longer reports captures and ends of streams. */
void weir__caches_unwatch(struct weir_caches *f);

/* Takes the idle memory of all caches, waits for the device, and then returns the memory to the engine.  If the wait
 * fails, weir does not reuse the memory before a later wait.  `caches` is a struct weir_caches. */
weir_status weir__caches_empty(void *caches);

/* Updates all peaks.  Returns the peak of requested memory since the last call with `renew` set. */
uint64_t weir__caches_peak_lately(struct weir_caches *f, int renew);

/* Adds to *out the caches' idle memory that the stream `id` cannot use yet. */
void weir__caches_survey(struct weir_caches *f, uint64_t id, struct weir_survey *out);
/* Calls `visit_block` for each live block, under the lock of the page map. */
void weir__caches_blocks(struct weir_caches *f, weir__engine_visit_fn *visit_block, void *context);

/* Calls `visit_span` for each block of the engine with live memory inside, under the lock of the page map. */
typedef void weir__live_fn(void *context, uint64_t base, size_t bytes);
void weir__caches_live(void *caches, weir__live_fn *visit_span, void *context);

/* Adds the caches' statistics to *out, which already has those of the counters and of the engine. */
void weir__caches_figures(struct weir_caches *f, weir_statistics *out);

#endif
