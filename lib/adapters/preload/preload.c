/* SPDX-License-Identifier: MIT */
/* preload.c: the driver's calls in a program that was started with weir in front of the driver: what all of them ask.
 *
 * What: requests of memory pools are served by allocators of weir's, one for each pool of the program.  The pool itself is
 * made all the same, so that its handle is the driver's, and is what the driver answers for.  doc/design.md (Drop-in) tells
 * what is served, and why the rest passes through.
 *
 * Invariants: this runs inside other people's programs.  Whatever cannot be done goes on to the driver as it came.  On the
 * way of a request or a free that is served nothing here is locked, and before the program's first request nothing is
 * made.
 *
 * Must not know: how a call gets here; how an allocator works.
 */
#include "adapters/preload/preload_inside.h"

#include "base/log.h"
#include "base/thread.h"
#include "ipc/group_process.h"

/* What weir's own threads ask of the driver is never the program's: a driver may call what it exports. */
static void stay_inside(void) {
    weir__inside = 1;
}

static __attribute__((constructor)) void begin(void) {
    weir__thread_watch(stay_inside);
    weir__group_counts_here();
}

/* ---- streams ---- */

atomic_int weir__contexts_made;

__attribute__((noinline, cold)) int weir__stream_lacks_context(CUstream stream) {
    CUcontext context = NULL;

    return is_default(stream) && REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && !context;
}

/* ---- answers ---- */

CUresult weir__result_of(weir_status status) {
    int result;

    switch (status) {
    case WEIR_OK:
        return CUDA_SUCCESS;
    case WEIR_E_NO_MEMORY:
    case WEIR_E_HOST_MEMORY:
    case WEIR_E_LIMIT:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case WEIR_E_NOT_OWNED:
        return CUDA_ERROR_INVALID_VALUE;
    default:
        result = weir_last_driver_result();
        return result != CUDA_SUCCESS ? (CUresult)result : CUDA_ERROR_UNKNOWN;
    }
}
