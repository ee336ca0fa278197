/* SPDX-License-Identifier: MIT */
/* preload.c: the parts that all functions of the preload library share: threads of weir, and results.
 *
 * Requests of memory pools are served by weir's allocators, one for each pool of the program.  The driver makes the
 * pool, too, so that its handle is the driver's and the driver answers for it. doc/design.md (Drop-in) says which calls
 * are served, and why the rest passes through.
 *
 * Invariants: this library runs inside other people's programs.  A call that weir cannot serve goes on to the driver
 * unchanged.  A request or a free that is served takes no lock here, and before the program's first request nothing is
 * made.
 *
 * Must not know: how a call gets here; how an allocator works.
 */
#include "adapters/preload/preload_inside.h"

#include "base/log.h"
#include "base/thread.h"
#include "ipc/group_process.h"

/* Marks a thread of weir as inside, so that its driver calls, which may come back through exported functions, are not
 * served as the program's. */
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
