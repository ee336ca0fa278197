/* SPDX-License-Identifier: MIT */
/* goal.c: when reserved memory goes back to the device (goal.h). */
#include "reserve/goal.h"

#include "base/bounds.h"
#include "base/size.h"
#include "reserve/reserve.h"

/* Decay releases this much memory above the need at once. */
#define LEAST ((uint64_t)64 << 20)
enum { MOST_WINDOWS = 64 }; /* 64 halves of any amount leave nothing */

#define FIRST_PAUSE_NS UINT64_C(1000000)
#define LONGEST_PAUSE_NS UINT64_C(1024000000)
enum { MOST_LOOKS = 11 }; /* the last one a second after the first */

void weir__goal_open(struct weir_goal *g, uint64_t half_life_ns, uint64_t floor, int in_requests,
                     uint64_t idle) {
    g->half_life_ns = half_life_ns;
    g->in_requests = in_requests;
    g->idle = idle;
    atomic_store(&g->floor, floor);
    atomic_store(&g->decay.ends, half_life_ns);
    g->decay.aim = UINT64_MAX;
    atomic_store(&g->lower_pause, FIRST_PAUSE_NS);
}

uint64_t weir__goal_target(const struct weir_reserve *v, uint64_t reserved, uint64_t in_use,
                           uint64_t wanted) {
    uint64_t floor = atomic_load_explicit(&v->goal.floor, memory_order_relaxed);
    uint64_t target = weir__size_less(reserved, wanted);

    target = weir__size_larger(target, in_use + v->goal.idle);
    return weir__size_larger(target, floor);
}

weir_status weir__goal_lower(struct weir_reserve *v, struct weir_trim *trim) {
    weir_status status, flushed = WEIR_OK;

    if (trim->mode == WEIR_TRIM_FULLY && v->flush && weir__engine_reserve(v->engine) > trim->keep)
        flushed = v->flush(v->flush_context);
    status = v->engine->ops->trim(v->engine, trim);
    weir__goal_forget(&v->goal.ahead);
    return status == WEIR_OK ? flushed : status;
}

/* Releases idle memory until `target' bytes are reserved, after a request, without a wait. */
static void lower_at_once(struct weir_reserve *v, const struct weir_request *r, uint64_t target,
                          int cause) {
    struct weir_trim trim = {.mode = WEIR_TRIM_AT_ONCE,
                             .keep = (size_t)target,
                             .stream = r->stream,
                             .id = r->id,
                             .cause = cause};

    (void)weir__goal_lower(v, &trim);
}

/* ---- decay ------------------------------------------------------------------------------------- */

int weir__goal_note_use(struct weir_goal *g, uint64_t now, uint64_t in_use, uint64_t *pause) {
    uint64_t last = atomic_exchange_explicit(&g->decay.last, now, memory_order_relaxed);

    *pause = now > last ? now - last : 0;
    weir__raise_to(&g->decay.peak, in_use);
    return now >= atomic_load_explicit(&g->decay.ends, memory_order_relaxed);
}

/* Makes a window the basis if reserved memory grew in it, or if its reserved memory was enough with less for each byte
 * in use.  The caller holds the lock. */
static void learn_basis(struct weir_goal *g, uint64_t reserved, uint64_t peak, int grew) {
    struct weir_decay *d = &g->decay;

    reserved -= weir__size_smaller(weir__size_less(reserved, peak), g->idle);
    if (peak > 0 &&
        (grew || d->basis_in_use == 0 ||
         (double)reserved * (double)d->basis_in_use < (double)d->basis_reserved * (double)peak)) {
        d->basis_reserved = reserved;
        d->basis_in_use = peak;
    }
}

/* Lowers the aim at the end of a window with this peak.  The caller holds the lock. */
static void lower_aim(struct weir_goal *g, uint64_t reserved, uint64_t peak) {
    struct weir_decay *d = &g->decay;
    uint64_t floor = atomic_load_explicit(&g->floor, memory_order_relaxed), need, more;
    double needed = (double)peak;

    if (d->basis_in_use > 0)
        needed *= (double)d->basis_reserved / (double)d->basis_in_use;
    needed += (double)g->idle;
    if (needed < (double)floor)
        needed = (double)floor;
    need = needed < (double)reserved ? (uint64_t)needed : reserved;
    d->aim = weir__size_smaller(d->aim, reserved);
    more = weir__size_less(d->aim, need);
    d->aim = more > LEAST ? d->aim - more / 2 : need;
}

