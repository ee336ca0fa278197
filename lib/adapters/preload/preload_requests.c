/* SPDX-License-Identifier: MIT */
/* preload_requests.c: replaces the driver's functions that allocate memory.
 *
 * weir allocates the memory of memory pools, and the memory of cuMemAlloc if an option of `weir run` says so.  The
 * driver serves all other requests, and weir counts them.  If the driver is out of memory for such a request, weir's
 * allocators free their idle memory, and weir calls the driver again. */
#include "adapters/preload/preload.h"

#include "base/log.h"

/* ---- devices ---- */

/* Returns the number of devices that this process can use.  This number never changes. */
static int count_visible_devices(void) {
    static atomic_int known;
    int devices = atomic_load_explicit(&known, memory_order_relaxed);

    if (devices == 0 && REAL(cuDeviceGetCount)(&devices) == CUDA_SUCCESS)
        atomic_store_explicit(&known, devices, memory_order_relaxed);
    return devices;
}

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

static int find_stream_device(CUstream stream) {
    CUcontext context = NULL;
    CUdevice device = -1;

    /* With only one device, no driver call is needed. */
    if (count_visible_devices() == 1 && (!is_default_stream(stream) || weir__served_known() > 0))
        return 0;
    if (is_default_stream(stream))
        return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? device : -1;
    /* drivers before CUDA 12.8 have no cuStreamGetDevice() */
    if (REAL(cuStreamGetDevice)(stream, &device) == CUDA_SUCCESS)
        return device;
    return REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS ? device_of_context(context) : -1;
}

/* ---- requests ---- */

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

/* Records a new block.  Without host memory, frees the block and returns WEIR_E_HOST_MEMORY. */
static weir_status record_served_block(struct weir_served *s, void *block, size_t bytes,
                                       CUstream stream) {
    if (!s->needs_sums || weir__block_begin(s, (CUdeviceptr)(uintptr_t)block, bytes))
        return WEIR_OK;
    (void)weir_free(s->allocator, block, stream);
    return WEIR_E_HOST_MEMORY;
}

