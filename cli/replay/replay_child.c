/* SPDX-License-Identifier: MIT */
/* replay_child.c: the child that replays one tape on one configuration and tells what it took.
 *
 * What: everything that can be made beforehand is: streams, the pointer array, the iterations' room.
 *
 * There are several kinds of child.  One times each operation as a span of its own: it knows latencies, and notices what
 * single calls did.  But two fenced reads of the clock, and the books kept of them, cost as much as a short call, and take
 * the caches and the overlap that the next one would have had.  The other kind times allocations and frees of an iteration
 * as one stretch; its iterations are all that it tells.  A third kind, only where it is requested, notes memory after each
 * operation (samples.h), and a child with a timeline what happened when: both look at the allocator, which takes time, so
 * they tell no latencies.  A trial tells only whether every request is served, and ends at the first that is not.
 */
#include "cli/common/group.h"
#include "cli/replay/replay_child.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/timeline.h"
#include "base/histogram.h"
#include "base/size.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/common/runner.h"
#include "cli/common/span.h"
#include "cli/replay/busy.h"
#include "cli/replay/configuration.h"
#include "cli/replay/pending.h"
#include "cli/replay/samples.h"
#include "cli/replay/tape.h"
#include "cli/report/summary.h"
#include "driver/model/model.h"

int child_fail(struct replay *replay, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(replay->error, sizeof replay->error, format, arguments);
    va_end(arguments);
    return 0;
}

int child_check(struct replay *replay, const char *call, CUresult result) {
    return result == CUDA_SUCCESS ||
           child_fail(replay, "%s failed: %s", call,
                      weir__driver_error_name(replay->session.driver, result));
}

static int open_device(struct replay *replay, struct weir_cli_settings *settings) {
    struct session *session = &replay->session;

    if (weir_cli_device_open(settings, &replay->device, 1) != 0)
        return 0; /* it has said why */
    session->driver = group_driver(replay->device.driver, replay->device.ordinal);
    if (!session->driver)
        return 0; /* it has said why */
    /* Stretches on a device are times alone; what a modelled call takes is known by their number. */
    session->counted = replay->stretches && !session->driver->charge
                           ? session->driver
                           : weir__driver_counted(session->driver);
    if (!session->counted)
        return child_fail(replay, "driver calls cannot be counted");
    return child_check(replay, "cuDeviceGet",
                       session->driver->cuDeviceGet(&session->device, replay->device.ordinal));
}

/* The device's memory, its context made current, streams and the event. */
static int prepare_device(struct replay *replay) {
    struct session *session = &replay->session;
    const struct weir_driver *driver = session->driver;
    size_t total = 0, unused, count = replay->tape.header->streams;

    if (!child_check(replay, "cuDeviceTotalMem",
                     driver->cuDeviceTotalMem(&total, session->device)) ||
        !child_check(replay, "cuDevicePrimaryCtxRetain",
                     driver->cuDevicePrimaryCtxRetain(&replay->context, session->device)) ||
        !child_check(replay, "cuCtxPushCurrent", driver->cuCtxPushCurrent(replay->context)) ||
        !child_check(replay, "cuEventCreate",
                     driver->cuEventCreate(&session->event, CU_EVENT_DISABLE_TIMING)))
        return 0;
    session->device_bytes = total;
    if (!child_check(replay, "cuMemGetInfo", driver->cuMemGetInfo(&session->device_free, &unused)))
        return 0;
    replay->streams = calloc(count ? count : 1, sizeof *replay->streams);
    if (!replay->streams)
        return child_fail(replay, "out of host memory");
    for (size_t i = 0; i < count; i++)
        if (!child_check(replay, "cuStreamCreate",
                         driver->cuStreamCreate(&replay->streams[i], CU_STREAM_NON_BLOCKING)))
            return 0;
    return child_check(replay, "cuCtxSynchronize", driver->cuCtxSynchronize());
}

