/* SPDX-License-Identifier: MIT */
/* backing_engine.c: regions of another engine, so that steady state makes no driver call.
 *
 * The inner engine (pool, direct) provides regions, multiples of 32 MiB.  It decides on growth, limits and release.
 *
 * The reserved memory depends on when an idle region is cut.  If it is cut at once, large regions fill with small
 * blocks and the next large request grows.  If it is never cut, there is a region for each former size.  So:
 *   Reluctance.  A request does not cut idle regions of more than W times its size (and more than 32 MiB).  W is 2
 *                at first.
 *   Swaps.       Idle regions go back to the inner engine, on the request's stream, until its reserved memory has
 *                room for the new region, so that reserved memory does not rise.  W doubles every 16 swaps, since a
 *                load that keeps needing them has sizes for which reluctance is of no use.  But while the reserved
 *                memory is more than a tenth above the peak in use, W grows by half every 96 swaps, counted from when
 *                the regions last reached a new peak: then memory is scarcer than driver calls.
 *   Base.        When a load of one stream for the first time has no more than half of its peak in use, all idle
 *                regions are swapped for one, the base, which requests try first: best fit in one large region finds
 *                most places from then on.  The idle memory must be a fifth of the reserved memory, and three times the
 *                largest request; else swaps fit better.  There is no base with several streams, since any stream's
 *                block would pin it; nor for preallocated memory, whose first iteration must not wait for swaps; nor
 *                where memory goes back to other processes or decays (goal.h), since one block would pin all of it.
 *   Busy.        While work is pending on the stream, the inner engine cannot reuse a region given back there, so that
 *                idle regions of any size are cut.
 *   Growth.      Growth comes last.  A block of 17 MiB leaves 15 MiB of its unit over, which no block of its size fits
 *                into.  So a region is for several blocks of a size, as many as waste least, but no more than a quarter
 *                of those that the reserved memory has grown for.
 * Requests of up to 512 KiB have their own regions, unless there is no memory for another: a small block that stays
 * would keep a large region from ever being idle.  Of regions that fit equally well the newest serves, since it has the
 * present sizes.  No choice depends on an address, so the same requests take the same memory on every machine.
 *
 * Stream order.  The inner engine orders a region for the stream that requested it: until the host has observed that
 * stream, no other stream may have any of it.  A unit that comes from the device is requested on a stream that runs
 * nothing, and the host waits for that stream: then all may have it.  A region goes back on a stream that may have all
 * of it at once.
 *
 * Memory that lies in no region is the inner engine's: requests under capture, which the pool engine turns into memory
 * of graphs.
 *
 * A trim waits for the device if idle regions have frees that were not observed, or regions went back behind such
 * frees.  It gives regions back on the stream that runs nothing, so that the inner engine has them at once.  A trim of
 * completed memory alone (DONE) leaves such regions as they are.
 *
 * Locks: the inner engine is called under the block engine's lock, and may take milliseconds when it grows or waits for
 * the device.  Growth beside requests releases the lock meanwhile.
 *
 * This file must not know settings' names, the layers above or what the inner engine does.
 */
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "engine/block_engine.h"

#define GRANULARITY ((size_t)16 << 10)
#define UNIT WEIR_POOL_UNIT
/* Requests of up to SMALL bytes have their own regions, so that a small block does not pin a large one. */
#define SMALL ((size_t)512 << 10)
/* the initial W, and the swaps after which W grows */
enum { RELUCTANCE = 2, PATIENCE = 16, PATIENCE_WASTEFUL = 96 };
enum { BASE_PART = 5, BASE_REQUESTS = 3, LOOK_PART = 64 };

/* The engine counts how often reserved memory grew for a size of GROWN_LEAST bytes or more.  A region for several
 * blocks has GROWN_MOST bytes at most. */
enum { GROWN_BITS = 6, GROWN = 1 << GROWN_BITS, GROWN_PART = 4 };
#define GROWN_LEAST ((size_t)1 << 20)
#define GROWN_MOST ((size_t)1 << 30)

