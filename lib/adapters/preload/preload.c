/* SPDX-License-Identifier: MIT */
/* preload.c: what the driver's calls do in a program that was started with weir in front of the driver.
 *
 * Requests of memory pools are served by allocators of weir's, one for each pool of the program; the pool
 * itself is made all the same, so that its handle is the driver's, and is what the driver answers for.
 * doc/design.md (Drop-in) tells what is served, and why the rest passes through.
 *
 * This runs inside other people's programs.  Whatever cannot be done goes on to the driver as it came.  On the
 * way of a request or a free that is served nothing here is locked, and before the program's first request
 * nothing is made.
 *
 * Must not know: how a call gets here; how an allocator works.
 */
#include "adapters/preload/preload.h"

#include "api/drop_in.h"
#include "base/log.h"
#include "base/thread.h"

static inline CUstream own(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

static int is_default(CUstream stream) {
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

/* What weir's own threads ask of the driver is never the program's: a driver may call what it exports. */
static void stay_inside(void) {
    weir__inside = 1;
}

static __attribute__((constructor)) void begin(void) {
    weir__thread_watch(stay_inside);
}

/* ---- devices and streams ------------------------------------------------------------------------- */

/* How many devices the program sees; they do not change. */
static int count_devices(void) {
    static atomic_int known;
    int devices = atomic_load_explicit(&known, memory_order_relaxed);

    if (devices == 0 && REAL(cuDeviceGetCount)(&devices) == CUDA_SUCCESS)
        atomic_store_explicit(&known, devices, memory_order_relaxed);
    return devices;
}

/* -1: the driver has something against it. */
static int device_of_context(CUcontext context) {
    CUdevice device = -1;
    CUcontext popped;

    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return -1;
    if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        device = -1;
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return device;
}

/* Of a stream as the caller means it; likewise. */
static int device_of(CUstream stream) {
    CUcontext context = NULL;
    CUdevice device = -1;

    /* On a thread without a context the allocator finds that out; one is not made for that. */
    if (count_devices() == 1 && (!is_default(stream) || weir__served_known() > 0))
        return 0;
    if (is_default(stream))
        return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? device : -1;
    if (REAL(cuStreamGetDevice)(stream, &device) == CUDA_SUCCESS) /* from 12.8 on */
        return device;
    return REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS ? device_of_context(context) : -1;
}

/* The program has made a context of its own. */
static atomic_int has_contexts;

int weir__has_contexts(void) {
    return atomic_load_explicit(&has_contexts, memory_order_relaxed);
}

/* The stream is of another context than weir's, whose events may not order what runs there. */
static int is_apart(const struct weir_served *s, CUstream stream) {
    CUcontext context = NULL;

    if (__builtin_expect(!atomic_load_explicit(&has_contexts, memory_order_relaxed), 1))
        return 0;
    if (is_default(stream))
        return REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context != s->context;
    return REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || context != s->context;
}

static int is_any_captured(void) {
    return atomic_load_explicit(&weir__captures, memory_order_acquire) > 0;
}

/* A default stream on a thread without a context names nothing.  The driver answers an invalid context, after which the
 * CUDA runtime makes one current and calls again: to serve such a call would keep that from coming. */
static __attribute__((noinline, cold)) int lacks_context(CUstream stream) {
    CUcontext context = NULL;

    return is_default(stream) && REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && !context;
}

/* 1 if the stream is being captured, or may not be asked about. */
static int is_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return is_any_captured() && (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
                                 status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* ---- requests ------------------------------------------------------------------------------------ */

/* What a status is to a program of the driver's. */
static CUresult result_of(weir_status status) {
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

/* OK, or E_HOST_MEMORY and the block is free again. */
static weir_status begin_block(struct weir_served *s, void *block, size_t bytes, CUstream stream) {
    if (!s->needs_sums || weir__block_begin(s, (CUdeviceptr)(uintptr_t)block, bytes))
        return WEIR_OK;
    (void)weir_free(s->allocator, block, stream);
    return WEIR_E_HOST_MEMORY;
}

/* Gives the device what other allocators than `but` (NULL: all) hold idle on it: 1, or 0 if that is nothing.
 * The driver does so with its pools when it runs out. */
static __attribute__((noinline, cold)) int make_room(const struct weir_served *but) {
    int any = 0;

    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_served *s = weir__served_at(i);
        size_t released = 0;

        if (s != but && (!but || s->device == but->device) &&
            weir_trim(s->allocator, 0, &released) == WEIR_OK)
            any |= released > 0;
    }
    return any;
}

/* The driver has no memory for a request of its own: 1 if it has now, and is to be asked once more. */
static int may_have_room(CUresult result) {
    int any = 0;

    if (result == CUDA_ERROR_OUT_OF_MEMORY && weir__served_known() > 0 && enter()) {
        any = make_room(NULL);
        if (!any)
            weir__report_failure();
        leave();
    }
    return any;
}

/* Of this thread's request, if that goes on to the driver, for what reason and for the sake of which pool. */
static _Thread_local struct {
    struct weir_pool *pool;
    enum weir_left why;
} left __attribute__((tls_model("initial-exec")));

static int leave_to_driver(enum weir_left why, struct weir_pool *pool) {
    left.why = why;
    left.pool = pool;
    return 0;
}

/* What the driver refuses, too, is not told. */
static CUresult passed(CUresult result) {
    if (left.why != WEIR_LEFT_NOT && result == CUDA_SUCCESS)
        weir__count_left(left.why, left.pool);
    left.why = WEIR_LEFT_NOT;
    return result;
}

/* 1 and the answer, or 0: the request is the driver's. */
static int request(struct weir_served *s, CUdeviceptr *block, size_t bytes, CUstream stream,
                   CUresult *result) {
    void *address = NULL;
    weir_status status = weir_alloc(s->allocator, bytes, stream, &address);

    if (__builtin_expect(status == WEIR_E_NO_MEMORY, 0) && make_room(s))
        status = weir_alloc(s->allocator, bytes, stream, &address);
    if (status == WEIR_OK)
        status = begin_block(s, address, bytes, stream);
    if (__builtin_expect(weir__heap_on, 0) && status == WEIR_OK)
        weir__heap_began(s, (CUdeviceptr)(uintptr_t)address, bytes);
    if (__builtin_expect(status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT, 0)) {
        weir__report_refusal(s);
        weir__trace_refused(s, bytes);
        weir__report_failure();
    }
    switch (status) {
    case WEIR_E_STREAM: /* another device's, or none */
        return leave_to_driver(WEIR_LEFT_STREAM, NULL);
    case WEIR_E_CAPTURE:
    case WEIR_E_FORKED:
    case WEIR_E_DEVICE_LOST:
        return 0;
    case WEIR_OK:
        *block = (CUdeviceptr)(uintptr_t)address;
        *result = CUDA_SUCCESS;
        return 1;
    default:
        *block = 0; /* as the driver does (580), and programs look */
        *result = result_of(status);
        return 1;
    }
}

/* A driver (580) answers an invalid value for a pool that was destroyed until something else is in its place in memory,
 * and crashes then; what weir makes may be there. */
static int is_ended(CUmemoryPool pool) {
    return !weir__drop_in_forked() && weir__pool_has_ended(pool);
}

/* The same, from outside. */
static int has_ended(CUmemoryPool pool) {
    return !weir__inside && is_ended(pool);
}

/* 1 and the answer to any request of such a pool. */
static int answer_ended(CUmemoryPool pool, CUresult *result) {
    *result = CUDA_ERROR_INVALID_VALUE;
    return is_ended(pool);
}

/* The pool, or NULL: what is current for the stream's device. */
static int request_of_pool(CUmemoryPool handle, CUdeviceptr *block, size_t bytes, CUstream stream,
                           CUresult *result) {
    struct weir_pool *p = handle ? weir__pool_of(handle) : weir__pool_current(device_of(stream));
    struct weir_served *s;

    if (!p)
        return answer_ended(handle, result);
    if (is_captured(stream))
        return 0;
    s = weir__served_of(p);
    if (s)
        return is_apart(s, stream) ? leave_to_driver(WEIR_LEFT_STREAM, NULL)
                                   : request(s, block, bytes, stream, result);
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (weir__pool_is_refused(p))
        return 1;
    return leave_to_driver((enum weir_left)atomic_load_explicit(&p->left, memory_order_relaxed), p);
}

/* Likewise, from outside.  Arguments that are no request are the driver's to judge. */
static inline int serve_request(CUmemoryPool handle, CUdeviceptr *block, size_t bytes,
                                CUstream stream, CUresult *result) {
    int is_request = block && bytes > 0, done;

    if (!enter())
        return 0;
    done = is_request ? request_of_pool(handle, block, bytes, stream, result)
                      : answer_ended(handle, result);
    leave();
    if (__builtin_expect(!done && is_request, 0) && !lacks_context(stream))
        weir__count_unserved(WEIR_UNSERVED_POOL);
    return done;
}

CUresult weir__serve_cuMemAllocAsync(CUdeviceptr *block, size_t bytes, CUstream stream) {
    CUresult result;

    if (serve_request(NULL, block, bytes, stream, &result))
        return result;
    result = REAL(cuMemAllocAsync)(block, bytes, stream);
    return passed(may_have_room(result) ? REAL(cuMemAllocAsync)(block, bytes, stream) : result);
}

CUresult weir__serve_cuMemAllocAsync_ptsz(CUdeviceptr *block, size_t bytes, CUstream stream) {
    CUresult result;

    if (serve_request(NULL, block, bytes, own(stream), &result))
        return result;
    result = REAL_PTSZ(cuMemAllocAsync)(block, bytes, stream);
    return passed(may_have_room(result) ? REAL_PTSZ(cuMemAllocAsync)(block, bytes, stream)
                                        : result);
}

CUresult weir__serve_cuMemAllocFromPoolAsync(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
    CUresult result;

    if (pool && serve_request(pool, block, bytes, stream, &result))
        return result;
    result = REAL(cuMemAllocFromPoolAsync)(block, bytes, pool, stream);
    return passed(may_have_room(result) ? REAL(cuMemAllocFromPoolAsync)(block, bytes, pool, stream)
                                        : result);
}

CUresult weir__serve_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *block, size_t bytes,
                                                  CUmemoryPool pool, CUstream stream) {
    CUresult result;

    if (pool && serve_request(pool, block, bytes, own(stream), &result))
        return result;
    result = REAL_PTSZ(cuMemAllocFromPoolAsync)(block, bytes, pool, stream);
    return passed(may_have_room(result)
                      ? REAL_PTSZ(cuMemAllocFromPoolAsync)(block, bytes, pool, stream)
                      : result);
}

/* ---- frees --------------------------------------------------------------------------------------- */

/* On a stream of another device or context, which weir does not know: what it has to do is waited for by a
 * stream of the block's, on the device. */
static weir_status free_from_afar(struct weir_served *s, void *block, CUstream stream) {
    CUstream apart = weir__served_apart(s);
    weir_status status = WEIR_E_STREAM;
    CUcontext context, popped;
    CUevent event;

    if (!apart || REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || !context ||
        REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return status;
    if (REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
        if (REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS &&
            REAL(cuStreamWaitEvent)(apart, event, 0) == CUDA_SUCCESS)
            status = weir_free(s->allocator, block, apart);
        (void)REAL(cuEventDestroy_v2)(event);
    }
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return status;
}

static inline void after_free(const struct weir_found *found, int is_freed) {
    if (__builtin_expect(!is_freed, 0)) {
        weir__block_goes_on(found);
    } else {
        weir__block_ended(found);
        weir__served_freed(found->by);
    }
}

static weir_status free_block(const struct weir_found *found, CUstream stream) {
    void *block = (void *)(uintptr_t)found->base;
    weir_status status;

    weir__block_end(found);
    status = is_apart(found->by, stream) ? WEIR_E_STREAM
                                         : weir_free(found->by->allocator, block, stream);
    if (__builtin_expect(status == WEIR_E_STREAM, 0))
        status = free_from_afar(found->by, block, stream);
    after_free(found, status == WEIR_OK);
    return status;
}

/* What is to be done about a free. */
enum to_free { FREE_PASSES, FREE_IT, FREE_IS_ANSWERED };

/* Of memory that was lost with its context every free is well. */
static int is_lost(const struct weir_served *s) {
    return atomic_load_explicit(&s->state, memory_order_relaxed) == WEIR_SERVED_LOST;
}

/* What begins there is a region of one that serves, with blocks of others in it. */
static int is_held(CUdeviceptr block) {
    for (unsigned i = 0; i < weir__served_known(); i++)
        if (!is_lost(weir__served_at(i)) &&
            weir__drop_in_holds(weir__served_at(i)->allocator, block))
            return 1;
    return 0;
}

/* Memory that was lost may be gone, and the address be that of a block of the driver's. */
static int is_anew(const struct weir_served *s, CUdeviceptr block) {
    CUdeviceptr base;
    size_t bytes;

    return is_lost(s) && !weir__drop_in_keeps_addresses(s->allocator) && !is_held(block) &&
           REAL(cuMemGetAddressRange_v2)(&base, &bytes, block) == CUDA_SUCCESS && base == block;
}

static __attribute__((noinline, cold)) enum to_free no_block(CUdeviceptr block, CUresult *result) {
    struct weir_served *s = weir__block_is_none(block);

    if (!s || is_anew(s, block))
        return FREE_PASSES;
    *result = is_lost(s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return FREE_IS_ANSWERED;
}

static __attribute__((noinline, cold)) enum to_free lost_block(const struct weir_found *found,
                                                               CUresult *result) {
    weir__block_end(found);
    after_free(found, 1);
    *result = CUDA_SUCCESS;
    return FREE_IS_ANSWERED;
}

static inline enum to_free find_to_free(CUdeviceptr block, struct weir_found *found,
                                        CUresult *result) {
    if (weir__block_find(block, found) && found->base == block)
        return __builtin_expect(is_lost(found->by), 0) ? lost_block(found, result) : FREE_IT;
    return no_block(block, result);
}

/* Only the allocators keep records of blocks: there are no notes, no numbers and no heap profile. */
static inline int keeps_nothing(void) {
    return !weir__heap_on && !atomic_load_explicit(&weir__blocks_noted, memory_order_acquire) &&
           !atomic_load_explicit(&weir__blocks_numbered, memory_order_acquire);
}

/* The common free: the allocator that knew this thread's last block has this one, too, and nothing else is to be done.
 * 1: the block was freed; 0: nothing was done. */
static inline int free_at_once(CUdeviceptr block, CUstream stream) {
    struct weir_served *s = weir__served_at(weir__block_last);

    if (is_any_captured() || !keeps_nothing() ||
        atomic_load_explicit(&s->state, memory_order_relaxed) != WEIR_SERVED_LIVE ||
        is_apart(s, stream) ||
        !weir__drop_in_free_own(s->allocator, (void *)(uintptr_t)block, stream))
        return 0;
    weir__served_freed(s);
    return 1;
}

static inline int serve_free(CUdeviceptr block, CUstream stream, CUresult *result) {
    struct weir_found found;
    enum to_free what;

    if (!block || weir__served_known() == 0 || !enter())
        return 0;
    if (__builtin_expect(free_at_once(block, stream), 1)) {
        leave();
        *result = CUDA_SUCCESS;
        return 1;
    }
    what = find_to_free(block, &found, result);
    if (what == FREE_IT) /* under capture nothing but a graph's block is freed */
        *result =
            is_captured(stream) ? CUDA_ERROR_INVALID_VALUE : result_of(free_block(&found, stream));
    if (what == FREE_IT && __builtin_expect(*result != CUDA_SUCCESS, 0) && lacks_context(stream))
        *result = CUDA_ERROR_INVALID_CONTEXT;
    leave();
    return what != FREE_PASSES;
}

CUresult weir__serve_cuMemFreeAsync(CUdeviceptr block, CUstream stream) {
    CUresult result;

    return serve_free(block, stream, &result) ? result : REAL(cuMemFreeAsync)(block, stream);
}

CUresult weir__serve_cuMemFreeAsync_ptsz(CUdeviceptr block, CUstream stream) {
    CUresult result;

    return serve_free(block, own(stream), &result) ? result
                                                   : REAL_PTSZ(cuMemFreeAsync)(block, stream);
}

/* Of a pool's memory nobody is waited for: the driver takes all work that uses it for done.  Of plain memory
 * the device is. */
static CUresult free_done(const struct weir_found *found) {
    struct weir_served *s = found->by;
    CUresult result = s->is_plain ? weir__drop_in_wait(s->allocator) : CUDA_SUCCESS;

    if (result != CUDA_SUCCESS)
        return result;
    weir__block_end(found);
    result = result_of(weir__drop_in_free_done(s->allocator, (void *)(uintptr_t)found->base));
    after_free(found, result == CUDA_SUCCESS);
    return result;
}

CUresult weir__serve_cuMemFree_v2(CUdeviceptr block) {
    enum to_free what = FREE_PASSES;
    CUresult result = CUDA_SUCCESS;
    struct weir_found found;

    if (block && weir__served_known() > 0 && enter()) {
        what = find_to_free(block, &found, &result);
        if (what == FREE_IT)
            result = free_done(&found);
        leave();
    }
    return what != FREE_PASSES ? result : REAL(cuMemFree_v2)(block);
}

/* ---- plain memory -------------------------------------------------------------------------------- */

/* In relaxed mode, so that no capture of others is broken. */
static CUresult wait_for(CUstream stream) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = REAL(cuThreadExchangeStreamCaptureMode)(&mode);

    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuStreamSynchronize)(stream);
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return result;
}

/* All streams may use it at once: so it comes from an allocator that hands out nothing else, on a stream
 * that runs nothing, once whatever the driver may have had that wait for is over; what cannot be waited for
 * goes back. */
static int request_plain(CUdeviceptr *block, size_t bytes, CUresult *result) {
    int state;
    struct weir_served *s = weir__served_plain(device_of(NULL), &state);
    CUstream apart = s ? weir__served_apart(s) : NULL;
    struct weir_found found = {.by = s, .bytes = bytes};

    *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!apart || !request(s, &found.base, bytes, apart, result)) {
        left.why = WEIR_LEFT_NOT; /* no pool's */
        return !s && state == WEIR_POOL_REFUSED;
    }
    if (*result != CUDA_SUCCESS)
        return 1;
    *result = wait_for(apart);
    if (*result == CUDA_SUCCESS)
        *block = found.base;
    else
        (void)free_block(&found, apart);
    return 1;
}

/* Beside a capture the driver judges. */
static int serve_plain(CUdeviceptr *block, size_t bytes, CUresult *result) {
    static atomic_int is_wanted; /* 0: not looked up yet */
    int wanted = atomic_load_explicit(&is_wanted, memory_order_relaxed), done;

    if (wanted == 0) {
        wanted = weir__run_switch("WEIR_RUN_SERVE_MALLOC", 0) ? 1 : -1;
        atomic_store_explicit(&is_wanted, wanted, memory_order_relaxed);
    }
    if (wanted < 0 || !block || bytes == 0 || is_any_captured() || !enter())
        return 0;
    done = request_plain(block, bytes, result);
    leave();
    return done;
}

/* ---- what is seen and left ----------------------------------------------------------------------- */

static void count_left(enum weir_unserved which) {
    if (!weir__inside)
        weir__count_unserved(which);
}

CUresult weir__serve_cuMemAlloc_v2(CUdeviceptr *block, size_t bytes) {
    CUresult result;

    if (serve_plain(block, bytes, &result))
        return result;
    count_left(WEIR_UNSERVED_ALLOC);
    result = REAL(cuMemAlloc_v2)(block, bytes);
    return may_have_room(result) ? REAL(cuMemAlloc_v2)(block, bytes) : result;
}

CUresult weir__serve_cuMemAllocPitch_v2(CUdeviceptr *block, size_t *pitch, size_t width,
                                        size_t height, unsigned int element) {
    CUresult result = REAL(cuMemAllocPitch_v2)(block, pitch, width, height, element);

    count_left(WEIR_UNSERVED_PITCH);
    return may_have_room(result) ? REAL(cuMemAllocPitch_v2)(block, pitch, width, height, element)
                                 : result;
}

CUresult weir__serve_cuMemAllocManaged(CUdeviceptr *block, size_t bytes, unsigned int flags) {
    CUresult result = REAL(cuMemAllocManaged)(block, bytes, flags);

    count_left(WEIR_UNSERVED_MANAGED);
    return may_have_room(result) ? REAL(cuMemAllocManaged)(block, bytes, flags) : result;
}

CUresult weir__serve_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                 const CUmemAllocationProp *properties, unsigned long long flags) {
    CUresult result = REAL(cuMemCreate)(handle, bytes, properties, flags);

    count_left(WEIR_UNSERVED_CREATE);
    return may_have_room(result) ? REAL(cuMemCreate)(handle, bytes, properties, flags) : result;
}

