/* SPDX-License-Identifier: MIT */
/* record.c: records the requests of a program for device memory, and passes the events to the process `weir record`
 * through ring buffers in shared memory (record_ring.h).  The calls and the driver's results stay unchanged.
 *
 * The event of a free has the time before the driver's call, the event of an allocation the time after the call.  So
 * the events of one address are in order even if one thread frees a block and another thread gets its address at once.
 *
 * A thread whose ring is full waits until `weir record` has emptied the ring.  If the ring is still full after
 * WEIR_RECORD_WAIT_MS, the process runs on unrecorded, counts the lost events, and never waits again.  The wait does
 * not include time in which the process is stopped, such as by Ctrl-Z, because `weir record` may be stopped, too.
 *
 * A child of fork records nothing if its parent has recorded, but a program that the child executes records again.  A
 * child finds out that it is a child by a page that the kernel fills with zeros in children, since _Fork(3) and
 * clone(2) call no handler of pthread_atfork(3).
 *
 * The code in this file must not depend on how weir replaces the driver's functions, or on the format of a trace. */
#include "adapters/interpose/interpose.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "adapters/record/record.h"
#include "base/clock.h"
#include "base/variable.h"

/* A thread whose ring is full sleeps for PAUSE_NS at first.  Later, it sleeps for 1/PAUSES of the time that it has
 * waited, to keep processors free.  Every CHECK_EVERY_NS, the thread checks that `weir record` still runs. */
enum { PAUSE_NS = 100000, PAUSES = 4, CHECK_EVERY_NS = 100000000 };

/* The shared file of this process's events.  NULL before the first event, or if weir could not create the file. */
static struct weir_record_file *_Atomic file;
/* A page that the kernel fills with zeros in a child of fork, so that `is_on` is 0 and the child does not record. */
struct recording {
    atomic_int is_on;                 /* set while this process records events */
    _Atomic(_Atomic uint64_t *) lost; /* the counter of lost events, or NULL */
};
static struct recording *_Atomic recording; /* NULL until the first event */
static int has_counter, has_syncs;
static pthread_key_t at_thread_end;
static atomic_uint threads;
static atomic_int captures;                                /* the number of running captures */
static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER; /* guards the shared ring */

/* The rings of this process's threads.  `adding_ring` guards additions.  A ring is never removed or replaced. */
static struct weir_record_ring *rings[WEIR_RECORD_RINGS];
static pthread_mutex_t adding_ring = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local struct weir_record_ring *ring __attribute__((tls_model("initial-exec")));
static _Thread_local uint32_t thread __attribute__((tls_model("initial-exec")));

/* ---- rings ------------------------------------------------------------------------------------- */

static inline int is_recording(void) {
    const struct recording *has = atomic_load_explicit(&recording, memory_order_acquire);

    return has && atomic_load_explicit(&has->is_on, memory_order_relaxed);
}

static void release_ring(void *left) {
    struct weir_record_ring *mine = left;

    ring = NULL;
    /* A child of fork must not release the ring, which belongs to the parent. */
    if (is_recording())
        atomic_store_explicit(&mine->is_in_use, 0, memory_order_release);
}

/* Maps a page for `recording`, or returns NULL.  Before Linux 4.14, a child of _Fork wrongly records its events. */
static struct recording *map_recording(void) {
    struct recording *made =
        mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (made == MAP_FAILED)
        return NULL;
    (void)madvise(made, sizeof *made, MADV_WIPEONFORK);
    return made;
}

