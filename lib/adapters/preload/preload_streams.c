/* SPDX-License-Identifier: MIT */
/* preload_streams.c: keeps records of the streams that the program has created, until the program destroys the
 * streams.
 *
 * weir notices when the program captures or destroys such a stream.  So weir does not query the driver about the
 * stream at each request.  Other streams, such as those that existed before weir was loaded, may be destroyed without
 * weir's notice.  So weir queries the driver about such a stream at each request.
 *
 * When weir trims its memory, it may query streams that the program is not using in the present call.  During these
 * queries no stream may be destroyed, and no capture may begin, because a query would break the capture.  So the trim
 * holds `asking`, and a call that destroys a stream or begins a capture waits for `asking`.
 *
 * The code in this file must not depend on which queries are made on a stream.
 */
#include "adapters/preload/preload.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/lock.h"
#include "base/map.h"
#include "base/thread.h"
#include "ipc/group_process.h"

atomic_int weir__contexts_made;

static struct weir_lock lock; /* guards `seen`; a thread that holds this lock takes no other lock */
/* Maps a stream to its device and the bit CAPTURED; guarded by `lock`. */
static struct weir_map seen;

/* a bit of the map's value that is set while the program captures the stream */
enum { CAPTURED = 1 };

static uintptr_t pack_stream(int device, int is_captured) {
    return (uintptr_t)device << 1 | (is_captured ? CAPTURED : 0);
}

static int unpack_device(uintptr_t value) {
    return (int)(value >> 1);
}

int weir__stream_is_seen(CUstream stream) {
    int is;

    if (weir__interposed_passes())
        return 0;
    weir__lock_take(&lock);
    is = weir__map_get(&seen, (uintptr_t)stream, NULL);
    weir__lock_give(&lock);
    return is;
}

void weir__streams_query_all(void) {
    static atomic_int is_done;

    if (atomic_load_explicit(&is_done, memory_order_relaxed) || atomic_exchange(&is_done, 1))
        return;
    for (unsigned i = 0; i < weir__served_known(); i++)
        weir__drop_in_query_all(weir__served_at(i)->allocator);
}

__attribute__((noinline, cold)) int weir__stream_lacks_context(CUstream stream) {
    CUcontext context = NULL;

    return is_default_stream(stream) && REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && !context;
}

/* ---- queries of all streams ---- */

atomic_int weir__captures;
/* A thread holds this lock while it queries streams in order to trim memory.  A thread takes `asking` before an
 * allocator's locks and before `lock`. */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
/* one bit for each device on which the program has destroyed a stream that still had work */
static _Atomic uint64_t ended_at_work;

static uint64_t device_bit(int device) {
    return UINT64_C(1) << (device & 63);
}

/* Resets the state of this file in a child of fork, because the child has no streams. */
static void reset_streams_in_child(void) {
    pthread_mutex_init(&asking, NULL);
    lock = (struct weir_lock){0};
    seen = (struct weir_map){0};
    atomic_store_explicit(&weir__captures, 0, memory_order_relaxed);
    atomic_store_explicit(&ended_at_work, 0, memory_order_relaxed);
}

/* Marks the calling thread, a thread of weir, so that its driver calls go to the driver unchanged.  Without the
 * mark, these calls could reach the functions of this library that replace the driver's. */
static void mark_weir_thread(void) {
    weir__inside = 1;
}

static __attribute__((constructor)) void begin_process(void) {
    weir__thread_watch(mark_weir_thread);
    weir__group_set_charged_by_preload();

    (void)pthread_atfork(NULL, NULL,
                         reset_streams_in_child); /* can fail only if there is no host memory */
}

static int is_call_of_program(void) {
    return !weir__inside && !weir__driver_forked();
}

void weir__streams_await(void) {
    if (!is_call_of_program())
        return;
    pthread_mutex_lock(&asking);
    pthread_mutex_unlock(&asking);
}

/* Returns a list of the device's streams that weir saw the program create, and stores their number in *count.  The
 * caller frees the list.  Returns NULL if there is no host memory. */
static CUstream *list_seen(int device, size_t *count) {
    CUstream *list;

    *count = 0;
    weir__lock_take(&lock);
    list = malloc((seen.count + 1) * sizeof *list);
    for (size_t i = 0; list && i < seen.capacity; i++)
        if (seen.slots[i].key != 0 && unpack_device(seen.slots[i].value) == device)
            list[(*count)++] = (CUstream)(uintptr_t)seen.slots[i].key;
    weir__lock_give(&lock);
    return list;
}