/* ---- what a pointer is --------------------------------------------------------------------------- */

enum {
    POINTER_CONTEXT = 1,
    POINTER_BUFFER_ID = 7,
    POINTER_IS_LEGACY_IPC_CAPABLE = 10,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12
};

/* 1 if the address lies in a block of weir's; from outside. */
static int is_served(CUdeviceptr address, struct weir_found *found) {
    int is;

    if (!address || weir__served_known() == 0 || !enter())
        return 0;
    is = weir__block_find(address, found);
    leave();
    return is;
}

CUresult weir__serve_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes,
                                             CUdeviceptr address) {
    struct weir_found found;

    if (!is_served(address, &found))
        return REAL(cuMemGetAddressRange_v2)(base, bytes, address);
    if (base)
        *base = found.base;
    if (bytes)
        *bytes = found.bytes;
    return CUDA_SUCCESS;
}

/* What the driver has said of the memory that the block lies in becomes what it would say of the block. */
static void correct(const struct weir_found *found, CUpointer_attribute attribute, void *value) {
    uint64_t number;

    switch (attribute) {
    case POINTER_CONTEXT:
        *(CUcontext *)value = found->by->is_plain ? found->by->context : NULL;
        break;
    case POINTER_BUFFER_ID:
        number = weir__block_number(found);
        if (number > 0)
            *(unsigned long long *)value = number;
        break;
    case POINTER_IS_LEGACY_IPC_CAPABLE:
        *(unsigned int *)value = 0;
        break;
    case POINTER_RANGE_START:
        *(CUdeviceptr *)value = found->base;
        break;
    case POINTER_RANGE_SIZE:
        *(size_t *)value = found->bytes;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)value = atomic_load_explicit(&found->by->pool, memory_order_relaxed);
        break;
    default:
        break;
    }
}

