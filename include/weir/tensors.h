/* SPDX-License-Identifier: MIT */
/* weir/tensors.h: allocates a framework's tensors, for PyTorch's allocator interface.
 *
 * A weir_tensors serves one device from the process's allocator of that device (weir_device_allocator), and adds what a
 * framework needs beyond requests and frees: frees that name no stream, private pools for CUDA graphs, checkpoints of
 * such pools, figures, and a list of all blocks.  PyTorch's interface (c10::cuda::CUDACachingAllocator, PyTorch 2.6 and
 * later) is C++; a shim (lib/adapters/torch/weir_torch.cpp) translates each of its calls into one of these.
 *
 * Private pools.  A route (weir_tensors_begin) sends the requests of some streams to a pool.  The pool takes memory in
 * segments, which keep their addresses until a trim, or OOM recovery, frees them.  With the mapped engine the pool has
 * one segment, or few, that grow at their end.  A freed block serves the stream that freed it.  If that stream has
 * ended, or if no other memory serves a request, the block serves other streams after a wait for the device.  But such
 * a wait does not order the branches of a graph.  So while the pool has a route, a block that was freed in a capture,
 * or by a stream that `lasts`, serves no other stream.
 *   A block that other streams use (weir_tensors_use) serves no request until their work is done.  Its free during a
 * capture waits for the end of the capture.  No call here makes a driver call on a stream that is being captured,
 * except to query whether it is.  So requests of a captured stream must have a route.
 *
 * Streams.  From driver 12.0 on weir knows a stream by the driver's id.  So a new stream that gets the handle of a
 * destroyed stream gets none of the destroyed stream's memory too early.  A stream that a request declared as one that
 * `lasts` is known by its handle.
 *   A stream may end before the blocks that it used are freed.  The free queries which stream the handle means now.  If
 * the handle means another stream, weir waits for the device.  But driver 580 crashes at a query of a handle that means
 * no stream.  With such a driver a stream must live, or its handle must mean another stream, until the frees of its own
 * blocks that belong to no pool, and of blocks that it uses (weir_tensors_use).  If a stream is being captured at such
 * a free, the rule holds until the first request after the capture.
 *   A stream of another device must live until the free of the blocks that it uses.  Below driver 12.0 every stream
 * must live until the frees of its blocks and of those that it uses.  Blocks that such a stream frees in a pool serve
 * other streams after a wait for the device.
 *
 * All functions are thread-safe.  They return E_INVALID if an argument is NULL whose comment does not allow it, and
 * E_FORKED in a child of fork().  Since 0.1. */
#ifndef WEIR_TENSORS_H
#define WEIR_TENSORS_H

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_tensors weir_tensors;

/* The name of a pool.  {0, 0} means no pool: the memory of all requests that no route sends to a pool ("shared"). */
typedef struct weir_tensors_id {
    uint64_t first, second;
} weir_tensors_id;

/* Kinds of events, with the numbers of PyTorch's TraceEntry::Action. */
enum {
    WEIR_TENSORS_ALLOC = 0,
    WEIR_TENSORS_FREE_REQUESTED = 1,
    WEIR_TENSORS_FREE_COMPLETED = 2,
    WEIR_TENSORS_SEGMENT_ALLOC = 3,
    WEIR_TENSORS_SEGMENT_FREE = 4,
    WEIR_TENSORS_SEGMENT_MAP = 5,   /* a pool's segment grew; or, with pool {0, 0}, memory that all share */
    WEIR_TENSORS_SEGMENT_UNMAP = 6, /* memory shrank; shared memory has the address of its last growth */
    WEIR_TENSORS_OOM = 8
};

typedef struct weir_tensors_event {
    int action;
    uint64_t address; /* the address; with OOM the free bytes of the device */
    size_t bytes;
    weir_stream stream;
    weir_tensors_id pool;
    void *note; /* the note of the block or request */
} weir_tensors_event;

/* The functions that a weir_tensors calls, each of which may be NULL. */
typedef struct weir_tensors_hooks {
    void *context;
    /* Receives each event.  Any thread may call it, under a lock of weir, so it must not call weir. */
    void (*event)(void *context, const weir_tensors_event *event);
    /* Receives the note (not NULL) of a block that no longer exists.  It must not call weir. */
    void (*drop)(void *context, void *note);
} weir_tensors_hooks;

/* The source of a pool's segments.  `alloc` returns NULL if it has no memory.  Threads of the program call `alloc` and
 * `free`, without a lock of weir: weir's own threads free no segment of such a pool, since `free` may need a lock that
 * a thread of the program holds, such as Python's.  weir calls `end` (may be NULL) once, when it no longer needs the
 * context, under a lock: `end` must not call weir.  The functions must not throw. */
typedef struct weir_tensors_source {
    void *context;
    void *(*alloc)(void *context, size_t bytes);
    void (*free)(void *context, void *segment);
    void (*end)(void *context);
} weir_tensors_source;

