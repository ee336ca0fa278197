/* SPDX-License-Identifier: MIT */
/* backing_engine.c: regions of another engine, so that steady state makes no driver call.
 *
 * An inner engine (pool, direct) gives regions, multiples of 32 MiB.  Growth, limits and release stay its own.
 *
 * How much memory that takes is decided by when an idle region is cut.  Cut at once, large regions
 * fill with small blocks and the next large request grows.  Never cut, the reserved memory holds a region for
 * every size there ever was.  So:
 *   Reluctance.  A request passes over idle regions of more than W times its size (and more than
 *                32 MiB).  W starts at 2.
 *   Swaps.       Idle regions go back to the inner engine, on this stream, until its reserved memory has
 *                room for the new region: memory changes its place, and the reserved memory does not rise.
 *                W doubles every 16 swaps.  A swap costs driver calls; a load that keeps needing them
 *                has sizes that do not come in separate crowds, and reluctance is of no use to it.
 *                But while the reserved memory is more than a tenth above all that was ever in use at once,
 *                memory is what is wasted, not calls: then W grows by half every 96 swaps, counted
 *                from when the regions last became more than ever.
 *   Base.        A load of one stream comes down from each of its peaks.  When for the first time no
 *                more than half of the peak is in use, all idle regions are swapped for one, the base,
 *                where requests look first: what was cut up size by size on the way to the first peak
 *                is whole again, and from then on best fit in one large region finds most places.
 *                Idle must be a fifth of the reserved memory, and room for three of the largest request: else
 *                swaps fit better.  Several streams make none: somebody's block would hold it, and it
 *                could not be swapped.  Nor does one whose reserved memory was taken beforehand: the swaps
 *                take milliseconds, which is what taking it early was to spare; nor one that is to
 *                go back: that decays (decay.h), whose limit follows other processes, or that has
 *                others beside it on the device, where the base would hold all of it for one block.
 *   Busy.        While work is pending on the stream the inner engine cannot move what is given back
 *                there: then idle regions are cut, whatever their size.
 *   Growth.      Last.  A block of 17 MiB leaves 15 MiB of its unit over, which no block of its size fits into.  So a
 *                region is for several blocks of a size, as many as waste least, but no more than a quarter of
 *                those that the reserved memory has grown for.
 * Requests of up to 512 KiB have regions of their own, unless there is no memory for another: a small
 * block that stays in the corner of a large region would keep it from ever being idle.  Among equals the newest region
 * serves: it holds the sizes of now.  No choice depends on an address, so the same requests take the same memory on
 * every machine.
 *
 * Stream order.  The inner engine orders a region for the stream that it was asked for on: until the
 * host has observed that stream, no other may have any of it.  A unit that comes from the device is asked for on a
 * stream that runs nothing, and the host waits for that stream: then all may have it.  A region goes back on a stream
 * that may have all of it at once.
 *
 * What does not lie in a region goes to the inner engine as it is: requests under capture, which the
 * pool engine turns into graph memory.
 *
 * A trim waits for the device where idle regions hold frees that were not observed, or regions went back
 * behind such, and gives regions back on a stream of its own that runs nothing, so that the inner engine has
 * them at once.  A trim of completed memory alone (DONE) leaves such regions as they are.
 *
 * Locks: under the block engine's, the inner engine's calls, which may take milliseconds when they grow or wait for the
 * device.  Growth beside requests gives it meanwhile.
 *
 * Must not know: what the inner engine does, settings' names, who is above.
 */
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "engine/block_engine.h"

#define GRANULARITY ((size_t)16 << 10)
#define UNIT WEIR_POOL_UNIT
/* Requests that are kept apart, so that small blocks that stay do not hold large regions. */
#define SMALL ((size_t)512 << 10)
enum { RELUCTANCE = 2, PATIENCE = 16, PATIENCE_WASTEFUL = 96 }; /* swaps */
enum { BASE_PART = 5, BASE_REQUESTS = 3, LOOK_PART = 64 };

/* Sizes of which it is known how often the reserved memory grew for them: requests of 1 MiB or more, and the largest region that
 * is for several blocks. */