CUresult weir__serve_cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
    CUresult result = REAL(cuPointerGetAttribute)(value, attribute, address);
    struct weir_found found;

    if (result == CUDA_SUCCESS && is_served(address, &found))
        correct(&found, attribute, value);
    return result;
}

CUresult weir__serve_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                            void **values, CUdeviceptr address) {
    CUresult result = REAL(cuPointerGetAttributes)(count, attributes, values, address);
    struct weir_found found;

    if (result == CUDA_SUCCESS && is_served(address, &found))
        for (unsigned int i = 0; i < count; i++)
            correct(&found, attributes[i], values[i]);
    return result;
}

/* Neither is for memory of a pool that was made without a type of handles. */
CUresult weir__serve_cuIpcGetMemHandle(void *handle, CUdeviceptr address) {
    struct weir_found found;

    return is_served(address, &found) ? CUDA_ERROR_INVALID_VALUE
                                      : REAL(cuIpcGetMemHandle)(handle, address);
}

CUresult weir__serve_cuMemPoolExportPointer(void *data, CUdeviceptr address) {
    struct weir_found found;

    return is_served(address, &found) ? CUDA_ERROR_INVALID_VALUE
                                      : REAL(cuMemPoolExportPointer)(data, address);
}

/* ---- pools --------------------------------------------------------------------------------------- */