uint64_t weir__goal_end_window(struct weir_goal *g, uint64_t now, uint64_t in_use,
                               uint64_t reserved, uint64_t pause) {
    struct weir_decay *d = &g->decay;
    uint64_t keep = reserved, ends, peak, windows;
    int grew;

    weir__lock_take(&d->lock);
    ends = atomic_load_explicit(&d->ends, memory_order_relaxed);
    if (now >= ends) {
        windows = pause > 0 ? 1 : 1 + (now - ends) / g->half_life_ns;
        peak = atomic_exchange_explicit(&d->peak, in_use, memory_order_relaxed);
        peak = weir__size_larger(peak, in_use);
        grew = atomic_exchange_explicit(&d->grew, 0, memory_order_relaxed);
        learn_basis(g, reserved, peak, grew);
        if (grew || pause > g->half_life_ns)
            d->aim = reserved;
        else
            lower_aim(g, reserved, peak);
        for (uint64_t i = 1; i < windows && i < MOST_WINDOWS; i++)
            lower_aim(g, reserved, in_use); /* a window without requests */
        keep = d->aim;
        atomic_store_explicit(&d->ends, now + g->half_life_ns, memory_order_relaxed);
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
    keep = weir__goal_end_window(
        &v->goal, now, figures.in_use, figures.reserved,
        /* unreached: a pause of 0, for which another thread must end the window meanwhile */
        pause ? pause : 1);
    if (keep < figures.reserved)
        lower_at_once(v, r, keep, WEIR_EVENT_DECAY);
}

static void decay_in_request(struct weir_reserve *v, const struct weir_request *r) {
    uint64_t now = weir__device_since(v->device, v->device->created_ticks), pause;
    uint64_t in_use = atomic_load_explicit(&v->engine->seen.in_use, memory_order_relaxed);

    if (weir__goal_note_use(&v->goal, now, in_use, &pause) && v->goal.in_requests)
        end_window(v, r, now, pause);
}

/* ---- memory pressure --------------------------------------------------------------------------- */

void weir__goal_signal(struct weir_goal *g, uint64_t bytes) {
    atomic_fetch_add_explicit(&g->pressure.raised, 1, memory_order_relaxed);
    weir__raise_to(&g->pressure.wanted, bytes);
}

/* Lowers `wanted', unless another thread has changed it. */
static void want_less(struct weir_pressure *p, uint64_t wanted, uint64_t rest) {
    (void)atomic_compare_exchange_strong_explicit(&p->wanted, &wanted, rest, memory_order_relaxed,
                                                  memory_order_relaxed);
}

void weir__goal_end_signal(struct weir_goal *g, uint64_t wanted) {
    want_less(&g->pressure, wanted, 0);
}

/* Releases up to `wanted' bytes without a wait.  Returns the bytes that went. */
static uint64_t release_wanted(struct weir_reserve *v, const struct weir_request *r,
                               uint64_t wanted) {
    weir_statistics before = {.size = sizeof before};
    uint64_t keep;

    v->engine->ops->figures(v->engine, &before);
    keep = weir__goal_target(v, before.reserved, before.in_use, wanted);
    if (keep >= before.reserved)
        return 0;
    lower_at_once(v, r, keep, WEIR_EVENT_LOW_MEMORY);
    return weir__size_less(before.reserved, weir__engine_reserve(v->engine));
}

/* Answers the signal, if the signal is new or a look is due.  The caller has set `is_looking'. */
static void answer_signal(struct weir_reserve *v, const struct weir_request *r) {
    struct weir_pressure *p = &v->goal.pressure;
    uint64_t wanted = atomic_load_explicit(&p->wanted, memory_order_acquire), got;
    unsigned raised = atomic_load_explicit(&p->raised, memory_order_relaxed);
    uint64_t now = weir__device_since(v->device, v->device->created_ticks);

    if (raised != p->seen) {
        p->seen = raised;
        p->looks = 0;
    } else if (now < p->due) {
        return;
    }
    got = release_wanted(v, r, wanted);
    p->due = now + (FIRST_PAUSE_NS << p->looks);
    if (++p->looks == MOST_LOOKS)
        want_less(p, wanted, 0);
    else if (wanted != UINT64_MAX)
        want_less(p, wanted, weir__size_less(wanted, got));
}

/* Answers the signal, unless another request does at the moment. */
static void relieve_in_request(struct weir_reserve *v, const struct weir_request *r) {
    struct weir_pressure *p = &v->goal.pressure;

    if (atomic_exchange_explicit(&p->is_looking, 1, memory_order_acquire))
        return;
    answer_signal(v, r);
    atomic_store_explicit(&p->is_looking, 0, memory_order_release);
}

/* ---- the release threshold --------------------------------------------------------------------- */

/* Growth may take this part of the time of a load that needs released memory again and again. */
#define GROWTH_PART 16

/* Returns the nanoseconds that growth has taken so far. */
static uint64_t growth_ns(const struct weir_reserve *v) {
    return atomic_load_explicit(&v->events.counters->stall_ns, memory_order_relaxed);
}

size_t weir__goal_settle(struct weir_reserve *v) {
    weir_statistics figures = {.size = sizeof figures};
    struct weir_trim trim = {.mode = WEIR_TRIM_DONE, .cause = WEIR_EVENT_DECAY};

    v->engine->ops->figures(v->engine, &figures);
    trim.keep = (size_t)weir__goal_target(v, figures.reserved, figures.in_use, UINT64_MAX);
    /* Above a lowered limit the memory could not come back, and a failure may have promised it to the next request. */
    if (figures.reserved <= trim.keep || figures.reserved > v->limit.bytes)
        return 0;
    (void)weir__goal_lower(v, &trim);
    atomic_store(&v->goal.lowered, growth_ns(v));
    return trim.released;
}

/* Sets the time of the next release in requests, after growth. */
static void keep_grown(struct weir_reserve *v, uint64_t now) {
    struct weir_goal *g = &v->goal;
    uint64_t grown = weir__size_less(growth_ns(v), atomic_load(&g->lowered));

    atomic_store_explicit(&g->lower_due, now + GROWTH_PART * grown, memory_order_relaxed);
    atomic_store_explicit(&g->lower_pause, FIRST_PAUSE_NS, memory_order_relaxed);
}

/* Releases idle memory above the floor.  The next release comes after a pause, which doubles if nothing went. */
static void lower_to_floor(struct weir_reserve *v, const struct weir_request *r, uint64_t reserved,
                           uint64_t target, uint64_t now) {
    struct weir_goal *g = &v->goal;
    uint64_t pause = 2 * atomic_load_explicit(&g->lower_pause, memory_order_relaxed);

    lower_at_once(v, r, target, WEIR_EVENT_DECAY);
    atomic_store(&g->lowered, growth_ns(v));
    if (atomic_load_explicit(&v->engine->seen.reserved, memory_order_relaxed) < reserved)
        pause = FIRST_PAUSE_NS;
    pause = weir__size_smaller(pause, LONGEST_PAUSE_NS);
    atomic_store_explicit(&g->lower_pause, pause, memory_order_relaxed);
    atomic_store_explicit(&g->lower_due, now + pause, memory_order_relaxed);
}

/* Releases idle memory above the floor, unless reserved memory has just grown. */
static void settle_in_request(struct weir_reserve *v, const struct weir_request *r) {
    uint64_t reserved = atomic_load_explicit(&v->engine->seen.reserved, memory_order_relaxed);
    uint64_t in_use = atomic_load_explicit(&v->engine->seen.in_use, memory_order_relaxed);
    uint64_t target = weir__goal_target(v, reserved, in_use, UINT64_MAX), now;

    if (reserved <= target && !r->grew)
        return;
    now = weir__device_since(v->device, v->device->created_ticks);
    if (r->grew)
        keep_grown(v, now);
    else if (now >= atomic_load_explicit(&v->goal.lower_due, memory_order_relaxed))
        lower_to_floor(v, r, reserved, target, now);
}

/* ---- after a request --------------------------------------------------------------------------- */

void weir__goal_look(struct weir_reserve *v, const struct weir_request *r) {
    struct weir_goal *g = &v->goal;

    if (g->ahead.is_on)
        weir__goal_wake(v, r->bytes, r->grew);
    if (r->grew) {
        (void)weir__limit_refresh(v);
        atomic_fetch_add_explicit(&v->events.counters->growth_allocs, 1, memory_order_release);
    }
    if (g->half_life_ns > 0)
        decay_in_request(v, r);
    if (g->has_threshold)
        settle_in_request(v, r);
    if (g->in_requests && atomic_load_explicit(&g->pressure.wanted, memory_order_relaxed) != 0)
        relieve_in_request(v, r);
}
