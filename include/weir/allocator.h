/* SPDX-License-Identifier: MIT */
/* weir/allocator.h: allocates device memory in stream order.
 *
 * Most programs need six calls: weir_allocator_create, weir_alloc, weir_free, weir_stats (weir/stats.h), weir_trim and
 * weir_allocator_destroy.  weir/weir.h has a complete program that uses these calls.
 *
 * Stream order.  weir_alloc allocates a block for a stream s.  Work that is submitted to s after weir_alloc has
 * returned may use the block.  The caller may also call weir_free(block, s) at once, while such work still runs.  weir
 * may then reuse the memory on s immediately, because s executes its work in order.  weir reuses the memory on another
 * stream only after weir itself has ordered that stream after s.  The caller promises that s is ordered after every use
 * of the block.  The exception is a use on a stream that the caller has declared with weir_use.
 *
 * All functions are thread-safe, also for calls on one allocator.  Do not call a function of weir from a signal
 * handler, or from a host function that runs on a stream.  No function changes the current CUDA context.
 *
 * Threads.  weir starts one thread for each device that processes share (options.registry), and one thread for each
 * allocator with options.grow_ahead.  All signals are blocked in these threads.  A thread ends when its allocators are
 * destroyed, or when the process exits.  If the main thread calls pthread_exit while such a thread lives, the process
 * does not end with the program's last thread, and SIGTERM does not end the process either.  End such a process by
 * exit(), or destroy the allocators first.  The driver's own threads may keep the process alive as well.
 *
 * Statuses.  A function returns OK on success.  The comment of a function lists the other statuses that the function
 * can return, and weir_status(3) describes every status.  A function that calls the driver also returns E_NO_MEMORY if
 * the driver itself is out of memory, and E_DEVICE_LOST if the driver reports the device as lost. */
#ifndef WEIR_ALLOCATOR_H
#define WEIR_ALLOCATOR_H

#include <stddef.h>
#include <stdint.h>

#include <weir/options.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A stream.  The type is that of CUstream and cudaStream_t.  NULL is the legacy default stream of the current context.
 * (weir_stream)0x1 is the legacy default stream, and (weir_stream)0x2 is the per-thread default stream. */
typedef struct CUstream_st *weir_stream;

/* An allocator of memory on one device. */
typedef struct weir_allocator weir_allocator;

/* Returns the version of the library, such as "0.2.0".  The text is static.  Thread-safe, never blocks. */
WEIR_API const char *weir_version(void);

/* Creates an allocator on one device.  On success writes the allocator to *allocator.  The caller later destroys it
 * with weir_allocator_destroy.  `options` may be NULL, which means defaults for all options.  The call does not read
 * options from the environment (see weir_options_from_env).
 *
 * The call loads the driver, and preallocates memory if the options request a preallocation.  The allocator retains the
 * device's primary context until the allocator is destroyed.  A partial preallocation is a success if it has at least
 * options.prealloc_min bytes.  weir_stats returns how many bytes the preallocation requested, got and kept.
 *
 * The call may block for as long as the driver needs to start and to preallocate.  Before the preallocation, the call
 * also waits until other processes of the user have finished their preallocations on the device, but 10 s at most.
 * These processes share a file in /dev/shm, or in /tmp if /dev/shm is not available.  If other processes have all
 * memory of the device, the call waits for one second until they free memory for the context.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` is NULL, or an option is wrong.  The log (options.log) contains the name of the option.
 * E_NOT_SUPPORTED: the driver or the device lacks a feature that an option needs.
 * E_LIMIT: the preallocation is above the limit, or the limit is below 32 MiB with the pool engine, which reserves
 * memory in units of 32 MiB.
 * E_NO_MEMORY: there is no room for the context, the preallocation is above the device's memory, less than
 * options.prealloc_min was preallocated, or engine bfc-fixed could not allocate its region.
 * E_HOST_MEMORY, E_NO_DEVICE, E_DRIVER, E_FORKED: see weir_status(3). */
WEIR_API WEIR_CHECK_RESULT weir_status weir_allocator_create(const weir_options *options,
                                                             weir_allocator **allocator);

/* The maximum number of devices for one call of weir_allocators_create. */
enum { WEIR_MOST_DEVICES = 64 };

