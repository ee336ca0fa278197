/* SPDX-License-Identifier: MIT */
/* child.c: the child process of a replay: replays one trace on one configuration, and sends the results to the
 * parent as one JSON object.
 *
 * The child replays the trace up to three times, each time on a new allocator:
 *   timed      All measured times come from this replay.  Operations in a row are timed as one stretch, since two
 *              reads of the clock take as long as a short call.  The time of the replay loop itself is measured
 *              and subtracted.
 *   observed   Reads the reserved memory after each operation.  Finds growths, trims and memory over time.
 *   shown      Writes the time line.  Runs only with --trace-events.
 *
 * If job.trial is set, the child makes only the timed replay, which ends at the first request that fails; the result is
 * only whether a request failed.  On the device model no count and no decision depends on real time.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/timeline.h"
#include "base/size.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/common/runner.h"
#include "cli/common/span.h"
#include "cli/replay/busy.h"
#include "cli/replay/result.h"
#include "cli/replay/binary_trace.h"
#include "driver/model/model.h"
#include "ipc/group_process.h"

enum play { PLAY_LOOP_ONLY, PLAY_TIMED, PLAY_OBSERVED, PLAY_INTO_TIMELINE };

/* The smallest and the largest reserved memory in a part of the trace, for the curve of memory over time. */
struct point {
    int any;
    uint64_t low, high;
};

struct replay {
    const struct job *job;
    struct session session;
    const struct configuration *configuration;
    const struct allocator_kind *kind; /* the configuration's kind, or one that does nothing */
    weir_options options; /* the options of the job, to which session.command_options points */
    struct weir_cli_device device;
    struct binary_trace trace;
    struct span_clock clock;
    CUcontext context;
    CUstream *streams;
    int modelled;
    int is_out_of_memory; /* set if a request failed because memory ran out */
    struct busy *busy;    /* NULL for a replay without GPU work */

    enum play play;
    void *allocator;
    void **addresses; /* the address of each block, or NULL if the block is not allocated */
    struct iteration *iterations;
    /* The time of the replay loop with an allocator that does nothing, for each iteration. */
    uint64_t *loop_ns;
    size_t iteration_count;
    struct iteration now; /* the figures of the current iteration so far */
    int in_stretch;
    struct span_start stretch;
    uint64_t longest_ns; /* the longest time between two reads of the clock */
    uint64_t allocs, frees, uses, failed;
    struct figures opened; /* the allocator's figures before the first request */
    struct figures before; /* the allocator's figures at the start of the current iteration */
    struct figures last;   /* the allocator's figures at the end of the replay */
    struct span creation;
    json_t *oom_report; /* the OOM report of the first request that failed, or NULL */

    struct point *points;
    struct weir_timeline *timeline; /* the events for --trace-events, or NULL in other replays */
    /* The start of the time line in ticks, and the start of the current iteration in nanoseconds after began_ticks. */
    uint64_t began_ticks, mark_ns;
    uint64_t requested; /* the sum of the sizes of all live blocks */

    struct weir_model_sequence sequence; /* a digest of all driver calls, for tests */
    FILE *lines;                         /* a file with a line for each of these calls, or NULL */
    char error[RUNNER_MESSAGE_BYTES];
};

/* Stores the reason why the replay failed in replay->error.  Returns 0. */
static __attribute__((format(printf, 2, 3))) int child_fail(struct replay *replay,
                                                            const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(replay->error, sizeof replay->error, format, arguments);
    va_end(arguments);
    return 0;
}

/* Returns 1 if the driver call succeeded.  Otherwise stores the error in replay->error and returns 0. */
static int child_check(struct replay *replay, const char *call, CUresult result) {
    return result == CUDA_SUCCESS ||
           child_fail(replay, "%s failed: %s", call,
                      weir__driver_error_name(replay->session.driver, result));
}

static int check_work(struct replay *replay, int good) {
    return good || child_fail(replay, "--busy: %s", busy_message(replay->busy));
}

/* ---- stretches ---- */

static void end_stretch(struct replay *replay) {
    struct span span = {0, 0, 0};

    if (!replay->in_stretch)
        return;
    span_end(&replay->clock, &replay->stretch, &span);
    replay->in_stretch = 0;
    replay->now.alloc_ns += span.ns;
    replay->now.driver_ns += span.driver_ns;
    if (span.ns > replay->longest_ns)
        replay->longest_ns = span.ns;
}

static inline void begin_stretch(struct replay *replay) {
    if (replay->in_stretch || replay->play > PLAY_TIMED)
        return;
    replay->in_stretch = 1;
    span_begin(&replay->clock, &replay->stretch);
}

/* ---- failures ---- */

/* Converts the driver's id of a stream to the trace's id.  Returns `id' if the trace has no such stream. */
static uint64_t trace_stream_id(const struct replay *replay, uint64_t id) {
    const struct weir_driver *driver = replay->session.driver;
    unsigned long long found;

    for (uint64_t i = 0; i < replay->trace.header->streams; i++)
        if (driver->cuStreamGetId(replay->streams[i], &found) == CUDA_SUCCESS && found == id)
            return replay->trace.stream_ids[i];
    return id;
}

