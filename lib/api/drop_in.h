/* SPDX-License-Identifier: MIT */
/* drop_in.h: what lib/adapters needs of an allocator beyond include/weir, where it stands in the place of the
 * driver's own pools.
 *
 * A program that knows nothing of weir keeps nothing of what weir asks of its users, so the adapter sees to it:
 * streams end and captures begin by calls that it sees.  And such a program asks of pools what no user of
 * weir's asks of an allocator.
 *
 * Must not know: how a call comes here.
 */
#ifndef WEIR_DROP_IN_H
#define WEIR_DROP_IN_H

#include <weir/weir.h>

#include "driver/driver.h"
#include "ipc/parking_wait.h"
#include "ipc/process_peers.h"

/* 1 in a child of fork: see driver.h. */
static inline int weir__drop_in_forked(void) {
    return weir__driver_forked();
}

/* Around a lock under which an allocator is made: see driver.h. */
static inline void weir__drop_in_begin_use(void) {
    (void)weir__driver_begin_use();
}
static inline void weir__drop_in_end_use(void) {
    weir__driver_end_use();
}

/* Which allocator weir_device_allocator gives for a device; NULL, or gives NULL: the process's.  Set as the library is
 * loaded. */
extern weir_allocator *(*weir__drop_in_serves)(int device);

/* Receives each request of so many bytes that weir_tensors_alloc has failed to serve from such an allocator, which writes
 * no OOM report by itself.  NULL: nobody does.  Set as the library is loaded. */
extern void (*weir__drop_in_refused)(weir_allocator *allocator, size_t bytes);

/* Before the first request.  From then on one on a stream that is being captured is refused (E_CAPTURE) rather
 * than made a node of the graph, which is for the driver; and peaks are seen at every request that no cache
 * serves.
 *
 * `watches' (NULL: none): 1 of a created stream of which weir__drop_in_stream_begins was called.  The driver is not asked
 * about such a stream once it has a cache, nor about a thread's default streams, as if they were bound: the caller
 * passes no request or free of a stream that is being captured.  It may be called with locks held, and may not call weir. */
void weir__drop_in_begin(weir_allocator *allocator, int (*watches)(weir_stream stream));
/* A capture may begin unseen from now on: the driver is asked about every stream again. */
void weir__drop_in_distrust(weir_allocator *allocator);

/* Before the first request: failures are told elsewhere, so the log does not say them. */
void weir__drop_in_hush(weir_allocator *allocator);

/* 1: a block that one stream has freed serves another only after the host has waited or memory was given back to the
 * device.  0, the default: once its work is observed to be complete.  Slots of less than a page do not change: each
 * goes back to its own stream's cache. */
void weir__drop_in_keep_apart(weir_allocator *allocator, int on);

/* As weir_options_from_env, but that no variable of another program's names an engine, and that those that ask for a
 * preallocation count where that program is told to ask CUDA's memory pools: see settings.h. */
weir_status weir__drop_in_options(weir_options *options, char *message, size_t message_bytes);

/* As weir_allocator_create.  `decompresses': its memory is made for hardware decompression, too. */
weir_status weir__drop_in_create(const weir_options *options, int decompresses,
                                 weir_allocator **allocator);

/* The device's context is about to be destroyed with all that weir has in it: E_DEVICE_LOST from then on. */
void weir__drop_in_lose(weir_allocator *allocator);

/* 1 if weir_block_range can tell. */
int weir__drop_in_knows_blocks(const weir_allocator *allocator);

/* 0: none of the allocator's blocks was ever at that address. */
int weir__drop_in_may_have(const weir_allocator *allocator, uint64_t address);
/* 1 if the address lies in memory that blocks are cut from, whether in a live one or not; of engine direct, in a
 * block. */
int weir__drop_in_holds(const weir_allocator *allocator, uint64_t address);
/* 1 if its addresses stay its own whatever becomes of the memory behind them, as long as it is not destroyed. */
int weir__drop_in_keeps_addresses(const weir_allocator *allocator);

/* As weir_free, for a caller that does not know whose block it is.  1: the block was freed.  0: nothing was done: it is
 * another allocator's block, or the free needs more than this call does. */
int weir__drop_in_free_own(weir_allocator *allocator, void *block, weir_stream stream);

/* As weir_free, of a block whose last use is over on every stream, as the caller knows. */
weir_status weir__drop_in_free_done(weir_allocator *allocator, void *block);

/* Frees a block on a stream of another device or context, which weir does not know.  `apart', a stream of the block's
 * device that runs nothing else, waits on the device for the work of that stream, and the block is freed there.  Returns
 * E_STREAM if that wait is not possible. */
