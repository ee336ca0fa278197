/* SPDX-License-Identifier: MIT */
/* request.c: weir_alloc and weir_free.
 *
 * The hit path is: argument checks and hit.h's inlined functions, or weir__caches_free.  It makes no call.  Everything
 * else hangs behind one word that is 0 in steady state (slow_path.h), or comes after a miss.  A miss goes through
 * weir__allocator_serve, which tells of a failure.
 *
 * Must not know: how an engine places blocks, the names of settings.
 */
#include <stdio.h>

#include <weir/weir.h>

#include "api/create.h"
#include "api/oom_report.h"
#include "base/log.h"
#include "base/text.h"
#include "cache/hit.h"
#include "reserve/oom_recovery.h"

/* A callback of this thread is at work: what fails meanwhile fails. */
static _Thread_local int asking;

/* ---- failures ---------------------------------------------------------------------------------- */

/* What gaps and rounding leave of so many bytes of the engine. */
static size_t fit(const weir_allocator *a, size_t bytes) {
    if (a->options.front == WEIR_SWITCH_ON)
        bytes = weir__caches_fit(bytes);
    return a->options.harden == WEIR_HARDEN_OFF ? bytes : weir__harden_fit(&a->options, bytes);
}

/* Why this thread was refused goes where the program wants it to. */
static __attribute__((noinline, cold)) void tell(weir_allocator *a) {
    weir_verdict verdict;

    if (weir__oom_report_is_news(a, &verdict))
        weir__oom_report_tell(&verdict, a->options.verdict);
}

/* It may be served yet, where something above OOM recovery asks again: then they tell. */
static int is_asked_again(const weir_allocator *a) {
    return a->harden || a->options.oom_callback;
}

static void log_failure(const weir_allocator *a, const struct weir_refused *refused) {
    const weir_refusal *r = &refused->figures;
    char asked[32], limit[48] = "";
    int is_drivers = r->largest >= r->asked; /* what is free is not what it lacks */

    if (a->hushed)
        return;
    weir__bytes_show(r->asked, asked, sizeof asked); /* however much it is */
    if (refused->status == WEIR_E_LIMIT)
        snprintf(limit, sizeof limit, "limit %s, ", WEIR_SHOWN(r->limit));
    weir__log(a->options.log, WEIR_LOG_WARNING,
              "%s: could not allocate %s; %sreserved %s, in use %s, free on the device %s; %s%s%s",
              weir_status_message(refused->status), asked, limit, WEIR_SHOWN(r->reserve),
              WEIR_SHOWN(r->in_use), WEIR_SHOWN(r->device_free),
              is_drivers ? "the driver failed nevertheless" : "at least ",
              is_drivers ? "" : WEIR_SHOWN(r->largest), is_drivers ? "" : " would fit now");
}

uint64_t weir__allocator_largest(weir_allocator *a, const struct weir_refused *refused) {
    return fit(a, (size_t)weir__oom_recovery_largest(&a->reserve, refused));
}

/* OOM recovery has refused a request: its figures are completed, for the thread, and told where the settings say. */
static __attribute__((noinline, cold)) void note_failure(weir_allocator *a,
                                                         const struct weir_request *r) {
    struct weir_refused *refused = r->refused;
    weir_statistics figures;

    weir__stats_read(a, &figures);
    refused->by = a->number;
    refused->result = r->result;
    refused->figures.in_use = figures.in_use; /* to the engine what lies in caches is, too */
    if (refused->stream == 0 && !refused->is_captured)
        refused->is_captured =
            weir__device_stream_id(&a->device, r->stream, &refused->stream) != CUDA_SUCCESS;
    refused->figures.largest = weir__allocator_largest(a, refused);
    weir__failure_set(refused);
    log_failure(a, refused);
    if (weir__oom_report_is_wanted(a->options.verdict) && !is_asked_again(a) && !a->device.drop_in)
        tell(a);
    weir__set_driver_result(r->result);
}

