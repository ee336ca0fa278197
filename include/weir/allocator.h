/* SPDX-License-Identifier: MIT */
/* weir/allocator.h: device memory in stream order.
 *
 * Stream order, in one paragraph.  A block that weir_alloc returns for stream s may be used at once
 * by work submitted to s.  weir_free(block, s) may be called at once too, while that work still
 * runs: the memory is reused on s right away (behind the work, as s runs in order) and elsewhere
 * only behind an ordering that weir establishes itself.  The caller promises that s is ordered after
 * every use of the block, except uses on streams declared with weir_use.
 *
 * All functions are thread-safe on one allocator; none may be called from a signal handler or from
 * a host function that runs on a stream.  None leaves another CUDA context current than it found.
 *
 * Threads of weir's own (one for each device that processes share, see options.ledger; one of an allocator with
 * headroom, or that preallocates in the background) take no signals, and last until the allocators that they are for
 * are destroyed, or the process exits.  So a process whose main thread calls pthread_exit beside one of these does not
 * end with the program's last thread, nor does SIGTERM end it then: end it by exit(), or destroy the allocators first.
 * The driver's own threads may keep it as well.
 *
 * Beside what is listed with it, a function that asks the driver answers E_NO_MEMORY where the driver
 * says that it is out of memory itself, and E_DEVICE_LOST where it says that the device is lost.
 */
#ifndef WEIR_ALLOCATOR_H
#define WEIR_ALLOCATOR_H

#include <stddef.h>
#include <stdint.h>

#include <weir/options.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A stream: the same type as CUstream and cudaStream_t.  NULL is the legacy default stream of the
 * current context; (weir_stream)0x1 and 0x2 are the legacy and the per-thread default stream. */
typedef struct CUstream_st *weir_stream;

typedef struct weir_allocator weir_allocator;

/* The library's version, "0.1.0".  Static text. */
WEIR_API const char *weir_version(void);

/* Makes an allocator on one device and writes it to *allocator, only on success.  `options` may be
 * NULL (all defaults; the environment is read by weir_options_from_env alone).  Loads the driver,
 * holds the device's primary context until destroyed, and preallocates if told to (partial success
 * is success, down to options.prealloc_min: weir_stats reports asked, got and kept).  May block for as
 * long as the driver takes to start and to preallocate, and then for other processes of the user that
 * preallocate on the device: half of options.prealloc_deadline_ms, 10 s if that is not set.  They share
 * a file in /dev/shm, or in /tmp where that cannot be had.  Where other processes hold all of the device, they
 * have a second to make room for the context.
 * E_INVALID, E_HOST_MEMORY; E_NO_DEVICE; E_NOT_SUPPORTED; E_LIMIT: preallocation above the limit, or a limit of less
 * than 32 MiB, where the engine counts by that (the pool, and engine direct with the front on);
 * E_NO_MEMORY: no room for the context, preallocation above the device's memory, less got than
 * options.prealloc_min, or a fixed arena got nothing at all;
 * E_DRIVER; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_allocator_create(const weir_options *options,
                                                             weir_allocator **allocator);

/* The most devices that one call makes allocators for. */
enum { WEIR_MOST_DEVICES = 64 };

/* Makes an allocator on each of `count` devices, by their numbers (devices NULL: 0 to count - 1), and writes them
 * to allocators[0 .. count - 1]: all of them, or none.  options.device says which driver, and its number nothing;
 * all else is for each of them: a preallocation of 8 GiB is 8 GiB on each, peers "all" are all others that can.
 * A profile should be a folder, where each device has a file of its own.  Each is an allocator like any
 * other, with weir_stats of its own, and destroyed for itself.
 * E_INVALID: allocators NULL, no devices or more than 64, or one of them twice or negative; else the status of the
 * first one that cannot be made.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_allocators_create(const weir_options *options,
                                                              const int *devices, size_t count,
                                                              weir_allocator **allocators);

/* Frees the allocator and gives all its memory back.  NULL is OK.  Nobody may use it any more.
 * Waits up to the recovery timeout for streams that still have frees pending, and then for the device,
 * however long that takes, but on engine direct with the front off.
 * E_BUSY: live blocks, frees pending past the deadline, or no memory for that wait: nothing changed, but that
 * a pool may have given idle reserve back, and it may be tried again.  E_FORKED: host memory
 * of the child is left alone. */
WEIR_API weir_status weir_allocator_destroy(weir_allocator *allocator);

