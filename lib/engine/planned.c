/* SPDX-License-Identifier: MIT */
#include "engine/planned.h"

#include <stdlib.h>
#include <string.h>

/* Places ahead in which a size is looked for; misses in a row after which the program has left the plan, and after which
 * it is looked for in all of the plan, again and again. */
enum { AHEAD = 32, LEFT = 8, SEARCH = 16 };
/* Of the requests with places, what may have none where the plan is kept. */
enum { KEPT_PART = 16 };

void weir__planned_close(struct weir_planned *p) {
    if (p)
        free(p->plan.place);
    free(p);
}

/* The place behind that one; `places`: there is none. */
static size_t behind(const struct weir_plan *plan, size_t at) {
    at++;
    return at >= plan->places ? plan->round : at;
}

/* Where that size comes next, if soon; `places`: it does not. */
static size_t look_ahead(const struct weir_planned *p, uint32_t size) {
    size_t at = p->next;

    for (int i = 0; i < AHEAD && at < p->plan.places; i++, at = behind(&p->plan, at))
        if (p->plan.place[at].size == size)
            return at;
    return p->plan.places;
}

static int is_last(const struct weir_planned *p, size_t at) {
    for (size_t i = 0; i < WEIR_PLANNED_LAST; i++)
        if (p->plan.place[at - i].size != p->last[i])
            return 0;
    return 1;
}

/* Where the last sizes come first; `places`: nowhere. */
static size_t look_everywhere(const struct weir_planned *p) {
    for (size_t at = WEIR_PLANNED_LAST - 1; at < p->plan.places; at++)
        if (is_last(p, at))
            return at;
    return p->plan.places;
}

uint64_t weir__planned_next(struct weir_planned *p, size_t bytes) {
    uint32_t size = (uint32_t)((bytes + WEIR_PLAN_GRANULE - 1) / WEIR_PLAN_GRANULE);
    size_t at;

    memmove(&p->last[1], &p->last[0], sizeof p->last - sizeof p->last[0]);
    p->last[0] = size;
    at = look_ahead(p, size);
    if (at == p->plan.places && p->misses > 0 && p->misses % SEARCH == 0)
        at = look_everywhere(p);
    if (at == p->plan.places) {
        p->misses++;
        atomic_fetch_add_explicit(&p->missed, 1, memory_order_relaxed);
        return 0;
    }
    p->misses = 0;
    atomic_fetch_add_explicit(&p->found, 1, memory_order_relaxed);
    p->next = behind(&p->plan, at);
    return p->plan.place[at].offset == WEIR_PLAN_NOWHERE
               ? 0
               : p->base + (uint64_t)p->plan.place[at].offset * WEIR_PLAN_GRANULE;
}

int weir__planned_is_kept(const struct weir_planned *p) {
    return atomic_load_explicit(&p->found, memory_order_relaxed) / KEPT_PART >
           atomic_load_explicit(&p->missed, memory_order_relaxed);
}

int weir__planned_departs(struct weir_planned *p) {
    if (p->departed || p->misses < LEFT || p->plan.places == 0)
        return 0;
    p->departed = 1;
    return 1;
}
