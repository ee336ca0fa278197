/* SPDX-License-Identifier: MIT */
/* streamless.c: allocates and frees blocks for callers that name no stream.
 *
 * weir allocates such a block on a stream without work, and waits for this stream, which may have to wait for other
 * streams.  Before a free, weir waits for the device, so that all uses have completed. */
#include "api/create.h"
#include "base/result.h"

/* Creates a->idle_stream, which never has work, unless another thread has done so.  The context is current. */
static CUresult create_idle_stream(weir_allocator *a, CUstream *stream) {
    const struct weir_driver *driver = a->device.driver;
    CUresult result = driver->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
    CUstream first = NULL;

    if (result == CUDA_SUCCESS &&
        !atomic_compare_exchange_strong(&a->idle_stream, &first, *stream)) {
        (void)driver->cuStreamDestroy(*stream);
        *stream = first;
    }
    return result;
}

static weir_status quiet_of(weir_allocator *a, CUstream *stream) {
    weir_status status = weir__check_live_allocator(a);

    if (status != WEIR_OK)
        return status;
    *stream = atomic_load_explicit(&a->idle_stream, memory_order_acquire);
    return *stream
               ? WEIR_OK
               : weir__device_status(&a->device, WEIR_IN_SCOPE(a->device.driver, a->device.context,
                                                               create_idle_stream(a, stream)));
}

void weir__streamless_close(weir_allocator *a) {
    if (a->idle_stream)
        (void)WEIR_IN_SCOPE(a->device.driver, a->device.context,
                            a->device.driver->cuStreamDestroy(a->idle_stream));
}

/* Waits for the idle stream in capture mode "relaxed", since the driver would otherwise refuse during any capture. */
static weir_status wait_for_idle_stream(weir_allocator *a, CUstream stream) {
    const struct weir_driver *driver = a->device.driver;
    CUresult result = WEIR_RELAXED(driver, driver->cuStreamSynchronize(stream));

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
        status = wait_for_idle_stream(a, stream);
    if (status == WEIR_OK) {
        *block = served;
    } else if (served) {
        int result = weir__driver_result;

        (void)weir_free(a, served, stream);
        weir__set_driver_result(result);
    }
    return status;
}

int weir__separate_addresses(const weir_allocator *a, struct weir_extent *addresses) {
    return !a->harden && a->reserve.engine->ops->visit &&
           weir__engine_find(a->reserve.engine, WEIR_VISIT_AT_ADDRESS, 0, addresses) == 1;
}

weir_status weir__alloc_separate(weir_allocator *a, size_t bytes, uint64_t at, void **block) {
    struct weir_request r = {.bytes = bytes, .asked = bytes, .at = at};
    int result_before = weir__driver_result;
    weir_status status = quiet_of(a, &r.stream);

    if (status == WEIR_OK && weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_PREALLOC))
        /* This call must not wait, so it fails until another request has preallocated. */
        status = weir__without_driver(WEIR_E_NO_MEMORY);
    if (status == WEIR_OK)
        status =
            a->caches ? weir__caches_alloc_at(a->caches, &r) : weir__reserve_alloc(&a->reserve, &r);
    if (status != WEIR_OK)
        return status;
    if (!a->caches)
        weir__striped_add(&a->counters.striped, WEIR_STRIPED_ALLOCS);
    weir__set_driver_result(result_before);
    *block = (void *)(uintptr_t)r.block;
    return WEIR_OK;
}

weir_status weir__free_completed(weir_allocator *a, void *block) {
    unsigned paths = atomic_load_explicit(&a->device.slow_path, memory_order_acquire);
    CUstream stream;
    weir_status status;

    if ((paths & ~(unsigned)WEIR_SLOW_PATH_OOM) == 0 && !weir__driver_forked() &&
        weir__caches_free_done(a->caches, (uintptr_t)block) == WEIR_OK)
        return WEIR_OK;
    status = quiet_of(a, &stream);
    return status == WEIR_OK ? weir_free(a, block, stream) : status;
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
