/* SPDX-License-Identifier: MIT */
/* weir/adapters.h: weir behind the plug-in points of frameworks and libraries.
 *
 * These functions are in libweir-adapters.so, a module in the folder weir/ beside libweir.so, which is loaded
 * by name and found by symbol, as frameworks do:
 *     CUDAPluggableAllocator(".../weir/libweir-adapters.so", "weir_torch_alloc", "weir_torch_free")
 * This header is for C programs that link it, and tells what each of them holds to.  All of them serve from
 * the process's allocator of the device (weir_device_allocator), which the WEIR_ variables set up, so that
 * two frameworks in a process, and what the program itself asks weir for, share one reserve and one limit.
 * With nothing set that is engine mapped where the device can map.
 *
 * Errors.  An interface that knows a status gets one.  Where it has none, a request that is refused is told
 * in one line on standard error, which names what was asked, the reserve, the limit and what the device has
 * free, and answers NULL; what a framework makes of NULL stands with each.  A free that weir refuses, which is
 * a mistake of the program's, is told likewise.  Of each kind and status the first in the process is told, as
 * frameworks ask again; WEIR_VERDICT (weir-settings(7)) tells more, and of each cause.  Why there is no
 * allocator at all, since a variable does not parse or the device does not have what is asked, once
 * (weir_default_allocator).
 *
 * Frees.  One of a block whose noted stream has ended waits for the device.  One that has to wait for
 * the end of a stream capture (E_CAPTURE) is kept, and done by a later call here.
 *
 * All functions are thread-safe.  None of them may be called in a child of fork(): requests are refused.
 */
#ifndef WEIR_ADAPTERS_H
#define WEIR_ADAPTERS_H

#include <stddef.h>

#include <weir/allocator.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- PyTorch: torch.cuda.memory.CUDAPluggableAllocator ---------------------------------------
 *
 * A tensor's memory is allocated on the current stream and freed on that same stream when the last
 * reference goes; uses on other streams must be declared by Tensor.record_stream, as with PyTorch's own
 * allocator, and reach weir only if record_stream is set:
 *     set_init_fn, set_reset_fn, set_memory_fraction_fn, set_base_alloc_fn, set_record_stream_fn
 * of the object that CUDAPluggableAllocator.allocator() answers, each with the function's address.
 * contrib/weir_torch.py does all of it.
 *
 * Graphs.  What is allocated on a stream that is being captured is memory of the graph (a memory node): valid
 * from each launch on until it is freed, by the graph or by the program.  PyTorch
 * instantiates graphs so that a launch frees what the last one left.  A tensor of a graph is freed on the
 * stream of the capture, so let it go when the last launch is done.  Graph memory is not in weir's reserve,
 * nor under its limit.  Engine direct refuses it (E_CAPTURE), and so do arenas where the driver has no memory
 * of graphs (before 11.4), or the device no pools.  What is freed during a capture and was not
 * allocated in it is reused when the capture is over.  PyTorch's private pools are not needed, and its hooks
 * for them are left alone.
 *
 * Not there, since the plug-in interface has no word for it: torch.cuda.memory_stats and snapshots (see
 * weir_stats), expandable segments, IPC handles of tensors. */

/* Memory on `stream` of that device.  0 bytes: NULL.
 * PyTorch does not look for NULL (2.11): a kernel would run with it.  A request that is refused is
 * therefore thrown, as std::runtime_error, which PyTorch turns into a RuntimeError; its text begins with
 * "CUDA out of memory." where memory is what lacks, for programs that look for that, and goes on with the
 * figures.  It is thrown with the C++ library (libstdc++) of the process; in a process without one the answer
 * is NULL.  So this function is for PyTorch and other C++ callers: one without a handler ends the process. */
WEIR_API void *weir_torch_alloc(size_t bytes, int device, weir_stream stream);
/* Back in the order of `stream`, which PyTorch makes that of the allocation. */
WEIR_API void weir_torch_free(void *block, size_t bytes, int device, weir_stream stream);
/* Called as the allocator is set up; nothing is made yet. */
WEIR_API void weir_torch_init(int device_count);
/* torch.cuda.empty_cache: weir_trim to nothing on each device that is in use, which may wait for them. */
WEIR_API void weir_torch_reset(void);
/* torch.cuda.set_per_process_memory_fraction: weir_set_limit to that part of the device's memory, 1 to that of
 * WEIR_LIMIT again.  What is above it already stays.  What is refused (a fixed arena) is told on standard error. */
