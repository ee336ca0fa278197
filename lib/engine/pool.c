/* SPDX-License-Identifier: MIT */
/* pool.c: the pool engine, which allocates blocks from a private CUDA memory pool.
 *
 * The driver places blocks, orders their reuse and grows the pool.  weir switches internal dependencies off, with which
 * an allocation may wait for another stream's work, or may block the host.
 *
 * The pool grows only if a request fits in no usable memory.  So, to grow the pool, weir allocates temporary blocks
 * (probe blocks) on `grow_stream` until the pool has the target size, and then frees the probe blocks.
 *
 * Driver 11.2 does not report a pool's reserved and used bytes.  The engine then records each block's size in a table,
 * which also enforces the limit, and reports the peak of these bytes, in whole units, as the reserved memory.
 *
 * A thread holds `growing` while it grows or trims the pool, or undoes a request.  A growth callback runs under
 * `growing`, and a thread that holds `growing` may lock counters and `sizes`.  A request that fits in idle memory takes
 * no lock, except that it tries `growing` if the release threshold is finite.
 */
#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/bounds.h"
#include "base/result.h"
#include "base/size.h"
#include "config/growth_policy.h"
#include "engine/driver_blocks.h"
#include "engine/superblocks.h"

#define UNIT WEIR_POOL_UNIT

/* The largest block that weir allocates only to grow the pool.  The call holds the driver's lock for about 1 ms. */
#define PROBE_BYTES ((size_t)1 << 30)

enum { WEIR_POOL_PROBES = 512 };

struct weir_pool_engine {
    struct weir_engine e;
    int has_figures; /* 1 if the driver reports reserved and used memory */
    /* The stream that grows the pool.  No work runs there, so every stream can reuse memory freed there at once. */
    CUstream grow_stream;
    uint64_t driver_limit; /* the limit at which the driver itself refuses growth, or UINT64_MAX */
    /* `ceiling`: the most memory that weir lets the pool reserve, computed for the limit `ceiling_limit`. */
    _Atomic uint64_t ceiling, ceiling_limit;
    uint64_t threshold;             /* the pool's release threshold; raised under `growing` */
    _Atomic uint64_t reserved_peak; /* the highest peak that the driver has reported */
    pthread_mutex_t growing;
    struct weir_growth_cursor cursor; /* guarded by `growing` */
    /* Temporary blocks that make the pool grow, and blocks that the driver failed to free.  Guarded by `growing`. */
    struct {
        CUdeviceptr block;
        size_t bytes;
    } probe[WEIR_POOL_PROBES];
    _Atomic uint32_t probe_count; /* also read without the lock */
    /* The bytes in `probe`.  Never too low, since weir adds a block's bytes before it allocates the block. */
    _Atomic uint64_t probe_bytes;
    /* Set if work on the device may still use a block in `probe`, since the block is from a failed request. */
    int probes_in_use;

    struct weir_async async; /* frees blocks that several streams use */
    struct weir_superblocks superblocks;
    struct weir_sizes sizes; /* the sizes of all blocks if has_figures is 0, else empty */

    struct weir_address_table before; /* an aligned block's offset in the driver's block */
};

/* ---- the limit of reserved memory ---- */

/* Returns 1 if weir must enforce the limit itself, since the driver enforces a higher one or none; else 0. */
static inline int enforces_limit(const struct weir_pool_engine *p) {
    return weir__engine_limit(&p->e) < p->driver_limit;
}

static inline uint64_t ceiling_of(const struct weir_pool_engine *p) {
    return atomic_load_explicit(&p->ceiling, memory_order_relaxed);
}

/* Updates p->ceiling from reserved memory (`reserve`) and the limit.  The caller holds `growing`. */
static void pool_lower_ceiling(struct weir_pool_engine *p, uint64_t reserve) {
    uint64_t limit = weir__engine_limit(&p->e);

    if (reserve >= ceiling_of(p) &&
        limit == atomic_load_explicit(&p->ceiling_limit, memory_order_relaxed))
        return;
    atomic_store_explicit(&p->ceiling, weir__size_larger(limit, reserve), memory_order_relaxed);
    atomic_store_explicit(&p->ceiling_limit, limit, memory_order_relaxed);
}

/* ---- attributes of the pool ---- */

