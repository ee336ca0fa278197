/* SPDX-License-Identifier: MIT */
/* preload_check.c: exports the device model, a GPU in software, for the self-check of a PyTorch shim
 * (adapters/torch/check_model.h).  The code in this file must not depend on which errors the self-check looks for. */
#include "adapters/torch/check_model.h"

#include <stdlib.h>

#include "api/drop_in.h"
#include "driver/driver.h"
#include "driver/model/model.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT weir_check_model_function weir_check_model_open;

static const struct weir_driver *model;

static int create_stream(void **stream) {
    return (int)model->cuStreamCreate((CUstream *)stream, 0);
}

static int launch_use(void *stream, const void *block, size_t bytes, uint64_t owner) {
    return (int)weir__model_use((CUstream)stream, (CUdeviceptr)(uintptr_t)block, bytes, owner,
                                1000000);
}

static int wait_for_all(void) {
    return (int)model->cuCtxSynchronize();
}

static int query_capture(void *stream, int *status) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = model->cuStreamIsCapturing((CUstream)stream, &capture);

    *status = (int)capture;
    return (int)result;
}

static int begin_graph(void *stream) {
    return (int)model->cuStreamBeginCapture((CUstream)stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static int run_check_graph(void *stream, int launches) {
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUresult result = model->cuStreamEndCapture((CUstream)stream, &graph);

    if (result == CUDA_SUCCESS)
        result = model->cuGraphInstantiateWithFlags(&exec, graph, 0);
    for (int i = 0; i < launches && result == CUDA_SUCCESS; i++)
        result = model->cuGraphLaunch(exec, (CUstream)stream);
    return (int)result;
}

static int read_memory(size_t *free_bytes, size_t *total) {
    return (int)model->cuMemGetInfo(free_bytes, total);
}

const struct weir_check_model *weir_check_model_open(void) {
    static const struct weir_check_model check = {create_stream, launch_use,       wait_for_all,
                                                  query_capture, begin_graph,      run_check_graph,
                                                  read_memory,   weir__model_fault};
    struct weir_driver_failure failure;
    CUcontext context = NULL;

    /* Gives tensors an allocator of their own, since the self-check never calls cuMemAllocAsync. */
    weir__drop_in_serves = NULL;
    weir__drop_in_refused = NULL;
    model = setenv("WEIR_DEVICE", "model", 1) == 0 ? weir__driver_open("model", &failure) : NULL;
    if (!model || model->cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        model->cuCtxPushCurrent(context) != CUDA_SUCCESS)
        return NULL;
    return &check;
}
