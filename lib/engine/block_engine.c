/* SPDX-License-Identifier: MIT */
/* block_engine.c: the engine that cuts blocks from memory that a backing takes.
 *
 * stream_suballoc.c cuts the blocks and keeps stream order.  The backings are backing_regions.c (regions at any
 * address, as in TensorFlow's and XLA's BFC allocator) and backing_mapped.c (one range of addresses).
 *
 * A trim waits for the device if no event covers some of the open frees, or if the backing has idle memory whose last
 * use has not completed.  It releases the lock meanwhile, so that other calls go on.  Only backing_regions.c waits
 * under the lock, in cuMemFree.  A trim of completed memory alone (DONE) never waits.
 *
 * A request on a captured stream becomes a memory node (graph_blocks.h).
 *
 * Locks: one lock guards everything here, and is taken once for each operation.  Driver calls for events, queries,
 * growth and moves run under it.  The counters' lock and the lock of the nodes are taken under it; under the latter a
 * pool ends when access changes, which is rare.  A backing that grows beside requests releases the lock meanwhile.
 *
 * This file must not know settings' names, which backing it has or how placement orders its chunks.
 */
#include <stdlib.h>

#include "base/result.h"
#include "base/size.h"
#include "engine/block_engine.h"

static void blocks_close(struct weir_engine *e) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;

    a->backing->close(a);
    weir__suballoc_close(&a->blocks);
    weir__nodes_close(&a->nodes);
    free(a);
}

/* Returns 1 if memory is reserved above a release threshold, so that each free should be covered by an event, else 0.
 * The size of bfc-fixed is fixed. */
static int is_above_threshold(const struct weir_block_engine *a, uint64_t reserved) {
    return a->e.options->engine != WEIR_ENGINE_BFC_FIXED && reserved > a->e.threshold;
}

/* Publishes the figures that are read without the lock. */
static void note_seen(struct weir_block_engine *a) {
    uint64_t reserved = weir__blocks_reserve(a);

    a->blocks.order.covers_all = is_above_threshold(a, reserved);
    atomic_store_explicit(&a->e.seen.reserved, reserved, memory_order_relaxed);
    atomic_store_explicit(&a->e.seen.in_use, a->blocks.in_use, memory_order_relaxed);
}

/* Places the request in free memory, or in memory that another thread brings, without a query of all events. */
static int place_at_once(struct weir_block_engine *a, struct weir_request *r,
                         struct weir_placement_block *out) {
    const struct weir_backing *backing = a->backing;
    int placed;

    placed = weir__suballoc_take(&a->blocks, r->bytes, r->id, out);
    if (placed == WEIR_PLACEMENT_NO_FIT && backing->await && backing->await(a, r))
        placed = weir__suballoc_take(&a->blocks, r->bytes, r->id, out);
    if (placed == WEIR_PLACEMENT_NO_FIT)
        weir__suballoc_dry(&a->blocks);
    return placed;
}

/* Places the request in a region of any kind, if the engine cannot get more memory.  Returns `otherwise` if none
 * fits. */
static weir_status place_anywhere(struct weir_block_engine *a, struct weir_request *r,
                                  weir_status otherwise, struct weir_placement_block *out) {
    return weir__suballoc_take_anywhere(&a->blocks, r->bytes, r->id, out) == WEIR_PLACEMENT_OK
               ? WEIR_OK
               : otherwise;
}

/* Makes room by growth or moves of the backing, and places the request there. */
static weir_status make_room(struct weir_block_engine *a, struct weir_request *r, uint64_t reserve,
                             struct weir_placement_block *out) {
    weir_status status;
    int placed;

    status = a->backing->make_room(a, r, reserve);
    if (weir__is_failure(status))
        return place_anywhere(a, r, status, out);
    if (status != WEIR_OK)
        return status;
    placed = weir__suballoc_take(&a->blocks, r->bytes, r->id, out);
    if (placed == WEIR_PLACEMENT_NO_FIT)
        placed = weir__suballoc_take_behind(&a->blocks, r->bytes, r->id, r->stream, out);
    /* unreached: another result than OK and NO_MEMORY, since there is room now */
    return weir__blocks_placed(placed);
}

static weir_status place(struct weir_block_engine *a, struct weir_request *r,
                         struct weir_placement_block *out) {
    int placed = place_at_once(a, r, out);

    if (placed != WEIR_PLACEMENT_NO_FIT)
        return weir__blocks_placed(placed);
    placed = weir__suballoc_take_at_last(&a->blocks, r->bytes, r->id, out);
    if (placed == WEIR_PLACEMENT_NO_FIT)
        placed = weir__suballoc_take_behind(&a->blocks, r->bytes, r->id, r->stream, out);
    return placed == WEIR_PLACEMENT_NO_FIT ? make_room(a, r, weir__blocks_reserve(a), out)
                                           : weir__blocks_placed(placed);
}