/* Reads or estimates an attribute of the driver's pool.  The caller has called weir__driver_relax(). */
static inline CUresult pool_read_relaxed(struct weir_pool_engine *p, CUmemPool_attribute which,
                                         uint64_t *value) {
    weir_statistics sizes;

    if (p->has_figures)
        return p->e.device->driver->cuMemPoolGetAttribute(p->e.driver_pool, which, value);
    weir__sizes_figures(&p->sizes, &sizes);
    *value = which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT
                 ? sizes.in_use
                 : (sizes.in_use_peak + UNIT - 1) / UNIT * UNIT;
    return CUDA_SUCCESS;
}

/* Reads an attribute with this thread's capture mode relaxed, since the call would break a capture otherwise. */
static inline CUresult pool_read(struct weir_pool_engine *p, CUmemPool_attribute which,
                                 uint64_t *value) {
    return WEIR_RELAXED(p->e.device->driver, pool_read_relaxed(p, which, value));
}

static inline uint64_t pool_read_or(struct weir_pool_engine *p, CUmemPool_attribute which,
                                    uint64_t last) {
    uint64_t value = last;

    return pool_read(p, which, &value) == CUDA_SUCCESS ? value : last;
}

static uint64_t pool_read_reserve(struct weir_pool_engine *p) {
    return pool_read_or(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                        atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed));
}

static uint64_t pool_read_in_use(struct weir_pool_engine *p) {
    return pool_read_or(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
}

static CUresult pool_set_attribute(struct weir_pool_engine *p, CUmemPool_attribute which,
                                   void *value) {
    return p->e.device->driver->cuMemPoolSetAttribute(p->e.driver_pool, which, value);
}

static void refresh_ceiling(struct weir_pool_engine *p) {
    pthread_mutex_lock(&p->growing);
    pool_lower_ceiling(p, pool_read_reserve(p));
    pthread_mutex_unlock(&p->growing);
}

/* ---- probe blocks: temporary blocks that make the pool grow ---- */

/* Frees all probe blocks except those that the driver fails to free.  The caller holds `growing`. */
static void pool_drop_probes(struct weir_pool_engine *p) {
    const struct weir_driver *driver = p->e.device->driver;
    uint32_t count = p->probe_count, kept = 0;

    if (p->probes_in_use && weir__device_wait(p->e.device) != CUDA_SUCCESS)
        return;
    p->probes_in_use = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (driver->cuMemFreeAsync(p->probe[i].block, p->grow_stream) == CUDA_SUCCESS)
            atomic_fetch_sub(&p->probe_bytes, p->probe[i].bytes);
        else
            p->probe[kept++] = p->probe[i];
    }
    p->probe_count = kept;
}

static size_t whole_units(uint64_t bytes) {
    return weir__size_round_down((size_t)weir__size_larger(bytes, 1) + UNIT - 1, UNIT);
}

static CUresult allocate_probe(struct weir_pool_engine *p, size_t bytes, uint64_t *reserve) {
    CUdeviceptr *probe = &p->probe[p->probe_count].block;
    CUresult result;

    atomic_fetch_add(&p->probe_bytes, bytes);
    result = p->e.device->driver->cuMemAllocFromPoolAsync(probe, bytes, p->e.driver_pool,
                                                          p->grow_stream);
    if (result != CUDA_SUCCESS) {
        atomic_fetch_sub(&p->probe_bytes, bytes);
        return result;
    }
    p->probe[p->probe_count++].bytes = bytes;
    return pool_read(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserve);
}

/* ---- the pool's statistics ---- */

/* Returns the bytes of weir's temporary blocks and of unused memory for slabs.  The driver counts both as used. */
static uint64_t own_idle_bytes(struct weir_pool_engine *p) {
    return atomic_load(&p->probe_bytes) +
           atomic_load_explicit(&p->superblocks.idle, memory_order_relaxed);
}

/* Returns the bytes of the program's blocks.  If the driver fails, returns their peak, or 0 if all blocks are freed. */
static uint64_t pool_requested(struct weir_pool_engine *p) {
    const struct weir_striped *striped = &p->e.events->counters->striped;
    uint64_t before = own_idle_bytes(p), used;

    if (pool_read(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS) {
        /* Subtracts the larger of two counts of idle bytes, since other threads may free some between both counts. */
        return weir__size_subtract(used, weir__size_larger(before, own_idle_bytes(p)));
    }
    if (weir__striped_sum(striped, WEIR_STRIPED_ALLOCS) <=
        weir__striped_sum(striped, WEIR_STRIPED_FREES))
        return 0;
    return weir__size_larger(1, atomic_load_explicit(&p->e.seen.most_in_use, memory_order_relaxed));
}

static void pool_figures(struct weir_engine *e, weir_statistics *out) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;

    /* Sets host_bytes; the lines below set all other figures. */
    weir__sizes_figures(&p->sizes, out);
    out->requested = pool_requested(p);
    out->requested_peak = weir__size_larger(
        out->requested, atomic_load_explicit(&e->seen.most_in_use, memory_order_relaxed));
    out->reserved = pool_read_reserve(p);
    weir__raise_to(&p->reserved_peak, pool_read_or(p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0));
    out->reserved_peak = atomic_load_explicit(&p->reserved_peak, memory_order_relaxed);
    /* the driver reports the sum of the requested bytes as used memory */
    out->in_use = out->requested;
    out->in_use_peak = out->requested_peak;
}

