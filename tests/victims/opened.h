/* SPDX-License-Identifier: MIT */
/* opened.h: functions for programs that open the driver's library and look up its calls by name.
 *
 * Only one file of a program may include it, since the opened library is a variable of that file. */
#ifndef VICTIM_OPENED_H
#define VICTIM_OPENED_H

#include "work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static void *library;
static struct cuda cuda;

/* ---- Calls ---- */

static inline void *find_by_symbol(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

/* Writes the function's address to a function pointer, or NULL if the driver does not have the function. */
static inline void find_call(void *pointer, const char *symbol) {
    void *address = dlsym(library, symbol);

    memcpy(pointer, &address, sizeof address);
}

/* The calls that only some programs make: X(symbol, (parameters)). */
/* clang-format off */
#define MORE_ENTRIES(X)                                                                            \
    X(cuCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device))                       \
    X(cuCtxDestroy_v2, (CUcontext context))                                                        \
    X(cuDevResourceGenerateDesc, (void **descriptor, void *resources, unsigned count))             \
    X(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))                           \
    X(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))                          \
    X(cuDeviceGetCount, (int *count))                                                              \
    X(cuDeviceGetDevResource, (CUdevice device, void *resource, unsigned type))                    \
    X(cuDeviceGetMemPool, (CUmemoryPool *pool, CUdevice device))                                   \
    X(cuDevicePrimaryCtxReset_v2, (CUdevice device))                                               \
    X(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool))                                    \
    X(cuDriverGetVersion, (int *version))                                                          \
    X(cuGraphAddMemAllocNode,                                                                      \
      (void *node, CUgraph graph, const void *before, size_t count, void *parameters))             \
    X(cuGraphAddNode,                                                                              \
      (void *node, CUgraph graph, const void *before, size_t count, void *parameters))             \
    X(cuGraphAddNode_v2,                                                                           \
      (void *node, CUgraph graph, const void *before, const void *edges, size_t count,             \
       void *parameters))                                                                          \
    X(cuGraphCreate, (CUgraph *graph, unsigned flags))                                             \
    X(cuGreenCtxCreate, (void **context, void *descriptor, CUdevice device, unsigned flags))       \
    X(cuGreenCtxDestroy, (void *context))                                                          \
    X(cuGreenCtxStreamCreate, (CUstream *stream, void *context, unsigned flags, int priority))     \
    X(cuIpcGetMemHandle, (void *handle, CUdeviceptr address))                                      \
    X(cuLaunchHostFunc, (CUstream stream, victim_host_function *function, void *argument))         \
    X(cuMemAddressReserve,                                                                         \
      (CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,                     \
       unsigned long long flags))                                                                  \
    X(cuMemAllocFromPoolAsync_ptsz,                                                                \
      (CUdeviceptr *block, size_t bytes, CUmemoryPool pool, CUstream stream))                      \
    X(cuMemAllocManaged, (CUdeviceptr *block, size_t bytes, unsigned flags))                       \
    X(cuMemAllocPitch_v2,                                                                          \
      (CUdeviceptr *block, size_t *pitch, size_t width, size_t height, unsigned element))          \
    X(cuMemCreate,                                                                                 \
      (CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,  \
       unsigned long long flags))                                                                  \
    X(cuMemGetDefaultMemPool,                                                                      \
      (CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type))                     \
    X(cuMemGetInfo_v2, (size_t *unused, size_t *total))                                            \
    X(cuMemGetMemPool, (CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type))    \
    X(cuMemMap,                                                                                    \
      (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,      \
       unsigned long long flags))                                                                  \
    X(cuMemPoolExportPointer, (void *data, CUdeviceptr address))                                   \
    X(cuMemPoolExportToShareableHandle,                                                            \
      (void *handle, CUmemoryPool pool, CUmemAllocationHandleType type,                            \
       unsigned long long flags))                                                                  \
    X(cuMemPoolGetAccess, (CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location))  \
    X(cuMemPoolImportFromShareableHandle,                                                          \
      (CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,                           \
       unsigned long long flags))                                                                  \
    X(cuMemPoolImportPointer, (CUdeviceptr *address, CUmemoryPool pool, void *data))               \
    X(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count))        \
    X(cuMemRelease, (CUmemGenericAllocationHandle handle))                                         \
    X(cuMemSetMemPool, (CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool))     \
    X(cuMemUnmap, (CUdeviceptr address, size_t bytes))                                             \
    X(cuPointerGetAttributes,                                                                      \
      (unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr address))       \
    X(cuStreamBeginCapture, (CUstream stream))                                                     \
    X(cuStreamBeginCapture_ptsz, (CUstream stream))                                                \
    X(cuStreamBeginCaptureToGraph,                                                                 \
      (CUstream stream, CUgraph graph, const void *nodes, const void *edges, size_t count,         \
       CUstreamCaptureMode mode))                                                                  \
    X(cuStreamBeginCaptureToGraph_ptsz,                                                            \
      (CUstream stream, CUgraph graph, const void *nodes, const void *edges, size_t count,         \
       CUstreamCaptureMode mode))                                                                  \
    X(cuStreamBeginRecaptureToGraph,                                                               \
      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *callback, void *argument))  \
    X(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status))                       \
    X(cuStreamQuery, (CUstream stream))
