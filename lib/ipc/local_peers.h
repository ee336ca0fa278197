/* SPDX-License-Identifier: MIT */
/* local_peers.h: the allocators of a process that share a device.
 *
 * The list has its own lock.  No function of another file is called under this lock.  A caller that uses an entry
 * raises the entry's count, and holds no lock during the use.  An allocator that leaves the list waits until its count
 * is 0.
 *
 * This file must not know what an allocator is.
 */
#ifndef WEIR_LOCAL_PEERS_H
#define WEIR_LOCAL_PEERS_H

#include <stdint.h>

/* An allocator's entry in the list of the process's allocators.  An entry that is not in the list is all zero.  The
 * owner sets `driver`, `device` and `owner` before the entry joins; the other fields are private. */
struct weir_local_peer {
    const void *driver;
    int device;
    void *owner;
    struct weir_local_peer *next;
    uint64_t number; /* the number in the order of joining, from 1 on, or 0 outside the list */
    unsigned held;
};

void weir__local_peers_join(struct weir_local_peer *s);
/* Removes an entry and waits until no thread uses the entry.  The caller must hold no lock that such a thread may
 * want. */
void weir__local_peers_leave(struct weir_local_peer *s);
/* Returns the next peer after `last`, or the first peer if `last` is NULL.  If `s` is not NULL, returns only peers on
 * the device of `s`, and not `s` itself.  Raises the count of the returned peer, so that the peer stays in the list,
 * and lowers the count of `last`.  Returns NULL at the end of the list. */
struct weir_local_peer *weir__local_peers_next(const struct weir_local_peer *s,
                                               struct weir_local_peer *last);
/* Lowers the count of an entry, if the caller ends a walk before the end of the list. */
void weir__local_peers_let_go(struct weir_local_peer *s);

#endif
