/* SPDX-License-Identifier: MIT */
#include "driver/device.h"

#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"

/* The unit in which cuMemAlloc takes memory from the device. */
#define DRIVER_PAGE ((size_t)2 << 20)

_Thread_local int weir__device_lacks_context WEIR_FAST_TLS;
_Thread_local struct weir_default_ids weir__default_ids[WEIR_DEFAULT_IDS] WEIR_FAST_TLS;
_Atomic uint64_t weir__device_age;
_Atomic unsigned weir__device_per_thread_ids;
_Thread_local unsigned weir__device_has_per_thread_id WEIR_FAST_TLS;

int weir__device_make_context_current(const struct weir_device *device) {
    CUcontext current = NULL;

    return device->driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && !current &&
           device->driver->cuCtxPushCurrent(device->context) == CUDA_SUCCESS;
}

void weir__device_restore_context(const struct weir_device *device, int was_made_current) {
    CUcontext popped;

    if (was_made_current)
        device->driver->cuCtxPopCurrent(&popped);
}

int weir__device_retry_in_context(const struct weir_device *device, CUresult *result,
                                  struct weir_driver_scope *scope) {
    if (*result != CUDA_ERROR_INVALID_CONTEXT || device->drop_in)
        return 0;
    weir__device_lacks_context = 1;
    *result = weir__driver_enter(device->driver, device->context, scope);
    return *result == CUDA_SUCCESS;
}

CUresult weir__device_mapped_kind(const struct weir_driver *driver, CUdevice device,
                                  int decompresses, CUmemAllocationProp *kind) {
    int direct = 0, exports = 0;
    CUresult result = driver->cuDeviceGetAttribute(
        &direct, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);

    if (driver->capabilities & WEIR_CAP_IPC)
        (void)driver->cuDeviceGetAttribute(
            &exports, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);

    *kind = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    kind->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind->location.id = device;
    kind->requestedHandleTypes = exports ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
    kind->allocFlags.gpuDirectRDMACapable = result == CUDA_SUCCESS && direct;
    kind->allocFlags.usage = decompresses ? CU_MEM_CREATE_USAGE_HW_DECOMPRESS : 0;
    /* An old driver does not know the attribute for GPUDirect RDMA.  The memory then has no GPUDirect RDMA. */
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : result;
}

int weir__device_is_idle(struct weir_device *device, weir_stream stream) {
    return WEIR_RELAXED(device->driver, device->driver->cuStreamQuery(stream)) == CUDA_SUCCESS;
}

/* Returns 1 if the result means that the context is unusable (CUDA: a "sticky" error) or being shut down, else 0. */
static int is_fatal(CUresult result) {
    switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case 702: /* CUDA_ERROR_LAUNCH_TIMEOUT */
    case 710: /* CUDA_ERROR_ASSERT: the assert() of a kernel failed */
        return 1;
    default:
        /* The results from 714 (hardware stack error) to 719 (launch failure) also make the context unusable. */
        return result >= 714 && result <= CUDA_ERROR_LAUNCH_FAILED;
    }
}

static void log_driver_result(const struct weir_device *device, int level, const char *what,
                              CUresult result) {
    weir__log(atomic_load_explicit(&device->log, memory_order_relaxed), level, "%s%s", what,
              weir__driver_error_name(device->driver, result));
}

weir_status weir__device_status(struct weir_device *device, CUresult result) {
    CUresult own = CUDA_SUCCESS;

    if (result == CUDA_SUCCESS)
        return WEIR_OK;
    weir__set_driver_result((int)result);
    if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_HANDLE)
        /* Both errors may be about the caller's stream or context.  The device is lost only if weir cannot enter the
         * device's context. */
        own = WEIR_IN_SCOPE(device->driver, device->context, CUDA_SUCCESS);
    if (is_fatal(result) || own != CUDA_SUCCESS) {
        /* The driver may shut down before the process ends, so DEINITIALIZED is logged only as debug output. */
        int is_shutdown = result == CUDA_ERROR_DEINITIALIZED || own == CUDA_ERROR_DEINITIALIZED;

        if (weir__slow_path_set(&device->slow_path, WEIR_SLOW_PATH_LOST, 1))
            log_driver_result(device, is_shutdown ? WEIR_LOG_DEBUG : WEIR_LOG_ERROR,
                              "the device is lost: ", result);
        return WEIR_E_DEVICE_LOST;
    }
    if (result == CUDA_ERROR_INVALID_CONTEXT && device->drop_in)
        return WEIR_E_STREAM;
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return WEIR_E_NO_MEMORY;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return WEIR_E_NO_DEVICE;
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        return WEIR_E_STREAM;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        return WEIR_E_CAPTURE;
    case CUDA_ERROR_NOT_SUPPORTED:
        return WEIR_E_NOT_SUPPORTED;
    default:
        log_driver_result(device, WEIR_LOG_ERROR, "the driver answered ", result);
        return WEIR_E_DRIVER;
    }
}

uint64_t weir__device_elapsed_ns(const struct weir_device *device, uint64_t ticks) {
    return device->driver->ticks() - ticks;
}

uint64_t weir__device_free(struct weir_device *device) {
    size_t free_bytes = 0, total = 0;
    CUresult result = WEIR_IN_SCOPE(device->driver, device->context,
                                    device->driver->cuMemGetInfo(&free_bytes, &total));

    return result == CUDA_SUCCESS ? free_bytes : UINT64_MAX;
}