/* Served is memory of a device. */
static enum weir_left why_other(CUmemAllocationType type, CUmemLocationType location) {
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return WEIR_LEFT_MANAGED;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return WEIR_LEFT_UNKNOWN;
    switch (location) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return WEIR_LEFT_NOT;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return WEIR_LEFT_HOST;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        return WEIR_LEFT_PART;
    default:
        return WEIR_LEFT_UNKNOWN;
    }
}

/* If a device has only one locality domain, that domain is the whole device.  The driver tells: it gives the pool the
 * location of the device. */
static CUmemLocation location_of(CUmemoryPool pool, const CUmemLocation *given) {
    CUmemLocation whole = {CU_MEM_LOCATION_TYPE_DEVICE, given->id & 255};
    CUmemLocationType type;

    return given->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN &&
                   REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &type) ==
                       CUDA_SUCCESS &&
                   type == CU_MEM_LOCATION_TYPE_DEVICE
               ? whole
               : *given;
}

/* A property that weir does not know may mean anything. */
static int is_known(const CUmemPoolProps *properties) {
    for (size_t i = 0; i < sizeof properties->reserved; i++)
        if (properties->reserved[i])
            return 0;
    return !(properties->usage & ~CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS);
}

/* weir serves pools of this process alone, without properties that it does not know. */
static enum weir_left why_left(const CUmemPoolProps *properties, CUmemLocationType location) {
    enum weir_left why = why_other(properties->allocType, location);