weir_status weir__drop_in_free_behind(weir_allocator *allocator, void *block, weir_stream stream,
                                      weir_stream apart);

/* A stream was created, maybe with the handle of another whose end was not seen. */
void weir__drop_in_stream_begins(weir_allocator *allocator, weir_stream stream);
/* A stream that lives is about to end: what its cache holds goes back behind an event, rather than to wait for
 * the device.  Nothing if it is being captured, or not known. */
void weir__drop_in_stream_ends(weir_allocator *allocator, weir_stream stream);

/* Called before weir__drop_in_trim: observes which frees are complete on these streams and on the calling thread's
 * default streams, and waits for nothing.  On the legacy stream that happens only while all others are idle: an event on
 * it makes blocking streams wait for the streams at work.  1 if all of them were idle, and no other thread has used a
 * default stream of its own, which may have ended since.  0 also where a request holds the engine, maybe while it waits
 * for the device.  No capture is under way; meanwhile the caller keeps captures from beginning and streams from ending. */
int weir__drop_in_ask(weir_allocator *allocator, const weir_stream *streams, size_t count);
/* 1 if the stream is idle, and is not being captured.  Meanwhile the caller keeps it from ending. */
int weir__drop_in_is_idle(weir_allocator *allocator, weir_stream stream);
/* Bytes that it has from the device. */
size_t weir__drop_in_reserve(const weir_allocator *allocator);
/* As weir_trim, but waits for no work: gives back memory whose work is known to be complete.  `is_idle': all streams
 * were idle, so that all work is complete.  If not, an allocator whose memory goes back behind a wait gives nothing
 * back: an arena of regions, or one with `harden'. */
void weir__drop_in_trim(weir_allocator *allocator, size_t keep, int is_idle);

/* 1 if a block of it is live, which no call of the driver's is needed for.  For one that knows its peak, too. */
int weir__drop_in_has_blocks(weir_allocator *allocator);

/* The most bytes that were requested at once since this was last begun again: a lower bound, as
 * weir_statistics says of peaks.  For an allocator that keeps it. */
int weir__drop_in_knows_peak(const weir_allocator *allocator);
uint64_t weir__drop_in_peak(weir_allocator *allocator);
void weir__drop_in_renew_peak(weir_allocator *allocator);

/* This thread's last failure by the allocator stands: tells why where options.verdict says, if that is news, and then
 * is 1 with the OOM report.  0: it is none, or nothing is to be told. */
int weir__drop_in_tell(weir_allocator *allocator, weir_verdict *out);

/* A context of the device was out of memory: asks other processes for room for one, as one that counts like them,
 * unless the environment has turned the registry off.  1: the driver is to be asked again, since somebody gave or may
 * have.  0: that was all; a line of the log says once who has the memory.  No longer than a second
 * in all.  `parking': then it waits for processes that are parked while they are idle; NULL: that would be of no use. */
int weir__drop_in_ask_for_context(CUdevice device, struct weir_admission *admission,
                                  struct weir_parking_wait *parking);
/* The same of that driver, with these options. */
int weir__drop_in_ask_on(const struct weir_driver *driver, CUdevice device,
                         const weir_options *options, struct weir_admission *admission,
                         struct weir_parking_wait *parking);

/* The group of this process on that device, joined; NULL: there is none.  A group that cannot be joined is told once, and
 * *refused set: nothing may be taken. */
struct weir_group;
struct weir_group *weir__drop_in_group(CUdevice device, int *refused);
/* The same, where it has joined; asks nothing of the driver. */
struct weir_group *weir__drop_in_group_of(CUdevice device);
/* A request of so many bytes that weir does not serve finds no memory on the device, or in the group: asks other
 * processes for what they have idle, since `began' (CLOCK_MONOTONIC).  1: there may be some now. */
int weir__drop_in_ask_for_memory(CUdevice device, size_t bytes, uint64_t began);
/* Such a request waits for processes that are parked while they are idle.  1: it may try again.  `plain': bytes of the
 * device that this process has by such requests already. */
int weir__drop_in_wait_for_parking(CUdevice device, size_t bytes, uint64_t plain,
                                   struct weir_parking_wait *wait);
/* This process has such memory on the device: if it may be parked, others are to know.  Does nothing the next time. */
void weir__drop_in_note_plain(CUdevice device);
/* The group has refused such a request: tells who has what in it, some times. */
void weir__drop_in_tell_group(struct weir_group *group, CUdevice device, const char *call,
                              size_t bytes);

/* Waits until the device has finished all work, and harms no capture. */
CUresult weir__drop_in_wait(weir_allocator *allocator);

#endif
