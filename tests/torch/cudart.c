/* SPDX-License-Identifier: MIT */
/* cudart.c: the part of CUDA's runtime that PyTorch calls, above the libcuda.so.1 of the device model.  Preloaded, it
 * stands before libcudart.so, so that PyTorch runs without a GPU.  Most functions forward to the driver.
 *
 * Kernels and copies between blocks do nothing, so that tensors have no contents.  cuBLAS, cuDNN and the like do not
 * start.  Memory of another process cannot be opened.  An event of kernels alone is complete at once.
 *
 * Captures are counted here, since the model has no ids of captures.  An event that a capturing stream records belongs
 * to the capture, and a stream that waits for such an event joins it.  Lock: one, for the table of captures; no call of
 * the driver is made under it.
 *
 * Must not know: weir, PyTorch. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>

/* Many functions need less than CUDA passes, and attributes have the driver's numbers. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wenum-conversion"

#define ADDRESS(pointer) ((CUdeviceptr)(pointer))
#define MAX_DEVICES 64
#define MAX_GRID 2147483647

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int device_count; /* set once */
static CUcontext contexts[MAX_DEVICES];
static _Thread_local int current_device;
static _Thread_local cudaError_t last_error; /* cudaGetLastError returns and clears it */

/* ---- Errors ---- */

/* Turns a result of the driver into the runtime's error of that number.  Not ready is no error. */
static cudaError_t runtime_result(CUresult result) {
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        last_error = (cudaError_t)result;
    return (cudaError_t)result;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error) {
    const char *name = NULL;

    return cuGetErrorName((CUresult)error, &name) == CUDA_SUCCESS ? name : "unrecognized error";
}

const char *cudaGetErrorString(cudaError_t error) {
    return cudaGetErrorName(error);
}

cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

/* ---- Devices and contexts ---- */

static void count_devices(void) {
    int count = 0;

    if (cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&count) == CUDA_SUCCESS)
        device_count = count < MAX_DEVICES ? count : MAX_DEVICES;
}

/* Makes the device's primary context current.  The context is retained until the process ends. */
static CUresult enter(int device) {
    CUresult result = CUDA_SUCCESS;

    (void)pthread_once(&once, count_devices);
    if (device < 0 || device >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!contexts[device])
        result = cuDevicePrimaryCtxRetain(&contexts[device], device);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(contexts[device]) : result;
}

/* Gives a thread its device's context in the first call that needs a context. */
static CUresult entered(void) {
    CUcontext context = NULL;

    (void)pthread_once(&once, count_devices);
    if (cuCtxGetCurrent(&context) == CUDA_SUCCESS && context)
        return CUDA_SUCCESS;
    return enter(current_device);
}

cudaError_t cudaGetDeviceCount(int *count) {
    (void)pthread_once(&once, count_devices);
    *count = device_count;
    return device_count > 0 ? cudaSuccess : runtime_result(CUDA_ERROR_NO_DEVICE);
}

cudaError_t cudaSetDevice(int device) {
    CUresult result = enter(device);

    if (result == CUDA_SUCCESS)
        current_device = device;
    return runtime_result(result);
}

/* Returns 0 for an unknown attribute, but callers divide by the size of grids. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    (void)pthread_once(&once, count_devices);
    if (attribute != cudaDevAttrMaxGridDimX)
        return runtime_result(cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
    *value = MAX_GRID;
    return cudaSuccess;
}

/* Sets the limits of a device of compute capability 9.0, because callers check their launches against them. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    size_t bytes = 0;
    CUresult result;

    /* clang-format off */
    *properties = (struct cudaDeviceProp){
        .major = 9, .minor = 0, .multiProcessorCount = 132, .warpSize = 32,
        .maxThreadsPerMultiProcessor = 2048, .maxThreadsPerBlock = 1024,
        .sharedMemPerBlock = 48 << 10, .sharedMemPerBlockOptin = 227 << 10, .sharedMemPerMultiprocessor = 228 << 10,
        .regsPerMultiprocessor = 65536, .regsPerBlock = 65536, .l2CacheSize = 50 << 20,
        .maxGridSize = {MAX_GRID, 65535, 65535}, .maxThreadsDim = {1024, 1024, 64}, .textureAlignment = 512};
    /* clang-format on */
    (void)pthread_once(&once, count_devices);
    result = cuDeviceGetName(properties->name, sizeof properties->name, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceTotalMem(&bytes, device);
    properties->totalGlobalMem = bytes;
    return runtime_result(result);
}

