/* SPDX-License-Identifier: MIT */
/* local_peers.h: the allocators of a process that share a device.
 *
 * A list with a lock of its own, under which nothing is called.  The caller a sibling for something holds it
 * by a count meanwhile, and no lock; leaving the list waits for the counts.
 *
 * Must not know: what an allocator is.
 */
#ifndef WEIR_LOCAL_PEERS_H
#define WEIR_LOCAL_PEERS_H

#include <stdint.h>

/* One in the list; zeroed: not in it.  `driver` and `device` are the owner's to set, all else is private. */
struct weir_local_peer {
    const void *driver;
    int device;
    void *owner;
    struct weir_local_peer *next;
    uint64_t number; /* of joining, from 1 on; 0: not in the list */
    unsigned held;
};

void weir__local_peers_join(struct weir_local_peer *s);
/* Nobody has it any more when this returns: not to be called with a lock that a holder may want. */
void weir__local_peers_leave(struct weir_local_peer *s);
/* Returns the next peer after `last`, or the first one if `last` is NULL: on the device of `s`, but not `s` itself; on any
 * device if `s` is NULL.  Holds the returned peer, and lets `last` go.  Returns NULL at the end of the list. */
struct weir_local_peer *weir__local_peers_next(const struct weir_local_peer *s,
                                               struct weir_local_peer *last);
/* Lets one go before the end. */
void weir__local_peers_let_go(struct weir_local_peer *s);

#endif