size_t weir__device_room(struct weir_device *device, uint64_t most, uint64_t back) {
    uint64_t free_bytes = weir__device_free(device);
    size_t pages = free_bytes == UINT64_MAX
                       ? 0
                       : weir__size_round_down((size_t)(free_bytes + back), DRIVER_PAGE);

    return most < pages ? (size_t)most : pages;
}

/* For the legacy stream, cuStreamIsCapturing fails with error 906 while a blocking stream is being captured. */
weir_status weir__device_capture(struct weir_device *device, weir_stream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = WEIR_ON_STREAM(device, device->driver->cuStreamIsCapturing(stream, &status));

    if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        return weir__without_driver(WEIR_E_CAPTURE);
    return weir__device_status(device, result);
}

uint64_t weir__device_capture_id(struct weir_device *device, weir_stream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    uint64_t id = 0;

    if (!(device->driver->capabilities & WEIR_CAP_GRAPH) ||
        WEIR_ON_STREAM(device, device->driver->cuStreamGetCaptureInfo(stream, &status, &id)) !=
            CUDA_SUCCESS ||
        status == CU_STREAM_CAPTURE_STATUS_NONE)
        return 0;
    return id;
}

/* Checks first for a capture, because a query of the id would break it (H200, driver 580). */
static CUresult query_stream_id(const struct weir_driver *driver, weir_stream stream,
                                unsigned long long *id) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = driver->cuStreamIsCapturing(stream, &capture);

    if (result == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return result == CUDA_SUCCESS ? driver->cuStreamGetId(stream, id) : result;
}

CUresult weir__device_stream_id(struct weir_device *device, weir_stream stream, uint64_t *id) {
    const struct weir_driver *driver = device->driver;
    unsigned long long value = 0;
    CUresult result;

    *id = 0;
    if (!(driver->capabilities & WEIR_CAP_STREAM_ID))
        return CUDA_SUCCESS;
    result = WEIR_ON_STREAM(device, query_stream_id(driver, stream, &value));
    if (result == CUDA_SUCCESS)
        *id = value;
    return result;
}

void weir__device_store_default_id(const struct weir_device *device, weir_stream stream,
                                   unsigned long long id) {
    struct weir_default_ids *known =
        &weir__default_ids[(unsigned)device->ordinal % WEIR_DEFAULT_IDS];
    uint64_t age = atomic_load_explicit(&weir__device_age, memory_order_relaxed);
    CUcontext current = NULL;

    if (device->driver->cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != device->context)
        return;
    if (known->context != current || known->age != age)
        *known = (struct weir_default_ids){.context = current, .age = age};
    known->id[(uintptr_t)stream == WEIR_STREAM_PER_THREAD_VALUE] = id;
    if ((uintptr_t)stream == WEIR_STREAM_PER_THREAD_VALUE && !weir__device_has_per_thread_id) {
        weir__device_has_per_thread_id = 1;
        atomic_fetch_add_explicit(&weir__device_per_thread_ids, 1, memory_order_relaxed);
    }
}

CUresult weir__device_record(struct weir_device *device, CUevent event, weir_stream stream,
                             uint64_t id) {
    uint64_t now = 0;
    CUresult result = id ? weir__device_stream_id(device, stream, &now) : CUDA_SUCCESS;

    if (result != CUDA_SUCCESS)
        return result;
    if (now != id)
        return CUDA_ERROR_INVALID_HANDLE;
    return WEIR_ON_STREAM(device, device->driver->cuEventRecord(event, stream));
}

CUresult weir__device_wait_event(struct weir_device *device, weir_stream stream, CUevent event) {
    return WEIR_ON_STREAM(device, device->driver->cuStreamWaitEvent(stream, event, 0));
}

CUresult weir__device_order_after(struct weir_device *device, weir_stream waits, weir_stream stream,
                                  uint64_t id) {
    const struct weir_driver *driver = device->driver;
    CUevent event = NULL;
    CUresult result = WEIR_IN_SCOPE(driver, device->context,
                                    driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));

    if (result != CUDA_SUCCESS)
        return result;
    result = weir__device_record(device, event, stream, id);
    if (result == CUDA_SUCCESS)
        result = weir__device_wait_event(device, waits, event);
    /* Destroying the event does not end the stream's wait. */
    driver->cuEventDestroy(event);
    return result;
}

weir_status weir__device_check_stream(struct weir_device *device, weir_stream stream) {
    const struct weir_driver *driver = device->driver;
    CUcontext context = NULL;
    CUdevice current = device->ordinal;

    if (driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == device->context)
        return WEIR_OK;
    (void)WEIR_IN_SCOPE(driver, context, driver->cuCtxGetDevice(&current));
    return current == device->ordinal ? WEIR_OK : weir__without_driver(WEIR_E_STREAM);
}

__attribute__((cold)) void weir__device_log_alloc(const struct weir_device *device, size_t bytes,
                                                  weir_status status) {
    if (status == WEIR_E_STREAM && !device->drop_in)
        weir__log(device->log, WEIR_LOG_ERROR, "request for %zu byte%s: %s", bytes,
                  weir__plural(bytes), weir_status_message(status));
}

__attribute__((cold)) void weir__device_log_free(const struct weir_device *device,
                                                 CUdeviceptr block, weir_status status) {
    if (device->drop_in) /* the driver reports the failure to the program */
        return;
    weir__log(device->log, WEIR_LOG_ERROR, "free of 0x%llx: %s", (unsigned long long)block,
              weir_status_message(status));
}
