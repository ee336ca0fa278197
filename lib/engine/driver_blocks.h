/* SPDX-License-Identifier: MIT */
/* driver_blocks.h: blocks that the driver itself allocates (also inside CUDA graphs), and tables of their addresses.
 *
 * Graphs.  While a stream is being captured, a heap's request on the stream becomes an allocation inside the graph (a
 * memory node).  A node needs a pool of the driver, from which the graph copies only the list of devices with access.
 * So weir creates a pool, which never has memory.
 *
 * Each launch of a graph maps the graph's blocks again.  So the table `graphs` keeps a block's address after the block
 * is freed.  If another block is later allocated there, that block's layer must ignore or remove the entry.
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

/* Destroys async->joined.  If the caller then destroys a pool, the pool's frees on this stream must have completed. */
void weir__async_close(struct weir_async *async);

/* Creates a pool of the driver with at most `most` bytes (0 means no limit), for the devices in `access`.  `usage` is
 * the field of this name in CUmemPoolProps.  The caller has entered the device's context. */
CUresult weir__async_make_pool(const struct weir_device *device, const struct weir_access *access,
                               size_t most, unsigned short usage, CUmemoryPool *pool);
/* Frees a block of a driver's pool.  If `stream` is being captured, the free becomes a node of the CUDA graph. */
CUresult weir__async_free_on(struct weir_device *device, CUdeviceptr block, weir_stream stream);

/* Returns E_CAPTURE if `stream` or a stream in `uses` is being captured into a CUDA graph, since a stream that waits
 * for an event of such a stream would join the capture.  `uses` may be NULL. */
weir_status weir__uses_check(struct weir_device *device, weir_stream stream,
                             struct weir_use_list *uses);

/* Frees a block of the driver on `stream`, or on async->joined if `uses` is not NULL.  If `stream` is being captured,
 * returns E_CAPTURE unless `uses` is NULL and the block was allocated in this capture.  Returns E_NOT_OWNED if the
 * driver does not know the block.  May be called while another thread captures a stream. */
weir_status weir__async_free(struct weir_async *async, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses);

/* Returns 1 if a free on weir's stream `joined` has not completed, or if the query fails; else 0. */
int weir__async_is_pending(struct weir_async *async);

/* ---- sizes of live blocks ---- */

/* An engine's live blocks with their sizes, and the sum of these sizes. */
struct weir_sizes {
    struct weir_lock lock; /* guards the fields below */
    struct weir_map map;   /* maps a block's address to its bytes */
    uint64_t in_use, in_use_peak;
};

/* Adds `bytes` to `in_use` before an allocation.  Returns 0 if `in_use` would exceed the limit, else 1. */
int weir__sizes_count(struct weir_sizes *sizes, size_t bytes, uint64_t limit);
/* Records a block after weir__sizes_count().  If the driver's call failed (`is_live` is 0) or there is no host memory,
 * subtracts the block's bytes from `in_use` and returns 0; else returns 1. */
int weir__sizes_record(struct weir_sizes *sizes, CUdeviceptr block, size_t bytes, int is_live);
/* Removes a block from `map`, but leaves its bytes in `in_use`.  Returns 1 on success, 0 if the block is not live. */
int weir__sizes_remove(struct weir_sizes *sizes, CUdeviceptr block, size_t *bytes);
/* Sets the figures in *out that are known from the blocks' sizes, and the host memory of `map`. */
void weir__sizes_figures(struct weir_sizes *sizes, weir_statistics *out);

/* ---- addresses of blocks, and blocks inside CUDA graphs ---- */

/* A few blocks' addresses, each with a value above 0.  In most programs, the table is empty, and no call locks it. */
struct weir_address_table {
    _Atomic int any;           /* 1 after the table got its first address; read without the lock */
    _Atomic size_t host_bytes; /* the table's host memory; read without the lock */
    struct weir_lock lock;     /* guards `map`; its holder takes no other lock */
    struct weir_map map;
};

/* Adds an address with its value.  Returns 1 on success, 0 if there is no host memory. */
int weir__addresses_add(struct weir_address_table *table, CUdeviceptr block, uintptr_t value);
int weir__addresses_has(struct weir_address_table *table, CUdeviceptr block);
/* Removes an address.  Returns its value, or 0 if the table does not have the address. */
uintptr_t weir__addresses_remove(struct weir_address_table *table, CUdeviceptr block);

/* Allocates blocks inside CUDA graphs (as memory nodes), for requests on streams that are being captured. */
struct weir_nodes {
    struct weir_async async; /* frees blocks that were allocated inside graphs */
    struct weir_lock lock;   /* guards the fields below */
    CUmemoryPool pool;       /* the pool for allocations inside graphs, or NULL */
    int outdated; /* set if `pool` has an old list of devices, and could not be destroyed */
    struct weir_access access; /* the devices with access to the next `pool` */
};

void weir__nodes_close(struct weir_nodes *nodes);

/* Allocates a block inside the CUDA graph into which r->stream is being captured.  An error leaves the capture valid.
 * Returns E_CAPTURE if the driver (before 11.4) or the device cannot do so, and always under `weir run`. */
weir_status weir__nodes_alloc(struct weir_nodes *nodes, struct weir_request *r);

/* Changes a device's access to later blocks in graphs.  Tries to destroy nodes->pool, whose devices cannot change. */
void weir__nodes_allow(struct weir_nodes *nodes, const CUmemAccessDesc *access);

#endif
