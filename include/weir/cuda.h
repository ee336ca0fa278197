/* SPDX-License-Identifier: MIT */
/* weir/cuda.h: functions with the signatures of cudaMallocAsync and cudaFreeAsync, implemented by weir.
 *
 * A program that allocates in stream order changes the names of its calls, and links with -lweir:
 *     weirMallocAsync(&block, bytes, stream)                for    cudaMallocAsync
 *     weirMallocFromPoolAsync(&block, bytes, pool, stream)  for    cudaMallocFromPoolAsync
 *     weirFreeAsync(block, stream)                          for    cudaFreeAsync
 * Or the program stays unchanged and is compiled with
 *     nvcc -DWEIR_OVERRIDE -include weir/cuda.h prog.cu -lweir
 * or with WEIR_OVERRIDE defined before this header is included, after CUDA's headers.  CUDA's names then mean these
 * functions, and cudaFree also frees blocks of weir.  Code that was compiled without WEIR_OVERRIDE, such as a library,
 * uses CUDA's own functions.  The program can free blocks of such a library, but the library cannot free blocks of
 * weir.
 *
 * Blocks come from the process's allocator of the stream's device (weir_stream_allocator).  The WEIR_ variables of the
 * environment configure this allocator.  If no variable is set, its engine is mapped on a device that can map memory.
 * The functions of weir/allocator.h (weir_use, weir_stats, weir_trim) work on this allocator, too.  If the process sees
 * one device, weir finds the allocator by one load.  If the process sees several devices, weir queries the stream's
 * context at each request, which takes some tens of ns.  A free finds the block without a driver call.  A program that
 * knows its device avoids the query: it calls weir_device_allocator once, and then weir_alloc and weir_free.
 *
 * This header needs the headers of the CUDA toolkit, 11.2 or later; the library itself does not.  The functions do not
 * call the CUDA runtime.  The exception is WEIR_OVERRIDE, with which the CUDA runtime frees blocks that are not weir's.
 * weir/weir.h does not include this header. */
#ifndef WEIR_CUDA_H
#define WEIR_CUDA_H

#include <stddef.h>

#if defined(WEIR_OVERRIDE) && defined(__cplusplus)
#include <cuda_runtime.h> /* read first, so that its templates keep CUDA's names */
#else
#include <cuda_runtime_api.h>
#endif

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the stream that `stream` means in this source file.  A file may be compiled for per-thread default streams
 * (nvcc --default-stream per-thread, or CUDA_API_PER_THREAD_DEFAULT_STREAM defined before CUDA's headers).  In such a
 * file, the function returns cudaStreamPerThread, the calling thread's default stream, for stream 0.  It returns all
 * other streams, and stream 0 in other files, unchanged.  In such a file, call this function for streams that you pass
 * to weir_alloc, weir_free and weir_use, too.  Thread-safe, never blocks.  Since 0.1. */
static inline weir_stream weir_stream_from_cuda(cudaStream_t stream) {
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) ||                                                 \
    defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM) ||                                               \
    defined(__CUDART_API_PER_THREAD_DEFAULT_STREAM)
    return stream ? stream : cudaStreamPerThread;
#else
    return stream;
#endif
}

/* Converts a status to an error of the CUDA runtime.  A call of weir on this thread must have just returned the status:
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
 *     E_DRIVER            the driver's result, which has an equal number in the runtime;
 *                         cudaErrorUnknown if there is no result
 *     E_DEVICE_LOST       the driver's result; cudaErrorContextIsDestroyed if there is no result
 *     any other number    cudaErrorUnknown
 * The driver's result comes from weir_last_driver_result, so do not call another function of weir in between.
 * Thread-safe, never blocks.  Since 0.1. */
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
 *   block     receives the block's device address, only on success; if `block` is NULL, the call
 *             returns cudaErrorInvalidValue
 *   bytes     the size of the block; for 0 bytes the address is NULL and the result cudaSuccess
 *   stream    the stream on which work may use the block at once; for stream 0 see
 *             weir_stream_from_cuda
 *
 * A default stream belongs to the current context.  In a program of CUDA 11, the first call of the runtime that needs a
 * context makes a context current, for example cudaFree(0).  From CUDA 12 on, cudaSetDevice also does so.
 *
 * The block belongs to the caller until weirFreeAsync or weir_free.  The caller may also never free the block, because
 * weir does not destroy the allocator at exit.  Work that is submitted to `stream` after this call may use the block.
 * Work on another stream may use the block once that stream is ordered after this call, by an event recorded on
 * `stream` or by a synchronisation.  The contents of the block are undefined.  The address is aligned to at least 256
 * bytes.
 *
 * Thread-safe.  A cache hit does not block.  The first call of the process starts the driver, and preallocates if the
 * settings request a preallocation.  A growth takes as long as the driver needs.  The call does not synchronise, but
 * waits for frees to complete if memory is short.
 *
 * Returns the result of weir_status_to_cuda for the status of weir_stream_allocator or weir_alloc.  cudaGetLastError
 * does not report a failure of this call.  Under stream capture the call works as weir_alloc does.  Since 0.1. */
