/* SPDX-License-Identifier: MIT */
/* pool.c: a private CUDA memory pool, with growth by policy.
 *
 * The driver places blocks, orders reuse and grows when it must; this engine sees what it did by the
 * pool's RESERVED attribute (one question a request), accounts for it, and tops the reserve up to
 * what the growth policy wants.  The driver has no "would this fit?" call and a step first
 * consumes free units, so a step is made by probe blocks, allocated on a stream that runs nothing
 * else and held until RESERVED has risen as far as wanted; freed there, every stream can have the
 * room at once.  "Got" is always the rise of RESERVED, never the size asked.
 *
 * A trim of the driver's gives back what the host has waited for on the stream that freed it; neither what is
 * done nor what was waited for by the way (cuMemFree) counts, and what would count for all streams
 * (cuCtxSynchronize) breaks captures (H200, driver 580).  So what is done is taken by probe blocks too, unit by
 * unit, which the driver lets another stream have; freed on the stream that runs nothing, and that
 * waited for, it goes.
 *
 * A request that the driver refuses may leave all reserved that the device had (H200, driver 580): that goes back
 * once the ladder has done with it (TRIM_REFUSED), or at once where it is past the limit.
 *
 * Internal dependencies (the driver's last resort when memory is short) are switched off: with them
 * an allocation puts its stream behind another's work unasked, or even blocks the host for as long as that
 * takes.  oom_ladder.c polls with a deadline instead.
 *
 * Frees are driver_blocks.h's.
 *
 * Locks: `growing` is held while the reserve is raised, trimmed or unwound; the books' lock and `sizing` are taken
 * under it, and a growth callback runs there.  The hit path takes no lock, but `growing` by a try where the
 * release threshold is finite.
 *
 * Without the pool figures (driver 11.2) sizes are kept in a table, and the reserve is estimated as
 * the peak of what was in use, in units.
 *
 * Must not know: other engines, settings' names, how a trace or a front uses it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "base/size.h"
#include "config/growth_policy.h"
#include "driver/nvtx.h"
#include "engine/driver_blocks.h"
#include "engine/engine.h"

#define UNIT WEIR_POOL_UNIT
/* Probe blocks are at most this large, so that one step holds the driver's lock for about 1 ms. */
#define PROBE_BYTES ((size_t)1 << 30)
enum { MAX_PROBES = 512, MAX_EXTENTS = 16 };
/* Requests without growth after which the next ones are no longer timed: see steady(). */
enum { STEADY_REQUESTS = 4096 };
/* What a unit costs to grow by, until a step was timed: 27 to 35 us on an H200. */
#define UNIT_NS UINT64_C(31000)

struct pool {
    struct weir_engine e;
    CUstream grow_stream; /* runs nothing: what is freed there is free for all at once */
    uint64_t told;        /* of the limit to the driver, in whole units; UINT64_MAX: nothing */
    /* The least that it was as a request began that the driver refused; UINT64_MAX: none was, since the last unwind. */
    _Atomic uint64_t unwind_to;
    int has_figures; /* the driver tells RESERVED and USED */
    /* What the reserve may rise to: the limit, or what it was when that was seen, as long as it has not fallen.
     * Written under `growing`, as is the limit that it was made of. */
    _Atomic uint64_t ceiling, limit_seen;
    uint64_t threshold;       /* the pool's; raised under `growing` */
    int shrinks;              /* a synchronisation may lower the reserve: the threshold is finite */
    _Atomic uint32_t quiet;   /* requests since the last growth, up to STEADY_REQUESTS */
    _Atomic uint64_t unit_ns; /* what growth by a unit took when it was timed last */
    _Atomic uint64_t used, reserve_peak; /* as last seen by pool_figures */
    _Atomic uint64_t used_peak;          /* the most that was seen, probe blocks left out */
    pthread_mutex_t growing;
    struct weir_growth_cursor cursor; /* guarded by `growing` */
    /* Likewise.  Between steps: blocks that nobody has, and that the driver did not take back yet. */
    CUdeviceptr probes[MAX_PROBES];
    /* Where those of the last preallocation lay, which took all that was idle too. */
    struct weir_extent primed[MAX_EXTENTS];
    size_t primed_count;
    int is_priming;               /* the step under way is a preallocation */
    _Atomic uint32_t probe_count; /* also read without the lock */
    _Atomic uint64_t probing;     /* bytes in probe blocks, before they are asked for */
    _Atomic uint32_t raises;      /* times that there were any */
    _Atomic int peak_has_probes;  /* the driver's own peak counts them, and tells nothing */
    int undone;                   /* one of them lies behind work of another stream */

    struct weir_async async; /* how blocks are freed */

    pthread_mutex_t sizing; /* without figures only: guards what follows */
    struct weir_map sizes;  /* address -> bytes */
    uint64_t in_use;
    uint64_t in_use_peak;
};

static uint64_t limit_of(const struct pool *p) {
    return weir__engine_limit(&p->e);
}

