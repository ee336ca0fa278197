/* SPDX-License-Identifier: MIT */
/* weir/allocator.h: allocates device memory in stream order.
 *
 * Most programs need six calls: weir_allocator_create, weir_alloc, weir_free, weir_stats (weir/stats.h), weir_trim and
 * weir_allocator_destroy.  weir/weir.h has a whole program that uses them.
 *
 * Stream order.  Work submitted to stream s may use a block at once when weir_alloc returns it for s.  The caller
 * may call weir_free(block, s) at once too, while that work still runs.  weir reuses the memory on s right away,
 * behind the work, because s runs in order.  On other streams weir reuses it only behind an ordering that it
 * establishes itself.  The caller promises that s is ordered after every use of the block, except uses on streams
 * declared with weir_use.
 *
 * All functions are thread-safe on one allocator.  None may be called from a signal handler or from a host function
 * that runs on a stream.  None changes the current CUDA context.
 *
 * Threads.  weir starts a thread for each device that processes share (see options.registry), and one for an allocator
 * with options.grow_ahead.  These threads take no signals.  They last until the allocators that they serve are
 * destroyed, or the process exits.  If the main thread calls pthread_exit while such a thread lives, the process does
 * not end with the program's last thread, and SIGTERM does not end it either.  End such a process by exit(), or
 * destroy the allocators first.  The driver's own threads may keep the process alive as well.
 *
 * Statuses.  A function that calls the driver also returns E_NO_MEMORY if the driver itself is out of memory, and
 * E_DEVICE_LOST if the driver reports the device as lost. */
#ifndef WEIR_ALLOCATOR_H
#define WEIR_ALLOCATOR_H

#include <stddef.h>
#include <stdint.h>

#include <weir/options.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A stream, of the type of CUstream and cudaStream_t.  NULL is the legacy default stream of the current context;
 * (weir_stream)0x1 and 0x2 are the legacy and the per-thread default stream. */
typedef struct CUstream_st *weir_stream;

/* An allocator of one device. */
typedef struct weir_allocator weir_allocator;

/* Returns the library's version, "0.1.0".  The text is static.  Thread-safe, never blocks. */
WEIR_API const char *weir_version(void);

/* Makes an allocator on one device and writes it to *allocator, only on success.  The caller destroys it.  `options`
 * may be NULL, which means all defaults; the call itself does not read the environment (see weir_options_from_env).
 * The call loads the driver, preallocates if the options say so, and holds the device's primary context until the
 * allocator is destroyed.  Partial preallocation is success, down to options.prealloc_min; weir_stats reports the
 * bytes that were requested, provided and kept.
 *
 * The call may block for as long as the driver takes to start and to preallocate.  While it preallocates, it also waits
 * for other processes of the user that preallocate on the device: 10 s at most.  These processes share a file in
 * /dev/shm, or in /tmp if that is not available.  If other processes hold all memory of the device, the call waits a
 * second for them to make room for the context.
 *
 * E_INVALID: `allocator` is NULL, or an option is wrong; the log (options.log) names it.
 * E_HOST_MEMORY; E_NO_DEVICE.
 * E_NOT_SUPPORTED: the driver or the device lacks a feature that an option needs.
 * E_LIMIT: preallocation above the limit; or a limit below 32 MiB with the pool engine, which counts in such units.
 * E_NO_MEMORY: no room for the context, preallocation above the device's memory, less than options.prealloc_min
 * preallocated, or nothing at all with engine bfc-fixed.
 * E_DRIVER; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_allocator_create(const weir_options *options,
                                                             weir_allocator **allocator);

/* The most devices for which one call makes allocators. */
enum { WEIR_MOST_DEVICES = 64 };

/* Makes an allocator on each of `count` devices and writes them to allocators[0 .. count - 1]: all of them, or none.
 * `devices` has the device numbers; NULL means 0 to count - 1.  options.device names the driver; its number has no
 * effect.  All other options apply to each device: a preallocation of 8 GiB is 8 GiB on each, and peers "all" are
 * all other devices that can be peers.  A profile should be a folder, where each device has its own file.  Each
 * allocator is like any other, with its own weir_stats, and the caller destroys each.
 * Blocks as weir_allocator_create does, for one device after the other.
 * E_INVALID: `allocators` is NULL, `count` is 0 or above 64, or a device is named twice or negative.  Other statuses
 * are those of the first allocator that cannot be made.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_allocators_create(const weir_options *options,
                                                              const int *devices, size_t count,
                                                              weir_allocator **allocators);

/* Destroys the allocator and gives all its memory back to the device.  NULL is OK and does nothing.  The caller must
 * not use the allocator afterwards.  The call waits for all work of the device, however
 * long that takes, except on engine direct with options.cache off, so frees that are still pending complete.
 * E_BUSY: live blocks, frees that wait for the end of a capture, or no memory for that wait.  Nothing changed, but a
 * pool may have given idle memory back.  The caller may try again.
 * E_FORKED: the host memory of the child stays as it is. */
