/* SPDX-License-Identifier: MIT */
/* pressure.h: reserve that goes back because memory is low elsewhere.
 *
 * Somebody raises the signal: so many bytes are wanted.  That writes two words and takes no lock.  Requests
 * that the engine has served look at it, hits do not.  They give back what nobody need be waited for, and
 * nothing of what lies below the floor (decay.h) or is kept idle by grow-ahead.  Where that is not
 * enough, frees may be under way, and requests look again after pauses that double; after a second the
 * signal is over.  Who may wait answers it at once, by a trim.
 *
 * Must not know: any single engine, settings' names, who wants memory.
 */
#ifndef WEIR_PRESSURE_H
#define WEIR_PRESSURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include <weir/allocator.h>

struct weir_request;
struct weir_reserve;

struct weir_pressure {
    _Atomic uint64_t wanted; /* bytes that are to go; UINT64_MAX: all that is idle; 0: nothing */
    _Atomic unsigned raised; /* times */
    int in_requests;         /* the engine can give back without waiting; fixed once it is open */
    pthread_mutex_t lock;    /* held by the request that looks; guards what follows */
    unsigned seen;           /* of `raised` */
    unsigned looks;          /* since */
    uint64_t due;            /* the next one, since the allocator was made */
};

void weir__pressure_open(struct weir_pressure *r, int in_requests);
void weir__pressure_close(struct weir_pressure *r);
/* Raises the signal. */
void weir__pressure_raise(struct weir_pressure *r, uint64_t bytes);
/* A signal that wanted so much has been answered, as far as it can be. */
void weir__pressure_end(struct weir_pressure *r, uint64_t wanted);

/* 1 if requests should look. */
static inline int weir__pressure_is_due(const struct weir_pressure *r) {
    return atomic_load_explicit(&r->wanted, memory_order_relaxed) != 0 && r->in_requests;
}

/* Then, after a request that the engine has served: gives back what can go at once.  1 if the signal is new, so that
 * caches should give what they have. */
int weir__pressure_look(struct weir_reserve *v, const struct weir_request *r);

#endif
