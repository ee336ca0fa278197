/* SPDX-License-Identifier: MIT */
/* pool.c: requests to a private CUDA memory pool.
 *
 * What: the driver places blocks, orders reuse and grows the pool.  This engine reads the pool's RESERVED attribute once a
 * request to see growth, counts the growth, and adds memory up to the size that the growth policy wants (pool_grow.c).
 *
 * A request that the driver refuses may leave all of the device's memory reserved (H200, driver 580).  The engine gives
 * this memory back after OOM recovery (TRIM_REFUSED), or at once if it is above the limit.
 *
 * The engine switches internal dependencies off, which are the driver's last resort when memory is short: with them an
 * allocation may make its stream wait for another stream's work, or block the host.  oom_recovery.c polls with a deadline
 * instead.
 *
 * driver_blocks.h frees blocks.
 */
#include "engine/pool_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "base/size.h"
#include "config/growth_policy.h"

/* The assumed time of growth by one unit, until a step was timed: 27 to 35 us on an H200. */
#define UNIT_NS UINT64_C(31000)

/* ---- requests ---- */

/* Returns the status of a request that the driver refused for lack of memory: E_LIMIT if the device had enough. */
static weir_status out_of_memory(struct weir_pool_engine *p, size_t bytes) {
    weir_status status = weir__device_status(p->e.device, CUDA_ERROR_OUT_OF_MEMORY);
    size_t most;

    /* unreached: an overflow, since no request is above the device's memory */
    if (limit_of(p) != UINT64_MAX && weir__size_round_up(bytes, UNIT, &most) &&
        (weir__device_free(p->e.device) >= most || weir__pool_read_reserve(p) >= limit_of(p)))
        return weir__without_driver(WEIR_E_LIMIT);
    return status;
}

/* Frees a block that no caller has received.  If the driver refuses, keeps the block as a probe block. */
static void take_back(struct weir_pool_engine *p, CUdeviceptr block, size_t bytes,
                      weir_stream stream) {
    int is_back = weir__async_give(p->e.device, block, stream) == CUDA_SUCCESS;

    pthread_mutex_lock(&p->growing);
    /* unreached: no place for it, for which the driver must have kept as many before */
    if (!is_back && p->probe_count < WEIR_POOL_PROBES) {
        atomic_fetch_add(&p->probing, bytes);
        p->probes[p->probe_count++] = block;
        p->undone = 1;
    }
    atomic_store(&p->peak_has_probes, p->has_figures);
    weir__pool_renew_peak(p);
    pthread_mutex_unlock(&p->growing);
}

/* Waits for the stream if it is idle.  A trim releases only memory that the host has waited for.  The wait takes no time
 * unless another thread submits work just then. */
static void let_driver_see(const struct weir_driver *driver, weir_stream stream) {
    CUstreamCaptureStatus capture;

    if (driver->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
        capture == CU_STREAM_CAPTURE_STATUS_NONE && driver->cuStreamQuery(stream) == CUDA_SUCCESS)
        (void)driver->cuStreamSynchronize(stream);
}

/* A limit that the driver does not know: a request that took the reserved memory past it is undone.  In relaxed mode:
 * otherwise that breaks a capture, which the request may be part of. */
static weir_status undo_alloc(struct weir_pool_engine *p, CUdeviceptr block, size_t bytes,
                              weir_stream stream) {
    const struct weir_driver *driver = p->e.device->driver;
    struct weir_driver_scope scope;
    int relaxed = weir__driver_relax(driver, &scope) == CUDA_SUCCESS;

    take_back(p, block, bytes, stream);
    if (relaxed) {
        let_driver_see(driver, stream);
        (void)driver->cuMemPoolTrimTo(p->e.driver_pool, (size_t)limit_of(p));
        weir__driver_unrelax(driver, &scope);
    }
    pthread_mutex_lock(&p->growing); /* idle memory may have gone with it, and must not come back */
    weir__pool_lower_ceiling(p, weir__pool_read_reserve(p));
    pthread_mutex_unlock(&p->growing);
    return weir__without_driver(WEIR_E_LIMIT);
}

