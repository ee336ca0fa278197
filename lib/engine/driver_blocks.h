/* SPDX-License-Identifier: MIT */
/* driver_blocks.h: blocks that the driver itself allocates, by a pool, by cuMemAlloc, or as memory nodes of graphs; and
 * tables of their addresses.
 *
 * Graphs.  In an engine that does not use a pool of the driver, a request under stream capture becomes a memory node of
 * the graph.  The driver owns that memory, maps it at each launch, and unmaps it.  A node needs a pool, from which the
 * graph copies only the list of devices with access.  The first such request makes this pool, which never has any
 * memory.
 *
 * Each allocator has one table of the addresses of graphs' blocks.  Each launch maps a block at its address again, so
 * the table keeps the address after a free.  A layer that has a live block at that address ignores the entry.
 *
 * Locks: weir_nodes.lock, under which the pool and nodes are made; `joining`, under which events are recorded on other
 * streams; weir_sizes.lock and weir_graph_table.lock, under which nothing is called.
 *
 * This file must not know whose memory it is.
 */
#ifndef WEIR_DRIVER_BLOCKS_H
#define WEIR_DRIVER_BLOCKS_H

#include "engine/engine.h"

struct weir_async {
    struct weir_device *device;
    pthread_mutex_t joining; /* guards `joined` and the order of the waits on it */
    CUstream joined; /* the stream on which blocks with uses are freed; NULL before the first */
};

void weir__async_open(struct weir_async *async, struct weir_device *device);
/* No free with uses may be pending if the caller destroys the pool of these blocks next. */
void weir__async_close(struct weir_async *async);

/* Makes a pool of at most `most` bytes (0 means no limit) on the device, with access for the devices of the list.
 * `usage` is the driver's property of that name.  The caller is in the driver's scope. */
CUresult weir__async_make_pool(const struct weir_device *device, const struct weir_access *access,
                               size_t most, unsigned short usage, CUmemoryPool *pool);
/* Frees a block of a driver's pool.  On a captured stream the free is a node of the graph.  If the thread has no
 * context, a default stream (NULL, 0x1, 0x2) means the one of the device's context. */
CUresult weir__async_give(struct weir_device *device, CUdeviceptr block, weir_stream stream);

/* Checks that neither `stream` nor a stream of `uses` is captured: an event recorded on a captured stream would draw a
 * waiting stream into the capture.  Returns OK, E_CAPTURE, or the driver's error.  `uses` may be NULL. */
weir_status weir__uses_check(struct weir_device *device, weir_stream stream,
                             struct weir_use_list *uses);

/* Frees a block, with the results of an engine's `free`.  A block with uses is freed on a stream of weir's that waits
 * for all streams of the block, so that no stream of the program waits for another.  Returns E_NOT_OWNED if the driver
 * does not know the block, E_CAPTURE if the stream is captured and the graph does not know it or it has uses.  Relaxes
 * this thread's capture mode, since weir may free blocks during another thread's capture. */
weir_status weir__async_free(struct weir_async *async, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses);

/* Returns 1 if frees with uses are pending or a query fails, else 0. */
int weir__async_is_pending(struct weir_async *async);

/* ---- sizes ---- */

/* The live blocks of an engine, and their sum. */
struct weir_sizes {
    pthread_mutex_t lock; /* guards the fields below */
    struct weir_map map;  /* address -> bytes */
    uint64_t in_use, in_use_peak;
};

void weir__sizes_open(struct weir_sizes *sizes);
void weir__sizes_close(struct weir_sizes *sizes);
/* Adds bytes to the sum before a block is allocated.  Returns 1 on success, 0 if the sum would exceed the limit. */
int weir__sizes_count(struct weir_sizes *sizes, size_t bytes, uint64_t limit);
/* Records a block whose bytes are counted, after the driver has allocated it or has refused to free it.  If `is_live`
 * is 0, or there is no host memory, subtracts the bytes from the sum.  Returns 1 if the block is recorded, else 0.
 * Cannot lack host memory for a block that weir__sizes_take has just removed, unless the table has grown since. */
int weir__sizes_record(struct weir_sizes *sizes, CUdeviceptr block, size_t bytes, int is_live);
/* Removes a block, whose bytes stay counted.  Returns 1 and its bytes, or 0 if the block is not live. */
int weir__sizes_take(struct weir_sizes *sizes, CUdeviceptr block, size_t *bytes);
/* Fills requested, in_use, their peaks and host_bytes. */
void weir__sizes_figures(struct weir_sizes *sizes, weir_statistics *out);

/* ---- graphs ---- */

/* The addresses of graphs' blocks.  An allocator has one table. */
struct weir_graph_table {
    _Atomic int any;           /* 1 if the table has an address; read without the lock */
    _Atomic size_t host_bytes; /* the host memory of `places`; read without the lock */
    pthread_mutex_t lock;      /* guards the field below */
    struct weir_map places;    /* addresses where requests under capture were served */
};

/* Opens a table whose bytes are all zero. */
void weir__graphs_open(struct weir_graph_table *graphs);
void weir__graphs_close(struct weir_graph_table *graphs);
/* Records the address of a graph's block.  Returns 1 on success, 0 if there is no host memory. */
int weir__graphs_note(struct weir_graph_table *graphs, CUdeviceptr block);
/* Returns 1 if the address is recorded, 0 otherwise. */
int weir__graphs_has(struct weir_graph_table *graphs, CUdeviceptr block);
/* Removes the address, since a block of the guard lies there now (guard.h). */
void weir__graphs_forget(struct weir_graph_table *graphs, CUdeviceptr block);

/* Memory nodes of graphs. */
struct weir_nodes {
    struct weir_async async; /* frees the blocks */
    pthread_mutex_t lock; /* guards the fields below */
    CUmemoryPool pool;    /* the driver's pool for memory nodes, or NULL */
    int outdated;         /* set if `pool` has old access, since it could not be destroyed */
    struct weir_access access; /* the devices that get access to the next pool */
};

void weir__nodes_open(struct weir_nodes *nodes, struct weir_device *device);
void weir__nodes_close(struct weir_nodes *nodes);

/* Serves the request by a memory node of the graph that the stream is being captured into, and marks it CAPTURED.
 * Returns E_CAPTURE if the driver has no memory nodes (before 11.4), the device has no pools, or the driver serves such
 * requests itself (drop_in.h).  The capture stays valid. */
weir_status weir__nodes_alloc(struct weir_nodes *nodes, struct weir_request *r);

/* Changes a device's access to future nodes, whose next request makes a new pool.  The old pool is destroyed now, outside
 * of a capture, if possible.  Nodes in graphs keep the access that they were captured with. */
void weir__nodes_allow(struct weir_nodes *nodes, const CUmemAccessDesc *access);

#endif
