/* SPDX-License-Identifier: MIT */
/* model_program.h: the driver calls that programs make and weir does not, so that unmodified programs run on the device
 * model (tests/libcuda).  The names, types and parameters are CUDA's. */
#ifndef WEIR_MODEL_PROGRAM_H
#define WEIR_MODEL_PROGRAM_H

#include "driver/cuda_abi.h"

typedef struct CUipcMemHandle_st {
    char reserved[64];
} CUipcMemHandle;

/* Attributes of pointers, and kinds of memory: X(name, value).  A comment gives the C type of an attribute's value. */
#define WEIR_PROGRAM_CONSTANTS(X)                                                                  \
    X(CU_POINTER_ATTRIBUTE_CONTEXT, 1)        /* CUcontext, or NULL for a block of a pool */       \
    X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)    /* unsigned int */                                   \
    X(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 3) /* CUdeviceptr */                                    \
    X(CU_POINTER_ATTRIBUTE_HOST_POINTER, 4)   /* void * */                                         \
    X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7)      /* unsigned long long */                             \
    X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8)     /* unsigned int */                                   \
    X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9) /* int */                                            \
    X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10) /* unsigned int */                      \
    X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)           /* CUdeviceptr */                       \
    X(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12)                 /* size_t */                            \
    X(CU_POINTER_ATTRIBUTE_MAPPED, 13)                     /* unsigned int */                      \
    X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 14)       /* unsigned long long */                \
    X(CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, 21)   /* a byte, from 12.8 on */              \
    X(CU_MEMORYTYPE_HOST, 1)                                                                       \
    X(CU_MEMORYTYPE_DEVICE, 2)

#ifndef WEIR_CUDA_ABI_CHECK
enum {
#define WEIR_PROGRAM_CONSTANT(name, value) name = (value),
    WEIR_PROGRAM_CONSTANTS(WEIR_PROGRAM_CONSTANT)
#undef WEIR_PROGRAM_CONSTANT
};
#endif

/* Each row is X(name, driver call with equal cost, symbol, first driver version, (parameters), (arguments)). */
/* clang-format off */
#define WEIR_PROGRAM_ENTRIES(X)                                                                    \
    X(cuCtxSetCurrent, cuCtxPushCurrent, "cuCtxSetCurrent", 4000, (CUcontext context), (context))  \
    X(cuDevicePrimaryCtxGetState, cuDeviceGetAttribute, "cuDevicePrimaryCtxGetState", 7000,        \
      (CUdevice device, unsigned int *flags, int *active), (device, flags, active))                \
    X(cuDeviceGetDefaultMemPool, cuMemPoolGetAttribute, "cuDeviceGetDefaultMemPool", 11020,        \
      (CUmemoryPool *pool, CUdevice device), (pool, device))                                       \
    X(cuDeviceGetMemPool, cuMemPoolGetAttribute, "cuDeviceGetMemPool", 11020,                      \
      (CUmemoryPool *pool, CUdevice device), (pool, device))                                       \
    X(cuDeviceSetMemPool, cuMemPoolSetAttribute, "cuDeviceSetMemPool", 11020,                      \
      (CUdevice device, CUmemoryPool pool), (device, pool))                                        \
    X(cuMemGetDefaultMemPool, cuMemPoolGetAttribute, "cuMemGetDefaultMemPool", 13000,              \
      (CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type),                     \
      (pool, location, type))                                                                      \
    X(cuMemGetMemPool, cuMemPoolGetAttribute, "cuMemGetMemPool", 13000,                            \
      (CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type),                     \
      (pool, location, type))                                                                      \
    X(cuMemSetMemPool, cuMemPoolSetAttribute, "cuMemSetMemPool", 13000,                            \
      (CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool),                      \
      (location, type, pool))                                                                      \
    X(cuMemAllocAsync, cuMemAllocFromPoolAsync, "cuMemAllocAsync", 11020,                          \
      (CUdeviceptr *block, size_t bytes, CUstream stream), (block, bytes, stream))                 \
    X(cuMemPoolExportToShareableHandle, cuMemExportToShareableHandle,                              \
      "cuMemPoolExportToShareableHandle", 11020,                                                   \
      (void *handle, CUmemoryPool pool, CUmemAllocationHandleType type,                            \
       unsigned long long flags),                                                                  \
      (handle, pool, type, flags))                                                                 \
    X(cuMemPoolImportFromShareableHandle, cuMemImportFromShareableHandle,                          \
      "cuMemPoolImportFromShareableHandle", 11020,                                                 \
      (CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,                           \
       unsigned long long flags),                                                                  \
      (pool, handle, type, flags))                                                                 \
    X(cuMemPoolExportPointer, cuMemPoolGetAttribute, "cuMemPoolExportPointer", 11020,              \
      (CUmemPoolPtrExportData *data, CUdeviceptr address), (data, address))                        \
    X(cuMemPoolImportPointer, cuMemImportFromShareableHandle, "cuMemPoolImportPointer", 11020,     \
      (CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data),                     \
      (address, pool, data))                                                                       \
    X(cuPointerGetAttribute, cuMemGetAddressRange, "cuPointerGetAttribute", 4000,                  \
      (void *value, CUpointer_attribute attribute, CUdeviceptr address),                           \
      (value, attribute, address))                                                                 \
    X(cuPointerGetAttributes, cuMemGetAddressRange, "cuPointerGetAttributes", 7000,                \
      (unsigned int count, CUpointer_attribute *attributes, void **values, CUdeviceptr address),   \
      (count, attributes, values, address))                                                        \
    X(cuIpcGetMemHandle, cuMemGetAddressRange, "cuIpcGetMemHandle", 4010,                          \
      (CUipcMemHandle *handle, CUdeviceptr address), (handle, address))                            \
    X(cuMemsetD32Async, cuMemsetD8Async, "cuMemsetD32Async", 3020,                                 \
      (CUdeviceptr block, unsigned int value, size_t count, CUstream stream),                      \
      (block, value, count, stream))                                                               \
    X(cuEventSynchronize, cuStreamSynchronize, "cuEventSynchronize", 2000, (CUevent event),        \
      (event))
/* clang-format on */

#define WEIR_PROGRAM(name, like, symbol, version, params, args)                                    \
    CUresult weir__program_##name params;
WEIR_PROGRAM_ENTRIES(WEIR_PROGRAM)
#undef WEIR_PROGRAM

#endif
