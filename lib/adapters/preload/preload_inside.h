/* SPDX-License-Identifier: MIT */
/* preload_inside.h: the functions that the files share which serve the driver's calls: blocks, the program's own
 * memory, entering and leaving, and streams.
 *
 * preload_requests.c serves requests, preload_frees.c frees, preload_pointers.c queries of pointers,
 * preload_pool_calls.c calls of memory pools, preload_contexts.c contexts and captures.
 *
 * Locks: the caller holds none that another caller may hold.
 *
 * Must not know: how a call gets here.
 */
#ifndef WEIR_PRELOAD_INSIDE_H
#define WEIR_PRELOAD_INSIDE_H

#include "adapters/preload/preload.h"
#include "api/drop_in.h"
#include "ipc/group.h"

/* ---- blocks: preload_blocks.c ---- */

struct weir_found {
    struct weir_served *by;
    CUdeviceptr base;
    size_t bytes;
};

/* The number of the allocator that knew this thread's last block. */
extern _Thread_local unsigned weir__block_last __attribute__((tls_model("initial-exec")));
/* Set once a block was noted here, and once a block got a number. */
extern atomic_int weir__blocks_noted, weir__blocks_numbered;

/* Finds the block of weir that contains the address.  Returns 1 if there is one, else 0. */
int weir__block_find(CUdeviceptr address, struct weir_found *found);
/* Returns the allocator in whose memory an address lies that is in no block: the block was freed, lost or never handed
 * out.  Returns NULL if no allocator has that memory.  The driver must not be asked about such an address: it knows the
 * address as part of a larger block. */
struct weir_served *weir__block_is_none(CUdeviceptr address);
/* Notes a new block of an allocator that needs notes or sums.  Returns 1, or 0 if there is no host memory. */
int weir__block_begin(struct weir_served *s, CUdeviceptr block, size_t bytes);
/* Called before a block is freed, and afterwards: weir__block_ended if it was freed, weir__block_goes_on if not. */
void weir__block_end(const struct weir_found *found);
void weir__block_goes_on(const struct weir_found *found);
void weir__block_ended(const struct weir_found *found);
/* Returns a number that no other block has or had, or 0 if there is no host memory. */
uint64_t weir__block_number(const struct weir_found *found);

/* ---- the program's own device memory, which weir only sees: preload_plain.c ---- */

enum { WEIR_PLAIN_CALLERS = 8, WEIR_PLAIN_NAME = 32 };

/* One request, from before the driver is called until it has returned. */
struct weir_plain {
    enum weir_group_kind kind;
    CUdevice device;
    size_t bytes;
    uint64_t began;           /* CLOCK_MONOTONIC */
    struct weir_group *group; /* the group that has counted the bytes, or NULL */
    int is_seen;              /* set if the request is the program's own */
    int has_trimmed;          /* set once weir's allocators have freed their idle memory */
};

/* Counts a request of the program; `device` -1: the current one.  Returns 1 if the driver may be called, 0 if the group
 * forbids the request, which was then reported. */
int weir__plain_begin(struct weir_plain *p, enum weir_group_kind kind, CUdevice device,
                      size_t bytes);
/* Returns 1 if the driver was out of memory, and other allocators or processes have freed some meanwhile; else 0. */
int weir__plain_may_have_room(struct weir_plain *p, CUresult result);
/* Ends the request with the driver's result.  `key` is the address or the handle, and `bytes` the bytes that the driver
 * took. */
void weir__plain_end(struct weir_plain *p, CUresult result, uint64_t key, size_t bytes);
/* Takes the record of that address before the driver frees the memory; NULL: there is none.  weir__plain_freed ends or
 * restores the record by the driver's result. */
struct weir_plain_record;
struct weir_plain_record *weir__plain_freeing(uint64_t key);
void weir__plain_freed(struct weir_plain_record *record, uint64_t key, CUresult result);

