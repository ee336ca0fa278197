/* SPDX-License-Identifier: MIT */
/* tensor_blocks.c: allocates and frees blocks for tensors, and keeps a record of each block.
 *
 * The program can direct the requests of some streams to a private memory pool (weir_tensors_begin).  All other
 * requests use weir_alloc.  A framework frees a block without a stream, so the block's record stores the stream. */
#include <stdlib.h>

#include "api/allocator_internal.h"
#include "base/thread.h"
#include "api/drop_in.h"
#include "base/result.h"
#include "tensors/tensors_internal.h"

_Atomic(weir_tensors *) weir__tensors_of[WEIR_TENSORS_DEVICES];

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static int opened;
_Atomic(weir_tensors *) weir__tensors_only;

enum { RECORDS = 64 };

/* ---- records and figures ----------------------------------------------------------------------- */

void weir__tensors_report(weir_tensors *t, int action, uint64_t address, size_t bytes,
                          weir_stream stream, const struct weir_tensor_pool *pool, void *note) {
    weir_tensors_event event = {action, address, bytes, stream, {0, 0}, note};

    if (pool)
        event.pool = pool->id;
    if (atomic_load_explicit(&t->is_watched, memory_order_relaxed))
        t->hooks.event(t->hooks.context, &event);
}

/* Returns the reserved bytes outside private memory pools. */
static int64_t shared_bytes(weir_tensors *t) {
    return (int64_t)atomic_load_explicit(&t->allocator->reserve.engine->seen.reserved,
                                         memory_order_relaxed) -
           t->pool_bytes;
}

void weir__tensors_report_shared(weir_tensors *t, uint64_t address, weir_stream stream,
                                 void *note) {
    int64_t grown;

    if (__builtin_expect(!atomic_load_explicit(&t->is_watched, memory_order_relaxed), 1))
        return;
    grown = shared_bytes(t) - t->reported_shared_bytes;
    t->reported_shared_bytes += grown;
    if (grown > 0)
        weir__tensors_report(t, WEIR_TENSORS_SEGMENT_MAP, t->growth_address = address,
                             (size_t)grown, stream, NULL, note);
    else if (grown < 0)
        weir__tensors_report(t, WEIR_TENSORS_SEGMENT_UNMAP, t->growth_address, (size_t)-grown,
                             stream, NULL, note);
}

int weir__tensors_reserve_records(weir_tensors *t, size_t count) {
    for (size_t added = 0; added < count; added += RECORDS) {
        struct weir_tensor *tensor = calloc(RECORDS, sizeof *tensor);

        if (!tensor)
            return 0;
        for (int i = 0; i < RECORDS; i++) {
            tensor[i].next = t->free_records;
            t->free_records = &tensor[i];
        }
    }
    return 1;
}

struct weir_tensor *weir__tensor_new(weir_tensors *t) {
    struct weir_tensor *tensor;

    if (!t->free_records && !weir__tensors_reserve_records(t, 1))
        return NULL;
    tensor = t->free_records;
    t->free_records = tensor->next;
    tensor->next = NULL;
    return tensor;
}

void weir__tensor_drop(weir_tensors *t, struct weir_tensor *tensor) {
    if (tensor->note && t->hooks.drop)
        t->hooks.drop(t->hooks.context, tensor->note);
    if (tensor->uses)
        free(tensor->uses);
    *tensor = (struct weir_tensor){.next = t->free_records};
    t->free_records = tensor;
}

/* Adds a stream to the streams that use the block, at most once.  Returns 1, or 0 without host memory. */
static int add_tensor_use(struct weir_tensor *tensor, struct weir_tensor_use use) {
    struct weir_tensor_use *moved;
    size_t count = tensor->use_count;

    for (size_t i = 0; i < count; i++)
        if (weir__use_is(tensor->uses[i], use))
            return 1;
    /* The capacity of the array is a power of two, so an array with 1, 2, 4, 8, ... entries is full. */
    if ((count & (count - 1)) == 0) {
        moved = realloc(tensor->uses, (count > 0 ? 2 * count : 1) * sizeof *moved);
        if (!moved)
            return 0;
        tensor->uses = moved;
    }
    tensor->uses[tensor->use_count++] = use;
    return 1;
}

