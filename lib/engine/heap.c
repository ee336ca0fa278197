/* SPDX-License-Identifier: MIT */
/* heap.c: implements heap.h. */
#include "engine/heap.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/result.h"

/* The id of h->quarantine, an invented stream for quarantined blocks (heap.h).  No real stream has this id. */
#define QUARANTINE (UINT64_MAX - 1)

/* If no idle memory fits, a request queries this many events at first, and all events if no memory fits even then. */
enum { MOST_QUERIES = 32 };

/* Each free of a block that several streams use queries the events of this many earlier such frees. */
enum { DEFERRED_QUERIES = 2 };

/* weir should record an event only after frees of at least 1/EVENT_FRACTION of the heap's memory. */
enum { EVENT_FRACTION = 256 };

/* The number of records of blocks to allocate in advance.  The first iteration of most programs needs no more. */
enum { STOCK = 400 };

static int find_region(const struct weir_heap *h, uint64_t address, struct weir_extent *out) {
    return weir__placement_region_above(weir__heap_placement(h, address), address, &out->base,
                                        &out->bytes) &&
           out->base <= address;
}

void weir__heap_set_total(struct weir_heap *h, uint64_t total) {
    h->total = total;
    h->order.least_event_bytes = total / EVENT_FRACTION;
}

/* ---- helpers of frees and requests ---- */

/* Frees a block for reuse on `s`, or on all streams if `s` is NULL.  If `s` is h->quarantine, needs no host memory. */
static weir_status free_live_block(struct weir_heap *h, CUdeviceptr block,
                                   struct weir_placement_stream *s, uint64_t sequence,
                                   struct weir_placement_block *was) {
    int result = weir__placement_free(weir__heap_placement(h, block), block, s, sequence, was);

    if (result != WEIR_PLACEMENT_OK)
        return weir__without_driver(result == WEIR_PLACEMENT_NO_MEMORY ? WEIR_E_HOST_MEMORY
                                                                       : WEIR_E_NOT_OWNED);
    h->in_use -= was->size;
    h->requested -= was->requested;
    return WEIR_OK;
}

/* Sets freed->room and freed->lacked unless `freed` is NULL, publishes the reserved and used bytes, and unlocks `h`. */
static void end_operation(struct weir_heap *h, struct weir_freed *freed,
                          const struct weir_order_stream *on) {
    uint64_t reserved = weir__heap_reserve(h);

    /* If reserved memory exceeds the threshold, each free gets an event, which a trim needs to release the memory. */
    h->order.always_due =
        reserved > h->e.threshold && h->e.options->engine != WEIR_ENGINE_BFC_FIXED;
    if (freed) {
        freed->room = weir__order_room(&h->order, on);
        freed->lacked = atomic_load_explicit(&h->e.lacked, memory_order_relaxed);
    }
    atomic_store_explicit(&h->e.seen.reserved, reserved, memory_order_relaxed);
    atomic_store_explicit(&h->e.seen.in_use, h->in_use, memory_order_relaxed);
    weir__lock_give(&h->lock);
}

/* ---- frees that have completed: the stream's work before the free has ended ---- */

static void heap_observed(void *context, struct weir_order_stream *s, int is_forgotten) {
    struct weir_heap *h = context;

    for (int i = 0; i < h->kinds; i++) {
        if (is_forgotten)
            weir__placement_remove_stream(h->placement[i], &s->placed);
        else
            weir__placement_observe(h->placement[i], &s->placed);
    }
}

/* Makes a freed block usable on all streams, after all streams that use the block have completed their work. */
static void end_deferred_block(void *context, uintptr_t block) {
    struct weir_heap *h = context;
    struct weir_placement *p = weir__heap_placement(h, block);

    weir__order_set_several(&h->order);
    weir__placement_undefer(p, block);
    (void)weir__placement_free(p, block, NULL, 0, NULL);
}

