/* SPDX-License-Identifier: MIT */
/* bfc.c: the bfc engine, which allocates regions by cuMemAlloc, as TensorFlow's and XLA's BFC allocators do. */
#include "base/size.h"
#include "engine/heap.h"

#define GRANULARITY ((size_t)256)
#define SPLIT_WASTE ((size_t)128 << 20)

/* ---- growth by new regions ------------------------------------------------------------------- */

/* Allocates a region of *bytes, or of 2 MiB if it does not start at a multiple of WEIR_PAGE, which the caches need. */
static CUresult alloc_aligned(struct weir_heap *h, size_t *bytes, CUdeviceptr *base) {
    const struct weir_driver *driver = h->e.device->driver;
    CUresult result = driver->cuMemAlloc(base, *bytes);

    if (result != CUDA_SUCCESS || h->e.options->cache != WEIR_SWITCH_ON || *base % WEIR_PAGE == 0)
        return result;
    /* If cuMemFree fails, tries once more, since weir has no record of the memory, and could not free it later. */
    if (driver->cuMemFree(*base) != CUDA_SUCCESS)
        (void)driver->cuMemFree(*base);
    if (*bytes >= WEIR_DRIVER_PAGE || weir__heap_room(h) < WEIR_DRIVER_PAGE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = driver->cuMemAlloc(base, WEIR_DRIVER_PAGE);
    if (result == CUDA_SUCCESS)
        *bytes = WEIR_DRIVER_PAGE;
    return result;
}

/* Allocates a region of `bytes` bytes, or fewer, but at least `least`.  Sets *got to the region's size. */
static weir_status add_region(struct weir_heap *h, size_t bytes, size_t least, size_t *got) {
    const struct weir_driver *driver = h->e.device->driver;
    struct weir_driver_scope scope;
    CUdeviceptr base = 0;
    int placed = WEIR_PLACEMENT_NO_MEMORY;
    CUresult result = weir__driver_enter(driver, h->e.device->context, &scope);

    if (result != CUDA_SUCCESS)
        return weir__device_status(h->e.device, result);
    for (;;) {
        result = alloc_aligned(h, &bytes, &base);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || bytes <= least)
            break;
        bytes = weir__growth_smaller(h->e.options, bytes, least, GRANULARITY);
        bytes = weir__size_larger(bytes, least);
    }
    if (result == CUDA_SUCCESS) {
        placed = weir__placement_add(h->placement[0], base, bytes);
        if (placed != WEIR_PLACEMENT_OK)
            driver->cuMemFree(base);
    }
    weir__driver_leave(driver, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(h->e.device, result);
    if (placed != WEIR_PLACEMENT_OK)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    weir__engine_extend_bounds(&h->e, base, bytes);
    weir__heap_set_total(h, h->total + bytes);
    weir__heap_update_peak(h);
    *got = bytes;
    return WEIR_OK;
}

/* Returns the size of the next region for a request of `bytes` bytes, or 0 if the limit does not allow it. */
static size_t region_size(struct weir_heap *h, size_t bytes) {
    weir_growth_state state = {.size = sizeof state, .request = bytes};

    if (h->e.options->engine == WEIR_ENGINE_BFC_FIXED) {
        uint64_t left = weir__engine_limit(&h->e) - h->total;

        return bytes <= left ? weir__size_round_down((size_t)left, GRANULARITY) : 0;
    }
    /* TensorFlow's growth policy (BFC) retries with smaller regions instead of using the device's free memory. */
    state.device_free =
        h->e.options->growth == WEIR_GROWTH_BFC ? SIZE_MAX : weir__device_free(h->e.device);
    state.reserved = (size_t)h->total;
    state.in_use = (size_t)h->in_use;
    state.limit = weir__heap_growth_limit(h);
    return weir__growth_step(h->e.options, &state, GRANULARITY, &h->cursor);
}

static weir_status bfc_make_room(struct weir_heap *h, struct weir_request *r) {
    uint64_t started = h->e.device->driver->ticks();
    size_t least = weir__size_round_down(r->bytes + GRANULARITY - 1, GRANULARITY);
    size_t step = region_size(h, least), got = 0;
    weir_status status;

    if (step == 0)
        return weir__heap_full_status(h);
    status = add_region(h, step, least, &got);
    /* If the limit leaves less than 2 MiB (a page of cuMemAlloc), reports the limit as the cause. */
    if (status == WEIR_E_NO_MEMORY && weir__engine_limit(&h->e) < h->e.device->total &&
        weir__heap_room(h) < WEIR_DRIVER_PAGE)
        status = weir__without_driver(WEIR_E_LIMIT);
    if (status != WEIR_OK) {
        weir__growth_refused(&h->cursor);
        return status;
    }
    weir__engine_record(&h->e, WEIR_EVENT_REQUEST, 0, step, got,
                        weir__device_elapsed_ns(h->e.device, started), h->total);
    r->grew = 1;
    return WEIR_OK;
}

/* Frees a region without live blocks.  cuMemFree waits for the device, so all work on freed blocks is then complete. */
static CUresult free_region(struct weir_heap *h, const struct weir_extent *region) {
    const struct weir_driver *driver = h->e.device->driver;
    CUresult result = WEIR_IN_SCOPE(driver, h->e.device->context, driver->cuMemFree(region->base));

    if (result != CUDA_SUCCESS)
        return result;
    weir__heap_observe_all(h);
    (void)weir__placement_remove(h->placement[0], region->base);
    weir__heap_set_total(h, h->total - region->bytes);
    return CUDA_SUCCESS;
}

/* Finds the region above *region, or the lowest one if *region is all zeros.  Returns 1 on success, else 0. */
static int next_region(const struct weir_heap *h, struct weir_extent *region) {
    return weir__placement_region_above(h->placement[0], region->base + region->bytes,
                                        &region->base, &region->bytes);
}

/* Finds the largest region of at most `most` bytes with no live block, and no freed block that several streams use. */
static int find_idle(const struct weir_heap *h, size_t most, struct weir_extent *out) {
    struct weir_extent r = {0};

    out->bytes = 0;
    while (next_region(h, &r))
        if (r.bytes <= most && r.bytes > out->bytes &&
            weir__placement_region(h->placement[0], r.base, 0) != WEIR_PLACEMENT_BUSY)
            *out = r;
    return out->bytes > 0;
}

static weir_status bfc_grow(struct weir_heap *h, uint64_t reserve, uint64_t goal, int cause,
                            size_t *got) {
    size_t bytes = (size_t)(reserve - weir__heap_reserve(h));
    weir_status status = add_region(h, bytes, GRANULARITY, got);

    (void)goal, (void)cause; /* unused, since each call adds only one region */
    return status == WEIR_OK && *got < bytes ? weir__without_driver(WEIR_E_NO_MEMORY) : status;
}

/* Frees idle regions.  Since cuMemFree waits, only WAIT does so if several streams have called or frees are pending. */
static weir_status bfc_shrink(struct weir_heap *h, const struct weir_trim *trim) {
    const struct weir_order *o = &h->order;
    CUresult result = CUDA_SUCCESS;
    struct weir_extent idle;

    if (trim->mode != WEIR_TRIM_WAIT &&
        (o->several || o->pending_marks > 0 || o->streams_with_open > 0))
        return WEIR_OK;
    while (result == CUDA_SUCCESS &&
           find_idle(h, (size_t)weir__size_subtract(h->total, trim->keep), &idle))
        result = free_region(h, &idle);
    return weir__device_status(h->e.device, result);
}

static size_t bfc_largest(struct weir_heap *h, const struct weir_survey *asked) {
    int may_wait = h->e.options->recovery_timeout_ms != UINT32_MAX;
    uint64_t idle = 0, pages = 0, room;
    struct weir_extent r = {0};
    size_t added;

    /* Counts the regions without live blocks, which OOM recovery frees if it may wait for the device. */
    while (may_wait && next_region(h, &r)) {
        if (weir__placement_region(h->placement[0], r.base, asked->id) != WEIR_PLACEMENT_OK)
            continue;
        idle += r.bytes;
        pages += weir__size_round_down(r.bytes, WEIR_DRIVER_PAGE);
    }
    room = weir__size_subtract(weir__engine_limit(&h->e), h->total - idle);
    added = weir__size_round_down(weir__device_room(h->e.device, room, pages), GRANULARITY);
    /* A region smaller than 2 MiB might not start at a multiple of WEIR_PAGE, which the caches need. */
    return h->e.options->cache == WEIR_SWITCH_ON && added < WEIR_DRIVER_PAGE ? 0 : added;
}

/* ---- opening and closing the engine ---------------------------------------------------------- */

static void bfc_close(struct weir_heap *h) {
    struct weir_driver_scope scope;
    struct weir_extent r = {0};

    if (weir__driver_enter(h->e.device->driver, h->e.device->context, &scope) != CUDA_SUCCESS)
        return;
    /* No wait for the device is necessary first, since cuMemFree waits. */
    while (next_region(h, &r))
        h->e.device->driver->cuMemFree(r.base);
    weir__driver_leave(h->e.device->driver, &scope);
}

static const struct weir_backing backing = {
    .rule = {.granularity = GRANULARITY, .split_waste = SPLIT_WASTE},
    .unit = GRANULARITY,
    .step_bytes = (size_t)1 << 30,
    .close = bfc_close,
    .make_room = bfc_make_room,
    .grow = bfc_grow,
    .shrink = bfc_shrink,
    .largest = bfc_largest,
};

weir_status weir__bfc_open(const struct weir_engine *setup, struct weir_engine **out) {
    struct weir_heap *h;
    weir_status status = weir__heap_open(setup, &backing, &h);

    if (status != WEIR_OK)
        return status;
    if (setup->options->engine == WEIR_ENGINE_BFC_FIXED)
        h->e.step_bytes = 0;
    *out = &h->e;
    return WEIR_OK;
}
