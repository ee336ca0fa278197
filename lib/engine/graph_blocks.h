/* SPDX-License-Identifier: MIT */
/* graph_blocks.h: requests under stream capture, for engines that do not use a pool of the driver.
 *
 * Such a request becomes a memory node of the graph.  The driver owns that memory, maps it at each launch, and takes it
 * back.  It needs a pool for that, of which the graph takes over only which devices have access.  The first such
 * request makes this pool, which itself never holds a byte.
 *
 * Each allocator has one table of the addresses of graphs' blocks.  Each launch brings a block back at its address, so the
 * note stays after a free.  A layer whose own live block lies at that address ignores the note.
 *
 * Locks: weir_nodes.lock, under which the pool is made, and nodes; weir_graph_table.lock, under which nothing is
 * called.
 *
 * This file must not know what the engine's own memory is.
 */
#ifndef WEIR_GRAPH_BLOCKS_H
#define WEIR_GRAPH_BLOCKS_H

#include "engine/driver_blocks.h"

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
/* Removes the record of the address, since a block of the guard lies there now. */
void weir__graphs_forget(struct weir_graph_table *graphs, CUdeviceptr block);

struct weir_nodes {
    struct weir_async async;
    pthread_mutex_t lock; /* guards the fields below */
    /* the driver's pool for memory nodes; NULL before the first request and after a change of access */
    CUmemoryPool pool;
    int outdated;              /* `pool` has former access, and could not be destroyed yet */
    struct weir_access access; /* the devices that get access to the next pool */
};

void weir__nodes_open(struct weir_nodes *nodes, struct weir_device *device);
void weir__nodes_close(struct weir_nodes *nodes);

/* Serves the request by a memory node of the graph that the stream is being captured into, and marks it CAPTURED.
 * Returns E_CAPTURE if the driver has no memory nodes (before 11.4), the device has no pools, or the driver serves such
 * requests itself (drop_in.h).  The capture stays valid. */
weir_status weir__nodes_alloc(struct weir_nodes *nodes, struct weir_request *r);

/* Frees the block of a node, with the results of an engine's `free`.  Runs with this thread's capture mode relaxed. */
weir_status weir__nodes_free(struct weir_nodes *nodes, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses);

/* Changes a device's access to future nodes; nodes in graphs keep the access that they were captured with.  Cannot
 * fail: a pool that cannot be destroyed now is destroyed at the next request. */
void weir__nodes_allow(struct weir_nodes *nodes, const CUmemAccessDesc *access);

#endif
