/* SPDX-License-Identifier: MIT */
/* local_peers.h: the list of all allocators of this process.  Allocators on one device free memory for each other.
 *
 * The list has its own lock.  Under this lock, no function of another file is called.  A thread that uses an entry of
 * the list increments the entry's count of users, and holds no lock during the use.  An allocator that leaves the list
 * waits until this count is 0.
 *
 * This file must not know what an allocator is.
 */
#ifndef WEIR_LOCAL_PEERS_H
#define WEIR_LOCAL_PEERS_H

#include <stdint.h>

/* The entry of an allocator in the list.  The owner sets `driver`, `device` and `owner` before the entry joins the
 * list.  The other fields are private, and are zero while the entry is not in the list. */
struct weir_local_peer {
    const void *driver;
    int device;
    void *owner;
    struct weir_local_peer *next;
    /* The number of the entry in the order of joining, from 1 on; 0 outside of the list. */
    uint64_t number;
    unsigned held;
};

void weir__local_peers_join(struct weir_local_peer *s);
/* Removes an entry from the list, and waits until no thread uses the entry.  The caller must hold no lock that a
 * user of the entry may need. */
void weir__local_peers_leave(struct weir_local_peer *s);
/* Returns the next entry after `last`, or the first entry if `last` is NULL.  Returns NULL at the end of the list.
 * If `s` is not NULL, returns only entries on the device of `s`, and never `s` itself.  Increments the count of
 * users of the returned entry, so that the entry stays valid.  Decrements the count of `last`. */
struct weir_local_peer *weir__local_peers_next(const struct weir_local_peer *s,
                                               struct weir_local_peer *last);
/* Decrements the count of users of an entry.  A caller that stops before the end of the list must call the function
 * for its last entry. */
void weir__local_peers_let_go(struct weir_local_peer *s);

#endif
