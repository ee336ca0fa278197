/* SPDX-License-Identifier: MIT */
/* driver_blocks.h: blocks that the driver itself allocates, from a pool, by cuMemAlloc, or as memory nodes of graphs;
 * and tables of the addresses of such blocks.
 *
 * Graphs.  If an engine does not allocate from a pool of the driver, a request on a captured stream becomes a memory
 * node of the graph.  The driver owns the memory of the node, maps it at each launch, and unmaps it.  A node needs a
 * pool, but the graph copies only the list of devices with access from the pool.  The first such request creates this
 * pool, which never has any memory.
 *
 * Each allocator has one table with the addresses of blocks that are memory nodes.  Each launch of a graph maps a
 * block at its address again, so the table keeps the address after a free.  If another block is later allocated at
 * this address, that block's layer must ignore the entry.
 *
 * Locks.  weir_nodes.lock guards the pool; nodes are created under this lock.  `joining` is held while events are
 * recorded on other streams.  A thread that holds weir_sizes.lock or weir_graph_table.lock calls nothing.
 *
 * This file must not depend on a particular engine or on the guard.
 */
#ifndef WEIR_DRIVER_BLOCKS_H
#define WEIR_DRIVER_BLOCKS_H

#include "engine/engine.h"

struct weir_async {
    struct weir_device *device;
    /* guards `joined`, and keeps waits and frees on this stream in order */
    pthread_mutex_t joining;
    /* The stream on which weir frees blocks that several streams use, or NULL before the first such free. */
    CUstream joined;
};

void weir__async_open(struct weir_async *async, struct weir_device *device);
/* Closes `async`.  If the caller then destroys the pool of the blocks, all frees of blocks that several streams use
 * must have completed. */
void weir__async_close(struct weir_async *async);

/* Creates a pool of the driver with at most `most` bytes (0 means no limit).  The devices in `access` can access its
 * memory.  `usage` is the driver's pool property of this name.  The caller has entered the device's context. */
CUresult weir__async_make_pool(const struct weir_device *device, const struct weir_access *access,
                               size_t most, unsigned short usage, CUmemoryPool *pool);
/* Frees a block of a driver's pool.  On a captured stream the free becomes a node of the graph.  If the thread has no
 * context, a default stream (NULL, 0x1, 0x2) is the default stream of the device's context. */
CUresult weir__async_free_on(struct weir_device *device, CUdeviceptr block, weir_stream stream);

/* Checks that neither `stream` nor a stream in `uses` is captured.  If weir recorded an event on a captured stream, a
 * stream that waits for the event would become part of the capture.  Returns OK, E_CAPTURE, or the driver's error.
 * `uses` may be NULL. */
weir_status weir__uses_check(struct weir_device *device, weir_stream stream,
                             struct weir_use_list *uses);

/* Frees a block of the driver on `stream`.  If other streams use the block, weir frees it on its own stream `joined`,
 * which waits for all these streams, so that no stream of the program waits for another stream.  Returns E_NOT_OWNED
 * if the driver does not know the block.  Returns E_CAPTURE if the stream is captured, and the block was not allocated
 * in this capture or other streams use it.  Relaxes this thread's capture mode, since weir may free blocks while
 * another thread captures a stream. */
weir_status weir__async_free(struct weir_async *async, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses);

/* Returns 1 if frees of blocks that several streams use are pending, or if the query fails; else 0. */
int weir__async_is_pending(struct weir_async *async);

/* ---- sizes ---- */

/* A table of an engine's live blocks with their sizes, and the sum of these sizes. */
struct weir_sizes {
    pthread_mutex_t lock; /* guards the fields below */
    struct weir_map map;  /* maps a block's address to its bytes */
    uint64_t in_use, in_use_peak;
};

void weir__sizes_open(struct weir_sizes *sizes);
void weir__sizes_close(struct weir_sizes *sizes);
/* Adds `bytes` to the sum of the sizes, before the caller allocates a block.  Returns 1 on success, 0 if the sum would
 * exceed the limit. */
int weir__sizes_count(struct weir_sizes *sizes, size_t bytes, uint64_t limit);
/* Records the size of a block after the driver has allocated the block, or has failed to free it.  The sum of the
 * sizes already includes the block.  If `is_live` is 0, or there is no host memory, subtracts the bytes from the sum.
 * Returns 1 if the block is recorded, else 0.  A block that was just removed from the table needs no host memory,
 * unless other threads have filled the table since. */
int weir__sizes_record(struct weir_sizes *sizes, CUdeviceptr block, size_t bytes, int is_live);
/* Removes a block from the table, and sets *bytes to its size.  The sum of the sizes still includes the block.
 * Returns 1 on success, 0 if the block is not live. */
int weir__sizes_remove(struct weir_sizes *sizes, CUdeviceptr block, size_t *bytes);
/* Fills the fields requested, in_use, their peaks and host_bytes of the statistics. */
void weir__sizes_figures(struct weir_sizes *sizes, weir_statistics *out);

/* ---- graphs ---- */

/* The addresses of blocks that are memory nodes of graphs.  Each allocator has one such table. */
struct weir_graph_table {
    _Atomic int any; /* 1 if the table has an address; threads read this field without the lock */
    /* The bytes of host memory of the table.  Threads read this field without the lock. */
    _Atomic size_t host_bytes;
    pthread_mutex_t lock;   /* guards the field below */
    struct weir_map places; /* the addresses of blocks that were requested on captured streams */
};

/* Opens an empty table.  All bytes of *graphs are zero. */
void weir__graphs_open(struct weir_graph_table *graphs);
void weir__graphs_close(struct weir_graph_table *graphs);
/* Records the address of a block that is a memory node of a graph.  Returns 1 on success, 0 if there is no host
 * memory. */
int weir__graphs_add(struct weir_graph_table *graphs, CUdeviceptr block);
/* Returns 1 if a memory node of a graph has, or once had, its block at this address; else 0. */
int weir__graphs_has(struct weir_graph_table *graphs, CUdeviceptr block);
/* Removes an address from the table, since the guard (guard.h) now has a block of its own at the address. */
void weir__graphs_remove(struct weir_graph_table *graphs, CUdeviceptr block);

/* The memory nodes that an engine creates in graphs, for requests on captured streams. */
struct weir_nodes {
    struct weir_async async; /* frees the blocks of the nodes */
    pthread_mutex_t lock;    /* guards the fields below */
    CUmemoryPool pool;       /* the driver's pool for memory nodes, or NULL */
    /* Set if the devices with access have changed since the creation of `pool`, and `pool` could not be destroyed. */
    int outdated;
    struct weir_access access; /* the devices that get access to the next pool */
};

void weir__nodes_open(struct weir_nodes *nodes, struct weir_device *device);
void weir__nodes_close(struct weir_nodes *nodes);

/* Allocates a block as a memory node of the graph into which the request's stream is being captured.  Sets
 * WEIR_REQUEST_CAPTURED in the request.  Returns E_CAPTURE if the driver has no memory nodes (before 11.4), if the
 * device has no pools, or if the driver itself serves such requests (drop_in.h).  The capture stays valid in each
 * case. */
weir_status weir__nodes_alloc(struct weir_nodes *nodes, struct weir_request *r);

/* Changes a device's access to memory nodes that are created later.  Nodes that are already in graphs keep their
 * access.  A pool's access list is fixed, so the next request for a node creates a new pool; destroys the old pool
 * now, outside of a capture, if possible. */
void weir__nodes_allow(struct weir_nodes *nodes, const CUmemAccessDesc *access);

#endif
