/* SPDX-License-Identifier: MIT */
/* backing_regions.c: regions from cuMemAlloc, as in TensorFlow's and XLA's BFC allocator.
 *
 * A region goes back with cuMemFree, which waits for all work of the device, so all earlier frees are observed then.
 *
 * This file must not know other backings, or how blocks are placed and ordered.
 */
#include "base/size.h"
#include "engine/block_engine.h"

#define GRANULARITY ((size_t)256)
#define SPLIT_WASTE ((size_t)128 << 20)
/* cuMemAlloc lets smaller blocks share a page; they begin at multiples of 512 bytes. */
#define DRIVER_PAGE ((size_t)2 << 20)

/* ---- growth ---------------------------------------------------------------------------------- */

/* Allocates a region.  With caches, it must begin at a page of theirs (WEIR_PAGE), so a small region that does not is
 * exchanged for one of a whole page of the driver, if the limit allows that. */
static CUresult take_aligned(struct weir_block_engine *a, size_t *bytes, CUdeviceptr *base) {
    const struct weir_driver *driver = a->e.device->driver;
    CUresult result = driver->cuMemAlloc(base, *bytes);

    if (result != CUDA_SUCCESS || a->e.options->cache != WEIR_SWITCH_ON || *base % WEIR_PAGE == 0)
        return result;
    /* else the memory would be lost */
    if (driver->cuMemFree(*base) != CUDA_SUCCESS)
        (void)driver->cuMemFree(*base);
    if (*bytes >= DRIVER_PAGE || weir__blocks_room(a) < DRIVER_PAGE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = driver->cuMemAlloc(base, DRIVER_PAGE);
    if (result == CUDA_SUCCESS)
        *bytes = DRIVER_PAGE;
    return result;
}

/* Allocates one region of `bytes`, or smaller ones down to `least` if the device lacks memory.  TensorFlow's steps end
 * above `least`, and fail where a smaller region would fit. */
static weir_status take_region(struct weir_block_engine *a, size_t bytes, size_t least,
                               size_t *got) {
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_driver_scope scope;
    CUdeviceptr base = 0;
    int placed = WEIR_PLACEMENT_NO_MEMORY;
    CUresult result;

    result = weir__driver_enter(driver, a->e.device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    for (;;) {
        result = take_aligned(a, &bytes, &base);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || bytes <= least)
            break;
        bytes = weir__growth_smaller(a->e.options, bytes, least, GRANULARITY);
        if (bytes < least)
            bytes = least;
    }
    if (result == CUDA_SUCCESS) {
        placed = weir__suballoc_add(&a->blocks, base, bytes, WEIR_SUBALLOC_COMMON, 1);
        if (placed != WEIR_PLACEMENT_OK)
            driver->cuMemFree(base);
    }
    weir__driver_leave(driver, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    if (placed != WEIR_PLACEMENT_OK)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    weir__blocks_grown(a);
    *got = bytes;
    return WEIR_OK;
}

/* Returns the bytes of the next region for a request of `bytes`, which are rounded, or 0 if it exceeds the limit. */
static size_t region_size(struct weir_block_engine *a, size_t bytes) {
    uint64_t device_free;
    weir_growth_state state = {.size = sizeof state, .request = bytes};

    if (a->e.options->engine == WEIR_ENGINE_BFC_FIXED) {
        uint64_t left = weir__engine_limit(&a->e) - a->blocks.total;

        return bytes <= left ? weir__size_round_down((size_t)left, GRANULARITY) : 0;
    }
    /* BFC tries its step and then smaller ones, so it does not query the device's free memory. */
    device_free =
        a->e.options->growth == WEIR_GROWTH_BFC ? UINT64_MAX : weir__device_free(a->e.device);
    state.reserved = (size_t)a->blocks.total;
    state.in_use = (size_t)a->blocks.in_use;
    state.limit = weir__blocks_growth_limit(a);
    state.device_free = (size_t)device_free;
    return weir__growth_step(a->e.options, &state, GRANULARITY, &a->cursor);
}

static weir_status regions_make_room(struct weir_block_engine *a, struct weir_request *r,
                                     uint64_t reserve) {
    uint64_t started = a->e.device->driver->ticks();
    size_t least, step, got = 0;
    weir_status status;

    (void)reserve; /* only growth makes room */
    /* unreached: an overflow, since no request is above the device's memory */
    if (!weir__size_round_up(r->bytes, GRANULARITY, &least))
        return weir__without_driver(WEIR_E_NO_MEMORY);
    step = region_size(a, least);
    if (step == 0)
        return weir__blocks_are_full(a);
    status = take_region(a, step, least, &got);
    /* an exchange had no room */
    if (status == WEIR_E_NO_MEMORY && weir__engine_limit(&a->e) < a->e.device->total &&
        weir__blocks_room(a) < DRIVER_PAGE)
        status = weir__without_driver(WEIR_E_LIMIT);
    if (status != WEIR_OK) {
        weir__growth_refused(&a->cursor);
        return status;
    }
    weir__engine_note(&a->e, WEIR_EVENT_REQUEST, 0, step, got,
                      weir__device_since(a->e.device, started), a->blocks.total);
    r->grew = 1;
    return WEIR_OK;
}

/* Gives a region without live blocks back.  cuMemFree waits for all work of the device, so its last frees need not be
 * observed before; afterwards all frees are. */
static CUresult drop_region(struct weir_block_engine *a, size_t at) {
    CUdeviceptr base = a->blocks.regions[at].base;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_enter(a->e.device->driver, a->e.device->context, &scope);

    if (result != CUDA_SUCCESS)
        return result;
    result = a->e.device->driver->cuMemFree(base);
    weir__driver_leave(a->e.device->driver, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    weir__suballoc_observe_all(&a->blocks);
    weir__suballoc_remove(&a->blocks, at);
    return CUDA_SUCCESS;
}

/* Returns 1 if the region at that index has a live or a pending block, else 0. */
static int is_busy(const struct weir_block_engine *a, size_t at) {
    return weir__placement_region(a->blocks.placement[a->blocks.regions[at].kind],
                                  a->blocks.regions[at].base, 0) == WEIR_PLACEMENT_BUSY;
}

/* Finds the largest region of at most `most` bytes without live blocks, the lowest of equal ones.  Returns 1 and its
 * index in *at, or 0 if there is none. */
static int find_idle(struct weir_block_engine *a, size_t most, size_t *at) {
    const struct weir_suballoc_region *regions = a->blocks.regions;
    size_t largest = 0;

    for (size_t i = 0; i < a->blocks.region_count; i++) {
        if (regions[i].bytes <= most && regions[i].bytes > largest && !is_busy(a, i)) {
            largest = regions[i].bytes;
            *at = i;
        }
    }
    return largest > 0;
}

static weir_status regions_grow(struct weir_block_engine *a, uint64_t reserve, uint64_t goal,
                                int cause, size_t *got) {
    size_t bytes = (size_t)(reserve - weir__blocks_reserve(a));
    weir_status status = take_region(a, bytes, GRANULARITY, got);

    (void)goal, (void)cause; /* preallocation and growth add one region alike */
    return status == WEIR_OK && *got < bytes ? weir__without_driver(WEIR_E_NO_MEMORY) : status;
}

static weir_status regions_shrink(struct weir_block_engine *a, struct weir_trim *trim) {
    CUresult result = CUDA_SUCCESS;
    size_t at;

    while (result == CUDA_SUCCESS &&
           find_idle(a, (size_t)weir__size_less(a->blocks.total, trim->keep), &at))
        result = drop_region(a, at);
    return weir__device_status(a->e.device, result);
}

/* cuMemFree waits for the device, so regions go back without a wait only if the only stream so far is found idle. */
static weir_status regions_shed(struct weir_block_engine *a, struct weir_trim *trim) {
    const struct weir_order *o = &a->blocks.order;

    return o->several || o->waiting_marks > 0 || o->silent_streams > 0 ? WEIR_OK
                                                                       : regions_shrink(a, trim);
}

/* ---- estimates ----------------------------------------------------------------------- */

/* Counts the regions that OOM recovery would give back, if it may wait for the device. */
static void count_idle(struct weir_block_engine *a, uint64_t id, uint64_t *bytes, uint64_t *pages) {
    *bytes = *pages = 0;
    if (a->e.options->recovery_timeout_ms == UINT32_MAX)
        return;
    for (size_t i = 0; i < a->blocks.region_count; i++) {
        const struct weir_suballoc_region *r = &a->blocks.regions[i];

        if (weir__placement_region(a->blocks.placement[r->kind], r->base, id) != WEIR_PLACEMENT_OK)
            continue;
        *bytes += r->bytes;
        *pages += weir__size_round_down(r->bytes, DRIVER_PAGE);
    }
}

static size_t regions_largest(struct weir_block_engine *a, const struct weir_survey *asked) {
    uint64_t idle, pages, room;
    size_t added;

    count_idle(a, asked->id, &idle, &pages);
    room = weir__size_less(weir__engine_limit(&a->e),
                           a->blocks.total - idle); /* reserved memory may exceed the limit */
    added = weir__size_round_down(weir__device_room(a->e.device, room, pages), GRANULARITY);
    /* A smaller region may share a page of the driver, and then not begin at a page of the caches. */
    return a->e.options->cache == WEIR_SWITCH_ON && added < DRIVER_PAGE ? 0 : added;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void regions_close(struct weir_block_engine *a) {
    struct weir_driver_scope scope;

    if (weir__driver_enter(a->e.device->driver, a->e.device->context, &scope) != CUDA_SUCCESS)
        return;
    /* cuMemFree waits for the device, and so for all frees. */
    for (size_t i = 0; i < a->blocks.region_count; i++)
        a->e.device->driver->cuMemFree(a->blocks.regions[i].base);
    weir__driver_leave(a->e.device->driver, &scope);
}

const struct weir_backing weir__backing_regions = {
    .rule = {.placement = {.granularity = GRANULARITY, .split_waste = SPLIT_WASTE}},
    .granularity = GRANULARITY,
    .step_bytes = (size_t)1 << 30,
    .traits = WEIR_ENGINE_TAKES,
    .close = regions_close,
    .make_room = regions_make_room,
    .grow = regions_grow,
    .shrink = regions_shrink,
    .shed = regions_shed,
    .largest = regions_largest,
};