int weir__tensor_use_alloc_stream(struct weir_tensor *tensor) {
    return tensor->pool || weir__name_is_permanent(tensor->home.name) ||
           add_tensor_use(tensor, tensor->home);
}

/* Adds `amount` to the figures of all blocks and of one class, or subtracts it if `sign` is -1. */
static inline __attribute__((always_inline)) void add_to_class(weir_tensors_figure figure[3],
                                                               const struct weir_tensor *tensor,
                                                               size_t amount, int sign) {
    weir__figure_add(&figure[0], (int64_t)amount, sign);
    weir__figure_add(&figure[tensor->bytes > WEIR_TENSORS_SMALL ? 2 : 1], (int64_t)amount, sign);
}

static inline __attribute__((always_inline)) void
count_live_tensor(weir_tensors_figures *f, const struct weir_tensor *tensor, int sign) {
    add_to_class(f->allocation, tensor, 1, sign);
    add_to_class(f->allocated_bytes, tensor, tensor->bytes, sign);
    add_to_class(f->requested_bytes, tensor, tensor->requested, sign);
}

static inline void report_block(weir_tensors *t, int action, const struct weir_tensor *tensor) {
    if (__builtin_expect(atomic_load_explicit(&t->is_watched, memory_order_relaxed), 0))
        weir__tensors_report(t, action, tensor->address, tensor->requested, tensor->home.stream,
                             tensor->pool, tensor->note);
}

/* Updates the peaks of live blocks plus freed blocks that other streams still use. */
static void update_active_peak(weir_tensors *t) {
    const weir_tensors_figures *f = &t->figures;

    for (int i = 0; i < 3; i++) {
        int64_t blocks = f->allocation[i].current + t->pending[i].blocks;
        int64_t bytes = f->allocated_bytes[i].current + t->pending[i].bytes;

        if (blocks > t->pending[i].peak_blocks)
            t->pending[i].peak_blocks = blocks;
        if (bytes > t->pending[i].peak_bytes)
            t->pending[i].peak_bytes = bytes;
    }
}

void weir__tensors_count_pending(weir_tensors *t, const struct weir_tensor *tensor, int64_t sign) {
    int kind = tensor->bytes > WEIR_TENSORS_SMALL ? 2 : 1;

    for (int i = 0; i <= kind; i += kind) {
        t->pending[i].blocks += sign;
        t->pending[i].bytes += sign * (int64_t)tensor->bytes;
    }
}

void weir__tensors_add(weir_tensors *t, const struct weir_tensor *tensor) {
    count_live_tensor(&t->figures, tensor, 1);
    if (__builtin_expect(t->pending[0].blocks > 0, 0))
        update_active_peak(t);
    report_block(t, WEIR_TENSORS_ALLOC, tensor);
}

void weir__tensors_subtract(weir_tensors *t, const struct weir_tensor *tensor) {
    count_live_tensor(&t->figures, tensor, -1);
    report_block(t, WEIR_TENSORS_FREE_REQUESTED, tensor);
}

void weir__tensors_report_completed(weir_tensors *t, const struct weir_tensor *tensor) {
    if (tensor->is_freed)
        weir__tensors_count_pending(t, tensor, -1);
    report_block(t, WEIR_TENSORS_FREE_COMPLETED, tensor);
}

