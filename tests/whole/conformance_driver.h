/* SPDX-License-Identifier: MIT */
/* conformance_driver.h: helpers of the suites that ask a driver's pools, on the device model or a GPU. */
#ifndef WEIR_TEST_CONFORMANCE_DRIVER_H
#define WEIR_TEST_CONFORMANCE_DRIVER_H

#include "conformance.h"

#define UNIT (32 * MIB)
#define MS UINT64_C(1000000)
#define LONG_WORK (8 * MS)

static CUdevice device;
static CUdeviceptr scratch; /* the target of long work on a GPU */
static CUmemoryPool pool;
static CUstream s, t; /* non-blocking */
static CUevent event;
static struct hog hog;

static inline void make_driver_pool(size_t most) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .maxSize = most};
    uint64_t all = UINT64_MAX;

    CU(driver->cuMemPoolCreate(&pool, &props));
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

static inline void open_driver_device(void) {
    open_tested_driver((struct weir_model_setup){.capacity = 4 * GIB});
    CU(driver->cuDeviceGet(&device, 0));
    (void)enter_device(device);
    if (on_cuda)
        CU(driver->cuMemAlloc(&scratch, 256 * MIB));
    s = make_stream();
    t = make_stream();
    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    make_driver_pool(0);
}

static inline void close_driver_device(void) {
    hog_ends(&hog);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemPoolDestroy(pool));
    CU(driver->cuEventDestroy(event));
    CU(driver->cuStreamDestroy(s));
    CU(driver->cuStreamDestroy(t));
    if (on_cuda)
        CU(driver->cuMemFree(scratch));
    leave_device(device);
}

/* Makes the later stream wait for all present work of the earlier one. */
static inline void order_with_event(CUstream later, CUstream earlier) {
    CU(driver->cuEventRecord(event, earlier));
    CU(driver->cuStreamWaitEvent(later, event, 0));
}

/* Submits work to the stream that lasts longer than many calls. */
static inline void submit_long_work(CUstream stream) {
    if (!on_cuda) {
        CU(weir__model_kernel(stream, LONG_WORK));
        return;
    }
    for (int i = 0; i < 128; i++) /* 65 us each on an H200 */
        CU(driver->cuMemsetD8Async(scratch, 0, 256 * MIB, stream));
}

static inline uint64_t driver_ticks(void) {
    return driver->ticks();
}

static inline CUdeviceptr alloc_pool_block(size_t bytes, CUstream stream) {
    CUdeviceptr block = 1;

    CU(driver->cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
    return block;
}

static inline void free_pool_block(CUdeviceptr block, CUstream stream) {
    CU(driver->cuMemFreeAsync(block, stream));
}

static inline uint64_t driver_pool_figure(CUmemPool_attribute attribute) {
    uint64_t number = 0;

    CU(driver->cuMemPoolGetAttribute(pool, attribute, &number));
    return number;
}

static inline uint64_t reserved_by_driver_pool(void) {
    return driver_pool_figure(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static inline int has_figures(void) {
    return (driver->capabilities & WEIR_CAP_POOL_FIGURES) != 0;
}

/* The host may observe by these calls that work has completed. */
static inline CUresult query_event(void) {
    return driver->cuEventQuery(event);
}
static inline CUresult query_stream(void) {
    return driver->cuStreamQuery(s);
}
static inline CUresult wait_for_context(void) {
    return driver->cuCtxSynchronize();
}
static inline CUresult free_directly(void) {
    CUdeviceptr block;
    CUresult result = driver->cuMemAlloc(&block, MIB);

    return result == CUDA_SUCCESS ? driver->cuMemFree(block) : result;
}
static inline CUresult wait_for_other(void) {
    return driver->cuStreamSynchronize(t);
}

#endif