enum { GROWN_BITS = 6, GROWN = 1 << GROWN_BITS, GROWN_PART = 4 };
#define GROWN_LEAST ((size_t)1 << 20)
#define GROWN_MOST ((size_t)1 << 30)

struct spans {
    struct weir_block_engine a;
    CUstream resting; /* runs nothing: regions given back there is available by all at once, */
    uint64_t
        resting_id; /* as can those that were taken there.  The lock guards all that follows: */
    double reluctance;
    unsigned swaps, wasteful_swaps; /* since they moved W last, or the latter since `most` rose */
    uint64_t most;                  /* bytes that were ever in regions */
    int base_is_over;               /* it was made, as one in a life, or is not wanted */
    size_t largest;                 /* request */
    uint64_t deepest;               /* bytes that were free in the deepest valley, */
    uint64_t looked_at;             /* and when a base was last thought of */
    uint64_t threshold;             /* bytes in idle regions that are kept after a free */
    /* By a hash of their size, blocks that regions were asked for. */
    struct grown {
        size_t bytes; /* of one */
        size_t count;
    } grown[GROWN];
    uint64_t gone;      /* regions that went back behind work so far */
    uint64_t gone_done; /* of these, the first ones, whose work a wait for the device covered */
    struct weir_fence *behind; /* of these the last that others may wait for; or NULL */
};

/* ---- regions --------------------------------------------------------------------------------- */

/* Bytes of the reserved memory that are in no region. */
static uint64_t room_in(const struct spans *s, uint64_t reserve) {
    return reserve > s->a.blocks.total ? reserve - s->a.blocks.total : 0;
}

/* Is it better to give `a` back than `b`, for `missing` bytes?  Of equals the newer one is. */
static int is_better_spare(const struct weir_suballoc_region *a,
                           const struct weir_suballoc_region *b, uint64_t missing) {
    if (a->bytes == b->bytes)
        return a->place < b->place;
    if (b->bytes < missing)
        return a->bytes > b->bytes;
    return a->bytes >= missing && a->bytes < b->bytes;
}

/* Of the regions that serve: the smallest of at least `missing` bytes, else the largest.  1 and its
 * place in the list, or 0: there is none. */
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

/* With one stream alone nobody waits for what it gives back. */
static void note_work_behind(struct spans *s, weir_stream stream) {
    struct weir_use_list none = {0};

    if (!s->a.blocks.order.several)
        return;
    forget_work_behind(s);
    (void)weir__order_fence(&s->a.blocks.order, stream, &none, &s->behind);
}

/* The device is waited for before the end if there are any, or if the inner engine wants it. */
static void note_regions(struct spans *s) {
    if (s->a.blocks.region_count > 0 || (s->a.inner->traits & WEIR_ENGINE_SETTLES))
        s->a.e.traits |= WEIR_ENGINE_SETTLES;
    else
        s->a.e.traits &= ~(unsigned)WEIR_ENGINE_SETTLES;
}

/* Gives a region that serves the stream of that id back, on `stream`.  Beside a global capture of any
 * thread the driver takes and gives regions in a thread's relaxed mode alone, and breaks the capture of
 * those that do it otherwise (H200, driver 580). */
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
    /* A region is no caller's block: whatever the driver has against its handle, it is the driver's. */
    return status == WEIR_E_NOT_OWNED ? WEIR_E_DRIVER : status;
}

/* Adds a region that came from the inner engine for that stream, or gives it back at once: a placement's result. */
static int take_in(struct spans *s, const struct weir_request *region, int kind, uint64_t id) {
    CUdeviceptr base = region->block;
    size_t bytes = region->bytes;
    int placed = base % GRANULARITY != 0 ? WEIR_PLACEMENT_INVALID
                                         : weir__suballoc_add(&s->a.blocks, base, bytes, kind, id);

    if (placed == WEIR_PLACEMENT_OK) {
        note_regions(s);
    } else if (s->a.inner->ops->free(s->a.inner, base, region->stream, NULL) != WEIR_OK)
        (void)s->a.inner->ops->free(s->a.inner, base, region->stream,
                                    NULL); /* else it would be lost */
    return placed;
}

/* A unit that comes from the device, so that no stream's work is to be waited for: it is asked for on the stream that
 * runs nothing, and all streams may cut it at once. */
