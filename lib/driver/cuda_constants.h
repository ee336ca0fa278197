/* SPDX-License-Identifier: MIT */
/* cuda_constants.h: constants of the CUDA driver API, which tests/driver/abi_check.c compares with <cuda.h>. */
#ifndef WEIR_CUDA_CONSTANTS_H
#define WEIR_CUDA_CONSTANTS_H

/* The constants: X(name, value).  The comment behind a pool attribute gives the C type of its value. */
#define WEIR_CUDA_CONSTANTS(X)                                                                     \
    X(CUDA_SUCCESS, 0)                                                                             \
    X(CUDA_ERROR_INVALID_VALUE, 1)                                                                 \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                 \
    X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                               \
    X(CUDA_ERROR_DEINITIALIZED, 4)                                                                 \
    X(CUDA_ERROR_STUB_LIBRARY, 34)                                                                 \
    X(CUDA_ERROR_NO_DEVICE, 100)                                                                   \
    X(CUDA_ERROR_INVALID_DEVICE, 101)                                                              \
    X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                             \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)                                                           \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304)                                                            \
    X(CUDA_ERROR_INVALID_HANDLE, 400)                                                              \
    X(CUDA_ERROR_ILLEGAL_STATE, 401)                                                               \
    X(CUDA_ERROR_NOT_FOUND, 500)                                                                   \
    X(CUDA_ERROR_NOT_READY, 600)                                                                   \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                             \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                                                        \
    X(CUDA_ERROR_LAUNCH_FAILED, 719)                                                               \
    X(CUDA_ERROR_NOT_PERMITTED, 800)                                                               \
    X(CUDA_ERROR_NOT_SUPPORTED, 801)                                                               \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                                                  \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)                                                  \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902)                                                        \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903)                                                    \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904)                                                     \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905)                                                    \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)                                                     \
    X(CUDA_ERROR_CAPTURED_EVENT, 907)                                                              \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908)                                                 \
    X(CUDA_ERROR_UNKNOWN, 999)                                                                     \
    X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)                                \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103)                        \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110)                            \
    X(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 115)                                             \
    X(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 119) /* since CUDA 11.3 */               \
    X(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1)      /* int */                           \
    X(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 2)            /* int */                           \
    X(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 3)    /* int */                           \
    X(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 4)                    /* uint64_t */                      \
    X(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 5)                 /* uint64_t, since CUDA 11.3 */     \
    X(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 6)                    /* uint64_t, since CUDA 11.3 */     \
    X(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 7)                     /* uint64_t, since CUDA 11.3 */     \
    X(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 8)                        /* uint64_t, since CUDA 11.3 */     \
    X(CU_MEMPOOL_ATTR_ALLOCATION_TYPE, 9)                      /* unsigned int, since CUDA 13.2 */ \
    X(CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES, 10)                 /* unsigned int, since CUDA 13.2 */ \
    X(CU_MEMPOOL_ATTR_LOCATION_ID, 11)                         /* int, since CUDA 13.2 */          \
    X(CU_MEMPOOL_ATTR_LOCATION_TYPE, 12)                       /* unsigned int, since CUDA 13.2 */ \
    X(CU_MEMPOOL_ATTR_MAX_POOL_SIZE, 13)                       /* uint64_t, since CUDA 13.2 */     \
    X(CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED, 14)               /* int, since CUDA 13.2 */          \
    X(CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID, 15)                  /* int, since CUDA 13.4 */          \
    X(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, 0)                                                       \
    X(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, 2)                                                   \
    X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                                            \
    X(CU_MEM_ALLOCATION_TYPE_MANAGED, 2) /* only for pools; since CUDA 13.0 */                     \
    X(CU_MEM_HANDLE_TYPE_NONE, 0)                                                                  \
    X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)                                                 \
    X(CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS, 2) /* since CUDA 12.8 */                             \
    X(CU_MEM_CREATE_USAGE_HW_DECOMPRESS, 2)      /* since CUDA 12.8 */                             \
    X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                                              \
    X(CU_MEM_LOCATION_TYPE_HOST, 2)                   /* since CUDA 12.2 */                        \
    X(CU_MEM_LOCATION_TYPE_HOST_NUMA, 3)              /* since CUDA 12.2 */                        \
    X(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 4)      /* since CUDA 12.2 */                        \
    X(CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, 6) /* since 13.4; id: device + 256 * domain */  \
    X(CU_MEM_ACCESS_FLAGS_PROT_NONE, 0)                                                            \
    X(CU_MEM_ACCESS_FLAGS_PROT_READ, 1)                                                            \
    X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                                                       \
    X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                                                         \
    X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1)                                                     \
    X(CU_STREAM_DEFAULT, 0)                                                                        \
    X(CU_STREAM_NON_BLOCKING, 1)                                                                   \
    X(CU_EVENT_DEFAULT, 0)                                                                         \
    X(CU_EVENT_DISABLE_TIMING, 2)                                                                  \
    X(CU_STREAM_CAPTURE_STATUS_NONE, 0)                                                            \
    X(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1)                                                          \
    X(CU_STREAM_CAPTURE_STATUS_INVALIDATED, 2)                                                     \
    X(CU_STREAM_CAPTURE_MODE_GLOBAL, 0)                                                            \
    X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1)                                                      \
    X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                                           \
    X(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, 1) /* since CUDA 11.4 */                    \
    X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 17)

#ifndef WEIR_CUDA_ABI_CHECK
enum {
#define WEIR_CUDA_CONSTANT(name, value) name = (value),
    WEIR_CUDA_CONSTANTS(WEIR_CUDA_CONSTANT)
#undef WEIR_CUDA_CONSTANT
};
#endif

#endif
