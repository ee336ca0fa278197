/* SPDX-License-Identifier: MIT */
/* mapped_grow.c: growth that no request waits for.
 *
 * Locks: this file creates and maps physical allocations without the arena's lock, so that requests that find room
 * meanwhile do not wait for the driver.  Their bytes already count as reserved memory.  One thread at a time holds
 * `bringing` for all of it.  A thread that has to grow waits for `bringing` first, since the new memory may be enough
 * for it, and then keeps the arena's lock, so that nothing is placed in the unmapped range where the new memory comes.
 */
#include "engine/mapped_state.h"

/* the part of new memory that small requests get, less their idle memory */
enum { PREALLOC_SMALL = 16 };

void weir__mapped_begin_bringing(struct weir_block_engine *a) {
    struct weir_mapped_range *g = a->range;

    weir__lock_give(&a->lock);
    pthread_mutex_lock(&g->bringing);
    weir__lock_take(&a->lock);
}

void weir__mapped_end_bringing(struct weir_block_engine *a) {
    pthread_mutex_unlock(&range_of(a)->bringing);
}

int weir__mapped_await(struct weir_block_engine *a, const struct weir_request *r) {
    (void)r;
    if (range_of(a)->coming == 0)
        return 0;
    weir__mapped_begin_bringing(a);
    weir__mapped_end_bringing(a);
    return 1;
}

/* Finds the unmapped range behind all memory of large or of small requests.  Returns 1 if there is one, 0 otherwise. */
static int last_unmapped(const struct weir_block_engine *a, int small, uint64_t *base,
                         size_t *bytes) {
    return weir__placement_last_unmapped(
        a->blocks.placement[small ? WEIR_SUBALLOC_SMALL : WEIR_SUBALLOC_COMMON], base, bytes);
}

/* Finds the part of the last unmapped range that lies behind all aliased mappings.  Returns 1 if there is one, 0
 * otherwise. */
static int find_end(const struct weir_block_engine *a, int small, uint64_t *at, size_t *bytes) {
    const struct weir_mapped_range *g = a->range;
    uint64_t end;

    if (!last_unmapped(a, small, at, bytes))
        return 0;
    end = *at + *bytes;
    for (size_t i = 0; i < g->alias_count; i++)
        if (g->shadows[i].base >= *at && g->shadows[i].base < end)
            *at = g->shadows[i].base + g->shadows[i].bytes;
    *bytes = (size_t)(end - *at);
    return *bytes > 0;
}

/* Returns the bytes, in whole pages, of small requests' memory that can serve any small request once its uses are
 * completed. */
static size_t idle_small(const struct weir_mapped_range *g) {
    size_t bytes = 0;

    for (size_t i = g->small_pieces; i < g->apart_pieces; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        bytes += p->what == TAKEN || p->what == UNMAPPED || p->what == ALIAS || p->bytes < SMALL
                     ? 0
                     : p->bytes;
    }
    return weir__size_round_down(bytes, PAGE);
}

/* Makes a physical allocation of `bytes` and maps it in the last unmapped range.  *added is the growth of reserved
 * memory. */
static weir_status bring(struct weir_block_engine *a, int small, uint64_t at, size_t bytes,
                         size_t *added) {
    struct weir_mapped_range *g = a->range;
    struct weir_mapped_move m = {.to = {.base = at, .bytes = bytes}};
    weir_status status;
    uint64_t before, peak = a->reserved_peak, unmapped = at;
    size_t rest;

    if (!weir__mapped_make_place(g, 1, 1))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    g->coming = bytes;
    a->kept += bytes;
    weir__blocks_grown(a);
    weir__lock_give(&a->lock);
    status = weir__mapped_make_and_map(a, &m);
    weir__lock_take(&a->lock);
    g->coming = 0;
    a->kept -= bytes;
    before = weir__blocks_reserve(a);
    (void)last_unmapped(a, small, &unmapped, &rest);
    status = weir__mapped_enter(a, status, unmapped, &m, WEIR_ENGINE_OBSERVED);
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
        status = bring(a, small, at, step, &added);
        *got += added;
        bytes -= weir__size_smaller(added, bytes);
        if (status == WEIR_E_NO_MEMORY && step > PAGE) {
            most = weir__size_round_down(step / 2, PAGE);
            status = WEIR_OK;
        }
    }
    return status;
}

weir_status weir__mapped_grow(struct weir_block_engine *a, uint64_t reserve, uint64_t goal,
                              int cause, size_t *got) {
    struct weir_driver_scope scope;
    weir_status status = WEIR_OK;
    size_t lacks, bytes, small, most, room;
    uint64_t at;
    CUresult result;

    weir__mapped_begin_bringing(a);
    weir__mapped_lift_shadows(a, 1);
    most = weir__mapped_most_ahead(a, weir__size_larger(reserve, goal), cause);
    lacks = (size_t)weir__size_less(reserve, weir__blocks_reserve(a));
    bytes = weir__size_round_down(weir__size_smaller(lacks, weir__blocks_room(a)), PAGE);
    if (!weir__mapped_survey(a, 0)) {
        weir__mapped_end_bringing(a);
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
    weir__mapped_end_bringing(a);
    weir__blocks_grown(a);
    if (status == WEIR_OK && *got < lacks)
        return weir__blocks_are_full(a);
    return status;
}