/* Creates one allocator on each of `count` devices.  On success writes all allocators to allocators[0 .. count - 1].
 * If one allocator cannot be created, the call creates none.  `devices` is an array of `count` device numbers; NULL
 * means the devices 0 to count - 1.  options.device chooses the driver, but its number has no effect.
 *
 * All other options apply to each device.  For example, a preallocation of 8 GiB reserves 8 GiB on each device, and
 * peers "all" means all other devices that can be peers.  options.profile should be a folder, in which each device has
 * its own file.  Each allocator is an ordinary allocator with its own weir_stats, and the caller destroys each
 * allocator.  The call blocks as weir_allocator_create does, for one device after the other.
 *
 * Returns OK, the status of the first allocator that could not be created, or this status.
 * E_INVALID: `allocators` is NULL, `count` is 0 or above 64, or a device number is negative or occurs twice.  Since
 * 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_allocators_create(const weir_options *options,
                                                              const int *devices, size_t count,
                                                              weir_allocator **allocators);

/* Destroys an allocator and releases all its memory to the device.  NULL is OK and does nothing.  The caller must not
 * use the allocator afterwards.  The call waits for all work of the device, so that pending frees complete.  This wait
 * may take any time.  Only engine direct with options.cache off needs no wait.
 *
 * Returns OK or one of these statuses.
 * E_BUSY: the allocator has live blocks, or frees that wait for the end of a capture, or there is no memory for the
 * wait.  Nothing has changed, except that a pool may have released idle memory.  The caller may call again.
 * E_FORKED: the call came from a child of fork().  The host memory of the child stays as it is. */
WEIR_API weir_status weir_allocator_destroy(weir_allocator *allocator);

/* Writes the process's allocator, for the device that the environment names, to *allocator.  The first call creates the
 * allocator with the options of weir_options_from_env.  weir never destroys this allocator.  The allocator preallocates
 * at its first request.  Variables of TensorFlow, XLA and JAX do not choose the engine of this allocator.  These
 * variables request a preallocation only if their framework uses CUDA's memory pools (weir-settings(7), COMPATIBILITY).
 *
 * If the environment names no engine, the engine is mapped on a device that can map memory, else pool.  In a process
 * with libweir-preload.so, the engine is pool.  The preload library then provides this pool, and decides on its
 * reserved memory and its limit.
 *
 * Thread-safe.  The first call blocks as weir_allocator_create does; later calls do not block.  If there is no
 * allocator, weir writes the reason and the variables that are set to standard error.  weir writes this line once for
 * each wrong variable and for each other status, unless WEIR_LOG is none.
 *
 * Returns OK, a status of weir_allocator_create, or this status.
 * E_PARSE: a variable has a wrong value. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_default_allocator(weir_allocator **allocator);

/* Writes the process's allocator of the device with number `device` to *allocator.  The environment names the driver.
 * The process has one such allocator for each device.  The first call for a device creates the allocator, and all
 * callers share it.  WEIR_DEVICE=cuda:1 chooses the default device, but has no effect on this call.  The other
 * variables apply to each allocator: WEIR_PREALLOC=8GiB reserves 8 GiB on each device in use, and WEIR_LIMIT limits
 * each allocator separately.
 *
 * weir reads the environment until the first allocator is created, and not afterwards.  Once the allocator exists, the
 * call is one load without a lock.  In all other respects the call works as weir_default_allocator does.
 *
 * Returns OK, a status of weir_default_allocator, or one of these statuses.
 * E_INVALID: `allocator` is NULL, or `device` is negative.
 * E_NO_DEVICE: there is no device with this number, or the number is above 63.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_device_allocator(int device,
                                                             weir_allocator **allocator);

/* Writes the process's allocator for the stream's device to *allocator, and creates the allocator if necessary
 * (weir_device_allocator).  A default stream (NULL, 0x1, 0x2) belongs to the device of the current context.  If no
 * context is current, a default stream belongs to the device that the environment names.  If the process sees one
 * device, the call is one load.  Otherwise weir queries the driver once, which takes some tens of ns.  A caller that
 * knows the device should call weir_device_allocator instead.
 *
 * Returns OK, a status of weir_device_allocator, or one of these statuses.
 * E_STREAM: the driver does not know the stream.
 * E_DRIVER: a query of the driver failed.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_stream_allocator(weir_stream stream,
                                                             weir_allocator **allocator);

/* Finds the allocator of the process that has a live block at the address `block`, and writes this allocator to
 * *allocator.  The address may lie anywhere in the block.  If the process has only one allocator, the call writes this
 * allocator without a check of the address.  Otherwise the call searches for the block as weir_block_range does.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: an argument is NULL.
 * E_NOT_OWNED: no allocator has the block, the process has no allocator yet, or the block belongs to a graph.
 * E_NOT_SUPPORTED: the pool engine with options.cache off does not know its blocks.
 * E_DEVICE_LOST: the block may belong to an allocator whose device was lost.
 * E_FORKED: the call came from a child of fork().  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_block_allocator(const void *block,
                                                            weir_allocator **allocator);

/* Allocates a block of at least `bytes` bytes for use on `stream`.  On success writes the device address of the block
 * to *block.  The address is aligned to at least 256 bytes.  For 0 bytes the result is OK, and *block is NULL.  The
 * contents of the block are undefined.
 *
 * Caches.  With options.cache on, a per-stream cache returns blocks from memory that the stream itself has freed,
 * without a call of the engine.  The cache is used for requests of up to 512 KiB, and for a larger request that has the
 * size of a block that the stream has just freed.
 *
 * Captures.  Caches are not used on a stream that is being captured.  The block becomes a memory node of the graph,
 * with all engines except direct (see E_CAPTURE in weir_status(3)).  The driver provides the memory of this node at
 * each launch.  This memory belongs to no allocator's reserved memory, and no limit applies to it.  Free such a block
 * in the capture, or after a launch.
 *
 * Waits.  A cache hit does not block.  A growth takes as long as the driver needs.  If there is no memory, the call
 * waits for frees to complete, up to options.recovery_timeout_ms.  In two cases the call waits for the device, and this
 * wait may take any time:
 *
 * Case 1: there is no memory, and caches have idle blocks, or streams that make no more requests have freed memory.
 * weir waits for the device unless the recovery timeout is UINT32_MAX.
 *
 * Case 2: the device has no more memory, and other allocators of the process on this device may have enough idle
 * memory.  These allocators release their idle memory, as for weir_low_memory.
 *
 * If all this does not help, weir calls options.oom_callback, if the program has set it.  The callback decides whether
 * weir retries the request.  During a capture in global or thread-local mode, the pool engine with options.cache off
 * acts as the driver does: the call invalidates the capture, as cudaMallocAsync does.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` or `block` is NULL.
 * E_NO_MEMORY, E_LIMIT: there is not enough memory, or the limit forbids the request (see weir_last_failure).
 * E_STREAM, E_CAPTURE, E_HOST_MEMORY, E_DRIVER, E_DEVICE_LOST, E_FORKED: see weir_status(3). */
