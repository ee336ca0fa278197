/* SPDX-License-Identifier: MIT */
/* stream_uses.h: the other streams that use a block (weir_use), until the block's free.
 *
 * A map has a short list of streams for each such block's address, under one lock.  While the map is empty, requests do
 * not take the lock (slow_path.h).
 *
 * This file must not know engines or drivers.
 */
#ifndef WEIR_STREAM_USES_H
#define WEIR_STREAM_USES_H

#include <pthread.h>
#include <stdatomic.h>

#include <weir/allocator.h>

#include "base/map.h"
#include "base/slow_path.h"

struct weir_use {
    weir_stream stream;
    /* the id of a default stream, since its handle means another stream on another thread; else 0 */
    uint64_t id;
    int refused; /* set by a free that failed because the driver does not know this stream */
};

struct weir_use_list {
    size_t count;
    struct weir_use use[];
};

struct weir_uses {
    weir_slow_paths *paths; /* the bit USES says whether the map has an entry */
    pthread_mutex_t lock;   /* guards map; no other lock is taken under it */
    struct weir_map map;    /* address -> struct weir_use_list * */
};

/* Returns 1 if any block has recorded uses, else 0.  A request calls this before it takes the lock. */
static inline int weir__uses_any(const struct weir_uses *uses) {
    return weir__slow_path_is(uses->paths, WEIR_SLOW_PATH_USES);
}

void weir__uses_open(struct weir_uses *uses, weir_slow_paths *paths);
void weir__uses_close(struct weir_uses *uses);
/* Records once that the stream uses the block.  Returns 0 if there is no host memory, else 1. */
int weir__uses_note(struct weir_uses *uses, uint64_t block, weir_stream stream, uint64_t id);
/* Forgets uses that were recorded before a block was live at the address.  A block is being allocated there now. */
void weir__uses_forget(struct weir_uses *uses, uint64_t block);
/* Removes and returns the block's list, which the caller owns until it calls weir__uses_settle.  Returns NULL if there
 * is none.  The map keeps the slot, so that putting the list back cannot fail. */
struct weir_use_list *weir__uses_take(struct weir_uses *uses, uint64_t block);
/* Ends weir__uses_take.  If `freed`, forgets the list, but keeps uses recorded since for a new block at this address.
 * Otherwise puts the list back without the refused uses. */
void weir__uses_settle(struct weir_uses *uses, uint64_t block, struct weir_use_list *list,
                       int freed);

#endif
