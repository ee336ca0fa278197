/* SPDX-License-Identifier: MIT */
/* weir/adapters.h: functions for the plug-in points of frameworks and libraries.
 *
 * These functions are in libweir-adapters.so, a module in the folder weir/ beside libweir.so.  A framework loads the
 * module by its path, and finds each function by its symbol:
 *     CUDAPluggableAllocator(".../weir/libweir-adapters.so", "weir_torch_alloc", "weir_torch_free")
 * This header describes each function, and declares the functions for C programs that link the module.  All functions
 * use the process's allocator of the device (weir_device_allocator).  The WEIR_ variables of the environment configure
 * this allocator.  So two frameworks in one process, and the program's own calls of weir, share reserved memory and a
 * limit.  If no variable is set, the allocator's engine is mapped on a device that can map memory, else pool.
 *
 * Errors.  If a plug-in interface has a status, the function returns a status.  Otherwise a request that fails returns
 * NULL, and weir writes one line to standard error.  The line contains the request, the reserved memory, the limit and
 * the device's free memory.  The comment of each function says what its framework does with NULL.  If a free fails, the
 * program has made a mistake, and weir writes such a line, too.  weir writes only the first line of each kind and
 * status in the process, because frameworks retry.  With WEIR_OOM_REPORT (weir-settings(7)), weir reports every cause
 * of a failure, in more detail.  If weir cannot create an allocator, because a variable is wrong or the device lacks a
 * feature, weir writes the reason once (weir_default_allocator).
 *
 * Frees.  A block may have declared uses on other streams (weir_use).  If such a stream has ended, the free of the
 * block waits for the device.  If a free must wait for the end of a stream capture (E_CAPTURE), weir stores the free,
 * and a later call of these functions executes the free.
 *
 * All functions are thread-safe.  Do not call them in a child of fork(), because all requests fail in the child. */
#ifndef WEIR_ADAPTERS_H
#define WEIR_ADAPTERS_H

#include <stddef.h>

#include <weir/allocator.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- PyTorch: torch.cuda.memory.CUDAPluggableAllocator ---------------------------------------
 *
 * PyTorch allocates the memory of a tensor on the current stream.  When the last reference to the tensor ends, PyTorch
 * frees the memory on the stream of the allocation.  As with PyTorch's own allocator, the program must declare uses on
 * other streams by Tensor.record_stream.  weir receives these declarations only if record_stream is set.  The object
 * that CUDAPluggableAllocator.allocator() returns has these methods:
 *     set_init_fn, set_reset_fn, set_memory_fraction_fn, set_base_alloc_fn, set_record_stream_fn
 * Call each method with the address of the function below.  contrib/weir_cuda/torch.py makes all these calls.
 *
 * Graphs.  Memory that is allocated on a stream under capture belongs to the graph (as a memory node).  This memory is
 * valid from each launch of the graph until the graph or the program frees the memory.  PyTorch instantiates graphs so
 * that each launch first frees the memory of the launch before.  PyTorch frees a tensor of a graph on the stream of the
 * capture, so release such a tensor only after the last launch has completed.  The memory of a graph is no part of
 * weir's reserved memory, and no limit of weir applies to it.  With engine direct, requests under capture fail
 * (E_CAPTURE).  With the engines mapped and bfc, they fail with a driver before 11.4, or on a device without memory
 * pools.  If the program frees a block during a capture, and the block was not allocated in that capture, weir reuses
 * the block after the capture.  weir does not need PyTorch's private pools, and does not set PyTorch's hooks for
 * private pools.
 *
 * The plug-in interface does not support torch.cuda.memory_stats and snapshots (use weir_stats instead), expandable
 * segments, and IPC handles of tensors. */

/* Allocates memory on `stream` of the device with number `device`.  Returns the address of the memory, or NULL for 0
 * bytes.
 *
 * PyTorch (2.11) does not check for NULL, so a kernel would run with the address NULL.  For this reason, a request that
 * fails throws std::runtime_error, which PyTorch turns into a RuntimeError.  If memory is short, the text of the error
 * begins with "CUDA out of memory.", because some programs search for these words.  The text continues with the figures
 * of the failure.  weir throws the error with the C++ library (libstdc++) of the process.  In a process without a C++
 * library the function returns NULL.  So this function is only for PyTorch and other C++ callers.  If the caller does
 * not handle the error, the process ends. */
WEIR_API void *weir_torch_alloc(size_t bytes, int device, weir_stream stream);
/* Frees a block in the order of `stream`.  PyTorch passes the stream of the allocation.  NULL is OK and does
 * nothing. */
WEIR_API void weir_torch_free(void *block, size_t bytes, int device, weir_stream stream);
/* Does nothing.  PyTorch calls this function when PyTorch configures the allocator. */
WEIR_API void weir_torch_init(int device_count);
/* Implements torch.cuda.empty_cache.  Calls weir_trim for 0 bytes on each device in use, and may wait for these
 * devices. */
