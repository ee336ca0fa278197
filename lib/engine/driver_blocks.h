/* SPDX-License-Identifier: MIT */
/* driver_blocks.h: blocks that the driver itself allocates, from a pool, by cuMemAlloc, or as memory nodes of graphs;
 * and tables of their addresses.
 *
 * Graphs.  A heap's request on a captured stream becomes a memory node of the graph.  Nodes need a pool of the driver,
 * from which the graph copies only the list of devices with access.  So weir creates a pool, which never has memory.
 *
 * Each launch maps a node's block at its address again, so the table `graphs` of these addresses keeps an address after
 * a free.  If another block is later allocated there, that block's layer must ignore or remove the entry.
 *
 * Locks.  weir_nodes.lock guards the pool; nodes are created under this lock.  `joining` is held while events are
 * recorded on other streams.  A thread that holds weir_sizes.lock or weir_address_table.lock takes no other lock.
 */
#ifndef WEIR_DRIVER_BLOCKS_H
#define WEIR_DRIVER_BLOCKS_H

#include "base/lock.h"
#include "engine/engine.h"

struct weir_async {
    struct weir_device *device;
    struct weir_lock joining; /* guards `joined`, and orders the waits and frees on this stream */
    CUstream joined; /* the stream on which weir frees blocks that several streams use, or NULL */
};

/* Destroys the stream `joined`.  All frees on it must have completed if the caller destroys the driver's pool next. */
void weir__async_close(struct weir_async *async);

/* Creates a pool of the driver with at most `most` bytes (0 means no limit), for the devices in `access`.  `usage` is
 * the driver's pool property.  The caller has entered the device's context. */
CUresult weir__async_make_pool(const struct weir_device *device, const struct weir_access *access,
                               size_t most, unsigned short usage, CUmemoryPool *pool);
/* Frees a block of a driver's pool.  On a captured stream, the free becomes a node of the graph. */
CUresult weir__async_free_on(struct weir_device *device, CUdeviceptr block, weir_stream stream);

/* Returns E_CAPTURE if `stream` or a stream in `uses` is captured, since a stream that waits for an event on a captured
 * stream would join the capture.  `uses` may be NULL. */
weir_status weir__uses_check(struct weir_device *device, weir_stream stream,
                             struct weir_use_list *uses);

/* Frees a block of the driver on `stream`, or on weir's stream `joined` if other streams use the block.  On a captured
 * stream, frees only a block of the same capture that no other stream uses; else returns E_CAPTURE.  Returns
 * E_NOT_OWNED if the driver does not know the block.  May be called while another thread captures a stream. */
weir_status weir__async_free(struct weir_async *async, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses);

/* Returns 1 if frees on the private stream (`joined`) are pending, or if the query fails; else 0. */
int weir__async_is_pending(struct weir_async *async);

/* ---- sizes ---- */

/* An engine's live blocks with their sizes, and the sum of these sizes. */
struct weir_sizes {
    struct weir_lock lock; /* guards the fields below */
    struct weir_map map;   /* maps a block's address to its bytes */
    uint64_t in_use, in_use_peak;
};

/* Adds `bytes` to the sum, before the caller allocates a block.  Returns 0 if the sum would exceed the limit. */
int weir__sizes_count(struct weir_sizes *sizes, size_t bytes, uint64_t limit);
/* Records a block after weir__sizes_count().  If the driver's call failed (`is_live` is 0) or there is no host memory,
 * subtracts the bytes again and returns 0; else returns 1. */
int weir__sizes_record(struct weir_sizes *sizes, CUdeviceptr block, size_t bytes, int is_live);
/* Removes a block from `map`, but does not subtract its bytes.  Returns 1 on success, 0 if the block is not live. */
int weir__sizes_remove(struct weir_sizes *sizes, CUdeviceptr block, size_t *bytes);
/* Sets the fields of *out that follow from these sizes. */
void weir__sizes_figures(struct weir_sizes *sizes, weir_statistics *out);

/* ---- graphs ---- */

/* The addresses of few blocks, each with a value above 0.  Most programs have none, and then never take the lock. */
struct weir_address_table {
    _Atomic int any;           /* 1 after the table got its first address; read without the lock */
    _Atomic size_t host_bytes; /* the table's host memory; read without the lock */
    struct weir_lock lock;     /* guards `map`; its holder takes no other lock */
    struct weir_map map;
};

/* Returns 1 on success, 0 if there is no host memory. */
int weir__addresses_add(struct weir_address_table *table, CUdeviceptr block, uintptr_t value);
int weir__addresses_has(struct weir_address_table *table, CUdeviceptr block);
/* Removes an address.  Returns its value, or 0 if the table does not have the address. */
uintptr_t weir__addresses_remove(struct weir_address_table *table, CUdeviceptr block);

/* Creates memory nodes in graphs, for requests on captured streams. */
struct weir_nodes {
    struct weir_async async; /* frees the nodes' blocks */
    struct weir_lock lock;   /* guards the fields below */
    CUmemoryPool pool;       /* the pool for memory nodes, or NULL */
    int outdated; /* set if `pool` has an old list of devices, and could not be destroyed */
    struct weir_access access; /* the devices with access to the next pool */
};

void weir__nodes_close(struct weir_nodes *nodes);

/* Allocates a block as a memory node of the captured graph.  An error leaves the capture valid.  Returns E_CAPTURE if
 * the driver (before 11.4) or the device has no memory nodes, or under `weir run`, where the driver allocates it. */
weir_status weir__nodes_alloc(struct weir_nodes *nodes, struct weir_request *r);

/* Changes a device's access to later memory nodes.  Destroys the pool if possible: a pool's devices are fixed. */
void weir__nodes_allow(struct weir_nodes *nodes, const CUmemAccessDesc *access);

#endif