WEIR_API WEIR_CHECK_RESULT weir_status weir_alloc(weir_allocator *allocator, size_t bytes,
                                                  weir_stream stream, void **block);

/* Allocates a block as weir_alloc does.  Returns the address of the block, or the weir_status of a failure, which is
 * negative.  The function is for languages in which an output argument is slow, such as Python with ctypes.  Since
 * 0.2. */
WEIR_API WEIR_CHECK_RESULT intptr_t weir_alloc_address(weir_allocator *allocator, size_t bytes,
                                                       weir_stream stream);

/* Frees a block in the order of `stream`: see "Stream order" in weir_allocator(3).  NULL is OK and does nothing.
 * Engine direct waits for the device, as cuMemFree does.  Other engines do not block.
 *
 * During a capture, the caller may free a block that was allocated outside of the capture.  Such a free takes effect
 * after the capture has ended or was aborted, or after weir has waited for the device, for example in a trim.  With
 * engine direct the free takes effect at once.  Do not launch a graph that uses the block after the free.  E_CAPTURE
 * lists the exceptions.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` is NULL.
 * E_HOST_MEMORY: the host has no memory.  Nothing has changed.
 * E_NOT_OWNED: no live block begins at the address.  Nothing has changed.  weir detects every kind of wrong address: a
 * block that was freed before, memory that weir has merged or released since then, a block of another allocator, or an
 * address inside a block.  weir cannot detect the following mistakes.  If a program frees a block twice, and another
 * live block begins at the address by then, the second free frees that block.  If two threads free one block at one
 * time, both calls may succeed.  The pool engine with options.cache off detects only mistakes that the driver detects,
 * so it frees a block of another pool or of cuMemAlloc.  At an address where a block of a graph once was, engines other
 * than direct also detect only mistakes that the driver detects.
 * E_STREAM: the driver does not know `stream`.  Nothing has changed.
 * E_STREAM for a stream that weir_use has declared: the driver does not know this stream any more, or it is a default
 * stream whose handle meant another stream at the declaration.  The block is still live, and weir forgets the
 * declaration.  Order the free after the work of that stream yourself, and call again.
 * E_CAPTURE: `stream`, or a stream that weir_use has declared, is being captured, and one of three conditions holds.
 * First, weir_use has declared streams for the block.  Second, the pool engine with options.cache off did not allocate
 * the block in that capture.  Third, with options.harden, the driver did not let a check of a block wait.  Nothing has
 * changed.  Free the block after the capture.
 * E_DRIVER, E_DEVICE_LOST, E_FORKED: see weir_status(3). */
