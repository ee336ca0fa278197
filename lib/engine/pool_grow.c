/* SPDX-License-Identifier: MIT */
/* pool_grow.c: growth of a private CUDA memory pool, by policy and by preallocation.
 *
 * What: the driver has no "would this fit?" call and a step first consumes free units, so a step is made by probe blocks,
 * allocated on a stream that runs nothing else and held until RESERVED has risen as far as wanted; freed there, every
 * stream can have the room at once.  "Got" is always the rise of RESERVED, never the size requested.
 *
 * Locks: `growing`.
 */
#include "engine/pool_state.h"

#include "base/result.h"
#include "base/size.h"
#include "config/growth_policy.h"

/* Probe blocks are at most this large, so that one step holds the driver's lock for about 1 ms. */
#define PROBE_BYTES ((size_t)1 << 30)

/* ---- probe blocks ---- */

void weir__pool_drop_probes(struct weir_pool_engine *p) {
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
    weir__pool_renew_peak(p);
}

void weir__pool_drop_left_probes(struct weir_pool_engine *p) {
    if ((atomic_load_explicit(&p->probe_count, memory_order_relaxed) == 0 &&
         !atomic_load_explicit(&p->peak_has_probes, memory_order_relaxed)) ||
        pthread_mutex_trylock(&p->growing) != 0)
        return;
    (void)WEIR_IN_SCOPE(p->e.device->driver, p->e.device->context,
                        (weir__pool_drop_probes(p), CUDA_SUCCESS));
    pthread_mutex_unlock(&p->growing);
}

/* What lies idle is taken first: half of the probe blocks are enough for it. */
static size_t least_probe(struct weir_pool_engine *p, uint64_t reserve) {
    uint64_t in_use = weir__pool_read_in_use(p), idle = reserve > in_use ? reserve - in_use : 0;
    size_t bytes = (size_t)weir__size_smaller(idle / (WEIR_POOL_PROBES / 2), PROBE_BYTES);

    return bytes > UNIT ? (bytes + UNIT - 1) / UNIT * UNIT : UNIT;
}

/* One more probe block, for which there is room in the list, and the reserved memory then. */
static CUresult take_probe(struct weir_pool_engine *p, size_t bytes, uint64_t *reserve) {
    CUdeviceptr *probe = &p->probes[p->probe_count];
    CUresult result;

    atomic_fetch_add(&p->probing, bytes);
    result = p->e.device->driver->cuMemAllocFromPoolAsync(probe, bytes, p->e.driver_pool,
                                                          p->grow_stream);
    if (result != CUDA_SUCCESS) {
        atomic_fetch_sub(&p->probing, bytes);
        return result;
    }
    if (p->is_preallocating)
        p->preallocated_count =
            weir__engine_extend(p->preallocated, p->preallocated_count, WEIR_POOL_EXTENTS,
                                (struct weir_extent){.base = *probe, .bytes = bytes});
    p->probe_count++;
    atomic_store(&p->peak_has_probes, 1);
    return ask(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserve);
}

/* ---- steps ---- */

void weir__pool_set_ceiling(struct weir_pool_engine *p, uint64_t reserve) {
    uint64_t limit = limit_of(p);

    atomic_store_explicit(&p->ceiling, weir__size_larger(limit, reserve), memory_order_relaxed);
    atomic_store_explicit(&p->limit_seen, limit, memory_order_relaxed);
}

void weir__pool_lower_ceiling(struct weir_pool_engine *p, uint64_t reserve) {
    if (reserve < ceiling_of(p))
        weir__pool_set_ceiling(p, reserve);
}

/* Raises the reserved memory to `target` with probe blocks, as far as the device and the limit let it; the
 * caller holds `growing`, is in the driver's scope, and has figures.  Returns the reserved memory.  *why: what the driver
 * had against it other than that memory is short. */
