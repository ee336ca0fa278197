/* SPDX-License-Identifier: MIT */
/* superblocks.h: superblocks, from which the pool engine cuts slabs.
 *
 * The driver can move idle memory of its pool to a request that needs it, but only in whole units of 32 MiB.  A slab,
 * which the caches cut into small blocks, lives long.  If each slab were a block of the driver, slabs would lie
 * between large blocks, and each slab would prevent the driver from moving a unit.  A superblock is one block of the
 * driver, and keeps the slabs of one stream together.
 *
 * Stream order.  The slabs of a superblock are allocated on the superblock's stream.  While only this stream frees
 * slabs of the superblock, the stream may reuse a freed slab at once.  The memory of an empty superblock is freed on
 * this stream, too.  If the last slab is freed with OBSERVED, weir frees the memory on a stream without work, but only
 * after a wait for the device that began after all frees in the superblock.
 *
 * Another stream can free a slab if it has received the handle or the cache of a stream that ended.  The superblock
 * then belongs to no stream: no further slab is allocated in it, and weir frees its memory after a wait for the
 * device.
 *
 * Locks.  A thread that holds `lock` calls no function of other files.
 *
 * This file must not depend on the driver's pool.
 */
#ifndef WEIR_SUPERBLOCKS_H
#define WEIR_SUPERBLOCKS_H

#include "engine/engine.h"

struct weir_superblock {
    struct weir_superblock *next;
    CUdeviceptr base;
    size_t bytes, used; /* the superblock's size, and the bytes in its slabs */
    /* The id of the stream whose slabs lie in the superblock, or UNKNOWN after another stream has freed one of the
     * slabs. */
    uint64_t stream;
    /* The number of waits for the device that had begun when a slab was last freed on a stream.  A later wait covers
     * this free. */
    uint64_t freed;
    /* The state of each page: 0 if the page is free, the number of the slab's pages if a slab starts at the page, and
     * INSIDE for all other pages of a slab. */
    unsigned char page[];
};

struct weir_superblocks {
    struct weir_device *device;
    pthread_mutex_t lock; /* guards the fields below */
    struct weir_superblock *first;
    /* The bytes of pages that are in no slab, including those of superblocks that were removed from the list and that
     * the driver has not freed yet.  Threads read this field without the lock. */
    _Atomic uint64_t idle;
};

/* Opens an empty list of superblocks.  All bytes of *list are zero. */
void weir__superblocks_open(struct weir_superblocks *list, struct weir_device *device);
/* Frees the records of all superblocks.  The caller frees the memory of the superblocks. */
void weir__superblocks_close(struct weir_superblocks *list);

/* Allocates a slab in a superblock of the stream r->id.  Returns 1 on success, 0 if no superblock has room. */
int weir__superblocks_cut(struct weir_superblocks *list, struct weir_request *r);
/* Creates the record of a superblock, for a request for a slab that found no room.  The caller then allocates the
 * superblock's memory.  The superblock is larger than the slab, unless the limit is low.  Returns NULL if there is no
 * host memory. */
struct weir_superblock *weir__superblocks_make(struct weir_superblocks *list,
                                               const struct weir_request *r, uint64_t limit);
/* Adds a superblock without slabs to the list.  The caller has set `base` to the address of its memory.  If `bytes` is
 * above 0, places a slab of this size at the base. */
void weir__superblocks_add(struct weir_superblocks *list, struct weir_superblock *superblock,
                           size_t bytes);
/* Frees a slab in a call on the stream with this id, or with OBSERVED if all work on the slab has completed.  If the
 * superblock has no more slabs and the caller may free its memory, removes the superblock from the list and sets
 * *empty to it; otherwise sets *empty to NULL.  The caller frees the memory and the record of *empty, or adds *empty
 * to the list again if the driver fails to free the memory.  In both cases the caller first subtracts the superblock's
 * size from `idle`.  Returns 1 on success, 0 if no slab starts at the address. */
int weir__superblocks_put(struct weir_superblocks *list, CUdeviceptr slab, uint64_t id,
                          struct weir_superblock **empty);
/* Removes a superblock without slabs from the list and returns it, if all work on it has completed.  `all_done` is 1
 * if the caller has waited for all work of the device.  Returns NULL if there is no such superblock.  The caller
 * continues as after weir__superblocks_put(). */
struct weir_superblock *weir__superblocks_idle(struct weir_superblocks *list, int all_done);
/* Returns 1 if only a wait for the device would allow weir to free a superblock without slabs, because another stream
 * has freed one of its slabs; else 0. */
int weir__superblocks_need_wait(struct weir_superblocks *list);
/* Finds the superblock that contains the address, and writes its range to *out.  Returns 1 on success, else 0. */
int weir__superblocks_find(struct weir_superblocks *list, uint64_t address,
                           struct weir_extent *out);

#endif
