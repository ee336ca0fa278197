/* SPDX-License-Identifier: MIT */
/* create.c: creates and destroys allocators. */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weir/weir.h>

#include "api/create.h"
#include "api/drop_in.h"
#include "api/oom_reporting.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"
#include "config/settings.h"
#include "ipc/group_process.h"

#define MAPPED_PAGE ((size_t)2 << 20) /* the granularity of mapped memory, in bytes */

const char *weir_version(void) {
    return PACKAGE_VERSION;
}

/* ---- failures ---------------------------------------------------------------------------------- */

/* Writes the reason of a failure to the caller's buffer, or to the log if there is no buffer. */
static void report_reason(const struct weir_message *message, int log, const char *text) {
    if (message && message->bytes > 0)
        snprintf(message->text, message->bytes, "%s", text);
    else
        weir__log(log, WEIR_LOG_ERROR, "%s", text);
}

weir_status weir__create_cannot(const weir_allocator *a, weir_status status, const char *format,
                                ...) {
    char text[WEIR_GROUP_SHOWN + 80];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    report_reason(a->creation ? &a->creation->message : NULL, a->options.log, text);
    return status;
}

/* Reports that a driver call has failed during the creation.  Returns the status for the driver's result. */
static weir_status report_driver_failure(weir_allocator *a, const char *what, CUresult result) {
    weir_status status = weir__device_status(&a->device, result);

    return weir__create_cannot(a, status, "%s: the driver answered %s", what,
                               weir__driver_error_name(a->device.driver, result));
}

const char *weir__create_failure_reason(const weir_allocator *a, weir_status status, char *text,
                                        size_t bytes) {
    if (weir__driver_result == CUDA_SUCCESS || status == WEIR_E_NO_MEMORY)
        return weir_status_message(status);
    snprintf(text, bytes, "%s: the driver answered %s", weir_status_message(status),
             weir__driver_error_name(a->device.driver, (CUresult)weir__driver_result));
    return text;
}

static weir_status find_own_device(weir_allocator *a) {
    const struct weir_driver *driver = a->device.driver;
    int count = 0, pools = 0, maps = 0, wants_map = a->options.engine == WEIR_ENGINE_MAPPED;
    int ordinal = a->creation->ordinal;
    CUresult result = driver->cuDeviceGetCount(&count);

    if (result != CUDA_SUCCESS)
        return report_driver_failure(a, "cannot count the devices", result);
    if (ordinal >= count)
        return weir__create_cannot(a, weir__without_driver(WEIR_E_NO_DEVICE),
                                   "device '%s': there %s %d device%s, numbered from 0",
                                   a->options.device, count == 1 ? "is" : "are", count,
                                   count == 1 ? "" : "s");
    result = driver->cuDeviceGet(&a->device.ordinal, ordinal);
    if (result == CUDA_SUCCESS)
        result = driver->cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
                                              a->device.ordinal);
    if (result == CUDA_SUCCESS && wants_map && (driver->capabilities & WEIR_CAP_VIRTUAL))
        result = driver->cuDeviceGetAttribute(
            &maps, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, a->device.ordinal);
    if (result != CUDA_SUCCESS)
        return report_driver_failure(a, "cannot ask the device", result);
    if (wants_map && !maps)
        return weir__create_cannot(
            a, weir__without_driver(WEIR_E_NOT_SUPPORTED),
            "device '%s' cannot map memory: choose engine pool, bfc or direct", a->options.device);
    if (!pools && a->options.engine == WEIR_ENGINE_POOL)
        return weir__create_cannot(
            a, weir__without_driver(WEIR_E_NO_DEVICE),
            "device '%s' has no memory pools: choose engine mapped, bfc or direct",
            a->options.device);
    return WEIR_OK;
}

static weir_status join_group(weir_allocator *a) {
    char why[WEIR_GROUP_WHY];

    if (weir__group_enter(a->device.driver, a->device.ordinal, why) || !why[0])
        return WEIR_OK;
    return weir__create_cannot(a, weir__without_driver(WEIR_E_INVALID), "%s", why);
}

