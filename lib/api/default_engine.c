/* SPDX-License-Identifier: MIT */
/* default_engine.c: see default_engine.h. */
#include "api/default_engine.h"

#include <stdatomic.h>

#include "api/allocator_internal.h"
#include "base/log.h"
#include "base/result.h"

#define PAGE ((size_t)2 << 20) /* the granularity of mapped memory */

static int can_map(const struct weir_driver *driver, CUdevice device) {
    int can = 0;

    return (driver->capabilities & WEIR_CAP_VIRTUAL) &&
           driver->cuDeviceGetAttribute(&can,
                                        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                        device) == CUDA_SUCCESS &&
           can;
}

/* Returns the driver's result of making mapped memory for hardware decompression: no attribute says whether the driver
 * can.  Returns success if the device has no free memory for the attempt. */
static CUresult try_kind(const struct weir_driver *driver, CUdevice device) {
    CUmemAllocationProp kind;
    CUmemGenericAllocationHandle handle;
    CUresult result = weir__device_mapped_kind(driver, device, 1, &kind);

    if (result == CUDA_SUCCESS)
        result = driver->cuMemCreate(&handle, PAGE, &kind, 0);
    if (result == CUDA_SUCCESS)
        (void)driver->cuMemRelease(handle);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

/* A bit for each device on which the mapped engine found no addresses left.  Memory that was lost with a context keeps
 * its addresses, so they may run out after many resets. */
static _Atomic uint64_t full;

static uint64_t bit_of(CUdevice device) {
    return UINT64_C(1) << (unsigned)device % 64;
}

static int maps_for(const struct weir_driver *driver, CUdevice device,
                    const weir_options *options) {
    return options->engine == WEIR_ENGINE_DEFAULT &&
           !(atomic_load_explicit(&full, memory_order_relaxed) & bit_of(device)) &&
           can_map(driver, device);
}

void weir__default_engine_fill(const struct weir_driver *driver, CUdevice device,
                               weir_options *options) {
    if (maps_for(driver, device, options))
        options->engine = WEIR_ENGINE_MAPPED;
}

weir_status weir__default_engine_create(const struct weir_driver *driver, CUdevice device,
                                        const weir_options *options, unsigned how,
                                        weir_allocator **allocator, char *message,
                                        size_t message_bytes) {
    int is_named = options->engine == WEIR_ENGINE_MAPPED;
    int is_chosen = maps_for(driver, device, options);
    CUresult result =
        (how & WEIR_CREATE_DECOMPRESSES) && (is_chosen || (is_named && can_map(driver, device)))
            ? try_kind(driver, device)
            : CUDA_SUCCESS;
    int result_before = weir__driver_result;
    weir_options its = *options;
    weir_status why, status;
    char text[320]; /* the reason of a failure if the caller wants no message: goes to the log */

    if (message_bytes > 0)
        message[0] = '\0';
    if (is_named && result != CUDA_SUCCESS) {
        weir__set_driver_result((int)result);
        return WEIR_E_NOT_SUPPORTED;
    }
    if (!is_chosen || result != CUDA_SUCCESS)
        return weir__engine_allocator_create(driver, options, how, allocator, message,
                                             message_bytes);
    its.engine = WEIR_ENGINE_MAPPED;
    why = weir__engine_allocator_create(driver, &its, how, allocator,
                                        message_bytes > 0 ? message : text,
                                        message_bytes > 0 ? message_bytes : sizeof text);
    if ((why != WEIR_E_NOT_SUPPORTED && why != WEIR_E_NO_MEMORY) ||
        weir__driver_result == CUDA_SUCCESS) { /* no other engine would help */
        if (why != WEIR_OK && message_bytes == 0 && text[0])
            weir__log(weir__options_log(options), WEIR_LOG_ERROR, "%s", text);
        return why;
    }
    if (message_bytes > 0)
        message[0] = '\0';
    weir__set_driver_result(result_before);
    its.engine = WEIR_ENGINE_POOL;
    status = weir__engine_allocator_create(driver, &its, how, allocator, message, message_bytes);
    if (status == WEIR_OK &&
        why == WEIR_E_NO_MEMORY) /* the mapped engine lacked addresses, not memory */
        atomic_fetch_or_explicit(&full, bit_of(device), memory_order_relaxed);
    return status;
}
