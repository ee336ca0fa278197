/* SPDX-License-Identifier: MIT */
/* preload.c: what the driver's calls do in a program that was started with weir in front of the driver.
 *
 * Requests of the driver's memory pools are served by allocators of weir's, one for each pool of the
 * program, made at the first request; the program's own pool stands beside it, real and unused.  doc/design.md
 * (Drop-in) tells what is served, and why the rest passes through.
 *
 * This runs inside other people's programs.  Whatever cannot be done goes on to the driver as it came; one
 * line says why, once.  No lock is held over a call of the program's, and none of these on the way of a
 * request or a free that is served: pools are found in lists that are only added to, allocators in a table
 * of which places are only taken.  Before the program's first request nothing is made.
 *
 * Locks: `lock` guards additions, and the making of allocators; under it the driver is called.
 *
 * Must not know: how a call gets here; how an allocator works.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "drop_in.h"
#include "interpose.h"
#include "log.h"

enum {
    MOST_DEVICES = 64,
    MOST_SERVED = 256, /* allocators */
    BUCKETS = 64,
    DEVICE_TEXT = 16
};

/* An allocator; its place in `served` is for good. */
struct served {
    weir_allocator *allocator;
    int device;
    _Atomic(CUmemoryPool) pool; /* for which it serves, or has */
    char device_text[DEVICE_TEXT];
};

enum pool_state {
    POOL_OPEN,   /* no request yet */
    POOL_SERVED, /* by its allocator */
    POOL_LEFT    /* to the driver */
};

/* A pool of the program's.  Its record is used again when the pool has gone. */
struct pool {
    _Atomic(CUmemoryPool) handle; /* NULL: none */
    int device;
    size_t most; /* bytes, as its maker wants it; 0: no such wish */
    _Atomic int state;
    _Atomic(struct served *) served;
    struct pool *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct pool *) pools[BUCKETS];
static _Atomic(struct pool *) current[MOST_DEVICES]; /* NULL: has to be asked for */
static _Atomic(struct served *) served[MOST_SERVED];
static atomic_uint served_count;
static atomic_int device_count; /* 0: not known yet */
static atomic_int captures;     /* under way, as far as was seen */

/* What was not served, for the statistics. */
static _Atomic uint64_t passed_requests; /* of pools */
static _Atomic uint64_t other_requests[4];
static const char *const other_names[4] = {"cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged",
                                           "cuMemCreate"};

static int is_set(const char *variable) {
    const char *value = getenv(variable);

    return value && *value && strcmp(value, "0") != 0;
}

/* The first of its kind is said. */
static void say_once(atomic_flag *said, const char *text) {
    if (!atomic_flag_test_and_set(said))
        weir__log(WEIR_LOG_WARNING, WEIR_LOG_WARNING, "%s", text);
}

