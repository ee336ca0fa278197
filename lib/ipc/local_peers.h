/* SPDX-License-Identifier: MIT */
/* local_peers.h: the allocators of a process that share a device.
 *
 * The list has its own lock, under which nothing is called.  A caller that uses an entry holds it by a count and holds
 * no lock meanwhile.  An allocator that leaves the list waits for the counts.
 *
 * This file must not know what an allocator is.
 */
#ifndef WEIR_LOCAL_PEERS_H
#define WEIR_LOCAL_PEERS_H

#include <stdint.h>

/* An allocator's entry in the list of the process's allocators.  It is all zero while it is not in the list.  The owner
 * sets `driver`, `device` and `owner` before it joins; other fields are private. */
struct weir_local_peer {
    const void *driver;
    int device;
    void *owner;
    struct weir_local_peer *next;
    uint64_t number; /* its number in the order of joining, from 1 on; 0 if it is not in the list */
    unsigned held;
};

void weir__local_peers_join(struct weir_local_peer *s);
/* Removes an entry and waits until nobody holds it.  Do not call this with a lock that a holder may want. */
void weir__local_peers_leave(struct weir_local_peer *s);
/* Returns the next peer after `last`, or the first one if `last` is NULL: on the device of `s`, but not `s` itself; on
 * any device if `s` is NULL.  Holds the returned peer, and releases `last`.  Returns NULL at the end of the list. */
struct weir_local_peer *weir__local_peers_next(const struct weir_local_peer *s,
                                               struct weir_local_peer *last);
/* Releases an entry before the end of a walk. */
void weir__local_peers_let_go(struct weir_local_peer *s);

#endif