/* ---- Calls that only forward to the driver, in a context ---- */

/* clang-format off */
#define FORWARD(name, params, call)                                                                \
    cudaError_t name params { CUresult error = entered(); return runtime_result(error ? error : call); }
/* Defines a function of one to three parameters, whose types follow, that passes them on to `entry` of the driver. */
#define FORWARD1(name, entry, A) FORWARD(name, (A a), entry(a))
#define FORWARD2(name, entry, A, B) FORWARD(name, (A a, B b), entry(a, b))
#define FORWARD3(name, entry, A, B, C) FORWARD(name, (A a, B b, C c), entry(a, b, c))
FORWARD2(cudaMemGetInfo, cuMemGetInfo, size_t *, size_t *)
FORWARD1(cudaFreeHost, cuMemFreeHost, void *)
FORWARD2(cudaDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, cudaMemPool_t *, int)
FORWARD3(cudaMemPoolGetAttribute, cuMemPoolGetAttribute, cudaMemPool_t, enum cudaMemPoolAttr, void *)
FORWARD3(cudaMemPoolSetAttribute, cuMemPoolSetAttribute, cudaMemPool_t, enum cudaMemPoolAttr, void *)
FORWARD2(cudaMemPoolTrimTo, cuMemPoolTrimTo, cudaMemPool_t, size_t)
FORWARD1(cudaStreamDestroy, cuStreamDestroy, cudaStream_t)
FORWARD1(cudaStreamQuery, cuStreamQuery, cudaStream_t)
FORWARD1(cudaStreamSynchronize, cuStreamSynchronize, cudaStream_t)
FORWARD2(cudaStreamEndCapture, cuStreamEndCapture, cudaStream_t, cudaGraph_t *)
FORWARD3(cudaLaunchHostFunc, cuLaunchHostFunc, cudaStream_t, cudaHostFn_t, void *)
FORWARD1(cudaEventDestroy, cuEventDestroy, cudaEvent_t)
FORWARD1(cudaEventQuery, cuEventQuery, cudaEvent_t)
FORWARD1(cudaEventSynchronize, cuEventSynchronize, cudaEvent_t)
FORWARD3(cudaEventElapsedTime, cuEventElapsedTime, float *, cudaEvent_t, cudaEvent_t)
FORWARD2(cudaGraphLaunch, cuGraphLaunch, cudaGraphExec_t, cudaStream_t)
FORWARD1(cudaGraphDestroy, cuGraphDestroy, cudaGraph_t)
FORWARD1(cudaGraphExecDestroy, cuGraphExecDestroy, cudaGraphExec_t)

FORWARD(cudaDeviceSynchronize, (void), cuCtxSynchronize())
FORWARD(cudaMalloc, (void **block, size_t bytes), cuMemAlloc((CUdeviceptr *)block, bytes))
FORWARD(cudaFree, (void *block), block ? cuMemFree(ADDRESS(block)) : CUDA_SUCCESS)
FORWARD(cudaMallocAsync, (void **block, size_t bytes, cudaStream_t stream),
        cuMemAllocAsync((CUdeviceptr *)block, bytes, stream))
FORWARD(cudaFreeAsync, (void *block, cudaStream_t stream), cuMemFreeAsync(ADDRESS(block), stream))
FORWARD(cudaHostAlloc, (void **block, size_t bytes, unsigned flags), cuMemAllocHost(block, bytes))
FORWARD(cudaMemPoolSetAccess, (cudaMemPool_t pool, const struct cudaMemAccessDesc *access, size_t count),
        cuMemPoolSetAccess(pool, (const CUmemAccessDesc *)access, count))
FORWARD(cudaMemset, (void *block, int value, size_t bytes), cuMemsetD8(ADDRESS(block), (unsigned char)value, bytes))
FORWARD(cudaMemsetAsync, (void *block, int value, size_t bytes, cudaStream_t stream),
        cuMemsetD8Async(ADDRESS(block), (unsigned char)value, bytes, stream))