static void begin_recording(void) {
    struct recording *own = map_recording();
    _Atomic uint64_t *lost = NULL;
    int before = errno;

    has_counter = weir__record_has_counter();
    has_syncs = weir__variable(WEIR_RECORD_SYNCS) != NULL;
    if (own && pthread_key_create(&at_thread_end, release_ring) == 0) {
        atomic_store(&file, weir__record_file_create(has_counter, &lost));
        atomic_store(&own->lost, lost);
        atomic_store(&own->is_on, atomic_load(&file) != NULL);
        atomic_store_explicit(&recording, own, memory_order_release);
    }
    errno = before;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Returns a ring for this thread alone, or NULL. */
static struct weir_record_ring *claim_ring(struct weir_record_head *head) {
    struct weir_record_ring *found = NULL;
    uint32_t count;

    pthread_mutex_lock(&adding_ring);
    count = atomic_load(&head->rings);
    for (uint32_t i = 0; !found && i < count; i++) {
        uint32_t is_in_use = 0;

        if (atomic_compare_exchange_strong(&rings[i]->is_in_use, &is_in_use, 1))
            found = rings[i];
    }
    if (!found && count < WEIR_RECORD_RINGS && (found = weir__record_ring_create(count))) {
        rings[count] = found;
        atomic_store(&found->is_in_use, 1);
        atomic_store(&head->rings, count + 1);
    }
    pthread_mutex_unlock(&adding_ring);
    return found;
}

/* Returns this thread's ring or the shared ring, or NULL if this process does not record. */
static __attribute__((noinline, cold)) struct weir_record_ring *acquire_thread_ring(void) {
    struct weir_record_file *of;
    int before = errno;

    pthread_once(&once, begin_recording);
    if (!is_recording()) {
        errno = before;
        return NULL;
    }
    of = atomic_load_explicit(&file, memory_order_acquire);
    if (!thread)
        thread = atomic_fetch_add(&threads, 1) + 1;
    ring = claim_ring(&of->head);
    if (ring)
        (void)pthread_setspecific(at_thread_end, ring);
    else
        ring = &of->shared;
    errno = before;
    return ring;
}

/* ---- events ------------------------------------------------------------------------------------ */

/* An event that a thread is about to write.  `ring' is NULL if weir will not record the event. */
struct event_in_progress {
    struct weir_record_ring *ring;
    uint64_t time;
};

static int is_shared(const struct weir_record_ring *of) {
    return of == &atomic_load_explicit(&file, memory_order_relaxed)->shared;
}

/* Begins an event at the present time.  The caller ends the event by put_event() or discard_event(). */
static inline struct event_in_progress begin_event(void) {
    struct event_in_progress made = {ring, 0};

    if (__builtin_expect(!made.ring, 0) && !(made.ring = acquire_thread_ring()))
        return made;
    if (__builtin_expect(!is_recording(), 0))
        return (struct event_in_progress){NULL, 0};
    if (__builtin_expect(is_shared(made.ring), 0))
        pthread_mutex_lock(&shared);
    atomic_store_explicit(&made.ring->entered, WEIR_RECORD_ENTERING, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
    made.time = weir__record_time(has_counter);
    atomic_store_explicit(&made.ring->entered, made.time, memory_order_release);
    return made;
}

static inline void discard_event(const struct event_in_progress *made) {
    if (!made->ring)
        return;
    atomic_store_explicit(&made->ring->entered, 0, memory_order_release);
    if (__builtin_expect(is_shared(made->ring), 0))
        pthread_mutex_unlock(&shared);
}

/* Waits while the ring is full.  Returns 1, or 0 if `weir record` no longer reads the ring. */
static __attribute__((noinline, cold)) int wait_for_room(struct weir_record_ring *of,
                                                         uint64_t written) {
    struct weir_record_head *head = &atomic_load(&file)->head;
    uint64_t waited = 0, checked = 0;
    int before = errno;

    while (written - atomic_load_explicit(&of->read, memory_order_acquire) >= WEIR_RECORD_EVENTS) {
        uint64_t pause = waited / PAUSES > PAUSE_NS ? waited / PAUSES : PAUSE_NS;
        int is_over = waited > WEIR_RECORD_WAIT_MS * UINT64_C(1000000);
        uint64_t began, slept;

        if (!is_over && waited - checked > CHECK_EVERY_NS) {
            is_over = !weir__record_recorder_lives();
            checked = waited;
        }
        if (is_over || atomic_load(&head->is_closed) || !is_recording()) {
            atomic_store(&atomic_load(&recording)->is_on, 0);
            errno = before;
            return 0;
        }
        began = weir__clock_ns();
        nanosleep(&(struct timespec){(time_t)(pause / 1000000000), (long)(pause % 1000000000)},
                  NULL);
        slept = weir__clock_ns() - began;
        /* a sleep of more than twice the pause means that the process was stopped */
        waited += slept < 2 * pause ? slept : 2 * pause;
    }
    errno = before;
    return 1;
}

/* Returns the ring's next event, or NULL if `weir record` no longer reads the ring. */
static inline struct weir_record_event *ring_event(const struct event_in_progress *made,
                                                   uint64_t *written) {
    struct weir_record_event *event;

    *written = atomic_load_explicit(&made->ring->written, memory_order_relaxed);
    if (__builtin_expect(*written - atomic_load_explicit(&made->ring->read, memory_order_acquire) >=
                             WEIR_RECORD_EVENTS,
                         0) &&
        !wait_for_room(made->ring, *written))
        return NULL;
    event = &made->ring->events[*written % WEIR_RECORD_EVENTS];
    event->time = made->time;
    event->thread = thread;
    return event;
}

struct kind {
    uint8_t operation, kind, is_captured, device;
};

struct who {
    uint64_t caller, place, range;
};

static const struct who nobody;

static __attribute__((noinline, cold)) void count_lost(void) {
    struct recording *own = atomic_load(&recording);
    _Atomic uint64_t *lost = own ? atomic_load(&own->lost) : NULL;

    if (lost)
        atomic_fetch_add_explicit(lost, 1, memory_order_relaxed);
}

static inline void put_event(const struct event_in_progress *made, struct kind what,
                             uint64_t address, uint64_t bytes, uint64_t stream, struct who who) {
    struct weir_record_event *event;
    uint64_t written;

    if (!made->ring) {
        count_lost();
        return;
    }
    if ((event = ring_event(made, &written))) {
        event->operation = what.operation;
        event->kind = what.kind;
        event->is_captured = what.is_captured;
        event->device = what.device;
        event->address = address;
        event->bytes = bytes;
        event->stream = stream;
        event->caller = who.caller;
        event->place = who.place;
        event->range = who.range;
        atomic_store_explicit(&made->ring->written, written + 1, memory_order_release);
    } else {
        count_lost();
    }
    discard_event(made);
}

/* Writes an event with a text.  Returns 1 on success, 0 if the event is lost. */
static int write_text_event(const struct weir_record_event *what) {
    struct event_in_progress made = begin_event();
    struct weir_record_event *event;
    uint64_t written;

    if (!made.ring)
        return 0;
    if ((event = ring_event(&made, &written))) {
        memcpy(event->label, what->label, sizeof event->label);
        event->operation = what->operation;
        event->device = what->device;
        atomic_store_explicit(&made.ring->written, written + 1, memory_order_release);
    }
    discard_event(&made);
    return event != NULL;
}

void weir__record_name(uint64_t number, const char *text) {
    struct weir_record_event event = {.operation = WEIR_RECORD_CALLER};

    event.total = number;
    strncpy(event.name, text, sizeof event.name - 1);
    (void)write_text_event(&event);
}

/* ---- requests ---------------------------------------------------------------------------------- */

static inline CUstream per_thread_or(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

/* Returns the device of the stream if the driver reports it, else the current device. */
static uint8_t record_device(CUstream stream) {
    static atomic_int known;
    int devices = atomic_load_explicit(&known, memory_order_relaxed);
    CUdevice device = 0;

    if (devices == 0 && REAL(cuDeviceGetCount)(&devices) == CUDA_SUCCESS)
        atomic_store_explicit(&known, devices, memory_order_relaxed);
    if (devices == 1)
        return 0;
    /* drivers before CUDA 12.8 have no cuStreamGetDevice() */
    if ((uintptr_t)stream > WEIR_STREAM_PER_THREAD_VALUE &&
        REAL(cuStreamGetDevice)(stream, &device) == CUDA_SUCCESS)
        return (uint8_t)device;
    return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? (uint8_t)device : 0;
}

static int is_host_location(const CUmemLocation *location) {
    /* In the driver's enum, the locations on the host come after CU_MEM_LOCATION_TYPE_DEVICE. */
    return location->type > CU_MEM_LOCATION_TYPE_DEVICE;
}

/* CUDA's pools of host memory.  If the table is full, weir treats further pools as pools of device memory. */
static CUmemoryPool _Atomic host_pools[64];
static atomic_int has_host_pools;

/* Returns the pool's entry in host_pools, or NULL if there is none.  If `pool` is NULL, finds an empty entry. */
static CUmemoryPool _Atomic *find_pool_place(CUmemoryPool pool) {
    for (size_t i = 0; i < sizeof host_pools / sizeof host_pools[0]; i++)
        if (atomic_load(&host_pools[i]) == pool)
            return &host_pools[i];
    return NULL;
}

static inline int is_host_pool(CUmemoryPool pool) {
    return __builtin_expect(atomic_load_explicit(&has_host_pools, memory_order_relaxed), 0) &&
           find_pool_place(pool);
}

/* Adds the pool to host_pools if `is_host` is 1, else removes the pool from host_pools. */
static void record_host_pool(CUmemoryPool pool, int is_host) {
    static pthread_mutex_t host_pools_lock = PTHREAD_MUTEX_INITIALIZER;
    CUmemoryPool _Atomic *place;

    if (!pool || (!is_host && !is_host_pool(pool)))
        return;
    pthread_mutex_lock(&host_pools_lock);
    if ((place = find_pool_place(pool)) || (place = find_pool_place(NULL)))
        atomic_store(place, is_host ? pool : NULL);
    atomic_store(&has_host_pools, 1);
    pthread_mutex_unlock(&host_pools_lock);
}

static uint8_t device_of_pool(CUmemoryPool pool, CUstream stream) {
    return is_host_pool(pool) ? WEIR_RECORD_HOST : record_device(stream);
}

/* Writes an event with the device's name and memory size, once for each device. */
static __attribute__((noinline, cold)) void put_device(uint8_t device, atomic_uchar *was_put) {
    struct weir_record_event event = {.operation = WEIR_RECORD_DEVICE, .device = device};
    size_t bytes = 0;

    if (device == WEIR_RECORD_HOST || atomic_exchange(was_put, 1) ||
        REAL(cuDeviceTotalMem_v2)(&bytes, device) != CUDA_SUCCESS)
        return;
    event.total = bytes;
    if (REAL(cuDeviceGetName)(event.name, sizeof event.name, device) != CUDA_SUCCESS)
        event.name[0] = '\0';
    (void)write_text_event(&event);
}

static inline void store_current_device(uint8_t device) {
    static atomic_uchar was_put[UINT8_MAX + 1];

    if (__builtin_expect(!atomic_load_explicit(&was_put[device], memory_order_relaxed), 0))
        put_device(device, &was_put[device]);
}

static __attribute__((noinline, cold)) uint8_t query_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static inline uint8_t capture_flag(CUstream stream) {
    return __builtin_expect(atomic_load_explicit(&captures, memory_order_relaxed) > 0, 0)
               ? query_captured(stream)
               : 0;
}

/* The return address in the program's code.  The exported functions jump here, and a jump stores no return address. */
#define CALLER() ((uint64_t)(uintptr_t)__builtin_return_address(0))

/* Writes the event of a request after the driver's call. */
static inline void put_request(CUresult result, CUdeviceptr address, size_t bytes, CUstream stream,
                               enum weir_record_kind kind, uint8_t device, uint64_t caller) {
    struct kind what = {.operation = result != CUDA_SUCCESS    ? WEIR_RECORD_FAILED
                                     : kind == WEIR_RECORD_VMM ? WEIR_RECORD_CREATE
                                                               : WEIR_RECORD_ALLOC,
                        .kind = (uint8_t)kind,
                        .is_captured = capture_flag(stream),
                        .device = device};
    struct who who = {caller, 0, 0};
    struct event_in_progress made;

    store_current_device(device);
    if (__builtin_expect(weir__record_callers, 0))
        weir__record_caller_names(&who.place, &who.range);
    made = begin_event();
    put_event(&made, what, address, bytes, (uintptr_t)stream, who);
}

/* Marks the thread and returns 1 if the program makes the call.  Returns 0 in calls by this library or the driver. */
static inline int enter_call(void) {
    if (weir__is_serving)
        return 0;
    weir__is_serving = 1;
    return 1;
}

static inline void leave_call(void) {
    weir__is_serving = 0;
}

/* Calls the driver and records the request.  Does not record a request that succeeds without a block. */
#define REQUEST_ON(device, call, asked, address, bytes, stream, kind)                              \
    do {                                                                                           \
        int is_outer = enter_call();                                                               \
        CUresult result = call;                                                                    \
                                                                                                   \
        if (!is_outer)                                                                             \
            return result;                                                                         \
        if (result != CUDA_SUCCESS || ((asked) && *(asked)))                                       \
            put_request(result, result == CUDA_SUCCESS ? (address) : 0, bytes, stream, kind,       \
                        device, CALLER());                                                         \
        leave_call();                                                                              \
        return result;                                                                             \
    } while (0)

#define REQUEST(call, asked, address, bytes, stream, kind)                                         \
    REQUEST_ON(record_device(stream), call, asked, address, bytes, stream, kind)

CUresult weir__serve_cuMemAllocAsync(CUdeviceptr *block, size_t bytes, CUstream stream) {
    REQUEST(REAL(cuMemAllocAsync)(block, bytes, stream), block, *block, bytes, stream,
            WEIR_RECORD_ASYNC);
}

CUresult weir__serve_cuMemAllocAsync_ptsz(CUdeviceptr *block, size_t bytes, CUstream stream) {
    REQUEST(REAL_PTSZ(cuMemAllocAsync)(block, bytes, stream), block, *block, bytes,
            per_thread_or(stream), WEIR_RECORD_ASYNC);
}

CUresult weir__serve_cuMemAllocFromPoolAsync(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
    REQUEST_ON(device_of_pool(pool, stream),
               REAL(cuMemAllocFromPoolAsync)(block, bytes, pool, stream), block, *block, bytes,
               stream, WEIR_RECORD_POOL);
}

CUresult weir__serve_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *block, size_t bytes,
                                                  CUmemoryPool pool, CUstream stream) {
    REQUEST_ON(device_of_pool(pool, per_thread_or(stream)),
               REAL_PTSZ(cuMemAllocFromPoolAsync)(block, bytes, pool, stream), block, *block, bytes,
               per_thread_or(stream), WEIR_RECORD_POOL);
}

CUresult weir__serve_cuMemAlloc_v2(CUdeviceptr *block, size_t bytes) {
    REQUEST(REAL(cuMemAlloc_v2)(block, bytes), block, *block, bytes, NULL, WEIR_RECORD_PLAIN);
}

CUresult weir__serve_cuMemAllocPitch_v2(CUdeviceptr *block, size_t *pitch, size_t width,
                                        size_t height, unsigned int element) {
    REQUEST(REAL(cuMemAllocPitch_v2)(block, pitch, width, height, element), block, *block,
            (result == CUDA_SUCCESS ? *pitch : width) * height, NULL, WEIR_RECORD_PITCH);
}

CUresult weir__serve_cuMemAllocManaged(CUdeviceptr *block, size_t bytes, unsigned int flags) {
    REQUEST(REAL(cuMemAllocManaged)(block, bytes, flags), block, *block, bytes, NULL,
            WEIR_RECORD_MANAGED);
}

CUresult weir__serve_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                 const CUmemAllocationProp *properties, unsigned long long flags) {
    REQUEST_ON(!properties                               ? 0
               : is_host_location(&properties->location) ? WEIR_RECORD_HOST
                                                         : (uint8_t)properties->location.id,
               REAL(cuMemCreate)(handle, bytes, properties, flags), handle, *handle, bytes, NULL,
               WEIR_RECORD_VMM);
}

/* Calls the driver.  On success, records the event `what`, with the time before the call. */
#define END(call, what, at, length, on)                                                            \
    do {                                                                                           \
        struct event_in_progress made;                                                             \
        struct kind kind = {.operation = (what)};                                                  \
        CUresult result;                                                                           \
                                                                                                   \
        if (!enter_call())                                                                         \
            return call;                                                                           \
        kind.is_captured = capture_flag((CUstream)(uintptr_t)(on));                                \
        made = begin_event();                                                                      \
        result = call;                                                                             \
        if (result == CUDA_SUCCESS)                                                                \
            put_event(&made, kind, (at), (length), (uint64_t)(uintptr_t)(on), nobody);             \
        else                                                                                       \
            discard_event(&made);                                                                  \
        leave_call();                                                                              \
        return result;                                                                             \
    } while (0)

CUresult weir__serve_cuMemFreeAsync(CUdeviceptr block, CUstream stream) {
    END(REAL(cuMemFreeAsync)(block, stream), WEIR_RECORD_FREE, block, 0, stream);
}

CUresult weir__serve_cuMemFreeAsync_ptsz(CUdeviceptr block, CUstream stream) {
    END(REAL_PTSZ(cuMemFreeAsync)(block, stream), WEIR_RECORD_FREE, block, 0,
        per_thread_or(stream));
}

/* cuMemFree has no stream.  The value 1 in `bytes` tells `weir record` to use the stream of the allocation. */
CUresult weir__serve_cuMemFree_v2(CUdeviceptr block) {
    END(REAL(cuMemFree_v2)(block), WEIR_RECORD_FREE, block, 1, 0);
}

CUresult weir__serve_cuMemRelease(CUmemGenericAllocationHandle handle) {
    END(REAL(cuMemRelease)(handle), WEIR_RECORD_RELEASE, handle, 0, 0);
}

CUresult weir__serve_cuMemUnmap(CUdeviceptr address, size_t bytes) {
    END(REAL(cuMemUnmap)(address, bytes), WEIR_RECORD_UNMAP, address, bytes, 0);
}

CUresult weir__serve_cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    END(REAL(cuMemAddressFree)(address, bytes), WEIR_RECORD_UNRESERVE, address, bytes, 0);
}