/* The allocator of the process for the device that the environment names, made by the first call
 * as by weir_options_from_env, never destroyed; preallocation happens at its first request.  Variables of TensorFlow,
 * XLA and JAX name no engine here, and ask for a preallocation only where such a framework is told to ask CUDA's memory
 * pools (weir-settings(7), COMPATIBILITY).  Where the environment names neither engine nor arena, nor sets a release
 * threshold or WEIR_EXPORT=on, it is engine mapped, or where the device cannot map, the pool engine; the same beside
 * libweir-preload.so, which serves that pool.  WEIR_ARENA alone selects engine bfc.  Statuses
 * as weir_allocator_create, and E_PARSE for a bad variable.  Why there is none, and which variables are set, is a line
 * on standard error, once for each bad variable and for each other status, unless WEIR_LOG is none. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_default_allocator(weir_allocator **allocator);

/* The same for device number `device`, of the driver that the environment names: one allocator for each
 * device, made when it is first asked for, for all who ask.  WEIR_DEVICE=cuda:1 makes that of device 1 the
 * default one and changes nothing here.  Each has what the variables say for itself: WEIR_PREALLOC=8GiB is 8 GiB
 * on each device in use, WEIR_LIMIT likewise.  The environment is read until the first of them is made, and
 * not after.  Once it is made, a load, without a lock.
 * E_INVALID: NULL, or `device` is negative; E_NO_DEVICE: there is none of that number, or it is above 63;
 * else as weir_default_allocator.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_device_allocator(int device,
                                                             weir_allocator **allocator);

/* The same for the device that the stream is of, as cudaMallocAsync means it; a default stream (NULL, 0x1,
 * 0x2) is of the current context's device, and of the environment's where no context is current.  With one
 * device to be seen it is a load, else the driver is asked once (some tens of ns): who knows the device calls
 * weir_device_allocator.
 * E_STREAM: the driver does not know the stream; E_DRIVER; else as weir_device_allocator.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_stream_allocator(weir_stream stream,
                                                             weir_allocator **allocator);

/* Which of these allocators has the block that `block` lies in.  As long as there is only one, that one,
 * without a look at the address; else as weir_block_range.
 * E_INVALID: NULL; E_NOT_OWNED: none has it, or none is made yet, or it is a graph's; E_NOT_SUPPORTED: with
 * the pool engine and the front off it cannot be told; E_DEVICE_LOST: one that is lost may have it; E_FORKED.
 * Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_block_allocator(const void *block,
                                                            weir_allocator **allocator);

/* Hands out a block of at least `bytes` bytes for use on `stream`, aligned to at least 256 bytes,
 * and writes its device address to *block, only on success.  0 bytes: NULL and OK.  Contents are
 * undefined.  With the front on (options.front), what the stream freed itself is served from a cache
 * of the stream, without the engine; a stream that is being captured gets nothing from it: its block is a memory
 * node of the graph, which the driver serves at each launch, in nobody's reserve and under no limit (pool engine and
 * arenas; see E_CAPTURE), and is freed in the capture, or behind a launch.  A hit does
 * not block; a growth step takes as long as the driver needs; when memory ran out, waits up to the
 * recovery timeout for frees to complete.  Where weir cuts blocks itself (arena; front on) and much of
 * the reserve was left open by streams that have ended, waits for the device rather than grow, however
 * long that takes; not with a recovery timeout of UINT32_MAX.  The same where memory ran out and caches
 * hold idle blocks.  Where the device has no more, other allocators of the process on it give back what
 * they hold idle, as for weir_low_memory, if that can be enough: that may wait for the device likewise.  At
 * last options.oom_callback is asked, if there is one, and may have the request tried
 * again.
 * Beside a capture in global or thread-local mode the pool engine with the front off does as the driver
 * does: its call breaks the capture, as cudaMallocAsync would.
 * E_INVALID: NULL; E_NO_MEMORY, E_LIMIT (see weir_last_refusal); E_STREAM; E_CAPTURE; E_HOST_MEMORY;
 * E_DRIVER; E_DEVICE_LOST; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_alloc(weir_allocator *allocator, size_t bytes,
                                                  weir_stream stream, void **block);

/* Gives a block back in the order of `stream`: see the top of this file.  NULL is OK and does
 * nothing.  Engine direct waits for the device, as cuMemFree does; others do not block.
 * E_INVALID: allocator NULL; E_HOST_MEMORY: nothing changed.
 * E_NOT_OWNED: no live block begins there, and nothing changed.  Told whatever became of the memory: freed
 * once already, pending, merged, given back, another allocator's, or a place within a block.  Three
 * mistakes cannot be seen.  A second free of an address where another live block begins by now frees that
 * one.  Two frees of one block by two threads at the same moment are a race of the program's, and may both
 * be taken.  The pool engine with the front off sees what the driver does: a block of another pool or of
 * cuMemAlloc is not told apart and is freed; where a block of a graph once was, so do all but the platform
 * engine.
 * E_STREAM: nothing changed;
 * E_STREAM for a noted stream: as for `stream`, but the driver does not know the noted stream any more
 * and the note is dropped: order the free behind that work yourself and call again.
 * E_CAPTURE: a stream is being captured and the block has noted streams, or (pool engine, front off)
 * was not allocated in that capture, or (hardened) a look at a block is under way that the driver did not let wait for:
 * nothing changed, free it after the capture.  A free of any other
 * block from outside the capture is taken, and takes effect when the capture has ended or been
 * aborted, or once weir has waited for the device, as a trim does (engine direct: at once): a graph
 * that uses the block must not be launched any more.
 * E_DRIVER; E_DEVICE_LOST; E_FORKED. */
