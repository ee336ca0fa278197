/* SPDX-License-Identifier: MIT */
/* direct.c: one cuMemAlloc and cuMemFree per block; the reserve is what is in use.
 *
 * The yardstick of the slow way, and what a user takes to find out whether an allocator is at fault:
 * cuMemFree waits for all work of the device, so that stream order always holds.  A table of live
 * blocks tells foreign pointers and counts bytes; its lock is never held across a driver call.
 *
 * Must not know: growth, release thresholds, other engines.
 */
#include <stdlib.h>

#include "base/size.h"
#include "engine/engine.h"

struct platform {
    struct weir_host *host;
    pthread_mutex_t lock; /* guards what follows */
    struct weir_map live; /* address -> bytes asked */
    uint64_t in_use;
    uint64_t in_use_peak;
};

static weir_status platform_open(struct weir_host *host, void **engine) {
    struct platform *p = calloc(1, sizeof *p);

    if (!p)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    p->host = host;
    pthread_mutex_init(&p->lock, NULL);
    *engine = p;
    return WEIR_OK;
}

static void platform_close(void *engine) {
    struct platform *p = engine;

    weir__map_clear(&p->live);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* Takes `bytes` into account unless that passes the limit; bytes are given back by `uncount`. */
static int count(struct platform *p, size_t bytes) {
    uint64_t limit = p->host->limit;
    int fits;

    pthread_mutex_lock(&p->lock);
    fits = bytes <= limit && p->in_use <= limit - bytes;
    if (fits) {
        p->in_use += bytes;
    }
    pthread_mutex_unlock(&p->lock);
    return fits;
}

static void uncount(struct platform *p, size_t bytes) {
    pthread_mutex_lock(&p->lock);
    p->in_use -= bytes;
    pthread_mutex_unlock(&p->lock);
}

static int remember(struct platform *p, CUdeviceptr block, size_t bytes) {
    int done;

    pthread_mutex_lock(&p->lock);
    done = weir__map_put(&p->live, block, bytes);
    if (done && p->in_use > p->in_use_peak)
        p->in_use_peak = p->in_use;
    pthread_mutex_unlock(&p->lock);
    return done;
}

static weir_status platform_alloc(void *engine, size_t bytes, weir_stream stream, uint64_t id,
                                  int may_grow, CUdeviceptr *block, int *grew) {
    struct platform *p = engine;
    const struct weir_driver *driver = p->host->device.driver;
    uint64_t started = driver->ticks();
    struct weir_driver_scope scope;
    weir_status status;
    CUresult result;

    (void)may_grow; /* every request grows */
    status = id ? WEIR_OK : weir__device_capture(&p->host->device, stream);
    if (status != WEIR_OK)
        return status;
    if (!count(p, bytes))
        return weir__without_driver(WEIR_E_LIMIT);
    result = weir__driver_enter(driver, p->host->device.context, &scope);
    if (result == CUDA_SUCCESS) {
        result = driver->cuMemAlloc(block, bytes);
        if (result == CUDA_SUCCESS && !remember(p, *block, bytes)) {
            driver->cuMemFree(*block);
            weir__driver_leave(driver, &scope);
            uncount(p, bytes);
            return weir__without_driver(WEIR_E_HOST_MEMORY);
        }
        weir__driver_leave(driver, &scope);
    }
    if (result != CUDA_SUCCESS) {
        uncount(p, bytes);
        return weir__device_status(&p->host->device, result);
    }
    /* Every block is a growth step of its own; the ring would hold nothing else, so only the time
     * is kept. */
    *grew = 1;
    atomic_fetch_add_explicit(&p->host->books->stall_ns,
                              weir__device_since(&p->host->device, started), memory_order_relaxed);
    return WEIR_OK;
}

static weir_status platform_free(void *engine, CUdeviceptr block, weir_stream stream,
                                 struct weir_use_list *uses) {
    struct platform *p = engine;
    const struct weir_driver *driver = p->host->device.driver;
    struct weir_driver_scope scope;
    uintptr_t bytes = 0;
    CUresult result;
    int known;

    (void)uses; /* cuMemFree waits for every stream */
    if (p->host->device.drop_in && weir__device_capture(&p->host->device, stream) == WEIR_E_STREAM)
        return WEIR_E_STREAM; /* as the driver, which asks for the stream, answers */
    pthread_mutex_lock(&p->lock);
    known = weir__map_take(&p->live, block, &bytes);
    pthread_mutex_unlock(&p->lock);
    if (!known)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    result = weir__driver_enter(driver, p->host->device.context, &scope);
    if (result == CUDA_SUCCESS) {
        result = driver->cuMemFree(block);
        weir__driver_leave(driver, &scope);
    }
    if (result != CUDA_SUCCESS) {
        /* The slot it left is there unless the table grew meanwhile; losing the entry would only
         * make a second free fail as foreign. */
        (void)remember(p, block, bytes);
        return weir__device_status(&p->host->device, result);
    }
    uncount(p, bytes);
    return WEIR_OK;
}

static int platform_is_live(void *engine, CUdeviceptr block) {
    struct platform *p = engine;
    int live;

    pthread_mutex_lock(&p->lock);
    live = weir__map_get(&p->live, block, NULL);
    pthread_mutex_unlock(&p->lock);
    return live;
}

static int platform_find(void *engine, CUdeviceptr address, CUdeviceptr *block, size_t *bytes) {
    struct platform *p = engine;
    int found = 0;

    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->live.capacity && !found; i++) {
        const struct weir_map_slot *slot = &p->live.slots[i];

        found = slot->key != 0 && address - slot->key < slot->value;
        *block = slot->key;
        *bytes = slot->value;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

static weir_status platform_grow(void *engine, uint64_t target, int cause) {
    (void)engine;
    (void)target;
    (void)cause;
    return weir__without_driver(WEIR_E_NOT_SUPPORTED);
}

static weir_status platform_trim(void *engine, size_t keep, int cause, size_t *released) {
    (void)engine;
    (void)keep;
    (void)cause;
    *released = 0; /* nothing is ever idle */
    return WEIR_OK;
}

static size_t platform_largest(void *engine, uint64_t id, uint64_t back) {
    struct platform *p = engine;
    uint64_t room;

    (void)id;
    pthread_mutex_lock(&p->lock);
    room = weir__size_less(p->host->limit, p->in_use - back);
    pthread_mutex_unlock(&p->lock);
    return weir__device_room(&p->host->device, room, back);
}

/* Nothing is ever idle. */
static void platform_survey(void *engine, uint64_t id, struct weir_survey *out) {
    (void)engine;
    (void)id;
    (void)out;
}

static void platform_blocks(void *engine, weir__engine_block_fn *visit, void *context) {
    struct platform *p = engine;

    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->live.capacity; i++)
        if (p->live.slots[i].key != 0)
            visit(context, p->live.slots[i].value, 0);
    pthread_mutex_unlock(&p->lock);
}

static size_t platform_reclaim(void *engine, size_t *silent) {
    (void)engine;
    (void)silent;
    return 0; /* cuMemFree returns when the memory is free */
}

static void platform_figures(void *engine, weir_statistics *out) {
    struct platform *p = engine;

    pthread_mutex_lock(&p->lock);
    out->requested = out->in_use = out->reserve = p->in_use;
    out->requested_peak = out->in_use_peak = out->reserve_peak = p->in_use_peak;
    out->host_bytes = p->live.capacity * sizeof *p->live.slots;
    pthread_mutex_unlock(&p->lock);
}

const struct weir_engine weir__engine_platform = {
    .open = platform_open,
    .close = platform_close,
    .alloc = platform_alloc,
    .free = platform_free,
    .is_live = platform_is_live,
    .find = platform_find,
    .grow = platform_grow,
    .trim = platform_trim,
    .largest = platform_largest,
    .survey = platform_survey,
    .blocks = platform_blocks,
    .reclaim = platform_reclaim,
    .figures = platform_figures,
};
