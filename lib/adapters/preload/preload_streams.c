/* SPDX-License-Identifier: MIT */
/* preload_streams.c: streams whose creation weir has seen, and their end.
 *
 * weir relies on seeing captures and the end of these streams alone, and does not query them at each request.  A stream
 * whose creation weir has not seen may also end by a call that weir does not see.
 *
 * A trim may query streams that its call does not name.  Meanwhile no stream may end, and no capture may begin, since
 * the query would break it.  So a call that ends a stream or begins a capture waits for `asking`.
 *
 * This file must not know which queries are made on a stream.
 */
#include "adapters/preload/preload.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/lock.h"
#include "base/map.h"
#include "base/thread.h"
#include "ipc/group_process.h"

atomic_int weir__contexts_made;

static struct weir_lock lock; /* innermost: no function is called while it is held */
static struct weir_map seen;  /* guarded by `lock`; a value has the device and the bit CAPTURED */

enum { CAPTURED = 1 }; /* a capture of the program began on the stream */

static uintptr_t value_of(int device, int is_captured) {
    return (uintptr_t)device << 1 | (is_captured ? CAPTURED : 0);
}

static int device_of(uintptr_t value) {
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

void weir__streams_distrust(void) {
    static atomic_int is_done;

    if (atomic_load_explicit(&is_done, memory_order_relaxed) || atomic_exchange(&is_done, 1))
        return;
    for (unsigned i = 0; i < weir__served_known(); i++)
        weir__drop_in_distrust(weir__served_at(i)->allocator);
}

__attribute__((noinline, cold)) int weir__stream_lacks_context(CUstream stream) {
    CUcontext context = NULL;

    return is_default(stream) && REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && !context;
}

/* ---- queries of all streams ---- */

atomic_int weir__captures;
/* Taken before an allocator's locks and before `lock`. */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
/* A bit for each device on which a stream was destroyed while its work ran. */
static _Atomic uint64_t ended_at_work;

static uint64_t bit_of(int device) {
    return UINT64_C(1) << (device & 63);
}

/* Resets the state in a child of fork, which has no streams. weir does nothing there if it was in use before. */
static void become_child(void) {
    pthread_mutex_init(&asking, NULL);
    lock = (struct weir_lock){0};
    seen = (struct weir_map){0};
    atomic_store_explicit(&weir__captures, 0, memory_order_relaxed);
    atomic_store_explicit(&ended_at_work, 0, memory_order_relaxed);
}

/* Marks a thread of weir as inside: its driver calls may come back through exported functions. */
static void stay_inside(void) {
    weir__inside = 1;
}

static __attribute__((constructor)) void begin_process(void) {
    weir__thread_watch(stay_inside);
    weir__group_counts_here();

    (void)pthread_atfork(NULL, NULL, become_child); /* fails only without host memory */
}

static int is_mine(void) {
    return !weir__inside && !weir__driver_forked();
}

void weir__streams_await(void) {
    if (!is_mine())
        return;
    pthread_mutex_lock(&asking);
    pthread_mutex_unlock(&asking);
}

/* Returns a list of the streams of the device whose creation was seen, or NULL if there is no host memory. */
static CUstream *list_seen(int device, size_t *count) {
    CUstream *list;

    *count = 0;
    weir__lock_take(&lock);
    list = malloc((seen.count + 1) * sizeof *list);
    for (size_t i = 0; list && i < seen.capacity; i++)
        if (seen.slots[i].key != 0 && device_of(seen.slots[i].value) == device)
            list[(*count)++] = (CUstream)(uintptr_t)seen.slots[i].key;
    weir__lock_give(&lock);
    return list;
}

int weir__streams_ask(const struct weir_served *s) {
    CUstream *streams;
    size_t count;
    int is_idle = 0;

    if (weir__interposed_passes() ||
        atomic_load_explicit(&weir__contexts_made, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&asking);
    if (atomic_load_explicit(&weir__captures, memory_order_acquire) == 0 &&
        (streams = list_seen(s->device, &count))) {
        is_idle = weir__drop_in_ask(s->allocator, streams, count) &&
                  !(atomic_load_explicit(&ended_at_work, memory_order_relaxed) & bit_of(s->device));
        free(streams);
    }
    pthread_mutex_unlock(&asking);
    return is_idle;
}

int weir__streams_hold(void) {
    return weir__thread_lock_at_end(&asking);
}

void weir__streams_lose(int device) {
    size_t count;
    CUstream *streams = list_seen(device, &count);
    uintptr_t value;

    atomic_fetch_and_explicit(&ended_at_work, ~bit_of(device), memory_order_relaxed);
    weir__lock_take(&lock);
    for (size_t i = 0; streams && i < count; i++)
        if (weir__map_take(&seen, (uintptr_t)streams[i], &value) && value & CAPTURED)
            atomic_fetch_sub_explicit(&weir__captures, 1, memory_order_acq_rel);
    if (!streams) /* no host memory: weir asks the driver about unknown streams at each request */
        weir__map_clear(&seen);
    weir__lock_give(&lock);
    free(streams);
}

void weir__streams_go_on(int is_held) {
    if (is_held)
        pthread_mutex_unlock(&asking);
}

/* ---- creation and end of streams ---- */

static void tell_all(void (*tell)(weir_allocator *, weir_stream), CUstream stream) {
    for (unsigned i = 0; i < weir__served_known(); i++)
        tell(weir__served_at(i)->allocator, stream);
}

/* Returns the device of the current context. */
static int device_here(void) {
    CUdevice device = 0;

    (void)REAL(cuCtxGetDevice)(&device);
    return device;
}

/* Records a stream that the program has created.  Without host memory weir queries the stream at each request. */
static CUresult begin(CUresult result, const CUstream *stream) {
    if (result != CUDA_SUCCESS || !is_mine())
        return result;
    weir__inside = 1;
    tell_all(weir__drop_in_stream_begins, *stream);
    weir__lock_take(&lock);
    (void)weir__map_put(&seen, (uintptr_t)*stream, value_of(device_here(), 0));
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

void weir__streams_capture(CUstream stream, int has_begun) {
    uintptr_t value;

    weir__lock_take(&lock);
    if (weir__map_get(&seen, (uintptr_t)stream, &value))
        (void)weir__map_put(&seen, (uintptr_t)stream, value_of(device_of(value), has_begun));
    weir__lock_give(&lock);
}

/* Records that a stream ends while its work runs, if an allocator uses the device. */
static void note_work(int device, CUstream stream) {
    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_served *s = weir__served_at(i);

        if (s->device != device ||
            atomic_load_explicit(&s->state, memory_order_acquire) == WEIR_SERVED_LOST)
            continue;
        if (!weir__drop_in_is_idle(s->allocator, stream))
            atomic_fetch_or_explicit(&ended_at_work, bit_of(device), memory_order_relaxed);
        return;
    }
}

/* Destroys a stream, with which its capture ends. */
CUresult weir__serve_cuStreamDestroy_v2(CUstream stream) {
    uintptr_t value = 0;
    CUresult result;
    int is_seen;

    if ((uintptr_t)stream > WEIR_STREAM_PER_THREAD_VALUE && is_mine()) {
        weir__inside = 1;
        pthread_mutex_lock(&asking);
        weir__lock_take(&lock);
        is_seen = weir__map_take(&seen, (uintptr_t)stream, &value);
        weir__lock_give(&lock);
        note_work(is_seen ? device_of(value) : device_here(), stream);
        pthread_mutex_unlock(&asking);
        tell_all(weir__drop_in_stream_ends, stream);
        weir__inside = 0;
    }
    result = REAL(cuStreamDestroy_v2)(stream);
    if (result == CUDA_SUCCESS && value & CAPTURED)
        atomic_fetch_sub_explicit(&weir__captures, 1, memory_order_acq_rel);
    return result;
}
