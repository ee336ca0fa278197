/* SPDX-License-Identifier: MIT */
/* device_wait.c: waiting for all work of a device, beside captures.
 *
 * cuCtxSynchronize is the documented call, but while any stream of the context is being captured it is refused, and
 * breaks the capture (H200, driver 580).  Other threads may capture at any time, and the driver does not say so.
 * cuMemFree and cuMemFreeHost break no capture in relaxed mode.  NVIDIA's documentation says of both only that they
 * may wait for the device.  So the first wait of a process on a device proves that the call does: it queues a
 * millisecond of work on a stream of its own, and asks after the call whether that is done.  If it is not, the wait is
 * made with cuCtxSynchronize, as is each later one.
 */
#include "driver/device.h"

#include <time.h>

#include "base/log.h"

#define BLOCK_BYTES ((size_t)2 << 20)
#define HOST_BYTES ((size_t)64 << 10)
/* Longer than either call takes where it does not wait (H200: 30 and 280 us). */
#define PROOF_NS 1000000L

enum way { BY_BLOCK, BY_HOST_BLOCK, WAYS };

/* Of a device of this process: the call is known to wait. */
static _Atomic unsigned char proved[WEIR_MOST_PEERS][WAYS];

static int is_proved(const struct weir_device *device, enum way way) {
    return device->ordinal < WEIR_MOST_PEERS &&
           atomic_load_explicit(&proved[device->ordinal][way], memory_order_relaxed);
}

static void note_proof(const struct weir_device *device, enum way way) {
    if (device->ordinal < WEIR_MOST_PEERS)
        atomic_store_explicit(&proved[device->ordinal][way], 1, memory_order_relaxed);
}

static void take_time(void *nothing) {
    (void)nothing;
    nanosleep(&(struct timespec){0, PROOF_NS}, NULL);
}

/* A stream with work to wait for; NULL: there is nothing to prove, or no proof to be had now. */
static CUstream begin_proof(struct weir_device *device, enum way way) {
    const struct weir_driver *driver = device->driver;
    CUstream stream = NULL;

    if (is_proved(device, way) ||
        driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return NULL;
    if (driver->cuLaunchHostFunc(stream, take_time, NULL) == CUDA_SUCCESS &&
        driver->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
        return stream;
    (void)driver->cuStreamDestroy(stream);
    return NULL;
}

/* After the call that should have waited, which said `result`. */
static CUresult end_proof(struct weir_device *device, enum way way, CUstream stream,
                          CUresult result) {
    const struct weir_driver *driver = device->driver;

    if (!stream)
        return result;
    if (result == CUDA_SUCCESS && driver->cuStreamQuery(stream) == CUDA_SUCCESS) {
        note_proof(device, way);
    } else if (result == CUDA_SUCCESS) {
        weir__log(atomic_load_explicit(&device->log, memory_order_relaxed), WEIR_LOG_WARNING,
                  "this driver's %s does not wait for the device: weir calls cuCtxSynchronize "
                  "instead, which breaks stream captures that are under way",
                  way == BY_BLOCK ? "cuMemFree" : "cuMemFreeHost");
        result = driver->cuCtxSynchronize();
    }
    (void)driver->cuStreamDestroy(stream);
    return result;
}

/* A block that the driver does not take back is the next wait's. */
static CUresult wait_by_block(struct weir_device *device) {
    CUdeviceptr block = atomic_exchange_explicit(&device->waited_by, 0, memory_order_relaxed);
    CUresult result = CUDA_SUCCESS;
    CUstream proof;

    if (block == 0)
        result = device->driver->cuMemAlloc(&block, BLOCK_BYTES);
    if (result != CUDA_SUCCESS)
        return result;
    proof = begin_proof(device, BY_BLOCK);
    result = device->driver->cuMemFree(block);
    if (result != CUDA_SUCCESS)
        atomic_store_explicit(&device->waited_by, block, memory_order_relaxed);
    return end_proof(device, BY_BLOCK, proof, result);
}

void weir__device_end_waits(struct weir_device *device) {
    CUdeviceptr block = atomic_exchange_explicit(&device->waited_by, 0, memory_order_relaxed);
    struct weir_driver_scope scope;

    if (block == 0 || weir__driver_enter(device->driver, device->context, &scope) != CUDA_SUCCESS)
        return;
    (void)device->driver->cuMemFree(block);
    weir__driver_leave(device->driver, &scope);
}

/* A free that is refused once is tried again: what it leaves would be lost. */
static CUresult wait_by_host_block(struct weir_device *device) {
    const struct weir_driver *driver = device->driver;
    void *block = NULL;
    CUresult result = driver->cuMemAllocHost(&block, HOST_BYTES);
    CUstream proof;

    if (result != CUDA_SUCCESS)
        return result;
    proof = begin_proof(device, BY_HOST_BLOCK);
    result = driver->cuMemFreeHost(block);
    if (result != CUDA_SUCCESS)
        (void)driver->cuMemFreeHost(block);
    return end_proof(device, BY_HOST_BLOCK, proof, result);
}

/* Memory of the host is dearer by a quarter of a millisecond, and there is some on a full device too. */
CUresult weir__device_wait(struct weir_device *device) {
    struct weir_driver_scope scope;
    CUresult result = weir__driver_enter(device->driver, device->context, &scope);

    if (result != CUDA_SUCCESS)
        return result;
    result = wait_by_block(device);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        result = wait_by_host_block(device);
    weir__driver_leave(device->driver, &scope);
    return result;
}