int weir__heap_query_events(struct weir_heap *h, size_t most) {
    int found = weir__order_complete(&h->order, most);

    return weir__order_query_events(&h->order, most) | found;
}

void weir__heap_count_lack(struct weir_heap *h) {
    weir__order_count_lack(&h->order);
    atomic_fetch_add_explicit(&h->e.lacked, 1, memory_order_relaxed);
}

/* After a wait for the device, makes the memory of quarantined blocks usable, up to the free number `sequence`. */
static void observe_quarantine(struct weir_heap *h, uint64_t sequence) {
    size_t left = (size_t)(h->quarantined - sequence);

    h->quarantine.observed = sequence;
    for (int i = 0; i < h->kinds; i++)
        weir__placement_observe(h->placement[i], &h->quarantine);
    if (left < atomic_load_explicit(&h->e.seen.quarantined, memory_order_relaxed))
        atomic_store_explicit(&h->e.seen.quarantined, left, memory_order_relaxed);
}

void weir__heap_observe_all(struct weir_heap *h) {
    weir__order_observe_all(&h->order);
    observe_quarantine(h, h->quarantined);
}

weir_status weir__heap_wait(struct weir_heap *h, int must) {
    uint64_t sequence = h->order.sequence, quarantined = h->quarantined;
    CUresult result;

    if (!must && atomic_load_explicit(&h->e.seen.quarantined, memory_order_relaxed) == 0 &&
        (!h->order.several || h->order.streams_with_open == 0))
        return WEIR_OK;
    weir__lock_give(&h->lock);
    result = weir__device_wait(h->e.device);
    weir__lock_take(&h->lock);
    if (result != CUDA_SUCCESS)
        return weir__device_status(h->e.device, result);
    weir__order_observe_until(&h->order, sequence);
    observe_quarantine(h, quarantined);
    (void)weir__order_complete(&h->order, SIZE_MAX);
    return WEIR_OK;
}

int weir__heap_may_wait(const struct weir_heap *h, uint64_t id, uint64_t sequence) {
    return h->e.options->internal_dependencies == WEIR_SWITCH_ON &&
           weir__order_has_event(&h->order, id, sequence);
}

/* ---- freeing blocks ---- */

/* Quarantines a freed block.  No stream may reuse the block's memory before a wait for the device. */
static weir_status free_quarantined(struct weir_heap *h, CUdeviceptr block) {
    struct weir_placement_block was;
    weir_status status = free_live_block(h, block, &h->quarantine, h->quarantined + 1, &was);

    if (status != WEIR_OK)
        return status;
    weir__order_set_several(&h->order);
    h->quarantined += was.size;
    atomic_fetch_add_explicit(&h->e.seen.quarantined, was.size, memory_order_relaxed);
    return WEIR_OK;
}

/* Frees a block on the stream `on`, without a driver call. */
static weir_status free_without_event(struct weir_heap *h, CUdeviceptr block,
                                      struct weir_order_stream *on) {
    struct weir_placement_block was;
    weir_status status;

    /* Does not merge the block with memory freed before the last event, which other streams can reuse sooner. */
    if (on->net_bytes <= on->net_low && on->open == 0)
        weir__placement_set_merge_floor(weir__heap_placement(h, block), &on->placed, on->sequence);
    status = free_live_block(h, block, &on->placed, h->order.sequence + 1, &was);
    if (status == WEIR_E_HOST_MEMORY)
        return free_quarantined(h, block);
    if (status == WEIR_OK)
        (void)weir__order_freed(&h->order, on, was.size);
    return status;
}

