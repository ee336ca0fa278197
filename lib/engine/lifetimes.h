/* SPDX-License-Identifier: MIT */
/* lifetimes.h: the blocks that a block engine cut, in their order, for a plan (placement/plan.h).
 *
 * An engine that has such a record notes in it what its larger requests got and gave back, from the first on, until the
 * record is full: a program repeats, and most do so within that.  The engine writes under its own lock; `lock` is for who
 * reads meanwhile.
 *
 * Must not know: engines, profiles.
 */
#ifndef WEIR_LIFETIMES_H
#define WEIR_LIFETIMES_H

#include <pthread.h>
#include <stdatomic.h>

#include "placement/plan.h"

enum { WEIR_LIFETIMES_MOST = 1 << 16 }; /* events */

struct weir_lifetimes {
    pthread_mutex_t lock;
    struct weir_plan_event *events;
    size_t count, capacity;
    size_t small,
        small_peak; /* bytes of the reserved memory that small requests have, in a range of their own */
    uint64_t stream;     /* of the first request */
    int is_full;         /* events are missing, for want of room */
    _Atomic int several; /* requests came on several streams: nothing is noted any more */
};

void weir__lifetimes_open(struct weir_lifetimes *l);
void weir__lifetimes_close(struct weir_lifetimes *l);

/* 1 if the engine should see every request: they are noted. */
static inline int weir__lifetimes_watch(const struct weir_lifetimes *l) {
    return l && !atomic_load_explicit(&l->several, memory_order_relaxed);
}

/* The stream of that id asks for a block. */
void weir__lifetimes_stream(struct weir_lifetimes *l, uint64_t id);
/* A block was taken; with 0 bytes it was given back. */
void weir__lifetimes_note(struct weir_lifetimes *l, uint64_t address, size_t bytes);
/* A small block ends so many bytes from the beginning of its range. */
void weir__lifetimes_small(struct weir_lifetimes *l, size_t end);

/* The plan of what is noted so far: 1, or 0: nothing can be planned; with several streams the order of the streams
 * decides where blocks can lie, too.  *small: bytes that small requests need beside. */
int weir__lifetimes_plan(struct weir_lifetimes *l, struct weir_plan *plan, size_t *small);

#endif
