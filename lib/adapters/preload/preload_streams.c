/* SPDX-License-Identifier: MIT */
/* preload_streams.c: keeps a record of each stream that the program has created and not yet destroyed.
 *
 * weir notices when the program captures or destroys such a stream, so a request need not query the driver.  Other
 * streams, such as those that existed before weir was loaded, may be destroyed without weir's notice.
 *
 * When weir trims its memory, it may query streams that the program is not using in the present call.  During these
 * queries no stream may be destroyed, and no capture may begin, because a query would break the capture.  So the trim
 * holds `query_lock`, and a call that destroys a stream or begins a capture waits for `query_lock`.
 *
 * The code in this file must not depend on which queries are made on a stream. */
#include "adapters/preload/preload.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/lock.h"
#include "base/map.h"
#include "base/thread.h"
#include "ipc/group_process.h"

atomic_int weir__contexts_created;

static struct weir_lock lock;
/* Maps a stream to its device and the bit CAPTURED.  Guarded by `lock`, whose holder takes no other lock. */
static struct weir_map tracked;

enum { CAPTURED = 1 }; /* set while the program captures the stream */

static uintptr_t pack_stream(int device, int is_captured) {
    return (uintptr_t)device << 1 | (is_captured ? CAPTURED : 0);
}

static int unpack_device(uintptr_t value) {
    return (int)(value >> 1);
}

