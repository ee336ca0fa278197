/* SPDX-License-Identifier: MIT */
/* decay.c: see decay.h. */
#include "reserve/decay.h"

#include "base/bounds.h"
#include "reserve/reserve.h"

/* This much memory above the need goes back at once. */
#define LEAST ((uint64_t)64 << 20)
enum { MOST_WINDOWS = 64 }; /* 64 halves of any amount leave nothing */

void weir__decay_open(struct weir_decay *d, uint64_t half_life_ns, uint64_t floor, int in_requests,
                      uint64_t idle) {
    d->half_life_ns = half_life_ns;
    d->in_requests = in_requests;
    d->idle = idle;
    atomic_store(&d->floor, floor);
    atomic_store(&d->ends, half_life_ns);
    d->aim = UINT64_MAX;
}

int weir__decay_note(struct weir_decay *d, uint64_t now, uint64_t in_use, uint64_t *pause) {
    uint64_t last = atomic_exchange_explicit(&d->last, now, memory_order_relaxed);

    *pause = now > last ? now - last : 0;
    weir__raise_to(&d->peak, in_use);
    return now >= atomic_load_explicit(&d->ends, memory_order_relaxed);
}

/* Makes a window the basis if reserved memory grew in it, or if its reserved memory was enough with less for each byte
 * in use.  The caller holds the lock. */
static void learn_basis(struct weir_decay *d, uint64_t reserved, uint64_t peak, int grew) {
    uint64_t more = reserved > peak ? reserved - peak : 0;

    reserved -= more < d->idle ? more : d->idle;
    if (peak > 0 &&
        (grew || d->basis_in_use == 0 ||
         (double)reserved * (double)d->basis_in_use < (double)d->basis_reserved * (double)peak)) {
        d->basis_reserved = reserved;
        d->basis_in_use = peak;
    }
}

/* Lowers the aim (the reserved memory to keep) at the end of a window with this peak.  The caller holds the lock. */
static void lower_aim(struct weir_decay *d, uint64_t reserved, uint64_t peak) {
    uint64_t floor = atomic_load_explicit(&d->floor, memory_order_relaxed), need, more;
    double needed = (double)peak;

    if (d->basis_in_use > 0)
        needed *= (double)d->basis_reserved / (double)d->basis_in_use;
    needed += (double)d->idle;
    if (needed < (double)floor)
        needed = (double)floor;
    need = needed < (double)reserved ? (uint64_t)needed : reserved;
    if (d->aim > reserved)
        d->aim = reserved;
    more = d->aim > need ? d->aim - need : 0;
    d->aim = more > LEAST ? d->aim - more / 2 : need;
}

uint64_t weir__decay_end(struct weir_decay *d, uint64_t now, uint64_t in_use, uint64_t reserved,
                         uint64_t pause) {
    uint64_t keep = reserved, ends, peak, windows;
    int grew;

    weir__lock_take(&d->lock);
    ends = atomic_load_explicit(&d->ends, memory_order_relaxed);
    if (now >= ends) {
        windows = pause > 0 ? 1 : 1 + (now - ends) / d->half_life_ns;
        peak = atomic_exchange_explicit(&d->peak, in_use, memory_order_relaxed);
        peak = peak > in_use ? peak : in_use;
        grew = atomic_exchange_explicit(&d->grew, 0, memory_order_relaxed);
        learn_basis(d, reserved, peak, grew);
        if (grew || pause > d->half_life_ns)
            d->aim = reserved;
        else
            lower_aim(d, reserved, peak);
        for (uint64_t i = 1; i < windows && i < MOST_WINDOWS; i++)
            lower_aim(d, reserved, in_use); /* a window without requests */
        keep = d->aim;
        atomic_store_explicit(&d->ends, now + d->half_life_ns, memory_order_relaxed);
    }
    weir__lock_give(&d->lock);
    return keep;
}

/* Ends a window.  This function is not inline, since zeroing the public statistics takes as long as the rest of a
 * request. */
static __attribute__((noinline)) void
end_window(struct weir_reserve *v, const struct weir_request *r, uint64_t now, uint64_t pause) {
    weir_statistics figures = {.size = sizeof figures};
    uint64_t keep;

    v->engine->ops->figures(v->engine, &figures);
    /* unreached: a pause of 0, for which another thread must end the window meanwhile */
    keep = weir__decay_end(&v->decay, now, figures.in_use, figures.reserved, pause ? pause : 1);
    if (keep < figures.reserved)
        weir__reserve_shed(v, r, keep, WEIR_EVENT_DECAY);
}

void weir__decay_look(struct weir_reserve *v, const struct weir_request *r) {
    struct weir_decay *d = &v->decay;
    struct weir_engine *e = v->engine;
    uint64_t now, pause;

    now = weir__device_since(e->device, e->device->created_ticks);
    if (weir__decay_note(d, now, atomic_load_explicit(&e->seen.in_use, memory_order_relaxed),
                         &pause) &&
        d->in_requests)
        end_window(v, r, now, pause);
}
