/* SPDX-License-Identifier: MIT */
/* decay.h: when reserve that lies idle goes back to the device: by halves, after a half-life each.
 *
 * Time is cut into windows of one half-life.  At the end of each it is known how much was in use at its
 * peak, and what it was needed for: that peak, times the reserved memory for each byte in use that was proved to be
 * enough.  A window in which the reserved memory grew proves that all of it was needed for that peak; one in which
 * it did not proves that it was enough.  Of what the reserved memory has beyond the need, and beyond the floor, half
 * goes; what is no more than 64 MiB goes at once.  So a load that reaches its peak once a half-life, however
 * low it falls between, keeps what it has.
 *
 * What goes are whole regions or handles.  If none is small enough, what was to go is remembered, and half of
 * the rest is to go with the next window, until one is.
 *
 * The floor is what was preallocated, and a release threshold that is finite.  What grow-ahead (background_growth.h)
 * keeps idle is needed too, above all else, and proves nothing: so what decays is not grown again by it.
 *
 * Windows end in requests that the engine serves; nothing else looks at the clock.  A request that comes
 * after a pause of more than a half-life begins a new window and gives nothing back: what was there to save
 * is over, and the load is about to come back.  weir_decay ends windows too, and knows no pause.
 *
 * Must not know: any single engine, settings' names.
 */
#ifndef WEIR_DECAY_H
#define WEIR_DECAY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <weir/allocator.h>

struct weir_request;
struct weir_reserve;

struct weir_decay {
    uint64_t half_life_ns; /* 0: off; fixed once it is open, as is */
    int in_requests;       /* the engine can give back without waiting, */
    uint64_t idle;         /* and bytes that are idle by the program's will */
    _Atomic uint64_t floor;
    _Atomic uint64_t ends; /* of the window; as all times here since the allocator was made */
    _Atomic uint64_t last; /* request that the engine served */
    _Atomic uint64_t peak; /* of this window, bytes in use */
    _Atomic int
        grew; /* in this window, for a request: written by engines, by way of their event sink */
    pthread_mutex_t lock; /* guards what follows; nothing is called under it */
    uint64_t basis_reserve,
        basis_in_use; /* a reserve that was enough for so much in use; 0: none yet */
    uint64_t aim;     /* what the reserved memory should have come down to */
};

void weir__decay_open(struct weir_decay *d, uint64_t half_life_ns, uint64_t floor, int in_requests,
                      uint64_t idle);
void weir__decay_close(struct weir_decay *d);
/* So much stays from now on.  This, the one below and weir__raise_to are in one order for all threads. */
void weir__decay_raise_floor(struct weir_decay *d, uint64_t bytes);
/* No more than so much stays, from now on. */
void weir__decay_lower_floor(struct weir_decay *d, uint64_t bytes);
/* So much is in use at that time, after a request; and it is that long since the last one.  1: a window is
 * over. */
int weir__decay_note(struct weir_decay *d, uint64_t now, uint64_t in_use, uint64_t *pause);
/* Ends the windows that are over: bytes of reserve to keep, no less than `reserve`: nothing goes.  `pause`:
 * as noted; 0 for who has seen to it that windows end in time. */
uint64_t weir__decay_end(struct weir_decay *d, uint64_t now, uint64_t in_use, uint64_t reserve,
                         uint64_t pause);

/* If there is a half-life, after a request that the engine has served: what is due goes back, as far as nobody need be waited for. */
void weir__decay_look(struct weir_reserve *v, const struct weir_request *r);

#endif