FORWARD(cudaMemcpyAsync, (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream),
        kind == cudaMemcpyHostToDevice ? cuMemcpyHtoDAsync(ADDRESS(to), from, bytes, stream)
        : kind == cudaMemcpyDeviceToHost ? cuMemcpyDtoHAsync(to, ADDRESS(from), bytes, stream) : CUDA_SUCCESS)
FORWARD(cudaIpcGetMemHandle, (cudaIpcMemHandle_t *handle, void *block),
        cuIpcGetMemHandle((CUipcMemHandle *)handle, ADDRESS(block)))
FORWARD(cudaIpcOpenMemHandle, (void **block, cudaIpcMemHandle_t handle, unsigned flags), CUDA_ERROR_NOT_SUPPORTED)
FORWARD(cudaIpcOpenEventHandle, (cudaEvent_t *event, cudaIpcEventHandle_t handle),
        cuEventCreate(event, cudaEventDisableTiming))
FORWARD(cudaStreamCreate, (cudaStream_t *stream), cuStreamCreate(stream, 0))
FORWARD(cudaStreamCreateWithPriority, (cudaStream_t *stream, unsigned flags, int priority),
        cuStreamCreate(stream, flags))
FORWARD(cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus *status),
        cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status))
FORWARD(cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode *mode),
        cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode))
FORWARD(cudaEventCreate, (cudaEvent_t *event), cuEventCreate(event, 0))
FORWARD(cudaEventCreateWithFlags, (cudaEvent_t *event, unsigned flags),
        cuEventCreate(event, flags & ~(unsigned)cudaEventInterprocess))
/* Drops the flag for priorities of nodes, which the model does not have. */
FORWARD(cudaGraphInstantiateWithFlags, (cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags),
        cuGraphInstantiateWithFlags(exec, graph, flags & cudaGraphInstantiateFlagAutoFreeOnLaunch))

/* ---- Functions that do nothing, or return a constant ---- */

#define CONSTANT(name, params, answer) cudaError_t name params { answer; return cudaSuccess; }
#define NOTHING(name, params) CONSTANT(name, params, (void)0)

CONSTANT(cudaRuntimeGetVersion, (int *version), *version = CUDART_VERSION)
CONSTANT(cudaDriverGetVersion, (int *version), (void)cuDriverGetVersion(version))
CONSTANT(cudaGetDevice, (int *device), *device = current_device)
CONSTANT(cudaDeviceGetPCIBusId, (char *text, int bytes, int device),
         (void)snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned)device + 1))
CONSTANT(cudaDeviceCanAccessPeer, (int *can, int device, int peer), *can = 0)
CONSTANT(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), (*least = 0, *greatest = -5))
CONSTANT(cudaStreamGetPriority, (cudaStream_t stream, int *priority), *priority = 0)
CONSTANT(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count), *count = 1)
CONSTANT(cudaGetSymbolAddress, (void **address, const void *symbol), *address = NULL)
NOTHING(cudaIpcGetEventHandle, (cudaIpcEventHandle_t *handle, cudaEvent_t event))
CONSTANT(cudaFuncGetAttributes, (struct cudaFuncAttributes *attributes, const void *function),
         (*attributes = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .numRegs = 32, .binaryVersion = 90,
                                                    .ptxVersion = 90}))
CONSTANT(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
         (int *blocks, const void *function, int threads, size_t shared, unsigned flags), *blocks = 8)
/* Runs the callback at once, because it may make calls that a host function may not make. */
CONSTANT(cudaStreamAddCallback, (cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags),
         function(stream, cudaSuccess, data))
