/* SPDX-License-Identifier: MIT */
/* preload_streams.c: streams whose creation was seen, and their end; and that a thread's context may have changed.
 *
 * Only for these streams weir relies on seeing captures and the end, and does not ask the driver at each request.  A stream
 * that was created by a call in which weir does not stand may end by such a call, too.
 *
 * Must not know: what is asked on a stream.
 */
#include "adapters/preload/preload.h"

#include "api/drop_in.h"
#include "base/lock.h"
#include "base/map.h"

static struct weir_lock lock; /* a leaf: nothing is called while it is held */
static struct weir_map seen;  /* under it; the values mean nothing */

int weir__stream_is_seen(CUstream stream) {
    int is;

    weir__lock_take(&lock);
    is = weir__map_get(&seen, (uintptr_t)stream, NULL);
    weir__lock_give(&lock);
    return is;
}

/* ---- contexts, of which default streams are ------------------------------------------------------- */

CUresult weir__serve_cuCtxSetCurrent(CUcontext context) {
    weir__drop_in_context_changes();
    return REAL(cuCtxSetCurrent)(context);
}

CUresult weir__serve_cuCtxPushCurrent_v2(CUcontext context) {
    weir__drop_in_context_changes();
    return REAL(cuCtxPushCurrent_v2)(context);
}

CUresult weir__serve_cuCtxPopCurrent_v2(CUcontext *context) {
    weir__drop_in_context_changes();
    return REAL(cuCtxPopCurrent_v2)(context);
}

/* ---- streams that are made -------------------------------------------------------------------------- */

static void tell_all(void (*tell)(weir_allocator *, weir_stream), CUstream stream) {
    for (unsigned i = 0; i < weir__served_known(); i++)
        tell(weir__served_at(i)->allocator, stream);
}

/* Streams of weir's own are left out.  About one for which there is no host memory the driver is asked at each request. */
static CUresult begin(CUresult result, const CUstream *stream) {
    if (result != CUDA_SUCCESS || weir__inside || weir__drop_in_forked())
        return result;
    weir__inside = 1;
    tell_all(weir__drop_in_stream_begins, *stream);
    weir__lock_take(&lock);
    (void)weir__map_put(&seen, (uintptr_t)*stream, 1);
    weir__lock_give(&lock);
    weir__inside = 0;
    return result;
}

CUresult weir__serve_cuStreamCreate(CUstream *stream, unsigned int flags) {
    return begin(REAL(cuStreamCreate)(stream, flags), stream);
}

CUresult weir__serve_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags,
                                                int priority) {
    return begin(REAL(cuStreamCreateWithPriority)(stream, flags, priority), stream);
}

CUresult weir__serve_cuStreamDestroy_v2(CUstream stream) {
    if ((uintptr_t)stream > WEIR_STREAM_PER_THREAD_VALUE && !weir__inside &&
        !weir__drop_in_forked()) {
        weir__inside = 1;
        weir__lock_take(&lock);
        (void)weir__map_take(&seen, (uintptr_t)stream, NULL);
        weir__lock_give(&lock);
        tell_all(weir__drop_in_stream_ends, stream);
        weir__inside = 0;
    }
    return REAL(cuStreamDestroy_v2)(stream);
}
