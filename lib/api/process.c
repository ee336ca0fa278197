/* SPDX-License-Identifier: MIT */
/* process.c: the allocators that all plug-ins (weir/cuda.h, libweir-adapters.so, a program's libraries) share, one on
 * each device, with the environment's settings.  weir never destroys such an allocator. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/allocator_internal.h"
#include "api/drop_in.h"
#include "base/log.h"
#include "base/output.h"
#include "base/result.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/who.h"
#include "config/settings.h"
#include "ipc/group_process.h"

/* SAVE_S is the time limit in seconds for saving profiles at exit, because the driver or the disk may be slow. */
enum { MOST_DEVICES = 64, SAVE_S = 5, LINE_BYTES = 900 };

/* The device that the environment selects, and its driver table. */
struct place {
    const struct weir_driver *driver;
    int device;
    int count; /* the number of devices that the driver reports */
};

weir_allocator *(*weir__drop_in_serves)(int device);
void (*weir__drop_in_refused)(weir_allocator *allocator, size_t bytes);

/* Held while weir creates an allocator, which takes long if the driver has to start first. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place the_place; /* written before `made` becomes 1, and not changed afterwards */
static weir_options settings;  /* written before `made` becomes 1, and not changed afterwards */
static struct weir_sources sources; /* the source of each value in `settings`; guarded by `lock` */
static _Atomic(weir_allocator *) allocators[MOST_DEVICES]; /* published by a release store */
static _Atomic(weir_allocator *) the_first; /* the only allocator while `made` is 1 */
static atomic_int made; /* the number of allocators in `allocators` */

/* Takes `lock`.  A child of fork() never waits for `lock`, because weir refuses all calls in the child. */
static void lock_process(void) {
    (void)weir__driver_begin_use();
    pthread_mutex_lock(&lock);
}

static void unlock_process(void) {
    pthread_mutex_unlock(&lock);
    weir__driver_end_use();
}

/* Returns the device's allocator if it has a profile to save and its context is usable; else NULL. */
static weir_allocator *find_profiled_allocator(int device) {
    weir_allocator *a = atomic_load_explicit(&allocators[device], memory_order_acquire);

    return a && a->run_profile && !weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST)
               ? a
               : NULL;
}

static void save_all(void *unused) {
    (void)unused;
    for (int device = 0; device < MOST_DEVICES; device++)
        if (find_profiled_allocator(device))
            (void)weir__run_profile_save(find_profiled_allocator(device), NULL);
}

/* Saves the profiles at exit.  weir registers this function after opening the driver, so the driver is still loaded. */
static void save_at_exit(void) {
    if (!weir__driver_forked() && !weir__thread_in_time(save_all, NULL, SAVE_S))
        weir__log(settings.log, WEIR_LOG_WARNING,
                  "the driver, a lock or the disk kept a profile from being saved within %d s: the "
                  "process ends without it",
                  SAVE_S);
}

static void log_reason_once(weir_status status, int log, const char *why) {
    int is_new = 1;

    (void)weir__text_intern(status == WEIR_E_PARSE ? why : weir_status_message(status), &is_new);
    if (is_new)
        weir__log(log == WEIR_LOG_DEFAULT ? WEIR_LOG_ERROR : log, WEIR_LOG_ERROR, "%s", why);
}

static weir_status without_driver(weir_status status, int log, const char *why) {
    weir__set_driver_result(CUDA_SUCCESS);
    log_reason_once(status, log, why);
    return status;
}

/* Logs why weir could not create an allocator on a device, and which settings the environment contains. */
static void log_failed_creation(weir_status status, const weir_options *options, const char *device,
                                const char *why) {
    char text[LINE_BYTES], value[WEIR_SHOW_BYTES];
    struct weir_output out = {.text = text, .bytes = sizeof text};
    int any = 0;

    weir__put(&out, "%s has no allocator: %.640s", device,
              *why ? why : weir_status_message(status));
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        if (!sources.of[i] || i == WEIR_SETTING_LOG)
            continue;
        weir__option_show(options, (enum weir_setting)i, value, sizeof value);
        weir__put(&out, "%s %s '%.200s'", any++ ? "," : "; set are", sources.of[i], value);
    }
    log_reason_once(status, options->log, text);
}

/* Switches off options that reserve memory if the engine is pool and libweir-preload.so is loaded.  The library serves
 * the driver calls of engine pool and follows the settings itself.  If this allocator preallocated, too, the library's
 * preallocation would wait 10 s for the lock that this one holds. */