WEIR_API weir_status weir_free(weir_allocator *allocator, void *block, weir_stream stream);

/* Allocates a block without a stream.  As with cudaMalloc, work on any stream may use the block as soon as the call has
 * returned.  If weir reuses memory that a stream has freed, the call waits for the work of that stream, and this wait
 * may take any time.  Otherwise the call only queries the driver.  Free the block by weir_free_any, or by weir_free on
 * a stream that is ordered after all uses.
 *
 * Returns OK or a status of weir_alloc other than E_STREAM and E_CAPTURE, because such a block never belongs to a
 * capture.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_alloc_any(weir_allocator *allocator, size_t bytes,
                                                      void **block);

/* Frees a block.  The function is for callers that do not know which streams have used the block.  The call waits until
 * the device has completed all work, as cudaFree does.  The wait invalidates no capture.  NULL is OK and does nothing.
 *
 * Returns OK, a status of weir_free, or this status.
 * E_NO_MEMORY: the wait needs a little memory, and neither the device nor the host has this memory.  Nothing has
 * changed.  Since 0.1. */
WEIR_API weir_status weir_free_any(weir_allocator *allocator, void *block);

/* Declares that `stream` uses the block, too.  weir_free then orders the reuse of the block after all work that was
 * submitted to `stream` before the free.  weir records no event before the free, so the stream must live until then.  A
 * second declaration of a stream changes nothing.  The call is cheap and never blocks, and calls the driver only for
 * default streams.  weir returns a freed block with declared uses to the engine, not to the per-stream cache.
 *
 * The handle of a default stream (NULL, 0x1, 0x2) declares the stream that the handle means now on this thread.  Free
 * the block in a thread and context in which the handle still means this stream.  For a per-thread default stream, free
 * the block on this thread.  Otherwise weir_free returns E_STREAM.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` or `block` is NULL.
 * E_NOT_OWNED: no live block begins at the address, and weir has declared nothing.  The pool engine with options.cache
 * off cannot detect this error.  Engines other than direct cannot detect it at an address where a block of a graph once
 * was.  weir then forgets the declaration when it allocates a block at this address.
 * E_STREAM, E_DRIVER, E_CAPTURE: only for a default stream; E_CAPTURE means that the stream is being captured.
 * E_HOST_MEMORY, E_DEVICE_LOST, E_FORKED: see weir_status(3). */
WEIR_API WEIR_CHECK_RESULT weir_status weir_use(weir_allocator *allocator, void *block,
                                                weir_stream stream);

/* Finds the live block that contains `address`.  Writes the start of the block to *block, and its requested size to
 * *bytes.  `block` and `bytes` may be NULL.  The call makes no driver call and does not block.  If no block contains
 * the address, weir logs nothing, since this is no mistake of the program.
 *
 * For the first address of a block, weir finds the block at once and without a lock.  For another address in a block
 * above 512 KiB, weir searches backwards, which takes about a microsecond for 16 MiB.  While other threads allocate or
 * free, the call may return OK or E_NOT_OWNED for an address in no live block.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` or `address` is NULL.
 * E_NOT_OWNED: no live block of the allocator contains the address.  This includes a block that was allocated under
 * stream capture, which belongs to the graph and is known only to the driver.
 * E_NOT_SUPPORTED: the pool engine with options.cache off has no records of its blocks.  Ask the driver instead.
 * E_DEVICE_LOST, E_FORKED: see weir_status(3). */
WEIR_API WEIR_CHECK_RESULT weir_status weir_block_range(weir_allocator *allocator,
                                                        const void *address, void **block,
                                                        size_t *bytes);