/* Record releases, references and mappings of handles: physical memory lasts as long as any of them. */
struct weir_plain_record *weir__plain_releasing(CUmemGenericAllocationHandle handle);
void weir__plain_released(struct weir_plain_record *record, CUmemGenericAllocationHandle handle,
                          CUresult result);
void weir__plain_retained(CUmemGenericAllocationHandle handle, uint64_t address);
void weir__plain_mapped(CUmemGenericAllocationHandle handle, uint64_t address, size_t bytes);
void weir__plain_unmapped(uint64_t address, size_t bytes);

/* Returns 1 once a request was captured, else 0. */
int weir__plain_any_graphs(void);
/* Reads the memory of graphs on the device, after a launch or a trim; -1 is the current device. */
void weir__plain_look_at_graphs(CUdevice device);
/* Forgets the memory that went with a context, which may be NULL. */
void weir__plain_context_ended(CUcontext context);
/* Forgets the memory of all contexts of the device, and of its graphs. */
void weir__plain_lost(CUdevice device);

/* The memory that the program has allocated by itself now. */
struct weir_plain_caller {
    char name[WEIR_PLAIN_NAME]; /* the file name of the shared object */
    uint64_t bytes;
};
struct weir_plain_figures {
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    /* The callers with most memory; the name "" ends the list. */
    struct weir_plain_caller caller[WEIR_PLAIN_CALLERS];
};
void weir__plain_read(struct weir_plain_figures *out);

/* ---- the way in and out ---- */

static inline CUstream own(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

static inline int is_default(CUstream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* Enters a call of the program that may concern weir.  Returns 1, and the thread is inside until leave().  Returns 0 if
 * the thread is inside already, and in a child of fork, where a lock may be held by no thread. */
static inline int enter(void) {
    if (weir__inside || weir__driver_forked())
        return 0;
    weir__inside = 1;
    if (__builtin_expect(weir__interposed_passes(), 0))
        weir__streams_distrust();
    return 1;
}

static inline void leave(void) {
    weir__inside = 0;
}

/* ---- streams ---- */

/* Returns 1 if the stream belongs to another context than weir's, whose events may not order its work; else 0. */
static inline int is_apart(const struct weir_served *s, CUstream stream) {
    CUcontext context = NULL;

    if (__builtin_expect(!atomic_load_explicit(&weir__contexts_made, memory_order_relaxed), 1))
        return 0;
    if (is_default(stream))
        return REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context != s->context;
    return REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || context != s->context;
}

static inline int is_any_captured(void) {
    return atomic_load_explicit(&weir__captures, memory_order_acquire) > 0;
}

/* Returns 1 if the stream is a default stream and the thread has no context.  The driver then returns an invalid
 * context, after which the CUDA runtime creates a context and calls again.  If weir served such a call, the runtime
 * would not do so. */
__attribute__((cold)) int weir__stream_lacks_context(CUstream stream);

/* Returns 1 if the stream is being captured or the driver refuses the query, else 0. */
static inline int is_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return is_any_captured() && (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
                                 status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Returns 1 if the pool is known to have ended, else 0.  A driver (580) returns an invalid value for a destroyed pool
 * until its memory has another use, which may be an object of weir; from then on the driver crashes. */
static inline int is_ended(CUmemoryPool pool) {
    return !weir__driver_forked() && weir__pool_has_ended(pool);
}

/* Returns 1 if the program names a pool that is known to have ended, else 0.  Called outside. */
static inline int has_ended(CUmemoryPool pool) {
    return !weir__inside && is_ended(pool);
}

/* ---- answers ---- */

/* Returns the result that a program gets for a status. */
CUresult weir__result_of(weir_status status);

/* ---- requests: preload_requests.c ---- */

/* Frees the idle memory of all allocators except `but` to its device; NULL means all allocators and devices.  The
 * driver frees idle memory of its pools when it runs out.  Returns 1 if any was freed, else 0. */
int weir__make_room(const struct weir_served *but);

/* ---- frees: preload_frees.c ---- */

/* Frees a block on a stream, which may be of another device. */
weir_status weir__free_block(const struct weir_found *found, CUstream stream);

#endif
