/* SPDX-License-Identifier: MIT */
/* weir/cuda.h: weir in place of cudaMallocAsync and cudaFreeAsync, with their signatures.
 *
 * A program that allocates in stream order changes two names and links with -lweir:
 *     weirMallocAsync(&block, bytes, stream)    for    cudaMallocAsync(&block, bytes, stream)
 *     weirFreeAsync(block, stream)              for    cudaFreeAsync(block, stream)
 * Blocks come from weir_default_allocator, so WEIR_ variables set it up, and the other calls of
 * weir/allocator.h (weir_use, weir_stats, weir_trim) work on the same allocator.  It serves one
 * device; a program that allocates on several makes an allocator for each and calls weir_alloc.
 *
 * This header needs the CUDA toolkit's headers, 11.2 or later; the library does not, and nothing
 * here calls the CUDA runtime.  Not part of weir/weir.h.
 */
#ifndef WEIR_CUDA_H
#define WEIR_CUDA_H

#include <stddef.h>

#include <cuda_runtime_api.h>

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The stream that this source file means by `stream`.  Compiled for per-thread default streams
 * (nvcc --default-stream per-thread, or CUDA_API_PER_THREAD_DEFAULT_STREAM defined before CUDA's
 * headers), stream 0 is the calling thread's default stream, cudaStreamPerThread; otherwise it is
 * the legacy default stream and stays as it is.  For calls of weir_alloc, weir_free and weir_use in
 * such a file, too.  Thread-safe, never blocks.  Since 0.1. */
static inline weir_stream weir_stream_from_cuda(cudaStream_t stream) {
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) ||                                                 \
    defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM) ||                                               \
    defined(__CUDART_API_PER_THREAD_DEFAULT_STREAM)
    return stream ? stream : cudaStreamPerThread;
#else
    return stream;
#endif
}

/* The CUDA runtime's word for a status that a weir call just returned to this thread:
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
 *     E_FORKED            cudaErrorInitializationError, as the runtime itself answers after a fork
 *     E_NOT_SUPPORTED     cudaErrorNotSupported
 *     E_FILE              cudaErrorOperatingSystem
 *     E_BUSY              cudaErrorNotReady
 *     E_DRIVER            the driver's result, whose numbers are the runtime's; cudaErrorUnknown if
 *                         there is none
 *     E_DEVICE_LOST       the same, with cudaErrorContextIsDestroyed if there is none
 *     any other number    cudaErrorUnknown
 * The driver's result is weir_last_driver_result, hence "just returned".  Thread-safe, never blocks.
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

/* Hands out a block of device memory for use on `stream`, as cudaMallocAsync does.
 *
 *   block     where the block's device address is written, only on success; NULL:
 *             cudaErrorInvalidValue
 *   bytes     its size; 0 gives NULL and cudaSuccess
 *   stream    the stream that may use it at once; 0 as in weir_stream_from_cuda
 *
 * The block belongs to the caller until weirFreeAsync, weir_free, or never: the allocator is not
 * destroyed at exit.  It may be used by work submitted to `stream` from now on, and by other streams
 * once they are ordered behind this call (an event recorded on `stream`, or a synchronisation).
 * Contents are undefined; aligned to at least 256 bytes.  Thread-safe.  A hit does not block; the
 * process's first call starts the driver and preallocates, if told to, and a growth step takes as
 * long as the driver needs.  It does not synchronise, but under memory shortage it waits for frees
 * to complete.
 * Answers as weir_status_to_cuda says for weir_default_allocator and weir_alloc; no failure is left
 * behind for cudaGetLastError.  Under stream capture: see weir_alloc.  Since 0.1. */
static inline cudaError_t weirMallocAsync(void **block, size_t bytes, cudaStream_t stream) {
    weir_allocator *allocator;
    weir_status status = weir_default_allocator(&allocator);

    if (status == WEIR_OK)
        status = weir_alloc(allocator, bytes, weir_stream_from_cuda(stream), block);
    return weir_status_to_cuda(status);
}

/* Gives a block of weirMallocAsync back in the order of `stream`, as cudaFreeAsync does.
 *
 *   block     the block, which is no longer the caller's; NULL does nothing and is cudaSuccess
 *   stream    a stream that is ordered after every use of the block, except uses on streams declared
 *             with weir_use; any stream, not only the one of the allocation; 0 as in
 *             weir_stream_from_cuda
 *
 * May be called while work that uses the block still runs on `stream`: the memory is reused there
 * at once, in order, and elsewhere only behind an ordering that weir establishes.  Memory from
 * cudaMallocAsync or cudaMalloc must not be passed: the arena and platform engines refuse it, the
 * pool engine does not tell it apart and frees it.  Thread-safe.  Neither blocks nor synchronises,
 * except with the platform engine, which waits for the device.
 * Answers as weir_status_to_cuda says for weir_default_allocator and weir_free; no failure is left
 * behind for cudaGetLastError.  Since 0.1. */
static inline cudaError_t weirFreeAsync(void *block, cudaStream_t stream) {
    weir_allocator *allocator;
    weir_status status;

    if (!block)
        return cudaSuccess;
    status = weir_default_allocator(&allocator);
    if (status == WEIR_OK)
        status = weir_free(allocator, block, weir_stream_from_cuda(stream));
    return weir_status_to_cuda(status);
}

#ifdef __cplusplus
}

/* For typed pointers, as cuda_runtime.h has it for cudaMallocAsync: weirMallocAsync(&floats, ...). */
template <class T>
static inline cudaError_t weirMallocAsync(T **block, size_t bytes, cudaStream_t stream) {
    void *untyped = 0;
    cudaError_t error = weirMallocAsync(block ? &untyped : (void **)0, bytes, stream);

    if (error == cudaSuccess)
        *block = static_cast<T *>(untyped);
    return error;
}
#endif

#endif
