/* SPDX-License-Identifier: MIT */
/* weir/cuda.h: weir in place of cudaMallocAsync and cudaFreeAsync, with their signatures.
 *
 * A program that allocates in stream order changes the names and links with -lweir:
 *     weirMallocAsync(&block, bytes, stream)                for    cudaMallocAsync
 *     weirMallocFromPoolAsync(&block, bytes, pool, stream)  for    cudaMallocFromPoolAsync
 *     weirFreeAsync(block, stream)                          for    cudaFreeAsync
 * or none at all: compiled with
 *     nvcc -DWEIR_OVERRIDE -include weir/cuda.h prog.cu -lweir
 * (or with WEIR_OVERRIDE defined before this header is included, after CUDA's) CUDA's names mean these, and
 * cudaFree takes such blocks too.  What was compiled otherwise, a library say, keeps CUDA's own; its blocks
 * may be freed here, ours not there.
 *
 * Blocks come from the process's allocator of the stream's device (weir_stream_allocator), so WEIR_ variables
 * set it up (with none engine mapped where the device can map), and the other calls of weir/allocator.h (weir_use,
 * weir_stats, weir_trim) work on the same one.  Where the process sees one device that is found by a load; where it
 * sees several the driver is asked for the stream's context at each request, some tens of ns, and a free looks for the
 * block without a driver call.  A program that knows its device saves that: weir_device_allocator once, then weir_alloc
 * and weir_free.
 *
 * This header needs the CUDA toolkit's headers, 11.2 or later; the library does not, and nothing
 * here calls the CUDA runtime, but with WEIR_OVERRIDE for blocks that are not weir's.  Not part of weir/weir.h.
 */
#ifndef WEIR_CUDA_H
#define WEIR_CUDA_H

#include <stddef.h>

#if defined(WEIR_OVERRIDE) && defined(__cplusplus)
#include <cuda_runtime.h> /* its templates must stand before the names change */
#else
#include <cuda_runtime_api.h>
#endif

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
 * A default stream is the current context's; a program of CUDA 11 makes it current by its first call of the
 * runtime that needs a context, as cudaFree(0), and cudaSetDevice alone does from 12 on.
 *
 * The block belongs to the caller until weirFreeAsync, weir_free, or never: the allocator is not
 * destroyed at exit.  It may be used by work submitted to `stream` from now on, and by other streams
 * once they are ordered behind this call (an event recorded on `stream`, or a synchronisation).
 * Contents are undefined; aligned to at least 256 bytes.  Thread-safe.  A hit does not block; the
 * process's first call starts the driver and preallocates, if told to, and a growth step takes as
 * long as the driver needs.  It does not synchronise, but under memory shortage it waits for frees
 * to complete.
 * Answers as weir_status_to_cuda says for weir_stream_allocator and weir_alloc; no failure is left
 * behind for cudaGetLastError.  Under stream capture: see weir_alloc.  Since 0.1. */
static inline cudaError_t weirMallocAsync(void **block, size_t bytes, cudaStream_t stream) {
    weir_stream on = weir_stream_from_cuda(stream);
    weir_allocator *allocator;
    weir_status status = weir_stream_allocator(on, &allocator);

    if (status == WEIR_OK)
        status = weir_alloc(allocator, bytes, on, block);
    return weir_status_to_cuda(status);
}

/* The same for a program that names a pool, as cudaMallocFromPoolAsync.  The block is from the process's
 * allocator of the stream's device, whatever the pool: `pool` says no more than that the program has one.  It
 * must not be NULL (cudaErrorInvalidValue), and is neither asked nor used: its release threshold, its largest
 * size, access by other devices, export to other processes, and a location that is not the stream's device hold
 * for what is allocated by CUDA's own name only.  All else as weirMallocAsync.  Since 0.1. */
static inline cudaError_t weirMallocFromPoolAsync(void **block, size_t bytes, cudaMemPool_t pool,
                                                  cudaStream_t stream) {
    return pool ? weirMallocAsync(block, bytes, stream) : weir_status_to_cuda(WEIR_E_INVALID);
}

/* Frees as weirFreeAsync does, and answers the status.  Not called by programs. */
static inline weir_status weir_cuda_give_back(void *block, cudaStream_t stream) {
    weir_stream on = weir_stream_from_cuda(stream);
    weir_allocator *allocator;
    weir_status status = weir_block_allocator(block, &allocator);

    if (status != WEIR_OK) /* memory of a graph, or it cannot be told, or it is nobody's */
        status = weir_stream_allocator(on, &allocator);
    return status == WEIR_OK ? weir_free(allocator, block, on) : status;
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
 * cudaMallocAsync or cudaMalloc must not be passed: engines mapped, bfc and direct refuse it, the
 * pool engine does not tell it apart and frees it.  Thread-safe.  Neither blocks nor synchronises,
 * except with engine direct, which waits for the device.
 * Answers as weir_status_to_cuda says for weir_stream_allocator and weir_free; no failure is left
 * behind for cudaGetLastError.  Since 0.1. */
static inline cudaError_t weirFreeAsync(void *block, cudaStream_t stream) {
    return block ? weir_status_to_cuda(weir_cuda_give_back(block, stream)) : cudaSuccess;
}

#ifdef WEIR_OVERRIDE
/* What cudaFreeAsync and cudaFree mean with WEIR_OVERRIDE: blocks that are not weir's are CUDA's.  The pool
 * engine with the front off does not tell them apart, and frees both.  cudaFree waits for the device, whoever
 * had the block. */
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

/* For typed pointers, as cuda_runtime.h has it for CUDA's: weirMallocAsync(&floats, ...). */
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

/* cudaMallocAsync has a form with a pool there. */
template <class T>
static inline cudaError_t weirMallocAsync(T **block, size_t bytes, cudaMemPool_t pool,
                                          cudaStream_t stream) {
    return weirMallocFromPoolAsync(block, bytes, pool, stream);
}
#endif

#ifdef WEIR_OVERRIDE
/* CUDA's headers may have made macros of them. */
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