int weir__tensor_record(weir_tensors *t, const struct weir_tensor_request *request,
                        struct weir_tensor_pool *pool, uint64_t capture) {
    struct weir_tensor *tensor = weir__tensor_new(t);

    if (!tensor || !weir__map_put(&t->map, request->address, (uintptr_t)tensor)) {
        if (tensor)
            weir__tensor_drop(t, tensor);
        return 0;
    }
    tensor->address = request->address;
    tensor->bytes = request->bytes;
    tensor->requested = request->requested;
    /* Copies each field by itself, since one wide load would wait for the caller's two stores of the fields. */
    tensor->home.stream = request->home.stream;
    tensor->home.name = request->home.name;
    tensor->capture = capture;
    tensor->pool = pool;
    tensor->note = request->note;
    weir__tensors_add(t, tensor);
    return 1;
}

/* ---- opening ------------------------------------------------------------------------------------ */

/* Locks `t` and returns 1.  In a thread of weir, returns 0 if the lock stays busy: its holder may wait for the device,
 * and a thread of weir must not wait for the device. */
static int lock_for_reclaim(weir_tensors *t) {
    if (weir__thread_is_own())
        return weir__tensors_try_lock(t);
    weir__tensors_lock(t);
    return 1;
}

/* Frees memory when another request is out of memory (weir__reclaim_fn). */
static int reclaim(void *tensors, int may_wait, uint64_t *pending) {
    weir_tensors *t = tensors;
    int64_t before;
    int some = 0, is_switched;

    *pending = 0;
    if (atomic_load_explicit(&t->has_pending, memory_order_relaxed) && lock_for_reclaim(t)) {
        before = t->pending[0].blocks;
        weir__pending_complete(t, 0);
        some = t->pending[0].blocks < before;
        if (weir__pending_is_recorded(t))
            *pending = (uint64_t)t->pending[0].bytes;
        weir__tensors_unlock(t);
    }
    if (may_wait && atomic_load_explicit(&t->unused_pools, memory_order_relaxed) > 0) {
        /* The program's function that frees a segment may need a current CUDA context. */
        is_switched = weir__device_make_context_current(&t->allocator->device);
        some |= weir__pools_trim(t, (weir_tensors_id){0, 0});
        weir__device_restore_context(&t->allocator->device, is_switched);
    }
    return some;
}

/* Returns the bytes that reclaim() would free after a device wait, or the previous result while the lock is busy. */
static uint64_t reclaimable(void *tensors) {
    weir_tensors *t = tensors;

    if (atomic_load_explicit(&t->unused_pools, memory_order_relaxed) == 0)
        return 0;
    if (weir__tensors_try_lock(t)) {
        atomic_store_explicit(&t->idle, weir__pools_idle(t), memory_order_relaxed);
        weir__tensors_unlock(t);
    }
    return atomic_load_explicit(&t->idle, memory_order_relaxed);
}

static weir_status create_tensors(int device, const weir_tensors_hooks *hooks, weir_tensors **out) {
    weir_tensors *t = calloc(1, sizeof *t);
    weir_status status;

    if (!t)
        return WEIR_E_HOST_MEMORY;
    status = weir_device_allocator(device, &t->allocator);
    if (status != WEIR_OK) {
        free(t);
        return status;
    }
    weir__order_open(&t->events, &t->allocator->device, NULL, NULL, NULL);
    t->lock.level = WEIR_BIAS_OUTER;
    /* The first use of a biased lock may take milliseconds, so weir prepares these locks before the first request. */
    weir__bias_prepare();
    if (!weir__separate_addresses(t->allocator, &t->pool_range))
        t->pool_range.bytes = 0;
    if (hooks)
        t->hooks = *hooks;
    t->allocator->reserve.reclaim_context = t;
    t->allocator->reserve.reclaimable = reclaimable;
    atomic_store_explicit(&t->allocator->reserve.reclaim, reclaim, memory_order_release);
    *out = t;
    return WEIR_OK;
}