static void rename_stream(const struct replay *replay, json_t *object) {
    const json_t *stream = json_object_get(object, "stream");

    if (json_is_integer(stream))
        json_object_set_new(
            object, "stream",
            jsonfile_integer(trace_stream_id(replay, (uint64_t)json_integer_value(stream))));
}

static json_t *text_with_trace_streams(const struct replay *replay, const char *from) {
    static const char word[] = "stream id ";
    char *text = NULL, *end;
    json_t *string = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    for (const char *at; file && (at = strstr(from, word)); from = end) {
        uint64_t id = strtoull(at + sizeof word - 1, &end, 10);

        fwrite(from, 1, (size_t)(at - from), file);
        fprintf(file, "stream %" PRIu64, trace_stream_id(replay, id));
    }
    if (file) {
        fputs(from, file);
        if (fclose(file) == 0)
            string = json_string(text);
    }
    free(text);
    return string;
}

/* Returns the OOM report of the last request that failed, with the stream ids of the trace. */
static json_t *oom_report_json(const struct replay *replay) {
    json_t *report = replay->kind->oom_report(replay->allocator), *one;
    const char *text = json_string_value(json_object_get(report, "text"));
    size_t i;

    rename_stream(replay, report);
    if (report) /* a trace does not contain which stream is the default stream */
        json_object_set_new(report, "default_stream", json_null());
    json_array_foreach(json_object_get(report, "pending_by"), i, one) rename_stream(replay, one);
    json_array_foreach(json_object_get(report, "groups"), i, one) rename_stream(replay, one);
    if (text)
        json_object_set_new(report, "text", text_with_trace_streams(replay, text));
    return report;
}

/* Counts a failed request.  Returns 1 to continue the replay, 0 to end it. */
static int check_failure(struct replay *replay, const struct trace_operation *op,
                         weir_status status) {
    replay->failed++;
    if (status != WEIR_E_NO_MEMORY && status != WEIR_E_LIMIT)
        return child_fail(replay, "allocation %" PRIu64 " of %" PRIu64 " bytes: %s", replay->allocs,
                          op->bytes, weir_status_message(status));
    replay->is_out_of_memory = 1;
    if (!replay->job->trial && replay->play == PLAY_TIMED && !replay->oom_report &&
        replay->kind->oom_report)
        replay->oom_report = oom_report_json(replay);
    return !replay->job->trial;
}

/* ---- operations ---- */

static int replay_alloc(struct replay *replay, const struct trace_operation *op) {
    void *address = NULL;
    weir_status status = replay->kind->alloc(replay->allocator, op->block, op->bytes,
                                             replay->streams[op->stream], &address);

    replay->allocs++;
    replay->addresses[op->block] = address;
    return status == WEIR_OK || check_failure(replay, op, status);
}

/* Replays a free or a use of a block.  Does nothing if the block has no memory, because its size is 0 or its request
 * failed. */
static int replay_free_or_use(struct replay *replay, const struct trace_operation *op) {
    int is_free = op->code == 'f';
    uint64_t *count = is_free ? &replay->frees : &replay->uses;
    void *address = replay->addresses[op->block];
    weir_status status;

    if (!address)
        return 1;
    if (is_free)
        replay->addresses[op->block] = NULL;
    status = (is_free ? replay->kind->free : replay->kind->use)(
        replay->allocator, op->block, address, replay->streams[op->stream]);
    ++*count;
    return status == WEIR_OK || child_fail(replay, "%s %" PRIu64 ": %s", is_free ? "free" : "use",
                                           *count, weir_status_message(status));
}

static int replay_wait(struct replay *replay, const struct trace_operation *op) {
    const struct weir_driver *driver = replay->session.driver;
    CUstream stream = replay->streams[op->stream], on_stream = replay->streams[op->block];

    if (replay->busy && !check_work(replay, busy_flush(replay->busy, op->stream) &&
                                                busy_flush(replay->busy, op->block)))
        return 0;
    return child_check(replay, "cuEventRecord",
                       driver->cuEventRecord(replay->session.event, on_stream)) &&
           child_check(replay, "cuStreamWaitEvent",
                       driver->cuStreamWaitEvent(stream, replay->session.event, 0));
}

static int synchronise(struct replay *replay) {
    if (replay->busy)
        return check_work(replay, busy_end(replay->busy, &replay->now.makespan_ns));
    return child_check(replay, "cuCtxSynchronize", replay->session.driver->cuCtxSynchronize());
}

/* Stores the figures of the iteration that ends: times (PLAY_TIMED) or memory (PLAY_OBSERVED). */
static void end_iteration(struct replay *replay) {
    struct iteration *it = &replay->iterations[replay->iteration_count];

    if (replay->play == PLAY_LOOP_ONLY) {
        replay->loop_ns[replay->iteration_count] = replay->now.alloc_ns;
    } else if (replay->play == PLAY_TIMED) {
        *it = replay->now;
    } else if (replay->play == PLAY_OBSERVED) {
        it->growths = replay->now.growths;
        it->trims = replay->now.trims;
        it->reserved_high = replay->now.reserved_high;
        it->reserved_end = replay->now.reserved_end;
    }
    replay->iteration_count++;
    memset(&replay->now, 0, sizeof replay->now);
}

