/* SPDX-License-Identifier: MIT */
/* test_model_graph.h: what the suites of stream capture and graphs on the device model share. */
#ifndef WEIR_TEST_MODEL_GRAPH_H
#define WEIR_TEST_MODEL_GRAPH_H

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/driver.h"
#include "driver/model/model.h"
#include "tests/fixtures/suite.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define MS ((uint64_t)1000000)
#define PAGE (2 * MIB)

#define EXPECT(wanted, call)                                                                       \
    do {                                                                                           \
        CUresult result_is = (call);                                                               \
        ck_assert_msg(result_is == (wanted), "%s: %u, not %s", #call, result_is, #wanted);         \
    } while (0)
#define OK(call) EXPECT(CUDA_SUCCESS, call)

static const struct weir_driver *d;
static CUcontext context;
static CUmemoryPool pool;
static CUstream s, t; /* non-blocking */
static CUevent event;

static inline void start_device(uint64_t capacity) {
    struct weir_model_setup setup = {.capacity = capacity};
    CUmemPoolProps props;

    ck_assert_int_eq(weir__model_reset(&setup), 0);
    OK(d->cuDevicePrimaryCtxRetain(&context, 0));
    OK(d->cuCtxPushCurrent(context));
    OK(d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d->cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    memset(&props, 0, sizeof props);
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(d->cuMemPoolCreate(&pool, &props));
}

static inline void set_up(void) {
    struct weir_driver_failure failure;

    unsetenv("WEIR_MODEL_DEVICES");
    unsetenv("WEIR_MODEL_PROFILE");
    d = weir__driver_open("model", &failure);
    ck_assert_msg(d != NULL, "%s", failure.text);
    start_device(4 * GIB);
}

static inline void check_model(void) {
    const char *wrong = weir__model_pool_check();

    ck_assert_msg(!wrong, "%s", wrong);
}

static inline uint64_t now(void) {
    return d->ticks_to_ns(d->ticks());
}

static inline size_t device_free(void) {
    size_t bytes, total;

    OK(d->cuMemGetInfo(&bytes, &total));
    return bytes;
}

static inline uint64_t figure(CUmemPool_attribute attribute) {
    uint64_t number = 0;

    OK(d->cuMemPoolGetAttribute(pool, attribute, &number));
    return number;
}

static inline CUdeviceptr alloc(size_t bytes, CUstream stream) {
    CUdeviceptr block = 1;

    OK(d->cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
    return block;
}

static inline void begin(CUstream stream) {
    OK(d->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static inline CUgraph end(CUstream stream) {
    CUgraph graph = NULL;

    OK(d->cuStreamEndCapture(stream, &graph));
    ck_assert_ptr_nonnull(graph);
    return graph;
}

/* The capture ends with that error and without a graph. */
static inline void end_with(CUresult error, CUstream stream) {
    CUgraph graph = (CUgraph)(void *)&error;

    EXPECT(error, d->cuStreamEndCapture(stream, &graph));
    ck_assert_ptr_null(graph);
}

static inline CUgraphExec instantiate(CUgraph graph, unsigned long long flags) {
    CUgraphExec exec = NULL;

    OK(d->cuGraphInstantiateWithFlags(&exec, graph, flags));
    return exec;
}

/* The graph that a capture ends with, as an executable; the graph itself goes. */
static inline CUgraphExec end_to_exec(CUstream stream, unsigned long long flags) {
    CUgraph graph = end(stream);
    CUgraphExec exec = instantiate(graph, flags);

    OK(d->cuGraphDestroy(graph));
    return exec;
}

static inline CUstreamCaptureStatus status_of(CUstream stream) {
    CUstreamCaptureStatus status = 9;

    OK(d->cuStreamIsCapturing(stream, &status));
    return status;
}

#define EXPECT_STATUS(word, stream)                                                                \
    ck_assert_uint_eq(status_of(stream), CU_STREAM_CAPTURE_STATUS_##word)

static inline void order(CUstream later, CUstream earlier) {
    OK(d->cuEventRecord(event, earlier));
    OK(d->cuStreamWaitEvent(later, event, 0));
}

static inline void set_mode(CUstreamCaptureMode mode) {
    OK(d->cuThreadExchangeStreamCaptureMode(&mode));
}

static inline int holds(CUdeviceptr block, size_t bytes, unsigned char pattern) {
    const unsigned char *byte = (const unsigned char *)(uintptr_t)block;

    for (size_t i = 0; i < bytes; i++)
        if (byte[i] != pattern)
            return 0;
    return 1;
}

static inline void in_thread(void *(*run)(void *), void *argument) {
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, run, argument), 0);
    pthread_join(thread, NULL);
}

#endif