/* Makes the weir_tensors of a device, once in the process: a later call returns the existing one.  It is never
 * destroyed.  The first call copies `hooks`, and may block as weir_device_allocator does.
 * E_HOST_MEMORY.  Other statuses are those of weir_device_allocator. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_open(int device, const weir_tensors_hooks *hooks,
                                                         weir_tensors **tensors);

/* Switches calls of hooks.event on or off.  At first they are off. */
WEIR_API weir_status weir_tensors_watch(weir_tensors *tensors, int on);

/* Returns the allocator that the weir_tensors uses, or NULL for NULL. */
WEIR_API weir_allocator *weir_tensors_allocator(const weir_tensors *tensors);

/* Allocates a block of `bytes` for `stream`, from the pool that a route names or from the memory that all share, and
 * writes its address to *block.  `requested` is the size that the program requested, for the figures.  `note` (may be
 * NULL) stays with the block until `drop`; after an error it is the caller's.  For 0 bytes *block is NULL and the
 * status OK.  `lasts` says that the stream is never destroyed, so that weir need not query it (weir_bind).
 *
 * Blocks and waits like weir_alloc.  A new segment of a pool waits for its memory (weir_alloc_any).  Before a pool
 * grows, the request waits for the device if a stream that freed memory there has ended, unless recovery_timeout_ms
 * forbids waits.  If there is no memory, the request also waits for freed blocks that other streams still use, for the
 * time of options.recovery_timeout_ms.  weir_alloc on this allocator waits for them, too.
 * E_NO_MEMORY, E_LIMIT (see weir_last_failure); E_STREAM; E_HOST_MEMORY; E_DRIVER; E_DEVICE_LOST. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_alloc(weir_tensors *tensors, size_t bytes,
                                                          size_t requested, weir_stream stream,
                                                          int lasts, void *note, void **block);

/* Frees a block of any device, in the order of the stream that it was allocated for.  NULL is OK and does nothing.
 * Does not block unless that stream or one that used the block has ended, is another device's, or was named during a
 * capture.  Then weir waits for the device (see Streams above).  A free that fails for now is repeated later.
 * E_NOT_OWNED: no live block begins there; E_HOST_MEMORY; E_DEVICE_LOST. */
WEIR_API weir_status weir_tensors_free(void *block);

/* Declares that `stream` uses the block, too.  The block is free only when the work that the stream has at the time of
 * the free is done.  Does nothing if `stream` is the block's own.  Queries the stream's id, unless a request said that
 * the stream lasts.
 * E_NOT_OWNED: no live block begins there; E_HOST_MEMORY. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_use(void *block, weir_stream stream);

/* A block, or a piece of free memory. */
typedef struct weir_tensors_block {
    uint64_t address;
    size_t bytes, requested;
    weir_stream stream;
    weir_tensors_id pool;
    /* The address and the bytes of the segment in which the block lies.  For a block without a pool they are those of
     * the block. */
    uint64_t segment;
    size_t segment_bytes;
    void *note;
    int is_free;    /* set by weir_tensors_visit for free memory */
    int is_pending; /* set if the block was freed and waits for other streams */
} weir_tensors_block;

/* Finds the block that begins at that address.  E_NOT_OWNED: no block begins there. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_find(const void *block, weir_tensors **tensors,
                                                         weir_tensors_block *out);

/* Writes a text for a block of any device, as weir_ipc_make does.  The text names the physical allocations that the
 * block lies in.  Open it by weir_ipc_open.
 * E_NOT_OWNED: no live block begins at `block`.  Other statuses are those of weir_ipc_make. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_ipc_make(const void *block, char *text,
                                                             size_t text_bytes, size_t *needed,
                                                             size_t *offset);

/* ---- private pools ----------------------------------------------------------------------------
 *
 * A function that takes an id returns E_NOT_OWNED if there is no such pool.  Exceptions are weir_tensors_pool_open,
 * which makes the pool, and weir_tensors_trim and weir_tensors_visit, for which a missing pool is an empty pool. */

/* Makes a pool, or adds one user to an existing pool.  `source` (NULL: weir) is copied if the pool has neither a source
 * nor a segment yet.  Otherwise, or on an error, its `end` is called at once. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_open(weir_tensors *tensors,
                                                              weir_tensors_id id,
                                                              const weir_tensors_source *source);
/* Removes one user of the pool.  Without users the pool's free segments can be freed (weir_tensors_trim, or when memory
 * runs out), and the pool ends with its last segment. */