static void count(_Atomic uint64_t *counter) {
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* ---- pools of the program's ---------------------------------------------------------------------- */

static _Atomic(struct pool *) *bucket_of(CUmemoryPool handle) {
    return &pools[((uintptr_t)handle >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 58];
}

/* Its record, or NULL: not one of these. */
static struct pool *pool_of(CUmemoryPool handle) {
    struct pool *p = atomic_load_explicit(bucket_of(handle), memory_order_acquire);

    while (p && atomic_load_explicit(&p->handle, memory_order_acquire) != handle)
        p = p->next;
    return p;
}

/* A pool that may be served.  NULL: there is no host memory for its record, and it is left alone. */
static struct pool *add_pool(CUmemoryPool handle, int device, size_t most) {
    _Atomic(struct pool *) *bucket = bucket_of(handle);
    struct pool *p;

    pthread_mutex_lock(&lock);
    p = pool_of(handle);
    if (!p) {
        p = atomic_load_explicit(bucket, memory_order_relaxed);
        while (p && atomic_load_explicit(&p->handle, memory_order_relaxed))
            p = p->next;
        if (!p && (p = calloc(1, sizeof *p))) {
            p->next = atomic_load_explicit(bucket, memory_order_relaxed);
            atomic_store_explicit(bucket, p, memory_order_release);
        }
        if (p) {
            p->device = device;
            p->most = most;
            atomic_store_explicit(&p->state, POOL_OPEN, memory_order_relaxed);
            atomic_store_explicit(&p->served, NULL, memory_order_relaxed);
            atomic_store_explicit(&p->handle, handle, memory_order_release);
        }
    }
    pthread_mutex_unlock(&lock);
    return p;
}

/* ---- allocators ---------------------------------------------------------------------------------- */

static int is_first_of_device(int device) {
    unsigned known = atomic_load_explicit(&served_count, memory_order_relaxed);

    for (unsigned i = 0; i < known; i++)
        if (atomic_load_explicit(&served[i], memory_order_relaxed)->device == device)
            return 0;
    return 1;
}

static int is_wanted(const weir_amount *amount) {
    return amount->kind != WEIR_AMOUNT_DEFAULT && amount->value > 0;
}

/* The settings of the environment, for one device; preallocation is the first pool's.  A pool that may hold no
 * more than `most` bytes (0: any number) may not here either, unless the environment sets a limit. */
static weir_status read_options(weir_options *options, struct served *s, size_t most) {
    char message[320];
    weir_status status;

    weir_options_init(options);
    status = weir_options_from_env(options, message, sizeof message);
    if (status != WEIR_OK) {
        weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR, "%s", message);
        return status;
    }
    snprintf(s->device_text, sizeof s->device_text, "cuda:%d", s->device);
    options->device = s->device_text;
    if (options->prealloc_at == WEIR_PREALLOC_AT_DEFAULT)
        options->prealloc_at = WEIR_PREALLOC_AT_FIRST;
    if (most > 0 && options->limit.kind == WEIR_AMOUNT_DEFAULT)
        options->limit = (weir_amount){.value = most, .kind = WEIR_AMOUNT_BYTES};
    if (is_wanted(&options->prealloc) && !is_first_of_device(s->device)) {
        options->prealloc = (weir_amount){.value = 0, .kind = WEIR_AMOUNT_BYTES};
        options->prealloc_min = (weir_amount){.value = 0, .kind = WEIR_AMOUNT_BYTES};
    }
    return WEIR_OK;
}

static void report(void);

/* The caller holds `lock`. */
static struct served *make_served(const struct pool *p) {
    unsigned known = atomic_load_explicit(&served_count, memory_order_relaxed);
    struct served *s = known < MOST_SERVED ? calloc(1, sizeof *s) : NULL;
    weir_options options;

    if (!s)
        return NULL;
    s->device = p->device;
    atomic_store_explicit(&s->pool, atomic_load_explicit(&p->handle, memory_order_relaxed),
                          memory_order_relaxed);
    if (read_options(&options, s, p->most) != WEIR_OK ||
        weir_allocator_create(&options, &s->allocator) != WEIR_OK) { /* which has said why */
        free(s);
        return NULL;
    }
    if (!weir__drop_in_knows_blocks(s->allocator)) {
        (void)weir_allocator_destroy(s->allocator);
        free(s);
        return NULL;
    }
    weir__drop_in_refuse_captured(s->allocator);
    atomic_store_explicit(&served[known], s, memory_order_release);
    atomic_store_explicit(&served_count, known + 1, memory_order_release);
    if (known == 0)
        (void)atexit(report); /* after the driver's own, so called before it goes */
    return s;
}

/* At the first request of a pool. */
static __attribute__((noinline, cold)) struct served *begin_serving(struct pool *p) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    struct served *s;

    if (weir__drop_in_forked())
        return NULL;
    pthread_mutex_lock(&lock);
    s = atomic_load_explicit(&p->served, memory_order_relaxed);
    if (!s && atomic_load_explicit(&p->state, memory_order_relaxed) == POOL_OPEN) {
        s = make_served(p);
        atomic_store_explicit(&p->served, s, memory_order_release);
        atomic_store_explicit(&p->state, s ? POOL_SERVED : POOL_LEFT, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    if (!s)
        say_once(&said, "requests of a memory pool are left to the driver");
    return s;
}

/* The allocator of a pool, or NULL: it is left to the driver. */
static inline struct served *served_of(struct pool *p) {
    struct served *s = atomic_load_explicit(&p->served, memory_order_acquire);

    if (__builtin_expect(s != NULL, 1))
        return s;
    return atomic_load_explicit(&p->state, memory_order_acquire) == POOL_LEFT ? NULL
                                                                              : begin_serving(p);
}

/* ---- devices and streams ------------------------------------------------------------------------- */

static int is_default(CUstream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* The program's driver is started: how many devices it sees.  0: it is not. */
static int count_devices(void) {
    int devices = atomic_load_explicit(&device_count, memory_order_relaxed);

    if (devices == 0 && REAL(cuDeviceGetCount)(&devices) == CUDA_SUCCESS)
        atomic_store_explicit(&device_count, devices, memory_order_relaxed);
    return devices;
}

/* The device of a stream as the caller means it; -1: the driver has something against it. */
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

static int device_of(CUstream stream) {
    CUcontext context = NULL;
    CUdevice device;

    if (is_default(stream))
        return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? device : -1;
    if (count_devices() == 1)
        return 0;
    if (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        return -1;
    return device_of_context(context);
}

/* The pool that cuMemAllocAsync takes from, of a device; NULL: the driver's concern. */
static __attribute__((noinline)) struct pool *ask_current(int device) {
    CUmemoryPool handle = NULL;
    struct pool *p;

    if (REAL(cuDeviceGetMemPool)(&handle, device) != CUDA_SUCCESS || !handle)
        return NULL;
    /* What is current and was not created is the device's own. */
    p = add_pool(handle, device, 0);
    atomic_store_explicit(&current[device], p, memory_order_release);
    return p;
}

static struct pool *current_of(int device) {
    struct pool *p;

    if (device < 0 || device >= MOST_DEVICES)
        return NULL;
    p = atomic_load_explicit(&current[device], memory_order_acquire);
    return p ? p : ask_current(device);
}

/* 1 if the stream is being captured, or may not be asked about. */
static int is_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return atomic_load_explicit(&captures, memory_order_acquire) > 0 &&
           (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
            status != CU_STREAM_CAPTURE_STATUS_NONE);
}

static inline CUstream own(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

/* ---- requests ------------------------------------------------------------------------------------ */

/* What a status is to a program of the driver's. */
static CUresult result_of(weir_status status) {
    int result = weir_last_driver_result();

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
        return result != CUDA_SUCCESS ? (CUresult)result : CUDA_ERROR_UNKNOWN;
    }
}

/* 1 and the answer, or 0: the request is the driver's.  The caller is inside. */
static int request(struct pool *p, CUdeviceptr *block, size_t bytes, CUstream stream,
                   CUresult *result) {
    struct served *s = p ? served_of(p) : NULL;
    void *address = NULL;
    weir_status status;

    if (!s || is_captured(stream))
        return 0;
    status = weir_alloc(s->allocator, bytes, stream, &address);
    switch (status) {
    case WEIR_E_CAPTURE:
    case WEIR_E_STREAM: /* another device's, or none */
    case WEIR_E_FORKED:
    case WEIR_E_DEVICE_LOST:
        return 0;
    case WEIR_OK:
        *block = (CUdeviceptr)(uintptr_t)address;
        *result = CUDA_SUCCESS;
        return 1;
    default:
        *result = result_of(status);
        return 1;
    }
}

/* Likewise, from outside; arguments that are no request are the driver's to judge. */
static inline int serve_request(CUmemoryPool pool, CUdeviceptr *block, size_t bytes,
                                CUstream stream, CUresult *result) {
    int done;

    if (weir__inside || !block || bytes == 0)
        return 0;
    weir__inside = 1;
    done =
        request(pool ? pool_of(pool) : current_of(device_of(stream)), block, bytes, stream, result);
    weir__inside = 0;
    if (!done)
        count(&passed_requests);
    return done;
}

CUresult weir__serve_cuMemAllocAsync(CUdeviceptr *block, size_t bytes, CUstream stream) {
    CUresult result;

    if (serve_request(NULL, block, bytes, stream, &result))
        return result;
    return REAL(cuMemAllocAsync)(block, bytes, stream);
}

CUresult weir__serve_cuMemAllocAsync_ptsz(CUdeviceptr *block, size_t bytes, CUstream stream) {
    CUresult result;

    if (serve_request(NULL, block, bytes, own(stream), &result))
        return result;
    return REAL_PTSZ(cuMemAllocAsync)(block, bytes, stream);
}

CUresult weir__serve_cuMemAllocFromPoolAsync(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
    CUresult result;

    if (pool && serve_request(pool, block, bytes, stream, &result))
        return result;
    return REAL(cuMemAllocFromPoolAsync)(block, bytes, pool, stream);
}

CUresult weir__serve_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *block, size_t bytes,
                                                  CUmemoryPool pool, CUstream stream) {
    CUresult result;

    if (pool && serve_request(pool, block, bytes, own(stream), &result))
        return result;
    return REAL_PTSZ(cuMemAllocFromPoolAsync)(block, bytes, pool, stream);
}

/* ---- whose an address is ------------------------------------------------------------------------- */

/* A block that weir handed out. */
struct found {
    struct served *by;
    CUdeviceptr base;
    size_t bytes;
};

/* 1 if the address lies in such a block. */
static int find_block(CUdeviceptr address, struct found *found) {
    static _Thread_local unsigned last __attribute__((tls_model("initial-exec")));
    unsigned known = atomic_load_explicit(&served_count, memory_order_acquire);

    for (unsigned i = 0, at = last; i < known; i++, at = at + 1 < known ? at + 1 : 0) {
        struct served *s = atomic_load_explicit(&served[at], memory_order_acquire);
        void *base;

        if (weir_block_range(s->allocator, (void *)(uintptr_t)address, &base, &found->bytes) !=
            WEIR_OK)
            continue;
        last = at;
        found->by = s;
        found->base = (CUdeviceptr)(uintptr_t)base;
        return 1;
    }
    return 0;
}

/* 1 if the address lies in memory of weir's that is no block: freed, or never handed out.  The driver, which
 * knows it as a larger block of its own, must not be asked. */
static int is_inside(CUdeviceptr address) {
    unsigned known = atomic_load_explicit(&served_count, memory_order_acquire);

    if (weir__drop_in_forked())
        return 0;
    for (unsigned i = 0; i < known; i++) {
        struct served *s = atomic_load_explicit(&served[i], memory_order_acquire);

        if (weir__drop_in_holds(s->allocator, address))
            return 1;
    }
    return 0;
}

static int serves_any(void) {
    return atomic_load_explicit(&served_count, memory_order_acquire) > 0;
}

/* ---- frees --------------------------------------------------------------------------------------- */

/* As `request`. */
static int take_back(CUdeviceptr block, CUstream stream, CUresult *result) {
    struct found found;

    if (!find_block(block, &found) || found.base != block) {
        *result = CUDA_ERROR_INVALID_VALUE;
        return is_inside(block);
    }
    /* A captured free is of memory of the graph. */
    *result = is_captured(stream)
                  ? CUDA_ERROR_INVALID_VALUE
                  : result_of(weir_free(found.by->allocator, (void *)(uintptr_t)block, stream));
    return 1;
}

static inline int serve_free(CUdeviceptr block, CUstream stream, CUresult *result) {
    int done;

    if (weir__inside || !block || !serves_any())
        return 0;
    weir__inside = 1;
    done = take_back(block, stream, result);
    weir__inside = 0;
    return done;
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

/* As memory of a pool: nobody is waited for, since the driver takes all work that uses it for done. */
static int take_back_done(CUdeviceptr block, CUresult *result) {
    struct found found;

    if (!find_block(block, &found) || found.base != block) {
        *result = CUDA_ERROR_INVALID_VALUE;
        return is_inside(block);
    }
    *result = result_of(weir__drop_in_free_done(found.by->allocator, (void *)(uintptr_t)block));
    return 1;
}

CUresult weir__serve_cuMemFree_v2(CUdeviceptr block) {
    CUresult result = CUDA_SUCCESS;
    int done = 0;

    if (!weir__inside && block && serves_any()) {
        weir__inside = 1;
        done = take_back_done(block, &result);
        weir__inside = 0;
    }
    return done ? result : REAL(cuMemFree_v2)(block);
}

/* ---- what a pointer is --------------------------------------------------------------------------- */

enum {
    POINTER_CONTEXT = 1,
    POINTER_BUFFER_ID = 7,
    POINTER_IS_LEGACY_IPC_CAPABLE = 10,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12
};

/* 1 if the address lies in a block of weir's, asked from outside. */
static int is_served(CUdeviceptr address, struct found *found) {
    int is;

    if (weir__inside || !address || !serves_any())
        return 0;
    weir__inside = 1;
    is = find_block(address, found);
    weir__inside = 0;
    return is;
}

CUresult weir__serve_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes,
                                             CUdeviceptr address) {
    struct found found;

    if (!is_served(address, &found))
        return REAL(cuMemGetAddressRange_v2)(base, bytes, address);
    if (base)
        *base = found.base;
    if (bytes)
        *bytes = found.bytes;
    return CUDA_SUCCESS;
}

/* What the driver has said of the memory that the block lies in, as it would be of the block itself. */
static void correct(const struct found *found, CUpointer_attribute attribute, void *value) {
    switch (attribute) {
    case POINTER_CONTEXT:
        *(CUcontext *)value = NULL;
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
    struct found found;

    if (result == CUDA_SUCCESS && is_served(address, &found))
        correct(&found, attribute, value);
    return result;
}

CUresult weir__serve_cuPointerGetAttributes(unsigned int number, CUpointer_attribute *attributes,
                                            void **values, CUdeviceptr address) {
    CUresult result = REAL(cuPointerGetAttributes)(number, attributes, values, address);
    struct found found;

    if (result == CUDA_SUCCESS && is_served(address, &found))
        for (unsigned int i = 0; i < number; i++)
            correct(&found, attributes[i], values[i]);
    return result;
}

CUresult weir__serve_cuIpcGetMemHandle(void *handle, CUdeviceptr address) {
    struct found found;

    return is_served(address, &found) ? CUDA_ERROR_INVALID_VALUE
                                      : REAL(cuIpcGetMemHandle)(handle, address);
}

CUresult weir__serve_cuMemPoolExportPointer(void *data, CUdeviceptr address) {
    struct found found;

    return is_served(address, &found) ? CUDA_ERROR_INVALID_VALUE
                                      : REAL(cuMemPoolExportPointer)(data, address);
}

/* ---- pools --------------------------------------------------------------------------------------- */

/* Plain memory of a device, for this process alone. */
static int may_serve(const CUmemPoolProps *properties) {
    return properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
           properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
           properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties->usage == 0;
}

/* The record is free for another pool; the allocator, if it has one, stays for the blocks that live. */
static void forget(struct pool *p) {
    struct pool *mine = p;

    for (int i = 0; i < MOST_DEVICES; i++, mine = p)
        atomic_compare_exchange_strong(&current[i], &mine, NULL);
    atomic_store_explicit(&p->handle, NULL, memory_order_release);
}

CUresult weir__serve_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    struct pool *p;

    if (result != CUDA_SUCCESS || weir__inside)
        return result;
    p = pool_of(*pool);
    if (p) /* of one that has gone unseen */
        forget(p);
    p = add_pool(*pool, properties->location.id, properties->maxSize);
    if (p && !may_serve(properties))
        atomic_store_explicit(&p->state, POOL_LEFT, memory_order_release);
    return result;
}

CUresult weir__serve_cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    struct pool *p = weir__inside || result != CUDA_SUCCESS ? NULL : pool_of(pool);
    struct served *s = p ? atomic_load_explicit(&p->served, memory_order_acquire) : NULL;

    if (p)
        forget(p);
    if (s) {
        weir__inside = 1;
        (void)weir_trim(s->allocator, 0, NULL);
        weir__inside = 0;
    }
    return result;
}

/* The allocator of a pool that has one, asked from outside. */
static struct served *serving(CUmemoryPool pool) {
    struct pool *p = weir__inside ? NULL : pool_of(pool);

    return p ? atomic_load_explicit(&p->served, memory_order_acquire) : NULL;
}

CUresult weir__serve_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
    struct served *s = serving(pool);

    if (result == CUDA_SUCCESS && s) {
        weir__inside = 1;
        (void)weir_trim(s->allocator, keep, NULL);
        weir__inside = 0;
    }
    return result;
}

