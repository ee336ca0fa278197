/* SPDX-License-Identifier: MIT */
/* model_pool_alloc.c: allocates blocks from memory pools, and frees blocks.
 *
 * An allocation tries these steps in turn.  A span is a range of pool memory (model_span.h, with the rules R1 to R7).
 * A program can switch off the steps for which an attribute is named.
 *   own        a span that the stream itself has freed, or a free backed span (R3); neither needs an order
 *   ordered    a span of another stream, if an event orders this stream after the free of the span
 *              (REUSE_FOLLOW_EVENT_DEPENDENCIES, R4); a block never covers spans of two streams
 *   completed  a span of another stream, if all work before the free of the span is completed
 *              (REUSE_ALLOW_OPPORTUNISTIC, R4); if no such span is large enough, all such spans become free (R5)
 *   grow       the smallest free span that is large enough; if the span lacks memory, units get memory of other units
 *              or of the device (R6), up to maxSize
 *   behind     a pending span of another stream (REUSE_ALLOW_INTERNAL_DEPENDENCIES), only if the device is full or the
 *              pool has reached maxSize.  The stream waits for the free of the span, and the host does not wait.  A
 *              block never covers several such spans.  The choice between several spans is assumed
 */
#include "driver/model/model_pool.h"

/* ---- allocation ---- */

/* Makes all completed spans free for all streams.  The driver does so for a request, but not for a trim. */
static void free_all_completed_spans(struct model_pool *pool) {
    struct model_queue *queue = pool->range.queues, *next;

    for (; queue; queue = next) {
        next = queue->next;
        weir__model_range_free_completed(&pool->range, queue, weir__model_now());
    }
}

static struct model_span *select_own_or_backed(struct model_pool *pool, uint64_t stream_id,
                                               uint64_t bytes) {
    const struct model_queue *queue;
    struct model_span *span;

    for (queue = pool->range.queues; queue; queue = queue->next)
        if (queue->stream_id == stream_id) {
            span = weir__model_range_fit(queue->spans, bytes);
            if (span)
                return span;
        }
    return weir__model_range_fit(pool->range.backed, bytes);
}

/* Selects a span by rule R4 (model_span.h).  Usable spans were freed up to `seq` and are completed at `now_ns`. */
static struct model_span *select_from_queue(const struct model_queue *queue, uint64_t bytes,
                                            uint64_t seq, uint64_t now_ns) {
    struct model_span *span = weir__model_range_fit(queue->spans, bytes);

    if (!span || (span->seq <= seq && span->end_ns <= now_ns))
        return span;
    for (span = queue->oldest; span && span->seq <= seq && span->end_ns <= now_ns;
         span = span->newer)
        if (span->size >= bytes)
            return span;
    return NULL;
}

static struct model_span *select_from_others(const struct model_pool *pool,
                                             const struct model_stream *stream, uint64_t bytes) {
    const struct model_queue *queue = pool->follow_events ? pool->range.queues : NULL;
    struct model_span *span = NULL;

    for (; queue && !span; queue = queue->next)
        span = select_from_queue(queue, bytes, weir__model_order(&stream->after, queue->stream_id),
                                 UINT64_MAX);
    queue = pool->opportunistic ? pool->range.queues : NULL;
    for (; queue && !span; queue = queue->next)
        span = select_from_queue(queue, bytes, UINT64_MAX, weir__model_now());
    return span;
}

static int is_child(void) {
    return (atomic_load_explicit(&weir__model.state, memory_order_relaxed) & MODEL_FORKED) != 0;
}

/* Returns the number of units by which the pool may still grow; 0 in a child of fork(). */
static uint64_t units_left(const struct model_pool *pool) {
    uint64_t device = weir__model_room(pool->device) / pool->range.unit;
    uint64_t pool_left =
        pool->most_units > pool->range.units ? pool->most_units - pool->range.units : 0;

    if (is_child())
        return 0;
    return device < pool_left ? device : pool_left;
}

static void update_reserved_high(struct model_pool *pool) {
    if (pool->reserved_high < weir__model_pool_reserved(pool))
        pool->reserved_high = weir__model_pool_reserved(pool);
}

static void count_growth(struct model_pool *pool, uint64_t moved, uint64_t added) {
    const struct model_profile *profile = &weir__model.profile;

    update_reserved_high(pool);
    weir__model_charge(weir__model_curve(&profile->pool_move_ns, moved) +
                       weir__model_curve(&profile->pool_grow_ns, added) +
                       (weir__model.pools_grew ? 0 : profile->pool_first_ns));
    weir__model.pools_grew = 1;
}