/* There is a limit that the driver does not know. */
static int exceeds(const struct pool *p) {
    return limit_of(p) < p->told;
}

static uint64_t ceiling_of(const struct pool *p) {
    return atomic_load_explicit(&p->ceiling, memory_order_relaxed);
}

/* What the reserve may rise to, of the limit as it is now.  The caller holds `growing`. */
static void set_ceiling(struct pool *p, uint64_t reserve) {
    uint64_t limit = limit_of(p);

    atomic_store_explicit(&p->ceiling, weir__size_larger(limit, reserve), memory_order_relaxed);
    atomic_store_explicit(&p->limit_seen, limit, memory_order_relaxed);
}

/* The reserve is so much now, seen under `growing`. */
static void lower_ceiling(struct pool *p, uint64_t reserve) {
    if (reserve < ceiling_of(p))
        set_ceiling(p, reserve);
}

/* In relaxed mode: otherwise the question breaks a capture of this thread, or a global one (H200, driver
 * 580). */
static CUresult ask(const struct pool *p, CUmemPool_attribute which, uint64_t *value) {
    const struct weir_driver *driver = p->e.device->driver;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_relax(driver, &scope);

    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuMemPoolGetAttribute(p->e.driver_pool, which, value);
    weir__driver_unrelax(driver, &scope);
    return result;
}

/* The figure, or `last` if the driver does not tell it (any more). */
static uint64_t attribute(const struct pool *p, CUmemPool_attribute which, uint64_t last) {
    uint64_t value = last;

    return ask(p, which, &value) == CUDA_SUCCESS ? value : last;
}

/* Bytes taken from the device now. */
static uint64_t read_reserve(struct pool *p) {
    uint64_t peak;

    if (p->has_figures)
        return attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                         atomic_load_explicit(&p->e.seen.reserve, memory_order_relaxed));
    pthread_mutex_lock(&p->sizing);
    peak = p->in_use_peak;
    pthread_mutex_unlock(&p->sizing);
    return (peak + UNIT - 1) / UNIT * UNIT;
}

static uint64_t read_in_use(struct pool *p) {
    uint64_t in_use;

    if (p->has_figures)
        return attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    pthread_mutex_lock(&p->sizing);
    in_use = p->in_use;
    pthread_mutex_unlock(&p->sizing);
    return in_use;
}

static CUresult set_attribute(struct pool *p, CUmemPool_attribute which, void *value) {
    return p->e.device->driver->cuMemPoolSetAttribute(p->e.driver_pool, which, value);
}

static CUresult make_pool(struct pool *p) {
    const struct weir_driver *driver = p->e.device->driver;
    CUmemPoolProps properties;
    uint64_t threshold = p->e.threshold;
    int off = 0;
    CUresult result;

    memset(&properties, 0, sizeof properties); /* reserved bytes must be zero */
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = p->e.options->exportable == WEIR_SWITCH_ON
                                 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                 : CU_MEM_HANDLE_TYPE_NONE;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = p->e.device->ordinal;
    if (p->e.device->decompresses)
        properties.usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
    if (p->told != UINT64_MAX)
        properties.maxSize = (size_t)p->told;
    result = driver->cuMemPoolCreate(&p->e.driver_pool, &properties);
    if (result != CUDA_SUCCESS)
        return result;
    result = set_attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    if (result == CUDA_SUCCESS)
        result = set_attribute(p, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &off);
    if (result == CUDA_SUCCESS && p->e.device->access.count > 1)
        result = driver->cuMemPoolSetAccess(p->e.driver_pool, p->e.device->access.list + 1,
                                            p->e.device->access.count - 1);
    if (result == CUDA_SUCCESS)
        result = driver->cuStreamCreate(&p->grow_stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS)
        driver->cuMemPoolDestroy(p->e.driver_pool);
    return result;
}

/* Has the driver's peak begin anew, if it has probe blocks in it that are gone.  The caller holds `growing`. */
static void renew_peak(struct pool *p) {
    uint64_t zero = 0;

    if (p->probe_count == 0 && atomic_load(&p->peak_has_probes) &&
        set_attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero) == CUDA_SUCCESS)
        atomic_store(&p->peak_has_probes, 0);
}

/* Gives the probe blocks back, and has the driver's peak begin anew without them.  What the driver refuses
 * stays, for the next time; and all of them if one lies behind work that cannot be waited for.  The caller
 * holds `growing` and is in the driver's scope. */
static void drop_probes(struct pool *p) {
    const struct weir_driver *driver = p->e.device->driver;
    uint32_t count = p->probe_count, kept = 0;

    if (p->undone && weir__device_wait(p->e.device) != CUDA_SUCCESS)
        return;
    p->undone = 0;
    for (uint32_t i = 0; i < count; i++)
        if (driver->cuMemFreeAsync(p->probes[i], p->grow_stream) != CUDA_SUCCESS)
            p->probes[kept++] = p->probes[i];
    p->probe_count = kept;
    if (kept > 0)
        return;
    atomic_store(&p->probing, 0);
    renew_peak(p);
}

