/* SPDX-License-Identifier: MIT */
/* drop_in.h: what lib/adapters needs of an allocator that replaces the driver's own pools, beyond include/weir.
 *
 * An unmodified program does not follow the rules that weir has for its users.  So the adapter follows them: it sees
 * the calls by which streams end and captures begin.  Such a program also uses features of pools that no user of weir
 * needs.
 *
 * This file must not know which call leads here.
 */
#ifndef WEIR_DROP_IN_H
#define WEIR_DROP_IN_H

#include <weir/weir.h>

#include "driver/driver.h"
#include "ipc/process_peers.h"

/* Returns the allocator that weir_device_allocator shall return for a device.  If this pointer is NULL, or the function
 * returns NULL, weir_device_allocator returns the process's allocator.  The preload library sets it at its load. */
extern weir_allocator *(*weir__drop_in_serves)(int device);

/* Receives each failed request of weir_tensors_alloc in such an allocator, which writes no OOM report itself.  May be
 * NULL.  The preload library sets it when it is loaded. */
extern void (*weir__drop_in_refused)(weir_allocator *allocator, size_t bytes);

/* Makes the allocator a replacement of the driver's pools, before its first request.  A request on a stream that is
 * being captured then fails with E_CAPTURE, since the driver adds the node to the graph.  weir measures peaks at each
 * request that no cache serves. `watches` may be NULL.  It returns 1 for a stream for which weir__drop_in_stream_begins
 * was called.  weir does not query such a stream once the stream has a cache, nor a thread's default streams, so the
 * caller must pass no call on a stream that is being captured.  weir may call `watches` with locks held; the function
 * must not call weir. */
void weir__drop_in_begin(weir_allocator *allocator, int (*watches)(weir_stream stream));
/* Makes weir query every stream again, since captures may begin unseen from now on. */
void weir__drop_in_distrust(weir_allocator *allocator);

/* Switches the log of failures off, which the caller reports elsewhere.  Called before the first request. */
void weir__drop_in_hush(weir_allocator *allocator);

/* Sets when a block that one stream has freed may serve another stream.  With `on`, this needs a wait of the host, or
 * memory freed to the device.  Without `on`, the default, it needs only the completion of the block's work.  Slots of
 * less than a page always return to their own stream's cache. */
void weir__drop_in_keep_apart(weir_allocator *allocator, int on);

/* Reads options as weir_options_from_env does.  But no variable of another program names an engine, and variables for
 * preallocation count even if that program is told to use CUDA's memory pools (settings.h).  `sources` may be NULL. */
struct weir_sources;
weir_status weir__drop_in_options(weir_options *options, struct weir_sources *sources,
                                  char *message, size_t message_bytes);

/* Creates an allocator as weir_allocator_create does.  If `decompresses` is set, its memory can be used for hardware
 * decompression, too. */
weir_status weir__drop_in_create(const weir_options *options, int decompresses,
                                 weir_allocator **allocator);

/* Marks the allocator as lost.  The caller then destroys the device's context with all its memory.  Later calls return
 * E_DEVICE_LOST. */
void weir__drop_in_lose(weir_allocator *allocator);

/* Returns 1 if weir_block_range works for the allocator, else 0. */
int weir__drop_in_knows_blocks(const weir_allocator *allocator);

