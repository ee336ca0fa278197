/* SPDX-License-Identifier: MIT */
/* preload_inside.h: what the functions that serve the driver's calls share: blocks, the program's own memory, the way in
 * and out, and streams.
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
/* Ends the request with the driver's result.  `key` is the address or the handle; `bytes` is what the driver took. */
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
/* Reads how much memory graphs have on the device, after a launch or a trim; -1: the current device. */
void weir__plain_look_at_graphs(CUdevice device);
/* Forgets the memory that went with a context, which may be NULL. */
void weir__plain_context_ended(CUcontext context);
/* Forgets the memory of all contexts of the device, and of its graphs. */
void weir__plain_lost(CUdevice device);

/* The memory that the program has now. */
struct weir_plain_caller {
    char name[WEIR_PLAIN_NAME]; /* of the shared object */
    uint64_t bytes;
};
struct weir_plain_figures {
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    struct weir_plain_caller caller[WEIR_PLAIN_CALLERS]; /* those with most; "": no more */
};
void weir__plain_read(struct weir_plain_figures *out);

/* ---- the way in and out ---- */

static inline CUstream own(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

static inline int is_default(CUstream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* A call of the program's that may concern weir: 1, and it is inside from here on.  Not in a child of fork,
 * where locks may be held by nobody. */
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

/* The stream is of another context than weir's, whose events may not order what runs there. */
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

/* A default stream on a thread without a context names nothing.  The driver answers an invalid context, after which the
 * CUDA runtime makes one current and calls again: to serve such a call would keep that from coming. */
__attribute__((cold)) int weir__stream_lacks_context(CUstream stream);

/* 1 if the stream is being captured, or may not be asked about. */
static inline int is_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return is_any_captured() && (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
                                 status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* A driver (580) answers an invalid value for a pool that was destroyed until something else is in its place in memory,
 * and crashes then; what weir makes may be there. */
static inline int is_ended(CUmemoryPool pool) {
    return !weir__driver_forked() && weir__pool_has_ended(pool);
}

/* The same, from outside. */
static inline int has_ended(CUmemoryPool pool) {
    return !weir__inside && is_ended(pool);
}

/* ---- answers ---- */

/* What a status is to a program of the driver's. */
CUresult weir__result_of(weir_status status);

/* ---- requests: preload_requests.c ---- */

/* Gives the device what other allocators than `but` (NULL: all) hold idle on it: 1, or 0 if that is nothing.
 * The driver does so with its pools when it runs out. */
int weir__make_room(const struct weir_served *but);

/* ---- frees: preload_frees.c ---- */

/* Frees a block that was found, on a stream of any device. */
weir_status weir__free_block(const struct weir_found *found, CUstream stream);

#endif