/* Serves a request on a captured stream, or on the legacy stream beside a capture, where queries fail (error 906). */
static weir_status alloc_node(struct weir_block_engine *a, struct weir_request *r) {
    return weir__driver_result == CUDA_SUCCESS ? weir__nodes_alloc(&a->nodes, r) : WEIR_E_CAPTURE;
}

static weir_status blocks_alloc(struct weir_engine *e, struct weir_request *r) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;
    struct weir_placement_block placed;
    weir_status status = r->id ? WEIR_OK : weir__device_capture(e->device, r->stream);
    CUresult result;

    if (status == WEIR_E_CAPTURE)
        return alloc_node(a, r);
    if (status != WEIR_OK)
        return status;
    result = r->id ? CUDA_SUCCESS : weir__device_stream_id(e->device, r->stream, &r->id);
    if (result != CUDA_SUCCESS)
        return weir__device_status(e->device, result);
    weir__lock_take(&a->lock);
    if (r->freed)
        (void)weir__suballoc_give_all(&a->blocks, r->freed, r->id);
    status = weir__suballoc_visit(&a->blocks, r->id, r->stream);
    if (status == WEIR_OK)
        status = r->at ? a->backing->place(a, r, &placed) : place(a, r, &placed);
    if (r->freed)
        weir__suballoc_tell_room(&a->blocks, r->freed, r->id);
    note_seen(a);
    weir__lock_give(&a->lock);
    if (status == WEIR_OK)
        r->block = placed.address;
    return status;
}

static weir_status blocks_give(struct weir_engine *e, struct weir_freed *freed, uint64_t id) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;
    weir_status status;

    weir__lock_take(&a->lock);
    status = weir__suballoc_give_all(&a->blocks, freed, id);
    weir__suballoc_tell_room(&a->blocks, freed, id);
    note_seen(a);
    weir__lock_give(&a->lock);
    return status;
}

/* Returns 1 if the block lies in no region and is a graph's, else 0. */
static int is_node(struct weir_block_engine *a, CUdeviceptr block) {
    int ours;

    if (!weir__graphs_has(a->e.graphs, block))
        return 0;
    weir__lock_take(&a->lock);
    ours = weir__suballoc_holds(&a->blocks, block);
    weir__lock_give(&a->lock);
    return !ours;
}

static weir_status blocks_free(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                               struct weir_use_list *uses) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;
    weir_status status;
    CUresult result;
    uint64_t id;

    if (is_node(a, block))
        return weir__nodes_free(&a->nodes, block, stream, uses);
    result = weir__device_stream_id(a->e.device, stream, &id);
    if (weir__device_is_capture(result) && !uses) {
        weir__lock_take(&a->lock);
        status = weir__suballoc_give_captured(&a->blocks, block, stream);
        weir__lock_give(&a->lock);
        return status == WEIR_ENGINE_DUE ? WEIR_OK : status;
    }
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    weir__lock_take(&a->lock);
    status = weir__suballoc_give(&a->blocks, block, id, stream, uses);
    weir__lock_give(&a->lock);
    return status;
}

/* Returns the bytes of device memory for whose blocks the engine allocates host tables in advance: its reserved memory,
 * and the ranges where the backing says that memory will lie first. */
static size_t stock_of(const struct weir_block_engine *a) {
    struct weir_extent next[WEIR_BLOCKS_FORESEEN];
    size_t bytes = (size_t)weir__blocks_reserve(a), count = 0;

    if (a->backing->foresee) {
        bytes = (size_t)a->blocks.total;
        count = a->backing->foresee(a, next);
    }
    while (count > 0)
        bytes += next[--count].bytes;
    return bytes;
}

static weir_status blocks_grow(struct weir_engine *e, uint64_t target, uint64_t goal, int cause) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;
    uint64_t started = a->e.device->driver->ticks();
    weir_status status = WEIR_OK;
    uint64_t most, wanted, reserve;
    size_t rounded, got = 0;

    if (!(e->traits & WEIR_ENGINE_TAKES))
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    if (!weir__size_round_up((size_t)target, a->backing->granularity, &rounded))
        rounded = SIZE_MAX;
    weir__lock_take(&a->lock);
    if (a->backing->await)
        (void)a->backing->await(a, NULL);
    most = weir__size_round_down((size_t)weir__engine_limit(&a->e), a->backing->granularity);
    wanted = weir__size_smaller(rounded, most);
    reserve = weir__blocks_reserve(a);
    if (wanted > reserve) {
        status = a->backing->grow(a, wanted, goal, cause, &got);
        if (got > 0)
            weir__engine_note(&a->e, cause, 0, wanted - reserve, got,
                              weir__device_since(a->e.device, started), weir__blocks_reserve(a));
    }
    reserve = weir__blocks_reserve(a);
    if (status == WEIR_OK && target > most && reserve < target)
        status = weir__without_driver(WEIR_E_LIMIT);
    if (cause == WEIR_EVENT_PREALLOC && reserve >= goal)
        weir__suballoc_stock(&a->blocks, stock_of(a));
    note_seen(a);
    weir__lock_give(&a->lock);
    return status;
}