static inline cudaError_t weirMallocAsync(void **block, size_t bytes, cudaStream_t stream) {
    weir_stream on = weir_stream_from_cuda(stream);
    weir_allocator *allocator;
    weir_status status = weir_stream_allocator(on, &allocator);

    if (status == WEIR_OK)
        status = weir_alloc(allocator, bytes, on, block);
    return weir_status_to_cuda(status);
}

/* Allocates a block as weirMallocAsync does, with the signature of cudaMallocFromPoolAsync.  The block comes from the
 * process's allocator of the stream's device, not from `pool`.  weir neither queries nor uses `pool`, but returns
 * cudaErrorInvalidValue if `pool` is NULL.  The properties of the pool do not apply to the block: release threshold,
 * maximum size, access by other devices, export to other processes, and a location other than the stream's device.
 * Since 0.1. */
static inline cudaError_t weirMallocFromPoolAsync(void **block, size_t bytes, cudaMemPool_t pool,
                                                  cudaStream_t stream) {
    return pool ? weirMallocAsync(block, bytes, stream) : weir_status_to_cuda(WEIR_E_INVALID);
}

/* Frees a block as weirFreeAsync does, but returns weir's status.  Only for the functions of this header. */
static inline weir_status weir_cuda_give_back(void *block, cudaStream_t stream) {
    weir_stream on = weir_stream_from_cuda(stream);
    weir_allocator *allocator;
    weir_status status = weir_block_allocator(block, &allocator);

    /* No allocator has the block, or the block belongs to a graph, or the engine keeps no list of its blocks.  So the
     * allocator of the stream's device frees the block. */
    if (status != WEIR_OK)
        status = weir_stream_allocator(on, &allocator);
    return status == WEIR_OK ? weir_free(allocator, block, on) : status;
}

/* Frees a block of weirMallocAsync in the order of `stream`, as cudaFreeAsync does.
 *
 *   block     the block, which the caller must not use any more; for NULL the call does nothing and
 *             returns cudaSuccess
 *   stream    any stream that is ordered after every use of the block, except uses on streams that
 *             weir_use has declared; for stream 0 see weir_stream_from_cuda
 *
 * The caller may free a block while work on `stream` still uses the block.  weir may reuse the memory at once on
 * `stream`, because `stream` executes its work in order.  weir reuses the memory on another stream only after weir
 * itself has ordered that stream after `stream`.  Do not pass memory from cudaMallocAsync or cudaMalloc.  The engines
 * mapped, bfc and direct return an error for such memory, but the pool engine does not notice the mistake, and frees
 * the memory.  Thread-safe.  The call neither blocks nor synchronises, except with engine direct, which waits for the
 * device.
 *
 * Returns the result of weir_status_to_cuda for the status of weir_stream_allocator or weir_free.  cudaGetLastError
 * does not report a failure of this call.  Since 0.1. */
static inline cudaError_t weirFreeAsync(void *block, cudaStream_t stream) {
    return block ? weir_status_to_cuda(weir_cuda_give_back(block, stream)) : cudaSuccess;
}

#ifdef WEIR_OVERRIDE
/* Replaces cudaFreeAsync if WEIR_OVERRIDE is defined.  Frees a block of weir, and passes all other memory to CUDA's own
 * cudaFreeAsync.  The pool engine with options.cache off cannot tell them apart, so it frees all memory itself. */
static inline cudaError_t weirFreeAsyncOrCuda(void *block, cudaStream_t stream) {
    weir_status status = block ? weir_cuda_give_back(block, stream) : WEIR_OK;

    return status == WEIR_E_NOT_OWNED ? cudaFreeAsync(block, stream) : weir_status_to_cuda(status);
}

/* Replaces cudaFree if WEIR_OVERRIDE is defined, as weirFreeAsyncOrCuda replaces cudaFreeAsync.  Always waits for the
 * device. */
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

/* Accept typed pointers, as the templates of cuda_runtime.h do: weirMallocAsync(&floats, ...). */
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

/* An overload of weirMallocAsync with a pool, because cuda_runtime.h has such an overload of cudaMallocAsync. */
template <class T>
static inline cudaError_t weirMallocAsync(T **block, size_t bytes, cudaMemPool_t pool,
                                          cudaStream_t stream) {
    return weirMallocFromPoolAsync(block, bytes, pool, stream);
}
#endif

#ifdef WEIR_OVERRIDE
/* CUDA's headers may define these names as macros, so this header first removes such macros. */
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
