/* SPDX-License-Identifier: MIT */
/* backing_mapped.c: an arena in one range of addresses, with physical memory mapped where it is needed.
 *
 * Addresses cost nothing, so the range is many times as large as the device.  Its parts without memory are unmapped
 * ranges.  The engine makes room for a request in up to three ways: with the request's own physical allocations, at the
 * place that lacks least memory, or at the end of the range, with all idle memory.
 *
 * Requests that name an address (weir_request.at) have a part of the range, so that their owner's memory grows in one
 * piece.  Only physical allocations whose last uses have completed move there.
 *
 * Growth ahead of requests creates and maps physical allocations without the arena's lock, so that requests that find
 * room meanwhile do not wait for the driver.  Their bytes already count as reserved memory.  One thread at a time holds
 * `bringing` for all of it.  A thread that has to grow waits for `bringing` first, since the new memory may be enough
 * for it, and then keeps the arena's lock, so that nothing is placed in the unmapped range where the new memory comes.
 *
 * This file must not know other backings, settings' names, or how blocks are placed and ordered.
 */
#include <pthread.h>
#include <stdlib.h>

#include "engine/mapped_state.h"

#define GRANULARITY ((size_t)512)

/* The range is ADDRESSES times as large as the device's memory, or less if the driver refuses.  A block that stays
 * leaves a gap on either side, so a program with ever larger blocks needs many addresses. */
enum { ADDRESSES = 64, LEAST_ADDRESSES = 4 };
/* the parts of the range for small requests, and for requests that name an address */
enum { ADDRESSES_SMALL = 16, ADDRESSES_APART = 8 };