/* Returns 0 if none of the allocator's blocks was ever at that address, else 1. */
int weir__drop_in_may_have(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if the address lies in memory from which the engine cuts blocks, live or not, else 0.  With the engines pool
 * and direct, returns 1 if it lies in memory that the driver counts as a live block, else 0. */
int weir__drop_in_holds(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if the allocator keeps its range of addresses until it is destroyed, else 0. */
int weir__drop_in_keeps_addresses(const weir_allocator *allocator);

/* Frees the block as weir_free does, if the allocator's caches can do so alone.  Returns 1 if the block was freed, 0 if
 * nothing was done. */
int weir__drop_in_free_own(weir_allocator *allocator, void *block, weir_stream stream);

/* Frees a block as weir_free does.  The caller knows that its last use on each stream is over. */
weir_status weir__drop_in_free_done(weir_allocator *allocator, void *block);

/* Frees a block in the order of a stream of another device or context, which weir does not know.  `apart` is a stream
 * of the block's device without other work.  The function makes `apart` wait on the device for the work of `stream`,
 * and frees the block on `apart`.  Returns E_STREAM if that wait is not possible. */
weir_status weir__drop_in_free_behind(weir_allocator *allocator, void *block, weir_stream stream,
                                      weir_stream apart);

/* Records that a stream was created, perhaps with the handle of a stream whose end was not seen. */
void weir__drop_in_stream_begins(weir_allocator *allocator, weir_stream stream);
/* Empties the cache of a stream that is about to end, behind an event on the stream, so that no wait for the device is
 * needed later.  Does nothing if the stream is being captured or not known. */
void weir__drop_in_stream_ends(weir_allocator *allocator, weir_stream stream);

/* Queries which frees have completed on these streams and on the calling thread's default streams, without a wait; the
 * caller then calls weir__drop_in_trim.  Returns 1 if all streams were idle and no other thread has used its own
 * default stream, else 0.  Returns 0 also while a request holds the engine.  Observes the legacy stream only if all
 * other streams are idle, since an event on the legacy stream would make blocking streams wait.  The caller prevents
 * captures and ends of streams during the call. */
int weir__drop_in_ask(weir_allocator *allocator, const weir_stream *streams, size_t count);
/* Returns 1 if the stream is idle and not being captured, else 0.  The caller keeps the stream from ending
 * meanwhile. */
int weir__drop_in_is_idle(weir_allocator *allocator, weir_stream stream);
/* Returns the bytes that the allocator has reserved. */
size_t weir__drop_in_reserve(const weir_allocator *allocator);
/* Trims as weir_trim does, but waits for no work: frees memory whose work has completed.  `is_idle` says that all
 * streams were idle, so that all work has completed.  Without `is_idle`, an allocator that frees memory only after a
 * wait (engine bfc, `harden`) frees nothing. */
void weir__drop_in_trim(weir_allocator *allocator, size_t keep, int is_idle);

/* Returns 1 if a block of the allocator is live, else 0, without a call to the driver.  Only for an allocator that
 * knows its peak. */
int weir__drop_in_has_blocks(weir_allocator *allocator);

/* Return whether the allocator measures its peak, return the peak, and restart it.  The peak is the most bytes that
 * were requested at once since the last restart: a lower bound, as in weir_statistics. */
int weir__drop_in_knows_peak(const weir_allocator *allocator);
uint64_t weir__drop_in_peak(weir_allocator *allocator);
void weir__drop_in_renew_peak(weir_allocator *allocator);

/* Asks other processes for room for a context, after a call of the driver was out of memory, unless the registry is
 * switched off.  Returns 1 if a process freed memory or may have, so that the caller shall call the driver again.
 * Otherwise returns 0, and logs once which process has the memory.  Takes one second at most. */
int weir__drop_in_ask_for_context(CUdevice device, struct weir_admission *admission);
/* Does what weir__drop_in_ask_for_context does, for that driver and with these options. */
int weir__drop_in_ask_on(const struct weir_driver *driver, CUdevice device,
                         const weir_options *options, struct weir_admission *admission);

/* Joins the group of this process on that device.  Returns NULL if there is none.  If the group cannot be joined, logs
 * that once and sets *refused: then no memory may be allocated. */
struct weir_group;
struct weir_group *weir__drop_in_group(CUdevice device, int *refused);
/* Returns the group if the process has joined it, else NULL, without a call to the driver. */
struct weir_group *weir__drop_in_group_of(CUdevice device);
/* Asks other processes for idle memory, for a request that weir does not serve and for which the device or the group
 * has no memory.  The request began at `began` (CLOCK_MONOTONIC).  Returns 1 if there may be memory now, else 0. */
int weir__drop_in_ask_for_memory(CUdevice device, size_t bytes, uint64_t began);
/* Logs the members of the group and their memory, after such a request has failed because of the group's limit.  Does
 * so for the first few failures only. */
void weir__drop_in_tell_group(struct weir_group *group, CUdevice device, const char *call,
                              size_t bytes);

/* Waits until the device has completed all work.  Invalidates no capture. */
CUresult weir__drop_in_wait(weir_allocator *allocator);

#endif
