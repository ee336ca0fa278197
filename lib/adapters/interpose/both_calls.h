/* SPDX-License-Identifier: MIT */
/* both_calls.h: lists the driver's functions that libweir-preload.so and libweir-record.so both replace (interpose.h).
 *
 * This file must not depend on what the replacing functions do. */
#ifndef WEIR_BOTH_CALLS_H
#define WEIR_BOTH_CALLS_H

#include "driver/cuda_abi.h"

typedef struct CUgraphNode_st *CUgraphNode;

/* Driver functions with two symbols: with the ending _ptsz, stream 0 is the calling thread's own default stream. */
/* clang-format off */
#define WEIR_BOTH_STREAMS(X)                                                                       \
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
    X(cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph, 13030,                         \
      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *callback, void *data),      \
      (stream, mode, graph, callback, data))                                                       \
    X(cuStreamEndCapture, cuStreamEndCapture, 10000, (CUstream stream, CUgraph *graph),            \
      (stream, graph))

/* Driver functions with only one symbol, without the ending _ptsz. */
#define WEIR_BOTH_PLAIN(X)                                                                         \
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
    X(cuMemRelease, cuMemRelease, 10020, (CUmemGenericAllocationHandle handle), (handle))          \
    X(cuMemMap, cuMemMap, 10020,                                                                   \
      (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,      \
       unsigned long long flags),                                                                  \
      (address, bytes, offset, handle, flags))                                                     \
    X(cuMemUnmap, cuMemUnmap, 10020, (CUdeviceptr address, size_t bytes), (address, bytes))        \
    X(cuMemFree, cuMemFree_v2, 3020, (CUdeviceptr block), (block))                                 \
    X(cuMemPoolCreate, cuMemPoolCreate, 11020,                                                     \
      (CUmemoryPool *pool, const CUmemPoolProps *properties), (pool, properties))                  \
    X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, (CUmemoryPool pool), (pool))                      \
    X(cuMemGetMemPool, cuMemGetMemPool, 13000,                                                     \
      (CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type),                     \
      (pool, location, type))                                                                      \
    X(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, 13000,                                       \
      (CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type),                     \
      (pool, location, type))                                                                      \
    X(cuCtxDestroy, cuCtxDestroy_v2, 4000, (CUcontext context), (context))                         \
    X(cuStreamDestroy, cuStreamDestroy_v2, 4000, (CUstream stream), (stream))                      \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, (CUdevice device), (device))         \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, (CUdevice device), (device))

/* Driver functions that libweir-preload.so and libweir-record.so both call but do not replace. */
#define WEIR_BOTH_USED(X)                                                                          \
    X(cuDeviceGetCount, cuDeviceGetCount, 2000, (int *count), (count))                             \
    X(cuCtxGetDevice, cuCtxGetDevice, 2000, (CUdevice *device), (device))                          \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, (size_t *bytes, CUdevice device),               \
      (bytes, device))                                                                             \
    X(cuStreamGetDevice, cuStreamGetDevice, 12080, (CUstream stream, CUdevice *device),            \
      (stream, device))                                                                            \
    X(cuStreamIsCapturing, cuStreamIsCapturing, 10000,                                             \
      (CUstream stream, CUstreamCaptureStatus *status), (stream, status))
/* clang-format on */

#endif