/* With a finite threshold the reserved memory may have fallen since it was seen last: without this, a step
 * that takes it up again to just where it was would be no step. */
static void see_fall(struct weir_pool_engine *p) {
    uint64_t now;

    if (pthread_mutex_trylock(&p->growing) != 0)
        return;
    now = weir__pool_read_reserve(p);
    if (now < atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed)) {
        atomic_store_explicit(&p->e.seen.reserved, now, memory_order_relaxed);
        weir__growth_shrunk(&p->cursor, now);
    }
    weir__pool_lower_ceiling(p, now);
    pthread_mutex_unlock(&p->growing);
}

/* The driver did not simply serve the request, before which the reserved memory was that. */
static __attribute__((noinline, cold)) weir_status
refused(struct weir_pool_engine *p, CUresult result, struct weir_request *r, uint64_t reserve) {
    if (result == CUDA_ERROR_INVALID_CONTEXT)
        result = weir__async_take(p->e.device, p->e.driver_pool, r->bytes, r->stream, &r->block);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        weir_status status = out_of_memory(p, r->bytes);

        weir__pool_note_refused(p, reserve);
        if (exceeds(p))
            weir__pool_undo_growth(p, ceiling_of(p));
        return status;
    }
    return weir__device_status(p->e.device, result);
}

/* The reserved memory has moved, or this pool's table and limit are ours to look after. */
static __attribute__((noinline)) weir_status
look_at_reserve(struct weir_pool_engine *p, struct weir_request *r, uint64_t started) {
    uint64_t reserve;

    if (!p->has_figures && !weir__pool_keep_size(p, r->block, r->bytes)) {
        take_back(p, r->block, r->bytes, r->stream);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    if (exceeds(p) && p->has_figures) {
        CUresult result = ask(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserve);

        if (result != CUDA_SUCCESS || reserve > ceiling_of(p)) {
            weir_status status = undo_alloc(p, r->block, r->bytes, r->stream);

            return result == CUDA_SUCCESS ? status : weir__device_status(p->e.device, result);
        }
    }
    reserve = weir__pool_read_reserve(p);
    if (reserve != atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed))
        r->grew |= weir__pool_reserve_moved(p, r->bytes, started);
    return WEIR_OK;
}

/* Returns 1 after a long time without growth, when requests are not timed, else 0.  Reading the clock costs as much as
 * reading the pool's size (20 ns in a virtual machine).  Growth that is not timed counts with the last time of a unit. */
static int is_steady(struct weir_pool_engine *p) {
    uint32_t quiet = atomic_load_explicit(&p->quiet, memory_order_relaxed);

    if (quiet == WEIR_POOL_STEADY)
        return 1;
    atomic_store_explicit(&p->quiet, quiet + 1, memory_order_relaxed);
    return 0;
}

/* Applies a changed limit.  Reserved memory above the limit stays, and must not rise. */
static __attribute__((noinline, cold)) void see_limit(struct weir_pool_engine *p) {
    pthread_mutex_lock(&p->growing);
    weir__pool_set_ceiling(p, weir__pool_read_reserve(p));
    pthread_mutex_unlock(&p->growing);
}