/* Returns E_LIMIT with a message if the process group's limit is too low for a context, else OK. */
static weir_status group_refuses(weir_allocator *a) {
    struct weir_group *g = weir__group_of(a->device.driver, a->device.ordinal);
    char text[WEIR_GROUP_SHOWN];

    if (!g || weir__group_room(g) >= WEIR_GROUP_CONTEXT_BYTES)
        return WEIR_OK;
    weir__group_describe(g, text);
    return weir__create_cannot(a, weir__without_driver(WEIR_E_LIMIT),
                               "no room for the device's context (an estimate of 528MiB): %s",
                               text);
}

/* Retains the device's primary context.  If memory is short, asks other processes to free some and retries. */
static weir_status open_context(weir_allocator *a) {
    struct weir_admission admission = {0};
    weir_status status;
    CUresult result;
    char why[WEIR_PROCESS_PEERS_SHOWN + 80];

    do
        result = a->device.driver->cuDevicePrimaryCtxRetain(&a->device.context, a->device.ordinal);
    while (result == CUDA_ERROR_OUT_OF_MEMORY &&
           weir__allocator_ask_for_context(a->reserve.events.peers, &admission));
    if (result == CUDA_SUCCESS)
        return WEIR_OK;
    status = result == CUDA_ERROR_OUT_OF_MEMORY ? group_refuses(a) : WEIR_OK;
    if (status != WEIR_OK)
        return status;
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !a->reserve.events.peers)
        return report_driver_failure(a, "cannot open the device's context", result);
    status = weir__device_status(&a->device, result);
    weir__allocator_write_context_users(a->reserve.events.peers, why, sizeof why);
    return weir__create_cannot(a, status,
                               "cannot open the device's context: the driver answered %s; %s",
                               weir__driver_error_name(a->device.driver, result), why);
}

weir_status weir__read_memory(weir_allocator *a, struct weir_device_memory *memory) {
    size_t free_bytes = 0, total = 0;
    CUresult result = WEIR_IN_SCOPE(a->device.driver, a->device.context,
                                    a->device.driver->cuMemGetInfo(&free_bytes, &total));

    if (result != CUDA_SUCCESS)
        return report_driver_failure(a, "cannot read the device's memory", result);
    *memory = (struct weir_device_memory){.total = total, .free = free_bytes};
    return WEIR_OK;
}

weir_status weir__preallocate(weir_allocator *a, char *text, size_t text_bytes) {
    weir_status status;

    /* Pauses background growth, so that its memory is not counted as preallocated. */
    weir__goal_pause_ahead(&a->reserve);
    status = weir__goal_preallocate(&a->reserve, text, text_bytes);
    weir__goal_resume_ahead(&a->reserve);
    return status;
}

/* Starts a thread that reserves memory in the background, if the option grow_ahead is set. */
static void start_grow_ahead(weir_allocator *a) {
    struct weir_engine *e = a->reserve.engine;

    if (e->step_bytes == 0 || a->low == 0)
        return;
    e->traits |= WEIR_ENGINE_GROWS_AHEAD;
    if (weir__goal_start_ahead(&a->reserve, a->low) == WEIR_OK)
        return;
    e->traits &= ~(unsigned)WEIR_ENGINE_GROWS_AHEAD;
    weir__log(a->options.log, WEIR_LOG_WARNING,
              "nothing is done in the background: the host has no memory, or no thread");
}

/* Preallocates memory.  If only the profile of earlier runs requests the memory, a failure is only logged. */
static weir_status preallocate_now(weir_allocator *a, char *text, size_t text_bytes) {
    weir_status status = weir__preallocate(a, text, text_bytes);
    char why[160];

    if (status != WEIR_OK && status != WEIR_E_DEVICE_LOST && a->prealloc_min == 0 &&
        a->profile_asked > 0) {
        weir__log(a->options.log, WEIR_LOG_WARNING, "preallocation is left out: %s",
                  weir__create_failure_reason(a, status, why, sizeof why));
        status = WEIR_OK;
    }
    return status;
}

