/* SPDX-License-Identifier: MIT */
/* stream_uses.h: which other streams use which blocks (weir_use), until the free.
 *
 * A map from address to a short list of streams, under one lock; while it is empty, requests pass by
 * (slow_path.h).
 *
 * Must not know: engines, drivers.
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
    uint64_t
        id; /* of a default stream when it was noted: its handle means others elsewhere; or 0 */
    int refused; /* set by a free that failed because the driver does not know this stream */
};

struct weir_use_list {
    size_t count;
    size_t capacity;
    struct weir_use use[];
};

struct weir_uses {
    weir_slow_paths *paths; /* of which USES says whether there is anything in the map */
    pthread_mutex_t lock;   /* guards map; innermost */
    struct weir_map map;    /* address -> struct weir_use_list * */
};

/* 1 if any block has noted streams: what a request asks before it takes the lock. */
static inline int weir__uses_any(const struct weir_uses *uses) {
    return weir__slow_path_is(uses->paths, WEIR_SLOW_PATH_USES);
}

void weir__uses_open(struct weir_uses *uses, weir_slow_paths *paths);
void weir__uses_close(struct weir_uses *uses);
/* Notes a stream; noting it again changes nothing.  1, or 0 if host memory ran out. */
int weir__uses_note(struct weir_uses *uses, uint64_t block, weir_stream stream, uint64_t id);
/* Forgets what was noted for an address that is being handed out now: notes about a pointer that was
 * no live block. */
void weir__uses_forget(struct weir_uses *uses, uint64_t block);
/* The block's list, which the caller holds until it calls settle, or NULL (then no settle).  The
 * place in the map stays, so that putting the list back cannot fail. */
struct weir_use_list *weir__uses_take(struct weir_uses *uses, uint64_t block);
/* After the free: freed nonzero forgets the list (streams noted meanwhile for a new block at the
 * same address stay); else it is put back without the notes that were refused. */
void weir__uses_settle(struct weir_uses *uses, uint64_t block, struct weir_use_list *list,
                       int freed);

#endif
