/* SPDX-License-Identifier: MIT */
/* model_pool_check.c: what must hold of pools, and of all memory of the devices. */
#include "driver/model/model_pool.h"

#include "driver/model/model_span.h"

static const char *check_pool(const struct model_pool *pool) {
    const struct model_span *span;
    uint64_t live = 0, used = 0;

    if (pool->import)
        return NULL;
    for (span = pool->range.first; span; span = span->next)
        if (span->kind == SPAN_USED) {
            live++;
            used += span->block.bytes;
            if (span->block.bytes > span->size || span->block.pool != pool ||
                span->block.node.key != (uintptr_t)pool->range.base + span->offset)
                return "a live block is not where it says";
            if (weir__model_tree_floor(weir__model.blocks, span->block.node.key, 0) !=
                &span->block.node)
                return "a live block cannot be found by its address";
        }
    if (live != pool->live || used != pool->used - pool->unused)
        return "live blocks miscounted";
    if (pool->used > pool->used_high || weir__model_pool_reserved(pool) > pool->reserved_high)
        return "a high-water mark below the water";
    if (pool->range.units > pool->most_units)
        return "a pool is larger than its maxSize";
    return weir__model_range_check(&pool->range);
}

const char *weir__model_pool_check(void) {
    uint64_t physical[MODEL_DEVICES] = {0};
    const struct model_pool *pool;
    const char *wrong = NULL;
    int i;

    weir__model_lock();
    for (pool = weir__model.live_pools; pool && !wrong; pool = pool->next) {
        wrong = check_pool(pool);
        physical[pool->device->context.device] += weir__model_pool_reserved(pool);
    }
    for (i = 0; i < weir__model.device_count && !wrong; i++) {
        const struct model_device *device = &weir__model.devices[i];

        if (atomic_load(&device->context.retained) > 0)
            physical[i] += device->context_bytes;
        wrong = weir__model_direct_check(device, &physical[i]);
        if (!wrong)
            wrong = weir__model_graph_check(i, &physical[i]);
        if (!wrong)
            wrong = weir__model_virtual_check(i, &physical[i]);
        if (!wrong)
            wrong = weir__model_capture_check(&device->context);
        if (!wrong && (physical[i] != device->physical || physical[i] > device->capacity))
            wrong = "a device's memory is miscounted";
    }
    weir__model_unlock();
    return wrong;
}