/* Raises the preallocation to the memory that earlier runs needed, unless the program has set prealloc. */
static void apply_profile(weir_allocator *a) {
    const weir_options *given = &a->creation->given;
    weir_options its = a->options;
    uint64_t target;

    /* If the user has set no log level, weir warns about an invalid profile file. */
    if (!weir__option_is_set(given, WEIR_SETTING_LOG))
        its.log = WEIR_LOG_WARNING;
    a->run_profile = weir__run_profile_open(a->device.driver, a->device.ordinal, &its);
    /* Uses the path in run_profile, since the caller may free the text of options.profile. */
    a->options.profile = a->run_profile ? a->run_profile->path : NULL;
    if (!a->run_profile || weir__option_is_set(given, WEIR_SETTING_PREALLOC))
        return;
    target = weir__run_profile_target(a);
    if (target <= a->prealloc)
        return;
    a->profile_asked = a->prealloc = target;
    a->options.prealloc = (weir_amount){.value = target, .kind = WEIR_AMOUNT_BYTES};
    if (a->threshold < a->prealloc)
        a->threshold = a->prealloc;
}

const char *weir__unknown_reserve_reason(const weir_allocator *a) {
    if (a->options.engine == WEIR_ENGINE_DIRECT)
        return "engine direct reserves no memory";
    if (a->options.engine == WEIR_ENGINE_POOL &&
        !(a->device.driver->capabilities & WEIR_CAP_POOL_FIGURES))
        return "the driver (before 11.3) does not report what its pool has reserved";
    return NULL;
}

const char *weir__no_release_reason(const weir_allocator *a) {
    return a->options.engine == WEIR_ENGINE_BFC_FIXED ? "engine bfc-fixed keeps its size"
                                                      : weir__unknown_reserve_reason(a);
}

static void set_goal(weir_allocator *a) {
    const weir_options *o = &a->options;
    int stays = weir__no_release_reason(a) != NULL, off = stays || o->decay_ms == UINT64_MAX;
    int in_requests = o->engine == WEIR_ENGINE_POOL || o->engine == WEIR_ENGINE_MAPPED;

    weir__goal_open(&a->reserve.goal, off ? 0 : o->decay_ms * UINT64_C(1000000),
                    a->threshold < a->device.total ? a->threshold : 0, in_requests && !stays,
                    a->low > 0 ? a->high : 0);
    a->reserve.goal.has_threshold =
        a->threshold < a->device.total &&
        (o->engine == WEIR_ENGINE_MAPPED || o->engine == WEIR_ENGINE_BFC);
}

static weir_status open_engine(weir_allocator *a) {
    struct weir_limit *limit = &a->reserve.limit;
    struct weir_engine setup = {.device = &a->device,
                                .options = &a->options,
                                .events = &a->reserve.events,
                                .limit = &limit->bytes,
                                .graphs = &a->reserve.graphs,
                                .threshold = a->threshold,
                                .seen.low = UINT64_MAX};
    weir_status status;

    if (a->options.engine == WEIR_ENGINE_POOL && limit->bytes != UINT64_MAX)
        limit->bytes = weir__size_round_down((size_t)limit->bytes, WEIR_POOL_UNIT);
    switch (a->options.engine) {
    case WEIR_ENGINE_POOL:
        status = weir__pool_open(&setup, &a->reserve.engine);
        break;
    case WEIR_ENGINE_DIRECT:
        status = weir__direct_open(&setup, &a->reserve.engine);
        break;
    case WEIR_ENGINE_MAPPED:
        status = weir__mapped_open(&setup, &a->reserve.engine);
        break;
    default:
        status = weir__bfc_open(&setup, &a->reserve.engine);
    }
    return status;
}

static void close_parts(weir_allocator *a) {
    weir__goal_close(&a->reserve);
    weir__run_profile_close(a->run_profile);
    weir__harden_close(a->harden);
    weir__caches_close(a->caches);
    a->reserve.engine->ops->close(a->reserve.engine);
}

