/* SPDX-License-Identifier: MIT */
/* local_peers.h: the list of all allocators of this process.  Allocators on one device free memory for each other.
 *
 * The list has its own lock.  Under this lock, no function of another file is called.  A thread that uses an entry of
 * the list increments the entry's count of users, and holds no lock during the use.  An allocator that leaves the list
 * waits until this count is 0.
 *
 * This file must not depend on the type of an allocator.
 */
#ifndef WEIR_LOCAL_PEERS_H
#define WEIR_LOCAL_PEERS_H

#include <stdint.h>

/* An allocator's entry in the process-wide list of allocators.  The allocator sets `driver`, `device` and `owner`
 * before weir__local_peers_join().  The other fields are only for local_peers.c, and are zero while the entry is not
 * in the list. */
struct weir_local_peer {
    const void *driver;
    int device;
    void *owner;
    struct weir_local_peer *next;
    /* The number of the entry in the order of joining, from 1 on; 0 while the entry is not in the list. */
    uint64_t number;
    unsigned held;
};

void weir__local_peers_join(struct weir_local_peer *s);
/* Removes an allocator from the list, and waits until no other thread uses its entry.  The caller must hold no lock
 * that such a thread may need. */
void weir__local_peers_leave(struct weir_local_peer *s);
/* Returns the next allocator in the list after `last`, or the first one if `last` is NULL.  Returns NULL at the end
 * of the list.  If `s` is not NULL, returns only allocators on the device of `s`, and never `s` itself.  Increments
 * the use count of the returned entry, so that the entry stays valid, and decrements the use count of `last`. */
struct weir_local_peer *weir__local_peers_next(const struct weir_local_peer *s,
                                               struct weir_local_peer *last);
/* Decrements the use count of an entry that weir__local_peers_next() returned.  A caller that stops before the end of
 * the list must call the function for the last entry. */
void weir__local_peers_release(struct weir_local_peer *s);

#endif
