/* SPDX-License-Identifier: MIT */
/* preload_contexts.c: replaces the driver's functions that create and end contexts, or begin and end captures. */
#include "adapters/preload/preload.h"

#include <pthread.h>

#include "base/map.h"
#include "ipc/group_process.h"

/* ---- contexts ---- */

static CUresult record_context_creation(CUresult result) {
    if (result == CUDA_SUCCESS && !weir__is_serving)
        atomic_store_explicit(&weir__contexts_created, 1, memory_order_relaxed);
    return result;
}

/* Makes other processes free memory for a context.  Returns 1 if the device may have enough memory now, else 0. */
static int may_have_context(CUresult result, CUdevice device, struct weir_admission *admission) {
    int any = 0;

    if (result == CUDA_ERROR_OUT_OF_MEMORY && begin_serving()) {
        any = weir__drop_in_ask_for_context(device, admission);
        end_serving();
    }
    return any;
}

/* Adds a new context's estimated memory to its group of processes.  Returns 0 if the group's limit is exceeded. */
static int begin_context(CUdevice device, int is_primary, struct weir_group **group) {
    struct weir_admission admission = {0};
    int refused = 0, may = 1;

    *group = NULL;
    if (!begin_serving())
        return 1;
    *group = weir__drop_in_group(device, &refused);
    may = !refused;
    while (*group && !(may = weir__group_context_begins(*group, is_primary)))
        if (!weir__drop_in_ask_for_context(device, &admission))
            break;
    if (!may && *group)
        weir__drop_in_log_group(*group, device, "a context (an estimate)",
                                WEIR_GROUP_CONTEXT_BYTES);
    end_serving();
    return may;
}

/* Maps each context that the program has created to its group of processes. */
static struct weir_map context_groups;
static pthread_mutex_t counted_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(CUcontext) primary[WEIR_MOST_DEVICES]; /* the program's primary contexts */

static int record_context_group(struct weir_group *group, CUcontext context) {
    int is_kept;

    pthread_mutex_lock(&counted_lock);
    is_kept = weir__map_put(&context_groups, (uintptr_t)context, (uintptr_t)group);
    pthread_mutex_unlock(&counted_lock);
    return is_kept;
}

static struct weir_group *remove_context_group(CUcontext context) {
    uintptr_t group = 0;

    pthread_mutex_lock(&counted_lock);
    (void)weir__map_remove(&context_groups, (uintptr_t)context, &group);
    pthread_mutex_unlock(&counted_lock);
    return (struct weir_group *)group;
}

static void end_primary(struct weir_group *group, CUresult result) {
    if (group && result != CUDA_SUCCESS)
        weir__group_context_ends(group, 1);
}

static void end_context(struct weir_group *group, const CUcontext *context, CUresult result) {
    if (group && (result != CUDA_SUCCESS || !record_context_group(group, *context)))
        weir__group_context_ends(group, 0);
}

CUresult weir__serve_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    struct weir_admission admission = {0};
    struct weir_group *group;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (!begin_context(device, 1, &group))
        return result;
    do
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    while (may_have_context(result, device, &admission));
    end_primary(group, result);
    if (result == CUDA_SUCCESS && !weir__is_serving && device >= 0 && device < WEIR_MOST_DEVICES)
        atomic_store(&primary[device], *context);
    return result;
}

/* Creates a context by `call`.  Repeats `call` if other processes have freed memory. */
#define CREATE_CONTEXT(context, device, call)                                                      \
    __extension__({                                                                                \
        struct weir_admission its_admission = {0};                                                 \
        struct weir_group *its_group;                                                              \
        CUresult its_result = CUDA_ERROR_OUT_OF_MEMORY;                                            \
        if (begin_context(device, 0, &its_group)) {                                                \
            do                                                                                     \
                its_result = call;                                                                 \
            while (may_have_context(its_result, device, &its_admission));                          \
            end_context(its_group, context, its_result);                                           \
        }                                                                                          \
        record_context_creation(its_result);                                                       \
    })

CUresult weir__serve_cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    return CREATE_CONTEXT(context, device, REAL(cuCtxCreate_v2)(context, flags, device));
}

CUresult weir__serve_cuCtxCreate_v3(CUcontext *context, void *affinities, int count,
                                    unsigned int flags, CUdevice device) {
    return CREATE_CONTEXT(context, device,
                          REAL(cuCtxCreate_v3)(context, affinities, count, flags, device));
}

CUresult weir__serve_cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags,
                                    CUdevice device) {
    return CREATE_CONTEXT(context, device,
                          REAL(cuCtxCreate_v4)(context, parameters, flags, device));
}

/* Removes the context's record before the driver's call, after which a new context may have the same handle. */
CUresult weir__serve_cuCtxDestroy_v2(CUcontext context) {
    struct weir_group *group;
    CUresult result;

    if (weir__is_serving || weir__driver_forked())
        return REAL(cuCtxDestroy_v2)(context);
    group = remove_context_group(context);
    result = REAL(cuCtxDestroy_v2)(context);
    if (result == CUDA_SUCCESS)
        weir__plain_context_ended(context);
    if (group && (result == CUDA_SUCCESS || !record_context_group(group, context)))
        weir__group_context_ends(group, 0);
    return result;
}

