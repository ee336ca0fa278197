/* SPDX-License-Identifier: MIT */
/* weir/cuda.h: functions with the signatures of cudaMallocAsync and cudaFreeAsync, served by weir.
 *
 * A program that allocates in stream order changes the names and links with -lweir:
 *     weirMallocAsync(&block, bytes, stream)                for    cudaMallocAsync
 *     weirMallocFromPoolAsync(&block, bytes, pool, stream)  for    cudaMallocFromPoolAsync
 *     weirFreeAsync(block, stream)                          for    cudaFreeAsync
 * Or it changes nothing and is compiled with
 *     nvcc -DWEIR_OVERRIDE -include weir/cuda.h prog.cu -lweir
 * (or with WEIR_OVERRIDE defined before this header is included, after CUDA's).  CUDA's names then mean these
 * functions, and cudaFree takes such blocks too.  Code that was compiled without this, such as a library, keeps
 * CUDA's own functions.  The program can free the library's blocks, but the library cannot free blocks of weir.
 *
 * Blocks come from the process's allocator of the stream's device (weir_stream_allocator).  WEIR_ variables set it
 * up; with none it is engine mapped if the device can map memory.  The other calls of weir/allocator.h (weir_use,
 * weir_stats, weir_trim) work on the same allocator.  If the process sees one device, finding the allocator is a
 * load.  If it sees several, weir asks the driver for the stream's context at each request, which takes some tens of
 * ns; a free looks for the block without a driver call.  A program that knows its device avoids that: it calls
 * weir_device_allocator once, then weir_alloc and weir_free.
 *
 * This header needs the headers of the CUDA toolkit, 11.2 or later; the library does not.  Nothing here calls the
 * CUDA runtime, except for blocks that are not weir's with WEIR_OVERRIDE.  weir/weir.h does not include this header. */
#ifndef WEIR_CUDA_H
#define WEIR_CUDA_H

#include <stddef.h>

#if defined(WEIR_OVERRIDE) && defined(__cplusplus)
#include <cuda_runtime.h> /* defines its templates before the names change */
#else
#include <cuda_runtime_api.h>
#endif

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the stream that this source file means by `stream`.  In a file that is compiled for per-thread default
 * streams (nvcc --default-stream per-thread, or CUDA_API_PER_THREAD_DEFAULT_STREAM defined before CUDA's headers)
 * stream 0 becomes the calling thread's default stream, cudaStreamPerThread.  All other streams, and stream 0 in other
 * files, are returned unchanged.  In such a file, pass streams through this function to weir_alloc, weir_free and
 * weir_use, too.  Thread-safe, never blocks.  Since 0.1. */
static inline weir_stream weir_stream_from_cuda(cudaStream_t stream) {
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) ||                                                 \
    defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM) ||                                               \
    defined(__CUDART_API_PER_THREAD_DEFAULT_STREAM)
    return stream ? stream : cudaStreamPerThread;
#else
    return stream;
#endif
}

/* Returns the CUDA runtime's error for a status that a weir call has just returned to this thread:
 *     OK                  cudaSuccess
 *     E_INVALID           cudaErrorInvalidValue
 *     E_NOT_OWNED         cudaErrorInvalidValue
 *     E_PARSE             cudaErrorInvalidValue
 *     E_NO_MEMORY         cudaErrorMemoryAllocation
 *     E_LIMIT             cudaErrorMemoryAllocation
 *     E_HOST_MEMORY       cudaErrorMemoryAllocation
 *     E_NO_DEVICE         cudaErrorNoDevice
 *     E_STREAM            cudaErrorInvalidResourceHandle
 *     E_CAPTURE           cudaErrorStreamCaptureUnsupported
 *     E_FORKED            cudaErrorInitializationError, as the runtime itself returns after a fork
 *     E_NOT_SUPPORTED     cudaErrorNotSupported
 *     E_FILE              cudaErrorOperatingSystem
 *     E_BUSY              cudaErrorNotReady
 *     E_DRIVER            the driver's result, with the same number in the runtime;
 *                         cudaErrorUnknown if there is none
 *     E_DEVICE_LOST       the driver's result, too; cudaErrorContextIsDestroyed if there is none
 *     any other number    cudaErrorUnknown
 * The driver's result is weir_last_driver_result, so no other weir call may come between.  Thread-safe, never blocks.
 * Since 0.1. */
