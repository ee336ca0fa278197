/* SPDX-License-Identifier: MIT */
/* reserve_state.h: what each host keeps for decay.c and pressure.c, which decide when idle reserve goes back.
 *
 * A host holds these structs and an engine notes its growth here.  So they stand below engines, and the rules
 * above.
 *
 * Must not know: the rules.
 */
#ifndef WEIR_RESERVE_STATE_H
#define WEIR_RESERVE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* See decay.h. */
struct weir_decay {
    uint64_t half_life_ns; /* 0: off; fixed once it is open, as is */
    int in_requests;       /* the engine can give back without waiting, */
    uint64_t idle;         /* and bytes that are idle by the program's will */
    _Atomic uint64_t floor;
    _Atomic uint64_t ends; /* of the window; as all times here since the allocator was made */
    _Atomic uint64_t last; /* request that the engine served */
    _Atomic uint64_t peak; /* of this window, bytes in use */
    _Atomic int grew;      /* in this window, for a request */
    pthread_mutex_t lock;  /* guards what follows; nothing is called under it */
    uint64_t basis_reserve,
        basis_in_use; /* a reserve that was enough for so much in use; 0: none yet */
    uint64_t aim;     /* what the reserve should have come down to */
};

/* The reserve grew because a request did not fit. */
static inline void weir__decay_grew(struct weir_decay *d) {
    atomic_store_explicit(&d->grew, 1, memory_order_relaxed);
}

/* See pressure.h. */
struct weir_relief {
    _Atomic uint64_t wanted; /* bytes that are to go; UINT64_MAX: all that is idle; 0: nothing */
    _Atomic unsigned raised; /* times */
    int in_requests;         /* the engine can give back without waiting; fixed once it is open */
    pthread_mutex_t lock;    /* held by the request that looks; guards what follows */
    unsigned seen;           /* of `raised` */
    unsigned looks;          /* since */
    uint64_t due;            /* the next one, since the allocator was made */
};

#endif