static int replay_mark(struct replay *replay) {
    weir_status status = WEIR_OK;
    struct figures after;

    if (!synchronise(replay))
        return 0;
    if (replay->kind->trim)
        status = replay->kind->trim(replay->allocator);
    if (status != WEIR_OK)
        return child_fail(replay, "weir_decay: %s", weir_status_message(status));
    replay->kind->figures(replay->allocator, &after);
    replay->now.growths = after.growths - replay->before.growths;
    replay->now.trims = after.trims - replay->before.trims;
    replay->now.reserved_end = after.reserved;
    replay->before = after;
    end_iteration(replay);
    return !replay->busy || check_work(replay, busy_begin(replay->busy));
}

static int replay_operation(struct replay *replay, const struct trace_operation *op) {
    if (op->code == 'a' || op->code == 'f' || op->code == 'u') {
        begin_stretch(replay);
        return op->code == 'a' ? replay_alloc(replay, op) : replay_free_or_use(replay, op);
    }
    end_stretch(replay);
    if (replay->play > PLAY_LOOP_ONLY)
        return op->code == 'w' ? replay_wait(replay, op) : replay_mark(replay);
    if (op->code == 'm')
        end_iteration(replay);
    return 1;
}

/* ---- observed replay ---- */

static void observe_operation(struct replay *replay, uint64_t i) {
    uint64_t reserved = replay->kind->reserved(replay->allocator);
    struct point *point = &replay->points[i * RESULT_POINTS / replay->trace.header->ops];

    if (reserved > replay->now.reserved_high)
        replay->now.reserved_high = reserved;
    if (!point->any || reserved < point->low)
        point->low = reserved;
    if (!point->any || reserved > point->high)
        point->high = reserved;
    point->any = 1;
}

static uint64_t ticks_since_begin(const struct replay *replay) {
    const struct weir_driver *driver = replay->session.driver;

    return driver->ticks() - replay->began_ticks;
}

/* Adds the allocator's memory figures, and its new growths and trims, to the time line (--trace-events). */
static void child_add_to_timeline(struct replay *replay) {
    struct figures figures;
    uint64_t values[WEIR_TIMELINE_COUNTERS];

    replay->kind->figures(replay->allocator, &figures);
    values[WEIR_TIMELINE_REQUESTED] = replay->requested;
    values[WEIR_TIMELINE_IN_USE] = figures.has_in_use ? figures.in_use : WEIR_TIMELINE_UNKNOWN;
    values[WEIR_TIMELINE_RESERVED] = figures.has_reserve ? figures.reserved : WEIR_TIMELINE_UNKNOWN;
    weir__timeline_count(replay->timeline, ticks_since_begin(replay), values);
    if (replay->kind->steps)
        replay->kind->steps(replay->allocator, replay->timeline, replay->began_ticks);
}

/* Replays one operation, and adds its effects to the time line (--trace-events). */
static int replay_into_timeline(struct replay *replay, const struct trace_operation *op) {
    uint64_t failed = replay->failed, now;
    int was_live = op->code == 'f' && replay->addresses[op->block];

    if (!replay_operation(replay, op))
        return 0;
    if (replay->failed > failed)
        weir__timeline_failure(replay->timeline, ticks_since_begin(replay), op->bytes);
    else if (op->code == 'a')
        replay->requested += op->bytes;
    if (was_live)
        replay->requested -= op->bytes;
    if (op->code == 'm') {
        now = ticks_since_begin(replay);
        weir__timeline_iteration(replay->timeline, replay->mark_ns, now,
                                 replay->trace.labels[op->block]);
        replay->mark_ns = now;
    }
    child_add_to_timeline(replay);
    return 1;
}

/* Returns the events of this replay for the file of --trace-events, or NULL if there is no host memory. */
static json_t *child_timeline(const struct replay *replay, int number) {
    char name[TRACE_NAME_BYTES + 64], *part = NULL;
    json_t *result = NULL;
    size_t bytes;
    FILE *file = open_memstream(&part, &bytes);

    snprintf(name, sizeof name, "%s, %s%s", replay->trace.header->name, replay->configuration->name,
             replay->busy ? ", busy" : "");
    if (file) {
        weir__timeline_write(replay->timeline, file, number, name, 0, replay->device.name);
        if (fclose(file) == 0)
            result = json_pack("{s:s,s:o}", "timeline", part, "missing",
                               jsonfile_integer(weir__timeline_missing(replay->timeline)));
    }
    free(part);
    return result;
}

/* ---- operations ---- */

/* Waits as long as the recorded program did until its next call, times job.pace.  On a device, waits in a loop, because
 * a sleeping thread wakes up late. */