/* Before anything is measured: a kernel takes device memory and time when it is loaded. */
static int prepare_work(struct replay *replay) {
    char why[RUNNER_MESSAGE_BYTES - 16];

    if (replay->busy_factor <= 0)
        return 1;
    replay->busy = busy_open(replay->session.driver, replay->busy_factor, replay->streams,
                             replay->tape.header->streams, why, sizeof why);
    return replay->busy != NULL || child_fail(replay, "--busy: %s", why);
}

static int prepare_memory(struct replay *replay) {
    const struct tape_header *header = replay->tape.header;

    replay->session.blocks = header->blocks;
    replay->session.live_peak_bytes = header->live_peak_bytes;
    replay->addresses = calloc(header->blocks ? header->blocks : 1, sizeof *replay->addresses);
    replay->iterations = calloc(header->marks ? header->marks : 1, sizeof *replay->iterations);
    replay->bare_ns = calloc(header->marks ? header->marks : 1, sizeof *replay->bare_ns);
    return (replay->addresses && replay->iterations && replay->bare_ns) ||
           child_fail(replay, "out of host memory");
}

static int open_configuration(struct replay *replay) {
    struct span_start start;

    weir__driver_counts(replay->counts);
    span_begin(&replay->clock, &start);
    replay->allocator = replay->configuration->open(&replay->session, replay->configuration);
    span_end(&replay->clock, &start, &replay->open);
    if (!replay->allocator)
        return child_fail(replay, "%s", replay->session.message);
    replay->configuration->figures(replay->allocator, &replay->opened);
    replay->before = replay->opened;
    return 1;
}

static int close_configuration(struct replay *replay) {
    return replay->configuration->close(replay->allocator) ||
           child_fail(replay, "%s", replay->session.message);
}

/* Gives back what prepare_device took; what fails here has no cure and no consequence. */
static void release_device(struct replay *replay) {
    const struct weir_driver *driver = replay->session.driver;
    CUcontext popped;

    pending_close(replay->pending);
    busy_close(replay->busy);
    for (uint64_t i = 0; replay->streams && i < replay->tape.header->streams; i++)
        if (replay->streams[i])
            driver->cuStreamDestroy(replay->streams[i]);
    if (replay->session.event)
        driver->cuEventDestroy(replay->session.event);
    if (replay->context) {
        driver->cuCtxPopCurrent(&popped);
        driver->cuDevicePrimaryCtxRelease(replay->session.device);
    }
}

/* Blocks that the trace leaves live; belongs to no figure. */
static int free_rest(struct replay *replay) {
    for (uint64_t i = 0; i < replay->tape.header->blocks; i++) {
        void *address = replay->addresses[i];

        if (address && replay->configuration->free(replay->allocator, (uint32_t)i, address,
                                                   replay->streams[0]) != WEIR_OK)
            return child_fail(replay, "a block that the trace leaves live cannot be freed");
        replay->addresses[i] = NULL;
    }
    return child_check(replay, "cuCtxSynchronize", replay->session.driver->cuCtxSynchronize());
}

/* For tests, which name a file that gets each call as a line, or none.  Nobody else pays for it: though the model leaves
 * it out of all times, it takes caches. */
static int start_sequence(struct replay *replay) {
    const char *path = getenv("WEIR_TEST_SEQUENCE");

    if (!path || !replay->session.driver->charge)
        return 1;
    if (*path && !(replay->lines = fopen(path, "ae")))
        return child_fail(replay, "%s: %s", path, strerror(errno));
    if (replay->lines)
        fprintf(replay->lines, "# %s %s%s\n", replay->tape.header->name,
                replay->configuration->name, replay->busy_factor > 0 ? " busy" : "");
    weir__model_sequence_start(replay->lines);
    return 1;
}

static json_t *measure_operations(struct replay *replay) {
    uint64_t calls[WEIR_ENTRY_COUNT];
    json_t *result;

    if (replay->busy && !(replay->pending = pending_open(replay->tape.header))) {
        child_fail(replay, "out of host memory");
        return NULL;
    }
    if (!start_sequence(replay) || !open_configuration(replay) ||
        !child_play(replay, child_do_operation))
        return NULL;
    weir__driver_counts(calls);
    weir__model_sequence(&replay->sequence);
    replay->configuration->figures(replay->allocator, &replay->last);
    replay->peak_rss = child_peak_rss();
    result = child_result(replay, calls);
    if (!result)
        child_fail(replay, "out of host memory");
    return result;
}

