/* SPDX-License-Identifier: MIT */
/* preload_inside.h: what the functions need that serve the driver's calls: the way in and out, and streams.
 *
 * What: preload_requests.c serves requests, preload_frees.c frees, preload_pointers.c questions about pointers,
 * preload_pool_calls.c calls of memory pools, preload_contexts.c contexts and captures.
 *
 * Locks: none.
 *
 * Must not know: how a call gets here.
 */
#ifndef WEIR_PRELOAD_INSIDE_H
#define WEIR_PRELOAD_INSIDE_H

#include "adapters/preload/preload.h"

#include "adapters/preload/preload_blocks.h"
#include "api/drop_in.h"

static inline CUstream own(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

static inline int is_default(CUstream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* A call of the program's that may concern weir: 1, and it is inside from here on.  Not in a child of fork,
 * where locks may be held by nobody. */
static inline int enter(void) {
    if (weir__inside || weir__drop_in_forked())
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

/* The program has made a context of its own. */
extern atomic_int weir__contexts_made;

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
    return !weir__drop_in_forked() && weir__pool_has_ended(pool);
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