WEIR_API weir_status weir_allocator_destroy(weir_allocator *allocator);

/* Writes the process's allocator for the device that the environment names to *allocator.  The first call makes the
 * allocator as weir_options_from_env says; weir never destroys it.  Preallocation happens at its first request.
 * Variables of TensorFlow, XLA and JAX name no engine here.  They ask for a preallocation only if such a framework is
 * told to use CUDA's memory pools (weir-settings(7), COMPATIBILITY).
 *
 * If the environment names no engine, the engine is mapped, or the pool engine if the device cannot map memory.  Beside
 * libweir-preload.so it is the pool engine: that library serves the pool, and decides on its reserved memory and limit.
 *
 * Thread-safe.  The first call blocks as weir_allocator_create does; later calls do not block.  Statuses are those of
 * weir_allocator_create, and E_PARSE for a bad variable.  If there is no allocator, a line on standard error gives the
 * reason and the variables that are set.  weir prints it once for each bad variable and for each other status, unless
 * WEIR_LOG is none. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_default_allocator(weir_allocator **allocator);

/* Finds or makes the allocator of device number `device`, of the driver that the environment names.  There is one
 * allocator for each device; the first call makes it, and all callers share it.  WEIR_DEVICE=cuda:1 makes device 1 the
 * default and changes nothing here.  The variables apply to each allocator: WEIR_PREALLOC=8GiB is 8 GiB on each device
 * in use, and WEIR_LIMIT counts for each device, too.  weir reads the environment until the first allocator is made,
 * and not after.  Once the allocator exists, the call is a load without a lock.  Otherwise it works as
 * weir_default_allocator.
 * E_INVALID: `allocator` is NULL, or `device` is negative.
 * E_NO_DEVICE: there is no device of that number, or it is above 63.  Other statuses are those of
 * weir_default_allocator.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_device_allocator(int device,
                                                             weir_allocator **allocator);

/* Finds or makes the allocator of the stream's device, and writes it to *allocator.  A default stream (NULL, 0x1, 0x2)
 * belongs to the current context's device, or to the environment's if no context is current.  With one visible device
 * the call is a load.  Otherwise weir queries the driver once (some tens of ns); a caller that knows the device calls
 * weir_device_allocator.
 * E_STREAM: the driver does not know the stream.
 * E_DRIVER.  Other statuses are those of weir_device_allocator.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_stream_allocator(weir_stream stream,
                                                             weir_allocator **allocator);

/* Finds the process's allocator that has the block in which the address `block` lies, and writes it to *allocator.
 * While the process has only one such allocator, the call writes that one without a check of the address; else it works
 * as weir_block_range.
 * E_INVALID: an argument is NULL.
 * E_NOT_OWNED: no allocator has the block, no allocator is made yet, or the block belongs to a graph.
 * E_NOT_SUPPORTED: the pool engine with options.cache off cannot tell.
 * E_DEVICE_LOST: an allocator that is lost may have it.
 * E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_block_allocator(const void *block,
                                                            weir_allocator **allocator);

/* Allocates a block of at least `bytes` bytes for use on `stream`, aligned to at least 256 bytes, and writes its device
 * address to *block, only on success.  0 bytes give NULL and OK.  The contents are undefined.
 *
 * With options.cache on, a per-stream cache serves requests with memory that the stream freed itself, without the
 * engine: requests of up to 512 KiB, and larger ones of the size of a block that the stream has just freed.  A stream
 * that is being captured gets nothing from its cache.  Its block is a memory node of the graph (all engines but
 * direct; see E_CAPTURE in weir_status(3)).  The driver serves that node at each launch; the memory is in no
 * allocator's reserved memory and under no limit.  Free it in the capture, or behind a launch.
 *
 * A cache hit does not block.  A pool growth takes as long as the driver needs.  If memory ran out, the call waits up
 * to the recovery timeout for frees to complete.  In two cases it waits for the device, however long that takes:
 *
 * Case 1: memory ran out, and caches hold idle blocks, or streams that do not call any more have freed memory.  weir
 * waits unless the recovery timeout is UINT32_MAX.
 *
 * Case 2: the device has no more memory, and idle memory of the process's other allocators on it may be enough.  These
 * allocators give it back, as for weir_low_memory.
 *
 * At last weir calls options.oom_callback, if there is one, which decides whether weir tries the request again.  Beside
 * a capture in global or thread-local mode the pool engine with options.cache off acts as the driver does: its call
 * breaks the capture, as cudaMallocAsync would.
 *
 * E_INVALID: `allocator` or `block` is NULL.
 * E_NO_MEMORY; E_LIMIT (see weir_last_failure); E_STREAM; E_CAPTURE; E_HOST_MEMORY; E_DRIVER; E_DEVICE_LOST;
 * E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_alloc(weir_allocator *allocator, size_t bytes,
                                                  weir_stream stream, void **block);

/* Allocates a block as weir_alloc does, and returns its address, or the weir_status, which is negative, as a number.
 * It is for languages in which an output argument is slow, such as Python with ctypes.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT intptr_t weir_alloc_address(weir_allocator *allocator, size_t bytes,
                                                       weir_stream stream);

/* Frees a block in the order of `stream`: see "Stream order" in weir_allocator(3).  NULL is OK and does nothing.
 * Engine direct waits for the device, as cuMemFree does; other engines do not block.
 * E_INVALID: `allocator` is NULL.
 * E_HOST_MEMORY: nothing changed.
 * E_NOT_OWNED: no live block begins there, and nothing changed.  weir detects this whatever became of the memory: freed
 * once already, pending, merged, given back, another allocator's, or a place within a block.  It cannot detect three
 * mistakes.  A second free of an address at which another live block begins by now frees that block.  Two frees of one
 * block by two threads at one moment are a race of the program, and may both succeed.  The pool engine with
 * options.cache off detects only the mistakes that the driver detects: it frees a block of another pool or of
 * cuMemAlloc.  Engines other than direct detect no more than that at an address where a block of a graph once was.
 * E_STREAM: nothing changed.
 * E_STREAM for a stream of weir_use: nothing was freed, and weir forgets that stream.  Order the free behind the
 * stream's work yourself, and call again.  The driver does not know the stream any more, or it is a default stream, and
 * its handle meant another stream when weir_use declared it.
 * E_CAPTURE: `stream`, or one that weir_use declared, is being captured, and one of these holds: weir_use declared
 * streams for the block; it was not allocated in that capture (pool engine with options.cache off); with
 * options.harden, the driver did not let a check of a block wait.  Nothing changed; free the block after the capture.
 * A free of any other block from outside the capture succeeds.  It takes effect when the capture has ended or been
 * aborted, or once weir has waited for the device, as a trim does (engine direct: at once).  Do not launch a graph that
 * uses the block any more.
 * E_DRIVER; E_DEVICE_LOST; E_FORKED. */