static void wait_for_pace(const struct replay *replay, uint64_t gap_us) {
    const struct stopwatch *watch = &replay->clock.watch;
    uint64_t ns = (uint64_t)((double)gap_us * 1000 * replay->job->pace),
             begun = stopwatch_read(watch);

    if (replay->modelled)
        replay->session.driver->sleep_ns(ns);
    else
        while (stopwatch_span(watch, begun, stopwatch_read(watch)) < ns)
            ;
}

/* After operation i, adds GPU work (--busy), and waits as long as the recorded program did (--pace).  Returns 1 on
 * success, 0 with replay->error on failure. */
static int submit_work_of(struct replay *replay, uint64_t i) {
    size_t stream = replay->trace.ops[i].stream;
    uint64_t gap_us = replay->trace.gaps_us[i];

    if (replay->busy && replay->trace.ops[i].code != 'm' &&
        busy_add_delay(replay->busy, stream, gap_us)) {
        end_stretch(replay);
        if (!check_work(replay, busy_flush(replay->busy, stream)))
            return 0;
    }
    if (replay->job->pace > 0) {
        end_stretch(replay);
        wait_for_pace(replay, gap_us);
    }
    return 1;
}

/* Replays all operations of the trace.  Returns 1 on success, 0 with replay->error on failure. */
static int replay_whole_trace(struct replay *replay) {
    const struct binary_trace *trace = &replay->trace;

    if (replay->busy && replay->play > PLAY_LOOP_ONLY &&
        !check_work(replay, busy_begin(replay->busy)))
        return 0;
    for (uint64_t i = 0; i < trace->header->ops; i++) {
        const struct trace_operation *op = &trace->ops[i];

        if (!(replay->play == PLAY_INTO_TIMELINE ? replay_into_timeline : replay_operation)(replay,
                                                                                            op))
            return 0;
        if (replay->play == PLAY_OBSERVED)
            observe_operation(replay, i);
        if (replay->play > PLAY_LOOP_ONLY && !submit_work_of(replay, i))
            return 0;
    }
    end_stretch(replay);
    return 1;
}

static weir_status loop_only_alloc(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                                   void **out) {
    static char dummy;

    (void)allocator, (void)block, (void)bytes, (void)stream;
    *out = &dummy;
    return WEIR_OK;
}

static weir_status loop_only_free(void *allocator, uint32_t block, void *address, CUstream stream) {
    (void)allocator, (void)block, (void)address, (void)stream;
    return WEIR_OK;
}

/* Resets all figures before the next replay. */
static void child_reset_counters(struct replay *replay, enum play kind) {
    replay->play = kind;
    replay->in_stretch = 0;
    replay->iteration_count = 0;
    replay->allocs = replay->frees = replay->uses = replay->failed = 0;
    replay->requested = 0;
    memset(&replay->now, 0, sizeof replay->now);
    memset(replay->addresses, 0, replay->trace.header->blocks * sizeof *replay->addresses);
}

/* Measures the time of the replay loop with an allocator that does nothing, and stores it in replay->loop_ns.  Runs the
 * loop twice, the first time to warm up.  Returns 1 on success, 0 with replay->error on failure. */
static int child_measure_loop(struct replay *replay) {
    static const struct allocator_kind bare = {
        .alloc = loop_only_alloc, .free = loop_only_free, .use = loop_only_free};
    const struct allocator_kind *kind = replay->kind;
    int good = 1;

    replay->kind = &bare;
    for (int round = 0; round < 2 && good; round++) {
        child_reset_counters(replay, PLAY_LOOP_ONLY);
        good = replay_whole_trace(replay);
    }
    replay->kind = kind;
    replay->longest_ns = 0;
    return good;
}

/* Subtracts the time of the replay loop (replay->loop_ns) from the times of all iterations.  Subtracts nothing if the
 * replay had GPU work or a pace, because such a replay reads the clock at other places. */
static void child_subtract_loop(struct replay *replay) {
    for (size_t i = 0; i < replay->iteration_count && !replay->busy && replay->job->pace <= 0;
         i++) {
        struct iteration *it = &replay->iterations[i];
        uint64_t own = it->alloc_ns - it->driver_ns;

        it->alloc_ns -= replay->loop_ns[i] < own ? replay->loop_ns[i] : own;
    }
}

/* ---- open and close ---- */

static int open_configuration(struct replay *replay) {
    struct span_start start;

    span_begin(&replay->clock, &start);
    replay->allocator = replay->kind->open(&replay->session, replay->configuration);
    span_end(&replay->clock, &start, &replay->creation);
    if (!replay->allocator)
        return child_fail(replay, "%s", replay->session.message);
    replay->kind->figures(replay->allocator, &replay->opened);
    replay->before = replay->opened;
    return 1;
}

/* Frees the blocks that are live at the end of the trace (after all measurements), and closes the allocator. */
static int close_configuration(struct replay *replay) {
    for (uint64_t i = 0; i < replay->trace.header->blocks; i++) {
        void *address = replay->addresses[i];

        if (address && replay->kind->free(replay->allocator, (uint32_t)i, address,
                                          replay->streams[0]) != WEIR_OK)
            return child_fail(replay, "a block that the trace leaves live cannot be freed");
        replay->addresses[i] = NULL;
    }
    return child_check(replay, "cuCtxSynchronize", replay->session.driver->cuCtxSynchronize()) &&
           (replay->kind->close(replay->allocator) ||
            child_fail(replay, "%s", replay->session.message));
}

