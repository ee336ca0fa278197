/* SPDX-License-Identifier: MIT */
/* direct.c: the direct engine, which calls cuMemAlloc for each block, and cuMemFree, which waits for the device. */
#include <stdlib.h>

#include "base/size.h"
#include "engine/driver_blocks.h"

struct direct {
    struct weir_engine e;
    struct weir_sizes live;
};

static void direct_close(struct weir_engine *e) {
    weir__map_clear(&((struct direct *)e)->live.map);
    free(e);
}

static weir_status direct_alloc_counted(struct direct *p, size_t bytes, CUdeviceptr *block) {
    const struct weir_driver *driver = p->e.device->driver;
    CUcontext context = p->e.device->context;
    weir_status status;

    if (!weir__sizes_count(&p->live, bytes, weir__engine_limit(&p->e)))
        return weir__without_driver(WEIR_E_LIMIT);
    status = weir__device_status(p->e.device,
                                 WEIR_IN_SCOPE(driver, context, driver->cuMemAlloc(block, bytes)));
    if (weir__sizes_record(&p->live, *block, bytes, status == WEIR_OK) || status != WEIR_OK)
        return status;
    (void)WEIR_IN_SCOPE(driver, context, driver->cuMemFree(*block));
    return weir__without_driver(WEIR_E_HOST_MEMORY);
}

static weir_status direct_free_block(struct direct *p, CUdeviceptr block) {
    const struct weir_driver *driver = p->e.device->driver;
    CUresult result;
    size_t bytes;

    if (!weir__sizes_remove(&p->live, block, &bytes))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    result = WEIR_IN_SCOPE(driver, p->e.device->context, driver->cuMemFree(block));
    /* If there is no host memory for this record, a later free of the block returns E_NOT_OWNED. */
    (void)weir__sizes_record(&p->live, block, bytes, result != CUDA_SUCCESS);
    return weir__device_status(p->e.device, result);
}

/* Allocates a block.  If the caches are on and the address is no multiple of WEIR_PAGE, allocates 2 MiB or more. */
static weir_status direct_alloc(struct weir_engine *e, struct weir_request *r) {
    struct direct *p = (struct direct *)e;
    uint64_t started = e->device->driver->ticks();
    weir_status status = r->id ? WEIR_OK : weir__device_capture(e->device, r->stream);

    if (status == WEIR_OK)
        status = direct_alloc_counted(p, r->bytes, &r->block);
    if (status == WEIR_OK && e->options->cache == WEIR_SWITCH_ON && r->block % WEIR_PAGE != 0) {
        status = direct_free_block(p, r->block);
        if (status == WEIR_OK)
            status =
                direct_alloc_counted(p, weir__size_larger(r->bytes, WEIR_DRIVER_PAGE), &r->block);
    }
    if (status != WEIR_OK)
        return status;
    if (e->options->cache == WEIR_SWITCH_ON)
        weir__engine_count(e, r);
    /* Does not log this growth, since the log would have an entry for each block. */
    r->grew = 1;
    atomic_fetch_add_explicit(&e->events->counters->stall_ns,
                              weir__device_elapsed_ns(e->device, started), memory_order_relaxed);
    return WEIR_OK;
}

static weir_status direct_free(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                               struct weir_use_list *uses) {
    const int has_caches = e->options->cache == WEIR_SWITCH_ON;
    weir_status status =
        has_caches || e->device->drop_in ? weir__device_capture(e->device, stream) : WEIR_OK;

    (void)uses; /* unused, since cuMemFree waits for every stream */
    /* If the stream is being captured, returns E_CAPTURE to the caches, which free the block after the capture. */
    return status == WEIR_E_STREAM || (has_caches && status == WEIR_E_CAPTURE)
               ? status
               : direct_free_block((struct direct *)e, block);
}

static weir_status direct_free_batch(struct weir_engine *e, struct weir_freed *freed, uint64_t id) {
    weir_status status = WEIR_OK;

    (void)id;
    for (size_t i = 0; status == WEIR_OK && i < freed->count; i++)
        status = direct_free_block((struct direct *)e, freed->block[i]);
    return status;
}

static weir_status direct_grow(struct weir_engine *e, uint64_t target, uint64_t goal, int cause) {
    (void)e, (void)target, (void)goal, (void)cause;
    return weir__without_driver(WEIR_E_NOT_SUPPORTED);
}

/* This engine never has idle memory. */
static weir_status direct_trim(struct weir_engine *e, struct weir_trim *trim) {
    (void)e, (void)trim;
    return WEIR_OK;
}

static weir_status direct_allow(struct weir_engine *e, const CUmemAccessDesc *access) {
    (void)e, (void)access;
    return weir__without_driver(WEIR_E_NOT_SUPPORTED);
}

static void direct_figures(struct weir_engine *e, weir_statistics *out) {
    weir__sizes_figures(&((struct direct *)e)->live, out);
    out->reserved = out->in_use;
    out->reserved_peak = out->in_use_peak;
}

/* This engine has no idle memory and no pending frees, since cuMemFree waits for the device. */
static void direct_survey(struct weir_engine *e, struct weir_survey *out) {
    weir_statistics figures;

    if (!(out->what & WEIR_SURVEY_LARGEST))
        return;
    direct_figures(e, &figures);
    out->largest = weir__device_room(
        e->device, weir__size_subtract(weir__engine_limit(e), figures.in_use - out->back),
        out->back);
}

static int direct_visit(struct weir_engine *e, const struct weir_visit *visit) {
    struct weir_sizes *live = &((struct direct *)e)->live;
    int is_at = visit->what == WEIR_VISIT_BLOCK_AT, count = 0;
    uintptr_t bytes;

    if (!is_at && visit->what != WEIR_VISIT_BLOCKS)
        return -1;
    weir__lock_take(&live->lock);
    /* Most queries pass the start of a block, which is its key in the map. */
    if (is_at && weir__map_get(&live->map, visit->address, &bytes))
        count = weir__visit_show(visit, visit->address, bytes);
    for (size_t i = 0; i < live->map.capacity && !(is_at && count); i++) {
        const struct weir_map_slot *slot = &live->map.slots[i];

        if (slot->key != 0 && (!is_at || visit->address - slot->key < slot->value))
            count += weir__visit_show(visit, slot->key, slot->value);
    }
    weir__lock_give(&live->lock);
    return count;
}

static const struct weir_engine_ops direct_ops = {
    .alloc = direct_alloc,
    .free = direct_free,
    .free_batch = direct_free_batch,
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
    *out = &p->e;
    return WEIR_OK;
}
