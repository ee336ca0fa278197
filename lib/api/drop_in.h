/* SPDX-License-Identifier: MIT */
/* drop_in.h: functions beyond include/weir that lib/adapters needs for an allocator that replaces the driver's own
 * pools.
 *
 * An unmodified program does not follow the rules that weir has for its users.  So the adapter follows these rules for
 * the program, since the adapter sees the calls by which streams end and captures begin.  Such a program also uses
 * features of pools that no user of weir needs.
 *
 * This file must not know the program's calls.
 */
#ifndef WEIR_DROP_IN_H
#define WEIR_DROP_IN_H

#include <weir/weir.h>

#include "driver/driver.h"
#include "ipc/process_peers.h"

/* Returns the allocator that weir_device_allocator is to return for a device.  If this pointer is NULL, or the function
 * returns NULL, weir_device_allocator returns the process's allocator.  The preload library sets the pointer when it is
 * loaded. */
extern weir_allocator *(*weir__drop_in_serves)(int device);

/* weir calls this function after each failed request of weir_tensors_alloc in an allocator of weir__drop_in_serves,
 * because such an allocator writes no OOM report itself.  The pointer may be NULL.  The preload library sets the
 * pointer when it is loaded. */
extern void (*weir__drop_in_refused)(weir_allocator *allocator, size_t bytes);

/* Makes the allocator a replacement of the driver's pools.  Called before the allocator's first request.  From then on
 * a request on a stream that is being captured fails with WEIR_E_CAPTURE, because the driver adds the node to the
 * graph.  weir measures peaks at each request that no cache serves.  `watches` may be NULL.  It returns 1 for a stream
 * for which weir__drop_in_stream_begins was called.  weir does not query such a stream once the stream has a cache, nor
 * a thread's default streams, so the caller must make no call with a stream that is being captured.  weir may call
 * `watches` with locks held, so `watches` must not call weir. */
void weir__drop_in_begin(weir_allocator *allocator, int (*watches)(weir_stream stream));
/* Makes weir query every stream from now on, since the adapter no longer sees every beginning of a capture. */
void weir__drop_in_distrust(weir_allocator *allocator);

/* Switches the log of failures off, since the caller reports failures itself.  The caller calls this function before
 * the first request. */
void weir__drop_in_hush(weir_allocator *allocator);

/* Sets when a block that one stream has freed may serve another stream.  If `on` is set, the host must have waited for
 * the block's work, or the memory must have gone back to the device.  If `on` is 0, the default, the block's work must
 * have completed.  Slots of less than a page always return to the cache of their own stream. */
void weir__drop_in_keep_apart(weir_allocator *allocator, int on);

/* Reads options as weir_options_from_env does, with two differences.  No variable of another program chooses the
 * engine.  Variables for preallocation count even if only weir makes the other program use CUDA's memory pools
 * (settings.h).  `sources` may be NULL. */
struct weir_sources;
weir_status weir__drop_in_options(weir_options *options, struct weir_sources *sources,
                                  char *message, size_t message_bytes);

/* Creates an allocator as weir_allocator_create does.  If `decompresses` is set, the memory also allows hardware
 * decompression. */
weir_status weir__drop_in_create(const weir_options *options, int decompresses,
                                 weir_allocator **allocator);

/* Marks the allocator as lost.  The caller then destroys the device's context with all its memory.  Later calls return
 * WEIR_E_DEVICE_LOST. */
void weir__drop_in_lose(weir_allocator *allocator);

/* Returns 1 if weir_block_range works for the allocator, else 0. */
int weir__drop_in_knows_blocks(const weir_allocator *allocator);