weir_status weir_tensors_open(int device, const weir_tensors_hooks *hooks, weir_tensors **out) {
    weir_tensors *t;
    weir_status status = weir__call_check(out != NULL);

    if (status != WEIR_OK)
        return status;
    if (device < 0 || device >= WEIR_TENSORS_DEVICES)
        return weir__without_driver(WEIR_E_NO_DEVICE);
    pthread_mutex_lock(&opening);
    t = atomic_load_explicit(&weir__tensors_of[device], memory_order_acquire);
    if (!t) {
        status = create_tensors(device, hooks, &t);
        if (status == WEIR_OK)
            atomic_store_explicit(&weir__tensors_only, opened++ == 0 ? t : NULL,
                                  memory_order_release);
    }
    if (status == WEIR_OK) {
        atomic_store_explicit(&weir__tensors_of[device], t, memory_order_release);
        *out = t;
    }
    pthread_mutex_unlock(&opening);
    return status;
}

weir_allocator *weir_tensors_allocator(const weir_tensors *t) {
    return t ? t->allocator : NULL;
}

weir_status weir_tensors_watch(weir_tensors *t, int on) {
    weir_status status = weir__call_check(t != NULL);

    if (status != WEIR_OK)
        return status;
    weir__tensors_lock(t);
    t->reported_shared_bytes = shared_bytes(t);
    atomic_store_explicit(&t->is_watched, on && t->hooks.event, memory_order_relaxed);
    weir__tensors_unlock(t);
    return WEIR_OK;
}

/* ---- requests ----------------------------------------------------------------------------------- */

/* The stream for which this thread has called weir_bind last. */
static _Thread_local struct {
    const weir_tensors *tensors;
    weir_stream stream;
} last_bound WEIR_FAST_TLS;

static uint64_t name_by_handle(weir_stream stream) {
    return (uint64_t)(uintptr_t)stream + 1;
}

uint64_t weir__tensors_name(weir_tensors *t, weir_stream stream, int lasts) {
    struct weir_device *device = &t->allocator->device;
    uint64_t id = 0;
    CUresult result;

    /* The handle of the per-thread default stream does not identify a stream, since each thread has another stream. */
    if (lasts ? (uintptr_t)stream != WEIR_STREAM_PER_THREAD_VALUE
              : (uintptr_t)stream <= WEIR_STREAM_LEGACY_VALUE)
        return name_by_handle(stream);
    if (!(device->driver->capabilities & WEIR_CAP_STREAM_ID))
        return weir__device_capture(device, stream) == WEIR_E_CAPTURE
                   ? WEIR_TENSORS_CAPTURED | (uintptr_t)stream
                   : 0;
    result = weir__device_stream_id(device, stream, &id);
    if (weir__device_is_capture(result))
        return WEIR_TENSORS_CAPTURED | (uintptr_t)stream;
    return result == CUDA_SUCCESS && id != 0 ? WEIR_TENSORS_ID | id : 0;
}

/* Calls weir_bind once for each stream that is never destroyed. */
static __attribute__((noinline)) void bind_tensor_stream(weir_tensors *t, weir_stream stream) {
    struct weir_device *device = &t->allocator->device;
    weir_status status = WEIR_OK;
    uintptr_t known = 0;
    uint64_t id = 0;
    int is_new, is_switched;

    weir__tensors_lock(t);
    (void)weir__map_get(&t->permanent_streams, name_by_handle(stream), &known);
    is_new = known != WEIR_TENSORS_BOUND &&
             weir__map_put(&t->permanent_streams, name_by_handle(stream), WEIR_TENSORS_BOUND);
    weir__tensors_unlock(t);
    if (is_new) {
        is_switched = weir__device_make_context_current(device);
        status = weir_bind(t->allocator, stream);
        if (status == WEIR_OK && (uintptr_t)stream <= WEIR_STREAM_LEGACY_VALUE &&
            weir__device_stream_id(device, stream, &id) == CUDA_SUCCESS)
            atomic_store_explicit(&t->legacy_id, id, memory_order_relaxed);
        weir__device_restore_context(device, is_switched);
    }
    if (status != WEIR_OK)
        return;
    last_bound.tensors = t;
    last_bound.stream = stream;
}