/* ---- requests ---------------------------------------------------------------------------------- */

/* The preallocation that waited for the first request; requests beside it wait for it.  A failure is in the
 * log and the figures, and the request may be served all the same, unless there is less than must be:
 * then it fails, and the next one tries again. */
static weir_status preallocate_first(weir_allocator *a) {
    weir_status status = WEIR_OK;
    char why[160] = "";

    pthread_mutex_lock(&a->first);
    /* unreached: not any more, for which another thread must do it meanwhile */
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_PREALLOC)) {
        status = weir__preallocate(a, why, sizeof why);
        if (status == WEIR_OK)
            status = weir__preallocate_behind(a, why, sizeof why);
        if (status == WEIR_OK || a->prealloc_min == 0) {
            status = WEIR_OK;
            (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_PREALLOC, 0);
        } else {
            weir__log(a->says_why ? WEIR_LOG_ERROR : a->options.log, WEIR_LOG_ERROR, "%s",
                      why[0] ? why : weir_status_message(status));
            a->says_why = 0;
        }
    }
    pthread_mutex_unlock(&a->first);
    return status;
}

/* A block from the engine itself. */
static weir_status ask_engine(weir_allocator *a, struct weir_request *r) {
    weir_status status;

    r->bytes = r->asked;
    status = weir__reserve_alloc_alone(&a->reserve, r);
    if (status == WEIR_OK)
        weir__striped_add(&a->counters.striped, WEIR_STRIPED_ALLOCS);
    else
        weir__device_log_alloc(&a->device, r->asked, status);
    return status;
}

/* More than the device has: the driver would take long to find that out. */
static weir_status refuse(weir_allocator *a, struct weir_request *r) {
    r->bytes = r->asked;
    return weir__oom_recovery_run(&a->reserve, r, NULL, WEIR_E_NO_MEMORY);
}

weir_status weir__allocator_serve(void *allocator, size_t bytes, weir_stream stream,
                                  CUdeviceptr *block) {
    weir_allocator *a = allocator;
    struct weir_refused refused;
    struct weir_request r = {.asked = bytes, .stream = stream, .refused = &refused};
    weir_status status;

    refused.status = WEIR_OK;
    status = bytes > a->device.total ? refuse(a, &r)
             : a->caches             ? weir__caches_alloc(a->caches, &r)
                                     : ask_engine(a, &r);
    if (status == WEIR_OK)
        *block = r.block;
    else if (refused.status !=
             WEIR_OK) /* else no OOM recovery was climbed: a question to the driver failed */
        note_failure(a, &r);
    return status;
}

/* Of `met` failures on the way no more count than what came of the request. */
static void one_failure(weir_allocator *a, uint64_t met, int refused) {
    if (met > (uint64_t)refused)
        atomic_fetch_sub_explicit(&a->counters.refusals, met - (uint64_t)refused,
                                  memory_order_relaxed);
}

static weir_status request_here(weir_allocator *a, size_t bytes, weir_stream stream, void **block) {
    CUdeviceptr address = 0;
    uint64_t met = a->harden ? weir__failures_met() : 0;
    weir_status status = WEIR_OK;

    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_PREALLOC))
        status = preallocate_first(a);
    if (status != WEIR_OK)
        return status;
    status = a->harden && bytes <= a->device.total
                 ? weir__harden_alloc(a->harden, bytes, stream, &address)
                 : weir__allocator_serve(a, bytes, stream, &address);
    if (a->harden && bytes <= a->device.total) /* which may ask below more than once */
        one_failure(a, weir__failures_met() - met, weir__is_failure(status));
    if (status == WEIR_OK)
        *block = (void *)(uintptr_t)address;
    else if (a->harden &&
             weir__is_failure(status)) /* what is put around a block is not of the request */
        weir__failure_asked(bytes);
    if (status == WEIR_OK && weir__uses_any(&a->uses))
        weir__uses_forget(&a->uses, (uintptr_t)*block);
    return status;
}

