/* SPDX-License-Identifier: MIT */
/* weir/adapters.h: functions for the plug-in points of frameworks and libraries.
 *
 * These functions are in libweir-adapters.so, a module in the folder weir/ beside libweir.so.  Frameworks load it by
 * name and find its functions by symbol:
 *     CUDAPluggableAllocator(".../weir/libweir-adapters.so", "weir_torch_alloc", "weir_torch_free")
 * This header is for C programs that link the module, and describes each function.  All of them use the process's
 * allocator of the device (weir_device_allocator), which the WEIR_ variables set up.  Two frameworks in a process,
 * and the program's own calls of weir, therefore share reserved memory and a limit.  With no variable set the
 * allocator's engine is mapped if the device can map memory.
 *
 * Errors.  An interface with a status gets one.  Where it has none, a request that fails returns NULL.  One line on
 * standard error then names the request, reserved memory, the limit and what the device has free.  Each function
 * below says what its framework makes of NULL.  A free that fails is a mistake of the program, and gets such a line
 * too.  weir prints the first of each kind and status in the process, because frameworks try again; WEIR_OOM_REPORT
 * (weir-settings(7)) reports more, and each cause.  If there is no allocator at all, because a variable does not
 * parse or the device lacks what was requested, weir says so once (weir_default_allocator).
 *
 * Frees.  If a block's noted stream has ended, its free waits for the device.  If a free has to wait for the end of
 * a stream capture (E_CAPTURE), weir keeps it, and a later call here does it.
 *
 * All functions are thread-safe.  Do not call them in a child of fork(): requests fail there. */
#ifndef WEIR_ADAPTERS_H
#define WEIR_ADAPTERS_H

#include <stddef.h>

#include <weir/allocator.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- PyTorch: torch.cuda.memory.CUDAPluggableAllocator ---------------------------------------
 *
 * PyTorch allocates a tensor's memory on the current stream, and frees it on that same stream when the last
 * reference goes.  Tensor.record_stream must declare uses on other streams, as with PyTorch's own allocator.  These
 * uses reach weir only if record_stream is set.  The object that CUDAPluggableAllocator.allocator() returns has
 *     set_init_fn, set_reset_fn, set_memory_fraction_fn, set_base_alloc_fn, set_record_stream_fn
 * Call each with the function's address.  contrib/weir_cuda/torch.py does all of it.
 *
 * Graphs.  Memory allocated on a stream that is being captured belongs to the graph (a memory node).  It is valid
 * from each launch on until the graph or the program frees it.  PyTorch instantiates graphs so that a launch frees
 * what the last one left.  A tensor of a graph is freed on the stream of the capture, so release it when the last
 * launch is done.  Graph memory is not part of weir's reserved memory, nor under its limit.  Engine direct cannot
 * serve it (E_CAPTURE), nor can arenas if the driver has no memory of graphs (before 11.4) or the device no pools.
 * If a block is freed during a capture and was not allocated in it, weir reuses it after the capture.  weir does not
 * need PyTorch's private pools, and leaves its hooks for them alone.
 *
 * The plug-in interface does not support torch.cuda.memory_stats and snapshots (see weir_stats), expandable
 * segments, and IPC handles of tensors. */

/* Allocates memory on `stream` of that device.  0 bytes: NULL.  PyTorch (2.11) does not check for NULL, so a kernel
 * would run with it.  A request that fails therefore throws std::runtime_error, which PyTorch turns into a
 * RuntimeError.  Its text begins with "CUDA out of memory." if memory is short, for programs that look for that, and
 * continues with the figures.  weir throws it with the C++ library (libstdc++) of the process; in a process without
 * one the function returns NULL.  So this function is for PyTorch and other C++ callers: a caller without a handler
 * ends the process. */
WEIR_API void *weir_torch_alloc(size_t bytes, int device, weir_stream stream);
/* Frees a block in the order of `stream`; PyTorch passes the stream of the allocation.  NULL is OK. */
WEIR_API void weir_torch_free(void *block, size_t bytes, int device, weir_stream stream);
/* Does nothing.  PyTorch calls the function when it sets up the allocator. */
WEIR_API void weir_torch_init(int device_count);
/* Serves torch.cuda.empty_cache: calls weir_trim for 0 bytes on each device in use, and may wait for these devices. */
WEIR_API void weir_torch_reset(void);
/* Serves torch.cuda.set_per_process_memory_fraction: calls weir_set_limit with that part of the device's memory; 1
 * restores the limit of WEIR_LIMIT.  Reserved memory above the limit stays.  If weir_set_limit fails (engine
 * bfc-fixed), a line on standard error says so. */