/* Allocates a block outside private memory pools.  On a captured stream, allocates the block for use by any stream. */
static weir_status alloc_unrouted(weir_tensors *t, size_t bytes, weir_stream stream, void **block) {
    struct weir_device *device = &t->allocator->device;
    uint64_t id = weir__tensors_legacy_id(t, stream);

    if (id)
        return weir__alloc_default(t->allocator, bytes, stream, id, block);
    if (atomic_load_explicit(&t->route_count, memory_order_relaxed) > 0 &&
        weir__device_capture(device, stream) == WEIR_E_CAPTURE)
        return weir_alloc_any(t->allocator, bytes, block);
    return weir_alloc(t->allocator, bytes, stream, block);
}

/* Calls alloc_unrouted() in the device's context, since a default stream needs a current context. */
static __attribute__((noinline, cold)) weir_status
alloc_in_own_context(weir_tensors *t, size_t bytes, weir_stream stream, void **block) {
    int is_switched = weir__device_make_context_current(&t->allocator->device);
    weir_status status = WEIR_E_STREAM;

    if (is_switched)
        status = alloc_unrouted(t, bytes, stream, block);
    weir__device_restore_context(&t->allocator->device, is_switched);
    return status;
}

/* If `status` means out of memory, counts and reports the failure.  Returns `status`. */
static __attribute__((noinline, cold)) weir_status
report_oom(weir_tensors *t, const struct weir_tensor_request *request, weir_status status) {
    int result = weir_last_driver_result();
    uint64_t free_bytes;

    if (!weir__is_failure(status))
        return status;
    free_bytes = weir__device_free(&t->allocator->device);
    weir__tensors_lock(t);
    t->figures.ooms++;
    weir__tensors_report(t, WEIR_TENSORS_OOM, free_bytes, request->bytes, request->home.stream,
                         weir__pool_with_route(t, request->home.stream), request->note);
    weir__tensors_unlock(t);
    if (t->allocator->device.drop_in && weir__drop_in_refused)
        weir__drop_in_refused(t->allocator, request->bytes);
    weir__set_driver_result(result);
    return status;
}

/* Records a new block outside private memory pools.  Without host memory, frees the block and returns E_HOST_MEMORY. */
static weir_status record_shared(weir_tensors *t, const struct weir_tensor_request *request) {
    int is_recorded;

    weir__tensors_lock(t);
    weir__tensors_report_shared(t, request->address, request->home.stream, request->note);
    is_recorded = weir__tensor_record(t, request, NULL, 0);
    weir__tensors_unlock(t);
    if (is_recorded)
        return WEIR_OK;
    (void)weir__pending_free(t, request->address, request->bytes, request->home);
    return WEIR_E_HOST_MEMORY;
}

/* Frees blocks that other streams have finished with, and allocates a block in the private memory pool of the stream.
 * Stores the result in *status and returns 1.  Returns 0 if the stream has no pool. */
static __attribute__((noinline)) int
alloc_routed(weir_tensors *t, struct weir_tensor_request *request, int lasts, weir_status *status) {
    struct weir_tensor_pool *pool;

    weir__tensors_lock(t);
    if (atomic_load_explicit(&t->has_pending, memory_order_relaxed))
        weir__pending_complete(t, 0);
    pool = weir__pool_with_route(t, request->home.stream);
    if (pool) {
        request->home.name = weir__tensors_name(t, request->home.stream, lasts);
        *status = weir__pool_alloc(t, pool, request, 0);
    }
    weir__tensors_unlock(t);
    return pool != NULL;
}

