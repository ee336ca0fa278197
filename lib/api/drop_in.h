/* SPDX-License-Identifier: MIT */
/* drop_in.h: what lib/adapters needs of an allocator that replaces the driver's own pools, beyond include/weir.
 *
 * An unmodified program does not follow the rules that weir has for its users.  So the adapter follows them: it sees
 * the calls by which streams end and captures begin.  Such a program also uses features of pools that no user of weir
 * needs.
 *
 * Must not know: which call leads here.
 */
#ifndef WEIR_DROP_IN_H
#define WEIR_DROP_IN_H

#include <weir/weir.h>

#include "driver/driver.h"
#include "ipc/process_peers.h"

/* Returns the allocator that weir_device_allocator shall return for a device.  If the pointer is NULL or returns NULL,
 * that is the process's allocator.  Set when the library is loaded. */
extern weir_allocator *(*weir__drop_in_serves)(int device);

/* Receives each request that weir_tensors_alloc could not serve from such an allocator, which writes no OOM report by
 * itself.  May be NULL.  Set when the library is loaded. */
extern void (*weir__drop_in_refused)(weir_allocator *allocator, size_t bytes);

/* Makes the allocator a replacement, before its first request.  A request on a stream that is being captured then fails
 * with E_CAPTURE and adds no node to the graph, which is the driver's task.  Peaks are measured at each request that no
 * cache serves.  `watches` may be NULL.  It returns 1 for a created stream for which weir__drop_in_stream_begins was
 * called.  weir does not query such a stream once it has a cache, nor a thread's default streams: the caller passes no
 * call on a stream that is being captured.  `watches` may be called with locks held, and must not call weir. */
void weir__drop_in_begin(weir_allocator *allocator, int (*watches)(weir_stream stream));
/* Makes weir query every stream again, since captures may begin unseen from now on. */
void weir__drop_in_distrust(weir_allocator *allocator);

/* Switches the log of failures off, which the caller reports elsewhere.  Called before the first request. */
void weir__drop_in_hush(weir_allocator *allocator);

/* With `on`, a block that one stream has freed serves another stream only after the host has waited or memory was freed
 * to the device.  Otherwise, the default, it does so once its work has completed.  Slots of less than a page are not
 * affected: they return to their own stream's cache. */
void weir__drop_in_keep_apart(weir_allocator *allocator, int on);

/* Reads options as weir_options_from_env does.  But no variable of another program names an engine, and variables for
 * preallocation count even if that program is told to use CUDA's memory pools: see settings.h.  `sources` may be NULL. */
struct weir_sources;
weir_status weir__drop_in_options(weir_options *options, struct weir_sources *sources,
                                  char *message, size_t message_bytes);

/* Creates an allocator as weir_allocator_create does.  If `decompresses` is set, its memory can be used for hardware
 * decompression, too. */
weir_status weir__drop_in_create(const weir_options *options, int decompresses,
                                 weir_allocator **allocator);

/* Marks the allocator as lost, before the device's context is destroyed with all its memory.  Later calls return
 * E_DEVICE_LOST. */
void weir__drop_in_lose(weir_allocator *allocator);

/* Returns 1 if weir_block_range works for the allocator, else 0. */
int weir__drop_in_knows_blocks(const weir_allocator *allocator);