WEIR_API void weir_torch_memory_fraction(double fraction, int device);
/* The block that `address` lies in, and its size as asked; `address` itself, and 0, if there is none or it
 * cannot be told (weir_block_range: the pool engine with the front off; memory of a graph). */
WEIR_API void *weir_torch_base_alloc(void *address, size_t *bytes);
/* weir_use: the block's free then waits for what has been submitted to `stream` by then. */
WEIR_API void weir_torch_record_stream(void *block, weir_stream stream);

/* ---- CuPy: cupy.cuda.CFunctionAllocator ------------------------------------------------------
 *
 * CuPy names no stream at a malloc, nor at a free, which comes when Python lets go of an array, while work
 * that uses it may still be queued anywhere.  `param`, which CuPy hands on as it was given, says what holds:
 *     NULL       any stream: weir_alloc_any and weir_free_any.  Right in every program; each free waits for the
 *                device, as cudaFree does, unless CuPy's own pool is above (cupy.cuda.MemoryPool), which seldom
 *                frees
 *     a stream   (0x1 and 0x2 for the default ones) the program's promise that its arrays are used on that
 *                stream alone, or on others that are ordered behind it, and it behind them at the free.  Nothing
 *                is waited for.  The stream must live as long as arrays do.
 * NULL is not looked for by CuPy, which then has an array at address 0: contrib/weir_cupy.py raises
 * OutOfMemoryError instead, and takes the current stream, at the cost of a call through Python. */
WEIR_API void *weir_cupy_malloc(void *param, size_t bytes, int device);
WEIR_API void weir_cupy_free(void *param, void *block, int device);

/* ---- ONNX Runtime: options gpu_external_alloc, gpu_external_free, gpu_external_empty_cache ----
 *
 * of the CUDA execution provider, each the address as a decimal number.  The device is that of the current
 * context, which ONNX Runtime sets.  No stream is named, so blocks are for any stream, as CuPy's with NULL, and
 * each free waits for the device, until weir_onnx_stream names the stream: that of the session
 * (user_compute_stream), if it is the only one in the process.  ONNX Runtime throws on NULL. */
WEIR_API void *weir_onnx_alloc(size_t bytes);
WEIR_API void weir_onnx_free(void *block);
WEIR_API void weir_onnx_empty_cache(void);
/* From now on requests and frees are in the order of `stream`, also frees of blocks from before; NULL: of none
 * again.  The stream must live as long as it is named here. */
WEIR_API void weir_onnx_stream(weir_stream stream);

/* ---- cuTensorNet, cuDSS, cuStateVec; nvJPEG ---------------------------------------------------
 *
 * cutensornetDeviceMemHandler_t, cudssDeviceMemHandler_t and custatevecDeviceMemHandler_t are this structure:
 * init one and hand it over as theirs (cutensornetSetDeviceMemHandler(handle, (const ...*)&handler)).  For
 * nvJPEG fill an nvjpegDevAllocatorV2_t with {weir_handler_alloc, weir_handler_free, allocator}. */
typedef struct weir_mem_handler {
    void *ctx; /* the allocator; NULL: the process's, of the stream's device */
    int (*device_alloc)(void *ctx, void **block, size_t bytes, weir_stream stream);
    int (*device_free)(void *ctx, void *block, size_t bytes, weir_stream stream);
    char name[64];
} weir_mem_handler;

/* Fills it in.  `allocator`, which must outlive its use, may be NULL: see ctx. */
WEIR_API void weir_mem_handler_init(weir_mem_handler *handler, weir_allocator *allocator);
/* weir_alloc and weir_free with `ctx` as the allocator.  0, or the weir_status; the library makes an error of
 * its own of it.  Also a line on standard error for a refused request. */
WEIR_API int weir_handler_alloc(void *ctx, void **block, size_t bytes, weir_stream stream);
WEIR_API int weir_handler_free(void *ctx, void *block, size_t bytes, weir_stream stream);

#ifdef __cplusplus
}
#endif

#endif
