/* SPDX-License-Identifier: MIT */
/* quota.c: see quota.h. */
#include "reserve/quota.h"

#include "base/bounds.h"
#include "base/size.h"
#include "reserve/reserve.h"

enum { READS = 4 }; /* the most attempts to read two figures of one moment */
/* The weight, in millionths, of a process without a share. */
#define WEIGHT UINT64_C(1000000)

uint64_t weir__quota_weight(const weir_options *o) {
    if (o->limit.kind == WEIR_AMOUNT_SHARE)
        return o->limit.value;
    return o->prealloc.kind == WEIR_AMOUNT_SHARE ? o->prealloc.value : WEIGHT;
}

int weir__quota_has_share(const weir_options *o) {
    return o->limit.kind == WEIR_AMOUNT_SHARE || o->prealloc.kind == WEIR_AMOUNT_SHARE;
}

uint64_t weir__quota_part(const struct weir_device *device, uint64_t apart, uint64_t weight,
                          uint64_t weights) {
    double all = (double)(device->total - apart), part;

    part = weights > 0 ? all * (double)weight / (double)weights : 0;
    return weir__size_round_down((size_t)(part < all ? part : all), WEIR_POOL_UNIT);
}

uint64_t weir__quota_weights(const struct weir_reserve *v) {
    uint64_t own = weir__quota_weight(v->options);

    if (v->events.peers)
        return weir__process_peers_weights(v->events.peers);
    return v->options->registry == WEIR_SWITCH_ON
               ? own + weir__process_peers_look(v->device->driver, v->device->ordinal,
                                                UINT64_MAX - own)
               : own;
}

uint64_t weir__quota_units(const struct weir_reserve *v, uint64_t limit) {
    size_t unit = v->engine->least_limit;

    return limit != UINT64_MAX && unit ? weir__size_round_down((size_t)limit, unit) : limit;
}

uint64_t weir__quota_own(const struct weir_quota *q) {
    return atomic_load_explicit(q->follows ? &q->own : &q->limit, memory_order_relaxed);
}

/* Sets the limit to `bytes', but to at most the limit of the program, which may have changed meanwhile. */
static void apply_limit(struct weir_quota *q, uint64_t bytes) {
    weir__lock_take(&q->limiting);
    atomic_store_explicit(&q->limit, weir__size_smaller(bytes, atomic_load(&q->asked)),
                          memory_order_relaxed);
    weir__lock_give(&q->limiting);
}

/* Returns the reserved memory at which `keep_free' bytes stay free on the device.  Reads both figures again if the
 * reserved memory changed between the readings. */
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
    return weir__size_smaller(before, after) + weir__size_less(device_free, v->quota.keep_free);
}

/* More memory may be in use when the limit is applied.  It stays, and a request that fails because of the limit first
 * computes the limit again. */
int weir__quota_refresh_for(struct weir_reserve *v, uint64_t in_use) {
    struct weir_quota *q = &v->quota;
    uint64_t asked = atomic_load(&q->asked), limit = asked, before = q->limit;
    uint64_t unit = v->engine->least_limit;

    if (!q->follows)
        return 0;
    if (v->options->limit.kind == WEIR_AMOUNT_SHARE && !atomic_load(&q->no_share))
        limit = weir__quota_part(v->device, q->keep_free, v->options->limit.value,
                                 v->events.peers ? weir__process_peers_weights(v->events.peers)
                                                 : weir__quota_weight(v->options));
    limit = weir__size_larger(weir__quota_units(v, weir__size_smaller(limit, q->most)),
                              weir__size_smaller(unit, asked));
    atomic_store_explicit(&q->own, limit, memory_order_relaxed);
    if (q->keep_free > 0)
        limit = weir__size_smaller(limit, limit_by_device(v));
    limit = weir__size_larger(weir__size_larger(limit, in_use), unit);
    apply_limit(q, weir__quota_units(v, limit));
    return q->limit > before;
}

int weir__quota_refresh(struct weir_reserve *v) {
    weir_statistics figures = {.size = sizeof figures};

    if (!v->quota.follows)
        return 0;
    v->engine->ops->figures(v->engine, &figures);
    return weir__quota_refresh_for(v, figures.in_use);
}

void weir__quota_begin(struct weir_reserve *v, uint64_t limit) {
    v->quota.asked = v->quota.most = weir__quota_units(v, limit);
    atomic_init(&v->quota.share, UINT64_MAX);
    (void)weir__quota_refresh(v);
}

void weir__quota_set(struct weir_reserve *v, uint64_t bytes) {
    atomic_store(&v->quota.no_share, 1);
    atomic_store(&v->quota.asked, weir__quota_units(v, weir__size_smaller(bytes, v->quota.most)));
    if (v->quota.follows)
        (void)weir__quota_refresh(v);
    else
        apply_limit(&v->quota, UINT64_MAX);
}

void weir__quota_lower_floor(struct weir_reserve *v, uint64_t weights) {
    struct weir_quota *q = &v->quota;
    const weir_amount *prealloc = &v->options->prealloc;
    uint64_t most = UINT64_MAX;

    if (v->options->limit.kind == WEIR_AMOUNT_SHARE && !atomic_load(&q->no_share))
        most = atomic_load(&q->own);
    if (prealloc->kind == WEIR_AMOUNT_SHARE) {
        atomic_store(&q->share, weir__quota_part(v->device, q->apart, prealloc->value, weights));
        most = weir__size_smaller(most, atomic_load(&q->share));
    }
    if (most == UINT64_MAX)
        return;
    weir__lower_to(&v->decay.floor, weir__size_larger(most, atomic_load(&q->promised)));
    /* Another thread may have raised `promised', and then the floor, before the floor was lowered here. */
    weir__raise_to(&v->decay.floor, atomic_load(&q->promised));
}
