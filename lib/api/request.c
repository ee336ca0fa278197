/* SPDX-License-Identifier: MIT */
/* request.c: weir_alloc and weir_free.
 *
 * The fast path takes a block from a per-stream cache by inlined functions of stream_cache.h, and calls no other
 * function.  A request leaves the fast path if no cache has a suitable block, or if a bit of the word in slow_path.h is
 * set.  No bit is set in steady state. */
#include <stdio.h>

#include <weir/weir.h>

#include "api/create.h"
#include "api/drop_in.h"
#include "api/oom_reporting.h"
#include "base/log.h"
#include "base/result.h"
#include "base/text.h"
#include "cache/stream_cache.h"

/* set while this thread runs the program's OOM callback, during which weir does not call the callback again */
static _Thread_local int in_oom_callback;

/* ---- failures ---------------------------------------------------------------------------------- */

/* Writes the OOM report of this thread's last failed request, unless lib/adapters reports failures itself. */
static __attribute__((noinline, cold)) void report_failure(weir_allocator *a) {
    weir_oom_report oom_report;

    if (!a->device.drop_in)
        (void)weir__oom_report_new(a, &oom_report);
}

/* Returns 1 if weir reports a failure only at the end of the request, else 0.  The guard's figures are correct only at
 * the end, and an OOM callback may request a retry. */
static int is_reported_last(const weir_allocator *a) {
    return a->harden || a->options.oom_callback;
}

static void log_failure(const weir_allocator *a, const struct weir_failed_request *refused) {
    const weir_failure *r = &refused->figures;
    char asked[32], limit[48] = "";
    /* If enough memory is free, the driver has caused the failure. */
    int is_drivers = r->largest >= r->asked;

    if (a->logs_no_failures)
        return;
    /* WEIR_SHOWN would print "not known" for UINT64_MAX, which is a valid size of a request */
    weir__bytes_show(r->asked, asked, sizeof asked);
    if (refused->status == WEIR_E_LIMIT)
        snprintf(limit, sizeof limit, "limit %s, ", WEIR_SHOWN(r->limit));
    weir__log(a->options.log, WEIR_LOG_WARNING,
              "%s: could not allocate %s; %sreserved %s, in use %s, free on the device %s; %s%s%s",
              weir_status_message(refused->status), asked, limit, WEIR_SHOWN(r->reserved),
              WEIR_SHOWN(r->in_use), WEIR_SHOWN(r->device_free),
              is_drivers ? "the driver failed nevertheless" : "at least ",
              is_drivers ? "" : WEIR_SHOWN(r->largest), is_drivers ? "" : " would fit now");
}

uint64_t weir__allocator_largest(weir_allocator *a, const struct weir_failed_request *refused) {
    size_t bytes = (size_t)weir__oom_recovery_largest(&a->reserve, refused);

    /* The caches round sizes up, and the guard adds gaps.  So the largest possible request is smaller than `bytes`. */
    if (a->options.cache == WEIR_SWITCH_ON)
        bytes = weir__caches_fit(bytes);
    return weir__harden_fit(&a->options, bytes);
}

static __attribute__((noinline, cold)) void record_failure(weir_allocator *a,
                                                           const struct weir_request *r) {
    struct weir_failed_request *refused = r->refused;
    weir_statistics figures;

    weir__stats_read(a, &figures);
    refused->by = a->number;
    refused->result = r->result;
    /* The engine's figure for memory in use would include idle memory of the caches. */
    refused->figures.in_use = figures.in_use;
    if (refused->stream == 0 && !refused->is_captured)
        refused->is_captured =
            weir__device_stream_id(&a->device, r->stream, &refused->stream) != CUDA_SUCCESS;
    refused->figures.largest = weir__allocator_largest(a, refused);
    weir__failure_set(refused);
    log_failure(a, refused);
    if (!is_reported_last(a))
        report_failure(a);
    weir__set_driver_result(r->result);
}

/* ---- requests ---------------------------------------------------------------------------------- */

/* Preallocates memory at the first request, while other requests wait.  Fails if weir gets less than prealloc_min. */
static weir_status preallocate_first(weir_allocator *a) {
    weir_status status = WEIR_OK;
    char why[160] = "";

    pthread_mutex_lock(&a->first_request);
    /* unreached: no test makes another thread preallocate before this thread gets the lock */
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_PREALLOC)) {
        status = weir__preallocate(a, why, sizeof why);
        if (status == WEIR_OK || a->prealloc_min == 0) {
            status = WEIR_OK;
            (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_PREALLOC, 0);
        } else {
            weir__log(a->logs_prealloc_failure ? WEIR_LOG_ERROR : a->options.log, WEIR_LOG_ERROR,
                      "%s", why[0] ? why : weir_status_message(status));
            a->logs_prealloc_failure = 0;
        }
    }
    pthread_mutex_unlock(&a->first_request);
    return status;
}

