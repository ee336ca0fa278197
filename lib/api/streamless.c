/* SPDX-License-Identifier: MIT */
/* streamless.c: blocks for those who name no stream.
 *
 * Such a block is one of a stream of the allocator's own, which runs nothing and is made for the first of
 * them.  What weir makes that stream wait for, when it gives it what others have freed, is over before the
 * block is handed out; and before a block is taken back the device is waited for, so that whatever used it is
 * over too.  All else is as for any stream: caches, noted uses, hardening.
 *
 * Must not know: engines, the caches.
 */
#include "api/allocator_internal.h"
#include "base/result.h"

static weir_status make_quiet(weir_allocator *a, CUstream *stream) {
    const struct weir_driver *driver = a->device.driver;
    struct weir_driver_scope scope;
    CUstream first = NULL;
    CUresult result = weir__driver_enter(driver, a->device.context, &scope);

    if (result != CUDA_SUCCESS)
        return weir__device_status(&a->device, result);
    result = driver->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS && !atomic_compare_exchange_strong(&a->quiet, &first, *stream)) {
        (void)driver->cuStreamDestroy(*stream); /* another thread was quicker */
        *stream = first;
    }
    weir__driver_leave(driver, &scope);
    return result == CUDA_SUCCESS ? WEIR_OK : weir__device_status(&a->device, result);
}

static weir_status quiet_of(weir_allocator *a, CUstream *stream) {
    if (!a)
        return weir__without_driver(WEIR_E_INVALID);
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return weir__without_driver(WEIR_E_DEVICE_LOST);
    *stream = atomic_load_explicit(&a->quiet, memory_order_acquire);
    return *stream ? WEIR_OK : make_quiet(a, stream);
}

void weir__anywhere_close(weir_allocator *a) {
    struct weir_driver_scope scope;

    if (!a->quiet ||
        weir__driver_enter(a->device.driver, a->device.context, &scope) != CUDA_SUCCESS)
        return;
    (void)a->device.driver->cuStreamDestroy(a->quiet);
    weir__driver_leave(a->device.driver, &scope);
}

/* In relaxed mode: a wait is not allowed beside a capture otherwise. */
static weir_status wait_for(weir_allocator *a, CUstream stream) {
    const struct weir_driver *driver = a->device.driver;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_relax(driver, &scope);

    if (result == CUDA_SUCCESS) {
        result = driver->cuStreamSynchronize(stream);
        weir__driver_unrelax(driver, &scope);
    }
    return result == CUDA_SUCCESS ? WEIR_OK : weir__device_status(&a->device, result);
}

weir_status weir_alloc_any(weir_allocator *a, size_t bytes, void **block) {
    void *served = NULL;
    CUstream stream;
    weir_status status = quiet_of(a, &stream);

    if (status != WEIR_OK)
        return status;
    if (!block)
        return weir_alloc(a, bytes, stream, block);
    status = weir_alloc(a, bytes, stream, &served);
    if (status == WEIR_OK && served)
        status = wait_for(a, stream);
    if (status == WEIR_OK) {
        *block = served;
    } else if (served) {
        int result = weir__driver_result;

        (void)weir_free(a, served, stream);
        weir__set_driver_result(result);
    }
    return status;
}

int weir__apart(const weir_allocator *a, struct weir_extent *addresses) {
    return !a->harden && a->reserve.engine->ops->visit &&
           weir__engine_list(a->reserve.engine, WEIR_VISIT_APART, addresses, 1) == 1;
}

weir_status weir__alloc_apart(weir_allocator *a, size_t bytes, uint64_t at, void **block) {
    struct weir_request r = {.bytes = bytes, .asked = bytes, .at = at};
    int result_before = weir__driver_result;
    weir_status status = quiet_of(a, &r.stream);

    if (status == WEIR_OK && weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_PREALLOC))
        status = weir__without_driver(WEIR_E_NO_MEMORY); /* which comes with another request */
    if (status == WEIR_OK)
        status = a->caches ? weir__caches_alloc_at(a->caches, &r)
                           : weir__reserve_alloc_alone(&a->reserve, &r);
    if (status != WEIR_OK)
        return status;
    if (!a->caches)
        weir__striped_add(&a->counters.striped, WEIR_STRIPED_ALLOCS);
    weir__set_driver_result(result_before);
    *block = (void *)(uintptr_t)r.block;
    return WEIR_OK;
}

weir_status weir_free_any(weir_allocator *a, void *block) {
    CUresult result;
    CUstream stream;
    weir_status status = quiet_of(a, &stream);

    if (status != WEIR_OK || !block)
        return status;
    result = weir__device_wait(&a->device);
    if (result != CUDA_SUCCESS)
        return weir__device_status(&a->device, result);
    return weir_free(a, block, stream);
}