int weir__stream_is_tracked(CUstream stream) {
    int is;

    if (weir__misses_captures())
        return 0;
    weir__lock_take(&lock);
    is = weir__map_get(&tracked, (uintptr_t)stream, NULL);
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
/* Held while a thread queries streams in order to trim memory.  Taken before an allocator's locks and before `lock`. */
static pthread_mutex_t query_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t destroyed_with_work; /* one bit for each device */

static uint64_t device_bit(int device) {
    return UINT64_C(1) << (device & 63);
}

/* Resets all locks and records in a child of fork, because the child has no streams. */
static void reset_streams_in_child(void) {
    pthread_mutex_init(&query_lock, NULL);
    lock = (struct weir_lock){0};
    tracked = (struct weir_map){0};
    atomic_store_explicit(&weir__captures, 0, memory_order_relaxed);
    atomic_store_explicit(&destroyed_with_work, 0, memory_order_relaxed);
}

/* Called in each thread of weir.  The thread's driver calls then go to the driver unchanged. */
static void mark_weir_thread(void) {
    weir__is_serving = 1;
}

static __attribute__((constructor)) void begin_process(void) {
    weir__thread_watch(mark_weir_thread);
    weir__group_set_charged_by_preload();

    (void)pthread_atfork(NULL, NULL, reset_streams_in_child); /* fails only without host memory */
}

static int is_call_of_program(void) {
    return !weir__is_serving && !weir__driver_forked();
}

void weir__streams_wait_for_queries(void) {
    if (!is_call_of_program())
        return;
    pthread_mutex_lock(&query_lock);
    pthread_mutex_unlock(&query_lock);
}

/* Lists the device's recorded streams.  The caller frees the list.  Returns NULL if there is no host memory. */
static CUstream *list_tracked_streams(int device, size_t *count) {
    CUstream *list;

    *count = 0;
    weir__lock_take(&lock);
    list = malloc((tracked.count + 1) * sizeof *list);
    for (size_t i = 0; list && i < tracked.capacity; i++)
        if (tracked.slots[i].key != 0 && unpack_device(tracked.slots[i].value) == device)
            list[(*count)++] = (CUstream)(uintptr_t)tracked.slots[i].key;
    weir__lock_give(&lock);
    return list;
}

int weir__streams_are_idle(const struct weir_served *s) {
    CUstream *streams;
    size_t count;
    int is_idle = 0;

    /* If the program has created a context, the context's end may have destroyed streams that weir would query. */
    if (weir__misses_captures() ||
        atomic_load_explicit(&weir__contexts_created, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&query_lock);
    if (atomic_load_explicit(&weir__captures, memory_order_acquire) == 0 &&
        (streams = list_tracked_streams(s->device, &count))) {
        is_idle = weir__drop_in_are_idle(s->allocator, streams, count) &&
                  !(atomic_load_explicit(&destroyed_with_work, memory_order_relaxed) &
                    device_bit(s->device));
        free(streams);
    }
    pthread_mutex_unlock(&query_lock);
    return is_idle;
}

int weir__streams_pause(void) {
    return weir__thread_lock_at_end(&query_lock);
}

void weir__streams_forget_device(int device) {
    size_t count;
    CUstream *streams = list_tracked_streams(device, &count);
    uintptr_t value;

    atomic_fetch_and_explicit(&destroyed_with_work, ~device_bit(device), memory_order_relaxed);
    weir__lock_take(&lock);
    for (size_t i = 0; streams && i < count; i++)
        if (weir__map_remove(&tracked, (uintptr_t)streams[i], &value) && value & CAPTURED)
            atomic_fetch_sub_explicit(&weir__captures, 1, memory_order_acq_rel);
    /* Without host memory for the list, removes all records.  weir then queries whether each stream is captured. */
    if (!streams)
        weir__map_clear(&tracked);
    weir__lock_give(&lock);
    free(streams);
}

void weir__streams_resume(int is_held) {
    if (is_held)
        pthread_mutex_unlock(&query_lock);
}

/* ---- creation and destruction ---- */

static void notify_allocators(void (*notify)(weir_allocator *, weir_stream), CUstream stream) {
    for (unsigned i = 0; i < weir__served_known(); i++)
        notify(weir__served_at(i)->allocator, stream);
}

static int current_context_device(void) {
    CUdevice device = 0;

    (void)REAL(cuCtxGetDevice)(&device);
    return device;
}

/* Records a new stream.  Without a record, weir queries the driver about the stream at each request. */
static CUresult record_created_stream(CUresult result, const CUstream *stream) {
    if (result != CUDA_SUCCESS || !is_call_of_program())
        return result;
    weir__is_serving = 1;
    notify_allocators(weir__drop_in_stream_begins, *stream);
    weir__lock_take(&lock);
    (void)weir__map_put(&tracked, (uintptr_t)*stream, pack_stream(current_context_device(), 0));
    weir__lock_give(&lock);
    weir__is_serving = 0;
    return result;
}

CUresult weir__serve_cuStreamCreate(CUstream *stream, unsigned int flags) {
    return record_created_stream(REAL(cuStreamCreate)(stream, flags), stream);
}

CUresult weir__serve_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags,
                                                int priority) {
    return record_created_stream(REAL(cuStreamCreateWithPriority)(stream, flags, priority), stream);
}

void weir__streams_capture(CUstream stream, int has_begun) {
    uintptr_t value;

    weir__lock_take(&lock);
    if (weir__map_get(&tracked, (uintptr_t)stream, &value))
        (void)weir__map_put(&tracked, (uintptr_t)stream,
                            pack_stream(unpack_device(value), has_begun));
    weir__lock_give(&lock);
}

/* Sets the device's bit in `destroyed_with_work` if the stream, which weir cannot query later, still has work. */
static void record_unfinished_work(int device, CUstream stream) {
    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_served *s = weir__served_at(i);

        if (s->device != device ||
            atomic_load_explicit(&s->state, memory_order_acquire) == WEIR_SERVED_LOST)
            continue;
        if (!weir__drop_in_is_idle(s->allocator, stream))
            atomic_fetch_or_explicit(&destroyed_with_work, device_bit(device),
                                     memory_order_relaxed);
        return;
    }
}

/* The destruction of a stream also ends a capture of the stream. */
CUresult weir__serve_cuStreamDestroy_v2(CUstream stream) {
    uintptr_t value = 0;
    CUresult result;
    int is_tracked;

    if ((uintptr_t)stream > WEIR_STREAM_PER_THREAD_VALUE && is_call_of_program()) {
        weir__is_serving = 1;
        pthread_mutex_lock(&query_lock);
        weir__lock_take(&lock);
        is_tracked = weir__map_remove(&tracked, (uintptr_t)stream, &value);
        weir__lock_give(&lock);
        record_unfinished_work(is_tracked ? unpack_device(value) : current_context_device(),
                               stream);
        pthread_mutex_unlock(&query_lock);
        notify_allocators(weir__drop_in_stream_ends, stream);
        weir__is_serving = 0;
    }
    result = REAL(cuStreamDestroy_v2)(stream);
    if (result == CUDA_SUCCESS && value & CAPTURED)
        atomic_fetch_sub_explicit(&weir__captures, 1, memory_order_acq_rel);
    return result;
}