    if (why != WEIR_LEFT_NOT)
        return why;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return WEIR_LEFT_SHARED;
    return is_known(properties) ? WEIR_LEFT_NOT : WEIR_LEFT_UNKNOWN;
}

/* The driver has made it: a pool that had the handle has gone, though that was not seen yet. */
static void add_made(CUmemoryPool pool, int device, struct weir_pool_kind kind,
                     enum weir_left why) {
    struct weir_pool *p = weir__pool_of(pool);

    if (p)
        weir__pool_end(p, atomic_load_explicit(&p->life, memory_order_relaxed));
    (void)weir__pool_add(pool, device, kind, why);
    if (why != WEIR_LEFT_NOT)
        weir__run_tell("a memory pool is left to the driver: %s", weir__left_text(why));
}

CUresult weir__serve_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    struct weir_pool_kind kind;
    CUmemLocation location;

    if (result != CUDA_SUCCESS || !enter())
        return result;
    location = location_of(*pool, &properties->location);
    kind.most = properties->maxSize;
    kind.decompresses = (properties->usage & CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS) != 0;
    add_made(*pool, location.id, kind, why_left(properties, location.type));
    leave();
    return result;
}

/* Another process's, and on a device that it knows. */
CUresult weir__serve_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shared,
                                                        CUmemAllocationHandleType type,
                                                        unsigned long long flags) {
    CUresult result = REAL(cuMemPoolImportFromShareableHandle)(pool, shared, type, flags);

    if (result != CUDA_SUCCESS || !enter())
        return result;
    add_made(*pool, -1, (struct weir_pool_kind){0}, WEIR_LEFT_SHARED);
    leave();
    return result;
}

