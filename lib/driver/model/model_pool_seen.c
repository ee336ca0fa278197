/* SPDX-License-Identifier: MIT */
/* model_pool_seen.c: frees a pool's spans, and its units to the device, when the host has completed their work.
 *
 * Facts modelled here (measured on the device of the profile): thresholds act at a synchronisation, rounded down to
 * units; trims act at once, rounded up.  A trim frees memory whose work the host has waited for.  It does not free
 * memory whose work is merely done, was found done by a query, or was waited for by cuMemFree on the way.  What is done
 * when its stream ends is free for every stream.  A trim waits for no kernel.  Documented: a synchronisation makes the
 * memory of completed work free for every stream, whatever the attributes.
 */
#include "driver/model/model_pool.h"

#include "driver/model/model_span.h"

void weir__model_pools_forget(uint64_t id) {
    struct model_pool *pool;

    for (pool = weir__model.live_pools; pool; pool = pool->next)
        weir__model_range_forget(&pool->range, id, weir__model_now());
}

void weir__model_pools_name(struct model_orders *named) {
    const struct model_pool *pool;
    const struct model_queue *queue;

    for (pool = weir__model.live_pools; pool; pool = pool->next)
        for (queue = pool->range.queues; queue; queue = queue->next)
            weir__model_learn(named, queue->stream_id, 1);
}

void weir__model_pools_begin(uint64_t id, uint64_t seq, uint64_t begin_ns) {
    struct model_pool *pool;

    for (pool = weir__model.live_pools; pool; pool = pool->next)
        weir__model_range_begin(&pool->range, id, seq, begin_ns);
}

void weir__model_pools_observe(uint64_t id, uint64_t seq, const struct model_orders *after) {
    struct model_pool *pool;

    for (pool = weir__model.live_pools; pool; pool = pool->next) {
        struct model_queue *queue = pool->range.queues, *next;

        for (; queue; queue = next) {
            next = queue->next;
            weir__model_range_settle_seq(
                &pool->range, queue,
                queue->stream_id == id ? seq : weir__model_order(after, queue->stream_id));
        }
    }
}

void weir__model_pools_observe_device(int device) {
    struct model_pool *pool;

    for (pool = weir__model.live_pools; pool; pool = pool->next) {
        struct model_queue *queue = pool->range.queues, *next;

        for (; queue; queue = next) {
            next = queue->next;
            if (queue->device == device)
                weir__model_range_settle(&pool->range, queue, UINT64_MAX);
        }
    }
}

/* Frees units to the device until at most `keep` remain, as far as whole units are free. */
static void shrink_to(struct model_pool *pool, uint64_t keep) {
    uint64_t released;

    if (pool->range.units <= keep)
        return;
    released = weir__model_range_shrink(&pool->range, pool->range.units - keep);
    weir__model_give(pool->device, released * pool->range.unit);
    weir__model_charge(weir__model_curve(&weir__model.profile.pool_trim_ns, released));
}

void weir__model_pools_synchronised(int device) {
    struct model_pool *pool;

    for (pool = weir__model.live_pools; pool; pool = pool->next)
        if (pool->device == &weir__model.devices[device] && !pool->is_shared)
            shrink_to(pool, pool->threshold / pool->range.unit);
}

CUresult weir__model_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    struct model_pool *pool = weir__model_pool_find(handle);
    CUresult result;

    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    result = weir__model_capture_unsafe();
    if (result == CUDA_SUCCESS && !pool->is_shared)
        shrink_to(pool, keep ? (keep - 1) / pool->range.unit + 1 : 0);
    weir__model_unlock();
    return result;
}