CUresult weir__serve_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           void *value) {
    return REAL(cuMemPoolSetAttribute)(pool, attribute, value);
}

/* What weir adds to what the driver's own pool has. */
static uint64_t figure(const struct served *s, CUmemPool_attribute attribute) {
    weir_statistics figures = {.size = sizeof figures};
    weir_status status;

    weir__inside = 1;
    status = weir_stats(s->allocator, &figures);
    weir__inside = 0;
    if (status != WEIR_OK)
        return 0;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return figures.reserve;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return figures.reserve_peak;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return figures.requested;
    default:
        return figures.requested_peak;
    }
}

CUresult weir__serve_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           void *value) {
    CUresult result = REAL(cuMemPoolGetAttribute)(pool, attribute, value);
    struct served *s = result == CUDA_SUCCESS ? serving(pool) : NULL;

    if (s && attribute >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT &&
        attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        *(uint64_t *)value += figure(s, attribute);
    return result;
}

CUresult weir__serve_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access,
                                        size_t number) {
    return REAL(cuMemPoolSetAccess)(pool, access, number);
}

/* The pool of a device that the program has set, or been told. */
static void note_pool(CUmemoryPool pool, int device, int is_current) {
    struct pool *p = add_pool(pool, device, 0);

    if (is_current && device >= 0 && device < MOST_DEVICES)
        atomic_store_explicit(&current[device], p, memory_order_release);
}

