/* SPDX-License-Identifier: MIT */
/* graph_blocks.h: requests under stream capture for engines whose own memory no graph could own.
 *
 * Such requests become memory nodes of the graph, as requests to the pool engine do anyway.  The driver owns that
 * memory, maps it at each launch, and takes it back.  It needs a pool for that, and a graph takes over nothing of the
 * pool but who has access.  The first such request makes this pool, which itself never holds a byte.
 *
 * Each allocator has one table of the addresses of graphs' blocks, with every engine; caches and guard read it too.
 * Each launch brings a block back at its address, so the note stays after a free.  A layer that has a live block of its
 * own at that address ignores the note.
 *
 * Locks: one under which the pool is made, and nodes; one of the table's, under which nothing is called.
 *
 * Must not know: what the engine's own memory is.
 */
#ifndef WEIR_GRAPH_BLOCKS_H
#define WEIR_GRAPH_BLOCKS_H

#include "engine/driver_blocks.h"

/* An allocator has one. */
struct weir_graph_table {
    _Atomic int any;        /* there is a note; read without the lock */
    pthread_mutex_t lock;   /* guards what follows */
    struct weir_map places; /* addresses where requests under capture were served */
};

/* Of a zeroed one. */
void weir__graphs_open(struct weir_graph_table *graphs);
void weir__graphs_close(struct weir_graph_table *graphs);
/* Notes the address: 1, or 0 if host memory ran out. */
int weir__graphs_note(struct weir_graph_table *graphs, CUdeviceptr block);
/* 1 if the address is noted. */
int weir__graphs_has(struct weir_graph_table *graphs, CUdeviceptr block);
/* For the guard alone: a block of its own lies there by now. */
void weir__graphs_forget(struct weir_graph_table *graphs, CUdeviceptr block);
size_t weir__graphs_host_bytes(struct weir_graph_table *graphs);

struct weir_nodes {
    struct weir_async async;
    pthread_mutex_t lock;      /* guards what follows */
    CUmemoryPool pool;         /* NULL: no request has needed it, as access is now */
    int outdated;              /* its access is another, and it could not go yet */
    struct weir_access access; /* of the next pool */
};

void weir__nodes_open(struct weir_nodes *nodes, struct weir_device *device);
void weir__nodes_close(struct weir_nodes *nodes);

/* Serves r, and marks it CAPTURED, by a node of the graph that the stream is being captured into.  E_CAPTURE: the driver
 * has no memory of graphs (before 11.4), or the device no pools, or such requests are the driver's (drop_in.h); the
 * capture stays as valid as it was. */
weir_status weir__nodes_alloc(struct weir_nodes *nodes, struct weir_request *r);

/* Of such a block, as an engine's free; in a thread's relaxed mode. */
weir_status weir__nodes_free(struct weir_nodes *nodes, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses);

/* As an engine's, of nodes to come: what a graph has keeps what it was captured with.  Cannot fail: a pool that cannot
 * go now goes at the next request. */
void weir__nodes_allow(struct weir_nodes *nodes, const CUmemAccessDesc *access);

#endif
