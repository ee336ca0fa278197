/* SPDX-License-Identifier: MIT */
/* graph_blocks.h: requests under stream capture for engines whose own memory no graph could own.
 *
 * They become memory nodes of the graph, as the pool engine's do by themselves: the driver has the memory, maps
 * it at each launch, and takes it back.  For that it wants a pool of its own kind, of which it keeps nothing in a graph
 * but who has access; this one is made for the first such request, and never has a byte.
 *
 * Locks: one of its own, under which the pool is made, and nodes.
 *
 * Must not know: what the engine's own memory is.
 */
#ifndef WEIR_GRAPH_BLOCKS_H
#define WEIR_GRAPH_BLOCKS_H

#include "engine/driver_blocks.h"

struct weir_nodes {
    struct weir_async async;
    _Atomic int any;           /* there was one; read without the lock */
    pthread_mutex_t lock;      /* guards what follows */
    CUmemoryPool pool;         /* NULL: no request has needed it, as access is now */
    int outdated;              /* its access is another, and it could not go yet */
    struct weir_access access; /* of the next pool */
    struct weir_map places;    /* where nodes ever were: at each launch there is a block again */
};

void weir__nodes_open(struct weir_nodes *nodes, struct weir_device *device);
void weir__nodes_close(struct weir_nodes *nodes);

/* A node of the graph that the stream is being captured into.  E_CAPTURE: the driver has no memory of graphs (before
 * 11.4), or the device no pools, or such requests are the driver's (drop_in.h); the capture stays as valid as it
 * was. */
weir_status weir__nodes_alloc(struct weir_nodes *nodes, size_t bytes, weir_stream stream,
                              CUdeviceptr *block);

/* 1 if a node was ever there. */
int weir__nodes_has(struct weir_nodes *nodes, CUdeviceptr block);

/* Of such a block, as an engine's free; in a thread's relaxed mode. */
weir_status weir__nodes_free(struct weir_nodes *nodes, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses);

/* As an engine's, of nodes to come: what a graph has keeps what it was captured with.  Cannot fail: a pool that cannot
 * go now goes at the next request. */
void weir__nodes_allow(struct weir_nodes *nodes, const CUmemAccessDesc *access);

size_t weir__nodes_host_bytes(struct weir_nodes *nodes);

#endif