/* Creates all parts that need the device's context.  On failure closes these parts, but leaves the context open. */
static weir_status create_parts(weir_allocator *a) {
    weir_status status = weir__apply_settings(a);
    char why[160] = "";
    int at_create, result;

    if (status != WEIR_OK)
        return status;
    weir__size_fixed_region(a);
    apply_profile(a);
    set_goal(a);
    status = open_engine(a);
    if (status != WEIR_OK) {
        weir__run_profile_close(a->run_profile);
        return weir__create_cannot(a, status, "cannot open the engine: %s",
                                   weir__create_failure_reason(a, status, why, sizeof why));
    }
    weir__limit_begin(&a->reserve, a->reserve.limit.bytes);
    if (a->options.cache == WEIR_SWITCH_ON)
        status = weir__caches_open(&a->reserve, &a->caches);
    if (status == WEIR_OK && a->options.harden != WEIR_HARDEN_OFF)
        status = weir__harden_open(
            &a->device, &a->options,
            &(struct weir_harden_below){.alloc = weir__allocator_alloc_below_guard,
                                        .free = weir__allocator_free_below_guard,
                                        .context = a,
                                        .graphs = &a->reserve.graphs},
            &a->harden);
    if (a->caches || a->harden)
        a->reserve.flush = weir__flush;
    a->reserve.flush_context = a;
    a->reserve.goal.prealloc_target = a->prealloc;
    a->reserve.goal.prealloc_least = a->prealloc_min;
    at_create = a->prealloc > 0 && !a->preallocates_later;
    if (a->prealloc > 0 && !at_create)
        (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_PREALLOC, 1);
    if (status == WEIR_OK && at_create)
        status = preallocate_now(a, why, sizeof why);
    if (status == WEIR_OK)
        start_grow_ahead(a);
    if (!a->caches || a->counters.latency || a->harden)
        (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_ALWAYS, 1);
    if (a->options.oom_callback)
        (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_OOM, 1);
    if (status == WEIR_OK)
        return WEIR_OK;
    result = weir__driver_result;
    close_parts(a);
    weir__set_driver_result(result);
    return weir__create_cannot(a, status, "cannot start: %s",
                               why[0] ? why
                                      : weir__create_failure_reason(a, status, why, sizeof why));
}

/* Reads the program's options and replaces defaults by their values.  `options` may be NULL. */
static weir_status read_creation_options(struct weir_creation *c, const weir_options *options) {
    char why[320];
    weir_status status = weir__options_complete(options, &c->completed, why, sizeof why);

    if (status == WEIR_OK)
        status =
            weir__device_parse(c->completed.device, &c->driver_name, &c->ordinal, why, sizeof why);
    if (status != WEIR_OK) {
        report_reason(&c->message, weir__options_log(options), why);
        return weir__without_driver(status);
    }
    weir_options_init(&c->given);
    return options ? weir__options_copy_in(options, &c->given, NULL, 0) : WEIR_OK;
}

static weir_allocator *allocate_struct(const struct weir_creation *c) {
    weir_allocator *a = aligned_alloc(_Alignof(weir_allocator), sizeof *a);

    if (!a)
        return NULL;
    memset(a, 0, sizeof *a);
    a->creation = c;
    a->options = c->completed;
    a->device.driver = c->driver;
    a->reserve.device = &a->device;
    a->reserve.options = &a->options;
    a->reserve.events.counters = &a->counters;
    a->reserve.events.grew = &a->reserve.goal.decay.grew;
    a->reserve.lend_device = weir__release_local_peers;
    a->reserve.lend_context = a;
    atomic_init(&a->device.log, WEIR_LOG_NONE);
    /* Caches distinguish streams by their ids, which drivers before 12.0 do not have. */
    if (a->options.cache == WEIR_SWITCH_ON && !(c->driver->capabilities & WEIR_CAP_STREAM_ID)) {
        a->options.cache = WEIR_SWITCH_OFF;
        weir__log(a->options.log, WEIR_LOG_WARNING,
                  "the driver has no stream ids (before 12.0): per-stream caches are off");
    }
    return a;
}

weir_status weir__allocator_check_on(const struct weir_driver *driver, const weir_options *options,
                                     uint64_t *prealloc, char *message, size_t message_bytes) {
    struct weir_creation c = {.driver = driver, .message = {message, message_bytes}};
    weir_status status = read_creation_options(&c, options);
    weir_allocator *a;

    if (status != WEIR_OK)
        return status;
    a = allocate_struct(&c);
    if (!a)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    status = find_own_device(a);
    if (status == WEIR_OK)
        status = open_context(a);
    if (status == WEIR_OK) {
        int result;

        status = weir__apply_settings(a);
        result = weir__driver_result;
        driver->cuDevicePrimaryCtxRelease(a->device.ordinal);
        weir__set_driver_result(result);
    }
    if (status == WEIR_OK)
        *prealloc = a->prealloc;
    free(a);
    return status;
}

