/* SPDX-License-Identifier: MIT */
/* superblocks.h: superblocks, from which the pool engine cuts slabs.
 *
 * The driver moves idle units of 32 MiB to the requests that need them.  A slab, which the caches cut into small
 * blocks, lives long.  If each slab were a block of the driver, slabs would lie between large blocks, and each slab
 * would prevent the driver from moving a unit.  A superblock is one block of the driver, and keeps the slabs of one
 * stream together.
 *
 * Stream order.  The slabs of a superblock are allocated on the superblock's stream.  As long as only this stream
 * frees slabs of the superblock, the stream may use a freed slab again at once.  The memory of an empty superblock is
 * freed on this stream, too.  If the last slab is freed with OBSERVED, weir frees the memory on a stream without work,
 * but only after a wait for the device that began after all frees in the superblock.
 *
 * Another stream can free a slab if it has received the handle or the cache of a stream that ended.  The superblock
 * then has no stream any more: it serves no further slab, and weir frees its memory after a wait for the device.
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
    size_t bytes, used; /* `bytes` is the size of the superblock; `used` is the sum of its slabs */
    /* The id of the stream whose slabs lie here, or UNKNOWN after another stream has freed a slab. */
    uint64_t stream;
    /* The number of waits for the device that had begun when a stream last freed a slab here. */
    uint64_t freed;
    /* An entry for each page: 0 for a free page, the number of the slab's pages for the slab's first page, and INSIDE
     * for the other pages of a slab. */
    unsigned char page[];
};

struct weir_superblocks {
    struct weir_device *device;
    pthread_mutex_t lock; /* guards the fields below */
    struct weir_superblock *first;
    _Atomic uint64_t idle; /* the bytes of pages without a slab; threads read it without the lock */
};

/* Opens a list in which all bytes are zero.  All other functions need an open list. */
void weir__superblocks_open(struct weir_superblocks *list, struct weir_device *device);
/* Frees the records of all superblocks.  The caller frees the memory of the superblocks. */
void weir__superblocks_close(struct weir_superblocks *list);

/* Serves a request for a slab from a superblock of the stream r->id.  Returns 1 on success, 0 if no superblock has
 * room. */
int weir__superblocks_cut(struct weir_superblocks *list, struct weir_request *r);
/* Creates a superblock without memory, for a request that found no room.  Returns NULL if there is no host memory.
 * The superblock is larger than the slab, unless the limit is low. */
struct weir_superblock *weir__superblocks_make(struct weir_superblocks *list,
                                               const struct weir_request *r, uint64_t limit);
/* Adds an empty superblock to the list, after the caller has set `base`.  If `bytes` is above 0, places a slab of this
 * size at the superblock's base. */
void weir__superblocks_add(struct weir_superblocks *list, struct weir_superblock *superblock,
                           size_t bytes);
/* Frees a slab, in a call on the stream with this id, or with OBSERVED if all work on the slab has completed.  If the
 * superblock is now empty and the caller may free its memory, removes it from the list and sets *empty to the
 * superblock; otherwise sets *empty to NULL.  The caller passes *empty to free(), or adds it to the list again if the
 * driver fails to free its memory.  Returns 1 on success, 0 if no slab starts at the address. */
int weir__superblocks_put(struct weir_superblocks *list, CUdeviceptr slab, uint64_t id,
                          struct weir_superblock **empty);
/* Removes and returns an empty superblock if all work on it has completed.  The caller sets `all_done` if all work of
 * the device has completed.  Returns NULL if there is no such superblock. */
struct weir_superblock *weir__superblocks_idle(struct weir_superblocks *list, int all_done);
/* Returns 1 if the list has an empty superblock without a stream, whose memory weir can free only after a wait for the
 * device; else 0. */
int weir__superblocks_wait(struct weir_superblocks *list);
/* Finds the superblock that contains the address, and writes its range to *out.  Returns 1 on success, else 0. */
int weir__superblocks_find(struct weir_superblocks *list, uint64_t address,
                           struct weir_extent *out);

#endif
