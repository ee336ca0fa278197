/* SPDX-License-Identifier: MIT */
/* interpose.h: how a call of the CUDA driver comes by here on its way, and goes on.
 *
 * A program reaches the driver in three ways: it is linked against libcuda.so.1, it asks dlsym, or it
 * asks cuGetProcAddress, whose address it has from dlsym.  A library that is loaded before all others
 * exports the driver's names and dlsym, and so stands in each way.  For every name of
 * WEIR_INTERPOSED whoever includes this defines weir__serve_SYMBOL, which may go on to the driver by
 * REAL(SYMBOL).
 *
 * An address is replaced only where the driver has one for the very same request: of the same name, in
 * the same version of its interface, for the same meaning of stream 0.  All else passes through.
 *
 * Must not know: what is served, weir.
 */
#ifndef WEIR_INTERPOSE_H
#define WEIR_INTERPOSE_H

#include <stdatomic.h>

#include "cuda_abi.h"

/* Beyond what weir itself calls. */
typedef struct CUgraphNode_st *CUgraphNode;

/* Symbols with a second form, _ptsz, to which stream 0 is the thread's own. */
/* X(base name, symbol, first version, (parameters), (arguments)) */
/* clang-format off */
#define WEIR_INTERPOSED_STREAMS(X)                                                                 \
    X(cuMemAllocAsync, cuMemAllocAsync, 11020,                                                     \
      (CUdeviceptr *block, size_t bytes, CUstream stream), (block, bytes, stream))                 \
    X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020,                                     \
      (CUdeviceptr *block, size_t bytes, CUmemoryPool pool, CUstream stream),                      \
      (block, bytes, pool, stream))                                                                \
    X(cuMemFreeAsync, cuMemFreeAsync, 11020, (CUdeviceptr block, CUstream stream),                 \
      (block, stream))                                                                             \
    X(cuStreamBeginCapture, cuStreamBeginCapture, 10000, (CUstream stream), (stream))              \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010,                                        \
      (CUstream stream, CUstreamCaptureMode mode), (stream, mode))                                 \
    X(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030,                             \
      (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count,  \
       CUstreamCaptureMode mode),                                                                  \
      (stream, graph, nodes, edges, count, mode))                                                  \
    X(cuStreamEndCapture, cuStreamEndCapture, 10000, (CUstream stream, CUgraph *graph),            \
      (stream, graph))

/* Symbols that have one form alone. */
#define WEIR_INTERPOSED_PLAIN(X)                                                                   \
    X(cuMemAlloc, cuMemAlloc_v2, 3020, (CUdeviceptr *block, size_t bytes), (block, bytes))         \
    X(cuMemAllocPitch, cuMemAllocPitch_v2, 3020,                                                   \
      (CUdeviceptr *block, size_t *pitch, size_t width, size_t height, unsigned int element),      \
      (block, pitch, width, height, element))                                                      \
    X(cuMemAllocManaged, cuMemAllocManaged, 6000,                                                  \
      (CUdeviceptr *block, size_t bytes, unsigned int flags), (block, bytes, flags))               \
    X(cuMemCreate, cuMemCreate, 10020,                                                             \
      (CUmemGenericAllocationHandle *handle, size_t bytes,                                         \
       const CUmemAllocationProp *properties, unsigned long long flags),                           \
      (handle, bytes, properties, flags))                                                          \
    X(cuMemFree, cuMemFree_v2, 3020, (CUdeviceptr block), (block))                                 \
    X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020,                                         \
      (CUdeviceptr *base, size_t *bytes, CUdeviceptr address), (base, bytes, address))             \
    X(cuPointerGetAttribute, cuPointerGetAttribute, 4000,                                          \
      (void *value, CUpointer_attribute attribute, CUdeviceptr address),                           \
      (value, attribute, address))                                                                 \
    X(cuPointerGetAttributes, cuPointerGetAttributes, 7000,                                        \
      (unsigned int count, CUpointer_attribute *attributes, void **values, CUdeviceptr address),   \
      (count, attributes, values, address))                                                        \
    X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, (void *handle, CUdeviceptr address),             \
      (handle, address))                                                                           \
    X(cuMemPoolCreate, cuMemPoolCreate, 11020,                                                     \
      (CUmemoryPool *pool, const CUmemPoolProps *properties), (pool, properties))                  \
    X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, (CUmemoryPool pool), (pool))                      \
    X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, (CUmemoryPool pool, size_t keep), (pool, keep))     \
    X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020,                                         \
      (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value))   \
    X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020,                                         \
      (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value))   \
    X(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020,                                               \
      (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count), (pool, access, count))     \
    X(cuMemPoolExportPointer, cuMemPoolExportPointer, 11020, (void *data, CUdeviceptr address),    \
      (data, address))                                                                             \
    X(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020, (CUdevice device, CUmemoryPool pool),         \
      (device, pool))                                                                              \
    X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020,                                 \
      (CUmemoryPool *pool, CUdevice device), (pool, device))                                       \
    X(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, (CUmemoryPool *pool, CUdevice device),        \
      (pool, device))                                                                              \
    X(cuMemGetMemPool, cuMemGetMemPool, 13000,                                                     \
      (CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type),                     \
      (pool, location, type))                                                                      \
    X(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, 13000,                                       \
      (CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type),                     \
      (pool, location, type))                                                                      \
    X(cuMemSetMemPool, cuMemSetMemPool, 13000,                                                     \
      (CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool),                      \
      (location, type, pool))                                                                      \
    X(cuStreamDestroy, cuStreamDestroy_v2, 4000, (CUstream stream), (stream))                      \
    X(cuCtxCreate, cuCtxCreate_v2, 3020,                                                           \
      (CUcontext *context, unsigned int flags, CUdevice device), (context, flags, device))         \
    X(cuCtxCreate, cuCtxCreate_v3, 11040,                                                          \
      (CUcontext *context, void *affinities, int count, unsigned int flags, CUdevice device),      \
      (context, affinities, count, flags, device))                                                 \
    X(cuCtxCreate, cuCtxCreate_v4, 12050,                                                          \
      (CUcontext *context, void *parameters, unsigned int flags, CUdevice device),                 \
      (context, parameters, flags, device))                                                        \
    X(cuGreenCtxCreate, cuGreenCtxCreate, 12040,                                                   \
      (void **context, void *resources, CUdevice device, unsigned int flags),                      \
      (context, resources, device, flags))                                                         \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, (CUdevice device), (device))         \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, (CUdevice device), (device))