CUresult weir__serve_cuGreenCtxCreate(void **context, void *resources, CUdevice device,
                                      unsigned int flags) {
    return record_context_creation(REAL(cuGreenCtxCreate)(context, resources, device, flags));
}

typedef CUresult (*device_call)(CUdevice device);

/* Resets a device, which also destroys weir's memory and streams in the device's context. */
static CUresult reset_device(device_call real, CUdevice device) {
    CUresult result;
    int is_held;

    if (!begin_serving())
        return real(device);
    if (weir__served_known() > 0)
        weir__served_mark_lost(device);
    is_held = weir__streams_pause();
    result = real(device);
    weir__streams_forget_device(device);
    weir__streams_resume(is_held);
    if (result == CUDA_SUCCESS) {
        weir__plain_lost(device);
        if (weir__drop_in_group_of(device))
            weir__group_context_lost(weir__drop_in_group_of(device));
    }
    end_serving();
    return result;
}

/* Releases the program's reference to a primary context.  Each allocator of the device holds another reference. */
static CUresult release_primary(device_call real, CUdevice device) {
    unsigned int flags;
    int is_active = 1, is_held;
    CUresult result;

    if (!begin_serving())
        return real(device);
    is_held = weir__streams_pause();
    result = real(device);
    (void)REAL(cuDevicePrimaryCtxGetState)(device, &flags, &is_active);
    if (!is_active) {
        weir__streams_forget_device(device);
        if (device >= 0 && device < WEIR_MOST_DEVICES)
            weir__plain_context_ended(atomic_exchange(&primary[device], NULL));
    }
    if (result == CUDA_SUCCESS && weir__drop_in_group_of(device))
        weir__group_context_ends(weir__drop_in_group_of(device), 1);
    weir__streams_resume(is_held);
    end_serving();
    return result;
}

CUresult weir__serve_cuDevicePrimaryCtxRelease(CUdevice device) {
    return release_primary(REAL(cuDevicePrimaryCtxRelease), device);
}

CUresult weir__serve_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return release_primary(REAL(cuDevicePrimaryCtxRelease_v2), device);
}

CUresult weir__serve_cuDevicePrimaryCtxReset(CUdevice device) {
    return reset_device(REAL(cuDevicePrimaryCtxReset), device);
}

CUresult weir__serve_cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return reset_device(REAL(cuDevicePrimaryCtxReset_v2), device);
}

/* ---- captures ---- */

/* Called before a capture begins, because a query of a stream would break the capture.  First increases weir__captures,
 * so that no thread begins a query.  Then waits until no thread queries streams. */
static void capture_begins(void) {
    if (weir__is_serving)
        return;
    atomic_fetch_add_explicit(&weir__captures, 1, memory_order_acq_rel);
    weir__streams_wait_for_queries();
}

static CUresult capture_began(CUstream stream, CUresult result) {
    if (weir__is_serving)
        return result;
    if (result == CUDA_SUCCESS)
        weir__streams_capture(stream, 1);
    else
        atomic_fetch_sub_explicit(&weir__captures, 1, memory_order_acq_rel);
    return result;
}

/* Returns 1 if the stream is being captured, even if an error has broken the capture, else 0. */
static int has_capture(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return !weir__is_serving && is_any_captured() &&
           REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Decreases weir__captures if the driver's call has ended the stream's capture, even if the call failed. */
static CUresult capture_ended(int had, CUstream stream, CUresult result) {
    if (had && !has_capture(stream)) {
        weir__streams_capture(stream, 0);
        atomic_fetch_sub_explicit(&weir__captures, 1, memory_order_acq_rel);
    }
    return result;
}

/* Defines weir's functions for a driver function that begins captures, with and without the ending _ptsz. */
#define BEGINS_CAPTURE(symbol, params, args)                                                       \
    CUresult weir__serve_##symbol params {                                                         \
        capture_begins();                                                                          \
        return capture_began(stream, REAL(symbol) args);                                           \
    }                                                                                              \
    CUresult weir__serve_##symbol##_ptsz params {                                                  \
        capture_begins();                                                                          \
        return capture_began(stream, REAL_PTSZ(symbol) args);                                      \
    }
BEGINS_CAPTURE(cuStreamBeginCapture, (CUstream stream), (stream))
BEGINS_CAPTURE(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGINS_CAPTURE(cuStreamBeginCaptureToGraph,
               (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges,
                size_t count, CUstreamCaptureMode mode),
               (stream, graph, nodes, edges, count, mode))
/* weir does not notice when these captures end, so weir__captures never becomes 0 again. */
BEGINS_CAPTURE(cuStreamBeginCaptureToCig, (CUstream stream, void *parameters), (stream, parameters))
BEGINS_CAPTURE(cuStreamBeginRecaptureToGraph,
               (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *callback,
                void *data),
               (stream, mode, graph, callback, data))

CUresult weir__serve_cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    int had = has_capture(stream);

    return capture_ended(had, stream, REAL(cuStreamEndCapture)(stream, graph));
}

CUresult weir__serve_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    int had = has_capture(to_per_thread_stream(stream));

    return capture_ended(had, to_per_thread_stream(stream),
                         REAL_PTSZ(cuStreamEndCapture)(stream, graph));
}
