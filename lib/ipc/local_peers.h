/* SPDX-License-Identifier: MIT */
/* local_peers.h: the list of all allocators of this process.  Allocators on one device free memory for each other.
 *
 * The list has its own lock, under which no function of another file is called.  A thread that uses an entry holds no
 * lock, but is a user of the entry.  An allocator that leaves the list waits until its entry has no users. */
#ifndef WEIR_LOCAL_PEERS_H
#define WEIR_LOCAL_PEERS_H

#include <stdint.h>

/* An allocator's entry in the list.  Before it joins, it sets `driver`, `device` and `owner`, and other fields to 0. */
struct weir_local_peer {
    const void *driver;
    int device;
    void *owner;
    struct weir_local_peer *next;
    uint64_t number; /* from 1 on, in the order of joining */
    unsigned users;
};

void weir__local_peers_join(struct weir_local_peer *s);
/* Removes an allocator from the list, and waits until no other thread uses its entry.  The caller must hold no lock
 * that a user of the entry may need. */
void weir__local_peers_leave(struct weir_local_peer *s);
/* Returns the next allocator's entry after `last` (the first if `last` is NULL), or NULL at the end of the list.  If
 * `s` is not NULL, skips `s` and the allocators on other devices.  The entry stays valid until the caller passes it to
 * the next call, as `last`, or to weir__local_peers_release(). */
struct weir_local_peer *weir__local_peers_next(const struct weir_local_peer *s,
                                               struct weir_local_peer *last);
/* Ends the use of an entry of weir__local_peers_next(), for a caller that stops before the end of the list. */
void weir__local_peers_release(struct weir_local_peer *s);

#endif