WEIR_API weir_status weir_free(weir_allocator *allocator, void *block, weir_stream stream);

/* For those who name no stream: a block that work on any stream may use as soon as the call has returned, as
 * one of cudaMalloc's.  Where weir reuses what a stream has freed, it waits for that, however long it takes;
 * otherwise the wait is a question to the driver.  All else as weir_alloc, E_STREAM and E_CAPTURE left out: no
 * capture gets such a block as its own.  It may be freed by weir_free, too, on a stream that is ordered
 * after its uses.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_alloc_any(weir_allocator *allocator, size_t bytes,
                                                      void **block);

/* Gives any block back when nobody knows which streams have used it: waits until the device has finished all
 * work, as cudaFree does, and harms no capture.  NULL is OK and does nothing.
 * E_NO_MEMORY: neither the device nor the host has the little memory that this takes, and nothing changed;
 * else as weir_free.  Since 0.1. */
WEIR_API weir_status weir_free_any(weir_allocator *allocator, void *block);

/* Declares that `stream` uses the block too: weir_free then orders the reuse of the block after all
 * work that was submitted to `stream` by the time of the free.  Nothing is recorded before; the
 * stream must live until then.  Declaring the same stream again changes nothing.  Cheap; no driver
 * call.  A block with notes goes past the cache of the stream that it is freed on, to the engine.
 * A default stream (NULL, 0x1, 0x2) is noted as what it means here and now: the free must be called
 * where the handle means the same (a per-thread default stream: on the same thread), else it answers
 * E_STREAM.
 * E_INVALID: NULL; E_NOT_OWNED: no live block begins there, and nothing was noted (the pool engine with
 * the front off cannot tell, nor any but engine direct where a block of a graph once was: the note is
 * forgotten when the address is handed out); E_HOST_MEMORY;
 * E_DEVICE_LOST; E_FORKED; and of a default stream, which the driver is asked about: E_STREAM; E_CAPTURE:
 * it is being captured; E_DRIVER. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_use(weir_allocator *allocator, void *block,
                                                weir_stream stream);

/* The block that `address` lies in: where it begins, and the bytes that were asked for, of which the
 * address is one; either may be NULL.  A question, not a mistake: nothing goes to the log.  No driver call;
 * the beginning of a block is found at once, without a lock, another place in a block above 512 KiB by
 * looking back to its beginning (16 MiB of it in about a microsecond).  Of an address that is in no live
 * block, where others are made or freed meanwhile, it may be told either way.
 * E_INVALID: allocator or address NULL; E_NOT_OWNED: no live block of the allocator is there, or one that
 * was allocated under stream capture, which is the graph's and known to the driver; E_NOT_SUPPORTED: the
 * pool engine with the front off has no records of its own: ask the driver; E_DEVICE_LOST; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_block_range(weir_allocator *allocator,
                                                        const void *address, void **block,
                                                        size_t *bytes);

/* Binds a stream to the allocator: the caller promises that until weir_unbind the stream is not
 * destroyed, and that weir_alloc is not called on it while it is being captured.  Weir then asks the
 * driver neither for its id nor for its capture status at each request, which saves about 40 ns per
 * pair of weir_alloc and weir_free.  With the front off, as it always is with a driver that has no
 * stream ids (before 12.0), it is OK, and nothing changes.
 * A stream that is bound twice must be unbound twice.  Default streams (NULL, 0x1, 0x2) may be bound
 * and are still told apart by id; a per-thread default stream is the calling thread's.
 * E_INVALID: allocator NULL; E_STREAM; E_CAPTURE: it is being captured; E_HOST_MEMORY; E_DRIVER;
 * E_DEVICE_LOST; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_bind(weir_allocator *allocator, weir_stream stream);

/* Takes one weir_bind back; with the last the promise ends.  Call it while the stream lives: its cache gives back what
 * is idle, which serves every stream once the stream's work is done.  What the cache of a stream that ends without it
 * keeps serves others when memory runs out, or after weir_trim.  Blocks stay valid.  Destroying the allocator unbinds
 * all streams.  With the front off it is OK, as weir_bind is.
 * E_INVALID: allocator NULL, or the stream is not bound: nothing changed; E_STREAM; E_CAPTURE;
 * E_DRIVER; E_DEVICE_LOST; E_FORKED. */