static int is_of_device(const CUmemLocation *location, CUmemAllocationType type) {
    return location && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
           type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

CUresult weir__serve_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    CUresult result = REAL(cuDeviceSetMemPool)(device, pool);

    if (result == CUDA_SUCCESS && !weir__inside)
        note_pool(pool, device, 1);
    return result;
}

CUresult weir__serve_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                     CUmemoryPool pool) {
    CUresult result = REAL(cuMemSetMemPool)(location, type, pool);

    if (result == CUDA_SUCCESS && !weir__inside && is_of_device(location, type))
        note_pool(pool, location->id, 1);
    return result;
}

CUresult weir__serve_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    CUresult result = REAL(cuDeviceGetMemPool)(pool, device);

    if (result == CUDA_SUCCESS && !weir__inside)
        note_pool(*pool, device, 0);
    return result;
}

CUresult weir__serve_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                     CUmemAllocationType type) {
    CUresult result = REAL(cuMemGetMemPool)(pool, location, type);

    if (result == CUDA_SUCCESS && !weir__inside && is_of_device(location, type))
        note_pool(*pool, location->id, 0);
    return result;
}

CUresult weir__serve_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    CUresult result = REAL(cuDeviceGetDefaultMemPool)(pool, device);

    if (result == CUDA_SUCCESS && !weir__inside)
        note_pool(*pool, device, 0);
    return result;
}