/* If a test has set WEIR_TEST_SEQUENCE, starts a digest of all driver calls on the device model. */
static int start_sequence(struct replay *replay) {
    const char *path = getenv("WEIR_TEST_SEQUENCE");

    if (!path || !replay->modelled || replay->job->trial)
        return 1;
    if (*path && !(replay->lines = fopen(path, "ae")))
        return child_fail(replay, "%s: %s", path, strerror(errno));
    if (replay->lines)
        fprintf(replay->lines, "# %s %s%s\n", replay->trace.header->name,
                replay->configuration->name, replay->busy ? " busy" : "");
    weir__model_sequence_start(replay->lines);
    return 1;
}

static void end_sequence(struct replay *replay) {
    weir__model_sequence(&replay->sequence);
    if (replay->lines) {
        weir__model_sequence_start(NULL);
        fclose(replay->lines);
        replay->lines = NULL;
    }
}

/* ---- results ---- */

/* Returns the peak host memory of this process in bytes: VmHWM, because ru_maxrss includes the time before exec. */
static uint64_t peak_rss(void) {
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    unsigned long kib = 0;

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return (uint64_t)kib * 1024;
}

static json_t *driver_calls_json(const uint64_t before[], const uint64_t after[]) {
    json_t *out = json_object();

    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        if (after[i] > before[i])
            json_object_set_new(out, weir__driver_entry_name((enum weir_driver_entry)i),
                                jsonfile_integer(after[i] - before[i]));
    return out;
}

static json_t *device_taken_json(const struct session *session) {
    return jsonfile_integer(weir__size_subtract(session->device_bytes, session->device_free));
}

/* Returns a JSON object about the allocator and the device after the timed replay. */
static json_t *allocator_json(const struct replay *replay, const uint64_t before[]) {
    const struct configuration *configuration = replay->configuration;
    const struct allocator_kind *kind = replay->kind;
    json_t *options = kind->options(replay->allocator);
    const char *engine = json_string_value(json_object_get(options, "engine"));
    uint64_t after[WEIR_ENTRY_COUNT];
    char digest[17];

    weir__driver_counts(after);
    snprintf(digest, sizeof digest, "%016" PRIx64, replay->sequence.digest);
    return json_pack(
        "{s:s,s:o,s:o,s:o,s:s*,s:o*,s:o*,s:I,s:o,s:I}", "configuration",
        configuration->uses_command_options && engine ? engine : configuration->name, "options",
        options, "cache", kind->caches ? kind->caches(replay->allocator) : json_null(),
        "driver_calls", driver_calls_json(before, after), "driver_sequence",
        replay->sequence.calls > 0 ? digest : NULL, "oom_report", replay->oom_report, "latency",
        kind->latency ? kind->latency(replay->allocator) : NULL, "device_bytes",
        replay->session.device_bytes, "device_taken_bytes", device_taken_json(&replay->session),
        "timer_ns", stopwatch_ns(&replay->clock.watch, replay->clock.watch.cost));
}

/* Sets the figures of the timed replay, except those of iterations. */
static void set_timed_figures(const struct replay *replay, struct result_figures *figures) {
    const struct trace_header *header = replay->trace.header;

    result_set(figures, FIGURE_CREATION, replay->creation.ns);
    result_set(figures, FIGURE_REQUESTED, header->live_peak_bytes);
    if (replay->last.has_reserve) {
        result_set(figures, FIGURE_RESERVED, replay->last.reserved_peak);
        result_set(figures, FIGURE_BEFOREHAND, replay->opened.reserved);
    }
    if (!configuration_is_driver(replay->configuration))
        result_set(figures, FIGURE_STALL, replay->last.stall_ns - replay->opened.stall_ns);
    result_set(figures, FIGURE_ALLOCS, replay->allocs);
    result_set(figures, FIGURE_FREES, replay->frees);
    result_set(figures, FIGURE_USES, replay->uses);
    result_set(figures, FIGURE_FAILED, replay->failed);
    result_set(figures, FIGURE_RSS, peak_rss());
    if (replay->modelled)
        result_set(figures, FIGURE_CREATION_DRIVER, replay->creation.driver_ns);
    if (replay->job->pace > 0)
        result_set(figures, FIGURE_LONGEST, replay->longest_ns);
}

/* Sets the figures of the replay that measures memory (PLAY_OBSERVED). */
static void set_observed_figures(const struct replay *replay, struct result_figures *figures) {
    const struct figures *last = &replay->last, *opened = &replay->opened;

    result_set(figures, FIGURE_GROWTHS, last->growths - opened->growths);
    result_set(figures, FIGURE_TRIMS, last->trims - opened->trims);
    result_set(figures, FIGURE_AHEAD_GROWTHS, last->ahead_growths - opened->ahead_growths);
    result_set(figures, FIGURE_AHEAD_BYTES, last->ahead_bytes - opened->ahead_bytes);
    if (last->has_reserve)
        result_set(figures, FIGURE_KEPT,
                   replay->iteration_count > 0
                       ? replay->iterations[replay->iteration_count - 1].reserved_end
                       : last->reserved);
}

