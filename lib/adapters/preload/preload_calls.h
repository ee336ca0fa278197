/* SPDX-License-Identifier: MIT */
/* preload_calls.h: lists the driver's functions that libweir-preload.so replaces, in the form of interpose.h.
 *
 * This file must not depend on what the replacing functions do. */
#ifndef WEIR_PRELOAD_CALLS_H
#define WEIR_PRELOAD_CALLS_H

#include "adapters/interpose/both_calls.h"

/* Driver functions with two symbols: with the ending _ptsz, stream 0 is the calling thread's own default stream. */
/* clang-format off */
#define WEIR_INTERPOSED_STREAMS(X)                                                                 \
    WEIR_BOTH_STREAMS(X)                                                                           \
    X(cuStreamBeginCaptureToCig, cuStreamBeginCaptureToCig, 13010,                                 \
      (CUstream stream, void *parameters), (stream, parameters))                                   \
    X(cuGraphLaunch, cuGraphLaunch, 10000, (CUgraphExec exec, CUstream stream), (exec, stream))

/* Driver functions with only one symbol, without the ending _ptsz. */
#define WEIR_INTERPOSED_PLAIN(X)                                                                   \
    WEIR_BOTH_PLAIN(X)                                                                             \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, (CUdevice device), (device))     \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, (CUdevice device), (device)) \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000,                             \
      (CUmemGenericAllocationHandle *handle, void *address), (handle, address))                    \
    X(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, 11040,                                       \
      (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,                   \
       struct weir_alloc_node *alloc),                                                             \
      (node, graph, after, count, alloc))                                                          \
    X(cuGraphAddNode, cuGraphAddNode, 12020,                                                       \
      (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,                   \
       struct weir_any_node *any),                                                                 \
      (node, graph, after, count, any))                                                            \
    X(cuGraphAddNode, cuGraphAddNode_v2, 12030,                                                    \
      (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,              \
       size_t count, struct weir_any_node *any),                                                   \
      (node, graph, after, edges, count, any))                                                     \
    X(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, (CUdevice device), (device))              \
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
    X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, (CUmemoryPool pool, size_t keep), (pool, keep))     \
    X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020,                                         \
      (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value))   \
    X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020,                                         \
      (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value))   \
    X(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020,                                               \
      (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count), (pool, access, count))     \
    X(cuMemPoolGetAccess, cuMemPoolGetAccess, 11020,                                               \
      (CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location),                      \
      (flags, pool, location))                                                                     \
    X(cuMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle, 11020,                   \
      (void *shared, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags), \
      (shared, pool, type, flags))                                                                 \
    X(cuMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle, 11020,               \
      (CUmemoryPool *pool, void *shared, CUmemAllocationHandleType type,                           \
       unsigned long long flags),                                                                  \
      (pool, shared, type, flags))                                                                 \
    X(cuMemPoolImportPointer, cuMemPoolImportPointer, 11020,                                       \
      (CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data),                     \
      (address, pool, data))                                                                       \
    X(cuMemPoolExportPointer, cuMemPoolExportPointer, 11020, (void *data, CUdeviceptr address),    \
      (data, address))                                                                             \
    X(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020, (CUdevice device, CUmemoryPool pool),         \
      (device, pool))                                                                              \
    X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020,                                 \
      (CUmemoryPool *pool, CUdevice device), (pool, device))                                       \
    X(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, (CUmemoryPool *pool, CUdevice device),        \
      (pool, device))                                                                              \
    X(cuMemSetMemPool, cuMemSetMemPool, 13000,                                                     \
      (CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool),                      \
      (location, type, pool))                                                                      \
    X(cuStreamCreate, cuStreamCreate, 2000, (CUstream *stream, unsigned int flags),                \
      (stream, flags))                                                                             \
    X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050,                                \
      (CUstream *stream, unsigned int flags, int priority), (stream, flags, priority))             \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000,                                    \
      (CUcontext *context, CUdevice device), (context, device))                                    \
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
      (context, resources, device, flags))

/* Driver functions that this library calls but does not replace. */
#define WEIR_INTERPOSED_USED(X)                                                                    \
    WEIR_BOTH_USED(X)                                                                              \
    X(cuDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute, 11040,                           \
      (CUdevice device, CUgraphMem_attribute attribute, void *value), (device, attribute, value))  \
    X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, (CUcontext *context), (context))                     \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, (CUcontext context), (context))                 \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, (CUcontext *context), (context))                  \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream stream), (stream))                 \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010,                 \
      (CUstreamCaptureMode *mode), (mode))                                                         \
    X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000,                                \
      (CUdevice device, unsigned int *flags, int *active), (device, flags, active))                \
    X(cuStreamGetCtx, cuStreamGetCtx, 9020, (CUstream stream, CUcontext *context),                 \
      (stream, context))
/* clang-format on */

#endif
