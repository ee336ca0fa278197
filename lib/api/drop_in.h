/* SPDX-License-Identifier: MIT */
/* drop_in.h: functions for an allocator that serves an unmodified program in place of the driver's own pools.  Only
 * lib/adapters uses these functions, which go beyond include/weir.
 *
 * An unmodified program does not follow the rules that weir has for its users.  So the adapter, which sees the
 * program's calls, follows these rules for the program.  For example, the adapter sees where streams end and captures
 * begin.  An unmodified program also uses features of pools that no other user of weir needs.
 *
 * This file must not know the program's calls. */
#ifndef WEIR_DROP_IN_H
#define WEIR_DROP_IN_H

#include <weir/weir.h>

#include "driver/driver.h"
#include "ipc/process_peers.h"

/* Returns the allocator that weir_device_allocator shall return for a device.  If this pointer is NULL, or if the
 * function returns NULL, weir_device_allocator returns the process's own allocator.  The preload library sets the
 * pointer when the library is loaded. */
extern weir_allocator *(*weir__drop_in_serves)(int device);

/* A function that weir calls after each failed request of weir_tensors_alloc in an allocator from
 * weir__drop_in_serves().  Such an allocator writes no OOM report itself.  The pointer may be NULL.  The preload
 * library sets the pointer when the library is loaded. */
extern void (*weir__drop_in_refused)(weir_allocator *allocator, size_t bytes);

/* Makes the allocator a replacement of the driver's pools.  The caller calls this function before the allocator's first
 * request.  From then on, a request on a stream that is being captured fails with WEIR_E_CAPTURE, because the driver
 * adds the node to the graph.  weir measures peaks at each request that no cache serves.
 *
 * `watches` returns 1 for a stream for which weir__drop_in_stream_begins() was called, else 0; `watches` may be NULL.
 * Once such a stream has a cache, weir does not query the stream any more.  weir does not query a thread's default
 * streams either.  So the caller must make no call with a stream that is being captured.  weir may call `watches` while
 * it holds locks, so `watches` must not call weir. */
void weir__drop_in_begin(weir_allocator *allocator, int (*watches)(weir_stream stream));
/* Makes weir query every stream from now on, because the adapter no longer sees the beginning of every capture. */
void weir__drop_in_distrust(weir_allocator *allocator);

/* Makes weir log no failed request, because the caller reports failures itself.  The caller calls this function before
 * the first request. */
void weir__drop_in_hush(weir_allocator *allocator);

/* Sets when a block that one stream has freed may serve another stream.  If `on` is 0 (the default), the work on the
 * block must have completed.  If `on` is set, the host must have waited for this work, or the memory must have been
 * released to the device in between.  Slots smaller than a page always return to the cache of their own stream. */
void weir__drop_in_keep_apart(weir_allocator *allocator, int on);

/* Reads options from the environment, as weir_options_from_env does, with two differences.  First, no variable of
 * another program chooses the engine.  Second, a framework's variables for preallocation count even if only weir makes
 * the framework use CUDA's memory pools (settings.h).  `sources` may be NULL. */
struct weir_sources;
weir_status weir__drop_in_options(weir_options *options, struct weir_sources *sources,
                                  char *message, size_t message_bytes);

/* Creates an allocator as weir_allocator_create does.  If `decompresses` is set, the allocator's memory also allows
 * hardware decompression. */
weir_status weir__drop_in_create(const weir_options *options, int decompresses,
                                 weir_allocator **allocator);

/* Marks the allocator as lost, before the caller destroys the device's context with all its memory.  Later calls return
 * WEIR_E_DEVICE_LOST. */
void weir__drop_in_lose(weir_allocator *allocator);

/* Returns 1 if weir_block_range works with this allocator, else 0. */
int weir__drop_in_knows_blocks(const weir_allocator *allocator);