NOTHING(cudaDeviceEnablePeerAccess, (int peer, unsigned flags))
NOTHING(cudaFuncSetAttribute, (const void *function, enum cudaFuncAttribute attribute, int value))
NOTHING(cudaGraphDebugDotPrint, (cudaGraph_t graph, const char *path, unsigned flags))
NOTHING(cudaHostRegister, (void *memory, size_t bytes, unsigned flags))
NOTHING(cudaHostUnregister, (void *memory))
NOTHING(cudaLaunchKernel, (const void *function, dim3 grid, dim3 block, void **args, size_t bytes, cudaStream_t stream))
NOTHING(cudaLaunchKernelExC, (const cudaLaunchConfig_t *config, const void *function, void **args))
NOTHING(cudaMemcpyPeerAsync, (void *to, int peer, const void *from, int device, size_t bytes, cudaStream_t stream))
NOTHING(cudaMemcpyToSymbol, (const void *to, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind))
NOTHING(cudaProfilerStart, (void))
NOTHING(cudaProfilerStop, (void))
/* clang-format on */

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, NULL);

    return error == cudaSuccess ? cudaStreamSynchronize(NULL) : error;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory) {
    CUdeviceptr address = ADDRESS(memory);
    unsigned type = cudaMemoryTypeUnregistered;

    (void)cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    *attributes = (struct cudaPointerAttributes){type, .devicePointer = (void *)memory};
    (void)cuPointerGetAttribute(&attributes->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    CUresult result = cuGetProcAddress(symbol, function, (int)version, 0, NULL);
    int there = result == CUDA_SUCCESS && *function;

    if (found)
        *found = there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return there ? cudaSuccess : cudaErrorInvalidSymbol;
}

/* ---- Captures ---- */

/* Each row holds the last capture of a stream or an event.  A stream's row counts only during a capture. */
#define MAX_MEMBERS 1024
#define ASK (~0ULL)
static struct member {
    const void *object;
    unsigned long long id; /* 0 if the object is in no capture */
} members[MAX_MEMBERS];
static size_t member_count; /* rows written so far; new rows replace the oldest */
static pthread_mutex_t members_lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the capture of the object.  Sets it to `id` first, unless `id` is ASK. */
static unsigned long long capture_of(const void *object, unsigned long long id) {
    size_t row = 0;

    (void)pthread_mutex_lock(&members_lock);
    while (row < MAX_MEMBERS && (members[row].object != object || members[row].id == 0))
        row++;
    if (row == MAX_MEMBERS && id > 0 && id != ASK)
        row = member_count++ % MAX_MEMBERS;
    id = id != ASK ? id : row < MAX_MEMBERS ? members[row].id : 0;
    if (row < MAX_MEMBERS)
        members[row] = (struct member){object, id};
    (void)pthread_mutex_unlock(&members_lock);
    return id;
}

static CUresult begin_runtime_capture(cudaStream_t stream, CUstreamCaptureMode mode) {
    static _Atomic unsigned long long begun;
    CUresult result = cuStreamBeginCapture(stream, mode);

    if (result == CUDA_SUCCESS)
        (void)capture_of(stream, ++begun);
    return result;
}

static CUresult record_event(cudaEvent_t event, cudaStream_t stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cuEventRecord(event, stream);

    (void)cuStreamIsCapturing(stream, &status);
    if (result == CUDA_SUCCESS)
        (void)capture_of(event, status ? capture_of(stream, ASK) : 0);
    return result;
}

static CUresult wait_event(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    unsigned long long id = capture_of(event, ASK);
    CUresult result = cuStreamWaitEvent(stream, event, flags);

    if (result == CUDA_SUCCESS && id > 0)
        (void)capture_of(stream, id);
    return result;
}

static CUresult capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                             unsigned long long *id, cudaGraph_t *graph, size_t *count) {
    if (id)
        *id = capture_of(stream, ASK);
    if (graph)
        *graph = NULL;
    if (count)
        *count = 0;
    return cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status);
}

#if CUDART_VERSION >= 13000
#define EDGES const cudaGraphEdgeData **edges,
#else
#define EDGES
#endif
/* clang-format off */
FORWARD(cudaStreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode),
        begin_runtime_capture(stream, (CUstreamCaptureMode)mode))
FORWARD2(cudaEventRecord, record_event, cudaEvent_t, cudaStream_t)
FORWARD(cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned flags), record_event(event, stream))
FORWARD3(cudaStreamWaitEvent, wait_event, cudaStream_t, cudaEvent_t, unsigned)
FORWARD(cudaStreamGetCaptureInfo,
        (cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
         const cudaGraphNode_t **nodes, EDGES size_t *count), capture_info(stream, status, id, graph, count))
/* clang-format on */
