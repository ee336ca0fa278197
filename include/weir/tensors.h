/* SPDX-License-Identifier: MIT */
/* weir/tensors.h: the memory of a framework's tensors, as PyTorch's allocator interface wants it.
 *
 * A weir_tensors serves one device from the process's allocator of that device (weir_device_allocator), and adds what
 * a framework needs beyond requests and frees: frees that name no stream, private pools for CUDA graphs, checkpoints
 * of such pools, figures, and a list of all blocks.  PyTorch's interface (c10::cuda::CUDACachingAllocator, PyTorch 2.6
 * to 2.11) is C++; a shim (lib/adapters/torch/weir_torch.cpp) translates each of its calls into one of these.
 *
 * Private pools.  A route (weir_tensors_begin) sends the requests of some streams to a pool.  The pool takes memory
 * in segments, which keep their addresses until a trim, or OOM recovery, gives them back.  With the mapped engine it
 * is one segment, or few, that grow at their end.  A freed block serves the stream that freed it.  If that stream has ended,
 * or if nothing else serves a request, the block serves others after a wait for the device.  But such a wait does not order
 * the branches of a graph.  So while the pool has a route, a block that was freed in a capture, or by a stream that `lasts`,
 * serves no other stream.
 *   A block that other streams use (weir_tensors_use) serves nobody until their work is done.  Its free during a capture
 * waits for the end of the capture.  No call here makes a driver call on a stream that is being captured, except to ask
 * whether it is.  So requests of a captured stream must have a route.
 *
 * Streams.  From driver 12.0 on weir knows a stream by the driver's id.  So a stream that gets the handle of a destroyed
 * one gets none of its memory too early.  A stream that a request said `lasts` of is known by its handle.
 *   A stream may end before the blocks that it used are freed.  The free asks the driver what the handle means.  If the
 * handle means another stream, weir waits for the device.  But driver 580 crashes at a question about a handle that means
 * no stream.  With such a driver a stream must live, or its handle must mean another stream, until these frees: of its own
 * blocks that are of no pool, and of blocks that it uses (weir_tensors_use).  If a stream is being captured at such a free,
 * the same holds until the first request after the capture.
 *   A stream of another device must live until the free of the blocks that it uses.  Below driver 12.0 every stream must
 * live until the frees of its blocks and of those that it uses.  What it frees in a pool then serves others after a wait
 * for the device.
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

/* The name of a pool.  {0, 0} is none: memory that all share. */
typedef struct weir_tensors_id {
    uint64_t first, second;
} weir_tensors_id;

/* What happened, with the numbers of PyTorch's TraceEntry::Action. */
enum {
    WEIR_TENSORS_ALLOC = 0,
    WEIR_TENSORS_FREE_REQUESTED = 1,
    WEIR_TENSORS_FREE_COMPLETED = 2,
    WEIR_TENSORS_SEGMENT_ALLOC = 3,
    WEIR_TENSORS_SEGMENT_FREE = 4,
    WEIR_TENSORS_SEGMENT_MAP = 5,   /* a pool's segment grew; or, with pool {0, 0}, memory that all share */
    WEIR_TENSORS_SEGMENT_UNMAP = 6, /* it shrank; for shared memory the address is that of the last growth */
    WEIR_TENSORS_OOM = 8
};

typedef struct weir_tensors_event {
    int action;
    uint64_t address; /* of OOM: bytes that the device has free */
    size_t bytes;
    weir_stream stream;
    weir_tensors_id pool;
    void *note; /* of the block or request */
} weir_tensors_event;

/* What a weir_tensors calls.  Functions may be NULL. */
typedef struct weir_tensors_hooks {
    void *context;
    /* Called under a lock: it must not call weir, and may be called by any thread. */
    void (*event)(void *context, const weir_tensors_event *event);
    /* The block that had this note (not NULL) is gone.  As `event': it must not call weir. */
    void (*drop)(void *context, void *note);
} weir_tensors_hooks;

/* Where the segments of a pool come from.  `alloc` returns NULL if it has none; it and `free` are called without a
 * lock.  weir calls `end` (may be NULL) once, when it no longer needs the context, under a lock: it must not call weir.
 * None of them may throw. */
typedef struct weir_tensors_source {
    void *context;
    void *(*alloc)(void *context, size_t bytes);
    void (*free)(void *context, void *segment);
    void (*end)(void *context);
} weir_tensors_source;