/* Records a reservation of addresses or a mapping, unless the call has failed.  Returns the driver's result. */
static CUresult put_if_successful(CUresult result, enum weir_record_operation operation,
                                  uint64_t address, size_t bytes, uint64_t handle) {
    if (result == CUDA_SUCCESS) {
        struct event_in_progress made = begin_event();

        put_event(&made, (struct kind){.operation = (uint8_t)operation}, address, bytes, handle,
                  nobody);
    }
    leave_call();
    return result;
}

CUresult weir__serve_cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                                         CUdeviceptr hint, unsigned long long flags) {
    if (!enter_call())
        return REAL(cuMemAddressReserve)(address, bytes, alignment, hint, flags);
    return put_if_successful(REAL(cuMemAddressReserve)(address, bytes, alignment, hint, flags),
                             WEIR_RECORD_RESERVE, 0, bytes, 0);
}

CUresult weir__serve_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
    if (!enter_call())
        return REAL(cuMemMap)(address, bytes, offset, handle, flags);
    return put_if_successful(REAL(cuMemMap)(address, bytes, offset, handle, flags), WEIR_RECORD_MAP,
                             address, bytes, handle);
}

/* ---- pools ------------------------------------------------------------------------------------- */

static CUresult record_pool_location(CUresult result, const CUmemoryPool *pool,
                                     const CUmemLocation *location) {
    if (result == CUDA_SUCCESS)
        record_host_pool(*pool, is_host_location(location));
    return result;
}

