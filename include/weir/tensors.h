/* SPDX-License-Identifier: MIT */
/* weir/tensors.h: allocates a framework's tensors, for PyTorch's allocator interface.
 *
 * A weir_tensors object allocates memory of one device, from the process's allocator of that device
 * (weir_device_allocator).  It has functions that a framework needs besides requests and frees: frees that name no
 * stream, private pools for CUDA graphs, checkpoints of such pools, figures, and a list of all blocks.  PyTorch's
 * interface (c10::cuda::CUDACachingAllocator, PyTorch 2.6 and later) is C++.  A shim
 * (lib/adapters/torch/weir_torch.cpp) translates each call of this interface into a call of this header.
 *
 * Private pools.  A route (weir_tensors_begin) sends the requests of some streams to a pool.  The pool takes memory in
 * segments.  A segment keeps its addresses until a trim or OOM recovery frees the segment.  With the mapped engine, the
 * pool has one segment or few segments, which grow at their ends.  The stream that has freed a block can reuse it.  If
 * this stream has ended, or if there is no other memory for a request, other streams can reuse the block after a wait
 * for the device.  But such a wait does not order the branches of a graph.  So while the pool has a route, other
 * streams do not reuse blocks that were freed in a capture, and blocks that were freed by a stream with `lasts` set.
 *
 * If other streams have used a block (weir_tensors_use), weir reuses the block only when their work has completed.  The
 * free of such a block during a capture waits for the end of the capture.  The functions make no driver call on a
 * stream that is being captured, except a query of its capture status.  So requests of a captured stream must have a
 * route.
 *
 * Streams.  From driver 12.0 on, weir identifies a stream by the driver's id.  A new stream may get the handle of a
 * destroyed stream, but it then does not get memory of the destroyed stream too early.  weir identifies a stream by its
 * handle if a request has declared that the stream `lasts`.
 *
 * A stream may end before the blocks that it used are freed.  The free queries which stream the handle means now.  If
 * the handle means another stream, weir waits for the device.  But driver 580 crashes at a query of a handle that means
 * no stream.  So with such a driver, a stream must live, or its handle must mean another stream, until two kinds of
 * frees: frees of the stream's own blocks that belong to no pool, and frees of blocks that the stream uses
 * (weir_tensors_use).  If a stream is being captured at such a free, this rule holds until the first request after the
 * capture.
 *
 * A stream of another device must live until the free of the blocks that it uses.  With a driver before 12.0, every
 * stream must live until the frees of its own blocks and of the blocks that it uses.  If such a stream frees a block in
 * a pool, other streams can reuse the block after a wait for the device.
 *
 * All functions are thread-safe.  A function returns E_INVALID if an argument is NULL and the function's comment does
 * not allow NULL.  A function returns E_FORKED in a child of fork().  Since 0.2. */
#ifndef WEIR_TENSORS_H
#define WEIR_TENSORS_H

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_tensors weir_tensors;

/* The id of a pool, a separate part of the memory, for example for one CUDA graph.  {0, 0} means no pool: the memory of
 * all requests that go to no pool ("shared memory"). */
typedef struct weir_tensors_id {
    uint64_t first, second;
} weir_tensors_id;

/* The kinds of events, with the numbers of PyTorch's TraceEntry::Action. */
enum {
    WEIR_TENSORS_ALLOC = 0,
    WEIR_TENSORS_FREE_REQUESTED = 1,
    WEIR_TENSORS_FREE_COMPLETED = 2,
    WEIR_TENSORS_SEGMENT_ALLOC = 3,
    WEIR_TENSORS_SEGMENT_FREE = 4,
    /* Memory was added to a pool.  With pool {0, 0}, it was added to the memory that belongs to no pool. */
    WEIR_TENSORS_SEGMENT_MAP = 5,
    /* Memory was released.  For memory that belongs to no pool, the event has the address at which memory was last
     * added. */
    WEIR_TENSORS_SEGMENT_UNMAP = 6,
    WEIR_TENSORS_OOM = 8
};

typedef struct weir_tensors_event {
    int action;
    uint64_t address; /* the address; for OOM, the device's free bytes */
    size_t bytes;
    weir_stream stream;
    weir_tensors_id pool;
    void *note; /* the framework's note of the block or of the request */
} weir_tensors_event;