static weir_status make_room(struct weir_block_engine *a, struct weir_request *r, size_t bytes,
                             int way) {
    struct weir_mapped_range *g = a->range;
    struct weir_mapped_window w;
    int small = weir__suballoc_is_small(&a->blocks, r->bytes);
    size_t planned;
    int may;

    if (!weir__mapped_survey(a, r->id))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    weir__mapped_find_place(a, small, bytes, way, &w);
    if (w.missing == SIZE_MAX)
        return weir__without_driver(WEIR_E_NO_MEMORY);
    g->spare_count = 0;
    may = weir__mapped_may_move(a, way);
    /* Memory that moves before its uses complete becomes the stream's own, so the stream must have an id. */
    if (may)
        weir__mapped_find_spares(g, &w, r->id != 0 ? BEHIND : CLEAN);
    if (!weir__mapped_plan(a, &w, way == SQUEEZED, &planned))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    /* the arena cannot grow instead */
    if (planned > weir__blocks_room(a) && !may && g->packing->patience > 0) {
        weir__mapped_find_spares(g, &w, r->id != 0 ? BEHIND : CLEAN);
        if (!weir__mapped_plan(a, &w, 0, &planned))
            return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    if (planned > weir__blocks_room(a))
        return weir__blocks_are_full(a);
    return WEIR_STATUS_IN_SCOPE(a->e.device,
                                weir__mapped_carry_out(a, r, w.what, may && way != SQUEEZED));
}

static weir_status mapped_make_room(struct weir_block_engine *a, struct weir_request *r,
                                    uint64_t reserve) {
    weir_status status;
    size_t bytes;

    (void)reserve; /* a move changes the reserved memory */
    a->range->knows_free = 0;
    /* unreached: an overflow, since no request is above the device's memory */
    if (!weir__size_round_up(r->bytes, GRANULARITY, &bytes))
        return weir__without_driver(WEIR_E_NO_MEMORY);
    weir__suballoc_ask(&a->blocks, r->id, r->stream);
    weir__mapped_lift_shadows(a, 1);
    status = make_room(a, r, bytes, OF_ITS_OWN);
    if (weir__is_failure(status) && a->range->piece > 0)
        status = make_room(a, r, bytes, LEAST);
    if (weir__is_failure(status))
        status = make_room(a, r, bytes, SQUEEZED);
    return status;
}

/* ---- growth that no request waits for ---- */

/* the part of new memory that small requests get, less their idle memory */
enum { PREALLOC_SMALL = 16 };

/* Takes `bringing`.  Releases the arena's lock, which the caller holds, meanwhile. */
static void mapped_begin_bringing(struct weir_block_engine *a) {
    struct weir_mapped_range *g = a->range;

    weir__lock_give(&a->lock);
    pthread_mutex_lock(&g->bringing);
    weir__lock_take(&a->lock);
}

static void mapped_end_bringing(struct weir_block_engine *a) {
    pthread_mutex_unlock(&a->range->bringing);
}

static int mapped_await(struct weir_block_engine *a, const struct weir_request *r) {
    (void)r;
    if (a->range->coming == 0)
        return 0;
    mapped_begin_bringing(a);
    mapped_end_bringing(a);
    return 1;
}

/* Finds the part behind all aliased mappings of the unmapped range that is behind all memory of large or of small
 * requests.  Returns 1 if there is one, 0 otherwise. */
static int find_end(const struct weir_block_engine *a, int small, uint64_t *at, size_t *bytes) {
    const struct weir_mapped_range *g = a->range;
    uint64_t end;

    if (!weir__placement_last_unmapped(
            a->blocks.placement[small ? WEIR_SUBALLOC_SMALL : WEIR_SUBALLOC_COMMON], at, bytes))
        return 0;
    end = *at + *bytes;
    for (size_t i = 0; i < g->alias_count; i++)
        if (g->shadows[i].base >= *at && g->shadows[i].base < end)
            *at = g->shadows[i].base + g->shadows[i].bytes;
    *bytes = (size_t)(end - *at);
    return *bytes > 0;
}

/* Returns the bytes of small requests' memory, in whole pages, that any small request may have once its uses
 * complete. */
static size_t idle_small(const struct weir_mapped_range *g) {
    size_t bytes = 0;

    for (size_t i = g->small_pieces; i < g->apart_pieces; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        bytes += p->what == UNMAPPED || p->what == ALIAS || p->bytes < SMALL ? 0 : p->bytes;
    }
    return weir__size_round_down(bytes, PAGE);
}

/* Makes a physical allocation of `bytes`, and maps it in the last unmapped range.  *added gets the bytes of growth. */
static weir_status bring(struct weir_block_engine *a, uint64_t at, size_t bytes, size_t *added) {
    struct weir_mapped_range *g = a->range;
    struct weir_mapped_move m = {.to = {.base = at, .bytes = bytes}};
    weir_status status;
    uint64_t before, peak = a->reserved_peak;

    if (!weir__mapped_make_place(g, 1, 1))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    g->coming = bytes;
    a->kept += bytes;
    weir__blocks_grown(a);
    weir__lock_give(&a->lock);
    status = weir__mapped_map(a, &m);
    weir__lock_take(&a->lock);
    g->coming = 0;
    a->kept -= bytes;
    before = weir__blocks_reserve(a);
    status = weir__mapped_enter(a, status, &m, WEIR_ENGINE_OBSERVED);
    if (m.in_hand)
        weir__mapped_release_handle(a, m.to);
    if (status != WEIR_OK) { /* no other thread has grown meanwhile */
        a->reserved_peak = peak;
        weir__blocks_grown(a);
    }
    /* includes memory that the driver did not take back */
    *added = (size_t)(weir__blocks_reserve(a) - before);
    return status;
}

/* Adds `bytes` to the memory of large or of small requests, behind its end, in physical allocations of up to `most`. */
static weir_status grow_kind(struct weir_block_engine *a, int small, size_t bytes, size_t most,
                             size_t *got) {
    weir_status status = WEIR_OK;

    while (status == WEIR_OK) {
        size_t added = 0, room, step;
        uint64_t at;

        /* The limit may have been lowered meanwhile. */
        bytes = weir__size_smaller(bytes, weir__size_round_down(weir__blocks_room(a), PAGE));
        if (bytes == 0)
            break;
        if (!find_end(a, small, &at, &room))
            return weir__without_driver(WEIR_E_NO_MEMORY);
        step = weir__size_smaller(weir__size_smaller(bytes, room), most);
        status = bring(a, at, step, &added);
        *got += added;
        bytes -= weir__size_smaller(added, bytes);
        if (status == WEIR_E_NO_MEMORY && step > PAGE) {
            most = weir__size_round_down(step / 2, PAGE);
            status = WEIR_OK;
        }
    }
    return status;
}

static weir_status mapped_grow(struct weir_block_engine *a, uint64_t reserve, uint64_t goal,
                               int cause, size_t *got) {
    struct weir_driver_scope scope;
    weir_status status = WEIR_OK;
    size_t lacks, bytes, small, most, room;
    uint64_t at;
    CUresult result;

    mapped_begin_bringing(a);
    weir__mapped_lift_shadows(a, 1);
    most = weir__mapped_most_ahead(a, weir__size_larger(reserve, goal), cause);
    lacks = (size_t)weir__size_less(reserve, weir__blocks_reserve(a));
    bytes = weir__size_round_down(weir__size_smaller(lacks, weir__blocks_room(a)), PAGE);
    if (!weir__mapped_survey(a, 0)) {
        mapped_end_bringing(a);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    small = weir__size_round_down(within(PAGE, bytes / PREALLOC_SMALL, SPARE_SMALL), PAGE);
    small = bytes > PAGE ? (size_t)weir__size_less(small, idle_small(a->range)) : 0;
    small = weir__size_smaller(small, bytes);
    result = weir__driver_enter(a->e.device->driver, a->e.device->context, &scope);
    if (!find_end(a, 1, &at, &room)) /* all addresses of small requests are in use */
        small = 0;
    if (result == CUDA_SUCCESS) {
        status = grow_kind(a, 0, bytes - small, most, got);
        if (status == WEIR_OK)
            status = grow_kind(a, 1, small, most, got);
        weir__driver_leave(a->e.device->driver, &scope);
    } else {
        status = weir__device_status(a->e.device, result);
    }
    mapped_end_bringing(a);
    weir__blocks_grown(a);
    if (status == WEIR_OK && *got < lacks)
        return weir__blocks_are_full(a);
    return status;
}

/* ---- requests that name an address ---- */

/* Returns the middle of the largest unmapped range, so that memory on either side can grow, or NOWHERE. */
static uint64_t find_far(const struct weir_mapped_range *g, size_t bytes) {
    uint64_t at = NOWHERE;
    size_t most = 2 * bytes;

    for (size_t i = g->apart_pieces; i < g->piece_count; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        if (p->what != UNMAPPED || p->bytes <= most)
            continue;
        most = p->bytes;
        at = p->base == g->apart_base ? p->base
                                      : p->base + weir__size_round_down(p->bytes / 2, PAGE);
    }
    return at;
}

static weir_status mapped_place(struct weir_block_engine *a, struct weir_request *r,
                                struct weir_placement_block *out) {
    struct weir_mapped_range *g = a->range;
    struct weir_mapped_window w = {.what = CLEAN};
    weir_status status;
    size_t planned;
    int may, placed;

    (void)mapped_await(a, r);
    weir__suballoc_ask(&a->blocks, r->id, r->stream);
    weir__suballoc_look_around(&a->blocks);
    weir__mapped_lift_shadows(a, 1);
    if (!weir__mapped_survey(a, r->id))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    w.base = r->at == WEIR_ENGINE_FAR ? find_far(g, r->bytes) : r->at;
    w.end = w.base + r->bytes;
    if (w.base == NOWHERE || w.end > g->end)
        return weir__without_driver(WEIR_E_NO_MEMORY);
    g->spare_count = 0;
    may = weir__mapped_may_move(a, LEAST);
    if (may)
        weir__mapped_find_spares(g, &w, CLEAN);
    status = weir__mapped_plan_at(a, &w, &planned);
    if (weir__is_failure(status) && !may) { /* the arena cannot grow instead */
        weir__mapped_find_spares(g, &w, CLEAN);
        status = weir__mapped_plan_at(a, &w, &planned);
    }
    if (status != WEIR_OK)
        return status;
    /* each stream records an event for its frees at its next call */
    if (planned > 0)
        weir__suballoc_dry(&a->blocks);
    status = WEIR_STATUS_IN_SCOPE(a->e.device, weir__mapped_carry_out(a, r, CLEAN, may));
    if (status != WEIR_OK)
        return status;
    placed = weir__suballoc_take_at(&a->blocks, w.base, r->bytes, r->id, out);
    /* The free memory before the window has joined it, so that no free chunk starts there. */
    return placed == WEIR_PLACEMENT_NO_FIT ? weir__without_driver(WEIR_E_NO_MEMORY)
                                           : weir__blocks_placed(placed);
}

/* ---- trims ---- */

/* Returns 1 if a physical allocation is left in aliased mappings alone and has uncompleted uses, else 0. */
static int has_unseen_alias(const struct weir_block_engine *a) {
    const struct weir_mapped_range *g = a->range;

    for (size_t at = 0; at < g->alias_count; at++)
        if (g->shadows[at].last && !weir__mapped_is_seen(a, &g->shadows[at]))
            return 1;
    return 0;
}

static weir_status lift_and_release(struct weir_block_engine *a,
                                    const struct weir_mapped_spare *s) {
    struct weir_mapped_handle h;
    weir_status status = weir__mapped_lift(a, NULL, s->piece, s->base, &h);

    if (status == WEIR_OK)
        weir__mapped_release_handle(a, h);
    return status;
}

/* Gives idle physical allocations back, the highest first, until at most `keep` bytes are left.  Sets *unseen if more
 * would be idle once their uses complete. */
static weir_status give_idle(struct weir_block_engine *a, size_t keep, int *unseen) {
    struct weir_mapped_range *g = a->range;
    const struct weir_mapped_window none = {0};
    struct weir_driver_scope scope;
    weir_status status = WEIR_OK;
    CUresult result;

    weir__mapped_lift_shadows(a, 0);
    if (!weir__mapped_survey(a, 0))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    weir__mapped_find_spares(g, &none, OTHERS);
    if (!weir__mapped_make_place(g, 0, g->spare_count))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    result = weir__driver_enter(a->e.device->driver, a->e.device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    for (size_t i = g->spare_count; i-- > 0;) {
        const struct weir_mapped_spare *s = &g->spares[i];

        if (s->what != CLEAN)
            *unseen = 1;
        else if (status == WEIR_OK && weir__blocks_reserve(a) >= keep + s->bytes)
            status = lift_and_release(a, s);
    }
    *unseen |= has_unseen_alias(a);
    weir__driver_leave(a->e.device->driver, &scope);
    return status;
}

static weir_status mapped_shrink(struct weir_block_engine *a, struct weir_trim *trim) {
    int unseen = 0;
    weir_status status = give_idle(a, trim->keep, &unseen);

    if (status != WEIR_OK || weir__blocks_reserve(a) <= trim->keep || !unseen)
        return status;
    status = weir__device_status(a->e.device, weir__suballoc_wait_beside(&a->blocks, &a->lock, 1));
    return status == WEIR_OK ? give_idle(a, trim->keep, &unseen) : status;
}

static weir_status mapped_shed(struct weir_block_engine *a, struct weir_trim *trim) {
    int unseen = 0;
    uint64_t before = weir__blocks_reserve(a);

    (void)give_idle(a, trim->keep, &unseen);
    a->range->has_shed |= weir__blocks_reserve(a) < before;
    return WEIR_OK;
}

/* ---- access and descriptors ---- */

/* Returns the access that a device has now. */
static CUmemAccess_flags flags_of(const struct weir_access *access, CUdevice device) {
    for (size_t i = 0; i < access->count; i++)
        if (access->list[i].location.id == device)
            return access->list[i].flags;
    return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

/* Sets a device's access to all mapped memory, but not to aliased mappings, which no later work uses. */
static weir_status mapped_allow(struct weir_block_engine *a, const CUmemAccessDesc *access) {
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_mapped_range *g = a->range;
    CUmemAccessDesc before = *access;
    struct weir_driver_scope scope;
    CUresult result;
    size_t i;

    mapped_begin_bringing(a);
    result = weir__driver_enter(driver, a->e.device->context, &scope);
    if (result != CUDA_SUCCESS) {
        mapped_end_bringing(a);
        return weir__device_status(a->e.device, result);
    }
    before.flags = flags_of(&g->access, access->location.id);
    for (i = 0; i < g->handle_count && result == CUDA_SUCCESS; i++)
        result = driver->cuMemSetAccess(g->handles[i].base, g->handles[i].bytes, access, 1);
    if (result == CUDA_SUCCESS)
        weir__peers_note(&g->access, access);
    else
        while (i-- > 0)
            (void)driver->cuMemSetAccess(g->handles[i].base, g->handles[i].bytes, &before, 1);
    weir__driver_leave(driver, &scope);
    mapped_end_bringing(a);
    return weir__device_status(a->e.device, result);
}

/* Appends the physical allocations of the range to `out`.  A live block lies there, so no part is unmapped.  Each
 * physical allocation is mapped whole, at one address beside its aliased mappings.  The caller holds the lock, in the
 * driver's scope. */
static weir_status list_files(struct weir_block_engine *a, uint64_t base, size_t bytes,
                              struct weir_memory_files *out) {
    struct weir_mapped_range *g = a->range;
    weir_status status = WEIR_OK;
    uint64_t at = base;

    for (size_t i = handle_above(g, base); at < base + bytes && status == WEIR_OK; i++) {
        const struct weir_mapped_handle *h = &g->handles[i];

        if (i == g->handle_count || h->base > at)
            return weir__without_driver(WEIR_E_NOT_OWNED);
        status = weir__mapped_files_add(&g->files, a->e.device, h->handle,
                                        &(struct weir_memory_file){h->base, h->bytes, -1, 0}, out);
        at = h->base + h->bytes;
    }
    return status;
}

weir_status weir__mapped_share(struct weir_engine *e, uint64_t base, size_t bytes,
                               struct weir_memory_files *out) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;
    struct weir_mapped_range *g = a->range;
    struct weir_driver_scope scope;
    weir_status status;
    CUresult result;
    uint64_t mark;

    if (g->kind.requestedHandleTypes == 0)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    weir__lock_take(&a->lock);
    result = weir__driver_enter(e->device->driver, e->device->context, &scope);
    status = weir__device_status(e->device, result);
    if (status == WEIR_OK) {
        mark = weir__mapped_files_mark();
        status = list_files(a, base, bytes, out);
        if (status != WEIR_OK)
            weir__mapped_files_undo(&g->files, mark);
        weir__driver_leave(e->device->driver, &scope);
    }
    weir__lock_give(&a->lock);
    return status;
}

/* ---- what there is ---- */

/* Programs will probably use this part of the device's memory, or FORESEEN_MOST bytes if that is less, so the engine
 * makes host tables for it when it opens. */
enum { FORESEEN_PART = 8 };
#define FORESEEN_MOST ((size_t)8 << 30)

static int mapped_wholes(struct weir_block_engine *a, const struct weir_visit *visit) {
    const struct weir_mapped_range *g = a->range;
    int count = 0;

    for (size_t i = 0; i < g->handle_count; i++)
        count += weir__engine_show(
            visit, &(struct weir_extent){.base = g->handles[i].base, .bytes = g->handles[i].bytes},
            1);
    return count;
}

/* Returns the bytes of the largest request that fits behind the last memory: free memory there, idle memory that can
 * move there, and new memory. */
static size_t mapped_largest(struct weir_block_engine *a, const struct weir_survey *asked) {
    struct weir_mapped_range *g = a->range;
    struct weir_mapped_window tail;
    size_t bytes;

    if (!weir__mapped_survey(a, asked->id))
        return 0;
    weir__mapped_find_tail(g, 0, 0, &tail);
    if (tail.missing > 0)
        return 0;
    tail.end = g->pieces[g->small_pieces - 1].base;
    weir__mapped_find_spares(g, &tail, CLEAN);
    bytes = weir__size_round_down(weir__device_room(a->e.device, weir__blocks_room(a), 0), PAGE);
    bytes += (size_t)(tail.end - tail.base);
    for (size_t i = 0; i < g->spare_count; i++)
        bytes += g->spares[i].bytes;
    bytes = (size_t)weir__size_smaller(bytes,
                                       tail.end + g->pieces[g->small_pieces - 1].bytes - tail.base);
    return weir__suballoc_is_small(&a->blocks, bytes) ? 0 : bytes;
}

/* Lists the beginnings of the addresses of small and of large requests. */
static size_t mapped_foresee(const struct weir_block_engine *a, struct weir_extent *out) {
    const struct weir_mapped_range *g = a->range;
    size_t bytes = weir__size_smaller(a->e.device->total / FORESEEN_PART, FORESEEN_MOST), n;

    n = weir__engine_extend(out, 0, WEIR_BLOCKS_FORESEEN,
                            (struct weir_extent){.base = g->small_base, .bytes = SPARE_SMALL});
    return weir__engine_extend(out, n, WEIR_BLOCKS_FORESEEN,
                               (struct weir_extent){.base = g->base,
                                                    .bytes = weir__size_round_down(bytes, PAGE),
                                                    .large = 1});
}

static void mapped_survey_pieces(struct weir_block_engine *a, struct weir_survey *out) {
    struct weir_placement *p = a->blocks.placement[WEIR_SUBALLOC_COMMON];

    if (!(out->what & WEIR_SURVEY_PIECES))
        return;
    out->piece.largest = weir__placement_largest(p, 0);
    out->piece.last = weir__placement_tail(p);
}

/* ---- beginning and end ---- */

/* Checks that the driver and the device support physical allocations. */
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
        (void)driver->cuMemAddressFree(g->base, (size_t)(g->end - g->base));
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

/* Reserves the range of addresses, and divides it between the kinds of requests.  The caller is in the driver's
 * scope. */
static CUresult reserve_addresses(const struct weir_device *device, struct weir_mapped_range *g) {
    const size_t total = weir__size_round_down(device->total, PAGE);
    size_t bytes = total * ADDRESSES, apart = 0;
    CUdeviceptr base = 0;
    CUresult result = device->driver->cuMemAddressReserve(&base, bytes, 0, 0, 0);

    while (result == CUDA_ERROR_OUT_OF_MEMORY && bytes > total * LEAST_ADDRESSES) {
        bytes /= 2;
        result = device->driver->cuMemAddressReserve(&base, bytes, 0, 0, 0);
    }
    if (bytes == total * ADDRESSES)
        apart = weir__size_round_down(bytes / ADDRESSES_APART, PAGE);
    g->base = base;
    g->end = base + bytes;
    g->apart_base = g->end - apart;
    g->small_base = g->apart_base - weir__size_round_down(bytes / ADDRESSES_SMALL, PAGE);
    return result;
}

/* Adds the addresses from `base` to `end`, if there are any, for a kind of requests.  Returns a placement's result. */
static int add_addresses(struct weir_block_engine *a, int kind, uint64_t base, uint64_t end) {
    return end == base ? WEIR_PLACEMENT_OK
                       : weir__suballoc_add(&a->blocks, base, (size_t)(end - base), kind, 0);
}

static weir_status mapped_open(struct weir_block_engine *a, const struct weir_engine *setup) {
    struct weir_device *device = a->e.device;
    const struct weir_driver *driver = device->driver;
    weir_status status = check_device(device);
    struct weir_mapped_range *g;
    CUresult result;
    int placed;

    (void)setup;
    if (status != WEIR_OK)
        return status;
    g = calloc(1, sizeof *g);
    if (!g)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    result = weir__device_mapped_kind(driver, device->ordinal, device->decompresses, &g->kind);
    if (result == CUDA_SUCCESS)
        result = WEIR_IN_SCOPE(driver, device->context, reserve_addresses(device, g));
    if (result != CUDA_SUCCESS) {
        free(g);
        return weir__device_status(device, result);
    }
    g->packing = &weir__mapped_packings[a->e.options->packing];
    g->access = device->access;
    a->e.step_bytes = weir__size_smaller(a->e.step_bytes, 2 * g->packing->ahead_most);
    placed = add_addresses(a, WEIR_SUBALLOC_COMMON, g->base, g->small_base);
    if (placed == WEIR_PLACEMENT_OK)
        placed = add_addresses(a, WEIR_SUBALLOC_SMALL, g->small_base, g->apart_base);
    if (placed == WEIR_PLACEMENT_OK)
        placed = add_addresses(a, WEIR_SUBALLOC_APART, g->apart_base, g->end);
    if (placed != WEIR_PLACEMENT_OK) {
        (void)driver->cuMemAddressFree(g->base, (size_t)(g->end - g->base));
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
    .await = mapped_await,
    .place = mapped_place,
    .grow = mapped_grow,
    .shrink = mapped_shrink,
    .foresee = mapped_foresee,
    .wholes = mapped_wholes,
    .largest = mapped_largest,
    .survey = mapped_survey_pieces,
    .allow = mapped_allow,
    .shed = mapped_shed,
};