CUresult weir__serve_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);

    return result == CUDA_SUCCESS ? record_pool_location(result, pool, &properties->location)
                                  : result;
}

CUresult weir__serve_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                     CUmemAllocationType type) {
    return record_pool_location(REAL(cuMemGetMemPool)(pool, location, type), pool, location);
}

CUresult weir__serve_cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                            CUmemAllocationType type) {
    return record_pool_location(REAL(cuMemGetDefaultMemPool)(pool, location, type), pool, location);
}

CUresult weir__serve_cuMemPoolDestroy(CUmemoryPool pool) {
    /* Removes the pool before the driver's call, because the driver may then give the handle to a new pool. */
    record_host_pool(pool, 0);
    return REAL(cuMemPoolDestroy)(pool);
}

/* ---- streams ----------------------------------------------------------------------------------- */

CUresult weir__serve_cuStreamDestroy_v2(CUstream stream) {
    END(REAL(cuStreamDestroy_v2)(stream), WEIR_RECORD_STREAM_ENDS, 0, 0, stream);
}

CUresult weir__serve_cuCtxDestroy_v2(CUcontext context) {
    END(REAL(cuCtxDestroy_v2)(context), WEIR_RECORD_CONTEXT_ENDS, 0, 0, 0);
}

CUresult weir__serve_cuDevicePrimaryCtxReset(CUdevice device) {
    END(REAL(cuDevicePrimaryCtxReset)(device), WEIR_RECORD_CONTEXT_ENDS, 0, 0, 0);
}