/* Functions of the program that a weir_tensors object calls.  Each function may be NULL. */
typedef struct weir_tensors_hooks {
    void *context;
    /* Receives each event.  weir may call this function in any thread and under a lock, so the function must not call
     * weir. */
    void (*event)(void *context, const weir_tensors_event *event);
    /* Receives the note of a block that no longer exists, so that the framework can free the note.  The note is not
     * NULL.  The function must not call weir. */
    void (*drop)(void *context, void *note);
} weir_tensors_hooks;

/* The source of a pool's segments.  `alloc` returns a segment of `bytes` bytes, or NULL if the source has no memory.
 * `free` frees a segment.  Only threads of the program call `alloc` and `free`, and no lock of weir is held then.
 * weir's own threads free no segment of such a pool, because `free` may need a lock that a thread of the program holds,
 * such as Python's lock.  weir calls `end` once, when weir no longer needs the context.  `end` may be NULL.  weir calls
 * `end` under a lock, so `end` must not call weir.  The functions must not throw. */
typedef struct weir_tensors_source {
    void *context;
    void *(*alloc)(void *context, size_t bytes);
    void (*free)(void *context, void *segment);
    void (*end)(void *context);
} weir_tensors_source;

/* Creates the weir_tensors object of a device, once in the process.  A later call returns the existing object.  weir
 * never destroys the object.  The first call copies `hooks`, and may block as weir_device_allocator does.
 *
 * Returns OK, a status of weir_device_allocator, or this status.
 * E_HOST_MEMORY: the host has no memory. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_open(int device, const weir_tensors_hooks *hooks,
                                                         weir_tensors **tensors);

/* Switches calls of hooks.event on or off.  They are off until the first call of this function. */
WEIR_API weir_status weir_tensors_watch(weir_tensors *tensors, int on);

/* Returns the allocator that a weir_tensors object uses, or NULL if `tensors` is NULL. */
WEIR_API weir_allocator *weir_tensors_allocator(const weir_tensors *tensors);

/* Allocates a block of `bytes` bytes for `stream`, and writes its address to *block.  The memory comes from the pool to
 * which a route sends the request, or else from shared memory.  `requested` is the size that the program requested, for
 * the figures.  `note` may be NULL.  weir stores the note with the block until hooks.drop receives the note.  After an
 * error, the note belongs to the caller.  For 0 bytes, *block is NULL and the status OK.  If `lasts` is set, the caller
 * promises that the stream is never destroyed, so that weir need not query it (weir_bind).
 *
 * The call blocks and waits as weir_alloc does.  In addition, a new segment of a pool waits for its memory
 * (weir_alloc_any).  Before a pool grows, the request waits for the device if a stream that freed memory in the pool
 * has ended.  It does not wait if recovery_timeout_ms forbids waits.  If there is no memory, the request also waits for
 * freed blocks that other streams still use, for the time of options.recovery_timeout_ms.  weir_alloc on this allocator
 * waits for such blocks, too.
 *
 * Returns OK or one of these statuses.
 * E_NO_MEMORY, E_LIMIT: there is not enough memory, or the limit forbids the request (see weir_last_failure).
 * E_STREAM, E_HOST_MEMORY, E_DRIVER, E_DEVICE_LOST: see weir_status(3). */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_alloc(weir_tensors *tensors, size_t bytes,
                                                          size_t requested, weir_stream stream,
                                                          int lasts, void *note, void **block);

/* Frees a block of any device, in the order of the stream for which the block was allocated.  NULL is OK and does
 * nothing.  In most cases the call does not block.  weir waits for the device if the block's own stream, or a stream
 * that used the block, has ended, belongs to another device, or was named during a capture (see Streams above).  If a
 * free is not possible now, weir repeats it later.
 *
 * Returns OK or one of these statuses.
 * E_NOT_OWNED: no live block begins at the address.
 * E_HOST_MEMORY, E_DEVICE_LOST: see weir_status(3). */
WEIR_API weir_status weir_tensors_free(void *block);

