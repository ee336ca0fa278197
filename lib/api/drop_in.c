/* SPDX-License-Identifier: MIT */
/* drop_in.c: functions for an allocator that replaces the driver's memory pools in an unmodified program. */
#include "api/drop_in.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "api/allocator_internal.h"
#include "api/create.h"
#include "base/log.h"
#include "base/result.h"
#include "base/text.h"
#include "base/variable.h"
#include "config/settings.h"
#include "ipc/group_process.h"

void weir__drop_in_begin(weir_allocator *a, int (*watches)(weir_stream stream)) {
    a->device.drop_in = 1;
    atomic_store_explicit(&a->device.watches, watches, memory_order_relaxed);
}

void weir__drop_in_query_all(weir_allocator *a) {
    atomic_store_explicit(&a->device.watches, NULL, memory_order_relaxed);
    if (a->caches)
        weir__caches_unwatch(a->caches);
}

void weir__drop_in_stop_logs(weir_allocator *a) {
    a->logs_no_failures = 1;
}

/* Changes the driver's pool, too, because the pool engine leaves the reuse of memory to the driver. */
void weir__drop_in_forbid_opportunistic(weir_allocator *a, int on) {
    CUmemoryPool pool = a->reserve.engine->driver_pool;
    int may = !on;

    atomic_store_explicit(&a->device.forbids_opportunistic, on, memory_order_relaxed);
    if (pool)
        (void)a->device.driver->cuMemPoolSetAttribute(
            pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &may);
}

weir_status weir__drop_in_options(weir_options *options, struct weir_sources *sources,
                                  char *message, size_t message_bytes) {
    return weir__without_driver(
        weir__options_from_env(options, sources, WEIR_PLACE_UNMODIFIED, 1, message, message_bytes));
}

weir_status weir__drop_in_create(const weir_options *options, int decompresses,
                                 weir_allocator **allocator) {
    unsigned how =
        WEIR_CREATE_PREALLOCATES_LATER | (decompresses ? (unsigned)WEIR_CREATE_DECOMPRESSES : 0);

    return weir__allocator_create(options, how, allocator);
}

void weir__drop_in_mark_lost(weir_allocator *a) {
    (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_LOST, 1);
}

int weir__drop_in_knows_blocks(const weir_allocator *a) {
    const struct weir_engine *e = a->reserve.engine;

    return a->caches != NULL || !e->driver_pool;
}

int weir__drop_in_may_contain(const weir_allocator *a, uint64_t address) {
    return !a->caches || weir__engine_may_contain(a->reserve.engine, address);
}

int weir__drop_in_contains(const weir_allocator *a, uint64_t address) {
    struct weir_engine *e = a->reserve.engine;
    struct weir_extent found;

    if (!(e->traits & WEIR_ENGINE_SUBALLOCATES))
        return a->caches ? weir__caches_has_address(a->caches, address)
                         : weir__engine_find(e, WEIR_VISIT_BLOCK_AT, address, &found) == 1;
    return weir__engine_may_contain(e, address) &&
           weir__engine_find(e, WEIR_VISIT_REGION_AT, address, &found) == 1;
}

int weir__drop_in_keeps_addresses(const weir_allocator *a) {
    return a->options.engine == WEIR_ENGINE_MAPPED;
}

static int is_usable(const weir_allocator *a) {
    return !weir__driver_forked() && !weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST);
}

weir_status weir__drop_in_free_completed(weir_allocator *a, void *block) {
    if (a->caches && !a->harden && is_usable(a))
        return weir__caches_free_done(a->caches, (uintptr_t)block);
    return weir_free(a, block, (weir_stream)(uintptr_t)WEIR_STREAM_LEGACY_VALUE);
}

weir_status weir__drop_in_free_after(weir_allocator *a, void *block, weir_stream stream,
                                     weir_stream apart) {
    const struct weir_driver *driver = a->device.driver;
    weir_status status = WEIR_E_STREAM;
    CUcontext context, popped;
    CUevent event;

    if (driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || !context ||
        driver->cuCtxPushCurrent(context) != CUDA_SUCCESS)
        return status;
    if (driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
        if (driver->cuEventRecord(event, stream) == CUDA_SUCCESS &&
            driver->cuStreamWaitEvent(apart, event, 0) == CUDA_SUCCESS)
            status = weir_free(a, block, apart);
        (void)driver->cuEventDestroy(event);
    }
    (void)driver->cuCtxPopCurrent(&popped);
    return status;
}