static uint64_t raise_reserve(struct weir_pool_engine *p, uint64_t target, CUresult *why) {
    uint64_t reserve = weir__pool_read_reserve(p);
    size_t largest = PROBE_BYTES, least = least_probe(p, reserve);

    *why = CUDA_SUCCESS;
    atomic_fetch_add(&p->raises, 1);
    weir__pool_note_used_peak(p);
    while (reserve < target && p->probe_count < WEIR_POOL_PROBES) {
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
    weir__pool_drop_probes(p);
    return reserve;
}

void weir__pool_let_trim_see(struct weir_pool_engine *p, uint64_t most) {
    uint64_t reserve = weir__pool_read_reserve(p), now = reserve;

    atomic_fetch_add(&p->raises, 1);
    weir__pool_note_used_peak(p);
    for (; most >= UNIT && now <= reserve && p->probe_count < WEIR_POOL_PROBES; most -= UNIT)
        if (take_probe(p, UNIT, &now) != CUDA_SUCCESS)
            break;
    weir__pool_drop_probes(p);
    (void)p->e.device->driver->cuStreamSynchronize(p->grow_stream);
}

/* After the driver grew by `got` for a request: adds what the policy wants beyond that.  The caller
 * holds `growing`. */
static void top_up(struct weir_pool_engine *p, size_t request, uint64_t got, uint64_t reserve) {
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
    state.reserved = (size_t)(reserve - got);
    state.in_use = (size_t)weir__pool_read_in_use(p);
    state.limit = (size_t)limit_of(p);
    state.device_free = device_free == UINT64_MAX ? SIZE_MAX : (size_t)(device_free + got);
    step = weir__growth_step(p->e.options, &state, UNIT, &p->cursor);
    if (step <= got || weir__driver_enter(driver, p->e.device->context, &scope) != CUDA_SUCCESS)
        return;
    after = raise_reserve(p, reserve + (step - got), &ignored);
    weir__driver_leave(driver, &scope);
    atomic_store_explicit(&p->e.seen.reserved, after, memory_order_relaxed);
    if (after > reserve)
        weir__engine_note(&p->e, WEIR_EVENT_POLICY, 0, step - got, after - reserve,
                          weir__device_since(p->e.device, started), after);
    else
        weir__growth_refused(&p->cursor);
}

/* How long a caller waited for growth by `got` bytes.  Timed from `started`, which is then the rate
 * for those that were not (0). */
static uint64_t stall_of(struct weir_pool_engine *p, uint64_t started, uint64_t got) {
    uint64_t units = (got + UNIT - 1) / UNIT, stall;

    if (started == 0)
        return units * atomic_load_explicit(&p->unit_ns, memory_order_relaxed);
    stall = weir__device_since(p->e.device, started);
    atomic_store_explicit(&p->unit_ns, stall / units, memory_order_relaxed);
    return stall;
}

int weir__pool_reserve_moved(struct weir_pool_engine *p, size_t request, uint64_t started) {
    uint64_t before, now;
    int grew;

    /* The thread that holds the lock is growing, and takes the rise into its own account; this request met
     * growth all the same. */
    if (pthread_mutex_trylock(&p->growing) != 0)
        return 1;
    before = atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed);
    now = weir__pool_read_reserve(p);
    atomic_store_explicit(&p->e.seen.reserved, now, memory_order_relaxed);
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

/* What was taken on request is not for the next synchronisation to give back, which goes down to whole
 * units. */
static void keep_at_least(struct weir_pool_engine *p, uint64_t bytes) {
    if (bytes % UNIT > 0)
        bytes = bytes < UINT64_MAX - UNIT ? bytes + UNIT - bytes % UNIT : UINT64_MAX;
    if (bytes <= p->threshold)
        return;
    if (weir__pool_set_attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes) == CUDA_SUCCESS)
        p->threshold = bytes;
}

weir_status weir__pool_grow(struct weir_engine *e, uint64_t target, uint64_t goal, int cause) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
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
    if (cause == WEIR_EVENT_PREALLOC)
        keep_at_least(p, target < limit ? target : limit);
    before = weir__pool_read_reserve(p);
    p->is_preallocating = cause == WEIR_EVENT_PREALLOC;
    if (p->is_preallocating)
        p->preallocated_count = 0;
    after = raise_reserve(p, target < limit ? target : limit, &why);
    p->is_preallocating = 0;
    if (after > before) {
        /* unreached: there was enough, and another thread grew it since it was read */
        weir__engine_note(e, cause, 0, target > before ? target - before : 0, after - before,
                          stall_of(p, started, after - before), after);
        if (cause == WEIR_EVENT_PREALLOC)
            atomic_store_explicit(&p->quiet, WEIR_POOL_STEADY, memory_order_relaxed);
    }
    /* The stream runs nothing but the probes' frees: this observes them, and lets the driver's
     * threshold have its say, so that what is read afterwards is what was kept. */
    result = driver->cuStreamSynchronize(p->grow_stream);
    if (result == CUDA_SUCCESS)
        result = ask(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &after);
    atomic_store_explicit(&p->e.seen.reserved, after, memory_order_relaxed);
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