CUresult weir__serve_cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                            CUmemAllocationType type) {
    CUresult result = REAL(cuMemGetDefaultMemPool)(pool, location, type);

    if (result == CUDA_SUCCESS && !weir__inside && is_of_device(location, type))
        note_pool(*pool, location->id, 0);
    return result;
}

/* ---- streams ------------------------------------------------------------------------------------- */

CUresult weir__serve_cuStreamDestroy_v2(CUstream stream) {
    unsigned known = atomic_load_explicit(&served_count, memory_order_acquire);

    if (!weir__inside && !is_default(stream)) {
        weir__inside = 1;
        for (unsigned i = 0; i < known; i++)
            weir__drop_in_stream_ends(
                atomic_load_explicit(&served[i], memory_order_acquire)->allocator, stream);
        weir__inside = 0;
    }
    return REAL(cuStreamDestroy_v2)(stream);
}

static CUresult capture_began(CUresult result) {
    if (result == CUDA_SUCCESS && !weir__inside)
        atomic_fetch_add_explicit(&captures, 1, memory_order_acq_rel);
    return result;
}

/* Whether the stream has a capture that can end; however that ends. */
static int has_capture(CUstream stream) {
    return !weir__inside && is_captured(stream);
}

static CUresult capture_ended(int had, CUresult result) {
    if (had)
        atomic_fetch_sub_explicit(&captures, 1, memory_order_acq_rel);
    return result;
}