static weir_status request(weir_allocator *a, size_t bytes, weir_stream stream, void **block) {
    int lent = weir__lend_context(a);
    weir_status status = request_here(a, bytes, stream, block);

    weir__device_end_context(&a->device, lent);
    return status;
}

/* Asks the program about this thread's last failure; it may call weir: 1, or 0 with the thread's figures as they were.
 * Nothing may be asked of a stream that is being captured. */
static int ask_program(weir_allocator *a, size_t bytes, weir_stream stream, weir_status status,
                       uint64_t attempt) {
    const weir_options *options = &a->options;
    int result = weir__driver_result, again;
    struct weir_refused refused;
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
    asking = 1;
    again = options->oom_callback(&oom, options->oom_callback_data);
    asking = 0;
    weir__failure_set(&refused);
    weir__set_driver_result(result);
    return again != 0;
}

/* OOM recovery's last rung. */
static weir_status request_or_ask(weir_allocator *a, size_t bytes, weir_stream stream,
                                  void **block) {
    for (uint64_t attempt = 1;; attempt++) {
        uint64_t met = weir__failures_met();
        weir_status status = request(a, bytes, stream, block);

        if (!weir__is_failure(status) || asking || weir__failures_met() == met ||
            !ask_program(a, bytes, stream, status, attempt))
            return status;
        /* It is not refused yet. */
        atomic_fetch_sub_explicit(&a->counters.refusals, 1, memory_order_relaxed);
        status = weir__go_on(a);
        if (status != WEIR_OK)
            return status;
    }
}

static void note_latency(weir_allocator *a, int operation, uint64_t started) {
    weir__histogram_add(&a->counters.latency[operation], weir__device_since(&a->device, started));
}

static __attribute__((noinline)) weir_status alloc_fully(weir_allocator *a, size_t bytes,
                                                         weir_stream stream, void **block) {
    weir_status status = weir__gate(a);
    uint64_t started, met = weir__failures_met();
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
    status = a->options.oom_callback ? request_or_ask(a, bytes, stream, block)
                                     : request(a, bytes, stream, block);
    if (a->counters.latency)
        note_latency(a, WEIR_OPERATION_ALLOC, started);
    if (weir__is_failure(status) && is_asked_again(a) && !asking && weir__failures_met() > met &&
        weir__oom_report_is_wanted(a->options.verdict) && !a->device.drop_in)
        tell(a);
    return weir__ended(result_before, status);
}

/* 1 if there is nothing to do about a call but to hand it to the caches: no slow path but those that are no
 * concern of the call, which is more than the gate asks. */
static inline int is_plain(const weir_allocator *a, unsigned no_concern) {
    return a &&
           (atomic_load_explicit(&a->device.slow_path, memory_order_acquire) & ~no_concern) == 0 &&
           !weir__driver_forked();
}

/* No hit at once, of a call that is plain. */
static __attribute__((noinline)) weir_status alloc_missed(weir_allocator *a, size_t bytes,
                                                          weir_stream stream, void **block) {
    int result_before = weir__driver_result;
    CUdeviceptr address;
    weir_status status = weir__allocator_serve(a, bytes, stream, &address);

    if (status == WEIR_OK)
        *block = (void *)(uintptr_t)address;
    return weir__ended(result_before, status);
}

/* The same, with the stream's cache and its lock.  `id': the driver's id of the stream; 0: its handle is
 * enough, since an adapter watches the stream. */
static __attribute__((noinline)) weir_status miss(weir_allocator *a, struct weir_cache *c,
                                                  int taken, uint64_t id, size_t bytes,
                                                  weir_stream stream, void **block) {
    int result_before = weir__driver_result;
    struct weir_refused refused;
    struct weir_request r = {.asked = bytes, .stream = stream, .id = id, .refused = &refused};
    weir_status status;

    refused.status = WEIR_OK;
    status = weir__caches_miss(a->caches, c, taken, key_of(stream, id), &r);
    if (status == WEIR_OK)
        *block = (void *)(uintptr_t)r.block;
    else if (refused.status != WEIR_OK)
        note_failure(a, &r);
    return weir__ended(result_before, status);
}