static inline cudaError_t weir_status_to_cuda(weir_status status) {
    int result;

    switch ((int)status) {
    case WEIR_OK:
        return cudaSuccess;
    case WEIR_E_INVALID:
    case WEIR_E_NOT_OWNED:
    case WEIR_E_PARSE:
        return cudaErrorInvalidValue;
    case WEIR_E_NO_MEMORY:
    case WEIR_E_LIMIT:
    case WEIR_E_HOST_MEMORY:
        return cudaErrorMemoryAllocation;
    case WEIR_E_NO_DEVICE:
        return cudaErrorNoDevice;
    case WEIR_E_STREAM:
        return cudaErrorInvalidResourceHandle;
    case WEIR_E_CAPTURE:
        return cudaErrorStreamCaptureUnsupported;
    case WEIR_E_FORKED:
        return cudaErrorInitializationError;
    case WEIR_E_NOT_SUPPORTED:
        return cudaErrorNotSupported;
    case WEIR_E_FILE:
        return cudaErrorOperatingSystem;
    case WEIR_E_BUSY:
        return cudaErrorNotReady;
    case WEIR_E_DRIVER:
        result = weir_last_driver_result();
        return result ? (cudaError_t)result : cudaErrorUnknown;
    case WEIR_E_DEVICE_LOST:
        result = weir_last_driver_result();
        return result ? (cudaError_t)result : cudaErrorContextIsDestroyed;
    default:
        return cudaErrorUnknown;
    }
}

/* Allocates a block of device memory for use on `stream`, as cudaMallocAsync does.
 *
 *   block     receives the block's device address, only on success; NULL:
 *             cudaErrorInvalidValue
 *   bytes     its size; 0 gives NULL and cudaSuccess
 *   stream    the stream that may use it at once; 0 as in weir_stream_from_cuda
 *
 * A default stream belongs to the current context.  A program of CUDA 11 makes it current by its first call of the
 * runtime that needs a context, such as cudaFree(0); from 12 on cudaSetDevice alone does.
 *
 * The block belongs to the caller until weirFreeAsync or weir_free.  The caller may also never free it: the
 * allocator is not destroyed at exit.  Work submitted to `stream` from now on may use it.  Other streams may use it
 * once they are ordered behind this call (an event recorded on `stream`, or a synchronisation).  Contents are
 * undefined; aligned to at least 256 bytes.  Thread-safe.  A cache hit does not block.  The process's first call
 * starts the driver and preallocates, if settings say so, and a pool growth takes as long as the driver needs.  The
 * call does not synchronise, but if memory is short it waits for frees to complete.
 *
 * Returns what weir_status_to_cuda says for weir_stream_allocator and weir_alloc; cudaGetLastError reports no
 * failure of this call.  Under stream capture: see weir_alloc.  Since 0.1. */
static inline cudaError_t weirMallocAsync(void **block, size_t bytes, cudaStream_t stream) {
    weir_stream on = weir_stream_from_cuda(stream);
    weir_allocator *allocator;
    weir_status status = weir_stream_allocator(on, &allocator);

    if (status == WEIR_OK)
        status = weir_alloc(allocator, bytes, on, block);
    return weir_status_to_cuda(status);
}

/* Allocates a block as weirMallocAsync does, with the signature of cudaMallocFromPoolAsync.  The block comes from the
 * process's allocator of the stream's device, whatever the pool is.  `pool` must not be NULL (cudaErrorInvalidValue);
 * weir neither queries nor uses it.  The properties of the pool do not apply to the block: release threshold, maximum
 * size, access by other devices, export to other processes, a location other than the stream's device.  Since 0.1. */
static inline cudaError_t weirMallocFromPoolAsync(void **block, size_t bytes, cudaMemPool_t pool,
                                                  cudaStream_t stream) {
    return pool ? weirMallocAsync(block, bytes, stream) : weir_status_to_cuda(WEIR_E_INVALID);
}