WEIR_API weir_status weir_free(weir_allocator *allocator, void *block, weir_stream stream);

/* Allocates a block without naming a stream.  Work on any stream may use it as soon as the call has returned, as
 * with cudaMalloc.  If weir reuses memory that a stream has freed, it waits for that stream's work, however long it
 * takes; otherwise the wait is a query to the driver.  weir_free may free the block, too, on a stream that is ordered
 * after its uses.  Statuses are those of weir_alloc but E_STREAM and E_CAPTURE: such a block never belongs to a
 * capture.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_alloc_any(weir_allocator *allocator, size_t bytes,
                                                      void **block);

/* Frees any block, for callers that do not know which streams have used it.  The call waits until the device has
 * finished all work, as cudaFree does, and harms no capture.  NULL is OK and does nothing.
 * E_NO_MEMORY: the wait needs a little memory, which neither the device nor the host has; nothing changed.  Other
 * statuses are those of weir_free.  Since 0.1. */
WEIR_API weir_status weir_free_any(weir_allocator *allocator, void *block);

/* Declares that `stream` uses the block too.  weir_free then orders the reuse of the block after all work submitted to
 * `stream` before the free.  weir records nothing before the free, so the stream must live until then.  Declaring a
 * stream again changes nothing.  The call is cheap, and makes no driver call except for default streams.  Never blocks.
 * A block with declared uses goes to the engine when freed, not to the per-stream cache.
 *
 * The handle of a default stream (NULL, 0x1, 0x2) declares the stream that it means on this thread now.  Free the block
 * where the handle still means that stream (a per-thread default stream: on this thread); elsewhere weir_free returns
 * E_STREAM.
 *
 * E_INVALID: an argument other than the stream is NULL.
 * E_NOT_OWNED: no live block begins there, and nothing was noted.  The pool engine with options.cache off cannot tell.
 * Neither can engines other than direct where a block of a graph once was.  weir then forgets the note when it
 * allocates that address.
 * E_HOST_MEMORY; E_DEVICE_LOST; E_FORKED.  A default stream can also give E_STREAM, E_DRIVER, and E_CAPTURE if the
 * stream is being captured. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_use(weir_allocator *allocator, void *block,
                                                weir_stream stream);

/* Finds the block that `address` lies in, and writes its beginning to *block and its requested bytes to *bytes.  Each
 * of these two may be NULL.  A miss is no error of the program: the log has no line for it.  The call makes no driver
 * call and does not block.  weir finds a block by its first address at once, without a lock.  For another address in a
 * block above 512 KiB weir searches backwards (16 MiB in about a microsecond).  While other threads allocate or free,
 * the call may return either result for an address in no live block.
 * E_INVALID: `allocator` or `address` is NULL.
 * E_NOT_OWNED: no live block of the allocator is there; or the block was allocated under stream capture, belongs to
 * the graph and is known to the driver.
 * E_NOT_SUPPORTED: the pool engine with options.cache off keeps no records: ask the driver.
 * E_DEVICE_LOST; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_block_range(weir_allocator *allocator,
                                                        const void *address, void **block,
                                                        size_t *bytes);

/* Binds a stream to the allocator.  The caller promises that until weir_unbind it does not destroy the stream, and
 * does not call weir_alloc on it while it is being captured.  Weir then asks the driver neither for the stream's id
 * nor for its capture status at each request.  This saves about 40 ns for each pair of weir_alloc and weir_free.
 * With options.cache off the call is OK and changes nothing; caches are always off with a driver without stream ids
 * (before 12.0).  Unbind a stream as often as you bind it.  Default streams (NULL, 0x1, 0x2) may be bound, and weir
 * still tells them apart by id; a per-thread default stream is that of the calling thread.  Never blocks.
 * E_INVALID: `allocator` is NULL.
 * E_CAPTURE: the stream is being captured.
 * E_STREAM; E_HOST_MEMORY; E_DRIVER; E_DEVICE_LOST; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_bind(weir_allocator *allocator, weir_stream stream);

/* Ends one weir_bind; the promise ends with the last one.  Call it while the stream lives.  The stream's cache
 * then gives its idle memory back, which serves every stream once the stream's work is done.  If a stream ends
 * without this call, its cache's memory serves other streams only when memory runs out, or after weir_trim.  Blocks
 * stay valid.  Destroying the allocator unbinds all streams.  With options.cache off the call is OK, as weir_bind is.
 * E_INVALID: `allocator` is NULL, or the stream is not bound; nothing changed.
 * E_STREAM; E_CAPTURE; E_DRIVER; E_DEVICE_LOST; E_FORKED. */
