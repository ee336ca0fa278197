/* SPDX-License-Identifier: MIT */
/* superblocks.h: superblocks, blocks of the driver from which the pool engine cuts the slabs of one stream.
 *
 * While only the superblock's stream frees its slabs, this stream may reuse a freed slab at once, and weir frees the
 * empty superblock on this stream.  If another stream frees a slab (after a stream handle was reused), no further slab
 * is allocated in the superblock, and weir frees the superblock after a wait for the device.
 */
#ifndef WEIR_SUPERBLOCKS_H
#define WEIR_SUPERBLOCKS_H

#include "engine/engine.h"

struct weir_superblock {
    struct weir_superblock *next;
    CUdeviceptr base;
    size_t bytes, used; /* `used`: the bytes in slabs */
    /* The id of the superblock's stream, or UNKNOWN after another stream has freed one of its slabs. */
    uint64_t stream;
    /* The number of waits for the device that had begun when a slab was last freed.  Later waits include this free. */
    uint64_t freed;
    /* For each page: 0 if it is free, the number of the slab's pages if a slab starts there, else INSIDE. */
    unsigned char page[];
};

struct weir_superblocks {
    struct weir_device *device;
    pthread_mutex_t lock; /* guards the fields below */
    struct weir_superblock *first;
    /* The bytes of free pages, and of removed superblocks that the driver has not freed.  Read without the lock. */
    _Atomic uint64_t idle;
};

/* Frees the records of all superblocks, but not their memory. */
void weir__superblocks_close(struct weir_superblocks *list);

/* Allocates a slab in a superblock of the stream r->id.  Returns 1 on success, else 0. */
int weir__superblocks_cut(struct weir_superblocks *list, struct weir_request *r);
/* Creates the record of a superblock; the caller allocates the memory.  Returns NULL if there is no host memory. */
struct weir_superblock *weir__superblocks_make(struct weir_superblocks *list,
                                               const struct weir_request *r, uint64_t limit);
/* Adds a superblock without slabs, whose `base` is set.  If `bytes` is above 0, places a slab of this size there. */
void weir__superblocks_add(struct weir_superblocks *list, struct weir_superblock *superblock,
                           size_t bytes);
/* Frees a slab, in a call on the stream `id` or after all work on the slab.  If the superblock is then empty, may
 * remove it and set *empty to it; else sets *empty to NULL.  The caller frees *empty, or adds it again if the driver
 * fails, and then subtracts its size from `idle`.  Returns 1 on success, 0 if no slab starts at the address. */
int weir__superblocks_put(struct weir_superblocks *list, CUdeviceptr slab, uint64_t id,
                          struct weir_superblock **empty);
/* Removes and returns an empty superblock whose work has completed, or NULL.  `all_done` is 1 after a device wait.
 * The caller frees the superblock, or adds it again if the driver fails, and then subtracts its size from `idle`. */
struct weir_superblock *weir__superblocks_idle(struct weir_superblocks *list, int all_done);
/* Returns 1 if an empty superblock can be freed only after a wait for the device, else 0. */
int weir__superblocks_need_wait(struct weir_superblocks *list);
/* Finds the superblock that contains the address, and writes its range to *out.  Returns 1 on success, else 0. */
int weir__superblocks_find(struct weir_superblocks *list, uint64_t address,
                           struct weir_extent *out);

#endif