int weir__streams_are_idle(const struct weir_served *s) {
    CUstream *streams;
    size_t count;
    int is_idle = 0;

    if (weir__interposed_passes() ||
        atomic_load_explicit(&weir__contexts_made, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&asking);
    if (atomic_load_explicit(&weir__captures, memory_order_acquire) == 0 &&
        (streams = list_seen(s->device, &count))) {
        is_idle =
            weir__drop_in_are_idle(s->allocator, streams, count) &&
            !(atomic_load_explicit(&ended_at_work, memory_order_relaxed) & device_bit(s->device));
        free(streams);
    }
    pthread_mutex_unlock(&asking);
    return is_idle;
}

int weir__streams_pause(void) {
    return weir__thread_lock_at_end(&asking);
}

void weir__streams_forget_device(int device) {
    size_t count;
    CUstream *streams = list_seen(device, &count);
    uintptr_t value;

    atomic_fetch_and_explicit(&ended_at_work, ~device_bit(device), memory_order_relaxed);
    weir__lock_take(&lock);
    for (size_t i = 0; streams && i < count; i++)
        if (weir__map_remove(&seen, (uintptr_t)streams[i], &value) && value & CAPTURED)
            atomic_fetch_sub_explicit(&weir__captures, 1, memory_order_acq_rel);
    /* Without host memory for the list, remove the records of all streams.  Then weir queries the driver about these
     * streams at each request. */
    if (!streams)
        weir__map_clear(&seen);
    weir__lock_give(&lock);
    free(streams);
}

void weir__streams_resume(int is_held) {
    if (is_held)
        pthread_mutex_unlock(&asking);
}

/* ---- creation and end of streams ---- */

static void notify_allocators(void (*tell)(weir_allocator *, weir_stream), CUstream stream) {
    for (unsigned i = 0; i < weir__served_known(); i++)
        tell(weir__served_at(i)->allocator, stream);
}

/* Returns the device of the thread's current context, or 0 if there is no current context. */
static int current_context_device(void) {
    CUdevice device = 0;

    (void)REAL(cuCtxGetDevice)(&device);
    return device;
}

/* Records a stream that the program has just created.  If there is no host memory for the record, weir queries the
 * driver about the stream at each request.  Returns `result`. */
static CUresult note_created_stream(CUresult result, const CUstream *stream) {
    if (result != CUDA_SUCCESS || !is_call_of_program())
        return result;
    weir__inside = 1;
    notify_allocators(weir__drop_in_stream_begins, *stream);
    weir__lock_take(&lock);
    (void)weir__map_put(&seen, (uintptr_t)*stream, pack_stream(current_context_device(), 0));
    weir__lock_give(&lock);
    weir__inside = 0;
    return result;
}

CUresult weir__serve_cuStreamCreate(CUstream *stream, unsigned int flags) {
    return note_created_stream(REAL(cuStreamCreate)(stream, flags), stream);
}

CUresult weir__serve_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags,
                                                int priority) {
    return note_created_stream(REAL(cuStreamCreateWithPriority)(stream, flags, priority), stream);
}

void weir__streams_capture(CUstream stream, int has_begun) {
    uintptr_t value;

    weir__lock_take(&lock);
    if (weir__map_get(&seen, (uintptr_t)stream, &value))
        (void)weir__map_put(&seen, (uintptr_t)stream, pack_stream(unpack_device(value), has_begun));
    weir__lock_give(&lock);
}

/* If the stream still has work, remembers this for the device, because the program is about to destroy the stream
 * and weir cannot query it later.  Does nothing if no allocator uses the device. */
static void note_unfinished_work(int device, CUstream stream) {
    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_served *s = weir__served_at(i);

        if (s->device != device ||
            atomic_load_explicit(&s->state, memory_order_acquire) == WEIR_SERVED_LOST)
            continue;
        if (!weir__drop_in_is_idle(s->allocator, stream))
            atomic_fetch_or_explicit(&ended_at_work, device_bit(device), memory_order_relaxed);
        return;
    }
}

/* Destroys a stream.  If the stream is being captured, its capture ends, too. */
CUresult weir__serve_cuStreamDestroy_v2(CUstream stream) {
    uintptr_t value = 0;
    CUresult result;
    int is_seen;

    if ((uintptr_t)stream > WEIR_STREAM_PER_THREAD_VALUE && is_call_of_program()) {
        weir__inside = 1;
        pthread_mutex_lock(&asking);
        weir__lock_take(&lock);
        is_seen = weir__map_remove(&seen, (uintptr_t)stream, &value);
        weir__lock_give(&lock);
        note_unfinished_work(is_seen ? unpack_device(value) : current_context_device(), stream);
        pthread_mutex_unlock(&asking);
        notify_allocators(weir__drop_in_stream_ends, stream);
        weir__inside = 0;
    }
    result = REAL(cuStreamDestroy_v2)(stream);
    if (result == CUDA_SUCCESS && value & CAPTURED)
        atomic_fetch_sub_explicit(&weir__captures, 1, memory_order_acq_rel);
    return result;
}
