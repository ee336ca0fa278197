/* SPDX-License-Identifier: MIT */
/* cuda_abi.h: the types and calls of the CUDA driver API that weir uses.  weir declares them itself, so a build needs
 * no CUDA toolkit.  If configure finds <cuda.h>, tests/driver/abi_check.c compares these declarations with <cuda.h>.
 * Enumerations are `unsigned int`, as in the ABI. */
#ifndef WEIR_CUDA_ABI_H
#define WEIR_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "driver/cuda_constants.h"

typedef unsigned int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef unsigned int CUdevice_attribute;
typedef unsigned int CUmemPool_attribute;
typedef unsigned int CUgraphMem_attribute;
typedef unsigned int CUstreamCaptureStatus;
typedef unsigned int CUstreamCaptureMode;
typedef unsigned int CUmemAllocationType;
typedef unsigned int CUmemAllocationHandleType;
typedef unsigned int CUmemLocationType;
typedef unsigned int CUpointer_attribute;
typedef unsigned int CUmemAccess_flags;
typedef unsigned int CUmemAllocationGranularity_flags;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef void (*CUhostFn)(void *data);

typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;

typedef struct CUmemLocation_st {
    CUmemLocationType type;
    int id;
} CUmemLocation;

/* The properties of a new memory pool.  A driver requires zero in fields that are newer than the driver: `maxSize` is
 * from version 12.2, `usage` from 12.8, and reserved[0], for GPUDirect RDMA, from 13.4. */