/* Binds a stream to the allocator.  Until weir_unbind, the caller promises two things: the caller does not destroy the
 * stream, and does not call weir_alloc on the stream while the stream is being captured.  weir then does not query the
 * stream's id and its capture status at each request.  This saves about 40 ns for each pair of weir_alloc and
 * weir_free.
 *
 * With options.cache off, the call is OK and changes nothing.  With a driver without stream ids (before 12.0), caches
 * are always off.  Unbind a stream as often as you bind it.  The caller may bind default streams (NULL, 0x1, 0x2), but
 * weir still queries their ids.  The per-thread default stream is that of the calling thread.  Never blocks.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` is NULL.
 * E_CAPTURE: the stream is being captured.
 * E_STREAM, E_HOST_MEMORY, E_DRIVER, E_DEVICE_LOST, E_FORKED: see weir_status(3). */
WEIR_API WEIR_CHECK_RESULT weir_status weir_bind(weir_allocator *allocator, weir_stream stream);

/* Ends one weir_bind.  The promise of weir_bind ends when every weir_bind has its weir_unbind.  Call the function while
 * the stream lives.  The stream's cache then releases its idle memory to the engine, and other streams can use the
 * memory once the stream's work has completed.  If a stream ends without this call, other streams get the memory of its
 * cache only when there is no other memory, or after weir_trim.  Blocks stay valid.  The destruction of the allocator
 * unbinds all streams.  With options.cache off, the call is OK and changes nothing, as for weir_bind.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` is NULL, or the stream is not bound.  Nothing has changed.
 * E_STREAM, E_CAPTURE, E_DRIVER, E_DEVICE_LOST, E_FORKED: see weir_status(3). */
WEIR_API weir_status weir_unbind(weir_allocator *allocator, weir_stream stream);

/* Grows the reserved memory until it has at least `bytes` bytes.  Writes the new size of the reserved memory to
 * *reserved; `reserved` may be NULL.  Blocks for as long as the driver needs.
 *
 * Returns one of these statuses.
 * OK: the reserved memory has at least `bytes` bytes.
 * E_INVALID: `allocator` is NULL.
 * E_LIMIT, E_NO_MEMORY: the reserved memory grew as far as possible and keeps its new size, which is in *reserved.  The
 * log has a warning with the size and the reason.
 * E_NOT_SUPPORTED: engine direct reserves no memory, or the driver (11.2) does not report how much memory a pool has
 * reserved.
 * E_DRIVER: a driver call failed.  The reserved memory may have grown.
 * E_HOST_MEMORY, E_DEVICE_LOST, E_FORKED: see weir_status(3). */
WEIR_API WEIR_CHECK_RESULT weir_status weir_preallocate(weir_allocator *allocator, size_t bytes,
                                                        size_t *reserved);

/* Sets a new limit: the maximum of memory that the allocator may reserve from now on.  The new limit cannot be above
 * options.limit.  A larger amount, and an amount of kind DEFAULT or MAX, sets the limit to options.limit.  The new
 * limit replaces a share.  A request fails with E_LIMIT if the reserved memory would have to grow above the limit.  A
 * request that is already running follows the old limit.
 *
 * The limit may be 0, or less than the bytes in use.  The call releases no memory, because a release may have to wait
 * for the device.  The program calls weir_trim when it can wait.  Reserved memory above the limit stays and can be used
 * for requests, but no memory is added.  With the engines mapped and bfc, a request above the limit may even succeed in
 * one idle piece of memory.  weir releases idle memory above the limit by itself only with a share or
 * options.keep_free, when processes come or go.
 *
 * The pool engine grows by units of 32 MiB, and rounds the limit down to whole units.  While the limit is below
 * options.limit, the pool engine makes two more driver calls for each request that its caches cannot satisfy.  The
 * driver's pool may then grow before the engine detects that no idle piece is large enough for the block.  weir
 * releases this growth once the work of the request's stream has completed.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` is NULL, or the amount is a SHARE or is no valid limit.  The log has the reason.
 * E_NOT_SUPPORTED: the engine is bfc-fixed, whose limit is its size.
 * E_DRIVER: the driver does not report its memory.  Nothing has changed.
 * E_DEVICE_LOST, E_FORKED: see weir_status(3).  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_set_limit(weir_allocator *allocator, weir_amount limit);

/* The access that the work of a device has to blocks.  The numbers are those of CUDA. */
enum { WEIR_ACCESS_NONE = 0, WEIR_ACCESS_READ = 1, WEIR_ACCESS_READ_WRITE = 3 };