static weir_status alloc_from_engine(weir_allocator *a, struct weir_request *r) {
    weir_status status = weir__reserve_alloc(&a->reserve, r);

    if (status == WEIR_OK)
        weir__striped_add(&a->counters.striped, WEIR_STRIPED_ALLOCS);
    else
        weir__device_log_alloc(&a->device, r->asked, status);
    return status;
}

/* Allocates a block that the stream's cache `c` does not have.  If `c` is not NULL, releases the lock of `c`; `taken`
 * is the result of weir__bias_take() for this lock.  `id` is 0 if the stream's id was not queried. */
static __attribute__((noinline)) weir_status miss(weir_allocator *a, struct weir_cache *c,
                                                  int taken, uint64_t id, size_t bytes,
                                                  weir_stream stream, void **block) {
    int result_before = weir__driver_result;
    struct weir_failed_request refused;
    struct weir_request r = {
        .bytes = bytes, .asked = bytes, .stream = stream, .id = id, .refused = &refused};
    weir_status status;

    refused.status = WEIR_OK;
    /* The driver would need long to refuse a request larger than the device. */
    if (bytes > a->device.total)
        status = weir__oom_recovery_run(&a->reserve, &r, WEIR_E_NO_MEMORY);
    else
        status = a->caches ? weir__caches_miss(a->caches, c, taken, &r) : alloc_from_engine(a, &r);
    if (status == WEIR_OK)
        *block = (void *)(uintptr_t)r.block;
    else if (refused.status != WEIR_OK)
        /* refused.status stays OK if the cause is a failed driver query, for example for the stream's id */
        record_failure(a, &r);
    return weir__end_call(result_before, status);
}

/* Allocates a block from the cache `c`, or calls miss().  `id` is the stream's id, or 0 if no check is needed. */
static inline __attribute__((always_inline)) weir_status
alloc_in_cache(weir_allocator *a, struct weir_cache *c, uint64_t id, size_t bytes,
               weir_stream stream, void **block) {
    int taken = weir__bias_take(&c->lock);
    CUdeviceptr found = take_cached(c, id, bytes);

    if (__builtin_expect(!found, 0))
        return miss(a, c, taken, id, bytes, stream, block);
    weir__bias_give(&c->lock, taken);
    *block = (void *)(uintptr_t)found;
    return WEIR_OK;
}

/* Allocates a block on any stream.  Queries the stream's id, since a new stream may have the handle of an old one.  If
 * the query fails, miss() finds the reason. */
static __attribute__((noinline)) weir_status alloc_searched(weir_allocator *a, struct weir_cache *c,
                                                            size_t bytes, weir_stream stream,
                                                            void **block) {
    struct weir_caches *f = a->caches;
    unsigned long long id = 0;
    int lent = 0;
    weir_status status;

    if (!c)
        c = find_cache(f, stream, &id, &lent);
    if (c && id == 0 && !is_vouched_for(f, c, stream) && !query_id(f, stream, &id))
        c = NULL;
    status = c ? alloc_in_cache(a, c, id, bytes, stream, block)
               : miss(a, NULL, 0, 0, bytes, stream, block);
    if (__builtin_expect(lent, 0))
        weir__device_restore_context(&a->device, lent);
    return status;
}

weir_status weir__allocator_alloc_below_guard(void *allocator, size_t bytes, weir_stream stream,
                                              CUdeviceptr *block) {
    weir_allocator *a = allocator;
    void *served = NULL;
    weir_status status = a->caches && bytes <= a->device.total
                             ? alloc_searched(a, NULL, bytes, stream, &served)
                             : miss(a, NULL, 0, 0, bytes, stream, &served);

    *block = (uintptr_t)served;
    return status;
}

static weir_status request(weir_allocator *a, size_t bytes, weir_stream stream, void **block) {
    int lent = weir__make_context_current(a);
    CUdeviceptr address = 0;
    weir_status status = WEIR_OK;

    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_PREALLOC))
        status = preallocate_first(a);
    if (status == WEIR_OK)
        status = a->harden ? weir__harden_alloc(a->harden, bytes, stream, &address)
                           : weir__allocator_alloc_below_guard(a, bytes, stream, &address);
    if (status == WEIR_OK) {
        *block = (void *)(uintptr_t)address;
        if (weir__uses_any(&a->uses))
            weir__uses_remove(&a->uses, address);
    }
    weir__device_restore_context(&a->device, lent);
    return status;
}

/* Calls the program's OOM callback, except during a capture.  Returns 1 if the callback wants a retry, else 0.
 * Restores the thread's last failure and driver result, since the callback may call weir. */
