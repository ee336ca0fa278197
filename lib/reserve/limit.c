/* SPDX-License-Identifier: MIT */
/* limit.c: the functions of limit.h. */
#include "reserve/limit.h"

#include "base/bounds.h"
#include "base/size.h"
#include "reserve/reserve.h"

enum { READS = 4 }; /* the maximum number of reads of two values that must belong to one moment */
/* The default weight of a process, in millionths. */
#define WEIGHT UINT64_C(1000000)

uint64_t weir__limit_weight(const weir_options *o) {
    if (o->limit.kind == WEIR_AMOUNT_SHARE)
        return o->limit.value;
    return o->prealloc.kind == WEIR_AMOUNT_SHARE ? o->prealloc.value : WEIGHT;
}

int weir__limit_has_share(const weir_options *o) {
    return o->limit.kind == WEIR_AMOUNT_SHARE || o->prealloc.kind == WEIR_AMOUNT_SHARE;
}

int weir__limit_is_share(const struct weir_reserve *v) {
    return v->options->limit.kind == WEIR_AMOUNT_SHARE && !atomic_load(&v->limit.no_share);
}

uint64_t weir__limit_part(const struct weir_device *device, uint64_t share_margin, uint64_t weight,
                          uint64_t weights) {
    double all = (double)(device->total - share_margin), part;

    part = weights > 0 ? all * (double)weight / (double)weights : 0;
    return weir__size_round_down((size_t)(part < all ? part : all), WEIR_POOL_UNIT);
}

uint64_t weir__limit_weights(const struct weir_reserve *v) {
    uint64_t own = weir__limit_weight(v->options);

    if (v->events.peers)
        return weir__process_peers_weights(v->events.peers);
    return v->options->registry == WEIR_SWITCH_ON
               ? own + weir__process_peers_read_weights(v->device->driver, v->device->ordinal,
                                                        UINT64_MAX - own)
               : own;
}

uint64_t weir__limit_own(const struct weir_limit *limit) {
    return atomic_load_explicit(limit->is_dynamic ? &limit->before_keep_free : &limit->bytes,
                                memory_order_relaxed);
}

static uint64_t limit_in_units(const struct weir_reserve *v, uint64_t bytes) {
    size_t unit = v->engine->least_limit;

    return bytes != UINT64_MAX && unit ? weir__size_round_down((size_t)bytes, unit) : bytes;
}

/* Sets the limit to the smaller of `bytes' and the program's limit. */
static void apply_limit(struct weir_limit *limit, uint64_t bytes) {
    weir__lock_take(&limit->limiting);
    atomic_store_explicit(&limit->bytes, weir__size_smaller(bytes, atomic_load(&limit->by_program)),
                          memory_order_relaxed);
    weir__lock_give(&limit->limiting);
}

/* Returns the largest number of reserved bytes with which `keep_free' bytes of the device stay free. */
static uint64_t limit_by_device(struct weir_reserve *v) {
    uint64_t before, after = weir__engine_reserve(v->engine), device_free;

    for (int i = 0; i < READS; i++) {
        before = after;
        device_free = weir__device_free(v->device);
        if (device_free == UINT64_MAX)
            return UINT64_MAX;
        after = weir__engine_reserve(v->engine);
        if (after == before)
            break;
    }
    return weir__size_smaller(before, after) + weir__size_subtract(device_free, v->limit.keep_free);
}

int weir__limit_refresh_for(struct weir_reserve *v, uint64_t in_use) {
    struct weir_limit *limit = &v->limit;
    uint64_t asked = atomic_load(&limit->by_program), bytes = asked, before = limit->bytes;
    uint64_t unit = v->engine->least_limit;

    if (!limit->is_dynamic)
        return 0;
    if (weir__limit_is_share(v))
        bytes = weir__limit_part(v->device, limit->keep_free, v->options->limit.value,
                                 v->events.peers ? weir__process_peers_weights(v->events.peers)
                                                 : weir__limit_weight(v->options));
    bytes = weir__size_larger(limit_in_units(v, weir__size_smaller(bytes, limit->by_settings)),
                              weir__size_smaller(unit, asked));
    atomic_store_explicit(&limit->before_keep_free, bytes, memory_order_relaxed);
    if (limit->keep_free > 0)
        bytes = weir__size_smaller(bytes, limit_by_device(v));
    bytes = weir__size_larger(weir__size_larger(bytes, in_use), unit);
    apply_limit(limit, limit_in_units(v, bytes));
    return limit->bytes > before;
}

int weir__limit_refresh(struct weir_reserve *v) {
    weir_statistics figures = {.size = sizeof figures};

    if (!v->limit.is_dynamic)
        return 0;
    v->engine->ops->figures(v->engine, &figures);
    return weir__limit_refresh_for(v, figures.in_use);
}

void weir__limit_begin(struct weir_reserve *v, uint64_t bytes) {
    v->limit.by_program = v->limit.by_settings = limit_in_units(v, bytes);
    (void)weir__limit_refresh(v);
}

void weir__limit_set(struct weir_reserve *v, uint64_t bytes) {
    atomic_store(&v->limit.no_share, 1);
    atomic_store(&v->limit.by_program,
                 limit_in_units(v, weir__size_smaller(bytes, v->limit.by_settings)));
    if (v->limit.is_dynamic)
        (void)weir__limit_refresh(v);
    else
        apply_limit(&v->limit, UINT64_MAX);
}

void weir__limit_lower_floor(struct weir_reserve *v, uint64_t weights) {
    struct weir_limit *limit = &v->limit;
    const weir_amount *prealloc = &v->options->prealloc;
    uint64_t most = weir__limit_is_share(v) ? atomic_load(&limit->before_keep_free) : UINT64_MAX;

    if (prealloc->kind == WEIR_AMOUNT_SHARE)
        most = weir__size_smaller(
            most, weir__limit_part(v->device, limit->share_margin, prealloc->value, weights));
    if (most == UINT64_MAX)
        return;
    weir__lower_to(&v->goal.floor, weir__size_larger(most, atomic_load(&limit->least_floor)));
    /* Another thread may have raised `least_floor' meanwhile, and the floor must not stay below `least_floor'. */
    weir__raise_to(&v->goal.floor, atomic_load(&limit->least_floor));
}
