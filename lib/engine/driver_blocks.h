/* SPDX-License-Identifier: MIT */
/* driver_blocks.h: memory that the driver itself hands out in stream order, block by block: what engines share that
 * have some of it, be it a pool's or a graph's.
 *
 * Locks: one of its own, under which other streams' events are recorded.
 *
 * Must not know: whose memory it is, and what an engine keeps of its blocks.
 */
#ifndef WEIR_DRIVER_BLOCKS_H
#define WEIR_DRIVER_BLOCKS_H

#include "engine/engine.h"

struct weir_async {
    struct weir_device *device;
    pthread_mutex_t joining; /* guards the stream and the order of waits on it */
    CUstream joined;         /* NULL until the first free with uses */
};

void weir__async_open(struct weir_async *async, struct weir_device *device);
/* Nothing that was freed with uses is pending, or the memory is no pool's that is about to be destroyed. */
void weir__async_close(struct weir_async *async);

/* From a pool of the driver; on a captured stream a node of the graph.  A default stream (NULL, 0x1, 0x2) on a thread
 * without a context is one of the device's own.  The same where a block is given back. */
CUresult weir__async_take(struct weir_device *device, CUmemoryPool pool, size_t bytes,
                          weir_stream stream, CUdeviceptr *block);
CUresult weir__async_give(struct weir_device *device, CUdeviceptr block, weir_stream stream);

/* As an engine's free.  With uses it is ordered behind all of those streams on a stream of its own, so that no stream
 * of the caller's ever waits for another.  E_NOT_OWNED: the driver knows no such block; E_CAPTURE: nor does the graph,
 * or there are uses. */
weir_status weir__async_free(struct weir_async *async, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses);

/* 1 while frees with uses are pending, as far as the driver tells. */
int weir__async_is_pending(struct weir_async *async);

#endif