/* clang-format on */

/* A pointer is NULL if the program has not looked up the call, or the driver does not have it. */
static struct {
#define MORE_POINTER(symbol, params) CUresult(*symbol) params;
    MORE_ENTRIES(MORE_POINTER)
} more;

/* Looks up only the named calls: a program's look-ups are a sign of its later calls. */
static inline void find_more(int are_needed, const char *const *names) {
#define MORE_FIND(symbol, params)                                                                  \
    if (strcmp(*names, #symbol) == 0)                                                              \
        find_call(&more.symbol, #symbol);
    for (; *names; names++) {
        MORE_ENTRIES(MORE_FIND)
        HOLDS(!are_needed || dlsym(library, *names));
    }
}

/* NEED("cuMemCreate", "cuMemMap") looks up calls that the driver must have; FIND calls that it may have. */
#define NEED(...) find_more(1, (const char *const[]){__VA_ARGS__, NULL})
#define FIND(...) find_more(0, (const char *const[]){__VA_ARGS__, NULL})

static inline void open_cuda_library(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find_by_symbol, 0);
}

/* Opens the driver, and makes device 0's context current. */
static inline void start_driver(void) {
    open_cuda_library();
    victim_start(&cuda);
}

/* ---- Objects ---- */

/* Makes the primary context of a device current, and returns it. */
static inline CUcontext enter_context(CUdevice device) {
    CUcontext context;

    CU(cuda.cuDevicePrimaryCtxRetain(&context, device));
    CU(cuda.cuCtxSetCurrent(context));
    return context;
}

static inline CUstream new_stream(void) {
    CUstream stream;

    CU(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Returns the properties of a pool of device 0's memory. */
static inline CUmemPoolProps pool_properties(void) {
    return (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
}

static inline CUmemoryPool new_pool(const CUmemPoolProps *properties) {
    CUmemPoolProps usual = pool_properties();
    CUmemoryPool pool;

    CU(cuda.cuMemPoolCreate(&pool, properties ? properties : &usual));
    return pool;
}

/* Allocates a block and frees it at once.  If `pool` is NULL, uses the device's current pool. */
static inline CUdeviceptr alloc_and_free_in(CUmemoryPool pool, size_t bytes, CUstream stream) {
    CUdeviceptr block;

    CU(pool ? cuda.cuMemAllocFromPoolAsync(&block, bytes, pool, stream)
            : cuda.cuMemAllocAsync(&block, bytes, stream));
    CU(cuda.cuMemFreeAsync(block, stream));
    return block;
}

static inline int is_told(int argc, char **argv, const char *word) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], word) == 0)
            return 1;
    return 0;
}

#endif