/* As soon as the driver has destroyed it, another thread may be given the handle. */
CUresult weir__serve_cuMemPoolDestroy(CUmemoryPool pool) {
    struct weir_pool *p = weir__inside ? NULL : weir__pool_of(pool);
    unsigned life = p ? atomic_load_explicit(&p->life, memory_order_relaxed) : 0;
    CUresult result = has_ended(pool) ? CUDA_ERROR_INVALID_VALUE : REAL(cuMemPoolDestroy)(pool);

    if (result != CUDA_SUCCESS || !p || !enter())
        return result;
    weir__pool_end(p, life);
    leave();
    return result;
}

/* The allocator of a pool that has one. */
static struct weir_served *serving(CUmemoryPool pool) {
    struct weir_pool *p = weir__pool_of(pool);

    return p ? atomic_load_explicit(&p->served, memory_order_acquire) : NULL;
}

CUresult weir__serve_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result =
        has_ended(pool) ? CUDA_ERROR_INVALID_VALUE : REAL(cuMemPoolTrimTo)(pool, keep);
    struct weir_served *s;

    if (result != CUDA_SUCCESS || !enter())
        return result;
    s = serving(pool);
    if (s)
        weir__served_trim(s, keep);
    leave();
    return result;
}

/* The driver checks and stores the value.  weir does not act on a release threshold: the environment says what weir
 * keeps.  Of the rules of reuse, weir acts only on opportunistic reuse.  It follows no events of the program, and a
 * setting of the user says whether it makes one stream wait for another. */
CUresult weir__serve_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           void *value) {
    CUresult result = has_ended(pool) ? CUDA_ERROR_INVALID_VALUE
                                      : REAL(cuMemPoolSetAttribute)(pool, attribute, value);
    struct weir_pool *p;
    struct weir_served *s;

    if (result != CUDA_SUCCESS || !enter())
        return result;
    p = weir__pool_of(pool);
    if (p && attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC)
        weir__pool_allow_reuse(p, *(const int *)value != 0);
    s = serving(pool);
    if (s && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        weir__served_renew_peak(s);
    if (s && attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        weir__served_renew_reserve(s);
    leave();
    return result;
}

/* What weir adds to what the driver's own pool has. */
static uint64_t figure(struct weir_served *s, CUmemPool_attribute attribute) {
    weir_statistics figures = {.size = sizeof figures};

    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        return weir__served_peak(s);
    if (weir_stats(s->allocator, &figures) != WEIR_OK)
        return 0;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return figures.reserve;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return weir__served_highest_reserve(s, &figures);
    default:
        return figures.requested;
    }
}

CUresult weir__serve_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           void *value) {
    CUresult result = has_ended(pool) ? CUDA_ERROR_INVALID_VALUE
                                      : REAL(cuMemPoolGetAttribute)(pool, attribute, value);
    struct weir_served *s;

    if (result != CUDA_SUCCESS || attribute < CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ||
        attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH || !enter())
        return result;
    s = serving(pool);
    if (s)
        *(uint64_t *)value += figure(s, attribute);
    leave();
    return result;
}

/* weir's memory cannot have this access, so the driver's pool must not have it, either.  The access of the pool's own
 * device does not change. */
static void put_access_back(const struct weir_pool *p, CUmemoryPool pool,
                            const CUmemAccessDesc *access, size_t count) {
    for (size_t i = 0; i < count; i++) {
        CUmemAccessDesc before = access[i];
        int id = before.location.id,
            is_device = before.location.type == CU_MEM_LOCATION_TYPE_DEVICE;

        if (is_device && (id == p->device || id < 0 || id >= WEIR_MOST_DEVICES))
            continue;
        before.flags = is_device ? atomic_load_explicit(&p->access[id], memory_order_relaxed)
                                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
        (void)REAL(cuMemPoolSetAccess)(pool, &before, 1);
    }
}