static int call_oom_callback(weir_allocator *a, size_t bytes, weir_stream stream,
                             weir_status status, uint64_t attempt) {
    const weir_options *options = &a->options;
    int result = weir__driver_result, again;
    struct weir_failed_request refused;
    weir_oom oom = {
        .size = sizeof oom,
        .allocator = a,
        .stream = stream,
        .bytes = bytes,
        .attempt = attempt,
        .status = status,
    };

    weir__failure_get(&refused);
    if (refused.is_captured)
        return 0;
    oom.largest = refused.figures.largest;
    in_oom_callback = 1;
    again = options->oom_callback(&oom, options->oom_callback_data);
    in_oom_callback = 0;
    weir__failure_set(&refused);
    weir__set_driver_result(result);
    return again != 0;
}

/* Allocates a block, and retries a failed request as long as the OOM callback wants a retry. */
static weir_status request_with_callback(weir_allocator *a, size_t bytes, weir_stream stream,
                                         void **block) {
    for (uint64_t attempt = 1;; attempt++) {
        uint64_t met = weir__failure_count();
        weir_status status = request(a, bytes, stream, block);

        if (!weir__is_failure(status) || in_oom_callback || weir__failure_count() == met ||
            !call_oom_callback(a, bytes, stream, status, attempt))
            return status;
        /* The request is retried, so this attempt is not counted as a failed request. */
        atomic_fetch_sub_explicit(&a->counters.failed_requests, 1, memory_order_relaxed);
        status = weir__check_live(a);
        if (status != WEIR_OK)
            return status;
    }
}

static void note_latency(weir_allocator *a, int operation, uint64_t started) {
    weir__histogram_add(&a->counters.latency[operation],
                        weir__device_elapsed_ns(&a->device, started));
}

static __attribute__((noinline)) weir_status alloc_fully(weir_allocator *a, size_t bytes,
                                                         weir_stream stream, void **block) {
    weir_status status = weir__check_live_allocator(a);
    uint64_t started, met = weir__failure_count();
    int result_before = weir__driver_result;

    if (status != WEIR_OK)
        return status;
    if (!block)
        return weir__misuse(a, WEIR_E_INVALID, "weir_alloc: block is NULL");
    if (bytes == 0) {
        *block = NULL;
        return WEIR_OK;
    }
    started = a->counters.latency ? a->device.driver->ticks() : 0;
    status = a->options.oom_callback ? request_with_callback(a, bytes, stream, block)
                                     : request(a, bytes, stream, block);
    if (a->counters.latency)
        note_latency(a, WEIR_OPERATION_ALLOC, started);
    if (weir__is_failure(status) && is_reported_last(a) && !in_oom_callback &&
        weir__failure_count() > met)
        report_failure(a);
    return weir__end_call(result_before, status);
}

/* Returns 1 if the per-stream caches suffice for the call, since no bit except `ignored_bits` of slow_path is set. */
static inline int needs_caches_only(const weir_allocator *a, unsigned ignored_bits) {
    return a &&
           (atomic_load_explicit(&a->device.slow_path, memory_order_acquire) & ~ignored_bits) ==
               0 &&
           !weir__driver_forked();
}

weir_status weir__alloc_default(weir_allocator *a, size_t bytes, weir_stream stream, uint64_t id,
                                void **block) {
    struct weir_cache *c = NULL;

    if (needs_caches_only(a, 0) && bytes - 1 < a->device.total)
        c = weir__cache_find(a->caches, key_of(stream, id));
    return c ? alloc_in_cache(a, c, id, bytes, stream, block) : weir_alloc(a, bytes, stream, block);
}

/* The fast path needs a cache whose lock this thread can take without an atomic instruction (biased_lock.h).
 * weir_alloc calls other functions last, so that the compiler makes no stack frame. */
weir_status weir_alloc(weir_allocator *a, size_t bytes, weir_stream stream, void **block) {
    struct weir_caches *f;
    struct weir_cache *c;
    CUdeviceptr found = 0;

    if (__builtin_expect(!needs_caches_only(a, 0) || !block || bytes - 1 >= a->device.total, 0))
        return alloc_fully(a, bytes, stream, block);
    f = a->caches;
    c = weir__cache_find(f, (uintptr_t)stream);
    if (!c || !is_vouched_for(f, c, stream) || bytes > WEIR_SLAB_SMALL ||
        !weir__bias_try_at(&c->lock, WEIR_BIAS_INNER))
        return alloc_searched(a, c, bytes, stream, block);
    if (__builtin_expect(c->is_ready, 1))
        found = weir__cache_alloc_first(c, bytes);
    if (__builtin_expect(found != 0, 1))
        count_hit(c);
    weir__bias_give(&c->lock, 1);
    if (__builtin_expect(!found, 0))
        return alloc_searched(a, c, bytes, stream, block);
    *block = (void *)(uintptr_t)found;
    return WEIR_OK;
}

