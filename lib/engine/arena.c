/* SPDX-License-Identifier: MIT */
/* arena.c: blocks cut from memory of its own, by best fit as TensorFlow's and XLA's BFC does.
 *
 * stream_suballoc.c cuts blocks out of memory and keeps stream order; a backing takes the memory from the device
 * and gives it back: backing_regions.c in regions that lie anywhere, backing_mapped.c in one range.
 *
 * A trim waits for the device where frees are open that no event covers.
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

/* ---- the engine ------------------------------------------------------------------------------ */

static weir_status arena_open(struct weir_host *host, void **engine) {
    struct weir_arena *a = calloc(1, sizeof *a);
    struct weir_suballoc_rule rule;
    weir_status status;

    if (!a)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    a->host = host;
    weir__nodes_open(&a->nodes, host);
    a->backing =
        host->options.arena == WEIR_ARENA_MAPPED ? &weir__arena_mapped : &weir__arena_regions;
    rule = a->backing->rule;
    /* Who may wait for others gets by without memory of its own: the tightest fit then wastes least. */
    if (host->options.internal_dependencies == WEIR_SWITCH_ON)
        rule.placement.own_first = 0;
    status = weir__suballoc_open(&a->blocks, host, &rule);
    if (status != WEIR_OK)
        goto free_arena;
    host->pace = host->options.arena == WEIR_ARENA_FIXED ? 0 : a->backing->pace;
    status = a->backing->open(a);
    if (status != WEIR_OK)
        goto close_blocks;
    *engine = a;
    return WEIR_OK;
close_blocks:
    weir__suballoc_close(&a->blocks);
free_arena:
    weir__nodes_close(&a->nodes);
    free(a);
    return status;
}

static weir_status arena_settle(void *engine) {
    struct weir_arena *a = engine;

    return a->backing->must_settle
               ? weir__device_status(&a->host->device, weir__device_wait(&a->host->device))
               : WEIR_OK;
}

static void arena_close(void *engine) {
    struct weir_arena *a = engine;

    a->backing->close(a);
    weir__suballoc_close(&a->blocks);
    weir__nodes_close(&a->nodes);
    free(a);
}

/* What another thread's growth is bringing may be enough: 1 if it has come, or did not. */
static int wait_for_growth(struct weir_arena *a) {
    return a->backing->await && a->backing->await(a);
}