/* Returns 0 if none of the allocator's blocks was ever at that address, else 1. */
int weir__drop_in_may_have(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if the address lies in memory from which the engine cuts blocks, live or not, else 0.  With the engines
 * pool and direct, returns 1 if the address lies in memory that the driver counts as a live block, else 0. */
int weir__drop_in_holds(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if the allocator keeps its range of addresses until it is destroyed, else 0. */
int weir__drop_in_keeps_addresses(const weir_allocator *allocator);

/* Frees the block as weir_free does, if the allocator's caches can do so alone.  Returns 1 if the block was freed, 0 if
 * nothing was done. */
int weir__drop_in_free_own(weir_allocator *allocator, void *block, weir_stream stream);

/* Frees a block as weir_free does.  The caller knows that the block's last use on each stream has completed. */
weir_status weir__drop_in_free_done(weir_allocator *allocator, void *block);

/* Frees a block in the order of a stream of another device or context, which weir does not know.  `apart` is a stream
 * of the block's device without other work.  The function makes `apart` wait on the device for the work of `stream`,
 * and frees the block on `apart`.  Returns WEIR_E_STREAM if `apart` cannot wait for `stream`. */
weir_status weir__drop_in_free_behind(weir_allocator *allocator, void *block, weir_stream stream,
                                      weir_stream apart);

/* Records that a stream was created.  The new stream may have the handle of an ended stream whose end the adapter did
 * not see. */
void weir__drop_in_stream_begins(weir_allocator *allocator, weir_stream stream);
/* Empties the cache of a stream that is about to end.  Records an event on the stream, so that weir needs no wait for
 * the device later.  Does nothing if the stream is being captured or the allocator does not know the stream. */
void weir__drop_in_stream_ends(weir_allocator *allocator, weir_stream stream);

/* Queries, without a wait, which frees have completed on these streams and on the calling thread's default streams.
 * The caller calls weir__drop_in_trim afterwards.  Returns 1 if all streams are idle and no other thread has used its
 * own default stream, else 0.  Also returns 0 while a request holds the engine.  Queries the legacy stream only if all
 * other streams are idle, since an event on the legacy stream would make blocking streams wait.  The caller makes sure
 * that no capture begins and no stream ends during the call. */
int weir__drop_in_ask(weir_allocator *allocator, const weir_stream *streams, size_t count);
/* Returns 1 if the stream is idle and not being captured, else 0.  The caller makes sure that the stream does not end
 * during the call. */
int weir__drop_in_is_idle(weir_allocator *allocator, weir_stream stream);
/* Returns the bytes that the allocator has reserved. */
size_t weir__drop_in_reserve(const weir_allocator *allocator);
/* Trims as weir_trim does, but waits for no work, and frees only memory whose work has completed.  If `is_idle` is set,
 * all streams were idle, so all work has completed.  If `is_idle` is 0, an allocator that frees memory only after a
 * wait (engine bfc, `harden`) frees nothing. */
void weir__drop_in_trim(weir_allocator *allocator, size_t keep, int is_idle);

/* Returns 1 if a block of the allocator is live, else 0.  Does not call the driver.  The allocator must measure its
 * peak (weir__drop_in_knows_peak). */
int weir__drop_in_has_blocks(weir_allocator *allocator);

/* Returns 1 if the allocator measures its peak, else 0. */
int weir__drop_in_knows_peak(const weir_allocator *allocator);
/* Returns the peak: the most bytes that were requested at once since the last restart.  The peak is a lower bound, as in
 * weir_statistics.  If `restarts` is set, the present bytes become the peak. */
uint64_t weir__drop_in_peak(weir_allocator *allocator, int restarts);

/* Asks other processes to free memory for a context, after a driver call was out of memory.  Returns 1 if a process has
 * freed memory or may have freed memory, so that the caller is to call the driver again.  Otherwise returns 0, and logs
 * once which process has the memory.  Returns 0 if the registry is switched off.  Takes one second at most. */
int weir__drop_in_ask_for_context(CUdevice device, struct weir_admission *admission);
/* Does what weir__drop_in_ask_for_context does, on `driver` and with `options`. */
int weir__drop_in_ask_on(const struct weir_driver *driver, CUdevice device,
                         const weir_options *options, struct weir_admission *admission);

/* Joins the group of processes that share a limit on the device, if this process has a group.  Returns NULL if there is
 * no group.  If the process cannot join the group, logs an error once, returns NULL and sets *refused.  In that case
 * the caller must allocate no memory. */
struct weir_group;
struct weir_group *weir__drop_in_group(CUdevice device, int *refused);
/* Returns the group if the process has joined the group, else NULL.  Does not call the driver. */
struct weir_group *weir__drop_in_group_of(CUdevice device);
/* Asks other processes for idle memory, for a request that weir does not serve and for which the device or the group
 * has no memory.  The request began at `began` (CLOCK_MONOTONIC).  Returns 1 if there may be memory now, else 0. */
int weir__drop_in_ask_for_memory(CUdevice device, size_t bytes, uint64_t began);
/* Logs the members of the group and their memory.  Called after a request that weir does not serve has failed because
 * of the group's limit.  Logs only the first few failures. */
void weir__drop_in_tell_group(struct weir_group *group, CUdevice device, const char *call,
                              size_t bytes);

/* Waits until the device has completed all work.  Invalidates no capture. */
CUresult weir__drop_in_wait(weir_allocator *allocator);

#endif