/* Declares that `stream` uses the block, too.  After the free of the block, weir reuses the block only when the work
 * that the stream has at the time of the free has completed.  Does nothing if `stream` is the block's own stream.
 * Queries the stream's id, unless a request has declared that the stream lasts.
 *
 * Returns OK or one of these statuses.
 * E_NOT_OWNED: no live block begins at the address.
 * E_HOST_MEMORY: the host has no memory. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_use(void *block, weir_stream stream);

/* A block, or a piece of free memory. */
typedef struct weir_tensors_block {
    uint64_t address;
    size_t bytes, requested;
    weir_stream stream;
    weir_tensors_id pool;
    /* The address and the size of the segment that contains the block.  If the block belongs to no pool, these fields
     * have the address and the size of the block itself. */
    uint64_t segment;
    size_t segment_bytes;
    void *note;
    int is_free;    /* set if this is a piece of free memory, and no block */
    int is_pending; /* set if the block was freed, but other streams still use it */
} weir_tensors_block;

/* Finds the block that begins at the address `block`, and writes its owner to *tensors and its description to *out.
 * Returns OK, or E_NOT_OWNED if no block begins at this address. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_find(const void *block, weir_tensors **tensors,
                                                         weir_tensors_block *out);

/* Writes a text for a block of any device, as weir_ipc_make does.  The text names the physical allocations of the
 * block.  A receiver opens the text by weir_ipc_open.
 *
 * Returns OK, a status of weir_ipc_make, or this status.
 * E_NOT_OWNED: no live block begins at `block`. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_ipc_make(const void *block, char *text,
                                                             size_t text_bytes, size_t *needed,
                                                             size_t *offset);

/* ---- private pools ----------------------------------------------------------------------------
 *
 * A function that takes the id of a pool returns E_NOT_OWNED if the pool does not exist.  There are three exceptions.
 * weir_tensors_pool_open creates the pool.  For weir_tensors_trim and weir_tensors_visit, a pool that does not exist is
 * an empty pool. */

/* Creates a pool with one user, or adds one user to an existing pool.  `source` provides the memory of the pool; NULL
 * means memory of weir.  weir copies `source` if the pool has neither a source nor a segment yet.  Otherwise, or on an
 * error, weir calls the `end` function of `source` at once, because it does not need the source. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_open(weir_tensors *tensors,
                                                              weir_tensors_id id,
                                                              const weir_tensors_source *source);
/* Removes one user of the pool.  When a pool has no users, weir can release its free segments, in weir_tensors_trim or
 * when there is no other memory.  The pool ends when its last segment is released. */
WEIR_API weir_status weir_tensors_pool_close(weir_tensors *tensors, weir_tensors_id id);
/* Writes the number of the pool's users to *users. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_users(weir_tensors *tensors,
                                                               weir_tensors_id id, int *users);
/* Sets whether requests that go to another pool or to no pool may use free memory of this pool.  If `on` is set, such a
 * request uses it if it finds no other memory. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_lend(weir_tensors *tensors,
                                                              weir_tensors_id id, int on);
/* Forbids weir to split segments of this pool from now on, so that each segment contains only one block at a time. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_whole(weir_tensors *tensors,
                                                               weir_tensors_id id);

/* Begins a route to a pool.  A request goes to the pool if `takes` returns nonzero for the request's stream.  If there
 * are several routes, weir tries the route that began last first.  weir calls `takes` under a lock, so `takes` must not
 * call weir.
 *
 * Returns OK or this status.
 * E_BUSY: the pool already has a route. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_begin(weir_tensors *tensors, weir_tensors_id id,
                                                          int (*takes)(void *context,
                                                                       weir_stream stream),
                                                          void *context);
/* Ends the route to the pool.  weir does not call `takes` any more.  Writes the context of the route to *context;
 * `context` may be NULL. */
WEIR_API weir_status weir_tensors_end(weir_tensors *tensors, weir_tensors_id id, void **context);

/* Releases idle memory of the pool to the device.  With {0, 0}, releases idle memory that is shared, and idle memory of
 * pools without users.  A pool with users or with a route releases nothing.  May wait for the device. */
WEIR_API weir_status weir_tensors_trim(weir_tensors *tensors, weir_tensors_id id);

/* Compares the live blocks of a pool with the `count` blocks of the array `blocks`.  Writes 1 to *same if the pool has
 * exactly these live blocks, else 0. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_is(weir_tensors *tensors,
                                                            weir_tensors_id id,
                                                            void *const *blocks, size_t count,
                                                            int *same);

/* The saved state of a pool: its live blocks and their addresses. */
typedef struct weir_tensors_state weir_tensors_state;