/* ---- growth of the pool ---- */

/* Raises reserved memory towards `target` by probe blocks (temporary blocks) of up to `largest` bytes, `most` bytes in
 * total.  Returns the reserved memory.  The caller holds `growing` and has entered the device's context. */
static uint64_t raise_reserve(struct weir_pool_engine *p, uint64_t target, size_t largest,
                              uint64_t most, CUresult *why) {
    uint64_t reserve = pool_read_reserve(p), idle;
    size_t least = UNIT, bytes;
    CUresult result = CUDA_SUCCESS;

    if (largest > UNIT) {
        /* Half of the entries in p->probe must suffice for the pool's idle memory.  The other half is for growth. */
        idle = weir__size_subtract(reserve, pool_read_in_use(p));
        least = whole_units(weir__size_smaller(idle / (WEIR_POOL_PROBES / 2), largest));
    }
    while (reserve < target && most >= least && p->probe_count < WEIR_POOL_PROBES) {
        /* Rounds up to whole units, so that later blocks stay aligned even if the driver cannot free this block. */
        bytes = whole_units(weir__size_smaller(target - reserve, largest));
        bytes = weir__size_larger(bytes, least);
        result = allocate_probe(p, bytes, &reserve);
        if (result == CUDA_SUCCESS) {
            most -= bytes;
        } else if (result == CUDA_ERROR_OUT_OF_MEMORY && bytes > UNIT) {
            largest = whole_units(bytes / 2);
            least = UNIT;
        } else {
            break;
        }
    }
    *why = result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
    pool_drop_probes(p);
    return reserve;
}

/* After a request has added `got` bytes, adds more if the growth policy wants more.  The caller holds `growing`. */
static void grow_by_policy(struct weir_pool_engine *p, size_t request, uint64_t got,
                           uint64_t reserve) {
    const struct weir_driver *driver = p->e.device->driver;
    weir_growth_state state = {.size = sizeof state};
    uint64_t started = driver->ticks();
    struct weir_driver_scope scope;
    uint64_t device_free, after;
    CUresult ignored; /* the request has already succeeded */
    size_t step;

    if (p->e.options->growth == WEIR_GROWTH_EXACT || !p->has_figures)
        return;
    device_free = weir__device_free(p->e.device);
    /* A part of the request may have fit into reserved memory.  The growth policy gets the size of the rest. */
    state.request = request < got ? request : (size_t)got;
    state.reserved = (size_t)(reserve - got);
    state.in_use = (size_t)pool_read_in_use(p);
    state.limit = (size_t)weir__engine_limit(&p->e);
    state.device_free = device_free == UINT64_MAX ? SIZE_MAX : (size_t)(device_free + got);
    step = weir__growth_step(p->e.options, &state, UNIT, &p->cursor);
    if (step <= got || weir__driver_enter(driver, p->e.device->context, &scope) != CUDA_SUCCESS)
        return;
    after = raise_reserve(p, reserve + (step - got), PROBE_BYTES, UINT64_MAX, &ignored);
    weir__driver_leave(driver, &scope);
    atomic_store_explicit(&p->e.seen.reserved, after, memory_order_relaxed);
    if (after > reserve)
        weir__engine_record(&p->e, WEIR_EVENT_POLICY, 0, step - got, after - reserve,
                            weir__device_elapsed_ns(p->e.device, started), after);
    else
        weir__growth_refused(&p->cursor);
}

/* Records a change of reserved memory.  Returns 1 if reserved memory may have grown since `started`, else 0. */
static int record_pool_change(struct weir_pool_engine *p, size_t request, uint64_t started) {
    uint64_t before, now;
    int grew;

    /* If the lock is held, another thread is growing or trimming the pool, and records the change. */
    if (pthread_mutex_trylock(&p->growing) != 0)
        return 1;
    before = atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed);
    now = pool_read_reserve(p);
    atomic_store_explicit(&p->e.seen.reserved, now, memory_order_relaxed);
    grew = now > before;
    if (grew) {
        weir__engine_record(&p->e, WEIR_EVENT_REQUEST, 0, request, now - before,
                            weir__device_elapsed_ns(p->e.device, started), now);
        grow_by_policy(p, request, now - before, now);
    } else if (now < before) {
        weir__growth_shrunk(&p->cursor, now);
    }
    pool_lower_ceiling(p, now);
    pthread_mutex_unlock(&p->growing);
    return grew;
}

