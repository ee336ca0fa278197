/* SPDX-License-Identifier: MIT */
/* stream_uses.h: records the other streams that use a block (weir_use), until the block is freed.
 *
 * One lock guards the table.  While the table is empty, requests do not take the lock (slow_path.h).
 */
#ifndef WEIR_STREAM_USES_H
#define WEIR_STREAM_USES_H

#include <stdatomic.h>

#include <weir/allocator.h>

#include "base/lock.h"
#include "base/map.h"
#include "base/slow_path.h"

struct weir_use {
    weir_stream stream;
    /* The id of a default stream, whose handle means another stream in each thread.  0 for all other streams. */
    uint64_t id;
    /* Set if a free of the block has failed because the driver does not know this stream. */
    int refused;
};

struct weir_use_list {
    size_t count;
    struct weir_use use[];
};

struct weir_uses {
    weir_slow_paths *paths; /* the slow path USES is set while the map has an entry */
    struct weir_lock lock;  /* guards `map`; its holder takes no other lock */
    struct weir_map map;    /* maps a block's address to its struct weir_use_list * */
};

/* Returns 1 if any block has recorded uses, else 0.  Needs no lock. */
static inline int weir__uses_any(const struct weir_uses *uses) {
    return weir__slow_path_is(uses->paths, WEIR_SLOW_PATH_USES);
}

void weir__uses_close(struct weir_uses *uses);
/* Records once that the stream uses the block.  Returns 1 on success, 0 if there is no host memory. */
int weir__uses_add(struct weir_uses *uses, uint64_t block, weir_stream stream, uint64_t id);
/* Removes the uses of an earlier block at this address, since a new block is being allocated there. */
void weir__uses_remove(struct weir_uses *uses, uint64_t block);
/* Returns the block's uses, or NULL if there are none.  The caller owns the list until weir__uses_end_free(). */
struct weir_use_list *weir__uses_detach(struct weir_uses *uses, uint64_t block);
/* Frees the list if `freed` is 1.  Else stores the list for the block again, without uses marked `refused`. */
void weir__uses_end_free(struct weir_uses *uses, uint64_t block, struct weir_use_list *list,
                         int freed);

#endif