/* Sets the access that the work of another device has to all blocks of the allocator, present and future ones.  The
 * call overrides options.peers for that device.  Access does not mean order.  A stream of the other device may use a
 * block only between its allocation and its free, and the program orders these by events.  If the call removes access,
 * it takes effect at once and waits for nothing, so the other device must have completed its work on the blocks.  The
 * allocator's own device always reads and writes.  A block of a graph keeps the access from the time of its capture.
 * The call does not work for memory of cuMemAlloc (engines direct and bfc).  The program opens all such memory of a
 * device by cuCtxEnablePeerAccess.
 *
 * Returns OK or one of these statuses.  On an error nothing has changed, and the log has the reason.
 * E_INVALID: `allocator` is NULL, `device` is negative, `access` is no WEIR_ACCESS_ value, or `access` is less than
 * READ_WRITE for the allocator's own device.
 * E_NO_DEVICE: there is no device with this number, or the number is above 63.
 * E_NOT_SUPPORTED: the device is no peer of the allocator's device, the memory comes from cuMemAlloc, or the driver
 * does not support the access.
 * E_DRIVER, E_DEVICE_LOST, E_FORKED: see weir_status(3).  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_set_access(weir_allocator *allocator, int device,
                                                       int access);

/* Writes the CUDA memory pool (a cudaMemPool_t) of the pool engine to *pool.  Use it for libraries that need a pool,
 * such as RMM's cuda_async_view_memory_resource, and for cudaMallocFromPoolAsync.  Requests to this pool share the
 * reserved memory and the preallocation of weir.  With a driver that limits pools (from 12.2 on), these requests also
 * share the limit.
 *
 * The driver itself allocates the blocks of such requests, without weir's caches.  weir does not know their blocks, so
 * do not pass these blocks to weir_free.  With options.cache off, weir_stats includes the blocks in in_use.  With
 * options.cache on, weir_stats reports them as idle memory.  The pool belongs to weir: do not destroy it, and do not
 * set its attributes.  Free all blocks of the pool before weir_allocator_destroy.  Never blocks.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: an argument is NULL.
 * E_NOT_SUPPORTED: the allocator has another engine.  If no engine is chosen, a device that can map memory has another
 * engine.
 * E_DEVICE_LOST, E_FORKED: see weir_status(3).  Since 0.1. */
struct CUmemPoolHandle_st;
WEIR_API WEIR_CHECK_RESULT weir_status weir_pool(weir_allocator *allocator,
                                                 struct CUmemPoolHandle_st **pool);

/* Releases idle memory to the device until at most `keep` bytes stay reserved.  The engine can release only whole idle
 * units, so more than `keep` bytes may stay.  Writes the number of released bytes to *released; `released` may be NULL.
 * Idle memory of the per-stream caches, and of private pools without users (weir/tensors.h), first returns to the
 * engine.  With engine direct, only the caches and private pools without users have idle memory.
 *
 * The call waits for the device in three cases.  First, work may still use freed memory for which weir has recorded no
 * event.  Second, a private pool without users has memory.  Third, the engine releases memory of cuMemAlloc (engines
 * bfc and direct), because cuMemFree waits.  Memory of the driver's pool with pending work stays reserved.  But if weir
 * does not know on which stream small blocks in this memory were freed, the call waits for the device.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` is NULL.
 * E_NO_MEMORY: the call would have to wait for the device, and neither the device nor the host has the little memory
 * that the wait needs.
 * E_HOST_MEMORY: the host has no memory.  With engine mapped, the host may also lack the memory for a list of the idle
 * memory.
 * E_DRIVER, E_DEVICE_LOST, E_FORKED: see weir_status(3). */
WEIR_API weir_status weir_trim(weir_allocator *allocator, size_t keep, size_t *released);

/* The memory that the process has reserved through weir on all devices, in bytes.  The caller sets `size` before the
 * call. */
typedef struct weir_process_memory {
    size_t size;       /* the bytes of this struct that the library has filled in */
    uint64_t released; /* the bytes that this call has released to the devices */
    uint64_t reserved; /* the bytes that are still reserved */
    /* The bytes of `reserved` that are in live blocks.  The other bytes are idle, but weir cannot release them, because
     * they lie in physical allocations that also contain live blocks. */
    uint64_t in_use;
} weir_process_memory;

