/* SPDX-License-Identifier: MIT */
/* conformance_allocator.h: helpers of the parts of the conformance suite that call weir: a device, its streams, and
 * allocators of each kind. */
#ifndef WEIR_TEST_CONFORMANCE_ALLOCATOR_H
#define WEIR_TEST_CONFORMANCE_ALLOCATOR_H

#include "conformance.h"

#define MODEL_BYTES (2 * GIB)
#define ARENA_BYTES GIB

static CUdevice device;
static CUcontext primary;
static CUstream s;                 /* the stream of each test */
static CUdeviceptr scratch;        /* the target of long work on a GPU */
static int cache = WEIR_SWITCH_ON; /* the setting of all allocators */

static inline void open_tested_device(void) {
    open_tested_driver((struct weir_model_setup){.capacity = MODEL_BYTES});
    CU(driver->cuDeviceGet(&device, 0));
    primary = enter_device(device);
    s = make_stream();
    if (on_cuda)
        CU(driver->cuMemAlloc(&scratch, 256 * MIB));
}

static inline void open_device_with_caches(void) {
    cache = WEIR_SWITCH_ON;
    open_tested_device();
}

static inline void open_device_without_caches(void) {
    cache = WEIR_SWITCH_OFF;
    open_tested_device();
}

static inline void close_tested_device(void) {
    drop_stream(s);
    if (on_cuda)
        CU(driver->cuMemFree(scratch));
    leave_device(device);
}

/* Gives the stream about 0.3 ms of work. */
static inline void submit_short_work(CUstream stream) {
    if (!on_cuda) {
        CU(weir__model_kernel(stream, 300000));
        return;
    }
    for (int i = 0; i < 4; i++)
        CU(driver->cuMemsetD8Async(scratch, 0, 256 * MIB, stream));
}

static inline void fill_with_pattern(void *block, size_t bytes, unsigned char pattern,
                                     CUstream stream) {
    CU(driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)block, pattern, bytes, stream));
}

/* Waits for the stream, and checks that the whole block has the pattern. */
static inline void expect_pattern(void *block, size_t bytes, unsigned char pattern,
                                  CUstream stream) {
    size_t most = bytes < MIB ? bytes : MIB, part;
    unsigned char *copy = malloc(most);

    MUST(copy != NULL);
    for (size_t from = 0; from < bytes; from += part) {
        size_t i;

        part = bytes - from < most ? bytes - from : most;
        CU(driver->cuMemcpyDtoHAsync(copy, (CUdeviceptr)(uintptr_t)block + from, part, stream));
        CU(driver->cuStreamSynchronize(stream));
        i = first_other(copy, pattern, part);
        if (i < part)
            ck_abort_msg("block %p: byte %zu of %zu is %02x, not %02x", block, from + i, bytes,
                         copy[i], pattern);
    }
    free(copy);
}

/* Checks that the device has its memory back.  A real driver keeps a little for itself. */
static inline void expect_free_again(size_t before) {
    size_t now = device_free(), slack = on_cuda ? 64 * MIB : 0;

    ck_assert_msg(now + slack >= before, "%zu bytes of the device are gone", before - now);
}

static inline weir_options tested_options(int kind, uint64_t arena_bytes) {
    weir_options options = options_of(kind, device_name, arena_bytes);

    options.cache = cache;
    return options;
}

static inline weir_allocator *make_tested(int kind) {
    weir_options options = tested_options(kind, ARENA_BYTES);
    weir_allocator *a = NULL;

    OK(weir_allocator_create(&options, &a));
    ck_assert_ptr_nonnull(a);
    return a;
}

static inline weir_allocator *make_tested_with_limit(int kind, size_t limit) {
    weir_options options = tested_options(kind, limit);
    weir_allocator *a = NULL;

    options.limit = bytes_amount(limit);
    options.recovery_timeout_ms = 20;
    OK(weir_allocator_create(&options, &a));
    return a;
}

static inline void *alloc_tested(weir_allocator *a, size_t bytes, CUstream stream) {
    void *block = NULL;

    OK(weir_alloc(a, bytes, stream, &block));
    MUST(block != NULL);
    return block;
}

/* The modes of cuStreamBeginCapture: global, thread-local, relaxed. */
enum { CAPTURE_MODES = 3 };

static inline int has_graphs(void) {
    return (driver->capabilities & WEIR_CAP_GRAPH) != 0;
}

static inline void begin_capture_in_mode(CUstream stream, int mode) {
    CU(driver->cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}

static inline CUgraph end_tested_capture(CUstream stream) {
    CUgraph graph = NULL;

    CU(driver->cuStreamEndCapture(stream, &graph));
    ck_assert_ptr_nonnull(graph);
    return graph;
}

static inline void expect_capturing_at(int line, CUstream stream) {
    CUstreamCaptureStatus status;

    CU(driver->cuStreamIsCapturing(stream, &status));
    ck_assert_msg(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "line %d: status %u", line, status);
}
#define expect_capturing(stream) expect_capturing_at(__LINE__, (stream))

/* Returns 1 if the engine grows by 32 MiB or more at a time, else 0. */
static inline int grows_by_units(int kind) {
    return kind == KIND_POOL;
}

#endif