/* Symbols that are asked for here alone. */
#define WEIR_INTERPOSED_USED(X)                                                                    \
    X(cuDeviceGetCount, cuDeviceGetCount, 2000, (int *count), (count))                             \
    X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, (CUcontext *context), (context))                     \
    X(cuCtxGetDevice, cuCtxGetDevice, 2000, (CUdevice *device), (device))                          \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, (CUcontext context), (context))                 \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, (CUcontext *context), (context))                  \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, (size_t *bytes, CUdevice device),               \
      (bytes, device))                                                                             \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000,                                    \
      (CUcontext *context, CUdevice device), (context, device))                                    \
    X(cuStreamCreate, cuStreamCreate, 2000, (CUstream *stream, unsigned int flags),                \
      (stream, flags))                                                                             \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream stream), (stream))                 \
    X(cuStreamWaitEvent, cuStreamWaitEvent, 3020,                                                  \
      (CUstream stream, CUevent event, unsigned int flags), (stream, event, flags))                \
    X(cuStreamGetDevice, cuStreamGetDevice, 12080, (CUstream stream, CUdevice *device),            \
      (stream, device))                                                                            \
    X(cuEventCreate, cuEventCreate, 2000, (CUevent *event, unsigned int flags), (event, flags))    \
    X(cuEventRecord, cuEventRecord, 2000, (CUevent event, CUstream stream), (event, stream))       \
    X(cuEventDestroy, cuEventDestroy_v2, 4000, (CUevent event), (event))                           \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010,                 \
      (CUstreamCaptureMode *mode), (mode))                                                         \
    X(cuStreamGetCtx, cuStreamGetCtx, 9020, (CUstream stream, CUcontext *context),                 \
      (stream, context))                                                                           \
    X(cuStreamIsCapturing, cuStreamIsCapturing, 10000,                                             \
      (CUstream stream, CUstreamCaptureStatus *status), (stream, status))
/* clang-format on */

enum weir_interposed {
#define WEIR_ROW(base, symbol, version, params, args) WEIR_ROW_##symbol,
#define WEIR_ROWS(base, symbol, version, params, args) WEIR_ROW_##symbol, WEIR_ROW_##symbol##_ptsz,
    WEIR_INTERPOSED_STREAMS(WEIR_ROWS) WEIR_INTERPOSED_PLAIN(WEIR_ROW) WEIR_ROW_cuGetProcAddress,
    WEIR_ROW_cuGetProcAddress_v2,
    WEIR_INTERPOSED_USED(WEIR_ROW) WEIR_INTERPOSED_COUNT
#undef WEIR_ROW
#undef WEIR_ROWS
};

/* What serves, and the types. */
#define WEIR_SERVE(base, symbol, version, params, args)                                            \
    typedef CUresult weir__type_##symbol params;                                                   \
    CUresult weir__serve_##symbol params;
#define WEIR_SERVE_BOTH(base, symbol, version, params, args)                                       \
    WEIR_SERVE(base, symbol, version, params, args)                                                \
    WEIR_SERVE(base, symbol##_ptsz, version, params, args)
#define WEIR_USE(base, symbol, version, params, args) typedef CUresult weir__type_##symbol params;
WEIR_INTERPOSED_STREAMS(WEIR_SERVE_BOTH)
WEIR_INTERPOSED_PLAIN(WEIR_SERVE)
WEIR_INTERPOSED_USED(WEIR_USE)
#undef WEIR_SERVE
#undef WEIR_SERVE_BOTH
#undef WEIR_USE

/* Where the driver's own are; NULL: nobody has asked yet.  For weir__interpose_real alone. */
extern _Atomic(void *) weir__interposed_real[WEIR_INTERPOSED_COUNT];
void *weir__interpose_find(enum weir_interposed row);

/* The driver's own; if it has none, a function that answers CUDA_ERROR_NOT_FOUND. */
static inline void *weir__interpose_real(enum weir_interposed row) {
    void *real = atomic_load_explicit(&weir__interposed_real[row], memory_order_acquire);

    return __builtin_expect(real != NULL, 1) ? real : weir__interpose_find(row);
}

#define REAL(symbol) (__extension__(weir__type_##symbol *) weir__interpose_real(WEIR_ROW_##symbol))

#define REAL_PTSZ(symbol)                                                                          \
    (__extension__(weir__type_##symbol *) weir__interpose_real(WEIR_ROW_##symbol##_ptsz))

/* Nonzero while this thread is inside what serves: whatever is called meanwhile, by it or by the driver
 * on its behalf, goes to the driver at once.  The library is loaded with the program, so that its
 * variables of threads lie at fixed places. */
extern _Thread_local int weir__inside __attribute__((tls_model("initial-exec")));

#endif