/* Ensures that all frees so far are observed or have events.  The caller holds the lock. */
static weir_status observe_silent(struct weir_block_engine *a) {
    weir__suballoc_look_around(&a->blocks);
    return weir__device_status(a->e.device, weir__suballoc_wait_beside(&a->blocks, &a->lock, 0));
}

/* Gives idle, observed memory back, after a query of the caller's stream.  The caller holds the lock. */
static weir_status give_at_once(struct weir_block_engine *a, struct weir_trim *trim) {
    weir__suballoc_ask(&a->blocks, trim->id, trim->stream);
    weir__suballoc_look_around(&a->blocks);
    /* each stream records its frees at its next call, which observes them */
    weir__suballoc_dry(&a->blocks);
    return a->backing->shed(a, trim);
}

/* Gives idle, observed memory back.  Each stream records its open frees at its next call.  The caller holds the
 * lock. */
static weir_status give_done(struct weir_block_engine *a, struct weir_trim *trim) {
    weir_status status;

    weir__suballoc_look_around(&a->blocks);
    status = a->backing->shed(a, trim);
    if (weir__blocks_reserve(a) > trim->keep && a->blocks.order.silent_streams > 0)
        weir__suballoc_dry(&a->blocks);
    return status;
}

static weir_status give_back(struct weir_block_engine *a, struct weir_trim *trim) {
    uint64_t started = a->e.device->driver->ticks(), before, after;
    weir_status status = WEIR_OK;

    if (trim->mode == WEIR_TRIM_AT_ONCE && trim->id == 0 &&
        weir__device_stream_id(a->e.device, trim->stream, &trim->id) != CUDA_SUCCESS)
        return WEIR_OK;
    weir__lock_take(&a->lock);
    if (trim->mode == WEIR_TRIM_FULLY)
        status = observe_silent(a);
    before = weir__blocks_reserve(a);
    if (status == WEIR_OK && trim->mode == WEIR_TRIM_FULLY)
        status = a->backing->shrink(a, trim);
    else if (status == WEIR_OK)
        status = trim->mode == WEIR_TRIM_DONE ? give_done(a, trim) : give_at_once(a, trim);
    after = weir__blocks_reserve(a);
    trim->released = (size_t)weir__size_less(before, after);
    if (trim->released > 0) {
        weir__growth_shrunk(&a->cursor, after);
        weir__engine_note(&a->e, trim->cause, 1, weir__size_less(before, trim->keep),
                          trim->released, weir__device_since(a->e.device, started), after);
    }
    note_seen(a);
    weir__lock_give(&a->lock);
    return status;
}

static weir_status blocks_trim(struct weir_engine *e, struct weir_trim *trim) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;

    switch (trim->mode) {
    case WEIR_TRIM_MAINTAIN:
        weir__lock_take(&a->lock);
        /* on an error the next call records */
        (void)weir__suballoc_visit(&a->blocks, trim->id, trim->stream);
        weir__lock_give(&a->lock);
        return WEIR_OK;
    case WEIR_TRIM_ASK:
        return weir__order_cover(&a->blocks.order, &a->lock, trim->id, trim->stream);
    case WEIR_TRIM_AT_ONCE:
    case WEIR_TRIM_DONE:
    case WEIR_TRIM_FULLY:
        return give_back(a, trim);
    default: /* a failure has nothing to undo */
        return WEIR_OK;
    }
}

static void blocks_survey(struct weir_engine *e, struct weir_survey *out) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;

    weir__lock_take(&a->lock);
    weir__suballoc_survey_for(&a->blocks, out);
    if (out->what & WEIR_SURVEY_LARGEST) /* the largest free piece, or new memory */
        out->largest = weir__size_larger(weir__suballoc_largest(&a->blocks, out->id),
                                         a->backing->largest(a, out));
    if (a->backing->survey)
        a->backing->survey(a, out);
    weir__lock_give(&a->lock);
}

