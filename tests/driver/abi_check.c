/* SPDX-License-Identifier: MIT */
/* abi_check.c: compares lib/driver/cuda_abi.h with the toolkit's headers.
 *
 * The compiler makes the checks: this file compiles only if they hold.  It reads weir's types first, under other names,
 * then <cuda.h>, and compares every constant, every type, the layout of every structure, and for every entry point
 *   - the prototype that cuda.h gives the base name (it maps cuMemAlloc to cuMemAlloc_v2 and so on);
 *   - the exported symbol of that mapping;
 *   - the version: cudaTypedefs.h has a type PFN_<base name>_v<version> only for a version that exists.
 *
 * In the lists of entries a type's name means the toolkit's type.  Enumerations are compared as unsigned int, as in the
 * ABI.  Built with a toolkit of 11.2 or later, without the names that it is too old to have.  Neither links nor loads
 * the driver. */
#define WEIR_CUDA_ABI_CHECK
#define CUresult weir_CUresult
#define CUdevice weir_CUdevice
#define CUdeviceptr weir_CUdeviceptr
#define CUcontext weir_CUcontext
#define CUstream weir_CUstream
#define CUevent weir_CUevent
#define CUmemoryPool weir_CUmemoryPool
#define CUgraph weir_CUgraph
#define CUgraphExec weir_CUgraphExec
#define CUmodule weir_CUmodule
#define CUfunction weir_CUfunction
#define CUdevice_attribute weir_CUdevice_attribute
#define CUmemPool_attribute weir_CUmemPool_attribute
#define CUgraphMem_attribute weir_CUgraphMem_attribute
#define CUstreamCaptureStatus weir_CUstreamCaptureStatus
#define CUstreamCaptureMode weir_CUstreamCaptureMode
#define CUmemAllocationType weir_CUmemAllocationType
#define CUmemAllocationHandleType weir_CUmemAllocationHandleType
#define CUmemLocationType weir_CUmemLocationType
#define CUpointer_attribute weir_CUpointer_attribute
#define CUmemAccess_flags weir_CUmemAccess_flags
#define CUmemAllocationGranularity_flags weir_CUmemAllocationGranularity_flags
#define CUmemGenericAllocationHandle weir_CUmemGenericAllocationHandle
#define CUuuid_st weir_CUuuid_st
#define CUuuid weir_CUuuid
#define CUmemLocation_st weir_CUmemLocation_st
#define CUmemLocation weir_CUmemLocation
#define CUmemPoolProps_st weir_CUmemPoolProps_st
#define CUmemPoolProps weir_CUmemPoolProps
#define CUmemAllocationProp_st weir_CUmemAllocationProp_st
#define CUmemAllocationProp weir_CUmemAllocationProp
#define CUmemAccessDesc_st weir_CUmemAccessDesc_st
#define CUmemAccessDesc weir_CUmemAccessDesc
#define CUipcMemHandle_st weir_CUipcMemHandle_st
#define CUipcMemHandle weir_CUipcMemHandle
#define CUmemPoolPtrExportData_st weir_CUmemPoolPtrExportData_st
#define CUmemPoolPtrExportData weir_CUmemPoolPtrExportData
#include "driver/cuda_abi.h"
#include "driver/model/model_program.h"
#undef CUresult
#undef CUdevice
#undef CUdeviceptr
#undef CUcontext
#undef CUstream
#undef CUevent
#undef CUmemoryPool
#undef CUgraph
#undef CUgraphExec
#undef CUmodule
#undef CUfunction
#undef CUdevice_attribute
#undef CUmemPool_attribute
#undef CUgraphMem_attribute
#undef CUstreamCaptureStatus
#undef CUstreamCaptureMode
#undef CUmemAllocationType
#undef CUmemAllocationHandleType
#undef CUmemLocationType
#undef CUpointer_attribute
#undef CUmemAccess_flags
#undef CUmemAllocationGranularity_flags
#undef CUmemGenericAllocationHandle
#undef CUuuid_st
#undef CUuuid
#undef CUmemLocation_st
#undef CUmemLocation
#undef CUmemPoolProps_st
#undef CUmemPoolProps
#undef CUmemAllocationProp_st
#undef CUmemAllocationProp
#undef CUmemAccessDesc_st
#undef CUmemAccessDesc
#undef CUipcMemHandle_st
#undef CUipcMemHandle
#undef CUmemPoolPtrExportData_st
#undef CUmemPoolPtrExportData