/* Returns 0 if no block of the allocator has ever been at this address, else 1. */
int weir__drop_in_may_have(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if the address belongs to the allocator, else 0.  The address belongs to the allocator if it lies in memory
 * from which the engine cuts blocks, live or not.  With the engines pool and direct, it belongs to the allocator if it
 * lies in a block that is live for the driver. */
int weir__drop_in_holds(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if the allocator keeps one range of addresses until the allocator is destroyed, else 0. */
int weir__drop_in_keeps_addresses(const weir_allocator *allocator);

/* Frees a block as weir_free does, if the allocator's caches alone can free the block.  Returns 1 if the block was
 * freed, 0 if the function has done nothing. */
int weir__drop_in_free_own(weir_allocator *allocator, void *block, weir_stream stream);

/* Frees a block as weir_free does.  The caller knows that all work on the block has completed, on each stream. */
weir_status weir__drop_in_free_done(weir_allocator *allocator, void *block);

/* Frees a block in the order of `stream`, a stream of another device or context that weir does not know.  `apart` is a
 * stream of the block's device without other work.  The function makes `apart` wait on the device for the work of
 * `stream`, and then frees the block on `apart`.  Returns WEIR_E_STREAM if `apart` cannot wait for `stream`. */
weir_status weir__drop_in_free_behind(weir_allocator *allocator, void *block, weir_stream stream,
                                      weir_stream apart);

/* Records that the program has created a stream.  An earlier stream may have had this handle, and the adapter may not
 * have seen the end of the earlier stream. */
void weir__drop_in_stream_begins(weir_allocator *allocator, weir_stream stream);
/* Flushes the cache of a stream that is about to end.  Records an event on the stream, so that weir later needs no wait
 * for the device.  Does nothing if the stream is being captured, or if the allocator does not know the stream. */
void weir__drop_in_stream_ends(weir_allocator *allocator, weir_stream stream);

/* Queries, without a wait, which frees have completed on these streams and on the calling thread's default streams.
 * The caller calls weir__drop_in_trim() afterwards.  Queries the legacy stream only if all other streams are idle,
 * because an event on the legacy stream would make blocking streams wait.
 *
 * Returns 1 if all streams are idle and no other thread has used its own default stream, else 0.  Also returns 0 while
 * a request holds the engine.  The caller makes sure that no capture begins and no stream ends during the call. */
int weir__drop_in_ask(weir_allocator *allocator, const weir_stream *streams, size_t count);
/* Returns 1 if the stream is idle and is not being captured, else 0.  The caller makes sure that the stream does not
 * end during the call. */
int weir__drop_in_is_idle(weir_allocator *allocator, weir_stream stream);
/* Returns the size of the allocator's reserved memory, in bytes. */
size_t weir__drop_in_reserve(const weir_allocator *allocator);
/* Releases idle memory as weir_trim does, but waits for no work.  Releases only memory whose work has completed.  If
 * `is_idle` is set, the caller has found all streams idle, so all work has completed.  If `is_idle` is 0, engine bfc
 * and an allocator with options.harden release nothing, because both need a wait. */
void weir__drop_in_trim(weir_allocator *allocator, size_t keep, int is_idle);

/* Returns 1 if the allocator has a live block, else 0.  Does not call the driver.  The allocator must measure its peak
 * (weir__drop_in_knows_peak). */
int weir__drop_in_has_blocks(weir_allocator *allocator);

/* Returns 1 if the allocator measures its peak, else 0. */
int weir__drop_in_knows_peak(const weir_allocator *allocator);
/* Returns the peak: the maximum of the requested bytes in live blocks since the last restart.  The peak is a lower
 * bound, as in weir_statistics.  If `restarts` is set, restarts the peak at the present bytes. */
uint64_t weir__drop_in_peak(weir_allocator *allocator, int restarts);

/* Asks other processes to free memory for a context, after a driver call has run out of memory.  Returns 1 if another
 * process has freed memory or may have freed memory.  The caller then repeats its driver call.  Otherwise returns 0,
 * and logs once which process has the memory.  Returns 0 if the registry is switched off.  Takes one second at most. */
int weir__drop_in_ask_for_context(CUdevice device, struct weir_admission *admission);
/* Asks other processes for memory as weir__drop_in_ask_for_context() does, but on the driver table `driver` and with
 * `options`. */
int weir__drop_in_ask_on(const struct weir_driver *driver, CUdevice device,
                         const weir_options *options, struct weir_admission *admission);

/* Joins the process group that shares a limit on the device, if the environment puts this process into a group.
 * Returns the group, or NULL if there is no group.  If the process cannot join the group, logs an error once, returns
 * NULL and sets *refused.  In this case the caller must allocate no memory. */
struct weir_group;
struct weir_group *weir__drop_in_group(CUdevice device, int *refused);
/* Returns the process group on this device if the process has joined the group, else NULL.  Does not call the
 * driver. */
struct weir_group *weir__drop_in_group_of(CUdevice device);
/* Asks other processes for idle memory.  The caller has a request that weir does not serve (such as cuMemAlloc), and
 * the device or the process group has too little memory for the request.  `began` is the time at which the request
 * began (CLOCK_MONOTONIC).  Returns 1 if there may be enough memory now, else 0. */
int weir__drop_in_ask_for_memory(CUdevice device, size_t bytes, uint64_t began);
/* Logs the members of the process group and their memory.  The caller has a request that weir does not serve, and the
 * limit of the group has made the request fail.  Logs only the first few such failures. */
void weir__drop_in_tell_group(struct weir_group *group, CUdevice device, const char *call,
                              size_t bytes);

/* Waits until the device has completed all work.  The wait invalidates no capture. */
CUresult weir__drop_in_wait(weir_allocator *allocator);

#endif