WEIR_API void weir_torch_reset(void);
/* Implements torch.cuda.set_per_process_memory_fraction.  Calls weir_set_limit with this fraction of the device's
 * memory.  The fraction 1 restores the limit of WEIR_LIMIT.  Reserved memory above the limit stays.  If weir_set_limit
 * fails (engine bfc-fixed), weir writes a line to standard error. */
WEIR_API void weir_torch_memory_fraction(double fraction, int device);
/* Returns the block that contains `address`, and sets *bytes to the requested size of the block.  Returns `address`
 * itself and sets *bytes to 0 if no block contains `address`, or if weir cannot find the block.  weir cannot find
 * blocks of the pool engine with options.cache off, and memory of a graph (weir_block_range). */
WEIR_API void *weir_torch_base_alloc(void *address, size_t *bytes);
/* Declares that `stream` uses the block (weir_use).  After the free of the block, weir reuses it only after the work
 * that was submitted to `stream` before the free. */
WEIR_API void weir_torch_record_stream(void *block, weir_stream stream);

/* ---- CuPy: cupy.cuda.CFunctionAllocator ------------------------------------------------------
 *
 * CuPy passes no stream to an allocation or to a free.  CuPy frees memory when Python releases an array.  At this time,
 * work that uses the array may still be queued on any stream.  CuPy passes the pointer `param` that the program has
 * set:
 *     NULL       The functions call weir_alloc_any and weir_free_any, which are correct in every program.  Each free
 *                waits for the device, as cudaFree does.  With CuPy's own pool above weir (cupy.cuda.MemoryPool),
 *                frees are rare.
 *     a stream   (0x1 and 0x2 for the default streams) The program promises to use its arrays only on this stream, or
 *                on streams that are ordered after this stream.  At the free of an array, this stream must be ordered
 *                after all streams that used the array.  weir then waits for nothing.  The stream must live as long
 *                as the arrays.
 * CuPy does not check for NULL, so an array may begin at address 0 after a failure.  contrib/weir_cuda/cupy.py raises
 * OutOfMemoryError instead, and uses the current stream, but each request then costs a call through Python. */
WEIR_API void *weir_cupy_malloc(void *param, size_t bytes, int device);
WEIR_API void weir_cupy_free(void *param, void *block, int device);

/* ---- ONNX Runtime: options gpu_external_alloc, gpu_external_free, gpu_external_empty_cache ----
 *
 * These are options of the CUDA execution provider.  Each option is the address of a function below, as a decimal
 * number.  The functions use the device of the current context, which ONNX Runtime sets.  ONNX Runtime passes no
 * stream, so any stream may use a block, and each free waits for the device.  If the process has only one session,
 * weir_onnx_stream avoids these waits: pass the stream of the session (user_compute_stream) to weir_onnx_stream.  ONNX
 * Runtime throws an exception if a function returns NULL. */
WEIR_API void *weir_onnx_alloc(size_t bytes);
WEIR_API void weir_onnx_free(void *block);
WEIR_API void weir_onnx_empty_cache(void);
/* Orders all later requests and frees of ONNX Runtime on `stream`, also frees of earlier blocks.  With NULL, requests
 * and frees name no stream again.  The stream must exist until another call passes another stream. */
WEIR_API void weir_onnx_stream(weir_stream stream);

/* ---- cuTensorNet, cuDSS, cuStateVec; nvJPEG ---------------------------------------------------
 *
 * The types cutensornetDeviceMemHandler_t, cudssDeviceMemHandler_t and custatevecDeviceMemHandler_t have the layout of
 * the structure below.  Initialise one structure, and pass it to the library, for example by
 * cutensornetSetDeviceMemHandler(handle, (const ...*)&handler).  For nvJPEG fill an nvjpegDevAllocatorV2_t with
 * {weir_handler_alloc, weir_handler_free, allocator}. */
typedef struct weir_mem_handler {
    /* The allocator, or NULL for the process's allocator of the stream's device. */
    void *ctx;
    int (*device_alloc)(void *ctx, void **block, size_t bytes, weir_stream stream);
    int (*device_free)(void *ctx, void *block, size_t bytes, weir_stream stream);
    char name[64];
} weir_mem_handler;

/* Fills in a handler, the struct from which a library takes the functions that allocate memory.  If `allocator` is
 * NULL, the handler uses the process's allocator of the stream's device.  Any other allocator must exist as long as a
 * library uses the handler.  Thread-safe, never blocks. */
WEIR_API void weir_mem_handler_init(weir_mem_handler *handler, weir_allocator *allocator);
/* Allocate and free a block by weir_alloc and weir_free.  `ctx` is the allocator, or NULL for the process's allocator
 * of the stream's device.  Both functions return the weir_status, which is 0 for success.  The library that calls them
 * turns another status into its own error.  If a request fails, weir also writes a line to standard error. */
WEIR_API int weir_handler_alloc(void *ctx, void **block, size_t bytes, weir_stream stream);
WEIR_API int weir_handler_free(void *ctx, void *block, size_t bytes, weir_stream stream);

#ifdef __cplusplus
}
#endif

#endif