#include <cuda.h>
#include <stdio.h>

#include <weir/allocator.h>

#ifdef __has_include
#if __has_include(<cudaTypedefs.h>) /* from 11.3 on */
#include <cudaTypedefs.h>
#define HAVE_TYPEDEFS 1
#endif
#endif

/* ------------------------------------------------------------- constants ---- */

#if CUDA_VERSION < 11030 /* names that came with 11.3: nothing to compare with */
#define CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT 5
#define CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH 6
#define CU_MEMPOOL_ATTR_USED_MEM_CURRENT 7
#define CU_MEMPOOL_ATTR_USED_MEM_HIGH 8
#define CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE 17
#define CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES 119
#define CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED 102 /* had another name */
#endif

#if CUDA_VERSION < 11040
#define CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT 0
#define CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT 2
#define CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH 1
#endif

#if CUDA_VERSION < 12080
#define CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS 2
#define CU_MEM_CREATE_USAGE_HW_DECOMPRESS 2
#define CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE 21
#endif

#if CUDA_VERSION < 12020
#define CU_MEM_LOCATION_TYPE_HOST 2
#define CU_MEM_LOCATION_TYPE_HOST_NUMA 3
#define CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT 4
#endif

#if CUDA_VERSION < 13000
#define CU_MEM_ALLOCATION_TYPE_MANAGED 2
#endif

#if CUDA_VERSION < 13020
#define CU_MEMPOOL_ATTR_ALLOCATION_TYPE 9
#define CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES 10
#define CU_MEMPOOL_ATTR_LOCATION_ID 11
#define CU_MEMPOOL_ATTR_LOCATION_TYPE 12
#define CU_MEMPOOL_ATTR_MAX_POOL_SIZE 13
#define CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED 14
#endif

#if CUDA_VERSION < 13040
#define CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID 15
#define CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN 6
#endif

#define CHECK_CONSTANT(name, value) _Static_assert((long long)(name) == (value), #name);
WEIR_CUDA_CONSTANTS(CHECK_CONSTANT)
WEIR_PROGRAM_CONSTANTS(CHECK_CONSTANT)

/* ----------------------------------------------------------------- types ---- */

#define CHECK_SAME(type) _Static_assert(__builtin_types_compatible_p(weir_##type, type), #type)
CHECK_SAME(CUdevice);
CHECK_SAME(CUdeviceptr);
CHECK_SAME(CUcontext);
CHECK_SAME(CUstream);
CHECK_SAME(CUevent);
CHECK_SAME(CUmemoryPool);
CHECK_SAME(CUgraph);
CHECK_SAME(CUgraphExec);
CHECK_SAME(CUmodule);
CHECK_SAME(CUfunction);
CHECK_SAME(CUmemGenericAllocationHandle);
_Static_assert(__builtin_types_compatible_p(weir_stream, CUstream), "weir_stream");