WEIR_API weir_status weir_unbind(weir_allocator *allocator, weir_stream stream);

/* Grows the reserve now until it is at least `bytes`, and writes what it is then to *reserve (may be
 * NULL).  Blocks for as long as the driver takes.
 * OK: reserve >= bytes; E_LIMIT, E_NO_MEMORY: it grew as far as it could and stays so, and the log (a warning, as
 * of options.prealloc) tells how far, and why no further;
 * E_NOT_SUPPORTED: engine direct has no reserve, nor has a pool of driver 11.2 one that can be
 * told; E_HOST_MEMORY; E_DRIVER: it may have grown; E_DEVICE_LOST, E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_preallocate(weir_allocator *allocator, size_t bytes,
                                                        size_t *reserve);

/* The most that the reserve may be from now on: options.limit or less.  More counts as that, and so does
 * an amount that is DEFAULT or MAX.  It takes the place of a share.  A request that would grow the reserve past it
 * answers E_LIMIT; one that is under way goes by what was before.  It may be less than is in use, or 0: nothing is
 * given back, since that may have to wait for the device, and the program knows when it can (weir_trim first, or
 * after).  A reserve that is above it stays and serves, one piece that is idle also a request for more than the limit
 * (of the pool engine one that has served before, with the front on), but does not rise; only with a share or
 * options.leave does what is idle above it go, when processes come or go.  The pool and the regions of engine direct
 * count by 32 MiB: less is nothing.  While it is below options.limit, the pool engine asks the driver twice
 * more at each request, and the driver may have to grow before the engine sees that a block that would fit
 * finds no room in one piece: what it grew goes back once the work of the request's stream is done.
 * E_INVALID: NULL, or an amount that options.limit would not take however much the device has, or a SHARE: the log
 * says what is wrong with it; E_NOT_SUPPORTED: a fixed arena, which is its limit; E_DRIVER, and nothing changed: it
 * does not tell of its memory; E_DEVICE_LOST; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_set_limit(weir_allocator *allocator, weir_amount limit);

/* What work on a device may do with blocks; the numbers are CUDA's. */
enum { WEIR_ACCESS_NONE = 0, WEIR_ACCESS_READ = 1, WEIR_ACCESS_READ_WRITE = 3 };