struct spans {
    struct weir_block_engine a;
    /* runs nothing: all streams may use a region given back or allocated on it at once */
    CUstream resting;
    /* the id of `resting` */
    uint64_t resting_id;
    double reluctance;
    /* swaps since W grew last; wasteful_swaps: also since `most` rose */
    unsigned swaps, wasteful_swaps;
    uint64_t most;      /* the peak of the bytes in regions */
    int base_is_over;   /* set once a base region was made, or if none is wanted */
    size_t largest;     /* the bytes of the largest request */
    uint64_t deepest;   /* the peak of free bytes while at most half of the peak was in use */
    uint64_t looked_at; /* the value of `deepest` when a base was last considered */
    uint64_t threshold; /* the bytes of idle regions that stay after a free */
    /* For each size, by a hash, the blocks for which reserved memory grew. */
    struct grown {
        size_t bytes; /* the size */
        size_t count;
    } grown[GROWN];
    uint64_t gone; /* the number of regions that went back behind work so far */
    /* the number of these, from the first on, that a wait for the device has covered */
    uint64_t gone_done;
    /* The fence of the last region that went back, for which other streams may wait; or NULL. */
    struct weir_fence *behind;
};

/* ---- regions --------------------------------------------------------------------------------- */

/* Returns the bytes of reserved memory that are in no region. */
static uint64_t room_in(const struct spans *s, uint64_t reserve) {
    return reserve > s->a.blocks.total ? reserve - s->a.blocks.total : 0;
}

/* Returns 1 if region `a` is better to give back than `b`, for `missing` bytes.  Of equal ones the newer is better. */
static int is_better_spare(const struct weir_suballoc_region *a,
                           const struct weir_suballoc_region *b, uint64_t missing) {
    if (a->bytes == b->bytes)
        return a->place < b->place;
    if (b->bytes < missing)
        return a->bytes > b->bytes;
    return a->bytes >= missing && a->bytes < b->bytes;
}

/* Finds the region to give back, among those that serve the stream of the survey: the smallest of at least `missing`
 * bytes, else the largest.  Returns 1 and its index in *at, or 0 if there is none. */
static int find_spare(const struct spans *s, uint64_t missing, size_t *at) {
    const struct weir_suballoc_region *best = NULL;

    for (size_t i = 0; i < s->a.blocks.region_count; i++) {
        const struct weir_suballoc_region *r = &s->a.blocks.regions[i];

        if (r->serves && (!best || is_better_spare(r, best, missing)))
            best = r;
    }
    if (best)
        *at = (size_t)(best - s->a.blocks.regions);
    return best != NULL;
}

static void forget_work_behind(struct spans *s) {
    if (s->behind)
        weir__order_fence_drop(&s->a.blocks.order, s->behind);
    s->behind = NULL;
}

/* Records a fence for the work that a region went back behind.  With one stream no other stream could wait for it. */
static void note_work_behind(struct spans *s, weir_stream stream) {
    struct weir_use_list none = {0};

    if (!s->a.blocks.order.several)
        return;
    forget_work_behind(s);
    (void)weir__order_fence(&s->a.blocks.order, stream, &none, &s->behind);
}

/* Sets SETTLES if there are regions or the inner engine has it: then the caller waits for the device before the end. */
static void note_regions(struct spans *s) {
    if (s->a.blocks.region_count > 0 || (s->a.inner->traits & WEIR_ENGINE_SETTLES))
        s->a.e.traits |= WEIR_ENGINE_SETTLES;
    else
        s->a.e.traits &= ~(unsigned)WEIR_ENGINE_SETTLES;
}

/* Gives the region back on `stream`, whose id it serves.  This thread's capture mode is relaxed: otherwise the driver
 * refuses the call beside another thread's global capture, and breaks a capture of this thread (H200, driver 580). */