void weir__drop_in_stream_begins(weir_allocator *a, weir_stream stream) {
    if (a->caches && is_usable(a))
        weir__caches_stream_created(a->caches, stream);
}

/* Returns 1 if the allocator can release memory to the device only after a wait for the device, else 0. */
static int releases_after_waits(const weir_allocator *a) {
    return a->harden != NULL || !(a->reserve.engine->traits & WEIR_ENGINE_RELEASES_ASYNC);
}

/* Returns 1 if `stream` is this thread's default stream, never used with weir.  A query would create the stream. */
static int is_unused(const weir_allocator *a, weir_stream stream) {
    const struct weir_default_ids *known =
        &weir__default_ids[(unsigned)a->device.ordinal % WEIR_DEFAULT_IDS];

    return (uintptr_t)stream == WEIR_STREAM_PER_THREAD_VALUE && a->caches &&
           (known->context != a->device.context || known->id[1] == 0);
}

static void observe_stream(weir_allocator *a, weir_stream stream) {
    uint64_t id = 0;

    if (a->caches)
        weir__caches_flush_stream(a->caches, stream, 0);
    else if (weir__device_stream_id(&a->device, stream, &id) == CUDA_SUCCESS)
        weir__engine_publish(a->reserve.engine, stream, id);
}

void weir__drop_in_stream_ends(weir_allocator *a, weir_stream stream) {
    int before = weir__driver_result;

    if (!is_usable(a))
        return;
    if (a->caches)
        weir__caches_flush_stream(a->caches, stream, 1);
    else
        /* Queries the stream now, because the program will destroy it. */
        observe_stream(a, stream);
    weir__set_driver_result(before);
}

int weir__drop_in_is_idle(weir_allocator *a, weir_stream stream) {
    const struct weir_driver *driver = a->device.driver;
    struct weir_driver_scope scope;
    int before = weir__driver_result, is_idle;

    if (!is_usable(a) || weir__driver_enter(driver, a->device.context, &scope) != CUDA_SUCCESS)
        return 0;
    is_idle = weir__device_capture(&a->device, stream) == WEIR_OK &&
              weir__device_is_idle(&a->device, stream);
    weir__driver_leave(driver, &scope);
    weir__set_driver_result(before);
    return is_idle;
}

static int is_busy(weir_allocator *a) {
    return weir__engine_publish(a->reserve.engine, NULL, 0) == WEIR_E_BUSY;
}