/* Warns once in the process, even without a log level, if weir cannot write OOM reports to options.oom_report. */
static void warn_of_oom_report(const weir_options *o, const weir_options *given) {
    int problem = weir__oom_report_problem(o->oom_report), is_new = 1;
    char line[1024];

    if (!problem)
        return;
    snprintf(line, sizeof line,
             "oom-report '%s': %s; expected stderr, off or a file that can be written: OOM reports "
             "go to standard error until then",
             o->oom_report, strerror(problem));
    (void)weir__text_intern(line, &is_new);
    if (is_new)
        weir__log(weir__option_is_set(given, WEIR_SETTING_LOG) ? o->log : WEIR_LOG_WARNING,
                  WEIR_LOG_WARNING, "%s", line);
}

/* Creates an allocator.  The options in c->completed name the engine. */
static weir_status create_with_engine(const struct weir_creation *c, weir_allocator **allocator) {
    static _Atomic uint64_t made; /* the number of allocators that this process has created */
    weir_status status;
    int result_before = weir__driver_result;
    struct timespec now;
    weir_allocator *a = allocate_struct(c);

    if (!a)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    a->number = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed) + 1;
    clock_gettime(CLOCK_REALTIME, &now);
    a->run_id = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    atomic_fetch_add_explicit(&weir__device_age, 1, memory_order_relaxed);
    a->device.created_ticks = c->driver->ticks();
    a->device.decompresses = (c->how & WEIR_CREATE_DECOMPRESSES) != 0;
    a->preallocates_later =
        (c->how & WEIR_CREATE_PREALLOCATES_LATER) || weir__framework_prealloc(&a->options);
    /* Keeps a copy, since the caller may free the text of options.oom_report. */
    if (weir__oom_report_is_wanted(a->options.oom_report))
        a->options.oom_report = weir__text_intern(a->options.oom_report, NULL);
    if (!a->options.oom_report) {
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
        goto free_allocator;
    }
    warn_of_oom_report(&a->options, &c->given);
    if (!weir__counters_open(&a->counters, a->options.latency == WEIR_SWITCH_ON)) {
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
        goto free_allocator;
    }
    status = find_own_device(a);
    if (status != WEIR_OK)
        goto close_counters;
    /* Joins the registry before open_context(), which may ask other processes for memory. */
    weir__join_process_peers(a);
    status = join_group(a);
    if (status == WEIR_OK)
        status = open_context(a);
    if (status != WEIR_OK)
        goto leave_peers;
    status = create_parts(a);
    if (status != WEIR_OK)
        goto release_context;
    a->uses.paths = &a->device.slow_path;
    pthread_mutex_init(&a->first_request, NULL);
    a->local_peer.driver = c->driver;
    a->local_peer.device = a->device.ordinal;
    a->local_peer.owner = a;
    atomic_store_explicit(&a->device.log, a->options.log, memory_order_relaxed);
    a->creation = NULL;
    /* From here on, other allocators may ask this allocator for idle memory. */
    weir__local_peers_join(&a->local_peer);
    *allocator = a;
    return weir__end_call(result_before, WEIR_OK);

release_context:
    c->driver->cuDevicePrimaryCtxRelease(a->device.ordinal);
leave_peers:
    weir__leave_peers(a);
close_counters:
    weir__counters_close(&a->counters);
free_allocator:
    free(a);
    return status;
}

/* ---- choice of engine -------------------------------------------------------------------------- */

/* Returns 1 if the device supports virtual memory management (cuMemMap), which engine mapped needs, else 0. */
static int can_map(const struct weir_driver *driver, CUdevice device) {
    int can = 0;

    return (driver->capabilities & WEIR_CAP_VIRTUAL) &&
           driver->cuDeviceGetAttribute(&can,
                                        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                        device) == CUDA_SUCCESS &&
           can;
}

/* Tries an allocation to find out whether the device allows hardware decompression, since no device attribute tells.
 * Also returns CUDA_SUCCESS if the device has no free memory. */
