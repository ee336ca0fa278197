/* SPDX-License-Identifier: MIT */
/* pool_figures.c: what the driver tells of a private CUDA memory pool.
 *
 * Invariants: without the pool figures (driver 11.2) sizes are kept in a table, and reserved memory is estimated as the peak
 * of what was in use, in units.
 *
 * Locks: `sizing`, where there are no figures.
 */
#include "engine/pool_state.h"

#include "base/size.h"

uint64_t weir__pool_read_reserve(struct weir_pool_engine *p) {
    uint64_t peak;

    if (p->has_figures)
        return attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                         atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed));
    pthread_mutex_lock(&p->sizing);
    peak = p->in_use_peak;
    pthread_mutex_unlock(&p->sizing);
    return (peak + UNIT - 1) / UNIT * UNIT;
}

uint64_t weir__pool_read_in_use(struct weir_pool_engine *p) {
    uint64_t in_use;

    if (p->has_figures)
        return attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    pthread_mutex_lock(&p->sizing);
    in_use = p->in_use;
    pthread_mutex_unlock(&p->sizing);
    return in_use;
}

CUresult weir__pool_set_attribute(struct weir_pool_engine *p, CUmemPool_attribute which,
                                  void *value) {
    return p->e.device->driver->cuMemPoolSetAttribute(p->e.driver_pool, which, value);
}

/* ---- the peak ---- */

void weir__pool_renew_peak(struct weir_pool_engine *p) {
    uint64_t zero = 0;

    if (p->probe_count == 0 && atomic_load(&p->peak_has_probes) &&
        weir__pool_set_attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero) == CUDA_SUCCESS)
        atomic_store(&p->peak_has_probes, 0);
}

void weir__pool_note_used_peak(struct weir_pool_engine *p) {
    if (!atomic_load(&p->peak_has_probes))
        weir__raise_to(&p->used_peak, attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0));
}

/* ---- sizes ---- */

int weir__pool_keep_size(struct weir_pool_engine *p, CUdeviceptr block, size_t bytes) {
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

int weir__pool_take_size(struct weir_pool_engine *p, CUdeviceptr block, size_t *bytes) {
    uintptr_t known = 0;
    int ours;

    pthread_mutex_lock(&p->sizing);
    ours = weir__map_take(&p->sizes, block, &known);
    p->in_use -= known;
    pthread_mutex_unlock(&p->sizing);
    *bytes = known;
    return ours;
}

/* ---- figures ---- */

/* Kept, so that there is something to say when the device is lost. */
static uint64_t figure(struct weir_pool_engine *p, CUmemPool_attribute which,
                       _Atomic uint64_t *kept) {
    uint64_t value = attribute(p, which, atomic_load_explicit(kept, memory_order_relaxed));

    atomic_store_explicit(kept, value, memory_order_relaxed);
    return value;
}

/* Bytes in blocks, some of which may have been freed by the driver's own call.  Where the driver does not answer, the
 * books tell whether there are any. */
static uint64_t figure_of_use(struct weir_pool_engine *p) {
    const struct weir_striped *striped = &p->e.events->counters->striped;
    uint64_t used;

    if (ask(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS)
        return weir__striped_sum(striped, WEIR_STRIPED_ALLOCS) >
                       weir__striped_sum(striped, WEIR_STRIPED_FREES)
                   ? weir__size_larger(1, atomic_load_explicit(&p->used, memory_order_relaxed))
                   : 0;
    atomic_store_explicit(&p->used, used, memory_order_relaxed);
    return used;
}

/* What the driver counts as used, and the most it ever was.  Probe blocks that another thread holds just
 * now, or that the driver did not take back, are left out, as far as can be; and its own peak while it has
 * any in it, also of those that are gone. */
static void used_figures(struct weir_pool_engine *p, weir_statistics *out) {
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

void weir__pool_figures(struct weir_engine *e, weir_statistics *out) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;

    weir__pool_drop_left_probes(p);
    if (p->has_figures) {
        used_figures(p, out);
        out->reserved = weir__pool_read_reserve(p);
        out->reserved_peak = figure(p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &p->reserved_peak);
    } else {
        pthread_mutex_lock(&p->sizing);
        out->requested = p->in_use;
        out->requested_peak = p->in_use_peak;
        out->host_bytes = p->sizes.capacity * sizeof *p->sizes.slots;
        pthread_mutex_unlock(&p->sizing);
        out->reserved = out->reserved_peak = weir__pool_read_reserve(p);
    }
    out->in_use = out->requested; /* the driver counts blocks as asked */
    out->in_use_peak = out->requested_peak;
}
