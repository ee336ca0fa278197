/* SPDX-License-Identifier: MIT */
/* figures.c: returns the statistics, latencies and events of an allocator. */
#include <weir/stats.h>

#include "api/allocator_internal.h"
#include "base/size.h"

static weir_status bad_call(const weir_allocator *a, const char *call, const char *why) {
    return weir__allocator_misuse(a, WEIR_E_INVALID, call, why);
}

static weir_status hand_out(const weir_allocator *a, const char *call, void *out, const void *from,
                            size_t from_bytes) {
    if (*(const size_t *)out < sizeof(size_t))
        return bad_call(a, call, "out->size is not set; expected sizeof(*out)");
    weir__copy_out(out, from, from_bytes);
    return WEIR_OK;
}

void weir__stats_read(weir_allocator *a, weir_statistics *out) {
    weir__counters_read(&a->counters, out);
    a->reserve.engine->ops->figures(a->reserve.engine, out);
    out->host_bytes += atomic_load_explicit(&a->reserve.graphs.host_bytes, memory_order_relaxed);
    if (a->caches)
        weir__caches_figures(a->caches, out);
    if (a->harden)
        weir__harden_figures(a->harden, out);
    out->profile_asked = a->profile_asked;
    out->profile_runs = a->run_profile ? a->run_profile->known.runs : 0;
}

weir_status weir_stats(weir_allocator *a, weir_statistics *out) {
    weir_statistics figures;

    if (!a || !out)
        return bad_call(a, "weir_stats", "out is NULL");
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    weir__stats_read(a, &figures);
    return hand_out(a, "weir_stats", out, &figures, sizeof figures);
}

weir_status weir_latencies(weir_allocator *a, int operation, weir_latency *out) {
    const struct weir_histogram *h;
    weir_latency figures = {.size = sizeof figures};

    if (!a || !out || operation < 0 || operation >= WEIR_OPERATION_COUNT)
        return bad_call(a, "weir_latencies",
                        out ? "operation: expected 0 for alloc, 1 for free" : "out is NULL");
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    if (!a->counters.latency)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    h = &a->counters.latency[operation];
    figures.count = atomic_load(&h->total);
    figures.p50_ns = weir__histogram_quantile(h, 0.50);
    figures.p90_ns = weir__histogram_quantile(h, 0.90);
    figures.p99_ns = weir__histogram_quantile(h, 0.99);
    figures.p999_ns = weir__histogram_quantile(h, 0.999);
    figures.max_ns = atomic_load(&h->max);
    figures.total_ns = atomic_load(&h->sum);
    return hand_out(a, "weir_latencies", out, &figures, sizeof figures);
}

weir_status weir_events(weir_allocator *a, uint64_t after, weir_event *events, size_t event_bytes,
                        size_t capacity, size_t *count) {
    if (!a || (!events && capacity > 0) || event_bytes == 0 || !count)
        return bad_call(a, "weir_events",
                        event_bytes == 0 ? "event_bytes is 0; expected sizeof(weir_event)"
                        : count          ? "events is NULL"
                                         : "count is NULL");
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    *count = weir__counters_events(&a->counters, after, events, event_bytes, capacity);
    return WEIR_OK;
}