/* Observes which frees have completed.  Returns 1 if all streams are idle and the engine's lock is free, else 0. */
static int query_streams(weir_allocator *a, const weir_stream *streams, size_t count) {
    const weir_stream legacy = (weir_stream)(uintptr_t)WEIR_STREAM_LEGACY_VALUE;
    const weir_stream own = (weir_stream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
    /* set if other streams may reuse memory after a completed free */
    int marks = !releases_after_waits(a) &&
                !atomic_load_explicit(&a->device.forbids_opportunistic, memory_order_relaxed);
    int is_idle;

    for (size_t i = 0; marks && i < count; i++) {
        if (is_busy(a))
            return 0;
        observe_stream(a, streams[i]);
    }
    if (is_busy(a))
        return 0;
    if (marks && !is_unused(a, own))
        observe_stream(a, own);
    is_idle = weir__device_is_idle(&a->device, legacy) && weir__device_is_idle(&a->device, own);
    for (size_t i = 0; is_idle && i < count; i++)
        is_idle = weir__device_is_idle(&a->device, streams[i]);
    /* An event on the legacy stream would make blocking streams wait, so all streams must be idle. */
    if (is_idle && marks)
        observe_stream(a, legacy);
    return is_idle;
}

int weir__drop_in_are_idle(weir_allocator *a, const weir_stream *streams, size_t count) {
    const struct weir_driver *driver = a->device.driver;
    struct weir_driver_scope scope;
    int before = weir__driver_result, is_idle = 0;

    if (!is_usable(a) || is_busy(a) ||
        weir__driver_enter(driver, a->device.context, &scope) != CUDA_SUCCESS)
        return 0;
    if (a->caches)
        (void)weir__caches_complete_remotes(a->caches);
    is_idle = query_streams(a, streams, count);
    if (a->caches && !is_busy(a) && weir__caches_complete_remotes(a->caches))
        (void)query_streams(a, streams, count);
    weir__driver_leave(driver, &scope);
    weir__set_driver_result(before);
    /* Returns 0 if other threads have default streams, which this thread cannot query. */
    return is_idle && atomic_load_explicit(&weir__device_per_thread_ids, memory_order_relaxed) <=
                          weir__device_has_per_thread_id;
}

size_t weir__drop_in_reserve(const weir_allocator *a) {
    return weir__engine_reserve(a->reserve.engine);
}

void weir__drop_in_trim(weir_allocator *a, size_t keep, int is_idle) {
    struct weir_trim done = {.mode = WEIR_TRIM_COMPLETED, .keep = keep, .cause = WEIR_EVENT_TRIM};
    int before = weir__driver_result;

    if (!is_usable(a))
        return;
    /* weir__goal_lower() waits for the device.  The wait is short, because all streams are idle. */
    if (is_idle)
        (void)weir__goal_lower(&a->reserve, keep, WEIR_EVENT_TRIM, &done.released);
    else if (!releases_after_waits(a))
        (void)a->reserve.engine->ops->trim(a->reserve.engine, &done);
    weir__set_driver_result(before);
}

int weir__drop_in_knows_peak(const weir_allocator *a) {
    return a->caches && !a->harden;
}

int weir__drop_in_has_blocks(const weir_allocator *a) {
    weir_statistics figures = {.size = sizeof figures};

    weir__caches_figures(a->caches, &figures);
    return figures.requested > 0;
}

uint64_t weir__drop_in_peak(weir_allocator *a, int restarts) {
    return weir__caches_peak_lately(a->caches, restarts);
}

CUresult weir__drop_in_wait(weir_allocator *a) {
    return weir__device_wait(&a->device);
}

enum { MOST_DEVICES = 64 };

/* Adds this process to the shared registry permanently, so that weir remembers which other processes did not answer. */
static struct weir_process_peers *join_registry_once(const struct weir_driver *driver,
                                                     CUdevice device, int log) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct weir_process_peers *joined[MOST_DEVICES];
    static struct weir_claim nothing[MOST_DEVICES];
    struct weir_process_peers *n;

    pthread_mutex_lock(&lock);
    if (!joined[device])
        joined[device] = weir__allocator_enter_registry(driver, device, &nothing[device], log);
    n = joined[device];
    pthread_mutex_unlock(&lock);
    return n;
}

/* Logs, once for each device, that there is no memory for a context, and which processes use the memory. */
static void log_no_room(struct weir_process_peers *n, CUdevice device, int log) {
    static atomic_int is_told[MOST_DEVICES];
    char why[WEIR_PROCESS_PEERS_SHOWN + 80];

    if (atomic_exchange(&is_told[device], 1))
        return;
    weir__allocator_write_context_users(n, why, sizeof why);
    weir__log(log, WEIR_LOG_ERROR, "device %d has no room for this program's context; %s", device,
              why);
}

int weir__drop_in_ask_for_context_on(const struct weir_driver *driver, CUdevice device,
                                     const weir_options *options,
                                     struct weir_admission *admission) {
    int log = options->log == WEIR_LOG_DEFAULT ? WEIR_LOG_WARNING : options->log, any;
    _Atomic uint64_t nothing_yet = 0;
    struct weir_process_peers *n;
    struct weir_claim claim;
    weir_options complete;

    if (device < 0 || device >= MOST_DEVICES ||
        weir__options_complete(options, &complete, NULL, 0) != WEIR_OK)
        return 0;
    n = complete.registry == WEIR_SWITCH_ON ? join_registry_once(driver, device, log) : NULL;
    if (!n)
        return 0;
    claim = weir__allocator_claim(&complete);
    /* One more process in the registry makes the shares of other processes smaller, so they release memory. */
    (void)weir__allocator_enter_registry(driver, device, &claim, log);
    any = weir__allocator_ask_for_context(n, admission);
    if (!any)
        log_no_room(n, device, log);
    weir__process_peers_leave(n, &claim, &nothing_yet);
    return any;
}