/* Makes the weir_tensors of a device, once in the process: a later call returns the same.  It is never destroyed.
 * `hooks` is copied by the first call.  Errors as weir_device_allocator; E_HOST_MEMORY. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_open(int device, const weir_tensors_hooks *hooks,
                                                         weir_tensors **tensors);

/* Whether hooks.event is called; at first it is not. */
WEIR_API weir_status weir_tensors_watch(weir_tensors *tensors, int on);

/* The allocator that it takes memory from, NULL for NULL. */
WEIR_API weir_allocator *weir_tensors_allocator(const weir_tensors *tensors);

/* Allocates a block of `bytes` for `stream`, from the pool that a route names or from the memory that all share, and
 * writes its address to *block.  `requested` is what the program asked for, for the figures.  `note` (may be NULL)
 * stays with the block until `drop`; after an error it is the caller's.  0 bytes: NULL and OK.
 * `lasts`: the stream is never destroyed, so that weir need not ask the driver about it (weir_bind).
 *
 * Blocks and waits as weir_alloc.  A new segment of a pool waits for its memory (weir_alloc_any).  Before a pool grows, the
 * request waits for the device if a stream that freed memory there has ended, unless recovery_timeout_ms forbids waits.
 * If there is no memory, the request also waits for freed blocks that other streams still use, as long as
 * options.recovery_timeout_ms says.  So does weir_alloc on the same allocator.
 * E_NO_MEMORY, E_LIMIT (see weir_last_refusal); E_STREAM; E_HOST_MEMORY; E_DRIVER; E_DEVICE_LOST. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_alloc(weir_tensors *tensors, size_t bytes,
                                                          size_t requested, weir_stream stream,
                                                          int lasts, void *note, void **block);

/* Frees a block of any device, in the order of the stream that it was allocated for.  NULL is OK and does nothing.
 * Does not block unless that stream or one that used the block has ended, is another device's, or was named during a
 * capture.  Then weir waits for the device (see Streams above).  A free that fails for now is tried again later.
 * E_NOT_OWNED: no live block begins there; E_HOST_MEMORY; E_DEVICE_LOST. */
WEIR_API weir_status weir_tensors_free(void *block);

/* Declares that `stream` uses the block too.  The block is free only when the work that the stream has at the time of
 * the free is done.  Does nothing if `stream` is the block's own.  Asks the driver for the stream's id, unless a request
 * said that the stream lasts.
 * E_NOT_OWNED: no live block begins there; E_HOST_MEMORY. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_use(void *block, weir_stream stream);

/* A block, or a piece of free memory. */
typedef struct weir_tensors_block {
    uint64_t address;
    size_t bytes, requested;
    weir_stream stream;
    weir_tensors_id pool;
    uint64_t segment; /* where the pool's segment begins, and its bytes; without a pool the block's */
    size_t segment_bytes;
    void *note;
    int is_free;    /* of weir_tensors_visit: it is no block but free memory */
    int is_pending; /* it was freed, and waits for other streams */
} weir_tensors_block;

/* Finds the block that begins at that address.  E_NOT_OWNED: none does. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_find(const void *block, weir_tensors **tensors,
                                                         weir_tensors_block *out);

/* weir_ipc_make for a block of any device: the text names the physical allocations that the block lies in, and
 * weir_ipc_open opens it.  E_NOT_OWNED: no live block begins there; else as weir_ipc_make. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_ipc_make(const void *block, char *text,
                                                             size_t text_bytes, size_t *needed,
                                                             size_t *offset);

/* ---- private pools ----------------------------------------------------------------------------
 *
 * A function that takes an id returns E_NOT_OWNED if there is no such pool; weir_tensors_pool_open makes it, and for
 * weir_tensors_trim and weir_tensors_visit it has nothing. */

/* Makes a pool, or counts one user more.  `source` (NULL: weir) is copied if the pool has neither a source nor a segment
 * yet; else, or on an error, its `end` is called at once. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_open(weir_tensors *tensors,
                                                              weir_tensors_id id,
                                                              const weir_tensors_source *source);
/* Counts one user less.  With none left the pool's free segments can go back (weir_tensors_trim, or when memory runs
 * out), and the pool goes with its last segment. */