WEIR_API weir_status weir_unbind(weir_allocator *allocator, weir_stream stream);

/* Grows reserved memory now until it is at least `bytes`, and writes its new size to *reserved (may be NULL).  Blocks
 * for as long as the driver takes.
 * OK: *reserved is at least `bytes`.
 * E_INVALID: `allocator` is NULL.
 * E_LIMIT, E_NO_MEMORY: reserved memory grew as far as possible and stays so; *reserved has its size.  The log has a
 * warning with the size and the reason.
 * E_NOT_SUPPORTED: engine direct reserves nothing, and driver 11.2 does not report what a pool has reserved.
 * E_DRIVER: reserved memory may have grown.
 * E_HOST_MEMORY; E_DEVICE_LOST; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_preallocate(weir_allocator *allocator, size_t bytes,
                                                        size_t *reserved);

/* Sets the most memory that the allocator may reserve from now on: options.limit or less.  An amount above
 * options.limit counts as options.limit, and so does an amount of kind DEFAULT or MAX.  The new limit replaces a
 * share.  A request that would grow reserved memory past it returns E_LIMIT.  A request already under way follows the
 * old limit.
 *
 * The limit may be less than the bytes in use, or 0.  The call gives no memory back, because that may have to wait for
 * the device; the program calls weir_trim when it can wait.  Reserved memory above the limit stays and
 * serves requests, but does not grow.  With the engines mapped and bfc one idle piece serves even a request for more
 * than the limit.  Only with a share or options.keep_free does idle memory above the limit go back, when processes come
 * or go.
 *
 * The pool grows by units of 32 MiB, and uses the limit in whole units.  While the limit is below options.limit, the
 * pool engine asks the driver twice more at each request that its caches do not serve.  The driver's pool may grow
 * before the engine detects that no idle piece holds the block.  This growth goes back to the device once the work of
 * the request's stream is done.
 *
 * E_INVALID: `allocator` is NULL, or the amount is a SHARE or one that options.limit accepts on no device; the log
 * gives the reason.
 * E_NOT_SUPPORTED: engine bfc-fixed, whose limit is its size.
 * E_DRIVER: nothing changed; the driver does not report its memory.
 * E_DEVICE_LOST; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_set_limit(weir_allocator *allocator, weir_amount limit);

/* The access of a device's work to blocks; the numbers are CUDA's. */
enum { WEIR_ACCESS_NONE = 0, WEIR_ACCESS_READ = 1, WEIR_ACCESS_READ_WRITE = 3 };