static weir_status give_back(struct spans *s, size_t at, uint64_t id, weir_stream stream) {
    const struct weir_driver *driver = s->a.e.device->driver;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_relax(driver, &scope);
    weir_status status;

    if (result != CUDA_SUCCESS)
        return weir__device_status(s->a.e.device, result);
    status = s->a.inner->ops->free(s->a.inner, s->a.blocks.regions[at].base, stream, NULL);
    if (status == WEIR_OK && stream != s->resting &&
        (s->a.inner->traits & WEIR_ENGINE_HIDES_PENDING)) {
        s->gone++;
        note_work_behind(s, stream);
    }
    weir__driver_unrelax(driver, &scope);
    if (status == WEIR_OK) {
        weir__suballoc_remove(&s->a.blocks, at, id);
        note_regions(s);
    }
    /* A region is no block of a caller, so an error about it is an error of the driver. */
    return status == WEIR_E_NOT_OWNED ? WEIR_E_DRIVER : status;
}

/* Adds a region that the stream with that id may use, or gives it back on an error.  Returns a placement's result. */
static int take_in(struct spans *s, const struct weir_request *region, int kind, uint64_t id) {
    CUdeviceptr base = region->block;
    size_t bytes = region->bytes;
    int placed = base % GRANULARITY != 0 ? WEIR_PLACEMENT_INVALID
                                         : weir__suballoc_add(&s->a.blocks, base, bytes, kind, id);

    if (placed == WEIR_PLACEMENT_OK) {
        note_regions(s);
    } else if (s->a.inner->ops->free(s->a.inner, base, region->stream, NULL) != WEIR_OK)
        (void)s->a.inner->ops->free(s->a.inner, base, region->stream,
                                    NULL); /* else the region would be lost */
    return placed;
}

/* Returns 1 if the region is a unit that will come from the device, not from another stream's memory.  Then it is
 * allocated on the stream that runs nothing, and all streams may cut it at once.  Returns 0 otherwise. */
static int is_for_all(const struct spans *s, size_t bytes) {
    return bytes == UNIT && s->a.blocks.order.several &&
           room_in(s, weir__blocks_reserve(&s->a)) < UNIT &&
           s->a.e.options->internal_dependencies != WEIR_SWITCH_ON;
}

/* Allocates a region of `bytes` from the inner engine. */
static weir_status extend_by(struct spans *s, struct weir_request *r, size_t bytes, int kind) {
    int for_all = is_for_all(s, bytes);
    struct weir_request region = {.bytes = bytes,
                                  .asked = bytes,
                                  .stream = for_all ? s->resting : r->stream,
                                  .id = for_all ? s->resting_id : r->id,
                                  .flags = r->flags};
    struct weir_driver_scope scope;
    CUresult result = weir__driver_relax(s->a.e.device->driver, &scope);
    int placed = WEIR_PLACEMENT_OK;
    weir_status status;

    if (result != CUDA_SUCCESS)
        return weir__device_status(s->a.e.device, result);
    if (bytes >= WEIR_ENGINE_LARGE &&
        weir__engine_would_refuse(&s->a.e, r, bytes, room_in(s, weir__blocks_reserve(&s->a))))
        status = weir__device_status(s->a.e.device, CUDA_ERROR_OUT_OF_MEMORY);
    else
        status = s->a.inner->ops->alloc(s->a.inner, &region);
    if (status == WEIR_OK && for_all) /* lets all streams use the region */
        result = s->a.e.device->driver->cuStreamSynchronize(s->resting);
    if (status == WEIR_OK && result == CUDA_SUCCESS) {
        placed = take_in(s, &region, kind, for_all ? WEIR_ENGINE_OBSERVED : region.id);
    } else if (status == WEIR_OK) {
        status = weir__device_status(s->a.e.device, result);
        /* else the region would be lost */
        if (s->a.inner->ops->free(s->a.inner, region.block, s->resting, NULL) != WEIR_OK)
            (void)take_in(s, &region, kind, region.id);
    }
    weir__driver_unrelax(s->a.e.device->driver, &scope);
    if (placed == WEIR_PLACEMENT_OK) {
        r->grew |= status == WEIR_OK && region.grew;
        return status;
    }
    if (placed == WEIR_PLACEMENT_NO_MEMORY)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    weir__log(s->a.e.options->log, WEIR_LOG_ERROR,
              "the driver placed a region at 0x%llx, which is no multiple of 16 KiB",
              (unsigned long long)region.block);
    return weir__without_driver(WEIR_E_DRIVER);
}