/* Returns how many units of memory a block in this span could get from other spans of the pool and from the device. */
static uint64_t units_for(const struct model_pool *pool, const struct model_span *span,
                          uint64_t bytes) {
    return is_child()
               ? 0
               : weir__model_range_movable_units(&pool->range, span, bytes) + units_left(pool);
}

static int is_before(const struct model_span *a, const struct model_span *b) {
    return a->size < b->size || (a->size == b->size && a->block.node.tie < b->block.node.tie);
}

/* Allocates a block by growing the pool (rule R6 in model_span.h).  Returns NULL if there is too little memory. */
static struct model_span *grow(struct model_pool *pool, uint64_t bytes) {
    struct model_range *range = &pool->range;
    struct model_span *span = weir__model_range_fit(range->partial, bytes), *block;
    struct model_span *backed = weir__model_range_fit(range->backed, bytes);
    uint64_t lacks, moved, added, most;

    while (span &&
           weir__model_range_missing_units(range, span, bytes) > units_for(pool, span, bytes))
        span = (struct model_span *)(void *)weir__model_tree_ceiling(
            range->partial, span->block.node.key, span->block.node.tie + 1);
    if (backed && (!span || is_before(backed, span)))
        return weir__model_range_cut(range, backed, bytes);
    if (!span)
        return NULL;
    lacks = weir__model_range_missing_units(range, span, bytes);
    most = weir__model_range_movable_units(range, span, bytes);
    most = lacks > most ? lacks - most : 0;
    if (weir__model_physical_alloc(pool->device, most * range->unit) != 0)
        return NULL;
    block = weir__model_range_grow(range, span, bytes, &moved);
    if (!block) {
        weir__model_physical_free(pool->device, most * range->unit);
        return NULL;
    }
    added = lacks - moved;
    weir__model_physical_free(pool->device, (most - added) * range->unit);
    count_growth(pool, moved, added);
    return block;
}

/* Allocates a block from memory whose last stream is still busy.  Makes `stream` wait for that work. */
static struct model_span *cut_pending_span(struct model_pool *pool, struct model_stream *stream,
                                           uint64_t bytes) {
    const struct model_queue *queue = pool->internal ? pool->range.queues : NULL;
    struct model_span *span, *best = NULL;

    for (; queue; queue = queue->next) {
        span = weir__model_range_fit(queue->spans, bytes);
        if (span && (!best || span->size < best->size ||
                     (span->size == best->size && span->end_ns < best->end_ns)))
            best = span;
    }
    if (!best)
        return NULL;
    if (stream->end_ns < best->end_ns)
        stream->end_ns = best->end_ns;
    weir__model_orders_add(&stream->after, best->queue->stream_id, best->seq);
    return weir__model_range_cut(&pool->range, best, bytes);
}

static struct model_span *allocate_span(struct model_pool *pool, struct model_stream *stream,
                                        uint64_t stream_id, uint64_t bytes) {
    struct model_span *span = select_own_or_backed(pool, stream_id, bytes);

    if (!span)
        span = select_from_others(pool, stream, bytes);
    if (span)
        return weir__model_range_cut(&pool->range, span, bytes);
    if (pool->opportunistic)
        free_all_completed_spans(pool);
    span = grow(pool, bytes);
    return span ? span : cut_pending_span(pool, stream, bytes);
}

/* ---- allocation ---- */

static uint64_t pair_ns(const struct model_pool *pool) {
    return weir__model_curve(&weir__model.profile.pool_pair_ns, pool->live);
}

/* Grows the pool as far as possible before the request fails, like a real driver. */
static void fail_pool_request(struct model_pool *pool, uint64_t bytes) {
    uint64_t units = units_left(pool), taken = units * pool->range.unit;

    weir__model_charge(weir__model_curve(&weir__model.profile.pool_refuse_ns, units));
    if (units == 0 || weir__model_physical_alloc(pool->device, taken) != 0)
        return;
    if (weir__model_range_add(&pool->range, bytes, units) != 0)
        weir__model_physical_free(pool->device, taken);
    update_reserved_high(pool);
}

/* Allocates a block from the pool.  Returns NULL if there is too little memory. */
static struct model_span *alloc_block(struct model_pool *pool, struct model_stream *stream,
                                      uint64_t bytes) {
    uint64_t align = weir__model.profile.block_align;
    uint64_t stream_id = weir__model_stream_id(stream);
    struct model_span *span = NULL;

    weir__model_direct_free_completed(pool->device);
    weir__model_stream_touch(stream);
    if (bytes <= pool->range.bytes && weir__model_range_allocate_spares(&pool->range) == 0) {
        weir__model_range_add_stream(&pool->range, stream_id, stream->context->device);
        span = allocate_span(pool, stream, stream_id, (bytes + align - 1) & ~(align - 1));
    }
    if (!span) {
        fail_pool_request(pool, bytes);
        return NULL;
    }
    pool->live++;
    weir__model_charge(pair_ns(pool) * weir__model.profile.pool_alloc_percent / 100);
    pool->used += bytes;
    if (pool->used_high < pool->used)
        pool->used_high = pool->used;
    span->block.bytes = bytes;
    span->block.pool = pool;
    span->block.node.key = (uintptr_t)pool->range.base + span->offset;
    span->block.node.tie = 0;
    weir__model_block_insert(&span->block, pool->device->context.device);
    return span;
}