static json_t *measure_samples(struct replay *replay) {
    json_t *samples = NULL;

    if (!open_configuration(replay))
        return NULL;
    replay->configuration->watch(replay->allocator, &replay->before);
    replay->samples = samples_open(&replay->tape, &replay->before);
    replay->before = replay->opened;
    if (!replay->samples)
        child_fail(replay, "out of host memory");
    else if (child_play(replay, child_do_and_sample)) {
        samples = samples_json(replay->samples);
        if (!samples)
            child_fail(replay, "out of host memory");
    }
    samples_close(replay->samples);
    replay->samples = NULL;
    return samples ? json_pack("{s:o}", "samples", samples) : NULL;
}

static json_t *measure_stretches(struct replay *replay) {
    json_t *result;

    if (!child_play_bare(replay) || !open_configuration(replay) ||
        !child_play_stretches(replay, child_do_operation))
        return NULL;
    child_take_bare_off(replay);
    result = json_pack("{s:o, s:I}", "iterations", child_iterations(replay), "failed",
                       (json_int_t)replay->failed);
    if (!result)
        child_fail(replay, "out of host memory");
    else if (replay->verdict)
        json_object_set_new(result, "oom_report", replay->verdict);
    return result;
}

static json_t *measure_timeline(struct replay *replay) {
    json_t *result = NULL;
    int good;

    replay->timeline = weir__timeline_open();
    replay->began_ticks = replay->session.driver->ticks();
    if (!replay->timeline) {
        child_fail(replay, "out of host memory");
        return NULL;
    }
    good = open_configuration(replay);
    if (good) {
        child_look(replay);
        good = child_play(replay, child_do_and_look);
    }
    if (good && !(result = child_timeline(replay)))
        child_fail(replay, "out of host memory");
    weir__timeline_close(replay->timeline);
    return result;
}

/* A limit below the peak requested memory may be refused as one that makes no sense. */
static int is_failure(const struct session *session) {
    return session->refused || (session->limit && session->limit < session->live_peak_bytes);
}

static json_t *measure_trial(struct replay *replay) {
    struct session *session = &replay->session;
    struct figures *last = &replay->last;

    if (open_configuration(replay)) {
        if (!child_play_stretches(replay, child_do_operation) && !replay->refused)
            return NULL;
        replay->configuration->figures(replay->allocator, last);
    } else if (!is_failure(session)) {
        return NULL;
    } else {
        replay->refused = 1;
    }
    return json_pack("{s:b,s:o,s:o,s:o,s:o}", "served", !replay->refused, "requests",
                     jsonfile_integer(replay->allocs), "reserved_peak_bytes",
                     child_integer_or_null(last->has_reserve, last->reserve_peak), "device_bytes",
                     jsonfile_integer(session->device_bytes), "device_taken_bytes",
                     child_taken(session));
}

/* Opens, plays, tells.  The result, or NULL with replay->error. */
static json_t *replay_all(struct replay *replay) {
    json_t *result;

    if (!prepare_memory(replay) || !prepare_device(replay) || !prepare_work(replay) ||
        !child_check(
            replay, "cuCtxGetCurrent",
            span_clock_make(&replay->clock, replay->session.driver, replay->session.counted)))
        return NULL;
    result = replay->trial             ? measure_trial(replay)
             : replay->stretches       ? measure_stretches(replay)
             : replay->sampled         ? measure_samples(replay)
             : replay->timeline_number ? measure_timeline(replay)
                                       : measure_operations(replay);
    if (result && replay->allocator && (!free_rest(replay) || !close_configuration(replay))) {
        json_decref(result);
        result = NULL;
    }
    return result;
}

/* A C library that knows of one thread only leaves out locked instructions, which flatters. */
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;

static void *idle(void *unused) {
    pthread_mutex_lock(&idle_lock);
    pthread_mutex_unlock(&idle_lock);
    return unused;
}