CUresult weir__serve_cuDevicePrimaryCtxReset_v2(CUdevice device) {
    END(REAL(cuDevicePrimaryCtxReset_v2)(device), WEIR_RECORD_CONTEXT_ENDS, 0, 0, 0);
}

static CUresult count_capture_begin(CUresult result) {
    if (result == CUDA_SUCCESS && !weir__is_serving)
        atomic_fetch_add(&captures, 1);
    return result;
}

/* A failed cuStreamEndCapture ends the capture, too. */
static CUresult count_capture_end(int was_captured, CUresult result) {
    if (was_captured && !weir__is_serving)
        atomic_fetch_sub(&captures, 1);
    return result;
}

#define CAPTURES(symbol, params, args)                                                             \
    CUresult weir__serve_##symbol params {                                                         \
        return count_capture_begin(REAL(symbol) args);                                             \
    }                                                                                              \
    CUresult weir__serve_##symbol##_ptsz params {                                                  \
        return count_capture_begin(REAL_PTSZ(symbol) args);                                        \
    }
CAPTURES(cuStreamBeginCapture, (CUstream stream), (stream))
CAPTURES(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
CAPTURES(cuStreamBeginCaptureToGraph,
         (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count,
          CUstreamCaptureMode mode),
         (stream, graph, nodes, edges, count, mode))
CAPTURES(cuStreamBeginRecaptureToGraph,
         (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *callback, void *data),
         (stream, mode, graph, callback, data))

static int is_under_capture(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult weir__serve_cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return count_capture_end(is_under_capture(stream), REAL(cuStreamEndCapture)(stream, graph));
}

CUresult weir__serve_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return count_capture_end(is_under_capture(per_thread_or(stream)),
                             REAL_PTSZ(cuStreamEndCapture)(stream, graph));
}

/* ---- marks ------------------------------------------------------------------------------------- */

/* Records a successful synchronization, if the user wants this.  Returns the driver's result. */
static CUresult put_sync(CUresult result) {
    if (result == CUDA_SUCCESS && has_syncs && !weir__is_serving && atomic_load(&file)) {
        struct event_in_progress made = begin_event();

        put_event(&made, (struct kind){.operation = WEIR_RECORD_SYNC}, 0, 0, 0, nobody);
    }
    return result;
}

CUresult weir__serve_cuCtxSynchronize(void) {
    return put_sync(REAL(cuCtxSynchronize)());
}

CUresult weir__serve_cuStreamSynchronize(CUstream stream) {
    return put_sync(REAL(cuStreamSynchronize)(stream));
}

CUresult weir__serve_cuStreamSynchronize_ptsz(CUstream stream) {
    return put_sync(REAL_PTSZ(cuStreamSynchronize)(stream));
}

void weir_mark(const char *label) {
    struct weir_record_event event = {.operation = WEIR_RECORD_MARK};

    /* There is no file for events before the first request. */
    if (!atomic_load(&file))
        return;
    strncpy(event.label, label ? label : "", sizeof event.label - 1);
    if (!write_text_event(&event))
        count_lost();
}