/* Allocates a block outside private pools or, if memory is short, in a pool opened by weir_tensors_pool_lend(). */
static inline weir_status alloc_shared(weir_tensors *t, struct weir_tensor_request *request,
                                       int lasts) {
    weir_stream stream = request->home.stream;
    void *served = NULL;
    weir_status status;

    if (lasts && (last_bound.stream != stream || last_bound.tensors != t))
        bind_tensor_stream(t, stream);
    status = alloc_unrouted(t, request->bytes, stream, &served);
    if (__builtin_expect(status == WEIR_E_STREAM, 0))
        status = alloc_in_own_context(t, request->bytes, stream, &served);
    if (__builtin_expect(status != WEIR_OK && !weir__is_failure(status), 0))
        return status;
    request->home.name = weir__tensors_name(t, stream, lasts);
    if (__builtin_expect(status != WEIR_OK, 0))
        return weir__pool_borrow(t, request) ? WEIR_OK : status;
    request->address = (uintptr_t)served;
    return record_shared(t, request);
}

weir_status weir_tensors_alloc(weir_tensors *t, size_t bytes, size_t requested, weir_stream stream,
                               int lasts, void *note, void **block) {
    struct weir_tensor_request request = {
        .bytes = bytes, .requested = requested, .home.stream = stream, .note = note};
    weir_status status = weir__call_check(t && block);

    if (status != WEIR_OK)
        return status;
    if (bytes == 0) {
        *block = NULL;
        return WEIR_OK;
    }
    if (__builtin_expect((atomic_load_explicit(&t->route_count, memory_order_relaxed) |
                          atomic_load_explicit(&t->has_pending, memory_order_relaxed)) == 0,
                         1) ||
        !alloc_routed(t, &request, lasts, &status))
        status = alloc_shared(t, &request, lasts);
    if (__builtin_expect(status != WEIR_OK, 0))
        return report_oom(t, &request, status);
    *block = (void *)(uintptr_t)request.address;
    return WEIR_OK;
}

/* ---- frees and uses ----------------------------------------------------------------------------- */

/* Returns the record of the block at `address` and keeps `t` locked, or returns NULL without the lock. */
static inline __attribute__((always_inline)) struct weir_tensor *
find_in(weir_tensors *t, uint64_t address, int removes, weir_tensors **owner) {
    uintptr_t value;

    if (removes ? weir__map_remove(&t->map, address, &value)
                : weir__map_get(&t->map, address, &value)) {
        *owner = t;
        return (struct weir_tensor *)value;
    }
    weir__tensors_unlock(t);
    return NULL;
}

/* Finds the record of a block if several devices are in use.  Tries all locks before it waits for a busy lock.
 * Otherwise a deadlock is possible: a thread may hold a lock while it waits for its device, and this device may wait
 * for work that the calling thread has not submitted yet. */
static __attribute__((noinline)) struct weir_tensor *find_among(uint64_t address, int removes,
                                                                weir_tensors **owner) {
    struct weir_tensor *found = NULL;
    uint64_t busy = 0;

    for (int pass = 0; pass < 2; pass++)
        for (int device = 0; device < WEIR_TENSORS_DEVICES && !found; device++) {
            weir_tensors *t = atomic_load_explicit(&weir__tensors_of[device], memory_order_acquire);

            if (!t || (pass == 1 && !(busy >> device & 1)))
                continue;
            if (pass == 1)
                weir__tensors_lock(t);
            if (pass == 1 || weir__tensors_try_lock(t))
                found = find_in(t, address, removes, owner);
            else
                busy |= UINT64_C(1) << device;
        }
    return found;
}

static inline __attribute__((always_inline)) struct weir_tensor *
find_locked(uint64_t address, int removes, weir_tensors **owner) {
    weir_tensors *only = atomic_load_explicit(&weir__tensors_only, memory_order_acquire);

    if (__builtin_expect(!only, 0))
        return find_among(address, removes, owner);
    weir__tensors_lock(only);
    return find_in(only, address, removes, owner);
}