CUresult weir__serve_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return capture_began(REAL(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult weir__serve_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return capture_began(REAL_PTSZ(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult weir__serve_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                 const CUgraphNode *nodes, const void *edges,
                                                 size_t number, CUstreamCaptureMode mode) {
    return capture_began(
        REAL(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, number, mode));
}

CUresult weir__serve_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                      const CUgraphNode *nodes, const void *edges,
                                                      size_t number, CUstreamCaptureMode mode) {
    return capture_began(
        REAL_PTSZ(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, number, mode));
}

CUresult weir__serve_cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    int had = has_capture(stream);

    return capture_ended(had, REAL(cuStreamEndCapture)(stream, graph));
}

CUresult weir__serve_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    int had = has_capture(own(stream));

    return capture_ended(had, REAL_PTSZ(cuStreamEndCapture)(stream, graph));
}

/* ---- what is seen and not served ------------------------------------------------------------------ */

enum { OTHER_ALLOC, OTHER_PITCH, OTHER_MANAGED, OTHER_CREATE, OTHERS };

static void count_other(int which) {
    if (!weir__inside)
        count(&other_requests[which]);
}

CUresult weir__serve_cuMemAlloc_v2(CUdeviceptr *block, size_t bytes) {
    count_other(OTHER_ALLOC);
    return REAL(cuMemAlloc_v2)(block, bytes);
}

