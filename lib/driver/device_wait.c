/* SPDX-License-Identifier: MIT */
/* device_wait.c: waits for all work of a device while other streams may be captured.
 *
 * cuCtxSynchronize fails and breaks the capture while any stream of the context is being captured (H200, driver 580).
 * weir cannot query captures of other threads, so it frees a small block instead: cuMemFree and cuMemFreeHost break no
 * capture in relaxed mode.  The documentation says only that both may wait for the device.  So weir checks each of them
 * once on each device: before the call, weir submits a millisecond of work, and afterwards queries whether the work is
 * completed.  If not, weir calls cuCtxSynchronize from then on.  If the check is impossible now (no memory for a
 * stream, or the thread was preempted), weir trusts the call, and the next wait repeats the check.
 */
#include "driver/device.h"

#include <time.h>

#include "base/bounds.h"
#include "base/clock.h"
#include "base/log.h"

#define BLOCK_BYTES ((size_t)2 << 20)
#define HOST_BYTES ((size_t)64 << 10)
/* The duration of the work that shows whether a free waits.  A free that does not wait takes at most 280 us (H200). */
#define CHECK_NS 1000000L

/* cuMemFree or cuMemFreeHost has waited for the work if it returns within this time after the end of the work.  A later
 * return proves nothing, since the thread may have been preempted. */
#define SOON_NS 300000

enum wait_call { BY_BLOCK, BY_HOST_BLOCK, WAIT_CALLS };
enum { UNKNOWN, WAITS, DOES_NOT };

/* Whether cuMemFree and cuMemFreeHost wait for the device: UNKNOWN, WAITS or DOES_NOT for each device. */
static _Atomic unsigned char call_waits[WEIR_MOST_PEERS][WAIT_CALLS];
/* One thread at a time checks whether a free waits for work.  `ended_ns` is when the work of the last check ended. */
static atomic_int is_checking;
static _Atomic uint64_t ended_ns;

static _Atomic unsigned char *call_waits_of(const struct weir_device *device, enum wait_call call) {
    return &call_waits[(unsigned)device->ordinal % WEIR_MOST_PEERS][call];
}

static void sleep_in_check(void *nothing) {
    (void)nothing;
    nanosleep(&(struct timespec){0, CHECK_NS}, NULL);
    atomic_store_explicit(&ended_ns, weir__clock_ns(), memory_order_relaxed);
}

/* Submits work to a new stream, to check whether `call` waits for it.  Returns NULL if unneeded or impossible. */
static CUstream begin_wait_check(struct weir_device *device, enum wait_call call) {
    const struct weir_driver *driver = device->driver;
    CUstream stream = NULL;

    if (atomic_load_explicit(call_waits_of(device, call), memory_order_relaxed) != UNKNOWN ||
        atomic_exchange_explicit(&is_checking, 1, memory_order_acquire))
        return NULL;
    if (driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
        if (driver->cuLaunchHostFunc(stream, sleep_in_check, NULL) == CUDA_SUCCESS &&
            driver->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
            return stream;
        (void)driver->cuStreamDestroy(stream);
    }
    atomic_store_explicit(&is_checking, 0, memory_order_release);
    return NULL;
}

/* Ends the check whether `call` waits for work.  If `call` does not wait, weir waits by cuCtxSynchronize. */
static CUresult end_wait_check(struct weir_device *device, enum wait_call call,
                               CUstream work_stream, CUresult result) {
    const struct weir_driver *driver = device->driver;
    uint64_t now = weir__clock_ns();
    CUresult is;

    if (work_stream) {
        is = result == CUDA_SUCCESS ? driver->cuStreamQuery(work_stream) : CUDA_ERROR_UNKNOWN;
        if (is == CUDA_SUCCESS &&
            now - atomic_load_explicit(&ended_ns, memory_order_relaxed) < SOON_NS) {
            atomic_store_explicit(call_waits_of(device, call), WAITS, memory_order_relaxed);
        } else if (is == CUDA_ERROR_NOT_READY) {
            atomic_store_explicit(call_waits_of(device, call), DOES_NOT, memory_order_relaxed);
            weir__log(atomic_load_explicit(&device->log, memory_order_relaxed), WEIR_LOG_WARNING,
                      "this driver's %s does not wait for the device: weir calls "
                      "cuCtxSynchronize instead, which breaks stream captures that are under "
                      "way; capture no stream while memory is short",
                      call == BY_BLOCK ? "cuMemFree" : "cuMemFreeHost");
        }
        (void)driver->cuStreamDestroy(work_stream);
        atomic_store_explicit(&is_checking, 0, memory_order_release);
    }
    if (result == CUDA_SUCCESS &&
        atomic_load_explicit(call_waits_of(device, call), memory_order_relaxed) == DOES_NOT)
        result = driver->cuCtxSynchronize();
    return result;
}

/* Waits for the device by cuMemFree of a small block.  If cuMemFree fails, keeps the block for the next wait. */
static CUresult wait_by_block(struct weir_device *device) {
    CUdeviceptr block = atomic_exchange_explicit(&device->wait_block, 0, memory_order_relaxed);
    CUresult result = CUDA_SUCCESS;
    CUstream work_stream;

    if (block == 0)
        result = device->driver->cuMemAlloc(&block, BLOCK_BYTES);
    if (result != CUDA_SUCCESS)
        return result;
    work_stream = begin_wait_check(device, BY_BLOCK);
    result = device->driver->cuMemFree(block);
    if (result != CUDA_SUCCESS)
        atomic_store_explicit(&device->wait_block, block, memory_order_relaxed);
    return end_wait_check(device, BY_BLOCK, work_stream, result);
}

void weir__device_free_wait_block(struct weir_device *device) {
    CUdeviceptr block = atomic_exchange_explicit(&device->wait_block, 0, memory_order_relaxed);

    if (block != 0)
        (void)WEIR_IN_SCOPE(device->driver, device->context, device->driver->cuMemFree(block));
}

/* Waits for the device by cuMemFreeHost of a small block.  Retries a failed cuMemFreeHost once, to leak no block. */
static CUresult wait_by_host_block(struct weir_device *device) {
    const struct weir_driver *driver = device->driver;
    void *block = NULL;
    CUresult result = driver->cuMemAllocHost(&block, HOST_BYTES);
    CUstream work_stream;

    if (result != CUDA_SUCCESS)
        return result;
    work_stream = begin_wait_check(device, BY_HOST_BLOCK);
    result = driver->cuMemFreeHost(block);
    if (result != CUDA_SUCCESS)
        (void)driver->cuMemFreeHost(block);
    return end_wait_check(device, BY_HOST_BLOCK, work_stream, result);
}

/* Prefers a block of device memory, because cuMemFree is 0.25 ms faster than cuMemFreeHost. */
CUresult weir__device_wait(struct weir_device *device) {
    uint64_t number = atomic_fetch_add(&device->waits, 1) + 1;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_enter(device->driver, device->context, &scope);

    if (result != CUDA_SUCCESS)
        return result;
    result = wait_by_block(device);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        result = wait_by_host_block(device);
    if (result == CUDA_SUCCESS)
        weir__raise_to(&device->waited, number);
    weir__driver_leave(device->driver, &scope);
    return result;
}