/* Frees live blocks on the stream `id`, without driver calls.  `on` is the stream's record, or NULL. */
static weir_status free_each_block(struct weir_heap *h, struct weir_freed *freed, uint64_t id,
                                   struct weir_order_stream *on) {
    struct weir_placement_block was;
    weir_status status = WEIR_OK, one;

    for (size_t i = 0; i < freed->count; i++) {
        if (on && id != WEIR_ENGINE_UNKNOWN) {
            one = free_without_event(h, freed->block[i], on);
        } else if (id == WEIR_ENGINE_OBSERVED) {
            weir__order_set_several(&h->order);
            one = free_live_block(h, freed->block[i], NULL, 0, &was);
        } else {
            one = free_quarantined(h, freed->block[i]);
        }
        if (one != WEIR_OK)
            status = one;
    }
    if (freed->count > 0 && freed->moving)
        atomic_fetch_sub(freed->moving, 1);
    freed->count = 0;
    return status;
}

static weir_status heap_free_batch(struct weir_engine *e, struct weir_freed *freed, uint64_t id) {
    struct weir_heap *h = (struct weir_heap *)e;
    int is_stream = id != WEIR_ENGINE_OBSERVED && id != WEIR_ENGINE_UNKNOWN;
    struct weir_order_stream *on;
    weir_status status;

    weir__lock_take(&h->lock);
    on = is_stream ? weir__order_stream(&h->order, id) : NULL;
    status = free_each_block(h, freed, id, on);
    if (status == WEIR_OK && on && weir__order_is_due(&h->order, on))
        status = WEIR_ENGINE_DUE;
    end_operation(h, freed, on);
    return status;
}