/* Frees as weirFreeAsync does, and returns the status.  Programs do not call it. */
static inline weir_status weir_cuda_give_back(void *block, cudaStream_t stream) {
    weir_stream on = weir_stream_from_cuda(stream);
    weir_allocator *allocator;
    weir_status status = weir_block_allocator(block, &allocator);

    if (status != WEIR_OK) /* memory of a graph, or weir cannot tell, or no allocator has it */
        status = weir_stream_allocator(on, &allocator);
    return status == WEIR_OK ? weir_free(allocator, block, on) : status;
}

/* Frees a block of weirMallocAsync in the order of `stream`, as cudaFreeAsync does.
 *
 *   block     the block, which is no longer the caller's; NULL does nothing and is cudaSuccess
 *   stream    a stream that is ordered after every use of the block, except uses on streams declared
 *             with weir_use; any stream, not only the one of the allocation; 0 as in
 *             weir_stream_from_cuda
 *
 * The caller may free a block while work that uses it still runs on `stream`.  weir reuses the memory there at once,
 * in order, and elsewhere only behind an ordering that it establishes.  Do not pass memory from cudaMallocAsync or
 * cudaMalloc:  engines mapped, bfc and direct return an error, but the pool engine cannot tell and frees it.
 * Thread-safe.  Neither blocks nor synchronises, except with engine direct, which waits for the device.
 *
 * Returns what weir_status_to_cuda says for weir_stream_allocator and weir_free; cudaGetLastError reports no failure
 * of this call.  Since 0.1. */
static inline cudaError_t weirFreeAsync(void *block, cudaStream_t stream) {
    return block ? weir_status_to_cuda(weir_cuda_give_back(block, stream)) : cudaSuccess;
}

#ifdef WEIR_OVERRIDE
/* Stand for cudaFreeAsync and cudaFree with WEIR_OVERRIDE: free blocks of weir, and let CUDA free all other memory.
 * The pool engine with options.cache off cannot tell them apart, and frees both.  The function for cudaFree waits for
 * the device in both cases. */
static inline cudaError_t weirFreeAsyncOrCuda(void *block, cudaStream_t stream) {
    weir_status status = block ? weir_cuda_give_back(block, stream) : WEIR_OK;

    return status == WEIR_E_NOT_OWNED ? cudaFreeAsync(block, stream) : weir_status_to_cuda(status);
}

static inline cudaError_t weirFreeOrCuda(void *block) {
    weir_allocator *allocator;

    if (!block || weir_block_allocator(block, &allocator) != WEIR_OK ||
        weir_block_range(allocator, block, NULL, NULL) != WEIR_OK)
        return cudaFree(block);
    return weir_status_to_cuda(weir_free_any(allocator, block));
}
#endif

#ifdef __cplusplus
}

/* Take typed pointers, as the templates of cuda_runtime.h do: weirMallocAsync(&floats, ...). */
template <class T>
static inline cudaError_t weirMallocAsync(T **block, size_t bytes, cudaStream_t stream) {
    void *untyped = 0;
    cudaError_t error = weirMallocAsync(block ? &untyped : (void **)0, bytes, stream);

    if (error == cudaSuccess)
        *block = static_cast<T *>(untyped);
    return error;
}

template <class T>
static inline cudaError_t weirMallocFromPoolAsync(T **block, size_t bytes, cudaMemPool_t pool,
                                                  cudaStream_t stream) {
    return pool ? weirMallocAsync(block, bytes, stream) : weir_status_to_cuda(WEIR_E_INVALID);
}

/* Overloads weirMallocAsync with a pool, as cuda_runtime.h does for cudaMallocAsync. */
template <class T>
static inline cudaError_t weirMallocAsync(T **block, size_t bytes, cudaMemPool_t pool,
                                          cudaStream_t stream) {
    return weirMallocFromPoolAsync(block, bytes, pool, stream);
}
#endif

#ifdef WEIR_OVERRIDE
/* CUDA's headers may define these names as macros. */
#undef cudaMallocAsync
#undef cudaMallocFromPoolAsync
#undef cudaFreeAsync
#undef cudaFree
#define cudaMallocAsync weirMallocAsync
#define cudaMallocFromPoolAsync weirMallocFromPoolAsync
#define cudaFreeAsync weirFreeAsyncOrCuda
#define cudaFree weirFreeOrCuda
#endif

#endif
