/* SPDX-License-Identifier: MIT */
/* pool_trim.c: gives reserved memory of a private CUDA memory pool back to the device.
 *
 * What: the driver's trim releases memory only if the host has waited for the stream that freed the memory.  Completed
 * work does not count, nor does a wait by cuMemFree, and cuCtxSynchronize, which counts for all streams, breaks captures
 * (H200, driver 580).  So the engine allocates completed memory as probe blocks, unit by unit, on a stream that runs
 * nothing, frees them there and waits for that stream.  Then the trim releases the memory.
 *
 * Locks: `growing`.
 */
#include "engine/pool_state.h"

#include "base/size.h"
#include "config/growth_policy.h"

void weir__pool_undo_growth(struct weir_pool_engine *p, uint64_t most) {
    const struct weir_driver *driver = p->e.device->driver;

    if (p->has_figures && weir__pool_read_reserve(p) > most)
        (void)WEIR_RELAXED(driver, driver->cuMemPoolTrimTo(p->e.driver_pool, (size_t)most));
}

void weir__pool_note_refused(struct weir_pool_engine *p, uint64_t reserve) {
    weir__lower_to(&p->unwind_to, reserve);
}

static void unwind(struct weir_pool_engine *p, int is_refused) {
    uint64_t least = atomic_exchange_explicit(&p->unwind_to, UINT64_MAX, memory_order_relaxed);

    if (!is_refused)
        return;
    pthread_mutex_lock(&p->growing);
    weir__pool_undo_growth(
        p,
        weir__size_smaller(least, atomic_load_explicit(&p->e.seen.reserved, memory_order_relaxed)));
    pthread_mutex_unlock(&p->growing);
}

/* Returns the idle bytes that a trim to `keep` may release. */
static uint64_t spare(struct weir_pool_engine *p, uint64_t reserve, size_t keep) {
    return weir__size_smaller(weir__size_less(reserve, keep),
                              weir__size_less(reserve, weir__pool_read_in_use(p)));
}

/* Returns 1 if weir__pool_let_trim_see() may make a trim release more, else 0.  The function needs the driver's figures,
 * and has no effect while a probe block is left that the driver did not free. */
static int sees_more(const struct weir_pool_engine *p) {
    return p->has_figures && p->probe_count == 0;
}

/* Trims as far as the host need not wait for another's work.  The caller holds `growing` and is in the driver's scope. */
static CUresult trim_to(struct weir_pool_engine *p, size_t keep) {
    const struct weir_driver *driver = p->e.device->driver;
    uint64_t reserve = UINT64_MAX, now;
    CUresult result;

    for (;;) {
        result = driver->cuMemPoolTrimTo(p->e.driver_pool, keep);
        now = weir__pool_read_reserve(p);
        if (result != CUDA_SUCCESS || !sees_more(p) || now >= reserve || spare(p, now, keep) < UNIT)
            return result;
        reserve = now;
        weir__pool_let_trim_see(p, spare(p, now, keep));
    }
}

static weir_status give_back(struct weir_pool_engine *p, struct weir_trim *trim) {
    const struct weir_driver *driver = p->e.device->driver;
    uint64_t started = driver->ticks(), before, after;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_enter(driver, p->e.device->context, &scope);

    if (result != CUDA_SUCCESS)
        return weir__device_status(p->e.device, result);
    pthread_mutex_lock(&p->growing);
    before = weir__pool_read_reserve(p);
    weir__pool_drop_probes(p);
    /* The stream runs nothing but the probes' frees, which the driver takes for pending until they are waited for; the
     * threshold has its say then. */
    (void)driver->cuStreamSynchronize(p->grow_stream);
    result = trim_to(p, trim->keep);
    weir__driver_leave(driver, &scope);
    after = weir__pool_read_reserve(p);
    atomic_store_explicit(&p->e.seen.reserved, after, memory_order_relaxed);
    weir__pool_lower_ceiling(p, after);
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

weir_status weir__pool_trim(struct weir_engine *e, struct weir_trim *trim) {
    struct weir_pool_engine *p = (struct weir_pool_engine *)e;

    switch (trim->mode) {
    case WEIR_TRIM_REFUSED:
    case WEIR_TRIM_SERVED:
        unwind(p, trim->mode == WEIR_TRIM_REFUSED);
        return WEIR_OK;
    case WEIR_TRIM_MAINTAIN:
    case WEIR_TRIM_ASK:
        return WEIR_OK;
    default:
        return give_back(p, trim);
    }
}