static void defer_to_preload(weir_options *options) {
    if ((options->engine != WEIR_ENGINE_DEFAULT && options->engine != WEIR_ENGINE_POOL) ||
        !weir__process_has_preload())
        return;
    weir__log(options->log, WEIR_LOG_INFO,
              "libweir-preload.so is in this process: its allocator decides on reserved memory and "
              "the limit");
    sources = (struct weir_sources){.of = {NULL}};
    options->engine = WEIR_ENGINE_POOL;
    options->prealloc = (weir_amount){.value = 0, .kind = WEIR_AMOUNT_BYTES};
    options->prealloc_min = options->limit = options->grow_ahead =
        (weir_amount){0, WEIR_AMOUNT_DEFAULT};
    options->growth = WEIR_GROWTH_EXACT;
    options->profile = NULL;
    options->decay_ms = 0;
}

/* Reads the options for the first allocator from the environment.  The caller holds `lock`. */
static weir_status read_first_env(weir_options *options, struct place *place) {
    struct weir_driver_failure failure;
    char message[320];
    const char *name;
    weir_status status;

    weir_options_init(options);
    sources = (struct weir_sources){.of = {NULL}};
    status = weir__drop_in_options(options, &sources, message, sizeof message);
    if (status == WEIR_OK)
        status =
            weir__device_parse(options->device, &name, &place->device, message, sizeof message);
    if (status != WEIR_OK)
        return without_driver(status, WEIR_LOG_ERROR, message);
    defer_to_preload(options);
    place->driver = weir__group_driver(weir__driver_open(name, &failure));
    if (!place->driver)
        return without_driver(WEIR_E_NO_DEVICE, options->log, failure.text);
    if (place->driver->cuDeviceGetCount(&place->count) != CUDA_SUCCESS)
        place->count = 0;
    return WEIR_OK;
}

static weir_status read_place(weir_options *options, struct place *place) {
    if (atomic_load_explicit(&made, memory_order_relaxed) == 0)
        return read_first_env(options, place);
    *options = settings;
    *place = the_place;
    return WEIR_OK;
}

/* Publishes an allocator.  Other threads read `settings`, `the_place` and `the_first` without `lock`, but only after
 * they have seen that the counter `made` is not 0.  The caller holds `lock`. */
static void publish_allocator(weir_allocator *a, const weir_options *options,
                              const struct place *place) {
    if (atomic_load_explicit(&made, memory_order_relaxed) == 0) {
        settings = *options;
        the_place = *place;
        atomic_store_explicit(&the_first, a, memory_order_relaxed);
        if (a->run_profile)
            (void)atexit(save_at_exit);
    }
    atomic_fetch_add_explicit(&made, 1, memory_order_release);
}

/* Creates the device's allocator unless it exists.  A `device` of -1 means the device that the environment selects. */
static __attribute__((noinline, cold)) weir_status
create_device_allocator(int device, weir_allocator **allocator) {
    static char names[MOST_DEVICES][32];
    struct place place = {NULL, 0, 0};
    weir_options options;
    weir_allocator *a = NULL;
    weir_status status;
    char why[641];

    lock_process();
    status = read_place(&options, &place);
    if (status != WEIR_OK)
        goto done;
    device = device < 0 ? place.device : device;
    if (device >= MOST_DEVICES) {
        status = without_driver(WEIR_E_NO_DEVICE, options.log, "weir serves 64 devices at most");
        goto done;
    }
    a = atomic_load_explicit(&allocators[device], memory_order_relaxed);
    /* unreached: another thread has just created the allocator */
    if (!a) {
        weir_options its = options;

        snprintf(names[device], sizeof names[device], "%s:%d", place.driver->name, device);
        its.device = names[device];
        status = weir__allocator_create_later(place.driver, &its, &a, why, sizeof why);
        if (status != WEIR_OK) {
            log_failed_creation(status, &options, names[device], why);
            goto done;
        }
        a->logs_prealloc_failure = options.log == WEIR_LOG_DEFAULT;
        atomic_store_explicit(&allocators[device], a, memory_order_release);
        publish_allocator(a, &options, &place);
    }
    *allocator = a;

done:
    unlock_process();
    return status;
}

static weir_status find_or_create_allocator(int device, weir_allocator **allocator) {
    weir_allocator *a = atomic_load_explicit(&allocators[device], memory_order_acquire);

    if (!a)
        return create_device_allocator(device, allocator);
    *allocator = a;
    return WEIR_OK;
}

weir_status weir_default_allocator(weir_allocator **allocator) {
    weir_status status = weir__call_check(allocator != NULL);

    if (status != WEIR_OK)
        return status;
    if (atomic_load_explicit(&made, memory_order_acquire) == 0 || the_place.device >= MOST_DEVICES)
        return create_device_allocator(-1, allocator);
    return find_or_create_allocator(the_place.device, allocator);
}

