/* SPDX-License-Identifier: MIT */
/* pressure.c: see pressure.h. */
#include "reserve/pressure.h"

#include "base/bounds.h"
#include "base/size.h"
#include "reserve/reserve.h"

#define FIRST_PAUSE_NS UINT64_C(1000000)
enum { MOST_LOOKS = 11 }; /* the last one a second after the first */

void weir__pressure_raise(struct weir_pressure *r, uint64_t bytes) {
    atomic_fetch_add_explicit(&r->raised, 1, memory_order_relaxed);
    weir__raise_to(&r->wanted, bytes);
}

/* Lowers `wanted', unless another thread has changed it. */
static void want_less(struct weir_pressure *r, uint64_t wanted, uint64_t rest) {
    (void)atomic_compare_exchange_strong_explicit(&r->wanted, &wanted, rest, memory_order_relaxed,
                                                  memory_order_relaxed);
}

void weir__pressure_end(struct weir_pressure *r, uint64_t wanted) {
    want_less(r, wanted, 0);
}

/* Releases memory without waiting.  Returns the bytes that went. */
static uint64_t release_wanted(struct weir_reserve *v, const struct weir_request *r,
                               uint64_t wanted) {
    weir_statistics before = {.size = sizeof before};
    uint64_t keep;

    v->engine->ops->figures(v->engine, &before);
    keep = weir__reserve_target(v, before.reserved, before.in_use, wanted);
    if (keep >= before.reserved)
        return 0;
    weir__reserve_shed(v, r, keep, WEIR_EVENT_LOW_MEMORY);
    return weir__size_less(before.reserved, weir__engine_reserve(v->engine));
}

/* Does what weir__pressure_look does.  The caller has set `is_looking'. */
static int look(struct weir_reserve *v, const struct weir_request *request) {
    struct weir_pressure *r = &v->pressure;
    const struct weir_device *device = v->engine->device;
    uint64_t wanted = atomic_load_explicit(&r->wanted, memory_order_acquire);
    unsigned raised = atomic_load_explicit(&r->raised, memory_order_relaxed);
    uint64_t now = weir__device_since(device, device->created_ticks), got;
    int is_new = raised != r->seen;

    if (is_new) {
        r->seen = raised;
        r->looks = 0;
    } else if (now < r->due) {
        return 0;
    }
    got = release_wanted(v, request, wanted);
    r->due = now + (FIRST_PAUSE_NS << r->looks);
    if (++r->looks == MOST_LOOKS)
        want_less(r, wanted, 0);
    else if (wanted != UINT64_MAX)
        want_less(r, wanted, weir__size_less(wanted, got));
    return is_new;
}

int weir__pressure_look(struct weir_reserve *v, const struct weir_request *request) {
    int is_new;

    if (atomic_exchange_explicit(&v->pressure.is_looking, 1, memory_order_acquire))
        return 0;
    is_new = look(v, request);
    atomic_store_explicit(&v->pressure.is_looking, 0, memory_order_release);
    return is_new;
}
