/* SPDX-License-Identifier: MIT */
/* arena.c: blocks cut from memory of its own, by best fit as TensorFlow's and XLA's BFC does.
 *
 * stream_suballoc.c cuts blocks out of memory and keeps stream order; a backing takes the memory from the device
 * and gives it back: backing_regions.c in regions that lie anywhere, backing_mapped.c in one range.
 *
 * A trim waits for the device if no event covers some of the open frees.  A trim of completed memory alone (DONE)
 * never waits.
 *
 * What is requested on a captured stream is the graph's, and the driver's (graph_blocks.h).
 *
 * Locks: one lock over everything here; under it driver calls for events, queries, growth, moves and waits
 * for the device, and the locks of the books and of nodes (under which a pool ends, where access changes, which is
 * rare).  Taken once an operation; a backing that grows beside requests gives it meanwhile.
 *
 * Must not know: other engines, settings' names, how placement orders its chunks.
 */
#include <stdlib.h>

#include "engine/arena.h"
#include "base/result.h"
#include "base/size.h"
#include "driver/nvtx.h"

static void arena_close(struct weir_engine *e) {
    struct weir_arena *a = (struct weir_arena *)e;

    a->backing->close(a);
    weir__suballoc_close(&a->blocks);
    weir__nodes_close(&a->nodes);
    free(a);
}

/* What another thread's growth is bringing may be enough: 1 if it has come, or did not. */
static int wait_for_growth(struct weir_arena *a) {
    return a->backing->await && a->backing->await(a);
}

static weir_status place(struct weir_arena *a, struct weir_request *r,
                         struct weir_placement_block *out) {
    int is_dry = weir__suballoc_is_dry(&a->blocks, r), result = WEIR_PLACEMENT_NO_FIT;
    weir_status status;

    if (!is_dry)
        result = weir__suballoc_take(&a->blocks, r->bytes, r->id, SIZE_MAX, out);
    if (result == WEIR_PLACEMENT_NO_FIT && wait_for_growth(a))
        result = weir__suballoc_take(&a->blocks, r->bytes, r->id, SIZE_MAX, out);
    if (result == WEIR_PLACEMENT_NO_FIT) {
        if (!is_dry)
            weir__suballoc_dry(&a->blocks, r);
        if (!(r->flags & WEIR_REQUEST_MAY_GROW))
            return WEIR_ENGINE_DRY;
        result = weir__suballoc_take_at_last(&a->blocks, r->bytes, r->id, SIZE_MAX, a->blocks.total,
                                             out);
    }
    if (result == WEIR_PLACEMENT_NO_FIT)
        result = weir__suballoc_take_behind(&a->blocks, r->bytes, r->id, r->stream, out);
    if (result == WEIR_PLACEMENT_NO_FIT) {
        weir__nvtx_push("make room", r->bytes);
        status = a->backing->make_room(a, r);
        weir__nvtx_pop();
        if (weir__is_refusal(status) &&
            weir__suballoc_take_anywhere(&a->blocks, r->bytes, r->id, out) == WEIR_PLACEMENT_OK)
            return WEIR_OK;
        if (status != WEIR_OK)
            return status;
        result = weir__suballoc_take(&a->blocks, r->bytes, r->id, SIZE_MAX, out);
        if (result == WEIR_PLACEMENT_NO_FIT)
            result = weir__suballoc_take_behind(&a->blocks, r->bytes, r->id, r->stream, out);
    }
    if (result == WEIR_PLACEMENT_NO_MEMORY)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    /* unreached: another result, since there is room now */
    return result == WEIR_PLACEMENT_OK ? WEIR_OK : weir__without_driver(WEIR_E_NO_MEMORY);
}

/* Of a captured stream, or of the legacy stream beside a capture (906), where nothing may be asked. */
static weir_status alloc_node(struct weir_arena *a, struct weir_request *r) {
    return weir__driver_result == CUDA_SUCCESS ? weir__nodes_alloc(&a->nodes, r) : WEIR_E_CAPTURE;
}

static weir_status arena_alloc(struct weir_engine *e, struct weir_request *r) {
    struct weir_arena *a = (struct weir_arena *)e;
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
    status = weir__suballoc_visit(&a->blocks, r->id, r->stream);
    if (status == WEIR_OK)
        status = place(a, r, &placed);
    atomic_store_explicit(&e->seen.reserve, weir__arena_reserve(a), memory_order_relaxed);
    atomic_store_explicit(&e->seen.in_use, a->blocks.in_use, memory_order_relaxed);
    weir__lock_give(&a->lock);
    if (status == WEIR_OK)
        r->block = placed.address;
    return status;
}