/* Releases all idle memory of each allocator of the process, as weir_trim with 0 bytes does, and may wait for the
 * devices.  The call creates no allocator and no context.  Set out->size to sizeof(*out) before the call.  The call
 * fills *out as far as both sizes allow, and writes the size of this part to out->size.  The call skips allocators
 * whose device was lost.  If one allocator fails, the call still trims the other allocators, fills *out, and returns
 * the first error.
 *
 * Returns OK, a status of weir_trim, or one of these statuses.
 * E_INVALID: `out` is NULL, or out->size is 0.
 * E_FORKED: the call came from a child of fork().  Since 0.2. */
WEIR_API weir_status weir_process_trim(weir_process_memory *out);

/* Releases idle memory to the device that options.decay_ms or a finite options.release_threshold no longer protects.
 * Writes the number of released bytes to *released; `released` may be NULL.  The function is for programs that make no
 * requests for a long time, or only requests that per-stream caches satisfy.  Any thread may call the function.
 *   decay       Call the function about once every half-life.  It does nothing until a half-life is over, or until
 *               there is memory pressure (weir_low_memory).  Then it works as weir_trim does, and may wait.
 *   threshold   For the engines mapped and bfc.  Call the function after the host has waited for the device, for
 *               example at the end of an iteration, where CUDA's own pool releases memory.  The function finds out,
 *               without a wait, which frees have completed, and releases idle memory above the threshold.  Only
 *               cuMemFree, for engine bfc, may wait.
 *
 * Returns OK, a status of weir_trim, or one of these statuses.
 * E_INVALID: `allocator` is NULL.
 * E_NOT_SUPPORTED: decay is off, and there is neither a finite threshold nor memory pressure.  This status also means
 * that weir reserves no memory (engine direct, or a pool of driver 11.2), or that the engine is bfc-fixed.  The log has
 * the reason, once. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_decay(weir_allocator *allocator, size_t *released);

/* Reports memory pressure: another library of the process, or another program, needs `bytes` bytes of the device.  0
 * bytes mean as much as possible.  The call only records the number, and any thread may make the call.  The call takes
 * no lock, makes no driver call, and releases no memory itself.
 *
 * For one second after the call, requests that the per-stream caches cannot satisfy release idle memory, until `bytes`
 * bytes are released.  Such a request does not release memory that a preallocation, a finite release threshold or
 * options.grow_ahead protects.  It does not release memory that needs a wait, nor idle memory of the per-stream caches.
 * weir_decay releases idle memory at once, also that of the caches.  Call weir_decay if the program makes no such
 * requests.  Also call it for engines with regions of cuMemAlloc (bfc; direct with options.cache on), whose release
 * needs a wait.  The release of the memory is an event with cause low-memory.  If a request of another allocator of the
 * process finds the device full, weir reports memory pressure itself.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` is NULL.
 * E_NOT_SUPPORTED: weir reserves no memory (engine direct, or a pool of driver 11.2), or the engine is bfc-fixed.  The
 * log has the reason.
 * E_DEVICE_LOST, E_FORKED: see weir_status(3). */
WEIR_API WEIR_CHECK_RESULT weir_status weir_low_memory(weir_allocator *allocator, size_t bytes);

/* Writes how much memory this run has needed so far to a profile.  `path` names the profile; NULL means
 * options.profile.  The profile keeps the records of earlier runs (see options.profile).  A later call, and the
 * destruction of the allocator, replace the record of this call.  Before the allocator's first request, the call writes
 * nothing and returns OK.  The call replaces the file as a whole, so a reader sees either the old file or the new file.
 * If two runs write at one time, one record may be missing.  The call does not replace a file that is no profile.
 * Blocks for as long as the file system needs.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator` is NULL, or neither `path` nor options.profile names a profile.
 * E_NOT_SUPPORTED: the engine is direct or bfc-fixed, which cannot use a profile.  The log has the reason.
 * E_FILE, E_HOST_MEMORY, E_DRIVER, E_DEVICE_LOST, E_FORKED: see weir_status(3). */
WEIR_API WEIR_CHECK_RESULT weir_status weir_profile_save(weir_allocator *allocator,
                                                         const char *path);

#ifdef __cplusplus
}
#endif

#endif