CUresult weir__serve_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access,
                                        size_t count) {
    CUresult result =
        has_ended(pool) ? CUDA_ERROR_INVALID_VALUE : REAL(cuMemPoolSetAccess)(pool, access, count);
    struct weir_pool *p;

    if (result != CUDA_SUCCESS || !enter())
        return result;
    p = weir__pool_of(pool);
    if (p)
        result = weir__pool_set_access(p, access, count);
    if (result != CUDA_SUCCESS)
        put_access_back(p, pool, access, count);
    leave();
    return result;
}

CUresult weir__serve_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool,
                                        CUmemLocation *location) {
    return has_ended(pool) ? CUDA_ERROR_INVALID_VALUE
                           : REAL(cuMemPoolGetAccess)(flags, pool, location);
}

CUresult weir__serve_cuMemPoolExportToShareableHandle(void *shared, CUmemoryPool pool,
                                                      CUmemAllocationHandleType type,
                                                      unsigned long long flags) {
    return has_ended(pool) ? CUDA_ERROR_INVALID_VALUE
                           : REAL(cuMemPoolExportToShareableHandle)(shared, pool, type, flags);
}

CUresult weir__serve_cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool,
                                            CUmemPoolPtrExportData *data) {
    return has_ended(pool) ? CUDA_ERROR_INVALID_VALUE
                           : REAL(cuMemPoolImportPointer)(address, pool, data);
}

/* ---- which pool is current ----------------------------------------------------------------------- */

/* The program has set a pool or asked for it.  One that the program did not make is the default pool of that place. */
static CUresult note_pool_at(CUresult result, const CUmemoryPool *pool, const CUmemLocation *given,
                             CUmemAllocationType type, int is_current) {
    CUmemLocation location;
    struct weir_pool *p;
    enum weir_left why;

    if (result != CUDA_SUCCESS || !*pool || !enter())
        return result;
    location = location_of(*pool, given);
    why = why_other(type, location.type);
    p = weir__pool_add(*pool, why == WEIR_LEFT_NOT ? location.id : -1, (struct weir_pool_kind){0},
                       why);
    /* Set for the only locality domain: later the driver is asked whether the device has the same current pool. */
    if (is_current && why == WEIR_LEFT_NOT)
        weir__pool_set_current(location.id, location.type == given->type ? p : NULL);
    leave();
    return result;
}

static CUresult note_pool(CUresult result, const CUmemoryPool *pool, int device, int is_current) {
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};

    return note_pool_at(result, pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, is_current);
}

CUresult weir__serve_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    return has_ended(pool) ? CUDA_ERROR_INVALID_VALUE
                           : note_pool(REAL(cuDeviceSetMemPool)(device, pool), &pool, device, 1);
}

CUresult weir__serve_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return note_pool(REAL(cuDeviceGetMemPool)(pool, device), pool, device, 0);
}

CUresult weir__serve_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    return note_pool(REAL(cuDeviceGetDefaultMemPool)(pool, device), pool, device, 0);
}

CUresult weir__serve_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                     CUmemoryPool pool) {
    CUresult result =
        has_ended(pool) ? CUDA_ERROR_INVALID_VALUE : REAL(cuMemSetMemPool)(location, type, pool);

    return note_pool_at(result, &pool, location, type, 1);
}

CUresult weir__serve_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                     CUmemAllocationType type) {
    return note_pool_at(REAL(cuMemGetMemPool)(pool, location, type), pool, location, type, 0);
}

CUresult weir__serve_cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                            CUmemAllocationType type) {
    return note_pool_at(REAL(cuMemGetDefaultMemPool)(pool, location, type), pool, location, type,
                        0);
}

/* ---- contexts and captures ------------------------------------------------------------------------- */

static CUresult note_context(CUresult result) {
    if (result == CUDA_SUCCESS && !weir__inside)
        atomic_store_explicit(&has_contexts, 1, memory_order_relaxed);
    return result;
}

/* A program that comes to a device which others have filled with idle memory has nothing yet by which to ask for
 * it, and its context does not fit. */
static int may_have_context(CUresult result, CUdevice device, struct weir_admission *admission) {
    int any = 0;

    if (result == CUDA_ERROR_OUT_OF_MEMORY && enter()) {
        any = weir__drop_in_ask_for_context(device, admission);
        leave();
    }
    return any;
}

CUresult weir__serve_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    struct weir_admission admission = {0};

    while (may_have_context(result, device, &admission))
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    return result;
}

CUresult weir__serve_cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CUresult result = REAL(cuCtxCreate_v2)(context, flags, device);
    struct weir_admission admission = {0};

    while (may_have_context(result, device, &admission))
        result = REAL(cuCtxCreate_v2)(context, flags, device);
    return note_context(result);
}

CUresult weir__serve_cuCtxCreate_v3(CUcontext *context, void *affinities, int count,
                                    unsigned int flags, CUdevice device) {
    CUresult result = REAL(cuCtxCreate_v3)(context, affinities, count, flags, device);
    struct weir_admission admission = {0};

    while (may_have_context(result, device, &admission))
        result = REAL(cuCtxCreate_v3)(context, affinities, count, flags, device);
    return note_context(result);
}

