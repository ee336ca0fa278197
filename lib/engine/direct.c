/* SPDX-License-Identifier: MIT */
/* direct.c: one cuMemAlloc and cuMemFree for each block; the reserved memory is the memory in use.
 *
 * This engine shows how slow the driver is without an allocator, and helps a user to find out whether an allocator is
 * at fault.  cuMemFree waits for all work of the device, so stream order always holds.  A table of live blocks detects
 * foreign pointers and counts bytes; its lock is never held across a driver call.
 *
 * This file must not know growth, release thresholds or other engines.
 */
#include <stdlib.h>

#include "base/size.h"
#include "engine/engine.h"

struct direct {
    struct weir_engine e;
    pthread_mutex_t lock; /* guards the fields below */
    struct weir_map live; /* address -> requested bytes */
    uint64_t in_use;
    uint64_t in_use_peak;
};

static void direct_close(struct weir_engine *e) {
    struct direct *p = (struct direct *)e;

    weir__map_clear(&p->live);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* Adds `bytes` to the memory in use, unless that exceeds the limit.  uncount() subtracts them. */
static int count(struct direct *p, size_t bytes) {
    uint64_t limit = weir__engine_limit(&p->e);
    int fits;

    pthread_mutex_lock(&p->lock);
    fits = bytes <= limit && p->in_use <= limit - bytes;
    if (fits)
        p->in_use += bytes;
    pthread_mutex_unlock(&p->lock);
    return fits;
}

static void uncount(struct direct *p, size_t bytes) {
    pthread_mutex_lock(&p->lock);
    p->in_use -= bytes;
    pthread_mutex_unlock(&p->lock);
}

static int remember(struct direct *p, CUdeviceptr block, size_t bytes) {
    int done;

    pthread_mutex_lock(&p->lock);
    done = weir__map_put(&p->live, block, bytes);
    if (done && p->in_use > p->in_use_peak)
        p->in_use_peak = p->in_use;
    pthread_mutex_unlock(&p->lock);
    return done;
}

static weir_status direct_alloc(struct weir_engine *e, struct weir_request *r) {
    struct direct *p = (struct direct *)e;
    const struct weir_driver *driver = e->device->driver;
    uint64_t started = driver->ticks();
    struct weir_driver_scope scope;
    weir_status status;
    CUresult result;

    status = r->id ? WEIR_OK : weir__device_capture(e->device, r->stream);
    if (status != WEIR_OK)
        return status;
    if (!count(p, r->bytes))
        return weir__without_driver(WEIR_E_LIMIT);
    result = weir__driver_enter(driver, e->device->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = driver->cuMemAlloc(&r->block, r->bytes);
        if (result == CUDA_SUCCESS && !remember(p, r->block, r->bytes)) {
            driver->cuMemFree(r->block);
            weir__driver_leave(driver, &scope);
            uncount(p, r->bytes);
            return weir__without_driver(WEIR_E_HOST_MEMORY);
        }
        weir__driver_leave(driver, &scope);
    }
    if (result != CUDA_SUCCESS) {
        uncount(p, r->bytes);
        return weir__device_status(e->device, result);
    }
    /* Every block is a growth.  A growth event for each would fill the ring of events, so only the time counts. */
    r->grew = 1;
    atomic_fetch_add_explicit(&e->events->counters->stall_ns,
                              weir__device_since(e->device, started), memory_order_relaxed);
    return WEIR_OK;
}

static weir_status direct_free(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                               struct weir_use_list *uses) {
    struct direct *p = (struct direct *)e;
    const struct weir_driver *driver = p->e.device->driver;
    uintptr_t bytes = 0;
    CUresult result;
    int known;

    (void)uses; /* cuMemFree waits for every stream */
    /* the driver checks the stream, too */
    if (p->e.device->drop_in && weir__device_capture(p->e.device, stream) == WEIR_E_STREAM)
        return WEIR_E_STREAM;
    pthread_mutex_lock(&p->lock);
    known = weir__map_take(&p->live, block, &bytes);
    pthread_mutex_unlock(&p->lock);
    if (!known)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    result = WEIR_IN_SCOPE(driver, p->e.device->context, driver->cuMemFree(block));
    if (result != CUDA_SUCCESS) {
        /* On an error the entry may be lost, if the table has grown meanwhile; then a second free fails as foreign. */
        (void)remember(p, block, bytes);
        return weir__device_status(p->e.device, result);
    }
    uncount(p, bytes);
    return WEIR_OK;
}

static weir_status direct_grow(struct weir_engine *e, uint64_t target, uint64_t goal, int cause) {
    (void)e, (void)target, (void)goal, (void)cause;
    return weir__without_driver(WEIR_E_NOT_SUPPORTED);
}

/* Does nothing, since no memory is ever idle. */
static weir_status direct_trim(struct weir_engine *e, struct weir_trim *trim) {
    (void)e, (void)trim;
    return WEIR_OK;
}

static weir_status direct_allow(struct weir_engine *e, const CUmemAccessDesc *access) {
    (void)e, (void)access;
    return weir__without_driver(WEIR_E_NOT_SUPPORTED);
}

/* Reports the largest request alone: nothing is ever idle, and cuMemFree returns when the memory is free. */
static void direct_survey(struct weir_engine *e, struct weir_survey *out) {
    struct direct *p = (struct direct *)e;
    uint64_t room;

    if (!(out->what & WEIR_SURVEY_LARGEST))
        return;
    pthread_mutex_lock(&p->lock);
    room = weir__size_less(weir__engine_limit(e), p->in_use - out->back);
    pthread_mutex_unlock(&p->lock);
    out->largest = weir__device_room(e->device, room, out->back);
}

static int direct_visit(struct weir_engine *e, const struct weir_visit *visit) {
    struct direct *p = (struct direct *)e;
    int is_at = visit->what == WEIR_VISIT_BLOCK_AT, count = 0;
    uintptr_t bytes;

    if (!is_at && visit->what != WEIR_VISIT_BLOCKS)
        return -1;
    pthread_mutex_lock(&p->lock);
    /* the usual case: the address is the block's first */
    if (is_at && weir__map_get(&p->live, visit->address, &bytes))
        count = weir__engine_show(visit,
                                  &(struct weir_extent){.base = visit->address, .bytes = bytes}, 1);
    for (size_t i = 0; i < p->live.capacity && !(is_at && count); i++) {
        const struct weir_map_slot *slot = &p->live.slots[i];

        if (slot->key != 0 && (!is_at || visit->address - slot->key < slot->value))
            count += weir__engine_show(
                visit, &(struct weir_extent){.base = slot->key, .bytes = slot->value}, 1);
    }
    pthread_mutex_unlock(&p->lock);
    return count;
}

static void direct_figures(struct weir_engine *e, weir_statistics *out) {
    struct direct *p = (struct direct *)e;

    pthread_mutex_lock(&p->lock);
    out->requested = out->in_use = out->reserved = p->in_use;
    out->requested_peak = out->in_use_peak = out->reserved_peak = p->in_use_peak;
    out->host_bytes = p->live.capacity * sizeof *p->live.slots;
    pthread_mutex_unlock(&p->lock);
}

static const struct weir_engine_ops direct_ops = {
    .alloc = direct_alloc,
    .free = direct_free,
    .give = weir__engine_gives_nothing,
    .grow = direct_grow,
    .trim = direct_trim,
    .allow = direct_allow,
    .figures = direct_figures,
    .survey = direct_survey,
    .visit = direct_visit,
    .close = direct_close,
};

weir_status weir__direct_open(const struct weir_engine *setup, struct weir_engine **out) {
    struct direct *p = calloc(1, sizeof *p);

    if (!p)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    p->e = *setup;
    p->e.ops = &direct_ops;
    pthread_mutex_init(&p->lock, NULL);
    *out = &p->e;
    return WEIR_OK;
}