/* Frees a block on a stream without an id.  Records an event now, since the handle may mean another stream later. */
static weir_status free_unknown(struct weir_heap *h, CUdeviceptr block,
                                struct weir_order_stream *on, weir_stream stream) {
    struct weir_placement *p = weir__heap_placement(h, block);
    struct weir_placement_block was;
    uint64_t sequence;
    weir_status status;

    if (weir__placement_find(p, block, &was) != WEIR_PLACEMENT_OK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = weir__order_freed_marked(&h->order, on, stream, &sequence);
    if (status == WEIR_E_STREAM || status == WEIR_E_DEVICE_LOST)
        return status;
    if (status == WEIR_OK)
        status = free_live_block(h, block, &on->placed, sequence, &was);
    if (status != WEIR_OK)
        return free_quarantined(h, block);
    weir__order_observe(&h->order, on, SIZE_MAX);
    return WEIR_OK;
}

static weir_status free_on_stream(struct weir_heap *h, CUdeviceptr block, uint64_t id,
                                  weir_stream stream) {
    struct weir_order_stream *on = weir__order_stream(&h->order, id);
    weir_status status;

    if (!on)
        return free_quarantined(h, block);
    if (id == 0)
        return free_unknown(h, block, on, stream);
    status = free_without_event(h, block, on);
    if (status == WEIR_OK)
        weir__order_maintain(&h->order, on, stream);
    return status;
}

/* Frees a block that several streams use.  No stream may reuse it before all work so far on these streams has ended. */
static weir_status defer_free(struct weir_heap *h, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    struct weir_placement *p = weir__heap_placement(h, block);
    struct weir_placement_block found;
    weir_status status;

    if (weir__placement_find(p, block, &found) != WEIR_PLACEMENT_OK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = weir__order_defer(&h->order, stream, uses, block);
    if (status == WEIR_E_HOST_MEMORY)
        return free_quarantined(h, block);
    if (status != WEIR_OK)
        return status;
    weir__placement_defer(p, block);
    h->in_use -= found.size;
    h->requested -= found.requested;
    return WEIR_OK;
}

/* Returns 1 if the block was allocated in a CUDA graph, not in the heap's memory; else 0.  The caller holds h->lock. */
static int is_node(const struct weir_heap *h, CUdeviceptr block) {
    struct weir_extent region;

    return weir__addresses_has(h->e.graphs, block) && !find_region(h, block, &region);
}

static weir_status heap_free(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses) {
    struct weir_heap *h = (struct weir_heap *)e;
    weir_status status;
    CUresult result;
    uint64_t id;
    int captured, node;

    if (weir__addresses_has(e->graphs, block)) {
        weir__lock_take(&h->lock);
        node = is_node(h, block);
        weir__lock_give(&h->lock);
        if (node)
            return weir__async_free(&h->nodes.async, block, stream, uses);
    }
    result = weir__device_stream_id(e->device, stream, &id);
    captured = weir__device_is_capture(result) && !uses;
    if (result != CUDA_SUCCESS && !captured)
        return weir__device_status(e->device, result);
    weir__lock_take(&h->lock);
    if (captured) {
        struct weir_freed one = {.block = &block, .count = 1};

        /* During a capture, the driver reports no id.  So weir uses the id in the last call with this stream handle. */
        id = weir__order_last_id(&h->order, stream);
        status = free_each_block(h, &one, id, id ? weir__order_stream(&h->order, id) : NULL);
    } else if (!uses) {
        status = free_on_stream(h, block, id, stream);
    } else {
        status = defer_free(h, block, stream, uses);
    }
    if (uses)
        (void)weir__order_complete(&h->order, DEFERRED_QUERIES);
    weir__lock_give(&h->lock);
    return status;
}

/* ---- allocating blocks ---- */

/* Places the request in idle memory.  If no chunk fits, queries up to `most` events, and retries. */
static int place_free(struct weir_heap *h, struct weir_request *r, struct weir_placement_stream *on,
                      size_t most, struct weir_placement_block *out) {
    int result = weir__placement_alloc(h->placement[r->kind], r->bytes, on, out);

    if (result == WEIR_PLACEMENT_NO_FIT && r->kind == WEIR_HEAP_SMALL &&
        r->bytes > h->backing->small && !weir__mapped_grows_small(h)) {
        r->kind = WEIR_HEAP_COMMON;
        result = weir__placement_alloc(h->placement[r->kind], r->bytes, on, out);
    }
    if (result != WEIR_PLACEMENT_NO_FIT ||
        atomic_load_explicit(&h->e.device->forbids_opportunistic, memory_order_relaxed) ||
        !weir__heap_query_events(h, most))
        return result;
    result = weir__placement_alloc(h->placement[r->kind], r->bytes, on, out);
    h->steals += result == WEIR_PLACEMENT_OK;
    return result;
}

struct waiter {
    struct weir_heap *heap;
    weir_stream stream;
};

static int may_wait(void *context, uint64_t id, uint64_t sequence) {
    const struct waiter *w = context;

    return weir__heap_may_wait(w->heap, id, sequence);
}

static int wait_for_free(void *context, uint64_t id, uint64_t sequence) {
    const struct waiter *w = context;

    return weir__order_wait(&w->heap->order, w->stream, id, sequence) == CUDA_SUCCESS;
}

/* Places the request in adjacent free chunks, and makes its stream wait for other streams' work on these chunks. */
static int place_after_waits(struct weir_heap *h, const struct weir_request *r,
                             struct weir_placement_stream *on, struct weir_placement_block *out) {
    struct waiter waiter = {h, r->stream};
    const struct weir_placement_waits waits = {may_wait, wait_for_free, &waiter};
    int result = weir__placement_alloc_wait(h->placement[r->kind], r->bytes, on, &waits, out);

    h->steals += result == WEIR_PLACEMENT_OK;
    return result;
}

/* Tries idle memory, then memory that needs waits for other streams, then new memory, since mapping takes longest. */
static weir_status place_block(struct weir_heap *h, struct weir_request *r,
                               struct weir_placement_stream *on, struct weir_placement_block *out) {
    weir_status status;
    int placed;

    r->kind = weir__heap_kind(h, r->bytes);
    placed = place_free(h, r, on, MOST_QUERIES, out);
    if (placed == WEIR_PLACEMENT_NO_FIT && h->range && weir__mapped_await(h))
        placed = place_free(h, r, on, MOST_QUERIES, out);
    if (placed == WEIR_PLACEMENT_NO_FIT) {
        weir__heap_count_lack(h);
        placed = place_free(h, r, on, SIZE_MAX, out);
    }
    if (placed == WEIR_PLACEMENT_NO_FIT)
        placed = place_after_waits(h, r, on, out);
    if (placed != WEIR_PLACEMENT_NO_FIT)
        return placed == WEIR_PLACEMENT_OK ? WEIR_OK : weir__without_driver(WEIR_E_HOST_MEMORY);
    status = h->backing->make_room(h, r);
    for (int i = 0; weir__is_failure(status) && i < h->kinds; i++)
        if (weir__placement_alloc(h->placement[i], r->bytes, on, out) == WEIR_PLACEMENT_OK)
            return WEIR_OK;
    if (status != WEIR_OK)
        return status;
    placed = place_free(h, r, on, MOST_QUERIES, out);
    if (placed == WEIR_PLACEMENT_NO_FIT)
        placed = place_after_waits(h, r, on, out);
    /* unreached: WEIR_PLACEMENT_NO_FIT, since make_room() has just added free memory for the block */
    return weir__heap_status(placed);
}

static weir_status heap_alloc(struct weir_engine *e, struct weir_request *r) {
    struct weir_heap *h = (struct weir_heap *)e;
    struct weir_placement_block placed;
    struct weir_order_stream *on;
    weir_status status = r->id ? WEIR_OK : weir__device_capture(e->device, r->stream);

    /* During another stream's capture, a request on the legacy stream fails (CUDA_ERROR_STREAM_CAPTURE_IMPLICIT). */
    if (status == WEIR_E_CAPTURE)
        return weir__driver_result == CUDA_SUCCESS ? weir__nodes_alloc(&h->nodes, r) : status;
    if (status == WEIR_OK && !r->id)
        status =
            weir__device_status(e->device, weir__device_stream_id(e->device, r->stream, &r->id));
    if (status != WEIR_OK)
        return status;
    weir__lock_take(&h->lock);
    on = weir__order_stream(&h->order, r->id);
    if (r->freed)
        (void)free_each_block(h, r->freed, r->id, on);
    if (on) {
        weir__order_maintain(&h->order, on, r->stream);
        on->active_requests++;
        status = r->at ? weir__mapped_place_at(h, r, &on->placed, &placed)
                       : place_block(h, r, &on->placed, &placed);
        on->active_requests--;
    } else {
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    if (status == WEIR_OK) {
        r->block = placed.address;
        weir__order_allocated(on, placed.size);
        h->in_use += placed.size;
        h->requested += placed.requested;
        if (h->requested > h->requested_peak)
            h->requested_peak = h->requested;
        if (h->in_use > atomic_load_explicit(&h->e.seen.most_in_use, memory_order_relaxed))
            atomic_store_explicit(&h->e.seen.most_in_use, h->in_use, memory_order_relaxed);
    }
    end_operation(h, r->freed, on);
    return status;
}

/* ---- growth of reserved memory, and trims ---- */

static void reserve_records(struct weir_heap *h) {
    for (int i = 0; i < h->kinds && i <= WEIR_HEAP_SMALL; i++)
        weir__placement_reserve_records(h->placement[i], STOCK);
}

static weir_status heap_grow(struct weir_engine *e, uint64_t target, uint64_t goal, int cause) {
    struct weir_heap *h = (struct weir_heap *)e;
    uint64_t started = e->device->driver->ticks();
    weir_status status = WEIR_OK;
    uint64_t most, wanted, reserve;
    size_t rounded, got = 0;

    if (!weir__size_round_up((size_t)target, h->backing->unit, &rounded))
        rounded = SIZE_MAX;
    weir__lock_take(&h->lock);
    if (h->range)
        (void)weir__mapped_await(h);
    most = weir__size_round_down((size_t)weir__engine_limit(e), h->backing->unit);
    wanted = weir__size_smaller(rounded, most);
    reserve = weir__heap_reserve(h);
    if (wanted > reserve) {
        status = h->backing->grow(h, wanted, goal, cause, &got);
        if (got > 0)
            weir__engine_record(e, cause, 0, wanted - reserve, got,
                                weir__device_elapsed_ns(e->device, started), weir__heap_reserve(h));
    }
    reserve = weir__heap_reserve(h);
    if (status == WEIR_OK && target > most && reserve < target)
        status = weir__without_driver(WEIR_E_LIMIT);
    if (cause == WEIR_EVENT_PREALLOC && reserve >= goal)
        reserve_records(h);
    end_operation(h, NULL, NULL);
    return status;
}

static WEIR_ASSERT_ONLY int is_heap_valid(const struct weir_heap *h) {
    struct weir_placement_figures figures;
    uint64_t total = 0;

    for (int i = 0; i < h->kinds; i++) {
        if (!weir__placement_is_valid(h->placement[i]))
            return 0;
        weir__placement_figures(h->placement[i], &figures);
        total += figures.total;
    }
    return total == h->total && h->in_use <= total && h->requested <= h->in_use;
}

static weir_status heap_shrink(struct weir_heap *h, struct weir_trim *trim) {
    uint64_t started = h->e.device->driver->ticks(), before, after;
    weir_status status = WEIR_OK;

    weir__lock_take(&h->lock);
    WEIR_ASSERT(is_heap_valid(h));
    weir__order_query_idle(&h->order, trim->id, trim->stream);
    (void)weir__heap_query_events(h, SIZE_MAX);
    if (trim->mode == WEIR_TRIM_WAIT)
        status = weir__heap_wait(h, 0);
    before = weir__heap_reserve(h);
    if (status == WEIR_OK)
        status = h->backing->shrink(h, trim);
    after = weir__heap_reserve(h);
    /* Makes weir record an event on each stream in the stream's next call, so that a later trim can release more. */
    if (trim->mode == WEIR_TRIM_COMPLETED && after > trim->keep && h->order.streams_with_open > 0)
        weir__heap_count_lack(h);
    trim->released = (size_t)weir__size_subtract(before, after);
    if (trim->released > 0) {
        weir__growth_shrunk(&h->cursor, after);
        weir__engine_record(&h->e, trim->cause, 1, weir__size_subtract(before, trim->keep),
                            trim->released, weir__device_elapsed_ns(h->e.device, started), after);
    }
    end_operation(h, NULL, NULL);
    return status;
}

static weir_status heap_trim(struct weir_engine *e, struct weir_trim *trim) {
    struct weir_heap *h = (struct weir_heap *)e;
    struct weir_order_stream *on;

    switch (trim->mode) {
    case WEIR_TRIM_MAINTAIN:
        weir__lock_take(&h->lock);
        on = weir__order_stream(&h->order, trim->id);
        if (on) /* without host memory, a later call tries again */
            weir__order_maintain(&h->order, on, trim->stream);
        break;
    case WEIR_TRIM_PUBLISH:
        if (trim->id == 0 && !weir__lock_try(&h->lock))
            return WEIR_E_BUSY;
        if (trim->id == 0)
            break;
        weir__lock_take(&h->lock);
        weir__order_publish(&h->order, trim->id, trim->stream);
        break;
    case WEIR_TRIM_COMPLETED:
    case WEIR_TRIM_WAIT:
        return heap_shrink(h, trim);
    }
    weir__lock_give(&h->lock);
    return WEIR_OK;
}

static weir_status heap_allow(struct weir_engine *e, const CUmemAccessDesc *access) {
    struct weir_heap *h = (struct weir_heap *)e;
    weir_status status;

    if (!h->range)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    weir__lock_take(&h->lock);
    status = weir__mapped_allow(h, access);
    /* Still holds the heap's lock, so that concurrent calls change mapped memory and blocks of graphs in one order. */
    if (status == WEIR_OK)
        weir__nodes_allow(&h->nodes, access);
    weir__lock_give(&h->lock);
    return status;
}

/* ---- queries about memory ---- */

/* Finds the chunk after *span in the part *kind of the address range or a lower part.  Returns 1 on success, else 0. */
static int next_chunk(const struct weir_heap *h, int *kind, struct weir_placement_span *span) {
    for (; *kind >= 0; --*kind, *span = (struct weir_placement_span){0})
        if (weir__placement_next(h->placement[*kind], span))
            return 1;
    return 0;
}

/* Queries all events, and adds idle memory to *out.  Returns the size of the largest chunk that out->id may use. */
static size_t survey_idle(struct weir_heap *h, struct weir_survey *out) {
    struct weir_placement_span span = {0};
    uint64_t end = 0, run = 0; /* the current run of adjacent idle memory */
    int kind = h->kinds - 1;
    size_t largest = 0;

    (void)weir__heap_query_events(h, SIZE_MAX);
    while (next_chunk(h, &kind, &span)) {
        if (span.unmapped || span.live)
            continue;
        run = (span.address == end ? run : 0) + span.size;
        end = span.address + span.size;
        out->largest_free_at_rest = weir__size_larger(out->largest_free_at_rest, run);
        if (span.deferred || span.stream == QUARANTINE)
            weir__survey_add_pending(out, 0, span.size);
        else if (span.sequence != 0 && (span.stream != out->id || out->id == 0))
            weir__survey_add_pending(out, span.stream, span.size);
        else
            largest = weir__size_larger(largest, span.size);
    }
    return largest;
}

static void heap_survey(struct weir_engine *e, struct weir_survey *out) {
    struct weir_heap *h = (struct weir_heap *)e;

    weir__lock_take(&h->lock);
    if (out->what & WEIR_SURVEY_IDLE)
        out->largest_free = weir__size_larger(out->largest_free, survey_idle(h, out));
    if (out->what & WEIR_SURVEY_PENDING) {
        (void)weir__heap_query_events(h, SIZE_MAX);
        out->frees.silent = h->order.several ? h->order.streams_with_open : 0;
        out->frees.waiting =
            h->order.pending_marks + atomic_load_explicit(&h->order.deferred, memory_order_relaxed);
    }
    if (out->what & WEIR_SURVEY_LARGEST) {
        out->largest = survey_idle(h, out);
        out->largest = weir__size_larger(out->largest, h->backing->largest(h, out));
    }
    weir__lock_give(&h->lock);
}

/* Reports the live block that contains an address.  Takes linear time unless a block starts at the address. */
static int visit_block_at(struct weir_heap *h, const struct weir_visit *visit) {
    struct weir_placement_block found;
    int result =
        weir__placement_find(weir__heap_placement(h, visit->address), visit->address, &found);

    if ((result == WEIR_PLACEMENT_OK || result == WEIR_PLACEMENT_INTERIOR) &&
        visit->address - found.address < found.requested)
        return weir__visit_show(visit, found.address, found.requested);
    return is_node(h, visit->address) ? weir__visit_show(visit, visit->address, 0) : 0;
}

static int visit_regions(const struct weir_placement *p, const struct weir_visit *visit) {
    struct weir_extent r = {0};
    int count = 0;

    while (weir__placement_region_above(p, r.base + r.bytes, &r.base, &r.bytes))
        count += weir__visit_show(visit, r.base, r.bytes);
    return count;
}

static int heap_visit(struct weir_engine *e, const struct weir_visit *visit) {
    struct weir_heap *h = (struct weir_heap *)e;
    struct weir_placement_span span = {0};
    struct weir_extent region = {0};
    int count = 0, kind = h->kinds - 1;

    weir__lock_take(&h->lock);
    switch (visit->what) {
    case WEIR_VISIT_UNITS:
        count = h->range ? weir__mapped_units(h, visit) : visit_regions(h->placement[0], visit);
        break;
    case WEIR_VISIT_BLOCKS:
        while (next_chunk(h, &kind, &span))
            if (span.live)
                count += weir__visit_show(visit, span.address, span.requested);
        break;
    case WEIR_VISIT_BLOCK_AT:
        count = visit_block_at(h, visit);
        break;
    case WEIR_VISIT_REGION_AT:
        if (find_region(h, visit->address, &region))
            count = weir__visit_show(visit, region.base, region.bytes);
        break;
    case WEIR_VISIT_AT_ADDRESS:
        if (h->range)
            count = visit_regions(h->placement[WEIR_HEAP_AT_ADDRESS], visit);
        break;
    }
    weir__lock_give(&h->lock);
    return count;
}

static void heap_figures(struct weir_engine *e, weir_statistics *out) {
    struct weir_heap *h = (struct weir_heap *)e;
    struct weir_placement_figures figures;

    weir__lock_take(&h->lock);
    out->extent = out->host_bytes = 0;
    for (int i = 0; i < h->kinds; i++) {
        weir__placement_figures(h->placement[i], &figures);
        /* Gaps between blocks of requests that name their address do not count as fragmentation. */
        out->extent += i == WEIR_HEAP_AT_ADDRESS ? figures.total : figures.extent;
        out->host_bytes += figures.host_bytes;
    }
    out->requested = h->requested;
    out->requested_peak = h->requested_peak;
    out->in_use = h->in_use;
    out->in_use_peak = atomic_load_explicit(&e->seen.most_in_use, memory_order_relaxed);
    out->steals = h->steals;
    out->event_records = h->order.event_records;
    out->reserved = weir__heap_reserve(h);
    out->reserved_peak = h->reserved_peak;
    weir__lock_give(&h->lock);
}

/* ---- opening and closing a heap ---- */

void weir__heap_drop(struct weir_heap *h) {
    weir__order_close(&h->order);
    for (int i = 0; i < h->kinds; i++) {
        if (h->placement[i])
            weir__placement_remove_stream(h->placement[i], &h->quarantine);
        weir__placement_destroy(h->placement[i]);
    }
    weir__nodes_close(&h->nodes);
    free(h);
}

static void heap_close(struct weir_engine *e) {
    struct weir_heap *h = (struct weir_heap *)e;

    WEIR_ASSERT(is_heap_valid(h));
    h->backing->close(h);
    weir__heap_drop(h);
}

static const struct weir_engine_ops heap_ops = {
    .alloc = heap_alloc,
    .free = heap_free,
    .free_batch = heap_free_batch,
    .grow = heap_grow,
    .trim = heap_trim,
    .allow = heap_allow,
    .figures = heap_figures,
    .survey = heap_survey,
    .visit = heap_visit,
    .close = heap_close,
};

weir_status weir__heap_open(const struct weir_engine *setup, const struct weir_backing *backing,
                            struct weir_heap **out) {
    struct weir_placement_rule rule = backing->rule;
    struct weir_heap *h = calloc(1, sizeof *h);

    if (!h)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    h->e = *setup;
    h->e.ops = &heap_ops;
    h->e.traits |= backing->traits | WEIR_ENGINE_SUBALLOCATES;
    h->e.step_bytes = backing->step_bytes;
    h->backing = backing;
    h->kinds = backing->small > 0 ? WEIR_HEAP_KINDS : 1;
    h->nodes.async.device = setup->device;
    h->nodes.access = setup->device->access;
    weir__order_open(&h->order, setup->device, heap_observed, end_deferred_block, h);
    h->quarantine = (struct weir_placement_stream){.id = QUARANTINE, .is_fallback = 1};
    /* If streams may wait for each other, others can use tagged chunks, too, so a request need not save clean ones. */
    if (setup->options->internal_dependencies == WEIR_SWITCH_ON)
        rule.prefer_tagged = 0;
    for (int i = 0; i < h->kinds; i++) {
        rule.index = (unsigned)i;
        if (weir__placement_create(&rule, &h->placement[i]) != WEIR_PLACEMENT_OK) {
            weir__heap_drop(h);
            return weir__without_driver(WEIR_E_HOST_MEMORY);
        }
    }
    reserve_records(h);
    *out = h;
    return WEIR_OK;
}