static weir_status place(struct weir_arena *a, const struct weir_arena_request *r, int may_grow,
                         int *grew, struct weir_placement_block *out) {
    int result = weir__suballoc_take(&a->blocks, r->bytes, r->id, SIZE_MAX, out);
    int result_before = weir__driver_result;
    weir_status status;

    if (result == WEIR_PLACEMENT_NO_FIT && wait_for_growth(a))
        result = weir__suballoc_take(&a->blocks, r->bytes, r->id, SIZE_MAX, out);
    if (result == WEIR_PLACEMENT_NO_FIT) {
        weir__suballoc_dry(&a->blocks);
        if (!may_grow)
            return WEIR_ENGINE_DRY;
        result = weir__suballoc_take_at_last(&a->blocks, r->bytes, r->id, SIZE_MAX, a->blocks.total,
                                             out);
    }
    if (result == WEIR_PLACEMENT_NO_FIT)
        result = weir__suballoc_take_behind(&a->blocks, r->bytes, r->id, r->stream, out);
    if (result == WEIR_PLACEMENT_NO_FIT) {
        weir__nvtx_push("make room", r->bytes);
        status = a->backing->make_room(a, r, grew);
        weir__nvtx_pop();
        if ((status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT) &&
            weir__suballoc_take_anywhere(&a->blocks, r->bytes, r->id, out) == WEIR_PLACEMENT_OK) {
            weir__set_driver_result(result_before);
            return WEIR_OK;
        }
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
static weir_status alloc_node(struct weir_arena *a, size_t bytes, weir_stream stream, int before,
                              CUdeviceptr *block) {
    weir_status status;

    if (weir__driver_result != CUDA_SUCCESS)
        return WEIR_E_CAPTURE;
    status = weir__nodes_alloc(&a->nodes, bytes, stream, block);
    if (status == WEIR_OK)
        weir__set_driver_result(before);
    return status;
}

static weir_status arena_alloc(void *engine, size_t bytes, weir_stream stream, uint64_t id,
                               int may_grow, CUdeviceptr *block, int *grew) {
    struct weir_arena *a = engine;
    struct weir_placement_block placed;
    int before = weir__driver_result;
    weir_status status = id ? WEIR_OK : weir__device_capture(&a->host->device, stream);
    CUresult result;

    if (status == WEIR_E_CAPTURE)
        return alloc_node(a, bytes, stream, before, block);
    if (status != WEIR_OK)
        return status;
    result = id ? CUDA_SUCCESS : weir__device_stream_id(&a->host->device, stream, &id);
    if (result != CUDA_SUCCESS)
        return weir__device_status(&a->host->device, result);
    weir__lock_take(&a->lock);
    status = weir__suballoc_visit(&a->blocks, id, stream);
    if (status == WEIR_OK)
        status = place(a, &(struct weir_arena_request){bytes, id, stream}, may_grow, grew, &placed);
    atomic_store_explicit(&a->total_seen, weir__arena_reserve(a), memory_order_relaxed);
    atomic_store_explicit(&a->in_use_seen, a->blocks.in_use, memory_order_relaxed);
    weir__lock_give(&a->lock);
    if (status == WEIR_OK)
        *block = placed.address;
    return status;
}

static weir_status arena_give(void *engine, CUdeviceptr block, uint64_t id) {
    struct weir_arena *a = engine;
    weir_status status;

    weir__lock_take(&a->lock);
    status = weir__suballoc_give_silently(&a->blocks, block, id);
    weir__lock_give(&a->lock);
    return status;
}

static int arena_holds(void *engine, CUdeviceptr address, CUdeviceptr *base) {
    struct weir_arena *a = engine;
    uint64_t start = 0;
    int ours;

    weir__lock_take(&a->lock);
    ours = weir__suballoc_holds(&a->blocks, address, &start);
    weir__lock_give(&a->lock);
    *base = start;
    return ours;
}

/* Of a graph.  What the arena holds by now is none. */
static int is_node(struct weir_arena *a, CUdeviceptr block) {
    CUdeviceptr base;

    return weir__nodes_has(&a->nodes, block) && !arena_holds(a, block, &base);
}

static weir_status arena_free(void *engine, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    struct weir_arena *a = engine;
    weir_status status;
    CUresult result;
    uint64_t id;

    if (is_node(a, block))
        return weir__nodes_free(&a->nodes, block, stream, uses);
    result = weir__device_stream_id(&a->host->device, stream, &id);
    if (weir__device_is_capture(result) && !uses)
        return arena_give(a, block, WEIR_ENGINE_UNKNOWN);
    if (result != CUDA_SUCCESS)
        return weir__device_status(&a->host->device, result);
    weir__lock_take(&a->lock);
    status = weir__suballoc_give(&a->blocks, block, id, stream, uses);
    weir__lock_give(&a->lock);
    return status;
}

static int arena_is_live(void *engine, CUdeviceptr block) {
    struct weir_arena *a = engine;
    int live;

    weir__lock_take(&a->lock);
    live = weir__suballoc_is_live(&a->blocks, block);
    weir__lock_give(&a->lock);
    return live || is_node(a, block);
}

static int arena_find(void *engine, CUdeviceptr address, CUdeviceptr *block, size_t *bytes) {
    struct weir_arena *a = engine;
    int found;

    weir__lock_take(&a->lock);
    found = weir__suballoc_find(&a->blocks, address, block, bytes);
    weir__lock_give(&a->lock);
    return found;
}

static void arena_tend(void *engine, weir_stream stream, uint64_t id) {
    struct weir_arena *a = engine;

    weir__lock_take(&a->lock);
    (void)weir__suballoc_visit(&a->blocks, id, stream); /* else at the next call */
    weir__lock_give(&a->lock);
}

static weir_status arena_grow(void *engine, uint64_t target, int cause) {
    struct weir_arena *a = engine;
    uint64_t started = a->host->device.driver->ticks();
    weir_status status = WEIR_OK;
    size_t rounded, bytes, got = 0;
    uint64_t most, wanted;

    if (!weir__size_round_up((size_t)target, a->backing->granularity, &rounded))
        rounded = SIZE_MAX;
    weir__lock_take(&a->lock);
    (void)wait_for_growth(a);
    most = weir__size_round_down((size_t)a->host->limit, a->backing->granularity);
    wanted = weir__size_smaller(rounded, most);
    if (wanted > weir__arena_reserve(a)) {
        bytes = (size_t)(wanted - weir__arena_reserve(a));
        weir__nvtx_push("grow", bytes);
        status = a->backing->grow(a, wanted, cause, &got);
        weir__nvtx_pop();
        if (got > 0)
            weir__engine_note(a->host, cause, 0, bytes, got,
                              weir__device_since(&a->host->device, started),
                              weir__arena_reserve(a));
    }
    if (status == WEIR_OK && target > most && weir__arena_reserve(a) < target)
        status = weir__without_driver(WEIR_E_LIMIT);
    weir__lock_give(&a->lock);
    return status;
}

static weir_status arena_trim(void *engine, size_t keep, int cause, size_t *released) {
    struct weir_arena *a = engine;
    uint64_t started = a->host->device.driver->ticks(), before;
    weir_status status;

    weir__lock_take(&a->lock);
    weir__suballoc_look_around(&a->blocks);
    status = weir__device_status(&a->host->device, weir__suballoc_wait(&a->blocks, 0));
    before = weir__arena_reserve(a);
    if (status == WEIR_OK) {
        weir__nvtx_push("give back", weir__size_less(before, keep));
        status = a->backing->shrink(a, keep);
        weir__nvtx_pop();
    }
    *released = (size_t)(before - weir__arena_reserve(a));
    if (*released > 0) {
        weir__growth_shrunk(&a->cursor, weir__arena_reserve(a));
        weir__engine_note(a->host, cause, 1, before - keep, *released,
                          weir__device_since(&a->host->device, started), weir__arena_reserve(a));
    }
    weir__lock_give(&a->lock);
    return status;
}

/* A free piece, or new memory. */
static size_t arena_largest(void *engine, uint64_t id, uint64_t back) {
    struct weir_arena *a = engine;
    uint64_t largest;

    (void)back; /* no engine has an arena under it */
    weir__lock_take(&a->lock);
    largest = weir__size_larger(weir__suballoc_largest(&a->blocks, id), a->backing->largest(a, id));
    weir__lock_give(&a->lock);
    return (size_t)largest;
}

static void arena_survey(void *engine, uint64_t id, struct weir_survey *out) {
    struct weir_arena *a = engine;

    weir__lock_take(&a->lock);
    weir__suballoc_tell(&a->blocks, id, out);
    weir__lock_give(&a->lock);
}

static void arena_blocks(void *engine, weir__engine_block_fn *visit, void *context) {
    struct weir_arena *a = engine;

    weir__lock_take(&a->lock);
    weir__suballoc_blocks(&a->blocks, visit, context);
    weir__lock_give(&a->lock);
}

static void arena_shed(void *engine, size_t keep, weir_stream stream, uint64_t id, int cause) {
    struct weir_arena *a = engine;
    uint64_t started = a->host->device.driver->ticks(), before;

    if (id == 0 && weir__device_stream_id(&a->host->device, stream, &id) != CUDA_SUCCESS)
        return;
    weir__lock_take(&a->lock);
    weir__suballoc_ask(&a->blocks, id, stream);
    weir__suballoc_look_around(&a->blocks);
    weir__suballoc_dry(&a->blocks); /* streams record what they free, to be seen next time */
    before = weir__arena_reserve(a);
    a->backing->shed(a, keep);
    if (weir__arena_reserve(a) < before) {
        weir__growth_shrunk(&a->cursor, weir__arena_reserve(a));
        weir__engine_note(a->host, cause, 1, weir__size_less(before, keep),
                          before - weir__arena_reserve(a),
                          weir__device_since(&a->host->device, started), weir__arena_reserve(a));
    }
    weir__lock_give(&a->lock);
}

static size_t arena_reclaim(void *engine, size_t *silent) {
    struct weir_arena *a = engine;
    size_t waiting;

    weir__lock_take(&a->lock);
    waiting = weir__suballoc_reclaim(&a->blocks, silent);
    weir__lock_give(&a->lock);
    return waiting;
}

struct extents {
    struct weir_extent *out;
    size_t count, most;
    int large;
};

static int add_extent(void *context, const struct weir_placement_span *span) {
    struct extents *e = context;

    if (!span->hole)
        e->count = weir__engine_extend(
            e->out, e->count, e->most,
            (struct weir_extent){.base = span->address, .bytes = span->size, .large = e->large});
    return 0;
}

static size_t arena_extents(void *engine, struct weir_extent *out, size_t most) {
    struct weir_arena *a = engine;
    struct extents e = {.out = out, .most = most};

    weir__lock_take(&a->lock);
    for (int kind = WEIR_SUBALLOC_KINDS - 1; kind >= 0; kind--) {
        e.large = kind != WEIR_SUBALLOC_SMALL && a->blocks.placement[WEIR_SUBALLOC_SMALL];
        if (a->blocks.placement[kind])
            weir__placement_walk(a->blocks.placement[kind], add_extent, &e);
    }
    if (a->backing->foresee)
        e.count += a->backing->foresee(a, out + e.count, most - e.count);
    weir__lock_give(&a->lock);
    return e.count;
}

static size_t arena_wholes(void *engine, struct weir_extent *out, size_t most) {
    struct weir_arena *a = engine;
    size_t count;

    weir__lock_take(&a->lock);
    count = a->backing->wholes(a, out, most);
    weir__lock_give(&a->lock);
    return count;
}

static void arena_stock(void *engine, size_t bytes) {
    struct weir_arena *a = engine;

    weir__lock_take(&a->lock);
    weir__suballoc_stock(&a->blocks, WEIR_SUBALLOC_BASE, bytes);
    weir__lock_give(&a->lock);
}

static void arena_glance(void *engine, uint64_t *reserve, uint64_t *in_use) {
    struct weir_arena *a = engine;

    *reserve = atomic_load_explicit(&a->total_seen, memory_order_relaxed);
    if (in_use) /* unreached: NULL, since no engine has an arena under it */
        *in_use = atomic_load_explicit(&a->in_use_seen, memory_order_relaxed);
}

static void arena_pieces(void *engine, uint64_t *largest, uint64_t *last) {
    struct weir_arena *a = engine;

    *largest = *last = 0;
    if (!a->backing->pieces)
        return;
    weir__lock_take(&a->lock);
    a->backing->pieces(a, largest, last);
    weir__lock_give(&a->lock);
}

static weir_status arena_allow(void *engine, const CUmemAccessDesc *access) {
    struct weir_arena *a = engine;
    weir_status status;

    weir__lock_take(&a->lock);
    status = a->backing->allow(a, access);
    if (status == WEIR_OK) /* under the lock: changes come in one order */
        weir__nodes_allow(&a->nodes, access);
    weir__lock_give(&a->lock);
    return status;
}

static void arena_figures(void *engine, weir_statistics *out) {
    struct weir_arena *a = engine;

    weir__lock_take(&a->lock);
    weir__suballoc_figures(&a->blocks, out);
    out->reserve = weir__arena_reserve(a);
    out->reserve_peak = a->reserve_peak;
    weir__lock_give(&a->lock);
    out->host_bytes += weir__nodes_host_bytes(&a->nodes);
}

const struct weir_engine weir__engine_arena = {
    .trim_waits = 1,
    .open = arena_open,
    .settle = arena_settle,
    .close = arena_close,
    .alloc = arena_alloc,
    .free = arena_free,
    .give = arena_give,
    .tend = arena_tend,
    .is_live = arena_is_live,
    .find = arena_find,
    .holds = arena_holds,
    .grow = arena_grow,
    .trim = arena_trim,
    .largest = arena_largest,
    .survey = arena_survey,
    .blocks = arena_blocks,
    .shed = arena_shed,
    .reclaim = arena_reclaim,
    .allow = arena_allow,
    .glance = arena_glance,
    .pieces = arena_pieces,
    .extents = arena_extents,
    .wholes = arena_wholes,
    .stock = arena_stock,
    .figures = arena_figures,
};