static void pool_close(struct weir_engine *e) {
    struct pool *p = (struct pool *)e;
    const struct weir_driver *driver = p->e.device->driver;
    struct weir_driver_scope scope;

    if (weir__driver_enter(driver, p->e.device->context, &scope) == CUDA_SUCCESS) {
        drop_probes(p);
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

/* Takes the driver's own peak of what is in use into ours, before a block that is nobody's may raise it;
 * unless one has. */
static void note_used_peak(struct pool *p) {
    uint64_t known = atomic_load_explicit(&p->used_peak, memory_order_relaxed), peak;

    if (atomic_load(&p->peak_has_probes))
        return;
    peak = attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
    while (peak > known &&
           /* unreached: that another thread raises it at the same moment */
           !atomic_compare_exchange_weak_explicit(&p->used_peak, &known, peak, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
}

/* drop_probes, for callers that are not growing.  In steady state there are none. */
static void drop_left_probes(struct pool *p) {
    struct weir_driver_scope scope;

    if ((atomic_load_explicit(&p->probe_count, memory_order_relaxed) == 0 &&
         !atomic_load_explicit(&p->peak_has_probes, memory_order_relaxed)) ||
        pthread_mutex_trylock(&p->growing) != 0)
        return;
    if (weir__driver_enter(p->e.device->driver, p->e.device->context, &scope) == CUDA_SUCCESS) {
        drop_probes(p);
        weir__driver_leave(p->e.device->driver, &scope);
    }
    pthread_mutex_unlock(&p->growing);
}

/* What lies idle is taken first: half of the probe blocks are enough for it. */
static size_t least_probe(struct pool *p, uint64_t reserve) {
    uint64_t in_use = read_in_use(p), idle = reserve > in_use ? reserve - in_use : 0;
    size_t bytes = (size_t)weir__size_smaller(idle / (MAX_PROBES / 2), PROBE_BYTES);

    return bytes > UNIT ? (bytes + UNIT - 1) / UNIT * UNIT : UNIT;
}

/* One more probe block, for which there is room in the list, and the reserve then. */
static CUresult take_probe(struct pool *p, size_t bytes, uint64_t *reserve) {
    CUdeviceptr *probe = &p->probes[p->probe_count];
    CUresult result;

    atomic_fetch_add(&p->probing, bytes);
    result = p->e.device->driver->cuMemAllocFromPoolAsync(probe, bytes, p->e.driver_pool,
                                                          p->grow_stream);
    if (result != CUDA_SUCCESS) {
        atomic_fetch_sub(&p->probing, bytes);
        return result;
    }
    if (p->is_priming)
        p->primed_count = weir__engine_extend(p->primed, p->primed_count, MAX_EXTENTS,
                                              (struct weir_extent){.base = *probe, .bytes = bytes});
    p->probe_count++;
    atomic_store(&p->peak_has_probes, 1);
    return ask(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserve);
}

/* Raises the reserve to `target` with probe blocks, as far as the device and the limit let it; the
 * caller holds `growing`, is in the driver's scope, and has figures.  Returns the reserve.  *why: what the driver
 * had against it other than that memory is short. */
static uint64_t raise_reserve(struct pool *p, uint64_t target, CUresult *why) {
    uint64_t reserve = read_reserve(p);
    size_t largest = PROBE_BYTES, least = least_probe(p, reserve);

    *why = CUDA_SUCCESS;
    atomic_fetch_add(&p->raises, 1);
    note_used_peak(p);
    while (reserve < target && p->probe_count < MAX_PROBES) {
        uint64_t missing = target - reserve;
        size_t bytes = largest;
        CUresult result;

        if (missing < largest) /* whole units, so that one that stayed shifts no block */
            bytes = ((size_t)missing + UNIT - 1) / UNIT * UNIT;
        if (bytes < least)
            bytes = least;
        result = take_probe(p, bytes, &reserve);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            if (bytes <= UNIT)
                break;
            largest = weir__size_round_down(bytes / 2 + UNIT - 1, UNIT);
            least = UNIT;
            continue;
        }
        if (result != CUDA_SUCCESS) {
            *why = result;
            break;
        }
    }
    drop_probes(p);
    return reserve;
}

/* Has the next trim see what is done, up to `most` bytes, or until the driver grows, since no unit is.  The caller
 * holds `growing`, is in the driver's scope, and has figures. */
static void let_trim_see(struct pool *p, uint64_t most) {
    uint64_t reserve = read_reserve(p), now = reserve;

    atomic_fetch_add(&p->raises, 1);
    note_used_peak(p);
    for (; most >= UNIT && now <= reserve && p->probe_count < MAX_PROBES; most -= UNIT)
        if (take_probe(p, UNIT, &now) != CUDA_SUCCESS)
            break;
    drop_probes(p);
    (void)p->e.device->driver->cuStreamSynchronize(p->grow_stream);
}

/* After the driver grew by `got` for a request: adds what the policy wants beyond that.  The caller
 * holds `growing`. */
static void top_up(struct pool *p, size_t request, uint64_t got, uint64_t reserve) {
    const struct weir_driver *driver = p->e.device->driver;
    weir_growth_state state = {.size = sizeof state};
    uint64_t started = driver->ticks();
    struct weir_driver_scope scope;
    uint64_t device_free, after;
    CUresult ignored; /* the request has been served */
    size_t step;

    if (p->e.options->growth == WEIR_GROWTH_EXACT || !p->has_figures)
        return;
    device_free = weir__device_free(p->e.device);
    state.request = request < got ? request : (size_t)got; /* free memory may have served a part */
    state.reserve = (size_t)(reserve - got);
    state.in_use = (size_t)read_in_use(p);
    state.limit = (size_t)limit_of(p);
    state.device_free = device_free == UINT64_MAX ? SIZE_MAX : (size_t)(device_free + got);
    step = weir__growth_step(p->e.options, &state, UNIT, &p->cursor);
    if (step <= got || weir__driver_enter(driver, p->e.device->context, &scope) != CUDA_SUCCESS)
        return;
    weir__nvtx_push("top up", step - got);
    after = raise_reserve(p, reserve + (step - got), &ignored);
    weir__nvtx_pop();
    weir__driver_leave(driver, &scope);
    atomic_store_explicit(&p->e.seen.reserve, after, memory_order_relaxed);
    if (after > reserve)
        weir__engine_note(&p->e, WEIR_EVENT_POLICY, 0, step - got, after - reserve,
                          weir__device_since(p->e.device, started), after);
    else
        weir__growth_refused(&p->cursor);
}

/* How long a caller waited for growth by `got` bytes.  Timed from `started`, which is then the rate
 * for those that were not (0). */
static uint64_t stall_of(struct pool *p, uint64_t started, uint64_t got) {
    uint64_t units = (got + UNIT - 1) / UNIT, stall;

    if (started == 0)
        return units * atomic_load_explicit(&p->unit_ns, memory_order_relaxed);
    stall = weir__device_since(p->e.device, started);
    atomic_store_explicit(&p->unit_ns, stall / units, memory_order_relaxed);
    return stall;
}

/* The reserve is not what it was.  Risen: a growth step, which the caller waited for from `started`
 * on (0: not timed); returns 1.  Fallen: a synchronisation let memory go back. */
static int reserve_moved(struct pool *p, size_t request, uint64_t started) {
    uint64_t before, now;
    int grew;

    /* Whoever holds the lock is growing, and takes the rise into its own account; this request met
     * growth all the same. */
    if (pthread_mutex_trylock(&p->growing) != 0)
        return 1;
    before = atomic_load_explicit(&p->e.seen.reserve, memory_order_relaxed);
    now = read_reserve(p);
    atomic_store_explicit(&p->e.seen.reserve, now, memory_order_relaxed);
    grew = now > before;
    if (grew) {
        weir__engine_note(&p->e, WEIR_EVENT_REQUEST, 0, request, now - before,
                          stall_of(p, started, now - before), now);
        atomic_store_explicit(&p->quiet, 0, memory_order_relaxed);
        top_up(p, request, now - before, now);
    } else if (now < before) {
        weir__growth_shrunk(&p->cursor, now);
    }
    pthread_mutex_unlock(&p->growing);
    return grew;
}

/* Without figures: notes the block's size. */
static int keep_size(struct pool *p, CUdeviceptr block, size_t bytes) {
    int kept;

    pthread_mutex_lock(&p->sizing);
    kept = weir__map_put(&p->sizes, block, bytes);
    if (kept) {
        p->in_use += bytes;
        if (p->in_use > p->in_use_peak)
            p->in_use_peak = p->in_use;
    }
    pthread_mutex_unlock(&p->sizing);
    return kept;
}

/* Without figures: forgets the block's size, which is written to *bytes; 0 if it is not ours. */
static int take_size(struct pool *p, CUdeviceptr block, size_t *bytes) {
    uintptr_t known = 0;
    int ours;

    pthread_mutex_lock(&p->sizing);
    ours = weir__map_take(&p->sizes, block, &known);
    p->in_use -= known;
    pthread_mutex_unlock(&p->sizing);
    *bytes = known;
    return ours;
}

/* Why the driver said "out of memory": the limit, if the device had all that the request could need. */
static weir_status out_of_memory(struct pool *p, size_t bytes) {
    weir_status status = weir__device_status(p->e.device, CUDA_ERROR_OUT_OF_MEMORY);
    size_t most;

    /* unreached: an overflow, since no request is above the device's memory */
    if (limit_of(p) != UINT64_MAX && weir__size_round_up(bytes, UNIT, &most) &&
        (weir__device_free(p->e.device) >= most || read_reserve(p) >= limit_of(p)))
        return weir__without_driver(WEIR_E_LIMIT);
    return status;
}

/* Gives a block back that nobody was told of; else it is one of the probe blocks from now on. */
static void take_back(struct pool *p, CUdeviceptr block, size_t bytes, weir_stream stream) {
    int is_back = weir__async_give(p->e.device, block, stream) == CUDA_SUCCESS;

    pthread_mutex_lock(&p->growing);
    /* unreached: no place for it, for which the driver must have kept as many before */
    if (!is_back && p->probe_count < MAX_PROBES) {
        atomic_fetch_add(&p->probing, bytes);
        p->probes[p->probe_count++] = block;
        p->undone = 1;
    }
    atomic_store(&p->peak_has_probes, p->has_figures);
    renew_peak(p);
    pthread_mutex_unlock(&p->growing);
}

/* A trim gives back what the driver saw the host wait for, not what is done: an idle stream is waited for, which
 * takes no time, unless another thread is just giving it work. */
static void let_driver_see(const struct weir_driver *driver, weir_stream stream) {
    CUstreamCaptureStatus capture;

    if (driver->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
        capture == CU_STREAM_CAPTURE_STATUS_NONE && driver->cuStreamQuery(stream) == CUDA_SUCCESS)
        (void)driver->cuStreamSynchronize(stream);
}

/* A limit that the driver does not know: a request that took the reserve past it is undone.  In relaxed mode:
 * otherwise that breaks a capture, which the request may be part of. */
static weir_status undo_alloc(struct pool *p, CUdeviceptr block, size_t bytes, weir_stream stream) {
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
    lower_ceiling(p, read_reserve(p));
    pthread_mutex_unlock(&p->growing);
    return weir__without_driver(WEIR_E_LIMIT);
}

/* With a finite threshold the reserve may have fallen since it was seen last: without this, a step
 * that takes it up again to just where it was would be no step. */
static void see_fall(struct pool *p) {
    uint64_t now;

    if (pthread_mutex_trylock(&p->growing) != 0)
        return;
    now = read_reserve(p);
    if (now < atomic_load_explicit(&p->e.seen.reserve, memory_order_relaxed)) {
        atomic_store_explicit(&p->e.seen.reserve, now, memory_order_relaxed);
        weir__growth_shrunk(&p->cursor, now);
    }
    lower_ceiling(p, now);
    pthread_mutex_unlock(&p->growing);
}

/* Gives back what the driver took for a request that it then refused (H200, driver 580): what is above `most`. */
static void undo_growth(struct pool *p, uint64_t most) {
    struct weir_driver_scope scope;

    if (!p->has_figures || read_reserve(p) <= most ||
        weir__driver_relax(p->e.device->driver, &scope) != CUDA_SUCCESS)
        return;
    (void)p->e.device->driver->cuMemPoolTrimTo(p->e.driver_pool, (size_t)most);
    weir__driver_unrelax(p->e.device->driver, &scope);
}

/* What it took may have been taken for the growth of another request meanwhile. */
static void note_refused(struct pool *p, uint64_t reserve) {
    uint64_t least = atomic_load_explicit(&p->unwind_to, memory_order_relaxed);

    while (reserve < least &&
           /* unreached: that another thread lowers it at the same moment */
           !atomic_compare_exchange_weak_explicit(&p->unwind_to, &least, reserve,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

static void unwind(struct pool *p, int is_refused) {
    uint64_t least = atomic_exchange_explicit(&p->unwind_to, UINT64_MAX, memory_order_relaxed);

    if (!is_refused)
        return;
    pthread_mutex_lock(&p->growing);
    undo_growth(p, weir__size_smaller(
                       least, atomic_load_explicit(&p->e.seen.reserve, memory_order_relaxed)));
    pthread_mutex_unlock(&p->growing);
}

/* The driver did not simply serve the request, before which the reserve was that. */
static __attribute__((noinline, cold)) weir_status
refused(struct pool *p, CUresult result, struct weir_request *r, uint64_t reserve) {
    if (result == CUDA_ERROR_INVALID_CONTEXT)
        result = weir__async_take(p->e.device, p->e.driver_pool, r->bytes, r->stream, &r->block);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        weir_status status = out_of_memory(p, r->bytes);

        note_refused(p, reserve);
        if (exceeds(p))
            undo_growth(p, ceiling_of(p));
        return status;
    }
    return weir__device_status(p->e.device, result);
}

/* The reserve has moved, or this pool's table and limit are ours to look after. */
static __attribute__((noinline)) weir_status look_at_reserve(struct pool *p, struct weir_request *r,
                                                             uint64_t started) {
    uint64_t reserve;

    if (!p->has_figures && !keep_size(p, r->block, r->bytes)) {
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
    reserve = read_reserve(p);
    if (reserve != atomic_load_explicit(&p->e.seen.reserve, memory_order_relaxed))
        r->grew |= reserve_moved(p, r->bytes, started);
    return WEIR_OK;
}

/* Reading the clock costs as much as asking the driver whether it grew (20 ns in a virtual machine),
 * and is only needed where it did.  After a long quiet time it is left out; a step that comes all the
 * same is charged what a unit took last, and the next requests are timed again. */
static int steady(struct pool *p) {
    uint32_t quiet = atomic_load_explicit(&p->quiet, memory_order_relaxed);

    if (quiet == STEADY_REQUESTS)
        return 1;
    atomic_store_explicit(&p->quiet, quiet + 1, memory_order_relaxed);
    return 0;
}

/* Another limit.  A reserve above it is left as it is, and must not rise. */
static __attribute__((noinline, cold)) void see_limit(struct pool *p) {
    pthread_mutex_lock(&p->growing);
    set_ceiling(p, read_reserve(p));
    pthread_mutex_unlock(&p->growing);
}

/* The driver knows its streams, and does not tell beforehand whether it would grow. */
static weir_status serve(struct pool *p, struct weir_request *r) {
    const struct weir_driver *driver = p->e.device->driver;
    uint64_t started = steady(p) ? 0 : driver->ticks(), reserve = 0, limit = limit_of(p);
    uint64_t before = atomic_load_explicit(&p->e.seen.reserve, memory_order_relaxed);
    CUresult result;

    if (limit != atomic_load_explicit(&p->limit_seen, memory_order_relaxed))
        see_limit(p);
    if (r->bytes > limit || (!p->has_figures && read_in_use(p) > limit - r->bytes))
        return weir__without_driver(WEIR_E_LIMIT);
    if (p->shrinks)
        see_fall(p);
    if (exceeds(p) && p->has_figures) {
        /* What the driver grows goes back only once the undone block's stream is done. */
        if (read_in_use(p) > weir__size_less(ceiling_of(p), r->bytes))
            return weir__without_driver(WEIR_E_LIMIT);
        note_used_peak(p); /* the block may have to be undone */
    }
    result = driver->cuMemAllocFromPoolAsync(&r->block, r->bytes, p->e.driver_pool, r->stream);
    if (result != CUDA_SUCCESS) {
        weir_status status = refused(p, result, r, before);

        if (status != WEIR_OK)
            return status;
    }
    if (p->has_figures && ask(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserve) == CUDA_SUCCESS &&
        reserve == atomic_load_explicit(&p->e.seen.reserve, memory_order_relaxed) &&
        reserve <= ceiling_of(p))
        return WEIR_OK;
    return look_at_reserve(p, r, started);
}

static weir_status pool_alloc(struct weir_engine *e, struct weir_request *r) {
    struct pool *p = (struct pool *)e;
    weir_status status = serve(p, r);

    if (status == WEIR_OK && (e->traits & WEIR_ENGINE_IS_PEEKED))
        atomic_store_explicit(&e->seen.in_use, read_in_use(p), memory_order_relaxed);
    return status;
}

static weir_status pool_free(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses) {
    struct pool *p = (struct pool *)e;
    size_t bytes = 0;
    weir_status status;

    if (!p->has_figures && !take_size(p, block, &bytes))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = weir__async_free(&p->async, block, stream, uses);
    if (status != WEIR_OK && !p->has_figures)
        (void)keep_size(p, block, bytes); /* the place it left is still there */
    return status;
}

/* What was taken on request is not for the next synchronisation to give back, which goes down to whole
 * units. */
static void keep_at_least(struct pool *p, uint64_t bytes) {
    if (bytes % UNIT > 0)
        bytes = bytes < UINT64_MAX - UNIT ? bytes + UNIT - bytes % UNIT : UINT64_MAX;
    if (bytes <= p->threshold)
        return;
    if (set_attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes) == CUDA_SUCCESS)
        p->threshold = bytes;
}

static weir_status pool_grow(struct weir_engine *e, uint64_t target, uint64_t goal, int cause) {
    struct pool *p = (struct pool *)e;
    const struct weir_driver *driver = e->device->driver;
    uint64_t started = driver->ticks(), limit = limit_of(p), before, after;
    struct weir_driver_scope scope;
    CUresult result, why;

    (void)goal; /* a unit is as good as any */
    if (!p->has_figures)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    result = weir__driver_enter(driver, e->device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(e->device, result);
    pthread_mutex_lock(&p->growing);
    if (weir__engine_is_prealloc(cause))
        keep_at_least(p, target < limit ? target : limit);
    before = read_reserve(p);
    p->is_priming = weir__engine_is_prealloc(cause);
    if (p->is_priming)
        p->primed_count = 0;
    weir__nvtx_push("grow", target > before ? target - before : 0);
    after = raise_reserve(p, target < limit ? target : limit, &why);
    weir__nvtx_pop();
    p->is_priming = 0;
    if (after > before) {
        /* unreached: there was enough, and another thread grew it since it was read */
        weir__engine_note(e, cause, 0, target > before ? target - before : 0, after - before,
                          stall_of(p, started, after - before), after);
        if (weir__engine_is_prealloc(cause))
            atomic_store_explicit(&p->quiet, STEADY_REQUESTS, memory_order_relaxed);
    }
    /* The stream runs nothing but the probes' frees: this observes them, and lets the driver's
     * threshold have its say, so that what is read afterwards is what was kept. */
    result = driver->cuStreamSynchronize(p->grow_stream);
    if (result == CUDA_SUCCESS)
        result = ask(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &after);
    atomic_store_explicit(&p->e.seen.reserve, after, memory_order_relaxed);
    pthread_mutex_unlock(&p->growing);
    weir__driver_leave(driver, &scope);
    if (why != CUDA_SUCCESS && after < target)
        result = why;
    if (result != CUDA_SUCCESS)
        return weir__device_status(e->device, result);
    if (after >= target)
        return WEIR_OK;
    return weir__without_driver(target > limit ? WEIR_E_LIMIT : WEIR_E_NO_MEMORY);
}

static weir_status pool_allow(struct weir_engine *e, const CUmemAccessDesc *access) {
    struct pool *p = (struct pool *)e;
    struct weir_driver_scope scope;
    CUresult result;

    result = weir__driver_enter(p->e.device->driver, p->e.device->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = p->e.device->driver->cuMemPoolSetAccess(p->e.driver_pool, access, 1);
        weir__driver_leave(p->e.device->driver, &scope);
    }
    return weir__device_status(p->e.device, result);
}

/* Bytes that are idle and more than `keep`. */
static uint64_t spare(struct pool *p, uint64_t reserve, size_t keep) {
    return weir__size_smaller(weir__size_less(reserve, keep),
                              weir__size_less(reserve, read_in_use(p)));
}

/* let_trim_see may be of use: a pool that other processes may share gives nothing back, and a block that the driver
 * does not take back makes it keep others. */
static int sees_more(const struct pool *p) {
    return p->has_figures && p->e.options->exportable != WEIR_SWITCH_ON && p->probe_count == 0;
}

/* As far as nobody need be waited for.  The caller holds `growing` and is in the driver's scope. */
static CUresult trim_to(struct pool *p, size_t keep) {
    const struct weir_driver *driver = p->e.device->driver;
    uint64_t reserve = UINT64_MAX, now;
    CUresult result;

    for (;;) {
        result = driver->cuMemPoolTrimTo(p->e.driver_pool, keep);
        now = read_reserve(p);
        if (result != CUDA_SUCCESS || !sees_more(p) || now >= reserve || spare(p, now, keep) < UNIT)
            return result;
        reserve = now;
        let_trim_see(p, spare(p, now, keep));
    }
}

static weir_status give_back(struct pool *p, struct weir_trim *trim) {
    const struct weir_driver *driver = p->e.device->driver;
    uint64_t started = driver->ticks(), before, after;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_enter(driver, p->e.device->context, &scope);

    if (result != CUDA_SUCCESS)
        return weir__device_status(p->e.device, result);
    pthread_mutex_lock(&p->growing);
    before = read_reserve(p);
    drop_probes(p);
    /* The stream runs nothing but the probes' frees, which the driver takes for pending until they are waited for; the
     * threshold has its say then. */
    (void)driver->cuStreamSynchronize(p->grow_stream);
    weir__nvtx_push("give back", weir__size_less(before, trim->keep));
    result = trim_to(p, trim->keep);
    weir__nvtx_pop();
    weir__driver_leave(driver, &scope);
    after = read_reserve(p);
    atomic_store_explicit(&p->e.seen.reserve, after, memory_order_relaxed);
    lower_ceiling(p, after);
    trim->released = (size_t)weir__size_less(before, after);
    if (trim->released > 0) {
        weir__growth_shrunk(&p->cursor, after);
        /* unreached: no more than that, and another thread freed it since it was read */
        weir__engine_note(&p->e, trim->cause, 1, weir__size_less(before, trim->keep),
                          trim->released, weir__device_since(p->e.device, started), after);
    }
    pthread_mutex_unlock(&p->growing);
    return weir__device_status(p->e.device, result);
}

/* No work of the program's is waited for in any mode; nothing has to be recorded. */
static weir_status pool_trim(struct weir_engine *e, struct weir_trim *trim) {
    struct pool *p = (struct pool *)e;

    switch (trim->mode) {
    case WEIR_TRIM_REFUSED:
    case WEIR_TRIM_SERVED:
        unwind(p, trim->mode == WEIR_TRIM_REFUSED);
        return WEIR_OK;
    case WEIR_TRIM_TEND:
    case WEIR_TRIM_ASK:
        return WEIR_OK;
    default:
        return give_back(p, trim);
    }
}

/* Nothing was taken from it yet, so that nothing is pending either: what the ladder trims is all of it, but for a pool
 * that other processes may share, which keeps it.  A driver that has no figures refuses to tell. */
static int is_uncut(const struct pool *p) {
    return p->e.options->recovery_timeout_ms != UINT32_MAX &&
           p->e.options->exportable != WEIR_SWITCH_ON &&
           attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 1) == 0 && atomic_load(&p->used_peak) == 0;
}

/* As many units as may still be added: whatever lies free inside, a request has them to itself. */
static size_t largest(struct pool *p, uint64_t back) {
    uint64_t reserve = read_reserve(p), stays;

    if (is_uncut(p))
        back = reserve;
    stays = weir__size_less(reserve, back);
    return weir__size_round_down(
        weir__device_room(p->e.device, weir__size_less(limit_of(p), stays), back), UNIT);
}

/* What is pending on the caller's streams the driver does not say; it looks at every request.  Frees
 * with uses are ours to count: a pool that is destroyed while they wait for events crashes the
 * driver (580, seen on an H200), so destroy must see them through. */
static void pool_survey(struct weir_engine *e, struct weir_survey *out) {
    struct pool *p = (struct pool *)e;

    out->is_untold = 1;
    if (out->what & WEIR_SURVEY_PENDING)
        out->frees.waiting = (size_t)weir__async_is_pending(&p->async);
    if (out->what & WEIR_SURVEY_LARGEST)
        out->largest = largest(p, out->back);
}

/* Blocks will lie where the probe blocks did. */
static int pool_visit(struct weir_engine *e, const struct weir_visit *visit) {
    struct pool *p = (struct pool *)e;
    int count;

    if (visit->what != WEIR_VISIT_EXTENTS)
        return -1;
    pthread_mutex_lock(&p->growing);
    count = weir__engine_show(visit, p->primed, p->primed_count);
    pthread_mutex_unlock(&p->growing);
    return count;
}

static weir_status pool_give(struct weir_engine *e, CUdeviceptr block, uint64_t id) {
    (void)e, (void)block, (void)id;
    return weir__without_driver(WEIR_E_NOT_SUPPORTED);
}

/* Kept, so that there is something to say when the device is lost. */
static uint64_t figure(struct pool *p, CUmemPool_attribute which, _Atomic uint64_t *kept) {
    uint64_t value = attribute(p, which, atomic_load_explicit(kept, memory_order_relaxed));

    atomic_store_explicit(kept, value, memory_order_relaxed);
    return value;
}

/* Bytes in blocks, some of which may have been freed by the driver's own call.  Where the driver does not answer, the
 * books tell whether there are any. */
static uint64_t figure_of_use(struct pool *p) {
    const struct weir_tally *tally = &p->e.events->books->tally;
    uint64_t used;

    if (ask(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS)
        return weir__tally_sum(tally, WEIR_TALLY_ALLOCS) > weir__tally_sum(tally, WEIR_TALLY_FREES)
                   ? weir__size_larger(1, atomic_load_explicit(&p->used, memory_order_relaxed))
                   : 0;
    atomic_store_explicit(&p->used, used, memory_order_relaxed);
    return used;
}

/* What the driver counts as used, and the most it ever was.  Probe blocks that another thread holds just
 * now, or that the driver did not take back, are left out, as far as can be; and its own peak while it has
 * any in it, also of those that are gone. */
static void used_figures(struct pool *p, weir_statistics *out) {
    uint32_t raises = atomic_load(&p->raises);
    int has_probes = atomic_load(&p->peak_has_probes);
    uint64_t probing = atomic_load(&p->probing), later;
    uint64_t peak = atomic_load_explicit(&p->used_peak, memory_order_relaxed);

    out->requested = figure_of_use(p);
    out->requested_peak = attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
    later = atomic_load(&p->probing);
    /* unreached: what another thread does between the readings */
    if (has_probes || probing > 0 || later > 0 || raises != atomic_load(&p->raises)) {
        probing = later > probing ? later : probing;
        out->requested -= probing < out->requested ? probing : out->requested;
        out->requested_peak = out->requested;
    }
    if (out->requested_peak < peak)
        out->requested_peak = peak;
    else
        atomic_store_explicit(&p->used_peak, out->requested_peak, memory_order_relaxed);
}

static void pool_figures(struct weir_engine *e, weir_statistics *out) {
    struct pool *p = (struct pool *)e;

    drop_left_probes(p);
    if (p->has_figures) {
        used_figures(p, out);
        out->reserve = read_reserve(p);
        out->reserve_peak = figure(p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &p->reserve_peak);
    } else {
        pthread_mutex_lock(&p->sizing);
        out->requested = p->in_use;
        out->requested_peak = p->in_use_peak;
        out->host_bytes = p->sizes.capacity * sizeof *p->sizes.slots;
        pthread_mutex_unlock(&p->sizing);
        out->reserve = out->reserve_peak = read_reserve(p);
    }
    out->in_use = out->requested; /* the driver counts blocks as asked */
    out->in_use_peak = out->requested_peak;
}

static const struct weir_engine_ops pool_ops = {
    .alloc = pool_alloc,
    .free = pool_free,
    .give = pool_give,
    .grow = pool_grow,
    .trim = pool_trim,
    .allow = pool_allow,
    .figures = pool_figures,
    .survey = pool_survey,
    .visit = pool_visit,
    .close = pool_close,
};

weir_status weir__pool_open(const struct weir_engine *setup, struct weir_engine **out) {
    struct pool *p = calloc(1, sizeof *p);
    struct weir_device *device = setup->device;
    struct weir_driver_scope scope;
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
    result = weir__driver_enter(device->driver, device->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = make_pool(p);
        weir__driver_leave(device->driver, &scope);
    }
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