#define CHECK_ENUM(type)                                                                           \
    _Static_assert(__builtin_types_compatible_p(weir_##type, unsigned int), #type " of ours");     \
    _Static_assert(sizeof(type) == sizeof(unsigned int) && (type)-1 > 0, #type)
CHECK_ENUM(CUresult);
CHECK_ENUM(CUdevice_attribute);
CHECK_ENUM(CUmemPool_attribute);
CHECK_ENUM(CUstreamCaptureStatus);
CHECK_ENUM(CUstreamCaptureMode);
CHECK_ENUM(CUmemAllocationType);
CHECK_ENUM(CUmemAllocationHandleType);
CHECK_ENUM(CUmemLocationType);
CHECK_ENUM(CUpointer_attribute);
CHECK_ENUM(CUmemAccess_flags);
CHECK_ENUM(CUmemAllocationGranularity_flags);

#define CHECK_SIZE(type)                                                                           \
    _Static_assert(sizeof(weir_##type) == sizeof(type) && _Alignof(weir_##type) == _Alignof(type), \
                   #type)
#define CHECK_FIELD_AS(type, field, theirs)                                                        \
    _Static_assert(offsetof(weir_##type, field) == offsetof(type, theirs) &&                       \
                       sizeof(((weir_##type *)0)->field) == sizeof(((type *)0)->theirs),           \
                   #type "." #field)
#define CHECK_FIELD(type, field) CHECK_FIELD_AS(type, field, field)

CHECK_SIZE(CUuuid);
CHECK_FIELD(CUuuid, bytes);

CHECK_SIZE(CUmemLocation);
CHECK_FIELD(CUmemLocation, type);
CHECK_FIELD(CUmemLocation, id);

CHECK_SIZE(CUmemPoolProps);
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");
CHECK_FIELD(CUmemPoolProps, allocType);
CHECK_FIELD(CUmemPoolProps, handleTypes);
CHECK_FIELD(CUmemPoolProps, location);
CHECK_FIELD(CUmemPoolProps, win32SecurityAttributes);
#if CUDA_VERSION >= 12080
CHECK_FIELD(CUmemPoolProps, maxSize);
CHECK_FIELD(CUmemPoolProps, usage);
_Static_assert(sizeof(struct weir_alloc_node) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) &&
                   offsetof(struct weir_alloc_node, bytes) ==
                       offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize) &&
                   offsetof(struct weir_any_node, alloc) == offsetof(CUgraphNodeParams, alloc) &&
                   WEIR_NODE_ALLOC == CU_GRAPH_NODE_TYPE_MEM_ALLOC,
               "CUDA_MEM_ALLOC_NODE_PARAMS");
#if CUDA_VERSION >= 13040
_Static_assert(offsetof(weir_CUmemPoolProps, reserved) ==
                   offsetof(CUmemPoolProps, gpuDirectRDMACapable),
               "CUmemPoolProps.reserved");
#else
CHECK_FIELD(CUmemPoolProps, reserved);
#endif
#elif CUDA_VERSION >= 12020
CHECK_FIELD(CUmemPoolProps, maxSize);
_Static_assert(offsetof(weir_CUmemPoolProps, usage) == offsetof(CUmemPoolProps, reserved),
               "CUmemPoolProps.usage");
#else
_Static_assert(offsetof(weir_CUmemPoolProps, maxSize) == offsetof(CUmemPoolProps, reserved),
               "CUmemPoolProps.maxSize");
#endif

CHECK_SIZE(CUmemAllocationProp);
CHECK_FIELD(CUmemAllocationProp, type);
CHECK_FIELD(CUmemAllocationProp, requestedHandleTypes);
CHECK_FIELD(CUmemAllocationProp, location);
CHECK_FIELD(CUmemAllocationProp, win32HandleMetaData);
CHECK_FIELD(CUmemAllocationProp, allocFlags);
CHECK_FIELD(CUmemAllocationProp, allocFlags.compressionType);
CHECK_FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
CHECK_FIELD(CUmemAllocationProp, allocFlags.usage);
CHECK_FIELD(CUmemAllocationProp, allocFlags.reserved);

CHECK_SIZE(CUmemAccessDesc);
CHECK_FIELD(CUmemAccessDesc, location);
CHECK_FIELD(CUmemAccessDesc, flags);

CHECK_SIZE(CUipcMemHandle);
CHECK_SIZE(CUmemPoolPtrExportData);

/* ---------------------------------------------------------- entry points ---- */

/* From CUDA 13.0 on, cuda.h maps cuDeviceGetUuid to _v2, with equal parameters, and hides the first version, which weir
 * uses because 11.2 has no other. */
#ifdef cuDeviceGetUuid
#undef cuDeviceGetUuid
CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
_Static_assert(__builtin_types_compatible_p(__typeof__(&cuDeviceGetUuid),
                                            __typeof__(&cuDeviceGetUuid_v2)),
               "cuDeviceGetUuid");
#endif

/* From CUDA 12.8 on, cuda.h treats cuEventElapsedTime like this, too. */
#ifdef cuEventElapsedTime
#undef cuEventElapsedTime
CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
_Static_assert(__builtin_types_compatible_p(__typeof__(&cuEventElapsedTime),
                                            __typeof__(&cuEventElapsedTime_v2)),
               "cuEventElapsedTime");
#endif

/* An optional group is checked where the toolkit knows it. */
#define GROUP_BASE(...) __VA_ARGS__
#define GROUP_KERNEL(...) __VA_ARGS__
#define GROUP_VIRTUAL(...) __VA_ARGS__
#define GROUP_PEER(...) __VA_ARGS__
#define GROUP_IPC(...) __VA_ARGS__
#if CUDA_VERSION >= 12000
#define GROUP_STREAM_ID(...) __VA_ARGS__
#else
#define GROUP_STREAM_ID(...)
#endif
#if CUDA_VERSION >= 11040
#define GROUP_GRAPH(...) __VA_ARGS__
#else
#define GROUP_GRAPH(...)
#endif

#define TEXT_OF(token) #token
#define TEXT(token) TEXT_OF(token)

/* weir uses the first version of this function, which each driver has; cuda.h maps the name to later versions. */
#undef cuStreamGetCaptureInfo
CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status,
                                        cuuint64_t *id);

/* `base` alone means what cuda.h maps it to; next to ## it means itself. */
#define CHECK_ENTRY(group, base, symbol, version, params, args)                                    \
    GROUP_##group(                                                                                 \
        _Static_assert(                                                                            \
            __builtin_types_compatible_p(__typeof__(&base), CUresult(CUDAAPI *) params),           \
            symbol ": the prototype");                                                             \
        _Static_assert(__builtin_strcmp(TEXT(base), symbol) == 0, symbol ": the exported name");)
WEIR_DRIVER_ENTRIES(CHECK_ENTRY)

/* Entries that programs call and weir does not, by the version that introduced them. */
#define GROUP_13000(...)
#if CUDA_VERSION >= 13000
#undef GROUP_13000
#define GROUP_13000(...) __VA_ARGS__
#endif
#define GROUP_2000(...) __VA_ARGS__
#define GROUP_3020(...) __VA_ARGS__
#define GROUP_4000(...) __VA_ARGS__
#define GROUP_4010(...) __VA_ARGS__
#define GROUP_7000(...) __VA_ARGS__
#define GROUP_11020(...) __VA_ARGS__
#define CHECK_PROGRAM(base, like, symbol, version, params, args)                                   \
    CHECK_ENTRY(version, base, symbol, version, params, args)
WEIR_PROGRAM_ENTRIES(CHECK_PROGRAM)

#ifdef HAVE_TYPEDEFS
#define CHECK_VERSION(group, base, symbol, version, params, args)                                  \
    GROUP_##group(_Static_assert(__builtin_types_compatible_p(PFN_##base##_v##version,             \
                                                              CUresult(CUDAAPI *) params),         \
                                 symbol ": the version");)
WEIR_DRIVER_ENTRIES(CHECK_VERSION)
#define CHECK_PROGRAM_VERSION(base, like, symbol, version, params, args)                           \
    GROUP_##version(_Static_assert(__builtin_types_compatible_p(PFN_##base##_v##version,           \
                                                                CUresult(CUDAAPI *) params),       \
                                   symbol ": the version");)
WEIR_PROGRAM_ENTRIES(CHECK_PROGRAM_VERSION)
#endif

/* main() compares pointers made from numbers, which no constant expression can hold. */
int main(void) {
    int same = CU_STREAM_LEGACY == (CUstream)WEIR_STREAM_LEGACY_VALUE &&
               CU_STREAM_PER_THREAD == (CUstream)WEIR_STREAM_PER_THREAD_VALUE;

    printf("1..1\n%s 1 - cuda_abi.h is what cuda.h of CUDA %d.%d says\n", same ? "ok" : "not ok",
           CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    return !same;
}
