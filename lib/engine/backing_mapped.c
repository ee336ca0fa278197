/* SPDX-License-Identifier: MIT */
/* backing_mapped.c: an arena in one range of addresses, with physical memory mapped where it is needed.
 *
 * Addresses cost nothing, so the range is many times as large as the device.  Its parts without memory are unmapped
 * ranges.  The engine makes room for a request in up to three ways: with physical allocations of the request's own, at
 * the place that lacks least memory, or at the end of the range, with all idle memory.
 *
 * Must not know: how blocks are placed and ordered, other backings, settings' names.
 */
#include <pthread.h>
#include <stdlib.h>

#include "engine/mapped_plan.h"

#define GRANULARITY ((size_t)512)

/* Times the device's memory; fewer where the driver has no more.  A block that stays leaves a gap on either
 * side, so these are for programs that ask for ever larger blocks beside blocks that stay. */
enum { ADDRESSES = 64, LEAST_ADDRESSES = 4 };
enum { ADDRESSES_APART = 8 }; /* a part of them, for requests that name an address */

/* A place of its own is not worth its memory if the shared place lacks at most such a part of what the own place
 * lacks. */
enum { LITTLE_PART = 8 };

/* Finds the window for a request in one of the three ways.  Clean memory is better than the stream's own, and that is
 * better than the memory of other streams.  Sets w->missing to SIZE_MAX if there is no window. */
static void find_place(const struct weir_block_engine *a, int small, size_t bytes, int way,
                       struct weir_mapped_window *w) {
    struct weir_mapped_range *g = a->range;
    struct weir_mapped_window own = {.missing = SIZE_MAX};

    g->piece = 0;
    if (way == SQUEEZED) {
        weir__mapped_find_tail(g, small, bytes, w);
        return;
    }
    for (int what = CLEAN; what >= BEHIND; what--)
        weir__mapped_find_window(g, small, bytes, what, w);
    g->piece = way == LEAST ? 0 : weir__mapped_piece_for(a, bytes);
    if (g->piece == 0)
        return;
    for (int what = CLEAN; what >= BEHIND; what--)
        weir__mapped_find_own(g, bytes, what, &own);
    /* Else it lacks little, or there are no addresses for it. */
    if (w->missing > own.missing / LITTLE_PART)
        *w = own;
}