/* Requests a block from the driver, which orders its reuse, and counts the growth afterwards. */
static weir_status serve(struct weir_pool_engine *p, struct weir_request *r) {
    const struct weir_driver *driver = p->e.device->driver;
    uint64_t started = is_steady(p) ? 0 : driver->ticks(), reserve = 0, limit = limit_of(p);
    uint64_t before = atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed);
    CUresult result;

    if (limit != atomic_load_explicit(&p->limit_seen, memory_order_relaxed))
        see_limit(p);
    if (r->bytes > limit || (!p->has_figures && weir__pool_read_in_use(p) > limit - r->bytes))
        return weir__without_driver(WEIR_E_LIMIT);
    if (p->shrinks)
        see_fall(p);
    if (exceeds(p) && p->has_figures) {
        /* If the pool grew for a block that is undone, the growth would go back only after the stream's work. */
        if (weir__pool_read_in_use(p) > weir__size_less(ceiling_of(p), r->bytes))
            return weir__without_driver(WEIR_E_LIMIT);
        weir__pool_note_used_peak(p); /* the block may have to be undone */
    }
    result = driver->cuMemAllocFromPoolAsync(&r->block, r->bytes, p->e.driver_pool, r->stream);
    if (result != CUDA_SUCCESS) {
        weir_status status = refused(p, result, r, before);

        if (status != WEIR_OK)
            return status;
    }
    if (p->has_figures && ask(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserve) == CUDA_SUCCESS &&
        reserve == atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed) &&
        reserve <= ceiling_of(p))
        return WEIR_OK;
    return look_at_reserve(p, r, started);
}

static weir_status pool_alloc(struct weir_engine *e, struct weir_request *r) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
    weir_status status = serve(p, r);

    if (status == WEIR_OK && (e->traits & WEIR_ENGINE_IS_PEEKED))
        atomic_store_explicit(&e->seen.in_use, weir__pool_read_in_use(p), memory_order_relaxed);
    return status;
}

static weir_status pool_free(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
    size_t bytes = 0;
    weir_status status;

    if (!p->has_figures && !weir__pool_take_size(p, block, &bytes))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = weir__async_free(&p->async, block, stream, uses);
    if (status != WEIR_OK && !p->has_figures)
        (void)weir__pool_keep_size(p, block, bytes); /* the place it left is still there */
    return status;
}

/* ---- what there is ---- */

/* Returns 1 if no block was ever allocated from the pool, so that OOM recovery can trim all of its memory; else 0.  A
 * driver without the figure counts as one whose pool was used. */
static int is_uncut(const struct weir_pool_engine *p) {
    return p->e.options->recovery_timeout_ms != UINT32_MAX &&
           attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 1) == 0 && atomic_load(&p->used_peak) == 0;
}

/* Returns the bytes of the whole units that the pool could add after OOM recovery has released `back` bytes.  A request
 * of this size succeeds however fragmented the pool's free memory is. */
static size_t largest(struct weir_pool_engine *p, uint64_t back) {
    uint64_t reserve = weir__pool_read_reserve(p), stays;

    if (is_uncut(p))
        back = reserve;
    stays = weir__size_less(reserve, back);
    return weir__size_round_down(
        weir__device_room(p->e.device, weir__size_less(limit_of(p), stays), back), UNIT);
}

/* Counts frees that wait for events.  The driver does not report other pending frees.  Driver 580 crashes if a pool is
 * destroyed while frees wait for events (H200), so the allocator's end waits for them. */
static void pool_survey(struct weir_engine *e, struct weir_survey *out) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;

    out->is_untold = 1;
    if (out->what & WEIR_SURVEY_PENDING)
        out->frees.waiting = (size_t)weir__async_is_pending(&p->async);
    if (out->what & WEIR_SURVEY_LARGEST)
        out->largest = largest(p, out->back);
}

/* Shows the addresses of the last preallocation's probe blocks, where later blocks will lie. */
static int pool_visit(struct weir_engine *e, const struct weir_visit *visit) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
    int count;

    if (visit->what != WEIR_VISIT_EXTENTS)
        return -1;
    pthread_mutex_lock(&p->growing);
    count = weir__engine_show(visit, p->preallocated, p->preallocated_count);
    pthread_mutex_unlock(&p->growing);
    return count;
}

/* ---- beginning and end ---- */

static weir_status pool_allow(struct weir_engine *e, const CUmemAccessDesc *access) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
    CUresult result;

    result = WEIR_IN_SCOPE(p->e.device->driver, p->e.device->context,
                           p->e.device->driver->cuMemPoolSetAccess(p->e.driver_pool, access, 1));
    return weir__device_status(p->e.device, result);
}