static json_t *replay_beside_idle_thread(struct replay *replay) {
    pthread_t thread;
    json_t *result;
    int started;

    pthread_mutex_lock(&idle_lock);
    started = pthread_create(&thread, NULL, idle, NULL) == 0;
    result = replay_all(replay);
    release_device(replay);
    pthread_mutex_unlock(&idle_lock);
    if (started)
        pthread_join(thread, NULL);
    return result;
}

/* What configurations lack here, by their names. */
static json_t *lacks_json(const struct weir_driver *driver, CUdevice device, int limited) {
    json_t *out = json_object();

    for (const struct configuration *c = configurations; c->name; c++) {
        const char *lacks = configuration_lacks(c, driver, device, limited);

        if (lacks)
            json_object_set_new(out, c->name, json_string(lacks));
    }
    return out;
}

static json_t *device_json(const struct weir_cli_settings *settings,
                           const struct weir_cli_device *device, const struct job *job) {
    CUdevice handle = 0;

    if (device->driver->cuDeviceGet(&handle, device->ordinal) != CUDA_SUCCESS)
        return json_pack("{s:s}", "error", "cuDeviceGet failed");
    return json_pack("{s:s,s:s,s:b,s:i,s:o}", "device", device->name, "spec",
                     settings->options.device ? settings->options.device : "", "modelled",
                     device->driver->charge != NULL, "driver_version", device->driver->version,
                     "lacks", lacks_json(device->driver, handle, job->trial));
}

/* Only to see which device it will be, and that it can do what is wanted. */
static int look_at_device(struct weir_cli_settings *settings, const struct job *job) {
    struct weir_cli_device device;
    const char *lacks;

    memset(&device, 0, sizeof device);
    if (weir_cli_device_open(settings, &device, 0) != 0 ||
        !group_driver(device.driver, device.ordinal))
        goto failed; /* it has said why */
    lacks = job->busy_factor > 0 ? busy_lacks(device.driver) : NULL;
    if (lacks) {
        fprintf(stderr, "weir: --busy needs %s, which the driver of %s lacks\n", lacks,
                device.name);
        goto failed;
    }
    return !result_send(device_json(settings, &device, job));

failed:
    result_send(json_pack("{s:s}", "error", ""));
    return 1;
}

int weir_cmd_replay_child(int argc, char **argv) {
    static struct replay replay;
    static struct job job;
    struct weir_cli_settings settings;
    json_t *result = NULL;

    (void)argc;
    (void)argv;
    if (!job_read(&job)) {
        fputs("weir: " RUNNER_SUBCOMMAND " is started by weir replay and weir bench alone\n",
              stderr);
        return 2;
    }
    weir_cli_settings_init(&settings);
    settings.options = job.options;
    settings.sources.of[WEIR_SETTING_DEVICE] = job.device_source[0] ? job.device_source : NULL;
    if (!job.configuration[0])
        return look_at_device(&settings, &job);
    replay.configuration = configuration_find(job.configuration);
    replay.session.given = &settings.options;
    replay.session.limit = job.limit;
    replay.session.forgets = job.forgets;
    replay.session.threshold = job.has_threshold ? &job.threshold : NULL;
    replay.stretches = job.stretches;
    replay.sampled = job.samples;
    replay.buckets = job.buckets;
    replay.trial = job.trial;
    replay.timeline_number = job.timeline;
    replay.busy_factor = job.busy_factor;
    replay.pace = job.pace;
    if (!replay.configuration || !tape_map(CHILD_TAPE_FD, &replay.tape)) {
        result_send(json_pack("{s:s}", "error", "the child cannot read its job"));
        return 1;
    }
    if (open_device(&replay, &settings))
        result = replay_beside_idle_thread(&replay);
    if (!result)
        result_send(json_pack("{s:s}", "error", replay.error));
    else if (!result_send(result))
        return 1;
    else
        result = json_true();
    free(replay.streams);
    free(replay.addresses);
    free(replay.iterations);
    free(replay.bare_ns);
    tape_unmap(&replay.tape);
    return result ? 0 : 1;
}