/* Raises the pool's release threshold (the driver rounds it down), so that the pool keeps preallocated memory. */
static void raise_threshold(struct weir_pool_engine *p, uint64_t bytes) {
    bytes = whole_units(weir__size_smaller(bytes, p->e.device->total));
    if (bytes > p->threshold &&
        pool_set_attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes) == CUDA_SUCCESS)
        p->threshold = bytes;
}

static weir_status pool_grow(struct weir_engine *e, uint64_t target, uint64_t goal, int cause) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
    const struct weir_driver *driver = e->device->driver;
    uint64_t started = driver->ticks(), limit = weir__engine_limit(&p->e), before, after;
    struct weir_driver_scope scope;
    CUresult result, why;

    (void)goal; /* unused, since the pool grows by whole units, whatever the goal is */
    if (!p->has_figures)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    result = weir__driver_enter(driver, e->device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(e->device, result);
    pthread_mutex_lock(&p->growing);
    if (cause == WEIR_EVENT_PREALLOC)
        raise_threshold(p, weir__size_smaller(target, limit));
    before = pool_read_reserve(p);
    after = raise_reserve(p, weir__size_smaller(target, limit), PROBE_BYTES, UINT64_MAX, &why);
    if (after > before) {
        /* unreached: `before` is at least `target` only if another thread has grown the pool meanwhile */
        weir__engine_record(e, cause, 0, target > before ? target - before : 0, after - before,
                            weir__device_elapsed_ns(e->device, started), after);
    }
    /* After this wait, the driver applies its release threshold, which can lower reserved memory again. */
    result = driver->cuStreamSynchronize(p->grow_stream);
    if (result == CUDA_SUCCESS)
        result = pool_read(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &after);
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

/* ---- freeing blocks ---- */

/* Frees the driver's block that starts at `block` or contains it. */
static weir_status pool_free_block(struct weir_pool_engine *p, CUdeviceptr block,
                                   weir_stream stream, struct weir_use_list *uses) {
    size_t counted = 0, before;
    weir_status status;

    if (!p->has_figures && !weir__sizes_remove(&p->sizes, block, &counted))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    before = weir__addresses_remove(&p->before, block);
    status = weir__async_free(&p->async, block - before, stream, uses);
    /* This call cannot fail, since the map still has a slot for the key. */
    if (status != WEIR_OK && before > 0)
        (void)weir__addresses_add(&p->before, block, before);
    if (counted > 0)
        (void)weir__sizes_record(&p->sizes, block, counted, status != WEIR_OK);
    return status;
}

/* Frees a superblock that was removed from the list, or adds it again if the driver fails.  Returns 1 on success, else
 * 0.  Updates p->superblocks.idle only after the free, for which OOM recovery in another thread waits. */
static int free_superblock(struct weir_pool_engine *p, struct weir_superblock *superblock,
                           weir_stream stream) {
    int is_freed = pool_free_block(p, superblock->base, stream, NULL) == WEIR_OK;
    size_t bytes = superblock->bytes;

    if (is_freed)
        free(superblock);
    else
        weir__superblocks_add(&p->superblocks, superblock, 0);
    atomic_fetch_sub_explicit(&p->superblocks.idle, bytes, memory_order_relaxed);
    return is_freed;
}

/* Frees the empty superblocks whose work has completed, or all of them after a wait for the device (all_done). */
static void free_idle_superblocks(struct weir_pool_engine *p, int all_done) {
    struct weir_superblock *superblock;

    do
        superblock = weir__superblocks_idle(&p->superblocks, all_done);
    while (superblock && free_superblock(p, superblock, p->grow_stream));
}

/* ---- trims: releasing idle memory ---- */

static uint64_t trimmable_bytes(struct weir_pool_engine *p, uint64_t reserve, size_t keep) {
    return weir__size_smaller(weir__size_subtract(reserve, keep),
                              weir__size_subtract(reserve, pool_read_in_use(p)));
}

/* Trims the pool without a wait for the program's streams.  The caller holds `growing` and has entered the context. */
static CUresult trim_to(struct weir_pool_engine *p, size_t keep) {
    const struct weir_driver *driver = p->e.device->driver;
    uint64_t reserve = UINT64_MAX, now;
    CUresult result, ignored;

    for (;;) {
        /* The driver releases freed memory only after the host has waited for the stream of the free.  The wait inside
         * cuMemFree does not suffice (H200, driver 580). */
        (void)driver->cuStreamSynchronize(p->grow_stream);
        result = driver->cuMemPoolTrimTo(p->e.driver_pool, keep);
        now = pool_read_reserve(p);
        /* Trims again only if the driver reports that reserved memory has fallen, and if p->probe has no block. */
        if (result != CUDA_SUCCESS || !p->has_figures || p->probe_count > 0 || now >= reserve ||
            trimmable_bytes(p, now, keep) < UNIT)
            return result;
        reserve = now;
        /* Moves idle memory to `grow_stream` by an allocation and a free there, so that the next trim releases it. */
        (void)raise_reserve(p, now + 1, UNIT, trimmable_bytes(p, now, keep), &ignored);
    }
}

/* Trims the pool.  Waits for the device only for empty superblocks, in a trim that the program requested. */
static weir_status pool_trim(struct weir_engine *e, struct weir_trim *trim) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
    const struct weir_driver *driver = e->device->driver;
    uint64_t started = driver->ticks(), before, after;
    struct weir_driver_scope scope;
    CUresult result;

    if (trim->mode == WEIR_TRIM_MAINTAIN || trim->mode == WEIR_TRIM_PUBLISH)
        return WEIR_OK;
    result = weir__driver_enter(driver, e->device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(p->e.device, result);
    if (trim->mode == WEIR_TRIM_WAIT && trim->cause == WEIR_EVENT_TRIM &&
        weir__superblocks_need_wait(&p->superblocks))
        (void)weir__device_wait(p->e.device);
    free_idle_superblocks(p, 0);
    pthread_mutex_lock(&p->growing);
    before = pool_read_reserve(p);
    pool_drop_probes(p);
    result = trim_to(p, trim->keep);
    weir__driver_leave(driver, &scope);
    after = pool_read_reserve(p);
    atomic_store_explicit(&p->e.seen.reserved, after, memory_order_relaxed);
    pool_lower_ceiling(p, after);
    trim->released = (size_t)weir__size_subtract(before, after);
    if (trim->released > 0) {
        weir__growth_shrunk(&p->cursor, after);
        /* unreached: `before` is at most trim->keep only if another thread's free has lowered reserved memory */
        weir__engine_record(&p->e, trim->cause, 1, weir__size_subtract(before, trim->keep),
                            trim->released, weir__device_elapsed_ns(p->e.device, started), after);
    }
    pthread_mutex_unlock(&p->growing);
    return weir__device_status(p->e.device, result);
}

/* ---- allocating blocks ---- */

/* Frees the block of a failed request.  If the driver fails, adds the block to p->probe, to free it later. */
static void free_rejected(struct weir_pool_engine *p, CUdeviceptr block, size_t bytes,
                          weir_stream stream) {
    int is_back;

    block -= weir__addresses_remove(&p->before, block);
    is_back = weir__async_free_on(p->e.device, block, stream) == CUDA_SUCCESS;
    pthread_mutex_lock(&p->growing);
    /* unreached: a full array `probe`, after the driver has failed to free WEIR_POOL_PROBES blocks */
    if (!is_back && p->probe_count < WEIR_POOL_PROBES) {
        atomic_fetch_add(&p->probe_bytes, bytes);
        p->probe[p->probe_count].block = block;
        p->probe[p->probe_count++].bytes = bytes;
        p->probes_in_use = 1;
    }
    pthread_mutex_unlock(&p->growing);
}

/* Synchronizes the stream if it is idle.  Without this call, a trim cannot release memory freed on the stream. */
static void synchronize_if_idle(const struct weir_driver *driver, weir_stream stream) {
    CUstreamCaptureStatus capture;

    if (driver->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
        capture == CU_STREAM_CAPTURE_STATUS_NONE && driver->cuStreamQuery(stream) == CUDA_SUCCESS)
        (void)driver->cuStreamSynchronize(stream);
}

/* Undoes a request that has exceeded the limit or failed.  The caller has called weir__driver_relax(). */
static __attribute__((noinline, cold)) weir_status
undo_alloc(struct weir_pool_engine *p, const struct weir_request *r, CUresult result) {
    const struct weir_driver *driver = p->e.device->driver;

    free_rejected(p, r->block, r->bytes, r->stream);
    synchronize_if_idle(driver, r->stream);
    (void)driver->cuMemPoolTrimTo(p->e.driver_pool, (size_t)weir__engine_limit(&p->e));
    /* Updates p->ceiling (the maximum of reserved memory), which the trim may have left higher than reserved memory. */
    refresh_ceiling(p);
    return result == CUDA_SUCCESS ? weir__without_driver(WEIR_E_LIMIT)
                                  : weir__device_status(p->e.device, result);
}

/* Replaces a block whose address is no multiple of WEIR_PAGE.  Occurs only if the program itself also uses the pool. */
static __attribute__((noinline, cold)) CUresult replace_misaligned(struct weir_pool_engine *p,
                                                                   struct weir_request *r) {
    const struct weir_driver *driver = p->e.device->driver;
    CUresult result = driver->cuMemFreeAsync(r->block, r->stream);
    CUdeviceptr block;
    size_t before;

    if (result == CUDA_SUCCESS)
        result = driver->cuMemAllocFromPoolAsync(&block, r->bytes + WEIR_PAGE, p->e.driver_pool,
                                                 r->stream);
    if (result != CUDA_SUCCESS)
        return result;
    before = (size_t)(-block % WEIR_PAGE);
    if (before > 0 && !weir__addresses_add(&p->before, block + before, before)) {
        (void)driver->cuMemFreeAsync(block, r->stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    r->block = block + before;
    return CUDA_SUCCESS;
}

/* Allocates a block.  If r->id is set, the caches made the request, and need an address at a multiple of WEIR_PAGE. */
static CUresult allocate_aligned(struct weir_pool_engine *p, struct weir_request *r) {
    CUresult result = p->e.device->driver->cuMemAllocFromPoolAsync(&r->block, r->bytes,
                                                                   p->e.driver_pool, r->stream);

    return result == CUDA_SUCCESS && r->id != 0 && r->block % WEIR_PAGE != 0
               ? replace_misaligned(p, r)
               : result;
}

/* Allocates a block.  If the driver does not report used memory, records the block's size and checks the limit. */
static CUresult allocate_counted(struct weir_pool_engine *p, struct weir_request *r) {
    CUresult result;

    if (p->has_figures)
        return allocate_aligned(p, r);
    if (!weir__sizes_count(&p->sizes, r->bytes, weir__engine_limit(&p->e)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = allocate_aligned(p, r);
    if (weir__sizes_record(&p->sizes, r->block, r->bytes, result == CUDA_SUCCESS) ||
        result != CUDA_SUCCESS)
        return result;
    free_rejected(p, r->block, r->bytes, r->stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Handles a failed request.  Trims the pool, which may have grown before the failure (H200, driver 580). */
static __attribute__((noinline, cold)) weir_status handle_failure(struct weir_pool_engine *p,
                                                                  CUresult result,
                                                                  struct weir_request *r,
                                                                  uint64_t reserve) {
    weir_status status;

    if (result == CUDA_ERROR_INVALID_CONTEXT)
        result = WEIR_ON_STREAM(p->e.device, allocate_counted(p, r));
    status = weir__device_status(p->e.device, result);
    if (status != WEIR_E_NO_MEMORY)
        return status;
    if (weir__engine_limit(&p->e) != UINT64_MAX &&
        (weir__device_free(p->e.device) >= whole_units(r->bytes) ||
         pool_read_reserve(p) >= weir__engine_limit(&p->e)))
        status = weir__without_driver(WEIR_E_LIMIT);
    reserve = weir__size_smaller(reserve, ceiling_of(p));
    if (pool_read_reserve(p) > reserve)
        (void)p->e.device->driver->cuMemPoolTrimTo(p->e.driver_pool, (size_t)reserve);
    return status;
}

/* Returns 1 if a large request, which the driver would fail slowly, exceeds the pool's and the device's free memory. */
static int exceeds_device(struct weir_pool_engine *p, struct weir_request *r) {
    uint64_t idle;

    if (r->bytes < WEIR_ENGINE_LARGE || !p->has_figures)
        return 0;
    idle = weir__size_subtract(atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed),
                               pool_read_in_use(p));
    return r->bytes > idle && weir__engine_predicts_failure(&p->e, r, r->bytes, idle);
}

/* Allocates a block, and records the pool's growth.  The caller has called weir__driver_relax(). */
static weir_status pool_serve(struct weir_pool_engine *p, struct weir_request *r) {
    const struct weir_driver *driver = p->e.device->driver;
    uint64_t started = driver->ticks(), reserve = 0, limit = weir__engine_limit(&p->e);
    uint64_t before = atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed);
    CUresult result;

    if (limit != atomic_load_explicit(&p->ceiling_limit, memory_order_relaxed))
        refresh_ceiling(p); /* memory above a lowered limit stays reserved, but must not grow */
    if (r->bytes > limit)
        return weir__without_driver(WEIR_E_LIMIT);
    /* If a synchronization has released memory, records the change, so that weir notices later growth. */
    if (p->e.threshold < p->e.device->total && pool_read_reserve(p) < before)
        (void)record_pool_change(p, r->bytes, started);
    /* Checks the limit before the pool grows, since the pool can shrink only after the stream's work has completed. */
    if (enforces_limit(p) && pool_read_in_use(p) > weir__size_subtract(ceiling_of(p), r->bytes))
        return weir__without_driver(WEIR_E_LIMIT);
    result = exceeds_device(p, r) ? CUDA_ERROR_OUT_OF_MEMORY : allocate_counted(p, r);
    if (result != CUDA_SUCCESS) {
        weir_status status = handle_failure(p, result, r, before);

        if (status != WEIR_OK)
            return status;
    }
    result = pool_read_relaxed(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserve);
    if (p->has_figures && enforces_limit(p) && (result != CUDA_SUCCESS || reserve > ceiling_of(p)))
        return undo_alloc(p, r, result);
    if (result == CUDA_SUCCESS &&
        reserve != atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed))
        r->grew |= record_pool_change(p, r->bytes, started);
    return WEIR_OK;
}

static __attribute__((noinline)) weir_status serve_slab(struct weir_pool_engine *p,
                                                        struct weir_request *r) {
    size_t bytes = r->bytes;
    struct weir_superblock *superblock;
    weir_status status;

    if (weir__superblocks_cut(&p->superblocks, r))
        return WEIR_OK;
    superblock = weir__superblocks_make(&p->superblocks, r, weir__engine_limit(&p->e));
    if (!superblock)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    r->bytes = superblock->bytes;
    status = pool_serve(p, r);
    r->bytes = bytes;
    if (weir__is_failure(status) && superblock->bytes > bytes) {
        superblock->bytes = bytes;
        status = pool_serve(p, r);
    }
    superblock->base = r->block;
    if (status == WEIR_OK)
        weir__superblocks_add(&p->superblocks, superblock, bytes);
    else
        free(superblock);
    return status;
}

static weir_status pool_alloc(struct weir_engine *e, struct weir_request *r) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
    const struct weir_driver *driver = e->device->driver;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_relax(driver, &scope);
    weir_status status;
    uint64_t in_use;

    if (result != CUDA_SUCCESS)
        return weir__device_status(e->device, result);
    status = r->flags & WEIR_REQUEST_SLAB ? serve_slab(p, r) : pool_serve(p, r);
    weir__driver_unrelax(driver, &scope);
    if (status != WEIR_OK || r->flags & WEIR_REQUEST_CAPTURED)
        return status;
    if (e->options->cache == WEIR_SWITCH_ON) {
        weir__engine_count(e, r);
    } else {
        in_use = pool_requested(p);
        atomic_store_explicit(&e->seen.in_use, in_use, memory_order_relaxed);
        weir__raise_to(&e->seen.most_in_use, in_use);
    }
    return WEIR_OK;
}

static weir_status pool_free(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
    struct weir_superblock *empty;
    struct weir_extent around;
    uint64_t id = WEIR_ENGINE_OBSERVED;

    if (!weir__superblocks_find(&p->superblocks, block, &around))
        return pool_free_block(p, block, stream, uses);
    if (stream != p->grow_stream && weir__device_stream_id(e->device, stream, &id) != CUDA_SUCCESS)
        id = WEIR_ENGINE_UNKNOWN;
    if (!weir__superblocks_put(&p->superblocks, block, id, &empty))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (empty)
        (void)free_superblock(p, empty, stream);
    return WEIR_OK;
}

/* Frees blocks that no work uses, on grow_stream.  No work runs there, so every stream can reuse the memory at once. */
static weir_status free_each_completed(struct weir_pool_engine *p, const struct weir_freed *freed) {
    weir_status status = WEIR_OK;

    for (size_t i = 0; status == WEIR_OK && i < freed->count; i++)
        status = pool_free(&p->e, freed->block[i], p->grow_stream, NULL);
    return status;
}

static weir_status pool_free_batch(struct weir_engine *e, struct weir_freed *freed, uint64_t id) {
    (void)id; /* always WEIR_ENGINE_OBSERVED, since this engine lacks the trait SUBALLOCATES */
    return WEIR_STATUS_IN_SCOPE(e->device,
                                free_each_completed((struct weir_pool_engine *)e, freed));
}

/* ---- queries about memory ---- */

/* Returns the bytes of the largest request that will succeed after OOM recovery has released `back` bytes. */
static size_t largest(struct weir_pool_engine *p, uint64_t back) {
    uint64_t reserve = pool_read_reserve(p), stays;

    /* If the pool never had a block, OOM recovery can release all its memory. */
    if (p->e.options->recovery_timeout_ms != UINT32_MAX &&
        atomic_load_explicit(&p->e.seen.most_in_use, memory_order_relaxed) == 0 &&
        pool_read_or(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 1) == 0)
        back = reserve;
    stays = weir__size_subtract(reserve, back);
    return weir__size_round_down(
        weir__device_room(p->e.device, weir__size_subtract(weir__engine_limit(&p->e), stays), back),
        UNIT);
}

/* Reports whether frees on weir's own stream `joined` are pending.  weir cannot query whether others have completed. */
static void pool_survey(struct weir_engine *e, struct weir_survey *out) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;

    if (out->what & WEIR_SURVEY_PENDING)
        out->frees.waiting = (size_t)weir__async_is_pending(&p->async);
    if (out->what & WEIR_SURVEY_LARGEST)
        out->largest = largest(p, out->back);
}

/* Calls visit->show for the superblock (memory for slabs) that contains an address.  Supports no other queries. */
static int pool_visit(struct weir_engine *e, const struct weir_visit *visit) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;
    struct weir_extent superblock;

    return visit->what == WEIR_VISIT_REGION_AT &&
                   weir__superblocks_find(&p->superblocks, visit->address, &superblock)
               ? weir__visit_show(visit, superblock.base, superblock.bytes)
               : -1;
}

/* ---- opening and closing the engine ---- */

static weir_status pool_allow(struct weir_engine *e, const CUmemAccessDesc *access) {
    const struct weir_driver *driver = e->device->driver;

    return weir__device_status(
        e->device, WEIR_IN_SCOPE(driver, e->device->context,
                                 driver->cuMemPoolSetAccess(e->driver_pool, access, 1)));
}

static CUresult create_driver_pool(struct weir_pool_engine *p) {
    const struct weir_device *device = p->e.device;
    const struct weir_driver *driver = device->driver;
    int off = 0;
    CUresult result = weir__async_make_pool(
        device, &device->access, p->driver_limit == UINT64_MAX ? 0 : (size_t)p->driver_limit,
        device->decompresses ? CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS : 0, &p->e.driver_pool);

    if (result != CUDA_SUCCESS)
        return result;
    result = pool_set_attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &p->threshold);
    if (result == CUDA_SUCCESS)
        result = pool_set_attribute(p, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &off);
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
        free_idle_superblocks(p, 1);
        pool_drop_probes(p);
        driver->cuMemPoolDestroy(p->e.driver_pool);
        driver->cuStreamDestroy(p->grow_stream);
        weir__driver_leave(driver, &scope);
    }
    weir__superblocks_close(&p->superblocks);
    weir__map_clear(&p->sizes.map);
    weir__async_close(&p->async);
    weir__map_clear(&p->before.map);
    pthread_mutex_destroy(&p->growing);
    free(p);
}

