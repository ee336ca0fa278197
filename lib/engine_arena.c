/* SPDX-License-Identifier: MIT */
/* engine_arena.c: BFC, as in TensorFlow and XLA, over regions from cuMemAlloc.
 *
 * suballoc.c cuts blocks out of regions and keeps stream order, by BFC's rule for where a block goes;
 * this file takes the regions from the device as the growth policy says, and gives them back.
 *
 * A trim waits for the device where frees are open that no event covers, and so does a region's
 * cuMemFree; all that was freed before is observed then.
 *
 * Locks: one lock over everything here; under it driver calls for events and growth, and the
 * books' lock.  Taken once an operation.
 *
 * Must not know: other engines, settings' names, how placement orders its chunks.
 */
#include <stdlib.h>

#include "engine.h"
#include "growth.h"
#include "lock.h"
#include "pagemap.h"
#include "result.h"
#include "size.h"
#include "suballoc.h"

#define GRANULARITY ((size_t)256)
#define SPLIT_WASTE ((size_t)128 << 20)
/* Below it cuMemAlloc lets blocks share pages, and one may begin at any multiple of 512 bytes. */
#define DRIVER_PAGE ((size_t)2 << 20)

struct arena {
    struct weir_host *host;
    struct weir_lock lock; /* guards all that follows */
    struct weir_suballoc blocks;
    struct weir_growth_cursor cursor;
    uint64_t reserve_peak;
};

/* ---- growth ---------------------------------------------------------------------------------- */

static size_t room_left(const struct arena *a) {
    uint64_t most = a->host->limit < a->host->device_total ? a->host->limit : a->host->device_total;

    return most > a->blocks.total ? (size_t)(most - a->blocks.total) : 0;
}

/* The front's records want blocks that begin at one of its pages, and so must regions: a small one that
 * does not is exchanged for one of a whole page of the driver's, if that may be. */
