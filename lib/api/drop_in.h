/* SPDX-License-Identifier: MIT */
/* drop_in.h: functions for an allocator that replaces the driver's memory pools in an unmodified program.  Only the
 * code that intercepts the program's driver calls (lib/adapters) uses these functions.  They go beyond include/weir.
 *
 * An unmodified program does not follow the rules for users of weir.  So lib/adapters follows these rules for the
 * program.  For example, lib/adapters sees where streams end and captures begin, and passes this on to the functions
 * below.
 *
 * This file must not depend on the driver calls of the program. */
#ifndef WEIR_DROP_IN_H
#define WEIR_DROP_IN_H

#include <weir/weir.h>

#include "driver/driver.h"
#include "ipc/process_peers.h"

/* Returns the allocator that weir_device_allocator shall return for a device.  If this pointer is NULL, or if the
 * function returns NULL, weir_device_allocator creates an allocator.  libweir-preload.so sets the pointer when it is
 * loaded. */
extern weir_allocator *(*weir__drop_in_serves)(int device);

/* A function that weir calls after each failed weir_tensors_alloc, if the allocator replaces the driver's pools.  Such
 * an allocator writes no OOM report itself.  The pointer may be NULL.  libweir-preload.so sets the pointer when it is
 * loaded. */
extern void (*weir__drop_in_refused)(weir_allocator *allocator, size_t bytes);

/* Makes the allocator a replacement of the driver's pools.  The caller calls this function before the allocator's first
 * request.  From then on, a request on a stream that is being captured fails with WEIR_E_CAPTURE, because the driver
 * must add the allocation to the graph.  The allocator updates its peak of requested bytes at each request that no
 * per-stream cache can satisfy.
 *
 * `watches` returns 1 for a stream for which weir__drop_in_stream_begins() was called, else 0; `watches` may be NULL.
 * weir does not query whether such a stream is being captured once the stream has a cache.  weir does not query a
 * thread's default streams either.  So the caller must not call weir with a stream that is being captured.  weir may
 * hold locks when it calls `watches`, so `watches` must not call weir. */
void weir__drop_in_begin(weir_allocator *allocator, int (*watches)(weir_stream stream));
/* Makes weir check before each request whether the stream is being captured, because lib/adapters no longer sees the
 * beginning of every capture. */
void weir__drop_in_query_all(weir_allocator *allocator);

/* Switches the log of failed requests off, because the caller reports failures itself.  The caller calls this function
 * before the first request. */
void weir__drop_in_stop_logs(weir_allocator *allocator);

/* Sets when another stream may reuse a block that one stream has freed.  If `on` is 0 (the default), the other stream
 * may reuse the block after the GPU work on the block has completed.  If `on` is set, the host must also have waited
 * for this work, or the memory must have been released to the device in between.  Blocks smaller than a page always
 * return to the cache of the stream that allocated them. */
void weir__drop_in_forbid_opportunistic(weir_allocator *allocator, int on);

/* Reads options from the environment, as weir_options_from_env does, with two differences.  First, variables of
 * frameworks do not choose the engine.  Second, a framework's variables that request preallocation have an effect even
 * if the framework uses CUDA's memory pools only because weir makes it do so.  `sources` may be NULL. */
struct weir_sources;
weir_status weir__drop_in_options(weir_options *options, struct weir_sources *sources,
                                  char *message, size_t message_bytes);

/* Creates an allocator as weir_allocator_create does.  If `decompresses` is set, the allocator's memory also allows
 * hardware decompression. */
weir_status weir__drop_in_create(const weir_options *options, int decompresses,
                                 weir_allocator **allocator);

/* Marks the allocator as unusable, before the caller destroys the device's context with all its memory.  Later calls
 * return WEIR_E_DEVICE_LOST. */
void weir__drop_in_mark_lost(weir_allocator *allocator);

/* Returns 1 if weir_block_range can find the blocks of this allocator, else 0. */
int weir__drop_in_knows_blocks(const weir_allocator *allocator);

