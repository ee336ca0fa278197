/* SPDX-License-Identifier: MIT */
/* preload_calls.h: the driver's calls in which libweir-preload.so stands; interpose.h says what the lists are.
 *
 * Must not know: what is done about a call.
 */
#ifndef WEIR_PRELOAD_CALLS_H
#define WEIR_PRELOAD_CALLS_H

#include "cuda_abi.h"

/* Beyond what weir itself calls. */
typedef struct CUgraphNode_st *CUgraphNode;

/* Symbols with a second form, _ptsz, to which stream 0 is the thread's own. */
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

#endif
