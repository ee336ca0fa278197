/* SPDX-License-Identifier: MIT */
/* pool_chunks.h: the slabs of the pool engine, which are cut from chunks.
 *
 * A slab stays small and lives long.  As a block of its own it would lie among large blocks and pin one of the driver's
 * units, which the driver could otherwise move to a request.  A chunk is one block of the driver, and keeps the slabs of
 * one stream together.
 *
 * Stream order.  Slabs of a chunk are allocated and freed on its stream alone, so a slab that is freed may serve that
 * stream at once.  An empty chunk goes back to the driver as freed on that stream; or on a stream that runs nothing, if
 * its last slab was observed to be complete and a wait for the device has begun after all other frees in the chunk.
 *
 * Locks: `lock`, under which nothing is called.
 *
 * This file must not know the driver's pool.
 */
#ifndef WEIR_POOL_CHUNKS_H
#define WEIR_POOL_CHUNKS_H

#include "engine/engine.h"

struct weir_chunk {
    struct weir_chunk *next;
    CUdeviceptr base;
    size_t bytes, used; /* used: the bytes of slabs */
    uint64_t stream;    /* the id of the stream whose slabs lie here */
    uint64_t freed;     /* the device waits that had begun at the last free on that stream */
    /* A slab has its number of pages at its first page, and INSIDE at the others.  A free page has 0. */
    unsigned char page[];
};

struct weir_chunks {
    struct weir_device *device;
    pthread_mutex_t lock; /* guards the fields below */
    struct weir_chunk *first, **end;
    _Atomic uint64_t idle; /* the bytes of the pages without a slab; read without the lock */
};

/* Opens a list whose bytes are all zero. */
void weir__chunks_open(struct weir_chunks *chunks, struct weir_device *device);
/* Forgets all chunks, whose memory is the caller's. */
void weir__chunks_close(struct weir_chunks *chunks);

/* Serves a request for a slab from a chunk of the stream r->id.  Returns 1 on success, 0 if no chunk has room. */
int weir__chunks_cut(struct weir_chunks *chunks, struct weir_request *r);
/* Returns a chunk without memory for a request that found no room, or NULL if there is no host memory.  The chunk is
 * larger than the slab, unless the limit is low. */
struct weir_chunk *weir__chunks_make(struct weir_chunks *chunks, const struct weir_request *r,
                                     uint64_t limit);
/* Adds a chunk of which r->block is the memory, and serves the request from its start. */
void weir__chunks_add(struct weir_chunks *chunks, struct weir_chunk *chunk,
                      const struct weir_request *r);
/* Frees a slab: in a call on its stream, or with `is_done` after all its uses.  Returns 1 on success, 0 if no slab begins
 * at the address.  If the chunk's memory may go back to the driver in the same way now, *empty gets the chunk, which has
 * left the list, else NULL. */
int weir__chunks_put(struct weir_chunks *chunks, CUdeviceptr slab, int is_done,
                     struct weir_chunk **empty);
/* Removes and returns an empty chunk whose uses are all done, or any empty chunk if all work of the device is done.
 * Returns NULL if there is none. */
struct weir_chunk *weir__chunks_idle(struct weir_chunks *chunks, int all_done);
/* Ends a chunk that has left the list if its memory is freed, else puts the chunk back. */
void weir__chunks_end(struct weir_chunks *chunks, struct weir_chunk *chunk, int is_freed);
/* Finds the chunk around the address.  Returns 1 on success, else 0. */
int weir__chunks_find(struct weir_chunks *chunks, uint64_t address, struct weir_extent *out);

#endif