/* Allocates a block from the pool or, if the stream is being captured, adds the allocation to the graph. */
static CUresult alloc_on(struct model_pool *pool, struct model_stream *stream, uint64_t bytes,
                         CUdeviceptr *address) {
    struct model_branch *branch;
    CUresult result = weir__model_capture_enter(stream, &branch);
    struct model_span *span;

    if (result == CUDA_SUCCESS && !branch)
        result = weir__model_capture_check_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes == 0) {
        *address = 0;
        return CUDA_SUCCESS;
    }
    if (branch)
        return weir__model_graph_alloc(branch, pool->device->context.device, bytes, address);
    span = alloc_block(pool, stream, bytes);
    if (!span)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = span->block.node.key;
    return CUDA_SUCCESS;
}

/* Allocates a block from the pool *handle or, if `handle` is NULL, from the current pool of the stream's device. */
static CUresult alloc_from(const CUmemoryPool *handle, CUdeviceptr *address, size_t bytes,
                           CUstream stream_handle) {
    CUresult why = CUDA_ERROR_OUT_OF_MEMORY;
    struct model_stream *stream = weir__model_stream(stream_handle, &why);
    struct model_pool *pool;

    if (!address)
        return CUDA_ERROR_INVALID_VALUE;
    if (!stream)
        return why;
    if (handle) {
        pool = weir__model_pool_find(*handle);
        if (!pool)
            return CUDA_ERROR_INVALID_VALUE;
    } else {
        weir__model_lock();
        pool = weir__model_pool_current(&weir__model.devices[stream->context->device]);
    }
    if (handle && pool->import)
        /* assumed: a program cannot allocate from an imported pool */
        why = CUDA_ERROR_INVALID_VALUE;
    else
        why = pool ? alloc_on(pool, stream, bytes, address) : CUDA_ERROR_OUT_OF_MEMORY;
    if (why == CUDA_ERROR_OUT_OF_MEMORY)
        *address = 0; /* a real driver does so, too (measured, driver 580) */
    return weir__model_unlocked(why);
}

CUresult weir__model_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes,
                                             CUmemoryPool handle, CUstream stream) {
    return alloc_from(&handle, address, bytes, stream);
}

CUresult weir__model_cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
    return alloc_from(NULL, address, bytes, stream);
}

/* ---- frees ---- */

/* Removes a block from the tree of blocks and from its pool's counters.  The caller must free the returned span. */
static struct model_span *remove_allocated_block(struct model_block *block) {
    struct model_pool *pool = block->pool;

    weir__model_charge(pair_ns(pool) * (100 - weir__model.profile.pool_alloc_percent) / 100);
    weir__model_tree_remove(&weir__model.blocks, &block->node);
    pool->live--;
    pool->used -= block->bytes;
    return (struct model_span *)(void *)block;
}

/* Frees a block whose memory belongs to another process, which keeps the memory. */
static void free_imported_block(struct model_block *block) {
    struct model_pool *pool = block->pool;

    weir__model_tree_remove(&weir__model.blocks, &block->node);
    weir__model_import_drop(pool->import, block);
    pool->live--;
    drop_if_done(pool);
}

/* Frees a block that every stream may reuse immediately.  All uses must be completed. */
void weir__model_pool_free_now(struct model_block *block) {
    struct model_pool *pool = block->pool;

    if (pool->import) {
        free_imported_block(block);
        return;
    }
    pool->used += block->bytes;
    pool->unused += block->bytes;
    weir__model_range_free(&pool->range, remove_allocated_block(block));
    drop_if_done(pool);
}

/* Frees a block after the present work of `stream`.  Without host memory to record this work, waits for the work. */
void weir__model_pool_free_on(struct model_block *block, struct model_stream *stream) {
    struct model_pool *pool = block->pool;
    struct model_span *span;

    if (pool->import) {
        free_imported_block(block);
        return;
    }
    span = remove_allocated_block(block);
    if (weir__model_range_allocate_spares(&pool->range) != 0) {
        weir__model_wait_until(stream->end_ns);
        weir__model_range_free(&pool->range, span);
    } else {
        weir__model_range_defer(&pool->range, span, weir__model_stream_id(stream),
                                stream->context->device, stream->seq, stream->end_ns);
    }
    drop_if_done(pool);
}