weir_status weir_tensors_free(void *block) {
    struct weir_tensor_use home;
    struct weir_tensor *tensor;
    weir_tensors *t;
    size_t bytes;

    if (!block)
        return WEIR_OK;
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    tensor = find_locked((uintptr_t)block, 1, &t);
    if (!tensor)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    weir__tensors_subtract(t, tensor);
    if (tensor->use_count > 0) {
        weir__pending_add(t, tensor);
    } else if (tensor->pool) {
        weir__pool_free(t, tensor);
    } else {
        home = tensor->home;
        bytes = tensor->bytes;
        weir__tensors_report_completed(t, tensor);
        weir__tensor_drop(t, tensor);
        weir__tensors_unlock(t);
        return weir__pending_free(t, (uintptr_t)block, bytes, home);
    }
    weir__tensors_unlock(t);
    return WEIR_OK;
}

/* Stores a live block's record in *tensor, and keeps *t locked.  On failure, stores NULL and holds no lock. */
static weir_status find_live(const void *block, weir_tensors **t, struct weir_tensor **tensor) {
    weir_status status = weir__call_check(block != NULL);

    *tensor = status == WEIR_OK ? find_locked((uintptr_t)block, 0, t) : NULL;
    return status != WEIR_OK || *tensor ? status : weir__without_driver(WEIR_E_NOT_OWNED);
}

weir_status weir_tensors_use(void *block, weir_stream stream) {
    struct weir_tensor *tensor;
    weir_tensors *t;
    struct weir_tensor_use use = {.stream = stream};
    weir_status status = find_live(block, &t, &tensor);
    int is_recorded = 1;

    if (status != WEIR_OK)
        return status;
    if (tensor->home.stream != stream || !weir__name_is_permanent(tensor->home.name)) {
        use.name = weir__tensors_name(
            t, stream, weir__map_get(&t->permanent_streams, name_by_handle(stream), NULL));
        if (!weir__use_is(tensor->home, use))
            is_recorded = weir__tensor_use_alloc_stream(tensor) && add_tensor_use(tensor, use);
    }
    weir__tensors_unlock(t);
    return is_recorded ? WEIR_OK : weir__without_driver(WEIR_E_HOST_MEMORY);
}

weir_tensors_block weir__tensor_block(const struct weir_tensor *tensor,
                                      struct weir_tensor_segment segment) {
    return (weir_tensors_block){.address = tensor->address,
                                .bytes = tensor->bytes,
                                .requested = tensor->requested,
                                .stream = tensor->home.stream,
                                .pool = tensor->pool ? tensor->pool->id : (weir_tensors_id){0, 0},
                                .segment = segment.base,
                                .segment_bytes = segment.bytes,
                                .note = tensor->note};
}

weir_status weir_tensors_find(const void *block, weir_tensors **tensors, weir_tensors_block *out) {
    struct weir_tensor_segment segment;
    struct weir_tensor *tensor;
    weir_tensors *t;
    weir_status status = find_live(tensors && out ? block : NULL, &t, &tensor);

    if (status != WEIR_OK)
        return status;
    if (tensor->pool)
        segment =
            weir__part_run(t, weir__pool_part(tensor->pool, tensor->address), tensor->address);
    else
        segment = (struct weir_tensor_segment){tensor->address, tensor->bytes};
    *out = weir__tensor_block(tensor, segment);
    weir__tensors_unlock(t);
    *tensors = t;
    return WEIR_OK;
}

weir_status weir_tensors_ipc_make(const void *block, char *text, size_t text_bytes, size_t *needed,
                                  size_t *offset) {
    weir_tensors *t = NULL;
    weir_tensors_block found;
    weir_status status = weir_tensors_find(block, &t, &found);

    return status == WEIR_OK
               ? weir__ipc_make(t->allocator, block, found.bytes, text, text_bytes, needed, offset)
               : status;
}