static weir_status arena_give(struct weir_engine *e, CUdeviceptr block, uint64_t id) {
    struct weir_arena *a = (struct weir_arena *)e;
    weir_status status;

    weir__lock_take(&a->lock);
    status = weir__suballoc_give_silently(&a->blocks, block, id);
    weir__lock_give(&a->lock);
    return status;
}

/* Of a graph.  What the arena holds by now is none. */
static int is_node(struct weir_arena *a, CUdeviceptr block) {
    int ours;

    if (!weir__graphs_has(a->e.graphs, block))
        return 0;
    weir__lock_take(&a->lock);
    ours = weir__suballoc_holds(&a->blocks, block, NULL);
    weir__lock_give(&a->lock);
    return !ours;
}

static weir_status arena_free(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    struct weir_arena *a = (struct weir_arena *)e;
    weir_status status;
    CUresult result;
    uint64_t id;

    if (is_node(a, block))
        return weir__nodes_free(&a->nodes, block, stream, uses);
    result = weir__device_stream_id(a->e.device, stream, &id);
    if (weir__device_is_capture(result) && !uses)
        return arena_give(e, block, WEIR_ENGINE_UNKNOWN);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    weir__lock_take(&a->lock);
    status = weir__suballoc_give(&a->blocks, block, id, stream, uses);
    weir__lock_give(&a->lock);
    return status;
}

/* Where blocks will lie, with what is foreseen, and how much that is. */
static size_t stock_of(const struct weir_arena *a) {
    struct weir_extent next[WEIR_ARENA_FORESEEN];
    size_t bytes = (size_t)a->blocks.total, count = 0;

    if (a->backing->foresee)
        count = a->backing->foresee(a, next);
    while (count > 0)
        bytes += next[--count].bytes;
    return bytes;
}

static weir_status arena_grow(struct weir_engine *e, uint64_t target, uint64_t goal, int cause) {
    struct weir_arena *a = (struct weir_arena *)e;
    uint64_t started = a->e.device->driver->ticks();
    weir_status status = WEIR_OK;
    size_t rounded, bytes, got = 0;
    uint64_t most, wanted;

    if (!weir__size_round_up((size_t)target, a->backing->granularity, &rounded))
        rounded = SIZE_MAX;
    weir__lock_take(&a->lock);
    (void)wait_for_growth(a);
    most = weir__size_round_down((size_t)weir__engine_limit(&a->e), a->backing->granularity);
    wanted = weir__size_smaller(rounded, most);
    if (wanted > weir__arena_reserve(a)) {
        bytes = (size_t)(wanted - weir__arena_reserve(a));
        weir__nvtx_push("grow", bytes);
        status = a->backing->grow(a, wanted, goal, cause, &got);
        weir__nvtx_pop();
        if (got > 0)
            weir__engine_note(&a->e, cause, 0, bytes, got, weir__device_since(a->e.device, started),
                              weir__arena_reserve(a));
    }
    if (status == WEIR_OK && target > most && weir__arena_reserve(a) < target)
        status = weir__without_driver(WEIR_E_LIMIT);
    if (weir__engine_is_prealloc(cause) && weir__arena_reserve(a) >= goal)
        weir__suballoc_stock(&a->blocks, WEIR_SUBALLOC_BASE, stock_of(a));
    weir__lock_give(&a->lock);
    return status;
}

/* The caller holds the lock. */
static weir_status give_all_idle(struct weir_arena *a, size_t keep) {
    weir_status status;

    weir__suballoc_look_around(&a->blocks);
    status = weir__device_status(a->e.device, weir__suballoc_wait(&a->blocks, 0));
    if (status != WEIR_OK)
        return status;
    weir__nvtx_push("give back", weir__size_less(weir__arena_reserve(a), keep));
    status = a->backing->shrink(a, keep);
    weir__nvtx_pop();
    return status;
}

/* Likewise. */
static void give_at_once(struct weir_arena *a, const struct weir_trim *trim) {
    weir__suballoc_ask(&a->blocks, trim->id, trim->stream);
    weir__suballoc_look_around(&a->blocks);
    weir__order_dry(&a->blocks.order); /* streams record what they free, to be seen next time */
    a->backing->shed(a, trim->keep);
}