typedef struct CUmemPoolProps_st {
    CUmemAllocationType allocType;
    CUmemAllocationHandleType handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;

typedef struct CUmemAllocationProp_st {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct CUmemPoolPtrExportData_st {
    unsigned char reserved[64];
} CUmemPoolPtrExportData;

/* The layouts of CUDA_MEM_ALLOC_NODE_PARAMS and of the first part of CUgraphNodeParams. */
struct weir_alloc_node {
    CUmemPoolProps pool;
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr block;
};
struct weir_any_node {
    unsigned int type; /* WEIR_NODE_ALLOC if the node allocates memory */
    int reserved[3];
    struct weir_alloc_node alloc;
};
#define WEIR_NODE_ALLOC 10

/* The driver calls that weir makes: X(group, name for cuGetProcAddress, exported symbol, first driver version,
 * (parameters), (arguments)).  Every driver must export the calls of the group BASE. */
/* clang-format off */
#define WEIR_DRIVER_ENTRIES(X)                                                                     \
    X(BASE, cuInit, "cuInit", 2000, (unsigned int flags), (flags))                                 \
    X(BASE, cuDriverGetVersion, "cuDriverGetVersion", 2020, (int *version), (version))             \
    X(BASE, cuDeviceGetCount, "cuDeviceGetCount", 2000, (int *count), (count))                     \
    X(BASE, cuDeviceGet, "cuDeviceGet", 2000, (CUdevice *device, int ordinal), (device, ordinal))  \
    X(BASE, cuDeviceGetName, "cuDeviceGetName", 2000, (char *name, int bytes, CUdevice device),    \
      (name, bytes, device))                                                                       \
    X(BASE, cuDeviceGetUuid, "cuDeviceGetUuid", 9020, (CUuuid *uuid, CUdevice device),             \
      (uuid, device))                                                                              \
    X(BASE, cuDeviceTotalMem, "cuDeviceTotalMem_v2", 3020, (size_t *bytes, CUdevice device),       \
      (bytes, device))                                                                             \
    X(BASE, cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000,                                    \
      (int *value, CUdevice_attribute attribute, CUdevice device), (value, attribute, device))     \
    X(BASE, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000,                            \
      (CUcontext *context, CUdevice device), (context, device))                                    \
    X(BASE, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 11000, (CUdevice device),   \
      (device))                                                                                    \
    X(BASE, cuCtxGetCurrent, "cuCtxGetCurrent", 4000, (CUcontext *context), (context))             \
    X(BASE, cuCtxPushCurrent, "cuCtxPushCurrent_v2", 4000, (CUcontext context), (context))         \
    X(BASE, cuCtxPopCurrent, "cuCtxPopCurrent_v2", 4000, (CUcontext *context), (context))          \
    X(BASE, cuCtxGetDevice, "cuCtxGetDevice", 2000, (CUdevice *device), (device))                  \
    X(BASE, cuCtxSynchronize, "cuCtxSynchronize", 2000, (void), ())                                \
    X(BASE, cuMemGetInfo, "cuMemGetInfo_v2", 3020, (size_t *free_bytes, size_t *total),            \
      (free_bytes, total))                                                                         \
    X(BASE, cuMemAlloc, "cuMemAlloc_v2", 3020, (CUdeviceptr *block, size_t bytes), (block, bytes)) \
    X(BASE, cuMemFree, "cuMemFree_v2", 3020, (CUdeviceptr block), (block))                         \
    X(BASE, cuMemAllocHost, "cuMemAllocHost_v2", 3020, (void **host, size_t bytes), (host, bytes)) \
    X(BASE, cuMemFreeHost, "cuMemFreeHost", 2000, (void *host), (host))                            \
    X(BASE, cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020,                             \
      (CUdeviceptr *block, size_t bytes, CUmemoryPool pool, CUstream stream),                      \
      (block, bytes, pool, stream))                                                                \
    X(BASE, cuMemFreeAsync, "cuMemFreeAsync", 11020, (CUdeviceptr block, CUstream stream),         \
      (block, stream))                                                                             \
    X(BASE, cuMemPoolCreate, "cuMemPoolCreate", 11020,                                             \
      (CUmemoryPool *pool, const CUmemPoolProps *properties), (pool, properties))                  \
    X(BASE, cuMemPoolDestroy, "cuMemPoolDestroy", 11020, (CUmemoryPool pool), (pool))              \
    X(BASE, cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, (CUmemoryPool pool, size_t keep),           \
      (pool, keep))                                                                                \
    X(BASE, cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020,                                 \
      (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value))   \
    X(BASE, cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020,                                 \
      (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value))   \
    X(BASE, cuStreamCreate, "cuStreamCreate", 2000, (CUstream *stream, unsigned int flags),        \
      (stream, flags))                                                                             \
    X(BASE, cuStreamDestroy, "cuStreamDestroy_v2", 4000, (CUstream stream), (stream))              \
    X(BASE, cuStreamSynchronize, "cuStreamSynchronize", 2000, (CUstream stream), (stream))         \
    X(BASE, cuStreamQuery, "cuStreamQuery", 2000, (CUstream stream), (stream))                     \
    X(BASE, cuStreamGetFlags, "cuStreamGetFlags", 5050, (CUstream stream, unsigned int *flags),    \
      (stream, flags))                                                                             \
    X(BASE, cuStreamGetCtx, "cuStreamGetCtx", 9020, (CUstream stream, CUcontext *context),         \
      (stream, context))                                                                           \
    X(BASE, cuStreamWaitEvent, "cuStreamWaitEvent", 3020,                                          \
      (CUstream stream, CUevent event, unsigned int flags), (stream, event, flags))                \
    X(BASE, cuStreamIsCapturing, "cuStreamIsCapturing", 10000,                                     \
      (CUstream stream, CUstreamCaptureStatus *status), (stream, status))                          \
    X(BASE, cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010,         \
      (CUstreamCaptureMode *mode), (mode))                                                         \
    X(BASE, cuLaunchHostFunc, "cuLaunchHostFunc", 10000,                                           \
      (CUstream stream, CUhostFn function, void *data), (stream, function, data))                  \
    X(BASE, cuEventCreate, "cuEventCreate", 2000, (CUevent *event, unsigned int flags),            \
      (event, flags))                                                                              \
    X(BASE, cuEventRecord, "cuEventRecord", 2000, (CUevent event, CUstream stream),                \
      (event, stream))                                                                             \
    X(BASE, cuEventQuery, "cuEventQuery", 2000, (CUevent event), (event))                          \
    X(BASE, cuEventDestroy, "cuEventDestroy_v2", 4000, (CUevent event), (event))                   \
    X(BASE, cuMemsetD8Async, "cuMemsetD8Async", 3020,                                              \
      (CUdeviceptr block, unsigned char value, size_t bytes, CUstream stream),                     \
      (block, value, bytes, stream))                                                               \
    X(BASE, cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", 3020,                                       \
      (CUdeviceptr block, const void *host, size_t bytes, CUstream stream),                        \
      (block, host, bytes, stream))                                                                \
    X(BASE, cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", 3020,                                       \
      (void *host, CUdeviceptr block, size_t bytes, CUstream stream),                              \
      (host, block, bytes, stream))                                                                \
    X(BASE, cuGetErrorName, "cuGetErrorName", 6000, (CUresult result, const char **name),          \
      (result, name))                                                                              \
    X(STREAM_ID, cuStreamGetId, "cuStreamGetId", 12000,                                            \
      (CUstream stream, unsigned long long *id), (stream, id))                                     \
    X(GRAPH, cuStreamBeginCapture, "cuStreamBeginCapture_v2", 10010,                               \
      (CUstream stream, CUstreamCaptureMode mode), (stream, mode))                                 \
    X(GRAPH, cuStreamEndCapture, "cuStreamEndCapture", 10000, (CUstream stream, CUgraph *graph),   \
      (stream, graph))                                                                             \
    X(GRAPH, cuStreamGetCaptureInfo, "cuStreamGetCaptureInfo", 10010,                              \
      (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id), (stream, status, id))        \
    X(GRAPH, cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040,                    \
      (CUgraphExec *exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))          \
    X(GRAPH, cuGraphLaunch, "cuGraphLaunch", 10000, (CUgraphExec exec, CUstream stream),           \
      (exec, stream))                                                                              \
    X(GRAPH, cuGraphExecDestroy, "cuGraphExecDestroy", 10000, (CUgraphExec exec), (exec))          \
    X(GRAPH, cuGraphDestroy, "cuGraphDestroy", 10000, (CUgraph graph), (graph))                    \
    X(GRAPH, cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, (CUdevice device), (device))     \
    X(GRAPH, cuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute", 11040,                  \
      (CUdevice device, CUgraphMem_attribute attribute, void *value), (device, attribute, value))  \
    X(KERNEL, cuModuleLoadData, "cuModuleLoadData", 2000, (CUmodule *module, const void *image),   \
      (module, image))                                                                             \
    X(KERNEL, cuModuleUnload, "cuModuleUnload", 2000, (CUmodule module), (module))                 \
    X(KERNEL, cuModuleGetFunction, "cuModuleGetFunction", 2000,                                    \
      (CUfunction *function, CUmodule module, const char *name), (function, module, name))         \
    X(KERNEL, cuLaunchKernel, "cuLaunchKernel", 4000,                                              \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,         \
       unsigned int block_x, unsigned int block_y, unsigned int block_z,                           \
       unsigned int shared_bytes, CUstream stream, void **parameters, void **extra),               \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,          \
       parameters, extra))                                                                         \
    X(KERNEL, cuMemGetAddressRange, "cuMemGetAddressRange_v2", 3020,                               \
      (CUdeviceptr *base, size_t *bytes, CUdeviceptr address), (base, bytes, address))             \
    X(KERNEL, cuEventElapsedTime, "cuEventElapsedTime", 2000,                                      \
      (float *milliseconds, CUevent start, CUevent end), (milliseconds, start, end))               \
    X(VIRTUAL, cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020,              \
      (size_t *granularity, const CUmemAllocationProp *properties,                                 \
       CUmemAllocationGranularity_flags option),                                                   \
      (granularity, properties, option))                                                           \
    X(VIRTUAL, cuMemAddressReserve, "cuMemAddressReserve", 10020,                                  \
      (CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,                     \
       unsigned long long flags),                                                                  \
      (address, bytes, alignment, hint, flags))                                                    \
    X(VIRTUAL, cuMemAddressFree, "cuMemAddressFree", 10020, (CUdeviceptr address, size_t bytes),   \
      (address, bytes))                                                                            \
    X(VIRTUAL, cuMemCreate, "cuMemCreate", 10020,                                                  \
      (CUmemGenericAllocationHandle *handle, size_t bytes,                                         \
       const CUmemAllocationProp *properties, unsigned long long flags),                           \
      (handle, bytes, properties, flags))                                                          \
    X(VIRTUAL, cuMemRelease, "cuMemRelease", 10020, (CUmemGenericAllocationHandle handle),         \
      (handle))                                                                                    \
    X(VIRTUAL, cuMemMap, "cuMemMap", 10020,                                                        \
      (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,      \
       unsigned long long flags),                                                                  \
      (address, bytes, offset, handle, flags))                                                     \
    X(VIRTUAL, cuMemUnmap, "cuMemUnmap", 10020, (CUdeviceptr address, size_t bytes),               \
      (address, bytes))                                                                            \
    X(VIRTUAL, cuMemSetAccess, "cuMemSetAccess", 10020,                                            \
      (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count),            \
      (address, bytes, access, count))                                                             \
    X(PEER, cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000,                                  \
      (int *can, CUdevice device, CUdevice peer), (can, device, peer))                             \
    X(PEER, cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020,                                       \
      (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count), (pool, access, count))     \
    X(PEER, cuMemPoolGetAccess, "cuMemPoolGetAccess", 11020,                                       \
      (CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location),                      \
      (flags, pool, location))                                                                     \
    X(IPC, cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020,                    \
      (void *shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,          \
       unsigned long long flags),                                                                  \
      (shared, handle, type, flags))                                                               \
    X(IPC, cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020,                \
      (CUmemGenericAllocationHandle *handle, void *shared, CUmemAllocationHandleType type),        \
      (handle, shared, type))
/* clang-format on */

/* The handles of the two default streams, which <cuda.h> calls CU_STREAM_LEGACY and CU_STREAM_PER_THREAD. */
#define WEIR_STREAM_LEGACY_VALUE 0x1
#define WEIR_STREAM_PER_THREAD_VALUE 0x2

#endif