static CUresult take_aligned(struct arena *a, size_t *bytes, CUdeviceptr *base) {
    const struct weir_driver *driver = a->host->driver;
    CUresult result = driver->cuMemAlloc(base, *bytes);

    if (result != CUDA_SUCCESS || a->host->options.front != WEIR_SWITCH_ON ||
        *base % WEIR_PAGE == 0)
        return result;
    if (driver->cuMemFree(*base) != CUDA_SUCCESS)
        (void)driver->cuMemFree(*base); /* else it would be lost */
    if (*bytes >= DRIVER_PAGE || room_left(a) < DRIVER_PAGE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = driver->cuMemAlloc(base, DRIVER_PAGE);
    if (result == CUDA_SUCCESS)
        *bytes = DRIVER_PAGE;
    return result;
}

/* Takes one region of `bytes` from the device, smaller ones if it refuses, down to `least`. */
static weir_status take_region(struct arena *a, size_t bytes, size_t least, size_t *got) {
    const struct weir_driver *driver = a->host->driver;
    struct weir_driver_scope scope;
    CUdeviceptr base = 0;
    int placed = WEIR_PLACEMENT_NO_MEMORY;
    CUresult result;

    result = weir__driver_enter(driver, a->host->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    do {
        result = take_aligned(a, &bytes, &base);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            break;
        bytes = weir__growth_smaller(&a->host->options, bytes, least, GRANULARITY);
    } while (bytes >= least && bytes > 0);
    if (result == CUDA_SUCCESS) {
        placed = weir__suballoc_add(&a->blocks, base, bytes, 0, WEIR_ENGINE_OBSERVED);
        if (placed != WEIR_PLACEMENT_OK)
            driver->cuMemFree(base);
    }
    weir__driver_leave(driver, &scope);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    if (placed != WEIR_PLACEMENT_OK)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    if (a->blocks.total > a->reserve_peak)
        a->reserve_peak = a->blocks.total;
    *got = bytes;
    return WEIR_OK;
}

/* What the next region should have for a request of `bytes` (already rounded); 0: over the limit. */
static size_t region_size(struct arena *a, size_t bytes) {
    uint64_t device_free;
    weir_growth_state state = {.size = sizeof state, .request = bytes};

    if (a->host->options.arena == WEIR_ARENA_FIXED) {
        uint64_t left = a->host->limit - a->blocks.total;

        return bytes <= left ? weir__size_round_down((size_t)left, GRANULARITY) : 0;
    }
    /* BFC asks for its step and backs off when refused, without asking what is free. */
    device_free =
        a->host->options.growth == WEIR_GROWTH_BFC ? UINT64_MAX : weir__engine_device_free(a->host);
    state.reserve = (size_t)a->blocks.total;
    state.in_use = (size_t)a->blocks.in_use;
    state.limit = (size_t)a->blocks.total + room_left(a);
    state.device_free = (size_t)device_free;
    return weir__growth_step(&a->host->options, &state, GRANULARITY, &a->cursor);
}

static weir_status extend(struct arena *a, size_t bytes) {
    uint64_t started = a->host->driver->ticks();
    size_t least, step, got = 0;
    weir_status status;

    if (!weir__size_round_up(bytes, GRANULARITY, &least)) /* the placement has refused it before */
        return weir__engine_refuse(WEIR_E_NO_MEMORY);
    step = region_size(a, least);
    if (step == 0)
        return weir__engine_refuse(a->host->limit < a->host->device_total ? WEIR_E_LIMIT
                                                                          : WEIR_E_NO_MEMORY);
    status = take_region(a, step, least, &got);
    if (status == WEIR_E_NO_MEMORY && a->host->limit < a->host->device_total &&
        room_left(a) < DRIVER_PAGE) /* there is none for an exchange */
        status = weir__engine_refuse(WEIR_E_LIMIT);
    if (status == WEIR_OK)
        weir__engine_note(a->host, WEIR_EVENT_REQUEST, 0, step, got,
                          weir__engine_since(a->host, started), a->blocks.total);
    else
        weir__growth_refused(&a->cursor);
    return status;
}

/* Gives a region without live blocks back.  cuMemFree waits for all work of the device, so its last
 * frees need not have been observed; afterwards all are. */
static CUresult drop_region(struct arena *a, size_t at) {
    struct weir_driver_scope scope;
    CUresult result = weir__driver_enter(a->host->driver, a->host->context, &scope);

    if (result != CUDA_SUCCESS)
        return result;
    result = a->host->driver->cuMemFree(a->blocks.regions[at].base);
    weir__driver_leave(a->host->driver, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    weir__suballoc_observe_all(&a->blocks);
    weir__suballoc_remove(&a->blocks, at, WEIR_ENGINE_OBSERVED);
    return CUDA_SUCCESS;
}

/* The largest region without live blocks of at most `most` bytes.  1 and its place, or 0: there is
 * none. */
static int find_idle(struct arena *a, size_t most, size_t *at) {
    const struct weir_suballoc_region *regions = a->blocks.regions;
    size_t largest = 0;

    weir__suballoc_survey(&a->blocks, WEIR_ENGINE_UNKNOWN);
    for (size_t i = 0; i < a->blocks.region_count; i++) {
        if (regions[i].idle && regions[i].bytes <= most && regions[i].bytes > largest) {
            largest = regions[i].bytes;
            *at = i;
        }
    }
    return largest > 0;
}

/* ---- the engine ------------------------------------------------------------------------------ */

static weir_status arena_open(struct weir_host *host, void **engine) {
    static const struct weir_suballoc_rule bfc = {
        .placement = {.granularity = GRANULARITY, .split_waste = SPLIT_WASTE}};
    struct arena *a = calloc(1, sizeof *a);
    weir_status status;

    if (!a)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    a->host = host;
    status = weir__suballoc_open(&a->blocks, host, &bfc);
    if (status != WEIR_OK) {
        free(a);
        return status;
    }
    *engine = a;
    return WEIR_OK;
}

static void arena_close(void *engine) {
    struct arena *a = engine;
    struct weir_driver_scope scope;

    if (weir__driver_enter(a->host->driver, a->host->context, &scope) == CUDA_SUCCESS) {
        /* cuMemFree waits for the device, and so for all frees */
        for (size_t i = 0; i < a->blocks.region_count; i++)
            a->host->driver->cuMemFree(a->blocks.regions[i].base);
        weir__driver_leave(a->host->driver, &scope);
    }
    weir__suballoc_close(&a->blocks);
    free(a);
}

static weir_status place(struct arena *a, size_t bytes, uint64_t id, int may_grow, int *grew,
                         struct weir_placement_block *out) {
    int result = weir__suballoc_take(&a->blocks, bytes, id, SIZE_MAX, out);
    weir_status status;

    if (result == WEIR_PLACEMENT_NO_FIT) {
        weir__suballoc_dry(&a->blocks);
        if (!may_grow)
            return WEIR_ENGINE_DRY;
        result = weir__suballoc_take_at_last(&a->blocks, bytes, id, SIZE_MAX, a->blocks.total, out);
    }
    if (result == WEIR_PLACEMENT_NO_FIT) {
        status = extend(a, bytes);
        if (status != WEIR_OK)
            return status;
        *grew = 1;
        result = weir__suballoc_take(&a->blocks, bytes, id, SIZE_MAX, out);
    }
    if (result == WEIR_PLACEMENT_NO_MEMORY)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    return result == WEIR_PLACEMENT_OK ? WEIR_OK : weir__engine_refuse(WEIR_E_NO_MEMORY);
}

static weir_status arena_alloc(void *engine, size_t bytes, weir_stream stream, uint64_t id,
                               int may_grow, CUdeviceptr *block, int *grew) {
    struct arena *a = engine;
    struct weir_placement_block placed;
    weir_status status = id ? WEIR_OK : weir__engine_capture(a->host, stream);
    CUresult result;

    if (status != WEIR_OK)
        return status;
    result = id ? CUDA_SUCCESS : weir__engine_stream_id(a->host, stream, &id);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    weir__lock_take(&a->lock);
    status = weir__suballoc_visit(&a->blocks, id, stream);
    if (status == WEIR_OK)
        status = place(a, bytes, id, may_grow, grew, &placed);
    weir__lock_give(&a->lock);
    if (status == WEIR_OK)
        *block = placed.address;
    return status;
}

static weir_status arena_give(void *engine, CUdeviceptr block, uint64_t id) {
    struct arena *a = engine;
    weir_status status;

    weir__lock_take(&a->lock);
    status = weir__suballoc_give_silently(&a->blocks, block, id);
    weir__lock_give(&a->lock);
    return status;
}

static weir_status arena_free(void *engine, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    struct arena *a = engine;
    weir_status status;
    CUresult result;
    uint64_t id;

    result = weir__engine_stream_id(a->host, stream, &id);
    if (weir__engine_is_capture(result) && !uses)
        return arena_give(a, block, WEIR_ENGINE_UNKNOWN);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    weir__lock_take(&a->lock);
    status = weir__suballoc_give(&a->blocks, block, id, stream, uses);
    weir__lock_give(&a->lock);
    return status;
}

static int arena_is_live(void *engine, CUdeviceptr block) {
    struct arena *a = engine;
    int live;

    weir__lock_take(&a->lock);
    live = weir__suballoc_is_live(&a->blocks, block);
    weir__lock_give(&a->lock);
    return live;
}

static void arena_tend(void *engine, weir_stream stream, uint64_t id) {
    struct arena *a = engine;

    weir__lock_take(&a->lock);
    (void)weir__suballoc_visit(&a->blocks, id, stream); /* else at the next call */
    weir__lock_give(&a->lock);
}

static weir_status arena_grow(void *engine, uint64_t target, int cause) {
    struct arena *a = engine;
    uint64_t started = a->host->driver->ticks();
    uint64_t most = weir__size_round_down((size_t)a->host->limit, GRANULARITY), wanted;
    weir_status status = WEIR_OK;
    size_t rounded, got = 0;

    if (!weir__size_round_up((size_t)target, GRANULARITY, &rounded))
        rounded = SIZE_MAX;
    wanted = rounded < most ? rounded : most;
    weir__lock_take(&a->lock);
    if (wanted > a->blocks.total) {
        size_t bytes = (size_t)(wanted - a->blocks.total);

        status = take_region(a, bytes, GRANULARITY, &got);
        if (got > 0)
            weir__engine_note(a->host, cause, 0, bytes, got, weir__engine_since(a->host, started),
                              a->blocks.total);
    }
    if (status == WEIR_OK && a->blocks.total < target)
        status = weir__engine_refuse(
            target > most && a->host->limit < UINT64_MAX ? WEIR_E_LIMIT : WEIR_E_NO_MEMORY);
    weir__lock_give(&a->lock);
    return status;
}

static weir_status arena_trim(void *engine, size_t keep, int cause, size_t *released) {
    struct arena *a = engine;
    uint64_t started = a->host->driver->ticks(), before;
    CUresult result;
    size_t at;

    weir__lock_take(&a->lock);
    weir__suballoc_look_around(&a->blocks);
    result = weir__suballoc_wait(&a->blocks, 0);
    before = a->blocks.total;
    while (result == CUDA_SUCCESS && a->blocks.total > keep &&
           find_idle(a, (size_t)a->blocks.total - keep, &at))
        result = drop_region(a, at);
    *released = (size_t)(before - a->blocks.total);
    if (*released > 0)
        weir__engine_note(a->host, cause, 1, before - keep, *released,
                          weir__engine_since(a->host, started), a->blocks.total);
    weir__lock_give(&a->lock);
    return weir__engine_status(a->host, result);
}

static size_t arena_reclaim(void *engine, size_t *silent) {
    struct arena *a = engine;
    size_t waiting;

    weir__lock_take(&a->lock);
    waiting = weir__suballoc_reclaim(&a->blocks, silent);
    weir__lock_give(&a->lock);
    return waiting;
}

static void arena_figures(void *engine, weir_statistics *out) {
    struct arena *a = engine;

    weir__lock_take(&a->lock);
    weir__suballoc_figures(&a->blocks, out);
    out->reserve = a->blocks.total;
    out->reserve_peak = a->reserve_peak;
    weir__lock_give(&a->lock);
}

const struct weir_engine weir__engine_arena = {
    .trim_waits = 1,
    .open = arena_open,
    .close = arena_close,
    .alloc = arena_alloc,
    .free = arena_free,
    .give = arena_give,
    .tend = arena_tend,
    .is_live = arena_is_live,
    .grow = arena_grow,
    .trim = arena_trim,
    .reclaim = arena_reclaim,
    .figures = arena_figures,
};