/* Sets the figures of the first iteration and of the warm-up. */
static void set_iteration_figures(const struct replay *replay, struct result_figures *figures,
                                  json_t *out) {
    const struct iteration *iterations = replay->iterations;
    size_t count = replay->iteration_count;
    size_t warm_up = result_warm_up(iterations, count, replay->opened.reserved, replay->modelled);
    uint64_t makespan = 0;

    json_object_set_new(out, "settled", json_boolean(result_has_steady_end(warm_up, count)));
    result_set(figures, FIGURE_WARM_UP_ITERATIONS, warm_up);
    if (count == 0)
        return;
    result_set(figures, FIGURE_FIRST, iterations[0].alloc_ns);
    result_set(figures, FIGURE_WARM_UP, figures->value[FIGURE_CREATION] + iterations[0].alloc_ns);
    if (replay->modelled)
        result_set(figures, FIGURE_FIRST_DRIVER, iterations[0].driver_ns);
    for (size_t i = 0; i < count; i++)
        makespan += iterations[i].makespan_ns;
    if (replay->busy)
        result_set(figures, FIGURE_MAKESPAN, makespan);
}

static json_t *column_json(const struct replay *replay, size_t field) {
    json_t *array = json_array();

    for (size_t i = 0; i < replay->iteration_count; i++)
        json_array_append_new(
            array,
            jsonfile_integer(
                *(const uint64_t *)(const void *)((const char *)&replay->iterations[i] + field)));
    return array;
}

static json_t *iterations_json(const struct replay *replay) {
    json_t *out = json_object();

#define COLUMN(key, field)                                                                         \
    json_object_set_new(out, key, column_json(replay, offsetof(struct iteration, field)))
    COLUMN("alloc_ns", alloc_ns);
    if (replay->modelled)
        COLUMN("driver_ns", driver_ns);
    if (replay->busy)
        COLUMN("makespan_ns", makespan_ns);
    COLUMN("growths", growths);
    COLUMN("trims", trims);
    if (replay->last.has_reserve) {
        COLUMN("reserved_high", reserved_high);
        COLUMN("reserved_end", reserved_end);
    }
#undef COLUMN
    return out;
}

/* Adds the curve of reserved memory over time to the result. */
static void set_points(const struct replay *replay, json_t *out) {
    json_t *low = json_array(), *high = json_array();

    for (size_t i = 0; i < RESULT_POINTS && replay->last.has_reserve; i++)
        if (replay->points[i].any) {
            json_array_append_new(low, jsonfile_integer(replay->points[i].low));
            json_array_append_new(high, jsonfile_integer(replay->points[i].high));
        }
    json_object_set_new(out, "reserved_low", low);
    json_object_set_new(out, "reserved_high", high);
}

/* ---- replays ---- */

/* Replays the trace on a new allocator, and leaves the allocator open.  Returns 1 on success, 0 with
 * replay->error on failure. */
static int replay_on_new_allocator(struct replay *replay, enum play kind) {
    child_reset_counters(replay, kind);
    if (!open_configuration(replay))
        return 0;
    if (kind == PLAY_INTO_TIMELINE)
        child_add_to_timeline(replay);
    if (!replay_whole_trace(replay))
        return 0;
    replay->kind->figures(replay->allocator, &replay->last);
    return 1;
}

static int export_snapshot(struct replay *replay, int number, json_t *out) {
    replay->timeline = weir__timeline_open();
    if (!replay->timeline)
        return child_fail(replay, "out of host memory");
    replay->began_ticks = replay->session.driver->ticks();
    if (!replay_on_new_allocator(replay, PLAY_INTO_TIMELINE) || !close_configuration(replay))
        return 0;
    json_object_set_new(out, "timeline", child_timeline(replay, number));
    weir__timeline_close(replay->timeline);
    return 1;
}

/* Makes all replays of the job.  Only the replay PLAY_TIMED logs messages, and only the last replay saves a profile. */
static int make_replays(struct replay *replay, json_t **out) {
    const struct job *job = replay->job;
    struct result_figures figures = {0};
    uint64_t before[WEIR_ENTRY_COUNT];

    weir__driver_counts(before);
    replay->session.discards_profile = 1;
    if (!child_measure_loop(replay) || !start_sequence(replay) ||
        !replay_on_new_allocator(replay, PLAY_TIMED))
        return 0;
    end_sequence(replay);
    child_subtract_loop(replay);
    set_timed_figures(replay, &figures);
    *out = allocator_json(replay, before);
    replay->options.log = WEIR_LOG_NONE;
    if (!close_configuration(replay) ||
        (job->timeline && !export_snapshot(replay, job->timeline, *out)))
        return 0;
    replay->session.discards_profile = job->discards_profile;
    if (!replay_on_new_allocator(replay, PLAY_OBSERVED) || !close_configuration(replay))
        return 0;
    set_observed_figures(replay, &figures);
    set_iteration_figures(replay, &figures, *out);
    for (int figure = 0; figure < FIGURES; figure++)
        if (figures.has[figure])
            json_object_set_new(*out, result_keys[figure], jsonfile_integer(figures.value[figure]));
    json_object_set_new(*out, "iterations", iterations_json(replay));
    set_points(replay, *out);
    return 1;
}