__attribute__((noinline, cold)) int weir__make_room(const struct weir_served *but) {
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

/* The reason why the driver serves this thread's present request, and the request's pool, or NULL. */
static _Thread_local struct {
    struct weir_pool *pool;
    enum weir_fallback why;
} fallback __attribute__((tls_model("initial-exec")));

static int leave_to_driver(enum weir_fallback why, struct weir_pool *pool) {
    fallback.why = why;
    fallback.pool = pool;
    return 0;
}

/* Counts the request if the driver has served it because weir could not.  Returns the driver's result. */
static CUresult end_driver_request(CUresult result) {
    if (fallback.why != WEIR_FALLBACK_NOT && result == CUDA_SUCCESS)
        weir__count_fallback(fallback.why, fallback.pool);
    fallback.why = WEIR_FALLBACK_NOT;
    return result;
}

/* Allocates a block from `s`.  Returns 0 if the driver must serve the request, else 1. */
static int serve_from_pool(struct weir_served *s, CUdeviceptr *block, size_t bytes, CUstream stream,
                           CUresult *result) {
    void *address = NULL;
    weir_status status = weir_alloc(s->allocator, bytes, stream, &address);

    if (__builtin_expect(status == WEIR_E_NO_MEMORY, 0) && weir__make_room(s))
        status = weir_alloc(s->allocator, bytes, stream, &address);
    if (status == WEIR_OK)
        status = record_served_block(s, address, bytes, stream);
    if (__builtin_expect(status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT, 0)) {
        weir__report_oom(s);
        weir__trace_record_failure(s, bytes);
        weir__report_failure();
    }
    switch (status) {
    case WEIR_E_STREAM: /* the stream is invalid or belongs to another device */
        return leave_to_driver(WEIR_FALLBACK_STREAM, NULL);
    case WEIR_E_CAPTURE:
    case WEIR_E_FORKED:
    case WEIR_E_DEVICE_LOST:
        return 0;
    case WEIR_OK:
        *block = (CUdeviceptr)(uintptr_t)address;
        *result = CUDA_SUCCESS;
        return 1;
    default:
        *block = 0; /* The driver (580) does so, too, and programs check for 0. */
        *result = weir__result_of(status);
        return 1;
    }
}

/* ---- requests of pools ---- */

/* Returns 1 if the program has destroyed the pool, else 0.  If 1, the caller must return the error in *result. */
static int reject_ended_pool(CUmemoryPool pool, CUresult *result) {
    *result = CUDA_ERROR_INVALID_VALUE;
    return is_ended(pool);
}

/* Allocates from the pool, or from the device's current pool if NULL.  Returns 0 if the driver must serve, else 1. */
static int request_of_pool(CUmemoryPool handle, CUdeviceptr *block, size_t bytes, CUstream stream,
                           CUresult *result) {
    struct weir_pool *p =
        handle ? weir__pool_of(handle) : weir__pool_current(find_stream_device(stream));
    struct weir_served *s;

    if (!p)
        return reject_ended_pool(handle, result);
    if (is_stream_captured(stream))
        return 0;
    s = weir__served_of(p);
    if (s)
        return is_of_other_context(s, stream) ? leave_to_driver(WEIR_FALLBACK_STREAM, NULL)
                                              : serve_from_pool(s, block, bytes, stream, result);
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (atomic_load_explicit(&p->state, memory_order_acquire) == WEIR_POOL_REFUSED)
        return 1;
    return leave_to_driver(
        (enum weir_fallback)atomic_load_explicit(&p->fallback, memory_order_relaxed), p);
}

/* Allocates from a pool.  Returns 0 if the driver must serve the request, else 1. */
static inline int serve_request(CUmemoryPool handle, CUdeviceptr *block, size_t bytes,
                                CUstream stream, CUresult *result) {
    int is_request = block && bytes > 0, done;

    if (!begin_serving())
        return 0;
    done = is_request ? request_of_pool(handle, block, bytes, stream, result)
                      : reject_ended_pool(handle, result);
    end_serving();
    if (__builtin_expect(!done && is_request, 0) && !weir__stream_lacks_context(stream))
        weir__count_unserved(WEIR_UNSERVED_POOL);
    return done;
}

/* Called before the driver serves a request.  Returns 1, or 0 if a limit forbids the request. */
static int begin_driver_request(struct weir_plain *plain, CUmemoryPool handle, CUstream stream,
                                size_t bytes) {
    int is_graph = !weir__is_serving && is_any_captured() && is_stream_captured(stream);
    CUdevice device = -1;

    if (bytes > 0 && begin_serving()) {
        const struct weir_pool *pool = handle ? weir__pool_of(handle) : NULL;

        if (!weir__stream_lacks_context(stream))
            device = pool ? pool->device : find_stream_device(stream);
        end_serving();
    }
    return weir__plain_begin(plain, is_graph ? WEIR_GROUP_GRAPH : WEIR_GROUP_POOL, device, bytes);
}

/* The driver's functions that allocate from the device's current pool (CURRENT) or from a given pool (NAMED). */
enum pool_call { CURRENT, CURRENT_PTSZ, NAMED, NAMED_PTSZ };

static CUresult call_driver(enum pool_call call, CUdeviceptr *block, size_t bytes,
                            CUmemoryPool pool, CUstream stream) {
    switch (call) {
    case CURRENT:
        return REAL(cuMemAllocAsync)(block, bytes, stream);
    case CURRENT_PTSZ:
        return REAL_PTSZ(cuMemAllocAsync)(block, bytes, stream);
    case NAMED:
        return REAL(cuMemAllocFromPoolAsync)(block, bytes, pool, stream);
    default:
        return REAL_PTSZ(cuMemAllocFromPoolAsync)(block, bytes, pool, stream);
    }
}

static inline CUresult serve_pool_call(enum pool_call call, CUdeviceptr *block, size_t bytes,
                                       CUmemoryPool pool, CUstream stream) {
    CUstream actual_stream =
        call == CURRENT_PTSZ || call == NAMED_PTSZ ? to_per_thread_stream(stream) : stream;
    struct weir_plain plain;
    CUresult result;

    if ((pool || call < NAMED) && serve_request(pool, block, bytes, actual_stream, &result))
        return result;
    if (!begin_driver_request(&plain, pool, actual_stream, bytes)) {
        if (block)
            *block = 0;
        return end_driver_request(CUDA_ERROR_OUT_OF_MEMORY);
    }
    do
        result = call_driver(call, block, bytes, pool, stream);
    while (weir__plain_make_room(&plain, result));
    weir__plain_end(&plain, result, result == CUDA_SUCCESS ? *block : 0, bytes);
    return end_driver_request(result);
}

CUresult weir__serve_cuMemAllocAsync(CUdeviceptr *block, size_t bytes, CUstream stream) {
    return serve_pool_call(CURRENT, block, bytes, NULL, stream);
}

CUresult weir__serve_cuMemAllocAsync_ptsz(CUdeviceptr *block, size_t bytes, CUstream stream) {
    return serve_pool_call(CURRENT_PTSZ, block, bytes, NULL, stream);
}

CUresult weir__serve_cuMemAllocFromPoolAsync(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
    return serve_pool_call(NAMED, block, bytes, pool, stream);
}

CUresult weir__serve_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *block, size_t bytes,
                                                  CUmemoryPool pool, CUstream stream) {
    return serve_pool_call(NAMED_PTSZ, block, bytes, pool, stream);
}