/* Gives the work of another device access to the allocator's blocks, both live and future ones, or takes it away.
 * It overrides options.peers for that device.  Access is not order: like a stream of the allocator's own device, a
 * stream of the other device may use a block only between its allocation and its free, ordered by events.  Taking
 * access away works at once and waits for nothing, so the other device must be done with the blocks.  The allocator's
 * own device always reads and writes.  A block of a graph keeps the access that held when it was captured.  The call
 * does not work for memory of cuMemAlloc (engine direct, engine bfc); the program opens all such memory of a device
 * with cuCtxEnablePeerAccess.
 * E_INVALID: `allocator` is NULL, the device is negative, `access` is no WEIR_ACCESS_ value, or `access` is less than
 * READ_WRITE for the allocator's own device.
 * E_NO_DEVICE: there is no device of that number, or it is above 63.
 * E_NOT_SUPPORTED: the device is no peer of the allocator's, or the memory is cuMemAlloc's, or the driver cannot.
 * E_DRIVER; E_DEVICE_LOST; E_FORKED.  On an error nothing changed; the log says why.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_set_access(weir_allocator *allocator, int device,
                                                       int access);

/* Writes the CUDA memory pool (a cudaMemPool_t) of the pool engine to *pool, for libraries that need a pool, such as
 * RMM's cuda_async_view_memory_resource, and for cudaMallocFromPoolAsync.  Their requests share the pool's reserved
 * memory, its preallocation and, with a driver that limits pools (12.2), its limit.  The driver serves them, at the
 * driver's cost, not weir's caches.  Weir does not know those blocks, so weir_free must not be called with them.  With
 * options.cache off they are part of in_use in weir_stats; with it on weir counts them as idle memory.  The pool
 * belongs to weir: do not destroy it, and do not set its attributes.  Free the blocks of the pool before
 * weir_allocator_destroy.  Never blocks.
 * E_INVALID: an argument is NULL.
 * E_NOT_SUPPORTED: the engine is another one, as by default if the device can map memory.
 * E_DEVICE_LOST; E_FORKED.  Since 0.1. */
struct CUmemPoolHandle_st;
WEIR_API WEIR_CHECK_RESULT weir_status weir_pool(weir_allocator *allocator,
                                                 struct CUmemPoolHandle_st **pool);

/* Gives idle memory back to the device until at most `keep` bytes stay reserved, as far as whole units are idle.  It
 * writes the bytes given back to *released (may be NULL).  Idle memory of the per-stream caches, and of private pools
 * without users (weir/tensors.h), goes back to the engine first.  The call waits for the device if work may still use
 * freed memory and weir recorded no event for it, and if a private pool without users has memory.  It also waits if the
 * engine gives memory of cuMemAlloc back, since cuMemFree waits (engines bfc and direct).  Memory of the driver's pool
 * that has pending work stays, unless weir does not know on which stream small blocks in it were freed: then the call
 * waits.  With engine direct only the caches and private pools without users have idle memory.
 * E_INVALID: `allocator` is NULL.
 * E_NO_MEMORY: the call would have to wait for the device, and neither the device nor the host has the little memory
 * that the wait needs.
 * E_HOST_MEMORY: with engine mapped the host also lacks the memory for a list of the idle memory.
 * E_DRIVER; E_DEVICE_LOST; E_FORKED. */