static CUresult try_kind(const struct weir_driver *driver, CUdevice device) {
    CUmemAllocationProp kind;
    CUmemGenericAllocationHandle handle;
    CUresult result = weir__device_mapped_kind(driver, device, 1, &kind);

    if (result == CUDA_SUCCESS)
        result = driver->cuMemCreate(&handle, MAPPED_PAGE, &kind, 0);
    if (result == CUDA_SUCCESS)
        (void)driver->cuMemRelease(handle);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

/* A bit for each device on which engine mapped has no addresses left.  Each device reset leaves addresses reserved. */
static _Atomic uint64_t full;

static uint64_t ordinal_bit(CUdevice device) {
    return UINT64_C(1) << (unsigned)device % 64;
}

static int maps_for(const struct weir_driver *driver, CUdevice device,
                    const weir_options *options) {
    return options->engine == WEIR_ENGINE_DEFAULT &&
           !(atomic_load_explicit(&full, memory_order_relaxed) & ordinal_bit(device)) &&
           can_map(driver, device);
}

void weir__default_engine_fill(const struct weir_driver *driver, CUdevice device,
                               weir_options *options) {
    if (maps_for(driver, device, options))
        options->engine = WEIR_ENGINE_MAPPED;
}

/* Creates an allocator with the options' engine, or with engine pool if the device does not support the default. */
static weir_status create_by_choice(struct weir_creation *c, weir_allocator **allocator) {
    int is_named = c->given.engine == WEIR_ENGINE_MAPPED;
    int is_chosen = maps_for(c->driver, c->ordinal, &c->given);
    CUresult result = (c->how & WEIR_CREATE_DECOMPRESSES) &&
                              (is_chosen || (is_named && can_map(c->driver, c->ordinal)))
                          ? try_kind(c->driver, c->ordinal)
                          : CUDA_SUCCESS;
    const struct weir_message message = c->message;
    int result_before = weir__driver_result;
    weir_status why, status;
    /* A buffer for the reason of a failure, if the caller passed none. */
    char text[320] = "";

    if (message.bytes > 0)
        message.text[0] = '\0';
    if (is_named && result != CUDA_SUCCESS) {
        weir__set_driver_result((int)result);
        return WEIR_E_NOT_SUPPORTED;
    }
    if (!is_chosen || result != CUDA_SUCCESS)
        return create_with_engine(c, allocator);
    if (message.bytes == 0)
        c->message = (struct weir_message){text, sizeof text};
    /* Changes only the engine, since engines pool and mapped have equal defaults for all other options. */
    c->completed.engine = WEIR_ENGINE_MAPPED;
    why = create_with_engine(c, allocator);
    c->message = message;
    /* Tries engine pool only if a driver call has failed with the status E_NOT_SUPPORTED or E_NO_MEMORY. */
    if ((why != WEIR_E_NOT_SUPPORTED && why != WEIR_E_NO_MEMORY) ||
        weir__driver_result == CUDA_SUCCESS) {
        if (why != WEIR_OK && text[0])
            report_reason(NULL, c->completed.log, text);
        return why;
    }
    if (message.bytes > 0)
        message.text[0] = '\0';
    weir__set_driver_result(result_before);
    c->completed.engine = WEIR_ENGINE_POOL;
    status = create_with_engine(c, allocator);
    /* Engine mapped lacked addresses, not memory, since engine pool works.  Later allocators use engine pool. */
    if (status == WEIR_OK && why == WEIR_E_NO_MEMORY)
        atomic_fetch_or_explicit(&full, ordinal_bit(c->ordinal), memory_order_relaxed);
    return status;
}

/* Creates an allocator with the driver table `driver`.  `options` may be NULL, and is not checked yet. */
static weir_status create_on_driver(const struct weir_driver *driver, const weir_options *options,
                                    unsigned how, weir_allocator **allocator, char *message,
                                    size_t message_bytes) {
    struct weir_creation c = {.driver = driver, .how = how, .message = {message, message_bytes}};
    weir_status status;

    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    status = read_creation_options(&c, options);
    return status == WEIR_OK ? create_by_choice(&c, allocator) : status;
}

weir_status weir__allocator_create_on(const struct weir_driver *driver, const weir_options *options,
                                      weir_allocator **allocator, char *message,
                                      size_t message_bytes) {
    return create_on_driver(driver, options, 0, allocator, message, message_bytes);
}

weir_status weir__allocator_create_later(const struct weir_driver *driver,
                                         const weir_options *options, weir_allocator **allocator,
                                         char *message, size_t message_bytes) {
    return create_on_driver(driver, options, WEIR_CREATE_PREALLOCATES_LATER, allocator, message,
                            message_bytes);
}

weir_status weir__allocator_create(const weir_options *options, unsigned how,
                                   weir_allocator **allocator) {
    struct weir_creation c = {.how = how};
    struct weir_group_settings group;
    struct weir_driver_failure failure;
    weir_status status;
    char why[320];

    if (!allocator) {
        report_reason(NULL, weir__options_log(options), "weir_allocator_create: allocator is NULL");
        return weir__without_driver(WEIR_E_INVALID);
    }
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    status = read_creation_options(&c, options);
    if (status != WEIR_OK)
        return status;
    if (weir__group_settings(&group, why, sizeof why) < 0) {
        report_reason(NULL, c.completed.log, why);
        return weir__without_driver(WEIR_E_PARSE);
    }
    c.driver = weir__group_driver(weir__driver_open(c.driver_name, &failure));
    if (!c.driver) {
        report_reason(NULL, c.completed.log, failure.text);
        return weir__without_driver(WEIR_E_NO_DEVICE);
    }
    return create_by_choice(&c, allocator);
}

weir_status weir_allocator_create(const weir_options *options, weir_allocator **allocator) {
    weir_status status = weir__allocator_create(options, 0, allocator);

    if (status == WEIR_OK && options)
        (*allocator)->has_own_limit = weir__option_is_set(options, WEIR_SETTING_LIMIT);
    return status;
}

__attribute__((noinline, cold)) weir_status weir__allocator_misuse(const weir_allocator *a,
                                                                   weir_status status,
                                                                   const char *what,
                                                                   const char *why) {
    if (a)
        weir__log(a->options.log, WEIR_LOG_ERROR, "%s: %s", what, why);
    return weir__without_driver(status);
}

weir_status weir__misuse(const weir_allocator *a, weir_status status, const char *what) {
    return weir__allocator_misuse(a, status, what, weir_status_message(status));
}

static int has_live_blocks(const weir_allocator *a) {
    if (a->harden && weir__harden_empty(a->harden, 1) != WEIR_OK)
        return 1;
    return a->caches ? weir__drop_in_has_blocks(a) : weir__engine_has_blocks(a->reserve.engine);
}

/* Returns 1 if the allocator can be destroyed, since no GPU work uses its memory; else 0.  May wait for the device. */
static int is_free_of_work(weir_allocator *a) {
    struct weir_engine *e = a->reserve.engine;
    weir_status status;

    if (!(e->traits & WEIR_ENGINE_RELEASES_ASYNC) && weir__engine_reclaim(e, NULL) == 0)
        return 1;
    status = weir__device_status(&a->device, weir__device_wait(&a->device));
    return status == WEIR_E_DEVICE_LOST ||
           (status == WEIR_OK && weir__engine_reclaim(e, NULL) == 0);
}

weir_status weir_allocator_destroy(weir_allocator *a) {
    int result_before = weir__driver_result, lost, live, busy;

    if (!a)
        return WEIR_OK;
    if (weir__driver_forked())
        return weir__misuse(a, WEIR_E_FORKED, "destroy");
    lost = weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST);
    weir__goal_pause_ahead(&a->reserve);
    live = !lost && has_live_blocks(a);
    busy = live || (!lost && !is_free_of_work(a));
    weir__goal_resume_ahead(&a->reserve);
    if (busy)
        return weir__allocator_misuse(
            a, WEIR_E_BUSY, "weir_allocator_destroy",
            live ? "live blocks remain; free them first"
                 : "frees wait for the end of a stream capture, or the wait "
                   "for the device failed; call again");
    weir__local_peers_leave(&a->local_peer);
    if (!lost && a->run_profile)
        (void)weir__run_profile_save(a, NULL); /* a failure is already logged */
    close_parts(a);
    weir__streamless_close(a);
    weir__leave_peers(a);
    weir__device_free_wait_block(&a->device);
    weir__set_driver_result(result_before);
    a->device.driver->cuDevicePrimaryCtxRelease(a->device.ordinal);
    weir__map_clear(&a->reserve.graphs.map);
    weir__uses_close(&a->uses);
    weir__counters_close(&a->counters);
    pthread_mutex_destroy(&a->first_request);
    free(a);
    return WEIR_OK;
}