/* Likewise, for DONE.  A stream that was not asked records its frees at its next call. */
static void give_done(struct weir_arena *a, size_t keep) {
    weir__suballoc_look_around(&a->blocks);
    a->backing->shed(a, keep);
    if (weir__arena_reserve(a) > keep && a->blocks.order.silent_streams > 0)
        weir__order_dry(&a->blocks.order);
}

static weir_status give_back(struct weir_arena *a, struct weir_trim *trim) {
    uint64_t started = a->e.device->driver->ticks(), before;
    weir_status status = WEIR_OK;

    if (trim->mode == WEIR_TRIM_AT_ONCE && trim->id == 0 &&
        weir__device_stream_id(a->e.device, trim->stream, &trim->id) != CUDA_SUCCESS)
        return WEIR_OK;
    weir__lock_take(&a->lock);
    before = weir__arena_reserve(a);
    if (trim->mode == WEIR_TRIM_FULLY)
        status = give_all_idle(a, trim->keep);
    else if (trim->mode == WEIR_TRIM_DONE)
        give_done(a, trim->keep);
    else
        give_at_once(a, trim);
    trim->released = (size_t)weir__size_less(before, weir__arena_reserve(a));
    if (trim->released > 0) {
        weir__growth_shrunk(&a->cursor, weir__arena_reserve(a));
        weir__engine_note(&a->e, trim->cause, 1, weir__size_less(before, trim->keep),
                          trim->released, weir__device_since(a->e.device, started),
                          weir__arena_reserve(a));
    }
    weir__lock_give(&a->lock);
    return status;
}

/* A refusal leaves nothing behind here. */
static weir_status arena_trim(struct weir_engine *e, struct weir_trim *trim) {
    struct weir_arena *a = (struct weir_arena *)e;

    switch (trim->mode) {
    case WEIR_TRIM_TEND:
        weir__lock_take(&a->lock);
        (void)weir__suballoc_visit(&a->blocks, trim->id, trim->stream); /* else at the next call */
        weir__lock_give(&a->lock);
        return WEIR_OK;
    case WEIR_TRIM_ASK:
        return weir__order_cover(&a->blocks.order, &a->lock, trim->id, trim->stream);
    case WEIR_TRIM_AT_ONCE:
    case WEIR_TRIM_DONE:
        return e->traits & WEIR_ENGINE_SHEDS ? give_back(a, trim) : WEIR_OK;
    case WEIR_TRIM_FULLY:
        return give_back(a, trim);
    default:
        return WEIR_OK;
    }
}

static void arena_survey(struct weir_engine *e, struct weir_survey *out) {
    struct weir_arena *a = (struct weir_arena *)e;

    weir__lock_take(&a->lock);
    weir__suballoc_survey_for(&a->blocks, out);
    if (out->what & WEIR_SURVEY_LARGEST) /* a free piece, or new memory */
        out->largest = weir__size_larger(weir__suballoc_largest(&a->blocks, out->id),
                                         a->backing->largest(a, out->id));
    if ((out->what & WEIR_SURVEY_PIECES) && a->backing->pieces)
        a->backing->pieces(a, &out->piece.largest, &out->piece.last);
    weir__lock_give(&a->lock);
}

struct extents {
    const struct weir_visit *visit;
    struct weir_extent last; /* 0 bytes: there is none yet */
    int count, large;
};

/* One more, which may go on where the last one ends. */
static void add_extent(struct extents *x, struct weir_extent next) {
    if (x->last.base + x->last.bytes == next.base && x->last.large == next.large) {
        x->last.bytes += next.bytes;
        return;
    }
    if (x->last.bytes > 0)
        x->count += weir__engine_show(x->visit, &x->last, 1);
    x->last = next;
}

static int visit_memory(void *context, const struct weir_placement_span *span) {
    struct extents *x = context;

    if (!span->hole)
        add_extent(
            x, (struct weir_extent){.base = span->address, .bytes = span->size, .large = x->large});
    return 0;
}