/* Returns 0 if no block of the allocator has ever been at this address, else 1. */
int weir__drop_in_may_contain(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if the address belongs to the allocator, else 0.  Engines that divide large regions into blocks: the
 * address belongs to the allocator if it lies in a region, in a live block or not.  Engines pool and direct: the
 * address belongs to the allocator if it lies in a block that the driver has not freed. */
int weir__drop_in_contains(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if all blocks of the allocator lie in one range of addresses that stays reserved until the allocator is
 * destroyed; else 0. */
int weir__drop_in_keeps_addresses(const weir_allocator *allocator);

/* Frees a block as weir_free does, if the block can go into a per-stream cache without a call of the engine.  Returns 1
 * if the block was freed.  Returns 0 if the function has done nothing, and the caller must free the block in another
 * way. */
int weir__drop_in_free_to_cache(weir_allocator *allocator, void *block, weir_stream stream);

/* Frees a block as weir_free does.  The caller knows that all work on the block has completed, on each stream. */
weir_status weir__drop_in_free_completed(weir_allocator *allocator, void *block);

/* Frees a block after the work of `stream`, which belongs to another device or context.  `apart` is a stream of the
 * block's device without work.  The function makes `apart` wait on the device for `stream`, and then frees the block on
 * `apart`.  Returns WEIR_E_STREAM if `apart` cannot wait for `stream`. */
weir_status weir__drop_in_free_after(weir_allocator *allocator, void *block, weir_stream stream,
                                     weir_stream apart);

/* Tells weir that the program has created a stream.  An earlier stream may have had an equal handle, and lib/adapters
 * may not have seen the end of the earlier stream. */
void weir__drop_in_stream_begins(weir_allocator *allocator, weir_stream stream);
/* Empties the cache of a stream that is about to end.  Records an event on the stream, so that weir needs no wait for
 * the device to find out when the stream's frees have completed.  Does nothing if the stream is being captured, or if
 * no cache belongs to the stream. */
void weir__drop_in_stream_ends(weir_allocator *allocator, weir_stream stream);

/* Checks, without a wait, which frees have completed on these streams and on the calling thread's default streams.  The
 * caller then calls weir__drop_in_trim() to release the memory.  Checks the legacy stream only if all other streams are
 * idle, because an event on the legacy stream would make blocking streams wait.
 *
 * Returns 1 if all streams are idle and no other thread has used its own default stream, else 0.  Also returns 0 if
 * another thread is in a request that uses the engine.  The caller makes sure that no capture begins and no stream ends
 * during the call. */
int weir__drop_in_are_idle(weir_allocator *allocator, const weir_stream *streams, size_t count);
/* Returns 1 if the stream is idle and is not being captured, else 0.  The caller makes sure that the stream does not
 * end during the call. */
int weir__drop_in_is_idle(weir_allocator *allocator, weir_stream stream);
/* Returns how many bytes of device memory the allocator has reserved. */
size_t weir__drop_in_reserve(const weir_allocator *allocator);
/* Releases idle memory to the device as weir_trim does, but only memory whose GPU work has completed, and without a
 * wait.  If `is_idle` is set, the caller has found all streams idle, so all work has completed.  If `is_idle` is 0,
 * engine bfc and an allocator with options.harden release nothing, because both need a wait. */
void weir__drop_in_trim(weir_allocator *allocator, size_t keep, int is_idle);

/* Returns 1 if the allocator has a live block, else 0.  Makes no driver call.  The caller calls this function only if
 * weir__drop_in_knows_peak() returns 1. */
int weir__drop_in_has_blocks(weir_allocator *allocator);

/* Returns 1 if the allocator measures the peak of its requested bytes, else 0. */
int weir__drop_in_knows_peak(const weir_allocator *allocator);
/* Returns the largest sum of the requested bytes of all live blocks since the last restart.  The true peak may be
 * higher, because weir does not update the value at each request.  If `restarts` is set, sets the peak to the present
 * sum. */
uint64_t weir__drop_in_peak(weir_allocator *allocator, int restarts);

/* Asks other processes to free memory for a context, after a driver call has run out of memory.  Returns 1 if the
 * caller shall repeat its driver call, because another process has freed memory or may have freed memory.  Otherwise
 * returns 0, and logs once which process uses the memory.  Returns 0 if the options switch the registry of processes
 * off.  Takes one second at most. */
int weir__drop_in_ask_for_context(CUdevice device, struct weir_admission *admission);
/* Asks other processes to free memory for a context, as weir__drop_in_ask_for_context() does, but with the driver table
 * `driver` and with `options`. */
int weir__drop_in_ask_for_context_on(const struct weir_driver *driver, CUdevice device,
                                     const weir_options *options, struct weir_admission *admission);

/* Joins the group of processes that shares one limit on the device, if the environment puts this process into a group.
 * Returns the group, or NULL if there is no group.  If the process cannot join the group, logs an error once, returns
 * NULL and sets *refused.  In this case the caller must allocate no memory. */
struct weir_group;
struct weir_group *weir__drop_in_group(CUdevice device, int *refused);
/* Returns the group of processes with which this process shares a limit on the device, or NULL if this process has not
 * joined a group.  Makes no driver call. */
struct weir_group *weir__drop_in_group_of(CUdevice device);
/* Asks other processes for idle memory.  The caller has a request that weir only passes to the driver (such as
 * cuMemAlloc), and the device or the limit of the process group has too little memory for the request.  `began` is the
 * time at which the request began (CLOCK_MONOTONIC).  Returns 1 if there may be enough memory now, else 0. */
int weir__drop_in_ask_for_memory(CUdevice device, size_t bytes, uint64_t began);
/* Logs the members of the process group and their memory, after the limit of the group has made a driver call such as
 * cuMemAlloc fail.  Logs only the first few such failures. */
void weir__drop_in_log_group(struct weir_group *group, CUdevice device, const char *call,
                             size_t bytes);

/* Waits until the device has completed all work.  The function does not make a stream capture invalid. */
CUresult weir__drop_in_wait(weir_allocator *allocator);

#endif