/* Returns 1 if the allocator could not be opened because of too little memory, else 0. */
static int is_open_out_of_memory(const struct session *session) {
    return session->is_out_of_memory ||
           (session->limit && session->limit < session->live_peak_bytes);
}

static int make_trial(struct replay *replay, json_t **out) {
    struct session *session = &replay->session;
    struct figures *last = &replay->last;

    session->discards_profile = 1;
    if (!replay_on_new_allocator(replay, PLAY_TIMED)) {
        if (replay->allocator ? !replay->is_out_of_memory : !is_open_out_of_memory(session))
            return 0;
        replay->is_out_of_memory = 1;
    }
    if (replay->allocator) {
        replay->kind->figures(replay->allocator, last);
        if (!close_configuration(replay))
            return 0;
    }
    *out = json_pack("{s:b,s:o,s:o,s:o,s:o}", "served", !replay->is_out_of_memory, "requests",
                     jsonfile_integer(replay->allocs), "reserved_peak_bytes",
                     last->has_reserve ? jsonfile_integer(last->reserved_peak) : json_null(),
                     "device_bytes", jsonfile_integer(session->device_bytes), "device_taken_bytes",
                     device_taken_json(session));
    return 1;
}

/* ---- the device ---- */

/* Joins the group of processes that WEIR_GROUP names, if it is set, and returns the driver table for the replay.  On
 * failure, prints a message and returns NULL. */
static const struct weir_driver *group_driver(const struct weir_driver *driver, int ordinal) {
    char why[WEIR_GROUP_WHY], shown[WEIR_GROUP_SHOWN];
    struct weir_group_settings settings;
    struct weir_group *g = NULL;
    CUdevice device = 0;
    int is = weir__group_settings(&settings, why, sizeof why);

    if (is == 0 || (is > 0 && driver->cuDeviceGet(&device, ordinal) != CUDA_SUCCESS))
        return driver;
    if (is > 0)
        g = weir__group_enter(driver, device, why);
    if (!g && why[0]) {
        fprintf(stderr, "weir: %s\n", why);
        return NULL;
    }
    if (g && weir__group_room(g) < WEIR_GROUP_CONTEXT_BYTES) {
        weir__group_describe(g, shown);
        fprintf(stderr, "weir: no room for the device's context (an estimate of 528MiB): %s\n",
                shown);
        return NULL;
    }
    return weir__group_driver(driver);
}

static int open_replay_device(struct replay *replay, struct weir_cli_settings *settings) {
    struct session *session = &replay->session;

    if (weir_cli_device_open(settings, &replay->device, 1) != 0)
        return 0; /* after a message from weir_cli_device_open() */
    session->driver = group_driver(replay->device.driver, replay->device.ordinal);
    if (!session->driver)
        return 0; /* after a message from group_driver() */
    replay->modelled = session->driver->charge != NULL;
    session->counted = weir__driver_counted(session->driver);
    if (!session->counted)
        return child_fail(replay, "driver calls cannot be counted");
    return child_check(replay, "cuDeviceGet",
                       session->driver->cuDeviceGet(&session->device, replay->device.ordinal));
}

/* Makes the device's context current, and creates the streams of the trace and session.event.  Returns 1 on success, 0
 * with replay->error on failure. */
static int prepare_device(struct replay *replay) {
    struct session *session = &replay->session;
    const struct weir_driver *driver = session->driver;
    size_t total = 0, unused;

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
    for (size_t i = 0; i < replay->trace.header->streams; i++)
        if (!child_check(replay, "cuStreamCreate",
                         driver->cuStreamCreate(&replay->streams[i], CU_STREAM_NON_BLOCKING)))
            return 0;
    return child_check(replay, "cuCtxSynchronize", driver->cuCtxSynchronize());
}

/* Prepares GPU work.  Must be called before any measurement, because to load a kernel takes device memory and time. */
static int prepare_work(struct replay *replay) {
    char why[RUNNER_MESSAGE_BYTES - 16];

    if (replay->job->busy_factor <= 0)
        return 1;
    replay->busy = busy_open(replay->session.driver, replay->job->busy_factor, replay->streams,
                             replay->trace.header->streams, why, sizeof why);
    return replay->busy != NULL || child_fail(replay, "--busy: %s", why);
}

static int prepare_memory(struct replay *replay) {
    const struct trace_header *header = replay->trace.header;

#define ROOM(field, count) (replay->field = calloc((count) ? (count) : 1, sizeof *replay->field))
    replay->session.blocks = header->blocks;
    replay->session.live_peak_bytes = header->live_peak_bytes;
    return (ROOM(addresses, header->blocks) && ROOM(iterations, header->marks) &&
            ROOM(loop_ns, header->marks) && ROOM(points, RESULT_POINTS) &&
            ROOM(streams, header->streams)) ||
           child_fail(replay, "out of host memory");
#undef ROOM
}