/* ---- requests by cuMemAlloc ---- */

/* Waits for a stream.  In the capture mode "relaxed", this wait does not break the captures of other threads. */
static CUresult wait_relaxed(CUstream stream) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = REAL(cuThreadExchangeStreamCaptureMode)(&mode);

    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuStreamSynchronize)(stream);
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return result;
}

/* Allocates a block for cuMemAlloc, on the private stream of an allocator for cuMemAlloc only.  This stream may have to
 * wait for earlier work on the memory, but all streams may use the block at once.  So the function waits for the
 * stream.  Returns 1 if *result is the result for the program, 0 if the driver must serve the request. */
static int request_plain(CUdeviceptr *block, size_t bytes, CUresult *result) {
    int state;
    struct weir_served *s = weir__served_plain(find_stream_device(NULL), &state);
    CUstream private_stream = s ? weir__served_private_stream(s) : NULL;
    struct weir_found found = {.by = s, .bytes = bytes};

    *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!private_stream || !serve_from_pool(s, &found.base, bytes, private_stream, result)) {
        /* The final report must not list a request by cuMemAlloc as a fallback. */
        fallback.why = WEIR_FALLBACK_NOT;
        return !s && state == WEIR_POOL_REFUSED;
    }
    if (*result != CUDA_SUCCESS)
        return 1;
    *result = wait_relaxed(private_stream);
    if (*result == CUDA_SUCCESS)
        *block = found.base;
    else
        (void)weir__free_block(&found, private_stream);
    return 1;
}

/* Allocates a block for cuMemAlloc (weir run --serve-malloc).  Returns 0 if the driver must serve the call, else 1. */
static int serve_plain(CUdeviceptr *block, size_t bytes, CUresult *result) {
    static atomic_int is_wanted; /* 1 for yes, -1 for no, 0 before the variable is read */
    int wanted = atomic_load_explicit(&is_wanted, memory_order_relaxed), done;

    if (wanted == 0) {
        wanted = weir__run_switch("WEIR_RUN_SERVE_MALLOC", 0) ? 1 : -1;
        atomic_store_explicit(&is_wanted, wanted, memory_order_relaxed);
    }
    if (wanted < 0 || !block || bytes == 0 || is_any_captured() || !begin_serving())
        return 0;
    done = request_plain(block, bytes, result);
    end_serving();
    return done;
}

/* ---- requests to the driver ---- */

static void count_driver_request(enum weir_unserved which) {
    if (!weir__is_serving)
        weir__count_unserved(which);
}

/* Repeats `call` while weir can free memory.  `*key` is the new address or handle, and `got` its size in bytes. */
#define REQUEST_OF_DRIVER(which, kind, device, asked, call, key, got)                              \
    __extension__({                                                                                \
        struct weir_plain its_plain;                                                               \
        CUresult its_result = CUDA_ERROR_OUT_OF_MEMORY;                                            \
        count_driver_request(which);                                                               \
        if (weir__plain_begin(&its_plain, kind, device, asked)) {                                  \
            do                                                                                     \
                its_result = call;                                                                 \
            while (weir__plain_make_room(&its_plain, its_result));                                 \
            weir__plain_end(&its_plain, its_result, its_result == CUDA_SUCCESS ? *(key) : 0,       \
                            its_result == CUDA_SUCCESS ? (got) : 0);                               \
        }                                                                                          \
        its_result;                                                                                \
    })

CUresult weir__serve_cuMemAlloc_v2(CUdeviceptr *block, size_t bytes) {
    CUresult result;

    if (serve_plain(block, bytes, &result))
        return result;
    return REQUEST_OF_DRIVER(WEIR_UNSERVED_ALLOC, WEIR_GROUP_ALLOC, -1, bytes,
                             REAL(cuMemAlloc_v2)(block, bytes), block, bytes);
}

/* The driver (580) rounds a row's bytes up to a multiple of PITCH.  weir computes the size before the driver's call. */
enum { PITCH = 512 };

CUresult weir__serve_cuMemAllocPitch_v2(CUdeviceptr *block, size_t *pitch, size_t width,
                                        size_t height, unsigned int element) {
    size_t line = (width + PITCH - 1) / PITCH * PITCH, bytes;

    bytes = line >= width && (height == 0 || line <= SIZE_MAX / height) ? line * height : 0;
    return REQUEST_OF_DRIVER(WEIR_UNSERVED_PITCH, WEIR_GROUP_ALLOC, -1, bytes,
                             REAL(cuMemAllocPitch_v2)(block, pitch, width, height, element), block,
                             *pitch * height);
}