/* Saves the state of a pool in *state.  The caller destroys the state.  Waits for streams that still use freed blocks.
 *
 * Returns OK or one of these statuses.
 * E_CAPTURE: freed blocks wait for the end of a capture.
 * E_HOST_MEMORY: the host has no memory. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_save(weir_tensors *tensors, weir_tensors_id id,
                                                         weir_tensors_state **state);
/* Restores a saved state of the pool.  weir waits for the device, frees all live blocks of the pool, and allocates the
 * saved blocks at their old addresses, without notes.  Segments that are newer than the saved state become free.  At
 * the end, weir calls `freed` for each block that was freed and `made` for each block that was allocated.  weir holds
 * no lock during these calls.  The call does not restore the contents of the memory.
 *
 * Returns OK or one of these statuses.
 * E_HOST_MEMORY: the host has no memory.  Nothing has changed.
 * E_CAPTURE: freed blocks wait for the end of a capture.
 * E_NOT_OWNED: the pool does not exist, or one of its segments does not exist any more. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_restore(
    weir_tensors *tensors, const weir_tensors_state *state,
    void (*freed)(void *context, void *block), void (*made)(void *context, void *block),
    void *context);
/* Destroys a saved state.  NULL is OK and does nothing.  Never blocks. */
WEIR_API void weir_tensors_state_destroy(weir_tensors_state *state);

/* ---- figures ---------------------------------------------------------------------------------- */

/* A value with its history, like PyTorch's type Stat. */
typedef struct weir_tensors_figure {
    int64_t current, peak;
    int64_t allocated, freed; /* the sum of all additions, and the sum of all subtractions */
} weir_tensors_figure;

/* The maximum size of a small block, in bytes, as in PyTorch. */
#define WEIR_TENSORS_SMALL ((size_t)1 << 20)

/* The figures of a device, with PyTorch's names (DeviceStats).  In each array, [0] is for all blocks, [1] for small
 * blocks, and [2] for large blocks.  The values for large blocks include all segments, and reserved memory that belongs
 * to no small block.  inactive_split and inactive_split_bytes are 0.  weir moves and joins idle memory, so weir loses
 * no memory to splits. */
typedef struct weir_tensors_figures {
    size_t size; /* the bytes of this struct that the library has filled in */
    weir_tensors_figure allocation[3], segment[3], active[3], inactive_split[3];
    weir_tensors_figure allocated_bytes[3], reserved_bytes[3], active_bytes[3],
        inactive_split_bytes[3], requested_bytes[3];
    uint64_t retries, ooms, device_allocs, device_frees;
} weir_tensors_figures;

/* Copies the figures to *out.  Set out->size to sizeof(*out) before the call, as for weir_stats. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_stats(weir_tensors *tensors,
                                                          weir_tensors_figures *out);
/* Sets the peak of each value of weir_tensors_stats to the current value. */
WEIR_API weir_status weir_tensors_reset_peaks(weir_tensors *tensors);
/* Sets the sums and the numbers of events in the values of weir_tensors_stats to 0. */
WEIR_API weir_status weir_tensors_reset_sums(weir_tensors *tensors);

/* Calls `show` for each pool, with the reserved bytes of the pool: [0] for all, [1] in segments for small blocks, and
 * [2] in other segments.  A pool that has ended has a current value of 0, and `show` receives it until
 * weir_tensors_reset_sums.  weir calls `show` under a lock, so `show` must not call weir. */
WEIR_API weir_status weir_tensors_pools(weir_tensors *tensors,
                                        void (*show)(void *context, weir_tensors_id id,
                                                     const weir_tensors_figure reserved[3]),
                                        void *context);

/* Calls `show` for each block and each piece of free memory, ordered by segment and address.  `id` selects the memory
 * of one pool, and {0, 0} selects all memory.  A piece of shared memory is a segment of pool {0, 0}.  weir calls `show`
 * under a lock, so `show` must not call weir.  Returns OK, or E_HOST_MEMORY if the host has no memory. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_visit(
    weir_tensors *tensors, weir_tensors_id id,
    void (*show)(void *context, const weir_tensors_block *block), void *context);

#ifdef __cplusplus
}
#endif

#endif