WEIR_API weir_status weir_tensors_pool_close(weir_tensors *tensors, weir_tensors_id id);
/* Writes the number of the pool's users to *users. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_users(weir_tensors *tensors,
                                                               weir_tensors_id id, int *users);
/* Sets whether a request that finds no memory elsewhere may use free memory of this pool. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_lend(weir_tensors *tensors,
                                                              weir_tensors_id id, int on);
/* Makes each segment of the pool serve one block at a time.  weir splits no segment of the pool any more. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_whole(weir_tensors *tensors,
                                                               weir_tensors_id id);

/* Begins a route: a request goes to the pool if `takes` returns nonzero for its stream.  If there are several routes,
 * the one that began last is tried first.  `takes` is called under a lock, and must not call weir.
 * E_BUSY: the pool has a route already. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_begin(weir_tensors *tensors, weir_tensors_id id,
                                                          int (*takes)(void *context,
                                                                       weir_stream stream),
                                                          void *context);
/* Ends the pool's route.  `takes` is not called any more.  *context (may be NULL) gets the route's context. */
WEIR_API weir_status weir_tensors_end(weir_tensors *tensors, weir_tensors_id id, void **context);

/* Gives idle memory of the pool back to the device.  With {0, 0} it gives back idle memory that is shared, and that of
 * pools without users.  A pool that has users or a route frees nothing.  May wait for the device. */
WEIR_API weir_status weir_tensors_trim(weir_tensors *tensors, weir_tensors_id id);

/* Writes 1 to *same if the pool's live blocks are exactly the `count` blocks of the array `blocks`, else 0. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_is(weir_tensors *tensors,
                                                            weir_tensors_id id,
                                                            void *const *blocks, size_t count,
                                                            int *same);

/* A saved state of a pool: which blocks live, and their addresses. */
typedef struct weir_tensors_state weir_tensors_state;

/* Saves the state of a pool, which the caller destroys.  Waits for streams that still use freed blocks.
 * E_HOST_MEMORY; E_CAPTURE: freed blocks wait for the end of a capture. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_save(weir_tensors *tensors, weir_tensors_id id,
                                                         weir_tensors_state **state);
/* Restores the pool's saved state.  weir waits for the device, frees all live blocks, and allocates the saved ones at
 * their old addresses, without notes.  Segments that the pool has got since then become free.  At the end, without a
 * lock, weir calls `freed` and `made` for each block.  The contents of the memory are not restored.
 * E_HOST_MEMORY: nothing changed; E_CAPTURE: freed blocks wait for the end of a capture; E_NOT_OWNED: no such pool, or
 * a segment is gone. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_restore(
    weir_tensors *tensors, const weir_tensors_state *state,
    void (*freed)(void *context, void *block), void (*made)(void *context, void *block),
    void *context);
/* Destroys a saved state.  NULL is OK and does nothing.  Never blocks. */
WEIR_API void weir_tensors_state_destroy(weir_tensors_state *state);

/* ---- figures ---------------------------------------------------------------------------------- */

/* A figure, like PyTorch's Stat. */
typedef struct weir_tensors_figure {
    int64_t current, peak;
    int64_t allocated, freed; /* sums of all additions and of all subtractions */
} weir_tensors_figure;

/* Blocks of up to this size count as small ones, as in PyTorch. */
#define WEIR_TENSORS_SMALL ((size_t)1 << 20)

/* The figures under PyTorch's names (DeviceStats): [0] for all blocks, [1] for small ones, [2] for large ones.
 * Reserved memory that is no small block's counts with the large ones; so do segments.  inactive_split and
 * inactive_split_bytes are 0: weir moves and joins idle memory, so that none is lost to a split. */
typedef struct weir_tensors_figures {
    size_t size; /* bytes that the library filled in */
    weir_tensors_figure allocation[3], segment[3], active[3], inactive_split[3];
    weir_tensors_figure allocated_bytes[3], reserved_bytes[3], active_bytes[3],
        inactive_split_bytes[3], requested_bytes[3];
    uint64_t retries, ooms, device_allocs, device_frees;
} weir_tensors_figures;

/* Copies the figures to *out.  Set out->size to sizeof(*out) before the call, as for weir_stats. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_stats(weir_tensors *tensors,
                                                          weir_tensors_figures *out);
/* Sets each peak of the figures to the current value. */
WEIR_API weir_status weir_tensors_reset_peaks(weir_tensors *tensors);
/* Sets the sums and counts of the figures to 0. */
WEIR_API weir_status weir_tensors_reset_sums(weir_tensors *tensors);

/* Calls `show` for every pool, with its reserved bytes: [0] all, [1] in segments for small blocks, [2] in other
 * segments.  A pool that has ended has a current value of 0, and is listed until weir_tensors_reset_sums.  `show` is
 * called under the lock and must not call weir. */
WEIR_API weir_status weir_tensors_pools(weir_tensors *tensors,
                                        void (*show)(void *context, weir_tensors_id id,
                                                     const weir_tensors_figure reserved[3]),
                                        void *context);

/* Calls `show` for every block and every free piece, ordered by segment and address: of one pool, or with {0, 0} of all
 * memory.  A piece of memory that all share is a segment of pool {0, 0}.  `show` is called under the lock and must not
 * call weir.  E_HOST_MEMORY. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_visit(
    weir_tensors *tensors, weir_tensors_id id,
    void (*show)(void *context, const weir_tensors_block *block), void *context);

#ifdef __cplusplus
}
#endif

#endif