/* Destroys the streams, the events and the GPU work, and releases the context.  Ignores errors, because the process
 * ends. */
static void release_device(struct replay *replay) {
    const struct weir_driver *driver = replay->session.driver;
    CUcontext popped;

    busy_close(replay->busy);
    for (uint64_t i = 0; replay->streams && i < replay->trace.header->streams; i++)
        if (replay->streams[i])
            driver->cuStreamDestroy(replay->streams[i]);
    if (replay->session.event)
        driver->cuEventDestroy(replay->session.event);
    if (replay->context) {
        driver->cuCtxPopCurrent(&popped);
        driver->cuDevicePrimaryCtxRelease(replay->session.device);
    }
}

/* Prepares the device and makes the replays of the job.  Returns the result, or NULL with replay->error on failure. */
static json_t *replay_all(struct replay *replay) {
    json_t *out = NULL;

    if (prepare_memory(replay) && prepare_device(replay) && prepare_work(replay) &&
        child_check(
            replay, "cuCtxGetCurrent",
            span_clock_make(&replay->clock, replay->session.driver, replay->session.counted)) &&
        (replay->job->trial ? make_trial(replay, &out) : make_replays(replay, &out)))
        return out;
    json_decref(out);
    return NULL;
}

static void *burn_processor(void *unused) {
    for (;;)
        (void)pause();
    return unused;
}

/* Makes the replays while a second, idle thread exists, as in a real program.  In a process with one thread, the C
 * library avoids atomic instructions, and calls would be faster. */
static json_t *replay_beside_idle_thread(struct replay *replay) {
    pthread_t thread;
    json_t *result;

    if (pthread_create(&thread, NULL, burn_processor, NULL) == 0)
        (void)pthread_detach(thread);
    result = replay_all(replay);
    release_device(replay);
    return result;
}

/* Returns a JSON object that names the missing feature for each configuration that the device cannot run. */
static json_t *lacks_json(const struct weir_driver *driver, CUdevice device) {
    json_t *out = json_object();

    for (const struct configuration *c = configurations; c->name; c++) {
        const char *lacks = configuration_lacks(c, driver, device);

        if (lacks)
            json_object_set_new(out, c->name, json_string(lacks));
    }
    return out;
}

static json_t *device_json(const struct weir_cli_settings *settings,
                           const struct weir_cli_device *device) {
    CUdevice handle = 0;

    if (device->driver->cuDeviceGet(&handle, device->ordinal) != CUDA_SUCCESS)
        return json_pack("{s:s}", "error", "cuDeviceGet failed");
    return json_pack("{s:s,s:s,s:b,s:i,s:o}", "device", device->name, "spec",
                     settings->options.device ? settings->options.device : "", "modelled",
                     device->driver->charge != NULL, "driver_version", device->driver->version,
                     "lacks", lacks_json(device->driver, handle));
}

/* Sends the parent a description of the device, without a replay.  Returns the exit code. */
static int report_job_device(struct weir_cli_settings *settings, const struct job *job) {
    struct weir_cli_device device = {0};
    int good = weir_cli_device_open(settings, &device, 0) == 0 &&
               group_driver(device.driver, device.ordinal);
    const char *lacks = good && job->busy_factor > 0 ? busy_lacks(device.driver) : NULL;

    if (lacks)
        fprintf(stderr, "weir: --busy needs %s, which the driver of %s lacks\n", lacks,
                device.name);
    if (good && !lacks)
        return !result_send(device_json(settings, &device));
    /* The parent prints no message, because this process has printed one. */
    result_send(json_pack("{s:s}", "error", ""));
    return 1;
}

int weir_cmd_replay_child(int argc, char **argv) {
    static struct replay replay;
    static struct job job;
    struct weir_cli_settings settings;
    json_t *result = NULL;
    int is_sent;

    (void)argc;
    (void)argv;
    if (!job_read(&job)) {
        fputs("weir: " RUNNER_SUBCOMMAND " is only for weir replay and weir bench\n", stderr);
        return 2;
    }
    weir_cli_settings_init(&settings);
    settings.options = job.options;
    settings.sources.of[WEIR_SETTING_DEVICE] = job.device_source[0] ? job.device_source : NULL;
    if (!job.configuration[0])
        return report_job_device(&settings, &job);
    replay.configuration = configuration_find(job.configuration);
    replay.session.command_options = &replay.options;
    replay.session.limit = job.limit;
    replay.job = &job;
    if (replay.configuration)
        replay.kind = replay.configuration->kind;
    if (!replay.configuration || !binary_trace_map(CHILD_TRACE_FD, &replay.trace)) {
        result_send(json_pack("{s:s}", "error", "the child cannot read its job"));
        return 1;
    }
    if (open_replay_device(&replay, &settings)) {
        replay.options = settings.options;
        result = replay_beside_idle_thread(&replay);
    }
    is_sent = result_send(result ? result : json_pack("{s:s}", "error", replay.error));
    return result && is_sent ? 0 : 1;
}