/* Allocates a region of the request's kind. */
static weir_status extend(struct spans *s, struct weir_request *r, size_t bytes) {
    int small = weir__suballoc_is_small(&s->a.blocks, r->bytes);

    return extend_by(s, r, bytes, small ? WEIR_SUBALLOC_SMALL : WEIR_SUBALLOC_COMMON);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Returns the bytes of the largest idle region that a request may cut. */
static size_t spans_cuts(const struct weir_block_engine *a, size_t bytes) {
    double most = ((const struct spans *)a)->reluctance * (double)bytes;

    if (most >= (double)SIZE_MAX)
        return SIZE_MAX;
    return most > (double)UNIT ? (size_t)most : UNIT;
}

/* Counts a swap.  Returns 1 at every swap number `patience`, else 0. */
static int is_out_of_patience(unsigned *count, unsigned patience) {
    if (++*count < patience)
        return 0;
    *count = 0;
    return 1;
}

static void count_swap(struct spans *s, uint64_t reserve) {
    uint64_t peak = s->a.blocks.in_use_peak;

    if (reserve < peak || reserve - peak <= reserve / 11) {
        if (is_out_of_patience(&s->swaps, PATIENCE))
            s->reluctance *= 2;
    } else if (is_out_of_patience(&s->wasteful_swaps, PATIENCE_WASTEFUL)) {
        s->reluctance *= 1.5;
    }
}

/* Gives regions back until `needed` bytes of reserved memory are in no region, or no other region may go. */
static weir_status make_room(struct spans *s, struct weir_request *r, uint64_t reserve,
                             uint64_t needed) {
    uint64_t room = room_in(s, reserve);
    weir_status status = WEIR_OK;
    size_t at;

    while (status == WEIR_OK && room < needed && find_spare(s, needed - room, &at)) {
        room += s->a.blocks.regions[at].bytes;
        status = give_back(s, at, r->id, r->stream);
        count_swap(s, reserve);
    }
    return status;
}

/* Gives all idle regions back after the inner engine refused a region, and tries again. */
static weir_status extend_at_last(struct spans *s, struct weir_request *r, size_t bytes,
                                  weir_status why) {
    weir_status status = WEIR_OK;
    int any = 0;
    size_t at;

    while (status == WEIR_OK && find_spare(s, UINT64_MAX, &at)) {
        status = give_back(s, at, r->id, r->stream);
        any = 1;
    }
    if (status != WEIR_OK)
        return status;
    return any ? extend(s, r, bytes) : why;
}

/* Returns the part of a region, in 256ths, that blocks of that size leave over. */
static size_t waste_of(size_t region, size_t bytes) {
    return region % bytes * 256 / region;
}

/* Returns the counter for blocks of that size, which another size may share. */
static struct grown *grown_for(struct spans *s, size_t bytes) {
    const uint32_t hash = (uint32_t)(bytes / GRANULARITY) * UINT32_C(2654435761);

    return &s->grown[hash >> (32 - GROWN_BITS)];
}

/* Returns the bytes of a region by which memory grows for a block of `bytes`, which needs `needed` bytes in units. */
static size_t size_to_grow(struct spans *s, size_t bytes, size_t needed) {
    const struct grown *g = grown_for(s, bytes);
    size_t blocks = 2, best = needed;

    if (bytes < GROWN_LEAST || g->bytes != bytes)
        return needed;
    for (; blocks <= 1 + g->count / GROWN_PART && blocks * bytes <= GROWN_MOST; blocks++) {
        const size_t region = (blocks * bytes + UNIT - 1) / UNIT * UNIT;

        if (waste_of(region, bytes) < waste_of(best, bytes))
            best = region;
    }
    return best;
}

/* Counts the blocks of that size that a new region has room for. */
static void note_grown(struct spans *s, size_t bytes, size_t region) {
    struct grown *g = grown_for(s, bytes);

    if (bytes < GROWN_LEAST)
        return;
    if (g->bytes != bytes)
        *g = (struct grown){.bytes = bytes};
    g->count += region / bytes;
}

/* Allocates a region for several blocks of the size, or for one if there is no memory for more. */
static weir_status extend_for_several(struct spans *s, struct weir_request *r, size_t bytes,
                                      size_t needed) {
    size_t region = size_to_grow(s, bytes, needed);
    weir_status status = extend(s, r, region);

    if (weir__is_failure(status) && region > needed) {
        /* undoes the growth for the failed request */
        struct weir_trim trim = {.mode = WEIR_TRIM_REFUSED};

        (void)s->a.inner->ops->trim(s->a.inner, &trim);
        region = needed;
        status = extend(s, r, region);
    }
    if (status == WEIR_OK)
        note_grown(s, bytes, region);
    return status;
}

/* Makes a region of `needed` bytes or more, after no region that the request may cut had room. */
static weir_status find_room(struct spans *s, struct weir_request *r, uint64_t reserve,
                             size_t needed) {
    size_t bytes = weir__size_round_down(r->bytes + GRANULARITY - 1, GRANULARITY), at;
    weir_status status;
    int grows;

    weir__suballoc_survey(&s->a.blocks, r->id);
    grows = room_in(s, reserve) < needed && !find_spare(s, UINT64_MAX, &at);
    status = make_room(s, r, reserve, needed);
    if (s->a.blocks.total + needed > s->most) { /* the regions reach a new peak */
        s->most = s->a.blocks.total + needed;
        s->wasteful_swaps = 0;
    }
    if (status == WEIR_OK)
        status = grows ? extend_for_several(s, r, bytes, needed) : extend(s, r, needed);
    if (weir__is_failure(status))
        status = extend_at_last(s, r, needed, status);
    return status;
}

static int spans_has_room(const struct weir_block_engine *a, const struct weir_request *r,
                          uint64_t reserve) {
    size_t needed;

    return weir__size_round_up(r->bytes, UNIT, &needed) &&
           room_in((const struct spans *)a, reserve) >= needed;
}

static weir_status spans_make_room(struct weir_block_engine *a, struct weir_request *r,
                                   uint64_t reserve) {
    size_t needed;

    if (!weir__size_round_up(r->bytes, UNIT, &needed))
        return weir__without_driver(WEIR_E_NO_MEMORY);
    if (needed > weir__engine_limit(&a->e)) /* no region needs to move for it */
        return weir__without_driver(WEIR_E_LIMIT);
    return find_room((struct spans *)a, r, reserve, needed);
}

/* Returns 1 if work is pending on the stream.  A region that is given back on it cannot be reused before that, so a
 * swap would grow the reserved memory. */
static int is_busy(const struct spans *s, weir_stream stream) {
    const struct weir_driver *driver = s->a.e.device->driver;

    return WEIR_RELAXED(driver, driver->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY;
}

/* ---- the base -------------------------------------------------------------------------------- */

/* Returns 1 if half of the peak or more is free, about as much as ever, and more than when a base was last
 * considered. */
static int is_valley(struct spans *s) {
    uint64_t idle = s->a.blocks.total - s->a.blocks.in_use;

    if (s->a.blocks.order.several || s->threshold < UINT64_MAX ||
        s->a.blocks.in_use > s->a.blocks.in_use_peak / 2)
        return 0;
    if (idle > s->deepest)
        s->deepest = idle;
    return idle + idle / LOOK_PART >= s->deepest && idle > s->looked_at + s->looked_at / LOOK_PART;
}

/* Returns the bytes of the idle regions and of the room, or 0 if a base is not worth it or there is nothing to join. */
static size_t size_of_base(struct spans *s, struct weir_request *r, uint64_t reserve) {
    uint64_t idle = room_in(s, reserve);
    size_t pieces = idle >= UNIT;

    weir__suballoc_survey(&s->a.blocks, r->id);
    for (size_t i = 0; i < s->a.blocks.region_count; i++) {
        if (!s->a.blocks.regions[i].serves)
            continue;
        idle += s->a.blocks.regions[i].bytes;
        pieces++;
    }
    if (pieces < 2 || idle < reserve / BASE_PART || idle / BASE_REQUESTS < s->largest)
        return 0;
    return weir__size_round_down((size_t)idle, UNIT);
}

/* Swaps all idle memory for one region, unless work is pending on the stream, so that no memory can move. */
static void make_base(struct spans *s, struct weir_request *r) {
    weir_status status = WEIR_OK;
    size_t bytes, at;

    if (s->a.blocks.region_count > 1 && is_busy(s, r->stream))
        return;
    s->looked_at = s->deepest;
    bytes = s->a.blocks.region_count > 1 ? size_of_base(s, r, weir__blocks_reserve(&s->a)) : 0;
    if (bytes == 0 || (s->a.e.events->peers && weir__process_peers_any(s->a.e.events->peers)))
        return;
    s->base_is_over = 1;
    while (status == WEIR_OK && find_spare(s, UINT64_MAX, &at))
        status = give_back(s, at, r->id, r->stream);
    if (status == WEIR_OK)
        (void)extend_by(s, r, bytes, WEIR_SUBALLOC_BASE);
    r->foretold = 0;
}

static void spans_prepare(struct weir_block_engine *a, struct weir_request *r) {
    struct spans *s = (struct spans *)a;

    if (r->bytes > s->largest)
        s->largest = r->bytes;
    if (!s->base_is_over && is_valley(s))
        make_base(s, r);
}

static int spans_await(struct weir_block_engine *a, const struct weir_request *r) {
    return r && !weir__suballoc_is_dry(&a->blocks, r) && is_busy((struct spans *)a, r->stream);
}

/* ---- blocks in no region: memory of graphs, and foreign blocks ------------------------------------ */

static weir_status spans_free_other(struct weir_block_engine *a, CUdeviceptr block,
                                    weir_stream stream, struct weir_use_list *uses) {
    struct spans *s = (struct spans *)a;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_relax(a->e.device->driver, &scope);
    weir_status status;

    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    status = s->a.inner->ops->free(s->a.inner, block, stream, uses);
    weir__driver_unrelax(a->e.device->driver, &scope);
    return status;
}

/* ---- frees ----------------------------------------------------------------------------------- */

/* Gives idle regions beyond the threshold back, so that the driver's threshold can act, as far as they serve this
 * stream.  An error does not matter to the free before it. */
static void spans_settle(struct weir_block_engine *a, uint64_t id, weir_stream stream) {
    struct spans *s = (struct spans *)a;
    uint64_t idle = 0;
    size_t at;

    if (s->a.blocks.total - s->a.blocks.in_use <= s->threshold)
        return;
    weir__suballoc_survey(&s->a.blocks, id);
    for (size_t i = 0; i < s->a.blocks.region_count; i++)
        idle += s->a.blocks.regions[i].idle ? s->a.blocks.regions[i].bytes : 0;
    if (idle <= s->threshold)
        return;
    if (weir__device_capture(s->a.e.device, stream) == WEIR_OK) {
        while (idle > s->threshold && find_spare(s, idle - s->threshold, &at)) {
            idle -= s->a.blocks.regions[at].bytes;
            if (give_back(s, at, id, stream) != WEIR_OK)
                break;
        }
    }
}

/* ---- reserve --------------------------------------------------------------------------------- */

static weir_status spans_allow(struct weir_block_engine *a, const CUmemAccessDesc *access) {
    struct spans *s = (struct spans *)a;

    return s->a.inner->ops->allow(s->a.inner, access);
}

/* Grows the inner engine.  Preallocated memory must outlast the next free, and no base may delay the first
 * iteration. */
static weir_status spans_grow(struct weir_block_engine *a, uint64_t reserve, uint64_t goal,
                              int cause, size_t *got) {
    struct spans *s = (struct spans *)a;
    weir_status status;

    (void)got; /* the inner engine records the growth */
    if (cause == WEIR_EVENT_PREALLOC) {
        s->threshold = weir__size_larger(s->threshold, reserve);
        s->base_is_over = 1;
    }
    weir__lock_give(&a->lock);
    status = s->a.inner->ops->grow(s->a.inner, reserve, goal, cause);
    weir__lock_take(&a->lock);
    return status;
}

/* Waits for the device, beside other calls, if otherwise a trim could not give all idle regions back. */
static weir_status wait_for_idle(struct spans *s) {
    uint64_t gone = s->gone;
    weir_status status;
    int dirty = gone > s->gone_done;

    weir__suballoc_survey(&s->a.blocks, WEIR_ENGINE_UNKNOWN);
    for (size_t i = 0; i < s->a.blocks.region_count; i++)
        dirty |= s->a.blocks.regions[i].idle && !s->a.blocks.regions[i].serves;
    status = weir__device_status(s->a.e.device,
                                 weir__suballoc_wait_beside(&s->a.blocks, &s->a.lock, dirty));
    if (status != WEIR_OK || !dirty)
        return status;
    s->gone_done = weir__size_larger(s->gone_done, gone);
    if (s->gone == gone)
        forget_work_behind(s);
    return WEIR_OK;
}

/* Gives idle regions back until at most `keep` bytes are in regions, and trims the inner engine.  The caller is in the
 * driver's scope. */
static weir_status give_idle_back(struct spans *s, struct weir_trim *trim) {
    weir_status status = trim->mode == WEIR_TRIM_FULLY ? wait_for_idle(s) : WEIR_OK;
    size_t at;

    weir__suballoc_survey(&s->a.blocks, WEIR_ENGINE_UNKNOWN);
    while (status == WEIR_OK && s->a.blocks.total > trim->keep &&
           find_spare(s, s->a.blocks.total - trim->keep, &at))
        status = give_back(s, at, WEIR_ENGINE_OBSERVED, s->resting);
    if (status == WEIR_OK) /* the driver's trim needs the host to have observed the frees */
        status = weir__device_status(s->a.e.device,
                                     s->a.e.device->driver->cuStreamSynchronize(s->resting));
    return status == WEIR_OK ? s->a.inner->ops->trim(s->a.inner, trim) : status;
}

static weir_status spans_shrink(struct weir_block_engine *a, struct weir_trim *trim) {
    return WEIR_STATUS_IN_SCOPE(a->e.device, give_idle_back((struct spans *)a, trim));
}

/* Gives regions back without a wait: on the caller's stream those that serve it.  The inner engine then trims the
 * memory that is complete. */
static weir_status spans_shed(struct weir_block_engine *a, struct weir_trim *trim) {
    struct spans *s = (struct spans *)a;
    size_t at;

    if (trim->mode == WEIR_TRIM_DONE)
        return spans_shrink(a, trim);
    weir__suballoc_survey(&a->blocks, trim->id);
    while (a->blocks.total > trim->keep && find_spare(s, a->blocks.total - trim->keep, &at))
        if (give_back(s, at, trim->id, trim->stream) != WEIR_OK)
            break;
    (void)s->a.inner->ops->trim(s->a.inner, trim);
    return WEIR_OK;
}

/* ---- what there is --------------------------------------------------------------------------- */

/* Returns the bytes of the largest new region if OOM recovery gives all idle regions back. */
static size_t spans_largest(struct weir_block_engine *a, const struct weir_survey *asked) {
    struct spans *s = (struct spans *)a;
    struct weir_survey below = {.what = WEIR_SURVEY_LARGEST, .id = asked->id, .back = asked->back};

    weir__suballoc_survey(&a->blocks, asked->id);
    for (size_t i = 0; i < a->blocks.region_count; i++)
        if (a->blocks.regions[i].serves && a->e.options->recovery_timeout_ms != UINT32_MAX)
            below.back += a->blocks.regions[i].bytes;
    s->a.inner->ops->survey(s->a.inner, &below);
    return weir__size_round_down((size_t)below.largest, UNIT);
}

/* Adds the inner engine's figures.  The engine does not know how the inner engine's idle memory lies. */
static void spans_survey(struct weir_block_engine *a, struct weir_survey *out) {
    struct spans *s = (struct spans *)a;

    if ((out->what & WEIR_SURVEY_IDLE) &&
        room_in(s, weir__blocks_reserve(&s->a)) > out->largest_free)
        out->largest_free = UINT64_MAX;
    if (!(out->what & WEIR_SURVEY_PENDING))
        return;
    out->frees.waiting += weir__engine_reclaim(s->a.inner, NULL);
    if (s->behind && weir__order_fence_done(&a->blocks.order, s->behind))
        forget_work_behind(s);
    out->frees.silent += s->behind != NULL;
}

static int spans_wholes(struct weir_block_engine *a, const struct weir_visit *visit) {
    return a->e.traits & WEIR_ENGINE_TAKES ? weir__suballoc_show(&a->blocks, visit) : -1;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Makes the stream that runs nothing.  The caller is in the driver's scope. */
static CUresult make_resting(struct spans *s) {
    const struct weir_driver *driver = s->a.e.device->driver;
    CUresult result = driver->cuStreamCreate(&s->resting, CU_STREAM_NON_BLOCKING);

    if (result != CUDA_SUCCESS)
        return result;
    result = weir__device_stream_id(s->a.e.device, s->resting, &s->resting_id);
    if (result != CUDA_SUCCESS)
        driver->cuStreamDestroy(s->resting);
    return result;
}

static void spans_close(struct weir_block_engine *a) {
    struct spans *s = (struct spans *)a;
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_driver_scope scope;

    if (weir__driver_enter(driver, a->e.device->context, &scope) == CUDA_SUCCESS) {
        for (size_t i = 0; i < a->blocks.region_count; i++)
            (void)s->a.inner->ops->free(s->a.inner, a->blocks.regions[i].base, s->resting, NULL);
        driver->cuStreamDestroy(s->resting);
        weir__driver_leave(driver, &scope);
    }
    forget_work_behind(s);
    s->a.inner->ops->close(s->a.inner);
}

/* The traits of the inner engine that this engine takes over. */
enum { OF_INNER = WEIR_ENGINE_SETTLES | WEIR_ENGINE_SHEDS | WEIR_ENGINE_TAKES };

static weir_status spans_open(struct weir_block_engine *a, const struct weir_engine *setup) {
    struct spans *s = (struct spans *)a;
    weir_status status = setup->options->engine == WEIR_ENGINE_DIRECT
                             ? weir__direct_open(setup, &s->a.inner)
                             : weir__pool_open(setup, &s->a.inner);

    if (status != WEIR_OK)
        return status;
    status =
        weir__device_status(setup->device, WEIR_IN_SCOPE(setup->device->driver,
                                                         setup->device->context, make_resting(s)));
    if (status != WEIR_OK) {
        s->a.inner->ops->close(s->a.inner);
        return status;
    }
    a->e.traits |= s->a.inner->traits & OF_INNER;
    a->e.step_bytes = s->a.inner->step_bytes;
    a->e.driver_pool = s->a.inner->driver_pool;
    s->reluctance = RELUCTANCE;
    s->threshold = setup->threshold < setup->device->total ? setup->threshold : UINT64_MAX;
    /* a base would hold memory that is to go back */
    s->base_is_over = (setup->traits & WEIR_ENGINE_IS_FOLLOWED) != 0;
    return WEIR_OK;
}

const struct weir_backing weir__backing_engine = {
    .size = sizeof(struct spans),
    .rule = {.placement = {.granularity = GRANULARITY, .split_waste = GRANULARITY},
             .small = SMALL,
             .newest_first = 1},
    .granularity = UNIT,
    .least_limit = UNIT,
    .open = spans_open,
    .close = spans_close,
    .prepare = spans_prepare,
    .cuts = spans_cuts,
    .await = spans_await,
    .has_room = spans_has_room,
    .make_room = spans_make_room,
    .free_other = spans_free_other,
    .settle = spans_settle,
    .grow = spans_grow,
    .shrink = spans_shrink,
    .shed = spans_shed,
    .allow = spans_allow,
    .wholes = spans_wholes,
    .largest = spans_largest,
    .survey = spans_survey,
};