WEIR_API weir_status weir_trim(weir_allocator *allocator, size_t keep, size_t *released);

/* The memory that the process has from weir on all devices, in bytes.  The caller sets `size`. */
typedef struct weir_process_memory {
    size_t size;       /* bytes of the struct that the library filled in */
    uint64_t released; /* bytes that the call gave back to the devices */
    uint64_t reserved; /* bytes that are still reserved */
    /* Bytes of `reserved` in live blocks.  All other reserved bytes are idle, but share physical memory with live
     * blocks. */
    uint64_t in_use;
} weir_process_memory;

/* Trims each allocator of the process to 0 bytes, as weir_trim does, and may wait for their devices.  It makes no
 * allocator and no context.  Set out->size to sizeof(*out) before the call, which fills the smaller of both sizes and
 * writes that size to out->size.  It skips allocators whose device was lost.  If one allocator fails, the call still
 * trims the others, fills *out, and returns the first error.
 * E_INVALID: `out` is NULL, or out->size is 0.
 * E_FORKED.  Other statuses are those of weir_trim.  Since 0.1. */
WEIR_API weir_status weir_process_trim(weir_process_memory *out);

/* Gives idle memory that has decayed by now (options.decay_ms), or is above a finite options.release_threshold, back to
 * the device, and writes its bytes to *released (may be NULL).  It is for programs that make no requests for long, or
 * only requests that their per-stream caches serve.  Any thread may call it.
 *   decay       Call it about every half-life.  It does nothing until a half-life is over, or there is memory pressure
 *               (weir_low_memory).  Then it works as weir_trim does, and may wait.
 *   threshold   For the engines mapped and bfc.  Call it after the host has waited for the device, as at the end of an
 *               iteration, where CUDA's own pool gives memory back.  It observes which frees are complete without a
 *               wait, and gives back what is above the threshold.  Only cuMemFree, for engine bfc, may wait.
 * E_INVALID: `allocator` is NULL.
 * E_NOT_SUPPORTED: decay is off, and there is neither such a threshold nor memory pressure; or nothing is reserved
 * (engine direct; a pool of driver 11.2), or the engine is bfc-fixed.  The log gives the reason, once.  Other statuses
 * are those of weir_trim. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_decay(weir_allocator *allocator, size_t *released);

/* Reports memory pressure: another library of the process, or another program, needs `bytes` bytes of the device (0
 * means as much as possible).  The call only records the number, from any thread: it takes no lock, makes no driver
 * call, and gives nothing back itself.
 *
 * For one second, requests that go beyond their per-stream caches give idle memory back, until `bytes` have gone.  They
 * keep memory that a preallocation, a finite release threshold or options.grow_ahead protects, and memory that could go
 * only after a wait.  Idle memory of the per-stream caches stays, too.  weir_decay gives idle memory back at once, with
 * that of the caches.  It is for programs that make no such requests, and for engines with regions of cuMemAlloc (bfc;
 * direct with options.cache on), which cannot go back without a wait.  The memory given back is an event of cause
 * low-memory.  If a request of another allocator of the process finds the device full, weir reports the pressure
 * itself.
 *
 * E_INVALID: `allocator` is NULL.
 * E_NOT_SUPPORTED: nothing is reserved (engine direct; a pool of driver 11.2), or the engine is bfc-fixed; the log
 * gives the reason.
 * E_DEVICE_LOST; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_low_memory(weir_allocator *allocator, size_t bytes);

/* Writes the memory that this run has needed so far to the profile `path` (NULL: that of options.profile), beside the
 * records of earlier runs; see options.profile.  A later call, and the destruction, replace the record of this call.
 * Before the first request the call writes nothing and returns OK.  It replaces the file as a whole: a reader sees the
 * old file or the new one.  If two runs write at one moment, one record may be missing.  The call does not replace a
 * file that is no profile.  Blocks for as long as the file system takes.
 * E_INVALID: `allocator` is NULL, or there is neither a path nor options.profile.
 * E_NOT_SUPPORTED: engines direct and bfc-fixed have nothing to learn; the log says so, too.
 * E_FILE; E_HOST_MEMORY; E_DRIVER; E_DEVICE_LOST; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_profile_save(weir_allocator *allocator,
                                                         const char *path);

#ifdef __cplusplus
}
#endif

#endif
