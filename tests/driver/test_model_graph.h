/* SPDX-License-Identifier: MIT */
/* test_model_graph.h: shared parts of the suites of stream capture and graphs on the device model. */
#ifndef WEIR_TEST_MODEL_GRAPH_H
#define WEIR_TEST_MODEL_GRAPH_H

#include "test_model.h"

#define PAGE (2 * MIB)

static CUevent event;

/* Starts a device whose pool keeps nothing. */
static inline void start_graph_device(uint64_t capacity) {
    reset_to(capacity);
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    set_pool_attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
}

static inline void set_up_graphs(void) {
    set_up_model();
    start_graph_device(4 * GIB);
}

static inline void begin_graph_capture(CUstream stream) {
    OK(d->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static inline CUgraph end_graph_capture(CUstream stream) {
    CUgraph graph = NULL;

    OK(d->cuStreamEndCapture(stream, &graph));
    ck_assert_ptr_nonnull(graph);
    return graph;
}

/* Expects that the capture ends with this error and without a graph. */
static inline void end_with(CUresult error, CUstream stream) {
    CUgraph graph = (CUgraph)(void *)&error;

    EXPECT(error, d->cuStreamEndCapture(stream, &graph));
    ck_assert_ptr_null(graph);
}

static inline CUgraphExec instantiate_graph(CUgraph graph, unsigned long long flags) {
    CUgraphExec exec = NULL;

    OK(d->cuGraphInstantiateWithFlags(&exec, graph, flags));
    return exec;
}

/* Ends a capture.  Returns its graph as an executable, and destroys the graph itself. */
static inline CUgraphExec end_to_exec(CUstream stream, unsigned long long flags) {
    CUgraph graph = end_graph_capture(stream);
    CUgraphExec exec = instantiate_graph(graph, flags);

    OK(d->cuGraphDestroy(graph));
    return exec;
}

static inline CUstreamCaptureStatus capture_status_of(CUstream stream) {
    CUstreamCaptureStatus status = 9;

    OK(d->cuStreamIsCapturing(stream, &status));
    return status;
}

#define EXPECT_STATUS(word, stream)                                                                \
    ck_assert_uint_eq(capture_status_of(stream), CU_STREAM_CAPTURE_STATUS_##word)

static inline void order_by_event(CUstream later, CUstream earlier) {
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