/* Returns 0 if none of the allocator's blocks was ever at that address, else 1. */
int weir__drop_in_may_have(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if the address lies in memory from which blocks are cut, live or not; for the direct engine, in a live
 * block. */
int weir__drop_in_holds(const weir_allocator *allocator, uint64_t address);
/* Returns 1 if the allocator keeps its range of addresses until it is destroyed, else 0. */
int weir__drop_in_keeps_addresses(const weir_allocator *allocator);

/* Frees the block as weir_free does, if it is this allocator's and the free needs nothing else.  Returns 1 if the block
 * was freed, 0 if nothing was done. */
int weir__drop_in_free_own(weir_allocator *allocator, void *block, weir_stream stream);

/* Frees a block as weir_free does.  The caller knows that its last use on each stream is over. */
weir_status weir__drop_in_free_done(weir_allocator *allocator, void *block);

/* Frees a block on a stream of another device or context, which weir does not know.  `apart` is a stream of the block's
 * device that runs no work.  It waits for the work of `stream` on the device, and the block is freed on it.  Returns
 * E_STREAM if that wait is not possible. */
weir_status weir__drop_in_free_behind(weir_allocator *allocator, void *block, weir_stream stream,
                                      weir_stream apart);

/* Records that a stream was created, perhaps with the handle of a stream whose end was not seen. */
void weir__drop_in_stream_begins(weir_allocator *allocator, weir_stream stream);
/* Returns the memory of the stream's cache behind an event, before the stream ends, so that the device need not be
 * waited for.  Does nothing if the stream is being captured or not known. */
void weir__drop_in_stream_ends(weir_allocator *allocator, weir_stream stream);

/* Observes which frees have completed on these streams and on the calling thread's default streams, without waiting;
 * called before weir__drop_in_trim.  Returns 1 if all streams were idle and no other thread has used a default stream
 * of its own, else 0, also while a request holds the engine.  The legacy stream is observed only if all others are
 * idle: an event on it would make blocking streams wait.  The caller prevents captures and ends of streams during the
 * call. */
int weir__drop_in_ask(weir_allocator *allocator, const weir_stream *streams, size_t count);
/* Returns 1 if the stream is idle and not being captured, else 0.  The caller keeps the stream from ending
 * meanwhile. */
int weir__drop_in_is_idle(weir_allocator *allocator, weir_stream stream);
/* Returns the bytes that the allocator has reserved. */
size_t weir__drop_in_reserve(const weir_allocator *allocator);
/* Trims as weir_trim does, but waits for no work: frees memory whose work has completed.  `is_idle` says that all
 * streams were idle, so that all work has completed.  Without it, an allocator that frees memory only after a wait,
 * such as an arena of regions or one with `harden`, frees nothing. */
void weir__drop_in_trim(weir_allocator *allocator, size_t keep, int is_idle);

/* Returns 1 if a block of the allocator is live, else 0, without a call to the driver.  Only for an allocator that
 * knows its peak. */
int weir__drop_in_has_blocks(weir_allocator *allocator);

/* Return whether the allocator measures its peak, return the peak, and restart it.  The peak is the most bytes that
 * were requested at once since the last restart: a lower bound, as in weir_statistics. */
int weir__drop_in_knows_peak(const weir_allocator *allocator);
uint64_t weir__drop_in_peak(weir_allocator *allocator);
void weir__drop_in_renew_peak(weir_allocator *allocator);

/* Reports this thread's last failure as options.oom_report says, if its cause is new.  Returns 1 with the OOM report,
 * or 0 if there was no failure of this allocator or it is not to be reported. */
int weir__drop_in_tell(weir_allocator *allocator, weir_oom_report *out);

/* Asks other processes for room for a context, after a call was out of memory, unless the registry is switched off.
 * Returns 1 if the caller shall call the driver again, since a process freed memory or may have; returns 0 otherwise,
 * and logs once which process has the memory.  Takes one second at most. */
int weir__drop_in_ask_for_context(CUdevice device, struct weir_admission *admission);
/* Asks as weir__drop_in_ask_for_context does, for that driver and with these options. */
int weir__drop_in_ask_on(const struct weir_driver *driver, CUdevice device,
                         const weir_options *options, struct weir_admission *admission);

/* Joins the group of this process on that device.  Returns NULL if there is none.  If the group cannot be joined, logs
 * that once and sets *refused: then no memory may be allocated. */
struct weir_group;
struct weir_group *weir__drop_in_group(CUdevice device, int *refused);
/* Returns the group if the process has joined it, else NULL, without a call to the driver. */
struct weir_group *weir__drop_in_group_of(CUdevice device);
/* Asks other processes for idle memory, for a request since `began` (CLOCK_MONOTONIC) that weir does not serve and for
 * which the device or the group has no memory.  Returns 1 if there may be memory now, else 0. */
int weir__drop_in_ask_for_memory(CUdevice device, size_t bytes, uint64_t began);
/* Logs the members of the group and their memory after the group has refused such a request; the first few times
 * only. */
void weir__drop_in_tell_group(struct weir_group *group, CUdevice device, const char *call,
                              size_t bytes);

/* Waits until the device has completed all work.  Breaks no capture. */
CUresult weir__drop_in_wait(weir_allocator *allocator);

#endif
