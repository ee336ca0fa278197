/* SPDX-License-Identifier: MIT */
/* pressure.h: releases idle memory because memory is low elsewhere.
 *
 * weir_low_memory raises a signal with a number of bytes, which writes two words and takes no lock.  Each request that
 * the engine has served, but no hit of a cache, looks at the signal.  It releases memory without waiting, except for
 * memory below the floor (decay.h) and the idle memory of grow-ahead.  If that is not enough, requests look again after
 * pauses that double; after a second the signal ends.  weir_decay may wait, and answers the signal at once by a trim.
 *
 * This file must not know any single engine, settings' names or who wants memory.
 */
#ifndef WEIR_PRESSURE_H
#define WEIR_PRESSURE_H

#include <stdatomic.h>
#include <stdint.h>

#include <weir/allocator.h>

struct weir_request;
struct weir_reserve;

struct weir_pressure {
    _Atomic uint64_t
        wanted; /* bytes to release: 0 without a signal, UINT64_MAX for all idle memory */
    _Atomic unsigned raised; /* the number of signals so far */
    int in_requests;         /* set if the engine can release without waiting; fixed */
    atomic_int is_looking;   /* set while a request looks, which alone uses the next fields */
    unsigned seen;           /* `raised' at the last look */
    unsigned looks;          /* the number of looks since the last signal */
    uint64_t due;            /* the time of the next look, since the creation of the allocator */
};

/* Raises the signal. */
void weir__pressure_raise(struct weir_pressure *r, uint64_t bytes);
/* Ends a signal of `wanted' bytes, after all memory that can go has gone. */
void weir__pressure_end(struct weir_pressure *r, uint64_t wanted);

/* Returns 1 if requests should call weir__pressure_look, else 0. */
static inline int weir__pressure_is_due(const struct weir_pressure *r) {
    return atomic_load_explicit(&r->wanted, memory_order_relaxed) != 0 && r->in_requests;
}

/* Releases the memory that can go at once, after a request that the engine has served.  Returns 1 if the signal is new,
 * so that caches should release their memory, else 0. */
int weir__pressure_look(struct weir_reserve *v, const struct weir_request *r);

#endif