/* On a stream that goes by its handle, of which the driver must be asked. */
static __attribute__((noinline)) weir_status alloc_checked(weir_allocator *a, struct weir_cache *c,
                                                           size_t bytes, weir_stream stream,
                                                           void **block) {
    struct weir_hits *h = weir__hits_of(a->caches);
    unsigned long long id = 0;
    CUdeviceptr found;
    int taken;

    if (__builtin_expect(!ask(h, stream, &id), 0))
        return alloc_missed(a, bytes, stream, block);
    taken = weir__bias_take(&c->lock);
    found = take(h, c, (uintptr_t)stream, id, bytes);
    if (__builtin_expect(!found, 0))
        return miss(a, c, taken, id, bytes, stream, block);
    weir__bias_give(&c->lock, taken);
    *block = (void *)(uintptr_t)found;
    return WEIR_OK;
}

/* A whole block on a lock that is biased to this thread. */
static __attribute__((noinline)) weir_status alloc_whole(weir_allocator *a, struct weir_cache *c,
                                                         size_t bytes, weir_stream stream,
                                                         void **block) {
    CUdeviceptr found;

    if (!enter_at_once(weir__hits_of(a->caches), c))
        return alloc_missed(a, bytes, stream, block);
    found = weir__cache_take_last(c, bytes);
    if (!found)
        found = weir__cache_take_whole(c, bytes);
    if (!found)
        return miss(a, c, 1, 0, bytes, stream, block);
    *block = (void *)(uintptr_t)leave_with(c, found);
    return WEIR_OK;
}

/* On a stream that does not go by its handle, with its cache and key. */
static inline __attribute__((always_inline)) weir_status
alloc_keyed(weir_allocator *a, struct weir_cache *c, uint64_t key, size_t bytes, weir_stream stream,
            void **block) {
    CUdeviceptr found = 0;

    if (!enter_at_once(weir__hits_of(a->caches), c))
        return alloc_missed(a, bytes, stream, block);
    if (is_its(c, key, 0)) {
        found = bytes > WEIR_SLAB_SMALL ? weir__cache_take_whole(c, bytes)
                                        : weir__cache_take_home(c, bytes);
        if (!found && bytes > WEIR_SLAB_SMALL)
            return miss(a, c, 1, key >> 1, bytes, stream, block);
    }
    found = leave_with(c, found);
    if (__builtin_expect(!found, 0))
        return alloc_missed(a, bytes, stream, block);
    *block = (void *)(uintptr_t)found;
    return WEIR_OK;
}

static __attribute__((noinline)) weir_status alloc_default(weir_allocator *a, size_t bytes,
                                                           weir_stream stream, void **block) {
    struct weir_cache *c;
    uint64_t key;

    if (!find_by_default(weir__hits_of(a->caches), stream, &c, &key))
        return alloc_missed(a, bytes, stream, block);
    return alloc_keyed(a, c, key, bytes, stream, block);
}

weir_status weir__alloc_default(weir_allocator *a, size_t bytes, weir_stream stream, uint64_t id,
                                void **block) {
    uint64_t key = key_of(stream, id);
    struct weir_cache *c;

    if (!is_plain(a, 0) || bytes - 1 >= a->device.total ||
        !weir__cache_table_find(&weir__hits_of(a->caches)->by_id, key, &c))
        return weir_alloc(a, bytes, stream, block);
    return alloc_keyed(a, c, key, bytes, stream, block);
}

/* A hit on a stream that goes by its handle and is vouched for, on a lock that is biased to this thread.  Nothing is
 * called but at the end, so that there is no frame to make. */