static const struct weir_engine_ops pool_ops = {
    .alloc = pool_alloc,
    .free = pool_free,
    .free_batch = pool_free_batch,
    .grow = pool_grow,
    .trim = pool_trim,
    .allow = pool_allow,
    .figures = pool_figures,
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
    /* Driver 580 may crash if a pool with pending frees is destroyed.  So pool_close() must follow a wait. */
    p->e.traits |= WEIR_ENGINE_RELEASES_ASYNC;
    p->e.step_bytes = p->e.least_limit = UNIT;
    p->ceiling = p->ceiling_limit = weir__engine_limit(&p->e);
    p->driver_limit =
        device->driver->capabilities & WEIR_CAP_POOL_MAX_SIZE ? p->ceiling : UINT64_MAX;
    p->threshold = setup->threshold;
    p->has_figures = (device->driver->capabilities & WEIR_CAP_POOL_FIGURES) != 0;
    result = WEIR_IN_SCOPE(device->driver, device->context, create_driver_pool(p));
    if (result != CUDA_SUCCESS) {
        free(p);
        return weir__device_status(device, result);
    }
    pthread_mutex_init(&p->growing, NULL);
    p->async.device = p->superblocks.device = device;
    pthread_mutex_init(&p->superblocks.lock, NULL);
    *out = &p->e;
    return WEIR_OK;
}