static const struct weir_driver *real_driver(void) {
    struct weir_driver_failure failure;

    return weir__group_driver(weir__driver_open("cuda", &failure));
}

/* Reads the user's options from the environment.  Returns 1 on success, 0 if a variable has a wrong value. */
static int read_user_options(weir_options *options) {
    char why[96];

    weir_options_init(options);
    return weir__drop_in_options(options, NULL, why, sizeof why) == WEIR_OK;
}

int weir__drop_in_ask_for_context(CUdevice device, struct weir_admission *admission) {
    const struct weir_driver *driver = real_driver();
    weir_options options;

    return driver && read_user_options(&options) &&
           weir__drop_in_ask_for_context_on(driver, device, &options, admission);
}

/* ---- requests that the driver serves ------------------------------------------------------------------ */

/* A request waits up to MEMORY_NS ns for other processes.  weir logs at most MOST_TOLD failures. */
#define MEMORY_NS UINT64_C(1000000000)
enum { MOST_TOLD = 8 };

static int log_level(void) {
    weir_options options;

    if (!read_user_options(&options) || options.log == WEIR_LOG_DEFAULT)
        return WEIR_LOG_WARNING;
    return options.log;
}

struct weir_group *weir__drop_in_group_of(CUdevice device) {
    static const struct weir_driver cuda = {.name = "cuda"};

    return weir__group_of(&cuda, device);
}

struct weir_group *weir__drop_in_group(CUdevice device, int *refused) {
    struct weir_group *g = weir__drop_in_group_of(device);
    const struct weir_driver *driver;
    char why[WEIR_GROUP_WHY] = "";
    int is_new = 0;

    *refused = 0;
    if (g || !weir__variable("WEIR_GROUP") || !(driver = real_driver()))
        return g;
    g = weir__group_enter(driver, device, why);
    *refused = !g && why[0];
    if (*refused && weir__text_intern(why, &is_new) && is_new)
        weir__log(log_level(), WEIR_LOG_ERROR, "%s: this process gets no memory of device %d", why,
                  device);
    return g;
}

/* Returns the shared registry, or NULL if it is off or cannot help with this request. */
static struct weir_process_peers *registry_for_request(CUdevice device, size_t bytes) {
    const struct weir_driver *driver = real_driver();
    weir_options options, complete;
    size_t total = 0;

    if (!driver || device < 0 || device >= MOST_DEVICES || !read_user_options(&options) ||
        weir__options_complete(&options, &complete, NULL, 0) != WEIR_OK ||
        complete.registry != WEIR_SWITCH_ON ||
        driver->cuDeviceTotalMem(&total, device) != CUDA_SUCCESS || bytes > total)
        return NULL;
    return join_registry_once(driver, device, log_level());
}

int weir__drop_in_ask_for_memory(CUdevice device, size_t bytes, uint64_t began) {
    struct weir_process_peers *n;
    struct weir_answers answers;

    if (weir__registry_now() - began >= MEMORY_NS || !(n = registry_for_request(device, bytes)))
        return 0;
    answers = weir__group_request_memory(
        n,
        (struct weir_memory_request){bytes, .began_ns = began, .deadline_ns = began + MEMORY_NS});
    if (answers.freed == 0 && answers.is_incomplete)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    return answers.freed > 0 || answers.is_incomplete;
}

void weir__drop_in_log_group(struct weir_group *group, CUdevice device, const char *call,
                             size_t bytes) {
    static atomic_int told;
    char text[WEIR_GROUP_SHOWN], *rest;
    int level = log_level();

    if (atomic_fetch_add(&told, 1) >= MOST_TOLD)
        return;
    weir__group_describe(group, text);
    weir__log(level, WEIR_LOG_ERROR,
              "out of memory: could not allocate %s on cuda:%d by %s: the limit of the process "
              "group forbids it",
              WEIR_SHOWN(bytes), device, call);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        weir__log(level, WEIR_LOG_ERROR, "%s", line);
}