weir_status weir_alloc(weir_allocator *a, size_t bytes, weir_stream stream, void **block) {
    struct weir_cache *c;
    CUdeviceptr found;

    if (__builtin_expect(!is_plain(a, 0) || !block || bytes - 1 >= a->device.total, 0))
        return alloc_fully(a, bytes, stream, block);
    if (!find_by_handle(weir__hits_of(a->caches), stream, &c))
        return alloc_default(a, bytes, stream, block);
    if (!is_vouched_for(weir__hits_of(a->caches), c, stream))
        return alloc_checked(a, c, bytes, stream, block);
    if (bytes > WEIR_SLAB_SMALL)
        return alloc_whole(a, c, bytes, stream, block);
    if (!enter_at_once(weir__hits_of(a->caches), c))
        return alloc_missed(a, bytes, stream, block);
    found = leave_with(c, weir__cache_take_home(c, bytes));
    if (__builtin_expect(!found, 0))
        return alloc_missed(a, bytes, stream, block);
    *block = (void *)(uintptr_t)found;
    return WEIR_OK;
}

intptr_t weir_alloc_address(weir_allocator *a, size_t bytes, weir_stream stream) {
    void *block;
    weir_status status = weir_alloc(a, bytes, stream, &block);

    return status == WEIR_OK ? (intptr_t)block : (intptr_t)status;
}

/* ---- frees ------------------------------------------------------------------------------------- */

weir_status weir__allocator_take_back(void *allocator, CUdeviceptr block, weir_stream stream,
                                      struct weir_use_list *uses) {
    weir_allocator *a = allocator;
    struct weir_engine *e = a->reserve.engine;
    weir_status status;

    if (a->caches)
        return weir__caches_free_used(a->caches, block, stream, uses);
    status = e->ops->free(e, block, stream, uses);
    if (status == WEIR_OK)
        weir__striped_add(&a->counters.striped, WEIR_STRIPED_FREES);
    else
        weir__device_log_free(&a->device, block, status);
    return status;
}

static weir_status release(weir_allocator *a, CUdeviceptr block, weir_stream stream) {
    struct weir_use_list *uses = weir__uses_any(&a->uses) ? weir__uses_take(&a->uses, block) : NULL;
    int lent = weir__lend_context(a);
    weir_status status = a->harden ? weir__harden_free(a->harden, block, stream, uses)
                                   : weir__allocator_take_back(a, block, stream, uses);

    if (uses)
        weir__uses_settle(&a->uses, block, uses, status == WEIR_OK);
    weir__device_end_context(&a->device, lent);
    return status;
}

static __attribute__((noinline)) weir_status free_fully(weir_allocator *a, void *block,
                                                        weir_stream stream) {
    weir_status status = weir__gate(a);
    int result_before = weir__driver_result;
    uint64_t started;

    if (status != WEIR_OK || !block)
        return status;
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_SHARED)) {
        status = weir__exports_withdraw(a, (uintptr_t)block);
        if (status != WEIR_OK)
            return weir__misuse(a, status, "a free of a block that another process has");
    }
    started = a->counters.latency ? a->device.driver->ticks() : 0;
    status = release(a, (uintptr_t)block, stream);
    if (a->counters.latency)
        note_latency(a, WEIR_OPERATION_FREE, started);
    return weir__ended(result_before, status);
}

weir_status weir__free_default(weir_allocator *a, void *block, weir_stream stream, uint64_t id) {
    if (is_plain(a, WEIR_SLOW_PATH_OOM))
        return weir__caches_free_default(a->caches, (uintptr_t)block, stream, id);
    return free_fully(a, block, stream);
}

weir_status weir_free(weir_allocator *a, void *block, weir_stream stream) {
    if (is_plain(a, WEIR_SLOW_PATH_OOM) && block)
        return weir__caches_free(a->caches, (uintptr_t)block, stream);
    return free_fully(a, block, stream);
}