CUresult weir__serve_cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags,
                                    CUdevice device) {
    CUresult result = REAL(cuCtxCreate_v4)(context, parameters, flags, device);
    struct weir_admission admission = {0};

    while (may_have_context(result, device, &admission))
        result = REAL(cuCtxCreate_v4)(context, parameters, flags, device);
    return note_context(result);
}

CUresult weir__serve_cuGreenCtxCreate(void **context, void *resources, CUdevice device,
                                      unsigned int flags) {
    return note_context(REAL(cuGreenCtxCreate)(context, resources, device, flags));
}

typedef CUresult (*device_call)(CUdevice device);

/* All that weir has in the context goes with it. */
static CUresult reset(device_call real, CUdevice device) {
    CUresult result;
    int is_held;

    if (!enter())
        return real(device);
    if (weir__served_known() > 0)
        weir__served_lose(device);
    is_held = weir__streams_hold();
    result = real(device);
    weir__streams_lose(device);
    weir__streams_go_on(is_held);
    leave();
    return result;
}

/* The last release ends the context.  Where weir has an allocator, that one holds the context. */
static CUresult release(device_call real, CUdevice device) {
    unsigned int flags;
    int is_active = 1, is_held;
    CUresult result;

    if (!enter())
        return real(device);
    is_held = weir__streams_hold();
    result = real(device);
    (void)REAL(cuDevicePrimaryCtxGetState)(device, &flags, &is_active);
    if (!is_active)
        weir__streams_lose(device);
    weir__streams_go_on(is_held);
    leave();
    return result;
}

CUresult weir__serve_cuDevicePrimaryCtxRelease(CUdevice device) {
    return release(REAL(cuDevicePrimaryCtxRelease), device);
}

CUresult weir__serve_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return release(REAL(cuDevicePrimaryCtxRelease_v2), device);
}

CUresult weir__serve_cuDevicePrimaryCtxReset(CUdevice device) {
    return reset(REAL(cuDevicePrimaryCtxReset), device);
}

CUresult weir__serve_cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return reset(REAL(cuDevicePrimaryCtxReset_v2), device);
}

/* Counts the capture before it begins: from then on no thread asks about a stream. */
static void capture_begins(void) {
    if (weir__inside)
        return;
    atomic_fetch_add_explicit(&weir__captures, 1, memory_order_acq_rel);
    weir__streams_await();
}

static CUresult capture_began(CUstream stream, CUresult result) {
    if (weir__inside)
        return result;
    if (result == CUDA_SUCCESS)
        weir__streams_capture(stream, 1);
    else
        atomic_fetch_sub_explicit(&weir__captures, 1, memory_order_acq_rel);
    return result;
}

/* 1 if the stream is being captured, or its capture is broken and not ended. */
static int has_capture(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return !weir__inside && is_any_captured() &&
           REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* A call that fails may end it all the same, or not. */
static CUresult capture_ended(int had, CUstream stream, CUresult result) {
    if (had && !has_capture(stream)) {
        weir__streams_capture(stream, 0);
        atomic_fetch_sub_explicit(&weir__captures, 1, memory_order_acq_rel);
    }
    return result;
}

CUresult weir__serve_cuStreamBeginCapture(CUstream stream) {
    capture_begins();
    return capture_began(stream, REAL(cuStreamBeginCapture)(stream));
}

CUresult weir__serve_cuStreamBeginCapture_ptsz(CUstream stream) {
    capture_begins();
    return capture_began(stream, REAL_PTSZ(cuStreamBeginCapture)(stream));
}

CUresult weir__serve_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    capture_begins();
    return capture_began(stream, REAL(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult weir__serve_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    capture_begins();
    return capture_began(stream, REAL_PTSZ(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult weir__serve_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                 const CUgraphNode *nodes, const void *edges,
                                                 size_t count, CUstreamCaptureMode mode) {
    capture_begins();
    return capture_began(
        stream, REAL(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode));
}

CUresult weir__serve_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                      const CUgraphNode *nodes, const void *edges,
                                                      size_t count, CUstreamCaptureMode mode) {
    capture_begins();
    return capture_began(
        stream, REAL_PTSZ(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode));
}

/* A capture into a command list of a graphics interface.  weir does not look for its end, so it asks about each
 * stream from then on. */
CUresult weir__serve_cuStreamBeginCaptureToCig(CUstream stream, void *parameters) {
    capture_begins();
    return capture_began(stream, REAL(cuStreamBeginCaptureToCig)(stream, parameters));
}

CUresult weir__serve_cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *parameters) {
    capture_begins();
    return capture_began(stream, REAL_PTSZ(cuStreamBeginCaptureToCig)(stream, parameters));
}

/* `callback` is a function of the program's. */
CUresult weir__serve_cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode,
                                                   CUgraph graph, void *callback, void *data) {
    capture_begins();
    return capture_began(stream,
                         REAL(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data));
}

CUresult weir__serve_cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode,
                                                        CUgraph graph, void *callback, void *data) {
    capture_begins();
    return capture_began(
        stream, REAL_PTSZ(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data));
}

CUresult weir__serve_cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    int had = has_capture(stream);

    return capture_ended(had, stream, REAL(cuStreamEndCapture)(stream, graph));
}

CUresult weir__serve_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    int had = has_capture(own(stream));

    return capture_ended(had, own(stream), REAL_PTSZ(cuStreamEndCapture)(stream, graph));
}