/* Gives the work of another device access to the allocator's blocks, those that are live and all to come, or
 * takes it; what options.peers said of that device counts no more.  Access is not order: a stream of the other
 * device uses a block between its allocation and its free as one of its own would, behind events.  Access
 * that is taken goes at once, and waits for nothing: the other device must be done with the blocks.  The
 * allocator's own device always reads and writes.  A block of a graph has what was so when it was captured.
 * Not for memory of cuMemAlloc (engine direct, engine bfc), which the program opens
 * with cuCtxEnablePeerAccess, all of a device's at once.
 * E_INVALID: allocator NULL, a negative device, no WEIR_ACCESS_ or less than READ_WRITE for the allocator's own
 * device; E_NO_DEVICE: there is none of that number, or it is above 63; E_NOT_SUPPORTED: it is no peer of the
 * allocator's, or the memory is cuMemAlloc's, or the driver cannot; E_DRIVER; E_DEVICE_LOST; E_FORKED.  On any of
 * them all is as it was; the log says why.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_set_access(weir_allocator *allocator, int device,
                                                       int access);

/* The CUDA memory pool that the pool engine takes its memory from (a cudaMemPool_t), for libraries that want a
 * pool: RMM's cuda_async_view_memory_resource, cudaMallocFromPoolAsync.  What they take from it shares the
 * reserve with weir, its preallocation and, with a driver that limits pools (12.2), its limit; it is served by
 * the driver, at the driver's cost, not by weir's caches.  Weir does not know those blocks: with the front off
 * they are in in_use of weir_stats, with the front on weir takes them for idle reserve, and weir_free must not be
 * called with them.  The pool is weir's: it must not be destroyed, nor its attributes set; what was taken
 * from it must be freed before weir_allocator_destroy.
 * E_INVALID: NULL; E_NOT_SUPPORTED: another engine, as it is by default where the device can map memory; E_DEVICE_LOST; E_FORKED.  Since 0.1. */
struct CUmemPoolHandle_st;
WEIR_API WEIR_CHECK_RESULT weir_status weir_pool(weir_allocator *allocator,
                                                 struct CUmemPoolHandle_st **pool);

/* Gives idle reserve back to the device until at most `keep` bytes of reserve are left, as far as
 * whole units are idle, and writes the bytes given back to *released (may be NULL).  What the caches
 * of streams hold idle goes back to the engine first.  Waits for the device where caches or engine
 * hold frees that no event covers, and where the arena gives a region back (cuMemFree waits); pool
 * memory at which work is still pending stays.  Engine direct has nothing idle.
 * E_NO_MEMORY: it would have to wait for the device, and neither the device nor the host has the little
 * memory that this takes; E_HOST_MEMORY: nor has the host what it takes to see what of a mapped arena is
 * idle; E_DRIVER, E_DEVICE_LOST, E_FORKED. */
WEIR_API weir_status weir_trim(weir_allocator *allocator, size_t keep, size_t *released);

/* Time has passed: what options.decay_ms says by now goes back to the device, and the bytes that went are
 * written to *released (may be NULL).  For programs that make no requests for long, or none that go beyond
 * the caches of their streams; call it every half-life or so, from any thread.  Does nothing until a
 * half-life is over, or memory is wanted (weir_low_memory); then as weir_trim, with what it may wait for.
 * E_INVALID: allocator NULL; E_NOT_SUPPORTED, the log says why once: decay is off and nothing is wanted, or there is no
 * reserve (engine direct; a pool of driver 11.2) or it is fixed; else as weir_trim. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_decay(weir_allocator *allocator, size_t *released);

/* Memory is low elsewhere: another library of the process, or another program, wants so many bytes of the
 * device (0: all that can be had).  Only notes that, from any thread: takes no lock, asks the driver
 * nothing, and gives nothing back itself.  The next requests that go beyond the caches of their streams
 * do: idle reserve, until so much has gone, but nothing of what a preallocation, a finite release threshold
 * or headroom keeps, and nothing that anybody would have to be waited for; they look for a second.  Caches
 * give what they have at the next request of their stream.  weir_decay answers at once, for programs that make
 * no such requests, and for arenas of regions, which cannot give back without a wait.  What went is an event
 * of cause low-memory.  When a request of another allocator of the process finds the device full, that
 * is done for it without this call.
 * E_INVALID: allocator NULL; E_NOT_SUPPORTED, the log says why: there is no reserve (engine direct; a pool of
 * driver 11.2) or it is fixed; E_DEVICE_LOST; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_low_memory(weir_allocator *allocator, size_t bytes);

/* Writes what this run needed so far to the profile `path` (NULL: that of options.profile), beside what
 * is there of earlier runs; see options.profile.  A later call, and the destruction, replace what this
 * one noted.  Nothing is written, and the answer is OK, as long as nothing was asked for.  The file is
 * replaced as a whole: who reads it sees the old one or the new one; of two runs that end at the same
 * moment one may be left out.  A file that is no profile is not replaced.
 * E_INVALID: allocator NULL; no path and no profile; E_NOT_SUPPORTED, as the log says too: engine direct and
 * fixed arenas have nothing to learn; E_FILE; E_HOST_MEMORY; E_DRIVER; E_DEVICE_LOST; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_profile_save(weir_allocator *allocator,
                                                         const char *path);

#ifdef __cplusplus
}
#endif

#endif