static int is_for_all(const struct spans *s, size_t bytes) {
    return bytes == UNIT && s->a.blocks.order.several &&
           room_in(s, weir__blocks_reserve(&s->a)) < UNIT &&
           s->a.e.options->internal_dependencies != WEIR_SWITCH_ON;
}

/* Takes a region of `bytes` from the inner engine. */
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
    if (status == WEIR_OK && for_all) /* the driver has it there, for all to see */
        result = s->a.e.device->driver->cuStreamSynchronize(s->resting);
    if (status == WEIR_OK && result == CUDA_SUCCESS) {
        placed = take_in(s, &region, kind, for_all ? WEIR_ENGINE_OBSERVED : region.id);
    } else if (status == WEIR_OK) {
        status = weir__device_status(s->a.e.device, result);
        if (s->a.inner->ops->free(s->a.inner, region.block, s->resting, NULL) != WEIR_OK)
            (void)take_in(s, &region, kind, region.id); /* else it would be lost */
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

/* For the request. */
static weir_status extend(struct spans *s, struct weir_request *r, size_t bytes) {
    int small = weir__suballoc_is_small(&s->a.blocks, r->bytes);

    return extend_by(s, r, bytes, small ? WEIR_SUBALLOC_SMALL : WEIR_SUBALLOC_COMMON);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The largest idle region that a request may cut. */
static size_t spans_cuts(const struct weir_block_engine *a, size_t bytes) {
    double most = ((const struct spans *)a)->reluctance * (double)bytes;

    if (most >= (double)SIZE_MAX)
        return SIZE_MAX;
    return most > (double)UNIT ? (size_t)most : UNIT;
}

/* 1 every so often. */
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

/* Gives regions back until `needed` bytes of the reserved memory are in none, or none is left that may go. */
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

/* The inner engine refused a region: once more when all that is idle has gone back. */
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

/* What a region of so many bytes has left over for blocks of that size, in 256ths. */
static size_t waste_of(size_t region, size_t bytes) {
    return region % bytes * 256 / region;
}

/* What is known of blocks of that size. */
static struct grown *grown_for(struct spans *s, size_t bytes) {
    const uint32_t hash = (uint32_t)(bytes / GRANULARITY) * UINT32_C(2654435761);

    return &s->grown[hash >> (32 - GROWN_BITS)];
}

/* The reserved memory grows for a block of `bytes', which takes `needed' bytes of whole units: bytes of the region. */
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

/* A region of so many bytes came. */
static void note_grown(struct spans *s, size_t bytes, size_t region) {
    struct grown *g = grown_for(s, bytes);

    if (bytes < GROWN_LEAST)
        return;
    if (g->bytes != bytes)
        *g = (struct grown){.bytes = bytes};
    g->count += region / bytes;
}

/* Takes a region that is for several blocks, or for the one alone where there is no memory for more. */
static weir_status extend_for_several(struct spans *s, struct weir_request *r, size_t bytes,
                                      size_t needed) {
    size_t region = size_to_grow(s, bytes, needed);
    weir_status status = extend(s, r, region);

    if (weir__is_failure(status) && region > needed) {
        struct weir_trim trim = {.mode = WEIR_TRIM_REFUSED}; /* what the driver took for it */

        (void)s->a.inner->ops->trim(s->a.inner, &trim);
        region = needed;
        status = extend(s, r, region);
    }
    if (status == WEIR_OK)
        note_grown(s, bytes, region);
    return status;
}

/* Nothing fits but perhaps large idle regions: with OK there is a region of `needed` bytes, or more. */
static weir_status find_room(struct spans *s, struct weir_request *r, uint64_t reserve,
                             size_t needed) {
    size_t bytes = weir__size_round_down(r->bytes + GRANULARITY - 1, GRANULARITY), at;
    weir_status status;
    int grows;

    weir__suballoc_survey(&s->a.blocks, r->id);
    grows = room_in(s, reserve) < needed && !find_spare(s, UINT64_MAX, &at);
    status = make_room(s, r, reserve, needed);
    if (s->a.blocks.total + needed > s->most) { /* still growing */
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
    if (needed > weir__engine_limit(&a->e)) /* nothing need move for it */
        return weir__without_driver(WEIR_E_LIMIT);
    return find_room((struct spans *)a, r, reserve, needed);
}

/* Work is pending on the stream: units that are given back on it cannot be moved before that is done, so
 * that a swap would grow the reserved memory.  Then any idle region is cut rather than given back. */
static int is_busy(const struct spans *s, weir_stream stream) {
    const struct weir_driver *driver = s->a.e.device->driver;

    return WEIR_RELAXED(driver, driver->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY;
}

/* ---- the base -------------------------------------------------------------------------------- */

/* Half of all that was ever in use is free, about as much as ever was, and more than when it was looked
 * at last. */
static int is_valley(struct spans *s) {
    uint64_t idle = s->a.blocks.total - s->a.blocks.in_use;

    if (s->a.blocks.order.several || s->threshold < UINT64_MAX ||
        s->a.blocks.in_use > s->a.blocks.in_use_peak / 2)
        return 0;
    if (idle > s->deepest)
        s->deepest = idle;
    return idle + idle / LOOK_PART >= s->deepest && idle > s->looked_at + s->looked_at / LOOK_PART;
}

/* Idle regions and room, or 0: it is not worth it, or there is nothing to join. */
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

/* Swaps all that is idle for one region, unless work is pending, so that nothing can be moved.  What
 * is not available is had no worse without it. */
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

/* ---- what lies in no region: memory of a graph, or nobody's ------------------------------------ */

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

/* Gives idle regions beyond the threshold back, so that the driver's own can act; as far as they may
 * go on this stream.  The free that it follows has been done, whatever comes of this. */
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

/* What was taken on request is not for the next free to give back, nor to be moved in the first iteration, which it was
 * to make fast. */
static weir_status spans_grow(struct weir_block_engine *a, uint64_t reserve, uint64_t goal,
                              int cause, size_t *got) {
    struct spans *s = (struct spans *)a;
    weir_status status;

    (void)got; /* the inner engine tells */
    if (cause == WEIR_EVENT_PREALLOC) {
        s->threshold = weir__size_larger(s->threshold, reserve);
        s->base_is_over = 1;
    }
    weir__lock_give(&a->lock);
    status = s->a.inner->ops->grow(s->a.inner, reserve, goal, cause);
    weir__lock_take(&a->lock);
    return status;
}

/* Waits for the device, beside other calls, if a trim could not give all idle regions back otherwise. */
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

/* Idle regions go back until at most `keep` bytes are in regions, and the inner engine trims.  The caller is in the
 * driver's scope. */
static weir_status give_idle_back(struct spans *s, struct weir_trim *trim) {
    weir_status status = trim->mode == WEIR_TRIM_FULLY ? wait_for_idle(s) : WEIR_OK;
    size_t at;

    weir__suballoc_survey(&s->a.blocks, WEIR_ENGINE_UNKNOWN);
    while (status == WEIR_OK && s->a.blocks.total > trim->keep &&
           find_spare(s, s->a.blocks.total - trim->keep, &at))
        status = give_back(s, at, WEIR_ENGINE_OBSERVED, s->resting);
    if (status == WEIR_OK) /* the driver's trim counts as free what the host has observed */
        status = weir__device_status(s->a.e.device,
                                     s->a.e.device->driver->cuStreamSynchronize(s->resting));
    return status == WEIR_OK ? s->a.inner->ops->trim(s->a.inner, trim) : status;
}

static weir_status spans_shrink(struct weir_block_engine *a, struct weir_trim *trim) {
    return WEIR_STATUS_IN_SCOPE(a->e.device, give_idle_back((struct spans *)a, trim));
}

/* At once, regions go back on the stream, as far as they serve it; the inner engine lets those go on to the device that
 * it has done with by now. */
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

/* A new region in place of those that OOM recovery would give back. */
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

/* How that lies which the inner engine has idle is not known. */
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

/* In the scope of the context. */
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

/* What of the inner engine's traits is this one's, too. */
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
    s->base_is_over =
        (setup->traits & WEIR_ENGINE_IS_FOLLOWED) != 0; /* it would hold what is to go */
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