/* Shows the memory of all placements.  Adjacent chunks are one extent. */
static int show_extents(struct weir_block_engine *a, const struct weir_visit *visit) {
    struct weir_extent next[WEIR_BLOCKS_FORESEEN], last = {0};
    size_t foreseen = a->backing->foresee ? a->backing->foresee(a, next) : 0;
    int count = 0;

    for (int kind = WEIR_SUBALLOC_KINDS - 1; kind >= 0; kind--) {
        int large = kind != WEIR_SUBALLOC_SMALL && a->blocks.placement[WEIR_SUBALLOC_SMALL];
        struct weir_placement_span span = {0};

        while (a->blocks.placement[kind] &&
               weir__placement_next(a->blocks.placement[kind], &span)) {
            if (span.unmapped)
                continue;
            if (last.base + last.bytes == span.address && last.large == large) {
                last.bytes += span.size;
                continue;
            }
            if (last.bytes > 0)
                count += weir__engine_show(visit, &last, 1);
            last = (struct weir_extent){.base = span.address, .bytes = span.size, .large = large};
        }
    }
    if (last.bytes > 0)
        count += weir__engine_show(visit, &last, 1);
    return count + weir__engine_show(visit, next, foreseen);
}

/* Shows the live block around an address.  A block of a graph counts as live if its address is noted. */
static int show_block_at(struct weir_block_engine *a, const struct weir_visit *visit) {
    int count;

    weir__lock_take(&a->lock);
    count = weir__suballoc_show(&a->blocks, visit);
    weir__lock_give(&a->lock);
    return count > 0 || !is_node(a, visit->address)
               ? count
               : weir__engine_show(visit, &(struct weir_extent){.base = visit->address}, 1);
}

static int blocks_visit(struct weir_engine *e, const struct weir_visit *visit) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;
    int count;

    if (visit->what == WEIR_VISIT_BLOCK_AT)
        return show_block_at(a, visit);
    weir__lock_take(&a->lock);
    if (visit->what == WEIR_VISIT_EXTENTS)
        count = show_extents(a, visit);
    else if (visit->what == WEIR_VISIT_WHOLES && a->backing->wholes)
        count = a->backing->wholes(a, visit);
    else
        count = weir__suballoc_show(&a->blocks, visit);
    weir__lock_give(&a->lock);
    return count;
}

static weir_status blocks_allow(struct weir_engine *e, const CUmemAccessDesc *access) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;
    weir_status status;

    if (!a->backing->allow)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    weir__lock_take(&a->lock);
    status = a->backing->allow(a, access);
    if (status == WEIR_OK) /* the lock keeps the order of changes equal in both */
        weir__nodes_allow(&a->nodes, access);
    weir__lock_give(&a->lock);
    return status;
}

static void blocks_figures(struct weir_engine *e, weir_statistics *out) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;

    weir__lock_take(&a->lock);
    weir__suballoc_figures(&a->blocks, out);
    out->reserved = weir__blocks_reserve(a);
    out->reserved_peak = a->reserved_peak;
    weir__lock_give(&a->lock);
}

static const struct weir_engine_ops blocks_ops = {
    .alloc = blocks_alloc,
    .free = blocks_free,
    .give = blocks_give,
    .grow = blocks_grow,
    .trim = blocks_trim,
    .allow = blocks_allow,
    .figures = blocks_figures,
    .survey = blocks_survey,
    .visit = blocks_visit,
    .close = blocks_close,
};

weir_status weir__blocks_open(const struct weir_engine *setup, struct weir_engine **out) {
    const struct weir_backing *backing = setup->options->engine == WEIR_ENGINE_MAPPED
                                             ? &weir__backing_mapped
                                             : &weir__backing_regions;
    struct weir_block_engine *a = calloc(1, sizeof *a);
    struct weir_suballoc_rule rule = backing->rule;
    weir_status status;

    if (!a)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    a->e = *setup;
    a->e.ops = &blocks_ops;
    a->e.traits |= backing->traits | WEIR_ENGINE_TRIM_WAITS | WEIR_ENGINE_CUTS;
    a->e.step_bytes = setup->options->engine == WEIR_ENGINE_BFC_FIXED ? 0 : backing->step_bytes;
    a->backing = backing;
    weir__nodes_open(&a->nodes, setup->device);
    /* A stream that may wait for other streams can use their memory, so the tightest fit wastes least. */
    if (setup->options->internal_dependencies == WEIR_SWITCH_ON)
        rule.placement.own_first = 0;
    status = weir__suballoc_open(&a->blocks, &a->e, &rule);
    if (status != WEIR_OK)
        goto free_engine;
    status = backing->open ? backing->open(a, setup) : WEIR_OK;
    if (status != WEIR_OK)
        goto close_blocks;
    weir__suballoc_stock(&a->blocks, stock_of(a));
    *out = &a->e;
    return WEIR_OK;
close_blocks:
    weir__suballoc_close(&a->blocks);
free_engine:
    weir__nodes_close(&a->nodes);
    free(a);
    return status;
}