CUresult weir__serve_cuMemAllocPitch_v2(CUdeviceptr *block, size_t *pitch, size_t width,
                                        size_t height, unsigned int element) {
    count_other(OTHER_PITCH);
    return REAL(cuMemAllocPitch_v2)(block, pitch, width, height, element);
}

CUresult weir__serve_cuMemAllocManaged(CUdeviceptr *block, size_t bytes, unsigned int flags) {
    count_other(OTHER_MANAGED);
    return REAL(cuMemAllocManaged)(block, bytes, flags);
}

CUresult weir__serve_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                 const CUmemAllocationProp *properties, unsigned long long flags) {
    count_other(OTHER_CREATE);
    return REAL(cuMemCreate)(handle, bytes, properties, flags);
}

/* ---- at exit ------------------------------------------------------------------------------------- */

/* While the driver is still there. */
static void report(void) {
    unsigned known = atomic_load_explicit(&served_count, memory_order_acquire);

    if (weir__drop_in_forked() || !is_set("WEIR_RUN_STATS"))
        return;
    weir__inside = 1;
    for (unsigned i = 0; i < known; i++) {
        struct served *s = atomic_load_explicit(&served[i], memory_order_acquire);
        weir_statistics f = {.size = sizeof f};

        if (weir_stats(s->allocator, &f) != WEIR_OK)
            continue;
        weir__log(WEIR_LOG_INFO, WEIR_LOG_INFO,
                  "pool %u on %s: %llu requests served, %llu from caches, %llu frees; peak in use "
                  "%llu bytes, peak reserve %llu; %llu growth steps, %.3f ms",
                  i, s->device_text, (unsigned long long)f.allocs, (unsigned long long)f.front_hits,
                  (unsigned long long)f.frees, (unsigned long long)f.requested_peak,
                  (unsigned long long)f.reserve_peak, (unsigned long long)f.growths,
                  (double)f.stall_ns / 1e6);
    }
    weir__log(WEIR_LOG_INFO, WEIR_LOG_INFO, "requests of pools left to the driver: %llu",
              (unsigned long long)atomic_load_explicit(&passed_requests, memory_order_relaxed));
    weir__inside = 0;
}

/* A program that weir did nothing for is told why. */
static __attribute__((destructor)) void end(void) {
    char text[256];
    int at = 0;

    if (serves_any() || weir__drop_in_forked())
        return;
    for (int i = 0; i < OTHERS && at < (int)sizeof text; i++) {
        uint64_t times = atomic_load_explicit(&other_requests[i], memory_order_relaxed);

        if (times > 0)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s %llu %s", at ? "," : "",
                           (unsigned long long)times, other_names[i]);
    }
    if (at > 0)
        weir__log(WEIR_LOG_WARNING, WEIR_LOG_WARNING,
                  "nothing was served: the program took device memory by calls that are the "
                  "driver's own:%s",
                  text);
}
