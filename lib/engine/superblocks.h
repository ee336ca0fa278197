/* SPDX-License-Identifier: MIT */
/* superblocks.h: the slabs of the pool engine, which are cut from superblocks.
 *
 * The driver moves idle units of 32 MiB to the requests that need them.  A slab, which the caches cut into small
 * blocks, lives long.  If each slab were a block of the driver, slabs would lie among large blocks, and each would keep
 * a unit from moving.  A superblock is one block of the driver, and keeps the slabs of one stream together.
 *
 * Stream order.  The slabs of a superblock are allocated on its stream.  As long as only that stream frees them, a
 * freed slab may serve the stream at once.  The memory of an empty superblock is freed on the stream, too.  If the last
 * slab is freed with OBSERVED, the memory is freed on a stream that runs nothing, but only after a wait for the device
 * that began after all frees in the superblock.
 *
 * Another stream may free a slab if it has got the handle or the cache of a stream that ended.  The superblock then has
 * no stream any more: it serves no further slab, and its memory is freed after a wait for the device.
 *
 * Locks: `lock`, under which no function of other files is called.
 *
 * This file must not know the driver's pool.
 */
#ifndef WEIR_SUPERBLOCKS_H
#define WEIR_SUPERBLOCKS_H

#include "engine/engine.h"

struct weir_superblock {
    struct weir_superblock *next;
    CUdeviceptr base;
    size_t bytes, used; /* used: the bytes of slabs */
    uint64_t
        stream; /* the id of the stream whose slabs lie here; UNKNOWN if another has freed one */
    uint64_t freed; /* the number of device waits that had begun at the last free on a stream */
    /* An entry for each page: 0 for a free page, else the slab's pages for its first page and INSIDE for its others. */
    unsigned char page[];
};

struct weir_superblocks {
    struct weir_device *device;
    pthread_mutex_t lock; /* guards the fields below */
    struct weir_superblock *first;
    _Atomic uint64_t idle; /* the bytes of the pages without a slab; read without the lock */
};

/* Opens a list whose bytes are all zero.  The other functions need an open list. */
void weir__superblocks_open(struct weir_superblocks *list, struct weir_device *device);
/* Forgets all superblocks, whose memory is the caller's. */
void weir__superblocks_close(struct weir_superblocks *list);

/* Serves a request for a slab from a superblock of the stream r->id.  Returns 1 on success, 0 if there is no room. */
int weir__superblocks_cut(struct weir_superblocks *list, struct weir_request *r);
/* Returns a superblock without memory, for a request that found no room, or NULL if there is no host memory.  The
 * superblock is larger than the slab, unless the limit is low. */
struct weir_superblock *weir__superblocks_make(struct weir_superblocks *list,
                                               const struct weir_request *r, uint64_t limit);
/* Adds an empty superblock, whose caller has set `base`, and places a slab of `bytes` at its base unless `bytes` is
 * 0. */
void weir__superblocks_add(struct weir_superblocks *list, struct weir_superblock *superblock,
                           size_t bytes);
/* Frees a slab, in a call on the stream with that id, or with OBSERVED if all uses of the slab are done.  If the
 * superblock is empty now and the caller may free its memory, removes it from the list and writes it to *empty; else
 * writes NULL.  The caller passes *empty to free(), or adds it again if the driver does not free its memory.  Returns 1
 * on success, 0 if no slab begins at the address. */
int weir__superblocks_put(struct weir_superblocks *list, CUdeviceptr slab, uint64_t id,
                          struct weir_superblock **empty);
/* Removes and returns an empty superblock whose uses are all done.  The caller sets `all_done` if all work of the
 * device is done.  Returns NULL if there is none. */
struct weir_superblock *weir__superblocks_idle(struct weir_superblocks *list, int all_done);
/* Returns 1 if there is an empty superblock that belongs to no stream any more, so that only a wait for the device
 * allows its return to the driver.  Returns 0 otherwise. */
int weir__superblocks_wait(struct weir_superblocks *list);
/* Finds the superblock around the address.  Returns 1 on success, else 0. */
int weir__superblocks_find(struct weir_superblocks *list, uint64_t address,
                           struct weir_extent *out);

#endif