intptr_t weir_alloc_address(weir_allocator *a, size_t bytes, weir_stream stream) {
    void *block;
    weir_status status = weir_alloc(a, bytes, stream, &block);

    return status == WEIR_OK ? (intptr_t)block : (intptr_t)status;
}

/* ---- frees ------------------------------------------------------------------------------------- */

weir_status weir__allocator_free_below_guard(void *allocator, CUdeviceptr block, weir_stream stream,
                                             struct weir_use_list *uses) {
    weir_allocator *a = allocator;
    struct weir_engine *e = a->reserve.engine;
    weir_status status;

    if (a->caches)
        return weir__caches_free(a->caches, NULL, weir__records_find(&a->caches->records, block),
                                 block, stream, uses);
    status = e->ops->free(e, block, stream, uses);
    if (status == WEIR_OK)
        weir__striped_add(&a->counters.striped, WEIR_STRIPED_FREES);
    else
        weir__device_log_free(&a->device, block, status);
    return status;
}

/* Returns 1 if a stream other than `stream` may have used the block, else 0.  A use with an id is on a default stream,
 * and equal handles of default streams can mean different streams. */
static int has_use_elsewhere(const struct weir_use_list *uses, weir_stream stream) {
    for (size_t i = 0; uses && i < uses->count; i++)
        if (uses->use[i].stream != stream || uses->use[i].id != 0)
            return 1;
    return 0;
}

static weir_status release(weir_allocator *a, CUdeviceptr block, weir_stream stream) {
    struct weir_use_list *uses =
        weir__uses_any(&a->uses) ? weir__uses_detach(&a->uses, block) : NULL;
    struct weir_use_list *others = has_use_elsewhere(uses, stream) ? uses : NULL;
    int lent = weir__make_context_current(a);
    weir_status status = a->harden ? weir__harden_free(a->harden, block, stream, others)
                                   : weir__allocator_free_below_guard(a, block, stream, others);

    if (uses)
        weir__uses_end_free(&a->uses, block, uses, status == WEIR_OK);
    weir__device_restore_context(&a->device, lent);
    return status;
}

static __attribute__((noinline)) weir_status free_fully(weir_allocator *a, void *block,
                                                        weir_stream stream) {
    weir_status status = weir__check_live_allocator(a);
    int result_before = weir__driver_result;
    uint64_t started;

    if (status != WEIR_OK || !block)
        return status;
    started = a->counters.latency ? a->device.driver->ticks() : 0;
    status = release(a, (uintptr_t)block, stream);
    if (a->counters.latency)
        note_latency(a, WEIR_OPERATION_FREE, started);
    return weir__end_call(result_before, status);
}

weir_status weir__free_default(weir_allocator *a, void *block, weir_stream stream, uint64_t id) {
    struct weir_slab *s;
    struct weir_cache *c;

    if (!needs_caches_only(a, WEIR_SLOW_PATH_OOM))
        return free_fully(a, block, stream);
    s = weir__records_find(&a->caches->records, (uintptr_t)block);
    c = weir__cache_find(a->caches, key_of(stream, id));
    if (s && c && s->slot_units && free_cached(c, id, s, (uintptr_t)block))
        return WEIR_OK;
    /* A bound stream has only one cache, so weir__caches_free() needs no stream id. */
    return weir__caches_free(a->caches, c, s, (uintptr_t)block, stream, NULL);
}

/* Frees a block.  `s` is the record for its address, or NULL.  Calls other functions last, so that the fast path saves
 * no registers. */
static inline __attribute__((always_inline)) weir_status free_with_record(struct weir_caches *f,
                                                                          struct weir_slab *s,
                                                                          CUdeviceptr block,
                                                                          weir_stream stream) {
    struct weir_cache *c = weir__cache_find(f, (uintptr_t)stream);

    if (__builtin_expect(s && c && s->slot_units && free_cached(c, 0, s, block), 1))
        return WEIR_OK;
    return weir__caches_free(f, c, s, block, stream, NULL);
}

weir_status weir_free(weir_allocator *a, void *block, weir_stream stream) {
    if (!needs_caches_only(a, WEIR_SLOW_PATH_OOM) || !block)
        return free_fully(a, block, stream);
    return free_with_record(a->caches, weir__records_find(&a->caches->records, (uintptr_t)block),
                            (uintptr_t)block, stream);
}

int weir__drop_in_free_to_cache(weir_allocator *a, void *block, weir_stream stream) {
    unsigned paths = atomic_load_explicit(&a->device.slow_path, memory_order_acquire);
    struct weir_slab *s;

    if ((paths & ~(unsigned)WEIR_SLOW_PATH_OOM) != 0)
        return 0;
    s = weir__records_find(&a->caches->records, (uintptr_t)block);
    return s && free_with_record(a->caches, s, (uintptr_t)block, stream) == WEIR_OK;
}