WEIR_API void weir_torch_memory_fraction(double fraction, int device);
/* Returns the block that `address` lies in, and sets *bytes to its requested size.  Returns `address` itself and sets
 * *bytes to 0 if there is no block or weir cannot tell (weir_block_range: the pool engine with options.cache off;
 * memory of a graph). */
WEIR_API void *weir_torch_base_alloc(void *address, size_t *bytes);
/* Calls weir_use: the reuse of the block then waits for the work submitted to `stream` before the free. */
WEIR_API void weir_torch_record_stream(void *block, weir_stream stream);

/* ---- CuPy: cupy.cuda.CFunctionAllocator ------------------------------------------------------
 *
 * CuPy names no stream at a malloc, nor at a free.  A free comes when Python releases an array, while work that
 * uses the array may still be queued anywhere.  CuPy passes `param` on as the program set it:
 *     NULL       The functions call weir_alloc_any and weir_free_any, which are right in every program.  Each free waits
 *                for the device, as cudaFree does, unless CuPy's own pool is above (cupy.cuda.MemoryPool), which
 *                seldom frees.
 *     a stream   (0x1 and 0x2 for the default streams) The program promises that its arrays are used on that stream
 *                alone, or on streams that are ordered behind it, and that it is ordered behind those streams at the
 *                free.  weir waits for nothing.  The stream must live as long as arrays do.
 * CuPy does not check for NULL, and then has an array at address 0.  contrib/weir_cuda/cupy.py raises OutOfMemoryError
 * instead, and uses the current stream, at the cost of a call through Python. */
WEIR_API void *weir_cupy_malloc(void *param, size_t bytes, int device);
WEIR_API void weir_cupy_free(void *param, void *block, int device);

/* ---- ONNX Runtime: options gpu_external_alloc, gpu_external_free, gpu_external_empty_cache ----
 *
 * Options of the CUDA execution provider, each with the function's address as a decimal number.  The device is that
 * of the current context, which ONNX Runtime sets.  ONNX Runtime names no stream, so blocks are for any stream, as
 * CuPy's with NULL, and each free waits for the device.  weir_onnx_stream changes that: it names the stream of the
 * session (user_compute_stream), if that is the only one in the process.  ONNX Runtime throws on NULL. */
WEIR_API void *weir_onnx_alloc(size_t bytes);
WEIR_API void weir_onnx_free(void *block);
WEIR_API void weir_onnx_empty_cache(void);
/* Makes requests and frees follow the order of `stream` from now on, also frees of earlier blocks; with NULL, of no
 * stream again.  The stream must live until another call names another stream. */
WEIR_API void weir_onnx_stream(weir_stream stream);

/* ---- cuTensorNet, cuDSS, cuStateVec; nvJPEG ---------------------------------------------------
 *
 * cutensornetDeviceMemHandler_t, cudssDeviceMemHandler_t and custatevecDeviceMemHandler_t are this structure.  Init
 * one and pass it as theirs (cutensornetSetDeviceMemHandler(handle, (const ...*)&handler)).  For nvJPEG fill an
 * nvjpegDevAllocatorV2_t with {weir_handler_alloc, weir_handler_free, allocator}. */
typedef struct weir_mem_handler {
    void *ctx; /* the allocator; NULL: the process's, for the stream's device */
    int (*device_alloc)(void *ctx, void **block, size_t bytes, weir_stream stream);
    int (*device_free)(void *ctx, void *block, size_t bytes, weir_stream stream);
    char name[64];
} weir_mem_handler;

/* Fills in the handler.  `allocator` may be NULL (see ctx); otherwise it must outlive the use of the handler.
 * Thread-safe, never blocks. */
WEIR_API void weir_mem_handler_init(weir_mem_handler *handler, weir_allocator *allocator);
/* Call weir_alloc and weir_free with `ctx` as the allocator (NULL: the process's).  Return the weir_status, which is 0
 * for success, and which the library turns into its own error.  A request that fails also gets a line on standard
 * error. */
WEIR_API int weir_handler_alloc(void *ctx, void **block, size_t bytes, weir_stream stream);
WEIR_API int weir_handler_free(void *ctx, void *block, size_t bytes, weir_stream stream);

#ifdef __cplusplus
}
#endif

#endif
