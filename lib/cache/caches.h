/* SPDX-License-Identifier: MIT */
/* caches.h: the hit path: caches of one stream each, above any engine.
 *
 * A request is served from its stream's cache (stream_cache.h), and a freed block goes into the cache of the
 * stream that it was freed on, without the engine, without a driver call beyond the questions below,
 * and without touching a cache line that another stream's thread writes.  cache_share.c says how much idle memory each
 * cache may keep.
 *
 * Must not know: the public API, settings' names, how an engine places blocks.
 */
#ifndef WEIR_CACHES_H
#define WEIR_CACHES_H

#include "reserve/reserve.h"

struct weir_caches;

/* Makes the caches above an open engine that cuts blocks.  `v' outlives it.  OK or E_HOST_MEMORY. */
weir_status weir__caches_open(struct weir_reserve *v, struct weir_caches **out);
/* Forgets everything; the engine, which is closed next, gives its memory back.  Nothing is live; NULL
 * is fine. */
void weir__caches_close(struct weir_caches *f);

/* Serves a request of r->asked bytes on r->stream, all else zeroed, as weir_alloc does; bytes > 0, and no more than the
 * device has.  Hits at once are hit.h's. */
weir_status weir__caches_alloc(struct weir_caches *f, struct weir_request *r);
/* The same at r->at, from the engine as it stands, without OOM recovery. */
weir_status weir__caches_alloc_at(struct weir_caches *f, struct weir_request *r);
/* As weir_free, without its checks and counts of calls. */
weir_status weir__caches_free(struct weir_caches *f, CUdeviceptr block, weir_stream stream);
/* The same on a default stream of that id. */
weir_status weir__caches_free_default(struct weir_caches *f, CUdeviceptr block, weir_stream stream,
                                      uint64_t id);
/* The same of a block that the caches have a record of: 1; 0: there is no record, or the block was not freed. */
int weir__caches_free_own(struct weir_caches *f, CUdeviceptr block, weir_stream stream);
/* The same of a block that may have been used on other streams: `uses`, or NULL. */
weir_status weir__caches_free_used(struct weir_caches *f, CUdeviceptr block, weir_stream stream,
                                   struct weir_use_list *uses);

/* The same of a block whose last use is over, on every stream. */
weir_status weir__caches_free_done(struct weir_caches *f, CUdeviceptr block);
/* Memory was preallocated there, or will come there: makes the tables that its first blocks would have to, of the
 * first `most` bytes. */
void weir__caches_prepare(struct weir_caches *f, const struct weir_extent *extents, size_t count,
                          size_t most);

/* The most that may be asked for so that the engine is asked for no more than `bytes`. */
size_t weir__caches_fit(size_t bytes);

/* 1 if a live block starts there. */
int weir__caches_is_live(struct weir_caches *f, CUdeviceptr block);

/* The live block around an address, and its bytes as asked: 1, or 0 if none is, or one of a graph. */
int weir__caches_find(struct weir_caches *f, CUdeviceptr address, CUdeviceptr *block,
                      size_t *bytes);

/* The program vouches for the stream once more, or, if not, once less. */
weir_status weir__caches_bind(struct weir_caches *f, weir_stream stream, int more);

/* The stream, which lives, is about to end: its cache gives all it has, and is nobody's. */
void weir__caches_leave(struct weir_caches *f, weir_stream stream);
/* Any thread may call this for a stream that exists and is not being captured; a default stream is the caller's.
 * Gives back what the stream's cache holds.  If the stream is idle, its frees are observed to be complete; else an
 * event covers them.  Does nothing for a default stream that is not idle. */
void weir__caches_ask(struct weir_caches *f, weir_stream stream);
/* Returns remote frees to their caches if their events are complete.  1 if there were any. */
int weir__caches_settle(struct weir_caches *f);
/* If any cache holds idle memory, each cache gives all it has at its stream's next request. */
void weir__caches_reclaim_epoch(struct weir_caches *f);
/* The handle is a new stream's: what its cache has of another, whose end was not seen, goes back as nobody's. */
void weir__caches_meet(struct weir_caches *f, weir_stream stream);
/* No stream is watched any more. */
void weir__caches_distrust(struct weir_caches *f);

/* Takes everything that lies idle in the caches back to the engine.  Waits for the device if there is
 * anything: no event covers what lies in a cache.  Where the wait fails, what was taken stays unused
 * until a later one. */
weir_status weir__caches_empty(struct weir_caches *f);

/* 1 if a block that it handed out is live. */
int weir__caches_has_blocks(struct weir_caches *f);

/* The most that was requested at once since the peak began again, as seen as requested_peak is; and has it
 * begin again, with what is live now.  That of weir__caches_figures goes on. */
uint64_t weir__caches_peak_lately(struct weir_caches *f);
void weir__caches_renew_peak(struct weir_caches *f);

/* As an engine's, of what the caches hold, and of the blocks that they handed out. */
void weir__caches_survey(struct weir_caches *f, uint64_t id, struct weir_survey *out);
void weir__caches_blocks(struct weir_caches *f, weir__engine_visit_fn *show, void *context);

/* Visits each piece of the engine's that has a live block, under the records' lock. */
typedef void weir__caches_live_fn(void *context, uint64_t base, size_t bytes);
void weir__caches_live(struct weir_caches *f, weir__caches_live_fn *see, void *context);

/* Completes figures that already hold the books' and the engine's part. */
void weir__caches_figures(struct weir_caches *f, weir_statistics *out);

#endif