static int show_extents(struct weir_arena *a, const struct weir_visit *visit) {
    struct weir_extent next[WEIR_ARENA_FORESEEN];
    size_t foreseen = a->backing->foresee ? a->backing->foresee(a, next) : 0;
    struct extents x = {.visit = visit};

    for (int kind = WEIR_SUBALLOC_KINDS - 1; kind >= 0; kind--) {
        x.large = kind != WEIR_SUBALLOC_SMALL && a->blocks.placement[WEIR_SUBALLOC_SMALL];
        if (a->blocks.placement[kind])
            weir__placement_walk(a->blocks.placement[kind], visit_memory, &x);
    }
    if (x.last.bytes > 0)
        x.count += weir__engine_show(visit, &x.last, 1);
    return x.count + weir__engine_show(visit, next, foreseen);
}

/* A block of a graph is live, too, as far as can be told. */
static int show_block_at(struct weir_arena *a, const struct weir_visit *visit) {
    int count;

    weir__lock_take(&a->lock);
    count = weir__suballoc_show(&a->blocks, visit);
    weir__lock_give(&a->lock);
    return count > 0 || !is_node(a, visit->address)
               ? count
               : weir__engine_show(visit, &(struct weir_extent){.base = visit->address}, 1);
}

static int arena_visit(struct weir_engine *e, const struct weir_visit *visit) {
    struct weir_arena *a = (struct weir_arena *)e;
    int count;

    if (visit->what == WEIR_VISIT_BLOCK_AT)
        return show_block_at(a, visit);
    weir__lock_take(&a->lock);
    count = visit->what == WEIR_VISIT_EXTENTS  ? show_extents(a, visit)
            : visit->what == WEIR_VISIT_WHOLES ? a->backing->wholes(a, visit)
                                               : weir__suballoc_show(&a->blocks, visit);
    weir__lock_give(&a->lock);
    return count;
}

static weir_status arena_allow(struct weir_engine *e, const CUmemAccessDesc *access) {
    struct weir_arena *a = (struct weir_arena *)e;
    weir_status status;

    if (!a->backing->allow)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    weir__lock_take(&a->lock);
    status = a->backing->allow(a, access);
    if (status == WEIR_OK) /* under the lock: changes come in one order */
        weir__nodes_allow(&a->nodes, access);
    weir__lock_give(&a->lock);
    return status;
}

static void arena_figures(struct weir_engine *e, weir_statistics *out) {
    struct weir_arena *a = (struct weir_arena *)e;

    weir__lock_take(&a->lock);
    weir__suballoc_figures(&a->blocks, out);
    out->reserve = weir__arena_reserve(a);
    out->reserve_peak = a->reserve_peak;
    weir__lock_give(&a->lock);
}

static const struct weir_engine_ops arena_ops = {
    .alloc = arena_alloc,
    .free = arena_free,
    .give = arena_give,
    .grow = arena_grow,
    .trim = arena_trim,
    .allow = arena_allow,
    .figures = arena_figures,
    .survey = arena_survey,
    .visit = arena_visit,
    .close = arena_close,
};

weir_status weir__arena_open(const struct weir_engine *setup, struct weir_engine **out) {
    struct weir_arena *a = calloc(1, sizeof *a);
    struct weir_suballoc_rule rule;
    weir_status status;

    if (!a)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    a->e = *setup;
    a->e.ops = &arena_ops;
    a->backing =
        setup->options->arena == WEIR_ARENA_MAPPED ? &weir__arena_mapped : &weir__arena_regions;
    a->e.traits |=
        a->backing->traits | WEIR_ENGINE_TRIM_WAITS | WEIR_ENGINE_CUTS | WEIR_ENGINE_TAKES;
    a->e.step_bytes = setup->options->arena == WEIR_ARENA_FIXED ? 0 : a->backing->step_bytes;
    weir__nodes_open(&a->nodes, setup->device);
    rule = a->backing->rule;
    /* Who may wait for others gets by without memory of its own: the tightest fit then wastes least. */
    if (setup->options->internal_dependencies == WEIR_SWITCH_ON)
        rule.placement.own_first = 0;
    status = weir__suballoc_open(&a->blocks, &a->e, &rule);
    if (status != WEIR_OK)
        goto free_arena;
    status = a->backing->open(a);
    if (status != WEIR_OK)
        goto close_blocks;
    weir__suballoc_stock(&a->blocks, WEIR_SUBALLOC_BASE, stock_of(a));
    *out = &a->e;
    return WEIR_OK;
close_blocks:
    weir__suballoc_close(&a->blocks);
free_arena:
    weir__nodes_close(&a->nodes);
    free(a);
    return status;
}
