/* SPDX-License-Identifier: MIT */
/* drop_in.h: functions of an allocator that replaces the driver's memory pools in an unmodified program.  lib/adapters
 * calls these functions, and follows weir's rules for callers (include/weir) in place of the program. */
#ifndef WEIR_DROP_IN_H
#define WEIR_DROP_IN_H

#include <weir/weir.h>

#include "driver/driver.h"
#include "ipc/process_peers.h"

/* If not NULL, weir_device_allocator() calls this function first, and returns the function's allocator if there is one.
 * libweir-preload.so sets this pointer when it is loaded. */
extern weir_allocator *(*weir__drop_in_serves)(int device);

/* If not NULL, weir calls this function after each failed weir_tensors_alloc of an allocator that replaces the driver's
 * pools.  Such an allocator writes no OOM report itself. */
extern void (*weir__drop_in_refused)(weir_allocator *allocator, size_t bytes);

/* Makes the allocator a replacement of the driver's pools, before its first request.  A request on a captured stream
 * then fails with WEIR_E_CAPTURE.  But weir does not query the capture of a watched stream or a default stream, so the
 * caller must not call weir with a captured stream.  `watches` returns 1 if weir__drop_in_stream_begins() was called
 * for the stream; it may be NULL, and must not call weir, since weir may hold locks. */
void weir__drop_in_begin(weir_allocator *allocator, int (*watches)(weir_stream stream));
/* Makes weir query whether the stream of each request is captured, since lib/adapters may miss a capture's begin. */
void weir__drop_in_query_all(weir_allocator *allocator);

/* Stops the log of failed requests, because the caller logs them itself.  Must be called before the first request. */
void weir__drop_in_stop_logs(weir_allocator *allocator);

/* Sets when a stream may reuse a block that another stream has freed.  If `on` is 0 (the default), the GPU work on the
 * block must have completed.  If `on` is set, the host must also have waited for the work, or the memory must have been
 * released to the device. */
void weir__drop_in_forbid_opportunistic(weir_allocator *allocator, int on);

/* Reads options as weir_options_from_env does, for an unmodified program.  `sources` may be NULL. */
struct weir_sources;
weir_status weir__drop_in_options(weir_options *options, struct weir_sources *sources,
                                  char *message, size_t message_bytes);

/* Creates an allocator that preallocates at its first request, with hardware decompression if `decompresses` is set. */
weir_status weir__drop_in_create(const weir_options *options, int decompresses,
                                 weir_allocator **allocator);

/* Makes later calls return WEIR_E_DEVICE_LOST, before the caller destroys the device's context with all its memory. */
void weir__drop_in_mark_lost(weir_allocator *allocator);

/* Returns 1 if weir_block_range can find the blocks of this allocator, else 0. */
int weir__drop_in_knows_blocks(const weir_allocator *allocator);

/* Returns 0 if no block of the allocator has ever been at this address, else 1. */
int weir__drop_in_may_contain(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if the address lies in the allocator's memory, else 0. */
int weir__drop_in_contains(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if all blocks lie in one range of addresses that stays reserved while the allocator lives; else 0. */
int weir__drop_in_keeps_addresses(const weir_allocator *allocator);

/* Frees a block of the caches, if no slow path except WEIR_SLOW_PATH_OOM is set.  Returns 1 if it was freed, else 0. */
int weir__drop_in_free_to_cache(weir_allocator *allocator, void *block, weir_stream stream);

/* Frees a block.  All streams must have completed their work on the block. */
weir_status weir__drop_in_free_completed(weir_allocator *allocator, void *block);

/* Frees a block after the work of `stream`, a stream of another device or context.  Frees the block on `apart`, a
 * private stream of the block's device.  Returns WEIR_E_STREAM if `apart` cannot wait for `stream`. */
weir_status weir__drop_in_free_after(weir_allocator *allocator, void *block, weir_stream stream,
                                     weir_stream apart);

/* Tells weir that the program has created a stream, since an earlier stream may have had an equal handle. */
void weir__drop_in_stream_begins(weir_allocator *allocator, weir_stream stream);
/* Empties the cache of a stream that is about to end.  Records an event, so that weir needs no device wait later. */
void weir__drop_in_stream_ends(weir_allocator *allocator, weir_stream stream);

/* Finds out, without a wait, which frees on these streams have completed, so that weir__drop_in_trim() can release the
 * memory.  Returns 1 only if all streams are idle.  No capture may begin and no stream may end during the call. */
int weir__drop_in_are_idle(weir_allocator *allocator, const weir_stream *streams, size_t count);
/* Returns 1 if the stream is idle and is not being captured, else 0.  The stream must not end during the call. */
int weir__drop_in_is_idle(weir_allocator *allocator, weir_stream stream);
size_t weir__drop_in_reserve(const weir_allocator *allocator);
/* Releases idle memory whose work has completed, down to `keep` bytes.  `is_idle` is set if all streams were idle. */
void weir__drop_in_trim(weir_allocator *allocator, size_t keep, int is_idle);

/* Returns 1 if the allocator, which must have caches, has a live block; else 0. */
int weir__drop_in_has_blocks(const weir_allocator *allocator);

/* Returns 1 if the allocator measures the peak of its requested bytes, else 0. */
int weir__drop_in_knows_peak(const weir_allocator *allocator);
/* Returns a lower bound of the peak of the requested bytes.  If `restarts` is set, resets the peak. */
uint64_t weir__drop_in_peak(weir_allocator *allocator, int restarts);

/* Asks other processes for memory for a context, for up to a second.  Returns 1 if the caller shall retry, else 0. */
int weir__drop_in_ask_for_context(CUdevice device, struct weir_admission *admission);
/* Does the work of weir__drop_in_ask_for_context() with any driver table and options. */
int weir__drop_in_ask_for_context_on(const struct weir_driver *driver, CUdevice device,
                                     const weir_options *options, struct weir_admission *admission);

/* Joins the process group that the environment names, and returns the group, or NULL.  If *refused is set, the caller
 * must allocate no memory. */
struct weir_group;
struct weir_group *weir__drop_in_group(CUdevice device, int *refused);
/* Returns the group with a common limit that this process has joined, or NULL.  Makes no driver call. */
struct weir_group *weir__drop_in_group_of(CUdevice device);
/* Asks other processes for idle memory.  `began` is the start of the program's request (CLOCK_MONOTONIC).  Returns 1 if
 * the memory may now be enough, else 0. */
int weir__drop_in_ask_for_memory(CUdevice device, size_t bytes, uint64_t began);
/* Logs the members of a process group and their memory after a failure at its limit, but only a few times. */
void weir__drop_in_log_group(struct weir_group *group, CUdevice device, const char *call,
                             size_t bytes);

/* Waits until the device has completed all work.  Invalidates no stream capture. */
CUresult weir__drop_in_wait(weir_allocator *allocator);

#endif
