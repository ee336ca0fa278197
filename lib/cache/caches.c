/* SPDX-License-Identifier: MIT */
/* caches.c: opens and closes the caches of an allocator.
 *
 * Must not know: how a request finds its cache (caches_state.h names the files that do).
 */
#include "cache/caches_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "base/size.h"

/* The time after which a cache returns memory that its stream does not use. */
#define IDLE_NS UINT64_C(1000000000)

void weir__caches_prepare(struct weir_caches *f, const struct weir_extent *extents, size_t count,
                          size_t most) {
    size_t left = most;

    for (size_t i = 0; i < count; i++) {
        size_t bytes = (size_t)weir__size_smaller(extents[i].bytes, left);

        weir__records_prepare(&f->records, extents[i].base, bytes, extents[i].large);
        left -= bytes;
    }
    weir__records_stock(&f->records, most - left);
}

weir_status weir__caches_open(struct weir_reserve *v, struct weir_caches **out) {
    struct weir_caches *f = aligned_alloc(_Alignof(struct weir_caches), sizeof *f);

    if (f)
        memset(f, 0, sizeof *f);
    if (!f || !weir__cache_table_open(&f->hits.by_handle) ||
        !weir__cache_table_open(&f->hits.by_id) || !weir__records_open(&f->records, &f->pages) ||
        !(f->loose = weir__caches_make(f))) {
        if (f) {
            weir__records_close(&f->records);
            weir__cache_table_close(&f->hits.by_id);
            weir__cache_table_close(&f->hits.by_handle);
        }
        free(f);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    weir__bias_prepare();
    f->v = v;
    f->engine = v->engine;
    f->hits.device = v->device;
    f->batches_end = &f->batches;
    f->hits.reclaim_epoch = 1; /* a cache whose pass is 0 is not ready */
    f->hits.checks = v->options->stream_checks != WEIR_SWITCH_OFF;
    f->sheds = v->engine->threshold < v->device->total;
    f->alone = !f->sheds;
    f->span_ticks = v->device->driver->ticks();
    f->idle_ns = IDLE_NS;
    pthread_mutex_init(&f->lock, NULL);
    /* No callbacks, since this order has no frees. */
    weir__order_open(&f->order, v->device, NULL, NULL);
    *out = f;
    return WEIR_OK;
}

void weir__caches_close(struct weir_caches *f) {
    struct weir_remote_slots *batches;
    struct weir_driver_scope scope;
    int entered;

    if (!f)
        return;
    batches = weir__caches_take_batches(f);
    while (batches) {
        struct weir_remote_slots *batch = batches;

        batches = batch->next;
        if (batch->fence)
            weir__order_fence_drop(&f->order, batch->fence);
        while (batch) {
            struct weir_remote_slots *more = batch->more;

            free(batch);
            batch = more;
        }
    }
    entered =
        weir__driver_enter(f->hits.device->driver, f->hits.device->context, &scope) == CUDA_SUCCESS;
    weir__order_close(&f->order);
    if (entered)
        weir__driver_leave(f->hits.device->driver, &scope);
    while (f->caches) {
        struct weir_cache *c = f->caches;

        f->caches = c->next;
        weir__cache_close(c);
        free(c);
    }
    weir__cache_table_close(&f->hits.by_handle);
    weir__cache_table_close(&f->hits.by_id);
    weir__records_close(&f->records);
    pthread_mutex_destroy(&f->lock);
    free(f);
}