static weir_status make_room(struct weir_block_engine *a, struct weir_request *r, size_t bytes,
                             int way) {
    struct weir_mapped_range *g = a->range;
    struct weir_mapped_window w = {.missing = SIZE_MAX};
    int small = weir__suballoc_is_small(&a->blocks, r->bytes);
    size_t planned;
    int may;

    if (!weir__mapped_survey(a, r->id))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    find_place(a, small, bytes, way, &w);
    if (w.missing == SIZE_MAX)
        return weir__without_driver(WEIR_E_NO_MEMORY);
    g->most_new = weir__mapped_most_new_for(a, small, bytes);
    g->spare_count = 0;
    may = weir__mapped_may_move(a, way);
    /* Memory that moves before its completion becomes the stream's own.  Without a stream id it would be nobody's. */
    if (may)
        weir__mapped_find_spares(g, &w, r->id != 0 ? BEHIND : CLEAN);
    if (!weir__mapped_plan(a, &w, way == SQUEEZED, &planned))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    if (planned > weir__blocks_room(a) && !may &&
        g->packing->patience > 0) { /* it cannot grow instead */
        weir__mapped_find_spares(g, &w, r->id != 0 ? BEHIND : CLEAN);
        if (!weir__mapped_plan(a, &w, 0, &planned))
            return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    if (planned > weir__blocks_room(a))
        return weir__blocks_are_full(a);
    return weir__mapped_carry_out(a, r, w.what, may && way != SQUEEZED);
}

static weir_status mapped_make_room(struct weir_block_engine *a, struct weir_request *r,
                                    uint64_t reserve) {
    weir_status status;
    size_t bytes;

    (void)reserve; /* a move changes the reserved memory */
    range_of(a)->knows_free = 0;
    /* unreached: an overflow, since no request is above the device's memory */
    if (!weir__size_round_up(r->bytes, GRANULARITY, &bytes))
        return weir__without_driver(WEIR_E_NO_MEMORY);
    weir__suballoc_ask(&a->blocks, r->id, r->stream);
    weir__mapped_lift_shadows(a, 1);
    status = make_room(a, r, bytes, OF_ITS_OWN);
    if (weir__is_failure(status) && range_of(a)->piece > 0)
        status = make_room(a, r, bytes, LEAST);
    if (weir__is_failure(status))
        status = make_room(a, r, bytes, SQUEEZED);
    return status;
}

/* The driver and the device know memory by handles. */
static weir_status check_device(struct weir_device *device) {
    int can = 0;
    CUresult result;

    if (!(device->driver->capabilities & WEIR_CAP_VIRTUAL))
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    result = device->driver->cuDeviceGetAttribute(
        &can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device->ordinal);
    if (result != CUDA_SUCCESS)
        return weir__device_status(device, result);
    return can ? WEIR_OK : weir__without_driver(WEIR_E_NOT_SUPPORTED);
}

static void mapped_close(struct weir_block_engine *a) {
    struct weir_mapped_range *g = a->range;
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_driver_scope scope;

    if (weir__driver_enter(driver, a->e.device->context, &scope) == CUDA_SUCCESS) {
        for (size_t i = 0; i < g->handle_count; i++) {
            (void)driver->cuMemUnmap(g->handles[i].base, g->handles[i].bytes);
            (void)weir__mapped_release(a, g->handles[i].handle);
        }
        for (size_t i = 0; i < g->alias_count; i++) {
            if (g->shadows[i].base != NOWHERE)
                (void)driver->cuMemUnmap(g->shadows[i].base, g->shadows[i].bytes);
            if (g->shadows[i].last)
                (void)weir__mapped_release(a, g->shadows[i].handle);
        }
        (void)driver->cuMemAddressFree(g->base, g->bytes);
        weir__driver_leave(driver, &scope);
    }
    weir__mapped_files_end(&g->files);
    pthread_mutex_destroy(&g->bringing);
    free(g->handles);
    free(g->shadows);
    free(g->pieces);
    free(g->spares);
    free(g->moves);
    free(g);
}

static weir_status mapped_open(struct weir_block_engine *a, const struct weir_engine *setup) {
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_driver_scope scope;
    struct weir_mapped_range *g;
    CUdeviceptr base = 0;
    weir_status status = check_device(a->e.device);
    size_t device = weir__size_round_down(a->e.device->total, PAGE);
    CUresult result;
    int placed;

    (void)setup;
    if (status != WEIR_OK)
        return status;
    g = calloc(1, sizeof *g);
    if (!g)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    g->packing = &weir__mapped_packings[a->e.options->packing];
    g->bytes = device * ADDRESSES;
    result =
        weir__device_mapped_kind(driver, a->e.device->ordinal, a->e.device->decompresses, &g->kind);
    if (result == CUDA_SUCCESS)
        result = weir__driver_enter(driver, a->e.device->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = driver->cuMemAddressReserve(&base, g->bytes, 0, 0, 0);
        while (result == CUDA_ERROR_OUT_OF_MEMORY && g->bytes > device * LEAST_ADDRESSES) {
            g->bytes /= 2;
            result = driver->cuMemAddressReserve(&base, g->bytes, 0, 0, 0);
        }
        weir__driver_leave(driver, &scope);
    }
    if (result != CUDA_SUCCESS) {
        free(g);
        return weir__device_status(a->e.device, result);
    }
    g->base = base;
    if (g->bytes == device * ADDRESSES)
        g->apart = weir__size_round_down(g->bytes / ADDRESSES_APART, PAGE);
    g->access = a->e.device->access;
    a->e.step_bytes = weir__size_smaller(a->e.step_bytes, 2 * g->packing->ahead_most);
    placed = weir__suballoc_add_range(&a->blocks, base, small_base(g) - base, WEIR_SUBALLOC_COMMON);
    if (placed == WEIR_PLACEMENT_OK)
        placed =
            weir__suballoc_add_range(&a->blocks, small_base(g), small_part(g), WEIR_SUBALLOC_SMALL);
    if (placed == WEIR_PLACEMENT_OK && g->apart > 0)
        placed = weir__suballoc_add_range(&a->blocks, apart_base(g), g->apart, WEIR_SUBALLOC_APART);
    if (placed != WEIR_PLACEMENT_OK) {
        (void)driver->cuMemAddressFree(base, g->bytes);
        free(g);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    pthread_mutex_init(&g->bringing, NULL);
    a->range = g;
    return WEIR_OK;
}

const struct weir_backing weir__backing_mapped = {
    .rule = {.placement = {.granularity = GRANULARITY, .split_waste = GRANULARITY, .own_first = 1},
             .small = SMALL},
    .granularity = PAGE,
    .step_bytes = 512 * MIB,
    .traits = WEIR_ENGINE_SETTLES | WEIR_ENGINE_MOVES | WEIR_ENGINE_SHEDS | WEIR_ENGINE_TAKES,
    .open = mapped_open,
    .close = mapped_close,
    .make_room = mapped_make_room,
    .await = weir__mapped_await,
    .place = weir__mapped_place,
    .grow = weir__mapped_grow,
    .shrink = weir__mapped_shrink,
    .foresee = weir__mapped_foresee,
    .wholes = weir__mapped_wholes,
    .largest = weir__mapped_largest,
    .survey = weir__mapped_survey_pieces,
    .allow = weir__mapped_allow,
    .shed = weir__mapped_shed,
};