static CUresult make_pool(struct weir_pool_engine *p) {
    const struct weir_driver *driver = p->e.device->driver;
    CUmemPoolProps properties;
    uint64_t threshold = p->e.threshold;
    int off = 0;
    CUresult result;

    memset(&properties, 0, sizeof properties); /* reserved bytes must be zero */
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = p->e.device->ordinal;
    if (p->e.device->decompresses)
        properties.usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
    if (p->told != UINT64_MAX)
        properties.maxSize = (size_t)p->told;
    result = driver->cuMemPoolCreate(&p->e.driver_pool, &properties);
    if (result != CUDA_SUCCESS)
        return result;
    result = weir__pool_set_attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    if (result == CUDA_SUCCESS)
        result =
            weir__pool_set_attribute(p, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &off);
    if (result == CUDA_SUCCESS && p->e.device->access.count > 1)
        result = driver->cuMemPoolSetAccess(p->e.driver_pool, p->e.device->access.list + 1,
                                            p->e.device->access.count - 1);
    if (result == CUDA_SUCCESS)
        result = driver->cuStreamCreate(&p->grow_stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS)
        driver->cuMemPoolDestroy(p->e.driver_pool);
    return result;
}

static void pool_close(struct weir_engine *e) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
    const struct weir_driver *driver = p->e.device->driver;
    struct weir_driver_scope scope;

    if (weir__driver_enter(driver, p->e.device->context, &scope) == CUDA_SUCCESS) {
        weir__pool_drop_probes(p);
        driver->cuMemPoolDestroy(p->e.driver_pool);
        driver->cuStreamDestroy(p->grow_stream);
        weir__driver_leave(driver, &scope);
    }
    weir__async_close(&p->async);
    weir__map_clear(&p->sizes);
    pthread_mutex_destroy(&p->sizing);
    pthread_mutex_destroy(&p->growing);
    free(p);
}

static const struct weir_engine_ops pool_ops = {
    .alloc = pool_alloc,
    .free = pool_free,
    .give = weir__engine_gives_nothing,
    .grow = weir__pool_grow,
    .trim = weir__pool_trim,
    .allow = pool_allow,
    .figures = weir__pool_figures,
    .survey = pool_survey,
    .visit = pool_visit,
    .close = pool_close,
};

weir_status weir__pool_open(const struct weir_engine *setup, struct weir_engine **out) {
    struct weir_pool_engine *p = calloc(1, sizeof *p);
    struct weir_device *device = setup->device;
    CUresult result;

    if (!p)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    p->e = *setup;
    p->e.ops = &pool_ops;
    /* A pool that is destroyed while frees in it are pending crashes the driver (580) now and then. */
    p->e.traits |=
        WEIR_ENGINE_HIDES_PENDING | WEIR_ENGINE_SETTLES | WEIR_ENGINE_SHEDS | WEIR_ENGINE_TAKES;
    p->e.step_bytes = p->e.least_limit = UNIT;
    atomic_init(&p->unwind_to, UINT64_MAX);
    p->ceiling = p->limit_seen = limit_of(p);
    p->told = device->driver->capabilities & WEIR_CAP_POOL_MAX_SIZE ? p->ceiling : UINT64_MAX;
    p->threshold = setup->threshold;
    p->has_figures = (device->driver->capabilities & WEIR_CAP_POOL_FIGURES) != 0;
    p->shrinks = p->has_figures && setup->threshold < device->total;
    result = WEIR_IN_SCOPE(device->driver, device->context, make_pool(p));
    if (result != CUDA_SUCCESS) {
        free(p);
        return weir__device_status(device, result);
    }
    pthread_mutex_init(&p->growing, NULL);
    weir__async_open(&p->async, device);
    pthread_mutex_init(&p->sizing, NULL);
    p->unit_ns = UNIT_NS;
    *out = &p->e;
    return WEIR_OK;
}