CUresult weir__serve_cuMemAllocManaged(CUdeviceptr *block, size_t bytes, unsigned int flags) {
    return REQUEST_OF_DRIVER(WEIR_UNSERVED_MANAGED, WEIR_GROUP_MANAGED, -1, bytes,
                             REAL(cuMemAllocManaged)(block, bytes, flags), block, bytes);
}

CUresult weir__serve_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                 const CUmemAllocationProp *properties, unsigned long long flags) {
    int is_device = properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    size_t counted = is_device ? bytes : 0; /* the statistics contain only device memory */

    return REQUEST_OF_DRIVER(WEIR_UNSERVED_CREATE, WEIR_GROUP_CREATE,
                             counted ? properties->location.id : -1, counted,
                             REAL(cuMemCreate)(handle, bytes, properties, flags), handle, counted);
}

/* Adds a node to a graph by `call`.  If the node allocates memory, adds the bytes to the memory of graphs. */
#define ADD_NODE(alloc, call)                                                                      \
    __extension__({                                                                                \
        struct weir_plain its_plain;                                                               \
        CUresult its_result = CUDA_ERROR_OUT_OF_MEMORY;                                            \
        if (begin_node(&its_plain, alloc)) {                                                       \
            its_result = call;                                                                     \
            weir__plain_end(&its_plain, its_result, 0, its_plain.bytes);                           \
        }                                                                                          \
        its_result;                                                                                \
    })

static int begin_node(struct weir_plain *plain, const struct weir_alloc_node *alloc) {
    size_t bytes =
        alloc && alloc->pool.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? alloc->bytes : 0;

    return weir__plain_begin(plain, WEIR_GROUP_GRAPH, bytes ? alloc->pool.location.id : -1, bytes);
}

static const struct weir_alloc_node *alloc_in(const struct weir_any_node *any) {
    return any && any->type == WEIR_NODE_ALLOC ? &any->alloc : NULL;
}

CUresult weir__serve_cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
                                            const CUgraphNode *after, size_t count,
                                            struct weir_alloc_node *alloc) {
    return ADD_NODE(alloc, REAL(cuGraphAddMemAllocNode)(node, graph, after, count, alloc));
}

CUresult weir__serve_cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                    size_t count, struct weir_any_node *any) {
    return ADD_NODE(alloc_in(any), REAL(cuGraphAddNode)(node, graph, after, count, any));
}

CUresult weir__serve_cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                       const void *edges, size_t count, struct weir_any_node *any) {
    return ADD_NODE(alloc_in(any), REAL(cuGraphAddNode_v2)(node, graph, after, edges, count, any));
}

/* ---- memory of the driver ---- */

CUresult weir__serve_cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct weir_plain_record *record = weir__is_serving ? NULL : weir__plain_releasing(handle);
    CUresult result = REAL(cuMemRelease)(handle);

    weir__plain_released(record, handle, result);
    return result;
}

CUresult weir__serve_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                                 void *address) {
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);

    if (result == CUDA_SUCCESS && !weir__is_serving)
        weir__plain_retained(*handle, (uintptr_t)address);
    return result;
}

CUresult weir__serve_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
    CUresult result = REAL(cuMemMap)(address, bytes, offset, handle, flags);

    if (result == CUDA_SUCCESS && !weir__is_serving)
        weir__plain_mapped(handle, address, bytes);
    return result;
}

CUresult weir__serve_cuMemUnmap(CUdeviceptr address, size_t bytes) {
    CUresult result = REAL(cuMemUnmap)(address, bytes);

    if (result == CUDA_SUCCESS && !weir__is_serving)
        weir__plain_unmapped(address, bytes);
    return result;
}

/* Returns 1 if graphs may have allocated memory, else 0.  After a result of 1, the caller must call end_serving(). */
static int begin_graph_query(CUresult result) {
    return weir__plain_any_graphs() && result == CUDA_SUCCESS && begin_serving();
}

static CUresult count_launched_graph(CUresult result, CUstream stream) {
    if (begin_graph_query(result)) {
        weir__plain_query_graphs(find_stream_device(stream));
        end_serving();
    }
    return result;
}

CUresult weir__serve_cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    return count_launched_graph(REAL(cuGraphLaunch)(exec, stream), stream);
}

CUresult weir__serve_cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return count_launched_graph(REAL_PTSZ(cuGraphLaunch)(exec, stream),
                                to_per_thread_stream(stream));
}

CUresult weir__serve_cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);

    if (begin_graph_query(result)) {
        weir__plain_query_graphs(device);
        end_serving();
    }
    return result;
}