weir_status weir_device_allocator(int device, weir_allocator **allocator) {
    weir_status status = weir__call_check(allocator != NULL);
    weir_allocator *serves;

    if (status != WEIR_OK)
        return status;
    if (device < 0)
        return weir__without_driver(WEIR_E_INVALID);
    if (device >= MOST_DEVICES)
        return weir__without_driver(WEIR_E_NO_DEVICE);
    serves = weir__drop_in_serves ? weir__drop_in_serves(device) : NULL;
    if (serves) {
        *allocator = serves;
        return WEIR_OK;
    }
    return find_or_create_allocator(device, allocator);
}

/* ---- devices of streams ------------------------------------------------------------------------------ */

static weir_status stream_failure(CUresult result) {
    weir__set_driver_result((int)result);
    return result == CUDA_ERROR_INVALID_HANDLE ? WEIR_E_STREAM : WEIR_E_DRIVER;
}

/* Finds the device of a default stream.  Without a current context, this is the device of weir's setting `device`. */
static weir_status device_of_thread(const struct place *place, int *device) {
    CUdevice current;
    CUresult result = place->driver->cuCtxGetDevice(&current);

    if (result == CUDA_SUCCESS)
        *device = current;
    else if (result == CUDA_ERROR_INVALID_CONTEXT)
        *device = place->device;
    else
        return stream_failure(result);
    return WEIR_OK;
}

/* Finds a stream's device without creating an allocator, whose context would need hundreds of MB on its device. */
static weir_status stream_device(const struct place *place, weir_stream stream, int *device) {
    const struct weir_driver *driver = place->driver;
    CUcontext context = NULL;
    CUresult result;

    if ((uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE)
        return device_of_thread(place, device);
    result = driver->cuStreamGetCtx(stream, &context);
    if (result != CUDA_SUCCESS)
        return stream_failure(result);
    /* unreached: no model has more than MOST_DEVICES devices */
    for (int i = 0; i < MOST_DEVICES && i < place->count; i++) {
        weir_allocator *a = atomic_load_explicit(&allocators[i], memory_order_acquire);

        if (a && a->device.context == context) {
            *device = i;
            return WEIR_OK;
        }
    }
    result = WEIR_IN_SCOPE(driver, context, driver->cuCtxGetDevice(device));
    return result == CUDA_SUCCESS ? WEIR_OK : stream_failure(result);
}

static __attribute__((noinline)) weir_status find_for_stream(weir_stream stream,
                                                             weir_allocator **allocator) {
    struct place place = {NULL, 0, 0};
    weir_options options;
    weir_status status = WEIR_OK;
    int device = 0;

    if (atomic_load_explicit(&made, memory_order_acquire) > 0) {
        place = the_place;
    } else {
        lock_process();
        status = read_place(&options, &place);
        unlock_process();
    }
    if (status == WEIR_OK && place.count > 1)
        status = stream_device(&place, stream, &device);
    return status == WEIR_OK ? weir_device_allocator(device, allocator) : status;
}

weir_status weir_stream_allocator(weir_stream stream, weir_allocator **allocator) {
    weir_status status = weir__call_check(allocator != NULL);

    if (status != WEIR_OK)
        return status;
    /* If there is only one device, all streams belong to it, and no query of the stream is needed. */
    if (atomic_load_explicit(&made, memory_order_acquire) > 0 && the_place.count == 1) {
        *allocator = atomic_load_explicit(&allocators[0], memory_order_acquire);
        return WEIR_OK;
    }
    return find_for_stream(stream, allocator);
}

/* ---- allocators of blocks ---------------------------------------------------------------------------- */

static __attribute__((noinline)) weir_status block_owner(const void *block,
                                                         weir_allocator **allocator) {
    weir_status answer = WEIR_E_NOT_OWNED;

    for (int device = 0; device < MOST_DEVICES; device++) {
        weir_allocator *a = atomic_load_explicit(&allocators[device], memory_order_acquire);
        weir_status status = a ? weir_block_range(a, block, NULL, NULL) : WEIR_E_NOT_OWNED;

        if (status == WEIR_OK) {
            *allocator = a;
            return WEIR_OK;
        }
        if (status != WEIR_E_NOT_OWNED)
            answer = status;
    }
    return weir__without_driver(answer);
}

weir_status weir_block_allocator(const void *block, weir_allocator **allocator) {
    weir_status status = weir__call_check(allocator != NULL);

    if (status != WEIR_OK)
        return status;
    if (!block)
        return weir__without_driver(WEIR_E_INVALID);
    if (atomic_load_explicit(&made, memory_order_acquire) != 1)
        return block_owner(block, allocator);
    *allocator = atomic_load_explicit(&the_first, memory_order_acquire);
    return WEIR_OK;
}