WEIR_API weir_status weir_tensors_pool_close(weir_tensors *tensors, weir_tensors_id id);
/* Writes the number of users. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_users(weir_tensors *tensors,
                                                               weir_tensors_id id, int *users);
/* A request that finds no memory elsewhere may take free memory of this pool. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_lend(weir_tensors *tensors,
                                                              weir_tensors_id id, int on);
/* Segments are not divided any more: each serves one block at a time. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_whole(weir_tensors *tensors,
                                                               weir_tensors_id id);

/* Begins a route: a request goes to the pool if `takes` says so of its stream.  Of several routes the one that began
 * last counts.  `takes` is called under a lock, and must not call weir.  A pool has one route at a time: E_BUSY. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_begin(weir_tensors *tensors, weir_tensors_id id,
                                                          int (*takes)(void *context,
                                                                       weir_stream stream),
                                                          void *context);
/* Ends the pool's route.  `takes` is not called any more; *context (may be NULL) is what it was called with. */
WEIR_API weir_status weir_tensors_end(weir_tensors *tensors, weir_tensors_id id, void **context);

/* Gives idle memory back: of the pool, or with {0, 0} what all share and pools without users.  A pool that has users
 * or a route gives nothing back.  May wait for the device. */
WEIR_API weir_status weir_tensors_trim(weir_tensors *tensors, weir_tensors_id id);

/* Writes to *same whether the pool's live blocks are exactly these. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_pool_is(weir_tensors *tensors,
                                                            weir_tensors_id id,
                                                            void *const *blocks, size_t count,
                                                            int *same);

/* Which blocks of a pool live, and where. */
typedef struct weir_tensors_state weir_tensors_state;

/* Notes the state of a pool.  The caller destroys it.  Waits for streams that still use freed blocks.
 * E_HOST_MEMORY; E_CAPTURE: freed blocks wait for the end of a capture. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_save(weir_tensors *tensors, weir_tensors_id id,
                                                         weir_tensors_state **state);
/* Brings the pool into that state.  weir waits for the device, frees all live blocks, and allocates the saved ones at
 * their old addresses, without notes.  Segments that the pool has got since then become free.  At the end, without a
 * lock, weir calls `freed` and `made` for each block.  The contents of the memory are not restored.
 * E_HOST_MEMORY: nothing changed; E_CAPTURE as above; E_NOT_OWNED also if a segment has gone. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_restore(
    weir_tensors *tensors, const weir_tensors_state *state,
    void (*freed)(void *context, void *block), void (*made)(void *context, void *block),
    void *context);
/* NULL is OK. */
WEIR_API void weir_tensors_state_destroy(weir_tensors_state *state);

/* ---- figures ---------------------------------------------------------------------------------- */

/* As PyTorch's Stat. */
typedef struct weir_tensors_figure {
    int64_t current, peak;
    int64_t allocated, freed; /* sums of what was added and taken away */
} weir_tensors_figure;

/* Blocks of up to this size are small ones, as PyTorch has it. */
#define WEIR_TENSORS_SMALL ((size_t)1 << 20)

/* By PyTorch's names (DeviceStats): [0] of all, [1] of small blocks, [2] of large ones.  Reserved memory that is no
 * small block's counts with the large ones; so do segments.  inactive_split and inactive_split_bytes are 0: weir moves
 * and joins idle memory, so that none is lost to a split. */
typedef struct weir_tensors_figures {
    size_t size; /* bytes that the library filled in */
    weir_tensors_figure allocation[3], segment[3], active[3], inactive_split[3];
    weir_tensors_figure allocated_bytes[3], reserved_bytes[3], active_bytes[3],
        inactive_split_bytes[3], requested_bytes[3];
    uint64_t retries, ooms, device_allocs, device_frees;
} weir_tensors_figures;

/* Set out->size to sizeof(*out) before, as for weir_stats. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_stats(weir_tensors *tensors,
                                                          weir_tensors_figures *out);
/* Sets each peak to the current value. */
WEIR_API weir_status weir_tensors_reset_peaks(weir_tensors *tensors);
/* Sets sums and counts to 0. */
WEIR_API weir_status weir_tensors_reset_sums(weir_tensors *tensors);

/* Calls `show` for every block and every free piece, ordered by segment and address: of one pool, or with {0, 0} of
 * all memory.  A piece of memory that all share is a segment of pool {0, 0}.  Under the lock: `show` must not call
 * weir.  E_HOST_MEMORY. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_tensors_visit(
    weir_tensors *tensors, weir_tensors_id id,
    void (*show)(void *context, const weir_tensors_block *block), void *context);

#ifdef __cplusplus
}
#endif

#endif
